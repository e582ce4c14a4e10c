"""Payloads carried to the targets by plans of sixteen rows at a time, and the way back.

What     out_j = sum_i w_i p_ij for any w, and the cotangents of x and of w, from the state that
         ``pull_band`` left.
When     Rows that ``pull_band`` answers; ``kernels/carried.py`` decides.
Why      ``sort_with`` of 128 x 100 and the gradient of ``quantile_normalize`` in its reference, without the exact
         family, which takes ten times as long.
Keeps    Nothing: the state has the potentials and Newton's matrix.

With c_j the cotangent of out_j,
that of p_ij is w_i c_j: the formulas are those of a pull of c along w (see ``contract``),
where every row has a c of its own, and the cotangent of w_i is E_i c.
"""

from __future__ import annotations

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F32, I64, larger, size_of
from ..engine.vectors import load, select, splat, store
from .band import BEST, HI, LO, band_rows_of
from .band_others import band_layout
from .band_read import band_covariances, band_right_sides
from .band_rows_backward import multipliers
from .band_shape import (
    COV,
    COV_2,
    LAM,
    MASS,
    MEAN,
    PHI,
    PLACE,
    TENSION,
    WEIGHT,
    WIDTH,
    XS,
    BandShape,
    V,
    balance_weights,
    band_for,
    place_lanes,
    plan_lanes,
)
from .plan import lane_places_backward

_CANCELLED = np.float32(0.1)  #: a gradient smaller than this share of its parts has lost too many digits


@jit_no_refcount
def many_carried(G: F32, N: int, KP: int, lo: I64, hi: I64, u: F32, v: F32, w: F32, t: F32) -> None:
    """t_j = sum_i w_i p_ij."""
    for j in range(0, 16 * KP, 16):
        store(t, j, splat(0.0))
    for block in range(N // 4):
        o, i = 64 * block * KP, 64 * block
        w0, w1 = load(w, i) * load(v, i), load(w, i + 16) * load(v, i + 16)
        w2, w3 = load(w, i + 32) * load(v, i + 32), load(w, i + 48) * load(v, i + 48)
        for j in range(lo[block], hi[block]):
            e = o + 64 * j
            here = (load(G, e) * w0 + load(G, e + 16) * w1) + (load(G, e + 32) * w2 + load(G, e + 48) * w3)
            store(t, 16 * j, load(t, 16 * j) + here)
    for j in range(0, 16 * KP, 16):
        store(t, j, load(t, j) * load(u, j))


@jit_no_refcount
def _posed(
    k: BandShape, x: F32, w: F32, orders: np.ndarray, first: int, n: int, squash: int, eps: F32, width: int
) -> None:
    """Values and w of sixteen rows in sorted order, and their plan."""
    for lane in range(16):
        row = (first + lane) * n
        k.rows[lane] = first + lane
        for i in range(n):
            o = row + orders[16 * i + lane]
            k.n32[XS, 16 * i + lane] = x[o] if x[o] == x[o] else np.float32(0.0)
            k.n32[WEIGHT, 16 * i + lane] = w[o]
    place_lanes(k, n, squash, eps, 0)
    plan_lanes(k, n, len(k.y) // 16, width)


@jit
def carry_many(begin: int, end: int, x: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int, w: F32, state: F32,
               out: F32) -> None:  # fmt: skip
    """Rows 16 begin to 16 end, all of which ``pull_band`` answered itself.

    w      (R, n)  IN   in the order of x
    state  (R, S)  IN   of ``pull_band``
    out    (R, K)  OUT
    """
    k = band_for(n, K, False, y, b)
    _carry(k, begin, end, x, eps, n, K, squash, w, state, out)


@jit_no_refcount
def _carry(k: BandShape, begin: int, end: int, x: F32, eps: F32, n: int, K: int, squash: int, w: F32, state: F32,
           out: F32) -> None:  # fmt: skip
    at, N, KP, integers = band_layout(n, K, 0), (n + 3) // 4 * 4, (K + 3) // 4 * 4, state.view(np.int32)
    lo, hi, v, carried = k.table[LO], k.table[HI], k.n32[V], k.k32[TENSION]
    for group in range(begin, end):
        first, base = 16 * group, 16 * group * at.size
        u = state[base : base + at.inv]
        _posed(k, x, w, integers[base + at.order :], first, n, squash, eps, min(KP, WIDTH))
        band_rows_of(k.G, N, KP, lo, hi, u, v)
        many_carried(k.G, N, KP, lo, hi, u, v, k.n32[WEIGHT], carried)
        for lane in range(16):
            row = (first + lane) * K
            for j in range(K):
                out[row + j] = carried[16 * j + lane]


@jit
def carry_backward_many(begin: int, end: int, x: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int, w: F32,
                        state: F32, c: F32, of_x: F32, of_w: F32, fine: F32) -> None:  # fmt: skip
    """The same for the cotangents.

    c           (R, K)  IN   the cotangent of out
    of_x, of_w  (R, n)  OUT  cotangents
    fine        (R)     OUT  0 where too many digits of that of x cancelled
    """
    k = band_for(n, K, False, y, b)
    _carry_backward(k, begin, end, x, eps, n, K, squash, w, state, c, of_x, of_w, fine)


@jit_no_refcount
def _carry_backward(k: BandShape, begin: int, end: int, x: F32, eps: F32, n: int, K: int, squash: int, w: F32,
                    state: F32,
                    c: F32, of_x: F32, of_w: F32, fine: F32) -> None:  # fmt: skip
    at, N, KP, integers = band_layout(n, K, 0), (n + 3) // 4 * 4, (K + 3) // 4 * 4, state.view(np.int32)
    width, best, lo, hi = min(KP, WIDTH), k.table[BEST], k.table[LO], k.table[HI]
    v, weight, mean, cov, phi = k.n32[V], k.n32[WEIGHT], k.n32[MEAN], k.n32[COV], k.k32[PHI]
    for group in range(begin, end):
        first, base = 16 * group, 16 * group * at.size
        orders, u = integers[base + at.order :], state[base : base + at.inv]
        _posed(k, x, w, orders, first, n, squash, eps, width)
        balance_weights(weight, k.n32[MASS], n)
        for lane in range(16):
            for j in range(K):
                phi[16 * j + lane] = c[(first + lane) * K + j]
        band_rows_of(k.G, N, KP, lo, hi, u, v)
        band_covariances(k.G, N, KP, best, lo, hi, u, v, phi, k.k32[PLACE], mean, cov)
        for lane in range(16):
            for i in range(n):
                of_best = phi[16 * best[i // 4 * 4] + lane]
                of_w[(first + lane) * n + orders[16 * i + lane]] = mean[16 * i + lane] + of_best
        band_right_sides(k.G, N, KP, best, lo, hi, u, v, weight, phi, mean, True, k.k32[TENSION])
        for i in range(0, 16 * n, 16):
            store(cov, i, load(weight, i) * load(cov, i))
        _undone(k, n, K, width, u, state[base + at.W :], state[base + at.inv :], np.float64(eps[0]))
        _returned(k, orders, first, n, squash, of_x, fine)


@jit_no_refcount
def _undone(k: BandShape, n: int, K: int, width: int, u: F32, W: F32, inv: F32, eps: float) -> None:
    """Turn COV, the sums over targets of p_ij (C_ij - E_i C) (y_j - E_i y), into the cotangent of x~.

    Potentials undo TENSION. The second row of ``one`` becomes 0 where too many digits cancelled.
    """
    N, KP, best, lo, hi = len(k.t) // 16, len(k.y) // 16, k.table[BEST], k.table[LO], k.table[HI]
    v, mass, mean, cov, cov_2 = k.n32[V], k.n32[MASS], k.n32[MEAN], k.n32[COV], k.n32[COV_2]
    multipliers(k, n, K, u, W, width, inv)
    band_covariances(k.G, N, KP, best, lo, hi, u, v, k.k32[LAM], k.k32[PLACE], mean, cov_2)
    parts, whole, per_eps = splat(0.0), splat(0.0), np.float32(2.0 / eps)
    for i in range(0, 16 * n, 16):
        part = load(cov, i)
        along = part - load(mass, i) * load(cov_2, i)
        parts, whole = larger(parts, size_of(part)), larger(whole, size_of(along))
        store(cov, i, along * per_eps)
    store(k.one[1], 0, select(whole < parts * _CANCELLED, splat(0.0), splat(1.0)))


@jit_no_refcount
def _returned(k: BandShape, orders: np.ndarray, first: int, n: int, squash: int, of_x: F32, fine: F32) -> None:
    """From the cotangent of x~ to that of x, in the order of x."""
    lane_places_backward(k.n32[XS], k.n32[MASS], k.at, n, squash, k.moments, k.ends[2], k.n32[COV])
    for lane in range(16):
        fine[first + lane] = k.one[1, lane]
        for i in range(n):
            of_x[(first + lane) * n + orders[16 * i + lane]] = k.n32[COV, 16 * i + lane]


# ---- the plan itself
