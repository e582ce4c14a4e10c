"""Long rows onto many targets, in Triton: by way of a grid, as ``grid`` and ``smooth`` do it.

The interval that holds x~ is cut into 9 HI cells; a value in cell k is spread to the eight nodes k, ..., k + 7 (three
lie beyond each end) with the weights of interpolation. The masses at the nodes are sums over all values of a product of
two things that depend on few bits of k each: with k = 9 h + l, node 9 h + r receives the weight r - l of values whose h
is h. So a block of values is two thin matrices, (16, BLOCK) of weights and (BLOCK, HI) of zeros and ones, and their
product is what it adds to the masses: tensor cores scatter, and always in the same order.

Forward: moments, spread, solve (``triton_long_solve``), read. Backward: spread the cotangents, solve
(``triton_long_solve_back``), sum what the standardisation needs, read.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .triton_long_maths import is_finite, keep, kept, load_row, load_weight, placed, row_facts, standard_back

# A state: the facts of the row, three of them as pairs of singles, and how often its small problem was solved; KP
# potentials, as pairs; then tables at the nodes, UP numbers each: ranks, their covariance with y, masses.
MEAN, STD, WEIGHT, CONSTANT, LEAST, STEP, MOST, ROUNDS = (tl.constexpr(i) for i in (0, 2, 4, 6, 7, 8, 9, 10))
HEAD = tl.constexpr(16)
LO = tl.constexpr(9)  #: cells for each h: 16 less the seven nodes that a cell reaches beyond itself


@triton.jit
def table_of(state: tl.tensor, row: tl.tensor, size: tl.tensor, before: tl.tensor) -> Any:
    """The state of a row: singles, ``before`` of which belong to others, and rows are ``size`` singles apart."""
    return state.to(tl.pointer_type(tl.float32)) + (row.to(tl.int64) * size + before)


@triton.jit
def located(xi: tl.tensor, least: tl.tensor, step: tl.tensor, CELLS: tl.constexpr) -> Any:
    """Cell, and place in it counted from its node 0: between 3 and 4, and never quite there. NaN stays."""
    position = (xi - least) * (1.0 / step)
    cell = tl.floor(position).to(tl.int32)
    cell = tl.minimum(tl.maximum(cell, 0), CELLS - 1)
    u = position - cell.to(tl.float32) + 3.0
    u = tl.where(u > 3.9999995, 3.9999995, u)
    return cell, tl.where(u < 3.0000005, 3.0000005, u)


@triton.jit
def weights_of_nodes(u: tl.tensor) -> Any:
    """How interpolation weighs the eight nodes at place u: products of the distances to the others, in pairs."""
    a = u * (u - 1.0)
    b = (u - 2.0) * (u - 3.0)
    c = (u - 4.0) * (u - 5.0)
    d = (u - 6.0) * (u - 7.0)
    b_cd = b * c * d * (1.0 / 5040.0)
    a_cd = a * c * d * (1.0 / 240.0)
    ab_d = a * b * d * (1.0 / 240.0)
    ab_c = a * b * c * (1.0 / 5040.0)
    return (
        b_cd * (1.0 - u), b_cd * u * 7.0, a_cd * (3.0 - u), a_cd * (u - 2.0) * (5.0 / 3.0),
        ab_d * (5.0 - u) * (5.0 / 3.0), ab_d * (u - 4.0), ab_c * (7.0 - u) * 7.0, ab_c * (u - 6.0),
    )  # fmt: skip


@triton.jit
def spread_block(cell: tl.tensor, u: tl.tensor, weight: tl.tensor, HI: tl.constexpr) -> Any:
    """What a block of values at places u of their cells adds: (16, HI).

    Node j weighs product / (u - j) / ((-1)^(7 - j) j! (7 - j)!), with the product of all (u - j); inside (3, 4) the
    sign is + for the two nearest nodes, - for the next two, and so on. Flags are half precision, and weights the sum of
    two such numbers: 22 bits. Tensor cores cut their sums off instead of rounding, so they add up no more than a block.
    """
    size = tl.max(tl.abs(weight))
    size = tl.where(size > 0.0, size, 1.0)
    product = u
    for node in tl.static_range(1, 8):
        product *= tl.abs(u - node)
    product *= weight * (1.0 / size)
    h = cell // LO
    middle = tl.arange(0, 16).to(tl.float32)[:, None] - ((cell - LO * h).to(tl.float32) + 3.5)[None, :]  # j - 7/2
    away = (u - 3.5)[None, :] - middle  # exactly u - j, as in the product
    # 1 / (j! (7 - j)!) with its sign is 35, -21, 7, -1 over 7! by the distance from the middle: a cubic in its square.
    s = middle * middle
    factor = 0.009371899801587232 + s * (
        -0.01023341049382709 + s * (0.0021219135802469026 + s * -0.00011022927689594303)
    )
    value = tl.where(s < 16.0, product[None, :] * factor * tl.rsqrt(away * away), 0.0)
    high = value.to(tl.float16)
    low = ((value - high.to(tl.float32)) * 2048.0).to(tl.float16)
    flag = (h[:, None] == tl.arange(0, HI)[None, :]).to(tl.float16)
    return size * (tl.dot(high, flag) + tl.dot(low, flag) * (1.0 / 2048.0))


@triton.jit
def leave_masses(total: tl.tensor, room: tl.tensor, out: tl.tensor, HI: tl.constexpr, UP: tl.constexpr) -> None:
    """From (16, HI), by way of ``room`` for as many numbers, to the masses at the nodes, of which there are UP.

    Two neighbouring h have seven nodes in common.
    """
    tl.store(room + tl.arange(0, 16)[:, None] * HI + tl.arange(0, HI)[None, :], total)
    tl.debug_barrier()
    q = tl.arange(0, UP)
    h = q // LO
    r = q - LO * h
    mass = tl.load(room + r * HI + h, mask=h < HI, other=0.0)
    mass += tl.load(room + (r + LO) * HI + h - 1, mask=(r < 7) & (h > 0) & (h <= HI), other=0.0)
    tl.store(out + q, mass)


@triton.jit(do_not_specialize=["of_stats", "tiles", "G"])
def spread(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    stats: tl.tensor, of_stats: tl.tensor, state: tl.tensor, size: tl.tensor, before: tl.tensor, room: tl.tensor,
    masses: tl.tensor, n: tl.tensor, tiles: tl.tensor, G: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, HI: tl.constexpr, UP: tl.constexpr, GP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One chunk's masses at the nodes; with weights also where there are values at all. The facts are left as well.

    There are partial moments of ``of_stats`` other chunks, at most GP.
    """
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    mean, std, constant, total_weight, least, most, _poison = row_facts(stats, row, of_stats, SQUASH, GP)
    lowest, step = interval(least, most, LO * HI)
    if g == 0:
        table = table_of(state, row, size, before)
        keep(table + MEAN, mean)
        keep(table + STD, std)
        keep(table + WEIGHT, total_weight)
        tl.store(table + CONSTANT, constant.to(tl.float32))
        tl.store(table + LEAST, lowest)
        tl.store(table + STEP, step)
        tl.store(table + MOST, most.to(tl.float32))
    total = tl.zeros((16, HI), tl.float32)
    present = tl.zeros((16, HI), tl.float32)
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        xi, _slope, _z = placed(load_row(x, row, at, x_row, x_step, n), mean, std, most, SQUASH, True)
        weight = load_weight(a, row, at, a_row, a_step, n, WEIGHTED)
        cell, u = located(xi, lowest, step, LO * HI)
        total += spread_block(cell, u, weight, HI)
        if WEIGHTED:
            present += spread_block(cell, u, tl.where(at < n, 1.0, 0.0), HI)
    rooms = room + pid.to(tl.int64) * (16 * HI)
    out = masses + pid.to(tl.int64) * (UP * (2 if WEIGHTED else 1))
    leave_masses(total, rooms, out, HI, UP)
    if WEIGHTED:
        tl.debug_barrier()
        leave_masses(present, rooms, out + UP, HI, UP)


@triton.jit
def interval(least: tl.tensor, most: tl.tensor, CELLS: tl.constexpr) -> Any:
    """Where cells begin and how wide they are, in single precision; the width of a constant row does not matter."""
    width = most - least
    step = tl.where(width > 1e-5, width, 1e-5) / CELLS
    return least.to(tl.float32), step.to(tl.float32)


@triton.jit
def between(table: tl.tensor, cell: tl.tensor, u: tl.tensor, mask: tl.tensor) -> Any:
    """The polynomial through eight nodes of a table, at places u of cells."""
    w0, w1, w2, w3, w4, w5, w6, w7 = weights_of_nodes(u)
    value = tl.load(table + cell, mask=mask, other=0.0) * w0
    value += tl.load(table + cell + 1, mask=mask, other=0.0) * w1
    value += tl.load(table + cell + 2, mask=mask, other=0.0) * w2
    value += tl.load(table + cell + 3, mask=mask, other=0.0) * w3
    value += tl.load(table + cell + 4, mask=mask, other=0.0) * w4
    value += tl.load(table + cell + 5, mask=mask, other=0.0) * w5
    value += tl.load(table + cell + 6, mask=mask, other=0.0) * w6
    return value + tl.load(table + cell + 7, mask=mask, other=0.0) * w7


@triton.jit(do_not_specialize=["blocks"])
def read(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, state: tl.tensor, size: tl.tensor, before: tl.tensor,
    out: tl.tensor, n: tl.tensor, blocks: tl.tensor, KP: tl.constexpr, CELLS: tl.constexpr, SQUASH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The table of ranks at every value."""
    pid = tl.program_id(0)
    row, block = pid // blocks, pid % blocks
    table = table_of(state, row, size, before)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    most = tl.load(table + MOST).to(tl.float64)
    xi, _slope, _z = placed(
        load_row(x, row, at, x_row, x_step, n), kept(table + MEAN), kept(table + STD), most, SQUASH, True
    )
    cell, u = located(xi, tl.load(table + LEAST), tl.load(table + STEP), CELLS)
    value = between(table + HEAD + 2 * KP, cell, u, inside)
    tl.store(out + row.to(tl.int64) * n + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tiles", "G"])
def spread_cotangents(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, w: tl.tensor, w_row: tl.tensor, w_step: tl.tensor,
    state: tl.tensor, size: tl.tensor, before: tl.tensor, room: tl.tensor, masses: tl.tensor, n: tl.tensor,
    tiles: tl.tensor, G: tl.tensor, SQUASH: tl.constexpr, HI: tl.constexpr, UP: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """``spread`` with the cotangents for weights."""
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    table = table_of(state, row, size, before)
    mean, std, most = kept(table + MEAN), kept(table + STD), tl.load(table + MOST).to(tl.float64)
    lowest, step = tl.load(table + LEAST), tl.load(table + STEP)
    total = tl.zeros((16, HI), tl.float32)
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        xi, _slope, _z = placed(load_row(x, row, at, x_row, x_step, n), mean, std, most, SQUASH, True)
        weight = load_weight(w, row, at, w_row, w_step, n, True)
        cell, u = located(xi, lowest, step, LO * HI)
        total += spread_block(cell, u, weight, HI)
    leave_masses(total, room + pid.to(tl.int64) * (16 * HI), masses + pid.to(tl.int64) * UP, HI, UP)


@triton.jit
def pulled_back(
    v: tl.tensor, weight: tl.tensor, w: tl.tensor, inside: tl.tensor, table: tl.tensor, covariances: tl.tensor,
    slope: tl.tensor, KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, SQUASH: tl.constexpr,
) -> Any:  # fmt: skip
    """The cotangent of z, and z, of some values; infinite ones have none."""
    mean, std, most = kept(table + MEAN), kept(table + STD), tl.load(table + MOST).to(tl.float64)
    xi, steepness, z = placed(v, mean, std, most, SQUASH, True)
    cell, u = located(xi, tl.load(table + LEAST), tl.load(table + STEP), CELLS)
    direct = w * between(table + HEAD + 2 * KP + UP, cell, u, inside)
    through = weight * between(covariances, cell, u, inside)
    pull = slope * steepness * (direct - through)
    return tl.where(is_finite(v) | (v != v), pull, 0.0), z


@triton.jit(do_not_specialize=["tiles", "G"])
def sum_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, state: tl.tensor, size: tl.tensor, before: tl.tensor, scratch: tl.tensor,
    sums: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, n: tl.tensor, tiles: tl.tensor, G: tl.tensor,
    KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr,
    EPS_ROWS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One chunk's sums of the cotangent of z, alone and times z: what the mean and the deviation receive."""
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    table = table_of(state, row, size, before)
    covariances = scratch + row.to(tl.int64) * (2 * UP) + UP
    slope = 2.0 / (tl.load(eps_rows + row) if EPS_ROWS else eps)
    unit = 1.0 if WEIGHTED else 1.0 / n
    total = tl.full((), 0.0, tl.float64)
    tilted = tl.full((), 0.0, tl.float64)
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        v = load_row(x, row, at, x_row, x_step, n)
        weight = unit * load_weight(a, row, at, a_row, a_step, n, WEIGHTED)
        cotangent = load_weight(w, row, at, w_row, w_step, n, True)
        pull, z = pulled_back(v, weight, cotangent, inside, table, covariances, slope, KP, CELLS, UP, SQUASH)
        total += tl.sum(pull).to(tl.float64)
        tilted += tl.sum(pull * z).to(tl.float64)
    tl.store(sums + pid.to(tl.int64) * 2, total)
    tl.store(sums + pid.to(tl.int64) * 2 + 1, tilted)


@triton.jit(do_not_specialize=["blocks", "G"])
def read_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, state: tl.tensor, size: tl.tensor, before: tl.tensor, scratch: tl.tensor,
    sums: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, out: tl.tensor, n: tl.tensor, blocks: tl.tensor, G: tl.tensor,
    KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, GP: tl.constexpr, SQUASH: tl.constexpr,
    WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The cotangent of x. With z = (x - mean) / std it is (g_i - a_i (sum g + z_i sum g z)) / std."""
    pid = tl.program_id(0)
    row, block = pid // blocks, pid % blocks
    table = table_of(state, row, size, before)
    covariances = scratch + row.to(tl.int64) * (2 * UP) + UP
    slope = 2.0 / (tl.load(eps_rows + row) if EPS_ROWS else eps)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    v = load_row(x, row, at, x_row, x_step, n)
    weight = load_weight(a, row, at, a_row, a_step, n, WEIGHTED)
    cotangent = load_weight(w, row, at, w_row, w_step, n, True)
    unit = 1.0 if WEIGHTED else 1.0 / n
    pull, z = pulled_back(v, unit * weight, cotangent, inside, table, covariances, slope, KP, CELLS, UP, SQUASH)
    if SQUASH != 0:
        total, tilted = sums_of(sums, row, G, tl.load(table + CONSTANT), GP)
        pull = standard_back(pull, z, weight, v, total, tilted, kept(table + WEIGHT), kept(table + STD))
    tl.store(out + row.to(tl.int64) * n + at, pull.to(out.dtype.element_ty), mask=inside)


@triton.jit
def sums_of(sums: tl.tensor, row: tl.tensor, G: tl.tensor, constant: tl.tensor, GP: tl.constexpr) -> Any:
    """The two sums of a row; a constant row has no deviation to receive the second."""
    g = tl.arange(0, GP)
    of_chunk = sums + (row.to(tl.int64) * G + g) * 2
    total = tl.sum(tl.load(of_chunk, mask=g < G, other=0.0))
    tilted = tl.sum(tl.load(of_chunk + 1, mask=g < G, other=0.0))
    return total, tl.where(constant > 0.0, 0.0, tilted)
