"""Soft ranks and sorts with the names, arguments and answers of torchsort 0.1.10.

The whole migration is one line: ``import sinksort.compat.torchsort as torchsort``. Nothing is compiled at installation.
On the CPU rows are worked on by Numba where it is installed, and in plain torch elsewhere; on CUDA by Triton.

Answers and gradients equal the original's to rounding, with these exceptions, all of them towards fewer surprises:

* a NaN makes its whole row NaN, where the original leaves it in one place of the ranks;
* a strength that is not positive is an error;
* a strength may be a tensor that is learned, and then receives its gradient;
* bfloat16, ``torch.func`` and second derivatives work; half precision is computed in single precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._arguments import Strength, checked
from ._projection import ranks, sorted_values

__all__ = ["soft_rank", "soft_sort"]


def soft_rank(values: Tensor, regularization: str = "l2", regularization_strength: Strength = 1.0) -> Tensor:
    """Soft ranks of each row: 1 for the smallest value, n for the largest, with n values.

    Args:
        values: (rows, n). Whole numbers are taken as numbers of torch's default dtype.
        regularization: ``"l2"`` or ``"kl"``.
        regularization_strength: a positive number; the smaller, the closer to the hard ranks. Its scale is that of
            the values. Also a tensor, with one strength or of shape (rows, 1).

    Returns:
        A tensor of the same shape and dtype.

    >>> import torch
    >>> import sinksort.compat.torchsort as torchsort
    >>> torchsort.soft_rank(torch.tensor([[5.0, 1.0, 2.0]]), regularization_strength=2.0)
    tensor([[3.0000, 1.2500, 1.7500]])
    """
    rows = checked(values, regularization_strength, regularization, torch.get_default_dtype())
    return ranks(rows, regularization_strength, regularization)


def soft_sort(values: Tensor, regularization: str = "l2", regularization_strength: Strength = 1.0) -> Tensor:
    """Soft sorted values of each row, in ascending order; arguments as for ``soft_rank``.

    >>> import torch
    >>> import sinksort.compat.torchsort as torchsort
    >>> torchsort.soft_sort(torch.tensor([[5.0, 1.0, 2.0]]), regularization_strength=0.5)
    tensor([[1.0000, 2.5000, 4.5000]])
    """
    rows = checked(values, regularization_strength, regularization, torch.get_default_dtype())
    return sorted_values(rows, regularization_strength, regularization)
