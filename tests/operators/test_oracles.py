"""The oracles agree with each other: our dense solver with POT, our closed-form derivatives with finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from tests import inputs, oracles


@pytest.mark.parametrize("eps", [1e-2, 1e-1, 1.0])
@pytest.mark.parametrize(("n", "m"), [(6, 6), (10, 4), (5, 9)])
@pytest.mark.parametrize("method", ["sinkhorn", "sinkhorn_log"])
def test_dense_solver_agrees_with_pot(n: int, m: int, eps: float, method: str) -> None:
    x, a, b = inputs.values("normal", n, 1), inputs.weights("random", n, 2), inputs.weights("random", m, 3)
    C = oracles.cost_matrix(oracles.squashed(x, a), oracles.grid(m))
    np.testing.assert_allclose(oracles.solve(C, a, b, eps).P, oracles.pot_plan(C, a, b, eps, method), atol=1e-10)


def test_certificate_rejects_a_wrong_plan() -> None:
    n, eps = 6, 1e-2
    x, a = inputs.values("normal", n), np.full(n, 1 / n)
    truth = oracles.solve(oracles.cost_matrix(oracles.squashed(x), oracles.grid(n)), a, a, eps)
    assert truth.certificate() < 1e-13
    wrong = oracles.certificate(truth.C, a, a, eps, truth.f, truth.g + 1e-6 * np.arange(n))
    assert 1e-7 < wrong < 1e-3


def test_truth_of_weightless_entries_is_the_limit_of_tiny_weights() -> None:
    x, b = inputs.values("normal", 5, 4), inputs.weights("random", 4, 5)
    a = np.array([0.3, 0.0, 0.2, 0.4, 0.1])
    tiny = np.where(a == 0, 1e-12, a)
    C = oracles.cost_matrix(oracles.squashed(x, a), oracles.grid(4))
    np.testing.assert_allclose(oracles.solve(C, a, b, 0.05).ranks(), oracles.solve(C, tiny, b, 0.05).ranks(), atol=1e-9)


def test_closed_form_derivatives_agree_with_differences() -> None:
    n, m, eps = 6, 5, 0.05
    rng = np.random.default_rng(0)
    x = inputs.values("uniform", n, 1)
    a, b, v, w = inputs.weights("random", n, 2), inputs.weights("random", m, 3), rng.random(n), rng.random(m)
    C = oracles.cost_matrix(x, oracles.grid(m))
    truth = oracles.solve(C, a, b, eps)

    grad_C, grad_a, grad_b = oracles.rank_vjp(truth, v)
    numeric = oracles.central_difference(lambda C: float(v @ oracles.solve(C, a, b, eps).ranks()), C)
    np.testing.assert_allclose(grad_C, numeric, atol=1e-6)

    # The oracle normalises its weights, so compare along directions that keep their sum.
    along_a, along_b = rng.standard_normal(n), rng.standard_normal(m)
    along_a, along_b = along_a - along_a.mean(), along_b - along_b.mean()

    def moved(ta: float, tb: float) -> float:
        return float(v @ oracles.solve(C, a + ta * along_a, b + tb * along_b, eps).ranks())

    numeric = oracles.central_difference(lambda t: moved(t[0], t[1]), np.zeros(2))
    np.testing.assert_allclose([grad_a @ along_a, grad_b @ along_b], numeric, atol=1e-6)

    sort_grad_C, _ = oracles.sort_vjp(truth, x, w)
    numeric = oracles.central_difference(lambda C: float(w @ oracles.solve(C, a, b, eps).sorts(x)), C)
    np.testing.assert_allclose(sort_grad_C, numeric, atol=1e-6)
