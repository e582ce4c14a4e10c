"""Normalise: standardise the values of a row, then squash them into [0, 1] (the paper's map g~, Eq. 4).

Ranks must not depend on the unit or the origin of x, and one eps must mean the same softness for every row; both follow
from z = (x - mean) / std before an increasing map into [0, 1]. Moments are weighted by a, so that an entry without
weight influences nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Squash: TypeAlias = str | Callable[[Tensor], Tensor] | None

INCREASING_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "arctan": lambda z: z.arctan() / math.pi + 0.5,
}


#: Derivatives of the maps in z, from z and the map's own value.
SLOPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sigmoid": lambda _, s: s * (1.0 - s),
    "arctan": lambda z, _: 1.0 / (math.pi * (1.0 + z.square())),
}


def require_squash(squash: Squash) -> None:
    if squash is not None and not callable(squash) and squash not in INCREASING_MAPS:
        raise ValueError(
            "squash must be 'sigmoid', 'arctan', 'robust' (where all values of a row are at hand), None (x as it is) "
            f"or an increasing callable, got {squash!r}."
        )


def normalize(x: Tensor, a: Tensor, squash: Squash, low: Tensor, high: Tensor) -> Tensor:
    """x~ for rows ``x`` (..., n) with weights ``a``: where each value stands on the targets' axis.

    ``low`` and ``high`` are the outermost targets; infinite values go there when there is no squashing to send them.
    """
    if squash is None:
        # Beyond every finite value and at least at the outermost target.
        finite = torch.isfinite(x)
        top = torch.where(finite, x, -math.inf).amax(-1, keepdim=True).detach().maximum(high)
        bottom = torch.where(finite, x, math.inf).amin(-1, keepdim=True).detach().minimum(low)
        return torch.where(x == math.inf, top, torch.where(x == -math.inf, bottom, x))
    if callable(squash):
        squashed = squash(x)
        if not isinstance(squashed, Tensor) or squashed.shape != x.shape:
            came = tuple(squashed.shape) if isinstance(squashed, Tensor) else type(squashed).__name__
            raise ValueError(
                f"squash must return a tensor of the shape it was given, {tuple(x.shape)}, but it returned {came}; "
                "apply an increasing map elementwise."
            )
        return squashed
    require_squash(squash)
    return INCREASING_MAPS[squash](standardize(x, a))


def standardize(x: Tensor, a: Tensor) -> Tensor:
    """(x - mean) / std along the last dimension, defined for every row.

    The result does not change when x is shifted or scaled, so x is first brought to [-1, 1] by *constants*: the answer
    and its gradient stay the same, and 1e30 or 1e-30 neither overflow nor vanish. A constant row gives zeros with
    finite gradients; infinite values stay infinite, take no part in the moments and get no gradient.
    """
    finite = torch.isfinite(x)
    nan = torch.isnan(x)
    counted = (finite | nan) & (a > 0)  # NaN counts, so that it spreads over its row instead of hiding
    x_finite = torch.where(finite | nan, x, 0.0)
    with torch.no_grad():
        size = torch.where(counted, x_finite, 0.0).abs().amax(-1, keepdim=True)
        size = torch.where(size > 0, size, 1.0)
        scaled = x_finite / size
        top = torch.where(counted, scaled, -math.inf).amax(-1, keepdim=True)
        bottom = torch.where(counted, scaled, math.inf).amin(-1, keepdim=True)
        empty = ~counted.any(-1, keepdim=True)
        middle = torch.where(empty, 0.0, top / 2 + bottom / 2)
        half_range = torch.where(empty | (top == bottom), 1.0, top / 2 - bottom / 2)
    u = (x_finite / size - middle) / half_range
    # An entry without weight adds nothing to the moments, but what it would add is its derivative in the weight.
    adds = counted | (finite & (u.abs() < 1e100))  # farther out, 0 * u^2 would no longer be 0
    a = torch.where(adds, a, 0.0)
    total = a.sum(-1, keepdim=True)
    a = a / torch.where(total > 0, total, 1.0)
    centred = u - (a * torch.where(adds, u, 0.0)).sum(-1, keepdim=True)
    variance = (a * torch.where(adds, centred, 0.0).square()).sum(-1, keepdim=True)
    # A constant row has top == bottom and so no spread; anything else has, up to the rounding of a tiny weight.
    spread = (top > bottom) & (variance > 0) | torch.isnan(variance)
    z = centred / torch.where(spread, variance, 1.0).sqrt()
    z = z.clamp(-1e9, 1e9)  # a weightless outlier may overflow; it is far beyond where every squash is flat
    return torch.where(finite | nan, z, x)
