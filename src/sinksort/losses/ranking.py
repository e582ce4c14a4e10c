"""Learning to rank: NDCG, average precision, reciprocal rank and recall at k, as metrics and as losses.

Each metric is a sum over the items of a list of   gain_i * phi(r_i),   with r_i the position from the top (1, 2, ...)
and phi its discount: 1/log2(1 + r) for DCG, 1/r for average precision and reciprocal rank, 1 for recall, and 0 beyond
the cut-off k. Only phi(r_i) has to be smoothed, and the transport plan already says how: P_ij / a_i is a distribution
of item i over the positions j, and

    phi_i = sum_j (P_ij / a_i) phi(j)

is the mean of phi under it. At eps -> 0 it is phi(r_i), for tied scores the average of phi over the positions they
share (as in scikit-learn's ``ndcg_score``). Averaging phi rather than plugging the soft rank into it keeps the cut-off
exact in the limit and its gradient alive on both sides. Metric and loss are the same code; ``_Soft`` or ``_Hard`` is
all that differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .._checks import values_readable
from ..costs import Cost
from ..kantorovich import kantorovich_rank
from ..operators import DEFAULT_SOLVER, soft_rank, transport
from ..solvers import Solver
from ..squash import Squash
from ._common import (
    Reduction,
    any_entry,
    as_mask,
    live_count,
    reduce,
    require_choice,
    require_count,
    require_rows,
    require_same_shape,
)

Gain: TypeAlias = Literal["linear", "exponential"]


# ---- where items stand: softly, or exactly


@dataclass(frozen=True)
class _Soft:
    eps: float | Tensor
    cost: Cost
    squash: Squash
    solver: Solver

    def discounts(self, scores: Tensor, phi: Tensor, mask: Tensor | None) -> Tensor:
        """phi_i (..., n), the mean of ``phi`` (n,) over the positions of item i."""
        plan = transport(scores, mask=mask, eps=self.eps, cost=self.cost, squash=self.squash, solver=self.solver)
        # Target j of a row that holds `count` items, counted upwards from 0, is position count - j from the top.
        count = live_count(scores, mask).long()
        position = count - torch.arange(scores.shape[-1], device=scores.device)
        return plan.pull(phi[(position - 1).clamp(min=0)])

    def ranks(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return soft_rank(
            scores,
            descending=True,
            mask=mask,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
        )


@dataclass(frozen=True)
class _Hard:
    def discounts(self, scores: Tensor, phi: Tensor, mask: Tensor | None) -> Tensor:
        """phi_i (..., n), averaged over the positions that tied items share."""
        other, mine = scores.unsqueeze(-2), scores.unsqueeze(-1)
        there = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
        above = ((other > mine) & there.unsqueeze(-2)).sum(-1)
        tied = ((other == mine) & there.unsqueeze(-2)).sum(-1).clamp(min=1)
        up_to = torch.nn.functional.pad(phi.cumsum(0), (1, 0))
        mean = (up_to[(above + tied).clamp(max=len(phi))] - up_to[above]) / tied
        return torch.where(there, mean, 0.0).to(scores.dtype)

    def ranks(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return kantorovich_rank(scores, descending=True, mask=mask)


_Positions: TypeAlias = _Soft | _Hard


# ---- the metrics, one value a list, whatever gives the positions


def _ndcg(at: _Positions, scores: Tensor, relevance: Tensor, k: int | None, gain: str, mask: Tensor | None) -> Tensor:
    relevance, mask = _checked(scores, relevance, k, mask)
    require_choice(gain, ("linear", "exponential"), "gain")
    gains = relevance if gain == "linear" else relevance.exp2() - 1.0
    phi = _cut(1.0 / (_places(scores) + 1.0).log2(), k)
    ideal = (gains.sort(dim=-1, descending=True).values * phi).sum(-1)
    reached = (gains * at.discounts(scores, phi, mask)).sum(-1)
    return _over(reached, ideal)


def _average_precision(at: _Positions, scores: Tensor, relevance: Tensor, k: int | None, mask: Tensor | None) -> Tensor:
    """Precision at the position of relevant item i is r+_i / r_i, with r+_i its position among the relevant items."""
    relevance, mask = _checked(scores, relevance, k, mask)
    relevant = relevance > 0
    phi = _cut(1.0 / _places(scores), k)
    precisions = at.ranks(scores, relevant) * at.discounts(scores, phi, mask)
    possible = relevant.sum(-1).clamp(max=scores.shape[-1] if k is None else k)
    return _over(torch.where(relevant, precisions, 0.0).sum(-1), possible)


def _reciprocal_rank(at: _Positions, scores: Tensor, relevance: Tensor, k: int | None, mask: Tensor | None) -> Tensor:
    relevance, mask = _checked(scores, relevance, k, mask)
    phi = _cut(1.0 / _places(scores), k)
    return torch.where(relevance > 0, at.discounts(scores, phi, mask), 0.0).amax(-1)


def _recall(at: _Positions, scores: Tensor, relevance: Tensor, k: int, mask: Tensor | None) -> Tensor:
    relevance, mask = _checked(scores, relevance, k, mask)
    relevant = relevance > 0
    phi = _cut(torch.ones_like(_places(scores)), k)
    found = torch.where(relevant, at.discounts(scores, phi, mask), 0.0).sum(-1)
    return _over(found, relevant.sum(-1))


def _checked(scores: Tensor, relevance: Tensor, k: int | None, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Relevance in the dtype of the scores, zero where masked, and the mask."""
    require_rows(scores, "scores")
    relevance = require_same_shape(relevance, scores, "relevance", "scores").detach()
    if k is not None:
        require_count(k, None, "k", "")
    kept = as_mask(mask, scores, "scores")
    relevance = relevance.to(scores.dtype)
    if kept is not None:
        relevance = torch.where(kept, relevance, 0.0)
    if values_readable(relevance) and not (relevance >= 0).all():
        raise ValueError(
            f"relevance must be non-negative (0 is irrelevant), but its smallest entry is {relevance.min().item():g}; "
            "shift the grades, or leave items out with mask=."
        )
    return relevance, kept


def _places(scores: Tensor) -> Tensor:
    """The positions 1, ..., n."""
    return torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)


def _cut(phi: Tensor, k: int | None) -> Tensor:
    return phi if k is None else torch.where(torch.arange(len(phi), device=phi.device) < k, phi, 0.0)


def _over(reached: Tensor, possible: Tensor) -> Tensor:
    """A list with nothing relevant in it has the value 0, as in scikit-learn and torchmetrics."""
    return torch.where(possible > 0, reached / torch.where(possible > 0, possible, 1), 0.0)


def _one_minus(
    metric: Tensor, mask: Tensor | None, scores: Tensor, weights: Tensor | None, reduction: Reduction
) -> Tensor:
    return reduce(1.0 - metric, reduction, weights, any_entry(as_mask(mask, scores, "scores")))


# ---- the public pairs


def ndcg(
    scores: Tensor,
    relevance: Tensor,
    k: int | None = None,
    *,
    gain: Gain = "linear",
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Normalised discounted cumulative gain of each list, 1 when the items are in the best order.

    Args:
        scores: (..., n) one list of items a row.
        relevance: (..., n) grades >= 0.
        k: cut-off: items below the k-th position have no part; None for no cut-off.
        gain: ``"linear"``: the grade itself (scikit-learn, torchmetrics); ``"exponential"``: 2^grade - 1.
        weights: (...) one number a list.
        mask: (..., n) items that exist.

    >>> import torch
    >>> from sinksort.losses import ndcg
    >>> scores, relevance = torch.tensor([0.5, 0.9, 0.1, 0.3]), torch.tensor([1, 0, 0, 1])
    >>> ndcg(scores, relevance)
    tensor(0.6934)
    """
    values = _ndcg(_Hard(), scores, relevance, k, gain, mask)
    return reduce(values, reduction, weights, any_entry(as_mask(mask, scores, "scores")))


def ndcg_loss(
    scores: Tensor,
    relevance: Tensor,
    k: int | None = None,
    *,
    gain: Gain = "linear",
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """1 - NDCG with soft positions; see ``ndcg``.

    Args:
        scores: (..., n) one list of items a row.
        relevance: (..., n) grades >= 0.
        k: cut-off: items below the k-th position have no part; None for no cut-off.
        gain: ``"linear"``: the grade itself (scikit-learn, torchmetrics); ``"exponential"``: 2^grade - 1.
        weights: (...) one number a list.
        mask: (..., n) items that exist.

    Measured: {NDCG}

    >>> import torch
    >>> from sinksort.losses import ndcg_loss
    >>> scores, relevance = torch.tensor([0.5, 0.9, 0.1, 0.3]), torch.tensor([1, 0, 0, 1])
    >>> ndcg_loss(scores, relevance, eps=1e-4)
    tensor(0.3066)
    """
    values = _ndcg(_Soft(eps, cost, squash, solver), scores, relevance, k, gain, mask)
    return _one_minus(values, mask, scores, weights, reduction)


def average_precision(
    scores: Tensor,
    relevance: Tensor,
    k: int | None = None,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Average precision of each list: the mean, over its relevant items, of the precision at their positions.

    Args:
        scores: (..., n) one list of items a row.
        relevance: (..., n) relevant where positive.
        k: cut-off: items below the k-th position have no part; None for no cut-off. Divided by min(k, relevant items).
        weights: (...) one number a list.
        mask: (..., n) items that exist.

    >>> import torch
    >>> from sinksort.losses import average_precision
    >>> scores, relevance = torch.tensor([0.5, 0.9, 0.1, 0.3]), torch.tensor([1, 0, 0, 1])
    >>> average_precision(scores, relevance)
    tensor(0.5833)
    """
    values = _average_precision(_Hard(), scores, relevance, k, mask)
    return reduce(values, reduction, weights, any_entry(as_mask(mask, scores, "scores")))


def average_precision_loss(
    scores: Tensor,
    relevance: Tensor,
    k: int | None = None,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """1 - average precision with soft positions; see ``average_precision``.

    Args:
        scores: (..., n) one list of items a row.
        relevance: (..., n) relevant where positive.
        k: cut-off: items below the k-th position have no part; None for no cut-off.
        weights: (...) one number a list.
        mask: (..., n) items that exist.

    Measured: {AP}

    >>> import torch
    >>> from sinksort.losses import average_precision_loss
    >>> scores, relevance = torch.tensor([0.5, 0.9, 0.1, 0.3]), torch.tensor([1, 0, 0, 1])
    >>> average_precision_loss(scores, relevance, eps=1e-4)
    tensor(0.4167)
    """
    values = _average_precision(_Soft(eps, cost, squash, solver), scores, relevance, k, mask)
    return _one_minus(values, mask, scores, weights, reduction)


def reciprocal_rank(
    scores: Tensor,
    relevance: Tensor,
    k: int | None = None,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """1 / position of the first relevant item of each list.

    Args:
        scores: (..., n) one list of items a row.
        relevance: (..., n) relevant where positive.
        k: cut-off: items below the k-th position have no part; None for no cut-off.
        weights: (...) one number a list.
        mask: (..., n) items that exist.

    >>> import torch
    >>> from sinksort.losses import reciprocal_rank
    >>> scores, relevance = torch.tensor([0.5, 0.9, 0.1, 0.3]), torch.tensor([1, 0, 0, 1])
    >>> reciprocal_rank(scores, relevance)
    tensor(0.5000)
    """
    values = _reciprocal_rank(_Hard(), scores, relevance, k, mask)
    return reduce(values, reduction, weights, any_entry(as_mask(mask, scores, "scores")))


def reciprocal_rank_loss(
    scores: Tensor,
    relevance: Tensor,
    k: int | None = None,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """1 - reciprocal rank with soft positions; see ``reciprocal_rank``.

    Args:
        scores: (..., n) one list of items a row.
        relevance: (..., n) relevant where positive.
        k: cut-off: items below the k-th position have no part; None for no cut-off.
        weights: (...) one number a list.
        mask: (..., n) items that exist.

    Measured: {RR}

    >>> import torch
    >>> from sinksort.losses import reciprocal_rank_loss
    >>> scores, relevance = torch.tensor([0.5, 0.9, 0.1, 0.3]), torch.tensor([1, 0, 0, 1])
    >>> reciprocal_rank_loss(scores, relevance, eps=1e-4)
    tensor(0.5000)
    """
    values = _reciprocal_rank(_Soft(eps, cost, squash, solver), scores, relevance, k, mask)
    return _one_minus(values, mask, scores, weights, reduction)


def recall_at_k(
    scores: Tensor,
    relevance: Tensor,
    k: int,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The share of the relevant items of each list that are among its first k.

    Args:
        scores: (..., n) one list of items a row.
        relevance: (..., n) relevant where positive.
        k: how many items are looked at.
        weights: (...) one number a list.
        mask: (..., n) items that exist.

    >>> import torch
    >>> from sinksort.losses import recall_at_k
    >>> scores, relevance = torch.tensor([0.5, 0.9, 0.1, 0.3]), torch.tensor([1, 0, 0, 1])
    >>> recall_at_k(scores, relevance, 2)
    tensor(0.5000)
    """
    values = _recall(_Hard(), scores, relevance, k, mask)
    return reduce(values, reduction, weights, any_entry(as_mask(mask, scores, "scores")))


def recall_at_k_loss(
    scores: Tensor,
    relevance: Tensor,
    k: int,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """1 - recall at k with soft positions; see ``recall_at_k``.

    Args:
        scores: (..., n) one list of items a row.
        relevance: (..., n) relevant where positive.
        k: how many items are looked at.
        weights: (...) one number a list.
        mask: (..., n) items that exist.

    Measured: {RECALL}

    >>> import torch
    >>> from sinksort.losses import recall_at_k_loss
    >>> scores, relevance = torch.tensor([0.5, 0.9, 0.1, 0.3]), torch.tensor([1, 0, 0, 1])
    >>> recall_at_k_loss(scores, relevance, 2, eps=1e-4)
    tensor(0.5000)
    """
    values = _recall(_Soft(eps, cost, squash, solver), scores, relevance, k, mask)
    return _one_minus(values, mask, scores, weights, reduction)
