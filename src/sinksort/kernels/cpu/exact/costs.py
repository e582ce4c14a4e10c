"""The cost h(y - x) of pairs, and its slope, sixteen pairs at a time.

What     |u|^p and Huber's function, or entries of a given matrix.
When     In every pass over the pairs of a row.
Why      The kind of the cost is a number, so that all costs share one compiled kernel.
Keeps    Nothing.
"""

from __future__ import annotations

import math

from ..engine.compile import borrowing
from ..engine.maths import F64
from ..engine.vectors import choose, load64, root, splat64, store64

#: Kinds. HALVES is |u|^p for p = 1.5, 2.5, 3, ... up to 8, which needs no logarithm.
SQUARED, ABSOLUTE, HALVES, POWER, HUBER, MATRIX = range(6)
MOST_HALVES = 8.0


def kind_of_power(p: float) -> int:
    """Return the kind of |u|^p.

    >>> kind_of_power(2.0), kind_of_power(1.5) == HALVES, kind_of_power(1.3) == POWER
    (0, True, True)
    """
    if p in (1.0, 2.0):
        return SQUARED if p == 2.0 else ABSOLUTE
    return HALVES if p <= MOST_HALVES and (2.0 * p).is_integer() else POWER


@borrowing
def costs_into(kind: int, p: float, x: float, y: F64, K: int, given: F64, out: F64) -> None:
    """Write the costs of one value and K targets, and of up to 15 targets behind them.

    y      (K)  IN   targets; there are 16 entries behind them
    given  (K)  IN   the costs themselves, for MATRIX
    out    (K)  OUT  with 16 entries behind them
    """
    none = splat64(0.0)
    if kind == SQUARED:
        for k in range(0, K, 16):
            u = load64(y, k) - x
            store64(out, k, u * u)
    elif kind == ABSOLUTE:
        for k in range(0, K, 16):
            u = load64(y, k) - x
            store64(out, k, choose(u > 0.0, u, none - u))
    elif kind == HALVES:
        whole = int(p)
        for k in range(0, K, 16):
            u = load64(y, k) - x
            size = choose(u > 0.0, u, none - u)
            power = root(size) if p > whole else splat64(1.0)
            for _ in range(whole):
                power = power * size
            store64(out, k, power)
    elif kind == HUBER:
        for k in range(0, K, 16):
            u = load64(y, k) - x
            size = choose(u > 0.0, u, none - u)
            inside = choose(size > p, splat64(p), size)
            store64(out, k, inside * (size - inside * 0.5))
    elif kind == POWER:
        for k in range(K):
            out[k] = math.pow(abs(y[k] - x), p)
        out[K : K + 16] = 0.0
    else:
        for k in range(K):
            out[k] = given[k]
        out[K : K + 16] = 0.0


@borrowing
def slopes_into(kind: int, p: float, x: float, y: F64, K: int, out: F64) -> None:
    """Write h'(y - x), which is 0 where the value stands on the target. For MATRIX there is nothing to write."""
    none = splat64(0.0)
    if kind == SQUARED:
        for k in range(0, K, 16):
            store64(out, k, (load64(y, k) - x) * 2.0)
    elif kind == ABSOLUTE:
        for k in range(0, K, 16):
            u = load64(y, k) - x
            store64(out, k, choose(u > 0.0, splat64(1.0), choose(u < 0.0, splat64(-1.0), none)))
    elif kind == HALVES:
        whole = int(p)
        for k in range(0, K, 16):
            u = load64(y, k) - x
            size = choose(u > 0.0, u, none - u)
            power = (root(size) if p > whole else splat64(1.0)) * p
            for _ in range(whole - 1):
                power = power * size
            store64(out, k, choose(u > 0.0, power, choose(u < 0.0, none - power, none)))
    elif kind == HUBER:
        for k in range(0, K, 16):
            u = load64(y, k) - x
            u = choose(u > p, splat64(p), u)
            store64(out, k, choose(u < -p, splat64(-p), u))
    elif kind == POWER:
        for k in range(K):
            away = y[k] - x
            slope = p * math.pow(abs(away), p - 1.0)
            out[k] = slope if away > 0.0 else (-slope if away < 0.0 else 0.0)
        out[K : K + 16] = 0.0


@borrowing
def cost_of(kind: int, p: float, x: float, y: float) -> float:
    """Return the cost of one pair, for every kind but MATRIX."""
    u = abs(y - x)
    if kind == SQUARED:
        return u * u
    if kind == ABSOLUTE:
        return u
    if kind == HUBER:
        return 0.5 * u * u if u <= p else p * (u - 0.5 * p)
    return math.pow(u, p)
