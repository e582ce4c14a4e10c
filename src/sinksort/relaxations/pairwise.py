"""Pairwise logistic ranks (Qin, Liu and Li, "A general approximation framework for direct optimization of information
retrieval measures", Information Retrieval 2010).

The rank of x_i counts the values below it, r_i = 1 + sum_{j != i} 1[x_j < x_i]; the indicator becomes the logistic
function 1 / (1 + exp(-(x_i - x_j) / tau)). Ranks always add up to n (n + 1) / 2, because g(u) + g(-u) = 1.

Cuturi et al. (2019) write the operator as A 1_n with A = g(D), where the diagonal holds g(0) = 1/2: there j = i counts
as half a value below x_i, and the numbers are smaller than these ranks by 1/2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Relaxation, Rows


@dataclass(frozen=True, kw_only=True)
class Pairwise(Relaxation):
    """Pairwise logistic ranks; ``strength`` is tau. O(n^2). Ranks only: there is no plan behind them to sort by.

    >>> import torch
    >>> from sinksort.relaxations import Pairwise, rank
    >>> rank(torch.tensor([2.0, 9.0, 5.0]), method=Pairwise(), strength=1.0)
    tensor([1.0483, 2.9811, 1.9706])
    """

    name: ClassVar[str] = "pairwise"

    def rank(self, rows: Rows) -> Tensor:
        difference = rows.x.unsqueeze(-1) - rows.x.unsqueeze(-2)
        return 1.0 + wins(torch.sigmoid(difference / rows.strength.unsqueeze(-1)), rows).sum(-1)

    def sort(self, rows: Rows, values: Tensor) -> Tensor:
        raise NotImplementedError(self._lacks("sort", "soft sort"))


def wins(probability: Tensor, rows: Rows) -> Tensor:
    """(..., n, n) probabilities that x_i is above x_j, without those that do not count: i itself, and padding."""
    others = ~torch.eye(rows.n, dtype=torch.bool, device=rows.x.device)
    if rows.kept is not None:
        others = others & rows.kept.unsqueeze(-2)
    return torch.where(others, probability, 0.0)
