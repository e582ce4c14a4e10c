"""The paper's method as it is usually written: eager Sinkhorn iterations in the log domain, unrolled by autograd.

In the dtype of x (float32 here), with the squash, cost, targets and eps of sinksort, so that the answers agree up to
the tolerance: the column marginal within 1e-3 in L1 (Algorithm 2's eta), at most 2000 iterations.
"""

from __future__ import annotations

import torch
from contest.cells import LEVEL, K
from torch import Tensor

from . import Operator, Site

TOLERANCE = 1e-3
ITERATIONS = 2000


def sinkhorn(x: Tensor, y: Tensor, b: Tensor, eps: float) -> Tensor:
    """The plan (rows, n, m) between squashed rows x, equally weighted, and targets y with weights b."""
    z = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, correction=0)
    cost = (torch.sigmoid(z).unsqueeze(-1) - y).square() / eps
    n = x.shape[-1]
    f, log_b = torch.zeros_like(x), b.log()
    for _ in range(ITERATIONS):
        g = log_b - torch.logsumexp(f.unsqueeze(-1) - cost, -2)
        f = -torch.logsumexp(g.unsqueeze(-2) - cost, -1) - x.new_tensor(n).log()
        with torch.no_grad():
            off = (torch.logsumexp(f.unsqueeze(-1) - cost, -2) + g).exp().sub(b).abs().sum(-1)
            if not (off > TOLERANCE).any():
                break
    return (f.unsqueeze(-1) + g.unsqueeze(-2) - cost).exp()


def operator(variant: str, task: str, n: int, site: Site) -> Operator:  # noqa: ARG001 (one signature for all)
    def weighted(x: Tensor, weights: list[float]) -> tuple[Tensor, Tensor]:
        return torch.linspace(0, 1, len(weights), device=x.device, dtype=x.dtype), x.new_tensor(weights)

    def rank(x: Tensor, eps: float) -> Tensor:
        y, b = torch.linspace(0, 1, n, device=x.device, dtype=x.dtype), x.new_full((n,), 1 / n)
        return n * (n * sinkhorn(x, y, b, eps) @ b.cumsum(0))

    def quantile(x: Tensor, eps: float) -> Tensor:
        y, b = weighted(x, [LEVEL - 0.5 / n, 1 / n, 1 - LEVEL - 0.5 / n])
        return n * (sinkhorn(x, y, b, eps)[..., 1] * x).sum(-1)

    def topk(x: Tensor, eps: float) -> Tensor:
        y, b = weighted(x, [1 - K / n, K / n])
        return n * sinkhorn(x, y, b, eps)[..., 1]

    return {"rank": rank, "quantile": quantile, "topk": topk}[task]
