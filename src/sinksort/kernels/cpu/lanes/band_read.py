"""Plans of sixteen rows at a time, read forwards and backwards; see ``lanes.band`` for the layout.

Averages of a block of four sources are taken of differences to the target ``best`` of its first source, so that no
digits are lost to numbers that all of its sources have in common.
"""

from __future__ import annotations

import numpy as np

from ..engine.compile import jit_no_refcount
from ..engine.maths import F32, I64, larger, size_of
from ..engine.vectors import any_lane, load, select, splat, store
from ..row.read import BEFORE_LASTS, ERRORS, LASTS  # noqa: F401
from .band import band_substitute

_REFINED = np.float32(2e-5)  #: how far lambda may still be off
_MOST_REFINEMENTS = 8


@jit_no_refcount
def band_pulled(G: F32, N: int, K: int, KP: int, lo: I64, hi: I64, u: F32, phi: F32, last: F32, lasts: int,
                scaled: F32, out: F32, error: F32) -> None:  # fmt: skip
    """``row.read.pulled``: sum_j p_ij phi_j, and the error of the rule. Scratch: ``scaled`` (5, KP, 16).

    Rows of p are scaled to their sums here, whatever v is.
    """
    size = 16 * KP
    for j in range(K):
        uj = load(u, 16 * j)
        store(scaled, 16 * j, uj * load(phi, 16 * j))
        for k in range(lasts):
            store(scaled, (k + 1) * size + 16 * j, uj * last[k * K + j])
    for j in range(K, KP):
        for k in range(lasts + 1):
            store(scaled, k * size + 16 * j, splat(0.0))
    worst, z = splat(0.0), splat(0.0)
    for i in range(0, N, 2):  # two sources at a time
        o, first, end = 64 * (i // 4) * KP + 16 * (i % 4), lo[i // 4], hi[i // 4]
        n0, n1, s0, s1 = z, z, z, z
        a0, a1, b0, b1, c0, c1, d0, d1 = z, z, z, z, z, z, z, z
        if lasts == 0:
            for j in range(first, end):
                g0, g1, c = load(G, o + 64 * j), load(G, o + 64 * j + 16), 16 * j
                n0, n1 = n0 + g0 * load(u, c), n1 + g1 * load(u, c)
                s0, s1 = s0 + g0 * load(scaled, c), s1 + g1 * load(scaled, c)
        else:
            for j in range(first, end):
                g0, g1, c = load(G, o + 64 * j), load(G, o + 64 * j + 16), 16 * j
                n0, n1 = n0 + g0 * load(u, c), n1 + g1 * load(u, c)
                s0, s1 = s0 + g0 * load(scaled, c), s1 + g1 * load(scaled, c)
                a0, a1 = a0 + g0 * load(scaled, c + size), a1 + g1 * load(scaled, c + size)
                b0, b1 = b0 + g0 * load(scaled, c + 2 * size), b1 + g1 * load(scaled, c + 2 * size)
                c0, c1 = c0 + g0 * load(scaled, c + 3 * size), c1 + g1 * load(scaled, c + 3 * size)
                d0, d1 = d0 + g0 * load(scaled, c + 4 * size), d1 + g1 * load(scaled, c + 4 * size)
        v0, v1 = splat(1.0) / n0, splat(1.0) / n1
        store(out, 16 * i, s0 * v0)
        store(out, 16 * i + 16, s1 * v1)
        worst = larger(worst, (a0 * a0 + b0 * b0 + c0 * c0 + d0 * d0) * v0 * v0)
        worst = larger(worst, (a1 * a1 + b1 * b1 + c1 * c1 + d1 * d1) * v1 * v1)
    worst, known = worst * np.float32(ERRORS), load(error, 0)
    store(error, 0, select(worst > known, worst, known))  # an error that is not a number stays


@jit_no_refcount
def band_covariances(G: F32, N: int, KP: int, best: I64, lo: I64, hi: I64, u: F32, v: F32, F: F32, y: F32, mean: F32,
                     cov: F32) -> None:  # fmt: skip
    """mean_i = E_i F, less F at the best target of the block, and cov_i = Cov_i(F, y)."""
    for block in range(N // 4):
        o, j_0 = 64 * block * KP, best[4 * block]
        f_0, y_0, z = load(F, 16 * j_0), load(y, 16 * j_0), splat(0.0)
        m0, m1, m2, m3, y0, y1, y2, y3 = z, z, z, z, z, z, z, z
        c0, c1, c2, c3 = z, z, z, z
        for j in range(lo[block], hi[block]):
            e, uj, dy = o + 64 * j, load(u, 16 * j), load(y, 16 * j) - y_0
            with_f, with_y = (load(F, 16 * j) - f_0) * uj, uj * dy
            both = with_f * dy
            g = load(G, e)
            m0, y0, c0 = m0 + g * with_f, y0 + g * with_y, c0 + g * both
            g = load(G, e + 16)
            m1, y1, c1 = m1 + g * with_f, y1 + g * with_y, c1 + g * both
            g = load(G, e + 32)
            m2, y2, c2 = m2 + g * with_f, y2 + g * with_y, c2 + g * both
            g = load(G, e + 48)
            m3, y3, c3 = m3 + g * with_f, y3 + g * with_y, c3 + g * both
        i = 64 * block
        v0, v1, v2, v3 = load(v, i), load(v, i + 16), load(v, i + 32), load(v, i + 48)
        m0, m1, m2, m3 = m0 * v0, m1 * v1, m2 * v2, m3 * v3
        store(mean, i, m0)
        store(mean, i + 16, m1)
        store(mean, i + 32, m2)
        store(mean, i + 48, m3)
        store(cov, i, (c0 - m0 * y0) * v0)
        store(cov, i + 16, (c1 - m1 * y1) * v1)
        store(cov, i + 32, (c2 - m2 * y2) * v2)
        store(cov, i + 48, (c3 - m3 * y3) * v3)


@jit_no_refcount
def band_right_sides(G: F32, N: int, KP: int, best: I64, lo: I64, hi: I64, u: F32, v: F32, w: F32, F: F32, mean: F32,
                  known: bool, t: F32) -> None:  # fmt: skip
    """t_j = sum_i w_i p_ij (F_j - E_i F). Where the means are not ``known`` they are made on the way."""
    for j in range(0, 16 * KP, 16):
        store(t, j, splat(0.0))
    for block in range(N // 4):
        o, f_0, i = 64 * block * KP, load(F, 16 * best[4 * block]), 64 * block
        v0, v1, v2, v3 = load(v, i), load(v, i + 16), load(v, i + 32), load(v, i + 48)
        if known:
            m0, m1, m2, m3 = load(mean, i), load(mean, i + 16), load(mean, i + 32), load(mean, i + 48)
        else:
            m0, m1, m2, m3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
            for j in range(lo[block], hi[block]):
                e, f = o + 64 * j, (load(F, 16 * j) - f_0) * load(u, 16 * j)
                m0, m1 = m0 + load(G, e) * f, m1 + load(G, e + 16) * f
                m2, m3 = m2 + load(G, e + 32) * f, m3 + load(G, e + 48) * f
            m0, m1, m2, m3 = m0 * v0, m1 * v1, m2 * v2, m3 * v3
        w0, w1, w2, w3 = (
            load(w, i) * v0, load(w, i + 16) * v1, load(w, i + 32) * v2, load(w, i + 48) * v3,
        )  # fmt: skip
        m0, m1, m2, m3 = m0 * w0, m1 * w1, m2 * w2, m3 * w3
        for j in range(lo[block], hi[block]):
            e = o + 64 * j
            g0, g1, g2, g3 = load(G, e), load(G, e + 16), load(G, e + 32), load(G, e + 48)
            flows = (g0 * w0 + g1 * w1) + (g2 * w2 + g3 * w3)
            means = (g0 * m0 + g1 * m1) + (g2 * m2 + g3 * m3)
            store(t, 16 * j, load(t, 16 * j) + (flows * (load(F, 16 * j) - f_0) - means))
    for j in range(0, 16 * KP, 16):
        store(t, j, load(t, j) * load(u, j))


@jit_no_refcount
def band_refined(G: F32, N: int, K: int, KP: int, best: I64, lo: I64, hi: I64, u: F32, v: F32, a: F32, t: F32, W: F32,
                 width: int, ends: I64, inv: F32, z: F32, lam: F32) -> bool:  # fmt: skip
    """lambda = L^+ t by a matrix near L, refined until the next step would be small in all rows; false if it is not."""
    before = splat(1.0)
    for j in range(0, 16 * KP, 16):
        store(z, j, load(t, j))
    band_substitute(W, K, KP, width, ends, inv, z, lam)
    for _ in range(_MOST_REFINEMENTS):
        band_right_sides(G, N, KP, best, lo, hi, u, v, a, lam, z, False, z)
        for j in range(0, 16 * KP, 16):
            store(z, j, load(t, j) - load(z, j))
        band_substitute(W, K, KP, width, ends, inv, z, z)
        steps, sizes = splat(0.0), splat(0.0)
        for j in range(0, 16 * KP, 16):
            step = load(z, j)
            now = load(lam, j) + step
            store(lam, j, now)
            steps, sizes = larger(steps, size_of(step)), larger(sizes, size_of(now))
        moved = steps / select(sizes > 0.0, sizes, splat(1.0))
        if not any_lane(moved * moved > before * _REFINED):
            return True
        before = moved
    return False
