"""A call that the reference took long for says so, once for each cause, with what helps.

Only the reference is watched: calls that kernels answer never come here. Nothing is measured while a program is
traced.
"""

from __future__ import annotations

import logging
import time

import torch
from torch import Tensor

from .costs import Power
from .modes import tracing
from .solvers import Newton, Solver

LONG = 0.5  #: seconds of one call that are worth a word
_KERNELS_TO = 2048  #: values and targets of a row that kernels in double precision take, see ``kernels.plan``

_log = logging.getLogger("sinksort")
_said: set[str] = set()  #: causes that have been named
clock = time.monotonic


def now() -> float:
    """The beginning of what ``tell`` looks at."""
    return 0.0 if tracing() else clock()


def tell(
    began: float,
    x: Tensor,
    dim: int,
    m: int,
    cost: object,
    solver: Solver,
    backend: str,
    missing: str | None,
    dtype: torch.dtype | None = None,
) -> None:
    """Log what made a call slow, if it was: x with its rows along ``dim``, onto m targets.

    ``missing`` says why there are no kernels at all for the device of x; ``dtype`` is what the caller gave, if x is in
    another one by now.
    """
    dtype = dtype or x.dtype
    if tracing():
        return
    took = clock() - began
    if took <= LONG:
        return
    n = x.shape[dim]
    cause, advice = _cause(x, dtype, cost, solver, backend, missing)
    if cause in _said:
        return
    _said.add(cause)
    _log.warning(
        "sinksort: a call took %.1f s in the reference (%d rows of %d values onto %d targets, %s on %s), since %s; %s. "
        "This is said once.",
        took, x.numel() // max(n, 1), n, m, dtype, x.device.type, cause, advice,
    )  # fmt: skip


def _cause(
    x: Tensor, dtype: torch.dtype, cost: object, solver: Solver, backend: str, missing: str | None
) -> tuple[str, str]:
    """Why no kernels answered, and what to do."""
    if not isinstance(solver, Newton):
        return "solver=Sinkhorn(...) takes many iterations", "leave solver out: Newton() takes about five"
    if backend == "torch":
        return "backend='torch' asks for the reference", "leave backend out, so that kernels answer where they can"
    if missing is not None:
        package, _, hint = missing.partition("; ")
        return package, hint or "move x to a CPU, where Numba's kernels answer"
    if solver != Newton():
        return "solver=Newton(...) has options that kernels do not have", "leave solver out"
    if not (isinstance(cost, (int, float)) and cost == 2) and cost != Power(2):
        return (
            f"only the squared cost has a fast way for more than {_KERNELS_TO} values or targets"
            if x.is_cpu
            else "kernels of GPUs know the squared cost only"
        ), "leave cost at 2, or rank fewer values at a time"
    if dtype == torch.float64:
        return "kernels for such rows compute in single precision, and x is float64", "pass x.float()"
    if backend == "rejected":
        return "some rows are too hard for kernels", "raise eps"
    return "no kernel takes this call", "raise eps, or ask for fewer targets with num_targets="
