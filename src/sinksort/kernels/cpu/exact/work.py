"""Scratch of a thread, and the rows that a kernel is given.

What     Arrays that every row of a task uses again, with room for sixteen numbers behind the last one.
When     Once a task, which is a share of the rows.
Why      Allocation in the loop over rows costs more than a short row does.
Keeps    Nothing between calls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..engine.compile import jit
from ..engine.maths import F64, I64
from .laplacian import corners_of
from .newton import Band


class Rows(NamedTuple):
    """R problems. What has one row in place of R is the same for all."""

    x: F64  #: (R, n) squashed values, in increasing order
    a: F64  #: (R or 1, n) weights; rows sum to 1
    y: F64  #: (R or 1, m) increasing targets
    b: F64  #: (R or 1, m) their weights; rows sum to 1
    eps: F64  #: (R)
    costs: F64  #: (R, n m) for a cost that is given by its matrix, else (1, 0)


class Cotangents(NamedTuple):
    """Of the fields of ``Rows``, one row for each of R. ``costs`` is (0, 0) unless the cost is given by its matrix."""

    x: F64
    a: F64
    y: F64
    b: F64
    eps: F64
    costs: F64


class Work(NamedTuple):
    values: F64  #: (12, n) see the names below
    targets: F64  #: (16, m)
    kept: I64  #: (2, most of n and m) which values, and which targets, weigh something
    lines: F64  #: (8, m) costs, slopes, exponents
    band: Band


#: Rows of ``Work.values``.
X, A, V, SPARE, MOST, RAW, Z, W, OF, Z_MOVES, AT_MOVES, OUT = range(12)
#: Rows of ``Work.targets``; six from GAMMA on belong to ``newton``.
Y, B, G0, GAMMA, LEVEL, SUM_G, SUM_Y, SUM_B, SUM_PAYLOAD = 0, 1, 2, 3, 9, 10, 11, 12, 13


@jit
def workspace(n: int, m: int, with_band: bool) -> Work:
    """Return scratch for rows of n values and m targets."""
    N, K = (n + 3) // 4 * 4 + 16, (m + 15) // 16 * 16 + 16
    groups = N // 4
    size = N * K if with_band else 0
    square = K * K if with_band else 0
    band = Band(
        np.empty(size + 16),
        np.empty(groups, np.int64),
        np.empty(groups, np.int64),
        np.empty(groups + 1, np.int64),
        np.empty(K, np.int64),
        np.empty(square + 16),
        np.empty(K),
        np.empty(size + 16, np.float32),
        np.empty(square + 16, np.float32),
        np.empty((3, K), np.float32),
        np.empty(N, np.float32),
        np.empty(48 * K + 272),
        np.empty(48 * K + 272, np.float32),
    )
    corners_of(band.corners)
    corners_of(band.corners32)
    return Work(np.zeros((12, N)), np.zeros((16, K)), np.empty((2, max(N, K)), np.int64), np.empty((8, K)), band)
