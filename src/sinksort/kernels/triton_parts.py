"""What the Triton kernels for short rows share: where values stand, their shares of the targets, the start, and L^-1.

**Exponents to 1e-6 in single precision.** x~ and y are centred and scaled to [-1/2, 1/2], where they are called x and y
below. Of (y~_j - x~_i)^2 only the product matters, all else belongs to a potential: with s = 2 (scale of x~) (scale of y~) / eps

    p_ij  =  softmax_j s (x_i y_j - U_j).

s reaches 2e4, and x y - U nearly cancels where the plan lives. So x = xh + xl and y = yh + yl, where xh and yh are multiples of 2^-12,
and U = Uh + Ul, where Uh is a multiple of 2^-24: then xh yh - Uh is exact, and what remains is below 2^-12. U itself is
kept in double precision; there are only K of it.

**L^-1 in a few steps.** Conjugate gradients for the Laplacian L of K targets are preconditioned by

    r_j / D_j  +  (inverse of a path) r,        D_j = sum_{k != j} W_jk,     L = diag(W 1) - W.

The path links neighbours only, and its conductances are chosen such that it agrees with L on the vector y: the flow of
-L y over the link from j to j + 1, over y_{j+1} - y_j. Two cumulative sums invert it. It is right at low frequencies, the
diagonal at high ones: where L is a convolution of width sigma their sum has condition number 1.3, and where a plan is nearly
hard (neighbours only) at most 3, whatever the conductances. Two to four steps give two digits, five to fifteen six.
"""

from __future__ import annotations



import triton
import triton.language as tl

#: How the maps into [0, 1] are called inside kernels.
SQUASHES = {"sigmoid": 1, "arctan": 2, None: 0}

LOG2_E = tl.constexpr(1.4426950408889634)
NOWHERE = tl.constexpr(1e30)  #: potential of a slot without a target


@triton.jit
def load_row(x_ptr: tl.tensor, a_ptr: tl.tensor, i: tl.tensor, N: tl.tensor, x_stride: tl.tensor, a_stride: tl.tensor, WEIGHTED: tl.constexpr) -> tl.tensor:
    """x in double precision, and a, of entries i; NaN becomes 0, since it is the row's answer and not its input."""
    live = i < N
    x = tl.load(x_ptr + i.to(tl.int64) * x_stride, mask=live, other=0.0).to(tl.float64)
    if WEIGHTED:
        a = tl.load(a_ptr + i.to(tl.int64) * a_stride, mask=live, other=0.0).to(tl.float32)
    else:
        a = tl.where(live, 1.0 / N, 0.0).to(tl.float32)
    return tl.where(x == x, x, 0.0), a


@triton.jit
def place(x: tl.tensor, origin: tl.tensor, unit: tl.tensor, SQUASH: tl.constexpr, DT: tl.constexpr) -> tl.tensor:
    """z = (x - origin) / unit, and where it stands in [-1/2, 1/2]; both in DT."""
    z = (x - origin) / unit
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
    if SQUASH == 0:
        out = z * 0.0 + 1.0
    elif SQUASH == 1:
        out = (0.5 - at) * (0.5 + at)
    else:
        out = 0.3183098861837907 / (1.0 + z * z)
    return out


@triton.jit
def moments(
    x_ptr: tl.tensor, a_ptr: tl.tensor, N: tl.tensor, x_stride: tl.tensor, a_stride: tl.tensor, y_low: tl.tensor, y_high: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK_N: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """origin, unit and spread of a row, and whether it holds NaN; see ``squash.standardize``.

    In double precision nothing of single precision overflows. ``spread`` is 0 for a constant row, whose unit is its size.
    Without a squash, origin and unit bring values and targets to [-1/2, 1/2].
    """
    i = tl.arange(0, BLOCK_N)
    live = i < N
    raw = tl.load(x_ptr + i.to(tl.int64) * x_stride, mask=live, other=0.0).to(tl.float64)
    bad = tl.max(tl.where(raw == raw, 0, 1), axis=0)
    x, a = load_row(x_ptr, a_ptr, i, N, x_stride, a_stride, WEIGHTED)
    finite = live & (tl.abs(x) < float("inf"))
    if SQUASH == 0:
        top = tl.maximum(tl.max(tl.where(finite, x, -float("inf")), axis=0), y_high)
        bottom = tl.minimum(tl.min(tl.where(finite, x, float("inf")), axis=0), y_low)
        origin = 0.5 * (top + bottom)
        unit = tl.where(top > bottom, top - bottom, 1.0)
        spread = unit * 0.0 + 1.0
    else:
        counted = finite & (a > 0)
        a = tl.where(counted, a, 0.0).to(tl.float64)
        x = tl.where(counted, x, 0.0)
        total = tl.sum(a, axis=0)
        a = a / tl.where(total > 0, total, 1.0)
        size = tl.max(tl.abs(x), axis=0)
        top = tl.max(tl.where(counted, x, -float("inf")), axis=0)
        bottom = tl.min(tl.where(counted, x, float("inf")), axis=0)
        origin = tl.sum(a * x, axis=0)
        centred = tl.where(counted, x - origin, 0.0)
        variance = tl.sum(a * centred * centred, axis=0)
        varied = (top > bottom) & (variance > 0)
        half_range = 0.5 * (top - bottom)
        unit = tl.where(top > bottom, half_range, tl.where(size > 0, size, 1.0))
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
def place_row(
    x_ptr: tl.tensor, a_ptr: tl.tensor, at_ptr: tl.tensor, N: tl.tensor, x_stride: tl.tensor, a_stride: tl.tensor, origin: tl.tensor, unit: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, BN: tl.constexpr
) -> None:  # fmt: skip
    """Where all values stand, in two halves, for the passes to come: at_ptr holds 2 N numbers.

    In double precision: where many values are nearly tied, a rank changes by 2 Var(y) / eps of what a place does.
    """
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        x = load_row(x_ptr, a_ptr, i, N, x_stride, a_stride, WEIGHTED)[0]
        at = place(x, origin, unit, SQUASH, tl.float64)[1]
        high, low = halves(at)
        tl.store(at_ptr + i, high, mask=i < N)
        tl.store(at_ptr + N + i, low, mask=i < N)
    tl.debug_barrier()


@triton.jit
def load_placed(at_ptr: tl.tensor, a_ptr: tl.tensor, i: tl.tensor, N: tl.tensor, a_stride: tl.tensor, WEIGHTED: tl.constexpr) -> tl.tensor:
    """Both halves of where values i stand, and their weights."""
    live = i < N
    high = tl.load(at_ptr + i, mask=live, other=0.0)
    low = tl.load(at_ptr + N + i, mask=live, other=0.0)
    if WEIGHTED:
        a = tl.load(a_ptr + i.to(tl.int64) * a_stride, mask=live, other=0.0).to(tl.float32)
    else:
        a = tl.where(live, 1.0 / N, 0.0).to(tl.float32)
    return high, low, a


@triton.jit
def shares(xh: tl.tensor, xl: tl.tensor, y: tl.tensor, yh: tl.tensor, yl: tl.tensor, Uh: tl.tensor, Ul: tl.tensor, s: tl.tensor, WIDE: tl.constexpr) -> tl.tensor:
    """p (values, targets): rows sum to one. s is in units of log 2. If WIDE, xh, yh and Uh are doubles and all there is."""
    if WIDE:
        t = xh[:, None] * yh[None, :] - Uh[None, :]
        e = tl.exp2((t - tl.max(t, axis=1)[:, None]) * s)
    else:
        big = xh[:, None] * yh[None, :] - Uh[None, :]
        small = xh[:, None] * yl[None, :] - Ul[None, :] + xl[:, None] * y[None, :]
        most = tl.max(big + small, axis=1)
        e = tl.exp2(((big - most[:, None]) + small) * s)
    return e * (1.0 / tl.sum(e, axis=1))[:, None]


@triton.jit
def load_targets(y_ptr: tl.tensor, b_ptr: tl.tensor, K: tl.tensor, BK: tl.constexpr) -> tl.tensor:
    """Targets scaled to [-1/2, 1/2] (double), the steps between them, their weights, which exist, and the two ends."""
    j = tl.arange(0, BK)
    inside = j < K
    y = tl.load(y_ptr + j, mask=inside, other=0.0).to(tl.float64)
    following = tl.load(y_ptr + j + 1, mask=j + 1 < K, other=0.0).to(tl.float64)
    b = tl.load(b_ptr + j, mask=inside, other=0.0).to(tl.float32)
    low = tl.min(tl.where(inside, y, float("inf")), axis=0)
    high = tl.max(tl.where(inside, y, -float("inf")), axis=0)
    scale = tl.where(high > low, high - low, 1.0)
    at = tl.where(inside, (y - 0.5 * (low + high)) / scale, 0.0)
    step = tl.where(j + 1 < K, (following - y) / scale, 0.0).to(tl.float32)
    return at, step, b, b > 0, low, high, scale


@triton.jit
def bridged(W: tl.tensor, D: tl.tensor, K: tl.tensor, BK: tl.constexpr) -> tl.tensor:
    """W and D with a faint link between neighbours: where a plan falls apart, rounding decides what flows between its parts.

    Nothing is seen of how their potentials differ, as long as the difference is not too large to compute with.
    """
    faint = tl.max(D, axis=0) * 1e-6
    j = tl.arange(0, BK)
    apart = j[:, None] - j[None, :]
    inside = (j < K)[:, None] & (j < K)[None, :]
    W = W + tl.where(((apart == 1) | (apart == -1)) & inside, faint, 0.0)
    return W, D + tl.where(j < K, 2.0 * faint, 0.0)


@triton.jit
def path_of(Ly: tl.tensor, step: tl.tensor, D: tl.tensor, rounding: tl.tensor) -> tl.tensor:
    """1/D and resistances of the path that agrees with L on y, from L y and the steps of y.

    ``rounding``: conductance that is none, relative to the strongest.
    """
    flow = -tl.cumsum(Ly, axis=0)
    weakest = tl.maximum(tl.max(tl.where(step > 0, flow, 0.0), axis=0) * rounding, 1e-30)
    resistance = step / tl.maximum(flow, weakest)
    faintest = tl.maximum(tl.max(D, axis=0) * rounding, 1e-30)
    return tl.where(D > 0, 1.0 / tl.maximum(D, faintest), 0.0), resistance


@triton.jit
def precondition(r: tl.tensor, inverse_D: tl.tensor, resistance: tl.tensor) -> tl.tensor:
    drop = tl.cumsum(r, axis=0) * resistance
    return r * inverse_D + (drop - tl.cumsum(drop, axis=0))


@triton.jit
def times_laplacian(W: tl.tensor, z: tl.tensor) -> tl.tensor:
    return tl.sum(W * (z[:, None] - z[None, :]), axis=1)


@triton.jit
def laplacian_solve(W: tl.tensor, r: tl.tensor, inverse_D: tl.tensor, resistance: tl.tensor, b: tl.tensor, accuracy: tl.tensor, MOST: tl.constexpr) -> tl.tensor:
    """L^+ r up to a constant, by at most MOST steps of preconditioned conjugate gradients."""
    r = r - b * tl.sum(r, axis=0)
    out = r * 0.0
    z = precondition(r, inverse_D, resistance)
    way = z
    rz = tl.sum(r * z, axis=0)
    enough = rz * accuracy * accuracy
    k = 0
    while (k < MOST) & (rz > enough):
        Lw = times_laplacian(W, way)
        bend = tl.sum(way * Lw, axis=0)
        alpha = tl.where(bend > 0, rz / tl.where(bend > 0, bend, 1.0), 0.0)
        out = out + alpha * way
        r = r - alpha * Lw
        z = precondition(r, inverse_D, resistance)
        before = rz
        rz = tl.where(bend > 0, tl.sum(r * z, axis=0), 0.0)
        way = z + (rz / before) * way
        k += 1
    return out


@triton.jit
def exact_boundaries(
    x_ptr: tl.tensor, a_ptr: tl.tensor, N: tl.tensor, x_stride: tl.tensor, a_stride: tl.tensor, origin: tl.tensor, unit: tl.tensor, levels: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK_N: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """Where the staircase passes from each target to the next: see ``solvers.start``. O(n^2) comparisons."""
    k = tl.arange(0, BLOCK_N)
    x, a = load_row(x_ptr, a_ptr, k, N, x_stride, a_stride, WEIGHTED)
    others = place(x, origin, unit, SQUASH, tl.float32)[1]
    before = tl.full([BK], 0.5, tl.float32)
    after = tl.full([BK], 0.5, tl.float32)
    for start in range(0, N, BN):
        x_i, a_i = load_row(x_ptr, a_ptr, start + tl.arange(0, BN), N, x_stride, a_stride, WEIGHTED)
        at = place(x_i, origin, unit, SQUASH, tl.float32)[1]
        reached = tl.sum(tl.where(others[None, :] <= at[:, None], a[None, :], 0.0), axis=1)
        reached = tl.where(a_i > 0, reached, -1.0)
        at_or_past = reached[:, None] >= levels[None, :] - 3e-6
        past = reached[:, None] > levels[None, :] + 3e-6
        before = tl.minimum(before, tl.min(tl.where(at_or_past, at[:, None], 0.5), axis=0))
        after = tl.minimum(after, tl.min(tl.where(past, at[:, None], 0.5), axis=0))
    return 0.5 * (before + after)


@triton.jit
def rough_boundaries(
    at_ptr: tl.tensor, a_ptr: tl.tensor, N: tl.tensor, a_stride: tl.tensor, levels: tl.tensor,
    WEIGHTED: tl.constexpr, CELLS: tl.constexpr, BN: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """The same from masses in CELLS equal cells, linear inside each: near enough where there are many values."""
    edge = (tl.arange(0, CELLS) + 1).to(tl.float32) / CELLS - 0.5
    below = tl.zeros([CELLS], tl.float32)
    for start in range(0, N, BN):
        high, low, a = load_placed(at_ptr, a_ptr, start + tl.arange(0, BN), N, a_stride, WEIGHTED)
        at = high + low
        below += tl.sum(tl.where(at[:, None] <= edge[None, :], a[:, None], 0.0), axis=0)
    short = below[:, None] < levels[None, :]
    cell = tl.sum(tl.where(short, 1.0, 0.0), axis=0)
    low = tl.max(tl.where(short, below[:, None], 0.0), axis=0)
    high = tl.min(tl.where(short, 1.0, below[:, None]), axis=0)
    inside = tl.where(high > low, (levels - low) / tl.where(high > low, high - low, 1.0), 0.5)
    return tl.minimum((cell + inside) / CELLS - 0.5, 0.5)


@triton.jit
def start_of(boundaries: tl.tensor, step: tl.tensor, b: tl.tensor, has: tl.tensor, s: tl.tensor) -> tl.tensor:
    """U of the staircase (double): U_{j+1} - U_j = X_j (y_{j+1} - y_j), and the weights of the targets."""
    rise = boundaries * step
    U = tl.cumsum(rise, axis=0) - rise
    return tl.where(has, U.to(tl.float64) - tl.log(tl.where(has, b, 1.0)).to(tl.float64) / s, 0.0)


@triton.jit
def through_moments(
    x_ptr: tl.tensor, a_ptr: tl.tensor, state_ptr: tl.tensor, partial_ptr: tl.tensor, grad_ptr: tl.tensor, N: tl.tensor, x_stride: tl.tensor, a_stride: tl.tensor,
    sum_g: tl.tensor, sum_gz: tl.tensor, total: tl.tensor,
    SQUASH: tl.constexpr, WEIGHTED: tl.constexpr, PUSH: tl.constexpr, BN: tl.constexpr
) -> None:  # fmt: skip
    """The cotangent of x from that of z, and for push from what is averaged.

    z = (x - mean) / std:   dx_i = (g_i - a_i sum g - a_i z_i sum g z) / std,   and the last term is absent in a constant
    row. For push, g is the cotangent for values measured in units of std, so that the two cancel.
    """
    origin, unit = tl.load(state_ptr), tl.load(state_ptr + 1)
    spread, bad = tl.load(state_ptr + 2), tl.load(state_ptr + 3)
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        x, a = load_row(x_ptr, a_ptr, i, N, x_stride, a_stride, WEIGHTED)
        finite = tl.abs(x) < float("inf")
        g = tl.load(partial_ptr + i, mask=i < N, other=0.0).to(tl.float64)
        if SQUASH != 0:
            z = place(x, origin, unit, SQUASH, tl.float64)[0]
            share = tl.where(finite, a / tl.where(total > 0, total, 1.0), 0.0).to(tl.float64)
            g = g - share * (sum_g + spread * sum_gz * z)
        if PUSH:
            g = g + tl.load(partial_ptr + N + i, mask=i < N, other=0.0)
        else:
            g = g / unit
        tl.store(grad_ptr + i, tl.where(bad > 0, float("nan"), g), mask=i < N)
