"""Late rows of up to 2048 values: panels of targets, one a lane, and the nodes of the grid that stand for the values.

Tiles are those of ``registers.tiles`` with a panel of sixteen slots in each lane: KA is SLOTS, and there are KB
panels. Panels and their rules are those of ``exact.pieces_nodes``; here a panel is one whole number in memory, its
level and its index in sixteen bits each.

What grid and rule got wrong is mended by a look at every value now and then (``exact.rows``). In between the
masses at the nodes of the grid stand for the values: those that weigh something, one after the other.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.parts import NOWHERE, halves
from ..engine.tables import HEAD, LEAST, STEP
from ..engine.tiles import (
    AXIS_KA,
    AXIS_V,
    inverse_of,
    most_over_targets,
    over_targets,
    over_values,
    running,
    scalar,
    split_potential,
)
from .pieces_nodes import RULE, SLOTS
from .pieces_passes import placed_values

#: What a program keeps in memory of each slot, in single precision; registers are for what loops need.
HIGH, LOW, BASE, WAY, AIM, WEIGHT, GAP, SUM, LINES = (tl.constexpr(i) for i in range(9))
OWN = tl.constexpr(50 + 8 * 15)  #: doubles for each panel: 3 a slot, itself, and 15 numbers a slot in single precision
_NOTHING = tl.constexpr(1e-6)  #: mass of a node that need not be looked at, unless there are values beside it
_BLOCK = tl.constexpr(512)  #: values that are placed at once


@triton.jit
def positive() -> Any:
    """A positive number, for ``indices``: what is generated from Triton's layouts knows that it is, these do not.

    So the addresses of a thread's sixteen slots are one address and what is added to it.
    """
    return tl.program_id(0) + 1


@triton.jit
def slot_of(own: tl.tensor, which: tl.tensor, j: tl.tensor, KP: tl.constexpr) -> Any:
    return tl.load(own + which * KP + j)


@triton.jit
def keep_slot(own: tl.tensor, which: tl.tensor, j: tl.tensor, value: tl.tensor, KP: tl.constexpr) -> None:
    """For ``slot_of``. All threads that have a slot write the same, and read what they have written themselves."""
    tl.store(own + which * KP + j, value)


@triton.jit
def kept_potentials(own: tl.tensor, room: tl.tensor, j: tl.tensor, KP: tl.constexpr) -> Any:
    """Places and potentials of slots, each in two parts; slots without a target are sent out of reach."""
    yh, yl = halves(tl.load(room + 2 * KP + j))
    has = slot_of(own, WEIGHT, j, KP) > 0
    return yh, yl, slot_of(own, HIGH, j, KP), tl.where(has, slot_of(own, LOW, j, KP), NOWHERE)


@triton.jit
def sizes_of(panel: tl.tensor, there: tl.tensor, m: tl.tensor) -> Any:
    """First targets of panels, how many, and where in the table of rules theirs is."""
    level, index = panel >> 16, panel & 65535
    low = (index * m) >> level
    count = (((index + 1) * m) >> level) - low
    return low, count, (2 * level + count - (m >> level)) * RULE, there & (count > SLOTS)


@triton.jit
def nodes_of(
    at_panels: tl.tensor, panels: tl.tensor, j: tl.tensor, m: tl.tensor, rules: tl.tensor, room: tl.tensor,
    KP: tl.constexpr,
) -> Any:  # fmt: skip
    """Places of slots j in [-1/2, 1/2] (double), which are left in ``room``, the steps between them, and weights."""
    q, slot = j // SLOTS, j % SLOTS
    there = q < panels
    low, count, rule, ruled = sizes_of(tl.load(at_panels + q, mask=there, other=0), there, m)
    own = tl.load(rules + rule + slot, mask=ruled, other=0.0)
    own = tl.where(ruled, own, tl.minimum(slot, count - 1).to(tl.float64))
    share = tl.load(rules + rule + SLOTS + slot, mask=ruled, other=0.0) * count.to(tl.float64)
    share = tl.where(ruled, share, tl.where(slot < count, 1.0, 0.0).to(tl.float64))
    y = tl.where(there, (low.to(tl.float64) + own) * (1.0 / (m - 1).to(tl.float64)) - 0.5, 0.5)
    b = tl.where(there, share * (1.0 / m.to(tl.float64)), 0.0).to(tl.float32)
    tl.debug_barrier()
    tl.store(room + j, y)
    tl.debug_barrier()
    following = tl.load(room + j + 1, mask=j + 1 < KP, other=0.5)
    return y, tl.maximum(following - y, 0.0).to(tl.float32), b


@triton.jit
def estimating(
    at_panels: tl.tensor, panels: tl.tensor, j: tl.tensor, m: tl.tensor, rules: tl.tensor, order: tl.tensor
) -> Any:
    """One of the last polynomials of all rules; zero where all targets are nodes."""
    q = j // SLOTS
    there = q < panels
    _low, _count, rule, ruled = sizes_of(tl.load(at_panels + q, mask=there, other=0), there, m)
    return tl.load(rules + rule + (2 + order) * SLOTS + j % SLOTS, mask=ruled, other=0.0).to(tl.float32)


@triton.jit
def halved(
    at_panels: tl.tensor, panels: tl.tensor, q: tl.tensor, worst: tl.tensor, allowed: tl.tensor, m: tl.tensor,
    X: tl.constexpr, KB: tl.constexpr,
) -> Any:  # fmt: skip
    """Cuts panels in two whose estimated error is too large, and says how many there are; as many, if it cannot.

    ``worst`` and q belong to panels. Where there is no room for all, the worst are cut.
    """
    there = q < panels
    panel = tl.load(at_panels + q, mask=there, other=0)
    _low, count, _rule, _ruled = sizes_of(panel, there, m)
    share = allowed / tl.maximum(panels, 8)
    more = tl.where(there & (count > SLOTS) & (worst > share), 1.0, 0.0)
    total = over_targets(more, 1, X, KB)
    some = more * tl.where(worst > 0.3 * most_over_targets(worst, 1, X, KB), 1.0, 0.0)
    more = tl.where(panels + total > KB, some, more)
    total = over_targets(more, 1, X, KB)
    more = tl.where(panels + total > KB, 0.0, more)
    total = tl.where(panels + total > KB, 0.0, total)
    to = q + (running(more) - more).to(tl.int32)
    more = more.to(tl.int32)
    level, index = panel >> 16, panel & 65535
    first = ((level + more) << 16) | (index * (1 + more))
    tl.debug_barrier()
    tl.store(at_panels + to, first, mask=there)
    tl.store(at_panels + to + 1, first + 1, mask=there & (more > 0))
    tl.debug_barrier()
    return panels + scalar(total).to(tl.int32)


@triton.jit
def keep_potentials(
    own: tl.tensor, per_s: tl.tensor, at_panels: tl.tensor, panels: tl.tensor, j: tl.tensor, m: tl.tensor,
    room: tl.tensor, KP: tl.constexpr,
) -> None:  # fmt: skip
    """Potentials without the weights of targets, for ``continued``, and places of slots j, which are behind it.

    Slots without a target have that of the last before.
    """
    q = j // SLOTS
    there = q < panels
    _low, count, _rule, _ruled = sizes_of(tl.load(at_panels + q, mask=there, other=0), there, m)
    real = q * SLOTS + tl.minimum(j % SLOTS, tl.maximum(count, 1) - 1)
    b = slot_of(own, WEIGHT, j, KP)
    G = slot_of(own, LOW, j, KP) + tl.log(tl.where(b > 0, b, 1.0)) * per_s
    G = slot_of(own, HIGH, j, KP).to(tl.float64) + G.to(tl.float64)
    tl.debug_barrier()
    tl.store(room + j, tl.load(room + 2 * KP + j))
    tl.store(room + KP + j, G)
    tl.debug_barrier()
    G = tl.load(room + KP + real)
    tl.debug_barrier()
    tl.store(room + KP + j, G)
    tl.debug_barrier()


@triton.jit
def continued(y: tl.tensor, slots: tl.tensor, room: tl.tensor, KP: tl.constexpr) -> Any:
    """At places y the function whose places and values are in ``room``, so many; in between by straight lines."""
    first = (y * 0.0).to(tl.int32)  # the last place that is not beyond, by bisection
    beyond = first + slots - 1
    for _ in range(10):  # up to 512 slots
        middle = (first + beyond) // 2
        within = tl.load(room + middle) <= y
        wide = beyond - first > 1
        first = tl.where(wide & within, middle, first)
        beyond = tl.where(wide & ~within, middle, beyond)
    y0, y1 = tl.load(room + first), tl.load(room + beyond)
    G0, G1 = tl.load(room + KP + first), tl.load(room + KP + beyond)
    tl.debug_barrier()  # until all have read
    rise = tl.where(y1 > y0, (G1 - G0) / tl.where(y1 > y0, y1 - y0, 1.0), 0.0)
    return G0 + rise * (y - y0)


@triton.jit
def keep_potentials_of_grid(
    table: tl.tensor, y: tl.tensor, j: tl.tensor, K: tl.tensor, span: tl.tensor, room: tl.tensor,
    SQUASH: tl.constexpr, CELLS: tl.constexpr, KR: tl.constexpr, KP: tl.constexpr,
) -> None:  # fmt: skip
    """What the rule of the first launch found, for ``continued``: the potentials, without the weights of targets.

    These are for places in steps of the grid from its middle, and targets scaled by their own range.
    """
    step = tl.load(table + STEP).to(tl.float64)
    middle = (tl.load(table + LEAST).to(tl.float64) + step * (CELLS // 2)) / span - (0.5 if SQUASH == 0 else 0.0)
    low, high = tl.load(y).to(tl.float64), tl.load(y + K - 1).to(tl.float64)
    inside = j < K
    at = tl.load(y + j, mask=inside, other=0.0).to(tl.float64) - 0.5
    U = tl.load(table + HEAD + j, mask=inside, other=0.0).to(tl.float64)
    U += tl.load(table + HEAD + KR + j, mask=inside, other=0.0).to(tl.float64)
    tl.debug_barrier()
    tl.store(room + j, at, mask=inside)
    tl.store(room + KP + j, U * (step * (high - low) / span) + middle * at, mask=inside)
    tl.debug_barrier()


@triton.jit(noinline=True)
def place_row(
    x: tl.tensor, x_row: tl.tensor, x_step: tl.tensor, row: tl.tensor, n: tl.tensor, origin: tl.tensor,
    unit: tl.tensor, places: tl.tensor, SQUASH: tl.constexpr,
) -> None:  # fmt: skip
    """Where values stand, in two parts: 2 n singles."""
    tl.debug_barrier()
    for start in range(0, n, _BLOCK):
        at = (start + tl.arange(0, _BLOCK)).to(tl.int64)
        _v, _z, place_of = placed_values(x, x_row, x_step, row, at, n, origin, unit, SQUASH)
        high, low = halves(place_of)
        tl.store(places + at, high, mask=at < n)
        tl.store(places + n + at, low, mask=at < n)
    tl.debug_barrier()


@triton.jit(noinline=True)
def gather_nodes(
    table: tl.tensor, masses: tl.tensor, places: tl.tensor, n: tl.tensor, span: tl.tensor, nodes: tl.tensor,
    SQUASH: tl.constexpr, CELLS: tl.constexpr, UP: tl.constexpr,
) -> Any:  # fmt: skip
    """Nodes that have mass or values beside them: places in two parts, masses, whether panels are judged there.

    And how many. Behind them stand some of the values, where panels are judged, too: how many with these.
    ``nodes``: 4 UP numbers.
    """
    q = tl.arange(0, UP)
    least, step = tl.load(table + LEAST).to(tl.float64), tl.load(table + STEP).to(tl.float64)
    before = 0.5 if SQUASH == 0 else 0.0
    tl.store(nodes + q, tl.zeros([UP], tl.float32))
    tl.debug_barrier()
    for start in range(0, n, _BLOCK):
        at = start + tl.arange(0, _BLOCK)
        place_of = tl.load(places + at, mask=at < n, other=0.0) + tl.load(places + n + at, mask=at < n, other=0.0)
        cell = tl.floor((((place_of.to(tl.float64) + before) * span - least) / step).to(tl.float32)).to(tl.int32)
        cell = tl.minimum(tl.maximum(cell, 0), CELLS - 1)
        tl.store(nodes + cell, tl.full([_BLOCK], 1.0, tl.float32), mask=at < n)
    tl.debug_barrier()
    beside = tl.load(nodes + q - 3, mask=(q >= 3) & (q < CELLS + 3), other=0.0)
    beside = tl.maximum(beside, tl.load(nodes + q - 4, mask=(q >= 4) & (q < CELLS + 4), other=0.0))
    mass = tl.load(masses + q, mask=q < CELLS + 7, other=0.0)
    chosen = (tl.abs(mass) > _NOTHING) | (beside > 0.0)
    mass = tl.where(chosen, mass, 0.0)
    mass = mass * (1.0 / tl.sum(mass, axis=0))
    one = tl.where(chosen, 1, 0)
    to = tl.cumsum(one, axis=0) - one
    high, low = halves((least + step * (q - 3)) / span - before)
    tl.debug_barrier()
    tl.store(nodes + to, high, mask=chosen)
    tl.store(nodes + UP + to, low, mask=chosen)
    tl.store(nodes + 2 * UP + to, mass, mask=chosen)
    tl.store(nodes + 3 * UP + to, beside, mask=chosen)
    count = tl.sum(one, axis=0)
    every = tl.cdiv(n, UP - CELLS - 7)
    some = tl.cdiv(n, every)
    tl.store(nodes + count + q, tl.load(places + q * every, mask=q < some, other=0.0), mask=q < some)
    tl.store(nodes + UP + count + q, tl.load(places + n + q * every, mask=q < some, other=0.0), mask=q < some)
    tl.store(nodes + 3 * UP + count + q, tl.full([UP], 1.0, tl.float32), mask=q < some)
    tl.debug_barrier()
    return count, count + some


@triton.jit
def moved(own: tl.tensor, j: tl.tensor, shift: tl.tensor, per_s: tl.tensor, KP: tl.constexpr) -> Any:
    """Potentials less shift / s, in two parts for ``shares_at``; slots without a target are sent out of reach."""
    has = slot_of(own, WEIGHT, j, KP) > 0
    high, low = split_potential(slot_of(own, LOW, j, KP) - shift * per_s)
    return tl.where(has, slot_of(own, HIGH, j, KP) + high, 0.0), tl.where(has, low, NOWHERE)


@triton.jit
def shares_at(
    points: tl.tensor, apart: tl.tensor, i: tl.tensor, count: tl.tensor, yh: tl.tensor, yl: tl.tensor, Uh: tl.tensor,
    Ul: tl.tensor, s: tl.tensor, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> Any:  # fmt: skip
    """The plan at points i, whose places are in memory, their second parts so far behind. s is in units of log 2."""
    xh = tl.load(points + i, mask=i < count, other=0.0)
    xl = tl.load(points + apart + i, mask=i < count, other=0.0)
    big = xh * yh - Uh
    small = xh * yl - Ul + xl * (yh + yl)
    most = most_over_targets(big + small, V, X, KB)
    e = tl.exp2(((big - most) + small) * s)
    return e * inverse_of(over_targets(e, V, X, KB))


@triton.jit
def looked_at(
    nodes: tl.tensor, i: tl.tensor, count: tl.tensor, yh: tl.tensor, yl: tl.tensor, Uh: tl.tensor, Ul: tl.tensor,
    s: tl.tensor, UP: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> Any:  # fmt: skip
    """Column sums of the plan of the nodes, D and L y: see ``engine.laplacian``."""
    y = yh + yl
    c = y * 0.0
    D = y * 0.0
    Ly = y * 0.0
    for first in range(0, count, V * X):
        at = first + i
        p = shares_at(nodes, UP, at, count, yh, yl, Uh, Ul, s, V, X, KB)
        part = tl.load(nodes + 2 * UP + at, mask=at < count, other=0.0) * p
        c += over_own(part)
        D += over_own(part * (1.0 - p))
        Ly += over_own(part * (y - over_targets(p * y, V, X, KB)))
    return over_values(c, SLOTS, X, KB), over_values(D, SLOTS, X, KB), over_values(Ly, SLOTS, X, KB)


@triton.jit
def times_nodes(
    way: tl.tensor, nodes: tl.tensor, i: tl.tensor, count: tl.tensor, yh: tl.tensor, yl: tl.tensor, Uh: tl.tensor,
    Ul: tl.tensor, s: tl.tensor, UP: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> Any:  # fmt: skip
    """L times ``way``, by the plan of the nodes."""
    Lw = way * 0.0
    for first in range(0, count, V * X):
        at = first + i
        p = shares_at(nodes, UP, at, count, yh, yl, Uh, Ul, s, V, X, KB)
        part = tl.load(nodes + 2 * UP + at, mask=at < count, other=0.0) * p
        Lw += over_own(part * (way - over_targets(p * way, V, X, KB)))
    return over_values(Lw, SLOTS, X, KB)


@triton.jit
def of_panels(t: tl.tensor) -> Any:
    """Sums over the slots of each panel."""
    return tl.sum(t, axis=AXIS_KA, keep_dims=True)


@triton.jit
def over_own(t: tl.tensor) -> Any:
    """Sums over the values that a thread has, for each target."""
    return tl.sum(t, axis=AXIS_V, keep_dims=True)
