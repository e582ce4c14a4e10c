"""Rows that meet a few targets, read forwards and backwards. See ``thresholds.sums``."""

from __future__ import annotations

import numpy as np

from ..engine.compile import jit
from ..engine.maths import F32, F64, copied, places, places_backward, row_into
from ..engine.sources import padded
from ..engine.vectors import load, select, splat, store, total
from ..row.double_backward import CANCELLED, along_places, balanced, double_backward
from .sums import (
    AW,
    BEST,
    COV,
    COV_2,
    GIVEN,
    MEAN,
    READ,
    WEIGHT,
    XS,
    Row,
    V,
    carry,
    one_pass,
    row_for,
    threshold_gibbs,
    threshold_solve,
    threshold_solved,
)

_RIDGE = 1e-9
SIZE = 2 * (4 + 4 + 4)  #: of a state: h, u and the 4 numbers of ``places``, in float64


@jit
def row_ready(k: Row, x: F32, a: F32, y: F32, b: F64, n: int, K: int, steps: tuple[int, int, int, int, int], row: int,
              first: bool) -> bool:  # fmt: skip
    """A row, its weights and targets; False if it holds NaN."""
    if first or steps[0] > 0:
        for j in range(K):
            k.y[j], k.b[j] = y[row * steps[0] + j], b[row * steps[0] + j]
    if first or steps[4] > 0:
        for i in range(n):
            k.n32[AW, i] = a[row * n + i] if steps[4] > 0 else np.float32(1.0 / n)
    ready: bool = row_into(x, row * n, n, k.n32[XS])
    return ready


@jit
def save_thresholds(k: Row, moments: tuple[float, float, float, bool], state: F64) -> None:
    copied(k.h, state[:4])
    copied(k.u, state[4:8])
    state[8], state[9], state[10], state[11] = moments[0], moments[1], moments[2], 1.0 if moments[3] else 0.0


@jit
def threshold_averages(k: Row, n: int, K: int, phi: F64, mean: F32, cov: F32) -> None:
    """E_i phi less phi at the best target, and Cov_i(phi, y)."""
    N, G = padded(n), k.G
    for i in range(0, N, 16):
        at_best, vi = load(k.n32[BEST], i), load(k.n32[V], i)
        p0, y0 = splat(phi[0]), splat(k.y[0])
        for j in range(1, K):
            here = at_best == float(j)
            p0, y0 = select(here, splat(phi[j]), p0), select(here, splat(k.y[j]), y0)
        s, s_y, s_both = splat(0.0), splat(0.0), splat(0.0)
        for j in range(K):
            p = load(G, j * N + i) * (vi * k.u[j])
            dy, weighted = splat(k.y[j]) - y0, p * (splat(phi[j]) - p0)
            s, s_y, s_both = s + weighted, s_y + p * dy, s_both + weighted * dy
        store(mean, i, s)
        store(cov, i, s_both - s * s_y)


@jit
def threshold_right_sides(k: Row, n: int, K: int, w: F32, t: F64) -> None:
    """t_j = sum_i w_i p_ij (phi_j - E_i phi)."""
    N, G = padded(n), k.G
    for j in range(K):
        sums = splat(0.0)
        for i in range(0, N, 16):
            at_best = load(k.n32[BEST], i)
            off = splat(0.0) - load(k.n32[MEAN], i)
            for m in range(K):
                if m != j:
                    off = off + select(at_best == float(m), splat(k.phi[j] - k.phi[m]), splat(0.0))
            g = select(at_best == float(j), splat(1.0), load(G, j * N + i))
            sums = sums + g * (load(w, i) * load(k.n32[V], i)) * off
        t[j] = float(total(sums)) * k.u[j]


@jit
def threshold_pulled(k: Row, n: int, K: int, out: F32) -> None:
    """E_i phi."""
    N = padded(n)
    for i in range(0, N, 16):
        at_best, vi, sums = load(k.n32[BEST], i), load(k.n32[V], i), splat(0.0)
        for j in range(K):
            g = select(at_best == float(j), splat(1.0), load(k.G, j * N + i))
            sums = sums + g * (vi * (k.u[j] * k.phi[j]))
        store(out, i, sums)


@jit
def pull_thresholds(start: int, stop: int, x: F32, a: F32, y: F32, b: F64, rounding: float, phi: F32, eps: F32,
             n: int, K: int,
             squash: int, steps: tuple[int, int, int, int, int], out: F32, state32: F32,
             errors: F32) -> None:  # fmt: skip
    """Rows start to stop; see ``row.solve.pull_rows`` for the arguments."""
    k, state64, size = row_for(n), state32.view(np.float64), SIZE // 2
    for row in range(start, stop):
        if not row_ready(k, x, a, y, b, n, K, steps, row, row == start):
            out[row * n : row * n + n] = np.nan
            state64[row * size + 10], errors[row] = np.nan, 0.0
            continue
        for j in range(K):
            k.phi[j] = phi[row * steps[1] + j]
        moments = places(k.n32[XS], k.n32[AW], squash, k.y[0], k.y[K - 1], k.at)
        errors[row] = threshold_solved(k, n, K, np.float64(eps[row * steps[3]]), rounding)
        threshold_pulled(k, n, K, k.n32[READ])
        copied(k.n32[READ], out[row * n : row * n + n])
        save_thresholds(k, moments, state64[row * size :])


@jit
def push_thresholds(start: int, stop: int, x: F32, a: F32, y: F32, b: F64, rounding: float, eps: F32, n: int, K: int,
             squash: int, steps: tuple[int, int, int, int, int], out: F32, state32: F32,
             errors: F32) -> None:  # fmt: skip
    """As ``row.solve.push_rows``."""
    k, state64, size = row_for(n), state32.view(np.float64), SIZE // 2
    N = padded(n)
    for row in range(start, stop):
        if not row_ready(k, x, a, y, b, n, K, steps, row, row == start):
            out[row * K : row * K + K] = np.nan
            state64[row * size + 10], errors[row] = np.nan, 0.0
            continue
        moments = places(k.n32[XS], k.n32[AW], squash, k.y[0], k.y[K - 1], k.at)
        errors[row] = threshold_solved(k, n, K, np.float64(eps[row * steps[3]]), rounding)
        if carry(k.n32[XS], k.n32[AW], n, moments[0], moments[1], k.n32[WEIGHT]) != 0.0:
            errors[row] = np.inf  # averages of infinite values are for the reference
        for j in range(K):
            sums, shares = splat(0.0), splat(0.0)
            for i in range(0, N, 16):
                g = select(load(k.n32[BEST], i) == float(j), splat(1.0), load(k.G, j * N + i)) * load(k.n32[V], i)
                sums, shares = sums + g * load(k.n32[WEIGHT], i), shares + g * load(k.n32[AW], i)
            share = float(total(shares))
            out[row * K + j] = moments[0] + (float(total(sums)) / share if share > 0.0 else 0.0) / moments[1]
        save_thresholds(k, moments, state64[row * size :])


@jit
def threshold_backward(start: int, stop: int, x: F32, a: F32, y: F32, b: F64, phi: F32, eps: F32, n: int, K: int,
                 squash: int, push: bool, steps: tuple[int, int, int, int, int], w: F32, grad: F32,
                 state32: F32) -> None:  # fmt: skip
    """As ``row.solve.rows_backward``."""
    k, state64, size, N = row_for(n), state32.view(np.float64), SIZE // 2, padded(n)
    xs, aw, weight, cov, cov_2, mean = k.n32[XS], k.n32[AW], k.n32[WEIGHT], k.n32[COV], k.n32[COV_2], k.n32[MEAN]
    lam, u32 = np.zeros(4), np.zeros(4, np.float32)
    for row in range(start, stop):
        state, answer = state64[row * size : (row + 1) * size], grad[row * n : row * n + n]
        if not row_ready(k, x, a, y, b, n, K, steps, row, row == start) or np.isnan(state[10]):
            answer[:] = np.nan
            continue
        e = np.float64(eps[row * steps[3]])
        copied(state, k.h)
        copied(state[4:], k.u)
        places(xs, aw, squash, k.y[0], k.y[K - 1], k.at)
        for j in range(K):
            k.phi[j] = phi[row * steps[1] + j]
            if push:
                k.phi[j] = k.phi[j] / k.b[j] if k.b[j] > 0.0 else 0.0
        if push:
            carry(xs, aw, n, state[8], state[9], weight)
        else:
            balanced(w[row * n : row * n + n], aw, n, weight)
        threshold_gibbs(k, n, K, e)
        flow = one_pass(k, n, K)
        threshold_averages(k, n, K, k.phi, mean, cov)
        threshold_right_sides(k, n, K, weight, lam)
        if push:
            threshold_pulled(k, n, K, k.n32[GIVEN])
        threshold_solve(k.W, K, _RIDGE * flow, k.b, lam)
        threshold_averages(k, n, K, lam, mean, cov_2)
        cancelled = along_places(weight, aw, cov, cov_2, N, e, CANCELLED, cov)
        if cancelled:
            copied(k.u, u32)
            double_backward(k.at, aw, n, weight, k.y, k.b, k.h, u32, k.phi.astype(np.float32), K, e, cov)
        cov[n:] = 0.0
        unit = 1.0 / state[9] if push else 1.0
        places_backward(xs, aw, k.at, squash, state[8], state[9], state[10], state[11] > 0.0, unit, cov)
        copied(cov, answer)
        if push:
            for i in range(n):
                answer[i] += aw[i] * k.n32[GIVEN, i]
