"""sinksort itself, with its default backend or a named one."""

from __future__ import annotations

import inspect
from typing import Any

from contest.cells import LEVEL, K
from torch import Tensor

import sinksort

from . import Operator, Site


def operator(variant: str, task: str, n: int, site: Site) -> Operator | None:  # noqa: ARG001 (one signature for all)
    options: dict[str, Any] = {}
    if variant == "torch":
        if "backend" not in inspect.signature(sinksort.soft_rank).parameters:
            return None
        options["backend"] = "torch"

    def rank(x: Tensor, eps: float) -> Tensor:
        return sinksort.soft_rank(x, eps=eps, **options)

    def quantile(x: Tensor, eps: float) -> Tensor:
        return sinksort.soft_quantile(x, LEVEL, eps=eps, **options)

    def topk(x: Tensor, eps: float) -> Tensor:
        return sinksort.soft_topk_mask(x, K, eps=eps, **options)

    return {"rank": rank, "quantile": quantile, "topk": topk}[task]
