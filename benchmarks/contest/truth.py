"""The float64 answers that sinksort, the paper's method and other solvers of the same problem are measured against."""

from __future__ import annotations

import functools

import numpy as np
import torch
from peers import Site, ours

import sinksort

from .cells import Array, Cell, K, relative, softness

VALUE_GATE = (
    1e-5  #: largest error of an answer, as a fraction of n (ranks), of the spread (quantiles) or of one (masks)
)
GRADIENT_GATE = 1e-3  #: largest relative error of a row of the gradient
DOUBLE_GATES = (1e-8, 1e-5)  #: the same of tasks in float64
DENSE = 1000  #: rows of at most so many values are solved without any approximation as well
AGREES = (1e-8, 1e-6)  #: how well the two must agree


@functools.lru_cache(maxsize=4)
def truth(cell: Cell, eps: float) -> tuple[Array, Array]:
    """Answer and gradient in float64; where rows are short enough their first is checked against the whole plan."""
    x, v = (torch.from_numpy(part).double() for part in (cell.values(), cell.cotangent()))
    answer, gradient = _both(cell, x, v, eps, sinksort.Newton())
    if cell.n <= DENSE:
        dense = _both(cell, x[:1], v[:1], eps, sinksort.Newton(compress=False))
        off = errors(cell, (answer[:1], gradient[:1]), dense)
        if not all(map(float.__le__, off, AGREES)):
            raise AssertionError(f"{cell.key}, eps {eps:g}: two float64 answers differ by {off}; nothing is timed")
    return answer, gradient


def _both(cell: Cell, x: torch.Tensor, v: torch.Tensor, eps: float, solver: sinksort.Newton) -> tuple[Array, Array]:
    x = x.clone().requires_grad_()
    if cell.task == "topk":
        return _mask(x, v, eps)
    answer = ours.operator("torch", cell.task, cell.n, Site("cpu"), solver=solver)(x, eps)
    (gradient,) = torch.autograd.grad(answer, x, v)
    return answer.detach().numpy(), gradient.numpy()


def _mask(x: torch.Tensor, v: torch.Tensor, eps: float) -> tuple[Array, Array]:
    """A mask is p_i = sigmoid(z_i), z_i = 2 (x~_i - tau) / eps, and tau is found by bisection.

    Rows that are nearly hard have gradients far below the marginal error at which any solver stops. So what is in and
    nearly out is weighed against what is out and nearly in, and neither against one: nothing is rounded but itself.
    """
    standard = (x - x.mean(-1, keepdim=True)) / x.std(-1, unbiased=False, keepdim=True)
    at = torch.sigmoid(standard)
    low, high = at.detach().amin(-1, keepdim=True), at.detach().amax(-1, keepdim=True)
    for _ in range(100):
        tau = (low + high) / 2
        z = 2 * (at.detach() - tau) / eps
        apart = torch.sigmoid(-z.abs())
        too_many = (z > 0).sum(-1, keepdim=True) - K > (z.sign() * apart).sum(-1, keepdim=True)
        low, high = torch.where(too_many, tau, low), torch.where(too_many, high, tau)
    slope = torch.sigmoid(z) * torch.sigmoid(-z)
    mean = (slope * v).sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)  # tau moves such that their sum stays
    (gradient,) = torch.autograd.grad(at, x, 2 / eps * slope * (v - mean))
    return torch.sigmoid(z).numpy(), gradient.numpy()


def errors(cell: Cell, found: tuple[Array, Array], true: tuple[Array, Array]) -> tuple[float, float]:
    """Of the answer, over its scale, and of the gradient, relative; the worst of the rows that are given."""
    rows = len(found[0])
    scale = cell.scale(cell.values()[:rows].astype(np.float64))
    return float((np.abs(found[0] - true[0][:rows]) / scale).max()), relative(found[1], true[1][:rows])


def errors_of_first_rows(cell: Cell, eps: float, found: tuple[Array, Array], rows: int) -> tuple[float, float]:
    """``errors`` where the truth is made of so many rows only."""
    x, v = (torch.from_numpy(part[:rows]).double() for part in (cell.values(), cell.cotangent()))
    true = _both(cell, x, v, eps, sinksort.Newton())
    return errors(cell, (found[0][:rows], found[1][:rows]), true)


def gate(off: tuple[float, float], *, double: bool = False) -> str | None:
    """Why a time of ours is not printed, or None."""
    limits = DOUBLE_GATES if double else (VALUE_GATE, GRADIENT_GATE)
    failed = [
        f"{what} off by {value:.1e} (at most {limit:g})"
        for what, value, limit in zip(("answer", "gradient"), off, limits, strict=True)
        if not value <= limit
    ]
    return f"accuracy gate fails: {' and '.join(failed)}" if failed else None


@functools.lru_cache(maxsize=64)
def wanted_softness(cell: Cell, eps: float, *, small: bool) -> float:
    """How soft our answer is on the smaller cell that peers are tuned on."""
    sample = cell.sample(small=small)
    answer, gradient = truth(sample, eps)
    return softness(sample.task, sample.values(), answer, gradient)
