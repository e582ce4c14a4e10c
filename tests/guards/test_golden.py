"""Every case of ``tests.golden`` is within the bounds of the sweep, and hardly farther from the truth than before."""

from __future__ import annotations

import warnings

import pytest

from tests.golden import calls, judge, store
from tests.golden.cases import Case, cases

_AT_ONCE = 40
CASES = cases()
STORED, _ = store.read()


def _wrong(case: Case) -> list[str]:
    posed, stored = calls.pose(case), STORED[case.name]
    assert posed.digest == stored.inputs, f"{case.name}: the inputs are not those of the file"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(judge.verdicts(posed, calls.ask(posed), stored.parts))


@pytest.mark.parametrize("first", range(0, len(CASES), _AT_ONCE))
def test_answers_are_as_good_as_before(first: int) -> None:
    wrong = [said for case in list(CASES.values())[first : first + _AT_ONCE] for said in _wrong(case)]
    assert not wrong, "\n".join(wrong)


def test_the_file_holds_these_cases_and_is_small() -> None:
    assert STORED.keys() == CASES.keys(), "python -m tests.golden make writes the file again"
    assert store.FILE.stat().st_size < 600_000


def test_wrong_answers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["soft_rank, n=100, eps=0.01"]
    posed, parts = calls.pose(case), STORED[case.name].parts
    right = calls.ask(posed)
    assert not list(judge.verdicts(posed, right, parts))
    for name, by in (("answer", 2e-3), ("gradient in x", 1.0)):
        found = calls.Found(right.parts | {name: right.parts[name] + by})
        assert len(list(judge.verdicts(posed, found, parts))) == 1


def test_the_commands_say_what_changed(tmp_path, monkeypatch, capsys) -> None:
    from tests.golden import __main__ as command

    file, only = tmp_path / "answers.npz", "soft_median, n=10"
    assert command.make(file, only, check=False, anew=False) == 0
    assert store.read(file)[0].keys() == STORED.keys()
    assert command.compare(file, only) == 0
    right = calls.ask
    monkeypatch.setattr(
        calls, "ask", lambda posed: calls.Found({name: t * (1 + 1e-6) for name, t in right(posed).parts.items()})
    )
    capsys.readouterr()
    assert command.make(file, only, check=True, anew=False) == 1
    assert "CHANGED soft_median, n=10, eps=0.01: answer moved by" in capsys.readouterr().out
    assert command.compare(file, only) == 1
    assert "DIFFERS soft_median, n=10, eps=0.01: gradient in x" in capsys.readouterr().out


def test_every_option_is_spelled_out() -> None:
    """An operator with an option that ``options`` does not know raises a KeyError there."""
    for case in CASES.values():
        if case.n <= 10:
            calls.options(calls.pose(case))
    assert {case.operator for case in CASES.values()} == set(calls.READS)
