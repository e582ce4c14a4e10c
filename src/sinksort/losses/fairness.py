"""Quantile parity: the Wasserstein distance between the score distributions of groups (Feldman 2015, Jiang 2019).

In one dimension W_p^p between two distributions is the integral of abs(Q_1 - Q_2)^p over their quantile functions (the
paper, Eq. 2). A soft sort onto m equal targets gives m averages of a group's quantile function, whatever its size,
and the integral becomes a mean over them. At eps -> 0 this is exact when every group size divides m, and otherwise at
most the true distance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.checks import values_readable
from ..core.costs import Cost
from ..core.kantorovich import hard_places, kantorovich_sort
from ..core.problem import like_rows, wide_dtype
from ..core.solvers import Solver
from ..core.squash import Squash
from ..operators import DEFAULT_SOLVER, soft_sort
from ._common import Reduction, as_mask, reduce, require_count, require_same_shape, require_samples


def quantile_parity_loss(
    scores: Tensor,
    groups: Tensor,
    *,
    p: float = 1.0,
    num_quantiles: int = 16,
    num_groups: int | None = None,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """How differently scores are distributed in groups: W_p^p of any two groups, averaged over the pairs in a row.

    Args:
        scores: (..., n) a mini-batch to a row.
        groups: (..., n) integers from 0: the group of each score.
        p: 1 for the Wasserstein-1 distance of Jiang et al., 2 to press on large gaps.
        num_quantiles: m, how finely distributions are compared.
        num_groups: default ``groups.max() + 1``; give it when compiling, or to avoid waiting for an accelerator.
        weights: one number an entry.

    Measured (docs/losses.md) on the diabetes data by age, at equal accuracy: a distance of 0.032 held out against 0.101
    without a penalty; level with MMD (0.040) and the gap of the means (0.039).

    >>> import torch
    >>> from sinksort.losses import quantile_parity_loss
    >>> scores = torch.tensor([0.1, 0.2, 0.3, 0.6, 0.7, 0.8])
    >>> quantile_parity_loss(scores, torch.tensor([0, 0, 0, 1, 1, 1]), num_quantiles=3, eps=1e-4)
    tensor(0.5000)
    """
    member = _members(scores, groups, p, num_quantiles, num_groups, mask)
    quantiles = soft_sort(
        scores.unsqueeze(-2).expand(member.shape),
        weights=_spread(weights, scores, member),
        mask=member,
        num_targets=num_quantiles,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
        backend=backend,
    )
    return _mean_over_pairs(quantiles, member.any(-1), p, reduction)


def quantile_parity(
    scores: Tensor,
    groups: Tensor,
    *,
    p: float = 1.0,
    num_quantiles: int = 16,
    num_groups: int | None = None,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The metric behind ``quantile_parity_loss``, from exact sorts.

    >>> import torch
    >>> from sinksort.losses import quantile_parity
    >>> quantile_parity(torch.tensor([0.0, 2.0, 1.0, 4.0]), torch.tensor([0, 0, 1, 1]), num_quantiles=2)
    tensor(1.5000)
    """
    member = _members(scores, groups, p, num_quantiles, num_groups, mask)
    quantiles = kantorovich_sort(
        scores.unsqueeze(-2).expand(member.shape),
        weights=_spread(weights, scores, member),
        mask=member,
        num_targets=num_quantiles,
    )
    return _mean_over_pairs(quantiles, member.any(-1), p, reduction)


def _members(
    scores: Tensor, groups: Tensor, p: float, num_quantiles: int, num_groups: int | None, mask: Tensor | None
) -> Tensor:
    """(..., G, n): who belongs to which group."""
    require_samples(scores, "scores")
    groups = require_same_shape(groups, scores, "groups", "scores")
    if groups.is_floating_point() or groups.is_complex():
        raise TypeError(f"groups must be integers (or booleans), got {groups.dtype}; number the groups from 0.")
    if not p >= 1:
        raise ValueError(f"p must be at least 1, got {p}; 1 and 2 are usual.")
    require_count(num_quantiles, None, "num_quantiles", "")
    kept = as_mask(mask, scores, "scores")
    groups = groups.long() if kept is None else torch.where(kept, groups.long(), 0)
    if num_groups is None:
        num_groups = int(groups.max()) + 1
    require_count(num_groups, None, "num_groups", "")
    if values_readable(groups) and not ((groups >= 0) & (groups < num_groups)).all():
        raise ValueError(
            f"groups must be in [0, {num_groups - 1}] for {num_groups} groups, got {groups.min().item()} to "
            f"{groups.max().item()}; number them from 0, or correct num_groups."
        )
    member = groups.unsqueeze(-2) == torch.arange(num_groups, device=scores.device, dtype=torch.int64).unsqueeze(-1)
    return member if kept is None else member & kept.unsqueeze(-2)


def _spread(weights: Tensor | None, scores: Tensor, member: Tensor) -> Tensor | None:
    if weights is None:
        return None
    return like_rows(weights, scores, -1, "weights").unsqueeze(-2).expand(member.shape)


def _mean_over_pairs(quantiles: Tensor, present: Tensor, p: float, reduction: Reduction) -> Tensor:
    """From (..., G, m) quantiles: the mean of W_p^p over pairs of groups that are present; 0 when there is none."""
    count = present.sum(-1)
    pairs = count * (count - 1) // 2
    there = present.unsqueeze(-2)
    q = torch.where(there, quantiles.mT, 0.0)  # (..., m, G)
    summed = _power_sum(q, there, p).mean(-1)
    mean = torch.where(pairs > 0, summed / pairs.clamp(min=1), 0.0).to(quantiles.dtype)
    return reduce(mean, reduction, exists=pairs > 0)


def _power_sum(q: Tensor, there: Tensor, p: float) -> Tensor:
    """(...) sum of abs(q_g - q_h)^p over pairs g < h of those that are ``there`` (..., G); 0 stands for the others."""
    if p not in (1, 2):
        gap = (q.unsqueeze(-1) - q.unsqueeze(-2)).abs() ** p
        return torch.where(there.unsqueeze(-1) & there.unsqueeze(-2), gap, 0.0).triu(diagonal=1).sum((-2, -1))
    q = q.to(wide_dtype(q.device))
    count = there.sum(-1, keepdim=True).clamp(min=1)
    q = torch.where(there, q - q.sum(-1, keepdim=True) / count, 0.0)
    if p == 2:
        return count.squeeze(-1) * q.square().sum(-1)
    # q_g counts once for each q_h below it, and less once for each above it; equal ones leave no gradient.
    first, last = hard_places(q, there.expand(q.shape))
    return (torch.where(there, first + last - 1 - count, 0.0) * q).sum(-1)
