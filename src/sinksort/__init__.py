"""Differentiable ranks, sorts, quantiles and top-k by optimal transport, for PyTorch.

After "Differentiable Ranks and Sorting using Optimal Transport" (Cuturi, Teboul, Vert, 2019).
"""

import importlib
from typing import TYPE_CHECKING

from .core.checks import value_checks
from .core.costs import Huber, Power
from .core.kantorovich import kantorovich_plan, kantorovich_rank, kantorovich_sort
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

if TYPE_CHECKING:
    from types import ModuleType

    from . import compat as compat
    from . import distributed as distributed
    from . import losses as losses
    from . import nn as nn
    from . import plot as plot
    from . import relaxations as relaxations
    from . import schedules as schedules
    from . import sklearn as sklearn
    from . import streaming as streaming

__version__ = "0.2.0"

#: Imported when they are first named: some need more than torch and NumPy.
_PACKAGES = ("compat", "distributed", "losses", "nn", "plot", "relaxations", "schedules", "sklearn", "streaming")

__all__ = [
    "Huber",
    "Newton",
    "Plan",
    "Power",
    "Sinkhorn",
    "SmoothPlan",
    "TopK",
    "compile",
    "kantorovich_plan",
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


def __getattr__(name: str) -> "ModuleType":
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public, so that completion shows no inner module."""
    return sorted([*__all__, *_PACKAGES, *(name for name in globals() if name.startswith("__"))])
