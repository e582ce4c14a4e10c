"""The paper's 0/1 and top-k loss (section 4): J_k(L - R[l]) on the soft rank of the true label.

R counts from 1 for the smallest logit to L for the largest, so u = L - R[l] is the number of classes above the label,
and the label is among the top k when u <= k - 1. The metric is the Heaviside function of the excess v = u - k + 1; the
loss replaces it by an increasing J(v) and R by the Sinkhorn rank. Metric and loss share all else. The code counts from
the top, r = L + 1 - R: then v = r - k needs no L, and float32 is most exact where J bends.

What the softness does to the threshold: Sinkhorn ranks are averages, so the best of L classes has a rank a little below
L and v stays above 0 for a label that has already won. J keeps a gradient there, which acts like a margin; it is why
the loss does not reach 0, and why a hard threshold on soft ranks would call right answers wrong. ``rescale`` stretches
the ranks to the spread of hard ones; ``topk_error`` is the exact metric. The rank of the best of L standard normal
logits, on average:

=======  ==========  ==========  ========================
L        eps = 1e-2  eps = 1e-3  eps = 1e-2, ``rescale``
=======  ==========  ==========  ========================
10       9.65        9.95        9.84
100      96.2        99.1        98.0
=======  ==========  ==========  ========================
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.costs import Cost
from ..core.kantorovich import kantorovich_rank
from ..core.solvers import Solver
from ..core.squash import Squash
from ..operators import DEFAULT_SOLVER, soft_rank
from ._common import Reduction, live_count, reduce, require_choice
from ._labels import Labels, Positives, checked_labels
from .membership import membership_loss

_POWER = 0.8  #: of ``membership_loss``: level with cross-entropy on right labels, ahead on wrong ones

#: J by name, as functions of the excess v = u - k + 1 and of the largest excess there can be, L - k.
EXCESS_LOSSES: dict[str, Callable[[Tensor, float | Tensor], Tensor]] = {
    "relu": lambda v, _most: v.relu(),  # the paper's
    "normalized": lambda v, most: (
        v.relu() / (most.clamp(min=1.0) if isinstance(most, Tensor) else max(most, 1.0))
    ),  # the authors' code: in [0, 1]
    "log": lambda v, _most: v.relu().log1p(),  # concave: spends its gradient on labels that are near the top
    "sqrt": lambda v, _most: (1.0 + v.relu()).sqrt() - 1.0,  # between the two; finite slope at 0
    "softplus": lambda v, _most: torch.nn.functional.softplus(v),  # relu without its kink
    "sigmoid": lambda v, _most: (4.0 * (v - 0.5)).sigmoid(),  # a smoothed Heaviside: v is <= 0 or >= 1 for hard ranks
}


def topk_loss(
    logits: Tensor,
    labels: Tensor,
    k: int = 1,
    *,
    J: str | Callable[[Tensor], Tensor] = "membership",
    rescale: bool = False,
    positives: Positives = "all",
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor | None = None,
    cost: Cost = 2,
    squash: Squash = "auto",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """How far the true label is from the k best classes, by their soft mask or by the label's soft rank.

    Args:
        logits: (..., L) scores of the classes.
        labels: (...) integers in [0, L); or (..., p) lists of them, filled up with -1; or (..., L) booleans, which
            zeros and ones have to be made by ``labels.bool()``. A row without a label (all -1) does not count.
        J: ``"membership"`` is ``membership_loss`` with a power of 0.8, on the soft top-k mask. All others are the
            paper's loss, J of the excess v = L - R[l] - k + 1 of the label's soft rank R[l]: ``"relu"`` (the paper's),
            ``"normalized"``, ``"log"``, ``"sqrt"``, ``"softplus"``, ``"sigmoid"`` (see ``EXCESS_LOSSES``), or an
            increasing callable.
        rescale: stretch the ranks of a row to the standard deviation of hard ranks, sqrt((L^2 - 1)/12), as the authors'
            code does. Of an excess only.
        positives: with p labels in a row, ``"all"`` averages over them and counts the other p - 1 out (the loss is 0
            when they fill the top p + k - 1); ``"any"`` takes the best of them (0 when one is among the top k).
        weights: (...) one number a row.
        mask: (..., L) classes that exist.
        eps, squash: by default 2 and None for ``"membership"`` (logits as they are), 1e-2 and ``"sigmoid"`` for the
            paper's loss.

    The paper's loss standardises the logits of a row, so that a network cannot say how sure it is. It learns better
    from logits as they are, ``J="log", squash=None, eps=1.0``.

    >>> import torch
    >>> from sinksort.losses import topk_loss
    >>> logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 3.0]])
    >>> topk_loss(logits, torch.tensor([2, 0]), reduction="none")
    tensor([0.7610, 0.4762])
    >>> topk_loss(logits, torch.tensor([2, 0]), J="relu", eps=1e-4, reduction="none")
    tensor([1., 0.])
    >>> topk_loss(logits, torch.tensor([2, 0]), k=2, J="relu", eps=1e-4)
    tensor(0.)
    """
    by_mask = isinstance(J, str) and J == "membership"
    eps = (2.0 if by_mask else 1e-2) if eps is None else eps
    if isinstance(squash, str) and squash == "auto":
        squash = None if by_mask else "sigmoid"
    if by_mask:
        if rescale:
            raise ValueError("rescale=True stretches ranks, and J='membership' has none; choose another J.")
        return membership_loss(
            logits,
            labels,
            k,
            power=_POWER,
            positives=positives,
            weights=weights,
            mask=mask,
            reduction=reduction,
            eps=eps,
            cost=cost,
            squash=squash,
            solver=solver,
            backend=backend,
        )
    penalty = _penalty(J)
    found, kept = checked_labels(logits, labels, k, mask, positives)
    ranks = soft_rank(
        logits, descending=True, mask=kept, eps=eps, cost=cost, squash=squash, solver=solver, backend=backend
    )
    if rescale:
        ranks = _rescaled(ranks, kept)
    excess, most = _excess(found, ranks, kept, k, positives)
    return reduce(_average(found, penalty(excess, most), positives), reduction, weights, found.any)


def topk_error(
    logits: Tensor,
    labels: Tensor,
    k: int = 1,
    *,
    positives: Positives = "all",
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The metric behind ``topk_loss``: the share of labels that are not among the top k.

    A tie for the last place is an error. With several labels and ``positives="all"``: the share of labels outside the
    top p + k - 1.

    >>> import torch
    >>> from sinksort.losses import topk_error
    >>> topk_error(torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 3.0]]), torch.tensor([2, 0]))
    tensor(0.5000)
    """
    found, kept = checked_labels(logits, labels, k, mask, positives)
    excess, _ = _excess(found, kantorovich_rank(logits, descending=True, mask=kept), kept, k, positives)
    # The Heaviside function, and NaN for NaN: logits that have diverged are not right.
    wrong = torch.where(excess.isnan(), torch.nan, (excess > 0).to(logits.dtype))
    return reduce(_average(found, wrong, positives), reduction, weights, found.any)


def _excess(found: Labels, ranks: Tensor, kept: Tensor | None, k: int, positives: str) -> tuple[Tensor, float | Tensor]:
    """v = r - k of the label or of every class, where r is 1 for the best, and L - k, its largest value."""
    L = float(ranks.shape[-1]) if kept is None else live_count(ranks, kept)
    if found.at is not None:
        return ranks.gather(-1, found.at) - k, L - k
    if positives == "any":
        worse = ranks.shape[-1] + 1.0  # than any rank, and finite: a row without labels passes through J as well
        return torch.where(found.chosen, ranks, worse).amin(-1, keepdim=True) - k, L - k
    others = (found.chosen.sum(-1, keepdim=True) - 1).clamp(min=0)
    return ranks - k - others, L - k - others


def _average(found: Labels, penalty: Tensor, positives: str) -> Tensor:
    """(...) the penalty of the row's labels."""
    if found.at is not None or positives == "any":
        return penalty.squeeze(-1)
    return torch.where(found.chosen, penalty, 0.0).sum(-1) / found.chosen.sum(-1).clamp(min=1)


def _penalty(J: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor, float | Tensor], Tensor]:
    if callable(J):
        function = J
        return lambda v, _most: function(v)
    require_choice(J, ("membership", *EXCESS_LOSSES), "J (unless it is a callable)")
    return EXCESS_LOSSES[J]


def _rescaled(ranks: Tensor, kept: Tensor | None) -> Tensor:
    """Ranks stretched about their mean, (L + 1)/2, to the standard deviation that hard ranks have."""
    L = live_count(ranks, kept)
    centred = ranks - (L + 1) / 2
    if kept is not None:
        centred = torch.where(kept, centred, 0.0)
    variance = centred.square().sum(-1, keepdim=True) / L.clamp(min=1)
    spread = variance > 1e-12 * L.square()
    stretch = torch.where(spread, (L.square() - 1) / 12, 1.0) / torch.where(spread, variance, 1.0)
    return (L + 1) / 2 + centred * stretch.sqrt()
