"""``squash="robust"`` of the operators: the sigmoid of what median and median absolute deviation standardise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinksort
from sinksort import losses

R, N = 3, 9
MASK = torch.tensor(np.random.default_rng(0).random((R, N)) > 0.25)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def placed(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """By NumPy, row by row."""
    out = np.full(x.shape, np.nan)
    for i, row in enumerate(x.numpy()):
        there = row if mask is None else row[mask[i].numpy()]
        centre = np.median(there)
        out[i] = 1.0 / (1.0 + np.exp(-(row - centre) / (1.4826 * np.median(np.abs(there - centre)))))
    return torch.tensor(out)


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "soft_rank": sinksort.soft_rank,
    "soft_sort": sinksort.soft_sort,
    "soft_permutation": sinksort.soft_permutation,
    "soft_topk_mask": lambda x, **o: sinksort.soft_topk_mask(x, 3, **o),
    "soft_topk": lambda x, **o: sinksort.soft_topk(x, 3, **o).values,
    "soft_quantile": lambda x, **o: sinksort.soft_quantile(x, 0.3, **o),
    "soft_quantile, several": lambda x, **o: sinksort.soft_quantile(x, [0.1, 0.7], **o),
    "soft_median": sinksort.soft_median,
    "sort_with": lambda x, **o: sinksort.sort_with(x.square(), x, **o),
    "quantile_normalize": lambda x, **o: sinksort.quantile_normalize(x, torch.arange(5.0), **o),
    "transport": lambda x, **o: sinksort.transport(x, **o).ranks(),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
def test_robust_is_what_numpy_makes_of_it(name: str, dtype: torch.dtype, masked: bool) -> None:
    x = drawn(1, R, N)
    x[0, 0] = 1000.0
    options: dict[str, Any] = {"mask": MASK} if masked else {}
    expected = OPERATORS[name](x, squash=lambda _: placed(x, options.get("mask")).expand(_.shape), eps=0.02, **options)
    ours = OPERATORS[name](x.to(dtype), squash="robust", eps=0.02, **options)
    torch.testing.assert_close(ours.double(), expected.double(), rtol=1e-5, atol=1e-5)


def test_weights_count_in_the_medians() -> None:
    """An entry of weight 2 is an entry that is there twice."""
    x, twice = drawn(2, 6), torch.tensor([1.0, 2.0, 1.0, 1.0, 2.0, 1.0])
    repeated = torch.cat([x, x[[1, 4]]])
    ours = sinksort.soft_topk_mask(x, 2.0, weights=twice, squash="robust", eps=0.1)
    expected = sinksort.soft_topk_mask(repeated, 8 * 2 / 6, squash="robust", eps=0.1)
    torch.testing.assert_close(ours, expected[:6], rtol=1e-9, atol=1e-9)
    nothing = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    moved = x.clone()
    moved[2] += 100.0
    kept = torch.arange(6) != 2
    before, after = (sinksort.soft_rank(t, weights=nothing, squash="robust")[kept] for t in (x, moved))
    torch.testing.assert_close(before, after, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "transport"])
def test_derivatives_with_robust_places(name: str) -> None:
    x = drawn(3, 2, 7).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: OPERATORS[name](x, squash="robust", eps=0.1), (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: OPERATORS[name](x, squash="robust", eps=0.1), (x,), fast_mode=True)


def test_rows_that_have_no_spread_and_values_that_are_none() -> None:
    same = torch.full((4,), 2.5)
    assert sinksort.soft_rank(same, squash="robust").tolist() == [2.5] * 4
    mostly = torch.tensor([1.0, 1.0, 1.0, 1.0, 5.0])
    assert sinksort.soft_rank(mostly, squash="robust", eps=1e-3).tolist() == [2.5, 2.5, 2.5, 2.5, 5.0]
    ranks = sinksort.soft_rank(torch.tensor([1.0, float("inf"), 2.0]), squash="robust", eps=1e-4)
    assert ranks.tolist() == [1.0, 3.0, 2.0]
    assert sinksort.soft_rank(torch.tensor([1.0, float("nan"), 2.0]), squash="robust").isnan().all()
    assert sinksort.soft_rank(torch.tensor(3.0), squash="robust") == 1.0


def test_half_precision_and_other_dimensions() -> None:
    x = drawn(4, 5, 4).float()
    ours = sinksort.soft_rank(x.bfloat16(), dim=0, squash="robust", eps=0.1)
    assert ours.dtype == torch.bfloat16
    exact = sinksort.soft_rank(x.bfloat16().float(), dim=0, squash="robust", eps=0.1)
    torch.testing.assert_close(ours.float(), exact, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(exact, sinksort.soft_rank(x.bfloat16().float().T, squash="robust", eps=0.1).T)


def test_outliers_do_not_blur_the_others() -> None:
    x = torch.tensor([0.1, 0.2, 0.3, 0.4, 1000.0])
    assert sinksort.soft_rank(x, squash="robust").diff().min() > 0.8
    assert sinksort.soft_rank(x, squash="sigmoid").diff()[:3].max() < 0.1
    loss = losses.spearman_loss(x, torch.arange(5.0), squash="robust")
    assert loss < 0.01


def test_what_knows_no_robust_squash_says_so() -> None:
    x = drawn(5, 6)
    with pytest.raises(ValueError, match="squash='robust' does not go with mask= in smooth_transport"):
        sinksort.smooth_transport(x, mask=x > -1, squash="robust")
    with pytest.raises(ValueError, match="squash must be 'sigmoid', 'arctan', 'robust'"):
        sinksort.soft_rank(x, squash="tanh")
