"""Rows onto few targets that are too long for one program: the passes of ``thresholds.passes``, a launch for each."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.maths import origin_of, row_facts
from .passes import CONVERGED, errors_of, finished, shares_of, stepped, summed, targets_of_row, without_layout, written
from .start import THRESHOLDS, below, from_brackets, levels_passed, narrowed

#: What is carried from step to step: base, direction, then length, slope and error.
CARRY = tl.constexpr(16)
#: Sums of one chunk: columns, averages, infinite payload, products, and how columns differ from a hard plan's.
CHUNK = tl.constexpr(32)


@triton.jit
def bracket(
    brackets: tl.tensor, counts: tl.tensor, row: tl.tensor, G: tl.tensor, level: tl.tensor, ROWS: tl.constexpr,
) -> Any:  # fmt: skip
    """The brackets that the counts of all chunks lead to."""
    r = tl.arange(0, ROWS)
    mine = brackets + row.to(tl.int64) * 16
    line = tl.arange(0, ROWS * THRESHOLDS)
    total = tl.zeros((ROWS * THRESHOLDS,), tl.float64)
    for first in range(0, G, 32):
        g = first + tl.arange(0, 32)
        of_chunk = counts + (row.to(tl.int64) * G + g)[:, None] * (ROWS * THRESHOLDS) + line[None, :]
        total += tl.sum(tl.load(of_chunk, mask=(g < G)[:, None], other=0.0), 0)
    return narrowed(total, tl.load(mine + r), tl.load(mine + 8 + r), level, ROWS)


@triton.jit
def narrow(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    stats: tl.tensor, b: tl.tensor, b_row: tl.tensor, brackets: tl.tensor, after: tl.tensor, before_counts: tl.tensor,
    counts: tl.tensor, n: tl.tensor, tiles: tl.tensor, G: tl.tensor, first: tl.tensor, K: tl.constexpr,
    KP: tl.constexpr, GP: tl.constexpr, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One round of counting: brackets from the round before go to ``after``, counts inside them to ``counts``."""
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    mean, std, _constant, _weight, least, most, _poison = row_facts(stats, row, G, SQUASH, GP)
    ROWS: tl.constexpr = 2 if K <= 2 else (4 if K == 3 else 8)  # two brackets for each boundary
    level = levels_passed(shares_of(b, b_row, row, K, KP), KP, ROWS)
    low = level * 0.0 + least
    high = level * 0.0 + most
    if first == 0:
        low, high = bracket(brackets, before_counts, row, G, level, ROWS)
    if g == 0:
        mine = after + row.to(tl.int64) * 16 + tl.arange(0, ROWS)
        tl.store(mine, low)
        tl.store(mine + 8, high)
    here = below(
        x, x_row, x_step, a, a_row, a_step, n, row, g, tiles, mean, std, most, low, high, ROWS, SQUASH, WEIGHTED, BLOCK
    )
    tl.store(counts + pid.to(tl.int64) * (ROWS * THRESHOLDS) + tl.arange(0, ROWS * THRESHOLDS), here)


@triton.jit
def begin(
    stats: tl.tensor, brackets: tl.tensor, counts: tl.tensor, y: tl.tensor, y_row: tl.tensor, b: tl.tensor,
    b_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, carry: tl.tensor, G: tl.tensor, K: tl.constexpr,
    KP: tl.constexpr, GP: tl.constexpr, SQUASH: tl.constexpr, EPS_ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """The first point of every row, from its brackets."""
    row = tl.program_id(0)
    mean, _std, _constant, _weight, _least, _most, _poison = row_facts(stats, row, G, SQUASH, GP)
    _at, gap, share, slope = targets_of_row(
        y, y_row, b, b_row, eps, eps_rows, row, origin_of(mean, SQUASH), K, KP, EPS_ROWS
    )
    ROWS: tl.constexpr = 2 if K <= 2 else (4 if K == 3 else 8)  # two brackets for each boundary
    low, high = bracket(brackets, counts, row, G, levels_passed(share, KP, ROWS), ROWS)
    psi = from_brackets(low, high, gap, slope, KP, ROWS)
    k = tl.arange(0, KP)
    mine = carry + row.to(tl.int64) * CARRY
    tl.store(mine + k, psi)
    tl.store(mine + 4 + k, psi * 0.0)
    tl.store(mine + 8, tl.full((), 1.0, tl.float64))
    tl.store(mine + 9, tl.full((), float("inf"), tl.float64))
    tl.store(mine + 10, tl.full((), 2.0, tl.float64))


@triton.jit
def sums_of_chunks(partial: tl.tensor, row: tl.tensor, G: tl.tensor, KP: tl.constexpr, GP: tl.constexpr) -> Any:
    """Sums over the chunks of what ``step`` left, as ``summed`` gives them."""
    g = tl.arange(0, GP)
    k = tl.arange(0, KP)
    of_chunk = partial + (row.to(tl.int64) * G + g) * CHUNK
    there = g < G
    hard = tl.sum(tl.load(of_chunk[:, None] + k[None, :], mask=there[:, None], other=0.0), 0)
    apart = tl.sum(tl.load(of_chunk[:, None] + 25 + k[None, :], mask=there[:, None], other=0.0), 0)
    average = tl.sum(tl.load(of_chunk[:, None] + 4 + k[None, :], mask=there[:, None], other=0.0), 0)
    beyond = tl.sum(tl.load(of_chunk + 8, mask=there, other=0.0))
    kk = tl.arange(0, KP * KP)
    W = tl.sum(tl.load(of_chunk[:, None] + 9 + kk[None, :], mask=there[:, None], other=0.0), 0)
    return hard, apart, average, beyond, tl.reshape(W, (KP, KP))


@triton.jit
def carried_on(
    carry: tl.tensor, partial: tl.tensor, row: tl.tensor, G: tl.tensor, share: tl.tensor, n: tl.tensor,
    first: tl.tensor, KP: tl.constexpr, GP: tl.constexpr,
) -> Any:  # fmt: skip
    """Where the step before this one leaves us: (base, direction, length, slope, error)."""
    k = tl.arange(0, KP)
    mine = carry + row.to(tl.int64) * CARRY
    base = tl.load(mine + k)
    direction = tl.load(mine + 4 + k)
    length = tl.load(mine + 8)
    gradient = tl.load(mine + 9)
    off = tl.load(mine + 10)
    if (first == 0) & (off > CONVERGED):
        hard, apart, _average, _beyond, W = sums_of_chunks(partial, row, G, KP, GP)
        base, direction, length, gradient, off = stepped(
            hard, apart, W, share, n, base, direction, length, gradient, KP
        )
    return base, direction, length, gradient, off


@triton.jit
def step(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor,
    stats: tl.tensor, y: tl.tensor, y_row: tl.tensor, b: tl.tensor, b_row: tl.tensor, eps: tl.tensor,
    eps_rows: tl.tensor, carry: tl.tensor, after: tl.tensor, partial: tl.tensor, sums: tl.tensor, n: tl.tensor,
    tiles: tl.tensor, G: tl.tensor, first: tl.tensor, K: tl.constexpr, KP: tl.constexpr, GP: tl.constexpr,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, EPS_ROWS: tl.constexpr, PUSH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One step of every row: where ``partial``, the sums at the point before, leads from ``carry``; and the sums there.

    What is carried on goes to ``after``. A row that has converged keeps its point, and its sums, which are copied.
    """
    pid = tl.program_id(0)
    row, g = pid // G, pid % G
    mean, std, _constant, _weight, _least, most, _poison = row_facts(stats, row, G, SQUASH, GP)
    at, _gap, share, slope = targets_of_row(
        y, y_row, b, b_row, eps, eps_rows, row, origin_of(mean, SQUASH), K, KP, EPS_ROWS
    )
    base, direction, length, gradient, off = carried_on(carry, partial, row, G, share, n, first, KP, GP)
    k = tl.arange(0, KP)
    if g == 0:
        mine = after + row.to(tl.int64) * CARRY
        tl.store(mine + k, base)
        tl.store(mine + 4 + k, direction)
        tl.store(mine + 8, length)
        tl.store(mine + 9, gradient)
        tl.store(mine + 10, off)
    to = sums + pid.to(tl.int64) * CHUNK
    psi = without_layout(to, base + length * direction, KP)
    if off > CONVERGED:
        hard, apart, average, beyond, W = summed(
            x, x_row, x_step, a, a_row, a_step, n, row, g, tiles, mean, std, most, psi, at, share > 0.0, slope,
            KP, SQUASH, WEIGHTED, PUSH, BLOCK,
        )  # fmt: skip
        tl.debug_barrier()
        tl.store(to + k, hard)
        tl.store(to + 25 + k, apart)
        tl.store(to + 4 + k, average)
        tl.store(to + 8, beyond)
        tl.store(to + 9 + k[:, None] * KP + k[None, :], W)
    else:
        all_of_it = tl.arange(0, CHUNK)
        tl.debug_barrier()
        tl.store(to + all_of_it, tl.load(partial + pid.to(tl.int64) * CHUNK + all_of_it))


@triton.jit
def end(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, stats: tl.tensor, y: tl.tensor, y_row: tl.tensor, b: tl.tensor,
    b_row: tl.tensor, phi: tl.tensor, phi_row: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, carry: tl.tensor,
    sums: tl.tensor, out: tl.tensor, state: tl.tensor, error: tl.tensor, n: tl.tensor, tiles: tl.tensor, G: tl.tensor,
    K: tl.constexpr, KP: tl.constexpr, GP: tl.constexpr, SQUASH: tl.constexpr, EPS_ROWS: tl.constexpr,
    PUSH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Read the plan where the last sums were taken."""
    pid = tl.program_id(0)
    if PUSH:
        row, g = pid, pid * 0
    else:
        row, g = pid // G, pid % G
    mean, std, constant, weight, _least, most, poison = row_facts(stats, row, G, SQUASH, GP)
    at, _gap, share, slope = targets_of_row(
        y, y_row, b, b_row, eps, eps_rows, row, origin_of(mean, SQUASH), K, KP, EPS_ROWS
    )
    k = tl.arange(0, KP)
    mine = carry + row.to(tl.int64) * CARRY
    psi = tl.load(mine + k) + tl.load(mine + 8) * tl.load(mine + 4 + k)
    if g == 0:
        hard, apart, average, beyond, W = sums_of_chunks(sums, row, G, KP, GP)
        _r, _newton, off = errors_of(hard, apart, W, share, n, KP)
        finished(
            state, error, out, row, mean, std, constant, weight, most, poison, psi, hard + apart, average, beyond, W,
            off, share, KP, K, PUSH,
        )  # fmt: skip
    if not PUSH:
        levels = tl.load(phi + row.to(tl.int64) * phi_row + k, mask=k < K, other=0.0)
        written(
            x, x_row, x_step, out, n, row, g, tiles, mean, std, most, psi, at, levels, share > 0.0, slope, SQUASH, BLOCK
        )
