"""Least-quantile regression (the paper's Table 2): minimise a quantile of the absolute errors of a small regressor.

Two methods. ``hard``: a step on the one point of the mini-batch whose error is the empirical quantile (the paper's
eps = 0). ``soft``: the soft quantile of the mini-batch's errors. Reported are the true quantile on all of the training
part, the true quantile and the mean squared error on the test part.

The paper leaves open how long it trained: here all tables get the same number of steps, and an epoch is ``steps``
mini-batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from ..losses import least_quantile_loss
from .datasets import DATA_SETS, VARIANT, File
from .networks import Perceptrons
from .settings import knob, require_among, require_counts, require_numbers, require_positive
from .tables import FILES, TABLES, read_table, split
from .training import Batch, Numbers, generator

METHODS = ("hard", "soft")


@dataclass(frozen=True)
class QuantileRegression:
    """Every setting; the defaults are the paper's where it names them."""

    runs: int = knob(12, "runs, with seeds 0, 1, ...")
    epochs: int = knob(100, "epochs of each run")
    steps: int = knob(100, "mini-batches in an epoch")
    batch: int = knob(512, "size of a mini-batch")
    learning_rate: float = knob(1e-4, "Adam's constant step size")
    hidden: int = knob(64, "width of the two hidden layers")
    eps: float = knob(1e-2, "entropy of the transport")
    width: float = knob(1 / 512, "t, the weight of the filler target")
    levels: tuple[float, ...] = knob((0.5, 0.9), "tau")
    tables: tuple[str, ...] = knob(tuple(TABLES), "which tables")
    response: str = knob("standard", "scale of the response: standard or mean-abs")
    test_share: float = knob(0.2, "share of rows held out")
    measure_every: int = knob(10, "epochs between measurements")

    known_tables: ClassVar[tuple[str, ...]] = tuple(TABLES)

    def __post_init__(self) -> None:
        require_counts(runs=self.runs, epochs=self.epochs, steps=self.steps, measure_every=self.measure_every)
        require_counts(batch=self.batch, hidden=self.hidden)
        require_positive(learning_rate=self.learning_rate, eps=self.eps, width=self.width)
        require_numbers("width", (self.width,), 0, 1)
        require_numbers("levels", self.levels, 0, 1)
        require_numbers("test_share", (self.test_share,), 0, 1, ends=False)
        require_among("tables", self.tables, self.known_tables)
        require_among("response", (self.response,), ("standard", "mean-abs"))

    def cases(self) -> list[str]:
        return [f"{table}-{level:g}" for table in self.tables for level in self.levels]

    def methods(self, _case: str) -> tuple[str, ...]:
        return METHODS

    def files(self) -> tuple[File, ...]:
        names = {name for table in self.tables for name in FILES[table]}
        return tuple(file for file in (*DATA_SETS["cqr"].files, VARIANT) if file.name in names)

    def task(self, case: str, method: str, seeds: Sequence[int], data: Path, device: torch.device) -> RegressionTask:
        name, _, level = case.rpartition("-")
        x, y = read_table(name, data / "cqr")
        return RegressionTask(self, x, y, float(level), method, seeds, device)


class RegressionTask:
    """R regressors, each with its own split of the table."""

    def __init__(
        self,
        knobs: QuantileRegression,
        x: object,
        y: object,
        level: float,
        method: str,
        seeds: Sequence[int],
        device: torch.device,
    ) -> None:
        self.knobs, self.level, self.method, self.seeds = knobs, level, method, seeds
        splits = [
            split(x, y, seed, test_share=knobs.test_share, response=knobs.response)  # type: ignore[arg-type]
            for seed in seeds
        ]

        def stacked(name: str) -> Tensor:
            return torch.stack(
                [torch.as_tensor(getattr(s, name), dtype=torch.float32, device="cpu") for s in splits]
            ).to(device)

        self.train_x, self.train_y, self.test_x, self.test_y = map(stacked, ("train_x", "train_y", "test_x", "test_y"))
        self.model = Perceptrons(self.train_x.shape[-1], knobs.hidden, seeds).to(device)
        self._level = torch.tensor(level, dtype=torch.float64, device=device)  # a graph cannot fetch it from the host
        self._run = torch.arange(len(seeds), dtype=torch.int64, device=device).unsqueeze(-1)

    def batches(self, epoch: int) -> Batch:
        """Indices (steps, R, B): slices of permutations, so that no mini-batch holds a point twice."""
        count = self.train_x.shape[1]
        size = min(self.knobs.batch, count)
        in_one = count // size
        drawn = []
        for seed in self.seeds:
            source = generator(seed, epoch)
            passes = [
                torch.randperm(count, generator=source, dtype=torch.int64, device="cpu")[: in_one * size].view(
                    in_one, size
                )
                for _ in range(math.ceil(self.knobs.steps / in_one))
            ]
            drawn.append(torch.cat(passes)[: self.knobs.steps])
        return {"index": torch.stack(drawn, dim=1).to(self.train_x.device)}

    def losses(self, batch: Batch) -> Tensor:
        at = batch["index"]
        residuals = self.train_y[self._run, at] - self.model(self.train_x[self._run, at])
        if self.method == "hard":
            return hard_quantile(residuals.abs(), self.level)
        return least_quantile_loss(
            residuals,
            self._level,
            width=self.knobs.width,
            eps=self.knobs.eps,
            squash="sigmoid",  # the paper's; the loss has a more robust default
            reduction="none",
        )

    def measure(self) -> list[Numbers]:
        train = (self.train_y - self.model(self.train_x)).abs()
        test = (self.test_y - self.model(self.test_x)).abs()
        columns = {
            "train": true_quantile(train, self.level),
            "test": true_quantile(test, self.level),
            "mse": test.square().mean(-1),
        }
        return [{name: values[r].item() for name, values in columns.items()} for r in range(len(self.seeds))]


def hard_quantile(errors: Tensor, level: float) -> Tensor:
    """The smallest error that at least ``level`` of the row's errors do not exceed; its gradient is one at that point.

    >>> hard_quantile(torch.tensor([[4.0, 1.0, 3.0, 2.0]]), 0.5)
    tensor([2.])
    """
    at = max(math.ceil(level * errors.shape[-1]), 1) - 1
    return errors.sort(dim=-1).values[..., at]


def true_quantile(errors: Tensor, level: float) -> Tensor:
    """The quantile that is reported, with linear interpolation (``numpy.quantile``)."""
    ordered = errors.sort(dim=-1).values
    at = level * (errors.shape[-1] - 1)
    low = math.floor(at)
    high = min(low + 1, errors.shape[-1] - 1)
    return ordered[..., low] + (at - low) * (ordered[..., high] - ordered[..., low])
