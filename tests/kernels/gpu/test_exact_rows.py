"""Rows of 257 to 2048 values that a grid cannot answer, by the launch that follows it: against float64."""

import math

import pytest
import torch

import sinksort

pytest.importorskip("triton", reason="Triton is made for Linux only")

from sinksort.kernels import memo
from sinksort.kernels.gpu import rows as triton_rows  # after the check that Triton is there
from sinksort.kernels.gpu.engine import launch
from sinksort.kernels.gpu.engine import tables as grid
from sinksort.kernels.gpu.exact import rows_launch as late
from tests.devices import limits
from tests.kernels.gpu.test_rows import DEVICE, pulled, random, rank_request, same, taken_over, true_ranks

N = 257


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """Nothing is remembered of other launches."""
    monkeypatch.setattr(memo, "_remembered", {})
    monkeypatch.setattr(launch, "_records", {})


def clusters(count=2, n=N):
    return 10.0 * (torch.arange(n) % count) + 0.1 * random(n).cpu()


def tied(share, n=N):
    """Most values are zero, between others on both sides."""
    x = random(n, seed=7).cpu()
    return torch.where(torch.arange(n) < share * n, 0.0, x)


def rows(*of_kinds):
    return torch.stack(of_kinds).float().to(DEVICE)


def answered_late(answer):
    """Which rows this launch has answered."""
    flag = 2 * triton_rows._BEFORE_GRID + grid.REJECTED.value
    return (answer.state.view(torch.float32)[:, flag] == 1.0).tolist()


def right(request, phi):
    """Ranks and gradients are those of the reference; which rows were late. None is left to the last launch."""
    answer, w, gradient = pulled(request, phi)
    same(answer.out, gradient, *true_ranks(request), w, request.x.shape[-1])
    assert (answer.error <= 5e-6).all()
    assert not any(taken_over(answer))
    return answered_late(answer)


def test_rows_with_edges_ties_and_tails_among_others():
    """More rows than programs, where there are few of these."""
    normal = random(N, seed=5).cpu()
    x = rows(clusters(), normal, (torch.arange(N) % 3).float(), 1.0 / normal, tied(0.9))
    assert right(*rank_request(x, 1e-2, 40)) == [True, False, True, True, True]


@pytest.mark.parametrize("kind", ["relu", "five", "tails", "one"])
def test_small_eps(kind):
    """Five groups take more panels than rows get at first."""
    n = 300
    normal = random(n, seed=5).cpu()
    one = (torch.arange(n) == 9).float()
    x = {"relu": normal.relu(), "five": clusters(5, n), "tails": (2.0 * normal).exp(), "one": one}[kind]
    assert right(*rank_request(rows(x), 1e-3, 128)) == [True]


def test_weights_with_zeros():
    x = rows(clusters(), tied(0.5))
    a = random(2, N, seed=4).abs() * (random(2, N, seed=5) > -0.5)
    request, phi = rank_request(x, 1e-2, 40, (a / a.sum(-1, keepdim=True)).to(DEVICE), squash="arctan")
    assert any(right(request, phi))


def test_values_far_from_all_targets():
    x = random(N, seed=6).cpu()
    x[7], x[9], x[11] = 30.0, math.inf, -math.inf
    assert right(*rank_request(rows(x), 1e-2, 40, squash=None)) == [True]


def test_an_eps_for_each_row():
    request, phi = rank_request(rows(clusters(), clusters()), 1e-2, 40)
    assert right(request._replace(eps=torch.tensor([1e-2, 3e-2], device=DEVICE)), phi)[0]


def test_half_precision_and_descending_by_way_of_the_operator():
    x = clusters().half().to(DEVICE).requires_grad_()
    out = sinksort.soft_rank(x, eps=1e-2, descending=True, backend="triton")
    w = random(N, seed=9).half().to(DEVICE)
    (grad,) = torch.autograd.grad(out, x, w)
    wide = x.detach().double().requires_grad_()
    wanted = sinksort.soft_rank(wide, eps=1e-2, descending=True, solver=sinksort.Newton(compress=False))
    (true,) = torch.autograd.grad(wanted, wide, w.double())
    assert out.dtype == grad.dtype == torch.float16
    assert (out - wanted).abs().max() <= torch.finfo(torch.float16).eps * N
    assert (grad - true).norm() <= 2e-3 * true.norm()


def test_without_this_launch_the_last_one_answers(monkeypatch):
    monkeypatch.setattr(triton_rows, "_MOST_IN_DOUBLE", 32)
    limits(monkeypatch, in_double=32)
    monkeypatch.setattr(late, "forward", lambda *_: None)
    monkeypatch.setattr(late, "backward", lambda *_: None)
    answer, _w, _gradient = pulled(*rank_request(rows(clusters(n=70), random(70).cpu()), 1e-2, 48))
    assert taken_over(answer) == [True, False]
