"""The smooth top-k SVM loss of "Smooth Loss Functions for Deep Top-k Classification" (Berrada, Zisserman, Kumar, 2018).

A set of k classes scores the mean of its logits, and one point more where it lacks the label. The top-k SVM loss is by
how much the best of all sets is ahead of the best set that has the label. Both maxima become soft, tau log sum exp:

    l(s, y) = tau log sum_{|B| = k} exp((1[y not in B] + sum_{j in B} s_j / k) / tau)
            - tau log sum_{|B| = k, y in B} exp(sum_{j in B} s_j / (k tau)).

Sums over all sets of k classes are elementary symmetric polynomials of e_j = exp(s_j / (k tau)): of the classes other
than y, those of degree k (sets without y) and of degree k - 1 (sets with y, times e_y). They are the coefficients of
prod_j (1 + e_j X), which are found in log space by multiplying halves: no overflow, and O(L k log L) numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.checks import require_floating, values_readable

_NOTHING = -1e30  #: stands for log 0; sums of it stay finite in single precision, and gradients stay zero


def smooth_topk_svm_loss(
    logits: Tensor, labels: Tensor, k: int = 5, *, temperature: float = 1.0, margin: float = 1.0
) -> Tensor:
    """The smooth top-k SVM loss of each row; the paper's alternative to cross-entropy for top-k classification.

    Args:
        logits: (..., L) scores of the classes.
        labels: (...) integers in [0, L).
        k: how many guesses there are, from 1 to L - 1.
        temperature: tau; towards 0 the hard top-k SVM loss.
        margin: what a set without the label gets on top; 1 in the paper.

    For k = 1, ``temperature=1`` and ``margin=0`` it is cross-entropy:

    >>> import torch
    >>> from sinksort.relaxations import smooth_topk_svm_loss
    >>> logits, label = torch.tensor([1.0, 3.0, 2.0]), torch.tensor(2)
    >>> smooth_topk_svm_loss(logits, label, k=1, margin=0.0), torch.nn.functional.cross_entropy(logits, label)
    (tensor(1.4076), tensor(1.4076))
    >>> smooth_topk_svm_loss(logits, label, k=2, temperature=0.01)  # of {0, 1} and its point: 2 + 1, of {1, 2}: 2.5
    tensor(0.5000)
    """
    _check(logits, labels, k, temperature, margin)
    own = labels.long().unsqueeze(-1)
    # A common shift of the logits raises both sums alike.
    scores = (logits - logits.detach().amax(-1, keepdim=True)) / (k * temperature)
    own_score = scores.gather(-1, own).squeeze(-1)
    others = scores.scatter(-1, own, _NOTHING)
    log_sums = _log_symmetric_sums(others, k)
    ahead = margin / temperature + log_sums[..., k] - log_sums[..., k - 1] - own_score
    return temperature * torch.nn.functional.softplus(ahead)


def _log_symmetric_sums(scores: Tensor, k: int) -> Tensor:
    """(..., k + 1): log of the elementary symmetric polynomials of degrees 0 to k of exp(scores)."""
    n = scores.shape[-1]
    padding = 2 ** math.ceil(math.log2(n)) - n
    scores = torch.nn.functional.pad(scores, (0, padding), value=_NOTHING)
    sums = torch.stack([torch.zeros_like(scores), scores], -1)  # (..., factors, degrees): 1 + e X
    while sums.shape[-2] > 1:
        sums = _log_product(sums[..., 0::2, :], sums[..., 1::2, :], k)
    return sums.squeeze(-2)


def _log_product(p: Tensor, q: Tensor, k: int) -> Tensor:
    """Coefficients up to degree k of the products of polynomials (..., degrees), all in log space."""
    size = p.shape[-1]
    degrees = []
    for degree in range(min(2 * (size - 1), k) + 1):
        low, high = max(0, degree - size + 1), min(degree, size - 1)
        terms = p[..., low : high + 1] + q[..., degree - high : degree - low + 1].flip(-1)
        degrees.append(torch.logsumexp(terms, -1).clamp(min=_NOTHING))
    return torch.stack(degrees, -1)


def _check(logits: Tensor, labels: Tensor, k: int, temperature: float, margin: float) -> None:
    require_floating(logits, "logits")
    if logits.ndim == 0 or logits.shape[-1] < 2:
        raise ValueError(
            f"logits must have at least two classes along their last dimension, got shape {tuple(logits.shape)}."
        )
    L = logits.shape[-1]
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k < L:
        raise ValueError(f"k must be an integer between 1 and {L - 1} for {L} classes, got {k!r}.")
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        came = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be a tensor of integers, one class a row, got {came}; call labels.long().")
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels must have shape {tuple(logits.shape[:-1])} (one class a row) for logits of shape "
            f"{tuple(logits.shape)}, got {tuple(labels.shape)}."
        )
    if values_readable(labels) and labels.numel() and not ((labels >= 0) & (labels < L)).all():
        wrong = labels[(labels < 0) | (labels >= L)].flatten()[0].item()
        raise ValueError(f"labels must be in [0, {L - 1}] for {L} classes, got {wrong}; classes count from 0.")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature:g}.")
    if not 0 <= margin < math.inf:
        raise ValueError(f"margin must be a number from 0 up, got {margin:g}.")
