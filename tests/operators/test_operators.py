"""Every operator by itself: known answers, and the dense problem that it poses solved in NumPy or by POT."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

import sinksort
import sinksort.distributed
import sinksort.losses
import sinksort.streaming
from tests import inputs, oracles
from tests.strategies import tensor

#: What an operator is told, and what that means in NumPy.
OPTIONS: dict[str, tuple[dict[str, Any], str | None, oracles.Cost]] = {
    "default": ({"eps": 1e-2}, "sigmoid", oracles.SQUARED),
    "sharp": ({"eps": 1e-3}, "sigmoid", oracles.SQUARED),
    "soft, arctan": ({"eps": 0.3, "squash": "arctan"}, "arctan", oracles.SQUARED),
    "p = 1.5": ({"eps": 2e-2, "cost": 1.5}, "sigmoid", oracles.power(1.5)),
    "Huber": ({"eps": 2e-2, "cost": sinksort.Huber(0.2)}, "sigmoid", oracles.huber(0.2)),
}
every_option = pytest.mark.parametrize("option", OPTIONS)


def truth_of(x: np.ndarray, b: np.ndarray, option: str, a: np.ndarray | None = None) -> oracles.Truth:
    """The plan from x onto the regular grid with weights b."""
    said, squash, h = OPTIONS[option]
    a = np.full(len(x), 1 / len(x)) if a is None else a
    C = oracles.cost_matrix(oracles.squashed(x, a, squash), oracles.grid(len(b)), h)
    return oracles.solve(C, a, b, said["eps"])


def quantile_fillers(q: float, t: float) -> np.ndarray:
    """The paper's three targets, with the filler kept inside [0, 1]."""
    below = min(max(q - t / 2, 0.0), 1.0 - t)
    return np.array([below, t, max(1.0 - t - below, 0.0)])


# ---- quantiles


@every_option
@pytest.mark.parametrize("weighted", [False, True])
def test_quantiles_are_those_of_the_dense_problem(option: str, weighted: bool) -> None:
    levels = [0.3, 0.0, 1.0, 0.77, 0.3, 0.05]
    for n, width in ((9, None), (20, 0.15), (3, None)):
        x = inputs.values("normal", n, n)
        a = inputs.weights("random", n, 1) if weighted else None
        expected = [truth_of(x, quantile_fillers(q, width or 1 / n), option, a).sorts(x)[1] for q in levels]
        said = {**OPTIONS[option][0], "width": width, "weights": None if a is None else tensor(a)}
        out = sinksort.soft_quantile(tensor(x), levels, **said)
        np.testing.assert_allclose(out.numpy(), expected, rtol=0, atol=1e-8 * np.ptp(x))


@pytest.mark.parametrize("q", [0.1, 0.5, 0.62])
def test_a_quantile_is_that_of_pot(q: float) -> None:
    x = inputs.values("exponential", 12, 3)
    b = quantile_fillers(q, 1 / 12)
    P = oracles.pot_plan(oracles.cost_matrix(oracles.squashed(x), oracles.grid(3)), np.full(12, 1 / 12), b, 2e-2)
    out = sinksort.soft_quantile(tensor(x), q, eps=2e-2)
    np.testing.assert_allclose(out.item(), (P.T @ x / b)[1], rtol=0, atol=1e-8)


def test_a_sharp_quantile_is_the_average_over_the_width() -> None:
    """At eps -> 0 a filler at q receives the values between q - t/2 and q + t/2 of the mass, cut off at the ends."""
    x = torch.tensor([4.0, 1.0, 3.0, 2.0], dtype=torch.float64)
    levels = [0.0, 0.125, 0.25, 0.5, 0.55, 0.75, 1.0]
    out = sinksort.soft_quantile(x, levels, eps=1e-5)
    expected = torch.tensor([1.0, 1.0, 1.5, 2.5, 2.7, 3.5, 4.0], dtype=torch.float64)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    # Half of all values, around the middle; and all of them, wherever.
    torch.testing.assert_close(
        sinksort.soft_quantile(x, 0.5, width=0.5, eps=1e-5), torch.tensor(2.5, dtype=torch.float64)
    )
    torch.testing.assert_close(sinksort.soft_quantile(x, [0.1, 0.9], width=1.0, eps=1e-5), x.mean().expand(2))


@pytest.mark.parametrize("n", [11, 101])
def test_sharp_quantiles_at_the_data_are_those_of_torch(n: int) -> None:
    """Where the level is the middle of a value's own mass, that value is the quantile."""
    x = torch.randperm(n, generator=torch.Generator().manual_seed(n)).double()
    levels = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    out = sinksort.soft_quantile(x, levels, eps=1e-7)
    torch.testing.assert_close(out, x.sort().values, rtol=0, atol=1e-6)
    torch.testing.assert_close(sinksort.soft_median(x, eps=1e-7), x.median(), rtol=0, atol=1e-6)


def test_levels_do_not_know_of_each_other() -> None:
    x = tensor(inputs.table(["normal", "tied", "outlier"], 3, 8, 2))
    levels = [0.9, 0.0, 0.2, 0.9, 1.0, 0.2000001]
    together = sinksort.soft_quantile(x, levels)
    for q, row in zip(levels, together, strict=True):
        torch.testing.assert_close(row, sinksort.soft_quantile(x, q), rtol=0, atol=1e-11)


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 5, 3)])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("q", [0.25, torch.tensor(0.25), torch.tensor([0.25]), torch.tensor([0.9, 0.0, 0.9])])
def test_shapes_are_those_of_torch_quantile(shape: tuple[int, ...], keepdim: bool, q: Any) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for dim in range(-len(shape), len(shape)):
        expected = torch.quantile(x, q, dim=dim, keepdim=keepdim)
        out = sinksort.soft_quantile(x, q, dim=dim, keepdim=keepdim)
        assert out.shape == expected.shape
        along = sinksort.soft_quantile(x.movedim(dim, -1).contiguous(), q)
        assert torch.equal(
            out, along.unsqueeze(dim if dim < 0 else dim + along.ndim - x.ndim + 1) if keepdim else along
        )


def test_q_may_be_a_list_a_tuple_or_a_tensor() -> None:
    x = torch.randn(6, generator=torch.Generator().manual_seed(0))
    expected = sinksort.soft_quantile(x, torch.tensor([0.25, 0.75]))
    assert torch.equal(sinksort.soft_quantile(x, [0.25, 0.75]), expected)
    assert torch.equal(sinksort.soft_quantile(x, (0.25, 0.75)), expected)
    assert sinksort.soft_quantile(x, []).shape == (0,)
    assert torch.equal(sinksort.soft_quantile(x, 1), sinksort.soft_quantile(x, 1.0))


@every_option
def test_median_is_the_middle_of_three_targets(option: str) -> None:
    x = inputs.values("heavy_tailed", 8, 1)
    expected = truth_of(x, np.array([7 / 16, 1 / 8, 7 / 16]), option).sorts(x)[1]
    out = sinksort.soft_median(tensor(x), **OPTIONS[option][0])
    np.testing.assert_allclose(out.item(), expected, rtol=0, atol=1e-8 * np.ptp(x))
    assert sinksort.soft_median(torch.zeros(2, 3, 4), dim=1, keepdim=True).shape == (2, 1, 4)


# ---- top-k


def membership(x: np.ndarray, k: float, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Two targets have a closed form: m_i = sigmoid((2 x~_i - 1 + c)/eps), with c such that it sums to k. And dm/dk."""
    z = 2 * oracles.squashed(x) - 1

    def mask(c: float) -> np.ndarray:
        return 1 / (1 + np.exp(-np.clip((z + c) / eps, -700, 700)))

    m = mask(brentq(lambda c: mask(c).sum() - k, -40, 40, xtol=1e-15, rtol=1e-14, maxiter=500))
    slope = m * (1 - m)
    return m, slope / slope.sum()


@pytest.mark.parametrize("eps", [1e-3, 1e-2, 1e-1, 1.0])
@pytest.mark.parametrize("kind", ["normal", "tied", "clusters_3"])
def test_mask_has_a_closed_form_and_so_has_its_derivative_in_k(kind: str, eps: float) -> None:
    x = inputs.values(kind, 10, 4)
    for count in (1, 2.5, 7, 9.9) if eps > 1e-3 else (0.8, 2.5, 9.9):  # a hard mask has a kink at whole numbers
        expected, slope = membership(x, count, eps)
        k = torch.tensor(count, dtype=torch.float64, requires_grad=True)
        mask = sinksort.soft_topk_mask(tensor(x), k, eps=eps)
        np.testing.assert_allclose(mask.detach().numpy(), expected, rtol=0, atol=1e-8)
        pattern = torch.arange(10, dtype=torch.float64)
        (grad,) = torch.autograd.grad((mask * pattern).sum(), k)
        np.testing.assert_allclose(grad.item(), slope @ pattern.numpy(), rtol=1e-5)


@every_option
def test_mask_is_that_of_the_dense_problem(option: str) -> None:
    x, a = inputs.values("normal", 8, 5), inputs.weights("random", 8, 6)
    for k in (2, 3.3):
        truth = truth_of(x, np.array([1 - k / 8, k / 8]), option, a)
        top = sinksort.soft_topk_mask(tensor(x), k, weights=tensor(a), **OPTIONS[option][0])
        np.testing.assert_allclose(top.numpy(), truth.density[:, 1] * k / 8, rtol=0, atol=1e-8)
        truth = truth_of(x, np.array([k / 8, 1 - k / 8]), option, a)
        low = sinksort.soft_topk_mask(tensor(x), k, largest=False, weights=tensor(a), **OPTIONS[option][0])
        np.testing.assert_allclose(low.numpy(), truth.density[:, 0] * k / 8, rtol=0, atol=1e-8)


@pytest.mark.parametrize("eps", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("largest", [True, False])
def test_mask_sums_to_k_and_stays_in_zero_one(eps: float, largest: bool) -> None:
    x = tensor(inputs.table(list(inputs.KINDS), 11, 7, 3))
    for k in (0, 0.4, 1, 3.5, 6, 7):
        mask = sinksort.soft_topk_mask(x, k, largest=largest, eps=eps)
        torch.testing.assert_close(mask.sum(-1), torch.full((11,), float(k), dtype=torch.float64), rtol=0, atol=1e-8)
        assert mask.min() >= 0
        assert mask.max() <= 1
    assert sinksort.soft_topk_mask(x, 0, eps=eps).max() < 1e-20  # nobody
    torch.testing.assert_close(sinksort.soft_topk_mask(x, 7, eps=eps), torch.ones_like(x), rtol=0, atol=1e-12)


def test_one_k_for_each_row() -> None:
    x = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    k = torch.tensor([[1.0, 2.5, 6.0], [0.0, 3.0, 5.9]], dtype=torch.float64)
    mask = sinksort.soft_topk_mask(x, k)
    torch.testing.assert_close(mask.sum(-1), k, rtol=0, atol=1e-8)
    for row in np.ndindex(2, 3):
        torch.testing.assert_close(mask[row], sinksort.soft_topk_mask(x[row], k[row].item()), rtol=0, atol=1e-9)
    shared = sinksort.soft_topk_mask(x, torch.tensor([[1.0], [2.0]]))  # broadcasts over the rows
    torch.testing.assert_close(shared.sum(-1), torch.tensor([[1.0] * 3, [2.0] * 3], dtype=torch.float64))
    along = sinksort.soft_topk_mask(x, torch.full((2, 6), 1.5), dim=1)
    torch.testing.assert_close(along.sum(1), torch.full((2, 6), 1.5, dtype=torch.float64))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sharp_topk_is_torch_topk(largest: bool, dim: int) -> None:
    x = torch.randperm(24, generator=torch.Generator().manual_seed(1)).reshape(4, 6).double()
    n = x.shape[dim]
    for k in range(1, n + 1):
        hard = torch.topk(x, k, dim=dim, largest=largest)
        values, mask = sinksort.soft_topk(x, k, dim=dim, largest=largest, eps=1e-5)
        torch.testing.assert_close(values, hard.values, rtol=0, atol=1e-5)
        torch.testing.assert_close(mask, torch.zeros_like(x).scatter(dim, hard.indices, 1.0), rtol=0, atol=1e-5)


@every_option
def test_topk_values_are_those_of_the_dense_problem(option: str) -> None:
    x = inputs.values("normal", 7, 8)
    for k in (1, 3, 6):
        b = np.array([1 / 7] * k + [(7 - k) / 7])
        low = sinksort.soft_topk(tensor(x), k, largest=False, **OPTIONS[option][0])
        np.testing.assert_allclose(low.values.numpy(), truth_of(x, b, option).sorts(x)[:k], rtol=0, atol=1e-8)
        top = sinksort.soft_topk(tensor(x), k, **OPTIONS[option][0])
        expected = truth_of(x, b[::-1].copy(), option).sorts(x)[::-1][:k]
        np.testing.assert_allclose(top.values.numpy(), expected, rtol=0, atol=1e-8)
        assert torch.equal(top.mask, sinksort.soft_topk_mask(tensor(x), k, **OPTIONS[option][0]))
    everything = sinksort.soft_topk(tensor(x), 7, **OPTIONS[option][0])
    expected = truth_of(x, np.full(7, 1 / 7), option).sorts(x)[::-1]
    np.testing.assert_allclose(everything.values.numpy(), expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(everything.mask, torch.ones(7, dtype=torch.float64))


def test_topk_is_a_named_tuple() -> None:
    top = sinksort.soft_topk(torch.tensor([0.1, 0.9, 0.5]), 1)
    assert isinstance(top, sinksort.TopK)
    assert top._fields == ("values", "mask")
    assert top[0] is top.values
    assert top[1] is top.mask


# ---- permutations and payloads


@every_option
@pytest.mark.parametrize("m", [2, 6, 9])
def test_permutation_is_that_of_the_dense_problem(option: str, m: int) -> None:
    x, a, b = inputs.values("normal", 6, 1), inputs.weights("random", 6, 2), inputs.weights("random", m, 3)
    said = {**OPTIONS[option][0], "weights": tensor(a), "target_weights": tensor(b)}
    matrix = sinksort.soft_permutation(tensor(x), **said)
    truth = truth_of(x, b, option, a)
    np.testing.assert_allclose(matrix.numpy(), (truth.density * a[:, None]).T, rtol=0, atol=1e-8)
    np.testing.assert_allclose(matrix.sum(-1).numpy(), np.ones(m), rtol=0, atol=1e-9)
    torch.testing.assert_close(matrix @ tensor(x), sinksort.soft_sort(tensor(x), **said), rtol=0, atol=1e-12)


@pytest.mark.parametrize("descending", [False, True])
def test_permutation_sorts_batches(descending: bool) -> None:
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = sinksort.soft_permutation(x, descending=descending)
    sorts = sinksort.soft_sort(x, descending=descending)
    torch.testing.assert_close((matrix @ x.unsqueeze(-1)).squeeze(-1), sorts, rtol=0, atol=1e-12)
    torch.testing.assert_close(matrix.sum(-2), torch.ones_like(x), rtol=0, atol=1e-8)  # doubly stochastic
    hard = torch.nn.functional.one_hot(x.argsort(-1, descending=descending), 5).double()
    torch.testing.assert_close(sinksort.soft_permutation(x, descending=descending, eps=1e-6), hard, rtol=0, atol=1e-4)


@pytest.mark.parametrize("payload", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sort_with_carries_any_payload(payload: tuple[int, ...], dim: int) -> None:
    keys = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = torch.randn(2, 4, 5, *payload, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrix = sinksort.soft_permutation(keys, dim=dim, num_targets=3)
    moved = values.movedim(dim if dim >= 0 else dim + 3, 2)
    expected = torch.einsum("...mn,...nd->...md", matrix, moved.reshape(*moved.shape[:3], int(np.prod(payload))))
    expected = expected.reshape(*expected.shape[:3], *payload).movedim(2, dim if dim >= 0 else dim + 3)
    out = sinksort.sort_with(values, keys, dim=dim, num_targets=3)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_sort_with_in_the_limit_and_its_gradients() -> None:
    keys = torch.tensor([[0.5, 0.1, 0.9], [3.0, 2.0, 1.0]], dtype=torch.float64)
    values = torch.arange(12.0, dtype=torch.float32).reshape(2, 3, 2).requires_grad_()
    for descending in (False, True):
        order = keys.argsort(-1, descending=descending)
        hard = values.gather(1, order.unsqueeze(-1).expand(2, 3, 2))
        out = sinksort.sort_with(values, keys, eps=1e-4, descending=descending)
        assert out.dtype == torch.float32
        torch.testing.assert_close(out, hard, rtol=0, atol=1e-4)
    pattern = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(1))
    (grad,) = torch.autograd.grad((sinksort.sort_with(values, keys) * pattern).sum(), values)
    torch.testing.assert_close(grad, sinksort.soft_permutation(keys).mT.float() @ pattern)
    torch.testing.assert_close(sinksort.sort_with(keys, keys), sinksort.soft_sort(keys))


# ---- quantile normalisation


@every_option
@pytest.mark.parametrize("m", [1, 4, 7, 12])
def test_quantile_normalize_is_that_of_the_dense_problem(option: str, m: int) -> None:
    x, a, reference = inputs.values("normal", 7, 1), inputs.weights("random", 7, 2), inputs.values("exponential", m, 3)
    truth = truth_of(x, np.full(m, 1 / m), option, a)
    out = sinksort.quantile_normalize(tensor(x), tensor(reference), weights=tensor(a), **OPTIONS[option][0])
    np.testing.assert_allclose(out.numpy(), truth.density @ np.sort(reference) / m, rtol=0, atol=1e-7)


def test_quantile_normalize_in_the_limit() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 4.0], [0.1, 0.4, 0.2, 0.3]], dtype=torch.float64)
    reference = torch.tensor([[40.0, 20.0, 10.0, 30.0], [5.0, 8.0, 6.0, 7.0]], dtype=torch.float64)
    expected = torch.tensor([[30.0, 10, 20, 40], [5, 8, 6, 7]], dtype=torch.float64)
    torch.testing.assert_close(sinksort.quantile_normalize(x, reference, eps=1e-5), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(sinksort.quantile_normalize(x, x, eps=1e-5), x, rtol=0, atol=1e-5)
    pairs = sinksort.quantile_normalize(x, torch.tensor([9.0, 1.0], dtype=torch.float64), eps=1e-5)
    torch.testing.assert_close(pairs, torch.tensor([[9.0, 1, 1, 9], [1, 9, 1, 9]]).double(), rtol=0, atol=1e-4)
    along = sinksort.quantile_normalize(x.mT, reference.mT, dim=0, eps=1e-5)
    torch.testing.assert_close(along, expected.mT, rtol=0, atol=1e-5)


# ---- the plan


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("m", [3, 6])
def test_plan_holds_together(descending: bool, m: int) -> None:
    """Marginals, the form of an entropic plan, both conditionals and all read-outs belong to one matrix."""
    x, eps = tensor(inputs.table(["normal", "tied"], 2, 6, 1)), 2e-2
    a, b = tensor(inputs.weights("random", 6, 2)), tensor(inputs.weights("random", m, 3))
    said: dict[str, Any] = {"weights": a, "target_weights": b, "eps": eps, "descending": descending}
    plan = sinksort.transport(x, **said)
    P = plan.matrix()
    assert P.shape == (2, 6, m)
    torch.testing.assert_close(P.sum(-1), a.expand(2, 6), rtol=0, atol=1e-9)
    torch.testing.assert_close(P.sum(-2), b.expand(2, m), rtol=0, atol=1e-9)
    torch.testing.assert_close(plan.ranks(), 6 * (P @ b.cumsum(0)) / a, rtol=0, atol=1e-8)
    torch.testing.assert_close(plan.sorted(), (P.mT @ x.unsqueeze(-1)).squeeze(-1) / b, rtol=0, atol=1e-8)
    torch.testing.assert_close(plan.permutation(), P.mT / b.unsqueeze(-1), rtol=0, atol=1e-8)
    values, payload = torch.randn(2, m).double(), torch.randn(2, 6, 3).double()
    torch.testing.assert_close(plan.pull(values), (P @ values.unsqueeze(-1)).squeeze(-1) / a, rtol=0, atol=1e-8)
    torch.testing.assert_close(plan.push(payload), P.mT @ payload / b.unsqueeze(-1), rtol=0, atol=1e-8)
    f, g = plan.potentials
    for row in range(2):
        x_tilde = oracles.squashed(x[row].numpy(), a.numpy())
        C = tensor(oracles.cost_matrix(x_tilde, oracles.grid(m)[::-1] if descending else oracles.grid(m)))
        density = ((f[row].unsqueeze(-1) + g[row] - C) / eps).exp()
        torch.testing.assert_close(a.unsqueeze(-1) * density * b, P[row], rtol=0, atol=1e-9)
    assert torch.equal(plan.ranks(), sinksort.soft_rank(x, **said))
    assert torch.equal(plan.sorted(), sinksort.soft_sort(x, **said))
    assert torch.equal(plan.permutation(), sinksort.soft_permutation(x, **said))


def test_plan_reports_each_row() -> None:
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    plan = sinksort.transport(x, dim=1, eps=1e-1)
    for said, dtype in ((plan.converged, torch.bool), (plan.iterations, torch.int64)):
        assert said.shape == (2, 5)
        assert said.dtype == dtype
    assert plan.converged.all()
    assert plan.marginal_error.shape == (2, 5)
    assert plan.marginal_error.max() <= 1e-9
    assert (plan.iterations >= 1).all()
    assert (plan.iterations <= 10).all()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.converged = torch.tensor(True)  # type: ignore[misc]


def test_several_read_outs_share_one_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[Tensor] = []
    solve = sinksort.Newton.solve

    def spy(self: sinksort.Newton, M: Tensor, *others: Any) -> Any:
        solved.append(M)
        return solve(self, M, *others)

    monkeypatch.setattr(sinksort.Newton, "solve", spy)
    plan = sinksort.transport(torch.tensor([3.0, 1.0, 2.0]), solver=sinksort.Newton(tolerance=1e-9))  # by torch
    plan.ranks(), plan.sorted(), plan.matrix(), plan.permutation(), plan.potentials
    assert len(solved) == 1


#: What an option is where nothing is said, in every function that has it, but for those that have their own.
DEFAULTS: dict[str, Any] = {"dim": -1, "descending": False, "largest": True, "keepdim": False, "eps": 1e-2, "cost": 2,
                            "squash": "sigmoid", "backend": "auto", "reduction": "mean",
                            "interpolation": "hazen", "log": False}  # fmt: skip
OWN_DEFAULTS: dict[str, dict[str, Any]] = {
    "compile": {"device": "cpu"},
    "conformal_quantile": {"alpha": 0.1},
    "conformal_size_loss": {"alpha": 0.1, "temperature": 0.1, "free": 1.0, "eps": 3e-3},
    "kendall": {"pair_weights": "equal"},
    "kendall_loss": {"pair_weights": "equal", "margin": 1.0},
    "knn_loss": {"objective": "error", "eps": 0.1},
    "least_quantile_loss": {"q": 0.5, "power": 1.0, "eps": 0.1, "squash": "robust"},
    "median_of_means": {"eps": 0.1, "squash": "robust"},
    "ndcg": {"gain": "linear"},
    "membership_loss": {"k": 1, "power": 0.0, "positives": "all", "eps": 1.0},
    "average_precision_loss": {"eps": 0.1},
    "ndcg_loss": {"gain": "linear", "eps": 0.1},
    "partial_order_loss": {"eps": 0.05},
    "permutation_cross_entropy": {"objective": "binary", "eps": 0.05},
    "recall_at_k_loss": {"eps": 0.1},
    "reciprocal_rank_loss": {"eps": 0.1},
    "permutation_accuracy": {"whole": False},
    "quantile_parity": {"p": 1.0, "num_quantiles": 16},
    "quantile_parity_loss": {"p": 1.0, "num_quantiles": 16},
    "soft_conformal_quantile": {"alpha": 0.1, "eps": 3e-3},
    "soft_knn_vote": {"eps": 0.1},
    "topk_error": {"k": 1, "positives": "all"},
    "topk_loss": {"k": 1, "J": "membership", "rescale": False, "positives": "all", "squash": "auto"},
    "trimmed_loss": {"low": 0.0, "high": 0.9, "eps": 0.1, "squash": "robust"},
}


@pytest.mark.parametrize("module", [sinksort, sinksort.losses, sinksort.streaming, sinksort.distributed])
def test_defaults(module: Any) -> None:
    """Whoever relies on a default would not notice that another release has another one."""
    for name in module.__all__:
        if inspect.isfunction(function := getattr(module, name)):
            options = inspect.signature(function).parameters.values()
            found = {p.name: p.default for p in options if isinstance(p.default, int | float | str)}
            expected = DEFAULTS | OWN_DEFAULTS.get(name, {})
            assert found == {option: expected.get(option) for option in found}, name
            assert found.keys() >= OWN_DEFAULTS.get(name, {}).keys(), name
