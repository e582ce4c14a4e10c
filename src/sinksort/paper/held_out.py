"""Three small trainings with data that is partly wrong, each beside the loss that is usual, judged on held-out data.

The digits and the diabetes data come inside scikit-learn. In each task both losses have the same model, first weights,
steps and step sizes to choose from, and the metric on validation data chooses the step size and the step for both. The
benchmark ``losses_vs_surrogates`` does the same for all losses, on more seeds; docs/losses.md has what came out.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..losses import least_quantile_loss, spearman, spearman_loss, topk_error, topk_loss
from .pages import Section, TableOf, bold
from .results import summarise

Array = NDArray[np.float64]
Loss = Callable[[Tensor, Tensor], Tensor]
RATES, STEPS = (0.01, 0.03), 100
_PARTS = (200, 300)  #: of the patients: up to here for training, up to there for validation


@dataclass(frozen=True)
class Part:
    """Inputs and what is known of them."""

    X: Tensor
    y: Tensor


Data = tuple[Part, Part, Part]  #: for training, for validation, held out


@dataclass(frozen=True)
class Comparison:
    """A metric of test time, and two losses to train it with: ours first."""

    title: str
    metric: str
    lower_is_better: bool
    shown: Callable[[float], str]
    load: Callable[[np.random.Generator], Data]
    outputs: int
    hard: Loss  #: (outputs, what is known) -> the metric
    losses: dict[str, Loss]


def wrong_labels(rng: np.random.Generator) -> Data:
    """400 digits each for training and validation, 40% of whose labels are drawn at random, and 997 right ones."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = rng.permutation(len(y))
    X, y = (X[order] - 8.0) / 8.0, y[order]
    wrong = np.flatnonzero(rng.random(800) < 0.4)
    y[wrong] = rng.integers(0, 10, len(wrong))
    return _parts(X, torch.tensor(y, dtype=torch.int64, device="cpu"), 400, 800)


def outliers(rng: np.random.Generator) -> Data:
    """Patients, 30% of whose responses are far too large, in all three parts."""
    X, y = _patients(rng)
    bad = rng.random(len(y)) < 0.3
    return _parts(X, _spoiled(y, bad, rng), *_PARTS)


def outliers_in_training(rng: np.random.Generator) -> Data:
    """Patients, 30% of whose responses are far too large, but not in the part that is held out."""
    X, y = _patients(rng)
    bad = rng.random(len(y)) < 0.3
    bad[_PARTS[1] :] = False
    return _parts(X, _spoiled(y, bad, rng), *_PARTS)


def _patients(rng: np.random.Generator) -> tuple[Array, Array]:
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    order = rng.permutation(len(y))
    return X[order] / X.std(0), (y[order] - y.mean()) / y.std()


def _spoiled(y: Array, bad: NDArray[np.bool_], rng: np.random.Generator) -> Tensor:
    y = y.copy()
    y[bad] = 6.0 + np.abs(rng.normal(size=int(bad.sum())))
    return torch.tensor(y, dtype=torch.float32, device="cpu")


def _parts(X: Array, y: Tensor, train: int, valid: int) -> Data:
    inputs = torch.tensor(X, dtype=torch.float32, device="cpu")
    train_part, valid_part, test_part = (
        Part(inputs[begin:end], y[begin:end]) for begin, end in ((0, train), (train, valid), (valid, len(y)))
    )
    return train_part, valid_part, test_part


def _residuals(scores: Tensor, y: Tensor) -> Tensor:
    return y - scores[:, 0]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


COMPARISONS = (
    Comparison(
        "40% of the labels are random (digits)",
        "error on right labels",
        True,
        _percent,
        wrong_labels,
        10,
        topk_error,
        {
            "topk_loss, J = log": lambda scores, y: topk_loss(scores, y, J="log"),
            "cross-entropy": nn.functional.cross_entropy,
        },
    ),
    Comparison(
        "30% of the responses are outliers (diabetes)",
        "median absolute residual",
        True,
        _two_digits,
        outliers,
        1,
        lambda scores, y: _residuals(scores, y).abs().quantile(0.5),
        {
            "least_quantile_loss": lambda scores, y: least_quantile_loss(_residuals(scores, y), 0.5),
            "absolute loss": lambda scores, y: _residuals(scores, y).abs().mean(),
        },
    ),
    Comparison(
        "30% outliers, and the order counts (diabetes)",
        "Spearman's rho",
        False,
        _two_digits,
        outliers_in_training,
        1,
        lambda scores, y: spearman(scores[:, 0], y),
        {
            "spearman_loss": lambda scores, y: spearman_loss(scores[:, 0], y),
            "squared loss": lambda scores, y: _residuals(scores, y).square().mean(),
        },
    ),
)


@dataclass(frozen=True)
class Outcome:
    """The metric on held-out data: for each loss, one number a seed."""

    comparison: Comparison
    values: dict[str, list[float]]

    @property
    def wins(self) -> int:
        """In how many seeds our loss is better."""
        ours, theirs = self.values.values()
        sign = -1.0 if self.comparison.lower_is_better else 1.0
        return sum(sign * (a - b) > 0 for a, b in zip(ours, theirs, strict=True))

    def sentence(self) -> str:
        """What came out, in words."""
        means = [(name, self.comparison.shown(statistics.fmean(runs))) for name, runs in self.values.items()]
        (ours, our_mean), (theirs, their_mean) = means
        seeds = len(self.values[ours])
        better = "lower" if self.comparison.lower_is_better else "higher"
        return (
            f"{self.comparison.title}: {self.comparison.metric} {our_mean} with {ours}, {their_mean} with {theirs} "
            f"({better} in {self.wins} of {seeds} runs)."
        )


def compare(comparison: Comparison, seeds: Sequence[int]) -> Outcome:
    """Train both losses, with other splits and other first weights for each seed."""
    values = {name: [held_out(comparison, loss, seed) for seed in seeds] for name, loss in comparison.losses.items()}
    return Outcome(comparison, values)


def held_out(comparison: Comparison, loss: Loss, seed: int) -> float:
    """The metric on held-out data of the model that a loss leads to."""
    train, valid, test = comparison.load(np.random.default_rng(seed))
    sign = 1.0 if comparison.lower_is_better else -1.0
    best, answer = float("inf"), float("nan")
    for rate, step in itertools.product(RATES, range(1, STEPS + 1)):
        if step == 1:
            torch.manual_seed(seed)
            model = nn.Linear(train.X.shape[-1], comparison.outputs)
            optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        optimizer.zero_grad()
        loss(model(train.X), train.y).backward()
        optimizer.step()
        if step % 10 == 0:
            with torch.no_grad():
                reached = sign * float(comparison.hard(model(valid.X), valid.y))
                if reached < best:
                    best, answer = reached, float(comparison.hard(model(test.X), test.y))
    return answer


def section(outcomes: Sequence[Outcome]) -> Section:
    """The outcomes as a section of the report."""
    made = Section("Where data is partly wrong: what a soft loss brings on held-out data")
    made.text.append(
        "A linear model, trained with a loss of sinksort and with the loss that is usual. Both have the same first "
        "weights, steps and step sizes, and the metric on validation data chooses among these for both. Mean ± "
        "deviation over runs with other splits. Bold: the better mean. On clean data such losses tie at best: "
        "docs/losses.md compares all of them."
    )
    rows = []
    for outcome in outcomes:
        means = [statistics.fmean(runs) for runs in outcome.values.values()]
        best = min(means) if outcome.comparison.lower_is_better else max(means)
        cells = [bold(f"{summarise(runs):3}", statistics.fmean(runs) == best) for runs in outcome.values.values()]
        ours, theirs = outcome.values
        seeds = len(outcome.values[ours])
        arrow = "down" if outcome.comparison.lower_is_better else "up"
        row = [outcome.comparison.title, f"{outcome.comparison.metric} ({arrow})"]
        rows.append([*row, ours, cells[0], theirs, cells[1], f"{outcome.wins} of {seeds}"])
    head = ["data", "held out", "loss of sinksort", "", "usual loss", "", "runs in which ours is better"]
    made.tables.append(TableOf("Held-out metrics", head, rows))
    return made
