"""OTT-JAX: entropic transport by Sinkhorn, with implicit gradients (its default) or unrolled ones.

Its squash, cost and targets are ours, so the same eps poses the same problem; its quantile gets our width 1/n.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from contest.cells import LEVEL, K, companion
from ott.tools import soft_sort

from . import Operator, Site


def operator(variant: str, task: str, n: int, site: Site) -> Operator | None:  # noqa: ARG001 (one signature for all)
    options: dict[str, Any] = {"implicit_diff": None} if variant == "unrolled" else {}

    def rank(x: Any, eps: Any) -> Any:
        return 1 + soft_sort.ranks(x, epsilon=eps, **options)

    def quantile(x: Any, eps: Any) -> Any:
        return soft_sort.quantile(x, LEVEL, weight=1 / n, epsilon=eps, **options)[..., 0]

    def topk(x: Any, eps: Any) -> Any:
        return soft_sort.topk_mask(x, k=K, epsilon=eps, **options)

    def sort(x: Any, eps: Any) -> Any:
        return soft_sort.sort(x, epsilon=eps, **options)

    def plan(row: Any, eps: Any) -> Any:
        equal = jax.numpy.full(n, 1 / n)
        return soft_sort.transport_for_sort(row, equal, equal, epsilon=eps, **options)

    def permutation(x: Any, eps: Any) -> Any:
        return n * jax.vmap(lambda row: plan(row, eps).matrix.T)(x)

    def sort_with(x: Any, eps: Any) -> Any:
        return n * jax.vmap(lambda row, values: plan(row, eps).apply(values, axis=0))(x, companion(task, *x.shape))

    def normalize(x: Any, eps: Any) -> Any:
        levels = np.sort(companion(task, *x.shape), -1)
        return n * jax.vmap(lambda row, values: plan(row, eps).apply(values, axis=1))(x, levels)

    tasks = {
        "rank": rank, "quantile": quantile, "topk": topk, "sort": sort, "permutation": permutation,
        "sort_with": sort_with, "normalize": normalize,
    }  # fmt: skip
    return tasks.get(task)
