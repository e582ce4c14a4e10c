"""Values of a row in order, for plans in which they stand for themselves; many of them go by way of a grid instead."""

from __future__ import annotations

from .compile import borrowing
from .maths import F64, I32, I64
from .vectors import choose, highest64, load64, lowest64, splat64


@borrowing
def padded(n: int) -> int:
    return (n + 15) // 16 * 16


@borrowing
def range_of(at: F64, n: int) -> tuple[float, float]:
    whole = n // 16 * 16
    lows, highs = splat64(at[0]), splat64(at[0])
    for i in range(0, whole, 16):
        here = load64(at, i)
        lows, highs = choose(here < lows, here, lows), choose(here > highs, here, highs)
    low, high = lowest64(lows), highest64(highs)
    for i in range(whole, n):
        low, high = min(low, at[i]), max(high, at[i])
    return low, high


@borrowing
def sort_places(at: F64, n: int, low: float, high: float, order: I32, count: I64, out: F64) -> None:
    """``out`` = at[order], increasing: into n buckets of equal width, then by insertion; the last place is repeated."""
    per_unit = (n - 0.5) / (high - low) if high > low else 0.0
    if not per_unit < 1e300:
        per_unit = 0.0
    count[: n + 1] = 0
    for i in range(n):
        count[int((at[i] - low) * per_unit) + 1] += 1
    for k in range(1, n + 1):
        count[k] += count[k - 1]
    for i in range(n):
        k = int((at[i] - low) * per_unit)
        out[count[k]], order[count[k]] = at[i], i
        count[k] += 1
    moves = 0
    for i in range(1, n):
        value, index, k = out[i], order[i], i
        while k > 0 and out[k - 1] > value:
            out[k], order[k] = out[k - 1], order[k - 1]
            k -= 1
        out[k], order[k] = value, index
        moves += i - k
        if moves > 32 * n:
            _shell_sort(out, n, order)  # many distinct values in few buckets
            break
    out[n:] = out[n - 1]


@borrowing
def _shell_sort(values: F64, n: int, order: I32) -> None:
    gap = n // 2
    while gap > 0:
        for i in range(gap, n):
            value, index, k = values[i], order[i], i
            while k >= gap and values[k - gap] > value:
                values[k], order[k] = values[k - gap], order[k - gap]
                k -= gap
            values[k], order[k] = value, index
        gap = 1 if gap == 2 else int(gap / 2.2)
