"""Scratch of a thread, and what is common to all passes over a row: its targets, weights, sources and state."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .numba_compile import exact
from .numba_maths import F32, F64, I32, I64, copied
from .numba_rows_sources import hats, lay_grid, locate, occupied_nodes, padded, spread
from .numba_simd import load, root, store
from .numba_sort import sort_state

# Rows of Work.n32, .n64 and .n_int: of a row's values in the order they came, or of its sources in their own.
XS, AW, READ, WITHIN, MASS, ROOT, OCCUPIED, V, WEIGHT, Y_0, PHI_0, MEAN, COV, COV_2, DIRECT, GIVEN = range(16)
AT, PLACE, T, R = range(4)
CELL, COUNT, BEST, GLO, GHI = range(5)
# Rows of Work.k32, .k64 and .k_int: of the targets.
Y32, B, EXCESS, PHI, U, S, INV, RIDGE, LAM, Z, TENSION = range(11)
Y, B64, H, SUMS = range(4)
LO, HI, ENDS, NEAR_LO, NEAR_HI, NEAR_ENDS = range(6)

SAVED = 128  #: up to so many targets the eliminated Laplacian is part of the state


class Work(NamedTuple):
    """N values or sources and K targets, both padded to a multiple of 16."""

    n32: F32
    n64: F64
    n_int: I64
    k32: F32
    k64: F64
    k_int: I64
    last: F32  #: (3 K)
    small: F32  #: (9 K)
    in_cells: F32  #: (4 N)
    moments: F64  #: (4 N)
    parts: F32  #: (2 N + 16 K)
    G: F32  #: (K N)
    Q: F32
    W: F32  #: (K K)


@exact
def workspace(n: int, K: int) -> Work:
    """What belongs to targets is zero behind them; what belongs to values or sources is written before it is read.

    A grid of few nodes then touches little of what there is for as many sources as values.
    """
    N, stride = padded(n), padded(K)
    return Work(
        np.empty((16, N), np.float32),
        np.empty((4, N), np.float64),
        np.empty((5, N + 16), np.int64),
        np.zeros((11, stride), np.float32),
        np.zeros((4, stride), np.float64),
        np.zeros((6, stride), np.int64),
        np.zeros(3 * stride, np.float32),
        np.empty(9 * stride, np.float32),
        np.empty(4 * N, np.float32),
        np.empty(4 * N, np.float64),
        np.empty(2 * N + 16 * stride, np.float32),
        np.empty(stride * N, np.float32),
        np.empty(stride * N, np.float32),
        np.empty(stride * stride, np.float32),
    )


@exact
def state_parts(n: int, K: int, whole: bool) -> tuple[int, int, int]:
    """Where a state has its float32 (u, 1/pivots, W) and int32 (cells, order), and its size: all in their units.

    It begins with float64: h and the 4 numbers of ``places``. W is left out where there are many targets, and where all
    stand in for a rule (``whole``).
    """
    stride = padded(K)
    single = 2 * (stride + 4)
    integer = single + 2 * stride + (0 if whole or K > SAVED else (K + 3) // 4 * 4 * stride)
    return single, integer, (integer + 1 + n + 1) // 2 * 2


@exact
def state_size(n: int, K: int, m: int) -> int:
    """Of a row: the larger of what a rule needs and what all m targets do, and a flag that says which it was.

    m is 0 where the targets are no rule, or more than can stand in for it; then there is no flag, but room for a sort.
    """
    by_rule = state_parts(n, K, False)[2]
    return max(by_rule, sort_state(n, K)) if m == 0 else max(by_rule, state_parts(n, m, True)[2]) + 2


@exact
def given_into(k: Work, y: F32, b: F32, a: F32, row: int, n: int, K: int, steps: tuple[int, int, int, int, int],
               first_one: bool) -> None:  # fmt: skip
    """Targets and weights of a row; what rows share is there after the first one."""
    if first_one or steps[0] > 0:
        targets_into(k, y, b, row * steps[0], K)
    if first_one or steps[4] > 0:
        weights_into(k, a, row * n, n, steps[4] > 0)


@exact
def targets_into(k: Work, y: F32, b: F32, first: int, K: int) -> None:
    for j in range(K):
        k.k64[Y, j], k.k64[B64, j] = y[first + j], b[first + j]
        k.k32[Y32, j], k.k32[B, j] = y[first + j], b[first + j]


@exact
def weights_into(k: Work, a: F32, first: int, n: int, weighted: bool) -> None:
    for i in range(n):
        k.n32[AW, i] = a[first + i] if weighted else np.float32(1.0 / n)
    k.n32[AW, n:] = 0.0


@exact
def sources_into(k: Work, n: int, cells: int, low: float, high: float, order: I32) -> int:
    """The sources of a row: its values in the order given, or the nodes of a grid. Returns how many."""
    at, place, aw = k.n64[AT], k.n64[PLACE], k.n32[AW]
    mass, roots = k.n32[MASS], k.n32[ROOT]
    if cells > 0:
        N = cells + 3
        lay_grid(low, high, cells, place)
        locate(at, n, low, high, cells, k.n_int[CELL], k.n32[WITHIN])
        spread(aw, n, cells, k.n_int[CELL], k.n32[WITHIN], k.moments, mass[:N])
        hats(k.moments, cells, roots[:N])
        occupied_nodes(n, k.n_int[CELL], k.n32[OCCUPIED, :N])
        return N
    N = padded(n)
    for i in range(n):
        place[i], mass[i] = at[order[i]], aw[order[i]]
    place[n:N], mass[n:N] = place[n - 1], 0.0
    copied(mass, roots)
    k.n32[OCCUPIED, :] = 1.0
    return N


@exact
def take_roots(masses: F32, N: int) -> None:
    for i in range(0, N, 16):
        store(masses, i, root(load(masses, i)))
