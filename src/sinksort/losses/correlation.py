"""Rank correlations: Spearman's and Kendall's, with the predictions' ranks soft and the targets' ranks exact.

Both are written once as a function of two vectors of ranks; the metric gives it K-ranks twice. Ties share a rank
(average), as in SciPy. A correlation with a constant is 0/0 and is defined as 0 here: the loss is 1, never NaN. When it
is the *predictions* that are all equal, as at the start of a training, the deviation of hard ranks stands in for
theirs, so that there is a gradient to leave that point with.

Ranks come in the precision of the predictions, and single precision at least; what is summed over them is summed in
double precision. Both correlations take O(n log n) time and memory linear in n, Kendall's by ``_pairs``.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from ..core.costs import Cost
from ..core.cotangents import one_at_a_time
from ..core.kantorovich import hard_ranks, kantorovich_rank
from ..core.modes import ordinary
from ..core.problem import like_rows, wide_dtype
from ..core.solvers import Solver
from ..core.squash import Squash
from ..operators import DEFAULT_SOLVER, soft_rank
from ._common import (
    Reduction,
    any_entry,
    as_mask,
    in_single,
    reduce,
    require_choice,
    require_same_shape,
    require_samples,
)
from ._pairs import pair_sums

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
    backend: str = "auto",
) -> Tensor:
    """One minus Spearman's rho of each row: 0 for the same order, 1 for no relation, 2 for the reversed order.

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
    target_ranks, a, kept = _checked(predictions, targets, weights, mask)
    ranks = soft_rank(
        in_single(predictions), weights=weights, mask=kept, eps=eps, cost=cost, squash=squash, solver=solver,
        backend=backend,
    )  # fmt: skip
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
    target_ranks, a, kept = _checked(predictions, targets, weights, mask)
    ranks = _hard(predictions, weights, kept)
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
    backend: str = "auto",
) -> Tensor:
    """One minus Kendall's tau-b of each row, weighted towards the top if wanted.

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
    target_ranks, a, kept = _checked(predictions, targets, weights, mask)
    ranks = soft_rank(
        in_single(predictions), weights=weights, mask=kept, eps=eps, cost=cost, squash=squash, solver=solver,
        backend=backend,
    )  # fmt: skip
    shares = _pair_shares(targets, a, kept, pair_weights)
    tau = _tau(ranks, target_ranks, shares, margin).to(predictions.dtype)
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
    target_ranks, a, kept = _checked(predictions, targets, weights, mask)
    shares = _pair_shares(targets, a, kept, pair_weights)
    # Weighted K-ranks of different values may be closer than 1: the metric takes their signs.
    ranks = hard_ranks(predictions, kept)
    return reduce(_tau(ranks, target_ranks, shares, 1.0).to(predictions.dtype), reduction, exists=any_entry(kept))


def _checked(
    predictions: Tensor, targets: Tensor, weights: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Ranks of the targets, the weights of the entries (rows sum to 1, None if all are equal), the mask."""
    require_samples(predictions, "predictions")
    targets = require_same_shape(targets, predictions, "targets", "predictions").detach()
    kept = as_mask(mask, predictions, "predictions")
    if weights is None and kept is None:
        return hard_ranks(targets), None, None
    wide = wide_dtype(predictions.device)
    a = torch.ones_like(predictions, dtype=wide)
    if weights is not None:
        a = like_rows(weights, predictions, -1, "weights").to(wide)
    if kept is not None:
        a = torch.where(kept, a, 0.0)
    total = a.sum(-1, keepdim=True)
    return _hard(targets, weights, kept), a / torch.where(total > 0, total, 1.0), kept


def _hard(values: Tensor, weights: Tensor | None, kept: Tensor | None) -> Tensor:
    """Exact ranks in wide dtype. Large integers would become ties in single precision."""
    if weights is None:
        return hard_ranks(values, kept)
    return kantorovich_rank(values.to(wide_dtype(values.device)), weights=weights, mask=kept)


# ---- Spearman's rho


def _pearson(x: Tensor, y: Tensor, a: Tensor | None) -> Tensor:
    """(...) correlation of ranks x and y with weights a, or with equal weights."""
    if ordinary() and not y.requires_grad and not (a is not None and a.requires_grad):
        rho: Tensor = _Pearson.apply(x, y, a)  # type: ignore[no-untyped-call]
        return rho
    return _correlated(x.to(y.dtype), y, a)


def _correlated(x: Tensor, y: Tensor, a: Tensor | None) -> Tensor:
    x, y = _centred(x, a), _centred(y, a)
    return _cosine(_mean(x * y, a), _mean(x * x, a), _mean(y * y, a), _usual(x)).squeeze(-1)


def _centred(x: Tensor, a: Tensor | None) -> Tensor:
    return x - _mean(x, a)


def _mean(x: Tensor, a: Tensor | None) -> Tensor:
    """(..., 1)."""
    return x.mean(-1, keepdim=True) if a is None else (a * x).sum(-1, keepdim=True)


def _usual(x: Tensor) -> float:
    """The variance of hard ranks."""
    return max((x.shape[-1] ** 2 - 1) / 12, 1.0)


class _Pearson(torch.autograd.Function):
    """``_correlated`` with its gradient in x written out, as one step of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, a: Tensor | None) -> Tensor:
        u, v = _centred(x.to(y.dtype), a), _centred(y, a)
        xy, xx, yy = _mean(u * v, a), _mean(u * u, a), _mean(v * v, a)
        rho = _cosine(xy, xx, yy, _usual(x))
        ctx.save_for_backward(x, y, a, u, v, xx, yy, rho)
        return rho.squeeze(-1)

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, None, None]:
        x, y, a, u, v, xx, yy, rho = ctx.saved_tensors
        if torch.is_grad_enabled():
            own = x.view_as(x)
            again = _correlated(own.to(y.dtype), y, a)
            return torch.autograd.grad(again, own, cotangent, create_graph=True)[0], None, None
        # d rho = (v / sqrt(xx yy) - rho u / xx) a dx; where x is constant, xx is a constant too.
        varies, defined, usual = *_defined(xx, yy, _usual(x)), _usual(x)
        along = torch.where(defined, cotangent.unsqueeze(-1), 0.0)
        along = along / x.shape[-1] if a is None else along
        spread = torch.where(varies, xx, usual)
        towards = along / (spread * torch.where(defined, yy, 1.0)).sqrt()
        grad = towards * v - torch.where(varies, along * rho / spread, 0.0) * u
        return (grad if a is None else a * grad).to(x.dtype), None, None


def _defined(xx: Tensor, yy: Tensor, usual: float) -> tuple[Tensor, Tensor]:
    """Whether x varies, beyond the rounding of soft ranks, and whether y does. NaN is no constant: it stays NaN."""
    return ~(xx <= 1e-11 * usual), ~(yy <= 1e-11)


def _cosine(xy: Tensor, xx: Tensor, yy: Tensor, usual: float) -> Tensor:
    """xy / sqrt(xx yy); 0 when y is constant, and with xx = ``usual`` when x is."""
    varies, defined = _defined(xx, yy, usual)
    xx = torch.where(varies, xx, usual)
    yy = torch.where(defined, yy, 1.0)
    return torch.where(defined, xy / (xx * yy).sqrt(), 0.0)


# ---- Kendall's tau


def _tau(x: Tensor, y: Tensor, shares: list[tuple[Tensor, Tensor]], margin: float) -> Tensor:
    """(...) Kendall's tau-b of ranks x and y; see ``_pairs`` for the weights of the pairs."""
    xy, xx, yy, whole = pair_sums(x.to(y.dtype), y, shares, margin)
    whole = torch.where(whole > 0, whole, 1.0)
    unknown = 0.0 * y.sum(-1)  # NaN in the targets is no order
    return _cosine(xy / whole, xx / whole, yy / whole, 1.0).squeeze(-1) + unknown


def _pair_shares(targets: Tensor, a: Tensor | None, kept: Tensor | None, how: str) -> list[tuple[Tensor, Tensor]]:
    """Pairs (l, r) of (..., n): the pair of entries i and j has the weight of the sum of l_i r_j."""
    require_choice(how, ("equal", "hyperbolic"), "pair_weights")
    if a is None:
        a = torch.full_like(targets, 1.0 / targets.shape[-1], dtype=wide_dtype(targets.device))
    if how == "equal":
        return [(a, a)]
    from_top = hard_ranks(targets, kept, descending=True)
    h = a / from_top.clamp(min=1.0)
    return [(a, h), (h, a)]
