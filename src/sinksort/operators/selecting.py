"""Quantiles and top-k: operators that choose two or three targets of their own and read one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..core.checks import require_between, values_readable
from ..core.costs import Cost
from ..core.modes import tracing
from ..core.option_values import DEFAULT_SOLVER, Options
from ..core.options import explained
from ..core.problem import as_row_of_one, as_rows, existing, like_batch, like_rows, wide_dtype
from ..core.solvers import Solver
from ..core.squash import Squash, normalize
from ..kernels import requests
from ..linear.choose import plan_for
from ..linear.compiled import CompiledPlan
from ..linear.smooth import SmoothPlan
from .fillers import (
    How,
    Interpolation,
    filler_weights,  # noqa: F401 - also found here
    fillers_of,
    plain_levels,
    quantile_levels,
    require_interpolation,
    rounding_of_levels,
)
from .log_mask import log_topk_mask
from .robust import is_robust, map_of, places_of, robust_by_places
from .sorting import full_precision, of_numbers_too, soft_sort


@explained
@full_precision
def soft_quantile(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    dim: int = -1,
    keepdim: bool = False,
    *,
    width: float | None = None,
    interpolation: Interpolation = "hazen",
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """Soft quantiles: the average of the values around a level, such as 0.5 for the median.

    Levels are independent of each other: any order, repeated or not, gives each the value it has alone, all from one
    batched solve. Levels 0 and 1 give the soft extremes.

    For small eps this is Hazen's sample quantile, ``numpy.quantile(x, q, method="hazen")``. ``torch.quantile`` and
    NumPy interpolate linearly by default, which ``interpolation="linear"`` does here. They differ by up to half of the
    gap between two neighbouring values: of 1, 2, 3, 4, 5 the 90% quantile is 5 or 4.6.

    This is a quantile of the values that there are. To train a model that predicts a quantile (quantile regression)
    use the pinball loss, which needs no sorting.

    Three targets at 0, 1/2 and 1 receive [q - t/2, t, 1 - q - t/2] of the row, and the answer is the average that lands
    on the middle one, the paper's filler target of weight t = ``width``. Near 0 and 1 it is moved inside.

    Args:
        q: a level, or a 1-D sequence or tensor of levels, in [0, 1]; a tensor may have a gradient.

    Returns:
        The quantiles, shaped as ``torch.quantile`` shapes them: x without ``dim``, with the levels first when there are
        several.

    >>> import torch, sinksort
    >>> x = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0])
    >>> sinksort.soft_quantile(x, 0.5, eps=1e-4)
    tensor(3.)
    >>> sinksort.soft_quantile(x, [1.0, 0.0, 0.5], eps=1e-4)
    tensor([5., 1., 3.])
    >>> sinksort.soft_quantile(x, 0.9, eps=1e-4), sinksort.soft_quantile(x, 0.9, interpolation="linear", eps=1e-4)
    (tensor(5.), tensor(4.6000))
    """
    if isinstance(x, Tensor) and x.ndim == 0:  # as in torch, whose answers have no dimension to keep then
        x, weights, mask, keepdim = as_row_of_one(x), as_row_of_one(weights), as_row_of_one(mask), False
    rows = as_rows(x, dim)
    require_interpolation(interpolation, weights)
    options = Options(dim, False, weights, mask, None, None, None, eps, cost, squash, solver, backend)
    how = How(width, interpolation, rounding_of_levels(x.dtype, q))
    plain = None if mask is not None or isinstance(width, Tensor) or tracing() else plain_levels(q)
    levels = quantile_levels(q, width, x.device) if plain is None else plain
    one = levels.ndim == 0 if isinstance(levels, Tensor) else not isinstance(levels, tuple)
    robust = is_robust(squash)
    if (callable(squash) or robust) and one and mask is None and weights is None:
        placing = map_of(x, dim, None, None) if robust else cast("Callable[[Tensor], Tensor]", squash)
        alone = _by_shares(x, rows, fillers_of(x, levels, how, dim, None), placing, options)
        if alone is not None:
            return alone.unsqueeze(dim) if keepdim else alone
    quantiles = requests.quantiles(x, options, fillers_of, levels, how)
    kept, _ = existing(x, dim, mask) if mask is not None else (None, None)
    if quantiles is None:
        b = fillers_of(x, levels, how, dim, mask)
        shape = (len(b), *rows.shape)
        # Gradients of several levels add up, for which half precision has too few digits.
        summed = rows.float() if len(b) > 1 and x.element_size() < 4 else rows
        keys = places_of(x, dim, weights, mask).movedim(dim, -1) if robust else summed
        options = options._replace(
            dim=-1,
            weights=None if weights is None else like_rows(weights, x, dim, "weights").expand(shape),
            mask=None if kept is None else kept.expand(shape),
            target_weights=b,
            squash=None if robust else squash,
        )
        plan = plan_for(keys.expand(shape), options, reads="averages")
        averages = plan.push(summed.expand(shape).unsqueeze(-1)).squeeze(-1) if robust else plan.sorted()
        quantiles = averages[..., 1]
        quantiles = (quantiles.squeeze(0) if one else quantiles).to(x.dtype)
    if kept is not None:
        quantiles = torch.where(kept.any(-1), quantiles, 0.0)
    return quantiles.unsqueeze(dim if dim < 0 or one else dim + 1) if keepdim else quantiles


def _by_shares(
    x: Tensor, rows: Tensor, b: Tensor, squash: Callable[[Tensor], Tensor], options: Options
) -> Tensor | None:
    """One quantile of values in single precision that a callable squashes; None where fused kernels do not answer.

    Kernels average the values that they squash themselves. Here they get places, and say what share of each value the
    filler gets.
    """
    if (
        x.element_size() > 4
        or options.backend == "torch"
        or b.requires_grad
        or not values_readable(x)
        or x.numel() == 0
    ):
        return None
    if not bool(rows.isfinite().all()):
        return None
    values = rows.to(wide_dtype(x.device))
    places = normalize(values, values, squash, values, values)  # a callable looks at the values only
    if not bool(((places >= 0) & (places <= 1)).all()):
        return None
    shares = requests.fillings(places.float(), options._replace(dim=-1, squash=None), b.reshape(-1, 3)[0])
    if shares is None:
        return None
    shares = shares.to(values.dtype)
    return ((shares * values).sum(-1) / shares.sum(-1)).to(x.dtype)


@explained
def soft_median(
    x: Tensor,
    dim: int = -1,
    keepdim: bool = False,
    *,
    width: float | None = None,
    interpolation: Interpolation = "hazen",
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """The soft median: the quantile of level 0.5, see ``soft_quantile``.

    Of an even number of values that is the mean of the two in the middle, as for ``numpy.median``. ``torch.median``
    gives the smaller of the two: ``interpolation="lower"``.

    Returns:
        The medians, in the shape of x without ``dim``.

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
        interpolation=interpolation,
        weights=weights,
        mask=mask,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
        backend=backend,
    )


@explained
@of_numbers_too
@robust_by_places
def soft_topk_mask(
    x: Tensor,
    k: float | Tensor,
    dim: int = -1,
    largest: bool = True,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    log: bool = False,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """How much each value belongs to the k largest (or smallest): in [0, 1], summing to k along ``dim``.

    Two targets, 0 with weight (n - k)/n and 1 with weight k/n; the answer is the share of a value that goes to 1.

    Args:
        k: how many, an integer or a real number in [0, n], or a tensor with one number for each row; a tensor may have
            a gradient.
        log: the logarithm of the mask, which is finite with all its digits where the mask itself rounds to 0 or 1; -inf
            for padding.

    Returns:
        The shares, in the shape and dtype of x.

    >>> import torch, sinksort
    >>> sinksort.soft_topk_mask(torch.tensor([0.1, 0.9, 0.5, 0.7]), 2, eps=1e-3)
    tensor([0., 1., 0., 1.])
    >>> sinksort.soft_topk_mask(torch.tensor([0.1, 0.9, 0.5, 0.7]), 1.5).sum()
    tensor(1.5000)
    >>> sinksort.soft_topk_mask(torch.tensor([1.0, 9.0, 5.0, 7.0]), 2, log=True, squash=None, eps=1e-2)
    tensor([-1000.,    -0.,  -200.,    -0.])
    """
    options = Options(dim, False, weights, mask, None, None, None, eps, cost, squash, solver, backend)
    if log:
        with torch.no_grad():
            fused = requests.memberships(x, options, _share, k, largest)
        if fused is None and backend in ("numba", "triton"):  # the exact family, or an error that says why not
            with torch.no_grad():
                fused = soft_topk_mask(
                    x,
                    k,
                    dim,
                    largest,
                    weights=weights,
                    mask=mask,
                    eps=eps,
                    cost=cost,
                    squash=squash,
                    solver=solver,
                    backend=backend,
                )
        wanted = how_many(k, as_rows(x, dim).shape[-1], existing(x, dim, mask)[1])
        return log_topk_mask(x, wanted, dim, largest, weights, mask, eps, cost, squash, fused)
    fused = requests.memberships(x, options, _share, k, largest)
    if fused is not None:
        return fused
    rows = as_rows(x, dim)
    kept, count = existing(x, dim, mask)
    share = _share(x, k, dim, mask)
    options = options._replace(
        dim=-1,
        descending=largest,
        weights=None if weights is None else like_rows(weights, x, dim, "weights"),
        mask=kept,
        target_weights=torch.cat([share, 1.0 - share], dim=-1),
    )
    plan = plan_for(rows, options, reads="averages")
    membership = plan.pull(torch.tensor([1.0, 0.0], dtype=count.dtype, device=x.device))
    if isinstance(plan, (SmoothPlan, CompiledPlan)):  # few nodes do not resolve a target that weighs nothing
        membership = torch.where(share <= 0.0, 0.0, torch.where(share >= 1.0, 1.0, membership))
        membership = membership if kept is None else torch.where(kept, membership, 0.0)
    return membership.movedim(-1, dim)


class TopK(NamedTuple):
    """What ``soft_topk`` returns: the k soft values, and the membership of every entry.

    >>> import torch, sinksort
    >>> sinksort.soft_topk(torch.tensor([0.1, 0.9, 0.5, 0.7]), 2, eps=1e-3).mask
    tensor([0., 1., 0., 1.])
    """

    values: Tensor
    mask: Tensor


@explained
@of_numbers_too
def soft_topk(
    x: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> TopK:
    """The k largest (or smallest) soft values, in the order of ``torch.topk``, and how much each value belongs to them.

    Args:
        k: how many, an integer from 0 to n.

    Returns:
        A ``TopK``: ``values`` in the shape of x with k entries along ``dim``, and ``mask`` in the shape of x, which is
        ``soft_topk_mask``. ``torch.topk`` returns indices instead, which have no gradient.

    >>> import torch, sinksort
    >>> values, mask = sinksort.soft_topk(torch.tensor([0.1, 0.9, 0.5, 0.7]), 2, eps=1e-3)
    >>> values
    tensor([0.9000, 0.7000])
    """
    rows = as_rows(x, dim)
    n = rows.shape[-1]
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= n:
        raise ValueError(f"k must be an integer between 0 and n = {n} (the size of x along dim={dim}), got {k!r}.")
    kept, count = existing(x, dim, mask)
    if k == n:
        target_weights = None
    else:
        at = torch.arange(k, dtype=count.dtype, device=x.device)
        each = (count - at).clamp(0.0, 1.0)
        target_weights = torch.cat([each, (count - k).clamp(min=0.0)], dim=-1) / count
    row_weights = None if weights is None else like_rows(weights, x, dim, "weights")
    o = Options(-1, largest, row_weights, kept, None, target_weights, None, eps, cost, squash, solver, backend)
    values = rows[..., :0] if k == 0 else None
    if kept is None and k > 0 and not is_robust(squash):  # then all targets weigh something: none need be looked at
        values = requests.sorts(rows, o, False)
    values = (_sorted(rows, o) if values is None else values)[..., :k]
    if kept is not None and k > 0:
        values = _whole_rows(values, rows, k, kept, o)
        values = torch.where(
            torch.arange(k, device=x.device, dtype=torch.int64) < kept.sum(-1, keepdim=True), values, 0.0
        )
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
        backend=backend,
    )
    return TopK(values.movedim(-1, dim), membership.movedim(-1, dim))


def _sorted(rows: Tensor, o: Options) -> Tensor:
    return soft_sort(
        rows,
        descending=o.descending,
        weights=o.weights,
        mask=o.mask,
        target_weights=o.target_weights,
        eps=o.eps,
        cost=o.cost,
        squash=o.squash,
        solver=o.solver,
        backend=o.backend,
    )


def _whole_rows(values: Tensor, rows: Tensor, k: int, kept: Tensor, options: Options) -> Tensor:
    """``values``, and in rows with padding that hold at most k values all of these, sorted.

    Such a row has no target for values beyond the k largest, as a row of k values without padding has none. Its values
    fit into k places, so a plan of n values onto n targets is not needed.
    """
    whole, weights = kept.sum(-1, keepdim=True) <= k, options.weights
    if k == rows.shape[-1] or (values_readable(whole) and not bool(whole.any())):
        return values
    first = kept.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :k]
    if weights is not None:  # what is taken of a longer row may weigh nothing, and is not looked at
        weights = torch.where(whole, weights.gather(-1, first), 1.0)
    shorter = options._replace(
        weights=weights,
        mask=kept.gather(-1, first),
        target_weights=None,
    )
    return torch.where(whole, _sorted(rows.gather(-1, first), shorter), values)


def _share(x: Tensor, k: float | Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """k/n, (..., 1)."""
    _, count = existing(x, dim, mask)
    return how_many(k, x.shape[dim], count) / count


def how_many(k: float | Tensor, n: int, count: Tensor) -> Tensor:
    """k as (..., 1), at most the number of values in the row; count (..., 1), and n without padding."""
    if isinstance(k, Tensor):
        wanted = like_batch(k, count.shape[:-1], "k").to(count.device, count.dtype).unsqueeze(-1)
        require_between(wanted, 0.0, float(n), "k", f"a row has n = {n} values.")
    else:
        if isinstance(k, bool) or not isinstance(k, (int, float)):
            raise TypeError(f"k must be a number or a tensor, got {type(k).__name__}.")
        if not 0 <= k <= n:
            raise ValueError(f"k must be between 0 and n = {n}, the number of values in a row, got {k}.")
        wanted = torch.full_like(count, float(k))
    return wanted.minimum(count)
