"""The graph Laplacian of a row's plan: edges between targets that share sources, eliminated without subtractions.

For Q_ij = sqrt(a_i) p_ij the edges are W = Q^T Q, and L = diag(W 1) - W. Nodes are eliminated in the way of Grassmann,
Taksar and Heyman: the pivot of a node is the sum of its remaining edges, so entries keep their relative precision
however weakly the nodes are joined. See ``row.newton`` for the layout of G; W is (``stride``, ``stride``), of
which what is above the diagonal, up to ``ends`` of each group of four targets, is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..engine.compile import borrowing
from ..engine.maths import F32, I64
from ..engine.vectors import choose, fold, lane_numbers, load, root, splat, store, store_square, total, totals

_UNJOINED = np.float32(1e-30)  #: a pivot below which a node has no edges
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@borrowing
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


@borrowing
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


@borrowing
def eliminate(W: F32, K: int, stride: int, ends: I64, ridge: F32, inv: F32, F: F32) -> None:
    """Eliminates the nodes in turn, in place: W keeps the edges that each has when it goes, ``inv`` 1 / their sum.

    Edges within sixteen nodes are replaced in the end by what ``substitute`` wants of them.
    ``ridge`` leads from each node to the ground, where the last one stands. Four nodes go at a time: first among
    themselves, with all the others as one (edges only add up, so the sum r of a node's edges to the others changes as
    one edge would), then their edges to the others, then the others. ``F``: scratch (4 stride + 256).
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
    _corners(W, K, stride, inv, F[4 * stride :])


@borrowing
def _corners(W: F32, K: int, stride: int, inv: F32, C: F32) -> None:
    """Puts C of ``substitute`` in place of the edges within each sixteen nodes. ``C``: scratch (16, 16).

    Its rows are C_k = inv_k (e_k + sum_j<k W_jk C_j), four at a time.
    """
    lanes, one, none, rows = lane_numbers(), splat(1.0), splat(0.0), (K + 3) // 4 * 4
    for c in range(0, rows, 16):
        corner, here = c * stride + c, min(rows - c, 16)
        for k in range(0, here, 4):
            c0, c1 = choose(lanes == float(k), one, none), choose(lanes == float(k + 1), one, none)
            c2, c3 = choose(lanes == float(k + 2), one, none), choose(lanes == float(k + 3), one, none)
            for j in range(k):
                above, o = load(C, 16 * j), corner + j * stride + k
                c0, c1, c2, c3 = c0 + above * W[o], c1 + above * W[o + 1], c2 + above * W[o + 2], c3 + above * W[o + 3]
            o0 = corner + k * stride + k
            o1, o2 = o0 + stride, o0 + 2 * stride
            c0 = c0 * inv[c + k]
            c1 = (c1 + c0 * W[o0 + 1]) * inv[c + k + 1]
            c2 = (c2 + c0 * W[o0 + 2] + c1 * W[o1 + 2]) * inv[c + k + 2]
            c3 = (c3 + c0 * W[o0 + 3] + c1 * W[o1 + 3] + c2 * W[o2 + 3]) * inv[c + k + 3]
            store(C, 16 * k, c0)
            store(C, 16 * k + 16, c1)
            store(C, 16 * k + 32, c2)
            store(C, 16 * k + 48, c3)
        for k in range(16):
            store(W, corner + k * stride, load(C, 16 * k) if k < here else none)


@njit(forceinline=True)
def _dot(W: Any, o: Any, stride: Any, first: Any, end: Any, x: Any) -> Any:
    """Products of four rows of W with x, from ``first`` to ``end``, not yet added up."""
    s0, s1, s2, s3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    for c in range(first, end, 16):
        xc = load(x, c)
        s0, s1 = s0 + load(W, o + c) * xc, s1 + load(W, o + stride + c) * xc
        s2, s3 = s2 + load(W, o + 2 * stride + c) * xc, s3 + load(W, o + 3 * stride + c) * xc
    return s0, s1, s2, s3


@borrowing
def substitute(W: F32, K: int, stride: int, ends: I64, inv: F32, z: F32, x: F32) -> None:
    """x = L^-1 z by what ``eliminate`` left, zero at the last node; z is used up. Sixteen nodes at a time.

    With the edges W of each node when it goes and d = 1 / their sum, first y = d (z + W^T y), then x = y + d W x the
    other way: each node waits for the one before. Among sixteen with edges N, and W to those behind, that is

        y = C (z + what comes from before),     x = C^T (y / d + W x),     C = (1 / d - N^T)^-1,

    where none waits. C is made of sums of products that are not negative, so it has as many digits as N.
    """
    groups = (K + 3) // 4
    for c in range(0, K, 16):
        o, r, last = c * stride + c, load(z, c), min(c // 4 + 4, groups) - 1
        s = stride
        store(x, c, totals((
            load(W, o) * r, load(W, o + s) * r, load(W, o + 2 * s) * r, load(W, o + 3 * s) * r,
            load(W, o + 4 * s) * r, load(W, o + 5 * s) * r, load(W, o + 6 * s) * r, load(W, o + 7 * s) * r,
            load(W, o + 8 * s) * r, load(W, o + 9 * s) * r, load(W, o + 10 * s) * r, load(W, o + 11 * s) * r,
            load(W, o + 12 * s) * r, load(W, o + 13 * s) * r, load(W, o + 14 * s) * r, load(W, o + 15 * s) * r,
        )))  # fmt: skip
        for behind in range(c + 16, ends[last], 16):
            even, odd = load(z, behind), splat(0.0)
            for g in range(c // 4, last + 1):
                if behind < ends[g]:
                    k = 4 * g
                    e = k * stride + behind
                    even = even + load(W, e) * x[k] + load(W, e + 2 * stride) * x[k + 2]
                    odd = odd + load(W, e + stride) * x[k + 1] + load(W, e + 3 * stride) * x[k + 3]
            store(z, behind, even + odd)
    for c in range((K - 1) // 16 * 16, -1, -16):
        g, d = c // 4, load(inv, c)
        rest = load(x, c) * choose(d > 0.0, splat(1.0) / d, splat(0.0))
        if c + 16 < K:
            r0, r1, r2, r3 = _dot(W, c * stride, stride, c + 16, ends[g], x)
            r4, r5, r6, r7 = _dot(W, (c + 4) * stride, stride, c + 16, ends[g + 1], x)
            r8, r9, r10, r11 = _dot(W, (c + 8) * stride, stride, c + 16, ends[g + 2], x)
            r12, r13, r14, r15 = _dot(W, (c + 12) * stride, stride, c + 16, ends[g + 3], x)
            from_behind = totals((r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15))
            rest = rest + from_behind
        store(z, c, rest)
        a0, a1, a2, a3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        for k in range(c, c + 16, 4):
            o = k * stride + c
            a0, a1 = a0 + load(W, o) * z[k], a1 + load(W, o + stride) * z[k + 1]
            a2, a3 = a2 + load(W, o + 2 * stride) * z[k + 2], a3 + load(W, o + 3 * stride) * z[k + 3]
        store(x, c, (a0 + a1) + (a2 + a3))
