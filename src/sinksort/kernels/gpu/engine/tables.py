"""Long rows onto many targets, in Triton: by way of a grid, as ``grid`` and ``smooth`` do it.

The interval that holds x~ is cut into 9 HI cells, and node q stands at the beginning of cell q - 3, so that three nodes
lie beyond each end. Tables at the nodes are read at a value by the polynomial through the eight nodes about its cell.

Forward: moments, spread (``grid.spread``), solve (``grid.solve``), read. Backward: spread the cotangents,
solve (``grid.solve_backward``), sum what the standardisation needs, read. Each is a launch of its own where rows are
long; of others the programs that spread and solve do the rest as well, with the functions that are here.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .maths import is_finite, kept, load_single, load_weight, placed_single, standard_back

# A state: how values are placed (``single_facts`` and the largest xi), other facts of the row, two of them as pairs of
# singles, how often its small problem was solved, whether ``exact.pieces`` took over (2: in vain), and a counter
# for its programs; KP potentials, as pairs; then tables at the nodes, UP numbers each: ranks, their covariance with y,
# masses.
UNIT, MIDDLE, REST, OFFSET, TOP = (tl.constexpr(i) for i in range(5))
STD, WEIGHT, CONSTANT, LEAST, STEP, ROUNDS, LATE, TICKET = (tl.constexpr(i) for i in (6, 8, 10, 11, 12, 13, 14, 15))
LO = tl.constexpr(9)  #: cells of a wide cell: 16 less the seven nodes that a cell reaches beyond itself
HEAD = tl.constexpr(16)


@triton.jit
def table_of(state: tl.tensor, row: tl.tensor, size: tl.tensor, before: tl.tensor) -> Any:
    """The state of a row: singles, ``before`` of which belong to others, and rows are ``size`` singles apart."""
    return state.to(tl.pointer_type(tl.float32)) + (row.to(tl.int64) * size + before)


@triton.jit
def located(xi: tl.tensor, least: tl.tensor, step: tl.tensor, CELLS: tl.constexpr) -> Any:
    """Cell, and place in it counted from the first of its nodes: from 3 to 4. NaN stays."""
    position = (xi - least) * (1.0 / step)
    cell = tl.floor(position).to(tl.int32)
    cell = tl.minimum(tl.maximum(cell, 0), CELLS - 1)
    u = position - cell.to(tl.float32) + 3.0
    u = tl.where(u > 4.0, 4.0, u)
    return cell, tl.where(u < 3.0, 3.0, u)


@triton.jit
def facts_to_place(table: tl.tensor) -> Any:
    """What ``placed_single`` needs of a state."""
    unit, middle, rest = tl.load(table + UNIT), tl.load(table + MIDDLE), tl.load(table + REST)
    return unit, middle, rest, tl.load(table + OFFSET), tl.load(table + TOP)


@triton.jit
def found(v: tl.tensor, table: tl.tensor, CELLS: tl.constexpr, SQUASH: tl.constexpr) -> Any:
    """Cells of values and places in them; slopes of the squash, and z."""
    unit, middle, rest, offset, top = facts_to_place(table)
    xi, slope, z = placed_single(v, unit, middle, rest, offset, top, SQUASH)
    cell, u = located(xi, tl.load(table + LEAST), tl.load(table + STEP), CELLS)
    return cell, u, slope, z


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
    read_values(x, x_row, x_step, row, at, n, table, out, KP, CELLS, SQUASH)


@triton.jit
def read_values(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, row: tl.tensor, at: tl.tensor, n: tl.tensor, table: tl.tensor,
    out: tl.tensor, KP: tl.constexpr, CELLS: tl.constexpr, SQUASH: tl.constexpr,
) -> None:  # fmt: skip
    """``read`` for values ``at`` of a row."""
    inside = at < n
    cell, u, _slope, _z = found(load_single(x, row, at, x_row, x_step, n), table, CELLS, SQUASH)
    value = between(table + HEAD + 2 * KP, cell, u, inside)
    tl.store(out + row.to(tl.int64) * n + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def slope_back(eps: tl.tensor, eps_rows: tl.tensor, row: tl.tensor, EPS_ROWS: tl.constexpr) -> Any:
    return 2.0 / (tl.load(eps_rows + row) if EPS_ROWS else eps)


@triton.jit
def pulled_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, row: tl.tensor, at: tl.tensor, n: tl.tensor, table: tl.tensor,
    covariances: tl.tensor, slope: tl.tensor, KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr,
) -> Any:  # fmt: skip
    """The cotangent of z, and z, of values ``at``; infinite ones have none. And their weights, and they themselves."""
    inside = at < n
    v = load_single(x, row, at, x_row, x_step, n)
    weight = load_weight(a, row, at, a_row, a_step, n, WEIGHTED)
    cotangent = load_weight(w, row, at, w_row, w_step, n, True)
    unit = 1.0 if WEIGHTED else 1.0 / n
    cell, u, steepness, z = found(v, table, CELLS, SQUASH)
    direct = cotangent * between(table + HEAD + 2 * KP + UP, cell, u, inside)
    through = unit * weight * between(covariances, cell, u, inside)
    pull = slope * steepness * (direct - through)
    return tl.where(is_finite(v) | (v != v), pull, 0.0), z, weight, v


@triton.jit(do_not_specialize=["tiles", "G"])
def sum_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, state: tl.tensor, size: tl.tensor, before: tl.tensor, scratch: tl.tensor,
    sums: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, n: tl.tensor, tiles: tl.tensor, G: tl.tensor,
    KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr,
    EPS_ROWS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """``chunk_sums_back`` of all chunks."""
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    table = table_of(state, row, size, before)
    covariances = scratch + row.to(tl.int64) * (2 * UP)
    total, tilted = chunk_sums_back(
        x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, row, g, tiles, n, table, covariances,
        slope_back(eps, eps_rows, row, EPS_ROWS), KP, CELLS, UP, SQUASH, WEIGHTED, BLOCK,
    )  # fmt: skip
    tl.store(sums + pid.to(tl.int64) * 2, total)
    tl.store(sums + pid.to(tl.int64) * 2 + 1, tilted)


@triton.jit
def chunk_sums_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, row: tl.tensor, g: tl.tensor, tiles: tl.tensor, n: tl.tensor,
    table: tl.tensor, covariances: tl.tensor, slope: tl.tensor, KP: tl.constexpr, CELLS: tl.constexpr,
    UP: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
) -> Any:  # fmt: skip
    """One chunk's sums of the cotangent of z, alone and times z: what the mean and the deviation receive."""
    total = tl.full((), 0.0, tl.float64)
    tilted = tl.full((), 0.0, tl.float64)
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        pull, z, _weight, _v = pulled_back(
            x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, row, at, n, table, covariances, slope,
            KP, CELLS, UP, SQUASH, WEIGHTED,
        )  # fmt: skip
        total += tl.sum(pull).to(tl.float64)
        tilted += tl.sum(pull * z).to(tl.float64)
    return total, tilted


@triton.jit(do_not_specialize=["blocks", "G"])
def read_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, state: tl.tensor, size: tl.tensor, before: tl.tensor, scratch: tl.tensor,
    sums: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, out: tl.tensor, n: tl.tensor, blocks: tl.tensor, G: tl.tensor,
    KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, GP: tl.constexpr, SQUASH: tl.constexpr,
    WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The cotangent of x."""
    pid = tl.program_id(0)
    row, block = pid // blocks, pid % blocks
    table = table_of(state, row, size, before)
    covariances = scratch + row.to(tl.int64) * (2 * UP)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total, tilted = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    if SQUASH != 0:
        total, tilted = sums_of(sums, row, G, GP)
    write_back(
        x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, row, at, n, table, covariances,
        slope_back(eps, eps_rows, row, EPS_ROWS), total, tilted, out, KP, CELLS, UP, SQUASH, WEIGHTED,
    )  # fmt: skip


@triton.jit
def sums_of(sums: tl.tensor, row: tl.tensor, G: tl.tensor, GP: tl.constexpr) -> Any:
    """The two sums of a row."""
    g = tl.arange(0, GP)
    of_chunk = sums + (row.to(tl.int64) * G + g) * 2
    total = tl.sum(tl.load(of_chunk, mask=g < G, other=0.0))
    return total, tl.sum(tl.load(of_chunk + 1, mask=g < G, other=0.0))


@triton.jit
def write_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, row: tl.tensor, at: tl.tensor, n: tl.tensor, table: tl.tensor,
    covariances: tl.tensor, slope: tl.tensor, total: tl.tensor, tilted: tl.tensor, out: tl.tensor, KP: tl.constexpr,
    CELLS: tl.constexpr, UP: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr,
) -> None:  # fmt: skip
    """The cotangent of values ``at``. With z = (x - mean) / std it is (g_i - a_i (sum g + z_i sum g z)) / std.

    A constant row has no deviation to receive the second sum.
    """
    pull, z, weight, v = pulled_back(
        x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, row, at, n, table, covariances, slope,
        KP, CELLS, UP, SQUASH, WEIGHTED,
    )  # fmt: skip
    if SQUASH != 0:
        tilted = tl.where(tl.load(table + CONSTANT) > 0.0, 0.0, tilted)
        pull = standard_back(pull, z, weight, v, total, tilted, kept(table + WEIGHT), kept(table + STD))
    tl.debug_barrier()  # the table may stand where these are written
    tl.store(out + row.to(tl.int64) * n + at, pull.to(out.dtype.element_ty), mask=at < n)
