"""Rows that a sweep found wrong, once: each stays right. The judge and the oracle of the sweep are right about it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import sinksort
from tests.sweep.asking import ask, truth
from tests.sweep.cases import Case, Rows, cotangent_of, draw, rows_of
from tests.sweep.independent import disagreement
from tests.sweep.judging import judge, scales

#: (seed, case, rows, backend) -> why these rows were wrong.
FOUND: dict[tuple[int, int, tuple[int, ...], str], str] = {
    (3101, 670, (1, 23), "torch"): "a grid's remainder was small, and its slope was not",
    (3101, 2577, (0, 1, 2), "torch"): "averages of one number by a small problem were off by rounding",
    (2026, 1396, (127, 473), "auto"): "the reference gave a target of no weight to values of no weight",
    (2026, 1332, (67, 462), "auto"): "a marginal error of 1e-13 was 1% of what leaked across a gap",
    (77, 1545, (399, 143), "auto"): "terms over eps cancelled up to the rounding of C / eps",
    (4711, 2935, (270,), "auto"): "potentials were off across a weak link, which marginals do not show",
    (4711, 1526, (268, 142), "auto"): "the same, where single precision has no more digits: such rows are rejected",
    (4711, 1110, (160, 125), "auto"): "what a filler lacks was the difference of two halves of the row",
    (4711, 1949, (346, 371), "auto"): "a target without weight was the best one of values without weight",
    (4711, 2019, (457, 345), "auto"): "the judge forgot that the payload of an infinite value counts",
    (4711, 3521, (94, 431), "auto"): "the same",
    (606, 780, (3, 418), "auto"): "rows in lanes with weights and targets of their own overflowed",
    (90210, 2994, (101,), "auto"): "the backward pass of a sort corrected itself into the wrong direction",
}


def _asked(case: Case, rows: Rows, backend: str) -> tuple[Any, Any, Tensor]:
    cotangents: list[Tensor] = []

    def first(out: Tensor) -> Tensor:
        cotangents.append(cotangent_of(case, out.to(case.dtype), rows.draws))
        return cotangents[0].to(out.dtype)

    how = {} if backend == "auto" else {"backend": backend}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        true = truth(case, rows, first)
        return ask(case, rows, case.layout, lambda out: cotangents[0].to(out.dtype), **how), true, cotangents[0]


@pytest.mark.parametrize("found", FOUND, ids=lambda found: f"{found[0]}-{found[1]}")
def test_a_row_that_was_wrong_is_right(found: tuple[int, int, tuple[int, ...], str]) -> None:
    seed, number, which, backend = found
    case = draw(seed, number)
    rows = rows_of(case, max(which) + 1, "cpu").some(torch.tensor(which))
    answer, true, cotangent = _asked(case, rows, backend)
    verdict = judge(case, rows, answer, true, cotangent)
    assert verdict.answers.max() <= 1, FOUND[found]
    assert verdict.gradients.max() <= 1, FOUND[found]


def test_a_padded_row_whose_values_are_all_selected_has_no_target_for_more() -> None:
    case = draw(4711, 3662)
    rows = rows_of(case, 222, "cpu")
    r = int((rows.each_value["mask"].sum(-1) == case.options["k"]).nonzero()[0])
    rows = rows.some(torch.tensor([r]))
    _, true, cotangent = _asked(case, rows, "auto")
    error = disagreement(case, rows, true, cotangent, scales(case, rows).answer[0].item(), 0)
    assert error is not None
    assert error <= 1


def test_the_three_of_a_kind_are_what_a_row_of_three_says() -> None:
    """``soft_topk`` of a padded row with as many values as are wanted is the sort of that row without its padding."""
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(4, 300, dtype=torch.bool)
    mask[0, [3, 70, 299]] = True
    mask[1, [0, 1]] = True
    mask[2] = True
    values = sinksort.soft_topk(x, 3, mask=mask).values
    torch.testing.assert_close(values[0], sinksort.soft_sort(x[0, [3, 70, 299]], descending=True), rtol=0, atol=2e-6)
    pair = sinksort.soft_sort(x[1, :2], descending=True)
    torch.testing.assert_close(values[1], torch.cat([pair, torch.zeros(1)]), rtol=0, atol=2e-6)
    torch.testing.assert_close(values[2], sinksort.soft_topk(x[2], 3).values, rtol=0, atol=2e-6)
    assert torch.equal(values[3], torch.zeros(3))


def test_what_is_taken_of_a_longer_row_may_weigh_nothing() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 5.0], [4.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True, True], [True, False, False, False]])
    weights = torch.tensor([[0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    values = sinksort.soft_topk(x, 1, mask=mask, weights=weights, eps=1e-3).values
    torch.testing.assert_close(values, torch.tensor([[5.0], [4.0]]), rtol=0, atol=1e-3)
