"""Short rows, at most 128 values and 128 targets: one exponential a pair, the whole plan in registers, no matrix.

The plan is

    p_ij  =  e_ij f_j / sum_k e_ik f_k,          e_ij = exp(s (x_i y_j - U_j)),

where e is computed once, at the potentials U of the staircase, and everything after that only changes f. A pass over
the plan is two multiply-adds a pair: ``registers.secant`` makes a step of each. Plans of few values may hang on frail
links, and there a step has to be a better one: Newton's method with a line search by slopes, as in ``solvers.newton``,
takes it by conjugate gradients, preconditioned as in ``engine.laplacian`` by the plan it starts from. A product with
the Laplacian L is as much work as a pass; two or three are enough for a step. When a step starts from a small error and
leaves little of it, nobody looks at where it ends before the answer is read, which says how good it is.

Where numbers are is told in ``registers.tiles``, and in ``engine.state`` what is kept of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..engine.newton import (
    BRIDGE,
    LAST,
    NEAR,
    SMALL,
    accept_or_shorten,
    begin,
    go_on,
    has_weak_links,
    path_of,
    path_through,
)
from ..engine.parts import (
    GIVEN,
    LOG2_E,
    NONE,
    NUMBERS,
    TOO_FINE,
    WEAK,
    halves,
    load_weights,
    moments,
    nearly_hard,
    places_of_values,
    slope_of_pairs,
    targets_too_wide,
    through_moments,
)
from ..engine.state import exponent_of, high_words, is_rejected, load_potential_halves, store_facts, store_potential
from ..engine.tiles import (
    boundaries_of_equals,
    boundaries_of_weighted,
    exponentials,
    indices,
    inverse_of,
    load_tile_of_targets,
    most_over_targets,
    most_over_values,
    out_of_reach,
    over_targets,
    over_values,
    running,
    scalar,
    split_potential,
    start_of_tile,
    tile_of_values,
)
from .multipliers import first_multipliers, remaining_pull
from .secant import balanced
from .weak_links import apart_from_likeliest, imbalance_of_likeliest, likeliest_of, plan_and_rest, softness_of

_STEPS = tl.constexpr(30)
_SOFT = tl.constexpr(1e-4)  #: error of the column sums of a nearly hard plan, relative to what is soft in it
#: In the backward pass, of what a guess leaves to be solved, for equal weights and others. The guess is better if each
#: target gets one value. The same of frail plans, times these.
_ACCURACY, _ACCURACY_WEIGHTED = tl.constexpr(2e-4), tl.constexpr(1e-4)
_OF_WEAK_LINKS, _OF_WEAK_LINKS_WEIGHTED = tl.constexpr(0.3), tl.constexpr(0.1)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=GIVEN)
def forward(
    x_ptr: tl.tensor, a_ptr: tl.tensor, y_ptr: tl.tensor, b_ptr: tl.tensor, phi_ptr: tl.tensor, last_ptr: tl.tensor,
    eps_ptr: tl.tensor, order_ptr: tl.tensor, out_ptr: tl.tensor, state_ptr: tl.tensor, error_ptr: tl.tensor,
    eps: tl.tensor, N: tl.tensor, K: tl.tensor, S: tl.tensor,
    x_row: tl.tensor, x_col: tl.tensor, a_row: tl.tensor, a_col: tl.tensor, y_row: tl.tensor, b_row: tl.tensor,
    phi_row: tl.tensor, last_row: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, RULE: tl.constexpr, RETRIED: tl.constexpr,
    LINKS: tl.constexpr, KA: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> None:  # fmt: skip
    """``pull``; order_ptr: N numbers a row, which may be where the answer goes.

    LINKS: whether values are so few that a plan may hang on frail links, see ``registers.weak_links``. RETRIED: whether
    nearly hard plans that are not done with that are answered in double precision.
    """
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row
    a_ptr += row * a_row
    state_ptr += row * S
    if EPS_ROWS:
        eps = tl.load(eps_ptr + row)
    j, i = indices(N, KA, V, X, KB)
    y, step, b, y_low, y_high, y_scale = load_tile_of_targets(y_ptr + row * y_row, b_ptr + row * b_row, j, K)
    if RULE:  # the outermost targets are not among the nodes
        y_low, y_high = y_low * 0.0, y_high * 0.0 + 1.0
    origin, unit, spread, bad = moments(x_ptr, a_ptr, N, x_col, a_col, y_low, y_high, SQUASH, WEIGHTED, V * X)
    s = slope_of_pairs(unit, y_scale, eps, SQUASH)
    inverse_s = (1.0 / s).to(tl.float32)
    too_wide = targets_too_wide(y_scale, eps)
    high, low = places_of_values(x_ptr, N, x_col, origin, unit, SQUASH, V * X)
    if WEIGHTED:
        edges = boundaries_of_weighted(high + low, a_ptr, N, a_col, running(b), KA, V, X, KB)
    else:
        edges = boundaries_of_equals(high + low, order_ptr + row * N, N, running(b), V * X)
    U = start_of_tile(edges, step, b, inverse_s)
    Uh, Ul = split_potential(U)
    xh, xl = tile_of_values(high, V, X, KB), tile_of_values(low, V, X, KB)
    a = load_weights(a_ptr, i, N, a_col, WEIGHTED)
    yh, yl = halves(y)
    e = exponentials(xh, xl, y, yh, yl, out_of_reach(Uh, b), Ul, (s * LOG2_E).to(tl.float32), V, X, KB)
    if LINKS:
        likeliest = j == likeliest_of(e, j, V, X, KB)
        imbalance = imbalance_of_likeliest(b, a, i, N, likeliest, WEIGHTED, KA, X, KB)
        e, rest = plan_and_rest(e, 1.0, likeliest, V, X, KB)
        D = softness_of(e, rest, a, likeliest, KA, X, KB)
        Ly = over_values(e * a * apart_from_likeliest(e, y, likeliest, V, X, KB), KA, X, KB)
        inverse_D, resistance = path_through(Ly, D, step, X, KB)
        bridge = BRIDGE * b * most_over_targets(tl.where(b > 0, D / tl.where(b > 0, b, 1.0), 0.0), 1, X, KB)
        weakly_linked = has_weak_links(resistance, b, X, KB)
    else:
        e = e * inverse_of(over_targets(e, V, X, KB))
    E = exponent_of(s)
    store_facts(state_ptr, origin, unit, spread, bad)  # not to be kept in registers meanwhile
    start_ptr = high_words(state_ptr, tl.float32) + j
    tl.store(start_ptr, U, mask=j < K)

    if LINKS:
        if RETRIED:  # whether the plan may be nearly hard: that of the start is not far from it
            firm = scalar(most_over_targets(tl.where(b > 0, D - 50.0 * WEAK * b, -1.0), 1, X, KB)) < 0
        base = b * 0.0  # log f at the last accepted point, the way from it, how far to go, and the slope there
        way = b * 0.0
        length = over_targets(way, 1, X, KB) + 1.0
        rise = length * float("inf")
        tolerance = 0.0 * eps + SMALL
        k = 0
        going = True
        while going & (k < _STEPS):
            p, rest = plan_and_rest(e, tl.exp2((base + length * way) * LOG2_E), likeliest, V, X, KB)
            rho = imbalance - over_values(a * rest, KA, X, KB)
            if RETRIED:
                if firm:  # errors are as small as what is soft, or a gradient is wrong
                    soft = softness_of(p, rest, a, likeliest, KA, X, KB)
                    soft = scalar(most_over_targets(tl.where(b > 0, soft / tl.where(b > 0, b, 1.0), 0.0), 1, X, KB))
                    tolerance = tl.where(soft > NONE, tl.minimum(_SOFT * soft, SMALL), SMALL)
            size = scalar(over_targets(tl.abs(rho), 1, X, KB))
            going = size > tolerance
            if going:
                # A step is solved for even if this point is not accepted: that is rare, and one way through is shorter.
                newton = b * 0.0
                left, along, rz = begin(rho, inverse_D, resistance, b, X, KB)
                for _ in range(tl.where(size > 1e-2, 2, 3)):
                    if weakly_linked:
                        Lw = over_values(a * p * apart_from_likeliest(p, along, likeliest, V, X, KB), KA, X, KB)
                    else:
                        Lw = over_values(a * p * (along - over_targets(p * along, V, X, KB)), KA, X, KB)
                    newton, left, along, rz = go_on(
                        newton, left, along, rz, Lw, inverse_D, resistance, b, bridge, X, KB
                    )
                base, way, length, rise, overshot = accept_or_shorten(
                    newton, rho, b - rho, b, base, way, length, rise, X, KB
                )
                remains = tl.where(overshot, 1.0, over_targets(tl.abs(left), 1, X, KB))
                going = (size * SMALL > NEAR * tolerance) | (scalar(remains) > 1.5 * tolerance)
            k += 1
        grown = base + length * way
        p, rest = plan_and_rest(e, tl.exp2(grown * LOG2_E), likeliest, V, X, KB)
        error = scalar(over_targets(tl.abs(imbalance - over_values(a * rest, KA, X, KB)), 1, X, KB))
    else:
        p, grown, error, firm = balanced(e, a, b, y, step, KA, V, X, KB)
    phi = tl.load(phi_ptr + row * phi_row + j, mask=j < K, other=0.0).to(tl.float32)
    mean = over_targets(p * phi, V, X, KB)
    tl.store(out_ptr + row * N + i, tl.where(bad > 0, float("nan"), mean), mask=i < N)
    if RULE:
        squares = mean * 0.0
        last_ptr += row * last_row
        for order in range(LAST):
            last = tl.load(last_ptr + order * K + j, mask=j < K, other=0.0).to(tl.float32)
            coefficient = over_targets(p * last, V, X, KB)
            squares += coefficient * coefficient
        error += 4.0 * scalar(most_over_values(tl.where(i < N, squares, 0.0), 1, X, KB))
    if RETRIED:
        if LINKS:
            D = softness_of(p, rest, a, likeliest, KA, X, KB)
            softness = scalar(most_over_targets(tl.where(b > 0, D / tl.where(b > 0, b, 1.0), 0.0), 1, X, KB))
            if WEIGHTED:  # weights that differ are rounded to more than what is soft
                error = tl.where(nearly_hard(softness), 1.0, error)
            else:
                passed = (error <= 10.0 * _SOFT * softness) & (
                    scalar(most_over_targets(tl.abs(imbalance), 1, X, KB)) == 0
                )
                error = tl.where(nearly_hard(softness), tl.where(passed, error, 1.0), error)
        else:
            if firm:
                D = over_values(p * a * (1.0 - p), KA, X, KB)
                softness = scalar(most_over_targets(tl.where(b > 0, D / tl.where(b > 0, b, 1.0), 0.0), 1, X, KB))
                error = tl.where(nearly_hard(softness), 1.0, error)
    error = tl.where((inverse_s * TOO_FINE < 1.0) | too_wide, 1.0, error)
    tl.store(error_ptr + row, tl.where(bad > 0, 0.0, error))
    U = tl.load(start_ptr, mask=j < K, other=0.0).to(tl.float64) - (grown * inverse_s).to(tl.float64)
    tl.debug_barrier()  # threads that repeat each other have all read it
    store_potential(state_ptr, state_ptr, U, E, j, K, j < K)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=GIVEN)
def backward(
    x_ptr: tl.tensor, a_ptr: tl.tensor, y_ptr: tl.tensor, b_ptr: tl.tensor, phi_ptr: tl.tensor, w_ptr: tl.tensor,
    eps_ptr: tl.tensor, partial_ptr: tl.tensor, state_ptr: tl.tensor, grad_ptr: tl.tensor,
    eps: tl.tensor, N: tl.tensor, K: tl.tensor, S: tl.tensor,
    x_row: tl.tensor, x_col: tl.tensor, a_row: tl.tensor, a_col: tl.tensor, y_row: tl.tensor, b_row: tl.tensor,
    phi_row: tl.tensor, w_row: tl.tensor, w_col: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, LINKS: tl.constexpr,
    KA: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> None:  # fmt: skip
    """The cotangent of x, see ``contract``; partial_ptr: N numbers a row, which may be where the answer goes.

    Here products with L are sums of differences, a p (v - E v), and not differences of sums. Of a value that nearly all
    goes to one target, v - E v is as small as the rest, but rounded like v. Where all of a plan hangs on such rests,
    its links being frail, means are taken in two parts and lambda is wanted with more digits. Other rows have no use
    for that. What is solved for is what ``registers.multipliers`` leaves of lambda.
    """
    row = tl.program_id(0).to(tl.int64)
    state_ptr += row * S
    if is_rejected(state_ptr):
        return
    x_ptr += row * x_row
    a_ptr += row * a_row
    partial_ptr += row * N
    phi_ptr += row * phi_row
    if EPS_ROWS:
        eps = tl.load(eps_ptr + row)
    j, i = indices(N, KA, V, X, KB)
    y, step, b, _low, _high, y_scale = load_tile_of_targets(y_ptr + row * y_row, b_ptr + row * b_row, j, K)
    origin, unit = tl.load(state_ptr), tl.load(state_ptr + 1)
    s = slope_of_pairs(unit, y_scale, eps, SQUASH)
    high, low = places_of_values(x_ptr, N, x_col, origin, unit, SQUASH, V * X)
    xh, xl = tile_of_values(high, V, X, KB), tile_of_values(low, V, X, KB)
    a = load_weights(a_ptr, i, N, a_col, WEIGHTED)
    w = tl.load(w_ptr + row * w_row + i.to(tl.int64) * w_col, mask=i < N, other=0.0).to(tl.float32)
    Uh, Ul = load_potential_halves(state_ptr, j, K, j < K)
    yh, yl = halves(y)
    phi = tl.load(phi_ptr + j, mask=j < K, other=0.0).to(tl.float32)
    p = exponentials(xh, xl, y, yh, yl, out_of_reach(Uh, b), Ul, (s * LOG2_E).to(tl.float32), V, X, KB)
    if LINKS:
        likeliest = j == likeliest_of(p, j, V, X, KB)
        p, rest = plan_and_rest(p, 1.0, likeliest, V, X, KB)
    else:
        likeliest = False
        p = p * inverse_of(over_targets(p, V, X, KB))
    if not WEIGHTED:
        p = tl.where(i < N, p, 0.0)  # then all values may weigh the same
        a = (1.0 / N).to(tl.float32)
    if LINKS:
        D = softness_of(p, rest, a, likeliest, KA, X, KB)
        Ly = over_values(a * p * apart_from_likeliest(p, y, likeliest, V, X, KB), KA, X, KB)
        inverse_D, resistance = path_through(Ly, D, step, X, KB)
    else:
        inverse_D, resistance, D = path_of(p, p * a, y, step, KA, V, X, KB)
    # Of a plan that is hard but for less than this nothing comes through its potentials, and they would overflow.
    soft = most_over_targets(D, 1, X, KB) > 1e-25
    softness = most_over_targets(tl.where(b > 0, D / tl.where(b > 0, b, 1.0), 0.0), 1, X, KB)
    bridge = BRIDGE * b * softness
    u = first_multipliers(p, w, b, D, phi_ptr, j, K, WEIGHTED, KA, X, KB)
    q = remaining_pull(p, w, a, phi, u, likeliest, LINKS, V, X, KB)
    t = over_values(p * (q - over_targets(p * q, V, X, KB)), KA, X, KB)
    largest = most_over_targets(tl.abs(t), 1, X, KB)
    largest = tl.where(soft & (largest > 0), largest, 1.0)
    t = tl.where(soft, t / largest, 0.0)
    potential = t * 0.0
    weakly_linked = has_weak_links(resistance, b, X, KB)
    r, way, rz = begin(t, inverse_D, resistance, b, X, KB)
    # What flows over a link is rounded to 1e-7 of t, and no step makes that better.
    rounding = over_targets(resistance, 1, X, KB) * (1e-7 * 1e-7)
    if WEIGHTED:
        accuracy = tl.where(weakly_linked, _ACCURACY_WEIGHTED * _OF_WEAK_LINKS_WEIGHTED, _ACCURACY_WEIGHTED)
    else:
        accuracy = tl.where(weakly_linked, _ACCURACY * _OF_WEAK_LINKS, _ACCURACY)
    enough = tl.maximum(rz * accuracy * accuracy, rounding)
    k = 0
    going = True
    while going & (k < _STEPS):
        if weakly_linked:
            Lw = pushed(p, apart(p, way, likeliest, LINKS, V, X, KB), a, N, WEIGHTED, KA, X, KB)
        else:
            Lw = pushed(p, way - over_targets(p * way, V, X, KB), a, N, WEIGHTED, KA, X, KB)
        potential, r, way, rz = go_on(potential, r, way, rz, Lw, inverse_D, resistance, b, bridge, X, KB)
        if k >= (2 if LINKS else 3):  # no row is done before
            going = scalar(rz - enough) > 0
        k += 1
    potential = potential * largest

    # y, phi and w once more: they, and what was computed of them, would be kept in registers for this. Of u as well: so
    # it is another u, as far as the compiler knows.
    tl.debug_barrier()
    y = load_tile_of_targets(y_ptr + row * y_row, b_ptr + row * b_row, j, K)[0]
    phi = tl.load(phi_ptr + j, mask=j < K, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + row * w_row + i.to(tl.int64) * w_col, mask=i < N, other=0.0).to(tl.float32)
    u = tl.where(N > 0, u, 0.0)
    q = remaining_pull(p, w, a, phi, u, likeliest, LINKS, V, X, KB) - a * potential
    if LINKS:
        pull = apart_from_likeliest(p, q, likeliest, V, X, KB)
        g = over_targets(p * pull * apart_from_likeliest(p, y, likeliest, V, X, KB), V, X, KB) * s.to(tl.float32)
    else:
        g = over_targets(p * q * (y - over_targets(p * y, V, X, KB)), V, X, KB) * s.to(tl.float32)
    tl.store(partial_ptr + i, g, mask=i < N)
    tl.debug_barrier()
    through_moments(
        x_ptr, a_ptr, state_ptr, partial_ptr, partial_ptr, grad_ptr + row * N, N, x_col, a_col,
        SQUASH, WEIGHTED, False, V * X
    )  # fmt: skip


@triton.jit
def apart(
    p: tl.tensor, v: tl.tensor, likeliest: tl.tensor,
    LINKS: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    if LINKS:
        out = apart_from_likeliest(p, v, likeliest, V, X, KB)
    else:
        out = apart_from_mean(p, v, V, X, KB)
    return out


@triton.jit
def apart_from_mean(p: tl.tensor, v: tl.tensor, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr) -> tl.tensor:
    """v_j - sum_k p_ik v_k, the mean in two parts: right to rounding of itself, not of v."""
    apart = v - over_targets(p * v, V, X, KB)
    return apart - over_targets(p * apart, V, X, KB)


@triton.jit
def pushed(
    p: tl.tensor, v: tl.tensor, a: tl.tensor, N: tl.tensor,
    WEIGHTED: tl.constexpr, KA: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """sum_i a_i p_ij v_ij."""
    if WEIGHTED:
        out = over_values(p * v * a, KA, X, KB)
    else:
        out = over_values(p * v, KA, X, KB) * (1.0 / N)
    return out
