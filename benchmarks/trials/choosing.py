"""Selections inside of a network: nearest neighbours (NeuralSort's task), and tokens to keep (CoLT5's routing)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from sinksort import soft_topk_mask

from . import Data, Loss, Method, Part, Task

Mask = Callable[[Tensor], Tensor]  # of the k largest scores


# ---- an embedding in which the nine nearest neighbours vote

_ASKED = 32  #: of a batch, the others are candidates
_NEAREST = 9


def _digits(rng: np.random.Generator) -> Data:
    X, y = load_digits(return_X_y=True)
    order = rng.permutation(len(X))
    X = (X[order] - 8.0) / 8.0 + 0.5 * rng.normal(size=X.shape)
    X, y = torch.tensor(X, dtype=torch.float32), torch.tensor(y[order])
    return Data(*(Part(X[rows], y[rows]) for rows in (slice(600), slice(600, 900), slice(900, None))))


def _neighbour_accuracy(network: nn.Module, data: Data, part: Part) -> float:
    voters = KNeighborsClassifier(_NEAREST).fit(network(data.train.X).numpy(), data.train.y.numpy())
    return float(voters.score(network(part.X).numpy(), part.y.numpy()))


def _votes(mask: Mask) -> Loss:
    """The share of the nearest candidates that have another label than the one who asks."""

    def loss(embedded: Tensor, y: Tensor) -> Tensor:
        asked, candidates = embedded[:_ASKED], embedded[_ASKED:]
        distances = (asked.unsqueeze(1) - candidates).square().sum(-1)
        same = y[:_ASKED].unsqueeze(-1) == y[_ASKED:]
        return 1.0 - (mask(-distances) * same).sum(-1).mean() / _NEAREST

    return loss


KNN = Task(
    "knn",
    "noisy digits, embedded in 16 dimensions by one hidden layer of 64; 9 of 100 candidates vote",
    "accuracy of the nine nearest neighbours",
    _digits,
    lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)),
    _neighbour_accuracy,
    (
        Method(
            "mask, squash=sigmoid", "ours", lambda eps: _votes(_ours(_NEAREST, eps, squash="sigmoid")), 0.1, (1e-2, 1.0)
        ),
        Method("mask, squash=None", "option", lambda eps: _votes(_ours(_NEAREST, eps, squash=None)), 1.0, (0.1, 10.0)),
        Method("NeuralSort", "peer", lambda tau: _votes(_neuralsort(_NEAREST, tau)), 16.0, (1.0, 64.0), "difftopk"),
        Method("SoftSort", "peer", lambda tau: _votes(_softsort(_NEAREST, tau)), 1.0, (0.1, 10.0), "difftopk"),
        Method("neighbourhood components", "usual", lambda tau: _components(tau), 1.0, (0.3, 3.0)),  # noqa: PLW0108
    ),
    steps=200,
    rate=3e-3,
    batch=132,
)


def _components(tau: float) -> Loss:
    def loss(embedded: Tensor, y: Tensor) -> Tensor:
        distances = (embedded[:_ASKED].unsqueeze(1) - embedded[_ASKED:]).square().sum(-1)
        same = y[:_ASKED].unsqueeze(-1) == y[_ASKED:]
        return -((-distances / tau).softmax(-1) * same).sum(-1).clamp(min=1e-12).log().mean()

    return loss


# ---- six of 64 tokens, known only by the mean of their payload

_KEPT = 6


def _tokens(rng: np.random.Generator) -> Data:
    """Tokens with 8 features; the hidden score is linear in them. Known are the payload and its mean over the best."""
    hidden = rng.normal(size=8)

    def part(count: int) -> Part:
        X = rng.normal(size=(count, 64, 8))
        scores = X @ hidden
        truth = scores >= np.sort(scores, -1)[:, -_KEPT, None]
        payload = rng.normal(size=(count, 64))
        mean = np.repeat((payload * truth).sum(-1, keepdims=True) / _KEPT, 64, -1)
        known = np.stack([payload, mean, truth.astype(float)], 1)
        return Part(torch.tensor(X, dtype=torch.float32), torch.tensor(known, dtype=torch.float32))

    return Data(part(1000), part(300), part(1000))


def _recall(network: nn.Module, _: Data, part: Part) -> float:
    chosen = network(part.X).topk(_KEPT, -1).indices
    return float(part.y[:, 2].gather(-1, chosen).mean())


def _payload(mask: Mask) -> Loss:
    return lambda s, y: ((mask(s) * y[:, 0]).sum(-1) / _KEPT - y[:, 1, 0]).square().mean()


def _straight(mask: Mask) -> Mask:
    """The hard mask, with the gradient of the soft one."""

    def straight(s: Tensor) -> Tensor:
        soft = mask(s)
        hard = torch.zeros_like(soft).scatter(-1, s.topk(_KEPT, -1).indices, 1.0)
        return hard + soft - soft.detach()

    return straight


TOKENS = Task(
    "tokens",
    "6 of 64 tokens, chosen by a hidden layer of 16 that only learns from the mean of their payload",
    "recall of the right six",
    _tokens,
    lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(-2)),
    _recall,
    (
        Method(
            "mask, squash=sigmoid", "ours", lambda eps: _payload(_ours(_KEPT, eps, squash="sigmoid")), 1e-2, (3e-3, 0.1)
        ),
        Method("mask, squash=None", "option", lambda eps: _payload(_ours(_KEPT, eps, squash=None)), 1.0, (0.3, 3.0)),
        Method(
            "straight through",
            "option",
            lambda eps: _payload(_straight(_ours(_KEPT, eps, squash="sigmoid"))),
            1e-2,
            (3e-3, 0.1),
        ),
        Method("coordinate descent", "peer", lambda eps: _payload(_descent(_KEPT, eps)), 0.1, (0.03, 1.0)),
        Method("Laplace sums", "peer", lambda a: _payload(_laplace(_KEPT, a)), 1.0, (0.1, 0.3)),
        Method("SoftSort", "peer", lambda tau: _payload(_softsort(_KEPT, tau)), 0.1, (0.03, 1.0), "difftopk"),
    ),
    steps=200,
    rate=1e-2,
    batch=64,
)


# ---- masks


def _ours(k: int, eps: float, **options: object) -> Mask:
    return lambda s: soft_topk_mask(s, k, eps=eps, **options)


def _neuralsort(k: int, tau: float) -> Mask:
    from difftopk.neuralsort import NeuralSort

    method = NeuralSort(tau)
    return lambda s: method(s)[..., -k:].sum(-1)


def _softsort(k: int, tau: float) -> Mask:
    from difftopk.softsort import SoftSort

    method = SoftSort(tau)
    return lambda s: method(s)[..., :k, :].sum(-2)


def _descent(k: int, eps: float) -> Mask:
    """CoLT5's iteration: a dual number for the sum, and one for each entry that is at most 1."""

    def mask(s: Tensor) -> Tensor:
        b = -s
        for _ in range(20):
            a = eps * (np.log(k) - ((s + b) / eps).logsumexp(-1, keepdim=True))
            b = -torch.relu(s + a)
        return ((s + a + b) / eps).exp()

    return mask


def _laplace(k: int, alpha: float) -> Mask:
    """LapSum's mask: a threshold with sum_i F((s_i - t) / alpha) = k for the distribution function F of Laplace."""

    def share(s: Tensor, t: Tensor) -> Tensor:
        u = (s - t) / alpha
        tail = 0.5 * (-u.abs()).exp()
        return torch.where(u > 0, 1.0 - tail, tail)

    def mask(s: Tensor) -> Tensor:
        with torch.no_grad():
            low, high = s.amin(-1, keepdim=True) - 40 * alpha, s.amax(-1, keepdim=True) + 40 * alpha
            for _ in range(40):
                middle = 0.5 * (low + high)
                many = share(s, middle).sum(-1, keepdim=True) > k
                low, high = torch.where(many, middle, low), torch.where(many, high, middle)
            slope = 0.5 * (-((s - low) / alpha).abs()).exp()
            slope = slope / slope.sum(-1, keepdim=True)
        return share(s, low + (slope * (s - s.detach())).sum(-1, keepdim=True))

    return mask


TASKS = (KNN, TOKENS)
