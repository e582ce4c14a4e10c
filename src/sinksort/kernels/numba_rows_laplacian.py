"""The graph Laplacian of a row's plan: edges between targets that share sources, eliminated without subtractions.

For Q_ij = sqrt(a_i) p_ij the edges are W = Q^T Q, and L = diag(W 1) - W. Nodes are eliminated in the way of Grassmann,
Taksar and Heyman: the pivot of a node is the sum of its remaining edges, so entries keep their relative precision
however weakly the nodes are joined. See ``numba_rows_newton`` for the layout of G; W is (K, ``stride``), of which what
is above the diagonal, up to ``ends`` of each group of four targets, is used.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .numba_compile import exact
from .numba_maths import F32, I64
from .numba_simd import choose, fold, lane_numbers, load, root, splat, store, store_square, total, totals

_UNJOINED = np.float32(1e-30)  #: a pivot below which a node has no edges
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@exact
def edges(G: F32, N: int, K: int, ra: F32, best: I64, u: F32, v: F32, lo: I64, hi: I64, soft: bool, merge: bool,
          Q: F32, W: F32, stride: int, ends: I64, scratch: F32) -> None:  # fmt: skip
    """W = Q^T Q for Q_ij = sqrt(a_i) p_ij, above its diagonal; ``ra`` holds the roots.

    With ``merge`` two neighbouring sources count as one, which is enough for a step where p changes little from one to
    the next. ``scratch``: 2 N.
    """
    groups = (K + 3) // 4
    if merge:
        _merged(G, N, K, ra, u, v, lo, hi, Q, scratch)
    else:
        for j in range(4 * groups):
            uj = u[j]
            for q in range(lo[j // 4], hi[j // 4]):
                o = j * N + 16 * q
                store(Q, o, load(G, o) * uj * load(v, 16 * q) * load(ra, 16 * q))
        if not soft:
            for i in range(N):
                Q[best[i] * N + i] = u[best[i]] * v[i] * ra[i]
    for g in range(groups):
        for j in range(4 * g, 4 * g + 4):
            for c in range(4 * g // 16 * 16, ends[g], 16):
                store(W, j * stride + c, splat(0.0))
        for f in range(g, ends[g] // 4):
            z = splat(0.0)
            a0, a1, a2, a3, b0, b1, b2, b3 = z, z, z, z, z, z, z, z
            c0, c1, c2, c3, d0, d1, d2, d3 = z, z, z, z, z, z, z, z
            first, last = (lo[f] // 2, (hi[g] + 1) // 2) if merge else (lo[f], hi[g])
            for q in range(first, last):
                o = 4 * g * N + 16 * q
                e = 4 * f * N + 16 * q
                k0, k1, k2, k3 = load(Q, e), load(Q, e + N), load(Q, e + 2 * N), load(Q, e + 3 * N)
                p = load(Q, o)
                a0, a1, a2, a3 = a0 + p * k0, a1 + p * k1, a2 + p * k2, a3 + p * k3
                p = load(Q, o + N)
                b0, b1, b2, b3 = b0 + p * k0, b1 + p * k1, b2 + p * k2, b3 + p * k3
                p = load(Q, o + 2 * N)
                c0, c1, c2, c3 = c0 + p * k0, c1 + p * k1, c2 + p * k2, c3 + p * k3
                p = load(Q, o + 3 * N)
                d0, d1, d2, d3 = d0 + p * k0, d1 + p * k1, d2 + p * k2, d3 + p * k3
            tile = totals((a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3))
            store_square(W, 4 * g * stride + 4 * f, stride, tile)


@exact
def _merged(G: F32, N: int, K: int, ra: F32, u: F32, v: F32, lo: I64, hi: I64, Q: F32, scratch: F32) -> None:
    """Q for sources in twos: the sum of a_i p_ij over the root of the sum of a_i. G must be complete."""
    blocks, zero = N // 16, splat(0.0)
    av, roots = scratch[:N], scratch[N:]
    for q in range(0, blocks, 2):
        a0, a1 = load(ra, 16 * q) * load(ra, 16 * q), zero
        store(av, 16 * q, a0 * load(v, 16 * q))
        if q + 1 < blocks:
            a1 = load(ra, 16 * q + 16) * load(ra, 16 * q + 16)
            store(av, 16 * q + 16, a1 * load(v, 16 * q + 16))
        two = fold(a0, a1)
        store(roots, 8 * q, choose(two > 0.0, splat(1.0) / root(two), zero))
    for j in range(4 * ((K + 3) // 4)):
        uj, first, last = u[j], lo[j // 4], hi[j // 4]
        for q in range(first // 2 * 2, last, 2):
            o = j * N + 16 * q
            p0 = load(G, o) * load(av, 16 * q) if q >= first else zero
            p1 = load(G, o + 16) * load(av, 16 * q + 16) if q + 1 < last else zero
            store(Q, j * N + 8 * q, fold(p0, p1) * uj * load(roots, 8 * q))


@njit(forceinline=True)
def _inverse(pivot: float) -> float:
    """1 / pivot; 0 for a node without edges, which is then left alone."""
    return _ONE / pivot if pivot > _UNJOINED else _ZERO


@exact
def eliminate(W: F32, K: int, stride: int, ends: I64, ridge: F32, inv: F32, F: F32) -> None:
    """Eliminates the nodes in turn, in place: W keeps the edges that each has when it goes, ``inv`` 1 / their sum.

    ``ridge`` leads from each node to the ground, where the last one stands. Four nodes go at a time: first among
    themselves, with all the others as one (edges only add up, so the sum r of a node's edges to the others changes as
    one edge would), then their edges to the others, then the others. ``F``: scratch (4, stride).
    """
    lanes = lane_numbers()
    for k in range(0, K, 4):
        here, end = k // 16 * 16, ends[k // 4]
        o0 = k * stride
        o1, o2, o3 = o0 + stride, o0 + 2 * stride, o0 + 3 * stride
        others = lanes > float(k + 3 - here)
        z = splat(0.0)
        m0, m1 = choose(others, load(W, o0 + here), z), choose(others, load(W, o1 + here), z)
        m2, m3 = choose(others, load(W, o2 + here), z), choose(others, load(W, o3 + here), z)
        s0, s1, s2, s3 = m0, m1, m2, m3
        for c in range(here + 16, end, 16):
            s0, s1 = s0 + load(W, o0 + c), s1 + load(W, o1 + c)
            s2, s3 = s2 + load(W, o2 + c), s3 + load(W, o3 + c)
        r0, r1, r2, r3 = total(s0), total(s1), total(s2), total(s3)
        w01, w02, w03 = W[o0 + k + 1], W[o0 + k + 2], W[o0 + k + 3]
        w12, w13, w23 = W[o1 + k + 2], W[o1 + k + 3], W[o2 + k + 3]
        i0 = _inverse(w01 + w02 + w03 + r0 + ridge[k])
        f01, f02, f03 = w01 * i0, w02 * i0, w03 * i0
        w12, w13, w23 = w12 + f01 * w02, w13 + f01 * w03, w23 + f02 * w03
        r1, r2, r3 = r1 + f01 * r0, r2 + f02 * r0, r3 + f03 * r0
        i1 = _inverse(w12 + w13 + r1 + ridge[k + 1])
        f12, f13 = w12 * i1, w13 * i1
        w23, r2, r3 = w23 + f12 * w13, r2 + f12 * r1, r3 + f13 * r1
        i2 = _inverse(w23 + r2 + ridge[k + 2])
        f23 = w23 * i2
        i3 = _inverse(r3 + f23 * r2 + ridge[k + 3])
        inv[k], inv[k + 1], inv[k + 2], inv[k + 3] = i0, i1, i2, i3
        for c in range(here, end, 16):
            if c > here:
                m0, m1, m2, m3 = load(W, o0 + c), load(W, o1 + c), load(W, o2 + c), load(W, o3 + c)
            m1 = m1 + m0 * f01
            m2 = m2 + m0 * f02 + m1 * f12
            m3 = m3 + m0 * f03 + m1 * f13 + m2 * f23
            store(W, o0 + c, m0)
            store(W, o1 + c, m1)
            store(W, o2 + c, m2)
            store(W, o3 + c, m3)
            store(F, c, m0 * i0)
            store(F, stride + c, m1 * i1)
            store(F, 2 * stride + c, m2 * i2)
            store(F, 3 * stride + c, m3 * i3)
            for j in range(k + 4, min(c + 16, end)):
                row = load(W, j * stride + c)
                row = row + m0 * F[j] + m1 * F[stride + j] + m2 * F[2 * stride + j] + m3 * F[3 * stride + j]
                store(W, j * stride + c, row)
        W[o0 + k + 1], W[o0 + k + 2], W[o0 + k + 3] = w01, w02, w03
        W[o1 + k + 2], W[o1 + k + 3], W[o2 + k + 3] = w12, w13, w23
    inv[K - 1] = 0.0


@exact
def substitute(W: F32, K: int, stride: int, ends: I64, inv: F32, z: F32, x: F32) -> None:
    """x = L^-1 z by what ``eliminate`` left, zero at the last node; z is used up. Four nodes at a time."""
    for k in range(0, K, 4):
        here, end = k // 16 * 16, ends[k // 4]
        o0 = k * stride
        o1, o2, o3 = o0 + stride, o0 + 2 * stride, o0 + 3 * stride
        z0, z1, z2, z3 = z[k], z[k + 1], z[k + 2], z[k + 3]
        z0 = z0 * inv[k]
        z1 = (z1 + W[o0 + k + 1] * z0) * inv[k + 1]
        z2 = (z2 + W[o0 + k + 2] * z0 + W[o1 + k + 2] * z1) * inv[k + 2]
        z3 = (z3 + W[o0 + k + 3] * z0 + W[o1 + k + 3] * z1 + W[o2 + k + 3] * z2) * inv[k + 3]
        for c in range(here, end, 16):
            left = load(W, o0 + c) * z0 + load(W, o1 + c) * z1
            store(z, c, load(z, c) + left + (load(W, o2 + c) * z2 + load(W, o3 + c) * z3))
        z[k], z[k + 1], z[k + 2], z[k + 3] = z0, z1, z2, z3
    for c in range(0, stride, 16):
        store(x, c, splat(0.0))
    for k in range((K - 1) // 4 * 4, -1, -4):
        here, end = k // 16 * 16, ends[k // 4]
        o0 = k * stride
        o1, o2, o3 = o0 + stride, o0 + 2 * stride, o0 + 3 * stride
        s0, s1, s2, s3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        for c in range(here, end, 16):
            xc = load(x, c)
            s0, s1 = s0 + load(W, o0 + c) * xc, s1 + load(W, o1 + c) * xc
            s2, s3 = s2 + load(W, o2 + c) * xc, s3 + load(W, o3 + c) * xc
        r0, r1, r2, r3 = total(s0), total(s1), total(s2), total(s3)
        x3 = z[k + 3] + r3 * inv[k + 3]
        x2 = z[k + 2] + (r2 + W[o2 + k + 3] * x3) * inv[k + 2]
        x1 = z[k + 1] + (r1 + W[o1 + k + 2] * x2 + W[o1 + k + 3] * x3) * inv[k + 1]
        x0 = z[k] + (r0 + W[o0 + k + 1] * x1 + W[o0 + k + 2] * x2 + W[o0 + k + 3] * x3) * inv[k]
        x[k], x[k + 1], x[k + 2], x[k + 3] = x0, x1, x2, x3
