"""The gradient of a gradient of ranks: one more pair of solutions with the same matrix.

What     The gradient, in the values x and in the cotangents w, of sum_i q_i x'_i, where x' is what ``ranks`` writes for
         w. It is how x' and the ranks change along q.
When     Second derivatives in x, at the squared cost.
Why      128 x 100 at eps = 1e-2: a fiftieth of the time that autograd takes for the same in torch.
Keeps    Nothing.

A dot is a derivative along q, and c_i the average of phi. With delta_ik = dg_k + 2 y_k dx~_i / eps less its mean under
p_i, shares change by p_ik delta_ik, and that no column changes says

    L dg = -sum_i (a_i dx~_i / eps) p_ik (2 y_k - mean).

Then dc_i = sum_k p_ik delta_ik phi_k is what w_i receives. The multipliers of the gradient change, as L lambda = t
says, by

    L dlambda = sum_i p_ik (delta_ik (psi_ik - mean) - sum_l p_il delta_il psi_il),

and the cotangent of x~_i changes by

    (1 / eps) (sum_k p_ik delta_ik (psi_ik - mean) (2 y_k - mean) - a_i Cov_i(dlambda, 2 y)).
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.compile import jit, jit_no_refcount, jit_reassociate
from ..engine.maths import F64
from ..engine.vectors import load64, splat64, store64, total64
from .costs import SQUARED
from .places import NO_SQUASH, SIGMOID, Moments, slope_of
from .ranks import Posed, adjoint_into, cotangents_of_values, line_of, plan_into, row_into, solved
from .work import AT_MOVES, LEVEL, OF, OUT, RAW, SPARE, SUM_B, SUM_G, SUM_Y, Z_MOVES, A, W, Work, X, Y, Z, workspace


@jit_reassociate
def places_move(values: F64, n: int, squash: int, moments: Moments) -> float:
    """Write dz and dx~ along q, which stands in ``values[OUT]``; return how fast the logarithm of the spread grows."""
    raw, weight, z, at, q = values[RAW], values[A], values[Z], values[X], values[OUT]
    if squash >= NO_SQUASH:
        for i in range(n):
            values[AT_MOVES, i] = q[i] if np.isfinite(raw[i]) else 0.0
        return 0.0
    mean, rate = 0.0, 0.0
    for i in range(n):
        if np.isfinite(raw[i]):
            mean += weight[i] * q[i]
            rate += weight[i] * z[i] * q[i]
    mean /= moments.total
    rate = rate * moments.scale / moments.total if moments.spread else 0.0
    for i in range(n):
        moves = (q[i] - mean) * moments.scale - z[i] * rate if np.isfinite(raw[i]) else 0.0
        values[Z_MOVES, i], values[AT_MOVES, i] = moves, moves * slope_of(squash, z[i], at[i])
    return rate


@jit_reassociate
def places_backward_moves(values: F64, n: int, squash: int, moments: Moments, rate: float) -> None:
    """Turn the change of the cotangents of x~ in ``values[OUT]`` into that of the cotangents of x.

    The cotangents of x~ themselves stand in ``values[OF]``.
    """
    raw, weight, z, at, of, out = values[RAW], values[A], values[Z], values[X], values[OF], values[OUT]
    if squash >= NO_SQUASH:
        for i in range(n):
            out[i] = out[i] if np.isfinite(raw[i]) else 0.0
        return
    sums, with_z, sums_move, with_z_move = 0.0, 0.0, 0.0, 0.0
    for i in range(n):
        if np.isfinite(raw[i]):
            slope, moves = slope_of(squash, z[i], at[i]), values[Z_MOVES, i]
            bend = slope * (1.0 - 2.0 * at[i]) if squash == SIGMOID else -2.0 * math.pi * z[i] * slope * slope
            out[i] = out[i] * slope + of[i] * bend * moves
            of[i] *= slope
            sums += of[i]
            with_z += of[i] * z[i]
            sums_move += out[i]
            with_z_move += out[i] * z[i] + of[i] * moves
    if not moments.spread:
        with_z, with_z_move = 0.0, 0.0
    for i in range(n):
        if np.isfinite(raw[i]):
            a = weight[i] / moments.total
            now = of[i] - a * (sums + z[i] * with_z)
            moved = out[i] - a * (sums_move + values[Z_MOVES, i] * with_z + z[i] * with_z_move)
            out[i] = moments.scale * (moved - rate * now)
        else:
            out[i] = 0.0


@jit
def rank_rows_twice(first: int, last: int, posed: Posed, squash: int, G: F64, of_out: F64, q: F64, cut: float,
                    of_x: F64, of_w: F64) -> None:  # fmt: skip
    """Write how the cotangents of values and the averages change along q, of the rows first to last - 1."""
    n, K = posed.x.shape[1], posed.y.shape[1]
    w = workspace(n, K, True)
    for row in range(first, last):
        order, eps = posed.order[row], posed.eps[row]
        moments = row_into(w, posed, row, squash)
        if not moments.sound or np.isnan(G[row, 0]):
            of_x[row], of_w[row] = np.nan, np.nan
            continue
        for i in range(n):
            w.values[W, i], w.values[OUT, i] = of_out[row, order[i]], q[row, order[i]]
        rate = places_move(w.values, n, squash, moments)
        groups = plan_into(w, n, K, eps, SQUARED, 2.0, G[row], cut)
        S = adjoint_into(w, groups, n, K)
        cotangents_of_values(w, n, K, eps, SQUARED, 2.0, False)
        potentials_move(w, n, eps)
        solved(w, K, S, w.targets[SUM_Y])
        averages_move(w, n, eps)
        for i in range(n):
            of_w[row, order[i]] = w.values[SPARE, i]
        solved(w, K, S, w.targets[SUM_B])
        cotangents_move(w, n, eps)
        places_backward_moves(w.values, n, squash, moments, rate)
        for i in range(n):
            of_x[row, order[i]] = w.values[OUT, i]


@jit_no_refcount
def potentials_move(w: Work, n: int, eps: float) -> None:
    """Write the right side of the equation for dg to the row SUM_Y."""
    E, y, t = w.band.G, w.targets[Y], w.targets[SUM_Y]
    for k in range(len(t)):
        t[k] = 0.0
    for i in range(n):
        first, end, at = line_of(w, i)
        sums = splat64(0.0)
        for k in range(first, end, 16):
            sums = sums + load64(E, at + k) * load64(y, k)
        mean, push = total64(sums), -2.0 * w.values[A, i] * w.values[AT_MOVES, i] / eps
        for k in range(first, end, 16):
            store64(t, k, load64(t, k) + load64(E, at + k) * (load64(y, k) - mean) * push)


@jit_no_refcount
def averages_move(w: Work, n: int, eps: float) -> None:
    """Write dc to ``values[SPARE]``, the first part of the change of x~' to ``values[OUT]``, and the right side of the
    equation for dlambda to the row SUM_B.
    """
    E, y, phi, beta = w.band.G, w.targets[Y], w.targets[LEVEL], w.targets[SUM_G]
    moves, t, delta, psi = w.targets[SUM_Y], w.targets[SUM_B], w.lines[0], w.lines[1]
    none = splat64(0.0)
    for k in range(len(t)):
        t[k] = 0.0
    for i in range(n):
        first, end, at = line_of(w, i)
        push, weight, a = 2.0 * w.values[AT_MOVES, i] / eps, w.values[W, i], w.values[A, i]
        of_delta, of_psi, of_y = none, none, none
        for k in range(first, end, 16):
            share = load64(E, at + k)
            d, s = load64(moves, k) + load64(y, k) * push, load64(phi, k) * weight - load64(beta, k) * a
            store64(delta, k, d)
            store64(psi, k, s)
            of_delta, of_psi, of_y = of_delta + share * d, of_psi + share * s, of_y + share * load64(y, k)
        mean_delta, mean_psi, mean_y = total64(of_delta), total64(of_psi), total64(of_y)
        of_phi, both, third = none, none, none
        for k in range(first, end, 16):
            share = load64(E, at + k) * (load64(delta, k) - mean_delta)
            of_phi = of_phi + share * load64(phi, k)
            share = share * (load64(psi, k) - mean_psi)
            both = both + share
            third = third + share * (load64(y, k) - mean_y)
            store64(delta, k, share)
        w.values[SPARE, i], w.values[OUT, i] = total64(of_phi), 2.0 * total64(third) / eps
        covariance = total64(both)
        for k in range(first, end, 16):
            store64(t, k, load64(t, k) + load64(delta, k) - load64(E, at + k) * covariance)


@jit_no_refcount
def cotangents_move(w: Work, n: int, eps: float) -> None:
    """Add to ``values[OUT]`` what comes from dlambda, which stands in the row SUM_B."""
    E, y, moves = w.band.G, w.targets[Y], w.targets[SUM_B]
    for i in range(n):
        first, end, at = line_of(w, i)
        sums, both = splat64(0.0), splat64(0.0)
        for k in range(first, end, 16):
            sums = sums + load64(E, at + k) * load64(y, k)
        mean = total64(sums)
        for k in range(first, end, 16):
            both = both + load64(E, at + k) * (load64(y, k) - mean) * load64(moves, k)
        w.values[OUT, i] -= 2.0 * w.values[A, i] * total64(both) / eps
