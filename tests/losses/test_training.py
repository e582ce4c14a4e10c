"""A few gradient steps on each loss improve the metric that it stands for, as others compute it, on real data.

How far it gets in comparison with the usual surrogates is measured in benchmarks/losses_vs_surrogates.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from sinksort import losses
from sklearn import metrics as skm

RNG = np.random.default_rng(0)
IMAGES, DIGITS = (t[:120] for t in load_digits(return_X_y=True))
IMAGES, LABELS = torch.tensor((IMAGES - 8.0) / 8.0), torch.tensor(DIGITS)
PEOPLE, PROGRESS = (t[:150] for t in load_diabetes(return_X_y=True))
PEOPLE, PROGRESS = torch.tensor(PEOPLE / PEOPLE.std(0)), torch.tensor((PROGRESS - PROGRESS.mean()) / PROGRESS.std())
SPOILED = torch.where(torch.tensor(RNG.random(150) < 0.3), 6.0, PROGRESS)
OLDER = (PEOPLE[:, 0] > PEOPLE[:, 0].median()).long()
LISTS = torch.tensor(RNG.integers(0, 120, (15, 8)))
LISTS[:, 0] = int(np.argmax(DIGITS >= 5))  # something to be found in every list
RANKS = torch.tensor(stats.rankdata(LABELS[LISTS], axis=-1))
FIVE_UP = LABELS[LISTS] >= 5


@dataclass(frozen=True)
class Training:
    inputs: Tensor
    outputs: int
    loss: Callable[[Tensor], Tensor]
    metric: Callable[[Tensor], float]  # lower is better
    at_most: float  # of the metric before training


def residuals(y: Tensor, out: Tensor) -> Tensor:
    return y - out[..., 0]


def mean_over_lists(metric: Callable[[np.ndarray, np.ndarray], float], out: Tensor) -> float:
    return float(np.mean([metric(t, s) for t, s in zip(FIVE_UP.numpy(), out[..., 0].numpy(), strict=True)]))


def conformal_sets(out: Tensor) -> float:
    strange = -out.log_softmax(-1).numpy()
    level = np.sort(strange[np.arange(0, 120, 2), DIGITS[::2]])[int(np.ceil(61 * 0.9)) - 1]
    return float((strange[1::2] <= level).sum(-1).mean())


def conformal_loss(out: Tensor) -> Tensor:
    strange = -out.log_softmax(-1)
    return losses.conformal_size_loss(strange[::2].gather(-1, LABELS[::2, None])[:, 0], strange[1::2], temperature=0.5)


def knn_error(out: Tensor) -> float:
    return 1.0 - cross_val_score(KNeighborsClassifier(3), out.numpy(), DIGITS, cv=LeaveOneOut()).mean()


def knn_loss(out: Tensor) -> Tensor:
    own = torch.eye(120, dtype=torch.bool)
    return losses.knn_loss(torch.cdist(out, out + 1e-9), LABELS, LABELS, 3, mask=~own)


def precision_at_3(t: np.ndarray, s: np.ndarray) -> float:
    return float(t[np.argsort(-s)[:3]].sum() / max(t.sum(), 1))


def reciprocal(t: np.ndarray, s: np.ndarray) -> float:
    return float((t[np.argsort(-s)] / np.arange(1, 9)).max())


FIND = IMAGES[LISTS]
TRAININGS = {
    "topk": Training(
        IMAGES,
        10,
        lambda out: losses.topk_loss(out, LABELS, 2),
        lambda out: 1 - skm.top_k_accuracy_score(DIGITS, out.numpy(), k=2),
        0.3,
    ),
    "least quantile": Training(
        PEOPLE,
        1,
        lambda out: losses.least_quantile_loss(residuals(SPOILED, out)),
        lambda out: float(np.median(residuals(SPOILED, out).abs())),
        0.95,
    ),
    "trimmed": Training(
        PEOPLE,
        1,
        lambda out: losses.trimmed_loss(residuals(SPOILED, out).square(), 0.0, 0.6),
        lambda out: float(np.sort(residuals(SPOILED, out).square())[:90].mean()),
        0.9,
    ),
    "median of means": Training(
        PEOPLE,
        1,
        lambda out: losses.median_of_means(residuals(PROGRESS, out).square(), 9),
        lambda out: skm.mean_squared_error(PROGRESS, out[:, 0]),
        0.9,
    ),
    "spearman": Training(
        PEOPLE,
        1,
        lambda out: losses.spearman_loss(out[:, 0], PROGRESS),
        lambda out: 1 - stats.spearmanr(out[:, 0], PROGRESS).statistic,
        0.7,
    ),
    "kendall": Training(
        PEOPLE,
        1,
        lambda out: losses.kendall_loss(out[:, 0], PROGRESS, margin=5.0),
        lambda out: 1 - stats.kendalltau(out[:, 0], PROGRESS).statistic,
        0.7,
    ),
    "ndcg": Training(
        FIND,
        1,
        lambda out: losses.ndcg_loss(out[..., 0], LABELS[LISTS], 3),
        lambda out: 1 - skm.ndcg_score(LABELS[LISTS], out[..., 0], k=3),
        0.3,
    ),
    "average precision": Training(
        FIND,
        1,
        lambda out: losses.average_precision_loss(out[..., 0], FIVE_UP),
        lambda out: 1 - mean_over_lists(skm.average_precision_score, out),
        0.3,
    ),
    "reciprocal rank": Training(
        FIND,
        1,
        lambda out: losses.reciprocal_rank_loss(out[..., 0], FIVE_UP),
        lambda out: 1 - mean_over_lists(reciprocal, out),
        0.3,
    ),
    "recall at 3": Training(
        FIND,
        1,
        lambda out: losses.recall_at_k_loss(out[..., 0], FIVE_UP, 3),
        lambda out: 1 - mean_over_lists(precision_at_3, out),
        0.7,
    ),
    "permutation": Training(
        FIND,
        1,
        lambda out: losses.permutation_cross_entropy(out[..., 0], RANKS),
        lambda out: float(np.mean(np.abs(stats.rankdata(out[..., 0], axis=-1) - RANKS.numpy()))),
        0.6,
    ),
    "parity": Training(
        PEOPLE,
        1,
        lambda out: losses.quantile_parity_loss(out[:, 0], OLDER),
        lambda out: stats.wasserstein_distance(out[OLDER == 0, 0], out[OLDER == 1, 0]) / float(out.std()),
        0.5,
    ),
    "knn": Training(IMAGES, 3, knn_loss, knn_error, 0.6),
    "conformal size": Training(IMAGES, 10, conformal_loss, conformal_sets, 0.6),
    "conformal width": Training(
        PEOPLE,
        1,
        lambda out: losses.soft_conformal_quantile(residuals(PROGRESS, out).abs(), 0.1),
        lambda out: float(np.quantile(residuals(PROGRESS, out).abs(), 0.9, method="inverted_cdf")),
        0.9,
    ),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_gradient_steps_improve_the_metric(name):
    task = TRAININGS[name]
    torch.manual_seed(0)
    model = torch.nn.Linear(task.inputs.shape[-1], task.outputs, dtype=torch.float64)
    with torch.no_grad():
        before = task.metric(model(task.inputs))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        task.loss(model(task.inputs)).backward()
        optimizer.step()
    with torch.no_grad():
        after = task.metric(model(task.inputs))
    assert after < task.at_most * before, (before, after)
