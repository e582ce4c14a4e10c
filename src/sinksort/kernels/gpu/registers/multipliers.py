"""Gradients of ranks of which nearly all cancels: most of lambda is known before anything is solved.

The gradient of ranks with cotangents w is made of  w_i phi_j - a_i lambda_j,  where L lambda = t undoes what the
potentials would change. Where w grows with the ranks, as of a sum of their squares, all but a hundredth of w_i phi_j is
undone, and all but 1e-5 where half of the values are tied. Errors of lambda, and of rounding, are as much larger beside
what is left.

Along the staircase, where value i is at target j, nothing is left of it if lambda_{j+1} - lambda_j is w_i / a_i
(phi_{j+1} - phi_j). So a guess u of lambda is summed up from what w / a is at each target on average,

    u_j  =  sum over targets k up to j, the last by half, of  (sum_i p_ik w_i / b_k) (phi_{k+1} - phi_{k-1}) / 2,

and  q_ij = w_i phi_j - a_i u_j  takes the place of w_i phi_j: then lambda = u + v, where L v is made of q as t is of
w phi. That holds for every u. A good one lets the two parts that cancel do so before anything is solved, and a few
steps in single precision are enough for v, whatever w is.

Both parts are measured from the mean, or from the likeliest target of each value: what is rounded is as small as what
differs between targets that a value sees.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..engine.tiles import over_targets, over_values, running

#: Where weights differ, several values meet at a target. What flows is up to those that go to other targets as well:
#: they count, and the others so much less.
_FIRM = tl.constexpr(1e-3)


@triton.jit
def first_multipliers(
    p: tl.tensor, w: tl.tensor, b: tl.tensor, D: tl.tensor, phi_ptr: tl.tensor, j: tl.tensor, K: tl.tensor,
    WEIGHTED: tl.constexpr, KA: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """u; w is 0 where there is no value, and D_j = sum_i a_i p_ij (1 - p_ij)."""
    if WEIGHTED:
        whole = D + _FIRM * b
        sums = over_values(p * ((1.0 + _FIRM) - p) * w, KA, X, KB)
    else:
        whole = b
        sums = over_values(p * w, KA, X, KB)
    following = tl.load(phi_ptr + tl.minimum(j + 1, K - 1)).to(tl.float32)
    before = tl.load(phi_ptr + tl.minimum(tl.maximum(j - 1, 0), K - 1)).to(tl.float32)
    step = tl.where((j > 0) & (j + 1 < K), 0.5, 1.0) * (following - before)
    rise = tl.where(b > 0, step * sums / tl.where(b > 0, whole, 1.0), 0.0)
    return running(rise) - 0.5 * rise


@triton.jit
def remaining_pull(
    p: tl.tensor, w: tl.tensor, a: tl.tensor, phi: tl.tensor, u: tl.tensor, likeliest: tl.tensor,
    LINKS: tl.constexpr, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """q, up to a number for each value."""
    if LINKS:
        phi -= over_targets(tl.where(likeliest, phi, 0.0), V, X, KB)
        u -= over_targets(tl.where(likeliest, u, 0.0), V, X, KB)
    else:
        phi -= over_targets(p * phi, V, X, KB)
        u -= over_targets(p * u, V, X, KB)
    return w * phi - a * u
