"""What the operators of both libraries take, and what is wrong with it."""

from __future__ import annotations

from numbers import Real

import torch
from torch import Tensor

from ..core.checks import values_readable

REGULARIZATIONS = ("l2", "kl")
DIRECTIONS = ("ASCENDING", "DESCENDING")
Strength = float | Tensor


def checked(values: object, strength: object, regularization: object, whole_numbers_as: torch.dtype) -> Tensor:
    """The values as floating-point numbers, after a look at all arguments."""
    if not isinstance(values, Tensor):
        raise TypeError(f"values must be a torch.Tensor, got {type(values).__name__}; use torch.as_tensor(values).")
    if values.ndim != 2:
        raise ValueError(
            f"values must be a 2-d tensor (rows, values), got shape {tuple(values.shape)}; "
            "use values.unsqueeze(0) for a single row, values.flatten(0, -2) for several batch dimensions."
        )
    if values.is_complex():
        raise TypeError(f"values must be real numbers, got {values.dtype}, which has no order; use values.abs().")
    check_regularization(regularization)
    check_strength(strength, len(values))
    return values if values.is_floating_point() else values.to(whole_numbers_as)


def check_regularization(regularization: object) -> None:
    if regularization not in REGULARIZATIONS:
        raise ValueError(f"regularization must be 'l2' or 'kl', got {regularization!r}.")


def check_direction(direction: object) -> None:
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be 'ASCENDING' or 'DESCENDING', got {direction!r}.")


def check_strength(strength: object, rows: int) -> None:
    name = "regularization_strength"
    fix = "for a hard sort use torch.sort, and for the other direction negate the values."
    if isinstance(strength, Tensor):
        if strength.numel() != 1 and tuple(strength.shape) != (rows, 1):
            raise ValueError(
                f"{name} must be a number, or a tensor with one strength for all rows or one a row, shape ({rows}, 1); "
                f"got shape {tuple(strength.shape)}."
            )
        if values_readable(strength) and not (strength > 0).all():
            raise ValueError(f"{name} must be positive, got a tensor with {strength.min().item():g}; {fix}")
    elif not isinstance(strength, Real):
        raise TypeError(f"{name} must be a number or a tensor, got {type(strength).__name__}.")
    elif not strength > 0:  # type: ignore[operator]
        raise ValueError(f"{name} must be positive, got {strength}; {fix}")
