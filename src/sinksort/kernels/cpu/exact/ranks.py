"""Averages over the targets of each value, from the values of a row to the answer in one go, and their gradient.

What     out_i = sum_k p_ik phi_k, where the plan is that of ``solve``. Ranks are such averages.
When     A call that asks for ranks alone, with targets that all weigh something and are the same for all rows.
Why      128 x 100 in float64, forward and backward: 3 ms less than by ``solve``, ``read`` and what torch does between
         them. The plan is made once for both, and what would be ten operations of torch is one kernel.
Keeps    Potentials of the targets.

**Gradient.** Let w_i be the cotangent of out_i, c_i = sum_k p_ik phi_k, and let lambda solve L lambda = t with the
Laplacian L of Newton's method and t_k = sum_i w_i p_ik (phi_k - c_i). With psi_ik = w_i phi_k - a_i lambda_k, the
exponent M_ik = C_ik / eps receives -p_ik (psi_ik - sum_l p_il psi_il), and a_i receives -sum_k p_ik lambda_k.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F64, I64
from ..engine.vectors import load64, splat64, store64, total64
from .costs import costs_into, slopes_into
from .laplacian import GROUND_OF_GRADIENTS, edges, eliminate, ends_into, substitute
from .lines import Digits
from .places import Moments, places_backward, places_into
from .solve import band_into, potentials_into, rule_error, targets_into
from .work import G0, GAMMA, LEVEL, MOST, OF, SPARE, SUM_G, A, B, V, W, Work, X, Y, workspace

_NEVER = -1e30


class Posed(NamedTuple):
    """R rows in the order of the caller. What has one row in place of R is the same for all."""

    x: F64  #: (R, n) values, or places
    order: I64  #: (R, n) what sorts them
    a: F64  #: (R or 1, n) weights; rows sum to 1, and zeros are allowed
    y: F64  #: (1, K) increasing targets
    b: F64  #: (1, K) their weights, all positive
    phi: F64  #: (1, K) what is averaged
    eps: F64  #: (R)


class Gradient(NamedTuple):
    x: F64  #: (R, n)
    a: F64  #: (R, n)
    eps: F64  #: (R)


@jit_no_refcount
def row_into(w: Work, posed: Posed, row: int, squash: int) -> Moments:
    """Copy the targets, and find the places of a row."""
    K = posed.y.shape[1]
    targets_into(w, posed.y[0], posed.b[0], K)
    for k in range(len(w.targets[LEVEL])):
        w.targets[LEVEL, k] = posed.phi[0, k] if k < K else 0.0
    a = posed.a[row if len(posed.a) > 1 else 0]
    high = 1.0 if K > 1 else 0.0  # the outermost of default targets, which nodes are not
    return places_into(posed.x[row], a, posed.order[row], squash, 0.0, high, w.values)


@jit
def rank_rows(first: int, last: int, posed: Posed, squash: int, kind: int, p: float, rule: F64, digits: Digits,
              G: F64, error: F64, lost: F64, out: F64) -> None:  # fmt: skip
    """Write averages, potentials, marginal errors and the estimated errors of a rule, of the rows first to last - 1.

    rule    (L, K)  IN  the last polynomials of a rule whose nodes the targets are; L = 0 for targets themselves
    """
    n, K = posed.x.shape[1], posed.y.shape[1]
    w = workspace(n, K, True)
    for row in range(first, last):
        if not (row_into(w, posed, row, squash).sound and posed.eps[row] < np.inf):
            out[row], G[row], error[row], lost[row] = np.nan, np.nan, np.nan, 0.0
            continue
        error[row], _ = potentials_into(w, n, K, posed.eps[row], kind, p, w.lines[7], digits)
        lost[row] = rule_error(w, n, rule) if len(rule) > 0 else 0.0
        for k in range(K):
            G[row, k] = w.targets[G0, k]
        averages(w, n, posed.order[row], out[row])


@jit_no_refcount
def line_of(w: Work, i: int) -> tuple[int, int, int]:
    """Return the window of value i, and where target 0 would stand in the band."""
    g = i // 4
    first, end = w.band.lo[g], w.band.hi[g]
    return first, end, w.band.offset[g] + (i - 4 * g) * (end - first) - first


@jit_no_refcount
def averages(w: Work, n: int, order: I64, out: F64) -> None:
    """Read what Newton's method left: p_ik = v_i G_ik u_k."""
    u, phi, v, band = w.targets[GAMMA + 1], w.targets[LEVEL], w.values[V], w.band
    for k in range(0, len(u) - 15, 16):
        store64(phi, k, load64(phi, k) * load64(u, k))
    for i in range(n):
        first, end, at = line_of(w, i)
        sums = splat64(0.0)
        for k in range(first, end, 16):
            sums = sums + load64(band.G, at + k) * load64(phi, k)
        out[order[i]] = total64(sums) * v[i]


@jit_no_refcount
def plan_into(w: Work, n: int, K: int, eps: float, kind: int, p: float, G: F64, cut: float) -> int:
    """Write p_ik to the band; return the number of groups of four values."""
    potential, b, E = w.targets[G0], w.targets[B], w.band.G
    for k in range(len(potential)):
        potential[k] = G[k] if k < K else _NEVER
    groups = band_into(w, n, K, eps, kind, p, w.lines[7], potential, cut)
    for g in range(groups):
        first, end = w.band.lo[g], w.band.hi[g]
        at = w.band.offset[g] - first
        for _ in range(4):
            sums = splat64(0.0)
            for k in range(first, end, 16):
                share = load64(E, at + k) * load64(b, k)
                store64(E, at + k, share)
                sums = sums + share
            unit = 1.0 / total64(sums)  # rows are exact: see ``normalise``
            for k in range(first, end, 16):
                store64(E, at + k, load64(E, at + k) * unit)
            at += end - first
    return groups


@jit_no_refcount
def matrix_into(w: Work, groups: int, K: int) -> int:
    """Eliminate the matrix of the plan in the band; return how many columns its rows have."""
    wide, band = (K + 15) // 16 * 16, w.band
    S = ends_into(groups, band.lo, band.hi, wide, band.ends)
    edges(band.G, w.values[A], groups, band.lo, band.hi, band.offset, wide, S, band.ends, band.W)
    eliminate(band.W, wide, S, band.ends, w.targets[B], GROUND_OF_GRADIENTS, w.targets[GAMMA + 5], band.inverse,
              band.corners)  # fmt: skip
    return S


@jit_no_refcount
def solved(w: Work, K: int, S: int, t: F64) -> None:
    """Solve L t = t in place, with a mean of zero. What stands behind the targets becomes zero."""
    wide, b, band = (K + 15) // 16 * 16, w.targets[B], w.band
    for k in range(K, len(t)):
        t[k] = 0.0
    substitute(band.W, wide, S, band.ends, band.inverse, band.corners, t)
    level = 0.0
    for k in range(K):
        level += b[k] * t[k]
    for k in range(K):
        t[k] -= level


@jit_no_refcount
def adjoint_into(w: Work, groups: int, n: int, K: int) -> int:
    """Write lambda to the row SUM_G of ``Work.targets``; return the columns of the matrix. w is in ``values[W]``."""
    E, phi, t, weights = w.band.G, w.targets[LEVEL], w.targets[SUM_G], w.values[W]
    for k in range(len(t)):
        t[k] = 0.0
    for i in range(n):
        first, end, at = line_of(w, i)
        sums = splat64(0.0)
        for k in range(first, end, 16):
            sums = sums + load64(E, at + k) * load64(phi, k)
        mean = total64(sums)
        for k in range(first, end, 16):
            store64(t, k, load64(t, k) + load64(E, at + k) * (load64(phi, k) - mean) * weights[i])
    S = matrix_into(w, groups, K)
    solved(w, K, S, t)
    return S


@jit
def rank_rows_backward(first: int, last: int, posed: Posed, squash: int, kind: int, p: float, G: F64, of_out: F64,
                       with_eps: bool, cut: float, out: Gradient) -> None:  # fmt: skip
    """Write the cotangents of values, weights and, if they are wanted, of eps."""
    n, K = posed.x.shape[1], posed.y.shape[1]
    w = workspace(n, K, True)
    of_a = w.values[SPARE]
    for row in range(first, last):
        order, eps = posed.order[row], posed.eps[row]
        moments = row_into(w, posed, row, squash)
        if not moments.sound or np.isnan(G[row, 0]):
            out.x[row], out.a[row], out.eps[row] = np.nan, np.nan, np.nan
            continue
        for i in range(n):
            w.values[W, i] = of_out[row, order[i]]
        groups = plan_into(w, n, K, eps, kind, p, G[row], cut)
        adjoint_into(w, groups, n, K)
        out.eps[row] = cotangents_of_values(w, n, K, eps, kind, p, with_eps)
        places_backward(w.values, n, squash, moments, of_a)
        for i in range(n):
            out.x[row, order[i]], out.a[row, order[i]] = w.values[OF, i], of_a[i]


@jit_no_refcount
def cotangents_of_values(w: Work, n: int, K: int, eps: float, kind: int, p: float, with_eps: bool) -> float:
    """Write those of x~ to ``values[OF]`` and of a to ``values[SPARE]``; return that of eps."""
    E, phi, beta, weights, a, x, y = (w.band.G, w.targets[LEVEL], w.targets[SUM_G], w.values[W], w.values[A],
                                      w.values[X], w.targets[Y])  # fmt: skip
    slope, cost, psi, potential, inverse, with_logs = w.lines[0], w.lines[1], w.lines[2], w.targets[G0], 1.0 / eps, 0.0
    for i in range(n):
        first, end, at = line_of(w, i)
        means, levels = splat64(0.0), splat64(0.0)
        for k in range(first, end, 16):
            share, level = load64(E, at + k), load64(beta, k)
            line = load64(phi, k) * weights[i] - level * a[i]
            store64(psi, k, line)
            means = means + share * line
            levels = levels + share * level
        mean = total64(means)
        w.values[SPARE, i] = -total64(levels)
        slopes_into(kind, p, x[i], y, K, slope)
        sums = splat64(0.0)
        for k in range(first, end, 16):
            part = load64(E, at + k) * (load64(psi, k) - mean)
            store64(psi, k, part)
            sums = sums + part * load64(slope, k)
        w.values[OF, i] = total64(sums) * inverse
        if with_eps:
            costs_into(kind, p, x[i], y, K, cost, cost)
            sums = splat64(0.0)
            for k in range(first, end, 16):
                sums = sums + load64(psi, k) * (load64(potential, k) - load64(cost, k) * inverse - w.values[MOST, i])
            with_logs -= total64(sums)
    return with_logs * inverse
