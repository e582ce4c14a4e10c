"""What the losses say when they are given something wrong: the argument, what came, what was expected, the fix."""

from __future__ import annotations

import pytest
import torch

from sinksort import losses

X = torch.tensor([[0.1, 0.5, 0.3], [0.9, 0.2, 0.4]])
ROW = torch.arange(6.0)
ONES = torch.ones(2, 3)

CASES = {
    "k > classes": (
        lambda: losses.topk_loss(X, torch.tensor([0, 1]), 4),
        ValueError,
        "k must be between 1 and 3, the number of classes (the last dimension of logits), got 4.",
    ),
    "k = 0": (lambda: losses.topk_error(X, torch.tensor([0, 1]), 0), ValueError, "k must be between 1 and 3"),
    "fractional k": (
        lambda: losses.topk_loss(X, torch.tensor([0, 1]), 1.5),
        TypeError,
        "k must be an integer, got float.",
    ),
    "label beyond the classes": (
        lambda: losses.topk_loss(X, torch.tensor([0, 3])),
        ValueError,
        "labels must be in [0, 2] for 3 classes (or -1 for none), got 3; classes count from 0",
    ),
    "label below -1": (lambda: losses.topk_loss(X, torch.tensor([-100, 0])), ValueError, "(or -1 for none), got -100"),
    "wrong number of labels": (
        lambda: losses.topk_loss(X, torch.tensor([0, 1, 2])),
        ValueError,
        "labels must have shape (2,) (one class a row), (2, 'p')",
    ),
    "one-hot floats": (
        lambda: losses.topk_loss(X, torch.eye(3)[:2]),
        TypeError,
        "labels must be integers (or booleans, one a class), got torch.float32; call labels.long(), or labels > 0.5",
    ),
    "boolean labels of another shape": (
        lambda: losses.topk_loss(X, torch.ones(2, dtype=torch.bool)),
        ValueError,
        "boolean labels must have the shape of logits, (2, 3), got (2,)",
    ),
    "labels as a list": (lambda: losses.topk_loss(X, [0, 1]), TypeError, "labels must be a torch.Tensor, got list"),
    "zeros and ones, one a class": (
        lambda: losses.topk_loss(X, torch.tensor([[0, 1, 0], [0, 0, 1]])),
        ValueError,
        (
            "labels must name a class once in a row, but 0 is there twice; integers are lists of classes, so zeros and "
            "ones, one a class, must be labels.bool()."
        ),
    ),
    "zeros and ones of the metric, in a batch": (
        lambda: losses.topk_error(X.expand(4, 2, 3), torch.eye(3).long()[:2].expand(4, 2, 3)),
        ValueError,
        "but 0 is there twice",
    ),
    "a label twice": (
        lambda: losses.topk_loss(X, torch.tensor([[2, -1, -1], [1, 2, 1]])),
        ValueError,
        "but 1 is there twice",
    ),
    "zeros and ones for two classes": (
        lambda: losses.topk_loss(X[:, :2], torch.tensor([[0, 1], [1, 0]])),
        ValueError,
        (
            "labels must leave a class out in some row, but all of them name both classes, 0 and 1; integers are lists "
            "of classes, so zeros and ones, one a class, must be labels.bool()."
        ),
    ),
    "predictions as a column": (
        lambda: losses.spearman_loss(ROW[:, None], ROW[:, None]),
        ValueError,
        (
            "predictions must have the examples of a sample along its last dimension, got shape (6, 1): 6 samples of "
            "one example each, in which there is nothing to sort; call predictions.squeeze(-1)."
        ),
    ),
    "predictions as a column, targets as a row": (
        lambda: losses.kendall_loss(ROW[:, None], ROW),
        ValueError,
        "call predictions.squeeze(-1).",
    ),
    "targets as a column": (
        lambda: losses.spearman(ROW, ROW[:, None]),
        ValueError,
        (
            "targets must have the shape of predictions, (6,): one entry for each entry; got (6, 1); "
            "call targets.squeeze(-1)."
        ),
    ),
    "columns of a batch": (
        lambda: losses.kendall(torch.rand(2, 5, 1), torch.rand(2, 5, 1)),
        ValueError,
        "got shape (2, 5, 1): 10 samples of one example each",
    ),
    "residuals as a column": (
        lambda: losses.least_quantile_loss(ROW[:, None], 0.9),
        ValueError,
        "residuals must have the examples of a sample along its last dimension, got shape (6, 1)",
    ),
    "losses as a column": (
        lambda: losses.trimmed_loss(ROW[:, None]),
        ValueError,
        "call losses.squeeze(-1).",
    ),
    "losses as a column, in blocks": (
        lambda: losses.median_of_means(ROW[:, None], 1),
        ValueError,
        "call losses.squeeze(-1).",
    ),
    "group scores as a column": (
        lambda: losses.quantile_parity_loss(ROW[:, None], torch.arange(6)[:, None]),
        ValueError,
        "call scores.squeeze(-1).",
    ),
    "calibration scores as a column": (
        lambda: losses.soft_conformal_quantile(ROW[:, None], 0.5),
        ValueError,
        "call scores.squeeze(-1).",
    ),
    "calibration as a column": (
        lambda: losses.conformal_size_loss(ROW[:, None], torch.rand(6, 2, 3), 0.5),
        ValueError,
        "call calibration.squeeze(-1).",
    ),
    "unknown J": (
        lambda: losses.topk_loss(X, torch.tensor([0, 1]), J="hinge"),
        ValueError,
        "J (unless it is a callable) must be one of 'membership', 'relu', 'normalized', 'log', 'sqrt', 'softplus'",
    ),
    "unknown positives": (
        lambda: losses.topk_loss(X, torch.tensor([0, 1]), positives="some"),
        ValueError,
        "positives must be one of 'all', 'any', got 'some'.",
    ),
    "integer logits": (
        lambda: losses.topk_loss(X.long(), torch.tensor([0, 1])),
        TypeError,
        "logits must be a floating-point tensor, got torch.int64",
    ),
    "no classes": (
        lambda: losses.topk_loss(torch.ones(2, 0), torch.tensor([0, 1])),
        ValueError,
        "logits must have at least one entry along its last dimension, got shape (2, 0)",
    ),
    "unknown reduction": (
        lambda: losses.topk_loss(X, torch.tensor([0, 1]), reduction="average"),
        ValueError,
        "reduction must be one of 'mean', 'sum', 'none', got 'average'.",
    ),
    "weights an entry where a row is an example": (
        lambda: losses.ndcg_loss(X, ONES, weights=ONES),
        ValueError,
        "weights must have one number for each row, shape (2,) or one that broadcasts to it, got (2, 3); to leave out",
    ),
    "negative weights": (
        lambda: losses.ndcg_loss(X, ONES, weights=torch.tensor([1.0, -2.0])),
        ValueError,
        "weights must be non-negative, but the smallest is -2",
    ),
    "mask of numbers": (
        lambda: losses.ndcg_loss(X, ONES, mask=ONES),
        TypeError,
        "mask must be a boolean tensor (True keeps an entry), got torch.float32; use mask.bool().",
    ),
    "mask of another shape": (
        lambda: losses.ndcg_loss(X, ONES, mask=torch.ones(4, dtype=torch.bool)),
        ValueError,
        "mask must broadcast to the shape of scores, (2, 3), got (4,).",
    ),
    "relevance of another shape": (
        lambda: losses.ndcg_loss(X, torch.ones(3)),
        ValueError,
        "relevance must have the shape of scores, (2, 3): one entry for each entry; got (3,).",
    ),
    "negative relevance": (
        lambda: losses.average_precision_loss(X, -ONES),
        ValueError,
        "relevance must be non-negative (0 is irrelevant), but its smallest entry is -1",
    ),
    "cut-off of nothing": (lambda: losses.recall_at_k_loss(X, ONES, 0), ValueError, "k must be at least 1, got 0."),
    "unknown gain": (
        lambda: losses.ndcg(X, ONES, gain="log"),
        ValueError,
        "gain must be one of 'linear', 'exponential'",
    ),
    "targets of another shape": (
        lambda: losses.spearman_loss(X, torch.ones(3)),
        ValueError,
        "targets must have the shape of predictions, (2, 3)",
    ),
    "unknown pair weights": (
        lambda: losses.kendall(X, X, pair_weights="top"),
        ValueError,
        "pair_weights must be one of 'equal', 'hyperbolic', got 'top'.",
    ),
    "margin": (lambda: losses.kendall_loss(X, X, margin=0), ValueError, "margin must be positive, got 0"),
    "level": (lambda: losses.least_quantile_loss(ROW, 50.0), ValueError, "q must lie in [0, 1]"),
    "power": (lambda: losses.least_quantile_loss(ROW, power=0), ValueError, "power must be positive, got 0"),
    "trimmed levels": (
        lambda: losses.trimmed_loss(ROW, 0.9, 0.1),
        ValueError,
        "low and high must satisfy 0 <= low < high <= 1, got low = 0.9, high = 0.1",
    ),
    "high beyond 1": (
        lambda: losses.trimmed_loss(ROW, 0.1, 1.5),
        ValueError,
        "low and high must satisfy 0 <= low < high <= 1, got low = 0.1, high = 1.5; they are levels: low=0, high=0.9",
    ),
    "low below 0": (
        lambda: losses.trimmed_loss(ROW, -0.1, 0.5),
        ValueError,
        "low and high must satisfy 0 <= low < high <= 1, got low = -0.1, high = 0.5",
    ),
    "more blocks than losses": (
        lambda: losses.median_of_means(ROW, 7),
        ValueError,
        "blocks must be between 1 and 6, the number of losses in a row, got 7.",
    ),
    "weights of another shape in blocks": (
        lambda: losses.median_of_means(ROW, 3, weights=torch.ones(5)),
        ValueError,
        "weights must match x along dim=-1: expected shape (6,)",
    ),
    "negative weights in blocks": (
        lambda: losses.median_of_means(ROW, 3, weights=-torch.ones(6)),
        ValueError,
        "weights must be non-negative, but its smallest entry is -1",
    ),
    "unknown squash": (
        lambda: losses.trimmed_loss(ROW, squash="tanh"),
        ValueError,
        "squash must be 'sigmoid', 'arctan', 'robust' (where all values of a row are at hand), None",
    ),
    "levels that are no numbers": (
        lambda: losses.trimmed_loss(ROW, "a", 1.0),
        ValueError,
        "low and high must satisfy 0 <= low < high <= 1, got low = a, high = 1.0",
    ),
    "ranks as a list": (
        lambda: losses.permutation_cross_entropy(ROW, [1, 2, 3, 4, 5, 6]),
        TypeError,
        "ranks must be a torch.Tensor, got list; wrap it with torch.as_tensor(ranks).",
    ),
    "ranks from 0": (
        lambda: losses.permutation_cross_entropy(X, torch.tensor([[0, 1, 2], [0, 1, 2]])),
        ValueError,
        "ranks must lie between 1 and the number of items in their row, got 0 to 2 for 3 items; ranks count from 1",
    ),
    "float groups": (lambda: losses.quantile_parity_loss(X, ONES), TypeError, "groups must be integers (or booleans)"),
    "groups beyond num_groups": (
        lambda: losses.quantile_parity_loss(ROW, torch.arange(6), num_groups=3),
        ValueError,
        "groups must be in [0, 2] for 3 groups, got 0 to 5; number them from 0, or correct num_groups.",
    ),
    "p < 1": (lambda: losses.quantile_parity(ROW, torch.arange(6), p=0.5), ValueError, "p must be at least 1, got 0.5"),
    "k > candidates": (
        lambda: losses.soft_knn_vote(X, torch.tensor([0, 1, 1]), 4),
        ValueError,
        "k must be between 1 and 3, the number of candidates (the last dimension of distances), got 4.",
    ),
    "candidate labels": (
        lambda: losses.soft_knn_vote(X, torch.tensor([0, 1]), 1),
        ValueError,
        "labels must have shape (3,), one a candidate, or that of distances, (2, 3), got (2,).",
    ),
    "float candidate labels": (
        lambda: losses.soft_knn_vote(X, torch.ones(3), 1),
        TypeError,
        "labels must be an integer tensor, got torch.float32",
    ),
    "candidate labels beyond num_classes": (
        lambda: losses.soft_knn_vote(X, torch.tensor([0, 1, 5]), 1, num_classes=3),
        ValueError,
        "labels must be in [0, 2] for 3 classes, got 0 to 5",
    ),
    "query labels": (
        lambda: losses.knn_loss(X, torch.tensor([0, 1, 1]), torch.tensor([0, 1, 1]), 1),
        ValueError,
        "true_labels must be an integer tensor of shape (2,), one a query, got torch.int64 (3,).",
    ),
    "query labels nobody has": (
        lambda: losses.knn_loss(X, torch.tensor([0, 1, 1]), torch.tensor([0, 2]), 1),
        ValueError,
        "true_labels must be in [0, 1] for 2 classes, got 0 to 2",
    ),
    "no classes to vote for": (
        lambda: losses.soft_knn_vote(X, torch.tensor([0, 1, 1]), 1, num_classes=0),
        ValueError,
        "num_classes must be at least 1, got 0.",
    ),
    "unknown objective": (
        lambda: losses.knn_loss(X, torch.tensor([0, 1, 1]), torch.tensor([0, 1]), 1, objective="log"),
        ValueError,
        "objective must be one of 'error', 'nll'",
    ),
    "too few calibration scores": (
        lambda: losses.soft_conformal_quantile(torch.rand(8), 0.1),
        ValueError,
        "scores must hold at least 1/alpha - 1 calibration scores a row, got 8 for alpha = 0.1",
    ),
    "too few calibration scores for sets": (
        lambda: losses.conformal_size_loss(torch.rand(8), X, 0.1),
        ValueError,
        "calibration must hold at least 1/alpha - 1 calibration scores a row, got 8 for alpha = 0.1",
    ),
    "calibration as a list": (
        lambda: losses.conformal_size_loss([0.1, 0.2], X),
        TypeError,
        "calibration must be a torch.Tensor, got list",
    ),
    "alpha in percent": (
        lambda: losses.conformal_quantile(ROW, 10),
        ValueError,
        "alpha must be between 0 and 1, got 10; 0.1 asks for 90% coverage.",
    ),
    "scores without classes": (
        lambda: losses.conformal_size_loss(ROW, ROW, 0.5),
        ValueError,
        "scores must have shape ('m', 'L') (m examples, L classes) for calibration of shape (6,), got (6,).",
    ),
    "temperature": (
        lambda: losses.conformal_size_loss(ROW, X, 0.5, temperature=0.0),
        ValueError,
        "temperature must be positive, got 0.0",
    ),
}


@pytest.mark.parametrize(("call", "kind", "text"), CASES.values(), ids=list(CASES))
def test_error(call, kind, text):
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)
