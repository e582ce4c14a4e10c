"""Long rows in Triton: a handful of launches, whatever the length; see ``asks`` for what is computed.

Many targets (the nodes of a rule) go by way of a grid, ``triton_long_grid``; up to four targets one by one,
``triton_long_few``. Nothing here looks at a value, so a CUDA graph can record it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from . import triton_long_few as few
from . import triton_long_few_back as few_back
from . import triton_long_few_chunks as chunks
from . import triton_long_grid as grid
from . import triton_long_solve as small
from .asks import Answer, Ask
from .triton_launch import Recorder, again, launches
from .triton_long_few_start import ROUNDS, THRESHOLDS
from .triton_long_maths import CODES, moments

FINAL = False

_MOST_NODES = 128
_FEW = 4
_PROGRAMS = 528  #: chunks that all rows together are cut into: four for each multiprocessor of a large GPU
_MOMENTS_BLOCK, _SPREAD_BLOCK, _COUNT_BLOCK, _READ_BLOCK = 2048, 256, 256, 1024
_SPREAD_WARPS, _SOLVE_WARPS = 4, 8
_STEPS = 24  #: of Newton's method; six are ordinary
_WHOLE = 32768  #: longest rows that one program works on, if targets are few
_FEW_PROGRAMS = 132  #: chunks of all rows, if targets are few: every program adds up what all of a row left
_FEW_BLOCK = 1024
_PASSES = 9  #: over a row that is cut into chunks; five are ordinary
_HEAD = grid.HEAD.value
_LO = grid.LO.value


def unable(ask: Ask) -> str | None:
    K = ask.y.shape[-1]
    if ask.m is None and K > _FEW:
        return f"long rows take at most {_FEW} targets one by one, and there are {K}"
    if K > _MOST_NODES:
        return f"its kernels take at most {_MOST_NODES} nodes, and there are {K}"
    return None


class _Sizes(NamedTuple):
    K: int
    KP: int  #: K, padded
    CELLS: int  #: of the grid
    UP: int  #: nodes, padded
    BU: int  #: nodes at a time

    @property
    def state(self) -> int:
        return _HEAD + 2 * self.KP + 3 * self.UP


def _sizes(ask: Ask) -> _Sizes:
    """A rule of K nodes is made for functions as smooth as 3/K; a grid of 3 K cells and eight points is as good."""
    K = ask.y.shape[-1]
    HI, BU = (16, 64) if K <= 48 else (32, 32)
    return _Sizes(K, max(16, triton.next_power_of_2(K)), _LO * HI, triton.next_power_of_2(_LO * HI + 7), BU)


def _cut(R: int, n: int, block: int, programs: int = _PROGRAMS) -> tuple[int, int]:
    """How many chunks a row is cut into, and how many blocks each of them has."""
    blocks = triton.cdiv(n, block)
    tiles = triton.cdiv(blocks, min(blocks, max(1, programs // R)))
    return triton.cdiv(blocks, tiles), tiles


def _row_stride(t: Tensor) -> int:
    return 0 if len(t) == 1 else t.stride(0)


def _of_eps(ask: Ask) -> tuple[float, Tensor, bool]:
    """As a number, as rows, and which of the two it is."""
    return (0.0, ask.eps, True) if isinstance(ask.eps, Tensor) else (float(ask.eps), ask.y, False)


def _strided(t: Tensor) -> tuple[Tensor, int, int]:
    return t, t.stride(0), t.stride(1)


def state_layout(ask: Ask) -> tuple[int, torch.dtype]:
    return (few.STATE.value, torch.float64) if ask.m is None else (_sizes(ask).state, torch.float32)


def pull(ask: Ask, phi: Tensor) -> Answer:
    return _few(ask, phi) if ask.m is None else _pull_by_grid(ask, phi)


def pull_backward(ask: Ask, phi: Tensor, state: Tensor, w: Tensor) -> Tensor:
    return _few_backward(ask, phi, state, w) if ask.m is None else _pull_back_by_grid(ask, phi, state, w)


def push(ask: Ask) -> Answer:
    return _few(ask, None)


def push_backward(ask: Ask, state: Tensor, c: Tensor) -> Tensor:
    return _few_backward(ask, c, state, None)


def _what(ask: Ask, *others: bool) -> tuple[int | bool, ...]:
    """All that launches depend on and that is not the layout of a tensor."""
    return CODES[ask.squash], ask.a is not None, isinstance(ask.eps, Tensor), *others


def _pull_by_grid(ask: Ask, phi: Tensor) -> Answer:
    made = again(ask.known, "grid", ask.x)
    if made is not None:
        return Answer(*made)
    x, n, R = ask.x, ask.x.shape[1], len(ask.x)
    K, KP, CELLS, UP, BU = sizes = _sizes(ask)
    HI = CELLS // _LO
    a, last = x if ask.a is None else ask.a, ask.y if ask.last is None else ask.last
    eps, eps_rows, by_row = _of_eps(ask)
    state = x.new_empty(R, sizes.state, dtype=torch.float32)
    error = x.new_empty(R, dtype=torch.float32)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)

    def make(launch: Recorder) -> None:
        code, weighted = CODES[ask.squash], ask.a is not None
        of_x, of_a = _strided(x), _strided(a)
        y_row, b_row = _row_stride(ask.y), _row_stride(ask.b)
        G, tiles = _cut(R, n, _MOMENTS_BLOCK)
        GP = triton.next_power_of_2(G)
        stats = launch.empty(R * G * 8, dtype=torch.float64)
        launch(
            moments, R * G, *of_x, *of_a, ask.y, y_row, K, stats, n, tiles, G,
            SQUASH=code, WEIGHTED=weighted, RULE=True, BLOCK=_MOMENTS_BLOCK,
        )  # fmt: skip
        # Both kernels see the same partial moments; masses are cut in as many chunks, of the same values.
        room = launch.empty(R * G * 16 * HI, dtype=torch.float32)
        masses = launch.empty(R * G * UP * (1 + weighted), dtype=torch.float32)
        launch(
            grid.spread, R * G,
            *of_x, *of_a, stats, room, masses, n, tiles * (_MOMENTS_BLOCK // _SPREAD_BLOCK), G,
            SQUASH=code, WEIGHTED=weighted, HI=HI, UP=UP, GP=GP, BLOCK=_SPREAD_BLOCK, num_warps=_SPREAD_WARPS,
        )  # fmt: skip
        scratch = launch.empty(R * 3 * UP, dtype=torch.float32)
        launch(
            small.solve, R,
            stats, masses, ask.y, y_row, ask.b, b_row, phi, _row_stride(phi), last, _row_stride(last), eps, eps_rows,
            state, error, scratch, G, _STEPS,
            K=K, KP=KP, CELLS=CELLS, UP=UP, BU=BU, GP=GP, GB=min(16, GP), SQUASH=code, WEIGHTED=weighted,
            EPS_ROWS=by_row, num_warps=_SOLVE_WARPS,
        )  # fmt: skip
        blocks = triton.cdiv(n, _READ_BLOCK)
        launch(
            grid.read, R * blocks,
            *of_x, state, sizes.state, out, n, blocks, KP=KP, CELLS=CELLS, SQUASH=code, BLOCK=_READ_BLOCK,
        )  # fmt: skip

    given = x, a, ask.y, ask.b, phi, last, eps_rows
    what = ("grid", *_what(ask, ask.last is None))
    launches(what, given, (out, state, error), eps, make, ask.known, (x,))
    return Answer(out, state, error)


def _pull_back_by_grid(ask: Ask, phi: Tensor, state: Tensor, w: Tensor) -> Tensor:
    made = again(ask.known, "grid back", ask.x, state, w)
    if made is not None:
        return made[0]
    x, n, R = ask.x, ask.x.shape[1], len(ask.x)
    K, KP, CELLS, UP, BU = sizes = _sizes(ask)
    HI = CELLS // _LO
    a = x if ask.a is None else ask.a
    eps, eps_rows, by_row = _of_eps(ask)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)

    def make(launch: Recorder) -> None:
        code, weighted = CODES[ask.squash], ask.a is not None
        of_x, of_a, of_w = _strided(x), _strided(a), _strided(w)
        G, tiles = _cut(R, n, _READ_BLOCK)
        GP = triton.next_power_of_2(G)
        room = launch.empty(R * G * 16 * HI, dtype=torch.float32)
        masses = launch.empty(R * G * UP, dtype=torch.float32)
        launch(
            grid.spread_cotangents, R * G,
            *of_x, *of_w, state, sizes.state, room, masses, n, tiles * (_READ_BLOCK // _SPREAD_BLOCK), G,
            SQUASH=code, HI=HI, UP=UP, BLOCK=_SPREAD_BLOCK, num_warps=_SPREAD_WARPS,
        )  # fmt: skip
        scratch = launch.empty(R * 2 * UP, dtype=torch.float32)
        launch(
            small.solve_backward, R,
            masses, ask.y, _row_stride(ask.y), ask.b, _row_stride(ask.b), phi, _row_stride(phi), eps, eps_rows, state,
            scratch, G, K=K, KP=KP, CELLS=CELLS, UP=UP, BU=BU, GB=min(16, GP), SQUASH=code, EPS_ROWS=by_row,
            num_warps=_SOLVE_WARPS,
        )  # fmt: skip
        sums = launch.empty(R * G * 2, dtype=torch.float64)
        if code:
            launch(
                grid.sum_back, R * G,
                *of_x, *of_a, *of_w, state, scratch, sums, eps, eps_rows, n, tiles, G,
                KP=KP, CELLS=CELLS, UP=UP, SQUASH=code, WEIGHTED=weighted, EPS_ROWS=by_row, BLOCK=_READ_BLOCK,
            )  # fmt: skip
        blocks = triton.cdiv(n, _READ_BLOCK)
        launch(
            grid.read_back, R * blocks,
            *of_x, *of_a, *of_w, state, scratch, sums, eps, eps_rows, out, n, blocks, G,
            KP=KP, CELLS=CELLS, UP=UP, GP=GP, SQUASH=code, WEIGHTED=weighted, EPS_ROWS=by_row, BLOCK=_READ_BLOCK,
        )  # fmt: skip

    given = x, a, ask.y, ask.b, phi, eps_rows, state, w
    launches(("grid back", *_what(ask)), given, (out,), eps, make, ask.known, (x, state, w))
    return out


def _few(ask: Ask, phi: Tensor | None) -> Answer:
    """Onto two to four targets: averages of phi over them, or of x in each of them."""
    made = again(ask.known, "few", ask.x)
    if made is not None:
        return Answer(*made)
    x, n, R, K = ask.x, ask.x.shape[1], len(ask.x), ask.y.shape[-1]
    push_, a, levels = phi is None, x if ask.a is None else ask.a, ask.y if phi is None else phi
    eps, eps_rows, _ = _of_eps(ask)
    state = x.new_empty(R, few.STATE.value, dtype=torch.float64)
    error = x.new_empty(R, dtype=torch.float32)
    if push_:
        out = x.new_empty(R, K, dtype=torch.float32)
    else:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)

    def make(launch: Recorder) -> None:
        of_x, of_a = _strided(x), _strided(a)
        of_targets = ask.y, _row_stride(ask.y), ask.b, _row_stride(ask.b)
        of_phi, of_eps = (levels, _row_stride(levels)), (eps, eps_rows)
        (code, weighted, by_row), KP = _what(ask), 2 if K <= 2 else 4
        if n <= _WHOLE:
            launch(
                few.whole, R,
                *of_x, *of_a, *of_targets, *of_phi, *of_eps, out, state, error, n, triton.cdiv(n, _FEW_BLOCK), _STEPS,
                K=K, KP=KP, SQUASH=code, WEIGHTED=weighted, EPS_ROWS=by_row, PUSH=push_, BLOCK=_FEW_BLOCK, num_warps=8,
            )  # fmt: skip
            return
        G, tiles = _cut(R, n, _MOMENTS_BLOCK, _FEW_PROGRAMS)
        GP = triton.next_power_of_2(G)
        stats = launch.empty(R * G * 8, dtype=torch.float64)
        launch(
            moments, R * G, *of_x, *of_a, *of_targets[:2], K, stats, n, tiles, G,
            SQUASH=code, WEIGHTED=weighted, RULE=False, BLOCK=_MOMENTS_BLOCK,
        )  # fmt: skip
        rounds, lines = ROUNDS.value, (2 if K <= 2 else 4 if K == 3 else 8) * THRESHOLDS.value
        brackets = launch.empty(rounds, R * 16, dtype=torch.float64)
        counts = launch.empty(2, R * G * lines, dtype=torch.float64)
        for i in range(rounds):
            launch(
                chunks.narrow, R * G,
                *of_x, *of_a, stats, *of_targets[2:], brackets[i - 1], brackets[i], counts[1 - i % 2], counts[i % 2],
                n, tiles * (_MOMENTS_BLOCK // _COUNT_BLOCK), G, 16 * (i == 0),
                K=K, KP=KP, GP=GP, SQUASH=code, WEIGHTED=weighted, BLOCK=_COUNT_BLOCK, num_warps=8,
            )  # fmt: skip
        carry = launch.empty(_PASSES + 1, R * chunks.CARRY.value, dtype=torch.float64)
        launch(
            chunks.begin, R,
            stats, brackets[rounds - 1], counts[1 - rounds % 2], *of_targets, *of_eps, carry, G,
            K=K, KP=KP, GP=GP, SQUASH=code, EPS_ROWS=by_row,
        )  # fmt: skip
        sums = launch.empty(2, R * G * chunks.CHUNK.value, dtype=torch.float64)
        for i in range(_PASSES):
            launch(
                chunks.step, R * G,
                *of_x, *of_a, stats, *of_targets, *of_eps, carry[i], carry[i + 1], sums[1 - i % 2], sums[i % 2],
                n, tiles * (_MOMENTS_BLOCK // _FEW_BLOCK), G, 16 * (i == 0), K=K, KP=KP, GP=GP, SQUASH=code,
                WEIGHTED=weighted, EPS_ROWS=by_row, PUSH=push_, BLOCK=_FEW_BLOCK, num_warps=8,
            )  # fmt: skip
        launch(
            chunks.end, R if push_ else R * G,
            *of_x, stats, *of_targets, *of_phi, *of_eps, carry[_PASSES], sums[(_PASSES - 1) % 2], out, state, error,
            n, tiles * (_MOMENTS_BLOCK // _FEW_BLOCK), G,
            K=K, KP=KP, GP=GP, SQUASH=code, EPS_ROWS=by_row, PUSH=push_, BLOCK=_FEW_BLOCK, num_warps=8,
        )  # fmt: skip

    given = x, a, ask.y, ask.b, levels, eps_rows
    launches(("few", *_what(ask, push_)), given, (out, state, error), eps, make, ask.known, (x,))
    return Answer(out, state, error)


def _few_backward(ask: Ask, phi: Tensor, state: Tensor, w: Tensor | None) -> Tensor:
    """The cotangent of x: from w (R, n), or for push from ``phi``, the cotangent (R, K) of the averages."""
    phi = phi.contiguous()
    changing = ask.x, state, phi if w is None else w
    made = again(ask.known, "few back", *changing)
    if made is not None:
        return made[0]
    x, n, R, K = ask.x, ask.x.shape[1], len(ask.x), ask.y.shape[-1]
    push_, a, pulls = w is None, x if ask.a is None else ask.a, x if w is None else w
    eps, eps_rows, _ = _of_eps(ask)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)

    def make(launch: Recorder) -> None:
        arguments = (
            *_strided(x), *_strided(a), *_strided(pulls), ask.y, _row_stride(ask.y), ask.b, _row_stride(ask.b),
            phi, _row_stride(phi), eps, eps_rows, state,
        )  # fmt: skip
        (code, weighted, by_row), KP = _what(ask), 2 if K <= 2 else 4
        if n <= _WHOLE:
            launch(
                few_back.whole_back, R,
                *arguments, out, n, triton.cdiv(n, _FEW_BLOCK),
                K=K, KP=KP, SQUASH=code, WEIGHTED=weighted, EPS_ROWS=by_row, PUSH=push_, BLOCK=_FEW_BLOCK, num_warps=8,
            )  # fmt: skip
            return
        G, tiles = _cut(R, n, _FEW_BLOCK, _FEW_PROGRAMS)
        sums = launch.empty(R * G * few_back.BACK.value, dtype=torch.float64)
        launch(
            few_back.chunk_sums, R * G,
            *arguments, sums, n, tiles, G,
            K=K, KP=KP, SQUASH=code, WEIGHTED=weighted, EPS_ROWS=by_row, PUSH=push_, BLOCK=_FEW_BLOCK, num_warps=8,
        )  # fmt: skip
        launch(
            few_back.chunk_write, R * G,
            *arguments, sums, out, n, tiles, G, K=K, KP=KP, GP=triton.next_power_of_2(G),
            SQUASH=code, WEIGHTED=weighted, EPS_ROWS=by_row, PUSH=push_, BLOCK=_FEW_BLOCK, num_warps=8,
        )  # fmt: skip

    given = x, a, ask.y, ask.b, phi, eps_rows, state, pulls
    launches(("few back", *_what(ask, push_)), given, (out,), eps, make, ask.known, changing)
    return out
