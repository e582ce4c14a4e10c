"""Supervise a whole order: cross-entropy between the soft permutation and what is known of the ranks.

Item i goes to position j with probability p_ij = P_ij / a_i under the plan. Known may be the ranks (NeuralSort's and
diffsort's task), the soft permutation of a teacher, or only where the rank of each item can lie, as in a partial order
or among censored times. Logarithms are taken of the plan's own exponents, so they stay finite when the plan underflows.

Scores are taken as they are by default, ``squash=None``. Standardised scores have the same softness for ever: a row in
the right order with equal gaps has the same loss at every scale of its scores, and its gradient goes on pushing.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ..core.checks import require_floating, values_readable
from ..core.costs import Cost
from ..core.kantorovich import kantorovich_rank
from ..core.solvers import Solver
from ..core.squash import Squash
from ..operators import DEFAULT_SOLVER
from ..operators.sorting import log_shares
from ._common import (
    Reduction,
    any_entry,
    as_mask,
    live_count,
    reduce,
    require_choice,
    require_rows,
    require_same_shape,
)

Objective: TypeAlias = Literal["binary", "nll"]


def permutation_cross_entropy(
    scores: Tensor,
    ranks: Tensor,
    *,
    objective: Objective = "binary",
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 5e-2,
    cost: Cost = 2,
    squash: Squash = None,
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """The mean over the items of a row of the cross-entropy between their soft and their true rank.

    Args:
        scores: (..., n) one list a row.
        ranks: (..., n) true ranks, 1 for the item that should have the smallest score, n for the largest. Ties may
            share a fractional rank, as ``kantorovich_rank(values)`` gives them: 1.5 asks for 1 and 2 with equal shares.
            Or (..., n, n) the soft permutation of a teacher, as ``soft_permutation`` gives it; no gradient goes there.
        objective: ``"binary"`` adds the binary cross-entropies of all ranks of an item, -log p at the true rank and
            -log(1 - p) at all others; ``"nll"`` is the first of the two.
        weights: (...) one number a list.
        mask: (..., n) items that exist; ranks count among them.

    >>> import torch
    >>> from sinksort.losses import permutation_cross_entropy
    >>> true = torch.tensor([3.0, 1.0, 2.0])
    >>> right = permutation_cross_entropy(torch.tensor([0.9, 0.1, 0.4]), true)
    >>> wrong = permutation_cross_entropy(torch.tensor([0.4, 0.1, 0.9]), true)
    >>> bool(right < 0.1 < 5.0 < wrong)
    True
    """
    require_choice(objective, ("binary", "nll"), "objective")
    shares, ranks, kept = _known(scores, ranks, mask)
    log_p = log_shares(scores, mask=kept, eps=eps, cost=cost, squash=squash, solver=solver, backend=backend)
    if shares is None and objective == "nll":
        loss = _at_ranks(log_p, ranks)
    else:
        shares = _shares(ranks, log_p) if shares is None else shares.to(log_p.dtype)
        loss = -(shares * _where_wanted(log_p, shares > 0)).sum(-1)
        if objective == "binary":
            others = _log_others(log_p)
            loss = loss - ((1.0 - shares) * _where_wanted(others, shares < 1)).sum(-1)
    return _mean(loss, scores, kept, weights, reduction)


def partial_order_loss(
    scores: Tensor,
    lowest: Tensor,
    highest: Tensor,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 5e-2,
    cost: Cost = 2,
    squash: Squash = None,
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """Minus the mean logarithm of the probability that an item has one of the ranks that it can have.

    That is the cross-entropy against a set of permutations, by what the set says of each item: groups of items without
    an order among themselves, partial orders, times of which some are censored (``ranks_of_times``). Of one permutation
    it is ``permutation_cross_entropy(..., objective="nll")``; where nothing is known it is 0.

    Args:
        scores: (..., n) one list a row.
        lowest, highest: (..., n) whole numbers from 1 to n, 1 for the item that should have the smallest score.
        weights: (...) one number a list.
        mask: (..., n) items that exist; ranks count among them.

    >>> import torch
    >>> from sinksort.losses import partial_order_loss
    >>> two_best = torch.tensor([1, 1, 3, 3]), torch.tensor([2, 2, 4, 4])  # the last two, in any order
    >>> partial_order_loss(torch.tensor([0.2, 0.1, 0.8, 0.9]), *two_best, eps=1e-2) < 1e-3
    tensor(True)
    """
    lowest, kept = _checked(scores, lowest, mask, "lowest")
    highest, _ = _checked(scores, highest, mask, "highest")
    if values_readable(lowest) and bool((lowest > highest).any()):
        raise ValueError("lowest must be at most highest, but for some item it is larger; no rank would be left.")
    log_p = log_shares(scores, mask=kept, eps=eps, cost=cost, squash=squash, solver=solver, backend=backend)
    at = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=torch.int64)
    possible = (at >= lowest.unsqueeze(-1)) & (at <= highest.unsqueeze(-1))
    if kept is not None:
        possible = torch.where(kept.unsqueeze(-1), possible, at == 1)
    within = torch.logsumexp(torch.where(possible, log_p, -torch.inf), dim=-1)
    return _mean(-within.clamp(max=0.0), scores, kept, weights, reduction)


def ranks_of_times(times: Tensor, observed: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The lowest and the highest rank that each of several times can have, when some are only known to be later.

    Args:
        times: (..., n) when the event was observed or, if it was not, until when it had not happened.
        observed: (..., n) booleans, False for censored times.
        mask: (..., n) entries that exist.

    An observed time comes after every earlier event, and before all that was under observation later. A censored one
    comes after the events until then. Equal observed times may have each other's ranks.

    >>> import torch
    >>> from sinksort.losses import ranks_of_times
    >>> ranks_of_times(torch.tensor([5.0, 2.0, 3.0, 8.0]), torch.tensor([True, True, False, True]))
    (tensor([2, 1, 2, 3]), tensor([3, 1, 4, 4]))
    """
    require_rows(times, "times")
    observed = require_same_shape(observed, times, "observed", "times")
    if observed.dtype != torch.bool:
        raise TypeError(f"observed must be a boolean tensor (False where censored), got {observed.dtype}; use .bool().")
    kept = as_mask(mask, times, "times")
    live = torch.ones_like(observed) if kept is None else kept
    mine, theirs = times.unsqueeze(-1), times.unsqueeze(-2)
    happened, there = (observed & live).unsqueeze(-2), live.unsqueeze(-2)
    earlier = torch.where(observed.unsqueeze(-1), theirs < mine, theirs <= mine) & happened
    later = (theirs > mine) | ((theirs == mine) & ~happened)
    later = later & there & observed.unsqueeze(-1)
    lowest = earlier.sum(-1) + 1
    highest = live.sum(-1, keepdim=True) - later.sum(-1)
    return torch.where(live, lowest, 1), torch.where(live, highest, 1)


def permutation_accuracy(
    scores: Tensor,
    ranks: Tensor,
    *,
    whole: bool = False,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The share of items that have their true rank or, with ``whole``, whether all items of a list have it.

    Args:
        whole: whether a list counts as right only if all its items are.

    >>> import torch
    >>> from sinksort.losses import permutation_accuracy
    >>> permutation_accuracy(torch.tensor([0.4, 0.1, 0.9, 1.5]), torch.tensor([3, 1, 2, 4]))
    tensor(0.5000)
    """
    ranks, kept = _checked(scores, ranks, mask, "ranks")
    found = kantorovich_rank(scores, mask=kept)
    right = found == ranks.to(scores.dtype)
    if kept is not None:
        right = right | ~kept if whole else right & kept
    share = right.all(-1).to(scores.dtype)
    if not whole:
        share = right.sum(-1) / live_count(scores, kept).squeeze(-1).clamp(min=1.0)
    share = torch.where(found.isnan().any(-1), torch.nan, share)  # scores that have diverged are not wrong, but unknown
    return reduce(share, reduction, weights, any_entry(kept))


def _checked(scores: Tensor, ranks: Tensor, mask: Tensor | None, name: str) -> tuple[Tensor, Tensor | None]:
    require_rows(scores, "scores")
    ranks = require_same_shape(ranks, scores, name, "scores").detach()
    kept = as_mask(mask, scores, "scores")
    ranks = ranks if kept is None else torch.where(kept, ranks, 1)
    if values_readable(ranks) and not ((ranks >= 1) & (ranks <= live_count(scores, kept).clamp(min=1))).all():
        raise ValueError(
            f"{name} must lie between 1 and the number of items in their row, got {ranks.min().item():g} to "
            f"{ranks.max().item():g} for {scores.shape[-1]} items; ranks count from 1, use kantorovich_rank(values)."
        )
    return ranks, kept


def _known(scores: Tensor, ranks: Tensor, mask: Tensor | None) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """The shares (..., items, ranks) of a teacher, or None; ranks, and the mask."""
    require_rows(scores, "scores")
    if not isinstance(ranks, Tensor) or ranks.ndim != scores.ndim + 1:
        return None, *_checked(scores, ranks, mask, "ranks")
    n = scores.shape[-1]
    require_floating(ranks, "ranks")
    if ranks.shape != (*scores.shape, n):
        raise ValueError(
            f"ranks must have the shape of scores, {tuple(scores.shape)}, or be soft permutations "
            f"{(*scores.shape, n)}, got {tuple(ranks.shape)}."
        )
    kept = as_mask(mask, scores, "scores")
    shares = ranks.detach().mT
    if values_readable(shares) and not ((shares >= -1e-6) & (shares <= 1.0 + 1e-4)).all():
        raise ValueError(
            f"ranks must be a soft permutation with entries in [0, 1], got {shares.min().item():g} to "
            f"{shares.max().item():g}; call soft_permutation(scores of the teacher)."
        )
    shares = shares.clamp(0.0, 1.0)
    return (shares if kept is None else torch.where(kept.unsqueeze(-1), shares, 0.0)), ranks, kept


def _at_ranks(log_p: Tensor, ranks: Tensor) -> Tensor:
    """(..., n) -log p at the true ranks."""
    if not ranks.is_floating_point():
        return -log_p.gather(-1, (ranks.long() - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    at, shares = _two_ranks(ranks, log_p)
    return -(shares * log_p.gather(-1, at)).sum(-1)


def _two_ranks(ranks: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor]:
    """The two whole numbers around each rank, from 0, and their shares (..., n, 2)."""
    wanted = ranks.to(log_p.dtype).clamp(min=1.0)
    below = wanted.floor()
    share_above = (wanted - below).unsqueeze(-1)
    at = torch.stack([below, wanted.ceil()], dim=-1).long() - 1
    return at, torch.cat([1.0 - share_above, share_above], dim=-1)


def _shares(ranks: Tensor, log_p: Tensor) -> Tensor:
    """(..., items, ranks) how much of each rank an item should have."""
    at, shares = _two_ranks(ranks, log_p)
    return torch.zeros_like(log_p).detach().scatter_add(-1, at, shares)


def _where_wanted(log_p: Tensor, wanted: Tensor) -> Tensor:
    """Logarithms that count; others may be infinite, and 0 times infinity is no number."""
    return torch.where(wanted & (log_p > -torch.inf), log_p, 0.0)


def _log_others(log_p: Tensor) -> Tensor:
    """log(1 - p). One entry of a row may be more than a half: the others are added up instead of taken from 1."""
    largest = log_p.detach().argmax(-1, keepdim=True)
    is_largest = torch.arange(log_p.shape[-1], device=log_p.device, dtype=torch.int64) == largest
    if log_p.shape[-1] == 1:
        return torch.full_like(log_p, -torch.inf)
    rest = torch.logsumexp(torch.where(is_largest, -torch.inf, log_p), dim=-1, keepdim=True)
    small = torch.where(is_largest, -1.0, log_p)
    return torch.where(is_largest, rest, torch.log1p(-small.exp()))


def _mean(loss: Tensor, scores: Tensor, kept: Tensor | None, weights: Tensor | None, reduction: Reduction) -> Tensor:
    """The mean of the losses of the items of a row (..., n), reduced over the rows."""
    if kept is not None:
        loss = torch.where(kept, loss, 0.0)
    loss = (loss.sum(-1) / live_count(loss, kept).squeeze(-1).clamp(min=1.0)).to(scores.dtype)
    return reduce(loss, reduction, weights, any_entry(kept))
