"""Where the values of a long row stand: standardised and squashed a block at a time, and back again for gradients.

``squash.standardize`` defines z for every row; in float64 it needs no scaling first, since squares of float32 neither
overflow nor vanish. Moments are those of blocks, put together as in Chan, Golub and LeVeque, so that a large mean
costs no digits. x~ is never stored: computing it again costs a nanosecond.
"""

from __future__ import annotations

import math

import numpy as np

from .blocks import ARCTAN, BLOCK, IDENTITY, SIGMOID, Array, Rows, arctan, exp, load, load_weights, store, task_of
from .compile import compiled, exact, summing

# What is known of a row: the first columns of the state, which the potentials of the targets follow.
MEAN, SCALE, VARIES = 0, 1, 2  # z = (x - MEAN) * SCALE; VARIES is 0 for a constant row
SHARE, FINITE_SHARE = 3, 4  # one over the weight of all values, and of those that are finite
LOW, HIGH = 5, 6  # x~ of the outermost values
POISONED = 7  # holds NaN
INFINITE = 8  # what infinite values add to averages that they are part of
WIDTH, CELLS = 9, 10  # of a grid's cells, and how many
GRID_ERROR, OTHER_ERROR = 11, 12  # estimated, of the grid, and of rule and solver
NODES = 13  # of the finer rule that answered, or 0
HEAD = 14

# Columns of what the pieces of a row report.
_WEIGHT, _MEAN, _SQUARES, _ALL = 0, 1, 2, 3  # of counted values: finite and of some weight; _ALL is every weight
_COUNTED_LOW, _COUNTED_HIGH, _LOW, _HIGH = 4, 5, 6, 7
_NAN, _ABOVE, _BELOW, _COUNTED_ABOVE, _COUNTED_BELOW = 8, 9, 10, 11, 12
REPORT = 13


@summing
def _is_finite(x: np.ndarray, count: int) -> bool:
    beyond = 0
    for i in range(count):
        beyond += 0 if abs(x[i]) < math.inf else 1
    return beyond == 0


@compiled("nnan", "nsz", "reassoc")
def _extremes(x: np.ndarray, count: int) -> tuple[float, float]:
    low = high = x[0]
    for i in range(count):
        low = min(low, x[i])
        high = max(high, x[i])
    return low, high


@exact
def _set_apart(x: np.ndarray, a: np.ndarray, count: int, report: np.ndarray) -> None:
    """Extremes of a block that is not plain; what is not finite is noted and loses its weight."""
    for i in range(count):
        report[_ALL] += a[i]
        if math.isnan(x[i]):
            report[_NAN] = 1.0
        elif math.isinf(x[i]):
            above = x[i] > 0
            report[_ABOVE if above else _BELOW] = 1.0
            if a[i] > 0:
                report[_COUNTED_ABOVE if above else _COUNTED_BELOW] = 1.0
        else:
            report[_LOW] = min(report[_LOW], x[i])
            report[_HIGH] = max(report[_HIGH], x[i])
            if a[i] > 0:
                report[_COUNTED_LOW] = min(report[_COUNTED_LOW], x[i])
                report[_COUNTED_HIGH] = max(report[_COUNTED_HIGH], x[i])
            continue
        x[i] = a[i] = 0.0


@summing
def _block_moments(x: np.ndarray, a: np.ndarray, count: int) -> tuple[float, float, float]:
    weight = total = squares = 0.0
    for i in range(count):
        weight += a[i]
        total += a[i] * x[i]
    mean = total / weight if weight > 0 else 0.0
    for i in range(count):
        squares += a[i] * (x[i] - mean) ** 2
    return weight, mean, squares


@exact
def _add(report: np.ndarray, weight: float, mean: float, squares: float) -> None:
    """The moments of two parts of a row put together."""
    if weight > 0:
        both = report[_WEIGHT] + weight
        apart = mean - report[_MEAN]
        report[_MEAN] += apart * (weight / both)
        report[_SQUARES] += squares + apart * apart * (report[_WEIGHT] * (weight / both))
        report[_WEIGHT] = both


@exact
def survey(first: int, last: int, rows: Rows, reports: np.ndarray) -> None:
    """Moments and extremes of the pieces of rows: reports (R, pieces, REPORT)."""
    x, a = np.empty(BLOCK), np.empty(BLOCK)
    weighted = rows.weights.single.size > 0
    for task in range(first, last):
        r, part, begin, end = task_of(rows, task)
        report = reports[r, part]
        report[:] = 0.0
        report[_COUNTED_LOW] = report[_LOW] = math.inf
        report[_COUNTED_HIGH] = report[_HIGH] = -math.inf
        for at in range(begin, end, BLOCK):
            count = min(BLOCK, end - at)
            load(rows.values, r, at, count, x)
            load_weights(rows, r, at, count, a)
            if weighted or not _is_finite(x, count):
                _set_apart(x, a, count, report)
            else:
                low, high = _extremes(x, count)
                report[_ALL] += count
                report[_LOW] = report[_COUNTED_LOW] = min(report[_LOW], low)
                report[_HIGH] = report[_COUNTED_HIGH] = max(report[_HIGH], high)
            weight, mean, squares = _block_moments(x, a, count)
            _add(report, weight, mean, squares)


@exact
def _squashed(z: float, squash: int) -> float:
    if squash == SIGMOID:
        return 1.0 / (1.0 + exp(-z))
    return arctan(min(max(z, -1e9), 1e9)) / math.pi + 0.5 if squash == ARCTAN else z


@exact
def conclude(first: int, last: int, rows: Rows, reports: np.ndarray, ends: np.ndarray, state: np.ndarray) -> None:
    """The head of the state of rows, from the reports of their pieces; ends: (R or 1, 2) outermost targets."""
    for r in range(first, last):
        report, head = reports[r, 0], state[r]
        for part in range(1, rows.pieces):
            other = reports[r, part]
            _add(report, other[_WEIGHT], other[_MEAN], other[_SQUARES])
            report[_ALL] += other[_ALL]
            for k in (_COUNTED_LOW, _LOW):
                report[k] = min(report[k], other[k])
            for k in (_COUNTED_HIGH, _HIGH, _NAN, _ABOVE, _BELOW, _COUNTED_ABOVE, _COUNTED_BELOW):
                report[k] = max(report[k], other[k])
        weight, low, high = report[_WEIGHT], report[_COUNTED_LOW], report[_COUNTED_HIGH]
        variance = report[_SQUARES] / weight if weight > 0 else 0.0
        head[MEAN], head[SCALE], head[VARIES] = report[_MEAN], 1.0, 0.0
        if high > low and variance > 0:  # singles that differ have a variance in double precision, whatever they weigh
            head[SCALE], head[VARIES] = 1.0 / math.sqrt(variance), 1.0
        elif high == low and high != 0:
            head[SCALE] = 1.0 / abs(high)
        head[SHARE] = 1.0 / report[_ALL]
        head[FINITE_SHARE] = 1.0 / weight if weight > 0 else 0.0
        head[POISONED] = report[_NAN]
        head[INFINITE] = 0.0
        if report[_COUNTED_ABOVE] > 0:
            head[INFINITE] += math.inf
        if report[_COUNTED_BELOW] > 0:
            head[INFINITE] -= math.inf
        low, high = report[_LOW], report[_HIGH]
        targets = ends[r if len(ends) > 1 else 0]
        if rows.squash == IDENTITY:  # infinite values stand beyond every other, and at least at the outermost target
            below, above = min(low, targets[0]), max(high, targets[1])
        else:
            below, above = 0.0, 1.0
            low = _squashed((low - head[MEAN]) * head[SCALE], rows.squash)
            high = _squashed((high - head[MEAN]) * head[SCALE], rows.squash)
        head[LOW] = below if report[_BELOW] > 0 or not report[_LOW] < math.inf else low
        head[HIGH] = above if report[_ABOVE] > 0 or not report[_LOW] < math.inf else high


@exact
def place(x: np.ndarray, count: int, head: np.ndarray, squash: int, out: np.ndarray) -> None:
    """x~ of a block of values."""
    mean, scale = head[MEAN], head[SCALE]
    if squash == SIGMOID:
        for i in range(count):
            out[i] = 1.0 / (1.0 + exp((mean - x[i]) * scale))
    elif squash == ARCTAN:
        for i in range(count):
            z = (x[i] - mean) * scale
            z = z if z > -1e9 else -1e9
            z = z if z < 1e9 else 1e9
            out[i] = arctan(z) * (1.0 / math.pi) + 0.5
    else:
        low, high = head[LOW], head[HIGH]
        for i in range(count):
            v = x[i] if x[i] > low else low
            out[i] = v if v < high else high


@exact
def placed_block(rows: Rows, row: int, first: int, count: int, head: np.ndarray, values: np.ndarray, a: np.ndarray,
                 x: np.ndarray) -> None:  # fmt: skip
    """Some values of a row, what they weigh, and where they stand."""
    load(rows.values, row, first, count, values)
    load_weights(rows, row, first, count, a)
    place(values, count, head, rows.squash, x)


@exact
def slopes(x: np.ndarray, x_tilde: np.ndarray, count: int, head: np.ndarray, squash: int, out: np.ndarray) -> None:
    """The derivative of x~ in z (in x, without a squash): zero for infinite values."""
    mean, scale = head[MEAN], head[SCALE]
    for i in range(count):
        if squash == SIGMOID:
            slope = x_tilde[i] * (1.0 - x_tilde[i])
        elif squash == ARCTAN:
            z = (x[i] - mean) * scale
            slope = 1.0 / (math.pi * (1.0 + z * z))
        else:
            slope = 1.0
        out[i] = slope if abs(x[i]) < math.inf else 0.0


@summing
def from_z(
    x: np.ndarray, g: np.ndarray, extra: np.ndarray, count: int, head: np.ndarray, squash: int, sums: np.ndarray
) -> None:
    """The cotangent of z, in g, becomes that of x with the moments held fixed, plus ``extra``; see ``finish``."""
    if squash == IDENTITY:
        for i in range(count):
            g[i] += extra[i]
        return
    mean, scale = head[MEAN], head[SCALE]
    level = tilt = 0.0
    for i in range(count):
        z = (x[i] - mean) * scale
        level += g[i]
        tilt += g[i] * z if g[i] != 0.0 else 0.0
        g[i] = g[i] * scale + extra[i]
    sums[0] += level
    sums[1] += tilt


@exact
def finish(
    first: int, last: int, rows: Rows, index: np.ndarray, state: np.ndarray, sums: np.ndarray, g: Array, out: Array
) -> None:
    """The gradient of x from that with mean and spread held fixed.

    z_i = (x_i - mean) s changes by s (dx_i - dmean) + (x_i - mean) ds, with dmean = sum_k a_k dx_k and
    ds = -s^2 sum_k a_k z_k dx_k; so with h the cotangent of z, x_k receives s (h_k - a_k sum h - a_k z_k sum h z).
    """
    x, a, h = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for task in range(first, last):
        slot, _, begin, end = task_of(rows, task)
        r = index[slot]
        head = state[r]
        mean, scale, share = head[MEAN], head[SCALE], head[FINITE_SHARE] * head[SCALE]
        level = share * sums[slot, :, 0].sum()
        tilt = share * scale * sums[slot, :, 1].sum() * head[VARIES]
        if rows.squash == IDENTITY:
            level = tilt = 0.0
        for at in range(begin, end, BLOCK):
            count = min(BLOCK, end - at)
            load(g, r, at, count, h)
            if rows.squash != IDENTITY:
                load(rows.values, r, at, count, x)
                load_weights(rows, r, at, count, a)
                for i in range(count):
                    moved = h[i] - a[i] * (level + tilt * (x[i] - mean))
                    h[i] = moved if abs(x[i]) < math.inf else h[i]
            if head[POISONED] > 0:
                h[:count] = math.nan
            store(out, r, at, count, h)
