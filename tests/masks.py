"""The truth about masks: a threshold that is found by bisection in float64, and a derivative in closed form.

The reference stops where marginals are right to 1e-10, and rows that are nearly hard have gradients smaller than that.
This balances what is out and nearly in against what is in and nearly out, and neither against one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinksort.core.squash import normalize


def threshold(x: Tensor, a: Tensor, b: Tensor, s: float) -> Tensor:
    """Tau (R, 1) with sum_i a_i sigmoid(s (x_i - tau)) = b."""
    low, high = x.amin(-1, keepdim=True) - 80 / s, x.amax(-1, keepdim=True) + 80 / s
    for _ in range(120):
        tau = 0.5 * (low + high)
        z = s * (x - tau)
        inside = (z > 0).to(a)
        missing = b - (a * inside).sum(-1, keepdim=True)
        missing = torch.where(missing.abs() < 2e-15 * a.sum(-1, keepdim=True), 0.0, missing)
        balance = (a * (1 - 2 * inside) * torch.sigmoid(-z.abs())).sum(-1, keepdim=True) - missing
        low, high = torch.where(balance > 0, tau, low), torch.where(balance > 0, high, tau)
    return 0.5 * (low + high)


def true_mask(x: Tensor, k: float, eps: float, squash: str | None, weights: Tensor | None, largest: bool) -> Tensor:
    """The mask of float64 rows, differentiable: tau moves such that the sum stays."""
    n = x.shape[-1]
    a = torch.ones_like(x) if weights is None else n * weights.double() / weights.double().sum(-1, keepdim=True)
    at, s = normalize(x, a.detach() / n, squash, x.new_zeros(1), x.new_ones(1)), 2 / eps
    tau = threshold(at.detach(), a.detach(), x.new_tensor(k if largest else n - k), s)

    def soft(z: Tensor) -> Tensor:
        return torch.where(z > 0, 1 - torch.sigmoid(-z), torch.sigmoid(z))  # slopes of tiny shares without rounding

    held = s * (at - tau)
    slopes = (a * torch.sigmoid(held) * torch.sigmoid(-held)).detach()
    moved = (slopes * (at - at.detach())).sum(-1, keepdim=True) / slopes.sum(-1, keepdim=True).clamp(min=1e-300)
    p = soft(s * (at - tau - moved))
    return p if largest else 1 - p
