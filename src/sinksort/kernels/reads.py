"""The operators as kernels answer them: their targets, the ask, and the answer in the shape of x.

Each function returns None when the reference is to answer: because no kernels fit, or because an argument is wrong,
which the reference says better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._checks import require_floating, require_non_negative, tracing, values_readable
from ..costs import Cost
from ..problem import as_rows, entropy_number, existing, like_rows, target_rows
from ..solvers import Solver
from ..squash import Squash
from . import ops
from .asks import Ask
from .choice import able, able_of_logs, chosen, forward_mode_on, refuse, remember, too_sharp
from .tables import MOST_TARGETS, Targets, default_targets, membership_targets, nodes_in_place_of

_FAINT = 1e-12  #: share of a target, of which only the reference tells from where it would get it


def ranks(
    x: Tensor,
    *,
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
) -> Tensor | None:
    plain = targets is None and target_weights is None and mask is None
    alone = plain and weights is None
    options = (dim, descending, num_targets, eps, cost, squash, solver, backend)
    known = _decided_before(x, options) if alone else None
    if known is not None:
        return _pulled_again(x, *known, dim, eps, squash)
    name = chosen(x, eps, cost, squash, solver, backend, weights, targets, target_weights)
    if name is None:
        return None
    rows = as_rows(x, dim)
    m = _count(rows, num_targets) if plain else 0
    nodes = nodes_in_place_of(m, entropy_number(eps), name) if m > 1 else None
    if nodes is not None:
        at = default_targets(rows.shape[-1], m, nodes, descending, x.device)
    else:
        several = _targets(x, rows, dim, mask, targets, target_weights, num_targets, descending, backend)
        if several is None:
            return None
        at = several
    out = _pulled(x, rows, dim, weights, mask, at, eps, squash, name, backend)
    if out is not None and alone:
        _decide(x, options, name, at)
    return out


def sorts(
    x: Tensor,
    *,
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
) -> Tensor | None:
    name = chosen(x, eps, cost, squash, solver, backend, weights, targets, target_weights)
    if name is None:
        return None
    rows = as_rows(x, dim)
    if mask is not None:
        refuse("its kernels sort rows without padding only", backend)
        return None
    at = _targets(x, rows, dim, mask, targets, target_weights, num_targets, descending, backend)
    if at is None:
        return None
    out = _pushed(x, rows, dim, weights, mask, at, eps, squash, name, backend)
    if out is None:
        return None
    out = out.flip(-1) if descending else out
    return out.reshape(*rows.shape[:-1], -1).to(x.dtype).movedim(-1, dim)


def memberships(
    x: Tensor,
    k: float | Tensor,
    share: Callable[[], Tensor],
    *,
    dim: int,
    largest: bool,
    weights: Tensor | None,
    mask: Tensor | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> Tensor | None:
    """``share()`` is k/n, (..., 1), after checking k."""
    name = chosen(x, eps, cost, squash, solver, backend, weights, k)
    if name is None:
        return None
    rows = as_rows(x, dim)
    n = rows.shape[-1]
    if isinstance(k, (int, float)) and not isinstance(k, bool) and 0 <= k <= n and mask is None:
        at = membership_targets(float(k) / n, largest, x.device)
    else:
        ends = membership_targets(0.5, largest, x.device)
        of_all = share().reshape(-1, 1).double()
        b = torch.cat([1.0 - of_all, of_all] if largest else [of_all, 1.0 - of_all], dim=-1)
        at = Targets(ends.y, b, ends.phi)
    return _pulled(x, rows, dim, weights, mask, at, eps, squash, name, backend, sharp=True)


def quantiles(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    fillers: Tensor,
    *,
    dim: int,
    weights: Tensor | None,
    mask: Tensor | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> Tensor | None:
    """(levels, ...), not yet masked. ``fillers``: the target weights (levels, ..., 3)."""
    name = chosen(x, eps, cost, squash, solver, backend, weights, q)
    if name is None:
        return None
    rows = as_rows(x, dim)
    shape = (len(fillers), *rows.shape)
    y = default_targets(rows.shape[-1], 3, None, False, x.device).y
    fillers = fillers if fillers.numel() == 3 else fillers.expand(*shape[:-1], 3)  # one for all rows
    at = Targets(y, fillers.reshape(-1, 3).double(), y)
    if weights is not None:
        weights = like_rows(weights, x, dim, "weights").expand(shape)
    if mask is not None:
        mask = like_rows(mask, x, dim, "mask").expand(shape)
    out = _pushed(rows.expand(shape), rows.expand(shape), -1, weights, mask, at, eps, squash, name, backend)
    return None if out is None else out[:, 1].reshape(shape[:-1]).to(x.dtype)


def log_plans(
    x: Tensor,
    *,
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
) -> Tensor | None:
    """(..., n, m) float32: log of the share of each value that goes to each target, ``dim`` last; -inf for padding."""
    found = _log_shares(x, dim, descending, weights, mask, targets, target_weights, num_targets, eps, cost, squash,
                        solver, backend)  # fmt: skip
    if found is None:
        return None
    log_p, _, live = found
    return _from_the_top(log_p, live, descending, -torch.inf)


def permutations(
    x: Tensor,
    *,
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
) -> Tensor | None:
    """(..., m, n): P_ji = a_i p_ij / b_j, normalised over the values; padding is 0."""
    found = _log_shares(x, dim, descending, weights, mask, targets, target_weights, num_targets, eps, cost, squash,
                        solver, backend)  # fmt: skip
    if found is None:
        return None
    log_p, a, live = found
    if live is not None:  # any number in place of -inf, which would be no distribution
        log_p = torch.where(torch.arange(log_p.shape[-1], device=x.device) < live, log_p, 0.0)
    if a is not None:
        log_p = log_p + a.log().reshape(*log_p.shape[:-1], 1)
    return _from_the_top(torch.softmax(log_p, dim=-2), live, descending, 0.0).mT.to(x.dtype)


# ---- calls whose only tensor is x, and which differ in its numbers alone

_decided: dict[tuple[Any, ...], tuple[str, Targets]] = {}
_MOST_DECIDED = 1024


def _decided_before(x: Tensor, options: tuple[Any, ...]) -> tuple[str, Targets] | None:
    """The backend that answered such a call, and the targets it was given: to decide takes as long as some kernels."""
    if type(x) is not Tensor or tracing() or forward_mode_on():
        return None
    try:
        known = _decided.get((x.shape, x.dtype, x.device, *options))
    except TypeError:  # something that cannot be an option, as others will say
        return None
    if known is not None:
        remember(known[0])
    return known


def _decide(x: Tensor, options: tuple[Any, ...], name: str, at: Targets) -> None:
    if type(x) is Tensor and not tracing():
        if len(_decided) >= _MOST_DECIDED:
            _decided.clear()
        call = (x.shape, x.dtype, x.device, *options)
        _decided[call] = name, at


def _pulled_again(x: Tensor, name: str, at: Targets, dim: int, eps: float | Tensor, squash: Any) -> Tensor:
    rows = as_rows(x, dim)
    flat = rows if rows.ndim == 2 else rows.reshape(-1, rows.shape[-1])
    ask = Ask(flat, None, at.y, at.b, entropy_number(eps), squash, at.m, at.last)
    return _in_place_of(x, rows, dim, ops.pull(ask, at.phi, name), None)


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
) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
    """log p (..., n, m), targets increasing; weights (R, n); where targets are padded, how many are not (..., 1, 1)."""
    name = chosen(x, eps, cost, squash, solver, backend, weights, targets, target_weights)
    if name is None:
        return None
    rows = as_rows(x, dim)
    at = _targets(x, rows, dim, mask, targets, target_weights, num_targets, descending, backend)
    if at is None:
        return None
    if target_weights is not None and not (values_readable(at.b) and bool((at.b > _FAINT).all())):
        refuse(
            f"its kernels say from where targets get what they get if each is seen to weigh {_FAINT:g} or more", backend
        )
        return None
    ask, kept = _ask(x, rows, dim, weights, mask, at, eps, squash)
    if ask is None or not able_of_logs(name, ask, backend):
        return None
    log_p = ops.logs(ask, name).reshape(*rows.shape, -1)
    padded = kept is not None and targets is None and target_weights is None and num_targets is None
    return log_p, ask.a, kept.sum(-1)[..., None, None] if kept is not None and padded else None


def _from_the_top(t: Tensor, live: Tensor | None, descending: bool, nothing: float) -> Tensor:
    """(..., n, m): the last targets first when descending, padding last."""
    if live is None:
        return t.flip(-1) if descending else t
    at = torch.arange(t.shape[-1], device=t.device)
    if descending:
        t = t.gather(-1, (live - 1 - at).clamp(min=0).expand(t.shape))
    return torch.where(at < live, t, nothing)


def _count(rows: Tensor, num_targets: int | None) -> int:
    return rows.shape[-1] if num_targets is None else num_targets


def _targets(
    x: Tensor,
    rows: Tensor,
    dim: int,
    mask: Tensor | None,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    descending: bool,
    backend: str,
) -> Targets | None:
    """Targets one by one: the default ones or those given; None if there are too many."""
    given = targets if targets is not None else target_weights
    m = given.shape[-1] if isinstance(given, Tensor) and given.ndim else _count(rows, num_targets)
    if m > MOST_TARGETS:
        refuse(f"its kernels take at most {MOST_TARGETS} targets one by one, and there are {m}", backend)
        return None
    n = rows.shape[-1]
    if given is None and mask is None and isinstance(m, int) and m >= 1:
        return default_targets(n, m, None, descending, x.device)
    _, count = existing(x, dim, mask)
    y, b, _ = target_rows(
        rows, count, mask is not None, targets, target_weights, num_targets, descending, torch.float64
    )
    levels = b.flip(-1).cumsum(-1).flip(-1) if descending else b.cumsum(-1)
    y, b, phi = (t.expand(*rows.shape[:-1], m).reshape(-1, m).float() for t in (y, b, count * levels))
    return Targets(y, b, phi)


def _pulled(
    x: Tensor,
    rows: Tensor,
    dim: int,
    weights: Tensor | None,
    mask: Tensor | None,
    at: Targets,
    eps: float | Tensor,
    squash: Squash,
    name: str,
    backend: str,
    sharp: bool = False,
) -> Tensor | None:
    """``sharp``: whether answers may change within eps, and not only within its square root as ranks do."""
    ask, kept = _ask(x, rows, dim, weights, mask, at, eps, squash)
    if ask is None or (sharp and too_sharp(name, ask, backend)) or not able(name, ask, backend):
        return None
    return _in_place_of(x, rows, dim, ops.pull(ask, at.phi, name), kept)


def _in_place_of(x: Tensor, rows: Tensor, dim: int, out: Tensor, kept: Tensor | None) -> Tensor:
    """(R, n) in the shape of x; what is masked is 0."""
    out = out if rows.ndim == 2 else out.reshape(rows.shape)
    out = out if kept is None else torch.where(kept, out, 0.0)
    return out if rows is x else out.movedim(-1, dim)


def _pushed(
    x: Tensor,
    rows: Tensor,
    dim: int,
    weights: Tensor | None,
    mask: Tensor | None,
    at: Targets,
    eps: float | Tensor,
    squash: Squash,
    name: str,
    backend: str,
) -> Tensor | None:
    ask, _ = _ask(x, rows, dim, weights, mask, at, eps, squash)
    if ask is None or too_sharp(name, ask, backend) or not able(name, ask, backend):
        return None
    return ops.push(ask, name)


def _ask(
    x: Tensor,
    rows: Tensor,
    dim: int,
    weights: Tensor | None,
    mask: Tensor | None,
    at: Targets,
    eps: float | Tensor,
    squash: Any,
) -> tuple[Ask | None, Tensor | None]:
    n = rows.shape[-1]
    if rows.numel() == 0:
        return None, None
    flat = rows if rows.ndim == 2 else rows.reshape(-1, n)
    a = None
    if weights is not None:
        require_floating(weights, "weights")
        a = like_rows(weights, x, dim, "weights").reshape(-1, n).to(at.b.dtype)
    kept, _ = existing(x, dim, mask) if mask is not None else (None, None)
    if kept is not None:
        # What is masked weighs nothing, and whatever stood there is gone; an empty row becomes a row of zeros.
        live = kept.reshape(-1, n)
        flat = torch.where(live, flat, 0.0)
        a = torch.where(live, live.to(at.b.dtype) if a is None else a, 0.0)
        a = torch.where(live.any(-1, keepdim=True), a, 1.0)
    if a is not None:
        if weights is not None:
            require_non_negative(a, "weights")
        a = a / a.sum(-1, keepdim=True)
    return Ask(flat, a, at.y, at.b, entropy_number(eps), squash, at.m, at.last), kept
