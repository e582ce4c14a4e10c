"""Batches of very short rows: sixteen of them in, solved in lanes, and out again. See ``lanes.rows_backward``."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..engine.compile import borrowing, exact
from ..engine.maths import F32, F64, in_lines, larger
from ..engine.vectors import (
    choose,
    load,
    load64,
    load_apart,
    narrow,
    splat,
    splat64,
    store,
    store64,
    store_apart,
    widen,
)
from .newton import lane_excesses, lane_newton
from .plan import lane_gibbs, lane_places, lane_thresholds

# Parts of Lanes.n32, .n64: vectors for each value; of .k32: for each target; of .one: numbers of a row.
XS, AW, BEST, V, AV, LEAVING, WEIGHT, PHI_0, MEAN, Y_MEAN, COV, COV_2 = range(12)
AT, SORTED, CUMULATIVE, VALUES = range(4)
Y, B, EXCESS, PHI, U, INV, GROUND, LAM, TENSION, HIGH, LOW, PER_PLACE = range(12)
EPS, FIRST, LAST, UNIT = range(4)

_LARGEST_LOGIT = 1e9
_PER_LOG_2 = 2.0 / math.log(2.0)
Steps = tuple[int, int, int, int, int]


class Lanes(NamedTuple):
    """Scratch of a thread, for 16 rows."""

    n32: F32
    n64: F64
    k32: F32
    one: F64
    moments: F64
    small: F32
    error: F32
    numbers: F32  #: 0 to K - 1
    G: F32
    P: F32  #: with room for what is behind it and Q, see ``lane_eliminate``
    Q: F32


@exact
def lanes_for(n: int, K: int) -> Lanes:
    """Cut from two rooms, as each takes its time. P has a vector more than its entries, see ``lane_eliminate``."""
    N, M, pairs = 16 * n, 16 * K, 16 * n * K
    wide = in_lines(4 * N + 128, np.float64)
    k32 = 12 * N  # where each part begins
    small = k32 + 12 * M
    error = small + 5 * M
    G = error + 16
    P = G + pairs
    Q = P + pairs + K * M + 16
    numbers = Q + pairs + K * M
    room = in_lines(numbers + K, np.float32)
    for j in range(K):
        room[numbers + j] = j
    return Lanes(
        room[:k32].reshape(12, N),
        wide[: 4 * N].reshape(4, N),
        room[k32:small].reshape(12, M),
        wide[4 * N : 4 * N + 64].reshape(4, 16),
        wide[4 * N + 64 :],
        room[small:error],
        room[error:G],
        room[numbers:],
        room[G:P],
        room[P:Q],
        room[Q:numbers],
    )


@borrowing
def short_state(K: int) -> int:
    """Size of the state of a row: thresholds, as two float32 each, and u."""
    return 3 * K


@borrowing
def into_lanes(rows: F32, step: int, count: int, first: int, R: int, out: F32) -> None:
    """``count`` numbers of 16 rows, ``step`` from row to row, from row ``first``; the last row once more behind R."""
    if first + 16 <= R:
        for i in range(count):
            store(out, 16 * i, load_apart(rows, first * step + i, step))
        return
    for lane in range(16):
        row = min(first + lane, R - 1) * step
        for i in range(count):
            out[16 * i + lane] = rows[row + i]


@borrowing
def out_of_lanes(k: F32, count: int, step: int, first: int, R: int, rows: F32) -> None:
    """The other way round."""
    if first + 16 <= R:
        for i in range(count):
            store_apart(rows, first * step + i, step, load(k, 16 * i))
        return
    for row in range(first, R):
        for i in range(count):
            rows[row * step + i] = k[16 * i + row - first]


@borrowing
def rows_into(k: Lanes, x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int, steps: Steps,
              first: int, R: int, fresh: bool) -> None:  # fmt: skip
    """16 rows from ``first``, and their places. What all rows share is there already, unless ``fresh``.

    NaN counts as 0 for the places, and stays in XS.
    """
    xs, aw, k32 = k.n32[XS], k.n32[AW], k.k32
    into_lanes(x, n, n, first, R, xs)
    if steps[4] > 0:
        into_lanes(a, n, n, first, R, aw)
    elif fresh:
        aw[:] = np.float32(1.0 / n)
    if fresh or steps[0] > 0:
        into_lanes(y, steps[0], K, first, R, k32[Y])
        into_lanes(b, steps[0], K, first, R, k32[B])
        store64(k.one[FIRST], 0, widen(load(k32[Y], 0)))
        store64(k.one[LAST], 0, widen(load(k32[Y], 16 * K - 16)))
    if fresh or steps[3] > 0:
        for lane in range(16):
            k.one[EPS, lane] = eps[min(first + lane, R - 1) * steps[3]]
    if fresh or steps[0] > 0 or steps[3] > 0:
        per_eps = splat64(_PER_LOG_2) / load64(k.one[EPS], 0)
        for j in range(0, 16 * K - 16, 16):
            apart = widen(load(k32[Y], j + 16)) - widen(load(k32[Y], j))
            store(k32[PER_PLACE], j, narrow(apart * per_eps))
    lane_places(xs, aw, n, squash, k.one[FIRST], k.one[LAST], k.n64[AT], k.moments)


@borrowing
def solve_lanes(k: Lanes, n: int, K: int) -> None:
    n32, k32, at = k.n32, k.k32, k.n64[AT]
    lane_thresholds(at, n32[AW], n, k32[B], K, k.n64[SORTED], k.n64[CUMULATIVE], k32[HIGH], k32[LOW])
    lane_gibbs(at, n, K, k32[HIGH], k32[LOW], k32[PER_PLACE], k.numbers, k.P, n32[BEST], k.G)
    lane_excesses(n32[AW], n32[BEST], k.numbers, n, k32[B], K, k32[EXCESS])
    lane_newton(k.G, n, K, n32[AW], n32[BEST], k.numbers, k32[B], k32[EXCESS], k.P, k.Q, k32[INV], k32[U],
                n32[V], n32[AV], n32[LEAVING], k.small, k.error)  # fmt: skip


@borrowing
def leave(k: Lanes, n: int, K: int, first: int, R: int, state: F32, errors: F32, finite: bool) -> None:
    """State and errors of 16 rows. ``finite``: whether infinite values that weigh something are for the reference."""
    error, nan = load(k.error, 0), nan_lanes(k, n)
    farthest = splat64(0.0) - load64(k.n64[SORTED], 0)
    farthest = larger(farthest, load64(k.n64[SORTED], 16 * n - 16))
    error = choose(farthest < load64(k.one[EPS], 0) * _LARGEST_LOGIT, error, splat(np.inf))
    if finite:
        for i in range(0, 16 * n, 16):
            x = load(k.n32[XS], i)
            outside = (x >= np.inf) | (splat(-np.inf) >= x)
            error = choose(outside & (load(k.n32[AW], i) > 0.0), splat(np.inf), error)
    error = choose(error >= 0.0, error, splat(np.inf))
    store(k.error, 0, choose(nan == 0.0, error, splat(0.0)))
    size = short_state(K)
    out_of_lanes(k.error, 1, 1, first, R, errors)
    out_of_lanes(k.k32[HIGH], K, size, first, R, state)
    out_of_lanes(k.k32[LOW], K, size, first, R, state[K:])
    out_of_lanes(k.k32[U], K, size, first, R, state[2 * K :])


@exact
def pull_short(begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, squash: int,
               steps: Steps, out: F32, state: F32, errors: F32) -> None:  # fmt: skip
    """Rows 16 begin to 16 end; see ``row.solve.pull_rows`` for the arguments."""
    _pull(lanes_for(n, K), begin, end, x, a, y, b, phi, eps, n, K, squash, steps, out, state, errors)


@borrowing
def _pull(k: Lanes, begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int,
          squash: int, steps: Steps, out: F32, state: F32, errors: F32) -> None:  # fmt: skip
    stop, fresh = min(16 * end, len(errors)), True
    for first in range(16 * begin, stop, 16):
        rows_into(k, x, a, y, b, eps, n, K, squash, steps, first, stop, fresh)
        if fresh or steps[1] > 0:
            into_lanes(phi, steps[1], K, first, stop, k.k32[PHI])
        fresh = False
        solve_lanes(k, n, K)
        leave(k, n, K, first, stop, state, errors, False)
        for j in range(0, 16 * K, 16):
            store(k.k32[LAM], j, load(k.k32[U], j) * load(k.k32[PHI], j))
        nan = nan_lanes(k, n)
        for i in range(n):
            best, sums = load(k.n32[BEST], 16 * i), splat(0.0)
            for j in range(K):
                g = choose(best == k.numbers[j], splat(1.0), load(k.G, 16 * (i * K + j)))
                sums = sums + g * load(k.k32[LAM], 16 * j)
            store(k.n32[COV], 16 * i, sums * load(k.n32[V], 16 * i) + nan)
        out_of_lanes(k.n32[COV], n, n, first, stop, out)


@borrowing
def nan_lanes(k: Lanes, n: int) -> Any:
    """NaN for rows that hold NaN, 0 for the others."""
    nan = splat(0.0)
    for i in range(0, 16 * n, 16):
        x = load(k.n32[XS], i)
        nan = choose(x == x, nan, x)
    return nan


@exact
def push_short(begin: int, end: int, x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int,
               steps: Steps, out: F32, state: F32, errors: F32) -> None:  # fmt: skip
    _push(lanes_for(n, K), begin, end, x, a, y, b, eps, n, K, squash, steps, out, state, errors)


@borrowing
def _push(k: Lanes, begin: int, end: int, x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int,
          steps: Steps, out: F32, state: F32, errors: F32) -> None:  # fmt: skip
    stop, fresh = min(16 * end, len(errors)), True
    for first in range(16 * begin, stop, 16):
        rows_into(k, x, a, y, b, eps, n, K, squash, steps, first, stop, fresh)
        fresh = False
        solve_lanes(k, n, K)
        leave(k, n, K, first, stop, state, errors, True)
        average_lanes(k, n, K)
        out_of_lanes(k.k32[LAM], K, K, first, stop, out)


@borrowing
def average_lanes(k: Lanes, n: int, K: int) -> None:
    """The values that each target receives, on average, in LAM.

    In double precision: a sum of a few values in single precision loses digits that the plan still has, as what is off
    in its entries only counts for how far the values are from their average.
    """
    nan, values = nan_lanes(k, n), k.n64[VALUES]
    for i in range(0, 16 * n, 16):
        x = load(k.n32[XS], i)
        store64(values, i, widen(choose((x > -np.inf) & (x < np.inf), x, splat(0.0))))
    for j in range(K):
        sums, shares = splat64(0.0), splat64(0.0)
        for i in range(n):
            g = choose(load(k.n32[BEST], 16 * i) == k.numbers[j], splat(1.0), load(k.G, 16 * (i * K + j)))
            share = widen(g * load(k.n32[AV], 16 * i))
            sums, shares = sums + share * load64(values, 16 * i), shares + share
        average = choose(shares > 0.0, sums / shares, load64(k.moments, 0))
        store(k.k32[LAM], 16 * j, narrow(average) + nan)
