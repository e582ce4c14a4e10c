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
from ..engine.parts import LOG2_E, NOWHERE, halves
from ..engine.sums import agreed_sum
from ..engine.tables import CONSTANT, HEAD, REJECTED, STD, WEIGHT, slope_back, table_of
from ..engine.tiles import indices, most_over_targets, over_targets, over_values, scalar
from .pieces import line_through, pulled_back, weight_of_row
from .pieces_nodes import SLOTS
from .pieces_passes import facts_of, placed_values
from .rows_nodes import (
    OWN,
    gather_nodes,
    looked_at,
    nodes_of,
    over_values_of_thread,
    place_row,
    positive,
    shares_at,
    times_nodes,
)

_ROUNDS = tl.constexpr(16)  #: passes over the values
_MISSING = tl.constexpr(2e-4)  #: of t that may be missing; a twentieth of it is seen in gradients
_CG, _FIRST_ACCURACY, _ACCURACY = tl.constexpr(40), tl.constexpr(1e-5), tl.constexpr(1e-2)
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
    KR: tl.constexpr, FIRST_PANELS: tl.constexpr, MOST_PANELS: tl.constexpr, WARPS: tl.constexpr, VALUES: tl.constexpr,
) -> None:  # fmt: skip
    """As ``exact.rows.late_rows``."""
    p = tl.program_id(0)
    room += p.to(tl.int64) * (OWN * MOST_PANELS)
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
                    if tl.load((table + HEAD).to(tl.pointer_type(tl.int32))) <= FIRST_PANELS:
                        pull_places(
                            a, a_row, a_step, w, w_row, w_step, slope_x, span, per_y, per_weight, table, rules, room,
                            points, count, row64, n, m, WEIGHTED, UP, KR, FIRST_PANELS, WARPS, VALUES,
                        )  # fmt: skip
                    else:
                        pull_places(
                            a, a_row, a_step, w, w_row, w_step, slope_x, span, per_y, per_weight, table, rules, room,
                            points, count, row64, n, m, WEIGHTED, UP, KR, MOST_PANELS, WARPS, VALUES,
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
    """What places receive takes that of the places."""
    KP: tl.constexpr = KB * SLOTS
    X: tl.constexpr = 32 // KB * WARPS
    V: tl.constexpr = VALUES
    places = points + 4 * UP
    j, i = indices(positive(), SLOTS, V, X, KB)
    s_2 = (slope_x * span * LOG2_E).to(tl.float32)
    kept_panels = (table + HEAD).to(tl.pointer_type(tl.int32))
    y, step, b = nodes_of(kept_panels + 1, tl.load(kept_panels), j, m, rules, room, KP)
    yh, yl = halves(y)
    Uh = tl.load(table + HEAD + 2 * KR + j)
    Ul = tl.where(b > 0, tl.load(table + HEAD + 2 * KR + KP + j), NOWHERE)

    t = b * 0.0
    for first in range(0, n, V * X):
        at = first + i
        p = shares_at(places, n, at, n, yh, yl, Uh, Ul, s_2, V, X, KB)
        cotangent = load_weight(w, row, at.to(tl.int64), w_row, w_step, n, True)
        t += over_values_of_thread(cotangent * p * apart_from_mean(p, yh + yl, V, X, KB))
    t = over_values(t, SLOTS, X, KB)
    largest = most_over_targets(tl.abs(t), 1, X, KB)
    largest = tl.where(largest > 0, largest, 1.0)
    t = t / largest
    size = over_targets(tl.abs(t), 1, X, KB)

    # t is that of places of targets in place of phi, which is ``per_y`` of it.
    _c, D, Ly = looked_at(points, i, count, yh, yl, Uh, Ul, s_2, UP, V, X, KB)
    inverse_D, resistance = path_through(Ly, D, step, X, KB)
    softness = most_over_targets(tl.where(b > 0, D / tl.where(b > 0, b, 1.0), 0.0), 1, X, KB)
    bridge = BRIDGE * b * softness
    multiplier = b * 0.0
    rest = t
    accuracy = tl.full([], 1.0, tl.float32) * _FIRST_ACCURACY
    rounds = 0
    again = True
    while again:
        found = b * 0.0
        r, way, rz = begin(rest, inverse_D, resistance, b, X, KB)
        enough = rz * (accuracy * accuracy)
        k = 0
        going = True
        while going & (k < _CG):
            Lw = times_nodes(way, points, i, count, yh, yl, Uh, Ul, s_2, UP, V, X, KB)
            found, r, way, rz = go_on(found, r, way, rz, Lw, inverse_D, resistance, b, bridge, X, KB)
            going = scalar(rz - enough) > 0
            k += 1
        multiplier += found
        rest = b * 0.0
        for first in range(0, n, V * X):
            at = first + i
            p = shares_at(places, n, at, n, yh, yl, Uh, Ul, s_2, V, X, KB)
            weight = load_weight(a, row, at.to(tl.int64), a_row, a_step, n, WEIGHTED) * per_weight
            rest += over_values_of_thread(weight * p * apart_from_mean(p, multiplier, V, X, KB))
        rest = t - over_values(rest, SLOTS, X, KB)
        rest -= b * over_targets(rest, 1, X, KB)
        accuracy = tl.full([], 1.0, tl.float32) * _ACCURACY
        rounds += 1
        again = (scalar(over_targets(tl.abs(rest), 1, X, KB) - _MISSING * size) > 0) & (rounds < _ROUNDS)
    multiplier = multiplier * largest

    for first in range(0, n, V * X):
        at = first + i
        p = shares_at(places, n, at, n, yh, yl, Uh, Ul, s_2, V, X, KB)
        cotangent = load_weight(w, row, at.to(tl.int64), w_row, w_step, n, True)
        weight = load_weight(a, row, at.to(tl.int64), a_row, a_step, n, WEIGHTED) * per_weight
        pull = apart_from_mean(p, cotangent * (yh + yl) - weight * multiplier, V, X, KB)
        g = over_targets(p * pull * apart_from_mean(p, yh + yl, V, X, KB), V, X, KB).to(tl.float64) * (slope_x * per_y)
        tl.debug_barrier()  # until all have read
        tl.store(places + at, g.to(tl.float32), mask=at < n)
    tl.debug_barrier()


@triton.jit
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
