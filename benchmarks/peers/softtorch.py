"""SoftTorch: four relaxations behind one signature. The ranks of its ``ot`` have our squash, cost and targets."""

from __future__ import annotations

import softtorch
from contest.cells import LEVEL, K
from torch import Tensor

from . import Operator, Site
from .derived import beside, of_ranks


def operator(variant: str, task: str, n: int, site: Site) -> Operator | None:  # noqa: ARG001 (one signature for all)
    def rank(x: Tensor, softness: float) -> Tensor:
        return softtorch.rank(x, dim=-1, method=variant, softness=softness, descending=False)

    def quantile(x: Tensor, softness: float) -> Tensor:
        return softtorch.quantile(x, LEVEL, dim=-1, method=variant, softness=softness)

    def topk(x: Tensor, softness: float) -> Tensor:
        indices: Tensor = softtorch.topk(x, K, dim=-1, method=variant, softness=softness)[1]
        return indices.sum(-2)

    def sort(x: Tensor, softness: float) -> Tensor:
        values: Tensor = softtorch.sort(x, dim=-1, method=variant, softness=softness, descending=False)[0]
        return values

    def permutation(x: Tensor, softness: float) -> Tensor:
        places: Tensor = softtorch.argsort(x, dim=-1, method=variant, softness=softness, descending=False)
        return places

    def sort_with(x: Tensor, softness: float) -> Tensor:
        return (permutation(x, softness) @ beside("sort_with", x).unsqueeze(-1)).squeeze(-1)

    if task in ("topk", "permutation", "sort_with") and variant == "fast_soft_sort":
        return None  # gives values, but no indices
    tasks: dict[str, Operator] = {
        **of_ranks(rank), "quantile": quantile, "topk": topk, "sort": sort, "permutation": permutation,
        "sort_with": sort_with,
    }  # fmt: skip
    return tasks.get(task)
