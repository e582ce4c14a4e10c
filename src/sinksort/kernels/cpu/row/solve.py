"""One row at a time, sixteen of its sources at a time: place, solve, read, and the way back.

The state of a row holds what the backward pass cannot make again cheaply: the order of its values, h, u, and the
eliminated Laplacian of the last Newton step, which gives lambda after a step or two of refinement.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F32, F64, I32, I64, copied, larger, places, places_again, places_backward, row_into, size_of
from ..engine.sources import padded, range_of, sort_places
from ..engine.vectors import highest, load, splat, store, total
from .double_backward import CANCELLED, CANCELLED_OF_SORTS, along_places, balanced, double_backward
from .grid import BEYOND, cells_for, finer_cells, interpolate, masses, moments, polynomials, remainder
from .laplacian import edges, eliminate, substitute
from .newton import (
    CUT,
    NEAR,
    SOFT,
    band,
    best_targets,
    complete,
    excesses,
    gibbs,
    groups_of_blocks,
    newton,
    scale,
    staircase,
)
from .read import BEFORE_LASTS, LASTS, at_best, covariances, means, pulled, tensions
from .work import (
    AT,
    AW,
    B64,
    BEST,
    CELL,
    COUNT,
    COV,
    COV_2,
    DIRECT,
    ENDS,
    EXCESS,
    GHI,
    GIVEN,
    GLO,
    HI,
    INV,
    LAM,
    LO,
    MASS,
    MEAN,
    NEAR_ENDS,
    NEAR_HI,
    NEAR_LO,
    OCCUPIED,
    PHI,
    PHI_0,
    PLACE,
    READ,
    RIDGE,
    ROOT,
    SAVED,
    SUMS,
    TENSION,
    WEIGHT,
    WITHIN,
    XS,
    Y32,
    Y_0,
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
    grid_into,
    roots_into,
    sources_into,
    state_parts,
    take_roots,
    values_into,
    workspace,
)

_LARGEST_LOGIT = 1e9  #: beyond this float64 does not resolve what small differences of places mean
ACCEPTED = 5e-6
_CUT_OF_GRID = 20.0  #: in place of ``CUT``: values so many for their eps make a soft plan, of which less is enough
#: Sums to nodes are off as well, and gradients are made of derivatives, so what interpolation loses counts so often.
_FROM_BELOW = 12.0
_FINE = 5.0  #: sources per sqrt(eps) from which they are close
_HOPEFUL = np.float32(0.5)  #: what the first solution may leave of t
_REFINED, _REFINED_STIFF = np.float32(2e-5), np.float32(1e-6)  #: how far lambda may still be off
_RIDGE = np.float32(1e-9)  #: to the ground, times b and what flows: across weaker links lambda would be all rounding


@jit_no_refcount
def solved(k: Work, n: int, K: int, eps: float, cells: int, low: float, high: float, order: I32,
           W: F32) -> tuple[float, bool, bool, float]:  # fmt: skip
    """Solves the plan of a row whose places are known.

    Returns its marginal error, whether W was needed, near, and how much of a value may go to a wrong target.
    """
    y, h, b64, t = k.k64[Y], k.k64[H], k.k64[B64], k.n64[T]
    lo, hi, ends, glo, ghi, best = k.k_int[LO], k.k_int[HI], k.k_int[ENDS], k.n_int[GLO], k.n_int[GHI], k.n_int[BEST]
    if cells == 0:
        sort_places(k.n64[AT], n, low, high, order, k.n_int[COUNT], k.n64[PLACE])
    N = sources_into(k, n, cells, low, high, order)
    staircase(k.n64[PLACE], k.n32[ROOT], N if cells > 0 else n, y, b64, K, eps, h)
    take_roots(k.n32[ROOT], N)
    bands_within(k, N, K, eps, CUT if cells == 0 else _CUT_OF_GRID)
    gibbs(t, k.n64[R], best, N, y, h, K, lo, hi, k.in_cells, k.G)
    fine = N * math.sqrt(eps) >= _FINE * (high - low)
    excesses(k.n32[MASS], best, N, b64, K, k.k32[EXCESS], k.k64[SUMS])
    error, eliminations, near, left = newton(
        k.G, N, K, k.n32[MASS], k.n32[ROOT], best, k.k32[B], k.k32[EXCESS], lo, hi, glo, ghi, k.k_int[NEAR_LO],
        k.k_int[NEAR_HI], k.k_int[NEAR_ENDS], padded(K), fine, k.Q, W, ends, k.k32[INV], k.k32[U], k.n32[V],
        k.n32[WEIGHT], k.parts, k.k32[S], k.small,
    )  # fmt: skip
    if not max(abs(t[0]), abs(t[N - 1])) < _LARGEST_LOGIT or not error < np.inf:
        return np.inf, False, False, 0.0
    # Where a plan is nearly hard, potentials are free to move: what that misplaces is in the marginals, which a value
    # of weight 1/n changes by what it sends to a wrong target.
    return error, eliminations > 0, near, min(0.25 * left, n * error)


@jit_no_refcount
def bands(k: Work, N: int, K: int, eps: float) -> None:
    """``bands_within`` of all that counts however stiff the plan is."""
    bands_within(k, N, K, eps, CUT)


@jit_no_refcount
def bands_within(k: Work, N: int, K: int, eps: float, cut: float) -> None:
    """From places and h: t, r, the best targets, and which sources meet which targets, all and near ones."""
    y, h, t, r, best = k.k64[Y], k.k64[H], k.n64[T], k.n64[R], k.n_int[BEST]
    lo, hi = k.k_int[LO], k.k_int[HI]
    best_targets(k.n64[PLACE], N, y, h, K, eps, t, r, best)
    band(t, r, best, N, y, h, K, cut, lo, hi, k.k_int[ENDS])
    band(t, r, best, N, y, h, K, NEAR, k.k_int[NEAR_LO], k.k_int[NEAR_HI], k.k_int[NEAR_ENDS])
    groups_of_blocks(lo, hi, N // 16, (K + 3) // 4, k.n_int[GLO], k.n_int[GHI])


@jit_no_refcount
def save(k: Work, K: int, standard: tuple[float, float, float, bool], eliminated: bool, near: bool, ruled: bool,
         state64: F64, state32: F32) -> None:  # fmt: skip
    stride = padded(K)
    copied(k.k64[H], state64[:stride])
    state64[stride], state64[stride + 1], state64[stride + 2] = standard[0], standard[1], standard[2]
    flags = (1.0 if standard[3] else 0.0) + (2.0 if eliminated else 0.0) + (4.0 if near else 0.0)
    state64[stride + 3] = flags + (8.0 if ruled else 0.0)
    copied(k.k32[U], state32[:stride])
    copied(k.k32[INV], state32[stride : 2 * stride])


@jit
def pull_rows(start: int, stop: int, x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, eps: F32, n: int, K: int,
              whole: bool, size: int, squash: int, steps: tuple[int, int, int, int, int], out: F32, state32: F32,
              errors: F32) -> None:  # fmt: skip
    """Rows start to stop. All arrays are flat; ``steps`` is how far it is from row to row of y, phi, last, eps and a.

    ``last`` is empty where there is no rule; ``whole`` and ``size`` say how a state looks, see ``state_parts``.
    """
    stride, lasts = padded(K), LASTS if len(last) > 0 else 0
    state64, state_int = state32.view(np.float64), state32.view(np.int32)
    at32, at_int, _ = state_parts(n, K, whole)
    k = workspace(n, K)
    xs, at, read, span, jump = k.n32[XS], k.n64[AT], k.n32[READ], 1.0, 1.0
    first_one = True
    for row in range(start, stop):
        doubles, singles, of_int = (
            state64[row * size // 2 :],
            state32[row * size + at32 :],
            state_int[row * size + at_int :],
        )
        answer = out[row * n : row * n + n]
        if not row_into(x, row * n, n, xs):
            answer[:] = np.nan
            doubles[stride + 2], doubles[stride + 3], errors[row] = np.nan, 0.0, 0.0
            continue
        given_into(k, y, b, a, row, n, K, steps, first_one)
        if first_one or steps[1] > 0:
            copied(phi[row * steps[1] :], k.k32[PHI, :K])
            span = abs(k.k32[PHI, K - 1] - k.k32[PHI, 0])
            jump = largest_jump(k.k32[PHI], K)
        if first_one or steps[2] > 0:
            for j in range(lasts):
                copied(last[row * steps[2] + (BEFORE_LASTS + j) * K :], k.last[j * stride : j * stride + K])
        first_one = False
        e = np.float64(eps[row * steps[3]])
        first, rejects_by_nan = outermost(k, K, lasts > 0)
        standard = places(xs, k.n32[AW], squash, first, rejects_by_nan, at)
        W = k.W if whole or K > SAVED else singles[2 * stride :]
        low, high = range_of(at, n)
        cells = cells_for(n, K, low, high, e)
        rule = 0.0
        while True:
            error, eliminated, near, misplaced = solved(k, n, K, e, cells, low, high, of_int[1:], W)
            error = max(error, misplaced * jump)
            N = padded(n) if cells == 0 else cells + BEYOND
            complete(k.G, N, k.n_int[BEST])
            rule = pulled(k.G, N, k.k32[U], k.n32[V], k.k32[PHI], k.last, lasts,
                          stride, k.n_int[GLO], k.n_int[GHI], k.n32[OCCUPIED], k.small, read)  # fmt: skip
            if cells == 0:
                for i in range(n):
                    answer[of_int[1 + i]] = read[i]
                break
            off = _FROM_BELOW * remainder(read, cells, k.n32[OCCUPIED]) / span
            error = max(error, off)
            if error <= ACCEPTED:
                polynomials(read, cells, k.in_cells)
                interpolate(k.in_cells, n, k.n_int[CELL], k.n32[WITHIN], k.n32[DIRECT])
                copied(k.n32[DIRECT], answer)
                copied(k.n32[MASS], of_masses(of_int, N))
                break
            cells = finer_cells(cells, off / ACCEPTED, n) if off > ACCEPTED else 0
        errors[row] = max(error, rule) if rule < np.inf else np.inf
        of_int[0] = cells
        save(k, K, standard, eliminated, near, lasts > 0, doubles, singles)


@jit_no_refcount
def largest_jump(phi: F32, K: int) -> float:
    """The largest difference between the levels of neighbouring targets, as a share of all of them."""
    most, low, high = np.float32(0.0), phi[0], phi[0]
    for j in range(1, K):
        most, low, high = max(most, abs(phi[j] - phi[j - 1])), min(low, phi[j]), max(high, phi[j])
    return float(most / (high - low)) if high > low else 0.0


@jit
def of_masses(of_int: I32, N: int) -> F32:
    """What nodes of a grid weigh, in a state: in place of the order of the values."""
    return of_int[1 : 1 + N].view(np.float32)


@jit_no_refcount
def outermost(k: Work, K: int, ruled: bool) -> tuple[float, float]:
    """The first and the last target: the nodes of a rule lie inside."""
    return (0.0, 1.0) if ruled else (k.k64[Y, 0], k.k64[Y, K - 1])


@jit_no_refcount
def carried_values(k: Work, n: int, mean: float, per_unit: float) -> bool:
    """a_i (x_i - mean) * scale into GIVEN; returns whether all values that weigh something are finite."""
    finite = True
    for i in range(n):
        heavy, bounded = k.n32[AW, i] > 0.0, abs(k.n32[XS, i]) < np.inf
        finite &= bounded or not heavy
        k.n32[GIVEN, i] = k.n32[AW, i] * (k.n32[XS, i] - mean) * per_unit if heavy and bounded else 0.0
    k.n32[GIVEN, n:] = 0.0
    return bool(finite)


@jit_no_refcount
def carried_by_sources(k: Work, n: int, cells: int, order: I32) -> None:
    """GIVEN in the order of the sources, or moved to the nodes of a grid, into WEIGHT."""
    if cells > 0:
        moments(k.n32[GIVEN], n, cells, k.n_int[CELL], k.n32[WITHIN], k.moments)
        masses(k.moments, cells, k.n32[WEIGHT])
        return
    for i in range(n):
        k.n32[WEIGHT, i] = k.n32[GIVEN, order[i]]
    k.n32[WEIGHT, n:] = 0.0


@jit_no_refcount
def refined(k: Work, N: int, K: int, W: F32, ends: I64, soft: bool) -> bool:
    """lambda = L^+ t by the Laplacian that the solver left, refined until the next step would be small."""
    stride = padded(K)
    t, lam, z, phi_0, mean, best = k.k32[TENSION], k.k32[LAM], k.k32[Z], k.n32[PHI_0], k.n32[MEAN], k.n_int[BEST]
    u, v, step = k.k32[U], k.n32[V], k.small
    enough, before = _REFINED if soft else _REFINED_STIFF, np.float32(1.0)
    copied(t, z)
    substitute(W, K, stride, ends, k.k32[INV], z, lam)
    for _ in range(6):
        if not soft:
            at_best(lam, best, N, phi_0)
        means(k.G, N, u, v, lam, phi_0, stride, k.n_int[GLO], k.n_int[GHI], soft, step, mean)
        tensions(k.G, N, K, u, v, k.n32[MASS], lam, phi_0, mean, k.k_int[LO], k.k_int[HI], best, soft, k.parts, z)
        left, whole = splat(0.0), splat(0.0)
        for c in range(0, stride, 16):
            off = load(t, c) - load(z, c)
            left, whole = left + size_of(off), whole + size_of(load(t, c))
            store(z, c, off)
        if not total(left) <= _HOPEFUL * total(whole):
            return False
        substitute(W, K, stride, ends, k.k32[INV], z, step)
        steps, sizes = splat(0.0), splat(0.0)
        for c in range(0, stride, 16):
            now = load(lam, c) + load(step, c)
            store(lam, c, now)
            steps, sizes = larger(steps, size_of(load(step, c))), larger(sizes, size_of(now))
        moved = highest(steps) / highest(sizes) if highest(sizes) > 0.0 else np.float32(0.0)
        if moved * moved <= enough * before:
            return True
        before = moved
    return False


@jit_no_refcount
def towards_places(k: Work, n: int, N: int, K: int, cells: int, W: F32, saved: bool, near: bool) -> None:
    """From the cotangent w_i phi_j of the plan: Cov_i(phi, y) in COV, Cov_i(lambda, y) in COV_2, E_i phi in DIRECT.

    G is as ``gibbs`` left it, and ``scale`` left in COV what leaves the best targets.
    """
    stride = padded(K)
    u, v, y_0, phi_0, mean, best = k.k32[U], k.n32[V], k.n32[Y_0], k.n32[PHI_0], k.n32[MEAN], k.n_int[BEST]
    phi, lam, y32, glo, ghi, lo, hi = (
        k.k32[PHI], k.k32[LAM], k.k32[Y32], k.n_int[GLO], k.n_int[GHI], k.k_int[LO], k.k_int[HI],
    )  # fmt: skip
    flow = np.float32(0.0)
    for i in range(0, N, 16):
        flow += total(load(k.n32[COV], i))
    soft = flow > SOFT
    at_best(y32, best, N, y_0)
    at_best(phi, best, N, phi_0)
    covariances(k.G, N, u, v, phi, phi_0, y32, y_0, glo, ghi, mean, k.n32[COV])
    for i in range(0, N, 16):
        store(k.n32[DIRECT], i, load(phi_0, i) + load(mean, i))
    if soft:
        complete(k.G, N, best)
        copied(k.n32[DIRECT], mean[:N])
    tensions(k.G, N, K, u, v, k.n32[WEIGHT], phi, phi_0, mean, lo, hi, best, soft, k.parts, k.k32[TENSION])
    if not (saved and refined(k, N, K, W, k.k_int[NEAR_ENDS] if near else k.k_int[ENDS], soft)):
        roots_into(k, n, N, cells)
        edges(k.G, N, K, k.n32[ROOT], best, u, v, lo, hi, soft, bool(0), k.Q, k.W, stride, k.k_int[ENDS],
              k.parts)  # fmt: skip
        for j in range(K):
            k.k32[RIDGE, j] = k.k32[B, j] * flow * _RIDGE
        eliminate(k.W, K, stride, k.k_int[ENDS], k.k32[RIDGE], k.k32[INV], k.small)
        copied(k.k32[TENSION], k.k32[Z])
        substitute(k.W, K, stride, k.k_int[ENDS], k.k32[INV], k.k32[Z], lam)
    at_best(lam, best, N, phi_0)
    covariances(k.G, N, u, v, lam, phi_0, y32, y_0, glo, ghi, mean, k.n32[COV_2])


@jit
def rows_backward(start: int, stop: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int,
                  whole: bool, size: int, squash: int, push: bool, steps: tuple[int, int, int, int, int], w: F32,
                  grad: F32, state32: F32) -> None:  # fmt: skip
    """Cotangents of x from those of what was pulled, w (R, n); or pushed, phi (R, K)."""
    stride = padded(K)
    state64, state_int = state32.view(np.float64), state32.view(np.int32)
    at32, at_int, _ = state_parts(n, K, whole)
    saved = not whole and K <= SAVED
    k = workspace(n, K)
    xs, at, read, aw, weight, direct = k.n32[XS], k.n64[AT], k.n32[READ], k.n32[AW], k.n32[WEIGHT], k.n32[DIRECT]
    lo, hi, glo, ghi, best = k.k_int[LO], k.k_int[HI], k.n_int[GLO], k.n_int[GHI], k.n_int[BEST]
    first_one = True
    for row in range(start, stop):
        doubles, singles, of_int = (
            state64[row * size // 2 :],
            state32[row * size + at32 :],
            state_int[row * size + at_int :],
        )
        answer, order, cells = grad[row * n : row * n + n], of_int[1:], np.int64(of_int[0])
        mean, per_unit, total_weight, flags = (
            doubles[stride],
            doubles[stride + 1],
            doubles[stride + 2],
            doubles[stride + 3],
        )
        if np.isnan(total_weight):
            answer[:] = np.nan
            continue
        row_into(x, row * n, n, xs)
        given_into(k, y, b, a, row, n, K, steps, first_one)
        if first_one or steps[1] > 0:
            copied(phi[row * steps[1] :], k.k32[PHI, :K])
            if push:
                for j in range(K):
                    k.k32[PHI, j] = k.k32[PHI, j] / k.k32[B, j] if k.k32[B, j] > 0.0 else 0.0
        first_one = False
        e = np.float64(eps[row * steps[3]])
        first, rejects_by_nan = outermost(k, K, flags > 7.5)
        least = CANCELLED_OF_SORTS if push and flags > 7.5 else CANCELLED
        places_again(xs, aw, squash, mean, per_unit, first, rejects_by_nan, at)
        copied(doubles, k.k64[H])
        copied(singles, k.k32[U])
        copied(singles[stride:], k.k32[INV])
        low, high = range_of(at, n)
        if cells > 0:
            N = grid_into(k, n, cells, low, high)
            copied(of_masses(of_int, N), k.n32[MASS, :N])
        else:
            N = values_into(k, n, order)
        given = k.n32[GIVEN]
        if not push:
            balanced(w[row * n : row * n + n], aw, n, given)
        if push:
            carried_values(k, n, mean, per_unit)
            carried_by_sources(k, n, cells, order)
        elif cells > 0:
            moments(given, n, cells, k.n_int[CELL], k.n32[WITHIN], k.moments)
            masses(k.moments, cells, weight)
        else:
            for i in range(n):
                weight[i] = given[order[i]]
            weight[n:] = 0.0
        bands_within(k, N, K, e, CUT if cells == 0 else _CUT_OF_GRID)
        gibbs(k.n64[T], k.n64[R], best, N, k.k64[Y], k.k64[H], K, lo, hi, k.in_cells, k.G)
        scale(k.G, N, K, k.n32[MASS], best, k.k32[U], lo, hi, glo, ghi, bool(np.int64(0)), k.n32[V],
              k.n32[COV], k.parts, k.k32[S])  # fmt: skip
        towards_places(k, n, N, K, cells, singles[2 * stride :] if saved else k.W, saved and flags % 4.0 > 1.5,
                       flags % 8.0 > 3.5)  # fmt: skip
        if cells > 0:
            if push:
                polynomials(direct, cells, k.in_cells)
                interpolate(k.in_cells, n, k.n_int[CELL], k.n32[WITHIN], k.n32[PHI_0])
            polynomials(k.n32[COV_2], cells, k.in_cells)
            interpolate(k.in_cells, n, k.n_int[CELL], k.n32[WITHIN], direct)
            polynomials(k.n32[COV], cells, k.in_cells)
            interpolate(k.in_cells, n, k.n_int[CELL], k.n32[WITHIN], read)
            read[n:], direct[n:] = 0.0, 0.0
            cancelled = along_places(given, aw, read, direct, padded(n), e, least, read)
        else:
            cancelled = along_places(weight, k.n32[MASS], k.n32[COV], k.n32[COV_2], N, e, least, k.n32[COV])
            for i in range(n):
                read[order[i]], given[order[i]] = k.n32[COV, i], weight[i]
        if cancelled:
            double_backward(at, aw, n, given, k.k64[Y], k.k64[B64], k.k64[H], k.k32[U], k.k32[PHI], K, e, read)
        read[n:] = 0.0
        unit = 1.0 / per_unit if push else 1.0
        places_backward(xs, aw, at, squash, mean, per_unit, total_weight, flags % 2.0 > 0.5, unit, read)
        copied(read, answer)
        if push and cells > 0:
            for i in range(n):
                answer[i] += aw[i] * k.n32[PHI_0, i] if abs(xs[i]) < np.inf else 0.0
        elif push:
            for i in range(n):
                answer[order[i]] += k.n32[MASS, i] * direct[i]
