"""Batches of rows of moderate length: sixteen of them sorted into lanes, ranked, and out again.

The state of sixteen rows is in lanes as well: u, 1 / pivots and edges of Newton's matrix, then the order of each row
and a flag. Behind that each row has room for the state of the other kernels, should it be theirs (see ``Layout``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F32, F64, I64, in_lines, larger, size_of
from ..engine.vectors import any_lane, load, load64, narrow, select, splat, splat64, store, store64, widen
from ..row.all_targets import all_targets, pull_ruled, ruled_backward
from ..row.double_backward import CANCELLED, double_backward
from ..row.read import BEFORE_LASTS, LASTS
from ..row.solve import ACCEPTED, pull_rows, rows_backward
from ..row.work import state_parts, state_size
from .band import (
    CUT,
    NEAR,
    band_edges,
    band_eliminate,
    band_ends,
    band_gibbs,
    band_newton,
    band_of_lanes,
    band_rows_of,
    band_staircase,
    hard_sort,
)
from .band_read import band_covariances, band_pulled, band_refined, band_right_sides
from .band_start import many_guess, many_left
from .plan import lane_places, lane_places_backward

XS, INDEX, V, MASS, WEIGHT, MEAN, COV, COV_2, LEFT = range(9)  # rows of Many.n32, each of the sources
U, S, Z, TENSION, LAM, PHI, INV, GUESS = range(8)  # rows of Many.k32, each of the targets
BEST, BEFORE, AFTER, LO, HI, NEAR_LO, NEAR_HI, ENDS = range(8)  # rows of Many.table

MOST_IN_BAND = 192  #: the longest rows that are worked on here
WIDTH = 60  #: how many targets a target is joined with in the matrix that is kept
SOFT_ENOUGH = np.float32(0.5)  #: least share of the weight that is not where the hard sort puts it
_LEFT = np.float32(0.02)  #: least share of a gradient in its parts when they were known but for a guess
_STEADY = np.float32(0.3)  #: change from value to value, beside its size, of a cotangent that grows along the row
LARGEST_LOGIT, _ROUNDING = 1e9, np.float32(1e-6)
_ANSWERED, _OF_OTHERS, _NAN = np.float32(0.0), np.float32(1.0), np.float32(2.0)
_Steps = tuple[int, int, int, int, int]


class Layout(NamedTuple):
    """Of a state of sixteen rows, in float32: where things begin; sizes of a row in lanes, elsewhere, and in all."""

    inv: int
    W: int
    order: int
    flag: int
    lanes: int
    other: int
    size: int


@jit
def band_layout(n: int, K: int, m: int) -> Layout:
    KP = (K + 3) // 4 * 4
    width = min(KP, WIDTH)
    inv, W = 16 * KP, 32 * KP
    order = W + 16 * KP * width
    flag = order + 16 * n
    lanes = (flag + 16) // 16 + 1 & ~1
    other = state_parts(n, max(m, K), True)[2]
    return Layout(inv, W, order, flag, lanes, other, max(lanes + other, state_size(n, K, m)))


class BandShape(NamedTuple):
    """Scratch of a thread, and what is the same for all rows."""

    n32: F32
    at: F64
    t: F64
    h: F64
    k32: F32
    scaled: F32
    one: F32  #: (2, 16): what flows, and the error
    moments: F64
    ends: F64  #: (4, 16): the first and last target, 1, and 2 / eps
    table: I64
    y: F64
    b: F64
    G: F32
    Q: F32
    W: F32
    even: bool


@jit
def band_for(n: int, K: int, ruled: bool, y: F32, b: F32) -> BandShape:
    N, KP = (n + 3) // 4 * 4, (K + 3) // 4 * 4
    k = BandShape(
        in_lines(9 * 16 * N, np.float32).reshape(9, 16 * N),
        in_lines(16 * N, np.float64),
        in_lines(16 * N, np.float64),
        in_lines(16 * KP, np.float64),
        in_lines(8 * 16 * KP, np.float32).reshape(8, 16 * KP),
        in_lines((1 + LASTS) * 16 * KP, np.float32),
        in_lines(32, np.float32).reshape(2, 16),
        in_lines(64, np.float64),
        in_lines(64, np.float64).reshape(4, 16),
        np.zeros((8, max(N, KP)), np.int64),
        np.zeros(KP),
        np.zeros(KP),
        in_lines(16 * N * KP, np.float32),
        in_lines(16 * N * KP, np.float32),
        in_lines(16 * KP * KP, np.float32),
        _evenly(y, K),
    )
    k.n32[:], k.k32[:], k.scaled[:], k.ends[:] = 0.0, 0.0, 0.0, 1.0
    k.ends[0, :], k.ends[1, :] = 0.0 if ruled else y[0], 1.0 if ruled else y[K - 1]  # nodes of a rule lie inside
    for j in range(KP):
        k.y[j], k.b[j] = y[min(j, K - 1)], b[j] if j < K else 0.0
    k.n32[MASS, : 16 * n] = np.float32(1.0 / n)
    hard_sort(n, N, b, K, k.table[BEFORE], k.table[AFTER], k.table[BEST])
    return k


@jit_no_refcount
def _evenly(y: F32, K: int) -> bool:
    """Whether targets are at equal distances, but for the rounding of their places; K is a multiple of four."""
    if K < 4 or K % 4 > 0:
        return False
    distance, off = (float(y[K - 1]) - float(y[0])) / (K - 1), 0.0
    for j in range(K):
        off = max(off, abs(y[j] - (y[0] + j * distance)))
    return bool(off < 2e-7 * abs(y[K - 1] - y[0]))


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
        k.ends[3, lane] = 2.0 / eps[of_eps * lane]
    per_eps = load64(k.ends[3], 0)
    for i in range(0, len(k.t), 16):
        store64(k.t, i, load64(k.at, min(i, 16 * n - 16)) * per_eps)


@jit_no_refcount
def _balance(weight: F32, n: int) -> None:
    """``row.double_backward.balanced`` for values that weigh the same."""
    whole = splat64(0.0)
    for i in range(0, 16 * n, 16):
        whole = whole + widen(load(weight, i))
    mean, most, left = narrow(whole * (1.0 / n)), splat(0.0), splat(0.0)
    for i in range(0, 16 * n, 16):
        w = load(weight, i)
        most, left = larger(most, size_of(w)), larger(left, size_of(w - mean))
    for i in range(0, 16 * n, 16):
        store(weight, i, select(left < most * _ROUNDING, splat(0.0), load(weight, i) - mean))


@jit_no_refcount
def plan_lanes(k: BandShape, n: int, K: int, width: int) -> None:
    """Band and G from the places in ``t``."""
    N, KP, table = len(k.t) // 16, len(k.y), k.table
    band_staircase(k.t, k.y, K, KP, table[BEFORE], table[AFTER], k.h)
    band_of_lanes(k.t, table[BEST], N, k.y, k.h, KP, CUT, table[LO], table[HI])
    band_of_lanes(k.t, table[BEST], N, k.y, k.h, KP, NEAR, table[NEAR_LO], table[NEAR_HI])
    band_ends(table[NEAR_LO], table[NEAR_HI], N // 4, KP, width, table[ENDS])
    band_gibbs(k.t, table[BEST], n, N, k.y, k.h, KP, k.even, table[LO], table[HI], k.scaled, k.G)


@jit
def pull_band(begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, eps: F32, n: int, K: int,
              m: int, squash: int, steps: _Steps, out: F32, state: F32, errors: F32) -> None:  # fmt: skip
    """Rows 16 begin to 16 end, by ``pull_ruled`` where there are no sixteen. All steps but that of eps are 0."""
    k = band_for(n, K, len(last) > 0, y, b)
    _pull(k, begin, end, x, a, y, b, phi, last, eps, n, K, m, squash, steps, out, state, errors)


@jit_no_refcount
def _pull(k: BandShape, begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, eps: F32, n: int,
          K: int,
          m: int, squash: int, steps: _Steps, out: F32, state: F32, errors: F32) -> None:  # fmt: skip
    at, N, KP, R = band_layout(n, K, m), (n + 3) // 4 * 4, (K + 3) // 4 * 4, len(errors)
    width, of_eps, lasts = min(KP, WIDTH), steps[3], LASTS if len(last) > 0 else 0
    table, integers = k.table, state.view(np.int32)
    for group in range(begin, end):
        first, base = 16 * group, 16 * group * at.size
        if first + 16 > R:
            pull_ruled(np.int64(0), R - first, x[first * n :], a, y, b, phi, last, eps[of_eps * first :], n, K, m,
                       squash, steps, out[first * n :], state[base:], errors[first:])  # fmt: skip
            break
        orders, flags = integers[base + at.order :], state[base + at.flag :]
        for lane in range(16):
            nan = False
            for i in range(n):
                value = x[(first + lane) * n + i]
                nan |= value != value
                k.n32[XS, 16 * i + lane] = value if value == value else np.float32(0.0)
            flags[lane] = _NAN if nan else _ANSWERED
        for i in range(n):
            store(k.n32[INDEX], 16 * i, splat(float(i)))
        sort_lanes(k.n32[XS], k.n32[INDEX], n)
        for i in range(16 * n):
            orders[i] = k.n32[INDEX, i]
        place_lanes(k, n, squash, eps[of_eps * first :], of_eps)
        plan_lanes(k, n, K, width)
        u, flow, error, read = state[base:], k.one[0], k.one[1], k.n32[COV]
        band_newton(k.G, n, N, K, KP, table[BEST], table[LO], table[HI], table[NEAR_LO], table[NEAR_HI], k.b,
                    table[ENDS], width, k.Q, state[base + at.W :], state[base + at.inv :], u, k.n32[V], k.k32[S],
                    k.k32[Z], flow, error)  # fmt: skip
        band_pulled(k.G, N, K, KP, table[LO], table[HI], u, phi, last[BEFORE_LASTS * K :], lasts, k.scaled, read, error)
        for lane in range(16):
            row = first + lane
            answer = out[row * n : row * n + n]
            if flags[lane] == _NAN:
                answer[:], errors[row] = np.nan, 0.0
                continue
            farthest = max(abs(k.t[lane]), abs(k.t[16 * n - 16 + lane]))
            if not (error[lane] <= ACCEPTED and flow[lane] > SOFT_ENOUGH and farthest < LARGEST_LOGIT):
                flags[lane] = _OF_OTHERS
                _by_others(row, x, a, y, b, phi, last, eps, n, K, m, squash, steps, out,
                           state[base + 16 * at.lanes + lane * at.other :], errors)  # fmt: skip
                continue
            errors[row] = error[lane]
            for i in range(n):
                answer[orders[16 * i + lane]] = read[16 * i + lane]


@jit
def _by_others(row: int, x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, eps: F32, n: int, K: int, m: int,
               squash: int, steps: _Steps, out: F32, state: F32, errors: F32) -> None:  # fmt: skip
    none, one = np.int64(0), np.int64(1)
    targets, weights, levels = all_targets(y, phi, none, none, K, m) if m > 0 else (y, b, phi)
    pull_rows(none, one, x[row * n :], a, targets, weights, levels, last if m == 0 else last[:0],
              eps[steps[3] * row :], n, max(m, K), True, none, squash, steps, out[row * n :], state,
              errors[row:])  # fmt: skip


@jit
def band_backward(begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, m: int,
                  ruled: bool, squash: int, push: bool, steps: _Steps, w: F32, grad: F32,
                  state: F32) -> None:  # fmt: skip
    k = band_for(n, K, ruled, y, b)
    _backward(k, begin, end, x, a, y, b, phi, eps, n, K, m, squash, push, steps, w, grad, state)


@jit_no_refcount
def _backward(k: BandShape, begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int,
              m: int,
              squash: int, push: bool, steps: _Steps, w: F32, grad: F32, state: F32) -> None:  # fmt: skip
    at, N, KP, R = band_layout(n, K, m), (n + 3) // 4 * 4, (K + 3) // 4 * 4, len(grad) // n
    width, of_eps, integers = min(KP, WIDTH), steps[3], state.view(np.int32)
    best, lo, hi = k.table[BEST], k.table[LO], k.table[HI]
    v, mass, weight, cov, left = k.n32[V], k.n32[MASS], k.n32[WEIGHT], k.n32[COV], k.n32[LEFT]
    for j in range(K):
        store(k.k32[PHI], 16 * j, splat(phi[j]))
    for group in range(begin, end):
        first, base = 16 * group, 16 * group * at.size
        if first + 16 > R:
            ruled_backward(np.int64(0), R - first, x[first * n :], a, y, b, phi, eps[of_eps * first :], n, K, m, squash,
                           push, steps, w[first * n :], grad[first * n :], state[base:])  # fmt: skip
            break
        orders, flags = integers[base + at.order :], state[base + at.flag :]
        for lane in range(16):
            row, here = (first + lane) * n, np.float32(1.0 if flags[lane] == _ANSWERED else 0.0)
            for i in range(n):
                o = row + orders[16 * i + lane]
                k.n32[XS, 16 * i + lane] = x[o] if x[o] == x[o] else np.float32(0.0)
                weight[16 * i + lane] = w[o] * here
        _balance(weight, n)
        place_lanes(k, n, squash, eps[of_eps * first :], of_eps)
        plan_lanes(k, n, K, width)
        u, W, inv = state[base : base + at.inv], state[base + at.W :], state[base + at.inv :]
        band_rows_of(k.G, N, KP, lo, hi, u, v)
        lost = k.one[1]
        store(lost, 0, splat(1.0))
        if not _grows_along(weight, n):
            band_covariances(k.G, N, KP, best, lo, hi, u, v, k.k32[PHI], k.y, k.n32[MEAN], cov)
            band_right_sides(k.G, N, KP, best, lo, hi, u, v, weight, k.k32[PHI], k.n32[MEAN], True, k.k32[TENSION])
            for i in range(0, 16 * n, 16):
                store(cov, i, load(weight, i) * load(cov, i))
            _undone(k, n, K, width, u, W, inv, cov, CANCELLED, lost)
        if any_lane(load(lost, 0) > 0.0):
            many_guess(k.G, N, KP, lo, hi, u, v, weight, k.k32[PHI], K, b, k.k32[GUESS])
            many_left(k.G, N, KP, best, lo, hi, u, v, weight, mass, k.k32[PHI], k.k32[GUESS], k.y, left,
                      k.k32[TENSION])  # fmt: skip
            again = load(lost, 0) > 0.0
            _undone(k, n, K, width, u, W, inv, left, _LEFT, lost)
            store(lost, 0, select(again, load(lost, 0), splat(0.0)))
            for i in range(0, 16 * n, 16):
                store(cov, i, select(again, load(left, i), load(cov, i)))
        for lane in range(16):
            if lost[lane] > 0.0:
                carefully(k, lane, n, b, phi, K, np.float64(eps[of_eps * (first + lane)]), u)
        lane_places_backward(k.n32[XS], mass, k.at, n, squash, k.moments, k.ends[2], cov)
        for lane in range(16):
            row = first + lane
            answer = grad[row * n : row * n + n]
            if flags[lane] == _NAN:
                answer[:] = np.nan
                continue
            if flags[lane] == _OF_OTHERS:
                _by_others_backward(row, x, a, y, b, phi, eps, n, K, m, squash, push, steps, w, answer,
                                    state[base + 16 * at.lanes + lane * at.other :])  # fmt: skip
                continue
            for i in range(n):
                answer[orders[16 * i + lane]] = cov[16 * i + lane]


@jit_no_refcount
def _grows_along(weight: F32, n: int) -> bool:
    """Whether the cotangents of all rows change little from one value to the next, as those of a sum of squares do."""
    sizes, changes = splat(0.0), splat(0.0)
    for i in range(0, 16 * n, 16):
        sizes = sizes + size_of(load(weight, i))
    for i in range(16, 16 * n, 16):
        changes = changes + size_of(load(weight, i) - load(weight, i - 16))
    return not any_lane(changes > sizes * _STEADY)


@jit_no_refcount
def multipliers(k: BandShape, n: int, K: int, u: F32, W: F32, width: int, inv: F32) -> None:
    """LAM = L^+ TENSION, by the matrix that is kept, or one without anything left out."""
    N, KP, best, lo, hi = len(k.t) // 16, len(k.y), k.table[BEST], k.table[LO], k.table[HI]
    v, mass, table = k.n32[V], k.n32[MASS], k.table
    band_ends(table[NEAR_LO], table[NEAR_HI], N // 4, KP, width, table[ENDS])
    if band_refined(k.G, N, K, KP, best, lo, hi, u, v, mass, k.k32[TENSION], W, width, table[ENDS], inv, k.k32[Z],
                    k.k32[LAM]):  # fmt: skip
        return
    band_ends(lo, hi, N // 4, KP, KP, table[ENDS])
    band_edges(k.G, n, N, KP, lo, hi, u, v, table[ENDS], KP, k.Q, k.W)
    k.one[0, :] = 1.0
    band_eliminate(k.W, KP, KP, table[ENDS], k.b, k.one[0], k.k32[INV])
    band_refined(k.G, N, K, KP, best, lo, hi, u, v, mass, k.k32[TENSION], k.W, KP, table[ENDS], k.k32[INV], k.k32[Z],
                 k.k32[LAM])  # fmt: skip


@jit_no_refcount
def _undone(k: BandShape, n: int, K: int, width: int, u: F32, W: F32, inv: F32, along: F32, least: float,
            lost: F32) -> None:  # fmt: skip
    """What is left of ``along``, the covariance of what is pulled, when potentials have undone its tensions.

    The result is the cotangent of x~. lost  OUT  1 in rows of which too much cancelled
    """
    N, KP, best, lo, hi = len(k.t) // 16, len(k.y), k.table[BEST], k.table[LO], k.table[HI]
    v, mass, cov_2 = k.n32[V], k.n32[MASS], k.n32[COV_2]
    multipliers(k, n, K, u, W, width, inv)
    band_covariances(k.G, N, KP, best, lo, hi, u, v, k.k32[LAM], k.y, k.n32[MEAN], cov_2)
    parts, whole, per_eps = splat(0.0), splat(0.0), narrow(load64(k.ends[3], 0))
    for i in range(0, 16 * n, 16):
        part = load(along, i)
        rest = part - load(mass, i) * load(cov_2, i)
        parts, whole = larger(parts, size_of(part)), larger(whole, size_of(rest))
        store(along, i, rest * per_eps)
    store(lost, 0, select(whole < parts * least, splat(1.0), splat(0.0)))


@jit
def _by_others_backward(row: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, m: int,
                        squash: int, push: bool, steps: _Steps, w: F32, answer: F32, state: F32) -> None:  # fmt: skip
    none, one = np.int64(0), np.int64(1)
    targets, weights, levels = all_targets(y, phi, none, none, K, m) if m > 0 else (y, b, phi)
    rows_backward(none, one, x[row * n :], a, targets, weights, levels, eps[steps[3] * row :], n, max(m, K), True, none,
                  squash, push, steps, w[row * n :], answer, state)  # fmt: skip


@jit
def carefully(k: BandShape, lane: int, n: int, b: F32, phi: F32, K: int, eps: float, u: F32) -> None:
    """The cotangent of x~ of one row once more."""
    out = np.empty(n, np.float32)
    double_backward(k.at[lane::16].copy(), k.n32[MASS, lane::16].copy(), n, k.n32[WEIGHT, lane::16].copy(), k.y,
            b.astype(np.float64), k.h[lane::16].copy(), u[lane::16].copy(), phi, K, eps, out)  # fmt: skip
    for i in range(n):
        k.n32[COV, 16 * i + lane] = out[i]
