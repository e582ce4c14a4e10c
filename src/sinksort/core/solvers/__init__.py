"""How the transport problem is solved: Newton (the default) or the paper's Sinkhorn iterations."""

from typing import TypeAlias

from .newton import Newton
from .sinkhorn import Sinkhorn

Solver: TypeAlias = Newton | Sinkhorn

__all__ = ["Newton", "Sinkhorn", "Solver"]
