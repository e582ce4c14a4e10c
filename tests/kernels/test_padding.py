"""Rows with padding: each is answered as it would be without, by kernels."""

from __future__ import annotations

import math

import pytest
import torch

import sinksort

N = 300
COUNTS = (300, 171, 0, 171, 1, 140)  # a full row, two of one length, none, one, and one that leaves gaps


def batch(seed=0):
    """Values, a mask that keeps so many of each row (at random places), weights; NaN where nothing is kept."""
    source = torch.Generator().manual_seed(seed)
    x, weights = torch.randn(len(COUNTS), N, generator=source), torch.rand(len(COUNTS), N, generator=source) + 0.1
    order = torch.rand(len(COUNTS), N, generator=source).argsort(-1)
    mask = order < torch.tensor(COUNTS).unsqueeze(-1)
    return torch.where(mask, x, math.nan), mask, weights


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, -1])
def test_a_padded_row_is_the_row_without_padding(weighted, descending, dim):
    x, mask, weights = batch()
    turned = [t.mT if dim == 0 else t for t in (x, mask, weights)]
    got = sinksort.soft_rank(
        turned[0], dim=dim, mask=turned[1], descending=descending, weights=turned[2] if weighted else None
    )
    assert sinksort.last_backend() == "numba"
    for row, own, mine, share in zip(got.mT if dim == 0 else got, x, mask, weights, strict=True):
        assert torch.equal(row[~mine], torch.zeros(int((~mine).sum())))
        if mine.any():
            alone = own[mine].double()
            true = sinksort.soft_rank(
                alone, descending=descending, weights=share[mine].double() if weighted else None, backend="torch"
            )
            torch.testing.assert_close(row[mine].double(), true, atol=1e-5 * len(alone), rtol=0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("n", [12, 200])
def test_sorted_values_of_a_padded_row_come_first(weighted, descending, n):
    x, mask, weights = (t[:, :n] for t in batch(5))
    y, double = x.clone().requires_grad_(), x.double().requires_grad_()
    w = torch.randn(x.shape, generator=torch.Generator().manual_seed(6))
    options = {"mask": mask, "descending": descending}
    got = sinksort.soft_sort(y, weights=weights if weighted else None, **options)
    assert sinksort.last_backend() == "numba"
    true = sinksort.soft_sort(double, weights=weights.double() if weighted else None, **options, backend="torch")
    torch.testing.assert_close(got.double(), true, atol=1e-5, rtol=0)
    assert torch.equal(got == 0, torch.arange(n) >= mask.sum(-1, keepdim=True))
    (gradient,), (truth,) = torch.autograd.grad(got, y, w), torch.autograd.grad(true, double, w.double())
    assert ((gradient - truth).abs() <= 1e-3 * truth.abs().amax(-1, keepdim=True) + 1e-12).all()


@pytest.mark.parametrize("eps", [1e-2, 1e-3])
def test_gradients_stay_among_what_is_kept(eps):
    x, mask, _ = batch(1)
    w = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    single, double = x.clone().requires_grad_(), x.double().requires_grad_()
    (got,) = torch.autograd.grad(sinksort.soft_rank(single, mask=mask, eps=eps), single, w)
    true_ranks = sinksort.soft_rank(double, mask=mask, eps=eps, solver=sinksort.Newton(compress=False))
    (true,) = torch.autograd.grad(true_ranks, double, w.double())
    assert got[~mask].eq(0).all()
    largest = true.abs().amax(-1, keepdim=True)
    assert ((got - true).abs() <= 1e-3 * largest + 1e-12).all()


@pytest.mark.parametrize("operator", [sinksort.soft_rank, sinksort.soft_sort])
def test_nothing_at_all_is_kept(operator):
    x = torch.full((2, N), math.nan)
    assert torch.equal(operator(x, mask=torch.zeros(2, N, dtype=torch.bool)), torch.zeros(2, N))


def test_half_precision_and_a_mask_for_all_rows():
    x, mask, _ = batch(3)
    mask = mask[1]
    x = torch.randn(4, N, generator=torch.Generator().manual_seed(4)).half()
    got = sinksort.soft_rank(x, mask=mask)
    assert got.dtype == torch.float16
    true = sinksort.soft_rank(x[:, mask].double(), backend="torch")
    torch.testing.assert_close(got[:, mask].double(), true, atol=0.1, rtol=1e-3)


def test_what_is_wrong_with_a_mask_is_said():
    x = torch.randn(2, N)
    with pytest.raises(TypeError, match="mask must be a boolean tensor"):
        sinksort.soft_rank(x, mask=torch.ones(2, N))
    with pytest.raises(ValueError, match="mask must match x along dim=-1"):
        sinksort.soft_rank(x, mask=torch.ones(3, N, dtype=torch.bool))
    with pytest.raises(ValueError, match="weights must be non-negative"):
        sinksort.soft_rank(x, mask=torch.ones(2, N, dtype=torch.bool), weights=-torch.ones(2, N))
