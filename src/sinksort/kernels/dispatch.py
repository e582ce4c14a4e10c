"""Which implementation answers a call: fused kernels where they can, the reference everywhere else."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..core.costs import Cost
from ..core.modes import eager, forward_mode_on, hidden, tracing
from ..core.solvers import Newton, Solver
from ..core.solvers._common import host_may_look
from ..core.squash import INCREASING_MAPS, Squash
from .contract import Kernels, LogPlanKernels, RejectedRowKernels, Request

BACKENDS = ("auto", "torch", "triton", "numba")

#: Rows up to this length are worked on by one thread (block) each, longer ones in pieces. Two targets on the CPU need
#: so little scratch that a row may have as many values as a piece.
_SHORT, _SHORT_OF_TWO = 2048, 1 << 15
MOST_SELECTED, _FEW_NODES = 4, 128  #: that all kernels take for longer rows
_AUTO = {"cpu": "numba", "cuda": "triton"}  #: by device
_FILES = {"numba": ("cpu.rows", "cpu.long"), "triton": ("gpu.rows", "gpu.long")}
_HINTS = {"numba": "install it with: pip install numba", "triton": "it comes with torch for CUDA on Linux"}
_ORDINARY = Newton()
_REACHED = 1e-5  #: marginal error that kernels always come below
#: Least entropy of sorts and selections of short rows in single precision; of very short ones, to as few targets.
_SHARP, _SHARP_OF_VERY_SHORT = 5e-3, 1e-3
_VERY_SHARP = 2e-3  #: the same of quantiles
_MOST_LOGS = 128  #: values of rows whose plans are answered as such
_VERY_SHORT = 20  #: values of rows that Numba's kernels work on sixteen at a time
#: Of single precision, and of potentials in 48 bits: beyond, hard plans come out wrong, or 1 / eps is nothing.
_LEAST_EPS, _MOST_EPS = 1e-10, 1e20
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


_MISSING = {name: _missing(name, name) for name in _FILES}


def missing(name: str) -> str | None:
    """Why no kernels of the backend called ``name`` can be used here, or None if they can."""
    return _MISSING[name]


def missing_for(device: torch.device) -> str | None:
    """Why there are no kernels for a device, or None if there are."""
    name = _AUTO.get(device.type)
    return f"there are no kernels for {device.type} devices" if name is None else missing(name)


def kernels_named(name: str, request: Request) -> Kernels:
    short, long = _FILES[name]
    most = _SHORT_OF_TWO if name == "numba" and has_two_targets(request) else _SHORT
    return _module(long if request.x.shape[-1] > most or _by_thresholds(name, request) else short)


def log_plan_kernels(name: str) -> LogPlanKernels:
    """Those that know ``logs``."""
    return cast("LogPlanKernels", _module(_FILES[name][0]))


def rejected_row_kernels(name: str, request: Request) -> RejectedRowKernels | None:
    """Those for rows that the kernels left over."""
    if name != "numba":
        return None
    kernels = cast("RejectedRowKernels", _module("cpu.rejected"))
    return kernels if kernels.able(request) else None


def _by_thresholds(name: str, request: Request) -> bool:
    """Whether a short row with few targets is better off with the kernels for long rows, which have more digits.

    In Triton of very short rows the others know gradients better, but memberships worse. In Numba the others are twice
    as fast where eps is not too small for them. It never is for masks; gradients of quantiles lose a digit with every
    digit of eps, until at last they are too few.
    """
    n, K = request.x.shape[-1], request.y.shape[-1]
    if request.m is not None or K > MOST_SELECTED:
        return False
    if name == "triton":
        return K <= 2 or n >= 16
    if has_two_targets(request):
        return False
    return n > _VERY_SHORT and sharp(request, _VERY_SHARP) if _of_fillers(request) else n >= 64 and sharp(request)


def has_two_targets(request: Request) -> bool:
    """Whether there are two targets, and so one unknown."""
    return request.m is None and request.y.shape[-1] == 2


def _any_eps(request: Request) -> bool:
    """Whether Numba's kernels take every eps: of two targets, and of three whose weights are double."""
    return has_two_targets(request) or (_of_fillers(request) and request.x.shape[-1] > _VERY_SHORT)


def _of_fillers(request: Request) -> bool:
    """Whether there are the three targets of a quantile, whose weights are double."""
    return request.m is None and request.y.shape[-1] == 3 and request.b.dtype == torch.float64


def sharp(request: Request, below: float = _SHARP) -> bool:
    """Whether eps is so small that what a few targets receive needs more than single precision."""
    return least_of(request.eps) < below


def least_of(eps: float | Tensor) -> float:
    """The smallest eps of a call. Tensors reach kernels only where their numbers may be looked at."""
    return float(eps.min()) if isinstance(eps, Tensor) else eps


@functools.cache
def _module(name: str) -> Kernels:
    return cast("Kernels", importlib.import_module(f"{__package__}.{name}"))


def backend_for(
    x: Tensor,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
    *constants: Any,
    placed: bool = False,
) -> str | None:
    """The backend whose kernels may answer, or None for the reference. ``constants`` must not need gradients.

    What is wrong with an argument is for the reference to say. ``placed``: whether the operator can find the places of
    the values by torch (see ``places.py``), so that a squash may be callable and eps may need a gradient.
    """
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
    reason = reason or _unfit(x, eps, cost, squash, solver, constants, name, placed)
    return None if _refused(reason, backend) else name


def able(name: str, request: Request, backend: str) -> bool:
    """Whether the kernels called ``name`` can answer; remembered as the choice if so."""
    if tracing():
        # A trace cannot ask the kernels: what all of them can do must be enough.
        few = request.y.shape[-1] <= (MOST_SELECTED if request.m is None else _FEW_NODES)
        if not few and request.x.shape[-1] > _SHORT:
            return not _refused("a compiled program takes fewer targets for rows as long as these", backend)
    elif _refused(kernels_named(name, request).unable(request), backend):
        return False
    remember(name)
    return True


def able_of_logs(name: str, request: Request, backend: str) -> bool:
    """``able`` for ``logs``."""
    n, reason = request.x.shape[-1], None
    if n > _MOST_LOGS:
        reason = f"its kernels say where at most {_MOST_LOGS} values go, and there are {n}"
    elif not tracing():
        reason = log_plan_kernels(name).unable(request)
    if _refused(reason, backend):
        return False
    remember(name)
    return True


def too_sharp(name: str, request: Request, backend: str) -> bool:
    """Whether single precision is not enough for a few targets: what they receive changes within eps.

    More targets are sorted in double precision then.
    """
    n, K = request.x.shape[-1], request.y.shape[-1]
    if name != "numba" or K > MOST_SELECTED or n > _SHORT:
        return False
    if _any_eps(request) or _by_thresholds(name, request):
        return False
    eps, least = least_of(request.eps), least_eps(n, K)
    below = eps < least * (1.0 - 1e-6)  # a tensor in single precision may say a little less than what was typed
    return below and _refused(f"its kernels sort and select from eps = {least:g} up, and eps = {eps:g}", backend)


def least_eps(n: int, K: int) -> float:
    """From which n values are sorted on K targets in single precision."""
    return _SHARP_OF_VERY_SHORT if n <= _VERY_SHORT and K <= _VERY_SHORT else _SHARP


def remember(name: str) -> None:
    if not torch.compiler.is_compiling():
        last_used.set(name)


def _refused(reason: str | None, backend: str) -> bool:
    """A reason sends ``auto`` to the reference, and is an error for who asked by name.

    Who asked for Numba may still have the exact family: the reason is kept for ``settle``.
    """
    if reason is not None and backend != "auto":
        if backend == "numba" and _MISSING["numba"] is None and torch.compiler.is_compiling():
            pass  # see ``compiled_plan``
        elif backend == "numba" and _MISSING["numba"] is None and eager():
            _reason.set(reason)
        else:
            _complain(reason, backend)
    return reason is not None


def _complain(reason: str, backend: str) -> NoReturn:
    raise ValueError(f"backend={backend!r} cannot answer this call: {reason}; backend='auto' chooses one that can.")


def settle(used: str, backend: str) -> None:
    """Remember who makes a plan, after the fast kernels did not; an error for who asked for another by name."""
    if backend == "numba" and used != "numba":
        _complain(_reason.get(), backend)
    if backend in BACKENDS:  # not for rows that a kernel rejected, or for gradients: that operator has said its backend
        remember(used)


def refuse(reason: str, backend: str) -> None:
    """Nothing, for ``auto``; an error for who asked by name."""
    _refused(reason, backend)


def _say_once(reason: str) -> None:
    if not torch.compiler.is_compiling() and reason not in _said:
        _said.add(reason)
        _log.info("sinksort: fused kernels are not used, since %s", reason)


def _unfit(
    x: Tensor,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    constants: tuple[Any, ...],
    name: str,
    placed: bool,
) -> str | None:
    if x.dtype not in _SINGLE:
        return f"its kernels compute in single precision, and x is {x.dtype}"
    if not _satisfied(solver):
        return f"its kernels have their own solver, and solver={_shown(solver)} asks for another"
    if not isinstance(cost, (int, float)) or cost != 2:
        return f"its kernels know the squared cost only, and cost={_shown(cost)}"
    known = squash is None or (isinstance(squash, str) and squash in INCREASING_MAPS)
    if not (known or (placed and callable(squash) and _readable(x))):
        return "its kernels know the squashes 'sigmoid', 'arctan' and None"
    if isinstance(eps, Tensor):
        reason = _unfit_tensor(x, eps, name, placed)
        if reason is not None:
            return reason
    elif isinstance(eps, (int, float)) and eps > 0 and not _LEAST_EPS <= eps <= _MOST_EPS:
        return f"its kernels take eps from {_LEAST_EPS:g} to {_MOST_EPS:g}, and eps = {eps:g}"
    if any(isinstance(t, Tensor) and (t.requires_grad or _has_tangent(t)) for t in constants):
        return "its kernels differentiate in x only, and another argument requires a gradient"
    return _transformed(x)


def _readable(t: Tensor) -> bool:
    """Whether numbers may be looked at, and the derivatives asked for are those of autograd in reverse mode."""
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
    if not _LEAST_EPS <= least <= most <= _MOST_EPS:
        return f"its kernels take eps from {_LEAST_EPS:g} to {_MOST_EPS:g}, and eps is from {least:g} to {most:g}"
    return None


def _shown(option: object) -> str:
    """An option in a message. ``torch.compile`` cannot trace how a dataclass is printed."""
    return type(option).__name__ if torch.compiler.is_compiling() else repr(option)


def _satisfied(solver: Solver) -> bool:
    """Whether what kernels do is what was asked for: they are finer than any tolerance that is not very small."""
    if solver == _ORDINARY:
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
