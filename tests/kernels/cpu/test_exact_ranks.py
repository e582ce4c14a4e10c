"""Ranks by the exact family in one go: against the torch reference, by gradcheck, and what never changes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import sinksort
from sinksort.kernels.cpu.exact import laplacian
from tests import oracles

D = torch.float64
BY_TORCH = sinksort.Newton(tolerance=1e-12)
COSTS = {"1": 1, "1.5": 1.5, "2": 2, "9.5": 9.5, "Huber": sinksort.Huber(0.1)}
SQUASHES = ["sigmoid", "arctan", None]
every_cost = pytest.mark.parametrize("name", COSTS)
every_squash = pytest.mark.parametrize("squash", SQUASHES)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def positive(*shape: int, seed: int = 0) -> Tensor:
    return draw(*shape, seed=seed).abs() + 0.2


def placed(x: Tensor, squash: str | None) -> Tensor:
    return x.sigmoid() if squash is None else x


def both(x: Tensor, cotangent: Tensor, weights: Tensor | None, **options: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Ranks and gradients in x, weights and eps, by kernels and by torch."""
    found = []
    for solver in (sinksort.Newton(), BY_TORCH):
        own = x.clone().requires_grad_()
        a = None if weights is None else weights.clone().requires_grad_()
        eps = torch.tensor(options.get("eps", 0.02), dtype=D, requires_grad=True)
        ranks = sinksort.soft_rank(own, weights=a, solver=solver, **(options | {"eps": eps}))
        wanted = [t for t in (own, a, eps) if t is not None]
        found.append([ranks.detach(), *torch.autograd.grad(ranks, wanted, cotangent)])
    return found[0], found[1]


# ---- against the truth


@every_cost
@every_squash
@pytest.mark.parametrize("eps", [1e-3, 2e-2, 0.5])
def test_ranks_and_gradients_are_those_of_the_torch_reference(name: str, squash: str | None, eps: float) -> None:
    x = placed(draw(3, 30), squash)
    for weights in (None, positive(3, 30, seed=1), positive(30, seed=2)):
        ours, theirs = both(x, draw(3, 30, seed=3), weights, eps=eps, cost=COSTS[name], squash=squash)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8 * other.abs().max().item())


@pytest.mark.parametrize("eps", [1e-4, 1e-3, 1e-2, 1e-1, 1.0])
def test_ranks_are_those_of_the_dense_problem(eps: float) -> None:
    """The oracle works with long numbers and knows nothing of the family."""
    n = 24
    x, y, a = draw(n).sort().values, oracles.grid(n), np.full(n, 1.0 / n)
    C = oracles.cost_matrix(oracles.squashed(x.numpy()), y)
    P = np.asarray(oracles.solve(C, a, a, eps).P, dtype=float)
    np.testing.assert_allclose(sinksort.soft_rank(x, eps=eps), n * n * P @ np.cumsum(a), rtol=0, atol=1e-8 * n)


@every_squash
def test_rows_of_every_kind(squash: str | None) -> None:
    """Infinite values, huge and tiny units, constants, ties, values that weigh nothing."""
    x = placed(draw(8, 12), squash)
    x[0, 3], x[0, 5] = math.inf, -math.inf
    if squash is not None:
        x[1], x[2] = 1e200 * x[1], 1e-200 * x[2]
    x[3], x[4] = 0.5, x[4].clamp(min=0.4)
    weights = positive(8, 12, seed=1)
    weights[5, 2], weights[6, [0, 11]] = 0.0, 0.0
    ours, theirs = both(x, draw(8, 12, seed=2), weights, squash=squash)
    for one, other in zip(ours, theirs, strict=True):
        assert one.isfinite().all()
        for row, exact in zip(
            one.reshape(-1, 12 if one.ndim else 1), other.reshape(-1, 12 if one.ndim else 1), strict=True
        ):
            torch.testing.assert_close(row, exact, rtol=1e-7, atol=1e-8 * exact.abs().max().item())


@pytest.mark.parametrize("options", [{"descending": True}, {"num_targets": 7}, {"num_targets": 1}, {"dim": 0}])
def test_options_of_the_read_out(options: dict[str, Any]) -> None:
    x, cotangent = draw(20, 11), draw(20, 11, seed=1)
    ours, theirs = both(x, cotangent, positive(20, 11, seed=2), **options)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


def test_eps_may_differ_from_row_to_row() -> None:
    x, eps = draw(3, 15), torch.tensor([1e-3, 1e-2, 1.0], dtype=D)
    ranks = sinksort.soft_rank(x, eps=eps)
    for row, number, own in zip(ranks, eps, x, strict=True):
        torch.testing.assert_close(row, sinksort.soft_rank(own, eps=number.item()), rtol=0, atol=1e-10)


def test_a_rule_that_is_too_coarse_for_some_rows_changes_no_answer() -> None:
    """Two far groups need more than 48 nodes. Their rows get all targets; other rows do not see that."""
    x = draw(6, 200)
    x[1], x[4] = torch.cat([x[1][:100], x[1][100:] + 50.0]), x[4].relu()
    cotangent = draw(6, 200, seed=1)
    ours, theirs = both(x, cotangent, None)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7 * other.abs().max().item())
    for row in range(6):
        assert torch.equal(sinksort.soft_rank(x[row], eps=0.02), sinksort.soft_rank(x, eps=0.02)[row])


def test_rows_longer_than_all_targets_are_taken_for() -> None:
    x = draw(2, 3000).requires_grad_()
    ranks = sinksort.soft_rank(x)
    assert sinksort.last_backend() == "numba"
    (slopes,) = torch.autograd.grad(ranks, x, cotangent := draw(2, 3000, seed=1))
    by_torch = sinksort.soft_rank(x, backend="torch")
    (theirs,) = torch.autograd.grad(by_torch, x, cotangent)
    torch.testing.assert_close(ranks, by_torch, rtol=0, atol=3e-5)
    torch.testing.assert_close(slopes, theirs, rtol=0, atol=1e-6 * theirs.abs().max().item())


def test_single_precision_is_rounded_from_double() -> None:
    """A learned weight takes float32 rows to the family."""
    x, a = draw(4, 60), positive(4, 60, seed=1)
    for eps in (1e-3, 1e-2, 1e-1):
        single = [t.float().requires_grad_() for t in (x, a)]
        double = [t.detach().double().requires_grad_() for t in single]
        cotangent, found = draw(4, 60, seed=2), []
        for own in (single, double):
            ranks = sinksort.soft_rank(own[0], weights=own[1], eps=eps)
            found.append((ranks, *torch.autograd.grad(ranks, own, cotangent.to(ranks.dtype))))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-6 * other.abs().max().item())


# ---- derivatives


@every_cost
@every_squash
def test_gradcheck(name: str, squash: str | None) -> None:
    x, a = placed(draw(2, 7), squash), positive(2, 7, seed=1)
    eps = torch.tensor([0.05, 0.2], dtype=D)

    def ranks(x: Tensor, a: Tensor, eps: Tensor) -> Tensor:
        return sinksort.soft_rank(x, weights=a, eps=eps, cost=COSTS[name], squash=squash)

    assert gradcheck(ranks, [t.clone().requires_grad_() for t in (x, a, eps)])


@every_squash
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [2, 7])
def test_gradgradcheck_in_the_values(squash: str | None, weighted: bool, n: int) -> None:
    x = placed(draw(2, n), squash).requires_grad_()
    a = positive(2, n, seed=1) if weighted else None
    assert gradgradcheck(lambda x: sinksort.soft_rank(x, weights=a, eps=0.05, squash=squash), x)


def test_gradgradcheck_in_everything() -> None:
    x, a, eps = draw(1, 5), positive(1, 5, seed=1), torch.tensor(0.1, dtype=D)
    own = [t.clone().requires_grad_() for t in (x, a, eps)]
    assert gradgradcheck(lambda x, a, eps: sinksort.soft_rank(x, weights=a, eps=eps), own)
    assert gradgradcheck(lambda x: sinksort.soft_rank(x, cost=1.5, eps=0.1), own[0])


def test_second_derivatives_that_are_differentiated_again_are_the_same() -> None:
    x, w, along = draw(2, 9).requires_grad_(), draw(2, 9, seed=1).requires_grad_(), draw(2, 9, seed=2)
    (slopes,) = torch.autograd.grad(sinksort.soft_rank(x, eps=0.05), x, w, create_graph=True)
    once = torch.autograd.grad(slopes, (x, w), along, retain_graph=True)
    more = torch.autograd.grad(slopes, (x, w), along, create_graph=True)
    for one, other in zip(once, more, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("eps", [1e-3, 1e-2])
@pytest.mark.parametrize("n", [30, 100])
@pytest.mark.parametrize("descending", [False, True])
def test_second_derivatives_of_fast_ranks(eps: float, n: int, descending: bool) -> None:
    """float32 ranks, differentiated twice, against all targets in float64 by torch."""
    x, cotangent, along = draw(4, n), draw(4, n, seed=1), draw(4, n, seed=2)
    found = []
    for dtype, solver in ((torch.float32, sinksort.Newton()), (D, sinksort.Newton(compress=False))):
        own, w = x.to(dtype).requires_grad_(), cotangent.to(dtype).requires_grad_()
        ranks = sinksort.soft_rank(own, eps=eps, descending=descending, solver=solver)
        (slopes,) = torch.autograd.grad(ranks, own, w, create_graph=True)
        found.append((slopes.detach(), *torch.autograd.grad(slopes, (own, w), along.to(dtype))))
    for one, other in zip(*found, strict=True):
        for row, exact in zip(one.double(), other, strict=True):
            torch.testing.assert_close(row, exact, rtol=0, atol=2e-4 * exact.abs().max().item())


def test_several_cotangents_at_once() -> None:
    x = draw(3, 6).requires_grad_()
    ranks, many = sinksort.soft_rank(x), draw(4, 3, 6, seed=1)
    (found,) = torch.autograd.grad(ranks, x, many, is_grads_batched=True, retain_graph=True)
    for one, w in zip(found, many, strict=True):
        torch.testing.assert_close(one, torch.autograd.grad(ranks, x, w, retain_graph=True)[0])


def test_values_that_were_written_over_have_no_gradient() -> None:
    x = draw(2, 6)
    own = x.clone().requires_grad_()
    moved = own * 1.0
    ranks = sinksort.soft_rank(moved)
    moved.data.add_(0.0)
    with torch.no_grad():
        moved.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        ranks.sum().backward()


def test_inference_mode_leaves_nothing_behind() -> None:
    n = 37  # a length that no other test has
    with torch.inference_mode():
        sinksort.soft_rank(draw(2, n))
    x = draw(2, n).requires_grad_()
    (slopes,) = torch.autograd.grad(sinksort.soft_rank(x).square().sum(), x)
    assert slopes.isfinite().all()


# ---- the matrix


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("K", [16, 48, 112])
def test_the_matrix_is_that_of_a_dense_solver(dtype: type, K: int) -> None:
    rng = np.random.default_rng(K)
    P = rng.random((K + 8, K))
    edges = np.triu(P.T @ P, 1)
    ground = 1e-13 if dtype is np.float64 else 1e-7
    t = rng.normal(size=K)
    t -= t.mean()
    L = np.diag((edges + edges.T).sum(0)) - edges - edges.T
    wanted = np.linalg.lstsq(L, t, rcond=None)[0]
    found = solved(edges, t, ground, dtype)
    np.testing.assert_allclose(
        found - found.mean(), wanted, rtol=0, atol=np.abs(wanted).max() * (1e-10 if dtype is np.float64 else 1e-4)
    )


@pytest.mark.parametrize("weak", [1e-3, 1e-9, 1e-13])
def test_a_path_with_a_weak_link_keeps_all_digits(weak: float) -> None:
    """What flows from end to end of a path drops by 1 / w at each edge."""
    K = 48
    w = np.linspace(1.0, 2.0, K - 1)
    w[20] = weak
    t = np.zeros(K)
    t[0], t[-1] = 1.0, -1.0
    found = solved(np.diag(w, 1), t, 1e-24, np.float64)
    np.testing.assert_allclose(-np.diff(found)[20] * weak, 1.0, rtol=1e-8)


def solved(edges: np.ndarray, t: np.ndarray, ground: float, dtype: type) -> np.ndarray:
    """The potentials that drive the flow t through a graph, by the family's elimination."""
    K = len(t)
    S, ends = K, np.full(K, K)
    W = stored(edges, dtype)
    corners, inverse, down = np.empty(48 * K + 272, dtype), np.empty(K, dtype), np.empty(K, dtype)
    laplacian.corners_of(corners)
    laplacian.eliminate(W, K, S, ends, np.ones(K), ground, down, inverse, corners)
    solution = t.astype(dtype)
    laplacian.substitute(W, K, S, ends, inverse, corners, solution)
    return solution.astype(float)


def stored(edges: np.ndarray, dtype: type) -> np.ndarray:
    """Row k of a matrix at k S - (k & -16), from the first of its sixteen columns on."""
    K = len(edges)
    W = np.zeros(K * K + 16, dtype)
    for k in range(K):
        block = k & -16
        W[k * K : k * K + K - block] = edges[k, block:]
    return W


# ---- sorts, payloads and shares


def pushed(x: Tensor, payload: Tensor, solver: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    weights = options.pop("weights")
    sorts = sinksort.soft_sort(x, weights=weights, solver=solver, **options)
    carried = sinksort.sort_with(payload, x, solver=solver, **options)
    return sorts, carried, sinksort.soft_permutation(x, weights=weights, solver=solver, **options)


@every_cost
@every_squash
@pytest.mark.parametrize("options", [{}, {"descending": True, "num_targets": 9}, {"num_targets": 30}])
def test_what_targets_get_is_that_of_the_torch_reference(
    name: str, squash: str | None, options: dict[str, Any]
) -> None:
    x, a, payload = placed(draw(3, 20), squash), positive(3, 20, seed=1), draw(3, 20, 2, seed=2)
    a[1, 4] = 0.0
    found = []
    for solver in (sinksort.Newton(), BY_TORCH):
        own = [t.clone().requires_grad_() for t in (x, a, payload, torch.tensor(0.02, dtype=D))]
        out = pushed(own[0], own[2], solver, weights=own[1], eps=own[3], cost=COSTS[name], squash=squash, **options)
        loss = sum((t * draw(*t.shape, seed=k)).sum() for k, t in enumerate(out))
        found.append([*out, *torch.autograd.grad(loss, own)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8 * other.abs().max().item())


@pytest.mark.parametrize("eps", [1e-3, 2e-2])
def test_shares_are_those_of_nodes_where_they_are_enough(eps: float) -> None:
    """At eps = 0.02 a rule serves four of these rows of 200 values; two far groups and ties get all targets."""
    x = draw(6, 200)
    x[1], x[4] = torch.cat([x[1][:100], x[1][100:] + 50.0]), x[4].relu()
    found = []
    for solver in (sinksort.Newton(), BY_TORCH):
        own, w = x.clone().requires_grad_(), draw(6, 200, seed=1)
        sorts, carried, shares = pushed(own, w, solver, weights=None, eps=eps)
        loss = (sorts * w).sum() + (carried * w.cos()).sum() + (shares * draw(6, 200, 200, seed=2)).sum()
        found.append([sorts, carried, shares, *torch.autograd.grad(loss, own)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7 * other.abs().max().item())


def test_gradcheck_of_sorts_and_shares() -> None:
    x, a, payload = draw(2, 6), positive(2, 6, seed=1), draw(2, 6, seed=2)
    own = [t.requires_grad_() for t in (x, a, payload, torch.tensor(0.05, dtype=D))]

    def read(x: Tensor, a: Tensor, payload: Tensor, eps: Tensor) -> tuple[Tensor, ...]:
        return pushed(x, payload, sinksort.Newton(), weights=a, eps=eps, num_targets=4)

    assert gradcheck(read, own)
    assert gradgradcheck(lambda x: pushed(x, payload.detach(), sinksort.Newton(), weights=None, eps=0.1), own[0])


def test_equal_payloads_come_out_as_they_are() -> None:
    x = draw(3, 30)
    assert torch.equal(sinksort.sort_with(torch.full((3, 30), 0.1, dtype=D), x), torch.full((3, 30), 0.1, dtype=D))


def test_infinite_values_are_sorted_to_the_ends() -> None:
    x = draw(2, 10)
    x[0, 3], x[1, 4], x[1, 5] = math.inf, -math.inf, math.nan
    sorts = sinksort.soft_sort(x, eps=1e-3)
    torch.testing.assert_close(sorts, sinksort.soft_sort(x, eps=1e-3, solver=BY_TORCH), equal_nan=True)
    shares = sinksort.soft_permutation(x, eps=1e-3)
    assert shares[1].isnan().all()
    torch.testing.assert_close(shares[0].sum(-1), torch.ones(10, dtype=D))


@pytest.mark.parametrize("eps", [1e-3, 1e-2])
def test_single_precision_shares_are_rounded_from_double(eps: float) -> None:
    x, cotangent, found = draw(3, 100), draw(3, 100, 100, seed=1), []
    for dtype in (torch.float32, D):
        own = x.float().to(dtype).requires_grad_()
        shares = sinksort.soft_permutation(own, eps=eps)
        found.append((shares, *torch.autograd.grad(shares, own, cotangent.float().to(dtype))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-6 * other.abs().max().item())


@pytest.mark.parametrize("name", ["1.5", "2"])
def test_order_and_batch_change_no_sort(name: str) -> None:
    x, options = draw(5, 25), {"cost": COSTS[name], "eps": 3e-3}
    sorts, shares = sinksort.soft_sort(x, **options), sinksort.soft_permutation(x, **options)
    perm = torch.randperm(25, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(sinksort.soft_sort(x[:, perm], **options), sorts, rtol=0, atol=1e-12)
    torch.testing.assert_close(sinksort.soft_permutation(x[:, perm], **options), shares[..., perm], rtol=0, atol=1e-12)
    assert torch.equal(sinksort.soft_sort(x[3], **options), sorts[3])
