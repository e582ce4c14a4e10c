"""Classification of digits judged by the k best classes: difftopk's task, with few images and wrong labels.

A share of the labels in training and validation is replaced at random. Test labels are right.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from sinksort import losses, soft_permutation

from . import Data, Loss, Method, Part, Task


def task(k: int, wrong: float) -> Task:
    return Task(
        f"top{k}" + (f"_noise{round(100 * wrong)}" if wrong else ""),
        f"300 digits, {wrong:.0%} of the labels wrong, one hidden layer of 64",
        f"share of labels among the {k} best classes" if k > 1 else "accuracy",
        lambda rng: _load(rng, wrong),
        lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        lambda network, _, part: 1.0 - float(losses.topk_error(network(part.X), part.y, k)),
        _methods(k, wrong),
        steps=300,
        rate=3e-3,
        batch=100,
    )


def _load(rng: np.random.Generator, wrong: float) -> Data:
    X, y = load_digits(return_X_y=True)
    order = rng.permutation(len(X))
    X, y = (X[order] - 8.0) / 8.0, y[order]
    replaced = np.flatnonzero(rng.random(600) < wrong)
    y[replaced] = rng.integers(0, 10, len(replaced))
    X, y = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
    return Data(*(Part(X[rows], y[rows]) for rows in (slice(300), slice(300, 600), slice(600, None))))


def _methods(k: int, wrong: float) -> tuple[Method, ...]:
    noisy = wrong > 0
    usual = [Method("cross-entropy", "usual", lambda tau: lambda s, y: functional.cross_entropy(s / tau, y))]
    if noisy:
        usual += [
            Method("cross-entropy, smoothed", "usual", _smoothed, 0.1, (0.2, 0.4)),
            Method("cross-entropy, tempered", "usual", _tempered, 0.7, (0.4, 0.9)),
            Method("bootstrapping", "usual", _bootstrapped, 0.2, (0.4, 0.6)),
        ]
    if k > 1:
        usual += [
            Method("difftopk NeuralSort", "peer", lambda t: _difftopk("neuralsort", k, t), 1.0, (0.3, 3.0), "difftopk"),
            Method("difftopk SoftSort", "peer", lambda t: _difftopk("softsort", k, t), 1.0, (0.3, 3.0), "difftopk"),
            Method("difftopk odd-even", "peer", lambda t: _difftopk("odd_even", k, t), 0.1, (0.3, 1.0), "difftopk"),
            Method("SmoothHardTopK", "peer", lambda tau: _smooth_hard(k, tau), 1.0, (0.3, 3.0), "difftopk"),
        ]
    return (
        Method("topk_loss", "ours", lambda eps: lambda s, y: losses.topk_loss(s, y, k, eps=eps), 2.0, (1.0, 4.0)),
        Method("membership", "option", lambda eps: lambda s, y: losses.membership_loss(s, y, k, eps=eps), 1.0,
               (0.5, 2.0)),
        Method(
            "topk_loss, squash=sigmoid", "option",
            lambda eps: lambda s, y: losses.topk_loss(s, y, k, eps=eps, squash="sigmoid"), 0.1, (0.03, 1.0),
        ),
        Method("J=relu", "option", lambda eps: lambda s, y: losses.topk_loss(s, y, k, J="relu", eps=eps), 1e-2,
               (1e-3, 0.1)),
        Method(
            "J=log, squash=None", "option",
            lambda eps: lambda s, y: losses.topk_loss(s, y, k, J="log", squash=None, eps=eps), 1.0, (0.3, 3.0),
        ),
        *([Method("p_k on the plan", "option", lambda eps: _by_plan(k, eps), 1.0, (0.3, 3.0))] if k > 1 else []),
        *usual,
    )  # fmt: skip


def _by_plan(k: int, eps: float) -> Loss:
    """difftopk's p_k of equal shares, on our soft permutation."""
    weights = torch.tensor([1.0] * k + [10.0 - k])

    def loss(s: Tensor, y: Tensor) -> Tensor:
        P = soft_permutation(s, descending=True, target_weights=weights, squash=None, eps=eps)[..., :k, :]
        among = P.cumsum(-2).mean(-2)
        return -among.gather(-1, y.unsqueeze(-1)).clamp(min=1e-12).log().mean()

    return loss


def _difftopk(how: str, k: int, softness: float) -> Loss:
    from difftopk import TopKCrossEntropyLoss

    extra = {"distribution": "cauchy"} if how == "odd_even" else {}
    loss: Loss = TopKCrossEntropyLoss(how, 1.0 / softness, [1.0 / k] * k, n=10, **extra)
    return loss


def _smooth_hard(k: int, tau: float) -> Loss:
    from difftopk.smooth_topk import SmoothHardTopKLoss

    loss: Loss = SmoothHardTopKLoss(10, k, tau)
    return loss


def _smoothed(share: float) -> Loss:
    return lambda s, y: functional.cross_entropy(s, y, label_smoothing=share)


def _tempered(power: float) -> Loss:
    """The generalised cross-entropy (1 - p^q) / q of Zhang and Sabuncu (2018), between the logarithm and 1 - p."""
    return lambda s, y: (1.0 - s.softmax(-1).gather(-1, y.unsqueeze(-1)).clamp(min=1e-12) ** power).mean() / power


def _bootstrapped(share: float) -> Loss:
    """Targets mixed with the network's own best class, a constant to the gradient (Reed et al. 2015)."""
    return lambda s, y: (
        (1.0 - share) * functional.cross_entropy(s, y) + share * functional.cross_entropy(s, s.detach().argmax(-1))
    )


TASKS = (task(1, 0.0), task(2, 0.0), task(2, 0.4), task(1, 0.2), task(1, 0.4))
