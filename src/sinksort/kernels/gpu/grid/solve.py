"""The small problem of a long row in Triton: nodes of a grid against nodes of a rule, one program a row, forward.

The plan is in registers as in ``registers.rows``, p_qj = e_qj f_j / sum_k e_qk f_k: e is computed once, at the
potentials of the staircase, and the steps of Newton's method, by conjugate gradients on products with the plan, only
change f.

Newton's method works with every second node of the grid (``grid.nodes``). Then a pass over all nodes writes the
tables, and says how far the column sums are from b. If that is too far, the row being as rough as can be answered at
all, the coarse problem is solved again for column sums that differ from b by what the two grids differ, as in multigrid
methods.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.newton import BRIDGE, LAST, NEAR, SMALL, accept_or_shorten, begin, go_on
from ..engine.parts import LOG2_E
from ..engine.tables import HEAD, MIDDLE, REJECTED, ROUNDS, STEP, TICKET, read_values, table_of
from ..engine.tiles import (
    AXIS_V,
    indices,
    inverse_of,
    most_over_targets,
    most_over_values,
    over_targets,
    over_values,
    places_of_targets,
    running,
    scalar,
)
from .nodes import (
    AHEAD,
    add_up_counts,
    add_up_moments,
    at_node,
    coarse,
    occupied,
    rough,
    steps_to_coarse_node,
    steps_to_node,
)
from .plan import (
    both_indices,
    conditional,
    mean_and_covariance,
    over_nodes,
    path_of,
    scale_of,
    slope_of,
    split,
    with_potentials,
)

_STEPS = tl.constexpr(24)  #: of Newton's method; three are ordinary
_ENOUGH = tl.constexpr(2e-6)  #: L1 error of the column sums at which a row is done
_MOST_ROUNDS = tl.constexpr(4)


@triton.jit(do_not_specialize=["moments_row", "chunks", "scratch_row", "x", "x_row", "x_step", "out", "n"])
def solve(
    moments: tl.tensor, moments_row: tl.tensor, chunks: tl.tensor, to_nodes: tl.tensor, y: tl.tensor, y_row: tl.tensor,
    b: tl.tensor, b_row: tl.tensor, phi: tl.tensor, phi_row: tl.tensor, last: tl.tensor, last_row: tl.tensor,
    eps: tl.tensor, eps_rows: tl.tensor, state: tl.tensor, size: tl.tensor, before: tl.tensor, error: tl.tensor,
    scratch: tl.tensor, scratch_row: tl.tensor, x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, out: tl.tensor,
    n: tl.tensor,
    K: tl.constexpr, KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, WEIGHTED: tl.constexpr,
    EPS_ROWS: tl.constexpr, KB: tl.constexpr, X: tl.constexpr, V: tl.constexpr, VT: tl.constexpr, KF: tl.constexpr,
    XF: tl.constexpr, SQUASH: tl.constexpr, READ: tl.constexpr,
) -> None:  # fmt: skip
    """Potentials, tables and errors of a row whose facts are in its state.

    Scratch of a row: UP numbers, and with weights as many as there are nodes; moments may stand there, unless there are
    weights, and so may the answers, which are written last.

    Tiles of the coarse nodes have KB lanes for the targets, X for nodes, of which a thread has V and VT. The pass over
    all nodes has tiles of KF lanes and XF nodes. If READ is not 0, the tables are read as well, at READ values x at a
    time; x and what comes with it may be None otherwise, and SQUASH anything. Nothing is compiled for the layout of x:
    this kernel takes long to compile, and reads little.
    """
    row = tl.program_id(0)
    row64 = row.to(tl.int64)
    NODES: tl.constexpr = CELLS + 7
    CP: tl.constexpr = UP // 2
    KA: tl.constexpr = KP // KB
    table = table_of(state, row, size, before)
    ranks = table + HEAD + 2 * KP
    step = tl.load(table + STEP)
    mine = ranks + 2 * UP
    room = scratch + row64 * scratch_row
    moments += row64 * moments_row
    skip = UP * (2 if WEIGHTED else 1)
    add_up_moments(moments, chunks, skip, to_nodes, room, mine, UP)
    present = mine
    if WEIGHTED:
        present = room + UP
        add_up_counts(moments + UP, chunks, skip, room, present, UP)
    y += row64 * y_row
    b += row64 * b_row
    phi += row64 * phi_row
    last += row64 * last_row

    start_row(y, b, mine, room, table, chunks, K, KP, CELLS, UP, KB, X, V, VT)
    j, i, it = both_indices(chunks, KA, V, VT, X, KB)
    middle, per_scale, y_scale = scale_of(y, K)
    s, inverse_s = slope_of(step, y_scale, eps, eps_rows, row, EPS_ROWS)

    off, off_rule = tl.full((), 1.0, tl.float32), tl.full((), 1.0, tl.float32)
    done = 0
    rounds = 0
    again = True
    while again:
        # Nothing but these numbers is kept from one round to the next: a second round is rare.
        tl.debug_barrier()
        target, gap, share, yh, yl, Uh, Ul = with_potentials(y, b, table, j, middle, per_scale, K, KP)
        m, mt = tl.load(room + i), tl.load(room + it)
        e = conditional(steps_to_coarse_node(i, CELLS), yh, yl, Uh, Ul, share, s, V, X, KB)
        et = conditional(steps_to_coarse_node(it, CELLS), yh, yl, Uh, Ul, share, s, VT, X, KB)
        inverse_D, resistance, _D, c = path_of(e, et, m, mt, target, gap, KA, V, VT, X, KB)
        if rounds == 0:  # from one step of Sinkhorn's: log(share / c), nearly
            aim = share
            z = (share - c) * inverse_of(tl.maximum(share + c, 1e-20))
            z = tl.minimum(tl.maximum(z, -1.0), 1.0)
            base = 2.0 * z + (2.0 / 3.0) * z * z * z
        else:  # both grids agree about what is missing here
            aim = share + c - tl.load(room + CP + j)
            base = share * 0.0
        way = share * 0.0
        length = over_targets(way, 1, X, KB) + 1.0
        climb = length * float("inf")
        going = True
        while going & (done < _STEPS):  # see ``registers.rows.forward``
            f = tl.exp2((base + length * way) * LOG2_E)
            inverse = inverse_of(over_targets(e * f, V, X, KB))
            inverse_t = inverse_of(over_targets(et * f, VT, X, KB))
            q, qt = m * inverse, mt * inverse_t
            c = f * over_nodes(e * q, et * qt, KA, X, KB)
            rho = aim - c
            size_of_rho = over_targets(tl.abs(rho), 1, X, KB)
            newton = share * 0.0
            left, onward, rz = begin(rho, inverse_D, resistance, share, X, KB)
            for _ in range(tl.where(done == 0, 2, 3)):
                g = f * onward
                v = over_targets(e * g, V, X, KB) * inverse
                vt = over_targets(et * g, VT, X, KB) * inverse_t
                Lw = c * onward - f * over_nodes(e * (q * v), et * (qt * vt), KA, X, KB)
                newton, left, onward, rz = go_on(
                    newton, left, onward, rz, Lw, inverse_D, resistance, share, BRIDGE * share, X, KB
                )
            base, way, length, climb, overshot = accept_or_shorten(
                newton, rho, c, share, base, way, length, climb, X, KB
            )
            remains = over_targets(tl.abs(left), 1, X, KB)
            more = (size_of_rho > SMALL) & (overshot | (size_of_rho > NEAR) | (remains > 1.5 * SMALL))
            going = scalar(tl.where(more, 1.0, 0.0)) > 0
            done += 1
        base = base + length * way

        # What the rule gets wrong where there are values.
        f = tl.exp2(base * LOG2_E)
        p, pt = e * f, et * f
        inverse = inverse_of(over_targets(p, V, X, KB))
        inverse_t = inverse_of(over_targets(pt, VT, X, KB))
        squares, squares_t = inverse * 0.0, inverse_t * 0.0
        for order in range(LAST):
            line = tl.load(last + order * K + j, mask=j < K, other=0.0).to(tl.float32)
            coefficient = over_targets(p * line, V, X, KB)
            squares += coefficient * coefficient
            coefficient_t = over_targets(pt * line, VT, X, KB)
            squares_t += coefficient_t * coefficient_t
        squares = tl.where(occupied(present, i, NODES), squares * inverse * inverse, 0.0)
        squares_t = tl.where(occupied(present, it, NODES), squares_t * inverse_t * inverse_t, 0.0)
        worst = tl.maximum(tl.max(squares, AXIS_V, keep_dims=True), tl.max(squares_t, AXIS_V, keep_dims=True))
        off_rule = scalar(most_over_values(worst, 1, X, KB))

        # All nodes: tables, and column sums.
        high, low = split(-base * inverse_s)
        tl.debug_barrier()
        tl.store(table + HEAD + j, Uh + high)
        tl.store(table + HEAD + KP + j, Ul + low)
        off = tabulate(y, b, phi, mine, room, table, chunks, s, K, KP, CELLS, UP, KF, XF)
        rounds += 1
        again = (off > _ENOUGH) & (rounds < _MOST_ROUNDS) & (done < _STEPS)

    off_grid = error_of_grid(phi, present, ranks, chunks, K, KP, CELLS, UP, KB, X, V)
    estimate = tl.maximum(tl.maximum(4.0 * off_rule, off_grid), 2.0 * off)
    mean = tl.load(table + MIDDLE)
    tl.store(error + row, tl.where(mean == mean, estimate, 0.0))  # rows that hold NaN have no error
    tl.store(table + ROUNDS, rounds.to(tl.float32))
    tl.store(table + REJECTED, 0.0)
    tl.store(table + TICKET, 0.0)
    if READ:  # all tables have been there since the last barrier; now nobody needs scratch
        read_row(x, x_row, x_step, row, n, table, out, KP, CELLS, SQUASH, READ)


@triton.jit(noinline=True)
def start_row(
    y: tl.tensor, b: tl.tensor, masses: tl.tensor, room: tl.tensor, table: tl.tensor, one: tl.tensor,
    K: tl.constexpr, KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, KB: tl.constexpr, X: tl.constexpr,
    V: tl.constexpr, VT: tl.constexpr,
) -> None:  # fmt: skip
    """Masses at the coarse nodes, in ``room``, and the potentials of a staircase of them, in the state.

    Where targets j and j + 1 are as good as each other, U_{j+1} - U_j = x (y_{j+1} - y_j).
    """
    NODES: tl.constexpr = CELLS + 7
    CP: tl.constexpr = UP // 2
    KA: tl.constexpr = KP // KB
    node = tl.arange(0, CP)
    density = rough(masses, NODES, CP)
    tl.store(room + node, coarse(masses, NODES, CP))
    tl.store(room + CP + node, tl.cumsum(density * (1.0 / tl.sum(density)), 0))
    tl.debug_barrier()
    j, i, it = both_indices(one, KA, V, VT, X, KB)
    below, reached = tl.load(room + CP - 1 + i, mask=i > 0, other=0.0), tl.load(room + CP + i)
    below_t, reached_t = tl.load(room + CP - 1 + it), tl.load(room + CP + it)
    middle, per_scale, _y_scale = scale_of(y, K)
    _target, gap, share = places_of_targets(y, b, j, middle, per_scale, K)
    level = running(share)
    part = (level - below) * inverse_of(tl.maximum(reached - below, 1e-12))
    part_t = (level - below_t) * inverse_of(tl.maximum(reached_t - below_t, 1e-12))
    passed = over_nodes(tl.minimum(tl.maximum(part, 0.0), 1.0), tl.minimum(tl.maximum(part_t, 0.0), 1.0), KA, X, KB)
    rise = (2.0 * (passed - 0.5 - AHEAD) - 3.0 - CELLS // 2) * gap
    Uh, Ul = split(running(rise) - rise)
    tl.store(table + HEAD + j, Uh)
    tl.store(table + HEAD + KP + j, Ul)


@triton.jit(noinline=True)
def tabulate(
    y: tl.tensor, b: tl.tensor, phi: tl.tensor, masses: tl.tensor, room: tl.tensor, table: tl.tensor, one: tl.tensor,
    s: tl.tensor,
    K: tl.constexpr, KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, KF: tl.constexpr, XF: tl.constexpr,
) -> Any:  # fmt: skip
    """Tables at all nodes, and column sums, which are left in ``room``: returns how far these are from the weights."""
    NODES: tl.constexpr = CELLS + 7
    ranks = table + HEAD + 2 * KP
    middle, per_scale, y_scale = scale_of(y, K)
    tl.debug_barrier()
    j, q = indices(one, KP // KF, 1, XF, KF)
    target, _gap, share, yh, yl, Uh, Ul = with_potentials(y, b, table, j, middle, per_scale, K, KP)
    levels = tl.load(phi + j, mask=j < K, other=0.0).to(tl.float32)
    sums = share * 0.0
    for first in range(0, NODES, XF):
        at = first + q
        p = conditional(steps_to_node(at, CELLS), yh, yl, Uh, Ul, share, s, 1, XF, KF)
        sums += p * at_node(masses, at, NODES)
        value, both = mean_and_covariance(p, levels, target, 1, XF, KF)
        tl.store(ranks + at, value)
        tl.store(ranks + UP + at, both * y_scale.to(tl.float32))
    sums = over_values(sums, KP // KF, XF, KF)
    tl.store(room + UP // 2 + j, sums)
    return scalar(over_targets(tl.abs(share - sums), 1, XF, KF))


@triton.jit(noinline=True)
def error_of_grid(
    phi: tl.tensor, present: tl.tensor, ranks: tl.tensor, one: tl.tensor,
    K: tl.constexpr, KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, KB: tl.constexpr, X: tl.constexpr,
    V: tl.constexpr,
) -> Any:  # fmt: skip
    """What the grid gets wrong where there are values."""
    tl.debug_barrier()
    j, _i = indices(one, KP // KB, V, X, KB)
    heights = tl.load(phi + j, mask=j < K, other=0.0).to(tl.float32)
    level_range = scalar(
        most_over_targets(tl.where(j < K, heights, -float("inf")), 1, X, KB)
        + most_over_targets(tl.where(j < K, -heights, -float("inf")), 1, X, KB)
    )
    cell = tl.arange(0, UP)
    inside = cell < CELLS - 1
    any_value = tl.load(present + cell + 3, mask=inside, other=0.0) != 0.0
    any_value |= tl.load(present + cell + 4, mask=inside, other=0.0) != 0.0
    any_value |= tl.load(present + cell + 5, mask=inside, other=0.0) != 0.0
    off_grid = tl.max(tl.where(any_value, tl.abs(difference(ranks, cell, CELLS - 1)), 0.0)) / level_range
    return off_grid * (3.0 * 105.0 * 105.0 / (256.0 * 40320.0))


@triton.jit(noinline=True)
def read_row(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, row: tl.tensor, n: tl.tensor, table: tl.tensor, out: tl.tensor,
    KP: tl.constexpr, CELLS: tl.constexpr, SQUASH: tl.constexpr, READ: tl.constexpr,
) -> None:  # fmt: skip
    """The answers of all values, READ at a time, from the tables."""
    tl.debug_barrier()
    for first in range(0, n, READ):
        at = tl.arange(0, READ).to(tl.int64) + first
        read_values(x, x_row, x_step, row, at, n, table, out, KP, CELLS, SQUASH)


@triton.jit
def difference(F: tl.tensor, q: tl.tensor, last: tl.tensor) -> Any:
    """Eighth difference of F that begins at node q; zero unless 0 <= q < last."""
    total = tl.zeros(q.shape, tl.float32)
    inside = (q >= 0) & (q < last)
    for i in tl.static_range(9):
        apart = i - 4 if i > 4 else 4 - i
        choose = (
            70.0 if apart == 0 else (56.0 if apart == 1 else (28.0 if apart == 2 else (8.0 if apart == 3 else 1.0)))
        )
        sign = 1.0 if i % 2 == 0 else -1.0
        total += sign * choose * tl.load(F + q + i, mask=inside, other=0.0)
    return total
