"""Newton's method on the semi-dual, started from the staircase: about five steps for any eps.

Near the solution Newton's step is exact to second order. Far from it the semi-dual is nearly piecewise linear (small
eps, few values), and a full step can overshoot to the other side of the maximum and come back for ever. On the line
of a step the semi-dual is concave, so its slope tells: if the slope at the new point is still positive, or negative but
smaller than it was, the step is taken; if not, the maximum was passed, and the secant of the two slopes says where.

The second derivative of the semi-dual along a direction changes by a factor of at most e^(2 d) where potentials move by
d. So a step that moves no potential by more than a few units of eps never leaves the region where Newton's model is of
use, whatever the weights. It is shortened as a whole: if each potential were cut off for itself, the step would no
longer point upwards where some potentials of a nearly singular plan are free to move.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..semidual import c_transform, log_weight, newton_step
from ._common import (
    Solution,
    batch_over_leading_dim,
    empty_answer,
    host_may_look,
    keep_freed_memory,
    require_tolerance,
    warn_unconverged,
)
from .scaled import Scaled

LARGEST_STEP = 3.0  # in units of eps: a factor of e^3 on a column of the plan
WEIGHTLESS = 1e-20
SHORT_STEP = 3e-4  # in units of eps: after such a step potentials are right to its square
ROUNDING = 2e-14  # marginal error that is nothing: a gradient sees it over eps
WELL_WITHIN = 1e-2  # of the tolerance: averages over a target are off by the error over its weight
MOST_REFINEMENTS = 12  # steps within the tolerance
NEAR = 1e-3  # marginal error at which rough masses have done their part
CHORD, SMALL_STEP = 1e-5, 0.03  # marginal error, and last step, below which the last matrix serves once more
ADVICE = "Raise eps, or Newton(max_iterations=...)."


@dataclass(frozen=True, kw_only=True)
class Newton:
    """Semi-dual Newton from the staircase: the default solver.

    Args:
        tolerance: L1 error of the column marginal at which a row is done; None for 1e-10 in float64, 2e-6 below.
        max_iterations: a row that needs more is reported (``Plan.converged``) with a warning. Ten are rarely needed.
        compress: whether a small problem may stand for a large one where an error estimate says that nothing is lost
            (see ``sinksort.linear.smooth``): None where that is cheaper, True also in ``transport``, False never.

    >>> import torch, sinksort
    >>> plan = sinksort.transport(torch.tensor([3.0, 1.0, 2.0]), solver=sinksort.Newton(tolerance=1e-5))
    >>> bool(plan.converged)
    True
    """

    tolerance: float | None = None
    max_iterations: int = 100
    compress: bool | None = None

    def __post_init__(self) -> None:
        require_tolerance(self.tolerance, self.max_iterations)

    def reached(self, dtype: torch.dtype) -> float:
        """The tolerance in this precision."""
        return self.tolerance or (1e-10 if dtype == torch.float64 else 2e-6)

    def solve(self, M: Tensor, a: Tensor, b: Tensor, hats: Tensor | None, by_columns: bool, warn: bool) -> Solution:
        tolerance = self.reached(M.dtype)
        refine = self.tolerance is None
        start = torch.zeros_like(b if by_columns else a)
        if hats is not None:
            # With negative masses the semi-dual is not concave far from its solution: come near by positive ones.
            start = newton_loop(M, hats, b, start, NEAR, False, self.max_iterations, False)[0]
        if by_columns:
            gamma, iterations, error = newton_loop(M, a, b, start, tolerance, refine, self.max_iterations, warn)
        else:
            phi, iterations, error = newton_loop(M.mT, b, a, start, tolerance, refine, self.max_iterations, warn)
            gamma = c_transform(M.mT, log_weight(a), phi)
        return Solution(gamma, iterations, error, tolerance)


def shortened(step: Tensor, b: Tensor) -> Tensor:
    """A step in the potentials of targets of weight b (..., m), none of which moves by more than ``LARGEST_STEP``."""
    step = step - (b * step).sum(-1, keepdim=True)  # potentials are defined up to a constant
    longest = torch.where(b < WEIGHTLESS, 0.0, step.abs()).amax(-1, keepdim=True)
    return (step * (LARGEST_STEP / longest).clamp(max=1.0)).clamp(-LARGEST_STEP, LARGEST_STEP)


@torch.library.custom_op("sinksort::newton", mutates_args=())
def newton_loop(
    M: Tensor, a: Tensor, b: Tensor, start: Tensor, tolerance: float, refine: bool, max_iterations: int, warn: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(gamma, iterations, error) for reduced costs M (..., n, m), from the column potential ``start``.

    With ``refine`` a row within the tolerance goes on until its steps are short. A mass below the tolerance that leaks
    across a gap is nothing to an answer, but all that there is to its gradient; and the rank of a value that weighs
    little is off by the error over its weight.
    """
    if M.is_cpu:
        keep_freed_memory()
    *batch, n, m = M.shape
    M, a, b = M.reshape(-1, n, m), a.reshape(-1, n), b.reshape(-1, m)
    log_b = log_weight(b)
    near = Scaled(M, a, log_b, start.reshape(-1, m))
    base = start.reshape(-1, m)  # the last accepted point, the direction from it, how far, and the slope there
    direction, length, slope = torch.zeros_like(b), torch.ones_like(b[:, :1]), torch.full_like(b[:, :1], float("inf"))
    iterations = torch.zeros(len(M), dtype=torch.int64, device=M.device)
    gamma, error = base.clone(), torch.empty_like(b[:, 0])
    rows = torch.arange(len(M), device=M.device, dtype=torch.int64)  # those still at work
    taken = torch.full_like(error, float("inf") if refine else 0.0)  # the longest move of the step before
    refinements = torch.zeros_like(iterations)
    anew = True  # whether the next step wants a matrix of its own

    for step in range(max_iterations + 1):
        point = base + length * direction
        if not host_may_look(M):
            near.move(point)
        s = near.column_sums(point)
        rho = 1.0 - s
        size = (b * rho.abs()).sum(-1)
        close = size <= tolerance  # False for NaN as well
        short = (taken <= SHORT_STEP) & (size <= WELL_WITHIN * tolerance)
        refined = short | (size <= ROUNDING) | (refinements >= MOST_REFINEMENTS)
        working = (size > tolerance) | (close & ~refined)
        refinements = refinements + close
        # A weightless column pulls nobody: give it the potential that the others' plan implies.
        gamma[rows] = torch.where(b < WEIGHTLESS, point - s.log(), point)
        error[rows] = size
        if step == max_iterations:
            break
        if host_may_look(M):
            far = working & ~((size <= CHORD) & (taken <= SMALL_STEP))
            told = torch.stack([working.sum().to(error.dtype), far.sum().to(error.dtype), near.distance(point)])
            count, many_far, farthest = told.tolist()
            if count == 0:
                break
            anew = not refine or many_far > 0  # taken is infinite at first
            if 4 * count <= 3 * len(rows):  # go on without the rows that are done
                near.keep(working)
                b, log_b, base, direction, length, slope, point, s, rho, rows, taken, refinements = (
                    t[working]
                    for t in (b, log_b, base, direction, length, slope, point, s, rho, rows, taken, refinements)
                )
                working = working[working]
            if farthest > near.reach:
                near.move(point)
        iterations[rows] += working
        working = working.unsqueeze(-1)

        newton = shortened(newton_step(near.factor(s, anew), rho, log_b), b)
        rises = (b * rho * newton).sum(-1, keepdim=True) > 0
        newton = torch.where(rises, newton, -s.clamp(min=1e-30).log())  # Sinkhorn's own step always rises
        slope_here = (b * rho * direction).sum(-1, keepdim=True)
        overshot = working & (slope_here < -0.5 * slope)
        length = torch.where(overshot, length * slope / (slope - slope_here), 1.0)
        base = torch.where(overshot, base, point)
        direction = torch.where(overshot, direction, torch.where(working, newton, 0.0))
        slope = torch.where(overshot, slope, (b * rho * direction).sum(-1, keepdim=True))
        if refine:
            taken = torch.where(b < WEIGHTLESS, 0.0, (length * direction).abs()).amax(-1)

    if warn:
        warn_unconverged(error, tolerance, max_iterations, ADVICE)
    return gamma.reshape(*batch, m), iterations.reshape(batch), error.reshape(batch)


@newton_loop.register_fake
def _(M: Tensor, a: Tensor, b: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return empty_answer(b)


batch_over_leading_dim(newton_loop)
