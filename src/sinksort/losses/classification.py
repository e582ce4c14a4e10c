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
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..core.checks import values_readable
from ..core.costs import Cost
from ..core.kantorovich import kantorovich_rank
from ..core.solvers import Solver
from ..core.squash import Squash
from ..operators import DEFAULT_SOLVER, soft_rank
from ._common import Reduction, as_mask, live_count, reduce, require_choice, require_count, require_rows

Positives: TypeAlias = Literal["all", "any"]

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
    J: str | Callable[[Tensor], Tensor] = "relu",
    rescale: bool = False,
    positives: Positives = "all",
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """How far the true label is from the k best-ranked classes: J(L - R[l] - k + 1), with the soft rank R[l].

    Args:
        logits: (..., L) scores of the classes.
        labels: (...) integers in [0, L); or (..., p) lists of them, filled up with -1; or (..., L) booleans, which
            zeros and ones have to be made by ``labels.bool()``. A row without a label (all -1) does not count.
        J: ``"relu"``, ``"normalized"``, ``"log"``, ``"sqrt"``, ``"softplus"``, ``"sigmoid"`` (see ``EXCESS_LOSSES``),
            or an increasing callable of the excess v.
        rescale: stretch the ranks of a row to the standard deviation of hard ranks, sqrt((L^2 - 1)/12), as the authors'
            code does.
        positives: with p labels in a row, ``"all"`` averages over them and counts the other p - 1 out (the loss is 0
            when they fill the top p + k - 1); ``"any"`` takes the best of them (0 when one is among the top k).
        weights: (...) one number a row.
        mask: (..., L) classes that exist.

    Measured (docs/losses.md) on 400 of scikit-learn's digits, linear classifier, held-out error: with 40% of the labels
    replaced at random 12.1% with J = "log" and 16.5% with "relu" against 13.9% with cross-entropy; with clean labels
    6.4% and 6.9% against 6.2%. For k = 2 cross-entropy was better: prefer it unless labels are wrong.

    A deep network learns better from its logits as they are, ``J="log", squash=None, eps=1.0``: standardised logits
    cannot say how sure it is. On CIFAR-100 that reached cross-entropy's accuracy (docs/results), the default did not.

    >>> import torch
    >>> from sinksort.losses import topk_loss
    >>> logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 3.0]])
    >>> topk_loss(logits, torch.tensor([2, 0]), eps=1e-4, reduction="none")
    tensor([1., 0.])
    >>> topk_loss(logits, torch.tensor([2, 0]), k=2, eps=1e-4)
    tensor(0.)
    """
    found, kept = _checked(logits, labels, k, mask, positives)
    ranks = soft_rank(
        logits, descending=True, mask=kept, eps=eps, cost=cost, squash=squash, solver=solver, backend=backend
    )
    if rescale:
        ranks = _rescaled(ranks, kept)
    excess, most = _excess(found, ranks, kept, k, positives)
    return reduce(_average(found, _penalty(J)(excess, most), positives), reduction, weights, found.any)


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
    found, kept = _checked(logits, labels, k, mask, positives)
    excess, _ = _excess(found, kantorovich_rank(logits, descending=True, mask=kept), kept, k, positives)
    # The Heaviside function, and NaN for NaN: logits that have diverged are not right.
    wrong = torch.where(excess.isnan(), torch.nan, (excess > 0).to(logits.dtype))
    return reduce(_average(found, wrong, positives), reduction, weights, found.any)


class _Labels(NamedTuple):
    """Which classes are labels of a row. On a GPU a small operation takes as long as a large one, and one label a row,
    which is usual, needs few: nothing is averaged.
    """

    at: Tensor | None  #: (..., 1) the one label, where rows have one at most
    chosen: Tensor  #: (...) whether there is one; or (..., L) which classes are labels

    @property
    def any(self) -> Tensor:
        return self.chosen if self.at is not None else self.chosen.any(-1)


def _checked(
    logits: Tensor, labels: Tensor, k: int, mask: Tensor | None, positives: str
) -> tuple[_Labels, Tensor | None]:
    """The labels that exist, and the mask."""
    require_rows(logits, "logits")
    require_choice(positives, ("all", "any"), "positives")
    require_count(k, logits.shape[-1], "k", "the number of classes (the last dimension of logits)")
    kept = as_mask(mask, logits, "logits")
    found = _found(labels, logits)
    if kept is None:
        return found, None
    exist = kept if found.at is None else kept.gather(-1, found.at).squeeze(-1)
    return found._replace(chosen=found.chosen & exist), kept


def _found(labels: Tensor, logits: Tensor) -> _Labels:
    """Labels in any of their three forms."""
    if not isinstance(labels, Tensor):
        raise TypeError(
            f"labels must be a torch.Tensor, got {type(labels).__name__}; wrap them with torch.as_tensor(labels)."
        )
    batch, L = logits.shape[:-1], logits.shape[-1]
    if labels.dtype == torch.bool:
        if labels.shape != logits.shape:
            raise ValueError(
                f"boolean labels must have the shape of logits, {tuple(logits.shape)}, got {tuple(labels.shape)}; "
                "for one class a row pass integers."
            )
        return _Labels(None, labels)
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(
            f"labels must be integers (or booleans, one a class), got {labels.dtype}; call labels.long(), "
            "or labels > 0.5 when they are one-hot."
        )
    if labels.shape != batch and labels.shape[:-1] != batch:
        raise ValueError(
            f"labels must have shape {tuple(batch)} (one class a row), {(*batch, 'p')} (a list of them, filled up "
            f"with -1) for logits of shape {tuple(logits.shape)}, got {tuple(labels.shape)}."
        )
    if values_readable(labels) and labels.numel() and not ((labels >= -1) & (labels < L)).all():
        wrong = labels[(labels < -1) | (labels >= L)].flatten()[0].item()
        raise ValueError(
            f"labels must be in [0, {L - 1}] for {L} classes (or -1 for none), got {wrong}; "
            "classes count from 0, and the last dimension of logits is the classes."
        )
    if labels.shape == batch:
        return _Labels(labels.clamp(min=0).long().unsqueeze(-1), labels >= 0)
    _require_distinct(labels, L)
    # One column more catches the fillers.
    hot = torch.zeros(*batch, L + 1, dtype=torch.bool, device=logits.device)
    at = torch.where(labels < 0, L, labels).long()
    return _Labels(None, hot.scatter(-1, at, torch.ones_like(at, dtype=torch.bool))[..., :L])


def _require_distinct(labels: Tensor, L: int) -> None:
    """A list names a label once. Zeros and ones, one a class, are no list, and would be read as the classes 0 and 1."""
    if not values_readable(labels) or labels.shape[-1] < 2 or labels.numel() == 0:
        return
    ordered = labels.sort(dim=-1).values
    again = (ordered.diff(dim=-1) == 0) & (ordered[..., 1:] >= 0)
    if again.any():
        twice = ordered[..., 1:][again][0].item()
        raise ValueError(
            f"labels must name a class once in a row, but {twice} is there twice; integers are lists of classes, so "
            "zeros and ones, one a class, must be labels.bool()."
        )
    if labels.shape[-1] == L == 2 and (ordered >= 0).all():
        raise ValueError(
            "labels must leave a class out in some row, but all of them name both classes, 0 and 1; integers are lists "
            "of classes, so zeros and ones, one a class, must be labels.bool()."
        )


def _excess(
    found: _Labels, ranks: Tensor, kept: Tensor | None, k: int, positives: str
) -> tuple[Tensor, float | Tensor]:
    """v = r - k of the label or of every class, where r is 1 for the best, and L - k, its largest value."""
    L = float(ranks.shape[-1]) if kept is None else live_count(ranks, kept)
    if found.at is not None:
        return ranks.gather(-1, found.at) - k, L - k
    if positives == "any":
        worse = ranks.shape[-1] + 1.0  # than any rank, and finite: a row without labels passes through J as well
        return torch.where(found.chosen, ranks, worse).amin(-1, keepdim=True) - k, L - k
    others = (found.chosen.sum(-1, keepdim=True) - 1).clamp(min=0)
    return ranks - k - others, L - k - others


def _average(found: _Labels, penalty: Tensor, positives: str) -> Tensor:
    """(...) the penalty of the row's labels."""
    if found.at is not None or positives == "any":
        return penalty.squeeze(-1)
    return torch.where(found.chosen, penalty, 0.0).sum(-1) / found.chosen.sum(-1).clamp(min=1)


def _penalty(J: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor, float | Tensor], Tensor]:
    if callable(J):
        function = J
        return lambda v, _most: function(v)
    require_choice(J, tuple(EXCESS_LOSSES), "J (unless it is a callable)")
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
