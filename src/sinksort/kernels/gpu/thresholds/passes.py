"""Long rows onto two to four targets, in Triton: memberships and quantiles, and what a row hands to its gradient.

Few targets make sharp edges (eps wide, not sqrt(eps)), which no grid resolves, so every step of Newton's method is one
pass over the values: K exponentials each, sums of p_ij and of p_ij p_ik. It starts from the staircase.

Rows of moderate length are worked on by one program each, longer ones by several that wait for each other, in one
launch: see ``thresholds.two`` and ``thresholds.several``. Where that cannot be (Triton is too old, or values
are very many) rows are cut into chunks, and their passes are here. Each is a launch, see ``thresholds.chunks``, in
whose beginning every program adds up the sums of the pass before and makes the (tiny) step for itself. The number of
launches is fixed; a row that has converged is not read again.

Places x~, potentials and sums over chunks are double: with eps = 1e-3 a membership moves by 500 times as much as x~.
Matrices are (targets, values): sums over targets stay in a thread, and sums over values wait until all were seen.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.maths import is_finite, load_row, load_weight, placed
from ..engine.sums import agreed_sum
from .start import unit_of

# A state, in doubles: facts of the row, psi, column sums, products (KP, KP), and what each target averages.
MEAN, STD, CONSTANT, WEIGHT, MOST, PSI, SUMS, AVERAGE, PRODUCTS = (
    tl.constexpr(i) for i in (0, 1, 2, 3, 4, 8, 12, 16, 20)
)
STATE = tl.constexpr(36)
CONVERGED = tl.constexpr(2e-6)
#: Conductance, relative to the weights it joins, below which rounding decides what flows: sums of singles leave 1e-8 of
#: a flow. Without it potentials would differ by so much across such a link that single precision lost their other
#: differences.
FAINT = tl.constexpr(1e-10)


@triton.jit
def targets_of_row(
    y: tl.tensor, y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, row: tl.tensor,
    origin: tl.tensor, K: tl.constexpr, KP: tl.constexpr, EPS_ROWS: tl.constexpr,
) -> Any:  # fmt: skip
    """y from the origin, y_{j+1} - y_j, b, and 2/eps, all double. The largest b is what the others leave."""
    k = tl.arange(0, KP)
    here = tl.load(y + row.to(tl.int64) * y_row + k, mask=k < K, other=0.0).to(tl.float64)
    following = tl.load(y + row.to(tl.int64) * y_row + k + 1, mask=k + 1 < K, other=0.0).to(tl.float64)
    gap = tl.where(k + 1 < K, following - here, 0.0)
    if EPS_ROWS:
        slope = 2.0 / tl.load(eps_rows + row).to(tl.float64)
    else:
        slope = tl.full((), 2.0, tl.float64) / eps
    return here - origin, gap, shares_of(b, b_row, row, K, KP), slope


@triton.jit
def shares_of(b: tl.tensor, b_row: tl.tensor, row: tl.tensor, K: tl.constexpr, KP: tl.constexpr) -> Any:
    k = tl.arange(0, KP)
    share = tl.load(b + row.to(tl.int64) * b_row + k, mask=k < K, other=0.0).to(tl.float64)
    big = largest(share, KP)
    share = tl.where(big, 0.0, share)
    return tl.where(big, 1.0 - tl.sum(share), share)


@triton.jit
def largest(share: tl.tensor, KP: tl.constexpr) -> Any:
    """Which of the targets weighs most: one of them."""
    k = tl.arange(0, KP)
    first = tl.min(tl.where(share == tl.max(share), k, KP))
    return k == first


@triton.jit
def shares(
    xi: tl.tensor, psi: tl.tensor, y: tl.tensor, slope: tl.tensor, there: tl.tensor, DT: tl.constexpr,
) -> Any:  # fmt: skip
    """Return p (K, values), in DT, from double potentials."""
    logit = psi[:, None] + y[:, None] * (slope * xi)[None, :]
    logit = tl.where(there[:, None], logit, -1e300)
    e = tl.exp((logit - tl.max(logit, 0)[None, :]).to(DT))
    return e * (1.0 / tl.sum(e, 0))[None, :]


@triton.jit
def parted(
    xi: tl.tensor, psi: tl.tensor, y: tl.tensor, slope: tl.tensor, there: tl.tensor, KP: tl.constexpr,
) -> Any:  # fmt: skip
    """(K, values), thrice: p, which target is the best (one of them), and p less one there: right to its last digit."""
    k = tl.arange(0, KP)[:, None]
    logit = psi[:, None] + y[:, None] * (slope * xi)[None, :]
    logit = tl.where(there[:, None], logit, -1e300)
    top = tl.max(logit, 0)
    best = k == tl.min(tl.where(logit == top[None, :], k, KP), 0)[None, :]
    e = tl.exp((logit - top[None, :]).to(tl.float32))
    others = tl.sum(tl.where(best, 0.0, e), 0)
    unit = 1.0 / (1.0 + others)
    p = e * unit[None, :]
    return p, best, tl.where(best, -(others * unit)[None, :], p)


@triton.jit
def off_average(p: tl.tensor, v: tl.tensor, KP: tl.constexpr) -> Any:
    """p_j (v_j - sum_k p_k v_k), as sum_k p_j p_k (v_j - v_k): nothing cancels where one p is nearly all."""
    out = p * 0.0
    for k in tl.static_range(KP):
        v_k = tl.sum(tl.where(tl.arange(0, KP) == k, v, 0.0))
        out += p * of_target(p, k, KP)[None, :] * (v - v_k)[:, None]
    return out


@triton.jit
def solved(matrix: tl.tensor, right: tl.tensor, share: tl.tensor, KP: tl.constexpr) -> Any:
    """L^+ right, where L has -matrix off its diagonal and rows that sum to zero, up to a constant.

    Scaled by b^(-1/2) on both sides L has its eigenvalues in [0, 1], and the null vector sqrt(b) is moved to 1.
    """
    i = tl.arange(0, KP)
    if KP == 2:
        across = tl.sum(tl.where(i[:, None] < i[None, :], matrix, 0.0))
        step = right / tl.where(across > 0.0, across, 1.0)
        return tl.where(across > 0.0, tl.where(i == 1, step, 0.0), 0.0)
    same = i[:, None] == i[None, :]
    there = share > 0.0
    root = tl.sqrt(tl.where(there, share, 1.0))
    between = tl.where(same, 0.0, matrix)
    M = tl.where(same, tl.sum(between, 1)[:, None], -between) / (root[:, None] * root[None, :])
    M += root[:, None] * root[None, :] + tl.where(same, FAINT, 0.0)
    M = tl.where(there[:, None] & there[None, :], M, tl.where(same, 1.0, 0.0).to(tl.float64))
    r = tl.where(there, right / root, 0.0)
    for k in tl.static_range(KP):
        pivot_row = tl.sum(tl.where(i[:, None] == k, M, 0.0), 0)
        column = tl.sum(tl.where(i[None, :] == k, M, 0.0), 1)
        pivot = tl.sum(tl.where(i == k, pivot_row, 0.0))
        at_pivot = tl.sum(tl.where(i == k, r, 0.0))
        factor = tl.where(i == k, 0.0, column / pivot)
        M -= factor[:, None] * pivot_row[None, :]
        r -= factor * at_pivot
    return tl.where(there, r / tl.sum(tl.where(same, M, 0.0), 1) / root, 0.0)


@triton.jit
def marginal_error(hard: tl.tensor, apart: tl.tensor, share: tl.tensor, KP: tl.constexpr) -> Any:
    """b less what arrives; for the largest b what the others leave, so that nothing is lost next to it.

    Where a plan is nearly hard, so is b - ``hard`` = ``apart`` small, and its rounding as small again.
    """
    big = largest(share, KP)
    lacks = share - hard
    lacks = tl.where(tl.abs(lacks) > 4e-16, lacks, 0.0)
    r = tl.where((share > 0.0) & (big == 0), lacks - apart, 0.0)
    return tl.where(big, -tl.sum(r), r)


@triton.jit
def errors_of(
    hard: tl.tensor, apart: tl.tensor, W: tl.tensor, share: tl.tensor, n: tl.tensor, KP: tl.constexpr,
) -> Any:  # fmt: skip
    """The marginal error, Newton's step, and the error of the answer: of weights, relative, and of memberships.

    A membership p is off by at most a quarter of the step; and where hardly any value is between targets, so that the
    step says little, by no more than what all values together are off. Between two targets it always says enough.
    """
    r = marginal_error(hard, apart, share, KP)
    newton = solved(W, r, share, KP)
    newton -= tl.sum(tl.where(largest(share, KP), newton, 0.0))
    there = share > 0.0
    of_weights = tl.max(tl.where(there, tl.abs(r) / tl.where(there, share, 1.0), 0.0))
    of_memberships = 0.25 * tl.max(tl.abs(newton))
    if KP > 2:
        of_memberships = tl.minimum(of_memberships, n * tl.max(tl.abs(r)))
    else:
        of_memberships = tl.where(tl.sum(W) > 0.0, of_memberships, n * tl.max(tl.abs(r)))
    return r, newton, tl.maximum(of_weights, of_memberships)


@triton.jit
def stepped(
    hard: tl.tensor, apart: tl.tensor, W: tl.tensor, share: tl.tensor, n: tl.tensor, base: tl.tensor,
    direction: tl.tensor, length: tl.tensor, gradient: tl.tensor, KP: tl.constexpr,
) -> Any:  # fmt: skip
    """The next (base, direction, length, slope) from sums at base + length direction, and how far off that was.

    The rules are those of ``solvers.newton``.
    """
    there = share > 0.0
    r, newton, off = errors_of(hard, apart, W, share, n, KP)
    newton = tl.minimum(tl.maximum(newton, -5.0), 5.0)
    # Sinkhorn's step always goes uphill. The first is one: it finds the weight of a target that has next to none.
    arrives = tl.maximum(hard + apart, 1e-300)
    relative = r / arrives  # log(share / arrives) without the rounding of a quotient that is nearly one
    sinkhorn = tl.where(tl.abs(relative) < 1e-6, relative, tl.log(share / arrives))
    sinkhorn = tl.where(there, sinkhorn, 0.0)
    newton = tl.where((agreed_sum(r * newton, 0) > 0.0) & (gradient < float("inf")), newton, sinkhorn)
    slope_here = agreed_sum(r * direction, 0)
    overshot = slope_here < -0.5 * gradient
    point = base + length * direction
    over = off <= CONVERGED
    length = tl.where(overshot, length * gradient / (gradient - slope_here), 1.0)
    length = tl.where(over, 1.0, length)
    base = tl.where(overshot & (over == 0), base, point)
    direction = tl.where(over, 0.0, tl.where(overshot, direction, newton))
    gradient = tl.where(overshot, gradient, agreed_sum(r * newton, 0))
    return base, direction, length, gradient, off


@triton.jit
def summed(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, n: tl.tensor,
    row: tl.tensor, g: tl.tensor, tiles: tl.tensor, mean: tl.tensor, std: tl.tensor, most: tl.tensor, psi: tl.tensor,
    y: tl.tensor, there: tl.tensor, slope: tl.tensor, KP: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr,
    PUSH: tl.constexpr, BLOCK: tl.constexpr,
) -> Any:  # fmt: skip
    """One pass over a chunk: column sums, what targets average (finite part, in z), infinite payload, products.

    Column sums come in two parts: what values weigh that are best off with a target, and how that differs.
    """
    hard = tl.zeros((KP, BLOCK), tl.float64)
    apart = tl.zeros((KP, BLOCK), tl.float64)
    average = tl.zeros((KP, BLOCK), tl.float32)
    w01 = tl.zeros((BLOCK,), tl.float32)
    w02, w12, w03, w13, w23 = w01, w01, w01, w01, w01
    beyond = tl.zeros((BLOCK,), tl.float64)
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        v = load_row(x, row, at, x_row, x_step, n)
        xi, _slope, z = placed(v, mean, std, most, SQUASH, False)
        weight = load_weight(a, row, at, a_row, a_step, n, WEIGHTED)
        p, best, off = parted(xi, psi, y, slope, there, KP)
        carried = p * weight[None, :]
        hard += tl.where(best, weight[None, :], 0.0).to(tl.float64)
        apart += (off * weight[None, :]).to(tl.float64)
        p0, p1 = of_target(carried, 0, KP), of_target(p, 1, KP)
        w01 += p0 * p1
        if KP == 4:
            p2, p3 = of_target(p, 2, KP), of_target(p, 3, KP)
            w02 += p0 * p2
            w03 += p0 * p3
            p1 = p1 * weight
            w12 += p1 * p2
            w13 += p1 * p3
            w23 += p2 * p3 * weight
        if PUSH:
            finite = is_finite(v) & (weight > 0.0)
            average += carried * tl.where(finite, z, 0.0).to(tl.float32)[None, :]
            beyond += tl.where((weight > 0.0) & (is_finite(v) == 0), v, 0.0)
    unit = unit_of(n, WEIGHTED)
    W = entry(w01, 0, 1, KP)
    if KP == 4:
        W += entry(w02, 0, 2, KP) + entry(w03, 0, 3, KP) + entry(w12, 1, 2, KP) + entry(w13, 1, 3, KP)
        W += entry(w23, 2, 3, KP)
    return (
        tl.sum(hard, 1) * unit, tl.sum(apart, 1) * unit, tl.sum(average, 1).to(tl.float64) * unit, tl.sum(beyond),
        W * unit,
    )  # fmt: skip


@triton.jit
def of_target(p: tl.tensor, j: tl.constexpr, KP: tl.constexpr) -> Any:
    """Row j of p (K, values)."""
    return tl.sum(tl.where((tl.arange(0, KP) == j)[:, None], p, 0.0), 0)


@triton.jit
def entry(products: tl.tensor, j: tl.constexpr, k: tl.constexpr, KP: tl.constexpr) -> Any:
    """A symmetric matrix with the sum of ``products`` at (j, k)."""
    row = tl.arange(0, KP)[:, None]
    column = tl.arange(0, KP)[None, :]
    here = ((row == j) & (column == k)) | ((row == k) & (column == j))
    return tl.where(here, tl.sum(products).to(tl.float64), 0.0)


@triton.jit
def written(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, out: tl.tensor, n: tl.tensor, row: tl.tensor, g: tl.tensor,
    tiles: tl.tensor, mean: tl.tensor, std: tl.tensor, most: tl.tensor, psi: tl.tensor, y: tl.tensor, levels: tl.tensor,
    there: tl.tensor, slope: tl.tensor, SQUASH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The averages of ``levels`` for a chunk."""
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        xi, _slope, _z = placed(load_row(x, row, at, x_row, x_step, n), mean, std, most, SQUASH, False)
        value = tl.sum(shares(xi, psi, y, slope, there, tl.float32) * levels[:, None], 0)
        tl.store(out + row.to(tl.int64) * n + at, value.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def without_layout(at: tl.tensor, v: tl.tensor, KP: tl.constexpr) -> Any:
    """v (K,), written and read again: a layout made for small matrices must not become that of all values."""
    k = tl.arange(0, KP)
    tl.debug_barrier()
    tl.store(at + k, v)
    tl.debug_barrier()
    return tl.load(at + k)


@triton.jit
def finished(
    state: tl.tensor, error: tl.tensor, out: tl.tensor, row: tl.tensor, mean: tl.tensor, std: tl.tensor,
    constant: tl.tensor, weight: tl.tensor, most: tl.tensor, poison: tl.tensor, psi: tl.tensor, s: tl.tensor,
    average: tl.tensor, beyond: tl.tensor, W: tl.tensor, off: tl.tensor, share: tl.tensor, KP: tl.constexpr,
    K: tl.constexpr, PUSH: tl.constexpr,
) -> None:  # fmt: skip
    """Write the state of a row, its error, and what its targets average."""
    k = tl.arange(0, KP)
    mine = state + row.to(tl.int64) * STATE
    tl.store(mine + MEAN, mean)
    tl.store(mine + STD, std)
    tl.store(mine + CONSTANT, constant)
    tl.store(mine + WEIGHT, weight)
    tl.store(mine + MOST, most)
    tl.store(mine + PSI + k, psi)
    tl.store(mine + SUMS + k, s)
    tl.store(mine + PRODUCTS + k[:, None] * KP + k[None, :], W)
    tl.store(error + row, tl.where(poison == 0.0, off, 0.0).to(tl.float32))
    if PUSH:
        value = mean + std * average / tl.where(s > 0.0, s, 1.0)
        value = tl.where(share > 0.0, value, 0.0) + beyond
        tl.store(out + row.to(tl.int64) * K + k, value.to(tl.float32), mask=k < K)
