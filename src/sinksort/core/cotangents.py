"""Backward passes that autograd calls in unusual ways.

Several cotangents of one pass (``torch.autograd.grad(..., is_grads_batched=True)``): autograd then calls a backward
pass once, with a tensor that stands for all of them. Neither a kernel nor an assignment to a part of a tensor can deal
with that, so such a pass is run for one cotangent after the other.

A pass that needs a graph of its own, inside a registered operator: torch records nothing there, but in another thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

_several = torch._C._functorch.is_legacy_batchedtensor
Backward = Callable[..., tuple[Any, ...]]
_T = TypeVar("_T")


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


def with_graph(function: Callable[[], _T], x: Tensor) -> _T:
    """Call a function that records a graph of x, in a thread of its own where this one records nothing."""
    return function() if _records(x) else _elsewhere(function, x.device)


def _records(x: Tensor) -> bool:
    """Whether this thread can record a graph. Inside a registered operator it cannot, whatever ``enable_grad`` says."""
    with torch.enable_grad():
        return x.detach()[:1].requires_grad_().clone().requires_grad


def _elsewhere(function: Callable[[], _T], device: torch.device) -> _T:
    """The same in a thread of its own, on the same stream of the device."""
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def run() -> _T:
        with torch.cuda.stream(stream):  # nothing, where there is none
            return function()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
