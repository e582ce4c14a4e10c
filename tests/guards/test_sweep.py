"""The first cases of the sweep, a few rows of each; and that the sweep finds what is wrong."""

from __future__ import annotations

import pytest

from tests.sweep import cases, run
from tests.sweep.recording import Record

CASES, AT_ONCE, ROWS = 600, 20, 12  #: so many cases cover every operator, kind, dtype, layout and decade of eps


def test_the_cases_cover_the_table() -> None:
    drawn = [cases.draw(0, number) for number in range(CASES)]
    for name, table in (
        ("operator", cases.OPERATORS),
        ("kind", cases.KINDS),
        ("dtype", cases.DTYPES),
        ("layout", cases.LAYOUTS),
        ("cotangent", cases.COTANGENTS),
        ("squash", ("sigmoid", "arctan", None)),
    ):
        assert {getattr(case, name) for case in drawn} == set(table), name
    assert {run.decade(case.eps) for case in drawn} >= {f"1e{at} to 1e{at + 1}" for at in range(-6, 0)}
    assert {case.m for case in drawn} >= {2, 3, 4, 5}
    assert max(case.n for case in drawn) > 1024


@pytest.mark.parametrize("first", range(0, CASES, AT_ONCE))
def test_no_row_is_wrong(first: int) -> None:
    record = Record.new(0, "cpu")
    for number in range(first, first + AT_ONCE):
        run.try_case(record, cases.draw(0, number), "cpu", ROWS)
    assert record.rows > AT_ONCE
    assert not record.failures, record.summary()
