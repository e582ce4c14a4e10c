"""The operators as kernels answer them: each poses an ask, and says what becomes of the answer.

None comes back when the reference is to answer: because no kernels fit, or because an argument is wrong, which the
reference says better. Who calls gives options by place: see ``memo``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.checks import values_readable
from ..core.costs import Cost
from ..core.modes import tracing
from ..core.problem import as_rows, entropy_number, existing, like_rows
from ..core.solvers import Solver
from ..core.squash import Squash
from . import placed
from .dispatch import MOST_SELECTED, able_of_logs, backend_for, least_of, refuse
from .memo import ReadOut, remembered_read
from .rows import SHARP_GROUPS, count_of, each_target, flattener, pulled, pushed, request_of, shaper, too_fine
from .targets import MOST_TARGETS, Targets, default_targets, membership_targets, nodes_in_place_of, sorting_nodes

_MOST_SORTED = 2048  #: targets that sorts by Numba take one by one: the longest rows that are worked on by one thread
_FEW = 16  #: so many targets of longer rows see every value, more do by way of a grid
_MOST_IN_GROUPS, _GROUP = 192, 16  #: values of rows that are sorted sixteen at a time if their targets are equal
_FAINT = 1e-12  #: share of a target, of which only the reference tells from where it would get it


@remembered_read
def ranks(
    x: Tensor,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    mask: Tensor | None,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> ReadOut | None:
    plain = targets is None and target_weights is None and mask is None
    name = backend_for(x, eps, cost, squash, solver, backend, weights, targets, target_weights, placed=True)
    if name is None:
        return None
    if placed.needed(eps, squash):
        known = placed.places(x, dim, weights, mask, eps, squash)
        if known is None:
            refuse(placed.REFUSED, backend)
            return None
        options = descending, known.weights, known.mask, targets, target_weights, num_targets
        read_out = _ranks(known.x, known.x, -1, *options, placed.fixed(eps), None, "sigmoid", name, backend, plain)
        return placed.finished(read_out, x, dim)
    rows = as_rows(x, dim)
    options = descending, weights, mask, targets, target_weights, num_targets
    return _ranks(x, rows, dim, *options, eps, squash, squash, name, backend, plain)


def _ranks(
    x: Tensor,
    rows: Tensor,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    mask: Tensor | None,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    squash: Any,
    like: Any,
    name: str,
    backend: str,
    plain: bool,
) -> ReadOut | None:
    """``like``: the squash whose places these values may have."""
    m = count_of(rows, num_targets) if plain else 0
    least = least_of(eps) if isinstance(eps, Tensor) else entropy_number(eps)
    nodes = nodes_in_place_of(m, least, name, like) if m > 1 else None
    if nodes is not None:
        at = default_targets(rows.shape[-1], m, nodes, descending, x.device)
    elif name == "numba" and MOST_TARGETS < m <= _MOST_SORTED and rows.shape[-1] <= _MOST_SORTED:
        # Too sharp for a rule; said to be equal, so that they are so with all digits.
        at = default_targets(rows.shape[-1], m, None, descending, x.device)._replace(m=m)
    else:
        several = each_target(x, rows, dim, mask, targets, target_weights, num_targets, descending, backend, name=name)
        if several is None:
            return None
        at = several
    uneven = targets is not None or target_weights is not None
    return pulled(x, rows, dim, weights, mask, at, eps, squash, name, backend, uneven=uneven)


@remembered_read
def sorts(
    x: Tensor,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    mask: Tensor | None,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
    weightless: bool = True,
) -> ReadOut | None:
    """``weightless``: whether some of the targets that the caller gave may weigh nothing."""
    name = backend_for(x, eps, cost, squash, solver, backend, weights, targets, target_weights)
    if name is None:
        return None
    rows = as_rows(x, dim)
    given = targets is not None or num_targets is not None
    if mask is not None and (not given or target_weights is not None or weights is not None):
        refuse("its kernels sort rows with padding onto given targets of equal weight only", backend)
        return None
    at, uneven = None, targets is not None or target_weights is not None
    if name == "numba" and not uneven and mask is None:
        at = _nodes_of_sorts(rows, num_targets, eps, squash, descending)
    if at is None:
        most = _MOST_SORTED if name == "numba" else MOST_TARGETS
        at = each_target(x, rows, dim, None, targets, target_weights, num_targets, descending, backend, most, name)
    if at is None:
        return None
    if mask is not None and at.y.shape[-1] <= MOST_SELECTED:
        refuse(f"its kernels sort rows with padding onto more than {MOST_SELECTED} targets", backend)
        return None
    back, dtype = shaper(x, dim), x.dtype

    def shaped(out: Tensor) -> Tensor:
        return back((out.flip(-1) if descending else out).to(dtype))

    weightless = weightless and target_weights is not None
    flat = flattener(x, dim)
    return pushed(x, rows, dim, weights, mask, at, eps, squash, name, backend, flat, shaped, weightless, uneven=uneven)


def _nodes_of_sorts(
    rows: Tensor, num_targets: int | None, eps: float | Tensor, squash: Squash, descending: bool
) -> Targets | None:
    """Nodes in place of default targets; or all targets, said to be equal, where kernels want to know that."""
    n, m = rows.shape[-1], count_of(rows, num_targets)
    if isinstance(eps, Tensor):  # kernels of nodes take one eps for all rows
        return None
    nodes = sorting_nodes(m, entropy_number(eps), squash) if m > 1 else None
    if nodes is not None:
        return default_targets(n, m, nodes, descending, rows.device)
    if tracing() or not _FEW < m <= MOST_TARGETS:
        return None
    in_groups = n <= _MOST_IN_GROUPS and rows.numel() >= _GROUP * n and entropy_number(eps) >= SHARP_GROUPS
    if n > _MOST_SORTED or in_groups:
        return default_targets(n, m, None, descending, rows.device)._replace(m=m)
    return None


@remembered_read
def averages(
    x: Tensor,
    v: Tensor,
    dim: int,
    weights: Tensor | None,
    mask: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> ReadOut | None:
    """Averages of ``v``, (m,) or (..., m) in the order of the default targets, over the targets of each value."""
    name = backend_for(x, eps, cost, squash, solver, backend, weights, v)
    if name is None:
        return None
    rows = as_rows(x, dim)
    if rows.numel() == 0 or not (values_readable(v) and bool(v.isfinite().all())):
        refuse("its kernels average numbers that are seen to be finite", backend)
        return None
    at = each_target(x, rows, dim, mask, None, None, num_targets, False, backend, name=name)
    if at is None:
        return None
    if at.y.shape[-1] <= MOST_SELECTED:
        refuse(f"its kernels average over more than {MOST_SELECTED} targets, and there are {at.y.shape[-1]}", backend)
        return None
    # Averages move with a constant, and without it no digits are lost: equal numbers come out as they are.
    wide = v.reshape(-1, v.shape[-1]).double()
    origin = wide.mean(-1, keepdim=True)
    read_out = pulled(x, rows, dim, weights, mask, at._replace(phi=(wide - origin).float()), eps, squash, name, backend)
    if read_out is None:
        return None
    shaped, dtype, kept = read_out.shaped, x.dtype, existing(x, dim, mask)[0] if mask is not None else None
    middle = (origin if len(origin) == 1 else origin.reshape(*rows.shape[:-1], 1).movedim(-1, dim)).to(dtype)

    def moved(out: Tensor) -> Tensor:
        averages = shaped(out) + middle
        return averages if kept is None else torch.where(kept.movedim(-1, dim), averages, 0.0)

    return read_out._replace(shaped=moved)


@remembered_read
def memberships(
    x: Tensor,
    share: Callable[[Tensor, float | Tensor, int, Tensor | None], Tensor],
    k: float | Tensor,
    dim: int,
    largest: bool,
    weights: Tensor | None,
    mask: Tensor | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> ReadOut | None:
    """``share(x, k, dim, mask)`` is k/n, (..., 1), after checking k."""
    name = backend_for(x, eps, cost, squash, solver, backend, weights, k, placed=True)
    if name is None:
        return None
    rows = as_rows(x, dim)
    n = rows.shape[-1]
    if isinstance(k, (int, float)) and not isinstance(k, bool) and 0 <= k <= n and mask is None:
        at = membership_targets(float(k) / n, largest, x.device)
    else:
        ends = membership_targets(0.5, largest, x.device)
        of_all = share(x, k, dim, mask).reshape(-1, 1).double()
        b = torch.cat([1.0 - of_all, of_all] if largest else [of_all, 1.0 - of_all], dim=-1)
        at = Targets(ends.y, b, ends.phi)
    if placed.needed(eps, squash):
        known = placed.places(x, dim, weights, mask, eps, squash)
        if known is None:
            refuse(placed.REFUSED, backend)
            return None
        entropies = placed.fixed(eps)
        read_out = pulled(known.x, known.x, -1, known.weights, known.mask, at, entropies, None, name, backend, True)
        return placed.finished(read_out, x, dim)
    return pulled(x, rows, dim, weights, mask, at, eps, squash, name, backend, selecting=True)


@remembered_read
def quantiles(
    x: Tensor,
    fillers: Callable[[Tensor, Any, Any, int, Tensor | None], Tensor],
    q: float | tuple[float, ...] | Tensor,
    how: Any,
    dim: int,
    weights: Tensor | None,
    mask: Tensor | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> ReadOut | None:
    """(...) of one level, (levels, ...) of several; not yet masked.

    ``fillers(x, q, how, dim, mask)`` are the target weights (levels, ..., 3); ``how`` is the business of ``fillers``.
    """
    name = backend_for(x, eps, cost, squash, solver, backend, weights, q)
    if name is None:
        return None
    rows, b, dtype = as_rows(x, dim), fillers(x, q, how, dim, mask), x.dtype
    shape = (len(b), *rows.shape)
    y = default_targets(rows.shape[-1], 3, None, False, x.device).y
    b = b if b.numel() == 3 else b.expand(*shape[:-1], 3)  # one for all rows
    at = Targets(y, b.reshape(-1, 3).double(), y)
    if weights is not None:
        weights = like_rows(weights, x, dim, "weights").expand(shape)
    if mask is not None:
        mask = like_rows(mask, x, dim, "mask").expand(shape)
    several = q.ndim > 0 if isinstance(q, Tensor) else isinstance(q, tuple)
    batch, flat = shape[:-1] if several else shape[1:-1], flattener(x, dim)

    def single(x: Tensor) -> Tensor:  # gradients of several levels add up, which half precision had better not do
        return x.float() if shape[0] > 1 and x.element_size() < 4 else x

    def each(x: Tensor) -> Tensor:
        return flat(x) if shape[0] == 1 else flat(single(x)).expand(shape[0], -1, -1).reshape(-1, shape[-1])

    def shaped(out: Tensor) -> Tensor:
        middle = out[:, 1].to(dtype)
        return middle if len(batch) == 1 else middle.reshape(batch)

    rows = single(rows).expand(shape)
    return pushed(rows, rows, -1, weights, mask, at, eps, squash, name, backend, each, shaped, selecting=True)


@remembered_read
def fillings(x: Tensor, b: Tensor, eps: float | Tensor, cost: Cost, solver: Solver, backend: str) -> ReadOut | None:
    """The share of each value that goes to the middle one of three targets, at 0, 1/2 and 1 and of weights b (3,).

    ``x`` are places: they are not squashed any more.
    """
    name = backend_for(x, eps, cost, None, solver, backend, b)
    if name is None:
        return None
    y = default_targets(x.shape[-1], 3, None, False, x.device).y
    at = Targets(y, b.reshape(1, 3).double(), torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float32, device=x.device))
    return pulled(x, x, -1, None, None, at, eps, None, name, backend, selecting=True)


@remembered_read
def log_plans(
    x: Tensor,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    mask: Tensor | None,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> ReadOut | None:
    """(..., n, m) float32: log of the share of each value that goes to each target, ``dim`` last; -inf for padding."""
    found = _log_shares(x, dim, descending, weights, mask, targets, target_weights, num_targets, eps, cost, squash,
                        solver, backend)  # fmt: skip
    if found is None:
        return None
    read_out, live = found
    placed = read_out.shaped
    return read_out._replace(shaped=lambda out: _from_the_top(placed(out), live, descending, -torch.inf))


@remembered_read
def permutations(
    x: Tensor,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    mask: Tensor | None,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> ReadOut | None:
    """(..., m, n): P_ji = a_i p_ij / b_j, normalised over the values; padding is 0."""
    found = _log_shares(x, dim, descending, weights, mask, targets, target_weights, num_targets, eps, cost, squash,
                        solver, backend)  # fmt: skip
    if found is None:
        return None
    read_out, live = found
    placed, a, dtype, device = read_out.shaped, read_out.request.a, x.dtype, x.device

    def shaped(out: Tensor) -> Tensor:
        log_p = placed(out)
        if live is not None:  # any number in place of -inf, which would be no distribution
            log_p = torch.where(torch.arange(log_p.shape[-1], device=device, dtype=torch.int64) < live, log_p, 0.0)
        if a is not None:
            log_p = log_p + a.log().reshape(*log_p.shape[:-1], 1)
        return _from_the_top(torch.softmax(log_p, dim=-2), live, descending, 0.0).mT.to(dtype)

    return read_out._replace(shaped=shaped)


# ---- parts


def _log_shares(
    x: Tensor,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    mask: Tensor | None,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> tuple[ReadOut, Tensor | None] | None:
    """log p (..., n, m), targets increasing; where targets are padded, how many are not (..., 1, 1)."""
    name = backend_for(x, eps, cost, squash, solver, backend, weights, targets, target_weights)
    if name is None:
        return None
    rows = as_rows(x, dim)
    at = each_target(x, rows, dim, mask, targets, target_weights, num_targets, descending, backend, name=name)
    if at is None:
        return None
    if target_weights is not None and not (values_readable(at.b) and bool((at.b > _FAINT).all())):
        refuse(
            f"its kernels say from where targets get what they get if each is seen to weigh {_FAINT:g} or more", backend
        )
        return None
    request, kept = request_of(x, rows, dim, weights, mask, at, eps, squash)
    if (
        request is None
        or too_fine(name, request, backend, "logs", targets is not None or target_weights is not None, False)
        or not able_of_logs(name, request, backend)
    ):
        return None
    shape = rows.shape
    read_out = ReadOut("logs", name, request, None, flattener(x, dim), lambda out: out.reshape(*shape, -1))
    padded = kept is not None and targets is None and target_weights is None and num_targets is None
    return read_out, kept.sum(-1)[..., None, None] if kept is not None and padded else None


def _from_the_top(t: Tensor, live: Tensor | None, descending: bool, nothing: float) -> Tensor:
    """(..., n, m): the last targets first when descending, padding last."""
    if live is None:
        return t.flip(-1) if descending else t
    at = torch.arange(t.shape[-1], device=t.device, dtype=torch.int64)
    if descending:
        t = t.gather(-1, (live - 1 - at).clamp(min=0).expand(t.shape))
    return torch.where(at < live, t, nothing)
