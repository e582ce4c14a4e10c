"""Newton's matrix: the Laplacian of a graph with edges sum_i a_i p_ik p_il between the targets k and l.

What     Edges from a plan, their elimination from left to right, and solutions of the system.
When     Once or twice a row in ``newton``, once in the gradient of ``solve``.
Why      Elimination never subtracts: a target is taken out, and its neighbours k and l get the edge w_k w_l / sum(w).
         So links of 1e-13 between two halves of a row keep all their digits, which Cholesky's factor loses.
         Sixteen targets are taken out together, so that the rest of the matrix is read and written once for all of
         them. Systems of sixteen unknowns have their inverse in a table, since to solve one takes as long as to wait
         for sixteen numbers, each of which needs the one before. In single precision, which is enough for steps that
         are corrected by the next one, it takes half the time.
Keeps    Row k of the matrix stands at ``k S - (k & -16)``: columns from k's sixteen on, S in all. What is left of the
         diagonal means nothing while edges are added, and is 0 after the elimination.
"""

from __future__ import annotations

from typing import Any

from ..engine.compile import jit_no_refcount
from ..engine.maths import F32, F64, I64
from ..engine.vectors import load, load_any, splat, store_any, total_any

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
            eight_into(W, to, S, s0, s1, s2, s3, s4, s5, s6, s7)


@jit_no_refcount
def edges_in_single(G: F32, weight: F32, groups: int, lo: I64, hi: I64, offset: I64, K: int, S: int, ends: I64,
                    W: F32) -> None:  # fmt: skip
    """``edges`` in single precision, of which registers hold 32 columns: each number of G is loaded for two vectors."""
    zero = splat(0.0)
    for k in range(0, K, 8):
        block = k & -16
        for m in range(block, ends[k], 32):
            two = m + 32 <= ends[k]
            s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
            t0, t1, t2, t3, t4, t5, t6, t7 = zero, zero, zero, zero, zero, zero, zero, zero
            for g in range(groups):
                if lo[g] > block or hi[g] <= m:
                    continue
                width, at = hi[g] - lo[g], offset[g] - lo[g]
                both = two and hi[g] > m + 16
                for i in range(4 * g, 4 * g + 4):
                    line = load(G, at + m) * weight[i]
                    more = load(G, at + m + 16) * weight[i] if both else zero
                    s0, t0 = s0 + line * G[at + k], t0 + more * G[at + k]
                    s1, t1 = s1 + line * G[at + k + 1], t1 + more * G[at + k + 1]
                    s2, t2 = s2 + line * G[at + k + 2], t2 + more * G[at + k + 2]
                    s3, t3 = s3 + line * G[at + k + 3], t3 + more * G[at + k + 3]
                    s4, t4 = s4 + line * G[at + k + 4], t4 + more * G[at + k + 4]
                    s5, t5 = s5 + line * G[at + k + 5], t5 + more * G[at + k + 5]
                    s6, t6 = s6 + line * G[at + k + 6], t6 + more * G[at + k + 6]
                    s7, t7 = s7 + line * G[at + k + 7], t7 + more * G[at + k + 7]
                    at += width
            to = k * S - block + m
            eight_into(W, to, S, s0, s1, s2, s3, s4, s5, s6, s7)
            if two:
                eight_into(W, to + 16, S, t0, t1, t2, t3, t4, t5, t6, t7)


@jit_no_refcount
def eight_into(W: Any, to: int, step: int, s0: Any, s1: Any, s2: Any, s3: Any, s4: Any, s5: Any, s6: Any,
               s7: Any) -> None:  # fmt: skip
    """Store eight vectors, a step apart."""
    store_any(W, to, s0)
    store_any(W, to + step, s1)
    store_any(W, to + 2 * step, s2)
    store_any(W, to + 3 * step, s3)
    store_any(W, to + 4 * step, s4)
    store_any(W, to + 5 * step, s5)
    store_any(W, to + 6 * step, s6)
    store_any(W, to + 7 * step, s7)


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
def eliminate(W: Any, K: int, S: int, ends: I64, b: F64, per_weight: float, ground: Any, inverse: Any,
              corners: Any) -> None:  # fmt: skip
    """Take out all targets, sixteen at a time. K is a multiple of 16; targets behind the last one weigh nothing.

    corners  OUT  (48 K + 272) what ``substitute`` needs of each sixteen targets, and scratch behind it, at whose end
             stand sixteen vectors: the k-th has ones behind its k-th number, else zeros
    """
    for k in range(K):
        ground[k] = per_weight * b[k] if b[k] > 0.0 else 1.0
    for first in range(0, K, 16):
        end = ends[first]
        corner(W, S, first, end, ground, inverse, corners)
        width = end - first
        shares = corners[32 * K :]
        for m in range(first + 16, end, 16):  # the second half first: it needs the first one as it was
            final(W, S, first, width, corners, first + 8, m, inverse, shares)
            final(W, S, first, width, corners, first, m, inverse, shares)
        for m in range(first + 16, end, 16):
            store_any(ground, m, load_any(ground, m) + combined(shares, m - first, width, ground, first))
        for r in range(first + 16, end, 4):
            for m in range(r & -16, end, 32):
                if m + 32 <= end:
                    spread_wide(W, S, first, width, shares, r, m)
                else:
                    spread(W, S, first, width, shares, r, m)


@jit_no_refcount
def corner(W: Any, S: int, first: int, end: int, ground: Any, inverse: Any, corners: Any) -> None:
    """Take sixteen targets out of their own edges, and write A = (I - N)^-1, and behind it its transpose.

    N_rk is the share of target k that target r takes over. The rows of the sixteen targets, in the columns behind
    them, are those before the elimination times A, so here their sums are all that counts.
    """
    rows, upper = 32 * first, len(corners) - 256
    behind = upper - 16
    for k in range(16):
        line = (first + k) * S
        sums = load_any(corners, upper + 240)
        for m in range(16, end - first, 16):
            sums = sums + load_any(W, line + m)
        corners[behind + k] = total_any(sums)
        store_any(corners, rows + 16 * k, load_any(corners, upper + 240))
    for k in range(16):
        corners[rows + 17 * k] = 1.0
    for k in range(16):
        line = (first + k) * S
        edge = load_any(W, line) * load_any(corners, upper + 16 * k)
        here, past = ground[first + k], corners[behind + k]
        unit = 1.0 / (here + past + total_any(edge))
        inverse[first + k] = unit
        share = edge * unit
        store_any(W, line, share)
        store_any(ground, first, load_any(ground, first) + share * here)
        store_any(corners, behind, load_any(corners, behind) + share * past)
        of_k = load_any(corners, rows + 16 * k)
        for r in range(k + 1, 16):
            part, at = W[line + r], (first + r) * S
            store_any(W, at, load_any(W, at) + edge * part)
            store_any(corners, rows + 16 * r, load_any(corners, rows + 16 * r) + of_k * part)
    for k in range(16):
        for r in range(16):
            corners[rows + 256 + 16 * k + r] = corners[rows + 16 * r + k]


@jit_no_refcount
def final(W: Any, S: int, first: int, width: int, corners: Any, k: int, m: int, inverse: Any, shares: Any) -> None:
    """Write the edges of the targets k to k + 7 with the targets m to m + 15 as they are when each k is taken out.

    The eight targets are the first or the second half of the sixteen from ``first`` on.
    """
    at, a = first * S - first + m, 32 * first + 16 * (k - first)
    line = load_any(W, at)
    s0, s1, s2, s3 = line * corners[a], line * corners[a + 16], line * corners[a + 32], line * corners[a + 48]
    s4, s5, s6, s7 = line * corners[a + 64], line * corners[a + 80], line * corners[a + 96], line * corners[a + 112]
    for j in range(1, k - first + 8):
        line = load_any(W, at + j * S)
        s0, s1 = s0 + line * corners[a + j], s1 + line * corners[a + 16 + j]
        s2, s3 = s2 + line * corners[a + 32 + j], s3 + line * corners[a + 48 + j]
        s4, s5 = s4 + line * corners[a + 64 + j], s5 + line * corners[a + 80 + j]
        s6, s7 = s6 + line * corners[a + 96 + j], s7 + line * corners[a + 112 + j]
    to, share = k * S - first + m, (k - first) * width + m - first
    eight_into(W, to, S, s0, s1, s2, s3, s4, s5, s6, s7)
    eight_into(
        shares, share, width, s0 * inverse[k], s1 * inverse[k + 1], s2 * inverse[k + 2], s3 * inverse[k + 3],
        s4 * inverse[k + 4], s5 * inverse[k + 5], s6 * inverse[k + 6], s7 * inverse[k + 7],
    )  # fmt: skip


@jit_no_refcount
def spread(W: Any, S: int, first: int, width: int, shares: Any, r: int, m: int) -> None:
    """Add what sixteen targets leave behind to the edges of the targets r to r + 3 with the targets m to m + 15."""
    to = r * S - (r & -16) + m
    s0, s1, s2, s3 = load_any(W, to), load_any(W, to + S), load_any(W, to + 2 * S), load_any(W, to + 3 * S)
    at, share = first * S - first + m, r - first
    for _ in range(16):
        line = load_any(W, at)
        s0, s1 = s0 + line * shares[share], s1 + line * shares[share + 1]
        s2, s3 = s2 + line * shares[share + 2], s3 + line * shares[share + 3]
        at += S
        share += width
    store_any(W, to, s0)
    store_any(W, to + S, s1)
    store_any(W, to + 2 * S, s2)
    store_any(W, to + 3 * S, s3)


@jit_no_refcount
def spread_wide(W: Any, S: int, first: int, width: int, shares: Any, r: int, m: int) -> None:
    """``spread`` for the targets m to m + 31: each share is loaded for two vectors."""
    to = r * S - (r & -16) + m
    s0, s1, s2, s3 = load_any(W, to), load_any(W, to + S), load_any(W, to + 2 * S), load_any(W, to + 3 * S)
    t0, t1 = load_any(W, to + 16), load_any(W, to + S + 16)
    t2, t3 = load_any(W, to + 2 * S + 16), load_any(W, to + 3 * S + 16)
    at, share = first * S - first + m, r - first
    for _ in range(16):
        line, next_line = load_any(W, at), load_any(W, at + 16)
        c0, c1, c2, c3 = shares[share], shares[share + 1], shares[share + 2], shares[share + 3]
        s0, s1, s2, s3 = s0 + line * c0, s1 + line * c1, s2 + line * c2, s3 + line * c3
        t0, t1, t2, t3 = t0 + next_line * c0, t1 + next_line * c1, t2 + next_line * c2, t3 + next_line * c3
        at += S
        share += width
    store_any(W, to, s0)
    store_any(W, to + S, s1)
    store_any(W, to + 2 * S, s2)
    store_any(W, to + 3 * S, s3)
    store_any(W, to + 16, t0)
    store_any(W, to + S + 16, t1)
    store_any(W, to + 2 * S + 16, t2)
    store_any(W, to + 3 * S + 16, t3)


@jit_no_refcount
def combined(lines: Any, at: int, step: int, t: Any, first: int) -> Any:
    """Return the sum of sixteen vectors, the k-th times t[first + k]."""
    even, odd = load_any(lines, at) * t[first], load_any(lines, at + step) * t[first + 1]
    for k in range(2, 16, 2):
        at += 2 * step
        even = even + load_any(lines, at) * t[first + k]
        odd = odd + load_any(lines, at + step) * t[first + k + 1]
    return even + odd


@jit_no_refcount
def substitute(W: Any, K: int, S: int, ends: I64, inverse: Any, corners: Any, t: Any) -> None:
    """Solve the eliminated system in place: t goes in as the right side and comes out as the solution."""
    for first in range(0, K, 16):
        store_any(t, first, combined(corners, 32 * first + 256, 16, t, first) * load_any(inverse, first))
        for m in range(first + 16, ends[first], 16):
            store_any(t, m, load_any(t, m) + combined(W, first * S - first + m, S, t, first))
    for first in range(K - 16, -1, -16):
        if ends[first] > first + 16:
            for k in range(first, first + 16):
                line = k * S - first
                sums = load_any(W, line + first + 16) * load_any(t, first + 16)
                for m in range(first + 32, ends[first], 16):
                    sums = sums + load_any(W, line + m) * load_any(t, m)
                t[k] += total_any(sums) * inverse[k]
        store_any(t, first, combined(corners, 32 * first, 16, t, first))


@jit_no_refcount
def corners_of(corners: Any) -> None:
    """Write the vectors of zeros and ones that ``eliminate`` wants at the end."""
    upper = len(corners) - 256
    for k in range(16):
        for m in range(16):
            corners[upper + 16 * k + m] = 1.0 if m > k else 0.0
