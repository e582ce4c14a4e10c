"""SoftSort (Prillo and Eisenschlos, "SoftSort: A Continuous Relaxation for the argsort Operator", ICML 2020).

P = softmax over i of -d(sort(x)_j, x_i) / tau with d(u, v) = |u - v|^p: each sorted value asks which input it came
from. Ties share: two equal values have half of a row each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Relaxation, Rows


@dataclass(frozen=True, kw_only=True)
class SoftSort(Relaxation):
    """SoftSort, by a softmax of distances to the sorted values; ``strength`` is tau. O(n^2).

    Args:
        power: p of the distance |u - v|^p; at least 1.

    >>> import torch
    >>> from sinksort.relaxations import SoftSort, sort
    >>> sort(torch.tensor([2.0, 9.0, 5.0]), method=SoftSort(power=2.0), strength=1.0)
    tensor([2.0004, 4.9996, 9.0000])
    """

    name: ClassVar[str] = "softsort"

    power: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.power < float("inf"):
            raise ValueError(
                f"SoftSort: power must be at least 1 and finite, got {self.power}; the paper uses 1 and 2."
            )

    def permutation(self, rows: Rows) -> Tensor:
        largest = rows.x.detach().amax(-1, keepdim=True)
        keys = rows.x if rows.kept is None else torch.where(rows.kept, rows.x, largest + 1)
        gap = (keys.sort(dim=-1).values.unsqueeze(-1) - rows.x.unsqueeze(-2)).abs()
        score = -(gap if self.power == 1 else gap**self.power) / rows.strength.unsqueeze(-1)
        if rows.kept is not None:
            score = torch.where(rows.kept.unsqueeze(-2), score, torch.finfo(score.dtype).min)
        return torch.softmax(score, dim=-1)
