"""Ranks, sorts, plans and gradients against the dense truth: sizes, entropies, costs, weights, numbers of targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import sinksort
from tests import inputs, oracles
from tests.strategies import tensor

#: The cost as the library is given it, and as NumPy computes it.
COSTS: dict[str, tuple[Any, oracles.Cost]] = {
    "p1": (1, oracles.power(1)),
    "p1.5": (1.5, oracles.power(1.5)),
    "p2": (2, oracles.power(2)),
    "p3": (3, oracles.power(3)),
    "huber": (sinksort.Huber(0.1), oracles.huber(0.1)),
    "callable": (lambda u: torch.cosh(u) - 1.0, lambda u: np.cosh(u) - 1.0),
}
EPS = [1e-4, 1e-3, 1e-2, 1e-1, 1.0]


def target_counts(n: int) -> list[int]:
    return sorted({2, 3, max(n // 2, 1), n, 2 * n})


def check_against_truth(
    x: np.ndarray, a: np.ndarray, b: np.ndarray, eps: float, cost: str, squash: str | None = "sigmoid"
) -> None:
    """Every promise for one row: float64 ranks, sorts and marginals; float32 ranks; the plan by its certificate."""
    ours, h = COSTS[cost]
    n, m = len(x), len(b)
    C = oracles.cost_matrix(oracles.squashed(x, a, squash), oracles.grid(m), h)
    truth = oracles.solve(C, a, b, eps)
    options: dict[str, Any] = {
        "weights": tensor(a),
        "target_weights": tensor(b),
        "eps": eps,
        "cost": ours,
        "squash": squash,
    }
    plan = sinksort.transport(tensor(x), **options)
    said = f"n={n} m={m} eps={eps} {cost}"

    np.testing.assert_allclose(plan.ranks().numpy(), truth.ranks(), rtol=0, atol=1e-8 * n, err_msg=said)
    close = 1e-8 * np.ptp(x) + 1e-15 * np.abs(x).max()  # a constant row has no range: rounding
    np.testing.assert_allclose(plan.sorted().numpy(), truth.sorts(x), rtol=0, atol=close, err_msg=said)
    assert plan.converged, said
    assert plan.marginal_error <= 1e-9, said
    P = plan.matrix().numpy()
    assert max(np.abs(P.sum(1) - a).sum(), np.abs(P.sum(0) - b).sum()) <= 1e-9, said
    f, g = (potential.numpy() for potential in plan.potentials)
    assert oracles.certificate(C, a, b, eps, f, g) <= 1e-9, said

    single = tensor(x).float()
    C = oracles.cost_matrix(oracles.squashed(single.double().numpy(), a, squash), oracles.grid(m), h)
    truth = oracles.solve(C, a, b, eps)
    ranks = sinksort.soft_rank(single, **options)
    assert ranks.dtype == torch.float32
    np.testing.assert_allclose(ranks.double().numpy(), truth.ranks(), rtol=0, atol=1e-5 * n, err_msg=said)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("eps", EPS)
def test_small_rows_of_every_kind(eps: float, cost: str) -> None:
    for seed, (kind, generate) in enumerate(inputs.KINDS.items()):
        rng = np.random.default_rng(seed)
        for n in (1, 2, 3, 7, 12):
            for m in target_counts(n):
                weighted = list(inputs.WEIGHTS)[rng.integers(3)]
                a, b = inputs.WEIGHTS[weighted](rng, n), inputs.WEIGHTS[weighted](rng, m)
                x = generate(rng, n)
                if kind == "outlier":
                    x = np.minimum(x, 1e3)  # at 1e6 the other x~ differ by rounding of the standardised values alone
                if rng.random() < 0.25:
                    check_against_truth(x, a, b, eps, cost, "arctan" if rng.random() < 0.3 else "sigmoid")


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("n", [30, 100])
def test_medium_rows(n: int, eps: float) -> None:
    rng = np.random.default_rng(n)
    for turn, m in enumerate(target_counts(n)):
        kind, cost = list(inputs.KINDS)[(turn * 3 + n) % 7], list(COSTS)[turn % len(COSTS)]
        a, b = inputs.WEIGHTS["random"](rng, n), inputs.WEIGHTS["random"](rng, m)
        check_against_truth(inputs.KINDS[kind](rng, n), a, b, eps, cost)


@pytest.mark.parametrize(
    ("n", "m", "eps", "cost", "weighted"),
    [
        (300, 300, 1e-3, "p2", "equal"),
        (300, 150, 1e-4, "p1.5", "random"),
        (300, 600, 1e-2, "p1", "random"),
        (1000, 2, 1e-4, "p2", "random"),
        (1000, 3, 1e-3, "huber", "random"),
        (1000, 500, 1e-2, "callable", "random"),
        (1000, 500, 1e-4, "p2", "random"),
    ],
)
def test_large_rows(n: int, m: int, eps: float, cost: str, weighted: str) -> None:
    x = inputs.values("normal", n, seed=m)
    check_against_truth(x, inputs.weights(weighted, n, 1), inputs.weights(weighted, m, 2), eps, cost)


@pytest.mark.parametrize(("n", "m", "eps"), [(1000, 1000, 1e-4), (1000, 1000, 1.0), (1000, 2000, 1e-3)])
def test_large_rows_by_certificate(n: int, m: int, eps: float) -> None:
    """The largest plans, without a second solver: sharper potentials prove themselves, and every read-out follows.

    A marginal error delta moves a rank by at most delta / min(a) relative to n, and a sort by delta / min(b) of the
    range, so a certificate below 1e-9 min(a, b) is a proof to 1e-9.
    """
    x = inputs.values("normal", n, 5)
    a, b = inputs.weights("random", n, 1) * 0.5 + 0.5 / n, inputs.weights("random", m, 2) * 0.5 + 0.5 / m
    options: dict[str, Any] = {"weights": tensor(a), "target_weights": tensor(b), "eps": eps}
    sharp = sinksort.transport(tensor(x), **options, solver=sinksort.Newton(tolerance=1e-12))
    C = oracles.cost_matrix(oracles.squashed(x, a), oracles.grid(m))
    f, g = (potential.numpy() for potential in sharp.potentials)
    assert oracles.certificate(C, a, b, eps, f, g) <= 1e-9 * min(a.min(), b.min())
    truth = oracles.Truth(C, a, b, eps, f, g)

    plan = sinksort.transport(tensor(x), **options)
    assert plan.converged
    assert plan.marginal_error <= 1e-9
    np.testing.assert_allclose(plan.ranks().numpy(), truth.ranks(), rtol=0, atol=1e-8 * n)
    np.testing.assert_allclose(plan.sorted().numpy(), truth.sorts(x), rtol=0, atol=1e-8 * np.ptp(x))
    np.testing.assert_allclose(plan.matrix().numpy(), truth.P, rtol=0, atol=1e-10)


@pytest.mark.parametrize("eps", [1e-4, 1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("read", [sinksort.soft_rank, sinksort.soft_sort], ids=lambda f: f.__name__)
def test_single_precision_gradients(read: Callable[..., torch.Tensor], eps: float) -> None:
    """float32 gradients within 1e-3 in norm of those of the closed form in float64."""
    rng = np.random.default_rng(3)
    for n, m in ((5, 5), (40, 40), (40, 3), (20, 40), (200, 100)):
        x = rng.random(n).astype(np.float32)
        a, b = inputs.WEIGHTS["random"](rng, n), inputs.WEIGHTS["random"](rng, m)
        v = rng.standard_normal(n if read is sinksort.soft_rank else m)
        wide = x.astype(float)
        C = oracles.cost_matrix(wide, oracles.grid(m))
        truth = oracles.solve(C, a, b, eps)
        slope = -2 * (oracles.grid(m)[None, :] - wide[:, None])  # dC_ij / dx_i
        if read is sinksort.soft_rank:
            expected = (oracles.rank_vjp(truth, v)[0] * slope).sum(1)
        else:
            grad_C, direct = oracles.sort_vjp(truth, wide, v)
            expected = (grad_C * slope).sum(1) + direct
        leaf = torch.from_numpy(x).requires_grad_()
        out = read(leaf, weights=tensor(a), target_weights=tensor(b), eps=eps, squash=None)
        (out * tensor(v).float()).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.dtype == torch.float32
        size = np.linalg.norm(expected)
        assert np.linalg.norm(leaf.grad.double().numpy() - expected) <= 1e-3 * size + 1e-6, (n, m, eps)
