"""Where the filler of a quantile stands: the classical definitions of a sample quantile as weights of three targets.

The n sorted values of a row lie side by side on the axis of mass, the k-th from (k - 1)/n to k/n. A filler target of
weight t = 1/n that begins at (h - 1)/n receives parts of the two values at the position h: at eps -> 0 its average is
their linear interpolation, x_h for a whole h. The definitions differ in h, which should be about n q:

======================================  ===============================================  ==============================
``interpolation``                       h                                                elsewhere
======================================  ===============================================  ==============================
``"hazen"`` (default, the paper's)      n q + 1/2: the filler has q in its middle        Hyndman and Fan's type 5
``"linear"``                            (n - 1) q + 1                                    NumPy and torch's default
``"weibull"``                           (n + 1) q                                        type 6
``"median_unbiased"``                   (n + 1/3) q + 1/3                                type 8
``"normal_unbiased"``                   (n + 1/4) q + 3/8                                type 9
``"interpolated_inverted_cdf"``         n q                                              type 4
``"lower"``, ``"higher"``               that of linear, rounded down, up                 torch's
``"nearest"``, ``"midpoint"``           that of linear, rounded; the mean of the two     torch's
``"inverted_cdf"``                      n q, rounded up                                  type 1
``"averaged_inverted_cdf"``             the same; where n q is whole, 1/2 more           type 2
``"closest_observation"``               n q, rounded                                     type 3
======================================  ===============================================  ==============================

Halves are rounded to the even, and h is kept in [1, n]. The names are those of ``numpy.quantile(..., method=)``, and
five of them torch's. With equal weights alpha = beta = 1/2 (hazen), 1 (linear), and so on, the upper six rows are
h = n q + alpha + q (1 - alpha - beta). In mass, with any filler t, that begins at

    q - t (1 - alpha - q (1 - alpha - beta)),

which also has a meaning where values weigh differently. The others count values: they have a centre at (h - 1/2)/n,
and no meaning with weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from ..core.checks import require_between
from ..core.modes import remembered
from ..core.problem import existing, wide_dtype

Interpolation: TypeAlias = Literal[
    "hazen",
    "linear",
    "lower",
    "higher",
    "nearest",
    "midpoint",
    "weibull",
    "median_unbiased",
    "normal_unbiased",
    "interpolated_inverted_cdf",
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
]
INTERPOLATIONS: tuple[str, ...] = get_args(Interpolation)

#: alpha and beta of Hyndman and Fan (1996).
_CONTINUOUS: dict[str, tuple[float, float]] = {
    "hazen": (0.5, 0.5),
    "linear": (1.0, 1.0),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
    "interpolated_inverted_cdf": (0.0, 1.0),
}
#: h of definitions that jump, from whether n - 1 counts and not n, and from that times q.
_JUMPING: dict[str, tuple[bool, Callable[[Tensor], Tensor]]] = {
    "lower": (True, lambda at: at.floor() + 1.0),
    "higher": (True, lambda at: at.ceil() + 1.0),
    "nearest": (True, lambda at: at.round() + 1.0),
    "midpoint": (True, lambda at: 0.5 * (at.floor() + at.ceil()) + 1.0),
    "inverted_cdf": (False, lambda at: at.ceil()),
    "averaged_inverted_cdf": (False, lambda at: 0.5 * (at.ceil() + at.floor() + 1.0)),
    "closest_observation": (False, lambda at: at.round()),
}


class How(NamedTuple):
    """Which filler: its width (None for 1/n), where it stands, and how far n q may be off."""

    width: float | None
    interpolation: Interpolation
    rounding: float


def require_interpolation(interpolation: object, weights: object) -> None:
    """A known name, and one that knows what to do with weights if there are some."""
    if interpolation not in INTERPOLATIONS:
        raise ValueError(
            f"interpolation must be one of {', '.join(map(repr, INTERPOLATIONS))}, got {interpolation!r}; "
            "torch.quantile is 'linear' by default."
        )
    if weights is not None and interpolation in _JUMPING:
        raise ValueError(
            f"interpolation={interpolation!r} counts values and has no meaning with weights; with weights= use one of "
            f"{', '.join(map(repr, _CONTINUOUS))}."
        )


def quantile_levels(q: float | Sequence[float] | Tensor, width: float | None, device: torch.device) -> Tensor:
    """q as a tensor of no or one dimension, after checking it and the width."""
    try:
        levels = torch.as_tensor(q, dtype=wide_dtype(device), device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"q must be a number, a sequence of numbers or a tensor, got {q!r}; 0.5 is the median."
        ) from error
    if levels.ndim > 1:
        raise ValueError(f"q must be a number or one-dimensional, got shape {tuple(levels.shape)}; flatten it.")
    require_between(levels, 0.0, 1.0, "q", "levels are fractions: 0.9 is the 90% quantile.")
    if width is not None and not 0 < width <= 1:
        raise ValueError(f"width must be in (0, 1], got {width}; it is the share of all values to average over.")
    return levels


def rounding_of_levels(dtype: torch.dtype, q: object) -> float:
    """How far, relative to what it is, n q may be from what was meant: of values or levels in single precision.

    The nearest number in single precision is off by half a unit at most; a little more is for products.
    """
    dtypes = [dtype] + ([q.dtype] if isinstance(q, Tensor) and q.is_floating_point() else [])
    return 0.0 if all(each == torch.float64 for each in dtypes) else 0.51 * torch.finfo(torch.float32).eps


def weights_of(levels: Tensor, count: Tensor, how: How) -> Tensor:
    """(levels, ..., 3) in rows of ``count`` (..., 1) values."""
    t = 1.0 / count if how.width is None else torch.full_like(count, how.width)
    return filler_weights(levels, t, how.interpolation, count, how.rounding)


def filler_weights(
    levels: Tensor,
    t: Tensor,
    interpolation: Interpolation = "hazen",
    count: Tensor | None = None,
    rounding: float = 0.0,
) -> Tensor:
    """(levels, ..., 3): what lies below, in and above a filler of weight t (..., 1) at each level.

    ``count``: how many values a row has, where that is not 1/t.
    """
    count = 1.0 / t if count is None else count
    q = levels.reshape(-1, *(1,) * t.ndim)
    if interpolation in _CONTINUOUS:
        alpha, beta = _CONTINUOUS[interpolation]
        below = q - t * (1.0 - alpha - q * (1.0 - alpha - beta))
    else:
        from_first, position = _JUMPING[interpolation]
        at = (count - 1.0 if from_first else count) * q
        half = 0.5 * (2.0 * at).round()  # definitions jump at whole numbers, or between them
        at = torch.where((at - half).abs() <= (rounding * at).clamp(max=0.01), half, at)
        below = (position(at).clamp(min=1.0).minimum(count) - 0.5) / count - 0.5 * t
    below = below.maximum(torch.zeros_like(t)).minimum(1.0 - t)
    return torch.cat([below, t.expand_as(below), (1.0 - t - below).clamp(min=0.0)], dim=-1)


def plain_levels(q: object) -> float | tuple[float, ...] | None:
    """q if it is plain numbers, as what can be looked up."""
    if isinstance(q, (int, float)):
        return q
    return tuple(q) if isinstance(q, (list, tuple)) and all(isinstance(each, (int, float)) for each in q) else None


def fillers_of(
    x: Tensor, levels: float | tuple[float, ...] | Tensor, how: How, dim: int, mask: Tensor | None
) -> Tensor:
    """The weights of the targets (levels, ..., 3)."""
    if not isinstance(levels, Tensor):
        return _known_fillers(levels, how, x.shape[dim], x.device).reshape(-1, *(1,) * (x.ndim - 1), 3)
    _, count = existing(x, dim, mask)
    return weights_of(levels, count, how)


@remembered(256)
def _known_fillers(q: float | tuple[float, ...], how: How, n: int, device: torch.device) -> Tensor:
    """Fillers (levels, 3) that do not depend on values: brought to a device once."""
    levels = quantile_levels(q, how.width, device)
    count = torch.full((1,), float(n), dtype=levels.dtype, device=device)
    return weights_of(levels, count, how)
