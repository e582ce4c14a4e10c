"""Each loss at eps -> 0, and each metric, against torchmetrics, scikit-learn, SciPy or NumPy on the same data."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.neighbors import KNeighborsClassifier
from torchmetrics.functional import retrieval as tmr
from torchmetrics.functional.classification import multiclass_accuracy

import sinksort
from sinksort import losses
from sinksort.losses import classification
from sklearn import metrics as skm
from tests import oracles

SHARP = 1e-5  # a hard sort, for values as far apart as ``spaced`` makes them


def spaced(rows: int, n: int, seed: int) -> torch.Tensor:
    """Rows of well separated values in random order."""
    rng = np.random.default_rng(seed)
    return torch.tensor(np.stack([rng.permutation(np.linspace(-1.0, 1.0, n)) for _ in range(rows)]))


def grades(rows: int, n: int, seed: int, highest: int = 3) -> torch.Tensor:
    """Random relevance, with something relevant in every row."""
    rng = np.random.default_rng(seed + 1000)
    out = rng.integers(0, highest + 1, size=(rows, n))
    out[:, 0] = highest
    return torch.tensor(out)


def close(ours: torch.Tensor, theirs: object, atol: float = 1e-6) -> None:
    torch.testing.assert_close(ours, torch.as_tensor(theirs, dtype=ours.dtype), rtol=0, atol=atol)


# ---- top-k


@pytest.mark.parametrize("k", [1, 2, 5])
def test_topk_error_is_one_minus_torchmetrics_accuracy(k):
    logits = spaced(40, 7, 0)
    labels = torch.tensor(np.random.default_rng(1).integers(0, 7, 40))
    accuracy = multiclass_accuracy(logits, labels, num_classes=7, top_k=k, average="micro")
    close(losses.topk_error(logits, labels, k), 1.0 - accuracy.double())
    close(losses.topk_error(logits, labels, k), 1.0 - skm.top_k_accuracy_score(labels, logits, k=k, labels=range(7)))
    # The loss with the Heaviside function for J is the metric.
    heaviside = losses.topk_loss(logits, labels, k, J=lambda v: (v > 0.5).double(), eps=SHARP)
    close(heaviside, 1.0 - accuracy.double())


@pytest.mark.parametrize(
    ("J", "of_excess"),
    [
        ("relu", lambda v, L, k: v),
        ("normalized", lambda v, L, k: v / (L - k)),
        ("log", lambda v, L, k: np.log(1 + v)),
        ("sqrt", lambda v, L, k: np.sqrt(1 + v) - 1),
    ],
)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("rescale", [False, True])
def test_topk_loss_counts_the_classes_above_the_label(J, of_excess, k, rescale):
    logits = spaced(20, 6, 2)
    labels = torch.tensor(np.random.default_rng(3).integers(0, 6, 20))
    above = 6 - stats.rankdata(logits, axis=-1)[np.arange(20), labels]
    expected = of_excess(np.maximum(0.0, above - k + 1), 6, k)
    ours = losses.topk_loss(logits, labels, k, J=J, rescale=rescale, eps=SHARP, reduction="none")
    close(ours, expected, atol=1e-5)


@pytest.mark.parametrize(("L", "rows", "within"), [(10, 4000, 0.02), (100, 400, 0.15)])
def test_ranks_of_the_best_logit_are_those_that_the_module_names(L, rows, within):
    """The table in the docstring, against the dense formulas of Definition 2. ``within`` is four standard errors."""
    (named,) = [line.split()[1:] for line in classification.__doc__.splitlines() if re.match(rf"{L}  +\d", line)]
    logits = torch.randn(rows, L, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hard = np.arange(1, L + 1)
    a, y = np.full(L, 1 / L), oracles.grid(L)
    top = {1e-2: [], 1e-3: [], "rescaled": []}
    for z in logits[:40].numpy():  # the library's ranks are those of the dense problem
        truth = oracles.solve(oracles.cost_matrix(oracles.squashed(z), y), a, a, 1e-2).ranks()
        np.testing.assert_allclose(sinksort.soft_rank(torch.from_numpy(z), eps=1e-2).numpy(), truth, atol=1e-7 * L)
    for eps in (1e-2, 1e-3):
        ranks = sinksort.soft_rank(logits, eps=eps).numpy()
        top[eps] = ranks.max(-1)
        if eps == 1e-2:
            top["rescaled"] = hard.mean() + (top[eps] - ranks.mean(-1)) * hard.std() / ranks.std(-1)
    for said, found in zip(named, top.values(), strict=True):
        assert float(said) == pytest.approx(found.mean(), abs=within)


def test_smooth_penalties_are_near_what_they_smooth():
    logits = spaced(20, 6, 2)
    labels = torch.tensor(np.random.default_rng(3).integers(0, 6, 20))
    wrong = losses.topk_error(logits, labels, reduction="none")
    sigmoid = losses.topk_loss(logits, labels, J="sigmoid", eps=SHARP, reduction="none")
    assert ((sigmoid > 0.5) == wrong.bool()).all()
    relu = losses.topk_loss(logits, labels, J="relu", eps=SHARP, reduction="none")
    softplus = losses.topk_loss(logits, labels, J="softplus", eps=SHARP, reduction="none")
    assert ((softplus - relu > 0) & (softplus - relu <= np.log(2) + 1e-6)).all()


def test_several_labels_all_is_r_precision_and_any_is_hit_rate():
    logits = spaced(15, 8, 4)
    chosen = grades(15, 8, 5, highest=1).bool()
    r_precision = [tmr.retrieval_r_precision(s, t).item() for s, t in zip(logits, chosen, strict=True)]
    close(losses.topk_error(logits, chosen, reduction="none"), 1 - np.array(r_precision))
    hit = [tmr.retrieval_hit_rate(s, t, top_k=2).item() for s, t in zip(logits, chosen, strict=True)]
    close(losses.topk_error(logits, chosen, 2, positives="any", reduction="none"), 1 - np.array(hit))
    for positives in ("all", "any"):
        soft = losses.topk_loss(logits, chosen, positives=positives, eps=SHARP, reduction="none")
        hard = losses.topk_error(logits, chosen, positives=positives, reduction="none")
        assert ((soft > 1e-3) == (hard > 0)).all()


def test_three_forms_of_labels_agree():
    logits = spaced(4, 5, 6)
    lists = torch.tensor([[0, 3], [2, -1], [4, 1], [-1, -1]])
    hot = torch.zeros(4, 5, dtype=torch.bool)
    for row, col in ((0, 0), (0, 3), (1, 2), (2, 4), (2, 1)):
        hot[row, col] = True
    close(losses.topk_loss(logits, lists, reduction="none"), losses.topk_loss(logits, hot, reduction="none"), 0)
    assert losses.topk_loss(logits, lists, reduction="none")[3] == 0
    # A row without a label is not in the mean.
    close(losses.topk_loss(logits, lists), losses.topk_loss(logits[:3], hot[:3]), 1e-12)
    single = torch.tensor([1, 0, 4, 2])
    close(losses.topk_loss(logits, single), losses.topk_loss(logits, single[:, None]), 0)


@pytest.mark.parametrize("J", sorted(losses.EXCESS_LOSSES))
@pytest.mark.parametrize("positives", ["all", "any"])
def test_one_label_a_row_is_a_list_of_one_and_a_boolean_row(J, positives):
    """Where the loss goes its own short way: values and gradients, with rows and classes that do not exist."""
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64).requires_grad_()
    labels = torch.tensor([3, 0, -1, 4, 1, 2])
    mask = torch.ones(6, 5, dtype=torch.bool)
    mask[4, 1] = mask[5, 0] = False  # a label that does not exist, and a class beside one that does
    hot = torch.nn.functional.one_hot(labels.clamp(min=0), 5).bool() & (labels >= 0)[:, None]
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)
    for options in ({}, {"mask": mask}, {"weights": weights, "mask": mask}, {"reduction": "none", "k": 2}):
        ways = []
        for given in (labels, labels[:, None], hot):
            loss = losses.topk_loss(logits, given, J=J, positives=positives, **options)
            ways.append((loss, *torch.autograd.grad(loss.sum(), logits)))
            metric = losses.topk_error(logits, given, positives=positives, **options)
            close(metric, losses.topk_error(logits, hot, positives=positives, **options), 0)
        for way in ways[1:]:
            for ours, theirs in zip(ways[0], way, strict=True):
                close(ours, theirs, 1e-12)


# ---- regression


@pytest.mark.parametrize("n", [7, 12])
@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("squash", ["robust", "sigmoid"])
def test_least_quantile_is_hazens_quantile(n, q, squash):
    residuals = spaced(5, n, 7) * torch.tensor(np.random.default_rng(8).choice([-1.0, 1.0], (5, n))) + 0.01
    ours = losses.least_quantile_loss(residuals, q, eps=1e-6, squash=squash, reduction="none")
    close(ours, np.quantile(residuals.abs(), q, method="hazen", axis=-1), 2e-3)
    squared = losses.least_quantile_loss(residuals, q, power=2, eps=1e-6, squash=squash, reduction="none")
    close(squared, np.quantile(residuals.square(), q, method="hazen", axis=-1), 4e-3)


@pytest.mark.parametrize("squash", ["robust", "sigmoid"])
def test_trimmed_loss_is_scipys_trimmed_mean(squash):
    x = spaced(5, 20, 9)
    ours = losses.trimmed_loss(x, 0.2, 0.8, eps=SHARP, squash=squash, reduction="none")
    close(ours, stats.trim_mean(x, 0.2, axis=-1))
    smallest = np.sort(x, axis=-1)[:, :14].mean(-1)
    close(losses.trimmed_loss(x, 0.0, 0.7, eps=SHARP, squash=squash, reduction="none"), smallest)
    close(losses.trimmed_loss(x, 0.0, 1.0, reduction="none"), x.mean(-1))


@pytest.mark.parametrize(("n", "blocks"), [(12, 3), (20, 5), (23, 7), (9, 9)])
def test_median_of_means_of_consecutive_blocks(n, blocks):
    x = spaced(4, n, 10)
    parts = [[row[[i for i in range(n) if i * blocks // n == b]].mean() for b in range(blocks)] for row in x.numpy()]
    close(losses.median_of_means(x, blocks, eps=1e-7, reduction="none"), np.median(parts, axis=-1), 1e-4)


def test_robust_squash_keeps_the_quantile_that_an_outlier_blurs():
    x = torch.tensor([0.1, 0.2, 0.3, 0.4, 1000.0], dtype=torch.float64)
    assert abs(losses.least_quantile_loss(x, eps=1e-2).item() - 0.3) < 1e-3
    assert abs(losses.least_quantile_loss(x, eps=1e-2, squash="sigmoid").item() - 0.25) < 1e-2
    for value in (1e6, 1e12):
        x[-1] = value
        assert abs(losses.least_quantile_loss(x, eps=1e-2).item() - 0.3) < 1e-3
    mostly_equal = torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0], dtype=torch.float64)
    close(losses.trimmed_loss(mostly_equal, 0.0, 0.8, eps=1e-4), 1.0)
    close(losses.trimmed_loss(torch.ones(5), 0.0, 0.8), 1.0)


# ---- correlation


@pytest.mark.parametrize("ties", [False, True])
def test_correlations_are_scipys(ties):
    predictions = spaced(6, 15, 11)
    targets = spaced(6, 15, 12)
    if ties:
        predictions, targets = (predictions * 3).round() / 3, (targets * 2).round() / 2
    pairs = list(zip(predictions.numpy(), targets.numpy(), strict=True))
    rho = [stats.spearmanr(p, t).statistic for p, t in pairs]
    tau = [stats.kendalltau(p, t).statistic for p, t in pairs]
    top = [stats.weightedtau(p, t, rank=(stats.rankdata(-t) - 1)).statistic for p, t in pairs]
    close(losses.spearman(predictions, targets, reduction="none"), rho)
    close(1 - losses.spearman_loss(predictions, targets, eps=SHARP, reduction="none"), rho)
    close(losses.kendall(predictions, targets, reduction="none"), tau)
    close(1 - losses.kendall_loss(predictions, targets, eps=SHARP, reduction="none"), tau, 1e-5)
    if not ties:  # SciPy's own rank argument must be integers
        close(losses.kendall(predictions, targets, pair_weights="hyperbolic", reduction="none"), top)
        soft = losses.kendall_loss(predictions, targets, pair_weights="hyperbolic", eps=SHARP, reduction="none")
        close(1 - soft, top, 1e-5)


def test_weighted_kendall_counts_pairs_by_the_product_of_their_weights():
    p, t = spaced(1, 9, 13)[0], spaced(1, 9, 14)[0]
    w = torch.tensor(np.random.default_rng(15).uniform(0.1, 2.0, 9))
    score = total = 0.0
    for i in range(9):
        for j in range(i):
            pair = (w[i] * w[j]).item()
            score += pair * float(torch.sign(p[i] - p[j]) * torch.sign(t[i] - t[j]))
            total += pair
    close(losses.kendall(p, t, weights=w), score / total)


# ---- ranking


@pytest.mark.parametrize("k", [None, 1, 4, 30])
def test_ndcg_is_sklearns_and_torchmetrics(k):
    scores, relevance = spaced(12, 10, 16), grades(12, 10, 17)
    expected = [skm.ndcg_score(r[None], s[None], k=k) for s, r in zip(scores.numpy(), relevance.numpy(), strict=True)]
    also = [tmr.retrieval_normalized_dcg(s, r, top_k=k).item() for s, r in zip(scores, relevance, strict=True)]
    np.testing.assert_allclose(expected, also, atol=1e-6)
    close(losses.ndcg(scores, relevance, k, reduction="none"), expected)
    close(1 - losses.ndcg_loss(scores, relevance, k, eps=SHARP, reduction="none"), expected)
    gains = 2 ** relevance.numpy() - 1
    exponential = [skm.ndcg_score(g[None], s[None], k=k) for s, g in zip(scores.numpy(), gains, strict=True)]
    close(losses.ndcg(scores, relevance, k, gain="exponential", reduction="none"), exponential)
    soft = losses.ndcg_loss(scores, relevance, k, gain="exponential", eps=SHARP, reduction="none")
    close(1 - soft, exponential)


@pytest.mark.parametrize("k", [None, 3])
def test_tied_scores_share_their_discounts_as_in_sklearn(k):
    scores, relevance = (spaced(12, 10, 18) * 2).round(), grades(12, 10, 19)
    expected = [skm.ndcg_score(r[None], s[None], k=k) for s, r in zip(scores.numpy(), relevance.numpy(), strict=True)]
    close(losses.ndcg(scores, relevance, k, reduction="none"), expected)
    close(1 - losses.ndcg_loss(scores, relevance, k, eps=SHARP, reduction="none"), expected)


@pytest.mark.parametrize("k", [None, 1, 4])
def test_precision_recall_and_reciprocal_rank_are_torchmetrics(k):
    scores, relevance = spaced(12, 10, 20), grades(12, 10, 21, highest=1)
    rows = list(zip(scores + 2, relevance.bool(), strict=True))  # torchmetrics takes scores <= 0 for not retrieved
    rr = [tmr.retrieval_reciprocal_rank(s, r, top_k=k).item() for s, r in rows]
    close(losses.reciprocal_rank(scores, relevance, k, reduction="none"), rr)
    close(1 - losses.reciprocal_rank_loss(scores, relevance, k, eps=SHARP, reduction="none"), rr)

    # torchmetrics divides by the relevant items found, we by those that could have been found.
    ap = []
    for s, r in rows:
        found = r[s.topk(k or 10).indices].sum().item()
        possible = min(int(r.sum()), k or 10)
        ap.append(tmr.retrieval_average_precision(s, r, top_k=k).item() * found / possible)
    close(losses.average_precision(scores, relevance, k, reduction="none"), ap)
    close(1 - losses.average_precision_loss(scores, relevance, k, eps=SHARP, reduction="none"), ap)
    if k is None:
        close(losses.average_precision(scores, relevance), skm.label_ranking_average_precision_score(relevance, scores))
    else:
        recall = [tmr.retrieval_recall(s, r, top_k=k).item() for s, r in rows]
        close(losses.recall_at_k(scores, relevance, k, reduction="none"), recall)
        close(1 - losses.recall_at_k_loss(scores, relevance, k, eps=SHARP, reduction="none"), recall)


def mean_over_tie_breaks(metric, scores, relevance):
    """A metric of torchmetrics, averaged over every order that agrees with the scores."""
    values = []
    for order in itertools.permutations(range(len(scores))):
        ordered = scores[list(order)]
        if (ordered.diff() <= 0).all():
            distinct = torch.empty(len(scores))
            distinct[list(order)] = torch.arange(len(scores), 0, -1.0)
            values.append(metric(distinct, relevance.bool()).item())
    return np.mean(values)


@pytest.mark.parametrize("seed", range(4))
def test_tied_scores_count_as_the_mean_over_all_ways_to_break_the_ties(seed):
    rng = np.random.default_rng(seed)
    scores, relevance = torch.tensor(rng.integers(0, 3, 6).astype(float)), torch.tensor(rng.integers(0, 2, 6))
    relevance[2] = 1
    for ours, soft, theirs in (
        (losses.average_precision, losses.average_precision_loss, tmr.retrieval_average_precision),
        (losses.reciprocal_rank, losses.reciprocal_rank_loss, tmr.retrieval_reciprocal_rank),
    ):
        expected = mean_over_tie_breaks(theirs, scores, relevance)
        close(ours(scores, relevance), expected)
        close(1 - soft(scores, relevance, eps=SHARP), expected)
    expected = mean_over_tie_breaks(lambda s, r: tmr.retrieval_recall(s, r, top_k=2), scores, relevance)
    close(losses.recall_at_k(scores, relevance, 2), expected)
    close(1 - losses.recall_at_k_loss(scores, relevance, 2, eps=SHARP), expected)


@pytest.mark.parametrize("n", [10, 150])
def test_soft_ranking_metrics_are_bounded_and_near_the_hard_ones_at_the_default_eps(n):
    rng = np.random.default_rng(n)
    scores = torch.tensor(rng.normal(size=(20, n)))
    relevance = torch.tensor(rng.random((20, n)) < 0.3)
    relevance[:, 0] = True
    for hard, soft in (
        (losses.ndcg, losses.ndcg_loss),
        (losses.average_precision, losses.average_precision_loss),
        (losses.reciprocal_rank, losses.reciprocal_rank_loss),
    ):
        rows = soft(scores, relevance, reduction="none")
        blurred = soft(scores, relevance, eps=1.0, reduction="none")
        assert all(((t >= 0) & (t <= 1)).all() for t in (rows, blurred))
        if n == 10 or hard is not losses.reciprocal_rank:  # which lives at the top, where a long row is blurred
            assert abs(1 - rows.mean() - hard(scores, relevance)) < 0.03
    best = scores + 10.0 * relevance
    assert losses.average_precision_loss(best, relevance) < 0.01


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [100, 1500])
def test_long_rows_in_half_precision(n, dtype):
    """Squares of ranks do not fit in float16."""
    rng = np.random.default_rng(n)
    x = torch.tensor(rng.normal(size=n)).to(dtype)
    y = x + torch.tensor(rng.normal(size=n)).to(dtype)
    within = 2 * torch.finfo(dtype).eps
    rho = stats.spearmanr(x.double(), y.double()).statistic
    assert losses.spearman(x, y).item() == pytest.approx(rho, abs=within)
    assert losses.spearman_loss(x, y, eps=1e-4).item() == pytest.approx(1 - rho, abs=within + 1e-3)
    precision = skm.average_precision_score((y > 1).numpy(), x.double() + 1e-9 * torch.arange(n))
    assert losses.average_precision(x, y > 1).item() == pytest.approx(precision, abs=within + 0.02)  # ties


def test_integer_targets_are_not_rounded_to_ties():
    targets = torch.tensor([16777216, 16777217, 3, 2, 1])
    predictions = torch.tensor([4.0, 5.0, 3.0, 2.0, 1.0])
    assert losses.spearman(predictions, targets) == losses.kendall(predictions, targets) == 1


def test_metrics_of_nan_are_nan_and_not_success():
    scores, relevance = torch.tensor([[float("nan"), 1.0, 2.0], [0.0, 1.0, 2.0]]), torch.tensor([[0, 1, 0], [0, 0, 1]])
    rows = [
        losses.topk_error(scores, torch.tensor([0, 2]), reduction="none"),
        losses.ndcg(scores, relevance, reduction="none"),
        losses.average_precision(scores, relevance, reduction="none"),
        losses.reciprocal_rank(scores, relevance, reduction="none"),
        losses.recall_at_k(scores, relevance, 1, reduction="none"),
        losses.spearman(scores, relevance, reduction="none"),
        losses.kendall(scores, relevance, reduction="none"),
    ]
    for row in rows:
        assert row[0].isnan()
        assert row[1].isfinite()


# ---- permutation, fairness, neighbours, conformal


@pytest.mark.parametrize("eps", [1e-1, 1e-2])
def test_permutation_cross_entropy_reads_the_plan(eps):
    scores = spaced(3, 6, 22) + 0.05 * torch.tensor(np.random.default_rng(23).normal(size=(3, 6)))
    true = np.stack([np.random.default_rng(s).permutation(6) for s in range(3)]) + 1
    uniform = np.full(6, 1 / 6)
    expected, binary = [], []
    for row, ranks in zip(scores.numpy(), true, strict=True):
        C = oracles.cost_matrix(oracles.squashed(row), oracles.grid(6))
        P = oracles.solve(C, uniform, uniform, eps).P
        p, right = 6 * P, np.eye(6)[ranks - 1]
        expected.append(-np.log((p * right).sum(-1)).mean())
        binary.append(expected[-1] - ((1 - right) * np.log1p(-p)).sum() / 6)
    given = {"eps": eps, "squash": "sigmoid", "reduction": "none"}
    close(losses.permutation_cross_entropy(scores, torch.tensor(true), objective="nll", **given), expected, 1e-6)
    close(losses.permutation_cross_entropy(scores, torch.tensor(true), **given), binary, 1e-6)


def test_permutation_cross_entropy_is_small_for_the_right_order_only():
    scores = spaced(5, 6, 24)
    ranks = torch.tensor(stats.rankdata(scores, axis=-1))
    assert (losses.permutation_cross_entropy(scores, ranks, eps=1e-4, reduction="none") < 1e-6).all()
    assert (losses.permutation_cross_entropy(scores, 7 - ranks, eps=1e-4, reduction="none") > 10).all()
    assert losses.permutation_cross_entropy(scores, 7 - ranks, eps=1e-6).isfinite()
    assert losses.permutation_accuracy(scores, ranks) == 1
    swapped = ranks.clone()
    swapped[ranks == 1], swapped[ranks == 2] = 2, 1
    close(losses.permutation_accuracy(scores, swapped), 4 / 6)
    assert losses.permutation_accuracy(scores, swapped, whole=True) == 0
    # A pair that should tie is asked for in both orders alike.
    tied = torch.tensor([1.5, 1.5, 3.0], dtype=torch.float64)
    one = losses.permutation_cross_entropy(torch.tensor([0.1, 0.2, 0.9], dtype=torch.float64), tied)
    two = losses.permutation_cross_entropy(torch.tensor([0.2, 0.1, 0.9], dtype=torch.float64), tied)
    close(one, two, 1e-9)


@pytest.mark.parametrize(("sizes", "m"), [((6, 6), 6), ((4, 6), 12), ((4, 6, 3), 12)])
def test_quantile_parity_is_scipys_wasserstein_distance(sizes, m):
    scores = spaced(1, sum(sizes), 25)[0]
    groups = torch.tensor(np.random.default_rng(26).permutation(np.repeat(np.arange(len(sizes)), sizes)))
    parts = [scores[groups == g].numpy() for g in range(len(sizes))]
    pairs = [(a, b) for i, a in enumerate(parts) for b in parts[:i]]
    expected = np.mean([stats.wasserstein_distance(a, b) for a, b in pairs])
    close(losses.quantile_parity(scores, groups, num_quantiles=m), expected)
    close(losses.quantile_parity_loss(scores, groups, num_quantiles=m, eps=1e-7), expected, 1e-4)
    w = torch.tensor(np.random.default_rng(27).integers(1, 4, len(scores)), dtype=torch.float64)
    repeated, regroup = scores.repeat_interleave(w.long()), groups.repeat_interleave(w.long())
    weighted = losses.quantile_parity(scores, groups, num_quantiles=m, weights=w)
    close(weighted, losses.quantile_parity(repeated, regroup, num_quantiles=m), 1e-9)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_soft_knn_vote_is_sklearns(k):
    rng = np.random.default_rng(28)
    train, query, labels = rng.normal(size=(12, 3)), rng.normal(size=(9, 3)), rng.integers(0, 3, 12)
    expected = KNeighborsClassifier(k).fit(train, labels).predict_proba(query)
    distances = torch.cdist(torch.tensor(query), torch.tensor(train))
    vote = losses.soft_knn_vote(distances, torch.tensor(labels), k, eps=SHARP)
    close(vote, expected, 1e-4)
    truth = torch.tensor(rng.integers(0, 3, 9))
    wrong = losses.knn_loss(distances, torch.tensor(labels), truth, k, eps=SHARP, reduction="none")
    close(wrong, 1 - expected[np.arange(9), truth], 1e-4)
    nll = losses.knn_loss(distances, torch.tensor(labels), truth, k, objective="nll", reduction="none")
    close(nll, -losses.soft_knn_vote(distances, torch.tensor(labels), k)[range(9), truth].log(), 1e-12)


@pytest.mark.parametrize(("n", "alpha"), [(19, 0.1), (20, 0.1), (9, 0.1), (37, 0.25), (50, 0.5)])
def test_conformal_quantile_is_the_ceil_n_plus_1_order_statistic(n, alpha):
    scores = spaced(3, n, 29)
    level = np.ceil((n + 1) * (1 - alpha) - 1e-9) / n
    expected = np.quantile(scores, level, axis=-1, method="inverted_cdf")
    close(losses.conformal_quantile(scores, alpha), expected, 0)
    close(losses.soft_conformal_quantile(scores, alpha, eps=1e-6), expected, 1e-4)


def test_soft_conformal_quantile_is_that_of_the_dense_problem():
    x = np.random.default_rng(4).random(12)
    r = math.ceil(13 * 0.8)
    a, b = np.full(12, 1 / 12), np.array([r - 1.0, 1.0, 12.0 - r]) / 12
    C = oracles.cost_matrix(oracles.squashed(x), oracles.grid(3))
    for eps in (0.1, 0.01):
        expected = oracles.solve(C, a, b, eps).sorts(x)[1]
        close(losses.soft_conformal_quantile(torch.tensor(x), 0.2, eps=eps), torch.tensor(expected), 1e-8)


#: How to draw scores, and the probability that a new one is at most q.
SCORES = {
    "uniform": (lambda rng, *shape: rng.random(shape), stats.uniform.cdf),
    "absolute normal": (lambda rng, *shape: np.abs(rng.standard_normal(shape)), stats.halfnorm.cdf),
    "exponential": (lambda rng, *shape: rng.exponential(size=shape), stats.expon.cdf),
    "log-normal": (lambda rng, *shape: rng.lognormal(size=shape), stats.lognorm(1.0).cdf),
    "absolute Cauchy": (lambda rng, *shape: np.abs(rng.standard_cauchy(shape)), stats.halfcauchy.cdf),
}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize(("n", "alpha"), [(19, 0.1), (99, 0.1), (399, 0.1), (199, 0.05), (99, 0.3), (299, 0.02)])
def test_the_soft_conformal_quantile_covers_what_is_asked_by_default(name, n, alpha):
    """Within a fifth of what one calibration on n scores differs from the next: twice that for scores without moments.

    The hard quantile covers 1 - alpha exactly on average here, since (n + 1) alpha is whole. A mean of 1,500
    calibrations is known to a 39th of that difference.
    """
    draw, cdf = SCORES[name]
    x = torch.tensor(draw(np.random.default_rng(n), 1500, n))
    varies = np.sqrt(alpha * (1 - alpha) / (n + 2))
    covered = cdf(losses.soft_conformal_quantile(x, alpha).numpy()).mean()
    exactly = cdf(losses.conformal_quantile(x, alpha).numpy()).mean()
    assert abs(exactly - (1 - alpha)) < 4 * varies / np.sqrt(1500)
    assert abs(covered - (1 - alpha)) < (1.0 if "Cauchy" in name else 0.2) * varies, (covered, varies)


def test_conformal_quantile_covers_and_the_size_loss_counts_sets():
    rng = np.random.default_rng(30)
    draws = torch.tensor(rng.exponential(size=(4000, 20)))
    q = losses.conformal_quantile(draws[:, :19], 0.1)
    covered = (draws[:, 19] <= q).double().mean().item()
    assert abs(covered - 18 / 20) < 4 * np.sqrt(0.9 * 0.1 / 4000)  # exactly 18/20 in expectation

    calibration, scores = spaced(2, 19, 31), torch.tensor(np.random.default_rng(32).uniform(-1, 1, (2, 5, 4)))
    sizes = (scores <= losses.conformal_quantile(calibration, 0.2)[:, None, None]).sum(-1)
    ours = losses.conformal_size_loss(calibration, scores, 0.2, temperature=1e-5, free=0, eps=1e-6, reduction="none")
    close(ours, sizes, 1e-3)
