"""Derivatives, padding, weights, ties and reductions of every loss, from one table of cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from sinksort import losses

Call = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """A loss as a function of the one tensor that is trained, and of what is fixed beside it."""

    call: Call  # (x, other, mask=, weights=, reduction=, eps=)
    other: Tensor | None  # what is padded together with x
    weights_of: str  # "rows" or "entries"


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


ROWS, N = 3, 7
LABELS = torch.tensor([2, 0, 6])
GRADES = torch.tensor(np.random.default_rng(0).integers(0, 3, (ROWS, N)))
GRADES[:, 1] = 2
GROUPS = torch.tensor([[0, 1, 0, 1, 2, 2, 0]] * ROWS)
RANKS = torch.tensor(np.stack([np.random.default_rng(s).permutation(N) + 1 for s in range(ROWS)]))
OTHER_SCORES = drawn(9, ROWS, 4, 5)


def plain(function: Call, *fixed: object) -> Call:
    return lambda x, other, **options: function(x, *((other,) if other is not None else ()), *fixed, **options)


CASES = {
    "topk relu": Case(lambda x, _, **o: losses.topk_loss(x, LABELS, 2, J="relu", **o), None, "rows"),
    "topk": Case(lambda x, _, **o: losses.topk_loss(x, LABELS, 2, **o), None, "rows"),
    "membership": Case(lambda x, _, **o: losses.membership_loss(x, LABELS, 2, **o), None, "rows"),
    "membership of all": Case(
        lambda x, _, **o: losses.membership_loss(x, torch.tensor([[2, 3], [0, -1], [6, 1]]), **o), None, "rows"
    ),
    "membership of any": Case(
        lambda x, _, **o: losses.membership_loss(
            x, torch.tensor([[2, 3], [0, -1], [6, 1]]), p_k=(0.2, 0.5, 0.3), power=0.5, positives="any", **o
        ),
        None,
        "rows",
    ),
    "topk log rescaled": Case(lambda x, _, **o: losses.topk_loss(x, LABELS, J="log", rescale=True, **o), None, "rows"),
    "topk any": Case(
        lambda x, _, **o: losses.topk_loss(x, torch.tensor([[2, 3], [0, -1], [6, 1]]), J="sqrt", positives="any", **o),
        None,
        "rows",
    ),
    "least quantile": Case(plain(losses.least_quantile_loss), None, "entries"),
    "least quantile sigmoid": Case(
        lambda x, _, **o: losses.least_quantile_loss(x, 0.3, power=2, **{"squash": "sigmoid", **o}), None, "entries"
    ),
    "trimmed": Case(lambda x, _, **o: losses.trimmed_loss(x, 0.1, 0.8, **o), None, "entries"),
    "median of means": Case(lambda x, _, **o: losses.median_of_means(x, 3, **o), None, "entries"),
    "spearman": Case(plain(losses.spearman_loss), drawn(1, ROWS, N), "entries"),
    "kendall": Case(plain(losses.kendall_loss), drawn(2, ROWS, N), "entries"),
    "kendall top": Case(
        lambda x, t, **o: losses.kendall_loss(x, t, pair_weights="hyperbolic", margin=2.0, **o),
        drawn(2, ROWS, N),
        "entries",
    ),
    "ndcg": Case(plain(losses.ndcg_loss), GRADES, "rows"),
    "ndcg at 3": Case(lambda x, t, **o: losses.ndcg_loss(x, t, 3, gain="exponential", **o), GRADES, "rows"),
    "average precision": Case(plain(losses.average_precision_loss), GRADES, "rows"),
    "average precision at 3": Case(plain(losses.average_precision_loss, 3), GRADES, "rows"),
    "reciprocal rank": Case(plain(losses.reciprocal_rank_loss), GRADES, "rows"),
    "recall at 2": Case(plain(losses.recall_at_k_loss, 2), GRADES, "rows"),
    "permutation": Case(
        lambda x, t, **o: losses.permutation_cross_entropy(x, t, objective="nll", **{"squash": "sigmoid", **o}),
        RANKS,
        "rows",
    ),
    "permutation binary": Case(plain(losses.permutation_cross_entropy), RANKS, "rows"),
    "partial order": Case(lambda x, t, **o: losses.partial_order_loss(x, (t - 1).clamp(min=1), t, **o), RANKS, "rows"),
    "parity": Case(lambda x, g, **o: losses.quantile_parity_loss(x, g, num_quantiles=5, p=2, **o), GROUPS, "entries"),
    "knn": Case(
        lambda x, g, **o: losses.knn_loss(x, g, torch.tensor([0, 1, 2]), 3, num_classes=3, **o), GROUPS, "rows"
    ),
    "knn nll": Case(
        lambda x, g, **o: losses.knn_loss(x, g, torch.tensor([0, 1, 2]), 3, num_classes=3, objective="nll", **o),
        GROUPS,
        "rows",
    ),
    "conformal size": Case(
        lambda x, _, **o: losses.conformal_size_loss(x, OTHER_SCORES, 0.3, temperature=0.5, free=0.0, **o), None, "rows"
    ),
}
X = drawn(3, ROWS, N)

every = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


@every
def test_first_and_second_derivatives(case):
    x = X.clone().requires_grad_()

    def loss(x):
        return case.call(x, case.other, eps=5e-2)

    # Along random directions: the whole matrix of second derivatives of 20 losses would take minutes.
    assert torch.autograd.gradcheck(loss, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(loss, (x,), fast_mode=True)


@every
def test_padding_changes_nothing(case):
    def padded(t, filler):
        return torch.cat([t[:, :3], torch.full((ROWS, 2), filler, dtype=t.dtype), t[:, 3:]], dim=1)

    mask = padded(torch.ones(ROWS, N, dtype=torch.bool), False)
    other = None if case.other is None else padded(case.other, 1)
    labelled = {name for name in CASES if name.startswith(("topk", "membership"))}
    x = X.clone().requires_grad_()
    plain_loss = case.call(x, case.other, reduction="none")
    (plain_grad,) = torch.autograd.grad(plain_loss.sum(), x)
    y = X.clone().requires_grad_()
    for filler in (0.0, 1e6, float("nan")):
        if case in [CASES[name] for name in labelled]:  # labels index the classes: pad at the end
            wide, kept = torch.cat([y, torch.full((ROWS, 2), filler)], dim=1), mask.sort(dim=1, descending=True).values
            loss = case.call(wide, None, mask=kept, reduction="none")
        else:
            loss = case.call(padded(y, filler), other, mask=mask, reduction="none")
        torch.testing.assert_close(loss, plain_loss, atol=1e-9, rtol=1e-9)
        (grad,) = torch.autograd.grad(loss.sum(), y)
        torch.testing.assert_close(grad, plain_grad, atol=1e-7, rtol=1e-7)


@every
def test_a_row_of_padding_does_not_count(case):
    mask = torch.ones(ROWS, N, dtype=torch.bool)
    mask[1] = False
    x = X.clone()
    x[1] = float("nan")
    x.requires_grad_()
    rows = case.call(x, case.other, mask=mask, reduction="none")
    assert (rows[1] == 0).all()
    alive = rows[[0, 2]]
    torch.testing.assert_close(case.call(x, case.other, mask=mask), alive.mean())
    (grad,) = torch.autograd.grad(case.call(x, case.other, mask=mask), x)
    assert grad.isfinite().all()
    assert (grad[1] == 0).all()


@every
def test_reductions_and_weights(case):
    rows = case.call(X, case.other, reduction="none")
    torch.testing.assert_close(case.call(X, case.other, reduction="sum"), rows.sum())
    torch.testing.assert_close(case.call(X, case.other), rows.mean())
    if case.weights_of == "rows":
        w = torch.tensor([1.0, 0.0, 3.0], dtype=torch.float64)
        w = w if rows.ndim == 1 else w[:, None].expand(rows.shape)
        torch.testing.assert_close(case.call(X, case.other, weights=w), (w * rows).sum() / w.sum())
        torch.testing.assert_close(case.call(X, case.other, weights=w, reduction="sum"), (w * rows).sum())
        torch.testing.assert_close(case.call(X, case.other, weights=w, reduction="none"), w * rows)
    else:
        ones = torch.full((ROWS, N), 2.5, dtype=torch.float64)
        torch.testing.assert_close(case.call(X, case.other, weights=ones, reduction="none"), rows)
        # What weighs nothing has no influence.
        w = ones.clone()
        w[:, 4] = 0
        moved = X.clone()
        moved[:, 4] += 0.3
        torch.testing.assert_close(
            case.call(moved, case.other, weights=w, squash="sigmoid", reduction="none"),
            case.call(X, case.other, weights=w, squash="sigmoid", reduction="none"),
        )


@every
def test_all_tied_inputs_are_finite_and_so_are_their_gradients(case):
    x = torch.zeros(ROWS, N, dtype=torch.float64, requires_grad=True)
    loss = case.call(x, case.other)
    (grad,) = torch.autograd.grad(loss, x)
    assert loss.isfinite()
    assert grad.isfinite().all()


@every
def test_float32_is_near_float64(case):
    other = case.other.float() if case.other is not None and case.other.is_floating_point() else case.other
    if case is CASES["conformal size"]:
        wide = losses.conformal_size_loss(X, OTHER_SCORES, 0.3, temperature=0.5)
        narrow = losses.conformal_size_loss(X.float(), OTHER_SCORES.float(), 0.3, temperature=0.5)
    else:
        wide, narrow = case.call(X, case.other), case.call(X.float(), other)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), wide, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", ["topk relu", "spearman", "kendall", "ndcg", "average precision", "permutation"])
def test_losses_on_orders_do_not_depend_on_scale_and_origin(name):
    case = CASES[name]
    squash = {} if name == "topk relu" else {"squash": "sigmoid"}  # which that has already
    torch.testing.assert_close(case.call(X, case.other, **squash), case.call(1e3 * X + 50.0, case.other, **squash))


@pytest.mark.parametrize("name", ["ndcg", "average precision", "reciprocal rank", "recall at 2", "spearman", "kendall"])
def test_losses_do_not_depend_on_the_order_of_the_items(name):
    case = CASES[name]
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    torch.testing.assert_close(case.call(X[:, order], case.other[:, order]), case.call(X, case.other))


# ---- defined where the formula is 0/0


@pytest.mark.parametrize("function", [losses.spearman_loss, losses.kendall_loss])
def test_constant_targets_give_one_and_constant_predictions_a_way_out(function):
    targets = torch.arange(5.0, dtype=torch.float64)
    x = drawn(4, 5).requires_grad_()
    loss = function(x, torch.ones(5, dtype=torch.float64))
    assert loss == 1
    assert (torch.autograd.grad(loss, x)[0] == 0).all()
    flat = torch.full((5,), 3.0, dtype=torch.float64, requires_grad=True)
    loss = function(flat, targets)
    assert abs(loss.item() - 1) < 1e-6
    (grad,) = torch.autograd.grad(loss, flat)
    assert (grad.diff() < 0).all()  # a step along -grad puts them in the order of the targets
    assert function(x[:1], targets[:1]) == 1
    assert losses.spearman(flat, targets) == losses.kendall(flat, targets) == 0


def test_a_list_without_relevant_items_has_the_metric_zero():
    x, nothing = drawn(5, 6).requires_grad_(), torch.zeros(6)
    for loss in (losses.ndcg_loss, losses.average_precision_loss, losses.reciprocal_rank_loss):
        assert loss(x, nothing) == 1
        assert (torch.autograd.grad(loss(x, nothing), x)[0] == 0).all()
    assert losses.recall_at_k_loss(x, nothing, 2) == 1


def test_one_group_has_nothing_to_be_compared_with():
    assert losses.quantile_parity_loss(drawn(6, 5), torch.zeros(5, dtype=torch.long)) == 0
    two_of_three = losses.quantile_parity_loss(drawn(6, 5), torch.tensor([0, 0, 2, 2, 2]), eps=1e-4)
    renumbered = losses.quantile_parity_loss(drawn(6, 5), torch.tensor([0, 0, 1, 1, 1]), eps=1e-4)
    torch.testing.assert_close(two_of_three, renumbered)


def test_best_soft_rank_stays_below_the_number_of_classes():
    """What the module's docstring says about thresholds."""
    logits = torch.tensor(np.random.default_rng(7).normal(size=(200, 10)))
    won = logits.argmax(-1)
    assert losses.topk_error(logits, won) == 0
    at = {eps: losses.topk_loss(logits, won, J="relu", eps=eps).item() for eps in (1e-1, 1e-2, 1e-3)}
    assert 1.2 < at[1e-1] < 1.8
    assert 0.2 < at[1e-2] < 0.5
    assert 0.0 < at[1e-3] < 0.1
    assert losses.topk_loss(logits, won, J="relu", rescale=True).item() < at[1e-2] / 1.5
