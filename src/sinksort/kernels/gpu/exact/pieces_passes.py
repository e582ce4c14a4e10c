"""Passes over a late row by all programs together: each takes every P-th tile of values, and sums are exchanged.

Programs wait for each other at a counter in memory, so all of them must run at once: they are launched cooperatively,
no more than the device has multiprocessors. All of them add up the same numbers in the same order, and so agree on what
to do next. One program alone never waits.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.barrier import meet
from ..engine.laplacian import first_way, go_on, path_of
from ..engine.maths import kept, load_row, load_weight
from ..engine.parts import apart_from_mean, halves, place, shares
from ..engine.sums import agreed_sum
from ..engine.tables import MIDDLE, OFFSET, REST, STD, TOP, UNIT


@triton.jit
def together(
    one: tl.tensor, two: tl.tensor, three: tl.tensor, sums: tl.tensor, ticket: tl.tensor, met: tl.tensor, P: tl.tensor,
    COUNT: tl.constexpr, KP: tl.constexpr, PP: tl.constexpr, LARGEST: tl.constexpr,
) -> Any:  # fmt: skip
    """Sums over all programs of up to three vectors, or their largest entries. ``sums``: P + 1 times 3 KP doubles.

    Every program adds up some of the entries. PP: the power of two from P on.
    """
    p = tl.program_id(0)
    j = tl.arange(0, KP)
    mine = sums + (p + 1).to(tl.int64) * (3 * KP)
    tl.store(mine + j, one.to(tl.float64))
    if COUNT > 1:
        tl.store(mine + KP + j, two.to(tl.float64))
        tl.store(mine + 2 * KP + j, three.to(tl.float64))
    met = meet(ticket, met, P)
    WIDTH: tl.constexpr = KP if PP == 1 else (2 * KP // PP if KP > PP else 2)  # P is more than half of PP
    k = p * WIDTH + tl.arange(0, WIDTH)
    q = tl.arange(0, PP)
    for which in tl.static_range(COUNT):
        at = sums + (q[:, None] + 1).to(tl.int64) * (3 * KP) + which * KP + k[None, :]
        parts = tl.load(at, mask=(q < P)[:, None] & (k < KP)[None, :], other=0.0, cache_modifier=".cg")
        whole = tl.max(parts, axis=0) if LARGEST else tl.sum(parts, axis=0)
        tl.store(sums + which * KP + k, whole, mask=k < KP)
    met = meet(ticket, met, P)
    one = tl.load(sums + j, cache_modifier=".cg")
    if COUNT > 1:
        two = tl.load(sums + KP + j, cache_modifier=".cg")
        three = tl.load(sums + 2 * KP + j, cache_modifier=".cg")
    return one, two, three, met


@triton.jit
def together_one(
    v: tl.tensor, sums: tl.tensor, ticket: tl.tensor, met: tl.tensor, P: tl.tensor, KP: tl.constexpr, PP: tl.constexpr,
    LARGEST: tl.constexpr,
) -> Any:  # fmt: skip
    """``together`` for one vector."""
    one, _two, _three, met = together(v, v, v, sums, ticket, met, P, 1, KP, PP, LARGEST)
    return one, met


@triton.jit
def facts_of(table: tl.tensor, SQUASH: tl.constexpr) -> Any:
    """Origin and unit of a row for ``engine.parts.place``, in double precision, and the range of places."""
    unit, middle = tl.load(table + UNIT).to(tl.float64), tl.load(table + MIDDLE).to(tl.float64)
    if SQUASH == 0:
        top = tl.load(table + TOP).to(tl.float64)
        span = tl.where(top > 0.0, top, 1.0)
        origin = middle + 0.5 * top
        std = span
    else:
        std = kept(table + STD)
        origin = (middle - tl.load(table + OFFSET).to(tl.float64) / tl.load(table + REST).to(tl.float64)) / unit
        span = std * 0.0 + 1.0
    return origin, std, span


@triton.jit
def placed_values(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, row: tl.tensor, at: tl.tensor, n: tl.tensor, origin: tl.tensor,
    unit: tl.tensor, SQUASH: tl.constexpr,
) -> Any:  # fmt: skip
    """Values ``at``, z and places, all double: nearly tied values tell apart what is nearly the same."""
    v = load_row(x, row, at, x_row, x_step, n)
    z, place_of = place(v, origin, unit, SQUASH, tl.float64)
    return v, z, place_of


@triton.jit
def place_all(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, row: tl.tensor, begin: tl.tensor, end: tl.tensor, n: tl.tensor,
    origin: tl.tensor, unit: tl.tensor, places: tl.tensor, SQUASH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Where a program's own values stand, in two parts, for all passes to come: 2 n singles."""
    tl.debug_barrier()
    for start in range(begin, end, BLOCK):
        at = (start + tl.arange(0, BLOCK)).to(tl.int64)
        _v, _z, place_of = placed_values(x, x_row, x_step, row, at, n, origin, unit, SQUASH)
        high, low = halves(place_of)
        tl.store(places + at, high, mask=at < end)
        tl.store(places + n + at, low, mask=at < end)
    tl.debug_barrier()


@triton.jit
def share_of(n: tl.tensor, P: tl.tensor, BN: tl.constexpr) -> Any:
    """Which values are this program's own."""
    each = tl.cdiv(tl.cdiv(n, P), BN) * BN
    begin = tl.program_id(0) * each
    return begin, tl.minimum(begin + each, n)


@triton.jit
def standing(
    places: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, row: tl.tensor, at: tl.tensor, n: tl.tensor,
    per_weight: tl.tensor, WEIGHTED: tl.constexpr,
) -> Any:  # fmt: skip
    """Places of values ``at`` in two parts, and weights that sum to one over the row."""
    weight = load_weight(a, row, at, a_row, a_step, n, WEIGHTED) * per_weight
    return tl.load(places + at, mask=at < n, other=0.0), tl.load(places + n + at, mask=at < n, other=0.0), weight


@triton.jit
def plan_of(
    xh: tl.tensor, xl: tl.tensor, y: tl.tensor, yh: tl.tensor, yl: tl.tensor, Uh: tl.tensor, Ul: tl.tensor, s: tl.tensor
) -> Any:
    """Shares of values, a tile (values, targets)."""
    return shares(xh, xl, y, yh, yl, Uh, Ul, s, 1, False)


@triton.jit
def solved(
    r: tl.tensor, D: tl.tensor, Ly: tl.tensor, step: tl.tensor, b: tl.tensor, accuracy: tl.tensor,
    places: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, row: tl.tensor, begin: tl.tensor,
    end: tl.tensor, n: tl.tensor, per_weight: tl.tensor,
    y: tl.tensor, yh: tl.tensor, yl: tl.tensor, Uh: tl.tensor, Ul: tl.tensor, s: tl.tensor,
    sums: tl.tensor, ticket: tl.tensor, met: tl.tensor, P: tl.tensor,
    WEIGHTED: tl.constexpr, MOST: tl.constexpr, BN: tl.constexpr, KP: tl.constexpr, PP: tl.constexpr,
) -> Any:  # fmt: skip
    """L^+ r by conjugate gradients, as ``exact.all_targets.solve_by_passes``: each product with L is a pass."""
    inverse_D, resistance = path_of(Ly, step, D, 1e-6)
    r, way, rz = first_way(r, inverse_D, resistance, b)
    out = r * 0.0
    enough = rz * accuracy * accuracy
    k = 0
    while (k < MOST) & (rz > enough):
        sum_Lw = tl.zeros([KP], tl.float64)
        for start in range(begin, end, BN):
            at = (start + tl.arange(0, BN)).to(tl.int64)
            xh, xl, weight = standing(places, a, a_row, a_step, row, at, n, per_weight, WEIGHTED)
            share = plan_of(xh, xl, y, yh, yl, Uh, Ul, s)
            sum_Lw += agreed_sum(weight[:, None] * share * apart_from_mean(share, way, 1), axis=0).to(tl.float64)
        sum_Lw, met = together_one(sum_Lw, sums, ticket, met, P, KP, PP, False)
        Lw = sum_Lw.to(tl.float32)
        Lw += 1e-7 * b * (way - agreed_sum(b * way, axis=0))  # where the plan falls apart: see ``bridged``
        out, r, way, rz = go_on(out, r, way, rz, Lw, inverse_D, resistance)
        k += 1
    return out, met
