"""Triton kernels for two to four targets, several programs a row, which wait for each other.

In Triton's interpreter each of them has a thread, see ``test_exact_pieces``. Rows are short for it; on a
GPU as many programs as there are multiprocessors share them.
"""

import math

import pytest
import torch

import sinksort
from sinksort.kernels import reference

pytest.importorskip("triton", reason="Triton is made for Linux only")

from sinksort.kernels import autograd, memo
from sinksort.kernels.gpu import long as kernels
from sinksort.kernels.gpu.engine import launch  # after the check that Triton is there
from sinksort.kernels.gpu.exact import pieces_launch as late

from .test_exact_pieces import INTERPRETED, at_once
from .test_long import DEVICE, gradients_agree, mask_request, quantile_request, random, row_of_each
from .test_thresholds import four_targets, pulled_as_the_reference_does

N = 141


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    """Rows as if they were long. One has three programs, of which the last has few values; of two, each has two."""
    monkeypatch.setattr(kernels, "_ONE_PROGRAM", 0)
    monkeypatch.setattr(memo, "_remembered", {})
    monkeypatch.setattr(launch, "_records", {})
    if INTERPRETED:
        monkeypatch.setattr(kernels, "_SHARED_TILE", 16)
        monkeypatch.setattr(kernels, "_CHUNK_BLOCK", 64)
        monkeypatch.setattr(late, "programs_of", lambda _: 4)
        monkeypatch.setattr("triton.runtime.interpreter.GridExecutor", at_once())


def pushed_as_the_reference_does(request):
    answer = kernels.push(request)
    x = request.x.double().requires_grad_()
    out = reference.pushed(request._replace(x=x))
    c = torch.tensor([[0.3, 1.0, -0.2]], device=DEVICE).expand(len(x), 3)
    (true,) = torch.autograd.grad(out, x, c.double())
    span = (x.amax(-1) - x.amin(-1)).clamp(min=1e-3)
    assert (answer.error == 0.0).all()
    assert ((answer.out - out).abs().amax(-1) <= 1e-5 * span).all()
    assert gradients_agree(kernels.push_backward(request, answer.state, c), true).all()


def weights(*shape):
    a = (random(*shape, seed=4).abs() * (random(*shape, seed=5) > 0.0)).double()
    return a / a.sum(-1, keepdim=True)


def test_who_shares():
    """All programs there are, of parts that begin where memory is read in one piece; huge rows go another way."""
    x = torch.empty(1, 1, device=DEVICE)
    programs = late.programs_of(DEVICE)
    G, each = kernels._cut_among_programs(x.expand(1, 10**6))
    assert 1 <= G <= programs
    assert each % 64 == 0
    assert (G - 1) * each < 10**6 <= G * each
    assert kernels._cut_among_programs(x.expand(2 * programs, 40_000))[0] == 1
    assert kernels._cut_among_programs(x.expand(1, 1 << 30)) is None


@pytest.mark.parametrize(("q", "eps", "kind"), [(0.5, 1e-3, "clusters_2"), (0.97, 1e-1, "constant")])
def test_quantiles(q, eps, kind):
    pushed_as_the_reference_does(quantile_request(row_of_each(kind, n=N), q, eps))


@pytest.mark.parametrize(("squash", "kind"), [("arctan", "heavy_tailed"), (None, "uniform")])
def test_squashes_and_weights(squash, kind):
    pushed_as_the_reference_does(quantile_request(row_of_each(kind, n=N), 0.3, a=weights(1, N), squash=squash))


@pytest.mark.parametrize(("eps", "kinds"), [(1e-2, ("few_valued", "outlier")), (1e-4, ("normal",))])
def test_masks(eps, kinds):
    x = row_of_each(*kinds, n=N)
    pulled_as_the_reference_does(*mask_request(x, 20, eps), random(*x.shape))


def test_masks_with_weights_and_infinite_values():
    x = row_of_each("exponential", n=N)
    x[0, 3], x[0, 120] = math.inf, -math.inf
    pulled_as_the_reference_does(*mask_request(x, 20, a=weights(1, N)), random(1, N))


def test_weights_of_nothing_between():
    """Nothing is divided but what weighs nothing: the nearest values on either side are in different parts."""
    low = torch.linspace(0.0, 0.1, 65)
    x = torch.cat([low, torch.full((11,), 0.5), 1.0 - low.flip(0)])[None].to(DEVICE)
    a = (x != 0.5).double() / 130
    out = kernels.pull(*mask_request(x, N / 2, 1e-3, a=a, squash=None)).out[0]
    assert (out[:65] == 0.0).all()
    assert (out[76:] == 1.0).all()
    assert out[65:76].tolist() == pytest.approx([0.5] * 11, abs=1e-4)


def test_four_targets():
    x = row_of_each("clusters_3", n=N)
    pulled_as_the_reference_does(*four_targets(x, [0.1, 0.4, 0.0, 0.5]), random(1, N))


def test_nan_stays_in_its_row_and_nothing_depends_on_who_is_first(monkeypatch):
    """And counters are left at zero, as the next launch wants them."""
    made, counters = [], launch.Recorder.counters

    def noted(recorder, count):
        made.append(counters(recorder, count))
        return made[-1]

    monkeypatch.setattr(launch.Recorder, "counters", noted)
    x = row_of_each("normal", "normal", n=N)
    x[1, 130] = math.nan
    request, phi = mask_request(x)
    first, second = kernels.pull(request, phi), kernels.pull(request, phi)
    assert first.out[1].isnan().all()
    assert first.out[0].isfinite().all()
    assert torch.equal(first.out[0], second.out[0])
    grads = [kernels.pull_backward(request, phi, answer.state, request.x.nan_to_num()) for answer in (first, second)]
    assert grads[0][1].isnan().all()
    assert torch.equal(grads[0][0], grads[1][0])
    assert len(made) == (4 if INTERPRETED else 2)  # on a GPU launches are made again without a recorder
    assert not any(t.any() for t in made)


def test_by_way_of_the_operator_nobody_looks(monkeypatch):
    def looked(_):
        raise AssertionError("somebody waits for the device")

    monkeypatch.setattr(autograd, "_rejected_rows", looked)
    x = row_of_each("normal", n=N)[0].requires_grad_()
    out = sinksort.soft_quantile(x, 0.5, backend="triton")
    (grad,) = torch.autograd.grad(out, x)
    wide = x.detach().double().requires_grad_()
    wanted = sinksort.soft_quantile(wide, 0.5, solver=sinksort.Newton(compress=False))
    (true,) = torch.autograd.grad(wanted, wide)
    assert out.item() == pytest.approx(wanted.item(), abs=1e-5)
    assert gradients_agree(grad, true).all()
