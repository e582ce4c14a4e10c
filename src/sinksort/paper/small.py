"""The three trainings in small, on data that comes inside scikit-learn: the same tasks with fewer and smaller things.

Least-quantile regression on ``diabetes``; the 0/1 loss on ``digits``; sorting two-digit numbers made of ``digits``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from .cifar import Cifar, Classifiers
from .datasets import File
from .images import Bytes
from .mnist_sort import METHODS, Digits, MnistSort, SortTask
from .networks import VanillaCNN
from .quantile_regression import QuantileRegression, RegressionTask
from .settings import knob

if find_spec("sklearn") is None:
    raise ModuleNotFoundError(
        "the demo uses data that comes with scikit-learn, which is not installed; run: pip install 'sinksort[sklearn]'"
    )

_TRAINING, _VALIDATION = 1200, 200  # of the 1,797 digits


@dataclass(frozen=True)
class SmallRegression(QuantileRegression):
    """Table 2 in small: 442 patients, 10 features."""

    known_tables: ClassVar[tuple[str, ...]] = ("diabetes",)

    runs: int = knob(3, "runs")
    epochs: int = knob(6, "epochs")
    batch: int = knob(256, "size of a mini-batch")
    width: float = knob(1 / 256, "t, the weight of the filler target")
    learning_rate: float = knob(1e-3, "Adam's constant step size")
    tables: tuple[str, ...] = knob(("diabetes",), "which tables")
    measure_every: int = knob(1, "epochs between measurements")

    def files(self) -> tuple[File, ...]:
        return ()

    def task(self, case: str, method: str, seeds: Sequence[int], _data: Path, device: torch.device) -> RegressionTask:
        from sklearn.datasets import load_diabetes

        x, y = load_diabetes(return_X_y=True)
        return RegressionTask(self, x, y, float(case.rpartition("-")[2]), method, seeds, device)


def _digits() -> tuple[Bytes, Bytes]:
    """(images (1797, 8, 8), labels), in an order drawn once."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images.reshape(-1, 8, 8) * (255 / 16))[order].astype(np.uint8), labels[order].astype(np.uint8)


@dataclass(frozen=True)
class SmallSort(MnistSort):
    """Table 1 in small: two-digit numbers, 8 x 8 pixels a digit."""

    runs: int = knob(3, "runs")
    epochs: int = knob(12, "epochs")
    sizes: tuple[int, ...] = knob((5,), "n, numbers in a list")
    digits: int = knob(2, "digits in a number")
    compare: tuple[str, ...] = knob((*METHODS, "transport-raw"), "methods to compare")
    channels: tuple[int, ...] = knob((12, 24), "of the two convolutions")
    learning_rate: float = knob(1e-3, "Adam's constant step size")
    measure_every: int = knob(2, "epochs between measurements")

    def files(self) -> tuple[File, ...]:
        return ()

    def task(self, case: str, method: str, seeds: Sequence[int], _data: Path, device: torch.device) -> SortTask:
        images, labels = _digits()
        ends = (0, _TRAINING, _TRAINING + _VALIDATION, len(labels))
        pools = [Digits(images[a:b], labels[a:b], device) for a, b in itertools.pairwise(ends)]
        return SortTask(self, pools, int(case[1:]), method, seeds, device)


@dataclass(frozen=True)
class SmallClassifier(Cifar):
    """Figure 4 in small: a small CNN on 8 x 8 digits."""

    known_networks: ClassVar[tuple[str, ...]] = ("digits",)

    runs: int = knob(3, "runs")
    epochs: int = knob(10, "epochs")
    networks: tuple[str, ...] = knob(("digits",), "what is classified")
    batch: int = knob(64, "size of a mini-batch")
    learning_rate: float = knob(1e-3, "Adam's constant step size")
    eps: float = knob(1e-2, "entropy of the transport")
    flip: bool = knob(False, "digits are not mirrored")

    def files(self) -> tuple[File, ...]:
        return ()

    def task(self, _case: str, method: str, seeds: Sequence[int], _data: Path, device: torch.device) -> Classifiers:
        images, labels = _digits()
        images = images[:, None]
        train, test = (images[:_TRAINING], labels[:_TRAINING]), (images[_TRAINING:], labels[_TRAINING:])

        def make() -> VanillaCNN:
            return VanillaCNN(10, width=8, side=8, hidden=32, colours=1)

        return Classifiers(self, train, test, make, method, seeds, device)
