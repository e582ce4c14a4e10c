"""Triton kernels for two to four targets, one program a row: every row is answered, and as the reference does."""

import math

import pytest
import torch

import sinksort
from sinksort.kernels import reference
from sinksort.kernels.contract import Request

pytest.importorskip("triton", reason="Triton is made for Linux only")

from sinksort.kernels.gpu import long as kernels  # after the check that Triton is there
from sinksort.kernels.gpu.thresholds import several, two
from tests.masks import true_mask

from .test_long import DEVICE, gradients_agree, mask_request, quantile_request, random, row_of_each, truth


@pytest.fixture(params=["held", "in tiles"])
def lengths(request, monkeypatch):
    """Rows that stay in registers, and rows of which some values are read at a time."""
    if request.param == "in tiles":
        monkeypatch.setattr(kernels, "_MOST_IN_REGISTERS", 0)
        monkeypatch.setattr(kernels, "_TILE", 128)


def four_targets(x, b, eps=1e-2, a=None):
    y = torch.tensor([[0.0, 0.2, 0.7, 1.0]], device=DEVICE)
    b = torch.tensor([b], dtype=torch.float64, device=DEVICE)
    return Request(x, a, y, b, eps, "sigmoid"), torch.tensor([[1.0, -2.0, 0.5, 3.0]], device=DEVICE)


def pulled_as_the_reference_does(request, phi, w):
    answer = kernels.pull(request, phi)
    x = request.x.double().requires_grad_()
    out = reference.pulled(request._replace(x=x), phi)
    (true,) = torch.autograd.grad(out, x, w.double())
    assert (answer.out - out).abs().max() <= 1e-5
    assert gradients_agree(kernels.pull_backward(request, phi, answer.state, w), true, scale=1e-9).all()


def test_who_needs_nobody_to_look(monkeypatch):
    x = row_of_each("normal")
    assert kernels.rejects_by_nan(mask_request(x)[0])
    assert kernels.rejects_by_nan(quantile_request(x))
    long = mask_request(x.new_zeros(1, 1).expand(1, 1 << 16))[0]
    assert kernels.rejects_by_nan(long)
    assert not kernels.rejects_by_nan(
        mask_request(x.new_zeros(1, 1).expand(1, 1 << 30))[0]
    )  # a fixed number of launches
    monkeypatch.setattr(kernels, "AT_ONCE", False)
    assert not kernels.rejects_by_nan(long)


@pytest.mark.usefixtures("lengths")
class TestTwo:
    @pytest.mark.parametrize(("k", "eps"), [(1, 1e-5), (125, 1e-4), (249, 1e-1)])
    def test_from_soft_to_hard(self, k, eps):
        x = row_of_each("clusters_2", "outlier", "few_valued", n=250)
        w, wide = random(*x.shape), x.double().requires_grad_()
        request, phi = mask_request(x, k, eps)
        answer = kernels.pull(request, phi)
        out = true_mask(wide, k, eps, "sigmoid", None, largest=True)
        (true,) = torch.autograd.grad(out, wide, w.double())
        assert (answer.out - out).abs().max() <= 1e-5
        assert gradients_agree(kernels.pull_backward(request, phi, answer.state, w), true, scale=1e-9).all()

    def test_weights_of_nothing_between(self):
        """Values without weight stand in the gap at which a row is cut, and share it as its middle says."""
        x = torch.tensor([[0.0, 0.1, 0.4, 0.5, 0.6, 0.9, 1.0]], device=DEVICE)
        a = torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0]], dtype=torch.float64, device=DEVICE) / 4
        y = torch.tensor([[0.0, 1.0]], device=DEVICE)
        b = torch.tensor([[0.5, 0.5]], dtype=torch.float64, device=DEVICE)
        request = Request(x, a, y, b, 1e-3, None)
        out = kernels.pull(request, y).out
        assert (out[0, :3] == 0.0).all()
        assert (out[0, 4:] == 1.0).all()
        assert out[0, 3].item() == pytest.approx(0.5, abs=1e-4)

    def test_one_target(self):
        x = row_of_each("normal", n=200)
        one = torch.ones(1, 1, device=DEVICE)
        request = Request(x, None, 0.5 * one, one.double(), 1e-2, "sigmoid")
        answer = kernels.push(request)
        assert answer.out.item() == pytest.approx(x.double().mean().item(), abs=1e-6)
        grad = kernels.push_backward(request, answer.state, one)
        assert torch.allclose(grad, torch.full_like(x, 1 / 200), rtol=1e-5)


@pytest.mark.usefixtures("lengths")
class TestSeveral:
    @pytest.mark.parametrize(("q", "eps"), [(0.0, 1e-3), (0.5, 1e-4), (0.97, 1e-1)])
    def test_from_soft_to_hard(self, q, eps):
        x = row_of_each("normal", "clusters_2", n=250)
        request = quantile_request(x, q, eps)
        answer = kernels.push(request)
        out, true = truth(request, sinksort.soft_quantile, torch.ones(len(x), device=DEVICE), q)
        assert ((answer.out[:, 1] - out).abs() <= 1e-5 * (x.amax(-1) - x.amin(-1))).all()
        c = torch.tensor([[0.0, 1.0, 0.0]], device=DEVICE).expand(len(x), 3)
        assert gradients_agree(kernels.push_backward(request, answer.state, c), true).all()

    @pytest.mark.parametrize("b", [[0.1, 0.4, 0.3, 0.2], [0.3, 0.0, 0.7, 0.0], [0.0, 0.0, 1.0, 0.0]])
    def test_four_targets_of_which_some_weigh_nothing(self, b):
        x = row_of_each("normal", "clusters_3", n=250)
        pulled_as_the_reference_does(*four_targets(x, b), random(*x.shape))

    def test_weights(self):
        x = row_of_each("normal", "tied", n=250)
        a = random(2, 250, seed=4).abs() * (random(2, 250, seed=5) > 0.0)
        a = a.double() / a.double().sum(-1, keepdim=True)
        pulled_as_the_reference_does(*four_targets(x, [0.25, 1e-3, 0.5, 0.249], 3e-3, a), random(*x.shape))


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a compiled kernel keeps its number of steps")
class TestSteps:
    """Steps that make sure do so alone, without those that are quick."""

    @pytest.fixture(autouse=True)
    def no_patience(self, monkeypatch):
        for module in (two, several):
            monkeypatch.setattr(module, "PATIENCE", type(module.PATIENCE)(0))

    @pytest.mark.parametrize("eps", [1e-1, 1e-4])
    def test_masks(self, eps):
        x = row_of_each("heavy_tailed", "few_valued", n=200)
        pulled_as_the_reference_does(*mask_request(x, 20, eps), random(*x.shape))

    @pytest.mark.parametrize("eps", [1e-1, 1e-4])
    def test_quantiles(self, eps):
        x = row_of_each("heavy_tailed", "clusters_2", n=200)
        answer = kernels.push(quantile_request(x, 0.3, eps))
        wanted = reference.pushed(quantile_request(x, 0.3, eps)._replace(x=x.double()))
        assert ((answer.out - wanted).abs().amax(-1) <= 1e-5 * (x.amax(-1) - x.amin(-1))).all()

    def test_steps_that_do_not_suffice(self, monkeypatch):
        """Rather no answer than a wrong one."""
        monkeypatch.setattr(several, "STEPS", type(several.STEPS)(1))
        x = row_of_each("normal", n=200)
        request = quantile_request(x)
        answer = kernels.push(request)
        assert answer.out.isnan().all()
        grad = kernels.push_backward(request, answer.state, torch.ones(1, 3))
        assert grad.isnan().all()


def test_infinite_values_at_both_ends():
    """Their mean is none; the rest of the plan is as ever."""
    x = row_of_each("normal", n=200)
    x[0, 3], x[0, 4] = math.inf, -math.inf
    assert kernels.push(quantile_request(x)).out.isnan().all()
    request, phi = mask_request(x, 20)
    assert kernels.pull(request, phi).out.isfinite().all()


def normal_rows(n, rows):
    return torch.randn(4000, n, generator=torch.Generator().manual_seed(1))[rows].to(DEVICE)


def values_agree(x, b, eps, *, weights=torch.float64):
    """Averages of four targets, and their gradient, against the reference."""
    y = torch.linspace(0, 1, 4, device=DEVICE)
    request = Request(x, None, y[None], torch.tensor([b], dtype=weights, device=DEVICE), eps, "sigmoid")
    answer = kernels.push(request)
    wide = x.double().requires_grad_()
    share = torch.tensor(b, dtype=torch.float64, device=DEVICE)
    out = sinksort.soft_sort(wide, targets=y.double(), target_weights=share, eps=eps, backend="torch")
    c = random(*out.shape)
    (true,) = torch.autograd.grad(out, wide, c.double())
    span = x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)
    assert ((answer.out - out).abs() <= 1e-6 * span).all()
    assert gradients_agree(
        kernels.push_backward(request, answer.state, c), true, scale=1e-3 * c.abs().max().item()
    ).all()


class TestFourTargets:
    def test_pairs_of_targets_that_hardly_share_a_value(self):
        """Many values lie inside {0, 1} and inside {2, 3}, and hardly any between: these were once NaN or wrong."""
        values_agree(normal_rows(20, [24, 33, 35, 43, 208, 1028]), [0.25] * 4, 1e-3)

    def test_weights_in_single_precision_say_what_they_round(self):
        """0.01 is no number, and the row can be cut where 0.01 would be: that is where it is cut."""
        values_agree(normal_rows(100, [1, 3, 5]), [0.97, 0.01, 0.01, 0.01], 1e-4, weights=torch.float32)

    def test_gradients_of_rows_with_ties(self):
        """Nearly all of a gradient cancels where all values are zero or one."""
        values_agree((normal_rows(20, [0, 1, 4, 9, 29]) > 0).float(), [0.85, 0.05, 0.05, 0.05], 1e-4)
