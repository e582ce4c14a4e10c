"""Long rows in Triton: what values bring to the nodes of the grid, added up by tensor cores.

Nine cells in a row are a wide cell, of which there are HI. A value in one of them is spread to its 16 nodes, three of
them beyond each end, with the weights L_r of interpolation: so sums over the values of a polynomial of degree 15 are
those over the masses. With s in [-1, 1] the place in the wide cell, node r stands at s_r = (r - 7.5) / 4.5, and

    L_r(s)  =  sum_k T_k(s) M_kr,    so    sum_i a_i L_r(s_i)  =  sum_k (sum_i a_i T_k(s_i)) M_kr:

sixteen moments of Chebyshev polynomials say all there is to say about the values of a wide cell. Kernels here add up
moments, and M is applied once for each row (``grid.nodes.add_up``). Little is lost by so high a degree: sum_r
|L_r| is at most 4.99, in the first and the last cell, so masses of either sign are never much larger than their sum.

The moments of a block of values are a product of two thin matrices: (HI, LONG) of zeros and ones, which tell in which
wide cell a value is, and (LONG, 16) of polynomials. So tensor cores scatter, and always in the same order. Three things
make that quick:

- A thread makes the sixteen polynomials of its own values, with single numbers, and joins them. Written with arrays of
  indices, all that comes before, squash included, would be moved by Triton to the layout in which the product wants
  its factors, where many threads hold the same value, and each of them would compute it.
- A product is too small to be shared by warps, and all of them would compute all of it: so a block has as many SLABS as
  there are warps, and each of these its own product.
- Nothing in the loop is in double precision: values are placed by ``single_facts``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ....core.modes import remembered
from ..engine.maths import chunk_moments, facts, keep, load_single, load_weight, placed_single, row_facts, single_facts
from ..engine.tables import (
    CONSTANT,
    LEAST,
    LO,
    MIDDLE,
    OFFSET,
    REST,
    STD,
    STEP,
    TOP,
    UNIT,
    WEIGHT,
    facts_to_place,
    table_of,
)


@remembered(64)
def to_nodes(device: torch.device) -> Tensor:
    """M (16, 16), by the orthogonality of Chebyshev polynomials at their own points."""
    i = np.arange(16)
    angle = np.pi * (i + 0.5) / 16
    u = 7.5 + 4.5 * np.cos(angle)  # where the first node of a wide cell is 0 and the last is 15
    others = np.eye(16) == 0
    factors = np.divide(u[:, None, None] - i, i[:, None] - i, out=np.ones((16, 16, 16)), where=others)
    M = np.cos(i[:, None] * angle) @ factors.prod(-1) / 8
    M[0] /= 2
    return torch.as_tensor(M, dtype=torch.float32, device=device)


@triton.jit
def interval(least: tl.tensor, most: tl.tensor, CELLS: tl.constexpr) -> Any:
    """Where cells begin and how wide they are, in single precision; the width of a constant row does not matter."""
    width = most - least
    step = tl.where(width > 1e-5, width, 1e-5) / CELLS
    return least.to(tl.float32), step.to(tl.float32)


@triton.jit
def wide_cells(xi: tl.tensor, least: tl.tensor, per_cell: tl.tensor, HI: tl.constexpr) -> Any:
    """Wide cell, a whole number, and place in it from -1 to 1. NaN stays."""
    position = (xi - least) * per_cell
    h = tl.minimum(tl.maximum(tl.floor(position), 0.0), HI - 1.0)
    s = (position - h) * 2.0 - 1.0
    s = tl.where(s > 1.0, 1.0, s)
    return h, tl.where(s < -1.0, -1.0, s)


@triton.jit
def polynomials(s: tl.tensor, weight: tl.tensor) -> Any:
    """weight T_k(s), (SLABS, LONG, 16), all k of a value in one thread. What is joined last is the lowest bit of k."""
    twice = 2.0 * s
    p0 = weight
    p1 = weight * s
    p2 = twice * p1 - p0
    p3 = twice * p2 - p1
    p4 = twice * p3 - p2
    p5 = twice * p4 - p3
    p6 = twice * p5 - p4
    p7 = twice * p6 - p5
    p8 = twice * p7 - p6
    p9 = twice * p8 - p7
    p10 = twice * p9 - p8
    p11 = twice * p10 - p9
    p12 = twice * p11 - p10
    p13 = twice * p12 - p11
    p14 = twice * p13 - p12
    p15 = twice * p14 - p13
    even = tl.join(tl.join(tl.join(p0, p8), tl.join(p4, p12)), tl.join(tl.join(p2, p10), tl.join(p6, p14)))
    odd = tl.join(tl.join(tl.join(p1, p9), tl.join(p5, p13)), tl.join(tl.join(p3, p11), tl.join(p7, p15)))
    return tl.reshape(tl.join(even, odd), (s.shape[0], s.shape[1], 16))


@triton.jit
def flags(v: tl.tensor, COUNT: tl.constexpr) -> Any:
    """Which of 0, ..., COUNT - 1 is v, (SLABS, LONG, COUNT) in half precision, all flags of a value in one thread."""
    copies = tl.join(v, v)
    copies = tl.join(copies, copies)
    copies = tl.join(copies, copies)
    copies = tl.join(copies, copies)
    if COUNT == 32:
        copies = tl.join(copies, copies)
    copies = tl.reshape(copies, (v.shape[0], v.shape[1], COUNT))
    return tl.where(copies == tl.arange(0, COUNT).to(tl.float32)[None, None, :], 1.0, 0.0).to(tl.float16)


@triton.jit
def chunk_sums(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    row: tl.tensor, g: tl.tensor, unit: tl.tensor, middle: tl.tensor, rest: tl.tensor, offset: tl.tensor,
    top: tl.tensor, least: tl.tensor, step: tl.tensor, n: tl.tensor, tiles: tl.tensor, SQUASH: tl.constexpr,
    WEIGHTED: tl.constexpr, COUNTED: tl.constexpr, HI: tl.constexpr, BLOCK: tl.constexpr, SLABS: tl.constexpr,
) -> Any:  # fmt: skip
    """Moments of wide cells, (HI, 16), and how many values each of their cells has, if values are COUNTED.

    Flags are half precision, and polynomials the sum of two such numbers: 22 bits. Where the polynomials are at most 1
    the second of them is small enough as it is; where weights are, it is brought to the size of the first. Tensor cores
    cut their sums off instead of rounding, so they add up no more than a slab.
    """
    LONG: tl.constexpr = BLOCK // SLABS
    SCALE: tl.constexpr = 2048.0 if WEIGHTED else 1.0
    per_cell = 1.0 / (step * LO)
    place = tl.arange(0, SLABS)[:, None] * LONG + tl.arange(0, LONG)[None, :]
    total = tl.zeros((SLABS, HI, 16), tl.float32)
    count = tl.zeros((SLABS, HI, 16), tl.float32)
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + place
        v = load_single(x, row, at, x_row, x_step, n)
        weight = load_weight(a, row, at, a_row, a_step, n, WEIGHTED)
        xi, _slope, _z = placed_single(v, unit, middle, rest, offset, top, SQUASH)
        h, s = wide_cells(xi, least, per_cell, HI)
        if WEIGHTED:
            size = tl.max(tl.abs(weight), 1)
            size = tl.where(size > 0.0, size, 1.0)
            weight *= (1.0 / size)[:, None]
        value = polynomials(s, weight)
        high = value.to(tl.float16)
        low = ((value - high.to(tl.float32)) * SCALE).to(tl.float16)
        flag = tl.trans(flags(h, HI), 0, 2, 1)
        if WEIGHTED:
            sums = tl.dot(flag, high, tl.dot(flag, low) * (1.0 / SCALE))
            total += sums * size[:, None, None]
        else:
            total += tl.dot(flag, high, tl.dot(flag, low))
        if COUNTED:
            cell = tl.floor(tl.minimum((s + 1.0) * (0.5 * LO), LO - 1.0))
            count += tl.dot(flag, flags(tl.where(at < n, cell, -1.0), 16))  # beyond the end is no cell
    return tl.sum(total, 0), tl.sum(count, 0)


@triton.jit(do_not_specialize=["of_stats", "out_row", "tiles", "G"])
def spread(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    stats: tl.tensor, of_stats: tl.tensor, state: tl.tensor, size: tl.tensor, before: tl.tensor, out: tl.tensor,
    out_row: tl.tensor, n: tl.tensor, tiles: tl.tensor, G: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, HI: tl.constexpr, GP: tl.constexpr, BLOCK: tl.constexpr,
    SLABS: tl.constexpr, ROW_SIZE: tl.constexpr,
) -> None:  # fmt: skip
    """One chunk's moments; with weights also how many values each cell has. The facts are left as well.

    Those of a row stand one after the other, and what rows leave is ``out_row`` numbers apart.

    These are computed here if ROW_SIZE is not 0, and then it is at least n: every program of a row reads all of it,
    which takes less time than another launch. Otherwise there are partial moments of ``of_stats`` other chunks, at most
    GP.
    """
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    if ROW_SIZE:
        total_weight, mean, squares, bottom, top, least, most, nan = chunk_moments(
            x, x_row, x_step, a, a_row, a_step, x, 0, 0, n, row, pid * 0, 1, SQUASH, WEIGHTED, True, ROW_SIZE
        )
        mean, std, constant, total_weight, least, most, _poison = facts(
            total_weight, mean, squares, bottom, top, least, most, nan, SQUASH
        )
    else:
        mean, std, constant, total_weight, least, most, _poison = row_facts(stats, row, of_stats, SQUASH, GP)
    unit, middle, rest, offset = single_facts(mean, std, SQUASH)
    top = most.to(tl.float32)
    lowest, step = interval(least, most, LO * HI)
    if g == 0:
        table = table_of(state, row, size, before)
        tl.store(table + UNIT, unit)
        tl.store(table + MIDDLE, middle)
        tl.store(table + REST, rest)
        tl.store(table + OFFSET, offset)
        tl.store(table + TOP, top)
        keep(table + STD, std)
        keep(table + WEIGHT, total_weight)
        tl.store(table + CONSTANT, constant.to(tl.float32))
        tl.store(table + LEAST, lowest)
        tl.store(table + STEP, step)
    total, count = chunk_sums(
        x, x_row, x_step, a, a_row, a_step, row, g, unit, middle, rest, offset, top, lowest, step, n, tiles,
        SQUASH, WEIGHTED, WEIGHTED, HI, BLOCK, SLABS,
    )  # fmt: skip
    at = tl.arange(0, HI)[:, None] * 16 + tl.arange(0, 16)[None, :]
    mine = out + row.to(tl.int64) * out_row + g * (16 * HI * (2 if WEIGHTED else 1))
    tl.store(mine + at, total)
    if WEIGHTED:
        tl.store(mine + 16 * HI + at, count)


@triton.jit(do_not_specialize=["out_row", "tiles", "G"])
def spread_cotangents(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, w: tl.tensor, w_row: tl.tensor, w_step: tl.tensor,
    state: tl.tensor, size: tl.tensor, before: tl.tensor, out: tl.tensor, out_row: tl.tensor, n: tl.tensor,
    tiles: tl.tensor, G: tl.tensor,
    SQUASH: tl.constexpr, HI: tl.constexpr, BLOCK: tl.constexpr, SLABS: tl.constexpr,
) -> None:  # fmt: skip
    """``spread`` with the cotangents for weights."""
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    table = table_of(state, row, size, before)
    unit, middle, rest, offset, top = facts_to_place(table)
    total, _count = chunk_sums(
        x, x_row, x_step, w, w_row, w_step, row, g, unit, middle, rest, offset, top, tl.load(table + LEAST),
        tl.load(table + STEP), n, tiles, SQUASH, True, False, HI, BLOCK, SLABS,
    )  # fmt: skip
    at = tl.arange(0, HI)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out + row.to(tl.int64) * out_row + g * (16 * HI) + at, total)
