"""One program a row, up to 128 targets: the plan is solved with its K by K matrix in registers, forward and backward.

Newton's method with a line search by slopes, as in ``solvers.newton``: each pass over the values gives the column sums of
the plan and W = P^T diag(a) P, conjugate gradients on that small matrix the step. W only shapes the step, so single precision with
ten bits is enough for it; the column sums have all bits. When a step starts from a small error nobody looks at where it ends
before the answer is read: the pass that reads it says how good it is.

The state of a row: origin, unit, spread, NaN or not, whether the row was answered by ``triton_whole``; then U from column 8.
"""

from __future__ import annotations



import triton
import triton.language as tl

from .triton_parts import (
    LOG2_E,
    bridged,
    exact_boundaries,
    halves,
    laplacian_solve,
    load_placed,
    load_row,
    load_targets,
    moments,
    path_of,
    place,
    place_row,
    potential_halves,
    rough_boundaries,
    shares,
    slope,
    start_of,
    through_moments,
    times_laplacian,
)

ACCEPTED = tl.constexpr(5e-6)  #: as ``refine.accepted_error``
_SMALL = tl.constexpr(1e-6)  #: L1 error of the column sums at which a row is done
_NEAR = tl.constexpr(1e-4)  #: one step from here ends below it
_STEPS = tl.constexpr(40)
_CELLS = tl.constexpr(256)
_WEAK, _NONE = tl.constexpr(1e-3), tl.constexpr(1e-14)  #: plans less soft than this need double precision, or nothing



@triton.jit
def load_targets_again(y_ptr: tl.tensor, b_ptr: tl.tensor, K: tl.tensor, BK: tl.constexpr) -> tl.tensor:
    y, _, _, has, _, _, _ = load_targets(y_ptr, b_ptr, K, BK)
    yh, yl = halves(y)
    return yh, yl, y.to(tl.float32), has


@triton.jit
def forward(
    x_ptr: tl.tensor, a_ptr: tl.tensor, y_ptr: tl.tensor, b_ptr: tl.tensor, phi_ptr: tl.tensor, last_ptr: tl.tensor, eps_ptr: tl.tensor,
    at_ptr: tl.tensor, out_ptr: tl.tensor, state_ptr: tl.tensor, error_ptr: tl.tensor,
    eps: float, N: tl.tensor, K: tl.tensor, S: tl.tensor,
    x_row: tl.tensor, x_col: tl.tensor, a_row: tl.tensor, a_col: tl.tensor, y_row: tl.tensor, b_row: tl.tensor, phi_row: tl.tensor, last_row: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, PUSH: tl.constexpr, RULE: tl.constexpr,
    MENDED: tl.constexpr, EXACT: tl.constexpr, BLOCK_N: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
) -> None:  # fmt: skip
    """MENDED: whether plans that are nearly hard are answered again in double precision."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row
    a_ptr += row * a_row
    at_ptr += row * N * 2
    state_ptr += row * S
    if EPS_ROWS:
        eps = tl.load(eps_ptr + row)
    j = tl.arange(0, BK)
    y, step, b, has, y_low, y_high, y_scale = load_targets(y_ptr + row * y_row, b_ptr + row * b_row, K, BK)
    origin, unit, spread, bad = moments(
        x_ptr, a_ptr, N, x_col, a_col, y_low, y_high, SQUASH, WEIGHTED, BLOCK_N
    )
    x_scale = unit if SQUASH == 0 else unit * 0.0 + 1.0
    s = 2.0 * x_scale * y_scale / eps
    s_2 = (s * LOG2_E).to(tl.float32)
    yh, yl = halves(y)
    y_single = y.to(tl.float32)

    place_row(x_ptr, a_ptr, at_ptr, N, x_col, a_col, origin, unit, SQUASH, WEIGHTED, BN)

    levels = tl.cumsum(b, axis=0)
    if EXACT:
        boundaries = exact_boundaries(
            x_ptr, a_ptr, N, x_col, a_col, origin, unit, levels, SQUASH, WEIGHTED, BLOCK_N, BN, BK
        )
    else:
        boundaries = rough_boundaries(at_ptr, a_ptr, N, a_col, levels, WEIGHTED, _CELLS, BN)
    base = start_of(boundaries, step, b, has, s)  # the last accepted point, the way from it, how far, and the slope there
    way = tl.zeros([BK], tl.float32)
    length = 1.0
    rise = float("inf")
    softness = 0.0
    k = 0
    going = True
    while going & (k < _STEPS):
        Uh, Ul = potential_halves(base - (length * way).to(tl.float64) / s, has)
        c = tl.zeros([BK], tl.float32)
        W = tl.zeros([BK, BK], tl.float32)
        for start in range(0, N, BN):
            xh, xl, a = load_placed(at_ptr, a_ptr, start + tl.arange(0, BN), N, a_col, WEIGHTED)
            p = shares(xh, xl, y_single, yh, yl, Uh, Ul, s_2, False)
            c += tl.sum(p * a[:, None], axis=0)
            weighed = p * tl.sqrt(a)[:, None]
            W = tl.dot(tl.trans(weighed), weighed, W, input_precision="tf32")
        rho = b - c
        size = tl.sum(tl.abs(rho), axis=0)
        D = tl.sum(tl.where(j[:, None] == j[None, :], 0.0, W), axis=1)
        softness = tl.max(tl.where(has, D / tl.where(has, b, 1.0), 0.0), axis=0)
        going = size > _SMALL
        if going:
            here = tl.sum(rho * way, axis=0)
            overshot = here < -0.5 * rise
            if overshot:
                length = length * rise / (rise - here)
            else:
                W, D = bridged(W, D, K, BK)
                inverse_D, resistance = path_of(times_laplacian(W, y_single), step, D, 1e-6)
                newton = laplacian_solve(W, rho, inverse_D, resistance, b, 3e-3, 12)
                newton = tl.where(has, newton - tl.sum(b * newton, axis=0), 0.0)
                newton = tl.minimum(tl.maximum(newton, -5.0), 5.0)
                climb = tl.sum(rho * newton, axis=0)
                # Sinkhorn's own step always rises.
                sinkhorn = tl.where(has, tl.log(tl.where(has, b, 1.0)) - tl.log(tl.maximum(c, 1e-30)), 0.0)
                newton = tl.where(climb > 0, newton, tl.minimum(tl.maximum(sinkhorn, -20.0), 20.0))
                base = base - (length * way).to(tl.float64) / s
                way = newton
                length = 1.0
                rise = tl.sum(rho * newton, axis=0)
                going = size > _NEAR
        k += 1

    U = base - (length * way).to(tl.float64) / s
    tl.debug_barrier()  # and targets anew: Triton 3.6 cannot compile loops with and without a product that share them
    yh, yl, y_single, has = load_targets_again(y_ptr + row * y_row, b_ptr + row * b_row, K, BK)
    Uh, Ul = potential_halves(U, has)
    c = tl.zeros([BK], tl.float32)
    sums = tl.zeros([BK], tl.float32)
    off = 0.0
    above = 0
    below = 0
    phi = tl.load(phi_ptr + row * phi_row + j, mask=j < K, other=0.0).to(tl.float32)
    if RULE:
        l = tl.arange(0, 16)
        # The last two are what the estimate is about; the others are heeded less, in case these vanish by chance.
        heed = tl.where(l < 2, 0.04, tl.where(l < 4, 0.4, 4.0))
        at_last = last_ptr + row * last_row + l[None, :] * K + j[:, None]
        last = tl.load(at_last, mask=(l < 6)[None, :] & (j < K)[:, None], other=0.0).to(tl.float32)
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        xh, xl, a = load_placed(at_ptr, a_ptr, i, N, a_col, WEIGHTED)
        p = shares(xh, xl, y_single, yh, yl, Uh, Ul, s_2, False)
        c += tl.sum(p * a[:, None], axis=0)
        if PUSH:
            x = load_row(x_ptr, a_ptr, i, N, x_col, a_col, WEIGHTED)[0]
            z = place(x, origin, unit, SQUASH, tl.float32)[0]
            finite = tl.abs(x) < float("inf")
            sums += tl.sum(p * tl.where(finite, a * z, 0.0)[:, None], axis=0)
            above = tl.maximum(above, tl.max(tl.where((x > 0) & (a > 0) & ~finite, 1, 0), axis=0))
            below = tl.maximum(below, tl.max(tl.where((x < 0) & (a > 0) & ~finite, 1, 0), axis=0))
        else:
            mean = tl.sum(p * phi[None, :], axis=1)
            mean = tl.where(bad > 0, float("nan"), mean)
            tl.store(out_ptr + row * N + i, mean, mask=i < N)
        if RULE:
            coefficients = tl.dot(p, last, input_precision="tf32x3")
            squares = tl.sum(coefficients * coefficients * heed[None, :], axis=1)
            off = tl.maximum(off, tl.max(tl.where(i < N, squares, 0.0), axis=0))
    if PUSH:
        average = tl.where(c > 0, sums / tl.where(c > 0, c, 1.0), 0.0).to(tl.float64) * unit + origin
        average = tl.where(above > 0, float("inf"), 0.0) - tl.where(below > 0, float("inf"), 0.0) + average
        average = tl.where(bad > 0, float("nan"), tl.where(has, average, 0.0))
        tl.store(out_ptr + row * K + j, average, mask=j < K)
    error = off + tl.sum(tl.abs(b - c), axis=0)
    if MENDED:
        error = tl.where((softness < _WEAK) & (softness > _NONE), 1.0, error)
    tl.store(error_ptr + row, tl.where(bad > 0, 0.0, error))
    tl.store(state_ptr, origin)
    tl.store(state_ptr + 1, unit)
    tl.store(state_ptr + 2, spread)
    tl.store(state_ptr + 3, bad.to(tl.float64))
    tl.store(state_ptr + 4, tl.zeros([], tl.float64))
    tl.store(state_ptr + 8 + j, U, mask=j < K)


@triton.jit
def backward(
    x_ptr: tl.tensor, a_ptr: tl.tensor, y_ptr: tl.tensor, b_ptr: tl.tensor, phi_ptr: tl.tensor, w_ptr: tl.tensor, eps_ptr: tl.tensor,
    at_ptr: tl.tensor, state_ptr: tl.tensor, partial_ptr: tl.tensor, grad_ptr: tl.tensor,
    eps: float, N: tl.tensor, K: tl.tensor, S: tl.tensor,
    x_row: tl.tensor, x_col: tl.tensor, a_row: tl.tensor, a_col: tl.tensor, y_row: tl.tensor, b_row: tl.tensor, phi_row: tl.tensor, w_row: tl.tensor, w_col: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, PUSH: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr
) -> None:  # fmt: skip
    """The cotangent of x, see ``asks``. For push w is the cotangent of the answer and phi is not read."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row
    a_ptr += row * a_row
    at_ptr += row * N * 2
    state_ptr += row * S
    w_ptr += row * w_row
    partial_ptr += row * N * (2 if PUSH else 1)
    if tl.load(state_ptr + 4) > 0:
        return
    if EPS_ROWS:
        eps = tl.load(eps_ptr + row)
    j = tl.arange(0, BK)
    y, step, b, has, y_low, y_high, y_scale = load_targets(y_ptr + row * y_row, b_ptr + row * b_row, K, BK)
    origin, unit = tl.load(state_ptr), tl.load(state_ptr + 1)
    x_scale = unit if SQUASH == 0 else unit * 0.0 + 1.0
    s = 2.0 * x_scale * y_scale / eps
    s_2 = (s * LOG2_E).to(tl.float32)
    yh, yl = halves(y)
    y_single = y.to(tl.float32)
    place_row(x_ptr, a_ptr, at_ptr, N, x_col, a_col, origin, unit, SQUASH, WEIGHTED, BN)
    Uh, Ul = potential_halves(tl.load(state_ptr + 8 + j, mask=j < K, other=0.0), has)
    if PUSH:
        c = tl.load(w_ptr + j * w_col, mask=has, other=0.0).to(tl.float32)
        phi = tl.where(has, c / tl.where(has, b, 1.0), 0.0)
    else:
        phi = tl.load(phi_ptr + row * phi_row + j, mask=j < K, other=0.0).to(tl.float32)

    t = tl.zeros([BK], tl.float32)
    W = tl.zeros([BK, BK], tl.float32)
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        xh, xl, a = load_placed(at_ptr, a_ptr, i, N, a_col, WEIGHTED)
        p = shares(xh, xl, y_single, yh, yl, Uh, Ul, s_2, False)
        if PUSH:
            x = load_row(x_ptr, a_ptr, i, N, x_col, a_col, WEIGHTED)[0]
            z = place(x, origin, unit, SQUASH, tl.float32)[0]
            w = tl.where(tl.abs(x) < float("inf"), a * z, 0.0)
        else:
            w = tl.load(w_ptr + i.to(tl.int64) * w_col, mask=i < N, other=0.0).to(tl.float32)
        # The mean in two parts: phi - mean is then right to rounding of itself, not of phi.
        mean = tl.sum(p * phi[None, :], axis=1)
        apart = phi[None, :] - mean[:, None]
        apart = apart - tl.sum(p * apart, axis=1)[:, None]
        t += tl.sum(w[:, None] * p * apart, axis=0)
        weighed = p * tl.sqrt(a)[:, None]
        W = tl.dot(tl.trans(weighed), weighed, W, input_precision="tf32x3")
    D = tl.sum(tl.where(j[:, None] == j[None, :], 0.0, W), axis=1)
    W, D = bridged(W, D, K, BK)
    inverse_D, resistance = path_of(times_laplacian(W, y_single), step, D, 1e-6)
    largest = tl.max(tl.abs(t), axis=0)
    largest = tl.where(largest > 0, largest, 1.0)
    potential = laplacian_solve(W, t / largest, inverse_D, resistance, b, 1e-5, 40) * largest

    tl.debug_barrier()
    yh, yl, y_single, has = load_targets_again(y_ptr + row * y_row, b_ptr + row * b_row, K, BK)
    Uh, Ul = potential_halves(tl.load(state_ptr + 8 + j, mask=j < K, other=0.0), has)
    sum_g = tl.zeros([], tl.float64)
    sum_gz = tl.zeros([], tl.float64)
    total = tl.zeros([], tl.float32)
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        xh, xl, a = load_placed(at_ptr, a_ptr, i, N, a_col, WEIGHTED)
        x = load_row(x_ptr, a_ptr, i, N, x_col, a_col, WEIGHTED)[0]
        finite = (tl.abs(x) < float("inf")) & (i < N)
        z, at = place(x, origin, unit, SQUASH, tl.float32)
        p = shares(xh, xl, y_single, yh, yl, Uh, Ul, s_2, False)
        if PUSH:
            w = tl.where(finite, a * z, 0.0)
        else:
            w = tl.load(w_ptr + i.to(tl.int64) * w_col, mask=i < N, other=0.0).to(tl.float32)
        pull = w[:, None] * phi[None, :] - a[:, None] * potential[None, :]
        pull = pull - tl.sum(p * pull, axis=1)[:, None]
        mean = tl.sum(p * y_single[None, :], axis=1)
        apart = y_single[None, :] - mean[:, None]
        apart = apart - tl.sum(p * apart, axis=1)[:, None]
        g = tl.sum(p * pull * apart, axis=1) * s.to(tl.float32) * slope(z, at, SQUASH)
        g = tl.where(finite, g, 0.0)
        tl.store(partial_ptr + i, g, mask=i < N)
        if PUSH:  # and x itself is what is averaged
            tl.store(partial_ptr + N + i, a * tl.sum(p * phi[None, :], axis=1), mask=i < N)
        sum_g += tl.sum(g.to(tl.float64), axis=0)
        sum_gz += tl.sum(g.to(tl.float64) * tl.where(finite, z, 0.0), axis=0)
        total += tl.sum(tl.where(finite, a, 0.0), axis=0)
    tl.debug_barrier()
    through_moments(
        x_ptr, a_ptr, state_ptr, partial_ptr, grad_ptr + row * N, N, x_col, a_col, sum_g, sum_gz, total,
        SQUASH, WEIGHTED, PUSH, BN
    )  # fmt: skip
