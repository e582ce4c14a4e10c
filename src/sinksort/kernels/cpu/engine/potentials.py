"""The potentials of K targets, for sources that stand for themselves or for very many values.

With c_j the potential of target j (its weight included) and d_j = 2 y_j / eps, the plan of a source at x is

    p_j(x) = exp(c_j + d_j x) / (the same summed over j):       -(y_j - x)^2 / eps  without what all targets share.

Newton's step solves L step = b - s for the column sums s, with the graph Laplacian L of the weights
sum_i a_i p_ij p_ik between targets j and k. Eliminated target by target, pivots are sums of positive weights: nothing
is ever subtracted (Grassmann, Taksar and Heyman), so the step is accurate however loosely two groups of targets hang
together. The line search is that of ``solvers.newton``: by slopes.

A point is near enough when Newton's decrement (b - s) . step = sum_i a_i Var_i(step) says so: no single source of
weight 1/n can then see its plan change by more than the square root of n times that, and the step is still taken. That
holds of what a step can mend. Two groups of targets that no source joins cannot exchange anything, whatever the step;
a point where one has too much and the other too little for good is no solution, and says so.
"""

from __future__ import annotations

import math

import numpy as np

from .blocks import exp
from .compile import exact, summing
from .staircase import SAME_MASS, passages

#: n times the decrement at which the last step is taken; what remains after it is of the order of this.
NEAR = 1e-8
_ROUNDING = 1e-13  # of column sums
_SAME = 3e-8  # weights that are the same in single precision
_LARGEST_STEP = 5.0
_NEGLIGIBLE = 1e-18  # what a whole block sends to a target
_ABSENT = -1e30  # the potential of a slot without a target
MOST_STEPS = 60

# Columns of a search, after point, base and direction (K each).
_LENGTH, _SLOPE, _STEPS, DECREMENT, DONE = 0, 1, 2, 3, 4
SEARCH = 5


@exact
def _middle_holds(c: np.ndarray, d: np.ndarray) -> bool:
    """Whether the second of three targets is not far below the others where these are equally good for a source."""
    return bool(c[0] - c[1] + (d[0] - d[1]) * (c[0] - c[2]) / (d[2] - d[0]) < 500.0)


@summing
def plan_of(x: np.ndarray, count: int, c: np.ndarray, d: np.ndarray, K: int, p: np.ndarray, work: np.ndarray) -> None:
    """p (K, block) for sources x; work: (2, block)."""
    if K == 2:
        p0, p1 = p[0], p[1]
        rise, slope = c[1] - c[0], d[1] - d[0]
        for i in range(count):
            logit = rise + slope * x[i]
            e = exp(-abs(logit))
            larger = 1.0 / (1.0 + e)
            smaller = e * larger
            p0[i] = smaller if logit > 0.0 else larger
            p1[i] = larger if logit > 0.0 else smaller
        return
    if K == 3 and _middle_holds(c, d):
        p0, p1, p2 = p[0], p[1], p[2]
        fall, rise, down, up = c[0] - c[1], c[2] - c[1], d[0] - d[1], d[2] - d[1]
        for i in range(count):
            below = exp(fall + down * x[i])
            above = exp(rise + up * x[i])
            share = 1.0 / (1.0 + below + above)
            p0[i] = below * share
            p1[i] = share
            p2[i] = above * share
        return
    total, top = work[0], work[1]
    for i in range(count):
        total[i] = 0.0
        top[i] = c[0] + d[0] * x[i]
    for j in range(1, K):
        c_j, d_j = c[j], d[j]
        for i in range(count):
            logit = c_j + d_j * x[i]
            top[i] = logit if logit > top[i] else top[i]
    for j in range(K):
        c_j, d_j, row = c[j], d[j], p[j]
        for i in range(count):
            e = exp(c_j + d_j * x[i] - top[i])
            total[i] += e
            row[i] = e
    for i in range(count):
        total[i] = 1.0 / total[i]
    for j in range(K):
        row = p[j]
        for i in range(count):
            row[i] *= total[i]


@summing
def dot(a: np.ndarray, b: np.ndarray, count: int) -> float:
    total = 0.0
    for i in range(count):
        total += a[i] * b[i]
    return total


@summing
def _four_dots(a: np.ndarray, p: np.ndarray, k: int, count: int, out: np.ndarray) -> None:
    """Add the dot products of a and rows k to k + 3 of p to out[k], ...: four at a time load a once."""
    p0, p1, p2, p3 = p[k], p[k + 1], p[k + 2], p[k + 3]
    t0 = t1 = t2 = t3 = 0.0
    for i in range(count):
        t0 += a[i] * p0[i]
        t1 += a[i] * p1[i]
        t2 += a[i] * p2[i]
        t3 += a[i] * p3[i]
    out[k] += t0
    out[k + 1] += t1
    out[k + 2] += t2
    out[k + 3] += t3


@summing
def add_columns(
    p: np.ndarray, a: np.ndarray, count: int, K: int, s: np.ndarray, S: np.ndarray, work: np.ndarray
) -> None:
    """Add a block's column sums to s (K,), and its weights between targets to S (K, K), below the diagonal."""
    first = -1  # target that the block reaches
    sent = work[0]
    for j in range(K):
        row, reached, total = p[j], 0.0, 0.0
        for i in range(count):
            here = a[i] * row[i]
            sent[i] = here
            total += here
            reached += row[i]
        if reached < _NEGLIGIBLE:
            continue
        first = j if first < 0 else first
        s[j] += total
        fours = first + (j - first) // 4 * 4
        for k in range(first, fours, 4):
            _four_dots(sent, p, k, count, S[j])
        for k in range(fours, j):
            S[j, k] += dot(sent, p[k], count)


@summing
def solve_laplacian(S: np.ndarray, t: np.ndarray, K: int) -> float:
    """t becomes the solution of L t' = t whose first entry is 0; S holds the weights, below the diagonal, and is lost.

    The sum of t must be zero. Where nothing connects a target to those before it, its entry is 0. Returns how much of t
    is lost that way.
    """
    lost = 0.0
    for k in range(K - 1, 0, -1):
        weights = S[k]
        pivot = 0.0
        for j in range(k):
            weights[j] = weights[j] if weights[j] > 0.0 else 0.0  # masses on a grid may be slightly negative
            pivot += weights[j]
        S[k, k] = pivot
        if pivot < 1e-290:
            lost += abs(t[k])
            continue
        for j in range(k):
            share = weights[j] / pivot
            if share == 0.0:
                continue
            t[j] += share * t[k]
            row = S[j]
            for i in range(j):
                row[i] += share * weights[i]
    t[0] = 0.0
    for k in range(1, K):
        t[k] = (t[k] + dot(S[k], t, k)) / S[k, k] if S[k, k] >= 1e-290 else 0.0
    return lost


@exact
def slopes_of(y: np.ndarray, eps: float, K: int) -> np.ndarray:
    """(K,): the d_j."""
    d = np.empty(K)
    for j in range(K):
        d[j] = 2.0 * y[j] / eps
    return d


@summing
def means(p: np.ndarray, v: np.ndarray, K: int, count: int, out: np.ndarray) -> None:
    """Averages of v (K,) over the targets of each source."""
    for i in range(count):
        out[i] = 0.0
    for j in range(K):
        row, v_j = p[j], v[j]
        for i in range(count):
            out[i] += row[i] * v_j


@summing
def add_pulls(
    p: np.ndarray, w: np.ndarray, v: np.ndarray, v_mean: np.ndarray, K: int, count: int, t: np.ndarray
) -> None:
    """Add sum_i w_i p_ij (v_j - its mean) to t (K,)."""
    for j in range(K):
        row, v_j, total = p[j], v[j], 0.0
        for i in range(count):
            total += w[i] * row[i] * (v_j - v_mean[i])
        t[j] += total


@exact
def begin(c: np.ndarray, K: int, search: np.ndarray) -> None:
    """A search from potentials c (K,); search: (3 K + SEARCH,)."""
    for k in range(len(search)):
        search[k] = c[k] if k < K else 0.0
    search[3 * K + _SLOPE] = math.inf


@exact
def advance(s: np.ndarray, S: np.ndarray, b: np.ndarray, K: int, n: float, near: float, search: np.ndarray) -> None:
    """One step of a search, given what ``add_columns`` found at its point (search[:K], moved from here on)."""
    point, base, direction, rest = search[:K], search[K : 2 * K], search[2 * K : 3 * K], search[3 * K :]
    residual = np.empty(K)
    off = lost = slope_here = 0.0
    for j in range(K):
        residual[j] = b[j] - s[j]
        lost += residual[j]
    for j in range(K):
        residual[j] -= b[j] * lost  # rounding
        off += abs(residual[j])
        slope_here += residual[j] * direction[j]
    if not off > _ROUNDING:  # also if it is NaN
        rest[DONE], rest[DECREMENT] = 1.0, 0.0 if off >= 0 else math.inf
        return
    rest[_STEPS] += 1
    slope = rest[_SLOPE]
    if slope_here < -0.5 * slope:  # the maximum along the step was passed
        rest[_LENGTH] *= slope / (slope - slope_here)
        for j in range(K):
            point[j] = base[j] + rest[_LENGTH] * direction[j]
    else:
        for j in range(K):
            base[j], direction[j] = point[j], residual[j]
        stuck = solve_laplacian(S, direction, K)
        level = decrement = rises = 0.0
        for j in range(K):
            level += b[j] * direction[j]
        for j in range(K):
            direction[j] -= level
            decrement += residual[j] * direction[j]
        largest = 0.0
        for j in range(K):
            if b[j] == 0.0:
                direction[j] = 0.0
            direction[j] = min(max(direction[j], -_LARGEST_STEP), _LARGEST_STEP)
            largest = max(largest, abs(direction[j]))
            rises += residual[j] * direction[j]
        if not rises > 0:  # Sinkhorn's own step always rises
            rises = 0.0
            for j in range(K):
                direction[j] = -math.log(max(s[j] / b[j], 1e-30)) if b[j] > 0 else 0.0
                rises += residual[j] * direction[j]
        rest[_LENGTH], rest[_SLOPE], rest[DECREMENT] = 1.0, rises, n * abs(decrement)
        for j in range(K):
            point[j] = base[j] + direction[j]
        if rest[DECREMENT] < near and largest < _LARGEST_STEP:
            rest[DONE] = 1.0
            if stuck > _SAME:
                rest[DECREMENT] = math.inf
    if rest[_STEPS] >= MOST_STEPS and rest[DONE] == 0:
        rest[DONE], rest[DECREMENT] = 1.0, math.inf


@exact
def staircase(x: np.ndarray, a: np.ndarray, count: int, b: np.ndarray, d: np.ndarray, K: int, c: np.ndarray) -> None:
    """Potentials of the hard sort for sources x in increasing order, of weight a >= 0; see ``solvers.start``.

    Where the staircase passes from one target to the next both are equally good. Targets without weight are passed by.
    """
    passages(x, a, count, b, K, SAME_MASS, c[1:])
    potential, previous = 0.0, -1
    for j in range(K):
        if b[j] <= 0:
            c[j] = _ABSENT
            continue
        if previous >= 0:
            potential -= (d[j] - d[previous]) * c[j]
        c[j] = potential + math.log(b[j])
        previous = j


@exact
def newton(
    x: np.ndarray, a: np.ndarray, count: int, b: np.ndarray, d: np.ndarray, K: int, n: float, near: float, c: np.ndarray
) -> float:
    """Move the potentials c to the solution for sources x of weight a; returns n times the last decrement."""
    block = 64 if K > 48 else 128  # a target that is far from all sources of a block costs nothing
    padded = (count + 31) // 32 * 32  # sources without weight at the end, so that all loops are whole vectors
    at, mass = np.empty(padded), np.zeros(padded)
    for i in range(padded):
        at[i] = x[min(i, count - 1)]
    for i in range(count):
        mass[i] = a[i]
    search, s, S = np.empty(3 * K + SEARCH), np.empty(K), np.empty((K, K))
    p, work = np.empty((K, block)), np.empty((2, block))
    begin(c, K, search)
    while search[3 * K + DONE] == 0:
        s[:] = 0.0
        S[:] = 0.0
        for first in range(0, padded, block):
            size = min(block, padded - first)
            plan_of(at[first : first + size], size, search, d, K, p, work)
            add_columns(p, mass[first : first + size], size, K, s, S, work)
        advance(s, S, b, K, n, near, search)
    for j in range(K):
        c[j] = search[j]
    return float(search[3 * K + DECREMENT])
