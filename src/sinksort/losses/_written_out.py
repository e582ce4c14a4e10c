"""Sums over a soft permutation whose gradients are written out, for a few rows at a time.

Autograd would keep many matrices of all items and positions. Here the matrices of a few rows stay in the cache, and
only the gradient is kept. A second derivative goes by way of autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.cotangents import one_at_a_time


class Sum(NamedTuple):
    """A sum of each row (R, n, n), of relevant items (R, n) and with discounts (n)."""

    plain: Callable[[Tensor, Tensor, Tensor], Tensor]  #: in torch's operations
    #: the sum and its gradient in the permutation, or anything in place of that if the last argument says so
    with_gradient: Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]]
    block: int  #: entries that are worked on together


def summed(P: Tensor, relevant: Tensor, discounts: Tensor, how: Sum) -> Tensor:
    """Return (R) the sum of each row, in the dtype that ``how`` gives it."""
    out: Tensor = _Summed.apply(P, relevant, discounts, how)  # type: ignore[no-untyped-call]
    return out


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, P: Tensor, relevant: Tensor, discounts: Tensor, how: Sum) -> Tensor:
        needed, step = ctx.needs_input_grad[0], max(1, how.block // max(P.shape[-1] ** 2, 1))
        blocks = zip(P.split(step), relevant.split(step), strict=True)
        parts = [how.with_gradient(p, r, discounts, needed) for p, r in blocks]
        ctx.how = how
        ctx.save_for_backward(P, relevant, discounts, torch.cat([g for _, g in parts]) if needed and parts else None)
        return torch.cat([v for v, _ in parts]) if parts else relevant.new_zeros(0)

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        P, relevant, discounts, grad = ctx.saved_tensors
        if torch.is_grad_enabled():
            own = P.view_as(P)
            again = ctx.how.plain(own, relevant, discounts)
            return torch.autograd.grad(again, own, cotangent, create_graph=True)[0], None, None, None
        return grad * cotangent[:, None, None].to(grad.dtype), None, None, None
