"""The launches of rows onto many targets by way of a grid: how rows are cut, and which kernels run after each other.

They serve long rows (``long``), and rows that fit a thread block but whose plans do not fit into registers
(``rows``). Of the latter any program reads all values in no time, and what counts is the time that the host
needs for a launch: so they have two launches each way, which do what takes long rows four.

What kernels hand to each other stands where the answers will, wherever that is possible: a call with its gradient takes
at most four times the memory of its values, if they are 1000 or more, answers and gradient included.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..engine import tables as grid
from ..engine.given import Given, row_stride, sizes_of, strided
from ..engine.launch import Recorder
from ..engine.maths import moments
from .nodes import gather, programs_to_gather
from .solve import solve
from .solve_backward import solve_backward
from .spread import spread, spread_cotangents, to_nodes

MOST_NODES = 128  #: of a rule
_PROGRAMS = 528  #: chunks that all rows together are cut into: four for each multiprocessor of a large GPU
_MOMENTS_BLOCK, _SPREAD_BLOCK, _READ_BLOCK, _SUM_BLOCK = 2048, 512, 1024, 512
_SPREAD_WARPS = 8  #: each of which has a slab of the block
_GATHERED = 64  #: chunks of a row that its one program adds up itself
_READ_BY_ALL = 2048  #: longest rows that every program may read


def cut(R: int, n: int, block: int, programs: int = _PROGRAMS) -> tuple[int, int]:
    """How many chunks a row is cut into, and how many blocks each of them has."""
    blocks = triton.cdiv(n, block)
    tiles = triton.cdiv(blocks, min(blocks, max(1, programs // R)))
    return triton.cdiv(blocks, tiles), tiles


def _most(chunks: int) -> int:
    """Room for so many chunks or more, of few sizes: a kernel is compiled for each."""
    return 16 if chunks <= 16 else 128 if chunks <= 128 else 1024


def forward(launch: Recorder, given: Given, last: Tensor, out: Tensor, error: Tensor) -> None:
    """``pull`` for targets given by a rule."""
    x, a, (R, n) = given.x, given.a, given.x.shape
    K, KP, HI, CELLS, UP = sizes = sizes_of(given.y)
    of_state = given.state, given.size, given.before
    kind = {"SQUASH": given.code, "WEIGHTED": given.weighted}
    read_by_all = n <= _READ_BY_ALL
    stats, M = None, None
    if not read_by_all:
        M, tiles = cut(R, n, _MOMENTS_BLOCK)
        stats = launch.empty(R * M * 8, dtype=torch.float64)
        launch(
            moments, R * M, *strided(x), *strided(a), given.y, row_stride(given.y), K, stats, n, tiles, M,
            **kind, RULE=True, BLOCK=_MOMENTS_BLOCK,
        )  # fmt: skip
    G, tiles = _cut_to_spread(R, n, UP)
    width = UP * (1 + given.weighted)
    chunks = _until_written(None if given.weighted else out, launch, R, G * width)
    launch(
        spread, R * G, *strided(x), *strided(a), stats, M, *of_state, *chunks, n, tiles, G,
        **kind, HI=HI, GP=_most(M or 1), BLOCK=_SPREAD_BLOCK, SLABS=_SPREAD_WARPS,
        ROW_SIZE=triton.next_power_of_2(n) if read_by_all else 0, num_warps=_SPREAD_WARPS,
    )  # fmt: skip
    chunks, G = _gathered(launch, chunks, R, G, width)
    matrix = launch.constant(to_nodes(x.device))
    scratch = _until_written(out, launch, R, UP + given.weighted * sizes.nodes)
    launch(
        solve, R,
        *chunks, G, matrix, *given.targets, last, row_stride(last), given.eps, given.eps_rows, *of_state, error,
        *scratch, *((*strided(x), out, n) if read_by_all else [None] * 5),
        K=K, KP=KP, CELLS=CELLS, UP=UP, WEIGHTED=given.weighted, EPS_ROWS=given.by_row, **sizes.tiles,
        SQUASH=given.code if read_by_all else 0, READ=_READ_BLOCK if read_by_all else 0,
    )  # fmt: skip
    if not read_by_all:
        blocks = triton.cdiv(n, _READ_BLOCK)
        launch(
            grid.read, R * blocks,
            *strided(x), *of_state, out, n, blocks, KP=KP, CELLS=CELLS, SQUASH=given.code, BLOCK=_READ_BLOCK,
        )  # fmt: skip


def backward(launch: Recorder, given: Given, w: Tensor, out: Tensor) -> Tensor:
    """``pull_backward``. What is given back of long rows begins, for every row, with a counter that is 0."""
    x, a, (R, n) = given.x, given.a, given.x.shape
    K, KP, HI, CELLS, UP = sizes = sizes_of(given.y)
    of_state, of_eps = (given.state, given.size, given.before), (given.eps, given.eps_rows)
    G, tiles = _cut_to_spread(R, n, UP)
    chunks = _until_written(out, launch, R, G * UP)
    launch(
        spread_cotangents, R * G, *strided(x), *strided(w), *of_state, *chunks, n, tiles, G,
        SQUASH=given.code, HI=HI, BLOCK=_SPREAD_BLOCK, SLABS=_SPREAD_WARPS, num_warps=_SPREAD_WARPS,
    )  # fmt: skip
    chunks, G = _gathered(launch, chunks, R, G, UP)
    matrix = launch.constant(to_nodes(x.device))
    of_values = *strided(x), *strided(a), *strided(w)
    read_by_all = n <= _READ_BY_ALL
    if read_by_all and _READ_BLOCK >= UP:
        scratch, scratch_row = _until_written(out, launch, R, UP + sizes.nodes)
    else:  # others read the table while they write
        scratch, scratch_row = launch.empty(R * 2 * UP, dtype=torch.float32), 2 * UP
    launch(
        solve_backward, R, *chunks, G, matrix, *given.targets, *of_eps, *of_state, scratch, scratch_row,
        *((*of_values, out, n) if read_by_all else [None] * 11),
        K=K, KP=KP, CELLS=CELLS, UP=UP, EPS_ROWS=given.by_row, **sizes.tiles,
        SQUASH=given.code if read_by_all else 0, WEIGHTED=read_by_all and given.weighted,
        READ=_READ_BLOCK if read_by_all else 0,
    )  # fmt: skip
    if read_by_all:
        return scratch
    kind = {"SQUASH": given.code, "WEIGHTED": given.weighted, "EPS_ROWS": given.by_row}
    G, tiles = cut(R, n, _SUM_BLOCK)
    sums = launch.empty(R * G * 2, dtype=torch.float64)
    if given.code:
        launch(
            grid.sum_back, R * G,
            *of_values, *of_state, scratch, sums, *of_eps, n, tiles, G,
            KP=KP, CELLS=CELLS, UP=UP, **kind, BLOCK=_SUM_BLOCK,
        )  # fmt: skip
    blocks = triton.cdiv(n, _READ_BLOCK)
    launch(
        grid.read_back, R * blocks,
        *of_values, *of_state, scratch, sums, *of_eps, out, n, blocks, G,
        KP=KP, CELLS=CELLS, UP=UP, GP=_most(G), **kind, BLOCK=_READ_BLOCK,
    )  # fmt: skip
    return scratch[UP:]


def _cut_to_spread(R: int, n: int, UP: int) -> tuple[int, int]:
    """``cut``, so that all moments of a row that is not long are at most as many as its values."""
    return cut(R, n, _SPREAD_BLOCK, min(_PROGRAMS, R * max(1, n // UP)) if n <= _READ_BY_ALL else _PROGRAMS)


def _until_written(result: Tensor | None, launch: Recorder, R: int, singles: int) -> tuple[Tensor, int]:
    """Room for so many numbers of each row, and how far apart rows are: where the result will stand, if they fit."""
    if result is not None and result.dtype == torch.float32 and result.shape[1] >= singles:
        return result, result.shape[1]
    return launch.empty(R * singles, dtype=torch.float32), singles


def _gathered(
    launch: Recorder, chunks: tuple[Tensor, int], R: int, G: int, width: int
) -> tuple[tuple[Tensor, int], int]:
    """What the chunks of each row have left, and how many that are: one, if there were many."""
    if G <= _GATHERED:
        return chunks, G
    over_programs = launch.empty(R * width, dtype=torch.float32)
    launch(gather, R * programs_to_gather(width), *chunks, over_programs, G, WIDTH=width, BLOCK=128)
    return (over_programs, width), 1
