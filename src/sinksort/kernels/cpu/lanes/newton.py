"""Very short rows, sixteen at a time: the scalings of their plans, by Newton's steps; see ``lanes.plan``."""

from __future__ import annotations

import numpy as np

from ..engine.compile import borrowing
from ..engine.maths import F32, exp32, larger, size_of, smaller
from ..engine.vectors import any_lane, choose, load, narrow, splat, splat64, store, widen
from .plan import lane_rows

_ROUNDING = 2e-7  #: of weights in single precision
_TINY, _UNJOINED, _ONE = np.float32(1e-30), np.float32(1e-30), np.float32(1.0)
_RIDGE = np.float32(1e-6)
_LARGEST_STEP = np.float32(5.0)
_TOLERANCE, _TOLERANCE_OF_FLOW = np.float32(1e-6), np.float32(1e-5)
_FLOOR, _FALLS = np.float32(2e-7), np.float32(0.3)
_MOST_STEPS = 40
_KEEP, _NEAR = np.float32(0.2), np.float32(0.05)  #: a matrix is kept if it left so little, and u has moved no farther
_LEFT = np.float32(1e-7)  #: of the potentials, which sorted values do not show: then steps need not go on


@borrowing
def lane_excesses(aw: F32, best: F32, numbers: F32, n: int, b: F32, K: int, excess: F32) -> None:
    """``row.newton.excesses``; nothing is summed where all targets have what they should, to the last bit."""
    off = splat(0.0)
    for j in range(K):
        lack = load(b, 16 * j)
        for i in range(0, 16 * n, 16):
            lack = choose(load(best, i) == numbers[j], lack - load(aw, i), lack)
        store(excess, 16 * j, lack)
        off = larger(off, size_of(lack))
    if not any_lane(off > 0.0):
        return
    over = splat64(0.0)
    for j in range(K):
        over = over + widen(load(b, 16 * j))
    for i in range(n):
        over = over - widen(load(aw, 16 * i))
    for j in range(K):
        bj = widen(load(b, 16 * j))
        lacks = bj - over * bj
        for i in range(n):
            lacks = lacks - widen(choose(load(best, 16 * i) == numbers[j], load(aw, 16 * i), splat(0.0)))
        close = larger(lacks, splat64(0.0) - lacks) > bj * _ROUNDING
        store(excess, 16 * j, narrow(choose(close, lacks, splat64(0.0))))


@borrowing
def lane_lacks(G: F32, n: int, K: int, best: F32, numbers: F32, excess: F32, u: F32, av: F32, leaving: F32,
               rho: F32) -> None:  # fmt: skip
    """rho_j = excess_j + what leaves it (from sources for which it is best) - u_j sum_i a_i v_i G_ij."""
    zero = splat(0.0)
    for j in range(0, K, 2):
        k = min(j + 1, K - 1)
        s_j, s_k, off_j, off_k = zero, zero, load(excess, 16 * j), load(excess, 16 * k)
        number_j, number_k = splat(numbers[j]), splat(numbers[k])
        for i in range(0, 16 * n, 16):
            av_i, leaves, at_best = load(av, i), load(leaving, i), load(best, i)
            s_j = s_j + load(G, i * K + 16 * j) * av_i
            s_k = s_k + load(G, i * K + 16 * k) * av_i
            off_j = choose(at_best == number_j, off_j + leaves, off_j)
            off_k = choose(at_best == number_k, off_k + leaves, off_k)
        store(rho, 16 * j, off_j - load(u, 16 * j) * s_j)
        store(rho, 16 * k, off_k - load(u, 16 * k) * s_k)


@borrowing
def lane_plan(G: F32, n: int, K: int, aw: F32, best: F32, numbers: F32, u: F32, v: F32, P: F32, Q: F32) -> None:
    """p and a p."""
    for i in range(n):
        at_best, vi, a = load(best, 16 * i), load(v, 16 * i), load(aw, 16 * i)
        for j in range(K):
            o = 16 * (i * K + j)
            p = choose(at_best == numbers[j], splat(1.0), load(G, o)) * (vi * load(u, 16 * j))
            store(P, o, p)
            store(Q, o, p * a)


@borrowing
def lane_eliminate(P: F32, Q: F32, n: int, K: int, ground: F32, inv: F32) -> None:
    """The edges W = Q^T P of L = diag - W, for Q_ij = a_i p_ij, eliminated without subtractions; and 1 / pivots.

    When node k goes, the edge from j to c grows by W_kj W_kc / pivot_k, as if Q and P had one more row: W_k / pivot_k
    and W_k. They are put behind the others, so that each edge is a single sum. A pivot is what leads from its node to
    the ground, and the edges to nodes that go later.

    Two by two, so that each entry is looked at half as often; for an odd K what is computed at [j, K] lies where the
    next row has nothing. Of two nodes the second lacks at first what it has from the first.
    """
    zero, row = splat(0.0), 16 * K
    for j in range(0, K - 1, 2):
        at, end = 16 * j, (n + j) * row
        between = zero
        for o in range(0, end, row):
            between = between + load(Q, o + at) * load(P, o + at + 16)
        pivot = load(ground, at) + between
        for c in range(at + 32, row, 32):
            w_0, w_1, v_0, v_1 = zero, zero, zero, zero
            for o in range(0, end, row):
                q, r, p_0, p_1 = load(Q, o + at), load(Q, o + at + 16), load(P, o + c), load(P, o + c + 16)
                w_0, w_1, v_0, v_1 = w_0 + q * p_0, w_1 + q * p_1, v_0 + r * p_0, v_1 + r * p_1
            store(P, end + c, w_0)
            store(P, end + c + 16, w_1)
            store(P, end + row + c, v_0)
            store(P, end + row + c + 16, v_1)
            pivot = pivot + (w_0 + w_1 if c + 16 < row else w_0)
        inverse = choose(pivot > _UNJOINED, splat(1.0) / pivot, zero)
        store(inv, at, inverse)
        store(P, end + at + 16, between)
        factor = between * inverse
        pivot = load(ground, at + 16)
        for c in range(at + 32, row, 16):
            first = load(P, end + c)
            second = load(P, end + row + c) + first * factor
            store(Q, end + c, first * inverse)
            store(P, end + row + c, second)
            pivot = pivot + second
        inverse = choose(pivot > _UNJOINED, splat(1.0) / pivot, zero)
        store(inv, at + 16, inverse)
        for c in range(end + row + at + 32, end + 2 * row, 16):
            store(Q, c, load(P, c) * inverse)
    store(inv, row - 16, zero)


@borrowing
def lane_substitute(P: F32, n: int, K: int, inv: F32, z: F32, x: F32) -> None:
    """x = L^-1 z, zero at the last node, by the edges behind the n rows of P. x may be z."""
    last, row, W = splat(0.0), 16 * K, 16 * n * K  # last: what was stored just now is slow to load
    for k in range(0, row, 16):
        sums = load(z, k)
        for j in range(0, k - 16, 16):
            sums = sums + load(P, W + j * K + k) * load(x, j)
        if k > 0:
            sums = sums + load(P, W + (k - 16) * K + k) * last
        last = sums * load(inv, k)
        store(x, k, last)
    for k in range(row - 32, -1, -16):
        sums = splat(0.0)
        for j in range(row - 16, k + 16, -16):
            sums = sums + load(P, W + k * K + j) * load(x, j)
        sums = sums + load(P, W + k * K + k + 16) * last
        last = load(x, k) + sums * load(inv, k)
        store(x, k, last)


@borrowing
def lane_newton(G: F32, n: int, K: int, aw: F32, best: F32, numbers: F32, b: F32, excess: F32, P: F32, Q: F32,
                inv: F32, u: F32, v: F32, av: F32, leaving: F32, small: F32, error: F32) -> None:  # fmt: skip
    """``row.newton.newton``: a row that is done waits for the others. Scratch: ``small`` (5, K, 16).

    A step d of the potentials leaves about d^2 of them, or d times how far they are from where the matrix was made.
    That tells what the marginals do not, since what hardly joins hardly changes them.
    """
    size = 16 * K
    base, direction, rho, ground, z = (
        small[:size], small[size : 2 * size], small[2 * size : 3 * size], small[3 * size : 4 * size], small[4 * size :],
    )  # fmt: skip
    for j in range(0, size, 16):
        store(u, j, load(b, j))
        store(base, j, load(b, j))
        store(direction, j, splat(0.0))
    length, slope, before = splat(1.0), splat(np.inf), splat(np.inf)
    moved, left = splat(0.0), splat(np.inf)
    for step in range(_MOST_STEPS + 1):
        lane_rows(G, n, K, aw, best, numbers, u, v, av, leaving)
        lane_lacks(G, n, K, best, numbers, excess, u, av, leaving, rho)
        errors, slope_here, flow = splat(0.0), splat(0.0), splat(0.0)
        for i in range(0, 16 * n, 16):
            flow = flow + load(leaving, i)
        for j in range(0, size, 16):
            off = load(rho, j)
            errors = errors + size_of(off)
            slope_here = slope_here + off * load(direction, j)
        store(error, 0, errors)
        enough = smaller(flow * _TOLERANCE_OF_FLOW, splat(_TOLERANCE))
        falls = (errors > flow * _FLOOR) & (errors < before * _FALLS) & (left > _LEFT)
        working = (errors > enough) | falls
        if not any_lane(working) or step == _MOST_STEPS:
            return
        if step == 0:  # one step of Sinkhorn, which costs little
            for j in range(0, size, 16):
                get = load(b, j) - load(rho, j)
                store(u, j, load(u, j) * choose(working & (get > _TINY), load(b, j) / get, splat(1.0)))
                store(base, j, load(u, j))
            continue
        passed = working & (slope_here < slope * np.float32(-0.5))
        length = choose(passed, length * slope / (slope - slope_here), splat(1.0))
        if step == 1 or any_lane(working & ((errors > before * _KEEP) | (moved > _NEAR))):
            for j in range(0, size, 16):
                store(ground, j, load(b, j) * flow * _RIDGE)
            lane_plan(G, n, K, aw, best, numbers, u, v, P, Q)
            lane_eliminate(P, Q, n, K, ground, inv)
            moved = splat(0.0)
        before = errors
        lane_substitute(P, n, K, inv, rho, z)
        centre, rises = splat(0.0), splat(0.0)
        for j in range(0, size, 16):
            centre = centre + load(z, j) * load(b, j)
        for j in range(0, size, 16):
            d = smaller(larger(load(z, j) - centre, splat(-_LARGEST_STEP)), splat(_LARGEST_STEP))
            store(z, j, d)
            rises = rises + d * load(rho, j)
        sinks = working & (splat(0.0) >= rises)
        if any_lane(sinks):  # where Newton's step does not rise: roughly Sinkhorn's own, which does
            rises = choose(sinks, splat(0.0), rises)
            for j in range(0, size, 16):
                bj, off = load(b, j), load(rho, j)
                d = choose(bj > 0.0, off / larger(bj, splat(_TINY)), splat(0.0))
                d = choose(sinks, smaller(larger(d, splat(-_ONE)), splat(_ONE)), load(z, j))
                store(z, j, d)
                rises = choose(sinks, rises + d * off, rises)
        farthest = splat(0.0)
        for j in range(0, size, 16):
            d = choose(passed, load(direction, j), choose(working, load(z, j), splat(0.0)))
            store(direction, j, d)
            point = choose(passed, load(base, j), load(u, j))
            store(base, j, point)
            d = d * length
            farthest = larger(farthest, size_of(d))
            store(u, j, choose(working, point * exp32(d), point))
        slope = choose(passed, slope, rises)
        moved = moved + farthest
        left = choose(passed | sinks, splat(np.inf), farthest * moved)
