"""Functions of very many values, piece by piece: what lies between them and the answer is never stored.

``summed`` adds up a function of the values over all of them, ``mapped`` applies one to each. The function is written in
ordinary operations; pieces fit in the cache, and in the backward pass each is computed again, so memory holds the
values and their gradient. For derivatives of higher order the function is applied to all values at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.cotangents import one_at_a_time
from .grid import Piece, pieces

Function = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]

_WIDTH = 8  #: numbers that a function makes of each value, about


def summed(
    function: Function, values: Sequence[Tensor], shared: Sequence[Tensor], known: Tensor | None = None
) -> Tensor:
    """(r, ...): ``function(values, shared)`` of values (r, n), any n, that adds up over its n values.

    ``shared`` have one entry for each row. A sum that is ``known`` is only made differentiable.

    >>> x, scale = torch.arange(6.0).reshape(2, 3), torch.tensor([[1.0], [10.0]])
    >>> summed(lambda values, shared: (shared[0] * values[0]).sum(-1), [x], [scale])
    tensor([  3., 120.])
    """
    out: Tensor = _Pieces.apply(function, len(values), known, False, *values, *shared)  # type: ignore[no-untyped-call]
    return out


def mapped(function: Function, values: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
    """(r, n): ``function(values, shared)`` of values (r, n), with an answer for each of them."""
    out: Tensor = _Pieces.apply(function, len(values), None, True, *values, *shared)  # type: ignore[no-untyped-call]
    return out


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Function, count: int, known: Tensor | None, each: bool, *tensors: Tensor) -> Tensor:
        ctx.function, ctx.count, ctx.each = function, count, each
        ctx.save_for_backward(*tensors)
        if known is not None:
            return known.clone()
        values, shared = tensors[:count], tensors[count:]
        nothing = function([t[:, :0] for t in values], shared)
        out = nothing.new_empty(values[0].shape) if each else nothing  # an empty sum is zero
        for rows, columns in pieces(values[0], _WIDTH):
            here = function([t[rows, columns] for t in values], [t[rows] for t in shared])
            if each:
                out[rows, columns] = here
            else:
                out[rows] += here
        return out

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors, count, wanted = ctx.saved_tensors, ctx.count, ctx.needs_input_grad[4:]
        (along,) = grads

        def partials(inputs: list[Tensor], along: Tensor) -> list[Tensor | None]:
            with torch.enable_grad():
                out = ctx.function(inputs[:count], inputs[count:])
            which = [t for t, wants in zip(inputs, wanted, strict=True) if wants]
            again = torch.is_grad_enabled()
            found = iter(torch.autograd.grad(out, which, along, create_graph=again, allow_unused=True))
            return [next(found) if wants else None for wants in wanted]

        if torch.is_grad_enabled():
            return None, None, None, None, *partials([t.view_as(t) for t in tensors], along)
        totals = [torch.zeros_like(t) if wants else None for t, wants in zip(tensors, wanted, strict=True)]
        for piece in pieces(tensors[0], _WIDTH):
            parts: list[Piece | slice] = [piece if k < count else piece[0] for k in range(len(tensors))]
            inputs = [t[part].detach().requires_grad_(w) for t, part, w in zip(tensors, parts, wanted, strict=True)]
            here = partials(inputs, along[piece if ctx.each else piece[0]])
            for total, part, partial in zip(totals, parts, here, strict=True):
                if total is not None and partial is not None:
                    total[part] += partial
        return None, None, None, None, *totals
