"""``squash="robust"``: standardise by median and median absolute deviation instead of mean and deviation.

One outlier of 1,000 moves the mean and the deviation of a row so far that all other values are tied in the middle of
[0, 1]. Here it moves nothing: z = (x - median) / (1.4826 median of |x - median|), which for normal values is the usual
z, and then the sigmoid. Both medians are weighted. Where more than half of a row is one number its mean absolute
deviation stands in, and a constant row stays constant.

Ranks, masks and permutations depend on the places sigmoid(z) alone: operators that give these are called with the
places, as values that are in [0, 1] already, so that all of their kernels may be used. Operators that average the
values are called with a map that knows the two numbers of each row.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from ..core.kantorovich import order_of
from ..core.problem import as_rows, live_rows

_P = ParamSpec("_P")
_R = TypeVar("_R")

_NORMAL = 1.4826  #: deviation of normal values over their median absolute deviation
_ROUNDING = 1e-9  #: of sums of weights


def robust_by_places(operator: Callable[_P, _R], of: str = "x") -> Callable[_P, _R]:
    """An operator that reads places only, and also takes ``squash="robust"``; ``of`` names what is ordered."""
    signature = inspect.signature(operator)

    @functools.wraps(operator)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not is_robust(kwargs.get("squash")):
            return operator(*args, **kwargs)
        given = _arguments(signature, args, kwargs)
        x = given[of]
        given |= {of: places_of(x, *_options(given)), "squash": None}
        answer = cast("Callable[..., Any]", operator)(**given)
        return cast("_R", answer.to(given["values"].dtype if "values" in given else x.dtype))

    return wrapped


def robust_by_map(operator: Callable[_P, _R], padded: bool = True) -> Callable[_P, _R]:
    """An operator that averages values, and also takes ``squash="robust"``; with a mask if it leaves rows whole."""
    signature = inspect.signature(operator)

    @functools.wraps(operator)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not is_robust(kwargs.get("squash")):
            return operator(*args, **kwargs)
        given = _arguments(signature, args, kwargs)
        if given.get("mask") is not None and not padded:
            raise ValueError(
                f"squash='robust' does not go with mask= in {operator.__name__}; use transport, which takes both."
            )
        given["squash"] = map_of(given["x"], *_options(given))
        return cast("Callable[..., _R]", operator)(**given)

    return wrapped


def places_of(x: Tensor, dim: int, weights: Tensor | None, mask: Tensor | None) -> Tensor:
    """Where the values stand in [0, 1], in the shape of x and its precision, single at least."""
    rows = as_rows(x, dim)
    values, a, _, _ = live_rows(x, rows, dim, weights, mask)
    places = _map(values, a)(values).movedim(-1, dim)
    return places.to(x.dtype) if x.element_size() > 4 else places.float()


def map_of(x: Tensor, dim: int, weights: Tensor | None, mask: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The same for rows, which come last."""
    values, a, _, _ = live_rows(x, as_rows(x, dim), dim, weights, mask)
    return _map(values, a)


def _map(values: Tensor, a: Tensor) -> Callable[[Tensor], Tensor]:
    counted = torch.where(torch.isfinite(values), a, 0.0)
    finite = torch.where(counted > 0, values, 0.0)
    centre = _median(finite, counted)
    off = (finite - centre).abs()
    spread = _NORMAL * _median(off, counted)
    total = counted.sum(-1, keepdim=True)
    mean_off = (counted * off).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
    spread = torch.where(spread > 0, spread, torch.where(mean_off > 0, mean_off, 1.0))

    def placed(x: Tensor) -> Tensor:
        """Of the same rows, perhaps with their dimensions joined."""
        here, width = centre, spread
        if here.ndim > x.ndim:
            here, width = (t.reshape(*x.shape[:-1], 1) for t in (centre, spread))
        finite = torch.isfinite(x)  # infinite values and NaN stay what they are, and have no derivative
        z = (torch.where(finite, x, 0.0) - here.to(x.dtype)) / width.to(x.dtype)
        return torch.where(finite, z, x).sigmoid()

    return placed


def _median(x: Tensor, a: Tensor) -> Tensor:
    """(..., 1) the value with half of the weight on each side, the mean of two where two have."""
    order = order_of(torch.where(a > 0, x.detach(), torch.inf))
    below = a.detach().gather(-1, order).cumsum(-1)
    half, near = 0.5 * below[..., -1:], _ROUNDING * below[..., -1:]
    ends = [(below < half - near).sum(-1, keepdim=True), (below <= half + near).sum(-1, keepdim=True)]
    at = torch.cat(ends, dim=-1).clamp(max=x.shape[-1] - 1)
    return x.gather(-1, order.gather(-1, at)).mean(-1, keepdim=True)


def is_robust(squash: object) -> bool:
    return isinstance(squash, str) and squash == "robust"


def _arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _options(given: dict[str, Any]) -> tuple[int, Tensor | None, Tensor | None]:
    """dim, weights and mask, which some operators do not have."""
    return given.get("dim", -1), given.get("weights"), given.get("mask")
