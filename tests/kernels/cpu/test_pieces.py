"""Numba kernels for long rows against the float64 reference, on every kind of row and every kind of tensor."""

from __future__ import annotations

import math
import os
import threading

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.kernels.contract import Request
from sinksort.kernels.reference import pulled
from sinksort.linear.rules import gauss_rule
from tests.devices import refusal

pytest.importorskip("numba")
from sinksort.kernels.cpu import long as kernels

N = 2501
ACCEPTED = 5e-6  # what the caller accepts of ``Answer.error``
DENSE = sinksort.Newton(compress=False)


def rows(name: str, n: int = N) -> Tensor:
    """(1, n) of a named kind."""
    g = torch.Generator().manual_seed(len(name))
    x = torch.randn(n, generator=g)
    if name == "uniform":
        x = torch.rand(n, generator=g)
    elif name == "exponential":
        x = -torch.rand(n, generator=g).log()
    elif name == "heavy":
        x = x / torch.randn(n, generator=g).abs().clamp(min=1e-6)
    elif name == "tied":
        x = (3 * x).round()
    elif name == "few-valued":
        x = torch.randint(0, 3, (n,), generator=g).float()
    elif name == "constant":
        x = torch.full((n,), 3.7)
    elif name == "outlier":
        x[17] = 1e4
    elif name.startswith("clusters"):
        x = 10.0 * torch.randint(0, int(name[-1]), (n,), generator=g) + 0.01 * x
    elif name == "infinite":
        x[3], x[4], x[9] = math.inf, -math.inf, math.inf
    elif name == "huge":
        x = 1e30 * x
    elif name == "tiny":
        x = 1e-30 * x
    elif name == "far":
        x = x + 1e4
    else:
        assert name == "normal"
    return x.unsqueeze(0)


PLAIN = ["normal", "uniform", "exponential", "constant", "infinite", "huge", "tiny", "far"]
KINDS = [*PLAIN, "heavy", "tied", "few-valued", "outlier", "clusters2", "clusters5"]


def weights(n: int = N) -> Tensor:
    """(1, n), every seventh zero."""
    a = torch.rand(1, n, generator=torch.Generator().manual_seed(7))
    a[:, ::7] = 0.0
    return a / a.sum()


def cotangent(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def rank_request(
    x: Tensor, eps: float, squash: str | None = "sigmoid", a: Tensor | None = None
) -> tuple[Request, Tensor]:
    """Ascending ranks by a rule as fine as the reference's first one."""
    n = x.shape[-1]
    nodes, b, last = (torch.as_tensor(t).float().unsqueeze(0) for t in gauss_rule(n, math.ceil(3.4 / eps**0.5) + 8))
    return Request(x, a, nodes / (n - 1), b, eps, squash, n, last), nodes + 1.0


def mask_request(x: Tensor, k: int, eps: float, squash: str | None = "sigmoid", a: Tensor | None = None) -> Request:
    share = k / x.shape[-1]
    return Request(
        x, a, torch.tensor([[0.0, 1.0]]), torch.tensor([[1 - share, share]], dtype=torch.float64), eps, squash
    )


def filler_ask(x: Tensor, q: float, eps: float, squash: str | None = "sigmoid", a: Tensor | None = None) -> Request:
    t = 1.0 / x.shape[-1]
    below = min(max(q - t / 2, 0.0), 1.0 - t)
    b = torch.tensor([[below, t, 1.0 - t - below]], dtype=torch.float64)
    return Request(x, a, torch.tensor([[0.0, 0.5, 1.0]]), b, eps, squash)


IN = torch.tensor([[0.0, 1.0]])  # phi of a mask
MIDDLE = torch.tensor([[0.0, 1.0, 0.0]])  # cotangent of a quantile


def relative(found: Tensor, true: Tensor) -> float:
    return float((found.double() - true).abs().max() / true.abs().max().clamp(min=1e-30))


def in_unit_interval(x: Tensor) -> Tensor:
    """Values for which no squash is needed; infinite ones stay."""
    return torch.where(
        x.isinf(), x, torch.sigmoid((x - x[x.isfinite()].mean()) / x[x.isfinite()].std().clamp(min=1e-30))
    )


def check_ranks(x: Tensor, eps: float, squash: str | None = "sigmoid", a: Tensor | None = None) -> bool:
    """Whether the kernels say that they are right, in one go and in passes; if so, they are."""
    n = x.shape[-1]
    request, phi = rank_request(x, eps, squash, a)
    w = cotangent(x.shape)
    short_rows, in_passes = kernels.pull(request, phi), kernels._pull_by_rules(request, phi)
    if not max(short_rows.error.item(), in_passes.error.item()) <= ACCEPTED:
        return False
    x64 = x.double().requires_grad_()
    ranks = sinksort.soft_rank(x64, eps=eps, squash=squash, weights=None if a is None else a.double())
    (true,) = torch.autograd.grad(ranks, x64, w.double())
    for out, grad in (
        (short_rows.out, kernels.pull_backward(request, phi, short_rows.state, w)),
        (in_passes.out, kernels._pull_by_rules_backward(request, phi, in_passes.state, w)),
    ):
        assert (out - ranks).abs().max() < 1e-5 * n
        assert relative(grad, true) < 1e-3
    return True


# ---- ranks


def test_rows_that_are_not_done_in_one_go_do_not_disturb_the_others() -> None:
    eps, n = 1e-2, N
    x = torch.cat([rows("normal"), rows("clusters2"), rows("uniform"), rows("clusters5"), rows("tied")])
    x[2, 40] = math.nan
    alone = kernels.short_rows.pull(*rank_request(x, eps))
    assert (alone.error > ACCEPTED).tolist() == [False, True, False, True, False]
    x.requires_grad_()
    ranks = sinksort.soft_rank(x, eps=eps, backend="numba")
    (grad,) = torch.autograd.grad(ranks, x, w := cotangent(x.shape))
    assert ranks[2].isnan().all()
    assert grad[2].isnan().all()
    for r in (0, 1, 3, 4):
        x64 = x[r].detach().double().requires_grad_()
        true = sinksort.soft_rank(x64, eps=eps)
        assert (ranks[r] - true).abs().max() < 1e-5 * n
        assert relative(grad[r], torch.autograd.grad(true, x64, w[r].double())[0]) < 1e-3


def test_few_targets_asked_for_in_one_go() -> None:
    """So few that all of them can stand in for a rule."""
    x = torch.cat([rows("normal"), rows("clusters2")]).requires_grad_()
    ranks = sinksort.soft_rank(x, eps=1e-2, num_targets=100, backend="numba")
    x64 = x.detach().double().requires_grad_()
    true = sinksort.soft_rank(x64, eps=1e-2, num_targets=100)
    w = cotangent(x.shape)
    assert (ranks - true).abs().max() < 1e-5 * N
    (grad,) = torch.autograd.grad(ranks, x, w)
    assert relative(grad, torch.autograd.grad(true, x64, w.double())[0]) < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_and_their_gradient(kind: str) -> None:
    done = [eps for eps in (1e-3, 1e-2, 1e-1, 1.0) if check_ranks(rows(kind), eps)]
    assert done[-2:] == [1e-1, 1.0]  # large entropy is easy for every row
    assert 1e-2 in done  # by a finer rule than was given, where values are clustered
    if kind in PLAIN:
        assert 1e-3 in done


@pytest.mark.parametrize("squash", ["arctan", None])
@pytest.mark.parametrize("kind", ["normal", "infinite", "constant", "heavy"])
def test_ranks_with_other_squashes(squash: str | None, kind: str) -> None:
    x = rows(kind) if squash else in_unit_interval(rows(kind))
    assert check_ranks(x, 1e-2, squash)


@pytest.mark.parametrize("kind", ["normal", "tied", "infinite", "constant", "huge"])
@pytest.mark.parametrize("squash", ["sigmoid", None])
def test_ranks_of_weighted_values(kind: str, squash: str | None) -> None:
    x = rows(kind) if squash else in_unit_interval(rows(kind))
    assert check_ranks(x, 1e-2 if kind != "tied" else 1e-1, squash, weights())


def test_a_finer_rule_for_some_rows() -> None:
    """Of rows in one batch, those with clusters need more nodes than they were given, each as many as it needs."""
    kinds = ["normal", "clusters2", "exponential", "few-valued", "clusters5"]
    x, w = torch.cat([rows(kind) for kind in kinds]), cotangent((5, N))
    request, phi = rank_request(x, 1e-2)
    answer = kernels.pull(request, phi)
    assert (answer.error <= ACCEPTED).all()
    grad = kernels.pull_backward(request, phi, answer.state, w)
    x64 = x.double().requires_grad_()
    ranks = sinksort.soft_rank(x64)
    (true,) = torch.autograd.grad(ranks, x64, w.double())
    assert (answer.out - ranks).abs().max() < 1e-5 * N
    for row in range(5):
        assert relative(grad[row], true[row]) < 1e-3


def test_a_rule_that_is_too_coarse_is_reported() -> None:
    x = rows("clusters2")
    request, phi = rank_request(x, 1e-3)
    answer = kernels.pull(request, phi)
    true = sinksort.soft_rank(x.double(), eps=1e-3)
    assert (answer.out - true).abs().max() / N > 1e-5  # even the finest rule was not fine enough
    assert answer.error.item() > ACCEPTED


def test_a_grid_that_is_too_coarse_is_made_finer() -> None:
    """An outlier in a long row: functions are smooth at eps over the gap, not at sqrt(eps)."""
    x = rows("outlier", 20_001)
    request, phi = rank_request(x, 3e-3)
    assert kernels.pull(request, phi).error.item() <= ACCEPTED
    assert check_ranks(x, 3e-3)


def test_small_entropy() -> None:
    assert check_ranks(rows("normal", 20_001), 2e-4)


def test_long_rows_in_pieces() -> None:
    assert check_ranks(rows("exponential", 300_007), 1e-2)


def test_ranks_sum_to_those_of_a_sort() -> None:
    """Columns of the plan are exact, so ranks sum to what the targets say: a check without any reference."""
    n = 1_000_003
    x = torch.randn(1, n, generator=torch.Generator().manual_seed(0))
    request, phi = rank_request(x, 1e-2)
    ranks = kernels.pull(request, phi).out.double()
    assert ranks.sum() / n == pytest.approx((n + 1) / 2, rel=1e-6)
    near = x[0].argsort()
    assert (ranks[0, near].diff() >= -0.1).all()  # float32 ranks near a million are 1/16 apart


# ---- a few targets


@pytest.mark.parametrize("kind", KINDS)
def test_masks_and_their_gradient(kind: str) -> None:
    x, w = rows(kind), cotangent((1, N))
    for eps, k in ((1e-3, 5), (1e-2, N // 2), (1e-2, 0), (1e-1, N), (1.0, 100)):
        request = mask_request(x, k, eps)
        answer = kernels.pull(request, IN)
        assert answer.error.item() <= ACCEPTED
        x64 = x.double().requires_grad_()
        true = sinksort.soft_topk_mask(x64, k, eps=eps, solver=DENSE)
        (gradient,) = torch.autograd.grad(true, x64, w.double())
        assert (answer.out - true).abs().max() < 1e-5
        grad = kernels.pull_backward(request, IN, answer.state, w)
        if gradient.abs().max() * x[x.isfinite()].std() > 1e-6:  # less is the rounding of a hard mask
            assert relative(grad, gradient) < 1e-3
        else:
            assert grad.abs().max() * x[x.isfinite()].std() < 1e-5


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "infinite"])
def test_quantiles_and_their_gradient(kind: str) -> None:
    x = rows(kind)
    size = max(float(x.max() - x.min()), 1e-2 * float(x.abs().max()))
    for eps, q in ((1e-3, 0.5), (1e-2, 0.9), (1e-2, 0.0), (1.0, 1.0)):
        request = filler_ask(x, q, eps)
        answer = kernels.push(request)
        assert answer.error.item() <= ACCEPTED
        x64 = x.double().requires_grad_()
        true = sinksort.soft_quantile(x64, q, eps=eps, solver=DENSE)
        (gradient,) = torch.autograd.grad(true.sum(), x64)
        assert abs(answer.out[0, 1] - true) < 1e-5 * size
        assert relative(kernels.push_backward(request, answer.state, MIDDLE), gradient) < 1e-3


@pytest.mark.parametrize("squash", ["arctan", None])
@pytest.mark.parametrize("weighted", [False, True])
def test_few_targets_with_other_squashes_and_weights(squash: str | None, weighted: bool) -> None:
    x, w = in_unit_interval(rows("heavy")), cotangent((1, N))
    a = weights() if weighted else None
    a64 = None if a is None else a.double()
    x64 = x.double().requires_grad_()

    request = mask_request(x, 40, 1e-2, squash, a)
    answer = kernels.pull(request, IN)
    mask = sinksort.soft_topk_mask(x64, 40, eps=1e-2, squash=squash, weights=a64, solver=DENSE)
    (gradient,) = torch.autograd.grad(mask, x64, w.double())
    assert (answer.out - mask).abs().max() < 1e-5
    assert relative(kernels.pull_backward(request, IN, answer.state, w), gradient) < 1e-3

    request = filler_ask(x, 0.3, 1e-2, squash, a)
    answer = kernels.push(request)
    quantile = sinksort.soft_quantile(x64, 0.3, eps=1e-2, squash=squash, weights=a64, solver=DENSE)
    (gradient,) = torch.autograd.grad(quantile.sum(), x64)
    assert abs(answer.out[0, 1] - quantile) < 1e-5
    assert relative(kernels.push_backward(request, answer.state, MIDDLE), gradient) < 1e-3


@pytest.mark.parametrize("k", [1, 3, 12, 100])
def test_the_largest_values(k: int) -> None:
    """Soft top-k: a target for each of the k, and one for the rest."""
    x = rows("normal")
    b = torch.tensor([[N - k, *[1] * k]], dtype=torch.float64) / N
    request = Request(x, None, torch.arange(k + 1.0).unsqueeze(0) / k, b, 1e-2, "sigmoid")
    answer = kernels.push(request)
    x64 = x.double().requires_grad_()
    true = sinksort.soft_topk(x64, k, eps=1e-2, solver=DENSE).values
    assert (answer.out[:, 1:].flip(-1) - true).abs().max() < 1e-5
    c = cotangent((1, k + 1))
    c[:, 0] = 0.0
    (gradient,) = torch.autograd.grad(true, x64, c[:, 1:].flip(-1).double())
    assert relative(kernels.push_backward(request, answer.state, c), gradient) < 1e-3


def test_a_slot_without_a_target_changes_nothing() -> None:
    x, w = rows("normal"), cotangent((1, N))
    request, phi = mask_request(x, 9, 1e-2), torch.tensor([[0.0, 5.0, 1.0]])
    b = torch.tensor([[request.b[0, 0], 0.0, request.b[0, 1]]], dtype=torch.float64)
    padded = Request(x, None, torch.tensor([[0.0, 0.4, 1.0]]), b, 1e-2, "sigmoid")
    alone, among = kernels.pull(request, IN), kernels.pull(padded, phi)
    assert torch.allclose(alone.out, among.out, atol=1e-6)
    grads = kernels.pull_backward(request, IN, alone.state, w), kernels.pull_backward(padded, phi, among.state, w)
    assert relative(grads[1], grads[0].double()) < 1e-5


def test_an_infinite_value_makes_averages_infinite() -> None:
    x = rows("normal")
    x[0, 3] = math.inf
    assert kernels.push(filler_ask(x, 0.5, 1e-2)).out[0, 1] == math.inf
    x[0, 4] = -math.inf
    assert kernels.push(filler_ask(x, 0.5, 1e-2)).out[0, 1].isnan()
    a = weights()
    a[0, 3] = a[0, 4] = 0.0  # what weighs nothing may hold anything
    there = kernels.push(filler_ask(x, 0.5, 1e-2, "sigmoid", a / a.sum())).out[0, 1]
    x[0, 3] = x[0, 4] = 0.0
    assert there == pytest.approx(float(kernels.push(filler_ask(x, 0.5, 1e-2, "sigmoid", a / a.sum())).out[0, 1]))


def test_values_without_weight_influence_nobody() -> None:
    x, a = rows("normal"), weights()
    other = torch.where(a == 0, 1e6, x)
    for request in (rank_request, lambda x, eps, squash, a: (mask_request(x, 50, eps, squash, a), IN)):
        answers = [kernels.pull(*request(values, 1e-2, "sigmoid", a)).out for values in (x, other)]
        assert torch.allclose(answers[0][a > 0], answers[1][a > 0], atol=1e-5 * float(answers[0].max()))


# ---- tensors of every kind


def operators(x: Tensor, w: Tensor) -> list[Tensor]:
    """Answers and gradients of all kernels."""
    request, phi = rank_request(x, 1e-2)
    ranks = kernels.pull(request, phi)
    mask_, quantile_ = mask_request(x, 30, 1e-2), filler_ask(x, 0.4, 1e-2)
    mask, quantile = kernels.pull(mask_, IN), kernels.push(quantile_)
    return [
        ranks.out,
        kernels.pull_backward(request, phi, ranks.state, w),
        mask.out,
        kernels.pull_backward(mask_, IN, mask.state, w),
        quantile.out,
        kernels.push_backward(quantile_, quantile.state, MIDDLE.expand(len(x), 3)),
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    """The answer of the same numbers in float32, rounded once."""
    x, w = rows("normal").to(dtype), cotangent((1, N)).to(dtype)
    x[0, 5], x[0, 6], x[0, 7] = math.inf, 2e-7, -0.0  # 2e-7 is subnormal in float16
    for half, single in zip(operators(x, w), operators(x.float(), w.float()), strict=True):
        assert half.dtype in (dtype, torch.float32)
        torch.testing.assert_close(half, single.to(half.dtype), rtol=0.0, atol=0.0, equal_nan=True)


def test_any_strides() -> None:
    x, w = torch.cat([rows("normal"), rows("exponential"), rows("tied")]), cotangent((3, N))
    plain = operators(x, w)
    transposed = operators(x.mT.contiguous().mT, w.mT.contiguous().mT)
    sliced = operators(torch.cat([x, x], dim=1)[:, :N], w)
    every_other = operators(torch.stack([x, x], dim=-1)[..., 0], w)
    for others in (transposed, sliced, every_other):
        for one, other in zip(plain, others, strict=True):
            assert torch.equal(one, other)


def test_one_row_at_several_levels() -> None:
    x = rows("normal").expand(3, N)
    b = torch.cat([filler_ask(x, q, 1e-2).b for q in (0.2, 0.5, 0.7)])
    request = Request(x, None, torch.tensor([[0.0, 0.5, 1.0]]), b, 1e-2, "sigmoid")
    answer = kernels.push(request)
    true = sinksort.soft_quantile(x[0].double(), [0.2, 0.5, 0.7], solver=DENSE)
    assert (answer.out[:, 1] - true).abs().max() < 1e-5
    grad = kernels.push_backward(request, answer.state, MIDDLE.expand(3, 3))
    for row in range(3):
        alone = Request(x[:1], None, request.y, b[row : row + 1], 1e-2, "sigmoid")
        assert torch.equal(kernels.push_backward(alone, kernels.push(alone).state, MIDDLE)[0], grad[row])


def test_rows_have_their_own_eps_and_are_alone() -> None:
    x = torch.cat([rows("normal"), rows("exponential")])
    request, phi = rank_request(x, 1e-2)
    both = Request(x, None, request.y, request.b, torch.tensor([1e-2, 1e-1]), "sigmoid", request.m, request.last)
    answer = kernels.pull(both, phi)
    for row, eps in enumerate((1e-2, 1e-1)):
        alone = Request(
            x[row : row + 1], None, request.y, request.b, torch.tensor([eps]), "sigmoid", request.m, request.last
        )
        assert torch.equal(kernels.pull(alone, phi).out[0], answer.out[row])


def test_nan_spoils_its_own_row() -> None:
    x, w = torch.cat([rows("normal"), rows("tied"), rows("exponential")]), cotangent((3, N))
    clean = operators(x, w)
    x[1, 100] = math.nan
    for spoilt, other in zip(operators(x, w), clean, strict=True):
        assert spoilt[1].isnan().all()
        assert torch.equal(spoilt[[0, 2]], other[[0, 2]])
    request, phi = rank_request(x, 1e-2)
    assert (kernels.pull(request, phi).error <= ACCEPTED).all()  # nobody needs to do it again


def test_answers_do_not_depend_on_threads() -> None:
    x, w = torch.randn(3, 100_001, generator=torch.Generator().manual_seed(1)), cotangent((3, 100_001))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = operators(x, w)
        torch.set_num_threads(3)
        together = operators(x, w)
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)


def test_several_python_threads_at_once() -> None:
    x, w = torch.randn(2, 100_001, generator=torch.Generator().manual_seed(1)), cotangent((2, 100_001))
    expected, found, threads = operators(x, w), {}, torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        workers = [threading.Thread(target=lambda i=i: found.update({i: operators(x, w)})) for i in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        torch.set_num_threads(threads)
    for i in range(4):
        assert all(torch.equal(one, other) for one, other in zip(expected, found[i], strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_after_a_fork() -> None:
    """A worker that was forked off a process with threads has none of them, and starts its own."""
    x = torch.randn(1, 300_001, generator=torch.Generator().manual_seed(1))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = kernels.push(filler_ask(x, 0.5, 1e-2)).out
        child = os.fork()
        if child == 0:  # no assertion may leave the child: it answers by its exit status
            same = torch.equal(kernels.push(filler_ask(x, 0.5, 1e-2)).out, expected)
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(threads)


# ---- the contract


def test_state_has_the_layout_that_was_promised() -> None:
    x = rows("normal").expand(2, N)
    request, phi = rank_request(x, 1e-2)
    for each, state in (
        (request, kernels.pull(request, phi).state),
        (few := filler_ask(x, 0.5, 1e-2), kernels.push(few).state),
    ):
        assert (state.shape[1], state.dtype) == kernels.state_layout(each)
        assert len(state) == 2


def test_what_it_cannot_do_is_said() -> None:
    x = rows("normal")
    assert kernels.unable(rank_request(x, 1e-3)[0]) is None
    assert kernels.unable(filler_ask(x, 0.5, 1e-2)) is None
    many = torch.linspace(0, 1, 100).unsqueeze(0)
    asked = Request(x.new_zeros(1).expand(1, 1_000_000), None, many, torch.full_like(many, 0.01), 1e-2, "sigmoid")
    reason = refusal("numba", asked)
    assert "fewer targets one by one for rows of 1000000 values, and there are 100" in str(reason)
    assert refusal("numba", asked._replace(y=many[:, :20], b=many[:, :20])) is None
    nodes = torch.linspace(0, 1, 2000).unsqueeze(0)
    reason = refusal("numba", Request(x, None, nodes, torch.full_like(nodes, 1 / 2000), 1e-2, "sigmoid", m=N))
    assert "at most 512 nodes of a rule, and there are 2000" in str(reason)
    reason = kernels.unable(Request(x.to("meta"), None, many, many, 1e-2, "sigmoid"))
    assert "work on the CPU, and x is on meta" in str(reason)


def test_descending_ranks_are_those_of_the_negative() -> None:
    x = rows("exponential")
    request, phi = rank_request(x, 1e-2)
    down = kernels.pull(request, N + 1.0 - phi).out
    assert torch.allclose(down, pulled(request, N + 1.0 - phi), atol=1e-5 * N)
    assert torch.allclose(down, kernels.pull(rank_request(-x, 1e-2)[0], phi).out, atol=2e-5 * N)
