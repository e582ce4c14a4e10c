"""Plans of many rows, solved and read some rows at a time.

A tensor of all pairs of many rows is larger than the caches, and on a CPU the allocator gives such memory back to the
system after each operation, so that the next one begins with thousands of page faults: 128 rows of 200 values took 3.5
times as long together as sixteen at a time. Rows are independent of each other, so they are solved in blocks whose
tensors of pairs hold about ``BLOCK`` numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .modes import PLAIN, tracing
from .plan import Plan, solve
from .problem import Problem
from .solvers import Newton, Solver
from .solvers._common import warn_unconverged
from .solvers.newton import ADVICE

BLOCK = 3 << 18  #: numbers of a tensor of pairs: 6 MB in double precision


def rows_at_a_time(pairs: int, like: Tensor) -> int:
    """How many rows of so many pairs make a block. On an accelerator all rows are solved together."""
    return max(1, BLOCK // max(pairs, 1)) if like.is_cpu else len(like) + 1


def solve_in_blocks(problem: Problem, solver: Solver) -> Plan:
    """``plan.solve``, some rows at a time where there are many."""
    x = problem.x
    R, step = x.shape[:-1].numel(), rows_at_a_time(x.shape[-1] * problem.y.shape[-1], x)
    if step >= R or not x.is_cpu or not isinstance(solver, Newton) or tracing() or type(x) not in PLAIN:
        return solve(problem, solver)
    parts = [solve(part, solver, warn=False) for part in _parts(problem, step)]
    plan = Blocks(problem, parts, step)
    tolerance = solver.reached(problem.a.dtype)
    warn_unconverged(plan.marginal_error, tolerance, solver.max_iterations, ADVICE)
    return plan


def _parts(problem: Problem, step: int) -> list[Problem]:
    """The rows of a problem with any batch dimensions, as problems of one."""
    batch = problem.x.shape[:-1]
    split = {
        f.name: t.reshape(-1, *t.shape[len(batch) :]).split(step)
        for f in fields(problem)
        if isinstance(t := getattr(problem, f.name), Tensor)
    }
    count = len(split["x"])
    named: list[dict[str, Any]] = [{name: each[k] for name, each in split.items()} for k in range(count)]
    return [replace(problem, dim=-1, **tensors) for tensors in named]


class Blocks(Plan):
    """A ``Plan`` made of plans of ``step`` rows each."""

    parts: list[Plan]
    step: int

    def __init__(self, problem: Problem, parts: list[Plan], step: int) -> None:
        for name, value in (("problem", problem), ("parts", parts), ("step", step)):
            object.__setattr__(self, name, value)
        for name in ("iterations", "marginal_error", "converged"):
            object.__setattr__(self, name, self._joined([getattr(part, name) for part in parts]))

    def _joined(self, of_parts: list[Tensor]) -> Tensor:
        joined = torch.cat(of_parts)
        return joined.reshape(*self.problem.x.shape[:-1], *joined.shape[1:])

    def _each(self, read: Callable[[Plan], Tensor]) -> Tensor:
        return self._joined([read(part) for part in self.parts])

    def _split(self, t: Tensor, own: int) -> tuple[Tensor, ...]:
        """A tensor whose last ``own`` dimensions belong to each row, for the parts."""
        of_row = t.shape[t.ndim - own :]
        each = t.expand(*self.problem.x.shape[:-1], *of_row).reshape(-1, *of_row)
        parts: tuple[Tensor, ...] = each.split(self.step)
        return parts

    # ---- read-outs

    def permutation(self) -> Tensor:
        return self._each(lambda part: part.permutation())

    def matrix(self) -> Tensor:
        return self._each(lambda part: part.matrix())

    @property
    def potentials(self) -> tuple[Tensor, Tensor]:
        f, g = zip(*(part.potentials for part in self.parts), strict=True)
        return self._joined(list(f)), self._joined(list(g))

    def targets_given_value(self) -> Tensor:
        return self._each(lambda part: part.targets_given_value())

    def values_given_target(self) -> Tensor:
        return self._each(lambda part: part.values_given_target())

    def _pull(self, v: Tensor) -> Tensor:
        out = [part._pull(each) for part, each in zip(self.parts, self._split(v, 1), strict=True)]
        return self._joined(out).movedim(-1, self.problem.dim)

    def _push(self, payload: Tensor) -> Tensor:
        return self._joined([part._push(each) for part, each in zip(self.parts, self._split(payload, 2), strict=True)])

    # ---- in the units of the solver

    @cached_property
    def M(self) -> Tensor:  # noqa: N802 - the name in ``Plan``
        return self._each(lambda part: part.M)

    @cached_property
    def gamma(self) -> Tensor:
        return self._each(lambda part: part.gamma)

    @cached_property
    def start(self) -> tuple[Tensor, Tensor]:
        return self._each(lambda part: part.start[0]), self._each(lambda part: part.start[1])
