"""Rows whose values are spread over the ranks of a group, seen as one.

Every rank sums up its own values in the cells of a grid, the sums are added up over the ranks, and from there all ranks
do the same: solve the small problem, judge it, refine it. What it says is read at each rank's own values. So what goes
over the wire is as large as the grid, whatever the number of values. Decisions are made from numbers that are the
same on all ranks, bit for bit: a rank that refined alone would wait for the others for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..elsewhere import Elsewhere
from ..places import Places
from ..pooled import summed_up
from ..squash import Squash
from .collectives import Everyone


@dataclass(frozen=True, kw_only=True)
class Shards(Elsewhere):
    """The values of some rows, this rank's at hand, the others' by way of sums."""

    everyone: Everyone
    here: Places  #: of this rank's values (R, n)
    unit: Tensor  #: (R, 1, 1) what brings moments of ``here`` to weights that sum to one over all ranks
    weighted: bool

    @classmethod
    def of(cls, x: Tensor, w: Tensor | None, squash: Squash, everyone: Everyone, copies: int) -> Shards:
        """Of this rank's values x (R, n) and weights (R, n); every row ``copies`` times."""
        mine, plain = summed_up(x, w, squash)
        summary = mine.merged(everyone.largest, everyone.sum)
        here, unit = summary.places(x, w, squash, plain)
        return cls(
            summary=summary,
            bounds=here.interval,
            which=torch.arange(len(x), device=x.device).repeat(copies),
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

    def moments(self, w: Tensor | None, cells: int, points: int) -> Tensor:
        """Over all ranks; w (R, n) is this rank's."""
        once, again = self.rows
        w = None if w is None else w[once]
        return self.everyone.sum(self.unit[once] * self._here(once).moments(w, cells, points))[again]

    def occupied(self, in_cells: Tensor) -> Tensor:
        occupied = in_cells[:, 0] != 0
        if self.weighted:
            once, again = self.rows
            own = self._here(once).occupied(in_cells)
            occupied = self.everyone.largest(own.to(in_cells.dtype))[again] > 0
        return occupied

    def evaluate(self, coef: Tensor) -> Tensor:
        return self._here(self.which).evaluate(coef)

    def _here(self, rows: Tensor) -> Places:
        return self.here if len(rows) == len(self.unit) else self.here.chosen(rows)
