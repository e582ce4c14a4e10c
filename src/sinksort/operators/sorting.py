"""Ranks, sorts, permutations and payloads: operators whose targets are the user's to choose, and the plan itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from ..core.checks import require_floating
from ..core.costs import Cost
from ..core.modes import whole
from ..core.option_values import DEFAULT_SOLVER, Options
from ..core.options import explained
from ..core.plan import Plan
from ..core.problem import Problem, as_rows, existing, like_rows, of_number, pose
from ..core.solvers import Newton, Solver
from ..core.squash import Squash
from ..kernels import requests
from ..kernels.reference import log_shares as log_shares_of
from ..kernels.requests import padding, payloads
from ..linear.choose import columns_for, dense_plan, plan_for, ranks_for, smooth_plan
from ..linear.compiled import compiled_plan
from ..linear.smooth import SmoothPlan
from .robust import is_robust, robust_by_map, robust_by_places

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Values from which shares take less time in double precision than in single (128 rows of 100: 0.7 to 0.8 of it).
_LONG = 64


def full_precision(operator: Callable[_P, _R], numbers: bool = False) -> Callable[_P, _R]:
    """Autocast would round the matrix products inside to half precision: switch it off.

    ``numbers``: the operator is also given tensors without dimensions, and answers with such.
    """

    @functools.wraps(operator)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if numbers:
            x: Any = args[0] if args else kwargs.get("x")
            if isinstance(x, Tensor) and x.ndim == 0:
                return cast("_R", of_number(wrapped, x, args[1:], kwargs))
        if not torch._C._is_any_autocast_enabled():  # what follows costs as much as a small kernel
            return operator(*args, **kwargs)
        tensors = (t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and not t.is_meta)
        with torch.autocast(next((t.device.type for t in tensors), "cpu"), enabled=False):
            return operator(*args, **kwargs)

    return wrapped


of_numbers_too = functools.partial(full_precision, numbers=True)


@explained
@full_precision
@robust_by_map
def transport(
    x: Tensor,
    dim: int = -1,
    descending: bool = False,
    *,
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
    """The transport plan behind all operators: several answers from one solve, with potentials and diagnostics.

    Returns:
        A ``Plan``. Its methods ``ranks()``, ``sorted()``, ``permutation()`` and ``matrix()`` read it, and
        ``converged``, ``iterations`` and ``marginal_error`` say how it was found.

    >>> import torch, sinksort
    >>> plan = sinksort.transport(torch.tensor([0.3, 0.1, 0.2]), eps=1e-3)
    >>> plan.ranks(), plan.sorted()
    (tensor([3., 1., 2.]), tensor([0.1000, 0.2000, 0.3000]))
    >>> plan.matrix().sum(0)
    tensor([0.3333, 0.3333, 0.3333])
    """
    options = Options(dim, descending, weights, mask, targets, target_weights, num_targets, eps, cost, squash, solver)
    return dense_plan(pose(x, options), solver)


@explained
@full_precision
@functools.partial(robust_by_map, padded=False)
def smooth_transport(
    x: Tensor,
    dim: int = -1,
    descending: bool = False,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
    eps: float | Tensor = 1e-2,
    squash: Squash = "sigmoid",
    solver: Newton = DEFAULT_SOLVER,
) -> SmoothPlan:
    """The plan of very many values in linear time, for the squared cost: ranks, sorts and averages, but no matrix.

    ``soft_rank``, ``soft_sort``, ``soft_quantile``, ``soft_topk`` and the others use it by themselves where it is
    cheaper (``Newton(compress=...)`` decides otherwise). Here several answers share one solve, and the plan tells how
    fine it is and how far it may be off.

    Returns:
        A ``SmoothPlan``, which is read as a ``Plan`` is.

    >>> import torch, sinksort
    >>> plan = sinksort.smooth_transport(torch.linspace(-3.0, 3.0, 100_001), eps=1e-3)
    >>> plan.ranks()[50_000], plan.sorted()[50_000].abs() < 1e-5
    (tensor(50001.), tensor(True))
    >>> plan.cells, plan.nodes
    (tensor(760), tensor(116))
    """
    if not isinstance(solver, Newton):
        raise TypeError(f"solver must be sinksort.Newton(...), got {type(solver).__name__}; transport takes any.")
    options = Options(dim, descending, weights, mask, targets, target_weights, num_targets, eps, 2, squash, solver)
    return smooth_plan(x, options, reads="averages")


@explained
@of_numbers_too
@robust_by_places
def soft_rank(
    x: Tensor,
    dim: int = -1,
    descending: bool = False,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """Soft ranks: 1 for the smallest value of a row, n for the largest, with a gradient for every value.

    Equal values share a rank. Padding gets 0. In the paper's symbols these are the Sinkhorn ranks n a^-1 o (P b_bar).

    Returns:
        The ranks, in the shape and dtype of x.

    >>> import torch, sinksort
    >>> x = torch.tensor([0.38, 4.0, -2.0, 6.0, -9.0])
    >>> sinksort.soft_rank(x, eps=1e-4)
    tensor([3., 4., 2., 5., 1.])
    >>> sinksort.soft_rank(x)
    tensor([2.9591, 4.1148, 2.0544, 4.8701, 1.0016])
    """
    options = Options(
        dim, descending, weights, mask, targets, target_weights, num_targets, eps, cost, squash, solver, backend
    )
    fused = (requests.ranks if mask is None else padding.ranks)(x, options)
    return ranks_for(x, options) if fused is None else fused


@explained
@of_numbers_too
def soft_sort(
    x: Tensor,
    dim: int = -1,
    descending: bool = False,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """Soft sorted values: m increasing averages of the values, one for each target, and m = n by default.

    A padded row has its sorted values first, then zeros. In the paper's symbols this is the Sinkhorn sort
    b^-1 o (P^T x).

    Returns:
        The sorted values, in the shape of x with m entries along ``dim``.

    >>> import torch, sinksort
    >>> x = torch.tensor([0.38, 4.0, -2.0, 6.0, -9.0])
    >>> sinksort.soft_sort(x, eps=1e-4)
    tensor([-9.0000, -2.0000,  0.3800,  4.0000,  6.0000])
    >>> sinksort.soft_sort(x, num_targets=2, eps=1e-3)
    tensor([-4.3240,  4.0760])
    """
    if is_robust(squash):
        return sort_with(
            x,
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
            backend=backend,
        )
    options = Options(
        dim, descending, weights, mask, targets, target_weights, num_targets, eps, cost, squash, solver, backend
    )
    fused = (requests.sorts if mask is None else padding.sorts)(x, options)
    if fused is not None:
        return fused
    if mask is None and options.equal_targets():
        found = columns_for(x, as_rows(x, dim).unsqueeze(-1), options)
        if found is not None:
            return found.squeeze(-1).to(x.dtype).movedim(-1, dim)
    return plan_for(x, options, reads="averages").sorted()


@explained
@full_precision
@robust_by_places
def soft_permutation(
    x: Tensor,
    dim: int = -1,
    descending: bool = False,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
    log: bool = False,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """The matrix of a soft sort: row j says from which values the j-th sorted value is made.

    Its rows sum to one, and ``soft_permutation(x) @ x`` is ``soft_sort(x)``. With ``log`` it holds the logarithms of
    the entries, which are finite where the entries themselves round to zero; -inf for padding.

    Args:
        log: give the logarithm of the matrix.

    Returns:
        The matrix (..., m, n): the batch of x first, ``dim`` at the end.

    >>> import torch, sinksort
    >>> sinksort.soft_permutation(torch.tensor([0.3, 0.1, 0.2]), eps=1e-3).round()
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [1., 0., 0.]])
    """
    options = Options(
        dim, descending, weights, mask, targets, target_weights, num_targets, eps, cost, squash, solver, backend
    )
    if log:
        return _log_permutation(x, options)
    if mask is None and options.equal_targets() and backend in ("auto", "numba"):
        found = None
        if as_rows(x, dim).shape[-1] >= _LONG or x.dtype == torch.float64:
            found = columns_for(x, None, options)
        if found is not None:
            return found
    fused = requests.permutations(x, options)
    if fused is not None:
        return fused
    compiled = compiled_plan(x, options, reads="averages")
    return (dense_plan(pose(x, options), solver, backend) if compiled is None else compiled).permutation()


def _log_permutation(x: Tensor, options: Options) -> Tensor:
    """(..., m, n), of exponents: fused kernels and the reference say to which targets a value goes, however rarely."""
    log_p, (dim, weights, mask) = requests.log_plans(x, options), (options.dim, options.weights, options.mask)
    if log_p is None:
        problem = pose(x, options)
        log_p = _in_order(log_shares_of(dense_plan(problem, options.solver, options.backend)), problem)
    a = existing(x, dim, mask)[0]
    padding = log_p == -torch.inf
    log_p = torch.where(padding, 0.0, log_p)
    if weights is not None:
        w = like_rows(weights, x, dim, "weights").to(log_p.dtype)
        w = (w if a is None else torch.where(a, w, 0.0)).unsqueeze(-1)
        log_p = torch.where(w > 0, log_p + torch.where(w > 0, w, 1.0).log(), -torch.inf)
    elif a is not None:
        log_p = torch.where(a.unsqueeze(-1), log_p, -torch.inf)
    log_P = torch.log_softmax(log_p, dim=-2)
    return torch.where(padding, -torch.inf, log_P).mT.to(x.dtype)


def _in_order(log_p: Tensor, p: Problem) -> Tensor:
    """log p (..., n, m) of increasing targets: from the top when descending, -inf for padding, which is last."""
    if not (p.padded_targets and p.mask is not None):
        return log_p.flip(-1) if p.descending else log_p
    at, live = torch.arange(log_p.shape[-1], device=log_p.device, dtype=torch.int64), p.mask.sum(-1)[..., None, None]
    if p.descending:
        log_p = log_p.gather(-1, (live - 1 - at).clamp(min=0).expand(log_p.shape))
    return torch.where(at < live, log_p, -torch.inf)


@full_precision
@robust_by_places
def log_shares(
    x: Tensor,
    *,
    mask: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """(..., n, n): the logarithm of the share of each value that goes to each default target, however small it is.

    In float32 by fused kernels, in full precision everywhere else.
    """
    options = Options(mask=mask, eps=eps, cost=cost, squash=squash, solver=solver, backend=backend)
    fused = requests.log_plans(x, options)
    return log_shares_of(dense_plan(pose(x, options), solver, backend)) if fused is None else fused


@explained
@full_precision
@functools.partial(robust_by_places, of="keys")
def sort_with(
    values: Tensor,
    keys: Tensor,
    dim: int = -1,
    descending: bool = False,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """Put ``values`` into the soft order of ``keys``, as ``values[keys.argsort()]`` does, with gradients in both.

    Args:
        values: in the shape of ``keys``, or with more dimensions after it: a payload of any shape for each key.
        keys: what is sorted, a floating-point tensor of any shape.
        dim: the dimension of ``keys`` along which they are compared; all others are batch.

    Returns:
        The payloads in their new order: the shape of ``values``, with m entries along ``dim``.

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
    options = Options(
        dim, descending, weights, mask, targets, target_weights, num_targets, eps, cost, squash, solver, backend
    )
    plain = options.equal_targets() and weights is None and mask is None
    if plain and (num_targets is None or type(num_targets) is int) and values.numel():
        carried_over = _carried(values, keys, options)
        if carried_over is not None:
            return carried_over
    at, payload_shape = dim % keys.ndim, values.shape[keys.ndim :]
    flat = values.reshape(*keys.shape, math.prod(payload_shape)).movedim(at, -2)
    if plain:
        found = columns_for(keys, flat, options)
        if found is not None:
            in_order = found.movedim(-2, at).to(values.dtype)
            return in_order.reshape(*in_order.shape[:-1], *payload_shape)
    plan = plan_for(keys, options, reads="averages")
    in_order = plan.push(flat).movedim(-2, at).to(values.dtype)
    return in_order.reshape(*in_order.shape[:-1], *payload_shape)


def _carried(values: Tensor, keys: Tensor, options: Options) -> Tensor | None:
    """``sort_with`` by fused kernels, or None."""
    rows = as_rows(keys, options.dim)
    n, batch, payload_shape = rows.shape[-1], rows.shape[:-1], values.shape[keys.ndim :]
    m = n if options.num_targets is None else options.num_targets
    at = options.dim % keys.ndim
    flat = values.reshape(*keys.shape, -1).movedim(at, -2)
    payload = flat.reshape(-1, n, flat.shape[-1])
    out = payloads.pushed(rows.reshape(-1, n), payload, m, options)
    if out is None:
        return None
    out = out.flip(-2) if options.descending else out
    return out.reshape(*batch, m, -1).movedim(-2, at).reshape(*batch[:at], m, *batch[at:], *payload_shape)


@explained
@of_numbers_too
@robust_by_places
def quantile_normalize(
    x: Tensor,
    reference: Tensor,
    dim: int = -1,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """Map x onto the distribution of ``reference``: each value becomes the reference value of its soft rank.

    Args:
        reference: (m,), the same for all rows, or one row for each row of x along the same ``dim``: the shape of x with
            m in place of n, or one that broadcasts to it. It need not be sorted.

    Returns:
        The mapped values, in the shape of x.

    >>> import torch, sinksort
    >>> sinksort.quantile_normalize(torch.tensor([0.3, 0.1, 0.2]), torch.tensor([30.0, 10.0, 20.0]), eps=1e-3)
    tensor([30., 10., 20.])
    """
    rows = as_rows(x, dim)
    require_floating(reference, "reference")
    batch = rows.shape[:-1]
    last = dim % x.ndim == x.ndim - 1
    try:
        in_rows = reference if last or reference.ndim < x.ndim else reference.movedim(dim, -1)
        fits = torch.broadcast_shapes(in_rows.shape[:-1], batch) == batch and in_rows.shape[-1] > 0
    except (RuntimeError, IndexError):
        fits = False
    fits = fits and (last or reference.ndim in (1, x.ndim))
    if not fits:
        wanted = [*x.shape[: dim % x.ndim], "m", *x.shape[dim % x.ndim + 1 :]]
        raise ValueError(
            f"reference must have shape (m,) or {tuple(wanted)} (m values along dim={dim} for each row of x), "
            f"got {tuple(reference.shape)}."
        )
    m = whole(in_rows.shape[-1])
    options = Options(dim, False, weights, mask, None, None, m, eps, cost, squash, solver, backend)
    return _averages_of_targets(x, in_rows.sort(dim=-1).values, options)


@full_precision
@robust_by_places
def averages_of_targets(
    x: Tensor,
    v: Tensor,
    *,
    dim: int = -1,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    num_targets: int | None = None,
    eps: float | Tensor = 1e-2,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """The average of ``v`` over the default targets that each value is sent to, in the shape of x.

    ``v`` is (m,), or (..., m) with one row for each row of x, in the order of the targets, of which a row with padding
    has as many as it holds values, unless ``num_targets`` says otherwise.
    """
    options = Options(dim, False, weights, mask, None, None, num_targets, eps, cost, squash, solver, backend)
    return _averages_of_targets(x, v, options)


def _averages_of_targets(x: Tensor, v: Tensor, options: Options) -> Tensor:
    if isinstance(x, Tensor) and x.is_floating_point() and x.element_size() < 4:  # averages are rounded once
        wide = v.float() if v.is_floating_point() and v.element_size() < 4 else v
        return _averages_of_targets(x.float(), wide, options).to(x.dtype)
    rows = as_rows(x, options.dim)
    if v.requires_grad and v.ndim == 1 and options.weights is None and options.mask is None:
        learned = payloads.pulled(rows.reshape(-1, rows.shape[-1]), v, options)
        if learned is not None:
            return learned.reshape(rows.shape).movedim(-1, options.dim)
    fused = requests.averages(x, options, v)
    if fused is not None:
        return fused
    return plan_for(x, options, reads="averages").pull(v.expand(*rows.shape[:-1], -1))
