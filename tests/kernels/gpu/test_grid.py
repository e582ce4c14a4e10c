"""Rows of 257 to 2048 values onto a rule, in Triton: a grid first, all targets where that is not enough."""

import math

import pytest
import torch

import sinksort

pytest.importorskip("triton", reason="Triton is made for Linux only")

from sinksort.kernels.gpu import long, rows  # after the check that Triton is there
from sinksort.kernels.gpu.engine import launch
from sinksort.kernels.gpu.exact import rows_launch as late
from sinksort.kernels.gpu.grid import rows as by_grid
from tests.kernels.gpu.test_rows import DEVICE, pulled, random, rank_request, same, taken_over, true_ranks


def right(request, phi):
    """Ranks and gradients are those of the reference; which rows were taken over."""
    answer, w, gradient = pulled(request, phi)
    same(answer.out, gradient, *true_ranks(request), w, request.x.shape[-1])
    assert (answer.error <= 5e-6).all()
    assert rows.state_layout(request) == (answer.state.shape[1], answer.state.dtype)
    return taken_over(answer)


@pytest.mark.parametrize(
    ("n", "eps", "nodes", "block", "other"),
    [(420, 1e-2, 40, 256, 1e30 * random(420, seed=9)), (300, 1e-3, 128, 512, torch.full((300,), 3.7))],
    ids=["coarse grid, two blocks, huge", "fine grid, one block, constant"],
)
def test_ordinary_rows(monkeypatch, n, eps, nodes, block, other):
    """Blocks of values are read by the program that solves, one after the other.

    Of the first rows all that is needed in between stands where the answers will, tables of the gradient included.
    """
    monkeypatch.setattr(by_grid, "_READ_BLOCK", block)
    x = torch.stack([random(n, seed=1), other]).to(DEVICE)
    assert right(*rank_request(x, eps, nodes)) == [False] * 2


def test_weights_and_infinite_values_without_a_squash():
    n = 257
    a = torch.rand(1, n, generator=torch.Generator().manual_seed(3)) * (torch.arange(n) % 5 > 0)
    x = torch.rand(1, n, generator=torch.Generator().manual_seed(4))
    x[0, 7], x[0, 8] = math.inf, -math.inf
    request, phi = rank_request(x.to(DEVICE), 3e-2, 32, (a / a.sum(-1, keepdim=True)).to(DEVICE), squash=None)
    assert right(request, phi) == [False]


def test_a_row_that_grid_and_panels_cannot_answer_is_taken_over(monkeypatch):
    """Three groups far apart beside an ordinary row, and the gradients of both. Short, for the interpreter."""
    monkeypatch.setattr(rows, "_WIDE", 32)
    monkeypatch.setattr(late, "_PANELS", {"few": (4, 4, 2)})
    x = torch.stack([random(70), torch.arange(70) % 3 * 10.0 + 0.1 * random(70, seed=2)]).to(DEVICE)
    assert right(*rank_request(x, 1e-2, 48)) == [False, True]


BOTH = ["spread_cotangents", "solve_backward"]


@pytest.mark.parametrize(
    ("kernels", "n", "names"),
    [
        (
            rows,
            2048,
            ["spread", "solve", "exact_rows", "forward", *BOTH, "exact_rows_backward", "backward"],
        ),
        (
            long,
            2049,
            ["moments", "spread", "solve", "read", "pieces_forward", *BOTH, "sum_back", "read_back", "pieces_backward"],
        ),
    ],
)
def test_launches_of_rows_that_a_program_can_read_and_of_longer_ones(monkeypatch, kernels, n, names):
    found = []

    def note(_recorder, kernel, *_args, **_constants):
        found.append(kernel.__name__)

    for make in ("__call__", "at_once"):
        monkeypatch.setattr(launch.Recorder, make, note)
    monkeypatch.setattr(launch, "_records", {})  # nothing that was launched here is to be launched again
    monkeypatch.setattr(launch, "_compile", lambda *_: None)  # nothing is planned
    request, phi = rank_request(random(1, n), 1e-2, 40)
    answer = kernels.pull(request, phi)
    kernels.pull_backward(request, phi, answer.state, request.x)
    assert found == names


def test_a_row_that_holds_nan_is_nan_and_no_other():
    x = random(2, 257).to(DEVICE)
    x[1, 5] = math.nan
    answer, _, gradient = pulled(*rank_request(x, 1e-2, 40))
    for found in (answer.out, gradient):
        assert found[1].isnan().all()
        assert found[0].isfinite().all()
    assert answer.error[1] == 0
    assert taken_over(answer) == [False, False]


def test_half_precision_and_descending_by_way_of_the_operator():
    x = random(1, 300, seed=4).to(DEVICE).half().requires_grad_()
    ranks = sinksort.soft_rank(x, descending=True, backend="triton")
    wide = x.detach().double().requires_grad_()
    true = sinksort.soft_rank(wide, descending=True, solver=sinksort.Newton(compress=False), backend="torch")
    w = random(1, 300, seed=5).to(DEVICE)
    (gradient,) = torch.autograd.grad(ranks, x, w.half())
    (truth,) = torch.autograd.grad(true, wide, w.half().double())
    assert ranks.dtype == gradient.dtype == torch.float16
    assert torch.allclose(ranks.double(), true, rtol=1e-3, atol=0)
    assert (gradient - truth).abs().max() <= 1e-3 * truth.abs().max()
