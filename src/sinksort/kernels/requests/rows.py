"""From the options of a call to a request: which targets, which weights, and how rows come and go.

Each function returns None where plans are to answer, as in ``requests``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.checks import require_floating, require_non_negative, values_readable
from ...core.modes import hidden, tracing, whole
from ...core.option_values import Options
from ...core.problem import entropy, entropy_number, existing, like_rows, target_rows
from ...core.solvers._common import host_may_look
from ..backends import able, refuses
from ..contract import Request
from ..dispatch import FAINT, LIGHT, Facts, facts_of
from ..memo import ReadOut
from .targets import Targets, default_targets


class Call(NamedTuple):
    """A call of an operator whose kernels are sought."""

    name: str  #: of the kernels
    read: str  #: "pull", "push" or "logs", see ``contract``
    x: Tensor
    rows: Tensor  #: of x (..., n)
    options: Options
    selecting: bool = False  #: whether targets are those of a mask or a quantile
    payload: bool = False  #: whether numbers of the caller are averaged, and not ranks
    may_be_empty: bool = False  #: whether targets that the caller gave may weigh nothing, and are read

    def n(self) -> int:
        return whole(self.rows.shape[-1])

    def default_count(self) -> int:
        """How many default targets there are."""
        return self.n() if self.options.num_targets is None else self.options.num_targets


def each_target(call: Call, mask: Tensor | None) -> Targets | None:
    """Targets one by one: the default ones or those given; None if there are too many.

    To the kernels called "triton" weights in double precision say that targets are not the default ones.
    """
    x, o, rows = call.x, call.options, call.rows
    given, n = o.given_targets(), rows.shape[-1]
    m = given.shape[-1] if isinstance(given, Tensor) and given.ndim else call.default_count()
    # Limits on the number alone, which hold whatever the caller named: the others are looked at with the request.
    if refuses(call.name, Facts(call.read, 1, m, named=True), o.backend):
        return None
    if given is None and mask is None and isinstance(m, int) and m >= 1:
        return default_targets(n, m, None, o.descending, x.device)
    _, count = existing(x, o.dim, mask)
    y, b, _ = target_rows(
        rows, count, mask is not None, o.targets, o.target_weights, o.num_targets, o.descending, torch.float64
    )
    levels = b.flip(-1).cumsum(-1).flip(-1) if o.descending else b.cumsum(-1)
    y, b, phi = (t.expand(*rows.shape[:-1], m).reshape(-1, m) for t in (y, b, count * levels))
    return Targets(y.float(), b if call.name == "triton" else b.float(), phi.float())


def request_for(call: Call, at: Targets) -> tuple[Request | None, Tensor | None]:
    """The request of a call, or None if the table leaves it to plans; and which values exist if some are masked."""
    request, kept = _request_of(call, at)
    if request is None:
        return None, None
    o = call.options
    facts = _facts(call, request)
    if refuses(call.name, facts, o.backend):
        return None, None
    if call.name == "numba" and _has_light(call, request) and refuses(call.name, facts._replace(light=True), o.backend):
        return None, None
    if _has_empty(call, request) and refuses(call.name, facts._replace(empty=True), o.backend):
        return None, None
    return (request, kept) if able(call.name, request, facts, o.backend) else (None, None)


def pulled(call: Call, at: Targets) -> ReadOut | None:
    """Averages of ``at.phi`` over the targets of each value."""
    request, kept = request_for(call, at)
    if request is None:
        return None
    x, dim = call.x, call.options.dim
    back = shaper(x, dim)
    shaped = back if kept is None else lambda out: torch.where(kept.movedim(-1, dim), back(out), 0.0)
    return ReadOut("pull", call.name, request, at.phi, flattener(x, dim), shaped)


def pushed(
    call: Call, at: Targets, flattened: Callable[[Tensor], Tensor], shaped: Callable[[Tensor], Tensor]
) -> ReadOut | None:
    """Averages of the values over each target. The functions are those of a ``ReadOut``."""
    request, _ = request_for(call, at)
    return None if request is None else ReadOut("push", call.name, request, None, flattened, shaped)


def _facts(call: Call, request: Request) -> Facts:
    """All that the table looks at, but for what numbers in tensors say."""
    o = call.options
    return facts_of(call.name, request, call.read)._replace(
        named=o.backend != "auto",
        selecting=call.selecting,
        mask=call.selecting and request.m is None and request.y.shape[-1] == 2,
        uneven=not o.equal_targets(),
        padded=o.mask is not None,
        payload=call.payload,
        traced=tracing(),
    )


def _has_light(call: Call, request: Request) -> bool:
    """Whether some of what values or targets weigh is next to nothing, but not nothing, and the host may see it.

    Targets of masks and quantiles have weights in double precision, of which kernels know all digits. Of masks, which
    have one unknown, they know those of values, too.
    """
    if call.read == "logs":
        return False
    double, one_unknown = request.b.dtype == torch.float64, request.m is None and request.y.shape[-1] == 2
    given = [] if call.options.weights is None or request.a is None or (double and one_unknown) else [request.a]
    if request.m is None and not double:
        given.append(request.b)
    return any(values_readable(t) and bool(_light(t).any()) for t in given)


def _light(weights: Tensor) -> Tensor:
    return (weights > 0) & (weights < LIGHT * weights.amax(-1, keepdim=True))


def _has_empty(call: Call, request: Request) -> bool:
    """Whether a target weighs nothing that has to be told exactly: asks the device, but while something traces."""
    b = request.b
    if call.read == "logs":
        return call.options.target_weights is not None and not (values_readable(b) and bool((b > FAINT).all()))
    return call.may_be_empty and not hidden(b) and host_may_look(b) and bool((b <= 0).any())


def flattener(x: Tensor, dim: int) -> Callable[[Tensor], Tensor]:
    """From the shape of x to rows (R, n). It is made once, so that a warm call does not look at ``dim`` again."""
    n = x.shape[dim]
    if dim not in (-1, x.ndim - 1):
        return lambda t: t.movedim(dim, -1).reshape(-1, n)
    return _itself if x.ndim == 2 else lambda t: t.reshape(-1, n)


def shaper(x: Tensor, dim: int) -> Callable[[Tensor], Tensor]:
    """From rows, which may have another length now, to the shape of x."""
    if dim not in (-1, x.ndim - 1):
        moved = x.movedim(dim, -1).shape[:-1]
        return lambda t: t.reshape(*moved, -1).movedim(-1, dim)
    batch = x.shape[:-1]
    return _itself if x.ndim == 2 else lambda t: t.reshape(*batch, -1)


def _itself(t: Tensor) -> Tensor:
    return t


def _request_of(call: Call, at: Targets) -> tuple[Request | None, Tensor | None]:
    x, o, rows = call.x, call.options, call.rows
    # Padding goes behind all values, and the request says that there is padding, see ``contract``.
    behind = call.read == "pull" and call.name == "numba" and o.squash is not None
    behind = behind and o.mask is not None and at.m is None and at.y.shape[0] > 1
    n = rows.shape[-1]
    if rows.numel() == 0:
        return None, None
    flat = rows if rows.ndim == 2 else rows.reshape(-1, n)
    a = None
    if o.weights is not None:
        require_floating(o.weights, "weights")
        a = like_rows(o.weights, x, o.dim, "weights").reshape(-1, n).to(at.b.dtype)
    kept, _ = existing(x, o.dim, o.mask) if o.mask is not None else (None, None)
    if kept is not None:
        # A masked value weighs nothing, and another number takes its place; a row of such values becomes zeros.
        live = kept.reshape(-1, n)
        flat = torch.where(live, flat, torch.finfo(flat.dtype).max if behind else 0.0)
        a = torch.where(live, live.to(at.b.dtype) if a is None else a, 0.0)
        a = torch.where(live.any(-1, keepdim=True), a, 1.0)
    if a is not None:
        if o.weights is not None:
            require_non_negative(a, "weights")
        a = a / a.sum(-1, keepdim=True)
    squash: Any = o.squash
    last = at.y.new_empty(1, 0, at.y.shape[-1]) if behind else at.last
    return Request(flat, a, at.y, at.b, _softness(o.eps, rows), squash, at.m, last), kept


def _softness(eps: float | Tensor, rows: Tensor) -> float | Tensor:
    """eps as kernels want it: a number, or one for each of the rows (R,)."""
    if not isinstance(eps, Tensor):
        return entropy_number(eps)
    if eps.numel() == 1:
        return float(eps.detach())
    return entropy(eps.detach(), rows.shape[:-1], rows.device, torch.float32).reshape(-1)
