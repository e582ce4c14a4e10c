"""Long rows in Triton: a handful of launches, whatever the length; see ``contract`` for what is computed.

Many targets (the nodes of a rule) go by way of a grid, ``grid.rows``; up to four targets one by one,
``thresholds``. Nothing here looks at a value, so a CUDA graph can record it.

Rows onto few targets go three ways. Up to ``_ONE_PROGRAM`` values one program has a row. Longer ones are shared by
programs that wait for each other, in one launch. Where these cannot be launched, or there are so many values that
neither their places nor single precision would do, a row is cut into chunks, and every pass over it is a launch.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..contract import Answer, Request, if_differentiated
from .engine.given import Given, row_stride, sizes_of, strided
from .engine.launch import AT_ONCE, Recorder, launches, replayed
from .engine.maths import CODES, moments
from .exact import pieces_launch as exact_pieces
from .grid import rows as by_grid
from .grid.rows import cut
from .thresholds import backward as thresholds_backward
from .thresholds import chunks, exchange, passes
from .thresholds.several import several
from .thresholds.start import ROUNDS, THRESHOLDS
from .thresholds.two import two

_MOMENTS_BLOCK, _COUNT_BLOCK = 2048, 256
_ONE_PROGRAM = 32768  #: longest rows that one program works on, if targets are few
#: Longest rows of these that stay in registers, and how many values of longer ones are worked on at a time.
_MOST_IN_REGISTERS, _TILE = 2048, 2048
_SHARED_TILE, _SHARED_WARPS = 2048, 16  #: of those that several programs share
#: Most values of all such rows, since their places are written down, and of one program, since it adds up singles.
_MOST_SHARED, _MOST_OF_ONE_PROGRAM = 1 << 24, 1 << 20
_CHUNKS = 132  #: chunks of all rows, if targets are few: every program adds up what all of a row left
_CHUNK_BLOCK = 1024
#: Least eps at which gradients of averages are computed in single precision, if values are squashed.
_LEAST_EPS_OF_SINGLES = 2e-3
_PASSES = 9  #: over a row that is cut into chunks; five are ordinary


def unable(_request: Request) -> str | None:
    return None


def _of_eps(request: Request) -> tuple[float, Tensor, bool]:
    """As a number, as rows, and which of the two it is."""
    return (0.0, request.eps, True) if isinstance(request.eps, Tensor) else (float(request.eps), request.y, False)


def weightless(_request: Request) -> bool:
    return False


def rejects_by_nan(request: Request) -> bool:
    """Whether every row is answered: many targets by a last launch, few where one program takes all steps it needs.

    Squashed values are all within the range of the targets, and panels of nodes suffice for any of them. Others may be
    as far apart as they like, and need as many panels as they like: somebody has to look whether there were enough.
    """
    if request.m is None:
        return request.x.shape[-1] <= _ONE_PROGRAM or _cut_among_programs(request.x) is not None
    return request.squash is not None and AT_ONCE


def state_layout(request: Request) -> tuple[int, torch.dtype]:
    if request.m is None:
        return passes.STATE.value, torch.float64
    return (sizes_of(request.y).state + exact_pieces.state_behind(request.y)) // 2, torch.float64


def pull(request: Request, phi: Tensor) -> Answer:
    return _by_thresholds(request, phi) if request.m is None else _pull_by_grid(request, phi)


def pull_backward(request: Request, phi: Tensor, state: Tensor, w: Tensor) -> Tensor:
    return (
        _by_thresholds_backward(request, phi, state, w)
        if request.m is None
        else _pull_back_by_grid(request, phi, state, w)
    )


def push(request: Request) -> Answer:
    return _by_thresholds(request, None)


def push_backward(request: Request, state: Tensor, c: Tensor) -> Tensor:
    return _by_thresholds_backward(request, c, state, None)


def _launch_key(request: Request, *others: bool) -> tuple[int | bool, ...]:
    """All that launches depend on and that is not the layout of a tensor."""
    return CODES[request.squash], request.a is not None, isinstance(request.eps, Tensor), *others


def _targets(request: Request) -> int:
    """How many the nodes of a rule stand for."""
    return request.y.shape[-1] if request.m is None else request.m


def _pull_by_grid(request: Request, phi: Tensor) -> Answer:
    made = replayed(request.prepared, "grid", request.x)
    if made is not None:
        return Answer(*made)
    x = request.x
    columns, dtype = state_layout(request)
    last = request.y if request.last is None else request.last
    state = x.new_empty(len(x), columns, dtype=dtype)
    error = x.new_empty(len(x), dtype=torch.float32)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    given = _given_to_grid(request, phi, state)

    def make(launch: Recorder) -> None:
        by_grid.forward(launch, given, last, out, error)
        if AT_ONCE:
            exact_pieces.forward(launch, given, _targets(request), out, error)

    tensors = x, given.a, request.y, request.b, phi, last, given.eps_rows
    launches(
        ("grid", request.m, *_launch_key(request)), tensors, (out, state, error), given.eps, make, request.prepared,
        (x,),
        if_differentiated(
            lambda: _pull_back_by_grid(request._replace(prepared=None), phi, state, torch.empty_like(out))
        ),
    )  # fmt: skip
    return Answer(out, state, error)


def _pull_back_by_grid(request: Request, phi: Tensor, state: Tensor, w: Tensor) -> Tensor:
    made = replayed(request.prepared, "grid back", request.x, state, w)
    if made is not None:
        return made[0]
    x = request.x
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    given = _given_to_grid(request, phi, state)

    def make(launch: Recorder) -> None:
        counters = by_grid.backward(launch, given, w, out)
        if AT_ONCE:
            exact_pieces.backward(launch, given, _targets(request), w, counters, out)

    tensors = x, given.a, request.y, request.b, phi, given.eps_rows, state, w
    launches(
        ("grid back", request.m, *_launch_key(request)),
        tensors,
        (out,),
        given.eps,
        make,
        request.prepared,
        (x, state, w),
    )
    return out


def _given_to_grid(request: Request, phi: Tensor, state: Tensor) -> Given:
    code, weighted, by_row = _launch_key(request)
    eps, eps_rows, _ = _of_eps(request)
    a = request.x if request.a is None else request.a
    size = 2 * state.shape[1]
    return Given(
        request.x, a, request.y, request.b, phi, eps, eps_rows, code, bool(weighted), bool(by_row), state, size, 0
    )


def _tile_of(n: int) -> tuple[int, int]:
    """Values of a row that are worked on at once, all of them if they fit into registers, and warps that do so."""
    if n > _MOST_IN_REGISTERS:
        return _TILE, 8
    block = max(triton.next_power_of_2(n), 32)
    return block, 8 if block > 1024 else min(max(block // 128, 1), 4)


def _cut_among_programs(x: Tensor) -> tuple[int, int] | None:
    """How many programs share a long row, and how many values each of them has; None if they cannot.

    All programs of all rows run at once. Parts begin where memory is read in one piece.
    """
    R, n = x.shape
    each = -(-n // max(exact_pieces.programs_of(x.device) // max(R, 1), 1))
    each = -(-each // 64) * 64
    return (-(-n // each), each) if AT_ONCE and R * n <= _MOST_SHARED and each <= _MOST_OF_ONE_PROGRAM else None


def _room(x: Tensor) -> int:
    """For as many programs as may share a row: one kernel for any number of rows."""
    return triton.next_power_of_2(exact_pieces.programs_of(x.device))


def _by_thresholds(request: Request, phi: Tensor | None) -> Answer:
    """Onto two to four targets: averages of phi over them, or of x in each of them."""
    made = replayed(request.prepared, "thresholds", request.x)
    if made is not None:
        return Answer(*made)
    x, n, R, K = request.x, request.x.shape[1], len(request.x), request.y.shape[-1]
    push_, a, levels = phi is None, x if request.a is None else request.a, request.y if phi is None else phi
    eps, eps_rows, _ = _of_eps(request)
    state = x.new_empty(R, passes.STATE.value, dtype=torch.float64)
    error = x.new_empty(R, dtype=torch.float32)
    if push_:
        out = x.new_empty(R, K, dtype=torch.float32)
    else:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)

    def make(launch: Recorder) -> None:
        of_x, of_a = strided(x), strided(a)
        of_targets = request.y, row_stride(request.y), request.b, row_stride(request.b)
        of_phi, of_eps = (levels, row_stride(levels)), (eps, eps_rows)
        (code, weighted, by_row), KP = _launch_key(request), 2 if K <= 2 else 4
        shared = (1, n) if n <= _ONE_PROGRAM else _cut_among_programs(x)
        if shared is not None:
            (G, each), (block, warps) = shared, _tile_of(n) if n <= _ONE_PROGRAM else (_SHARED_TILE, _SHARED_WARPS)
            places = state if n <= block else launch.empty(R * n, dtype=torch.float64)
            lines, counters = state, state
            if G > 1:
                lines = launch.empty(R * G * exchange.LINES.value * exchange.LINE.value, dtype=torch.float64)
                counters = launch.counters(R * exchange.COUNTERS.value)
            (launch.at_once if G > 1 else launch)(
                two if K <= 2 else several, R * G,
                *of_x, *of_a, *of_targets, *of_phi, *of_eps, out, state, error, places, lines, counters, n, each,
                triton.cdiv(each, block), G, K=K, SQUASH=code, WEIGHTED=weighted, EPS_ROWS=by_row, PUSH=push_,
                REGISTERS=n <= block, BLOCK=block, PP=_room(x) if G > 1 else 1, num_warps=warps,
            )  # fmt: skip
            return
        G, tiles = cut(R, n, _MOMENTS_BLOCK, _CHUNKS)
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
                n, tiles * (_MOMENTS_BLOCK // _CHUNK_BLOCK), G, 16 * (i == 0), K=K, KP=KP, GP=GP, SQUASH=code,
                WEIGHTED=weighted, EPS_ROWS=by_row, PUSH=push_, BLOCK=_CHUNK_BLOCK, num_warps=8,
            )  # fmt: skip
        launch(
            chunks.end, R if push_ else R * G,
            *of_x, stats, *of_targets, *of_phi, *of_eps, carry[_PASSES], sums[(_PASSES - 1) % 2], out, state, error,
            n, tiles * (_MOMENTS_BLOCK // _CHUNK_BLOCK), G,
            K=K, KP=KP, GP=GP, SQUASH=code, EPS_ROWS=by_row, PUSH=push_, BLOCK=_CHUNK_BLOCK, num_warps=8,
        )  # fmt: skip

    given = x, a, request.y, request.b, levels, eps_rows
    cotangents = (out, None) if phi is None else (phi, out)
    launches(
        ("thresholds", *_launch_key(request, push_)), given, (out, state, error), eps, make, request.prepared, (x,),
        if_differentiated(
            lambda: _by_thresholds_backward(request._replace(prepared=None), cotangents[0], state, cotangents[1])
        ),
    )  # fmt: skip
    return Answer(out, state, error)


def _by_thresholds_backward(request: Request, phi: Tensor, state: Tensor, w: Tensor | None) -> Tensor:
    """The cotangent of x: from w (R, n), or for push from ``phi``, the cotangent (R, K) of the averages."""
    phi = phi.contiguous()
    changing = request.x, state, phi if w is None else w
    made = replayed(request.prepared, "thresholds back", *changing)
    if made is not None:
        return made[0]
    x, n, R, K = request.x, request.x.shape[1], len(request.x), request.y.shape[-1]
    push_, a, pulls = w is None, x if request.a is None else request.a, x if w is None else w
    # What is pulled may cancel down to rounding at any eps: one value between two targets, or several that are equal.
    small = isinstance(request.eps, Tensor) or request.eps < _LEAST_EPS_OF_SINGLES
    double = not push_ or request.a is not None or request.squash is None or small
    eps, eps_rows, _ = _of_eps(request)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)

    def make(launch: Recorder) -> None:
        arguments = (
            *strided(x), *strided(a), *strided(pulls), request.y, row_stride(request.y), request.b,
            row_stride(request.b),
            phi, row_stride(phi), eps, eps_rows, state,
        )  # fmt: skip
        (code, weighted, by_row), KP = _launch_key(request), 2 if K <= 2 else 4
        if n <= _ONE_PROGRAM:
            launch(
                thresholds_backward.one_program_backward, R,
                *arguments, out, n, triton.cdiv(n, _CHUNK_BLOCK),
                K=K, KP=KP, SQUASH=code, WEIGHTED=weighted, EPS_ROWS=by_row, PUSH=push_, DOUBLE=double,
                BLOCK=_CHUNK_BLOCK, num_warps=8,
            )  # fmt: skip
            return
        most = exact_pieces.programs_of(x.device)
        G, tiles = cut(R, n, _CHUNK_BLOCK, min(most, _CHUNKS) if AT_ONCE and most > 1 else _CHUNKS)
        sums = launch.empty(R * G * thresholds_backward.BACK.value, dtype=torch.float64)
        if AT_ONCE and 1 < R * G <= most:
            launch.at_once(
                thresholds_backward.chunks_back, R * G,
                *arguments, sums, launch.counters(R * exchange.COUNTERS.value), out, n, tiles, G, K=K, KP=KP,
                GP=_room(x), SQUASH=code, WEIGHTED=weighted, EPS_ROWS=by_row, PUSH=push_,
                DOUBLE=double, BLOCK=_CHUNK_BLOCK, num_warps=_SHARED_WARPS,
            )  # fmt: skip
            return
        launch(
            thresholds_backward.chunk_sums, R * G,
            *arguments, sums, n, tiles, G,
            K=K, KP=KP, SQUASH=code, WEIGHTED=weighted, EPS_ROWS=by_row, PUSH=push_, DOUBLE=double,
            BLOCK=_CHUNK_BLOCK, num_warps=8,
        )  # fmt: skip
        launch(
            thresholds_backward.chunk_write, R * G,
            *arguments, sums, out, n, tiles, G, K=K, KP=KP, GP=triton.next_power_of_2(G),
            SQUASH=code, WEIGHTED=weighted, EPS_ROWS=by_row, PUSH=push_, DOUBLE=double,
            BLOCK=_CHUNK_BLOCK, num_warps=8,
        )  # fmt: skip

    given = x, a, request.y, request.b, phi, eps_rows, state, pulls
    launches(
        ("thresholds back", *_launch_key(request, push_, double)), given, (out,), eps, make, request.prepared, changing
    )
    return out
