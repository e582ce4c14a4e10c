"""sinksort itself, with its default backend or a named one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from contest.cells import LEVEL, K
from torch import Tensor

import sinksort
from sinksort import losses

from . import Operator, Site
from .derived import beside, learned_eps, learned_weights


def operator(variant: str, task: str, n: int, site: Site, **options: Any) -> Operator | None:  # noqa: ARG001 (one signature for all)
    if variant == "torch":
        if "backend" not in inspect.signature(sinksort.soft_rank).parameters:
            return None
        options["backend"] = "torch"

    def called(function: Callable[..., Any], *data: Any, **more: Any) -> Tensor:
        known = inspect.signature(function).parameters
        found: Tensor = function(*data, **more, **{name: value for name, value in options.items() if name in known})
        return found

    def ranks(x: Tensor, eps: Any, **more: Any) -> Tensor:
        return sinksort.soft_rank(x, eps=eps, **more, **options)

    tasks: dict[str, Operator] = {
        "rank": ranks,
        "rank64": ranks,
        "rank_weights": lambda x, eps: ranks(x, eps, weights=learned_weights(x)),
        "rank_eps": lambda x, eps: ranks(x, learned_eps(x, eps)),
        "rank_cost1": lambda x, eps: ranks(x, eps, cost=1),
        "rank_cost1.5": lambda x, eps: ranks(x, eps, cost=1.5),
        "quantile": lambda x, eps: sinksort.soft_quantile(x, LEVEL, eps=eps, **options),
        "topk": lambda x, eps: sinksort.soft_topk_mask(x, K, eps=eps, **options),
        "sort": lambda x, eps: sinksort.soft_sort(x, eps=eps, **options),
        "permutation": lambda x, eps: sinksort.soft_permutation(x, eps=eps, **options),
        "sort_with": lambda x, eps: called(sinksort.sort_with, beside(task, x), x, eps=eps),
        "normalize": lambda x, eps: called(sinksort.quantile_normalize, x, beside(task, x), eps=eps),
        "spearman": lambda x, eps: called(losses.spearman_loss, x, beside(task, x), eps=eps, reduction="none"),
        "ndcg": lambda x, eps: called(
            losses.ndcg_loss, x, beside(task, x), squash="sigmoid", eps=eps, reduction="none"
        ),
    }
    return tasks[task]
