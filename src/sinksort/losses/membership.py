"""-log of the soft top-k mask at the label: cross-entropy for the question whether a label is among the k best.

The mask m of a row is in [0, 1] and sums to k. For k = 1 it is a distribution over the classes, and the loss is a
cross-entropy whose competitors share one threshold; for larger k a class pays nothing for others that are above it, as
long as there are at most k - 1 of them. At eps -> 0 the loss is 0 for a label among the k best. For any other label it
is 1/eps times how far its logit lies below the threshold, so it never flattens. Everything is computed from logarithms
(``soft_topk_mask(..., log=True)``).

A wrong label then has a say that grows without end. With a ``power`` q the loss is (1 - m^q) / q instead, which is at
most 1/q, and has the logarithm as its limit at q -> 0 (for cross-entropy: Zhang and Sabuncu 2018). ``topk_loss`` is
this loss with a power of 0.8, which is level with cross-entropy where labels are right and far ahead where many are
wrong (benchmarks/results/training.md).

Logits are taken as they are: a network that may let them grow can say how sure it is. Of standardised logits all rows
are equally soft for ever, and the gradient of a right answer never ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.costs import Cost
from ..core.solvers import Solver
from ..core.squash import Squash
from ..operators import DEFAULT_SOLVER, soft_topk_mask
from ._common import Reduction, in_single, reduce
from ._labels import Labels, Positives, checked_labels


def membership_loss(
    logits: Tensor,
    labels: Tensor,
    k: int = 1,
    *,
    p_k: Sequence[float] | None = None,
    power: float = 0.0,
    positives: Positives = "all",
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 1.0,
    cost: Cost = 2,
    squash: Squash = None,
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """Minus the logarithm of how much the label belongs to the k best classes, or its bounded relative.

    Args:
        logits: (..., L) scores of the classes.
        labels: (...) integers in [0, L); or (..., p) lists of them, filled up with -1; or (..., L) booleans. A row
            without a label does not count.
        p_k: instead of k, how much k = 1, 2, ... matter, numbers that sum to 1 (as in difftopk): the loss is
            -log sum_k p_k m_k, with m_k the mask of the k best.
        power: q in [0, 1] of (1 - m^q) / q; 0 is -log m. Larger forgives wrong labels, and learns more slowly when
            there are very many classes.
        positives: with p labels in a row, ``"all"`` averages over them, in a mask of k + p - 1 classes, so that they do
            not compete; ``"any"`` takes the best of them.
        weights: (...) one number a row.
        mask: (..., L) classes that exist.
        squash: None takes logits as they are. Others standardise each row, and want a smaller eps.

    >>> import torch
    >>> from sinksort.losses import membership_loss
    >>> logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 3.0]])
    >>> membership_loss(logits, torch.tensor([2, 0]), k=2, reduction="none")
    tensor([0.2852, 0.0437])
    >>> membership_loss(logits, torch.tensor([2, 0]), p_k=(0.5, 0.5))
    tensor(0.4378)
    """
    if isinstance(power, bool) or not isinstance(power, (int, float)) or not 0 <= power <= 1:
        raise ValueError(f"power must be a number in [0, 1], got {power!r}; 0 is the logarithm, 1 is 1 - membership.")
    found, kept, counts = _posed(logits, labels, k, p_k, mask, positives)
    others = _others(found, positives)
    each = []
    for count, share in counts:
        wanted: int | Tensor = count
        if isinstance(others, Tensor):
            wanted = (count + others).clamp(max=logits.shape[-1]).to(logits.dtype)
        log_m = soft_topk_mask(
            in_single(logits),
            wanted,
            mask=kept,
            log=True,
            eps=eps,
            cost=cost,
            squash=squash,
            solver=solver,
            backend=backend,
        )
        log_m = log_m.gather(-1, found.at) if found.at is not None else log_m
        each.append(log_m if share == 1.0 else log_m + (math.log(share) if share > 0.0 else -math.inf))
    log_m = each[0] if len(each) == 1 else torch.stack(each).logsumexp(0)
    loss = _of_labels(found, -log_m if power == 0 else -torch.expm1(power * log_m) / power, positives)
    return reduce(loss.to(logits.dtype), reduction, weights, found.any)


def _posed(
    logits: Tensor, labels: Tensor, k: int, p_k: Sequence[float] | None, mask: Tensor | None, positives: str
) -> tuple[Labels, Tensor | None, list[tuple[int, float]]]:
    """Labels, mask, and which k count how much."""
    if p_k is None:
        found, kept = checked_labels(logits, labels, k, mask, positives)
        return found, kept, [(k, 1.0)]
    shares = [float(p) for p in p_k]
    found, kept = checked_labels(logits, labels, max(len(shares), 1), mask, positives)
    if k != 1 or not shares or min(shares) < 0 or abs(sum(shares) - 1.0) > 1e-6:
        raise ValueError(
            f"p_k must be non-negative numbers for k = 1, 2, ... that sum to 1, without k beside them, got p_k = "
            f"{tuple(shares)} and k = {k}."
        )
    return found, kept, [(k, share) for k, share in enumerate(shares, 1) if share > 0]


def _others(found: Labels, positives: str) -> Tensor | None:
    """(...) how many labels a row has beside one."""
    if found.at is not None or positives == "any":
        return None
    return (found.chosen.sum(-1) - 1).clamp(min=0)


def _of_labels(found: Labels, loss: Tensor, positives: str) -> Tensor:
    """(...) from the loss of each class, or of the one label (..., 1)."""
    if found.at is not None:
        return torch.where(found.chosen, loss.squeeze(-1), 0.0)
    if positives == "any":
        best = torch.where(found.chosen, loss, torch.inf).amin(-1)
        return torch.where(found.any, best, 0.0)
    return torch.where(found.chosen, loss, 0.0).sum(-1) / found.chosen.sum(-1).clamp(min=1)
