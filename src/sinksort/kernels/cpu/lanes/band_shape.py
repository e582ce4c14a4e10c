"""Sixteen rows of moderate length in lanes: their scratch, and how they come into it.

What     ``BandShape``, the scratch of a thread, with what rows share; values, weights and targets of sixteen rows, in
         the order of the values; places, and the band with G.
When     Before anything is solved or read, on both ways.
Why      Ranks (``lanes.band_rows``), sorts (``lanes.band_push``) and payloads (``lanes.band_carry``) begin alike.
Keeps    Nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F32, F64, I64, in_lines, larger, size_of
from ..engine.vectors import load, load64, narrow, select, splat, splat64, store, store64, widen
from .band import (
    AFTER,
    BEFORE,
    BEST,
    CUT,
    ENDS,
    HI,
    LO,
    NEAR,
    NEAR_HI,
    NEAR_LO,
    band_ends,
    band_gibbs,
    band_of_lanes,
    band_shifts,
    band_staircase,
    hard_sort,
    lane_staircases,
)
from .band_read import LASTS
from .plan import lane_places

XS, INDEX, V, MASS, WEIGHT, MEAN, COV, COV_2, LEFT = range(9)  # rows of BandShape.n32, each of the sources
#: Rows of BandShape.k32, each of the targets. GROUND is SHARE, but infinite at the last target that weighs something.
U, S, Z, TENSION, LAM, PHI, INV, GUESS, SHARE, GROUND, PLACE = range(11)
EVEN, APART, PADDED = range(3)  # of BandShape.facts

WIDTH = 60  #: how many targets a target is joined with in the matrix that is kept
_ROUNDING = np.float32(1e-6)
_EVEN = 2e-7  #: of the range of targets, how far they may be from equal distances
_Steps = tuple[int, int, int, int, int]


class BandShape(NamedTuple):
    """N values and K targets, both made multiples of four. Vectors of a value are at [16 i], of a target at [16 j]."""

    n32: F32
    at: F64
    t: F64
    h: F64
    y: F64
    k32: F32
    scaled: F32
    one: F32  #: (3, 16): what flows, the error, and how far the nearest target is from ``best``
    moments: F64
    ends: F64  #: (4, 16): the first and last target, 1, and 2 / eps
    table: I64
    rows: I64  #: (16): which rows these are
    counts: I64  #: (16): targets of each row without padding
    facts: I64  #: whether targets are at equal distances; whether rows have boundaries of their own, or padding
    G: F32
    Q: F32
    W: F32


@jit
def band_for(n: int, K: int, ruled: bool, y: F32, b: F32) -> BandShape:
    """Scratch, with the targets of the first row. ``ruled``: they are nodes of a rule, which lie inside."""
    N, KP = (n + 3) // 4 * 4, (K + 3) // 4 * 4
    k = BandShape(
        in_lines(9 * 16 * N, np.float32).reshape(9, 16 * N),
        in_lines(16 * N, np.float64),
        in_lines(16 * N, np.float64),
        in_lines(16 * KP, np.float64),
        in_lines(16 * KP, np.float64),
        in_lines(11 * 16 * KP, np.float32).reshape(11, 16 * KP),
        in_lines((1 + LASTS) * 16 * KP, np.float32),
        in_lines(48, np.float32).reshape(3, 16),
        in_lines(64, np.float64),
        in_lines(64, np.float64).reshape(4, 16),
        np.zeros((8, max(N, KP)), np.int64),
        np.zeros(16, np.int64),
        np.zeros(16, np.int64),
        np.zeros(3, np.int64),
        in_lines(16 * N * KP, np.float32),
        in_lines(16 * N * KP, np.float32),
        in_lines(16 * KP * KP, np.float32),
    )
    k.n32[:], k.k32[:], k.scaled[:], k.ends[:], k.one[:] = 0.0, 0.0, 0.0, 1.0, 0.0
    k.n32[MASS, : 16 * n] = np.float32(1.0 / n)
    targets_into(k, y, b, 0, K)
    if ruled:
        k.ends[0, :], k.ends[1, :] = 0.0, 1.0
    hard_sort(n, N, b, K, k.table[BEFORE], k.table[AFTER], k.table[BEST])
    return k


@jit_no_refcount
def targets_into(k: BandShape, y: F32, b: F32, step: int, K: int) -> None:
    """Targets of the rows ``k.rows``, ``step`` from row to row; 0 if they share them."""
    KP, share, ground = len(k.y) // 16, k.k32[SHARE], k.k32[GROUND]
    even, padding = K >= 4 and K % 4 == 0, k.facts[PADDED] > 0
    for lane in range(16):
        first = k.rows[lane] * step
        last = K - 1
        while last > 0 and not b[first + last] > 0.0:
            last -= 1
        k.counts[lane] = last + 1 if padding else K
        low, high = np.float64(y[first]), np.float64(y[first + last])
        k.ends[0, lane], k.ends[1, lane] = low, np.float64(y[first + K - 1])
        distance = (high - low) / last if last > 0 else 0.0
        off = 0.0
        for j in range(last + 1):
            k.y[16 * j + lane] = y[first + j]
            off = max(off, abs(y[first + j] - (low + j * distance)))
        for j in range(last + 1, KP):  # where nothing weighs anything, equal distances go on
            k.y[16 * j + lane] = low + j * distance if j < K else k.y[16 * (K - 1) + lane]
        for j in range(KP):
            o, weight = 16 * j + lane, b[first + j] if j < K else np.float32(0.0)
            share[o], ground[o] = weight, np.float32(np.inf) if j == last else weight
            if padding and j > last:
                ground[o] = -1.0
            k.k32[PLACE, o] = np.float32(k.y[o])
        even = even and last > 0 and off < _EVEN * abs(high - low)
        if step == 0 and lane == 0:
            break
    if step == 0:
        _same_for_all(k, KP)
    k.facts[EVEN] = 1 if even else 0


@jit_no_refcount
def _same_for_all(k: BandShape, KP: int) -> None:
    k.ends[0, :], k.ends[1, :], k.counts[:] = k.ends[0, 0], k.ends[1, 0], k.counts[0]
    for j in range(0, 16 * KP, 16):
        store64(k.y, j, splat64(k.y[j]))
        store(k.k32[SHARE], j, splat(k.k32[SHARE, j]))
        store(k.k32[GROUND], j, splat(k.k32[GROUND, j]))
        store(k.k32[PLACE], j, splat(k.k32[PLACE, j]))


@jit_no_refcount
def levels_into(k: BandShape, phi: F32, step: int, K: int) -> None:
    """Levels of the targets, as ``targets_into`` has it."""
    for lane in range(16):
        first = k.rows[lane] * step
        for j in range(K):
            k.k32[PHI, 16 * j + lane] = phi[first + j]


@jit_no_refcount
def rows_of_their_own(k: BandShape, a: F32, y: F32, b: F32, phi: F32, n: int, K: int, steps: _Steps) -> None:
    """What the rows ``k.rows`` do not share: targets and levels; and what is near for all of them.

    With padding (``steps[2]``) there are as many targets as values, and value i is near target i.
    """
    k.facts[APART], k.facts[PADDED] = 1 if steps[0] > 0 or steps[4] > 0 else 0, steps[2]
    if steps[0] > 0:
        targets_into(k, y, b, steps[0], K)
        if steps[2] > 0:
            for i in range(len(k.t) // 16):
                k.table[BEST, i] = min(i, K - 1)
    if steps[0] > 0 and steps[2] == 0:
        longest = _longest(k, b, steps[0], K)
        live = n
        if steps[4] > 0:
            row, live = k.rows[longest] * n, 0
            for i in range(n):
                live += 1 if a[row + i] > 0.0 else 0
        table = k.table
        hard_sort(max(live, 1), len(k.t) // 16, b[k.rows[longest] * steps[0] :], K, table[BEFORE], table[AFTER],
                  table[BEST])  # fmt: skip
    if steps[1] > 0:
        levels_into(k, phi, steps[1], K)


@jit_no_refcount
def _longest(k: BandShape, b: F32, step: int, K: int) -> int:
    """Which of the sixteen rows has most targets that weigh something."""
    longest, most = 0, 0
    for lane in range(16):
        count, first = 0, k.rows[lane] * step
        for j in range(K):
            count += 1 if b[first + j] > 0.0 else 0
        if count > most:
            longest, most = lane, count
    return longest


@jit_no_refcount
def weights_into(k: BandShape, a: F32, n: int, orders: np.ndarray) -> None:
    """Weights of the values, in their order."""
    for lane in range(16):
        row = k.rows[lane] * n
        for i in range(lane, 16 * n, 16):
            k.n32[MASS, i] = a[row + orders[i]]


@jit_no_refcount
def sort_lanes(xs: F32, index: F32, n: int) -> None:
    """Sorts each lane of xs, and takes ``index`` along: Batcher's odd-even merge sort, whose exchanges are fixed."""
    run, bits = 1, 1
    while run < n:
        distance = run
        while distance > 0:
            for first in range(distance % run, n - distance, 2 * distance):
                for i in range(first, min(first + distance, n - distance)):
                    if i >> bits == (i + distance) >> bits:  # in the same pair of runs
                        low, high = 16 * i, 16 * (i + distance)
                        a, b, its_a, its_b = load(xs, low), load(xs, high), load(index, low), load(index, high)
                        wrong = a > b
                        store(xs, low, select(wrong, b, a))
                        store(xs, high, select(wrong, a, b))
                        store(index, low, select(wrong, its_b, its_a))
                        store(index, high, select(wrong, its_a, its_b))
            distance //= 2
        run, bits = 2 * run, bits + 1


@jit_no_refcount
def place_lanes(k: BandShape, n: int, squash: int, eps: F32, of_eps: int) -> None:
    """Places of the values in XS, and t. ``of_eps``: 1 if each row has an eps of its own, else 0."""
    lane_places(k.n32[XS], k.n32[MASS], n, squash, k.ends[0], k.ends[1], k.at, k.moments)
    for lane in range(16):
        k.ends[3, lane] = 2.0 / eps[of_eps * k.rows[lane]]
    per_eps = load64(k.ends[3], 0)
    for i in range(0, len(k.t), 16):
        store64(k.t, i, load64(k.at, min(i, 16 * n - 16)) * per_eps)
    if k.facts[PADDED] > 0:  # padding stands at the targets behind all others
        for lane in range(16):
            for i in range(16 * k.counts[lane] + lane, len(k.t), 16):
                k.t[i] = k.y[min(i, 16 * (n - 1) + lane)] * k.ends[3, lane]


@jit_no_refcount
def balance_weights(weight: F32, mass: F32, n: int) -> None:
    """``row.double_backward.balanced``: WEIGHT less a multiple of what values weigh."""
    whole, total = splat64(0.0), splat64(0.0)
    for i in range(0, 16 * n, 16):
        whole, total = whole + widen(load(weight, i)), total + widen(load(mass, i))
    mean, most, left = narrow(whole / total), splat(0.0), splat(0.0)
    for i in range(0, 16 * n, 16):
        w = load(weight, i)
        rest = w - load(mass, i) * mean
        most, left = larger(most, size_of(w)), larger(left, size_of(rest))
        store(weight, i, rest)
    for i in range(0, 16 * n, 16):
        store(weight, i, select(left < most * _ROUNDING, splat(0.0), load(weight, i)))


@jit_no_refcount
def plan_lanes(k: BandShape, n: int, K: int, width: int) -> None:
    """Band and G from the places in ``t``."""
    N, KP, table = len(k.t) // 16, len(k.y) // 16, k.table
    if k.facts[APART] > 0:
        lane_staircases(k.t, k.n32[MASS], n, k.y, k.k32[SHARE], K, k.counts, k.h)
    else:
        band_staircase(k.t, k.y, K, KP, table[BEFORE], table[AFTER], k.h)
    band_of_lanes(k.t, table[BEST], N, k.y, k.h, KP, CUT, table[LO], table[HI])
    band_of_lanes(k.t, table[BEST], N, k.y, k.h, KP, NEAR, table[NEAR_LO], table[NEAR_HI])
    band_ends(table[NEAR_LO], table[NEAR_HI], N // 4, KP, width, table[ENDS])
    shift = k.n32[LEFT, : 16 * N if k.facts[APART] > 0 else 0]
    if k.facts[APART] > 0:
        band_shifts(k.t, table[BEST], N, k.y, k.h, table[LO], table[HI], shift, k.one[2])
    band_gibbs(k.t, table[BEST], n, N, k.y, k.h, KP, k.facts[EVEN] > 0, table[LO], table[HI], shift, k.scaled,
               k.G)  # fmt: skip
