"""Rows onto two targets, one program a row or several, in Triton: masks. One unknown, and every row is answered.

    p_i  =  1 / (1 + exp(-z_i)),    z_i = s x~_i + u,    s = 2 (y_1 - y_0) / eps,    sum_i a_i p_i = b_1.

Of each value the smaller of its two shares is known best, so these are balanced: with A what values that are out
(z <= 0) have in, B what values that are in have out, and e what the weight of those that are in falls short of b_1,
A = B + e. Newton's method solves this in logarithms, log(A + e_-) = log(B + e_+), which is straight where a row is
nearly hard. What is too large on the left is so for all larger u: every step narrows a bracket, steps stay inside, and
from the ``PATIENCE``-th on every second halves it, so that the number of steps is bounded for every row.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.maths import is_finite, load_single, placed
from .exchange import leave, nearest_over_programs, together4, together7
from .passes import PRODUCTS, PSI, STATE
from .row import (
    ENOUGH,
    GONE,
    add4,
    add7,
    balance,
    cut_at,
    keep_facts,
    part_of_row,
    placed_row,
    places_in,
    row_facts_of,
    slope_of,
    tile_of,
)

PATIENCE, STEPS = tl.constexpr(12), tl.constexpr(160)
FARTHEST = tl.constexpr(120.0)  #: logits beyond the row at which it goes to one target to the last digit


@triton.jit
def shares_of_two(xi: tl.tensor, u: tl.tensor, s: tl.tensor) -> Any:
    """Which values are in, the smaller share of each, and the larger one."""
    z = tl.fma(xi, s + xi * 0.0, u + xi * 0.0)
    e = tl.exp(-tl.abs(z.to(tl.float32)))
    larger = 1.0 / (1.0 + e)
    return z > 0.0, e * larger, larger


@triton.jit
def parts_of_two(xi: tl.tensor, weight: tl.tensor, u: tl.tensor, s: tl.tensor) -> Any:
    """Return what each value adds to A, B, the weight of what is in, and the slope of A - B: see ``engine.sums``."""
    inside, smaller, larger = shares_of_two(xi, u, s)
    share = smaller * weight.to(tl.float32)
    slope = share * larger + 0.0
    return tl.where(inside, 0.0, share), tl.where(inside, share, 0.0), tl.where(inside, weight, 0.0), slope


@triton.jit
def _ends(below0: tl.tensor, above0: tl.tensor, below1: tl.tensor, above1: tl.tensor) -> Any:
    return tl.maximum(below0, below1), tl.minimum(above0, above1)


@triton.jit
def threshold_of(
    places: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, n: tl.tensor, row: tl.tensor,
    tiles: tl.tensor, xi: tl.tensor, weight: tl.tensor, least: tl.tensor, most: tl.tensor, b_0: tl.tensor,
    b_1: tl.tensor, whole: tl.tensor, s: tl.tensor, lines: tl.tensor, counter: tl.tensor, passed: tl.tensor,
    G: tl.tensor,
    REGISTERS: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr, PP: tl.constexpr,
) -> Any:  # fmt: skip
    """u, and how often programs have met."""
    begin, passed = cut_at(
        places, a, a_row, a_step, n, row, tiles, xi, weight, least, most, b_0, b_1, whole, s, lines, counter, passed, G,
        REGISTERS, WEIGHTED, BLOCK, PP,
    )  # fmt: skip
    u = -s * begin
    low, high = -s * most - FARTHEST, -s * least + FARTHEST
    wanted = b_1 * whole
    open_ = tl.full((), True, tl.int1)
    hard = tl.full((), False, tl.int1)
    done = 0
    while (done < STEPS) & open_:
        if REGISTERS:
            out, into, inside, slope = parts_of_two(xi, weight, u, s)
        else:
            out = tl.zeros((BLOCK,), tl.float32)
            into, slope = out, out
            inside = tl.zeros((BLOCK,), tl.float64 if WEIGHTED else tl.float32)
            for tile in range(tiles):
                xi_here, weight_here = tile_of(
                    places, a, a_row, a_step, n, row, tile, xi, weight, REGISTERS, WEIGHTED, BLOCK
                )
                out_, into_, inside_, slope_ = parts_of_two(xi_here, weight_here, u, s)
                out += out_
                into += into_
                inside += inside_
                slope += slope_
        A, B, held, D = tl.reduce((out, into, inside, slope), 0, add4)
        A, B, held, D, passed = together4(A, B, held, D, lines, counter, passed, G, PP)
        A, B, D = A.to(tl.float32), B.to(tl.float32), D.to(tl.float32)
        flows, _apart, left, right, ratio, per_slope = balance(A, B, wanted - held.to(tl.float64), whole, 0.0)
        hard = flows == 0
        farthest = 2.0 * tl.abs(ratio)  # slopes are at least half of what is balanced
        step = ratio / tl.maximum(D * per_slope, 1e-30)
        step = tl.minimum(tl.maximum(step, -farthest), farthest)
        too_much = left > right
        high = tl.where(too_much, u, high)
        low = tl.where(too_much, low, u)
        after = u - step.to(tl.float64)
        near, narrow = tl.abs(step) <= ENOUGH, high - low <= ENOUGH
        halve = (after <= low) | (after >= high) | ((done >= PATIENCE) & (done % 2 == 1))
        u = tl.where(hard, u, tl.where(narrow | (halve & (near == 0)), 0.5 * (low + high), after))
        open_ = (hard | near | narrow) == 0
        done += 1
    if WEIGHTED:
        if hard:
            u, passed = between(
                places, a, a_row, a_step, n, row, tiles, xi, weight, u, s, lines, counter, passed, G, REGISTERS,
                WEIGHTED, BLOCK, PP,
            )  # fmt: skip
    return u, passed


@triton.jit
def between(
    places: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, n: tl.tensor, row: tl.tensor,
    tiles: tl.tensor, xi: tl.tensor, weight: tl.tensor, u: tl.tensor, s: tl.tensor, lines: tl.tensor,
    counter: tl.tensor, passed: tl.tensor, G: tl.tensor, REGISTERS: tl.constexpr, WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
    PP: tl.constexpr,
) -> Any:  # fmt: skip
    """u of a row of which nothing is divided, where A = B would hold in longer numbers: between the nearest values.

    Only what weighs nothing can stand there, and be divided. The values that are nearest on either side are all that
    counts; how much they weigh moves u by the logarithm of a ratio.
    """
    below = tl.full((BLOCK,), -float("inf"), tl.float64)
    above = -below
    for tile in range(tiles):
        xi, weight = tile_of(places, a, a_row, a_step, n, row, tile, xi, weight, REGISTERS, WEIGHTED, BLOCK)
        inside, _smaller, _larger = shares_of_two(xi, u, s)
        below = tl.maximum(below, tl.where((weight > 0.0) & (inside == 0), xi, -float("inf")))
        above = tl.minimum(above, tl.where((weight > 0.0) & inside, xi, float("inf")))
    highest, lowest = tl.reduce((below, above), 0, _ends)
    highest, lowest, passed = nearest_over_programs(highest, lowest, lines, counter, passed, G, PP)
    out = tl.zeros((BLOCK,), tl.float32)
    into = out
    for tile in range(tiles):
        xi, weight = tile_of(places, a, a_row, a_step, n, row, tile, xi, weight, REGISTERS, WEIGHTED, BLOCK)
        inside, _smaller, _larger = shares_of_two(xi, u, s)
        share = weight.to(tl.float32)
        out += tl.where(inside, 0.0, share * tl.exp(tl.minimum(s * (xi - highest), 0.0).to(tl.float32)))
        into += tl.where(inside, share * tl.exp(tl.minimum(s * (lowest - xi), 0.0).to(tl.float32)), 0.0)
    A, B, zero, none = tl.reduce((out, into, out * 0.0, out * 0.0), 0, add4)
    A, B, zero, none, passed = together4(A, B, zero, none, lines, counter, passed, G, PP)
    middle = -0.5 * (s * (highest + lowest) + (tl.log(A) - tl.log(B)).to(tl.float64))
    return tl.where(is_finite(middle), middle, u), passed


@triton.jit(do_not_specialize=["G"])
def two(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, y: tl.tensor,
    y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor, phi: tl.tensor, phi_row: tl.tensor, eps: tl.tensor,
    eps_rows: tl.tensor, out: tl.tensor, state: tl.tensor, error: tl.tensor, places: tl.tensor, lines: tl.tensor,
    counters: tl.tensor, n: tl.tensor, each: tl.tensor, tiles: tl.tensor, G: tl.tensor, K: tl.constexpr,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, PUSH: tl.constexpr, REGISTERS: tl.constexpr,
    BLOCK: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    """All of it for one row, by G programs (at most PP) with ``each`` so many values, in so many tiles.

    K may be one: then the other target weighs nothing.
    """
    row, x, a, places, out, own, lines, counter = part_of_row(
        x, x_row, x_step, a, a_row, a_step, places, out, n, each, lines, counters, G, PUSH, PP
    )
    here = row * 0
    passed = row * 0
    of_y, of_b = y + row.to(tl.int64) * y_row, b + row.to(tl.int64) * b_row
    y_0, b_0 = tl.load(of_y).to(tl.float64), tl.load(of_b).to(tl.float64)
    y_1, b_1 = y_0, b_0 * 0.0
    if K == 2:
        y_1, b_1 = tl.load(of_y + 1).to(tl.float64), tl.load(of_b + 1).to(tl.float64)
    first = b_0 >= b_1
    b_0, b_1 = tl.where(first, 1.0 - b_1, b_0), tl.where(first, b_1, 1.0 - b_0)  # the larger is what the other leaves
    s = slope_of(eps, eps_rows, row, EPS_ROWS) * (y_1 - y_0)
    mean, std, constant, total, least, most, poison, whole, passed = row_facts_of(
        x, x_row, x_step, a, a_row, a_step, y_0.to(tl.float32), y_1.to(tl.float32), own, here, tiles, lines, counter,
        passed, G, SQUASH, WEIGHTED, BLOCK, PP,
    )  # fmt: skip
    xi, weight = placed_row(
        x, x_row, x_step, a, a_row, a_step, places, own, here, tiles, mean, std, most, REGISTERS, SQUASH, WEIGHTED,
        BLOCK,
    )  # fmt: skip
    u = tl.where(b_1 > 0.0, 1.0, -1.0).to(tl.float64) * GONE + poison
    if (b_0 > 0.0) & (b_1 > 0.0) & (poison == 0.0):
        u, passed = threshold_of(
            places, a, a_row, a_step, own, here, tiles, xi, weight, least, most, b_0, b_1, whole, s, lines, counter,
            passed, G, REGISTERS, WEIGHTED, BLOCK, PP,
        )  # fmt: skip
    k = tl.arange(0, 2)
    if not PUSH:
        of_phi = phi + row.to(tl.int64) * phi_row
        phi_0 = tl.load(of_phi).to(tl.float32)
        phi_1 = phi_0
        if K == 2:
            phi_1 = tl.load(of_phi + 1).to(tl.float32)
    sum_0 = tl.zeros((BLOCK,), tl.float32)
    sum_1, average_0, average_1, product = sum_0, sum_0, sum_0, sum_0
    beyond = sum_0
    for tile in range(tiles):
        at = places_in(tile, BLOCK)
        xi, weight = tile_of(places, a, a_row, a_step, own, here, tile, xi, weight, REGISTERS, WEIGHTED, BLOCK)
        inside, smaller, larger = shares_of_two(xi, u, s)
        w = weight.to(tl.float32)
        product += w * smaller * larger
        p_0, p_1 = tl.where(inside, smaller, larger), tl.where(inside, larger, smaller)
        if PUSH:
            v = load_single(x, here, at, x_row, x_step, own)
            _xi, _slope, z = placed(v.to(tl.float64), mean, std, most, SQUASH, False)
            finite = is_finite(v) & (w > 0.0)
            z_counted = tl.where(finite, z, 0.0).to(tl.float32)
            sum_0 += w * p_0
            sum_1 += w * p_1
            average_0 += w * p_0 * z_counted
            average_1 += w * p_1 * z_counted
            beyond += tl.where((w > 0.0) & (is_finite(v) == 0), v, 0.0)
        else:
            value = p_0 * phi_0 + p_1 * phi_1
            tl.store(out + at, value.to(out.dtype.element_ty), mask=at < own)
    unit = tl.full((), 1.0, tl.float64)
    if not WEIGHTED:
        unit = unit / n
    # All programs of a row write the same state.
    mine = state + row.to(tl.int64) * STATE
    keep_facts(mine, mean, std, constant, total, most)
    tl.store(mine + PSI + k, tl.where(k == 1, tl.where(tl.abs(u) < GONE, u, 0.0), 0.0) + poison)
    if PUSH:
        S_0, S_1, A_0, A_1, W, infinite, zero = tl.reduce(
            (sum_0, sum_1, average_0, average_1, product, beyond, sum_0 * 0.0), 0, add7
        )
        S_0, S_1, A_0, A_1, W, infinite, zero, passed = together7(
            S_0, S_1, A_0, A_1, W, infinite, zero, lines, counter, passed, G, PP
        )
        S, A = tl.where(k == 0, S_0, S_1).to(tl.float64), tl.where(k == 0, A_0, A_1).to(tl.float64)
        there = tl.where(k == 0, b_0, b_1) > 0.0
        value = mean + std * A / tl.where(S > 0.0, S, 1.0)
        value = tl.where(there, value, 0.0) + infinite
        tl.store(out + row.to(tl.int64) * K + k, value.to(tl.float32), mask=k < K)
    else:
        W = tl.sum(product)
        W, _1, _2, _3, passed = together4(W, W, W, W, lines, counter, passed, G, PP)
    i, j = k[:, None], k[None, :]
    tl.store(mine + PRODUCTS + 2 * i + j, tl.where(i == j, 0.0, W.to(tl.float64) * unit))
    tl.store(error + row, 0.0)
    if PP > 1:
        leave(counter, G)
