"""Batches of very short rows: their gradients, sixteen rows at a time. See ``lanes.rows``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.compile import borrowing, exact
from ..engine.maths import F32, larger, size_of
from ..engine.vectors import any_lane, choose, load, load64, narrow, splat, splat64, store, store64, widen
from ..row.double_backward import CANCELLED, careful
from .newton import lane_eliminate, lane_substitute
from .plan import lane_averages, lane_covariances, lane_gibbs, lane_places_backward, lane_rows, lane_tensions
from .push import lane_answers, lane_arrivals, lane_pulls, lane_stakes
from .rows import (
    AT,
    AV,
    AW,
    BEST,
    COV,
    COV_2,
    EPS,
    EXCESS,
    GROUND,
    HIGH,
    INV,
    LAM,
    LEAVING,
    LOW,
    MEAN,
    PER_PLACE,
    PHI,
    PHI_0,
    TENSION,
    UNIT,
    WEIGHT,
    XS,
    Y_MEAN,
    B,
    Lanes,
    Steps,
    U,
    V,
    Y,
    into_lanes,
    lanes_for,
    nan_lanes,
    out_of_lanes,
    rows_into,
    short_state,
)

_RIDGE, _ROUNDING = np.float32(1e-9), np.float32(1e-6)
#: Up to so much of the parts of a gradient is rounding, over the share of the gradient that may be: 1e-3.
_LOST = 1.6e-2
_STEEPEST = (0.25, 0.32, 1.0)  #: slopes of the squashes, by their codes


@borrowing
def balance_lanes(k: Lanes, n: int) -> None:
    """``row.double_backward.balanced`` in lanes."""
    whole, weight = splat64(0.0), splat64(0.0)
    for i in range(0, 16 * n, 16):
        whole, weight = whole + widen(load(k.n32[WEIGHT], i)), weight + widen(load(k.n32[AW], i))
    share, most, left = narrow(whole / weight), splat(0.0), splat(0.0)
    for i in range(0, 16 * n, 16):
        w = load(k.n32[WEIGHT], i)
        rest = w - load(k.n32[AW], i) * share
        most, left = larger(most, size_of(w)), larger(left, size_of(rest))
        store(k.n32[WEIGHT], i, rest)
    for i in range(0, 16 * n, 16):
        store(k.n32[WEIGHT], i, choose(left < most * _ROUNDING, splat(0.0), load(k.n32[WEIGHT], i)))


@borrowing
def standardised(k: Lanes, n: int) -> None:
    """x_i in standard deviations from the mean; 0 where it is not finite."""
    mean, scale = load64(k.moments, 0), load64(k.moments, 16)
    for i in range(0, 16 * n, 16):
        x = load(k.n32[XS], i)
        inside = (x > -np.inf) & (x < np.inf)
        z = narrow((widen(choose(inside, x, splat(0.0))) - mean) * scale)
        store(k.n32[WEIGHT], i, choose(inside, z, splat(0.0)))


@borrowing
def eliminate_lanes(k: Lanes, n: int, K: int) -> None:
    """lambda from the tensions."""
    flow = splat(0.0)
    for i in range(0, 16 * n, 16):
        flow = flow + load(k.n32[LEAVING], i)
    for j in range(0, 16 * K, 16):
        store(k.k32[GROUND], j, load(k.k32[B], j) * flow * _RIDGE)
    lane_eliminate(k.P, k.Q, n, K, k.k32[GROUND], k.k32[INV])
    lane_substitute(k.P, n, K, k.k32[INV], k.k32[TENSION], k.k32[LAM])


@borrowing
def along_pulled(k: Lanes, n: int, K: int) -> Any:
    """The cotangent of x~ in COV, but for 2 / eps; returns which rows have lost too many digits, 1.0 or 0.0."""
    n32, k32, best, levels, y = k.n32, k.k32, k.n32[BEST], k.k32[PHI], k.k32[Y]
    lane_averages(k.G, n, K, n32[AW], best, k.numbers, k32[U], n32[V], levels, y, k.P, k.Q, n32[PHI_0], n32[MEAN],
                  n32[Y_MEAN])  # fmt: skip
    lane_tensions(k.P, n, K, n32[WEIGHT], levels, n32[PHI_0], n32[MEAN], k32[TENSION])
    eliminate_lanes(k, n, K)
    lane_covariances(k.P, n, K, best, k.numbers, levels, n32[PHI_0], k32[LAM], y, n32[Y_MEAN], n32[COV],
                     n32[COV_2])  # fmt: skip
    parts, whole = splat(0.0), splat(0.0)
    for i in range(0, 16 * n, 16):
        part = load(n32[WEIGHT], i) * load(n32[COV], i)
        along = part - load(n32[AW], i) * load(n32[COV_2], i)
        parts, whole = larger(parts, size_of(part)), larger(whole, size_of(along))
        store(n32[COV], i, along)
    return choose(whole < parts * CANCELLED, splat(1.0), splat(0.0))


@borrowing
def along_pushed(k: Lanes, n: int, K: int, lost: Any) -> Any:
    """The same for averages; and how they change with x itself, in PHI_0.

    Digits lost on the way by the plan matter only where ``lost`` times its largest part exceeds the largest of those.
    """
    n32, k32, best, z, values, y = k.n32, k.k32, k.n32[BEST], k.n32[WEIGHT], k.k32[EXCESS], k.k32[Y]
    lane_arrivals(k.G, n, K, best, k.numbers, n32[AV], z, values)
    lane_stakes(k.G, n, K, n32[AW], best, k.numbers, k32[U], n32[V], k32[PHI], y, z, values, k.P, k.Q, n32[PHI_0],
                n32[MEAN], n32[Y_MEAN])  # fmt: skip
    lane_pulls(k.P, k.G, n, K, n32[AW], n32[MEAN], k32[TENSION])
    eliminate_lanes(k, n, K)
    lane_answers(k.P, k.G, n, K, best, k.numbers, k32[LAM], y, n32[Y_MEAN], n32[COV_2], n32[COV])
    parts, whole, direct = splat(0.0), splat(0.0), splat(0.0)
    for i in range(0, 16 * n, 16):
        a = load(n32[AW], i)
        part, along, given = a * load(n32[COV_2], i), a * load(n32[COV], i), a * load(n32[PHI_0], i)
        parts, whole = larger(parts, size_of(part)), larger(whole, size_of(along))
        direct = larger(direct, size_of(given))
        store(n32[COV], i, along)
        store(n32[PHI_0], i, given)
    cancelled = (whole < parts * CANCELLED) & (direct < parts * lost)
    return choose(cancelled, splat(1.0), splat(0.0))


@exact
def carefully(k: Lanes, n: int, K: int, rows: int) -> None:
    """The cotangent of x~ once more, for the rows marked in ``error``; only the first ``rows`` are wanted."""
    out, h = np.empty(n, np.float32), np.zeros(K)
    for lane in range(rows):
        if k.error[lane] > 0.0:
            y, eps = k.k32[Y, lane::16].astype(np.float64), np.float64(k.one[EPS, lane])
            for j in range(K - 1):
                threshold = float(k.k32[HIGH, 16 * j + lane]) + float(k.k32[LOW, 16 * j + lane])
                h[j + 1] = h[j] + 2.0 * threshold / eps * (y[j + 1] - y[j])
            careful(k.n64[AT, lane::16].copy(), k.n32[AW, lane::16].copy(), n, k.n32[WEIGHT, lane::16].copy(), y,
                    k.k32[B, lane::16].astype(np.float64), h, k.k32[U, lane::16].copy(), k.k32[PHI, lane::16].copy(), K,
                    eps, out)  # fmt: skip
            for i in range(n):
                k.n32[COV, 16 * i + lane] = out[i]


@exact
def short_backward(begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int,
                   squash: int, push: bool, steps: Steps, w: F32, grad: F32, state: F32) -> None:  # fmt: skip
    """See ``row.solve.rows_backward``."""
    _backward(lanes_for(n, K), begin, end, x, a, y, b, phi, eps, n, K, squash, push, steps, w, grad, state)


@borrowing
def _backward(k: Lanes, begin: int, end: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int,
              squash: int, push: bool, steps: Steps, w: F32, grad: F32, state: F32) -> None:  # fmt: skip
    stop, size, fresh = min(16 * end, len(grad) // n), short_state(K), True
    n32, k32, u, levels = k.n32, k.k32, k.k32[U], k.k32[PHI]
    lost = np.float32(_LOST * _STEEPEST[squash])
    for first in range(16 * begin, stop, 16):
        rows_into(k, x, a, y, b, eps, n, K, squash, steps, first, stop, fresh)
        if fresh or steps[1] > 0:
            into_lanes(phi, steps[1], K, first, stop, levels)
            for j in range(0, 16 * K if push else 0, 16):
                bj = load(k32[B], j)
                store(levels, j, choose(bj > 0.0, load(levels, j) / bj, splat(0.0)))
        fresh = False
        into_lanes(state, size, K, first, stop, k32[HIGH])
        into_lanes(state[K:], size, K, first, stop, k32[LOW])
        into_lanes(state[2 * K :], size, K, first, stop, u)
        lane_gibbs(k.n64[AT], n, K, k32[HIGH], k32[LOW], k32[PER_PLACE], k.numbers, k.P, n32[BEST], k.G)
        lane_rows(k.G, n, K, n32[AW], n32[BEST], k.numbers, u, n32[V], n32[AV], n32[LEAVING])
        per_eps = narrow(splat64(2.0) / load64(k.one[EPS], 0))
        if push:
            standardised(k, n)
            store64(k.one[UNIT], 0, splat64(1.0) / load64(k.moments, 16))
            cancelled = along_pushed(k, n, K, per_eps * lost)
        else:
            into_lanes(w, n, n, first, stop, n32[WEIGHT])
            balance_lanes(k, n)
            store64(k.one[UNIT], 0, splat64(1.0))
            cancelled = along_pulled(k, n, K)
        for i in range(0, 16 * n, 16):
            store(n32[COV], i, per_eps * load(n32[COV], i))
        if any_lane(cancelled > 0.0):
            for i in range(0, 16 * n if push else 0, 16):
                store(n32[WEIGHT], i, load(n32[WEIGHT], i) * load(n32[AW], i))
            store(k.error, 0, cancelled)
            carefully(k, n, K, min(16, stop - first))
        lane_places_backward(n32[XS], n32[AW], k.n64[AT], n, squash, k.moments, k.one[UNIT], n32[COV])
        nan = nan_lanes(k, n)
        for i in range(0, 16 * n, 16):
            g = load(n32[COV], i) + nan
            store(n32[COV], i, g + load(n32[PHI_0], i) if push else g)
        out_of_lanes(n32[COV], n, n, first, stop, grad)
