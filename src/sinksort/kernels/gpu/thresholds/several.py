"""Rows onto three or four targets, one program a row or several, in Triton: quantiles. Every row is answered.

Unknown are potentials psi_j, in p_ij = softmax_j (psi_j + 2 y_j x~_i / eps). As with two targets, ``balance`` says for
each how far it is from its weight: A_j is what it gets from values that are better off elsewhere, B_j what its own give
away, and left_j = right_j is solved in logarithms. Newton's matrix is that of an electric network, W_jk = sum_i a_i
p_ij p_ik between nodes j and k, and is eliminated without subtractions.

Each equation says that a set of targets gets what it weighs. One of the four targets' equations follows from the other
three, and the one with the largest flow is left out, in whose rounding those of the others could be lost. That is not
enough where hardly any value lies between targets {0, 1} and {2, 3} and many lie inside both pairs: the balance between
the pairs is then smaller than the rounding of the balance inside each of them. So the pair has an equation of its own,
with its own sums, and takes the place of a target's; see ``network``.

That converges in a few steps or, far from the solution, may not. After ``PATIENCE`` of them steps are damped, which
always converges. The semi-dual f is concave, and along a direction d its third derivative is at most delta = max_j d_j
- min_j d_j times its second. So the slope of f along Newton's direction d, lambda^2 at first, has after a step of
length t fallen by no more than lambda^2 (exp(delta t) - 1) / delta, which is less than lambda^2 as long as t is below
t* = log(1 + delta) / delta: f rises all the way to t*, by ((1 + 1 / delta) log(1 + delta) - 1) lambda^2 / delta at
least, and near the solution t* is 1 - delta / 2, which leaves convergence quadratic.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.maths import is_finite, load_single, placed
from .exchange import leave, over_programs
from .passes import PRODUCTS, PSI, STATE
from .row import (
    ENOUGH,
    GONE,
    ROUNDING_OF_SINGLES,
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
from .shares import add17, shares_of_several, sums_of_several

PATIENCE, STEPS = tl.constexpr(16), tl.constexpr(400)
TINY = tl.constexpr(1e-36)  #: conductance of what is not joined


@triton.jit
def swapped(swap: tl.tensor, first: tl.tensor, second: tl.tensor) -> Any:
    """Return both numbers, in the other order where ``swap`` is true."""
    return tl.where(swap, second, first), tl.where(swap, first, second)


@triton.jit
def network(
    r_0: tl.tensor, r_1: tl.tensor, r_2: tl.tensor, r_3: tl.tensor, r_pair: tl.tensor, W_01: tl.tensor,
    W_02: tl.tensor, W_12: tl.tensor, W_03: tl.tensor, W_13: tl.tensor, W_23: tl.tensor, f_0: tl.tensor,
    f_1: tl.tensor, f_2: tl.tensor, f_3: tl.tensor, f_pair: tl.tensor,
) -> Any:  # fmt: skip
    """Return the voltages of nodes 0 to 3 into which the currents r flow, by three of five equations, and which.

    There is an equation for each node and one for the pair of nodes 0 and 1, whose current is ``r_pair``. Any three
    independent ones suffice. The current of an equation is rounded in proportion to the flow f through its boundary,
    so the equations with the smallest flows are taken: that of the node with the largest flow never is, and that of
    the pair is taken if fewer values lie between the two pairs than inside one of them. Nothing but currents is
    subtracted.
    """
    ground = tl.where(f_1 > f_0, 1, 0)
    high = tl.maximum(f_0, f_1)
    ground = tl.where(f_2 > high, 2, ground)
    high = tl.maximum(high, f_2)
    ground = tl.where(f_3 > high, 3, ground)
    # The nodes are sorted such that the ground is node 3, and that of nodes 0 and 1 with the smaller flow is node 0.
    turn = ground < 2
    c_01, c_23 = swapped(turn, W_01, W_23)
    c_03, c_12 = swapped(turn, W_03, W_12)
    c_02, c_13 = W_02, W_13
    i_0, i_2 = swapped(turn, r_0, r_2)
    i_1, i_3 = swapped(turn, r_1, r_3)
    f_0, f_2 = swapped(turn, f_0, f_2)
    f_1, f_3 = swapped(turn, f_1, f_3)
    pair = tl.where(turn, -r_pair, r_pair)
    back = (ground == 0) | (ground == 2)
    i_2, i_3 = swapped(back, i_2, i_3)
    c_02, c_03 = swapped(back, c_02, c_03)
    c_12, c_13 = swapped(back, c_12, c_13)
    first = f_1 < f_0
    i_0, i_1 = swapped(first, i_0, i_1)
    c_02, c_12 = swapped(first, c_02, c_12)
    c_03, c_13 = swapped(first, c_03, c_13)
    by_pair = f_pair < tl.maximum(f_0, f_1)
    # Node 0, then node 1: nodes that are connected to an eliminated node are connected through it.
    per_0 = 1.0 / (c_01 + c_02 + c_03 + TINY)
    t_1, t_2, t_3 = c_01 * per_0, c_02 * per_0, c_03 * per_0
    j_1 = tl.where(by_pair, pair - i_0 * (t_2 + t_3), i_1 + i_0 * t_1)
    j_2 = i_2 + i_0 * t_2
    c_12 += c_02 * t_1
    c_13 += c_03 * t_1
    c_23 += c_02 * t_3
    per_1 = 1.0 / (c_12 + c_13 + TINY)
    d_2 = (j_2 + j_1 * (c_12 * per_1)) / (c_23 + c_13 * (c_12 * per_1) + TINY)
    d_1 = (j_1 + c_12 * d_2) * per_1
    d_0 = (i_0 + c_01 * d_1 + c_02 * d_2) * per_0
    d_3 = d_2 * 0.0
    d_0, d_1 = swapped(first, d_0, d_1)
    d_2, d_3 = swapped(back, d_2, d_3)
    d_0, d_2 = swapped(turn, d_0, d_2)
    d_1, d_3 = swapped(turn, d_1, d_3)
    return d_0, d_1, d_2, d_3, by_pair


@triton.jit
def current(
    out: tl.tensor, into: tl.tensor, share: tl.tensor, held: tl.tensor, whole: tl.tensor, unknown: tl.tensor,
    damped: tl.tensor,
) -> Any:  # fmt: skip
    """Return what Newton's method is to move, the flow through the boundary, and how far it is from its balance.

    A set of targets weighs ``share`` of ``whole``, of which ``unknown`` may be rounding, and ``held`` is the weight of
    the values that are best off in it. Newton's equations are solved in logarithms, but for damped steps. Where no
    flow is seen but weight is missing, the potential moves by some part of the logarithm until a flow is seen.
    """
    flows, apart, left, right, ratio, per_slope = balance(
        out, into, share * whole - held, whole, tl.minimum(share, 1.0 - share) * (whole * unknown)
    )
    moved = tl.where(per_slope > 0.0, -ratio / tl.where(per_slope > 0.0, per_slope, 1.0), -ratio * TINY)
    moved = tl.where(flows, tl.where(damped, -apart, moved), 0.0)
    return moved, tl.maximum(left, right), tl.abs(ratio)


@triton.jit
def potentials_of(
    places: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, n: tl.tensor, row: tl.tensor,
    tiles: tl.tensor, xi: tl.tensor, weight: tl.tensor, least: tl.tensor, most: tl.tensor, b_0: tl.tensor,
    b_1: tl.tensor, b_2: tl.tensor, b_3: tl.tensor, whole: tl.tensor, unknown: tl.tensor, s_1: tl.tensor,
    s_2: tl.tensor, s_3: tl.tensor, lines: tl.tensor, counter: tl.tensor, passed: tl.tensor, G: tl.tensor,
    K: tl.constexpr, REGISTERS: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr, PP: tl.constexpr,
) -> Any:  # fmt: skip
    """psi of targets 1, 2 and 3, where that of target 0 is 0, whether they are good, and how often programs have met.

    All targets but 0 may be none.

    They begin where the hard sort would cut the row.
    """
    FOUR: tl.constexpr = K == 4
    begin_1, begin_2, begin_3 = b_0 * 0.0 - GONE, b_0 * 0.0 - GONE, b_0 * 0.0 - GONE
    if b_1 > 0.0:
        cut, passed = cut_at(
            places, a, a_row, a_step, n, row, tiles, xi, weight, least, most, b_0, b_1 + b_2 + b_3, whole, s_1, lines,
            counter, passed, G, REGISTERS, WEIGHTED, BLOCK, PP,
        )  # fmt: skip
        begin_1 = -s_1 * cut
    if b_2 > 0.0:
        cut, passed = cut_at(
            places, a, a_row, a_step, n, row, tiles, xi, weight, least, most, b_0 + b_1, b_2 + b_3, whole, s_2 - s_1,
            lines, counter, passed, G, REGISTERS, WEIGHTED, BLOCK, PP,
        )  # fmt: skip
        begin_2 = begin_1 - (s_2 - s_1) * cut
    if FOUR:
        if b_3 > 0.0:
            cut, passed = cut_at(
                places, a, a_row, a_step, n, row, tiles, xi, weight, least, most, b_0 + b_1 + b_2, b_3, whole,
                s_3 - s_2, lines, counter, passed, G, REGISTERS, WEIGHTED, BLOCK, PP,
            )  # fmt: skip
            begin_3 = begin_2 - (s_3 - s_2) * cut
    u_1, u_2, u_3 = begin_1, begin_2, begin_3
    farthest = tl.full((), 1.0, tl.float32)
    done = 0
    while (done < STEPS) & (farthest > ENOUGH):
        (
            A_0, A_1, A_2, A_3, B_0, B_1, B_2, B_3, H_0, H_1, H_2, W_01, W_02, W_12, W_03, W_13, W_23, down, up, passed,
        ) = sums_of_several(
            places, a, a_row, a_step, n, row, tiles, xi, weight, u_1, u_2, u_3, s_1, s_2, s_3, whole, lines, counter,
            passed, G, FOUR, REGISTERS, WEIGHTED, BLOCK, PP,
        )  # fmt: skip
        damped = done > PATIENCE
        r_0, f_0, far_0 = current(A_0, B_0, b_0, H_0, whole, unknown, damped)
        r_1, f_1, far_1 = current(A_1, B_1, b_1, H_1, whole, unknown, damped)
        r_2, f_2, far_2 = current(A_2, B_2, b_2, H_2, whole, unknown, damped)
        far = tl.maximum(tl.maximum(far_0, far_1), far_2)
        r_3, f_3, r_pair, f_pair, far_pair = r_2 * 0.0, f_2 * 0.0, r_2 * 0.0, tl.maximum(f_0, f_1), far * 0.0
        if FOUR:
            r_3, f_3, far_3 = current(A_3, B_3, b_3, whole - H_0 - H_1 - H_2, whole, unknown, damped)
            far = tl.maximum(far, far_3)
            r_pair, f_pair, far_pair = current(down, up, b_0 + b_1, H_0 + H_1, whole, unknown, damped)
        d_0, d_1, d_2, d_3, by_pair = network(
            r_0, r_1, r_2, r_3, r_pair, W_01, W_02, W_12, W_03, W_13, W_23, f_0, f_1, f_2, f_3, f_pair
        )
        far = tl.where(by_pair, tl.maximum(far, far_pair), far)
        d_1 = tl.where(b_1 > 0.0, d_1 - d_0, 0.0)
        d_2 = tl.where(b_2 > 0.0, d_2 - d_0, 0.0)
        d_3 = tl.where(b_3 > 0.0, d_3 - d_0, 0.0)
        above = tl.maximum(tl.maximum(tl.maximum(d_1, d_2), d_3), 0.0)
        below = tl.minimum(tl.minimum(tl.minimum(d_1, d_2), d_3), 0.0)
        farthest = above - below
        # The change from each target to the next is limited by itself: one that is too large says nothing of others.
        limit = 2.0 * far
        e_1 = tl.minimum(tl.maximum(d_1, -limit), limit)
        e_2 = e_1 + tl.minimum(tl.maximum(d_2 - d_1, -limit), limit)
        e_3 = e_2 + tl.minimum(tl.maximum(d_3 - d_2, -limit), limit)
        t = tl.log(1.0 + farthest) / tl.maximum(farthest, 1e-30)
        d_1, d_2, d_3 = tl.where(damped, t * d_1, e_1), tl.where(damped, t * d_2, e_2), tl.where(damped, t * d_3, e_3)
        d_2, d_3 = tl.where(b_2 > 0.0, d_2, 0.0), tl.where(b_3 > 0.0, d_3, 0.0)
        # Damped steps begin anew: from where nothing has gone wrong yet.
        again = (done == PATIENCE) & (farthest > ENOUGH)
        u_1 = tl.where(again, begin_1, u_1 + d_1.to(tl.float64))
        u_2 = tl.where(again, begin_2, u_2 + d_2.to(tl.float64))
        u_3 = tl.where(again, begin_3, u_3 + d_3.to(tl.float64))
        done += 1
    return u_1, u_2, u_3, farthest <= ENOUGH, passed


@triton.jit
def _next(after: tl.tensor, b_0: tl.tensor, b_1: tl.tensor, b_2: tl.tensor, b_3: tl.tensor) -> Any:
    """The first target after another that weighs anything, or 4."""
    here = tl.where((after < 3) & (b_3 > 0.0), 3, 4)
    here = tl.where((after < 2) & (b_2 > 0.0), 2, here)
    here = tl.where((after < 1) & (b_1 > 0.0), 1, here)
    return tl.where((after < 0) & (b_0 > 0.0), 0, here)


@triton.jit
def _chosen(slot: tl.tensor, v_0: tl.tensor, v_1: tl.tensor, v_2: tl.tensor, v_3: tl.tensor) -> Any:
    return tl.where(slot == 0, v_0, tl.where(slot == 1, v_1, tl.where(slot == 2, v_2, v_3)))


@triton.jit(do_not_specialize=["G"])
def several(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, y: tl.tensor,
    y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor, phi: tl.tensor, phi_row: tl.tensor, eps: tl.tensor,
    eps_rows: tl.tensor, out: tl.tensor, state: tl.tensor, error: tl.tensor, places: tl.tensor, lines: tl.tensor,
    counters: tl.tensor, n: tl.tensor, each: tl.tensor, tiles: tl.tensor, G: tl.tensor, K: tl.constexpr,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, PUSH: tl.constexpr, REGISTERS: tl.constexpr,
    BLOCK: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    """All of it for one row, by programs as in ``thresholds.two``. Targets that weigh nothing go last."""
    FOUR: tl.constexpr = K == 4
    row, x, a, places, out, own, lines, counter = part_of_row(
        x, x_row, x_step, a, a_row, a_step, places, out, n, each, lines, counters, G, PUSH, PP
    )
    here = row * 0
    passed = row * 0
    of_y, of_b = y + row.to(tl.int64) * y_row, b + row.to(tl.int64) * b_row
    a_0, a_1 = tl.load(of_b).to(tl.float64), tl.load(of_b + 1).to(tl.float64)
    a_2 = tl.load(of_b + 2).to(tl.float64)
    a_3 = a_2 * 0.0
    if FOUR:
        a_3 = tl.load(of_b + 3).to(tl.float64)
    slot_0 = _next(row * 0 - 1, a_0, a_1, a_2, a_3)
    slot_1 = _next(slot_0, a_0, a_1, a_2, a_3)
    slot_2 = _next(slot_1, a_0, a_1, a_2, a_3)
    slot_3 = _next(slot_2, a_0, a_1, a_2, a_3)
    # The heaviest is what the others leave.
    heaviest = tl.maximum(tl.maximum(a_0, a_1), tl.maximum(a_2, a_3))
    which = tl.where(a_0 == heaviest, 0, tl.where(a_1 == heaviest, 1, tl.where(a_2 == heaviest, 2, 3)))
    rest = tl.where(which == 0, 0.0, a_0) + tl.where(which == 1, 0.0, a_1)
    rest += tl.where(which == 2, 0.0, a_2) + tl.where(which == 3, 0.0, a_3)
    a_0, a_1 = tl.where(which == 0, 1.0 - rest, a_0), tl.where(which == 1, 1.0 - rest, a_1)
    a_2, a_3 = tl.where(which == 2, 1.0 - rest, a_2), tl.where(which == 3, 1.0 - rest, a_3)
    b_0, b_1 = _chosen(slot_0, a_0, a_1, a_2, a_3), _chosen(slot_1, a_0, a_1, a_2, a_3)
    b_2, b_3 = _chosen(slot_2, a_0, a_1, a_2, a_3), _chosen(slot_3, a_0, a_1, a_2, a_3)
    b_1, b_2 = tl.where(slot_1 < 4, b_1, 0.0), tl.where(slot_2 < 4, b_2, 0.0)
    b_3 = tl.where(slot_3 < 4, b_3, 0.0)
    slope = slope_of(eps, eps_rows, row, EPS_ROWS)
    y_0 = tl.load(of_y + tl.minimum(slot_0, K - 1)).to(tl.float64)
    s_1 = slope * (tl.load(of_y + tl.minimum(slot_1, K - 1)).to(tl.float64) - y_0)
    s_2 = slope * (tl.load(of_y + tl.minimum(slot_2, K - 1)).to(tl.float64) - y_0)
    s_3 = slope * (tl.load(of_y + tl.minimum(slot_3, K - 1)).to(tl.float64) - y_0)
    mean, std, constant, total, least, most, poison, whole, passed = row_facts_of(
        x, x_row, x_step, a, a_row, a_step, tl.load(of_y).to(tl.float32), tl.load(of_y + K - 1).to(tl.float32), own,
        here, tiles, lines, counter, passed, G, SQUASH, WEIGHTED, BLOCK, PP,
    )  # fmt: skip
    xi, weight = placed_row(
        x, x_row, x_step, a, a_row, a_step, places, own, here, tiles, mean, std, most, REGISTERS, SQUASH, WEIGHTED,
        BLOCK,
    )  # fmt: skip
    u_1, u_2, u_3, good = poison, poison, poison, poison != 0.0
    if poison == 0.0:
        unknown = whole * 0.0 + (ROUNDING_OF_SINGLES if b.dtype.element_ty == tl.float32 else 0.0)
        u_1, u_2, u_3, good, passed = potentials_of(
            places, a, a_row, a_step, own, here, tiles, xi, weight, least, most, b_0, b_1, b_2, b_3, whole, unknown,
            s_1, s_2, s_3, lines, counter, passed, G, K, REGISTERS, WEIGHTED, BLOCK, PP,
        )  # fmt: skip
    poison = tl.where(good, poison, float("nan"))
    if not PUSH:
        of_phi = phi + row.to(tl.int64) * phi_row
        phi_0 = (tl.load(of_phi + tl.minimum(slot_0, K - 1)).to(tl.float64) + poison).to(tl.float32)
        phi_1 = tl.load(of_phi + tl.minimum(slot_1, K - 1)).to(tl.float32)
        phi_2 = tl.load(of_phi + tl.minimum(slot_2, K - 1)).to(tl.float32)
        phi_3 = tl.load(of_phi + tl.minimum(slot_3, K - 1)).to(tl.float32)
    S_0 = tl.zeros((BLOCK,), tl.float32)
    S_1, S_2, S_3, V_0, V_1, V_2, V_3 = S_0, S_0, S_0, S_0, S_0, S_0, S_0
    W_01, W_02, W_12, W_03, W_13, W_23, beyond = S_0, S_0, S_0, S_0, S_0, S_0, S_0
    for tile in range(tiles):
        at = places_in(tile, BLOCK)
        xi, weight = tile_of(places, a, a_row, a_step, own, here, tile, xi, weight, REGISTERS, WEIGHTED, BLOCK)
        p_0, p_1, p_2, p_3, _best_0, _best_1, _best_2, _others = shares_of_several(
            xi, u_1, u_2, u_3, s_1, s_2, s_3, FOUR
        )
        w = weight.to(tl.float32)
        q_0, q_1, q_2, q_3 = p_0 * w, p_1 * w, p_2 * w, p_3 * w
        W_01 += q_0 * p_1
        W_02 += q_0 * p_2
        W_12 += q_1 * p_2
        if FOUR:
            W_03 += q_0 * p_3
            W_13 += q_1 * p_3
            W_23 += q_2 * p_3
        if PUSH:
            v = load_single(x, here, at, x_row, x_step, own)
            _xi, _slope, z_double = placed(v.to(tl.float64), mean, std, most, SQUASH, False)
            z = tl.where(is_finite(v) & (w > 0.0), z_double, 0.0).to(tl.float32)
            S_0 += q_0
            S_1 += q_1
            S_2 += q_2
            V_0 += q_0 * z
            V_1 += q_1 * z
            V_2 += q_2 * z
            if FOUR:
                S_3 += q_3
                V_3 += q_3 * z
            beyond += tl.where((w > 0.0) & (is_finite(v) == 0), v, 0.0)
        else:
            value = p_0 * phi_0 + p_1 * phi_1 + p_2 * phi_2
            if FOUR:
                value += p_3 * phi_3
            tl.store(out + at, value.to(out.dtype.element_ty), mask=at < own)
    # Sums in the places of others: nobody cares which is which.
    V_0_, V_1_, V_2_, V_3_, S_0_, S_1_, S_2_, S_3_, beyond_, zero, none, w_01, w_02, w_12, w_03, w_13, w_23 = tl.reduce(
        (V_0, V_1, V_2, V_3, S_0, S_1, S_2, S_3, beyond, W_01, W_01, W_01, W_02, W_12, W_03, W_13, W_23), 0, add17
    )
    if PP > 1:
        (
            V_0_, V_1_, V_2_, V_3_, S_0_, S_1_, S_2_, S_3_, beyond_, zero, none, w_01, w_02, w_12, w_03, w_13, w_23,
            _17, _18, passed,
        ) = over_programs(
            V_0_, V_1_, V_2_, V_3_, S_0_, S_1_, S_2_, S_3_, beyond_, zero, none, w_01, w_02, w_12, w_03, w_13, w_23,
            zero, zero, lines, counter, passed, G, 17, PP,
        )  # fmt: skip
    unit = tl.full((), 1.0, tl.float64)
    if not WEIGHTED:
        unit = unit / n
    # All programs of a row write the same state.
    mine = state + row.to(tl.int64) * STATE
    keep_facts(mine, mean, std, constant, total, most)
    # State and answer by slots; those without a target have 0.
    k = tl.arange(0, 4)
    i, j = k[:, None], k[None, :]
    first, second = tl.minimum(i, j), tl.maximum(i, j)
    psi = tl.zeros((4,), tl.float64) + poison
    psi = tl.where(k == slot_1, u_1, psi)
    psi = tl.where(k == slot_2, u_2, psi)
    psi = tl.where(k == slot_3, u_3, psi)
    tl.store(mine + PSI + k, psi)
    W = tl.where((first == slot_0) & (second == slot_1), w_01, 0.0)
    W = tl.where((first == slot_0) & (second == slot_2), w_02, W)
    W = tl.where((first == slot_0) & (second == slot_3), w_03, W)
    W = tl.where((first == slot_1) & (second == slot_2), w_12, W)
    W = tl.where((first == slot_1) & (second == slot_3), w_13, W)
    W = tl.where((first == slot_2) & (second == slot_3), w_23, W)
    tl.store(mine + PRODUCTS + 4 * i + j, W.to(tl.float64) * unit)
    tl.store(error + row, 0.0)
    if PUSH:
        S = tl.where(k == slot_0, S_0_, tl.where(k == slot_1, S_1_, tl.where(k == slot_2, S_2_, S_3_)))
        V = tl.where(k == slot_0, V_0_, tl.where(k == slot_1, V_1_, tl.where(k == slot_2, V_2_, V_3_)))
        there = (k == slot_0) | (k == slot_1) | (k == slot_2) | (k == slot_3)
        value = mean + poison + std * (V / tl.where(S > 0.0, S, 1.0)).to(tl.float64)
        value = tl.where(there, value, 0.0) + beyond_
        tl.store(out + row.to(tl.int64) * K + k, value.to(tl.float32), mask=k < K)
    if PP > 1:
        leave(counter, G)
