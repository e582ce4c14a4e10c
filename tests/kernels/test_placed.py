"""Options that fast kernels take by way of torch: a callable squash, eps as a tensor, and a learned eps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import sinksort

pytest.importorskip("numba")
EXACT = sinksort.Newton(compress=False)
KINDS = ("normal", "tied", "outlier", "with NaN")


def rows(kind: str = "normal", R: int = 20, n: int = 60) -> Tensor:
    x = torch.randn(R, n, generator=torch.Generator().manual_seed(3))
    if kind == "tied":
        return (2.0 * x).round()
    if kind == "outlier":
        x[:, 0] = 1e4
    if kind == "with NaN":
        x[2, 5] = math.nan
    return x


def cotangent(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(4))


def both(x: Tensor, inputs: tuple[Tensor, ...] = (), **options: object) -> tuple[Tensor, ...]:
    """Ranks, and their gradients in x and ``inputs``."""
    x = x.detach().requires_grad_()
    ranks = sinksort.soft_rank(x, **options)
    return ranks.detach(), *torch.autograd.grad(ranks, (x, *inputs), cotangent(x).to(ranks))


def close(found: tuple[Tensor, ...], true: tuple[Tensor, ...], n: int) -> None:
    torch.testing.assert_close(found[0].double(), true[0], rtol=0, atol=1e-5 * n, equal_nan=True)
    assert torch.equal(found[1].isnan(), true[1].isnan())
    largest = true[1].abs().amax(-1, keepdim=True)
    assert not ((found[1] - true[1]).abs() > 1e-3 * largest + 1e-9).any()


def ndtr(x: Tensor) -> Tensor:
    """The standard normal distribution in place of the logistic one."""
    return torch.special.ndtr(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-3])
def test_a_callable_squash(kind: str, eps: float) -> None:
    x = rows(kind)
    found = both(x, eps=eps, squash=ndtr)
    assert sinksort.last_backend() == "numba"
    close(found, both(x.double(), eps=eps, squash=ndtr, solver=EXACT), x.shape[-1])


def test_a_callable_squash_keeps_shape_dtype_dim_and_mask() -> None:
    x = rows(R=16, n=30).T.bfloat16()
    kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(5)) < 0.7
    found = sinksort.soft_rank(x, dim=0, mask=kept, squash=ndtr)
    assert found.dtype == torch.bfloat16
    assert found.shape == x.shape
    true = sinksort.soft_rank(x.double(), dim=0, mask=kept, squash=ndtr, solver=EXACT)
    torch.testing.assert_close(found.double(), true, rtol=2**-8, atol=1e-3)
    assert (found[~kept] == 0).all()


def test_memberships_of_a_callable_squash() -> None:
    x = rows()
    found = sinksort.soft_topk_mask(x, 7, squash=ndtr)
    true = sinksort.soft_topk_mask(x.double(), 7, squash=ndtr, solver=EXACT)
    torch.testing.assert_close(found.double(), true, rtol=0, atol=1e-5)


def test_a_callable_squash_is_asked_again_for_other_values() -> None:
    """Nothing is remembered: values of the same shape may lie elsewhere, where these kernels are not asked."""
    for x in (rows(), 30.0 * rows(), rows()):
        found = sinksort.soft_rank(x, squash=lambda t: 0.5 + t / 10.0)
        true = sinksort.soft_rank(x.double(), squash=lambda t: 0.5 + t / 10.0, solver=EXACT)
        torch.testing.assert_close(found.double(), true, rtol=0, atol=1e-3)


def test_what_a_callable_raises_comes_out() -> None:
    def fails(_: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        sinksort.soft_rank(rows(), squash=fails)
    with pytest.raises(ValueError, match="squash must return a tensor of the shape it was given"):
        sinksort.soft_rank(rows(), squash=lambda x: x[..., :3])


@pytest.mark.parametrize("shape", [(), (1,), (20,)])
@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-3])
def test_eps_as_a_tensor(shape: tuple[int, ...], eps: float) -> None:
    x, each = rows(), torch.full(shape, eps)
    found = both(x, eps=each)
    assert sinksort.last_backend() == "numba"
    close(found, both(x.double(), eps=eps, solver=EXACT), x.shape[-1])
    with torch.no_grad():  # an eps that is changed in place is another eps
        again = sinksort.soft_rank(x, eps=each.mul_(3.0))
    torch.testing.assert_close(again, sinksort.soft_rank(x, eps=3.0 * eps), rtol=0, atol=1e-4)


def test_rows_with_eps_of_their_own_are_those_rows_alone() -> None:
    x, each = rows(R=35), torch.logspace(-3.0, 0.0, 35)
    found = both(x, eps=each)
    close(found, both(x.double(), eps=each.double(), solver=EXACT), x.shape[-1])
    alone = torch.stack([sinksort.soft_rank(row, eps=e) for row, e in zip(x, each.tolist(), strict=True)])
    torch.testing.assert_close(found[0], alone, rtol=0, atol=1e-3)
    of_sorts = sinksort.soft_sort(x, eps=each), sinksort.soft_sort(x.double(), eps=each.double(), solver=EXACT)
    torch.testing.assert_close(of_sorts[0].double(), of_sorts[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("learned", [False, True])
def test_eps_of_rows_in_several_dimensions(learned: bool) -> None:
    x, each = rows(R=24), torch.logspace(-2.0, 0.0, 24)
    wide, of_each = x.reshape(2, 1, 12, 60), each.reshape(2, 1, 12).requires_grad_(learned)
    for shaped, dim in ((wide, -1), (wide.movedim(-1, 1), 1)):
        found = sinksort.soft_rank(shaped, eps=of_each, dim=dim).movedim(dim, -1)
        assert sinksort.last_backend() == "numba"
        torch.testing.assert_close(found.reshape(24, 60), sinksort.soft_rank(x, eps=each), rtol=0, atol=1e-4)
        masks = sinksort.soft_topk_mask(shaped, 5, eps=of_each, dim=dim).movedim(dim, -1)
        torch.testing.assert_close(masks.reshape(24, 60), sinksort.soft_topk_mask(x, 5, eps=each), rtol=0, atol=1e-5)
    for several in ((12,), (1, 12), (2, 1, 1)):
        same = torch.logspace(-2.0, 0.0, math.prod(several)).reshape(several)
        alone = sinksort.soft_rank(x, eps=same.expand(2, 1, 12).reshape(24))
        torch.testing.assert_close(sinksort.soft_rank(wide, eps=same).reshape(24, 60), alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [(), (20,)])
@pytest.mark.parametrize("kind", ["normal", "tied", "outlier"])
@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-3])
def test_a_learned_eps(shape: tuple[int, ...], kind: str, eps: float) -> None:
    x = rows(kind)
    single = torch.full(shape, eps, requires_grad=True)
    double = single.detach().double().requires_grad_()
    found = both(x, (single,), eps=single)
    assert sinksort.last_backend() == "numba"
    true = both(x.double(), (double,), eps=double, solver=EXACT)
    close(found, true, x.shape[-1])
    # All n ranks of a row change by n when eps changes by itself: a gradient is compared with a millionth of that.
    natural = x.shape[-1] / eps * cotangent(x).abs().sum(-1).sum_to_size(shape).double()
    assert ((found[2] - true[2]).abs() <= (1e-3 * true[2].abs()).maximum(1e-6 * natural)).all()


def test_a_learned_eps_by_differences() -> None:
    """Against a quotient of differences of ranks in float64, which know no formula for this gradient."""
    x, v = rows(), cotangent(rows()).double()
    eps = torch.tensor(2e-2, requires_grad=True)
    (slope,) = torch.autograd.grad(sinksort.soft_rank(x, eps=eps), eps, v.float())
    high, low = (((sinksort.soft_rank(x.double(), eps=0.02 * f)) * v).sum() for f in (1.001, 0.999))
    assert slope.item() == pytest.approx((high - low).item() / (0.02 * 0.002), rel=1e-3)


def test_a_learned_eps_twice() -> None:
    x = rows(R=3, n=12)
    mixed = []
    for own, solver in ((x, sinksort.Newton()), (x.double(), EXACT)):
        values = own.detach().requires_grad_()
        eps = torch.tensor(0.05, dtype=values.dtype, requires_grad=True)
        ranks = sinksort.soft_rank(values, eps=eps, solver=solver)
        (of_eps,) = torch.autograd.grad(ranks.square().sum(), eps, create_graph=True)
        mixed.append(torch.autograd.grad(of_eps, values)[0].double())
    torch.testing.assert_close(mixed[0], mixed[1], rtol=1e-3, atol=1e-3 * mixed[1].abs().max().item())


@pytest.mark.parametrize("kind", ["normal", "tied", "outlier"])
@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("n", [30, 100])
def test_gradients_of_a_sum_of_squares(kind: str, eps: float, n: int) -> None:
    """Nearly all of such a gradient cancels."""
    x = rows(kind, R=32, n=n)
    grads = []
    for own, solver in ((x, sinksort.Newton()), (x.double(), EXACT)):
        values = own.detach().requires_grad_()
        ranks = sinksort.soft_rank(values, eps=eps, solver=solver)
        grads.append(torch.autograd.grad(ranks.square().sum(), values)[0].double())
    found, true = grads
    natural = n / x.double().std(-1, keepdim=True, unbiased=False) * 2.0 * n
    allowed = 1e-3 * true.abs().amax(-1, keepdim=True).maximum(1e-3 * natural)
    assert ((found - true).abs() <= allowed).all()


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-3])
def test_quantile_normalize(each: bool, eps: float) -> None:
    x = rows("tied")
    rng = torch.Generator().manual_seed(6)
    reference = 1e4 + torch.randn((20, 45) if each else (45,), generator=rng).exp()
    kept = torch.rand(x.shape, generator=rng) < 0.8
    for mask in (None, kept):
        answers = []
        for own, solver in ((x, sinksort.Newton()), (x.double(), EXACT)):
            values = own.detach().requires_grad_()
            out = sinksort.quantile_normalize(values, reference, mask=mask, eps=eps, solver=solver)
            answers.append((out, torch.autograd.grad(out, values, cotangent(x).to(out))[0].double()))
        (found, slopes), (true, exact) = answers
        assert found.dtype == torch.float32
        extent = (reference.max() - reference.min()).item()
        torch.testing.assert_close(found.double(), true, rtol=1e-7, atol=1e-5 * extent)
        limit = 1e-3 * exact.abs().amax(-1, keepdim=True).maximum(torch.tensor(1e-3 * extent))
        assert ((slopes - exact).abs() <= limit).all()


def test_quantile_normalize_of_constant_and_infinite_references() -> None:
    x = rows()
    assert (sinksort.quantile_normalize(x, torch.full((5,), 7.0)) == 7.0).all()
    reference = torch.tensor([0.0, 1.0, math.inf])
    found = sinksort.quantile_normalize(x, reference)
    torch.testing.assert_close(found, sinksort.quantile_normalize(x, reference, solver=EXACT))
