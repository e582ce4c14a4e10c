"""Rank correlations: Spearman's and Kendall's, with the predictions' ranks soft and the targets' ranks exact.

Both are written once as a function of two vectors of ranks; the metric gives it K-ranks twice. Ties share a rank
(average), as in SciPy. A correlation with a constant is 0/0 and is defined as 0 here: the loss is 1, never NaN. When it
is the *predictions* that are all equal, as at the start of a training, the deviation of hard ranks stands in for
theirs, so that there is a gradient to leave that point with.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ..core.costs import Cost
from ..core.kantorovich import kantorovich_rank
from ..core.problem import like_rows, wide_dtype
from ..core.solvers import Solver
from ..core.squash import Squash
from ..operators import DEFAULT_SOLVER, soft_rank
from ._common import Reduction, any_entry, as_mask, reduce, require_choice, require_same_shape, require_samples

PairWeights: TypeAlias = Literal["equal", "hyperbolic"]


def spearman_loss(
    predictions: Tensor,
    targets: Tensor,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """1 - Spearman's rho of each row: 0 for the same order, 1 for no relation, 2 for the reversed order.

    Args:
        predictions, targets: (..., n); no gradient goes to the targets.
        weights: one number an entry; they weigh in the ranks and in the correlation.

    Measured (docs/losses.md) on the diabetes data, rho held out: 0.65, level with squares (0.65) and the pairwise
    logistic loss (0.66); with 30% outliers 0.54 against 0.36 with squares, level with the pairwise loss (0.53).

    >>> import torch
    >>> from sinksort.losses import spearman_loss
    >>> prediction, target = torch.tensor([0.1, 0.4, 0.2, 0.8]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> spearman_loss(prediction, target, eps=1e-4)
    tensor(0.2000)
    >>> spearman_loss(prediction, torch.ones(4))
    tensor(1.)
    """
    x, target_ranks, a, kept = _checked(predictions, targets, weights, mask)
    ranks = soft_rank(x, weights=weights, mask=kept, eps=eps, cost=cost, squash=squash, solver=solver)
    rho = _pearson(ranks, target_ranks, a).to(predictions.dtype)
    return reduce(1.0 - rho, reduction, exists=any_entry(kept))


def spearman(
    predictions: Tensor,
    targets: Tensor,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The metric behind ``spearman_loss``: Spearman's rho, as ``scipy.stats.spearmanr``, but 0 for constants.

    >>> import torch
    >>> from sinksort.losses import spearman
    >>> spearman(torch.tensor([0.1, 0.4, 0.2, 0.8]), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor(0.8000)
    """
    x, target_ranks, a, kept = _checked(predictions, targets, weights, mask)
    ranks = kantorovich_rank(x, weights=weights, mask=kept)
    return reduce(_pearson(ranks, target_ranks, a).to(predictions.dtype), reduction, exists=any_entry(kept))


def kendall_loss(
    predictions: Tensor,
    targets: Tensor,
    *,
    pair_weights: PairWeights = "equal",
    margin: float = 1.0,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """1 - Kendall's tau-b of each row, weighted towards the top if wanted.

    The sign of a pair becomes clamp((R_i - R_j) / margin, -1, 1) on soft ranks: hard ranks of different values are at
    least 1 apart, so for a margin of at most 1 the limit eps -> 0 is exact. Pairs further apart than the margin have no
    gradient of their own; a margin of several ranks lets more pairs speak, and one of n makes the numerator Spearman's.
    Memory is quadratic in n.

    Args:
        predictions, targets: (..., n); no gradient goes to the targets.
        pair_weights: ``"hyperbolic"`` gives a pair the weight 1/r_i + 1/r_j, with r the rank by target from the top, as
            ``scipy.stats.weightedtau(..., rank=r - 1)``: exchanges near the top matter more.
        margin: in ranks.
        weights: one number an entry; a pair counts as the product of its two.

    Measured (docs/losses.md) on the diabetes data with a margin of 10: tau 0.475 held out, level with squares and the
    pairwise logistic loss (0.465).

    >>> import torch
    >>> from sinksort.losses import kendall_loss
    >>> kendall_loss(torch.tensor([0.1, 0.4, 0.2, 0.8]), torch.tensor([1.0, 2.0, 3.0, 4.0]), eps=1e-4)
    tensor(0.3333)
    """
    if not margin > 0:
        raise ValueError(f"margin must be positive, got {margin}; it is in ranks, and 1 is exact at eps -> 0.")
    x, target_ranks, a, kept = _checked(predictions, targets, weights, mask)
    ranks = soft_rank(x, weights=weights, mask=kept, eps=eps, cost=cost, squash=squash, solver=solver)
    tau = _tau(ranks, target_ranks, _pair_weights(targets, a, kept, pair_weights), margin).to(predictions.dtype)
    return reduce(1.0 - tau, reduction, exists=any_entry(kept))


def kendall(
    predictions: Tensor,
    targets: Tensor,
    *,
    pair_weights: PairWeights = "equal",
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The metric behind ``kendall_loss``: tau-b, ``scipy.stats.kendalltau``, with a defined value for constants (0).

    >>> import torch
    >>> from sinksort.losses import kendall
    >>> kendall(torch.tensor([0.1, 0.4, 0.2, 0.8]), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor(0.6667)
    """
    x, target_ranks, a, kept = _checked(predictions, targets, weights, mask)
    w = _pair_weights(targets, a, kept, pair_weights)
    # Weighted K-ranks of different values may be closer than 1: the metric takes their signs.
    ranks = kantorovich_rank(x, mask=kept)
    return reduce(_tau(ranks, target_ranks, w, 1.0).to(predictions.dtype), reduction, exists=any_entry(kept))


def _checked(
    predictions: Tensor, targets: Tensor, weights: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Predictions and ranks of the targets in full precision, the weights of the entries (rows sum to 1), the mask.

    Squares of ranks overflow in half precision, and large integers would become ties in single precision.
    """
    require_samples(predictions, "predictions")
    targets = require_same_shape(targets, predictions, "targets", "predictions").detach()
    kept = as_mask(mask, predictions, "predictions")
    x = predictions.to(wide_dtype(predictions.device))
    a = torch.ones_like(x)
    if weights is not None:
        a = like_rows(weights, x, -1, "weights").to(x.dtype)
    if kept is not None:
        a = torch.where(kept, a, 0.0)
    total = a.sum(-1, keepdim=True)
    ranks = kantorovich_rank(targets.to(x.dtype), weights=weights, mask=kept)
    return x, ranks, a / torch.where(total > 0, total, 1.0), kept


def _pearson(x: Tensor, y: Tensor, a: Tensor) -> Tensor:
    """(...) correlation of ranks x and y with weights a."""
    x = x - (a * x).sum(-1, keepdim=True)
    y = y - (a * y).sum(-1, keepdim=True)
    return _cosine((a * x * y).sum(-1), (a * x * x).sum(-1), (a * y * y).sum(-1), (x.shape[-1] ** 2 - 1) / 12)


def _tau(x: Tensor, y: Tensor, w: Tensor, margin: float) -> Tensor:
    """(...) Kendall's tau-b of ranks x and y with pair weights w (..., n, n) that sum to 1."""
    sign_x = ((x.unsqueeze(-1) - x.unsqueeze(-2)) / margin).clamp(-1.0, 1.0)
    sign_y = (y.unsqueeze(-1) - y.unsqueeze(-2)).sign()
    unknown = 0.0 * y.sum(-1)  # for torch the sign of NaN is 0

    def inner(s: Tensor, t: Tensor) -> Tensor:
        return (w * s * t).sum((-2, -1))

    return _cosine(inner(sign_x, sign_y), inner(sign_x, sign_x), inner(sign_y, sign_y), 1.0) + unknown


def _cosine(xy: Tensor, xx: Tensor, yy: Tensor, usual: float) -> Tensor:
    """xy / sqrt(xx yy); 0 when y is constant, and with xx = ``usual`` when x is (up to the rounding of soft ranks).

    NaN is no constant: it stays NaN.
    """
    varies = ~(xx <= 1e-11 * max(usual, 1.0))
    defined = ~(yy <= 1e-11)
    xx = torch.where(varies, xx, max(usual, 1.0))
    yy = torch.where(defined, yy, 1.0)
    return torch.where(defined, xy / (xx * yy).sqrt(), 0.0)


def _pair_weights(targets: Tensor, a: Tensor, kept: Tensor | None, how: str) -> Tensor:
    require_choice(how, ("equal", "hyperbolic"), "pair_weights")
    w = a.unsqueeze(-1) * a.unsqueeze(-2)
    if how == "hyperbolic":
        from_top = kantorovich_rank(targets.detach().to(a.dtype), descending=True, mask=kept)
        h = 1.0 / from_top.clamp(min=1.0)
        w = w * (h.unsqueeze(-1) + h.unsqueeze(-2))
    w = w - torch.diag_embed(w.diagonal(dim1=-2, dim2=-1))
    total = w.sum((-2, -1), keepdim=True)
    return w / torch.where(total > 0, total, 1.0)
