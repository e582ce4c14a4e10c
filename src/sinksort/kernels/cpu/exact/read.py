"""The plan read: averages of a payload over the targets of each value, or the shares themselves.

What     p_ij = b_j E_ij for a value i, and sum_j p_ij payload_jd for columns d of a payload ("pull"). Averages over the
         values of each target ("push") are the same with values and targets exchanged.
When     After ``solve``, as often as a caller has something to read.
Why      See the folder.
Keeps    Nothing: E comes from F and G again.

**Gradient.** Rows are normalised, so p_ij is a softmax over j of G_j + log b_j - M_ij, and F is no argument. With c_ij
the cotangent of p_ij, T_ij = p_ij (c_ij - sum_k p_ik c_ik) is that of the logits: G_j receives sum_i T_ij, b_j receives
sum_i T_ij / b_j (E_ij in place of p_ij / b_j), M_ij receives -T_ij, and eps receives -sum_ij T_ij log(E_ij) / eps.
"""

from __future__ import annotations

import numpy as np

from ...numba_compile import borrowing, exact
from ...numba_maths import F64
from ...numba_simd import load64, splat64, store64, total64
from .costs import MATRIX, costs_into, slopes_into
from .lines import CUT, exponentials_into, window
from .solve import fill, targets_into
from .work import G0, LEVEL, SUM_B, SUM_G, SUM_Y, B, Cotangents, Rows, Work, Y, workspace

_NEVER = -1e30


@borrowing
def line_into(w: Work, x: float, m: int, eps: float, kind: int, p: float, given: F64, own: float) -> tuple[int, int]:
    """Write E_ij of one value to lines[2], and its logarithm to lines[4]; return the window that is not negligible."""
    cost, line = w.lines[0], w.lines[2]
    costs_into(kind, p, x, w.targets[Y], m, given, cost)
    potential = w.targets[G0]
    logs, inverse = w.lines[4], 1.0 / eps
    for k in range(0, m, 16):
        store64(logs, k, load64(potential, k) - load64(cost, k) * inverse + own)
    first, end = window(logs, m, -CUT)
    exponentials_into(logs, first, end, line, first)
    return first, end


@borrowing
def potentials_into(w: Work, G: F64, m: int) -> None:
    """Copy G, with nothing behind it."""
    for k in range(len(w.targets[G0])):
        w.targets[G0, k] = G[k] if k < m else _NEVER


@exact
def read_rows(first: int, last: int, rows: Rows, kind: int, p: float, F: F64, G: F64, payload: F64, out: F64) -> None:
    """Read the rows first to last - 1.

    payload  (R or 1, d, m)  IN   d = 0 asks for the shares
    out      (R, n, d)       OUT  or the shares, (R, n, m)
    """
    n, m, d = rows.x.shape[1], rows.y.shape[1], payload.shape[1]
    w = workspace(1, m, False)
    one_y, one_b, one = len(rows.y) == 1, len(rows.b) == 1, len(payload) == 1
    given = kind == MATRIX
    for row in range(first, last):
        if not F[row, 0] == F[row, 0]:
            out[row] = np.nan
            continue
        targets_into(w, rows.y[0 if one_y else row], rows.b[0 if one_b else row], m)
        potentials_into(w, G[row], m)
        b, line, costs = w.targets[B], w.lines[2], rows.costs[row if given else 0]
        if d == 1:  # the room behind the targets is there for vectors
            for j in range(m):
                w.targets[LEVEL, j] = payload[0 if one else row, 0, j]
        for i in range(n):
            low, high = line_into(w, rows.x[row, i], m, rows.eps[row], kind, p, costs[i * m :] if given else costs,
                                  F[row, i])  # fmt: skip
            sums = splat64(0.0)
            for k in range(low, high, 16):
                share = load64(line, k) * load64(b, k)
                sums = sums + share
                store64(line, k, share)
            scale = 1.0 / total64(sums)
            if d == 1:
                average = splat64(0.0)
                for k in range(low, high, 16):
                    average = average + load64(line, k) * load64(w.targets[LEVEL], k)
                out[row, i, 0] = total64(average) * scale
            elif d == 0:
                out[row, i] = 0.0
                for k in range(low, min(high, m)):
                    out[row, i, k] = line[k] * scale
            else:
                for c in range(d):
                    number, column = 0.0, payload[0 if one else row, c]
                    for k in range(low, min(high, m)):
                        number += line[k] * column[k]
                    out[row, i, c] = number * scale


@borrowing
def cotangent_into(w: Work, of_out: F64, payload: F64, d: int, low: int, high: int, m: int) -> None:
    """Write the cotangent of the shares of one value to lines[3]."""
    line = w.lines[3]
    if d == 1:
        for k in range(low, high, 16):
            store64(line, k, load64(w.targets[LEVEL], k) * of_out[0])
        return
    for k in range(low, high):
        line[k] = of_out[k] if d == 0 and k < m else 0.0
    for c in range(d):
        column = payload[c]
        for k in range(low, min(high, m)):
            line[k] += of_out[c] * column[k]


@exact
def read_rows_backward(first: int, last: int, rows: Rows, kind: int, p: float, F: F64, G: F64, payload: F64,
                       of_out: F64, out: Cotangents, of_g: F64, of_payload: F64) -> None:  # fmt: skip
    """Write the cotangents of the rows first to last - 1. out.a is left alone: the weights of values have no part."""
    n, m, d = rows.x.shape[1], rows.y.shape[1], payload.shape[1]
    w = workspace(1, m, False)
    one_y, one_b, one, given = len(rows.y) == 1, len(rows.b) == 1, len(payload) == 1, kind == MATRIX
    for row in range(first, last):
        if not F[row, 0] == F[row, 0]:
            fill(out, row, np.nan)
            of_g[row] = np.nan
            of_payload[row:][:1] = np.nan
            continue
        targets_into(w, rows.y[0 if one_y else row], rows.b[0 if one_b else row], m)
        potentials_into(w, G[row], m)
        if d == 1:
            for j in range(m):
                w.targets[LEVEL, j] = payload[0 if one else row, 0, j]
        w.targets[SUM_G][:], w.targets[SUM_Y][:], w.targets[SUM_B][:], w.targets[13][:] = 0.0, 0.0, 0.0, 0.0
        of_payload[row:][:1] = 0.0
        inverse, of_eps = 1.0 / rows.eps[row], 0.0
        for i in range(n):
            of_eps += read_value_backward(w, i, row, rows, kind, p, F, payload[0 if one else row], of_out, out, of_payload)
        out.eps[row] = of_eps * inverse
        for j in range(m):
            out.y[row, j], out.b[row, j], of_g[row, j] = (
                w.targets[SUM_Y, j] * inverse, w.targets[SUM_B, j], w.targets[SUM_G, j]
            )  # fmt: skip
        if d == 1 and len(of_payload) > 0:
            for j in range(m):
                of_payload[row, 0, j] = w.targets[13, j]


@borrowing
def read_value_backward(w: Work, i: int, row: int, rows: Rows, kind: int, p: float, F: F64, payload: F64, of_out: F64,
                        out: Cotangents, of_payload: F64) -> float:  # fmt: skip
    """Add what one value contributes; return what it adds to eps times the cotangent of eps."""
    m, d, given = rows.y.shape[1], payload.shape[0], kind == MATRIX
    eps, costs = rows.eps[row], rows.costs[row if given else 0]
    inverse = 1.0 / eps
    low, high = line_into(w, rows.x[row, i], m, eps, kind, p, costs[i * m :] if given else costs, F[row, i])
    b, E, c, logs, slope = w.targets[B], w.lines[2], w.lines[3], w.lines[4], w.lines[1]
    cotangent_into(w, of_out[row, i], payload, d, low, high, m)
    whole, mean = splat64(0.0), splat64(0.0)
    for k in range(low, high, 16):
        share = load64(E, k) * load64(b, k)
        whole = whole + share
        mean = mean + share * load64(c, k)
    scale = 1.0 / total64(whole)
    centre, with_logs = total64(mean) * scale, splat64(0.0)
    sum_g, sum_y, sum_b = w.targets[SUM_G], w.targets[SUM_Y], w.targets[SUM_B]
    for k in range(low, high, 16):
        e = load64(E, k) * scale
        t = e * (load64(c, k) - centre)
        store64(sum_b, k, load64(sum_b, k) + t)
        t = t * load64(b, k)
        store64(sum_g, k, load64(sum_g, k) + t)
        with_logs = with_logs - t * load64(logs, k)
        store64(c, k, t)
        store64(E, k, e * load64(b, k))
    if len(of_payload) > 0 and d == 1:
        sums, o = w.targets[13], of_out[row, i, 0]
        for k in range(low, high, 16):
            store64(sums, k, load64(sums, k) + load64(E, k) * o)
    elif len(of_payload) > 0:
        for q in range(d):
            o, to = of_out[row, i, q], of_payload[row, q]
            for k in range(low, min(high, m)):
                to[k] += E[k] * o
    if given:
        to = out.costs[row, i * m : i * m + m]
        to[:] = 0.0
        for k in range(low, min(high, m)):
            to[k] = -c[k] * inverse
        out.x[row, i] = 0.0
    else:
        slopes_into(kind, p, rows.x[row, i], w.targets[Y], m, slope)
        of_x = splat64(0.0)
        for k in range(low, high, 16):
            t = load64(c, k) * load64(slope, k)
            of_x = of_x + t
            store64(sum_y, k, load64(sum_y, k) - t)
        out.x[row, i] = total64(of_x) * inverse
    return total64(with_logs)
