"""The launch after those of the grid, of rows of up to 2048 values, in either direction: sizes, and what it is given.

It is always made, since nobody looks at a value: see ``exact.rows``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..engine.given import Given, row_stride, sizes_of, strided
from ..engine.launch import Recorder
from .pieces_launch import programs_of
from .pieces_nodes import rules_of
from .rows import exact_rows
from .rows_backward import exact_rows_backward
from .rows_nodes import OWN

_SMALL_RULE = 48  #: of a rule
#: Panels at most, to begin with and if these are not enough, and the logarithm of how many there are at first. A rule
#: of K nodes is as good as K / 12 panels.
_PANELS = {"small rule": (8, 16, 2), "large rule": (16, 32, 3)}
_WARPS, _VALUES = 8, 2  #: and values that a thread has at a time
_A_PROCESSOR = 2  #: programs
_OWN: int = OWN.value


def _sizes(y: Tensor) -> tuple[int, int, int]:
    return _PANELS["small rule" if y.shape[-1] <= _SMALL_RULE else "large rule"]


def _common(launch: Recorder, given: Given, m: int) -> tuple[int, tuple[Tensor | int, ...], dict[str, int | bool]]:
    """Programs, the last arguments, and constants: of both directions."""
    R, n = given.x.shape
    few, many, _first = _sizes(given.y)
    grid = sizes_of(given.y)
    programs = min(R, _A_PROCESSOR * programs_of(given.x.device))
    room = launch.workspace(programs * _OWN * many, dtype=torch.float64)
    points = launch.workspace(programs * (4 * grid.UP + 2 * n), dtype=torch.float32)
    constants = {
        "SQUASH": given.code, "WEIGHTED": given.weighted, "EPS_ROWS": given.by_row, "CELLS": grid.CELLS,
        "UP": grid.UP, "KR": grid.KP, "FIRST_PANELS": few, "MOST_PANELS": many,
        "WARPS": _WARPS, "VALUES": _VALUES, "num_warps": _WARPS,
    }  # fmt: skip
    rules = launch.constant(rules_of(m, given.x.device))
    return programs, (rules, room, points, R, n, m, programs), constants


def forward(launch: Recorder, given: Given, m: int, out: Tensor, error: Tensor) -> None:
    """What the grid could not answer is answered again, where that is possible. The rule stands for m targets."""
    programs, last, constants = _common(launch, given, m)
    launch(
        exact_rows, programs, *strided(given.x), *strided(given.a), *_line(given), given.eps, given.eps_rows,
        *_state(given), error, out, *last, **constants, FIRST=_sizes(given.y)[2],
    )  # fmt: skip


def backward(launch: Recorder, given: Given, m: int, w: Tensor, grad: Tensor) -> None:
    """Gradients of the rows that ``forward`` answered."""
    programs, last, constants = _common(launch, given, m)
    launch(
        exact_rows_backward, programs, *strided(given.x), *strided(given.a), *strided(w), *_line(given), given.eps,
        given.eps_rows, *_state(given), grad, *last, **constants,
    )  # fmt: skip


def _line(given: Given) -> tuple[Tensor | int, ...]:
    """What says which affine function of the targets is averaged."""
    return given.y, row_stride(given.y), given.phi, row_stride(given.phi), given.y.shape[1]


def _state(given: Given) -> tuple[Tensor | int, ...]:
    return given.state, given.size, given.before
