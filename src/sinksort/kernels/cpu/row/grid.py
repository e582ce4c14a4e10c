"""Many values of a row on a grid: moved to its nodes, and what the plan says at these read at the values.

Each value goes to the six nodes around it with the weights of quintic interpolation, and what the plan says at the
nodes is read at the values by the same. All that is summed or read is smooth at the scale sqrt(eps), so cells of an
eighth of that lose little, and how little is measured: the interpolation is off by 5/1024 of the sixth difference.
(Four nodes and cubics would need half as many cells again, and all that is done with a plan grows with them.)

With s from -1/2 to 1/2, how far a value is from the middle of its cell, a quintic is E(s^2) + s O(s^2) for quadratics E
and O. At the nodes +-1/2, +-3/2 and +-5/2 these are given by sums and differences: see ``_through``, and ``_towards``
for the transposed.

Weights on the nodes can be negative; ``hats`` are those of linear interpolation, rougher and never negative, for what
must be.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from ..engine.compile import borrowing
from ..engine.eights import EIGHT, add_eights, load_eights
from ..engine.maths import F32, F64, I64, larger, size_of
from ..engine.sources import padded
from ..engine.vectors import choose, highest, lane_numbers, load, splat, store

BEYOND = 5  #: nodes more than cells
PER_CELL = EIGHT  #: numbers that are kept for one: six moments or coefficients, and how many values are there
_CELLS = 8.0  #: per sqrt(eps) of places
_MANY = 12  #: targets from which a grid is worth its trouble
_WORTH = 0.5  #: a grid is used where its nodes are fewer than this share of the values
_LEAST_WIDTH = 1e-12  #: of a cell, where all values are the same
_THERE = 6  #: which of the numbers says how many values are there
_f = np.float32


@borrowing
def cells_for(n: int, K: int, low: float, high: float, eps: float) -> int:
    """How many cells a grid over the places has; 0 if the values had better stand for themselves."""
    return 0 if K < _MANY else _worth(max(_CELLS * (high - low) / math.sqrt(eps), 8.0), n)


@borrowing
def finer_cells(cells: int, excess: float, n: int) -> int:
    """The same after a grid of that many was off by ``excess`` times what is accepted: its order is six."""
    return _worth((2.0 if excess < 64.0 else 4.0) * cells, n)


@borrowing
def _worth(wanted: float, n: int) -> int:
    return padded(int(wanted) + BEYOND + 1) - BEYOND if wanted < _WORTH * n - 21.0 else 0


@borrowing
def lay_grid(low: float, high: float, cells: int, nodes: F64) -> None:
    """Nodes one cell apart, from two cells below."""
    width = max((high - low) / cells, _LEAST_WIDTH)
    for k in range(cells + BEYOND):
        nodes[k] = low + width * (k - 2)


@borrowing
def locate(at: F64, n: int, low: float, high: float, cells: int, cell: I64, within: F32) -> None:
    """In which cell each value is, and how far from its middle."""
    per_unit = 1.0 / max((high - low) / cells, _LEAST_WIDTH)
    for i in range(padded(n)):  # what is behind the row is in some cell as well, and weighs nothing
        position = (at[i] - low) * per_unit
        c = min(int(position), cells - 1)
        cell[i], within[i] = c, position - c - 0.5


@borrowing
def moments(w: F32, n: int, cells: int, cell: I64, within: F32, of_cells: F64) -> None:
    """Sums of w, w s, ..., w s^5 and 1 over the values of each cell. They are float64, since they may be long."""
    of_cells[: PER_CELL * cells] = 0.0
    one, none = splat(1.0), splat(0.0)
    for i in range(0, n, 16):
        s, m0 = load(within, i), load(w, i)
        m1, q = m0 * s, s * s
        m2, m3 = m0 * q, m1 * q
        there = choose(lane_numbers() < float(n - i), one, none)
        add_eights(of_cells, cell, i, (m0, m1, m2, m3, m2 * q, m3 * q, there, none))


@njit(forceinline=True)
def _through(v1: Any, v2: Any, v3: Any) -> Any:
    """Coefficients of 1, q, q^2 of the quadratic that is v1, v2, v3 at q = 1/4, 9/4, 25/4."""
    rise, bend = (v2 - v1) * _f(1 / 2), (v3 - v2) * _f(1 / 24) - (v2 - v1) * _f(1 / 12)
    return v1 - rise * _f(1 / 4) + bend * _f(9 / 16), rise - bend * _f(5 / 2), bend


@njit(forceinline=True)
def _towards(m0: float, m1: float, m2: float) -> tuple[float, float, float]:
    """The transposed: moments of 1, q, q^2 as masses at q = 1/4, 9/4, 25/4 that have the same."""
    rise, bend = m1 - m0 / 4.0, m0 * (9.0 / 16.0) - m1 * (5.0 / 2.0) + m2
    return m0 - rise / 2.0 + bend / 12.0, rise / 2.0 - bend / 8.0, bend / 24.0


@borrowing
def masses(of_cells: F64, cells: int, out: F32) -> None:
    """The weight of each node, from the moments of the cells around it. What later cells add to waits in registers."""
    n0 = n1 = n2 = n3 = n4 = 0.0
    for c in range(cells):
        o = PER_CELL * c
        e1, e2, e3 = _towards(of_cells[o], of_cells[o + 2], of_cells[o + 4])
        d1, d2, d3 = _towards(of_cells[o + 1], of_cells[o + 3], of_cells[o + 5])
        e1, e2, e3, d2, d3 = 0.5 * e1, 0.5 * e2, 0.5 * e3, d2 * (1.0 / 3.0), d3 * (1.0 / 5.0)
        out[c] = n0 + (e3 - d3)
        n0, n1, n2, n3, n4 = n1 + (e2 - d2), n2 + (e1 - d1), n3 + (e1 + d1), n4 + (e2 + d2), e3 + d3
    out[cells], out[cells + 1], out[cells + 2], out[cells + 3], out[cells + 4] = n0, n1, n2, n3, n4


@borrowing
def hats(of_cells: F64, cells: int, out: F32) -> None:
    """Never negative: a cell's weight to its two ends, by its first two moments."""
    before = 0.0
    for c in range(cells):
        half, m1 = 0.5 * of_cells[PER_CELL * c], of_cells[PER_CELL * c + 1]
        out[c + 2] = before + max(half - m1, 0.0)
        before = max(half + m1, 0.0)
    out[cells + 2] = before
    out[0] = out[1] = out[cells + 3] = out[cells + 4] = 0.0


@borrowing
def occupied_nodes(of_cells: F64, cells: int, occupied: F32) -> None:
    """One at the ends of cells that hold values, zero elsewhere."""
    before = 0.0
    for c in range(cells):
        here = min(of_cells[PER_CELL * c + _THERE], 1.0)
        occupied[c + 2] = max(before, here)
        before = here
    occupied[cells + 2] = before
    occupied[0] = occupied[1] = occupied[cells + 3] = occupied[cells + 4] = 0.0


@borrowing
def polynomials(F: F32, cells: int, coef: F32) -> None:
    """The quintic through six nodes, for each cell: coefficients of 1, s, ..., s^5."""
    for c in range(cells):
        o = PER_CELL * c
        f0, f1, f2, f3, f4, f5 = F[c], F[c + 1], F[c + 2], F[c + 3], F[c + 4], F[c + 5]
        c0, c2, c4 = _through(_f(0.5) * (f2 + f3), _f(0.5) * (f1 + f4), _f(0.5) * (f0 + f5))
        c1, c3, c5 = _through(f3 - f2, _f(1 / 3) * (f4 - f1), _f(1 / 5) * (f5 - f0))
        coef[o], coef[o + 1], coef[o + 2], coef[o + 3], coef[o + 4], coef[o + 5] = c0, c1, c2, c3, c4, c5


@borrowing
def interpolate(coef: F32, n: int, cell: I64, within: F32, out: F32) -> None:
    """``out`` is as long as the row, padded."""
    for i in range(0, n, 16):
        s = load(within, i)
        q = s * s
        c0, c1, c2, c3, c4, c5 = load_eights(coef, cell, i)
        store(out, i, c0 + q * (c2 + q * c4) + s * (c1 + q * (c3 + q * c5)))


@borrowing
def remainder(F: F32, cells: int, occupied: F32) -> float:
    """The largest error of interpolation in cells that hold values."""
    worst, none = splat(0.0), splat(0.0)
    for k in range(3, cells + 2, 16):
        near, far = load(F, k - 1) + load(F, k + 1), load(F, k - 2) + load(F, k + 2)
        sixth = (load(F, k - 3) + load(F, k + 3) - load(F, k) * 20.0) - far * 6.0 + near * 15.0
        there = (load(occupied, k) > 0.0) & (lane_numbers() < float(cells + 2 - k))
        worst = larger(worst, choose(there, size_of(sixth), none))
    return 5.0 / 1024.0 * float(highest(worst))
