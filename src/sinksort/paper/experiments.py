"""The experiments by name, and how one is run: unit by unit, skipping what is finished, resuming what was killed."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from .cifar import Cifar, Cifar100
from .datasets import File, fingerprints
from .iterations import Iterations
from .machine import code, machine
from .mnist_sort import MnistSort
from .quantile_regression import QuantileRegression
from .results import settings_digest
from .store import Store, as_json, write_atomic
from .training import Task, Trained, train


class Knobs(Protocol):
    """Every setting of an experiment, as a frozen dataclass.

    An experiment that trains nothing has ``count`` in place of ``task``, and returns its curves from there.
    """

    runs: int
    epochs: int
    learning_rate: float
    measure_every: int

    def cases(self) -> list[str]:
        """What the experiment is run on, one name a row of its table."""

    def methods(self, case: str) -> tuple[str, ...]:
        """What is compared in that row."""

    def files(self) -> Sequence[File]:
        """What is read of the data sets."""

    def task(self, case: str, method: str, seeds: Sequence[int], data: Path, device: torch.device) -> Task:
        """Model, data and loss of the runs with these seeds."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper, or one of its claims."""

    title: str
    shows: str  #: where in the paper
    knobs: Any  #: the dataclass of its settings
    data: tuple[str, ...]  #: the data sets it reads


EXPERIMENTS: dict[str, Experiment] = {
    "iterations": Experiment("Iterations of the solvers", "section 3", Iterations, ()),
    "quantile-regression": Experiment("Least-quantile regression", "Table 2", QuantileRegression, ("cqr",)),
    "mnist-sort": Experiment("Sorting handwritten numbers", "Table 1, Figure 6", MnistSort, ("mnist",)),
    "cifar10": Experiment("0/1 loss on CIFAR-10", "Figure 4", Cifar, ("cifar10",)),
    "cifar100": Experiment("0/1 loss on CIFAR-100", "Figure 5", Cifar100, ("cifar100",)),
}

#: The experiments in small, on data that comes inside scikit-learn -> how their runs are called on disk.
SMALL = {"quantile-regression": "diabetes", "mnist-sort": "digits-sort", "cifar10": "digits"}

#: (case, method, how far, of how many epochs): called after every epoch and when a method has nothing left to do
Watcher = Callable[[str, str, Trained | None, int], None]


def reproduce(
    name: str,
    knobs: Any,
    *,
    data: Path,
    out: Path,
    device: torch.device,
    only: str = "*",
    fresh: bool = False,
    watch: Watcher = lambda *_: None,
    called: str | None = None,
) -> Store:
    """Run what is missing of an experiment; all seeds of a (case, method) train side by side.

    ``called`` is the name of its folder in ``out``, if that is not the name of the experiment.
    ``only`` is a pattern for "case/method". Several processes may share the work, and the folder: what one of them
    trains the others leave to it, and wait for at the end.
    """
    work = [(case, method) for case in knobs.cases() for method in knobs.methods(case)]
    chosen = [(case, method) for case, method in work if fnmatch.fnmatch(f"{case}/{method}", only)]
    if not chosen:
        raise ValueError(f"--only must match one of {', '.join(map('/'.join, work))}, got {only!r}.")
    store = Store(out / (called or name))
    store.open(knobs, fresh=fresh, only=only)
    used = fingerprints(knobs.files(), data)

    def finished(case: str, method: str, *, wait: bool) -> bool:
        """Whether a method has all its units, which are made if no other process is about to do so."""
        if not store.missing(case, method, range(knobs.runs)):
            watch(case, method, None, knobs.epochs)
            return True
        with store.alone(case, method, wait=wait) as alone:
            if alone:
                _finish(store, knobs, case, method, data, device, {"experiment": name, "data": used}, watch)
            return alone

    for case, method in [both for both in chosen if not finished(*both, wait=False)]:
        finished(case, method, wait=True)
    return store


def _finish(
    store: Store,
    knobs: Any,
    case: str,
    method: str,
    data: Path,
    device: torch.device,
    said: dict[str, Any],
    watch: Watcher,
) -> None:
    """Train the runs of a method that have no unit yet, and write these, with what is to be ``said`` in each."""
    seeds = store.missing(case, method, range(knobs.runs))
    if not seeds:  # another process has just made them
        watch(case, method, None, knobs.epochs)
        return
    checkpoint = store.checkpoint(case, method)

    def tell(so_far: Trained) -> None:
        watch(case, method, so_far, knobs.epochs)

    if hasattr(knobs, "count"):
        trained = knobs.count(case, method, seeds, device, tell)
    else:
        saved = checkpoint.load(device)
        if saved is not None and set(seeds) <= set(saved["seeds"]):
            seeds = saved["seeds"]  # killed in training, or while the units were written: the same runs go on
        trained = train(
            knobs.task(case, method, seeds, data, device),
            epochs=knobs.epochs,
            learning_rate=knobs.learning_rate,
            falls=getattr(knobs, "rate_falls", False),  # elsewhere the paper names a constant one
            measure_every=knobs.measure_every,
            checkpoint=checkpoint,
            tell=tell,
        )
    for seed, curve in zip(seeds, trained.curves, strict=True):
        unit = {
            **said,
            "case": case,
            "method": method,
            "seed": seed,
            "knobs": dataclasses.asdict(knobs),
            "curve": curve,
            "together": len(seeds),  # runs that trained side by side
            "seconds": trained.seconds,  # for all of them
            "step_ms": trained.step_ms,
            "machine": machine(device),
            "code": code(),
            "settings": settings_digest(dataclasses.asdict(knobs)),
        }
        write_atomic(store.unit(case, method, seed), as_json(unit))
    checkpoint.remove()
    store.sweep(case, method)
