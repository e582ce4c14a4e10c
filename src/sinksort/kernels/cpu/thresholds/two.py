"""Rows that meet two targets, as masks do: one unknown, and a gradient in closed form.

Between targets at y_0 < y_1 the plan is a threshold tau that is crossed softly,

    p_i  =  1 / (1 + exp(-z_i)),     z_i = s (x~_i - tau),     s = 2 (y_1 - y_0) / eps,

with p_i the share of value i that goes to y_1, and sum_i a_i p_i = b_1. Of each value the smaller of its two shares is
known best: m_i = min(p_i, 1 - p_i) has all its digits, however small, while p_i itself may be 1 - 1e-9. So the equation
is balanced in these. With A the sum of a_i m_i over the values that are out (z_i <= 0), B that over those that are in,
and e what the weight of those that are in falls short of b_1, it says

    A  =  B + e,

where e is a difference of whole weights, in double precision. Where a row is nearly hard both sides are tiny, and what
sets its gradient is their ratio. So Newton's method solves log(A + e_-) = log(B + e_+), which is nearly straight there,
from where the hard row would be cut. Exponentials are single precision, of arguments that are not: relative errors of
1e-6 in m_i move tau by that many widths 1/s, nothing more, because a_i m_i (1 - m_i), the slopes, add up to at least
half of what is balanced.

Gradients: with q_i = p_i (1 - p_i), dp_i = q_i (s dx~_i - dc), and dc keeps the sum, so

    cotangent of x~_i  =  s (phi_1 - phi_0) q_i (w_i - a_i sum_k w_k q_k / sum_k a_k q_k).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ..engine.compile import exact
from ..engine.maths import F32, F64, copied, exp32, larger, places, places_backward, row_into, smaller
from ..engine.sources import padded
from ..engine.vectors import choose, highest, load, load64, lowest, narrow, splat, splat64, store, total64, widen
from .sums import carry, crossing

TWO_SIZE = 2 * (1 + 4)  #: of a state: tau and the 4 numbers of ``places``, in float64

XS, AW, WEIGHT, READ, AT32 = range(5)
_FARTHEST = 60.0  #: |z| beyond which a value is in or out altogether
_OF_NOTHING = 45.0  #: |z| of the nearest value where one of the targets weighs nothing
_ENOUGH, _MOST_STEPS = 3e-4, 120  #: Newton's last step, whose error is its square
_TINY, _EXACT = 1e-28, 1e-15  #: shares of all weight that are nothing; that rounding in double precision leaves
_LARGEST_LOGIT, _SINGLE = 1e9, 1e-7


class Row(NamedTuple):
    """Scratch of a thread: 5 parts of N float32, the places, the weights once more, and a buffer."""

    n32: F32
    at: F64
    a: F64
    buffer: F64


@njit(forceinline=True)
def _shares(at: F64, i: int, s: float, tau: float) -> tuple[Any, Any, Any]:
    """Of 16 values: which are in, the smaller share m of each, and the larger one."""
    z = narrow((load64(at, i) - tau) * s)
    above = z > 0.0
    below = choose(above, splat(0.0) - z, z)
    e = choose(below > -_FARTHEST, exp32(below), splat(0.0))
    most = splat(1.0) / (e + 1.0)
    return above, e * most, most


@exact
def _balance(k: Row, s: float, tau: float) -> tuple[float, float, float, float, float]:
    """A, B, the sums of a m (1 - m) that they change by, and the weight of what is in."""
    zero, none = splat64(0.0), splat(0.0)
    out, out_slope, into, into_slope, inside = zero, zero, zero, zero, zero
    for i in range(0, len(k.at), 16):
        above, m, most = _shares(k.at, i, s, tau)
        a = load(k.n32[AW], i)
        share = m * a
        slope = share * most
        out, out_slope = out + widen(choose(above, none, share)), out_slope + widen(choose(above, none, slope))
        into, into_slope = into + widen(choose(above, share, none)), into_slope + widen(choose(above, slope, none))
        inside = inside + choose(above, load64(k.a, i), zero)
    return total64(out), total64(into), total64(out_slope), total64(into_slope), total64(inside)


@exact
def _between(k: Row, n: int, s: float, tau: float) -> float:
    """Tau of a row of which nothing is divided: between the nearest values, where A = B would hold in longer numbers.

    Only what weighs nothing can stand there, and be divided.
    """
    below, above, out, into = -np.inf, np.inf, 0.0, 0.0
    for i in range(n):
        if k.a[i] > 0.0 and k.at[i] <= tau:
            below = max(below, k.at[i])
        elif k.a[i] > 0.0:
            above = min(above, k.at[i])
    for i in range(n):
        if tau >= k.at[i] > below - _FARTHEST / s:
            out += k.a[i] * math.exp(s * (k.at[i] - below)) if k.a[i] > 0.0 else 0.0
        elif tau < k.at[i] < above + _FARTHEST / s:
            into += k.a[i] * math.exp(s * (above - k.at[i])) if k.a[i] > 0.0 else 0.0
    return 0.5 * (below + above + math.log(out / into) / s) if above - below < np.inf else tau


@exact
def _threshold(k: Row, n: int, s: float, b_0: float, b_1: float, rounding: float, weighted: bool
               ) -> tuple[float, float]:  # fmt: skip
    """tau, and the marginal error. ``rounding``: relative, of weights that were given in single precision."""
    at, aw, at32 = k.at, k.n32[AW], k.n32[AT32]
    at[n:] = at[0]  # nothing behind the row may lie outside of it
    bottom, top, weights = splat(np.inf), splat(-np.inf), splat64(0.0)
    for i in range(0, len(at), 16):
        here = narrow(load64(at, i))
        store(at32, i, here)
        bottom, top, weights = smaller(bottom, here), larger(top, here), weights + load64(k.a, i)
    low, high = np.float64(lowest(bottom)), np.float64(highest(top))
    size = max(abs(low), abs(high))
    if not size * s < 2.0 * _LARGEST_LOGIT:
        return low, np.inf
    if not b_1 > 0.0:
        return high + _OF_NOTHING / s, 0.0
    if not b_0 > 0.0:
        return low - _OF_NOTHING / s, 0.0
    at32[n:] = np.inf
    whole = total64(weights)
    wanted = b_1 / (b_0 + b_1) * whole
    same, nothing = max(_EXACT, rounding * min(b_0, b_1)) * whole, _TINY * whole
    tau, beyond = crossing(at32, aw, n, low, high, b_0, k.buffer), _FARTHEST / s + _SINGLE * size
    tau, low, high = min(max(tau, low), high), low - beyond, high + beyond
    for _ in range(_MOST_STEPS):
        out, into, out_slope, into_slope, inside = _balance(k, s, tau)
        missing = wanted - inside
        if abs(missing) <= same:
            missing = 0.0
        left, right = out - min(missing, 0.0), into + max(missing, 0.0)
        if max(left, right) <= nothing:  # nearer to hard than numbers can tell
            return _between(k, n, s, tau) if weighted else tau, 0.0
        left, right = max(left, nothing), max(right, nothing)
        step = (math.log(left) - math.log(right)) / (out_slope / left + into_slope / right + 1e-30)
        if left > right:
            low = tau
        else:
            high = tau
        if abs(step) <= _ENOUGH:
            return tau + step / s, step * step * max(left, right) / whole
        before, tau = tau, tau + step / s
        if not low < tau < high:
            tau = 0.5 * (low + high)
        if tau == before:
            return tau, 0.0
    return tau, np.inf


@exact
def _held(k: Row, n: int, received: float, s: float, tau: float, g: F32) -> None:
    """``g`` of such a row, before its factor s (phi_1 - phi_0): a_i q_i / sum_k a_k q_k is a matter of ratios."""
    nearest, whole = np.inf, 0.0
    for i in range(n):
        if k.a[i] > 0.0:
            nearest = min(nearest, abs(k.at[i] - tau))
    for i in range(n):
        whole += k.a[i] * math.exp(s * (nearest - abs(k.at[i] - tau))) if k.a[i] > 0.0 else 0.0
    for i in range(n):
        if k.a[i] > 0.0:
            g[i] = -received * k.a[i] * math.exp(s * (nearest - abs(k.at[i] - tau))) / whole


@exact
def _row_for(n: int) -> Row:
    N = padded(n)
    return Row(np.zeros((5, N), np.float32), np.zeros(N), np.zeros(N), np.zeros(128))


@exact
def _placed(k: Row, x: F32, a: F64, y: F32, eps: F32, n: int, squash: int, steps: tuple[int, int, int, int, int],
            row: int, first: bool) -> tuple[float, tuple[float, float, float, bool]]:  # fmt: skip
    """Puts a row, its weights and its places into k; returns s, NaN if the row holds NaN, and what ``places`` does."""
    if first or steps[4] > 0:
        for i in range(n):
            k.n32[AW, i] = a[row * n + i] if steps[4] > 0 else 1.0 / n
            k.a[i] = a[row * n + i] if steps[4] > 0 else k.n32[AW, i]  # equal ones add up without rounding
    if not row_into(x, row * n, n, k.n32[XS]):
        return np.nan, (0.0, 0.0, 0.0, False)
    y_0, y_1 = np.float64(y[row * steps[0]]), np.float64(y[row * steps[0] + 1])
    moments = places(k.n32[XS], k.n32[AW], squash, y_0, y_1, k.at)
    return 2.0 * (y_1 - y_0) / np.float64(eps[row * steps[3]]), moments


@exact
def _solved(k: Row, x: F32, a: F64, y: F32, b: F64, rounding: float, eps: F32, n: int, squash: int,
            steps: tuple[int, int, int, int, int], row: int, first: bool, errors: F32
            ) -> tuple[float, float, tuple[float, float, float, bool]]:  # fmt: skip
    """s and tau, both NaN if the row holds NaN, and what ``places`` returns; its error goes to ``errors``."""
    s, moments = _placed(k, x, a, y, eps, n, squash, steps, row, first)
    tau, errors[row] = np.nan, 0.0
    if s == s:
        tau, errors[row] = _threshold(k, n, s, b[row * steps[0]], b[row * steps[0] + 1], rounding, steps[4] > 0)
    return s, tau, moments


@exact
def _save(tau: float, moments: tuple[float, float, float, bool], state: F64) -> None:
    state[0], state[1], state[2], state[3] = tau, moments[0], moments[1], moments[2]
    state[4] = 1.0 if moments[3] else 0.0


@exact
def _read(k: Row, s: float, tau: float, phi_0: float, phi_1: float, out: F32) -> None:
    """p_0 phi_0 + p_1 phi_1."""
    for i in range(0, len(k.at), 16):
        above, m, most = _shares(k.at, i, s, tau)
        store(out, i, choose(above, splat(phi_1), splat(phi_0)) * most + choose(above, splat(phi_0), splat(phi_1)) * m)


@exact
def pull_two(start: int, stop: int, x: F32, a: F64, y: F32, b: F64, rounding: float, phi: F32, eps: F32, n: int,
             squash: int, steps: tuple[int, int, int, int, int], out: F32, state32: F32,
             errors: F32) -> None:  # fmt: skip
    """Rows start to stop; see ``row.solve.pull_rows`` for the arguments, ``_threshold`` for ``rounding``."""
    k, state64, size = _row_for(n), state32.view(np.float64), TWO_SIZE // 2
    for row in range(start, stop):
        s, tau, moments = _solved(k, x, a, y, b, rounding, eps, n, squash, steps, row, row == start, errors)
        if s == s:
            _read(k, s, tau, phi[row * steps[1]], phi[row * steps[1] + 1], k.n32[READ])
            copied(k.n32[READ], out[row * n : row * n + n])
        else:
            out[row * n : row * n + n] = np.nan
        _save(tau, moments, state64[row * size :])


@exact
def push_two(start: int, stop: int, x: F32, a: F64, y: F32, b: F64, rounding: float, eps: F32, n: int, squash: int,
             steps: tuple[int, int, int, int, int], out: F32, state32: F32, errors: F32) -> None:  # fmt: skip
    """As ``row.solve.push_rows``."""
    k, state64, size = _row_for(n), state32.view(np.float64), TWO_SIZE // 2
    for row in range(start, stop):
        s, tau, moments = _solved(k, x, a, y, b, rounding, eps, n, squash, steps, row, row == start, errors)
        if s == s:
            infinite = carry(k.n32[XS], k.n32[AW], n, moments[0], moments[1], k.n32[WEIGHT])
            sum_0, sum_1, share_0, share_1 = splat64(0.0), splat64(0.0), splat64(0.0), splat64(0.0)
            for i in range(0, len(k.at), 16):
                above, m, most = _shares(k.at, i, s, tau)
                w, aw = load(k.n32[WEIGHT], i), load(k.n32[AW], i)
                p_0, p_1 = choose(above, m, most), choose(above, most, m)
                sum_0, share_0 = sum_0 + widen(p_0 * w), share_0 + widen(p_0 * aw)
                sum_1, share_1 = sum_1 + widen(p_1 * w), share_1 + widen(p_1 * aw)
            out[row * 2] = moments[0] + total64(sum_0) / total64(share_0) / moments[1] + infinite
            out[row * 2 + 1] = moments[0] + total64(sum_1) / total64(share_1) / moments[1] + infinite
        else:
            out[row * 2 : row * 2 + 2] = np.nan
        _save(tau, moments, state64[row * size :])


@exact
def two_backward(start: int, stop: int, x: F32, a: F64, y: F32, b: F64, phi: F32, eps: F32, n: int, squash: int,
                 push: bool, steps: tuple[int, int, int, int, int], w: F32, grad: F32,
                 state32: F32) -> None:  # fmt: skip
    """As ``row.solve.rows_backward``."""
    k, state64, size = _row_for(n), state32.view(np.float64), TWO_SIZE // 2
    xs, aw, weight, g, direct = k.n32[XS], k.n32[AW], k.n32[WEIGHT], k.n32[READ], k.n32[AT32]
    for row in range(start, stop):
        state, answer = state64[row * size : (row + 1) * size], grad[row * n : row * n + n]
        s, _ = _placed(k, x, a, y, eps, n, squash, steps, row, row == start)
        if np.isnan(state[0]):
            answer[:] = np.nan
            continue
        tau, phi_0, phi_1, unit = state[0], np.float64(phi[row * steps[1]]), np.float64(phi[row * steps[1] + 1]), 1.0
        if push:
            b_0, b_1 = b[row * steps[0]], b[row * steps[0] + 1]
            phi_0, phi_1 = phi_0 / b_0 if b_0 > 0.0 else 0.0, phi_1 / b_1 if b_1 > 0.0 else 0.0
            if carry(xs, aw, n, state[1], state[2], weight) != 0.0:  # an infinite average has no gradient
                answer[:] = 0.0
                continue
            _read(k, s, tau, phi_0, phi_1, direct)
            unit = 1.0 / state[2]
            for i in range(n):  # the weights that are in ``weight``
                k.a[i] = aw[i]
        else:
            copied(w[row * n :], weight[:n])
        received, all_slopes = splat64(0.0), splat64(0.0)
        for i in range(0, len(k.at), 16):
            _, m, most = _shares(k.at, i, s, tau)
            slope = m * most
            store(g, i, slope)
            received = received + widen(load(weight, i)) * widen(slope)
            all_slopes = all_slopes + load64(k.a, i) * widen(slope)
        whole, all_received = total64(all_slopes), total64(received)
        mean = all_received / whole if whole > 0.0 else 0.0
        for i in range(0, len(k.at), 16):
            rest = widen(load(weight, i)) - load64(k.a, i) * mean
            store(g, i, narrow(widen(load(g, i)) * rest))
        if all_received != 0.0 and not whole > 0.0:
            _held(k, n, all_received, s, tau, g)
        g[n:] = 0.0
        places_backward(
            xs, aw, k.at, squash, state[1], state[2], state[3], state[4] > 0.0, unit * s * (phi_1 - phi_0), g
        )
        copied(g, answer)
        if push:
            for i in range(n):
                answer[i] += aw[i] * direct[i]
