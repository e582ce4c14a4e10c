"""A few targets for long rows: every value counts for itself, in passes over the row.

What is read of two or three targets changes within eps, not sqrt(eps), around a threshold, so a grid would have to be
as fine. A pass costs K exponentials a value; few passes are needed, because the search begins where a coarse one ended:
with one source for each of a few hundred bins, which stands where its values are on average. Where eps is so small that
a plan changes within a bin, every value is a source to begin with, in order, unless a row has too many to sort: then
the staircase that the search begins with cuts the very value that two targets share.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.blocks import BLOCK, Array, Rows, load, store, task_of
from ..engine.compile import exact, summing
from ..engine.potentials import (
    DECREMENT,
    DONE,
    NEAR,
    add_columns,
    add_pulls,
    advance,
    begin,
    dot,
    means,
    newton,
    plan_of,
    slopes_of,
    solve_laplacian,
    staircase,
)
from ..engine.sources import range_of, sort_places
from ..engine.values import (
    HEAD,
    HIGH,
    INFINITE,
    LOW,
    MEAN,
    OTHER_ERROR,
    POISONED,
    SHARE,
    from_z,
    place,
    placed_block,
    slopes,
)

_UNJOINED = 1e-15  #: weight between two targets below which rounding says more about them than what they share


@exact
def tally(first: int, last: int, rows: Rows, index: np.ndarray, state: np.ndarray, bins: np.ndarray) -> None:
    """Weight, and weight times x~, of equal bins from the lowest x~ to the highest: (slots, pieces, bins, 2)."""
    values, x, a = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    count_of_bins = bins.shape[2]
    for task in range(first, last):
        slot, part, start, end = task_of(rows, task)
        r = index[slot]
        head, into = state[r], bins[slot, part]
        into[:] = 0.0
        low, span = head[LOW], head[HIGH] - head[LOW]
        per_bin = count_of_bins / span if span > 0 else 0.0
        for at in range(start, end, BLOCK):
            count = min(BLOCK, end - at)
            placed_block(rows, r, at, count, head, values, a, x)
            for i in range(count):
                k = min(max(int((x[i] - low) * per_bin), 0), count_of_bins - 1)
                into[k, 0] += a[i]
                into[k, 1] += a[i] * x[i]


@exact
def in_order(first: int, last: int, rows: Rows, index: np.ndarray, state: np.ndarray, bins: np.ndarray) -> None:
    """The same with a bin for each value: (slots, 1, n, 2). Rows are in one piece."""
    n = rows.n
    values, a, x, at = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    order, count = np.empty(n, np.int32), np.empty(n + 1, np.int64)
    for slot in range(first, last):
        into = bins[slot, 0]
        placed_block(rows, index[slot], 0, n, state[index[slot]], values, a, x)
        low, high = range_of(x, n)
        sort_places(x, n, low, high, order, count, at)
        for k in range(n):
            into[k, 0], into[k, 1] = a[order[k]], a[order[k]] * at[k]


@exact
def start(
    first: int, last: int, index: np.ndarray, state: np.ndarray, bins: np.ndarray, y: np.ndarray, b: np.ndarray,
    eps: np.ndarray, search: np.ndarray,
) -> None:  # fmt: skip
    """A search for each row, from the potentials that suit its bins."""
    K = y.shape[1]
    x, a = np.empty(bins.shape[2]), np.empty(bins.shape[2])
    c = np.empty(K)
    for slot in range(first, last):
        r = index[slot]
        y_r, b_r, head = y[r if len(y) > 1 else 0], b[r if len(b) > 1 else 0], state[r]
        d = slopes_of(y_r, eps[r], K)
        sources = np.int64(0)
        for k in range(bins.shape[2]):
            weight = moment = 0.0
            for part in range(bins.shape[1]):
                weight += bins[slot, part, k, 0]
                moment += bins[slot, part, k, 1]
            if weight > 0:
                x[sources], a[sources] = moment / weight, weight * head[SHARE]
                sources += 1
        staircase(x, a, sources, b_r, d, K, c)
        newton(x, a, sources, b_r, d, K, float(sources), 1e4 * NEAR, c)
        begin(c, K, search[r])


@exact
def columns(
    first: int, last: int, rows: Rows, index: np.ndarray, state: np.ndarray, y: np.ndarray, eps: np.ndarray,
    search: np.ndarray, partial: np.ndarray,
) -> None:  # fmt: skip
    """Weights between targets, and last column sums, of pieces at the points of searches: (slots, pieces, K + 1, K)."""
    K = y.shape[1]
    values, x, a = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    p, work = np.empty((K, BLOCK)), np.empty((2, BLOCK))
    for task in range(first, last):
        slot, part, begin_at, end = task_of(rows, task)
        r = index[slot]
        head, into = state[r], partial[slot, part]
        into[:] = 0.0
        d = slopes_of(y[r if len(y) > 1 else 0], eps[r], K)
        for at in range(begin_at, end, BLOCK):
            count = min(BLOCK, end - at)
            placed_block(rows, r, at, count, head, values, a, x)
            plan_of(x, count, search[r], d, K, p, work)
            add_columns(p, a, count, K, into[K], into, work)


@exact
def _gathered(partial: np.ndarray, factor: float) -> np.ndarray:
    """What all pieces found, in the place of the first."""
    total: np.ndarray = partial[0]
    for j in range(total.shape[0]):
        for k in range(total.shape[1]):
            for part in range(1, len(partial)):
                total[j, k] += partial[part, j, k]
            total[j, k] *= factor
    return total


@exact
def step(
    first: int, last: int, rows: Rows, index: np.ndarray, state: np.ndarray, b: np.ndarray, search: np.ndarray,
    partial: np.ndarray,
) -> None:  # fmt: skip
    """Move the points of searches; those that are done leave their potentials in the state."""
    K = b.shape[1]
    for slot in range(first, last):
        r = index[slot]
        head = state[r]
        found = _gathered(partial[slot], head[SHARE])
        advance(found[K], found, b[r if len(b) > 1 else 0], K, float(rows.n), NEAR, search[r])
        if search[r, 3 * K + DONE] > 0:
            head[OTHER_ERROR] = search[r, 3 * K + DECREMENT]
            for j in range(K):
                head[HEAD + j] = search[r, j]


@exact
def read_pull(
    first: int, last: int, rows: Rows, state: np.ndarray, y: np.ndarray, eps: np.ndarray, phi: np.ndarray, out: Array
) -> None:
    K = y.shape[1]
    values, x, answer = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    p, work = np.empty((K, BLOCK)), np.empty((2, BLOCK))
    for task in range(first, last):
        r, _, begin_at, end = task_of(rows, task)
        head = state[r]
        d = slopes_of(y[r if len(y) > 1 else 0], eps[r], K)
        for at in range(begin_at, end, BLOCK):
            count = min(BLOCK, end - at)
            if head[POISONED] > 0:
                answer[:count] = math.nan
            else:
                load(rows.values, r, at, count, values)
                place(values, count, head, rows.squash, x)
                plan_of(x, count, head[HEAD:], d, K, p, work)
                means(p, phi[r if len(phi) > 1 else 0], K, count, answer)
            store(out, r, at, count, answer)


@summing
def _payload(values: np.ndarray, a: np.ndarray, count: int, mean: float, share: float, out: np.ndarray) -> None:
    """What values carry to the targets, counted from the mean; infinite ones are added to averages at the end."""
    for i in range(count):
        carried = values[i] if abs(values[i]) < math.inf else 0.0
        out[i] = share * a[i] * (carried - mean)


@exact
def push_sums(
    first: int, last: int, rows: Rows, state: np.ndarray, y: np.ndarray, eps: np.ndarray, partial: np.ndarray
) -> None:
    """What reaches each target, and what it carries: (R, pieces, 2, K)."""
    K = y.shape[1]
    values, x, a, carried = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    p, work = np.empty((K, BLOCK)), np.empty((2, BLOCK))
    for task in range(first, last):
        r, part, begin_at, end = task_of(rows, task)
        head, into = state[r], partial[r, part]
        into[:] = 0.0
        d = slopes_of(y[r if len(y) > 1 else 0], eps[r], K)
        for at in range(begin_at, end, BLOCK):
            count = min(BLOCK, end - at)
            placed_block(rows, r, at, count, head, values, a, x)
            plan_of(x, count, head[HEAD:], d, K, p, work)
            _payload(values, a, count, head[MEAN], 1.0, carried)
            for j in range(K):
                into[0, j] += dot(a, p[j], count)
                into[1, j] += dot(carried, p[j], count)


@exact
def push_averages(
    first: int, last: int, state: np.ndarray, b: np.ndarray, partial: np.ndarray, out: np.ndarray
) -> None:
    for r in range(first, last):
        head = state[r]
        found = _gathered(partial[r], 1.0)
        for j in range(b.shape[1]):
            if head[POISONED] > 0:
                out[r, j] = math.nan
            elif b[r if len(b) > 1 else 0, j] > 0:
                out[r, j] = head[MEAN] + found[1, j] / found[0, j] + head[INFINITE]
            else:
                out[r, j] = 0.0


@exact
def pulls(
    first: int, last: int, rows: Rows, state: np.ndarray, y: np.ndarray, eps: np.ndarray, phi: np.ndarray, w: Array,
    pushing: bool, partial: np.ndarray,
) -> None:  # fmt: skip
    """t, and the weights between targets, of pieces: (R, pieces, K + 1, K), t last. Pushing, the values are w."""
    K = y.shape[1]
    values, x, a, carried = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    level, s = np.empty(BLOCK), np.empty(K)
    p, work = np.empty((K, BLOCK)), np.empty((2, BLOCK))
    for task in range(first, last):
        r, part, begin_at, end = task_of(rows, task)
        head, into, phi_r = state[r], partial[r, part], phi[r if len(phi) > 1 else 0]
        into[:] = 0.0
        d = slopes_of(y[r if len(y) > 1 else 0], eps[r], K)
        for at in range(begin_at, end, BLOCK):
            count = min(BLOCK, end - at)
            placed_block(rows, r, at, count, head, values, a, x)
            plan_of(x, count, head[HEAD:], d, K, p, work)
            if pushing:
                _payload(values, a, count, head[MEAN], head[SHARE], carried)
            else:
                load(w, r, at, count, carried)
            means(p, phi_r, K, count, level)
            add_pulls(p, carried, phi_r, level, K, count, into[K])
            add_columns(p, a, count, K, s, into, work)


@exact
def multipliers(first: int, last: int, state: np.ndarray, b: np.ndarray, partial: np.ndarray, out: np.ndarray) -> None:
    """lambda of ``contract``, (R, K)."""
    K = b.shape[1]
    for r in range(first, last):
        found = _gathered(partial[r], 1.0)
        t, b_r = out[r], b[r if len(b) > 1 else 0]
        total = 0.0
        for j in range(K):
            total += found[K, j]
        for j in range(K):
            t[j] = found[K, j] - b_r[j] * total
            for k in range(j):
                found[j, k] *= state[r, SHARE] if found[j, k] > _UNJOINED else 0.0
        solve_laplacian(found, t, K)


@summing
def _cotangent(
    p: np.ndarray, w: np.ndarray, phi: np.ndarray, a: np.ndarray, share: float, multiplier: np.ndarray, y: np.ndarray,
    y_mean: np.ndarray, K: int, count: int, out: np.ndarray,
) -> None:  # fmt: skip
    """w Cov(phi, y) - a Cov(lambda, y)."""
    for i in range(count):
        out[i] = 0.0
    for j in range(K):
        row, phi_j, multiplier_j, y_j = p[j], phi[j], share * multiplier[j], y[j]
        for i in range(count):
            out[i] += row[i] * (y_j - y_mean[i]) * (w[i] * phi_j - a[i] * multiplier_j)


@exact
def read_backward(
    first: int, last: int, rows: Rows, state: np.ndarray, y: np.ndarray, eps: np.ndarray, phi: np.ndarray, w: Array,
    pushing: bool, multiplier: np.ndarray, out: Array, sums: np.ndarray,
) -> None:  # fmt: skip
    """The cotangent of x with mean and spread held fixed, into out; sums (R, pieces, 2) for ``finish``."""
    K = y.shape[1]
    values, x, a, carried = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    mean, slope, extra, g = np.empty(BLOCK), np.empty(BLOCK), np.zeros(BLOCK), np.empty(BLOCK)
    p, work = np.empty((K, BLOCK)), np.empty((2, BLOCK))
    for task in range(first, last):
        r, part, begin_at, end = task_of(rows, task)
        head, phi_r, y_r = state[r], phi[r if len(phi) > 1 else 0], y[r if len(y) > 1 else 0]
        sums[r, part] = 0.0
        d, share, per_eps = slopes_of(y_r, eps[r], K), head[SHARE], 2.0 / eps[r]
        for at in range(begin_at, end, BLOCK):
            count = min(BLOCK, end - at)
            placed_block(rows, r, at, count, head, values, a, x)
            slopes(values, x, count, head, rows.squash, slope)
            plan_of(x, count, head[HEAD:], d, K, p, work)
            if pushing:
                means(p, phi_r, K, count, extra)
                _payload(values, a, count, head[MEAN], share, carried)
                for i in range(count):
                    extra[i] = extra[i] * a[i] * share if abs(values[i]) < math.inf else 0.0
            else:
                load(w, r, at, count, carried)
            means(p, y_r, K, count, mean)
            _cotangent(p, carried, phi_r, a, share, multiplier[r], y_r, mean, K, count, g)
            for i in range(count):
                g[i] *= slope[i] * per_eps
            from_z(values, g, extra, count, head, rows.squash, sums[r, part])
            store(out, r, at, count, g)
