"""The sum of precisions in an average precision, with its gradient written out.

With P_ij the probability that item i stands at position j, and relevance r_i in {0, 1},

    Q_ij = above_ij / (above_ij + below_ij),    above_ij = sum_{l < j} P_il,    below_ij = sum_{l > j} P_il,
    sum_ij r_i cut_j P_ij precision_ij,         precision_ij = (1 + T_j - Q_ij) / (1 + S_j - Q_ij),
    T_j = sum_i r_i Q_ij,  S_j = sum_i Q_ij.

See ``ranking`` for what that means. Autograd would keep twenty matrices of all items and positions. Here a few rows at
a time are worked on, whose matrices stay in the cache, and only the gradient is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.cotangents import one_at_a_time
from ..core.modes import ordinary

_BLOCK = 1 << 16  #: entries that are worked on together


def precision_sum(P: Tensor, relevant: Tensor, cut: Tensor) -> Tensor:
    """Return (...) the sum for P (..., items, positions), relevant (..., items) and cut (positions)."""
    if ordinary() and P.is_cpu:
        n = P.shape[-1]
        flat = P.reshape(-1, n, n), relevant.reshape(-1, n).to(P.dtype), cut.to(P.dtype)
        out: Tensor = _Sum.apply(*flat)  # type: ignore[no-untyped-call]
        return out.reshape(P.shape[:-2]).to(relevant.dtype)
    return _summed(P.to(relevant.dtype), relevant, cut)


def _summed(P: Tensor, relevant: Tensor, cut: Tensor) -> Tensor:
    Q, _, _ = _shares_above(P)
    T = (relevant.unsqueeze(-2) @ Q).expand(Q.shape)
    precision = (1.0 + T - Q) / (1.0 + Q.sum(-2, keepdim=True) - Q)
    return (relevant * ((P * precision) @ cut)).sum(-1)


def _shares_above(P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Q, above + below and below: sums of small numbers, not differences."""
    above = torch.nn.functional.pad(P[..., :-1].cumsum(-1), (1, 0))
    below = torch.nn.functional.pad(P[..., 1:].flip(-1).cumsum(-1).flip(-1), (0, 1))
    rest = above + below
    rest = torch.where(rest > 0, rest, 1.0)
    return above / rest, rest, below


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, P: Tensor, relevant: Tensor, cut: Tensor) -> Tensor:
        needed, step = ctx.needs_input_grad[0], max(1, _BLOCK // max(P.shape[-1] ** 2, 1))
        blocks = zip(P.split(step), relevant.split(step), strict=True)
        parts = [_with_gradient(p, r, cut, needed) for p, r in blocks]
        ctx.save_for_backward(P, relevant, cut, torch.cat([g for _, g in parts]) if needed and parts else None)
        return torch.cat([v for v, _ in parts]) if parts else P.new_zeros(0)

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        P, relevant, cut, grad = ctx.saved_tensors
        if torch.is_grad_enabled():
            own = P.view_as(P)
            again = _summed(own, relevant, cut)
            return torch.autograd.grad(again, own, cotangent, create_graph=True)[0], None, None
        return grad * cotangent[:, None, None], None, None


def _with_gradient(P: Tensor, relevant: Tensor, cut: Tensor, needed: bool) -> tuple[Tensor, Tensor]:
    """The sums of rows (R, n, n), and their gradients in P (or nothing of use)."""
    Q, rest, below = _shares_above(P)
    r = relevant.unsqueeze(-1)
    over = 1.0 + Q.sum(-2, keepdim=True) - Q
    precision = (1.0 + relevant.unsqueeze(-2) @ Q - Q).div_(over)
    counts = r * cut
    mine = P * counts
    value = (mine * precision).sum((-2, -1), dtype=torch.float64).to(P.dtype)
    if not needed:
        return value, P
    gained = mine.div_(over)  # what the sum gains when the numerator of a precision grows
    lost = gained * precision
    of_Q = r * gained.sum(-2, keepdim=True) - lost.sum(-2, keepdim=True) + lost - gained
    by_rest = of_Q.div_(rest)
    of_above, of_below = by_rest * below.div_(rest), by_rest * Q  # the latter with the other sign
    # P_il is above all positions after l, and below all before it.
    whole = of_above.sum(-1, keepdim=True)
    of_above[..., 1:] += of_below[..., :-1]
    return value, counts.mul(precision).add_(whole).sub_(of_above.cumsum(-1))
