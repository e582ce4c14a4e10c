"""Two or three targets without a grid: against the whole plan, for every kind of input and small eps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.linear.choose import places_of
from sinksort.linear.grid import pieces
from sinksort.linear.piecewise import mapped, summed
from sinksort.linear.thresholds import Thresholds, thresholds
from tests.inputs import KINDS, table

N = 1500
REFERENCE = sinksort.Newton(compress=False, tolerance=1e-13)


def here(t: Tensor, known: Tensor | None = None) -> Tensor:
    """All values are here: what is known is only believed."""
    return t if known is None else known + (t - t.detach())


def found(x: Tensor, w: Tensor | None, eps: float, b: Tensor) -> Thresholds:
    zero, one = b.new_zeros(1), b.new_ones(1)
    rows = torch.full((len(x), 1, 1), eps, dtype=torch.float64)
    unit = torch.ones(len(x), 1, 1, dtype=torch.float64)
    return thresholds(places_of(x, w, "sigmoid", zero, one), unit, here, rows, b, x.dtype)


def median_and_mask(x: Tensor, w: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    n = x.shape[-1]
    three = torch.tensor([0.5 - 0.5 / n, 1.0 / n, 0.5 - 0.5 / n], dtype=torch.float64).expand(len(x), 1, 3)
    two = torch.tensor([0.7, 0.3], dtype=torch.float64).expand(len(x), 1, 2)
    return found(x, w, eps, three).average(1, x)[:, 0], found(x, w, eps, two).given_value(1)


@pytest.mark.parametrize("eps", [1.0, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_kind_of_input(eps: float, weighted: bool) -> None:
    x = torch.tensor(table(list(KINDS), len(KINDS), N, seed=4))
    w = torch.tensor(table(["uniform"], len(KINDS), N, seed=5)) if weighted else None
    median, mask = median_and_mask(x, w, eps)
    span, rounding = x.amax(-1) - x.amin(-1), 1e-13 * x.abs().amax(-1)
    true_median = sinksort.soft_median(x, weights=w, eps=eps, solver=REFERENCE)
    assert ((median - true_median).abs() <= 2e-9 * span + rounding).all()
    true_mask = sinksort.soft_topk_mask(x, 0.3 * N, weights=w, eps=eps, solver=REFERENCE)
    torch.testing.assert_close(mask, true_mask, rtol=0, atol=2e-9)


def test_several_levels_at_once() -> None:
    x = torch.tensor(table(["normal", "exponential", "tied"], 3, N, seed=4))
    levels, width = torch.tensor([0.1, 0.3, 0.5, 0.9], dtype=torch.float64), 0.01
    b = torch.stack([levels - width / 2, torch.full_like(levels, width), 1.0 - levels - width / 2], dim=-1)
    quantiles = found(x, None, 1e-3, b.expand(len(x), 4, 3)).average(1, x)
    truth = sinksort.soft_quantile(x, levels, width=width, eps=1e-3, solver=REFERENCE)
    span = x.amax(-1) - x.amin(-1)
    assert ((quantiles.mT - truth).abs() <= 2e-9 * span).all()


@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_nearly_hard(eps: float) -> None:
    """Where one value is a threshold, and cells are thousands of eps wide."""
    x = torch.tensor(table(["normal", "heavy_tailed", "clusters_3", "tied"], 4, N, seed=4))
    _, mask = median_and_mask(x, None, eps)
    torch.testing.assert_close(mask.sum(-1), torch.full((4,), 0.3 * N, dtype=torch.float64), rtol=1e-9, atol=0)
    true_mask = sinksort.soft_topk_mask(x, 0.3 * N, eps=eps, solver=REFERENCE)
    torch.testing.assert_close(mask, true_mask, rtol=0, atol=1e-7)


def test_single_precision() -> None:
    x = torch.tensor(table(list(KINDS), len(KINDS), N, seed=4)).float()
    median, mask = median_and_mask(x, None, 1e-3)
    truth = sinksort.soft_topk_mask(x.double(), 0.3 * N, eps=1e-3, solver=REFERENCE)
    torch.testing.assert_close(mask.double(), truth, rtol=0, atol=1e-5)
    true_median = sinksort.soft_median(x.double(), eps=1e-3, solver=REFERENCE)
    span, rounding = x.amax(-1) - x.amin(-1), 1e-13 * x.abs().amax(-1).double()
    assert ((median - true_median).abs() <= 1e-5 * span + rounding).all()


def test_derivatives() -> None:
    x = torch.tensor(table(["normal", "exponential"], 2, 260, seed=4)).requires_grad_()
    w = (0.5 + torch.rand(2, 260, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).requires_grad_()
    for weights in (None, w):
        inputs = (x,) if weights is None else (x, w)

        def answers(x: Tensor, w: Tensor | None = None) -> tuple[Tensor, Tensor]:
            median, mask = median_and_mask(x, w, 0.05)
            return median, mask[:, ::50]

        assert torch.autograd.gradcheck(answers, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(answers, inputs, fast_mode=True)


# ---- piece by piece


def parabola(values: list[Tensor], shared: list[Tensor]) -> Tensor:
    return shared[0] * values[0].square() * values[1]


def total(values: list[Tensor], shared: list[Tensor]) -> Tensor:
    return parabola(values, shared).sum(-1)


@pytest.mark.parametrize(("rows", "n"), [(3, 100), (9, 10), (2, 0)])
@pytest.mark.parametrize("function", [parabola, total])
def test_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch, rows: int, n: int, function: Any) -> None:
    """In many pieces, of several rows or of a part of one: values, first and second derivatives."""
    monkeypatch.setattr("sinksort.linear.grid._CPU_PIECE", 32)
    generator = torch.Generator().manual_seed(0)
    shapes = (rows, n), (rows, n), (rows, 1)
    leaves = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    assert len(list(pieces(leaves[0]))) > 1 or n == 0

    def derivatives(in_pieces: bool, again: bool) -> tuple[Tensor, ...]:
        values, shared = leaves[:2], leaves[2:]
        by_pieces = summed if function is total else mapped
        out = by_pieces(function, values, shared) if in_pieces else function(values, shared)
        first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=again)
        return (out, *(torch.autograd.grad(sum(g.cos().sum() for g in first), leaves) if again else first))

    for again in (False, True):
        torch.testing.assert_close(derivatives(True, again), derivatives(False, again))


def test_a_known_sum_is_believed() -> None:
    x, w = torch.ones(1, 5, requires_grad=True), torch.ones(1, 5)
    out = summed(total, [x, w], [torch.ones(1, 1)], known=torch.tensor([7.0]))
    assert out == 7.0
    (grad,) = torch.autograd.grad(out, x)
    assert torch.equal(grad, torch.full((1, 5), 2.0))
