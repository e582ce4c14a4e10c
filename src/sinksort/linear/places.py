"""Where the values of a row stand on the axis of the targets, and the two things a grid wants of them.

    moments(w):      sums over the values, cell by cell
    evaluate(coef):  a piecewise polynomial at every value

``Placed`` holds x~ and takes any input; ``streamed.Streamed`` computes it on the way, for plain input in great number.
Whoever has the values elsewhere (on other machines, on disk) answers the same questions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..core.plan import pivot_of
from ..core.problem import live_rows, wide_dtype
from ..core.squash import Squash, normalize
from .grid import Grid, evaluate, moments

#: With fewer values than this, a grid costs more than it saves.
WORTH_A_GRID = 256


def worth(grid: Grid, n: int) -> bool:
    """Whether n values, all of them here, are better off on a grid."""
    return n >= max(WORTH_A_GRID, 2 * grid.cells)


def count_of(rows: Tensor) -> Tensor:
    """(r, 1): the size of the rows."""
    return torch.full((len(rows), 1), float(rows.shape[-1]), dtype=wide_dtype(rows.device), device=rows.device)


class Places(Protocol):
    """The values of some rows, seen from a grid on [low, high]."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and how many values there are in each."""

    @property
    def interval(self) -> tuple[Tensor, Tensor]:
        """(low, high), each (r, 1) or (1,)."""

    @property
    def poisoned(self) -> Tensor:
        """(r, 1): NaN for rows that hold a NaN, else 0."""

    @property
    def count(self) -> Tensor:
        """(r, 1): how many values a row has; more than are here, when there are others elsewhere."""

    def worth(self, grid: Grid) -> bool:
        """Whether to stand on this grid; if not, every value stands for itself."""

    def agreed(self, errors: Tensor) -> Tensor:
        """The estimates that decide what is refined: the same for all who refine together."""

    def chosen(self, rows: Tensor) -> Places:
        """Some of the rows."""

    def on(self, grid: Grid) -> OnNodes:
        """The values' weights, moved to the nodes of a grid."""

    def moments(self, w: Tensor | None, cells: int, points: int) -> Tensor:
        """(r, p, cells): moments of the values' weights, times w (r, n)."""

    def occupied(self, in_cells: Tensor) -> Tensor:
        """(r, cells): where there are values, whatever they weigh; ``in_cells`` are their moments."""

    def evaluate(self, coef: Tensor) -> Tensor:
        """(r, n): polynomials (r, p, cells) at every value."""

    def standing(self) -> tuple[Tensor, Tensor]:
        """x~ and weights, (r, n)."""

    def pivot(self, payload: Tensor) -> Tensor:
        """(r, 1): a constant to average a payload (r, n) from, the same for all who hold values of the row."""


class OnNodes(NamedTuple):
    """What values weigh, moved to the nodes of a grid."""

    masses: Tensor  #: (r, nodes)
    hats: Tensor  #: (r, nodes) roughly the same, and never negative; a constant
    weight: Tensor  #: (r, cells) what the values in each cell weigh; a constant
    occupied: Tensor  #: (r, cells) where there are values, whatever they weigh

    @classmethod
    def of(cls, places: Places, grid: Grid) -> OnNodes:
        in_cells = places.moments(None, grid.cells, grid.points)
        fixed = in_cells.detach()
        return cls(grid.spread(in_cells), grid.hats(fixed), fixed[:, 0], places.occupied(in_cells))


@dataclass(frozen=True)
class Placed:
    """x~ itself, for any weights and any squash."""

    x_tilde: Tensor  #: (r, n)
    a: Tensor  #: (r, n) rows sum to 1
    weighted: bool  #: whether an entry may have zero weight
    interval: tuple[Tensor, Tensor]
    poisoned: Tensor

    @classmethod
    def of(cls, x: Tensor, weights: Tensor | None, squash: Squash, low: Tensor, high: Tensor) -> Placed:
        """``low`` and ``high`` are the outermost targets."""
        values, a, _, _ = live_rows(x, x, -1, weights, None)
        x_tilde = normalize(values, a, squash, low, high)
        nan = x_tilde.isnan()
        poisoned = torch.where(nan.any(-1, keepdim=True), torch.nan, 0.0).to(x_tilde.dtype)
        x_tilde = torch.where(nan, 0.5, x_tilde)
        if isinstance(squash, str):
            return cls(x_tilde, a, weights is not None, (x_tilde.new_zeros(1), x_tilde.new_ones(1)), poisoned)
        bottom, top = x_tilde.detach().amin(-1, keepdim=True), x_tilde.detach().amax(-1, keepdim=True)
        return cls(x_tilde, a, weights is not None, (bottom, torch.where(top > bottom, top, bottom + 1.0)), poisoned)

    @property
    def shape(self) -> tuple[int, int]:
        rows, n = self.a.shape
        return rows, n

    @property
    def count(self) -> Tensor:
        return count_of(self.a)

    def worth(self, grid: Grid) -> bool:
        return worth(grid, self.a.shape[-1])

    def agreed(self, errors: Tensor) -> Tensor:
        return errors

    def chosen(self, rows: Tensor) -> Placed:
        low, high = (t if t.ndim == 1 else t[rows] for t in self.interval)
        return replace(
            self, x_tilde=self.x_tilde[rows], a=self.a[rows], interval=(low, high), poisoned=self.poisoned[rows]
        )

    def on(self, grid: Grid) -> OnNodes:
        return OnNodes.of(self, grid)

    def moments(self, w: Tensor | None, cells: int, points: int) -> Tensor:
        # What weighs nothing may hold anything.
        carried = self.a if w is None else torch.where(self.a > 0, self.a * w, 0.0)
        return moments(self._positions(cells), carried, cells, points)

    def occupied(self, in_cells: Tensor) -> Tensor:
        if not self.weighted:
            return in_cells[:, 0] != 0
        with torch.no_grad():
            cells = in_cells.shape[-1]
            return moments(self._positions(cells), torch.ones_like(self.a), cells, 1)[:, 0] != 0

    def evaluate(self, coef: Tensor) -> Tensor:
        return evaluate(self._positions(coef.shape[2]), coef)

    def standing(self) -> tuple[Tensor, Tensor]:
        return self.x_tilde, self.a

    def pivot(self, payload: Tensor) -> Tensor:
        return pivot_of(payload.unsqueeze(-1), self.a).squeeze(-1)

    def _positions(self, cells: int) -> Tensor:
        low, high = self.interval
        return (self.x_tilde - low) * (cells / (high - low))
