"""NeuralSort (Grover, Wang, Zweig and Ermon, "Stochastic Optimization of Sorting Networks via Continuous
Relaxations", ICLR 2019).

The k-th largest value maximises (n + 1 - 2k) x_i - sum_j |x_i - x_j| over i: with p values above
x_i the sum has slope n - 1 - 2p in it, so the maximand rises up to the k-th largest and falls beyond. Replacing the
maximum by a softmax of temperature tau gives a row-stochastic P whose rows peak at different values. From the
smallest up the factor is 2k - n - 1.

Stochastic version: x + noise * G with G standard Gumbel. The descending order of the perturbed values has the
Plackett-Luce distribution with scores exp(x / noise), and gradients pass through the sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Relaxation, Rows


@dataclass(frozen=True, kw_only=True)
class NeuralSort(Relaxation):
    """NeuralSort, deterministic by default; ``strength`` is tau. O(n^2).

    Args:
        noise: scale of the Gumbel noise; 0 for the deterministic relaxation. Every row draws its own, so that
            ``x.expand(samples, *x.shape)`` gives independent samples.
        generator: where the noise comes from; default torch's own.

    >>> import torch
    >>> from sinksort.relaxations import NeuralSort, permutation
    >>> permutation(torch.tensor([2.0, 9.0, 5.0]), method=NeuralSort(), strength=1.0).argmax(-1)
    tensor([0, 2, 1])
    >>> noisy = NeuralSort(noise=1.0, generator=torch.Generator().manual_seed(0))
    >>> permutation(torch.zeros(4, 3), method=noisy).shape
    torch.Size([4, 3, 3])
    """

    name: ClassVar[str] = "neuralsort"

    noise: float = 0.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.noise < float("inf"):
            raise ValueError(f"NeuralSort: noise must be a finite number >= 0 (0 is deterministic), got {self.noise}.")

    def perturb(self, x: Tensor) -> Tensor:
        if self.noise == 0:
            return x
        exponential = torch.empty_like(x).exponential_(generator=self.generator)  # G = -log of it
        return x - self.noise * exponential.clamp(min=torch.finfo(x.dtype).tiny).log()

    def permutation(self, rows: Rows) -> Tensor:
        x = rows.x
        distance = (x.unsqueeze(-1) - x.unsqueeze(-2)).abs()
        if rows.kept is not None:
            distance = torch.where(rows.kept.unsqueeze(-2), distance, 0.0)
        slope = 2 * rows.positions() - rows.count - 1
        score = slope.unsqueeze(-1) * x.unsqueeze(-2) - distance.sum(-1).unsqueeze(-2)
        score = score / rows.strength.unsqueeze(-1)
        if rows.kept is not None:
            score = torch.where(rows.kept.unsqueeze(-2), score, torch.finfo(score.dtype).min)
        return torch.softmax(score, dim=-1)
