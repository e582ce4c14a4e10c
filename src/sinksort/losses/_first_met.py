"""Expected discounts of the first relevant item, going down from the top, with the gradient written out.

With P_ji the probability that item i stands at position j, relevance r_i in {0, 1} and discounts d_j,

    at_ji = sum_{l >= j} P_li,      q_ji = P_ji / at_ji,      met_j = min(1, sum_i r_i q_ji),
    sum_j d_j met_j prod_{k < j} (1 - met_k).

See ``ranking`` for what that means. P may be in single precision: quotients are of sums of small numbers, and what is
multiplied along the positions is so in double precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.modes import ordinary
from ._written_out import Sum, summed


def first_met(P: Tensor, relevant: Tensor, discounts: Tensor) -> Tensor:
    """Return (...) the sum for P (..., positions, items), relevant (..., items) and discounts (positions)."""
    if ordinary() and P.is_cpu:
        n = P.shape[-1]
        return summed(P.reshape(-1, n, n), relevant.reshape(-1, n), discounts, _MET).reshape(P.shape[:-2])
    return _plain(P, relevant, discounts)


def _plain(P: Tensor, relevant: Tensor, discounts: Tensor) -> Tensor:
    at = P.flip(-2).cumsum(-2).flip(-2)
    q = P / torch.where(at > _least(P), at, 1.0)
    met = (q * relevant.to(q.dtype).unsqueeze(-2)).sum(-1).to(relevant.dtype).clamp(max=1.0)
    not_before = torch.nn.functional.pad((1.0 - met).cumprod(-1)[..., :-1], (1, 0), value=1.0)
    return (not_before * met * discounts).sum(-1)


def _least(P: Tensor) -> float:
    """What is at a position or below it with less probability is nowhere near: quotients of such numbers overflow."""
    return 1e8 * torch.finfo(P.dtype).tiny


def _with_gradient(P: Tensor, relevant: Tensor, discounts: Tensor, needed: bool) -> tuple[Tensor, Tensor]:
    """The sums of rows (R, n, n), and their gradients in P (or nothing of use).

    Items are taken along the second dimension and positions along the last, as sums along it are fastest.
    """
    P, r = P.mT, relevant.to(P.dtype).unsqueeze(-1)
    at = P.flip(-1).cumsum_(-1).flip(-1)
    per = torch.where(at > _least(P), at, 1.0).reciprocal_()
    q = P * per
    sums = (r.mT @ q).squeeze(-2).to(relevant.dtype)
    met = sums.clamp(max=1.0)
    left = 1.0 - met
    not_before = torch.nn.functional.pad(left.cumprod(-1)[..., :-1], (1, 0), value=1.0)
    gained = not_before * met * discounts
    value = gained.sum(-1)
    if not needed:
        return value, P
    later = value.unsqueeze(-1) - gained.cumsum(-1)
    of_met = torch.where(left > 0, not_before * discounts - later / torch.where(left > 0, left, 1.0), 0.0)
    of_q = (of_met.to(P.dtype).unsqueeze(-2) * r) * per  # the quotient's numerator gains so much
    q = q.mul_(of_q).cumsum_(-1)  # what is at a position, or above it, loses by its denominator
    return value, of_q.sub_(q).mT


_MET = Sum(_plain, _with_gradient, 1 << 17)
