"""The smooth top-k SVM loss against its definition: sums and maxima over all sets of k classes."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from sinksort.relaxations import smooth_topk_svm_loss


def by_enumeration(s: np.ndarray, y: int, k: int, tau: float, margin: float = 1.0) -> tuple[float, float]:
    """(smooth, hard) loss of one row, set by set."""
    sets = list(itertools.combinations(range(len(s)), k))
    every = [margin * (y not in B) + s[list(B)].mean() for B in sets]
    true = [s[list(B)].mean() for B in sets if y in B]
    smooth = tau * (np.logaddexp.reduce(np.array(every) / tau) - np.logaddexp.reduce(np.array(true) / tau))
    return float(smooth), max(every) - max(true)


@pytest.mark.parametrize("tau", [0.1, 1.0, 5.0])
@pytest.mark.parametrize(("L", "k"), [(2, 1), (3, 2), (6, 1), (6, 3), (7, 6), (9, 5)])
def test_is_the_sum_over_all_sets(L: int, k: int, tau: float) -> None:
    rng = np.random.default_rng(L + k)
    logits, labels = 3 * rng.standard_normal((5, L)), rng.integers(0, L, 5)
    for margin in (0.0, 1.0, 2.5):
        ours = smooth_topk_svm_loss(
            torch.tensor(logits), torch.tensor(labels), k, temperature=tau, margin=margin
        ).numpy()
        exact = [by_enumeration(s, y, k, tau, margin)[0] for s, y in zip(logits, labels, strict=True)]
        np.testing.assert_allclose(ours, exact, rtol=1e-10, atol=1e-12)


def test_small_temperature_is_the_hard_loss_over_all_sets() -> None:
    rng = np.random.default_rng(3)
    logits, labels = 3 * rng.standard_normal((20, 7)), rng.integers(0, 7, 20)
    ours = smooth_topk_svm_loss(torch.tensor(logits), torch.tensor(labels), 3, temperature=1e-4).numpy()
    hard = np.array([by_enumeration(s, y, 3, 1e-4)[1] for s, y in zip(logits, labels, strict=True)])
    # A soft maximum is at most tau log(number of sets) above the hard one.
    assert np.abs(ours - hard).max() <= 1e-4 * math.log(math.comb(7, 3))
    assert (hard == 0).any()  # some labels are far enough ahead


def test_one_guess_without_margin_is_cross_entropy() -> None:
    logits = torch.randn(4, 3, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.randint(10, (4, 3), generator=torch.Generator().manual_seed(1))
    ours = smooth_topk_svm_loss(logits, labels, 1, margin=0.0)
    usual = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(4, 3)
    torch.testing.assert_close(ours, usual, rtol=1e-12, atol=1e-12)


def test_gradients_and_extreme_logits() -> None:
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    labels = torch.tensor([0, 5, 2])
    assert gradcheck(lambda s: smooth_topk_svm_loss(s, labels, 3, temperature=0.5), (logits,))
    # Many classes in single precision, hundreds of units apart: finite, and as in double precision.
    wide = 300 * torch.randn(8, 1000, generator=torch.Generator().manual_seed(3))
    at = torch.arange(8)
    for dtype in (torch.float32, torch.float64):
        leaf = wide.to(dtype).requires_grad_()
        lost = smooth_topk_svm_loss(leaf, at, 5)
        (gradient,) = torch.autograd.grad(lost.sum(), leaf)
        assert gradient.isfinite().all()
        # Raising all logits together changes nothing; of the label it lowers the loss.
        torch.testing.assert_close(gradient.sum(-1), torch.zeros_like(lost), rtol=0, atol=1e-5)
        assert (gradient[at, at] <= 0).all()
        torch.testing.assert_close(lost, smooth_topk_svm_loss(wide.double(), at, 5).to(dtype), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 3}, "k must be an integer between 1 and 2 for 3 classes, got 3."),
        ({"labels": torch.tensor([0.0])}, "labels must be a tensor of integers, one class a row, got torch.float32"),
        ({"labels": torch.tensor([3])}, "labels must be in [0, 2] for 3 classes, got 3; classes count from 0."),
        ({"labels": torch.tensor([0, 1])}, "labels must have shape (1,) (one class a row) for logits of shape (1, 3)"),
        ({"temperature": 0.0}, "temperature must be positive and finite, got 0."),
        ({"margin": -1.0}, "margin must be a number from 0 up, got -1."),
        ({"logits": torch.zeros(1, 1)}, "logits must have at least two classes along their last dimension"),
        ({"logits": torch.zeros(1, 3).long()}, "logits must be a floating-point tensor"),
    ],
)
def test_errors(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"logits": torch.zeros(1, 3), "labels": torch.tensor([0]), "k": 2, **change}
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        smooth_topk_svm_loss(**given)
