"""Rows that meet three or four targets, as quantiles do: a few passes over the row, no matrix, no sort.

The mathematics of ``row.newton``. With so few targets everything a Newton step needs is summed in one pass, and
the Laplacian has four nodes. Sources stay in the order they came.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..engine.compile import jit
from ..engine.maths import F32, F64, copied, exp32
from ..engine.sources import padded
from ..engine.staircase import SAME_MASS_SINGLE
from ..engine.vectors import (
    any_lane,
    load,
    load64,
    lowest,
    narrow,
    select,
    splat,
    splat64,
    store,
    total,
    total64,
    widen,
)

MOST_THRESHOLDS = 4  #: targets

XS, AW, BEST, V, READ, WEIGHT, MEAN, COV, COV_2, AT32, GIVEN = range(11)
_EXACT, _LARGEST_LOGIT = 1e-15, 1e9
_TOLERANCE, _TOLERANCE_OF_FLOW, _FLOOR = 1e-6, 1e-5, 2e-7
_MOST_STEPS, _LARGEST_STEP, _RIDGE = 60, 5.0, 1e-7
_BUFFER = 64
_LEAST_LOG = -60.0  #: of a weight: exponentials of differences of two are normal numbers


class Row(NamedTuple):
    """Scratch of a thread: 11 parts of N float32, the places, G (4, N), numbers of the 4 targets, and a buffer."""

    n32: F32
    at: F64
    G: F32
    y: F64
    b: F64
    h: F64
    u: F64
    phi: F64
    sums: F64  #: (4, 4): see ``one_pass``
    W: F64  #: (4, 4)
    buffer: F64


@jit
def row_for(n: int) -> Row:
    N = padded(n)
    return Row(
        np.zeros((11, N), np.float32), np.zeros(N), np.zeros(4 * N, np.float32), np.zeros(4), np.zeros(4), np.zeros(4),
        np.zeros(4), np.zeros(4), np.zeros((4, 4)), np.zeros((4, 4)), np.zeros(2 * _BUFFER),
    )  # fmt: skip


@jit
def crossing(at: F32, aw: F32, n: int, low: float, high: float, boundary: float, buffer: F64) -> float:
    """Where the cumulative weight of the values passes ``boundary``; the middle if that is between two of them.

    An interval that holds the passage is cut in eight until it holds few distinct values, which are then sorted.
    """
    N = padded(n)
    below = 0.0  # what weighs less than ``low``
    high = np.nextafter(np.float32(high), np.float32(np.inf))
    for _ in range(12):
        width = (high - low) / 8.0
        c1, c2, c3, c4 = splat(low + width), splat(low + 2 * width), splat(low + 3 * width), splat(low + 4 * width)
        c5, c6, c7, end, start = (
            splat(low + 5 * width), splat(low + 6 * width), splat(low + 7 * width), splat(high), splat(low),
        )  # fmt: skip
        z = splat(0.0)
        m1, m2, m3, m4, m5, m6, m7, inside = z, z, z, z, z, z, z, z
        for i in range(0, N, 16):
            x, a = load(at, i), load(aw, i)
            a = select(x >= start, a, z)
            m1, m2, m3 = m1 + select(x < c1, a, z), m2 + select(x < c2, a, z), m3 + select(x < c3, a, z)
            m4, m5, m6 = m4 + select(x < c4, a, z), m5 + select(x < c5, a, z), m6 + select(x < c6, a, z)
            m7 = m7 + select(x < c7, a, z)
            inside = inside + select((x >= start) & (x < end), splat(1.0), z)
        if total(inside) <= 12.0 or not width > 1e-9 * abs(high):
            break
        reached = (total(m1), total(m2), total(m3), total(m4), total(m5), total(m6), total(m7))
        cut = 0
        for k in range(7):
            if below + reached[k] < boundary - SAME_MASS_SINGLE:
                cut = k + 1
        if cut > 0:
            below += reached[cut - 1]
        low, high = low + cut * width, low + (cut + 1) * width if cut < 7 else high
    count = 0
    beyond = splat(np.inf)
    for i in range(0, N, 16):
        x = load(at, i)
        here = (x >= low) & (x < high)
        beyond = select((x >= high) & (x < beyond), x, beyond)
        if any_lane(here):
            for k in range(i, min(i + 16, n)):
                if at[k] >= np.float32(low) and at[k] < np.float32(high) and aw[k] > 0.0:
                    value, slot = float(at[k]), 0
                    while slot < count and buffer[slot] < value:
                        slot += 1
                    if slot < count and buffer[slot] == value:
                        buffer[_BUFFER + slot] += aw[k]
                    elif count < _BUFFER:
                        for m in range(count, slot, -1):
                            buffer[m], buffer[_BUFFER + m] = buffer[m - 1], buffer[_BUFFER + m - 1]
                        buffer[slot], buffer[_BUFFER + slot] = value, aw[k]
                        count += 1
    after = float(lowest(beyond))
    before = after if after < np.inf else high
    for k in range(count - 1, -1, -1):
        reached_here = below
        for m in range(k + 1):
            reached_here += buffer[_BUFFER + m]
        if reached_here >= boundary - SAME_MASS_SINGLE:
            before = buffer[k]
        if reached_here > boundary + SAME_MASS_SINGLE:
            after = buffer[k]
    return 0.5 * (before + after) if after < np.inf else before


@jit
def carry(xs: F32, aw: F32, n: int, mean: float, per_unit: float, weight: F32) -> float:
    """a_i (x_i - mean) * scale, of infinite values 0; returns the sum of those that weigh something."""
    beyond = splat(0.0)
    for i in range(0, padded(n), 16):
        x, a = load(xs, i), load(aw, i)
        finite = (x > -np.inf) & (x < np.inf)
        z = (widen(select(finite, x, splat(0.0))) - mean) * per_unit
        store(weight, i, select(finite, narrow(z) * a, splat(0.0)))
        beyond = beyond + select(a > 0.0, x - select(finite, x, splat(0.0)), splat(0.0))
    return float(total(beyond))


@jit
def threshold_gibbs(k: Row, n: int, K: int, eps: float) -> None:
    """The best target of each value, and G without the ones there; see ``row.newton.gibbs``.

    The best target is where most of a value goes at first: that of the largest b_j G_ij. Where half of the values are
    equal and a filler takes a thousandth of them, the filler is as close as its neighbour, and what it lacks would be
    the difference of two halves.
    """
    N, best, G, y, h = padded(n), k.n32[BEST], k.G, k.y, k.h
    l0, l1, l2, l3 = (
        splat64(_log_of(k.b[0])), splat64(_log_of(k.b[1])), splat64(_log_of(k.b[2])), splat64(_log_of(k.b[3])),
    )  # fmt: skip
    for i in range(0, N, 16):
        t = load64(k.at, i) * (2.0 / eps)
        m0, m1, m2, m3 = t * y[0] - h[0], t * y[1] - h[1], t * y[2] - h[2], splat64(-np.inf)
        r, most, at_best = m0, m0 + l0, splat(0.0)
        higher = m1 + l1 >= most
        r, most, at_best = select(higher, m1, r), select(higher, m1 + l1, most), select(higher, splat(1.0), at_best)
        higher = m2 + l2 >= most
        r, most, at_best = select(higher, m2, r), select(higher, m2 + l2, most), select(higher, splat(2.0), at_best)
        if K > 3:
            m3 = t * y[3] - h[3]
            higher = m3 + l3 >= most
            r, at_best = select(higher, m3, r), select(higher, splat(3.0), at_best)
        store(best, i, at_best)
        store(G, i, select(at_best == 0.0, splat(0.0), exp32(narrow(m0 - r))))
        store(G, N + i, select(at_best == 1.0, splat(0.0), exp32(narrow(m1 - r))))
        store(G, 2 * N + i, select(at_best == 2.0, splat(0.0), exp32(narrow(m2 - r))))
        if K > 3:
            store(G, 3 * N + i, select(at_best == 3.0, splat(0.0), exp32(narrow(m3 - r))))


@jit
def _log_of(b: float) -> float:
    """log b, so far down for a target without weight that it is the best of no value."""
    return max(math.log(b), _LEAST_LOG) if b > 0.0 else -np.inf


@jit
def one_pass(k: Row, n: int, K: int) -> float:
    """For the scalings u: v; in ``sums`` what reaches and what leaves each target; in W its edges. Returns the flow."""
    N, G, best, aw, v = padded(n), k.G, k.n32[BEST], k.n32[AW], k.n32[V]
    u0, u1, u2, u3 = np.float32(k.u[0]), np.float32(k.u[1]), np.float32(k.u[2]), np.float32(k.u[3])
    z = splat(0.0)
    in0, in1, in2, in3, out0, out1, out2, out3 = z, z, z, z, z, z, z, z
    w01, w02, w03, w12, w13, w23 = z, z, z, z, z, z
    for i in range(0, N, 16):
        at_best, a = load(best, i), load(aw, i)
        p0, p1, p2, p3 = load(G, i) * u0, load(G, N + i) * u1, load(G, 2 * N + i) * u2, z
        b0, b1, b2, b3 = at_best == 0.0, at_best == 1.0, at_best == 2.0, at_best == 3.0
        stays = select(b0, splat(u0), select(b1, splat(u1), splat(u2)))
        leaves = p0 + p1 + p2
        if K > 3:
            p3 = load(G, 3 * N + i) * u3
            leaves, stays = leaves + p3, select(b3, splat(u3), stays)
        vi = splat(1.0) / (leaves + stays)
        store(v, i, vi)
        p0, p1, p2, p3, leaves, stays = p0 * vi, p1 * vi, p2 * vi, p3 * vi, leaves * vi * a, stays * vi
        in0, in1, in2 = in0 + p0 * a, in1 + p1 * a, in2 + p2 * a
        out0, out1 = out0 + select(b0, leaves, z), out1 + select(b1, leaves, z)
        out2 = out2 + select(b2, leaves, z)
        p0, p1, p2 = select(b0, stays, p0) * a, select(b1, stays, p1), select(b2, stays, p2)
        w01, w02, w12 = w01 + p0 * p1, w02 + p0 * p2, w12 + p1 * p2 * a
        if K > 3:
            in3, out3 = in3 + p3 * a, out3 + select(b3, leaves, z)
            p3 = select(b3, stays, p3)
            w03, w13, w23 = w03 + p0 * p3, w13 + p1 * p3 * a, w23 + p2 * p3 * a
    s, W = k.sums, k.W
    s[0, 0], s[0, 1], s[0, 2], s[0, 3] = total(in0), total(in1), total(in2), total(in3)
    s[1, 0], s[1, 1], s[1, 2], s[1, 3] = total(out0), total(out1), total(out2), total(out3)
    W[0, 1], W[0, 2], W[0, 3], W[1, 2], W[1, 3], W[2, 3] = (
        total(w01), total(w02), total(w03), total(w12), total(w13), total(w23),
    )  # fmt: skip
    return s[0, 0] + s[0, 1] + s[0, 2] + s[0, 3]


@jit
def threshold_solve(W: F64, K: int, ridge: float, b: F64, x: F64) -> None:
    """x = L^-1 x, zero at the last node that weighs something; eliminated without subtractions. W is used up."""
    while K > 1 and not b[K - 1] > 0.0:
        K -= 1
        x[K] = 0.0
    for k in range(K - 1):
        pivot = ridge * b[k]
        for j in range(k + 1, K):
            pivot += W[k, j]
        inverse = 1.0 / pivot if pivot > 1e-30 else 0.0
        x[k] *= inverse
        for j in range(k + 1, K):
            x[j] += W[k, j] * x[k]
            for c in range(j + 1, K):
                W[j, c] += W[k, j] * inverse * W[k, c]
            W[k, j] *= inverse
    x[K - 1] = 0.0
    for k in range(K - 2, -1, -1):
        for j in range(k + 1, K):
            x[k] += W[k, j] * x[j]


@jit
def threshold_excess(k: Row, n: int, K: int, rounding: float, excess: F64) -> None:
    """``row.newton.excesses``. ``rounding``: relative, of weights that were given in single precision."""
    aw, best = k.n32[AW], k.n32[BEST]
    excess[:] = 0.0
    over = 0.0
    for j in range(K):
        mine = splat64(0.0)
        for i in range(0, padded(n), 16):
            mine = mine + widen(select(load(best, i) == float(j), load(aw, i), splat(0.0)))
        excess[j] = k.b[j] - total64(mine)
        over += excess[j]
    for j in range(K):
        excess[j] -= over * k.b[j]
        if abs(excess[j]) <= max(rounding * k.b[j], _EXACT):
            excess[j] = 0.0


@jit
def threshold_newton(k: Row, n: int, K: int, rounding: float) -> float:
    """Newton on the scalings, as ``row.newton.newton``, with the Laplacian of every point. Returns the error."""
    excess, rho, direction, base = np.zeros(4), np.zeros(4), np.zeros(4), k.b.copy()
    threshold_excess(k, n, K, rounding, excess)
    copied(k.b, k.u)
    length, slope, before, error = 1.0, np.inf, np.inf, np.inf
    for step in range(_MOST_STEPS + 1):
        flow = one_pass(k, n, K)
        error, slope_here = 0.0, 0.0
        for j in range(K):
            rho[j] = excess[j] + k.sums[1, j] - k.sums[0, j]
            error += abs(rho[j])
            slope_here += rho[j] * direction[j]
        near = error <= _TOLERANCE and error <= _TOLERANCE_OF_FLOW * flow
        if (near and (error <= _FLOOR * flow or error > 0.3 * before)) or not error < np.inf or step == _MOST_STEPS:
            return error
        before = error
        if slope_here < -0.5 * slope:
            length *= slope / (slope - slope_here)
        else:
            base[:], length = k.u, 1.0
            copied(rho, direction)
            threshold_solve(k.W, K, _RIDGE * flow, k.b, direction)
            mean, slope = 0.0, 0.0
            for j in range(K):
                mean += direction[j] * k.b[j]
            for j in range(K):
                direction[j] = min(max(direction[j] - mean, -_LARGEST_STEP), _LARGEST_STEP)
                slope += direction[j] * rho[j]
            if not slope > 0.0:  # Sinkhorn's own step always rises
                slope = 0.0
                for j in range(K):
                    direction[j] = math.log(k.b[j] / max(k.b[j] - rho[j], 1e-30)) if k.b[j] > 0.0 else 0.0
                    slope += direction[j] * rho[j]
        for j in range(K):
            k.u[j] = base[j] * math.exp(direction[j] * length)
    return error


@jit
def threshold_solved(k: Row, n: int, K: int, eps: float, rounding: float) -> float:
    """Solves the plan of a row whose places are known; returns its marginal error."""
    at32, low, high = k.n32[AT32], k.at[0], k.at[0]
    for i in range(n):
        at32[i], low, high = k.at[i], min(low, k.at[i]), max(high, k.at[i])
    at32[n:] = np.inf
    boundary = 0.0
    for j in range(K - 1):
        boundary += k.b[j]
        if not boundary > 0.0:
            at = low - eps  # an empty target is the best of no value
        elif not k.b[j + 1 : K].max() > 0.0:
            at = high + eps
        else:
            bottom = np.float64(np.float32(low))
            at = min(max(crossing(at32, k.n32[AW], n, bottom, high, boundary, k.buffer), low), high)
        k.h[j + 1] = k.h[j] + 2.0 * at / eps * (k.y[j + 1] - k.y[j])
    threshold_gibbs(k, n, K, eps)
    error = threshold_newton(k, n, K, rounding)
    return error if max(abs(low), abs(high)) < _LARGEST_LOGIT * eps else np.inf
