"""The relaxations: hard limits, one signature, masks, gradients, errors. Originals and brute force: the other file."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import sinksort
from sinksort import relaxations as rx

WIDE = torch.float64

#: Every method with options off their defaults, and a strength at which it is soft on values of size one.
CASES = {
    "transport": (rx.Transport(), 0.05),
    "neuralsort": (rx.NeuralSort(), 1.0),
    "softsort": (rx.SoftSort(), 0.5),
    "softsort2": (rx.SoftSort(power=2.0), 0.5),
    "pairwise": (rx.Pairwise(), 0.5),
    "gaussian": (rx.Gaussian(), 0.5),
    "gaussian_exact": (rx.Gaussian(nodes=16), 0.5),
    "permutahedron": (rx.Permutahedron(), 0.7),
    "permutahedron_kl": (rx.Permutahedron(regularization="kl"), 0.7),
    "odd_even": (rx.SortingNetwork(network="odd_even", distribution="logistic"), 0.3),
    "bitonic": (rx.SortingNetwork(network="bitonic", distribution="cauchy"), 0.3),
    "bitonic_art": (rx.SortingNetwork(distribution="gaussian", replacement=0.25), 0.3),
}
RANKED = list(CASES)
SORTED = [c for c in CASES if c != "pairwise"]
PERMUTED = [c for c in SORTED if not c.startswith("permutahedron")]


def rows(*shape, seed=0):
    return torch.randn(*shape, dtype=WIDE, generator=torch.Generator().manual_seed(seed))


def hard_ranks(x):
    return 1.0 + (x.unsqueeze(-1) > x.unsqueeze(-2)).sum(-1)


@pytest.mark.parametrize("case", RANKED)
@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
def test_towards_zero_strength_the_ranks_are_hard(case, n):
    x = torch.stack([torch.randperm(n, generator=torch.Generator().manual_seed(s)) for s in range(6)]).to(WIDE)
    strength = 1e-4 if case == "transport" else 1e-9 if "bitonic" in case else 1e-3
    ranks = rx.rank(x, method=CASES[case][0], strength=strength)
    torch.testing.assert_close(ranks, hard_ranks(x).to(WIDE), atol=1e-6, rtol=0)
    falling = rx.rank(x, method=CASES[case][0], strength=strength, descending=True)
    torch.testing.assert_close(falling, hard_ranks(-x).to(WIDE), atol=1e-6, rtol=0)


@pytest.mark.parametrize("case", SORTED)
@pytest.mark.parametrize("descending", [False, True])
def test_towards_zero_strength_the_sort_is_hard(case, descending):
    x = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(s)) for s in range(6)]).to(WIDE) - 3.0
    strength = 1e-4 if case == "transport" else 1e-9 if "bitonic" in case else 1e-3
    soft = rx.sort(x, method=CASES[case][0], strength=strength, descending=descending)
    torch.testing.assert_close(soft, x.sort(dim=-1, descending=descending).values, atol=1e-6, rtol=0)


@pytest.mark.parametrize("case", PERMUTED)
@pytest.mark.parametrize("descending", [False, True])
def test_permutation_applied_to_the_values_is_the_sort(case, descending):
    method, strength = CASES[case]
    x = rows(3, 7)
    P = rx.permutation(x, method=method, strength=strength, descending=descending)
    total = P.sum(-2 if "gaussian" in case else -1)
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-12, rtol=0)
    soft = (P @ x.unsqueeze(-1)).squeeze(-1) / P.sum(-1)
    torch.testing.assert_close(rx.sort(x, method=method, strength=strength, descending=descending), soft)


@pytest.mark.parametrize("case", ["odd_even", "bitonic", "bitonic_art", "gaussian_exact"])
def test_doubly_stochastic_methods(case):
    P = rx.permutation(rows(3, 6), method=CASES[case][0], strength=CASES[case][1])
    ones = torch.ones(3, 6, dtype=WIDE)
    torch.testing.assert_close(P.sum(-1), ones, atol=1e-4, rtol=0)
    torch.testing.assert_close(P.sum(-2), ones, atol=1e-10, rtol=0)


@pytest.mark.parametrize("case", ["pairwise", "gaussian", "permutahedron", "permutahedron_kl", "odd_even", "transport"])
def test_ranks_add_up_as_hard_ranks_do(case):
    ranks = rx.rank(rows(4, 9), method=CASES[case][0], strength=CASES[case][1])
    torch.testing.assert_close(ranks.sum(-1), torch.full((4,), 45.0, dtype=WIDE))


@pytest.mark.parametrize("case", RANKED)
def test_ranks_are_equivariant_and_fall_when_the_order_is_turned(case):
    method, strength = CASES[case]
    x = rows(2, 6)
    ranks = rx.rank(x, method=method, strength=strength)
    if not case.startswith(("odd_even", "bitonic")):  # a network's wires are not interchangeable
        shuffle = torch.tensor([2, 5, 0, 1, 4, 3])
        torch.testing.assert_close(rx.rank(x[:, shuffle], method=method, strength=strength), ranks[:, shuffle])
    turned = rx.rank(-x, method=method, strength=strength)
    torch.testing.assert_close(rx.rank(x, method=method, strength=strength, descending=True), turned)
    assert ((ranks > 1 - 1e-9) & (ranks < 6 + 1e-9)).all()


@pytest.mark.parametrize("case", RANKED)
@pytest.mark.parametrize("descending", [False, True])
def test_padding_is_no_padding(case, descending):
    method, strength = CASES[case]
    x, kept = rows(3, 9), torch.tensor([1, 1, 0, 1, 0, 0, 1, 1, 0], dtype=torch.bool)
    poisoned = torch.where(kept, x, torch.tensor([float("nan"), 1e6, -1e6]).repeat(3))
    options = {"method": method, "strength": strength, "descending": descending}
    ranks = rx.rank(poisoned, mask=kept, **options)
    torch.testing.assert_close(ranks[:, kept], rx.rank(x[:, kept], **options))
    assert (ranks[:, ~kept] == 0).all()
    if case in SORTED:
        ordered = rx.sort(poisoned, mask=kept, **options)
        torch.testing.assert_close(ordered[:, :5], rx.sort(x[:, kept], **options))
        assert (ordered[:, 5:] == 0).all()
    if case in PERMUTED:
        P = rx.permutation(poisoned, mask=kept, **options)
        torch.testing.assert_close(P[:, :5][..., kept], rx.permutation(x[:, kept], **options))
        assert (P[:, 5:] == 0).all()
        assert (P[..., ~kept] == 0).all()


@pytest.mark.parametrize("case", RANKED)
def test_ragged_rows_an_empty_row_and_gradients_through_masks(case):
    method, strength = CASES[case]
    kept = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
    x = rows(3, 5).masked_fill(~kept, float("nan")).requires_grad_()
    ranks = rx.rank(x, mask=kept, method=method, strength=strength)
    torch.testing.assert_close(ranks[1, kept[1]], rx.rank(x[1, kept[1]], method=method, strength=strength))
    assert (ranks[2] == 0).all()
    outputs = [ranks] + ([rx.sort(x, mask=kept, method=method, strength=strength)] if case in SORTED else [])
    for out in outputs:
        (gradient,) = torch.autograd.grad((out * rows(3, 5, seed=1)).sum(), x)
        assert torch.isfinite(gradient).all()
        assert (gradient[~kept] == 0).all()


@pytest.mark.parametrize("case", RANKED)
def test_first_and_second_derivatives(case):
    method, strength = CASES[case]
    x = rows(2, 5, seed=3).requires_grad_()
    softness = torch.tensor([strength, 1.3 * strength], dtype=WIDE, requires_grad=True)
    assert gradcheck(lambda x, t: rx.rank(x, method=method, strength=t), (x, softness))
    assert gradgradcheck(lambda x: rx.rank(x, method=method, strength=strength), (x,), atol=1e-4)
    if case in SORTED:
        assert gradcheck(lambda x, t: rx.sort(x, method=method, strength=t), (x, softness))
        assert gradgradcheck(lambda x: rx.sort(x, method=method, strength=strength), (x,), atol=1e-4)


@pytest.mark.parametrize("case", RANKED)
def test_any_dimension_any_batch(case):
    method, strength = CASES[case]
    x = rows(2, 5, 3)
    ranks = rx.rank(x, method=method, strength=strength, dim=1)
    torch.testing.assert_close(ranks[1, :, 2], rx.rank(x[1, :, 2], method=method, strength=strength))
    if case in SORTED:
        ordered = rx.sort(x, method=method, strength=strength, dim=1)
        torch.testing.assert_close(ordered[1, :, 2], rx.sort(x[1, :, 2], method=method, strength=strength))
    if case in PERMUTED:
        P = rx.permutation(x, method=method, strength=strength, dim=1)
        torch.testing.assert_close(P[1, 2], rx.permutation(x[1, :, 2], method=method, strength=strength))


@pytest.mark.parametrize("case", RANKED)
def test_dtype_comes_back_and_nan_is_seen(case):
    method, strength = CASES[case]
    for dtype in (torch.float32, torch.bfloat16):
        assert rx.rank(rows(5).to(dtype), method=method, strength=strength).dtype == dtype
    x = rows(2, 4)
    x[1, 2] = float("nan")
    ranks = rx.rank(x, method=method, strength=strength)
    assert torch.isfinite(ranks[0]).all()
    assert torch.isnan(ranks[1]).all()


@pytest.mark.parametrize("case", RANKED)
def test_ties_share_their_rank(case):
    if case.startswith(("odd_even", "bitonic")):
        ranks = rx.rank(torch.zeros(4, dtype=WIDE), method=CASES[case][0])
        assert ranks.sum() == pytest.approx(10)
        return
    ranks = rx.rank(torch.tensor([3.0, 1.0, 3.0, 1.0], dtype=WIDE), method=CASES[case][0], strength=CASES[case][1])
    assert ranks[0] == pytest.approx(ranks[2].item(), abs=1e-9)
    assert ranks[1] == pytest.approx(ranks[3].item(), abs=1e-9)
    assert ranks[0] > ranks[1]


def test_transport_is_the_library():
    x = rows(2, 6)
    torch.testing.assert_close(rx.rank(x, strength=0.02), sinksort.soft_rank(x, eps=0.02))
    torch.testing.assert_close(rx.sort(x, descending=True), sinksort.soft_sort(x, descending=True))
    torch.testing.assert_close(rx.permutation(x, descending=True), sinksort.soft_permutation(x, descending=True))


def test_the_table_of_operations_is_true():
    x = rows(4)
    functions = {"rank": rx.rank, "sort": rx.sort, "permutation": rx.permutation}
    for operation, function in functions.items():
        for method in rx.METHODS:
            if method in rx.OPERATIONS[operation]:
                function(x, method=method)
            else:
                with pytest.raises(
                    NotImplementedError, match=f"method '{method}' defines no {operation}: .* transport, neural"
                ):
                    function(x, method=method)


def test_plackett_luce_order_of_noisy_neuralsort():
    """With scores s the descending order (i, j, k) has probability s_i / sum * s_j / (s_j + s_k)."""
    x = torch.tensor([0.5, 0.0, -1.0], dtype=WIDE)
    draws = 40_000
    method = rx.NeuralSort(noise=0.7, generator=torch.Generator().manual_seed(0))
    P = rx.permutation(x.expand(draws, 3), method=method, strength=1e-6, descending=True)
    orders, counts = P.argmax(-1).unique(dim=0, return_counts=True)
    score = (x / 0.7).exp()
    for (i, j, k), count in zip(orders.tolist(), counts.tolist(), strict=True):
        p = (score[i] / score.sum() * score[j] / (score[j] + score[k])).item()
        assert count / draws == pytest.approx(p, abs=5 * (p * (1 - p) / draws) ** 0.5)
    assert len(orders) == 6


def test_noise_reaches_the_order_but_not_the_values():
    x = torch.tensor([1.0, 2.0, 3.0], dtype=WIDE)
    method = rx.NeuralSort(noise=5.0, generator=torch.Generator().manual_seed(1))
    ordered = rx.sort(x.expand(50, 3), method=method, strength=1e-9)
    torch.testing.assert_close(ordered.sort(-1).values, x.expand(50, 3))
    assert (ordered != x).any()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"method": "bogus"},
            ValueError,
            r"method must be one of transport, .*bitonic, or an option object .*, got 'bogus'\.",
        ),
        ({"method": 3}, TypeError, r"method must be a name \(transport, .*\) or an option object .*, got int\."),
        (
            {"strength": 0.0},
            ValueError,
            r"strength must be positive and finite, got 0; for a hard sort use torch\.sort\.",
        ),
        ({"strength": "big"}, TypeError, r"strength must be a number or a tensor, got str\."),
        (
            {"strength": torch.tensor([1.0, -2.0])},
            ValueError,
            r"strength must be positive, .* smallest entry is -2; .*softplus",
        ),
        ({"strength": torch.ones(3)}, ValueError, r"strength .* broadcasts to the rows \(2,\), got shape \(3,\)\."),
        ({"mask": torch.ones(4)}, TypeError, r"mask must be a boolean tensor"),
    ],
)
def test_errors_of_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        rx.rank(rows(2, 4), **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rx.NeuralSort(noise=-1.0), r"NeuralSort: noise must be a finite number >= 0 .*, got -1\.0\."),
        (lambda: rx.SoftSort(power=0.5), r"SoftSort: power must be at least 1 and finite, got 0\.5"),
        (lambda: rx.Gaussian(nodes=0), r"Gaussian: nodes must be None or a positive integer, got 0"),
        (
            lambda: rx.Permutahedron(regularization="l1"),
            r"Permutahedron: regularization must be 'l2' or 'kl', got 'l1'\.",
        ),
        (
            lambda: rx.SortingNetwork(network="shell"),
            r"SortingNetwork: network must be 'bitonic' or 'odd_even', got 'shell'\.",
        ),
        (
            lambda: rx.SortingNetwork(distribution="laplace"),
            r"distribution must be one of logistic, .*, got 'laplace'\.",
        ),
        (
            lambda: rx.SortingNetwork(replacement=1.0),
            r"replacement must be in \[0, 1\), got 1\.0; the paper uses 0\.25\.",
        ),
    ],
)
def test_errors_of_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()
