"""The small problem of a long row in Triton: nodes of a grid against nodes of a rule, one program a row.

Newton's method on the K potentials, forward; one system with the same matrix, backward. Both are solved by conjugate
gradients: K is at most 128, the matrix stays in registers, and ten products with it cost less than an elimination.

Matrices of the plan are held as (targets, nodes): a sum over targets, of which there are many, then stays in a thread.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .triton_laplacian import bridged, laplacian_solve, path_of, times_laplacian
from .triton_long_grid import CONSTANT, HEAD, LEAST, MEAN, STD, STEP, WEIGHT, interval
from .triton_long_maths import keep, kept, origin_of, row_facts


@triton.jit
def add_up(
    masses: tl.tensor, row: tl.tensor, G: tl.tensor, skip: tl.tensor, scratch: tl.tensor, UP: tl.constexpr,
    GB: tl.constexpr,
) -> Any:  # fmt: skip
    """The sum of all masses; those of all chunks together are left in ``scratch``. Chunks are ``skip`` apart."""
    q = tl.arange(0, UP)
    total = tl.zeros((UP,), tl.float32)
    for first in range(0, G, GB):
        g = first + tl.arange(0, GB)
        where = (row.to(tl.int64) * G + g)[:, None] * skip + q[None, :]
        total += tl.sum(tl.load(masses + where, mask=(g < G)[:, None], other=0.0), 0)
    tl.store(scratch + q, total)
    tl.debug_barrier()
    return tl.sum(total)


@triton.jit
def conditional(
    q: tl.tensor, psi: tl.tensor, y: tl.tensor, least: tl.tensor, step: tl.tensor, slope: tl.tensor, there: tl.tensor,
) -> Any:  # fmt: skip
    """(K, nodes): p at the nodes q; ``y`` counted from the origin and ``psi`` in double precision."""
    at = least.to(tl.float64) + (q - 3).to(tl.float64) * step.to(tl.float64)
    logit = psi[:, None] + y[:, None] * (slope * at)[None, :]
    logit = tl.where(there[:, None], logit, -1e300)
    e = tl.exp((logit - tl.max(logit, 0)[None, :]).to(tl.float32))
    return e * (1.0 / tl.sum(e, 0))[None, :]


@triton.jit
def added_products(p: tl.tensor, mass: tl.tensor, W: tl.tensor, precision: tl.constexpr) -> Any:
    """W + p diag(mass) p^T; the same rounding on both sides keeps it symmetric."""
    root = p * tl.sqrt(tl.abs(mass))[None, :]
    return tl.dot(tl.where((mass < 0.0)[None, :], -root, root), tl.trans(root), W, input_precision=precision)


@triton.jit
def covariance(p: tl.tensor, f: tl.tensor, y: tl.tensor) -> Any:
    """Mean of f under each column of p, and Cov(f, y)."""
    middle = tl.sum(p * f[:, None], 0)
    mean_y = tl.sum(p * y[:, None], 0)
    return middle, tl.sum(p * (f[:, None] - middle[None, :]) * (y[:, None] - mean_y[None, :]), 0)


@triton.jit
def potentials(
    W: tl.tensor, r: tl.tensor, y: tl.tensor, gap: tl.tensor, share: tl.tensor, accuracy: tl.tensor, MOST: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr,
) -> Any:  # fmt: skip
    """L^+ r up to a constant, L the Laplacian of W; see ``triton_laplacian``. ``gap``: y_{j+1} - y_j."""
    k = tl.arange(0, KP)
    W, D = bridged(W, tl.sum(tl.where(k[:, None] == k[None, :], 0.0, W), 1), K, KP)
    inverse_D, resistance = path_of(times_laplacian(W, y), gap, D, 1e-6)
    return laplacian_solve(W, r, inverse_D, resistance, share, accuracy, MOST)


@triton.jit
def staircase(
    masses: tl.tensor, b: tl.tensor, least: tl.tensor, step: tl.tensor, room: tl.tensor, NODES: tl.constexpr,
    KP: tl.constexpr, UP: tl.constexpr, BU: tl.constexpr,
) -> Any:  # fmt: skip
    """Where the cumulative mass passes that of the first targets, for each of them: (K,) in double precision.

    Masses of interpolation may be negative; smoothed over neighbours, and cut at zero, they are good enough here.
    """
    q = tl.arange(0, UP)
    rough = 6.0 * tl.load(masses + q)
    for side in tl.static_range(1, 3):
        factor = 4.0 if side == 1 else 1.0
        rough += factor * tl.load(masses + q + side, mask=q + side < NODES, other=0.0)
        rough += factor * tl.load(masses + q - side, mask=q >= side, other=0.0)
    rough = tl.maximum(rough, 0.0)
    tl.store(room + q, tl.cumsum(rough / tl.sum(rough), 0))
    tl.debug_barrier()
    boundary = tl.cumsum(b, 0)
    below = tl.zeros((KP,), tl.int32)
    before = tl.zeros((KP,), tl.float32)
    after = tl.full((KP,), 2.0, tl.float32)
    for first in range(0, NODES, BU):
        at = first + tl.arange(0, BU)
        mass = tl.load(room + at, mask=at < NODES, other=2.0)
        less = mass[None, :] < boundary[:, None]
        below += tl.sum(less.to(tl.int32), 1)
        before = tl.maximum(before, tl.max(tl.where(less, mass[None, :], 0.0), 1))
        after = tl.minimum(after, tl.min(tl.where(less, 2.0, mass[None, :]), 1))
    part = (boundary - before) / tl.maximum(after - before, 1e-30)
    position = tl.minimum(below, NODES - 1).to(tl.float64) - 3.5 + tl.minimum(part, 1.0).to(tl.float64)
    return least.to(tl.float64) + step.to(tl.float64) * position


@triton.jit
def targets(
    y: tl.tensor, y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, row: tl.tensor,
    origin: tl.tensor, K: tl.constexpr, KP: tl.constexpr, EPS_ROWS: tl.constexpr,
) -> Any:  # fmt: skip
    """y from the origin in double precision, b, which of the slots are targets, and 2/eps."""
    k = tl.arange(0, KP)
    at = tl.load(y + row.to(tl.int64) * y_row + k, mask=k < K, other=0.0).to(tl.float64) - origin
    share = tl.load(b + row.to(tl.int64) * b_row + k, mask=k < K, other=0.0)
    if EPS_ROWS:
        slope = 2.0 / tl.load(eps_rows + row).to(tl.float64)
    else:
        slope = tl.full((), 2.0, tl.float64) / eps
    return at, share, share > 0.0, slope


@triton.jit
def solve(
    stats: tl.tensor, masses: tl.tensor, y: tl.tensor, y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor, phi: tl.tensor,
    phi_row: tl.tensor, last: tl.tensor, last_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, state: tl.tensor,
    error: tl.tensor, scratch: tl.tensor, G: tl.tensor, steps: tl.tensor, K: tl.constexpr, KP: tl.constexpr,
    CELLS: tl.constexpr, UP: tl.constexpr, BU: tl.constexpr, GP: tl.constexpr, GB: tl.constexpr, SQUASH: tl.constexpr,
    WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """Newton's method for the potentials of one row, from the staircase; then tables of what is read at the values.

    psi_j = gamma_j + log b_j - y_j^2/eps, so that p_ij ~ exp(psi_j + 2 x~_i y_j / eps). The nodes stand for a continuum
    of targets, so the start is the staircase plus log b, and one step of Sinkhorn's; two of Newton's then do.
    """
    row = tl.program_id(0)
    NODES: tl.constexpr = CELLS + 7
    mean, std, constant, weight, least, most, poison = row_facts(stats, row, G, SQUASH, GP)
    lowest, step = interval(least, most, CELLS)
    mine = scratch + row.to(tl.int64) * (3 * UP)
    skip = UP * (2 if WEIGHTED else 1)
    unit = 1.0 / add_up(masses, row, G, skip, mine, UP, GB)
    present = mine
    if WEIGHTED:
        present = mine + UP
        add_up(masses + UP, row, G, skip, present, UP, GB)
    at, share, there, slope = targets(y, y_row, b, b_row, eps, eps_rows, row, origin_of(mean, SQUASH), K, KP, EPS_ROWS)
    table = state + row.to(tl.int64) * (HEAD + 2 * KP + 3 * UP)
    k = tl.arange(0, KP)

    # Where targets j and j + 1 are as good as each other, psi_{j+1} - psi_j = -(2/eps) x~ (y_{j+1} - y_j).
    passes = staircase(mine, share, lowest, step, mine + 2 * UP, NODES, KP, UP, BU)
    here = tl.load(y + row.to(tl.int64) * y_row + k, mask=k < K, other=0.0).to(tl.float64)
    following = tl.load(y + row.to(tl.int64) * y_row + k + 1, mask=k + 1 < K, other=0.0).to(tl.float64)
    gap = tl.where(k + 1 < K, following - here, 0.0).to(tl.float32)
    rise = tl.where(k + 1 < K, -slope * passes * (following - here), 0.0)
    base = tl.cumsum(rise, 0) - rise + tl.where(there, tl.log(tl.where(there, share, 1.0)), 0.0).to(tl.float64)
    reached = tl.zeros((KP, BU), tl.float32)
    for first in range(0, NODES, BU):
        q = first + tl.arange(0, BU)
        reached += conditional(q, base, at, lowest, step, slope, there) * tl.load(mine + q)[None, :]
    s = unit * tl.sum(reached, 1)
    base += tl.where(there, tl.log(share / tl.maximum(s, 1e-30)), 0.0).to(tl.float64)
    direction = tl.zeros((KP,), tl.float32)
    length = tl.full((), 1.0, tl.float32)
    gradient = tl.full((), float("inf"), tl.float32)
    psi = base
    off = tl.full((), 2.0, tl.float32)
    done = 0
    while (done < steps) & (off > 1e-6):
        psi = through_memory(table + HEAD, base + (length * direction).to(tl.float64), KP)
        reached = tl.zeros((KP, BU), tl.float32)
        W = tl.zeros((KP, KP), tl.float32)
        for first in range(0, NODES, BU):
            q = first + tl.arange(0, BU)
            mass = unit * tl.load(mine + q)
            p = conditional(q, psi, at, lowest, step, slope, there)
            reached += p * mass[None, :]
            W = added_products(p, mass, W, "tf32")
        s = tl.sum(reached, 1)
        r = tl.where(there, share - s, 0.0)
        off = tl.sum(tl.abs(r))
        if off > 1e-6:
            newton = potentials(W, r, at.to(tl.float32), gap, share, 0.01, 40, K, KP)
            newton = tl.minimum(tl.maximum(newton, -5.0), 5.0)
            uphill = tl.sum(r * newton) > 0.0
            sinkhorn = tl.where(there, tl.log(share / tl.maximum(s, 1e-30)), 0.0)
            newton = tl.where(uphill, newton, sinkhorn)
            slope_here = tl.sum(r * direction)
            overshot = slope_here < -0.5 * gradient
            secant = length * gradient / (gradient - slope_here)
            length = tl.where(overshot, secant, 1.0)
            base = tl.where(overshot, base, psi)
            direction = tl.where(overshot, direction, newton)
            gradient = tl.where(overshot, gradient, tl.sum(r * newton))
        done += 1

    # Tables at the nodes, and what rule and grid get wrong where there are values.
    levels = tl.load(phi + row.to(tl.int64) * phi_row + k, mask=k < K, other=0.0)
    level_range = tl.max(tl.where(there, levels, -float("inf"))) - tl.min(tl.where(there, levels, float("inf")))
    line = tl.arange(0, 16)
    of_last = last + row.to(tl.int64) * last_row + line[:, None] * K + k[None, :]
    last_rows = tl.load(of_last, mask=(line < 6)[:, None] & (k < K)[None, :], other=0.0)
    ranks = table + HEAD + 2 * KP
    off_rule = tl.full((), 0.0, tl.float32)
    for first in range(0, NODES, BU):
        q = first + tl.arange(0, BU)
        p = conditional(q, psi, at, lowest, step, slope, there)
        value, both = covariance(p, levels, at.to(tl.float32))
        tl.store(ranks + q, value)
        tl.store(ranks + UP + q, both)
        tl.store(ranks + 2 * UP + q, unit * tl.load(mine + q))
        coefficient = tl.dot(last_rows, p, input_precision="tf32x3")
        squares = tl.sum(coefficient * coefficient, 0)
        off_rule = tl.maximum(off_rule, tl.max(tl.where(tl.load(present + q) != 0.0, squares, 0.0)))
    tl.debug_barrier()
    cell = tl.arange(0, UP)
    inside = cell < CELLS
    occupied = (tl.load(present + cell + 3, mask=inside, other=0.0) != 0.0) | (
        tl.load(present + cell + 4, mask=inside, other=0.0) != 0.0
    )
    left = difference(ranks, cell - 1, CELLS - 1)
    right = difference(ranks, cell, CELLS - 1)
    off_grid = tl.max(tl.where(occupied, tl.maximum(tl.abs(left), tl.abs(right)), 0.0)) / level_range
    off_grid *= 3.0 * 105.0 * 105.0 / (256.0 * 40320.0)
    worst = tl.maximum(tl.maximum(4.0 * off_rule, off_grid), 2.0 * off)
    tl.store(error + row, tl.where(poison == 0.0, worst, 0.0))

    keep(table + MEAN, mean)
    keep(table + STD, std)
    keep(table + WEIGHT, weight)
    tl.store(table + CONSTANT, constant.to(tl.float32))
    tl.store(table + LEAST, lowest)
    tl.store(table + STEP, step)
    tl.store(table + STEP + 1, most.to(tl.float32))


@triton.jit
def through_memory(at: tl.tensor, v: tl.tensor, KP: tl.constexpr) -> Any:
    """v (K,), double, left at ``at`` as two singles. What comes of a matrix product and is read again has no layout."""
    k = tl.arange(0, KP)
    high = v.to(tl.float32)
    tl.debug_barrier()
    tl.store(at + k, high)
    tl.store(at + KP + k, (v - high.to(tl.float64)).to(tl.float32))
    tl.debug_barrier()
    return tl.load(at + k).to(tl.float64) + tl.load(at + KP + k).to(tl.float64)


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


@triton.jit
def solve_backward(
    masses: tl.tensor, y: tl.tensor, y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor, phi: tl.tensor,
    phi_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, state: tl.tensor, scratch: tl.tensor, G: tl.tensor,
    K: tl.constexpr, KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, BU: tl.constexpr, GB: tl.constexpr,
    SQUASH: tl.constexpr, EPS_ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """lambda of one row, and the table of Cov(lambda, y) at the nodes, behind the masses in ``scratch``."""
    row = tl.program_id(0)
    table = state + row.to(tl.int64) * (HEAD + 2 * KP + 3 * UP)
    lowest, step = tl.load(table + LEAST), tl.load(table + STEP)
    mine = scratch + row.to(tl.int64) * (2 * UP)
    add_up(masses, row, G, UP, mine, UP, GB)
    at, share, there, slope = targets(
        y, y_row, b, b_row, eps, eps_rows, row, origin_of(kept(table + MEAN), SQUASH), K, KP, EPS_ROWS
    )
    k = tl.arange(0, KP)
    here = tl.load(y + row.to(tl.int64) * y_row + k, mask=k < K, other=0.0)
    following = tl.load(y + row.to(tl.int64) * y_row + k + 1, mask=k + 1 < K, other=0.0)
    gap = tl.where(k + 1 < K, following - here, 0.0)
    psi = tl.load(table + HEAD + k).to(tl.float64) + tl.load(table + HEAD + KP + k).to(tl.float64)
    levels = tl.load(phi + row.to(tl.int64) * phi_row + k, mask=k < K, other=0.0)
    ranks = table + HEAD + 2 * KP
    moved = tl.zeros((KP, BU), tl.float32)
    W = tl.zeros((KP, KP), tl.float32)
    for first in range(0, CELLS + 7, BU):
        q = first + tl.arange(0, BU)
        p = conditional(q, psi, at, lowest, step, slope, there)
        W = added_products(p, tl.load(ranks + 2 * UP + q), W, "tf32x3")
        moved += tl.load(mine + q)[None, :] * p * (levels[:, None] - tl.load(ranks + q)[None, :])
    t = tl.where(there, tl.sum(moved, 1), 0.0)
    multiplier = potentials(W, t, at.to(tl.float32), gap, share, 1e-5, 2 * KP, K, KP)
    tl.store(mine + UP + k, multiplier)
    tl.debug_barrier()
    multiplier = tl.load(mine + UP + k)
    tl.debug_barrier()
    for first in range(0, CELLS + 7, BU):
        q = first + tl.arange(0, BU)
        _middle, both = covariance(conditional(q, psi, at, lowest, step, slope, there), multiplier, at.to(tl.float32))
        tl.store(mine + UP + q, both)
