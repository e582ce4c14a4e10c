"""Gradients of ``thresholds.passes``: one pass over the values for sums, one for the answer.

The cotangent of x~ is (2/eps) (w_i Cov_i(phi, y) - a_i Cov_i(lambda, y)), and lambda is known only after all values
were seen; but with K targets what mean and deviation receive is linear in its K entries, so their coefficients are
summed in the same pass, and nothing is left for a third.

For ``push``, w_i = a_i z_i: payload in units of the deviation, counted from the mean. Neither changes the answer: a
constant added to the payload moves lambda by a multiple of phi, and the two covariances cancel.

With DOUBLE all arithmetic is in double precision, and Newton's matrix is summed up again. That is for averages at small
eps: the two covariances are multiplied by 2/eps, and for rows with ties hardly anything of their difference is left.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.barrier import barrier
from ..engine.maths import is_finite, load_row, load_weight, origin_of, placed, standard_back
from .exchange import COUNTERS, leave
from .passes import (
    CONSTANT,
    MEAN,
    MOST,
    PRODUCTS,
    PSI,
    STATE,
    STD,
    WEIGHT,
    of_target,
    off_average,
    shares,
    solved,
    targets_of_row,
)

#: Sums of one chunk: t, coefficients of lambda in the two sums of the cotangent of z, what they hold without it, and
#: Newton's matrix from here on.
_MATRIX = tl.constexpr(16)
BACK = tl.constexpr(32)


@triton.jit
def levels_of(
    phi: tl.tensor, phi_row: tl.tensor, row: tl.tensor, share: tl.tensor, K: tl.constexpr, KP: tl.constexpr,
    PUSH: tl.constexpr, DOUBLE: tl.constexpr,
) -> Any:  # fmt: skip
    """phi, or for push c_j / b_j."""
    k = tl.arange(0, KP)
    levels = tl.load(phi + row.to(tl.int64) * phi_row + k, mask=k < K, other=0.0).to(tl.float64)
    if PUSH:
        levels = tl.where(share > 0.0, levels / tl.where(share > 0.0, share, 1.0), 0.0)
    return levels.to(tl.float64 if DOUBLE else tl.float32)


@triton.jit
def from_the_first(y: tl.tensor, KP: tl.constexpr, DOUBLE: tl.constexpr) -> Any:
    """Targets for covariances, which do not see where they begin: far from values, single precision would."""
    return (y - tl.sum(tl.where(tl.arange(0, KP) == 0, y, 0.0))).to(tl.float64 if DOUBLE else tl.float32)


@triton.jit
def value_parts(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, n: tl.tensor, row: tl.tensor, at: tl.tensor, mean: tl.tensor, std: tl.tensor,
    most: tl.tensor, psi: tl.tensor, y: tl.tensor, there: tl.tensor, slope: tl.tensor, SQUASH: tl.constexpr,
    WEIGHTED: tl.constexpr, PUSH: tl.constexpr, DOUBLE: tl.constexpr,
) -> Any:  # fmt: skip
    """Of some values: themselves, p, z, slope of the squash (0 where there is no gradient), weight and cotangent."""
    v = load_row(x, row, at, x_row, x_step, n)
    xi, steepness, z = placed(v, mean, std, most, SQUASH, False)
    DT: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    p = shares(xi, psi, y, slope, there, DT)
    weight = load_weight(a, row, at, a_row, a_step, n, WEIGHTED).to(DT)
    if not WEIGHTED:
        weight = weight / n
    z = z.to(DT)
    steepness = tl.where(is_finite(v) | (v != v), steepness.to(DT), 0.0)
    if PUSH:
        cotangent = tl.where(is_finite(v) & (weight > 0.0), weight * z, 0.0)
    else:
        cotangent = load_weight(w, row, at, w_row, w_step, n, True).to(DT)
    return v, p, z, steepness, weight, cotangent


@triton.jit
def sums_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, n: tl.tensor, row: tl.tensor, g: tl.tensor, tiles: tl.tensor, mean: tl.tensor,
    std: tl.tensor, most: tl.tensor, psi: tl.tensor, y: tl.tensor, there: tl.tensor, slope: tl.tensor,
    levels: tl.tensor, KP: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, PUSH: tl.constexpr,
    DOUBLE: tl.constexpr, BLOCK: tl.constexpr,
) -> Any:  # fmt: skip
    """A chunk's t, coefficients of lambda (twice), and two sums without it; the last four but for 2/eps.

    And sum_i a_i p_ij p_ik off the diagonal, which is Newton's matrix, or nothing where the state has that.
    """
    DT: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    t = tl.zeros((KP, BLOCK), DT)
    flat = tl.zeros((KP, BLOCK), DT)
    tilted = tl.zeros((KP, BLOCK), DT)
    flat_sum = tl.zeros((BLOCK,), DT)
    tilted_sum = tl.zeros((BLOCK,), DT)
    W = tl.zeros((KP, KP), tl.float64)
    j, k = tl.arange(0, KP)[:, None], tl.arange(0, KP)[None, :]
    y_single = from_the_first(y, KP, DOUBLE)
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        _v, p, z, steepness, weight, cotangent = value_parts(
            x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, n, row, at, mean, std, most, psi, y, there, slope,
            SQUASH, WEIGHTED, PUSH, DOUBLE,
        )  # fmt: skip
        if DOUBLE:
            for other in tl.static_range(KP):
                column = tl.sum(p * (weight * of_target(p, other, KP))[None, :], 1)
                W += tl.where((k == other) & (j != k), column[:, None], 0.0)
        p_levels = off_average(p, levels, KP)
        t += cotangent[None, :] * p_levels
        if SQUASH != 0:
            direct = steepness * cotangent * tl.sum(p_levels * y_single[:, None], 0)
            flat_sum += direct
            tilted_sum += direct * z
            through = (steepness * weight)[None, :] * off_average(p, y_single, KP)
            flat += through
            tilted += through * z[None, :]
    return (
        tl.sum(t, 1).to(tl.float64), tl.sum(flat, 1).to(tl.float64), tl.sum(tilted, 1).to(tl.float64),
        tl.sum(flat_sum).to(tl.float64), tl.sum(tilted_sum).to(tl.float64), W,
    )  # fmt: skip


@triton.jit
def write_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, out: tl.tensor, n: tl.tensor, row: tl.tensor, g: tl.tensor, tiles: tl.tensor,
    state: tl.tensor, psi: tl.tensor, y: tl.tensor, share: tl.tensor, slope: tl.tensor, levels: tl.tensor, t: tl.tensor,
    flat: tl.tensor, tilted: tl.tensor, flat_sum: tl.tensor, tilted_sum: tl.tensor, W: tl.tensor, KP: tl.constexpr,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, PUSH: tl.constexpr, DOUBLE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The cotangent of x for a chunk, from the sums over the row."""
    mean, std, most = tl.load(state + MEAN), tl.load(state + STD), tl.load(state + MOST)
    k = tl.arange(0, KP)
    if not DOUBLE:
        W = tl.load(state + PRODUCTS + k[:, None] * KP + k[None, :])
    multiplier = solved(W, t, share, KP)
    flat_sum = slope * (flat_sum - tl.sum(multiplier * flat))
    tilted_sum = slope * (tilted_sum - tl.sum(multiplier * tilted))
    tilted_sum = tl.where(tl.load(state + CONSTANT) > 0.0, 0.0, tilted_sum)
    weight_sum = tl.load(state + WEIGHT)
    if not WEIGHTED:
        weight_sum = weight_sum / n
    DT: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    multiplier = multiplier.to(DT)
    y_single = from_the_first(y, KP, DOUBLE)
    for tile in range(tiles):
        at = (g.to(tl.int64) * tiles + tile) * BLOCK + tl.arange(0, BLOCK)
        v, p, z, steepness, weight, cotangent = value_parts(
            x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, n, row, at, mean, std, most, psi, y, share > 0.0,
            slope, SQUASH, WEIGHTED, PUSH, DOUBLE,
        )  # fmt: skip
        average = tl.sum(p * levels[:, None], 0)
        p_y = off_average(p, y_single, KP)
        direct = cotangent * tl.sum(p_y * (levels[:, None] - average[None, :]), 0)
        middle = tl.sum(p * multiplier[:, None], 0)
        through = weight * tl.sum(p_y * (multiplier[:, None] - middle[None, :]), 0)
        pull = slope.to(DT) * steepness * (direct - through)
        if SQUASH != 0:
            pull = standard_back(pull, z, weight, v, flat_sum, tilted_sum, weight_sum, std * 0.0 + 1.0 if PUSH else std)
        if PUSH:
            pull += tl.where(is_finite(v) | (v != v), weight * average, 0.0)
        tl.store(out + row.to(tl.int64) * n + at, pull.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def one_program_backward(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, y: tl.tensor, y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor, phi: tl.tensor,
    phi_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, state: tl.tensor, out: tl.tensor, n: tl.tensor,
    tiles: tl.tensor, K: tl.constexpr, KP: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr,
    EPS_ROWS: tl.constexpr, PUSH: tl.constexpr, DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One row by one program."""
    row = tl.program_id(0)
    g = row * 0
    mine = state + row.to(tl.int64) * STATE
    mean, std, most = tl.load(mine + MEAN), tl.load(mine + STD), tl.load(mine + MOST)
    y_at, _gap, share, slope = targets_of_row(
        y, y_row, b, b_row, eps, eps_rows, row, origin_of(mean, SQUASH), K, KP, EPS_ROWS
    )
    psi = tl.load(mine + PSI + tl.arange(0, KP))
    levels = levels_of(phi, phi_row, row, share, K, KP, PUSH, DOUBLE)
    t, flat, tilted, flat_sum, tilted_sum, W = sums_back(
        x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, n, row, g, tiles, mean, std, most, psi, y_at, share > 0.0,
        slope, levels, KP, SQUASH, WEIGHTED, PUSH, DOUBLE, BLOCK,
    )  # fmt: skip
    write_back(
        x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, out, n, row, g, tiles, mine, psi, y_at, share, slope,
        levels, t, flat, tilted, flat_sum, tilted_sum, W, KP, SQUASH, WEIGHTED, PUSH, DOUBLE, BLOCK,
    )  # fmt: skip


@triton.jit
def chunk_sums(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, y: tl.tensor, y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor, phi: tl.tensor,
    phi_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, state: tl.tensor, sums: tl.tensor, n: tl.tensor,
    tiles: tl.tensor, G: tl.tensor, K: tl.constexpr, KP: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr,
    EPS_ROWS: tl.constexpr, PUSH: tl.constexpr, DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """``sums_back`` of all chunks."""
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    mine = state + row.to(tl.int64) * STATE
    mean, std, most = tl.load(mine + MEAN), tl.load(mine + STD), tl.load(mine + MOST)
    y_at, _gap, share, slope = targets_of_row(
        y, y_row, b, b_row, eps, eps_rows, row, origin_of(mean, SQUASH), K, KP, EPS_ROWS
    )
    k = tl.arange(0, KP)
    psi = tl.load(mine + PSI + k)
    levels = levels_of(phi, phi_row, row, share, K, KP, PUSH, DOUBLE)
    t, flat, tilted, flat_sum, tilted_sum, W = sums_back(
        x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, n, row, g, tiles, mean, std, most, psi, y_at, share > 0.0,
        slope, levels, KP, SQUASH, WEIGHTED, PUSH, DOUBLE, BLOCK,
    )  # fmt: skip
    to = sums + pid.to(tl.int64) * BACK
    tl.store(to + k, t)
    tl.store(to + 4 + k, flat)
    tl.store(to + 8 + k, tilted)
    tl.store(to + 12, flat_sum)
    tl.store(to + 13, tilted_sum)
    if DOUBLE:
        tl.store(to + _MATRIX + k[:, None] * KP + k[None, :], W)


@triton.jit
def chunk_write(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, y: tl.tensor, y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor, phi: tl.tensor,
    phi_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, state: tl.tensor, sums: tl.tensor, out: tl.tensor,
    n: tl.tensor, tiles: tl.tensor, G: tl.tensor, K: tl.constexpr, KP: tl.constexpr, GP: tl.constexpr,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, PUSH: tl.constexpr, DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """``write_back`` of all chunks."""
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    mine = state + row.to(tl.int64) * STATE
    y_at, _gap, share, slope = targets_of_row(
        y, y_row, b, b_row, eps, eps_rows, row, origin_of(tl.load(mine + MEAN), SQUASH), K, KP, EPS_ROWS
    )
    k = tl.arange(0, KP)
    psi = tl.load(mine + PSI + k)
    levels = levels_of(phi, phi_row, row, share, K, KP, PUSH, DOUBLE)
    chunk = tl.arange(0, GP)
    there = chunk < G
    of_chunk = sums + (row.to(tl.int64) * G + chunk) * BACK
    t = tl.sum(tl.load(of_chunk[:, None] + k[None, :], mask=there[:, None], other=0.0), 0)
    flat = tl.sum(tl.load(of_chunk[:, None] + 4 + k[None, :], mask=there[:, None], other=0.0), 0)
    tilted = tl.sum(tl.load(of_chunk[:, None] + 8 + k[None, :], mask=there[:, None], other=0.0), 0)
    flat_sum = tl.sum(tl.load(of_chunk + 12, mask=there, other=0.0))
    tilted_sum = tl.sum(tl.load(of_chunk + 13, mask=there, other=0.0))
    W = tl.zeros((KP, KP), tl.float64)
    if DOUBLE:
        entries = of_chunk[:, None, None] + _MATRIX + k[None, :, None] * KP + k[None, None, :]
        W = tl.sum(tl.load(entries, mask=there[:, None, None], other=0.0), 0)
    write_back(
        x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, out, n, row, g, tiles, mine, psi, y_at, share, slope,
        levels, t, flat, tilted, flat_sum, tilted_sum, W, KP, SQUASH, WEIGHTED, PUSH, DOUBLE, BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=["G"])
def chunks_back(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, w: tl.tensor,
    w_row: tl.tensor, w_step: tl.tensor, y: tl.tensor, y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor, phi: tl.tensor,
    phi_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, state: tl.tensor, sums: tl.tensor, counters: tl.tensor,
    out: tl.tensor, n: tl.tensor, tiles: tl.tensor, G: tl.tensor, K: tl.constexpr, KP: tl.constexpr, GP: tl.constexpr,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, PUSH: tl.constexpr, DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Both in one launch: the programs of a row wait for each other in between, see ``thresholds.exchange``."""
    row = tl.program_id(0) // G
    counter = counters + row.to(tl.int64) * COUNTERS
    chunk_sums(
        x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, y, y_row, b, b_row, phi, phi_row, eps, eps_rows, state,
        sums, n, tiles, G, K, KP, SQUASH, WEIGHTED, EPS_ROWS, PUSH, DOUBLE, BLOCK,
    )  # fmt: skip
    barrier(counter, row * 0, G)
    chunk_write(
        x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, y, y_row, b, b_row, phi, phi_row, eps, eps_rows, state,
        sums, out, n, tiles, G, K, KP, GP, SQUASH, WEIGHTED, EPS_ROWS, PUSH, DOUBLE, BLOCK,
    )  # fmt: skip
    leave(counter, G)
