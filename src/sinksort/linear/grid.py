"""Sums over very many values of a smooth function, and a smooth function read at very many values.

An interval is cut into cells. On a cell a smooth function is a polynomial of degree p - 1 in t, the position inside the
cell: the one through its values at the p nearest nodes of the grid. Both directions then come down to

    moments(position, w)[c, k]     = sum of w_i t_i^c over the values in cell k,
    evaluate(position, coef)[i]    = sum over c of coef[c, cell of i] t_i^c,

which are each other's transpose, and closed under differentiation: the derivative of a polynomial is a polynomial. So
memory and time are O(n) in both directions, to any order, and what lies between them is as small as the grid.

    masses(x, w):  what the values weigh, moved to the nodes so that sums of smooth functions do not change
    read(x, F):    a function given at the nodes, at every value
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.cotangents import one_at_a_time

#: Values at a time: temporaries stay in the cache, and memory does not depend on n. Torch's threads stay out of arrays
#: of this size: waiting for each other after every operation, they would crawl on a machine that has more to do.
_CPU_PIECE = 1 << 15
_DEVICE_PIECE = 1 << 24  # an accelerator wants many at a time


@dataclass(frozen=True)
class Grid:
    """``cells`` equal cells on [0, 1], interpolation through ``points`` (an even number) nodes."""

    cells: int
    points: int

    @property
    def ghosts(self) -> int:
        """Nodes beyond each end, so that every cell has points/2 nodes on both sides."""
        return self.points // 2 - 1

    @property
    def size(self) -> int:
        return self.cells + 1 + 2 * self.ghosts

    def finer(self, factor: float) -> Grid:
        """A grid whose error is about ``factor`` times smaller: p-th order, and no blind leap."""
        doublings = math.ceil(math.log2(min(factor, 4.0**self.points)) / self.points)
        return Grid(self.cells * 2 ** max(1, doublings), self.points)

    def nodes(self, like: Tensor) -> Tensor:
        return (torch.arange(self.size, dtype=like.dtype, device=like.device) - self.ghosts) / self.cells

    def masses(self, x: Tensor, w: Tensor) -> Tensor:
        """(r, nodes) for values x (r, n) in [0, 1] of weight w: sum_i w_i F(x_i) = sum_k masses_k F(node_k)."""
        return self.spread(moments(x * self.cells, w, self.cells, self.points))

    def spread(self, in_cells: Tensor) -> Tensor:
        """Moments (r, p, cells) -> masses at the nodes (r, nodes)."""
        basis = _lagrange(self.points, in_cells)
        per_cell = torch.einsum("rck,cj->rjk", in_cells, basis)
        out = per_cell.new_zeros(len(in_cells), self.size)
        for j in range(self.points):
            out = out + torch.nn.functional.pad(per_cell[:, j], (j, self.points - 1 - j))
        return out

    def hats(self, in_cells: Tensor) -> Tensor:
        """Masses at the nodes (r, nodes) of linear interpolation: less accurate, and never negative."""
        right = in_cells[:, 1]
        left = in_cells[:, 0] - right
        around = (self.ghosts, self.ghosts)
        pad = torch.nn.functional.pad
        return pad(pad(left, (0, 1)) + pad(right, (1, 0)), around)

    def read(self, x: Tensor, F: Tensor) -> Tensor:
        """(r, n): the function with values F (r, nodes) at the nodes, at every x (r, n)."""
        return evaluate(x * self.cells, self.polynomials(F))

    def polynomials(self, F: Tensor) -> Tensor:
        """Values at the nodes (r, nodes) -> coefficients in every cell (r, p, cells)."""
        return torch.einsum("rkj,cj->rck", F.unfold(-1, self.points, 1), _lagrange(self.points, F))

    def remainder(self, F: Tensor, real: Tensor | None = None) -> Tensor:
        """(..., cells): about how far interpolation of F (..., nodes) is off in each cell, between nodes that are real.

        The remainder of interpolation through p points is, in the middle cell, at most (1 3 5 ... (p-1))^2 / (2^p p!)
        times the p-th derivative; the larger of the two p-th differences that contain the cell stands for it.
        """
        p = self.points
        odd = np.prod(np.arange(1, p, 2, dtype=float))
        constant = odd**2 / (2.0**p * np.prod(np.arange(1, p + 1, dtype=float)))
        difference = constant * F.diff(n=p, dim=-1).abs()
        if real is not None:
            difference = torch.where(real.unfold(-1, p + 1, 1).all(-1), difference, 0.0)
        larger: Tensor = torch.nn.functional.pad(difference, (1, 1)).unfold(-1, 2, 1).amax(-1)
        return larger


@functools.lru_cache(maxsize=8)
def _lagrange_numpy(points: int) -> np.ndarray:
    at = np.arange(points) - (points // 2 - 1.0)
    return np.linalg.inv(np.vander(at, increasing=True))


def _lagrange(points: int, like: Tensor) -> Tensor:
    """(points, points): [c, j] is the coefficient of t^c in the polynomial that is 1 at node j and 0 at the others."""
    return torch.as_tensor(_lagrange_numpy(points), dtype=like.dtype, device=like.device)


def derivative(coef: Tensor) -> Tensor:
    """Coefficients (r, p, cells) of the derivative in t."""
    power = torch.arange(1, coef.shape[1], dtype=coef.dtype, device=coef.device)
    return torch.nn.functional.pad(coef[:, 1:] * power.unsqueeze(-1), (0, 0, 0, 1))


Piece = tuple[slice, slice]  # rows and columns of a part of an array (rows, n)


def pieces(like: Tensor, width: int = 1) -> Iterator[Piece]:
    """An array (rows, n) in pieces that fit in the cache: several short rows, or part of a long one.

    On an accelerator, whose memory counts, pieces are shorter by ``width``: about how many numbers are made of each.
    """
    rows, n = like.shape
    size = _CPU_PIECE if like.device.type == "cpu" else _DEVICE_PIECE // width
    together = max(1, size // max(n, 1))
    for first in range(0, rows, together):
        for start in range(0, n, size):
            yield slice(first, min(first + together, rows)), slice(start, min(start + size, n))


def raised(in_cells: Tensor) -> Tensor:
    """How moments (r, p, cells) change with t, from the moments of the change: d/dt t^c = c t^(c-1)."""
    power = torch.arange(in_cells.shape[1], dtype=in_cells.dtype, device=in_cells.device).unsqueeze(-1)
    return power * torch.nn.functional.pad(in_cells[:, :-1], (0, 0, 1, 0))


def locate(position: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """The cell of each position, counted through the rows (k, n), and where inside it."""
    small = len(position) * cells < 2**31
    at = position.to(torch.int32 if small else torch.int64).clamp_(0, cells - 1)
    t = position - at
    if len(position) > 1:
        at += cells * torch.arange(len(position), dtype=at.dtype, device=at.device).unsqueeze(-1)
    return at, t


def add_moments(out: Tensor, at: Tensor, t: Tensor, weight: Tensor | None) -> None:
    """Add the moments of one chunk, of weight one or ``weight``, to ``out`` (k, p, cells)."""
    rows, points, cells = out.shape
    at, t = at.flatten(), t.flatten()
    power = None if weight is None else weight.flatten()
    for c in range(points):
        out[:, c] += torch.bincount(at, weights=power, minlength=rows * cells).view(rows, cells)
        power = t if power is None else power * t


def tables(coef: Tensor) -> Tensor:
    """(p, r, cells): a row's polynomials side by side."""
    return coef.transpose(0, 1).contiguous()


def horner(table: Tensor, at: Tensor, t: Tensor) -> Tensor:
    """Polynomials with coefficients ``table`` (p, cells) at positions t of cells ``at``."""
    flat = at.flatten()
    value = table[-1].index_select(0, flat).view_as(t)
    for coefficient in table[:-1].flip(0):
        value.mul_(t).add_(coefficient.index_select(0, flat).view_as(t))
    return value


def moments(position: Tensor, w: Tensor, cells: int, points: int) -> Tensor:
    """(r, p, cells): the first p moments of the values in each cell."""
    out: Tensor = _Moments.apply(position, w, cells, points)  # type: ignore[no-untyped-call]
    return out


def evaluate(position: Tensor, coef: Tensor) -> Tensor:
    """(r, n): piecewise polynomials with coefficients (r, p, cells) at every position."""
    out: Tensor = _Evaluate.apply(position, coef)  # type: ignore[no-untyped-call]
    return out


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, position: Tensor, w: Tensor, cells: int, points: int) -> Tensor:
        ctx.save_for_backward(position, w)
        ctx.save_for_forward(position, w)
        ctx.size = (cells, points)
        out = position.new_zeros(len(position), points, cells)
        for piece in pieces(position):
            add_moments(out[piece[0]], *locate(position[piece], cells), w[piece])
        return out

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        position, w = ctx.saved_tensors
        (coef,) = grads
        by_position = w * evaluate(position, derivative(coef)) if ctx.needs_input_grad[0] else None
        by_weight = evaluate(position, coef) if ctx.needs_input_grad[1] else None
        return by_position, by_weight, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        position, w = ctx.saved_tensors
        cells, points = ctx.size
        out = torch.zeros(len(position), points, cells, dtype=w.dtype, device=w.device)
        if tangents[1] is not None:
            out = out + moments(position, tangents[1], cells, points)
        if tangents[0] is not None:
            lower = moments(position, w * tangents[0], cells, points)
            out = out + raised(lower)
        return out


class _Evaluate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, position: Tensor, coef: Tensor) -> Tensor:
        ctx.save_for_backward(position, coef)
        ctx.save_for_forward(position, coef)
        out = torch.empty_like(position)
        table = tables(coef)
        for piece in pieces(position):
            out[piece] = horner(table[:, piece[0]].flatten(1), *locate(position[piece], coef.shape[2]))
        return out

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        position, coef = ctx.saved_tensors
        (v,) = grads
        by_position = v * evaluate(position, derivative(coef)) if ctx.needs_input_grad[0] else None
        by_coef = moments(position, v, coef.shape[2], coef.shape[1]) if ctx.needs_input_grad[1] else None
        return by_position, by_coef

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        position, coef = ctx.saved_tensors
        out = torch.zeros_like(position)
        if tangents[1] is not None:
            out = out + evaluate(position, tangents[1])
        if tangents[0] is not None:
            out = out + tangents[0] * evaluate(position, derivative(coef))
        return out
