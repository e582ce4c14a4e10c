"""L^-1 in a few steps: conjugate gradients for the graph Laplacian of K targets, whatever the plan.

The preconditioner has two parts,

    r_j / D_j  +  (inverse of a path) r,        D_j = sum_{k != j} W_jk,     L = diag(W 1) - W.

The path links neighbours only, and its conductances are chosen such that it agrees with L on the vector y: the flow of
-L y over the link from j to j + 1, over y_{j+1} - y_j. Two cumulative sums invert it. It is right at low frequencies,
the diagonal at high ones: where L is a convolution their sum has condition number 1.3, and where a plan is nearly hard
(neighbours only) at most 3, whatever the conductances. Two to four steps give two digits, five to fifteen give six.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .sums import agreed_sum


@triton.jit
def bridged(W: tl.tensor, D: tl.tensor, K: tl.tensor, BK: tl.constexpr) -> tl.tensor:
    """W and D with a faint link between neighbours.

    Where a plan falls apart, rounding decides what flows between its parts. Nothing is seen of how their potentials
    differ, as long as the difference is not too large to compute with.
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
    return agreed_sum(W * (z[:, None] - z[None, :]), axis=1)


@triton.jit
def first_way(r: tl.tensor, inverse_D: tl.tensor, resistance: tl.tensor, b: tl.tensor) -> tl.tensor:
    """r without a constant part, the first way of conjugate gradients, and r z."""
    r = r - b * agreed_sum(r, axis=0)
    z = precondition(r, inverse_D, resistance)
    return r, z, agreed_sum(r * z, axis=0)


@triton.jit
def go_on(
    out: tl.tensor, r: tl.tensor, way: tl.tensor, rz: tl.tensor, Lw: tl.tensor, inverse_D: tl.tensor,
    resistance: tl.tensor
) -> tl.tensor:  # fmt: skip
    """One step of conjugate gradients along ``way``, of which L makes Lw."""
    bend = agreed_sum(way * Lw, axis=0)
    alpha = tl.where(bend > 0, rz / tl.where(bend > 0, bend, 1.0), 0.0)
    out = out + alpha * way
    r = r - alpha * Lw
    z = precondition(r, inverse_D, resistance)
    before = rz
    rz = tl.where(bend > 0, agreed_sum(r * z, axis=0), 0.0)
    return out, r, z + (rz / before) * way, rz


@triton.jit
def laplacian_solve(
    W: tl.tensor, r: tl.tensor, inverse_D: tl.tensor, resistance: tl.tensor, b: tl.tensor, accuracy: tl.tensor,
    MOST: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """L^+ r up to a constant, by at most MOST steps."""
    r, way, rz = first_way(r, inverse_D, resistance, b)
    out = r * 0.0
    enough = rz * accuracy * accuracy
    k = 0
    while (k < MOST) & (rz > enough):
        out, r, way, rz = go_on(out, r, way, rz, times_laplacian(W, way), inverse_D, resistance)
        k += 1
    return out


@triton.jit
def _joined(
    first0: tl.tensor, last0: tl.tensor, change0: tl.tensor, there0: tl.tensor,
    first1: tl.tensor, last1: tl.tensor, change1: tl.tensor, there1: tl.tensor
) -> tl.tensor:  # fmt: skip
    """Two stretches of targets: the first and the last that exist, and by how much the way may change in between."""
    between = tl.minimum(tl.maximum(first1 - last0, -5.0), 5.0)
    change = change0 + change1 + tl.where((there0 > 0) & (there1 > 0), between, 0.0)
    first, last = tl.where(there0 > 0, first0, first1), tl.where(there1 > 0, last1, last0)
    return first, last, change, tl.maximum(there0, there1)


@triton.jit
def limited(way: tl.tensor, has: tl.tensor) -> tl.tensor:
    """A way that changes by at most 5 from a target to the next, up to a constant.

    Where a plan falls apart a way moves each part as a whole, as far as rounding likes, which changes nothing. So it is
    not the way itself that must be limited: what moves within the parts would be gone.
    """
    there = tl.where(has, 1.0, 0.0).to(way.dtype)
    _first, _last, change, _there = tl.associative_scan((way, way, way * 0.0, there), 0, _joined)
    return change
