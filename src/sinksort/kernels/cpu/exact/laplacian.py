"""Newton's matrix: the Laplacian of a graph with edges sum_i a_i p_ik p_il between the targets k and l.

What     Edges from a plan, their elimination from left to right, and solutions of the system.
When     Once or twice a row in ``newton``, once in the gradient of ``solve``.
Why      Elimination never subtracts: a target is taken out, and its neighbours k and l get the edge w_k w_l / sum(w).
         So links of 1e-13 between two halves of a row keep all their digits, which Cholesky's factor loses.
         Four targets are taken out together, since each pass over the rest of the matrix costs memory traffic.
Keeps    Row k of the matrix stands at ``k S - (k & -16)``: columns from k's sixteen on, S in all. What is left of the
         diagonal means nothing while edges are added, and is 0 after the elimination.
"""

from __future__ import annotations

from ..engine.compile import borrowing
from ..engine.maths import F64, I64
from ..engine.vectors import load64, splat64, store64, total64

# What joins a target to the ground, times its weight. A step of Newton's method must not wander along what hardly any
# mass crosses, so there it is the ridge of ``semidual.hessian_factor``. A gradient needs it only where nothing crosses.
GROUND_OF_STEPS, GROUND_OF_GRADIENTS = 1e-13, 1e-16
_FAINT = 1e-25  # exponentials below this add nothing to an edge


@borrowing
def edges(G: F64, weight: F64, groups: int, lo: I64, hi: I64, offset: I64, K: int, S: int, W: F64) -> None:
    """Write W_kl = sum_i weight_i G_ik G_il for l > k.

    G       IN   four values after another share a window of targets, lo to hi; their lines begin at offset
    weight  IN   (4 groups)
    W       OUT  (K S)
    """
    none = splat64(0.0)
    for q in range(0, K * S, 16):
        store64(W, q, none)
    for g in range(groups):
        first, end = lo[g], hi[g]
        width, at = end - first, offset[g] - lo[g]
        w0, w1, w2, w3 = weight[4 * g], weight[4 * g + 1], weight[4 * g + 2], weight[4 * g + 3]
        at1, at2, at3 = at + width, at + 2 * width, at + 3 * width
        for k in range(first, end, 2):  # two rows of W at a time, so that each entry of G is read half as often
            c0, c1, c2, c3 = G[at + k], G[at1 + k], G[at2 + k], G[at3 + k]
            d0, d1, d2, d3 = G[at + k + 1], G[at1 + k + 1], G[at2 + k + 1], G[at3 + k + 1]
            if c0 + c1 + c2 + c3 + d0 + d1 + d2 + d3 < _FAINT:
                continue
            c0, c1, c2, c3 = c0 * w0, c1 * w1, c2 * w2, c3 * w3
            d0, d1, d2, d3 = d0 * w0, d1 * w1, d2 * w2, d3 * w3
            block = k & -16
            line = k * S - block
            for m in range(block, end, 16):
                g0, g1, g2, g3 = load64(G, at + m), load64(G, at1 + m), load64(G, at2 + m), load64(G, at3 + m)
                store64(W, line + m, load64(W, line + m) + g0 * c0 + g1 * c1 + (g2 * c2 + g3 * c3))
                store64(W, line + S + m, load64(W, line + S + m) + g0 * d0 + g1 * d1 + (g2 * d2 + g3 * d3))


@borrowing
def scale(W: F64, u: F64, ends: I64, K: int, S: int) -> None:
    """W_kl becomes u_k W_kl u_l."""
    for k in range(K):
        line = k * S - (k & -16)
        for m in range(k & -16, ends[k], 16):
            store64(W, line + m, load64(W, line + m) * load64(u, m) * u[k])


@borrowing
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


@borrowing
def eliminate(W: F64, K: int, S: int, ends: I64, b: F64, per_weight: float, ground: F64, inverse: F64) -> None:
    """Take out all targets, four at a time. K is a multiple of 16; targets behind the last one weigh nothing."""
    none = splat64(0.0)
    for k in range(K):
        ground[k] = per_weight * b[k] if b[k] > 0.0 else 1.0
    for k0 in range(0, K, 4):
        end, block = ends[k0 + 3], k0 & -16
        for k in range(k0, k0 + 4):
            line = k * S - block
            for m in range(block, k + 1):
                W[line + m] = 0.0
            sums = none
            for m in range(block, end, 16):
                sums = sums + load64(W, line + m)
            inverse[k] = 1.0 / (ground[k] + total64(sums))
            for r in range(k + 1, k0 + 4):
                share = W[line + r] * inverse[k]
                if share > 0.0:
                    ground[r] += share * ground[k]
                    to = r * S - block
                    for m in range(block, end, 16):
                        store64(W, to + m, load64(W, to + m) + load64(W, line + m) * share)
        line0, line1 = k0 * S - block, (k0 + 1) * S - block
        line2, line3 = (k0 + 2) * S - block, (k0 + 3) * S - block
        for r in range(k0 + 4, end):
            s0, s1 = W[line0 + r] * inverse[k0], W[line1 + r] * inverse[k0 + 1]
            s2, s3 = W[line2 + r] * inverse[k0 + 2], W[line3 + r] * inverse[k0 + 3]
            if not s0 + s1 + s2 + s3 > 0.0:
                continue
            ground[r] += s0 * ground[k0] + s1 * ground[k0 + 1] + s2 * ground[k0 + 2] + s3 * ground[k0 + 3]
            to = r * S - (r & -16)
            for m in range(r & -16, end, 16):
                sums = load64(W, to + m) + load64(W, line0 + m) * s0
                sums = sums + load64(W, line1 + m) * s1
                sums = sums + load64(W, line2 + m) * s2
                store64(W, to + m, sums + load64(W, line3 + m) * s3)


@borrowing
def substitute(W: F64, K: int, S: int, ends: I64, inverse: F64, t: F64) -> None:
    """Solve the eliminated system in place: t goes in as the right side and comes out as the solution."""
    for k in range(K):
        line, flow = k * S - (k & -16), t[k] * inverse[k]
        if flow != 0.0:
            for m in range(k & -16, ends[k], 16):
                store64(t, m, load64(t, m) + load64(W, line + m) * flow)
    for k in range(K - 1, -1, -1):
        line, sums = k * S - (k & -16), splat64(0.0)
        for m in range(k & -16, ends[k], 16):
            sums = sums + load64(W, line + m) * load64(t, m)
        t[k] = (t[k] + total64(sums)) * inverse[k]
