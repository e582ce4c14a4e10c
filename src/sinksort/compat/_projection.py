"""Soft ranks and soft sorts of rows by projection on the permutahedron, in the dtype of the values.

After "Fast Differentiable Sorting and Ranking" (Blondel, Teboul, Berthet, Djolonga, ICML 2020). With rho = (1, ..., n):

    rank   P(x / strength, rho), or exp P(x / strength, log rho) for kl
    sort   minus P(rho / strength, -x) is in ascending order; P(rho / strength, x), in descending order

where P(z, w) = z - v, in the order of z, and v is the isotonic regression of z and w in that order.
"""

from __future__ import annotations

from numbers import Real

import torch
from torch import Tensor

from .._checks import values_readable
from ..relaxations.isotonic_autograd import isotonic

REGULARIZATIONS = ("l2", "kl")
DIRECTIONS = ("ASCENDING", "DESCENDING")
Strength = float | Tensor


def ranks(values: Tensor, strength: Strength, regularization: str, descending: bool = False) -> Tensor:
    """Soft ranks (R, n), from 1 for the smallest value."""
    kl = regularization == "kl"
    scale = 1.0 / strength
    s, order = (_narrow_made_single(values) * (-scale if descending else scale)).sort(dim=-1)
    w = torch.arange(1, s.shape[-1] + 1, dtype=s.dtype, device=s.device)
    in_order = s - isotonic(s, w.log() if kl else w, kl)
    in_order = in_order.exp() if kl else in_order
    return torch.zeros_like(in_order).scatter_(-1, order, in_order).to(values.dtype)


def sorted_values(values: Tensor, strength: Strength, regularization: str, descending: bool = False) -> Tensor:
    """Soft sorted values (R, n)."""
    ordered = _narrow_made_single(values).sort(dim=-1, descending=descending).values
    w = ordered if descending else -ordered  # falls either way
    s = torch.arange(w.shape[-1], 0, -1, dtype=w.dtype, device=w.device) / strength
    v = isotonic(s, w, regularization == "kl", falling=True)
    return (s - v if descending else v - s).to(values.dtype)


def _narrow_made_single(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


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
    name, fix = "regularization_strength", "a small strength such as 1e-6 is as good as a hard sort."
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
