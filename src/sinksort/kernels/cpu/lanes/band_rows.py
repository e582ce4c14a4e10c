"""Batches of rows of moderate length: sixteen of them sorted into lanes, ranked, and out again.

What     Ranks of rows with or without weights, whose targets are shared or their own.
When     ``rows._in_band``: at least sixteen rows of up to 192 values whose plans are soft.
Why      128 x 100 at eps = 0.01, one thread, forward and backward: 0.45 ms; row by row 1.4 ms.
Keeps    A state as ``lanes.band_others`` has it.
Errors   Rows that are not soft enough go to the kernels for one row. Rows for which a rule is too coarse are taken
         together, sixteen at a time, with all their targets. Both leave the state that a single row leaves.
"""

from __future__ import annotations

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F32, I32, I64
from ..engine.vectors import splat, store
from .band import HI, LO, band_newton
from .band_others import (
    Layout,
    Rule,
    all_of,
    alone,
    band_layout,
    finer_of,
    place_of,
    pull_one,
    pull_rest,
    save_one,
)
from .band_read import BEFORE_LASTS, LASTS, band_pulled
from .band_shape import (
    COV,
    GROUND,
    INDEX,
    INV,
    MASS,
    PHI,
    SHARE,
    WIDTH,
    XS,
    BandShape,
    S,
    U,
    V,
    Z,
    band_for,
    levels_into,
    place_lanes,
    plan_lanes,
    rows_of_their_own,
    sort_lanes,
    weights_into,
)

MOST_IN_BAND = 192  #: the longest rows that are worked on here
ACCEPTED = 5e-6  #: error of a row, see ``row.solve``
SOFT_ENOUGH = np.float32(0.5)  #: least share of the weight that is not where the hard sort puts it
LARGEST_LOGIT = 1e9
LARGEST_SHIFT = np.float32(60.0)  #: of exponents, see ``lanes.band``: more would be lost in single precision
WORTH = 4  #: rows that a rule does not fit, from which sixteen at a time are faster than one after the other
_HOPEFUL = 1.6e-4  #: error up to which a rule of 1.4 times as many nodes is likely to be fine enough
ANSWERED, OF_OTHERS, NAN, BY_FINER = np.float32(0.0), np.float32(1.0), np.float32(2.0), np.float32(3.0)
_Steps = tuple[int, int, int, int, int]


@jit
def pull_band(begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, finer: F32, eps: F32, n: int,
              K: int, m: int, squash: int, steps: _Steps, out: F32, state: F32, errors: F32) -> None:  # fmt: skip
    """Rows 16 begin to 16 end, by ``row.all_targets`` where there are no sixteen. The step of ``last`` is 0.

    finer  IN  another rule (see ``band_others.finer_of``) for rows that this one does not fit, or empty
    """
    k = band_for(n, K, len(last) > 0, y, b)
    levels_into(k, phi, 0, K)
    left, at = np.empty(16 * (end - begin), np.int64), band_layout(n, K, m)
    count = _pull(k, begin, end, x, a, y, b, phi, last, eps, n, K, m, squash, steps, out, state, errors, left)
    if m > 0 and count >= WORTH:
        alike = alone(steps)
        if len(finer) > 0:
            hopeful = _hopeful(left, count, errors)
            if hopeful >= WORTH:
                rule = finer_of(finer)
                late = _pull_together(left, hopeful, x, a, rule, eps, n, at, squash, alike, out, state, errors)
                left[late : late + count - hopeful] = left[hopeful:count].copy()
                count += late - hopeful
        if count >= WORTH:
            rule = all_of(y, phi, K, m)
            count = _pull_together(left, count, x, a, rule, eps, n, at, squash, alike, out, state, errors)
    for i in range(count):
        row = left[i]
        pull_one(row, place_of(at, row), x, a, y, b, phi, last, eps, n, K, m, squash, steps, out, state,
                 errors)  # fmt: skip


@jit_no_refcount
def _hopeful(left: I64, count: int, errors: F32) -> int:
    """Puts rows first that a finer rule may fit, as errors fall geometrically; returns how many."""
    hopeful = 0
    for i in range(count):
        row = left[i]
        if errors[row] <= _HOPEFUL:
            left[i], left[hopeful] = left[hopeful], row
            hopeful += 1
    return hopeful


@jit_no_refcount
def _pull(k: BandShape, begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, eps: F32, n: int,
          K: int, m: int, squash: int, steps: _Steps, out: F32, state: F32, errors: F32,
          left: I64) -> int:  # fmt: skip
    """The same; returns how many rows are left to others, and writes which into ``left``."""
    at, count, integers = band_layout(n, K, m), 0, state.view(np.int32)
    for group in range(begin, end):
        first, base = 16 * group, 16 * group * at.size
        if first + 16 > len(errors):
            pull_rest(first, x, a, y, b, phi, last, eps, n, K, m, squash, steps, out, state, errors)
            break
        for lane in range(16):
            k.rows[lane] = first + lane
        rows_of_their_own(k, a, y, b, phi, n, K, steps)
        orders, flags = integers[base + at.order :], state[base + at.flag :]
        nan = _ranked(k, x, a, last, eps, n, K, squash, steps, orders, state[base + at.W :],
                      state[base + at.inv :], state[base : base + at.inv])  # fmt: skip
        for lane in range(16):
            row = first + lane
            flags[lane] = _returned(k, lane, nan, orders, n, out[row * n : row * n + n], errors[row:])
            if flags[lane] == OF_OTHERS:
                left[count] = row
                count += 1
    return count


@jit_no_refcount
def _ranked(k: BandShape, x: F32, a: F32, last: F32, eps: F32, n: int, K: int, squash: int, steps: _Steps,
            orders: I32, W: F32, inv: F32, u: F32) -> int:  # fmt: skip
    """Solve ``k.rows``, whose ranks come into COV; returns as bits which of them hold NaN."""
    N, KP, lasts = len(k.t) // 16, len(k.y) // 16, LASTS if len(last) > 0 else 0
    width, table, nan = min(KP, WIDTH), k.table, 0
    for lane in range(16):
        row, wrong = k.rows[lane] * n, 0
        for i in range(n):
            value = x[row + i]
            right = value == value
            wrong |= 0 if right else 1
            k.n32[XS, 16 * i + lane] = value if right else np.float32(0.0)
        nan |= wrong << lane
    for i in range(n):
        store(k.n32[INDEX], 16 * i, splat(float(i)))
    sort_lanes(k.n32[XS], k.n32[INDEX], n)
    for i in range(16 * n):
        orders[i] = k.n32[INDEX, i]
    if steps[4] > 0:
        weights_into(k, a, n, orders)
    place_lanes(k, n, squash, eps, steps[3])
    plan_lanes(k, n, K, width)
    band_newton(k.G, k.n32[MASS], K, table, k.k32[SHARE], k.k32[GROUND], width, k.Q, W, inv, u, k.n32[V], k.k32[S],
                k.k32[Z], k.one[0], k.one[1])  # fmt: skip
    band_pulled(k.G, N, K, KP, table[LO], table[HI], u, k.k32[PHI], last[BEFORE_LASTS * K :], lasts, k.scaled,
                k.n32[COV], k.one[1])  # fmt: skip
    return nan


@jit_no_refcount
def _returned(k: BandShape, lane: int, nan: int, orders: I32, n: int, answer: F32, error: F32) -> float:
    """What becomes of a row: its answer and error are written, or it is left to others."""
    if nan >> lane & 1:
        answer[:], error[0] = np.nan, 0.0
        return NAN
    farthest = max(abs(k.t[lane]), abs(k.t[16 * n - 16 + lane]))
    soft = k.one[0, lane] > SOFT_ENOUGH and farthest < LARGEST_LOGIT and k.one[2, lane] < LARGEST_SHIFT
    error[0] = k.one[1, lane] if soft and k.one[1, lane] < np.inf else np.inf
    if error[0] > ACCEPTED:
        return OF_OTHERS
    for i in range(lane, 16 * n, 16):
        answer[orders[i]] = k.n32[COV, i]
    return ANSWERED


@jit
def _pull_together(left: I64, count: int, x: F32, a: F32, rule: Rule, eps: F32, n: int, at: Layout, squash: int,
                   steps: _Steps, out: F32, state: F32, errors: F32) -> int:  # fmt: skip
    """Rows that ``left`` begins with, sixteen at a time, by other targets; those not answered come first, then."""
    K, ruled, late = len(rule.y), len(rule.last) > 0, 0
    k = band_for(n, K, ruled, rule.y, rule.b)
    levels_into(k, rule.phi, 0, K)
    KP = len(k.y) // 16
    orders, W = np.empty(16 * n, np.int32), np.empty(16 * KP * min(KP, WIDTH), np.float32)
    for start in range(0, count, 16):
        rest = min(16, count - start)
        for lane in range(16):
            k.rows[lane] = left[start + min(lane, rest - 1)]
        rows_of_their_own(k, a, rule.y, rule.b, rule.phi, n, K, steps)
        nan = _ranked(k, x, a, rule.last, eps, n, K, squash, steps, orders, W, k.k32[INV], k.k32[U])
        for lane in range(rest):
            row = k.rows[lane]
            if _returned(k, lane, nan, orders, n, out[row * n : row * n + n], errors[row:]) == OF_OTHERS:
                left[late] = row
                late += 1
                continue
            save_one(k, lane, place_of(at, row), orders, n, K, k.k32[U], state)
            if ruled:
                state[row // 16 * 16 * at.size + at.flag + row % 16] = BY_FINER
    return late
