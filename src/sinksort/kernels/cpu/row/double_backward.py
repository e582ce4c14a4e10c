"""The way back in double precision, for the rare row whose gradient is small because large parts of it cancel.

A value alone between two targets is divided between them as their weights demand, wherever it stands. When the plan is
stiff like that everywhere (small eps, weights that are no multiples of each other), w_i Cov_i(phi, y) and
a_i Cov_i(lambda, y) are equal but for what little the others add, and in single precision that is rounding.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F32, F64, I64, copied, larger, size_of
from ..engine.vectors import highest, load, splat, splat64, store, total64, widen

_ROUNDING = np.float32(1e-6)
_RIDGE, _CUT = 1e-22, 60.0  #: as in single precision, but with its digits
_STEPS, _CLOSE = 8, 1e-6  #: of Newton, and when the last of them is small enough
CANCELLED = np.float32(0.13)  #: a gradient smaller than this share of its parts has lost too many digits
#: The same of sorts, of which a value and the average that it is part of cancel, but also reach the answer directly.
CANCELLED_OF_SORTS = np.float32(1e-3)


@jit
def double_backward(at: F64, aw: F32, n: int, w: F32, y: F64, b: F64, h: F64, u: F32, phi: F32, K: int, eps: float,
            out: F32) -> None:  # fmt: skip
    """The cotangent of x~ from w, by the formulas of ``contract``; values in any order, each with a band of targets.

    The scalings u are only known to single precision: Newton's method first goes on from there.
    """
    G, P, W = np.empty((n, K)), np.empty((n, K)), np.empty((K, K))  # G and P only within the bands
    of_values, of_targets = np.empty((4, n)), np.zeros((5, K))  # few rooms, as each takes its time
    where, ends = np.empty((3, n), np.int64), np.zeros(K, np.int64)
    best, low, high = where[0], where[1], where[2]
    mean, cov, cov_2, a = of_values[0], of_values[1], of_values[2], of_values[3]
    x, inv, levels, scaling, weights = of_targets[0], of_targets[1], of_targets[2], of_targets[3], of_targets[4]
    copied(phi, levels)
    copied(u, scaling)
    copied(aw, a)
    copied(b, weights)
    a /= a.sum()
    weights /= weights.sum()
    _bands(at, n, y, h, scaling, K, eps, G, best, low, high, ends)
    for _ in range(_STEPS):
        flow = _conditional(G, a, n, scaling, best, low, high, P)
        _eliminate(P, a, low, high, ends, n, K, weights, flow, W, inv)
        copied(weights, x)
        for i in range(n):
            for j in range(low[i], high[i]):
                x[j] -= a[i] * P[i, j]
        _substitute(W, ends, K, inv, x)
        centre, largest = 0.0, 0.0
        for j in range(K):
            centre += x[j] * weights[j]
        for j in range(K):
            largest = max(largest, abs(x[j] - centre))
            scaling[j] *= math.exp(min(max(x[j] - centre, -1.0), 1.0))
        if largest < _CLOSE:
            break
    flow = _conditional(G, a, n, scaling, best, low, high, P)
    _averages(P, best, low, high, n, levels, y, mean, cov)
    _eliminate(P, a, low, high, ends, n, K, weights, flow, W, inv)
    x[:] = 0.0
    for i in range(n):
        for j in range(low[i], high[i]):
            x[j] += w[i] * P[i, j] * ((levels[j] - levels[best[i]]) - mean[i])
    _substitute(W, ends, K, inv, x)
    _averages(P, best, low, high, n, x, y, mean, cov_2)
    for i in range(n):
        out[i] = (w[i] * cov[i] - a[i] * cov_2[i]) * (2.0 / eps)


@jit_no_refcount
def _eliminate(P: F64, a: F64, low: I64, high: I64, ends: I64, n: int, K: int, b: F64, flow: float, W: F64,
               inv: F64) -> None:  # fmt: skip
    """The Laplacian of the plan, eliminated without subtractions; see ``row.newton.eliminate``."""
    W[:, :] = 0.0
    for i in range(n):
        for j in range(low[i], high[i]):
            for k in range(j + 1, high[i]):
                W[j, k] += a[i] * P[i, j] * P[i, k]
    for k in range(K - 1):
        pivot = b[k] * flow * _RIDGE
        for j in range(k + 1, ends[k]):
            pivot += W[k, j]
        inv[k] = 1.0 / pivot if pivot > 0.0 else 0.0
        for j in range(k + 1, ends[k]):
            for c in range(j + 1, ends[k]):
                W[j, c] += W[k, j] * inv[k] * W[k, c]
    inv[K - 1] = 0.0


@jit_no_refcount
def _substitute(W: F64, ends: I64, K: int, inv: F64, x: F64) -> None:
    for k in range(K):
        x[k] *= inv[k]
        for j in range(k + 1, ends[k]):
            x[j] += W[k, j] * x[k]
    for k in range(K - 2, -1, -1):
        for j in range(k + 1, ends[k]):
            x[k] += W[k, j] * inv[k] * x[j]


@jit_no_refcount
def _bands(at: F64, n: int, y: F64, h: F64, u: F64, K: int, eps: float, G: F64, best: I64, low: I64, high: I64,
           ends: I64) -> None:  # fmt: skip
    """The best target of each value, its band, the plan there but for its scalings, and how far targets share values.

    What scalings change is no matter of exponentials, which take most of the time: they are taken once.
    """
    ends[:] = 0
    for i in range(n):
        t, r = 2.0 * at[i] / eps, -np.inf
        for j in range(K):
            if t * y[j] - h[j] > r and u[j] > 0.0:
                best[i], r = j, t * y[j] - h[j]
        low[i], high[i] = best[i], best[i] + 1
        while low[i] > 0 and r - (t * y[low[i] - 1] - h[low[i] - 1]) < _CUT:
            low[i] -= 1
        while high[i] < K and r - (t * y[high[i]] - h[high[i]]) < _CUT:
            high[i] += 1
        for j in range(low[i], high[i]):
            G[i, j] = math.exp(t * y[j] - h[j] - r)
            ends[j] = max(ends[j], high[i])
    for j in range(1, K):
        ends[j] = max(ends[j], ends[j - 1])


@jit_no_refcount
def _conditional(G: F64, a: F64, n: int, u: F64, best: I64, low: I64, high: I64, P: F64) -> float:
    """p_ij; returns what is not at the best target of its value."""
    flow = 0.0
    for i in range(n):
        others = 0.0
        for j in range(low[i], high[i]):
            P[i, j] = u[j] * G[i, j]
            others += P[i, j] if j != best[i] else 0.0
        whole = others + u[best[i]]
        flow += a[i] * others / whole
        for j in range(low[i], high[i]):
            P[i, j] /= whole
    return flow


@jit_no_refcount
def _averages(P: F64, best: I64, low: I64, high: I64, n: int, phi: F64, y: F64, mean: F64, cov: F64) -> None:
    """E_i phi less phi at the best target of i, and Cov_i(phi, y)."""
    for i in range(n):
        phi_0, y_0 = phi[best[i]], y[best[i]]
        s, s_y, s_both = 0.0, 0.0, 0.0
        for j in range(low[i], high[i]):
            s += P[i, j] * (phi[j] - phi_0)
            s_y += P[i, j] * (y[j] - y_0)
            s_both += P[i, j] * (phi[j] - phi_0) * (y[j] - y_0)
        mean[i], cov[i] = s, s_both - s * s_y


@jit
def balanced(w: F32, aw: F32, n: int, out: F32) -> None:
    """w less a multiple of a, which changes no gradient: what all values get together is fixed. Zero behind the row."""
    copied(w, out[:n])
    out[n:] = 0.0
    N = (n + 15) // 16 * 16
    whole, weight = splat64(0.0), splat64(0.0)
    for i in range(0, N, 16):
        whole, weight = whole + widen(load(out, i)), weight + widen(load(aw, i))
    share, most, left = np.float32(total64(whole) / total64(weight)), splat(0.0), splat(0.0)
    for i in range(0, N, 16):
        given = load(out, i)
        rest = given - load(aw, i) * share
        most, left = larger(most, size_of(given)), larger(left, size_of(rest))
        store(out, i, rest)
    if highest(left) < _ROUNDING * highest(most):
        out[:N] = 0.0


@jit
def along_places(w: F32, aw: F32, cov: F32, cov_2: F32, N: int, eps: float, least: float, out: F32) -> bool:
    """The cotangent of x~, (2 / eps) (w cov - a cov_2); returns whether less than a share ``least`` is left."""
    parts, whole, per_eps = splat(0.0), splat(0.0), np.float32(2.0 / eps)
    for i in range(0, N, 16):
        part = load(w, i) * load(cov, i)
        along = part - load(aw, i) * load(cov_2, i)
        parts, whole = larger(parts, size_of(part)), larger(whole, size_of(along))
        store(out, i, along * per_eps)
    cancelled: bool = highest(whole) < np.float32(least) * highest(parts)
    return cancelled
