"""Newton's matrix: the Laplacian of a graph with edges sum_i a_i p_ik p_il between the targets k and l.

What     Edges from a plan, their elimination from left to right, and solutions of the system.
When     Once or twice a row in ``newton``, once in the gradient of ``solve``.
Why      Elimination never subtracts: a target is taken out, and its neighbours k and l get the edge w_k w_l / sum(w).
         So links of 1e-13 between two halves of a row keep all their digits, which Cholesky's factor loses.
         Four targets are taken out together, since each pass over the rest of the matrix costs memory traffic. In
         single precision, which is enough for steps that are corrected by the next one, it takes half the time.
Keeps    Row k of the matrix stands at ``k S - (k & -16)``: columns from k's sixteen on, S in all. What is left of the
         diagonal means nothing while edges are added, and is 0 after the elimination.
"""

from __future__ import annotations

from typing import Any

from ..engine.compile import jit_no_refcount
from ..engine.maths import F64, I64
from ..engine.vectors import load_any, store_any, total_any

# What joins a target to the ground, times its weight. A step of Newton's method must not wander along what hardly any
# mass crosses, so there it is the ridge of ``semidual.hessian_factor``. A gradient needs it only where nothing crosses.
GROUND_OF_STEPS, GROUND_OF_GRADIENTS = 1e-13, 1e-16
GROUND_OF_SINGLES = 1e-7  # the same in single precision, where what goes in sums up to zero but for rounding


@jit_no_refcount
def edges(G: Any, weight: Any, groups: int, lo: I64, hi: I64, offset: I64, K: int, S: int, ends: I64,
          W: Any) -> None:  # fmt: skip
    """Write W_kl = sum_i weight_i G_ik G_il for l > k: eight rows of sixteen at a time, which registers hold.

    G       IN   four values after another share a window of targets, lo to hi; their lines begin at offset
    weight  IN   (4 groups)
    W       OUT  (K S)
    """
    W[:16] = 0.0
    zero = load_any(W, 0)
    for k in range(0, K, 8):
        block = k & -16
        for m in range(block, ends[k], 16):
            s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
            for g in range(groups):
                if lo[g] > block or hi[g] <= m:
                    continue
                width, at = hi[g] - lo[g], offset[g] - lo[g]
                for i in range(4 * g, 4 * g + 4):
                    line = load_any(G, at + m) * weight[i]
                    s0, s1 = s0 + line * G[at + k], s1 + line * G[at + k + 1]
                    s2, s3 = s2 + line * G[at + k + 2], s3 + line * G[at + k + 3]
                    s4, s5 = s4 + line * G[at + k + 4], s5 + line * G[at + k + 5]
                    s6, s7 = s6 + line * G[at + k + 6], s7 + line * G[at + k + 7]
                    at += width
            to = k * S - block + m
            store_any(W, to, s0)
            store_any(W, to + S, s1)
            store_any(W, to + 2 * S, s2)
            store_any(W, to + 3 * S, s3)
            store_any(W, to + 4 * S, s4)
            store_any(W, to + 5 * S, s5)
            store_any(W, to + 6 * S, s6)
            store_any(W, to + 7 * S, s7)


@jit_no_refcount
def scale(W: Any, u: Any, ends: I64, K: int, S: int) -> None:
    """W_kl becomes u_k W_kl u_l."""
    for k in range(K):
        line = k * S - (k & -16)
        for m in range(k & -16, ends[k], 16):
            store_any(W, line + m, load_any(W, line + m) * load_any(u, m) * u[k])


@jit_no_refcount
def ends_into(groups: int, lo: I64, hi: I64, K: int, ends: I64) -> int:
    """Write the end of each target's neighbours (a multiple of 16), and return S, the most columns of a row."""
    for k in range(K):
        ends[k] = (k & -16) + 16
    for g in range(groups):
        for k in range(lo[g], hi[g], 16):
            ends[k] = max(ends[k], hi[g])
    S, last = 16, 0
    for k in range(0, K, 16):
        last = max(last, ends[k])
        for m in range(k, k + 16):
            ends[m] = last
        S = max(S, last - k)
    return S


@jit_no_refcount
def eliminate(W: Any, K: int, S: int, ends: I64, b: F64, per_weight: float, ground: Any, inverse: Any) -> None:
    """Take out all targets, four at a time. K is a multiple of 16; targets behind the last one weigh nothing."""
    for k in range(K):
        ground[k] = per_weight * b[k] if b[k] > 0.0 else 1.0
    for k0 in range(0, K, 4):
        end, block = ends[k0 + 3], k0 & -16
        for k in range(k0, k0 + 4):
            line = k * S - block
            for m in range(block, k + 1):
                W[line + m] = 0.0
            sums = load_any(W, line + block)
            for m in range(block + 16, end, 16):
                sums = sums + load_any(W, line + m)
            inverse[k] = 1.0 / (ground[k] + total_any(sums))
            for r in range(k + 1, k0 + 4):
                share = W[line + r] * inverse[k]
                if share > 0.0:
                    ground[r] += share * ground[k]
                    to = r * S - block
                    for m in range(block, end, 16):
                        store_any(W, to + m, load_any(W, to + m) + load_any(W, line + m) * share)
        line0, line1 = k0 * S - block, (k0 + 1) * S - block
        line2, line3 = (k0 + 2) * S - block, (k0 + 3) * S - block
        for r in range(k0 + 4, end, 2):  # two rows at a time, so that each of the four lines is read half as often
            s0, s1 = W[line0 + r] * inverse[k0], W[line1 + r] * inverse[k0 + 1]
            s2, s3 = W[line2 + r] * inverse[k0 + 2], W[line3 + r] * inverse[k0 + 3]
            t0, t1 = W[line0 + r + 1] * inverse[k0], W[line1 + r + 1] * inverse[k0 + 1]
            t2, t3 = W[line2 + r + 1] * inverse[k0 + 2], W[line3 + r + 1] * inverse[k0 + 3]
            if not s0 + s1 + s2 + s3 + (t0 + t1 + t2 + t3) > 0.0:
                continue
            ground[r] += s0 * ground[k0] + s1 * ground[k0 + 1] + s2 * ground[k0 + 2] + s3 * ground[k0 + 3]
            ground[r + 1] += t0 * ground[k0] + t1 * ground[k0 + 1] + t2 * ground[k0 + 2] + t3 * ground[k0 + 3]
            to = r * S - (r & -16)
            for m in range(r & -16, end, 16):
                w0, w1 = load_any(W, line0 + m), load_any(W, line1 + m)
                w2, w3 = load_any(W, line2 + m), load_any(W, line3 + m)
                store_any(W, to + m, load_any(W, to + m) + w0 * s0 + w1 * s1 + (w2 * s2 + w3 * s3))
                store_any(W, to + S + m, load_any(W, to + S + m) + w0 * t0 + w1 * t1 + (w2 * t2 + w3 * t3))


@jit_no_refcount
def substitute(W: Any, K: int, S: int, ends: I64, inverse: Any, t: Any) -> None:
    """Solve the eliminated system in place: t goes in as the right side and comes out as the solution."""
    for k in range(K):
        line, flow = k * S - (k & -16), t[k] * inverse[k]
        if flow != 0.0:
            for m in range(k & -16, ends[k], 16):
                store_any(t, m, load_any(t, m) + load_any(W, line + m) * flow)
    for k in range(K - 1, -1, -1):
        block = k & -16
        line = k * S - block
        sums = load_any(W, line + block) * load_any(t, block)
        for m in range(block + 16, ends[k], 16):
            sums = sums + load_any(W, line + m) * load_any(t, m)
        t[k] = (t[k] + total_any(sums)) * inverse[k]
