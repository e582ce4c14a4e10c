"""Losses of whole orders: teachers, sets of permutations, censored times; by hand and by enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sinksort import kantorovich_rank, losses, soft_permutation


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


X = drawn(0, 4, 6)
RANKS = kantorovich_rank(drawn(1, 4, 6)).long()
HOT = torch.nn.functional.one_hot(RANKS - 1, 6).double().mT  # (rank, item)


@pytest.mark.parametrize("objective", ["nll", "binary"])
@pytest.mark.parametrize("squash", [None, "sigmoid", "robust"])
def test_cross_entropies_by_the_matrix(objective: str, squash: str | None) -> None:
    P = soft_permutation(X, squash=squash, eps=0.1)
    expected = -(HOT * P.log()).sum((-2, -1)) / 6
    if objective == "binary":
        expected = expected - ((1 - HOT) * torch.log1p(-P)).sum((-2, -1)) / 6
    given = {"objective": objective, "squash": squash, "eps": 0.1, "reduction": "none"}
    ours = losses.permutation_cross_entropy(X, RANKS, **given)
    torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(losses.permutation_cross_entropy(X, RANKS.double(), **given), ours)
    torch.testing.assert_close(losses.permutation_cross_entropy(X, HOT, **given), ours)


@pytest.mark.parametrize("objective", ["nll", "binary"])
def test_a_teacher_is_matched_where_the_student_is_the_teacher(objective: str) -> None:
    """Cross-entropy is least at the teacher's own shares: the gradient vanishes there, and nowhere beside it."""
    given = {"objective": objective, "squash": None, "eps": 0.3}
    teacher = soft_permutation(X, squash=None, eps=0.3)
    x = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(losses.permutation_cross_entropy(x, teacher, **given), x)
    assert slope.abs().max() < 1e-8
    (slope,) = torch.autograd.grad(losses.permutation_cross_entropy(x.flip(-1), teacher, **given), x)
    assert slope.abs().max() > 1e-2
    assert torch.autograd.gradcheck(lambda x: losses.permutation_cross_entropy(x, teacher, **given), (x,))


def test_a_wrong_order_has_a_finite_loss_and_gradient_however_sharp() -> None:
    for dtype in (torch.float32, torch.float64):
        x = (30.0 * torch.arange(5.0, dtype=dtype)).requires_grad_()
        for objective in ("nll", "binary"):
            loss = losses.permutation_cross_entropy(x, torch.tensor([5, 4, 3, 2, 1]), objective=objective)
            (slope,) = torch.autograd.grad(loss, x)
            assert 100 < loss < math.inf
            assert slope.isfinite().all()
            assert slope[0] < 0 < slope[-1]


def test_padding_of_a_teacher() -> None:
    kept = torch.tensor([True, True, False, True, True, False])
    teacher = soft_permutation(drawn(2, 6), mask=kept)
    ours = losses.permutation_cross_entropy(X[0].masked_fill(~kept, math.nan), teacher, mask=kept)
    alone = losses.permutation_cross_entropy(X[0][kept], teacher[:4, kept])
    torch.testing.assert_close(ours, alone, rtol=1e-9, atol=1e-9)


# ---- sets of permutations


def test_partial_orders_between_everything_and_one_order() -> None:
    lowest, highest = torch.ones_like(RANKS), torch.full_like(RANKS, 6)
    assert losses.partial_order_loss(X, lowest, highest).abs() < 1e-12
    order = losses.permutation_cross_entropy(X, RANKS, objective="nll", reduction="none")
    torch.testing.assert_close(losses.partial_order_loss(X, RANKS, RANKS, reduction="none"), order)
    between = losses.partial_order_loss(X, (RANKS - 1).clamp(min=1), (RANKS + 1).clamp(max=6), reduction="none")
    assert (between < order).all()
    P = soft_permutation(X, squash=None, eps=5e-2)
    at = torch.arange(1, 7)[:, None]
    allowed = (at >= (RANKS - 1)[:, None]) & (at <= (RANKS + 1)[:, None])
    torch.testing.assert_close(between, -(P * allowed).sum(-2).log().mean(-1), rtol=1e-7, atol=1e-9)


def test_groups_do_not_order_their_members() -> None:
    """Two of the best, in any order: exchanging them changes nothing."""
    lowest, highest = torch.tensor([1, 1, 3, 3]), torch.tensor([2, 2, 4, 4])
    x = torch.tensor([0.3, -0.2, 1.0, 1.4]).double()
    ours = losses.partial_order_loss(x, lowest, highest)
    torch.testing.assert_close(losses.partial_order_loss(x[[1, 0, 3, 2]], lowest, highest), ours)
    assert losses.partial_order_loss(x.flip(0), lowest, highest) > 10 * ours


def possible_ranks(times: list[float], observed: list[bool]) -> list[tuple[int, int]]:
    """The least and the largest rank of each, over all orders in which events may have happened."""
    n = len(times)
    found: list[set[int]] = [set() for _ in range(n)]
    for order in itertools.permutations(range(n)):
        place = {item: k for k, item in enumerate(order)}
        allowed = True
        for i, j in itertools.permutations(range(n), 2):
            # i is known to be before j: an event, and j is later or was still under observation then.
            known = observed[i] and (times[i] < times[j] or (times[i] == times[j] and not observed[j]))
            allowed = allowed and not (known and place[i] > place[j])
        if allowed:
            for item, k in place.items():
                found[item].add(k + 1)
    return [(min(s), max(s)) for s in found]


@pytest.mark.parametrize("seed", range(6))
def test_ranks_of_times_by_enumeration(seed: int) -> None:
    random = np.random.default_rng(seed)
    times, observed = random.integers(0, 5, 6).astype(float), random.random(6) > 0.4
    lowest, highest = losses.ranks_of_times(torch.tensor(times), torch.tensor(observed))
    assert list(zip(lowest.tolist(), highest.tolist(), strict=True)) == possible_ranks(list(times), list(observed))
    kept = torch.tensor([True] * 6 + [False])
    padded = losses.ranks_of_times(torch.tensor([*times, math.nan]), torch.tensor([*observed, True]), mask=kept)
    assert padded[0].tolist() == [*lowest.tolist(), 1]
    assert padded[1].tolist() == [*highest.tolist(), 1]


def test_censored_times_train_a_risk() -> None:
    """Survival with a third of the times censored: the order of the hidden risk is found."""
    random = np.random.default_rng(0)
    features = torch.tensor(random.normal(size=(40, 3)))
    hidden = features @ torch.tensor([1.0, -2.0, 0.5]).double()
    times = hidden + 0.1 * torch.tensor(random.normal(size=40))
    censored = torch.tensor(random.random(40)) < 0.33
    seen = torch.where(censored, times - torch.tensor(random.exponential(size=40)), times)
    lowest, highest = losses.ranks_of_times(seen, ~censored)
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        losses.partial_order_loss(features @ weights, lowest, highest).backward()
        optimizer.step()
    assert losses.spearman(features @ weights.detach(), hidden) > 0.97


ERRORS = {
    "lowest beyond highest": (
        lambda: losses.partial_order_loss(X, RANKS, RANKS - 1 + (RANKS == 1).long()),
        ValueError,
        "lowest must be at most highest",
    ),
    "ranks of another size": (
        lambda: losses.partial_order_loss(X, RANKS[:, :5], RANKS),
        ValueError,
        "lowest must have the shape of scores",
    ),
    "highest from 0": (
        lambda: losses.partial_order_loss(X, torch.ones_like(RANKS), RANKS - 1),
        ValueError,
        "highest must lie between 1 and the number of items",
    ),
    "a teacher of another size": (
        lambda: losses.permutation_cross_entropy(X, HOT[:, :5]),
        ValueError,
        "ranks must have the shape of scores, (4, 6), or be soft permutations (4, 6, 6), got (4, 5, 6)",
    ),
    "a teacher's scores": (
        lambda: losses.permutation_cross_entropy(X, 3 * HOT),
        ValueError,
        "ranks must be a soft permutation with entries in [0, 1]",
    ),
    "objective": (
        lambda: losses.permutation_cross_entropy(X, RANKS, objective="bce"),
        ValueError,
        "objective must be one of 'binary', 'nll', got 'bce'",
    ),
    "observed that is no mask": (
        lambda: losses.ranks_of_times(X, torch.ones_like(X)),
        TypeError,
        "observed must be a boolean tensor (False where censored), got torch.float64",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, kind, message = ERRORS[name]
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value)
