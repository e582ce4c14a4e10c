"""Ranks as one function of torch, from values, weights and eps to the answer.

What     ``Found`` is the answer of a call, and what its gradient needs. ``attached`` gives it its gradients.
When     See ``kernels.plan.exact_ranks``.
Why      See ``ranks.py``.
Keeps    Values, what sorts them, and potentials of the targets. Second derivatives in x have a kernel of their own at
         the squared cost. All others are those of a plan, which the caller says how to make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..engine.maths import F64
from ..engine.threads import run
from .autograd import one_at_a_time
from .costs import SQUARED
from .lines import IN_DOUBLE, IN_SINGLE, Digits
from .newton import ENOUGH
from .nodes import LOST, LOST_IN_SINGLE
from .ranks import Gradient, Posed, rank_rows, rank_rows_backward
from .twice import rank_rows_twice

_PRICE = 5.0  # nanoseconds a pair of a value and a target, forward or backward
NO_RULE = np.zeros((0, 16))

#: From values, weights and eps to the same ranks, by a plan that can be differentiated as often as one likes.
Again = Callable[[Tensor, Tensor, Tensor], Tensor]


class Targets(NamedTuple):
    """Of a call. ``last`` makes them nodes of a rule: see ``nodes.py``."""

    y: F64  #: (1, K)
    b: F64  #: (1, K) all positive
    phi: F64  #: (1, K)
    last: F64 | None = None


class Options(NamedTuple):
    squash: int
    kind: int
    p: float
    single: bool  #: whether the answer is rounded to single precision


def digits_of(options: Options) -> Digits:
    return IN_SINGLE if options.single else IN_DOUBLE


class Part(NamedTuple):
    """Some rows, or all of them."""

    rows: np.ndarray | None
    posed: Posed
    potentials: F64


class Found(NamedTuple):
    out: F64  #: (R, n)
    parts: list[Part]  #: of two that hold the same row, the latter counts
    options: Options


def found(
    x: Tensor, a: Tensor, eps: Tensor, nodes: Targets | None, targets: Targets | None, options: Options
) -> Found | None:
    """Return ranks, or None if a row has not converged, or no targets are left for it.

    Rows that the nodes are too few for get all targets.

    x (R, n), a (R or 1, n), eps (R), all in double precision
    """
    values, weights, entropies = (t.detach().contiguous().numpy() for t in (x, a, eps))
    order = values.argsort(-1)
    R, n = values.shape
    out, error, lost = np.empty((R, n)), np.empty(R), np.empty(R)

    def solved(rows: np.ndarray | None, at: Targets, to: F64) -> Part:
        some: Any = slice(None) if rows is None else rows
        own = weights if len(weights) == 1 else weights[some]
        posed = Posed(values[some], order[some], own, at.y, at.b, at.phi, entropies[some])
        K, count = at.y.shape[1], len(to)
        potentials, wrong, missed = np.empty((count, K)), np.empty(count), np.empty(count)
        run(
            rank_rows, count, count * n * K * _PRICE, posed, options.squash, options.kind, options.p,
            NO_RULE if at.last is None else at.last, digits_of(options), potentials,
            wrong, missed, to,
        )  # fmt: skip
        error[some], lost[some] = wrong, missed
        return Part(rows, posed, potentials)

    first = targets if nodes is None else nodes
    if first is None:
        return None
    parts = [solved(None, first, out)]
    if nodes is not None:
        late = (lost > (LOST_IN_SINGLE if options.single else LOST)) | (error > ENOUGH)
        if late.any() and targets is None:
            return None
        if late.any():
            if targets is None:
                return None
            rows = late.nonzero()[0]
            to = np.empty((len(rows), n))
            parts.append(solved(rows, targets, to))
            out[rows] = to
    if (error > ENOUGH).any():  # NaN is not late
        return None
    return Found(out, parts, options)


def attached(x: Tensor, a: Tensor, eps: Tensor, answer: Found, again: Again) -> Tensor:
    """Return the answer in the dtype of x, as a function of x, weights and eps."""
    out: Tensor = _Ranks.apply(x, a, eps, answer, again)  # type: ignore[no-untyped-call]
    return out


def _gradient(answer: Found, w: F64, with_eps: bool) -> Gradient:
    squash, kind, p, _ = answer.options
    cut = digits_of(answer.options).cut
    whole = Gradient(np.empty(w.shape), np.empty(w.shape), np.empty(len(w)))
    for part in answer.parts:
        of_out = w if part.rows is None else w[part.rows]
        own = whole if part.rows is None else Gradient(*(np.empty((len(part.rows), *t.shape[1:])) for t in whole))
        run(rank_rows_backward, len(of_out), w.size * part.potentials.shape[1] * _PRICE, part.posed, squash, kind, p,
            part.potentials, of_out, with_eps, cut, own)  # fmt: skip
        if part.rows is not None:
            for to, values in zip(whole, own, strict=True):
                to[part.rows] = values
    return whole


def _twice(answer: Found, w: F64, q: F64) -> tuple[F64, F64]:
    of_x, of_w = np.empty(w.shape), np.empty(w.shape)
    for part in answer.parts:
        rows: Any = slice(None) if part.rows is None else part.rows
        own = np.empty(part.posed.x.shape), np.empty(part.posed.x.shape)
        run(rank_rows_twice, len(own[0]), 2 * w.size * part.potentials.shape[1] * _PRICE, part.posed,
            answer.options.squash, part.potentials, w[rows], q[rows],
            digits_of(answer.options).cut, *own)  # fmt: skip
        of_x[rows], of_w[rows] = own
    return of_x, of_w


def array_of(t: Tensor) -> F64:
    """Numbers in double precision."""
    array: F64 = t.detach().to(torch.float64).contiguous().numpy()
    return array


def like(cotangent: F64, argument: Tensor) -> Tensor:
    """A cotangent of R rows in the shape and dtype of an argument, which may have one row for all."""
    t = torch.from_numpy(cotangent)
    t = t.sum(0, keepdim=True) if len(argument) != len(t) else t
    return t.reshape(argument.shape).to(argument.dtype)


class _Ranks(torch.autograd.function._SingleLevelFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, eps: Tensor, answer: Found, again: Again) -> Tensor:
        ctx.save_for_backward(x, a, eps)
        ctx.answer, ctx.again = answer, again
        return torch.from_numpy(answer.out).to(x.dtype)

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, w: Tensor) -> tuple[Tensor | None, ...]:
        arguments = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            if needs == (True, False, False) and ctx.answer.options.kind == SQUARED:
                slopes: Tensor = _Slopes.apply(*arguments, w, ctx.answer, ctx.again)  # type: ignore[no-untyped-call]
                return slopes, None, None, None, None
            own = [t.view_as(t) for t in arguments]
            wanted = [t for t, need in zip(own, needs, strict=True) if need]
            parts = iter(torch.autograd.grad(ctx.again(*own), wanted, w, create_graph=True))
            return *(next(parts) if need else None for need in needs), None, None
        found = _gradient(ctx.answer, array_of(w), needs[2])
        return *(like(c, t) if need else None for c, t, need in zip(found, arguments, needs, strict=True)), None, None


class _Slopes(torch.autograd.function._SingleLevelFunction):
    """The cotangent of x as a function of x and of the cotangent w of the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, eps: Tensor, w: Tensor, answer: Found, again: Again) -> Tensor:
        ctx.save_for_backward(x, a, eps, w)
        ctx.answer, ctx.again = answer, again
        return like(_gradient(answer, array_of(w), False).x, x)

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, q: Tensor) -> tuple[Tensor | None, ...]:
        x, a, eps, w = ctx.saved_tensors
        if torch.is_grad_enabled():
            own, cotangent = x.view_as(x), w.view_as(w)
            (slopes,) = torch.autograd.grad(ctx.again(own, a, eps), own, cotangent, create_graph=True)
            of_x, of_w = torch.autograd.grad(slopes, (own, cotangent), q, create_graph=True)
        else:
            of_x, of_w = (like(c, t) for c, t in zip(_twice(ctx.answer, array_of(w), array_of(q)), (x, w), strict=True))
        return of_x, None, None, of_w, None, None
