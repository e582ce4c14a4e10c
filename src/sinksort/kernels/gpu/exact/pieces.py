"""Long rows that a grid and one rule cannot answer: every value for itself, and panels of nodes as fine as it takes.

These are rows with gaps, many ties or far values, whose plan has edges of width eps over the gap. One launch follows
those of the grid in either direction; its programs return at once if no row is late, and work on the late rows one
after the other, all of them together (``exact.pieces_passes``). The method is that of ``exact.all_targets``: Newton's
with a line search by slopes, whose systems are solved by conjugate gradients with a pass over the row for each product.
When the column sums are nearly right, panels whose estimated error is too large are halved (``exact.pieces_nodes``)
and potentials continued to the new nodes, as ``refine`` does it.

A row that needs more panels than there is room for, or does not converge, is NaN. What backward needs is in the state
of the row, behind what the grid leaves there: potentials in two parts, and the panels.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.maths import kept, load_weight, standard_back
from ..engine.parts import LOG2_E, apart_from_mean, halves, potential_halves, slope, start_of
from ..engine.sums import agreed_sum
from ..engine.tables import CONSTANT, LATE, STD, TICKET, WEIGHT, slope_back, table_of
from .matrix import ACCEPTED
from .pieces_nodes import SLOTS, continued, estimating, halved, nodes_of, sizes_of_panels, with_target
from .pieces_passes import (
    facts_of,
    meet,
    place_all,
    placed_values,
    plan_of,
    share_of,
    solved,
    standing,
    together,
    together_one,
)

_STEPS = tl.constexpr(200)  #: of Newton's method, for all panels that are tried; some twenty are ordinary
_ROUGHLY, _ENOUGH = (
    tl.constexpr(1e-4),
    tl.constexpr(2e-6),
)  #: L1 error of column sums, before panels are fixed and after
_BISECTIONS = tl.constexpr(26)
_ROWS = tl.constexpr(256)  #: looked at at once
_BLOCK = tl.constexpr(512)  #: values that are placed at once
_CG_FORWARD, _CG_BACKWARD = tl.constexpr(30), tl.constexpr(100)


@triton.jit
def weight_of_row(
    a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, row: tl.tensor, n: tl.tensor, WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:  # fmt: skip
    """One over what all of a row weigh: every program reads all weights."""
    total = tl.zeros([BLOCK], tl.float64)
    if WEIGHTED:
        for start in range(0, n, BLOCK):
            at = (start + tl.arange(0, BLOCK)).to(tl.int64)
            total += load_weight(a, row, at, a_row, a_step, n, WEIGHTED).to(tl.float64)
        weight = tl.sum(total, axis=0)
    else:
        weight = tl.sum(total, axis=0) + n
    return (1.0 / tl.where(weight > 0, weight, 1.0)).to(tl.float32)


@triton.jit
def split(U: tl.tensor, y: tl.tensor, has: tl.tensor) -> Any:
    """y, and y and U in two parts, as ``plan_of`` wants them."""
    yh, yl = halves(y)
    Uh, Ul = potential_halves(U, has)
    return y.to(tl.float32), yh, yl, Uh, Ul


@triton.jit
def line_through(
    phi: tl.tensor, phi_row: tl.tensor, y: tl.tensor, y_row: tl.tensor, row: tl.tensor, K: tl.tensor
) -> Any:
    """phi as an affine function of the places of targets: its value at 0, and slope."""
    at_y, at_phi = y + row * y_row, phi + row * phi_row
    y_first, y_last = tl.load(at_y).to(tl.float64), tl.load(at_y + K - 1).to(tl.float64)
    first, last = tl.load(at_phi).to(tl.float64), tl.load(at_phi + K - 1).to(tl.float64)
    rise = (last - first) / (y_last - y_first)
    return first + rise * (0.5 - y_first), rise


@triton.jit(do_not_specialize=["R", "n", "m", "P", "x_row", "x_step", "a_row", "a_step"])
def late_forward(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    y: tl.tensor, y_row: tl.tensor, phi: tl.tensor, phi_row: tl.tensor, K: tl.tensor, eps: tl.tensor,
    eps_rows: tl.tensor, state: tl.tensor, size: tl.tensor, before: tl.tensor, behind: tl.tensor, error: tl.tensor,
    out: tl.tensor, rules: tl.tensor, sums: tl.tensor, room: tl.tensor, places: tl.tensor, R: tl.tensor,
    n: tl.tensor, m: tl.tensor, P: tl.tensor,
    FIRST: tl.constexpr, PANELS: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr,
    BN: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    """There are 2^FIRST panels at first.

    ``sums``: 3 (P + 1) doubles a slot; ``room``: 3 P doubles a slot; ``places``: two singles for each value of a row.
    """
    for first in range(0, R, _ROWS):
        rows = first + tl.arange(0, _ROWS)
        errors = tl.load(error + rows, mask=rows < R, other=0.0)
        if tl.max(tl.where(errors <= ACCEPTED, 0, 1), 0) > 0:  # NaN is late: rows that hold NaN have an error of 0
            for row in range(first, tl.minimum(first + _ROWS, R)):
                if tl.where(tl.load(error + row) <= ACCEPTED, 0, 1) > 0:
                    answer_row(
                        x, x_row, x_step, a, a_row, a_step, y, y_row, phi, phi_row, K, eps, eps_rows,
                        table_of(state, tl.zeros([], tl.int32) + row, size, before), behind, error, out, rules, sums,
                        room, places, tl.zeros([], tl.int64) + row, n, m, P,
                        FIRST, PANELS, SQUASH, WEIGHTED, EPS_ROWS, BN, PP,
                    )  # fmt: skip


@triton.jit
def answer_row(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    y: tl.tensor, y_row: tl.tensor, phi: tl.tensor, phi_row: tl.tensor, K: tl.tensor, eps: tl.tensor,
    eps_rows: tl.tensor, table: tl.tensor, behind: tl.tensor, error: tl.tensor, out: tl.tensor, rules: tl.tensor,
    sums: tl.tensor, room: tl.tensor, places: tl.tensor, row: tl.tensor, n: tl.tensor, m: tl.tensor, P: tl.tensor,
    FIRST: tl.constexpr, PANELS: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr,
    BN: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    KP: tl.constexpr = PANELS * SLOTS
    p = tl.program_id(0)
    j = tl.arange(0, KP)
    q = tl.arange(0, PANELS)
    ticket = (table + TICKET).to(tl.pointer_type(tl.int32))
    room += p.to(tl.int64) * (3 * KP)
    met = tl.zeros([], tl.int32)
    origin, unit, span = facts_of(table, SQUASH)
    s = slope_back(eps, eps_rows, row, EPS_ROWS) * span
    s_2 = (s * LOG2_E).to(tl.float32)
    per_weight = weight_of_row(a, a_row, a_step, row, n, WEIGHTED, _BLOCK)
    begin, end = share_of(n, P, BN)
    place_all(x, x_row, x_step, row, begin, end, n, origin, unit, places, SQUASH, _BLOCK)
    level = tl.zeros([PANELS], tl.int32) + tl.where(q < (1 << FIRST), FIRST, 0)
    index = tl.where(q < (1 << FIRST), q, 0)
    panels = tl.full([], 1 << FIRST, tl.int32)
    y_wide, step, b = nodes_of(level, index, panels, m, rules, room, PANELS)
    has = b > 0

    # The staircase: for every slot the least place below which there is as much as up to its target.
    mass = tl.cumsum(b, axis=0) - 1e-6 * b
    least, most = tl.full([KP], -0.5, tl.float32), tl.full([KP], 0.5, tl.float32)
    for _bisection in range(_BISECTIONS):
        middle = 0.5 * (least + most)
        below = tl.zeros([KP], tl.float64)
        for start in range(begin, end, BN):
            at = (start + tl.arange(0, BN)).to(tl.int64)
            xh, xl, weight = standing(places, a, a_row, a_step, row, at, n, per_weight, WEIGHTED)
            under = (xh + xl)[:, None] <= middle[None, :]
            below += tl.sum(tl.where(under, weight[:, None], 0.0), axis=0).to(tl.float64)
        below, met = together_one(below, sums, ticket, met, P, KP, PP, False)
        enough = below.to(tl.float32) >= mass
        most = tl.where(enough, middle, most)
        least = tl.where(enough, least, middle)
    base = start_of(most, step, b, has, s)

    way = tl.zeros([KP], tl.float32)
    length = tl.full([], 1.0, tl.float32)
    rise = tl.full([], float("inf"), tl.float32)
    off = tl.full([], 1.0, tl.float32)
    off_rule = tl.full([], 1.0, tl.float32)
    tolerance = tl.full([], 1.0, tl.float32) * _ROUGHLY
    k = 0
    going = True
    while going & (k < _STEPS):
        U = base - (length * way).to(tl.float64) / s
        y_at, yh, yl, Uh, Ul = split(U, y_wide, has)
        c = tl.zeros([KP], tl.float64)
        D = tl.zeros([KP], tl.float64)
        Ly = tl.zeros([KP], tl.float64)
        for start in range(begin, end, BN):
            at = (start + tl.arange(0, BN)).to(tl.int64)
            xh, xl, weight = standing(places, a, a_row, a_step, row, at, n, per_weight, WEIGHTED)
            share = plan_of(xh, xl, y_at, yh, yl, Uh, Ul, s_2)
            part = weight[:, None] * share
            c += agreed_sum(part, axis=0).to(tl.float64)
            D += agreed_sum(part * (1.0 - share), axis=0).to(tl.float64)
            Ly += agreed_sum(part * apart_from_mean(share, y_at, 1), axis=0).to(tl.float64)
        c, D, Ly, met = together(c, D, Ly, sums, ticket, met, P, 3, KP, PP, False)
        rho = (b.to(tl.float64) - c).to(tl.float32)
        off = agreed_sum(tl.abs(rho), axis=0)
        if off > tolerance:
            here = agreed_sum(rho * way, axis=0)
            overshot = here < -0.5 * rise
            if overshot:
                length = length * rise / (rise - here)
            else:
                newton, met = solved(
                    rho, D.to(tl.float32), Ly.to(tl.float32), step, b, 1e-3, places, a, a_row, a_step, row, begin,
                    end, n, per_weight, y_at, yh, yl, Uh, Ul, s_2, sums, ticket, met, P,
                    WEIGHTED, _CG_FORWARD, BN, KP, PP,
                )  # fmt: skip
                newton = tl.where(has, newton - agreed_sum(b * newton, axis=0), 0.0)
                newton = tl.minimum(tl.maximum(newton, -5.0), 5.0)
                climb = agreed_sum(rho * newton, axis=0)
                received = tl.maximum(c.to(tl.float32), 1e-30)
                sinkhorn = tl.where(has, tl.log(tl.where(has, b, 1.0)) - tl.log(received), 0.0)
                newton = tl.where(climb > 0, newton, tl.minimum(tl.maximum(sinkhorn, -20.0), 20.0))
                base = U
                way = newton
                length = tl.full([], 1.0, tl.float32)
                rise = agreed_sum(rho * newton, axis=0)
        else:
            # Column sums are right for these panels; what do the panels get wrong? 4 sum_l (sum_j last_lj p_ij)^2 over
            # what a value gives to a panel: see ``rules``.
            worst = tl.zeros([PANELS], tl.float32)
            for start in range(begin, end, BN):
                at = (start + tl.arange(0, BN)).to(tl.int64)
                xh, xl, weight = standing(places, a, a_row, a_step, row, at, n, per_weight, WEIGHTED)
                share = plan_of(xh, xl, y_at, yh, yl, Uh, Ul, s_2)
                share = tl.reshape(share, [BN, PANELS, SLOTS])
                squares = tl.zeros([BN, PANELS], tl.float32)
                for order in range(6):
                    line = estimating(level, index, panels, m, rules, order, PANELS)
                    coefficient = agreed_sum(share * line, axis=2)
                    squares += coefficient * coefficient
                squares = 4.0 * squares / tl.maximum(agreed_sum(share, axis=2), 1e-30)
                worst = tl.maximum(worst, tl.max(tl.where((at < n)[:, None], squares, 0.0), axis=0))
            spread = tl.reshape(tl.broadcast_to(worst[:, None], [PANELS, SLOTS]), [KP]).to(tl.float64)
            spread, met = together_one(spread, sums, ticket, met, P, KP, PP, True)
            worst = tl.max(tl.reshape(spread, [PANELS, SLOTS]), axis=1).to(tl.float32)
            off_rule = agreed_sum(worst, axis=0)
            if off_rule <= 0.8 * ACCEPTED:
                going = tolerance > _ENOUGH
                tolerance = tl.full([], 1.0, tl.float32) * _ENOUGH
            else:
                _low, count = sizes_of_panels(level, index, m)
                largest = tl.max(worst, axis=0)
                cut = (worst > 0.8 * ACCEPTED / tl.maximum(panels, 8)) & (count > SLOTS) & (q < panels)
                if panels + tl.sum(tl.where(cut, 1, 0), axis=0) > PANELS:
                    cut = cut & (worst > 0.3 * largest)
                new_panels = panels + tl.sum(tl.where(cut, 1, 0), axis=0)
                going = (new_panels <= PANELS) & (new_panels > panels)
                if going:
                    log_b = tl.log(tl.where(has, b, 1.0)).to(tl.float64)
                    G = U + log_b / s
                    old_y, old_slots = y_wide, panels * SLOTS
                    real = with_target(level, index, m, PANELS)
                    level, index, panels = halved(level, index, panels, cut, room.to(tl.pointer_type(tl.int32)), PANELS)
                    y_wide, step, b = nodes_of(level, index, panels, m, rules, room, PANELS)
                    has = b > 0
                    base = continued(G, old_y, y_wide, old_slots, real, room, KP)
                    base = tl.where(has, base - tl.log(tl.where(has, b, 1.0)).to(tl.float64) / s, 0.0)
                    way = tl.zeros([KP], tl.float32)
                    length = tl.full([], 1.0, tl.float32)
                    rise = tl.full([], float("inf"), tl.float32)
        k += 1

    U = base - (length * way).to(tl.float64) / s
    y_at, yh, yl, Uh, Ul = split(U, y_wide, has)
    estimate = tl.maximum(off_rule, off)
    failed = tl.where(estimate <= ACCEPTED, 0, 1)
    at_zero, per_y = line_through(phi, phi_row, y, y_row, row, K)
    for start in range(begin, end, BN):
        at = (start + tl.arange(0, BN)).to(tl.int64)
        xh, xl, weight = standing(places, a, a_row, a_step, row, at, n, per_weight, WEIGHTED)
        share = plan_of(xh, xl, y_at, yh, yl, Uh, Ul, s_2)
        mean = at_zero + per_y * agreed_sum(share * y_at[None, :], axis=1).to(tl.float64)
        mean = tl.where(failed > 0, float("nan"), mean)
        tl.store(out + row * n + at, mean.to(out.dtype.element_ty), mask=at < n)
    # Nobody looks at the error of this row any more when all have come so far.
    met = meet(ticket, met, P)
    if p == 0:
        own = table + behind
        tl.store(error + row, estimate)
        tl.store(table + LATE, tl.full([], 1.0, tl.float32) + failed)
        high = U.to(tl.float32)
        tl.store(own + j, high)
        tl.store(own + KP + j, (U - high.to(tl.float64)).to(tl.float32))
        whole_numbers = (own + 2 * KP).to(tl.pointer_type(tl.int32))
        tl.store(whole_numbers + q, level)
        tl.store(whole_numbers + PANELS + q, index)
        tl.store(whole_numbers + 2 * PANELS, panels)


@triton.jit(do_not_specialize=["R", "n", "m", "P", "x_row", "x_step", "a_row", "a_step", "w_row", "w_step"])
def late_backward(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    w: tl.tensor, w_row: tl.tensor, w_step: tl.tensor, y: tl.tensor, y_row: tl.tensor, phi: tl.tensor,
    phi_row: tl.tensor, K: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, state: tl.tensor, size: tl.tensor,
    before: tl.tensor, behind: tl.tensor, tickets: tl.tensor, apart: tl.tensor, grad: tl.tensor, rules: tl.tensor,
    sums: tl.tensor, room: tl.tensor, places: tl.tensor, R: tl.tensor, n: tl.tensor, m: tl.tensor, P: tl.tensor,
    PANELS: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, BN: tl.constexpr,
    PP: tl.constexpr,
) -> None:  # fmt: skip
    """As ``late_forward``; the counters of rows are ``apart`` singles apart."""
    for first in range(0, R, _ROWS):
        rows = (first + tl.arange(0, _ROWS)).to(tl.int64)
        states = table_of(state, rows, size, before)
        if tl.max(tl.load(states + LATE, mask=rows < R, other=0.0), 0) > 0:
            for row in range(first, tl.minimum(first + _ROWS, R)):
                table = table_of(state, tl.zeros([], tl.int32) + row, size, before)
                if tl.load(table + LATE) > 0:
                    row64 = tl.zeros([], tl.int64) + row
                    pull_row_back(
                        x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, y, y_row, phi, phi_row, K, eps, eps_rows,
                        table, behind, (tickets + row64 * apart).to(tl.pointer_type(tl.int32)), grad, rules, sums, room,
                        places, row64, n, m, P, PANELS, SQUASH, WEIGHTED, EPS_ROWS, BN, PP,
                    )  # fmt: skip


@triton.jit
def pull_row_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    w: tl.tensor, w_row: tl.tensor, w_step: tl.tensor, y: tl.tensor, y_row: tl.tensor, phi: tl.tensor,
    phi_row: tl.tensor, K: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, table: tl.tensor, behind: tl.tensor,
    ticket: tl.tensor, grad: tl.tensor, rules: tl.tensor, sums: tl.tensor, room: tl.tensor, places: tl.tensor,
    row: tl.tensor, n: tl.tensor, m: tl.tensor, P: tl.tensor,
    PANELS: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, BN: tl.constexpr,
    PP: tl.constexpr,
) -> None:  # fmt: skip
    KP: tl.constexpr = PANELS * SLOTS
    p = tl.program_id(0)
    j = tl.arange(0, KP)
    q = tl.arange(0, PANELS)
    room += p.to(tl.int64) * (3 * KP)
    met = tl.zeros([], tl.int32)
    failed = tl.load(table + LATE) > 1.5
    origin, unit, span = facts_of(table, SQUASH)
    slope_x = slope_back(eps, eps_rows, row, EPS_ROWS)
    s = slope_x * span
    s_2 = (s * LOG2_E).to(tl.float32)
    per_weight = weight_of_row(a, a_row, a_step, row, n, WEIGHTED, _BLOCK)
    begin, end = share_of(n, P, BN)
    place_all(x, x_row, x_step, row, begin, end, n, origin, unit, places, SQUASH, _BLOCK)
    own = table + behind
    U = tl.load(own + j).to(tl.float64) + tl.load(own + KP + j).to(tl.float64)
    whole_numbers = (own + 2 * KP).to(tl.pointer_type(tl.int32))
    level, index = tl.load(whole_numbers + q), tl.load(whole_numbers + PANELS + q)
    y_wide, step, b = nodes_of(level, index, tl.load(whole_numbers + 2 * PANELS), m, rules, room, PANELS)
    y_at, yh, yl, Uh, Ul = split(U, y_wide, b > 0)
    _at_zero, per_y = line_through(phi, phi_row, y, y_row, row, K)

    t = tl.zeros([KP], tl.float64)
    D = tl.zeros([KP], tl.float64)
    Ly = tl.zeros([KP], tl.float64)
    for start in range(begin, end, BN):
        at = (start + tl.arange(0, BN)).to(tl.int64)
        xh, xl, weight = standing(places, a, a_row, a_step, row, at, n, per_weight, WEIGHTED)
        share = plan_of(xh, xl, y_at, yh, yl, Uh, Ul, s_2)
        cotangent = load_weight(w, row, at, w_row, w_step, n, True)
        flow = share * apart_from_mean(share, y_at, 1)
        t += agreed_sum(cotangent[:, None] * flow, axis=0).to(tl.float64)
        Ly += agreed_sum(weight[:, None] * flow, axis=0).to(tl.float64)
        D += agreed_sum(weight[:, None] * share * (1.0 - share), axis=0).to(tl.float64)
    t, D, Ly, met = together(t, D, Ly, sums, ticket, met, P, 3, KP, PP, False)
    largest = tl.max(tl.abs(t), axis=0)
    largest = tl.where(largest > 0, largest, 1.0)
    # t is that of places of targets in place of phi, which is ``per_y`` of it.
    multiplier, met = solved(
        (t / largest).to(tl.float32), D.to(tl.float32), Ly.to(tl.float32), step, b, 1e-5, places, a, a_row, a_step,
        row, begin, end, n, per_weight, y_at, yh, yl, Uh, Ul, s_2, sums, ticket, met, P,
        WEIGHTED, _CG_BACKWARD, BN, KP, PP,
    )  # fmt: skip
    multiplier = multiplier * largest.to(tl.float32)

    # What a place receives takes that of its value where that stood.
    for start in range(begin, end, BN):
        at = (start + tl.arange(0, BN)).to(tl.int64)
        xh, xl, weight = standing(places, a, a_row, a_step, row, at, n, per_weight, WEIGHTED)
        share = plan_of(xh, xl, y_at, yh, yl, Uh, Ul, s_2)
        cotangent = load_weight(w, row, at, w_row, w_step, n, True)
        pull = cotangent[:, None] * y_at[None, :] - weight[:, None] * multiplier[None, :]
        pull = pull - agreed_sum(share * pull, axis=1)[:, None]
        g = tl.sum(share * pull * apart_from_mean(share, y_at, 1), axis=1).to(tl.float64) * (slope_x * per_y)
        tl.debug_barrier()
        tl.store(places + at, g.to(tl.float32), mask=at < end)
    tl.debug_barrier()
    total, tilted = tl.zeros([], tl.float64), tl.zeros([], tl.float64)
    if SQUASH != 0:
        for start in range(begin, end, _BLOCK):
            at = (start + tl.arange(0, _BLOCK)).to(tl.int64)
            v, z, place_of = placed_values(x, x_row, x_step, row, at, n, origin, unit, SQUASH)
            g = pulled_back(places, at, end, v, z, place_of, SQUASH)
            total += agreed_sum(g, axis=0)
            tilted += agreed_sum(g * z, axis=0)
        both = tl.where(j == 0, total, tl.where(j == 1, tilted, 0.0))
        both, met = together_one(both, sums, ticket, met, P, KP, PP, False)
        total = tl.sum(tl.where(j == 0, both, 0.0), axis=0)
        tilted = tl.sum(tl.where(j == 1, both, 0.0), axis=0)
        tilted = tl.where(tl.load(table + CONSTANT) > 0.0, 0.0, tilted)
    for start in range(begin, end, _BLOCK):
        at = (start + tl.arange(0, _BLOCK)).to(tl.int64)
        v, z, place_of = placed_values(x, x_row, x_step, row, at, n, origin, unit, SQUASH)
        g = pulled_back(places, at, end, v, z, place_of, SQUASH).to(tl.float32)
        if SQUASH != 0:
            weight = load_weight(a, row, at, a_row, a_step, n, WEIGHTED)
            g = standard_back(g, z.to(tl.float32), weight, v, total, tilted, kept(table + WEIGHT), kept(table + STD))
        tl.store(grad + row * n + at, tl.where(failed, float("nan"), g).to(grad.dtype.element_ty), mask=at < end)


@triton.jit
def pulled_back(
    places: tl.tensor, at: tl.tensor, end: tl.tensor, v: tl.tensor, z: tl.tensor, place_of: tl.tensor,
    SQUASH: tl.constexpr,
) -> Any:  # fmt: skip
    """The cotangent of z (double) from that of the place; infinite values have none."""
    g = tl.load(places + at, mask=(at < end) & (tl.abs(v) < float("inf")), other=0.0).to(tl.float64)
    if SQUASH != 0:
        g = g * slope(z, place_of, SQUASH)
    return g
