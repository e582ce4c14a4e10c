"""Sorted values of short rows, in double precision; ``sort.solve`` says how they are solved.

**Gradients.** Let c be the cotangent of the answer out_j = sum_i a_i q_ij x_i and E_j the mean over the shares a_i q_ij
of target j. The columns are exact, and F moves so that each value sends what it did: with

    tau_i = sum_j c_j q_ij (x_i - out_j),        lambda_i - sum_j b_j q_ij E_j lambda = tau_i

the cotangent of x~_i is (2 a_i / eps) sum_j q_ij (y_j - x~_i) (c_j (x_i - out_j) - b_j (lambda_i - E_j lambda)), and
x_i itself receives a_i sum_j c_j q_ij. lambda is found by the same matrix, and corrected by passes likewise.

Values without weight influence nobody, and nobody asks where they go: they are left out.
"""

from __future__ import annotations

import numpy as np

from ..engine.compile import exact
from ..engine.maths import F32, copied, places, places_backward, row_into
from ..engine.sources import padded
from .panels import moved
from .passes import tensions
from .solve import (
    ALONG,
    CARRIED,
    FEW_B,
    FEW_C,
    FEW_CARRIED,
    FEW_Y,
    LARGEST_EXPONENT,
    VALUES,
    A,
    B,
    C,
    F,
    H,
    X,
    Y,
    few_into,
    lambda_into,
    matrix_into,
    solved,
    sorted_into,
    targets_into,
    targets_met,
    values_into,
    workspace,
)

_Steps = tuple[int, int, int, int, int]

_UNSEEN = 1e-6  #: of tau, over eps and what values receive directly, makes no difference to a gradient
_MOMENTS = 8  #: float64 of a state that are none of values or targets


@exact
def sort_state(n: int, K: int) -> int:
    """Size of a row's state in float32: moments, F, H and answers in float64; order, lo and hi in int32."""
    return 2 * (_MOMENTS + n + 2 * K) + (n + 2 * K + 1) // 2 * 2


@exact
def push_sorted(start: int, stop: int, x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int,
                size: int, steps: _Steps, out: F32, state32: F32, errors: F32) -> None:  # fmt: skip
    """Rows start to stop, as ``row.solve.push_rows``; ``size`` is that of a state, ``sort_state`` or more."""
    N = padded(n)
    state64, state_int, integers = state32.view(np.float64), state32.view(np.int32), 2 * (_MOMENTS + n + 2 * K)
    k = workspace(n, K)
    xs, aw, at = np.empty(N, np.float32), np.zeros(N, np.float32), np.empty(N)
    G, P, W = np.empty(16), np.empty(16), np.empty(16)
    aw[:n] = 1.0 / n
    for row in range(start, stop):
        of64 = state64[row * size // 2 : (row + 1) * size // 2]
        of_int = state_int[row * size + integers : (row + 1) * size]
        answer = out[row * K : row * K + K]
        if not row_into(x, row * n, n, xs):
            answer[:] = np.nan
            of64[2], errors[row] = np.nan, 0.0
            continue
        targets_into(k, y[row * steps[0] :], b[row * steps[0] :], K)
        if steps[4] > 0:
            copied(a[row * n :], aw[:n])
        e = np.float64(eps[row * steps[3]])
        mean, scale, weight, spread = places(xs, aw, squash, k.k64[Y, 0], k.k64[Y, K - 1], at)
        of64[0], of64[1], of64[2], of64[3] = mean, scale, weight, 1.0 if spread else 0.0
        order, lo, hi = of_int[:n], of_int[n : n + K], of_int[n + K : n + 2 * K]
        h, averaged = of64[_MOMENTS + n : _MOMENTS + n + K], of64[_MOMENTS + n + K : _MOMENTS + n + 2 * K]
        answer[:], errors[row], of64[4] = np.nan, np.inf, 0.0
        finite = True
        for i in range(n):
            finite = finite and (abs(xs[i]) < np.inf or not aw[i] > 0.0)
        if not finite:
            continue  # averages of infinite values are for the reference
        kept = sorted_into(k, aw, at, n, order)
        values_into(k, xs, aw, at, kept, mean, scale, order)
        targets_met(k, kept, K)
        error, few, G, P, W = solved(k, kept, K, e, LARGEST_EXPONENT, h, averaged, lo, hi, G, P, W)
        if error == np.inf:
            continue
        errors[row], of64[5] = error, 1.0 if few > 0 else 0.0
        for j in range(K):
            answer[j] = mean + averaged[j] / scale
        of64[4] = kept
        for i in range(kept):
            of64[_MOMENTS + i] = k.n64[F, i]


@exact
def sorted_backward(start: int, stop: int, x: F32, a: F32, y: F32, b: F32, c: F32, eps: F32, n: int, K: int,
                    squash: int, size: int, steps: _Steps, w: F32, grad: F32, state32: F32) -> None:  # fmt: skip  # noqa: ARG001
    """Cotangents of x from those of the answer, c (R, K); w is for kernels that pull."""
    N = padded(n)
    state64, state_int, integers = state32.view(np.float64), state32.view(np.int32), 2 * (_MOMENTS + n + 2 * K)
    k = workspace(n, K)
    xs, aw, at, read = np.empty(N, np.float32), np.zeros(N, np.float32), np.empty(N), np.zeros(N, np.float32)
    P, W = np.empty(16), np.empty(16)
    aw[:n] = 1.0 / n
    wanted, along, direct = np.zeros(N), np.zeros(N), np.zeros(N)
    left = k.n64[ALONG]
    for row in range(start, stop):
        of64 = state64[row * size // 2 : (row + 1) * size // 2]
        of_int = state_int[row * size + integers : (row + 1) * size]
        answer = grad[row * n : row * n + n]
        mean, scale, weight, spread, kept = of64[0], of64[1], of64[2], of64[3] > 0.5, int(of64[4])
        if np.isnan(weight) or kept == 0:
            answer[:] = np.nan
            continue
        row_into(x, row * n, n, xs)
        targets_into(k, y[row * steps[0] :], b[row * steps[0] :], K)
        if steps[4] > 0:
            copied(a[row * n :], aw[:n])
        e = np.float64(eps[row * steps[3]])
        places(xs, aw, squash, k.k64[Y, 0], k.k64[Y, K - 1], at)
        order, lo, hi = of_int[:n], of_int[n : n + K], of_int[n + K : n + 2 * K]
        h, averaged = of64[_MOMENTS + n : _MOMENTS + n + K], of64[_MOMENTS + n + K : _MOMENTS + n + 2 * K]
        for i in range(kept):
            k.n64[F, i] = of64[_MOMENTS + i]
        for j in range(K):
            k.k64[C, j] = c[row * steps[1] + j]
            k.k64[CARRIED, j] = k.k64[C, j] * averaged[j]
        values_into(k, xs, aw, at, kept, mean, scale, order)
        targets_met(k, kept, K)
        M, reach, P, W = matrix_into(k, kept, K, e, P, W)
        over, masses, levels, carried, count = k.k64[Y], k.k64[B], k.k64[C], k.k64[CARRIED], K
        if of64[5] > 0.5:
            over, masses, levels, carried = k.k64[FEW_Y], k.k64[FEW_B], k.k64[FEW_C], k.k64[FEW_CARRIED]
            count = few_into(k, kept, K, e)
            moved(k.k64[C], K, k.slot, k.share, count, levels)
            moved(k.k64[CARRIED], K, k.slot, k.share, count, carried)
            for q in range(count):
                k.k64[H, q], k.lo32[q], k.hi32[q] = h[k.kept[q]], lo[k.kept[q]], hi[k.kept[q]]
            h, lo, hi = k.k64[H], k.lo32, k.hi32
        tensions(k.n64[F], k.n64[X], k.n64[VALUES], padded(kept), over, levels, carried, count, e, lo, hi, h, wanted,
                 along, direct)  # fmt: skip
        whole, floor = 0.0, 0.0
        for i in range(kept):
            whole += k.n64[A, i] * abs(wanted[i])
            floor += k.n64[A, i] * abs(direct[i]) * _UNSEEN * e
        lambda_into(k, kept, over, masses, count, e, lo, hi, h, M, reach, P, W, wanted, whole, floor)
        read[:] = 0.0
        for i in range(kept):
            read[order[i]] = (2.0 / e) * k.n64[A, i] * (along[i] - left[i])
        places_backward(xs, aw, at, squash, mean, scale, weight, spread, 1.0 / scale, read)
        copied(read, answer)
        for i in range(kept):
            answer[order[i]] += k.n64[A, i] * direct[i]
