"""Ranks of rows that other kernels leave over: against the float64 reference, and who answers them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.kernels import autograd, dispatch
from sinksort.kernels.contract import Request, in_tensors

from .test_rows import ACCEPTED, REFERENCE, inputs

numba_late = pytest.importorskip("sinksort.kernels.cpu.rejected")
numba_rows = pytest.importorskip("sinksort.kernels.cpu.rows")


def rows_of(kind: str, R: int, n: int) -> Tensor:
    x = torch.randn(R, n, generator=torch.Generator().manual_seed(n))
    if kind == "half zero":
        return x.relu()
    if kind == "probabilities":
        return (3 * x).softmax(-1)
    if kind == "zero or one":
        return (x > 0.3).float()
    return inputs(kind, R, n)


def ranks_of(
    x: Tensor, eps: float | Tensor, a: Tensor | None = None, squash: str | None = "sigmoid"
) -> tuple[Request, Tensor]:
    """An ask for ranks among n equal targets, given by two nodes at their ends, and phi."""
    n = x.shape[-1]
    ends = torch.tensor([[0.0, 1.0]])
    return Request(x, a, ends, torch.full((1, 2), 0.5), eps, squash, m=n), torch.tensor([[1.0, float(n)]])


def check(x: Tensor, eps: float, a: Tensor | None = None, squash: str | None = "sigmoid") -> None:
    request, phi = ranks_of(x, eps, a, squash)
    w = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    out, error = numba_late.pull(request, phi)
    grad, lost = numba_late.pull_backward(request, phi, w)
    values = x.double().requires_grad_()
    true = sinksort.soft_rank(
        values, eps=eps, squash=squash, weights=None if a is None else a.double(), solver=REFERENCE, backend="torch"
    )
    (true_grad,) = torch.autograd.grad(true, values, w.double())
    assert (error <= ACCEPTED).all()
    assert (lost <= ACCEPTED).all()
    n = x.shape[-1]
    assert ((out - true).abs() <= 1e-5 * n).all()
    assert ((grad - true_grad).abs().amax(-1) <= 1e-3 * true_grad.abs().amax(-1)).all()


@pytest.mark.parametrize("squash", ["sigmoid", "arctan", None])
def test_values_at_one_place_have_weights_of_their_own(squash: str | None) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (2 * torch.randn(3, 150, generator=generator)).round()  # a dozen places
    a = torch.rand(3, 150, generator=generator)
    a = a.where(a > 0.1, 0.0)
    check(x, 0.5 if squash is None else 1e-2, a / a.sum(-1, keepdim=True), squash)


@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-3, 3e-5])
@pytest.mark.parametrize(
    "kind", ["half zero", "probabilities", "zero or one", "normal", "heavy tails", "outlier", "2 clusters", "constant"]
)
def test_ranks_and_gradients(kind: str, eps: float) -> None:
    check(rows_of(kind, 2, 90), eps)


def test_few_targets_stand_for_all_of_a_long_soft_row() -> None:
    check(rows_of("half zero", 1, 700), 1e-1)


@pytest.mark.parametrize("squash", ["arctan", None])
def test_other_squashes(squash: str | None) -> None:
    check(rows_of("half zero", 2, 60), 1e-2, squash=squash)


def test_weights_some_of_which_are_zero() -> None:
    """What weighs nothing has a rank and a gradient, and influences nobody."""
    a = torch.rand(3, 70, generator=torch.Generator().manual_seed(1))
    a[:, ::5] = 0.0
    check(rows_of("half zero", 3, 70), 1e-2, a / a.sum(-1, keepdim=True))


def test_targets_levels_and_eps_of_their_own_in_each_row() -> None:
    g = torch.Generator().manual_seed(5)
    x, w = rows_of("half zero", 3, 50), torch.randn(3, 50, generator=g)
    y, b = torch.rand(3, 40, generator=g).sort(-1).values, torch.rand(3, 40, generator=g) + 0.1
    b, phi, eps = b / b.sum(-1, keepdim=True), torch.randn(3, 40, generator=g), torch.tensor([1e-1, 1e-2, 1e-3])
    request = Request(x, None, y, b, eps, "sigmoid")
    out, error = numba_late.pull(request, phi)
    grad, lost = numba_late.pull_backward(request, phi, w)
    assert (error <= ACCEPTED).all()
    assert (lost <= ACCEPTED).all()
    for r in range(3):
        values = x[r].double().requires_grad_()
        plan = sinksort.transport(
            values, targets=y[r].double(), target_weights=b[r].double(), eps=eps[r].item(), solver=REFERENCE
        )
        true = plan.pull(phi[r].double())
        (true_grad,) = torch.autograd.grad(true, values, w[r].double())
        torch.testing.assert_close(out[r].double(), true, rtol=0.0, atol=1e-5)
        assert (grad[r] - true_grad).abs().max() <= 1e-3 * true_grad.abs().max()


def test_rows_with_nan_are_nan_and_rows_with_infinities_are_not_answered() -> None:
    x = rows_of("normal", 3, 40)
    x[0, 3], x[1, 5] = torch.nan, torch.inf
    out, error = numba_late.pull(*ranks_of(x, 1e-2))
    assert out[0].isnan().all()
    assert error[0] == 0.0
    assert error[1] == torch.inf
    assert error[2] <= ACCEPTED


@pytest.mark.parametrize(("n", "m", "able"), [(300, 300, True), (300, 2, False), (8, 300, False), (9000, 9000, False)])
def test_for_whom_they_are(n: int, m: int, able: bool) -> None:
    request, _ = ranks_of(torch.zeros(1, n), 1e-2)
    assert (dispatch.rejected_row_kernels("numba", request._replace(m=m), "pull") is numba_late) is able


def test_gradients_of_nearly_hard_rows_are_not_answered() -> None:
    """Ranks are, to all digits: but little is left of a gradient, and that is not known."""
    x = rows_of("normal", 1, 60)
    request, phi = ranks_of(x, 1e-6)
    out, error = numba_late.pull(request, phi)
    true = sinksort.soft_rank(x.double(), eps=1e-6, solver=REFERENCE, backend="torch")
    assert error <= ACCEPTED
    assert ((out - true).abs() <= 1e-5 * 60).all()
    assert numba_late.pull_backward(request, phi, torch.ones_like(x))[1] == torch.inf


def test_who_answers_rows_that_are_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Late kernels, and the reference what these cannot: the row with an infinity."""
    asked: dict[str, list[int]] = {"late": [], "late backward": [], "reference": []}

    def told(name: str, function):
        def wrapped(request, *rest):
            asked[name].append(len(request.x))
            return function(request, *rest)

        return wrapped

    monkeypatch.setattr(numba_late, "pull", told("late", numba_late.pull))
    monkeypatch.setattr(numba_late, "pull_backward", told("late backward", numba_late.pull_backward))
    monkeypatch.setitem(autograd._REFERENCE, "pull", told("reference", autograd._REFERENCE["pull"]))
    x = rows_of("half zero", 5, 300)
    x[2, 7] = torch.inf
    x[3] = rows_of("normal", 1, 300)[0]
    values, w = x.clone().requires_grad_(), torch.randn(5, 300, generator=torch.Generator().manual_seed(2))
    out = sinksort.soft_rank(values, eps=1e-3, backend="numba")
    (grad,) = torch.autograd.grad(out, values, w)
    assert asked == {"late": [4], "late backward": [4], "reference": [1, 1]}
    wide = x.double().requires_grad_()
    true = sinksort.soft_rank(wide, eps=1e-3, solver=REFERENCE)
    (true_grad,) = torch.autograd.grad(true, wide, w.double())
    assert ((out - true).abs() <= 1e-5 * 300).all()
    assert ((grad - true_grad).abs().amax(-1) <= 1e-3 * true_grad.abs().amax(-1)).all()


@pytest.mark.parametrize(("n", "m", "eps"), [(150, None, 1e-3), (300, None, 1e-4), (200, 140, 1e-4), (40, 400, 1e-5)])
@pytest.mark.parametrize("descending", [False, True])
def test_targets_too_many_for_a_matrix_and_too_sharp_for_a_rule(
    n: int, m: int | None, eps: float, descending: bool
) -> None:
    x = torch.cat([rows_of("normal", 1, n), rows_of("half zero", 1, n)])
    w = torch.randn(2, n, generator=torch.Generator().manual_seed(4))
    values, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    options = {"eps": eps, "num_targets": m, "descending": descending}
    out = sinksort.soft_rank(values, **options, backend="numba")
    true = sinksort.soft_rank(wide, **options, solver=REFERENCE)
    (grad,), (true_grad,) = torch.autograd.grad(out, values, w), torch.autograd.grad(true, wide, w.double())
    assert ((out - true).abs() <= 1e-5 * n).all()
    assert ((grad - true_grad).abs().amax(-1) <= 1e-3 * true_grad.abs().amax(-1)).all()


def test_nothing_is_kept_of_rows_that_are_all_left_over() -> None:
    ends, phi = ranks_of(rows_of("normal", 2, 150), 1e-3)
    request = ends._replace(y=torch.linspace(0, 1, 150)[None], b=torch.full((1, 150), 1 / 150))
    state = in_tensors(numba_rows.pull(request, phi))[1]
    assert (state.shape[1], state.dtype) == numba_rows.state_layout(request) == (0, torch.float32)


@pytest.mark.parametrize("eps", [1e-3, 1e-4], ids=["a rule", "too sharp for a rule"])
def test_half_precision_and_transformed_programs(eps: float) -> None:
    x = rows_of("half zero", 2, 300)
    want = sinksort.soft_rank(x.to(torch.bfloat16).double(), eps=eps, solver=REFERENCE)
    got = sinksort.soft_rank(x.to(torch.bfloat16), eps=eps, backend="numba")
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=2**-8, atol=0.0)

    def loss(row: Tensor) -> Tensor:
        return sinksort.soft_rank(row, eps=eps, backend="numba").sin().sum()

    values = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(sum(loss(row) for row in values), values)
    mapped = torch.vmap(torch.func.grad(lambda row: sinksort.soft_rank(row, eps=eps).sin().sum()))(x)
    torch.testing.assert_close(mapped, grad, rtol=1e-3, atol=1e-4 * grad.abs().max().item())
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    again = x[0].clone().requires_grad_()
    (grad_again,) = torch.autograd.grad(compiled(again), again)
    torch.testing.assert_close(grad_again, grad[0])
