"""Sorted values of one row at a time: at targets of one's own, or at the nodes of a rule for very many.

A plan is solved as for ranks (``row.solve``), which also has the way back. Here is what targets receive, and how
much of it a grid in place of the values and a rule in place of the targets get wrong.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F32, copied, exp32, larger, places, row_into, smaller
from ..engine.sources import padded, range_of
from ..engine.vectors import lane_numbers, load, select, splat, store, total
from .grid import BEYOND, cells_for, finer_cells, remainder
from .laplacian import substitute
from .newton import complete, gather, scale
from .read import BEFORE_LASTS, LASTS, pulled
from .solve import ACCEPTED, carried_by_sources, carried_values, of_masses, outermost, save, solved
from .work import (
    AT,
    AW,
    BEST,
    COV,
    ENDS,
    GHI,
    GLO,
    HI,
    INV,
    LO,
    MASS,
    NEAR_ENDS,
    NODES,
    OCCUPIED,
    READ,
    SAVED,
    WEIGHT,
    XS,
    Y32,
    B,
    S,
    U,
    V,
    Work,
    Z,
    given_into,
    state_parts,
    workspace,
)

_OF_AVERAGES, _OF_PLACES = 3.0, 3.0  #: the same of averages of the values; and of where values go, for gradients
_EVERY = 6  #: of how many targets one is looked at, since they are alike
PEAK = 1.0  #: of polynomials where all add up, over the square root of the weight of an end: see ``by_nodes``
_SMALL_STEP = np.float32(0.1)


@jit
def push_rows(start: int, stop: int, x: F32, a: F32, y: F32, b: F32, last: F32, eps: F32, n: int, K: int, m: int,
              squash: int, steps: tuple[int, int, int, int, int], out: F32, state32: F32,
              errors: F32) -> None:  # fmt: skip
    """As ``row.solve.pull_rows``; what is averaged is (x - mean) * scale, so that nothing overflows.

    Where the targets are nodes for m others (m > 0), the answers stay in that unit, and errors are those of the
    interpolation between nodes as well.
    """
    stride, lasts, size = padded(K), LASTS if len(last) > 0 else 0, len(state32) // len(errors)
    state64, state_int = state32.view(np.float64), state32.view(np.int32)
    at32, at_int, _ = state_parts(n, K, False)
    k = workspace(n, K)
    xs, at = k.n32[XS], k.n64[AT]
    first_one = True
    for row in range(start, stop):
        doubles, singles, of_int = (
            state64[row * size // 2 :],
            state32[row * size + at32 :],
            state_int[row * size + at_int :],
        )
        answer = out[row * K : row * K + K]
        doubles[stride + NODES] = 0.0
        if not row_into(x, row * n, n, xs):
            answer[:] = np.nan
            doubles[stride], doubles[stride + 1], doubles[stride + 2], errors[row] = 0.0, 1.0, np.nan, 0.0
            continue
        given_into(k, y, b, a, row, n, K, steps, first_one)
        if first_one or steps[2] > 0:
            for j in range(lasts):
                copied(last[row * steps[2] + (BEFORE_LASTS + j) * K :], k.last[j * stride : j * stride + K])
        first_one = False
        e = np.float64(eps[row * steps[3]])
        first, rejects_by_nan = outermost(k, K, lasts > 0)
        standard = places(xs, k.n32[AW], squash, first, rejects_by_nan, at)
        low, high = range_of(at, n)
        W = k.W if K > SAVED else singles[2 * stride :]
        finite = carried_values(k, n, standard[0], standard[1])
        cells = cells_for(n, K, low, high, e) if m > 0 and finite else 0
        while True:
            error, eliminated, near, misplaced = solved(k, n, K, e, cells, low, high, of_int[1:], W)
            error = max(error, misplaced / K)
            N = padded(n) if cells == 0 else cells + BEYOND
            if not error < np.inf:
                answer[:] = 0.0
                break
            if eliminated:
                stepped(k, K, W, near)
            complete(k.G, N, k.n_int[BEST])
            scale(k.G, N, K, k.n32[MASS], k.n_int[BEST], k.k32[U], k.k_int[LO], k.k_int[HI], k.n_int[GLO],
                  k.n_int[GHI], bool(1), k.n32[V], k.n32[COV], k.parts, k.k32[S])  # fmt: skip
            carried_by_sources(k, n, cells, of_int[1:])
            rule = averages(k, N, K, lasts, answer)
            error = max(error, rule) if rule < np.inf else np.inf
            if cells == 0 or error > ACCEPTED:  # of which no grid is the cause
                break
            off = off_grid(k, N, K, answer)
            error = max(error, off) if off < np.inf else np.inf
            if error <= ACCEPTED:
                break
            cells = finer_cells(cells, off / ACCEPTED, n) if off > ACCEPTED else 0
        if m == 0:
            for j in range(K):
                answer[j] = standard[0] + answer[j] / standard[1]
        errors[row] = error if finite else np.inf  # averages of infinite values are for the reference
        of_int[0] = cells
        if cells > 0:
            copied(k.n32[MASS], of_masses(of_int, N))
        save(k, K, standard, eliminated, near, lasts > 0, doubles, singles)


@jit_no_refcount
def stepped(k: Work, K: int, W: F32, near: bool) -> None:
    """One more step of Newton's from what the last one left: averages of light targets want few errors of weight."""
    stride = padded(K)
    direction, rho = k.small[stride : 2 * stride], k.small[2 * stride : 3 * stride]
    copied(rho, k.k32[Z])
    substitute(W, K, stride, k.k_int[NEAR_ENDS] if near else k.k_int[ENDS], k.k32[INV], k.k32[Z], direction)
    centre = splat(0.0)
    for c in range(0, stride, 16):
        centre = centre + load(direction, c) * load(k.k32[B], c)
    mean = total(centre)
    for c in range(0, stride, 16):
        d = smaller(larger(load(direction, c) - mean, splat(-_SMALL_STEP)), splat(_SMALL_STEP))
        store(k.k32[U], c, load(k.k32[U], c) * exp32(d))


@jit_no_refcount
def averages(k: Work, N: int, K: int, lasts: int, answer: F32) -> float:
    """What each target gets of WEIGHT, over what it gets of all; returns the error of the rule over the range.

    G is complete, and ``scale`` left v and shares in S. The function of the targets that is read between nodes is of
    degree K - 1; how fast its coefficients fall says how well.
    """
    stride, v, weight = padded(K), k.n32[V], k.n32[WEIGHT]
    for i in range(0, N, 16):
        store(k.n32[COV], i, load(weight, i) * load(v, i))
    gather(k.G, N, K, k.n32[COV], k.k_int[LO], k.k_int[HI], k.parts, k.k32[Z])
    for j in range(K):
        share = k.k32[S, j]
        answer[j] = k.k32[Z, j] / share if share > 0.0 else 0.0
    span, off = range_of_averages(answer, K), 0.0
    for line in range(lasts):
        coefficient = 0.0
        for j in range(K):
            coefficient += k.k32[B, j] * k.last[line * stride + j] * answer[j]
        off += abs(coefficient)
    return off * PEAK * math.sqrt(2.0 * K + 1.0) / span if span > 0.0 else 0.0


@jit_no_refcount
def range_of_averages(answer: F32, K: int) -> float:
    low, high = answer[0], answer[0]
    for j in range(K):
        low, high = min(low, answer[j]), max(high, answer[j])
    return float(high) - float(low)


@jit_no_refcount
def off_grid(k: Work, N: int, K: int, answer: F32) -> float:
    """How far averages are off, over their range, since shares of targets are no quintics between nodes of a grid.

    They are off by 5 / 1024 of their sixth differences, times what is carried less its average; part of that has one
    sign, part is where values happen to be. Gradients also need the mean of the targets at each value.
    """
    v, weight, mass, worst = k.n32[V], k.n32[WEIGHT], k.n32[MASS], 0.0
    pulled(k.G, N, k.k32[U], v, k.k32[Y32], k.last, np.int64(0), padded(K), k.n_int[GLO], k.n_int[GHI],
           k.n32[OCCUPIED], k.small, k.n32[READ])  # fmt: skip
    of_places = _OF_PLACES * remainder(k.n32[READ], N - BEYOND, k.n32[OCCUPIED])
    line = k.parts[: N + 32]
    for j in range(0, K, _EVERY):
        first, end = 16 * k.k_int[LO, j // 4], 16 * k.k_int[HI, j // 4]
        for i in range(max(first - 16, 0), min(end + 32, N + 32), 16):
            store(line, i, splat(0.0))
        for i in range(first, end, 16):
            store(line, i, load(k.G, j * N + i) * load(v, i))
        average = splat(answer[j])
        sums, squares = splat(0.0), splat(0.0)
        for i in range(max(first - 3, 3), min(end + 3, N - 3), 16):
            near, far = load(line, i - 1) + load(line, i + 1), load(line, i - 2) + load(line, i + 2)
            sixth = (load(line, i - 3) + load(line, i + 3) - load(line, i) * 20.0) - far * 6.0 + near * 15.0
            part = (load(weight, i) - load(mass, i) * average) * sixth
            part = select(lane_numbers() < float(N - 3 - i), part, splat(0.0))
            sums, squares = sums + part, squares + part * part
        off = abs(float(total(sums))) + 2.0 * math.sqrt(float(total(squares)))
        worst = max(worst, off / float(k.k32[S, j]) if k.k32[S, j] > 0.0 else 0.0)
    span = range_of_averages(answer, K)
    return max(of_places, _OF_AVERAGES * 5.0 / 1024.0 * worst / span) if span > 0.0 else 0.0
