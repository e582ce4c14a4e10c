"""Isotonic regression of rows by pool-adjacent-violators on a GPU: a program reads a row from first to last.

What     ``pooled``: (s, w) -> v. ``spread``: each block's total of c, shared out among its entries. See ``isotonic``.
When     Rows of float32 or float64 on CUDA, up to 2048 values; longer rows go by halves, in torch.
Why      One launch each way; by halves rows of 100 values take 1,600 operators of torch.
Keeps    Nothing. The backward pass finds the blocks again, in v.

The algorithm is that of ``isotonic_numba``. A program is one warp whose threads all do the same. The last block is in
registers, the blocks below it lie on a stack in memory. One thread writes what all threads read, so there is a barrier
between a write and the reads before and after it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.gpu.engine.cache import kept_with_checksums
from .isotonic import TOGETHER as _TOGETHER

_BLOCK = 32  #: entries that are written at once
TOGETHER = tl.constexpr(_TOGETHER)


def pooled(s: Tensor, w: Tensor, kl: bool, falling: bool) -> Tensor:
    """The solution v (R, n) for rows s (R, n) and w (R or 1, n)."""
    s, w = s.contiguous(), w.contiguous()
    v = torch.empty_like(s)
    R, n = s.shape
    begins = torch.empty(R, n, dtype=torch.int32, device=s.device)
    sums = torch.empty(R, 4 if kl else 1, n, dtype=torch.float64, device=s.device)
    with kept_with_checksums(), torch.cuda.device_of(s):
        pool_row[(R,)](
            s, w, v, begins, sums, n, n if len(w) > 1 else 0, KL=kl, FALLING=falling, BLOCK=_BLOCK, num_warps=1
        )
    return v


def spread(z: Tensor, v: Tensor, c: Tensor, kl: bool) -> Tensor:
    """(R, n): for each entry its share of the total of c (R, n) in its block; z (R or 1, n) are s or w."""
    z, v, c = z.contiguous(), v.contiguous(), c.contiguous()
    out = torch.empty_like(v)
    R, n = v.shape
    with kept_with_checksums(), torch.cuda.device_of(v):
        spread_row[(R,)](z, v, c, out, n, n if len(z) > 1 else 0, KL=kl, BLOCK=_BLOCK, num_warps=1)
    return out


@triton.jit
def pool_row(
    s: tl.tensor, w: tl.tensor, v: tl.tensor, begins: tl.tensor, sums: tl.tensor, n: tl.tensor, w_stride: tl.tensor,
    KL: tl.constexpr, FALLING: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """IN: s (R, n), w (R, n), or (1, n) with a stride of 0. OUT: v (R, n). Scratch: begins (R, n), sums (R, 4 or 1, n).

    The stack: in v the values of blocks, in ``begins`` their first entries, in ``sums`` their sums, double.
    """
    row = tl.program_id(0).to(tl.int64)
    s += row * n
    w += row * w_stride
    v += row * n
    begins += row * n
    sums += row * n * (4 if KL else 1)
    lost = False
    below = 0  # blocks on the stack
    value = tl.load(s) - tl.load(w)  # the last block, which is not on the stack
    begin = 0
    total = value.to(tl.float64)
    top_s, sum_s = _of_one(s)
    top_w, sum_w = _of_one(w)
    for i in range(1, n + 1):
        # Join the last block with those below it.
        joining = below > 0
        while joining:
            other = tl.load(v + below - 1)
            joining = other <= value if FALLING else other >= value
            if joining:
                below -= 1
                begin = tl.load(begins + below)
                if KL:
                    top_s, sum_s = _added(top_s, sum_s, tl.load(sums + below), tl.load(sums + n + below))
                    top_w, sum_w = _added(top_w, sum_w, tl.load(sums + 2 * n + below), tl.load(sums + 3 * n + below))
                    value = (top_s - top_w + tl.log(sum_s / sum_w)).to(value.dtype)
                else:
                    total += tl.load(sums + below)
                    value = (total / (i - begin)).to(value.dtype)
                joining = below > 0
        # It goes on the stack, and the next entry is the last block.
        tl.debug_barrier()
        tl.store(v + below, value)
        tl.store(begins + below, begin)
        if KL:
            tl.store(sums + below, top_s)
            tl.store(sums + n + below, sum_s)
            tl.store(sums + 2 * n + below, top_w)
            tl.store(sums + 3 * n + below, sum_w)
        else:
            tl.store(sums + below, total)
        tl.debug_barrier()
        lost = lost | (value != value)
        below += 1
        if i < n:
            value = tl.load(s + i) - tl.load(w + i)
            begin = i
            total = value.to(tl.float64)
            top_s, sum_s = _of_one(s + i)
            top_w, sum_w = _of_one(w + i)
    # From the last block to the first: a block begins no earlier than at its number, so no value is lost.
    end = n
    while below > 0:
        below -= 1
        value = tl.load(v + below)
        begin = tl.load(begins + below)
        tl.debug_barrier()
        value = tl.where(lost, float("nan"), value)
        for at in range(begin, end, BLOCK):
            entry = at + tl.arange(0, BLOCK)
            tl.store(v + entry, tl.zeros((BLOCK,), value.dtype) + value, mask=entry < end)
        end = begin


@triton.jit
def _of_one(entry: tl.tensor) -> Any:
    """exp of one entry as an exponent and a factor."""
    return tl.load(entry).to(tl.float64), tl.full((), 1.0, tl.float64)


@triton.jit
def _added(top: tl.tensor, total: tl.tensor, other: tl.tensor, more: tl.tensor) -> Any:
    """exp(top) total + exp(other) more, in the same form."""
    highest = tl.where(other > top, other, top)
    least = tl.where(other > top, top, other)
    factor = tl.exp(least - highest)
    return highest, tl.where(other > top, more + total * factor, total + more * factor)


@triton.jit
def spread_row(
    z: tl.tensor, v: tl.tensor, c: tl.tensor, out: tl.tensor, n: tl.tensor, z_stride: tl.tensor,
    KL: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """IN: v and c (R, n), z (R, n), or (1, n) with a stride of 0. OUT: out (R, n)."""
    row = tl.program_id(0).to(tl.int64)
    z += row * z_stride
    v += row * n
    c += row * n
    out += row * n
    end = 0
    while end < n:
        begin = end
        value = tl.load(v + begin)
        last = value
        total = tl.load(c + begin).to(tl.float64)
        end += 1
        joining = end < n
        while joining:
            following = tl.load(v + end)
            joining = tl.abs(following - last) <= TOGETHER
            if joining:
                total += tl.load(c + end)
                last = following
                end += 1
                joining = end < n
        total = tl.where(value != value, float("nan"), total)
        share = total / (end - begin)
        top, mass = share, share
        if KL:
            top = _highest(z, begin, end, BLOCK)
            mass = _mass(z, begin, end, top, BLOCK)
        for at in range(begin, end, BLOCK):
            entry = at + tl.arange(0, BLOCK)
            if KL:
                here = tl.load(z + entry, mask=entry < end, other=float("-inf")).to(tl.float64)
                part = total * tl.exp(here - top) / mass
            else:
                part = tl.zeros((BLOCK,), tl.float64) + share
            tl.store(out + entry, part.to(out.dtype.element_ty), mask=entry < end)


@triton.jit
def _highest(z: tl.tensor, begin: tl.tensor, end: tl.tensor, BLOCK: tl.constexpr) -> Any:
    """The largest of z from begin to end - 1."""
    highest = tl.full((BLOCK,), float("-inf"), tl.float64)
    for at in range(begin, end, BLOCK):
        entry = at + tl.arange(0, BLOCK)
        here = tl.load(z + entry, mask=entry < end, other=float("-inf")).to(tl.float64)
        highest = tl.maximum(highest, here)
    return tl.max(highest, axis=0)


@triton.jit
def _mass(z: tl.tensor, begin: tl.tensor, end: tl.tensor, top: tl.tensor, BLOCK: tl.constexpr) -> Any:
    """The sum of exp(z - top) from begin to end - 1."""
    mass = tl.zeros((BLOCK,), tl.float64)
    for at in range(begin, end, BLOCK):
        entry = at + tl.arange(0, BLOCK)
        here = tl.load(z + entry, mask=entry < end, other=float("-inf")).to(tl.float64)
        mass += tl.exp(here - top)
    return tl.sum(mass, axis=0)
