"""Where Newton's method starts: the hard sort, with what entropy does at each boundary between two targets.

What     The difference of the potentials of neighbouring targets, from the values at which the staircase of the hard
         sort passes from one to the other.
When     Once a row.
Why      Where a boundary of the values' weights lies next to one of the targets' (1e-8 apart, say), the hard sort sends
         that little over at full cost, and the entropic plan sends it as a leak. At eps = 1e-6 the two potentials are
         thousands of eps apart, which Newton's capped steps need hundreds of iterations for.
Keeps    Nothing.
"""

from __future__ import annotations

import math

from ..engine.compile import borrowing
from ..engine.maths import F64
from .costs import MATRIX, cost_of

_SAME = 1e-13  # cumulative weights closer than this differ by rounding
_NEAR = 0.25  # of the lighter of the two pairs at a boundary: how much may cross it as a leak
_APART = 2.0  # from here on, in units of eps, the pairs at a boundary are alone with each other


@borrowing
def rise_at(i: int, j: int, x: F64, y: F64, kind: int, p: float, given: F64, stride: int) -> float:
    """Return what it costs value i more to go to target j + 1 than to target j."""
    if kind == MATRIX:
        return given[i * stride + j + 1] - given[i * stride + j]
    return cost_of(kind, p, x[i], y[j + 1]) - cost_of(kind, p, x[i], y[j])


@borrowing
def boundary(low: float, high: float, alpha: float, beta: float, over: float, eps: float) -> float:
    """Return the difference of potentials between two targets at a boundary where two values meet.

    The lower value sends alpha exp((d - low) / eps) up, and the upper one sends beta exp((high - d) / eps) down; the
    difference of the two is ``over``.
    """
    half = 0.5 * (low - high) / eps
    ratio = abs(over) / (2.0 * math.sqrt(alpha * beta))
    tau = 0.0
    if abs(over) > _SAME:
        size = math.log(ratio) + half
        tau = math.asinh(math.exp(size)) if size < 20.0 else size + math.log(2.0)
        tau = math.copysign(tau, over)
    return 0.5 * (low + high) + eps * tau


@borrowing
def start(x: F64, a: F64, n: int, y: F64, b: F64, K: int, eps: float, kind: int, p: float, given: F64,
          stride: int, g: F64) -> None:  # fmt: skip
    """Write the potentials g of K targets, in units of the cost. All weights are positive.

    given  IN  costs of value i and target j at i * stride + j, for MATRIX
    """
    i, reached, passed = 0, a[0], 0.0
    g[0] = 0.0
    for j in range(K - 1):
        passed += b[j]
        while i < n - 1 and reached < passed - _SAME:
            i += 1
            reached += a[i]
        up = reached - passed
        rise = rise_at(i, j, x, y, kind, p, given, stride)
        down = a[i] - up
        lower = i if up <= down else i - 1
        over = up if up <= down else -down
        if 0 <= lower < n - 1:
            alpha, beta = min(a[lower], b[j]), min(a[lower + 1], b[j + 1])
            if abs(over) < _NEAR * min(alpha, beta):
                other = rise_at(2 * lower + 1 - i, j, x, y, kind, p, given, stride)
                low, high = (rise, other) if lower == i else (other, rise)
                rise = boundary(low, high, alpha, beta, over, eps)
                if low - high > _APART * eps:
                    rise += eps * (0.5 * math.log(beta / alpha) - math.log(b[j + 1] / b[j]))
        g[j + 1] = g[j] + rise
