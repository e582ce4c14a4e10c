"""Ranks, quantiles and top-k masks of values that are spread over the ranks of a process group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .. import operators as alone
from ..core.squash import Squash
from ..linear.elsewhere import in_order
from ..operators.fillers import (
    How,
    Interpolation,
    quantile_levels,
    require_interpolation,
    rounding_of_levels,
    weights_of,
)
from ..operators.selecting import how_many
from ..operators.sorting import full_precision
from .call import Call
from .collectives import Group
from .dtensor import Sharded


@full_precision
def soft_rank(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    weights: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    squash: Squash = "sigmoid",
    group: Group = None,
) -> Tensor:
    """Soft ranks among the values of all processes: ``x`` is this process's part of every row, along ``dim``.

    Returns the ranks of this rank's values, from 1 to the number of values on all ranks together, in the shape of x.
    Shards need not have the same size, and may be empty.

    >>> import torch, torch.distributed as dist, sinksort.distributed
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> sinksort.distributed.soft_rank(torch.tensor([0.38, 4.0, -2.0, 6.0, -9.0]), eps=1e-4)
    tensor([3., 4., 2., 5., 1.])
    >>> dist.destroy_process_group()
    """
    if isinstance(x, DTensor):
        sharded = Sharded.along(x, dim, group)
        local, w = sharded.local(weights)
        return sharded.like_x(
            soft_rank(local, dim=dim, descending=descending, weights=w, eps=eps, squash=squash, group=sharded.group)
        )
    call = Call.agreed("soft_rank", x, dim, weights, eps, squash, group, {"descending": descending})
    if call.few:
        whole, w = call.whole()
        ranks = alone.soft_rank(whole, weights=w, descending=descending, eps=call.eps[..., 0, 0], squash=squash)
        return call.own(ranks).movedim(-1, dim)
    parts = call.refined()
    return call.on_values(in_order(parts, [part.ranks(descending) for part in parts])).movedim(-1, dim)


@full_precision
def soft_quantile(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    *,
    dim: int = -1,
    keepdim: bool = False,
    width: float | None = None,
    interpolation: Interpolation = "hazen",
    weights: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    squash: Squash = "sigmoid",
    group: Group = None,
) -> Tensor:
    """The soft quantile of the values of all ranks, the same on every rank; arguments as in ``sinksort.soft_quantile``.

    >>> import torch, torch.distributed as dist, sinksort.distributed
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> sinksort.distributed.soft_quantile(torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0]), [1.0, 0.5], eps=1e-4)
    tensor([5., 3.])
    >>> dist.destroy_process_group()
    """
    if isinstance(x, DTensor):
        sharded = Sharded.along(x, dim, group)
        local, w = sharded.local(weights)
        quantiles = soft_quantile(
            local,
            q,
            dim=dim,
            keepdim=keepdim,
            width=width,
            interpolation=interpolation,
            weights=w,
            eps=eps,
            squash=squash,
            group=sharded.group,
        )
        return sharded.one_a_row(quantiles, quantiles.ndim > local.ndim - (not keepdim), keepdim)
    options = {"q": q, "width": width, "interpolation": interpolation}
    call = Call.agreed("soft_quantile", x, dim, weights, eps, squash, group, options)
    require_interpolation(interpolation, weights)  # the same on all ranks by now
    if call.few:
        whole, w = call.whole()
        eps = call.eps[..., 0, 0]
        quantiles = alone.soft_quantile(
            whole, q, width=width, interpolation=interpolation, weights=w, eps=eps, squash=squash
        )
    else:
        levels = quantile_levels(q, width, x.device)
        fillers = weights_of(levels, call.count, How(width, interpolation, rounding_of_levels(x.dtype, q)))
        found, summary = call.thresholds(fillers.reshape(levels.numel(), -1, 3).transpose(0, 1))
        quantiles = found.average(1, call.flat) + summary.infinite + summary.poisoned
        quantiles = quantiles.mT.to(x.dtype).reshape(levels.shape + call.rows.shape[:-1])
    several = quantiles.ndim - (x.ndim - 1)
    return quantiles.unsqueeze(dim if dim < 0 else dim + several) if keepdim else quantiles


def soft_median(
    x: Tensor,
    *,
    dim: int = -1,
    keepdim: bool = False,
    width: float | None = None,
    interpolation: Interpolation = "hazen",
    weights: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    squash: Squash = "sigmoid",
    group: Group = None,
) -> Tensor:
    """The soft 0.5 quantile of the values of all ranks, see ``soft_quantile``.

    >>> import torch, torch.distributed as dist, sinksort.distributed
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> sinksort.distributed.soft_median(torch.tensor([1.0, 100.0, 2.0]), eps=1e-4)
    tensor(2.)
    >>> dist.destroy_process_group()
    """
    return soft_quantile(
        x,
        0.5,
        dim=dim,
        keepdim=keepdim,
        width=width,
        interpolation=interpolation,
        weights=weights,
        eps=eps,
        squash=squash,
        group=group,
    )


@full_precision
def soft_topk_mask(
    x: Tensor,
    k: float | Tensor,
    *,
    dim: int = -1,
    largest: bool = True,
    weights: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    squash: Squash = "sigmoid",
    group: Group = None,
) -> Tensor:
    """How much each value of this rank belongs to the k largest (or smallest) of all ranks.

    In [0, 1], and summing to k along ``dim`` over all ranks; k as in ``sinksort.soft_topk_mask``.

    >>> import torch, torch.distributed as dist, sinksort.distributed
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> sinksort.distributed.soft_topk_mask(torch.tensor([0.1, 0.9, 0.5, 0.7]), 2, eps=1e-3)
    tensor([0., 1., 0., 1.])
    >>> dist.destroy_process_group()
    """
    if isinstance(x, DTensor):
        sharded = Sharded.along(x, dim, group)
        local, w = sharded.local(weights)
        return sharded.like_x(
            soft_topk_mask(local, k, dim=dim, largest=largest, weights=w, eps=eps, squash=squash, group=sharded.group)
        )
    call = Call.agreed("soft_topk_mask", x, dim, weights, eps, squash, group, {"k": k, "largest": largest})
    if call.few:
        whole, w = call.whole()
        mask = alone.soft_topk_mask(whole, k, largest=largest, weights=w, eps=call.eps[..., 0, 0], squash=squash)
        return call.own(mask).movedim(-1, dim)
    share = how_many(k, call.n, call.count) / call.count
    chosen_last = [1.0 - share, share] if largest else [share, 1.0 - share]
    found, summary = call.thresholds(torch.cat(chosen_last, dim=-1).reshape(-1, 1, 2))
    return call.on_values(found.given_value(1 if largest else 0) + summary.poisoned).movedim(-1, dim)
