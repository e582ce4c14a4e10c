"""OTT-JAX: entropic transport by Sinkhorn, with implicit gradients (its default) or unrolled ones.

Its squash, cost and targets are ours, so the same eps poses the same problem; its quantile gets our width 1/n.
"""

from __future__ import annotations

from typing import Any

from contest.cells import LEVEL, K
from ott.tools import soft_sort

from . import Operator, Site


def operator(variant: str, task: str, n: int, site: Site) -> Operator:  # noqa: ARG001 (one signature for all)
    options: dict[str, Any] = {"implicit_diff": None} if variant == "unrolled" else {}

    def rank(x: Any, eps: Any) -> Any:
        return 1 + soft_sort.ranks(x, epsilon=eps, **options)

    def quantile(x: Any, eps: Any) -> Any:
        return soft_sort.quantile(x, LEVEL, weight=1 / n, epsilon=eps, **options)[..., 0]

    def topk(x: Any, eps: Any) -> Any:
        return soft_sort.topk_mask(x, k=K, epsilon=eps, **options)

    return {"rank": rank, "quantile": quantile, "topk": topk}[task]
