"""Sorted values of rows so short that sixteen are worked on at a time: their last digits, and their gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.kernels.contract import Ask
from sinksort.kernels.cpu import rows

from .test_rows import REFERENCE, inputs, some_weights


@pytest.mark.parametrize("targets", [3, 5])
@pytest.mark.parametrize("eps", [1e-1, 5e-2, 1e-2])
def test_sorted_values_of_very_short_rows_keep_their_last_digits(targets: int, eps: float) -> None:
    """On average half a unit in the last place of single precision, of the spread of a row."""
    x = inputs("normal", 2000, 5)
    ours = sinksort.soft_sort(x, eps=eps, num_targets=targets, backend="numba")
    true = sinksort.soft_sort(x.double(), eps=eps, num_targets=targets, solver=REFERENCE)
    off = (ours - true) / x.double().std(-1, keepdim=True)
    assert off.square().mean().sqrt() <= torch.finfo(torch.float32).eps / 2


@pytest.mark.parametrize("n", [8, 16])
def test_sorted_values_between_groups_of_weighted_values(n: int) -> None:
    """One target has some of both groups: an error of the weights that arrive moves its value by n times as much."""
    x, a = inputs("2 clusters", 500, n), some_weights(500, n)
    ours = sinksort.soft_sort(x, eps=1e-2, weights=a, backend="numba")
    true = sinksort.soft_sort(x.double(), eps=1e-2, weights=a.double(), solver=REFERENCE)
    assert (ours - true).abs().max() <= 2e-6


READ: dict[str, Callable[..., Tensor]] = {
    "sort": sinksort.soft_sort,
    "sort on 6 targets": lambda x, **o: sinksort.soft_sort(x, num_targets=6, **o),
    "arctan": lambda x, **o: sinksort.soft_sort(x, squash="arctan", **o),
    "top 3": lambda x, **o: sinksort.soft_topk(x, 3, **o).values,
    "median": sinksort.soft_median,
    "quantiles": lambda x, **o: sinksort.soft_quantile(x, (0.1, 0.77), **o),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["normal", "ties", "2 clusters", "heavy tails"])
@pytest.mark.parametrize("eps", [5e-3, 1e-3])
def test_averages_that_are_nearly_hard(kind: str, weighted: bool, eps: float) -> None:
    """Gradients by way of the plan are what is left of parts 1 / eps as large."""
    n = 9
    x, a = inputs(kind, 40, n), some_weights(40, n) if weighted else None
    for name, read in READ.items():
        ours, true = x.clone().requires_grad_(), x.double().requires_grad_()
        out = read(ours, eps=eps, weights=a, backend="numba")
        exact = read(true, eps=eps, weights=None if a is None else a.double(), solver=REFERENCE)
        w = inputs("normal", exact.numel(), 1, seed=7).reshape(exact.shape)
        out.backward(w)
        exact.backward(w.double())
        assert ours.grad is not None
        assert true.grad is not None
        assert (out - exact).abs().max() <= 2e-6 * x.abs().max(), name
        off, size = (ours.grad - true.grad).abs().amax(-1), true.grad.abs().amax(-1)
        assert (off <= 1e-3 * size + 1e-7 * w.abs().max()).all(), name


@pytest.mark.parametrize("squash", ["sigmoid", None])
@pytest.mark.parametrize("weighted", [False, True])
def test_sorted_values_of_constant_rows_move_with_all_values_alike(squash: str | None, weighted: bool) -> None:
    """All targets get of every value what it weighs, whatever it is: the gradient is sum(c) a. The rest must cancel."""
    x = torch.full((50, 12), 3.7, requires_grad=True)
    a = some_weights(50, 12) if weighted else torch.full((50, 12), 1 / 12)
    c = inputs("normal", 50, 7)
    sinksort.soft_sort(x, weights=a, num_targets=7, squash=squash, eps=1e-3, backend="numba").backward(c)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, c.sum(-1, keepdim=True) * a, rtol=0, atol=1e-6)


def test_very_short_rows_keep_no_more_than_their_own_kernels_need() -> None:
    """Three numbers for each target; more where ranks or sorts of them go to kernels with larger states."""
    y, b = torch.linspace(0, 1, 10)[None], torch.full((1, 10), 0.1)
    asks = {eps: Ask(inputs("normal", 32, 10), None, y, b, eps, "sigmoid") for eps in (1e-1, 1e-2, 1e-3, 1e-4)}
    columns = {eps: rows.state_layout(ask)[0] for eps, ask in asks.items()}
    assert columns[1e-2] == columns[1e-3] == 30
    assert min(columns[1e-1], columns[1e-4]) > 30
