"""The operators as kernels answer them: each makes a request, and says what becomes of the answer.

None comes back when a plan is to answer: because the table leaves the call to plans, or because an argument is wrong,
which the reference says better. Arguments after the options are given by place: see ``memo``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.checks import values_readable
from ...core.modes import tracing
from ...core.option_values import Options
from ...core.problem import as_rows, entropy_number, existing, like_rows
from ..backends import backend_for, refuse
from ..dispatch import BAND_ROWS, BAND_VALUES, MOST_SORTED, MOST_TARGETS, SHARP_GROUPS, least_of
from ..memo import ReadOut, remembered_read
from . import placed
from .rows import Call, each_target, flattener, pulled, pushed, request_for, shaper
from .targets import Targets, default_targets, membership_targets, nodes_in_place_of, sorting_nodes

_SOME = 16  #: targets of longer rows up to which each sees every value; more are answered by way of a grid


@remembered_read
def ranks(x: Tensor, options: Options) -> ReadOut | None:
    """(..., n): the rank of each value."""
    o = options
    name = backend_for(x, o, o.weights, o.targets, o.target_weights, placed=True)
    if name is None:
        return None
    if not placed.needed(o.eps, o.squash):
        return _ranks(Call(name, "pull", x, as_rows(x, o.dim), o), o.squash)
    found = placed.places(x, o)
    if found is None:
        refuse(placed.REFUSED, o.backend)
        return None
    call = Call(name, "pull", found.x, found.x, placed.options_for(found, o))
    return placed.finished(_ranks(call, "sigmoid"), x, o.dim)


def _ranks(call: Call, like: Any) -> ReadOut | None:
    """``like``: the squash whose places these values may have."""
    o, n, device = call.options, call.n(), call.x.device
    m = call.default_count() if o.equal_targets() and o.mask is None else 0
    least = least_of(o.eps) if isinstance(o.eps, Tensor) else entropy_number(o.eps)
    nodes = nodes_in_place_of(m, least, call.name, like) if m > 1 else None
    at: Targets | None
    if nodes is not None:
        at = default_targets(n, m, nodes, o.descending, device)
    elif call.name == "numba" and MOST_TARGETS < m <= MOST_SORTED and n <= MOST_SORTED:
        # eps is too small for a rule. Targets that are said to be equal are equal with all digits.
        at = default_targets(n, m, None, o.descending, device)._replace(m=m)
    else:
        at = each_target(call, o.mask)
    return None if at is None else pulled(call, at)


@remembered_read
def sorts(x: Tensor, options: Options, may_be_empty: bool = True) -> ReadOut | None:
    """(..., m): sorted values. ``may_be_empty``: whether some targets that the caller gave may weigh nothing."""
    o = options
    name = backend_for(x, o, o.weights, o.targets, o.target_weights)
    if name is None:
        return None
    given = o.targets is not None or o.num_targets is not None
    if o.mask is not None and (not given or o.target_weights is not None or o.weights is not None):
        refuse("its kernels sort rows with padding onto given targets of equal weight only", o.backend)
        return None
    empty = may_be_empty and o.target_weights is not None
    call = Call(name, "push", x, as_rows(x, o.dim), o, may_be_empty=empty)
    at = _nodes_of_sorts(call) if name == "numba" and o.equal_targets() and o.mask is None else None
    at = each_target(call, None) if at is None else at
    if at is None:
        return None
    back, dtype, descending = shaper(x, o.dim), x.dtype, o.descending

    def shaped(out: Tensor) -> Tensor:
        return back((out.flip(-1) if descending else out).to(dtype))

    return pushed(call, at, flattener(x, o.dim), shaped)


def _nodes_of_sorts(call: Call) -> Targets | None:
    """Nodes in place of default targets; or all targets, said to be equal, where kernels want to know that."""
    o, n, m = call.options, call.rows.shape[-1], call.default_count()
    if isinstance(o.eps, Tensor):  # kernels of nodes take one eps for all rows
        return None
    eps = entropy_number(o.eps)
    nodes = sorting_nodes(m, eps, o.squash) if m > 1 else None
    if nodes is not None:
        return default_targets(n, m, nodes, o.descending, call.x.device)
    if tracing() or not _SOME < m <= MOST_TARGETS:
        return None
    in_groups = n <= BAND_VALUES and call.rows.numel() >= BAND_ROWS * n and eps >= SHARP_GROUPS
    if n > MOST_SORTED or in_groups:
        return default_targets(n, m, None, o.descending, call.x.device)._replace(m=m)
    return None


@remembered_read
def averages(x: Tensor, options: Options, v: Tensor) -> ReadOut | None:
    """Averages of ``v``, (m,) or (..., m) in the order of the default targets, over the targets of each value."""
    o = options
    name = backend_for(x, o, o.weights, v)
    if name is None:
        return None
    call = Call(name, "pull", x, as_rows(x, o.dim), o, payload=True)
    if call.rows.numel() == 0 or not (values_readable(v) and bool(v.isfinite().all())):
        refuse("its kernels average numbers that are seen to be finite", o.backend)
        return None
    at = each_target(call, o.mask)
    if at is None:
        return None
    # Averages move with a constant, and without it no digits are lost: equal numbers come out as they are.
    double = v.reshape(-1, v.shape[-1]).double()
    origin = double.mean(-1, keepdim=True)
    read_out = pulled(call, at._replace(phi=(double - origin).float()))
    if read_out is None:
        return None
    dim, batch = o.dim, call.rows.shape[:-1]
    shaped, kept = read_out.shaped, existing(x, dim, o.mask)[0] if o.mask is not None else None
    middle = (origin if len(origin) == 1 else origin.reshape(*batch, 1).movedim(-1, dim)).to(x.dtype)

    def moved(out: Tensor) -> Tensor:
        averages = shaped(out) + middle
        return averages if kept is None else torch.where(kept.movedim(-1, dim), averages, 0.0)

    return read_out._replace(shaped=moved)


@remembered_read
def memberships(
    x: Tensor,
    options: Options,
    share: Callable[[Tensor, float | Tensor, int, Tensor | None], Tensor],
    k: float | Tensor,
    largest: bool,
) -> ReadOut | None:
    """``share(x, k, dim, mask)`` is k/n, (..., 1), after checking k."""
    o = options
    name = backend_for(x, o, o.weights, k, placed=True)
    if name is None:
        return None
    rows = as_rows(x, o.dim)
    n = rows.shape[-1]
    if isinstance(k, (int, float)) and not isinstance(k, bool) and 0 <= k <= n and o.mask is None:
        at = membership_targets(float(k) / n, largest, x.device)
    else:
        ends = membership_targets(0.5, largest, x.device)
        of_all = share(x, k, o.dim, o.mask).reshape(-1, 1).double()
        b = torch.cat([1.0 - of_all, of_all] if largest else [of_all, 1.0 - of_all], dim=-1)
        at = Targets(ends.y, b, ends.phi)
    if not placed.needed(o.eps, o.squash):
        return pulled(Call(name, "pull", x, rows, o, selecting=True), at)
    found = placed.places(x, o)
    if found is None:
        refuse(placed.REFUSED, o.backend)
        return None
    call = Call(name, "pull", found.x, found.x, placed.options_for(found, o), selecting=True)
    return placed.finished(pulled(call, at), x, o.dim)


@remembered_read
def quantiles(
    x: Tensor,
    options: Options,
    fillers: Callable[[Tensor, Any, Any, int, Tensor | None], Tensor],
    q: float | tuple[float, ...] | Tensor,
    how: Any,
) -> ReadOut | None:
    """(...) of one level, (levels, ...) of several; not yet masked.

    ``fillers(x, q, how, dim, mask)`` are the target weights (levels, ..., 3); only ``fillers`` looks at ``how``.
    """
    o = options
    name = backend_for(x, o, o.weights, q)
    if name is None:
        return None
    rows, b, dtype = as_rows(x, o.dim), fillers(x, q, how, o.dim, o.mask), x.dtype
    shape = (len(b), *rows.shape)
    y = default_targets(rows.shape[-1], 3, None, False, x.device).y
    b = b if b.numel() == 3 else b.expand(*shape[:-1], 3)  # one for all rows
    at = Targets(y, b.reshape(-1, 3).double(), y)
    o = o._replace(
        dim=-1,
        weights=None if o.weights is None else like_rows(o.weights, x, o.dim, "weights").expand(shape),
        mask=None if o.mask is None else like_rows(o.mask, x, o.dim, "mask").expand(shape),
    )
    several = q.ndim > 0 if isinstance(q, Tensor) else isinstance(q, tuple)
    batch, flat = shape[:-1] if several else shape[1:-1], flattener(x, options.dim)

    def single(x: Tensor) -> Tensor:  # gradients of several levels add up, for which half precision has too few digits
        return x.float() if shape[0] > 1 and x.element_size() < 4 else x

    def for_each_level(x: Tensor) -> Tensor:
        return flat(x) if shape[0] == 1 else flat(single(x)).expand(shape[0], -1, -1).reshape(-1, shape[-1])

    def shaped(out: Tensor) -> Tensor:
        middle = out[:, 1].to(dtype)
        return middle if len(batch) == 1 else middle.reshape(batch)

    rows = single(rows).expand(shape)
    return pushed(Call(name, "push", rows, rows, o, selecting=True), at, for_each_level, shaped)


@remembered_read
def fillings(x: Tensor, options: Options, b: Tensor) -> ReadOut | None:
    """The share of each value that goes to the middle one of three targets, at 0, 1/2 and 1 and of weights b (3,).

    ``x`` are places: they are not squashed any more.
    """
    name = backend_for(x, options, b)
    if name is None:
        return None
    y = default_targets(x.shape[-1], 3, None, False, x.device).y
    at = Targets(y, b.reshape(1, 3).double(), torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float32, device=x.device))
    return pulled(Call(name, "pull", x, x, options, selecting=True), at)


@remembered_read
def log_plans(x: Tensor, options: Options) -> ReadOut | None:
    """(..., n, m) float32: log of the share of each value that goes to each target, ``dim`` last; -inf for padding."""
    found = _log_shares(x, options)
    if found is None:
        return None
    (read_out, live), descending = found, options.descending
    in_rows = read_out.shaped
    return read_out._replace(shaped=lambda out: _from_the_top(in_rows(out), live, descending, -torch.inf))


@remembered_read
def permutations(x: Tensor, options: Options) -> ReadOut | None:
    """(..., m, n): P_ji = a_i p_ij / b_j, normalised over the values; padding is 0."""
    found = _log_shares(x, options)
    if found is None:
        return None
    (read_out, live), descending = found, options.descending
    in_rows, a, dtype, device = read_out.shaped, read_out.request.a, x.dtype, x.device

    def shaped(out: Tensor) -> Tensor:
        log_p = in_rows(out)
        if live is not None:  # any number in place of -inf, which would be no distribution
            log_p = torch.where(torch.arange(log_p.shape[-1], device=device, dtype=torch.int64) < live, log_p, 0.0)
        if a is not None:
            log_p = log_p + a.log().reshape(*log_p.shape[:-1], 1)
        return _from_the_top(torch.softmax(log_p, dim=-2), live, descending, 0.0).mT.to(dtype)

    return read_out._replace(shaped=shaped)


def _log_shares(x: Tensor, options: Options) -> tuple[ReadOut, Tensor | None] | None:
    """log p (..., n, m), targets increasing; where targets are padded, how many are not (..., 1, 1)."""
    o = options
    name = backend_for(x, o, o.weights, o.targets, o.target_weights)
    if name is None:
        return None
    call = Call(name, "logs", x, as_rows(x, o.dim), o)
    at = each_target(call, o.mask)
    if at is None:
        return None
    request, kept = request_for(call, at)
    if request is None:
        return None
    shape = call.rows.shape
    read_out = ReadOut("logs", name, request, None, flattener(x, o.dim), lambda out: out.reshape(*shape, -1))
    padded = kept is not None and o.equal_targets() and o.num_targets is None
    return read_out, kept.sum(-1)[..., None, None] if kept is not None and padded else None


def _from_the_top(t: Tensor, live: Tensor | None, descending: bool, nothing: float) -> Tensor:
    """(..., n, m): the last targets first when descending, padding last."""
    if live is None:
        return t.flip(-1) if descending else t
    at = torch.arange(t.shape[-1], device=t.device, dtype=torch.int64)
    if descending:
        t = t.gather(-1, (live - 1 - at).clamp(min=0).expand(t.shape))
    return torch.where(at < live, t, nothing)
