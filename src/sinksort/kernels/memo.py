"""What an operator poses to kernels, answered; and remembered for calls that differ in the numbers of x alone.

To find out which kernels answer, with which targets, takes as long as some of them need. So what was posed is kept,
without x, by all that it depends on; and kernels keep with it what they prepared (``Ask.known``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec

from torch import Tensor

from ..core.modes import PLAIN, ordinary
from . import autograd
from .contract import Ask
from .dispatch import last_used

_P = ParamSpec("_P")

_MOST_KNOWN, _MOST_NUMBERS = 1024, 1024  #: calls that are remembered, and weights of targets of one of them


class Posed(NamedTuple):
    """A read-out as kernels take it. The functions must not hold on to x."""

    read: str
    name: str  #: of the kernels
    ask: Ask
    phi: Tensor | None
    rows: Callable[[Tensor], Tensor]  #: of x, as they are asked: (R, n)
    shaped: Callable[[Tensor], Tensor]  #: what the operator returns, from the answer


class _Known(NamedTuple):
    """The same without x."""

    name: str
    way: autograd.Way
    rest: tuple[Any, ...]  #: of an ask, after x
    phi: Tensor | None
    rows: Callable[[Tensor], Tensor]
    shaped: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, posed: Posed) -> _Known:
        way = autograd.way_of(posed.read, posed.ask, posed.name)
        return cls(posed.name, way, posed.ask._replace(known={})[1:], posed.phi, posed.rows, posed.shaped)


_known: dict[tuple[Any, ...], _Known] = {}


def answered(pose: Callable[_P, Posed | None]) -> Callable[_P, Tensor | None]:
    """The read-out that ``pose`` poses. Calls are remembered if all their options are given by place, not by name."""

    @functools.wraps(pose)
    def answer(*args: _P.args, **named: _P.kwargs) -> Tensor | None:
        x: Any = args[0]
        options = args[1:]
        if type(x) not in PLAIN or named or not ordinary():
            return _asked(pose(*args, **named))
        call = (pose, x.shape, x.dtype, x.device, *options, *map(type, options))  # True is not 1, which it equals
        try:
            known = _known.get(call)
        except TypeError:  # something that cannot be an option, as others will say
            return _asked(pose(*args, **named))
        if known is None:
            posed = pose(*args, **named)
            if posed is None or any(isinstance(t, Tensor) for t in options) or posed.ask.b.numel() > _MOST_NUMBERS:
                return _asked(posed)
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            known = _known[call] = _Known.of(posed)
        last_used.set(known.name)
        rows = known.rows(x)
        return known.shaped(autograd.eager(rows, known.way, Ask(rows.detach(), *known.rest), known.phi))

    return answer


def _asked(posed: Posed | None) -> Tensor | None:
    return None if posed is None else posed.shaped(autograd.read(posed.read, posed.ask, posed.phi, posed.name))
