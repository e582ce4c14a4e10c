"""A grid in place of the values: every read-out, every option and every kind of input against the dense plan."""

from __future__ import annotations

import functools
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import sinksort
from sinksort.linear.grid import Grid
from sinksort.linear.streamed import Streamed
from tests.inputs import KINDS, table

DENSE = sinksort.Newton(compress=False)
SMALL = sinksort.Newton(compress=True)  # a small problem wherever its answer can be checked
N = 1000


def row_of_every_kind(n: int) -> torch.Tensor:
    return torch.tensor(table(list(KINDS), len(KINDS), n, seed=4)).float().double()


class Truth(NamedTuple):
    """What the dense plan of these rows in float64 says, for a gradient's direction and a sorted reference."""

    direction: torch.Tensor
    reference: torch.Tensor
    ranks: torch.Tensor
    sorted: torch.Tensor
    normalized: torch.Tensor
    rank_grad: torch.Tensor
    sort_grad: torch.Tensor


def truth(rows: torch.Tensor, eps: float) -> Truth:
    """Row by row, which takes half as long, and read-outs only: the plans themselves would fill gigabytes."""
    directions = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    reference = (
        torch.randn(rows.shape[-1], generator=torch.Generator().manual_seed(1), dtype=torch.float64).sort().values
    )
    said = []
    for row, v in zip(rows, directions, strict=True):
        x = row.clone().requires_grad_()
        plan = sinksort.transport(x, eps=eps, solver=DENSE)
        ranks, sorted_x, normalized = plan.ranks(), plan.sorted(), plan.pull(reference)
        (rank_grad,) = torch.autograd.grad((ranks * v).sum(), x, retain_graph=True)
        (sort_grad,) = torch.autograd.grad((sorted_x * v).sum(), x)
        said.append((ranks.detach(), sorted_x.detach(), normalized.detach(), rank_grad, sort_grad))
    return Truth(directions, reference, *(torch.stack(of_rows) for of_rows in zip(*said, strict=True)))


def close_in_every_row(ours: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor | float, tolerance: float) -> None:
    off = ((ours.double() - exact).abs() / scale).detach().amax(-1)
    assert (off <= tolerance).all(), dict(zip(KINDS, off.tolist(), strict=True))


# In the middle, rows stand on grids of 240 to 480 cells if they have more than twice as many values.
@pytest.mark.parametrize(("eps", "n"), [(1.0, 600), (1e-2, N), (1e-3, 600)])
def test_read_outs_and_gradients_of_every_kind(eps: float, n: int) -> None:
    rows = row_of_every_kind(n)
    exact = truth(rows, eps)
    span = (rows.amax(-1, keepdim=True) - rows.amin(-1, keepdim=True)).clamp(min=0.1)  # a constant row
    for dtype, tolerance, slack in [(torch.float64, 1e-9, 1e-6), (torch.float32, 1e-5, 1e-3)]:
        x = rows.to(dtype).requires_grad_()
        ranks, sorted_x = sinksort.soft_rank(x, eps=eps, solver=SMALL), sinksort.soft_sort(x, eps=eps, solver=SMALL)
        close_in_every_row(ranks, exact.ranks, n, tolerance)
        close_in_every_row(sorted_x, exact.sorted, span, max(tolerance, 1e-6 if dtype == torch.float32 else 0.0))
        normal = sinksort.quantile_normalize(x, exact.reference, eps=eps, solver=SMALL)
        close_in_every_row(normal, exact.normalized, 6.0, tolerance)

        for ours, true_grad in ((ranks, exact.rank_grad), (sorted_x, exact.sort_grad)):
            (grad,) = torch.autograd.grad((ours.double() * exact.direction).sum(), x)
            off, size = (grad.double() - true_grad).norm(dim=-1), true_grad.norm(dim=-1)
            assert (off <= slack * size.clamp(min=1e-6 * n)).all(), dict(zip(KINDS, (off / size).tolist(), strict=True))


@pytest.mark.parametrize("eps", [0.1, 1e-2])
def test_quantiles_and_top_k_of_every_kind(eps: float) -> None:
    x = row_of_every_kind(1100)
    q = [0.9, 0.0, 0.5, 1.0, 0.5]
    span = (x.amax(-1) - x.amin(-1)).clamp(min=0.1)  # a constant row
    ours = sinksort.soft_quantile(x, q, eps=eps, width=0.02, solver=SMALL)
    exact = sinksort.soft_quantile(x, q, eps=eps, width=0.02, solver=DENSE)
    assert ((ours - exact).abs() <= 1e-9 * span).all()
    mask = sinksort.soft_topk_mask(x, 150.5, eps=eps, solver=SMALL)
    torch.testing.assert_close(mask, sinksort.soft_topk_mask(x, 150.5, eps=eps, solver=DENSE), rtol=0, atol=1e-9)
    torch.testing.assert_close(mask.sum(-1), torch.full((len(x),), 150.5, dtype=x.dtype), rtol=0, atol=1e-6)
    few = sinksort.soft_topk(x, 5, eps=eps, solver=SMALL).values
    assert ((few - sinksort.soft_topk(x, 5, eps=eps, solver=DENSE).values).abs() <= 1e-9 * span.unsqueeze(-1)).all()


def padded(x: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of x among padding, and where they are."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(len(x), x.shape[1] + 300, dtype=torch.bool)
    for row in mask:
        row[torch.randperm(len(row), generator=generator)[: x.shape[1]]] = True
    wide = torch.full(mask.shape, torch.nan, dtype=x.dtype)
    return wide.masked_scatter(mask, x), mask


OPTIONS = {
    "weights": lambda x: {"weights": torch.rand(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)},
    "some weights zero": lambda x: {"weights": (torch.arange(x.shape[-1]) % 3 > 0).to(x.dtype)},
    "descending": lambda x: {"descending": True},
    "num_targets": lambda x: {"num_targets": 7 * x.shape[-1] // 11},
    "three targets": lambda x: {"target_weights": torch.tensor([0.2, 0.5, 0.3], dtype=x.dtype)},
    "own targets": lambda x: {"targets": torch.tensor([-0.3, 0.1, 0.9, 1.5], dtype=x.dtype)},
    "eps a row": lambda x: {"eps": torch.linspace(0.02, 0.3, len(x), dtype=x.dtype)},
    "arctan": lambda x: {"squash": "arctan"},
    "no squash": lambda x: {"squash": None},
    "callable": lambda x: {"squash": lambda t: torch.tanh(t / 3)},
}
FINE = {"own targets", "no squash"}  # their grids are so fine that fewer than N values would not stand on one


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option(option: str) -> None:
    n = N if option in FINE else 520
    x = torch.tensor(table(["normal", "exponential", "tied", "clusters_3"], 4, n, seed=6)).requires_grad_()
    options = {"eps": 0.05, **OPTIONS[option](x.detach())}
    span = (x.amax() - x.amin()).item()
    plan = sinksort.transport(x, solver=DENSE, **options)
    for operator, exact, scale in (
        (sinksort.soft_rank, plan.ranks(), float(n)),
        (sinksort.soft_sort, plan.sorted(), span),
    ):
        ours = operator(x, solver=SMALL, **options)
        torch.testing.assert_close(ours / scale, exact / scale, rtol=0, atol=2e-9)
        v = torch.linspace(-1, 1, ours.shape[-1], dtype=x.dtype)
        (ours_grad,) = torch.autograd.grad((ours / scale * v).sum(), x)
        (exact_grad,) = torch.autograd.grad((exact / scale * v).sum(), x, retain_graph=True)
        assert (ours_grad - exact_grad).norm() <= 1e-6 * exact_grad.norm()


@functools.lru_cache
def without_padding(descending: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two rows, their ranks and their sorted values."""
    x = torch.tensor(table(["normal", "heavy_tailed"], 2, N, seed=7))
    plan = sinksort.transport(x, descending=descending, eps=0.05, solver=DENSE)
    return x, plan.ranks(), plan.sorted()


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("operator", [sinksort.soft_rank, sinksort.soft_sort], ids=["rank", "sort"])
def test_padding_is_not_there(operator: object, descending: bool) -> None:
    x, ranks, sorted_x = without_padding(descending)
    wide, mask = padded(x)
    wide = torch.cat([wide, torch.full_like(wide[:1], torch.nan)])  # and a row with nothing in it
    mask = torch.cat([mask, torch.zeros_like(mask[:1])])
    ours = operator(wide, mask=mask, descending=descending, eps=0.05, solver=SMALL)  # type: ignore[operator]
    exact = ranks if operator is sinksort.soft_rank else sorted_x
    assert (ours[2] == 0).all()
    scale = (x.amax() - x.amin()).item() if operator is sinksort.soft_sort else float(N)
    if operator is sinksort.soft_rank:
        assert (ours[~mask] == 0).all()
        ours = ours[:2][mask[:2]].reshape(2, -1)
    else:
        assert (ours[:, N:] == 0).all()
        ours = ours[:2, :N]
    torch.testing.assert_close(ours / scale, exact / scale, rtol=0, atol=2e-9)


def test_strange_rows_stay_alone() -> None:
    x = torch.randn(4, N, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    whole = sinksort.soft_rank(x, solver=SMALL), sinksort.soft_sort(x, solver=SMALL)
    x[1, 5], x[2, 6], x[3] = torch.nan, torch.inf, 3.0
    ranks, sorted_x = sinksort.soft_rank(x, solver=SMALL), sinksort.soft_sort(x, solver=SMALL)
    torch.testing.assert_close(ranks[0], whole[0][0], rtol=0, atol=1e-6)
    assert ranks[1].isnan().all()
    assert sorted_x[1].isnan().all()
    torch.testing.assert_close(ranks[2], sinksort.soft_rank(x[2], solver=DENSE), rtol=0, atol=1e-6)
    assert sorted_x[2].isinf().all()
    torch.testing.assert_close(ranks[3], torch.full((N,), (N + 1) / 2, dtype=x.dtype), rtol=0, atol=1e-6)
    torch.testing.assert_close(sorted_x[3], x[3], rtol=0, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    seed=st.integers(0, 10_000),
    eps=st.floats(-2.5, 1.0).map(lambda e: 10.0**e),
    n=st.integers(980, 1100),
    descending=st.booleans(),
)
def test_ranks_of_anything(kind: str, seed: int, eps: float, n: int, descending: bool) -> None:
    x = torch.tensor(table([kind], 1, n, seed=seed))[0]
    ours = sinksort.soft_rank(x.float(), eps=eps, descending=descending, solver=SMALL)
    exact = sinksort.soft_rank(x.float().double(), eps=eps, descending=descending, solver=DENSE)
    assert (ours.double() - exact).abs().max() <= 1e-5 * n


@pytest.mark.parametrize("squash", ["sigmoid", "arctan"])
def test_streamed_places_to_second_order(squash: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(2, 6, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    coef = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64).requires_grad_()

    def moments(x: torch.Tensor, w: torch.Tensor | None) -> torch.Tensor:
        return Streamed.of(x, squash).moments(w, 5, 4)  # type: ignore[union-attr]

    def evaluate(x: torch.Tensor, coef: torch.Tensor) -> torch.Tensor:
        return Streamed.of(x, squash).evaluate(coef)  # type: ignore[union-attr]

    for f, inputs in ((moments, (x, w)), (lambda x: moments(x, None), (x,)), (evaluate, (x, coef))):
        assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, inputs)


def test_ranks_to_second_order_and_forward() -> None:
    x = torch.randn(N, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def of(first: torch.Tensor, solver: sinksort.Newton) -> torch.Tensor:
        return sinksort.soft_rank(torch.cat([first, x[3:]]), eps=0.1, solver=solver)[:3] / N

    head = x[:3].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: of(t, SMALL), (head,), check_forward_ad=True)
    second = [
        torch.autograd.functional.hessian(lambda t, s=s: of(t, s).square().sum(), head.detach()) for s in (SMALL, DENSE)
    ]
    torch.testing.assert_close(second[0], second[1], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("points", [4, 6, 8])
def test_grid_sums_and_reads_polynomials_exactly(points: int) -> None:
    grid = Grid(7, points)
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.rand(2, 50, generator=generator, dtype=torch.float64) for _ in range(2))
    for degree in range(points):
        at_nodes = (grid.nodes(x) - 0.3) ** degree
        torch.testing.assert_close(grid.read(x, at_nodes.expand(2, -1)), (x - 0.3) ** degree, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close((grid.masses(x, w) * at_nodes).sum(-1), (w * (x - 0.3) ** degree).sum(-1))


def test_grid_error_is_seen() -> None:
    x = torch.rand(1, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for points in (4, 6, 8):
        for cells in (20, 40):
            grid = Grid(cells, points)
            at_nodes = torch.sin(9 * grid.nodes(x)).unsqueeze(0)
            error = (grid.read(x, at_nodes) - torch.sin(9 * x)).abs().max()
            assert 0.5 * error <= grid.remainder(at_nodes).max() <= 2 * error


def test_the_choice_can_be_seen_and_forced() -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    plan = sinksort.smooth_transport(x, eps=1e-2)
    assert plan.nodes < 100
    assert plan.cells < 2000
    assert plan.estimated_error <= 5e-6
    assert plan.converged
    assert plan.iterations >= 1
    assert plan.marginal_error < 1e-9
    torch.testing.assert_close(plan.ranks(), sinksort.soft_rank(x), rtol=0, atol=0.05)
    small = sinksort.smooth_transport(x[:50], eps=1e-2)  # too few: every value stands for itself
    assert small.cells == small.nodes == 50
    assert small.estimated_error == 0


def test_memory_is_linear() -> None:
    n = 200_000
    x = torch.randn(n, generator=torch.Generator().manual_seed(0), requires_grad=True)
    held: list[int] = []

    def count(t: torch.Tensor) -> torch.Tensor:
        held.append(t.numel() * t.element_size() if t.numel() >= n else 0)
        return t

    with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        ranks = sinksort.soft_rank(x)
    assert sum(held) <= 4 * 4 * n  # x itself, once for each of the functions that need it
    ranks.square().mean().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


def test_inference_mode_leaves_nothing_behind() -> None:
    x = torch.randn(700, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with torch.inference_mode():
        first = sinksort.soft_rank(x, eps=0.07)
    second = sinksort.soft_rank(x, eps=0.07)
    torch.testing.assert_close(first, second.detach())
    second.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_goes_in_and_out(dtype: torch.dtype) -> None:
    x = torch.randn(N, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    exact_x = x.detach().double().requires_grad_()
    v = torch.randn(N, generator=torch.Generator().manual_seed(1))
    ranks, exact = sinksort.soft_rank(x, solver=SMALL), sinksort.soft_rank(exact_x, solver=DENSE)
    assert ranks.dtype == dtype
    torch.testing.assert_close(ranks, exact.to(dtype))
    (grad,), (true_grad,) = (
        torch.autograd.grad((r.double() * v).sum(), of) for r, of in ((ranks, x), (exact, exact_x))
    )
    assert grad.dtype == dtype
    unit = torch.finfo(dtype).eps
    assert (grad.double() - true_grad).norm() <= unit * true_grad.norm()
