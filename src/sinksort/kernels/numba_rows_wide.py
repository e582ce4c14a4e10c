"""One row at a time, sixteen sources at a time: place, solve, read, and the way back.

The state of a row holds what the backward pass cannot make again cheaply: the order of its values, h, u, and the
eliminated Laplacian of the last Newton step, which gives lambda after a step or two of refinement.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .numba_maths import F32, F64, I32, I64, places, places_backward, row_into
from .numba_rows_newton import band, edges, eliminate, gibbs, newton, scale, staircase, substitute
from .numba_rows_read import at_best, covariances, pulled, tensions
from .numba_rows_sources import (
    cells_for,
    hats,
    interpolate,
    lay_grid,
    locate,
    occupied_nodes,
    padded,
    polynomials,
    remainder,
    sort_places,
    spread,
)
from .numba_simd import choose, load, root, splat, store, total

_LARGEST_LOGIT = 1e9  #: beyond this float64 does not resolve what small differences of places mean
_ACCEPTED = 5e-6
_REFINED = 5e-5  #: what lambda may leave of t
_SAVED = 128  #: up to so many targets the eliminated Laplacian is part of the state


class Work(NamedTuple):
    """Scratch of a thread. Sources: N of them, in order; targets: K, padded to ``stride``."""

    xs: F32  #: (n) values and weights of the row as it came, padded
    aw: F32
    at: F64  #: (n) their places
    read: F32  #: (n)
    cell: I32  #: (n) on a grid, and how far in the cell
    within: F32
    in_cells: F32
    count: I64
    place: F64  #: (N) of the sources, and their weights
    mass: F32
    root_mass: F32
    occupied: F32
    t: F64
    r: F64
    best: I64
    glo: I64
    ghi: I64
    v: F32
    av: F32
    w: F32
    y_0: F32
    phi_0: F32
    mean: F32
    cov: F32
    cov_2: F32
    y: F64  #: (K)
    y32: F32
    b64: F64
    b: F32
    phi: F32
    last: F32
    h: F64
    lo: I64
    hi: I64
    ends: I64
    u: F32
    s: F32
    inv: F32
    ridge: F32
    lam: F32
    z: F32
    tension: F32
    small: F32  #: (9, K)
    parts: F32  #: (K, 16)
    G: F32  #: (K, N)
    Q: F32
    W: F32  #: (K, K)


@njit(nogil=True, cache=True)
def workspace(n: int, K: int) -> Work:
    N, stride = padded(n), padded(K)

    def f32(count: int) -> F32:
        return np.empty(count, np.float32)

    def f64(count: int) -> F64:
        return np.empty(count, np.float64)

    def i64(count: int) -> I64:
        return np.empty(count, np.int64)

    return Work(
        f32(N), np.zeros(N, np.float32), f64(N), f32(N), np.empty(N, np.int32), f32(N), f32(4 * N), i64(N + 1),
        f64(N), f32(N), f32(N), f32(N), f64(N), f64(N), i64(N), i64(N), i64(N),
        f32(N), f32(N), f32(N), f32(N), f32(N), f32(N), f32(N), f32(N),
        f64(stride), np.zeros(stride, np.float32), f64(stride), f32(stride), np.zeros(stride, np.float32),
        np.zeros(6 * stride, np.float32), f64(stride), i64(stride), i64(stride), i64(stride),
        f32(stride), f32(stride), f32(stride), np.zeros(stride, np.float32), f32(stride), f32(stride), f32(stride),
        f32(9 * stride), np.zeros(16 * stride, np.float32), f32(stride * N), f32(stride * N), f32(stride * stride),
    )  # fmt: skip


@njit(nogil=True, cache=True)
def state_parts(n: int, K: int) -> tuple[int, int, int, int]:
    """Where a state has its float64 (h, 4 moments), float32 (u, 1/pivots, W) and int32 (cells, order); and its size.

    Each in units of its type, the size in float32.
    """
    stride = padded(K)
    wide = stride + 4
    single = 2 * stride + (0 if K > _SAVED else (K + 3) // 4 * 4 * stride)
    return 0, 2 * wide, 2 * wide + single, (2 * wide + single + 1 + n + 1) // 2 * 2


@njit(nogil=True, cache=True)
def targets_into(k: Work, y: F32, b: F32, first: int, K: int) -> None:
    k.y[:], k.b64[:], k.b[:], k.y32[:] = 0.0, 0.0, 0.0, 0.0
    for j in range(K):
        k.y[j], k.b64[j] = y[first + j], b[first + j]
        k.y32[j], k.b[j] = y[first + j], b[first + j]


@njit(nogil=True, cache=True)
def weights_into(k: Work, a: F32, first: int, n: int, weighted: bool) -> None:
    for i in range(n):
        k.aw[i] = a[first + i] if weighted else np.float32(1.0 / n)


@njit(nogil=True, cache=True)
def sources_into(k: Work, n: int, cells: int, low: float, high: float, order: I32) -> int:
    """The sources of a row: its values in order, or the nodes of a grid of so many cells. Returns how many."""
    if cells > 0:
        N = cells + 3
        lay_grid(low, high, cells, k.place)
        locate(k.at, n, low, high, cells, k.cell, k.within)
        spread(k.aw, n, cells, k.cell, k.within, k.in_cells, k.mass[:N])
        hats(k.in_cells, cells, k.root_mass[:N])
        occupied_nodes(n, k.cell, k.occupied[:N])
        return N
    N = padded(n)
    sort_places(k.at, n, low, high, order, k.count, k.place)
    k.mass[n:], k.occupied[:] = 0.0, 1.0
    for i in range(n):
        k.mass[i] = k.aw[order[i]]
    k.root_mass[:] = k.mass
    return N


@njit(nogil=True, cache=True)
def roots(root_mass: F32, N: int) -> None:
    for i in range(0, N, 16):
        store(root_mass, i, root(load(root_mass, i)))


@njit(nogil=True, cache=True)
def solved(k: Work, n: int, K: int, eps: float, cells: int, low: float, high: float, order: I32, W: F32) -> float:
    """Solves the plan of a row whose places are in ``k.at``; returns its marginal error."""
    stride = padded(K)
    N = sources_into(k, n, cells, low, high, order)
    staircase(k.place, k.root_mass, N if cells > 0 else n, k.y, k.b64, K, eps, k.h)
    roots(k.root_mass, N)
    band(k.place, N, k.y, k.h, K, eps, k.t, k.r, k.best, k.lo, k.hi, k.glo, k.ghi, k.ends)
    gibbs(k.t, k.r, N, k.y, k.h, K, k.lo, k.hi, k.G)
    error, _, _ = newton(
        k.G, N, K, k.mass, k.root_mass, k.b, k.lo, k.hi, k.glo, k.ghi, stride, k.Q, W, k.ends, k.inv, k.u, k.v, k.av,
        k.parts, k.s, k.small,
    )  # fmt: skip
    if not max(abs(k.t[0]), abs(k.t[N - 1])) < _LARGEST_LOGIT or not error < np.inf:
        return np.inf
    return error


@njit(nogil=True, cache=True)
def pull_rows(x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, eps: F32, n: int, K: int, lasts: int, squash: int,
              weighted: bool, steps: tuple[int, int, int, int], out: F32, state64: F64, state32: F32, state_int: I32,
              errors: F32, start: int, stop: int) -> None:  # fmt: skip
    """Rows start to stop. All arrays are flat; ``steps``: from row to row of y and b, of phi, of last, of eps."""
    stride = padded(K)
    _, at32, at_int, size = state_parts(n, K)
    k = workspace(n, K)
    for row in range(start, stop):
        o32, o64 = row * size + at32, row * size // 2
        if not row_into(x, row * n, n, k.xs):
            out[row * n : row * n + n] = np.nan
            state64[o64 + stride + 2], errors[row] = np.nan, 0.0
            continue
        if row == start or steps[0] > 0:
            targets_into(k, y, b, row * steps[0], K)
        if row == start or steps[1] > 0:
            k.phi[:K] = phi[row * steps[1] : row * steps[1] + K]
        if (row == start or steps[2] > 0) and lasts > 0:
            for j in range(lasts):
                k.last[j * stride : j * stride + K] = last[row * steps[2] + j * K : row * steps[2] + (j + 1) * K]
        if row == start or weighted:
            weights_into(k, a, row * n, n, weighted)
        e = float(eps[row * steps[3]])
        mean, per_unit, weight, spreads = places(k.xs, k.aw, squash, k.y[0], k.y[K - 1], k.at)
        W = k.W if K > _SAVED else state32[o32 + 2 * stride : o32 + size]
        order = state_int[row * size + at_int + 1 : row * size + size]
        span = float(abs(k.phi[K - 1] - k.phi[0]))
        cells, low, high = cells_for(k.at, n, e) if K > 8 else (0, k.at[0], k.at[0])
        if cells > 0:
            error = solved(k, n, K, e, cells, low, high, order, W)
            rule = pulled(k.G, cells + 3, k.u, k.v, k.phi, k.last, lasts, stride, k.glo, k.ghi, k.occupied, k.small, k.w)
            error = max(error, 3.0 * remainder(k.w, cells, k.occupied) / span)
            if error <= _ACCEPTED:
                polynomials(k.w, cells, k.in_cells)
                interpolate(k.in_cells, n, k.cell, k.within, out[row * n : row * n + n])
            else:
                cells = 0
        if cells == 0:
            _, low, high = cells_for(k.at, n, e)
            error = solved(k, n, K, e, 0, low, high, order, W)
            rule = pulled(k.G, padded(n), k.u, k.v, k.phi, k.last, lasts, stride, k.glo, k.ghi, k.occupied, k.small, k.w)
            for i in range(n):
                out[row * n + order[i]] = k.w[i]
        errors[row] = max(error, rule) if rule < np.inf else np.inf
        state_int[row * size + at_int] = cells
        state64[o64 : o64 + K] = k.h[:K]
        state64[o64 + stride], state64[o64 + stride + 1] = mean, per_unit
        state64[o64 + stride + 2], state64[o64 + stride + 3] = weight, 1.0 if spreads else 0.0
        state32[o32 : o32 + stride] = k.u
        state32[o32 + stride : o32 + 2 * stride] = k.inv


@njit(nogil=True, cache=True)
def refined(k: Work, N: int, K: int, W: F32) -> bool:
    """lambda = L^+ t by the Laplacian that the solver left, refined; leaves Cov_i(lambda, y) in ``cov_2``."""
    stride = padded(K)
    size = 0.0
    for j in range(K):
        size += abs(k.tension[j])
    k.lam[:] = 0.0
    k.z[:] = k.tension
    for _ in range(6):
        substitute(W, K, stride, k.ends, k.inv, k.z, k.small[:stride])
        for c in range(0, stride, 16):
            store(k.lam, c, load(k.lam, c) + load(k.small, c))
        at_best(k.lam, k.best, N, k.phi_0)
        covariances(k.G, N, k.u, k.v, k.lam, k.phi_0, k.y32, k.y_0, k.glo, k.ghi, k.mean, k.cov_2)
        tensions(k.G, N, K, k.u, k.v, k.mass, k.lam, k.phi_0, k.mean, k.lo, k.hi, k.parts, k.z)
        left = splat(0.0)
        for c in range(0, stride, 16):
            off = load(k.tension, c) - load(k.z, c)
            store(k.z, c, off)
            left = left + choose(off > 0.0, off, splat(0.0) - off)
        if total(left) <= _REFINED * size:
            return True
    return False


@njit(nogil=True, cache=True)
def towards_places(k: Work, N: int, K: int, W: F32, saved: bool) -> None:
    """From w and phi: Cov_i(phi, y) in ``cov`` and Cov_i(lambda, y) in ``cov_2``."""
    stride = padded(K)
    at_best(k.y32, k.best, N, k.y_0)
    at_best(k.phi, k.best, N, k.phi_0)
    covariances(k.G, N, k.u, k.v, k.phi, k.phi_0, k.y32, k.y_0, k.glo, k.ghi, k.mean, k.cov)
    tensions(k.G, N, K, k.u, k.v, k.w, k.phi, k.phi_0, k.mean, k.lo, k.hi, k.parts, k.tension)
    if saved and refined(k, N, K, W):
        return
    edges(k.G, N, K, k.root_mass, k.u, k.v, k.lo, k.hi, k.Q, k.W, stride, k.ends)
    k.ridge[:] = 0.0
    eliminate(k.W, K, stride, k.ends, k.ridge, k.inv, k.small)
    k.z[:] = k.tension
    substitute(k.W, K, stride, k.ends, k.inv, k.z, k.lam)
    at_best(k.lam, k.best, N, k.phi_0)
    covariances(k.G, N, k.u, k.v, k.lam, k.phi_0, k.y32, k.y_0, k.glo, k.ghi, k.mean, k.cov_2)


@njit(nogil=True, cache=True)
def pull_rows_backward(x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, squash: int, weighted: bool,
                       steps: tuple[int, int, int, int], w: F32, grad: F32, state64: F64, state32: F32,
                       state_int: I32, start: int, stop: int) -> None:  # fmt: skip
    stride = padded(K)
    _, at32, at_int, size = state_parts(n, K)
    k = workspace(n, K)
    for row in range(start, stop):
        o32, o64 = row * size + at32, row * size // 2
        mean, per_unit = state64[o64 + stride], state64[o64 + stride + 1]
        weight, spreads = state64[o64 + stride + 2], state64[o64 + stride + 3] > 0.0
        if not weight == weight:
            grad[row * n : row * n + n] = np.nan
            continue
        row_into(x, row * n, n, k.xs)
        if row == start or steps[0] > 0:
            targets_into(k, y, b, row * steps[0], K)
        if row == start or steps[1] > 0:
            k.phi[:K] = phi[row * steps[1] : row * steps[1] + K]
        if row == start or weighted:
            weights_into(k, a, row * n, n, weighted)
        e = float(eps[row * steps[3]])
        places(k.xs, k.aw, squash, k.y[0], k.y[K - 1], k.at)
        k.h[:K] = state64[o64 : o64 + K]
        k.u[:] = state32[o32 : o32 + stride]
        k.inv[:] = state32[o32 + stride : o32 + 2 * stride]
        order, cells = state_int[row * size + at_int + 1 : row * size + size], state_int[row * size + at_int]
        ws = w[row * n : row * n + n]
        if cells > 0:
            _, low, high = cells_for(k.at, n, e)
            N = sources_into(k, n, cells, low, high, order)
            spread(ws, n, cells, k.cell, k.within, k.in_cells, k.w[:N])
        else:
            N = padded(n)
            k.w[n:], k.mass[n:] = 0.0, 0.0
            for i in range(n):
                o = order[i]
                k.place[i], k.mass[i], k.w[i] = k.at[o], k.aw[o], ws[o]
            k.place[n:] = k.place[n - 1]
            k.root_mass[:] = k.mass
        band(k.place, N, k.y, k.h, K, e, k.t, k.r, k.best, k.lo, k.hi, k.glo, k.ghi, k.ends)
        gibbs(k.t, k.r, N, k.y, k.h, K, k.lo, k.hi, k.G)
        roots(k.root_mass, N)
        scale(k.G, N, K, k.mass, k.u, k.lo, k.hi, k.glo, k.ghi, k.v, k.av, k.parts, k.s)
        W = k.W if K > _SAVED else state32[o32 + 2 * stride : o32 + size]
        towards_places(k, N, K, W, K <= _SAVED)
        per_eps = np.float32(2.0 / e)
        if cells > 0:
            polynomials(k.cov, cells, k.in_cells)
            interpolate(k.in_cells, n, k.cell, k.within, k.read)
            polynomials(k.cov_2, cells, k.in_cells)
            interpolate(k.in_cells, n, k.cell, k.within, k.xs)
            for i in range(n):
                k.read[i] = per_eps * (ws[i] * k.read[i] - k.aw[i] * k.xs[i])
            row_into(x, row * n, n, k.xs)
        else:
            for i in range(n):
                k.read[order[i]] = per_eps * (k.w[i] * k.cov[i] - k.mass[i] * k.cov_2[i])
        k.read[n:] = 0.0
        places_backward(k.xs, k.aw, k.at, squash, mean, per_unit, weight, spreads, k.read)
        grad[row * n : row * n + n] = k.read[:n]
