"""The potentials of a plan that is held in registers, where every look at the plan is a step.

The semi-dual is concave, rho = b - (column sums) is its gradient in log f, and the preconditioner M of
``engine.laplacian`` is nearly the inverse of its Hessian L: at the start, and not much less so at the end, since the
staircase is close. So no system is solved for a step. One pair of points says what M does not know,

    s = (this point) - (last point),    t = rho(last point) - rho(this point) = L s, nearly,

and the step is H rho, where H is M, scaled by omega, made to agree with H t = s (Broyden, Fletcher, Goldfarb, Shanno):

    H  =  (1 - s t^T / s t) omega M (1 - t s^T / s t)  +  s s^T / s t.

M is only applied to rho, once a point: M t is a difference of two of those, and every number that H needs is a sum over
targets of what is there by then, all of them independent of each other. A point is one pass over the plan, two
cumulative sums and one round of sums. Seven to nine of them are enough for ordinary rows: less than Newton's method
needs products with L, each of which takes two rounds of sums. One row in thousands of those that are nearly hard would
go back and forth, since the start tells nothing of its weakest links: M is made again after some points.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..engine.newton import FAR, path_of, precondition
from ..engine.parts import LOG2_E, WEAK
from ..engine.tiles import inverse_of, most_over_targets, over_targets, over_values, scalar

_ENOUGH = tl.constexpr(2e-6)  #: L1 error of the column sums at which a row is done; ranks are off by a fifth of it
_ROUNDED = tl.constexpr(4e-6)  #: the same after all points that M is trusted: of some plans rounding leaves more
_UNSEEN = tl.constexpr(4)  #: points before which no row is done
_TRUSTED = tl.constexpr(16)  #: points after which M is made again
_ROUNDS = tl.constexpr(4)
_OMEGA = tl.constexpr(0.72)  #: M L has eigenvalues from 0.8 to 2, most of them near 1.2, and a pair tells of few
_LEAST, _MOST = tl.constexpr(0.4), tl.constexpr(1.0)  #: omega of any row


@triton.jit
def balanced(
    e: tl.tensor, a: tl.tensor, b: tl.tensor, y: tl.tensor, step: tl.tensor,
    KA: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """The plan, log f, the error of the column sums, and whether the plan may be nearly hard.

    It may be if the plan was that it was sought from, e, whose sums over targets are one.
    """
    grown = b * 0.0
    error = tl.full([], 1.0, tl.float32)
    firm = False
    k = 0
    while (error > _ROUNDED) & (k < _ROUNDS):
        inverse_D, resistance, D = path_of(e, e * a, y, step, KA, V, X, KB)
        firm = scalar(most_over_targets(tl.where(b > 0, D - 50.0 * WEAK * b, -1.0), 1, X, KB)) < 0
        at, inverse, error = walk(e, a, b, inverse_D, resistance, KA, V, X, KB)
        e = e * (tl.exp2(at * LOG2_E) * inverse)
        grown += at
        k += 1
    return e, grown, error, firm


@triton.jit
def walk(
    e: tl.tensor, a: tl.tensor, b: tl.tensor, inverse_D: tl.tensor, resistance: tl.tensor,
    KA: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """log f, one over the sums of e f over targets, and the error, after as many points as M is to be trusted."""
    last = b - over_values(e * a, KA, X, KB)
    last_g = uphill(last, inverse_D, resistance, b, X, KB)
    old_g = over_targets(last * last_g, 1, X, KB)
    length = old_g * 0.0 + 1.0
    omega = _OMEGA * length
    way = bounded(omega * last_g)
    at = way
    inverse = a * 0.0 + 1.0
    error = tl.full([], 1.0, tl.float32)
    k = 0
    going = True
    while going:
        f = tl.exp2(at * LOG2_E)
        inverse = inverse_of(over_targets(e * f, V, X, KB))
        rho = b - f * over_values(e * (a * inverse), KA, X, KB)
        k += 1
        if k > _UNSEEN:
            error = scalar(over_targets(tl.abs(rho), 1, X, KB))
            going = (error > _ENOUGH) & (k < _TRUSTED)
        if going:
            g = uphill(rho, inverse_D, resistance, b, X, KB)
            at, way, length, omega, last, last_g, old_g = onward(
                at, way, length, omega, rho, g, last, last_g, old_g, X, KB
            )
    return at, inverse, error


@triton.jit
def uphill(
    rho: tl.tensor, inverse_D: tl.tensor, resistance: tl.tensor, b: tl.tensor, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:
    """M rho, without a constant part."""
    g = precondition(rho, inverse_D, resistance)
    return g - over_targets(b * g, 1, X, KB)


@triton.jit
def bounded(way: tl.tensor) -> tl.tensor:
    return tl.minimum(tl.maximum(way, -5.0), 5.0)


@triton.jit
def onward(
    at: tl.tensor, way: tl.tensor, length: tl.tensor, omega: tl.tensor, rho: tl.tensor, g: tl.tensor,
    last: tl.tensor, last_g: tl.tensor, old_g: tl.tensor, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """From ``at``, reached by ``length`` times ``way``: on by a new step, or back to where the slope vanishes.

    rho and g = M rho are those of this point; ``last``, ``last_g`` and their product ``old_g`` those of the one before.
    """
    rise = over_targets(last * way, 1, X, KB)  # slopes along the way, there and here
    here = over_targets(rho * way, 1, X, KB)
    new_g = over_targets(rho * g, 1, X, KB)
    mixed = over_targets(rho * last_g, 1, X, KB)
    too_far = (rise > 0) & (here + rise < 0)
    st = length * (rise - here)
    curved = st > 1e-30
    per_st = tl.where(curved, 1.0 / tl.where(curved, st, 1.0), 0.0)
    # What M makes of t is as long as s if omega is right; half of half of what this pair says is believed.
    tMt = new_g - 2.0 * mixed + old_g
    believed = curved & (tMt > 0) & (too_far == 0)
    ratio = tl.where(believed, st / tl.where(tMt > 0, tMt * omega, 1.0), 1.0)
    omega = tl.minimum(tl.maximum(omega * tl.sqrt(tl.sqrt(ratio)), _LEAST), _MOST)
    share = length * here * per_st
    tMq = (1.0 + share) * (mixed - new_g) - share * (old_g - mixed)  # q = rho - share t
    step = omega * (g + share * (g - last_g)) + (share - omega * tMq * per_st) * length * way
    shorter = length * rise / tl.where(too_far, rise - here, 1.0)
    at = tl.where(too_far, at + (shorter - length) * way, at + bounded(step))
    way = tl.where(too_far, way, bounded(step))
    length = tl.where(too_far, shorter, 1.0)
    last, last_g, old_g = tl.where(too_far, last, rho), tl.where(too_far, last_g, g), tl.where(too_far, old_g, new_g)
    return tl.minimum(tl.maximum(at, -FAR), FAR), way, length, omega, last, last_g, old_g
