"""Losses by faster formulas than their definitions: each against its definition, written out for all pairs."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import sinksort
from sinksort import losses
from sinksort.core.kantorovich import hard_places, hard_ranks
from sinksort.losses._pairs import pair_sums
from sinksort.losses._precision import precision_sum
from sinksort.losses.fairness import _power_sum


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


# ---- hard ranks


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("n", [1, 2, 9, 300])
def test_hard_ranks_are_scipys(dtype: torch.dtype, n: int) -> None:
    rows = (drawn(n, 6, n) * 2).round().to(dtype)
    expected = scipy.stats.rankdata(rows.double().numpy(), axis=-1)
    assert hard_ranks(rows).tolist() == expected.tolist()
    assert hard_ranks(rows, descending=True).tolist() == (n + 1 - expected).tolist()
    first, last = hard_places(rows)
    assert first.tolist() == scipy.stats.rankdata(rows.double().numpy(), "min", axis=-1).tolist()
    assert last.tolist() == scipy.stats.rankdata(rows.double().numpy(), "max", axis=-1).tolist()


def test_hard_ranks_of_kept_values_are_those_of_the_values_alone() -> None:
    rows, kept = (drawn(1, 8, 20) * 2).round(), drawn(2, 8, 20) > -0.3
    kept[0], kept[1] = False, True
    rows[~kept] = float("nan")
    for descending in (False, True):
        ranks = hard_ranks(rows, kept, descending)
        for row, there, got in zip(rows, kept, ranks, strict=True):
            values = row[there].numpy() * (-1 if descending else 1)
            assert got[there].tolist() == (scipy.stats.rankdata(values) if len(values) else np.zeros(0)).tolist()
            assert (got[~there] == 0).all()


def test_integers_that_floats_do_not_tell_apart_are_not_tied() -> None:
    big = torch.tensor([2**53, 2**53 + 1, 2**53 + 2])
    assert losses.spearman(torch.tensor([1.0, 2.0, 3.0]), big) == 1
    assert hard_ranks(big).tolist() == [1, 2, 3]


def test_nan_makes_a_row_nan_and_infinities_are_values() -> None:
    ranks = hard_ranks(torch.tensor([[1.0, float("nan"), 0.0], [float("inf"), 0.0, -float("inf")]]))
    assert ranks[0].isnan().all()
    assert ranks[1].tolist() == [3, 2, 1]


# ---- sums over pairs


def _all_pairs(x: Tensor, y: Tensor, shares: list[tuple[Tensor, Tensor]], margin: float) -> list[Tensor]:
    w = torch.stack([a.unsqueeze(-1) * b.unsqueeze(-2) for a, b in shares]).sum(0)
    w = w - torch.diag_embed(w.diagonal(dim1=-2, dim2=-1))
    s = ((x.unsqueeze(-1) - x.unsqueeze(-2)) / margin).clamp(-1.0, 1.0)
    t = (y.unsqueeze(-1) - y.unsqueeze(-2)).sign()
    return [(w * each).sum((-2, -1)) for each in (s * t, s * s, t * t, torch.ones_like(w))]


@pytest.mark.parametrize("kind", ["apart", "tied", "whole ranks", "weightless"])
@pytest.mark.parametrize("margin", [1e-3, 0.3, 1.0, 2.5, 1e3])
@pytest.mark.parametrize("n", [2, 3, 8, 9, 70])
def test_sums_over_pairs_are_those_of_all_pairs(n: int, margin: float, kind: str) -> None:
    rng = np.random.default_rng(n)
    x, y = n / 2 + n / 4 * drawn(1, 3, n), (2 * drawn(2, 3, n)).round()
    a, h = (torch.tensor(rng.uniform(0.1, 1.0, (3, n))) for _ in range(2))
    if kind == "tied":
        x = x.round()
    if kind == "whole ranks":
        x = torch.tensor(np.stack([rng.permutation(n) + 1.0 for _ in range(3)]))
    if kind == "weightless":
        a[:, ::2] = 0.0
    for shares in ([(a, a)], [(a, a * h), (a * h, a)]):
        ours, theirs = pair_sums(x, y, shares, margin), _all_pairs(x, y, shares, margin)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.squeeze(-1), other, rtol=1e-11, atol=1e-11 * float(theirs[3].max()) + 1e-15)


@pytest.mark.parametrize("margin", [0.7, 5.0])
def test_sums_over_pairs_have_derivatives(margin: float) -> None:
    x, a, y = drawn(3, 2, 7).requires_grad_(), drawn(4, 2, 7).exp().requires_grad_(), drawn(5, 2, 7).round()

    def sums(x: Tensor, a: Tensor) -> Tensor:
        return torch.cat(pair_sums(x, y, [(a, 2 * a), (2 * a, a)], margin), dim=-1)

    assert gradcheck(sums, (x, a))
    assert gradgradcheck(sums, (x, a))


def test_kendall_of_a_long_row_is_scipys_and_takes_no_matrix() -> None:
    x, y = drawn(6, 60_000), drawn(7, 60_000).round(decimals=1)  # all pairs would take 29 GB
    expected = scipy.stats.kendalltau(x, y).statistic
    assert abs(losses.kendall(x, y).item() - expected) < 1e-12


# ---- correlations


@pytest.mark.parametrize("weighted", [False, True])
def test_spearmans_gradient_is_that_of_its_formula(weighted: bool) -> None:
    x, y, a = drawn(8, 3, 9).requires_grad_(), drawn(9, 3, 9), drawn(10, 3, 9).exp() if weighted else None

    def loss(x: Tensor) -> Tensor:
        return losses.spearman_loss(x, y, weights=a, eps=0.05, reduction="none")

    assert gradcheck(loss, (x,))
    assert gradgradcheck(loss, (x,), fast_mode=True)
    x = x.detach().float().requires_grad_()
    (grad,) = torch.autograd.grad(losses.spearman_loss(x, y, eps=0.05), x)
    ranks = sinksort.soft_rank(x, eps=0.05).double()
    rows = [torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(ranks, hard_ranks(y), strict=True)]
    (expected,) = torch.autograd.grad(1.0 - torch.stack(rows).mean(), x)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-6)


def test_half_precision_loses_no_more_than_the_rounding_of_its_predictions() -> None:
    x, y = drawn(11, 4, 300), drawn(12, 4, 300)
    for dtype in (torch.float16, torch.bfloat16):
        rounded = x.to(dtype)
        for loss in (losses.spearman_loss, losses.kendall_loss, losses.ndcg_loss):
            ours = loss(rounded, y.abs(), reduction="none")
            assert ours.dtype == dtype
            expected = loss(rounded.double(), y.abs(), reduction="none")
            torch.testing.assert_close(ours, expected.to(dtype), rtol=0, atol=torch.finfo(dtype).eps)


# ---- precisions, distances between groups


def test_sums_of_precisions_are_those_of_their_definition() -> None:
    P = sinksort.soft_permutation(drawn(13, 3, 6), eps=0.1).mT
    relevant = (drawn(14, 3, 6) > 0).double()
    cut = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    expected = torch.zeros(3, dtype=torch.float64)
    for row in range(3):
        for j in range(6):
            Q = torch.stack([P[row, i, :j].sum() / (P[row, i, :j].sum() + P[row, i, j + 1 :].sum()) for i in range(6)])
            for i in range(6):
                others = torch.arange(6) != i
                precision = (1 + (relevant[row] * Q)[others].sum()) / (1 + Q[others].sum())
                expected[row] += cut[j] * relevant[row, i] * P[row, i, j] * precision
    torch.testing.assert_close(precision_sum(P, relevant, cut), expected)
    free = P.clone().requires_grad_()
    assert gradcheck(lambda P: precision_sum(P, relevant, cut), (free,))
    assert gradgradcheck(lambda P: precision_sum(P, relevant, cut), (free,), fast_mode=True)


@pytest.mark.parametrize("p", [1, 2, 1.5, 3.0])
@pytest.mark.parametrize("groups", [1, 2, 3, 7])
def test_distances_between_groups_are_those_of_all_pairs(groups: int, p: float) -> None:
    there = drawn(15, 4, 1, groups) > -0.5
    q = torch.where(there, drawn(16, 4, 5, groups), 0.0).requires_grad_()
    expected = torch.zeros(4, 5, dtype=torch.float64) + 0.0 * q.sum()
    for g in range(groups):
        for h in range(g):
            expected = expected + (q[..., g] - q[..., h]).abs() ** p * (there[..., g] & there[..., h])
    ours = _power_sum(q, there, p)
    torch.testing.assert_close(ours, expected)
    (grad,), (other) = torch.autograd.grad(ours.sum() + 0.0 * q.sum(), q), torch.autograd.grad(expected.sum(), q)[0]
    torch.testing.assert_close(grad, other)


# ---- payloads by fused kernels


@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize(("batch", "n", "m", "columns"), [(33, 100, 100, 1), (2, 50, 30, 3), (16, 128, 128, 2)])
def test_payloads_in_single_precision_are_those_in_double(batch: int, n: int, m: int, columns: int, eps: float) -> None:
    keys, payload, cotangent = drawn(17, batch, n), 50.0 + drawn(18, batch, n, columns), drawn(19, batch, m, columns)
    reference, w = drawn(20, m), drawn(21, batch, n)
    C, found = drawn(22, batch, m, n), []
    for dtype in (torch.float32, torch.float64):
        x, v, r = (t.to(dtype).requires_grad_() for t in (keys, payload, reference))
        carried = sinksort.sort_with(v, x, num_targets=m, descending=True, eps=eps)
        normalized = sinksort.quantile_normalize(x, r, eps=eps)
        permutation = sinksort.soft_permutation(x, num_targets=m, eps=eps)
        gradients = (
            *torch.autograd.grad(carried, (x, v), cotangent.to(dtype)),
            *torch.autograd.grad(normalized, (x, r), w.to(dtype)),
            *torch.autograd.grad(permutation, x, C.to(dtype)),
        )
        assert sinksort.last_backend() == "numba"
        found.append([t.detach().double() for t in (carried, normalized, permutation, *gradients)])
    for single, double in zip(*found, strict=True):
        torch.testing.assert_close(single, double, rtol=1e-3, atol=1e-4 * float(double.abs().max()))


def test_payloads_have_second_derivatives_in_single_precision() -> None:
    found = []
    for dtype in (torch.float32, torch.float64):
        x, v = (drawn(seed, 16, 30).to(dtype).requires_grad_() for seed in (23, 24))
        first = torch.autograd.grad(sinksort.sort_with(v, x, eps=0.1).square().sum(), (x, v), create_graph=True)
        found.append(torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), (x, v)))
    for single, double in zip(*found, strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-4 * float(double.abs().max()))


# ---- backends


X, T = drawn(25, 4, 12), drawn(26, 4, 12)
CALLS = {
    losses.topk_loss: (torch.tensor([0, 5, 2, 2]),),
    losses.membership_loss: (torch.tensor([0, 5, 2, 2]), 2),
    losses.least_quantile_loss: (),
    losses.trimmed_loss: (),
    losses.median_of_means: (5,),
    losses.spearman_loss: (T,),
    losses.kendall_loss: (T,),
    losses.ndcg_loss: (T.abs(),),
    losses.average_precision_loss: (T > 0,),
    losses.reciprocal_rank_loss: (T > 0,),
    losses.recall_at_k_loss: (T > 0, 3),
    losses.permutation_cross_entropy: (T.argsort(-1).argsort(-1) + 1,),
    losses.partial_order_loss: (T.argsort(-1).argsort(-1) + 1, torch.full((4, 12), 12)),
    losses.quantile_parity_loss: ((T > 0).long(),),
    losses.soft_knn_vote: ((T[0] > 0).long(), 3),
    losses.knn_loss: ((T[0] > 0).long(), torch.tensor([0, 1, 1, 0]), 3),
    losses.soft_conformal_quantile: (0.3,),
    losses.conformal_size_loss: (drawn(27, 4, 2, 5), 0.3),
}


def test_every_loss_with_a_solver_has_a_backend() -> None:
    functions = [f for name in losses.__all__ if callable(f := getattr(losses, name)) and inspect.isfunction(f)]
    assert {f for f in functions if "solver" in inspect.signature(f).parameters} == set(CALLS)


@pytest.mark.parametrize("loss", CALLS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_backend_that_is_asked_for_answers_and_says_so(loss, dtype) -> None:
    answers = []
    for backend in ("torch", "numba", "auto"):
        answers.append(loss(X.to(dtype), *CALLS[loss], backend=backend, eps=0.05))
        # Logarithms of masks in double precision are computed by torch, unless kernels are asked for by name.
        by_torch = backend == "torch" or (
            backend == "auto" and dtype == torch.float64 and loss in (losses.topk_loss, losses.membership_loss)
        )
        assert sinksort.last_backend() == ("torch" if by_torch else "numba")
    for other in answers[1:]:
        torch.testing.assert_close(other, answers[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="backend must be one of 'auto'"):
        loss(X.to(dtype), *CALLS[loss], backend="cuda")


@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_reciprocal_ranks_in_single_precision(eps: float, share: float) -> None:
    """Sums of probabilities end at 1, which single precision may miss: losses and gradients are right all the same."""
    rng = torch.Generator().manual_seed(5)
    scores, relevant = torch.randn(64, 40, generator=rng), torch.rand(64, 40, generator=rng) < share
    found = []
    for dtype in (torch.float32, torch.float64):
        own = scores.to(dtype).requires_grad_()
        loss = losses.reciprocal_rank_loss(own, relevant, eps=eps, reduction="none")
        found.append((loss.detach().double(), torch.autograd.grad(loss.sum(), own)[0].double()))
    (single, of_single), (exact, of_exact) = found
    assert (single - exact).abs().max() <= 1e-6
    assert (of_single - of_exact).abs().max() <= 1e-5
