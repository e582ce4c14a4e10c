"""This library's own operators as one method among the others; ``strength`` is eps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core.costs import Cost
from ..core.solvers import Solver
from ..core.squash import Squash
from ..operators import DEFAULT_SOLVER, soft_permutation, soft_rank, sort_with
from .base import Relaxation, Rows


@dataclass(frozen=True, kw_only=True)
class Transport(Relaxation):
    """Sinkhorn ranks and sorts (Cuturi, Teboul and Vert, 2019): see ``sinksort.soft_rank`` for the options.

    >>> import torch, sinksort
    >>> x = torch.tensor([0.38, 4.0, -2.0, 6.0, -9.0])
    >>> ranks = sinksort.relaxations.rank(x, method=sinksort.relaxations.Transport(squash="arctan"), strength=0.1)
    >>> torch.equal(ranks, sinksort.soft_rank(x, squash="arctan", eps=0.1, backend="torch"))
    True
    """

    name: ClassVar[str] = "transport"
    default_strength: ClassVar[float] = 1e-2

    cost: Cost = 2
    squash: Squash = "sigmoid"
    solver: Solver = DEFAULT_SOLVER

    def permutation(self, rows: Rows) -> Tensor:
        eps = rows.strength.squeeze(-1)
        return soft_permutation(rows.x, mask=rows.kept, eps=eps, cost=self.cost, squash=self.squash, solver=self.solver)

    def rank(self, rows: Rows) -> Tensor:
        eps = rows.strength.squeeze(-1)
        return soft_rank(rows.x, mask=rows.kept, eps=eps, cost=self.cost, squash=self.squash, solver=self.solver)

    def sort(self, rows: Rows, values: Tensor) -> Tensor:
        eps = rows.strength.squeeze(-1)
        return sort_with(
            values, rows.x, mask=rows.kept, eps=eps, cost=self.cost, squash=self.squash, solver=self.solver
        )
