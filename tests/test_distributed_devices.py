"""Values on accelerators where there are some: gloo carries them for several ranks, NCCL for one rank a device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sinksort
import sinksort.distributed as spread
from tests.processes import Team, raised

SETUPS = [("gloo", "cpu", 2)]
if torch.cuda.is_available():
    SETUPS += [("gloo", "cuda", 2), ("nccl", "cuda", torch.cuda.device_count())]


def all_of_them(rank: int, size: int, x: Tensor, device: str) -> tuple[Tensor, ...]:
    shard = x.tensor_split(size, dim=-1)[rank].to(device).requires_grad_()
    ranks = spread.soft_rank(shard, eps=0.05)
    (grad,) = torch.autograd.grad(ranks.square().sum(), shard)
    shard = shard.detach()
    masks, quantile = spread.soft_topk_mask(shard, 200, eps=0.05), spread.soft_median(shard, eps=0.05)
    assert {t.device.type for t in (ranks, grad, masks, quantile)} == {device}
    return ranks.detach().cpu(), grad.cpu(), masks.cpu(), quantile.cpu()


@pytest.mark.parametrize(("backend", "device", "size"), SETUPS)
def test_every_backend_and_device(backend: str, device: str, size: int) -> None:
    x = torch.randn(2, 3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    team = Team(size, backend=backend)
    try:
        answers = team.run(all_of_them, x, device)
    finally:
        team.close()
    raised(answers)
    ranks, grads, masks, quantiles = zip(*answers, strict=True)
    leaf = x.clone().requires_grad_()
    truth = sinksort.soft_rank(leaf, eps=0.05)
    truth.square().sum().backward()
    torch.testing.assert_close(torch.cat(ranks, dim=-1), truth.detach(), rtol=0, atol=1e-9 * 3000)
    torch.testing.assert_close(torch.cat(grads, dim=-1), leaf.grad, rtol=1e-8, atol=1e-8 * leaf.grad.abs().max().item())
    torch.testing.assert_close(torch.cat(masks, dim=-1), sinksort.soft_topk_mask(x, 200, eps=0.05), rtol=0, atol=2e-9)
    for quantile in quantiles:
        torch.testing.assert_close(quantile, sinksort.soft_median(x, eps=0.05), rtol=0, atol=2e-9)
