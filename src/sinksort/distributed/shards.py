"""Rows whose values are spread over the ranks of a group, seen as one.

For ranks, every rank sums up its own values in the cells of a grid, the sums are added up over the ranks, and from
there all ranks do the same: solve the small problem, judge it, refine it. What it says is read at each rank's own
values. So what goes over the wire is as large as the grid, whatever the number of values. Quantiles and masks need no
fine grid: few targets need few sums (``thresholds``). Decisions are made from numbers that are the same on all ranks,
bit for bit: a rank that refined alone would wait for the others for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.squash import Squash
from ..linear.elsewhere import Elsewhere
from ..linear.grid import Grid
from ..linear.places import OnNodes, Places
from ..linear.pooled import summed_up
from .collectives import Everyone


@dataclass(frozen=True, kw_only=True)
class Shards(Elsewhere):
    """The values of some rows, this rank's at hand, the others' by way of sums."""

    everyone: Everyone
    here: Places  #: of this rank's values (R, n)
    unit: Tensor  #: (R, 1, 1) what brings moments of ``here`` to weights that sum to one over all ranks
    weighted: bool

    @classmethod
    def of(cls, x: Tensor, w: Tensor | None, squash: Squash, everyone: Everyone) -> Shards:
        """Of this rank's values x (R, n) and weights (R, n)."""
        mine, plain = summed_up(x, w, squash)
        summary = mine.merged(everyone.largest, everyone.sum)
        here, unit = summary.places(x, w, squash, plain)
        return cls(
            summary=summary,
            bounds=here.interval,
            which=torch.arange(len(x), device=x.device, dtype=torch.int64),
            everyone=everyone,
            here=here,
            unit=unit,
            weighted=w is not None,
        )

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.which), self.here.shape[-1]

    def agreed(self, errors: Tensor) -> Tensor:
        return super().agreed(self.everyone.largest(errors))

    def on(self, grid: Grid) -> OnNodes:
        """Masses are sent, and not moments, which are several for each node."""
        in_cells = self._own_moments(None, grid.cells, grid.points)
        mine = grid.spread(in_cells)
        with torch.no_grad():
            together = self.everyone.sum(torch.cat([mine, in_cells[:, 0]], dim=-1))
            masses, weight = together.split([grid.size, grid.cells], dim=-1)
            hats = grid.hats(torch.stack([weight, 0.5 * weight], dim=1))  # as if all stood in the middle of their cells
        return OnNodes(self.everyone.sum(mine, known=masses), hats, weight, self.occupied(weight.unsqueeze(1)))

    def moments(self, w: Tensor | None, cells: int, points: int) -> Tensor:
        return self.everyone.sum(self._own_moments(w, cells, points))

    def _own_moments(self, w: Tensor | None, cells: int, points: int) -> Tensor:
        return self.unit[self.which] * self._here.moments(w, cells, points)

    def occupied(self, in_cells: Tensor) -> Tensor:
        occupied = in_cells[:, 0] != 0
        if self.weighted:
            own = self._here.occupied(in_cells)
            occupied = self.everyone.largest(own.to(torch.uint8)) > 0
        return occupied

    def evaluate(self, coef: Tensor) -> Tensor:
        return self._here.evaluate(coef)

    @property
    def _here(self) -> Places:
        return self.here if len(self.which) == len(self.unit) else self.here.chosen(self.which)
