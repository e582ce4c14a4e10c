"""The relaxations against their originals (diffsort, difftopk, numbers from torchsort) and brute force written here."""

import itertools

import diffsort
import difftopk
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.isotonic import IsotonicRegression

from sinksort import relaxations as rx
from sinksort.relaxations.isotonic import block_values, isotonic_blocks

WIDE = torch.float64


def rows(*shape, seed=0):
    return torch.randn(*shape, dtype=WIDE, generator=torch.Generator().manual_seed(seed))


# ---- originals


@pytest.mark.parametrize("distribution", ["logistic", "gaussian", "cauchy", "reciprocal", "optimal"])
@pytest.mark.parametrize(("network", "n"), [("odd_even", 5), ("odd_even", 8), ("bitonic", 8), ("bitonic", 16)])
def test_sorting_networks_are_those_of_diffsort(network, n, distribution):
    x = rows(3, n)
    ordered, P = diffsort.DiffSortNet(network, n, steepness=7.0, distribution=distribution)(x)
    # The package's reciprocal is u / (2 + |u|), a quarter as steep as the 2u / (1 + 2|u|) of the paper.
    strength = 4 / 7.0 if distribution == "reciprocal" else 1 / 7.0
    method = rx.SortingNetwork(network=network, distribution=distribution)
    torch.testing.assert_close(rx.sort(x, method=method, strength=strength), ordered, atol=1e-9, rtol=0)
    torch.testing.assert_close(rx.permutation(x, method=method, strength=strength).mT, P, atol=1e-9, rtol=0)


def test_activation_replacement_is_that_of_diffsort():
    x = rows(3, 8)
    ordered, _ = diffsort.DiffSortNet("odd_even", 8, steepness=7.0, distribution="logistic_phi", art_lambda=0.25)(x)
    method = rx.SortingNetwork(network="odd_even", distribution="logistic", replacement=0.25)
    torch.testing.assert_close(rx.sort(x, method=method, strength=1 / 7.0), ordered, atol=1e-9, rtol=0)


@pytest.mark.parametrize("n", [2, 3, 5, 6, 7])
def test_bitonic_networks_of_any_size_sort(n):
    """By the 0-1 principle a network that sorts all rows of zeros and ones sorts everything."""
    x = torch.tensor(list(itertools.product([0.0, 1.0], repeat=n)), dtype=WIDE)
    ordered = rx.sort(x, method="bitonic", strength=1e-12)
    torch.testing.assert_close(ordered, x.sort(-1).values, atol=1e-9, rtol=0)


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_neuralsort_and_softsort_are_those_of_difftopk(tau):
    x = rows(4, 9).float()  # the originals work in single precision
    their = difftopk.NeuralSort(tau=tau)(x).mT
    torch.testing.assert_close(rx.permutation(x, method="neuralsort", strength=tau), their, atol=1e-6, rtol=0)
    for power in (1.0, 2.0):
        their = difftopk.SoftSort(tau=tau, pow=power)(x)
        our = rx.permutation(x, method=rx.SoftSort(power=power), strength=tau, descending=True)
        torch.testing.assert_close(our, their, atol=1e-6, rtol=0)


#: Of [0.5, -1.2, 2.0, 0.4, 0.45, -1.0] at strength 0.7 in torchsort 0.1.10, whose installation needs a C++ compiler:
#: the answer, and the gradient of its inner product with [1, 4, 9, 16, 25, 36].
TORCHSORT = {
    ("l2", "rank"): (
        [3.957142857143, 1.528571428571, 6.0, 3.814285714286, 3.885714285714, 1.814285714286],
        [-22.0, -17.7142857143, 0.0, -0.5714285714, 12.2857142857, 28.0],
    ),
    ("l2", "sort"): ([-1.2, -1.0, 0.4, 0.45, 0.535714285714, 1.964285714286], [30.5, 1.0, 30.5, 9.0, 16.0, 4.0]),
    ("kl", "rank"): (
        [4.288868626886, 1.28716020935, 6.0, 3.71792542758, 3.993205945534, 1.71283979065],
        [-77.4068407933, -33.5954167393, 0.0, 12.5675510178, 64.8392897755, 33.5954167393],
    ),
    ("kl", "sort"): (
        [-1.2, -1.0, 0.4, 0.45, 0.513416639803, 1.941988068375],
        [49.8720430478, 1.0, 11.1279569522, 9.0, 16.0, 4.0],
    ),
}


@pytest.mark.parametrize(("regularization", "operation"), TORCHSORT)
def test_permutahedron_is_that_of_torchsort(regularization, operation):
    x = torch.tensor([0.5, -1.2, 2.0, 0.4, 0.45, -1.0], dtype=WIDE, requires_grad=True)
    options = {"method": rx.Permutahedron(regularization=regularization), "strength": 0.7}
    ours = rx.rank(x, **options) if operation == "rank" else rx.sort(x, **options)
    (gradient,) = torch.autograd.grad(ours @ torch.arange(1.0, 7.0, dtype=WIDE).square(), x)
    value, slope = TORCHSORT[regularization, operation]
    torch.testing.assert_close(ours, torch.tensor(value, dtype=WIDE), atol=1e-11, rtol=0)
    torch.testing.assert_close(gradient, torch.tensor(slope, dtype=WIDE), atol=1e-9, rtol=0)


# ---- brute force


def test_pairwise_ranks_by_the_definition():
    x = rows(6)
    expected = [
        1 + sum(1 / (1 + np.exp(-(a - b) / 0.3)) for j, b in enumerate(x.tolist()) if j != i)
        for i, a in enumerate(x.tolist())
    ]
    torch.testing.assert_close(rx.rank(x, method="pairwise", strength=0.3), torch.tensor(expected, dtype=WIDE))


def test_gaussian_ranks_by_monte_carlo():
    x, sigma, draws = rows(5), 0.6, 200_000
    noisy = x + sigma * rows(draws, 5, seed=1)
    ranks = noisy.argsort(-1).argsort(-1)
    torch.testing.assert_close(
        rx.rank(x, method="gaussian", strength=sigma), 1.0 + ranks.double().mean(0), atol=0.015, rtol=0
    )
    observed = torch.nn.functional.one_hot(ranks, 5).double().mean(0).mT
    exact = rx.permutation(x, method=rx.Gaussian(nodes=32), strength=sigma)
    torch.testing.assert_close(exact, observed, atol=0.006, rtol=0)


def test_gaussian_rank_distribution_counts_every_outcome_of_the_duels():
    x, sigma = rows(5), 0.6
    wins = torch.special.ndtr((x.unsqueeze(-1) - x) / (sigma * 2**0.5))
    expected = torch.zeros(5, 5, dtype=WIDE)
    for i in range(5):
        others = [j for j in range(5) if j != i]
        for outcome in itertools.product([0, 1], repeat=4):
            p = np.prod(
                [wins[i, j].item() if won else 1 - wins[i, j].item() for j, won in zip(others, outcome, strict=True)]
            )
            expected[sum(outcome), i] += p
    torch.testing.assert_close(rx.permutation(x, method="gaussian", strength=sigma), expected)


def test_both_gaussian_distributions_have_the_expected_rank_as_mean():
    x = rows(3, 6)
    for method in (rx.Gaussian(), rx.Gaussian(nodes=48)):
        P = rx.permutation(x, method=method, strength=0.8)
        mean = (torch.arange(1, 7, dtype=WIDE).unsqueeze(-1) * P).sum(-2)
        torch.testing.assert_close(mean, rx.rank(x, method=method, strength=0.8), atol=1e-6, rtol=0)


def hull_minimum(objective, gradient, vertices):
    """The minimiser of a smooth convex function over a convex hull, by a general solver on the vertices' weights."""
    weights = minimize(
        lambda p: objective(p @ vertices),
        np.full(len(vertices), 1 / len(vertices)),
        jac=lambda p: vertices @ gradient(p @ vertices),
        bounds=[(0, 1)] * len(vertices),
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    ).x
    return weights @ vertices


@pytest.mark.parametrize("strength", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_permutahedron_by_general_optimisation(strength, seed):
    x = rows(4, seed=seed)
    z, rho = x.numpy() / strength, np.arange(1.0, 5.0)
    orders = np.array(list(itertools.permutations(range(4))))

    expected = hull_minimum(lambda m: 0.5 * ((m - z) ** 2).sum(), lambda m: m - z, rho[orders])
    ours = rx.rank(x, method=rx.Permutahedron(), strength=strength)
    np.testing.assert_allclose(ours.numpy(), expected, atol=2e-5)

    expected = hull_minimum(lambda m: (m * (np.log(m) - z) - m + np.exp(z)).sum(), lambda m: np.log(m) - z, rho[orders])
    ours = rx.rank(x, method=rx.Permutahedron(regularization="kl"), strength=strength)
    np.testing.assert_allclose(ours.numpy(), expected, atol=2e-4)

    z = rho / strength
    expected = hull_minimum(lambda m: 0.5 * ((m - z) ** 2).sum(), lambda m: m - z, x.numpy()[orders])
    np.testing.assert_allclose(rx.sort(x, method=rx.Permutahedron(), strength=strength).numpy(), expected, atol=2e-5)

    z = z - z.mean()  # P_E(z + c, w) = P_E(z, w): keeps the general solver in range
    expected = np.log(
        hull_minimum(lambda m: (m * (np.log(m) - z) - m).sum(), lambda m: np.log(m) - z, np.exp(x.numpy())[orders])
    )
    ours = rx.sort(x, method=rx.Permutahedron(regularization="kl"), strength=strength, descending=True)
    np.testing.assert_allclose(ours.flip(-1).numpy(), expected, atol=2e-4)


#: Strengths from none to all values in one block, at several of which some values pool and others do not.
@pytest.mark.parametrize("strength", [0.01, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("padded", [False, True])
def test_sorts_by_kl_are_those_of_the_paper_in_both_directions(strength, padded):
    """Down by the isotonic regression of its section 5, row by row; up by what that makes of -x, with its sign."""
    method = rx.Permutahedron(regularization="kl")
    x = 2.0 * rows(3, 7, seed=4)
    kept = torch.rand(3, 7, generator=torch.Generator().manual_seed(1)) < 0.7 if padded else None
    for descending in (False, True):
        ours = rx.sort(x, method=method, strength=strength, descending=descending, mask=kept)
        for row, out, there in zip(x, ours, torch.ones(3, 7).bool() if kept is None else kept, strict=True):
            alone, sign = row[there].numpy(), 1.0 if descending else -1.0
            s = np.arange(len(alone), 0, -1.0) / strength
            w = np.sort(sign * alone)[::-1]
            down = s - pav_kl(s[::-1], w[::-1])[::-1]
            np.testing.assert_allclose(out[: len(alone)].numpy(), sign * down, rtol=0, atol=1e-9)
            assert (out[len(alone) :] == 0).all()
            if strength == 10.0:  # all in one block: the sum of exp(sign x) is that of the answers
                np.testing.assert_allclose(np.exp(sign * out[: len(alone)].numpy()).sum(), np.exp(w).sum(), rtol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 65, 300, 1000])
def test_isotonic_regression_is_that_of_scikit_learn(n):
    for seed, drift in ((0, 0.0), (1, 0.3), (2, -0.3)):
        y = rows(3, n, seed=seed).cumsum(-1) + drift * torch.arange(n)
        zero = torch.zeros_like(y)
        v = block_values(y, zero, isotonic_blocks(y, zero, False), False)
        expected = [IsotonicRegression().fit_transform(np.arange(n), row) for row in y.numpy()]
        np.testing.assert_allclose(v.numpy(), np.stack(expected), atol=1e-9)


def pav_kl(s, w):
    """Pool adjacent violators with a stack, one row."""
    blocks = []
    for a, b in zip(s.tolist(), w.tolist(), strict=True):
        blocks.append((a, b, 1))
        while len(blocks) > 1 and blocks[-2][0] - blocks[-2][1] >= blocks[-1][0] - blocks[-1][1]:
            a2, b2, n2 = blocks.pop()
            a1, b1, n1 = blocks.pop()
            blocks.append((np.logaddexp(a1, a2), np.logaddexp(b1, b2), n1 + n2))
    return np.concatenate([np.full(size, a - b) for a, b, size in blocks])


@pytest.mark.parametrize("scale", [0.1, 1.0, 50.0, 1000.0])
def test_entropic_isotonic_regression_by_a_stack(scale):
    for n in (2, 5, 33, 200):
        s, w = (scale * rows(2, n, seed=n)).sort(-1).values, (2 * rows(2, n, seed=n + 1)).sort(-1).values
        v = block_values(s, w, isotonic_blocks(s, w, True), True)
        np.testing.assert_allclose(
            v.numpy(), np.stack([pav_kl(a, b) for a, b in zip(s, w, strict=True)]), rtol=1e-9, atol=1e-9
        )


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(-4, 4), min_size=1, max_size=24),
    st.sampled_from([0.1, 1.0, 3.0]),
    st.sampled_from(["l2", "kl"]),
)
def test_projections_are_majorised_by_the_vertex(values, strength, regularization):
    """Rado: r is in the permutahedron of 1..n iff it adds up to n(n+1)/2 and its k smallest to at least 1 + ... + k."""
    x = torch.tensor(values, dtype=WIDE)
    n = len(values)
    ranks = rx.rank(x, method=rx.Permutahedron(regularization=regularization), strength=strength)
    least = torch.arange(1, n + 1, dtype=WIDE).cumsum(0)
    assert (ranks.sort().values.cumsum(0) >= least - 1e-8).all()
    assert ranks.sum().item() == pytest.approx(n * (n + 1) / 2)
    above = x.unsqueeze(-1) > x
    assert (ranks.unsqueeze(-1) - ranks)[above].ge(-1e-9).all()  # order is kept
