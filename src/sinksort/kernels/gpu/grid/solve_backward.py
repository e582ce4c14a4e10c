"""The small problem of a long row, backward: one system with the plan of ``grid.solve``, one program a row."""

from __future__ import annotations

import triton
import triton.language as tl

from ..engine.newton import BRIDGE, begin, go_on
from ..engine.tables import HEAD, REJECTED, ROUNDS, STEP, chunk_sums_back, slope_back, table_of, write_back
from ..engine.tiles import indices, most_over_targets, over_targets, over_values, scalar
from .nodes import add_up_moments, at_node, coarse, refined, steps_to_coarse_node, steps_to_node
from .plan import (
    both_indices,
    conditional,
    mean_and_covariance,
    over_nodes,
    path_of,
    scale_of,
    slope_of,
    with_potentials,
)

_STEPS = tl.constexpr(40)  #: of conjugate gradients
_ACCURACY = tl.constexpr(1e-5)  #: of lambda


@triton.jit(
    do_not_specialize=[
        "moments_row", "chunks", "scratch_row", "x", "x_row", "x_step", "a", "a_row", "a_step", "w", "w_row", "w_step",
        "out", "n",
    ]
)  # fmt: skip
def solve_backward(
    moments: tl.tensor, moments_row: tl.tensor, chunks: tl.tensor, to_nodes: tl.tensor, y: tl.tensor, y_row: tl.tensor,
    b: tl.tensor, b_row: tl.tensor, phi: tl.tensor, phi_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor,
    state: tl.tensor, size: tl.tensor, before: tl.tensor, scratch: tl.tensor, scratch_row: tl.tensor, x: tl.tensor,
    x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, out: tl.tensor, n: tl.tensor,
    K: tl.constexpr, KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, EPS_ROWS: tl.constexpr,
    KB: tl.constexpr, X: tl.constexpr, V: tl.constexpr, VT: tl.constexpr, KF: tl.constexpr, XF: tl.constexpr,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, READ: tl.constexpr,
) -> None:  # fmt: skip
    """lambda of one row, and the table of Cov(lambda, y) at the nodes: the first UP numbers of a row's scratch.

    After these come as many as there are nodes, the first of which is 0 in the end. The moments may stand there, and so
    may the cotangent of x, if READ is at least UP: blocks of values come in reverse, and the table is in the first.

    Where the coarse nodes were good enough forward, they are here. Otherwise what all nodes say is missing is solved
    for as well, and the table is computed at all nodes. If READ is not 0, the cotangent of x is computed as well, of
    READ values at a time; see ``grid.solve.solve``.
    """
    row = tl.program_id(0)
    row64 = row.to(tl.int64)
    CP: tl.constexpr = UP // 2
    KA: tl.constexpr = KP // KB
    table = table_of(state, row, size, before)
    if READ:
        if tl.load(table + REJECTED) > 0:  # ``exact.rows`` left other things there, and what is needed of this row
            return
    of_row = table + HEAD + 2 * KP + 2 * UP  # the masses of the values, at all nodes
    step = tl.load(table + STEP)
    room = scratch + row64 * scratch_row
    mine = room + UP
    add_up_moments(moments + row64 * moments_row, chunks, UP, to_nodes, room, mine, UP, False)
    y += row64 * y_row
    b += row64 * b_row
    phi += row64 * phi_row
    to_coarse_nodes(of_row, mine, room, CELLS, UP)
    j, i, it = both_indices(chunks, KA, V, VT, X, KB)
    m, mt = tl.load(room + i), tl.load(room + it)
    brought, brought_t = tl.load(room + CP + i), tl.load(room + CP + it)  # by cotangents
    middle, per_scale, y_scale = scale_of(y, K)
    target, gap, share, yh, yl, Uh, Ul = with_potentials(y, b, table, j, middle, per_scale, K, KP)
    s, _inverse = slope_of(step, y_scale, eps, eps_rows, row, EPS_ROWS)
    p = conditional(steps_to_coarse_node(i, CELLS), yh, yl, Uh, Ul, share, s, V, X, KB)
    pt = conditional(steps_to_coarse_node(it, CELLS), yh, yl, Uh, Ul, share, s, VT, X, KB)
    inverse_D, resistance, D, _c = path_of(p, pt, m, mt, target, gap, KA, V, VT, X, KB)
    levels = tl.load(phi + j, mask=j < K, other=0.0).to(tl.float32)
    rank, rank_t = over_targets(p * levels, V, X, KB), over_targets(pt * levels, VT, X, KB)
    t = over_nodes(p * ((levels - rank) * brought), pt * ((levels - rank_t) * brought_t), KA, X, KB)
    softness = most_over_targets(tl.where(share > 0, D / tl.where(share > 0, share, 1.0), 0.0), 1, X, KB)
    bridge = BRIDGE * share * softness
    largest = most_over_targets(tl.abs(t), 1, X, KB)
    largest = tl.where(largest > 0, largest, 1.0)
    rough_row = tl.load(table + ROUNDS) > 1.5
    multiplier = t * 0.0
    rest = t / largest
    passes = 0
    again = True
    while again:
        potential = rest * 0.0
        r, way, rz = begin(rest, inverse_D, resistance, share, X, KB)
        enough = rz * (_ACCURACY * _ACCURACY)
        k = 0
        going = True
        while going & (k < _STEPS):
            mean = m * over_targets(p * way, V, X, KB)
            mean_t = mt * over_targets(pt * way, VT, X, KB)
            Lw = over_nodes(p * (m * way - mean), pt * (mt * way - mean_t), KA, X, KB)
            potential, r, way, rz = go_on(potential, r, way, rz, Lw, inverse_D, resistance, share, bridge, X, KB)
            if k >= 2:
                going = scalar(rz - enough) > 0
            k += 1
        multiplier += potential
        again = rough_row & (passes == 0)
        passes += 1
        if again:
            tl.debug_barrier()
            tl.store(room + j, multiplier * largest)
            tl.debug_barrier()
            ask_again(y, b, phi, table, mine, of_row, room, chunks, s, K, KP, CELLS, KF, XF)
            rest = tl.load(room + KP + j) / largest

    tl.debug_barrier()
    if rough_row:
        tl.store(room + j, multiplier * largest)
        tl.debug_barrier()
        tabulate_back(y, b, table, room, chunks, s, K, KP, CELLS, KF, XF)
    else:  # at the coarse nodes, and in between by interpolation: as good as the system that was solved
        _mean, both = mean_and_covariance(p, multiplier, target, V, X, KB)
        _mean_t, both_t = mean_and_covariance(pt, multiplier, target, VT, X, KB)
        factor = largest * y_scale.to(tl.float32)
        tl.store(mine + i, both * factor)  # nobody needs the masses any more
        tl.store(mine + it, both_t * factor)
        refine(mine, room, CELLS, UP)
    tl.debug_barrier()
    tl.store(mine, 0.0)  # of no use any more: a counter for the programs of ``exact.pieces``
    if READ:
        slope = slope_back(eps, eps_rows, row, EPS_ROWS)
        write_row(
            x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, row, n, table, room, slope, out,
            KP, CELLS, UP, SQUASH, WEIGHTED, READ,
        )  # fmt: skip


@triton.jit(noinline=True)
def to_coarse_nodes(of_row: tl.tensor, mine: tl.tensor, room: tl.tensor, CELLS: tl.constexpr, UP: tl.constexpr) -> None:
    """The masses of values, and those of cotangents behind them, at the coarse nodes: left in ``room``."""
    CP: tl.constexpr = UP // 2
    node = tl.arange(0, CP)
    tl.store(room + node, coarse(of_row, CELLS + 7, CP))
    tl.store(room + CP + node, coarse(mine, CELLS + 7, CP))
    tl.debug_barrier()


@triton.jit(noinline=True)
def ask_again(
    y: tl.tensor, b: tl.tensor, phi: tl.tensor, table: tl.tensor, mine: tl.tensor, of_row: tl.tensor, room: tl.tensor,
    one: tl.tensor, s: tl.tensor,
    K: tl.constexpr, KP: tl.constexpr, CELLS: tl.constexpr, KF: tl.constexpr, XF: tl.constexpr,
) -> None:  # fmt: skip
    """What all nodes say is missing, of the multipliers in ``room``; it is left behind these."""
    NODES: tl.constexpr = CELLS + 7
    middle, per_scale, _y_scale = scale_of(y, K)
    j, q = indices(one, KP // KF, 1, XF, KF)
    _target, _gap, share, yh, yl, Uh, Ul = with_potentials(y, b, table, j, middle, per_scale, K, KP)
    levels = tl.load(phi + j, mask=j < K, other=0.0).to(tl.float32)
    multiplier = tl.load(room + j)
    missing = share * 0.0
    for first in range(0, NODES, XF):
        at = first + q
        p = conditional(steps_to_node(at, CELLS), yh, yl, Uh, Ul, share, s, 1, XF, KF)
        pull = at_node(mine, at, NODES) * (levels - over_targets(p * levels, 1, XF, KF))
        mass = at_node(of_row, at, NODES)
        missing += p * (pull - mass * (multiplier - over_targets(p * multiplier, 1, XF, KF)))
    tl.store(room + KP + j, over_values(missing, KP // KF, XF, KF))
    tl.debug_barrier()


@triton.jit(noinline=True)
def tabulate_back(
    y: tl.tensor, b: tl.tensor, table: tl.tensor, room: tl.tensor, one: tl.tensor, s: tl.tensor,
    K: tl.constexpr, KP: tl.constexpr, CELLS: tl.constexpr, KF: tl.constexpr, XF: tl.constexpr,
) -> None:  # fmt: skip
    """The table of the multipliers in ``room``, at all nodes; it takes their place."""
    NODES: tl.constexpr = CELLS + 7
    middle, per_scale, y_scale = scale_of(y, K)
    j, q = indices(one, KP // KF, 1, XF, KF)
    target, _gap, share, yh, yl, Uh, Ul = with_potentials(y, b, table, j, middle, per_scale, K, KP)
    multiplier = tl.load(room + j)
    tl.debug_barrier()
    for first in range(0, NODES, XF):
        at = first + q
        p = conditional(steps_to_node(at, CELLS), yh, yl, Uh, Ul, share, s, 1, XF, KF)
        _mean, both = mean_and_covariance(p, multiplier, target, 1, XF, KF)
        tl.store(room + at, both * y_scale.to(tl.float32))


@triton.jit(noinline=True)
def refine(mine: tl.tensor, room: tl.tensor, CELLS: tl.constexpr, UP: tl.constexpr) -> None:
    """The table at all nodes, from that at the coarse ones."""
    tl.debug_barrier()
    at = tl.arange(0, UP)
    tl.store(room + at, refined(mine, at, CELLS + 7))


@triton.jit(noinline=True)
def write_row(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, row: tl.tensor, n: tl.tensor, table: tl.tensor, room: tl.tensor,
    slope: tl.tensor, out: tl.tensor,
    KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr,
    READ: tl.constexpr,
) -> None:  # fmt: skip
    """The cotangent of x, of READ values at a time, from the table."""
    total, tilted = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    if SQUASH != 0:
        total, tilted = chunk_sums_back(
            x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, row, row * 0, tl.cdiv(n, READ), n, table, room,
            slope, KP, CELLS, UP, SQUASH, WEIGHTED, READ,
        )  # fmt: skip
    blocks = tl.cdiv(n, READ)
    for block in range(blocks):
        at = tl.arange(0, READ).to(tl.int64) + (blocks - 1 - block) * READ
        write_back(
            x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, row, at, n, table, room, slope, total, tilted,
            out, KP, CELLS, UP, SQUASH, WEIGHTED,
        )  # fmt: skip
