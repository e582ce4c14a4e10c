"""What the estimators share: their training options, checked once, and the way from data to layers."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..core.problem import wide_dtype
from .layers import Array, ArrayLayers, Units, fold, predict, to_arrays, to_tensors, unfold
from .training import Loss, Schedule, Score, Trained, train

BatchSize = int | Literal["auto"]

_AUTO_BATCH_LINEAR = 8192
_AUTO_BATCH_NETWORK = 512  # the paper's


class SoftEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Options and helpers; not an estimator by itself."""

    hidden_layer_sizes: int | tuple[int, ...]
    eps: float
    learning_rate: float
    alpha: float
    batch_size: BatchSize
    max_iter: int
    tol: float
    n_iter_no_change: int
    early_stopping: bool
    validation_fraction: float
    warm_start: bool
    device: str
    random_state: Any
    verbose: int | bool

    coefs_: list[Array]
    intercepts_: list[Array]

    def _check_options(self) -> None:
        name = type(self).__name__
        for option, least, most, fix in (
            ("eps", "> 0", "", "1e-2 is a good start."),
            ("learning_rate", "> 0", "", "1e-2 is a good start."),
            ("alpha", ">= 0", "", "0 for no penalty."),
            ("tol", ">= 0", "", "1e-4 is usual."),
            ("validation_fraction", "> 0", "< 1", "0.1 holds out a tenth."),
        ):
            self._require_number(option, least, most, fix)
        for option in ("max_iter", "n_iter_no_change"):
            require_count(getattr(self, option), f"{name}: {option}", 1)
        if self.batch_size != "auto":
            require_count(self.batch_size, f"{name}: batch_size", 2, "'auto' or ")
        for size in self._hidden():
            require_count(size, f"{name}: every entry of hidden_layer_sizes", 1)
        if not isinstance(self.verbose, bool):
            require_count(self.verbose, f"{name}: verbose", 0, "True, False or ")

    def _require_number(self, option: str, least: str, most: str, fix: str) -> None:
        """The option is a finite number within bounds written as "> 0", ">= 0", "< 1", "<= 1" or ""."""
        value = getattr(self, option)
        bounds = [bound for bound in (least, most) if bound]
        compare = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
        parts = [bound.split() for bound in bounds]
        if not (math.isfinite(number) and all(compare[sign](number, float(limit)) for sign, limit in parts)):
            raise ValueError(
                f"{type(self).__name__}: {option} must be a number {' and '.join(bounds)}, got {value!r}; {fix}"
            )

    def _hidden(self) -> tuple[int, ...]:
        sizes = self.hidden_layer_sizes
        return tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
            torch.empty(0, dtype=torch.float32, device=device)
        except (RuntimeError, AssertionError, TypeError) as error:  # torch built without CUDA asserts
            raise ValueError(
                f"{type(self).__name__}: device must be 'auto' or a torch device that this machine has, got "
                f"{self.device!r}; 'cpu' always works."
            ) from error
        return device

    def _continues(self, sizes: list[int]) -> bool:
        """Whether a warm start finds layers that fit the data."""
        if not (self.warm_start and hasattr(self, "coefs_")):
            return False
        return [W.shape[0] for W in self.coefs_] + [self.coefs_[-1].shape[1]] == sizes

    def _train(
        self,
        layers: ArrayLayers,
        X: Array,
        y: Array,
        units: tuple[Units, Units],
        loss: Loss,
        score: Score,
        anneal: bool,
        random: np.random.RandomState,
        stratify: Array | None = None,
    ) -> Trained:
        """Train ``layers`` (in standardised units, as X and y are) and store them in the units of the data."""
        device = self._device()
        wide = wide_dtype(device)

        def tensors(rows: Array | slice) -> tuple[Tensor, Tensor]:
            kind = wide if np.issubdtype(y.dtype, np.floating) else torch.int64
            return (
                torch.tensor(X[rows], dtype=wide, device=device),
                torch.tensor(y[rows], dtype=kind, device=device),
            )

        held_out = None
        data = tensors(slice(None))
        if self.early_stopping:
            kept, out = train_test_split(
                np.arange(len(X)), test_size=self.validation_fraction, random_state=random, stratify=stratify
            )
            data, held_out = tensors(kept), tensors(out)
        auto = _AUTO_BATCH_NETWORK if self._hidden() else _AUTO_BATCH_LINEAR
        schedule = Schedule(
            eps=float(self.eps),
            anneal=anneal,
            learning_rate=float(self.learning_rate),
            decay=float(self.alpha),
            batch_size=auto if self.batch_size == "auto" else int(self.batch_size),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            patience=int(self.n_iter_no_change),
            verbose=int(self.verbose),
        )
        start = to_tensors(layers, data[0])
        trained = train(start, data, held_out, loss, score, schedule, random, type(self).__name__)
        self._store(fold(to_arrays(trained.layers), *units))
        self.n_iter_ = trained.epochs
        self.loss_curve_ = trained.scores
        self.best_loss_ = trained.best
        return trained

    def _store(self, layers: ArrayLayers) -> None:
        self.coefs_ = [W for W, _ in layers]
        self.intercepts_ = [b for _, b in layers]

    def _layers(self) -> ArrayLayers:
        return list(zip(self.coefs_, self.intercepts_, strict=True))

    def _unfolded(self, units: tuple[Units, Units]) -> ArrayLayers:
        return unfold(self._layers(), *units)

    def _checked(self, X: ArrayLike, y: ArrayLike, y_numeric: bool) -> tuple[Array, Any]:
        self._check_options()
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=y_numeric, ensure_min_samples=2)
        return np.asarray(X, dtype=np.float64), y

    def _outputs(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        return predict(self._layers(), validate_data(self, X, reset=False, dtype=np.float64))


def require_count(value: object, name: str, least: int, alternative: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be {alternative}an integer >= {least}, got {value!r}.")
