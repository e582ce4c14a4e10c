"""Long rows in Triton: what every kernel does to a value first, and the sums that say how.

A row is cut into G chunks. Each program reads one chunk and leaves partial sums in a buffer of its own; every program
of the next kernel adds them up again, always in the same order. So nothing is atomic, and the same input gives the same
answer. Moments are kept in double precision as (weight, mean, sum of squares about the mean), which merge without loss.

    xi  =  x~ - origin,    origin = 1/2 for a squash, the smallest value without one.

Counted from the middle, a squashed value keeps its relative precision where heavy tails crowd the others.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .sums import agreed_sum

NONE, SIGMOID, ARCTAN = 0, 1, 2
CODES = {None: NONE, "sigmoid": SIGMOID, "arctan": ARCTAN}


@triton.jit
def load_row(
    x: tl.tensor, row: tl.tensor, at: tl.tensor, stride_row: tl.tensor, stride: tl.tensor, n: tl.tensor,
) -> Any:  # fmt: skip
    """Values ``at`` of a row, in double precision; 0 beyond its end."""
    where = row.to(tl.int64) * stride_row + at * stride
    return tl.load(x + where, mask=at < n, other=0.0).to(tl.float64)


@triton.jit
def load_single(
    x: tl.tensor, row: tl.tensor, at: tl.tensor, stride_row: tl.tensor, stride: tl.tensor, n: tl.tensor,
) -> Any:  # fmt: skip
    """``load_row`` in single precision, which no value exceeds."""
    return tl.load(x + row.to(tl.int64) * stride_row + at * stride, mask=at < n, other=0.0).to(tl.float32)


@triton.jit
def load_weight(
    a: tl.tensor, row: tl.tensor, at: tl.tensor, stride_row: tl.tensor, stride: tl.tensor, n: tl.tensor,
    WEIGHTED: tl.constexpr,
) -> Any:  # fmt: skip
    """Weights in single precision; equal ones are 1, and whoever sums them divides by n."""
    if WEIGHTED:
        weight = load_single(a, row, at, stride_row, stride, n)
    else:
        weight = tl.where(at < n, 1.0, 0.0).to(tl.float32)
    return weight


@triton.jit
def is_finite(x: tl.tensor) -> Any:
    return tl.abs(x) < float("inf")


@triton.jit
def squashed(z: tl.tensor, SQUASH: tl.constexpr, SINGLE: tl.constexpr) -> Any:
    """Squash of z less 1/2, and its slope. In single precision a series keeps the relative precision of small z."""
    size = tl.abs(z)
    if SQUASH == 1:
        e = tl.exp(-size)
        inverse = 1.0 / (1.0 + e)
        half = 0.5 * (1.0 - e) * inverse
        slope = e * inverse * inverse
        if SINGLE:
            s = z * z
            series = 17.0 / 80640.0 - s * (31.0 / 1451520.0)
            series = 0.25 - s * (1.0 / 48.0 - s * (1.0 / 480.0 - s * series))
            half = tl.where(size < 0.5, size * series, half)
    else:
        # arctan(z) / pi: arguments are brought below tan(pi / 8), where ten terms are exact to the last digit.
        far = size > 1.0
        r = tl.where(far, 1.0 / tl.where(far, size, 1.0), size)
        middle = r > 0.41421356237309503
        q = tl.where(middle, (r - 1.0) / (r + 1.0), r)
        s = q * q
        series = 0.01601167438292945 - 0.008081012087084356 * s
        series = -0.020714769534952084 + s * series
        series = 0.024426591405654847 + s * series
        series = -0.02893297071802262 + s * series
        series = 0.03536757281366761 + s * series
        series = -0.04547283590941897 + s * series
        series = 0.06366197717119752 + s * series
        series = -0.10610329539425904 + s * series
        series = 0.3183098861837903 + s * series
        half = tl.where(middle, 0.25, 0.0) + q * series
        half = tl.where(far, 0.5 - half, half)
        slope = 0.3183098861837907 / (1.0 + z * z)
    return tl.where(z < 0.0, -half, half), slope


@triton.jit
def standard(x: tl.tensor, mean: tl.tensor, per_std: tl.tensor) -> Any:
    """z in double precision, cut where every squash is flat; NaN stays NaN."""
    z = (x - mean) * per_std
    z = tl.where(z > 1e9, 1e9, z)
    return tl.where(z < -1e9, -1e9, z)


@triton.jit
def placed(
    x: tl.tensor, mean: tl.tensor, std: tl.tensor, top: tl.tensor, SQUASH: tl.constexpr, SINGLE: tl.constexpr,
) -> Any:  # fmt: skip
    """(xi, slope, z) of values x. Without a squash ``mean`` is the smallest value and ``top`` the range."""
    if SQUASH == 0:
        z = x - mean
        z = tl.where(z > top, top, z)  # infinite values are at the ends
        z = tl.where(z < 0.0, 0.0, z)
        if SINGLE:
            z = z.to(tl.float32)
        xi = z
        slope = z * 0.0 + 1.0
    else:
        z = standard(x, mean, 1.0 / std)
        if SINGLE:
            z = z.to(tl.float32)
        xi, slope = squashed(z, SQUASH, SINGLE)
    return xi, slope, z


@triton.jit
def single_facts(mean: tl.tensor, std: tl.tensor, SQUASH: tl.constexpr) -> Any:
    """(unit, middle, rest, offset), by which two multiply-adds in single precision standardise a value.

        z  =  (x unit - middle) rest + offset,    unit the power of two next to 1/std

    x unit is exact; ``middle`` is the first 24 bits of mean unit, and the difference is rounded once; ``offset`` is the
    other bits of the mean. So z is right to less than two units in the last place. Without a squash, where std is one,
    ``mean`` is a single and z its distance.
    """
    if SQUASH == 0:
        unit = std
    else:
        power = (std.to(tl.int64, bitcast=True) & 0x7FF0000000000000).to(tl.float64, bitcast=True)
        unit = 1.0 / tl.minimum(tl.maximum(power, 1.1754943508222875e-38), 8.507059173023462e37)
    middle = mean * unit
    first_bits = middle.to(tl.float32)
    rest = 1.0 / (std * unit)
    offset = (first_bits.to(tl.float64) - middle) * rest
    return unit.to(tl.float32), first_bits, rest.to(tl.float32), offset.to(tl.float32)


@triton.jit
def placed_single(
    x: tl.tensor, unit: tl.tensor, middle: tl.tensor, rest: tl.tensor, offset: tl.tensor, top: tl.tensor,
    SQUASH: tl.constexpr,
) -> Any:  # fmt: skip
    """``placed`` for x in single precision, by ``single_facts``: no double for every value."""
    z = tl.fma(tl.fma(x, unit, -middle), rest, offset)
    if SQUASH == 0:
        z = tl.where(z > top, top, z)
        z = tl.where(z < 0.0, 0.0, z)
        xi = z
        slope = z * 0.0 + 1.0
    else:
        z = tl.where(z > 1e9, 1e9, z)
        z = tl.where(z < -1e9, -1e9, z)
        xi, slope = squashed(z, SQUASH, True)
    return xi, slope, z


@triton.jit
def chunk_moments(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, y: tl.tensor,
    y_row: tl.tensor, K: tl.tensor, n: tl.tensor, row: tl.tensor, g: tl.tensor, tiles: tl.tensor, SQUASH: tl.constexpr,
    WEIGHTED: tl.constexpr, RULE: tl.constexpr, BLOCK: tl.constexpr,
) -> Any:  # fmt: skip
    """A chunk's weight, mean, squares, range of what counts, range of all, and whether it holds NaN: 8 doubles.

    Infinite values count for the range alone: where they will be squashed to, or the outermost target.
    """
    if RULE:  # the outermost targets are not among the nodes
        low_target, high_target = 0.0, 1.0
    else:
        low_target = tl.load(y + row.to(tl.int64) * y_row).to(tl.float64)
        high_target = tl.load(y + row.to(tl.int64) * y_row + K - 1).to(tl.float64)
    infinity = float("inf")
    total = tl.full((), 0.0, tl.float64)
    mean, squares, nan = total, total, total
    bottom, top = total + infinity, total - infinity
    least, most = bottom, top
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        v = load_row(x, row, at, x_row, x_step, n)
        weight = load_weight(a, row, at, a_row, a_step, n, WEIGHTED).to(tl.float64)
        inside = at < n
        nan = tl.maximum(nan, tl.max(tl.where(v != v, 1.0, 0.0).to(tl.float64)))
        finite = is_finite(v)
        weight = tl.where(finite & (weight > 0.0), weight, 0.0)
        v_finite = tl.where(finite, v, 0.0)
        here = tl.sum(weight)
        middle = tl.sum(weight * v_finite) / tl.where(here > 0.0, here, 1.0)
        away = v_finite - middle
        squares_here = tl.sum(weight * away * away)
        both = total + here
        share = here / tl.where(both > 0.0, both, 1.0)
        squares += squares_here + (middle - mean) * (middle - mean) * total * share
        mean += (middle - mean) * share
        total = both
        counts = weight > 0.0
        bottom = tl.minimum(bottom, tl.min(tl.where(counts, v_finite, infinity)))
        top = tl.maximum(top, tl.max(tl.where(counts, v_finite, -infinity)))
        if SQUASH == 0:
            v = tl.where(v == infinity, high_target, tl.where(v == -infinity, low_target, v))
        shown = inside & (v == v)
        least = tl.minimum(least, tl.min(tl.where(shown, v, infinity)))
        most = tl.maximum(most, tl.max(tl.where(shown, v, -infinity)))
    return total, mean, squares, bottom, top, least, most, nan


@triton.jit
def moments(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, y: tl.tensor,
    y_row: tl.tensor, K: tl.tensor, stats: tl.tensor, n: tl.tensor, tiles: tl.tensor, G: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, RULE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """``chunk_moments`` of all chunks."""
    pid = tl.program_id(0)
    total, mean, squares, bottom, top, least, most, nan = chunk_moments(
        x, x_row, x_step, a, a_row, a_step, y, y_row, K, n, pid // G, pid % G, tiles, SQUASH, WEIGHTED, RULE, BLOCK
    )
    out = stats + pid.to(tl.int64) * 8
    tl.store(out, total)
    tl.store(out + 1, mean)
    tl.store(out + 2, squares)
    tl.store(out + 3, bottom)
    tl.store(out + 4, top)
    tl.store(out + 5, least)
    tl.store(out + 6, most)
    tl.store(out + 7, nan)


@triton.jit
def row_facts(stats: tl.tensor, row: tl.tensor, G: tl.tensor, SQUASH: tl.constexpr, GP: tl.constexpr) -> Any:
    """``facts`` from the partial moments of a row."""
    g = tl.arange(0, GP)
    there = g < G
    at = stats + (row.to(tl.int64) * G + g) * 8
    weight = tl.load(at, mask=there, other=0.0)
    means = tl.load(at + 1, mask=there, other=0.0)
    squares = tl.load(at + 2, mask=there, other=0.0)
    bottom = tl.min(tl.load(at + 3, mask=there, other=float("inf")))
    top = tl.max(tl.load(at + 4, mask=there, other=-float("inf")))
    least = tl.min(tl.load(at + 5, mask=there, other=float("inf")))
    most = tl.max(tl.load(at + 6, mask=there, other=-float("inf")))
    nan = tl.max(tl.load(at + 7, mask=there, other=0.0))
    total = tl.sum(weight)
    mean = agreed_sum(weight * means, 0) / tl.where(total > 0.0, total, 1.0)
    about_mean = tl.sum(squares) + agreed_sum(weight * (means - mean) * (means - mean), 0)
    return facts(total, mean, about_mean, bottom, top, least, most, nan, SQUASH)


@triton.jit
def facts(
    total: tl.tensor, mean: tl.tensor, squares: tl.tensor, bottom: tl.tensor, top: tl.tensor, least: tl.tensor,
    most: tl.tensor, nan: tl.tensor, SQUASH: tl.constexpr,
) -> Any:  # fmt: skip
    """What the moments of a row say: (mean, std, constant, weight, least, most, NaN or 0), all double.

    Without a squash ``mean`` is the smallest value, ``std`` one. ``least`` and ``most`` are those of xi.
    """
    poison = tl.where(nan > 0.0, float("nan"), 0.0).to(tl.float64)
    total = tl.where(total > 0.0, total, 1.0)
    if SQUASH == 0:
        most = most - least
        mean = least + poison
        std = total * 0.0 + 1.0
        constant = total * 0.0
        least = total * 0.0
    else:
        variance = squares / total
        spread = (top > bottom) & (variance > 0.0)
        size = tl.maximum(tl.abs(top), tl.abs(bottom))
        size = tl.where((size > 0.0) & is_finite(size), size, 1.0)
        std = tl.where(spread, tl.sqrt(tl.where(spread, variance, 1.0)), size)
        constant = tl.where(spread, 0.0, 1.0).to(tl.float64)
        ends = tl.where(tl.arange(0, 2) == 0, least, most)
        xi, _slope = squashed(standard(ends, mean, 1.0 / std), SQUASH, False)
        least = tl.min(xi)
        most = tl.max(xi)
        mean += poison
    return mean, std, constant, total, least, most, poison


@triton.jit
def keep(out: tl.tensor, value: tl.tensor) -> None:
    """A double as two singles."""
    high = value.to(tl.float32)
    low = tl.where(is_finite(high), (value - high.to(tl.float64)).to(tl.float32), 0.0)
    tl.store(out, high)
    tl.store(out + 1, low)


@triton.jit
def kept(at: tl.tensor) -> Any:
    return tl.load(at).to(tl.float64) + tl.load(at + 1).to(tl.float64)


@triton.jit
def origin_of(mean: tl.tensor, SQUASH: tl.constexpr) -> Any:
    if SQUASH == 0:
        origin = mean
    else:
        origin = mean * 0.0 + 0.5
    return origin


@triton.jit
def standard_back(
    pull: tl.tensor, z: tl.tensor, weight: tl.tensor, v: tl.tensor, total: tl.tensor, tilted: tl.tensor,
    weight_sum: tl.tensor, std: tl.tensor,
) -> Any:  # fmt: skip
    """The cotangent of x from that of z, its sum and its sum with z, over the row."""
    counted = is_finite(v) & (weight > 0.0)
    mean_part = weight * ((total / weight_sum).to(z.dtype) + z * (tilted / weight_sum).to(z.dtype))
    return (pull - tl.where(counted, mean_part, 0.0)) * (1.0 / std).to(z.dtype)
