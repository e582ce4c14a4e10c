"""Plans that Triton kernels hold in registers, against the float64 reference: on CUDA, or in Triton's interpreter."""

import math

import pytest
import torch

import sinksort
from sinksort.kernels import dispatch, reference
from sinksort.kernels.contract import Request
from sinksort.kernels.requests.targets import membership_targets, nodes_in_place_of

pytest.importorskip("triton", reason="Triton is made for Linux only")

from sinksort.kernels.gpu import rows as triton_rows  # after the check that Triton is there
from sinksort.kernels.gpu.registers import rows as triton_held
from sinksort.kernels.gpu.registers import secant
from tests.kernels.gpu.test_rows import (
    DEVICE,
    pulled,
    random,
    rank_request,
    ranked_to_its_resolution,
    rows,
    same,
    taken_over,
    true_ranks,
)

IN_DOUBT = 5e-6  #: estimated errors above this send a row to the second launch


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch):
    """Rows are held, or taken over by the second launch; the kernels with a matrix are not there."""
    monkeypatch.setattr(triton_rows, "matrix", None)


def true_pulls(request, phi):
    """Of given targets: the whole plan in float64."""
    x = request.x.double().requires_grad_()
    return x, reference.pulled(request._replace(x=x), phi)


@pytest.mark.parametrize(
    ("n", "eps", "kinds"),
    [
        (17, 1e-2, ["normal", "tied", "infinite", "far from zero"]),
        (33, 1e-3, ["exponential", "few-valued", "outlying", "huge"]),
        (77, 0.1, ["heavy-tailed", "constant", "five groups", "tiny"]),
        (100, 1e-2, ["zero", "heavy-tailed", "tied"]),
        (128, 3e-3, ["five groups", "outlying", "exponential"]),
        (100, 1e-4, ["normal", "few-valued"]),
    ],
)
def test_ranks_by_rule_or_one_by_one(n, eps, kinds):
    x = torch.stack([rows(n)[kind] for kind in kinds]).to(DEVICE)
    request, phi = rank_request(x, eps, nodes_in_place_of(n, eps, "triton"))
    answer, w, gradient = pulled(request, phi)
    same(answer.out, gradient, *true_ranks(request), w, n, kinds, out=2e-6, grad=2e-4)
    assert (answer.error <= IN_DOUBT).all()
    assert all(taken == triton_rows.all_in_double(request) for taken in taken_over(answer))


@pytest.mark.parametrize(
    ("n", "eps", "deviation", "ahead"),
    [(100, 1.0, 1.0, 5.0), (100, 1.0, 10.0, 40.0), (128, 0.1, 1.0, 0.0), (40, 1.0, 3.0, 20.0)],
)
def test_logits_as_they_are_need_more_nodes(n, eps, deviation, ahead):
    """Their spread is not known when nodes are chosen. With those of squashed values all such rows were taken over."""
    x = deviation * random(3, n, seed=n)
    x[:, 7] = x.amax(-1) + ahead
    request, phi = rank_request(x.to(DEVICE), eps, nodes_in_place_of(n, eps, "triton", None), squash=None)
    answer, w, gradient = pulled(request, phi)
    assert all(taken == triton_rows.all_in_double(request) for taken in taken_over(answer))
    same(answer.out, gradient, *true_ranks(request), w, n, out=2e-6, grad=2e-4)


def test_groups_far_apart_leave_gaps_of_which_a_rule_does_not_see_the_edges():
    x = torch.stack([rows(100)["normal"], rows(100)["two groups"]]).to(DEVICE)
    request, phi = rank_request(x, 1e-2, 64)
    answer, w, gradient = pulled(request, phi)
    assert taken_over(answer) == [False, True]
    same(answer.out, gradient, *true_ranks(request), w, 100, out=2e-6)


@pytest.mark.parametrize(
    ("n", "where", "limits"),
    [(20, triton_held, {"_STEPS": 1}), (33, secant, {"_TRUSTED": 5, "_ROUNDS": 1})],
)
def test_rows_that_do_not_converge_are_taken_over(monkeypatch, n, where, limits):
    if DEVICE.type == "cuda":
        pytest.skip("a compiled kernel keeps its number of steps")
    for name, steps in limits.items():
        monkeypatch.setattr(where, name, type(triton_held._STEPS)(steps))
    x = torch.stack([random(n), torch.full((n,), 2.5)])  # the start of a constant row is its answer
    request, phi = rank_request(x)
    answer, w, gradient = pulled(request, phi)
    assert taken_over(answer) == [True, False]
    monkeypatch.undo()
    same(answer.out[:1], gradient[:1], *true_ranks(request._replace(x=x[:1])), w[:1], n)


def test_gradients_hang_on_what_little_is_soft():
    """Nearly hard plans in single precision: means in one part would leave errors of 1e-3 in these four."""
    x = random(128, 10, seed=128010)[[3, 21, 72, 85]].to(DEVICE)
    request, phi = rank_request(x, 1e-3)
    answer, w, gradient = pulled(request, phi)
    assert all(taken == triton_rows.all_in_double(request) for taken in taken_over(answer))
    same(answer.out, gradient, *true_ranks(request), w, 10, grad=5e-5)


def some_rows(n):
    """Ordinary rows, and one of which about half is tied."""
    r = random(4, n, seed=n)
    return {"normal": r[0], "uniform": r[1].sigmoid(), "tied": r[2].relu(), "lognormal": r[3].exp()}


@pytest.mark.parametrize(
    ("n", "eps", "squash", "weighted"),
    [
        (2, 1e-1, "sigmoid", False),
        (9, 1e-2, "arctan", False),
        (16, 1e-3, "sigmoid", False),
        (20, 1e-3, None, True),
        (32, 1e-4, "sigmoid", False),
        (33, 1e-2, None, False),
        (33, 1e-2, "sigmoid", False),
        (48, 1e-3, "arctan", True),
        (64, 1e-1, "sigmoid", True),
        (100, 1e-2, "sigmoid", False),
        (100, 1e-4, "sigmoid", False),
        (128, 1e-3, "sigmoid", False),
    ],
)
def test_gradients_of_which_nearly_all_cancels(n, eps, squash, weighted):
    """The sum of squared ranks hardly changes with x: nearly all of what each rank does is undone by the others.

    So it is with every cotangent that grows or falls with the ranks. Errors of 1e-4 in one part of them would be errors
    of 1e-2 in what is left.
    """
    kinds = some_rows(n)
    x = torch.stack(list(kinds.values())).to(DEVICE)
    if squash is None:
        x = (x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True))
    a = torch.rand(4, n, generator=torch.Generator().manual_seed(n)).to(DEVICE) + 0.1 if weighted else None
    a = a / a.sum(-1, keepdim=True) if weighted else None
    request, phi = rank_request(x, eps, nodes_in_place_of(n, eps, "triton"), a, squash)
    answer = triton_rows.pull(request, phi)
    for w in (2 * answer.out, answer.out.square() / n, (answer.out - n / 2).abs()):
        gradient = triton_rows.pull_backward(request, phi, answer.state, w)
        same(answer.out, gradient, *true_ranks(request), w, n, list(kinds), out=2e-6, grad=8e-4)
    assert all(taken == triton_rows.all_in_double(request) for taken in taken_over(answer))


def soft_at_most(wide, eps):
    """How much the plan of each row leaves to other targets than the likeliest, on average: in float64."""
    p = sinksort.soft_permutation(wide, eps=eps, solver=sinksort.Newton(compress=False), backend="torch")
    return (1 - p.amax(-1)).mean(-1)


@pytest.mark.parametrize(("n", "eps"), [(3, 1e-2), (5, 1e-3), (8, 1e-4)])
def test_nearly_hard_plans_of_few_values_are_held(n, eps):
    """What is soft of them is far below rounding of a plan, and all that their gradients are made of."""
    x = random(10, n, seed=n).to(DEVICE)
    request, phi = rank_request(x, eps)
    answer, w, gradient = pulled(request, phi)
    wide, true = true_ranks(request)
    softness = soft_at_most(wide.detach(), eps)
    assert softness.min() < 1e-5
    assert softness.median() < 5e-3
    assert all(taken == triton_rows.all_in_double(request) for taken in taken_over(answer))
    (truth,) = torch.autograd.grad(true, wide, w.double(), retain_graph=True)
    resolved = truth.abs().amax(-1) > 1e-9  # the reference itself hangs on the last digits of double precision then
    assert resolved.sum() >= 4
    assert ((gradient - truth).abs().amax(-1) <= 3e-4 * truth.abs().amax(-1))[resolved].all()
    same(answer.out, gradient, wide, true, w, n, out=1e-6)


def test_weak_links_do_not_keep_rows_waiting(monkeypatch):
    """Rows that took 15 to 31 steps while rounding decided what flowed over their weakest link."""
    if DEVICE.type == "cuda":
        pytest.skip("a compiled kernel keeps its number of steps")
    x = random(10000, 10)[[3082, 8514, 2599, 7710]]
    monkeypatch.setattr(triton_held, "_STEPS", type(triton_held._STEPS)(10))
    request, phi = rank_request(x, 1e-3)
    answer, w, gradient = pulled(request, phi)
    assert all(taken == triton_rows.all_in_double(request) for taken in taken_over(answer))
    same(answer.out, gradient, *true_ranks(request), w, 10, out=1e-6, grad=5e-4)


def test_a_preconditioner_that_is_made_again_on_the_way(monkeypatch):
    """As for one row in thousands, whose start says nothing of its weakest links."""
    if DEVICE.type == "cuda":
        pytest.skip("a compiled kernel keeps its number of steps")
    monkeypatch.setattr(secant, "_TRUSTED", type(triton_held._STEPS)(5))
    request, phi = rank_request(random(2, 33), 1e-3)
    answer, w, gradient = pulled(request, phi)
    assert all(taken == triton_rows.all_in_double(request) for taken in taken_over(answer))
    same(answer.out, gradient, *true_ranks(request), w, 33, out=1e-6, grad=5e-4)


def test_a_target_that_weighs_a_little_more_than_a_value_is_not_taken_for_one_value():
    """Weights that are no whole number of values move mass over links that are weaker than what is moved."""
    x = torch.arange(6.0, device=DEVICE).unsqueeze(0) / 5
    b = torch.full((1, 6), 1 / 6, device=DEVICE)
    b[0, 1] += 2e-5
    b[0, 4] -= 2e-5
    y = torch.linspace(0, 1, 6, device=DEVICE).unsqueeze(0)
    phi = torch.arange(1.0, 7.0, device=DEVICE).unsqueeze(0)
    request = Request(x, None, y, b, 2e-3, None)
    answer, w, gradient = pulled(request, phi)
    assert taken_over(answer) == [True]
    same(answer.out, gradient, *true_pulls(request, phi), w, 6, out=2e-6)


def test_a_plan_without_anything_soft_has_a_gradient_of_rounding():
    hard = torch.arange(12.0, device=DEVICE).unsqueeze(0)
    request, phi = rank_request(hard / 11, 1e-6, squash=None)
    answer, _, gradient = pulled(request, phi)
    torch.testing.assert_close(answer.out, hard + 1, rtol=2e-7, atol=0)
    assert gradient.abs().max() <= 1e-7


@pytest.mark.parametrize(("n", "nodes"), [(40, None), (70, 32)])
def test_nothing_depends_on_what_memory_held_before(n, nodes):
    """Memory that nobody wrote to is filled with NaN."""
    a = torch.rand(2, n, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    a[:, ::7] = 0.0
    x = random(2, n).to(DEVICE)
    x[0, 0], x[1, 0] = 1e30, math.inf  # weigh nothing: influence nobody
    request, phi = rank_request(x, 0.05, nodes, a=a / a.sum(-1, keepdim=True))
    torch.use_deterministic_algorithms(True)
    try:
        assert x.new_empty(5).isnan().all()
        answer, w, gradient = pulled(request, phi)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(taken == triton_rows.all_in_double(request) for taken in taken_over(answer))
    same(answer.out, gradient, *true_ranks(request), w, n)


def test_targets_of_each_row_some_of_them_equal_some_without_weight():
    x = random(3, 24).to(DEVICE)
    y = torch.rand(3, 19, generator=torch.Generator().manual_seed(1)).sort().values.to(DEVICE)
    y[0, 5:8] = y[0, 5:6]  # one place for three
    y[2] = 0.3  # and for all
    b = torch.rand(3, 19, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    b[1, [0, 1, 9, 18]] = 0.0
    phi = random(3, 19, seed=5).to(DEVICE)
    request = Request(x, None, y, b / b.sum(-1, keepdim=True), 0.02, "sigmoid")
    answer, w, gradient = pulled(request, phi)
    same(answer.out, gradient, *true_pulls(request, phi), w, 1.0)
    assert (answer.error <= IN_DOUBT).all()


@pytest.mark.parametrize("squash", ["arctan", None])
def test_other_maps_into_the_unit_interval(squash):
    x = torch.rand(2, 70, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    x[1] = 0.3 + 0.2 * x[1]
    x[1, 3], x[1, 8] = math.inf, -math.inf
    request, phi = rank_request(x, 0.05, 32, squash=squash)
    answer, w, gradient = pulled(request, phi)
    same(answer.out, gradient, *true_ranks(request), w, 70)


def test_a_row_that_holds_nan_an_eps_for_each_row_and_any_strides():
    x = random(60, 3, seed=3).to(DEVICE)[::2].T
    x[2, 7] = math.nan
    eps = torch.tensor([1e-2, 0.1, 1e-2], device=DEVICE)
    request, phi = rank_request(x, eps)
    answer, w, gradient = pulled(request, phi)
    assert answer.out.isnan().all(-1).tolist() == gradient.isnan().all(-1).tolist() == [False, False, True]
    assert not (answer.error > IN_DOUBT).any()
    good = request._replace(x=x[:2], eps=eps[:2])
    same(answer.out[:2], gradient[:2], *true_ranks(good), w[:2], 30)
    one_for_all = w[:1, :1].expand(3, 30)  # as the gradient of a sum comes
    found = triton_rows.pull_backward(request, phi, answer.state, one_for_all)
    again = triton_rows.pull_backward(request, phi, answer.state, one_for_all.contiguous())
    assert torch.equal(found[:2], again[:2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_and_out(dtype):
    ranked_to_its_resolution(*rank_request(random(1, 40).to(DEVICE, dtype), 2e-2))


@pytest.mark.parametrize(("n", "k", "eps"), [(100, 10, 1e-2), (128, 127, 0.3)])
def test_two_targets(n, k, eps):
    at = membership_targets(k / n, True, DEVICE)
    request = Request(random(2, n).to(DEVICE), None, at.y, at.b, eps, "sigmoid")
    answer, w, gradient = pulled(request, at.phi)
    same(answer.out, gradient, *true_pulls(request, at.phi), w, 1.0)


def test_sorts_and_longer_rows_have_other_kernels():
    for read, held in (("pull", True), ("push", False)):
        for n, short in ((128, True), (129, False)):
            request, phi = rank_request(torch.zeros(1, n), nodes=32)
            answer = dispatch.kernels_for("triton", request, read, phi).answer
            assert (answer == dispatch.REGISTERS) == (held and short)
