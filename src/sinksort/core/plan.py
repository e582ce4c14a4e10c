"""Solve and read: the transport plan, and every operator as a way to read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .gradients import attach
from .problem import Problem
from .semidual import (
    LARGEST_LOG_DENSITY,
    NOTHING,
    c_transform,
    log_density,
    log_weight,
    reduced_cost,
    row_sums,
    without_subnormals,
)
from .solvers import Newton, Sinkhorn, Solver
from .solvers.start import staircase_potentials

if TYPE_CHECKING:
    from rich.panel import Panel


@dataclass(frozen=True)
class Plan:
    """The entropic transport plan of each row of x, and its read-outs.

    ``a``, ``b`` are the weights of values and targets; P = diag(a) E diag(b) with E the density. Every read-out is
    differentiable in x, the weights, the targets and eps. Plans are made by ``sinksort.transport``.

    >>> import torch, sinksort
    >>> plan = sinksort.transport(torch.tensor([[0.3, 0.1, 0.2], [5.0, 7.0, 6.0]]), eps=1e-3)
    >>> plan.ranks()
    tensor([[3., 1., 2.],
            [1., 3., 2.]])
    >>> plan.converged
    tensor([True, True])
    """

    problem: Problem
    M: Tensor  #: (..., n, m) reduced costs, see semidual
    gamma: Tensor  #: (..., m) column potential
    start: tuple[Tensor, Tensor]  #: the staircase potentials (f0, g0) of the hard sort
    iterations: Tensor  #: (...) solver steps of each row; of kernels, those that made a new matrix
    marginal_error: Tensor  #: (...) L1 distance between the column sums of the plan and b
    converged: Tensor  #: (...) whether that is within the solver's tolerance

    # ---- read-outs

    def ranks(self) -> Tensor:
        """Sinkhorn ranks n a^-1 o (P b_bar), in the shape of x: from 1 for the smallest to n for the largest."""
        p = self.problem
        return self._pull(p.count * p.levels())

    def sorted(self) -> Tensor:
        """Sinkhorn sort b^-1 o (P^T x): m values along the sorted dimension."""
        p = self.problem
        return self._push(p.x.unsqueeze(-1)).squeeze(-1).movedim(-1, p.dim)

    def pull(self, v: Tensor) -> Tensor:
        """Average of ``v`` (..., m), given on the targets, over the targets that each value is sent to.

        Returns the shape of x; masked entries get 0. ``v`` is in the order of ``target_weights``.
        """
        return self._pull(v.flip(-1) if self.problem.descending else v)

    def push(self, payload: Tensor) -> Tensor:
        """Average of ``payload`` (..., n, d), given on the values, over the values that each target receives.

        Rows as in x with its sorted dimension last. Returns (..., m, d); targets that are padding get 0.
        """
        order = self.problem.order
        if order is not None:
            payload = payload.gather(-2, order.unsqueeze(-1).expand(payload.shape))
        return self._push(payload)

    def permutation(self) -> Tensor:
        """(..., m, n): row j says from which values target j is made. Rows sum to one."""
        by_target = self._in_order_of_x(self.values_given_target().mT)
        return self._finish_targets(by_target).to(self.problem.dtype)

    def matrix(self) -> Tensor:
        """(..., n, m): the plan P itself, rows in the order of x. Its rows sum to a, its columns to b."""
        p = self.problem
        log_P = log_density(self.M, self.log_b, self.gamma) + self.log_a.unsqueeze(-1) + self.log_b.unsqueeze(-2)
        return self._finish_targets(self._in_order_of_x(log_P.exp().mT)).mT.to(p.dtype)

    def cost(self) -> Tensor:
        """(...) the transport cost <P, C> of each row, where C_ij = h(y_j - x~_i) and x~ are the squashed values.

        With ``squash=None`` and the values of another sample as ``targets`` it is a Wasserstein cost between the two:
        towards eps = 0 it falls to the exact one (the paper's OT_h, Eq. 2).

        >>> import torch, sinksort
        >>> x, y = torch.tensor([0.2, 0.9, 0.4]), torch.tensor([0.0, 0.5, 1.0])
        >>> sinksort.transport(x, targets=y, squash=None, eps=1e-4).cost()  # (0.2^2 + 0.1^2 + 0.1^2) / 3
        tensor(0.0200)
        """
        p = self.problem
        P = p.a.unsqueeze(-1) * self.targets_given_value()
        return torch.where(P == 0, 0.0, P * p.cost).sum((-2, -1)).to(p.dtype)

    def entropic_cost(self) -> Tensor:
        """(...) what the plan of each row minimises: <P, C> + eps KL(P | a b^T), at least the exact cost.

        The paper's objective <P, C> - eps H(P), where H(P) = -sum P (log P - 1), is smaller by
        eps (1 + H(a) + H(b)) with H(a) = -sum a log a: a number that does not depend on the plan.
        """
        p, (f, g) = self.problem, self._potentials()
        return ((p.a * f).sum(-1) + (p.b * g).sum(-1)).to(p.dtype)

    @property
    def potentials(self) -> tuple[Tensor, Tensor]:
        """(f, g), (..., n) in the order of x and (..., m): P_ij = a_i b_j exp((f_i + g_j - C_ij) / eps).

        The paper's alpha and beta are f + eps log a and g + eps log b: there P_ij = exp((alpha_i + beta_j - C_ij) /
        eps). Only sums f_i + g_j are determined; a number may be added to all of f and taken from all of g.
        """
        p, (f, g) = self.problem, self._potentials()
        return p.unsort(f).to(p.dtype), (g.flip(-1) if p.descending else g).to(p.dtype)

    def _potentials(self) -> tuple[Tensor, Tensor]:
        """(f, g) of the sorted rows, in double precision."""
        eps = self.problem.eps.squeeze(-1)
        f = self.start[0] + eps * c_transform(self.M, self.log_b, self.gamma)
        return f, self.start[1] + eps * self.gamma

    def chosen(self, which: Tensor) -> Plan:
        """The plans of some rows, for problems with one batch dimension."""
        f0, g0 = self.start
        return Plan(
            self.problem.chosen(which),
            self.M[which],
            self.gamma[which],
            (f0[which], g0[which]),
            self.iterations[which],
            self.marginal_error[which],
            self.converged[which],
        )

    # ---- in a prompt, a notebook and a terminal; what draws is imported when it is asked

    def __repr__(self) -> str:
        from ..show import as_line

        return as_line(self)

    def _repr_html_(self) -> str:
        from ..show import as_html

        return as_html(self)

    def _repr_png_(self) -> bytes | None:
        from ..show import as_png

        return as_png(self)

    def __rich__(self) -> Panel:
        from ..show import as_table

        return as_table(self)

    # ---- the two conditional distributions of the plan, rows in sorted order

    @property
    def log_a(self) -> Tensor:
        return log_weight(self.problem.a)

    @property
    def log_b(self) -> Tensor:
        return log_weight(self.problem.b)

    def targets_given_value(self) -> Tensor:
        """P_ij / a_i (..., n, m): rows sum to one, and a target without weight gets nothing."""
        p = self.problem
        logits = (self.gamma + self.log_b).unsqueeze(-2) - self.M
        if not p.weighted_targets:
            return torch.softmax(logits, dim=-1)
        return _of_those_with_weight(logits, p.b.unsqueeze(-2), -1)

    def values_given_target(self) -> Tensor:
        """P_ij / b_j (..., n, m): columns sum to one."""
        p = self.problem
        logits = (c_transform(self.M, self.log_b, self.gamma) + self.log_a).unsqueeze(-1) - self.M
        if not p.weighted:
            return torch.softmax(logits, dim=-2)
        return _of_those_with_weight(logits, p.a.unsqueeze(-1), -2)

    def _pull(self, v: Tensor) -> Tensor:
        p = self.problem
        on_values = p.unsort(row_sums(self.targets_given_value(), v.to(p.a.dtype)))
        if p.mask is not None:
            on_values = torch.where(p.mask, on_values, 0.0)
        return on_values.to(p.dtype).movedim(-1, p.dim)

    def _push(self, payload: Tensor) -> Tensor:
        p = self.problem
        payload, shares = payload.to(p.a.dtype), self.values_given_target()
        if p.weighted:
            # What weighs nothing may hold anything: its share is exactly 0, and 0 * inf is not 0.
            payload = torch.where((p.a > 0).unsqueeze(-1), payload, payload.nan_to_num(0.0, 0.0, 0.0))
        # An average with a share of +inf is +inf, whatever else happens to x: it has no gradient.
        finite = payload.isfinite()
        beyond = torch.where(finite, 0.0, payload).detach().sum(-2, keepdim=True)
        pivot = pivot_of(torch.where(finite, payload, 0.0), p.a)
        average = pivot + shares.mT @ (torch.where(finite, payload, 0.0) - pivot)
        return self._finish_targets(torch.where(beyond == 0, average, beyond)).to(p.dtype)

    def _in_order_of_x(self, t: Tensor) -> Tensor:
        inverse = self.problem.inverse
        return t if inverse is None else t.gather(-1, inverse.unsqueeze(-2).expand(t.shape))

    def _finish_targets(self, t: Tensor) -> Tensor:
        """An answer (..., m, d) with one entry a target: from the top when descending, padding last and zero."""
        p = self.problem
        if not (p.padded_targets and p.mask is not None):
            return t.flip(-2) if p.descending else t
        at = torch.arange(t.shape[-2], device=t.device, dtype=torch.int64)
        live = p.mask.sum(-1, keepdim=True)
        if p.descending:
            from_the_top = (live - 1 - at).clamp(min=0).unsqueeze(-1)
            t = t.gather(-2, from_the_top.expand(t.shape))
        return torch.where((at < live).unsqueeze(-1), t, 0.0)


def _of_those_with_weight(logits: Tensor, weight: Tensor, dim: int) -> Tensor:
    """Softmax along ``dim`` over the entries that weigh something; the others get nothing.

    ``log_weight`` gives next to nothing to an entry without weight. Where a value and a target without weight stand
    close to each other, and far from all that weighs something, that would still be most of the sum. What the entry
    would get is multiplied by zero, in a way that keeps its derivative in the weight.
    """
    whole = torch.logsumexp(torch.where(weight <= 0, -torch.inf, logits), dim=dim, keepdim=True)
    shares = (logits - whole).clamp(max=LARGEST_LOG_DENSITY).exp() * (weight / (weight + NOTHING))
    return shares / shares.sum(dim, keepdim=True)


def pivot_of(payload: Tensor, a: Tensor) -> Tensor:
    """A constant to average from, (..., 1, d): the largest number with weight. Equal numbers then come out as such."""
    there = (a > 0).unsqueeze(-1)
    return torch.where(there, payload, -torch.inf).detach().amax(-2, keepdim=True).nan_to_num(0.0, 0.0, 0.0)


def solve(problem: Problem, solver: Solver, warn: bool = True) -> Plan:
    """The plan of ``problem``: reduce the cost by the staircase, iterate, and make the answer differentiable."""
    p = problem
    if not isinstance(solver, (Newton, Sinkhorn)):
        raise TypeError(f"solver must be sinksort.Newton(...) or sinksort.Sinkhorn(...), got {type(solver).__name__}.")
    fixed_a, fixed_b = p.a.detach(), p.b.detach()
    cost, masses = p.cost, fixed_a if p.hats is None else p.hats
    start = f0, g0 = staircase_potentials(cost.detach(), masses, fixed_b, p.eps.detach(), p.by_columns)
    reduced = reduced_cost(cost, f0, g0, p.eps)
    M = without_subnormals(reduced)
    if isinstance(solver, Newton):
        found = solver.solve(M.detach(), fixed_a, fixed_b, p.hats, p.by_columns, warn)
    elif solver.gradient == "implicit":
        found = solver.solve(reduced.detach(), fixed_a, fixed_b, f0, g0, p.eps.detach().squeeze(-1))
    else:
        found = solver.solve(reduced, p.a, p.b, f0, g0, p.eps.squeeze(-1))
    unrolled = isinstance(solver, Sinkhorn) and solver.gradient == "unrolled"
    gamma = found.gamma if unrolled else attach(M, p.a, p.b, found.gamma, p.by_columns)
    return Plan(p, M, gamma, start, found.iterations, found.error, found.error <= found.tolerance)
