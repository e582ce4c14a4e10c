"""How many iterations each solver needs as eps becomes smaller. The paper says that they "rarely exceed 100".

The rows are as long as those of its experiments, with normal values in place of a network's: 10 and 100 logits (CIFAR),
lists of 15 scores (Table 1), and 512 absolute errors that are sent to the three targets of a median (Table 2). Solvers:

``sinkhorn``         the paper's, from zero potentials, down to its marginal error eta
``schedule``         the same with the schedule of the authors' code: eps begins at 0.1 and shrinks by 0.95 an iteration
``newton``           this library's, down to the same marginal error
``newton-exact``     the same down to a marginal error of 1e-10
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import transport
from ..core.solvers import Newton, Sinkhorn, Solver
from .datasets import File
from .settings import knob, require_among, require_counts, require_numbers, require_positive
from .training import Trained, generator

#: Name -> how many values, the eps of the paper, and what they are.
KINDS: dict[str, tuple[int, float, str]] = {
    "classes-10": (10, 1e-3, "10 logits"),
    "classes-100": (100, 1e-3, "100 logits"),
    "sorting-15": (15, 5e-3, "lists of 15"),
    "errors-512": (512, 1e-2, "median of 512 errors"),
}
SOLVERS = ("sinkhorn", "schedule", "newton", "newton-exact")


@dataclass(frozen=True)
class Iterations:
    """Every setting; the marginal error is the paper's."""

    runs: int = knob(1, "draws of the rows, with seeds 0, 1, ...")
    rows: int = knob(100, "rows of each kind")
    entropies: tuple[float, ...] = knob((1e-1, 3e-2, 1e-2, 5e-3, 3e-3, 1e-3), "values of eps, from large to small")
    kinds: tuple[str, ...] = knob(tuple(KINDS), ", ".join(KINDS))
    solvers: tuple[str, ...] = knob(SOLVERS, ", ".join(SOLVERS))
    eta: float = knob(1e-3, "marginal error at which a row is done")
    most: int = knob(20_000, "iterations after which a row is given up, and counted as that many")

    def __post_init__(self) -> None:
        require_counts(runs=self.runs, rows=self.rows, most=self.most)
        require_numbers("entropies", self.entropies, 1e-5, 1e3)
        require_positive(eta=self.eta)
        require_among("kinds", self.kinds, tuple(KINDS))
        require_among("solvers", self.solvers, SOLVERS)

    @property
    def epochs(self) -> int:
        """How many measurements a curve has."""
        return len(self.entropies)

    def cases(self) -> list[str]:
        return list(self.kinds)

    def methods(self, _case: str) -> tuple[str, ...]:
        return self.solvers

    def files(self) -> tuple[File, ...]:
        return ()

    def count(
        self, case: str, method: str, seeds: Sequence[int], device: torch.device, tell: Callable[[Trained], None]
    ) -> Trained:
        """One curve a seed, one entry for each eps."""
        counted, began = Trained([[] for _ in seeds]), time.perf_counter()
        rows = [rows_of(case, self.rows, seed).to(device) for seed in seeds]
        for k, eps in enumerate(self.entropies):
            for curve, x in zip(counted.curves, rows, strict=True):
                needed = iterations(case, x, eps, self._solver(method)).double()
                low, median, high = needed.quantile(needed.new_tensor([0.1, 0.5, 0.9])).tolist()
                more = (needed > 100).double().mean().item()
                curve.append(
                    {"epoch": k + 1, "eps": eps, "low": low, "median": median, "high": high, "beyond_100": more}
                )
            counted.epochs, counted.seconds = k + 1, time.perf_counter() - began
            tell(counted)
        return counted

    def _solver(self, method: str) -> Solver:
        if method.startswith("newton"):
            return Newton(tolerance=self.eta if method == "newton" else 1e-10)
        first, decay = (0.1, 0.95) if method == "schedule" else (None, 0.9)
        return Sinkhorn(tolerance=self.eta, max_iterations=self.most, start_eps=first, decay=decay)


def rows_of(case: str, count: int, seed: int) -> Tensor:
    """(count, n) normal values, or for errors their absolute values."""
    x = torch.randn(count, KINDS[case][0], generator=generator(seed, 0, 20), dtype=torch.float64, device="cpu")
    return x.abs() if case.startswith("errors") else x


def iterations(case: str, x: Tensor, eps: float, solver: Solver) -> Tensor:
    """(rows,) iterations of the problem that the experiment solves."""
    options: dict[str, Any] = {}
    if case.startswith("errors"):  # the median by Eq. 5, with a filler of one error's weight
        t = 1 / x.shape[-1]
        options["target_weights"] = torch.tensor([0.5 - t / 2, t, 0.5 - t / 2], dtype=x.dtype, device=x.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "sinksort", RuntimeWarning)  # rows that are given up are counted as such
        return transport(x, eps=eps, solver=solver, **options).iterations
