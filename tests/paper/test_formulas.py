"""The paper's formulas, written out in NumPy from its text, against the library: definitions, algorithms, losses.

Where the printed text has a slip, the reading that the rest of the paper implies is written here; docs/mathematics.md
lists the slips. Nothing in the first half of this file uses the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

import sinksort
from sinksort import Sinkhorn
from sinksort.losses import topk_loss
from tests import inputs
from tests.strategies import tensor

Array: TypeAlias = Any
Map: TypeAlias = Callable[[Array], Array]

SQUASHES: dict[str, Map] = {"sigmoid": lambda u: 1 / (1 + np.exp(-u)), "arctan": lambda u: np.arctan(u) / np.pi + 0.5}
COSTS: dict[float, Map] = {1: np.abs, 1.5: lambda u: np.abs(u) ** 1.5, 2: np.square}


# ---- as printed


def g_tilde(x: Array, g: Map) -> Array:
    """Eq. 4, with the mean of x where "x^T 1_n" is printed."""
    centred = x - x.mean()
    return g(centred / (np.linalg.norm(centred) / np.sqrt(len(x))))


def algorithm_1(a: Array, b: Array, C: Array, eps: float, eta: float) -> tuple[Array, Array, Array, int]:
    """u, v, K and how many iterations; Delta is the L1 distance."""
    K, u, count = np.exp(-C / eps), np.ones(len(a)), 0
    while True:
        v = b / (K.T @ u)
        u = a / (K @ v)
        count += 1
        if np.abs(v * (K.T @ u) - b).sum() < eta:
            return u, v, K, count


def definition_2(a: Array, b: Array, x: Array, u: Array, v: Array, K: Array) -> tuple[Array, Array]:
    """S-ranks n a^-1 o u o K (v o b_bar), S-sorts b^-1 o v o K^T (u o x)."""
    return len(a) / a * u * (K @ (v * np.cumsum(b))), v / b * (K.T @ (u * x))


def min_eps(M: Array, eps: float) -> Array:
    """[min_eps(M)]_i = -eps log sum_j exp(-M_ij / eps)."""
    return -eps * np.logaddexp.reduce(-M / eps, axis=1)


def algorithm_2(
    rows: Array, b: Array, y: Array, eps: float, eta: float, together: bool
) -> tuple[Array, Array, list[int]]:
    """S-ranks, plans and iterations of a batch of squashed rows with equal weights, in the log domain.

    ``together`` as printed: all rows go on until the largest Delta is below eta. Else each row stops by itself.
    """
    n, a = rows.shape[1], np.full(rows.shape[1], 1 / rows.shape[1])
    C = [np.square(y[None] - x[:, None]) for x in rows]
    alpha, beta = [np.zeros(n) for _ in rows], [np.zeros(len(y)) for _ in rows]
    count, live = [0] * len(rows), set(range(len(rows)))
    while live:
        delta = {}
        for s in live:
            beta[s] = eps * np.log(b) + min_eps(C[s].T - alpha[s][None] - beta[s][:, None], eps) + beta[s]
            alpha[s] = eps * np.log(a) + min_eps(C[s] - alpha[s][:, None] - beta[s][None], eps) + alpha[s]
            count[s] += 1
            delta[s] = np.abs(np.exp(-(C[s] - alpha[s][:, None] - beta[s][None]) / eps).sum(0) - b).sum()
        done = {s for s in live if delta[s] < eta}
        live = (set() if max(delta.values()) < eta else live) if together else live - done
    P = [np.exp(-(C[s] - alpha[s][:, None] - beta[s][None]) / eps) for s in range(len(rows))]
    return np.stack([n * p @ np.cumsum(b) / a for p in P]), np.stack(P), count


def quantile(x: Array, tau: float, t: float, eps: float, g: Map) -> float:
    """Eq. 5: the second entry of the S-sort onto three targets."""
    b, y = np.array([tau - t / 2, t, 1 - tau - t / 2]), np.array([0.0, 0.5, 1.0])
    a = np.full(len(x), 1 / len(x))
    u, v, K, _ = algorithm_1(a, b, np.square(y[None] - g_tilde(x, g)[:, None]), eps, 1e-13)
    return float(definition_2(a, b, x, u, v, K)[1][1])


def ranks_of(x: Array, eps: float, g: Map) -> Array:
    """S-ranks onto the regular grid, all weights equal."""
    n = len(x)
    a, y = np.full(n, 1 / n), np.arange(n) / (n - 1)
    u, v, K, _ = algorithm_1(a, a, np.square(y[None] - g_tilde(x, g)[:, None]), eps, 1e-13)
    return definition_2(a, a, x, u, v, K)[0]


# ---- the library


@pytest.mark.parametrize("squash", SQUASHES)
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize(("n", "m"), [(5, 5), (9, 4), (4, 7)])
def test_algorithm_1_and_definition_2(n: int, m: int, cost: float, squash: str) -> None:
    """The limit, and the iterates as they are when the algorithm stops: as many, and the same truncated answers."""
    x, b, eps = inputs.values("normal", n, 1), inputs.weights("random", m, 2), 0.05
    a, y = np.full(n, 1 / n), np.arange(m) / (m - 1)
    C = COSTS[cost](y[None] - g_tilde(x, SQUASHES[squash])[:, None])
    options: dict[str, Any] = {"target_weights": tensor(b), "eps": eps, "cost": cost, "squash": squash}
    for eta in (1e-1, 1e-3, 1e-13):
        u, v, K, count = algorithm_1(a, b, C, eps, eta)
        ranks, sorts = definition_2(a, b, x, u, v, K)
        for domain in ("kernel", "log"):
            solver = Sinkhorn(tolerance=eta, domain=domain, max_iterations=20_000)  # type: ignore[arg-type]
            plan = sinksort.transport(tensor(x), solver=solver, **options)
            if eta > 1e-12:  # at the level of rounding the last iteration is a matter of luck
                assert plan.iterations == count
            np.testing.assert_allclose(plan.ranks().numpy(), ranks, rtol=0, atol=1e-10 * n)
            # Before the columns are right, they weigh something else than b: sorts are averages over what arrived.
            arrived = v * (K.T @ u)
            np.testing.assert_allclose(plan.sorted().numpy(), sorts * b / arrived, rtol=0, atol=1e-10)
    np.testing.assert_allclose(arrived, b, rtol=0, atol=1e-12)
    newton = sinksort.transport(tensor(x), **options)
    np.testing.assert_allclose(newton.ranks().numpy(), ranks, rtol=0, atol=1e-8 * n)
    np.testing.assert_allclose(newton.sorted().numpy(), sorts, rtol=0, atol=1e-8)


def test_algorithm_2_and_where_each_row_stops() -> None:
    """Each row stops by itself here. As printed all go on until the slowest is done: as close, and seldom the same."""
    n, m, eps, eta = 8, 5, 0.02, 1e-3
    rows = np.stack(
        [g_tilde(inputs.values(kind, n, 3), SQUASHES["sigmoid"]) for kind in ("normal", "clusters_2", "uniform")]
    )
    b, y = inputs.weights("random", m, 4), np.arange(m) / (m - 1)
    ranks, P, count = algorithm_2(rows, b, y, eps, eta, together=False)
    solver = Sinkhorn(tolerance=eta, max_iterations=20_000)
    plan = sinksort.transport(tensor(rows), target_weights=tensor(b), squash=None, eps=eps, solver=solver)
    assert plan.iterations.tolist() == count
    assert len(set(count)) > 1
    np.testing.assert_allclose(plan.ranks().numpy(), ranks, rtol=0, atol=1e-10 * n)
    np.testing.assert_allclose(plan.matrix().numpy(), P, rtol=0, atol=1e-12)
    printed, _, as_many = algorithm_2(rows, b, y, eps, eta, together=True)
    assert as_many == [max(count)] * 3
    slowest = int(np.argmax(count))
    np.testing.assert_allclose(printed[slowest], ranks[slowest], rtol=0, atol=1e-12)
    exact = sinksort.transport(tensor(rows), target_weights=tensor(b), squash=None, eps=eps).ranks().numpy()
    assert (np.abs(printed - exact).max(1) <= np.abs(ranks - exact).max(1) + 1e-12).all()


def test_potentials_and_the_papers_alpha_and_beta() -> None:
    """P = exp((alpha + beta - C) / eps) with alpha = f + eps log a, beta = g + eps log b."""
    n, m, eps = 6, 4, 0.05
    x, a, b = inputs.values("uniform", n, 5), inputs.weights("random", n, 6), inputs.weights("random", m, 7)
    C = np.square((np.arange(m) / (m - 1))[None] - x[:, None])
    u, v, K, _ = algorithm_1(a, b, C, eps, 1e-14)
    plan = sinksort.transport(tensor(x), weights=tensor(a), target_weights=tensor(b), squash=None, eps=eps)
    f, g = (potential.numpy() for potential in plan.potentials)
    alpha, beta = f + eps * np.log(a), g + eps * np.log(b)
    np.testing.assert_allclose(np.exp((alpha[:, None] + beta[None] - C) / eps), u[:, None] * K * v[None], atol=1e-9)
    # Either is determined up to a constant.
    np.testing.assert_allclose(np.ptp(alpha - eps * np.log(u)), 0, atol=1e-8)
    np.testing.assert_allclose(np.ptp(beta - eps * np.log(v)), 0, atol=1e-8)


@pytest.mark.parametrize("squash", SQUASHES)
@pytest.mark.parametrize(("tau", "t"), [(0.3, 0.1), (0.5, 1 / 12), (0.9, 0.05)])
def test_the_soft_quantile_of_equation_5(tau: float, t: float, squash: str) -> None:
    x = inputs.values("normal", 12, 8)
    ours = sinksort.soft_quantile(tensor(x), tau, width=t, eps=1e-2, squash=squash).item()
    assert ours == pytest.approx(quantile(x, tau, t, 1e-2, SQUASHES[squash]), abs=1e-9)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_top_k_loss(k: int) -> None:
    """J_k(L - R[l]) with J_k(u) = max(0, u - k + 1)."""
    L = 10
    logits = np.stack([inputs.values("normal", L, seed) for seed in range(6)])
    labels = np.array([0, 3, 9, 2, 2, 7])
    lost = [
        max(0.0, L - ranks_of(z, 1e-2, SQUASHES["sigmoid"])[label] - k + 1)
        for z, label in zip(logits, labels, strict=True)
    ]
    ours = topk_loss(tensor(logits), torch.from_numpy(labels), k, J="relu", reduction="none")
    np.testing.assert_allclose(ours.numpy(), lost, atol=1e-8)


def test_the_loss_of_the_authors_code() -> None:
    """Their squash divides by sqrt(3) / pi first; ranks are rescaled to the deviation of hard ones; J is in [0, 1]."""
    L, k = 10, 1
    logits = np.stack([inputs.values("normal", L, seed) for seed in range(6)])
    labels = np.array([0, 3, 9, 2, 2, 7])
    lost = []
    for z, label in zip(logits, labels, strict=True):
        ranks = ranks_of(z, 1e-2, lambda u: 1 / (1 + np.exp(-u * np.pi / np.sqrt(3))))
        hard = np.arange(1, L + 1)
        rescaled = hard.mean() + (ranks - ranks.mean()) * hard.std() / ranks.std()
        lost.append(1 - min(1.0, (rescaled[label] - 1) / (L - k)))  # ranks from 0, as theirs are

    def stretched(x: torch.Tensor) -> torch.Tensor:
        z = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, correction=0)
        return torch.sigmoid(z * np.pi / np.sqrt(3))

    ours = topk_loss(
        tensor(logits), torch.from_numpy(labels), k, J="normalized", rescale=True, squash=stretched, reduction="none"
    )
    np.testing.assert_allclose(ours.numpy(), lost, atol=1e-8)
