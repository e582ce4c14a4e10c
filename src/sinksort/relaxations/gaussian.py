"""Gaussian SoftRank (Taylor, Guiver, Robertson and Minka, "SoftRank: Optimizing Non-Smooth Rank Metrics", WSDM 2008).

Every value is uncertain: s_i ~ N(x_i, sigma^2), independently. Value i beats j with probability

    pi_ij = Pr(s_i > s_j) = Phi((x_i - x_j) / (sigma sqrt 2)),

so its expected rank is 1 + sum_{j != i} pi_ij exactly. For the distribution of the rank the paper adds the other
values one at a time, as if the duels were independent: after j, the rank is r if it was r - 1 and i won, or r and i
lost,

    p_i^(j)(r) = p_i^(j-1)(r - 1) pi_ij + p_i^(j-1)(r) (1 - pi_ij).

The duels of i share s_i, so this is an approximation (with the right mean). Given s_i = x_i + sigma z they are
independent, with pi_ij(z) = Phi((x_i - x_j) / sigma + z); averaging the recursion over z by Gauss-Hermite quadrature
gives the exact distribution, whose matrix is doubly stochastic, an average of permutation matrices. ``nodes`` asks
for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from .base import Relaxation, Rows
from .pairwise import wins


@dataclass(frozen=True, kw_only=True)
class Gaussian(Relaxation):
    """Gaussian SoftRank; ``strength`` is sigma. Ranks O(n^2); rank distributions O(n^3).

    Column i of ``permutation`` is the distribution of the rank of x_i.

    Args:
        nodes: None for the paper's recursion; a number of quadrature nodes (32 is plenty) for the exact distribution.

    >>> import torch
    >>> from sinksort.relaxations import Gaussian, permutation, rank
    >>> rank(torch.tensor([2.0, 9.0, 5.0]), method=Gaussian(), strength=1.0)
    tensor([1.0169, 2.9977, 1.9854])
    >>> permutation(torch.tensor([0.0, 0.0, 0.0]), method=Gaussian(nodes=32))[:, 0]
    tensor([0.3333, 0.3333, 0.3333])
    >>> permutation(torch.tensor([0.0, 0.0, 0.0]), method=Gaussian())[:, 0]
    tensor([0.2500, 0.5000, 0.2500])
    """

    name: ClassVar[str] = "gaussian"

    nodes: int | None = None

    def __post_init__(self) -> None:
        wrong = isinstance(self.nodes, bool) or not isinstance(self.nodes, int) or self.nodes < 1
        if self.nodes is not None and wrong:
            raise ValueError(f"Gaussian: nodes must be None or a positive integer, got {self.nodes!r}; 32 is plenty.")

    def rank(self, rows: Rows) -> Tensor:
        return 1.0 + wins(torch.special.ndtr(self._gaps(rows) / math.sqrt(2.0)), rows).sum(-1)

    def permutation(self, rows: Rows) -> Tensor:
        gaps = self._gaps(rows)
        if self.nodes is None:
            return _rank_distribution(wins(torch.special.ndtr(gaps / math.sqrt(2.0)), rows)).mT
        z, weight = np.polynomial.hermite_e.hermegauss(self.nodes)  # for the weight function exp(-z^2 / 2)
        total = torch.zeros_like(gaps)
        for node, share in zip(z.tolist(), (weight / weight.sum()).tolist(), strict=True):
            total = total + share * _rank_distribution(wins(torch.special.ndtr(gaps + node), rows))
        return total.mT

    @staticmethod
    def _gaps(rows: Rows) -> Tensor:
        return (rows.x.unsqueeze(-1) - rows.x.unsqueeze(-2)) / rows.strength.unsqueeze(-1)


def _rank_distribution(pi: Tensor) -> Tensor:
    """(..., n, r): the paper's recursion for all values at once, one opponent j at a time."""
    n = pi.shape[-1]
    p = torch.nn.functional.pad(torch.ones_like(pi[..., :1]), (0, n - 1))
    for j in range(n):
        won = pi[..., j : j + 1]
        p = torch.nn.functional.pad(p[..., :-1], (1, 0)) * won + p * (1.0 - won)
    return p
