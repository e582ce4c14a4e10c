"""The logarithm of a plan, entry by entry, and the way back: one row at a time.

Averages do not see how a plan joins parts that it hardly joins; logarithms do. A pair of value and target whose share
is 1e-9 has a logarithm that moves with the potentials between them, although only 1e-9 of the weight hangs on these.
So what the solver has found in single precision is gone over again: exponentials keep single precision, which is
relative and so enough, but what flows is balanced in double precision. What leaves the best target of a value and what
arrives elsewhere are the same numbers, so that nothing of the rest, however large, is left over in their balance; and
the Laplacian is eliminated without subtractions, in double precision too, since lambda may reach 1e13. See
``contract`` for the formulas and ``row.newton`` for the symbols. (Arrays are copied in loops: an assignment of slices
takes Numba seconds to compile.)
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.compile import jit
from ..engine.maths import F32, F64, I32, places, places_backward, row_into
from ..engine.sources import padded, range_of
from ..engine.vectors import load, load64, splat64, store64, total64, widen
from .laplacian import substitute
from .log_laplacian import edges_in_double, edges_in_single, eliminate, substituted
from .newton import gibbs, scale
from .solve import bands, solved
from .work import (
    AT,
    AW,
    B64,
    BEST,
    ENDS,
    GHI,
    GLO,
    HI,
    INV,
    LAM,
    LO,
    MASS,
    NEAR_ENDS,
    READ,
    ROOT,
    SUMS,
    WEIGHT,
    XS,
    B,
    H,
    R,
    S,
    T,
    U,
    V,
    Work,
    Y,
    Z,
    given_into,
    sources_into,
    take_roots,
    workspace,
)

DEAD = 1e-13  #: a link weaker than this share of what a target weighs is none, as in ``semidual.hessian_factor``
_GROUND = 1e-15  #: the same while solving
_SAME_MASS = 1e-7  #: cumulative weights closer than this are the same
_STEPS, _CLOSE, _LARGEST = 12, 1e-3, 3.0  #: of Newton: the step after one of _CLOSE would be about its square
_CLOSE_QUICK = 1e-5  #: where the Laplacian is not quite that of the plan
_FAINT = 1e3  #: times what links a node, what it weighs is more than this: it is nearly apart
_CANCELLED = 0.1  #: a gradient smaller than this share of its parts needs edges with more digits
_Steps = tuple[int, int, int, int, int]


@jit
def logs_state(n: int, K: int) -> tuple[int, int, int]:
    """Where a state has its float32 (u) and int32 (order), after float64 (h and the 4 numbers of ``places``); size."""
    single = 2 * (padded(K) + 4)
    integer = single + padded(K)
    return single, integer, (integer + n + 1) // 2 * 2


@jit
def without_best(k: Work, N: int, K: int) -> None:
    """G without its best entries. Of slots behind the last target, all in the same place, none is the best."""
    best, last = k.n_int[BEST], K - 1
    while last > 0 and not k.k32[B, last] > 0.0:
        last -= 1
    for i in range(N):
        best[i] = min(best[i], last)
        k.G[best[i] * N + i] = 0.0


@jit
def surplus(k: Work, N: int, K: int, out: F64) -> None:
    """What a target lacks if every source goes to its best one; nothing for a group of them that is balanced."""
    sums, b, mass, best = k.k64[SUMS], k.k64[B64], k.n32[MASS], k.n_int[BEST]
    for j in range(K):
        sums[j] = b[j]
    for i in range(N):
        sums[best[i]] -= mass[i]
    over, so_far, before = 0.0, 0.0, 0.0
    for j in range(K):
        over += sums[j]
    for j in range(K):
        so_far += sums[j] - over * b[j]
        here = so_far if abs(so_far) > _SAME_MASS else 0.0
        out[j] = here - before
        before = here


@jit
def imbalance(k: Work, N: int, K: int, lacks: F64, leaving: F64, rho: F64) -> None:
    """rho_j = b_j - sum_i a_i p_ij from what flows. G is without its best entries, v is that of u."""
    u, v, mass, lo, hi, best = k.k32[U], k.n32[V], k.n32[MASS], k.k_int[LO], k.k_int[HI], k.n_int[BEST]
    leaving[:] = 0.0
    for j in range(K):
        arrives = splat64(0.0)
        for q in range(lo[j // 4], hi[j // 4]):
            i = 16 * q
            flow = widen(load(k.G, j * N + i) * u[j] * load(v, i) * load(mass, i))
            arrives = arrives + flow
            store64(leaving, i, load64(leaving, i) + flow)
        rho[j] = lacks[j] - total64(arrives)
    for i in range(N):
        rho[best[i]] += leaving[i]


@jit
def centred_parts(k: Work, K: int, inv: F64) -> None:
    """Parts that nothing joins have no common potential: each has that of the hard sort in the mean.

    A part ends where what is left of the edges of a node, when all before it are gone, is nothing.
    """
    u, b, first = k.k32[U], k.k64[B64], 0
    for j in range(K):
        if j < K - 1 and inv[j] * (DEAD * b[j]) < 1.0:
            continue
        mean, weight = 0.0, 0.0
        for c in range(first, j + 1):
            if u[c] > 0.0:
                mean += b[c] * math.log(u[c] / b[c])
                weight += b[c]
        if weight > 0.0:
            factor = math.exp(-mean / weight)
            for c in range(first, j + 1):
                u[c] *= factor
        first = j + 1


@jit
def joined(k: Work, K: int) -> bool:
    """Whether no part of the plan is nearly apart, by the Laplacian that the solver left."""
    most = 0.0
    for j in range(K - 1):
        most = max(most, k.k32[INV, j] * k.k32[B, j])
    return most < _FAINT


@jit
def settled(k: Work, N: int, K: int, solver: tuple[bool, bool], lacks: F64, leaving: F64, rho: F64, W: F64,
            inv: F64) -> bool:  # fmt: skip
    """Newton's method goes on from where single precision left it, until log u stands still.

    Where all parts are well joined, the Laplacian that the solver left serves for the steps: ``solver`` says whether
    there is one, and whether it is a near one. Otherwise its single precision would hide what joins them.
    """
    u, b, ends = k.k32[U], k.k64[B64], k.k_int[NEAR_ENDS] if solver[1] else k.k_int[ENDS]
    quick, before, largest = solver[0] and joined(k, K), np.inf, np.inf
    without_best(k, N, K)
    surplus(k, N, K, lacks)
    for step in range(_STEPS + 1):
        scale(k.G, N, K, k.n32[MASS], k.n_int[BEST], u, k.k_int[LO], k.k_int[HI], k.n_int[GLO], k.n_int[GHI],
              bool(np.int64(0)), k.n32[V], k.n32[WEIGHT], k.parts, k.k32[S])  # fmt: skip
        if largest < (_CLOSE_QUICK if quick else _CLOSE):
            return True
        imbalance(k, N, K, lacks, leaving, rho)
        quick = quick and not largest > 0.3 * before  # at first neither is a number to compare
        before = largest
        if quick:
            for j in range(K):
                k.k32[Z, j] = rho[j]
            substitute(k.W, K, padded(K), ends, k.k32[INV], k.k32[Z], k.k32[LAM])
            for j in range(K):
                rho[j] = k.k32[LAM, j]
        else:
            edges_in_single(k, N, K, W)
            eliminate(W, K, padded(K), k.k_int[ENDS], b, _GROUND, inv)
            if step == 0:
                centred_parts(k, K, inv)
            substituted(W, K, padded(K), k.k_int[ENDS], inv, rho)
        mean, largest = 0.0, 0.0
        for j in range(K):
            mean += b[j] * rho[j]
        for j in range(K):
            way = min(max(rho[j] - mean, -_LARGEST), _LARGEST)
            u[j] *= math.exp(way)
            largest = max(largest, abs(way) if b[j] > 0.0 else 0.0)
    return False


@jit
def logs_rows(start: int, stop: int, x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int,
              steps: _Steps, out: F32, state32: F32, errors: F32) -> None:  # fmt: skip
    """Rows start to stop, as ``row.solve.push_rows``; out is (R, n, K)."""
    stride, N = padded(K), padded(n)
    state64, state_int = state32.view(np.float64), state32.view(np.int32)
    at32, at_int, size = logs_state(n, K)
    k = workspace(n, K)
    xs, at, u, v, t, r = k.n32[XS], k.n64[AT], k.k32[U], k.n32[V], k.n64[T], k.n64[R]
    leaving, targets, W = np.empty(N), np.zeros((4, stride)), np.empty(stride * stride)
    first_one = True
    for row in range(start, stop):
        doubles, singles = state64[row * size // 2 :], state32[row * size + at32 :]
        order = state_int[row * size + at_int : row * size + at_int + n]
        answer = out[row * n * K : (row + 1) * n * K]
        if not row_into(x, row * n, n, xs):
            answer[:] = np.nan
            doubles[stride + 2], errors[row] = np.nan, 0.0
            continue
        given_into(k, y, b, a, row, n, K, steps, first_one)
        first_one = False
        e = np.float64(eps[row * steps[3]])
        moments = places(xs, k.n32[AW], squash, k.k64[Y, 0], k.k64[Y, K - 1], at)
        low, high = range_of(at, n)
        error, kept, near, _ = solved(k, n, K, e, np.int64(0), low, high, order, k.W)
        fine = error < np.inf and settled(k, N, K, (kept, near), targets[0], leaving, targets[1], W, targets[2])
        errors[row] = error if fine else np.inf
        at_y, from_y = k.k64[Y], targets[3]
        for j in range(K):
            from_y[j] = k.k64[H, j] - (math.log(u[j]) if u[j] > 0.0 else -np.inf)
        for i in range(n):
            of_row, first, ti = math.log(v[i]) - r[i], order[i] * K, t[i]
            for j in range(K):
                value = ti * at_y[j] - from_y[j] + of_row
                answer[first + j] = value if value < 0.0 else 0.0
        for j in range(stride):
            doubles[j], singles[j] = k.k64[H, j], u[j]
        doubles[stride], doubles[stride + 1], doubles[stride + 2] = moments[0], moments[1], moments[2]
        doubles[stride + 3] = 1.0 if moments[3] else 0.0


@jit
def exponents_backward(k: Work, N: int, n: int, K: int, C: F32, order: I32, turned: F32, whole: F64, rest: F64,
                       direct: F64, t: F64) -> None:  # fmt: skip
    """G_ij of ``contract`` summed: over i in ``t``, with y_j (from that of the best target) over j in ``direct``.

    At the best target G is minus the sum of the others, ``rest``. Scratch: ``turned`` (K, N), the cotangent by targets.
    """
    u, v, best, lo, hi = k.k32[U], k.n32[V], k.n_int[BEST], k.k_int[LO], k.k_int[HI]
    whole[:], rest[:], direct[:] = 0.0, 0.0, 0.0
    for i in range(n):
        first, sums = order[i] * K, 0.0
        for j in range(K):
            c = C[first + j] if u[j] > 0.0 else np.float32(0.0)
            turned[j * N + i] = c
            sums += c
        whole[i] = sums
        turned[best[i] * N + i] = 0.0
    for j in range(K):
        turned[j * N + n : j * N + N] = 0.0
        sums, begin, end, yj = splat64(0.0), lo[j // 4], hi[j // 4], k.k64[Y, j]
        for q in range(N // 16):
            i = 16 * q
            g = widen(load(turned, j * N + i))
            if begin <= q < end:
                g = g - widen(load(k.G, j * N + i) * u[j] * load(v, i)) * load64(whole, i)
            sums = sums + g
            store64(rest, i, load64(rest, i) + g)
            store64(direct, i, load64(direct, i) + g * yj)
        t[j] = total64(sums)
    for i in range(n):
        t[best[i]] -= rest[i]
        direct[i] -= rest[i] * k.k64[Y, best[i]]


@jit
def covariances64(k: Work, N: int, phi: F64, cov: F64) -> None:
    """cov_i = Cov_i(phi, y), from differences to the best target."""
    u, v, best, glo, ghi, y = k.k32[U], k.n32[V], k.n_int[BEST], k.n_int[GLO], k.n_int[GHI], k.k64[Y]
    phi_0, y_0 = np.empty(16), np.empty(16)
    for q in range(N // 16):
        i = 16 * q
        for lane in range(16):
            phi_0[lane], y_0[lane] = phi[best[i + lane]], y[best[i + lane]]
        p0, y0 = load64(phi_0, 0), load64(y_0, 0)
        means, means_y, products = splat64(0.0), splat64(0.0), splat64(0.0)
        for j in range(4 * glo[q], min(4 * ghi[q], len(phi))):
            p = widen(load(k.G, j * N + i) * u[j] * load(v, i))
            dy = splat64(y[j]) - y0
            weighted = p * (splat64(phi[j]) - p0)
            means, means_y, products = means + weighted, means_y + p * dy, products + weighted * dy
        store64(cov, i, products - means * means_y)


@jit
def along_places(k: Work, N: int, n: int, K: int, t: F64, direct: F64, W: F64, inv: F64, scratch: F64, cov: F64,
                 out: F64) -> bool:  # fmt: skip
    """sum_j G_ij y_j - a_i Cov_i(lambda, y) from the edges W; returns whether too much of it cancelled.

    lambda is refined once, as the second step of ``gradients.attach`` does, for what the ground takes.
    """
    stride, ends, b, lam, more = padded(K), k.k_int[ENDS], k.k64[B64], scratch[0], scratch[1]
    eliminate(W, K, stride, ends, b, DEAD, inv)
    for j in range(K):
        lam[j] = t[j]
    substituted(W, K, stride, ends, inv, lam)
    for j in range(K):
        more[j] = DEAD * b[j] * lam[j]
    substituted(W, K, stride, ends, inv, more)
    for j in range(K):
        lam[j] += more[j]
    covariances64(k, N, lam, cov)
    parts, whole = 0.0, 0.0
    for i in range(n):
        out[i] = direct[i] - k.n32[MASS, i] * cov[i]
        parts, whole = max(parts, abs(direct[i])), max(whole, abs(out[i]))
    return whole < _CANCELLED * parts


@jit
def logs_rows_backward(start: int, stop: int, x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int,
                       steps: _Steps, C: F32, grad: F32, state32: F32) -> None:  # fmt: skip
    """Cotangents of x from those of the logarithms, C (R, n, K)."""
    stride, N = padded(K), padded(n)
    state64, state_int = state32.view(np.float64), state32.view(np.int32)
    at32, at_int, size = logs_state(n, K)
    k = workspace(n, K)
    xs, at, aw, read, best = k.n32[XS], k.n64[AT], k.n32[AW], k.n32[READ], k.n_int[BEST]
    lo, hi, glo, ghi = k.k_int[LO], k.k_int[HI], k.n_int[GLO], k.n_int[GHI]
    sources, targets, W = np.zeros((4, N)), np.zeros((4, stride)), np.empty(stride * stride)
    t, inv, scratch = targets[0], targets[1], targets[2:]
    first_one = True
    for row in range(start, stop):
        doubles, singles = state64[row * size // 2 :], state32[row * size + at32 :]
        order = state_int[row * size + at_int : row * size + at_int + n]
        answer = grad[row * n : row * n + n]
        mean, per_unit, weight, spread = doubles[stride], doubles[stride + 1], doubles[stride + 2], doubles[stride + 3]
        if np.isnan(weight):
            answer[:] = np.nan
            continue
        row_into(x, row * n, n, xs)
        given_into(k, y, b, a, row, n, K, steps, first_one)
        first_one = False
        e = np.float64(eps[row * steps[3]])
        places(xs, aw, squash, k.k64[Y, 0], k.k64[Y, K - 1], at)
        for j in range(stride):
            k.k64[H, j], k.k32[U, j] = doubles[j], singles[j]
        sources_into(k, n, np.int64(0), 0.0, 0.0, order)
        take_roots(k.n32[ROOT], N)
        bands(k, N, K, e)
        gibbs(k.n64[T], k.n64[R], best, N, k.k64[Y], k.k64[H], K, lo, hi, k.in_cells, k.G)
        without_best(k, N, K)
        scale(k.G, N, K, k.n32[MASS], best, k.k32[U], lo, hi, glo, ghi, bool(np.int64(0)), k.n32[V], k.n32[WEIGHT],
              k.parts, k.k32[S])  # fmt: skip
        whole, rest, direct, cov = sources[0], sources[1], sources[2], sources[3]
        exponents_backward(k, N, n, K, C[row * n * K :], order, k.Q, whole, rest, direct, t)
        for double in range(2):
            if double:
                edges_in_double(k, N, n, K, W)
            else:
                edges_in_single(k, N, K, W)
            if not along_places(k, N, n, K, t, direct, W, inv, scratch, cov, rest):
                break
        for i in range(n):
            read[order[i]] = rest[i] * (2.0 / e)
        read[n:] = 0.0
        places_backward(xs, aw, at, squash, mean, per_unit, weight, spread > 0.5, 1.0, read)
        for i in range(n):
            answer[i] = read[i]
