"""SoftTorch: four relaxations behind one signature. The ranks of its ``ot`` have our squash, cost and targets."""

from __future__ import annotations

import softtorch
from contest.cells import LEVEL, K
from torch import Tensor

from . import Operator, Site


def operator(variant: str, task: str, n: int, site: Site) -> Operator | None:  # noqa: ARG001 (one signature for all)
    def rank(x: Tensor, softness: float) -> Tensor:
        return softtorch.rank(x, dim=-1, method=variant, softness=softness, descending=False)

    def quantile(x: Tensor, softness: float) -> Tensor:
        return softtorch.quantile(x, LEVEL, dim=-1, method=variant, softness=softness)

    def topk(x: Tensor, softness: float) -> Tensor:
        indices: Tensor = softtorch.topk(x, K, dim=-1, method=variant, softness=softness)[1]
        return indices.sum(-2)

    if task == "topk" and variant == "fast_soft_sort":
        return None  # gives values, but no indices
    return {"rank": rank, "quantile": quantile, "topk": topk}[task]
