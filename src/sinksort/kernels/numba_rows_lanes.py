"""Rows too short to fill vectors of their own, sixteen rows at a time: lane l of every vector belongs to row l.

The same mathematics as row by row (see ``numba_rows_newton`` and ``numba_rows_read``), without its blocks and
bands: plans are full matrices, and each entry of one is a vector. Entry (i, j) of a plan is at [16 (i K + j)], value i
at [16 i].
"""

from __future__ import annotations

import math

import numpy as np

from .numba_compile import exact
from .numba_maths import F32, F64, exp32, larger, sigmoid64, size_of, smaller
from .numba_simd import any_lane, choose, load, load64, narrow, root, splat, splat64, store, store64, widen

SHORT = 20  #: values and targets up to which rows are worked on in lanes

_ARCTAN, _NO_SQUASH = 1, 2
_SAME_MASS, _ROUNDING, _LARGEST_LOGIT = 2e-6, 2e-7, 1e9
_TINY, _UNJOINED, _ONE = np.float32(1e-30), np.float32(1e-30), np.float32(1.0)
_RIDGE, _RIDGE_BACKWARD = np.float32(1e-6), np.float32(1e-9)
_LARGEST_STEP = np.float32(5.0)
_TOLERANCE, _TOLERANCE_OF_FLOW = np.float32(1e-6), np.float32(1e-5)
_SOFT, _FLOOR, _FALLS = np.float32(0.8), np.float32(2e-7), np.float32(0.3)
_MOST_STEPS, _KEEP = 40, np.float32(0.2)


@exact
def lane_places(xs: F32, aw: F32, n: int, squash: int, low: F64, high: F64, at: F64, moments: F64) -> None:
    """``numba_maths.places`` in lanes; mean, scale, weight and spread go to ``moments``."""
    none, zero = splat(0.0), splat64(0.0)
    weight, moment, squares = zero, zero, zero
    top, bottom = splat(-np.inf), splat(np.inf)
    for i in range(0, 16 * n, 16):
        x, a = load(xs, i), load(aw, i)
        inside = (x > -np.inf) & (x < np.inf)
        a64 = widen(choose(inside, a, none))
        weight = weight + a64
        moment = moment + a64 * widen(choose(inside, x, none))
        if squash != _NO_SQUASH:
            inside = inside & (a > 0.0)
        top = choose(inside & (x > top), x, top)
        bottom = choose(inside & (x < bottom), x, bottom)
    if squash == _NO_SQUASH:
        ceiling, floor = larger(widen(top), load64(high, 0)), smaller(widen(bottom), load64(low, 0))
        for i in range(0, 16 * n, 16):
            x64 = widen(load(xs, i))
            x64 = choose(x64 < np.inf, x64, ceiling)
            store64(at, i, choose(x64 > -np.inf, x64, floor))
        store64(moments, 0, zero)
        store64(moments, 16, splat64(1.0))
        store64(moments, 32, weight)
        store64(moments, 48, zero)
        return
    counted = top >= bottom  # something finite has weight
    mean = choose(counted, moment / weight, zero)
    for i in range(0, 16 * n, 16):
        x, a = load(xs, i), load(aw, i)
        inside = (x > -np.inf) & (x < np.inf)
        centred = widen(choose(inside, x, none)) - mean
        squares = squares + widen(choose(inside, a, none)) * centred * centred
    variance = squares / weight
    spreads = (top > bottom) & (variance > 0.0)
    top64, bottom64 = widen(top), widen(bottom)
    size = larger(larger(top64, zero - top64), larger(bottom64, zero - bottom64))
    flat = choose(size > 0.0, splat64(1.0) / size, splat64(1.0))
    flat = choose(counted, choose(top > bottom, splat64(2.0) / (top64 - bottom64), flat), splat64(1.0))
    scale = choose(spreads, splat64(1.0) / root(variance), flat)
    mean = choose(spreads, mean, choose(counted, (top64 + bottom64) * 0.5, zero))
    for i in range(0, 16 * n, 16):
        z = (widen(load(xs, i)) - mean) * scale
        z = larger(smaller(z, splat64(1e9)), splat64(-1e9))
        store64(at, i, z if squash == _ARCTAN else sigmoid64(z))
    if squash == _ARCTAN:
        for i in range(16 * n):
            at[i] = math.atan(at[i]) / math.pi + 0.5
    store64(moments, 0, mean)
    store64(moments, 16, scale)
    store64(moments, 32, weight)
    store64(moments, 48, choose(spreads, splat64(1.0), zero))


@exact
def lane_places_backward(xs: F32, aw: F32, at: F64, n: int, squash: int, moments: F64, units: F64, g: F32) -> None:
    """``numba_maths.places_backward`` in lanes."""
    none = splat64(0.0)
    mean, scale, weight, spreads = load64(moments, 0), load64(moments, 16), load64(moments, 32), load64(moments, 48)
    unit = load64(units, 0)
    if squash == _NO_SQUASH:
        for i in range(0, 16 * n, 16):
            x = load(xs, i)
            of_x = narrow(widen(load(g, i)) * unit)
            store(g, i, choose((x > -np.inf) & (x < np.inf), of_x, splat(0.0)))
        return
    sums, with_z = none, none
    for i in range(0, 16 * n, 16):
        x = load(xs, i)
        inside = (x > -np.inf) & (x < np.inf)
        z = (widen(choose(inside, x, splat(0.0))) - mean) * scale
        s = load64(at, i)
        slope = splat64(1.0 / math.pi) / (z * z + 1.0) if squash == _ARCTAN else s * (splat64(1.0) - s)
        of_z = choose(inside, widen(load(g, i)) * slope, none)
        store(g, i, narrow(of_z))
        sums = sums + of_z
        with_z = with_z + of_z * choose(inside, z, none)
    share = choose(weight > 0.0, splat64(1.0) / weight, none)
    sums, with_z = sums * share, with_z * share * spreads
    for i in range(0, 16 * n, 16):
        x = load(xs, i)
        inside = (x > -np.inf) & (x < np.inf)
        z = (widen(choose(inside, x, splat(0.0))) - mean) * scale
        of_x = (widen(load(g, i)) - widen(load(aw, i)) * (z * with_z + sums)) * (scale * unit)
        store(g, i, narrow(choose(inside, of_x, none)))


@exact
def lane_staircase(at: F64, aw: F32, n: int, y: F64, b: F32, K: int, eps: F64, h: F64, sorted_at: F64,
                   cumulative: F64) -> None:  # fmt: skip
    """``numba_rows_newton.staircase``: places and weights are sorted by exchanges, h is read off at each boundary."""
    for i in range(0, 16 * n, 16):
        value, weight = load64(at, i), widen(load(aw, i))
        for k in range(i, 0, -16):  # insertion: what is larger moves up
            other, its = load64(sorted_at, k - 16), load64(cumulative, k - 16)
            up = other > value
            store64(sorted_at, k, choose(up, other, value))
            store64(cumulative, k, choose(up, its, weight))
            value, weight = choose(up, value, other), choose(up, weight, its)
        store64(sorted_at, 0, value)
        store64(cumulative, 0, weight)
    for i in range(16, 16 * n, 16):
        store64(cumulative, i, load64(cumulative, i) + load64(cumulative, i - 16))
    boundary, height, per_eps = splat64(0.0), splat64(0.0), splat64(1.0) / load64(eps, 0)
    store64(h, 0, height)
    for j in range(K - 1):
        boundary = boundary + widen(load(b, 16 * j))
        before, after = load64(sorted_at, 16 * n - 16), load64(sorted_at, 16 * n - 16)
        for i in range(16 * n - 32, -1, -16):
            here, reached = load64(sorted_at, i), load64(cumulative, i)
            before = choose(reached >= boundary - _SAME_MASS, here, before)
            after = choose(reached > boundary + _SAME_MASS, here, after)
        height = height + (before + after) * per_eps * (load64(y, 16 * j + 16) - load64(y, 16 * j))
        store64(h, 16 * j + 16, height)


@exact
def lane_gibbs(at: F64, n: int, y: F64, h: F64, K: int, eps: F64, best: F32, G: F32) -> None:
    """The best target of each source, as a number, and G without the ones there."""
    per_eps = splat64(2.0) / load64(eps, 0)
    for i in range(n):
        t = load64(at, 16 * i) * per_eps
        r, at_best = t * load64(y, 0) - load64(h, 0), splat(0.0)
        for j in range(1, K):
            value = t * load64(y, 16 * j) - load64(h, 16 * j)
            better = value >= r
            r, at_best = choose(better, value, r), choose(better, splat(float(j)), at_best)
        store(best, 16 * i, at_best)
        for j in range(K):
            g = exp32(narrow(t * load64(y, 16 * j) - load64(h, 16 * j) - r))
            store(G, 16 * (i * K + j), choose(at_best == float(j), splat(0.0), g))


@exact
def lane_scale(G: F32, n: int, K: int, aw: F32, best: F32, u: F32, v: F32, leaving: F32, s: F32) -> None:
    """v, what leaves each source's best target, and s_j = sum_i a_i v_i G_ij."""
    for j in range(K):
        store(s, 16 * j, splat(0.0))
    for i in range(n):
        at_best, leaves, stays = load(best, 16 * i), splat(0.0), splat(0.0)
        for j in range(K):
            uj = load(u, 16 * j)
            leaves = leaves + load(G, 16 * (i * K + j)) * uj
            stays = choose(at_best == float(j), uj, stays)
        vi = splat(1.0) / (leaves + stays)
        av = vi * load(aw, 16 * i)
        store(v, 16 * i, vi)
        store(leaving, 16 * i, leaves * av)
        for j in range(K):
            store(s, 16 * j, load(s, 16 * j) + load(G, 16 * (i * K + j)) * av)


@exact
def lane_eliminate(G: F32, n: int, K: int, aw: F32, best: F32, u: F32, v: F32, ridge: F32, P: F32, W: F32,
                   inv: F32) -> None:  # fmt: skip
    """p in P (with its best entries), and L = diag - W eliminated without subtractions: W, and 1 / pivots."""
    for i in range(n):
        at_best, vi = load(best, 16 * i), load(v, 16 * i)
        for j in range(K):
            g = choose(at_best == float(j), splat(1.0), load(G, 16 * (i * K + j)))
            store(P, 16 * (i * K + j), g * vi * load(u, 16 * j))
    for j in range(K):
        for k in range(j + 1, K):
            even, odd = splat(0.0), splat(0.0)
            for i in range(0, n - 1, 2):
                o = 16 * i * K
                even = even + load(P, o + 16 * j) * load(P, o + 16 * k) * load(aw, 16 * i)
                o += 16 * K
                odd = odd + load(P, o + 16 * j) * load(P, o + 16 * k) * load(aw, 16 * i + 16)
            if n % 2 == 1:
                o = 16 * (n - 1) * K
                even = even + load(P, o + 16 * j) * load(P, o + 16 * k) * load(aw, 16 * n - 16)
            store(W, 16 * (j * K + k), even + odd)
    for k in range(K - 1):
        pivot = load(ridge, 16 * k)
        for j in range(k + 1, K):
            pivot = pivot + load(W, 16 * (k * K + j))
        inverse = choose(pivot > _UNJOINED, splat(1.0) / pivot, splat(0.0))
        store(inv, 16 * k, inverse)
        for j in range(k + 1, K):
            f = load(W, 16 * (k * K + j)) * inverse
            for c in range(j + 1, K):
                o = 16 * (j * K + c)
                store(W, o, load(W, o) + load(W, 16 * (k * K + c)) * f)
    store(inv, 16 * K - 16, splat(0.0))


@exact
def lane_substitute(W: F32, K: int, inv: F32, z: F32, x: F32) -> None:
    """x = L^-1 z, zero at the last node; z is used up."""
    for k in range(K):
        zk = load(z, 16 * k) * load(inv, 16 * k)
        store(x, 16 * k, zk)
        for j in range(k + 1, K):
            store(z, 16 * j, load(z, 16 * j) + load(W, 16 * (k * K + j)) * zk)
    for k in range(K - 2, -1, -1):
        reached = splat(0.0)
        for j in range(k + 1, K):
            reached = reached + load(W, 16 * (k * K + j)) * load(x, 16 * j)
        store(x, 16 * k, load(x, 16 * k) + reached * load(inv, 16 * k))


@exact
def lane_excesses(aw: F32, best: F32, n: int, b: F32, K: int, excess: F32) -> None:
    over = splat64(0.0)
    for j in range(K):
        over = over + widen(load(b, 16 * j))
    for i in range(n):
        over = over - widen(load(aw, 16 * i))
    for j in range(K):
        bj = widen(load(b, 16 * j))
        lacks = bj - over * bj
        for i in range(n):
            lacks = lacks - widen(choose(load(best, 16 * i) == float(j), load(aw, 16 * i), splat(0.0)))
        close = larger(lacks, splat64(0.0) - lacks) > bj * _ROUNDING
        store(excess, 16 * j, narrow(choose(close, lacks, splat64(0.0))))


@exact
def lane_newton(G: F32, n: int, K: int, aw: F32, best: F32, b: F32, excess: F32, P: F32, W: F32, inv: F32, u: F32,
                v: F32, leaving: F32, s: F32, small: F32, error: F32) -> None:  # fmt: skip
    """``numba_rows_newton.newton``: a row that is done waits for the others. Scratch: ``small`` (5, K, 16)."""
    size = 16 * K
    base, direction, rho, ridge, z = (
        small[:size], small[size : 2 * size], small[2 * size : 3 * size], small[3 * size : 4 * size], small[4 * size :],
    )  # fmt: skip
    for j in range(0, size, 16):
        store(u, j, load(b, j))
        store(base, j, load(b, j))
        store(direction, j, splat(0.0))
    length, slope, before = splat(1.0), splat(np.inf), splat(np.inf)
    for step in range(_MOST_STEPS + 1):
        lane_scale(G, n, K, aw, best, u, v, leaving, s)
        errors, slope_here, flow = splat(0.0), splat(0.0), splat(0.0)
        for j in range(K):
            o = 16 * j
            arrives = load(u, o) * load(s, o)
            off = load(excess, o) - arrives
            for i in range(n):
                off = off + choose(load(best, 16 * i) == float(j), load(leaving, 16 * i), splat(0.0))
            store(rho, o, off)
            store(z, o, off)
            errors = errors + size_of(off)
            slope_here = slope_here + off * load(direction, o)
            flow = flow + arrives
        store(error, 0, errors)
        away = errors > smaller(flow * _TOLERANCE_OF_FLOW, splat(_TOLERANCE))
        falls = (flow < _SOFT) & (errors > flow * _FLOOR) & (errors < before * _FALLS)
        working = away | falls
        if not any_lane(working) or step == _MOST_STEPS:
            return
        if step == 0:  # one step of Sinkhorn, which costs little
            for j in range(0, size, 16):
                get = load(b, j) - load(rho, j)
                store(u, j, load(u, j) * choose(working & (get > _TINY), load(b, j) / get, splat(1.0)))
                store(base, j, load(u, j))
            continue
        passed = working & (slope_here < slope * np.float32(-0.5))
        length = choose(passed, length * slope / (slope - slope_here), splat(1.0))
        if step == 1 or any_lane(working & (errors > before * _KEEP)):
            for j in range(0, size, 16):
                store(ridge, j, load(b, j) * flow * _RIDGE)
            lane_eliminate(G, n, K, aw, best, u, v, ridge, P, W, inv)
        before = errors
        lane_substitute(W, K, inv, z, z)
        centre, rises = splat(0.0), splat(0.0)
        for j in range(0, size, 16):
            centre = centre + load(z, j) * load(b, j)
        for j in range(0, size, 16):
            d = smaller(larger(load(z, j) - centre, splat(-_LARGEST_STEP)), splat(_LARGEST_STEP))
            store(z, j, d)
            rises = rises + d * load(rho, j)
        fresh_slope = splat(0.0)
        for j in range(0, size, 16):
            # Where Newton's step does not rise: roughly Sinkhorn's own, which does.
            bj = load(b, j)
            sinkhorn = choose(bj > 0.0, load(rho, j) / larger(bj, splat(_TINY)), splat(0.0))
            sinkhorn = smaller(larger(sinkhorn, splat(-_ONE)), splat(_ONE))
            d = choose(rises > 0.0, load(z, j), sinkhorn)
            fresh_slope = fresh_slope + d * load(rho, j)
            d = choose(passed, load(direction, j), choose(working, d, splat(0.0)))
            store(direction, j, d)
            point = choose(passed, load(base, j), load(u, j))
            store(base, j, point)
            store(u, j, choose(working, point * exp32(d * length), point))
        slope = choose(passed, slope, fresh_slope)


@exact
def lane_averages(G: F32, n: int, K: int, best: F32, u: F32, v: F32, phi: F32, y: F64, phi_0: F32, mean: F32,
                  cov: F32) -> None:  # fmt: skip
    """``numba_rows_read.covariances``: phi at the best target, E_i phi less that, and Cov_i(phi, y)."""
    for i in range(n):
        at_best = load(best, 16 * i)
        p0, y0 = splat(0.0), splat(0.0)
        for j in range(K):
            here = at_best == float(j)
            p0, y0 = choose(here, load(phi, 16 * j), p0), choose(here, narrow(load64(y, 16 * j)), y0)
        means, means_y, products = splat(0.0), splat(0.0), splat(0.0)
        for j in range(K):
            p = load(G, 16 * (i * K + j)) * load(u, 16 * j)
            dy = narrow(load64(y, 16 * j)) - y0
            weighted = p * (load(phi, 16 * j) - p0)
            means, means_y, products = means + weighted, means_y + p * dy, products + weighted * dy
        vi = load(v, 16 * i)
        means = means * vi
        store(phi_0, 16 * i, p0)
        store(mean, 16 * i, means)
        store(cov, 16 * i, products * vi - means * means_y * vi)


@exact
def lane_tensions(G: F32, n: int, K: int, best: F32, u: F32, v: F32, w: F32, phi: F32, phi_0: F32, mean: F32,
                  t: F32) -> None:  # fmt: skip
    """t_j = sum_i w_i p_ij (phi_j - E_i phi)."""
    for j in range(K):
        uj, pj, sums = load(u, 16 * j), load(phi, 16 * j), splat(0.0)
        for i in range(n):
            g = choose(load(best, 16 * i) == float(j), splat(1.0), load(G, 16 * (i * K + j)))
            off = (pj - load(phi_0, 16 * i)) - load(mean, 16 * i)
            sums = sums + g * (load(w, 16 * i) * load(v, 16 * i)) * off
        store(t, 16 * j, sums * uj)
