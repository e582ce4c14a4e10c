"""Soft ranks and sorts of tensors, with the names, arguments and answers of fast-soft-sort's ``pytorch_ops``.

All rows are worked on at once, on the CPU and on CUDA. The original's gradient of ``soft_sort`` with
``regularization="kl"`` is not the derivative of its answer; here it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._arguments import Strength, check_direction, checked
from .._projection import ranks, sorted_values

__all__ = ["soft_rank", "soft_sort"]


def soft_rank(
    values: Tensor,
    direction: str = "ASCENDING",
    regularization_strength: Strength = 1.0,
    regularization: str = "l2",
) -> Tensor:
    """Soft ranks of each row, from 1 up.

    Args:
        values: (rows, n). Whole numbers are taken as float64.
        direction: ``"ASCENDING"``: rank 1 is that of the smallest value; ``"DESCENDING"``: of the largest.
        regularization_strength: a positive number; the smaller, the closer to the hard ranks. Its scale is that of
            the values. Also a tensor, with one strength or of shape (rows, 1).
        regularization: ``"l2"`` or ``"kl"``.

    Returns:
        A tensor of the same shape and dtype.

    >>> import torch
    >>> from sinksort.compat.fast_soft_sort import pytorch_ops
    >>> values = torch.tensor([[5.0, 1.0, 2.0]])
    >>> pytorch_ops.soft_rank(values, direction="DESCENDING", regularization_strength=2.0)
    tensor([[1.0000, 2.7500, 2.2500]])
    """
    check_direction(direction)
    rows = checked(values, regularization_strength, regularization, torch.float64)
    return ranks(rows, regularization_strength, regularization, direction == "DESCENDING")


def soft_sort(
    values: Tensor,
    direction: str = "ASCENDING",
    regularization_strength: Strength = 1.0,
    regularization: str = "l2",
) -> Tensor:
    """Soft sorted values of each row, in float64 as in the original; arguments as for ``soft_rank``.

    >>> import torch
    >>> from sinksort.compat.fast_soft_sort import pytorch_ops
    >>> values = torch.tensor([[5.0, 1.0, 2.0]])
    >>> pytorch_ops.soft_sort(values, direction="DESCENDING", regularization_strength=0.5)
    tensor([[4.5000, 2.5000, 1.0000]], dtype=torch.float64)
    """
    check_direction(direction)
    rows = checked(values, regularization_strength, regularization, torch.float64)
    return sorted_values(rows.double(), regularization_strength, regularization, direction == "DESCENDING")
