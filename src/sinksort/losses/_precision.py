"""The sum of precisions in an average precision, with its gradient written out.

With P_ij the probability that item i stands at position j, and relevance r_i in {0, 1},

    Q_ij = above_ij / (above_ij + below_ij),    above_ij = sum_{l < j} P_il,    below_ij = sum_{l > j} P_il,
    sum_ij r_i cut_j P_ij precision_ij,         precision_ij = (1 + T_j - Q_ij) / (1 + S_j - Q_ij),
    T_j = sum_i r_i Q_ij,  S_j = sum_i Q_ij.

See ``ranking`` for what that means, and ``_written_out`` for why. Autograd would keep twenty matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.modes import ordinary
from ._written_out import Sum, summed


def precision_sum(P: Tensor, relevant: Tensor, cut: Tensor) -> Tensor:
    """Return (...) the sum for P (..., items, positions), relevant (..., items) and cut (positions)."""
    if ordinary() and P.is_cpu:
        n = P.shape[-1]
        out = summed(P.reshape(-1, n, n), relevant.reshape(-1, n).to(P.dtype), cut.to(P.dtype), _PRECISIONS)
        return out.reshape(P.shape[:-2]).to(relevant.dtype)
    return _plain(P.to(relevant.dtype), relevant, cut)


def _plain(P: Tensor, relevant: Tensor, cut: Tensor) -> Tensor:
    Q, _, _ = _shares_above(P)
    T = (relevant.unsqueeze(-2) @ Q).expand(Q.shape)
    precision = (1.0 + T - Q) / (1.0 + Q.sum(-2, keepdim=True) - Q)
    return (relevant * ((P * precision) @ cut)).sum(-1)


def _shares_above(P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Q, above + below and below: sums of small numbers, not differences."""
    above = torch.nn.functional.pad(P[..., :-1].cumsum(-1), (1, 0))
    below = torch.nn.functional.pad(P[..., 1:].flip(-1).cumsum(-1).flip(-1), (0, 1))
    rest = above + below
    rest = torch.where(rest > 0, rest, 1.0)
    return above / rest, rest, below


def _with_gradient(P: Tensor, relevant: Tensor, cut: Tensor, needed: bool) -> tuple[Tensor, Tensor]:
    """The sums of rows (R, n, n), and their gradients in P (or nothing of use)."""
    Q, rest, below = _shares_above(P)
    r = relevant.unsqueeze(-1)
    over = 1.0 + Q.sum(-2, keepdim=True) - Q
    precision = (1.0 + relevant.unsqueeze(-2) @ Q - Q).div_(over)
    counts = r * cut
    mine = P * counts
    value = (mine * precision).sum((-2, -1), dtype=torch.float64).to(P.dtype)
    if not needed:
        return value, P
    gained = mine.div_(over)  # what the sum gains when the numerator of a precision grows
    lost = gained * precision
    of_Q = r * gained.sum(-2, keepdim=True) - lost.sum(-2, keepdim=True) + lost - gained
    by_rest = of_Q.div_(rest)
    of_above, of_below = by_rest * below.div_(rest), by_rest * Q  # the latter with the other sign
    # P_il is above all positions after l, and below all before it.
    whole = of_above.sum(-1, keepdim=True)
    of_above[..., 1:] += of_below[..., :-1]
    return value, counts.mul(precision).add_(whole).sub_(of_above.cumsum(-1))


_PRECISIONS = Sum(_plain, _with_gradient, 1 << 16)
