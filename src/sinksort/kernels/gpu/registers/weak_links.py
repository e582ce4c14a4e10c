"""Plans of few values that hang on frail links: a plan measured from the likeliest target of each value.

Of a value that nearly all goes to one target, what matters is the little that does not, and single precision keeps all
its digits as long as nobody subtracts it from one. Let o_ij be 1 where target j is the likeliest of value i. Then

    p_ij - o_ij    =  p_ij,   or at the likeliest target   - (the sum of p_ik over all others),
    v_j - E_i v    =  u_ij - sum_k p_ik u_ik,              u_ij = v_j - (v at the likeliest target),

and no term of either sum is larger than what it is about. Column sums are off by

    b_j - sum_i a_i p_ij  =  (b_j - sum_i a_i o_ij) - sum_i a_i (p_ij - o_ij),

where the first part does not change from step to step, and is zero in a plan that is nearly hard, of values of equal
weight. So Newton's steps end where they should, however weak a link is; in the plain formula rounding would decide what
flows over it, and many steps would go after that.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..engine.tiles import inverse_of, most_over_targets, over_targets, over_values

_INTEGER = tl.constexpr(1e-5)  #: so close to a whole number of values is a weight that was meant to be one


@triton.jit
def likeliest_of(e: tl.tensor, j: tl.tensor, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr) -> tl.tensor:
    """The index of the largest for each value; the last of equals."""
    return most_over_targets(tl.where(e >= most_over_targets(e, V, X, KB), j, -1), V, X, KB)


@triton.jit
def plan_and_rest(
    e: tl.tensor, f: tl.tensor, likeliest: tl.tensor, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:
    """p and p - o, of e f; ``likeliest``: where o is 1."""
    ef = e * f
    others = over_targets(tl.where(likeliest, 0.0, ef), V, X, KB)
    inverse = inverse_of(over_targets(tl.where(likeliest, ef, 0.0), V, X, KB) + others)
    p = ef * inverse
    return p, tl.where(likeliest, -others * inverse, p)


@triton.jit
def apart_from_likeliest(
    p: tl.tensor, v: tl.tensor, likeliest: tl.tensor, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:
    """v_j - sum_k p_ik v_k."""
    u = v - over_targets(tl.where(likeliest, v, 0.0), V, X, KB)
    return u - over_targets(p * u, V, X, KB)


@triton.jit
def softness_of(
    p: tl.tensor, rest: tl.tensor, a: tl.tensor, likeliest: tl.tensor, KA: tl.constexpr, X: tl.constexpr,
    KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """D_j = sum_i a_i p_ij (1 - p_ij); ``rest`` is p - o."""
    return over_values(a * p * tl.where(likeliest, -rest, 1.0 - p), KA, X, KB)


@triton.jit
def imbalance_of_likeliest(
    b: tl.tensor, a: tl.tensor, i: tl.tensor, N: tl.tensor, likeliest: tl.tensor,
    WEIGHTED: tl.constexpr, KA: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """b_j - sum_i a_i o_ij."""
    if WEIGHTED:
        out = b - over_values(tl.where(likeliest, a, 0.0), KA, X, KB)
    else:
        off = b * N - over_values(tl.where(likeliest & (i < N), 1.0, 0.0), KA, X, KB)
        out = tl.where(tl.abs(off) < _INTEGER, 0.0, off) * (1.0 / N)
    return out
