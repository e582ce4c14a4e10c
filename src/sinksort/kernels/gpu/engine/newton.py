"""Newton's steps of a plan that is held in registers: conjugate gradients, and how far to go.

The preconditioner is that of ``engine.laplacian``, for tiles as in ``registers.tiles``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import most_over_targets, over_targets, over_values, running, scalar

SMALL = tl.constexpr(1e-6)  #: L1 error of the column sums at which a row is done
NEAR = tl.constexpr(5e-4)  #: a step from here that leaves little ends below ACCEPTED
BRIDGE = tl.constexpr(1e-7)  #: joins parts of a plan: rounding would decide what flows between them
LAST = tl.constexpr(6)  #: rows of ``Ask.last``
FAR = tl.constexpr(40.0)  #: log f stays within single precision; a row that needs more is not answered here
_FRAIL = tl.constexpr(30.0)  #: b times resistance from which rounding is seen in the fourth digit of a gradient


@triton.jit
def path_of(
    p: tl.tensor, ap: tl.tensor, y: tl.tensor, step: tl.tensor,
    KA: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """1/D and resistances as in ``engine.laplacian``, and D, of the plan p; ap is a p."""
    Ly = over_values(ap * (y - over_targets(p * y, V, X, KB)), KA, X, KB)
    D = over_values(ap * (1.0 - p), KA, X, KB)
    inverse_D, resistance = path_through(Ly, D, step, X, KB)
    return inverse_D, resistance, D


@triton.jit
def path_through(Ly: tl.tensor, D: tl.tensor, step: tl.tensor, X: tl.constexpr, KB: tl.constexpr) -> tl.tensor:
    flow = -running(Ly)
    weakest = tl.maximum(most_over_targets(tl.where(step > 0, flow, 0.0), 1, X, KB) * 1e-6, 1e-30)
    faintest = tl.maximum(most_over_targets(D, 1, X, KB) * 1e-6, 1e-30)
    return tl.where(D > 0, 1.0 / tl.maximum(D, faintest), 0.0), step / tl.maximum(flow, weakest)


@triton.jit
def precondition(r: tl.tensor, inverse_D: tl.tensor, resistance: tl.tensor) -> tl.tensor:
    drop = running(r) * resistance
    return r * inverse_D + (drop - running(drop))


@triton.jit
def begin(
    r: tl.tensor, inverse_D: tl.tensor, resistance: tl.tensor, b: tl.tensor, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:
    """r without a constant part, the first way of conjugate gradients, and r z."""
    r = r - b * over_targets(r, 1, X, KB)
    z = precondition(r, inverse_D, resistance)
    return r, z, over_targets(r * z, 1, X, KB)


@triton.jit
def go_on(
    out: tl.tensor, r: tl.tensor, way: tl.tensor, rz: tl.tensor, Lw: tl.tensor,
    inverse_D: tl.tensor, resistance: tl.tensor, b: tl.tensor, bridge: tl.tensor, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """One step of conjugate gradients along ``way``, of which L makes Lw."""
    Lw += bridge * (way - over_targets(b * way, 1, X, KB))
    bend = over_targets(way * Lw, 1, X, KB)
    alpha = tl.where(bend > 0, rz / tl.where(bend > 0, bend, 1.0), 0.0)
    out = out + alpha * way
    r = r - alpha * Lw
    z = precondition(r, inverse_D, resistance)
    before = tl.where(rz > 0, rz, 1.0)
    rz = tl.where(bend > 0, over_targets(r * z, 1, X, KB), 0.0)
    return out, r, z + (rz / before) * way, rz


@triton.jit
def accept_or_shorten(
    newton: tl.tensor, rho: tl.tensor, c: tl.tensor, b: tl.tensor,
    base: tl.tensor, way: tl.tensor, length: tl.tensor, rise: tl.tensor, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """From the point base + length way, with column sums c: on along the step ``newton``, or less far along ``way``.

    The last of the answers says which: whether the point was too far. ``rise``: the slope at ``base`` along ``way``.
    """
    newton = tl.where(b > 0, newton - over_targets(b * newton, 1, X, KB), 0.0)
    newton = tl.minimum(tl.maximum(newton, -5.0), 5.0)
    climb = over_targets(rho * newton, 1, X, KB)
    # The gradient, scaled, always rises.
    scaled = tl.where(b > 0, rho / tl.maximum(c, 1e-30), 0.0)
    newton = tl.where(climb > 0, newton, tl.minimum(tl.maximum(scaled, -5.0), 5.0))
    climb = over_targets(rho * newton, 1, X, KB)
    here = over_targets(rho * way, 1, X, KB)
    overshot = here < -0.5 * rise
    there = tl.minimum(tl.maximum(base + length * way, -FAR), FAR)
    base = tl.where(overshot, base, there)
    way = tl.where(overshot, way, newton)
    length = tl.where(overshot, length * rise / (rise - here), 1.0)
    return base, way, length, tl.where(overshot, rise, climb), overshot


@triton.jit
def is_frail(resistance: tl.tensor, b: tl.tensor, X: tl.constexpr, KB: tl.constexpr) -> tl.tensor:
    return scalar(most_over_targets(resistance, 1, X, KB) * most_over_targets(b, 1, X, KB)) > _FRAIL
