"""Supervise a whole order: cross-entropy between the soft permutation and the true ranks (NeuralSort's task).

Item i goes to position j with probability P_ij / a_i under the plan; the loss is minus its logarithm at the true
position, averaged over the items. Logarithms are taken of the plan's own exponents, so they stay finite when the plan
underflows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.checks import values_readable
from ..core.costs import Cost
from ..core.kantorovich import kantorovich_rank
from ..core.solvers import Solver
from ..core.squash import Squash
from ..operators import DEFAULT_SOLVER
from ..operators.sorting import log_shares
from ._common import Reduction, any_entry, as_mask, live_count, reduce, require_rows, require_same_shape


def permutation_cross_entropy(
    scores: Tensor,
    ranks: Tensor,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """Cross-entropy of a whole order: minus the mean logarithm of the probability that an item has its true rank.

    Args:
        scores: (..., n) one list a row.
        ranks: (..., n) true ranks, 1 for the item that should have the smallest score, n for the largest. Ties may
            share a fractional rank, as ``kantorovich_rank(values)`` gives them: 1.5 asks for 1 and 2 with equal shares.
        weights: (...) one number a list.
        mask: (..., n) items that exist; ranks count among them.

    Measured (docs/losses.md) on lists of 6 digits: 60% of the items at their rank held out; NeuralSort's cross-entropy
    and the pairwise logistic loss were better there (63%).

    >>> import torch
    >>> from sinksort.losses import permutation_cross_entropy
    >>> true = torch.tensor([3.0, 1.0, 2.0])
    >>> right = permutation_cross_entropy(torch.tensor([0.9, 0.1, 0.4]), true)
    >>> wrong = permutation_cross_entropy(torch.tensor([0.4, 0.1, 0.9]), true)
    >>> bool(right < 0.1 < 1.0 < wrong)
    True
    """
    ranks, kept = _checked(scores, ranks, mask)
    log_p = log_shares(scores, mask=kept, eps=eps, cost=cost, squash=squash, solver=solver, backend=backend)
    if ranks.is_floating_point():
        wanted = ranks.to(log_p.dtype).clamp(min=1.0)
        below = wanted.floor()
        share_above = (wanted - below).unsqueeze(-1)
        at = torch.stack([below, wanted.ceil()], dim=-1).long() - 1
        shares = torch.cat([1.0 - share_above, share_above], dim=-1)
        loss = -(shares * log_p.gather(-1, at)).sum(-1)
    else:
        loss = -log_p.gather(-1, (ranks.long() - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    if kept is not None:
        loss = torch.where(kept, loss, 0.0)
    loss = (loss.sum(-1) / live_count(loss, kept).squeeze(-1).clamp(min=1.0)).to(scores.dtype)
    return reduce(loss, reduction, weights, any_entry(kept))


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
    ranks, kept = _checked(scores, ranks, mask)
    found = kantorovich_rank(scores, mask=kept)
    right = found == ranks.to(scores.dtype)
    if kept is not None:
        right = right | ~kept if whole else right & kept
    share = right.all(-1).to(scores.dtype)
    if not whole:
        share = right.sum(-1) / live_count(scores, kept).squeeze(-1).clamp(min=1.0)
    share = torch.where(found.isnan().any(-1), torch.nan, share)  # scores that have diverged are not wrong, but unknown
    return reduce(share, reduction, weights, any_entry(kept))


def _checked(scores: Tensor, ranks: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    require_rows(scores, "scores")
    ranks = require_same_shape(ranks, scores, "ranks", "scores").detach()
    kept = as_mask(mask, scores, "scores")
    ranks = ranks if kept is None else torch.where(kept, ranks, 1)
    if values_readable(ranks) and not ((ranks >= 1) & (ranks <= live_count(scores, kept).clamp(min=1))).all():
        raise ValueError(
            f"ranks must lie between 1 and the number of items in their row, got {ranks.min().item():g} to "
            f"{ranks.max().item():g} for {scores.shape[-1]} items; ranks count from 1, use kantorovich_rank(values)."
        )
    return ranks, kept
