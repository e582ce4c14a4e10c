"""The paper's method as it is usually written: eager Sinkhorn iterations in the log domain, unrolled by autograd.

In the dtype of x (float32 here), with the squash, cost, targets and eps of sinksort, so that the answers agree up to
the tolerance: the column marginal within 1e-3 in L1 (Algorithm 2's eta), at most 2000 iterations.
"""

from __future__ import annotations

import torch
from contest.cells import LEVEL, K
from torch import Tensor

from . import Operator, Site
from .derived import beside, learned_eps, learned_weights, ndcg_of_permutation, of_ranks

TOLERANCE = 1e-3
ITERATIONS = 2000


def sinkhorn(x: Tensor, y: Tensor, b: Tensor, eps: float | Tensor, a: Tensor | None = None, p: float = 2) -> Tensor:
    """The plan (rows, n, m) between squashed rows x, with weights a (None: equal), and targets y with weights b."""
    a = torch.full_like(x, 1 / x.shape[-1]) if a is None else a / a.sum(-1, keepdim=True)
    mean = (a * x).sum(-1, keepdim=True)
    z = (x - mean) / (a * (x - mean).square()).sum(-1, keepdim=True).sqrt()
    eps = eps.reshape(-1, 1, 1) if isinstance(eps, Tensor) else eps
    far = torch.sigmoid(z).unsqueeze(-1) - y
    cost = (far.square() if p == 2 else far.abs().pow(p)) / eps
    f, log_a, log_b = torch.zeros_like(x), a.log(), b.log()
    for _ in range(ITERATIONS):
        g = log_b - torch.logsumexp(f.unsqueeze(-1) - cost, -2)
        f = -torch.logsumexp(g.unsqueeze(-2) - cost, -1) + log_a
        with torch.no_grad():
            off = (torch.logsumexp(f.unsqueeze(-1) - cost, -2) + g).exp().sub(b).abs().sum(-1)
            if not (off > TOLERANCE).any():
                break
    return (f.unsqueeze(-1) + g.unsqueeze(-2) - cost).exp()


def operator(variant: str, task: str, n: int, site: Site) -> Operator:  # noqa: ARG001 (one signature for all)
    def weighted(x: Tensor, weights: list[float]) -> tuple[Tensor, Tensor]:
        return torch.linspace(0, 1, len(weights), device=x.device, dtype=x.dtype), x.new_tensor(weights)

    def plan(x: Tensor, eps: float | Tensor, a: Tensor | None = None, p: float = 2) -> tuple[Tensor, Tensor]:
        """The plan onto n equal targets, and their weights."""
        y, b = torch.linspace(0, 1, n, device=x.device, dtype=x.dtype), x.new_full((n,), 1 / n)
        return sinkhorn(x, y, b, eps, a, p), b

    def rank(x: Tensor, eps: float | Tensor, a: Tensor | None = None, p: float = 2) -> Tensor:
        P, b = plan(x, eps, a, p)
        return n * (P @ b.cumsum(0)) / P.sum(-1)

    def quantile(x: Tensor, eps: float) -> Tensor:
        y, b = weighted(x, [LEVEL - 0.5 / n, 1 / n, 1 - LEVEL - 0.5 / n])
        return n * (sinkhorn(x, y, b, eps)[..., 1] * x).sum(-1)

    def topk(x: Tensor, eps: float) -> Tensor:
        y, b = weighted(x, [1 - K / n, K / n])
        return n * sinkhorn(x, y, b, eps)[..., 1]

    def carried(values: Tensor, x: Tensor, eps: float) -> Tensor:
        P, _ = plan(x, eps)
        return (P.mT @ values.unsqueeze(-1)).squeeze(-1) / P.sum(-2)

    def normalize(x: Tensor, eps: float) -> Tensor:
        P, _ = plan(x, eps)
        return n * (P @ beside(task, x).sort(-1).values.unsqueeze(-1)).squeeze(-1)

    tasks: dict[str, Operator] = {
        **of_ranks(rank),
        "rank_weights": lambda x, eps: rank(x, eps, learned_weights(x)),
        "rank_eps": lambda x, eps: rank(x, learned_eps(x, eps)),
        "rank_cost1": lambda x, eps: rank(x, eps, p=1),
        "rank_cost1.5": lambda x, eps: rank(x, eps, p=1.5),
        "quantile": quantile,
        "topk": topk,
        "sort": lambda x, eps: carried(x, x, eps),
        "sort_with": lambda x, eps: carried(beside(task, x), x, eps),
        "permutation": lambda x, eps: n * plan(x, eps)[0].mT,
        "normalize": normalize,
        "ndcg": lambda x, eps: ndcg_of_permutation(n * plan(x, eps)[0].mT, x),
    }
    return tasks[task]
