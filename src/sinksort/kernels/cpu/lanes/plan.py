"""Rows too short to fill vectors of their own, sixteen rows at a time: lane l of every vector belongs to row l.

The same mathematics as row by row (see ``row.newton`` and ``row.read``), without its blocks and
bands: plans are full matrices, and each entry of one is a vector. Entry (i, j) of a plan is at [16 (i K + j)], value i
at [16 i]; ``numbers`` are 0.0 to K - 1.0. Here: places, the fixed matrix, and what is read of a plan; its scalings are
found in ``lanes.newton``.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.compile import jit_no_refcount
from ..engine.maths import F32, F64, larger, power_of_two, sigmoid64, smaller
from ..engine.staircase import SAME_MASS_SINGLE
from ..engine.vectors import load, load64, narrow, root, select, splat, splat64, store, store64, widen

MOST_IN_LANES = 20  #: values and targets up to which rows are worked on in lanes

_ARCTAN, _NO_SQUASH = 1, 2


@jit_no_refcount
def lane_places(xs: F32, aw: F32, n: int, squash: int, low: F64, high: F64, at: F64, moments: F64) -> None:
    """``engine.maths.places`` in lanes; mean, scale, weight and spread go to ``moments``."""
    none, zero = splat(0.0), splat64(0.0)
    weight, moment, squares = zero, zero, zero
    top, bottom = splat(-np.inf), splat(np.inf)
    for i in range(0, 16 * n, 16):
        x, a = load(xs, i), load(aw, i)
        inside = (x > -np.inf) & (x < np.inf)
        a64 = widen(select(inside, a, none))
        weight = weight + a64
        moment = moment + a64 * widen(select(inside, x, none))
        if squash != _NO_SQUASH:
            inside = inside & (a > 0.0)
        top = select(inside & (x > top), x, top)
        bottom = select(inside & (x < bottom), x, bottom)
    if squash == _NO_SQUASH:
        ceiling, floor = larger(widen(top), load64(high, 0)), smaller(widen(bottom), load64(low, 0))
        for i in range(0, 16 * n, 16):
            x64 = widen(load(xs, i))
            x64 = select(x64 < np.inf, x64, ceiling)
            store64(at, i, select(x64 > -np.inf, x64, floor))
        store64(moments, 0, zero)
        store64(moments, 16, splat64(1.0))
        store64(moments, 32, weight)
        store64(moments, 48, zero)
        return
    counted = top >= bottom  # something finite has weight
    mean = select(counted, moment / weight, zero)
    for i in range(0, 16 * n, 16):
        x, a = load(xs, i), load(aw, i)
        inside = (x > -np.inf) & (x < np.inf)
        centred = widen(select(inside, x, none)) - mean
        squares = squares + widen(select(inside, a, none)) * centred * centred
    variance = squares / weight
    spreads = (top > bottom) & (variance > 0.0)
    top64, bottom64 = widen(top), widen(bottom)
    size = larger(larger(top64, zero - top64), larger(bottom64, zero - bottom64))
    flat = select(size > 0.0, splat64(1.0) / size, splat64(1.0))
    flat = select(counted, select(top > bottom, splat64(2.0) / (top64 - bottom64), flat), splat64(1.0))
    scale = select(spreads, splat64(1.0) / root(variance), flat)
    mean = select(spreads, mean, select(counted, (top64 + bottom64) * 0.5, zero))
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
    store64(moments, 48, select(spreads, splat64(1.0), zero))


@jit_no_refcount
def lane_places_backward(xs: F32, aw: F32, at: F64, n: int, squash: int, moments: F64, units: F64, g: F32) -> None:
    """``engine.maths.places_backward`` in lanes."""
    none = splat64(0.0)
    mean, scale, weight, spreads = load64(moments, 0), load64(moments, 16), load64(moments, 32), load64(moments, 48)
    unit = load64(units, 0)
    if squash == _NO_SQUASH:
        for i in range(0, 16 * n, 16):
            x = load(xs, i)
            of_x = narrow(widen(load(g, i)) * unit)
            store(g, i, select((x > -np.inf) & (x < np.inf), of_x, splat(0.0)))
        return
    sums, with_z = none, none
    for i in range(0, 16 * n, 16):
        x = load(xs, i)
        inside = (x > -np.inf) & (x < np.inf)
        z = (widen(select(inside, x, splat(0.0))) - mean) * scale
        s = load64(at, i)
        slope = splat64(1.0 / math.pi) / (z * z + 1.0) if squash == _ARCTAN else s * (splat64(1.0) - s)
        of_z = select(inside, widen(load(g, i)) * slope, none)
        store(g, i, narrow(of_z))
        sums = sums + of_z
        with_z = with_z + of_z * select(inside, z, none)
    share = select(weight > 0.0, splat64(1.0) / weight, none)
    sums, with_z = sums * share, with_z * share * spreads
    for i in range(0, 16 * n, 16):
        x = load(xs, i)
        inside = (x > -np.inf) & (x < np.inf)
        z = (widen(select(inside, x, splat(0.0))) - mean) * scale
        of_x = (widen(load(g, i)) - widen(load(aw, i)) * (z * with_z + sums)) * (scale * unit)
        store(g, i, narrow(select(inside, of_x, none)))


@jit_no_refcount
def lane_thresholds(at: F64, aw: F32, n: int, b: F32, K: int, sorted_at: F64, cumulative: F64, high: F32,
                    low: F32) -> None:  # fmt: skip
    """Where the hard sort passes from target j to the next, high_j + low_j, as ``row.newton.staircase`` has it.

    Places and weights are sorted by exchanges; the threshold is the source in which the cumulative weights of the
    targets pass from one to the other, or the middle of the two between which they do. Of two targets of which one
    weighs nothing, that one is beyond all sources, those without weight as well: they all go to the other, exactly.
    """
    for i in range(0, 16 * n, 16):
        value, weight = load64(at, i), widen(load(aw, i))
        for k in range(i, 0, -16):  # insertion: what is larger moves up
            other, its = load64(sorted_at, k - 16), load64(cumulative, k - 16)
            up = other > value
            store64(sorted_at, k, select(up, other, value))
            store64(cumulative, k, select(up, its, weight))
            value, weight = select(up, value, other), select(up, weight, its)
        store64(sorted_at, 0, value)
        store64(cumulative, 0, weight)
    for i in range(16, 16 * n, 16):
        store64(cumulative, i, load64(cumulative, i) + load64(cumulative, i - 16))
    boundary = splat64(0.0)
    for j in range(0, 16 * K - 16, 16):
        boundary = boundary + widen(load(b, j))
        before, after = load64(sorted_at, 16 * n - 16), load64(sorted_at, 16 * n - 16)
        for i in range(16 * n - 32, -1, -16):
            here, reached = load64(sorted_at, i), load64(cumulative, i)
            before = select(reached >= boundary - SAME_MASS_SINGLE, here, before)
            after = select(reached > boundary + SAME_MASS_SINGLE, here, after)
        threshold = (before + after) * 0.5
        if K == 2:
            lower, upper = widen(load(b, 0)), widen(load(b, 16))
            threshold = select(lower > 0.0, threshold, load64(sorted_at, 0) - 1.0)
            threshold = select(upper > 0.0, threshold, load64(sorted_at, 16 * n - 16) + 1.0)
        rounded = narrow(threshold)
        store(high, j, rounded)
        store(low, j, narrow(threshold - widen(rounded)))


@jit_no_refcount
def lane_gibbs(at: F64, n: int, K: int, high: F32, low: F32, per_place: F32, numbers: F32, rises: F32, best: F32,
               G: F32) -> None:  # fmt: skip
    """The best target of each source, as a number, and G without the ones there.

    From target j to the next, t_i y_j - h_j rises by (x~_i - threshold_j) 2 (y_j+1 - y_j) / eps; all but the first
    factor, over log 2, is ``per_place``. The best target is behind the last rise, and M the sum of the rises from j up
    to there, or of the falls from there down to j. Nothing cancels but in that first factor, so for all else single
    precision will do. First all sums, then all powers: these would wait for the sums of their source, but not for those
    of others. Scratch: ``rises`` (n, K, 16).
    """
    zero = splat(0.0)
    for i in range(n):
        place, o = load64(at, 16 * i), 16 * i * K
        x_high = narrow(place)
        x_low = narrow(place - widen(x_high))
        cost, at_best = zero, zero
        store(G, o + 16 * K - 16, zero)
        store(rises, o + 16 * K - 16, zero)
        for j in range(K - 2, -1, -1):
            rise = ((x_high - load(high, 16 * j)) + (x_low - load(low, 16 * j))) * load(per_place, 16 * j)
            cost = cost + larger(rise, zero)
            at_best = select(rise > 0.0, larger(at_best, splat(numbers[j + 1])), at_best)
            store(rises, o + 16 * j, rise)
            store(G, o + 16 * j, cost)
        store(best, 16 * i, at_best)
    for i in range(n):
        at_best, cost = load(best, 16 * i), zero
        for j in range(K):
            o = 16 * (i * K + j)
            g = power_of_two(cost - load(G, o))
            store(G, o, select(at_best == numbers[j], zero, g))
            cost = cost + smaller(load(rises, o), zero)


@jit_no_refcount
def lane_rows(G: F32, n: int, K: int, aw: F32, best: F32, numbers: F32, u: F32, v: F32, av: F32,
              leaving: F32) -> None:  # fmt: skip
    """v, a v and what leaves each source's best target. Two sources at a time."""
    zero = splat(0.0)
    for i in range(0, n, 2):
        k = min(i + 1, n - 1)
        best_i, best_k = load(best, 16 * i), load(best, 16 * k)
        leaves_i, leaves_k, stays_i, stays_k = zero, zero, zero, zero
        for j in range(K):
            uj = load(u, 16 * j)
            leaves_i = leaves_i + load(G, 16 * (i * K + j)) * uj
            leaves_k = leaves_k + load(G, 16 * (k * K + j)) * uj
            stays_i = select(best_i == numbers[j], uj, stays_i)
            stays_k = select(best_k == numbers[j], uj, stays_k)
        vi, vk = splat(1.0) / (leaves_i + stays_i), splat(1.0) / (leaves_k + stays_k)
        av_i, av_k = vi * load(aw, 16 * i), vk * load(aw, 16 * k)
        store(v, 16 * i, vi)
        store(v, 16 * k, vk)
        store(av, 16 * i, av_i)
        store(av, 16 * k, av_k)
        store(leaving, 16 * i, leaves_i * av_i)
        store(leaving, 16 * k, leaves_k * av_k)


@jit_no_refcount
def lane_averages(G: F32, n: int, K: int, aw: F32, best: F32, numbers: F32, u: F32, v: F32, phi: F32, y: F32, P: F32,
                  Q: F32, phi_0: F32, mean: F32, y_mean: F32) -> None:  # fmt: skip
    """p and a p; phi at the best target, E_i phi less that, and E_i y."""
    for i in range(n):
        at_best, vi, a = load(best, 16 * i), load(v, 16 * i), load(aw, 16 * i)
        p0, y0 = splat(0.0), splat(0.0)
        for j in range(K):
            here = at_best == numbers[j]
            p0, y0 = select(here, load(phi, 16 * j), p0), select(here, load(y, 16 * j), y0)
        means, means_y = splat(0.0), splat(0.0)
        for j in range(K):
            o = 16 * (i * K + j)
            p = select(at_best == numbers[j], splat(1.0), load(G, o)) * (load(u, 16 * j) * vi)
            store(P, o, p)
            store(Q, o, p * a)
            means, means_y = means + p * (load(phi, 16 * j) - p0), means_y + p * (load(y, 16 * j) - y0)
        store(phi_0, 16 * i, p0)
        store(mean, 16 * i, means)
        store(y_mean, 16 * i, y0 + means_y)


@jit_no_refcount
def lane_tensions(P: F32, n: int, K: int, w: F32, phi: F32, phi_0: F32, mean: F32, t: F32) -> None:
    """t_j = sum_i w_i p_ij (phi_j - E_i phi)."""
    for j in range(0, K, 2):
        k = min(j + 1, K - 1)
        phi_j, phi_k, t_j, t_k = load(phi, 16 * j), load(phi, 16 * k), splat(0.0), splat(0.0)
        for i in range(0, 16 * n, 16):
            wi, p0, means = load(w, i), load(phi_0, i), load(mean, i)
            t_j = t_j + load(P, i * K + 16 * j) * (((phi_j - p0) - means) * wi)
            t_k = t_k + load(P, i * K + 16 * k) * (((phi_k - p0) - means) * wi)
        store(t, 16 * j, t_j)
        store(t, 16 * k, t_k)


@jit_no_refcount
def lane_covariances(P: F32, n: int, K: int, best: F32, numbers: F32, phi: F32, phi_0: F32, lam: F32, y: F32,
                     y_mean: F32, cov: F32, cov_2: F32) -> None:  # fmt: skip
    """Cov_i(phi, y) and Cov_i(lambda, y); both from their values at the best target, see ``row.read``."""
    for i in range(n):
        at_best, p0, lam_0, y_i = load(best, 16 * i), load(phi_0, 16 * i), splat(0.0), load(y_mean, 16 * i)
        for j in range(K):
            lam_0 = select(at_best == numbers[j], load(lam, 16 * j), lam_0)
        of_phi, of_lam = splat(0.0), splat(0.0)
        for j in range(K):
            p = load(P, 16 * (i * K + j)) * (load(y, 16 * j) - y_i)
            of_phi = of_phi + p * (load(phi, 16 * j) - p0)
            of_lam = of_lam + p * (load(lam, 16 * j) - lam_0)
        store(cov, 16 * i, of_phi)
        store(cov_2, 16 * i, of_lam)
