"""SoftJAX: the twin of SoftTorch, compiled."""

from __future__ import annotations

from typing import Any

import softjax
from contest.cells import LEVEL, K

from . import Operator, Site


def operator(variant: str, task: str, n: int, site: Site) -> Operator | None:  # noqa: ARG001 (one signature for all)
    def rank(x: Any, softness: Any) -> Any:
        return softjax.rank(x, axis=-1, method=variant, softness=softness, descending=False)

    def quantile(x: Any, softness: Any) -> Any:
        return softjax.quantile(x, LEVEL, axis=-1, method=variant, softness=softness)

    def topk(x: Any, softness: Any) -> Any:
        return softjax.top_k(x, K, axis=-1, method=variant, softness=softness)[1].sum(-2)

    def sort(x: Any, softness: Any) -> Any:
        return softjax.sort(x, axis=-1, method=variant, softness=softness, descending=False)

    def permutation(x: Any, softness: Any) -> Any:
        return softjax.argsort(x, axis=-1, method=variant, softness=softness, descending=False)

    if task in ("topk", "permutation") and variant == "fast_soft_sort":
        return None  # gives values, but no indices
    tasks = {"rank": rank, "quantile": quantile, "topk": topk, "sort": sort, "permutation": permutation}
    return tasks.get(task)
