"""Soft rows, sixteen at a time in blocks, against the float64 reference and against the same rows alone."""

import math

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.kernels import dispatch
from sinksort.kernels.contract import Request

from .test_rows import ACCEPTED, KINDS, assert_right, inputs, natural, rank_request, true_ranks

numba_rows = pytest.importorskip("sinksort.kernels.cpu.rows")

REFERENCE = sinksort.Newton(compress=False)
R = 19  # sixteen, and some more


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def in_band(request: Request, phi: Tensor) -> bool:
    return dispatch.kernels_for("numba", request, "pull", phi).answer == dispatch.BAND


def assert_ranked(x: Tensor, eps: float, K: int | None = None, squash: str | None = "sigmoid") -> None:
    n = x.shape[-1]
    w = torch.randn(x.shape, generator=generator(5))
    request, phi = rank_request(x, eps, None, K, squash)
    assert in_band(request, phi)
    answer = numba_rows.pull(request, phi)
    grad = numba_rows.pull_backward(request, phi, answer.state, w)
    assert (answer.error <= ACCEPTED).all()
    assert_right(answer.out, grad, *true_ranks(x, w, eps, squash=squash), n, natural(x))


@pytest.mark.parametrize("kind", [*KINDS, "bfloat16"])
@pytest.mark.parametrize(
    ("n", "K", "eps"), [(10, None, 1e-1), (18, None, 1e-2), (50, None, 3e-3), (100, None, 1e-3), (100, 40, 1e-2)]
)
def test_ranks_and_gradients(kind: str, n: int, K: int | None, eps: float) -> None:
    x = inputs("normal", R, n, 3).bfloat16().float() if kind == "bfloat16" else inputs(kind, R, n, 3)
    assert_ranked(x, eps, K)


@pytest.mark.parametrize(("n", "K", "eps"), [(60, None, 1e-2), (100, 40, 1e-2), (127, None, 1e-3)])
def test_company_of_every_kind(n: int, K: int | None, eps: float) -> None:
    """Rows that leave the lanes, and rows that make the others wait, in one group."""
    assert_ranked(torch.cat([inputs(kind, 1, n, 7) for kind in KINDS] + [inputs("normal", 2, n)]), eps, K)


def test_what_a_rule_gets_wrong_is_admitted() -> None:
    """Where there are too many targets to take all of them."""
    n, eps = 180, 1e-2
    x = torch.cat([inputs(kind, 1, n, 7) for kind in KINDS] + [inputs("normal", 2, n)])
    request, phi = rank_request(x, eps, None, 40)
    assert in_band(request, phi)
    answer = numba_rows.pull(request, phi)
    off = (answer.out - true_ranks(x, torch.zeros_like(x), eps)[0]).abs().amax(-1) / n
    admitted = answer.error > ACCEPTED
    assert (off[~admitted] <= 1e-5).all()
    assert admitted[KINDS.index("2 clusters")]
    assert not admitted[KINDS.index("normal")]


@pytest.mark.parametrize("squash", ["arctan", None])
def test_other_squashes(squash: str | None) -> None:
    x = inputs("normal", R, 70) if squash else inputs("uniform", R, 70)
    x[0, 0], x[1, 1] = math.inf, -math.inf
    for eps in (1e-1, 1e-2):
        assert_ranked(x, eps, squash=squash)


def test_infinite_values_go_to_the_outermost_targets_also_by_a_rule() -> None:
    """Of which the nodes lie inside; and all other values do, too."""
    x = 0.3 + 0.4 * inputs("uniform", R, 100)
    x[0, 0], x[1, 1] = math.inf, -math.inf
    assert_ranked(x, 1e-1, 20, squash=None)


@pytest.mark.parametrize(("n", "m"), [(40, 7), (33, 60), (100, 100)])
def test_levels_and_weights_of_any_kind(n: int, m: int) -> None:
    """Targets at unequal distances that weigh differently, one of them nothing, and levels in no order."""
    x, w = inputs("normal", 16, n), torch.randn(16, n, generator=generator(1))
    y = torch.rand(1, m, generator=generator(2)).sort(-1).values
    b = torch.rand(1, m, generator=generator(3)) + 0.1
    b[0, 2] = 0.0
    b /= b.sum()
    phi = torch.randn(1, m, generator=generator(4))
    request = numba_rows.Request(x, None, y, b, 1e-2, "sigmoid")
    assert in_band(request, phi)
    answer = numba_rows.pull(request, phi)
    grad = numba_rows.pull_backward(request, phi, answer.state, w)
    values = x.double().requires_grad_()
    plan = sinksort.transport(values, targets=y[0].double(), target_weights=b[0].double(), eps=1e-2, solver=REFERENCE)
    true = plan.pull(phi[0].double())
    (true_grad,) = torch.autograd.grad(true, values, w.double())
    assert (answer.error <= ACCEPTED).all()
    assert_right(answer.out, grad, true.detach(), true_grad, float(phi.max() - phi.min()), natural(x))


def test_rows_are_the_same_alone() -> None:
    n = 100
    x, w = inputs("normal", 32, n), torch.randn(32, n, generator=generator(1))
    for eps in (1e-2, 1e-3):
        request, phi = rank_request(x, eps)
        together = numba_rows.pull(request, phi)
        grads = numba_rows.pull_backward(request, phi, together.state, w)
        for row in (0, 17):
            alone, _ = rank_request(x[row : row + 1], eps)
            one = numba_rows.pull(alone, phi)
            grad = numba_rows.pull_backward(alone, phi, one.state, w[row : row + 1])
            torch.testing.assert_close(together.out[row], one.out[0], rtol=0, atol=2e-6 * n)
            assert ((grads[row] - grad[0]).abs() <= 1e-4 * grad.abs().max()).all()


def test_nan_stays_in_its_row() -> None:
    x = inputs("normal", 32, 50)
    clean, _ = rank_request(x.clone(), 1e-2)
    x[3, 1] = x[17, 0] = math.nan
    spoilt = x.isnan().any(-1)
    w = torch.randn(x.shape, generator=generator(1))
    request, phi = rank_request(x, 1e-2)
    answer, wanted = numba_rows.pull(request, phi), numba_rows.pull(clean, phi)
    grad = numba_rows.pull_backward(request, phi, answer.state, w)
    assert answer.out[spoilt].isnan().all()
    assert grad[spoilt].isnan().all()
    assert (answer.error <= ACCEPTED).all()
    torch.testing.assert_close(answer.out[~spoilt], wanted.out[~spoilt])
    torch.testing.assert_close(grad[~spoilt], numba_rows.pull_backward(clean, phi, wanted.state, w)[~spoilt])


def test_who_goes_in_lanes() -> None:
    """Plans that are nearly hard do not, nor do rules that differ from row to row."""
    x = inputs("normal", 16, 100)
    request, phi = rank_request(x, 1e-2)
    assert in_band(request, phi)
    assert in_band(request, phi.expand(16, -1))
    assert not in_band(request._replace(eps=1e-5), phi)
    assert in_band(request._replace(eps=torch.full((16,), 1e-2)), phi)
    assert not in_band(request._replace(eps=torch.logspace(-5, 0, 16)), phi)
    assert not in_band(request._replace(a=torch.full((16, 100), 0.01)), phi)  # weights and targets of their own
    assert in_band(request._replace(y=request.y.expand(16, -1)), phi)
    ruled, phi = rank_request(x, 1e-2, None, 40)
    assert not in_band(ruled._replace(y=ruled.y.expand(16, -1)), phi)
