"""Newton: ten steps are enough for nearly every problem, and what is not solved says so."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import sinksort
from tests import inputs, oracles
from tests.strategies import tensor

ROWS = 125
GROUPS = 80


def random_groups() -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
    """80 groups of 125 problems, 10,000 in all: every kind of input, weights, cost, entropy and number of targets."""
    rng = np.random.default_rng(20)
    kinds = list(inputs.KINDS)
    costs: list[Any] = [1, 1.5, 2, 3, sinksort.Huber(0.1)]
    for group in range(GROUPS):
        n = int(rng.choice([2, 3, 5, 8, 13, 25, 50, 80]))
        m = int(rng.choice([2, 3, max(n // 2, 1), n, n, 2 * n]))
        x = tensor(inputs.table(kinds, ROWS, n, seed=group))
        weighted = list(inputs.WEIGHTS)[group % 3]
        a = np.stack([inputs.WEIGHTS[weighted](rng, n) for _ in range(ROWS)])
        b = np.stack([inputs.WEIGHTS[weighted](rng, m) for _ in range(ROWS)])
        options = {
            "weights": tensor(a),
            "target_weights": tensor(b),
            "eps": tensor(10.0 ** rng.uniform(-4, 0, ROWS)),
            "cost": costs[group % 5],
            "squash": ["sigmoid", "arctan"][group % 2],
        }
        yield x, options


def test_ten_steps_for_ten_thousand_problems() -> None:
    steps, said, late = [], 0, 0
    for x, options in random_groups():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plan = sinksort.transport(x, **options)
        said += len(caught)
        ranks, sorts, P = plan.ranks(), plan.sorted(), plan.matrix()
        assert ranks.isfinite().all()
        assert sorts.isfinite().all()
        # What claims to be converged is: both marginals of the plan itself, not what the solver reported.
        off = (
            (P.sum(-1) - options["weights"])
            .abs()
            .sum(-1)
            .maximum((P.sum(-2) - options["target_weights"]).abs().sum(-1))
        )
        assert (off[plan.converged] <= 1e-9).all()
        late += int((~plan.converged).any())
        steps.append(plan.iterations)
    taken = torch.cat(steps)
    assert taken.numel() == 10_000
    assert (taken <= 10).double().mean() >= 0.99
    assert late == said  # every group with an unconverged row warned once, and no other


def test_iterations_are_those_of_each_row_alone() -> None:
    # Squashed beforehand: a mean over one row may be rounded in another way than the same mean in a batch.
    x = tensor(inputs.table(list(inputs.KINDS), 11, 9, seed=3))
    x = torch.sigmoid((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True).clamp(min=1e-30))
    together = sinksort.transport(x, eps=1e-3, squash=None).iterations
    alone = [sinksort.transport(row, eps=1e-3, squash=None).iterations.item() for row in x]
    assert together.tolist() == alone
    assert len(set(alone)) > 1  # rows do differ


@pytest.mark.filterwarnings("ignore:sinksort:RuntimeWarning")
def test_more_steps_bring_it_closer() -> None:
    """The error after k steps falls, in the end quadratically: digits double."""
    x = tensor(inputs.values("normal", 40))
    errors = []
    for limit in range(1, 6):
        solver = sinksort.Newton(tolerance=1e-15, max_iterations=limit)
        errors.append(sinksort.transport(x, eps=1e-2, solver=solver).marginal_error.item())
    assert all(later < earlier for earlier, later in pairwise(errors) if earlier > 1e-14)
    quadratic = [later <= 10 * earlier**1.7 for earlier, later in pairwise(errors) if earlier < 0.1]
    assert all(ok or later < 1e-14 for ok, later in zip(quadratic, errors[-len(quadratic) :], strict=True))


@pytest.mark.parametrize(("n", "m"), [(200, 3), (3, 200)])
def test_linear_algebra_is_done_on_the_smaller_side(n: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    factorise = torch.linalg.cholesky_ex

    def spy(matrix: torch.Tensor, **options: Any) -> Any:
        sizes.append(matrix.shape[-1])
        return factorise(matrix, **options)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", spy)
    x = tensor(inputs.values("normal", n)).requires_grad_()
    sinksort.soft_rank(x, num_targets=m, backend="torch").sum().backward()
    assert sizes
    assert set(sizes) == {3}


@pytest.mark.parametrize("eps", [1e-3, 1e-1])
def test_weightless_entries_get_the_potentials_of_the_others(eps: float) -> None:
    """Both conditionals of the plan exist where the weight is zero, and are what the weighty entries imply."""
    x = inputs.values("normal", 6, 2)
    a, b = np.array([0.2, 0.0, 0.3, 0.1, 0.4, 0.0]), np.array([0.3, 0.0, 0.5, 0.2])
    truth = oracles.solve(oracles.cost_matrix(oracles.squashed(x, a), oracles.grid(4)), a, b, eps)
    plan = sinksort.transport(tensor(x), weights=tensor(a), target_weights=tensor(b), eps=eps)
    np.testing.assert_allclose(plan.ranks().numpy(), truth.ranks(), atol=1e-8)
    np.testing.assert_allclose(plan.sorted().numpy(), truth.sorts(x), atol=1e-8)
    np.testing.assert_allclose(plan.permutation().numpy(), (truth.density * a[:, None]).T, atol=1e-8)


@pytest.mark.parametrize("n", [10, 100])
@pytest.mark.parametrize("eps", [1e-4, 1e-6])
@pytest.mark.parametrize("by", [1e-6, 1e-8, 1e-10, 1e-13])
@pytest.mark.filterwarnings("error")
def test_weights_that_differ_by_next_to_nothing(n: int, eps: float, by: float) -> None:
    """A mass that is far below all others crosses each gap; the sort is that of equal weights, but for that mass."""
    rng = np.random.default_rng(n)
    x, a = tensor(rng.standard_normal((20, n))), tensor(1 + by * rng.random((20, n)))
    plan = sinksort.transport(x, weights=a, eps=eps)
    assert plan.converged.all()
    reach = x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)
    off = (plan.sorted() - sinksort.soft_sort(x, eps=eps, backend="torch")).abs() / reach
    assert off.max() <= 2 * n * by + 1e-9


@pytest.mark.filterwarnings("error")
def test_any_weights_converge() -> None:
    """Weights over ten decades, some of them zero, beside equal ones that differ by rounding."""
    rng = np.random.default_rng(5)
    for group in range(60):
        n, m = int(rng.choice([2, 5, 13, 40])), int(rng.choice([2, 5, 13, 40]))
        x = tensor(inputs.table(list(inputs.KINDS), 40, n, seed=group))

        def some(k: int, form: int) -> np.ndarray:
            w = 10.0 ** rng.uniform(-10, 0, (40, k)) if form == 0 else rng.random((40, k)) + 0.05
            if form == 1:
                w = np.where((rng.random((40, k)) < 0.4) & (np.arange(k) > 0), 0.0, w)
            return w if form < 2 else 1 + 10.0 ** rng.uniform(-16, -3, (40, 1)) * rng.random((40, k))

        options = {"weights": tensor(some(n, group % 3)), "target_weights": tensor(some(m, group // 3 % 3))}
        eps = tensor(10.0 ** rng.uniform(-7, 0, 40))
        plan = sinksort.transport(x, **options, eps=eps, cost=[1, 1.5, 2, 3][group % 4])
        assert plan.converged.all()
