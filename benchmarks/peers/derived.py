"""Tasks that follow from soft ranks in the same way whatever library they come from, and what goes with the values."""

from __future__ import annotations

import functools

import torch
from contest.cells import companion
from torch import Tensor

from . import Operator


@functools.lru_cache(maxsize=8)
def _beside(task: str, batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.from_numpy(companion(task, batch, n)).to(device, dtype)


def beside(task: str, x: Tensor) -> Tensor:
    """What goes with values: payloads, references, targets or grades."""
    return _beside(task, *x.shape, x.dtype, x.device)


def learned_weights(x: Tensor) -> Tensor:
    """Weights that a network would give beside its scores: gradients go through them too."""
    return x.flip(-1).sigmoid()


def learned_eps(x: Tensor, eps: float) -> Tensor:
    """An entropy for each row that depends on the row."""
    return eps * (1.0 + 0.1 * x.mean(-1).tanh())


def _discounts(grades: Tensor) -> Tensor:
    """Of places from the top down."""
    places = torch.arange(1, grades.shape[-1] + 1, device=grades.device, dtype=grades.dtype)
    return 1.0 / (1.0 + places).log2()


def _most(grades: Tensor) -> Tensor:
    """The largest sum of discounted grades."""
    return (grades.sort(-1, descending=True).values * _discounts(grades)).sum(-1)


def ndcg_of_permutation(P: Tensor, x: Tensor) -> Tensor:
    """The NDCG loss that averages the discount over all places of an item; rows of P are places from the bottom up."""
    grades = beside("ndcg", x)
    placed = (P @ grades.unsqueeze(-1)).squeeze(-1)
    return 1.0 - (placed * _discounts(grades).flip(-1)).sum(-1) / _most(grades)


def of_ranks(rank: Operator) -> dict[str, Operator]:
    """Ranks in float64, and two losses of ranks."""

    def spearman(x: Tensor, parameter: float) -> Tensor:
        mine = rank(x, parameter)
        true = beside("spearman", x).argsort(-1).argsort(-1).to(x.dtype)
        mine, true = mine - mine.mean(-1, keepdim=True), true - true.mean(-1, keepdim=True)
        return 1.0 - (mine * true).sum(-1) / (mine.norm(dim=-1) * true.norm(dim=-1))

    def ndcg(x: Tensor, parameter: float) -> Tensor:
        grades = beside("ndcg", x)
        place = x.shape[-1] + 1.0 - rank(x, parameter)
        return 1.0 - (grades / (1.0 + place).log2()).sum(-1) / _most(grades)

    return {"rank": rank, "rank64": rank, "spearman": spearman, "ndcg": ndcg}
