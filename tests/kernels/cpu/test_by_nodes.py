"""Sorted values read between the nodes of a rule, against all targets in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.linear.rules import MOST_READABLE, gauss_rule, interpolation

pytest.importorskip("numba")
from sinksort.kernels import autograd
from sinksort.kernels.cpu import by_nodes

KINDS = ["normal", "uniform", "relu", "lognormal", "outlier", "clusters", "heavy", "even", "sorted", "constant"]


def rows(kind: str, count: int, n: int) -> Tensor:
    g = torch.Generator().manual_seed(n + len(kind))
    x = torch.randn(count, n, generator=g)
    if kind == "uniform":
        return torch.rand(count, n, generator=g)
    if kind == "outlier":
        x[:, 3] = 50.0
    if kind == "constant":
        x[:] = 2.5
    if kind == "even":
        return torch.arange(n, dtype=torch.float32).expand(count, n).contiguous()
    changed = {
        "relu": lambda: x.clamp(min=0.0),
        "lognormal": x.exp,
        "clusters": lambda: 0.05 * x + 3.0 * torch.randint(0, 3, (count, n), generator=g),
        "heavy": lambda: x / torch.randn(count, n, generator=g).abs().clamp(min=1e-3),
        "sorted": lambda: x.sort(-1).values,
    }
    return changed[kind]() if kind in changed else x


def check(x: Tensor, **options: object) -> None:
    """Values to 1e-5 of the range, and the rounding of the answer; gradients to 1e-3 of the largest of the row."""
    wide = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in options.items()}
    true = x.double().requires_grad_()
    expected = sinksort.soft_sort(true, **wide)  # type: ignore[arg-type]
    c = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5))
    (wanted,) = torch.autograd.grad(expected, true, c.double())
    ours = x.clone().requires_grad_()
    found = sinksort.soft_sort(ours, **options)  # type: ignore[arg-type]
    assert sinksort.last_backend() == "numba"
    (grad,) = torch.autograd.grad(found, ours, c)
    span = x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)
    rounding = 2e-7 * x.abs().amax(-1, keepdim=True)
    assert ((found - expected).abs() <= 1e-5 * span + rounding).all()
    largest = wanted.abs().amax(-1, keepdim=True)
    assert ((grad - wanted).abs() <= 1e-3 * largest + 1e-9).all()


# ---- the matrices


@pytest.mark.parametrize(("m", "K"), [(100, 56), (1000, 128), (1000, 200), (5000, 56), (30_001, 128), (200_000, 56)])
def test_reading_is_exact_for_polynomials_and_for_what_is_smooth(m: int, K: int) -> None:
    nodes, _, _ = gauss_rule(m, K)
    t = np.arange(m) / (m - 1)
    for f in (lambda y: y**5 - 2.0 * y, lambda y: np.cos(0.5 * K * y), lambda y: 1.0 / (1.0 + (4.0 * y - 2.0) ** 2)):
        z = torch.from_numpy(f(nodes / (m - 1)))[None].float()
        read = by_nodes.read(torch.cat([z, -z]), m)
        assert read.shape == (2, m)
        np.testing.assert_allclose(read[0].numpy(), f(t), rtol=0, atol=3e-6)
        assert read[1].equal(-read[0])


@pytest.mark.parametrize(("m", "K"), [(100, 56), (30_001, 56), (3000, 128)])
def test_the_way_back_is_the_transposed(m: int, K: int) -> None:
    g = torch.Generator().manual_seed(m)
    z, c = torch.randn(3, K, generator=g), torch.randn(3, m, generator=g)
    left = (by_nodes.read(z, m).double() * c).sum(-1)
    right = (z.double() * by_nodes.read_backward(c, K)).sum(-1)
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-3)


def test_polynomials_are_small_at_all_targets_up_to_the_most_nodes() -> None:
    for m in (60, 300, 2000):
        K = min(int(MOST_READABLE * math.sqrt(m)), m * 3 // 4)
        assert np.abs(interpolation(m, K, np.arange(m, dtype=float))).sum(0).max() < 12.0


# ---- sorts


@pytest.mark.parametrize("eps", [1e-2, 1e-3])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_moderate_length(kind: str, eps: float) -> None:
    check(rows(kind, 19, 100), eps=eps)  # sixteen at a time, and three


@pytest.mark.parametrize(("n", "eps"), [(700, 1e-2), (1000, 1e-3), (3000, 1e-2)])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_one_at_a_time(kind: str, n: int, eps: float) -> None:
    check(rows(kind, 2, n), eps=eps)


@pytest.mark.parametrize("eps", [1e-2, 1e-3])
@pytest.mark.parametrize("kind", ["normal", "uniform", "relu", "outlier", "heavy"])
def test_rows_in_pieces(kind: str, eps: float) -> None:
    check(rows(kind, 1, 40_000), eps=eps)


@pytest.mark.parametrize("n", [1000, 5000, 20_000])
def test_options(n: int) -> None:
    x = rows("normal", 2, n)
    weights = torch.rand(2, n, generator=torch.Generator().manual_seed(1)) + 0.1
    check(x, eps=1e-2, weights=weights)
    check(x, eps=1e-2, descending=True, squash="arctan")
    check(x, eps=3e-3, num_targets=300)
    check(x, eps=3e-3, num_targets=40)
    check(x, eps=1e-2, num_targets=2 * n)
    check(x, eps=1e-1, squash=None)
    check(x, eps=1e-2, mask=x > -1.0)


def test_a_tail_of_weightless_values_changes_nothing() -> None:
    x = rows("normal", 1, 20_000)
    weights = torch.ones(1, 20_000)
    weights[:, 15_000:] = 0.0
    found = sinksort.soft_sort(x, weights=weights, num_targets=15_000, eps=1e-2)
    torch.testing.assert_close(found, sinksort.soft_sort(x[:, :15_000], eps=1e-2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("n", [100, 1000, 20_000])
def test_rows_with_nan_and_infinities(n: int) -> None:
    x = rows("normal", 18, n) if n == 100 else rows("normal", 3, n)
    clean = sinksort.soft_sort(x, eps=1e-2)
    spoilt = x.clone()
    spoilt[0, 5], spoilt[1, 7] = math.nan, math.inf
    spoilt.requires_grad_()
    found = sinksort.soft_sort(spoilt, eps=1e-2)
    (grad,) = torch.autograd.grad(found[2:].sum() + found[1].nan_to_num(0.0, 0.0, 0.0).sum(), spoilt)
    assert found[0].isnan().all()
    assert (found[1] == math.inf).all()
    torch.testing.assert_close(found[2:], clean[2:], rtol=0, atol=2e-6)
    assert grad[2:].isfinite().all()


def test_far_and_large_rows_keep_their_digits() -> None:
    x = rows("normal", 2, 3000)
    plain = sinksort.soft_sort(x, eps=1e-2)
    torch.testing.assert_close(sinksort.soft_sort(1e30 * x, eps=1e-2) / 1e30, plain, rtol=0, atol=1e-5)
    far = x + 1e4
    torch.testing.assert_close(
        sinksort.soft_sort(far, eps=1e-2).double() - 1e4,
        sinksort.soft_sort(far.double() - 1e4, eps=1e-2),
        rtol=0,
        atol=2e-3,
    )


def test_rows_that_a_rule_rejects_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters need all targets, a step more nodes, and a normal row neither."""
    asked: list[int] = []
    rejected = autograd._answer_of_rejected
    monkeypatch.setattr(
        autograd,
        "_answer_of_rejected",
        lambda way, request, phi: asked.append(len(request.x)) or rejected(way, request, phi),
    )
    x = torch.cat([rows("normal", 1, 1000), rows("clusters", 1, 1000), rows("relu", 1, 1000)])
    check(x, eps=1e-3)
    assert asked == [1]


def test_one_row_does_not_depend_on_the_others() -> None:
    x = torch.cat([rows(kind, 3, 100) for kind in ("normal", "uniform", "lognormal", "outlier", "sorted", "even")])
    together = sinksort.soft_sort(x, eps=1e-2)
    alone = torch.cat([sinksort.soft_sort(row[None], eps=1e-2) for row in x])
    span = x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)
    assert ((together - alone).abs() <= 1e-5 * span).all()


def test_second_derivatives_and_vmap() -> None:
    x = rows("normal", 2, 300).requires_grad_()
    (grad,) = torch.autograd.grad(sinksort.soft_sort(x, eps=1e-2).square().sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(grad.sum(), x)
    true = x.detach().double().requires_grad_()
    (wide,) = torch.autograd.grad(sinksort.soft_sort(true, eps=1e-2).square().sum(), true, create_graph=True)
    torch.testing.assert_close(twice.double(), torch.autograd.grad(wide.sum(), true)[0], rtol=0, atol=1e-3)
    mapped = torch.vmap(lambda row: sinksort.soft_sort(row, eps=1e-2))(x.detach())
    torch.testing.assert_close(mapped, sinksort.soft_sort(x.detach(), eps=1e-2), rtol=0, atol=1e-5)


def test_compiled_programs_sort_by_nodes() -> None:
    x = rows("uniform", 2, 600).requires_grad_()

    def loss(x: Tensor) -> Tensor:
        return sinksort.soft_sort(x, eps=1e-2).pow(3).sum()

    (grad,) = torch.autograd.grad(torch.compile(loss, backend="eager", fullgraph=True)(x), x)
    torch.testing.assert_close(grad, torch.autograd.grad(loss(x), x)[0], rtol=1e-4, atol=1e-6)
