"""The plan of one row as a narrow band: solved by Newton's method, differentiated and read in near-linear time.

The equations are those of ``semidual``, the iteration that of ``solvers.newton`` and the derivatives those of
``gradients``; only the sums are taken over a band (``banded``) and the linear systems solved block by block
(``banded_factor``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.gradients import EXACT_ORDER, differentiated
from ...core.problem import Problem
from ...core.semidual import NOTHING, c_transform, log_density, log_weight, without_subnormals
from ...core.solvers import Newton
from ...core.solvers._common import warn_unconverged
from ...core.solvers.newton import NEAR, WEIGHTLESS, shortened
from ..grid import Grid
from ..rules import Rule
from .blocks import Band, Staircase
from .factor import BlockFactor

_NOWHERE = math.log(NOTHING)
_LARGEST_EXPONENT = 300.0


@dataclass(frozen=True)
class _Semidual:
    """The semi-dual of a row over its band: a function of theta = (x, y, eps, log b) and of gamma."""

    band: Band
    start: Staircase

    def reduced(self, blocks: slice, x: Tensor, y: Tensor, eps: Tensor) -> Tensor:
        """M (blocks, S, W)."""
        i, j = self.band.sources[blocks], self.band.targets[blocks]
        C = (y[j].unsqueeze(-2) - x[i].unsqueeze(-1)).square()
        return without_subnormals((C - self.start.f0[i].unsqueeze(-1) - self.start.g0[j].unsqueeze(-2)) / eps)

    def log_density(self, blocks: slice, x: Tensor, y: Tensor, eps: Tensor, log_b: Tensor, gamma: Tensor) -> Tensor:
        log_b_here = self.band.at_targets(log_b, blocks, _NOWHERE)
        return log_density(self.reduced(blocks, x, y, eps), log_b_here, gamma[self.band.targets[blocks]])

    def density(self, blocks: slice, *theta: Tensor) -> Tensor:
        return self.log_density(blocks, *theta).exp()

    def phi(self, *theta: Tensor) -> Tensor:
        """(U,): the potential of the sources."""

        def one(blocks: slice, x: Tensor, y: Tensor, eps: Tensor, log_b: Tensor, gamma: Tensor) -> Tensor:
            log_b_here = self.band.at_targets(log_b, blocks, _NOWHERE)
            return c_transform(self.reduced(blocks, x, y, eps), log_b_here, gamma[self.band.targets[blocks]])

        return self.band.over_blocks(one, *theta)

    def factor(self, a: Tensor, s: Tensor, *theta: Tensor) -> BlockFactor:
        """Of the scaled Hessian, see ``semidual.hessian_factor``."""
        log_b = theta[3]
        smallest = torch.finfo(s.dtype).tiny ** 0.4
        ridge = 1e-13 if s.dtype == torch.float64 else 1e-6

        def scaled_density(blocks: slice) -> Tensor:
            root = 0.5 * self.band.at_targets(log_b, blocks, _NOWHERE).unsqueeze(-2)
            return torch.nn.functional.threshold((self.log_density(blocks, *theta) + root).exp_(), smallest, 0.0)

        root_b = (0.5 * log_b).exp()
        return BlockFactor.of(*self.band.hessian(scaled_density, a, s + ridge), root_b / root_b.norm())

    def newton(
        self, a: Tensor, gamma: Tensor, tolerance: float, max_iterations: int, *theta: Tensor
    ) -> tuple[Tensor, int, float]:
        """(gamma, iterations, error), as ``solvers.newton.newton_loop``."""
        log_b = theta[3]
        b, root_b = log_b.exp(), (0.5 * log_b).exp()
        base, direction, length, slope = gamma, torch.zeros_like(gamma), 1.0, math.inf
        for iteration in range(max_iterations + 1):
            point = base + length * direction
            s = self.band.over_sources(self.density, a, *theta, point)
            rho = 1.0 - s
            error = float(b @ rho.abs())
            if not error > tolerance or iteration == max_iterations:
                break
            slope_here = float(b @ (rho * direction))
            if slope_here < -0.5 * slope:  # the maximum was passed: the secant says where
                length *= slope / (slope - slope_here)
                continue
            newton = self.factor(a, s, *theta, point).solve(root_b * rho) / root_b
            newton = shortened(newton, b)
            if not float(b @ (rho * newton)) > 0:
                newton = -s.clamp(min=1e-30).log()  # Sinkhorn's own step always rises
            base, direction, length, slope = point, newton, 1.0, float(b @ (rho * newton))
        return torch.where(b < WEIGHTLESS, point - s.log(), point), iteration, error

    def attach(self, a: Tensor, gamma: Tensor, *theta: Tensor) -> Tensor:
        """``gamma`` (a constant) as a differentiable function of a and theta, see ``gradients``."""
        if not differentiated(a, *theta):
            return gamma
        fixed_a, fixed = a.detach(), [t.detach() for t in theta]
        s = self.band.over_sources(self.density, fixed_a, *fixed, gamma)
        factor = self.factor(fixed_a, s, *fixed, gamma)
        root_b, moving = (0.5 * fixed[3]).exp(), gamma
        for _ in range(EXACT_ORDER):
            rho = 1.0 - self.band.over_sources(self.density, a, *theta, moving)
            moving = moving + factor.solve(root_b * (rho - rho.detach())) / root_b
        return gamma + (moving - moving.detach())


@dataclass(frozen=True)
class BandedPlan:
    """What ``Plan`` is, for one row whose plan is a narrow band."""

    problem: Problem  #: its cost is left empty
    semidual: _Semidual
    gamma: Tensor  #: (K,)
    iterations: Tensor  #: (1,)
    marginal_error: Tensor  #: (1,)
    converged: Tensor  #: (1,)

    @classmethod
    def of(cls, problem: Problem, solver: Newton, warn: bool) -> BandedPlan:
        """The plan of a problem of one row whose cost is squared, and left empty. Its potential is a constant."""
        x, a, y, b, eps = (t.detach()[0] for t in (problem.x, problem.a, problem.y, problem.b, problem.eps.reshape(1)))
        masses = a if problem.hats is None else problem.hats[0]
        start = Staircase.of(x, masses, y, b, float(eps))
        semidual = _Semidual(Band.around(start.low, start.high, len(y)), start)
        tolerance = solver.tolerance or (1e-10 if x.dtype == torch.float64 else 2e-6)
        theta = x, y, eps, log_weight(b)
        gamma, many = torch.zeros_like(y), solver.max_iterations
        if problem.hats is not None:
            gamma = semidual.newton(masses, gamma, NEAR, many, *theta)[0]
        gamma, iterations, error = semidual.newton(a, gamma, tolerance, many, *theta)
        errors = x.new_tensor([error])
        if warn:
            warn_unconverged(errors, tolerance, many, "Raise eps, or Newton(max_iterations=...).")
        return cls(
            problem,
            semidual,
            gamma,
            torch.tensor([iterations], dtype=torch.int64, device=x.device),
            errors,
            errors <= tolerance,
        )

    def attached(self) -> BandedPlan:
        """The same, differentiable in every input."""
        return replace(self, gamma=self.semidual.attach(self.problem.a[0], self.gamma, *self._theta[:-1]))

    def chosen(self, which: Tensor) -> BandedPlan:
        """``which`` can only be the one row there is."""
        return replace(self, problem=self.problem.chosen(which))

    @property
    def _theta(self) -> tuple[Tensor, ...]:
        p = self.problem
        return p.x[0], p.y[0], p.eps.reshape(()), log_weight(p.b[0]), self.gamma

    def pulled(self, v: Tensor) -> Tensor:
        """(1, U): average of v (1, K), given on the targets, over those that each source is sent to."""
        carried = (self.problem.b[0] + NOTHING) * v[0]
        return self.semidual.band.over_targets(self.semidual.density, carried, *self._theta).unsqueeze(0)

    def averages(self, carried: Tensor) -> Tensor:
        """(1, K): what the sources carry (1, U), over what reaches each target."""
        band, density, theta = self.semidual.band, self.semidual.density, self._theta
        reaches = band.over_sources(density, self.problem.a[0], *theta)
        return (band.over_sources(density, carried[0], *theta) / reaches).unsqueeze(0)

    def density(self, y: Tensor) -> BandedDensity:
        """The density at increasing targets y (Y,) anywhere."""
        return BandedDensity.of(self, y)

    # ---- how far a rule and a grid may be off

    def rule_errors(self, rule: Rule) -> tuple[Tensor, Tensor]:
        """(panels,) the largest error of any source in each panel, and the largest sum of errors of any source."""
        share, weights, last = rule.coefficients(self.gamma)
        probe = torch.cat([weights.unsqueeze(-1), (weights.unsqueeze(-2) * last).mT], dim=-1)  # (panels, 16, 7)
        width, band = weights.shape[-1], self.semidual.band
        of_panel, of_source = torch.zeros_like(share), torch.zeros_like(share[0])
        for blocks in band.chunks():
            panel = torch.div(band.targets[blocks, ::width], width, rounding_mode="floor")
            E = self.semidual.density(blocks, *self._theta).unflatten(-1, (-1, width)).transpose(1, 2)
            seen = E @ probe[panel]  # (blocks, panels, S, 7)
            squares = seen[..., 1:].square().sum(-1)
            off = 4.0 * share[panel].unsqueeze(-1) * squares / seen[..., 0].clamp(min=1e-30)
            off = torch.where(band.real_target[blocks, ::width].unsqueeze(-1), off, 0.0)
            of_panel = of_panel.scatter_reduce(0, panel.flatten(), off.amax(-1).flatten(), "amax")
            of_source = of_source.maximum(off.sum(1).max())
        return of_panel, of_source

    def grid_error_of_averages(self, grid: Grid, kept: Tensor | None, occupied: Tensor, weight: Tensor) -> Tensor:
        """The largest error of a grid whose cells (cells,) weigh ``weight``, in any cumulative or gathered density."""
        p, U = grid.points, self.semidual.band.size[0]
        nodes = torch.arange(grid.size, device=weight.device, dtype=torch.int64) if kept is None else kept
        constant = grid.remainder(torch.eye(p + 1, dtype=weight.dtype, device=weight.device)[0]).amax()
        pad = torch.nn.functional.pad
        # The difference of nodes d to d + p speaks of cells d and d + 1; it must not skip a node.
        start = torch.arange(U - p, device=weight.device, dtype=torch.int64)
        unbroken = nodes[start + p] - nodes[start] == p
        cell = nodes[start].clamp(max=grid.cells - 1)
        around = pad(occupied, (0, 1)), pad(weight, (0, 1))
        speaks = pad((around[0][cell] | around[0][cell + 1]) & unbroken, (0, p))
        carries = pad((around[1][cell] + around[1][cell + 1]) * unbroken, (0, p))

        stairs = self.semidual.start
        band = Band.around(stairs.low, stairs.high, self.semidual.band.size[1], overlap=p)
        semidual, b = _Semidual(band, stairs), self.problem.b[0]
        below, gathered = constant.new_zeros(()), torch.zeros_like(b)
        for blocks in band.chunks():
            E, i = semidual.density(blocks, *self._theta), band.sources[blocks, :-p]
            off = constant * E.diff(n=p, dim=-2).abs()
            here = torch.where(band.real_target[blocks], (carries[i].unsqueeze(-2) @ off).squeeze(-2), 0.0)
            gathered = gathered.index_add(0, band.targets[blocks].flatten(), here.flatten())
            parts = E * band.at_targets(b, blocks, 0.0).unsqueeze(-2)
            off = constant * parts.cumsum(-1).diff(n=p, dim=-2).abs().amax(-1)
            below = below.maximum((off * speaks[i]).max())
        return below.maximum(gathered.max())


@dataclass(frozen=True)
class BandedDensity:
    """The density of a plan at other targets than its own: what reaches each of them weighs one."""

    band: Band
    shift: tuple[Tensor, Tensor]  #: (U,) and (Y,), constants that keep exponents small
    theta: tuple[Tensor, ...]  #: x, y, eps and phi
    weighs: Tensor  #: (Y,) what reaches each target before it is scaled

    @classmethod
    def of(cls, plan: BandedPlan, y: Tensor) -> BandedDensity:
        stairs, (x, nodes, eps, log_b, gamma) = plan.semidual.start, plan._theta
        theta = x, y, eps, plan.semidual.phi(x, nodes, eps, log_b, gamma)
        x, y, eps, phi, nodes, b = (t.detach() for t in (*theta, nodes, plan.problem.b[0]))
        # A source reaches what lies between the nodes that it reaches, and up to one node farther.
        ends = torch.nn.functional.pad(nodes, (1, 1))
        ends[0], ends[-1] = -math.inf, math.inf
        low = torch.searchsorted(y, ends[stairs.low]).clamp(max=len(y) - 1)
        high = (torch.searchsorted(y, ends[stairs.high + 2], right=True) - 1).clamp(min=0)
        band = Band.around(low, high.maximum(low), len(y))
        # The best of the sources next to the staircase; any shift would do that keeps exponents in range.
        masses = plan.problem.a[0].detach() if plan.problem.hats is None else plan.problem.hats[0]
        beside = torch.searchsorted(nodes, y).clamp(max=len(nodes) - 1)
        source = torch.searchsorted(masses.cumsum(0), b.cumsum(0)[beside])
        near = (source.unsqueeze(-1) + torch.arange(-2, 3, device=y.device, dtype=torch.int64)).clamp(0, len(x) - 1)
        g = ((y.unsqueeze(-1) - x[near]).square() - stairs.f0[near] - eps * phi[near]).amin(-1)
        unscaled = cls(band, (stairs.f0, g), theta, torch.ones_like(y))
        return replace(unscaled, weighs=band.over_sources(unscaled._raw, plan.problem.a[0], *theta))

    def _raw(self, blocks: slice, x: Tensor, y: Tensor, eps: Tensor, phi: Tensor) -> Tensor:
        i, j = self.band.sources[blocks], self.band.targets[blocks]
        C = (y[j].unsqueeze(-2) - x[i].unsqueeze(-1)).square()
        M = (C - self.shift[0][i].unsqueeze(-1) - self.shift[1][j].unsqueeze(-2)) / eps
        return (phi[i].unsqueeze(-1) - M).clamp(-2 * _LARGEST_EXPONENT, _LARGEST_EXPONENT).exp()

    def pull(self, v: Tensor) -> Tensor:
        """(1, U): sum over the targets of v (1, Y) times the density."""
        return self.band.over_targets(self._raw, v[0] / self.weighs, *self.theta).unsqueeze(0)

    def push(self, carried: Tensor) -> Tensor:
        """(1, Y): sum over the sources of what they carry (1, U), times the density."""
        return (self.band.over_sources(self._raw, carried[0], *self.theta) / self.weighs).unsqueeze(0)

    def roughness(self, grid: Grid) -> Tensor:
        """(1, U): how much of each source's mass a grid of these targets gets wrong."""
        with torch.no_grad():

            def one(blocks: slice) -> Tensor:
                E = self._raw(blocks, *self.theta) * self.band.at_targets(1.0 / self.weighs, blocks, 0.0).unsqueeze(-2)
                return grid.remainder(E, self.band.real_target[blocks].unsqueeze(-2)).sum(-1) / grid.cells

            return self.band.over_blocks(one).unsqueeze(0)
