"""Lists of two-digit numbers, each written with two images of digits, to be sorted: diffsort's task, with small images.

The network gives each number a score, and is trained to put the lists in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from sinksort import kantorovich_rank, losses, soft_rank
from sinksort.core.squash import Squash

from . import Data, Loss, Method, Part, Task
from .scales import SCALES


def task(n: int, lists: int, steps: int) -> Task:
    return Task(
        f"sort{n}",
        f"lists of {n} two-digit numbers in images of digits, one hidden layer of 64",
        "share of lists in the right order" if n < 8 else "share of numbers at their rank",
        lambda rng: _load(rng, n),
        _network,
        lambda network, _, part: float(losses.permutation_accuracy(network(part.X), part.y, whole=n < 8)),
        _methods(n),
        steps=steps,
        rate=3e-3,
        batch=lists,
    )


def _load(rng: np.random.Generator, n: int) -> Data:
    X, y = load_digits(return_X_y=True)
    X = (X - 8.0) / 8.0
    pools = np.split(rng.permutation(len(X)), [800, 1100])

    def part(pool: np.ndarray, count: int) -> Part:
        tens, ones = (rng.choice(pool, (count, n)) for _ in range(2))
        number = 10 * y[tens] + y[ones]
        inputs = torch.tensor(np.concatenate([X[tens], X[ones]], -1), dtype=torch.float32)
        return Part(inputs, kantorovich_rank(torch.tensor(number, dtype=torch.float32)))

    return Data(part(pools[0], 2000), part(pools[1], 500), part(pools[2], 2000))


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(-2))


def _methods(n: int) -> tuple[Method, ...]:
    def squares(squash: Squash) -> Callable[[float], Loss]:
        return lambda eps: lambda s, y: (soft_rank(s, eps=eps, squash=squash) - y).square().mean()

    def order(**options: Any) -> Callable[[float], Loss]:
        return lambda eps: lambda s, y: losses.permutation_cross_entropy(s, y, eps=eps, **options)

    networks = () if n > 5 else (
        Method("diffsort, odd-even Cauchy", "peer", lambda s: _diffsort(n, s), 0.05, (0.02, 0.1), "diffsort"),
    )  # fmt: skip
    return (
        Method("permutation_cross_entropy", "ours", order(), 5e-2, (2e-2, 0.1)),
        Method("binary, squash=sigmoid", "option", order(objective="binary", squash="sigmoid"), 1e-2, (3e-3, 0.1)),
        Method("cross-entropy, squash=None", "option", order(objective="nll", squash=None), 0.1, (0.03, 0.3)),
        Method("cross-entropy, squash=sigmoid", "option", order(objective="nll", squash="sigmoid"), 1e-2, (3e-3, 0.1)),
        Method("ranks, squash=None", "option", squares(squash=None), 0.1, (0.03, 0.3)),
        Method("ranks, squash=sigmoid", "option", squares(squash="sigmoid"), 1e-2, (3e-3, 0.1)),
        *(
            Method(f"cross-entropy, scale {name}", "scale", lambda eps, make=make: make(_by_scale, eps), eps, others)
            for name, make, eps, others in (SCALES if n < 8 else ())
        ),
        *networks,
        Method("NeuralSort", "peer", lambda tau: _by_rows(_neuralsort(tau)), 1.0, (0.3, 3.0), "difftopk"),
        Method("SoftSort", "peer", lambda tau: _by_rows(_softsort(tau)), 1.0, (0.1, 0.3), "difftopk"),
        Method("torchsort ranks", "peer", _torchsort, 1.0, (0.1, 0.3), "torchsort"),
        Method("pairwise logistic", "usual", lambda tau: lambda s, y: _pairwise(s / tau, y)),
    )


def _by_scale(s: Tensor, y: Tensor, eps: float | Tensor, squash: Callable[[Tensor], Tensor] | None) -> Tensor:
    return losses.permutation_cross_entropy(s, y, objective="nll", eps=eps, squash=squash)


def _shares(y: Tensor) -> Tensor:
    """(..., ranks, items): which ranks an item has; ties share."""
    at = torch.arange(1, y.shape[-1] + 1).unsqueeze(-1)
    return (1.0 - (y.unsqueeze(-2) - at).abs()).clamp(min=0.0)


def _binary(P: Tensor, y: Tensor) -> Tensor:
    """diffsort's loss: binary cross-entropy of every entry of a permutation."""
    return torch.nn.functional.binary_cross_entropy(P.clamp(1e-7, 1.0 - 1e-7), _shares(y))


def _by_rows(permutation: Callable[[Tensor], Tensor]) -> Loss:
    """Cross-entropy of a permutation whose rows are ranks, from the lowest."""
    return lambda s, y: -(_shares(y) * permutation(s).clamp(min=1e-12).log()).sum((-2, -1)).mean() / s.shape[-1]


def _neuralsort(tau: float) -> Callable[[Tensor], Tensor]:
    from difftopk.neuralsort import NeuralSort

    method = NeuralSort(tau)
    return lambda s: method(s).mT


def _softsort(tau: float) -> Callable[[Tensor], Tensor]:
    from difftopk.softsort import SoftSort

    method = SoftSort(tau)
    return lambda s: method(-s)


def _diffsort(n: int, softness: float) -> Loss:
    from diffsort import DiffSortNet

    network = DiffSortNet("odd_even", n, steepness=1.0 / softness, distribution="cauchy")
    return lambda s, y: _binary(network(s)[1].mT, y)


def _torchsort(strength: float) -> Loss:
    import torchsort

    return lambda s, y: (torchsort.soft_rank(s, regularization_strength=strength) - y).square().mean()


def _pairwise(s: Tensor, y: Tensor) -> Tensor:
    above = y.unsqueeze(-1) > y.unsqueeze(-2)
    return (torch.nn.functional.softplus(s.unsqueeze(-2) - s.unsqueeze(-1)) * above).sum() / above.sum()


TASKS = (task(5, 32, 400), task(9, 32, 300))
