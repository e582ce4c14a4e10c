"""The launches of rows onto many targets by way of a grid: how rows are cut, and which kernels run after each other.

They serve long rows (``long``), and rows that fit a thread block but whose plans do not fit into registers
(``rows``). Of the latter any program reads all values in no time, and what counts is the time that the host
needs for a launch: so they have two launches each way, which do what takes long rows four.

What kernels hand to each other stands where the answers will, wherever that is possible: a call with its gradient takes
at most four times the memory of its values, if they are 1000 or more, answers and gradient included.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..engine import tables as grid
from ..engine.launch import Recorder
from ..engine.maths import moments
from .nodes import gather, programs_to_gather
from .solve import solve
from .solve_backward import solve_backward
from .spread import LO, spread, spread_cotangents, to_nodes

MOST_NODES = 128  #: of a rule
_PROGRAMS = 528  #: chunks that all rows together are cut into: four for each multiprocessor of a large GPU
_MOMENTS_BLOCK, _SPREAD_BLOCK, _READ_BLOCK, _SUM_BLOCK = 2048, 512, 1024, 512
_SPREAD_WARPS = 8  #: each of which has a slab of the block
_GATHERED = 64  #: chunks of a row that its one program adds up itself
_WHOLE = 2048  #: longest rows that every program may read
_HEAD: int = grid.HEAD.value
_LO: int = LO.value


class Sizes(NamedTuple):
    K: int
    KP: int  #: K, padded
    HI: int
    CELLS: int  #: of the grid
    UP: int  #: nodes, padded: 16 HI

    @property
    def state(self) -> int:
        """Singles of the state of a row: a multiple of 16."""
        return self.before_tables + 3 * self.UP

    @property
    def before_tables(self) -> int:
        """Those of them that are facts and potentials: a multiple of 16."""
        return _HEAD + 2 * self.KP

    @property
    def nodes(self) -> int:
        return self.CELLS + 7

    @property
    def tiles(self) -> dict[str, int]:
        """How the small problem is shared among threads, and how many warps: a thread holds at most 80 pairs."""
        warps, lanes, lanes_of_all = (4 if self.HI == 16 else 8), 16, 8
        nodes = 32 // lanes * warps
        coarse = 64 if self.HI == 16 else 128  # and 32 more: those that a mass can reach
        return {
            "KB": lanes, "X": nodes, "V": coarse // nodes, "VT": 32 // nodes,
            "KF": lanes_of_all, "XF": 32 // lanes_of_all * warps, "num_warps": warps,
        }  # fmt: skip


def sizes_of(y: Tensor) -> Sizes:
    """A rule of K nodes is made for functions as smooth as 3/K; a grid of 3 K cells and eight points is as good."""
    K = y.shape[-1]
    HI = 16 if K <= 48 else 32
    return Sizes(K, max(16, triton.next_power_of_2(K)), HI, _LO * HI, triton.next_power_of_2(_LO * HI + 7))


class Given(NamedTuple):
    """What kernels are given, and what they depend on. Rows of states are ``size`` singles apart, after ``before``."""

    x: Tensor
    a: Tensor  #: or anything, if not ``weighted``
    y: Tensor
    b: Tensor
    phi: Tensor
    eps: float
    eps_rows: Tensor  #: or anything, if not ``by_row``
    code: int
    weighted: bool
    by_row: bool
    state: Tensor
    size: int
    before: int

    @property
    def targets(self) -> tuple[Tensor | int, ...]:
        return self.y, row_stride(self.y), self.b, row_stride(self.b), self.phi, row_stride(self.phi)


def cut(R: int, n: int, block: int, programs: int = _PROGRAMS) -> tuple[int, int]:
    """How many chunks a row is cut into, and how many blocks each of them has."""
    blocks = triton.cdiv(n, block)
    tiles = triton.cdiv(blocks, min(blocks, max(1, programs // R)))
    return triton.cdiv(blocks, tiles), tiles


def _most(chunks: int) -> int:
    """Room for so many chunks or more, of few sizes: a kernel is compiled for each."""
    return 16 if chunks <= 16 else 128 if chunks <= 128 else 1024


def row_stride(t: Tensor) -> int:
    return 0 if len(t) == 1 else t.stride(0)


def strided(t: Tensor) -> tuple[Tensor, int, int]:
    return t, t.stride(0), t.stride(1)


def forward(launch: Recorder, given: Given, last: Tensor, out: Tensor, error: Tensor) -> None:
    """``pull`` for targets given by a rule."""
    x, a, (R, n) = given.x, given.a, given.x.shape
    K, KP, HI, CELLS, UP = sizes = sizes_of(given.y)
    of_state = given.state, given.size, given.before
    kind = {"SQUASH": given.code, "WEIGHTED": given.weighted}
    whole = n <= _WHOLE
    stats, M = None, None
    if not whole:
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
        WHOLE=triton.next_power_of_2(n) if whole else 0, num_warps=_SPREAD_WARPS,
    )  # fmt: skip
    chunks, G = _gathered(launch, chunks, R, G, width)
    matrix = launch.constant(to_nodes(x.device))
    scratch = _until_written(out, launch, R, UP + given.weighted * sizes.nodes)
    launch(
        solve, R,
        *chunks, G, matrix, *given.targets, last, row_stride(last), given.eps, given.eps_rows, *of_state, error,
        *scratch, *((*strided(x), out, n) if whole else [None] * 5),
        K=K, KP=KP, CELLS=CELLS, UP=UP, WEIGHTED=given.weighted, EPS_ROWS=given.by_row, **sizes.tiles,
        SQUASH=given.code if whole else 0, READ=_READ_BLOCK if whole else 0,
    )  # fmt: skip
    if not whole:
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
    whole = n <= _WHOLE
    if whole and _READ_BLOCK >= UP:
        scratch, scratch_row = _until_written(out, launch, R, UP + sizes.nodes)
    else:  # others read the table while they write
        scratch, scratch_row = launch.empty(R * 2 * UP, dtype=torch.float32), 2 * UP
    launch(
        solve_backward, R, *chunks, G, matrix, *given.targets, *of_eps, *of_state, scratch, scratch_row,
        *((*of_values, out, n) if whole else [None] * 11),
        K=K, KP=KP, CELLS=CELLS, UP=UP, EPS_ROWS=given.by_row, **sizes.tiles,
        SQUASH=given.code if whole else 0, WEIGHTED=whole and given.weighted, READ=_READ_BLOCK if whole else 0,
    )  # fmt: skip
    if whole:
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
    return cut(R, n, _SPREAD_BLOCK, min(_PROGRAMS, R * max(1, n // UP)) if n <= _WHOLE else _PROGRAMS)


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
