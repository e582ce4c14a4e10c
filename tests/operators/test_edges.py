"""The edges, one block each: ties, one value, NaN, infinities, padding, zero weights, scales, no convergence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.operators import selecting
from tests import inputs, oracles
from tests.strategies import tensor

INF, NAN = float("inf"), float("nan")
Read = Callable[..., Tensor]

#: Every operator as a function of a batch of rows, with the options that all share.
OPERATORS: dict[str, Read] = {
    "rank": sinksort.soft_rank,
    "sort": sinksort.soft_sort,
    "permutation": sinksort.soft_permutation,
    "quantile": lambda x, **kw: sinksort.soft_quantile(x, [0.3, 0.9], **kw).movedim(0, -1),
    "median": lambda x, **kw: sinksort.soft_median(x, keepdim=True, **kw),
    "topk values": lambda x, **kw: sinksort.soft_topk(x, 1, **kw).values,
    "topk mask": lambda x, **kw: sinksort.soft_topk_mask(x, 1, **kw),
    "sort_with": lambda x, **kw: sinksort.sort_with(x.tanh().detach(), x, **kw),
    "quantile_normalize": lambda x, **kw: sinksort.quantile_normalize(
        x, torch.tensor([1.0, 2.0, 5.0], dtype=x.dtype), **kw
    ),
}
every_operator = pytest.mark.parametrize("read", OPERATORS.values(), ids=OPERATORS.keys())


def gradient(read: Read, x: Tensor, **options: Any) -> Tensor:
    """Of an arbitrary weighting of the outputs, so that nothing cancels."""
    leaf = x.clone().requires_grad_()
    out = read(leaf, **options)
    pattern = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
    (grad,) = torch.autograd.grad((out * pattern).sum(), leaf)
    return grad


# ---- ties and constant rows


@pytest.mark.parametrize("eps", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("n", [2, 5, 40])
@pytest.mark.parametrize("value", [0.0, 3.7, -1e20])
def test_constant_rows_rank_in_the_middle(n: int, eps: float, value: float) -> None:
    x = torch.full((n,), value, dtype=torch.float64)
    torch.testing.assert_close(sinksort.soft_rank(x, eps=eps), torch.full_like(x, (n + 1) / 2), rtol=0, atol=1e-9 * n)
    torch.testing.assert_close(sinksort.soft_sort(x, eps=eps), x)


@pytest.mark.parametrize("eps", [1e-4, 1e-2, 1.0])
def test_ties_share_their_rank(eps: float) -> None:
    x = torch.tensor([2.0, 1.0, 2.0, 5.0, 1.0, 2.0], dtype=torch.float64)
    ranks = sinksort.soft_rank(x, eps=eps)
    torch.testing.assert_close(ranks[[0, 2]], ranks[[5, 5]], rtol=0, atol=1e-10)
    torch.testing.assert_close(ranks[1], ranks[4], rtol=0, atol=1e-10)
    if eps == 1e-4:  # the averages of ranks 1, 2 and of 3, 4, 5
        torch.testing.assert_close(ranks, torch.tensor([4, 1.5, 4, 6, 1.5, 4]).double(), rtol=0, atol=1e-6)


@every_operator
@pytest.mark.parametrize("kind", ["constant", "tied", "few_valued", "outlier", "heavy_tailed"])
def test_gradients_of_ties_are_finite(read: Read, kind: str) -> None:
    for eps in (1e-4, 1e-2, 1.0):
        for p in (1, 1.5, 2):
            grad = gradient(read, tensor(inputs.values(kind, 6, 3)), eps=eps, cost=p)
            assert grad.isfinite().all(), (eps, p)


# ---- n = 1


@pytest.mark.parametrize("eps", [1e-4, 1e-2, 1.0])
def test_one_value(eps: float) -> None:
    x = torch.tensor([[3.5], [-2.0]], dtype=torch.float64)
    one = torch.ones_like(x)
    assert torch.equal(sinksort.soft_rank(x, eps=eps), one)
    assert torch.equal(sinksort.soft_rank(x, eps=eps, descending=True), one)
    assert torch.equal(sinksort.soft_sort(x, eps=eps), x)
    assert torch.equal(sinksort.soft_median(x, eps=eps), x[:, 0])
    assert torch.equal(sinksort.soft_permutation(x, eps=eps), one.unsqueeze(-1))
    values, mask = sinksort.soft_topk(x, 1, eps=eps)
    assert torch.equal(values, x)
    assert torch.equal(mask, one)
    torch.testing.assert_close(sinksort.soft_topk_mask(x, 0.25, eps=eps), 0.25 * one)
    torch.testing.assert_close(sinksort.soft_sort(x, num_targets=3, eps=eps), x.expand(2, 3))


@every_operator
def test_one_value_has_finite_gradients(read: Read) -> None:
    for eps in (1e-4, 1e-2, 1.0):
        assert gradient(read, torch.tensor([[3.5], [-2.0]], dtype=torch.float64), eps=eps).isfinite().all()


# ---- NaN


@every_operator
@pytest.mark.parametrize("squash", ["sigmoid", "arctan", None])
@pytest.mark.parametrize("solver", [sinksort.Newton(), sinksort.Sinkhorn()], ids=["newton", "sinkhorn"])
def test_nan_stays_in_its_row(read: Read, squash: str | None, solver: Any) -> None:
    x = tensor(np.random.default_rng(0).random((3, 5)))
    poisoned = x.clone()
    poisoned[1, 2] = NAN
    clean, out = read(x, squash=squash, solver=solver), read(poisoned, squash=squash, solver=solver)
    assert out[1].isnan().all()
    torch.testing.assert_close(out[[0, 2]], clean[[0, 2]], rtol=0, atol=1e-12)


def test_nan_does_not_reach_gradients_of_other_rows() -> None:
    x = tensor(np.random.default_rng(0).random((3, 5)))
    poisoned = x.clone()
    poisoned[1, 2] = NAN
    weights = torch.arange(5, dtype=torch.float64)
    grads = []
    for t in (x, poisoned):
        leaf = t.clone().requires_grad_()
        (sinksort.soft_rank(leaf)[[0, 2]] * weights).sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[0][[0, 2]], grads[1][[0, 2]])


def test_nan_rows_are_not_converged_and_make_no_noise() -> None:
    """A row of NaN is not a failure of the solver: no warning (they are errors in this suite), and not converged."""
    plan = sinksort.transport(torch.tensor([[1.0, NAN], [1.0, 2.0]]))
    assert plan.converged.tolist() == [False, True]


# ---- infinities


@pytest.mark.parametrize("squash", ["sigmoid", "arctan", None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinities_are_the_extremes(squash: str | None, dtype: torch.dtype) -> None:
    """Against the ranks where large numbers stand in; squash=None has [0, 1] as its natural extremes."""
    x = torch.tensor([0.3, -INF, 0.9, INF, 0.5], dtype=dtype)
    ranks = sinksort.soft_rank(x, squash=squash, eps=1e-4)
    torch.testing.assert_close(ranks, torch.tensor([2.0, 1, 4, 5, 3], dtype=dtype), rtol=0, atol=0.05)
    down = sinksort.soft_rank(x, squash=squash, eps=1e-4, descending=True)
    torch.testing.assert_close(down, torch.tensor([4.0, 5, 2, 1, 3], dtype=dtype), rtol=0, atol=0.05)
    mask = sinksort.soft_topk_mask(x, 2, squash=squash, eps=1e-4)
    torch.testing.assert_close(mask, torch.tensor([0.0, 0, 1, 1, 0], dtype=dtype), rtol=0, atol=0.05)


@pytest.mark.parametrize("squash", ["sigmoid", "arctan"])
def test_infinities_leave_the_moments_of_the_finite_values(squash: str) -> None:
    """x~ of the finite values is theirs alone, of the infinite ones 0 and 1: then the oracle knows the answer."""
    finite = inputs.values("normal", 4, 1)
    x = np.concatenate([finite, [INF, -INF]])
    x_tilde = np.concatenate([oracles.squashed(finite, kind=squash), [1.0, 0.0]])
    a = np.full(6, 1 / 6)
    truth = oracles.solve(oracles.cost_matrix(x_tilde, oracles.grid(6)), a, a, 1e-2)
    ranks = sinksort.soft_rank(tensor(x), squash=squash, eps=1e-2)
    np.testing.assert_allclose(ranks.numpy(), truth.ranks(), atol=1e-9)


@pytest.mark.parametrize("name", ["rank", "topk mask", "quantile_normalize"])
@pytest.mark.parametrize("squash", ["sigmoid", "arctan", None])
def test_infinities_have_zero_gradient(name: str, squash: str | None) -> None:
    x = torch.tensor([[0.3, -INF, 0.9, 0.5], [INF, 0.1, 0.2, -INF]], dtype=torch.float64)
    grad = gradient(OPERATORS[name], x, squash=squash)
    assert grad.isfinite().all()
    assert (grad[x.isinf()] == 0).all()
    assert (grad[0, [0, 2, 3]] != 0).any()


def test_a_row_of_infinities_only() -> None:
    x = torch.full((4,), -INF, dtype=torch.float64)
    torch.testing.assert_close(sinksort.soft_rank(x), torch.full_like(x, 2.5))
    assert gradient(sinksort.soft_rank, x).tolist() == [0.0] * 4


def test_value_read_outs_of_infinities_follow_ieee() -> None:
    """An average with a positive share of +inf is +inf; one of +inf and -inf is NaN."""
    x = torch.tensor([0.1, 0.2, INF], dtype=torch.float64)
    assert sinksort.soft_sort(x, eps=1.0).tolist() == [INF] * 3
    x = torch.tensor([-INF, 0.2, INF], dtype=torch.float64)
    assert sinksort.soft_sort(x, eps=1.0).isnan().all()


# ---- mask


@every_operator
@pytest.mark.parametrize("descending", [False, True])
def test_padded_rows_give_what_unpadded_rows_give(read: Read, descending: bool) -> None:
    short = tensor(inputs.values("normal", 4, 5))
    if read not in (OPERATORS["rank"], OPERATORS["sort"], OPERATORS["permutation"], OPERATORS["sort_with"]):
        options: dict[str, Any] = {}
    else:
        options = {"descending": descending}
    for filler in (0.0, NAN, INF, 1e300):
        padded = torch.full((7,), filler, dtype=torch.float64)
        kept = torch.tensor([0, 2, 3, 6])
        padded[kept] = short
        mask = torch.zeros(7, dtype=torch.bool)
        mask[kept] = True
        expected, out = read(short, **options), read(padded, mask=mask, **options)
        if read is OPERATORS["permutation"]:
            torch.testing.assert_close(out[:4][:, mask], expected, rtol=0, atol=1e-10)
            assert out[:, ~mask].abs().max() < 1e-12
            assert (out[4:] == 0).all()
        elif out.shape == padded.shape and read not in (OPERATORS["sort"], OPERATORS["sort_with"]):
            torch.testing.assert_close(out[mask], expected, rtol=0, atol=1e-10)
            assert (out[~mask] == 0).all()
        else:  # values on targets: sorted first, padding after
            torch.testing.assert_close(out[: len(expected)], expected, rtol=0, atol=1e-10)
            assert (out[len(expected) :] == 0).all()


@every_operator
def test_masked_entries_get_no_gradient(read: Read) -> None:
    x = tensor(inputs.values("normal", 6, 2))
    mask = torch.tensor([True, True, False, True, False, True])
    poisoned = torch.where(mask, x, NAN)
    grad = gradient(read, x, mask=mask)
    assert (grad[~mask] == 0).all()
    assert (grad[mask] != 0).any()
    if read is not OPERATORS["sort_with"]:  # whose payload here is made from x itself
        torch.testing.assert_close(gradient(read, poisoned, mask=mask), grad)


def test_masked_gradients_are_those_of_the_unpadded_row() -> None:
    x = tensor(inputs.values("normal", 5, 2))
    mask = torch.tensor([True, False, True, True, True])
    pattern = tensor(np.arange(5.0))
    leaf, short = x.clone().requires_grad_(), x[mask].clone().requires_grad_()
    (sinksort.soft_rank(leaf, mask=mask) * pattern).sum().backward()
    (sinksort.soft_rank(short) * pattern[mask]).sum().backward()
    torch.testing.assert_close(leaf.grad[mask], short.grad, rtol=1e-8, atol=1e-10)


def test_rows_of_different_lengths_in_one_batch() -> None:
    x = tensor(np.random.default_rng(3).standard_normal((5, 6)))
    mask = torch.arange(6) < torch.tensor([6, 4, 3, 1, 0]).unsqueeze(-1)
    ranks, values = sinksort.soft_rank(x, mask=mask), sinksort.soft_sort(x, mask=mask)
    top = sinksort.soft_topk(x, 2, mask=mask)
    for row, length in enumerate([6, 4, 3, 1, 0]):
        live = x[row, :length]
        assert (ranks[row, length:] == 0).all()
        assert (values[row, length:] == 0).all()
        if length:
            torch.testing.assert_close(ranks[row, :length], sinksort.soft_rank(live), rtol=0, atol=1e-9)
            torch.testing.assert_close(values[row, :length], sinksort.soft_sort(live), rtol=0, atol=1e-9)
            alone = sinksort.soft_topk(live, min(2, length))
            torch.testing.assert_close(top.values[row, : min(2, length)], alone.values, rtol=0, atol=1e-9)
            torch.testing.assert_close(top.mask[row, :length], alone.mask, rtol=0, atol=1e-9)
        assert (top.values[row, min(2, length) :] == 0).all()
        assert (top.mask[row, length:] == 0).all()


@every_operator
def test_a_row_that_is_all_padding(read: Read) -> None:
    x = tensor(np.random.default_rng(3).standard_normal((2, 4)))
    mask = torch.tensor([[True] * 4, [False] * 4])
    out = read(x, mask=mask)
    torch.testing.assert_close(out[0], read(x[0]), rtol=0, atol=1e-9)
    assert (out[1] == 0).all()
    assert gradient(read, x, mask=mask).isfinite().all()


# ---- zero weights


@every_operator
@pytest.mark.parametrize("value", [0.3, 1e6, -1e6, INF, -INF])
def test_a_zero_weight_influences_nobody_and_still_gets_a_rank(read: Read, value: float) -> None:
    x, a = inputs.values("normal", 4, 7), inputs.weights("random", 4, 8)
    extra = torch.cat([tensor(x), torch.tensor([value], dtype=torch.float64)])
    a_extra = torch.cat([tensor(a), torch.zeros(1, dtype=torch.float64)])
    if read is OPERATORS["rank"]:
        out = read(extra, weights=a_extra, num_targets=4)
        torch.testing.assert_close(
            out[:4] / 5, read(tensor(x), weights=tensor(a)) / 4, rtol=0, atol=1e-9
        )  # ranks scale with n
        assert out[4].isfinite()
        if abs(value) > 1:
            assert (out[4] >= out[:4].max() - 1e-9) if value > 0 else (out[4] <= out[:4].min() + 1e-9)
    elif read in (OPERATORS["sort"], OPERATORS["sort_with"]):
        out = read(extra, weights=a_extra, num_targets=4)
        torch.testing.assert_close(out, read(tensor(x), weights=tensor(a)), rtol=0, atol=1e-8)
    elif read is OPERATORS["permutation"]:
        out = read(extra, weights=a_extra, num_targets=4)
        torch.testing.assert_close(out[:, :4], read(tensor(x), weights=tensor(a)), rtol=0, atol=1e-9)
        assert out[:, 4].abs().max() < 1e-12
    elif read in (OPERATORS["quantile"], OPERATORS["median"]):
        wide: Any = {"width": 0.2}
        levels = [0.3, 0.9] if read is OPERATORS["quantile"] else [0.5]
        torch.testing.assert_close(
            sinksort.soft_quantile(extra, levels, weights=a_extra, **wide),
            sinksort.soft_quantile(tensor(x), levels, weights=tensor(a), **wide),
            rtol=0,
            atol=1e-9,
        )
    elif read is OPERATORS["quantile_normalize"]:
        torch.testing.assert_close(
            read(extra, weights=a_extra)[:4], read(tensor(x), weights=tensor(a)), rtol=0, atol=1e-9
        )
    else:  # top-k shares are k/n of the mass, so n is told apart: 1/5 of five is 0.8/4 of four
        five = sinksort.soft_topk_mask(extra, 1, weights=a_extra)
        torch.testing.assert_close(
            five[:4], sinksort.soft_topk_mask(tensor(x), 0.8, weights=tensor(a)), rtol=0, atol=1e-9
        )


def test_zero_weights_against_the_oracle_and_with_finite_gradients() -> None:
    x = inputs.values("normal", 6, 1)
    a = np.array([0.2, 0.0, 0.3, 0.0, 0.4, 0.1])
    b = np.array([0.0, 0.5, 0.3, 0.2])
    truth = oracles.solve(oracles.cost_matrix(oracles.squashed(x, a), oracles.grid(4)), a, b, 1e-2)
    plan = sinksort.transport(tensor(x), weights=tensor(a), target_weights=tensor(b), eps=1e-2)
    np.testing.assert_allclose(plan.ranks().numpy(), truth.ranks(), atol=1e-8)
    np.testing.assert_allclose(plan.sorted().numpy(), truth.sorts(x), atol=1e-8)
    leaves = [tensor(t).requires_grad_() for t in (x, a, b)]
    ranks = sinksort.soft_rank(leaves[0], weights=leaves[1], target_weights=leaves[2])
    for grad in torch.autograd.grad((ranks**2).sum(), leaves):
        assert grad.isfinite().all()


# ---- scales


@pytest.mark.parametrize("scale", [1e30, 1e-30, 7.0, 1e-300, 1e300])
@pytest.mark.parametrize("squash", ["sigmoid", "arctan"])
def test_ranks_do_not_depend_on_the_unit(scale: float, squash: str) -> None:
    for kind in ("normal", "tied", "heavy_tailed", "constant", "clusters_3"):
        x = tensor(inputs.values(kind, 9, 2))
        for eps in (1e-3, 1e-2, 1.0):
            torch.testing.assert_close(
                sinksort.soft_rank(scale * x, eps=eps, squash=squash),
                sinksort.soft_rank(x, eps=eps, squash=squash),
                rtol=0,
                atol=1e-9,
            )


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e38, 1e-38])
def test_scales_in_single_precision(scale: float) -> None:
    x = tensor(inputs.values("uniform", 9, 2)).float() + 0.5
    torch.testing.assert_close(sinksort.soft_rank(x * scale), sinksort.soft_rank(x), rtol=0, atol=1e-4)
    for value in (scale, -scale):
        grad = gradient(sinksort.soft_sort, value * x)
        assert grad.isfinite().all()


@pytest.mark.parametrize("shift", [1.0, -1e3, 1e6])
def test_ranks_do_not_depend_on_the_origin(shift: float) -> None:
    """Numbers on a grid of 1/1024, so that adding the constant is exact."""
    x = tensor(np.round(inputs.values("normal", 9, 2) * 1024) / 1024)
    torch.testing.assert_close(sinksort.soft_rank(x + shift), sinksort.soft_rank(x), rtol=0, atol=1e-8)


# ---- no convergence


def test_an_unconverged_row_says_so() -> None:
    x = tensor(inputs.values("normal", 30, 1))
    with pytest.warns(RuntimeWarning, match="1 of 1 rows did not converge in 1 iterations") as caught:
        plan = sinksort.transport(x, eps=1e-2, solver=sinksort.Newton(max_iterations=1))
    assert len(caught) == 1
    assert not plan.converged
    off = (plan.matrix().sum(0) - 1 / 30).abs().sum()
    torch.testing.assert_close(plan.marginal_error, off, rtol=1e-6, atol=1e-12)
    assert off > 1e-10


def test_converged_is_per_row_and_has_the_shape_of_the_batch() -> None:
    x = torch.stack([torch.zeros(30), tensor(inputs.values("normal", 30, 1)).float()]).reshape(2, 1, 30)
    with pytest.warns(RuntimeWarning, match="1 of 2 rows did not converge"):
        plan = sinksort.transport(x, eps=1e-2, solver=sinksort.Newton(max_iterations=1, tolerance=1e-6))
    assert plan.converged.tolist() == [[True], [False]]
    assert plan.iterations.shape == plan.marginal_error.shape == (2, 1)


@pytest.mark.parametrize("k", [0, 3000])
def test_masks_of_nobody_and_of_everybody_in_long_rows(k):
    """One of two targets weighs nothing, and what a grid gives it is noise of either sign."""
    x = torch.randn(6, 3000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    mask = sinksort.soft_topk_mask(x, k, eps=1e-3, backend="torch")
    torch.testing.assert_close(mask, torch.full_like(mask, float(k > 0)), rtol=0, atol=1e-10)
    (gradient,) = torch.autograd.grad(mask.square().sum(), x)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-8)


# ---- targets and values that weigh nothing, in every backend


@pytest.mark.parametrize("n", [3, 11, 100, 3000, 40_000])
@pytest.mark.parametrize("eps", [1e-2, 1e-5])
def test_nobody_and_everybody_is_in_the_mask_whatever_values_weigh(n: int, eps: float) -> None:
    """A value without weight far from all others was in a mask of nobody, and out of a mask of everybody."""
    rng = np.random.default_rng(n)
    x = torch.from_numpy(rng.standard_normal((2, n)))
    x[:, 0], x[:, -1] = -30.0, 30.0
    a = torch.from_numpy(rng.random((2, n)) + 0.1)
    a[:, ::3], a[:, -1] = 0.0, 0.0
    for given, backend in ((x, "torch"), (x, "auto"), (x.float(), "auto"), (x.float(), "torch")):
        out = sinksort.soft_topk_mask(given, 0, weights=a, eps=eps, backend=backend)
        torch.testing.assert_close(out, torch.zeros_like(out), rtol=0, atol=1e-7)
        out = sinksort.soft_topk_mask(given, n, weights=a, eps=eps, backend=backend)
        torch.testing.assert_close(out, torch.ones_like(out), rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [0.1, -1.51, 1e30, 3e-20])
def test_averages_of_one_number_are_that_number(constant: float, dtype: torch.dtype) -> None:
    x = torch.full((2, 110), constant, dtype=dtype)
    weights = torch.from_numpy(np.random.default_rng(0).random((2, 110)))
    for options in ({}, {"weights": weights}):
        for backend in ("torch", "auto"):
            for out in (
                sinksort.soft_sort(x, backend=backend, **options),
                sinksort.soft_median(x, backend=backend, **options),
                sinksort.soft_topk(x, 3, backend=backend, **options).values,
            ):
                assert torch.equal(out, x[..., :1].reshape(2, *[1] * (out.ndim - 1)).expand(out.shape))


def test_gradients_of_several_quantiles_of_half_precision_are_added_up_in_single() -> None:
    x = (torch.rand(64, 127, generator=torch.Generator().manual_seed(0)) < 0.5).half().requires_grad_()
    levels = [0.0, 0.371, 0.5, 1.0]
    c = torch.tensor([-2.25, 2.25, 0.25, 0.125])[:, None]
    out = sinksort.soft_quantile(x, levels, eps=1e-3, squash=None)
    (grad,) = torch.autograd.grad((out.float() * c).sum(), x)
    true = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad((sinksort.soft_quantile(true, levels, eps=1e-3, squash=None) * c).sum(), true)
    allowed = 1e-3 * expected.abs().amax(-1, keepdim=True) + 2**-10 * expected.abs()
    assert ((grad.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("n", [110, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_averages_of_one_number_by_a_small_problem_are_that_number(n: int, dtype: torch.dtype) -> None:
    x = torch.full((2, n), 0.73, dtype=dtype)
    for options in ({}, {"weights": 0.1 + torch.rand(2, n, generator=torch.Generator().manual_seed(0))}):
        for m in (5, n):
            out = sinksort.soft_sort(x, num_targets=m, eps=0.05, backend="torch", **options)
            assert torch.equal(out, x[..., :1].expand(2, m))


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("eps", [1e-3, 1e-2])
def test_a_target_without_weight_follows_the_value_with_weight_that_it_is_near(eps: float, backend: str) -> None:
    """A value without weight stands beside the target, and gets nothing of it: the answer is x_1, with slope one."""
    x = torch.tensor([0.2, 0.37, 0.82], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    targets = torch.tensor([0.1, 0.5, 0.95], dtype=torch.float64)
    b = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    out = sinksort.soft_sort(
        x, weights=weights, targets=targets, target_weights=b, squash=None, eps=eps, backend=backend
    )
    far = sinksort.transport(x, weights=weights, targets=targets, target_weights=b, squash=None, eps=eps)
    (slope,) = torch.autograd.grad(out[2], x)
    torch.testing.assert_close(out[2], x[1].detach(), rtol=0, atol=1e-7)
    torch.testing.assert_close(slope, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64), rtol=0, atol=1e-4)
    assert torch.equal(far.permutation()[:, 2], torch.zeros(3, dtype=torch.float64))


def test_padded_rows_of_top_k_are_not_sorted_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of n values onto n targets took 14 GiB for five of them."""
    asked = []
    sort = selecting.soft_sort

    def noted(x: torch.Tensor, **options: Any) -> torch.Tensor:
        weights = options.get("target_weights")
        asked.append(x.shape[-1] if weights is None else weights.shape[-1])
        return sort(x, **options)

    monkeypatch.setattr(selecting, "soft_sort", noted)
    monkeypatch.setattr(selecting, "values_readable", lambda t: False)  # as on a GPU
    mask = torch.arange(500) < torch.tensor([[2], [400]])
    sinksort.soft_topk(torch.randn(2, 500), 4, mask=mask)
    assert asked == [5, 4]
