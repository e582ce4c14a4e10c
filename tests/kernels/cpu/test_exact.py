"""The exact family: known answers, the dense truth, gradients of every argument, and what never changes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import sinksort
from sinksort.kernels.cpu.exact import autograd as exact
from sinksort.kernels.cpu.exact import nodes
from sinksort.kernels.plan import ExactPlan
from tests import oracles

D = torch.float64
BY_TORCH = sinksort.Newton(tolerance=1e-12)
COSTS = {"1": 1, "1.3": 1.3, "1.5": 1.5, "2": 2, "3": 3, "9": 9, "Huber": sinksort.Huber(0.1)}
ORACLES: dict[str, Any] = {name: oracles.power(float(name)) for name in COSTS if name != "Huber"}
ORACLES["Huber"] = oracles.huber(0.1)
every_cost = pytest.mark.parametrize("name", COSTS)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def positive(*shape: int, seed: int = 0) -> Tensor:
    return draw(*shape, seed=seed).abs() + 0.2


def read_out(R: int, n: int, m: int, eps: float, cost: Any = 2, seed: int = 0) -> exact.Given:
    kind, p = exact.kind_of(cost if callable(cost) else sinksort.Power(float(cost)))
    a, b = positive(R, n, seed=seed + 1), positive(R, m, seed=seed + 2)
    return exact.Given(
        draw(R, n, seed=seed).sigmoid().sort(-1).values,
        a / a.sum(-1, keepdim=True),
        draw(R, m, seed=seed + 3).sigmoid().sort(-1).values,
        b / b.sum(-1, keepdim=True),
        torch.full((R,), eps, dtype=D),
        None,
        kind,
        p,
    )


# ---- against the truth


@every_cost
@pytest.mark.parametrize("eps", [1e-4, 1e-3, 1e-2, 1e-1, 1.0])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 1), (1, 5), (2, 2), (12, 30), (40, 17), (60, 60)])
def test_both_averages_are_those_of_the_dense_problem(name: str, eps: float, n: int, m: int) -> None:
    g = read_out(2, n, m, eps, COSTS[name])
    found = exact.solve(g)
    v, w = draw(1, 1, m, seed=5), draw(1, 1, n, seed=6)
    pulled, pushed = exact.pull(g, found.of_targets, v), exact.push(g, found.of_values, w)
    assert (found.error <= 1e-10).all()
    for r in range(2):
        x, a, y, b = (t[r].numpy() for t in g[:4])
        truth = oracles.solve(oracles.cost_matrix(x, y, ORACLES[name]), a, b, eps)
        P = np.asarray(truth.P, dtype=float)
        np.testing.assert_allclose(pulled[r, :, 0], (P / a[:, None]) @ v[0, 0].numpy(), rtol=0, atol=1e-8)
        np.testing.assert_allclose(pushed[r, :, 0], (P / b).T @ w[0, 0].numpy(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("n", [100, 300, 1000])
@pytest.mark.parametrize("eps", [1e-4, 1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("kind", ["normal", "ties", "two groups"])
def test_ranks_of_longer_rows_are_certified(n: int, eps: float, kind: str) -> None:
    """Potentials whose plan has the right marginals are those of the problem, wherever they come from."""
    x = draw(2, n)
    x = x.relu() if kind == "ties" else (x + 30.0 * (torch.arange(n) % 2) if kind == "two groups" else x)
    plan = sinksort.transport(x, eps=eps)
    assert isinstance(plan, ExactPlan)
    f, g = plan.potentials
    order = x.argsort(-1)
    y, a = oracles.grid(n), np.full(n, 1.0 / n)
    for r in range(2):
        C = oracles.cost_matrix(oracles.squashed(x[r][order[r]].numpy()), y)
        P = np.exp((f[r][order[r]].numpy()[:, None] + g[r].numpy() - C) / eps) / n**2
        assert np.abs(P.sum(0) - 1.0 / n).sum() <= 1e-8
        assert np.abs(P.sum(1) - 1.0 / n).sum() <= 1e-8
        ranks = n * (P / a[:, None]) @ np.cumsum(a)
        np.testing.assert_allclose(plan.ranks()[r][order[r]], ranks, rtol=0, atol=1e-8 * n)


# ---- known answers


def test_two_values_on_two_targets() -> None:
    """One unknown: the share p that stays is p / (1 - p) = exp((C_01 + C_10 - C_00 - C_11) / (2 eps))."""
    eps, x = 0.1, torch.tensor([[0.2, 0.7]], dtype=D)
    logit = (0.8**2 + 0.7**2 - 0.2**2 - 0.3**2) / (2 * eps)
    p = 1.0 / (1.0 + math.exp(-logit))
    ranks = sinksort.soft_rank(x, squash=None, eps=eps)
    torch.testing.assert_close(ranks, torch.tensor([[2.0 - p, 1.0 + p]], dtype=D), rtol=0, atol=1e-12)


def test_equal_values_share_a_rank() -> None:
    for cost in COSTS.values():
        torch.testing.assert_close(
            sinksort.soft_rank(torch.ones(2, 9, dtype=D), cost=cost),
            torch.full((2, 9), 5.0, dtype=D),
            rtol=0,
            atol=1e-9,
        )


@pytest.mark.parametrize("eps", [1e-6, 1e-5])
def test_boundaries_that_nearly_coincide_converge(eps: float) -> None:
    """Cumulative weights that differ by 1e-8: what crosses the boundary crosses it as a leak."""
    n = 20
    a = torch.full((1, n), 1.0 / n, dtype=D)
    a[:, ::2] += 1e-8
    a[:, 1::2] -= 1e-8
    g = read_out(1, n, n, eps)._replace(a=a, b=torch.full((1, n), 1.0 / n, dtype=D))
    g = g._replace(x=torch.linspace(0, 1, n, dtype=D)[None] ** 1.1, y=torch.linspace(0, 1, n, dtype=D)[None])
    found = exact.solve(g)
    assert found.error.item() <= 1e-10
    assert found.steps.item() <= 12


def test_a_row_with_nan_is_nan_and_its_neighbours_are_not() -> None:
    x = draw(3, 8)
    x[1, 2] = math.nan
    x.requires_grad_()
    ranks = sinksort.soft_rank(x, cost=1.5)
    assert ranks[1].isnan().all()
    (slopes,) = torch.autograd.grad(ranks[[0, 2]].square().sum(), x)
    assert ranks[[0, 2]].isfinite().all()
    assert slopes[[0, 2]].isfinite().all()


def test_an_infinite_eps_sends_every_value_everywhere() -> None:
    x = draw(2, 6)
    ranks = sinksort.soft_rank(x, eps=torch.tensor([math.inf, 1e-2], dtype=D))
    torch.testing.assert_close(ranks[0], torch.full((6,), 3.5, dtype=D))
    torch.testing.assert_close(ranks[1], sinksort.soft_rank(x[1]))


# ---- gradients


def leaves(g: exact.Given) -> list[Tensor]:
    return [t.clone().requires_grad_() for t in g[:5]]


def normalised(x: Tensor, a: Tensor, y: Tensor, b: Tensor, eps: Tensor, kind: int, p: float) -> exact.Given:
    return exact.Given(x, a / a.sum(-1, keepdim=True), y, b / b.sum(-1, keepdim=True), eps, None, kind, p)


@every_cost
@pytest.mark.parametrize(("n", "m"), [(4, 3), (3, 5)])
def test_gradcheck_of_every_argument(name: str, n: int, m: int) -> None:
    g = read_out(2, n, m, 0.07, COSTS[name])
    v, w = draw(2, 2, m, seed=8).requires_grad_(), draw(2, 1, n, seed=9).requires_grad_()

    def function(*t: Tensor) -> tuple[Tensor, ...]:
        h = normalised(*t[:5], g.kind, g.p)
        found = exact.solve(h)
        pulled, pushed = exact.pull(h, found.of_targets, t[5]), exact.push(h, found.of_values, t[6])
        return pulled, pushed, exact.shares(h, found.of_targets), exact.potentials(h, t[7])

    assert gradcheck(function, (*leaves(g), v, w, 0.1 * draw(2, m, seed=10).requires_grad_()), atol=1e-6)


@pytest.mark.parametrize("name", ["1.5", "2", "Huber"])
def test_gradgradcheck_of_every_argument(name: str) -> None:
    g = read_out(1, 4, 3, 0.1, COSTS[name], seed=3)
    v, w = draw(1, 1, 3, seed=8).requires_grad_(), draw(1, 1, 4, seed=9).requires_grad_()

    def function(*t: Tensor) -> tuple[Tensor, ...]:
        h = normalised(*t[:5], g.kind, g.p)
        found = exact.solve(h)
        return exact.pull(h, found.of_targets, t[5]), exact.push(h, found.of_values, t[6])

    assert gradgradcheck(function, (*leaves(g), v, w), atol=1e-5)


@pytest.mark.parametrize("eps", [1e-3, 1e-2, 1e-1])
@every_cost
def test_gradients_are_those_of_the_torch_reference(name: str, eps: float) -> None:
    x, a, y = draw(3, 30), positive(30), torch.linspace(0.0, 1.0, 20, dtype=D) ** 1.3
    b, cotangent = positive(20, seed=4), draw(3, 30, seed=7)
    found = []
    for solver in (sinksort.Newton(), BY_TORCH):
        at = [t.clone().requires_grad_() for t in (x, a, y, b, torch.tensor(eps, dtype=D))]
        plan = sinksort.transport(
            at[0], weights=at[1], targets=at[2], target_weights=at[3], eps=at[4], cost=COSTS[name], solver=solver
        )
        out = (plan.ranks() * cotangent).sum() + (plan.sorted() * cotangent[:, :20]).sum()
        found.append(torch.autograd.grad(out, at))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7 * theirs.abs().max().item())


def test_a_callable_cost_gets_its_gradient_through_its_matrix() -> None:
    power = torch.tensor(1.7, dtype=D, requires_grad=True)
    x, cotangent = draw(2, 12).requires_grad_(), draw(2, 12, seed=1)
    out = []
    for solver in (sinksort.Newton(), BY_TORCH):
        ranks = sinksort.soft_rank(x, cost=lambda u: (u.square() + 1e-3) ** (power / 2), solver=solver)
        out.append((ranks, *torch.autograd.grad(ranks, (x, power), cotangent)))
    for ours, theirs in zip(*out, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


def test_what_weighs_nothing_has_an_answer_and_a_one_sided_derivative() -> None:
    x, cotangent = draw(2, 9), draw(2, 9, seed=1)
    a, b = positive(9), positive(6, seed=2)
    a[3], b[2] = 0.0, 0.0
    out = []
    for solver in (sinksort.Newton(), BY_TORCH):
        w, t = a.clone().requires_grad_(), b.clone().requires_grad_()
        plan = sinksort.transport(x, weights=w, target_weights=t, solver=solver, cost=1.5)
        loss = (plan.ranks() * cotangent).sum() + (plan.sorted() * cotangent[:, :6]).sum()
        out.append((plan.ranks(), plan.sorted(), *torch.autograd.grad(loss, (w, t))))
    for ours, theirs in zip(*out, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)
    moved = x.clone()
    moved[:, 3] += 0.3
    keep = torch.arange(9) != 3
    ranks = sinksort.soft_rank(moved, weights=a, target_weights=b, squash=torch.sigmoid)[:, keep]
    torch.testing.assert_close(ranks, sinksort.soft_rank(x, weights=a, target_weights=b, squash=torch.sigmoid)[:, keep])


# ---- nodes


@pytest.mark.parametrize("eps", [1e-2, 1e-1, 1.0])
def test_nodes_answer_as_all_targets_do(eps: float) -> None:
    x = draw(6, 200)
    x[0], x[1] = x[0].relu(), torch.cat([x[1][:100], x[1][100:] + 50.0])  # these need more than nodes at eps = 1e-2
    cotangent, out = draw(6, 200, seed=1), []
    for solver in (sinksort.Newton(), BY_TORCH):
        at = x.clone().requires_grad_()
        plan = sinksort.transport(at, eps=eps, solver=solver)
        for read in (plan.ranks, plan.sorted, lambda plan=plan: plan.pull(cotangent)):
            answer = read()
            out.append((answer, *torch.autograd.grad(answer, at, cotangent, retain_graph=True)))
    for ours, theirs in zip(out[:3], out[3:], strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=2e-8)


def test_a_rule_has_fewer_nodes_than_targets_or_is_none() -> None:
    assert nodes.rule_for(60, 1e-2) is None
    rule = nodes.rule_for(200, 1e-2)
    assert rule is not None
    assert rule.y.shape == rule.b.shape == (1, 48)
    assert abs(rule.b.sum() - 1.0) < 1e-12


# ---- what never changes


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 40),
    m=st.integers(1, 40),
    log_eps=st.floats(-4.0, 1.0),
    name=st.sampled_from(list(COSTS)),
    seed=st.integers(0, 10_000),
)
def test_plans_have_their_marginals(n: int, m: int, log_eps: float, name: str, seed: int) -> None:
    g = read_out(1, n, m, 10.0**log_eps, COSTS[name], seed)
    found = exact.solve(g)
    P = g.a.unsqueeze(-1) * exact.shares(g, found.of_targets)
    assert (found.error <= 1e-10).all()
    torch.testing.assert_close(P.sum(-2), g.b, rtol=0, atol=1e-9)
    torch.testing.assert_close(P.sum(-1), g.a, rtol=0, atol=1e-12)


@every_cost
def test_order_batch_and_threads_change_nothing(name: str) -> None:
    x = draw(8, 25)
    options: dict[str, Any] = {"cost": COSTS[name], "eps": 3e-3}
    ranks = sinksort.soft_rank(x, **options)
    perm = torch.randperm(25, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(sinksort.soft_rank(x[:, perm], **options), ranks[:, perm], rtol=0, atol=1e-9)
    assert torch.equal(sinksort.soft_rank(x[3], **options), ranks[3])
    torch.testing.assert_close(sinksort.soft_rank(x, descending=True, **options), 26.0 - ranks, rtol=0, atol=1e-8)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(sinksort.soft_rank(x, **options), ranks)
    finally:
        torch.set_num_threads(threads)


def test_two_python_threads_at_once() -> None:
    x, out = draw(64, 50), {}
    expected = sinksort.soft_rank(x, cost=1.5)

    def work(k: int) -> None:
        out[k] = all(torch.equal(sinksort.soft_rank(x, cost=1.5), expected) for _ in range(5))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert out == {0: True, 1: True}


# ---- who answers


CALLS: dict[str, Callable[..., Tensor]] = {
    "float64": lambda x, **o: sinksort.soft_rank(x, **o),
    "cost": lambda x, **o: sinksort.soft_rank(x.float(), cost=1, **o),
    "eps": lambda x, **o: sinksort.soft_rank(x.float(), eps=torch.tensor(0.01), **o),
    "squash": lambda x, **o: sinksort.soft_rank(x.float(), squash=torch.sigmoid, **o),
    "sort": lambda x, **o: sinksort.soft_sort(x, **o),
    "permutation": lambda x, **o: sinksort.soft_permutation(x, **o),
    "quantile": lambda x, **o: sinksort.soft_quantile(x, 0.3, **o),
    "mask": lambda x, **o: sinksort.soft_topk_mask(x, 3, **o),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_backend_is_said_and_may_be_chosen(name: str) -> None:
    x = draw(3, 12)
    auto = CALLS[name](x)
    assert sinksort.last_backend() == "numba"
    by_name = CALLS[name](x, backend="numba")
    assert sinksort.last_backend() == "numba"
    by_torch = CALLS[name](x, backend="torch")
    assert sinksort.last_backend() == "torch"
    assert torch.equal(auto, by_name)
    torch.testing.assert_close(auto, by_torch, rtol=1e-6, atol=1e-7)


def test_calls_that_numba_cannot_answer_say_why() -> None:
    x = draw(2, 5)
    with pytest.raises(
        ValueError, match=r"^backend='numba' cannot answer this call: its kernels compute in single precision, and x"
    ):
        sinksort.soft_rank(x, backend="numba", solver=sinksort.Sinkhorn())
    with pytest.raises(
        ValueError, match=r"^backend='numba' cannot answer this call: its kernels have their own solver"
    ):
        sinksort.soft_rank(x.float(), backend="numba", solver=sinksort.Newton(compress=False))


def test_plans_show_and_choose_rows() -> None:
    plan = sinksort.transport(draw(3, 200))
    assert repr(plan).startswith("Plan(rows 3, values a row 200, targets a row 200, eps 0.01, iterations ")
    some = plan.chosen(torch.tensor([2, 0]))
    torch.testing.assert_close(some.ranks(), plan.ranks()[[2, 0]], rtol=0, atol=1e-7)
    torch.testing.assert_close(plan.permutation().sum(-1), torch.ones(3, 200, dtype=D))
    reference = sinksort.transport(draw(3, 200), solver=BY_TORCH)
    torch.testing.assert_close(plan.matrix(), reference.matrix(), rtol=0, atol=1e-10)
    (f, g), (f0, g0) = plan.potentials, reference.potentials
    torch.testing.assert_close(
        f.unsqueeze(-1) + g.unsqueeze(-2), f0.unsqueeze(-1) + g0.unsqueeze(-2), rtol=0, atol=1e-8
    )
    torch.testing.assert_close(plan.targets_given_value(), reference.targets_given_value(), rtol=0, atol=1e-8)


def test_nothing_depends_on_what_memory_held() -> None:
    """Masks with weak links, for which Newton's matrix changes from single to double precision."""
    x = draw(40, 19, seed=3)
    k = torch.arange(40, dtype=D) % 18 + 0.5

    def read() -> Tensor:
        return sinksort.soft_topk_mask(x, k, eps=2e-4, weights=1.0 + 1e-8 * x.abs())

    wanted = read()
    for number in (math.nan, 1e300, 0.0, -5.0, 1e-300):
        held = [np.full(size, number) for size in (10, 24, 50, 100, 300, 600, 1000, 2000, 5000, 20000)]
        del held
        assert read().equal(wanted)
