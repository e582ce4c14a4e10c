"""The operators: each poses a transport problem, solves it, and reads the plan in its own way.

All of them take the same options:

==================  ====================================================================================================
``dim``             the dimension to sort along
``weights``         a: how much each value counts, any non-negative numbers; (n,) or broadcastable to x; default equal
``mask``            True for values that exist, False for padding; (n,) or broadcastable to x
``targets``         y: m increasing numbers that values are sent to; (m,) or one row for each row of x; default the
                    regular grid on [0, 1], which is where the squashed values live
``target_weights``  b: how much each target receives; any non-negative numbers; default equal
``num_targets``     m, for the default targets; default n
``eps``             entropy: towards 0 a hard sort without useful gradients, towards infinity all values alike;
                    a number, or a tensor (one for all, or one a row) that may be learned
``cost``            h in the cost h(y_j - x_i): p >= 1 for abs(u)^p, ``Huber(delta)``, or a convex callable
``squash``          how x comes to [0, 1]: standardised and then ``"sigmoid"`` or ``"arctan"``; None when it is there
                    already; or an increasing callable that is given x itself (its rows last) instead of all this
``solver``          ``Newton()`` or ``Sinkhorn(...)``
==================  ====================================================================================================

Arithmetic is in float64 inside, whatever dtype comes and goes; autocast is switched off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from ._checks import require_between, require_floating
from .compress import compressed_ranks
from .costs import Cost
from .plan import Plan, solve
from .problem import as_rows, like_batch, like_rows, live_rows, pose, wide_dtype
from .solvers import Newton, Solver
from .squash import Squash

_P = ParamSpec("_P")
_R = TypeVar("_R")

DEFAULT_SOLVER: Solver = Newton()


def _full_precision(operator: Callable[_P, _R]) -> Callable[_P, _R]:
    """Autocast would round the matrix products inside to half precision: switch it off."""

    @functools.wraps(operator)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        first = args[0] if args else next(iter(kwargs.values()))
        device = first.device.type if isinstance(first, Tensor) else "cpu"
        with torch.autocast(device, enabled=False):
            return operator(*args, **kwargs)

    return wrapped


@_full_precision
def transport(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Plan:
    """The ``Plan`` behind all operators: several read-outs from one solve, with potentials and diagnostics.

    >>> import torch, sinksort
    >>> plan = sinksort.transport(torch.tensor([0.3, 0.1, 0.2]), eps=1e-3)
    >>> plan.ranks(), plan.sorted()
    (tensor([3., 1., 2.]), tensor([0.1000, 0.2000, 0.3000]))
    >>> plan.matrix().sum(0)
    tensor([0.3333, 0.3333, 0.3333])
    """
    problem = pose(
        x,
        dim=dim,
        descending=descending,
        weights=weights,
        mask=mask,
        targets=targets,
        target_weights=target_weights,
        num_targets=num_targets,
        eps=eps,
        cost=cost,
        squash=squash,
    )
    return solve(problem, solver)


@_full_precision
def soft_rank(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """Sinkhorn ranks, n a^-1 o (P b_bar): 1 for the smallest value of a row, n for the largest.

    With ``descending`` the largest value gets 1. Ties share a rank. Masked entries get 0.

    >>> import torch, sinksort
    >>> x = torch.tensor([0.38, 4.0, -2.0, 6.0, -9.0])
    >>> sinksort.soft_rank(x, eps=1e-4)
    tensor([3., 4., 2., 5., 1.])
    >>> sinksort.soft_rank(x)
    tensor([2.9591, 4.1148, 2.0544, 4.8701, 1.0016])
    """
    if targets is None and target_weights is None and mask is None:
        ranks = compressed_ranks(x, dim, descending, weights, num_targets, eps, cost, squash, solver)
        if ranks is not None:
            return ranks
    return transport(
        x,
        dim=dim,
        descending=descending,
        weights=weights,
        mask=mask,
        targets=targets,
        target_weights=target_weights,
        num_targets=num_targets,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
    ).ranks()


@_full_precision
def soft_sort(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """Sinkhorn sort, b^-1 o (P^T x): m increasing averages of the values (m = n unless the targets say otherwise).

    With ``descending`` the first target receives the largest values. A padded row has its sorted values first, then
    zeros.

    >>> import torch, sinksort
    >>> x = torch.tensor([0.38, 4.0, -2.0, 6.0, -9.0])
    >>> sinksort.soft_sort(x, eps=1e-4)
    tensor([-9.0000, -2.0000,  0.3800,  4.0000,  6.0000])
    >>> sinksort.soft_sort(x, num_targets=2, eps=1e-3)
    tensor([-4.3240,  4.0760])
    """
    return transport(
        x,
        dim=dim,
        descending=descending,
        weights=weights,
        mask=mask,
        targets=targets,
        target_weights=target_weights,
        num_targets=num_targets,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
    ).sorted()


@_full_precision
def soft_permutation(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """The soft permutation matrix (..., m, n): rows sum to one, and ``soft_permutation(x) @ x`` is ``soft_sort(x)``.

    ``dim`` goes to the end: row j tells from which values the j-th sorted value is made.

    >>> import torch, sinksort
    >>> sinksort.soft_permutation(torch.tensor([0.3, 0.1, 0.2]), eps=1e-3).round()
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [1., 0., 0.]])
    """
    return transport(
        x,
        dim=dim,
        descending=descending,
        weights=weights,
        mask=mask,
        targets=targets,
        target_weights=target_weights,
        num_targets=num_targets,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
    ).permutation()


@_full_precision
def sort_with(
    values: Tensor,
    keys: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """``values`` put in the soft order of ``keys``, as ``values[keys.argsort()]`` does, differentiable in both.

    ``values`` has the shape of ``keys``, or more dimensions after it (a payload of any shape for each key); ``dim``
    is a dimension of ``keys``. The result has m entries there.

    >>> import torch, sinksort
    >>> names = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    >>> sinksort.sort_with(names, torch.tensor([0.5, 0.1, 0.9]), eps=1e-3)
    tensor([[ 2., 20.],
            [ 1., 10.],
            [ 3., 30.]])
    """
    require_floating(values, "values")
    require_floating(keys, "keys")
    if values.shape[: keys.ndim] != keys.shape:
        raise ValueError(
            f"values must have the shape of keys, {tuple(keys.shape)}, or that and further payload dimensions after "
            f"it, got {tuple(values.shape)}; move the payload dimensions to the end."
        )
    plan = transport(
        keys,
        dim=dim,
        descending=descending,
        weights=weights,
        mask=mask,
        targets=targets,
        target_weights=target_weights,
        num_targets=num_targets,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
    )
    dim = dim % keys.ndim
    payload_shape = values.shape[keys.ndim :]
    flat = values.reshape(*keys.shape, -1).movedim(dim, -2)
    in_order = plan.push(flat).movedim(-2, dim).to(values.dtype)
    return in_order.reshape(*in_order.shape[:-1], *payload_shape)


@_full_precision
def quantile_normalize(
    x: Tensor,
    reference: Tensor,
    *,
    dim: int = -1,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """``x`` mapped onto the distribution of ``reference``: each value becomes the reference value of its soft rank.

    ``reference`` is (m,), or (..., m) with one row for each row of x; it need not be sorted. Returns the shape of x.

    >>> import torch, sinksort
    >>> sinksort.quantile_normalize(torch.tensor([0.3, 0.1, 0.2]), torch.tensor([30.0, 10.0, 20.0]), eps=1e-3)
    tensor([30., 10., 20.])
    """
    rows = as_rows(x, dim)
    require_floating(reference, "reference")
    batch = rows.shape[:-1]
    try:
        fits = reference.ndim > 0 and torch.broadcast_shapes(reference.shape[:-1], batch) == batch
    except RuntimeError:
        fits = False
    if not fits or reference.shape[-1] == 0:
        raise ValueError(
            f"reference must have shape (m,) or {(*batch, 'm')} (one row for each row of x), "
            f"got {tuple(reference.shape)}."
        )
    plan = transport(
        x,
        dim=dim,
        weights=weights,
        mask=mask,
        num_targets=reference.shape[-1],
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
    )
    return plan.pull(reference.sort(dim=-1).values.expand(*batch, -1))


@_full_precision
def soft_quantile(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    *,
    dim: int = -1,
    keepdim: bool = False,
    width: float | None = None,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """The paper's soft quantile: the average that lands on a filler target of weight t = ``width`` at level ``q``.

    Three targets at 0, 1/2 and 1 with weights [q - t/2, t, 1 - q - t/2]; the answer is the middle one. Near 0 and 1
    the filler is moved inside, so q = 0 and q = 1 are the soft extremes. Levels are independent of each other: any
    order, repeated or not, gives each the value it has alone, all from one batched solve. Differentiable in q too.

    Args:
        q: a level, or a 1-D sequence or tensor of levels, in [0, 1].
        width: t, by default 1/n; wider averages over more values.

    Returns:
        As ``torch.quantile``: the shape of x without ``dim`` (of size 1 with ``keepdim``), with the levels first when
        there are several.

    >>> import torch, sinksort
    >>> x = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0])
    >>> sinksort.soft_quantile(x, 0.5, eps=1e-4)
    tensor(3.)
    >>> sinksort.soft_quantile(x, [1.0, 0.0, 0.5], eps=1e-4)
    tensor([5., 1., 3.])
    """
    rows = as_rows(x, dim)
    wide = wide_dtype(x.device)
    levels = torch.as_tensor(q, dtype=wide, device=x.device)
    if levels.ndim > 1:
        raise ValueError(f"q must be a number or one-dimensional, got shape {tuple(levels.shape)}; flatten it.")
    require_between(levels, 0.0, 1.0, "q", "levels are fractions: 0.9 is the 90% quantile.")
    if width is not None and not 0 < width <= 1:
        raise ValueError(f"width must be in (0, 1], got {width}; it is the share of all values to average over.")
    batch = rows.shape[:-1]
    shape = (levels.numel(), *rows.shape)
    _, _, kept, count = live_rows(x, rows, dim, None, mask)
    t = 1.0 / count if width is None else torch.full_like(count, width)
    below = (levels.reshape(-1, *(1,) * rows.ndim) - t / 2).maximum(torch.zeros_like(t)).minimum(1.0 - t)
    fillers = torch.cat([below, t.expand_as(below), (1.0 - t - below).clamp(min=0.0)], dim=-1)
    plan = transport(
        rows.expand(shape),
        weights=None if weights is None else like_rows(weights, x, dim, "weights").expand(shape),
        mask=None if kept is None else kept.expand(shape),
        target_weights=fillers,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
    )
    quantiles = plan.sorted()[..., 1]
    if kept is not None:
        quantiles = torch.where(kept.any(-1), quantiles, 0.0)
    quantiles = quantiles.reshape(levels.shape + batch)
    return quantiles.unsqueeze(dim if dim < 0 else dim + levels.ndim) if keepdim else quantiles


def soft_median(
    x: Tensor,
    *,
    dim: int = -1,
    keepdim: bool = False,
    width: float | None = None,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """The soft 0.5 quantile, see ``soft_quantile``.

    >>> import torch, sinksort
    >>> sinksort.soft_median(torch.tensor([1.0, 100.0, 2.0]), eps=1e-4)
    tensor(2.)
    """
    return soft_quantile(
        x,
        0.5,
        dim=dim,
        keepdim=keepdim,
        width=width,
        weights=weights,
        mask=mask,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
    )


@_full_precision
def soft_topk_mask(
    x: Tensor,
    k: float | Tensor,
    *,
    dim: int = -1,
    largest: bool = True,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """How much each value belongs to the k largest (or smallest): in [0, 1], summing to k along ``dim``.

    Two targets, 0 with weight (n - k)/n and 1 with weight k/n; the answer is the share of a value that goes to 1.

    Args:
        k: how many, an integer or a real number in [0, n], or a tensor with one number for each row; differentiable.

    >>> import torch, sinksort
    >>> sinksort.soft_topk_mask(torch.tensor([0.1, 0.9, 0.5, 0.7]), 2, eps=1e-3)
    tensor([0., 1., 0., 1.])
    >>> sinksort.soft_topk_mask(torch.tensor([0.1, 0.9, 0.5, 0.7]), 1.5).sum()
    tensor(1.5000)
    """
    rows = as_rows(x, dim)
    _, _, kept, count = live_rows(x, rows, dim, None, mask)
    share = _how_many(k, rows, count) / count
    plan = transport(
        rows,
        descending=largest,
        weights=None if weights is None else like_rows(weights, x, dim, "weights"),
        mask=kept,
        target_weights=torch.cat([share, 1.0 - share], dim=-1),
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
    )
    membership = plan.pull(torch.tensor([1.0, 0.0], dtype=count.dtype, device=x.device))
    return membership.movedim(-1, dim)


class TopK(NamedTuple):
    """What ``soft_topk`` returns: the k soft values, and the membership of every entry."""

    values: Tensor
    mask: Tensor


@_full_precision
def soft_topk(
    x: Tensor,
    k: int,
    *,
    dim: int = -1,
    largest: bool = True,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
) -> TopK:
    """The k largest (or smallest) soft values in the order of ``torch.topk``, and ``soft_topk_mask``.

    Where ``torch.topk`` returns indices, which have no gradient, the second entry is a mask over x.

    >>> import torch, sinksort
    >>> values, mask = sinksort.soft_topk(torch.tensor([0.1, 0.9, 0.5, 0.7]), 2, eps=1e-3)
    >>> values
    tensor([0.9000, 0.7000])
    """
    rows = as_rows(x, dim)
    n = rows.shape[-1]
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= n:
        raise ValueError(f"k must be an integer between 1 and n = {n} (the size of x along dim={dim}), got {k!r}.")
    _, _, kept, count = live_rows(x, rows, dim, None, mask)
    if k == n:
        target_weights = None
    else:
        at = torch.arange(k, dtype=count.dtype, device=x.device)
        each = (count - at).clamp(0.0, 1.0)
        target_weights = torch.cat([each, (count - k).clamp(min=0.0)], dim=-1) / count
    row_weights = None if weights is None else like_rows(weights, x, dim, "weights")
    values = soft_sort(
        rows,
        descending=largest,
        weights=row_weights,
        mask=kept,
        target_weights=target_weights,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
    )[..., :k]
    if kept is not None:
        values = torch.where(torch.arange(k, device=x.device) < kept.sum(-1, keepdim=True), values, 0.0)
    membership = soft_topk_mask(
        rows,
        float(k) if kept is None else kept.sum(-1).clamp(max=k).to(count.dtype),
        largest=largest,
        weights=row_weights,
        mask=kept,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
    )
    return TopK(values.movedim(-1, dim), membership.movedim(-1, dim))


def _how_many(k: float | Tensor, rows: Tensor, count: Tensor) -> Tensor:
    """k as (..., 1), at most the number of values in the row."""
    n, batch = rows.shape[-1], rows.shape[:-1]
    if isinstance(k, Tensor):
        wanted = like_batch(k, batch, "k").to(count.device, count.dtype).unsqueeze(-1)
        require_between(wanted, 0.0, float(n), "k", f"a row has n = {n} values.")
    else:
        if isinstance(k, bool) or not isinstance(k, int | float):
            raise TypeError(f"k must be a number or a tensor, got {type(k).__name__}.")
        if not 0 <= k <= n:
            raise ValueError(f"k must be between 0 and n = {n}, the number of values in a row, got {k}.")
        wanted = torch.full_like(count, float(k))
    return wanted.minimum(count)
