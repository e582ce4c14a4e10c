"""Newton's method on the potentials of the targets, as ``solvers.newton`` in torch.

What     Scalings u_k = b_k exp(gamma_k) of a kernel G such that the plan p_ik = v_i G_ik u_k, with
         v_i = 1 / sum_k G_ik u_k, sends to every target what it weighs.
When     Once a row.
Why      An eliminated matrix serves for several steps: a step with an old one costs 3 us (100 values, 48 nodes), a new
         one 25 us. It is made anew when a step leaves more than a tenth of the error.
Keeps    gamma, v and the window of each four values.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..engine.compile import jit_no_refcount
from ..engine.maths import F32, F64, I64, exp64, exp_soon, larger, size_of, smaller
from ..engine.vectors import highest64, load, load64, narrow, select, splat64, store, store64, total64, widen
from .laplacian import (
    GROUND_OF_SINGLES,
    GROUND_OF_STEPS,
    edges,
    edges_in_single,
    eliminate,
    ends_into,
    scale,
    substitute,
)
from .lines import Digits

_FAINT = 1e-18  # part of a value that a step need not know of
_POOR = 0.5  # of the error: a matrix in single precision that leaves more than this is not enough
_CHEAP = 2  # steps of Sinkhorn's to begin with: they save half of the matrices
_SOFT = 1e-3  # error from which they are made: the start of a nearly hard plan is better than where they lead
_KEEP = 0.2  # of the error: a matrix that leaves more than this is made anew
_LARGEST_STEP = 3.0  # in units of eps
_LEAST_RATIO = math.exp(-_LARGEST_STEP)
_MOST = 100  # steps
ENOUGH = 1e-10  # marginal error at which a row has converged
# Below ENOUGH, a step with a new matrix that leaves more has met rounding. A leak that is too large falls by e.
_SLOW = 0.6
# How far potentials may still be off, in units of eps, and the error at which that is no matter. Where masses leak
# across a gap, the gradient is the leak over eps: an error of 1e-13 was 1.4% of a leak of 1e-11.
_LEFT, _NOTHING = 1e-5, 2e-15


class Band(NamedTuple):
    """The kernel G of a row in windows, which four values after another share."""

    G: F64
    lo: I64
    hi: I64
    offset: I64
    ends: I64  #: (K) where the neighbours of each target end
    W: F64  #: the matrix of a gradient, eliminated
    inverse: F64  #: (K)
    P32: F32  #: the plan's rows, as a step sees them
    W32: F32  #: Newton's matrix, eliminated
    steps: F32  #: (3, K) scratch
    a32: F32  #: (n) weights of values
    corners: F64  #: (48 K) see ``eliminate``
    corners32: F32


@jit_no_refcount
def sums(G: F64, groups: int, K: int, a: F64, u: F64, lo: I64, hi: I64, offset: I64, v: F64, s: F64) -> None:
    """Write v, which makes the plan's rows exact, and s, what the targets then get over u."""
    none = splat64(0.0)
    for k in range(0, K, 16):
        store64(s, k, none)
    for g in range(groups):
        first, end = lo[g], hi[g]
        width, at = end - first, offset[g] - lo[g]
        at1, at2, at3 = at + width, at + 2 * width, at + 3 * width
        t0, t1, t2, t3 = none, none, none, none
        for k in range(first, end, 16):
            scales = load64(u, k)
            t0 = t0 + load64(G, at + k) * scales
            t1 = t1 + load64(G, at1 + k) * scales
            t2 = t2 + load64(G, at2 + k) * scales
            t3 = t3 + load64(G, at3 + k) * scales
        i = 4 * g
        v[i], v[i + 1] = 1.0 / total64(t0), 1.0 / total64(t1)
        v[i + 2], v[i + 3] = 1.0 / total64(t2), 1.0 / total64(t3)
        w0, w1, w2, w3 = a[i] * v[i], a[i + 1] * v[i + 1], a[i + 2] * v[i + 2], a[i + 3] * v[i + 3]
        for k in range(first, end, 16):
            to = load64(s, k) + load64(G, at + k) * w0
            to = to + load64(G, at1 + k) * w1
            to = to + load64(G, at2 + k) * w2
            store64(s, k, to + load64(G, at3 + k) * w3)


@jit_no_refcount
def narrowed(band: Band, groups: int, a: F64, u: F64, v: F64) -> None:
    """Write the plan's rows p_ik = v_i G_ik u_k and the weights of values in single precision.

    A link through 1e-18 of a value is nothing to a step, and the product of two of them would not be a normal number.
    """
    none = splat64(0.0)
    for g in range(groups):
        first, end = band.lo[g], band.hi[g]
        at = band.offset[g] - first
        for i in range(4 * g, 4 * g + 4):
            band.a32[i] = a[i]
            for k in range(first, end, 16):
                p = load64(band.G, at + k) * load64(u, k) * v[i]
                store(band.P32, at + k, narrow(select(p > _FAINT, p, none)))
            at += end - first


@jit_no_refcount
def log_soon(r: Any) -> Any:
    """The logarithm of 16 numbers from exp(-3) to exp(3), to four digits: two of Halley's steps. Others go there."""
    r = smaller(larger(r, splat64(_LEAST_RATIO)), splat64(1.0 / _LEAST_RATIO))
    t = (r - 1.0) / (r + 1.0) * 2.0
    e = exp_soon(t)
    t = t + (r - e) / (r + e) * 2.0
    e = exp_soon(t)
    return t + (r - e) / (r + e) * 2.0


@jit_no_refcount
def newton(band: Band, groups: int, K: int, a: F64, b: F64, work: F64, v: F64, spare: F64,
           digits: Digits) -> tuple[float, int, bool]:  # fmt: skip
    """Write gamma to work[0]; return the marginal error, the number of matrices, and whether gamma stayed small.

    K      a multiple of 16: behind the targets there are some that weigh nothing
    work   (6, K)  OUT  work[0] is gamma
    v      (n)     OUT  scalings of the values
    spare  (n)          scratch
    """
    gamma, u, s, base, direction, ground = work[0], work[1], work[2], work[3], work[4], work[5]
    none = splat64(0.0)
    S = ends_into(groups, band.lo, band.hi, K, band.ends)
    for k in range(K):
        base[k], direction[k] = 0.0, 0.0
    length, slope, error, before, known, moved = 1.0, np.inf, np.inf, np.inf, False, np.inf
    steps, matrices, fresh, single, poor = 0, 0, False, True, False
    while True:
        most = none
        for k in range(0, K, 16):
            now = load64(base, k) + load64(direction, k) * length
            store64(gamma, k, now)
            store64(u, k, exp64(now) * load64(b, k))
            most = larger(most, size_of(now))
        sums(band.G, groups, K, a, u, band.lo, band.hi, band.offset, v, s)
        errors, slopes = none, none
        for k in range(0, K, 16):
            off = load64(b, k) - load64(s, k) * load64(u, k)
            store64(s, k, off)
            errors, slopes = errors + size_of(off), slopes + off * load64(direction, k)
        error, here, farthest = total64(errors), total64(slopes), highest64(most)
        if farthest > digits.far:
            return error, matrices, False
        slow = fresh and error > _SLOW * before
        left = moved * min(error / before, 1.0)  # the next step is as much shorter than the last one
        done = error <= _NOTHING or (error <= digits.wanted and left <= _LEFT)
        if done or not error < np.inf or steps >= _MOST or (error <= ENOUGH and slow and not single):
            break
        poor = poor or slow  # what a matrix in single precision leaves may still be found in double
        steps += 1
        if steps <= _CHEAP and error > _SOFT:
            for k in range(0, K, 16):
                weight = load64(b, k)
                there = weight > 0.0
                rise = log_soon(select(there, weight / (weight - load64(s, k)), splat64(1.0)))
                store64(base, k, load64(gamma, k) + rise)
            continue
        if here < -0.5 * slope:  # the maximum was passed: the secant of the slopes says where it is
            length *= slope / (slope - here)
            moved = np.inf
            continue
        fresh = not known or error > _KEEP * before or (single and poor)
        if fresh:
            single = single and not poor and not (known and error > _POOR * before)
            if single:
                narrowed(band, groups, a, u, v)
                edges_in_single(band.P32, band.a32, groups, band.lo, band.hi, band.offset, K, S, band.ends, band.W32)
                eliminate(band.W32, K, S, band.ends, b, GROUND_OF_SINGLES, band.steps[0], band.steps[1],
                          band.corners32)  # fmt: skip
            else:
                for i in range(4 * groups):
                    spare[i] = a[i] * v[i] * v[i]
                edges(band.G, spare, groups, band.lo, band.hi, band.offset, K, S, band.ends, band.W)
                scale(band.W, u, band.ends, K, S)
                eliminate(band.W, K, S, band.ends, b, GROUND_OF_STEPS, ground, band.inverse, band.corners)
            known, matrices = True, matrices + 1
        before = error
        short, unit = band.steps[2], 1.0 / error  # single precision has no numbers below 1e-38
        for k in range(0, K, 16):
            store64(base, k, load64(gamma, k))
            store64(direction, k, load64(s, k))
            store(short, k, narrow(load64(s, k) * unit))
        if single:
            substitute(band.W32, K, S, band.ends, band.steps[1], band.corners32, short)
            for k in range(0, K, 16):
                store64(direction, k, widen(load(short, k)) * error)
        else:
            substitute(band.W, K, S, band.ends, band.inverse, band.corners, direction)
        levels = none
        for k in range(0, K, 16):
            levels = levels + load64(b, k) * load64(direction, k)
        level, most = total64(levels), none
        for k in range(0, K, 16):
            way = select(load64(b, k) > 0.0, load64(direction, k) - level, none)
            store64(direction, k, way)
            most = larger(most, size_of(way))
        longest, slopes, length = highest64(most), none, 1.0
        shorter = min(1.0, _LARGEST_STEP / longest) if longest > 0.0 else 1.0  # as a whole, see ``solvers.newton``
        for k in range(0, K, 16):
            way = load64(direction, k) * shorter
            store64(direction, k, way)
            slopes = slopes + load64(s, k) * way
        slope, moved = total64(slopes), longest * shorter
        if not slope > 0.0:  # Sinkhorn's own step always rises
            slope, moved = 0.0, np.inf
            for k in range(K):
                direction[k] = -math.log(max(1.0 - s[k] / b[k], 1e-30)) if b[k] > 0.0 else 0.0
                slope += s[k] * direction[k]
    return error, matrices, True
