"""Rows whose values are spread over the ranks of a group, seen as one.

Every rank sums up its own values in the cells of a grid, the sums are added up over the ranks, and from there all ranks
do the same: solve the small problem, judge it, refine it. What it says is read at each rank's own values. So what goes
over the wire is as large as the grid, whatever the number of values. Decisions are made from numbers that are the
same on all ranks, bit for bit: a rank that refined alone would wait for the others for ever.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..grid import Grid
from ..places import Places
from ..pooled import Summary
from ..problem import wide_dtype
from ..squash import Squash, normalize
from ..streamed import Streamed
from .collectives import Everyone

#: A grid may have this many cells; only those with values in them cost anything.
MOST_CELLS = 1 << 20
#: Entries of the small plan that every rank holds.
MOST_ENTRIES = 1 << 25


@dataclass(frozen=True)
class Shards:
    """The values of some rows, this rank's at hand, the others' by way of sums."""

    here: Places  #: of this rank's values (R, n), weights in any unit
    unit: Tensor  #: (R, 1, 1) what brings moments of ``here`` to weights that sum to one over all ranks
    summary: Summary  #: of the values of all ranks
    everyone: Everyone
    weighted: bool
    nodes: int  #: of the rule, to know how large a plan will be
    which: Tensor  #: (r,) rows of ``here``; a row that is asked for several quantiles is there several times
    estimates: list[float] = field(default_factory=list)  #: errors, attempt by attempt

    @classmethod
    def of(cls, x: Tensor, w: Tensor | None, squash: Squash, everyone: Everyone, nodes: int, copies: int = 1) -> Shards:
        """Of this rank's values x (R, n) and weights (R, n); every row ``copies`` times."""
        wide, streamed = wide_dtype(x.device), None
        if w is None and isinstance(squash, str) and x.shape[-1] > 0:
            streamed = Streamed.of(x, squash)
        if streamed is None:
            x = x.to(wide)
            x = normalize(x, x, squash, x, x) if callable(squash) else x
            w = None if w is None else w.to(wide)
        mine = Summary.of(x, w) if streamed is None else Summary.of_streamed(streamed)
        summary = mine.merged(everyone.largest, everyone.sum)
        here = summary.places(x, w, squash, plain=streamed is not None)
        unit = torch.ones_like(summary.mass)
        if isinstance(here, Streamed):
            unit = x.shape[-1] / summary.mass
        which = torch.arange(len(x), device=x.device).repeat(copies)
        return cls(here, unit.unsqueeze(-1), summary, everyone, w is not None, nodes, which)

    # ---- what a refinement asks

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.which), self.here.shape[-1]

    @property
    def interval(self) -> tuple[Tensor, Tensor]:
        low, high = (t if t.ndim == 1 else t[self.which] for t in self.here.interval)
        return low, high

    @property
    def poisoned(self) -> Tensor:
        return self.summary.poisoned[self.which]

    @property
    def count(self) -> Tensor:
        return self.summary.count[self.which]

    def chosen(self, rows: Tensor) -> Shards:
        return replace(self, which=self.which[rows])

    def worth(self, grid: Grid) -> bool:
        if grid.cells > MOST_CELLS:
            self._give_up(f"{grid.cells} cells")
        return True

    def agreed(self, errors: Tensor) -> Tensor:
        errors = self.everyone.largest(errors)
        self.estimates.append(errors.amax().item())
        return errors

    def moments(self, w: Tensor | None, cells: int, points: int) -> Tensor:
        """Over all ranks; w (R, n) is this rank's."""
        rows, again = self._rows
        here = self.here if len(rows) == len(self.unit) else self.here.chosen(rows)
        w = None if w is None else w[rows]
        return self.everyone.sum(self.unit[rows] * here.moments(w, cells, points))[again]

    def occupied(self, in_cells: Tensor) -> Tensor:
        rows, again = self._rows
        occupied = in_cells[:, 0] != 0
        if self.weighted:
            own = self.here.chosen(rows).occupied(in_cells)
            occupied = self.everyone.largest(own.to(in_cells.dtype))[again] > 0
        needed = int(occupied.any(0).sum())
        if needed * self.nodes > MOST_ENTRIES:
            self._give_up(f"{needed} cells with values in them and {self.nodes} nodes")
        return occupied

    def evaluate(self, coef: Tensor) -> Tensor:
        here = self.here if len(self.which) == len(self.unit) else self.here.chosen(self.which)
        return here.evaluate(coef)

    def standing(self) -> tuple[Tensor, Tensor]:
        raise AssertionError("values on other ranks stand on a grid, always")

    @functools.cached_property
    def _rows(self) -> tuple[Tensor, Tensor]:
        """The rows that are there, each once, and where to find those of ``which`` among them."""
        rows, again = self.which.unique(return_inverse=True)
        return rows, again

    def _give_up(self, what: str) -> None:
        so_far = f"with an estimated error of {self.estimates[-1]:.1e}" if self.estimates else "to begin with"
        raise RuntimeError(
            f"values spread over ranks are summed up on a grid, and these would need {what} ({so_far}), more than is "
            "reasonable; raise eps, or pass x in float32, whose answers need fewer cells."
        )
