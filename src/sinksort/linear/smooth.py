"""The plan in linear time: a grid in place of very many values, a few Gauss nodes in place of very many targets.

All that a plan needs of the values are sums of functions of x~ that are smooth at the scale sqrt(eps) or coarser, and
the same holds for the default targets. So the values' weights are moved to the nodes of a grid (``grid``), the targets
are replaced by a Gauss rule (``rules``), the small problem between the two is solved, and what it says is read at every
value and every target. Since b_bar_j = ((m - 1) y_j + 1)/m on the regular grid, the rank of a value is

    n ((m - 1) E[Y | x] + 1) / m.

No sort is needed, and nothing of size n is stored but x~ and the answer.

Between the nodes the plan continues by its own formula: with the potential f of the values, its density at a value x
and any target y is E(x, y) = exp((f(x) - (x - y)^2)/eps), up to the factor for which all that reaches y weighs one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.plan import Plan
from ..core.problem import wide_dtype
from ..core.semidual import c_transform, log_density
from .band.plan import BandedDensity, BandedPlan
from .grid import Grid
from .places import Places
from .rules import Rule


@dataclass(frozen=True)
class Values:
    """The values of some rows, moved to the nodes of a grid; or, without a grid, sorted and standing for themselves."""

    places: Places
    grid: Grid | None
    kept: Tensor | None = None  #: nodes that values need; None for all
    occupied: Tensor | None = None  #: (r, cells) cells with values in them
    weight: Tensor | None = None  #: (r, cells) what the values in each cell weigh

    def chosen(self, which: Tensor) -> Values:
        occupied = None if self.occupied is None else self.occupied[which]
        weight = None if self.weight is None else self.weight[which]
        return replace(self, places=self.places.chosen(which), occupied=occupied, weight=weight)

    @property
    def cells(self) -> int:
        return self.places.shape[-1] if self.grid is None else self.grid.cells

    def on_all_nodes(self, F: Tensor) -> Tensor:
        """(r, ..., nodes): zero at nodes that no value needs."""
        if self.grid is None or self.kept is None:
            return F
        return F.new_zeros(*F.shape[:-1], self.grid.size).index_copy(-1, self.kept, F)

    def read(self, F: Tensor, plan: Plan | BandedPlan) -> Tensor:
        """(r, n): a function that is given on the sources of the small plan, at every value."""
        if self.grid is None:
            return plan.problem.unsort(F)
        return self.places.evaluate(self.grid.polynomials(self.on_all_nodes(F)))

    def masses(self, payload: Tensor, plan: Plan | BandedPlan) -> Tensor:
        """(r, U): what the values carry, payload (r, n) times weight, moved to the sources of the small plan."""
        if self.grid is None:
            p = plan.problem
            sorted_payload = payload if p.order is None else payload.gather(-1, p.order)
            return torch.where(p.a > 0, p.a * sorted_payload, 0.0)  # what weighs nothing may hold anything
        masses = self.grid.spread(self.places.moments(payload, self.grid.cells, self.grid.points))
        return masses if self.kept is None else masses[:, self.kept]


@dataclass(frozen=True)
class Part:
    """Rows of a batch that share a rule and a grid."""

    rows: Tensor  #: their indices
    values: Values
    rule: Rule | None  #: what stands for the default targets; None if the targets stand for themselves
    plan: Plan | BandedPlan  #: the small problem, solved
    error: Tensor  #: (r,) estimated
    accepted: float  #: how large an error may be

    def chosen(self, which: Tensor) -> Part:
        """Some of the rows."""
        return replace(
            self,
            rows=self.rows[which],
            values=self.values.chosen(which),
            plan=self.plan.chosen(which),
            error=self.error[which],
        )

    @property
    def nodes(self) -> int:
        """How many targets the small problem has."""
        return self.plan.problem.y.shape[-1] if self.rule is None else self.rule.size

    def of_rows(self, index: Tensor) -> Part:
        """The same, its rows counted in a larger batch."""
        return replace(self, rows=index[self.rows])

    def ranks(self, descending: bool) -> Tensor:
        """(r, n): from 1 for the smallest, or the largest."""
        return self.pulled(self.ranks_of_nodes(descending))

    def ranks_of_nodes(self, descending: bool) -> Tensor:
        """(r, K): what a value would get that goes to one node alone."""
        p = self.plan.problem
        if self.rule is None:
            levels = p.b.flip(-1).cumsum(-1).flip(-1) if descending else p.b.cumsum(-1)
        else:
            m = self.rule.m
            levels = ((m - 1) * (1.0 - p.y if descending else p.y) + 1.0) / m
        return p.count * levels

    def pulled(self, v: Tensor) -> Tensor:
        """(r, n): average of v (r, K), given on the nodes of the small plan."""
        if isinstance(self.plan, BandedPlan):
            return self._read(self.plan.pulled(v))
        return self._read((self.plan.targets_given_value() @ v.unsqueeze(-1)).squeeze(-1))

    def cost(self) -> Tensor:
        """(r,): sum_i a_i E[(Y - x~_i)^2 | x_i]. The nodes have the moments of the targets that they stand for."""
        y, (x_tilde, a) = self.plan.problem.y, self.values.places.standing()
        squares = x_tilde * (x_tilde - 2.0 * self.pulled(y)) + self.pulled(y.square())
        return (a * squares).sum(-1)

    def pull(self, v: Tensor) -> Tensor:
        """(r, n): average of v (r, m), given on the targets."""
        if self.rule is None:
            return self.pulled(v)
        m = self.rule.m
        at = (torch.arange(m, dtype=v.dtype, device=v.device) / max(m - 1, 1)).expand(v.shape)
        for grid in self._target_grids(m):
            E = self.density(grid.nodes(v))
            if (E.roughness(grid) <= self.accepted).all():
                return self._read(E.pull(grid.masses(at, v / m)))
        return self._read(self.density(at[0]).pull(v / m))

    def _read(self, F: Tensor) -> Tensor:
        return self.values.read(F, self.plan) + self.values.places.poisoned

    def push(self, payload: Tensor) -> Tensor:
        """(r, m): average of payload (r, n), given on the values, over what reaches each target."""
        finite = payload.isfinite()
        # An average with a share of +inf is +inf, whatever else happens to x: it has no gradient.
        beyond = torch.where(finite, 0.0, payload).detach().sum(-1, keepdim=True)
        payload = torch.where(finite, payload, 0.0)
        pivot = self.values.places.pivot(payload)  # averages of equal numbers come out as that number
        average = pivot + self._push_finite(payload - pivot)
        return torch.where(beyond == 0, average, beyond) + self.values.places.poisoned

    def _push_finite(self, payload: Tensor) -> Tensor:
        carried = self.values.masses(payload, self.plan)
        if self.rule is None:
            return self.averages(carried)
        p, m = self.plan.problem, self.rule.m
        at = (torch.arange(m, dtype=p.a.dtype, device=p.a.device) / max(m - 1, 1)).expand(len(carried), m)
        span = (payload.amax(-1) - payload.amin(-1)).detach()
        for grid in self._target_grids(m):
            F = self.density(grid.nodes(p.a)).push(carried)
            off = grid.remainder(F.detach()).amax(-1)
            if (off <= self.accepted * span).all():
                return grid.read(at, F)
        return self.density(at[0]).push(carried)

    def averages(self, carried: Tensor) -> Tensor:
        """(r, K): what the sources of the small plan carry (r, U), over what reaches each node."""
        if isinstance(self.plan, BandedPlan):
            return self.plan.averages(carried)
        E = log_density(self.plan.M, self.plan.log_b, self.plan.gamma).exp()
        return _weighted(carried, E) / _weighted(self.plan.problem.a, E)

    def density(self, y: Tensor) -> Density | BandedDensity:
        """E (r, U, Y) at increasing targets y (Y,) anywhere: what reaches each of them weighs one."""
        if isinstance(self.plan, BandedPlan):
            return self.plan.density(y)
        p = self.plan.problem
        phi = c_transform(self.plan.M, self.plan.log_b, self.plan.gamma)
        eps = p.eps
        log_E = phi.unsqueeze(-1) + (self.plan.start[0].unsqueeze(-1) - (y - p.x.unsqueeze(-1)).square()) / eps
        E = (log_E - log_E.detach().amax(-2, keepdim=True)).exp()
        return Density(E / _weighted(p.a, E).unsqueeze(-2))

    def _target_grids(self, m: int) -> list[Grid]:
        """Finer and finer grids for m targets, as long as their nodes are much fewer."""
        eps = self.plan.problem.eps.detach().amin().item()
        points = 8 if self.accepted < 1e-7 else 4
        first = max(64, int(12 / eps**0.5))
        sizes = [first * 2**k for k in range(8) if first * 2 ** (k + 1) <= m]
        return [Grid(cells, points) for cells in sizes]


@dataclass(frozen=True)
class Density:
    """E (r, U, Y) as a matrix; ``BandedDensity`` is the same as a band."""

    E: Tensor

    def pull(self, v: Tensor) -> Tensor:
        """(r, U): sum over the targets of v (r, Y) times E."""
        return (self.E @ v.unsqueeze(-1)).squeeze(-1)

    def push(self, carried: Tensor) -> Tensor:
        """(r, Y): sum over the sources of what they carry (r, U), times E."""
        return _weighted(carried, self.E)

    def roughness(self, grid: Grid) -> Tensor:
        """(r, U): each cell holds 1/cells of the targets, and gets their average wrong by the remainder."""
        return grid.remainder(self.E.detach()).mean(-1)


def _weighted(w: Tensor, E: Tensor) -> Tensor:
    """(r, Y): sum over the sources of w (r, U) times E (r, U, Y)."""
    return (w.unsqueeze(-2) @ E).squeeze(-2)


class SmoothPlan:
    """What ``Plan`` is, for more values or targets than a matrix can hold: the same read-outs in linear time.

    ``nodes`` and ``cells`` say how fine the small problem of each row is (``cells`` is n where every value stands for
    itself), ``estimated_error`` how far an answer may be off: as a fraction of n for ranks, of the range of x for
    sorted values. Made by ``sinksort.smooth_transport``.

    >>> import torch, sinksort
    >>> plan = sinksort.smooth_transport(torch.linspace(-1, 1, 20_001))
    >>> plan.nodes, plan.cells
    (tensor(42), tensor(120))
    >>> bool(plan.estimated_error < 5e-6), plan.ranks()[10_000]
    (True, tensor(10001.))
    """

    def __init__(
        self, parts: list[Part], x: Tensor, mask: Tensor | None, num_targets: int, dim: int, descending: bool
    ) -> None:
        rows = x.movedim(dim, -1)
        self._parts, self._batch, self._n = parts, rows.shape[:-1], rows.shape[-1]
        self._x, self._m, self._dim, self._descending = rows, num_targets, dim, descending
        self._mask = None if mask is None else mask.reshape(-1, self._n)

        def by_row(of: list[Tensor], empty: Tensor) -> Tensor:
            out = empty.repeat(math.prod(self._batch))
            for part, t in zip(parts, of, strict=True):
                out[part.rows] = t.detach().to(out)
            return out.reshape(self._batch)

        none, zero = (
            torch.tensor(0, device=x.device, dtype=torch.int64),
            torch.tensor(0.0, dtype=wide_dtype(x.device), device=x.device),
        )
        self.nodes = by_row([none.new_tensor(part.nodes) for part in parts], none)
        self.cells = by_row([none.new_tensor(part.values.cells) for part in parts], none)
        self.estimated_error = by_row([part.error for part in parts], zero)
        self.iterations = by_row([part.plan.iterations for part in parts], none)
        self.marginal_error = by_row([part.plan.marginal_error for part in parts], zero)
        self.converged = by_row([part.plan.converged for part in parts], none == 0)

    def ranks(self) -> Tensor:
        """Sinkhorn ranks in the shape of x: from 1 for the smallest to n for the largest."""
        return self._on_values([part.ranks(self._descending) for part in self._parts])

    def pull(self, v: Tensor) -> Tensor:
        """Average of ``v`` (..., m), given on the targets, over the targets that each value is sent to."""
        v = v.to(wide_dtype(v.device)).expand(*self._batch, self._m).reshape(-1, self._m)
        v = v.flip(-1) if self._descending else v
        return self._on_values([part.pull(v[part.rows]) for part in self._parts])

    def sorted(self) -> Tensor:
        """Sinkhorn sort: m values along the sorted dimension."""
        return self.push(self._x.unsqueeze(-1)).squeeze(-1).movedim(-1, self._dim)

    def cost(self) -> Tensor:
        """(...) the transport cost <P, C> of each row, sum_ij P_ij (y_j - x~_i)^2, as ``Plan.cost``."""
        rows = torch.cat([part.rows for part in self._parts]).argsort()
        costs = torch.cat([part.cost() for part in self._parts])
        return costs.index_select(0, rows).reshape(self._batch).to(self._x.dtype)

    def push(self, payload: Tensor) -> Tensor:
        """Average of ``payload`` (..., n, d), given on the values, over the values that each target receives."""
        d = payload.shape[-1]
        flat = payload.reshape(-1, self._n, d)
        out = flat.new_zeros(len(flat), d, self._m)
        wide = wide_dtype(flat.device)
        for part in self._parts:
            there = torch.stack([part.push(self._live(flat[..., k], part).to(wide)) for k in range(d)], dim=1)
            there = there.flip(-1) if self._descending else there
            there = torch.nn.functional.pad(there, (0, self._m - there.shape[-1]))  # a padded row has fewer targets
            out = out.index_copy(0, part.rows, there.to(out.dtype))
        return out.mT.reshape(*self._batch, self._m, d)

    def _live(self, t: Tensor, part: Part) -> Tensor:
        """(r, live values): the entries of t (all rows, n) that the part is about."""
        t = t[part.rows]
        return t if self._mask is None else t[self._mask[part.rows]].reshape(len(t), -1)

    def _on_values(self, answers: list[Tensor]) -> Tensor:
        out = self._x.new_zeros(math.prod(self._batch), self._n)
        for part, answer in zip(self._parts, answers, strict=True):
            there = answer.to(out.dtype)
            if self._mask is not None:
                there = out[part.rows].masked_scatter(self._mask[part.rows], there)
            out = there if len(there) == len(out) else out.index_copy(0, part.rows, there)
        return out.reshape(*self._batch, self._n).movedim(-1, self._dim)
