"""Argument checks: every message names the argument, what came, what was expected and the fix.

Two kinds. Checks on shapes, dtypes and Python numbers cost nothing and are always made. Checks on the *values* inside
a tensor (a negative weight, unsorted targets, q outside [0, 1]) read the tensor, which on an accelerator makes the host
wait for the device; they are made for CPU tensors, and elsewhere only inside ``with sinksort.value_checks():``.
They cannot be made while a tracer or a transform of ``torch.func`` is at work, because the values are not there yet
(``modes``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from .modes import hidden

_forced: ContextVar[bool] = ContextVar("sinksort_value_checks", default=False)


@contextmanager
def value_checks() -> Iterator[None]:
    """Also check the values of tensors on an accelerator, at the price of a synchronisation each.

    >>> import torch, sinksort
    >>> with sinksort.value_checks():
    ...     sinksort.soft_rank(torch.tensor([0.3, 0.1]), weights=torch.tensor([0.5, -0.5]))
    Traceback (most recent call last):
    ...
    ValueError: weights must be non-negative, but its smallest entry is -0.5; ...
    """
    token = _forced.set(True)
    try:
        yield
    finally:
        _forced.reset(token)


def values_readable(t: Tensor) -> bool:
    """Whether the host may look inside ``t`` now without making anybody wait."""
    if hidden(t):
        return False
    return t.device.type == "cpu" or _forced.get()


def require_floating(x: object, name: str = "x") -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}; wrap it with torch.as_tensor({name}).")
    if not x.is_floating_point():
        raise TypeError(
            f"{name} must be a floating-point tensor, got {x.dtype}: gradients and fractional ranks need one; "
            f"call {name}.float() first."
        )


def require_dim(dim: object, x: Tensor) -> None:
    """``dim`` is a whole number, and x has such a dimension."""
    if isinstance(dim, (bool, Tensor)) or not hasattr(dim, "__index__"):
        came = repr(dim) if dim is None or isinstance(dim, (bool, int, float, str, tuple, list)) else type(dim).__name__
        raise TypeError(
            f"dim must be an integer, the one dimension along which values are compared, got {came}; "
            "to compare the values of several dimensions, or of all, join them with x.flatten(...) first."
        )
    if not -x.ndim <= dim < x.ndim:  # type: ignore[operator]
        raise IndexError(f"dim must be between {-x.ndim} and {x.ndim - 1} for x of shape {tuple(x.shape)}, got {dim}.")


def require_non_negative(w: Tensor, name: str) -> None:
    """Weights: no negative entry, and every row with something in it. ``w`` has the entries of a row last."""
    if not values_readable(w) or w.numel() == 0:
        return
    smallest = w.min().item()
    if smallest < 0:
        raise ValueError(
            f"{name} must be non-negative, but its smallest entry is {smallest:g}; "
            "clamp it, or pass it through softplus or exp when it is learned."
        )
    if not torch.isfinite(w).all():
        raise ValueError(f"{name} must be finite, but it holds NaN or infinity; remove those entries with mask=.")
    if (w.sum(-1) == 0).any():
        raise ValueError(
            f"{name} must have a positive entry in every row, but a row is all zeros; "
            "leave the row out, or give its entries equal weights."
        )


def require_increasing(y: Tensor, name: str = "targets") -> None:
    if not values_readable(y):
        return
    rising = (y.diff(dim=-1) > 0).all(-1)
    if not rising.all():
        row = y[~rising][0] if y.ndim > 1 else y
        raise ValueError(
            f"{name} must be strictly increasing along their last dimension (the paper's y_1 < ... < y_m), "
            f"but they are not: {_excerpt(row)}; sort them and merge duplicates by adding up their target_weights."
        )


def require_between(t: Tensor, low: float, high: float, name: str, fix: str) -> None:
    if values_readable(t) and not ((t >= low) & (t <= high)).all():
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {_excerpt(t)}; {fix}")


def _excerpt(t: Tensor) -> str:
    flat = t.detach().flatten()[:6].tolist()
    return "[" + ", ".join(f"{v:g}" for v in flat) + (", ...]" if t.numel() > 6 else "]")
