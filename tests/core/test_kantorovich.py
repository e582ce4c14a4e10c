"""The exact operators against POT's emd_1d, SciPy's rankdata and torch.sort; their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import ot
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import sinksort
from tests import inputs, oracles, strategies
from tests.strategies import tensor


@given(st.data())
def test_agrees_with_pot(data: st.DataObject) -> None:
    """Any weights, any number of targets. POT breaks ties in its own way, so x has none (ties are tested below)."""
    n, m = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 15))
    x = np.array(data.draw(st.permutations(range(n))), dtype=float) ** 3
    a = data.draw(strategies.weights_for(n)).numpy()
    b = data.draw(strategies.weights_for(m)).numpy()
    options = {"weights": tensor(a), "target_weights": tensor(b)}
    np.testing.assert_allclose(
        sinksort.kantorovich_rank(tensor(x), **options).numpy(), oracles.exact_ranks(x, a, b), atol=1e-9 * n
    )
    np.testing.assert_allclose(
        sinksort.kantorovich_sort(tensor(x), **options).numpy(),
        oracles.exact_sorts(x, a, b),
        atol=1e-9 * np.ptp(x) + 1e-12,
    )


@pytest.mark.parametrize("kind", inputs.KINDS)
@pytest.mark.parametrize("n", [1, 2, 7, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_weights_are_hard_ranks_and_sorts(kind: str, n: int, dtype: torch.dtype) -> None:
    x = tensor(inputs.values(kind, n, seed=n)).to(dtype)
    expected = torch.from_numpy(scipy.stats.rankdata(x.numpy())).to(dtype)
    if kind in ("tied", "few_valued", "constant"):
        torch.testing.assert_close(
            sinksort.kantorovich_rank(x), expected, rtol=1e-12 if dtype.itemsize == 8 else 1e-6, atol=0
        )
    else:
        assert torch.equal(sinksort.kantorovich_rank(x), expected)
    assert torch.equal(
        sinksort.kantorovich_rank(x, descending=True).add(sinksort.kantorovich_rank(x)).round(),
        torch.full_like(x, n + 1),
    )
    assert torch.equal(sinksort.kantorovich_sort(x), x.sort().values)  # bit for bit
    assert torch.equal(sinksort.kantorovich_sort(x, descending=True), x.sort(descending=True).values)


def test_the_example_of_the_paper() -> None:
    x = torch.tensor([0.38, 4, -2, 6, -9])
    assert sinksort.kantorovich_rank(x).tolist() == [3, 4, 2, 5, 1]
    assert torch.equal(sinksort.kantorovich_sort(x), torch.tensor([-9, -2, 0.38, 4, 6]))


def test_m_smaller_than_n_by_hand() -> None:
    """Four values onto two targets: pairs are averaged. Onto three unequal ones: shares are those of the overlaps."""
    x = torch.tensor([4.0, 1.0, 3.0, 2.0], dtype=torch.float64)
    assert sinksort.kantorovich_sort(x, num_targets=2).tolist() == [1.5, 3.5]
    assert sinksort.kantorovich_rank(x, num_targets=2).tolist() == [4.0, 2.0, 4.0, 2.0]
    b = torch.tensor([0.125, 0.5, 0.375], dtype=torch.float64)
    torch.testing.assert_close(
        sinksort.kantorovich_sort(x, target_weights=b),
        torch.tensor([1.0, (0.125 + 0.5 + 0.375) / 0.5, (0.125 * 3 + 1) / 0.375]).to(torch.float64),
    )


@pytest.mark.parametrize("operator", [sinksort.kantorovich_rank, sinksort.kantorovich_sort], ids=lambda f: f.__name__)
def test_targets_are_counted_and_their_positions_do_not_matter(operator: Any) -> None:
    """POT's exact plan onto the very positions, uneven ones too, gives the same operators."""
    x, a, b = inputs.values("normal", 7, 1), inputs.weights("random", 7, 2), inputs.weights("random", 4, 3)
    near, far = np.array([0.0, 0.1, 0.2, 0.3]), np.array([-50.0, 0.1, 0.11, 1e6])
    for y in (near, far):
        P = ot.emd_1d(x, y, a, b)
        exact = 7 * P @ np.cumsum(b) / a if operator is sinksort.kantorovich_rank else P.T @ x / b
        out = operator(tensor(x), weights=tensor(a), targets=tensor(y), target_weights=tensor(b))
        np.testing.assert_allclose(out.numpy(), exact, atol=1e-9)
    assert torch.equal(operator(tensor(x), targets=tensor(far)), operator(tensor(x), num_targets=4))
    with pytest.raises(ValueError, match="targets must be strictly increasing"):
        operator(tensor(x), targets=tensor(far).flip(0))
    # Targets that are given are all there, however many values are masked.
    mask = torch.tensor([True, True, False, True, False, False, True])
    short = operator(tensor(x)[mask], targets=tensor(far))
    padded = operator(tensor(x), targets=tensor(far), mask=mask)
    assert torch.equal(padded[mask] if operator is sinksort.kantorovich_rank else padded, short)


@given(strategies.batches())
def test_is_the_limit_of_the_soft_operators(x: Tensor) -> None:
    """Ties share the average of their interval, as the entropic plan does: where values are equal or clearly apart."""
    spaced = x.round(decimals=1)
    soft = sinksort.soft_rank(
        spaced,
        eps=1e-7,
        squash=lambda t: (
            (t - t.amin(-1, keepdim=True)) / (t.amax(-1, keepdim=True) - t.amin(-1, keepdim=True)).clamp(min=1)
        ),
    )
    apart = spaced.sort(-1).values.diff(dim=-1)
    width = (spaced.amax(-1) - spaced.amin(-1)).clamp(min=1)
    clear = ((apart == 0) | (apart / width.unsqueeze(-1) > 0.01)).all(-1)
    torch.testing.assert_close(soft[clear], sinksort.kantorovich_rank(spaced)[clear], rtol=0, atol=1e-6)


@pytest.mark.parametrize("m", [3, 4, 7])
def test_gradients(m: int) -> None:
    """In x for the sort, in both weights for both. Weights in general position: no two cumulative sums meet."""
    generator = torch.Generator().manual_seed(m)
    x = torch.randn(2, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    a = (torch.rand(4, generator=generator, dtype=torch.float64) + 0.2).requires_grad_()
    b = (torch.rand(m, generator=generator, dtype=torch.float64) + 0.2).requires_grad_()

    def rank(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return sinksort.kantorovich_rank(x, weights=a, target_weights=b)

    def sort(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return sinksort.kantorovich_sort(x, weights=a, target_weights=b)

    assert gradcheck(rank, (x.detach(), a, b))
    assert gradcheck(sort, (x, a, b))
    assert gradgradcheck(sort, (x, a, b))
    torch.testing.assert_close(
        torch.autograd.functional.jacobian(lambda t: rank(t, a, b), x).abs().max(), torch.tensor(0.0).double()
    )


def test_mask() -> None:
    x = torch.tensor([[3.0, float("nan"), 1.0, 2.0], [5.0, 6.0, 0.0, 0.0]])
    mask = torch.tensor([[True, False, True, True], [True, True, False, False]])
    assert sinksort.kantorovich_rank(x, mask=mask).tolist() == [[3, 0, 1, 2], [1, 2, 0, 0]]
    assert sinksort.kantorovich_sort(x, mask=mask).tolist() == [[1, 2, 3, 0], [5, 6, 0, 0]]
    assert sinksort.kantorovich_sort(x, mask=mask, descending=True).tolist() == [[3, 2, 1, 0], [6, 5, 0, 0]]
    nothing = sinksort.kantorovich_rank(x, mask=torch.zeros(2, 4, dtype=torch.bool))
    assert nothing.tolist() == [[0.0] * 4] * 2


def test_nan_rows_and_zero_weights() -> None:
    x = torch.tensor([[3.0, float("nan")], [2.0, 1.0]])
    ranks, sorts = sinksort.kantorovich_rank(x), sinksort.kantorovich_sort(x)
    assert ranks[0].isnan().all()
    assert sorts[0].isnan().all()
    assert ranks[1].tolist() == [2, 1]
    assert sorts[1].tolist() == [1, 2]
    weights = torch.tensor([0.5, 0.0, 0.5])
    x = torch.tensor([1.0, 100.0, 2.0])
    assert sinksort.kantorovich_sort(x, weights=weights, num_targets=2).tolist() == [1, 2]
    assert sinksort.kantorovich_rank(x, weights=weights, num_targets=2)[[0, 2]].tolist() == [1.5, 3]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_any_dim(dim: int) -> None:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    for operator in (sinksort.kantorovich_rank, sinksort.kantorovich_sort):
        direct: Any = operator(x, dim=dim)
        assert torch.equal(direct, operator(x.movedim(dim, -1).contiguous()).movedim(-1, dim))
