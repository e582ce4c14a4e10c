"""Which costs make ranks hard as eps goes to 0: strictly convex ones do, cost 1 does not."""

from __future__ import annotations

import pytest
import torch

import sinksort


@pytest.mark.parametrize("eps", [1.0, 1e-2, 1e-6])
def test_two_values_that_travel_one_way_share_a_rank_under_cost_1(eps: float) -> None:
    """By hand: |y_j - x_i| = y_j - x_i is a sum of two potentials, so the plan is a b^T for every eps."""
    x, y = torch.tensor([0.1, 0.0], dtype=torch.float64), torch.tensor([0.5, 1.0], dtype=torch.float64)
    for solver in (sinksort.Newton(), sinksort.Newton(tolerance=1e-11)):  # kernels, where they are, and the reference
        ranks = sinksort.soft_rank(x, targets=y, squash=None, cost=1, eps=eps, solver=solver)
        torch.testing.assert_close(ranks, torch.full_like(x, 1.5), rtol=0, atol=1e-9)
    # The same beyond delta for Huber's cost; within delta it is strictly convex.
    far = sinksort.soft_rank(x, targets=y, squash=None, cost=sinksort.Huber(0.2), eps=eps)
    torch.testing.assert_close(far, torch.full_like(x, 1.5), rtol=0, atol=1e-9)


@pytest.mark.parametrize("cost", [1.5, 2, 3, sinksort.Huber(2.0)], ids=str)
def test_strictly_convex_costs_sort_them(cost: float) -> None:
    x, y = torch.tensor([0.1, 0.0], dtype=torch.float64), torch.tensor([0.5, 1.0], dtype=torch.float64)
    ranks = sinksort.soft_rank(x, targets=y, squash=None, cost=cost, eps=1e-4)
    torch.testing.assert_close(ranks, torch.tensor([2.0, 1.0], dtype=torch.float64), rtol=0, atol=1e-6)


def test_ranks_of_cost_1_stay_away_from_the_hard_ones() -> None:
    """100 normal values: the distance stops falling for cost 1, and goes on falling for strictly convex costs."""
    x = torch.randn(3, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hard = sinksort.kantorovich_rank(x)

    def away(cost: float, eps: float) -> float:
        return (sinksort.soft_rank(x, cost=cost, eps=eps) - hard).abs().mean().item()

    along = [away(1, eps) for eps in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)]
    assert all(1.5 < distance < 3.0 for distance in along)
    assert max(along) - min(along) < 0.2
    for cost in (1.5, 2):
        along = [away(cost, eps) for eps in (1e-2, 1e-4, 1e-6)]
        assert along[0] > 2 * along[1] > 4 * along[2]
        assert along[2] < 0.05
