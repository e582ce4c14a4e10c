"""One row of a plan, solved: scalings u and v of a fixed matrix, by Newton steps on u.

Sources at x~_i (weights a_i, increasing, in blocks of 16) meet targets y_j (weights b_j, in groups of 4). With
t_i = 2 x~_i / eps and the potentials h_j of the hard sort (see ``staircase``) the reduced cost and the plan are

    M_ij = r_i - (t_i y_j - h_j) >= 0,    r_i = max_j (t_i y_j - h_j),     G_ij = exp(-M_ij),     p_ij = v_i G_ij u_j,

where v_i = 1 / sum_j G_ij u_j makes rows exact. Exponentials are taken once: what a step changes is u, by a factor.
M vanishes along the staircase, at the target ``best`` of each source, and grows away from it, so G is a band: group g
of targets meets blocks lo_g to hi_g, both increasing in g, and what is outside is below e^-36. The ones of G (at
``best``) are left out of the matrix and added by hand: what remains is what the hard sort does not do, with all its
digits. Each step needs the column sums and the graph Laplacian L = diag(u s) - W, W = sum_i a_i p_i p_i^T >= 0, see
``row.laplacian``. The first one of a soft plan only has to be good enough that the error falls fast while it is
kept: what is far from the best target (``NEAR``) is left out, a hundredth of L, and with it most of the width of W.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.compile import jit_no_refcount
from ..engine.maths import F32, F64, I64, copied, exp32, larger, size_of
from ..engine.staircase import SAME_MASS_SINGLE, passages
from ..engine.vectors import highest, lane_numbers, load, load64, narrow, select, splat, store, total, totals
from .laplacian import edges, eliminate, substitute

CUT = 36.0  #: reduced cost beyond which nothing is kept
NEAR = 4.0  #: and beyond which the first Laplacian of a soft plan has nothing
_SMALL_LOGITS = 400.0  #: range of 2 x~ y / eps up to which single precision gives p to 4e-6
_ROUNDING = 2e-7  #: of weights in single precision
_RIDGE = np.float32(1e-6)  #: conductance to the ground, times b: what it hides cannot be seen in the answers
_LARGEST_STEP = np.float32(5.0)
_TINY, _ZERO, _ONE = np.float32(1e-30), np.float32(0.0), np.float32(1.0)
_TOLERANCE = 1e-6  #: L1 error of the column marginal
_TOLERANCE_OF_FLOW = 1e-5  #: as a share of what does not go where the hard sort sends it: gradients are made of that
SOFT = np.float32(0.8)  #: where more than this flows, the best targets are nothing special
_FLOOR = 2e-7  #: elsewhere, go on until rounding stops the error from falling
_LEFT = 1e-5  #: how far potentials of a soft plan may still be off, which marginals hide where links are weak
_MOST_STEPS = 40
_SINKHORN = 1  #: steps of Sinkhorn at the start, which cost little
_KEEP = 0.2  #: an inverse is kept while each step leaves at most so much of the error


@jit_no_refcount
def staircase(at: F64, aw: F32, n: int, y: F64, b: F64, K: int, eps: float, h: F64) -> None:
    """h_j = (y_j^2 - g_j) / eps for the optimal potential g of the hard sort: as ``solvers.start``.

    Between targets j and j + 1 it rises by 2 x / eps times their distance, x being where the sources pass from one to
    the other.
    """
    h[0] = 0.0
    passages(at, aw, n, b, K, SAME_MASS_SINGLE, h[1:])
    for j in range(K - 1):
        h[j + 1] = h[j] + 2.0 * h[j + 1] / eps * (y[j + 1] - y[j])


@jit_no_refcount
def best_targets(at: F64, N: int, y: F64, h: F64, K: int, eps: float, t: F64, r: F64, best: I64) -> None:
    """t, r and the target ``best`` with M = 0 of increasing sources."""
    j = 0
    for i in range(N):
        ti = 2.0 * at[i] / eps
        here = ti * y[j] - h[j]
        while j < K - 1 and ti * y[j + 1] - h[j + 1] >= here:
            j += 1
            here = ti * y[j] - h[j]
        t[i], r[i], best[i] = ti, here, j


@jit_no_refcount
def band(t: F64, r: F64, best: I64, N: int, y: F64, h: F64, K: int, cut: float, lo: I64, hi: I64, ends: I64) -> None:
    """Which blocks meet which groups at a reduced cost of at most ``cut``.

    Targets of group g share sources with those before ends_g.
    """
    blocks, groups = N // 16, (K + 3) // 4
    first, last = 0, 0
    for g in range(groups):
        j = 4 * g
        while first < blocks - 1:
            i = 16 * first + 15
            if best[i] >= j or r[i] - (t[i] * y[j] - h[j]) <= cut:
                break
            first += 1
        j = min(4 * g + 3, K - 1)
        last = max(last, first + 1)
        while last < blocks:
            i = 16 * last
            if best[i] > j and r[i] - (t[i] * y[j] - h[j]) > cut:
                break
            last += 1
        lo[g], hi[g] = first, last
    last = 0
    for g in range(groups):
        while last < groups and lo[last] < hi[g]:
            last += 1
        ends[g] = 4 * last


@jit_no_refcount
def groups_of_blocks(lo: I64, hi: I64, blocks: int, groups: int, glo: I64, ghi: I64) -> None:
    """The band the other way round."""
    first, last = 0, 0
    for q in range(blocks):
        while first < groups - 1 and hi[first] <= q:
            first += 1
        last = max(last, first + 1)
        while last < groups and lo[last] <= q:
            last += 1
        glo[q], ghi[q] = first, last


@jit_no_refcount
def gibbs(t: F64, r: F64, best: I64, N: int, y: F64, h: F64, K: int, lo: I64, hi: I64, single: F32, G: F32) -> None:
    """G_ij at [j, i], in the band: 0 in place of the 1 where j is ``best``, and for targets that fill a group.

    Logits are formed in double precision where they are large. With t and y measured from the middle of their ranges
    they often are not: t' y' - (h - t_m y) - (r - t' y_m) is the same. Scratch: ``single`` (2 N).
    """
    groups = (K + 3) // 4
    t_m, y_m = 0.5 * (t[0] + t[N - 1]), 0.5 * (y[0] + y[K - 1])
    if (t[N - 1] - t[0]) * (y[K - 1] - y[0]) < _SMALL_LOGITS:
        t32, r32 = single[:N], single[N:]
        for i in range(0, N, 16):
            from_middle = load64(t, i) - t_m
            store(t32, i, narrow(from_middle))
            store(r32, i, narrow(load64(r, i) - from_middle * y_m))
        for j in range(K):
            yj, hj = np.float32(y[j] - y_m), np.float32(h[j] - t_m * y[j])
            for q in range(lo[j // 4], hi[j // 4]):
                store(G, j * N + 16 * q, exp32(load(t32, 16 * q) * yj - hj - load(r32, 16 * q)))
    else:
        for j in range(K):
            yj64, hj64 = y[j], h[j]
            for q in range(lo[j // 4], hi[j // 4]):
                minus_M = load64(t, 16 * q) * yj64 - hj64 - load64(r, 16 * q)
                store(G, j * N + 16 * q, exp32(narrow(minus_M)))
    for j in range(K, 4 * groups):
        for q in range(lo[j // 4], hi[j // 4]):
            store(G, j * N + 16 * q, splat(0.0))
    for i in range(N):
        G[best[i] * N + i] = _ZERO


@jit_no_refcount
def complete(G: F32, N: int, best: I64) -> None:
    """Adds the ones at ``best``."""
    for i in range(N):
        G[best[i] * N + i] = _ONE


@jit_no_refcount
def excesses(mass: F32, best: I64, N: int, b64: F64, K: int, excess: F32, sums: F64) -> None:
    """What a target lacks if every source goes to its best one: b_j - sum of their weights, zero in total."""
    copied(b64, sums[:K])
    for i in range(N):
        sums[best[i]] -= mass[i]
    over = 0.0
    for j in range(K):
        over += sums[j]
    for j in range(K):
        lacks = sums[j] - over * b64[j]
        excess[j] = lacks if abs(lacks) > _ROUNDING * b64[j] else 0.0


@jit_no_refcount
def scale(G: F32, N: int, K: int, mass: F32, best: I64, u: F32, lo: I64, hi: I64, glo: I64, ghi: I64, soft: bool,
          v: F32, w: F32, parts: F32, s: F32) -> None:  # fmt: skip
    """v; in ``w`` the weight a_i v_i sum_j G_ij u_j that leaves each source's best target; s_j = sum_i a_i v_i G_ij.

    When ``soft``, G is complete and nothing is special about the best target.
    """
    if soft:
        v[:N] = _ZERO
    else:
        for i in range(N):
            v[i] = u[best[i]]
    for q in range(N // 16):
        s0, s1, s2, s3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        for g in range(glo[q], ghi[q]):
            j = 4 * g
            o = j * N + 16 * q
            s0 = s0 + load(G, o) * u[j]
            s1 = s1 + load(G, o + N) * u[j + 1]
            s2 = s2 + load(G, o + 2 * N) * u[j + 2]
            s3 = s3 + load(G, o + 3 * N) * u[j + 3]
        leaving = (s0 + s1) + (s2 + s3)
        vq = splat(1.0) / (leaving + load(v, 16 * q))
        av = vq * load(mass, 16 * q)
        store(v, 16 * q, vq)
        store(w, 16 * q, leaving * av)
        store(parts, 16 * q, av)
    gather(G, N, K, parts, lo, hi, parts[N:], s)


@jit_no_refcount
def add_by_best(w: F32, best: I64, N: int, out: F32) -> None:
    """out_j += sum of w_i over sources whose best target is j; sums are float64, since they may be long."""
    j, here = best[0], 0.0
    for i in range(N):
        if best[i] != j:
            out[j] += here
            j, here = best[i], 0.0
        here += w[i]
    out[j] += here


@jit_no_refcount
def gather(G: F32, N: int, K: int, w: F32, lo: I64, hi: I64, parts: F32, s: F32) -> None:
    """s_j = sum_i w_i G_ij."""
    for g in range((K + 3) // 4):
        j = 4 * g
        s0, s1, s2, s3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        for q in range(lo[g], hi[g]):
            o = j * N + 16 * q
            wq = load(w, 16 * q)
            s0 = s0 + load(G, o) * wq
            s1 = s1 + load(G, o + N) * wq
            s2 = s2 + load(G, o + 2 * N) * wq
            s3 = s3 + load(G, o + 3 * N) * wq
        store(parts, 16 * j, s0)
        store(parts, 16 * j + 16, s1)
        store(parts, 16 * j + 32, s2)
        store(parts, 16 * j + 48, s3)
    add_up(parts, K, s)


@jit_no_refcount
def add_up(parts: F32, K: int, s: F32) -> None:
    """Sums of the rows of ``parts`` (K, 16), sixteen at a time; its rows beyond K, up to a multiple of 16, are read."""
    for j in range(0, K, 16):
        o = 16 * j
        s16 = totals((
            load(parts, o), load(parts, o + 16), load(parts, o + 32), load(parts, o + 48),
            load(parts, o + 64), load(parts, o + 80), load(parts, o + 96), load(parts, o + 112),
            load(parts, o + 128), load(parts, o + 144), load(parts, o + 160), load(parts, o + 176),
            load(parts, o + 192), load(parts, o + 208), load(parts, o + 224), load(parts, o + 240),
        ))  # fmt: skip
        store(s, j, select(lane_numbers() < float(K - j), s16, splat(0.0)))


@jit_no_refcount
def newton(G: F32, N: int, K: int, mass: F32, ra: F32, best: I64, b: F32, excess: F32, lo: I64, hi: I64, glo: I64,
           ghi: I64, near_lo: I64, near_hi: I64, near_ends: I64, stride: int, fine: bool, Q: F32, W: F32, ends: I64,
           inv: F32, u: F32, v: F32, w: F32, parts: F32, s: F32, small: F32
           ) -> tuple[float, int, bool, float]:  # fmt: skip
    """The scalings u and v. Returns the marginal error, the number of eliminations, whether W is a near one, and left.

    Steps as in ``solvers.newton``, but the Laplacian (left eliminated in W) is kept as long as the error falls fast.
    What target j lacks is  excess_j + what leaves it (from sources for which it is best) - u_j s_j:  where the plan is
    nearly a permutation all three are small, and so is their rounding. ``fine``: sources are close to each other.
    ``left`` is about how far potentials may still be off. A share of a value is then off by a quarter of it at most.
    Scratch: ``small`` (9 stride + 256), ``parts`` (2 N + 16 stride).
    """
    base, direction, rho, ridge, z, F = (
        small[:stride], small[stride : 2 * stride], small[2 * stride : 3 * stride], small[3 * stride : 4 * stride],
        small[4 * stride : 5 * stride], small[5 * stride :],
    )  # fmt: skip
    for c in range(0, stride, 16):
        store(u, c, load(b, c))
        store(direction, c, splat(0.0))
    length, slope, before, error, farthest, left = 1.0, np.inf, np.inf, np.inf, 0.0, 0.0
    eliminations, soft, near, fresh = 0, False, False, False
    for step in range(_MOST_STEPS + 1):
        scale(G, N, K, mass, best, u, lo, hi, glo, ghi, soft, v, w, parts, s)
        for c in range(0, stride, 16):
            store(rho, c, (load(b, c) if soft else load(excess, c)) - load(u, c) * load(s, c))
        if not soft:
            add_by_best(w, best, N, rho)
        errors, slopes, flows = splat(0.0), splat(0.0), splat(0.0)
        for c in range(0, stride, 16):
            off = load(rho, c)
            store(z, c, off)
            errors = errors + select(off > 0.0, off, splat(0.0) - off)
            slopes = slopes + off * load(direction, c)
            flows = flows + load(u, c) * load(s, c)
        error, flow = float(total(errors)), total(flows)
        if not soft and flow > SOFT:
            complete(G, N, best)
            soft = True
        small_enough = error <= _TOLERANCE and error <= _TOLERANCE_OF_FLOW * flow
        left = farthest * min(error / before, 1.0)  # the next step is as much shorter than this one
        stuck = error <= _FLOOR * flow or (error > 0.3 * before and (fresh or left <= _LEFT))
        done = small_enough and (stuck or (flow > SOFT and left <= _LEFT))
        if done or not error < np.inf or step == _MOST_STEPS:
            return error, eliminations, near, left
        if step < _SINKHORN:
            for c in range(0, stride, 16):
                get = load(b, c) - load(rho, c)
                store(u, c, load(u, c) * select(get > _TINY, load(b, c) / get, splat(1.0)))
            continue
        slope_here = float(total(slopes))
        if slope_here < -0.5 * slope:  # past the maximum: the secant says where it is
            length *= slope / (slope - slope_here)
        else:
            fresh = eliminations == 0 or error > _KEEP * before
            if fresh:
                for c in range(0, stride, 16):
                    store(ridge, c, load(b, c) * (_RIDGE * flow))
                near = soft and eliminations == 0
                if near:
                    edges(G, N, K, ra, best, u, v, near_lo, near_hi, soft, fine, Q, W, stride, near_ends, parts)
                    eliminate(W, K, stride, near_ends, ridge, inv, F)
                else:
                    edges(G, N, K, ra, best, u, v, lo, hi, soft, near, Q, W, stride, ends, parts)
                    eliminate(W, K, stride, ends, ridge, inv, F)
                eliminations += 1
            before = error
            substitute(W, K, stride, near_ends if near else ends, inv, z, direction)
            slope = _direct(direction, rho, b, K, stride)
            for c in range(0, stride, 16):
                store(base, c, load(u, c))
            length = 1.0
        longest = splat(0.0)
        for c in range(0, stride, 16):
            moved = load(direction, c) * np.float32(length)
            longest = larger(longest, select(load(b, c) > 0.0, size_of(moved), splat(0.0)))
            store(u, c, load(base, c) * exp32(moved))
        farthest = float(highest(longest))
    return error, eliminations, near, left


@jit_no_refcount
def _direct(direction: F32, rho: F32, b: F32, K: int, stride: int) -> float:
    """Bounds a step, and returns the slope along it."""
    centre = splat(0.0)
    for c in range(0, stride, 16):
        centre = centre + load(direction, c) * load(b, c)
    mean = total(centre)
    slopes = splat(0.0)
    for c in range(0, stride, 16):
        d = load(direction, c) - mean
        d = select(d > -_LARGEST_STEP, d, splat(-_LARGEST_STEP))
        d = select(d < _LARGEST_STEP, d, splat(_LARGEST_STEP))
        store(direction, c, d)
        slopes = slopes + d * load(rho, c)
    slope = float(total(slopes))
    if slope > 0.0:
        return slope
    slope = 0.0
    for j in range(K):  # Sinkhorn's own step always rises
        direction[j] = math.log(b[j] / max(b[j] - rho[j], _TINY)) if b[j] > 0.0 else 0.0
        slope += direction[j] * rho[j]
    return slope
