"""Gauss nodes in place of the regular grid: the rule itself, the error estimate, and ranks against all m targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sinksort
from sinksort.core.semidual import log_density
from sinksort.linear.rules import Rule, gauss_rule
from tests.inputs import KINDS, table

ALL_TARGETS = sinksort.Newton(compress=False)


@pytest.mark.parametrize(("m", "K"), [(2, 2), (10, 3), (100, 12), (1000, 40), (10**6, 25)])
def test_rule_is_exact_up_to_degree_2K_minus_1(m: int, K: int) -> None:
    nodes, weights, last = gauss_rule(m, K)
    nodes = nodes / (m - 1)
    grid = np.arange(m) / (m - 1)
    for degree in range(min(2 * K, 40)):
        # Chebyshev polynomials: monomials of high degree could not tell a good rule from a bad one.
        exact = np.cos(degree * np.arccos(np.clip(2 * grid - 1, -1, 1))).mean()
        ours = (weights * np.cos(degree * np.arccos(np.clip(2 * nodes - 1, -1, 1)))).sum()
        assert ours == pytest.approx(exact, abs=1e-12)
    assert (weights > 0).all()
    assert weights.sum() == pytest.approx(1.0, abs=1e-13)
    np.testing.assert_allclose((weights * last) @ last.T, np.eye(len(last)), atol=1e-11)  # orthonormal


@pytest.mark.parametrize(("n", "eps"), [(60, 1.0), (120, 0.1), (300, 1e-2), (400, 3e-3)])
def test_ranks_and_gradients_of_every_kind_agree_with_all_targets(n: int, eps: float) -> None:
    exact_x = torch.tensor(table(list(KINDS), 2 * len(KINDS), n, seed=3)).float().double().requires_grad_()
    direction = torch.randn(exact_x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = sinksort.soft_rank(exact_x, eps=eps, solver=ALL_TARGETS)
    (true_grad,) = torch.autograd.grad((truth * direction).sum(), exact_x)
    size = true_grad.norm(dim=-1)
    for dtype, rank_tol, grad_tol in [(torch.float64, 1e-9, 1e-6), (torch.float32, 1e-5, 1e-3)]:
        x = exact_x.detach().to(dtype).requires_grad_()
        ranks = sinksort.soft_rank(x, eps=eps)
        assert ((ranks.double() - truth).abs().amax() / n).item() <= rank_tol
        (grad,) = torch.autograd.grad((ranks.double() * direction).sum(), x)
        off = (grad.double() - true_grad).norm(dim=-1)
        assert (off <= grad_tol * size.clamp(min=1e-6 * n)).all()


@pytest.mark.parametrize("option", ["weights", "descending", "num_targets", "eps", "dim", "squash"])
def test_every_option_goes_through(option: str) -> None:
    n = 150
    x = torch.tensor(table(["normal", "tied", "clusters_2", "exponential"], 4, n, seed=5))
    options: dict[str, object] = {
        "weights": {"weights": torch.rand(4, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)},
        "descending": {"descending": True},
        "num_targets": {"num_targets": 400},
        "eps": {"eps": torch.tensor([0.05, 0.1, 0.2, 0.5], dtype=torch.float64)},
        "dim": {"dim": 0},
        "squash": {"squash": "arctan"},
    }[option]  # type: ignore[assignment]
    x = x.T if option == "dim" else x
    kwargs = {"eps": 0.05, **options}  # type: ignore[dict-item]
    ours = sinksort.soft_rank(x, **kwargs)  # type: ignore[arg-type]
    truth = sinksort.soft_rank(x, solver=ALL_TARGETS, **kwargs)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, truth, rtol=0, atol=1e-9 * n)


def test_estimate_bounds_the_true_error() -> None:
    n = m = 200
    x = torch.tensor(table(list(KINDS), 2 * len(KINDS), n, seed=3))
    checked = 0
    tight = sinksort.Newton(compress=False, tolerance=1e-13)
    for eps in (0.1, 0.03, 0.01, 0.003):
        truth = sinksort.soft_rank(x, eps=eps, solver=tight)
        for rule in (*(Rule.whole(m, K) for K in (6, 10, 16, 24, 40)), Rule.panels(m, 4), Rule((0, 50, 100, 200), 16)):
            nodes, weights = rule.nodes(x)
            plan = sinksort.transport(x, targets=nodes, target_weights=weights, eps=eps, solver=tight)
            ranks = plan.pull(n * ((m - 1) * nodes + 1.0) / m)
            error = (ranks - truth).abs().amax(-1) / n
            visible = error > 1e-12
            density = log_density(plan.M, plan.log_b, plan.gamma).exp()
            estimate = rule.errors(density).amax(-2).sum(-1)
            assert (error <= estimate)[visible].all(), (eps, rule)
            checked += int(visible.sum())
    assert checked > 100


def test_few_nodes_are_used_and_a_hard_row_gets_more() -> None:
    easy, hard = torch.tensor(table(["normal", "clusters_2"], 2, 1200, seed=2))
    plan = sinksort.smooth_transport(torch.stack([easy, hard]), eps=1e-2)
    assert plan.nodes[0] == 58
    assert plan.nodes[1] > 93
    assert plan.cells[0] < plan.cells[1]
    assert (plan.estimated_error <= 1e-9).all()


def test_small_rows_and_other_costs_use_all_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(m: int, K: int) -> None:
        raise AssertionError("no rule was to be asked for")

    monkeypatch.setattr("sinksort.linear.rules.gauss_rule", refuse)
    sinksort.soft_rank(torch.randn(80))
    sinksort.soft_rank(torch.randn(200), cost=1)
    sinksort.soft_rank(torch.randn(200), solver=ALL_TARGETS)
    sinksort.soft_rank(torch.randn(200), mask=torch.ones(200, dtype=torch.bool))


def test_nan_rows_stay_nan_and_alone() -> None:
    x = torch.randn(3, 200, generator=torch.Generator().manual_seed(0))
    whole = sinksort.soft_rank(x, eps=0.05)
    x[1, 7] = torch.nan
    ranks = sinksort.soft_rank(x, eps=0.05)
    assert ranks[1].isnan().all()
    torch.testing.assert_close(ranks[[0, 2]], whole[[0, 2]])


def test_second_derivatives() -> None:
    x = torch.randn(45, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def of(first: torch.Tensor, solver: sinksort.Newton) -> torch.Tensor:
        return sinksort.soft_rank(torch.cat([first, x[3:]]), eps=0.1, solver=solver)[:3]

    assert torch.autograd.gradgradcheck(lambda t: of(t, sinksort.Newton()), (x[:3].clone().requires_grad_(),))


def test_ranks_many_values_in_memory_that_does_not_grow_with_their_square() -> None:
    n = 20_000
    x = torch.randn(n, generator=torch.Generator().manual_seed(0), requires_grad=True)
    held: list[int] = []

    def count(t: torch.Tensor) -> torch.Tensor:
        held.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        ranks = sinksort.soft_rank(x, eps=0.1)
    ranks.square().mean().backward()
    assert sum(held) < 1000 * n
    hard = x.detach().argsort().argsort().float() + 1
    assert torch.corrcoef(torch.stack([ranks.detach(), hard]))[0, 1] > 0.95
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
