"""Triton kernels for short rows against the float64 reference: on CUDA, or in Triton's interpreter without it."""

import math

import pytest
import torch

import sinksort
from sinksort.kernels.contract import Request
from sinksort.kernels.requests.targets import default_targets, membership_targets
from tests.devices import refusal
from tests.masks import true_mask

pytest.importorskip("triton", reason="Triton is made for Linux only")

from sinksort.kernels.gpu import rows as triton_rows
from sinksort.kernels.gpu.engine import state
from sinksort.kernels.gpu.exact import all_targets  # after the check that Triton is there

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WHOLE = sinksort.Newton(compress=False)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows(n):
    """One row of every kind, by name."""
    with_infinities = random(n, seed=8)
    with_infinities[0], with_infinities[-1] = math.inf, -math.inf
    outlying = random(n, seed=4)
    outlying[0] = 1e4
    groups = torch.arange(n) % 2 * 10.0
    return {
        "normal": random(n, seed=1),
        "exponential": torch.rand(n, generator=torch.Generator().manual_seed(2)).log(),
        "heavy-tailed": random(n, seed=3) / random(n, seed=13),
        "tied": (2 * random(n, seed=5)).round() / 2,
        "few-valued": torch.arange(n).float() % 3,
        "constant": torch.full((n,), 3.7),
        "zero": torch.zeros(n),
        "outlying": outlying,
        "two groups": groups + 0.1 * random(n, seed=6),
        "five groups": torch.arange(n) % 5 * 10.0 + 0.1 * random(n, seed=7),
        "infinite": with_infinities,
        "huge": 1e30 * random(n, seed=9),
        "tiny": 1e-30 * random(n, seed=10),
        "far from zero": 1e6 + random(n, seed=11).round(),
    }


def rank_request(x, eps=1e-2, nodes=None, a=None, squash="sigmoid", m=None, descending=False):
    n = x.shape[-1]
    at = default_targets(n, m or n, nodes, descending, x.device)
    return Request(x, a, at.y, at.b, eps, squash, at.m, at.last), at.phi


def true_ranks(request, descending=False):
    x = request.x.double().requires_grad_()
    eps = request.eps.double() if isinstance(request.eps, torch.Tensor) else request.eps
    m = request.m or request.y.shape[-1]
    options = {"weights": request.a, "squash": request.squash, "num_targets": m, "descending": descending}
    return x, sinksort.soft_rank(x, eps=eps, solver=WHOLE, backend="torch", **options)


def pulled(request, phi):
    """Answer, cotangent of it, and gradient."""
    answer = triton_rows.pull(request, phi)
    w = random(*answer.out.shape, seed=20).to(request.x)
    return answer, w, triton_rows.pull_backward(request, phi, answer.state, w)


def taken_over(answer):
    """Which rows the last launch has answered."""
    return (answer.state.view(torch.int8)[:, state.REJECTED.value] != 0).tolist()


def pushed(request):
    answer = triton_rows.push(request)
    c = random(*answer.out.shape, seed=21).to(answer.out)
    return answer, c, triton_rows.push_backward(request, answer.state, c)


def same(found, gradient, x, true, cotangent, scale, names=None, out=1e-5, grad=1e-3):
    """Answers within ``out`` of ``scale``, gradients within ``grad`` of the largest of their row.

    What is below 1e-9 of the gradients that a softer plan would have is below what the reference itself resolves.
    """
    (truth,) = torch.autograd.grad(true, x, cotangent.to(true))
    spread = torch.where(x.isfinite(), x, torch.nan).detach().abs()
    unit = spread.nan_to_num(0.0).amax(-1).clamp(min=1e-300)
    for i in range(len(found)):
        name = names[i] if names else i
        assert (found[i] - true[i]).abs().max() <= out * scale, name
        largest = truth[i].abs().max()
        floor = 1e-9 * len(found[i]) * cotangent[i].double().abs().max() / unit[i]
        assert (gradient[i] - truth[i]).abs().max() <= grad * largest + floor, name


def ranked_to_its_resolution(request, phi):
    """Ranks and gradients of x in half precision: as exact as it can say."""
    answer, w, gradient = pulled(request, phi)
    assert answer.out.dtype == gradient.dtype == request.x.dtype
    wide, true = true_ranks(request)
    (truth,) = torch.autograd.grad(true, wide, w.double())
    resolution = torch.finfo(request.x.dtype).eps
    assert torch.allclose(answer.out.double(), true, rtol=resolution, atol=0)
    assert (gradient - truth).abs().max() <= resolution * truth.abs().max()


@pytest.mark.parametrize(("n", "eps"), [(13, 1e-2), (16, 1e-3), (9, 1e-4)])
def test_ranks_of_every_kind_of_row(n, eps):
    kinds = rows(n)
    request, phi = rank_request(torch.stack(list(kinds.values())).to(DEVICE), eps)
    answer, w, gradient = pulled(request, phi)
    same(answer.out, gradient, *true_ranks(request), w, n, list(kinds))
    assert (answer.error <= 5e-6).all()


def test_sorted_values_of_every_kind_of_row():
    kinds = rows(10)
    for name in ("infinite", "zero", "tiny", "exponential"):  # an infinite value is part of every average
        del kinds[name]
    x = torch.stack(list(kinds.values())).to(DEVICE)
    request, _ = rank_request(x)
    answer, c, gradient = pushed(request)
    wide = x.double().requires_grad_()
    true = sinksort.soft_sort(wide, solver=WHOLE, backend="torch")
    for i, name in enumerate(kinds):
        size = x[i].abs().max().double()
        (truth,) = torch.autograd.grad(true[i], wide, c[i].double(), retain_graph=True)
        assert (answer.out[i] - true[i]).abs().max() <= 1e-5 * size, name
        assert (gradient[i] - truth[i]).abs().max() <= 1e-3 * truth[i].abs().max(), name


def test_sorted_values_one_of_which_is_very_far_from_all_others():
    """Places of the others differ by what single precision does not see, and the start is to be near all the same."""
    x = random(3, 54, seed=3)
    x[:, 5] = torch.tensor([1e4, -1e6, 1e7])
    a = torch.rand(3, 54, generator=torch.Generator().manual_seed(4))
    request, _ = rank_request(x.to(DEVICE), 1.75e-4, a=(a / a.sum(-1, keepdim=True)).to(DEVICE), squash=None)
    answer = triton_rows.push(request)
    true = sinksort.soft_sort(
        request.x.double(), eps=request.eps, weights=request.a, squash=None, solver=WHOLE, backend="torch"
    )
    assert ((answer.out - true).abs().amax(-1) <= 1e-6 * request.x.abs().amax(-1)).all()
    near = true.abs() < 10
    assert near.sum() >= 3 * 50
    assert (answer.out - true).abs()[near].max() <= 1e-5


@pytest.mark.parametrize("squash", ["arctan", None])
def test_other_maps_into_the_unit_interval(squash):
    x = random(2, 14).to(DEVICE)
    x = x if squash else torch.cat([x, torch.rand(2, 14, generator=torch.Generator().manual_seed(1)).to(x)])
    request, phi = rank_request(x, squash=squash)
    answer, w, gradient = pulled(request, phi)
    same(answer.out, gradient, *true_ranks(request), w, 14)


def test_without_a_squash_a_value_may_be_far_from_all_others():
    """Single precision moved the others by 3e-5, or lost them; their sorted values were the middle of the range."""
    x = torch.rand(1, 4, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    x[0, 2] = 1e6
    request, phi = rank_request(x, squash=None)
    answer, w, gradient = pulled(request, phi)
    same(answer.out, gradient, *true_ranks(request), w, 4, out=2e-7)
    x[0, 2] = 1e8
    true = sinksort.soft_sort(x.double(), squash=None, solver=WHOLE, backend="torch")
    assert (triton_rows.push(request).out - true).abs().max() <= 10.0  # 1e-7 of the range


def test_infinite_values_without_a_squash_go_to_the_ends():
    x = torch.tensor([[0.3, math.inf, 0.9, -math.inf, 0.1], [math.inf, 2.0, -1.0, 0.5, 0.6]], device=DEVICE)
    within = 0.3 + 0.4 * torch.rand(1, 60, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    within[0, 3], within[0, 7] = math.inf, -math.inf
    for request, phi in (
        rank_request(x, squash=None),
        rank_request(within, 0.1, nodes=16, squash=None),
    ):  # nodes lie inside
        answer, w, gradient = pulled(request, phi)
        same(answer.out, gradient, *true_ranks(request), w, request.x.shape[-1])


@pytest.mark.parametrize(("n", "eps"), [(1, 0.1), (2, 1.0), (3, 0.1)])
def test_very_short_rows(n, eps):
    request, phi = rank_request(random(2, n).to(DEVICE), eps)
    answer, w, gradient = pulled(request, phi)
    same(answer.out, gradient, *true_ranks(request), w, n)


def test_a_row_that_holds_nan_is_nan_and_no_other():
    x = random(3, 11).to(DEVICE)
    x[1, 4] = math.nan
    request, phi = rank_request(x)
    answer, _, gradient = pulled(request, phi)
    assert answer.out[1].isnan().all()
    assert gradient[1].isnan().all()
    assert not answer.out[[0, 2]].isnan().any()
    assert not gradient[[0, 2]].isnan().any()
    assert not (answer.error > 5e-6).any()
    out, _, gradient = pushed(request)
    assert out.out.isnan().all(-1).tolist() == gradient.isnan().all(-1).tolist() == [False, True, False]


def test_an_infinite_value_reaches_every_sorted_value_unless_it_weighs_nothing():
    x = torch.tensor([[1.0, math.inf, 2.0, 0.5], [-math.inf, 1.0, 2.0, 0.5], [math.inf, 1.0, 2.0, 0.5]], device=DEVICE)
    a = torch.tensor([[0.25] * 4, [0.25] * 4, [0.0, 0.5, 0.25, 0.25]], device=DEVICE)
    request, _ = rank_request(x, a=a)
    out = triton_rows.push(request).out
    assert (out[0] == math.inf).all()
    assert (out[1] == -math.inf).all()
    true = sinksort.soft_sort(x[2].double(), weights=a[2], solver=WHOLE, backend="torch")
    assert torch.allclose(out[2].double(), true, atol=1e-5)


@pytest.mark.parametrize(
    ("n", "eps", "nodes"),
    [(300, 1e-2, 40), (28, 1e-2, 20), (33, 3e-3, 24)],
    ids=["the rule is enough", "and not believed", "not enough"],
)
def test_a_rule_in_place_of_all_targets(n, eps, nodes):
    x = torch.stack([random(n), torch.arange(n) % 3 * 10.0 + 0.1 * random(n, seed=2)]).to(DEVICE)
    request, phi = rank_request(x[:1] if n == 300 else x, eps, nodes)
    answer, w, gradient = pulled(request, phi)
    same(answer.out, gradient, *true_ranks(request), w, n, out=2e-6)
    assert (answer.error <= 5e-6).all()


def test_a_rule_that_is_not_enough_is_noticed():
    """Three groups far apart: with 24 nodes ranks would be off by more than 1e-5 n, and the estimate must say so."""
    x = (torch.arange(64) % 3 * 10.0 + 0.1 * random(64, seed=2)).unsqueeze(0).to(DEVICE)
    request, phi = rank_request(x, 3e-3, 24)
    by_nodes = triton_rows.pull(request._replace(m=None, last=None), phi)
    assert (by_nodes.out - true_ranks(request)[1]).abs().max() > 1e-5 * 64
    assert (triton_rows.pull(request, phi).out - true_ranks(request)[1]).abs().max() < 1e-6 * 64


def test_descending_ranks_by_rule_and_without():
    x = random(1, 30).to(DEVICE)
    for nodes in (None, 24):
        request, phi = rank_request(x, nodes=nodes, descending=True)
        answer, w, gradient = pulled(request, phi)
        same(answer.out, gradient, *true_ranks(request, descending=True), w, 30)


@pytest.mark.parametrize("nodes", [None, 12])
def test_weights_some_of_them_zero(nodes):
    x = random(2, 16).to(DEVICE)
    a = torch.rand(2, 16, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    a[:, ::5] = 0.0
    x[0, 0] = 1e30  # weighs nothing: influences nobody
    request, phi = rank_request(x, nodes=nodes, a=a / a.sum(-1, keepdim=True))
    answer, w, gradient = pulled(request, phi)
    same(answer.out, gradient, *true_ranks(request), w, 16)


def test_rows_in_any_layout():
    table = random(14, 6).to(DEVICE)
    one_row = random(1, 14).to(DEVICE)
    request, phi = rank_request(torch.cat([table[:, ::3].T, one_row.expand(2, 14)]).contiguous())
    expected, w, _ = pulled(request, phi)
    for x, at in ((table.T[::3], slice(0, 2)), (one_row.expand(2, 14), slice(2, 4))):
        found = triton_rows.pull(request._replace(x=x), phi)
        assert torch.equal(found.out, expected.out[at])
        one_for_all = w[:1, :1].expand(2, 14)  # as the gradient of a sum comes
        gradient = triton_rows.pull_backward(request._replace(x=x), phi, found.state, one_for_all)
        again = triton_rows.pull_backward(
            request._replace(x=x.contiguous()), phi, found.state, one_for_all.contiguous()
        )
        assert torch.equal(gradient, again)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_and_out(dtype):
    ranked_to_its_resolution(*rank_request(random(2, 12).to(DEVICE, dtype)))


def test_an_eps_for_each_row():
    x = random(2, 12).to(DEVICE)
    eps = torch.tensor([1e-2, 0.1], device=DEVICE)
    request, phi = rank_request(x, eps)
    answer, w, gradient = pulled(request, phi)
    for i, each in enumerate(eps.tolist()):
        alone = request._replace(x=x[i : i + 1], eps=each)
        same(answer.out[i : i + 1], gradient[i : i + 1], *true_ranks(alone), w[i : i + 1], 12)


@pytest.mark.parametrize("eps", [1e-2, 3e-3])
def test_memberships_of_the_largest(eps):
    x = random(2, 30).to(DEVICE)
    at = membership_targets(4 / 30, True, DEVICE)
    answer, w, gradient = pulled(Request(x, None, at.y, at.b, eps, "sigmoid"), at.phi)
    wide = x.double().requires_grad_()
    true = sinksort.soft_topk_mask(wide, 4, eps=eps, solver=WHOLE, backend="torch")
    same(answer.out, gradient, wide, true, w, 1.0)


def test_quantiles_with_targets_of_each_row_and_slots_without_one():
    """Levels 0 and 0.5 of one row: for the lowest, nothing lies below the filler."""
    x = random(1, 21).to(DEVICE).expand(2, 21)
    t = 1 / 21
    b = torch.tensor([[0.0, t, 1 - t], [0.5 - t / 2, t, 0.5 - t / 2]], device=DEVICE)
    y = torch.tensor([[0.0, 0.5, 1.0]], device=DEVICE)
    request = Request(x, None, y, b, 1e-2, "sigmoid")
    answer = triton_rows.push(request)
    c = torch.tensor([[0.0, 1.0, 0.0]] * 2, device=DEVICE)
    gradient = triton_rows.push_backward(request, answer.state, c)
    wide = x[0].double().requires_grad_()
    true = sinksort.soft_quantile(wide, [0.0, 0.5], solver=WHOLE, backend="torch")
    assert torch.allclose(answer.out[:, 1].double(), true, atol=1e-5)
    for i in range(2):
        (truth,) = torch.autograd.grad(true[i], wide, retain_graph=True)
        assert (gradient[i] - truth).abs().max() <= 1e-3 * truth.abs().max()


def test_more_targets_than_a_matrix_takes():
    x = random(1, 9).to(DEVICE)
    request, phi = rank_request(x, m=300)
    answer, w, gradient = pulled(request, phi)
    same(answer.out, gradient, *true_ranks(request), w, 9)
    request, _ = rank_request(x, m=140)
    answer, c, gradient = pushed(request)
    wide = x.double().requires_grad_()
    same(answer.out, gradient, wide, sinksort.soft_sort(wide, num_targets=140, solver=WHOLE, backend="torch"), c, 1.0)


def test_what_cannot_be_solved_is_nan_and_never_wrong(monkeypatch):
    if DEVICE.type == "cuda":
        pytest.skip("a compiled kernel keeps its number of steps")
    monkeypatch.setattr(all_targets, "_STEPS", type(all_targets._STEPS)(0))
    x = torch.stack([random(40), 3.0 * torch.ones(40)])
    request, phi = rank_request(x, 1e-3, 24)  # too few nodes for the first row
    answer, _, gradient = pulled(request, phi)
    assert answer.out.isnan().all(-1).tolist() == gradient.isnan().all(-1).tolist() == [True, False]
    assert (answer.error > 5e-6).tolist() == [True, False]


def test_operators_by_name_of_the_backend():
    x = random(2, 10).to(DEVICE).requires_grad_()
    wide = x.detach().double().requires_grad_()
    for operator in (sinksort.soft_rank, sinksort.soft_sort):
        found = operator(x, backend="triton")
        assert sinksort.last_backend() == "triton"
        true = operator(wide, backend="torch")
        assert torch.allclose(found.double(), true, atol=1e-5 * 10)
        (gradient,) = torch.autograd.grad(found.square().sum(), x)
        (truth,) = torch.autograd.grad(true.square().sum(), wide)
        assert (gradient - truth).abs().max() <= 1e-3 * truth.abs().max()


def test_why_an_ask_is_refused(monkeypatch):
    request, _ = rank_request(torch.zeros(1, 5))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_rows.unable(request) is None
    assert "single precision, and x is torch.float64" in triton_rows.unable(request._replace(x=request.x.double()))
    assert "one by one and 128 nodes" in str(refusal("triton", request._replace(x=torch.zeros(1, 2049))))
    assert "at most 2048 values and targets, and there are 5000" in str(refusal("triton", request._replace(m=5000)))
    assert "squash='tanh'" in triton_rows.unable(request._replace(squash="tanh"))
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "run on CUDA, and x is on cpu" in triton_rows.unable(request)


@pytest.mark.parametrize("eps", [1e-2, 1e-3])
def test_a_target_that_weighs_next_to_nothing_is_reached_exactly(eps):
    """Five of a thousand: the marginal error that is small for equal targets is all that this one gets."""
    x = random(3, 1000, seed=2).to(DEVICE).requires_grad_()
    wide = x.detach().double().requires_grad_()
    w = random(3, 1000, seed=3).to(DEVICE)
    out = sinksort.soft_topk_mask(x, 5, eps=eps, backend="triton")
    true = sinksort.soft_topk_mask(wide, 5, eps=eps, solver=WHOLE, backend="torch")
    torch.testing.assert_close(out.double(), true, rtol=0, atol=1e-5)
    (gradient,), (true_gradient,) = torch.autograd.grad(out, x, w), torch.autograd.grad(true, wide, w.double())
    assert ((gradient - true_gradient).abs().amax(-1) <= 1e-3 * true_gradient.abs().amax(-1)).all()


@pytest.mark.parametrize(("n", "k"), [(60, 2), (60, 57), (200, 1), (200, 199)])
def test_masks_that_are_nearly_hard(n, k):
    """Gradients right to 1e-3 of themselves, though some are a billionth of others."""
    x = random(6, n, seed=n).to(DEVICE).requires_grad_()
    wide = x.detach().double().requires_grad_()
    w = random(6, n, seed=3).to(DEVICE)
    out = sinksort.soft_topk_mask(x, k, eps=1e-3, backend="triton")
    true = true_mask(wide, k, 1e-3, "sigmoid", None, largest=True)
    torch.testing.assert_close(out.double(), true, rtol=0, atol=1e-5)
    (gradient,), (true_gradient,) = torch.autograd.grad(out, x, w), torch.autograd.grad(true, wide, w.double())
    sizes = true_gradient.abs().amax(-1)
    assert sizes.min() < 1e-4 * sizes.max()
    assert ((gradient - true_gradient).abs().amax(-1) <= 1e-3 * sizes).all()


def test_gradients_of_plans_that_are_nearly_hard():
    """Couplings from a tenth down to what single precision rounds to zero, one row each."""
    n, R = 6, 12
    x = random(1, n, seed=5).expand(R, n).contiguous().to(DEVICE)
    eps = 1.0 / torch.cat([torch.linspace(10.0, 6000.0, 4), torch.linspace(8000.0, 42000.0, 8)]).to(DEVICE)
    at = default_targets(n, n, None, False, x.device)
    request, c = Request(x, None, at.y, at.b, eps, "sigmoid"), random(R, n, seed=6).to(DEVICE)
    gradient = triton_rows.push_backward(request, triton_rows.push(request).state, c)
    wide = x.double().requires_grad_()
    true = sinksort.soft_sort(wide, eps=eps.double(), solver=WHOLE, backend="torch")
    (true_gradient,) = torch.autograd.grad(true, wide, c.double())
    assert ((gradient - true_gradient).abs().amax(-1) <= 1e-3 * true_gradient.abs().amax(-1)).all()
