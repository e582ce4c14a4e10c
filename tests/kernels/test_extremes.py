"""Input far from what is usual: kernels answer it rightly, or say that they do not, and never give a wrong answer."""

import pytest
import torch

import sinksort

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

#: Of plans that are nearly hard some take more steps than the solver usually grants.
CONVERGED = sinksort.Newton(compress=False, tolerance=1e-12, max_iterations=1000)


def row(n: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(1, n, generator=torch.Generator().manual_seed(seed))


def answers(operator, x, backend, **options):
    """What an operator says of x, and the gradient of a sum in which every entry has another share."""
    device = "cpu" if backend == "numba" else DEVICE
    x = x.to(device).clone().requires_grad_()
    options = {k: v.to(device, x.dtype) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    out = operator(x, backend=backend, **options)
    share = torch.cos(torch.arange(out.numel(), dtype=out.dtype, device=device)).reshape(out.shape)
    (gradient,) = torch.autograd.grad((share * out).sum(), x)
    return out.detach().double().cpu(), gradient.double().cpu()


def right(operator, x, scale: float, backend: str = "triton", **options) -> None:
    """Within 1e-5 of the scale of answers, and gradients within 1e-3 of themselves."""
    out, gradient = answers(operator, x, backend, **options)
    true_out, true_gradient = answers(operator, x.double(), "torch", **options, solver=CONVERGED)
    assert (out - true_out).abs().max() <= 1e-5 * scale
    assert (gradient - true_gradient).norm() <= 1e-3 * true_gradient.norm()


def test_one_far_value_takes_no_digits_from_sorted_values():
    pytest.importorskip("triton")
    x = row(3)
    for far in (1e3, 1e6):
        x[0, 1] = far
        right(sinksort.soft_sort, x, far, squash=None, eps=0.1)


def test_gradients_that_not_even_double_precision_knows_are_none():
    pytest.importorskip("triton")
    x = row(3)
    x[0, 1] = 1e9
    assert answers(sinksort.soft_sort, x, "triton", squash=None)[1].isnan().all()


def test_gradients_of_values_far_from_a_few_targets():
    """Where targets stand was counted from the smallest value, in single precision: they were hardly apart."""
    pytest.importorskip("triton")
    x = (8 * row(22)).round() * 1000 - 6000
    right(sinksort.soft_rank, x, 22, squash=None, eps=0.1, targets=torch.tensor([0.1, 0.3, 0.4]))


@pytest.mark.parametrize("operator", [sinksort.soft_rank, sinksort.soft_sort])
def test_targets_may_leave_wide_gaps(operator):
    pytest.importorskip("triton")
    y = torch.linspace(0, 1, 4)
    y[-1] = 1e4
    right(operator, row(4), 4 if operator is sinksort.soft_rank else 1, targets=y)


def test_sorted_values_of_targets_that_weigh_next_to_nothing():
    pytest.importorskip("triton")
    b = torch.ones(4)
    for light in (1e-4, 1e-9):
        b[2] = light
        right(sinksort.soft_sort, row(4), 1, target_weights=b / b.sum())
    b[2] = 1e-20  # less than what counts as a link: there is an answer, but nobody knows how it changes
    assert answers(sinksort.soft_sort, row(4), "triton", target_weights=b / b.sum())[1].isnan().all()


@pytest.mark.parametrize("backend", ["numba", "triton"])
@pytest.mark.parametrize("eps", [1e-20, 1e30])
def test_extreme_entropies_are_not_for_single_precision(backend, eps):
    pytest.importorskip(backend)
    if backend == "triton":
        with pytest.raises(ValueError, match="its kernels take eps from 1e-10 to 1e\\+20"):
            sinksort.soft_rank(row(10), eps=eps, backend=backend)
    ranks = sinksort.soft_rank(row(10), eps=eps, backend="auto" if backend == "triton" else backend)
    assert sinksort.last_backend() == "numba"  # the exact family
    hard = sinksort.kantorovich_rank(row(10)) if eps < 1 else torch.full((1, 10), 5.5)
    torch.testing.assert_close(ranks, hard, rtol=0, atol=1e-5)


def test_weights_that_are_next_to_nothing_are_for_the_exact_family():
    """A value of 1e-7 was ranked as if it were all in a target of 1e-11: what kernels take for balanced is more."""
    pytest.importorskip("numba")
    x, light = row(5), torch.tensor([[1.0, 1.0, 1e-7, 1.0, 1.0]])
    for weights in ({"weights": light}, {"target_weights": light[0] / 4}):
        ranks = sinksort.soft_rank(x, **weights, backend="numba")
        exact = sinksort.soft_rank(x.double(), **weights, backend="torch")
        torch.testing.assert_close(ranks.double(), exact, rtol=0, atol=1e-6)
    sinksort.soft_rank(x, weights=torch.tensor([[1.0, 0.0, 1e-4, 1.0, 1.0]]), backend="numba")


@pytest.mark.parametrize("width", [1.0, 1e3])
def test_the_value_that_two_of_a_few_targets_share_is_found_at_any_eps(width):
    """Where a plan is all but hard a search that begins at the wrong value has no slope to follow: it stayed there."""
    pytest.importorskip("numba")
    x = torch.rand(6, 64, generator=torch.Generator().manual_seed(0))
    options = {"targets": torch.linspace(0, width, 3), "eps": 1e-6}
    right(sinksort.soft_sort, x, 1, "numba", **options)
    # How much of it each gets is a matter of weights, so ranks do not change with x.
    ranks, gradient = answers(sinksort.soft_rank, x, "numba", **options)
    true_ranks, _ = answers(sinksort.soft_rank, x.double(), "torch", **options, solver=CONVERGED)
    torch.testing.assert_close(ranks, true_ranks, rtol=0, atol=1e-5 * 64)
    assert gradient.abs().max() <= 1e-3


def test_targets_that_no_value_joins_are_balanced_or_said_not_to_be():
    """Rows too long to be sorted begin with bins, and at this eps these hold values of different targets."""
    pytest.importorskip("numba")
    from sinksort.kernels.contract import Ask
    from sinksort.kernels.cpu import long

    n = 33_000
    x = torch.rand(1, n, generator=torch.Generator().manual_seed(0))
    ask = Ask(x, None, torch.linspace(0, 1, 3)[None], torch.full((1, 3), 1 / 3), 1e-10, "sigmoid")
    answer = long.pull(ask, torch.tensor([[1.0, 2.0, 3.0]]))
    counts = [int((answer.out.round() == level).sum()) for level in (1, 2, 3)]
    assert counts == [n // 3] * 3 or not answer.error.item() <= 1e-5


def test_gradients_of_weighted_quantiles_keep_their_digits_at_any_eps():
    pytest.importorskip("numba")
    x = torch.rand(16, 300, generator=torch.Generator().manual_seed(0))
    weights = 0.1 + torch.rand(16, 300, generator=torch.Generator().manual_seed(1))
    right(sinksort.soft_quantile, x, 1, "numba", q=1.0, weights=weights, eps=1e-6)
    right(sinksort.soft_quantile, x[:, :30], 1, "numba", q=1.0, weights=weights[:, :30], eps=1e-6)
