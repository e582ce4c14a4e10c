"""Two or three targets: the plan is a threshold or two, found from sums over the values themselves.

Between targets at equal distances d, what a value gives to each of them is a softmax of affine functions of x~,

    P(j | x~) ~ exp(theta_j + j kappa x~),       kappa = 2 d / eps,

so only the K numbers theta are unknown, whatever the number of values. A step of Newton's method on the semi-dual
(``semidual``) needs one pass over the values, for the K x K sums  W_jk = sum_i a_i P(j | x_i) P(k | x_i).  Their rows
sum to the column marginals, and outside the diagonal they are the Hessian: nothing cancels. Whoever has only some of
the values adds up these K^2 numbers with the others'. There is no grid, no estimate and no refinement: the answer is
exact to rounding for every eps.

**Start.** Mass, mean and spread of the values in the cells of a coarse grid are collected. The same problem, for values
that are evenly spread with this mean and this spread in every cell, is solved first. It knows ties, and groups of
values that are far narrower than a cell, so two to four passes over the true values are left.

**Gradients** are those of ``gradients``: chord steps at the solution. Their sums are known there and need no pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ..core.gradients import EXACT_ORDER, differentiated
from ..core.semidual import log_weight, newton_step
from ..core.solvers._common import warn_unconverged
from ..core.solvers.newton import LARGEST_STEP, WEIGHTLESS
from ..core.solvers.start import SAME_MASS
from ..core.squash import INCREASING_MAPS
from .piecewise import mapped
from .piecewise import summed as pieces_summed
from .places import Places
from .refine import accepted_error
from .streamed import Streamed

_MOST_PASSES = 60
_RIDGE = 1e-13  #: at the level of rounding: keeps the Hessian of a plan that is a permutation factorisable
_ROUGH_TOLERANCE = 1e-12  #: of the start, which costs no pass: a target of weight 1/n shall be felt
_MOST_POINTS = 16  #: that stand for the values in one cell

Tensors = Sequence[Tensor]


class Total(Protocol):
    """Adds up a tensor over all who hold values; differentiable. A sum that is ``known`` is not asked for again."""

    def __call__(self, t: Tensor, known: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class AtHand:
    """The values that are here: tensors (r, n), what their rows share, and how x~ and weights are made of the two."""

    values: tuple[Tensor, ...]
    shared: tuple[Tensor, ...]
    stand: Callable[[Tensors, Tensors], tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, places: Places, unit: Tensor) -> AtHand:
        """``unit`` (r, 1, 1) brings the weights of ``places`` to those that sum to one over all values."""
        if not isinstance(places, Streamed):
            x_tilde, a = places.standing()
            return cls.placed(x_tilde, unit[:, 0] * a)
        squash = INCREASING_MAPS[places.squash]

        def stand(values: Tensors, shared: Tensors) -> tuple[Tensor, Tensor]:
            mean, scale, share = shared[:3]
            return squash((values[0].double() - mean) * scale), share

        return cls((places.x,), (places.mean, places.scale, unit[:, 0] / places.shape[-1]), stand)

    @classmethod
    def placed(cls, x_tilde: Tensor, a: Tensor) -> AtHand:
        return cls((x_tilde, a), (), lambda values, _: (values[0], values[1]))


@dataclass(frozen=True)
class Softmax:
    """P(j | x~) ~ exp(offset_j + j kappa (x~ - centre)): each for r rows and L problems, the last two (r, L, K)."""

    centre: Tensor  #: (r, L)
    slope: Tensor
    offset: Tensor

    @classmethod
    def between(cls, tau: Tensor, kappa: Tensor, theta: Tensor) -> Softmax:
        """For thresholds tau (r, L, K - 1): P(j)/P(j - 1) is exp(theta_j - theta_(j-1)) at tau_j."""
        centre = tau.mean(-1)  # so that the exponents are small, and their rounding, where P is not 0 or 1
        step = torch.arange(theta.shape[-1], dtype=theta.dtype, device=theta.device)
        behind = torch.nn.functional.pad((centre.unsqueeze(-1) - tau).cumsum(-1), (1, 0))
        return cls(centre, kappa * step, theta + kappa * behind)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.centre, self.slope, self.offset


def _given_value(x_tilde: Tensor, softmax: Tensors) -> Tensor:
    """(r, L, K, c): P(j | x~) at every x~ (r, c)."""
    centre, slope, offset = softmax
    along = (x_tilde.unsqueeze(1) - centre.unsqueeze(-1)).unsqueeze(-2)
    return torch.softmax(offset.unsqueeze(-1) + slope.unsqueeze(-1) * along, dim=-2)


@dataclass(frozen=True)
class Thresholds:
    """The plan of values, some of which are here, onto a few targets: L problems for each of r rows."""

    here: AtHand
    total: Total
    softmax: Softmax

    def given_value(self, target: int) -> Tensor:
        """(r, n): what each value here gives to a target, for L = 1."""

        def share(values: Tensors, shared: Tensors) -> Tensor:
            x_tilde, _ = self.here.stand(values, shared)
            return _given_value(x_tilde, shared[-3:])[:, 0, target].to(values[0].dtype)

        return mapped(share, self.here.values, (*self.here.shared, *self.softmax.tensors))

    def average(self, target: int, carried: Tensor) -> Tensor:
        """(r, L): average of what the values carry (r, n), over what reaches a target; infinite ones left out."""

        def reaching(values: Tensors, shared: Tensors) -> Tensor:
            x_tilde, a = self.here.stand(values, shared)
            P = (a.unsqueeze(1) * _given_value(x_tilde, shared[-3:])[:, :, target]).unsqueeze(-2)
            finite = torch.where(values[-1].isfinite(), values[-1], 0.0).to(P.dtype)
            return (P * torch.stack([torch.ones_like(finite), finite], dim=-2).unsqueeze(1)).sum(-1)

        sums = pieces_summed(reaching, (*self.here.values, carried), (*self.here.shared, *self.softmax.tensors))
        mass, moved = self.total(sums).unbind(-1)
        return moved / mass


def thresholds(places: Places, unit: Tensor, total: Total, eps: Tensor, b: Tensor, dtype: torch.dtype) -> Thresholds:
    """The plan onto targets from 0 to 1 of weights b (r, L, K), for entropies eps (r, 1, 1) and answers in ``dtype``.

    ``unit`` (r, 1, 1) brings the weights of ``places`` to those that sum to one over all values.
    """
    here = AtHand.of(places, unit)
    with torch.no_grad():
        cells = start_cells(eps)
        start = Start.of(total(unit * places.moments(None, cells, 3)), places.interval, eps, b)

        def sums(softmax: Softmax) -> Tensor:
            return total(summed(products, here, softmax))

        gamma, W = start.solved(sums, dtype)
    start = replace(start, kappa=_kappa(eps, b))  # differentiable in eps
    gamma = _attached(here, total, start, gamma, W)
    return Thresholds(here, total, start.softmax(gamma))


@dataclass(frozen=True)
class Start:
    """Where Newton's method begins: the same problem for values that are evenly spread in each cell of a grid."""

    x_tilde: Tensor  #: (r, U) increasing
    a: Tensor  #: (r, U)
    tau: Tensor  #: (r, L, K - 1)
    kappa: Tensor  #: (r, 1, 1)
    b: Tensor  #: (r, L, K)

    @classmethod
    def of(cls, in_cells: Tensor, interval: tuple[Tensor, Tensor], eps: Tensor, b: Tensor) -> Start:
        """From the first three moments (r, 3, cells) of the weights of all values, which sum to one."""
        x_tilde, a = _spread(in_cells, interval, eps)
        return cls(x_tilde, a, _staircase(x_tilde, a, b), _kappa(eps, b), b)

    @property
    def log_b(self) -> Tensor:
        return log_weight(self.b)

    def softmax(self, gamma: Tensor) -> Softmax:
        return Softmax.between(self.tau, self.kappa, gamma + self.log_b)

    def solved(self, sums: Callable[[Softmax], Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """gamma and W for answers in ``dtype``, by passes over all values: ``sums`` is W (r, L, K, K) at a point."""
        rough, tolerance = AtHand.placed(self.x_tilde, self.a), accepted_error(dtype) / 1000

        def in_cells(gamma: Tensor) -> Tensor:
            return summed(products, rough, self.softmax(gamma))

        gamma, *_ = _newton(in_cells, torch.zeros_like(self.b), self.b, self.log_b, _ROUGH_TOLERANCE)
        gamma, W, error = _newton(lambda g: sums(self.softmax(g)), gamma, self.b, self.log_b, tolerance)
        warn_unconverged(error, tolerance, _MOST_PASSES, "Raise eps.")
        return gamma, W


def summed(
    function: Callable[[Tensor, Tensor, Tensors], Tensor], here: AtHand, softmax: Softmax, *carried: Tensor
) -> Tensor:
    """The sum over values of ``function(a, P, carried)``; a (r, c), P (r, L, K, c), what is carried (r, c)."""
    count = len(here.values)

    def of_piece(values: Tensors, shared: Tensors) -> Tensor:
        x_tilde, a = here.stand(values, shared)
        return function(a, _given_value(x_tilde, shared[-3:]), values[count:])

    return pieces_summed(of_piece, (*here.values, *carried), (*here.shared, *softmax.tensors))


def products(a: Tensor, P: Tensor, _: Tensors) -> Tensor:
    """W."""
    return (a[:, None, None] * P) @ P.mT


def _kappa(eps: Tensor, b: Tensor) -> Tensor:
    return 2.0 / ((b.shape[-1] - 1) * eps)


def start_cells(eps: Tensor) -> int:
    return min(1024, max(64, math.ceil(5 / math.sqrt(eps.amin().item()))))


def _spread(in_cells: Tensor, interval: tuple[Tensor, Tensor], eps: Tensor) -> tuple[Tensor, Tensor]:
    """(r, U) increasing positions and masses: evenly spread in every cell, with the mean and the spread found there."""
    smallest, cells = eps.amin().item(), in_cells.shape[-1]
    mass, first, second = in_cells.unbind(1)
    some = torch.where(mass > 0, mass, 1.0)
    mean = first / some
    std = (second / some - mean.square()).clamp(min=0).sqrt()
    low, high = interval
    width = (high - low).amax().item() / cells
    points = min(_MOST_POINTS, max(2, math.ceil(2 * width / smallest)))
    even = torch.arange(1 - points, points, 2, dtype=mass.dtype, device=mass.device) * math.sqrt(3 / (points**2 - 1))
    inside = (mean.unsqueeze(-1) + std.unsqueeze(-1) * even).clamp(0, 1)
    at = torch.arange(cells, dtype=mass.dtype, device=mass.device).unsqueeze(-1) + inside
    x_tilde = low + (high - low) / cells * at.flatten(1)
    return x_tilde, (mass / points).repeat_interleave(points, dim=-1)


def _staircase(x_tilde: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """(r, L, K - 1): where the hard sort passes from one target to the next; see ``solvers.start``."""
    reached, boundary = a.cumsum(-1), b.cumsum(-1)[..., :-1].flatten(1)
    within = SAME_MASS / 2, 1.0 - SAME_MASS / 2  # there may be no mass in the first and the last cells
    before = torch.searchsorted(reached, (boundary - SAME_MASS).clamp(*within))
    after = torch.searchsorted(reached, (boundary + SAME_MASS).clamp(*within), right=True)
    return (0.5 * (x_tilde.gather(-1, before) + x_tilde.gather(-1, after))).reshape(*b.shape[:-1], -1)


def _newton(
    sums: Callable[[Tensor], Tensor], start: Tensor, b: Tensor, log_b: Tensor, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """gamma (..., K), W there, and the marginal error; as ``solvers.newton``, for sums (..., K, K) at gamma.

    That all are done is decided from W alone, so those who share it decide the same.
    """
    base, direction, length = start, torch.zeros_like(b), torch.ones_like(b[..., :1])
    slope, limit = torch.full_like(length, math.inf), torch.full_like(length, LARGEST_STEP)
    for _ in range(_MOST_PASSES):
        gamma = base + length * direction
        W = sums(gamma)
        s = W.sum(-1) / log_b.exp()
        rho = 1.0 - s
        error = (b * rho.abs()).sum(-1)
        working = (error > tolerance).unsqueeze(-1)
        if not working.any():
            break
        newton = newton_step(_factor(W, log_b), rho, log_b)
        far = newton.abs().amax(-1, keepdim=True) > limit
        newton = newton.clamp(-limit, limit)
        rises = (b * rho * newton).sum(-1, keepdim=True) > 0
        newton = torch.where(rises, newton, -s.clamp(min=1e-30).log())
        slope_here = (b * rho * direction).sum(-1, keepdim=True)
        overshot = working & (slope_here < -0.5 * slope)
        length = torch.where(overshot, length * slope / (slope - slope_here), 1.0)
        reach = (length * direction).abs().amax(-1, keepdim=True)
        limit = torch.where(overshot, reach.clamp(min=LARGEST_STEP), torch.where(far, 2.0 * limit, limit))
        base = torch.where(overshot, base, gamma)
        direction = torch.where(overshot, direction, torch.where(working, newton, 0.0))
        slope = torch.where(overshot, slope, (b * rho * direction).sum(-1, keepdim=True))
    # A weightless target pulls nobody: give it the potential that the others' plan implies.
    wrong = torch.where(b < WEIGHTLESS, s.clamp(min=1e-300), 1.0)
    return gamma - wrong.log(), W / wrong.unsqueeze(-1) / wrong.unsqueeze(-2), error


def _factor(W: Tensor, log_b: Tensor) -> Tensor:
    """Cholesky factor of the negated Hessian, scaled by b^(-1/2); see ``semidual.hessian_factor``."""
    root_b = (0.5 * log_b).exp()
    between = W - torch.diag_embed(W.diagonal(dim1=-2, dim2=-1))
    scaled = (torch.diag_embed(between.sum(-1)) - between) / root_b.unsqueeze(-1) / root_b.unsqueeze(-2)
    matrix = scaled + root_b.unsqueeze(-1) * root_b.unsqueeze(-2) + torch.diag_embed(torch.full_like(log_b, _RIDGE))
    factor: Tensor = torch.linalg.cholesky_ex(matrix)[0]
    return factor


def _attached(here: AtHand, total: Total, start: Start, gamma: Tensor, W: Tensor) -> Tensor:
    """gamma as a differentiable function of values, weights, eps and b; see ``gradients``."""
    if not differentiated(*here.values, *here.shared, start.kappa, start.b):
        return gamma
    log_b = start.log_b
    fixed_log_b, reached = log_b.detach(), W.sum(-1)
    factor = _factor(W, fixed_log_b)

    def column_sums(values: Tensors, shared: Tensors) -> Tensor:
        x_tilde, a = here.stand(values, shared)
        return (a[:, None, None] * _given_value(x_tilde, shared[-3:])).sum(-1)

    for _ in range(EXACT_ORDER):
        softmax = start.softmax(gamma).tensors
        known = total(pieces_summed(column_sums, here.values, (*here.shared, *softmax), reached), reached)
        rho = 1.0 - known / log_b.exp()
        gamma = gamma + newton_step(factor, rho - rho.detach(), fixed_log_b)
    return gamma
