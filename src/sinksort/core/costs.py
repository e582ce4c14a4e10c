"""Convex costs h, so that moving a value x to a target y costs C = h(y - x).

Any *strictly* convex ``h`` gives the hard ranks and sorts when eps goes to 0; at eps > 0 it shapes the smoothing. A
number p stands for |u|^p, and any callable that maps a tensor to a tensor elementwise may be passed as it is.

|u| is convex, but not strictly so. Where mass flows one way over a stretch, it costs the same in whatever order it
arrives. So many plans are optimal, and small eps leads to the one among them with the largest entropy, whose ranks are
not the hard ones: those of 100 normal values stay about 2 ranks off on average, from eps = 1e-2 down to 1e-6.
``Huber`` is linear beyond delta, so the same happens to values that travel farther than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Cost: TypeAlias = float | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Power:
    """The cost h(u) = abs(u)^p of a distance u, with p >= 1; ``cost=p`` is short for ``cost=Power(p)``.

    With p > 1 ranks become hard as eps goes to 0. With p = 1 they never do, because abs(u) is not strictly convex: see
    docs/eps.md.

    >>> import torch, sinksort
    >>> sinksort.Power(3)(torch.tensor([-2.0, 0.5]))
    tensor([8.0000, 0.1250])
    >>> sinksort.soft_rank(torch.tensor([0.3, 0.1, 0.2]), cost=sinksort.Power(1.5), eps=1e-3)
    tensor([3., 1., 2.])
    """

    p: float = 2.0

    def __post_init__(self) -> None:
        if not self.p >= 1:
            raise ValueError(f"cost: abs(u)^p is convex only for p >= 1, got p = {self.p}; use p = 1 or larger.")

    def __call__(self, u: Tensor) -> Tensor:
        if self.p == 2:
            return u.square()
        if self.p == 1:
            return u.abs()
        # pow has an infinite second derivative at 0 for p < 2: step around the single point, where all of them are 0.
        at_zero = u == 0
        return torch.where(at_zero, 0.0, torch.where(at_zero, 1.0, u).abs() ** self.p)


@dataclass(frozen=True)
class Huber:
    """A cost that is quadratic within ``delta`` of the target and linear beyond.

    h(u) = u^2/2 for abs(u) <= delta, and delta (abs(u) - delta/2) beyond.

    >>> import torch, sinksort
    >>> sinksort.Huber(1.0)(torch.tensor([-3.0, 0.5]))
    tensor([2.5000, 0.1250])
    >>> sinksort.soft_rank(torch.tensor([0.3, 0.1, 0.2]), cost=sinksort.Huber(0.2), eps=1e-3)
    tensor([3., 1., 2.])
    """

    delta: float = 0.1

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise ValueError(f"cost: Huber needs delta > 0, got {self.delta}; 0.1 is a good start for x in [0, 1].")

    def __call__(self, u: Tensor) -> Tensor:
        size = u.abs()
        return torch.where(size <= self.delta, 0.5 * u.square(), self.delta * (size - 0.5 * self.delta))


def resolve_cost(cost: Cost) -> Callable[[Tensor], Tensor]:
    if callable(cost):
        return cost
    if isinstance(cost, (int, float)) and not isinstance(cost, bool):
        return Power(float(cost))
    raise TypeError(
        f"cost must be a number p >= 1 for abs(u)^p, sinksort.Huber(delta), or a convex callable, "
        f"got {type(cost).__name__}."
    )
