"""The paper's iterations: both domains, the schedule, both gradients, agreement with Newton and with POT."""

from __future__ import annotations

import dataclasses
from itertools import accumulate

import numpy as np
import pytest
import torch

import sinksort
from sinksort import Newton, Sinkhorn
from tests import inputs, oracles
from tests.strategies import tensor

SHARP = Sinkhorn(tolerance=1e-12, max_iterations=20_000)
VARIANTS = {
    "log": SHARP,
    "log from the staircase": dataclasses.replace(SHARP, start="staircase"),
    "log with a schedule": dataclasses.replace(SHARP, start_eps=1.0),
    "kernel": dataclasses.replace(SHARP, domain="kernel"),
    "kernel from the staircase": dataclasses.replace(SHARP, domain="kernel", start="staircase"),
}


@pytest.mark.parametrize("solver", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 5), (12, 3), (6, 11)])
def test_agrees_with_newton_and_with_the_truth(solver: Sinkhorn, n: int, m: int) -> None:
    for eps in (1e-2, 1e-1, 1.0):
        x = inputs.values("normal", n, 1)
        a, b = inputs.weights("random", n, 2), inputs.weights("random", m, 3)
        options = {"weights": tensor(a), "target_weights": tensor(b), "eps": eps}
        ours = sinksort.transport(tensor(x), solver=solver, **options)
        newton = sinksort.transport(tensor(x), solver=Newton(tolerance=1e-12), **options)
        assert ours.converged
        torch.testing.assert_close(ours.ranks(), newton.ranks(), rtol=0, atol=1e-9 * n)
        torch.testing.assert_close(ours.sorted(), newton.sorted(), rtol=0, atol=1e-9)
        torch.testing.assert_close(ours.matrix(), newton.matrix(), rtol=0, atol=1e-10)
        C = oracles.cost_matrix(oracles.squashed(x, a), oracles.grid(m))
        f, g = (potential.numpy() for potential in ours.potentials)
        assert oracles.certificate(C, a, b, eps, f, g) <= 1e-11


@pytest.mark.parametrize(
    "solver", [Newton(tolerance=1e-12), SHARP, VARIANTS["kernel"]], ids=["newton", "log", "kernel"]
)
@pytest.mark.parametrize(("cost", "h"), [(2, oracles.power(2)), (1, oracles.power(1)), (1.5, oracles.power(1.5))])
def test_agrees_with_pot(solver: Newton | Sinkhorn, cost: float, h: oracles.Cost) -> None:
    for n, m, eps in ((7, 7, 1e-2), (9, 4, 5e-2), (4, 9, 1.0)):
        x, a, b = inputs.values("normal", n, 4), inputs.weights("random", n, 5), inputs.weights("random", m, 6)
        C = oracles.cost_matrix(oracles.squashed(x, a), oracles.grid(m), h)
        P = oracles.pot_plan(C, a, b, eps)
        plan = sinksort.transport(
            tensor(x), weights=tensor(a), target_weights=tensor(b), eps=eps, cost=cost, solver=solver
        )
        np.testing.assert_allclose(plan.matrix().numpy(), P, rtol=0, atol=1e-10)
        np.testing.assert_allclose(plan.ranks().numpy(), n * P @ np.cumsum(b) / a, rtol=0, atol=1e-8)
        np.testing.assert_allclose(plan.sorted().numpy(), P.T @ x / b, rtol=0, atol=1e-8)


@pytest.mark.filterwarnings("ignore:sinksort:RuntimeWarning")
@pytest.mark.parametrize("domain", ["log", "kernel"])
def test_the_iterates_are_those_of_the_published_algorithms(domain: str) -> None:
    """k iterations of Algorithm 1 from u = 1, written out: v <- b / K^T u, u <- a / K v."""
    n, m, eps = 5, 4, 0.1
    x, a, b = inputs.values("normal", n, 7), inputs.weights("random", n, 8), inputs.weights("random", m, 9)
    K = np.exp(-oracles.cost_matrix(oracles.squashed(x, a), oracles.grid(m)) / eps)
    u = np.ones(n)
    for limit in range(1, 6):
        v = b / (K.T @ u)
        u = a / (K @ v)
        solver = Sinkhorn(tolerance=1e-15, max_iterations=limit, domain=domain)  # type: ignore[arg-type]
        plan = sinksort.transport(tensor(x), weights=tensor(a), target_weights=tensor(b), eps=eps, solver=solver)
        assert plan.iterations == limit
        np.testing.assert_allclose(plan.matrix().numpy(), u[:, None] * K * v[None, :], rtol=0, atol=1e-14)
        error = np.abs(v * (K.T @ u) - b).sum()
        np.testing.assert_allclose(plan.marginal_error.item(), error, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("eta", [1e-2, 1e-4, 1e-8])
def test_stops_at_the_tolerance_it_was_given(eta: float) -> None:
    plan = sinksort.transport(tensor(inputs.values("normal", 10, 1)), eps=1e-2, solver=Sinkhorn(tolerance=eta))
    columns = plan.matrix().sum(0)
    assert (columns - 0.1).abs().sum() <= eta * (1 + 1e-6)
    assert plan.converged
    sooner = Sinkhorn(tolerance=eta, max_iterations=int(plan.iterations) - 1)
    with pytest.warns(RuntimeWarning, match="did not converge"):
        assert not sinksort.transport(tensor(inputs.values("normal", 10, 1)), eps=1e-2, solver=sooner).converged


def test_a_staircase_start_and_a_schedule_save_iterations() -> None:
    x = tensor(inputs.values("normal", 30, 3))
    steps = {
        name: sinksort.transport(x, eps=1e-3, solver=dataclasses.replace(solver, tolerance=1e-3)).iterations.item()
        for name, solver in VARIANTS.items()
        if name.startswith("log")
    }
    assert steps["log from the staircase"] < steps["log"] / 4


@pytest.mark.parametrize("domain", ["log", "kernel"])
@pytest.mark.parametrize("start", ["zeros", "staircase"])
def test_unrolled_and_implicit_gradients_agree(domain: str, start: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    a = torch.rand(6, generator=generator, dtype=torch.float64) + 0.1
    b = torch.rand(4, generator=generator, dtype=torch.float64) + 0.1
    y = torch.tensor([0.0, 0.2, 0.7, 1.0], dtype=torch.float64)
    v = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    eps = torch.tensor(0.1, dtype=torch.float64)
    gradients = []
    for gradient in ("implicit", "unrolled"):
        leaves = [t.clone().requires_grad_() for t in (x, a, b, y, eps)]
        solver = dataclasses.replace(SHARP, domain=domain, start=start, gradient=gradient)  # type: ignore[arg-type]
        ranks = sinksort.soft_rank(
            leaves[0], weights=leaves[1], target_weights=leaves[2], targets=leaves[3], eps=leaves[4], solver=solver
        )
        gradients.append(torch.autograd.grad((ranks * v).sum(), leaves))
    for implicit, unrolled in zip(*gradients, strict=True):
        assert implicit.abs().max() > 1e-3
        torch.testing.assert_close(unrolled, implicit, rtol=1e-7, atol=1e-8)


def test_implicit_gradients_agree_with_newton() -> None:
    x = tensor(inputs.values("normal", 8, 2)).requires_grad_()
    v = torch.arange(8, dtype=torch.float64)
    (newton,) = torch.autograd.grad((sinksort.soft_rank(x, eps=1e-2) * v).sum(), x)
    (sinkhorn,) = torch.autograd.grad((sinksort.soft_rank(x, eps=1e-2, solver=SHARP) * v).sum(), x)
    torch.testing.assert_close(sinkhorn, newton, rtol=1e-8, atol=1e-9)


def test_kernel_domain_that_underflows_says_so() -> None:
    x = torch.tensor([0.0, 1.0, 50.0], dtype=torch.float64)
    options = {"eps": 1e-5, "squash": None, "targets": torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)}
    with pytest.warns(RuntimeWarning, match=r"underflows for small eps: use Sinkhorn\(domain='log'\)"):
        plan = sinksort.transport(x, solver=Sinkhorn(domain="kernel"), **options)
    assert not plan.converged
    assert sinksort.transport(x, solver=Sinkhorn(domain="log", start="staircase"), **options).converged


def peak_bytes(solver: Newton | Sinkhorn) -> int:
    """The most memory that torch holds at any moment of a forward and a backward pass, from its profiler."""
    x = tensor(inputs.values("normal", 60, 3)).requires_grad_()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        sinksort.soft_sort(x, eps=1e-2, solver=solver).square().sum().backward()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


@pytest.mark.filterwarnings("ignore:sinksort:RuntimeWarning")
def test_memory_does_not_grow_with_iterations() -> None:
    few, many = (Sinkhorn(tolerance=1e-300, max_iterations=limit) for limit in (5, 100))
    assert peak_bytes(many) == peak_bytes(few)
    three, more = (Newton(tolerance=1e-300, max_iterations=limit) for limit in (3, 30))
    assert peak_bytes(more) == peak_bytes(three)
    # The measure can tell: unrolling keeps at least a matrix for every iteration.
    unrolled = [peak_bytes(dataclasses.replace(solver, gradient="unrolled")) for solver in (few, many)]
    assert unrolled[1] - unrolled[0] > 95 * 8 * 60 * 60
