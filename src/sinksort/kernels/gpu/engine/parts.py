"""What the Triton kernels for short rows share: where values stand, their shares of the targets, the start.

**Exponents to 1e-6 in single precision.** x~ and y are centred and scaled to [-1/2, 1/2], where they are called x and y
below. Of (y~_j - x~_i)^2 only the product matters, all else belongs to a potential. With s = 2 / eps, scaled,

    p_ij  =  softmax_j s (x_i y_j - U_j).

s reaches 2e4, and x y - U nearly cancels where the plan lives. So x = xh + xl and y = yh + yl, where xh and yh are
multiples of 2^-12, and U = Uh + Ul, where Uh is a multiple of 2^-24: then xh yh - Uh is exact, and what remains is
below 2^-12. U itself is kept in double precision; there are only K of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .state import load_facts
from .sums import agreed_sum

#: Arguments whose values make no kernel of their own: compiling takes seconds, and rows come in many lengths.
NUMBERS = [
    "N", "K", "m", "S", "U_at",
    "x_row", "x_col", "a_row", "a_col", "y_row", "b_row", "phi_row", "last_row", "w_row", "w_col",
]  # fmt: skip
GIVEN = ["x_ptr", "a_ptr", "y_ptr", "b_ptr", "phi_ptr", "last_ptr", "eps_ptr", "w_ptr"]

#: How the maps into [0, 1] are called inside kernels.
SQUASHES = {"sigmoid": 1, "arctan": 2, None: 0}

LOG2_E = tl.constexpr(1.4426950408889634)
NOWHERE = tl.constexpr(1e30)  #: potential of a slot without a target
#: s from which what two halves of a place leave out is seen in ranks. Without a squash the range of values is in s.
TOO_FINE = tl.constexpr(3e7)
#: The same of gradients of averages, whose covariances are multiplied by s and nearly cancel.
TOO_FINE_TO_ADD = tl.constexpr(2.1e3)
#: Extent of targets, and of values that are sorted without a squash, in units of sqrt(eps), from which single precision
#: is seen in answers: a plan is smooth on that scale, and places are rounded to 3e-8 of the extent.
_WIDE_TARGETS, _WIDE_VALUES = tl.constexpr(1.1e3), tl.constexpr(1.1e3)
UNEVEN = tl.constexpr(3e-3)  #: least weight of a target that is sorted to, relative to the largest; see ``bridged``
WEAK, NONE = tl.constexpr(1e-3), tl.constexpr(1e-14)  #: plans less soft than this need double precision, or nothing


@triton.jit
def load_weights(a_ptr: tl.tensor, i: tl.tensor, N: tl.tensor, a_col: tl.tensor, WEIGHTED: tl.constexpr) -> tl.tensor:
    if WEIGHTED:
        a = tl.load(a_ptr + i.to(tl.int64) * a_col, mask=i < N, other=0.0).to(tl.float32)
    else:
        a = tl.where(i < N, 1.0 / N, 0.0).to(tl.float32)
    return a


@triton.jit
def load_values(x_ptr: tl.tensor, i: tl.tensor, N: tl.tensor, x_col: tl.tensor) -> tl.tensor:
    """Entries i in double precision; NaN becomes 0, since it is the row's answer and not its input."""
    x = tl.load(x_ptr + i.to(tl.int64) * x_col, mask=i < N, other=0.0).to(tl.float64)
    return tl.where(x == x, x, 0.0)


@triton.jit
def place(x: tl.tensor, origin: tl.tensor, unit: tl.tensor, SQUASH: tl.constexpr, DT: tl.constexpr) -> tl.tensor:
    """z = (x - origin) / unit, and where it stands in [-1/2, 1/2]; both in DT."""
    z = (x - origin) * (1.0 / unit)
    if SQUASH == 0:
        z = tl.minimum(tl.maximum(z, -0.5), 0.5).to(DT)
        at = z
    else:
        z = tl.minimum(tl.maximum(z, -1e9), 1e9).to(DT)
        size = tl.abs(z)
        if SQUASH == 1:
            t = tl.exp(-size)
            half = 0.5 * (1.0 - t) / (1.0 + t)
        else:
            # atan by two halvings of the angle and its series, |v| < 0.2
            v = tl.where(size > 1.0, 1.0 / tl.maximum(size, 1.0), size)
            v = v / (1.0 + tl.sqrt(1.0 + v * v))
            v = v / (1.0 + tl.sqrt(1.0 + v * v))
            u = v * v
            series = 1.0 / 21.0 - u / 23.0
            series = 1.0 / 19.0 - u * series
            series = 1.0 / 17.0 - u * series
            series = 1.0 / 15.0 - u * series
            series = 1.0 / 13.0 - u * series
            series = 1.0 / 11.0 - u * series
            series = 1.0 / 9.0 - u * series
            series = 1.0 / 7.0 - u * series
            series = 1.0 / 5.0 - u * series
            series = 1.0 / 3.0 - u * series
            angle = 4.0 * v * (1.0 - u * series) * 0.3183098861837907
            half = tl.where(size > 1.0, 0.5 - angle, angle)
        at = tl.where(z < 0, -half, half)
    return z, at


@triton.jit
def slope(z: tl.tensor, at: tl.tensor, SQUASH: tl.constexpr) -> tl.tensor:
    """Derivative of the place in z."""
    if SQUASH == 1:
        out = (0.5 - at) * (0.5 + at)
    else:
        out = 0.3183098861837907 / (1.0 + z * z)
    return out


@triton.jit
def _five(
    mass0: tl.tensor, first0: tl.tensor, top0: tl.tensor, bottom0: tl.tensor, bad0: tl.tensor,
    mass1: tl.tensor, first1: tl.tensor, top1: tl.tensor, bottom1: tl.tensor, bad1: tl.tensor
) -> tl.tensor:  # fmt: skip
    """Two sums, a maximum, a minimum and a maximum in one go: threads wait for each other once."""
    return mass0 + mass1, first0 + first1, tl.maximum(top0, top1), tl.minimum(bottom0, bottom1), tl.maximum(bad0, bad1)


@triton.jit
def _three(
    mass0: tl.tensor, whole0: tl.tensor, along0: tl.tensor, mass1: tl.tensor, whole1: tl.tensor, along1: tl.tensor
) -> tl.tensor:
    """Three sums in one go."""
    return mass0 + mass1, whole0 + whole1, along0 + along1


@triton.jit
def slope_of_pairs(unit: tl.tensor, y_scale: tl.tensor, eps: tl.tensor, SQUASH: tl.constexpr) -> tl.tensor:
    """s: 2 / eps, in units of the scaled places. A squash leaves values between 0 and 1, which need no scale."""
    x_scale = unit if SQUASH == 0 else unit * 0.0 + 1.0
    return 2.0 * x_scale * y_scale / eps


@triton.jit
def targets_too_wide(y_scale: tl.tensor, eps: tl.tensor) -> tl.tensor:
    """Whether targets stand too far from each other for places in single precision."""
    return y_scale * y_scale > _WIDE_TARGETS * _WIDE_TARGETS * eps


@triton.jit
def values_too_wide(unit: tl.tensor, eps: tl.tensor, SQUASH: tl.constexpr) -> tl.tensor:
    """The same of values that are averaged: one that is far away takes digits from all others."""
    return (unit * unit > _WIDE_VALUES * _WIDE_VALUES * eps) if SQUASH == 0 else unit < 0


@triton.jit
def uneven(b: tl.tensor, has: tl.tensor) -> tl.tensor:
    """Least weight over largest: what a target that weighs little gets is divided by it, and so are faint links."""
    return tl.min(tl.where(has, b, float("inf")), axis=0) / tl.max(b, axis=0)


@triton.jit
def nearly_hard(softness: tl.tensor) -> tl.tensor:
    """Whether single precision does not see what little of a plan is soft; of what is hard there is nothing to see."""
    return (softness < WEAK) & (softness > NONE)


@triton.jit
def moments(
    x_ptr: tl.tensor, a_ptr: tl.tensor, N: tl.tensor, x_col: tl.tensor, a_col: tl.tensor,
    y_low: tl.tensor, y_high: tl.tensor, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK_N: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """origin, unit and spread of a row, and whether it holds NaN; see ``squash.standardize``.

    In double precision nothing of single precision overflows. ``spread`` is 0 for a constant row, whose unit is its
    size. Without a squash, origin and unit bring values and targets to [-1/2, 1/2].
    """
    i = tl.arange(0, BLOCK_N)
    raw = tl.load(x_ptr + i.to(tl.int64) * x_col, mask=i < N, other=0.0)
    bad = tl.where(raw == raw, 0, 1)
    x = load_values(x_ptr, i, N, x_col)
    a = load_weights(a_ptr, i, N, a_col, WEIGHTED)
    finite = (i < N) & (tl.abs(x) < float("inf"))
    counted = finite if SQUASH == 0 else finite & (a > 0)
    a = tl.where(counted, a, 0.0).to(tl.float64)
    x = tl.where(counted, x, 0.0)
    top, bottom = tl.where(counted, x, -float("inf")), tl.where(counted, x, float("inf"))
    total, first, top, bottom, bad = tl.reduce((a, a * x + 0.0, top, bottom, bad), 0, _five)  # + 0: see ``agreed_sum``
    if SQUASH == 0:
        top = tl.maximum(top, y_high)
        bottom = tl.minimum(bottom, y_low)
        origin = 0.5 * (top + bottom)
        unit = tl.where(top > bottom, top - bottom, 1.0)
        spread = unit * 0.0 + 1.0
    else:
        total = tl.where(total > 0, total, 1.0)
        size = tl.maximum(tl.abs(top), tl.abs(bottom))
        origin = first / total
        centred = tl.where(counted, x - origin, 0.0)
        variance = agreed_sum(a * centred * centred, axis=0) / total
        varied = (top > bottom) & (variance > 0)
        unit = tl.where(top > bottom, 0.5 * (top - bottom), tl.where((top == bottom) & (size > 0), size, 1.0))
        unit = tl.where(varied, tl.sqrt(tl.where(varied, variance, 1.0)), unit)
        spread = tl.where(varied, 1.0, 0.0).to(tl.float64)
    return origin, unit, spread, bad


@triton.jit
def halves(at: tl.tensor) -> tl.tensor:
    """A number in [-1/2, 1/2] as a multiple of 2^-12 and the rest, both in single precision."""
    high = tl.floor(at * 4096.0 + 0.5) / 4096.0
    return high.to(tl.float32), (at - high).to(tl.float32)


@triton.jit
def potential_halves(U: tl.tensor, has: tl.tensor) -> tl.tensor:
    """U (double) as a multiple of 2^-24 and the rest; slots without a target are sent out of reach."""
    high = (tl.floor(U * 16777216.0 + 0.5) / 16777216.0).to(tl.float32)
    low = (U - high.to(tl.float64)).to(tl.float32)
    return tl.where(has, high, 0.0), tl.where(has, low, NOWHERE)


@triton.jit
def places_of_values(
    x_ptr: tl.tensor, N: tl.tensor, x_col: tl.tensor, origin: tl.tensor, unit: tl.tensor,
    SQUASH: tl.constexpr, BLOCK_N: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """Where all values stand, in two halves.

    In double precision: where many values are nearly tied, a rank changes by 2 Var(y) / eps of what a place does. And
    in a loop that runs once: out of a loop the compiler hands numbers on to all threads that need them, where it would
    have each of them place all of its values for itself.
    """
    high, low = tl.zeros([BLOCK_N], tl.float32), tl.zeros([BLOCK_N], tl.float32)
    todo = N > 0
    while todo:
        x = load_values(x_ptr, tl.arange(0, BLOCK_N), N, x_col)
        high, low = halves(place(x, origin, unit, SQUASH, tl.float64)[1])
        todo = N < 0
    return high, low


@triton.jit
def place_row(
    x_ptr: tl.tensor, high_ptr: tl.tensor, low_ptr: tl.tensor, N: tl.tensor, x_col: tl.tensor, origin: tl.tensor,
    unit: tl.tensor, SQUASH: tl.constexpr, BLOCK_N: tl.constexpr
) -> None:  # fmt: skip
    """Where all values stand, in two halves, for passes to come. The first has no more bits than half precision."""
    i = tl.arange(0, BLOCK_N)
    at = place(load_values(x_ptr, i, N, x_col), origin, unit, SQUASH, tl.float64)[1]  # see ``places_of_values``
    high, low = halves(at)
    tl.store(high_ptr + i, high.to(tl.float16), mask=i < N)
    tl.store(low_ptr + i, low, mask=i < N)
    tl.debug_barrier()


@triton.jit
def load_places(high_ptr: tl.tensor, low_ptr: tl.tensor, i: tl.tensor, N: tl.tensor) -> tl.tensor:
    """What ``place_row`` has left of values i."""
    high = tl.load(high_ptr + i, mask=i < N, other=0.0).to(tl.float32)
    return high, tl.load(low_ptr + i, mask=i < N, other=0.0)


@triton.jit
def standardized(
    x_ptr: tl.tensor, i: tl.tensor, N: tl.tensor, x_col: tl.tensor, origin: tl.tensor, unit: tl.tensor,
    SQUASH: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """z of values i, 0 where x is infinite."""
    x = load_values(x_ptr, i, N, x_col)
    z = place(x, origin, unit, SQUASH, tl.float64)[0]
    return tl.where(tl.abs(x) < float("inf"), z, 0.0).to(tl.float32)


@triton.jit
def on_targets(v: tl.tensor, TA: tl.constexpr) -> tl.tensor:
    """v_j in a tile of values and targets whose axis TA is that of the targets."""
    return tl.expand_dims(v, 1 - TA)


@triton.jit
def on_values(v: tl.tensor, TA: tl.constexpr) -> tl.tensor:
    """v_i in such a tile."""
    return tl.expand_dims(v, TA)


@triton.jit
def shares(
    xh: tl.tensor, xl: tl.tensor, y: tl.tensor, yh: tl.tensor, yl: tl.tensor, Uh: tl.tensor, Ul: tl.tensor,
    s: tl.tensor, TA: tl.constexpr, F64: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """The tile p: sums over targets are one. s is in units of log 2. If F64, xh, y and Uh are doubles, and all."""
    if F64:
        t = on_values(xh, TA) * on_targets(y, TA) - on_targets(Uh, TA)
        e = tl.exp2((t - on_values(tl.max(t, axis=TA), TA)) * s)
    else:
        big = on_values(xh, TA) * on_targets(yh, TA) - on_targets(Uh, TA)
        small = on_values(xh, TA) * on_targets(yl, TA) - on_targets(Ul, TA) + on_values(xl, TA) * on_targets(y, TA)
        most = tl.max(big + small, axis=TA)
        e = tl.exp2(((big - on_values(most, TA)) + small) * s)
    return e * on_values(1.0 / agreed_sum(e, axis=TA), TA)


@triton.jit
def apart_from_mean(p: tl.tensor, v: tl.tensor, TA: tl.constexpr) -> tl.tensor:
    """v_j - sum_k p_ik v_k, the mean in two parts: right to rounding of itself, not of v."""
    apart = on_targets(v, TA) - on_values(agreed_sum(p * on_targets(v, TA), axis=TA), TA)
    return apart - on_values(agreed_sum(p * apart, axis=TA), TA)


@triton.jit
def store_logs(
    out_ptr: tl.tensor, x_ptr: tl.tensor, i: tl.tensor, N: tl.tensor, K: tl.tensor, x_col: tl.tensor,
    origin: tl.tensor, unit: tl.tensor, y: tl.tensor, U: tl.tensor, has: tl.tensor, s: tl.tensor, bad: tl.tensor,
    SQUASH: tl.constexpr, BK: tl.constexpr
) -> None:  # fmt: skip
    """What ``logs`` answers for values i, from the exponents (double). Tiles are (targets, values)."""
    at = place(load_values(x_ptr, i, N, x_col), origin, unit, SQUASH, tl.float64)[1]
    t = on_values(at, 0) * on_targets(y, 0) - on_targets(U, 0)
    t = (t - on_values(tl.max(t, axis=0), 0)) * s
    t = t - on_values(tl.log(tl.sum(tl.exp(t), axis=0)), 0)
    t = tl.where(bad > 0, float("nan"), tl.where(on_targets(has, 0), t, -float("inf")))
    j = tl.arange(0, BK)
    inside = (i < N)[None, :] & (j < K)[:, None]
    tl.store(out_ptr + i.to(tl.int64)[None, :] * K + j[:, None], t.to(tl.float32), mask=inside)


@triton.jit
def exponents_of(
    C_ptr: tl.tensor, i: tl.tensor, has: tl.tensor, N: tl.tensor, K: tl.tensor, BK: tl.constexpr
) -> tl.tensor:
    """The cotangent of logarithms of values i, a tile (targets, values), and its sums over targets."""
    j = tl.arange(0, BK)
    inside = (i < N)[None, :] & has[:, None]
    C = tl.load(C_ptr + i.to(tl.int64)[None, :] * K + j[:, None], mask=inside, other=0.0).to(tl.float64)
    return C, tl.sum(C, axis=0)


@triton.jit
def load_targets(y_ptr: tl.tensor, b_ptr: tl.tensor, K: tl.tensor, BK: tl.constexpr) -> tl.tensor:
    """Targets scaled to [-1/2, 1/2], the steps between them (double), their weights, which exist, ends and scale."""
    j = tl.arange(0, BK)
    inside = j < K
    y = tl.load(y_ptr + j, mask=inside, other=0.0).to(tl.float64)
    following = tl.load(y_ptr + j + 1, mask=j + 1 < K, other=0.0).to(tl.float64)
    b = tl.load(b_ptr + j, mask=inside, other=0.0).to(tl.float32)
    low = tl.min(tl.where(inside, y, float("inf")), axis=0)
    high = tl.max(tl.where(inside, y, -float("inf")), axis=0)
    scale = tl.where(high > low, high - low, 1.0)
    at = tl.where(inside, (y - 0.5 * (low + high)) / scale, 0.0)
    step = tl.where(j + 1 < K, (following - y) / scale, 0.0)
    return at, step, b, b > 0, low, high, scale


@triton.jit
def exact_boundaries(
    x_ptr: tl.tensor, a_ptr: tl.tensor, N: tl.tensor, x_col: tl.tensor, a_col: tl.tensor,
    origin: tl.tensor, unit: tl.tensor, levels: tl.tensor, SQUASH: tl.constexpr, WEIGHTED: tl.constexpr,
    DT: tl.constexpr, BLOCK_N: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """Where, in DT, the staircase passes from each target to the next: see ``solvers.start``. O(n^2) comparisons."""
    k = tl.arange(0, BLOCK_N)
    others = place(load_values(x_ptr, k, N, x_col), origin, unit, SQUASH, DT)[1]
    a = load_weights(a_ptr, k, N, a_col, WEIGHTED)
    before = tl.full([BK, BN], 0.5, DT)
    after = tl.full([BK, BN], 0.5, DT)
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        at = place(load_values(x_ptr, i, N, x_col), origin, unit, SQUASH, DT)[1]
        reached = tl.sum(tl.where(others[:, None] <= at[None, :], a[:, None], 0.0), axis=0)
        reached = tl.where(load_weights(a_ptr, i, N, a_col, WEIGHTED) > 0, reached, -1.0)
        past = reached[None, :] - levels[:, None]
        before = tl.minimum(before, tl.where(past >= -3e-6, at[None, :], 0.5))
        after = tl.minimum(after, tl.where(past > 3e-6, at[None, :], 0.5))
    return 0.5 * (tl.min(before, axis=1) + tl.min(after, axis=1))


@triton.jit
def rough_boundaries(
    high_ptr: tl.tensor, low_ptr: tl.tensor, a_ptr: tl.tensor, N: tl.tensor, a_col: tl.tensor, levels: tl.tensor,
    WEIGHTED: tl.constexpr, CELLS: tl.constexpr, BN: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """The same from masses in CELLS equal cells, linear inside each: near enough where there are many values."""
    edge = (tl.arange(0, CELLS) + 1).to(tl.float32) / CELLS - 0.5
    mass = tl.zeros([CELLS, BN], tl.float32)
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        high, low = load_places(high_ptr, low_ptr, i, N)
        at = high + low
        a = load_weights(a_ptr, i, N, a_col, WEIGHTED)
        mass += tl.where(at[None, :] <= edge[:, None], a[None, :], 0.0)
    below = tl.sum(mass, axis=1)
    short = below[None, :] < levels[:, None]
    cell = tl.sum(tl.where(short, 1.0, 0.0), axis=1)
    low = tl.max(tl.where(short, below[None, :], 0.0), axis=1)
    high = tl.min(tl.where(short, 1.0, below[None, :]), axis=1)
    inside = tl.where(high > low, (levels - low) / tl.where(high > low, high - low, 1.0), 0.5)
    return tl.minimum((cell + inside) / CELLS - 0.5, 0.5)


@triton.jit
def start_of(
    boundaries: tl.tensor, step: tl.tensor, b: tl.tensor, has: tl.tensor, s: tl.tensor
) -> tl.tensor:  # fmt: skip
    """Return U of the staircase (double): U_{j+1} - U_j = X_j (y_{j+1} - y_j), and the weights of the targets.

    What a target receives is in proportion to its weight where many targets share a value. Where eps is so small that
    neighbours hardly do, the staircase alone says it, and weights that differ by orders of magnitude would move the
    start far away.
    """
    rise = boundaries * step
    U = tl.cumsum(rise, axis=0) - rise
    between = 1.0 / tl.maximum(tl.sum(tl.where(has, 1.0, 0.0), axis=0) - 1.0, 1.0).to(tl.float64)
    shared = 1.0 / tl.maximum(s * between * between, 1.0)
    return tl.where(has, U.to(tl.float64) - shared * tl.log(tl.where(has, b, 1.0)).to(tl.float64) / s, 0.0)


@triton.jit
def through_moments(
    x_ptr: tl.tensor, a_ptr: tl.tensor, state_ptr: tl.tensor, partial_ptr: tl.tensor, direct_ptr: tl.tensor,
    grad_ptr: tl.tensor, N: tl.tensor, x_col: tl.tensor, a_col: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, PUSH: tl.constexpr, BLOCK_N: tl.constexpr
) -> None:  # fmt: skip
    """The cotangent of x from that of its places (partial_ptr), and for push from what is averaged (direct_ptr).

    partial_ptr may be where the answer goes.

    z = (x - mean) / std:   dx_i = (g_i - a_i sum g - a_i z_i sum g z) / std,   and the last term is absent in a
    constant row. For push, g is the cotangent for values measured in units of std, so that the two cancel.
    """
    origin, unit, spread, bad = load_facts(state_ptr)
    i = tl.arange(0, BLOCK_N)
    x = load_values(x_ptr, i, N, x_col)
    finite = (tl.abs(x) < float("inf")) & (i < N)
    z, at = place(x, origin, unit, SQUASH, tl.float64)
    g = tl.load(partial_ptr + i, mask=finite, other=0.0).to(tl.float64)
    tl.debug_barrier()  # grad_ptr may be the same memory
    if SQUASH != 0:
        g = g * slope(z, at, SQUASH)
        a = load_weights(a_ptr, i, N, a_col, WEIGHTED).to(tl.float64)
        a = tl.where(finite, a, 0.0)
        tilted = tl.where(finite, g * z, 0.0) + 0.0  # + 0: see ``agreed_sum``
        total, whole, along = tl.reduce((a, g, tilted), 0, _three)
        g = g - a / tl.where(total > 0, total, 1.0) * (whole + along * spread * z)
    if PUSH:
        g = g + tl.load(direct_ptr + i, mask=i < N, other=0.0)
    else:
        g = g / unit
    tl.store(grad_ptr + i, tl.where(bad > 0, float("nan"), g).to(tl.float32), mask=i < N)
