"""Tiles of a plan that is held in registers: which thread has which pair, and sums that hardly move anything.

Tiles are (KB, X, V, KA). Target j = kb KA + ka, value i = v X + x: KB lanes of a warp share the targets, its other
lanes and all warps share the values, X of them, and a thread has V values by KA targets. What belongs to targets is
(KB, X, 1, KA), what belongs to values (KB, X, V, 1), numbers of the row are (KB, X, 1, 1): each is repeated in all
threads that need it, so everything has the same layout and nothing is moved from one to another. Sums over targets and
cumulative sums never leave a warp; only sums over values do.

The compiler hands out lanes axis by axis: from the first on, and since Triton 3.7 from the last on, where tiles are
(KA, V, X, KB) therefore. Nobody but this file knows: others say which axis they mean, and ``repeated``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .launch import VERSION
from .parts import NOWHERE, load_weights
from .sums import agreed_sum

_FROM_THE_LAST = tl.constexpr(VERSION >= (3, 7))
AXIS_KB, AXIS_X, AXIS_V, AXIS_KA = (tl.constexpr(3 - i if _FROM_THE_LAST.value else i) for i in range(4))

_TIE = tl.constexpr(3e-6)  #: levels of mass that differ by less are the same


@triton.jit
def indices(N: tl.tensor, KA: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr) -> tl.tensor:
    """j of a tile of targets and i of a tile of values.

    The compiler lays tiles out along what it knows to be contiguous in memory, and in the order of axes where it knows
    nothing: lanes first along KB, then along X, as above. So it is told nothing, by a factor that is always 1.
    """
    one = tl.where(N > 0, 1, 0)
    kb = along(tl.arange(0, KB), AXIS_KB)
    x = along(tl.arange(0, X), AXIS_X)
    j = (kb * KA + along(tl.arange(0, KA), AXIS_KA) + x * 0) * one
    i = (along(tl.arange(0, V), AXIS_V) * X + x + kb * 0) * one
    return j, i


@triton.jit
def along(v: tl.tensor, AXIS: tl.constexpr) -> tl.tensor:
    """Numbers one after the other along an axis of a tile."""
    for before in tl.static_range(AXIS):
        v = tl.expand_dims(v, before)
    for behind in tl.static_range(AXIS + 1, 4):
        v = tl.expand_dims(v, behind)
    return v


@triton.jit
def repeated(v: tl.tensor, KA: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr) -> tl.tensor:
    """v in all threads: a tile of this size, from one that has size 1 along some axes."""
    if _FROM_THE_LAST:
        v = tl.broadcast_to(v, [KA, V, X, KB])
    else:
        v = tl.broadcast_to(v, [KB, X, V, KA])
    return v


@triton.jit
def tile_of_values(v: tl.tensor, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr) -> tl.tensor:
    """What belongs to V X values, one after the other, for all threads that need it: by way of shared memory."""
    v = tl.reshape(v, [V, X])
    if not _FROM_THE_LAST:
        v = tl.permute(v, [1, 0])
    return repeated(v[None, :, :, None], 1, V, X, KB)


@triton.jit
def over_targets(t: tl.tensor, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr) -> tl.tensor:
    """Sums of a tile for each value, or with V = 1 of what belongs to targets."""
    return repeated(agreed_sum(tl.sum(t, axis=AXIS_KA, keep_dims=True), AXIS_KB, True), 1, V, X, KB)


@triton.jit
def most_over_targets(t: tl.tensor, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr) -> tl.tensor:
    return repeated(tl.max(tl.max(t, axis=AXIS_KA, keep_dims=True), axis=AXIS_KB, keep_dims=True), 1, V, X, KB)


@triton.jit
def over_values(t: tl.tensor, KA: tl.constexpr, X: tl.constexpr, KB: tl.constexpr) -> tl.tensor:
    """Sums of a tile for each target."""
    return repeated(agreed_sum(tl.sum(t, axis=AXIS_V, keep_dims=True), AXIS_X, True), KA, 1, X, KB)


@triton.jit
def most_over_values(t: tl.tensor, KA: tl.constexpr, X: tl.constexpr, KB: tl.constexpr) -> tl.tensor:
    return repeated(tl.max(tl.max(t, axis=AXIS_V, keep_dims=True), axis=AXIS_X, keep_dims=True), KA, 1, X, KB)


@triton.jit
def least_over_values(t: tl.tensor, KA: tl.constexpr, X: tl.constexpr, KB: tl.constexpr) -> tl.tensor:
    return repeated(tl.min(tl.min(t, axis=AXIS_V, keep_dims=True), axis=AXIS_X, keep_dims=True), KA, 1, X, KB)


@triton.jit
def running(v: tl.tensor) -> tl.tensor:
    """Cumulative sum in the order of the targets."""
    whole = tl.sum(v, axis=AXIS_KA, keep_dims=True)
    return tl.cumsum(v, axis=AXIS_KA) + (tl.cumsum(whole, axis=AXIS_KB) - whole)


@triton.jit
def scalar(v: tl.tensor) -> tl.tensor:
    """The number that (KB, X, 1, 1) repeats, for a branch."""
    v = tl.max(tl.max(v, axis=AXIS_KB, keep_dims=True), axis=AXIS_X, keep_dims=True)
    return tl.max(tl.max(tl.max(tl.max(v, axis=3), axis=2), axis=1), axis=0)


@triton.jit
def inverse_of(x: tl.tensor) -> tl.tensor:
    """1 / x of ordinary positive numbers: a division would take three times as many instructions."""
    root = tl.rsqrt(x)
    rough = root * root
    return rough * (2.0 - x * rough)


@triton.jit
def load_tile_of_targets(y_ptr: tl.tensor, b_ptr: tl.tensor, j: tl.tensor, K: tl.tensor) -> tl.tensor:
    """``places_of_targets``, and ends and scale (double) of the row."""
    low, high, scale = scale_of_targets(y_ptr, K)
    middle, per_scale = (0.5 * (low + high)).to(tl.float32), (1.0 / scale).to(tl.float32)
    at, step, b = places_of_targets(y_ptr, b_ptr, j, middle, per_scale, K)
    return at, step, b, low, high, scale


@triton.jit
def scale_of_targets(y_ptr: tl.tensor, K: tl.tensor) -> tl.tensor:
    low, high = tl.load(y_ptr).to(tl.float64), tl.load(y_ptr + K - 1).to(tl.float64)
    return low, high, tl.where(high > low, high - low, 1.0)


@triton.jit
def places_of_targets(
    y_ptr: tl.tensor, b_ptr: tl.tensor, j: tl.tensor, middle: tl.tensor, per_scale: tl.tensor, K: tl.tensor
) -> tl.tensor:
    """Places in [-1/2, 1/2], the steps between them, weights.

    Places are rounded to single precision: a target that stands 3e-8 elsewhere is as good as the one that was asked
    for, if only all agree where it stands. (Values are another matter: see ``place_row``.)
    """
    y = tl.load(y_ptr + j, mask=j < K, other=0.0)
    following = tl.load(y_ptr + j + 1, mask=j + 1 < K, other=0.0)
    b = tl.load(b_ptr + j, mask=j < K, other=0.0).to(tl.float32)
    at = tl.where(j < K, (y - middle) * per_scale, 0.0)
    return at, tl.where(j + 1 < K, (following - y) * per_scale, 0.0), b


@triton.jit
def exponentials(
    xh: tl.tensor, xl: tl.tensor, y: tl.tensor, yh: tl.tensor, yl: tl.tensor, Uh: tl.tensor, Ul: tl.tensor,
    s: tl.tensor, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """exp(s (x y - U)) of all pairs, about 1 at most for each value; s is in units of log 2. See ``engine.parts``."""
    most = most_over_targets((xh + xl) * y - Uh, V, X, KB)
    big = xh * yh - Uh
    small = xh * yl - Ul + xl * y
    return tl.exp2(((big - most) + small) * s)


@triton.jit
def split_potential(U: tl.tensor) -> tl.tensor:
    """U as a multiple of 2^-24 and the rest."""
    high = tl.floor(U * 16777216.0 + 0.5) * 5.9604644775390625e-08
    return high, U - high


@triton.jit
def boundaries_of_equals(
    at: tl.tensor, order_ptr: tl.tensor, N: tl.tensor, levels: tl.tensor, BN: tl.constexpr
) -> tl.tensor:
    """Where the staircase passes from each target to the next, for values of equal weight: see ``solvers.start``.

    Values are put in order (at order_ptr) by counting which are before them; then a level says who is there.
    """
    k = tl.arange(0, BN)
    # 23 bits of the place, then the index, which decides between equals
    one = tl.where(k < N, ((at + 0.5) * 8388608.0).to(tl.int32) * 128 + k, 2147483647)
    before = tl.sum(tl.where(one[:, None] < one[None, :], 1, 0), axis=0)
    tl.store(order_ptr + before, at, mask=k < N)
    tl.debug_barrier()
    reached = levels * N
    slack = _TIE * N
    first = tl.minimum(tl.maximum(tl.ceil(reached - slack).to(tl.int32) - 1, 0), N - 1)
    second = tl.floor(reached + slack).to(tl.int32)
    low = tl.load(order_ptr + first)
    high = tl.load(order_ptr + second, mask=second < N, other=0.5)
    return 0.5 * (low + high)


@triton.jit
def boundaries_of_weighted(
    at: tl.tensor, a_ptr: tl.tensor, N: tl.tensor, a_col: tl.tensor, levels: tl.tensor,
    KA: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """The same for values of any weight; what weighs nothing is no boundary."""
    a = load_weights(a_ptr, tl.arange(0, V * X), N, a_col, True)
    mass = tl.sum(tl.where(at[:, None] <= at[None, :], a[:, None], 0.0), axis=0)
    past = tile_of_values(tl.where(a > 0, mass, -1.0), V, X, KB) - levels
    here = tile_of_values(at, V, X, KB)
    before = least_over_values(tl.where(past >= -_TIE, here, 0.5), KA, X, KB)
    after = least_over_values(tl.where(past > _TIE, here, 0.5), KA, X, KB)
    return 0.5 * (before + after)


@triton.jit
def start_of_tile(boundaries: tl.tensor, step: tl.tensor, b: tl.tensor, inverse_s: tl.tensor) -> tl.tensor:
    """U of the staircase, as ``engine.parts.start_of``."""
    rise = boundaries * step
    return running(rise) - rise - tl.log(tl.where(b > 0, b, 1.0)) * inverse_s


@triton.jit
def out_of_reach(U: tl.tensor, b: tl.tensor) -> tl.tensor:
    """U where there is a target."""
    return tl.where(b > 0, U, NOWHERE)
