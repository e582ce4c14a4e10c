"""Every public operator, loss and module as a function of one tensor x (4, 12), for tests that go through all of them.

Whatever else a function takes is made inside the call, with dtype and device named, or derived from x.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import sinksort
import sinksort.nn as snn
from sinksort import losses, relaxations, streaming

ROWS, N = 4, 12
Call = Callable[[Tensor], Any]


def draw(seed: int = 0, dtype: torch.dtype = torch.float32, rows: int = ROWS, n: int = N) -> Tensor:
    drawn = torch.randn(
        rows, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, device=torch.device("cpu")
    )
    return drawn.to(dtype)


def parts(out: Any) -> tuple[Tensor, ...]:
    return tuple(out) if isinstance(out, tuple) else (out,)


def whole(x: Tensor, *numbers: int) -> Tensor:
    """Whole numbers, one for each row or each entry of x in turn."""
    size, shape = (x.numel(), x.shape) if len(numbers) == N else (x.shape[0], x.shape[:1])
    at = torch.tensor(numbers, dtype=torch.int64, device=x.device)
    return at.repeat(-(-size // len(numbers)))[:size].reshape(shape)


def mask_of(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-1], dtype=torch.int64, device=x.device) < x.shape[-1] - 3


def spread(x: Tensor) -> Tensor:
    """Positive weights, one for each value of a row."""
    return torch.linspace(1.0, 2.0, x.shape[-1], dtype=x.dtype, device=x.device)


OPERATORS: dict[str, Call] = {
    "soft_rank": lambda x: sinksort.soft_rank(x),
    "soft_rank, weights": lambda x: sinksort.soft_rank(x, weights=spread(x), descending=True),
    "soft_rank, mask": lambda x: sinksort.soft_rank(x, mask=mask_of(x)),
    "soft_rank, eps of each row": lambda x: sinksort.soft_rank(x, eps=x.detach().square().mean(-1)),
    "soft_sort": lambda x: sinksort.soft_sort(x),
    "soft_sort, mask": lambda x: sinksort.soft_sort(x, mask=mask_of(x)),
    "soft_permutation": lambda x: sinksort.soft_permutation(x),
    "soft_quantile": lambda x: sinksort.soft_quantile(x, 0.3),
    "soft_quantile, levels": lambda x: sinksort.soft_quantile(x, [0.2, 0.9]),
    "soft_quantile, interpolation": lambda x: sinksort.soft_quantile(x, 0.3, interpolation="lower"),
    "soft_median": lambda x: sinksort.soft_median(x),
    "soft_topk": lambda x: sinksort.soft_topk(x, 2),
    "soft_topk_mask": lambda x: sinksort.soft_topk_mask(x, 3),
    "soft_topk_mask, mask": lambda x: sinksort.soft_topk_mask(x, 1.5, mask=mask_of(x)),
    "soft_topk_mask, log": lambda x: sinksort.soft_topk_mask(x, 3, log=True),
    "soft_permutation, log": lambda x: sinksort.soft_permutation(x, log=True),
    "soft_rank, robust": lambda x: sinksort.soft_rank(x, squash="robust"),
    "sort_with": lambda x: sinksort.sort_with(spread(x).expand(x.shape).unsqueeze(-1), x),
    "quantile_normalize": lambda x: sinksort.quantile_normalize(x, spread(x)),
    "transport": lambda x: sinksort.transport(x).matrix(),
    "Sinkhorn": lambda x: sinksort.soft_rank(x, eps=0.5, solver=sinksort.Sinkhorn()),
    "kantorovich_rank": lambda x: sinksort.kantorovich_rank(x),
    "kantorovich_sort": lambda x: sinksort.kantorovich_sort(x, num_targets=3),
    "kantorovich_plan": lambda x: sinksort.kantorovich_plan(x, num_targets=3),
    "transport cost": lambda x: sinksort.transport(x).cost(),
}

LOSSES: dict[str, Call] = {
    "topk_loss": lambda x: losses.topk_loss(x, whole(x, 0, 3, 1), 2),
    "topk_loss, J": lambda x: losses.topk_loss(x, whole(x, 0, 3, 1), 2, J="relu"),
    "membership_loss": lambda x: losses.membership_loss(x, whole(x, 0, 3, 1), 2),
    "topk_error": lambda x: losses.topk_error(x, whole(x, 0, 3, 1), 2),
    "least_quantile_loss": lambda x: losses.least_quantile_loss(x, 0.7),
    "trimmed_loss": lambda x: losses.trimmed_loss(x, 0.1, 0.7),
    "median_of_means": lambda x: losses.median_of_means(x, 3),
    "spearman_loss": lambda x: losses.spearman_loss(x, x.detach().roll(1, -1)),
    "spearman": lambda x: losses.spearman(x, x.roll(1, -1)),
    "kendall_loss": lambda x: losses.kendall_loss(x, x.detach().roll(1, -1)),
    "kendall": lambda x: losses.kendall(x, x.roll(1, -1)),
    "ndcg_loss": lambda x: losses.ndcg_loss(x, whole(x, *[0, 1, 2] * 4), 3),
    "ndcg": lambda x: losses.ndcg(x, whole(x, *[0, 1, 2] * 4), 3),
    "average_precision_loss": lambda x: losses.average_precision_loss(x, whole(x, *[0, 1, 0] * 4)),
    "average_precision": lambda x: losses.average_precision(x, whole(x, *[0, 1, 0] * 4)),
    "reciprocal_rank_loss": lambda x: losses.reciprocal_rank_loss(x, whole(x, *[0, 1, 0] * 4)),
    "reciprocal_rank": lambda x: losses.reciprocal_rank(x, whole(x, *[0, 1, 0] * 4)),
    "recall_at_k_loss": lambda x: losses.recall_at_k_loss(x, whole(x, *[0, 1, 0] * 4), 3),
    "recall_at_k": lambda x: losses.recall_at_k(x, whole(x, *[0, 1, 0] * 4), 3),
    "permutation_cross_entropy": lambda x: losses.permutation_cross_entropy(x, whole(x, *range(1, 13))),
    "partial_order_loss": lambda x: losses.partial_order_loss(
        x, whole(x, *range(1, 13)), whole(x, *range(1, 13)).clamp(min=4)
    ),
    "permutation_accuracy": lambda x: losses.permutation_accuracy(x, whole(x, *range(1, 13))),
    "quantile_parity_loss": lambda x: losses.quantile_parity_loss(x, whole(x, *[0, 1] * 6), num_groups=2),
    "quantile_parity": lambda x: losses.quantile_parity(x, whole(x, *[0, 1] * 6), num_groups=2),
    "knn_loss": lambda x: losses.knn_loss(x, whole(x, *[0, 1] * 6), whole(x, 0, 1), k=3, num_classes=2),
    "soft_knn_vote": lambda x: losses.soft_knn_vote(x, whole(x, *[0, 1] * 6), k=3, num_classes=2),
    "conformal_size_loss": lambda x: losses.conformal_size_loss(x, x.unsqueeze(-1).expand(*x.shape, 5), 0.3),
    "soft_conformal_quantile": lambda x: losses.soft_conformal_quantile(x, 0.3),
    "conformal_quantile": lambda x: losses.conformal_quantile(x, 0.3),
}

MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "SoftRank": lambda: snn.SoftRank(),
    "SoftSort": lambda: snn.SoftSort(),
    "SoftQuantile": lambda: snn.SoftQuantile(0.3),
    "SoftTopK": lambda: snn.SoftTopK(2),
    "QuantilePool": lambda: snn.QuantilePool((0.2, 0.7), -1),
}

RELAXATIONS: dict[str, Call] = {
    f"{name} by {method}": functools.partial(getattr(relaxations, name), method=method)
    for name, methods in relaxations.OPERATIONS.items()
    for method in methods
}

#: These go through the values several times, and look at them.
STREAMED: dict[str, Call] = {
    "streaming.soft_rank": lambda x: torch.cat(list(streaming.soft_rank([x[:, :5], x[:, 5:]])), -1),
    "streaming.soft_median": lambda x: streaming.soft_median([x[:, :5], x[:, 5:]]),
    "streaming.soft_quantile": lambda x: streaming.soft_quantile([x[:, :5], x[:, 5:]], 0.3),
    "streaming.soft_topk_mask": lambda x: torch.cat(list(streaming.soft_topk_mask([x[:, :5], x[:, 5:]], 3)), -1),
    "smooth_transport": lambda x: sinksort.smooth_transport(x).ranks(),
}
