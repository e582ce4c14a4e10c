"""The Laplacian of a row's plan with all its digits: what joins targets by 1e-13 beside what joins them by 1.

As in ``row.laplacian``, nodes are eliminated without subtractions. Edges, positive sums all of them, have
relative precision in float32 already. But potentials across weak ones are large, and what they differ by across strong
ones must not be lost in their size: so elimination and substitution are in double precision.
"""

from __future__ import annotations

import numpy as np

from ..engine.compile import exact
from ..engine.maths import F64, I64
from ..engine.sources import padded
from ..engine.vectors import load, load64, splat64, store64, total64, widen
from .laplacian import edges
from .work import BEST, ENDS, GHI, GLO, HI, LO, MASS, ROOT, U, V, Work


@exact
def edges_in_single(k: Work, N: int, K: int, W: F64) -> None:
    stride, ends = padded(K), k.k_int[ENDS]
    edges(k.G, N, K, k.n32[ROOT], k.n_int[BEST], k.k32[U], k.n32[V], k.k_int[LO], k.k_int[HI], bool(np.int64(0)),
          bool(np.int64(0)), k.Q, k.W, stride, ends, k.parts)  # fmt: skip
    for j in range(K):
        end = min(ends[j // 4], K)
        for c in range(j // 16 * 16, end, 16):
            store64(W, j * stride + c, widen(load(k.W, j * stride + c)))
        W[j * stride + end : (j + 1) * stride] = 0.0


@exact
def edges_in_double(k: Work, N: int, n: int, K: int, W: F64) -> None:
    """W of shares that add up to one in double precision."""
    stride, u, v, best = padded(K), k.k32[U], k.n32[V], k.n_int[BEST]
    p = np.zeros(stride)
    W[:] = 0.0
    for i in range(n):
        first, end, others = 4 * k.n_int[GLO, i // 16], min(4 * k.n_int[GHI, i // 16], K), 0.0
        for j in range(first, end):
            p[j] = k.G[j * N + i] * u[j] * v[i]
            others += p[j]
        p[best[i]] = 1.0 - others
        for j in range(first, end):
            f = k.n32[MASS, i] * p[j]
            for c in range(j + 1, end):
                W[j * stride + c] += f * p[c]


@exact
def eliminate(W: F64, K: int, stride: int, ends: I64, b: F64, ground: float, inv: F64) -> None:
    """The Laplacian of edges W, eliminated as by ``row.laplacian.eliminate``, one node at a time.

    From every node a link of strength ``ground`` b_j leads to the ground. What is behind the end of a row of W is 0.
    """
    for j in range(K):
        inv[j] = ground * b[j]  # until the node is eliminated
    for first in range(0, K, 4):  # four have the same end: each among the four, then the others at once
        after, end = min(first + 4, K), min(ends[first // 4], K)
        for j in range(first, after):
            below = inv[j]
            pivot = below + sum_from(W, j * stride, j + 1, end)
            inv[j] = 1.0 / pivot if pivot > 0.0 else 0.0
            for row in range(j + 1, end):
                inv[row] += W[j * stride + row] * inv[j] * below
            for row in range(j + 1, after):
                factor = splat64(W[j * stride + row] * inv[j])
                for c in range(row // 16 * 16, end, 16):  # up to its diagonal nobody reads a row
                    o = row * stride + c
                    store64(W, o, load64(W, o) + load64(W, j * stride + c) * factor)
        o0 = first * stride
        o1, o2, o3 = o0 + stride, o0 + 2 * stride, o0 + 3 * stride
        for row in range(after, end):
            f0, f1 = W[o0 + row] * inv[first], W[o1 + row] * inv[first + 1]
            f2, f3 = W[o2 + row] * inv[first + 2], W[o3 + row] * inv[first + 3]
            for c in range(row // 16 * 16, end, 16):
                o = row * stride + c
                two = load64(W, o0 + c) * f0 + load64(W, o1 + c) * f1
                store64(W, o, load64(W, o) + two + (load64(W, o2 + c) * f2 + load64(W, o3 + c) * f3))


@exact
def sum_from(W: F64, mine: int, first: int, end: int) -> float:
    whole = (first + 15) // 16 * 16
    sums, alone = splat64(0.0), 0.0
    for c in range(first, min(whole, end)):
        alone += W[mine + c]
    for c in range(whole, end, 16):
        sums = sums + load64(W, mine + c)
    return alone + total64(sums)


@exact
def substituted(W: F64, K: int, stride: int, ends: I64, inv: F64, x: F64) -> None:
    """x becomes (L + ground diag(b))^-1 x."""
    for j in range(K):
        x[j] *= inv[j]
        mine, end, whole = j * stride, min(ends[j // 4], K), (j + 16) // 16 * 16
        for c in range(j + 1, min(whole, end)):
            x[c] += W[mine + c] * x[j]
        factor = splat64(x[j])
        for c in range(whole, end, 16):
            store64(x, c, load64(x, c) + load64(W, mine + c) * factor)
    for j in range(K - 2, -1, -1):
        mine, end, whole = j * stride, min(ends[j // 4], K), (j + 16) // 16 * 16
        sums, alone = splat64(0.0), 0.0
        for c in range(j + 1, min(whole, end)):
            alone += W[mine + c] * x[c]
        for c in range(whole, end, 16):
            sums = sums + load64(W, mine + c) * load64(x, c)
        x[j] += (alone + total64(sums)) * inv[j]
