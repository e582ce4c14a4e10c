"""Sorts, payloads and permutations as one function of torch, as ``whole.py`` has ranks.

What     ``FoundColumns`` is the answer of a call, and what its gradient needs. ``attached`` gives it its gradients.
When     See ``kernels.plan.exact_columns``.
Why      See ``columns.py``.
Keeps    Values, what sorts them, the payload, and potentials of targets and values. Second derivatives are those of a
         plan, which the caller says how to make.
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
from .columns import Kept, push_rows, push_rows_backward
from .newton import ENOUGH
from .nodes import LOST, LOST_IN_SINGLE
from .ranks import Gradient, Posed
from .whole import NO_RULE, Options, Targets, array_of, digits_of, like

_PRICE = 6.0  # nanoseconds a pair of a value and a target, forward or backward

#: From values, weights, eps and payload to the same averages, or shares if there is no payload, by a plan.
Again = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


class Part(NamedTuple):
    rows: np.ndarray | None  #: None: all
    posed: Posed
    payload: F64  #: (r, d, n), d = 0 for shares
    kept: Kept


class FoundColumns(NamedTuple):
    out: np.ndarray  #: (R, d, m), or shares (R, m, n)
    parts: list[Part]  #: of two that hold the same row, the latter counts
    y: F64  #: (m)
    options: Options


def found(
    x: Tensor, a: Tensor, eps: Tensor, payload: Tensor | None, nodes: Targets | None, targets: Targets, options: Options
) -> FoundColumns | None:
    """Return averages of a payload (R, d, n), or the shares if there is none; None if a row has not converged.

    x (R, n), a (R or 1, n), eps (R), payload, all in double precision
    """
    values, weights, entropies = (array_of(t) for t in (x, a, eps))
    order = values.argsort(-1)
    (R, n), m = values.shape, targets.y.shape[1]
    carried = np.empty((R, 0, n)) if payload is None else array_of(payload)
    single = payload is None and options.single
    shares = np.empty((R if payload is None else 0, m, n), np.float32 if single else np.float64)
    out = np.empty((R, carried.shape[1], m))

    def solved(rows: np.ndarray | None, at: Targets) -> Part:
        some: Any = slice(None) if rows is None else rows
        own = weights if len(weights) == 1 else weights[some]
        posed = Posed(values[some], order[some], own, at.y, at.b, at.phi, entropies[some])
        r, K = len(posed.x), at.y.shape[1]
        kept = Kept(np.empty((r, K)), np.empty((r, n)), np.empty(r), np.empty(r))
        to, matrix = (out, shares) if rows is None else (out[rows], shares[rows] if len(shares) else shares)
        run(
            push_rows, r, r * n * (K + m) * _PRICE, posed, options.squash, options.kind, options.p,
            NO_RULE if at.last is None else at.last, digits_of(options), targets.y[0], carried[some], kept, to, matrix,
        )  # fmt: skip
        if rows is not None:
            out[rows] = to
            if len(shares):
                shares[rows] = matrix
        return Part(rows, posed, carried[some], kept)

    parts = [solved(None, targets if nodes is None else nodes)]
    error = parts[0].kept.error
    if nodes is not None:
        late = (parts[0].kept.lost > (LOST_IN_SINGLE if options.single else LOST)) | (error > ENOUGH)
        if late.any():
            parts.append(solved(late.nonzero()[0], targets))
            error = np.where(late, 0.0, error)
            if (parts[1].kept.error > ENOUGH).any():
                return None
    if (error > ENOUGH).any():  # NaN is not late
        return None
    return FoundColumns(shares if payload is None else out, parts, targets.y[0], options)


def attached(x: Tensor, a: Tensor, eps: Tensor, payload: Tensor | None, answer: FoundColumns, again: Again) -> Tensor:
    """Return the answer in the dtype of x, as a function of x, weights, eps and payload."""
    out: Tensor = _Columns.apply(x, a, eps, payload, answer, again)  # type: ignore[no-untyped-call]
    return out


def _gradient(answer: FoundColumns, cotangent: np.ndarray, with_eps: bool) -> tuple[F64, ...]:
    squash, kind, p, _ = answer.options
    first = answer.parts[0]
    (R, n), d, m = first.posed.x.shape, first.payload.shape[1], len(answer.y)
    whole = np.empty((R, n)), np.empty((R, n)), np.empty(R), np.empty((R, d, n))
    nothing, no_shares = np.empty((R, 0, m)), np.empty((0, m, n), cotangent.dtype)
    of_out, of_shares = (cotangent, no_shares) if d else (nothing, cotangent)
    for part in answer.parts:
        rows: Any = slice(None) if part.rows is None else part.rows
        own = whole if part.rows is None else tuple(np.empty((len(part.rows), *t.shape[1:])) for t in whole)
        run(
            push_rows_backward, len(own[0]), cotangent.size / max(d, 1) * 2.0 * _PRICE, part.posed, squash, kind, p,
            with_eps, digits_of(answer.options).cut, answer.y, part.payload, part.kept, of_out[rows],
            of_shares[rows] if len(of_shares) else of_shares, Gradient(*own[:3]), own[3],
        )  # fmt: skip
        if part.rows is not None:
            for to, values in zip(whole, own, strict=True):
                to[part.rows] = values
    return whole


class _Columns(torch.autograd.function._SingleLevelFunction):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, a: Tensor, eps: Tensor, payload: Tensor | None, answer: FoundColumns, again: Again
    ) -> Tensor:
        ctx.save_for_backward(x, a, eps, payload)
        ctx.answer, ctx.again = answer, again
        return torch.from_numpy(answer.out).to(x.dtype)

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        arguments, needs = ctx.saved_tensors, ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():
            own = [None if t is None else t.view_as(t) for t in arguments]
            wanted = [t for t, need in zip(own, needs, strict=True) if t is not None and need]
            parts = iter(torch.autograd.grad(ctx.again(*own), wanted, cotangent, create_graph=True))
            return *(next(parts) if need else None for need in needs), None, None
        shares = arguments[3] is None
        single = shares and ctx.answer.options.single
        w = np.ascontiguousarray(cotangent.detach().float().numpy()) if single else array_of(cotangent)
        found = _gradient(ctx.answer, w, needs[2])
        return (
            *(like(c, t) if need else None for c, t, need in zip(found, arguments, needs, strict=True)),
            None,
            None,
        )
