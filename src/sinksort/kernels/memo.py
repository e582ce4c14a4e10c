"""Requests of operators, answered by kernels; and remembered for calls that differ in the numbers of x alone.

To find out which kernels answer, with which targets, takes as long as some of them need. So the request is kept,
without x, under everything that it depends on; and kernels keep with it what they prepared (``Request.prepared``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec, cast

from torch import Tensor

from ..core.modes import PLAIN, ordinary
from ..core.option_values import Options
from . import autograd
from .backends import last_used
from .contract import Request

_P = ParamSpec("_P")

_MOST_REMEMBERED, _MOST_NUMBERS = 1024, 1024  #: calls that are remembered, and weights of targets of one of them


class ReadOut(NamedTuple):
    """A read-out as kernels take it. The functions must not hold on to x."""

    read: str
    name: str  #: of the kernels
    request: Request
    phi: Tensor | None
    rows: Callable[[Tensor], Tensor]  #: of x, as kernels take them: (R, n)
    shaped: Callable[[Tensor], Tensor]  #: what the operator returns, from the answer
    lasting: bool = True  #: whether it holds for other numbers in x as well


class _Remembered(NamedTuple):
    """The same without x."""

    name: str
    implementation: autograd.Implementation
    rest: tuple[Any, ...]  #: of a request, after x
    phi: Tensor | None
    rows: Callable[[Tensor], Tensor]
    shaped: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, read_out: ReadOut) -> _Remembered:
        request = read_out.request._replace(prepared={})
        implementation = autograd.implementation_of(read_out.read, request, read_out.name)
        return cls(read_out.name, implementation, request[1:], read_out.phi, read_out.rows, read_out.shaped)


_remembered: dict[tuple[Any, ...], _Remembered] = {}


def remembered_read(
    pose: Callable[Concatenate[Tensor, Options, _P], ReadOut | None],
) -> Callable[Concatenate[Tensor, Options, _P], Tensor | None]:
    """Turn a function that makes a ``ReadOut`` into one that returns its answer, or None if it made none."""

    @functools.wraps(pose)
    def answer(x: Tensor, options: Options, *args: _P.args, **named: _P.kwargs) -> Tensor | None:
        if type(x) not in PLAIN or named or not ordinary():
            return _answered(pose(x, options, *args, **named))
        # The types tell True from 1, which it equals.
        call = (pose, x.shape, x.dtype, x.device, options, args, *map(type, options), *map(type, args))
        try:
            kept = _remembered.get(call)
        except TypeError:  # an option that cannot be hashed: the operator says that it is none
            return _answered(pose(x, options, *args))  # type: ignore[call-arg]
        if kept is None:
            eps = _number(x, options.eps)
            if eps is not None:
                return answer(x, options._replace(eps=eps), *args)  # type: ignore[call-arg]
            read_out = pose(x, options, *args)  # type: ignore[call-arg]
            if read_out is None or not read_out.lasting or any(isinstance(t, Tensor) for t in (*options, *args)):
                return _answered(read_out)
            if read_out.request.b.numel() > _MOST_NUMBERS:
                return _answered(read_out)
            if len(_remembered) >= _MOST_REMEMBERED:
                _remembered.clear()
            kept = _remembered[call] = _Remembered.of(read_out)
        last_used.set(kept.name)
        rows = kept.rows(x)
        return kept.shaped(autograd.eager(rows, kept.implementation, Request(rows.detach(), *kept.rest), kept.phi))

    return cast("Callable[Concatenate[Tensor, Options, _P], Tensor | None]", answer)


def _number(x: Tensor, eps: Any) -> float | None:
    """The number that eps is if it is a tensor on the CPU that holds one for all rows, and needs no gradient."""
    if not isinstance(eps, Tensor) or eps.requires_grad or not eps.is_cpu or eps.numel() != 1 or eps.ndim >= x.ndim:
        return None
    number = float(eps)
    return number if eps.is_floating_point() and 0.0 < number < math.inf else None


def _answered(read_out: ReadOut | None) -> Tensor | None:
    if read_out is None:
        return None
    return read_out.shaped(autograd.read(read_out.read, read_out.request, read_out.phi, read_out.name))
