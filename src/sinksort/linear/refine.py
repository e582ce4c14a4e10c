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

from ..core.plan import Plan, solve
from ..core.problem import Problem
from ..core.semidual import log_density
from ..core.solvers import Newton, Solver
from .band.blocks import smooth_widths
from .band.plan import BandedPlan
from .grid import Grid
from .places import Places
from .rules import Rule
from .smooth import Part, Values

_BANDED = 1 << 27  #: work of one Newton step, U K^2, from which the plan of a row is cheaper as a band
_PANEL_DOUBLE, _PANEL_SINGLE = 1.4, 2.2  #: how long the first panels in a band are, in widths of the density
#: Points of the interpolation on a grid, for answers in double and in single precision. With four points ranks are
#: right to 1e-6 of n while their gradient, which is off by the slope of the remainder, is only right to 1e-3.
_POINTS_DOUBLE, _POINTS_SINGLE = 8, 6
_IN_DOUBLE = 1e-7  #: accepted errors below are those of answers in double precision
_SLOPES = 1 / 20  #: of the cells: how many times its estimate the remainder of a grid counts, for the gradient's sake


def accepted_error(dtype: torch.dtype) -> float:
    """Largest admissible estimate of an error, as a fraction of n for ranks, of the range for values."""
    return 1e-9 if dtype == torch.float64 else 5e-6


def first_sizes(eps: float, dtype: torch.dtype) -> tuple[int, int]:
    """(cells, nodes) that are enough for ordinary inputs."""
    double = dtype == torch.float64
    cells = max(64, math.ceil((24 if double else 12) / math.sqrt(eps)))
    return cells, math.ceil((5.0 if double else 3.4) / math.sqrt(eps)) + 8


class Refinement:
    """Small problems for some rows, refined until all of them are right."""

    def __init__(
        self,
        places: Places,
        eps: Tensor,
        given: tuple[Tensor, Tensor] | None,
        m: int,
        solver: Solver,
        accepted: float,
        averages: bool,
    ) -> None:
        self.places, self.eps, self.given, self.m, self.solver = places, eps, given, m, solver
        self.accepted, self.averages = accepted, averages

    def run(self, cells: int, K: int, points: int | None = None) -> list[Part]:
        rows = torch.arange(len(self.eps), device=self.eps.device, dtype=torch.int64)
        grid = Grid(cells, points or (_POINTS_DOUBLE if self.accepted < _IN_DOUBLE else _POINTS_SINGLE))
        return self._refined(rows, grid, Rule.whole(self.m, K))

    def _refined(self, todo: Tensor, grid: Grid | None, rule: Rule | None) -> list[Part]:
        done: list[Part] = []
        for attempt in range(64):
            if grid is not None and not self.places.worth(grid):
                grid = None
            if rule is not None and (self.given is not None or self.m < 2 * rule.size):
                rule = None
            U, K = self.places.shape[-1] if grid is None else grid.size, self.m if rule is None else rule.size
            if isinstance(self.solver, Newton) and U * K**2 > _BANDED:
                return [*done, *(self._in_a_band(row, grid, self.solver) for row in todo.split(1))]
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

    def _in_a_band(self, row: Tensor, grid: Grid | None, solver: Newton) -> Part:
        """The same for one row whose plan is too large for a matrix."""
        places, eps, rule = self.places.chosen(row), self.eps[row], None
        for _ in range(64):
            values, x, a, hats, order = self._sources(places, grid)
            if self.given is not None:
                y, b = self.given[0][row], self.given[1][row]
            else:
                if rule is None:
                    # On the CPU, where sums have one order: all who refine together must make the same panels.
                    masses = (a if hats is None else hats)[0].detach().cpu()
                    widths = smooth_widths(x[0].detach().cpu(), masses, eps.item())
                    rule = Rule.fitted(self.m, widths, _PANEL_DOUBLE if self.accepted < _IN_DOUBLE else _PANEL_SINGLE)
                y, b = (t.unsqueeze(0) for t in rule.slots(eps))
            inverse = None if order is None else order.argsort(dim=-1)
            never = x.new_empty(1, 0, 0)
            problem = Problem(x, a, y, b, never, eps, places.count, eps.dtype, inverse, order, hats=hats)
            plan = BandedPlan.of(problem, solver, warn=grid is None)
            with torch.no_grad():
                agreed = places.agreed(self._estimates_in_a_band(plan, values, rule).unsqueeze(0))[0]
                off_grid, off_rule, by_panel = agreed[0], agreed[1], agreed[2:]
            error = off_grid.maximum(off_rule)
            if not error > self.accepted:
                return Part(row, values, rule, plan.attached(), error.unsqueeze(0), self.accepted)
            if grid is not None and off_grid > self.accepted:
                grid = grid.finer(off_grid.item() / self.accepted)
                grid = grid if places.worth(grid) else None
            if rule is not None and off_rule > self.accepted:
                worst = 0.5 * by_panel.amax().item()
                rule = rule.halved((by_panel > min(worst, self.accepted / 8)).tolist())  # a source sees a few panels
        raise RuntimeError("refinement did not end; please report the input")

    def _estimates_in_a_band(self, plan: BandedPlan, values: Values, rule: Rule | None) -> Tensor:
        """(2 + panels,): error of the grid, of the rule, and of the rule panel by panel; see ``_estimates``."""
        if rule is None:
            by_panel, off_rule = self.eps.new_zeros(1), self.eps.new_zeros(())
        else:
            by_panel, off_rule = plan.rule_errors(rule)
        off_grid = self.eps.new_zeros(())
        if values.grid is not None and values.occupied is not None and values.weight is not None:
            if not plan.converged:
                return torch.cat([self.eps.new_tensor([torch.inf, 0.0]), torch.zeros_like(by_panel)])
            if self.averages:
                off_grid = plan.grid_error_of_averages(values.grid, values.kept, values.occupied[0], values.weight[0])
            else:
                mean = values.on_all_nodes(plan.pulled(plan.problem.y))
                off_grid = (values.grid.remainder(mean) * values.occupied).amax()
            off_grid = off_grid.nan_to_num(torch.inf, torch.inf)  # see ``_solved``
        return torch.cat([self._weight(values.grid) * off_grid.reshape(1), off_rule.reshape(1), by_panel])

    def _weight(self, grid: Grid | None) -> float:
        """How many times its estimate the remainder of a grid counts: three times, since it is an estimate.

        The slope of the remainder is about 3.5 times the remainder in each cell. Where answers need to be right in
        single precision only, a fine grid has to be better than they need, so that gradients are right as well.
        """
        return 3.0 if grid is None or self.accepted < _IN_DOUBLE else max(3.0, _SLOPES * grid.cells)

    def _finer(self, rule: Rule, attempt: int, failed: list[bool]) -> Rule:
        if len(failed) > 1:
            return rule.halved(failed)
        if attempt == 0:
            return Rule.whole(self.m, math.ceil(1.6 * rule.per_panel))
        return Rule.panels(self.m, math.ceil(rule.per_panel / 12))

    def _solved(self, rows: Tensor, grid: Grid | None, rule: Rule | None) -> tuple[Part, Tensor, Tensor]:
        """The small problem of some rows, and what grid and rule (panel by panel) get wrong."""
        places, eps = self.places.chosen(rows), self.eps[rows]
        if self.given is not None:
            y, b = self.given[0][rows], self.given[1][rows]
        elif rule is not None:
            y, b = (t.expand(len(rows), -1) for t in rule.nodes(eps))
        else:
            at = torch.arange(self.m, dtype=eps.dtype, device=eps.device) / max(self.m - 1, 1)
            y, b = at.expand(len(rows), -1), torch.full_like(at, 1.0 / self.m).expand(len(rows), -1)

        values, x, a, hats, order = self._sources(places, grid)
        inverse = None if order is None else order.argsort(dim=-1)
        cost = (y.unsqueeze(-2) - x.unsqueeze(-1)).square()
        problem = Problem(x, a, y, b, cost, eps, places.count, eps.dtype, inverse, order, hats=hats)
        plan = solve(problem, self.solver, warn=grid is None and rule is None)
        with torch.no_grad():
            off_grid, off_rule = self._estimates(plan, values, rule)
            if grid is not None:
                # On a grid that is too coarse the masses, some of which are negative, may not be those of any plan; or
                # a target that weighs next to nothing gets less than nothing.
                lost = ~plan.converged | off_grid.isnan()
                off_grid = torch.where(lost, torch.inf, off_grid)
                off_rule = torch.where(lost.unsqueeze(-1), 0.0, off_rule)
            elif rule is None:
                off_rule = torch.zeros_like(off_rule)
            agreed = places.agreed(torch.cat([off_grid.unsqueeze(-1), off_rule], dim=-1))
            off_grid, off_rule = agreed[:, 0], agreed[:, 1:]
        return Part(rows, values, rule, plan, off_grid.maximum(off_rule.sum(-1)), self.accepted), off_grid, off_rule

    def _sources(
        self, places: Places, grid: Grid | None
    ) -> tuple[Values, Tensor, Tensor, Tensor | None, Tensor | None]:
        """The values, where they stand in order, their masses (and hats), and the order if they are not on a grid."""
        if grid is not None:
            return *on_nodes(places, grid), None
        x_tilde, a = places.standing()
        sources, order = x_tilde.sort(dim=-1)
        return Values(places, None), sources, a.gather(-1, order), None, order

    def _estimates(self, plan: Plan, values: Values, rule: Rule | None) -> tuple[Tensor, Tensor]:
        """(r,) error of the grid and (r, panels) of the rule, as fractions of n or of the range."""
        E = log_density(plan.M, plan.log_b, plan.gamma).exp()
        off_rule = E.new_zeros(len(E), 1) if rule is None else rule.errors(E).amax(-2)
        if values.grid is None or values.occupied is None or values.weight is None:
            return E.new_zeros(len(E)), off_rule
        b = plan.problem.b
        if not self.averages:
            mean = (E @ (b * plan.problem.y).unsqueeze(-1)).mT
            remainder = values.grid.remainder(values.on_all_nodes(mean)) * values.occupied.unsqueeze(1)
            return self._weight(values.grid) * remainder.amax((-1, -2)), off_rule
        density = values.on_all_nodes(E.mT)
        below = values.grid.remainder((density * b.unsqueeze(-1)).cumsum(-2)) * values.occupied.unsqueeze(1)
        gathered = values.grid.remainder(density) @ values.weight.unsqueeze(-1)
        return self._weight(values.grid) * below.amax((-1, -2)).maximum(gathered.amax((-1, -2))), off_rule


def on_nodes(places: Places, grid: Grid) -> tuple[Values, Tensor, Tensor, Tensor]:
    """The values on the grid, its nodes and their masses: all nodes, or those that values need."""
    masses, hats, weight, occupied = places.on(grid)
    # Cell k is interpolated from nodes k to k + p - 1, and its error seen in one more on each side.
    needed = torch.nn.functional.pad(occupied.any(0), (grid.points, grid.points))
    needed = needed.unfold(0, grid.points + 2, 1).any(-1)
    kept = None if needed.float().mean() > 0.8 else needed.nonzero().squeeze(-1)
    nodes = grid.nodes(masses)
    if kept is not None:
        nodes, masses, hats = nodes[kept], masses[:, kept], hats[:, kept]
    low, high = places.interval
    sources = (low + (high - low) * nodes).expand_as(masses)
    return Values(places, grid, kept, occupied, weight), sources, masses, hats
