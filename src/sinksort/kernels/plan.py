"""Plans by the exact family of the CPU kernels: float64, every cost, a gradient in every argument.

When     Eager calls on the CPU with the default solver, of at most 2,048 values and targets a row, where Numba is
         installed. Everything else (``torch.compile``, ``torch.func``, forward mode, other devices, other solvers) is
         solved by ``plan.solve``.
Why      128 x 100, forward and backward, in units of a plain float32 ``soft_rank``: float64 ranks take 7 to 8, cost 1.5
         takes 11 to 19, second derivatives take 12 to 15. The torch reference takes more than 100 for each.
Keeps    What ``plan.Plan`` keeps. Its M, gamma and start are made when they are first needed.
"""

from __future__ import annotations

import functools
import importlib
import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.blocks import solve_in_blocks
from ..core.checks import require_floating, require_non_negative
from ..core.costs import Huber, Power, resolve_cost
from ..core.gradients import attach
from ..core.modes import PLAIN, eager, ordinary, remembered
from ..core.option_values import DEFAULT_SOLVER, Options
from ..core.plan import Plan, pivot_of
from ..core.problem import Problem, as_rows, entropy, like_rows, pose
from ..core.semidual import without_subnormals
from ..core.solvers import Newton, Solver
from ..core.solvers.start import staircase_potentials
from ..core.squash import INCREASING_MAPS
from .dispatch import MOST_EXACT

_MOST_PAIRS = 1 << 19  #: of values and nodes of a longer row, beyond which a grid in torch takes less time and memory
_MOST_EPS = 1e100  #: beyond it no plan changes; an infinite eps would be multiplied by 0


def exact_plan(problem: Problem, solver: Solver) -> Plan | None:
    """Return the plan by kernels, or None where ``plan.solve`` must find it."""
    if not fits(problem.x.shape[-1], problem.y.shape[-1], problem.x, solver) or problem.hats is not None:
        return None
    p, flat = problem, _flat
    if p.x.numel() == 0 or p.y.numel() == 0 or p.a.dtype != torch.float64:
        return None
    family = _family()
    kind, power = family.kind_of(p.h)
    if kind == family.MATRIX and p.costs is None:
        return None
    R = p.x.shape[:-1].numel()
    standing = p.x if p.x_tilde is None else p.x_tilde
    given = family.Given(
        flat(standing), flat(p.a), flat(p.y), flat(p.b), p.eps.reshape(R).clamp(max=_MOST_EPS),
        p.cost.reshape(R, *p.cost.shape[-2:]) if kind == family.MATRIX else None, kind, power,
    )  # fmt: skip
    by_rule = _by_rule(p, given, family)
    if by_rule is None:
        found, coarse = family.solve(given), None
    else:
        found, coarse = by_rule
    if bool((found.error > family.ENOUGH).any()):  # NaN is no failure to converge
        return None
    return ExactPlan(problem, given, found, coarse)


class Coarse(NamedTuple):
    """What a rule says of the rows that it is good enough for."""

    given: Any  #: those rows, with nodes in place of the targets
    of_targets: Tensor  #: (r, K) potentials of the nodes
    rows: Tensor | None  #: (r) which rows; None for all
    others: Tensor | None  #: (R - r) the rows that were solved with all targets
    by_all: Tensor | None = None  #: (R - r, m) their potentials

    def merged(self, one: Tensor, other: Tensor) -> Tensor:
        """Answers for ``rows`` and for ``others`` in the order of all rows."""
        if self.rows is None or self.others is None:
            return one
        return torch.cat([one, other]).index_select(0, torch.cat([self.rows, self.others]).argsort())


def _by_rule(p: Problem, given: Any, family: Any) -> tuple[Any, Coarse] | None:
    """Potentials by a few nodes where that is worth it; rows that they are too few for get all targets."""
    n, m = p.x.shape[-1], p.y.shape[-1]
    if not p.regular or given.kind != family.SQUARED or m < 2:
        return None
    in_single = p.dtype != torch.float64
    rule = family.rule_for(m, float(given.eps.detach().min()))
    if rule is None or rule.y.shape[-1] > n:
        return None
    coarse = given._replace(y=torch.from_numpy(rule.y), b=torch.from_numpy(rule.b))
    found = family.solve(coarse, rule.last)
    missed = (found.lost > (family.LOST_IN_SINGLE if in_single else family.LOST)) | (found.error > family.ENOUGH)
    count = int(missed.sum())
    if count == 0:
        return found._replace(of_targets=None), Coarse(coarse, found.of_targets, None, None)
    if 2 * count >= len(missed):
        return None
    rows, others = (~missed).nonzero().squeeze(-1), missed.nonzero().squeeze(-1)
    by_all, by_nodes = family.solve(_some(given, others)), family.Potentials(*(t.index_select(0, rows) for t in found))
    both = Coarse(_some(coarse, rows), by_nodes.of_targets, rows, others)
    of_values, _, error, steps, lost = (
        None if k == 1 else both.merged(one, other) for k, (one, other) in enumerate(zip(by_nodes, by_all, strict=True))
    )
    return family.Potentials(of_values, None, error, steps, lost), both._replace(by_all=by_all.of_targets)


def _some(given: Any, rows: Tensor) -> Any:
    """Some rows of a ``Given``."""
    R = len(given.x)
    return type(given)(*(t.index_select(0, rows) if isinstance(t, Tensor) and len(t) == R else t for t in given))


class _Posed(NamedTuple):
    """A call onto default targets, from values to answers in one go."""

    rows: Tensor  #: x with ``dim`` last
    flat: Tensor  #: (R, n)
    a: Tensor  #: (R or 1, n) shares of the values
    eps: Tensor  #: (R or 1)
    m: int  #: targets
    nodes: int | None  #: of a rule that may stand for the targets
    how: Any  #: ``whole.Options``


def _posed(x: Tensor, options: Options, most: float = math.inf) -> _Posed | None:
    """Return None where a plan must be made (and arguments be complained of), or for more than ``most`` values."""
    cost, squash = options.cost, options.squash
    known = isinstance(cost, (int, float, Power, Huber)) and (squash is None or isinstance(squash, str))
    if not (known and ready(x, options.solver) and ordinary() and (squash is None or squash in INCREASING_MAPS)):
        return None
    rows, family = as_rows(x, options.dim), _family()
    n, batch = rows.shape[-1], rows.shape[:-1]
    m = n if options.num_targets is None else options.num_targets
    if rows.numel() == 0 or type(m) is not int or not 1 <= m <= most or n > most:
        return None
    a = _equal(n) if options.weights is None else _shares(options.weights, x, options.dim)
    kind, power = family.kind_of(resolve_cost(cost))
    eps = entropy(options.eps, batch, x.device, torch.float64).reshape(-1).clamp(max=_MOST_EPS)
    rule = family.rule_for(m, float(eps.detach().min())) if kind == family.SQUARED and m > 1 else None
    nodes = None if rule is None or rule.y.shape[-1] > n else int(rule.y.shape[-1])
    how = _whole().Options(_SQUASHES[squash], kind, power, x.dtype != torch.float64)
    return _Posed(rows, rows.reshape(-1, n), a, eps, m, nodes, how)


def exact_ranks(x: Tensor, options: Options, by_all: bool) -> Tensor | None:
    """Return ranks on default targets by kernels, or None where a plan must be made (and arguments be complained of).

    by_all  whether all targets may be taken one by one; else a rule must be enough for all rows
    """
    posed = _posed(x, options)
    if posed is None:
        return None
    rows, flat, a, entropies, m, count, how = posed
    whole, n, descending = _whole(), rows.shape[-1], options.descending
    nodes = None if count is None else _targets(n, m, descending, count)
    if not by_all and (nodes is None or n * nodes.y.shape[-1] > _MOST_PAIRS):
        return None
    targets = _targets(n, m, descending, None) if by_all else None
    answer = whole.found(flat.to(torch.float64), a, entropies, nodes, targets, how)
    if answer is None:
        return None

    def again(x: Tensor, a: Tensor, eps: Tensor) -> Tensor:
        weights = None if a.shape[0] == 1 and a is _equal(n) else a
        cost, squash = options.cost, options.squash
        problem = pose(x, Options(-1, descending, weights, num_targets=m, eps=eps, cost=cost, squash=squash))
        return (exact_plan(problem, DEFAULT_SOLVER) or solve_in_blocks(problem, DEFAULT_SOLVER)).ranks()

    if torch.is_grad_enabled() and (flat.requires_grad or a.requires_grad or entropies.requires_grad):
        out: Tensor = whole.attached(flat, a, entropies, answer, again)
    else:
        out = torch.from_numpy(answer.out).to(x.dtype)
    return out.reshape(rows.shape).movedim(-1, options.dim)


def exact_columns(x: Tensor, options: Options, payload: Tensor | None) -> Tensor | None:
    """Return averages (..., d, m) over the values of each default target, or the shares (..., m, n) of values in it.

    ``dim`` is the last dimension of both. None where a plan must be made, as in ``exact_ranks``.

    payload  (..., d, n), or None for the shares
    """
    posed = _posed(x, options, MOST_EXACT)
    if posed is None or (payload is not None and not bool(payload.isfinite().all())):
        return None
    rows, flat, a, entropies, m, count, how = posed
    columns, n = _columns(), rows.shape[-1]
    nodes = None if count is None else _targets(n, m, False, count)
    carried = None if payload is None else payload.reshape(-1, *payload.shape[-2:]).to(torch.float64)
    answer = columns.found(flat.to(torch.float64), a, entropies, carried, nodes, _targets(n, m, False, None), how)
    if answer is None:
        return None

    def again(x: Tensor, a: Tensor, eps: Tensor, payload: Tensor | None) -> Tensor:
        weights = None if a is _equal(n) else a
        problem = pose(x, Options(weights=weights, num_targets=m, eps=eps, cost=options.cost, squash=options.squash))
        plan = exact_plan(problem, DEFAULT_SOLVER) or solve_in_blocks(problem, DEFAULT_SOLVER)
        return plan.permutation() if payload is None else plan.push(payload.mT).mT

    watched = [t for t in (flat, a, entropies, carried) if t is not None and t.requires_grad]
    if torch.is_grad_enabled() and watched:
        out: Tensor = columns.attached(flat, a, entropies, carried, answer, again)
    else:
        out = torch.from_numpy(answer.out).to(x.dtype)
    out = out.reshape(*rows.shape[:-1], *out.shape[-2:])
    return out.flip(-2 if payload is None else -1) if options.descending else out


_SQUASHES = {"sigmoid": 0, "arctan": 1, None: 2}


def _shares(weights: Tensor, x: Tensor, dim: int) -> Tensor:
    """(R or 1, n) float64: what each value weighs, as shares of its row."""
    require_floating(weights, "weights")
    a = _flat(like_rows(weights, x, dim, "weights")).to(torch.float64)
    require_non_negative(a, "weights")
    return a / a.sum(-1, keepdim=True)


@remembered(64)
def _equal(n: int) -> Tensor:
    return torch.full((1, n), 1.0 / n, dtype=torch.float64, device="cpu")


@functools.lru_cache(256)
def _targets(n: int, m: int, descending: bool, nodes: int | None) -> Any:
    """All m default targets with the ranks of n values there, or the nodes of a rule for them."""
    whole, family = _whole(), _family()
    if nodes is None:
        y, b, last = np.arange(m)[None] / max(m - 1.0, 1.0), np.full((1, m), 1.0 / m), None
    else:
        y, b, last = family.rule_of(m, nodes)
    up = (m - 1) * y + 1.0
    return whole.Targets(y, b, n * (m + 1.0 - up if descending else up) / m, last)


def _whole() -> Any:
    return importlib.import_module("sinksort.kernels.cpu.exact.whole")


def _columns() -> Any:
    return importlib.import_module("sinksort.kernels.cpu.exact.whole_columns")


def fits(n: int, m: int, x: Tensor, solver: Solver) -> bool:
    """Whether the family takes rows of n values and m targets in the present circumstances."""
    return max(n, m) <= MOST_EXACT and ready(x, solver)


def ready(x: Tensor, solver: Solver) -> bool:
    """Whether the family takes any rows in the present circumstances."""
    return (
        x.is_cpu and isinstance(solver, Newton) and solver == DEFAULT_SOLVER and eager() and type(x) in PLAIN
        and installed()
    )  # fmt: skip


def installed() -> bool:
    """Whether Numba is there."""
    from . import backends

    return backends.missing("numba") is None


def _family() -> Any:
    return importlib.import_module("sinksort.kernels.cpu.exact.autograd")


def _flat(t: Tensor) -> Tensor:
    """Rows (..., k) as (R, k), or (1, k) if all of them are the same memory."""
    if t.ndim > 1 and all(stride == 0 or size == 1 for size, stride in zip(t.shape[:-1], t.stride()[:-1], strict=True)):
        return t[(0,) * (t.ndim - 1)].unsqueeze(0)
    return t.reshape(-1, t.shape[-1])


class ExactPlan(Plan):
    """A ``Plan`` whose read-outs are answered by kernels."""

    given: Any  #: the problem as kernels see it
    found: Any  #: its potentials
    coarse: Coarse | None  #: what a rule says of it

    def __init__(self, problem: Problem, given: Any, found: Any, coarse: Coarse | None) -> None:
        batch = problem.x.shape[:-1]
        for name, value in (
            ("problem", problem),
            ("given", given),
            ("found", found),
            ("coarse", coarse),
            ("iterations", found.steps.reshape(batch)),
            ("marginal_error", found.error.reshape(batch)),
            ("converged", (found.error <= _family().ENOUGH).reshape(batch)),
        ):
            object.__setattr__(self, name, value)

    @cached_property
    def of_targets(self) -> Tensor:
        """(R, m) potentials of all targets."""
        if self.found.of_targets is not None:
            known: Tensor = self.found.of_targets
            return known
        with torch.set_grad_enabled(self.problem.tracked):
            g: Tensor = _family().potentials(self.given.exchanged, self.found.of_values)
            return g

    # ---- read-outs

    def ranks(self) -> Tensor:
        p = self.problem
        if self.coarse is None:
            return super().ranks()
        m, y, family = p.y.shape[-1], self.coarse.given.y, _family()
        levels = (m - (m - 1) * y if p.descending else (m - 1) * y + 1) / m
        means = family.pull(self.coarse.given, self.coarse.of_targets, levels.unsqueeze(-2))
        if self.coarse.others is not None:
            payload = _flat(p.levels().detach())[:1].unsqueeze(-2)  # equal weights: the same for all rows
            rest = family.pull(_some(self.given, self.coarse.others), self.coarse.by_all, payload)
            means = self.coarse.merged(means, rest)
        return self._on_values(means.reshape(p.x.shape) * p.count)

    def _pull(self, v: Tensor) -> Tensor:
        p = self.problem
        payload = _flat(v.to(p.a.dtype).expand(*p.x.shape[:-1], -1)).unsqueeze(-2)
        return self._on_values(_family().pull(self.given, self.of_targets, payload).reshape(p.x.shape))

    def _on_values(self, t: Tensor) -> Tensor:
        """An answer for the values of the sorted rows, in the shape of x."""
        p = self.problem
        on_values = p.unsort(t)
        if p.mask is not None:
            on_values = torch.where(p.mask, on_values, 0.0)
        return on_values.to(p.dtype).movedim(-1, p.dim)

    def _push(self, payload: Tensor) -> Tensor:
        p = self.problem
        payload = payload.to(p.a.dtype)
        d = payload.shape[-1]
        if d == 0:
            return super()._push(payload)
        if p.weighted and not bool(payload.isfinite().all()):
            payload = torch.where((p.a > 0).unsqueeze(-1), payload, payload.nan_to_num(0.0, 0.0, 0.0))
        beyond = None
        if not bool(payload.isfinite().all()):
            # An average with a share of +inf is +inf, whatever else happens to x: it has no gradient.
            finite = payload.isfinite()
            beyond = torch.where(finite, 0.0, payload).detach().sum(-2, keepdim=True)
            payload = torch.where(finite, payload, 0.0)
        pivot = pivot_of(payload, p.a)
        rows = (payload - pivot).expand(*p.x.shape, d).reshape(-1, p.x.shape[-1], d).mT
        average = pivot + _family().push(self.given, self.found.of_values, rows).reshape(*p.y.shape, d)
        return self._finish_targets(average if beyond is None else torch.where(beyond == 0, average, beyond)).to(
            p.dtype
        )

    def targets_given_value(self) -> Tensor:
        p = self.problem
        shares: Tensor = _family().shares(self.given, self.of_targets)
        return shares.reshape(*p.x.shape, p.y.shape[-1])

    def values_given_target(self) -> Tensor:
        p, family = self.problem, _family()
        shares: Tensor = family.shares(self.given.exchanged, self.found.of_values)
        return shares.reshape(*p.y.shape, p.x.shape[-1]).mT

    def matrix(self) -> Tensor:
        p = self.problem
        by_target = self._in_order_of_x((p.a.unsqueeze(-1) * self.targets_given_value()).mT)
        return self._finish_targets(by_target).mT.to(p.dtype)

    def _potentials(self) -> tuple[Tensor, Tensor]:
        p = self.problem
        return self.found.of_values.reshape(p.x.shape), self.of_targets.reshape(p.y.shape)

    def chosen(self, which: Tensor) -> Plan:
        found = self.found._replace(of_targets=self.of_targets)
        found = type(found)(*(t[which] for t in found))
        return ExactPlan(self.problem.chosen(which), _some(self.given, which), found, None)

    # ---- in the units of ``plan.solve``

    @cached_property
    def start(self) -> tuple[Tensor, Tensor]:
        p = self.problem
        f0, g0 = staircase_potentials(p.cost.detach(), p.a.detach(), p.b.detach(), p.eps.detach(), p.by_columns)
        return f0, g0

    @cached_property
    def M(self) -> Tensor:  # noqa: N802 - the name in ``Plan``
        p, (f0, g0) = self.problem, self.start
        with torch.set_grad_enabled(p.tracked):
            return without_subnormals((p.cost - f0.unsqueeze(-1) - g0.unsqueeze(-2)) / p.eps)

    @cached_property
    def gamma(self) -> Tensor:
        p = self.problem
        with torch.set_grad_enabled(p.tracked):
            g = self.of_targets.detach().reshape(p.y.shape)
            gamma = (g - self.start[1]) / p.eps.detach().squeeze(-1)
            return attach(self.M, p.a, p.b, gamma, p.by_columns)
