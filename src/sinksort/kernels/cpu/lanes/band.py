"""Ranks of many rows of moderate length, sixteen rows at a time: lane l of every vector belongs to row l.

The mathematics of ``row.newton`` and ``row.read`` for what most rows are: a plan so soft that its best targets are
nothing special. In lanes no sum is across a vector and no chain of dependent steps is waited for. Rows that turn out to
be stiffer are left to the other kernels.

Values are sorted. Where they weigh the same and rows share their targets, the hard sort puts value i into the same
target (``best``) in all rows, and the same values stand at the boundary between two targets; only where they stand
differs. With weights, or targets of their own, rows have boundaries of their own, and ``best`` is no more than a target
that is near: how much nearer another one is says a ``shift``. Where that is large, the row is left to other kernels.

Sources go in blocks of four and targets in groups of four. Block I meets targets lo_I to hi_I, the union of what its
rows need; G of block I, target j and source s of the block is at [16 (4 (I K + j) + s)], where K is a multiple of four.
Numbers of target j are at [16 j], of source i at [16 i].

Rows of a plan are scaled to their sums, so each row of G may have a factor of its own. Newton's matrix only has to be
good enough that the error falls fast while it is kept: what is far from the best target is left out, and with it most
of the width of the band. That is W[16 (k ``width`` + c - (k - k % 4))] for the edge from k to c.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..engine.compile import jit_no_refcount
from ..engine.maths import F32, F64, I64, exp32, larger, power_of_two, size_of, smaller
from ..engine.staircase import SAME_MASS_SINGLE
from ..engine.vectors import any_lane, load, load64, narrow, root, select, splat, splat64, store, store64, widen

BEST, BEFORE, AFTER, LO, HI, NEAR_LO, NEAR_HI, ENDS = range(8)  # rows of BandShape.table

CUT = 16.0  #: reduced cost beyond which nothing is kept: plans are soft, and what is left out is below their rounding
_SMALL_LOGITS = 400.0  #: range of 2 x~ y / eps up to which single precision gives p to 4e-6
_LARGEST_RATIO = 40.0  #: logarithm of the largest quotient of neighbours in a row of G
NEAR = 4.0  #: reduced cost up to which a source joins targets in Newton's matrix: what is left out is a hundredth
_RIDGE, _TINY = np.float32(1e-6), np.float32(1e-30)
_LARGEST_STEP = np.float32(2.0)
_NEXT_TO_NOTHING = np.float32(1e-15)  #: scaling of padding: it keeps sums from being 0, and is lost in all others
_TOLERANCE, _TOLERANCE_OF_FLOW = np.float32(1e-6), np.float32(1e-5)
_MOST_STEPS, _KEEP, _MARGIN = 12, np.float32(0.2), np.float32(3.0)  #: steps; shares of an error

_LOG2E = 1.4426950408889634


@njit(forceinline=True)
def _store_four(W: Any, at: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    store(W, at, a)
    store(W, at + 16, b)
    store(W, at + 32, c)
    store(W, at + 48, d)


@jit_no_refcount
def hard_sort(n: int, N: int, b: F32, K: int, before: I64, after: I64, best: I64) -> None:
    """Which values stand at the boundaries (see ``engine.staircase``), and where each value goes."""
    boundary, one, first, second = 0.0, float(np.float32(1.0 / n)), 0, 0
    for j in range(K - 1):
        boundary += b[j]
        while first < n - 1 and one * (first + 1) < boundary - SAME_MASS_SINGLE:
            first += 1
        while second < n - 1 and one * (second + 1) <= boundary + SAME_MASS_SINGLE:
            second += 1
        before[j], after[j] = first, second
    j = 0
    for i in range(N):
        while j < K - 1 and after[j] <= i < n:
            j += 1
        best[i] = j


@jit_no_refcount
def band_staircase(t: F64, y: F64, K: int, KP: int, before: I64, after: I64, h: F64) -> None:
    height = splat64(0.0)
    store64(h, 0, height)
    for j in range(K - 1):
        middle = (load64(t, 16 * before[j]) + load64(t, 16 * after[j])) * 0.5
        height = height + middle * (load64(y, 16 * j + 16) - load64(y, 16 * j))
        store64(h, 16 * j + 16, height)
    for j in range(K, KP):
        store64(h, 16 * j, height)


@jit_no_refcount
def lane_staircases(t: F64, mass: F32, n: int, y: F64, share: F32, K: int, counts: I64, h: F64) -> None:
    """``band_staircase`` where each row has boundaries of its own; see ``engine.staircase.passages``.

    counts  (16,)  IN  targets of each row without padding, behind which target j is as far as value j
    """
    KP = len(share) // 16
    for lane in range(16):
        before, after, level, height = lane, lane, 0.0, 0.0
        up_to_before = up_to_after = np.float64(mass[lane])
        last = 16 * (n - 1) + lane
        h[lane] = 0.0
        live = 16 * (min(K, counts[lane]) - 1) + lane
        for j in range(live, 16 * (K - 1) + lane, 16):
            h[j + 16] = 0.5 * (t[j] + t[j + 16]) * (y[j + 16] - y[j])
        for j in range(lane, live, 16):
            level += share[j]
            while before < last and up_to_before < level - SAME_MASS_SINGLE:
                before += 16
                up_to_before += mass[before]
            while after < last and up_to_after <= level + SAME_MASS_SINGLE:
                after += 16
                up_to_after += mass[after]
            height += 0.5 * (t[before] + t[after]) * (y[j + 16] - y[j])
            h[j + 16] = height
        for j in range(live, 16 * (K - 1) + lane, 16):
            height += h[j + 16]
            h[j + 16] = height
        for j in range(16 * K + lane, 16 * KP, 16):
            h[j] = height


@jit_no_refcount
def band_of_lanes(t: F64, best: I64, N: int, y: F64, h: F64, KP: int, cut: float, lo: I64, hi: I64) -> None:
    """Which targets each block meets: those that cost its first or last source at most ``cut`` in any row."""
    first, last = 0, 0
    for block in range(N // 4):
        j = best[4 * block]
        ti = load64(t, 64 * block)
        least = ti * load64(y, 16 * j) - load64(h, 16 * j) - cut
        while first + 4 <= j and not any_lane(ti * load64(y, 16 * first + 48) - load64(h, 16 * first + 48) >= least):
            first += 4
        j = best[4 * block + 3]
        ti = load64(t, 64 * block + 48)
        least = ti * load64(y, 16 * j) - load64(h, 16 * j) - cut
        last = max(last, j // 4 * 4 + 4)
        while last < KP and any_lane(ti * load64(y, 16 * last) - load64(h, 16 * last) >= least):
            last += 4
        lo[block], hi[block] = first, last


@jit_no_refcount
def band_ends(lo: I64, hi: I64, blocks: int, KP: int, width: int, ends: I64) -> None:
    """Targets of group g are joined with those before ends_g: with the next group always, with ``width`` at most."""
    for g in range(KP // 4):
        ends[g] = min(4 * g + 8, KP)
    for block in range(blocks):
        for g in range(lo[block] // 4, hi[block] // 4):
            ends[g] = max(ends[g], min(hi[block], 4 * g + width))
    for g in range(1, KP // 4):
        ends[g] = max(ends[g], ends[g - 1])


@jit_no_refcount
def band_shifts(t: F64, best: I64, N: int, y: F64, h: F64, lo: I64, hi: I64, shift: F32, farthest: F32) -> None:
    """How much the reduced cost of ``best`` exceeds that of the nearest target, but for the few that are passed over.

    shift     (N, 16)  OUT
    farthest  (16,)    OUT  the largest of each row
    """
    most = splat(0.0)
    for i in range(N):
        ti, j = load64(t, 16 * i), 16 * best[i]
        here = ti * load64(y, j) - load64(h, j)
        top = here
        for j in range(16 * lo[i // 4], 16 * hi[i // 4], 64):
            top = larger(top, ti * load64(y, j) - load64(h, j))
        off = narrow(top - here)
        store(shift, 16 * i, off)
        most = larger(most, off)
    store(farthest, 0, most)


@jit_no_refcount
def band_gibbs(t: F64, best: I64, n: int, N: int, y: F64, h: F64, KP: int, even: bool, lo: I64, hi: I64, shift: F32,
               single: F32, G: F32) -> None:  # fmt: skip
    """G in the band, one at the target ``best`` of each source, or there e^-shift. Scratch: ``single`` (2, K, 16).

    Targets at equal distances d (``even``) need no exponentials: from one target to the next a row changes by
    exp(t_i d) exp(h_j - h_j+1), a product of a number of the source and one of the boundary.
    """
    first, last = load64(t, 0), load64(t, 16 * n - 16)
    y_first, y_last = load64(y, 0), load64(y, 16 * KP - 16)
    middle, y_m, distance = (first + last) * 0.5, (y_first + y_last) * 0.5, load64(y, 16) - y_first
    if even and not any_lane((last - first) * (distance * 0.5) >= _LARGEST_RATIO):
        _by_ratios(t, best, N, y, h, KP, lo, hi, shift, single, G)
        return
    small = not any_lane((last - first) * (y_last - y_first) >= _SMALL_LOGITS)
    h32, y32 = single[: 16 * KP], single[16 * KP :]
    for j in range(KP):
        store(h32, 16 * j, narrow((load64(h, 16 * j) - middle * load64(y, 16 * j)) * _LOG2E))
        store(y32, 16 * j, narrow((load64(y, 16 * j) - y_m) * _LOG2E))
    for i in range(0, N, 2):
        t0, t1, j0, j1 = load64(t, 16 * i), load64(t, 16 * i + 16), best[i], best[i + 1]
        r0 = t0 * load64(y, 16 * j0) - load64(h, 16 * j0)
        r1 = t1 * load64(y, 16 * j1) - load64(h, 16 * j1)
        if len(shift) > 0:
            r0, r1 = r0 + widen(load(shift, 16 * i)), r1 + widen(load(shift, 16 * i + 16))
        o = 64 * (i // 4) * KP + 16 * (i % 4)
        if small:
            t0, t1 = t0 - middle, t1 - middle
            s0, s1 = narrow(t0), narrow(t1)
            q0, q1 = narrow((r0 - t0 * y_m) * _LOG2E), narrow((r1 - t1 * y_m) * _LOG2E)
            for j in range(lo[i // 4], hi[i // 4]):
                hj, yj = load(h32, 16 * j), load(y32, 16 * j)
                store(G, o + 64 * j, power_of_two(s0 * yj - (hj + q0)))
                store(G, o + 64 * j + 16, power_of_two(s1 * yj - (hj + q1)))
        else:
            for j in range(lo[i // 4], hi[i // 4]):
                hj, yj = load64(h, 16 * j), load64(y, 16 * j)
                store(G, o + 64 * j, power_of_two(narrow((t0 * yj - hj - r0) * _LOG2E)))
                store(G, o + 64 * j + 16, power_of_two(narrow((t1 * yj - hj - r1) * _LOG2E)))


@jit_no_refcount
def _by_ratios(t: F64, best: I64, N: int, y: F64, h: F64, KP: int, lo: I64, hi: I64, shift: F32, single: F32,
               G: F32) -> None:  # fmt: skip
    distance = load64(y, 16) - load64(y, 0)
    middle = (load64(t, 0) + load64(t, 16 * N - 16)) * (distance * 0.5)
    up, down = single[: 16 * KP], single[16 * KP :]
    for j in range(0, 16 * KP - 16, 16):
        rises = load64(h, j + 16) - load64(h, j) - middle
        store(down, j, exp32(narrow(rises)))
        store(up, j, exp32(narrow(splat64(0.0) - rises)))
    for i in range(N):
        x = narrow(load64(t, 16 * i) * distance - middle)
        rise, fall = exp32(x), exp32(splat(0.0) - x)
        of_block = 64 * (i // 4) * KP + 16 * (i % 4)
        first = splat(1.0)
        if len(shift) > 0:
            first = exp32(splat(0.0) - load(shift, 16 * i))
        g = first
        for j in range(best[i], hi[i // 4]):
            store(G, of_block + 64 * j, g)
            g = g * (rise * load(up, 16 * j))
        g = first
        for j in range(best[i] - 1, lo[i // 4] - 1, -1):
            g = g * (fall * load(down, 16 * j))
            store(G, of_block + 64 * j, g)


@jit_no_refcount
def band_rows_of(G: F32, N: int, KP: int, lo: I64, hi: I64, u: F32, v: F32) -> None:
    """v_i = 1 / sum_j G_ij u_j."""
    for block in range(N // 4):
        o, i = 64 * block * KP, 64 * block
        l0, l1, l2, l3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        for j in range(lo[block], hi[block]):
            e, uj = o + 64 * j, load(u, 16 * j)
            l0, l1 = l0 + load(G, e) * uj, l1 + load(G, e + 16) * uj
            l2, l3 = l2 + load(G, e + 32) * uj, l3 + load(G, e + 48) * uj
        _store_four(v, i, splat(1.0) / l0, splat(1.0) / l1, splat(1.0) / l2, splat(1.0) / l3)


@jit_no_refcount
def band_scale(G: F32, mass: F32, KP: int, best: I64, lo: I64, hi: I64, u: F32, v: F32, s: F32,
               flow: F32) -> None:  # fmt: skip
    """v, s_j = sum_i a_i v_i G_ij, and what flows to other targets than ``best``."""
    N, kept = len(mass) // 16, splat(0.0)
    for j in range(0, 16 * KP, 16):
        store(s, j, splat(0.0))
    for block in range(N // 4):
        o, first, last = 64 * block * KP, lo[block], hi[block]
        l0, l1, l2, l3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        for j in range(first, last):
            e, uj = o + 64 * j, load(u, 16 * j)
            l0, l1 = l0 + load(G, e) * uj, l1 + load(G, e + 16) * uj
            l2, l3 = l2 + load(G, e + 32) * uj, l3 + load(G, e + 48) * uj
        v0, v1, v2, v3 = splat(1.0) / l0, splat(1.0) / l1, splat(1.0) / l2, splat(1.0) / l3
        i = 64 * block
        store(v, i, v0)
        store(v, i + 16, v1)
        store(v, i + 32, v2)
        store(v, i + 48, v3)
        v0, v1 = v0 * load(mass, i), v1 * load(mass, i + 16)
        v2, v3 = v2 * load(mass, i + 32), v3 * load(mass, i + 48)
        i = 4 * block
        j0, j1, j2, j3 = best[i], best[i + 1], best[i + 2], best[i + 3]
        kept = kept + v0 * load(u, 16 * j0) * load(G, o + 64 * j0) + v1 * load(u, 16 * j1) * load(G, o + 64 * j1 + 16)
        kept = kept + v2 * load(u, 16 * j2) * load(G, o + 64 * j2 + 32)
        kept = kept + v3 * load(u, 16 * j3) * load(G, o + 64 * j3 + 48)
        for j in range(first, last):
            e = o + 64 * j
            left = load(G, e) * v0 + load(G, e + 16) * v1
            right = load(G, e + 32) * v2 + load(G, e + 48) * v3
            store(s, 16 * j, load(s, 16 * j) + left + right)
    store(flow, 0, splat(1.0) - kept)


@jit_no_refcount
def band_edges(G: F32, mass: F32, KP: int, lo: I64, hi: I64, u: F32, v: F32, ends: I64, width: int, Q: F32,
               W: F32) -> None:  # fmt: skip
    """W = sum_i a_i p_i p_i^T above its diagonal, where targets are joined; of p only what is between lo and hi."""
    N = len(mass) // 16
    blocks = N // 4
    for i in range(N):
        vi = load(v, 16 * i) * root(load(mass, 16 * i))
        g, q = 64 * (i // 4) * KP + 16 * (i % 4), 16 * i * KP
        for j in range(lo[i // 4], hi[i // 4]):
            store(Q, q + 16 * j, load(G, g + 64 * j) * vi * load(u, 16 * j))
    stop, step = 0, 16 * KP
    for g in range(KP // 4):
        while stop < blocks and lo[stop] <= 4 * g:
            stop += 1
        start = 0
        for f in range(g, ends[g] // 4):
            while start < stop and hi[start] <= 4 * f:
                start += 1
            z = splat(0.0)
            a0, a1, a2, a3, b0, b1, b2, b3 = z, z, z, z, z, z, z, z
            c0, c1, c2, c3, d0, d1, d2, d3 = z, z, z, z, z, z, z, z
            for i in range(4 * start, 4 * stop):
                o, e = i * step + 64 * g, i * step + 64 * f
                k0, k1, k2, k3 = load(Q, e), load(Q, e + 16), load(Q, e + 32), load(Q, e + 48)
                p = load(Q, o)
                a0, a1, a2, a3 = a0 + p * k0, a1 + p * k1, a2 + p * k2, a3 + p * k3
                p = load(Q, o + 16)
                b0, b1, b2, b3 = b0 + p * k0, b1 + p * k1, b2 + p * k2, b3 + p * k3
                p = load(Q, o + 32)
                c0, c1, c2, c3 = c0 + p * k0, c1 + p * k1, c2 + p * k2, c3 + p * k3
                p = load(Q, o + 48)
                d0, d1, d2, d3 = d0 + p * k0, d1 + p * k1, d2 + p * k2, d3 + p * k3
            w = 64 * g * width + 64 * (f - g)
            _store_four(W, w, a0, a1, a2, a3)
            _store_four(W, w + 16 * width, b0, b1, b2, b3)
            _store_four(W, w + 32 * width, c0, c1, c2, c3)
            _store_four(W, w + 48 * width, d0, d1, d2, d3)


@njit(forceinline=True)
def _inverse(pivot: Any) -> Any:
    return select(pivot > _TINY, splat(1.0) / pivot, splat(0.0))


@jit_no_refcount
def band_eliminate(W: F32, KP: int, width: int, ends: I64, b: F32, flow: F32, inv: F32) -> None:
    """``row.newton.eliminate``: four nodes among themselves, then the others by all four at once.

    b  (K, 16)  IN  weights of targets, infinite at the last one of each row, which is the ground; -1 of padding
    """
    ground = load(flow, 0) * _RIDGE
    for k in range(0, KP, 4):
        count = ends[k // 4] - k
        o0 = 16 * k * width
        o1, o2, o3 = o0 + 16 * width, o0 + 32 * width, o0 + 48 * width
        w01, w02, w03 = load(W, o0 + 16), load(W, o0 + 32), load(W, o0 + 48)
        w12, w13, w23 = load(W, o1 + 32), load(W, o1 + 48), load(W, o2 + 48)
        r0, r1, r2, r3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        for c in range(64, 16 * count, 16):
            r0, r1, r2, r3 = r0 + load(W, o0 + c), r1 + load(W, o1 + c), r2 + load(W, o2 + c), r3 + load(W, o3 + c)
        i0 = _inverse(w01 + w02 + w03 + r0 + ground * load(b, 16 * k))
        f01, f02, f03 = w01 * i0, w02 * i0, w03 * i0
        w12, w13, w23 = w12 + f01 * w02, w13 + f01 * w03, w23 + f02 * w03
        r1, r2, r3 = r1 + f01 * r0, r2 + f02 * r0, r3 + f03 * r0
        i1 = _inverse(w12 + w13 + r1 + ground * load(b, 16 * k + 16))
        f12, f13 = w12 * i1, w13 * i1
        w23, r2, r3 = w23 + f12 * w13, r2 + f12 * r1, r3 + f13 * r1
        i2 = _inverse(w23 + r2 + ground * load(b, 16 * k + 32))
        f23 = w23 * i2
        i3 = _inverse(r3 + f23 * r2 + ground * load(b, 16 * k + 48))
        _store_four(inv, 16 * k, i0, i1, i2, i3)
        store(W, o1 + 32, w12)
        store(W, o1 + 48, w13)
        store(W, o2 + 48, w23)
        for c in range(64, 16 * count, 16):
            m0 = load(W, o0 + c)
            m1 = load(W, o1 + c) + m0 * f01
            m2 = load(W, o2 + c) + m0 * f02 + m1 * f12
            m3 = load(W, o3 + c) + m0 * f03 + m1 * f13 + m2 * f23
            store(W, o1 + c, m1)
            store(W, o2 + c, m2)
            store(W, o3 + c, m3)
        for j in range(4, count):
            f0, f1 = load(W, o0 + 16 * j) * i0, load(W, o1 + 16 * j) * i1
            f2, f3 = load(W, o2 + 16 * j) * i2, load(W, o3 + 16 * j) * i3
            row = 16 * ((k + j) * width - j // 4 * 4)
            for c in range(16 * j + 16, 16 * count, 16):
                left = load(W, o0 + c) * f0 + load(W, o1 + c) * f1
                right = load(W, o2 + c) * f2 + load(W, o3 + c) * f3
                store(W, row + c, load(W, row + c) + left + right)


@jit_no_refcount
def band_substitute(W: F32, K: int, KP: int, width: int, ends: I64, inv: F32, z: F32, x: F32) -> None:
    """x = L^-1 z, zero at the last node; z is used up."""
    for k in range(K - 1):
        o, count = 16 * (k * width - k // 4 * 4), 16 * ends[k // 4]
        zk = load(z, 16 * k) * load(inv, 16 * k)
        store(x, 16 * k, zk)
        for c in range(16 * k + 16, count, 16):
            store(z, c, load(z, c) + load(W, o + c) * zk)
    for k in range(K - 1, KP):
        store(x, 16 * k, splat(0.0))
    for k in range(K - 2, -1, -1):
        o, count = 16 * (k * width - k // 4 * 4), 16 * ends[k // 4]
        even, odd = splat(0.0), splat(0.0)
        for c in range(16 * k + 16, count - 16, 32):
            even, odd = even + load(W, o + c) * load(x, c), odd + load(W, o + c + 16) * load(x, c + 16)
        if (count - 16 * k) % 32 == 0:
            even = even + load(W, o + count - 16) * load(x, count - 16)
        store(x, 16 * k, load(x, 16 * k) + (even + odd) * load(inv, 16 * k))


@jit_no_refcount
def band_newton(G: F32, mass: F32, K: int, table: I64, share: F32, ground: F32, width: int, Q: F32, W: F32, inv: F32,
                u: F32, v: F32, s: F32, z: F32, flow: F32, error: F32) -> int:  # fmt: skip
    """u: a step of Sinkhorn, then Newton's, whose matrix is kept while errors fall fast. Returns how many."""
    KP, before = len(share) // 16, splat(np.inf)
    best, lo, hi, ends = table[BEST], table[LO], table[HI], table[ENDS]
    for j in range(0, 16 * KP, 16):
        store(u, j, select(load(ground, j) >= 0.0, load(share, j), splat(_NEXT_TO_NOTHING)))
    for step in range(_MOST_STEPS):
        band_scale(G, mass, KP, best, lo, hi, u, v, s, flow)
        errors = splat(0.0)
        for j in range(0, 16 * KP, 16):
            off = load(share, j) - load(u, j) * load(s, j)
            store(z, j, off)
            errors = errors + size_of(off)
        near = smaller(load(flow, 0) * _TOLERANCE_OF_FLOW, splat(_TOLERANCE))
        left = errors * (errors / before) * _MARGIN  # a step leaves as large a share as the one before did, or less
        last = step > 2 and not any_lane(left > near)  # then nobody needs to look
        store(error, 0, left if last else errors)
        done = not any_lane(errors > near) or step == _MOST_STEPS - 1
        if done and step > 1:
            return step
        if step == 0:
            for j in range(0, 16 * K, 16):
                balanced = load(share, j) / larger(load(s, j), splat(_TINY))
                store(u, j, select(load(ground, j) >= 0.0, balanced, load(u, j)))
            continue
        if step == 1 or any_lane((errors > near) & (errors > before * _KEEP)):
            band_edges(G, mass, KP, table[NEAR_LO], table[NEAR_HI], u, v, ends, width, Q, W)
            band_eliminate(W, KP, width, ends, ground, flow, inv)
        if done:  # the way back needs the matrix
            return step
        before = errors
        band_substitute(W, K, KP, width, ends, inv, z, z)
        centre = splat(0.0)
        for j in range(0, 16 * K, 16):
            centre = centre + load(z, j) * load(share, j)
        for j in range(0, 16 * K, 16):
            d = smaller(larger(load(z, j) - centre, splat(-_LARGEST_STEP)), splat(_LARGEST_STEP))
            store(u, j, load(u, j) * exp32(d))
        if last:
            return step
    return _MOST_STEPS
