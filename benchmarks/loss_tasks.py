"""Each loss beside the surrogates that are used in its place: data, model, objectives and the hard metric.

A task is a data set of scikit-learn with its model and metric; its objectives only differ in the number that is
minimised. They all get the same first weights, the same learning rates to choose from and the same number of steps, and
for all of them the hard metric on the validation set chooses the rate, the step that is kept and, for penalties, the
weight.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from loss_data import Data, Part, diabetes, diabetes_by_age, digit_lists, digits, sorted_lists
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn
from torch.nn import functional

from sinksort import losses, relaxations

OURS = "sinksort"
PAPER, PAPERS = ", squash = sigmoid, eps = 0.01", {"squash": "sigmoid", "eps": 1e-2}


Objective = Callable[[Tensor, Part], Tensor]  # (outputs of the model, what is known) -> number to minimise
Choice = Objective | tuple[Objective, ...]  # the validation set chooses among several
Metric = Callable[[nn.Module, Data, Part], float]  # (model, all data, where to measure)


@dataclass(frozen=True)
class Task:
    loss: str
    setting: str
    metric: str
    better: str  # "lower" or "higher"
    load: Callable[[np.random.Generator], Data]
    model: Callable[[int], nn.Module]  # from the number of features
    hard: Metric
    objectives: dict[str, Choice]  # ours have names that begin with OURS
    rates: tuple[float, ...] = (0.01, 0.03)
    steps: int = 100
    pretrain: Objective | None = None  # what every objective starts from, for half of the steps

    @property
    def name(self) -> str:
        return f"{self.loss}: {self.setting}"


def run(task: Task, choice: Choice, seed: int) -> float:
    """The hard metric on the test set of the model that the objective leads to."""
    data = task.load(np.random.default_rng(seed))
    sign = 1.0 if task.better == "lower" else -1.0
    best, answer = np.inf, np.nan
    objectives = choice if isinstance(choice, tuple) else (choice,)
    for rate, objective in itertools.product(task.rates, objectives):
        torch.manual_seed(seed)
        model = task.model(data.train.X.shape[-1])
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        for step in range(1, task.steps + 1):
            warming = task.pretrain is not None and step <= task.steps // 2
            minimised = task.pretrain if warming and task.pretrain is not None else objective
            optimizer.zero_grad()
            minimised(model(data.train.X), data.train).backward()
            optimizer.step()
            if step % 10 == 0 and not warming:
                with torch.no_grad():
                    reached = sign * task.hard(model, data, data.valid)
                    if reached < best:
                        best, answer = reached, task.hard(model, data, data.test)
    return answer


# ---- models


def linear(outputs: int) -> Callable[[int], nn.Module]:
    return lambda features: nn.Linear(features, outputs)


def network(outputs: int, hidden: int = 32) -> Callable[[int], nn.Module]:
    return lambda features: nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


# ---- surrogates


def cross_entropy(scores: Tensor, part: Part) -> Tensor:
    return functional.cross_entropy(scores, part.y)


def squares(scores: Tensor, part: Part) -> Tensor:
    return (part.y - scores[:, 0]).square().mean()


def absolute(scores: Tensor, part: Part) -> Tensor:
    return (part.y - scores[:, 0]).abs().mean()


def huber(scores: Tensor, part: Part) -> Tensor:
    return functional.huber_loss(scores[:, 0], part.y)


def listnet(scores: Tensor, part: Part) -> Tensor:
    """Cross-entropy between the softmax of the scores and the share of the relevance."""
    s, y = lists(scores, part)
    return -(y / y.sum(-1, keepdim=True).clamp(min=1.0) * s.log_softmax(-1)).sum(-1).mean()


def ranknet(scores: Tensor, part: Part) -> Tensor:
    """Logistic loss of every pair with different relevance."""
    s, y = lists(scores, part)
    above = y.unsqueeze(-1) > y.unsqueeze(-2)
    return (functional.softplus(s.unsqueeze(-2) - s.unsqueeze(-1)) * above).sum() / above.sum()


def neuralsort(scores: Tensor, part: Part) -> Tensor:
    """NeuralSort's cross-entropy: the soft permutation's row j against the item that belongs there."""
    s, ranks = lists(scores, part)
    P = relaxations.permutation(s, method="neuralsort", strength=1.0)
    return -P.gather(-2, ranks.long().unsqueeze(-2) - 1).clamp(min=1e-20).log().mean()


def nca(embedding: Tensor, part: Part) -> Tensor:
    """Neighbourhood components: the softmax over minus squared distances picks a neighbour of the right class."""
    d = torch.cdist(embedding, embedding).square() + torch.diag(torch.full((len(embedding),), 1e9))
    same = part.y.unsqueeze(-1) == part.y
    return -(torch.softmax(-d, -1) * same).sum(-1).clamp(min=1e-20).log().mean()


def with_penalty(penalty: Callable[[Tensor, Tensor], Tensor]) -> tuple[Objective, ...]:
    def weighted(weight: float) -> Objective:
        return lambda scores, part: fit(scores, part) + weight * penalty(scores[:, 0].sigmoid(), part.groups)

    return tuple(weighted(weight) for weight in (1.0, 3.0, 10.0))


def fit(scores: Tensor, part: Part) -> Tensor:
    return functional.binary_cross_entropy_with_logits(scores[:, 0], part.y.float())


def mean_gap(p: Tensor, groups: Tensor) -> Tensor:
    return (p[groups == 0].mean() - p[groups == 1].mean()).abs()


def mmd(p: Tensor, groups: Tensor) -> Tensor:
    """Squared maximum mean discrepancy with a Gaussian kernel of width 0.2."""
    a, b = p[groups == 0], p[groups == 1]

    def kernel(u: Tensor, v: Tensor) -> Tensor:
        return (-(u.unsqueeze(-1) - v).square() / 0.08).exp().mean()

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


# ---- from outputs to what losses and metrics take


def lists(scores: Tensor, part: Part) -> tuple[Tensor, Tensor]:
    """(lists, items) scores and relevance; a data set without lists is one."""
    s = scores.squeeze(-1)
    y = part.y.to(s.dtype)
    return (s, y) if s.ndim == 2 else (s.unsqueeze(0), y.unsqueeze(0))


def residuals(scores: Tensor, part: Part) -> Tensor:
    return part.y - scores[:, 0]


def on_lists(loss: Callable[..., Tensor], *fixed: object, **options: object) -> Objective:
    return lambda scores, part: loss(*lists(scores, part), *fixed, **options)


def of_outputs(metric: Callable[[Tensor, Part], Tensor | float]) -> Metric:
    return lambda model, _data, part: float(metric(model(part.X), part))


def knn_error(k: int) -> Metric:
    def metric(model: nn.Module, data: Data, part: Part) -> float:
        neighbours = KNeighborsClassifier(k).fit(model(data.train.X).numpy(), data.train.y.numpy())
        return 1.0 - float(neighbours.score(model(part.X).numpy(), part.y.numpy()))

    return metric


def strangeness(scores: Tensor) -> Tensor:
    """Nonconformity of every class: -log softmax."""
    return -scores.log_softmax(-1)


def halves(scores: Tensor, part: Part) -> tuple[Tensor, Tensor]:
    """Nonconformity of the true classes in one half, and of all classes in the other."""
    s = strangeness(scores)
    true = s.gather(-1, part.y.unsqueeze(-1)).squeeze(-1)
    return true[0::2], s[1::2]


def size_loss(scores: Tensor, part: Part) -> Tensor:
    return losses.conformal_size_loss(*halves(scores, part), alpha=0.1, temperature=0.5)


def set_size(scores: Tensor, part: Part) -> Tensor:
    calibration, s = halves(scores, part)
    return (s <= losses.conformal_quantile(calibration, 0.1)).sum(-1).float().mean()


def interval_width(scores: Tensor, part: Part) -> Tensor:
    return 2.0 * losses.conformal_quantile(residuals(scores, part).abs(), 0.1)


def parity_at_equal_accuracy(model: nn.Module, data: Data, part: Part) -> float:
    """Wasserstein distance between the groups' probabilities, where accuracy on validation data is at least 68%."""
    valid = ((model(data.valid.X)[:, 0] > 0).long() == data.valid.y).float().mean().item()
    gap = losses.quantile_parity(model(part.X)[:, 0].sigmoid(), part.groups).item()
    return gap + (10.0 if valid < 0.68 else 0.0)


def knn_objective(embedding: Tensor, part: Part) -> Tensor:
    """A step asks for the vote on 64 of the points; all others may vote."""
    asked = torch.randperm(len(embedding))[:64]
    others = ~torch.eye(len(embedding), dtype=torch.bool)[asked]
    distances = torch.cdist(embedding[asked], embedding + 1e-6)  # a distance of 0 has no gradient
    return losses.knn_loss(distances, part.y, part.y[asked], 5, mask=others)


# ---- the tasks


def top_k(setting: str, k: int, noise: float, train: int) -> Task:
    return Task(
        "topk_loss",
        setting,
        "top-1 error" if k == 1 else f"top-{k} error",
        "lower",
        digits(noise, train),
        linear(10),
        of_outputs(lambda s, part: losses.topk_error(s, part.y, k)),
        {
            OURS + ", J = relu": lambda s, part: losses.topk_loss(s, part.y, k, J="relu"),
            OURS + ", J = log": lambda s, part: losses.topk_loss(s, part.y, k, J="log"),
            OURS + ", J = log, squash = None, eps = 1": lambda s, part: losses.topk_loss(
                s, part.y, k, J="log", squash=None, eps=1.0
            ),
            "cross-entropy": cross_entropy,
        },
    )


def retrieval(
    loss: str,
    metric: str,
    hard: Callable[..., Tensor],
    soft: Callable[..., Tensor],
    *fixed: object,
    graded: bool = False,
) -> Task:
    """Find the eights; or, graded, rank images by their digit."""
    relevance = (lambda y: y // 2) if graded else (lambda y: (y == 8).astype(int))
    return Task(
        loss,
        "digits, lists of 20 noisy images, " + ("grade digit // 2" if graded else "relevant: the eights"),
        metric,
        "higher",
        digit_lists(20, relevance),
        linear(1),
        of_outputs(on_lists(hard, *fixed)),
        {OURS + PAPER: on_lists(soft, *fixed, **PAPERS), "ListNet": listnet, "pairwise logistic": ranknet},
    )


CONTAMINATED = "diabetes, 30% outliers"
TASKS = [
    top_k("digits, 400 images", 1, 0.0, 400),
    top_k("digits, 400 images, 40% random labels", 1, 0.4, 400),
    top_k("digits, 200 images, k = 2", 2, 0.0, 200),
    top_k("digits, 200 images, 40% random labels, k = 2", 2, 0.4, 200),
    Task(
        "least_quantile_loss",
        CONTAMINATED + ", q = 0.5",
        "median absolute residual",
        "lower",
        diabetes(0.3),
        linear(1),
        of_outputs(lambda s, part: residuals(s, part).abs().quantile(0.5)),
        {
            OURS: lambda s, part: losses.least_quantile_loss(residuals(s, part), 0.5),
            "squares": squares,
            "absolute": absolute,
            "Huber": huber,
        },
    ),
    Task(
        "least_quantile_loss",
        "diabetes, q = 0.9",
        "0.9 quantile of absolute residuals",
        "lower",
        diabetes(),
        linear(1),
        of_outputs(lambda s, part: residuals(s, part).abs().quantile(0.9)),
        {OURS: lambda s, part: losses.least_quantile_loss(residuals(s, part), 0.9), "squares": squares, "Huber": huber},
    ),
    Task(
        "trimmed_loss",
        CONTAMINATED + ", high = 0.65",
        "mean of the smallest 65% of the squared residuals",
        "lower",
        diabetes(0.3),
        linear(1),
        of_outputs(lambda s, part: np.sort(residuals(s, part).square())[: int(0.65 * len(part.y))].mean()),
        {
            OURS: lambda s, part: losses.trimmed_loss(residuals(s, part).square(), 0.0, 0.65),
            "squares": squares,
            "absolute": absolute,
            "Huber": huber,
        },
    ),
    Task(
        "median_of_means",
        "diabetes, 3% outliers in training and validation; 15 blocks",
        "mean squared residual",
        "lower",
        diabetes(0.03, everywhere=False),
        linear(1),
        of_outputs(lambda s, part: residuals(s, part).square().mean()),
        {
            OURS: lambda s, part: losses.median_of_means(residuals(s, part).square(), 15),
            "squares": squares,
            "absolute": absolute,
            "Huber": huber,
        },
    ),
    Task(
        "spearman_loss",
        "diabetes",
        "Spearman's rho",
        "higher",
        diabetes(),
        network(1),
        of_outputs(on_lists(losses.spearman)),
        {OURS: on_lists(losses.spearman_loss), "squares": squares, "pairwise logistic": ranknet},
    ),
    Task(
        "spearman_loss",
        CONTAMINATED + " in training",
        "Spearman's rho",
        "higher",
        diabetes(0.3, everywhere=False),
        network(1),
        of_outputs(on_lists(losses.spearman)),
        {OURS: on_lists(losses.spearman_loss), "squares": squares, "pairwise logistic": ranknet},
    ),
    Task(
        "kendall_loss",
        "diabetes, margin = 10",
        "Kendall's tau",
        "higher",
        diabetes(),
        network(1),
        of_outputs(on_lists(losses.kendall)),
        {OURS: on_lists(losses.kendall_loss, margin=10.0), "squares": squares, "pairwise logistic": ranknet},
    ),
    retrieval("ndcg_loss", "NDCG@5", losses.ndcg, losses.ndcg_loss, 5, graded=True),
    retrieval(
        "average_precision_loss", "mean average precision", losses.average_precision, losses.average_precision_loss
    ),
    retrieval("reciprocal_rank_loss", "mean reciprocal rank", losses.reciprocal_rank, losses.reciprocal_rank_loss),
    retrieval("recall_at_k_loss", "recall at 2", losses.recall_at_k, losses.recall_at_k_loss, 2),
    Task(
        "permutation_cross_entropy",
        "digits, lists of 6 different digits",
        "share of items at their rank",
        "higher",
        sorted_lists(6),
        network(1),
        of_outputs(on_lists(losses.permutation_accuracy)),
        {
            OURS + ", objective = nll" + PAPER: on_lists(losses.permutation_cross_entropy, objective="nll", **PAPERS),
            "NeuralSort": neuralsort,
            "pairwise logistic": ranknet,
        },
    ),
    Task(
        "quantile_parity_loss",
        "diabetes above its median, by age, accuracy >= 68% in validation",
        "Wasserstein distance of the groups' probabilities",
        "lower",
        diabetes_by_age,
        linear(1),
        parity_at_equal_accuracy,
        {
            OURS: with_penalty(losses.quantile_parity_loss),
            "no penalty": fit,
            "MMD": with_penalty(mmd),
            "gap of the means": with_penalty(mean_gap),
        },
    ),
    Task(
        "knn_loss",
        "digits, 300 images, projected to 3 dimensions",
        "5-nearest-neighbour error",
        "lower",
        digits(train=300),
        linear(3),
        knn_error(5),
        {OURS: knn_objective, "NCA": nca},
    ),
    Task(
        "conformal_size_loss",
        "digits, 400 blurred images; begins with 50 steps of cross-entropy; temperature = 0.5",
        "mean size of 90% sets",
        "lower",
        digits(blur=0.8),
        linear(10),
        of_outputs(set_size),
        {OURS: size_loss, "cross-entropy": cross_entropy},
        pretrain=cross_entropy,
    ),
    Task(
        "soft_conformal_quantile",
        "diabetes",
        "width of 90% intervals",
        "lower",
        diabetes(),
        linear(1),
        of_outputs(interval_width),
        {
            OURS: lambda s, part: losses.soft_conformal_quantile(residuals(s, part).abs(), 0.1),
            "squares": squares,
            "absolute": absolute,
        },
    ),
]
