"""Rows of docs/migrating.md, against the libraries that are at hand and the definitions of those that are not.

The page's own code is run by test_docs.py; relaxations against their originals: test_relaxations_oracles.py.
"""

from __future__ import annotations

import diffsort
import difftopk
import numpy as np
import pytest
import torch
from torch import Tensor

import sinksort
from sinksort import losses, relaxations
from sinksort.nn import straight_through

WIDE = torch.float64


def rows(*shape: int, seed: int = 0) -> Tensor:
    """Values far enough apart for a hard answer at a small eps."""
    values = torch.arange(float(shape[-1]), dtype=WIDE)
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([values[torch.randperm(shape[-1], generator=generator)] for _ in range(shape[0])])


def test_matrices_lie_as_the_page_says() -> None:
    """Where answers are hard all methods say the same, so only rows, columns and directions are left to differ."""
    x = rows(3, 4)
    hard = sinksort.soft_permutation(x, eps=1e-5)
    ordered, P = diffsort.DiffSortNet("odd_even", 4, steepness=1e6)(x)
    torch.testing.assert_close(hard.mT, P, rtol=0, atol=1e-4)
    torch.testing.assert_close((x.unsqueeze(-2) @ P).squeeze(-2), ordered, rtol=0, atol=1e-4)
    single = x.float()
    last = difftopk.DiffTopkNet("odd_even", 4, k=2, sparse=False, steepness=1e6)(single)[1]
    torch.testing.assert_close(hard[..., -2:, :].mT, last.double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(hard.mT, difftopk.NeuralSort(tau=1e-3)(single).double(), rtol=0, atol=1e-4)
    first = sinksort.soft_permutation(x, descending=True, eps=1e-5)
    torch.testing.assert_close(first, difftopk.SoftSort(tau=1e-3)(single).double(), rtol=0, atol=1e-4)
    neural = relaxations.permutation(x, method="neuralsort", strength=1e-3, descending=True)
    torch.testing.assert_close(first, neural, rtol=0, atol=1e-4)
    places = torch.argsort(x, descending=True)  # indices of top-k, as distributions
    torch.testing.assert_close(
        first[..., :2, :], torch.nn.functional.one_hot(places, 4)[..., :2, :].to(WIDE), rtol=0, atol=1e-4
    )


def test_a_distribution_over_k_is_that_of_difftopk() -> None:
    """With hard answers the loss is -log of the p_k whose k is at least the place of the label; m is all classes."""
    logits = 30.0 * rows(6, 8).float()
    labels = logits.argsort(-1, descending=True)[torch.arange(6), torch.arange(6) % 3]  # the first, second and third
    p_k = [0.25, 0.0, 0.75]
    theirs = difftopk.TopKCrossEntropyLoss("odd_even", 1e4, p_k, 8, None, distribution="cauchy", top1_mode="sm")(
        logits, labels
    )
    share = p_k[0] * logits.softmax(-1) + p_k[2] * sinksort.soft_topk_mask(logits, 3, eps=1e-4)
    ours = -(share.gather(-1, labels[:, None]) * (1 - 2e-7) + 1e-7).log().mean()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)
    assert ours.item() == pytest.approx(-np.log(0.75) * 4 / 6, abs=1e-3)


@pytest.mark.parametrize("eps", [0.1, 1.0])
def test_coordinate_descent_tends_to_the_same_selection(eps: float) -> None:
    """Its fixed point is min(1, exp((s + a)/eps)) with the a for which the sum is k: the sum is ours, too."""
    s = torch.randn(5, 12, dtype=WIDE, generator=torch.Generator().manual_seed(0))
    low, high = torch.full((5, 1), -100.0, dtype=WIDE), torch.full((5, 1), 100.0, dtype=WIDE)
    for _ in range(200):
        middle = (low + high) / 2
        much = ((s + middle) / eps).exp().clamp(max=1.0).sum(-1, keepdim=True) > 3
        low, high = torch.where(much, low, middle), torch.where(much, middle, high)
    theirs = ((s + low) / eps).exp().clamp(max=1.0)
    ours = sinksort.soft_topk_mask(s, 3, squash=None, eps=eps)
    torch.testing.assert_close(ours.sum(-1), theirs.sum(-1), rtol=0, atol=1e-8)
    assert torch.equal(ours.argsort(-1), theirs.argsort(-1)) or eps < 1.0  # ties at 1 have no order
    sharp = ((s + low) / eps).exp() >= 1.0
    assert (ours[sharp] > 0.4).all()


def test_ndcg_is_that_of_allrank() -> None:
    """Its formula, written out: 2^grade - 1 over log2(place + 1), padding last, over the best that can be had."""
    generator = np.random.default_rng(0)
    y_true = torch.tensor(generator.integers(0, 4, (5, 7)), dtype=torch.float32)
    y_true[0, 4:] = -1
    y_true[3, 2:] = -1
    y_pred = torch.tensor(generator.standard_normal((5, 7)), dtype=torch.float32)
    mask, relevance, k = y_true != -1, y_true.clamp(min=0), 5

    def dcg(by: Tensor) -> Tensor:
        grades = relevance.gather(-1, torch.where(mask, by, -torch.inf).argsort(-1, descending=True))
        gains = torch.where(mask.sum(-1, keepdim=True) > torch.arange(7), grades.exp2() - 1, 0.0)
        return (gains / torch.log2(torch.arange(7) + 2.0))[:, :k].sum(-1)

    theirs = dcg(y_pred) / dcg(y_true)
    ours = losses.ndcg(y_pred, relevance, k, gain="exponential", mask=mask, reduction="none")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    soft = losses.ndcg_loss(y_pred, relevance, k, gain="exponential", mask=mask, eps=1e-5) - 1
    torch.testing.assert_close(soft, -theirs.mean(), rtol=0, atol=1e-4)


def test_medians_and_ranks_of_softtorch() -> None:
    """Torch's median is the lower of two, JAX's their mean; ranks of a tensor are ranks of all its entries."""
    x = torch.tensor([-0.2, -1.0, 0.3, 1.0])
    assert sinksort.soft_median(x, interpolation="lower", eps=1e-5).item() == pytest.approx(-0.2, abs=1e-4)
    assert sinksort.soft_median(x, eps=1e-5).item() == pytest.approx(0.05, abs=1e-4)
    assert sinksort.soft_quantile(x, 0.2, interpolation="linear", eps=1e-5).item() == pytest.approx(-0.52, abs=1e-4)
    grid = rows(1, 6).reshape(2, 3)
    ranks = sinksort.soft_rank(grid.flatten(), descending=True, eps=1e-5).reshape(grid.shape)
    torch.testing.assert_close(ranks, 6.0 - grid, rtol=0, atol=1e-4)


def test_quantiles_of_ott() -> None:
    """Its filler of min(0.02, 1.5/n) around q."""
    x = torch.randn(40, dtype=WIDE, generator=torch.Generator().manual_seed(1))
    width = min(0.02, 1.5 / 40)
    b = torch.tensor([0.3 - width / 2, width, 0.7 - width / 2], dtype=WIDE)
    theirs = sinksort.soft_sort(x, target_weights=b)[1]
    torch.testing.assert_close(sinksort.soft_quantile(x, 0.3, width=width), theirs, rtol=0, atol=1e-9)


def test_hard_forward_and_soft_backward_is_that_of_neuralsort() -> None:
    scores = rows(2, 5).requires_grad_()
    soft = relaxations.permutation(scores, method="neuralsort", strength=1.0, descending=True)
    hard = torch.nn.functional.one_hot(soft.argmax(-1), 5).to(WIDE)
    out = straight_through(hard, soft)
    torch.testing.assert_close(out, hard, rtol=0, atol=0)
    weights = torch.randn(2, 5, 5, dtype=WIDE, generator=torch.Generator().manual_seed(0))
    (ours,) = torch.autograd.grad((out * weights).sum(), scores, retain_graph=True)
    (theirs,) = torch.autograd.grad((soft * weights).sum(), scores)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
