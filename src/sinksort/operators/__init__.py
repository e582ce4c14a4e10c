"""The operators: each poses a transport problem, solves it, and reads the plan in its own way.

What their options mean stands in ``sinksort.core.options`` and in the docstring of each operator.

The reference computes in float64, whatever dtype comes and goes; fast kernels answer single and half precision in
single precision, ranks to 1e-5 n; other kernels on the CPU answer in double precision. Autocast is switched off.
"""

from ..core.option_values import DEFAULT_SOLVER
from .selecting import TopK, soft_median, soft_quantile, soft_topk, soft_topk_mask
from .sorting import (
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
