"""Isotonic regression of many rows at once, without a loop over rows or entries.

For rows s and w, find the partition of 1..n into blocks on which the solution v_1 <= ... <= v_n of

    l2    min 1/2 sum_i (v_i - (s_i - w_i))^2               block value   mean(s_B) - mean(w_B)
    kl    min sum_i exp(s_i - v_i) + exp(w_i) v_i           block value   logsumexp(s_B) - logsumexp(w_B)

is constant. Pool-adjacent-violators may join blocks in any order, so it is done here by halves: two neighbouring
stretches, each already isotonic with fits L and R, violate only where they meet, and joining them makes at most one
new block, a tail of L with a head of R. Its value v is where the two sides balance: v is the pooled value of
{L_i > v} and {R_j < v}, and the pooled value of those sets crosses v once (it is larger before, smaller after). Two
binary searches find it:

    tail   the first i with   pooled(L_i.., {R_j < L_i}) < L_i
    head   the first j with   pooled(tail, R_1..R_{j-1}) <= R_j.

There are log2(n) levels. A level takes O(n) for prefix sums and for writing the new blocks, and its n / 2h pairs of
stretches of length h take O(log^2 h) each for the searches, O(n) in all levels together: O(n log n).

Blocks are locally constant, and their values are computed from s and w with ordinary operations (``block_values``):
so all derivatives are right wherever they exist. The first derivative adds up a cotangent c block by block, and each
entry receives a share of the sum: equal shares for l2; for kl in proportion to exp(s), or exp(w) with a minus sign.

Two functions make this one of three implementations, beside ``isotonic_numba`` and ``isotonic_triton``, which read a
row from its first entry to its last: ``pooled`` and ``spread``. This one serves all devices, ``torch.func``, forward
mode and higher derivatives; ``isotonic_autograd`` chooses.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.modes import whole
from ..core.problem import wide_dtype

#: Neighbours in a row of v that differ by at most this belong to one block when v is differentiated: values that are
#: equal but for rounding are so as well, and share the gradient of a tie.
TOGETHER = 1e-9


def pooled(s: Tensor, w: Tensor, kl: bool, falling: bool) -> Tensor:
    """The solution v for rows s (..., n) and w, computed in float64; ``falling``: v_1 >= ... >= v_n.

    A row with a NaN is all NaN, and so is a row in which infinite entries leave no solution. Differentiable.
    """
    wide = wide_dtype(s.device)
    a, b = s.to(wide), w.to(wide).expand_as(s)
    if falling:
        a, b = a.flip(-1), b.flip(-1)
    v = block_values(a, b, isotonic_blocks(a.detach(), b.detach(), kl), kl)
    gap = (a - b).detach()
    lost = gap.isnan().any(-1, keepdim=True) | (gap.isinf().any(-1) & (v.detach().diff() < 0).any(-1)).unsqueeze(-1)
    v = v * torch.where(lost, torch.nan, 1.0)
    return (v.flip(-1) if falling else v).to(s.dtype)


def spread(z: Tensor, v: Tensor, c: Tensor, kl: bool) -> Tensor:
    """For each entry its share of the total of c (..., n) in its block of v. z is s or w. Differentiable in z and c."""
    wide = wide_dtype(v.device)
    index = torch.arange(whole(v.shape[-1]), dtype=torch.int64, device=v.device).expand(v.shape)
    alike = torch.nn.functional.pad(v.detach().diff().abs() <= TOGETHER, (1, 0))
    first = torch.where(alike, 0, index).cummax(-1).values
    total = _total(c.to(wide) * torch.where(v.detach().isnan(), torch.nan, 1.0), first).gather(-1, first)
    if kl:
        z = z.to(wide).expand_as(v)
        shares = (z - _log_total(z, first)).exp()
    else:
        shares = _total(torch.ones_like(total), first).gather(-1, first).reciprocal()
    return (total * shares).to(v.dtype)


def isotonic_blocks(s: Tensor, w: Tensor, kl: bool) -> Tensor:
    """(..., n): for each entry the index of the first entry of its block. ``s``, ``w``: rows (..., n), detached."""
    batch, n = s.shape[:-1], whole(s.shape[-1])
    size = 1 << (n - 1).bit_length()
    # Filling up to a power of two with entries above all others, which join nobody.
    fit = (s - w).reshape(-1, n)
    top = fit.amax(-1, keepdim=True) + 1.0
    fit = torch.cat([fit, top.expand(-1, size - n)], dim=-1)
    mass = torch.nn.functional.pad(
        w.reshape(-1, n) if kl else torch.ones_like(s).reshape(-1, n), (0, size - n), value=1.0
    )
    first = torch.arange(size, device=s.device, dtype=torch.int64).expand(fit.shape[0], size)
    half = 1
    while half < size:
        fit, first = _join(fit.reshape(-1, 2, half), mass.reshape(-1, 2, half), first.reshape(-1, 2, half), size, kl)
        half *= 2
    return first.reshape(*batch, size)[..., :n]


def _join(fit: Tensor, mass: Tensor, first: Tensor, size: int, kl: bool) -> tuple[Tensor, Tensor]:
    """Join pairs of stretches (pairs, 2, h). ``mass``: how much an entry counts, or its logarithm for kl."""
    h = whole(fit.shape[-1])
    left, right = fit[:, 0].contiguous(), fit[:, 1].contiguous()
    amount = fit + mass if kl else fit * mass
    accumulate = torch.logcumsumexp if kl else torch.cumsum
    nothing = -float("inf") if kl else 0.0

    def tails(t: Tensor) -> Tensor:  # entry i: total of i, i + 1, ..., h - 1; entry h: nothing
        return torch.nn.functional.pad(accumulate(t[:, 0].flip(-1), -1).flip(-1), (0, 1), value=nothing)

    def heads(t: Tensor) -> Tensor:  # entry j: total of 0, ..., j - 1
        return torch.nn.functional.pad(accumulate(t[:, 1], -1), (1, 0), value=nothing)

    tail_amount, tail_mass, head_amount, head_mass = tails(amount), tails(mass), heads(amount), heads(mass)

    def pooled(i: Tensor, j: Tensor) -> Tensor:
        """The common value of left[i:] and right[:j]."""
        if kl:
            top = torch.logaddexp(tail_amount.gather(-1, i), head_amount.gather(-1, j))
            return top - torch.logaddexp(tail_mass.gather(-1, i), head_mass.gather(-1, j))
        top = tail_amount.gather(-1, i) + head_amount.gather(-1, j)
        return top / (tail_mass.gather(-1, i) + head_mass.gather(-1, j))

    def violates(i: Tensor) -> Tensor:
        value = left.gather(-1, i)
        return pooled(i, torch.searchsorted(right, value)) < value

    tail = _first_index(violates, h, fit)

    def stays(j: Tensor) -> Tensor:
        return pooled(tail, j) <= right.gather(-1, j)

    head = _first_index(stays, h, fit)
    # Whole blocks only: rounding may have stopped a search inside one.
    position = torch.arange(h, device=fit.device, dtype=torch.int64)
    offset = first[:, :, :1]  # index of the stretch's first entry, which begins a block
    local = first - offset
    tail = torch.where(tail < h, local[:, 0].gather(-1, tail.clamp(max=h - 1)), h)
    head = torch.where(head < h, local[:, 1].gather(-1, head.clamp(max=h - 1)), h)
    joined = (tail < h) & (head > 0)
    value = pooled(tail, head)
    in_block = torch.stack([position >= tail, position < head], dim=1) & joined.unsqueeze(1)
    begins = (offset[:, 0] + tail).unsqueeze(1)
    rows = fit.numel() // size
    new_fit = torch.where(in_block, value.unsqueeze(1), fit).reshape(rows, size)
    return new_fit, torch.where(in_block, begins, first).reshape(rows, size)


def _first_index(holds: Callable[[Tensor], Tensor], h: int, like: Tensor) -> Tensor:
    """(pairs, 1): the smallest index in 0..h-1 where a predicate that stays true once true holds; h if nowhere."""
    low = torch.zeros(like.shape[0], 1, dtype=torch.int64, device=like.device)
    high = torch.full_like(low, h)
    for _ in range(h.bit_length()):
        middle = (low + high) // 2
        open_interval = low < high
        true = holds(middle.clamp(max=h - 1))
        high = torch.where(open_interval & true, middle, high)
        low = torch.where(open_interval & ~true, middle + 1, low)
    return low


def block_values(s: Tensor, w: Tensor, first: Tensor, kl: bool) -> Tensor:
    """v (..., n): the value of each entry's block, differentiable in s and w as often as one likes."""
    if kl:
        return _log_total(s, first) - _log_total(w, first)
    return (_total(s - w, first) / _total(torch.ones_like(s), first).clamp(min=1.0)).gather(-1, first)


def _total(t: Tensor, first: Tensor) -> Tensor:
    """The sum over each block, at its first entry."""
    return torch.zeros_like(t).scatter_add(-1, first, t)


def _log_total(t: Tensor, first: Tensor) -> Tensor:
    """The logarithm of the sum of exp(t) over each block, at all its entries."""
    top = torch.full_like(t, -float("inf")).scatter_reduce(-1, first, t.detach(), "amax").gather(-1, first)
    return _total((t - top).exp(), first).gather(-1, first).log() + top
