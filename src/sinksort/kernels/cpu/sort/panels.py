"""A few nodes in place of many weighted points, wherever a plan is smooth: for values and for targets alike.

Points y_j of weight b_j, increasing, are grouped into panels, and a panel is replaced by the two nodes whose first four
moments are its own (Gauss' rule for its measure). With mean c, deviation s and skewness k of the panel these are

    c + s t,    t^2 - k t - 1 = 0,        of weights  t_2 / (t_2 - t_1)  and  -t_1 / (t_2 - t_1)  of the panel's.

Panels of one or two points lose nothing. How long others may be is seen from the other side. Seen from the target y, a
source at x has a share that goes like exp(2 x y / eps): within a panel of width h shares change by a factor whose
logarithm is 2 h / eps times how far apart the sources are that send anything there. These are those which the hard sort
sends there and a bit beyond, and sqrt(eps / 2) around them. So a gap between two groups of values, a tail, and a tie
all have panels as short or as long as they need, and nothing has to be known of the distribution of values or targets.

Gauss' rule wants weights that are not negative, and cotangents may be. For these, and wherever more digits are needed,
a panel keeps six of its own points, and what any other weighs is moved to the six by the polynomial through them. Where
shares change by a factor e^c within a panel, that is off by 1.4e-6 c^6 of them at most.
"""

from __future__ import annotations

import math

from ..engine.compile import exact
from ..engine.maths import F64, I32
from ..engine.staircase import SAME_MASS, passages

PER_PANEL = 6  #: points of a panel that stand for all of it
#: Where, from 0 to 1: the extrema of Chebyshev's polynomial of degree 5, both ends among them.
_WHERE = tuple(0.5 - 0.5 * math.cos(math.pi * k / (PER_PANEL - 1)) for k in range(PER_PANEL))
_CLOSE = 0.02  #: of its width: closer than this two of them would amplify rounding
_SAME_PLACE = 1e-13  #: deviation of a panel that is one point


@exact
def boundaries(x: F64, a: F64, n: int, b: F64, K: int, z: F64) -> None:
    """The hard sort of sources x with weights a: z[j] to z[j + 1] is where the sources of target j stand."""
    z[0], z[K] = x[0], x[n - 1]
    passages(x, a, n, b, K, SAME_MASS, z[1:])


@exact
def panels(y: F64, b: F64, K: int, z: F64, eps: float, change: float, nodes: F64, weights: F64) -> int:
    """Nodes for the K points y, from which the other side is at z (see ``boundaries``); returns how many.

    ``change`` bounds the logarithm of the factor by which shares change within a panel.
    """
    count, first = 0, 0
    while first < K:
        end = _end_of_panel(y, K, z, eps, change, first)
        count += _two_nodes(y, b, first, end, nodes[count:], weights[count:])
        first = end
    return count


@exact
def _end_of_panel(y: F64, K: int, z: F64, eps: float, change: float, first: int) -> int:
    end, around, rate = first + 1, math.sqrt(0.5 * eps), 2.0 / eps
    while end < K:
        beyond = end + 1 - first
        apart = 0.5 * (z[min(end + 1 + beyond, K)] - z[max(first - beyond, 0)]) + around
        if (y[end] - y[first]) * rate * apart > change:
            break
        end += 1
    return end


@exact
def _two_nodes(y: F64, b: F64, first: int, end: int, nodes: F64, weights: F64) -> int:
    weight, moment = 0.0, 0.0
    for j in range(first, end):
        weight += b[j]
        moment += b[j] * (y[j] - y[first])
    if not weight > 0.0:
        return 0
    centre = moment / weight
    square, cube = 0.0, 0.0
    for j in range(first, end):
        d = y[j] - y[first] - centre
        square += b[j] * d * d
        cube += b[j] * d * d * d
    deviation = math.sqrt(square / weight)
    if not deviation > _SAME_PLACE:
        nodes[0], weights[0] = y[first] + centre, weight
        return 1
    skew = cube / (weight * deviation * deviation * deviation)
    root = math.sqrt(skew * skew + 4.0)
    # The two roots have the product -1: each from the one that does not cancel.
    high = 0.5 * (skew + root) if skew > 0.0 else 2.0 / (root - skew)
    low = -1.0 / high
    nodes[0], nodes[1] = y[first] + centre + low * deviation, y[first] + centre + high * deviation
    weights[0], weights[1] = weight * high / (high - low), -weight * low / (high - low)
    return 2


@exact
def keep(y: F64, K: int, z: F64, eps: float, change: float, kept: I32, slot: I32, share: F64) -> int:
    """Which of the K points stand for all of them, for weights of any sign; returns how many.

    What point j weighs goes to kept[slot[j]] and the five after it, in shares from share[PER_PANEL j] on.
    """
    count, first = 0, 0
    while first < K:
        end = _end_of_panel(y, K, z, eps, change, first)
        if end - first > PER_PANEL and not _spaced(y, first, end, kept[count:]):
            end = first + PER_PANEL
        if end - first > PER_PANEL:
            for j in range(first, end):
                slot[j] = count
                for k in range(PER_PANEL):
                    share[PER_PANEL * j + k] = _lagrange(y, kept[count : count + PER_PANEL], k, y[j])
            count += PER_PANEL
        else:  # each for itself
            for j in range(first, end):
                kept[count], slot[j] = j, count
                share[PER_PANEL * j], share[PER_PANEL * j + 1 : PER_PANEL * j + PER_PANEL] = 1.0, 0.0
                count += 1
        first = end
    return count


@exact
def _spaced(y: F64, first: int, end: int, kept: I32) -> bool:
    """The points nearest to ``_WHERE``; False if two are too close for a polynomial through them."""
    width, j, apart = y[end - 1] - y[first], first, True
    for k in range(PER_PANEL):
        wanted = y[first] + width * _WHERE[k]
        while j < end - PER_PANEL + k and abs(y[j + 1] - wanted) <= abs(y[j] - wanted):
            j += 1
        kept[k] = j
        apart = apart and (k == 0 or y[j] - y[kept[k - 1]] > _CLOSE * width)
        j += 1
    return apart


@exact
def _lagrange(y: F64, kept: I32, k: int, place: float) -> float:
    """The polynomial that is 1 at point k of those kept and 0 at the others."""
    value, here = 1.0, y[kept[k]]
    for m in range(PER_PANEL):
        if m != k:
            value *= (place - y[kept[m]]) / (here - y[kept[m]])
    return value


@exact
def moved(w: F64, K: int, slot: I32, share: F64, count: int, out: F64) -> None:
    """The weights w of K points, moved to the ``count`` that were kept. ``out`` has room for PER_PANEL more."""
    out[: count + PER_PANEL] = 0.0
    for j in range(K):
        for k in range(PER_PANEL):
            out[slot[j] + k] += w[j] * share[PER_PANEL * j + k]
