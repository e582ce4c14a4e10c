"""The last launch of long rows onto many targets, in either direction: for the rows that a grid could not answer.

It is always made, since nobody looks at a value, and its programs return at once if there are no such rows. One program
runs on every multiprocessor: see ``exact.pieces``.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..engine.given import Given, row_stride, sizes_of, strided
from ..engine.launch import Recorder
from .pieces import pieces_backward, pieces_forward
from .pieces_nodes import SLOTS, rules_of

_SMALL_RULE = 48  #: of a rule
#: Panels at most, and the logarithm of how many there are at first. A rule of K nodes is as good as K / 12 panels; rows
#: with edges took up to 18 of them for few nodes, up to 36 for many.
_PANELS = {"small rule": (32, 2), "large rule": (64, 4)}
_TILE = 8192  #: pairs of a value and a node that a program works on at once
_WARPS = 16
_KEPT = 1 << 20  #: longest rows whose places are written to memory that is kept
_SLOTS: int = SLOTS.value


class Pieces(NamedTuple):
    """Sizes of what works on late rows."""

    panels: int
    first: int
    programs: int

    @classmethod
    def of(cls, y: Tensor, programs: int) -> Pieces:
        return cls(*_PANELS["small rule" if y.shape[-1] <= _SMALL_RULE else "large rule"], programs)

    @property
    def slots(self) -> int:
        return self.panels * _SLOTS

    @property
    def state(self) -> int:
        """Singles that it adds to the state of a row: a multiple of 16."""
        return 2 * self.slots + 2 * self.panels + 16

    @property
    def constants(self) -> dict[str, int]:
        return {
            "PANELS": self.panels, "BN": _TILE // self.slots, "PP": triton.next_power_of_2(self.programs),
            "num_warps": _WARPS,
        }  # fmt: skip

    def scratch(self, launch: Recorder, n: int) -> tuple[Tensor, ...]:
        """Some megabytes that ordinary rows leave alone: a call need not take them, unless its rows are huge."""
        return (
            launch.workspace(self.programs + 1, 3 * self.slots, dtype=torch.float64),
            launch.workspace(self.programs, 3 * self.slots, dtype=torch.float64),
            (launch.workspace if n <= _KEPT else launch.empty)(2 * n, dtype=torch.float32),
        )


@functools.cache
def programs_of(device: torch.device) -> int:
    """That run at once for certain. In Triton's interpreter they run one after the other, and must not wait."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def state_behind(y: Tensor) -> int:
    """Singles of the state of a row, behind those of the grid."""
    return Pieces.of(y, 1).state


def forward(launch: Recorder, given: Given, m: int, out: Tensor, error: Tensor) -> None:
    """What the grid could not answer is answered again, or NaN. The rule stands for m targets."""
    x, (R, n) = given.x, given.x.shape
    late = Pieces.of(given.y, programs_of(x.device))
    launch.at_once(
        pieces_forward, late.programs,
        *strided(x), *strided(given.a), *_line(given), given.eps, given.eps_rows, *_state(given), error, out,
        launch.constant(rules_of(m, x.device)), *late.scratch(launch, n), R, n, m, late.programs,
        FIRST=late.first, SQUASH=given.code, WEIGHTED=given.weighted, EPS_ROWS=given.by_row, **late.constants,
    )  # fmt: skip


def backward(launch: Recorder, given: Given, m: int, w: Tensor, counters: Tensor, out: Tensor) -> None:
    """Gradients of the rows that ``forward`` answered. ``counters``: given back by ``grid.rows.backward``."""
    x, (R, n) = given.x, given.x.shape
    late = Pieces.of(given.y, programs_of(x.device))
    launch.at_once(
        pieces_backward, late.programs,
        *strided(x), *strided(given.a), *strided(w), *_line(given), given.eps, given.eps_rows, *_state(given),
        counters, 2 * sizes_of(given.y).UP, out,
        launch.constant(rules_of(m, x.device)), *late.scratch(launch, n), R, n, m, late.programs,
        SQUASH=given.code, WEIGHTED=given.weighted, EPS_ROWS=given.by_row, **late.constants,
    )  # fmt: skip


def _line(given: Given) -> tuple[Tensor | int, ...]:
    """What says which affine function of the targets is averaged."""
    return given.y, row_stride(given.y), given.phi, row_stride(given.phi), given.y.shape[1]


def _state(given: Given) -> tuple[Tensor | int, ...]:
    return given.state, given.size, given.before, sizes_of(given.y).state
