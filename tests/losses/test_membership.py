"""Losses of the top-k mask at the label: by hand, as limits, and against what they generalise."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sinksort import losses, soft_topk_mask


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


LOGITS = drawn(0, 5, 7)
LABELS = torch.tensor([0, 3, 6, 2, 2])


@pytest.mark.parametrize("k", [1, 2, 7])
def test_it_is_minus_the_logarithm_of_the_mask(k: int) -> None:
    mask = soft_topk_mask(LOGITS, k, squash=None, eps=1.0)
    expected = -mask.gather(-1, LABELS[:, None]).squeeze(-1).log()
    torch.testing.assert_close(losses.membership_loss(LOGITS, LABELS, k, reduction="none"), expected)


def test_two_classes_are_cross_entropy() -> None:
    """Of two classes the mask of one is the softmax at twice the temperature eps / 2."""
    x = drawn(1, 6, 2)
    labels = torch.tensor([0, 1, 1, 0, 1, 0])
    for eps in (0.5, 1.0, 2.0):
        torch.testing.assert_close(
            losses.membership_loss(x, labels, eps=eps), functional.cross_entropy(x / eps, labels)
        )


def test_a_row_far_from_right_pays_for_its_distance() -> None:
    """c lies in the middle of 3 and 5: the label is 2 (4 - 1) / eps below."""
    x = torch.tensor([[5.0, 1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    loss = losses.membership_loss(x, torch.tensor([1]), eps=1e-2)
    torch.testing.assert_close(loss.detach(), torch.tensor(600.0).double())
    (slope,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(slope, torch.tensor([[100.0, -200.0, 100.0]]).double())
    assert losses.membership_loss(x, torch.tensor([2]), k=2, eps=1e-2) < 1e-12


@pytest.mark.parametrize("power", [0.3, 0.8, 1.0])
def test_powers_are_the_generalised_cross_entropy_of_the_mask(power: float) -> None:
    m = soft_topk_mask(LOGITS, 2, squash=None, eps=1.0).gather(-1, LABELS[:, None]).squeeze(-1)
    ours = losses.membership_loss(LOGITS, LABELS, 2, power=power, reduction="none")
    torch.testing.assert_close(ours, (1 - m**power) / power)


def test_small_powers_approach_the_logarithm() -> None:
    ours = losses.membership_loss(LOGITS, LABELS, 2, power=1e-6, reduction="none")
    torch.testing.assert_close(ours, losses.membership_loss(LOGITS, LABELS, 2, reduction="none"), rtol=1e-5, atol=1e-5)


def test_a_distribution_over_k() -> None:
    masks = torch.stack([soft_topk_mask(LOGITS, k, squash=None, eps=1.0) for k in (1, 2, 3)])
    p = torch.tensor([0.5, 0.2, 0.3]).double()
    expected = -(p[:, None, None] * masks).sum(0).gather(-1, LABELS[:, None]).squeeze(-1).log()
    ours = losses.membership_loss(LOGITS, LABELS, p_k=(0.5, 0.2, 0.3), reduction="none")
    torch.testing.assert_close(ours, expected)
    only_two = losses.membership_loss(LOGITS, LABELS, p_k=(0.0, 1.0))
    torch.testing.assert_close(only_two, losses.membership_loss(LOGITS, LABELS, 2))
    sharp = losses.membership_loss(1e3 * LOGITS, LABELS, p_k=(0.5, 0.5))
    assert sharp.isfinite()


def test_several_labels() -> None:
    listed = torch.tensor([[0, 4, -1], [3, -1, -1], [6, 1, 2], [2, -1, -1], [-1, -1, -1]])
    hot = torch.zeros(5, 8, dtype=torch.bool).scatter(-1, listed % 8, True)[:, :7]
    rows = []
    for i, k in enumerate([2, 1, 3, 1]):  # as many classes as labels do not compete
        rows.append(-soft_topk_mask(LOGITS[i], k, squash=None, eps=1.0, log=True)[listed[i, :k]].mean())
    ours = losses.membership_loss(LOGITS, listed, reduction="none")
    torch.testing.assert_close(ours, torch.stack([*rows, torch.zeros_like(rows[0])]))
    torch.testing.assert_close(losses.membership_loss(LOGITS, hot, reduction="none"), ours)
    torch.testing.assert_close(losses.membership_loss(LOGITS, listed), torch.stack(rows).mean())
    best = losses.membership_loss(LOGITS, listed, 2, positives="any", reduction="none")
    each = -soft_topk_mask(LOGITS, 2, squash=None, eps=1.0, log=True)
    torch.testing.assert_close(best[0], each[0, [0, 4]].min())
    torch.testing.assert_close(best[2], each[2, [6, 1, 2]].min())
    assert best[4] == 0


def test_topk_loss_is_this_by_default_and_the_papers_by_name() -> None:
    ours = losses.topk_loss(LOGITS, LABELS, 2)
    torch.testing.assert_close(ours, losses.membership_loss(LOGITS, LABELS, 2, power=0.8, eps=2.0))
    paper = losses.topk_loss(LOGITS, LABELS, 2, J="relu")
    torch.testing.assert_close(paper, losses.topk_loss(LOGITS, LABELS, 2, J="relu", squash="sigmoid", eps=1e-2))
    standardised = losses.topk_loss(LOGITS, LABELS, 2, squash="sigmoid", eps=0.1)
    torch.testing.assert_close(standardised, losses.topk_loss(3 * LOGITS + 1, LABELS, 2, squash="sigmoid", eps=0.1))


def test_logits_may_grow_until_nothing_is_lost() -> None:
    """Of standardised logits the loss of right answers stays where it is, whatever their size."""
    right, labels = torch.eye(4).double(), torch.arange(4)
    assert losses.topk_loss(10 * right, labels) > 1e-4
    assert losses.topk_loss(100 * right, labels) < 1e-12
    standardised = [losses.topk_loss(size * right, labels, squash="sigmoid", eps=0.3) for size in (10, 100)]
    torch.testing.assert_close(*standardised)
    assert standardised[0] > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes_and_reductions(dtype: torch.dtype) -> None:
    x = LOGITS.to(dtype)
    ours = losses.membership_loss(x, LABELS, 2)
    assert ours.dtype == dtype
    expected = losses.membership_loss(x.double(), LABELS, 2)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


ERRORS = {
    "power": (lambda: losses.membership_loss(LOGITS, LABELS, power=2.0), "power must be a number in [0, 1], got 2.0"),
    "p_k that is no distribution": (
        lambda: losses.membership_loss(LOGITS, LABELS, p_k=(0.5, 0.4)),
        "p_k must be non-negative numbers for k = 1, 2, ... that sum to 1",
    ),
    "p_k and k": (lambda: losses.membership_loss(LOGITS, LABELS, 2, p_k=(0.5, 0.5)), "without k beside them"),
    "p_k of more classes than there are": (
        lambda: losses.membership_loss(LOGITS, LABELS, p_k=[0.125] * 8),
        "k must be between 1 and 7, the number of classes",
    ),
    "k": (lambda: losses.membership_loss(LOGITS, LABELS, 8), "k must be between 1 and 7, the number of classes"),
    "rescale": (
        lambda: losses.topk_loss(LOGITS, LABELS, rescale=True),
        "rescale=True stretches ranks, and J='membership' has none",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, message = ERRORS[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
