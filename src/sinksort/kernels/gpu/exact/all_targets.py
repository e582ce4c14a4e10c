"""Rows that a matrix of 128 targets cannot answer: all their targets, without a matrix.

These are rows whose values leave gaps, so that a rule of few nodes does not see the edges of the plan, plans that are
nearly hard, whose gradients need double precision, and problems of more than 128 targets. One program a row; programs
of rows that were answered return at once. The method is that of ``exact.matrix``, but W is never formed: a product with
L is one more pass over the plan, of which a Newton step needs two to six thanks to the preconditioner. With F64 all
arithmetic is in double precision.

Here are also the plans that are answered as such (``logs``), all of them in double precision: logarithms see how a plan
joins parts that it hardly joins, and lambda is as large as these links are weak.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..engine.laplacian import first_way, go_on, limited, path_of
from ..engine.parts import (
    GIVEN,
    LOG2_E,
    NOWHERE,
    NUMBERS,
    apart_from_mean,
    exact_boundaries,
    exponents_of,
    halves,
    load_targets,
    load_values,
    load_weights,
    moments,
    on_targets,
    on_values,
    place,
    potential_halves,
    shares,
    slope_of_pairs,
    start_of,
    store_logs,
    through_moments,
    uneven,
)
from ..engine.state import exponent_of, is_rejected, load_potential, store_facts, store_potential, store_rejected
from ..engine.sums import agreed_sum
from .matrix import ACCEPTED, store_averages

PULL, PUSH, LOGS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  #: ways to read a plan
_STEPS, _PATIENCE = tl.constexpr(100), tl.constexpr(24)  #: of Newton's method, and before its steps are damped
#: Double precision leaves this, times s, of the column sums, where s is large: one value may be far from all others.
_ROUNDING = tl.constexpr(4e-17)
_FAINT = tl.constexpr(1e-13)  #: weight of a target, relative to the largest, that is less than links which are none
#: s from which what is kept of potentials is seen in gradients: of ranks, and of sums of values, much of which cancels.
_TOO_FINE, _TOO_FINE_TO_ADD = tl.constexpr(4e11), tl.constexpr(4e9)


@triton.jit
def all_targets(
    y_ptr: tl.tensor, b_ptr: tl.tensor, K: tl.tensor, m: tl.tensor, GRID: tl.constexpr, BK: tl.constexpr
) -> tl.tensor:
    """As ``load_targets``: those given, or with GRID the m that the nodes of a rule stand for."""
    if GRID:
        j = tl.arange(0, BK)
        inside = j < m
        between = 1.0 / tl.maximum(m - 1, 1).to(tl.float64)
        at = tl.where(inside & (m > 1), j.to(tl.float64) * between - 0.5, 0.0)
        step = tl.where(j + 1 < m, between, 0.0)
        b = tl.where(inside, 1.0 / m.to(tl.float64), 0.0).to(tl.float32)
        low = between * 0.0
        high = tl.where(m > 1, 1.0, 0.0).to(tl.float64)
        scale = between * 0.0 + 1.0
        has = inside
    else:
        at, step, b, has, low, high, scale = load_targets(y_ptr, b_ptr, K, BK)
    return at, step, b, has, low, high, scale


@triton.jit
def phi_of(
    phi_ptr: tl.tensor, y_ptr: tl.tensor, at: tl.tensor, j: tl.tensor, K: tl.tensor,
    GRID: tl.constexpr, DT: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """phi at all targets: as given, or by GRID as the affine function through its first and last node."""
    if GRID:
        y_first, y_last = tl.load(y_ptr).to(tl.float64), tl.load(y_ptr + K - 1).to(tl.float64)
        first, last = tl.load(phi_ptr).to(tl.float64), tl.load(phi_ptr + K - 1).to(tl.float64)
        phi = (first + (last - first) / (y_last - y_first) * (at + 0.5 - y_first)).to(DT)
    else:
        phi = tl.load(phi_ptr + j, mask=j < K, other=0.0).to(DT)
    return phi


@triton.jit
def split(U: tl.tensor, at: tl.tensor, has: tl.tensor, F64: tl.constexpr) -> tl.tensor:
    """y and U as ``shares`` wants them."""
    if F64:
        yh, yl = at, at
        Uh = tl.where(has, U, NOWHERE)
        Ul = Uh
    else:
        yh, yl = halves(at)
        Uh, Ul = potential_halves(U, has)
    return yh, yl, Uh, Ul


@triton.jit
def plan_of(
    x_ptr: tl.tensor, a_ptr: tl.tensor, i: tl.tensor, N: tl.tensor, x_col: tl.tensor, a_col: tl.tensor,
    origin: tl.tensor, unit: tl.tensor, y: tl.tensor, yh: tl.tensor, yl: tl.tensor, Uh: tl.tensor, Ul: tl.tensor,
    s: tl.tensor, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, TA: tl.constexpr, F64: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """z (0 where x is infinite), weights and shares of values i."""
    x = load_values(x_ptr, i, N, x_col)
    z, at = place(x, origin, unit, SQUASH, tl.float64)
    z = tl.where(tl.abs(x) < float("inf"), z, 0.0)
    if F64:
        p = shares(at, at, y, yh, yl, Uh, Ul, s, TA, True)
        if WEIGHTED:
            a = load_weights(a_ptr, i, N, a_col, WEIGHTED).to(tl.float64)
        else:
            a = tl.where(i < N, 1.0 / N.to(tl.float64), 0.0)
    else:
        z = z.to(tl.float32)
        xh, xl = halves(at)
        p = shares(xh, xl, y, yh, yl, Uh, Ul, s, TA, False)
        a = load_weights(a_ptr, i, N, a_col, WEIGHTED)
    return z, a, p


@triton.jit
def solve_by_passes(
    r: tl.tensor, D: tl.tensor, Ly: tl.tensor, step: tl.tensor, b: tl.tensor, accuracy: tl.tensor,
    x_ptr: tl.tensor, a_ptr: tl.tensor, N: tl.tensor, x_col: tl.tensor, a_col: tl.tensor, origin: tl.tensor,
    unit: tl.tensor, y: tl.tensor, yh: tl.tensor, yl: tl.tensor, Uh: tl.tensor, Ul: tl.tensor, s: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, TA: tl.constexpr, F64: tl.constexpr,
    MOST: tl.constexpr, BN: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """``laplacian_solve`` where each product with L is a pass over the plan."""
    inverse_D, resistance = path_of(Ly, step, D, 1e-13 if F64 else 1e-6)
    r, way, rz = first_way(r, inverse_D, resistance, b)
    out = r * 0.0
    enough = rz * accuracy * accuracy
    k = 0
    while (k < MOST) & (rz > enough):
        Lw = r * 0.0
        for start in range(0, N, BN):
            _, a, p = plan_of(
                x_ptr, a_ptr, start + tl.arange(0, BN), N, x_col, a_col, origin, unit, y, yh, yl, Uh, Ul, s,
                SQUASH, WEIGHTED, TA, F64
            )  # fmt: skip
            Lw += agreed_sum(on_values(a, TA) * p * apart_from_mean(p, way, TA), axis=1 - TA)
        # Where the plan falls apart, rounding decides what flows between its parts: see ``bridged``.
        Lw += (1e-13 if F64 else 1e-7) * b * (way - agreed_sum(b * way, axis=0))
        out, r, way, rz = go_on(out, r, way, rz, Lw, inverse_D, resistance)
        k += 1
    return out


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=GIVEN)
def forward(
    x_ptr: tl.tensor, a_ptr: tl.tensor, y_ptr: tl.tensor, b_ptr: tl.tensor, phi_ptr: tl.tensor, eps_ptr: tl.tensor,
    out_ptr: tl.tensor, state_ptr: tl.tensor, error_ptr: tl.tensor,
    eps: tl.tensor, N: tl.tensor, K: tl.tensor, m: tl.tensor, S: tl.tensor, U_at: tl.tensor,
    x_row: tl.tensor, x_col: tl.tensor, a_row: tl.tensor, a_col: tl.tensor, y_row: tl.tensor, b_row: tl.tensor,
    phi_row: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, READ: tl.constexpr, GRID: tl.constexpr,
    ALWAYS: tl.constexpr, F64: tl.constexpr, TA: tl.constexpr,
    BLOCK_N: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
) -> None:  # fmt: skip
    """U_at: how far behind the facts of a row its potentials begin, see ``rows.state_layout``."""
    row = tl.program_id(0).to(tl.int64)
    if not ALWAYS:
        if tl.load(error_ptr + row) <= ACCEPTED:  # NaN is late: rows that hold NaN have an error of 0
            store_rejected(state_ptr + row * S, 0)
            return
    DT: tl.constexpr = tl.float64 if F64 else tl.float32
    x_ptr += row * x_row
    a_ptr += row * a_row
    state_ptr += row * S
    y_ptr += row * y_row
    phi_ptr += row * phi_row
    if EPS_ROWS:
        eps = tl.load(eps_ptr + row)
    j = tl.arange(0, BK)
    y_wide, step, b, has, y_low, y_high, y_scale = all_targets(y_ptr, b_ptr + row * b_row, K, m, GRID, BK)
    origin, unit, spread, bad = moments(x_ptr, a_ptr, N, x_col, a_col, y_low, y_high, SQUASH, WEIGHTED, BLOCK_N)
    s = slope_of_pairs(unit, y_scale, eps, SQUASH)
    s_2 = (s * LOG2_E).to(DT)
    boundaries = exact_boundaries(
        x_ptr, a_ptr, N, x_col, a_col, origin, unit, tl.cumsum(b, axis=0), SQUASH, WEIGHTED, DT, BLOCK_N, 16, BK
    )
    step = step.to(DT)
    base = start_of(boundaries, step, b, has, s)
    y = y_wide.to(DT)
    b = b.to(DT)
    if F64:
        b = b / agreed_sum(b, axis=0)
        if WEIGHTED:  # single precision has left their sum off by more than the tolerance
            b = b * agreed_sum(load_weights(a_ptr, tl.arange(0, BLOCK_N), N, a_col, WEIGHTED).to(tl.float64), axis=0)
    way = tl.zeros([BK], DT)
    length = tl.full([], 1.0, DT)
    rise = tl.full([], float("inf"), DT)
    tolerance = tl.full([], 1e-10 if F64 else 2e-6, DT)
    if F64:  # what the lightest target gets is right to five digits, too
        tolerance = tl.minimum(tolerance, tl.maximum(1e-5 * tl.min(tl.where(has, b, 1.0), axis=0), 1e-15))
        tolerance = tl.maximum(tolerance, tl.minimum(_ROUNDING * s, 1e-6))
    k = 0
    going = True
    while going & (k < _STEPS):
        yh, yl, Uh, Ul = split(base - (length * way).to(tl.float64) / s, y_wide, has, F64)
        c = tl.zeros([BK], DT)
        D = tl.zeros([BK], DT)
        Ly = tl.zeros([BK], DT)
        for start in range(0, N, BN):
            _, a, p = plan_of(
                x_ptr, a_ptr, start + tl.arange(0, BN), N, x_col, a_col, origin, unit, y, yh, yl, Uh, Ul, s_2,
                SQUASH, WEIGHTED, TA, F64
            )  # fmt: skip
            P = on_values(a, TA) * p
            c += agreed_sum(P, axis=1 - TA)
            D += agreed_sum(P * (1.0 - p), axis=1 - TA)
            Ly += agreed_sum(P * apart_from_mean(p, y, TA), axis=1 - TA)
        rho = b - c
        going = agreed_sum(tl.abs(rho), axis=0) > tolerance
        if going:
            here = agreed_sum(rho * way, axis=0)
            overshot = (here < -0.5 * rise) & (k < _PATIENCE)
            if overshot:
                length = length * rise / (rise - here)
            else:
                newton = solve_by_passes(
                    rho, D, Ly, step, b, 1e-3, x_ptr, a_ptr, N, x_col, a_col, origin, unit, y, yh, yl, Uh, Ul,
                    s_2, SQUASH, WEIGHTED, TA, F64, 30, BN
                )  # fmt: skip
                if k < _PATIENCE:
                    newton = limited(newton, has)
                newton = tl.where(has, newton - agreed_sum(b * newton, axis=0), 0.0)
                climb = agreed_sum(rho * newton, axis=0)
                sinkhorn = tl.where(has, tl.log(tl.where(has, b, 1.0)) - tl.log(tl.maximum(c, 1e-30)), 0.0)
                newton = tl.where(climb > 0, newton, tl.minimum(tl.maximum(sinkhorn, -20.0), 20.0))
                base = base - (length * way).to(tl.float64) / s
                way = newton
                length = tl.full([], 1.0, DT)
                if k >= _PATIENCE:  # a damped step always climbs, see ``thresholds.several``
                    farthest = tl.max(way, axis=0) - tl.min(way, axis=0)
                    length = tl.where(farthest > 0.0, tl.log(1.0 + farthest) / farthest, length)
                rise = agreed_sum(rho * newton, axis=0)
        k += 1

    U = base - (length * way).to(tl.float64) / s
    yh, yl, Uh, Ul = split(U, y_wide, has, F64)
    phi = phi_of(phi_ptr, y_ptr, y_wide, j, K, GRID, DT)
    c = tl.zeros([BK], DT)
    sums = tl.zeros([BK], DT)
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        z, a, p = plan_of(
            x_ptr, a_ptr, i, N, x_col, a_col, origin, unit, y, yh, yl, Uh, Ul, s_2, SQUASH, WEIGHTED, TA, F64
        )  # fmt: skip
        c += agreed_sum(on_values(a, TA) * p, axis=1 - TA)
        if READ == PUSH:
            sums += agreed_sum(p * on_values(a * z, TA), axis=1 - TA)
        elif READ == LOGS:
            store_logs(out_ptr + row * N * K, x_ptr, i, N, K, x_col, origin, unit, y, Uh, has, s, bad, SQUASH, BK)
        else:
            mean = agreed_sum(p * on_targets(phi, TA), axis=TA)
            mean = tl.where(bad > 0, float("nan"), mean)
            tl.store(out_ptr + row * N + i, mean.to(tl.float32), mask=i < N)
    error = agreed_sum(tl.abs(b - c), axis=0)
    failed = tl.where(error <= ACCEPTED, 0, 1)
    bad = tl.maximum(bad, failed)
    if READ == PUSH:
        store_averages(
            out_ptr + row * K, x_ptr, a_ptr, c, sums, origin, unit, bad, has, N, K, x_col, a_col, WEIGHTED, BLOCK_N, BK
        )
    else:
        if failed > 0:
            tl.debug_barrier()
            i = tl.arange(0, BLOCK_N)
            nothing = tl.full([BLOCK_N], float("nan"), tl.float32)
            if READ == LOGS:
                for k in range(K):
                    tl.store(out_ptr + (row * N + i) * K + k, nothing, mask=i < N)
            else:
                tl.store(out_ptr + row * N + i, nothing, mask=i < N)
    tl.store(error_ptr + row, error.to(tl.float32))
    store_facts(state_ptr, origin, unit, spread, bad)
    store_rejected(state_ptr, 1)
    store_potential(state_ptr, state_ptr + U_at, U, exponent_of(s), j, m, has)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=GIVEN)
def backward(
    x_ptr: tl.tensor, a_ptr: tl.tensor, y_ptr: tl.tensor, b_ptr: tl.tensor, phi_ptr: tl.tensor, w_ptr: tl.tensor,
    eps_ptr: tl.tensor, state_ptr: tl.tensor, partial_ptr: tl.tensor, direct_ptr: tl.tensor, grad_ptr: tl.tensor,
    eps: tl.tensor, N: tl.tensor, K: tl.tensor, m: tl.tensor, S: tl.tensor, U_at: tl.tensor,
    x_row: tl.tensor, x_col: tl.tensor, a_row: tl.tensor, a_col: tl.tensor, y_row: tl.tensor, b_row: tl.tensor,
    phi_row: tl.tensor, w_row: tl.tensor, w_col: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, READ: tl.constexpr, GRID: tl.constexpr,
    F64: tl.constexpr, TA: tl.constexpr, BLOCK_N: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    state_ptr += row * S
    if not is_rejected(state_ptr):
        return
    DT: tl.constexpr = tl.float64 if F64 else tl.float32
    x_ptr += row * x_row
    a_ptr += row * a_row
    w_ptr += row * w_row
    y_ptr += row * y_row
    phi_ptr += row * phi_row
    partial_ptr += row * N
    direct_ptr += row * N  # for push only
    if EPS_ROWS:
        eps = tl.load(eps_ptr + row)
    j = tl.arange(0, BK)
    y_wide, step, b, has, _low, _high, y_scale = all_targets(y_ptr, b_ptr + row * b_row, K, m, GRID, BK)
    b = b.to(DT)
    y = y_wide.to(DT)
    origin, unit = tl.load(state_ptr), tl.load(state_ptr + 1)
    s = slope_of_pairs(unit, y_scale, eps, SQUASH)
    s_2 = (s * LOG2_E).to(DT)
    yh, yl, Uh, Ul = split(load_potential(state_ptr, state_ptr + U_at, j, m, has), y_wide, has, F64)
    if READ == PUSH:
        phi = tl.load(w_ptr + j * w_col, mask=has, other=0.0).to(DT) / tl.where(has, b, 1.0)
    else:
        phi = phi_of(phi_ptr, y_ptr, y_wide, j, K, GRID, DT)

    t = tl.zeros([BK], DT)
    D = tl.zeros([BK], DT)
    Ly = tl.zeros([BK], DT)
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        z, a, p = plan_of(
            x_ptr, a_ptr, i, N, x_col, a_col, origin, unit, y, yh, yl, Uh, Ul, s_2, SQUASH, WEIGHTED, TA, F64
        )  # fmt: skip
        if READ == LOGS:
            C, whole = exponents_of(w_ptr, i, has, N, K, BK)
            t += agreed_sum(C - p * on_values(whole, TA), axis=1 - TA)
        else:
            w = pulls_of(w_ptr, a, z, i, N, w_col, READ, DT)
            t += agreed_sum(on_values(w, TA) * p * apart_from_mean(p, phi, TA), axis=1 - TA)
        P = on_values(a, TA) * p
        D += agreed_sum(P * (1.0 - p), axis=1 - TA)
        Ly += agreed_sum(P * apart_from_mean(p, y, TA), axis=1 - TA)
    largest = tl.max(tl.abs(t), axis=0)
    largest = tl.where(largest > 0, largest, 1.0)
    wanted: tl.constexpr = (1e-10 if READ == LOGS else 1e-7) if F64 else 1e-5
    accuracy = tl.full([], wanted, DT)
    if READ == PUSH:  # lambda of a target is as large as it is light, and all but its part of a wide row cancels
        lightest = uneven(b, has & (phi != 0))
        smallest = tl.sqrt(tl.minimum(lightest, 1.0).to(DT))
        if SQUASH == 0:
            smallest = smallest * tl.minimum(tl.sqrt(eps + unit * 0.0) / unit, 1.0).to(DT)
        accuracy = tl.maximum(accuracy * smallest, 1e-15)
    potential = largest * solve_by_passes(
        t / largest, D, Ly, step.to(DT), b, accuracy, x_ptr, a_ptr, N, x_col, a_col, origin, unit,
        y, yh, yl, Uh, Ul, s_2, SQUASH, WEIGHTED, TA, F64, 100, BN
    )  # fmt: skip
    # Rather no gradient than a wrong one.
    finest: tl.constexpr = _TOO_FINE if READ == PULL else _TOO_FINE_TO_ADD
    known = s <= finest
    if READ == PUSH:
        known = known & (lightest > _FAINT)
    potential = tl.where(known, potential, float("nan"))

    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        z, a, p = plan_of(
            x_ptr, a_ptr, i, N, x_col, a_col, origin, unit, y, yh, yl, Uh, Ul, s_2, SQUASH, WEIGHTED, TA, F64
        )  # fmt: skip
        if READ == LOGS:
            C, _ = exponents_of(w_ptr, i, has, N, K, BK)
            pull = C - on_values(a, TA) * p * apart_from_mean(p, potential, TA)
            g = agreed_sum(pull * apart_from_mean(p, y, TA), axis=TA) * s.to(DT)
        else:
            w = pulls_of(w_ptr, a, z, i, N, w_col, READ, DT)
            pull = on_values(w, TA) * on_targets(phi, TA) - on_values(a, TA) * on_targets(potential, TA)
            pull = pull - on_values(agreed_sum(p * pull, axis=TA), TA)
            g = agreed_sum(p * pull * apart_from_mean(p, y, TA), axis=TA) * s.to(DT)
        tl.store(partial_ptr + i, g.to(tl.float32), mask=i < N)
        if READ == PUSH:
            direct = a * agreed_sum(p * on_targets(phi, TA), axis=TA)
            tl.store(direct_ptr + i, direct.to(tl.float32), mask=i < N)
    tl.debug_barrier()
    through_moments(
        x_ptr, a_ptr, state_ptr, partial_ptr, direct_ptr, grad_ptr + row * N, N, x_col, a_col,
        SQUASH, WEIGHTED, READ == PUSH, BLOCK_N
    )  # fmt: skip


@triton.jit
def pulls_of(
    w_ptr: tl.tensor, a: tl.tensor, z: tl.tensor, i: tl.tensor, N: tl.tensor, w_col: tl.tensor, READ: tl.constexpr,
    DT: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """w of values i: given, or for push a z."""
    if READ == PUSH:
        w = a * z
    else:
        w = tl.load(w_ptr + i.to(tl.int64) * w_col, mask=i < N, other=0.0).to(DT)
    return w
