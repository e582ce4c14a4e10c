"""Whether kernels may be used for a call at all: which backends there are here, and which calls suit them.

Kernels compute in single precision, for the squared cost and with a solver of their own, and they are differentiated in
x only. Which kernels those are, ``dispatch`` says.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..core.modes import eager, forward_mode_on, hidden, tracing
from ..core.option_values import DEFAULT_SOLVER, Options
from ..core.solvers import Newton, Solver
from ..core.solvers._common import host_may_look
from ..core.squash import INCREASING_MAPS
from .contract import Request
from .dispatch import LEAST_EPS, MOST_EPS, PLAN, Facts, first, module

BACKENDS = ("auto", "torch", "triton", "numba")

_AUTO = {"cpu": "numba", "cuda": "triton"}  #: by device
_HINTS = {"numba": "install it with: pip install numba", "triton": "it comes with torch for CUDA on Linux"}
_REACHED = 1e-5  #: marginal error that kernels always come below
_SINGLE = (torch.float32, torch.float16, torch.bfloat16)

_log = logging.getLogger("sinksort")
_said: set[str] = set()  #: reasons that have been logged
_reason: ContextVar[str] = ContextVar("sinksort_reason", default="its kernels do not take it")
last_used: ContextVar[str] = ContextVar("sinksort_last_backend", default="torch")


def last_backend() -> str:
    """Which backend answered the last operator that was called here: "torch", "triton" or "numba".

    >>> import torch, sinksort
    >>> _ = sinksort.soft_rank(torch.randn(4, 10), backend="torch")
    >>> sinksort.last_backend()
    'torch'
    """
    return last_used.get()


def _missing(package: str, name: str) -> str | None:
    """Why no kernels of a backend can be used here, or None. Found out without importing the package behind it."""
    if name == "triton" and torch.version.hip is not None:
        return "its kernels have never run on AMD's devices, and this is torch for ROCm"
    try:
        there = importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        there = False
    return None if there else f"{package} is not installed; {_HINTS[name]}"


_MISSING = {name: _missing(name, name) for name in _HINTS}


def missing(name: str) -> str | None:
    """Why no kernels of the backend called ``name`` can be used here, or None if they can."""
    return _MISSING[name]


def missing_for(device: torch.device) -> str | None:
    """Why there are no kernels for a device, or None if there are."""
    name = _AUTO.get(device.type)
    return f"there are no kernels for {device.type} devices" if name is None else missing(name)


def backend_for(x: Tensor, options: Options, *constants: Any, placed: bool = False) -> str | None:
    """The backend whose kernels may answer, or None for the reference. ``constants`` must not need gradients.

    The reference says what is wrong with an argument. ``placed``: whether the operator can find the places of the
    values by torch (see ``requests.placed``), so that a squash may be callable and eps may need a gradient.
    """
    backend = options.backend
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(map(repr, BACKENDS))}, got {backend!r}.")
    remember("torch")
    if backend == "torch" or not isinstance(x, Tensor):
        return None
    name = backend
    if backend == "auto":
        name = _AUTO.get(x.device.type, "")
        if not name:
            if x.device.type != "meta":
                _say_once(f"there are none for {x.device.type} devices")
            return None
    reason = _MISSING[name]
    if reason is not None and backend == "auto":
        _say_once(reason)
        return None
    reason = reason or _unfit(x, options, constants, name, placed)
    return None if _refused(reason, backend) else name


def refuses(name: str, facts: Facts, backend: str) -> bool:
    """Whether the table leaves a call to plans, which is an error for a caller who named the backend."""
    row = first("refused", name, facts)
    if row is None or row.answer != PLAN:
        return False
    _refused("" if backend == "auto" else row.reason(facts), backend)
    return True


def able(name: str, request: Request, facts: Facts, backend: str) -> bool:
    """Whether the kernels called ``name`` can answer; remembered as the choice if so. A trace cannot know the sizes."""
    if not tracing():
        row = first("kernels", name, facts)
        assert row is not None, "the last row of each backend fits every request"  # noqa: S101
        reason = row.reason(facts) if row.answer == PLAN else module(row.entry).unable(request)
        if _refused(reason, backend):
            return False
    remember(name)
    return True


def remember(name: str) -> None:
    if not torch.compiler.is_compiling():
        last_used.set(name)


def _refused(reason: str | None, backend: str) -> bool:
    """Whether there is a reason not to use kernels, which is an error for a caller who named the backend.

    For "numba" the exact family may still answer: the reason is kept for ``settle``.
    """
    if reason is not None and backend != "auto":
        if backend == "numba" and _MISSING["numba"] is None and torch.compiler.is_compiling():
            pass  # see ``linear.compiled``
        elif backend == "numba" and _MISSING["numba"] is None and eager():
            _reason.set(reason)
        else:
            _complain(reason, backend)
    return reason is not None


def _complain(reason: str, backend: str) -> NoReturn:
    raise ValueError(f"backend={backend!r} cannot answer this call: {reason}; backend='auto' chooses one that can.")


def settle(used: str, backend: str) -> None:
    """Remember which backend makes a plan; an error if the caller named another."""
    if backend == "numba" and used != "numba":
        _complain(_reason.get(), backend)
    if backend in BACKENDS:  # not for rows that a kernel rejected, or for gradients: that operator has said its backend
        remember(used)


def refuse(reason: str, backend: str) -> None:
    """Do nothing for "auto"; raise an error for a caller who named the backend."""
    _refused(reason, backend)


def _say_once(reason: str) -> None:
    if not torch.compiler.is_compiling() and reason not in _said:
        _said.add(reason)
        _log.info("sinksort: fused kernels are not used, since %s", reason)


def _unfit(x: Tensor, options: Options, constants: tuple[Any, ...], name: str, placed: bool) -> str | None:
    """Why kernels cannot be used, whatever the sizes are, or None."""
    eps, cost, squash, solver = options.eps, options.cost, options.squash, options.solver
    if x.dtype not in _SINGLE:
        return f"its kernels compute in single precision, and x is {x.dtype}"
    if not _satisfied(solver):
        return f"its kernels have their own solver, and solver={_shown(solver)} asks for another"
    if not isinstance(cost, (int, float)) or cost != 2:
        return f"its kernels know the squared cost only, and cost={_shown(cost)}"
    named = squash is None or (isinstance(squash, str) and squash in INCREASING_MAPS)
    if not (named or (placed and callable(squash) and _readable(x))):
        return "its kernels know the squashes 'sigmoid', 'arctan' and None"
    if isinstance(eps, Tensor):
        reason = _unfit_tensor(x, eps, name, placed)
        if reason is not None:
            return reason
    elif isinstance(eps, (int, float)) and eps > 0 and not LEAST_EPS <= eps <= MOST_EPS:
        return f"its kernels take eps from {LEAST_EPS:g} to {MOST_EPS:g}, and eps = {eps:g}"
    if any(isinstance(t, Tensor) and (t.requires_grad or _has_tangent(t)) for t in constants):
        return "its kernels differentiate in x only, and another argument requires a gradient"
    return _transformed(x)


def _readable(t: Tensor) -> bool:
    """Whether numbers may be looked at, and derivatives are those of autograd in reverse mode."""
    return eager() and not hidden(t) and host_may_look(t)


def _unfit_tensor(x: Tensor, eps: Tensor, name: str, placed: bool) -> str | None:
    """Why kernels cannot take eps as a tensor. What is wrong with it is for the reference to say."""
    if not (_readable(x) and _readable(eps)):
        return "its kernels want eps as a number where its numbers cannot be looked at, and it is a tensor"
    if eps.numel() != 1 and name != "numba":
        return "its kernels take one eps for all rows, and there are several"
    if eps.requires_grad and not placed:
        return "its kernels differentiate in x only, and eps requires a gradient"
    if eps.ndim >= x.ndim or not eps.is_floating_point() or eps.numel() == 0:
        return "its kernels take eps as a number, or as a tensor with one number a row"
    least, most = (float(t) for t in eps.detach().aminmax())
    if not LEAST_EPS <= least <= most <= MOST_EPS:
        return f"its kernels take eps from {LEAST_EPS:g} to {MOST_EPS:g}, and eps is from {least:g} to {most:g}"
    return None


def _shown(option: object) -> str:
    """An option in a message. ``torch.compile`` cannot trace how a dataclass is printed."""
    return type(option).__name__ if torch.compiler.is_compiling() else repr(option)


def _satisfied(solver: Solver) -> bool:
    """Whether kernels may stand in for a solver: they are finer than any tolerance that is not very small."""
    if solver == DEFAULT_SOLVER:
        return True
    fine = isinstance(solver, Newton) and (solver.tolerance is None or solver.tolerance >= _REACHED)
    return fine and solver == Newton(tolerance=solver.tolerance)


def _has_tangent(t: Tensor) -> bool:
    return forward_ad.unpack_dual(t).tangent is not None if forward_mode_on() else False


def _transformed(x: Tensor) -> str | None:
    """Kernels are differentiated by autograd in reverse mode, and batched by vmap; all else is the reference's."""
    if torch.compiler.is_compiling():
        return None
    if torch._C._functorch.maybe_current_level() is None:
        return "its kernels have no forward-mode derivative" if _has_tangent(x) else None
    interpreters: Callable[[], list[Any]] = torch._functorch.pyfunctorch.retrieve_all_functorch_interpreters
    if all(each.key() == torch._C._functorch.TransformType.Vmap for each in interpreters()):
        return None
    return "its kernels are differentiated by autograd, not by the transforms of torch.func"
