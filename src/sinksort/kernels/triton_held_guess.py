"""Gradients of ranks of which nearly all cancels: most of lambda is known before anything is solved.

The gradient of ranks R with cotangents w is made of  w_i phi_j - a_i lambda_j,  where L lambda = t undoes what the
potentials would change. Where w grows with the ranks, as of a sum of their squares, all but a hundredth of w_i phi_j is
undone, and all but 1e-5 where half of the values are tied. Errors of lambda and of rounding grow by as much.

Along the staircase value i is at target j, and nothing is left of it if  lambda_{j+1} - lambda_j  is  w_i / a_i
(phi_{j+1} - phi_j).  So u is summed up from what w / a is at each target on average,

    u_j  =  sum over targets up to j of  (sum_i p_ij w_i / b_j) (phi_{j+1} - phi_{j-1}) / 2,

with half of the last, and what is left,  q_ij = w_i phi_j - a_i u_j,  takes the place of w_i phi_j:  lambda = u +
lambda',  where L lambda' is sum_i p_ij (q_ij - E_i q). That holds for every u: one that is a good guess makes the two
parts that cancel explicit, and single precision and a few steps are enough for the rest, whatever w is.

Both parts are measured from the mean, or from the likeliest target of each value. So what is rounded is as small as
what differs between targets that a value sees.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_held_tiles import over_targets, over_values, running


@triton.jit
def guess_of(
    p: tl.tensor, w: tl.tensor, b: tl.tensor, phi_ptr: tl.tensor, j: tl.tensor, K: tl.tensor,
    KA: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """u; w is 0 where there is no value."""
    following = tl.load(phi_ptr + tl.minimum(j + 1, K - 1)).to(tl.float32)
    before = tl.load(phi_ptr + tl.minimum(tl.maximum(j - 1, 0), K - 1)).to(tl.float32)
    inner = (j > 0) & (j + 1 < K)
    rise = tl.where(inner, 0.5, 1.0) * (following - before) * over_values(p * w, KA, X, KB)
    rise = tl.where(b > 0, rise / tl.where(b > 0, b, 1.0), 0.0)
    return running(rise) - 0.5 * rise


@triton.jit
def left_of_pull(
    p: tl.tensor, w: tl.tensor, a: tl.tensor, phi: tl.tensor, u: tl.tensor, likeliest: tl.tensor,
    FEW: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """q, up to a number for each value."""
    if FEW:
        phi -= over_targets(tl.where(likeliest, phi, 0.0), V, X, KB)
        u -= over_targets(tl.where(likeliest, u, 0.0), V, X, KB)
    else:
        phi -= over_targets(p * phi, V, X, KB)
        u -= over_targets(p * u, V, X, KB)
    return w * phi - a * u
