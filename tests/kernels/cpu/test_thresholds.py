"""Two targets on the CPU, at every eps: masks and their gradients against ``tests.masks``."""

import math

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.kernels import autograd
from sinksort.kernels.contract import Request
from sinksort.kernels.dispatch import kernels_named
from sinksort.kernels.requests.targets import membership_targets
from tests.masks import true_mask

numba_rows = pytest.importorskip("sinksort.kernels.cpu.rows")

REFERENCE = sinksort.Newton(compress=False)
KINDS = (
    "normal",
    "ties",
    "few values",
    "rounded to bfloat16",
    "outlier",
    "constant",
    "heavy tails",
    "clusters",
    "huge",
)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs(kind: str, R: int, n: int, seed: int) -> Tensor:
    x = torch.randn(R, n, generator=generator(seed))
    if kind == "outlier":
        x[:, 0] = 1e3
    return {
        "ties": (3.0 * x).round(),
        "few values": x.round().clamp(-1, 1),
        "rounded to bfloat16": x.bfloat16().float(),
        "constant": torch.full_like(x, 3.7),
        "heavy tails": x / torch.randn(R, n, generator=generator(seed + 1)),
        "clusters": 1e-3 * x + 5.0 * (torch.arange(n) % 2),
        "huge": 1e20 * x,
    }.get(kind, x)


def assert_right(x: Tensor, k: float, eps: float, seed: int, squash: str | None = "sigmoid",
                 weights: Tensor | None = None, largest: bool = True) -> None:  # fmt: skip
    """Answers to 1e-5, gradients to 1e-3 of the largest of their row, however small that is."""
    ours, truth = x.clone().requires_grad_(), x.double().requires_grad_()
    w = torch.randn(x.shape, generator=generator(seed))
    options = {"eps": eps, "squash": squash, "weights": weights, "largest": largest}
    out = sinksort.soft_topk_mask(ours, k, backend="numba", **options)
    jit = true_mask(truth, k, **options)
    assert ((out - jit).abs() <= 1e-5).all()
    (grad,), (true_grad,) = torch.autograd.grad(out, ours, w), torch.autograd.grad(jit, truth, w.double())
    of_places = 2 / eps * (1.0 if squash is None else 1 / x.double().std(-1, keepdim=True).clamp(min=1e-3))
    largest_of_row = true_grad.abs().amax(-1, keepdim=True)
    assert ((grad - true_grad).abs() <= 1e-3 * largest_of_row + 1e-14 * of_places).all()


@pytest.mark.parametrize("n", [2, 7, 21, 257, 2048])
@pytest.mark.parametrize("kind", KINDS)
def test_sharp_masks_and_their_gradients(kind: str, n: int) -> None:
    for seed, k in enumerate((1, n - 1, n // 2, 0.3, n / 2 + 0.123, n // 3 + 1e-6, n - 0.01)):
        for eps in (4e-3, 1e-3, 1e-4):
            assert_right(inputs(kind, 3, n, seed), k, eps, seed, largest=seed % 2 == 0)


@pytest.mark.parametrize("n", [33, 1000, 5000])
def test_soft_masks(n: int) -> None:
    for seed, kind in enumerate(KINDS):
        for eps in (10.0, 0.3, 1e-2):
            assert_right(inputs(kind, 3, n, seed), n / 3, eps, seed)


@pytest.mark.parametrize("n", [2, 9, 100])
@pytest.mark.parametrize("squash", ["arctan", None])
def test_other_squashes(squash: str | None, n: int) -> None:
    for seed, kind in enumerate(KINDS):
        x = inputs(kind, 3, n, seed)
        if squash is None:
            x = (x - x.amin(-1, keepdim=True)) / (x.amax() - x.amin()).clamp(min=1.0)
        for eps in (1e-3, 1e-4):
            assert_right(x, n // 2, eps, seed, squash=squash)


@pytest.mark.parametrize("n", [5, 20, 300])
def test_weights(n: int) -> None:
    """Whole ones, of which some are zero, can add up to b exactly; a value that weighs 1e-6 is told apart as well."""
    for seed, kind in enumerate(KINDS):
        whole = torch.randint(0, 4, (3, n), generator=generator(seed)).float()
        whole[:, 0] = 1.0
        uneven = torch.rand(3, n, generator=generator(seed))
        uneven[:, 1] = 1e-6
        for eps in (1e-3, 1e-4):
            for a in (whole, uneven):
                assert_right(inputs(kind, 3, n, seed), n // 2, eps, seed, weights=a)


def test_of_two_values_the_answer_is_known() -> None:
    """k = 1 of u and v: tau is between them, and p = sigmoid((v - u) / eps), down to shares of 1e-24."""
    gap, eps = torch.tensor([0.0, 1e-6, 1e-4, 1e-3, 5e-3, 0.011], dtype=torch.float64), 2e-4
    x = torch.stack([0.25 + torch.zeros_like(gap), 0.25 + gap], dim=-1).float().requires_grad_()
    out = sinksort.soft_topk_mask(x, 1, eps=eps, squash=None, backend="numba")
    z = (x[:, 1].double() - x[:, 0].double()).detach() / eps
    torch.testing.assert_close(out.double(), torch.stack([torch.sigmoid(-z), torch.sigmoid(z)], -1), rtol=2e-5, atol=0)
    (grad,) = torch.autograd.grad(out[:, 0].sum(), x)
    slope = torch.sigmoid(z) * torch.sigmoid(-z) / eps
    torch.testing.assert_close(grad.double(), torch.stack([slope, -slope], -1), rtol=2e-5, atol=0)


def test_what_is_not_among_the_largest_is_among_the_smallest() -> None:
    x = inputs("normal", 5, 90, 0).requires_grad_()
    w = torch.randn(5, 90, generator=generator(1))
    top, rest = (sinksort.soft_topk_mask(x, k, eps=1e-3, largest=k == 7, backend="numba") for k in (7, 83))
    torch.testing.assert_close(top + rest, torch.ones(5, 90))
    (up,), (down,) = torch.autograd.grad(top, x, w), torch.autograd.grad(rest, x, w)
    torch.testing.assert_close(up, -down, rtol=1e-4, atol=1e-12)


def test_none_and_all() -> None:
    x = inputs("normal", 3, 50, 0).requires_grad_()
    for k, answer in ((0, 0.0), (50, 1.0)):
        out = sinksort.soft_topk_mask(x, k, eps=1e-3, backend="numba")
        torch.testing.assert_close(out, torch.full_like(out, answer))
        assert torch.autograd.grad(out.square().sum(), x)[0].abs().max() < 1e-12


@pytest.mark.parametrize("n", [2, 13, 400])
@pytest.mark.parametrize("kind", ["normal", "ties", "outlier", "constant", "huge"])
def test_averages_over_two_targets(kind: str, n: int) -> None:
    """The largest value and the mean of the rest, and a sort on two targets."""
    calls = (
        lambda x, **o: sinksort.soft_topk(x, 1, **o).values,
        lambda x, **o: sinksort.soft_sort(x, num_targets=2, **o),
    )
    for seed, eps in enumerate((1e-1, 1e-3, 1e-4)):
        for call in calls:
            x = inputs(kind, 3, n, seed)
            ours, truth = x.clone().requires_grad_(), x.double().requires_grad_()
            out, jit = call(ours, eps=eps, backend="numba"), call(truth, eps=eps, solver=REFERENCE)
            assert ((out - jit).abs() <= 1e-5 * x.abs().amax(-1, keepdim=True)).all()
            w = torch.randn(out.shape, generator=generator(seed))
            (grad,), (true_grad,) = torch.autograd.grad(out, ours, w), torch.autograd.grad(jit, truth, w.double())
            assert ((grad - true_grad).abs() <= 1e-3 * true_grad.abs().amax(-1, keepdim=True)).all()


def test_averages_of_infinite_values_are_infinite() -> None:
    x = inputs("normal", 4, 100, 0)
    x[0, 3], x[1, 5], x[2, 7], x[2, 8] = math.inf, -math.inf, math.inf, -math.inf
    x.requires_grad_()
    out = sinksort.soft_sort(x, num_targets=2, eps=1e-4, backend="numba")
    assert (out[0] == math.inf).all()
    assert (out[1] == -math.inf).all()
    assert out[2].isnan().all()
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert (grad[:3] == 0).all()  # nothing moves what is infinite
    assert grad[3].isfinite().all()
    assert (grad[3] != 0).any()


def test_long_rows_take_them_up_to_a_piece() -> None:
    at = membership_targets(0.5, True, torch.device("cpu"))

    def kernels(n: int) -> str:
        return kernels_named("numba", Request(torch.empty(1, n), None, at.y, at.b, 1e-3, "sigmoid")).__name__

    assert kernels(1 << 15) == "sinksort.kernels.cpu.rows"
    assert kernels((1 << 15) + 1) == "sinksort.kernels.cpu.long"


@pytest.mark.parametrize(("n", "eps"), [(12, 1e-3), (12, 1e-2), (40, 1e-2)])
def test_compilers_see_the_right_shapes(n: int, eps: float) -> None:
    x = inputs("normal", 3, n, 0).requires_grad_()
    at = membership_targets(5 / n, True, x.device)
    request = autograd._flat(Request(x, None, at.y, at.b, eps, "sigmoid"))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(autograd._read_op, (*request, at.phi, "pull", "numba"), test_utils=checks)
