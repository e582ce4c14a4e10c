"""What torch is doing around a call: executing it at once, watching it, or tracing it.

Three answers, from the narrowest to the widest:

    ordinary()      nothing but autograd in reverse mode is around. Only then are tensors remembered from call to call
                    (``remembered``), and kernels called without a registered operator in between.
    not tracing()   a mode may watch every operator (a counter of flops, say), but tensors hold values.
    tracing()       tensors may hold no values (``FakeTensorMode``, ``torch.compile``), or somebody records what happens
                    to them (``make_fx``, ``torch.jit.trace``, ``torch.export``), or a transform of ``torch.func`` is
                    at work. To look at a value is an error then, or would write it into a program as a constant.

A tensor that was made in such a mode is good for nothing outside, so none of them is ever kept.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

_P = ParamSpec("_P")
_R = TypeVar("_R")

# All of these are answered by C++, at some 60 ns each.
_functorch_level = torch._C._functorch.maybe_current_level
_modes = torch._C._len_torch_dispatch_stack
_jit_state = torch._C._get_tracing_state
_key_included = torch._C._dispatch_tls_is_dispatch_key_included
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch  #: ``make_fx(pre_dispatch=True)`` has modes of its own
_MODE_KEYS = torch._C._TorchDispatchModeKey
_TRACERS = _MODE_KEYS.FAKE, _MODE_KEYS.PROXY, _MODE_KEYS.FUNCTIONAL
PLAIN = Tensor, Parameter  #: a subclass may redefine every operator
_NO_DISPATCH = Tensor.__torch_dispatch__


def ordinary() -> bool:
    """Whether this is eager execution with nothing but reverse-mode autograd around it."""
    return not (
        torch.compiler.is_compiling()  # a constant for torch.compile, which does not see the rest then
        or _functorch_level() is not None
        or _modes()
        or _jit_state() is not None
        or _key_included(_PRE_DISPATCH)
        or forward_ad._current_level >= 0
    )


def eager() -> bool:
    """Whether tensors hold values that may be looked at, and derivatives are those of reverse mode."""
    return not tracing() and forward_ad._current_level < 0


def tracing() -> bool:
    """Whether values are not there to be looked at, or must not be."""
    return (
        torch.compiler.is_compiling()
        or _functorch_level() is not None
        or _jit_state() is not None
        or _key_included(_PRE_DISPATCH)
        or (_modes() > 0 and any(torch._C._get_dispatch_mode(key) is not None for key in _TRACERS))
    )


def jit_tracing() -> bool:
    return _jit_state() is not None


def hidden(t: Tensor) -> bool:
    """Whether the values of ``t`` are not there to be looked at, or must not be."""
    return tracing() or isinstance(t, torch._subclasses.FakeTensor)


def forward_mode_on() -> bool:
    return forward_ad._current_level >= 0


def redefines_operators(t: Tensor) -> bool:
    """Whether ``t`` is of a class that is shown every operator (fake tensors, distributed ones)."""
    return type(t).__torch_dispatch__ is not _NO_DISPATCH


def remembered(most: int) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A decorator like ``functools.lru_cache(most)`` for functions that make tensors.

    Calls that are not ordinary are neither looked up nor kept. Tensors are made outside of inference mode, as a later
    call may want gradients of what is computed with them.
    """

    def decorate(make: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.lru_cache(most)
        def kept(*args: _P.args, **named: _P.kwargs) -> _R:
            with torch.inference_mode(False):
                return make(*args, **named)

        @functools.wraps(make)
        def made(*args: _P.args, **named: _P.kwargs) -> _R:
            return kept(*args, **named) if ordinary() else make(*args, **named)  # type: ignore[arg-type]

        return made

    return decorate


def whole(size: object) -> int:
    """A size as a number. For ``torch.jit.trace`` it is a tensor, and torch warns that the program is for this size."""
    return int(size) if isinstance(size, Tensor) else cast("int", size)


_UNPATCHED = [(module, dict(vars(module))) for module in (builtins, math)]


@contextmanager
def unpatched() -> Iterator[None]:
    """Python's own functions as they were when sinksort was imported, while a compiler is imported or compiles.

    ``torch.export`` replaces ``max``, ``min`` and ``math.pow`` while it traces. Numba and Triton recognise such
    functions by identity when they are imported, and would hold on to the replacements for the life of the process.
    """
    patched = [
        (module, name, getattr(module, name), own)
        for module, names in _UNPATCHED
        for name, own in names.items()
        if callable(own) and getattr(module, name, own) is not own
    ]
    for module, name, _, own in patched:
        setattr(module, name, own)
    try:
        yield
    finally:
        for module, name, replacement, _ in patched:
            setattr(module, name, replacement)
