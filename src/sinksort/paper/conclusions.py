"""What came out of the paper's trainings in small: a sentence for each, with its numbers on held-out data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from .curves import NAMES
from .results import Unit, groups
from .sorting_section import best


def regression(units: Sequence[Unit]) -> str:
    """The quantile of the errors, on the data of the training and on the rest."""
    told = []
    for case, runs in groups(units, lambda unit: unit["case"]).items():
        by_method = groups(runs, lambda unit: unit["method"])
        train, test = (
            [fmean(unit["curve"][-1][name] for unit in by_method[method]) for method in ("soft", "hard")]
            for name in ("train", "test")
        )
        told.append(
            f"the {float(case.rpartition('-')[2]):.0%} quantile of the errors is {test[0]:.2f} with the soft loss and "
            f"{test[1]:.2f} with the hard one on held-out data ({train[0]:.2f} and {train[1]:.2f} on training data)"
        )
    return _sentence(told)


def sorting(units: Sequence[Unit]) -> str:
    """The share of lists in the right order."""
    by_method = groups(units, lambda unit: unit["method"])
    shares = {name: fmean(best(unit, "test_exact") for unit in runs) for name, runs in by_method.items()}
    return _sentence([f"test lists in the right order: {_ordered(shares)}"])


def classification(units: Sequence[Unit]) -> str:
    """The accuracy at the end."""
    by_method = groups(units, lambda unit: unit["method"])
    accuracies = {name: fmean(unit["curve"][-1]["top1"] for unit in runs) for name, runs in by_method.items()}
    return _sentence([f"test accuracy: {_ordered(accuracies)}"])


def _ordered(shares: dict[str, float]) -> str:
    best_first = sorted(shares.items(), key=lambda item: -item[1])
    return "; ".join(f"{100 * share:.1f}% with {NAMES[name]}" for name, share in best_first)


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


SENTENCES: dict[str, Callable[[Sequence[Unit]], str]] = {
    "quantile-regression": regression,
    "mnist-sort": sorting,
    "cifar10": classification,
}
