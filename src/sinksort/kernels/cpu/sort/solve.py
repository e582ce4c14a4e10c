"""The plan of a short row with all its values and targets, in double precision: any eps, any weights.

What is read of a sort are averages over the values that a target gets, and a target may weigh little: so the columns of
the plan had better be exact, and what is solved for are the potentials F of the values,

    q_ij = exp(F_i + H_j - (y_j - x~_i)^2 / eps),   sum_i a_i q_ij = 1 by the choice of H,   sum_j b_j q_ij = 1 by F.

Newton's matrix for F is I - Q B Q^T A, as large as there are values. But the plan P between the values and M nodes in
place of the targets (``sort.panels``) gives nearly the same matrix, and by Woodbury's formula its inverse takes

    tau  to  tau + P mu,        L mu = P^T A tau,

with the Laplacian L of the nodes, which is small. So a row is solved roughly, between a few sources and a few nodes
(``sort.small``), F is read off for all values, and then corrected by passes over all pairs that count
(``sort.passes``): a pass says how much each value sends, which is the error, and what is missing gives tau. With
nodes that are good to a per mille a pass wins three digits, and the answer does not depend on how good they are. Where
rows are so long that a few of the targets can stand for all of them, to 1e-7, passes are made over these first, and one
over all targets says that it was right. Then the way back needs these few only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..engine.compile import jit
from ..engine.maths import F32, F64, I32, I64, copied
from ..engine.sources import padded, range_of, sort_places
from .panels import PER_PANEL, boundaries, keep, moved, panels
from .passes import along_nodes, averages, laplacian, node_potentials, spread_back, tested, windows
from .small import (
    VERY_FAINT,
    band,
    edges,
    eliminate,
    exponentials,
    gibbs,
    hard_potentials,
    newton,
    plan_into,
    shares,
    substitute,
    widest,
)

LARGEST_EXPONENT = 1e9  #: beyond this not even double precision resolves what small differences of places mean
_CHANGE = 2.0  #: within a panel: see ``sort.panels``
_FEW_CHANGE, _WORTH = 0.7, 2  #: the same where a few targets stand for all; how many times fewer they are to be
_ROUGH = 1e-5  #: what may be missing at the nodes
ENOUGH = 5e-7  #: what a value may send too much or too little, of what it weighs, and groups of the weight of a target
#: The same over eps: a link between two groups of values that weighs as much is seen in the third digit of a gradient.
_LINKS = 1e-5
_MOST_PASSES = 8
_LARGEST_STEP = 3.0  #: of a potential, in units of eps, see ``solvers.newton``
_SLOW, _MOST_MATRICES = 0.3, 8  #: error of a pass over that of the last, from which a new matrix is made; how often
_REFINED = 1e-7  #: of tau, may be left when lambda is done
_ROUNDING = 2.4e-7  #: relative, of cumulative weights in single precision
_FAR = -1e9  #: potential of values that are none

# Rows of the scratch of a thread: of values (n64), of targets (k64), whole numbers of values (n_int).
AT, X, A, VALUES, F, TAU, Q, LAM, ALONG, DIRECT, V, SOURCES, MASS, BEST = range(14)
Y, B, NODES, WEIGHTS, G0, GAMMA, INVERSE, T, C, CARRIED, FEW_Y, FEW_B, FEW_C, FEW_CARRIED, H, AVERAGED = range(16)
COUNT, KEPT, LO, HI, OFFSET = range(5)


class Work(NamedTuple):
    n64: F64
    k64: F64
    n_int: I64
    z: F64  #: boundaries
    small: F64  #: (5, K)
    lo32: I32  #: (K)
    hi32: I32
    kept: I32  #: (K): see ``sort.panels.keep``
    slot: I32
    share: F64  #: (PER_PANEL K)


@jit
def workspace(n: int, K: int) -> Work:
    N, stride = padded(n) + 16, padded(K)
    return Work(
        np.zeros((14, N)),
        np.zeros((16, stride + 16)),
        np.zeros((5, N), np.int64),
        np.zeros(max(N, stride) + 16),
        np.zeros((5, stride)),
        np.zeros(stride, np.int32),
        np.zeros(stride, np.int32),
        np.zeros(stride, np.int32),
        np.zeros(stride, np.int32),
        np.zeros(PER_PANEL * stride),
    )


@jit
def targets_into(k: Work, y: F32, b: F32, K: int) -> None:
    total = 0.0
    for j in range(K):
        total += b[j]
    for j in range(K):
        k.k64[Y, j], k.k64[B, j] = y[j], b[j] / total


@jit
def sorted_into(k: Work, aw: F32, at: F64, n: int, order: I32) -> int:
    """Which values come in which order, without those that weigh nothing; returns how many."""
    which, places_kept = k.n_int[KEPT], k.n64[LAM]
    kept = np.int64(0)
    for i in range(n):
        if aw[i] > 0.0:
            which[kept], places_kept[kept] = i, at[i]
            kept += 1
    low, high = range_of(places_kept, kept)
    sort_places(places_kept, kept, low, high, order, k.n_int[COUNT], k.n64[X])
    for i in range(kept):
        order[i] = which[order[i]]
    return int(kept)


@jit
def values_into(k: Work, xs: F32, aw: F32, at: F64, kept: int, mean: float, scale: float, order: I32) -> None:
    total = 0.0
    for i in range(kept):
        total += aw[order[i]]
    for i in range(kept):
        o = order[i]
        k.n64[X, i], k.n64[A, i], k.n64[VALUES, i] = at[o], aw[o] / total, (xs[o] - mean) * scale
    sources_end(k, kept)


@jit
def targets_met(k: Work, n: int, K: int) -> None:
    """Boundaries between targets that are, to single precision, boundaries between values become just these.

    As ``problem.met_exactly``: a mass that comes of rounding alone has no gap to cross.
    """
    b, a, moved, smallest = k.k64[B], k.n64[A], k.k64[T], 1.0
    i, reached, boundary, before = 0, a[0], 0.0, 0.0
    for j in range(K - 1):
        boundary += b[j]
        while i < n - 1 and reached < boundary:
            i += 1
            reached += a[i]
        below = reached - a[i]
        nearest = reached if reached - boundary <= boundary - below else below
        shift = nearest - boundary
        if abs(shift) > _ROUNDING * min(boundary, 1.0 - boundary):
            shift = 0.0
        moved[j] = shift - before
        before = shift
        smallest = min(smallest, moved[j] + 0.5 * b[j])
    moved[K - 1] = -before
    if min(smallest, moved[K - 1] + 0.5 * b[K - 1]) >= 0.0:
        for j in range(K):
            b[j] += moved[j]


@jit
def sources_end(k: Work, count: int) -> None:
    """Behind so many sources there are none."""
    k.n64[X, count:], k.n64[A, count:], k.n64[VALUES, count:], k.n64[F, count:] = k.n64[X, count - 1], 0.0, 0.0, _FAR


@jit
def _nodes_into(k: Work, n: int, K: int, eps: float, change: float) -> int:
    """Nodes in place of the targets; returns how many."""
    boundaries(k.n64[X], k.n64[A], n, k.k64[B], K, k.z)
    return panels(k.k64[Y], k.k64[B], K, k.z, eps, change, k.k64[NODES], k.k64[WEIGHTS])


@jit
def few_into(k: Work, n: int, K: int, eps: float) -> int:
    """Targets that stand for all, and weights b for them; returns how many, or 0 where they are not few."""
    boundaries(k.n64[X], k.n64[A], n, k.k64[B], K, k.z)
    few = keep(k.k64[Y], K, k.z, eps, _FEW_CHANGE, k.kept, k.slot, k.share)
    if _WORTH * few >= K:
        return 0
    for q in range(few):
        k.k64[FEW_Y, q] = k.k64[Y, k.kept[q]]
    moved(k.k64[B], K, k.slot, k.share, few, k.k64[FEW_B])
    return few


@jit
def _room(array: F64, size: int) -> F64:
    return array if len(array) >= size else np.empty(size + size // 4)


@jit
def roughly(k: Work, n: int, K: int, eps: float, change: float, G: F64, P: F64,
             W: F64) -> tuple[int, int, F64, F64, F64]:  # fmt: skip
    """F for all values from a small problem, whose plan P and eliminated matrix W come back, with nodes and reach."""
    nodes, weights, g0, gamma = k.k64[NODES], k.k64[WEIGHTS], k.k64[G0], k.k64[GAMMA]
    sources, mass, lo, hi, offset, v = k.n64[SOURCES], k.n64[MASS], k.n_int[LO], k.n_int[HI], k.n_int[OFFSET], k.n64[V]
    boundaries(k.k64[Y], k.k64[B], K, k.n64[A], n, k.z)
    U = panels(k.n64[X], k.n64[A], n, k.z, eps, change, sources, mass)
    M = _nodes_into(k, n, K, eps, change)
    boundaries(sources, mass, U, weights, M, k.z)
    hard_potentials(nodes, M, k.z, g0)
    band(sources, U, nodes, M, k.z, g0, eps, lo, hi, offset)
    reach = widest(U, lo, hi)
    G, P, W = _room(G, offset[U] + 16), _room(P, offset[U] + 16), _room(W, M * reach)
    gibbs(sources, U, nodes, g0, eps, lo, hi, offset, k.n64[LAM], G)
    error = newton(G, P, U, M, mass, weights, lo, hi, offset, reach, _ROUGH, W, k.k64[INVERSE], gamma, v, k.small)
    if not error < 1.0:
        return 0, 0, G, P, W
    band(k.n64[X], n, nodes, M, k.z, g0, eps, lo, hi, offset)
    G, P = _room(G, offset[n] + 16), _room(P, offset[n] + 16)
    gibbs(k.n64[X], n, nodes, g0, eps, lo, hi, offset, k.n64[LAM], G)
    for j in range(M):
        k.small[0, j] = weights[j] * math.exp(gamma[j])
    shares(G, n, M, k.n64[A], k.small[0], lo, hi, offset, v, k.small[1])
    plan_into(G, n, k.small[0], v, lo, hi, offset, P)
    for i in range(n):
        k.n64[F, i] = math.log(v[i]) - k.n64[LAM, i]
    return M, reach, G, P, W


@jit
def solved_for(k: Work, n: int, M: int, P: F64, reach: int, W: F64) -> None:
    """lambda from tau."""
    lo, hi, offset, t = k.n_int[LO], k.n_int[HI], k.n_int[OFFSET], k.k64[T]
    tested(k.n64[TAU], k.n64[A], n, P, M, lo, hi, offset, t)
    substitute(W, M, reach, k.k64[INVERSE], t)
    spread_back(t, n, P, lo, hi, offset, k.n64[TAU], k.n64[LAM])


@jit
def corrected(k: Work, n: int, y: F64, b: F64, K: int, eps: float, M: int, reach: int, P: F64, W: F64, h: F64,
               averaged: F64, lo: I32, hi: I32, targets: int, enough: float) -> tuple[float, int]:  # fmt: skip
    """Passes over all pairs until every value sends what it weighs; returns the error, and how many.

    Ends early where passes win little: then the matrix is that of a plan whose weak links weigh something else.

    Where the plan falls into groups of values that hardly share a target, what a group lacks, all together, is missing
    in the one target that it shares: the error of its average is that, over what the target weighs, of the range.
    """
    tau, lam, potentials, best = k.n64[TAU], k.n64[LAM], k.n64[F], k.n64[BEST]
    windows(potentials, k.n64[X], n, y, K, eps, lo, hi, h)
    before, passes, again = np.inf, 0, False
    while True:
        averages(potentials, k.n64[X], k.n64[A], k.n64[VALUES], padded(n), y, b, K, eps, lo, hi, h, averaged, tau,
                 k.n64[Q])  # fmt: skip
        passes += 1
        worst, lacking = 0.0, 0.0
        for i in range(n):
            tau[i] = 1.0 - tau[i]
            lacking += k.n64[A, i] * tau[i]
            here = max(abs(tau[i]), abs(lacking) * targets)
            worst = here if not here <= worst else worst  # NaN is the worst
        if again or worst <= enough or passes >= _MOST_PASSES:
            return worst, passes
        if not worst < before:  # back to the better one
            copied(best[:n], potentials[:n])
            again = True
            continue
        if not worst < _SLOW * before:
            return worst, passes
        before = worst
        copied(potentials[:n], best[:n])
        solved_for(k, n, M, P, reach, W)
        longest = 0.0
        for i in range(n):
            longest = max(longest, abs(lam[i]))
        length = min(1.0, _LARGEST_STEP / longest) if longest > 0.0 else 1.0
        for i in range(n):
            potentials[i] += length * lam[i]


@jit
def solved(k: Work, n: int, K: int, eps: float, largest: float, h: F64, averaged: F64, lo: I32, hi: I32, G: F64, P: F64,
           W: F64) -> tuple[float, int, F64, F64, F64]:  # fmt: skip
    """F of the values, H and averages of the targets; returns the error, and how many targets stand for all, or 0.

    The error is infinite, and nothing is done, if exponents are larger than ``largest``.
    """
    farthest = max(abs(k.n64[X, 0] - k.k64[Y, K - 1]), abs(k.n64[X, n - 1] - k.k64[Y, 0]))
    if not farthest * farthest < largest * eps:
        return np.inf, 0, G, P, W
    M, reach, G, P, W = roughly(k, n, K, eps, _CHANGE, G, P, W)
    if M == 0:
        return np.inf, 0, G, P, W
    few, enough, before = few_into(k, n, K, eps), min(ENOUGH, _LINKS * eps), np.inf
    error, first = np.inf, 0
    for attempt in range(_MOST_MATRICES):
        if few > 0 and attempt == 0:
            corrected(k, n, k.k64[FEW_Y], k.k64[FEW_B], few, eps, M, reach, P, W, k.k64[H], k.k64[AVERAGED], k.lo32,
                      k.hi32, K, enough)  # fmt: skip
        error, passes = corrected(k, n, k.k64[Y], k.k64[B], K, eps, M, reach, P, W, h, averaged, lo, hi, K, enough)
        first += passes
        if error <= enough or not error < before:
            break
        before = error
        M, reach, P, W = matrix_into(k, n, K, eps, P, W)
    return error, few if first == 1 else 0, G, P, W


@jit
def matrix_into(k: Work, n: int, K: int, eps: float, P: F64, W: F64) -> tuple[int, int, F64, F64]:
    """The plan P between values and nodes from F, and the eliminated matrix; with how many nodes, and reach."""
    M = _nodes_into(k, n, K, eps, _CHANGE)
    nodes, weights, g0, h = k.k64[NODES], k.k64[WEIGHTS], k.k64[G0], k.k64[H]
    x, potentials, lo, hi, offset = k.n64[X], k.n64[F], k.n_int[LO], k.n_int[HI], k.n_int[OFFSET]
    node_potentials(potentials, x, k.n64[A], n, nodes, M, eps, k.lo32, k.hi32, h)
    boundaries(x, k.n64[A], n, weights, M, k.z)
    hard_potentials(nodes, M, k.z, g0)
    band(x, n, nodes, M, k.z, g0, eps, lo, hi, offset)
    reach = widest(n, lo, hi)
    P, W = _room(P, offset[n] + 16), _room(W, M * reach)
    for i in range(n):
        for j in range(lo[i], hi[i]):
            P[offset[i] + j - lo[i]] = potentials[i] + h[j] - (nodes[j] - x[i]) ** 2 / eps
    P[offset[n] : offset[n] + 16] = 0.0
    exponentials(P, 0, offset[n])
    for i in range(n):
        row, sums = P[offset[i] : offset[i + 1]], 0.0
        for j in range(len(row)):
            row[j] *= weights[lo[i] + j]
            sums += row[j]
        for j in range(len(row)):
            row[j] /= sums
    edges(P, n, M, k.n64[A], lo, offset, reach, VERY_FAINT, W)
    eliminate(W, M, reach, weights, k.small[0], k.k64[INVERSE])
    return M, reach, P, W


@jit
def lambda_into(k: Work, n: int, y: F64, b: F64, K: int, eps: float, lo: I32, hi: I32, h: F64, M: int, reach: int,
                P: F64, W: F64, wanted: F64, whole: float, floor: float) -> float:  # fmt: skip
    """lambda_i - sum_j b_j q_ij E_j lambda = wanted_i; sum_j b_j q_ij (y_j - x_i) (lambda_i - E_j lambda) into ALONG.

    ``whole`` is the sum of a_i |wanted_i|, of which ``floor`` may be missing anyway. Returns what is, about. Where the
    plan of the nodes has a weak link of another weight than the plan itself, a pass makes matters worse, and is undone.
    """
    tau, lam, left, total, best = k.n64[TAU], k.n64[LAM], k.n64[ALONG], k.n64[V], k.n64[BEST]
    for i in range(n):
        tau[i] = wanted[i]
    total[:], left[:], before, rest = 0.0, 0.0, whole, whole
    for _ in range(_MOST_PASSES):
        solved_for(k, n, M, P, reach, W)
        for i in range(n):
            total[i] += lam[i]
        copied(left[:n], best[:n])
        laplacian(k.n64[F], k.n64[X], k.n64[A], padded(n), y, b, K, eps, lo, hi, h, total, tau, left, k.n64[Q])
        off = 0.0
        for i in range(n):
            tau[i] = wanted[i] - tau[i]
            off += k.n64[A, i] * abs(tau[i])
        if not off < before and before > 0.0:  # the nodes see a weak link wrongly: back to what was better
            copied(best[:n], left[:n])
            return before
        rest = off * off / before if before > 0.0 else 0.0
        if not rest > _REFINED * whole or off <= floor:
            break  # the next step leaves off / before of what is left, which is then little
        before = off
    solved_for(k, n, M, P, reach, W)
    along_nodes(lam, k.k64[T], k.n64[X], k.k64[NODES], n, P, k.n_int[LO], k.n_int[HI], k.n_int[OFFSET], left)
    return rest
