"""Gradients of ranks of which nearly all cancels, sixteen rows at a time: most of lambda is known beforehand.

What     A guess g of lambda, and what it leaves to be solved for.
When     Cotangents grow along the row, as those of a sum of squares of ranks do, or a gradient has lost digits.
Why      Such a gradient is a hundredth of the parts that it is the difference of. 128 x 100, one thread: rows whose
         ranks are squared took 23 ms when each was done again in double precision, and take 0.8 ms with a guess.
Keeps    Nothing.

The gradient is made of w_i phi_j - a_i lambda_j, where L lambda = t undoes what the potentials would change. Along the
staircase, where value i is at target j, nothing is left of it if lambda_{j+1} - lambda_j is w_i / a_i
(phi_{j+1} - phi_j). So the guess sums up what w / a is at each target on average,

    g_j  =  sum over targets k up to j, the last by half, of  (sum_i p_ik w_i / b_k) (phi_{k+1} - phi_{k-1}) / 2.

Then q_ij = w_i phi_j - a_i g_j takes the place of w_i phi_j, and lambda = g + l, where L l is made of q as t is of w
phi. That holds for every g. A good one lets the two parts cancel pair by pair, before anything is solved.
"""

from __future__ import annotations

import numpy as np

from ..engine.compile import jit_no_refcount
from ..engine.maths import F32, I64
from ..engine.vectors import load, select, splat, store


@jit_no_refcount
def many_guess(G: F32, N: int, KP: int, lo: I64, hi: I64, u: F32, v: F32, w: F32, phi: F32, K: int, b: F32,
               g: F32) -> None:  # fmt: skip
    """Write the guess.

    phi, b  (K, 16)  IN
    g       (K, 16)  OUT
    """
    for j in range(0, 16 * KP, 16):
        store(g, j, splat(0.0))
    for block in range(N // 4):
        o, i = 64 * block * KP, 64 * block
        w0, w1 = load(w, i) * load(v, i), load(w, i + 16) * load(v, i + 16)
        w2, w3 = load(w, i + 32) * load(v, i + 32), load(w, i + 48) * load(v, i + 48)
        for j in range(lo[block], hi[block]):
            e = o + 64 * j
            left = load(G, e) * w0 + load(G, e + 16) * w1
            right = load(G, e + 32) * w2 + load(G, e + 48) * w3
            store(g, 16 * j, load(g, 16 * j) + (left + right))
    running = splat(0.0)
    for j in range(K):
        before, after = 16 * max(j - 1, 0), 16 * min(j + 1, K - 1)
        weight = load(b, 16 * j)
        step = select(weight > 0.0, splat(0.5 if 0 < j < K - 1 else 1.0) / weight, splat(0.0))
        rise = load(g, 16 * j) * load(u, 16 * j) * ((load(phi, after) - load(phi, before)) * step)
        store(g, 16 * j, running + rise * np.float32(0.5))
        running = running + rise
    for j in range(16 * K, 16 * KP, 16):
        store(g, j, running)


@jit_no_refcount
def many_left(G: F32, N: int, KP: int, best: I64, lo: I64, hi: I64, u: F32, v: F32, w: F32, a: F32, phi: F32, g: F32,
              y: F32, cov: F32, t: F32) -> None:  # fmt: skip
    """Write Cov_i(q_i, y) and t_j = sum_i p_ij (q_ij - E_i q_i) for q_ij = w_i phi_j - a_i g_j."""
    z = splat(0.0)
    for j in range(0, 16 * KP, 16):
        store(t, j, z)
    for block in range(N // 4):
        o, j_0, i = 64 * block * KP, best[4 * block], 64 * block
        phi_0, g_0, y_0 = load(phi, 16 * j_0), load(g, 16 * j_0), load(y, 16 * j_0)
        w0, w1, w2, w3 = load(w, i), load(w, i + 16), load(w, i + 32), load(w, i + 48)
        a0, a1, a2, a3 = load(a, i), load(a, i + 16), load(a, i + 32), load(a, i + 48)
        m0, m1, m2, m3, y0, y1, y2, y3, c0, c1, c2, c3 = z, z, z, z, z, z, z, z, z, z, z, z
        for j in range(lo[block], hi[block]):
            e, uj, dy = o + 64 * j, load(u, 16 * j), load(y, 16 * j) - y_0
            level, known = load(phi, 16 * j) - phi_0, load(g, 16 * j) - g_0
            p = load(G, e) * uj
            of = p * (w0 * level - a0 * known)
            m0, y0, c0 = m0 + of, y0 + p * dy, c0 + of * dy
            p = load(G, e + 16) * uj
            of = p * (w1 * level - a1 * known)
            m1, y1, c1 = m1 + of, y1 + p * dy, c1 + of * dy
            p = load(G, e + 32) * uj
            of = p * (w2 * level - a2 * known)
            m2, y2, c2 = m2 + of, y2 + p * dy, c2 + of * dy
            p = load(G, e + 48) * uj
            of = p * (w3 * level - a3 * known)
            m3, y3, c3 = m3 + of, y3 + p * dy, c3 + of * dy
        v0, v1, v2, v3 = load(v, i), load(v, i + 16), load(v, i + 32), load(v, i + 48)
        m0, m1, m2, m3 = m0 * v0, m1 * v1, m2 * v2, m3 * v3
        store(cov, i, (c0 - m0 * y0) * v0)
        store(cov, i + 16, (c1 - m1 * y1) * v1)
        store(cov, i + 32, (c2 - m2 * y2) * v2)
        store(cov, i + 48, (c3 - m3 * y3) * v3)
        for j in range(lo[block], hi[block]):
            e, level, known = o + 64 * j, load(phi, 16 * j) - phi_0, load(g, 16 * j) - g_0
            left = load(G, e) * v0 * (w0 * level - a0 * known - m0)
            left = left + load(G, e + 16) * v1 * (w1 * level - a1 * known - m1)
            right = load(G, e + 32) * v2 * (w2 * level - a2 * known - m2)
            right = right + load(G, e + 48) * v3 * (w3 * level - a3 * known - m3)
            store(t, 16 * j, load(t, 16 * j) + (left + right))
    for j in range(0, 16 * KP, 16):
        store(t, j, load(t, j) * load(u, j))
