"""What the operators pose has in common: which targets, which weights, and how rows come and go.

None where the reference is to answer, as in ``requests``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.checks import require_floating, require_non_negative, values_readable
from ..core.modes import hidden, whole
from ..core.problem import entropy, entropy_number, existing, like_rows, target_rows
from ..core.solvers._common import host_may_look
from ..core.squash import Squash
from .contract import Request
from .dispatch import MOST_SELECTED, able, has_two_targets, kernels_named, least_of, refuse, sharp, too_sharp
from .memo import ReadOut
from .targets import MOST_TARGETS, Targets, default_targets

#: Weight relative to the largest of its row: what is lighter is lost in what kernels of the CPU take for balanced.
_LIGHT = 1e-5
_FINE, _FINE_LOGS = 1e-3, 5e-3  #: least eps of weighted rows, and of logarithms of plans with weights
_SMALL, _TINY = 1e-4, 1e-5  #: the same of all rows but those of masks, on the CPU and on a GPU
_TYPED = 1.0 + 1e-6  #: a tensor in single precision may say a little less than what was typed
_SHARP_SORTS = 5e-3  #: least eps of sorts of weighted rows in single precision
SHARP_GROUPS, _SHORT = 2e-3, 192  #: least eps of sorts of sixteen rows at a time, and the longest of such rows
_EXACT = 2048  #: values, and targets, of the exact family


def _itself(t: Tensor) -> Tensor:
    return t


def count_of(rows: Tensor, num_targets: int | None) -> int:
    return whole(rows.shape[-1]) if num_targets is None else num_targets


def each_target(
    x: Tensor,
    rows: Tensor,
    dim: int,
    mask: Tensor | None,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    descending: bool,
    backend: str,
    most: int = MOST_TARGETS,
    name: str = "",
) -> Targets | None:
    """Targets one by one: the default ones or those given; None if there are too many.

    To the kernels called "triton" weights in double precision say that targets are not the default ones.
    """
    given = targets if targets is not None else target_weights
    m = given.shape[-1] if isinstance(given, Tensor) and given.ndim else count_of(rows, num_targets)
    if m > most:
        refuse(f"its kernels take at most {most} targets one by one, and there are {m}", backend)
        return None
    n = rows.shape[-1]
    if given is None and mask is None and isinstance(m, int) and m >= 1:
        return default_targets(n, m, None, descending, x.device)
    _, count = existing(x, dim, mask)
    y, b, _ = target_rows(
        rows, count, mask is not None, targets, target_weights, num_targets, descending, torch.float64
    )
    levels = b.flip(-1).cumsum(-1).flip(-1) if descending else b.cumsum(-1)
    y, b, phi = (t.expand(*rows.shape[:-1], m).reshape(-1, m) for t in (y, b, count * levels))
    return Targets(y.float(), b if name == "triton" else b.float(), phi.float())


def pulled(
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
    selecting: bool = False,
    uneven: bool = False,
) -> ReadOut | None:
    """``selecting``: whether answers may change within eps, and not only within its square root as ranks do."""
    behind = name == "numba" and squash is not None and at.m is None and len(at.y) > 1
    request, kept = request_of(x, rows, dim, weights, mask, at, eps, squash, behind)
    if (
        request is None
        or (selecting and too_sharp(name, request, backend))
        or too_uneven(name, request, weights is not None, backend)
    ):
        return None
    if too_fine(name, request, backend, "pull", uneven, selecting):
        return None
    if not able(name, request, backend):
        return None
    back = shaper(x, dim)
    shaped = back if kept is None else lambda out: torch.where(kept.movedim(-1, dim), back(out), 0.0)
    return ReadOut("pull", name, request, at.phi, flattener(x, dim), shaped)


def pushed(
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
    flattened: Callable[[Tensor], Tensor],
    shaped: Callable[[Tensor], Tensor],
    weightless: bool = False,
    selecting: bool = False,
    uneven: bool = False,
) -> ReadOut | None:
    """``weightless``: whether some of the targets may weigh nothing, and all of them are read."""
    request, _ = request_of(x, rows, dim, weights, mask, at, eps, squash)
    if request is None or too_sharp(name, request, backend) or too_uneven(name, request, weights is not None, backend):
        return None
    if too_fine(name, request, backend, "push", uneven, selecting):
        return None
    if weightless and has_weightless(at.b) and not kernels_named(name, request).weightless(request):
        refuse("its kernels have no gradient for what lands on a target without weight, and there is one", backend)
        return None
    if not able(name, request, backend):
        return None
    return ReadOut("push", name, request, None, flattened, shaped)


def too_uneven(name: str, request: Request, weighted: bool, backend: str) -> bool:
    """Whether some of what values or targets weigh is next to nothing, but not nothing, and the host may see it.

    Targets of masks and quantiles have weights in double precision, of which kernels know all digits. Of masks, which
    have one unknown, they know those of values, too.
    """
    double = request.b.dtype == torch.float64
    given = [request.a] if weighted and request.a is not None and not (double and has_two_targets(request)) else []
    if request.m is None and not double:
        given.append(request.b)
    if name != "numba" or not any(values_readable(t) and _has_light(t) for t in given):
        return False
    refuse(f"its kernels take weights from {_LIGHT:g} of the largest up, or 0, and some are less", backend)
    return True


def _has_light(weights: Tensor) -> bool:
    return bool(((weights > 0) & (weights < _LIGHT * weights.amax(-1, keepdim=True))).any())


def too_fine(name: str, request: Request, backend: str, read: str, uneven: bool, selecting: bool) -> bool:
    """Whether kernels in single precision would lose digits of this call that another implementation keeps.

    They round weights, which uneven targets and small eps bring to light. On the CPU the exact family answers such
    calls, on a GPU the reference does. Who asks for kernels by name gets them.

    uneven     whether the caller gave targets or their weights
    selecting  whether targets are those of a mask or a quantile
    """
    if backend != "auto" or (selecting and has_two_targets(request)):
        return name == "triton" and backend == "auto" and request.a is not None and sharp(request, _FINE)
    weighted, K, eps = request.a is not None, request.y.shape[-1], least_of(request.eps) * _TYPED
    if read == "logs":
        return ((weighted or uneven) and eps < _FINE_LOGS) or (name == "numba" and eps < _SMALL)
    ranks_of_few = read == "pull" and request.m is None and (3 if name == "triton" else 2) <= K <= MOST_SELECTED
    if name == "triton":
        return eps < _TINY or ranks_of_few or (weighted and eps < _FINE) or (uneven and eps <= _FINE)
    if max(request.x.shape[-1], request.m or K) > _EXACT:
        return False
    rounded = weighted or (uneven and read == "pull")
    n = request.x.shape[-1]
    if (
        read == "push"
        and not selecting
        and request.m is None
        and MOST_SELECTED < K
        and n <= _SHORT
        and eps < SHARP_GROUPS
    ):
        return True
    if weighted and read == "push" and not selecting and eps < _SHARP_SORTS:  # sorts in double take longer
        return True
    return eps < _SMALL or (rounded and (eps < _FINE or ranks_of_few)) or (weighted and selecting)


def has_weightless(b: Tensor) -> bool:
    """Whether a target weighs nothing. Asks the device, but while something traces or records."""
    return not hidden(b) and host_may_look(b) and bool((b <= 0).any())


def flattener(x: Tensor, dim: int) -> Callable[[Tensor], Tensor]:
    """From the shape of x to rows (R, n). Made once, so that a call is not asked twice what it need not do."""
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


def request_of(
    x: Tensor,
    rows: Tensor,
    dim: int,
    weights: Tensor | None,
    mask: Tensor | None,
    at: Targets,
    eps: float | Tensor,
    squash: Any,
    behind: bool = False,
) -> tuple[Request | None, Tensor | None]:
    """``behind``: padding goes behind all values, and the request says that there is padding (see ``contract``)."""
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
        flat = torch.where(live, flat, torch.finfo(flat.dtype).max if behind else 0.0)
        a = torch.where(live, live.to(at.b.dtype) if a is None else a, 0.0)
        a = torch.where(live.any(-1, keepdim=True), a, 1.0)
    if a is not None:
        if weights is not None:
            require_non_negative(a, "weights")
        a = a / a.sum(-1, keepdim=True)
    last = at.y.new_empty(1, 0, at.y.shape[-1]) if behind and mask is not None else at.last
    return Request(flat, a, at.y, at.b, softness(eps, rows), squash, at.m, last), kept


def softness(eps: float | Tensor, rows: Tensor) -> float | Tensor:
    """eps as kernels want it: a number, or one for each of the rows (R,)."""
    if not isinstance(eps, Tensor):
        return entropy_number(eps)
    if eps.numel() == 1:
        return float(eps.detach())
    return entropy(eps.detach(), rows.shape[:-1], rows.device, torch.float32).reshape(-1)
