"""Rows of up to 2048 values that a grid and one rule cannot answer: panels of nodes as fine as it takes, one launch.

These are rows with gaps, many ties or far values. One program works on a late row, all of them at once; programs that
have none return at once. The method is that of ``exact.pieces``, with two differences:

- Newton's method does not look at every value. The masses at the nodes of the grid stand for them, as in the first
  launch, and few have any where values are tied. What that gets wrong is seen by a pass over the values, and mended:
  the problem of the nodes is solved again for column sums that differ from b by as much as the two sums do. One to
  three passes are ordinary, since the grid is nearly right, and a factor of 3 is won by each even where nine tenths of
  a row are tied between two nodes.
- It begins with what the rule of the first launch found, continued to the nodes of the panels.

A row that needs more panels than there is room for, or does not converge, is left to ``exact.all_targets``. What
backward needs stands in the state of the row, where the grid's tables and potentials were: see ``keep_row``.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.maths import load_weight
from ..engine.newton import BRIDGE, LAST, accept_or_shorten, begin, go_on, path_through
from ..engine.parts import LOG2_E, halves
from ..engine.tables import HEAD, REJECTED, slope_back, table_of
from ..engine.tiles import AXIS_V, indices, most_over_values, over_targets, over_values, scalar
from .matrix import ACCEPTED
from .pieces import line_through, weight_of_row
from .pieces_nodes import SLOTS
from .pieces_passes import facts_of
from .rows_nodes import (
    AIM,
    BASE,
    GAP,
    HIGH,
    LINES,
    LOW,
    OWN,
    SUM,
    WAY,
    WEIGHT,
    continued,
    estimating,
    gather_nodes,
    halved,
    keep_potentials,
    keep_potentials_of_grid,
    keep_slot,
    kept_potentials,
    looked_at,
    moved,
    nodes_of,
    of_panels,
    over_own,
    place_row,
    positive,
    shares_at,
    slot_of,
    times_nodes,
)

_STEPS = tl.constexpr(100)  #: looks at the plan of the nodes, for all panels tried; five to twenty are ordinary
_ROUNDS = tl.constexpr(20)  #: passes over the values
_ROUGHLY, _NEARLY, _ENOUGH = (
    tl.constexpr(1e-4),
    tl.constexpr(1e-6),
    tl.constexpr(2e-6),
)  #: L1 error of column sums: of the nodes, before panels are fixed and after; of the values
_CG, _ACCURACY = tl.constexpr(12), tl.constexpr(3e-2)  #: steps of conjugate gradients, and how far they go
_SHORTEN = tl.constexpr(0.15)  #: no step is shortened more at once: what overshoots does so like an exponential
_WITHIN = tl.constexpr(0.8)  #: how much of the error may be that of the panels
_BLOCK = tl.constexpr(512)
_ROWS = tl.constexpr(64)  #: looked at at once


@triton.jit(
    do_not_specialize=[
        "x", "x_row", "x_step", "a", "a_row", "a_step", "y_row", "phi_row", "K", "out", "R", "n", "m", "P",
    ]
)  # fmt: skip
def exact_rows(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    y: tl.tensor, y_row: tl.tensor, phi: tl.tensor, phi_row: tl.tensor, K: tl.tensor, eps: tl.tensor,
    eps_rows: tl.tensor, state: tl.tensor, size: tl.tensor, before: tl.tensor, error: tl.tensor, out: tl.tensor,
    rules: tl.tensor, room: tl.tensor, points: tl.tensor, R: tl.tensor, n: tl.tensor, m: tl.tensor, P: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr,
    KR: tl.constexpr, FEW: tl.constexpr, MANY: tl.constexpr, FIRST: tl.constexpr, WARPS: tl.constexpr,
    VALUES: tl.constexpr,
) -> None:  # fmt: skip
    """There are 2^FIRST panels at first, up to FEW, and if that is not enough up to MANY.

    For each of P programs, ``room``: OWN MANY doubles; ``points``: 4 UP + 2 n singles. KR: padded nodes of the rule.
    """
    p = tl.program_id(0)
    room += p.to(tl.int64) * (OWN * MANY)
    points += p.to(tl.int64) * (4 * UP + 2 * n)
    for first in range(p, R, P * _ROWS):
        rows = first + P * tl.arange(0, _ROWS)
        errors = tl.load(error + rows, mask=rows < R, other=0.0)
        if tl.max(tl.where(errors <= ACCEPTED, 0, 1), 0) > 0:  # NaN is late: rows that hold NaN have an error of 0
            for row in range(first, tl.minimum(first + P * _ROWS, R), P):
                if tl.where(tl.load(error + row) <= ACCEPTED, 0, 1) > 0:
                    row64 = tl.zeros([], tl.int64) + row
                    table = table_of(state, row64, size, before)
                    origin, unit, span = facts_of(table, SQUASH)
                    place_row(x, x_row, x_step, row64, n, origin, unit, points + 4 * UP, SQUASH)
                    count, judges = gather_nodes(
                        table, table + HEAD + 2 * KR + 2 * UP, points + 4 * UP, n, span, points, SQUASH, CELLS, UP
                    )
                    per_weight = weight_of_row(a, a_row, a_step, row64, n, WEIGHTED, _BLOCK)
                    s = slope_back(eps, eps_rows, row64, EPS_ROWS) * span
                    full = answer_row(
                        a, a_row, a_step, phi, phi_row, y, y_row, K, s, span, per_weight, table,
                        error, out, rules, room, points, count, judges, row64, n, m,
                        SQUASH, WEIGHTED, CELLS, UP, KR, FIRST, FEW, WARPS, VALUES,
                    )  # fmt: skip
                    if MANY > FEW:
                        if full > 0:
                            answer_row(
                                a, a_row, a_step, phi, phi_row, y, y_row, K, s, span, per_weight, table, error, out,
                                rules, room, points, count, judges, row64, n, m,
                                SQUASH, WEIGHTED, CELLS, UP, KR, FIRST + 1, MANY, WARPS, VALUES,
                            )  # fmt: skip


@triton.jit
def answer_row(
    a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, phi: tl.tensor, phi_row: tl.tensor, y: tl.tensor,
    y_row: tl.tensor, K: tl.tensor, s: tl.tensor, span: tl.tensor, per_weight: tl.tensor,
    table: tl.tensor, error: tl.tensor, out: tl.tensor, rules: tl.tensor, room: tl.tensor, points: tl.tensor,
    count: tl.tensor, judges: tl.tensor, row: tl.tensor, n: tl.tensor, m: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, KR: tl.constexpr,
    FIRST: tl.constexpr, KB: tl.constexpr, WARPS: tl.constexpr, VALUES: tl.constexpr,
) -> Any:  # fmt: skip
    """Whether there were not enough panels.

    What this calls hands everything on in memory, so that each part is compiled by itself. A part may lay its tiles
    out as it likes, and begins with a barrier therefore.
    """
    KP: tl.constexpr = KB * SLOTS
    X: tl.constexpr = 32 // KB * WARPS
    V: tl.constexpr = VALUES
    own = (room + 50 * KB).to(tl.pointer_type(tl.float32))
    at_panels = (room + 3 * KP).to(tl.pointer_type(tl.int32))
    per_s = (1.0 / s).to(tl.float32)
    s_2 = (s * LOG2_E).to(tl.float32)
    panels = tl.full([], 1 << FIRST, tl.int32)
    first_potentials(table, y + row * y_row, K, span, room, at_panels, SQUASH, CELLS, KR, FIRST, V, X, KB)
    slots = panels * 0 + K
    length, climb = tl.full([], 1.0, tl.float32), tl.full([], float("inf"), tl.float32)
    off_rule, off = tl.full([], 1.0, tl.float32), tl.full([], 1.0, tl.float32)
    tolerance = tl.full([], 1.0, tl.float32) * _ROUGHLY
    k, rounds, full = 0, 0, 0
    going = True
    while going & (k < _STEPS):
        if slots > 0:
            begin_with(own, at_panels, panels, slots, m, rules, per_s, room, V, X, KB)
            slots = panels * 0
        stepped, length, climb = step_of(own, room, points, count, length, climb, tolerance, per_s, s_2, UP, V, X, KB)
        if stepped == 0:
            if off_rule > _WITHIN * ACCEPTED:
                before = panels * SLOTS
                off_rule, panels = judged(
                    own, at_panels, panels, m, points, judges, per_s, s_2, room, UP, V, X, KB
                )  # fmt: skip
                if off_rule <= _WITHIN * ACCEPTED:
                    tolerance = tl.full([], 1.0, tl.float32) * _NEARLY
                else:
                    slots = before
                    going = panels * SLOTS > slots
                    full = tl.where(going, 0, 1)
            else:
                off = passed(
                    a, a_row, a_step, phi, phi_row, y, y_row, K, out, row, points + 4 * UP, n, own, per_weight, s_2,
                    room, WEIGHTED, V, X, KB,
                )  # fmt: skip
                rounds += 1
                going = (off > _ENOUGH) & (rounds < _ROUNDS)
        k += 1
    if (off_rule <= ACCEPTED) & (off <= ACCEPTED):  # neither is NaN
        tl.store(error + row, tl.maximum(off_rule, off))
        keep_row(table, own, at_panels, panels, KR, V, X, KB)
    return full


@triton.jit(noinline=True)
def first_potentials(
    table: tl.tensor, y: tl.tensor, K: tl.tensor, span: tl.tensor, room: tl.tensor, at_panels: tl.tensor,
    SQUASH: tl.constexpr, CELLS: tl.constexpr, KR: tl.constexpr, FIRST: tl.constexpr, V: tl.constexpr,
    X: tl.constexpr, KB: tl.constexpr,
) -> None:  # fmt: skip
    """The first panels, and what the grid's rule found, for ``continued``."""
    j, _i = indices(positive(), SLOTS, V, X, KB)
    q, _v = indices(positive(), 1, 1, X, KB)
    tl.debug_barrier()
    tl.store(at_panels + q, (FIRST << 16) + q)
    keep_potentials_of_grid(table, y, j, K, span, room, SQUASH, CELLS, KR, KB * SLOTS)


@triton.jit(noinline=True)
def begin_with(
    own: tl.tensor, at_panels: tl.tensor, panels: tl.tensor, slots: tl.tensor, m: tl.tensor, rules: tl.tensor,
    per_s: tl.tensor, room: tl.tensor, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> None:  # fmt: skip
    """Nodes of panels, and potentials in two parts: those of so many nodes that are in ``room``, continued."""
    tl.debug_barrier()
    KP: tl.constexpr = KB * SLOTS
    j, _i = indices(positive(), SLOTS, V, X, KB)
    y, step, b = nodes_of(at_panels, panels, j, m, rules, room + 2 * KP, KP)
    U = continued(y, slots, room, KP) - (tl.log(tl.where(b > 0, b, 1.0)) * per_s).to(tl.float64)
    high = (tl.floor(U * 16777216.0 + 0.5) * 5.9604644775390625e-08).to(tl.float32)
    keep_slot(own, HIGH, j, high, KP)
    keep_slot(own, LOW, j, (U - high.to(tl.float64)).to(tl.float32), KP)
    keep_slot(own, WEIGHT, j, b, KP)
    keep_slot(own, AIM, j, b, KP)
    keep_slot(own, GAP, j, step, KP)
    keep_slot(own, BASE, j, b * 0.0, KP)
    keep_slot(own, WAY, j, b * 0.0, KP)
    for order in range(LAST):
        keep_slot(own, LINES + order, j, estimating(at_panels, panels, j, m, rules, order), KP)


@triton.jit(noinline=True)
def step_of(
    own: tl.tensor, room: tl.tensor, points: tl.tensor, count: tl.tensor, length: tl.tensor, climb: tl.tensor,
    tolerance: tl.tensor, per_s: tl.tensor, s_2: tl.tensor,
    UP: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> Any:  # fmt: skip
    """A step of Newton's method with the nodes of the grid: whether it was needed, how long, and the slope along it.

    If it was not, the potentials are those at which it would have begun, and column sums are kept.
    """
    tl.debug_barrier()
    KP: tl.constexpr = KB * SLOTS
    j, i = indices(positive(), SLOTS, V, X, KB)
    yh, yl = halves(tl.load(room + 2 * KP + j))
    shift = slot_of(own, BASE, j, KP) + length * slot_of(own, WAY, j, KP)
    Uh, Ul = moved(own, j, shift, per_s, KP)
    c, D, Ly = looked_at(points, i, count, yh, yl, Uh, Ul, s_2, UP, V, X, KB)
    b = slot_of(own, WEIGHT, j, KP)
    rho = slot_of(own, AIM, j, KP) - c
    stepped = 0
    if scalar(over_targets(tl.abs(rho), 1, X, KB)) > tolerance:
        stepped = 1
        inverse_D, resistance = path_through(Ly, D, slot_of(own, GAP, j, KP), X, KB)
        keep_slot(own, SUM, j, c, KP)
        newton = b * 0.0
        left, onward, rz = begin(rho, inverse_D, resistance, b, X, KB)
        enough = rz * (_ACCURACY * _ACCURACY)
        steps = 0
        stepping = True
        while stepping & (steps < _CG):
            Lw = times_nodes(onward, points, i, count, yh, yl, Uh, Ul, s_2, UP, V, X, KB)
            newton, left, onward, rz = go_on(newton, left, onward, rz, Lw, inverse_D, resistance, b, BRIDGE * b, X, KB)
            stepping = scalar(rz - enough) > 0
            steps += 1
        c = slot_of(own, SUM, j, KP)
        base, way, reach, rise, overshot = accept_or_shorten(
            newton, slot_of(own, AIM, j, KP) - c, c, b, slot_of(own, BASE, j, KP), slot_of(own, WAY, j, KP),
            length, climb, X, KB,
        )  # fmt: skip
        reach = tl.where(overshot, tl.maximum(reach, _SHORTEN * length), reach)
        tl.debug_barrier()  # threads that repeat each other have all read what is written over
        keep_slot(own, BASE, j, base, KP)
        keep_slot(own, WAY, j, way, KP)
        length, climb = scalar(reach), scalar(rise)
    else:
        keep_slot(own, HIGH, j, tl.where(b > 0, Uh, 0.0), KP)
        keep_slot(own, LOW, j, tl.where(b > 0, Ul, 0.0), KP)
        keep_slot(own, BASE, j, b * 0.0, KP)
        keep_slot(own, WAY, j, b * 0.0, KP)
        keep_slot(own, SUM, j, c, KP)
        length, climb = tl.full([], 1.0, tl.float32), tl.full([], float("inf"), tl.float32)
    return stepped, length, climb


@triton.jit(noinline=True)
def judged(
    own: tl.tensor, at_panels: tl.tensor, panels: tl.tensor, m: tl.tensor, points: tl.tensor, count: tl.tensor,
    per_s: tl.tensor, s_2: tl.tensor, room: tl.tensor,
    UP: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> Any:  # fmt: skip
    """What panels get wrong, and how many there are when those that get too much wrong have been cut in two.

    It is judged at the worst of the nodes that have values beside them, and of some of the values, by
    4 sum_l (sum_j last_lj p_ij)^2 over what is given to a panel: see ``rules``.
    """
    tl.debug_barrier()
    KP: tl.constexpr = KB * SLOTS
    j, i = indices(positive(), SLOTS, V, X, KB)
    yh, yl, Uh, Ul = kept_potentials(own, room, j, KP)
    worst = of_panels(yh) * 0.0
    for first in range(0, count, V * X):
        at = first + i
        p = shares_at(points, UP, at, count, yh, yl, Uh, Ul, s_2, V, X, KB)
        beside = tl.load(points + 3 * UP + at, mask=at < count, other=0.0)
        squares = beside * squares_of(p, own, j, KP)
        worst = tl.maximum(worst, tl.max(squares, axis=AXIS_V, keep_dims=True))
    worst = most_over_values(worst, 1, X, KB)
    off_rule = scalar(over_targets(worst, 1, X, KB))
    if off_rule > _WITHIN * ACCEPTED:
        q, _i = indices(positive(), 1, 1, X, KB)
        keep_potentials(own, per_s, at_panels, panels, j, m, room, KP)
        panels = halved(at_panels, panels, q, worst, _WITHIN * ACCEPTED, m, X, KB)
    return off_rule, panels


@triton.jit
def squares_of(p: tl.tensor, own: tl.tensor, j: tl.tensor, KP: tl.constexpr) -> Any:
    squares = of_panels(p) * 0.0
    for order in range(LAST):
        coefficient = of_panels(p * slot_of(own, LINES + order, j, KP))
        squares += coefficient * coefficient
    return 4.0 * squares / tl.maximum(of_panels(p), 1e-30)


@triton.jit(noinline=True)
def passed(
    a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, phi: tl.tensor, phi_row: tl.tensor, y: tl.tensor,
    y_row: tl.tensor, K: tl.tensor, out: tl.tensor, row: tl.tensor, places: tl.tensor, n: tl.tensor, own: tl.tensor,
    per_weight: tl.tensor, s_2: tl.tensor, room: tl.tensor,
    WEIGHTED: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> Any:  # fmt: skip
    """How far column sums of the plan of all values are from b, and their ranks, the answer if that is near.

    What the nodes are to aim at is changed by what they get wrong.
    """
    tl.debug_barrier()
    KP: tl.constexpr = KB * SLOTS
    j, i = indices(positive(), SLOTS, V, X, KB)
    yh, yl, Uh, Ul = kept_potentials(own, room, j, KP)
    at_zero, per_y = line_through(phi, phi_row, y, y_row, row, K)
    c = yh * 0.0
    for first in range(0, n, V * X):
        at = first + i
        p = shares_at(places, n, at, n, yh, yl, Uh, Ul, s_2, V, X, KB)
        weight = load_weight(a, row, at.to(tl.int64), a_row, a_step, n, WEIGHTED) * per_weight
        c += over_own(weight * p)
        mean = over_targets(p * (yh + yl), V, X, KB)
        rank = (at_zero + per_y * mean.to(tl.float64)).to(out.dtype.element_ty)
        tl.store(out + row * n + at, rank, mask=at < n)
    c = over_values(c, SLOTS, X, KB)
    b = slot_of(own, WEIGHT, j, KP)
    aim = b + slot_of(own, SUM, j, KP) - c
    tl.debug_barrier()
    keep_slot(own, AIM, j, aim, KP)
    return scalar(over_targets(tl.abs(b - c), 1, X, KB))


@triton.jit(noinline=True)
def keep_row(
    table: tl.tensor, own: tl.tensor, at_panels: tl.tensor, panels: tl.tensor, KR: tl.constexpr, V: tl.constexpr,
    X: tl.constexpr, KB: tl.constexpr,
) -> None:  # fmt: skip
    """For backward: panels where potentials of the rule were, how many they are, and potentials where tables were."""
    tl.debug_barrier()
    KP: tl.constexpr = KB * SLOTS
    j, _i = indices(positive(), SLOTS, V, X, KB)
    q, _v = indices(positive(), 1, 1, X, KB)
    kept = (table + HEAD).to(tl.pointer_type(tl.int32))
    panel = tl.load(at_panels + q)
    tl.debug_barrier()
    tl.store(table + REJECTED, 1.0)
    tl.store(kept, panels)
    tl.store(kept + 1 + q, panel, mask=q < panels)
    tl.store(table + HEAD + 2 * KR + j, slot_of(own, HIGH, j, KP))
    tl.store(table + HEAD + 2 * KR + KP + j, slot_of(own, LOW, j, KP))
