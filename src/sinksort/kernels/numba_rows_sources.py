"""Where the weight of a row stands when its plan is solved: at its own values in order, or on a grid.

Many values are moved to the nodes of a grid, each to the four around it with the weights of cubic interpolation; what
the plan says at the nodes is read at the values by the same interpolation. Everything that is summed or read is smooth
at the scale sqrt(eps), so cells of an eleventh of that lose little, and how little is measured: the interpolation is
off by 3/128 of the fourth difference. Weights on the nodes can be negative; ``hats`` are those of linear interpolation,
rougher and never negative, for what must be.
"""

from __future__ import annotations

import math

import numpy as np

from .numba_compile import exact
from .numba_maths import F32, F64, I32, I64

_CELLS = 11.0  #: per sqrt(eps) of places
_MANY = 12  #: targets from which a grid is worth its trouble
_WORTH = 0.7  #: a grid is used where its nodes are fewer than this share of the values
_LEAST_WIDTH = 1e-12  #: of a cell, where all values are the same


@exact
def padded(n: int) -> int:
    return (n + 15) // 16 * 16


@exact
def range_of(at: F64, n: int) -> tuple[float, float]:
    low, high = at[0], at[0]
    for i in range(n):
        low, high = min(low, at[i]), max(high, at[i])
    return low, high


@exact
def cells_for(n: int, K: int, low: float, high: float, eps: float) -> int:
    """How many cells a grid over the places has; 0 if the values had better stand for themselves."""
    return 0 if K < _MANY else _worth(max(_CELLS * (high - low) / math.sqrt(eps), 8.0), n)


@exact
def finer_cells(cells: int, excess: float, n: int) -> int:
    """The same after a grid of that many was off by ``excess`` times what is accepted: its order is four."""
    return _worth((2.0 if excess < 16.0 else 4.0) * cells, n)


@exact
def _worth(wanted: float, n: int) -> int:
    return padded(int(wanted) + 4) - 3 if wanted < _WORTH * n - 19.0 else 0


@exact
def sort_places(at: F64, n: int, low: float, high: float, order: I32, count: I64, out: F64) -> None:
    """``out`` = at[order], increasing: into n buckets of equal width, then by insertion; the last place is repeated."""
    per_unit = (n - 0.5) / (high - low) if high > low else 0.0
    if not per_unit < 1e300:
        per_unit = 0.0
    count[: n + 1] = 0
    for i in range(n):
        count[int((at[i] - low) * per_unit) + 1] += 1
    for k in range(1, n + 1):
        count[k] += count[k - 1]
    for i in range(n):
        k = int((at[i] - low) * per_unit)
        out[count[k]], order[count[k]] = at[i], i
        count[k] += 1
    moves = 0
    for i in range(1, n):
        value, index, k = out[i], order[i], i
        while k > 0 and out[k - 1] > value:
            out[k], order[k] = out[k - 1], order[k - 1]
            k -= 1
        out[k], order[k] = value, index
        moves += i - k
        if moves > 32 * n:
            _shell_sort(out, n, order)  # many distinct values in few buckets
            break
    out[n:] = out[n - 1]


@exact
def _shell_sort(values: F64, n: int, order: I32) -> None:
    gap = n // 2
    while gap > 0:
        for i in range(gap, n):
            value, index, k = values[i], order[i], i
            while k >= gap and values[k - gap] > value:
                values[k], order[k] = values[k - gap], order[k - gap]
                k -= gap
            values[k], order[k] = value, index
        gap = 1 if gap == 2 else int(gap / 2.2)


@exact
def lay_grid(low: float, high: float, cells: int, nodes: F64) -> None:
    """Nodes one cell apart, from one cell below."""
    width = max((high - low) / cells, _LEAST_WIDTH)
    for k in range(cells + 3):
        nodes[k] = low + width * (k - 1)


@exact
def locate(at: F64, n: int, low: float, high: float, cells: int, cell: I64, within: F32) -> None:
    """In which cell each value is, and how far."""
    per_unit = 1.0 / max((high - low) / cells, _LEAST_WIDTH)
    for i in range(n):
        position = (at[i] - low) * per_unit
        c = min(int(position), cells - 1)
        cell[i], within[i] = c, position - c


@exact
def spread(w: F32, n: int, cells: int, cell: I64, within: F32, in_cells: F64, masses: F32) -> None:
    """Moves w to the nodes: moments of the cells first, 1, f, f^2, f^3 of how far in; then each to its four nodes.

    The polynomials of cubic interpolation from -1, 0, 1, 2 are -f (f - 1) (f - 2) / 6, (f + 1) (f - 1) (f - 2) / 2,
    -(f + 1) f (f - 2) / 2 and (f + 1) f (f - 1) / 6. Sums are float64, since they may be long.
    """
    in_cells[: 4 * cells] = 0.0
    for i in range(n):
        f, o = within[i], 4 * cell[i]
        w1 = w[i] * f
        w2 = w1 * f
        in_cells[o] += w[i]
        in_cells[o + 1] += w1
        in_cells[o + 2] += w2
        in_cells[o + 3] += w2 * f
    sixth, half, third = 1.0 / 6.0, 0.5, 1.0 / 3.0
    masses[:] = 0.0
    for c in range(cells):
        m0, m1, m2, m3 = in_cells[4 * c], in_cells[4 * c + 1], in_cells[4 * c + 2], in_cells[4 * c + 3]
        masses[c] += half * m2 - third * m1 - sixth * m3
        masses[c + 1] += m0 - half * m1 - m2 + half * m3
        masses[c + 2] += m1 + half * (m2 - m3)
        masses[c + 3] += sixth * (m3 - m1)


@exact
def hats(in_cells: F64, cells: int, out: F32) -> None:
    """Never negative: a cell's weight to its two ends, by the first two moments that ``spread`` left."""
    out[:] = 0.0
    for c in range(cells):
        m0, m1 = in_cells[4 * c], in_cells[4 * c + 1]
        out[c + 1] += max(m0 - m1, 0.0)
        out[c + 2] += max(m1, 0.0)


@exact
def polynomials(F: F32, cells: int, coef: F32) -> None:
    """The cubic through four nodes, for each cell: coefficients of 1, f, f^2, f^3."""
    sixth, half, third = np.float32(1.0 / 6.0), np.float32(0.5), np.float32(1.0 / 3.0)
    for c in range(cells):
        f0, f1, f2, f3 = F[c], F[c + 1], F[c + 2], F[c + 3]
        coef[4 * c] = f1
        coef[4 * c + 1] = f2 - third * f0 - half * f1 - sixth * f3
        coef[4 * c + 2] = half * (f0 + f2) - f1
        coef[4 * c + 3] = half * (f1 - f2) + sixth * (f3 - f0)


@exact
def interpolate(coef: F32, n: int, cell: I64, within: F32, out: F32) -> None:
    for i in range(n):
        o, f = 4 * cell[i], within[i]
        out[i] = coef[o] + f * (coef[o + 1] + f * (coef[o + 2] + f * coef[o + 3]))


@exact
def occupied_nodes(n: int, cell: I64, occupied: F32) -> None:
    """One at the ends of cells that hold values, zero elsewhere."""
    occupied[:] = 0.0
    for i in range(n):
        occupied[cell[i] + 1] = 1.0
        occupied[cell[i] + 2] = 1.0


@exact
def remainder(F: F32, cells: int, occupied: F32) -> float:
    """The largest error of interpolation in cells that hold values."""
    worst = 0.0
    for k in range(2, cells + 1):
        if occupied[k] > 0.0:
            fourth = F[k - 2] + F[k + 2] - np.float32(4.0) * (F[k - 1] + F[k + 1]) + np.float32(6.0) * F[k]
            worst = max(worst, abs(fourth))
    return 3.0 / 128.0 * worst
