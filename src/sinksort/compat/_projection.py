"""Soft ranks and soft sorts of rows by projection on the permutahedron, in the dtype of the values.

After "Fast Differentiable Sorting and Ranking" (Blondel, Teboul, Berthet, Djolonga, ICML 2020). With rho = (1, ..., n):

    rank   P(x / strength, rho), or exp P(x / strength, log rho) for kl
    sort   minus P(rho / strength, -x) is in ascending order; P(rho / strength, x), in descending order

where P(z, w) = z - v, in the order of z, and v is the isotonic regression of z and w in that order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..relaxations.isotonic_autograd import isotonic
from ._arguments import Strength


def ranks(values: Tensor, strength: Strength, regularization: str, descending: bool = False) -> Tensor:
    """Soft ranks (R, n), from 1 for the smallest value."""
    kl = regularization == "kl"
    scale = 1.0 / strength
    s, order = (_single_at_least(values) * (-scale if descending else scale)).sort(dim=-1)
    w = torch.arange(1, s.shape[-1] + 1, dtype=s.dtype, device=s.device)
    in_order = s - isotonic(s, w.log() if kl else w, kl)
    in_order = in_order.exp() if kl else in_order
    return torch.zeros_like(in_order).scatter(-1, order, in_order).to(values.dtype)


def sorted_values(values: Tensor, strength: Strength, regularization: str, descending: bool = False) -> Tensor:
    """Soft sorted values (R, n)."""
    ordered = _single_at_least(values).sort(dim=-1, descending=descending).values
    w = ordered if descending else -ordered  # falls either way
    s = torch.arange(w.shape[-1], 0, -1, dtype=w.dtype, device=w.device) / strength
    v = isotonic(s, w, regularization == "kl", falling=True)
    return (s - v if descending else v - s).to(values.dtype)


def _single_at_least(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
