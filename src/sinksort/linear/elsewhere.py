"""Rows whose values are not all here: on other machines, or on disk.

They answer what a refinement asks (``places.Places``) by way of sums, so they can stand on a grid, however fine, but
never for themselves. ``distributed`` and ``streaming`` say how the sums are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.solvers import Newton
from .grid import Grid
from .places import Places
from .pooled import Summary
from .refine import Refinement, accepted_error, first_sizes
from .smooth import Part

if TYPE_CHECKING:
    from typing_extensions import Self

#: Fewer values than this are brought together instead: they are no more than what a grid takes.
FEW = 1024
#: A grid may have this many cells; only those with values in them cost anything.
MOST_CELLS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """What the kinds of such rows have in common."""

    summary: Summary  #: of all values of R rows
    bounds: tuple[Tensor, Tensor]  #: of the grid on the axis of x~, each (R, 1) or (1,)
    which: Tensor  #: (r,) the rows this is about
    estimates: list[float] = field(default_factory=list)  #: errors, attempt by attempt

    @property
    def interval(self) -> tuple[Tensor, Tensor]:
        low, high = (t if t.ndim == 1 else t[self.which] for t in self.bounds)
        return low, high

    @property
    def poisoned(self) -> Tensor:
        return self.summary.poisoned[self.which]

    @property
    def count(self) -> Tensor:
        return self.summary.count[self.which]

    def chosen(self, rows: Tensor) -> Self:
        return replace(self, which=self.which[rows])

    def worth(self, grid: Grid) -> bool:
        if grid.cells > MOST_CELLS:
            raise RuntimeError(
                f"values that are not all in one place are summed up on a grid, and these need {grid.cells} cells (the "
                f"last grid had an estimated error of {self.estimates[-1]:.1e}), more than is reasonable; raise eps, "
                "or pass x in float32, whose answers need fewer cells."
            )
        return True

    def agreed(self, errors: Tensor) -> Tensor:
        self.estimates.append(errors.amax().item())
        return errors

    def standing(self) -> tuple[Tensor, Tensor]:
        raise AssertionError("values that are elsewhere stand on a grid, always")

    def pivot(self, payload: Tensor) -> Tensor:
        return payload.new_zeros(len(payload), 1)  # nobody knows the payload of the others


def first_grid(eps: Tensor, dtype: torch.dtype, few: bool) -> tuple[int, int, int]:
    """(cells, nodes, points) to begin with; onto ``few`` targets, or onto as many as there are values.

    What is sent, or kept, shall be small, and a grid of high order needs far fewer cells. Between few targets far apart
    the plan changes within eps, not sqrt(eps).
    """
    smallest = eps.detach().amin().item()
    cells, nodes = first_sizes(smallest, dtype)
    points = 8 if few else 6
    if dtype == torch.float64:
        cells, points = max(64, math.ceil(16 / math.sqrt(smallest))), 10
    elif few:
        cells = max(cells, math.ceil(6 / smallest))
    if cells > MOST_CELLS:
        raise ValueError(
            f"eps must be larger for values that are not all in one place: got {smallest:g}, for which a grid of "
            f"{cells} cells would be needed, and {MOST_CELLS} are the most; raise eps."
        )
    return cells, nodes, points


def refined(places: Places, eps: Tensor, b: Tensor | None, n: int, dtype: torch.dtype) -> list[Part]:
    """The small problems of all rows, onto the n default targets, or onto a few of weights b (r, m) from 0 to 1."""
    given, m = None, n
    if b is not None:
        m = b.shape[-1]
        y = torch.arange(m, dtype=b.dtype, device=b.device) / (m - 1)
        given = y.expand_as(b), b
    refinement = Refinement(places, eps, given, m, Newton(), accepted_error(dtype), b is not None)
    return refinement.run(*first_grid(eps, dtype, b is not None))


def in_order(parts: list[Part], answers: list[Tensor]) -> Tensor:
    """The answers of the parts, in the order of the rows."""
    if len(parts) == 1:
        return answers[0]
    return torch.cat(answers)[torch.cat([part.rows for part in parts]).argsort()]
