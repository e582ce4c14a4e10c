"""The plan of few sources and few targets in double precision: a band, scalings of it, Newton's steps.

With the potentials f0, g0 of the hard sort the entries of G are exp(-(C - f0 - g0) / eps), at most 1, and only those
above exp(-CUT) are kept: of each source a few targets next to each other. The plan is p_ik = v_i G_ik u_k with v_i =
1 / sum_k G_ik u_k, and Newton's method is that of ``solvers.newton``, on log u.

Its matrix is the Laplacian with an edge sum_i a_i p_ik p_il between the targets k and l. Targets are eliminated from
left to right; what is left of the graph has edges W_lm + W_kl W_km / d_k, where d_k is the sum of the edges of k.
Nothing is ever subtracted, so that weak links keep all their digits.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.compile import exact, summing
from ..engine.maths import F64, I64, exp64
from ..engine.vectors import load64, store64

_CUT = 50.0  #: reduced costs from which pairs are left out
FAINT, VERY_FAINT = 1e-12, 1e-22  #: shares without influence on a step of Newton's method, and on a gradient
_GROUND = 1e-13  #: what a target is joined to the ground by, times its weight; as the ridge of ``semidual``
_LARGEST_STEP = 5.0
_MOST_STEPS = 60


@exact
def exponentials(t: F64, first: int, end: int) -> None:
    """In place, and of up to 15 numbers behind the end, which must be there."""
    for q in range(first, end, 16):
        store64(t, q, exp64(load64(t, q)))


@exact
def hard_potentials(y: F64, K: int, z: F64, g0: F64) -> None:
    """Of the targets, from where the staircase leaves each for the next: z[k + 1]."""
    g0[0] = 0.0
    for k in range(K - 1):
        g0[k + 1] = g0[k] + (y[k + 1] - y[k]) * (y[k + 1] + y[k] - 2.0 * z[k + 1])


@exact
def band(x: F64, n: int, y: F64, K: int, z: F64, g0: F64, eps: float, lo: I64, hi: I64, offset: I64) -> None:
    """Which targets each source reaches, lo to hi - 1, and where its entries begin; offset[n] is how many there are."""
    best, first, end, count = 0, 0, 0, 0
    for i in range(n):
        while best < K - 1 and z[best + 1] < x[i]:
            best += 1
        least = (y[best] - x[i]) ** 2 - g0[best] + _CUT * eps
        while first < best and (y[first] - x[i]) ** 2 - g0[first] > least:
            first += 1
        end = max(end, best + 1)
        while end < K and (y[end] - x[i]) ** 2 - g0[end] <= least:
            end += 1
        lo[i], hi[i], offset[i] = first, end, count
        count += end - first
    offset[n] = count


@exact
def gibbs(x: F64, n: int, y: F64, g0: F64, eps: float, lo: I64, hi: I64, offset: I64, most: F64, G: F64) -> None:
    """G, and the exponents of the largest entries of each source, which are 1 in G."""
    for i in range(n):
        at, largest = offset[i] - lo[i], -np.inf
        for k in range(lo[i], hi[i]):
            G[at + k] = (g0[k] - (y[k] - x[i]) ** 2) / eps
            largest = max(largest, G[at + k])
        for k in range(lo[i], hi[i]):
            G[at + k] -= largest
        most[i] = largest
    G[offset[n] : offset[n] + 16] = 0.0
    exponentials(G, 0, offset[n])


@summing
def shares(G: F64, n: int, K: int, a: F64, u: F64, lo: I64, hi: I64, offset: I64, v: F64, s: F64) -> None:
    """v, which makes the rows exact, and what the targets get then."""
    s[:K] = 0.0
    for i in range(n):
        row, first = G[offset[i] : offset[i + 1]], lo[i]
        scales, sums, received = u[first : hi[i]], 0.0, s[first : hi[i]]
        for k in range(len(row)):
            sums += row[k] * scales[k]
        v[i] = 1.0 / sums
        weight = a[i] * v[i]
        for k in range(len(row)):
            received[k] += weight * row[k]
    for k in range(K):
        s[k] *= u[k]


@exact
def edges(P: F64, n: int, K: int, a: F64, lo: I64, offset: I64, reach: int, faint: float, W: F64) -> None:
    """sum_i a_i p_ik p_il for l > k, at k * reach + l - k - 1; shares at the ends of a row below ``faint`` are none."""
    W[: K * reach] = 0.0
    for i in range(n):
        row = P[offset[i] : offset[i + 1]]
        first, end = 0, len(row)
        while first < end and row[first] < faint:
            first += 1
        while first < end and row[end - 1] < faint:
            end -= 1
        for k in range(first, end - 1):
            weight, others = a[i] * row[k], row[k + 1 : end]
            line = W[(lo[i] + k) * reach : (lo[i] + k) * reach + len(others)]
            for m in range(len(others)):
                line[m] += weight * others[m]


@exact
def widest(n: int, lo: I64, hi: I64) -> int:
    """How many edges to its right a target can have, at least one."""
    reach = 1
    for i in range(n):
        reach = max(reach, hi[i] - lo[i] - 1)
    return reach


@exact
def eliminate(W: F64, K: int, reach: int, b: F64, ground: F64, inverse: F64) -> None:
    ground[:K] = _GROUND * b[:K]
    for k in range(K):
        line = W[k * reach : k * reach + min(reach, K - 1 - k)]
        whole = ground[k]
        for m in range(len(line)):
            whole += line[m]
        inverse[k] = 1.0 / whole
        for m in range(len(line)):
            share = line[m] * inverse[k]
            if share > 0.0:
                ground[k + 1 + m] += share * ground[k]
                rest, to = line[m + 1 :], W[(k + 1 + m) * reach : (k + 1 + m) * reach + len(line) - m - 1]
                for j in range(len(rest)):
                    to[j] += share * rest[j]


@summing
def substitute(W: F64, K: int, reach: int, inverse: F64, t: F64) -> None:
    """In place: t becomes lambda."""
    for k in range(K):
        line, to, flow = W[k * reach : k * reach + min(reach, K - 1 - k)], t[k + 1 :], t[k] * inverse[k]
        for m in range(len(line)):
            to[m] += line[m] * flow
    for k in range(K - 1, -1, -1):
        line, above, sums = W[k * reach : k * reach + min(reach, K - 1 - k)], t[k + 1 :], t[k]
        for m in range(len(line)):
            sums += line[m] * above[m]
        t[k] = sums * inverse[k]


@exact
def plan_into(G: F64, n: int, u: F64, v: F64, lo: I64, hi: I64, offset: I64, P: F64) -> None:
    for i in range(n):
        row, to, scales = G[offset[i] : offset[i + 1]], P[offset[i] : offset[i + 1]], u[lo[i] : hi[i]]
        for k in range(len(row)):
            to[k] = row[k] * scales[k] * v[i]


@exact
def newton(G: F64, P: F64, n: int, K: int, a: F64, b: F64, lo: I64, hi: I64, offset: I64, reach: int, tolerance: float,
           W: F64, inverse: F64, gamma: F64, v: F64, work: F64) -> float:  # fmt: skip
    """log(u / b) into gamma, and the eliminated matrix there; returns what targets lack. ``work``: (5, K)."""
    u, s, base, direction, ground = work[0], work[1], work[2], work[3], work[4]
    base[:K], direction[:K] = 0.0, 0.0
    length, slope, error = 1.0, np.inf, np.inf
    for step in range(_MOST_STEPS):
        for k in range(K):
            gamma[k] = base[k] + length * direction[k]
            u[k] = b[k] * math.exp(gamma[k])
        shares(G, n, K, a, u, lo, hi, offset, v, s)
        error, here = 0.0, 0.0
        for k in range(K):
            error += abs(b[k] - s[k])
            here += (b[k] - s[k]) * direction[k]
        done = not error > tolerance or step == _MOST_STEPS - 1
        if not done and here < -0.5 * slope:  # beyond the maximum: the secant of the slopes says where it is
            length *= slope / (slope - here)
            continue
        plan_into(G, n, u, v, lo, hi, offset, P)
        edges(P, n, K, a, lo, offset, reach, FAINT, W)
        eliminate(W, K, reach, b, ground, inverse)
        if done:
            break
        for k in range(K):
            base[k] = gamma[k]
            direction[k] = b[k] - s[k]
        substitute(W, K, reach, inverse, direction)
        # The matrix has no say in how high all potentials are together.
        level = 0.0
        for k in range(K):
            level += b[k] * direction[k]
        slope, length = 0.0, 1.0
        for k in range(K):
            direction[k] = min(max(direction[k] - level, -_LARGEST_STEP), _LARGEST_STEP)
            slope += (b[k] - s[k]) * direction[k]
        if not slope > 0.0:
            slope = 0.0
            for k in range(K):  # Sinkhorn's own step always rises
                direction[k] = math.log(b[k] / max(s[k], 1e-300))
                slope += (b[k] - s[k]) * direction[k]
    return error
