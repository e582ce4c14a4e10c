"""Classification that minimises the top-k error through the soft rank of the true label."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..operators import soft_rank
from .base import BatchSize, SoftEstimator, require_count
from .layers import Array, ArrayLayers, Units, random_layers
from .robust import robust_units

_SCALES = (0.1, 0.3, 1.0, 3.0)


class SoftTopKClassifier(ClassifierMixin, SoftEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Linear or network classifier on the paper's 0/1 and top-k loss, J_k(L - R[l]) with J_k(u) = max(0, u - k + 1).

    R are the soft ranks of the L scores, so the loss is how many places the true label l stands behind the k-th. It is
    bounded, where cross-entropy grows without limit with every mislabelled point: a far group of wrong labels is given
    up. Where labels are clean, or wrong at random everywhere, logistic regression is as good or better, and faster.
    Scores are squashed by the logistic function without standardising them first, so that two classes can be told apart
    and a confident score saturates. A linear model starts from the nearest class median, a network from random weights
    with a larger eps that shrinks.

    Args:
        k: how many of the best labels may contain the true one.
        hidden_layer_sizes: units of the hidden layers; () for a linear model.
        eps: entropy of the soft ranks.
        learning_rate, alpha, batch_size, max_iter, tol, n_iter_no_change, early_stopping, validation_fraction,
            warm_start, device, random_state, verbose: as for ``LeastQuantileRegressor``; here ``alpha`` also limits how
            confident scores become.

    Attributes:
        classes_: the labels.
        coefs_, intercepts_: weights and biases of all layers.
        n_iter_, loss_curve_, best_loss_: epochs run; the soft loss after each; the least of them.

    >>> from sklearn.datasets import load_iris
    >>> from sinksort.sklearn import SoftTopKClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = SoftTopKClassifier(learning_rate=0.2, tol=1e-2, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.95
    True
    >>> model.predict_top_k(X[:2], 2)
    array([[0, 1],
           [0, 1]])
    """

    def __init__(
        self,
        k: int = 1,
        *,
        hidden_layer_sizes: int | tuple[int, ...] = (),
        eps: float = 1e-2,
        learning_rate: float = 0.1,
        alpha: float = 1e-4,
        batch_size: BatchSize = "auto",
        max_iter: int = 500,
        tol: float = 1e-3,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: int | bool = False,
    ) -> None:
        self.k = k
        self.hidden_layer_sizes = hidden_layer_sizes
        self.eps = eps
        self.learning_rate = learning_rate
        self.alpha = alpha
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_options(self) -> None:
        super()._check_options()
        require_count(self.k, f"{type(self).__name__}: k", 1)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Any:
        """Fit to X (n_samples, n_features) and labels y (n_samples,)."""
        features, y = self._checked(X, y, y_numeric=False)
        check_classification_targets(y)
        encoder = LabelEncoder().fit(y)
        known = getattr(self, "classes_", np.empty(0))
        self.classes_ = encoder.classes_
        n_classes = len(self.classes_)
        if n_classes < 2:
            raise ValueError(
                f"SoftTopKClassifier needs at least two classes in y, got one class: {self.classes_[0]!r}."
            )
        if self.k >= n_classes:
            raise ValueError(
                f"SoftTopKClassifier: k must be below the number of classes, {n_classes}, got {self.k}; "
                f"the {self.k} best of {n_classes} labels always contain the true one."
            )
        random = check_random_state(self.random_state)
        units = robust_units(features), Units(np.zeros(1), np.ones(1))
        sizes = [features.shape[1], *self._hidden(), n_classes]
        same = self._continues(sizes) and np.array_equal(known, self.classes_)
        labels = encoder.transform(y)
        X_std = units[0].standardize(features)
        if same:
            layers = self._unfolded(units)
        else:
            layers = random_layers(sizes, random) if self._hidden() else self._nearest_median(X_std, labels)
        # Every class in both parts, where there are enough of each.
        held_out = int(np.ceil(float(self.validation_fraction) * len(labels)))
        enough = np.bincount(labels).min() >= 2 and n_classes <= min(held_out, len(labels) - held_out)
        self._train(
            layers,
            X_std,
            labels,
            units,
            self._loss,
            lambda outputs, targets: float(self._loss(outputs, targets, float(self.eps))),
            bool(self._hidden()) and not same,
            random,
            stratify=labels if enough else None,
        )
        return self

    def _nearest_median(self, X: Array, labels: Array) -> ArrayLayers:
        """Scores x.m - |m|^2 / 2 of the nearest class median m, which outliers do not move; the best scale of a few."""
        medians = np.stack([np.median(X[labels == c], axis=0) for c in range(len(self.classes_))])
        scores = X @ medians.T - 0.5 * np.square(medians).sum(-1)
        targets = torch.tensor(labels, dtype=torch.int64, device="cpu")
        values = torch.tensor(scores, dtype=torch.float64, device="cpu")
        scale = min(_SCALES, key=lambda t: float(self._loss(t * values, targets, float(self.eps))))
        return [(scale * medians.T, -0.5 * scale * np.square(medians).sum(-1))]

    def _loss(self, outputs: Tensor, targets: Tensor, eps: float) -> Tensor:
        centred = outputs - outputs.mean(-1, keepdim=True)
        ranks = soft_rank(centred, eps=eps, squash=torch.sigmoid)
        behind = outputs.shape[-1] - ranks.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return (behind - self.k + 1).clamp(min=0.0).mean()

    def decision_function(self, X: ArrayLike) -> Array:
        """Scores (n_samples, n_classes); for two classes (n_samples,), positive for the second."""
        scores = self._outputs(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: ArrayLike) -> Any:
        """The label with the highest score for each row."""
        check_is_fitted(self)
        return self.classes_[self._outputs(X).argmax(-1)]

    def predict_top_k(self, X: ArrayLike, k: int | None = None) -> Any:
        """The k labels with the highest scores for each row, best first; k is that of the training unless given."""
        check_is_fitted(self)
        k = self.k if k is None else k
        require_count(k, "k", 1)
        return self.classes_[np.argsort(-self._outputs(X), axis=-1, kind="stable")[:, :k]]
