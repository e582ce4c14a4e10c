"""Long rows onto many targets, all that is done in either direction in one launch: for who calls from Python.

There a launch costs the host more than most kernels here take. So the work of all kernels of ``triton_long_by_grid``
stands in one line, kernel after kernel: chunks whose moments are taken, chunks that are spread, rows that are solved,
chunks that are read. Programs take the next piece from the line, do what a program of its own would do, and take the
next, until there is none. A piece waits for what it needs of its own row, which other programs may still be at work on.

Whatever a piece waits for was taken before it, by a program that is running. So nobody waits for ever, be there one
program or many, on all multiprocessors or on some that others left free; and one program after the other, as in
Triton's interpreter, never waits. So nothing is launched cooperatively, which would wait for the whole device.

Late rows (``triton_long_late``) come last, and programs that wait for each other are at work on them: those that have
come so far, and so are running. All of them, unless others keep multiprocessors busy for long.

Who takes which piece is a matter of chance; what is done to it is not, and sums are added up in the order of chunks.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .triton_long_grid import LATE, leave_sums_back, read_values, slope_back, sums_of, table_of, write_back
from .triton_long_late import answer_rows, pull_rows_back
from .triton_long_maths import leave_moments
from .triton_long_nodes import SLICE, gather_slice
from .triton_long_solve import solve_row
from .triton_long_solve_back import solve_row_back
from .triton_long_spread import spread_chunk, spread_chunk_of_cotangents
from .triton_short import ACCEPTED

COUNTERS = tl.constexpr(16)  #: whole numbers of the line, and as many of each row: no two rows in one sector
#: Of the line: pieces that were taken, programs that are gone, rows that are done, programs that came to work on late
#: rows, and how many of them do so.
_NEXT, _LEFT, _ROWS, _CAME, _STAY = (tl.constexpr(i) for i in range(5))
#: Of a row: how many pieces of each kind are done, in the order of the line.
_FIRST, _SPREAD, _GATHERED, _READY, _SUMMED, _READ = (tl.constexpr(i) for i in range(6))
_TOO_LATE = tl.constexpr(1 << 20)  #: more than there are programs
_PATIENCE = tl.constexpr(4096)  #: looks for programs that are not there yet, some milliseconds in all
_AT_ONCE = tl.constexpr(256)  #: rows that are looked at at once


@triton.jit
def take(counters: tl.tensor) -> Any:
    """The next piece of the line."""
    return tl.atomic_add(counters + _NEXT, 1, sem="relaxed", scope="gpu")


@triton.jit
def of_row(counters: tl.tensor, row: tl.tensor) -> Any:
    return counters + (row + 1).to(tl.int64) * COUNTERS


@triton.jit
def done(counters: tl.tensor, row: tl.tensor, kind: tl.constexpr) -> None:
    """Says that a piece of this kind is done: who waits for it sees what was written."""
    tl.debug_barrier()
    tl.atomic_add(of_row(counters, row) + kind, 1, sem="release", scope="gpu")


@triton.jit
def wait(counter: tl.tensor, count: tl.tensor) -> Any:
    """Goes on when so many are done, and says how many there are."""
    seen = tl.atomic_add(counter, 0, sem="acquire", scope="gpu")
    while seen < count:
        seen = tl.atomic_add(counter, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()
    return seen


@triton.jit
def wait_for(counters: tl.tensor, row: tl.tensor, kind: tl.constexpr, count: tl.tensor) -> None:
    """``wait`` for pieces of a row."""
    wait(of_row(counters, row) + kind, count)


@triton.jit
def read(counters: tl.tensor, row: tl.tensor, count: tl.tensor) -> None:
    """``done`` for the last kind of pieces: nobody looks at the counters of a row any more when all ``count`` are."""
    tl.debug_barrier()
    if tl.atomic_add(of_row(counters, row) + _READ, 1, sem="acq_rel", scope="gpu") == count - 1:
        tl.store(of_row(counters, row) + tl.arange(0, COUNTERS), tl.zeros([COUNTERS], tl.int32))
        tl.debug_barrier()
        tl.atomic_add(counters + _ROWS, 1, sem="acq_rel", scope="gpu")


@triton.jit
def stay(counters: tl.tensor) -> Any:
    """Which program this is of how many that work on late rows; one that comes too late has a larger number.

    The first to come waits for the others, but not for ever, since they may not be running before this one is gone.
    """
    p = tl.atomic_add(counters + _CAME, 1, sem="acq_rel", scope="gpu")
    if p == 0:
        came = p + 1
        looks = 0
        while (came < tl.num_programs(0)) & (looks < _PATIENCE):
            came = tl.atomic_add(counters + _CAME, 0, sem="relaxed", scope="gpu")
            looks += 1
        came = tl.atomic_add(counters + _CAME, _TOO_LATE, sem="acq_rel", scope="gpu")
        tl.atomic_add(counters + _STAY, came, sem="acq_rel", scope="gpu")
    return p, wait(counters + _STAY, 1)


@triton.jit
def any_late(error: tl.tensor, R: tl.tensor) -> Any:
    """Whether some row is to be answered again; NaN is late."""
    found = tl.zeros([_AT_ONCE], tl.int32)
    for first in range(0, R, _AT_ONCE):
        rows = first + tl.arange(0, _AT_ONCE)
        found |= tl.where(tl.load(error + rows, mask=rows < R, other=0.0) <= ACCEPTED, 0, 1)
    return tl.max(found, 0) > 0


@triton.jit
def any_was_late(state: tl.tensor, size: tl.tensor, before: tl.tensor, R: tl.tensor) -> Any:
    """Whether some row was answered again."""
    found = tl.zeros([_AT_ONCE], tl.float32)
    for first in range(0, R, _AT_ONCE):
        rows = first + tl.arange(0, _AT_ONCE)
        found = tl.maximum(found, tl.load(table_of(state, rows, size, before) + LATE, mask=rows < R, other=0.0))
    return tl.max(found, 0) > 0


@triton.jit
def leave(counters: tl.tensor) -> None:
    """The last to go leaves the line as it was, for the next launch."""
    tl.debug_barrier()
    if tl.atomic_add(counters + _LEFT, 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1:
        tl.store(counters + tl.arange(0, COUNTERS), tl.zeros([COUNTERS], tl.int32))


@triton.jit(
    do_not_specialize=[
        "x", "x_row", "x_step", "a", "a_row", "a_step", "y_row", "b_row", "phi_row", "last_row", "out", "R", "n",
        "M", "of_M", "chunks_row", "G", "of_G", "moments_row", "left", "scratch_row", "B", "of_B", "m",
    ]
)  # fmt: skip
def joined_forward(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    y: tl.tensor, y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor, phi: tl.tensor, phi_row: tl.tensor,
    last: tl.tensor, last_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, state: tl.tensor, size: tl.tensor,
    before: tl.tensor, error: tl.tensor, out: tl.tensor, R: tl.tensor, n: tl.tensor, counters: tl.tensor,
    stats: tl.tensor, M: tl.tensor, of_M: tl.tensor, chunks: tl.tensor, chunks_row: tl.tensor, G: tl.tensor,
    of_G: tl.tensor, moments: tl.tensor, moments_row: tl.tensor, left: tl.tensor, to_nodes: tl.tensor,
    scratch: tl.tensor, scratch_row: tl.tensor, B: tl.tensor, of_B: tl.tensor,
    behind: tl.tensor, rules: tl.tensor, sums: tl.tensor, room: tl.tensor, places: tl.tensor, m: tl.tensor,
    K: tl.constexpr, KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, SQUASH: tl.constexpr,
    WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, MOST: tl.constexpr,
    MOMENTS: tl.constexpr, SPREAD: tl.constexpr, SLABS: tl.constexpr, READ: tl.constexpr,
    KB: tl.constexpr, X: tl.constexpr, V: tl.constexpr, VT: tl.constexpr, KF: tl.constexpr, XF: tl.constexpr,
    FIRST: tl.constexpr, PANELS: tl.constexpr, BN: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    """``pull`` for targets given by a rule.

    Rows are cut into M chunks of ``of_M`` blocks to take moments, G of ``of_G`` to be spread and B of ``of_B`` to be
    read; blocks have MOMENTS, SPREAD and READ values. ``left``: chunks from which a row is solved, less
    than G if they are gathered, from ``chunks`` to ``moments``. The last tensors are those of ``late_forward``.
    """
    WIDTH: tl.constexpr = UP * (2 if WEIGHTED else 1)
    first = 0
    item = take(counters)
    while item < R * M:
        leave_moments(
            x, x_row, x_step, a, a_row, a_step, y, y_row, K, stats, n, of_M, M, item, SQUASH, WEIGHTED, True, MOMENTS
        )
        done(counters, item // M, _FIRST)
        item = take(counters)
    first += R * M
    while item < first + R * G:
        row = (item - first) // G
        wait_for(counters, row, _FIRST, M)
        spread_chunk(
            x, x_row, x_step, a, a_row, a_step, stats, M, state, size, before, chunks, chunks_row, n, of_G, G,
            item - first, SQUASH, WEIGHTED, UP // 16, MOST, SPREAD, SLABS, 0,
        )  # fmt: skip
        done(counters, row, _SPREAD)
        item = take(counters)
    first += R * G
    slices = tl.where(left < G, WIDTH // SLICE, 0)
    while item < first + R * slices:
        row = (item - first) // (WIDTH // SLICE)
        wait_for(counters, row, _SPREAD, G)
        gather_slice(chunks, chunks_row, moments, G, item - first, WIDTH, MOST)
        done(counters, row, _GATHERED)
        item = take(counters)
    first += R * slices
    while item < first + R:
        row = item - first
        if slices > 0:
            wait_for(counters, row, _GATHERED, slices)
        else:
            wait_for(counters, row, _SPREAD, G)
        solve_row(
            moments, moments_row, left, to_nodes, y, y_row, b, b_row, phi, phi_row, last, last_row, eps, eps_rows,
            state, size, before, error, scratch, scratch_row, x, x_row, x_step, out, n, row,
            K, KP, CELLS, UP, WEIGHTED, EPS_ROWS, KB, X, V, VT, KF, XF, SQUASH, 0,
        )  # fmt: skip
        done(counters, row, _READY)
        item = take(counters)
    first += R
    while item < first + R * B:
        row, g = (item - first) // B, (item - first) % B
        wait_for(counters, row, _READY, 1)
        table = table_of(state, row, size, before)
        for tile in range(of_B):
            at = (g.to(tl.int64) * of_B + tile) * READ + tl.arange(0, READ)
            read_values(x, x_row, x_step, row, at, n, table, out, KP, CELLS, SQUASH)
        read(counters, row, B)
        item = take(counters)
    wait(counters + _ROWS, R)
    if any_late(error, R):
        p, P = stay(counters)
        if p < P:
            answer_rows(
                x, x_row, x_step, a, a_row, a_step, y, y_row, phi, phi_row, K, eps, eps_rows, state, size, before,
                behind, error, out, rules, sums, room, places, R, n, m, p, P,
                FIRST, PANELS, SQUASH, WEIGHTED, EPS_ROWS, BN, PP,
            )  # fmt: skip
    leave(counters)


@triton.jit(
    do_not_specialize=[
        "x", "x_row", "x_step", "a", "a_row", "a_step", "w", "w_row", "w_step", "y_row", "b_row", "phi_row", "out", "R",
        "n", "chunks_row", "G", "of_G", "moments_row", "left", "scratch_row", "B", "of_B", "apart", "m",
    ]
)  # fmt: skip
def joined_backward(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    w: tl.tensor, w_row: tl.tensor, w_step: tl.tensor, y: tl.tensor, y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor,
    phi: tl.tensor, phi_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, state: tl.tensor, size: tl.tensor,
    before: tl.tensor, out: tl.tensor, R: tl.tensor, n: tl.tensor, counters: tl.tensor, chunks: tl.tensor,
    chunks_row: tl.tensor, G: tl.tensor, of_G: tl.tensor, moments: tl.tensor, moments_row: tl.tensor,
    left: tl.tensor, to_nodes: tl.tensor, scratch: tl.tensor, scratch_row: tl.tensor, two_sums: tl.tensor,
    B: tl.tensor, of_B: tl.tensor,
    behind: tl.tensor, tickets: tl.tensor, apart: tl.tensor, rules: tl.tensor, sums: tl.tensor, room: tl.tensor,
    places: tl.tensor, m: tl.tensor,
    K: tl.constexpr, KP: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr, SQUASH: tl.constexpr,
    WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, MOST: tl.constexpr,
    SPREAD: tl.constexpr, SLABS: tl.constexpr, READ: tl.constexpr,
    KB: tl.constexpr, X: tl.constexpr, V: tl.constexpr, VT: tl.constexpr, KF: tl.constexpr, XF: tl.constexpr,
    PANELS: tl.constexpr, BN: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    """``pull_backward``: as ``joined_forward``. Chunks to be read are also those of which ``two_sums`` are taken."""
    first = 0
    item = take(counters)
    while item < R * G:
        spread_chunk_of_cotangents(
            x, x_row, x_step, w, w_row, w_step, state, size, before, chunks, chunks_row, n, of_G, G, item,
            SQUASH, UP // 16, SPREAD, SLABS,
        )  # fmt: skip
        done(counters, item // G, _SPREAD)
        item = take(counters)
    first += R * G
    slices = tl.where(left < G, UP // SLICE, 0)
    while item < first + R * slices:
        row = (item - first) // (UP // SLICE)
        wait_for(counters, row, _SPREAD, G)
        gather_slice(chunks, chunks_row, moments, G, item - first, UP, MOST)
        done(counters, row, _GATHERED)
        item = take(counters)
    first += R * slices
    while item < first + R:
        row = item - first
        if slices > 0:
            wait_for(counters, row, _GATHERED, slices)
        else:
            wait_for(counters, row, _SPREAD, G)
        solve_row_back(
            moments, moments_row, left, to_nodes, y, y_row, b, b_row, phi, phi_row, eps, eps_rows, state, size, before,
            scratch, scratch_row, x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, out, n, row,
            K, KP, CELLS, UP, EPS_ROWS, KB, X, V, VT, KF, XF, SQUASH, WEIGHTED, 0,
        )  # fmt: skip
        done(counters, row, _READY)
        item = take(counters)
    first += R
    if SQUASH != 0:
        while item < first + R * B:
            row = (item - first) // B
            wait_for(counters, row, _READY, 1)
            leave_sums_back(
                x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, state, size, before, scratch, two_sums, eps,
                eps_rows, n, of_B, B, item - first, KP, CELLS, UP, SQUASH, WEIGHTED, EPS_ROWS, READ,
            )  # fmt: skip
            done(counters, row, _SUMMED)
            item = take(counters)
        first += R * B
    while item < first + R * B:
        row, g = (item - first) // B, (item - first) % B
        total, tilted = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
        if SQUASH != 0:
            wait_for(counters, row, _SUMMED, B)
            total, tilted = sums_of(two_sums, row, B, MOST)
        else:
            wait_for(counters, row, _READY, 1)
        table = table_of(state, row, size, before)
        covariances = scratch + row.to(tl.int64) * (2 * UP)
        slope = slope_back(eps, eps_rows, row, EPS_ROWS)
        for tile in range(of_B):
            at = (g.to(tl.int64) * of_B + tile) * READ + tl.arange(0, READ)
            write_back(
                x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, row, at, n, table, covariances, slope, total,
                tilted, out, KP, CELLS, UP, SQUASH, WEIGHTED,
            )  # fmt: skip
        read(counters, row, B)
        item = take(counters)
    if any_was_late(state, size, before, R):
        wait(counters + _ROWS, R)
        p, P = stay(counters)
        if p < P:
            pull_rows_back(
                x, x_row, x_step, a, a_row, a_step, w, w_row, w_step, y, y_row, phi, phi_row, K, eps, eps_rows, state,
                size, before, behind, tickets, apart, out, rules, sums, room, places, R, n, m, p, P,
                PANELS, SQUASH, WEIGHTED, EPS_ROWS, BN, PP,
            )  # fmt: skip
    leave(counters)
