"""Robust beginnings: units that outliers do not move, and a linear fit that most of the data agrees on.

The least-quantile and least-trimmed objectives have many local minima, and gradients only go downhill: where one begins
decides. The beginning here is FAST-LTS (Rousseeuw and Van Driessen 2006): fit random subsets just large enough to
determine the coefficients, so that some of them hold no outlier, and improve each by concentration steps: least squares
on the h points with the smallest residuals, which never increases the sum of the h smallest squares.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .layers import Array, Units

_MOST_ROWS_FOR_STARTS = 2000
_STEPS_AT_FIRST = 2
_STEPS_AT_LAST = 20
_FINALISTS = 4


def robust_units(values: Array) -> Units:
    """Median and 1.4826 MAD of each column; where half of a column is one value, its standard deviation; or else 1."""
    centre = np.median(values, axis=0)
    scale = 1.4826 * np.median(np.abs(values - centre), axis=0)
    largest = np.maximum(np.abs(values).max(axis=0), np.finfo(float).tiny)
    spread = (values / largest).std(axis=0) * largest  # squares of large values would overflow
    usable = scale > 1e-9 * np.maximum(spread, np.abs(centre))
    scale = np.where(usable, scale, spread)
    negligible = scale <= 1e-12 * np.maximum(np.abs(centre), np.finfo(float).tiny)
    return Units(centre, np.where(negligible, 1.0, scale))


def order_statistic(values: Array, share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed: the hard quantile, never interpolated."""
    k = max(int(np.ceil(share * len(values) - 1e-9)), 1)
    return float(np.partition(values, k - 1)[k - 1])


def trimmed_mean_of_squares(residuals: Array, share: float) -> float:
    h = max(round(share * len(residuals)), 1)
    return float(np.sort(np.square(residuals))[:h].mean())


def shortest_interval_centre(values: Array, share: float) -> float:
    """The constant c whose h-th smallest |values - c| is least: the middle of the shortest interval with h values."""
    ordered = np.sort(values)
    h = max(int(np.ceil(share * len(values) - 1e-9)), 1)
    lengths = ordered[h - 1 :] - ordered[: len(ordered) - h + 1]
    at = int(np.argmin(lengths))
    return float(0.5 * (ordered[at] + ordered[at + h - 1]))


def robust_linear_fit(
    X: Array,
    y: Array,
    share: float,
    criterion: Callable[[Array], float],
    n_starts: int,
    random: np.random.RandomState,
) -> tuple[Array, float]:
    """(coefficients, intercept) with the least ``criterion(residuals)`` after concentration on the best ``share``."""
    n, d = X.shape
    design = np.column_stack([X, np.ones(n)])
    few = random.choice(n, _MOST_ROWS_FOR_STARTS, replace=False) if n > _MOST_ROWS_FOR_STARTS else np.arange(n)
    few_design, few_y = design[few], y[few]
    starts = [_least_squares(few_design, few_y)]
    for _ in range(n_starts):
        subset = random.choice(len(few), min(d + 1, len(few)), replace=False)
        starts.append(_least_squares(few_design[subset], few_y[subset]))
    starts = [_concentrate(few_design, few_y, beta, share, _STEPS_AT_FIRST) for beta in starts]
    starts.sort(key=lambda beta: criterion(few_y - few_design @ beta))
    best = [_concentrate(design, y, beta, share, _STEPS_AT_LAST) for beta in starts[:_FINALISTS]]
    # Least squares itself competes: the answer is never worse than that.
    best.append(_least_squares(design, y))
    beta = min(best, key=lambda beta: criterion(y - design @ beta))
    return beta[:-1], float(beta[-1])


def _concentrate(design: Array, y: Array, beta: Array, share: float, steps: int) -> Array:
    h = min(max(int(np.ceil(share * len(y) - 1e-9)), design.shape[1]), len(y))
    kept = np.empty(0, dtype=np.intp)
    for _ in range(steps):
        closest = np.sort(np.argpartition(np.abs(y - design @ beta), h - 1)[:h])
        if np.array_equal(closest, kept):
            break
        kept = closest
        beta = _least_squares(design[closest], y[closest])
    return beta


def _least_squares(design: Array, y: Array) -> Array:
    return np.asarray(np.linalg.lstsq(design, y, rcond=None)[0], dtype=np.float64)
