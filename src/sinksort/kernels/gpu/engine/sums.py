"""Sums that all threads agree about.

Many threads hold the same number, each a copy of its own, and a loop goes on for all of them or for none: if some see
an error below the tolerance and others do not, those that go on wait for the others for ever. Threads add up by
exchanging what they have and adding the other's to their own, which is the same for both, a + b and b + a. But where
a is a product, compilers make one instruction of the product and the sum, which does not round the product. Then each
thread has rounded the other's and not its own, and the two sums differ in their last digit. That is nothing, except
where all other digits cancel: a plan that is nearly a permutation does that.

So products are made numbers first, by adding zero: one instruction does both.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def agreed_sum(v: tl.tensor, axis: tl.constexpr, keep_dims: tl.constexpr = False) -> tl.tensor:
    """``tl.sum``, the same to the last bit in all threads that have it."""
    return tl.sum(v + 0.0, axis=axis, keep_dims=keep_dims)
