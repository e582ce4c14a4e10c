"""The operators: each poses a transport problem, solves it, and reads the plan in its own way.

All of them take the same options:

==================  ====================================================================================================
``dim``             the dimension to sort along
``weights``         a: how much each value counts, any non-negative numbers; (n,) or broadcastable to x; default equal
``mask``            True for values that exist, False for padding; (n,) or broadcastable to x
``targets``         y: m increasing numbers that values are sent to; (m,) or one row for each row of x; default the
                    regular grid on [0, 1], which is where the squashed values live
``target_weights``  b: how much each target receives; any non-negative numbers; default equal
``num_targets``     m, for the default targets; default n
``eps``             entropy: towards 0 a hard sort without useful gradients, towards infinity all values alike;
                    a number, or a tensor (one for all, or one a row) that may be learned
``cost``            h in the cost h(y_j - x_i): p >= 1 for abs(u)^p, ``Huber(delta)``, or a convex callable
``squash``          how x comes to [0, 1]: standardised and then ``"sigmoid"`` or ``"arctan"``; ``"robust"``,
                    standardised by median and median absolute deviation; None when it is there already; or an
                    increasing callable that is given x itself (its rows last) instead of all this
``solver``          ``Newton()`` or ``Sinkhorn(...)``
``backend``         who computes: ``"auto"`` (fused kernels where they can, see ``last_backend``), or by name, to be
                    told when it cannot: ``"torch"`` (the reference), ``"triton"`` (CUDA), ``"numba"`` (CPU)
==================  ====================================================================================================

The reference computes in float64, whatever dtype comes and goes; fast kernels answer single and half precision in
single precision, ranks to 1e-5 n; other kernels on the CPU answer in double precision. Autocast is switched off.
"""

from .selecting import TopK, soft_median, soft_quantile, soft_topk, soft_topk_mask
from .sorting import (
    DEFAULT_SOLVER,
    quantile_normalize,
    smooth_transport,
    soft_permutation,
    soft_rank,
    soft_sort,
    sort_with,
    transport,
)

__all__ = [
    "DEFAULT_SOLVER",
    "TopK",
    "quantile_normalize",
    "smooth_transport",
    "soft_median",
    "soft_permutation",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_topk",
    "soft_topk_mask",
    "sort_with",
    "transport",
]
