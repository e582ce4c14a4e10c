"""Where very many values stand, without writing it down.

For equal weights, x~ = squash((x - mean) / std) costs less to compute again than to keep: in pieces that fit in the
cache, in float64 whatever x is, on the way into the moments of a grid or out of its polynomials. Memory then holds x
and the answer, and in the backward pass x, the cotangent and the gradient.

The two functions are those of ``grid`` with the place computed inside. Their first derivatives are computed in the same
way; for higher ones they are composed from ``grid``'s, which can be differentiated for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.cotangents import one_at_a_time
from ..core.squash import INCREASING_MAPS, SLOPES
from .grid import Grid, add_moments, derivative, evaluate, horner, locate, moments, pieces, raised, tables
from .places import OnNodes, count_of, worth


@dataclass(frozen=True)
class Streamed:
    """The places of rows x (r, n), all finite and not constant, of equal weight."""

    x: Tensor
    mean: Tensor  #: (r, 1) float64
    scale: Tensor  #: (r, 1) 1/std
    squash: str

    @classmethod
    def of(cls, x: Tensor, squash: str) -> Streamed | None:
        """None where a row needs more care: it is constant, holds NaN or infinity, or overflows."""
        with torch.no_grad():
            mean, scale = _statistics(x)
            if not (torch.isfinite(mean) & torch.isfinite(scale)).all():
                return None
        mean, scale = _Statistics.apply(x, mean, scale)  # type: ignore[no-untyped-call]
        return cls(x, mean, scale, squash)

    @property
    def shape(self) -> tuple[int, int]:
        rows, n = self.x.shape
        return rows, n

    @property
    def interval(self) -> tuple[Tensor, Tensor]:
        return self.mean.new_zeros(1), self.mean.new_ones(1)

    @property
    def poisoned(self) -> Tensor:
        return self.x.new_zeros(1)

    @property
    def count(self) -> Tensor:
        return count_of(self.x)

    def worth(self, grid: Grid) -> bool:
        return worth(grid, self.x.shape[-1])

    def agreed(self, errors: Tensor) -> Tensor:
        return errors

    def chosen(self, rows: Tensor) -> Streamed:
        if len(rows) == len(self.x):
            return self
        return Streamed(self.x[rows], self.mean[rows], self.scale[rows], self.squash)

    def on(self, grid: Grid) -> OnNodes:
        return OnNodes.of(self, grid)

    def occupied(self, in_cells: Tensor) -> Tensor:
        return in_cells[:, 0] != 0

    def standing(self) -> tuple[Tensor, Tensor]:
        x_tilde = INCREASING_MAPS[self.squash]((self.x.double() - self.mean) * self.scale)
        return x_tilde, torch.full_like(x_tilde, 1.0 / self.x.shape[-1])

    def pivot(self, payload: Tensor) -> Tensor:
        return payload.detach().amax(-1, keepdim=True)

    def moments(self, w: Tensor | None, cells: int, points: int) -> Tensor:
        out: Tensor = _Moments.apply(self.x, self.mean, self.scale, w, cells, points, self.squash)  # type: ignore[no-untyped-call]
        return out

    def evaluate(self, coef: Tensor) -> Tensor:
        out: Tensor = _Evaluate.apply(self.x, self.mean, self.scale, coef, self.squash)  # type: ignore[no-untyped-call]
        return out


def _positions(x: Tensor, mean: Tensor, scale: Tensor, cells: int, squash: str) -> tuple[Tensor, Tensor]:
    """Position in cells, and its derivative in z."""
    z = (x.double() - mean) * scale
    at = INCREASING_MAPS[squash](z)
    return at * cells, SLOPES[squash](z, at) * cells


def _place(x: Tensor, mean: Tensor, scale: Tensor, cells: int, squash: str) -> Tensor:
    """The position alone, for when nobody differentiates."""
    return INCREASING_MAPS[squash]((x.double() - mean).mul_(scale)).mul_(cells)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and 1/std of every row: two passes, so that a large mean costs no digits."""
    rows, n = x.shape
    mean = x.new_zeros(rows, 1, dtype=torch.float64)
    for r, c in pieces(x):
        mean[r] += x[r, c].double().sum(-1, keepdim=True) / n
    squares = torch.zeros_like(mean)
    for r, c in pieces(x):
        squares[r] += (x[r, c].double() - mean[r]).square().sum(-1, keepdim=True)
    # A constant row has squares that are zero up to the rounding of its mean.
    squares = torch.where(squares > n * (1e-14 * mean).square(), squares, 0.0)
    return mean, (squares / n).rsqrt()


class _Statistics(torch.autograd.Function):
    """(mean, 1/std) as functions of x; their values are known."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = mean.clone(), scale.clone()
        ctx.save_for_backward(x, mean, scale)
        ctx.save_for_forward(x, mean, scale)
        return mean, scale

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, scale = ctx.saved_tensors
        by_mean, by_scale = grads
        n = x.shape[-1]
        tilt = -by_scale * scale**3 / n  # d(1/std)/dx_i = -(x_i - mean) / (n std^3)
        level = by_mean / n - tilt * mean
        if torch.is_grad_enabled():
            return (level + tilt * x.double()).to(x.dtype), None, None
        out = torch.empty_like(x)
        for r, c in pieces(x):
            out[r, c] = level[r] + tilt[r] * x[r, c].double()
        return out, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
        x, mean, scale = ctx.saved_tensors
        along = tangents[0].double()
        tilted = ((x.double() - mean) * along).mean(-1, keepdim=True)
        return along.mean(-1, keepdim=True), -tilted * scale**3


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, scale: Tensor, w: Tensor | None, cells: int, points: int, squash: str
    ) -> Tensor:
        ctx.save_for_backward(x, mean, scale, w)
        ctx.save_for_forward(x, mean, scale, w)
        ctx.options = cells, points, squash
        out = mean.new_zeros(len(x), points, cells)
        for r, c in pieces(x):
            at, t = locate(_place(x[r, c], mean[r], scale[r], cells, squash), cells)
            add_moments(out[r], at, t, None if w is None else w[r, c].double())
        return out.div_(x.shape[-1])

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, scale, w = ctx.saved_tensors
        cells, points, squash = ctx.options
        coef = grads[0] / x.shape[-1]
        if torch.is_grad_enabled():
            inputs = [t.view_as(t) for t in (x, mean, scale)]
            position = _positions(inputs[0], inputs[1], inputs[2], cells, squash)[0]
            weight = torch.ones_like(position) if w is None else w.view_as(w)
            out = moments(position, weight.double(), cells, points)
            return *_partials(out, [*inputs, weight], coef), None, None, None
        by_x = torch.empty_like(x)
        by_w = torch.empty_like(w) if w is not None and ctx.needs_input_grad[3] else None
        table, slopes, by_z = tables(coef), tables(derivative(coef)), mean.new_zeros(2, *mean.shape)
        for r, c in pieces(x):
            position, slope = _positions(x[r, c], mean[r], scale[r], cells, squash)
            at, t = locate(position, cells)
            pull = horner(slopes[:, r].flatten(1), at, t).mul_(slope)  # cotangent of z
            if w is not None:
                pull.mul_(w[r, c])
            if by_w is not None:
                by_w[r, c] = horner(table[:, r].flatten(1), at, t)
            by_x[r, c] = pull * scale[r]
            _add_sums(by_z[:, r], pull, x[r, c], mean[r])
        by_mean, by_scale = _from_sums(by_z, scale)
        return by_x, by_mean, by_scale, by_w, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        x, mean, scale, w = ctx.saved_tensors
        cells, points, squash = ctx.options
        position, slope = _positions(x, mean, scale, cells, squash)
        moved = slope * _tangent_of_z(x, mean, scale, tangents)
        weight = torch.ones_like(position) if w is None else w.double()
        out = raised(moments(position, weight * moved, cells, points))
        if tangents[3] is not None:
            out = out + moments(position, tangents[3].double(), cells, points)
        along: Tensor = out / x.shape[-1]
        return along


class _Evaluate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, scale: Tensor, coef: Tensor, squash: str) -> Tensor:
        ctx.save_for_backward(x, mean, scale, coef)
        ctx.save_for_forward(x, mean, scale, coef)
        ctx.squash = squash
        out, table, cells = torch.empty_like(x), tables(coef), coef.shape[2]
        for r, c in pieces(x):
            at, t = locate(_place(x[r, c], mean[r], scale[r], cells, squash), cells)
            out[r, c] = horner(table[:, r].flatten(1), at, t)
        return out

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, scale, coef = ctx.saved_tensors
        (v,) = grads
        cells = coef.shape[2]
        if torch.is_grad_enabled():
            inputs = [t.view_as(t) for t in (x, mean, scale, coef)]
            position = _positions(inputs[0], inputs[1], inputs[2], cells, ctx.squash)[0]
            return *_partials(evaluate(position, inputs[3]).to(x.dtype), inputs, v), None
        by_x, slopes = torch.empty_like(x), tables(derivative(coef))
        by_coef, by_z = torch.zeros_like(coef), mean.new_zeros(2, *mean.shape)
        for r, c in pieces(x):
            position, slope = _positions(x[r, c], mean[r], scale[r], cells, ctx.squash)
            at, t = locate(position, cells)
            weight = v[r, c].double()
            add_moments(by_coef[r], at, t, weight)
            pull = horner(slopes[:, r].flatten(1), at, t).mul_(slope).mul_(weight)
            by_x[r, c] = pull * scale[r]
            _add_sums(by_z[:, r], pull, x[r, c], mean[r])
        by_mean, by_scale = _from_sums(by_z, scale)
        return by_x, by_mean, by_scale, by_coef, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        x, mean, scale, coef = ctx.saved_tensors
        position, slope = _positions(x, mean, scale, coef.shape[2], ctx.squash)
        out = evaluate(position, derivative(coef)) * slope * _tangent_of_z(x, mean, scale, tangents)
        if tangents[3] is not None:
            out = out + evaluate(position, tangents[3])
        return out.to(x.dtype)


def _add_sums(by_z: Tensor, pull: Tensor, x: Tensor, mean: Tensor) -> None:
    """What mean and scale need of a piece's cotangent of z = (x - mean) scale."""
    by_z[0] += pull.sum(-1, keepdim=True)
    by_z[1] += (pull * (x - mean)).sum(-1, keepdim=True)


def _from_sums(by_z: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return -by_z[0] * scale, by_z[1]


def _tangent_of_z(x: Tensor, mean: Tensor, scale: Tensor, tangents: tuple[Any, ...]) -> Tensor:
    out = torch.zeros_like(x, dtype=mean.dtype)
    along_x, along_mean, along_scale = tangents[:3]
    if along_x is not None:
        out = out + along_x.double() * scale
    if along_mean is not None:
        out = out - along_mean * scale
    if along_scale is not None:
        out = out + (x.double() - mean) * along_scale
    return out


def _partials(out: Tensor, inputs: list[Tensor], v: Tensor) -> list[Tensor | None]:
    """Derivatives that can be differentiated again."""
    wanted = [t for t in inputs if t.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, v, create_graph=True, allow_unused=True))
    return [next(found) if t.requires_grad else None for t in inputs]
