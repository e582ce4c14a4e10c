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
from typing import NamedTuple

import numpy as np

from ..engine.compile import borrowing
from ..engine.maths import F64, I64, exp64
from ..engine.vectors import load64, splat64, store64, total64
from .laplacian import GROUND_OF_STEPS, edges, eliminate, ends_into, scale, substitute

_KEEP = 0.2  # of the error: a matrix that leaves more than this is made anew
_LARGEST_STEP = 3.0  # in units of eps
_MOST = 100  # steps
ENOUGH = 1e-10  # marginal error at which a row has converged
_WANTED = 1e-13  # marginal error that costs one more cheap step
_SLOW = 0.3  # below ENOUGH, a step with a new matrix that leaves more than this has met rounding
_FAR = 25.0  # potentials that moved as far as this, in units of eps, make other pairs matter


class Band(NamedTuple):
    """The kernel G of a row in windows, which four values after another share."""

    G: F64
    lo: I64
    hi: I64
    offset: I64
    ends: I64  #: (K) where the neighbours of each target end
    W: F64  #: Newton's matrix, eliminated
    inverse: F64  #: (K)


@borrowing
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


@borrowing
def newton(band: Band, groups: int, K: int, a: F64, b: F64, work: F64, v: F64, spare: F64) -> tuple[float, int, bool]:
    """Write gamma to work[0]; return the marginal error, the number of matrices, and whether gamma stayed small.

    K      a multiple of 16: behind the targets there are some that weigh nothing
    work   (6, K)  OUT  work[0] is gamma
    v      (n)     OUT  scalings of the values
    spare  (n)          scratch
    """
    gamma, u, s, base, direction, ground = work[0], work[1], work[2], work[3], work[4], work[5]
    S = ends_into(groups, band.lo, band.hi, K, band.ends)
    for k in range(K):
        base[k], direction[k] = 0.0, 0.0
    length, slope, error, before, known = 1.0, np.inf, np.inf, np.inf, False
    steps, matrices, fresh = 0, 0, False
    while True:
        farthest = 0.0
        for k in range(K):
            gamma[k] = base[k] + length * direction[k]
            farthest = max(farthest, abs(gamma[k]))
        for k in range(0, K, 16):
            store64(u, k, exp64(load64(gamma, k)) * load64(b, k))
        sums(band.G, groups, K, a, u, band.lo, band.hi, band.offset, v, s)
        error, here = 0.0, 0.0
        for k in range(K):
            s[k] = b[k] - s[k] * u[k]
            error += abs(s[k])
            here += s[k] * direction[k]
        if farthest > _FAR:
            return error, matrices, False
        if not error > _WANTED or steps >= _MOST or (error <= ENOUGH and fresh and error > _SLOW * before):
            break
        steps += 1
        if here < -0.5 * slope:  # the maximum was passed: the secant of the slopes says where it is
            length *= slope / (slope - here)
            continue
        fresh = not known or error > _KEEP * before
        if fresh:
            for i in range(4 * groups):
                spare[i] = a[i] * v[i] * v[i]
            edges(band.G, spare, groups, band.lo, band.hi, band.offset, K, S, band.W)
            scale(band.W, u, band.ends, K, S)
            eliminate(band.W, K, S, band.ends, b, GROUND_OF_STEPS, ground, band.inverse)
            known, matrices = True, matrices + 1
        before = error
        for k in range(K):
            base[k] = gamma[k]
            direction[k] = s[k]
        substitute(band.W, K, S, band.ends, band.inverse, direction)
        level = 0.0
        for k in range(K):
            level += b[k] * direction[k]
        slope, length, longest = 0.0, 1.0, 0.0
        for k in range(K):
            direction[k] = direction[k] - level if b[k] > 0.0 else 0.0
            longest = max(longest, abs(direction[k]))
        shorter = min(1.0, _LARGEST_STEP / longest) if longest > 0.0 else 1.0  # as a whole, see ``solvers.newton``
        for k in range(K):
            direction[k] *= shorter
            slope += s[k] * direction[k]
        if not slope > 0.0:  # Sinkhorn's own step always rises
            slope = 0.0
            for k in range(K):
                direction[k] = -math.log(max(1.0 - s[k] / b[k], 1e-30)) if b[k] > 0.0 else 0.0
                slope += s[k] * direction[k]
    return error, matrices, True
