"""``solve`` and ``read`` as functions of torch, with a gradient in every argument.

What     (x~, a, y, b, eps or costs) -> (f, g), and (f, g, payload) -> averages or shares. Rows come first everywhere.
When     Eager calls on the CPU; see ``kernels.plan.py`` for which.
Why      What stands between them and a user (standardising, squashing, sorting, padding) is ordinary autograd.
Keeps    Arguments and potentials. A backward pass that is itself to be differentiated is written in torch, with the
         potentials at hand: ``gradients.attach`` makes them differentiable, so that nothing is solved again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....core.costs import Huber, Power
from ....core.cotangents import one_at_a_time
from ....core.gradients import attach
from ....core.semidual import c_transform, log_weight, without_subnormals
from ..engine.threads import run
from .costs import HUBER, MATRIX, SQUARED, kind_of_power
from .newton import ENOUGH
from .nodes import LOST, LOST_IN_SINGLE, rule_for, rule_of
from .read import read_rows, read_rows_backward
from .solve import solve_rows, solve_rows_backward
from .work import Cotangents, Rows

__all__ = [
    "ENOUGH",
    "LOST",
    "LOST_IN_SINGLE",
    "MATRIX",
    "SQUARED",
    "Given",
    "Potentials",
    "kind_of",
    "one_at_a_time",
    "potentials",
    "pull",
    "push",
    "rule_for",
    "rule_of",
    "shares",
    "solve",
]

_PRICE = 12.0  # nanoseconds a pair of a value and a target, forward or backward
_BLOCK = 1 << 16  # pairs that second derivatives look at together: 512 kB
_NO_RULE = np.zeros((0, 16))
_NONE = np.zeros((1, 0))


class Given(NamedTuple):
    """A problem of R rows, in float64. What has one row in place of R is the same for all."""

    x: Tensor  #: (R, n) squashed values, increasing
    a: Tensor  #: (R or 1, n) rows sum to 1
    y: Tensor  #: (R or 1, m) increasing
    b: Tensor  #: (R or 1, m) rows sum to 1
    eps: Tensor  #: (R)
    costs: Tensor | None  #: (R, n, m) for a cost that is neither a power nor Huber's
    kind: int
    p: float

    @property
    def exchanged(self) -> Given:
        """Values and targets in each other's place: every cost here is the same in both directions."""
        costs = None if self.costs is None else self.costs.mT
        y, x = self.x, self.y.expand(len(self.x), -1)
        return Given(x, self.b, y, self.a, self.eps, costs, self.kind, self.p)


class Potentials(NamedTuple):
    of_values: Tensor  #: (R, n) f, in units of the cost
    of_targets: Tensor  #: (R, m) g
    error: Tensor  #: (R) L1 distance between the plan's column sums and b
    steps: Tensor  #: (R) of Newton's method
    lost: Tensor  #: (R) estimated error of a rule, as a fraction of n


def kind_of(cost: object) -> tuple[int, float]:
    """Return the kind of a cost and its parameter; MATRIX for what must be computed by torch."""
    if isinstance(cost, Power):
        return kind_of_power(float(cost.p)), float(cost.p)
    if isinstance(cost, Huber):
        return HUBER, float(cost.delta)
    return MATRIX, 0.0


def solve(given: Given, rule: np.ndarray | None = None) -> Potentials:
    """Solve R problems. The linear algebra is done on the side that is smaller."""
    if rule is None and given.y.shape[-1] > given.x.shape[-1]:
        found = solve(given.exchanged)
        return found._replace(of_values=found.of_targets, of_targets=found.of_values)
    return Potentials(*_Solve.apply(*given[:6], given.kind, given.p, rule))  # type: ignore[no-untyped-call]


def pull(given: Given, of_targets: Tensor, payload: Tensor) -> Tensor:
    """Average a payload (R or 1, d, m) over the targets of each value: (R, n, d)."""
    out: Tensor = _Read.apply(
        given.x, given.y, given.b, given.eps, given.costs, of_targets, payload, given.kind, given.p, False
    )  # type: ignore[no-untyped-call]
    return out


def potentials(given: Given, of_targets: Tensor) -> Tensor:
    """The potentials of values (R, n) from those of targets (R, m)."""
    one = given.x.new_ones(1, 1, given.y.shape[-1])
    out: Tensor = _Read.apply(
        given.x, given.y, given.b, given.eps, given.costs, of_targets, one, given.kind, given.p, True
    )  # type: ignore[no-untyped-call]
    return out.squeeze(-1)


def push(given: Given, of_values: Tensor, payload: Tensor) -> Tensor:
    """Average a payload (R or 1, d, n) over the values of each target: (R, m, d)."""
    return pull(given.exchanged, of_values, payload)


def shares(given: Given, of_targets: Tensor) -> Tensor:
    """Return the share of each value that each target receives: (R, n, m)."""
    return pull(given, of_targets, given.x.new_empty(1, 0, given.y.shape[-1]))


# ---- the two functions


def _array(t: Tensor) -> np.ndarray:
    return t.detach().contiguous().numpy()


def _rows(x: Tensor, a: Tensor | None, y: Tensor, b: Tensor, eps: Tensor, costs: Tensor | None) -> Rows:
    of_pairs = _NONE if costs is None else _array(costs).reshape(len(costs), -1)
    return Rows(_array(x), _NONE if a is None else _array(a), _array(y), _array(b), _array(eps), of_pairs)


def _scaled(rows: Rows, g: Tensor) -> np.ndarray:
    """G."""
    return _array(g) / rows.eps[:, None]


def _cotangents(rows: Rows) -> Cotangents:
    R, n = rows.x.shape
    m = rows.y.shape[1]
    return Cotangents(
        np.empty((R, n)), np.empty((R, n)), np.empty((R, m)), np.empty((R, m)), np.empty(R),
        np.empty((R, n * m) if rows.costs.size else (0, 0)),
    )  # fmt: skip


def _like(cotangent: np.ndarray, argument: Tensor, needed: bool) -> Tensor | None:
    """A cotangent of R rows in the shape of an argument, which may have one row for all."""
    if not needed:
        return None
    t = torch.from_numpy(cotangent)
    return t.sum(0, keepdim=True) if len(argument) != len(t) else t.reshape(argument.shape)


class _Solve(torch.autograd.function._SingleLevelFunction):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, a: Tensor, y: Tensor, b: Tensor, eps: Tensor, costs: Tensor | None, kind: int, p: float,
        rule: np.ndarray | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        rows = _rows(x, a, y, b, eps, costs)
        R, n = rows.x.shape
        m = rows.y.shape[1]
        F, G, error, steps, lost = np.empty((R, n)), np.empty((R, m)), np.empty(R), np.empty(R, np.int64), np.empty(R)
        run(solve_rows, R, R * n * m * _PRICE, rows, kind, p, _NO_RULE if rule is None else rule, F, G, error, steps,
            lost)  # fmt: skip
        F *= rows.eps[:, None]
        G *= rows.eps[:, None]
        out = tuple(torch.from_numpy(t) for t in (F, G, error, steps, lost))
        ctx.mark_non_differentiable(*out[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, a, y, b, eps, costs, *out[:2])
        ctx.cost = kind, p
        return out

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, of_f: Tensor | None, of_g: Tensor | None, *_: Any) -> tuple[Any, ...]:
        *arguments, f, g = ctx.saved_tensors
        needs = ctx.needs_input_grad[:6]
        if torch.is_grad_enabled():
            once_more = functools.partial(_solved_again, kind=ctx.cost[0], p=ctx.cost[1])
            fixed = f.detach(), g.detach()
            return *_differentiated(once_more, arguments, fixed, needs, (of_f, of_g)), None, None, None
        rows = _rows(*arguments)
        out = _cotangents(rows)
        R, n = rows.x.shape
        eps = rows.eps[:, None]
        of_F, of_G = (np.zeros(t.shape) if c is None else _array(c) * eps for t, c in ((f, of_f), (g, of_g)))
        run(solve_rows_backward, R, R * n * g.shape[1] * _PRICE, rows, *ctx.cost, f.numpy() / eps, g.numpy() / eps,
            of_F, of_G, of_f is not None and of_g is None, out)  # fmt: skip
        return *map(_like, out, arguments, needs), None, None, None


class _Read(torch.autograd.function._SingleLevelFunction):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, b: Tensor, eps: Tensor, costs: Tensor | None, g: Tensor, payload: Tensor,
        kind: int, p: float, potentials: bool,
    ) -> Tensor:  # fmt: skip
        rows = _rows(x, None, y, b, eps, costs)
        R, n = rows.x.shape
        m, d = rows.y.shape[1], payload.shape[1]
        out = np.empty((R, n, d or m))
        run(read_rows, R, R * n * m * 2.0 * (1 + d), rows, kind, p, _scaled(rows, g), _array(payload), potentials,
            out)  # fmt: skip
        ctx.save_for_backward(x, y, b, eps, costs, g, payload)
        ctx.cost, ctx.potentials = (kind, p), potentials
        return torch.from_numpy(out)

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, of_out: Tensor) -> tuple[Any, ...]:
        x, y, b, eps, costs, g, payload = arguments = ctx.saved_tensors
        needs = ctx.needs_input_grad[:7]
        if torch.is_grad_enabled():
            once_more = functools.partial(_read_again, kind=ctx.cost[0], p=ctx.cost[1], potentials=ctx.potentials)
            return *_differentiated(once_more, arguments, (), needs, (of_out,)), None, None, None
        rows = _rows(x, None, y, b, eps, costs)
        R, n = rows.x.shape
        m, d = rows.y.shape[1], payload.shape[1]
        out, of_g = _cotangents(rows), np.empty((R, m))
        of_payload = np.empty((R if needs[6] else 0, d, m))
        run(read_rows_backward, R, R * n * m * 3.0 * (1 + d), rows, *ctx.cost, _scaled(rows, g), _array(payload),
            ctx.potentials, _array(of_out), out, of_g, of_payload)  # fmt: skip
        of_g /= rows.eps[:, None]
        found = out.x, out.y, out.b, out.eps, out.costs, of_g, of_payload
        return (
            *(_like(c, t, need) for c, t, need in zip(found, arguments, needs, strict=True)),
            None,
            None,
            None,
        )


# ---- the same in torch, for derivatives of derivatives


def _costs(x: Tensor, y: Tensor, costs: Tensor | None, kind: int, p: float) -> Tensor:
    """C (R, n, m)."""
    if costs is not None:
        return costs
    cost = Huber(p) if kind == HUBER else Power(p)
    return cost(y.unsqueeze(-2) - x.unsqueeze(-1))


def _solved_again(
    x: Tensor, a: Tensor, y: Tensor, b: Tensor, eps: Tensor, costs: Tensor | None, f: Tensor, g: Tensor, kind: int,
    p: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Potentials f and g as differentiable functions of the arguments; their values do not change."""
    M = without_subnormals((_costs(x, y, costs, kind, p) - f.unsqueeze(-1) - g.unsqueeze(-2)) / eps[:, None, None])
    a, b, eps = a.expand(f.shape), b.expand(g.shape), eps.unsqueeze(-1)
    gamma = attach(M, a, b, torch.zeros_like(g), True)
    return f + eps * c_transform(M, log_weight(b), gamma), g + eps * gamma


def _read_again(
    x: Tensor, y: Tensor, b: Tensor, eps: Tensor, costs: Tensor | None, g: Tensor, payload: Tensor, kind: int, p: float,
    potentials: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    exponents = (g.unsqueeze(-2) - _costs(x, y, costs, kind, p)) / eps[:, None, None] + log_weight(b).unsqueeze(-2)
    if potentials:
        return ((-eps.unsqueeze(-1) * torch.logsumexp(exponents, dim=-1)).unsqueeze(-1),)
    of_pairs = torch.softmax(exponents, dim=-1)
    return (of_pairs if payload.shape[1] == 0 else of_pairs @ payload.mT,)


def _differentiated(
    function: Callable[..., tuple[Tensor, ...]],
    arguments: Sequence[Tensor | None],
    fixed: tuple[Tensor, ...],
    needs: Sequence[bool],
    cotangents: tuple[Tensor | None, ...],
) -> list[Tensor | None]:
    """Cotangents of the arguments that need them, ready to be differentiated.

    Some rows at a time: temporary tensors of all pairs would be mapped and unmapped again at each operation.
    """
    x, y = arguments[0], arguments[2] if len(fixed) else arguments[1]
    assert x is not None  # noqa: S101 - it is there in both
    assert y is not None  # noqa: S101
    R, step = len(x), max(1, _BLOCK // (x.shape[-1] * y.shape[-1]))
    parts: list[list[Tensor | None]] = []
    for low in range(0, R, step):

        def some(t: Any, low: int = low) -> Any:
            return t if t is None or step >= R or len(t) != R else t[low : low + step]

        # Arguments of their own: potentials depend on x as well, which is not their reader's business.
        own: list[Any] = [t if t is None else some(t).view_as(some(t)) for t in arguments]
        out = function(*own, *map(some, fixed))
        wanted: list[Tensor] = [t for t, need in zip(own, needs, strict=True) if need]
        pairs = [(o, some(c)) for o, c in zip(out, cotangents, strict=True) if c is not None]
        ends, starts = [o for o, _ in pairs], [c for _, c in pairs]
        found = iter(torch.autograd.grad(ends, wanted, starts, create_graph=True, allow_unused=True))
        parts.append([next(found) if need else None for need in needs])
    return [
        _joined(each, t is not None and len(t) == R)
        for each, t in zip(zip(*parts, strict=True), arguments, strict=True)
    ]


def _joined(parts: Sequence[Tensor | None], by_rows: bool) -> Tensor | None:
    """Cotangents of blocks of rows: one after the other, or added up where all rows share an argument."""
    there = [t for t in parts if t is not None]
    if not there or len(parts) == 1:
        return parts[0]
    return torch.cat(there) if by_rows else torch.stack(there).sum(0)
