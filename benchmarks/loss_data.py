"""The data of ``loss_tasks``: small real data sets inside scikit-learn, split, spoiled or arranged in lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor


@dataclass
class Part:
    """Inputs, and what is known about them."""

    X: Tensor
    y: Tensor
    groups: Tensor


NO_GROUPS = torch.zeros(0, dtype=torch.int64)


@dataclass
class Data:
    train: Part
    valid: Part
    test: Part


def digits(
    wrong_labels: float = 0.0, train: int = 400, valid: int = 400, blur: float = 0.0
) -> Callable[[np.random.Generator], Data]:
    """Images with noise ``blur``, and labels, of which a share is replaced at random, but not in the test set."""

    def load(rng: np.random.Generator) -> Data:
        X, y = load_digits(return_X_y=True)
        order = rng.permutation(len(X))
        X, y = (X[order] - 8.0) / 8.0 + blur * rng.normal(size=X.shape), y[order]
        wrong = np.flatnonzero(rng.random(train + valid) < wrong_labels)
        y[wrong] = rng.integers(0, 10, len(wrong))
        return parts(X, y, train, valid)

    return load


def diabetes(outliers: float = 0.0, everywhere: bool = True) -> Callable[[np.random.Generator], Data]:
    """Ten features and a response, standardised; a share of the responses is far too large (in the test set, too)."""

    def load(rng: np.random.Generator) -> Data:
        X, y = load_diabetes(return_X_y=True)
        order = rng.permutation(len(X))
        X, y = X[order] / X.std(0), (y[order] - y.mean()) / y.std()
        bad = rng.random(len(y)) < outliers
        if not everywhere:
            bad[300:] = False
        y[bad] = 6.0 + np.abs(rng.normal(size=bad.sum()))
        return parts(X, y, 200, 100)

    return load


def parts(X: np.ndarray, y: np.ndarray, train: int, valid: int, groups: np.ndarray | None = None) -> Data:
    kind = torch.int64 if np.issubdtype(y.dtype, np.integer) else torch.float32

    def part(rows: slice) -> Part:
        named = NO_GROUPS if groups is None else torch.tensor(groups[rows])
        return Part(torch.tensor(X[rows], dtype=torch.float32), torch.tensor(y[rows], dtype=kind), named)

    return Data(part(slice(train)), part(slice(train, train + valid)), part(slice(train + valid, None)))


def digit_lists(items: int, relevance: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.random.Generator], Data]:
    """Lists of images; what is relevant follows from the digit."""

    def load(rng: np.random.Generator) -> Data:
        X, y = load_digits(return_X_y=True)
        order = rng.permutation(len(X))
        # The same image is never in two of the three parts.
        pools = np.split(order, [600, 1000])

        def part(pool: np.ndarray, count: int) -> Part:
            rows = np.stack([rng.choice(pool, items, replace=False) for _ in range(count)])
            noisy = (X[rows] - 8.0) / 8.0 + 0.5 * rng.normal(size=(count, items, 64))
            return Part(torch.tensor(noisy, dtype=torch.float32), torch.tensor(relevance(y[rows])), NO_GROUPS)

        return Data(part(pools[0], 40), part(pools[1], 40), part(pools[2], 100))

    return load


def diabetes_by_age(rng: np.random.Generator) -> Data:
    """Whether the response is above its median; the groups are the younger and the older half."""
    X, y = load_diabetes(return_X_y=True)
    order = rng.permutation(len(X))
    groups = (X[order][:, 0] > np.median(X[:, 0])).astype(int)
    return parts(X[order] / X.std(0), (y[order] > np.median(y)).astype(int), 200, 100, groups)


def sorted_lists(items: int) -> Callable[[np.random.Generator], Data]:
    """Lists of images of different digits, and the true rank of each."""

    def load(rng: np.random.Generator) -> Data:
        X, y = load_digits(return_X_y=True)
        pools = np.split(rng.permutation(len(X)), [600, 1000])

        def part(pool: np.ndarray, count: int) -> Part:
            rows = np.stack(
                [[rng.choice(pool[y[pool] == d]) for d in rng.choice(10, items, replace=False)] for _ in range(count)]
            )
            ranks = y[rows].argsort(-1).argsort(-1) + 1
            return Part(torch.tensor((X[rows] - 8.0) / 8.0, dtype=torch.float32), torch.tensor(ranks), NO_GROUPS)

        return Data(part(pools[0], 100), part(pools[1], 100), part(pools[2], 200))

    return load
