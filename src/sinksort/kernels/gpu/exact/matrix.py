"""One program a row, up to 128 targets: the plan is solved with its K by K matrix in registers, forward and backward.

Newton's method with a line search by slopes, as in ``solvers.newton``: each pass over the values gives the column sums
of the plan and W = P^T diag(a) P, conjugate gradients on that small matrix the step. W only shapes the step, so ten
bits are enough for it; the column sums have all bits. When a step starts from a small error nobody looks at where it
ends before the answer is read: the pass that reads it says how good it is. In the backward pass what ten bits lack is
made up by a second solve for what the first one left.

Tiles are (targets, values), so that a thread has several targets of one value, and sums over targets stay within it.

What is kept of a row is told in ``engine.state``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..engine.laplacian import bridged, laplacian_solve, path_of, times_laplacian
from ..engine.parts import (
    GIVEN,
    LOG2_E,
    NOWHERE,
    NUMBERS,
    TOO_FINE,
    TOO_FINE_TO_ADD,
    UNEVEN,
    apart_from_mean,
    exact_boundaries,
    halves,
    load_places,
    load_targets,
    load_values,
    load_weights,
    moments,
    nearly_hard,
    place_row,
    rough_boundaries,
    shares,
    slope_of_pairs,
    standardized,
    start_of,
    targets_too_wide,
    through_moments,
    uneven,
    values_too_wide,
)
from ..engine.state import exponent_of, is_rejected, load_potential_halves, store_facts, store_potential
from ..engine.sums import agreed_sum

ACCEPTED = tl.constexpr(5e-6)  #: as ``refine.accepted_error``
_SMALL = tl.constexpr(1e-6)  #: L1 error of the column sums at which a row is done
_NEAR = tl.constexpr(1e-4)  #: one step from here ends below it
_STEPS = tl.constexpr(40)
_CELLS = tl.constexpr(256)


@triton.jit
def load_targets_again(y_ptr: tl.tensor, b_ptr: tl.tensor, K: tl.tensor, BK: tl.constexpr) -> tl.tensor:
    """Triton 3.6 cannot compile a loop with a matrix product and one without that share these: load them for each."""
    tl.debug_barrier()
    y, _, _, has, _, _, _ = load_targets(y_ptr, b_ptr, K, BK)
    yh, yl = halves(y)
    return yh, yl, y.to(tl.float32), has


@triton.jit
def through_memory(ptr: tl.tensor, v: tl.tensor, K: tl.tensor, BK: tl.constexpr) -> tl.tensor:
    """v itself. What comes of a matrix product would carry its layout into tiles, and make sums over targets slow."""
    j = tl.arange(0, BK)
    tl.debug_barrier()
    tl.store(ptr + j, v, mask=j < K)
    tl.debug_barrier()
    return tl.load(ptr + j, mask=j < K, other=0.0)


@triton.jit
def through_state(state_ptr: tl.tensor, U: tl.tensor, E: tl.tensor, K: tl.tensor, BK: tl.constexpr) -> tl.tensor:
    """The same for U, which will be the state's in the end: its halves."""
    j = tl.arange(0, BK)
    tl.debug_barrier()
    store_potential(state_ptr, state_ptr, U, E, j, K, j < K)
    tl.debug_barrier()
    return load_potential_halves(state_ptr, j, K, j < K)


@triton.jit
def plan_of(
    high_ptr: tl.tensor, low_ptr: tl.tensor, a_ptr: tl.tensor, i: tl.tensor, N: tl.tensor, a_col: tl.tensor,
    y: tl.tensor, yh: tl.tensor, yl: tl.tensor, Uh: tl.tensor, Ul: tl.tensor, s: tl.tensor, WEIGHTED: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """Weights and shares of values i, p (targets, values)."""
    xh, xl = load_places(high_ptr, low_ptr, i, N)
    return load_weights(a_ptr, i, N, a_col, WEIGHTED), shares(xh, xl, y, yh, yl, Uh, Ul, s, 0, False)


@triton.jit
def off_diagonal_sums(W: tl.tensor, BK: tl.constexpr) -> tl.tensor:
    j = tl.arange(0, BK)
    return tl.sum(tl.where(j[:, None] == j[None, :], 0.0, W), axis=1)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=GIVEN)
def forward(
    x_ptr: tl.tensor, a_ptr: tl.tensor, y_ptr: tl.tensor, b_ptr: tl.tensor, phi_ptr: tl.tensor, last_ptr: tl.tensor,
    eps_ptr: tl.tensor, high_ptr: tl.tensor, low_ptr: tl.tensor, out_ptr: tl.tensor, state_ptr: tl.tensor,
    error_ptr: tl.tensor,
    eps: tl.tensor, N: tl.tensor, K: tl.tensor, S: tl.tensor,
    x_row: tl.tensor, x_col: tl.tensor, a_row: tl.tensor, a_col: tl.tensor, y_row: tl.tensor, b_row: tl.tensor,
    phi_row: tl.tensor, last_row: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, PUSH: tl.constexpr, RULE: tl.constexpr,
    RETRIED: tl.constexpr, EXACT: tl.constexpr, BLOCK_N: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
) -> None:  # fmt: skip
    """high_ptr and low_ptr: N numbers a row each; the latter may be where the answer of ``pull`` goes.

    RETRIED: whether plans that are nearly hard are answered again in double precision.
    """
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row
    a_ptr += row * a_row
    y_ptr += row * y_row
    b_ptr += row * b_row
    high_ptr += row * N
    low_ptr += row * N
    state_ptr += row * S
    if EPS_ROWS:
        eps = tl.load(eps_ptr + row)
    j = tl.arange(0, BK)
    y_wide, step, b, has, y_low, y_high, y_scale = load_targets(y_ptr, b_ptr, K, BK)
    step = step.to(tl.float32)
    if RULE:  # the outermost targets are not among the nodes
        y_low, y_high = y_low * 0.0, y_high * 0.0 + 1.0
    origin, unit, spread, bad = moments(x_ptr, a_ptr, N, x_col, a_col, y_low, y_high, SQUASH, WEIGHTED, BLOCK_N)
    s = slope_of_pairs(unit, y_scale, eps, SQUASH)
    s_2 = (s * LOG2_E).to(tl.float32)
    inverse_s = 1.0 / s
    E = exponent_of(s)
    place_row(x_ptr, high_ptr, low_ptr, N, x_col, origin, unit, SQUASH, BLOCK_N)
    levels = tl.cumsum(b, axis=0)
    if EXACT:
        boundaries = exact_boundaries(
            x_ptr, a_ptr, N, x_col, a_col, origin, unit, levels, SQUASH, WEIGHTED, tl.float32, BLOCK_N, 32, BK
        )
    else:
        boundaries = rough_boundaries(high_ptr, low_ptr, a_ptr, N, a_col, levels, WEIGHTED, _CELLS, 32)

    yh, yl = halves(y_wide)
    y = y_wide.to(tl.float32)
    # The last accepted point, the way from it, how far to go, and the slope there.
    base = start_of(boundaries, step, b, has, s)
    way = tl.zeros([BK], tl.float32)
    length = 1.0
    rise = float("inf")
    softness = 0.0
    k = 0
    going = True
    while going & (k < _STEPS):
        Uh, Ul = through_state(state_ptr, base - (length * way).to(tl.float64) * inverse_s, E, K, BK)
        Ul = tl.where(has, Ul, NOWHERE)
        P_sum = tl.zeros([BK, BN], tl.float32)
        W = tl.zeros([BK, BK], tl.float32)
        for start in range(0, N, BN):
            i = start + tl.arange(0, BN)
            a, p = plan_of(high_ptr, low_ptr, a_ptr, i, N, a_col, y, yh, yl, Uh, Ul, s_2, WEIGHTED)
            P_sum += p * a[None, :]
            weighed = p * tl.sqrt(a)[None, :]
            W = tl.dot(weighed, tl.trans(weighed), W, input_precision="tf32")
        c = tl.sum(P_sum, axis=1)
        rho = b - c
        size = agreed_sum(tl.abs(rho), axis=0)
        D = off_diagonal_sums(W, BK)
        softness = tl.max(tl.where(has, D / tl.where(has, b, 1.0), 0.0), axis=0)
        going = size > _SMALL
        if going:
            here = agreed_sum(rho * way, axis=0)
            overshot = here < -0.5 * rise
            if overshot:
                length = length * rise / (rise - here)
            else:
                W, D = bridged(W, D, K, BK)
                inverse_D, resistance = path_of(times_laplacian(W, y), step, D, 1e-6)
                newton = laplacian_solve(W, rho, inverse_D, resistance, b, 3e-3, 12)
                newton = tl.where(has, newton - agreed_sum(b * newton, axis=0), 0.0)
                newton = tl.minimum(tl.maximum(newton, -5.0), 5.0)
                climb = agreed_sum(rho * newton, axis=0)
                # Sinkhorn's own step always rises.
                sinkhorn = tl.where(has, tl.log(tl.where(has, b, 1.0)) - tl.log(tl.maximum(c, 1e-30)), 0.0)
                newton = tl.where(climb > 0, newton, tl.minimum(tl.maximum(sinkhorn, -20.0), 20.0))
                base = base - (length * way).to(tl.float64) * inverse_s
                way = newton
                length = 1.0
                rise = agreed_sum(rho * newton, axis=0)
                going = size > _NEAR
        k += 1

    Uh, Ul = through_state(state_ptr, base - (length * way).to(tl.float64) * inverse_s, E, K, BK)
    yh, yl, y, has = load_targets_again(y_ptr, b_ptr, K, BK)
    Ul = tl.where(has, Ul, NOWHERE)
    P_sum = tl.zeros([BK, BN], tl.float32)
    sums = tl.zeros([BK, BN], tl.float32)
    worst = tl.zeros([BN], tl.float32)
    phi = tl.load(phi_ptr + row * phi_row + j, mask=j < K, other=0.0).to(tl.float32)
    if RULE:
        k_last = tl.arange(0, 16)
        all_in_double = last_ptr + row * last_row + k_last[:, None] * K + j[None, :]
        last = tl.load(all_in_double, mask=(k_last < 6)[:, None] & (j < K)[None, :], other=0.0).to(tl.float32)
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        a, p = plan_of(high_ptr, low_ptr, a_ptr, i, N, a_col, y, yh, yl, Uh, Ul, s_2, WEIGHTED)
        P_sum += p * a[None, :]
        if PUSH:
            z = standardized(x_ptr, i, N, x_col, origin, unit, SQUASH)
            sums += p * (a * z)[None, :]
        else:
            mean = tl.sum(p * phi[:, None], axis=0)
            tl.debug_barrier()  # all have read where these values stand
            tl.store(out_ptr + row * N + i, tl.where(bad > 0, float("nan"), mean), mask=i < N)
        if RULE:
            coefficients = tl.dot(last, p, input_precision="tf32")
            squares = 4.0 * agreed_sum(coefficients * coefficients, axis=0)
            worst = tl.maximum(worst, tl.where(i < N, squares, 0.0))
    c = tl.sum(P_sum, axis=1)
    if PUSH:
        store_averages(
            out_ptr + row * K, x_ptr, a_ptr, c, tl.sum(sums, axis=1), origin, unit, bad, has, N, K, x_col, a_col,
            WEIGHTED, BLOCK_N, BK
        )  # fmt: skip
    error = tl.max(worst, axis=0) + agreed_sum(tl.abs(b - c), axis=0)
    if RETRIED:
        error = tl.where(nearly_hard(softness), 1.0, error)
    in_double = (inverse_s * TOO_FINE < 1.0) | targets_too_wide(y_scale, eps)
    if PUSH:
        in_double = in_double | values_too_wide(unit, eps, SQUASH) | (uneven(b, b > 0) < UNEVEN)
        in_double = in_double | (inverse_s * TOO_FINE_TO_ADD < 1.0)
    error = tl.where(in_double, 1.0, error)
    tl.store(error_ptr + row, tl.where(bad > 0, 0.0, error))
    store_facts(state_ptr, origin, unit, spread, bad)


@triton.jit
def store_averages(
    out_ptr: tl.tensor, x_ptr: tl.tensor, a_ptr: tl.tensor, c: tl.tensor, sums: tl.tensor, origin: tl.tensor,
    unit: tl.tensor, bad: tl.tensor, has: tl.tensor, N: tl.tensor, K: tl.tensor, x_col: tl.tensor, a_col: tl.tensor,
    WEIGHTED: tl.constexpr, BLOCK_N: tl.constexpr, BK: tl.constexpr
) -> None:  # fmt: skip
    """What ``push`` answers, from sums of a z for each target; an infinite value of any weight reaches all targets."""
    i = tl.arange(0, BLOCK_N)
    x = load_values(x_ptr, i, N, x_col)
    infinite = (tl.abs(x) == float("inf")) & (load_weights(a_ptr, i, N, a_col, WEIGHTED) > 0)
    above = tl.max(tl.where(infinite & (x > 0), 1, 0), axis=0)
    below = tl.max(tl.where(infinite & (x < 0), 1, 0), axis=0)
    average = tl.where(c > 0, sums / tl.where(c > 0, c, 1.0), 0.0).to(tl.float64) * unit + origin
    average = tl.where(above > 0, float("inf"), 0.0) - tl.where(below > 0, float("inf"), 0.0) + average
    j = tl.arange(0, BK)
    average = tl.where(bad > 0, float("nan"), tl.where(has, average, 0.0))
    tl.store(out_ptr + j, average.to(tl.float32), mask=j < K)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=GIVEN)
def backward(
    x_ptr: tl.tensor, a_ptr: tl.tensor, y_ptr: tl.tensor, b_ptr: tl.tensor, phi_ptr: tl.tensor, w_ptr: tl.tensor,
    eps_ptr: tl.tensor, high_ptr: tl.tensor, room_ptr: tl.tensor, state_ptr: tl.tensor, partial_ptr: tl.tensor,
    grad_ptr: tl.tensor,
    eps: tl.tensor, N: tl.tensor, K: tl.tensor, S: tl.tensor,
    x_row: tl.tensor, x_col: tl.tensor, a_row: tl.tensor, a_col: tl.tensor, y_row: tl.tensor, b_row: tl.tensor,
    phi_row: tl.tensor, w_row: tl.tensor, w_col: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, PUSH: tl.constexpr,
    BLOCK_N: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
) -> None:  # fmt: skip
    """The cotangent of x, see ``contract``. For push w is the cotangent of the answer and phi is not read.

    high_ptr and partial_ptr: N numbers a row each; the latter may be where the answer goes. Second halves of places
    stand there first. room_ptr: K numbers a row, and for push as many as N if that is more.
    """
    row = tl.program_id(0).to(tl.int64)
    state_ptr += row * S
    if is_rejected(state_ptr):
        return
    x_ptr += row * x_row
    a_ptr += row * a_row
    y_ptr += row * y_row
    b_ptr += row * b_row
    high_ptr += row * N
    room_ptr += row * (tl.maximum(N, K) if PUSH else K)
    w_ptr += row * w_row
    partial_ptr += row * N
    low_ptr = partial_ptr
    if EPS_ROWS:
        eps = tl.load(eps_ptr + row)
    j = tl.arange(0, BK)
    y_wide, step, b, has, _low, _high, y_scale = load_targets(y_ptr, b_ptr, K, BK)
    step = step.to(tl.float32)
    origin, unit = tl.load(state_ptr), tl.load(state_ptr + 1)
    s = slope_of_pairs(unit, y_scale, eps, SQUASH)
    s_2 = (s * LOG2_E).to(tl.float32)
    place_row(x_ptr, high_ptr, low_ptr, N, x_col, origin, unit, SQUASH, BLOCK_N)
    yh, yl = halves(y_wide)
    y = y_wide.to(tl.float32)
    Uh, Ul = load_potential_halves(state_ptr, j, K, j < K)
    Ul = tl.where(has, Ul, NOWHERE)
    if PUSH:
        phi = tl.load(w_ptr + j * w_col, mask=has, other=0.0).to(tl.float32) / tl.where(has, b, 1.0)
    else:
        phi = tl.load(phi_ptr + row * phi_row + j, mask=j < K, other=0.0).to(tl.float32)

    sums = tl.zeros([BK, BN], tl.float32)
    W = tl.zeros([BK, BK], tl.float32)
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        a, p = plan_of(high_ptr, low_ptr, a_ptr, i, N, a_col, y, yh, yl, Uh, Ul, s_2, WEIGHTED)
        w = pulls_of(w_ptr, x_ptr, a, i, N, w_col, x_col, origin, unit, SQUASH, PUSH)
        sums += w[None, :] * p * apart_from_mean(p, phi, 0)
        weighed = p * tl.sqrt(a)[None, :]
        W = tl.dot(weighed, tl.trans(weighed), W, input_precision="tf32")
    t = tl.sum(sums, axis=1)
    W, D = bridged(W, off_diagonal_sums(W, BK), K, BK)
    inverse_D, resistance = path_of(times_laplacian(W, y), step, D, 1e-6)
    # Of a plan that is hard but for less than this nothing comes through its potentials, and they would overflow.
    soft = tl.max(D, axis=0) > 1e-25
    largest = tl.max(tl.abs(t), axis=0)
    largest = tl.where(soft & (largest > 0), largest, 1.0)
    t = tl.where(soft, t / largest, 0.0)
    potential = laplacian_solve(W, t, inverse_D, resistance, b, 1e-4, 30)
    potential = through_memory(room_ptr, potential, K, BK)

    yh, yl, y, has = load_targets_again(y_ptr, b_ptr, K, BK)
    Ul = tl.where(has, Ul, NOWHERE)
    sums = tl.zeros([BK, BN], tl.float32)
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        a, p = plan_of(high_ptr, low_ptr, a_ptr, i, N, a_col, y, yh, yl, Uh, Ul, s_2, WEIGHTED)
        sums += a[None, :] * p * apart_from_mean(p, potential, 0)
    left = t - tl.sum(sums, axis=1)
    more = laplacian_solve(W, left, inverse_D, resistance, b, 1e-2, 10)
    potential = (potential + through_memory(room_ptr, more, K, BK)) * largest

    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        a, p = plan_of(high_ptr, low_ptr, a_ptr, i, N, a_col, y, yh, yl, Uh, Ul, s_2, WEIGHTED)
        w = pulls_of(w_ptr, x_ptr, a, i, N, w_col, x_col, origin, unit, SQUASH, PUSH)
        pull = w[None, :] * phi[:, None] - a[None, :] * potential[:, None]
        pull = pull - tl.sum(p * pull, axis=0)[None, :]
        g = tl.sum(p * pull * apart_from_mean(p, y, 0), axis=0) * s.to(tl.float32)
        tl.debug_barrier()  # all have read where these values stand
        tl.store(partial_ptr + i, g, mask=i < N)
        if PUSH:  # x itself is what is averaged
            tl.store(room_ptr + i, a * tl.sum(p * phi[:, None], axis=0), mask=i < N)
    tl.debug_barrier()
    through_moments(
        x_ptr, a_ptr, state_ptr, partial_ptr, room_ptr, grad_ptr + row * N, N, x_col, a_col,
        SQUASH, WEIGHTED, PUSH, BLOCK_N
    )  # fmt: skip


@triton.jit
def pulls_of(
    w_ptr: tl.tensor, x_ptr: tl.tensor, a: tl.tensor, i: tl.tensor, N: tl.tensor, w_col: tl.tensor, x_col: tl.tensor,
    origin: tl.tensor, unit: tl.tensor, SQUASH: tl.constexpr, PUSH: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """w of values i: given, or for push a z."""
    if PUSH:
        w = a * standardized(x_ptr, i, N, x_col, origin, unit, SQUASH)
    else:
        w = tl.load(w_ptr + i.to(tl.int64) * w_col, mask=i < N, other=0.0).to(tl.float32)
    return w
