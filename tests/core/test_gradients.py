"""Derivatives: gradcheck, gradgradcheck and forward mode in every input of every operator, and the closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import sinksort
from tests import inputs, oracles
from tests.strategies import tensor


def draw(*shape: int, seed: int = 0, positive: bool = False) -> Tensor:
    t = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (t.abs() + 0.2 if positive else t).requires_grad_()


Leaves = tuple[Tensor, ...]
Function = Callable[..., Any]


def common(
    *, read: Function, n: int = 4, m: int = 3, cost: Any = 2, squash: Any = "sigmoid", eps: float = 0.08, **fixed: Any
) -> tuple[Function, Leaves]:
    """An operator as a function of x, weights, targets, target_weights and eps."""
    y = (torch.linspace(0.05, 0.9, m, dtype=torch.float64) ** 1.2).requires_grad_()
    entropy = torch.tensor(eps, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, a: Tensor, y: Tensor, b: Tensor, eps: Tensor) -> Any:
        return read(x, weights=a, targets=y, target_weights=b, eps=eps, cost=cost, squash=squash, **fixed)

    return function, (draw(2, n), draw(n, seed=1, positive=True), y, draw(m, seed=2, positive=True), entropy)


def quantile(q: Tensor, x: Tensor, a: Tensor, eps: Tensor) -> Tensor:
    return sinksort.soft_quantile(x, q, weights=a, eps=eps)


def membership(k: Tensor, x: Tensor, a: Tensor, eps: Tensor) -> Tensor:
    return sinksort.soft_topk_mask(x, k, weights=a, eps=eps)


EPS = torch.tensor(0.08, dtype=torch.float64, requires_grad=True)
LEVELS = torch.tensor([0.7, 0.25], dtype=torch.float64, requires_grad=True)
COUNTS = torch.tensor([1.5, 2.2], dtype=torch.float64, requires_grad=True)

#: name -> (function, its differentiable inputs)
CASES: dict[str, tuple[Function, Leaves]] = {
    "rank": common(read=sinksort.soft_rank),
    "rank, more targets": common(read=sinksort.soft_rank, n=3, m=5),
    "rank, descending": common(read=sinksort.soft_rank, descending=True),
    "rank, n = 1": common(read=sinksort.soft_rank, n=1, m=2),
    "sort": common(read=sinksort.soft_sort),
    "sort, more targets": common(read=sinksort.soft_sort, n=3, m=4),
    "sort, cost p=1.5": common(read=sinksort.soft_sort, cost=1.5),
    "sort, cost p=1": common(read=sinksort.soft_sort, cost=1),
    "sort, Huber": common(read=sinksort.soft_sort, cost=sinksort.Huber(0.3)),
    "sort, callable cost": common(read=sinksort.soft_sort, cost=lambda u: torch.cosh(u)),
    "rank, arctan": common(read=sinksort.soft_rank, squash="arctan"),
    "rank, callable squash": common(read=sinksort.soft_rank, squash=torch.tanh),
    "permutation": common(read=sinksort.soft_permutation),
    "plan matrix": common(read=lambda *args, **kw: sinksort.transport(*args, **kw).matrix()),
    "rank, Sinkhorn implicit": common(read=sinksort.soft_rank, n=3, eps=0.5, solver=sinksort.Sinkhorn(tolerance=1e-13)),
    "rank, Sinkhorn unrolled": common(
        read=sinksort.soft_rank, n=3, m=2, eps=0.5, solver=sinksort.Sinkhorn(tolerance=1e-13, gradient="unrolled")
    ),
    "rank, masked": (
        lambda x, a: sinksort.soft_rank(x, weights=a, mask=torch.tensor([True, False, True, True]), eps=0.08),
        (draw(2, 4), draw(2, 4, seed=1, positive=True)),
    ),
    "quantile": (quantile, (LEVELS, draw(2, 4), draw(4, seed=1, positive=True), EPS)),
    "median": (lambda x: sinksort.soft_median(x, eps=0.08), (draw(2, 5),)),
    "topk mask": (membership, (COUNTS, draw(2, 4), draw(4, seed=1, positive=True), EPS)),
    "topk": (lambda x, eps: tuple(sinksort.soft_topk(x, 2, eps=eps)), (draw(2, 4), EPS)),
    "topk, all": (lambda x, eps: sinksort.soft_topk(x, 4, eps=eps).values, (draw(2, 4), EPS)),
    "sort_with": (
        lambda values, keys, eps: sinksort.sort_with(values, keys, eps=eps),
        (draw(4, 2, seed=3), draw(4), EPS),
    ),
    "quantile_normalize": (
        lambda x, reference, eps: sinksort.quantile_normalize(x, reference, eps=eps),
        (draw(2, 4), draw(5, seed=4), EPS),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradcheck_and_forward_mode(name: str) -> None:
    function, leaves = CASES[name]
    forward = "unrolled" not in name
    assert gradcheck(function, leaves, check_forward_ad=forward, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_gradgradcheck(name: str) -> None:
    function, leaves = CASES[name]
    assert gradgradcheck(function, leaves, atol=1e-5, rtol=1e-3, fast_mode=True)  # along random directions


@pytest.mark.parametrize(("n", "m"), [(6, 6), (9, 4), (4, 9), (40, 40)])
@pytest.mark.parametrize("eps", [1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("p", [1.5, 2])
def test_agrees_with_the_closed_form(n: int, m: int, eps: float, p: float) -> None:
    """The vector-Jacobian products of the implicit function theorem, written out in NumPy at the oracle's plan."""
    rng = np.random.default_rng(n + m)
    x, y = rng.random(n), oracles.grid(m)
    a, b = inputs.WEIGHTS["random"](rng, n), inputs.WEIGHTS["random"](rng, m)
    v, w = rng.standard_normal(n), rng.standard_normal(m)
    truth = oracles.solve(oracles.cost_matrix(x, y, oracles.power(p)), a, b, eps)
    u = y[None, :] - x[:, None]
    slope = p * np.sign(u) * np.abs(u) ** (p - 1)  # h'(y - x): dC/dy = slope, dC/dx = -slope
    grad_C, grad_a, grad_b = oracles.rank_vjp(truth, v)
    expected = {
        "x": -(grad_C * slope).sum(1),
        "weights": grad_a - grad_a @ a,  # of a / a.sum() at a sum of one
        "targets": (grad_C * slope).sum(0),
        "target_weights": grad_b - grad_b @ b,
    }
    leaves = {"x": x, "weights": a, "targets": y, "target_weights": b}
    leaf = {name: tensor(t).requires_grad_() for name, t in leaves.items()}
    options = {name: t for name, t in leaf.items() if name != "x"}
    ranks = sinksort.soft_rank(leaf["x"], **options, eps=eps, cost=p, squash=None)
    gradients = torch.autograd.grad((ranks * tensor(v)).sum(), list(leaf.values()))
    for name, gradient in zip(leaf, gradients, strict=True):
        np.testing.assert_allclose(
            gradient.numpy(), expected[name], rtol=0, atol=1e-7 * np.abs(expected[name]).max() + 1e-9, err_msg=name
        )

    sorts = sinksort.soft_sort(leaf["x"], **options, eps=eps, cost=p, squash=None)
    (gradient,) = torch.autograd.grad((sorts * tensor(w)).sum(), leaf["x"])
    grad_C, direct = oracles.sort_vjp(truth, x, w)
    expected_x = -(grad_C * slope).sum(1) + direct
    np.testing.assert_allclose(gradient.numpy(), expected_x, rtol=0, atol=1e-7 * np.abs(expected_x).max())


@pytest.mark.parametrize("n", [100, 512])
@pytest.mark.parametrize("eps", [1e-3, 1e-2])
def test_large_rows_against_differences_along_a_direction(n: int, eps: float) -> None:
    rng = np.random.default_rng(n)
    x, direction = tensor(rng.random(n)), tensor(rng.standard_normal(n))
    v = tensor(rng.standard_normal(n))

    def loss(t: Tensor) -> Tensor:
        return (sinksort.soft_rank(t, eps=eps, solver=sinksort.Newton(tolerance=1e-13)) * v).sum()

    (gradient,) = torch.autograd.grad(loss(leaf := x.clone().requires_grad_()), leaf)
    step = 1e-6
    numeric = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    torch.testing.assert_close(gradient @ direction, numeric, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("read", [sinksort.soft_rank, sinksort.soft_sort], ids=lambda f: f.__name__)
@pytest.mark.parametrize("target_side", [False, True])
@pytest.mark.parametrize("weightless", [0.1, 4.0, -3.0])
def test_zero_weight_has_the_one_sided_derivative(read: Function, target_side: bool, weightless: float) -> None:
    """At a weight of zero only an increase is possible: the gradient is the derivative in that direction."""
    x = draw(5, seed=6).detach()
    x[1] = weightless  # in the middle, or beyond all others
    a = torch.tensor([0.3, 0.0, 0.2, 0.4, 0.1], dtype=torch.float64)
    b = torch.tensor([0.2, 0.0, 0.5, 0.3], dtype=torch.float64)
    v = draw(5 if read is sinksort.soft_rank else 4, seed=7).detach()

    def loss(w: Tensor) -> Tensor:
        pair = {"weights": a, "target_weights": w} if target_side else {"weights": w, "target_weights": b}
        return (read(x, **pair, eps=0.05, solver=sinksort.Newton(tolerance=1e-13)) * v).sum()

    at = (b if target_side else a).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(at), at)
    step = 1e-5
    up = torch.zeros_like(at)
    up[1] = step
    with torch.no_grad():  # second-order one-sided difference
        numeric = (-3 * loss(at) + 4 * loss(at + up) - loss(at + 2 * up)) / (2 * step)
    torch.testing.assert_close(gradient[1], numeric, rtol=1e-5, atol=1e-5)


def test_forward_mode_equals_reverse_mode_at_small_entropy() -> None:
    x, t = draw(30, seed=1).detach(), draw(30, seed=2).detach()
    v = draw(30, seed=3).detach()
    with forward_ad.dual_level():
        pushed = forward_ad.unpack_dual(sinksort.soft_rank(forward_ad.make_dual(x, t), eps=1e-3)).tangent
    leaf = x.clone().requires_grad_()
    (pulled,) = torch.autograd.grad((sinksort.soft_rank(leaf, eps=1e-3) * v).sum(), leaf)
    torch.testing.assert_close(pushed @ v, pulled @ t, rtol=1e-8, atol=1e-8)


def test_gradients_of_a_sum_that_cannot_change() -> None:
    """sum_i a_i R_i = n sum_j b_j b_bar_j and sum_j b_j S_j = sum_i a_i x_i whatever x is: conservation of mass."""
    x = draw(3, 7, seed=4)
    (ranks_move,) = torch.autograd.grad(sinksort.soft_rank(x, eps=1e-2).sum(), x)
    torch.testing.assert_close(ranks_move, torch.zeros_like(x), rtol=0, atol=1e-8)
    (sorts_move,) = torch.autograd.grad(sinksort.soft_sort(x, eps=1e-2).sum(), x)
    torch.testing.assert_close(sorts_move, torch.ones_like(x), rtol=0, atol=1e-8)


def test_a_learned_eps_per_row_only_moves_its_row() -> None:
    x, eps = draw(3, 5).detach(), torch.tensor([1e-2, 1e-1, 1.0], dtype=torch.float64, requires_grad=True)
    ranks = sinksort.soft_rank(x, eps=eps)
    (gradient,) = torch.autograd.grad((ranks[1] * torch.arange(5.0, dtype=torch.float64)).sum(), eps)
    assert gradient[1].abs() > 1e-3
    assert gradient[[0, 2]].tolist() == [0.0, 0.0]
