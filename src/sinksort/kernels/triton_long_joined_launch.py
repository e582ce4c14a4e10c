"""The one launch of long rows onto many targets, in either direction, where Python would wait for its launches.

See ``triton_long_joined``. On the device it takes somewhat longer than the launches of ``triton_long_by_grid``: all of
them have the registers of the hungriest, and one program runs on each multiprocessor. So these are made where the host
does not count: in a CUDA graph, and of so many values that the device is at work longer than the host.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from .triton_launch import AT_ONCE, Recorder, capturing
from .triton_long_by_grid import GATHERED, Given, cut, row_stride, sizes_of, strided, until_written
from .triton_long_joined import COUNTERS, joined_backward, joined_forward
from .triton_long_late_launch import Late, programs_of
from .triton_long_late_nodes import rules_of
from .triton_long_spread import to_nodes

_MOST = 1 << 20  #: values of all rows
_WARPS = 16  #: each of which has a slab of the block that is spread
_MOST_CHUNKS = 128  #: of a row
_MOMENTS_BLOCK, _SPREAD_BLOCK, _READ_BLOCK = 4096, 64 * _WARPS, 2048
_COUNTERS: int = COUNTERS.value


def joins(x: Tensor) -> bool:
    """Whether one launch is better than several."""
    return AT_ONCE and x.is_cuda and x.numel() <= _MOST and len(x) <= programs_of(x.device) and not capturing(x)


def forward(launch: Recorder, given: Given, last: Tensor, m: int, out: Tensor, error: Tensor) -> None:
    """What ``triton_long_by_grid.forward`` and ``triton_long_late_launch.forward`` do."""
    x, (R, n), sizes = given.x, given.x.shape, sizes_of(given.y)
    late = Late.of(given.y, programs_of(x.device))
    M, of_M = _cut(x, _MOMENTS_BLOCK, _MOST_CHUNKS)
    G, of_G = _cut_to_spread(x)
    B, of_B = _cut(x, _READ_BLOCK, _MOST_CHUNKS)
    stats = launch.empty(R * M * 8, dtype=torch.float64)
    width = sizes.UP * (1 + given.weighted)
    chunks = until_written(None if given.weighted else out, launch, R, G * width)
    moments, left = _gathered(launch, chunks, R, G, width)
    scratch = until_written(out, launch, R, sizes.UP + given.weighted * sizes.nodes)
    launch(
        joined_forward, late.programs,
        *strided(x), *strided(given.a), *given.targets, last, row_stride(last), given.eps, given.eps_rows,
        given.state, given.size, given.before, error, out, R, n, launch.counters((R + 1) * _COUNTERS),
        stats, M, of_M, *chunks, G, of_G, *moments, left, launch.constant(to_nodes(x.device)), *scratch, B, of_B,
        sizes.state, launch.constant(rules_of(m, x.device)), *late.scratch(launch, n), m,
        **_constants(given, late), MOMENTS=_MOMENTS_BLOCK, FIRST=late.first,
    )  # fmt: skip


def backward(launch: Recorder, given: Given, m: int, w: Tensor, out: Tensor) -> None:
    """What ``triton_long_by_grid.backward`` and ``triton_long_late_launch.backward`` do."""
    x, (R, n), sizes = given.x, given.x.shape, sizes_of(given.y)
    late = Late.of(given.y, programs_of(x.device))
    G, of_G = _cut_to_spread(x)
    B, of_B = _cut(x, _READ_BLOCK, _MOST_CHUNKS)
    chunks = until_written(out, launch, R, G * sizes.UP)
    moments, left = _gathered(launch, chunks, R, G, sizes.UP)
    scratch = launch.empty(R * 2 * sizes.UP, dtype=torch.float32)
    sums = launch.empty(R * B * 2, dtype=torch.float64)
    launch(
        joined_backward, late.programs,
        *strided(x), *strided(given.a), *strided(w), *given.targets, given.eps, given.eps_rows,
        given.state, given.size, given.before, out, R, n, launch.counters((R + 1) * _COUNTERS),
        *chunks, G, of_G, *moments, left, launch.constant(to_nodes(x.device)), scratch, 2 * sizes.UP, sums, B, of_B,
        sizes.state, scratch[sizes.UP :], 2 * sizes.UP, launch.constant(rules_of(m, x.device)),
        *late.scratch(launch, n), m, **_constants(given, late),
    )  # fmt: skip


def _cut(x: Tensor, block: int, most: int) -> tuple[int, int]:
    """How many chunks a row is cut into, at most so many, and how many blocks each of them has: a chunk a program."""
    R, n = x.shape
    return cut(R, n, block, min(programs_of(x.device), most * R))


def _cut_to_spread(x: Tensor) -> tuple[int, int]:
    """So few chunks that nobody has to gather them, if that takes no more than two blocks each."""
    few = triton.cdiv(x.shape[1], _SPREAD_BLOCK) <= 2 * GATHERED
    return _cut(x, _SPREAD_BLOCK, GATHERED if few else _MOST_CHUNKS)


def _gathered(
    launch: Recorder, chunks: tuple[Tensor, int], R: int, G: int, width: int
) -> tuple[tuple[Tensor, int], int]:
    """Where what is left of the chunks of a row will be, and how many of them that are."""
    return (chunks, G) if G <= GATHERED else ((launch.empty(R * width, dtype=torch.float32), width), 1)


def _constants(given: Given, late: Late) -> dict[str, Any]:
    K, KP, _HI, CELLS, UP = sizes = sizes_of(given.y)
    lanes = min(KP, 32)
    return {
        "K": K, "KP": KP, "CELLS": CELLS, "UP": UP, "SQUASH": given.code, "WEIGHTED": given.weighted,
        "EPS_ROWS": given.by_row, "MOST": _MOST_CHUNKS, "SPREAD": _SPREAD_BLOCK,
        "SLABS": _WARPS, "READ": _READ_BLOCK,
        **late.constants, **sizes.tiles_of(_WARPS, lanes, lanes),
    }  # fmt: skip
