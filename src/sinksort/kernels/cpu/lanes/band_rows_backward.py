"""Batches of rows of moderate length: the gradients of their ranks, sixteen rows at a time. See ``lanes.band_rows``.

What     Cotangents of values from those of ranks.
When     Of all rows that ``pull_band`` was given.
Keeps    Nothing.
Errors   A gradient of which nearly all cancels is found from a guess (``lanes.band_start``), and where that is not
         enough, in double precision.
"""

from __future__ import annotations

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F32, I32, I64, larger, size_of
from ..engine.vectors import any_lane, load, load64, narrow, select, splat, store
from .band import BEST, ENDS, HI, LO, NEAR_HI, NEAR_LO, band_edges, band_eliminate, band_ends, band_rows_of
from .band_others import (
    Layout,
    Rule,
    all_of,
    alone,
    band_layout,
    carefully,
    finer_of,
    load_one,
    one_backward,
    order_of,
    place_of,
    rest_backward,
)
from .band_read import band_covariances, band_refined, band_right_sides
from .band_rows import ANSWERED, BY_FINER, NAN, WORTH
from .band_shape import (
    COV,
    COV_2,
    GROUND,
    GUESS,
    INV,
    LAM,
    LEFT,
    MASS,
    MEAN,
    PHI,
    PLACE,
    SHARE,
    TENSION,
    WEIGHT,
    WIDTH,
    XS,
    BandShape,
    U,
    V,
    Z,
    balance_weights,
    band_for,
    levels_into,
    place_lanes,
    plan_lanes,
    rows_of_their_own,
    weights_into,
)
from .band_start import many_guess, many_left
from .plan import lane_places_backward

_CANCELLED = np.float32(0.13)  #: a gradient smaller than this share of its parts has lost too many digits
_LEFT = np.float32(0.02)  #: least share of a gradient in its parts when they were known but for a guess
_STEADY = np.float32(0.3)  #: change from value to value, beside its size, of a cotangent that grows along the row
_Steps = tuple[int, int, int, int, int]


@jit
def band_backward(begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, finer: F32, eps: F32, n: int,
                  K: int, m: int, ruled: bool, squash: int, steps: _Steps, w: F32, grad: F32,
                  state: F32) -> None:  # fmt: skip
    """Cotangents of x from those of ranks, w (R, n)."""
    k = band_for(n, K, ruled, y, b)
    levels_into(k, phi, 0, K)
    left, at = np.empty(16 * (end - begin), np.int64), band_layout(n, K, m)
    count = _backward(k, begin, end, x, a, y, b, phi, eps, n, K, m, squash, steps, w, grad, state, left)
    first = 0
    if m > 0 and count > 0:
        alike = alone(steps)
        first = _by_finer(left, count, at, state)
        if first > 0:
            _backward_together(left[:first], x, a, finer_of(finer), eps, n, at, squash, alike, w, grad, state)
        more = _put_together(left[first:], count - first, w, n, K, m, state)
        if more > 0:
            rule = all_of(y, phi, K, m)
            _backward_together(left[first : first + more], x, a, rule, eps, n, at, squash, alike, w, grad, state)
            first += more
    for i in range(first, count):
        row = left[i]
        one_backward(row, place_of(at, row), x, a, y, b, phi, eps, n, K, m, squash, steps, w, grad,
                     state)  # fmt: skip


@jit_no_refcount
def _backward(k: BandShape, begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int,
              m: int, squash: int, steps: _Steps, w: F32, grad: F32, state: F32, left: I64) -> int:  # fmt: skip
    """The same; returns how many rows are left to others, and writes which into ``left``."""
    at, count, integers = band_layout(n, K, m), 0, state.view(np.int32)
    for group in range(begin, end):
        first, base = 16 * group, 16 * group * at.size
        if first + 16 > len(grad) // n:
            rest_backward(first, x, a, y, b, phi, eps, n, K, m, squash, steps, w, grad, state)
            break
        for lane in range(16):
            k.rows[lane] = first + lane
        rows_of_their_own(k, a, y, b, phi, n, K, steps)
        orders, flags = integers[base + at.order :], state[base + at.flag :]
        _posed(k, x, a, w, orders, n, steps)
        for lane in range(16):
            if flags[lane] != ANSWERED:
                k.n32[WEIGHT, lane : 16 * n : 16] = 0.0
        _along(k, eps, n, K, squash, steps, state[base : base + at.inv], state[base + at.W :], state[base + at.inv :])
        for lane in range(16):
            row = first + lane
            answer = grad[row * n : row * n + n]
            if flags[lane] == NAN:
                answer[:] = np.nan
            elif flags[lane] != ANSWERED:
                left[count] = row
                count += 1
            else:
                for i in range(lane, 16 * n, 16):
                    answer[orders[i]] = k.n32[COV, i]
    return count


@jit_no_refcount
def _posed(k: BandShape, x: F32, a: F32, w: F32, orders: I32, n: int, steps: _Steps) -> None:
    """Values, their weights and their cotangents, in order."""
    for lane in range(16):
        row = k.rows[lane] * n
        for i in range(lane, 16 * n, 16):
            o = row + orders[i]
            k.n32[XS, i] = x[o] if x[o] == x[o] else np.float32(0.0)
            k.n32[WEIGHT, i] = w[o]
    if steps[4] > 0:
        weights_into(k, a, n, orders)


@jit_no_refcount
def _along(k: BandShape, eps: F32, n: int, K: int, squash: int, steps: _Steps, u: F32, W: F32,
           inv: F32) -> None:  # fmt: skip
    """The cotangents of x in COV, from what ``_posed`` left, u and the matrix of the last Newton step."""
    width = min(len(k.y) // 16, WIDTH)
    balance_weights(k.n32[WEIGHT], k.n32[MASS], n)
    place_lanes(k, n, squash, eps, steps[3])
    plan_lanes(k, n, K, width)
    _through_plan(k, eps, n, K, squash, steps[3], u, W, inv)


@jit_no_refcount
def _through_plan(k: BandShape, eps: F32, n: int, K: int, squash: int, of_eps: int, u: F32, W: F32,
                  inv: F32) -> None:  # fmt: skip
    """The same when plan and G are there."""
    N, KP, width = len(k.t) // 16, len(k.y) // 16, min(len(k.y) // 16, WIDTH)
    best, lo, hi, place = k.table[BEST], k.table[LO], k.table[HI], k.k32[PLACE]
    v, mass, weight, cov, left = k.n32[V], k.n32[MASS], k.n32[WEIGHT], k.n32[COV], k.n32[LEFT]
    band_rows_of(k.G, N, KP, lo, hi, u, v)
    lost = k.one[1]
    store(lost, 0, splat(1.0))
    if not _grows_along(weight, n):
        band_covariances(k.G, N, KP, best, lo, hi, u, v, k.k32[PHI], place, k.n32[MEAN], cov)
        band_right_sides(k.G, N, KP, best, lo, hi, u, v, weight, k.k32[PHI], k.n32[MEAN], True, k.k32[TENSION])
        for i in range(0, 16 * n, 16):
            store(cov, i, load(weight, i) * load(cov, i))
        _undone(k, n, K, width, u, W, inv, cov, _CANCELLED, lost)
    if any_lane(load(lost, 0) > 0.0):
        many_guess(k.G, N, KP, lo, hi, u, v, weight, k.k32[PHI], K, k.k32[SHARE], k.k32[GUESS])
        many_left(k.G, N, KP, best, lo, hi, u, v, weight, mass, k.k32[PHI], k.k32[GUESS], place, left,
                  k.k32[TENSION])  # fmt: skip
        again = load(lost, 0) > 0.0
        _undone(k, n, K, width, u, W, inv, left, _LEFT, lost)
        store(lost, 0, select(again, load(lost, 0), splat(0.0)))
        for i in range(0, 16 * n, 16):
            store(cov, i, select(again, load(left, i), load(cov, i)))
    for lane in range(16):
        if lost[lane] > 0.0:
            carefully(k, lane, n, K, np.float64(eps[of_eps * k.rows[lane]]), u)
    lane_places_backward(k.n32[XS], mass, k.at, n, squash, k.moments, k.ends[2], cov)


@jit_no_refcount
def _grows_along(weight: F32, n: int) -> bool:
    """Whether the cotangents of all rows change little from one value to the next, as those of a sum of squares do."""
    sizes, changes = splat(0.0), splat(0.0)
    for i in range(0, 16 * n, 16):
        sizes = sizes + size_of(load(weight, i))
    for i in range(16, 16 * n, 16):
        changes = changes + size_of(load(weight, i) - load(weight, i - 16))
    return not any_lane(changes > sizes * _STEADY)


@jit_no_refcount
def multipliers(k: BandShape, n: int, K: int, u: F32, W: F32, width: int, inv: F32) -> None:  # noqa: ARG001
    """LAM = L^+ TENSION, by the matrix that is kept, or one without anything left out."""
    N, KP, best, lo, hi = len(k.t) // 16, len(k.y) // 16, k.table[BEST], k.table[LO], k.table[HI]
    v, mass, table = k.n32[V], k.n32[MASS], k.table
    band_ends(table[NEAR_LO], table[NEAR_HI], N // 4, KP, width, table[ENDS])
    if band_refined(k.G, N, K, KP, best, lo, hi, u, v, mass, k.k32[TENSION], W, width, table[ENDS], inv, k.k32[Z],
                    k.k32[LAM]):  # fmt: skip
        return
    band_ends(lo, hi, N // 4, KP, KP, table[ENDS])
    band_edges(k.G, mass, KP, lo, hi, u, v, table[ENDS], KP, k.Q, k.W)
    k.one[0, :] = 1.0
    band_eliminate(k.W, KP, KP, table[ENDS], k.k32[GROUND], k.one[0], k.k32[INV])
    band_refined(k.G, N, K, KP, best, lo, hi, u, v, mass, k.k32[TENSION], k.W, KP, table[ENDS], k.k32[INV], k.k32[Z],
                 k.k32[LAM])  # fmt: skip


@jit_no_refcount
def _undone(k: BandShape, n: int, K: int, width: int, u: F32, W: F32, inv: F32, along: F32, least: float,
            lost: F32) -> None:  # fmt: skip
    """What is left of ``along``, the covariance of what is pulled, when potentials have undone its tensions.

    The result is the cotangent of x~. lost  OUT  1 in rows of which too much cancelled
    """
    N, KP, best, lo, hi = len(k.t) // 16, len(k.y) // 16, k.table[BEST], k.table[LO], k.table[HI]
    v, mass, cov_2 = k.n32[V], k.n32[MASS], k.n32[COV_2]
    multipliers(k, n, K, u, W, width, inv)
    band_covariances(k.G, N, KP, best, lo, hi, u, v, k.k32[LAM], k.k32[PLACE], k.n32[MEAN], cov_2)
    parts, whole, per_eps = splat(0.0), splat(0.0), narrow(load64(k.ends[3], 0))
    for i in range(0, 16 * n, 16):
        part = load(along, i)
        rest = part - load(mass, i) * load(cov_2, i)
        parts, whole = larger(parts, size_of(part)), larger(whole, size_of(rest))
        store(along, i, rest * per_eps)
    store(lost, 0, select(whole < parts * least, splat(1.0), splat(0.0)))


# ---- rows for which the rule was too coarse


@jit_no_refcount
def _by_finer(left: I64, count: int, at: Layout, state: F32) -> int:
    """Puts rows first that a finer rule has answered; returns how many."""
    finer = 0
    for i in range(count):
        row = left[i]
        if state[row // 16 * 16 * at.size + at.flag + row % 16] == BY_FINER:
            left[i], left[finer] = left[finer], row
            finer += 1
    return finer


@jit_no_refcount
def _put_together(left: I64, count: int, w: F32, n: int, K: int, m: int, state: F32) -> int:
    """Puts rows first that go sixteen at a time; returns how many.

    That pays for some rows, and for one whose gradient nearly vanishes: by itself it would take double precision.
    """
    at, together, grows, integers = band_layout(n, K, m), 0, False, state.view(np.int32)
    for i in range(count):
        row = left[i]
        first = order_of(place_of(at, row), n, m)
        if integers[first] > 0:  # solved on a grid
            continue
        grows |= _row_grows_along(w[row * n : row * n + n], integers[first + 1 :], n)
        left[i], left[together] = left[together], row
        together += 1
    return together if together >= WORTH or grows else 0


@jit_no_refcount
def _row_grows_along(w: F32, order: I32, n: int) -> bool:
    mean, sizes, changes = 0.0, 0.0, 0.0
    for i in range(n):
        mean += w[i] / n
    for i in range(n):
        sizes += abs(w[i] - mean)
    for i in range(1, n):
        changes += abs(w[order[i]] - w[order[i - 1]])
    return bool(changes <= sizes * _STEADY)


@jit
def _backward_together(rows: I64, x: F32, a: F32, rule: Rule, eps: F32, n: int, at: Layout, squash: int, steps: _Steps,
                       w: F32, grad: F32, state: F32) -> None:  # fmt: skip
    """Rows that were answered with the targets of ``rule``, sixteen at a time."""
    K = len(rule.y)
    k = band_for(n, K, len(rule.last) > 0, rule.y, rule.b)
    levels_into(k, rule.phi, 0, K)
    N, KP, table = len(k.t) // 16, len(k.y) // 16, k.table
    width, lo, hi, u = min(KP, WIDTH), table[NEAR_LO], table[NEAR_HI], k.k32[U]
    orders, W = np.empty(16 * n, np.int32), np.empty(16 * KP * width, np.float32)
    inv, integers = np.empty(16 * KP, np.float32), state.view(np.int32)
    for start in range(0, len(rows), 16):
        rest = min(16, len(rows) - start)
        for lane in range(16):
            k.rows[lane] = rows[start + min(lane, rest - 1)]
            first = order_of(place_of(at, k.rows[lane]), n, K) + 1
            for i in range(n):
                orders[16 * i + lane] = integers[first + i]
        rows_of_their_own(k, a, rule.y, rule.b, rule.phi, n, K, steps)
        _posed(k, x, a, w, orders, n, steps)
        balance_weights(k.n32[WEIGHT], k.n32[MASS], n)
        place_lanes(k, n, squash, eps, steps[3])
        plan_lanes(k, n, K, width)
        for lane in range(16):
            load_one(k, lane, place_of(at, k.rows[lane]), n, K, u, state)
        band_rows_of(k.G, N, KP, table[LO], table[HI], u, k.n32[V])
        band_edges(k.G, k.n32[MASS], KP, lo, hi, u, k.n32[V], table[ENDS], width, k.Q, W)
        k.one[0, :] = 1.0
        band_eliminate(W, KP, width, table[ENDS], k.k32[GROUND], k.one[0], inv)
        _through_plan(k, eps, n, K, squash, steps[3], u, W, inv)
        for lane in range(rest):
            answer = grad[k.rows[lane] * n : k.rows[lane] * n + n]
            for i in range(lane, 16 * n, 16):
                answer[orders[i]] = k.n32[COV, i]
