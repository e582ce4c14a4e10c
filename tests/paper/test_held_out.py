"""Trainings on data that is partly wrong: what is spoiled and what is not, and what the sentences say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits

from sinksort.paper import conclusions, held_out
from sinksort.paper.held_out import COMPARISONS, Outcome


def test_held_out_digits_have_their_labels_and_others_often_not():
    images, labels = load_digits(return_X_y=True)
    known = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    shares = []
    for part in held_out.wrong_labels(np.random.default_rng(0)):
        true = [known[image.tobytes()] for image in (part.X.double() * 8 + 8).numpy()]
        shares.append(float((part.y.numpy() == true).mean()))
    assert shares[2] == 1.0
    # 40% are drawn anew among ten digits: 36% are wrong, with a deviation of 2.4% for 400 labels.
    assert all(0.52 < share < 0.76 for share in shares[:2])


@pytest.mark.parametrize(("load", "spoiled_at_the_end"), [("outliers", True), ("outliers_in_training", False)])
def test_outliers_are_where_they_are_said_to_be(load, spoiled_at_the_end):
    _, y = load_diabetes(return_X_y=True)
    largest = ((y - y.mean()) / y.std()).max()
    train, valid, test = getattr(held_out, load)(np.random.default_rng(1))
    assert [len(part.y) for part in (train, valid, test)] == [200, 100, 142]
    shares = [(part.y > largest + 0.1).float().mean().item() for part in (train, valid, test)]
    assert all(0.15 < share < 0.45 for share in shares[:2])
    assert (shares[2] > 0.15) == spoiled_at_the_end
    assert (shares[2] == 0.0) != spoiled_at_the_end


def test_a_sentence_counts_the_runs_in_which_our_loss_is_better():
    error, _, rho = COMPARISONS
    outcome = Outcome(error, dict(zip(error.losses, ([0.1, 0.3, 0.2], [0.2, 0.1, 0.3]), strict=True)))
    assert outcome.wins == 2
    assert outcome.sentence() == (
        "40% of the labels are random (digits): error on right labels 20.0% with topk_loss, J = log, "
        "20.0% with cross-entropy (lower in 2 of 3 runs)."
    )
    outcome = Outcome(rho, dict(zip(rho.losses, ([0.5, 0.25], [0.25, 0.25]), strict=True)))
    assert outcome.wins == 1  # a tie is no win
    assert (
        "Spearman's rho 0.38 with spearman_loss, 0.25 with squared loss (higher in 1 of 2 runs)." in outcome.sentence()
    )
    (table,) = held_out.section([outcome]).tables
    assert table.rows[0][3:] == ["**0.375 ± 0.177**", "squared loss", "0.250 ± 0.000", "1 of 2"]


def test_the_step_with_the_best_metric_on_validation_data_counts(monkeypatch):
    """With a loss that does nothing the answer is the metric of the first weights."""
    comparison = COMPARISONS[1]
    answer = held_out.held_out(comparison, lambda scores, _y: 0.0 * scores.sum(), seed=3)
    _, _, test = comparison.load(np.random.default_rng(3))
    torch.manual_seed(3)
    first = torch.nn.Linear(10, 1)
    with torch.no_grad():
        assert answer == float(comparison.hard(first(test.X), test.y))


def test_conclusions_of_the_papers_trainings():
    def unit(case, method, **measured):
        return {"case": case, "method": method, "curve": [{"epoch": 1, **measured}]}

    regression = [
        unit("diabetes-0.5", "soft", train=0.1, test=0.6),
        unit("diabetes-0.5", "hard", train=0.3, test=0.5),
        unit("diabetes-0.5", "hard", train=0.5, test=0.7),
    ]
    assert conclusions.regression(regression) == (
        "The 50% quantile of the errors is 0.60 with the soft loss and 0.60 with the hard one on held-out data "
        "(0.10 and 0.40 on training data)."
    )
    digits = [unit("digits", "top1", top1=0.5), unit("digits", "cross-entropy", top1=0.75)]
    assert conclusions.classification(digits) == "Test accuracy: 75.0% with cross-entropy; 50.0% with 0/1 loss, k = 1."
    late = {"case": "n5", "method": "transport", "curve": []}
    late["curve"] = [
        {"validation_exact": 0.4, "test_exact": 0.25},
        {"validation_exact": 0.3, "test_exact": 0.9},
    ]
    assert conclusions.sorting([late]) == "Test lists in the right order: 25.0% with transport (ours)."
