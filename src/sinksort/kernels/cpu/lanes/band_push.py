"""Sorts of many rows of moderate length, sixteen at a time, by the nodes of a rule or all their targets.

A state is as ``lanes.band_rows`` has it. What that has for other kernels begins here with the numbers of each row
that ``places`` found. Rows that are not soft enough, or not right, are not answered.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F32, larger, size_of, smaller
from ..engine.vectors import load, load64, narrow, select, splat, splat64, store, store64, widen
from ..row.double_backward import CANCELLED_OF_SORTS
from ..row.push import PEAK, push_rows
from ..row.read import BEFORE_LASTS, LASTS
from ..row.solve import ACCEPTED, rows_backward
from ..row.work import NODES
from .band import BEST, HI, LO, band_newton, band_rows_of, band_scale
from .band_others import band_layout, carefully
from .band_read import band_covariances, band_right_sides
from .band_rows import LARGEST_LOGIT, LARGEST_SHIFT, SOFT_ENOUGH
from .band_rows_backward import multipliers
from .band_shape import (
    COV,
    COV_2,
    GROUND,
    INDEX,
    LAM,
    MASS,
    MEAN,
    PHI,
    PLACE,
    SHARE,
    TENSION,
    WEIGHT,
    WIDTH,
    XS,
    BandShape,
    S,
    V,
    Z,
    band_for,
    place_lanes,
    plan_lanes,
    rows_of_their_own,
    sort_lanes,
    weights_into,
)
from .plan import lane_places_backward

_ANSWERED, _LEFT, _NAN = np.float32(0.0), np.float32(1.0), np.float32(2.0)
_Steps = tuple[int, int, int, int, int]


@jit
def push_band(begin: int, end: int, x: F32, a: F32, y: F32, b: F32, last: F32, eps: F32, n: int, K: int, m: int,
              squash: int, steps: _Steps, out: F32, state: F32, errors: F32) -> None:  # fmt: skip
    """Rows 16 begin to 16 end, by ``push_rows`` where there are no sixteen. All steps are 0; m > 0."""
    k = band_for(n, K, len(last) > 0, y, b)
    at, KP, R = band_layout(n, K, m if m <= 128 else 0), len(k.y) // 16, len(errors)
    width, table, integers = min(KP, WIDTH), k.table, state.view(np.int32)
    wide = state.view(np.float64)
    for group in range(begin, end):
        first, base = 16 * group, 16 * group * at.size
        if first + 16 > R:
            push_rows(np.int64(0), R - first, x[first * n :], a[steps[4] * first :], y, b, last, eps, n, K, m, squash,
                      steps, out[first * K :], state[base:], errors[first:])  # fmt: skip
            break
        orders, flags = integers[base + at.order :], state[base + at.flag :]
        for lane in range(16):
            k.rows[lane] = first + lane
        rows_of_their_own(k, a, y, b, y, n, K, (steps[0], steps[0], steps[2], steps[3], steps[4]))
        for lane in range(16):
            nan, finite = False, True
            for i in range(n):
                value = x[(first + lane) * n + i]
                nan |= value != value
                finite &= abs(value) < np.inf
                k.n32[XS, 16 * i + lane] = value if abs(value) < np.inf else np.float32(0.0)
            flags[lane] = _NAN if nan else (_ANSWERED if finite else _LEFT)
        for i in range(n):
            store(k.n32[INDEX], 16 * i, splat(float(i)))
        sort_lanes(k.n32[XS], k.n32[INDEX], n)
        for i in range(16 * n):
            orders[i] = k.n32[INDEX, i]
        if steps[4] > 0:
            weights_into(k, a, n, orders)
        place_lanes(k, n, squash, eps, 0)
        _carried(k, n)
        plan_lanes(k, n, K, width)
        u, flow, error = state[base : base + at.inv], k.one[0], k.one[1]
        band_newton(k.G, k.n32[MASS], K, table, k.k32[SHARE], k.k32[GROUND], width, k.Q, state[base + at.W :],
                    state[base + at.inv :], u, k.n32[V], k.k32[S], k.k32[Z], flow, error)  # fmt: skip
        band_scale(k.G, k.n32[MASS], KP, table[BEST], table[LO], table[HI], u, k.n32[V], k.k32[S], flow)
        _averages(k, K, b, last[BEFORE_LASTS * K :], LASTS if len(last) > 0 else 0, error)
        for lane in range(16):
            row, record = first + lane, (base + 16 * at.lanes + lane * at.other) // 2
            wide[record], wide[record + 1], wide[record + NODES] = k.moments[lane], k.moments[16 + lane], 0.0
            answer = out[row * K : row * K + K]
            if flags[lane] == _NAN:
                answer[:], errors[row] = np.nan, 0.0
                continue
            farthest = max(abs(k.t[lane]), abs(k.t[16 * n - 16 + lane]))
            soft = flow[lane] > SOFT_ENOUGH and farthest < LARGEST_LOGIT and k.one[2, lane] < LARGEST_SHIFT
            errors[row] = error[lane] if soft and flags[lane] == _ANSWERED and error[lane] < np.inf else np.inf
            flags[lane] = _ANSWERED if errors[row] <= ACCEPTED else _LEFT
            for j in range(K):
                answer[j] = k.k32[Z, 16 * j + lane]


@jit_no_refcount
def _carried(k: BandShape, n: int) -> None:
    """(x - mean) * scale times what values weigh into WEIGHT."""
    mean, scale = load64(k.moments, 0), load64(k.moments, 16)
    for i in range(0, 16 * n, 16):
        heavy = scale * widen(load(k.n32[MASS], i))
        store(k.n32[WEIGHT], i, narrow((widen(load(k.n32[XS], i)) - mean) * heavy))
    for i in range(16 * n, len(k.n32[WEIGHT]), 16):
        store(k.n32[WEIGHT], i, splat(0.0))


@jit_no_refcount
def _averages(k: BandShape, K: int, b: F32, last: F32, lasts: int, error: F32) -> None:
    """What each target gets of WEIGHT over its share of all (S), into Z; see ``row.push.averages``."""
    N, KP, v, weight, z = len(k.t) // 16, len(k.y) // 16, k.n32[V], k.n32[WEIGHT], k.k32[Z]
    for j in range(0, 16 * KP, 16):
        store(z, j, splat(0.0))
    for block in range(N // 4):
        o, i = 64 * block * KP, 64 * block
        w0, w1 = load(weight, i) * load(v, i), load(weight, i + 16) * load(v, i + 16)
        w2, w3 = load(weight, i + 32) * load(v, i + 32), load(weight, i + 48) * load(v, i + 48)
        for j in range(k.table[LO, block], k.table[HI, block]):
            e = o + 64 * j
            left = load(k.G, e) * w0 + load(k.G, e + 16) * w1
            right = load(k.G, e + 32) * w2 + load(k.G, e + 48) * w3
            store(z, 16 * j, load(z, 16 * j) + left + right)
    low, high = splat(np.inf), splat(-np.inf)
    for j in range(K):
        average = load(z, 16 * j) / load(k.k32[S], 16 * j)
        store(z, 16 * j, average)
        low, high = smaller(low, average), larger(high, average)
    off = splat(0.0)
    for line in range(lasts):
        coefficient = splat(0.0)
        for j in range(K):
            coefficient = coefficient + load(z, 16 * j) * (b[j] * last[line * K + j])
        off = off + size_of(coefficient)
    span, peak = high - low, np.float32(PEAK * math.sqrt(2.0 * K + 1.0))
    off = select(span > 0.0, off * peak / span, off)
    known = load(error, 0)
    store(error, 0, select(off > known, off, known))  # an error that is not a number stays


@jit
def many_push_backward(begin: int, end: int, x: F32, a: F32, y: F32, b: F32, c: F32, eps: F32, n: int, K: int, m: int,
                       squash: int, steps: _Steps, w: F32, grad: F32, state: F32) -> None:  # fmt: skip
    """Cotangents of x from c (R, K), those of what nodes receive; w is for kernels that pull."""
    k = band_for(n, K, m != K, y, b)
    at, N, KP, R = band_layout(n, K, m if m <= 128 else 0), len(k.t) // 16, len(k.y) // 16, len(grad) // n
    width, e, integers, units = min(KP, WIDTH), np.float64(eps[0]), state.view(np.int32), np.empty(16)
    best, lo, hi = k.table[BEST], k.table[LO], k.table[HI]
    v, mass, weight, mean, cov, cov_2 = k.n32[V], k.n32[MASS], k.n32[WEIGHT], k.n32[MEAN], k.n32[COV], k.n32[COV_2]
    direct = k.n32[INDEX]
    for group in range(begin, end):
        first, base = 16 * group, 16 * group * at.size
        if first + 16 > R:
            rows_backward(np.int64(0), R - first, x[first * n :], a[steps[4] * first :], y, b, c[first * K :], eps, n,
                          K, bool(0), at.size, squash, bool(1), (steps[0], K, steps[2], steps[3], steps[4]), w,
                          grad[first * n :], state[base:])  # fmt: skip
            break
        orders, flags = integers[base + at.order :], state[base + at.flag :]
        for lane in range(16):
            k.rows[lane] = first + lane
        rows_of_their_own(k, a, y, b, y, n, K, (steps[0], steps[0], steps[2], steps[3], steps[4]))
        if steps[4] > 0:
            weights_into(k, a, n, orders)
        for lane in range(16):
            row, answered = (first + lane) * n, flags[lane] == _ANSWERED
            for i in range(n):
                value = x[row + orders[16 * i + lane]]
                k.n32[XS, 16 * i + lane] = value if abs(value) < np.inf else np.float32(0.0)
            for j in range(K):
                k.k32[PHI, 16 * j + lane] = c[(first + lane) * K + j] / b[j] if answered else np.float32(0.0)
        place_lanes(k, n, squash, eps, 0)
        _carried(k, n)
        plan_lanes(k, n, K, width)
        u, W, inv = state[base : base + at.inv], state[base + at.W :], state[base + at.inv :]
        band_rows_of(k.G, N, KP, lo, hi, u, v)
        band_covariances(k.G, N, KP, best, lo, hi, u, v, k.k32[PHI], k.k32[PLACE], mean, cov)
        band_right_sides(k.G, N, KP, best, lo, hi, u, v, weight, k.k32[PHI], mean, True, k.k32[TENSION])
        for i in range(n):
            store(direct, 16 * i, load(mean, 16 * i) + load(k.k32[PHI], 16 * best[i // 4 * 4]))
        multipliers(k, n, K, u, W, width, inv)
        band_covariances(k.G, N, KP, best, lo, hi, u, v, k.k32[LAM], k.k32[PLACE], mean, cov_2)
        parts, whole, per_eps = splat(0.0), splat(0.0), np.float32(2.0 / e)
        for i in range(0, 16 * n, 16):
            part = load(weight, i) * load(cov, i)
            along = part - load(mass, i) * load(cov_2, i)
            parts, whole = larger(parts, size_of(part)), larger(whole, size_of(along))
            store(cov, i, along * per_eps)
        store(k.one[1], 0, select(whole < parts * CANCELLED_OF_SORTS, splat(1.0), splat(0.0)))
        for lane in range(16):
            if k.one[1, lane] > 0.0:
                carefully(k, lane, n, K, e, u)
        store64(units, 0, splat64(1.0) / load64(k.moments, 16))
        lane_places_backward(k.n32[XS], mass, k.at, n, squash, k.moments, units, cov)
        for lane in range(16):
            row = first + lane
            answer = grad[row * n : row * n + n]
            if flags[lane] == _NAN:
                answer[:] = np.nan
                continue
            for i in range(n):
                o = 16 * i + lane
                answer[orders[o]] = cov[o] + mass[o] * direct[o]
