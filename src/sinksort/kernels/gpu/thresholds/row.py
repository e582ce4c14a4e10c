"""Rows onto few targets that one program works on, or several, in Triton: what is read, and where the row is cut.

Values of a row that is REGISTERS stay in registers from the first pass to the last; of a longer one the places xi are
written down once and read in every pass. What a pass adds up is added up in one go, since that is when threads wait for
each other, and it is single precision where a relative error of 1e-7 is nothing: only sums of whole weights, from which
little may be left over, are double.

Programs that share a row (PP > 1) each have a part of it, which is all that x, a, ``places`` and n stand for here; what
they add up they tell each other, see ``thresholds.exchange``.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.maths import facts, is_finite, load_single, placed
from .exchange import COUNTERS, LINE, LINES, moments_over_programs, nearest_over_programs, together4, together7
from .passes import CONSTANT, MEAN, MOST, STD, WEIGHT

CLOSE = tl.constexpr(4.0)  #: width of a bracket at which Newton's method takes over, in logits
COUNTS = tl.constexpr(40)  #: of values below thresholds, at most: each leaves an eighth of a bracket
ENOUGH = tl.constexpr(3e-4)  #: Newton's last step, in logits, whose error is its square
NOTHING = tl.constexpr(1e-36)  #: share of all weight that is none
ROUNDING = tl.constexpr(1e-15)  #: share of all weight that sums in double precision leave
ROUNDING_OF_SINGLES = tl.constexpr(1.5e-7)  #: share of a target's weight that is unknown where weights are singles
GONE = tl.constexpr(1e300)  #: size of the potential of a target that is not there


@triton.jit
def slope_of(eps: tl.tensor, eps_rows: tl.tensor, row: tl.tensor, EPS_ROWS: tl.constexpr) -> Any:
    """2 / eps."""
    if EPS_ROWS:
        slope = 2.0 / tl.load(eps_rows + row).to(tl.float64)
    else:
        slope = tl.full((), 2.0, tl.float64) / eps
    return slope


@triton.jit
def part_of_row(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    places: tl.tensor, out: tl.tensor, n: tl.tensor, each: tl.tensor, lines: tl.tensor, counters: tl.tensor,
    G: tl.tensor, PUSH: tl.constexpr, PP: tl.constexpr,
) -> Any:  # fmt: skip
    """Which row, where this program's part of it begins (values, weights, places, answers), and how many values it has.

    Then the lines of those who share the row, and their counter.
    """
    row = tl.program_id(0)
    own = n
    begin = row.to(tl.int64) * 0
    if PP > 1:
        begin = (row % G).to(tl.int64) * each
        own = tl.minimum(n - begin, each).to(tl.int32)
        row = row // G
        lines += row.to(tl.int64) * G * (LINES * LINE)
        counters += row.to(tl.int64) * COUNTERS
    x += row.to(tl.int64) * x_row + begin * x_step
    a += row.to(tl.int64) * a_row + begin * a_step
    places += row.to(tl.int64) * n + begin
    if not PUSH:
        out += row.to(tl.int64) * n + begin
    return row, x, a, places, out, own, lines, counters


@triton.jit
def places_in(tile: tl.tensor, BLOCK: tl.constexpr) -> Any:
    return (tile * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)


@triton.jit
def weights_at(
    a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, row: tl.tensor, at: tl.tensor, n: tl.tensor,
    WEIGHTED: tl.constexpr,
) -> Any:  # fmt: skip
    """In double precision; equal ones are 1, and single."""
    if WEIGHTED:
        weight = tl.load(a + row.to(tl.int64) * a_row + at * a_step, mask=at < n, other=0.0).to(tl.float64)
    else:
        weight = tl.where(at < n, 1.0, 0.0).to(tl.float32)
    return weight


@triton.jit
def placed_row(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    places: tl.tensor, n: tl.tensor, row: tl.tensor, tiles: tl.tensor, mean: tl.tensor, std: tl.tensor, most: tl.tensor,
    REGISTERS: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
) -> Any:  # fmt: skip
    """(xi, weight) of the first values, and all xi in ``places`` if there are more.

    xi is double: with eps = 1e-3 a share moves by 500 times as much.
    """
    at = places_in(row * 0, BLOCK)
    v = load_single(x, row, at, x_row, x_step, n).to(tl.float64)
    xi, _slope, _z = placed(v, mean, std, most, SQUASH, False)
    if not REGISTERS:
        tl.store(places + row.to(tl.int64) * n + at, xi, mask=at < n)
        for tile in range(1, tiles):
            here = places_in(tile, BLOCK)
            v = load_single(x, row, here, x_row, x_step, n).to(tl.float64)
            xi_here, _slope, _z = placed(v, mean, std, most, SQUASH, False)
            tl.store(places + row.to(tl.int64) * n + here, xi_here, mask=here < n)
        tl.debug_barrier()
    return xi, weights_at(a, a_row, a_step, row, at, n, WEIGHTED)


@triton.jit
def tile_of(
    places: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, n: tl.tensor, row: tl.tensor,
    tile: tl.tensor, xi: tl.tensor, weight: tl.tensor, REGISTERS: tl.constexpr, WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:  # fmt: skip
    """(xi, weight) of some values, which are all of the row if they are in registers."""
    if not REGISTERS:
        at = places_in(tile, BLOCK)
        xi = tl.load(places + row.to(tl.int64) * n + at, mask=at < n, other=0.0)
        weight = weights_at(a, a_row, a_step, row, at, n, WEIGHTED)
    return xi, weight


@triton.jit
def _first_sums(
    all0: tl.tensor, total0: tl.tensor, first0: tl.tensor, bottom0: tl.tensor, top0: tl.tensor, least0: tl.tensor,
    most0: tl.tensor, bad0: tl.tensor, all1: tl.tensor, total1: tl.tensor, first1: tl.tensor, bottom1: tl.tensor,
    top1: tl.tensor, least1: tl.tensor, most1: tl.tensor, bad1: tl.tensor,
) -> Any:  # fmt: skip
    return (
        all0 + all1, total0 + total1, first0 + first1, tl.minimum(bottom0, bottom1), tl.maximum(top0, top1),
        tl.minimum(least0, least1), tl.maximum(most0, most1), tl.maximum(bad0, bad1),
    )  # fmt: skip


@triton.jit
def add4(
    a0: tl.tensor, b0: tl.tensor, c0: tl.tensor, d0: tl.tensor, a1: tl.tensor, b1: tl.tensor, c1: tl.tensor,
    d1: tl.tensor,
) -> Any:  # fmt: skip
    return a0 + a1, b0 + b1, c0 + c1, d0 + d1


@triton.jit
def add7(
    a0: tl.tensor, b0: tl.tensor, c0: tl.tensor, d0: tl.tensor, e0: tl.tensor, f0: tl.tensor, g0: tl.tensor,
    a1: tl.tensor, b1: tl.tensor, c1: tl.tensor, d1: tl.tensor, e1: tl.tensor, f1: tl.tensor, g1: tl.tensor,
) -> Any:  # fmt: skip
    return a0 + a1, b0 + b1, c0 + c1, d0 + d1, e0 + e1, f0 + f1, g0 + g1


@triton.jit
def row_facts_of(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    low_target: tl.tensor, high_target: tl.tensor, n: tl.tensor, row: tl.tensor, tiles: tl.tensor, lines: tl.tensor,
    counter: tl.tensor, passed: tl.tensor, G: tl.tensor, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
    PP: tl.constexpr,
) -> Any:  # fmt: skip
    """(mean, std, constant, weight, least, most, NaN or 0), as ``facts`` says, the weight of all values, and
    ``passed``.

    Infinite values count for the range alone: where they will be squashed to, or the outermost target.
    """
    infinity = float("inf")
    every = tl.zeros((BLOCK,), tl.float64)
    total, first = every, every
    bottom = tl.full((BLOCK,), infinity, tl.float32)
    top, least, most = -bottom, bottom, -bottom
    bad = tl.zeros((BLOCK,), tl.float32)
    for tile in range(tiles):
        at = places_in(tile, BLOCK)
        v = load_single(x, row, at, x_row, x_step, n)
        weight = weights_at(a, a_row, a_step, row, at, n, WEIGHTED).to(tl.float64)
        counts = is_finite(v) & (weight > 0.0)
        every += weight
        total += tl.where(counts, weight, 0.0)
        first += tl.where(counts, weight * v.to(tl.float64), 0.0)
        bottom = tl.minimum(bottom, tl.where(counts, v, infinity))
        top = tl.maximum(top, tl.where(counts, v, -infinity))
        bad = tl.maximum(bad, tl.where(v != v, 1.0, 0.0))
        if SQUASH == 0:
            v = tl.where(v == infinity, high_target, tl.where(v == -infinity, low_target, v))
        shown = (at < n) & (v == v)
        least = tl.minimum(least, tl.where(shown, v, infinity))
        most = tl.maximum(most, tl.where(shown, v, -infinity))
    whole, total_, mean, bottom_, top_, least_, most_, bad_ = tl.reduce(
        (every, total, first, bottom, top, least, most, bad), 0, _first_sums
    )
    mean = mean / tl.where(total_ > 0.0, total_, 1.0)
    about = tl.zeros((BLOCK,), tl.float64)
    if SQUASH != 0:
        for tile in range(tiles):
            at = places_in(tile, BLOCK)
            v = load_single(x, row, at, x_row, x_step, n)
            weight = weights_at(a, a_row, a_step, row, at, n, WEIGHTED).to(tl.float64)
            counts = is_finite(v) & (weight > 0.0)
            away = tl.where(counts, v.to(tl.float64) - mean, 0.0)
            about += weight * away * away
    squares = tl.sum(about)
    if PP > 1:
        whole, total_, mean, squares, bottom_, top_, least_, most_, bad_, passed = moments_over_programs(
            whole, total_, mean, squares, bottom_, top_, least_, most_, bad_, lines, counter, passed, G, PP
        )
    mean, std, constant, weight_of_row, low, high, poison = facts(
        total_, mean, squares, bottom_.to(tl.float64), top_.to(tl.float64), least_.to(tl.float64),
        most_.to(tl.float64), bad_, SQUASH,
    )  # fmt: skip
    return mean, std, constant, weight_of_row, low, high, poison, tl.where(whole > 0.0, whole, 1.0), passed


@triton.jit
def counts_at(xi: tl.tensor, weight: tl.tensor, low: tl.tensor, part: tl.tensor) -> Any:
    """What weighs each value that is not above each of seven thresholds."""
    w = weight.to(tl.float32)
    return (
        tl.where(xi <= low + part, w, 0.0), tl.where(xi <= low + 2.0 * part, w, 0.0),
        tl.where(xi <= low + 3.0 * part, w, 0.0), tl.where(xi <= low + 4.0 * part, w, 0.0),
        tl.where(xi <= low + 5.0 * part, w, 0.0), tl.where(xi <= low + 6.0 * part, w, 0.0),
        tl.where(xi <= low + 7.0 * part, w, 0.0),
    )  # fmt: skip


@triton.jit
def _nearest(
    down0: tl.tensor, up0: tl.tensor, sum0: tl.tensor, down1: tl.tensor, up1: tl.tensor, sum1: tl.tensor,
) -> Any:  # fmt: skip
    return tl.maximum(down0, down1), tl.minimum(up0, up1), sum0 + sum1


@triton.jit
def _cut(low: tl.tensor, high: tl.tensor, at: tl.tensor, count: tl.tensor, level: tl.tensor) -> Any:
    less = count < level
    return tl.where(less, tl.maximum(low, at), low), tl.where(less, high, tl.minimum(high, at))


@triton.jit
def cut_at(
    places: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, n: tl.tensor, row: tl.tensor,
    tiles: tl.tensor, xi: tl.tensor, weight: tl.tensor, least: tl.tensor, most: tl.tensor, below: tl.tensor,
    above: tl.tensor, whole: tl.tensor, steepness: tl.tensor, lines: tl.tensor, counter: tl.tensor, passed: tl.tensor,
    G: tl.tensor, REGISTERS: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr, PP: tl.constexpr,
) -> Any:  # fmt: skip
    """Return where the hard sort cuts the row: where the weight of all smaller values reaches ``below``.

    That is the middle of a gap if a split of the row has just this weight, and else near the value that is divided,
    to ``CLOSE`` / ``steepness``. ``below`` and ``above`` are shares of all weight. The level is a little less, so that
    a value at which it is reached exactly is found and not the next.
    """
    level = (below - 2e-7 * tl.minimum(below, above)) * whole
    low, high = least, most
    done = 0
    while (done < COUNTS) & ((high - low) * steepness > CLOSE):
        part = (high - low) * 0.125
        if REGISTERS:
            c1, c2, c3, c4, c5, c6, c7 = counts_at(xi, weight, low, part)
        else:
            c1 = tl.zeros((BLOCK,), tl.float32)
            c2, c3, c4, c5, c6, c7 = c1, c1, c1, c1, c1, c1
            for tile in range(tiles):
                xi_here, weight_here = tile_of(
                    places, a, a_row, a_step, n, row, tile, xi, weight, REGISTERS, WEIGHTED, BLOCK
                )
                d1, d2, d3, d4, d5, d6, d7 = counts_at(xi_here, weight_here, low, part)
                c1 += d1
                c2 += d2
                c3 += d3
                c4 += d4
                c5 += d5
                c6 += d6
                c7 += d7
        s1, s2, s3, s4, s5, s6, s7 = tl.reduce((c1, c2, c3, c4, c5, c6, c7), 0, add7)
        s1, s2, s3, s4, s5, s6, s7, passed = together7(s1, s2, s3, s4, s5, s6, s7, lines, counter, passed, G, PP)
        begin = low
        low, high = _cut(low, high, begin + part, s1, level)
        low, high = _cut(low, high, begin + 2.0 * part, s2, level)
        low, high = _cut(low, high, begin + 3.0 * part, s3, level)
        low, high = _cut(low, high, begin + 4.0 * part, s4, level)
        low, high = _cut(low, high, begin + 5.0 * part, s5, level)
        low, high = _cut(low, high, begin + 6.0 * part, s6, level)
        low, high = _cut(low, high, begin + 7.0 * part, s7, level)
        done += 1
    down = tl.full((BLOCK,), -float("inf"), tl.float64)
    up = -down
    reached = tl.zeros((BLOCK,), tl.float64)
    for tile in range(tiles):
        xi, weight = tile_of(places, a, a_row, a_step, n, row, tile, xi, weight, REGISTERS, WEIGHTED, BLOCK)
        counted, lower = weight > 0.0, xi <= high
        down = tl.maximum(down, tl.where(counted & lower, xi, -float("inf")))
        up = tl.minimum(up, tl.where(counted & (lower == 0), xi, float("inf")))
        reached += tl.where(lower, weight.to(tl.float64), 0.0)
    highest, lowest, total = tl.reduce((down, up, reached), 0, _nearest)
    highest, lowest, passed = nearest_over_programs(highest, lowest, lines, counter, passed, G, PP)
    total, _1, _2, _3, passed = together4(total, total, total, total, lines, counter, passed, G, PP)
    split = (total <= (below + 2e-7 * tl.minimum(below, above)) * whole) & is_finite(highest) & is_finite(lowest)
    return tl.where(split, 0.5 * (highest + lowest), 0.5 * (low + high)), passed


@triton.jit
def balance(out: tl.tensor, into: tl.tensor, missing: tl.tensor, whole: tl.tensor, unknown: tl.tensor) -> Any:
    """Return how far a set of targets is from its weight: (left, right, log(left / right), 1 / d(that) but the slope).

    ``out`` is what the set gets from values that are better off elsewhere, ``into`` what its own values give away, and
    ``missing`` what these fall short of its weight, nothing if that is at most ``unknown``. All are singles but
    ``missing`` and ``unknown``. Both sides are positive, and where a plan is nearly hard they are tiny and exponential
    in the potential: their logarithms are nearly straight.
    """
    lacks = tl.where(tl.abs(missing) > tl.maximum(whole * ROUNDING, unknown), missing, 0.0).to(tl.float32)
    nothing = (whole * NOTHING).to(tl.float32)
    left = out + tl.maximum(-lacks, 0.0)
    right = into + tl.maximum(lacks, 0.0)
    flows = tl.maximum(left, right) > nothing
    apart = left - right
    left, right = tl.maximum(left, nothing), tl.maximum(right, nothing)
    near = tl.abs(apart) < 1e-3 * (left + right)
    ratio = tl.where(near, 2.0 * apart / (left + right), tl.log(left) - tl.log(right))
    both = tl.maximum(out + into, nothing)
    per_slope = out / both / left + into / both / right  # each for itself: what one leaves of 1 is rounding
    return flows, apart, left, right, tl.where(flows, ratio, 0.0), per_slope


@triton.jit
def keep_facts(
    mine: tl.tensor, mean: tl.tensor, std: tl.tensor, constant: tl.tensor, weight: tl.tensor, most: tl.tensor,
) -> None:  # fmt: skip
    tl.store(mine + MEAN, mean)
    tl.store(mine + STD, std)
    tl.store(mine + CONSTANT, constant)
    tl.store(mine + WEIGHT, weight)
    tl.store(mine + MOST, most)
