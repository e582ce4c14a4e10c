"""Rows with weights, padding or targets of their own, sixteen at a time, against the float64 reference."""

from typing import Any

import pytest
import torch
from torch import Tensor

import sinksort

from .test_rows import inputs

pytest.importorskip("sinksort.kernels.cpu.rows")

R, N = 35, 100  # two times sixteen, and some more
KINDS = ("normal", "ties", "2 clusters")
ANSWERS, GRADIENTS = 1e-5, 1e-3  #: of ranks over n, and of gradients over the largest of the row


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(kind: str) -> Tensor:
    if kind == "2 clusters":
        x = torch.randn(R, N, generator=generator(1))
        return 0.3 * x + 2.0 * torch.randn(R, N, generator=generator(2)).sign()
    x = torch.randn(R, N, generator=generator(1))
    return x.relu() if kind == "ties" else x


def ranks_and_gradients(x: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    ranks = sinksort.soft_rank(x, **options)
    return ranks.detach().double(), torch.autograd.grad(ranks, x, v.to(ranks.dtype))[0].double()


def assert_right(x: Tensor, v: Tensor, eps: float, **options: Any) -> None:
    """Beside the torch implementation in float64; rows are sixteen times their natural gradients apart at most."""
    found, of_x = ranks_and_gradients(x, v, eps=eps, **options)
    assert sinksort.last_backend() == "numba"
    wide = {name: t.double() if t.is_floating_point() else t for name, t in options.items()}
    exact, true = ranks_and_gradients(x.double(), v.double(), eps=eps, backend="torch", **wide)
    assert (found - exact).abs().max() <= ANSWERS * N
    largest = true.abs().amax(-1).clamp(min=1e-3 * N * v.abs().max().item() / x.std().item())
    assert ((of_x - true).abs().amax(-1) <= GRADIENTS * largest).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [1e-2, 1e-3])
@pytest.mark.parametrize("weighing", ["about the same", "unevenly", "nothing, some"])
def test_weights(kind: str, eps: float, weighing: str) -> None:
    a = torch.rand(R, N, generator=generator(3))
    if weighing == "about the same":
        a = a + 0.5
    elif weighing == "unevenly":
        a = a.pow(4) + 1e-3
    else:
        a = torch.where(a < 0.2, 0.0, a)
    assert_right(rows(kind), torch.randn(R, N, generator=generator(4)), eps, weights=a)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [1e-2, 1e-3])
@pytest.mark.parametrize("weighted", [False, True])
def test_padding(kind: str, eps: float, weighted: bool) -> None:
    """Of any number of values, in any place; what stands there does not matter."""
    lengths = torch.randint(1, N + 1, (R, 1), generator=generator(5))
    mask = torch.rand(R, N, generator=generator(6)).argsort(-1) < lengths
    x, v = rows(kind), torch.randn(R, N, generator=generator(4))
    options: dict[str, Tensor] = {"mask": mask}
    if weighted:
        options["weights"] = torch.rand(R, N, generator=generator(3)) + 0.5
    assert_right(x, v, eps, **options)
    found, of_x = ranks_and_gradients(x, v, eps=eps, **options)
    spoilt, of_spoilt = ranks_and_gradients(torch.where(mask, x, 1e30), v, eps=eps, **options)
    assert torch.equal(found, spoilt)
    assert torch.equal(of_x, of_spoilt)
    assert (found[~mask] == 0).all()
    assert (of_x[~mask] == 0).all()


def test_padded_rows_are_ranked_as_without_padding() -> None:
    x, lengths = rows("normal"), torch.randint(2, N + 1, (R,), generator=generator(5))
    mask = torch.arange(N) < lengths.unsqueeze(-1)
    ranks = sinksort.soft_rank(x, mask=mask, eps=1e-2)
    for row, length in enumerate(lengths.tolist()):
        alone = sinksort.soft_rank(x[row, :length].double(), eps=1e-2)
        assert (ranks[row, :length] - alone).abs().max() <= ANSWERS * length


@pytest.mark.parametrize("eps", [1e-2, 1e-3])
def test_targets_of_their_own(eps: float) -> None:
    targets = torch.rand(R, 60, generator=generator(7)).sort(-1).values
    weights = torch.rand(R, 60, generator=generator(8)) + 0.2
    v = torch.randn(R, N, generator=generator(4))
    assert_right(rows("normal"), v, eps, targets=targets, target_weights=weights)


@pytest.mark.parametrize("kind", ["ties", "binary", "2 clusters", "integers"])
@pytest.mark.parametrize("growing", [False, True])
def test_rules_that_are_too_coarse(kind: str, growing: bool) -> None:
    """A finer rule, or all targets, answers; also where cotangents grow along the row, and gradients nearly vanish."""
    if kind == "binary":
        x = (torch.rand(R, N, generator=generator(1)) < 0.5).float()
    elif kind == "integers":
        x = torch.randint(0, 10, (R, N), generator=generator(1)).float()
    else:
        x = rows(kind)
    v = sinksort.soft_rank(x, eps=1e-2).detach() if growing else torch.randn(R, N, generator=generator(4))
    assert_right(x, v, 1e-2)


@pytest.mark.parametrize("odd", [1, 3, 5])
def test_some_rows_of_a_batch_are_odd(odd: int) -> None:
    """Few of them go one by one, more go together, and each is what it is by itself."""
    x = torch.cat([inputs("normal", 32 - odd, N), rows("2 clusters")[:odd]])
    assert_right(x, torch.randn(32, N, generator=generator(4)), 1e-2)


def test_weighted_sorts_in_groups() -> None:
    x, a = rows("normal"), torch.rand(R, N, generator=generator(3)) + 0.5
    c = torch.randn(R, N, generator=generator(4))
    answers = []
    for dtype, backend in ((torch.float32, "auto"), (torch.float64, "torch")):
        own = x.to(dtype).requires_grad_()
        out = sinksort.soft_sort(own, weights=a.to(dtype), eps=1e-2, backend=backend)
        answers.append((out.detach().double(), torch.autograd.grad(out, own, c.to(dtype))[0].double()))
    (found, of_x), (exact, true) = answers
    assert (found - exact).abs().max() <= 3e-5
    assert ((of_x - true).abs().amax(-1) <= GRADIENTS * true.abs().amax(-1)).all()


def test_very_different_weights_have_finite_gradients() -> None:
    """Exponents measured from a target that is far away must not overflow on the way back."""
    for seed in (7, 19):
        rng = generator(seed)
        x = torch.randn(48, N, generator=rng) * 0.3 + 2.0 * torch.randn(48, N, generator=rng).sign()
        a = torch.rand(48, N, generator=rng).pow(4) + 1e-3
        _, of_x = ranks_and_gradients(x, torch.randn(48, N, generator=rng), eps=1e-3, weights=a)
        assert of_x.isfinite().all()
