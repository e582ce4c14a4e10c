"""The plan read: averages of a payload over the targets of each value, or the shares themselves.

What     p_ij = b_j E_ij for a value i, and sum_j p_ij payload_jd for columns d of a payload ("pull"). Averages over the
         values of each target ("push") are the same with values and targets exchanged. In the same pass, the potentials
         f_i = -eps log sum_j b_j exp((g_j - C_ij) / eps) of the values, for targets that ``solve`` did not see.
When     After ``solve``, as often as a caller has something to read.
Why      See the folder.
Keeps    Nothing: E comes from F and G again.

**Gradient.** Rows are normalised, so p_ij is a softmax over j of G_j + log b_j - M_ij, and F is no argument. With c_ij
the cotangent of p_ij, T_ij = p_ij (c_ij - sum_k p_ik c_ik) is that of the logits: G_j receives sum_i T_ij, b_j receives
sum_i T_ij / b_j (E_ij in place of p_ij / b_j), M_ij receives -T_ij, and eps receives -sum_ij T_ij log(E_ij) / eps.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F64
from ..engine.vectors import highest64, load64, select, splat64, store64, total64
from .costs import MATRIX, costs_into, slopes_into
from .lines import IN_DOUBLE, LARGEST, exponentials_into, window
from .solve import fill, targets_into
from .work import G0, LEVEL, SUM_B, SUM_G, SUM_PAYLOAD, SUM_Y, B, Cotangents, Rows, Work, Y, workspace

_NEVER = -1e30


@jit_no_refcount
def row_into(w: Work, y: F64, b: F64, G: F64, payload: F64, m: int) -> None:
    """Copy the targets of a row, their potentials and a payload of one column, with room for vectors behind them."""
    targets_into(w, y, b, m)
    one = len(payload) == 1
    for k in range(len(w.targets[G0])):
        w.targets[G0, k] = G[k] if k < m else _NEVER
        w.targets[LEVEL, k] = payload[0, k] if one and k < m else 0.0


@jit_no_refcount
def line_into(x: float, y: F64, b: F64, potential: F64, m: int, inverse: float, kind: int, p: float, given: F64,
              lines: F64) -> tuple[int, int, float]:  # fmt: skip
    """Write E_ij of one value to lines[2], in units of the largest, and its logarithm to lines[4].

    The largest of the targets that weigh something: to a target without weight a value far from all others would send
    more than numbers can hold. Returns the window that is not negligible, and the logarithm of the largest.
    """
    cost, line, logs = lines[0], lines[2], lines[4]
    costs_into(kind, p, x, y, m, given, cost)
    most = splat64(-1e300)
    for k in range(0, m, 16):
        e = load64(potential, k) - load64(cost, k) * inverse
        store64(logs, k, e)
        e = select(load64(b, k) > 0.0, e, splat64(-1e300))
        most = select(e > most, e, most)
    shift, largest = highest64(most), splat64(LARGEST)
    for k in range(0, m, 16):
        e = load64(logs, k) - shift
        store64(logs, k, select(e > largest, largest, e))
    first, end = window(logs, m, -IN_DOUBLE.cut)
    exponentials_into(logs, first, end, line, first)
    return first, end, shift


@jit_no_refcount
def read_row(x: F64, m: int, eps: float, kind: int, p: float, given: F64, targets: F64, lines: F64, payload: F64,
             potentials: bool, out: F64) -> None:  # fmt: skip
    """Read one row: averages, shares, or the potentials f of the values.

    targets  IN   rows of ``Work.targets``
    payload  IN   (d, m)
    out      OUT  (n, d), or the shares (n, m) for d = 0
    """
    d, inverse, y, b, potential = len(payload), 1.0 / eps, targets[Y], targets[B], targets[G0]
    line, column = lines[2], targets[LEVEL]
    for i in range(len(x)):
        low, high, shift = line_into(x[i], y, b, potential, m, inverse, kind, p,
                                     given[i * m :] if kind == MATRIX else given, lines)  # fmt: skip
        sums, average = splat64(0.0), splat64(0.0)
        for k in range(low, high, 16):
            share = load64(line, k) * load64(b, k)
            sums = sums + share
            average = average + share * load64(column, k)
            store64(line, k, share)
        scale = 1.0 / total64(sums)
        if potentials:
            out[i, 0] = eps * (math.log(scale) - shift)
        elif d == 1:
            out[i, 0] = total64(average) * scale
        elif d == 0:
            of_value = out[i]
            for k in range(m):
                of_value[k] = line[k] * scale if low <= k < high else 0.0
        else:
            for c in range(d):
                number, of_column = 0.0, payload[c]
                for k in range(low, min(high, m)):
                    number += line[k] * of_column[k]
                out[i, c] = number * scale


@jit
def read_rows(first: int, last: int, rows: Rows, kind: int, p: float, G: F64, payload: F64, potentials: bool,
              out: F64) -> None:  # fmt: skip
    """Read the rows first to last - 1.

    potentials  IN  whether to write potentials of values instead; the payload is (1, 1, m) then

    payload  (R or 1, d, m)  IN   d = 0 asks for the shares
    out      (R, n, d)       OUT  or the shares, (R, n, m)
    """
    m = rows.y.shape[1]
    w = workspace(1, m, False)
    one_y, one_b, one = len(rows.y) == 1, len(rows.b) == 1, len(payload) == 1
    for row in range(first, last):
        if np.isnan(G[row, 0]):
            out[row] = np.nan
            continue
        own = payload[0 if one else row]
        row_into(w, rows.y[0 if one_y else row], rows.b[0 if one_b else row], G[row], own, m)
        read_row(rows.x[row], m, rows.eps[row], kind, p, rows.costs[row if kind == MATRIX else 0], w.targets, w.lines,
                 own, potentials, out[row])  # fmt: skip


@jit_no_refcount
def cotangent_into(of_out: F64, payload: F64, column: F64, low: int, high: int, m: int, line: F64) -> None:
    """Write the cotangent of the shares of one value."""
    d = len(payload)
    if d == 1:
        for k in range(low, high, 16):
            store64(line, k, load64(column, k) * of_out[0])
        return
    for k in range(low, high):
        line[k] = of_out[k] if d == 0 and k < m else 0.0
    for c in range(d):
        of_column = payload[c]
        for k in range(low, min(high, m)):
            line[k] += of_out[c] * of_column[k]


@jit_no_refcount
def read_row_backward(x: F64, m: int, eps: float, kind: int, p: float, given: F64, targets: F64, lines: F64,
                      payload: F64, potentials: bool, of_out: F64, of_x: F64, of_costs: F64,
                      of_payload: F64) -> float:  # fmt: skip
    """Write the cotangents of x or of the costs, add up the others in ``targets``, and return that of eps.

    of_payload  OUT  (d, m) for d > 1, to be added to; (0, m) where nobody wants it
    """
    d, inverse, y, b, potential = len(payload), 1.0 / eps, targets[Y], targets[B], targets[G0]
    E, c, logs, slope = lines[2], lines[3], lines[4], lines[1]
    sum_g, sum_y, sum_b, sum_payload = targets[SUM_G], targets[SUM_Y], targets[SUM_B], targets[SUM_PAYLOAD]
    with_logs, of_eps = splat64(0.0), 0.0
    for i in range(len(x)):
        low, high, _ = line_into(x[i], y, b, potential, m, inverse, kind, p,
                                 given[i * m :] if kind == MATRIX else given, lines)  # fmt: skip
        cotangent_into(of_out[i], payload, targets[LEVEL], low, high, m, c)
        whole, mean = splat64(0.0), splat64(0.0)
        for k in range(low, high, 16):
            share = load64(E, k) * load64(b, k)
            whole = whole + share
            mean = mean + share * load64(c, k)
        scale = 1.0 / total64(whole)
        if potentials:  # f = -eps log(sum): the payload is 1, and shares are not centred
            mean = splat64(0.0)
            of_eps += of_out[i, 0] * math.log(scale)
            for k in range(low, high, 16):
                store64(c, k, splat64(-eps * of_out[i, 0]))
        centre, first = total64(mean) * scale, of_out[i, 0] * scale if d == 1 else 0.0
        for k in range(low, high, 16):
            e = load64(E, k)
            t = (load64(c, k) - centre) * e * scale
            store64(sum_b, k, load64(sum_b, k) + t)
            t = t * load64(b, k)
            store64(sum_g, k, load64(sum_g, k) + t)
            with_logs = with_logs - t * load64(logs, k)
            store64(c, k, t)
            share = e * load64(b, k)
            store64(E, k, share)
            store64(sum_payload, k, load64(sum_payload, k) + share * first)
        if d > 1:
            for q in range(len(of_payload)):
                o, to = of_out[i, q] * scale, of_payload[q]
                for k in range(low, min(high, m)):
                    to[k] += E[k] * o
        if kind == MATRIX:
            to = of_costs[i * m : i * m + m]
            for k in range(m):
                to[k] = -c[k] * inverse if low <= k < high else 0.0
            of_x[i] = 0.0
            continue
        slopes_into(kind, p, x[i], y, m, slope)
        sums = splat64(0.0)
        for k in range(low, high, 16):
            t = load64(c, k) * load64(slope, k)
            sums = sums + t
            store64(sum_y, k, load64(sum_y, k) - t)
        of_x[i] = total64(sums) * inverse
    return total64(with_logs) * inverse + of_eps


@jit
def read_rows_backward(first: int, last: int, rows: Rows, kind: int, p: float, G: F64, payload: F64, potentials: bool,
                       of_out: F64, out: Cotangents, of_g: F64, of_payload: F64) -> None:  # fmt: skip
    """Write the cotangents of the rows first to last - 1. out.a is left alone: the weights of values have no part.

    of_payload  OUT  (R, d, m), or (0, d, m) where nobody wants it
    """
    m, d = rows.y.shape[1], payload.shape[1]
    w = workspace(1, m, False)
    one_y, one_b, one, given = len(rows.y) == 1, len(rows.b) == 1, len(payload) == 1, kind == MATRIX
    wanted = len(of_payload) > 0
    nothing = np.empty((0, m))
    for row in range(first, last):
        if np.isnan(G[row, 0]):
            fill(out, row, np.nan)
            of_g[row] = np.nan
            of_payload[row:][:1] = np.nan
            continue
        own = payload[0 if one else row]
        row_into(w, rows.y[0 if one_y else row], rows.b[0 if one_b else row], G[row], own, m)
        for k in range(len(w.targets[SUM_G])):
            w.targets[SUM_G, k], w.targets[SUM_Y, k] = 0.0, 0.0
            w.targets[SUM_B, k], w.targets[SUM_PAYLOAD, k] = 0.0, 0.0
        of_payload[row:][:1] = 0.0
        out.eps[row] = read_row_backward(
            rows.x[row], m, rows.eps[row], kind, p, rows.costs[row if given else 0], w.targets, w.lines, own,
            potentials, of_out[row], out.x[row], out.costs[row] if given else out.x[row],
            of_payload[row] if wanted else nothing,
        )  # fmt: skip
        inverse = 1.0 / rows.eps[row]
        for j in range(m):
            out.y[row, j], out.b[row, j] = w.targets[SUM_Y, j] * inverse, w.targets[SUM_B, j]
            of_g[row, j] = w.targets[SUM_G, j]
        if d == 1 and wanted:
            for j in range(m):
                of_payload[row, 0, j] = w.targets[SUM_PAYLOAD, j]
