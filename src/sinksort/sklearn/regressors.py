"""Regression that most of the data agrees on: least quantile and least trimmed squares."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from torch import Tensor

from ..operators import soft_quantile, soft_topk_mask
from ..operators.fillers import Interpolation, require_interpolation
from .base import BatchSize, SoftEstimator, require_count
from .layers import Array, ArrayLayers, Units, predict, random_layers
from .robust import order_statistic, robust_linear_fit, robust_units, shortest_interval_centre, trimmed_mean_of_squares


class _RobustRegressor(RegressorMixin, SoftEstimator):  # type: ignore[misc]  # scikit-learn has no types
    n_starts: int

    def _share(self) -> float:
        """The share of the data to be fitted."""
        raise NotImplementedError

    def _loss(self, outputs: Tensor, targets: Tensor, eps: float) -> Tensor:
        raise NotImplementedError

    def _criterion(self, residuals: Array) -> float:
        """The hard objective."""
        raise NotImplementedError

    def _score(self, outputs: Tensor, targets: Tensor) -> float:
        return self._criterion((targets - outputs[:, 0]).cpu().double().numpy())

    def _check_options(self) -> None:
        super()._check_options()
        require_count(self.n_starts, f"{type(self).__name__}: n_starts", 0)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Any:
        """Fit to X (n_samples, n_features) and y (n_samples,)."""
        features, response = self._checked(X, y, y_numeric=True)
        response = np.asarray(response, dtype=np.float64)
        random = check_random_state(self.random_state)
        units = robust_units(features), Units(*(np.reshape(v, 1) for v in robust_units(response)))
        X_std, y_std = units[0].standardize(features), units[1].standardize(response)
        sizes = [features.shape[1], *self._hidden(), 1]
        goes_on = self._continues(sizes)
        layers = self._unfolded(units) if goes_on else self._start(X_std, y_std, sizes, random)
        anneal = bool(self._hidden()) and not goes_on
        self._train(layers, X_std, y_std, units, self._loss, self._score, anneal, random)
        self._finish(features, response)
        if len(self.coefs_) == 1:
            self.coef_ = self.coefs_[0][:, 0]
            self.intercept_ = float(self.intercepts_[0][0])
        return self

    def _start(self, X: Array, y: Array, sizes: list[int], random: np.random.RandomState) -> ArrayLayers:
        if len(sizes) > 2:
            return random_layers(sizes, random)
        beta, intercept = robust_linear_fit(X, y, self._share(), self._criterion, self.n_starts, random)
        return [(beta[:, None], np.array([intercept]))]

    def _finish(self, X: Array, y: Array) -> None:
        """What can still be improved in closed form."""

    def predict(self, X: ArrayLike) -> Array:
        """Predictions (n_samples,)."""
        return self._outputs(X)[:, 0]


class LeastQuantileRegressor(_RobustRegressor):
    """Regression that minimises the tau quantile of the absolute residuals (Rousseeuw 1984; the paper's section 4).

    ``tau`` is the share of the data that should be fitted well, not a quantile of y given X: with 0.5 (least median)
    nearly half of the data may be arbitrary. A flexible model can also give up good data: take tau near the share of
    good data there, and a ``width`` of 0.1 to 0.3.

    Residuals r go through the increasing map r / (r + s), s their hard quantile, and the soft quantile of that is
    minimised: quantiles commute with increasing maps, and no residual, however large, has more than bounded influence.
    A linear model starts from a robust fit (concentration steps), a network from random weights with a larger eps that
    shrinks. The epoch with the least hard quantile is kept.

    Args:
        tau: level of the quantile, in (0, 1].
        hidden_layer_sizes: units of the hidden layers; () for a linear model.
        eps: entropy of the soft quantile.
        width: share of the residuals that the quantile averages over; None for one residual of a batch.
        interpolation: which sample quantile the soft one tends to for small eps, as in ``sinksort.soft_quantile``.
        n_starts: random starts of the robust linear fit.
        learning_rate: of Adam, for standardised data; it is cut when nothing improves.
        alpha: L2 penalty on all weights, for standardised data.
        batch_size: ``"auto"`` is everything up to 8192 rows for a linear model, and 512 for a network.
        max_iter: largest number of passes over the data.
        tol: relative improvement of the loss that counts as one.
        n_iter_no_change: passes without improvement before the learning rate is cut; fitting ends after three cuts.
        early_stopping: judge by a held-out ``validation_fraction`` of the data instead of all of it.
        validation_fraction: how much to hold out.
        warm_start: a further ``fit`` goes on from where the last one ended.
        device: ``"auto"`` for a GPU when there is one, or a torch device.
        random_state: seed or RandomState; the same seed gives the same fit.
        verbose: print the progress every so many epochs; 0 or False for silence.

    Attributes:
        coef_, intercept_: of a linear model.
        coefs_, intercepts_: weights and biases of all layers.
        n_iter_, loss_curve_, best_loss_: epochs run; the hard quantile (of standardised y) after each; the least.

    >>> import numpy as np
    >>> from sinksort.sklearn import LeastQuantileRegressor
    >>> x = np.arange(20.0)
    >>> y = 3 * x + 1
    >>> y[:8] = 500  # 40 % of the data is wrong
    >>> model = LeastQuantileRegressor(random_state=0).fit(x[:, None], y)
    >>> bool(np.allclose(model.predict([[100.0]]), 301))
    True
    """

    def __init__(
        self,
        tau: float = 0.5,
        *,
        hidden_layer_sizes: int | tuple[int, ...] = (),
        eps: float = 1e-2,
        width: float | None = None,
        interpolation: Interpolation = "hazen",
        n_starts: int = 20,
        learning_rate: float = 1e-2,
        alpha: float = 0.0,
        batch_size: BatchSize = "auto",
        max_iter: int = 500,
        tol: float = 1e-4,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: int | bool = False,
    ) -> None:
        self.tau = tau
        self.hidden_layer_sizes = hidden_layer_sizes
        self.eps = eps
        self.width = width
        self.interpolation = interpolation
        self.n_starts = n_starts
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
        self._require_number(
            "tau", "> 0", "<= 1", "it is the share of the data to be fitted, 0.5 for the least median of the residuals."
        )
        if self.width is not None:
            self._require_number("width", "> 0", "<= 1", "None for one residual of a batch.")
        require_interpolation(self.interpolation, None)

    def _share(self) -> float:
        return self.tau

    def _criterion(self, residuals: Array) -> float:
        return order_statistic(np.abs(residuals), self.tau)

    def _loss(self, outputs: Tensor, targets: Tensor, eps: float) -> Tensor:
        bounded = bounded_residuals((targets - outputs[:, 0]).abs(), self.tau)
        return soft_quantile(
            bounded, self.tau, width=self.width, interpolation=self.interpolation, eps=eps, squash=None
        )

    def _finish(self, X: Array, y: Array) -> None:
        shift = shortest_interval_centre(y - predict(self._layers(), X)[:, 0], self.tau)
        self.intercepts_[-1] = self.intercepts_[-1] + shift


class LeastTrimmedRegressor(_RobustRegressor):
    """Regression on the least squares of all but the largest residuals (Rousseeuw 1984, Huber).

    The share ``trim`` of the data with the largest residuals is left out, softly: each squared residual counts by its
    membership in the smallest (1 - trim) n (``soft_topk_mask``), and fit and membership are learned together. A linear
    model starts from a robust fit (concentration steps), a network from random weights with a larger eps that shrinks.

    Args:
        trim: share of the data to leave out, in [0, 1): somewhat more than the share of outliers, at most one half.
        hidden_layer_sizes: units of the hidden layers; () for a linear model.
        eps: entropy of the membership; towards 0 a point is either in or out.
        n_starts: random starts of the robust linear fit.
        learning_rate, alpha, batch_size, max_iter, tol, n_iter_no_change, early_stopping, validation_fraction,
            warm_start, device, random_state, verbose: as for ``LeastQuantileRegressor``.

    Attributes:
        coef_, intercept_: of a linear model.
        coefs_, intercepts_: weights and biases of all layers.
        n_iter_, loss_curve_, best_loss_: epochs run; the soft trimmed loss (of standardised y) after each; the least.

    >>> import numpy as np
    >>> from sinksort.sklearn import LeastTrimmedRegressor
    >>> x = np.arange(20.0)
    >>> y = 3 * x + 1
    >>> y[:6] = 500
    >>> model = LeastTrimmedRegressor(trim=0.4, random_state=0).fit(x[:, None], y)
    >>> bool(np.allclose(model.predict([[100.0]]), 301))
    True
    """

    def __init__(
        self,
        trim: float = 0.4,
        *,
        hidden_layer_sizes: int | tuple[int, ...] = (),
        eps: float = 1e-2,
        n_starts: int = 20,
        learning_rate: float = 1e-2,
        alpha: float = 0.0,
        batch_size: BatchSize = "auto",
        max_iter: int = 500,
        tol: float = 1e-4,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: int | bool = False,
    ) -> None:
        self.trim = trim
        self.hidden_layer_sizes = hidden_layer_sizes
        self.eps = eps
        self.n_starts = n_starts
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
        self._require_number("trim", ">= 0", "< 1", "it is the share of the data to leave out.")

    def _share(self) -> float:
        return 1.0 - self.trim

    def _criterion(self, residuals: Array) -> float:
        return trimmed_mean_of_squares(residuals, self._share())

    def _score(self, outputs: Tensor, targets: Tensor) -> float:
        """The soft objective at the final eps, in the unit of the standardised response."""
        return float(self._trimmed((targets - outputs[:, 0]).abs(), float(self.eps)))

    def _loss(self, outputs: Tensor, targets: Tensor, eps: float) -> Tensor:
        return self._trimmed((targets - outputs[:, 0]).abs(), eps)

    def _trimmed(self, residuals: Tensor, eps: float) -> Tensor:
        share = self._share()
        bounded = bounded_residuals(residuals, share)
        wanted = share * len(residuals)
        member = soft_topk_mask(bounded, wanted, largest=False, eps=eps, squash=None)
        return (member * residuals.square()).sum() / wanted


def bounded_residuals(r: Tensor, share: float) -> Tensor:
    """r / (r + s) in [0, 1), increasing in r, with s the hard ``share`` quantile of r, a constant: there it is 1/2."""
    k = min(max(int(np.ceil(share * len(r) - 1e-9)), 1), len(r))
    s = r.detach().kthvalue(k).values.clamp(min=torch.finfo(r.dtype).tiny ** 0.5)
    return r / (r + s)
