"""Sums over all pairs of entries in O(n log n) time and memory linear in n: what Kendall's tau is made of.

Wanted are, with s(d) = clamp(d / margin, -1, 1) and weights w_ij = sum_c l_ci r_cj that are symmetric in i and j,

    xy = sum_ij w_ij s(x_i - x_j) sign(y_i - y_j),    xx = sum_ij w_ij s(x_i - x_j)^2,    yy = sum_ij w_ij [y_i != y_j].

The entries are put in the order of x. Those within the margin of x_i then stand at the places lo_i to hi_i - 1, and
nothing else has to be known of x than lo and hi. With the signed sums F_i(p) = sum_{j < p} r_j sign(y_i - y_j),

    xy = 2 sum_i l_i F_i(lo_i)  +  (2 / margin) sum_i x_i l_i (F_i(hi_i) - F_i(lo_i)):

pairs outside of the margin count once for each of their two orders, and inside of it x_i - x_j may be replaced by
2 x_i, as the rest of the term changes its sign when i and j change places. The gradient in x can be read off.
The squares (x_i - x_j)^2 within the margin are added up from prefix sums of r_j, r_j x_j and r_j x_j^2, with x counted
within cells as wide as the margin, so that no digits are lost when the margin is small.

F comes from a wavelet matrix of the order of y (Claude and Navarro 2012): the places of y, from the first of their
binary digits to the last, each time divided into zeros and ones without changing the order otherwise. What is smaller
than y_i and stands before p is found digit by digit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.kantorovich import order_of
from ..core.modes import whole as number

Shares = Sequence[tuple[Tensor, Tensor]]


def pair_sums(x: Tensor, y: Tensor, shares: Shares, margin: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return xy, xx, yy and the sum of w_ij over all i != j, each (..., 1); differentiable in x and in the shares.

    x, y    (..., n) in double precision
    shares  the pairs (l_c, r_c), each (..., n)
    """
    batch, n = x.shape[:-1], number(x.shape[-1])
    x, y = x.reshape(-1, n), y.reshape(-1, n)
    order = order_of(x.detach())
    x = x.gather(-1, order) - 0.5 * (n + 1)  # any origin will do, and from the middle all numbers are smallest
    place, by_y = _places(y)
    place = place.gather(-1, order)
    left, right, right_by_y = [], [], []
    for mine, r in shares:
        left.append(mine.reshape(-1, n).gather(-1, order))
        right.append(r.reshape(-1, n).gather(-1, order))
        right_by_y.append(r.reshape(-1, n).gather(-1, by_y))

    fixed = x.detach()
    cell = torch.floor(fixed / margin)
    offset = (x - margin * cell) / margin
    # The cell of each entry, and the cells before and after it: what is within the margin is in these three. (Rounding
    # may put it in the next one. It is at the margin then, where inside and outside of it come to the same.)
    first, last = torch.searchsorted(cell, cell), torch.searchsorted(cell, cell, right=True)
    lo = torch.searchsorted(fixed, fixed - margin).maximum(torch.searchsorted(cell, cell - 1.0)).minimum(first)
    hi = torch.searchsorted(fixed, fixed + margin, right=True)
    hi = hi.minimum(torch.searchsorted(cell, cell + 1.0, right=True)).maximum(last)

    xy = xx = yy = whole = x.new_zeros(())
    signed = _signed(place, right, torch.cat([lo, hi], dim=-1))
    for mine, r, r_by_y, (below_lo, below_hi) in zip(left, right, right_by_y, signed, strict=True):
        mass, moment, square = _prefix(r), _prefix(r * offset), _prefix(r * offset.square())
        within = x.new_zeros(())  # sum_j r_j ((x_i - x_j) / margin)^2 over what is within the margin
        for start, end, steps in ((lo, first, 1.0), (first, last, 0.0), (last, hi, -1.0)):
            own = offset + steps
            sums = (t.gather(-1, end) - t.gather(-1, start) for t in (mass, moment, square))
            of_mass, of_moment, of_square = sums
            within = within + own * (own * of_mass - 2.0 * of_moment) + of_square
        xy = xy + _sum(mine * (below_lo + x * (below_hi - below_lo) / margin))
        xx = xx + _sum(mine * (mass.gather(-1, lo) + 0.5 * within))
        yy = yy + _sum(mine * _prefix(r_by_y).gather(-1, place))
        whole = whole + _sum(mine * mass[..., :-1])
    yy = yy + 0.0 * _sum(y)  # NaN has no place
    return tuple(2.0 * t.reshape(*batch, 1) for t in (xy, xx, yy, whole))  # type: ignore[return-value]


def _places(y: Tensor) -> tuple[Tensor, Tensor]:
    """How many entries of a row (R, n) are smaller than each, and the order of the row."""
    order = order_of(y)
    ordered = y.gather(-1, order)
    at = torch.arange(y.shape[-1], device=y.device, dtype=torch.int64)
    begins = torch.nn.functional.pad(ordered[..., 1:] != ordered[..., :-1], (1, 0), value=True)
    smaller = torch.where(begins, at, 0).cummax(-1).values
    return torch.zeros_like(order).scatter(-1, order, smaller), order


def _signed(place: Tensor, weights: Sequence[Tensor], ends: Tensor) -> list[tuple[Tensor, ...]]:
    """F_i(p) of several weights r (R, n), for each of several ends p of i.

    place  (R, n) how many y are smaller than y_i
    ends   (R, e n) places from 0 to n; those of i at i, n + i, 2 n + i ...
    """
    n = number(place.shape[-1])
    several = number(ends.shape[-1]) // n
    index = torch.arange(n, device=place.device, dtype=torch.int64)
    digits, current, start, at = place, list(weights), torch.zeros_like(place), ends
    below = [r.new_zeros(()) for r in weights]
    for digit in reversed(range((n - 1).bit_length())):
        ones = digits.bitwise_right_shift(digit).bitwise_and(1)
        zeros = torch.nn.functional.pad((1 - ones).cumsum(-1), (1, 0))
        mine = place.bitwise_right_shift(digit).bitwise_and(1) == 1
        mine_at = mine.repeat(1, several)
        for c, r in enumerate(current):
            of_zeros = _prefix(torch.where(ones == 1, 0.0, r))
            found = of_zeros.gather(-1, at) - of_zeros.gather(-1, start).repeat(1, several)
            below[c] = below[c] + torch.where(mine_at, found, 0.0)
        count, before = zeros[..., -1:], zeros.gather(-1, start)
        start = torch.where(mine, start - before + count, before)
        before = zeros.gather(-1, at)
        at = torch.where(mine_at, at - before + count, before)
        before = zeros[..., :-1]
        to = torch.where(ones == 1, index - before + count, before)
        digits = torch.zeros_like(digits).scatter(-1, to, digits)
        current = [torch.zeros_like(r).scatter(-1, to, r) for r in current]
    signed = []
    for r, own, less in zip(weights, current, below, strict=True):
        sums = _prefix(own)
        equal = sums.gather(-1, at) - sums.gather(-1, start).repeat(1, several)
        total = _prefix(r).gather(-1, ends)
        signed.append((2.0 * less + equal - total).split(n, dim=-1))
    return signed


def _prefix(r: Tensor) -> Tensor:
    """(R, n + 1): sums of the first 0, 1, ..., n entries."""
    return torch.nn.functional.pad(r.cumsum(-1), (1, 0))


def _sum(t: Tensor) -> Tensor:
    return t.sum(-1, keepdim=True)
