"""Averages over the values of each target, and the shares themselves, from the values of a row to the answer.

What     q_ji = a_i E_ij / (the same summed over i), the share of target j that comes from value i, or sum_i q_ji t_i
         for columns t of a payload. Potentials come from all targets or from a rule for them, as in ``ranks``. The
         read-out takes all m targets in both cases, since only the potentials F of the values have a part in it.
When     Sorts, ``sort_with`` and permutations on default targets.
Why      128 x 100, forward and backward: 0.8 of the time of ``solve``, ``read`` and torch between them; 128 x 20: 0.55.
Keeps    Potentials of the targets of the problem, and of the values.

**Gradient.** Let c_ji be the cotangent of q_ji, and T_ji = q_ji (c_ji - sum_l q_jl c_jl) that of the logits. Then F_i
receives F'_i = sum_j T_ji, M_ij receives -T_ji, and a_i receives T_ji / a_i. F follows from the potentials G of the
problem's targets k, F_i = -log sum_k b_k exp(G_k - M_ik), so that G_k receives -sum_i F'_i p_ik. Let lambda solve
L lambda = G' as in ``ranks``. Then M_ik receives p_ik (F'_i + a_i (lambda_k - sum_l p_il lambda_l)), and a_i receives
-sum_k p_ik lambda_k.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F64
from ..engine.vectors import load64, splat64, store64, total64
from .costs import costs_into, slopes_into
from .lines import Digits
from .places import places_backward
from .ranks import Gradient, Posed, line_of, matrix_into, plan_into, row_into, solved
from .read import line_into
from .solve import potentials_into, rule_error
from .work import G0, MOST, OF, OUT, SPARE, SUM_G, A, V, W, Work, X, Y, workspace

_NEVER = -1e30


class Kept(NamedTuple):
    of_targets: F64  #: (R, K) potentials
    of_values: F64  #: (R, n)
    error: F64  #: (R)
    lost: F64  #: (R)


@jit_no_refcount
def shares_into(w: Work, lines: F64, n: int, y: float, inverse: float, kind: int, p: float) -> tuple[int, int, float]:
    """Write E_ij of one target to lines[2] and a_i E_ij to lines[5]; return the window, and 1 over the latter's sum."""
    a, shares = w.values[A], lines[5]
    low, high, _ = line_into(y, w.values[X], a, w.values[OUT], n, inverse, kind, p, lines[7], lines)
    sums = splat64(0.0)
    for i in range(low, high, 16):
        share = load64(lines[2], i) * load64(a, i)
        store64(shares, i, share)
        sums = sums + share
    return low, high, 1.0 / total64(sums)


@jit
def push_rows(first: int, last: int, posed: Posed, squash: int, kind: int, p: float, rule: F64, digits: Digits, y: F64,
              payload: F64, kept: Kept, out: F64, matrix: Any) -> None:  # fmt: skip
    """Write averages and what a gradient needs, of the rows first to last - 1.

    y        (m)        IN
    payload  (R, d, n)  IN   finite, in the order of the caller
    out      (R, d, m)  OUT
    matrix   (R, m, n)  OUT  the shares, or nothing (0, m, n)
    """
    n, K, m, d = posed.x.shape[1], posed.y.shape[1], len(y), payload.shape[1]
    w = workspace(n, K, True)
    lines, columns = np.zeros((8, len(w.values[X]) + 16)), np.zeros((d, len(w.values[X]) + 16))
    for row in range(first, last):
        if not (row_into(w, posed, row, squash).sound and posed.eps[row] < np.inf):
            out[row], kept.of_targets[row], kept.of_values[row] = np.nan, np.nan, np.nan
            kept.error[row], kept.lost[row] = np.nan, 0.0
            for j in range(m if len(matrix) > 0 else 0):
                matrix[row, j] = np.nan
            continue
        order, inverse, potential = posed.order[row], 1.0 / posed.eps[row], w.values[OUT]
        kept.error[row], _ = potentials_into(w, n, K, posed.eps[row], kind, p, w.lines[7], digits)
        kept.lost[row] = rule_error(w, n, rule) if len(rule) > 0 else 0.0
        for k in range(K):
            kept.of_targets[row, k] = w.targets[G0, k]
        for i in range(len(potential)):
            potential[i] = math.log(w.values[V, i]) - w.values[MOST, i] if i < n else _NEVER
        for i in range(n):
            kept.of_values[row, i] = potential[i]
            for c in range(d):  # averages move with a constant: equal numbers come out as they are
                columns[c, i] = payload[row, c, order[i]] - payload[row, c, order[n - 1]]
        for j in range(m):
            low, high, scale = shares_into(w, lines, n, y[j], inverse, kind, p)
            for c in range(d):
                sums = splat64(0.0)
                for i in range(low, high, 16):
                    sums = sums + load64(lines[5], i) * load64(columns[c], i)
                out[row, c, j] = payload[row, c, order[n - 1]] + total64(sums) * scale
            if len(matrix) > 0:
                to = matrix[row, j]
                for i in range(n):
                    to[order[i]] = lines[5, i] * scale if low <= i < high else 0.0


@jit
def push_rows_backward(first: int, last: int, posed: Posed, squash: int, kind: int, p: float, with_eps: bool,
                       cut: float, y: F64, payload: F64, kept: Kept, of_out: F64, of_matrix: Any, out: Gradient,
                       of_payload: F64) -> None:  # fmt: skip
    """Write the cotangents of the rows first to last - 1."""
    n, K, d = posed.x.shape[1], posed.y.shape[1], payload.shape[1]
    w = workspace(n, K, True)
    lines, columns = np.zeros((8, len(w.values[X]) + 16)), np.zeros((2 * d + 1, len(w.values[X]) + 16))
    for row in range(first, last):
        order, eps, potential = posed.order[row], posed.eps[row], w.values[OUT]
        moments = row_into(w, posed, row, squash)
        if not moments.sound or np.isnan(kept.of_targets[row, 0]):
            out.x[row], out.a[row], out.eps[row], of_payload[row] = np.nan, np.nan, np.nan, np.nan
            continue
        columns[:] = 0.0
        for i in range(len(potential)):
            potential[i] = kept.of_values[row, i] if i < n else _NEVER
            w.values[W, i], w.values[OF, i], w.values[SPARE, i] = 0.0, 0.0, 0.0
        for i in range(n):
            for c in range(d):
                columns[c, i] = payload[row, c, order[i]]
        of_eps = 0.0
        for j in range(len(y)):
            for i in range(n if len(of_matrix) > 0 else 0):
                columns[2 * d, i] = of_matrix[row, j, order[i]]
            of_eps += target_backward(w, lines, n, y[j], 1.0 / eps, kind, p, with_eps, columns, of_out[row, :, j])
        for i in range(n):
            for c in range(d):
                of_payload[row, c, order[i]] = columns[d + c, i]
        groups = plan_into(w, n, K, eps, kind, p, kept.of_targets[row], cut)
        solution_into(w, groups, n, K)
        of_eps += problem_backward(w, n, K, eps, kind, p, with_eps)
        out.eps[row] = of_eps / eps
        for i in range(n):
            w.values[OF, i] /= eps
        places_backward(w.values, n, squash, moments, w.values[SPARE])
        for i in range(n):
            out.x[row, order[i]], out.a[row, order[i]] = w.values[OF, i], w.values[SPARE, i]


@jit_no_refcount
def target_backward(w: Work, lines: F64, n: int, y: float, inverse: float, kind: int, p: float, with_eps: bool,
                    columns: F64, of_out: F64) -> float:  # fmt: skip
    """Add what the read-out of one target sends to F' in ``values[W]``, to x~ in OF, to a in SPARE, and to the payload.

    columns  (2 d + 1, n)  IN OUT  d columns of the payload, d cotangents of them, the cotangent of the shares
    """
    d, of_f, of_x, of_a = len(of_out), w.values[W], w.values[OF], w.values[SPARE]
    low, high, scale = shares_into(w, lines, n, y, inverse, kind, p)
    c, slope, logs, with_logs = lines[3], lines[0], lines[4], splat64(0.0)
    mean = splat64(0.0)
    for i in range(low, high, 16):
        of_share = load64(columns[2 * d], i)
        share = load64(lines[5], i) * scale
        for q in range(d):
            of_share = of_share + load64(columns[q], i) * of_out[q]
            store64(columns[d + q], i, load64(columns[d + q], i) + share * of_out[q])
        store64(c, i, of_share)
        mean = mean + share * of_share
    centre = total64(mean)
    slopes_into(kind, p, y, w.values[X], n, slope)  # of h(x - y), the negative of those of h(y - x)
    for i in range(low, high, 16):
        t = (load64(c, i) - centre) * scale
        store64(of_a, i, load64(of_a, i) + t * load64(lines[2], i))
        t = t * load64(lines[5], i)
        store64(of_f, i, load64(of_f, i) + t)
        store64(of_x, i, load64(of_x, i) - t * load64(slope, i))
        with_logs = with_logs - t * load64(logs, i)
    return total64(with_logs) if with_eps else 0.0


@jit_no_refcount
def solution_into(w: Work, groups: int, n: int, K: int) -> None:
    """Write lambda to the row SUM_G of ``Work.targets``."""
    E, t, of_f = w.band.G, w.targets[SUM_G], w.values[W]
    for k in range(len(t)):
        t[k] = 0.0
    for i in range(n):
        first, end, at = line_of(w, i)
        for k in range(first, end, 16):
            store64(t, k, load64(t, k) - load64(E, at + k) * of_f[i])
    solved(w, K, matrix_into(w, groups, K), t)


@jit_no_refcount
def problem_backward(w: Work, n: int, K: int, eps: float, kind: int, p: float, with_eps: bool) -> float:
    """Add what the potentials send to x~ and a; return what they send to eps, times eps."""
    E, beta, y, x, a, of_f = w.band.G, w.targets[SUM_G], w.targets[Y], w.values[X], w.values[A], w.values[W]
    slope, cost, of_m, potential, with_logs = w.lines[0], w.lines[1], w.lines[2], w.targets[G0], 0.0
    for i in range(n):
        first, end, at = line_of(w, i)
        levels = splat64(0.0)
        for k in range(first, end, 16):
            levels = levels + load64(E, at + k) * load64(beta, k)
        level = total64(levels)
        w.values[SPARE, i] -= level
        slopes_into(kind, p, x[i], y, K, slope)
        sums = splat64(0.0)
        for k in range(first, end, 16):
            part = load64(E, at + k) * ((load64(beta, k) - level) * a[i] + of_f[i])
            store64(of_m, k, part)
            sums = sums + part * load64(slope, k)
        w.values[OF, i] -= total64(sums)
        if with_eps:
            costs_into(kind, p, x[i], y, K, cost, cost)
            sums = splat64(0.0)
            for k in range(first, end, 16):
                log_share = load64(potential, k) - load64(cost, k) / eps + w.values[OUT, i]
                sums = sums + load64(of_m, k) * log_share
            with_logs += total64(sums)
    return with_logs
