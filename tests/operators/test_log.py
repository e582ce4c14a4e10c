"""``log=True`` of masks and permutations: the logarithm of the plain answer, and all digits where that rounds away."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

import sinksort
from sinksort import soft_permutation, soft_topk_mask


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def log_mask_by_bisection(x: np.ndarray, k: float, eps: float) -> np.ndarray:
    """log sigma(u_i + c), where SciPy finds c; of places x as they are."""
    u = (2.0 * x - 1.0) / eps

    def excess(c: float) -> float:
        return float((1.0 / (1.0 + np.exp(-u - c))).sum() - k)

    c = brentq(excess, -u.max() - 50.0, -u.min() + 50.0, xtol=1e-14, rtol=1e-15)
    return -np.logaddexp(0.0, -u - c)


@pytest.mark.parametrize("k", [1, 2, 2.5, 6, 0.3])
@pytest.mark.parametrize("eps", [0.3, 1.0, 10.0])
def test_log_mask_is_the_logistic_function_at_a_root(k: float, eps: float) -> None:
    x = drawn(0, 4, 7)
    ours = soft_topk_mask(x, k, log=True, squash=None, eps=eps)
    expected = np.stack([log_mask_by_bisection(row, k, eps) for row in x.numpy()])
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-9)


def test_a_sharp_log_mask_by_hand() -> None:
    """Two values cross the gap between 2 and 5: what the one loses the other gets, so c lies in the middle."""
    x = torch.tensor([0.0, 1.0, 2.0, 5.0, 9.0], dtype=torch.float64, requires_grad=True)
    log_m = soft_topk_mask(x, 2, log=True, squash=None, eps=1e-3)
    torch.testing.assert_close(log_m.detach(), torch.tensor([-7000.0, -5000.0, -3000.0, 0.0, 0.0]).double())
    (slope,) = torch.autograd.grad(log_m[0], x)
    torch.testing.assert_close(slope, torch.tensor([2000.0, 0.0, -1000.0, -1000.0, 0.0]).double())
    single = soft_topk_mask(x.detach().float(), 2, log=True, squash=None, eps=1e-3)
    torch.testing.assert_close(single, log_m.detach().float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("squash", ["sigmoid", "arctan", "robust", None, torch.tanh])
@pytest.mark.parametrize("largest", [True, False])
def test_log_mask_is_the_logarithm_of_the_mask(dtype, squash, largest) -> None:
    x = drawn(1, 5, 12).to(dtype)
    options = {"largest": largest, "squash": squash, "eps": 0.2}
    for k in (1, 3, 4.5, torch.tensor([1.0, 2.0, 2.5, 11.0, 0.1])):
        mask, log_mask = soft_topk_mask(x, k, **options), soft_topk_mask(x, k, log=True, **options)
        assert log_mask.dtype == dtype
        torch.testing.assert_close(log_mask.exp(), mask, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("cost", [1, 1.5, sinksort.Huber(0.2)])
def test_log_mask_of_other_costs(cost) -> None:
    x = drawn(2, 5, 12)
    mask = soft_topk_mask(x, 3, cost=cost, eps=0.1)
    torch.testing.assert_close(soft_topk_mask(x, 3, cost=cost, eps=0.1, log=True).exp(), mask, rtol=1e-6, atol=1e-8)


def test_trivial_masks_padding_and_weights() -> None:
    x, kept = drawn(3, 2, 6), torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    assert (soft_topk_mask(x, 0, log=True) == -math.inf).all()
    assert (soft_topk_mask(x, 6, log=True) == 0).all()
    padded = x.masked_fill(~kept, math.nan)
    ours = soft_topk_mask(padded, 2, mask=kept, log=True)
    torch.testing.assert_close(ours[0, :4], soft_topk_mask(x[0, :4], 2, log=True), rtol=1e-9, atol=1e-9)
    assert (ours[0, 4:] == -math.inf).all()
    torch.testing.assert_close(ours[1], soft_topk_mask(x[1], 2, log=True))
    w = torch.tensor([1.0, 3.0, 0.5, 2.0, 0.0, 1.0]).double()
    expected = soft_topk_mask(x, 2, weights=w)
    torch.testing.assert_close(soft_topk_mask(x, 2, weights=w, log=True).exp(), expected, rtol=1e-7, atol=1e-9)
    one_nan = x.clone()
    one_nan[0, 1] = math.nan
    ours = soft_topk_mask(one_nan, 2, log=True)
    assert ours[0].isnan().all()
    torch.testing.assert_close(ours[1], soft_topk_mask(x[1], 2, log=True))
    torch.testing.assert_close(soft_topk_mask(x.T, 2, dim=0, log=True), soft_topk_mask(x, 2, log=True).T)
    tied = soft_topk_mask(torch.zeros(5, dtype=torch.float64), 2, log=True)
    torch.testing.assert_close(tied, torch.full((5,), math.log(0.4)).double())


@pytest.mark.parametrize("options", [{"k": 3}, {"k": 2.5}, {"k": 2, "largest": False}, {"k": 3, "squash": None}])
@pytest.mark.parametrize("eps", [0.05, 0.5])
def test_derivatives_of_log_masks(options, eps) -> None:
    x = drawn(4, 3, 7).requires_grad_()

    def mask(x: Tensor) -> Tensor:
        return soft_topk_mask(x, log=True, eps=eps, **options)

    assert torch.autograd.gradcheck(mask, (x,))
    assert torch.autograd.gradgradcheck(mask, (x,), fast_mode=True)


def test_derivatives_in_k_eps_and_weights() -> None:
    x, k = drawn(5, 3, 6).requires_grad_(), torch.tensor([1.2, 3.0, 4.5], dtype=torch.float64, requires_grad=True)
    eps = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    w = (drawn(6, 6).square() + 0.1).requires_grad_()

    def mask(x: Tensor, k: Tensor, eps: Tensor, w: Tensor) -> Tensor:
        return soft_topk_mask(x, k, weights=w, eps=eps, log=True)

    assert torch.autograd.gradcheck(mask, (x, k, eps, w))


@pytest.mark.parametrize("eps", [1e-2, 0.3, 3.0])
def test_gradients_in_single_precision_are_those_in_double(eps: float) -> None:
    wide = (2.0 * drawn(7, 16, 10)).requires_grad_()
    narrow = wide.detach().float().requires_grad_()
    c = drawn(8, 16, 10)
    (expected,) = torch.autograd.grad((c * soft_topk_mask(wide, 3, log=True, squash=None, eps=eps)).sum(), wide)
    found = torch.autograd.grad((c.float() * soft_topk_mask(narrow, 3, log=True, squash=None, eps=eps)).sum(), narrow)
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-4, atol=1e-5 / eps)


def test_vmap_of_log_masks() -> None:
    x = drawn(9, 4, 3, 6)
    ours = torch.vmap(lambda x: soft_topk_mask(x, 2, log=True, eps=0.1))(x)
    torch.testing.assert_close(ours, soft_topk_mask(x, 2, log=True, eps=0.1), rtol=1e-8, atol=1e-8)
    jacobian = torch.func.jacrev(lambda x: soft_topk_mask(x, 2, log=True, eps=0.1))(x[0, 0])
    expected = torch.autograd.functional.jacobian(lambda x: soft_topk_mask(x, 2, log=True, eps=0.1), x[0, 0])
    torch.testing.assert_close(jacobian, expected, rtol=1e-7, atol=1e-7)


# ---- permutations

MASK = torch.tensor([[True, True, False, True, True, True], [True] * 6, [False, True, True, True, False, True]])
PERMUTATIONS = {
    "plain": {},
    "descending": {"descending": True},
    "padded": {"mask": MASK},
    "padded, descending": {"mask": MASK, "descending": True},
    "weights": {"weights": torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 0.1])},
    "fewer targets": {"num_targets": 3},
    "weighed targets": {"target_weights": torch.tensor([1.0, 1.0, 4.0])},
    "as they are": {"squash": None, "eps": 0.3},
    "robust": {"squash": "robust"},
    "cost": {"cost": 1.5},
    "another dim": {"dim": 0},
}


@pytest.mark.parametrize("name", PERMUTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_permutation_is_the_logarithm_of_the_permutation(name: str, dtype: torch.dtype) -> None:
    x = drawn(10, 3, 6).to(dtype)
    options = {k: t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t
               for k, t in PERMUTATIONS[name].items()}  # fmt: skip
    P, log_P = soft_permutation(x, **options), soft_permutation(x, log=True, **options)
    assert log_P.dtype == dtype
    torch.testing.assert_close(log_P.exp(), P, rtol=1e-4, atol=1e-6)
    there = torch.ones_like(P, dtype=torch.bool)
    if "mask" in options:
        there = MASK.unsqueeze(-2) & (torch.arange(6) < MASK.sum(-1, keepdim=True)).unsqueeze(-1)
    assert log_P[there].isfinite().all()
    assert (log_P[~there] == -math.inf).all()


def test_a_sharp_log_permutation_by_hand() -> None:
    """Two values at 0 and 1 with targets there: exchanging them costs 1 + 1, and each entry pays half of it."""
    log_P = soft_permutation(torch.tensor([0.0, 1.0]).double(), log=True, squash=None, eps=1e-3)
    torch.testing.assert_close(log_P, torch.tensor([[0.0, -1000.0], [-1000.0, 0.0]]).double())


def test_derivatives_of_log_permutations() -> None:
    x = drawn(11, 2, 5).requires_grad_()
    for options in ({"eps": 0.05}, {"squash": None, "eps": 0.5}, {"eps": 0.1, "mask": MASK[:2, :5]}):
        kept = options.get("mask")

        def finite(x: Tensor, options=options, kept=kept) -> Tensor:
            log_P = soft_permutation(x, log=True, **options)
            return log_P if kept is None else log_P[log_P.isfinite()]

        assert torch.autograd.gradcheck(finite, (x,))
        assert torch.autograd.gradgradcheck(finite, (x,), fast_mode=True)
