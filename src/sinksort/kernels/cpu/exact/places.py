"""From the values of a row to their places on the axis of the targets, and the gradient of that.

What     z = (x - mean) / std with moments weighted by a, and x~ = squash(z), as ``core.squash`` in torch. Values stand
         in increasing order.
When     Ranks, whose values need not be standardised by torch.
Why      Some forty operations of torch take 1.5 ms for 128 x 100 values, forward and backward. Here it is 0.1 ms.
Keeps    Nothing: a backward pass finds the places again.

**Gradient.** Let z' = x~' squash'(z), A = sum_i z'_i and B = sum_i z'_i z_i. Then x_i receives

    (z'_i - a_i A - a_i z_i B) / std,        and a_i receives        -z_i A - (z_i^2 - 1) B / 2,

the terms with B only where the row has a spread. Infinite values stand at the ends and get nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..engine.compile import jit_reassociate
from ..engine.maths import F64, I64, sigmoid64
from ..engine.vectors import load64, store64
from .work import OF, RAW, A, X, Z

#: Numbers of the squashes, as ``engine.maths`` has them. AS_THEY_ARE: places that torch has found.
SIGMOID, ARCTAN, NO_SQUASH, AS_THEY_ARE = 0, 1, 2, 3
_FAR = 1e100  # farther out a value without weight has no part in moments: 0 * u^2 would no longer be 0
_FARTHEST = 1e9  # of z, where every squash is flat


class Moments(NamedTuple):
    scale: float  #: dz / dx at fixed moments
    total: float  #: what the finite values weigh
    spread: bool  #: whether the scale is that of the row
    sound: bool  #: whether no value is NaN


@jit_reassociate
def places_into(x: F64, a: F64, order: I64, squash: int, low: float, high: float, values: F64) -> Moments:
    """Write sorted values, weights, z and x~ to rows of ``Work.values``.

    low, high  IN  the outermost targets
    """
    n, raw, weight, z, at = len(x), values[RAW], values[A], values[Z], values[X]
    N = len(at)
    wrong = 0
    for i in range(n):
        raw[i], weight[i] = x[order[i]], a[order[i]]
        wrong += raw[i] != raw[i] or weight[i] != weight[i]
    for i in range(n, N):
        weight[i] = 0.0
    if wrong > 0:
        return Moments(1.0, 1.0, False, False)
    scale, total, spread = 1.0, 1.0, False
    if squash >= NO_SQUASH:
        top, bottom = high, low
        for i in range(n):
            if np.isfinite(raw[i]):
                top, bottom = max(top, raw[i]), min(bottom, raw[i])
        for i in range(n):
            at[i] = min(max(raw[i], bottom), top) if squash == NO_SQUASH else raw[i]
    else:
        scale, total, spread = standardised(raw, weight, n, z)
        for i in range(n, N):
            z[i] = 0.0
        if squash == SIGMOID:
            for i in range(0, n, 16):
                store64(at, i, sigmoid64(load64(z, i)))
        else:
            for i in range(n):
                at[i] = math.atan(z[i]) / math.pi + 0.5
    for i in range(n, N):
        at[i] = at[n - 1]
    return Moments(scale, total, spread, True)


@jit_reassociate
def standardised(raw: F64, weight: F64, n: int, z: F64) -> tuple[float, float, bool]:
    """Write z, and return dz / dx, the weight of the finite values, and whether they have a spread.

    Values are brought to [-1, 1] first, so that squares of 1e200 are numbers.
    """
    size, top, bottom = 0.0, -np.inf, np.inf
    for i in range(n):
        if weight[i] > 0.0 and np.isfinite(raw[i]):
            size, top, bottom = max(size, abs(raw[i])), max(top, raw[i]), min(bottom, raw[i])
    size = size if size > 0.0 else 1.0
    counted, top, bottom = top >= bottom, top / size, bottom / size
    middle = 0.5 * top + 0.5 * bottom if counted else 0.0
    half = 0.5 * top - 0.5 * bottom if counted and top > bottom else 1.0
    total, mean, variance = 0.0, 0.0, 0.0
    for i in range(n):
        z[i] = (raw[i] / size - middle) / half
        if abs(z[i]) < _FAR:
            total += weight[i]
            mean += weight[i] * z[i]
    total = total if total > 0.0 else 1.0
    mean /= total
    for i in range(n):
        if abs(z[i]) < _FAR:
            variance += weight[i] * (z[i] - mean) ** 2
    variance /= total
    spread = counted and top > bottom and variance > 0.0
    scale = 1.0 / math.sqrt(variance) if spread else 1.0
    for i in range(n):
        z[i] = min(max((z[i] - mean) * scale, -_FARTHEST), _FARTHEST)
    return scale / half / size, total, spread


@jit_reassociate
def slope_of(squash: int, z: float, at: float) -> float:
    """Return the derivative of a squash."""
    return at * (1.0 - at) if squash == SIGMOID else 1.0 / (math.pi * (1.0 + z * z))


@jit_reassociate
def places_backward(values: F64, n: int, squash: int, moments: Moments, of_a: F64) -> None:
    """Turn the cotangents of x~ in ``values[OF]`` into those of x, and add to those of the weights. Both are sorted."""
    raw, weight, z, at, of = values[RAW], values[A], values[Z], values[X], values[OF]
    if squash >= NO_SQUASH:
        for i in range(n):
            of[i] = of[i] if np.isfinite(raw[i]) or squash == AS_THEY_ARE else 0.0
        return
    sums, with_z = 0.0, 0.0
    for i in range(n):
        of[i] = of[i] * slope_of(squash, z[i], at[i]) if np.isfinite(raw[i]) else 0.0
        sums += of[i]
        with_z += of[i] * z[i]
    with_z = with_z if moments.spread else 0.0
    share = 1.0 / moments.total
    for i in range(n):
        if np.isfinite(raw[i]):
            of[i] = (of[i] - weight[i] * share * (sums + z[i] * with_z)) * moments.scale
            of_a[i] -= share * (z[i] * sums + 0.5 * (z[i] * z[i] - 1.0) * with_z)
