"""Scratch of a thread, and what is common to all passes over a row: its targets, weights, sources and state."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F32, F64, I32, I64, copied, in_lines
from ..engine.sources import padded
from ..engine.vectors import load, root, splat, store
from ..sort.rows import sort_state
from .grid import BEYOND, PER_CELL, hats, lay_grid, locate, masses, moments, occupied_nodes
from .read import LASTS

# Rows of Work.n32, .n64 and .n_int: of a row's values in the order they came, or of its sources in their own.
XS, AW, READ, WITHIN, MASS, ROOT, OCCUPIED, V, WEIGHT, Y_0, PHI_0, MEAN, COV, COV_2, DIRECT, GIVEN = range(16)
AT, PLACE, T, R = range(4)
CELL, COUNT, BEST, GLO, GHI = range(5)
# Rows of Work.k32, .k64 and .k_int: of the targets.
Y32, B, EXCESS, PHI, U, S, INV, RIDGE, LAM, Z, TENSION = range(11)
Y, B64, H, SUMS = range(4)
LO, HI, ENDS, NEAR_LO, NEAR_HI, NEAR_ENDS = range(6)

NODES = 4  #: where a state has, behind h and the numbers of ``places``, how many nodes another rule has that answered
SAVED = 128  #: up to so many targets the eliminated Laplacian is part of the state


class Work(NamedTuple):
    """N values or sources and K targets, both padded to a multiple of 16."""

    n32: F32
    n64: F64
    n_int: I64
    k32: F32
    k64: F64
    k_int: I64
    last: F32  #: (LASTS K)
    small: F32  #: (9 K + 256)
    in_cells: F32  #: (PER_CELL N)
    moments: F64  #: (PER_CELL N)
    parts: F32  #: (2 N + 16 K)
    G: F32  #: (K N)
    Q: F32
    W: F32  #: (K K)


@jit
def workspace(n: int, K: int) -> Work:
    """What belongs to targets is zero behind them; what belongs to values or sources is written before it is read.

    A grid of few nodes then touches little of what there is for as many sources as values.
    """
    N, stride = padded(n), padded(K)
    k32, k64, k_int, last = 11 * stride, 4 * stride, 6 * stride, LASTS * stride
    small, n32, in_cells, parts = 9 * stride + 256, 16 * N, PER_CELL * N, 2 * N + 16 * stride
    single = in_lines(k32 + last + small + n32 + in_cells + parts + 2 * stride * N + stride * stride, np.float32)
    double = in_lines(k64 + 4 * N + PER_CELL * N, np.float64)
    whole = in_lines(k_int + 5 * (N + 16), np.int64)
    single[: k32 + last], double[:k64], whole[:k_int] = 0.0, 0.0, 0
    ends = np.cumsum(np.array((k32, last, small, n32, in_cells, parts, stride * N, stride * N, stride * stride)))
    return Work(
        single[ends[2] : ends[3]].reshape(16, N),
        double[k64 : k64 + 4 * N].reshape(4, N),
        whole[k_int:].reshape(5, N + 16),
        single[:k32].reshape(11, stride),
        double[:k64].reshape(4, stride),
        whole[:k_int].reshape(6, stride),
        single[ends[0] : ends[1]],
        single[ends[1] : ends[2]],
        single[ends[3] : ends[4]],
        double[k64 + 4 * N :],
        single[ends[4] : ends[5]],
        single[ends[5] : ends[6]],
        single[ends[6] : ends[7]],
        single[ends[7] :],
    )


@jit_no_refcount
def state_parts(n: int, K: int, whole: bool) -> tuple[int, int, int]:
    """Where a state has float32 (u, 1/pivots, W) and int32 (cells, order or masses), and its size: all in their units.

    It begins with float64: h, the 4 numbers of ``places``, and room for 4 more (``NODES``). W is left out where there
    are many targets, and where all stand in for a rule (``whole``). All but the last begin with a line of the cache, if
    the state does.
    """
    stride = padded(K)
    single = 2 * stride + 16
    integer = single + 2 * stride + (0 if whole or K > SAVED else stride * stride)
    return single, integer, padded(integer + 1 + n)


@jit_no_refcount
def state_size(n: int, K: int, m: int) -> int:
    """Of a row: the larger of what a rule needs and what all m targets do, and a flag that says which it was.

    m is 0 where the targets are no rule, or more than can stand in for it; then there is no flag, but room for a sort.
    """
    by_rule = state_parts(n, K, False)[2]
    return max(by_rule, sort_state(n, K)) if m == 0 else max(by_rule, state_parts(n, m, True)[2]) + 16


@jit_no_refcount
def given_into(k: Work, y: F32, b: F32, a: F32, row: int, n: int, K: int, steps: tuple[int, int, int, int, int],
               first_one: bool) -> None:  # fmt: skip
    """Targets and weights of a row; what rows share is there after the first one."""
    if first_one or steps[0] > 0:
        targets_into(k, y, b, row * steps[0], K)
    if first_one or steps[4] > 0:
        weights_into(k, a, row * n, n, steps[4] > 0)


@jit_no_refcount
def targets_into(k: Work, y: F32, b: F32, first: int, K: int) -> None:
    copied(y[first:], k.k64[Y, :K])
    copied(b[first:], k.k64[B64, :K])
    copied(y[first:], k.k32[Y32, :K])
    copied(b[first:], k.k32[B, :K])


@jit_no_refcount
def weights_into(k: Work, a: F32, first: int, n: int, weighted: bool) -> None:
    aw = k.n32[AW]
    if weighted:
        copied(a[first:], aw[:n])
    else:
        for i in range(0, padded(n), 16):
            store(aw, i, splat(1.0 / n))
    aw[n:] = 0.0


@jit_no_refcount
def sources_into(k: Work, n: int, cells: int, low: float, high: float, order: I32) -> int:
    """The sources of a row: its values in the order given, or the nodes of a grid. Returns how many."""
    if cells > 0:
        N = grid_into(k, n, cells, low, high)
        moments(k.n32[AW], n, cells, k.n_int[CELL], k.n32[WITHIN], k.moments)
        masses(k.moments, cells, k.n32[MASS])
        hats(k.moments, cells, k.n32[ROOT])
        occupied_nodes(k.moments, cells, k.n32[OCCUPIED])
        return N
    N = values_into(k, n, order)
    copied(k.n32[MASS], k.n32[ROOT])
    k.n32[OCCUPIED, :] = 1.0
    return N


@jit_no_refcount
def grid_into(k: Work, n: int, cells: int, low: float, high: float) -> int:
    """The nodes of a grid, and where on it the values are. Returns how many nodes there are."""
    lay_grid(low, high, cells, k.n64[PLACE])
    locate(k.n64[AT], n, low, high, cells, k.n_int[CELL], k.n32[WITHIN])
    return cells + BEYOND


@jit_no_refcount
def values_into(k: Work, n: int, order: I32) -> int:
    """Places and masses of values in order."""
    N, at, place, aw, mass = padded(n), k.n64[AT], k.n64[PLACE], k.n32[AW], k.n32[MASS]
    for i in range(n):
        place[i], mass[i] = at[order[i]], aw[order[i]]
    place[n:N], mass[n:N] = place[n - 1], 0.0
    return N


@jit_no_refcount
def roots_into(k: Work, n: int, N: int, cells: int) -> None:
    """The roots of what sources weigh, never negative, once they are in place."""
    if cells > 0:
        moments(k.n32[AW], n, cells, k.n_int[CELL], k.n32[WITHIN], k.moments)
        hats(k.moments, cells, k.n32[ROOT])
    else:
        copied(k.n32[MASS], k.n32[ROOT])
    take_roots(k.n32[ROOT], N)


@jit_no_refcount
def take_roots(masses: F32, N: int) -> None:
    for i in range(0, N, 16):
        store(masses, i, root(load(masses, i)))
