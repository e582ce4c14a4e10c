"""The grid of a long row: moments become masses at its nodes, which are brought to every second node; tables back.

Coarse node c is node 2 (c - 6) of the grid. What the nodes in between hold goes to fourteen coarse neighbours, with the
weights of interpolation, so sums with polynomials of degree 13 stay what they are; six coarse nodes lie beyond each
end. The plan is as smooth as the rule of its targets can see, and there are 3 K cells for K nodes of the rule: so half
of them are nearly always enough for the potentials.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .spread import LO

AHEAD = tl.constexpr(6)  #: coarse nodes before the first node
#: How interpolation midway between coarse nodes weighs the two nearest, the next two, ...: degree 13.
W1, W2, W3, W4, W5, W6, W7 = (
    tl.constexpr(w / 2**25) for w in (20612592, -5153148, 1717716, -490776, 104104, -14196, 924)
)
_AT_ONCE = tl.constexpr(16)  #: chunks that are added up together
_SLICE = tl.constexpr(32)  #: numbers that a program gathers


@triton.jit
def add_up(
    moments: tl.tensor, chunks: tl.tensor, skip: tl.tensor, M: tl.tensor, room: tl.tensor, out: tl.tensor,
    UP: tl.constexpr, SHARES: tl.constexpr,
) -> None:  # fmt: skip
    """Masses at the nodes are left in ``out``, by way of ``room`` for UP numbers; or their shares of all mass.

    Chunks of the row are ``skip`` apart, and may stand where ``room`` and ``out`` are. There are as many moments as
    nodes with their padding, sixteen of each wide cell, and M turns those into masses at its sixteen nodes, seven of
    which it shares with the next wide cell.
    """
    HI: tl.constexpr = UP // 16
    q = tl.arange(0, UP)
    total = tl.zeros((UP,), tl.float32)
    for first in range(0, chunks, _AT_ONCE):
        g = first + tl.arange(0, _AT_ONCE)
        where = g[:, None] * skip + q[None, :]
        total += tl.sum(tl.load(moments + where, mask=(g < chunks)[:, None], other=0.0), 0)
    of_cells = tl.dot(tl.reshape(total, (HI, 16)), M, input_precision="ieee")
    tl.debug_barrier()  # until all have read
    tl.store(room + tl.arange(0, HI)[:, None] * 16 + tl.arange(0, 16)[None, :], of_cells)
    tl.debug_barrier()
    h = q // LO
    r = q - LO * h
    mass = tl.load(room + h * 16 + r, mask=h < HI, other=0.0)
    mass += tl.load(room + (h - 1) * 16 + r + LO, mask=(r < 16 - LO) & (h > 0) & (h <= HI), other=0.0)
    if SHARES:
        mass *= 1.0 / tl.sum(mass)
    tl.store(out + q, mass, mask=q < LO * HI + 7)
    tl.debug_barrier()


@triton.jit(noinline=True)
def add_up_moments(
    moments: tl.tensor, chunks: tl.tensor, skip: tl.tensor, to_nodes: tl.tensor, room: tl.tensor, out: tl.tensor,
    UP: tl.constexpr, SHARES: tl.constexpr = True,
) -> None:  # fmt: skip
    """``add_up`` for sums of powers of places."""
    add_up(moments, chunks, skip, from_moments(to_nodes), room, out, UP, SHARES)


@triton.jit(noinline=True)
def add_up_counts(
    counts: tl.tensor, chunks: tl.tensor, skip: tl.tensor, room: tl.tensor, out: tl.tensor, UP: tl.constexpr
) -> None:
    """``add_up`` for numbers of values in cells."""
    add_up(counts, chunks, skip, from_counts(), room, out, UP, False)


@triton.jit
def from_moments(to_nodes: tl.tensor) -> Any:
    """M of ``grid.spread``."""
    return tl.load(to_nodes + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :])


@triton.jit
def from_counts() -> Any:
    """The M for counts of values in cells: a cell reaches eight nodes."""
    behind = tl.arange(0, 16)[None, :] - tl.arange(0, 16)[:, None]
    return tl.where((behind >= 0) & (behind < 8), 1.0, 0.0)


@triton.jit(do_not_specialize=["moments_row", "G"])
def gather(
    moments: tl.tensor, moments_row: tl.tensor, out: tl.tensor, G: tl.tensor, WIDTH: tl.constexpr, BLOCK: tl.constexpr
) -> None:  # fmt: skip
    """One chunk of many, by several programs a row: WIDTH numbers a chunk, BLOCK chunks at a time."""
    SLICES: tl.constexpr = WIDTH // _SLICE
    row = (tl.program_id(0) // SLICES).to(tl.int64)
    q = tl.program_id(0) % SLICES * _SLICE + tl.arange(0, _SLICE)
    total = tl.zeros((_SLICE,), tl.float32)
    for first in range(0, G, BLOCK):
        g = first + tl.arange(0, BLOCK)
        where = row * moments_row + g[:, None] * WIDTH + q[None, :]
        total += tl.sum(tl.load(moments + where, mask=(g < G)[:, None], other=0.0), 0)
    tl.store(out + row * WIDTH + q, total)


def programs_to_gather(width: int) -> int:
    """Of one row."""
    return width // int(_SLICE.value)


@triton.jit
def at_node(table: tl.tensor, q: tl.tensor, NODES: tl.constexpr) -> Any:
    """0 where there is no such node."""
    return tl.load(table + q, mask=(q >= 0) & (q < NODES), other=0.0)


@triton.jit
def steps_to_node(q: tl.tensor, CELLS: tl.constexpr) -> Any:
    """From the middle of the row, a whole number: its product with the first 15 bits of y is exact."""
    return (q - 3 - CELLS // 2).to(tl.float32)


@triton.jit
def steps_to_coarse_node(c: tl.tensor, CELLS: tl.constexpr) -> Any:
    return steps_to_node(2 * (c - AHEAD), CELLS)


@triton.jit
def both_sides(masses: tl.tensor, q: tl.tensor, away: tl.constexpr, NODES: tl.constexpr) -> Any:
    return at_node(masses, q - away, NODES) + at_node(masses, q + away, NODES)


@triton.jit
def coarse(masses: tl.tensor, NODES: tl.constexpr, CP: tl.constexpr) -> Any:
    """Masses at the coarse nodes."""
    q = 2 * (tl.arange(0, CP) - AHEAD)
    m = at_node(masses, q, NODES)
    m += W1 * both_sides(masses, q, 1, NODES)
    m += W2 * both_sides(masses, q, 3, NODES)
    m += W3 * both_sides(masses, q, 5, NODES)
    m += W4 * both_sides(masses, q, 7, NODES)
    m += W5 * both_sides(masses, q, 9, NODES)
    m += W6 * both_sides(masses, q, 11, NODES)
    m += W7 * both_sides(masses, q, 13, NODES)
    return m


@triton.jit
def neighbours(table: tl.tensor, c: tl.tensor, away: tl.constexpr, mask: tl.tensor) -> Any:
    return tl.load(table + c + 1 - away, mask=mask, other=0.0) + tl.load(table + c + away, mask=mask, other=0.0)


@triton.jit
def refined(table: tl.tensor, q: tl.tensor, NODES: tl.constexpr) -> Any:
    """What a table of the coarse nodes says about node q: ``coarse`` the other way."""
    inside, odd = q < NODES, (q < NODES) & (q % 2 == 1)
    c = q // 2 + AHEAD
    value = W1 * neighbours(table, c, 1, odd)
    value += W2 * neighbours(table, c, 2, odd)
    value += W3 * neighbours(table, c, 3, odd)
    value += W4 * neighbours(table, c, 4, odd)
    value += W5 * neighbours(table, c, 5, odd)
    value += W6 * neighbours(table, c, 6, odd)
    value += W7 * neighbours(table, c, 7, odd)
    return tl.where(odd, value, tl.load(table + c, mask=inside, other=0.0))


@triton.jit
def rough(masses: tl.tensor, NODES: tl.constexpr, CP: tl.constexpr) -> Any:
    """Coarse masses that are good enough for a staircase: smoothed, and none of them negative."""
    q = 2 * (tl.arange(0, CP) - AHEAD)
    m = 6.0 * at_node(masses, q, NODES)
    m += 4.0 * both_sides(masses, q, 1, NODES)
    m += both_sides(masses, q, 2, NODES)
    return tl.maximum(m, 0.0)


@triton.jit
def occupied(present: tl.tensor, c: tl.tensor, NODES: tl.constexpr) -> Any:
    """Whether there are values near coarse node c."""
    q = 2 * (c - AHEAD)
    here = (at_node(present, q - 1, NODES) != 0.0) | (at_node(present, q + 1, NODES) != 0.0)
    return here | (at_node(present, q, NODES) != 0.0)
