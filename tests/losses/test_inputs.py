"""Losses of unusual but right input: NaN stays NaN, one example is a sample, labels in every form."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from sinksort import losses

nan = math.nan
ROWS = torch.tensor([[0.1, 0.5, 0.3, 0.7], [0.9, 0.2, 0.4, 0.6]], dtype=torch.float64)

CORRELATIONS: dict[str, Callable[..., Tensor]] = {
    "spearman": losses.spearman,
    "spearman_loss": losses.spearman_loss,
    "kendall": losses.kendall,
    "kendall_loss": losses.kendall_loss,
    "kendall, hyperbolic": lambda *args, **kw: losses.kendall(*args, pair_weights="hyperbolic", **kw),
    "kendall_loss, hyperbolic": lambda *args, **kw: losses.kendall_loss(*args, pair_weights="hyperbolic", **kw),
}


@pytest.mark.parametrize("name", CORRELATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", ["predictions", "targets", "both"])
def test_nan_in_a_row_makes_its_correlation_nan(name: str, dtype: torch.dtype, side: str) -> None:
    """As in SciPy, where it propagates; the other row has what it has alone, and its gradient."""
    assert np.isnan(scipy.stats.spearmanr([0.1, 0.5, 0.3], [1.0, nan, 2.0]).statistic)
    wrong = ROWS.to(dtype).clone()
    wrong[0, 1] = nan
    right = ROWS.to(dtype).flip(-1)
    x = (right if side == "targets" else wrong).clone().requires_grad_()
    y = right if side == "predictions" else wrong
    out = CORRELATIONS[name](x, y, reduction="none")
    assert out.isnan().tolist() == [True, False]
    torch.testing.assert_close(out[1], CORRELATIONS[name](x[1], y[1]), rtol=0, atol=1e-6)
    assert CORRELATIONS[name](x, y).isnan()
    if name.endswith("loss"):
        (slope,) = torch.autograd.grad(out[1], x)
        assert slope[1].isfinite().all()
        assert slope[1].abs().sum() > 0


@pytest.mark.parametrize("name", CORRELATIONS)
def test_nan_that_is_masked_is_not_there(name: str) -> None:
    x, y = ROWS.clone(), ROWS.flip(-1)
    y[0, 1] = nan
    kept = ~y.isnan()
    out = CORRELATIONS[name](x, y, mask=kept, reduction="none")
    torch.testing.assert_close(out[0], CORRELATIONS[name](x[0, kept[0]], y[0, kept[0]]), rtol=0, atol=1e-9)
    torch.testing.assert_close(out[1], CORRELATIONS[name](x[1], y[1]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", CORRELATIONS)
def test_constants_have_no_correlation(name: str) -> None:
    expected = 1.0 if "loss" in name else 0.0
    for x, y in ((ROWS, torch.ones_like(ROWS)), (torch.ones_like(ROWS), ROWS)):
        torch.testing.assert_close(CORRELATIONS[name](x, y), torch.tensor(expected).double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("read", "unharmed"),
    [
        (lambda x: losses.conformal_quantile(x, 0.5, mask=None), True),
        (lambda x: losses.soft_conformal_quantile(x, 0.5), True),
        (lambda x: losses.permutation_accuracy(x, torch.tensor([1, 3, 2, 4]).expand(2, 4), reduction="none"), True),
        (
            lambda x: losses.permutation_accuracy(
                x, torch.tensor([1, 3, 2, 4]).expand(2, 4), whole=True, reduction="none"
            ),
            True,
        ),
        (lambda x: losses.ndcg(x, torch.tensor([1, 0, 0, 1]).expand(2, 4), reduction="none"), True),
        (lambda x: losses.average_precision(x, torch.tensor([1, 0, 0, 1]).expand(2, 4), reduction="none"), True),
        (lambda x: losses.reciprocal_rank(x, torch.tensor([1, 0, 0, 1]).expand(2, 4), reduction="none"), True),
        (lambda x: losses.recall_at_k(x, torch.tensor([1, 0, 0, 1]).expand(2, 4), 2, reduction="none"), True),
        (lambda x: losses.topk_error(x, torch.tensor([1, 3]), 2, reduction="none"), True),
        (lambda x: losses.quantile_parity(x, torch.tensor([0, 1, 1, 0]).expand(2, 4), reduction="none"), True),
        (lambda x: losses.least_quantile_loss(x, reduction="none"), True),
        (lambda x: losses.trimmed_loss(x, reduction="none"), True),
    ],
)
def test_nan_in_scores_is_seen_in_metrics_and_losses(read: Callable[[Tensor], Tensor], unharmed: bool) -> None:
    x = ROWS.clone()
    x[0, 1] = nan
    assert read(x).isnan().tolist() == [True, not unharmed]


@pytest.mark.parametrize(
    "read",
    [
        lambda x: losses.spearman_loss(x, x),
        lambda x: losses.kendall_loss(x, x),
        lambda x: losses.least_quantile_loss(x, 0.9) - x.abs().squeeze(),
        lambda x: losses.trimmed_loss(x) - x.squeeze(),
        lambda x: losses.median_of_means(x, 1) - x.squeeze(),
    ],
)
@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_one_example_is_a_sample(read: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    """One row of one entry is no column of predictions: correlations of it are undefined, so 0, and the rest is it."""
    out = read(torch.full(shape, 0.3))
    assert min(abs(out.item()), abs(out.item() - 1.0)) < 1e-6


@pytest.mark.parametrize("positives", ["all", "any"])
@pytest.mark.parametrize("k", [1, 2])
def test_labels_as_zeros_and_ones_and_as_lists(positives: str, k: int) -> None:
    """Two ways to say the same, once the zeros and ones are booleans; two classes included."""
    generator = torch.Generator().manual_seed(0)
    for L, lists in ((4, [[1, 3, -1], [0, -1, -1], [2, 1, 0]]), (2, [[0, -1], [1, 0], [1, -1]])):
        logits = torch.randn(3, L, generator=generator)
        hot = torch.zeros(3, L, dtype=torch.int64)
        for row, those in enumerate(lists):
            hot[row, [label for label in those if label >= 0]] = 1
        ours = losses.topk_loss(logits, hot.bool(), k, positives=positives, reduction="none")
        theirs = losses.topk_loss(logits, torch.tensor(lists), k, positives=positives, reduction="none")
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
