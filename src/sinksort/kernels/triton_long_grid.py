"""Long rows onto many targets, in Triton: by way of a grid, as ``grid`` and ``smooth`` do it.

The interval that holds x~ is cut into 9 HI cells; a value in cell k is spread to the eight nodes k, ..., k + 7 (three
lie beyond each end) with the weights of interpolation. The masses at the nodes are sums over all values of a product of
two things that depend on few bits of k each: with k = 9 h + l, node 9 h + r receives the weight r - l of values whose h
is h. So a block of values is two thin matrices, (16, BLOCK) of weights and (BLOCK, HI) of zeros and ones, and their
product is what it adds to the masses: tensor cores scatter, and always in the same order.

Forward: moments, spread, solve, read. Backward: spread the cotangents, solve, sum what the standardisation needs, read.

Matrices of the plan are held as (targets, nodes): a sum over targets, of which there are many, then stays in a thread.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .triton_long_maths import is_finite, keep, kept, load_row, load_weight, placed, row_facts

# A state: the facts of the row as pairs of singles, then tables.
MEAN, STD, WEIGHT, CONSTANT, LEAST, STEP = (tl.constexpr(i) for i in (0, 2, 4, 6, 7, 8))
HEAD = tl.constexpr(16)
LO = tl.constexpr(9)  #: cells for each h: 16 less the seven nodes that a cell reaches beyond itself


@triton.jit
def located(xi: tl.tensor, least: tl.tensor, step: tl.tensor, CELLS: tl.constexpr) -> Any:
    """Cell, and place in it counted from its node 0: between 3 and 4, and never quite there. NaN stays."""
    position = (xi - least) * (1.0 / step)
    cell = tl.floor(position).to(tl.int32)
    cell = tl.minimum(tl.maximum(cell, 0), CELLS - 1)
    u = position - cell.to(tl.float32) + 3.0
    u = tl.where(u > 3.9999995, 3.9999995, u)
    return cell, tl.where(u < 3.0000005, 3.0000005, u)


@triton.jit
def weights_of_nodes(u: tl.tensor) -> Any:
    """How interpolation weighs the eight nodes at place u: products of the distances to the others, in pairs."""
    a = u * (u - 1.0)
    b = (u - 2.0) * (u - 3.0)
    c = (u - 4.0) * (u - 5.0)
    d = (u - 6.0) * (u - 7.0)
    b_cd = b * c * d * (1.0 / 5040.0)
    a_cd = a * c * d * (1.0 / 240.0)
    ab_d = a * b * d * (1.0 / 240.0)
    ab_c = a * b * c * (1.0 / 5040.0)
    return (
        b_cd * (1.0 - u), b_cd * u * 7.0, a_cd * (3.0 - u), a_cd * (u - 2.0) * (5.0 / 3.0),
        ab_d * (5.0 - u) * (5.0 / 3.0), ab_d * (u - 4.0), ab_c * (7.0 - u) * 7.0, ab_c * (u - 6.0),
    )  # fmt: skip


@triton.jit
def spread_block(cell: tl.tensor, u: tl.tensor, weight: tl.tensor, HI: tl.constexpr) -> Any:
    """What a block of values at places u of their cells adds: (16, HI).

    Node j weighs product / (u - j) / ((-1)^(7 - j) j! (7 - j)!), with the product of all (u - j); inside (3, 4) the
    sign is + for the two nearest nodes, - for the next two, and so on. Flags are half precision, and weights the sum of
    two such numbers: 22 bits. Tensor cores cut their sums off instead of rounding: nobody adds up more than a block there.
    """
    size = tl.max(tl.abs(weight))
    size = tl.where(size > 0.0, size, 1.0)
    product = u
    for node in tl.static_range(1, 8):
        product *= tl.abs(u - node)
    product *= weight * (1.0 / size)
    h = cell // LO
    middle = tl.arange(0, 16).to(tl.float32)[:, None] - ((cell - LO * h).to(tl.float32) + 3.5)[None, :]  # j - 7/2
    away = (u - 3.5)[None, :] - middle  # exactly u - j, as in the product
    # 1 / (j! (7 - j)!) with its sign is 35, -21, 7, -1 over 7! by the distance from the middle: a cubic in its square.
    s = middle * middle
    factor = 0.009371899801587232 + s * (
        -0.01023341049382709 + s * (0.0021219135802469026 + s * -0.00011022927689594303)
    )
    value = tl.where(s < 16.0, product[None, :] * factor * tl.rsqrt(away * away), 0.0)
    high = value.to(tl.float16)
    low = ((value - high.to(tl.float32)) * 2048.0).to(tl.float16)
    flag = (h[:, None] == tl.arange(0, HI)[None, :]).to(tl.float16)
    return size * (tl.dot(high, flag) + tl.dot(low, flag) * (1.0 / 2048.0))


@triton.jit
def leave_masses(total: tl.tensor, room: tl.tensor, out: tl.tensor, HI: tl.constexpr, UP: tl.constexpr) -> None:
    """From (16, HI), by way of ``room`` for as many numbers, to the masses at the nodes, of which there are UP.

    Two neighbouring h have seven nodes in common.
    """
    tl.store(room + tl.arange(0, 16)[:, None] * HI + tl.arange(0, HI)[None, :], total)
    tl.debug_barrier()
    q = tl.arange(0, UP)
    h = q // LO
    r = q - LO * h
    mass = tl.load(room + r * HI + h, mask=h < HI, other=0.0)
    mass += tl.load(room + (r + LO) * HI + h - 1, mask=(r < 7) & (h > 0) & (h <= HI), other=0.0)
    tl.store(out + q, mass)


@triton.jit
def spread(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    stats: tl.tensor, room: tl.tensor, masses: tl.tensor, n: tl.tensor, tiles: tl.tensor, G: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, HI: tl.constexpr, UP: tl.constexpr, GP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One chunk's masses at the nodes; with weights also where there are values at all."""
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    mean, std, _constant, _weight, least, most, _poison = row_facts(stats, row, G, SQUASH, GP)
    lowest, step = interval(least, most, LO * HI)
    total = tl.zeros((16, HI), tl.float32)
    present = tl.zeros((16, HI), tl.float32)
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        xi, _slope, _z = placed(load_row(x, row, at, x_row, x_step, n), mean, std, most, SQUASH, True)
        weight = load_weight(a, row, at, a_row, a_step, n, WEIGHTED)
        cell, u = located(xi, lowest, step, LO * HI)
        total += spread_block(cell, u, weight, HI)
        if WEIGHTED:
            present += spread_block(cell, u, tl.where(at < n, 1.0, 0.0), HI)
    rooms = room + pid.to(tl.int64) * (16 * HI)
    out = masses + pid.to(tl.int64) * (UP * (2 if WEIGHTED else 1))
    leave_masses(total, rooms, out, HI, UP)
    if WEIGHTED:
        tl.debug_barrier()
        leave_masses(present, rooms, out + UP, HI, UP)


@triton.jit
def interval(least: tl.tensor, most: tl.tensor, CELLS: tl.constexpr) -> Any:
    """Where cells begin and how wide they are, in single precision; the width of a constant row does not matter."""
    width = most - least
    step = tl.where(width > 1e-5, width, 1e-5) / CELLS
    return least.to(tl.float32), step.to(tl.float32)


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
def laplacian(W: tl.tensor, KP: tl.constexpr) -> Any:
    """diag(W 1) - W, and its diagonal before W was taken off."""
    s = tl.sum(W, 1)
    k = tl.arange(0, KP)
    return tl.where(k[:, None] == k[None, :], s[:, None], 0.0) - W, s


@triton.jit
def conjugate_gradients(
    L: tl.tensor, s: tl.tensor, r: tl.tensor, there: tl.tensor, accuracy: tl.tensor, most: tl.tensor,
) -> Any:  # fmt: skip
    """L^+ r up to a constant, for r that sums to zero, until the residual is ``accuracy`` times what it was."""
    inverse = tl.where(there & (s > 0.0), 1.0 / tl.where(s > 0.0, s, 1.0), 0.0)
    r = r - tl.sum(r) * s / tl.sum(s)
    d = tl.zeros_like(r)
    direction = r * inverse
    size = tl.sum(r * direction)
    enough = accuracy * accuracy * size
    steps = 0
    while (steps < most) & (size > enough):
        image = tl.sum(L * direction[None, :], 1)
        curvature = tl.sum(direction * image)
        length = size / tl.where(curvature > 0.0, curvature, 1.0)
        length = tl.where(curvature > 0.0, length, 0.0)
        d += length * direction
        r -= length * image
        q = r * inverse
        new = tl.where(curvature > 0.0, tl.sum(r * q), 0.0)
        direction = q + (new / size) * direction
        size = new
        steps += 1
    return d


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
def origin_of(mean: tl.tensor, SQUASH: tl.constexpr) -> Any:
    if SQUASH == 0:
        origin = mean
    else:
        origin = mean * 0.0 + 0.5
    return origin


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
            L, diagonal = laplacian(W, KP)
            newton = conjugate_gradients(L, diagonal, r, there, 0.01, 40)
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
def between(table: tl.tensor, cell: tl.tensor, u: tl.tensor, mask: tl.tensor) -> Any:
    """The polynomial through eight nodes of a table, at places u of cells."""
    w0, w1, w2, w3, w4, w5, w6, w7 = weights_of_nodes(u)
    value = tl.load(table + cell, mask=mask, other=0.0) * w0
    value += tl.load(table + cell + 1, mask=mask, other=0.0) * w1
    value += tl.load(table + cell + 2, mask=mask, other=0.0) * w2
    value += tl.load(table + cell + 3, mask=mask, other=0.0) * w3
    value += tl.load(table + cell + 4, mask=mask, other=0.0) * w4
    value += tl.load(table + cell + 5, mask=mask, other=0.0) * w5
    value += tl.load(table + cell + 6, mask=mask, other=0.0) * w6
    return value + tl.load(table + cell + 7, mask=mask, other=0.0) * w7


@triton.jit
def read(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, state: tl.tensor, size: tl.tensor, out: tl.tensor, n: tl.tensor,
    blocks: tl.tensor, KP: tl.constexpr, CELLS: tl.constexpr, SQUASH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The table of ranks at every value."""
    pid = tl.program_id(0)
    row, block = pid // blocks, pid % blocks
    table = state + row.to(tl.int64) * size
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    most = tl.load(table + STEP + 1).to(tl.float64)
    xi, _slope, _z = placed(
        load_row(x, row, at, x_row, x_step, n), kept(table + MEAN), kept(table + STD), most, SQUASH, True
    )
    cell, u = located(xi, tl.load(table + LEAST), tl.load(table + STEP), CELLS)
    value = between(table + HEAD + 2 * KP, cell, u, inside)
    tl.store(out + row.to(tl.int64) * n + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def spread_cotangents(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, w: tl.tensor, w_row: tl.tensor, w_step: tl.tensor,
    state: tl.tensor, size: tl.tensor, room: tl.tensor, masses: tl.tensor, n: tl.tensor, tiles: tl.tensor, G: tl.tensor,
    SQUASH: tl.constexpr, HI: tl.constexpr, UP: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """``spread`` with the cotangents for weights."""
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    table = state + row.to(tl.int64) * size
    mean, std, most = kept(table + MEAN), kept(table + STD), tl.load(table + STEP + 1).to(tl.float64)
    lowest, step = tl.load(table + LEAST), tl.load(table + STEP)
    total = tl.zeros((16, HI), tl.float32)
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        xi, _slope, _z = placed(load_row(x, row, at, x_row, x_step, n), mean, std, most, SQUASH, True)
        weight = load_weight(w, row, at, w_row, w_step, n, True)
        cell, u = located(xi, lowest, step, LO * HI)
        total += spread_block(cell, u, weight, HI)
    leave_masses(total, room + pid.to(tl.int64) * (16 * HI), masses + pid.to(tl.int64) * UP, HI, UP)


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
    at, _share, there, slope = targets(
        y, y_row, b, b_row, eps, eps_rows, row, origin_of(kept(table + MEAN), SQUASH), K, KP, EPS_ROWS
    )
    k = tl.arange(0, KP)
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
    L, diagonal = laplacian(W, KP)
    t = tl.where(there, tl.sum(moved, 1), 0.0)
    multiplier = conjugate_gradients(L, diagonal, t, there, 1e-5, 2 * KP)
    tl.store(mine + UP + k, multiplier)
    tl.debug_barrier()
    multiplier = tl.load(mine + UP + k)
    tl.debug_barrier()
    for first in range(0, CELLS + 7, BU):
        q = first + tl.arange(0, BU)
        _middle, both = covariance(conditional(q, psi, at, lowest, step, slope, there), multiplier, at.to(tl.float32))
        tl.store(mine + UP + q, both)


@triton.jit
def pulled_back(
    v: tl.tensor, weight: tl.tensor, w: tl.tensor, inside: tl.tensor, table: tl.tensor, covariances: tl.tensor,
    slope: tl.tensor, KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, SQUASH: tl.constexpr,
) -> Any:  # fmt: skip
    """The cotangent of z, and z, of some values; infinite ones have none."""
    mean, std, most = kept(table + MEAN), kept(table + STD), tl.load(table + STEP + 1).to(tl.float64)
    xi, steepness, z = placed(v, mean, std, most, SQUASH, True)
    cell, u = located(xi, tl.load(table + LEAST), tl.load(table + STEP), CELLS)
    direct = w * between(table + HEAD + 2 * KP + UP, cell, u, inside)
    through = weight * between(covariances, cell, u, inside)
    pull = slope * steepness * (direct - through)
    return tl.where(is_finite(v) | (v != v), pull, 0.0), z


@triton.jit
def sum_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, state: tl.tensor, scratch: tl.tensor, sums: tl.tensor, eps: tl.tensor,
    eps_rows: tl.tensor, n: tl.tensor, tiles: tl.tensor, G: tl.tensor, KP: tl.constexpr, CELLS: tl.constexpr,
    UP: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One chunk's sums of the cotangent of z, alone and times z: what the mean and the deviation receive."""
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    table = state + row.to(tl.int64) * (HEAD + 2 * KP + 3 * UP)
    covariances = scratch + row.to(tl.int64) * (2 * UP) + UP
    slope = 2.0 / (tl.load(eps_rows + row) if EPS_ROWS else eps)
    unit = 1.0 if WEIGHTED else 1.0 / n
    total = tl.full((), 0.0, tl.float64)
    tilted = tl.full((), 0.0, tl.float64)
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        v = load_row(x, row, at, x_row, x_step, n)
        weight = unit * load_weight(a, row, at, a_row, a_step, n, WEIGHTED)
        cotangent = load_weight(w, row, at, w_row, w_step, n, True)
        pull, z = pulled_back(v, weight, cotangent, inside, table, covariances, slope, KP, CELLS, UP, SQUASH)
        total += tl.sum(pull).to(tl.float64)
        tilted += tl.sum(pull * z).to(tl.float64)
    tl.store(sums + pid.to(tl.int64) * 2, total)
    tl.store(sums + pid.to(tl.int64) * 2 + 1, tilted)


@triton.jit
def read_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, state: tl.tensor, scratch: tl.tensor, sums: tl.tensor, eps: tl.tensor,
    eps_rows: tl.tensor, out: tl.tensor, n: tl.tensor, blocks: tl.tensor, G: tl.tensor, KP: tl.constexpr,
    CELLS: tl.constexpr, UP: tl.constexpr, GP: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr,
    EPS_ROWS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The cotangent of x. With z = (x - mean) / std it is (g_i - a_i (sum g + z_i sum g z)) / std."""
    pid = tl.program_id(0)
    row, block = pid // blocks, pid % blocks
    table = state + row.to(tl.int64) * (HEAD + 2 * KP + 3 * UP)
    covariances = scratch + row.to(tl.int64) * (2 * UP) + UP
    slope = 2.0 / (tl.load(eps_rows + row) if EPS_ROWS else eps)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    v = load_row(x, row, at, x_row, x_step, n)
    weight = load_weight(a, row, at, a_row, a_step, n, WEIGHTED)
    cotangent = load_weight(w, row, at, w_row, w_step, n, True)
    unit = 1.0 if WEIGHTED else 1.0 / n
    pull, z = pulled_back(v, unit * weight, cotangent, inside, table, covariances, slope, KP, CELLS, UP, SQUASH)
    if SQUASH != 0:
        total, tilted = sums_of(sums, row, G, tl.load(table + CONSTANT), GP)
        pull = standard_back(pull, z, weight, v, total, tilted, kept(table + WEIGHT), kept(table + STD))
    tl.store(out + row.to(tl.int64) * n + at, pull.to(out.dtype.element_ty), mask=inside)


@triton.jit
def sums_of(sums: tl.tensor, row: tl.tensor, G: tl.tensor, constant: tl.tensor, GP: tl.constexpr) -> Any:
    """The two sums of a row; a constant row has no deviation to receive the second."""
    g = tl.arange(0, GP)
    of_chunk = sums + (row.to(tl.int64) * G + g) * 2
    total = tl.sum(tl.load(of_chunk, mask=g < G, other=0.0))
    tilted = tl.sum(tl.load(of_chunk + 1, mask=g < G, other=0.0))
    return total, tl.where(constant > 0.0, 0.0, tilted)


@triton.jit
def standard_back(
    pull: tl.tensor, z: tl.tensor, weight: tl.tensor, v: tl.tensor, total: tl.tensor, tilted: tl.tensor,
    weight_sum: tl.tensor, std: tl.tensor,
) -> Any:  # fmt: skip
    """The cotangent of x from that of z, its sum and its sum with z, over the row."""
    counted = is_finite(v) & (weight > 0.0)
    mean_part = weight * ((total / weight_sum).to(tl.float32) + z * (tilted / weight_sum).to(tl.float32))
    return (pull - tl.where(counted, mean_part, 0.0)) * (1.0 / std).to(tl.float32)
