"""Quantiles by every classical definition, against NumPy's and torch's own, wherever quantiles are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.distributed
from torch import Tensor

import sinksort
from sinksort import distributed, losses, nn, streaming
from sinksort.operators.fillers import INTERPOLATIONS, How, weights_of

WIDE = torch.float64
EVERY = pytest.mark.parametrize("name", INTERPOLATIONS)
SMOOTH = (
    "hazen", "linear", "weibull", "median_unbiased", "normal_unbiased", "interpolated_inverted_cdf",
)  # fmt: skip
OF_TORCH = "linear", "lower", "higher", "nearest", "midpoint"
JUMPING = tuple(name for name in INTERPOLATIONS if name not in SMOOTH)
SIZES = [1, 2, 3, 4, 5, 7, 10, 16, 19, 20, 21, 50, 100, 101]
#: With both ends, levels at which some definition jumps for these sizes, and others.
LEVELS = [0.0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 1 / 3, 0.45, 0.5, 0.55, 0.625, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0]


def apart(n: int, seed: int = 0) -> np.ndarray:
    """Values in no order whose places in [0, 1] are far from each other, so that a tiny eps leaves each by itself."""
    generator = np.random.default_rng(seed)
    return generator.permutation((np.arange(n) + 0.3 * generator.random(n)) / n)


def test_names_are_those_of_numpy_and_torch() -> None:
    x = np.arange(5.0)
    for name in INTERPOLATIONS:
        np.quantile(x, 0.5, method=name)
    assert set(OF_TORCH) <= set(INTERPOLATIONS)
    for name in OF_TORCH:
        torch.quantile(torch.tensor(x), 0.5, interpolation=name)


@EVERY
@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_the_limit_is_numpys_quantile(name: str, backend: str) -> None:
    for n in SIZES:
        x = apart(n)
        ours = sinksort.soft_quantile(
            torch.tensor(x), LEVELS, interpolation=name, squash=None, eps=1e-7, backend=backend
        )
        np.testing.assert_allclose(ours.numpy(), np.quantile(x, LEVELS, method=name), rtol=0, atol=1e-9, err_msg=f"{n}")


@EVERY
def test_random_levels(name: str) -> None:
    """Nowhere near a jump of a definition, by chance."""
    levels = np.random.default_rng(5).random(40)
    for n in (3, 8, 29):
        x = apart(n, 1)
        ours = sinksort.soft_quantile(
            torch.tensor(x), torch.tensor(levels), interpolation=name, squash=None, eps=1e-7, backend="torch"
        )
        np.testing.assert_allclose(ours.numpy(), np.quantile(x, levels, method=name), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", OF_TORCH)
def test_the_limit_is_torchs_quantile(name: str) -> None:
    levels = torch.linspace(0, 1, 101, dtype=WIDE)
    for n in (5, 11, 21, 101):
        x = torch.tensor(apart(n))
        theirs = torch.quantile(x, levels, interpolation=name)
        ours = sinksort.soft_quantile(x, levels, interpolation=name, squash=None, eps=1e-7)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@EVERY
@pytest.mark.parametrize("single", ["values", "levels", "both"])
def test_levels_in_single_precision_mean_what_they_say(name: str, single: str) -> None:
    """0.29 of a hundred steps are 29, and not a little less or more: the exact position is a fraction."""
    dtype = WIDE if single == "levels" else torch.float32
    levels = torch.tensor([k / 100 for k in range(101)], dtype=WIDE if single == "values" else torch.float32)
    for n in (5, 11, 20, 100, 101):
        x = torch.arange(1.0, n + 1.0, dtype=dtype) / n
        ours = sinksort.soft_quantile(x, levels, interpolation=name, squash=None, eps=1e-6, backend="torch")
        expected = [float(position(name, n, Fraction(k, 100))) / n for k in range(101)]
        np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=1e-6, err_msg=f"{n}")


def position(name: str, n: int, q: Fraction) -> Fraction:
    """h in [1, n] of values counted from 1: Hyndman and Fan's table, and NumPy's documentation."""
    third, half = Fraction(1, 3), Fraction(1, 2)
    along, whole = (n - 1) * q + 1, n * q
    h = {
        "hazen": whole + half,
        "linear": along,
        "lower": Fraction(math.floor(along)),
        "higher": Fraction(math.ceil(along)),
        "nearest": Fraction(round(along - 1) + 1),  # of places counted from 0, half to the even one
        "midpoint": half * (math.floor(along) + math.ceil(along)),
        "weibull": (n + 1) * q,
        "median_unbiased": (n + third) * q + third,
        "normal_unbiased": (n + Fraction(1, 4)) * q + Fraction(3, 8),
        "interpolated_inverted_cdf": whole,
        "inverted_cdf": Fraction(math.ceil(whole)),
        "averaged_inverted_cdf": whole + half if whole.denominator == 1 else Fraction(math.ceil(whole)),
        "closest_observation": Fraction(round(whole)),
    }[name]
    return min(max(h, Fraction(1)), Fraction(n))


@EVERY
@pytest.mark.parametrize("n", [5, 20, 64, 300])
def test_kernels_say_what_the_reference_says(name: str, n: int) -> None:
    x = torch.randn(6, n, generator=torch.Generator().manual_seed(n)).requires_grad_()
    for eps in (1e-1, 1e-2):
        ours = sinksort.soft_quantile(x, [0.0, 0.3, 0.5, 0.95], interpolation=name, eps=eps)
        assert sinksort.last_backend() == "numba"
        theirs = sinksort.soft_quantile(x.double(), [0.0, 0.3, 0.5, 0.95], interpolation=name, eps=eps, backend="torch")
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=2e-5)
        given = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
        (slope,) = torch.autograd.grad(ours, x, given)
        (expected,) = torch.autograd.grad(theirs, x, given.double())
        torch.testing.assert_close(slope, expected, rtol=0, atol=2e-4 * float(expected.abs().max()))


@EVERY
def test_padding_is_no_padding(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 9, dtype=WIDE, generator=generator)
    kept = torch.rand(5, 9, generator=generator) < 0.6
    ours = sinksort.soft_quantile(x.masked_fill(~kept, math.nan), LEVELS, interpolation=name, mask=kept)
    for row, there, out in zip(x, kept, ours.mT, strict=True):
        alone = sinksort.soft_quantile(row[there], LEVELS, interpolation=name)
        torch.testing.assert_close(out, alone, rtol=0, atol=1e-8)


@EVERY
@pytest.mark.parametrize("n", [1, 4, 7])
def test_layers_go_through_the_same_limit(name: str, n: int) -> None:
    x = torch.tensor(apart(n))
    for width in (None, 0.3):
        layer = nn.SoftQuantile(LEVELS, interpolation=name, width=width, straight_through=True, squash=None, eps=1e-7)
        hard = layer(x)
        if width is None:
            np.testing.assert_allclose(hard.numpy(), np.quantile(x.numpy(), LEVELS, method=name), rtol=0, atol=1e-12)
        soft = sinksort.soft_quantile(x, LEVELS, interpolation=name, width=width, squash=None, eps=1e-7)
        torch.testing.assert_close(hard, soft, rtol=0, atol=1e-8)
    pool = nn.QuantilePool(LEVELS, dim=-1, interpolation=name, squash=None, eps=1e-7)
    np.testing.assert_allclose(pool(x).numpy(), np.quantile(x.numpy(), LEVELS, method=name), rtol=0, atol=1e-8)
    assert f"interpolation={name!r}" in repr(pool) or name == "hazen"


@EVERY
def test_losses_take_it(name: str) -> None:
    r = torch.tensor(apart(8)) - 0.5
    for q in (0.1, 0.5, 0.9):
        ours = losses.least_quantile_loss(r, q, interpolation=name, squash=None, eps=1e-7)
        np.testing.assert_allclose(ours.item(), np.quantile(r.abs().numpy(), q, method=name), rtol=0, atol=1e-8)
        module = nn.LeastQuantileLoss(q, interpolation=name, squash=None, eps=1e-7)
        assert module(r).item() == ours.item()


@EVERY
@pytest.mark.parametrize("n", [12, 40_000])
def test_streams_take_it(name: str, n: int) -> None:
    x = torch.randn(n, dtype=WIDE, generator=torch.Generator().manual_seed(2))
    ours = streaming.soft_quantile(list(x.split(n // 3)), [0.2, 0.5], interpolation=name, eps=1e-3)
    theirs = sinksort.soft_quantile(x, [0.2, 0.5], interpolation=name, eps=1e-3)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)
    assert streaming.soft_median([x], interpolation=name, eps=1e-3) == pytest.approx(float(ours[1]), abs=1e-7)


def test_estimators_take_it() -> None:
    from sinksort.sklearn import LeastQuantileRegressor

    X = np.arange(30.0)[:, None]
    y = 3 * X[:, 0] + 1 + np.sin(X[:, 0])
    fits = [
        LeastQuantileRegressor(0.6, interpolation=name, random_state=0, max_iter=300, tol=1.0).fit(X, y).loss_curve_
        for name in ("hazen", "linear")
    ]
    assert fits[0] != fits[1]
    with pytest.raises(ValueError, match=r"^interpolation must be one of 'hazen', 'linear'"):
        LeastQuantileRegressor(interpolation="cubic").fit(X, y)


# ---- the median, and what definitions have in common


def test_medians() -> None:
    for n in SIZES:
        x = torch.tensor(apart(n))
        options = {"squash": None, "eps": 1e-7}
        assert sinksort.soft_median(x, **options).item() == pytest.approx(float(np.median(x.numpy())), abs=1e-9)
        lower = sinksort.soft_median(x, interpolation="lower", **options)
        assert lower.item() == pytest.approx(torch.median(x).item(), abs=1e-9)
        for name in ("linear", "weibull", "median_unbiased", "normal_unbiased", "midpoint", "averaged_inverted_cdf"):
            same = sinksort.soft_median(x, interpolation=name, **options)
            assert same.item() == pytest.approx(float(np.median(x.numpy())), abs=1e-9), name


@pytest.mark.parametrize("name", [name for name in SMOOTH if name != "interpolated_inverted_cdf"])
@pytest.mark.parametrize("width", [None, 0.3])
def test_definitions_with_both_ends_alike_are_symmetric(name: str, width: float | None) -> None:
    """q of x and 1 - q of -x: not so where alpha is not beta."""
    x = torch.randn(9, dtype=WIDE, generator=torch.Generator().manual_seed(0))
    ours = sinksort.soft_quantile(x, [0.0, 0.2, 0.7], interpolation=name, width=width)
    turned = sinksort.soft_quantile(-x, [1.0, 0.8, 0.3], interpolation=name, width=width)
    torch.testing.assert_close(ours, -turned, rtol=0, atol=1e-9)


@EVERY
@pytest.mark.parametrize("width", [None, 0.05, 0.5, 1.0])
def test_fillers_are_distributions_that_rise_with_the_level(name: str, width: float | None) -> None:
    levels = torch.linspace(0, 1, 57, dtype=WIDE)
    for n in (1, 2, 10, 33):
        b = weights_of(levels, torch.full((1,), float(n), dtype=WIDE), How(width, name, 0.0))
        t = 1 / n if width is None else width
        assert (b >= 0).all()
        torch.testing.assert_close(b.sum(-1), torch.ones(57, dtype=WIDE), rtol=0, atol=1e-15)
        torch.testing.assert_close(b[:, 1], torch.full((57,), t, dtype=WIDE), rtol=0, atol=0)
        assert (b[:, 0].diff() >= -1e-15).all()


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_in_x_and_q_and_weights(name: str) -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(2, 6, dtype=WIDE, generator=generator).requires_grad_()
    q = torch.tensor([0.25, 0.6], dtype=WIDE).requires_grad_()
    w = torch.rand(6, dtype=WIDE, generator=generator).requires_grad_()

    def read(x: Tensor, q: Tensor, w: Tensor) -> Tensor:
        return sinksort.soft_quantile(x, q, interpolation=name, weights=w, eps=0.05)

    assert torch.autograd.gradcheck(read, (x, q, w))
    assert torch.autograd.gradgradcheck(read, (x, q, w))


@pytest.mark.parametrize("name", JUMPING)
def test_definitions_that_jump_have_no_gradient_in_q(name: str) -> None:
    x = torch.randn(6, dtype=WIDE, generator=torch.Generator().manual_seed(4)).requires_grad_()
    q = torch.tensor([0.27, 0.61], dtype=WIDE).requires_grad_()

    def read(x: Tensor) -> Tensor:
        return sinksort.soft_quantile(x, q, interpolation=name, eps=0.05)

    assert torch.autograd.gradcheck(read, (x,))
    (slope,) = torch.autograd.grad(read(x).sum(), q)
    assert torch.equal(slope, torch.zeros_like(q))


def test_equal_weights_are_no_weights() -> None:
    x = torch.randn(3, 7, dtype=WIDE, generator=torch.Generator().manual_seed(4))
    for name in SMOOTH:
        weighted = sinksort.soft_quantile(x, LEVELS, interpolation=name, weights=torch.full((7,), 2.0, dtype=WIDE))
        torch.testing.assert_close(weighted, sinksort.soft_quantile(x, LEVELS, interpolation=name), rtol=0, atol=1e-9)


# ---- errors


@pytest.mark.parametrize("name", JUMPING)
@pytest.mark.parametrize(
    "read",
    [
        lambda x, **kw: sinksort.soft_quantile(x, 0.5, weights=torch.ones(4), **kw),
        lambda x, **kw: sinksort.soft_median(x, weights=torch.ones(4), **kw),
        lambda x, **kw: streaming.soft_quantile([(x, torch.ones(4))], 0.5, **kw),
        lambda x, **kw: nn.SoftQuantile(0.5, **kw)(x, weights=torch.ones(4)),
        lambda x, **kw: losses.least_quantile_loss(x, weights=torch.ones(4), **kw),
    ],
)
def test_definitions_that_count_values_refuse_weights(name: str, read: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match="interpolation") as caught:
        read(torch.arange(4.0), interpolation=name)
    assert str(caught.value) == (
        f"interpolation={name!r} counts values and has no meaning with weights; with weights= use one of 'hazen', "
        "'linear', 'weibull', 'median_unbiased', 'normal_unbiased', 'interpolated_inverted_cdf'."
    )


@pytest.mark.parametrize("wrong", ["cubic", None, 1])
def test_unknown_definitions(wrong: object) -> None:
    with pytest.raises(ValueError, match="interpolation") as caught:
        sinksort.soft_quantile(torch.arange(4.0), 0.5, interpolation=wrong)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "interpolation must be one of 'hazen', 'linear', 'lower', 'higher', 'nearest', 'midpoint', 'weibull', "
        "'median_unbiased', 'normal_unbiased', 'interpolated_inverted_cdf', 'inverted_cdf', 'averaged_inverted_cdf', "
        f"'closest_observation', got {wrong!r}; torch.quantile is 'linear' by default."
    )


@pytest.fixture
def alone_in_a_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("n", [12, 40_000])
def test_distributed_quantiles_take_it(n: int, alone_in_a_group: None) -> None:
    x = torch.randn(n, dtype=WIDE, generator=torch.Generator().manual_seed(2))
    for name in ("hazen", "linear", "lower", "averaged_inverted_cdf"):
        ours = distributed.soft_quantile(x, [0.2, 0.5], interpolation=name, eps=1e-3)
        theirs = sinksort.soft_quantile(x, [0.2, 0.5], interpolation=name, eps=1e-3)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)
        median = distributed.soft_median(x, interpolation=name, eps=1e-3)
        torch.testing.assert_close(median, ours[1], rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="counts values and has no meaning with weights"):
        distributed.soft_quantile(x, 0.5, interpolation="lower", weights=torch.ones_like(x))
    with pytest.raises(ValueError, match="interpolation must be one of"):
        distributed.soft_quantile(x, 0.5, interpolation="cubic")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "read",
    [
        lambda x, dim: distributed.soft_rank(x, dim=dim),
        lambda x, dim: distributed.soft_quantile(x, 0.5, dim=dim),
        lambda x, dim: distributed.soft_topk_mask(x, 1, dim=dim),
    ],
)
def test_distributed_dims_are_whole_numbers(read: Callable[..., object], alone_in_a_group: None) -> None:
    x = torch.randn(2, 3)
    for dim in (None, (0, 1), 1.0, True):
        with pytest.raises(TypeError, match=r"^dim must be an integer, the one dimension along which values are"):
            read(x, dim)
    with pytest.raises(IndexError, match=r"^dim must be between -2 and 1 for x of shape \(2, 3\), got 2\.$"):
        read(x, 2)


@pytest.mark.parametrize("name", ["linear", "averaged_inverted_cdf"])
@pytest.mark.parametrize("n", [9, 40])
def test_kernels_of_triton_take_it(name: str, n: int) -> None:
    """On CUDA, or in Triton's interpreter; both ends included."""
    pytest.importorskip("triton", reason="Triton is made for Linux only")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(n)).to(device).requires_grad_()
    ours = sinksort.soft_quantile(x, [0.0, 0.3, 0.95], interpolation=name, backend="triton")
    theirs = sinksort.soft_quantile(x.double(), [0.0, 0.3, 0.95], interpolation=name, backend="torch")
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=2e-5)
    given = torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).to(device)
    (slope,) = torch.autograd.grad(ours, x, given)
    (expected,) = torch.autograd.grad(theirs, x, given.double())
    torch.testing.assert_close(slope, expected, rtol=0, atol=5e-4 * float(expected.abs().max()))
