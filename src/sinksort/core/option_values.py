"""The options that all operators share, as one value.

An operator spells its options out in its signature, where ``help`` and editors show them, and packs them once. All that
comes after the operator takes an ``Options``: a named tuple, since it is frozen, and is made and hashed in less than a
microsecond.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .costs import Cost
from .solvers import Newton, Solver
from .squash import Squash

DEFAULT_SOLVER = Newton()


class Options(NamedTuple):
    """What an operator may be told besides x; ``sinksort.operators`` says what each option means."""

    dim: int = -1
    descending: bool = False
    weights: Tensor | None = None
    mask: Tensor | None = None
    targets: Tensor | None = None
    target_weights: Tensor | None = None
    num_targets: int | None = None
    eps: float | Tensor = 1e-2
    cost: Cost = 2
    squash: Squash = "sigmoid"
    solver: Solver = DEFAULT_SOLVER
    backend: str = "auto"

    # Methods rather than properties: ``torch.compile`` traces methods of a named tuple in every version.
    def equal_targets(self) -> bool:
        """Whether targets are equally spaced and weigh the same, however many there are."""
        return self.targets is None and self.target_weights is None

    def given_targets(self) -> Tensor | None:
        """The tensor that says how many targets there are, if the caller gave one."""
        return self.targets if self.targets is not None else self.target_weights

    def target_count(self, n: int) -> int | None:
        """How many targets rows of n values have; None if what was given does not say."""
        given = self.given_targets()
        if self.num_targets is not None:
            return self.num_targets
        return given.shape[-1] if isinstance(given, Tensor) and given.ndim else n
