"""Differentiable ranks, sorts, quantiles and top-k by optimal transport, for PyTorch.

After "Differentiable Ranks and Sorting using Optimal Transport" (Cuturi, Teboul, Vert, 2019).
"""

from .core.checks import value_checks
from .core.costs import Huber, Power
from .core.kantorovich import kantorovich_rank, kantorovich_sort
from .core.plan import Plan
from .core.solvers import Newton, Sinkhorn
from .kernels import compile, last_backend  # noqa: A004 - as torch.compile
from .linear.smooth import SmoothPlan
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

__version__ = "0.1.0"

__all__ = [
    "Huber",
    "Newton",
    "Plan",
    "Power",
    "Sinkhorn",
    "SmoothPlan",
    "TopK",
    "compile",
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
