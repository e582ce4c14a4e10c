"""Where few targets of a long row begin, in Triton: the potentials of the hard sort.

The values that straddle the cumulative weight of the first targets are bracketed, sixteen times closer with every count
of the values below sixteen thresholds. Nothing is sorted, and every count is one pass over the values.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.maths import load_row, load_weight, placed

THRESHOLDS = tl.constexpr(16)
ROUNDS = tl.constexpr(4)  #: of counting: brackets end up 65,536 times narrower than the row


@triton.jit
def levels_passed(share: tl.tensor, KP: tl.constexpr, ROWS: tl.constexpr) -> Any:
    """The cumulative weight of the first targets, a little less (even rows) and a little more: what brackets look for.

    Where the weight ends exactly between two values the two differ, and the staircase takes the middle.
    """
    r = tl.arange(0, ROWS)
    k = tl.arange(0, KP)
    passed = tl.cumsum(share, 0)
    at = tl.sum(tl.where(k[None, :] == (r // 2)[:, None], passed[None, :], 0.0), 1)
    margin = 2e-7 * tl.minimum(at, tl.abs(1.0 - at)) + 1e-12
    return tl.where(r % 2 == 0, at - margin, at + margin)


@triton.jit
def below(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, n: tl.tensor,
    row: tl.tensor, g: tl.tensor, tiles: tl.tensor, mean: tl.tensor, std: tl.tensor, most: tl.tensor, low: tl.tensor,
    high: tl.tensor, ROWS: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
) -> Any:  # fmt: skip
    """(ROWS THRESHOLDS,): what the values of a chunk weigh that are not above each threshold."""
    line = tl.arange(0, ROWS * THRESHOLDS)
    at = threshold(low, high, line, ROWS).to(tl.float32)
    counts = tl.zeros((ROWS * THRESHOLDS, BLOCK), tl.float32)
    for tile in range(tiles):
        i = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        xi, _slope, _z = placed(load_row(x, row, i, x_row, x_step, n), mean, std, most, SQUASH, True)
        weight = load_weight(a, row, i, a_row, a_step, n, WEIGHTED)
        counts += tl.where(xi[None, :] <= at[:, None], weight[None, :], 0.0)
    return tl.sum(counts, 1).to(tl.float64) * unit_of(n, WEIGHTED)


@triton.jit
def unit_of(n: tl.tensor, WEIGHTED: tl.constexpr) -> Any:
    """What sums of weights are to be multiplied by. Double: counts are compared with k / n."""
    unit = tl.full((), 1.0, tl.float64)
    if not WEIGHTED:
        unit = unit / n
    return unit


@triton.jit
def threshold(low: tl.tensor, high: tl.tensor, line: tl.tensor, ROWS: tl.constexpr) -> Any:
    """Thresholds 1, ..., 16 sixteenths of the way through each bracket, in one line."""
    r = tl.arange(0, ROWS)
    of_row = (line // THRESHOLDS)[:, None] == r[None, :]
    begin = tl.sum(tl.where(of_row, low[None, :], 0.0), 1)
    width = tl.sum(tl.where(of_row, (high - low)[None, :], 0.0), 1)
    return begin + width * ((line % THRESHOLDS) + 1).to(tl.float64) * (1.0 / THRESHOLDS)


@triton.jit
def narrowed(counts: tl.tensor, low: tl.tensor, high: tl.tensor, level: tl.tensor, ROWS: tl.constexpr) -> Any:
    """The brackets between the last threshold whose count is below the level, and the next."""
    line = tl.arange(0, ROWS * THRESHOLDS)
    r = tl.arange(0, ROWS)
    at = threshold(low, high, line, ROWS)
    of_row = (line // THRESHOLDS)[:, None] == r[None, :]
    less = of_row & (counts[:, None] < level[None, :])
    begin = tl.max(tl.where(less, at[:, None], low[None, :]), 0)
    end = tl.min(tl.where(of_row & (counts[:, None] >= level[None, :]), at[:, None], high[None, :]), 0)
    return begin, end


@triton.jit
def from_brackets(
    low: tl.tensor, high: tl.tensor, gap: tl.tensor, slope: tl.tensor, KP: tl.constexpr, ROWS: tl.constexpr,
) -> Any:  # fmt: skip
    """The potentials of the staircase: where targets j and j + 1 are as good as each other."""
    r = tl.arange(0, ROWS)
    k = tl.arange(0, KP)
    middle = 0.25 * (low + high)
    passes = tl.sum(tl.where((r // 2)[None, :] == k[:, None], middle[None, :], 0.0), 1)
    rise = -slope * passes * gap
    return tl.cumsum(rise, 0) - rise
