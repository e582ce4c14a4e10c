"""Small eps at large n: a plan that is a narrow band around the staircase, against the whole plan and known answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.core.solvers.start import staircase_potentials
from sinksort.linear import refine
from sinksort.linear.band.blocks import Band, Staircase, smooth_widths
from sinksort.linear.band.factor import BlockFactor
from sinksort.linear.band.plan import BandedPlan
from sinksort.linear.grid import Grid
from sinksort.linear.rules import Rule
from tests.inputs import KINDS, table, values

WHOLE = sinksort.Newton(compress=False)
SMALL = sinksort.Newton(compress=True)


@pytest.fixture
def always_banded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refine, "_BANDED", 1)


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(ours: Tensor, truth: Tensor, tolerance: float, at_least: float = 0.0) -> bool:
    """Whether rows agree, relative to their size where it is not negligible."""
    off, size = (ours.double() - truth).norm(dim=-1), truth.norm(dim=-1)
    return bool((off <= tolerance * size.clamp(min=at_least)).all())


# ---- the parts


@pytest.mark.parametrize("kind", ["normal", "tied", "few_valued", "constant", "clusters_3"])
def test_staircase_is_the_one_of_the_whole_cost_and_its_reach_leaves_nothing_out(kind: str) -> None:
    x = torch.tensor(values(kind, 90, seed=1)).sort().values
    x = (x - x[0]) / (x[-1] - x[0]).clamp(min=1.0)
    a = seeded(90).exp() * (seeded(90, seed=1) < 1.0)
    b = seeded(70, seed=2).exp()
    a, b, y = a / a.sum(), b / b.sum(), torch.linspace(0, 1, 70, dtype=torch.float64)
    stairs = Staircase.of(x, a, y, b, 1e-5)
    C = (y - x.unsqueeze(-1)).square()
    f0, g0 = staircase_potentials(C, a, b, torch.full((1, 1), 1e-18, dtype=C.dtype), True)
    torch.testing.assert_close(stairs.g0, g0, rtol=0, atol=1e-14)
    torch.testing.assert_close(stairs.f0, f0, rtol=0, atol=1e-14)
    near = (C - f0.unsqueeze(-1) - g0) / 1e-5 <= 59.9
    within = (torch.arange(70) >= stairs.low.unsqueeze(-1)) & (torch.arange(70) <= stairs.high.unsqueeze(-1))
    assert not (near & ~within).any()


@pytest.mark.parametrize(("U", "K", "overlap"), [(200, 300, 0), (50, 1000, 0), (1000, 70, 0), (300, 500, 8), (5, 3, 0)])
def test_band_holds_every_pair_within_reach_once(U: int, K: int, overlap: int) -> None:
    middle = torch.linspace(0, K - 1, U).round().long()
    low, high = (middle - 9).clamp(min=0), (middle + 6).clamp(max=K - 1)
    band = Band.around(low, high, K, overlap)
    seen = torch.zeros(U, K, dtype=torch.int64)
    for k in range(len(band.start)):
        i, j = band.sources[k][band.real_source[k]], band.targets[k][band.real_target[k]]
        seen[i.unsqueeze(-1), j] += 1
    j = torch.arange(K)
    assert (seen[(j >= low.unsqueeze(-1)) & (j <= high.unsqueeze(-1))] >= 1).all()
    if not overlap:
        assert seen.max() == 1


def test_block_factor_is_the_pseudo_inverse() -> None:
    K, W = 150, 64
    near = (torch.arange(K) - torch.arange(K).unsqueeze(-1)).abs() < W
    couplings = torch.where(near, seeded(K, K).abs(), 0.0)
    null = seeded(K, seed=1).abs() + 0.1
    couplings = (couplings + couplings.T) * null.outer(null)
    H = torch.diag((couplings @ null) / null) - couplings  # a Laplacian, scaled: H null = 0
    padded = torch.eye(3 * W, dtype=H.dtype)
    padded[:K, :K] = H
    tiles = padded.unflatten(0, (3, W)).unflatten(2, (3, W)).transpose(1, 2)
    factor = BlockFactor.of(
        torch.stack([tiles[k, k] for k in range(3)]),
        torch.stack([tiles[k + 1, k] for k in range(2)]),
        null / null.norm(),
    )
    r = seeded(K, seed=2)
    torch.testing.assert_close(factor.solve(r), torch.linalg.pinv(H, hermitian=True, rtol=1e-12) @ r)


def test_panels_are_short_where_two_groups_meet() -> None:
    half = 0.01 * torch.rand(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.cat([0.3 + half, 0.7 + half]).sort().values
    widths = smooth_widths(x, torch.full_like(x, 1e-4), 1e-6)
    edges = torch.tensor(Rule.fitted(10_000, widths, 2.0).edges)
    length = edges.diff()
    assert edges[0] == 0
    assert edges[-1] == 10_000
    assert (length > 0).all()
    assert length[torch.searchsorted(edges, 5000) - 1] == 16  # where the groups meet every target is a node
    assert length.max() > 100


# ---- against the whole plan


@pytest.mark.usefixtures("always_banded")
@pytest.mark.parametrize("eps", [1e-7, 1e-5, 1e-3])
def test_ranks_and_gradients_of_every_kind(eps: float) -> None:
    n = 300
    exact = torch.tensor(table(list(KINDS), len(KINDS), n, seed=3)).float().double().requires_grad_()
    direction = seeded(*exact.shape)
    truth = sinksort.soft_rank(exact, eps=eps, solver=WHOLE)
    (true_grad,) = torch.autograd.grad((truth * direction).sum(), exact)
    for dtype, rank_tol, grad_tol in [(torch.float64, 1e-9, 1e-6), (torch.float32, 1e-5, 1e-3)]:
        x = exact.detach().to(dtype).requires_grad_()
        plan = sinksort.smooth_transport(x, eps=eps)
        assert plan.converged.all()
        assert ((plan.ranks().double() - truth).abs().amax() / n).item() <= rank_tol
        (grad,) = torch.autograd.grad((plan.ranks().double() * direction).sum(), x)
        assert close(grad, true_grad, grad_tol, at_least=1e-6 * n)


@pytest.mark.usefixtures("always_banded")
@pytest.mark.parametrize("kind", ["normal", "clusters_2"])
def test_many_values_stand_on_a_grid(kind: str) -> None:
    n, eps = 1500, 5e-3
    exact = torch.tensor(values(kind, n)).float().double().requires_grad_()
    x = exact.detach().float().requires_grad_()
    plan = sinksort.smooth_transport(x, eps=eps)
    assert (plan.cells < n) == (kind == "normal")
    truth = sinksort.soft_rank(exact, eps=eps, solver=WHOLE)
    assert ((plan.ranks().double() - truth).abs().amax() / n).item() <= 1e-5
    assert plan.estimated_error < 5e-6
    direction = seeded(n)
    (grad,) = torch.autograd.grad((plan.ranks().double() * direction).sum(), x)
    (true_grad,) = torch.autograd.grad((truth * direction).sum(), exact)
    assert close(grad, true_grad, 1e-3)


@pytest.mark.usefixtures("always_banded")
@pytest.mark.parametrize("option", ["weights", "descending", "num_targets", "target_weights", "eps", "mask", "dim"])
def test_every_option_goes_through(option: str) -> None:
    n = 120
    x = torch.tensor(table(["normal", "tied", "clusters_2", "exponential"], 4, n, seed=5))
    options: dict[str, object] = {
        "weights": {"weights": seeded(4, n).exp() * (seeded(4, n, seed=1) < 1.0)},
        "descending": {"descending": True},
        "num_targets": {"num_targets": 400},
        "target_weights": {"target_weights": seeded(50).exp()},
        "eps": {"eps": torch.tensor([1e-6, 1e-5, 1e-4, 1e-3], dtype=torch.float64)},
        "mask": {"mask": seeded(4, n) < 0.7},
        "dim": {"dim": 0},
    }[option]  # type: ignore[assignment]
    x = x.T if option == "dim" else x
    kwargs = {"eps": 1e-4, **options}  # type: ignore[dict-item]
    ours = sinksort.soft_rank(x, solver=SMALL, **kwargs)  # type: ignore[arg-type]
    truth = sinksort.soft_rank(x, solver=WHOLE, **kwargs)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, truth, rtol=0, atol=1e-9 * n)


@pytest.mark.usefixtures("always_banded")
@pytest.mark.parametrize(("n", "eps"), [(400, 1e-5), (1050, 5e-3)])
def test_sorts_and_payloads(n: int, eps: float) -> None:
    exact = torch.tensor(table(["normal", "clusters_3"], 2, n, seed=2)).float().double().requires_grad_()
    reference = torch.linspace(-1, 1, n, dtype=torch.float64) ** 3
    direction = seeded(2, n)
    span = (exact.amax(-1, keepdim=True) - exact.amin(-1, keepdim=True)).detach()
    for operator, size in [
        (lambda x, solver: sinksort.soft_sort(x, eps=eps, solver=solver), span),
        (lambda x, solver: sinksort.quantile_normalize(x, reference.to(x.dtype), eps=eps, solver=solver), 2.0),
    ]:
        truth = operator(exact, WHOLE)
        (true_grad,) = torch.autograd.grad((truth * direction).sum(), exact)
        for dtype, tolerance, grad_tol in [(torch.float64, 1e-9, 1e-6), (torch.float32, 1e-5, 1e-3)]:
            x = exact.detach().to(dtype).requires_grad_()
            ours = operator(x, SMALL)
            assert ((ours.double() - truth).abs() <= tolerance * size).all()
            (grad,) = torch.autograd.grad((ours.double() * direction).sum(), x)
            assert close(grad, true_grad, grad_tol)


def test_a_density_is_as_rough_as_the_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate that decides how fine a grid of targets must be does not depend on how a plan is held."""
    x, grid, found = seeded(300), Grid(64, 4), []
    for banded_from in (1, 1 << 60):
        monkeypatch.setattr(refine, "_BANDED", banded_from)
        (part,) = sinksort.smooth_transport(x, eps=5e-3)._parts
        assert isinstance(part.plan, BandedPlan) == (banded_from == 1)
        found.append(part.density(grid.nodes(x)).roughness(grid))
    band, whole = found
    assert whole.amax() > 1e-7
    torch.testing.assert_close(band, whole, rtol=0.05, atol=1e-3 * whole.amax().item())


# ---- derivatives


@pytest.mark.usefixtures("always_banded")
def test_derivatives_of_every_order_mode_and_input() -> None:
    n = 24
    x, w = seeded(n), seeded(n, seed=1).exp()

    def ranks(few: Tensor, weights: Tensor, eps: Tensor) -> Tensor:
        return sinksort.soft_rank(torch.cat([few, x[3:]]), weights=weights, eps=eps, solver=SMALL)[::5]

    inputs = tuple(t.clone().requires_grad_() for t in (x[:3], w, torch.tensor(3e-3, dtype=torch.float64)))
    assert torch.autograd.gradcheck(ranks, inputs, check_forward_ad=True, eps=1e-7, atol=1e-5)
    assert torch.autograd.gradgradcheck(ranks, inputs, eps=1e-7, atol=1e-4, rtol=1e-3)


@pytest.mark.usefixtures("always_banded")
def test_derivatives_in_the_target_weights() -> None:
    x = seeded(20)

    def sorts(b: Tensor) -> Tensor:
        return sinksort.soft_sort(x, target_weights=b, eps=1e-3, solver=SMALL)

    assert torch.autograd.gradcheck(sorts, (seeded(12, seed=3).exp().requires_grad_(),), eps=1e-7, atol=1e-5)


# ---- large


def test_ranks_of_an_even_row_are_known() -> None:
    n = 20_000
    x = torch.linspace(0, 1, n, dtype=torch.float64)
    plan = sinksort.smooth_transport(x, eps=1e-8, squash=lambda u: u)
    assert isinstance(plan._parts[0].plan, BandedPlan)
    ranks, places = plan.ranks(), torch.arange(1, n + 1, dtype=torch.float64)
    torch.testing.assert_close(ranks + ranks.flip(0), torch.full_like(ranks, n + 1.0), rtol=0, atol=1e-9 * n)
    inside = slice(200, -200)  # far from both ends nothing tells left from right
    torch.testing.assert_close(ranks[inside], places[inside], rtol=0, atol=1e-9 * n)


def test_ranks_are_hard_when_eps_vanishes_and_nothing_large_is_held() -> None:
    n = 20_000
    x = seeded(n).float().double().requires_grad_()
    held: list[int] = []

    def count(t: Tensor) -> Tensor:
        held.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        ranks = sinksort.soft_rank(x, eps=1e-13)
    assert sum(held) < 1000 * n
    hard = x.detach().argsort().argsort() + 1
    apart = x.detach().sort().values.diff()
    clear = torch.nn.functional.pad(apart, (1, 1), value=1.0).unfold(0, 2, 1).amin(-1)[hard - 1] > 1e-6
    assert clear.double().mean() > 0.9
    torch.testing.assert_close(ranks.detach()[clear], hard[clear].double(), rtol=0, atol=1e-3)
    (grad,) = torch.autograd.grad(ranks.square().mean(), x)
    assert torch.isfinite(grad).all()
