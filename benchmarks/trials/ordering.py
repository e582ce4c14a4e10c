"""Orders of whole samples: Spearman's rho with wild targets (torchsort's task), and lists to be ranked (allRank's)."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

from sinksort import losses

from . import Data, Loss, Method, Part, Task

# ---- one sample: predictions in the order of responses, of which some are wild


def _diabetes(rng: np.random.Generator, wild: float) -> Data:
    X, y = load_diabetes(return_X_y=True)
    order = rng.permutation(len(X))
    X, y = X[order] / X.std(0), (y[order] - y.mean()) / y.std()
    bad = (rng.random(len(y)) < wild) & (np.arange(len(y)) < 300)
    y[bad] = 10.0 * rng.normal(size=bad.sum())
    X, y = torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
    return Data(*(Part(X[rows], y[rows]) for rows in (slice(200), slice(200, 300), slice(300, None))))


def _spearman(wild: float) -> Task:
    return Task(
        "spearman_wild" if wild else "spearman",
        f"diabetes, {wild:.0%} of the responses wild in training and validation, a linear model",
        "Spearman's rho",
        lambda rng: _diabetes(rng, wild),
        lambda: nn.Sequential(nn.Linear(10, 1), nn.Flatten(-2)),
        lambda network, _, part: float(losses.spearman(network(part.X), part.y)),
        (
            Method("spearman_loss, squash=sigmoid", "ours", lambda eps: _rho(eps, "sigmoid"), 1e-2, (0.1, 1.0)),
            Method("spearman_loss, squash=None", "option", lambda eps: _rho(eps, None), 0.1, (1e-2, 1.0)),
            Method("spearman_loss, squash=robust", "option", lambda eps: _rho(eps, "robust"), 0.1, (1e-2, 1.0)),
            Method("torchsort l2", "peer", lambda t: _torchsort("l2", t), 1.0, (0.1, 10.0), "torchsort"),
            Method("torchsort kl", "peer", lambda t: _torchsort("kl", t), 1.0, (0.1, 10.0), "torchsort"),
            Method("squares", "usual", lambda _: lambda s, y: (s - y).square().mean()),
            Method("pairwise logistic", "usual", lambda tau: lambda s, y: _pairwise(s / tau, y)),
        ),
        steps=150,
    )  # fmt: skip


def _rho(eps: float, squash: str | None) -> Loss:
    return lambda s, y: losses.spearman_loss(s, y, eps=eps, squash=squash)


def _torchsort(kind: str, strength: float) -> Loss:
    """The recipe of its README: the correlation of soft ranks of both sides."""
    import torchsort

    def ranks(t: Tensor) -> Tensor:
        soft: Tensor = torchsort.soft_rank(t.unsqueeze(0), regularization=kind, regularization_strength=strength)
        centred = soft - soft.mean()
        return centred / centred.norm()

    return lambda s, y: 1.0 - (ranks(s) * ranks(y)).sum()


def _pairwise(s: Tensor, y: Tensor) -> Tensor:
    above = y.unsqueeze(-1) > y.unsqueeze(-2)
    return (nn.functional.softplus(s.unsqueeze(-2) - s.unsqueeze(-1)) * above).sum() / above.sum()


# ---- lists of 8 to 24 items with grades, padded


def _lists(rng: np.random.Generator, real: bool) -> Data:
    """Noisy digits with the grade digit // 2; or patients with the fifth of their response as grade."""
    if real:
        X, y = load_diabetes(return_X_y=True)
        X, grade = X / X.std(0), np.searchsorted(np.quantile(y, [0.2, 0.4, 0.6, 0.8]), y)
        pools, noise = np.split(rng.permutation(len(X)), [200, 300]), 0.0
    else:
        X, y = load_digits(return_X_y=True)
        X, grade = (X - 8.0) / 8.0, y // 2
        pools, noise = np.split(rng.permutation(len(X)), [600, 1000]), 0.5

    def part(pool: np.ndarray, count: int) -> Part:
        rows = np.stack([rng.choice(pool, 24, replace=False) for _ in range(count)])
        kept = np.arange(24) < rng.integers(8, 25, size=(count, 1))
        inputs = X[rows] + noise * rng.normal(size=X[rows].shape)
        return Part(torch.tensor(inputs, dtype=torch.float32), torch.tensor(np.where(kept, grade[rows], -1)))

    return Data(part(pools[0], 60), part(pools[1], 100), part(pools[2], 200))


def _ranking(real: bool) -> Task:
    return Task(
        "ndcg_diabetes" if real else "ndcg_digits",
        "lists of 8 to 24 "
        + (
            "patients of the diabetes data, grade: fifth of the response; a linear model"
            if real
            else "noisy digits, grade digit // 2; one hidden layer of 32"
        ),
        "NDCG@5",
        lambda rng: _lists(rng, real),
        (lambda: nn.Sequential(nn.Linear(10, 1), nn.Flatten(-2)))
        if real
        else lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(-2)),
        lambda network, _, part: float(
            losses.ndcg(network(part.X), part.y.clamp(min=0).float(), 5, mask=part.y >= 0, gain="exponential")
        ),
        (
            Method("ndcg_loss, squash=sigmoid", "option", lambda eps: _ndcg(eps, squash="sigmoid"), 1e-2, (1e-3, 0.1)),
            Method("ndcg_loss, squash=None", "ours", lambda eps: _ndcg(eps, squash=None), 0.1, (1e-2, 1.0)),
            Method("ndcg_loss, k=None", "option", lambda eps: _ndcg(eps, k=None, squash="sigmoid"), 1e-2,
                   (1e-3, 0.1)),
            Method("ListNet", "usual", lambda tau: lambda s, y: _listnet(s / tau, y)),
            Method("RankNet", "usual", lambda tau: lambda s, y: _ranknet(s / tau, y)),
            Method("ApproxNDCG", "usual", _approximated, 0.1, (0.03, 1.0)),
            Method("NeuralNDCG", "peer", _neural, 1.0, (0.1, 0.3)),
        ),
        steps=150,
    )  # fmt: skip


def _ndcg(eps: float, k: int | None = 5, **options: object) -> Loss:
    return lambda s, y: losses.ndcg_loss(
        s, y.clamp(min=0).float(), k, mask=y >= 0, gain="exponential", eps=eps, **options
    )


def _listnet(s: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy between the softmax of the grades and that of the scores."""
    kept = y >= 0
    wanted = y.float().masked_fill(~kept, -1e9).softmax(-1)
    return -(wanted * s.masked_fill(~kept, -1e9).log_softmax(-1)).sum(-1).mean()


def _ranknet(s: Tensor, y: Tensor) -> Tensor:
    above = (y.unsqueeze(-1) > y.unsqueeze(-2)) & (y >= 0).unsqueeze(-2)
    return (nn.functional.softplus(s.unsqueeze(-2) - s.unsqueeze(-1)) * above).sum() / above.sum()


def _gains(y: Tensor) -> Tensor:
    return y.clamp(min=0).float().exp2() - 1.0


def _ideal(gains: Tensor) -> Tensor:
    at = torch.arange(1, gains.shape[-1] + 1)
    return (gains.sort(-1, descending=True).values / (at + 1.0).log2())[..., :5].sum(-1).clamp(min=1e-6)


def _approximated(tau: float) -> Loss:
    """ApproxNDCG (Qin et al. 2010): positions from sums of logistic functions."""

    def loss(s: Tensor, y: Tensor) -> Tensor:
        before = ((s.unsqueeze(-2) - s.unsqueeze(-1)) / tau).sigmoid() * (y >= 0).unsqueeze(-2)
        position = 0.5 + before.sum(-1)
        gains = _gains(y)
        return 1.0 - ((gains / (position + 1.0).log2()).sum(-1) / _ideal(gains)).mean()

    return loss


def _neural(tau: float) -> Loss:
    """NeuralNDCG (Pobrotyn and Bialobrzeski 2021): gains sorted by NeuralSort, made doubly stochastic."""

    def loss(s: Tensor, y: Tensor) -> Tensor:
        kept = y >= 0
        s, both = s.masked_fill(~kept, 0.0), kept.unsqueeze(-1) & kept.unsqueeze(-2)
        count = kept.sum(-1)[:, None, None]
        apart = ((s.unsqueeze(-1) - s.unsqueeze(-2)).abs() * both).sum(-1)
        at = torch.arange(1, s.shape[-1] + 1)[:, None]
        logits = ((count + 1 - 2 * at) * s.unsqueeze(-2) - apart.unsqueeze(-2)) / tau
        live = (at <= count) & kept.unsqueeze(-2)
        log_P = logits.masked_fill(~live, -1e5)
        for _ in range(10):
            log_P = log_P - log_P.logsumexp(-1, keepdim=True)
            log_P = log_P - log_P.logsumexp(-2, keepdim=True)
        P = log_P.exp() * live
        gains = _gains(y)
        ordered = (P @ gains.unsqueeze(-1)).squeeze(-1)
        return 1.0 - ((ordered / (at.squeeze(-1) + 1.0).log2())[..., :5].sum(-1) / _ideal(gains)).mean()

    return loss


TASKS = (_spearman(0.0), _spearman(0.3), _ranking(False), _ranking(True))
