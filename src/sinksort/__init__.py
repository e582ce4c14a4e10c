"""Differentiable ranks, sorts, quantiles and top-k by optimal transport, for PyTorch.

After "Differentiable Ranks and Sorting using Optimal Transport" (Cuturi, Teboul, Vert, 2019).
"""

from ._checks import value_checks
from .costs import Huber, Power
from .kantorovich import kantorovich_rank, kantorovich_sort
from .kernels import last_backend
from .operators import (
    TopK,
    quantile_normalize,
    smooth_transport,
    soft_median,
    soft_permutation,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_mask,
    sort_with,
    transport,
)
from .plan import Plan
from .smooth import SmoothPlan
from .solvers import Newton, Sinkhorn

__version__ = "0.1.0"

__all__ = [
    "Huber",
    "Newton",
    "Plan",
    "Power",
    "Sinkhorn",
    "SmoothPlan",
    "TopK",
    "kantorovich_rank",
    "kantorovich_sort",
    "last_backend",
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
    "value_checks",
]
