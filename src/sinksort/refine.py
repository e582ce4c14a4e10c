"""A small problem in place of a large one, made finer until it is right.

Smoothness depends on the input (a wide gap between two groups of values makes edges of width eps/gap), so a small
problem is checked, row by row: by the last coefficients of the density in every panel of its rule, and by the first
difference that its grid neglects, wherever there are values. Rows that fail get a finer rule or a finer grid; in the
end all targets are nodes and every value stands for itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .grid import Grid, moments
from .plan import Plan, solve
from .problem import Problem, live_rows
from .rules import Rule
from .semidual import log_density
from .smooth import Part, Values
from .solvers import Solver
from .squash import Squash, normalize

#: With fewer values than this, a grid costs more than it saves.
WORTH_A_GRID = 1024


def accepted_error(dtype: torch.dtype) -> float:
    """Largest admissible estimate of an error, as a fraction of n for ranks, of the range for values."""
    return 1e-9 if dtype == torch.float64 else 5e-6


def first_sizes(eps: float, dtype: torch.dtype) -> tuple[int, int]:
    """(cells, nodes) that are enough for ordinary inputs."""
    double = dtype == torch.float64
    cells = max(64, math.ceil((24 if double else 12) / math.sqrt(eps)))
    return cells, math.ceil((5.0 if double else 3.4) / math.sqrt(eps)) + 8


class Refinement:
    """Small problems for rows (r, n) without padding, refined until all rows are right."""

    def __init__(
        self,
        x: Tensor,
        weights: Tensor | None,
        eps: Tensor,
        given: tuple[Tensor, Tensor] | None,
        m: int,
        squash: Squash,
        solver: Solver,
        accepted: float,
        averages: bool,
    ) -> None:
        values, self.a, _, self.count = live_rows(x, x, -1, weights, None)
        low, high = (given[0][:, :1], given[0][:, -1:]) if given else (values.new_zeros(1), values.new_ones(1))
        x_tilde = normalize(values, self.a, squash, low, high)
        nan = x_tilde.isnan()
        self.poisoned = torch.where(nan.any(-1, keepdim=True), torch.nan, 0.0).to(x_tilde.dtype)
        self.x_tilde = torch.where(nan, 0.5, x_tilde)
        self.weighted = weights is not None
        self.bounded = isinstance(squash, str)  # in [0, 1]
        self.eps, self.given, self.m, self.solver = eps, given, m, solver
        self.accepted, self.averages = accepted, averages

    def run(self, cells: int, K: int) -> list[Part]:
        todo = torch.arange(len(self.a), device=self.a.device)
        grid: Grid | None = Grid(cells, 8 if self.accepted < 1e-7 else 4)
        rule: Rule | None = Rule.whole(self.m, K)
        done: list[Part] = []
        for attempt in range(64):
            n = self.a.shape[-1]
            if grid is not None and (n < WORTH_A_GRID or n < 2 * grid.cells):
                grid = None
            if rule is not None and (self.given is not None or self.m < 2 * rule.size):
                rule = None
            part, off_grid, off_rule = self._solved(todo, grid, rule)
            late = off_grid.maximum(off_rule.sum(-1)) > self.accepted
            if not late.any():
                return [*done, part]
            if not late.all():
                done.append(part.chosen((~late).nonzero().squeeze(-1)))
            if grid is not None and (off_grid > self.accepted).any():
                grid = grid.finer(off_grid.amax().item() / self.accepted)
            failed = (off_rule[late] > self.accepted / off_rule.shape[-1]).any(0)
            if rule is not None and failed.any():
                rule = self._finer(rule, attempt, failed.tolist())
            todo = todo[late]
        raise RuntimeError("refinement did not end; please report the input")  # it ends with all values and targets

    def _finer(self, rule: Rule, attempt: int, failed: list[bool]) -> Rule:
        if len(failed) > 1:
            return rule.halved(failed)
        if attempt == 0:
            return Rule.whole(self.m, math.ceil(1.6 * rule.per_panel))
        return Rule.panels(self.m, math.ceil(rule.per_panel / 12))

    def _solved(self, rows: Tensor, grid: Grid | None, rule: Rule | None) -> tuple[Part, Tensor, Tensor]:
        """The small problem of some rows, and what grid and rule (panel by panel) get wrong."""
        a, x_tilde = self.a[rows], self.x_tilde[rows]
        if self.given is not None:
            y, b = self.given[0][rows], self.given[1][rows]
        elif rule is not None:
            y, b = (t.expand(len(rows), -1) for t in rule.nodes(a))
        else:
            at = torch.arange(self.m, dtype=a.dtype, device=a.device) / max(self.m - 1, 1)
            y, b = at.expand(len(rows), -1), torch.full_like(at, 1.0 / self.m).expand(len(rows), -1)
        eps, count = self.eps[rows], self.count[rows]

        if grid is None:
            sources, order = x_tilde.sort(dim=-1)
            inverse = order.argsort(dim=-1)
            cost = (y.unsqueeze(-2) - sources.unsqueeze(-1)).square()
            problem = Problem(sources, a.gather(-1, order), y, b, cost, eps, count, a.dtype, inverse, order)
            values = Values(x_tilde, a, None)
        else:
            values, sources, masses, hats = self._on_grid(x_tilde, a, grid)
            cost = (y.unsqueeze(-2) - sources.unsqueeze(-1)).square()
            problem = Problem(sources, masses, y, b, cost, eps, count, a.dtype, hats=hats)
        plan = solve(problem, self.solver, warn=grid is None and rule is None)
        with torch.no_grad():
            off_grid, off_rule = self._estimates(plan, values, rule)
            if grid is not None:
                # On a grid that is too coarse the masses, some of which are negative, may not be those of any plan.
                lost = ~plan.converged
                off_grid = torch.where(lost, torch.inf, off_grid)
                off_rule = torch.where(lost.unsqueeze(-1), 0.0, off_rule)
            elif rule is None:
                off_rule = torch.zeros_like(off_rule)
        part = Part(rows, values, rule, plan, off_grid.maximum(off_rule.sum(-1)), self.accepted, self.poisoned[rows])
        return part, off_grid, off_rule

    def _on_grid(self, x_tilde: Tensor, a: Tensor, grid: Grid) -> tuple[Values, Tensor, Tensor, Tensor]:
        """The values on the grid, its nodes and their masses: all nodes, or those that values need."""
        if self.bounded:
            low, high = x_tilde.new_zeros(1), x_tilde.new_ones(1)
        else:
            low, high = x_tilde.detach().amin(-1, keepdim=True), x_tilde.detach().amax(-1, keepdim=True)
            high = torch.where(high > low, high, low + 1.0)
        place = x_tilde if self.bounded else (x_tilde - low) / (high - low)
        in_cells = moments(place * grid.cells, a, grid.cells, grid.points)
        occupied = in_cells[:, 0] != 0
        if self.weighted:  # what weighs nothing wants a rank too
            with torch.no_grad():
                occupied = moments(place * grid.cells, torch.ones_like(a), grid.cells, 1)[:, 0] != 0
        # Cell k is interpolated from nodes k to k + p - 1, and its error seen in one more on each side.
        needed = torch.nn.functional.pad(occupied.any(0), (grid.points, grid.points))
        needed = needed.unfold(0, grid.points + 2, 1).any(-1)
        kept = None if needed.float().mean() > 0.8 else needed.nonzero().squeeze(-1)
        nodes, masses, hats = grid.nodes(a), grid.spread(in_cells), grid.hats(in_cells.detach())
        if kept is not None:
            nodes, masses, hats = nodes[kept], masses[:, kept], hats[:, kept]
        sources = (low + (high - low) * nodes).expand_as(masses)
        return Values(place, a, grid, kept, occupied), sources, masses, hats

    def _estimates(self, plan: Plan, values: Values, rule: Rule | None) -> tuple[Tensor, Tensor]:
        """(r,) error of the grid and (r, panels) of the rule, as fractions of n or of the range."""
        E = log_density(plan.M, plan.log_b, plan.gamma).exp()
        off_rule = E.new_zeros(len(E), 1) if rule is None else rule.errors(E).amax(-2)
        if values.grid is None or values.occupied is None:
            return E.new_zeros(len(E)), off_rule
        b = plan.problem.b
        if not self.averages:
            mean = (E @ (b * plan.problem.y).unsqueeze(-1)).mT
            remainder = values.grid.remainder(values.on_all_nodes(mean)) * values.occupied.unsqueeze(1)
            return 3.0 * remainder.amax((-1, -2)), off_rule
        density = values.on_all_nodes(E.mT)
        below = (values.grid.remainder((density * b.unsqueeze(-1)).cumsum(-2)) * values.occupied.unsqueeze(1)).amax(
            (-1, -2)
        )
        spread = moments(values.place * values.grid.cells, values.a, values.grid.cells, 1).transpose(1, 2)
        gathered = (values.grid.remainder(density) @ spread).amax((-1, -2))
        return 3.0 * below.maximum(gathered), off_rule
