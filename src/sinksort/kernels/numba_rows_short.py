"""Batches of very short rows: sixteen of them in, solved in lanes, and out again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .numba_compile import exact
from .numba_maths import F32, F64, larger, size_of
from .numba_rows_careful import CANCELLED, careful
from .numba_rows_lanes import (
    lane_averages,
    lane_eliminate,
    lane_excesses,
    lane_gibbs,
    lane_newton,
    lane_places,
    lane_places_backward,
    lane_scale,
    lane_staircase,
    lane_substitute,
    lane_tensions,
)
from .numba_simd import any_lane, choose, load, load64, narrow, splat, splat64, store, widen

# Parts of Lanes.n32, .n64: vectors for each value; of .k32, .k64: for each target; of .one: numbers of a row.
XS, AW, BEST, V, LEAVING, WEIGHT, PHI_0, MEAN, COV, COV_2, DIRECT = range(11)
AT, SORTED, CUMULATIVE = range(3)
B, EXCESS, PHI, U, S, INV, RIDGE, LAM, TENSION = range(9)
Y, H = range(2)
EPS, LOW, HIGH, UNIT = range(4)

_LARGEST_LOGIT = 1e9
_RIDGE, _ROUNDING = np.float32(1e-9), np.float32(1e-6)


class Lanes(NamedTuple):
    """Scratch of a thread, for 16 rows."""

    n32: F32
    n64: F64
    k32: F32
    k64: F64
    one: F64
    moments: F64
    small: F32
    error: F32
    G: F32
    P: F32
    W: F32


@exact
def lanes_for(n: int, K: int) -> Lanes:
    return Lanes(
        np.zeros((11, 16 * n), np.float32),
        np.zeros((3, 16 * n), np.float64),
        np.zeros((9, 16 * K), np.float32),
        np.zeros((2, 16 * K), np.float64),
        np.zeros((4, 16), np.float64),
        np.zeros(64, np.float64),
        np.zeros(5 * 16 * K, np.float32),
        np.zeros(16, np.float32),
        np.empty(16 * n * K, np.float32),
        np.empty(16 * n * K, np.float32),
        np.empty(16 * K * K, np.float32),
    )


@exact
def short_state(K: int) -> tuple[int, int]:
    """Where a state has its float32 (u), after float64 (h and the 4 numbers of ``places``); and its size."""
    return 2 * (K + 4), 2 * (K + 4) + (K + 1) // 2 * 2


@exact
def rows_into(k: Lanes, x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int,
              steps: tuple[int, int, int, int, int], first: int, R: int) -> None:  # fmt: skip
    """16 rows from ``first``, the last one repeated behind the end, and their places. NaN counts as 0."""
    for lane in range(16):
        row = min(first + lane, R - 1)
        for i in range(n):
            value = x[row * n + i]
            k.n32[XS, 16 * i + lane] = value if value == value else np.float32(0.0)
            k.n32[AW, 16 * i + lane] = a[row * n + i] if steps[4] > 0 else np.float32(1.0 / n)
        for j in range(K):
            k.k64[Y, 16 * j + lane], k.k32[B, 16 * j + lane] = y[row * steps[0] + j], b[row * steps[0] + j]
        k.one[EPS, lane] = eps[row * steps[3]]
        k.one[LOW, lane], k.one[HIGH, lane] = y[row * steps[0]], y[row * steps[0] + K - 1]
    lane_places(k.n32[XS], k.n32[AW], n, squash, k.one[LOW], k.one[HIGH], k.n64[AT], k.moments)


@exact
def solve_lanes(k: Lanes, n: int, K: int) -> None:
    lane_staircase(k.n64[AT], k.n32[AW], n, k.k64[Y], k.k32[B], K, k.one[EPS], k.k64[H], k.n64[SORTED],
                   k.n64[CUMULATIVE])  # fmt: skip
    lane_gibbs(k.n64[AT], n, k.k64[Y], k.k64[H], K, k.one[EPS], k.n32[BEST], k.G)
    lane_excesses(k.n32[AW], k.n32[BEST], n, k.k32[B], K, k.k32[EXCESS])
    lane_newton(k.G, n, K, k.n32[AW], k.n32[BEST], k.k32[B], k.k32[EXCESS], k.P, k.W, k.k32[INV], k.k32[U], k.n32[V],
                k.n32[LEAVING], k.k32[S], k.small, k.error)  # fmt: skip


@exact
def leave(k: Lanes, x: F32, n: int, K: int, first: int, R: int, state64: F64, state32: F32, errors: F32,
          finite: bool) -> None:  # fmt: skip
    """State and errors of 16 rows. ``finite``: whether infinite values that weigh something are for the reference."""
    single, size = short_state(K)
    for row in range(first, min(first + 16, R)):
        lane = row - first
        o64, o32 = row * size // 2, row * size + single
        error, nan = k.error[lane], False
        if (
            not max(abs(k.n64[SORTED, lane]), abs(k.n64[SORTED, 16 * n - 16 + lane]))
            < _LARGEST_LOGIT * k.one[EPS, lane]
        ):
            error = np.inf
        for i in range(n):
            value = x[row * n + i]
            nan |= value != value
            if finite and not abs(value) < np.inf and k.n32[AW, 16 * i + lane] > 0.0:
                error = np.inf
        errors[row] = 0.0 if nan else (error if error == error else np.inf)
        for j in range(K):
            state64[o64 + j], state32[o32 + j] = k.k64[H, 16 * j + lane], k.k32[U, 16 * j + lane]
        for m in range(4):
            state64[o64 + K + m] = k.moments[16 * m + lane]
        if nan:
            state64[o64 + K + 2] = np.nan


@exact
def pull_short(begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, squash: int,
               steps: tuple[int, int, int, int, int], out: F32, state32: F32, errors: F32) -> None:  # fmt: skip
    """Rows 16 begin to 16 end; see ``numba_rows_wide.pull_rows`` for the arguments."""
    k, state64 = lanes_for(n, K), state32.view(np.float64)
    size, stop = short_state(K)[1], min(16 * end, len(errors))
    for first in range(16 * begin, stop, 16):
        rows_into(k, x, a, y, b, eps, n, K, squash, steps, first, stop)
        solve_lanes(k, n, K)
        leave(k, x, n, K, first, stop, state64, state32, errors, False)
        levels_into(k, phi, K, steps[1], first, stop, False)
        for i in range(n):
            best, sums = load(k.n32[BEST], 16 * i), splat(0.0)
            for j in range(K):
                g = choose(best == float(j), splat(1.0), load(k.G, 16 * (i * K + j)))
                sums = sums + g * load(k.k32[U], 16 * j) * load(k.k32[PHI], 16 * j)
            store(k.n32[COV], 16 * i, sums * load(k.n32[V], 16 * i))
        for row in range(first, min(first + 16, stop)):
            nan = np.isnan(state64[row * size // 2 + K + 2])
            for i in range(n):
                out[row * n + i] = np.float32(np.nan) if nan else k.n32[COV, 16 * i + row - first]


@exact
def levels_into(k: Lanes, phi: F32, K: int, step: int, first: int, R: int, by_weight: bool) -> None:
    for lane in range(16):
        row = min(first + lane, R - 1)
        for j in range(K):
            level, b = phi[row * step + j], k.k32[B, 16 * j + lane]
            k.k32[PHI, 16 * j + lane] = level if not by_weight else (level / b if b > 0.0 else np.float32(0.0))


@exact
def carry_lanes(k: Lanes, n: int) -> None:
    """a_i (x_i - mean) * scale."""
    mean, scale = load64(k.moments, 0), load64(k.moments, 16)
    for i in range(0, 16 * n, 16):
        x, a = load(k.n32[XS], i), load(k.n32[AW], i)
        heavy = (x > -np.inf) & (x < np.inf) & (a > 0.0)
        carried = widen(a) * ((widen(choose(heavy, x, splat(0.0))) - mean) * scale)
        store(k.n32[WEIGHT], i, choose(heavy, narrow(carried), splat(0.0)))


@exact
def push_short(begin: int, end: int, x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int,
               steps: tuple[int, int, int, int, int], out: F32, state32: F32, errors: F32) -> None:  # fmt: skip
    k, state64 = lanes_for(n, K), state32.view(np.float64)
    size, stop = short_state(K)[1], min(16 * end, len(errors))
    for first in range(16 * begin, stop, 16):
        rows_into(k, x, a, y, b, eps, n, K, squash, steps, first, stop)
        solve_lanes(k, n, K)
        leave(k, x, n, K, first, stop, state64, state32, errors, True)
        carry_lanes(k, n)
        for j in range(K):
            sums, shares = splat(0.0), splat(0.0)
            for i in range(n):
                g = choose(load(k.n32[BEST], 16 * i) == float(j), splat(1.0), load(k.G, 16 * (i * K + j)))
                g = g * load(k.n32[V], 16 * i)
                sums, shares = sums + g * load(k.n32[WEIGHT], 16 * i), shares + g * load(k.n32[AW], 16 * i)
            store(k.k32[LAM], 16 * j, choose(shares > 0.0, sums / shares, splat(0.0)))
        for row in range(first, min(first + 16, stop)):
            lane = row - first
            nan = np.isnan(state64[row * size // 2 + K + 2])
            for j in range(K):
                value = k.moments[lane] + k.k32[LAM, 16 * j + lane] / k.moments[16 + lane]
                out[row * K + j] = np.nan if nan else value


@exact
def balance_lanes(k: Lanes, n: int) -> None:
    """``numba_rows_careful.balanced`` in lanes."""
    whole, weight = splat64(0.0), splat64(0.0)
    for i in range(0, 16 * n, 16):
        whole, weight = whole + widen(load(k.n32[WEIGHT], i)), weight + widen(load(k.n32[AW], i))
    share, most, left = narrow(whole / weight), splat(0.0), splat(0.0)
    for i in range(0, 16 * n, 16):
        w = load(k.n32[WEIGHT], i)
        rest = w - load(k.n32[AW], i) * share
        most, left = larger(most, size_of(w)), larger(left, size_of(rest))
        store(k.n32[WEIGHT], i, rest)
    for i in range(0, 16 * n, 16):
        store(k.n32[WEIGHT], i, choose(left < most * _ROUNDING, splat(0.0), load(k.n32[WEIGHT], i)))


@exact
def carefully(k: Lanes, n: int, K: int) -> None:
    """The cotangent of x~ once more, for the rows marked in ``error``."""
    out = np.empty(n, np.float32)
    for lane in range(16):
        if k.error[lane] > 0.0:
            careful(k.n64[AT, lane::16].copy(), k.n32[AW, lane::16].copy(), n, k.n32[WEIGHT, lane::16].copy(),
                    k.k64[Y, lane::16].copy(), k.k32[B, lane::16].copy(), k.k64[H, lane::16].copy(),
                    k.k32[U, lane::16].copy(), k.k32[PHI, lane::16].copy(), K, k.one[EPS, lane], out)  # fmt: skip
            for i in range(n):
                k.n32[COV, 16 * i + lane] = out[i]


@exact
def short_backward(begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int,
                   squash: int, push: bool, steps: tuple[int, int, int, int, int], w: F32, grad: F32,
                   state32: F32) -> None:  # fmt: skip
    """See ``numba_rows_wide.rows_backward``."""
    k, state64 = lanes_for(n, K), state32.view(np.float64)
    single, size = short_state(K)
    stop = min(16 * end, len(grad) // n)
    n32, k32 = k.n32, k.k32
    for first in range(16 * begin, stop, 16):
        rows_into(k, x, a, y, b, eps, n, K, squash, steps, first, stop)
        levels_into(k, phi, K, steps[1], first, stop, push)
        for lane in range(16):
            row = min(first + lane, stop - 1)
            for j in range(K):
                k.k64[H, 16 * j + lane] = state64[row * size // 2 + j]
                k32[U, 16 * j + lane] = state32[row * size + single + j]
            k.one[UNIT, lane] = 1.0 / k.moments[16 + lane] if push else 1.0
            if not push:
                for i in range(n):
                    n32[WEIGHT, 16 * i + lane] = w[row * n + i]
        if push:
            carry_lanes(k, n)
        else:
            balance_lanes(k, n)
        best, u, v = n32[BEST], k32[U], n32[V]
        lane_gibbs(k.n64[AT], n, k.k64[Y], k.k64[H], K, k.one[EPS], best, k.G)
        lane_scale(k.G, n, K, n32[AW], best, u, v, n32[LEAVING], k32[S])
        lane_averages(k.G, n, K, best, u, v, k32[PHI], k.k64[Y], n32[PHI_0], n32[MEAN], n32[COV])
        lane_tensions(k.G, n, K, best, u, v, n32[WEIGHT], k32[PHI], n32[PHI_0], n32[MEAN], k32[TENSION])
        flow = splat(0.0)
        for i in range(0, 16 * n, 16):
            flow = flow + load(n32[LEAVING], i)
            store(n32[DIRECT], i, (load(n32[PHI_0], i) + load(n32[MEAN], i)) * load(n32[AW], i))
        for j in range(0, 16 * K, 16):
            store(k32[RIDGE], j, load(k32[B], j) * flow * _RIDGE)
        lane_eliminate(k.G, n, K, n32[AW], best, u, v, k32[RIDGE], k.P, k.W, k32[INV])
        lane_substitute(k.W, K, k32[INV], k32[TENSION], k32[LAM])
        lane_averages(k.G, n, K, best, u, v, k32[LAM], k.k64[Y], n32[PHI_0], n32[MEAN], n32[COV_2])
        per_eps = narrow(splat64(2.0) / load64(k.one[EPS], 0))
        parts, whole = splat(0.0), splat(0.0)
        for i in range(0, 16 * n, 16):
            part = load(n32[WEIGHT], i) * load(n32[COV], i)
            along = part - load(n32[AW], i) * load(n32[COV_2], i)
            parts, whole = larger(parts, size_of(part)), larger(whole, size_of(along))
            store(n32[COV], i, per_eps * along)
        cancelled = whole < parts * CANCELLED
        if any_lane(cancelled):
            store(k.error, 0, choose(cancelled, splat(1.0), splat(0.0)))
            carefully(k, n, K)
        lane_places_backward(n32[XS], n32[AW], k.n64[AT], n, squash, k.moments, k.one[UNIT], n32[COV])
        for row in range(first, min(first + 16, stop)):
            lane = row - first
            nan = np.isnan(state64[row * size // 2 + K + 2])
            for i in range(n):
                g = n32[COV, 16 * i + lane] + (n32[DIRECT, 16 * i + lane] if push else np.float32(0.0))
                grad[row * n + i] = np.float32(np.nan) if nan else g
