"""What the scores of a training may be measured by, besides the two that have names (None and "sigmoid").

Each gives a loss of scores, from a loss that takes ``eps`` and ``squash``: constants of the whole batch, running
constants, and a temperature that is learned. All keep one scale for all rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from . import Loss

Scaled = Callable[[Tensor, Tensor, float | Tensor, Callable[[Tensor], Tensor] | None], Tensor]


def of_batch(loss: Scaled, eps: float) -> Loss:
    """Divided by the deviation within the rows of the batch, which is a constant to the gradient."""
    return lambda s, y: loss(s / _deviation(s), y, eps, None)


class running:  # noqa: N801 - used as a function
    """Divided by a running mean of that deviation."""

    def __init__(self, loss: Scaled, eps: float) -> None:
        self.loss, self.eps, self.size = loss, eps, 0.0

    def __call__(self, s: Tensor, y: Tensor) -> Tensor:
        now = float(_deviation(s))
        self.size = now if self.size == 0.0 else 0.99 * self.size + 0.01 * now
        return self.loss(s / max(self.size, 1e-6), y, self.eps, None)


class learned:  # noqa: N801
    """Divided by that deviation, and multiplied by a factor that is learned from 1."""

    def __init__(self, loss: Scaled, eps: float) -> None:
        self.loss, self.eps, self.log_factor = loss, eps, nn.Parameter(torch.zeros(()))

    def parameters(self) -> Iterator[nn.Parameter]:
        yield self.log_factor

    def __call__(self, s: Tensor, y: Tensor) -> Tensor:
        return self.loss(s / _deviation(s) * self.log_factor.exp(), y, self.eps, None)


def _deviation(s: Tensor) -> Tensor:
    return s.detach().sub(s.detach().mean(-1, keepdim=True)).square().mean().sqrt().clamp(min=1e-6)


#: name, scale, default eps and other values of eps
SCALES: tuple[tuple[str, Callable[[Scaled, float], Loss], float, tuple[float, ...]], ...] = (
    ("of the batch", of_batch, 0.1, (0.03, 0.3)),
    ("running", running, 0.1, (0.03, 0.3)),
    ("learned", learned, 0.1, (0.03, 0.3)),
)
