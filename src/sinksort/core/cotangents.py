"""Several cotangents of one backward pass: ``torch.autograd.grad(..., is_grads_batched=True)``.

Autograd then calls a backward pass once, with a tensor that stands for all of them. Neither a kernel nor an assignment
to a part of a tensor can deal with that: such a pass is run for one cotangent after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_several = torch._C._functorch.is_legacy_batchedtensor
Backward = Callable[..., tuple[Any, ...]]


def one_at_a_time(backward: Backward) -> Backward:
    """For the ``backward`` of an autograd Function. One that is differentiated again is left as it is."""

    @functools.wraps(backward)
    def each(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            return backward(ctx, *cotangents)
        for c in cotangents:
            if c is not None and _several(c):
                break
        else:
            return backward(ctx, *cotangents)
        level = torch._C._vmapmode_increment_nesting() - 1  # of the loop that autograd is in
        torch._C._vmapmode_decrement_nesting()
        many = [torch._remove_batch_dim(c, level, 0, 0) if c is not None and _several(c) else None for c in cotangents]
        count = next(len(c) for c in many if c is not None)
        found = [
            backward(ctx, *(c if m is None else m[k] for m, c in zip(many, cotangents, strict=True)))
            for k in range(count)
        ]
        return tuple(
            None if parts[0] is None else torch._add_batch_dim(torch.stack(parts), 0, level)
            for parts in zip(*found, strict=True)
        )

    return each
