"""The training loop of all estimators: Adam on a soft objective whose eps shrinks, keeping the best epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from .layers import TensorLayers, forward

#: (outputs, targets, eps) -> a number to minimise by gradients.
Loss = Callable[[Tensor, Tensor, float], Tensor]
#: (outputs, targets) -> the number that decides which weights are kept.
Score = Callable[[Tensor, Tensor], float]

_FIRST_EPS = 10.0  # in units of the final eps: rough outlines first
_EPS_DECAY = 0.9  # per epoch
_STEP_CUT = 0.2  # of the learning rate when nothing improves
_CUTS = 3
_SMALL = 1e-2  # a loss below this, in standardised units, need not improve by its own measure


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast."""

    eps: float
    anneal: bool  #: begin with a larger eps; not when the start is already good
    learning_rate: float
    decay: float  #: weight decay (L2)
    batch_size: int
    max_iter: int
    tol: float
    patience: int
    verbose: int


@dataclass(frozen=True)
class Trained:
    layers: TensorLayers
    epochs: int
    scores: list[float]
    best: float


def train(
    layers: TensorLayers,
    data: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor] | None,
    loss: Loss,
    score: Score,
    schedule: Schedule,
    random: np.random.RandomState,
    name: str,
) -> Trained:
    """Minimise ``loss`` over mini-batches of ``data``; keep the epoch with the least ``score`` on ``held_out`` (or
    data).

    When the score has not improved by ``tol`` for ``patience`` epochs, training returns to the best weights with a
    smaller learning rate, and after three such cuts it ends.
    """
    X, y = data
    judged = held_out or data
    n = len(X)
    batch = min(schedule.batch_size, n)
    weights = [t.clone().requires_grad_() for layer in layers for t in layer]
    current = list(zip(weights[::2], weights[1::2], strict=True))
    rate = schedule.learning_rate
    optimizer = torch.optim.Adam(weights, lr=rate, weight_decay=schedule.decay)
    eps = schedule.eps * (_FIRST_EPS if schedule.anneal else 1.0)

    def judge() -> float:
        with torch.no_grad():
            return score(forward(current, judged[0]), judged[1])

    best = judge()
    best_weights = [t.detach().clone() for t in weights]
    scores, idle, cuts, epoch = [], 0, 0, 0
    for epoch in range(1, schedule.max_iter + 1):
        order = (
            torch.as_tensor(random.permutation(n), device=X.device, dtype=torch.int64)
            if batch < n
            else torch.arange(n, device=X.device, dtype=torch.int64)
        )
        for rows in order.split(batch):
            if len(rows) < max(2, batch // 2) and batch < n:
                continue  # a short last batch has other quantiles than a full one
            optimizer.zero_grad()
            objective: Tensor = loss(forward(current, X[rows]), y[rows], eps)
            objective.backward()
            optimizer.step()
        scores.append(judge())
        annealing = eps > schedule.eps * (1 + 1e-9)
        eps = max(schedule.eps, eps * _EPS_DECAY)
        idle = 0 if scores[-1] < best - schedule.tol * max(abs(best), _SMALL) else idle + 1
        if scores[-1] < best:
            best, best_weights = scores[-1], [t.detach().clone() for t in weights]
        if schedule.verbose and epoch % schedule.verbose == 0:
            print(
                f"{name}: epoch {epoch} of {schedule.max_iter}, loss {scores[-1]:.6g}, best {best:.6g}, eps {eps:.3g}"
            )
        if annealing or idle < schedule.patience:
            continue
        if cuts == _CUTS:
            break
        cuts, idle, rate = cuts + 1, 0, rate * _STEP_CUT
        with torch.no_grad():
            for t, kept in zip(weights, best_weights, strict=True):
                t.copy_(kept)
        optimizer = torch.optim.Adam(weights, lr=rate, weight_decay=schedule.decay)
    else:
        warnings.warn(
            f"{name} stopped after max_iter={schedule.max_iter} epochs while still improving; raise max_iter or tol.",
            ConvergenceWarning,
            stacklevel=3,
        )
    kept_layers = list(zip(best_weights[::2], best_weights[1::2], strict=True))
    return Trained(kept_layers, epoch, scores, best)
