"""Gradients of the rows that ``exact.rows`` answered.

    L lambda = t,    where L is the Laplacian of the plan of all values:

conjugate gradients solve for what is missing with the plan of the nodes in place of that, and a pass over the values
says what is missing still. One or two passes are ordinary.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.maths import kept, load_weight, standard_back
from ..engine.newton import BRIDGE, begin, go_on, path_through
from ..engine.parts import LOG2_E
from ..engine.sums import agreed_sum
from ..engine.tables import CONSTANT, HEAD, REJECTED, STD, WEIGHT, slope_back, table_of
from ..engine.tiles import indices, most_over_targets, over_targets, over_values, scalar
from .pieces import line_through, pulled_back, weight_of_row
from .pieces_nodes import SLOTS
from .pieces_passes import facts_of, placed_values
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
    gather_nodes,
    keep_slot,
    kept_potentials,
    looked_at,
    nodes_of,
    over_own,
    place_row,
    positive,
    shares_at,
    slot_of,
    times_nodes,
)
from .rows_nodes import WEIGHT as SHARE

_ROUNDS = tl.constexpr(16)  #: passes over the values
_MISSING = tl.constexpr(2e-4)  #: of t that may be missing; a twentieth of it is seen in gradients
_CG, _FIRST_ACCURACY, _ACCURACY = tl.constexpr(40), tl.constexpr(1e-5), tl.constexpr(1e-2)
#: What a program keeps of each slot besides potentials, weights and gaps: see ``rows_nodes``.
_ASKED, _MISSES, _FOUND, _INVERSE, _RESISTANCE, _BRIDGE = BASE, WAY, SUM, AIM, LINES, tl.constexpr(LINES.value + 1)
_BLOCK = tl.constexpr(512)
_ROWS = tl.constexpr(64)  #: looked at at once


@triton.jit(
    do_not_specialize=[
        "x", "x_row", "x_step", "a", "a_row", "a_step", "w", "w_row", "w_step", "y_row", "phi_row", "K", "grad", "R",
        "n", "m", "P",
    ]
)  # fmt: skip
def exact_rows_backward(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    w: tl.tensor, w_row: tl.tensor, w_step: tl.tensor, y: tl.tensor, y_row: tl.tensor, phi: tl.tensor,
    phi_row: tl.tensor, K: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, state: tl.tensor, size: tl.tensor,
    before: tl.tensor, grad: tl.tensor, rules: tl.tensor, room: tl.tensor, points: tl.tensor, R: tl.tensor,
    n: tl.tensor, m: tl.tensor, P: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr,
    KR: tl.constexpr, FEW: tl.constexpr, MANY: tl.constexpr, WARPS: tl.constexpr, VALUES: tl.constexpr,
) -> None:  # fmt: skip
    """As ``exact.rows.exact_rows``."""
    p = tl.program_id(0)
    room += p.to(tl.int64) * (OWN * MANY)
    points += p.to(tl.int64) * (4 * UP + 2 * n)
    for first in range(p, R, P * _ROWS):
        rows = (first + P * tl.arange(0, _ROWS)).to(tl.int64)
        if tl.max(tl.load(table_of(state, rows, size, before) + REJECTED, mask=rows < R, other=0.0), 0) > 0:
            for row in range(first, tl.minimum(first + P * _ROWS, R), P):
                row64 = tl.zeros([], tl.int64) + row
                table = table_of(state, row64, size, before)
                if tl.load(table + REJECTED) > 0:
                    origin, unit, span = facts_of(table, SQUASH)
                    places = points + 4 * UP
                    place_row(x, x_row, x_step, row64, n, origin, unit, places, SQUASH)
                    count, _judges = gather_nodes(
                        table, table + HEAD + 2 * KR + 2 * UP, places, n, span, points, SQUASH, CELLS, UP
                    )
                    _at_zero, per_y = line_through(phi, phi_row, y, y_row, row64, K)
                    per_weight = weight_of_row(a, a_row, a_step, row64, n, WEIGHTED, _BLOCK)
                    slope_x = slope_back(eps, eps_rows, row64, EPS_ROWS)
                    if tl.load((table + HEAD).to(tl.pointer_type(tl.int32))) <= FEW:
                        pull_places(
                            a, a_row, a_step, w, w_row, w_step, slope_x, span, per_y, per_weight, table, rules, room,
                            points, count, row64, n, m, WEIGHTED, UP, KR, FEW, WARPS, VALUES,
                        )  # fmt: skip
                    else:
                        pull_places(
                            a, a_row, a_step, w, w_row, w_step, slope_x, span, per_y, per_weight, table, rules, room,
                            points, count, row64, n, m, WEIGHTED, UP, KR, MANY, WARPS, VALUES,
                        )  # fmt: skip
                    pull_values(
                        x, x_row, x_step, a, a_row, a_step, table, places, grad, row64, n, origin, unit,
                        SQUASH, WEIGHTED,
                    )  # fmt: skip


@triton.jit
def apart_from_mean(p: tl.tensor, v: tl.tensor, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr) -> Any:
    """As ``engine.parts.apart_from_mean``."""
    apart = v - over_targets(p * v, V, X, KB)
    return apart - over_targets(p * apart, V, X, KB)


@triton.jit
def pull_places(
    a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor, w_row: tl.tensor, w_step: tl.tensor,
    slope_x: tl.tensor, span: tl.tensor, per_y: tl.tensor, per_weight: tl.tensor, table: tl.tensor, rules: tl.tensor,
    room: tl.tensor, points: tl.tensor, count: tl.tensor, row: tl.tensor, n: tl.tensor, m: tl.tensor,
    WEIGHTED: tl.constexpr, UP: tl.constexpr, KR: tl.constexpr, KB: tl.constexpr, WARPS: tl.constexpr,
    VALUES: tl.constexpr,
) -> None:  # fmt: skip
    """What places receive takes that of the places. Its parts hand everything on in memory, as in ``exact.rows``."""
    X: tl.constexpr = 32 // KB * WARPS
    V: tl.constexpr = VALUES
    own = (room + 50 * KB).to(tl.pointer_type(tl.float32))
    places = points + 4 * UP
    s_2 = (slope_x * span * LOG2_E).to(tl.float32)
    largest, size = ask_targets(
        table, rules, room, own, w, w_row, w_step, places, row, n, m, s_2, KR, V, X, KB
    )  # fmt: skip
    look_back(own, room, points, count, s_2, UP, V, X, KB)
    accuracy = tl.full([], 1.0, tl.float32) * _FIRST_ACCURACY
    rounds = 0
    again = True
    while again:
        solve_by_nodes(own, room, points, count, s_2, accuracy, UP, V, X, KB)
        missing = ask_again(own, room, a, a_row, a_step, per_weight, places, row, n, s_2, WEIGHTED, V, X, KB)
        accuracy = tl.full([], 1.0, tl.float32) * _ACCURACY
        rounds += 1
        again = (missing - _MISSING * size > 0) & (rounds < _ROUNDS)
    answer_places(
        own, room, a, a_row, a_step, w, w_row, w_step, slope_x * per_y, per_weight, largest, places, row, n, s_2,
        WEIGHTED, V, X, KB,
    )  # fmt: skip


@triton.jit(noinline=True)
def ask_targets(
    table: tl.tensor, rules: tl.tensor, room: tl.tensor, own: tl.tensor, w: tl.tensor, w_row: tl.tensor,
    w_step: tl.tensor, places: tl.tensor, row: tl.tensor, n: tl.tensor, m: tl.tensor, s_2: tl.tensor,
    KR: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> Any:  # fmt: skip
    """t of the nodes, divided by the largest of it, which is returned, and the sum of what is left.

    t is that of places of targets in place of phi, which is ``per_y`` of it.
    """
    KP: tl.constexpr = KB * SLOTS
    j, i = indices(positive(), SLOTS, V, X, KB)
    kept_panels = (table + HEAD).to(tl.pointer_type(tl.int32))
    _y, step, b = nodes_of(kept_panels + 1, tl.load(kept_panels), j, m, rules, room + 2 * KP, KP)
    keep_slot(own, SHARE, j, b, KP)
    keep_slot(own, GAP, j, step, KP)
    keep_slot(own, HIGH, j, tl.load(table + HEAD + 2 * KR + j), KP)
    keep_slot(own, LOW, j, tl.load(table + HEAD + 2 * KR + KP + j), KP)
    yh, yl, Uh, Ul = kept_potentials(own, room, j, KP)
    t = b * 0.0
    for first in range(0, n, V * X):
        at = first + i
        p = shares_at(places, n, at, n, yh, yl, Uh, Ul, s_2, V, X, KB)
        cotangent = load_weight(w, row, at.to(tl.int64), w_row, w_step, n, True)
        t += over_own(cotangent * p * apart_from_mean(p, yh + yl, V, X, KB))
    t = over_values(t, SLOTS, X, KB)
    largest = most_over_targets(tl.abs(t), 1, X, KB)
    largest = tl.where(largest > 0, largest, 1.0)
    t = t / largest
    keep_slot(own, _ASKED, j, t, KP)
    keep_slot(own, _MISSES, j, t, KP)
    keep_slot(own, _FOUND, j, b * 0.0, KP)
    return scalar(largest), scalar(over_targets(tl.abs(t), 1, X, KB))


@triton.jit(noinline=True)
def look_back(
    own: tl.tensor, room: tl.tensor, points: tl.tensor, count: tl.tensor, s_2: tl.tensor,
    UP: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> None:  # fmt: skip
    """What conjugate gradients need to know of the plan of the nodes."""
    tl.debug_barrier()
    KP: tl.constexpr = KB * SLOTS
    j, i = indices(positive(), SLOTS, V, X, KB)
    yh, yl, Uh, Ul = kept_potentials(own, room, j, KP)
    _c, D, Ly = looked_at(points, i, count, yh, yl, Uh, Ul, s_2, UP, V, X, KB)
    inverse_D, resistance = path_through(Ly, D, slot_of(own, GAP, j, KP), X, KB)
    b = slot_of(own, SHARE, j, KP)
    softness = most_over_targets(tl.where(b > 0, D / tl.where(b > 0, b, 1.0), 0.0), 1, X, KB)
    keep_slot(own, _INVERSE, j, inverse_D, KP)
    keep_slot(own, _RESISTANCE, j, resistance, KP)
    keep_slot(own, _BRIDGE, j, b * BRIDGE * softness, KP)


@triton.jit(noinline=True)
def solve_by_nodes(
    own: tl.tensor, room: tl.tensor, points: tl.tensor, count: tl.tensor, s_2: tl.tensor, accuracy: tl.tensor,
    UP: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> None:  # fmt: skip
    """Add to what was found the solution for what is missing, with the plan of the nodes."""
    tl.debug_barrier()
    KP: tl.constexpr = KB * SLOTS
    j, i = indices(positive(), SLOTS, V, X, KB)
    yh, yl, Uh, Ul = kept_potentials(own, room, j, KP)
    b = slot_of(own, SHARE, j, KP)
    inverse_D, resistance = slot_of(own, _INVERSE, j, KP), slot_of(own, _RESISTANCE, j, KP)
    found = b * 0.0
    r, way, rz = begin(slot_of(own, _MISSES, j, KP), inverse_D, resistance, b, X, KB)
    enough = rz * (accuracy * accuracy)
    k = 0
    going = True
    while going & (k < _CG):
        Lw = times_nodes(way, points, i, count, yh, yl, Uh, Ul, s_2, UP, V, X, KB)
        bridge = slot_of(own, _BRIDGE, j, KP)
        found, r, way, rz = go_on(found, r, way, rz, Lw, inverse_D, resistance, b, bridge, X, KB)
        going = scalar(rz - enough) > 0
        k += 1
    before = slot_of(own, _FOUND, j, KP)
    tl.debug_barrier()
    keep_slot(own, _FOUND, j, before + found, KP)


@triton.jit(noinline=True)
def ask_again(
    own: tl.tensor, room: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, per_weight: tl.tensor,
    places: tl.tensor, row: tl.tensor, n: tl.tensor, s_2: tl.tensor,
    WEIGHTED: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> Any:  # fmt: skip
    """What is missing of t with the plan of all values, and the sum of that."""
    tl.debug_barrier()
    KP: tl.constexpr = KB * SLOTS
    j, i = indices(positive(), SLOTS, V, X, KB)
    yh, yl, Uh, Ul = kept_potentials(own, room, j, KP)
    multiplier = slot_of(own, _FOUND, j, KP)
    rest = yh * 0.0
    for first in range(0, n, V * X):
        at = first + i
        p = shares_at(places, n, at, n, yh, yl, Uh, Ul, s_2, V, X, KB)
        weight = load_weight(a, row, at.to(tl.int64), a_row, a_step, n, WEIGHTED) * per_weight
        rest += over_own(weight * p * apart_from_mean(p, multiplier, V, X, KB))
    rest = slot_of(own, _ASKED, j, KP) - over_values(rest, SLOTS, X, KB)
    rest -= slot_of(own, SHARE, j, KP) * over_targets(rest, 1, X, KB)
    keep_slot(own, _MISSES, j, rest, KP)
    return scalar(over_targets(tl.abs(rest), 1, X, KB))


@triton.jit(noinline=True)
def answer_places(
    own: tl.tensor, room: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor, w_row: tl.tensor,
    w_step: tl.tensor, slope: tl.tensor, per_weight: tl.tensor, largest: tl.tensor, places: tl.tensor, row: tl.tensor,
    n: tl.tensor, s_2: tl.tensor,
    WEIGHTED: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> None:  # fmt: skip
    """The cotangents of places take the places of these."""
    tl.debug_barrier()
    KP: tl.constexpr = KB * SLOTS
    j, i = indices(positive(), SLOTS, V, X, KB)
    yh, yl, Uh, Ul = kept_potentials(own, room, j, KP)
    multiplier = slot_of(own, _FOUND, j, KP) * largest
    for first in range(0, n, V * X):
        at = first + i
        p = shares_at(places, n, at, n, yh, yl, Uh, Ul, s_2, V, X, KB)
        cotangent = load_weight(w, row, at.to(tl.int64), w_row, w_step, n, True)
        weight = load_weight(a, row, at.to(tl.int64), a_row, a_step, n, WEIGHTED) * per_weight
        pull = apart_from_mean(p, cotangent * (yh + yl) - weight * multiplier, V, X, KB)
        g = over_targets(p * pull * apart_from_mean(p, yh + yl, V, X, KB), V, X, KB).to(tl.float64) * slope
        tl.debug_barrier()  # until all have read
        tl.store(places + at, g.to(tl.float32), mask=at < n)
    tl.debug_barrier()


@triton.jit(noinline=True)
def pull_values(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    table: tl.tensor, places: tl.tensor, grad: tl.tensor, row: tl.tensor, n: tl.tensor, origin: tl.tensor,
    unit: tl.tensor, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr,
) -> None:  # fmt: skip
    """The cotangent of values from that of their places, which is in ``places``."""
    total, tilted = tl.zeros([], tl.float64), tl.zeros([], tl.float64)
    if SQUASH != 0:
        for start in range(0, n, _BLOCK):
            at = (start + tl.arange(0, _BLOCK)).to(tl.int64)
            v, z, place_of = placed_values(x, x_row, x_step, row, at, n, origin, unit, SQUASH)
            g = pulled_back(places, at, n, v, z, place_of, SQUASH)
            total += agreed_sum(g, axis=0)
            tilted += agreed_sum(g * z, axis=0)
        tilted = tl.where(tl.load(table + CONSTANT) > 0.0, 0.0, tilted)
    for start in range(0, n, _BLOCK):
        at = (start + tl.arange(0, _BLOCK)).to(tl.int64)
        v, z, place_of = placed_values(x, x_row, x_step, row, at, n, origin, unit, SQUASH)
        g = pulled_back(places, at, n, v, z, place_of, SQUASH).to(tl.float32)
        if SQUASH != 0:
            weight = load_weight(a, row, at, a_row, a_step, n, WEIGHTED)
            g = standard_back(g, z.to(tl.float32), weight, v, total, tilted, kept(table + WEIGHT), kept(table + STD))
        tl.store(grad + row * n + at, g.to(grad.dtype.element_ty), mask=at < n)
