"""The table of ``dispatch``: every row can win, and its limits are those of the kernels behind it."""

from __future__ import annotations

import ast
import itertools
import random
from pathlib import Path

import pytest
import torch

from sinksort import kernels
from sinksort.kernels import dispatch
from sinksort.kernels.contract import Request
from sinksort.kernels.dispatch import Facts, Row
from sinksort.kernels.requests.targets import default_targets, membership_targets

FRONT = Path(kernels.__file__).parent
LIMITS = (1, 2, 3, 4, 15, 16, 20, 31, 32, 63, 64, 100, 128, 192, 256, 400, 512, 1024, 2048, 4096, 1 << 14, 1 << 15)
SIZES = sorted({size + more for size in LIMITS for more in (0, 1)})
EPS = (1e-6, 5e-5, 2e-4, 7e-4, 1.5e-3, 3e-3, 1e-2, 0.3)


def drawn(draw: random.Random, read: str) -> Facts:
    """Facts that agree with each other."""
    n, K, eps = draw.choice(SIZES), draw.choice(SIZES), draw.choice(EPS)
    if draw.random() < 0.05:
        n = 1 << 31
    yes = lambda share=0.5: draw.random() < share  # noqa: E731
    equal = yes()
    m = K if not equal or yes(0.3) else max(K, draw.choice(SIZES))
    selecting = not equal and K in (2, 3) and yes()
    quantile, weighted = K == 3 and selecting, yes(0.2)
    return Facts(
        read, n, K, equal, equal and m == K, m, max(n, m, K), n * K, n * m, n * K * K, eps, n * n * eps,
        draw.choice((1, 16)), weighted, quantile, quantile or yes(0.2), yes(), n == K, yes(), yes(), yes(), yes(0.3),
        selecting and K == 2, selecting, yes(0.2), yes(0.1), yes(0.1), yes(0.1), yes(0.1), yes(0.1),
    )  # fmt: skip


@pytest.mark.parametrize(("part", "name"), list(itertools.product(("refused", "kernels"), ("numba", "triton"))))
def test_no_row_is_hidden_by_the_rows_before_it(part: str, name: str) -> None:
    draw, rows = random.Random(0), dispatch._PARTS[part][name]
    hidden = set(range(len(rows)))
    for i in range(200_000):
        facts = drawn(draw, ("pull", "push", "logs")[i % 3])
        found = dispatch._first(part, name, facts)
        if found is not None:
            hidden.discard(rows.index(found))
        if not hidden:
            return
    pytest.fail(f"these rows never win: {[rows[i] for i in sorted(hidden)]}")


def test_limits_are_read_as_they_are_written() -> None:
    row = dispatch._row("kernels", "pull", n=dispatch._to(10, 3), eps=dispatch._below(0.5), weighted=False, targets=4)
    good = Facts("pull", 3, 4, eps=0.25)
    assert row.fits(good)
    assert row.fits(good._replace(n=10))
    for wrong in ({"n": 2}, {"n": 11}, {"eps": 0.5}, {"weighted": True}, {"targets": 5}, {"read": "push"}):
        assert not row.fits(good._replace(**wrong)), wrong


def test_every_fact_of_a_limit_is_a_fact() -> None:
    rows: list[Row] = [row for part in dispatch._PARTS.values() for rows in part.values() for row in rows]
    assert {name for row in rows for name, _, _ in row.limits} <= set(Facts._fields)


@pytest.mark.parametrize("name", ["numba", "triton"])
def test_every_request_has_kernels(name: str) -> None:
    draw = random.Random(1)
    for i in range(5_000):
        assert dispatch._first("kernels", name, drawn(draw, ("pull", "push", "logs")[i % 3])) is not None


def test_limits_are_those_of_the_kernels() -> None:
    rows = pytest.importorskip("sinksort.kernels.cpu.rows", reason="without Numba there are no kernels for the CPU")
    from sinksort.kernels.cpu.lanes.plan import MOST_IN_LANES
    from sinksort.kernels.cpu.thresholds.sums import MOST_THRESHOLDS

    assert (rows.MOST_IN_BAND, rows.SAVED) == (dispatch.BAND_VALUES, dispatch.BAND_TARGETS)
    assert (MOST_IN_LANES, MOST_THRESHOLDS) == (dispatch.VERY_SHORT, dispatch.FEW)


@pytest.mark.parametrize(
    ("rows", "n", "eps", "answer"),
    [
        (128, 10, 1e-2, dispatch.LANES),  # n^2 eps is 1: too sharp for a band
        (128, 10, 1e-1, dispatch.BAND),
        (128, 100, 1e-2, dispatch.BAND),
        (15, 100, 1e-2, dispatch.ROW),
        (128, 100, 1e-4, dispatch.ROW),
        (128, 193, 1e-2, dispatch.ROW),
    ],
)
def test_ranks_of_default_targets(rows: int, n: int, eps: float, answer: str) -> None:
    at = default_targets(n, min(n, 128), None, False, torch.device("cpu"))
    request = Request(torch.zeros(rows, n), None, at.y, at.b, eps, "sigmoid")
    assert dispatch.kernels_for("numba", request, "pull", at.phi).answer == answer


@pytest.mark.parametrize(
    ("n", "eps", "answer"),
    [
        (20, 1e-2, dispatch.LANES),
        (20, 1e-3, dispatch.TWO),
        (21, 1e-2, dispatch.TWO),
        (1 << 15, 1e-2, dispatch.TWO),
        ((1 << 15) + 1, 1e-2, dispatch.THRESHOLDS_IN_PIECES),
    ],
)
def test_masks(n: int, eps: float, answer: str) -> None:
    at = membership_targets(0.5, True, torch.device("cpu"))
    request = Request(torch.zeros(1, 1).expand(1, n), None, at.y, at.b, eps, "sigmoid")
    assert dispatch.kernels_for("numba", request, "pull", at.phi).answer == answer


def test_a_tensor_in_single_precision_is_taken_for_the_number_that_was_typed() -> None:
    at = default_targets(30, 30, None, False, torch.device("cpu"))
    for typed in (5e-3, 2e-3, 1e-3):
        request = Request(torch.zeros(1, 30), None, at.y, at.b, torch.tensor([typed]), "sigmoid")
        assert dispatch.facts_of("numba", request, "pull").eps >= typed


def test_entries_do_not_compare_sizes_when_they_say_that_they_are_unable() -> None:
    """Limits on n, K and eps stand in the table: what is left to say is of devices, dtypes and names."""
    for entry in ("cpu/rows.py", "cpu/long.py", "gpu/rows.py", "gpu/long.py"):
        tree = ast.parse((FRONT / entry).read_text(encoding="utf-8"))
        (unable,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "unable")
        compared = [node for node in ast.walk(unable) if isinstance(node, (ast.Lt, ast.LtE, ast.Gt, ast.GtE))]
        assert not compared, entry
