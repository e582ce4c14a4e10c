"""Ranks of rows that other kernels leave over, by the solver of sorts: every value, every target, in double precision.

A rule of a few nodes, or a grid, is made for rows that are smooth. Ties, gaps and long tails are not, and they are
common: activations that are zero for half of the units, counts, probabilities. The panels of ``sort.solve`` are
as short or long as the row wants them, wherever it wants them.

**Ties.** Values at one place have one rank, and are one source that weighs what they weigh together; its pull is the
sum of theirs. Each of them has its own share of the gradient.

**Gradients.** p_ij = b_j q_ij in ``contract``, and the columns are exact, so that L lambda = t says

    lambda_j = s_j + E_j mu,     s_j = t_j / b_j = sum_i w_i q_ij (phi_j - out_i),     mu_i = sum_j b_j q_ij lambda_j,

with E_j the mean over the shares a_i q_ij of target j. Put into mu this is the equation that sorts have,

    mu_i - sum_j b_j q_ij E_j mu  =  sum_j b_j q_ij s_j,

and Cov_i(lambda, y) = sum_j b_j q_ij (y_j - x_i) (s_j - (mu_i - E_j mu)), where any number may stand for the mean of y.

Rows are rare here: nothing is kept of them, and the way back solves them again.
"""

from __future__ import annotations

import numpy as np

from ..engine.compile import exact
from ..engine.maths import F32, F64, I32, copied, places, places_backward, row_into
from ..engine.sources import padded, range_of, sort_places
from .passes import means, node_potentials, pulls
from .solve import (
    ALONG,
    AVERAGED,
    COUNT,
    ENOUGH,
    FEW_B,
    FEW_C,
    FEW_Y,
    LARGEST_EXPONENT,
    A,
    B,
    C,
    F,
    H,
    Q,
    Work,
    X,
    Y,
    lambda_into,
    matrix_into,
    solved,
    sources_end,
    targets_into,
    values_into,
    workspace,
)

_Steps = tuple[int, int, int, int, int]

#: Exponents up to which gradients are known: beyond, a plan is nearly hard, and what little is elsewhere is not.
_LARGEST_BACKWARD = 1e5
_SOURCES = 32  #: at least, where there are as many values
_LOST = 1e-5  #: of what lambda is made from, may be missing
_ROUNDING = 1e-13  #: of all pulls times the range of the levels: where nearly all of them cancels


@exact
def _levels_into(k: Work, y: F32, b: F32, phi: F32, K: int, m: int) -> None:
    """Targets and their levels: those given, or the m equal ones that K nodes stand for, with levels affine in y."""
    if m == 0:
        targets_into(k, y, b, K)
        for j in range(K):
            k.k64[C, j] = phi[j]
        return
    low, first = np.float64(y[0]), np.float64(phi[0])
    slope = (np.float64(phi[K - 1]) - first) / (np.float64(y[K - 1]) - low)
    for j in range(m):
        at = j / (m - 1)
        k.k64[Y, j], k.k64[B, j], k.k64[C, j] = at, 1.0 / m, first + slope * (at - low)


@exact
def _all_in_order(k: Work, xs: F32, aw: F32, at: F64, n: int, mean: float, scale: float, order: I32,
                  source: I32) -> int:  # fmt: skip
    """All values, those without weight among them, and as which source each of them counts; returns how many these are.

    That is 0 if a value is infinite, which is for the reference. A source is at most so many of the values that there
    are some tens of them: this solver is made for that.
    """
    for i in range(n):
        if not abs(xs[i]) < np.inf:
            return 0
    low, high = range_of(at, n)
    sort_places(at, n, low, high, order, k.n_int[COUNT], k.n64[X])
    values_into(k, xs, aw, at, n, mean, scale, order)
    place, weight = k.n64[X], k.n64[A]
    most, first, last = n // _SOURCES, 0, 0
    source[0] = 0
    for i in range(1, n):
        if place[i] == place[last] and i - first < most:
            weight[last] += weight[i]
        else:
            first, last = i, last + 1
            place[last], weight[last] = place[i], weight[i]
        source[i] = last
    sources_end(k, last + 1)
    return last + 1


@exact
def pull_sorted(start: int, stop: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, m: int,
                squash: int, steps: _Steps, w: F32, backward: bool, out: F32, errors: F32) -> None:  # fmt: skip
    """Rows start to stop: means of the levels, or ``backward`` the cotangents of x from those of the means, w.

    m: how many targets the K nodes stand for, or 0 where y are the targets.
    """
    N, targets = padded(n), max(K, m)
    k = workspace(n, targets)
    xs, aw, at, read = np.empty(N, np.float32), np.zeros(N, np.float32), np.empty(N), np.zeros(N, np.float32)
    order, source = np.empty(n, np.int32), np.empty(n, np.int32)
    lo, hi = np.empty(targets, np.int32), np.empty(targets, np.int32)
    h, pull, mean_level = np.empty(targets), np.zeros(N), np.zeros(N)
    wanted, along, cov = np.zeros(N), np.zeros(N), np.zeros(N)
    G, P, W = np.empty(16), np.empty(16), np.empty(16)
    largest = _LARGEST_BACKWARD if backward else LARGEST_EXPONENT
    _levels_into(k, y, b, phi, K, m)
    aw[:n] = 1.0 / n
    for row in range(start, stop):
        answer = out[row * n : row * n + n]
        answer[:], errors[row] = np.nan, 0.0
        if not row_into(x, row * n, n, xs):
            continue
        if steps[0] > 0 or steps[1] > 0:
            _levels_into(k, y[row * steps[0] :], b[row * steps[0] :], phi[row * steps[1] :], K, m)
        if steps[4] > 0:
            copied(a[row * n :], aw[:n])
        e = np.float64(eps[row * steps[3]])
        mean, scale, weight, spread = places(xs, aw, squash, k.k64[Y, 0], k.k64[Y, targets - 1], at)
        errors[row] = np.inf
        U = _all_in_order(k, xs, aw, at, n, mean, scale, order, source)
        if U == 0:
            continue
        error, few, G, P, W = solved(k, U, targets, e, largest, h, k.k64[AVERAGED], lo, hi, G, P, W)
        errors[row] = error if error <= ENOUGH or not backward else np.inf
        if not error < 1.0:
            continue
        over, masses, levels, count = k.k64[Y], k.k64[B], k.k64[C], targets
        H_of, first, end = h, lo, hi
        if few > 0:
            over, masses, levels, count = k.k64[FEW_Y], k.k64[FEW_B], k.k64[FEW_C], few
            for q in range(few):
                levels[q] = k.k64[C, k.kept[q]]
            node_potentials(k.n64[F], k.n64[X], k.n64[A], U, over, few, e, k.lo32, k.hi32, k.k64[H])
            H_of, first, end = k.k64[AVERAGED], k.lo32.copy(), k.hi32.copy()
            H_of[:few] = k.k64[H, :few]
        padded_U = padded(U)
        means(k.n64[F], k.n64[X], padded_U, over, masses, levels, count, e, first, end, H_of, mean_level, wanted)
        for i in range(U):
            mean_level[i] /= wanted[i]
        if not backward:
            for i in range(n):
                answer[order[i]] = mean_level[source[i]]
            continue
        M, reach, P, W = matrix_into(k, U, targets, e, P, W)
        pull[:] = 0.0
        for i in range(n):
            pull[source[i]] += w[row * n + order[i]]
        pulls(k.n64[F], k.n64[X], pull, mean_level, padded_U, over, masses, levels, count, e, first, end, H_of, wanted,
              along, cov, k.n64[Q])  # fmt: skip
        whole, floor = 0.0, 0.0
        for i in range(U):
            whole += k.n64[A, i] * abs(wanted[i])
            floor += _ROUNDING * abs(pull[i] * (levels[count - 1] - levels[0]))
        lost = lambda_into(k, U, over, masses, count, e, first, end, H_of, M, reach, P, W, wanted, whole, floor)
        if not lost <= max(_LOST * whole, floor):
            errors[row] = np.inf
        total = 0.0
        for i in range(n):
            total += aw[i]
        for i in range(n):
            at_i, o = source[i], order[i]
            through = (aw[o] / total) * (along[at_i] - k.n64[ALONG, at_i])
            read[o] = (2.0 / e) * (w[row * n + o] * cov[at_i] - through)
        places_backward(xs, aw, at, squash, mean, scale, weight, spread, 1.0, read)
        copied(read, answer)
