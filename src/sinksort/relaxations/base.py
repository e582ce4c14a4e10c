"""What every relaxation is: a row of values, how soft, and up to three answers.

The contract of a method, on rows (..., n) in ascending order of rank (the smallest value has rank 1):

    permutation P (..., n, n)    row j says from which values the j-th smallest is made
    sort                         P x, each row of P divided by its sum
    rank                         P^T (1, ..., n), each column of P divided by its sum

Dividing changes nothing where P is doubly stochastic (sorting networks). NeuralSort and SoftSort have rows that sum
to one and columns that do not; for them the quotient is the average position of a value, always in [1, n]. A method
that has its own formula for an answer overrides it, and one that has none says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The input of a method: rows along the last dimension, padding already harmless."""

    x: Tensor  #: (..., n) finite values; what is masked holds an ordinary value of its row
    kept: Tensor | None  #: (..., n) True for values that exist, None when all do
    count: Tensor  #: (..., 1) how many exist
    strength: Tensor  #: (..., 1) softness, positive

    @property
    def n(self) -> int:
        return self.x.shape[-1]

    def positions(self) -> Tensor:
        """(n,) the ranks 1, ..., n."""
        return torch.arange(1, self.n + 1, dtype=self.x.dtype, device=self.x.device)

    def alive(self) -> Tensor:
        """(..., n) True for the positions 1, ..., count of a sorted row."""
        return self.positions() <= self.count

    def clear(self, P: Tensor) -> Tensor:
        """P (..., n, n) without the rows of positions past the count and the columns of padding."""
        if self.kept is None:
            return P
        return torch.where(self.alive().unsqueeze(-1) & self.kept.unsqueeze(-2), P, 0.0)


class Relaxation:
    """Base of the option classes; ``sinksort.relaxations.rank``, ``sort`` and ``permutation`` call these on rows.

    >>> from sinksort import relaxations
    >>> method = relaxations.SoftSort()
    >>> isinstance(method, relaxations.Relaxation), method.name, method.default_strength
    (True, 'softsort', 1.0)
    """

    name: ClassVar[str]
    default_strength: ClassVar[float] = 1.0

    def perturb(self, x: Tensor) -> Tensor:
        """The values whose order is wanted: x itself, unless the method is stochastic."""
        return x

    def permutation(self, rows: Rows) -> Tensor:
        raise NotImplementedError(self._lacks("permutation", "a permutation matrix"))

    def rank(self, rows: Rows) -> Tensor:
        P = rows.clear(self.permutation(rows))
        return _quotient(rows.positions() @ P, P.sum(-2))

    def sort(self, rows: Rows, values: Tensor) -> Tensor:
        """``values`` (..., n) in the soft order of the rows; the same as ``rows.x`` unless that was perturbed."""
        P = rows.clear(self.permutation(rows))
        return _quotient((P @ values.unsqueeze(-1)).squeeze(-1), P.sum(-1))

    def _lacks(self, operation: str, what: str) -> str:
        return (
            f"method {self.name!r} defines no {operation}: its paper gives no {what}. Methods that have one: "
            f"{', '.join(OPERATIONS[operation])}."
        )


def _quotient(total: Tensor, mass: Tensor) -> Tensor:
    """total / mass, and 0 where both are 0 (padding)."""
    return total / torch.where(mass == 0, 1.0, mass)


#: Which methods have which operation, for error messages and for anyone who wants to loop over them.
OPERATIONS: dict[str, tuple[str, ...]] = {
    "rank": (
        "transport", "neuralsort", "softsort", "pairwise", "gaussian", "permutahedron", "odd_even", "bitonic",
    ),
    "sort": ("transport", "neuralsort", "softsort", "gaussian", "permutahedron", "odd_even", "bitonic"),
    "permutation": ("transport", "neuralsort", "softsort", "gaussian", "odd_even", "bitonic"),
}  # fmt: skip
