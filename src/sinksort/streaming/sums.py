"""Sums over all chunks in the cells of a fine grid, and from them those over coarser grids.

If f fine cells make a coarse one, a value at t in the j-th of them is at (j + t)/f of the coarse one, and its powers
are sums of powers of t with positive coefficients. So moments of coarser grids follow exactly, and refinement costs no
pass over the values until it wants more cells than were collected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linear.elsewhere import Elsewhere
from ..linear.grid import Grid
from ..linear.places import OnNodes
from .source import Source

#: Sums are collected in at least this many cells, so that a further pass is rare; and then in this many times more.
_FINE, _FINER = 1 << 14, 8


def coarsened(in_cells: Tensor, cells: int) -> Tensor:
    """Moments (..., p, fine cells) -> (..., p, cells).

    >>> from sinksort.linear.grid import moments
    >>> x, w = torch.rand(1, 50, dtype=torch.float64), torch.ones(1, 50, dtype=torch.float64)
    >>> fine, coarse = moments(12 * x, w, 12, 4), moments(3 * x, w, 3, 4)
    >>> torch.allclose(coarsened(fine, 3), coarse, atol=1e-12)
    True
    """
    points, f = in_cells.shape[-2], in_cells.shape[-1] // cells
    shift = in_cells.new_tensor(
        [
            [[math.comb(c, i) * j ** (c - i) / f**c if i <= c else 0.0 for i in range(points)] for c in range(points)]
            for j in range(f)
        ]
    )
    return torch.einsum("jci,...ikj->...ck", shift, in_cells.unflatten(-1, (cells, f)))


class Sums:
    """What the values in each cell weigh and carry, collected when it is asked for."""

    def __init__(self, source: Source, carrying: bool) -> None:
        self._source, self._carrying = source, carrying
        self._weight = self._carried = self._there = torch.empty(0, dtype=torch.float64, device=source.device)

    def weight(self, cells: int, points: int) -> Tensor:
        """(R, p, cells): moments of the values' weights."""
        self._collect(cells, points)
        return coarsened(self._weight, cells)

    def carried(self, cells: int, points: int) -> Tensor:
        """(R, p, cells): moments of weight times value; infinite values left out."""
        self._collect(cells, points)
        return coarsened(self._carried, cells)

    def occupied(self, cells: int) -> Tensor:
        """(R, cells): where there are values, whatever they weigh."""
        together: Tensor = self._there.unflatten(-1, (cells, self._there.shape[-1] // cells)).any(-1)
        return together

    def _collect(self, cells: int, points: int) -> None:
        have = self._weight.shape[-1]
        if have and have % cells == 0 and have >= cells:
            return
        fine = cells * (2 ** max(0, math.ceil(math.log2(_FINE / cells))) if not have else _FINER)
        rows = len(self._source.summary.mass)
        zeros = self._source.summary.mass.new_zeros
        self._weight, self._carried = zeros(rows, points, fine), zeros(rows, points, fine)
        self._there = zeros(rows, fine, dtype=torch.bool)
        for x, w in self._source.passing():
            places, unit = self._source.places(x, w)
            here = places.moments(None, fine, points)
            self._weight += unit * here
            self._there |= places.occupied(here)
            if self._carrying:
                finite = torch.where(x.isfinite(), x, 0.0).reshape(rows, -1).to(unit.dtype)
                self._carried += unit * places.moments(finite, fine, points)


@dataclass(frozen=True, kw_only=True)
class Collected(Elsewhere):
    """Rows in chunks, as a refinement sees them."""

    sums: Sums

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.which), int(self.summary.count[0].item())

    def on(self, grid: Grid) -> OnNodes:
        return OnNodes.of(self, grid)

    def moments(self, w: Tensor | None, cells: int, points: int) -> Tensor:
        if w is not None:
            raise AssertionError("what the values of a stream carry is themselves: Sums.carried")
        return self.sums.weight(cells, points)[self.which]

    def occupied(self, in_cells: Tensor) -> Tensor:
        return self.sums.occupied(in_cells.shape[-1])[self.which]

    def evaluate(self, coef: Tensor) -> Tensor:
        raise AssertionError(f"the values of a stream are read chunk by chunk, not all {coef.shape[0]} rows at once")
