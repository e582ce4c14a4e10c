"""Rows onto few targets that several programs share, in Triton: sums over their parts of a row, told to each other.

A program works on its part as if it were a row of its own. What it has added up it writes to a line of its own, waits
until all have done so, and adds up all lines. Every program adds the same numbers in the same order, so all of them
take the same decisions, as many steps, and meet equally often: nobody asks the host, and nothing is atomic but the
counter at which they meet. They must all run at once, so they are launched cooperatively, at most one for each
multiprocessor. A program that has a row for itself (PP = 1) tells nobody.

Lines are in two halves that take turns: who writes to one has met the others after they read what was there before.
Behind them every program has a line for the totals, from which it takes them one by one.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.barrier import barrier
from ..engine.sums import agreed_sum

LINE = tl.constexpr(32)  #: doubles
LINES = tl.constexpr(3)  #: of every program
COUNTERS = tl.constexpr(16)  #: whole numbers of a row, so that two are never in one sector: who has come, who has left


@triton.jit
def line_of_program(lines: tl.tensor, passed: tl.tensor, G: tl.tensor) -> Any:
    """Where this program tells the others something before they meet for the next time, and where all lines begin."""
    all_lines = lines + (passed // G % 2).to(tl.int64) * G * LINE
    return all_lines + (tl.program_id(0) % G) * LINE, all_lines


@triton.jit
def leave(counter: tl.tensor, G: tl.tensor) -> None:
    """When nobody looks at the counter any more: the last to go leaves it at zero, for the next launch."""
    tl.debug_barrier()
    if tl.atomic_add(counter + 1, 1, sem="acq_rel", scope="gpu") == G - 1:
        tl.store(counter, 0)
        tl.store(counter + 1, 0)


@triton.jit
def over_programs(
    v0: tl.tensor, v1: tl.tensor, v2: tl.tensor, v3: tl.tensor, v4: tl.tensor, v5: tl.tensor, v6: tl.tensor,
    v7: tl.tensor, v8: tl.tensor, v9: tl.tensor, v10: tl.tensor, v11: tl.tensor, v12: tl.tensor, v13: tl.tensor,
    v14: tl.tensor, v15: tl.tensor, v16: tl.tensor, v17: tl.tensor, v18: tl.tensor, lines: tl.tensor,
    counter: tl.tensor, passed: tl.tensor, G: tl.tensor, COUNT: tl.constexpr, PP: tl.constexpr,
) -> Any:  # fmt: skip
    """Sums of the first COUNT numbers over all programs of a row, all double, and how often these have met."""
    mine, all_lines = line_of_program(lines, passed, G)
    WIDTH: tl.constexpr = 4 if COUNT <= 4 else (8 if COUNT <= 8 else (16 if COUNT <= 16 else 32))
    i = tl.arange(0, WIDTH)
    told = tl.where(i == 0, v0.to(tl.float64), tl.where(i == 1, v1.to(tl.float64), 0.0))
    told = tl.where(i == 2, v2.to(tl.float64), tl.where(i == 3, v3.to(tl.float64), told))
    if COUNT > 4:
        told = tl.where(i == 4, v4.to(tl.float64), tl.where(i == 5, v5.to(tl.float64), told))
        told = tl.where(i == 6, v6.to(tl.float64), tl.where(i == 7, v7.to(tl.float64), told))
    if COUNT > 8:
        told = tl.where(i == 8, v8.to(tl.float64), tl.where(i == 9, v9.to(tl.float64), told))
        told = tl.where(i == 10, v10.to(tl.float64), tl.where(i == 11, v11.to(tl.float64), told))
        told = tl.where(i == 12, v12.to(tl.float64), tl.where(i == 13, v13.to(tl.float64), told))
        told = tl.where(i == 14, v14.to(tl.float64), tl.where(i == 15, v15.to(tl.float64), told))
    if COUNT > 16:
        told = tl.where(i == 16, v16.to(tl.float64), tl.where(i == 17, v17.to(tl.float64), told))
        told = tl.where(i == 18, v18.to(tl.float64), told)
    tl.store(mine + i, told, mask=i < COUNT)
    passed = barrier(counter, passed, G)
    q = tl.arange(0, PP)
    of_all = tl.load(
        all_lines + q[:, None] * LINE + i[None, :], mask=(q < G)[:, None] & (i < COUNT)[None, :], other=0.0,
        cache_modifier=".cg",
    )  # fmt: skip
    total = lines + (2 * G + tl.program_id(0) % G) * LINE
    tl.debug_barrier()
    tl.store(total + i, tl.sum(of_all, 0))
    tl.debug_barrier()
    u4, u5, u6, u7 = v4.to(tl.float64), v5.to(tl.float64), v6.to(tl.float64), v7.to(tl.float64)
    u8, u9, u10, u11 = v8.to(tl.float64), v9.to(tl.float64), v10.to(tl.float64), v11.to(tl.float64)
    u12, u13, u14, u15 = v12.to(tl.float64), v13.to(tl.float64), v14.to(tl.float64), v15.to(tl.float64)
    u16, u17, u18 = v16.to(tl.float64), v17.to(tl.float64), v18.to(tl.float64)
    if COUNT > 4:
        u4, u5, u6, u7 = tl.load(total + 4), tl.load(total + 5), tl.load(total + 6), tl.load(total + 7)
    if COUNT > 8:
        u8, u9, u10, u11 = tl.load(total + 8), tl.load(total + 9), tl.load(total + 10), tl.load(total + 11)
        u12, u13, u14, u15 = tl.load(total + 12), tl.load(total + 13), tl.load(total + 14), tl.load(total + 15)
    if COUNT > 16:
        u16, u17, u18 = tl.load(total + 16), tl.load(total + 17), tl.load(total + 18)
    return (
        tl.load(total), tl.load(total + 1), tl.load(total + 2), tl.load(total + 3), u4, u5, u6, u7, u8, u9, u10, u11,
        u12, u13, u14, u15, u16, u17, u18, passed,
    )  # fmt: skip


@triton.jit
def together4(
    v0: tl.tensor, v1: tl.tensor, v2: tl.tensor, v3: tl.tensor, lines: tl.tensor, counter: tl.tensor, passed: tl.tensor,
    G: tl.tensor, PP: tl.constexpr,
) -> Any:  # fmt: skip
    """``over_programs`` for four numbers: double if anybody else has told some of it."""
    if PP > 1:
        v0, v1, v2, v3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, passed = over_programs(
            v0, v1, v2, v3, v0, v0, v0, v0, v0, v0, v0, v0, v0, v0, v0, v0, v0, v0, v0, lines, counter, passed, G, 4, PP
        )
    return v0, v1, v2, v3, passed


@triton.jit
def together7(
    v0: tl.tensor, v1: tl.tensor, v2: tl.tensor, v3: tl.tensor, v4: tl.tensor, v5: tl.tensor, v6: tl.tensor,
    lines: tl.tensor, counter: tl.tensor, passed: tl.tensor, G: tl.tensor, PP: tl.constexpr,
) -> Any:  # fmt: skip
    """The same for seven."""
    if PP > 1:
        v0, v1, v2, v3, v4, v5, v6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, passed = over_programs(
            v0, v1, v2, v3, v4, v5, v6, v6, v6, v6, v6, v6, v6, v6, v6, v6, v6, v6, v6, lines, counter, passed, G, 7, PP
        )
    return v0, v1, v2, v3, v4, v5, v6, passed


@triton.jit
def moments_over_programs(
    whole: tl.tensor, total: tl.tensor, mean: tl.tensor, squares: tl.tensor, bottom: tl.tensor, top: tl.tensor,
    least: tl.tensor, most: tl.tensor, bad: tl.tensor, lines: tl.tensor, counter: tl.tensor, passed: tl.tensor,
    G: tl.tensor, PP: tl.constexpr,
) -> Any:  # fmt: skip
    """Those of a row from those of its parts: squares about a mean merge without loss, as in ``engine.maths``."""
    mine, all_lines = line_of_program(lines, passed, G)
    tl.store(mine, whole)
    tl.store(mine + 1, total)
    tl.store(mine + 2, mean)
    tl.store(mine + 3, squares)
    tl.store(mine + 4, bottom.to(tl.float64))
    tl.store(mine + 5, top.to(tl.float64))
    tl.store(mine + 6, least.to(tl.float64))
    tl.store(mine + 7, most.to(tl.float64))
    tl.store(mine + 8, bad.to(tl.float64))
    passed = barrier(counter, passed, G)
    q = tl.arange(0, PP)
    there = q < G
    of_all = all_lines + q * LINE
    whole = tl.sum(tl.load(of_all, mask=there, other=0.0, cache_modifier=".cg"))
    weights = tl.load(of_all + 1, mask=there, other=0.0, cache_modifier=".cg")
    means = tl.load(of_all + 2, mask=there, other=0.0, cache_modifier=".cg")
    total = tl.sum(weights)
    mean = agreed_sum(weights * means, 0) / tl.where(total > 0.0, total, 1.0)
    squares = tl.sum(tl.load(of_all + 3, mask=there, other=0.0, cache_modifier=".cg"))
    squares += agreed_sum(weights * (means - mean) * (means - mean), 0)
    bottom = tl.min(tl.load(of_all + 4, mask=there, other=float("inf"), cache_modifier=".cg"))
    top = tl.max(tl.load(of_all + 5, mask=there, other=-float("inf"), cache_modifier=".cg"))
    least = tl.min(tl.load(of_all + 6, mask=there, other=float("inf"), cache_modifier=".cg"))
    most = tl.max(tl.load(of_all + 7, mask=there, other=-float("inf"), cache_modifier=".cg"))
    bad = tl.max(tl.load(of_all + 8, mask=there, other=0.0, cache_modifier=".cg"))
    return whole, total, mean, squares, bottom, top, least, most, bad, passed


@triton.jit
def nearest_over_programs(
    highest: tl.tensor, lowest: tl.tensor, lines: tl.tensor, counter: tl.tensor, passed: tl.tensor, G: tl.tensor,
    PP: tl.constexpr,
) -> Any:  # fmt: skip
    """The largest of ``highest`` and the smallest of ``lowest``."""
    if PP > 1:
        mine, all_lines = line_of_program(lines, passed, G)
        tl.store(mine, highest)
        tl.store(mine + 1, lowest)
        passed = barrier(counter, passed, G)
        q = tl.arange(0, PP)
        of_all = all_lines + q * LINE
        highest = tl.max(tl.load(of_all, mask=q < G, other=-float("inf"), cache_modifier=".cg"))
        lowest = tl.min(tl.load(of_all + 1, mask=q < G, other=float("inf"), cache_modifier=".cg"))
    return highest, lowest, passed
