"""Projections on the permutahedron: torchsort, and fast-soft-sort from a checkout. Both have ranks and sorts.

A quantile is read from the soft sort, as ``torch.quantile`` reads it from a sort.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from contest.cells import LEVEL
from torch import Tensor

from . import Operator, Site, checkout
from .derived import of_ranks


def operator(variant: str, task: str, n: int, site: Site) -> Operator | None:
    soft_rank: Callable[..., Any]
    soft_sort: Callable[..., Any]
    if variant == "fast-soft-sort":
        sys.path.insert(0, str(checkout(site, "fast-soft-sort")))
        from fast_soft_sort.pytorch_ops import soft_rank, soft_sort

        regularization = "l2"
    else:
        from torchsort import soft_rank, soft_sort

        regularization = variant.rsplit(maxsplit=1)[-1]

    def rank(x: Tensor, strength: float) -> Any:
        return soft_rank(x, regularization=regularization, regularization_strength=strength)

    def sort(x: Tensor, strength: float) -> Any:
        return soft_sort(x, regularization=regularization, regularization_strength=strength)

    def quantile(x: Tensor, strength: float) -> Any:
        return between(sort(x, strength), n)

    return {**of_ranks(rank), "quantile": quantile, "sort": sort}.get(task)


def between(ordered: Any, n: int) -> Any:
    """The quantile of rows that are sorted, with linear interpolation."""
    at = LEVEL * (n - 1)
    below = int(at)
    return ordered[..., below] + (at - below) * (ordered[..., min(below + 1, n - 1)] - ordered[..., below])
