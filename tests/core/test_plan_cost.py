"""The transport cost of a plan: against POT, an exact linear program, and finite differences."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import ot
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import sinksort
from sinksort.core.plan import Plan
from tests import inputs, oracles
from tests.strategies import tensor

#: The plan by kernels, where they are installed, and the plan of the torch reference.
SOLVERS = {"kernels": sinksort.Newton(), "reference": sinksort.Newton(tolerance=1e-11)}
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())


@every_solver
@pytest.mark.parametrize(("cost", "h"), [(2, oracles.power(2)), (1.5, oracles.power(1.5)), (1, oracles.power(1))])
@pytest.mark.parametrize(("n", "m"), [(7, 7), (9, 4), (4, 9)])
def test_both_costs_are_those_of_pots_plan(solver: Any, cost: float, h: oracles.Cost, n: int, m: int) -> None:
    x, a, b, eps = inputs.values("normal", n, 4), inputs.weights("random", n, 5), inputs.weights("random", m, 6), 0.05
    C = oracles.cost_matrix(oracles.squashed(x, a), oracles.grid(m), h)
    P = oracles.pot_plan(C, a, b, eps)
    plan = sinksort.transport(tensor(x), weights=tensor(a), target_weights=tensor(b), eps=eps, cost=cost, solver=solver)
    assert plan.cost().item() == pytest.approx((P * C).sum(), abs=1e-10)
    relative = (P * np.log(P / np.outer(a, b))).sum()
    assert plan.entropic_cost().item() == pytest.approx((P * C).sum() + eps * relative, abs=1e-10)
    # The paper's objective, with its entropy H(P) = -sum P (log P - 1).
    H = -(P * (np.log(P) - 1)).sum()
    constant = eps * (1 - (a * np.log(a)).sum() - (b * np.log(b)).sum())
    assert plan.entropic_cost().item() - constant == pytest.approx((P * C).sum() - eps * H, abs=1e-10)


@every_solver
def test_gradients_in_everything(solver: Any) -> None:
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.2).requires_grad_()

    x, a, b, eps = leaf(2, 5), leaf(5), leaf(3), torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.1, 0.5, 0.8], dtype=torch.float64, requires_grad=True)

    def plan(x: Tensor, a: Tensor, b: Tensor, y: Tensor, eps: Tensor) -> Plan:
        return sinksort.transport(x, weights=a, target_weights=b, targets=y, eps=eps, solver=solver)

    assert gradcheck(lambda *t: plan(*t).cost(), (x, a, b, y, eps))
    assert gradcheck(lambda *t: plan(*t).entropic_cost(), (x, a, b, y, eps))
    assert gradgradcheck(lambda t: plan(t, a, b, y, eps).entropic_cost(), (x,))


def test_gradient_of_the_entropic_cost_is_that_of_a_fixed_plan() -> None:
    """The envelope theorem: the plan is optimal, so that moving it changes nothing to first order."""
    x, y = tensor(inputs.values("uniform", 8, 1)).requires_grad_(), tensor(np.linspace(0.1, 0.7, 5))
    plan = sinksort.transport(x, targets=y, squash=None, eps=0.02)
    (gradient,) = torch.autograd.grad(plan.entropic_cost(), x)
    by_hand = 2 * (plan.matrix().detach() * (x.detach().unsqueeze(-1) - y)).sum(-1)
    torch.testing.assert_close(gradient, by_hand, rtol=0, atol=1e-10)


@pytest.mark.parametrize("cost", [1, 1.5, 2])
@pytest.mark.parametrize(("n", "m"), [(6, 6), (8, 3), (3, 8)])
def test_small_eps_leads_to_the_exact_linear_program(cost: float, n: int, m: int) -> None:
    """OT_h by POT's network simplex, by the integral of Eq. 2, and by the public exact plan: the limit of both."""
    x, y = inputs.values("uniform", n, 7), np.sort(inputs.values("uniform", m, 8))
    a, b = inputs.weights("random", n, 9), inputs.weights("random", m, 10)
    C = oracles.cost_matrix(x, y, oracles.power(cost))
    exact = ot.emd2(a, b, C)
    assert _integral(x, a, y, b, cost) == pytest.approx(exact, abs=1e-12)
    options: dict[str, Any] = {"weights": tensor(a), "target_weights": tensor(b), "targets": tensor(y)}
    P = sinksort.kantorovich_plan(tensor(x), **options).numpy()
    assert (P * C).sum() == pytest.approx(exact, abs=1e-12)
    spread = np.log(n * m)
    previous = np.inf
    for eps in (1e-2, 1e-3, 1e-4):
        plan = sinksort.transport(tensor(x), squash=None, cost=cost, eps=eps, **options)
        soft, entropic = plan.cost().item(), plan.entropic_cost().item()
        assert exact - 1e-9 <= soft <= entropic + 1e-9  # feasible; the divergence is not negative
        assert entropic <= exact + eps * spread + 1e-9  # the exact plan is feasible too, its divergence at most log n m
        assert soft <= previous + 1e-12
        previous = soft


def _integral(x: np.ndarray, a: np.ndarray, y: np.ndarray, b: np.ndarray, p: float) -> float:
    """Eq. 2: the integral over [0, 1] of h(Q_y(u) - Q_x(u)), between the levels where a quantile function jumps."""
    order = np.argsort(x)
    x, reached, filled = x[order], np.cumsum(a[order]), np.cumsum(b)
    levels = np.sort(np.concatenate([[0.0], reached, filled]))
    middle = (levels[1:] + levels[:-1]) / 2
    of_x = x[np.searchsorted(reached, middle).clip(max=len(x) - 1)]
    of_y = y[np.searchsorted(filled, middle).clip(max=len(y) - 1)]
    return float((np.diff(levels) * np.abs(of_y - of_x) ** p).sum())


@every_solver
def test_padding_direction_and_dtype_change_nothing(solver: Any) -> None:
    x = tensor(inputs.table(["normal", "tied", "uniform"], 3, 6, 2))
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[0, 4:], mask[1, 1] = False, False
    for read in (Plan.cost, Plan.entropic_cost):
        padded = read(sinksort.transport(x.masked_fill(~mask, torch.nan), mask=mask, eps=0.03, solver=solver))
        alone = torch.stack([read(sinksort.transport(x[i][mask[i]], eps=0.03, solver=solver)) for i in range(3)])
        torch.testing.assert_close(padded, alone, rtol=0, atol=1e-10)
        # Turning the row over turns the targets over: the squared distance to them stays.
        down = read(sinksort.transport(x, descending=True, eps=0.03, solver=solver))
        up = read(sinksort.transport(x, eps=0.03, solver=solver))
        torch.testing.assert_close(down, up, rtol=0, atol=1e-10)
        columns = read(sinksort.transport(x.T, dim=0, eps=0.03, solver=solver))
        torch.testing.assert_close(columns, up, rtol=0, atol=1e-10)
        single = read(sinksort.transport(x.float(), eps=0.03, solver=solver))
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), up, rtol=1e-6, atol=1e-7)


def test_a_row_with_nan_costs_nan_and_no_other_does() -> None:
    x = torch.tensor([[0.1, 0.4, float("nan")], [0.1, 0.4, 0.7]])
    for costs in (sinksort.transport(x).cost(), sinksort.transport(x).entropic_cost()):
        assert costs.isnan().tolist() == [True, False]


@pytest.mark.parametrize("option", ["plain", "weights", "targets", "num_targets", "descending", "small eps"])
def test_linear_time_plans_cost_what_dense_plans_cost(option: str) -> None:
    n = 700
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, n, generator=generator, dtype=torch.float64)
    options: dict[str, Any] = {
        "plain": {},
        "weights": {"weights": torch.rand(n, generator=generator, dtype=torch.float64)},
        "targets": {"targets": torch.linspace(-2, 3, 40, dtype=torch.float64), "squash": None},
        "num_targets": {"num_targets": 5},
        "descending": {"descending": True},
        "small eps": {"eps": 1e-3},
    }[option]
    smooth = sinksort.smooth_transport(x, **options).cost()
    dense = sinksort.transport(x, solver=dataclasses.replace(SOLVERS["reference"], compress=False), **options).cost()
    torch.testing.assert_close(smooth, dense, rtol=0, atol=1e-9)


def test_gradient_of_a_linear_time_plan() -> None:
    x = torch.randn(1, 400, generator=torch.Generator().manual_seed(4), dtype=torch.float64).requires_grad_()
    (smooth,) = torch.autograd.grad(sinksort.smooth_transport(x).cost().sum(), x)
    (dense,) = torch.autograd.grad(sinksort.transport(x).cost().sum(), x)
    torch.testing.assert_close(smooth, dense, rtol=0, atol=1e-8 * dense.abs().max().item() + 1e-11)
