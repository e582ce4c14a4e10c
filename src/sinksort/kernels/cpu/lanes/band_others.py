"""Rows of a batch that do not go sixteen at a time: they are given to the kernels for one row.

What     The layout of a state, and the calls of ``row`` for a row that is not soft enough, for what is left of a batch
         when sixteen are no more, and for gradients of which nearly all cancels.
When     ``lanes.band_rows``, ``lanes.band_rows_backward`` and ``lanes.band_push`` call it.
Keeps    Of sixteen rows in lanes: u, 1 / pivots and edges of Newton's matrix, then the order of each row and a flag.
         Behind that each row has room for the state of the kernels for one row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F32, I32
from ..engine.sources import padded
from ..row.all_targets import all_targets, pull_ruled, ruled_backward
from ..row.double_backward import double_backward
from ..row.solve import pull_rows, rows_backward
from ..row.work import state_parts, state_size
from .band_shape import COV, MASS, PHI, SHARE, WEIGHT, WIDTH, BandShape

_Steps = tuple[int, int, int, int, int]


class Rule(NamedTuple):
    """Targets that rows share: all of them, or nodes in their place. ``last`` is empty where there is no rule."""

    y: F32
    b: F32
    phi: F32
    last: F32


class Layout(NamedTuple):
    """Of a state of sixteen rows, in float32: where things begin; sizes of a row in lanes, elsewhere, and in all."""

    inv: int
    W: int
    order: int
    flag: int
    lanes: int
    other: int
    size: int


@jit
def band_layout(n: int, K: int, m: int) -> Layout:
    KP = (K + 3) // 4 * 4
    width = min(KP, WIDTH)
    inv, W = 16 * KP, 32 * KP
    order = W + 16 * KP * width
    flag = order + 16 * n
    lanes = (flag + 16) // 16 + 1 & ~1
    other = state_parts(n, max(m, K), True)[2]
    return Layout(inv, W, order, flag, lanes, other, max(lanes + other, state_size(n, K, m)))


@jit_no_refcount
def place_of(at: Layout, row: int) -> int:
    """Where the state of a row begins that is given to others."""
    return row // 16 * 16 * at.size + 16 * at.lanes + row % 16 * at.other


@jit
def all_of(y: F32, phi: F32, K: int, m: int) -> Rule:
    """All m equal targets in place of the nodes of a rule."""
    none = np.int64(0)
    targets, weights, levels = all_targets(y, phi, none, none, K, m)
    return Rule(targets, weights, levels, y[:0])


@jit
def finer_of(packed: F32) -> Rule:
    """A finer rule as it comes from ``cpu.rows``: y, b, phi and six lines of ``last`` behind each other."""
    K = len(packed) // 9
    return Rule(packed[:K], packed[K : 2 * K], packed[2 * K : 3 * K], packed[3 * K :])


@jit_no_refcount
def alone(steps: _Steps) -> _Steps:
    """Steps where rows share their targets and levels."""
    none = np.int64(0)
    return none, none, none, steps[3], steps[4]


@jit
def pull_rest(first: int, x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, eps: F32, n: int, K: int, m: int,
              squash: int, steps: _Steps, out: F32, state: F32, errors: F32) -> None:  # fmt: skip
    """The rows from ``first`` on, which are fewer than sixteen."""
    of_y, of_phi, _, of_eps, of_a = steps
    pull_ruled(np.int64(0), len(errors) - first, x[first * n :], a[of_a * first :], y[of_y * first :],
               b[of_y * first :], phi[of_phi * first :], last, eps[of_eps * first :], n, K, m, squash, steps,
               out[first * n :], state[first * band_layout(n, K, m).size :], errors[first:])  # fmt: skip


@jit
def rest_backward(first: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, m: int, squash: int,
                  steps: _Steps, w: F32, grad: F32, state: F32) -> None:  # fmt: skip
    of_y, of_phi, _, of_eps, of_a = steps
    ruled_backward(np.int64(0), len(grad) // n - first, x[first * n :], a[of_a * first :], y[of_y * first :],
                   b[of_y * first :], phi[of_phi * first :], eps[of_eps * first :], n, K, m, squash, bool(0), steps,
                   w[first * n :], grad[first * n :], state[first * band_layout(n, K, m).size :])  # fmt: skip


@jit
def pull_one(row: int, place: int, x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, eps: F32, n: int, K: int,
             m: int, squash: int, steps: _Steps, out: F32, state: F32, errors: F32) -> None:  # fmt: skip
    """One row with all its targets; its state begins at ``place``."""
    none, one, (of_y, of_phi, _, of_eps, of_a) = np.int64(0), np.int64(1), steps
    y, b, phi = y[of_y * row :], b[of_y * row :], phi[of_phi * row :]
    targets, weights, levels = all_targets(y, phi, none, none, K, m) if m > 0 else (y, b, phi)
    pull_rows(none, one, x[row * n :], a[of_a * row :], targets, weights, levels, last if m == 0 else last[:0],
              eps[of_eps * row :], n, max(m, K), True, none, squash, steps, out[row * n :], state[place:],
              errors[row:])  # fmt: skip


@jit
def one_backward(row: int, place: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, m: int,
                 squash: int, steps: _Steps, w: F32, grad: F32, state: F32) -> None:  # fmt: skip
    none, one, (of_y, of_phi, _, of_eps, of_a) = np.int64(0), np.int64(1), steps
    y, b, phi = y[of_y * row :], b[of_y * row :], phi[of_phi * row :]
    targets, weights, levels = all_targets(y, phi, none, none, K, m) if m > 0 else (y, b, phi)
    rows_backward(none, one, x[row * n :], a[of_a * row :], targets, weights, levels, eps[of_eps * row :], n,
                  max(m, K), True, none, squash, bool(0), steps, w[row * n :], grad[row * n :],
                  state[place:])  # fmt: skip


@jit_no_refcount
def save_one(k: BandShape, lane: int, place: int, orders: I32, n: int, K: int, u: F32, state: F32) -> None:
    """The state of a row as ``row.solve.save`` leaves it, of a row that was solved in lanes with all its targets."""
    stride, (at32, at_int, _) = padded(K), state_parts(n, K, True)
    doubles, singles = state.view(np.float64)[place // 2 :], state[place + at32 :]
    of_int = state.view(np.int32)[place + at_int :]
    doubles[:stride], singles[: 2 * stride] = 0.0, 0.0
    for j in range(K):
        doubles[j], singles[j] = k.h[16 * j + lane], u[16 * j + lane]
    for part in range(3):
        doubles[stride + part] = k.moments[16 * part + lane]
    doubles[stride + 3] = 1.0 if k.moments[48 + lane] > 0.5 else 0.0
    of_int[0] = 0
    for i in range(n):
        of_int[1 + i] = orders[16 * i + lane]


@jit_no_refcount
def order_of(place: int, n: int, K: int) -> int:
    """Where, in a state of one row, it says how many cells a grid has, or 0; then, if 0, the order of the values."""
    return place + state_parts(n, K, True)[1]


@jit_no_refcount
def load_one(k: BandShape, lane: int, place: int, n: int, K: int, u: F32, state: F32) -> None:
    """u of a row from the state that ``save_one`` or ``row.solve.save`` left, by the potentials h that it has here."""
    doubles, singles = state.view(np.float64)[place // 2 :], state[place + state_parts(n, K, True)[0] :]
    for j in range(K):
        o = 16 * j + lane
        u[o] = singles[j] * np.exp(k.h[o] - doubles[j])


@jit
def carefully(k: BandShape, lane: int, n: int, K: int, eps: float, u: F32) -> None:
    """The cotangent of x~ of one row once more, in double precision."""
    out = np.empty(n, np.float32)
    double_backward(k.at[lane::16].copy(), k.n32[MASS, lane::16].copy(), n, k.n32[WEIGHT, lane::16].copy(),
                    k.y[lane::16].copy(), k.k32[SHARE, lane::16].astype(np.float64), k.h[lane::16].copy(),
                    u[lane::16].copy(), k.k32[PHI, lane::16].copy(), K, eps, out)  # fmt: skip
    for i in range(n):
        k.n32[COV, 16 * i + lane] = out[i]
