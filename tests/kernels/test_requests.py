"""The operators by way of fused kernels: the same answers as the reference, in every mode of torch."""

from __future__ import annotations

import logging

import pytest
import torch

import sinksort
from sinksort.core.solvers import Newton
from sinksort.kernels import backends, memo, reference
from sinksort.kernels.contract import Request

EXACT = Newton(compress=False)


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


CALLS = {
    "rank": lambda x, **o: sinksort.soft_rank(x, **o),
    "rank from the top": lambda x, **o: sinksort.soft_rank(x, descending=True, **o),
    "rank along the first": lambda x, **o: sinksort.soft_rank(x, dim=0, **o),
    "rank on 7 targets": lambda x, **o: sinksort.soft_rank(x, num_targets=7, **o),
    "rank, given targets": lambda x, **o: sinksort.soft_rank(
        x, targets=torch.tensor([0.1, 0.3, 0.9]).to(x), target_weights=torch.tensor([1.0, 2.0, 1.0]).to(x), **o
    ),
    "weighted rank": lambda x, **o: sinksort.soft_rank(x, weights=torch.arange(x.shape[-1]).to(x), **o),
    "masked rank": lambda x, **o: sinksort.soft_rank(x, mask=torch.arange(x.shape[-1]) % 3 > 0, **o),
    "rank, arctan": lambda x, **o: sinksort.soft_rank(x, squash="arctan", **o),
    "rank, no squash": lambda x, **o: sinksort.soft_rank(x, squash=None, **o),
    "sort": lambda x, **o: sinksort.soft_sort(x, **o),
    "sort from the top": lambda x, **o: sinksort.soft_sort(x, descending=True, dim=0, **o),
    "sort on 4 targets": lambda x, **o: sinksort.soft_sort(x, num_targets=4, **o),
    "quantile": lambda x, **o: sinksort.soft_quantile(x, 0.3, **o),
    "quantiles, kept dim": lambda x, **o: sinksort.soft_quantile(x, [0.9, 0.0, 0.5], keepdim=True, **o),
    "masked quantile": lambda x, **o: sinksort.soft_quantile(x, 0.3, mask=torch.arange(x.shape[-1]) % 3 > 0, **o),
    "weighted median": lambda x, **o: sinksort.soft_median(x, weights=torch.arange(x.shape[-1]).to(x), **o),
    "wide median": lambda x, **o: sinksort.soft_median(x, width=0.3, dim=0, **o),
    "top-k mask": lambda x, **o: sinksort.soft_topk_mask(x, 3, **o),
    "bottom mask": lambda x, **o: sinksort.soft_topk_mask(x, 2.5, largest=False, **o),
    "masks of their own k": lambda x, **o: sinksort.soft_topk_mask(x, torch.arange(1.0, 1 + len(x)), **o),
    "top-k values": lambda x, **o: sinksort.soft_topk(x, 3, **o).values,
    "top-k membership": lambda x, **o: sinksort.soft_topk(x, 3, **o).mask,
}


#: Masks and sorts take every eps, and so do three or four targets of rows that are not short; these down to 1e-3.
TWO = ("top-k mask", "bottom mask", "masks of their own k")
FEW = ("sort on 4 targets", "quantile", "quantiles, kept dim", "masked quantile", "weighted median", "top-k values",
       "top-k membership")  # fmt: skip
ALONG_THE_FIRST = ("sort from the top", "wide median")


@pytest.mark.parametrize("shape", [(3, 12), (5, 90)])
@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("name", CALLS)
def test_operators_and_gradients_are_those_of_the_reference(name, eps, shape):
    call, x = CALLS[name], rows(*shape)
    n = shape[0] if name in ALONG_THE_FIRST else shape[-1]
    fine = "rank" in name or name in ("sort", *TWO) or n <= 20 or (name in FEW and n >= 64)
    if eps < 5e-3 and not fine:
        with pytest.raises(ValueError, match=r"sort and select from eps = 0\.005 up, and eps = 0\.001"):
            call(x, eps=eps, backend="numba")
        return
    ours, truth = x.clone().requires_grad_(), x.double().requires_grad_()
    out = call(ours, eps=eps, backend="numba")
    assert sinksort.last_backend() == "numba"
    exact = call(truth, eps=eps, solver=EXACT)
    scale = exact.abs().amax().item()
    assert out.shape == exact.shape
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=1e-5 * scale)
    w = rows(*out.shape, seed=1)
    out.backward(w)
    exact.backward(w.double())
    size = truth.grad.abs().amax().item()
    torch.testing.assert_close(ours.grad.double(), truth.grad, rtol=0, atol=1e-3 * size + 1e-7 * scale)


@pytest.mark.parametrize(("n", "targets", "least"), [(20, 4, "0.001"), (21, 4, "0.005"), (63, 3, "0.005")])
def test_sorts_on_a_few_targets_say_from_which_entropy_on_kernels_answer_them(n, targets, least):
    x, eps = rows(3, n), 0.99 * float(least)
    with pytest.raises(ValueError, match=rf"sort and select from eps = {least} up, and eps = {eps:g}; backend='auto'"):
        sinksort.soft_sort(x, num_targets=targets, eps=eps, backend="numba", solver=sinksort.Newton(tolerance=1e-4))
    answer = sinksort.soft_sort(x, num_targets=targets, eps=eps)  # in double precision
    assert sinksort.last_backend() == "numba"
    reference = sinksort.soft_sort(x, num_targets=targets, eps=eps, backend="torch")
    torch.testing.assert_close(answer, reference, rtol=1e-6, atol=1e-6)
    sinksort.soft_sort(x, num_targets=targets, eps=float(least))
    assert sinksort.last_backend() == "numba"


def test_auto_takes_kernels_and_says_so():
    sinksort.soft_rank(rows(4, 20))
    assert sinksort.last_backend() == "numba"
    sinksort.soft_rank(rows(4, 20).double())
    assert sinksort.last_backend() == "numba"
    sinksort.soft_rank(rows(4, 20), backend="torch")
    assert sinksort.last_backend() == "torch"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cost": 1}, "know the squared cost only, and cost=1"),
        ({"squash": lambda x: x + 10.0}, "take places in [0, 1] of a callable squash, or of a learned eps"),
        ({"eps": torch.tensor(1e-3, requires_grad=True)}, "a learned eps that is not below 0.005"),
        ({"eps": torch.tensor([0.1, 1e30])}, "take eps from 1e-10 to 1e+20, and eps is from 0.1 to 1e+30"),
        ({"solver": EXACT}, "have their own solver, and solver=Newton"),
        ({"weights": torch.ones(6, requires_grad=True)}, "differentiate in x only, and another argument requires"),
        ({"num_targets": 3000, "eps": 1e-6}, "at most 128 targets one by one, and there are 3000"),
    ],
)
def test_what_kernels_cannot_do_is_an_error_by_name_and_the_reference_for_auto(options, reason):
    x, options = rows(2, 6), {"num_targets": 3000, **options}  # more than the kernels in double precision take
    with pytest.raises(ValueError, match=r"backend='numba' cannot answer this call: its kernels") as caught:
        sinksort.soft_rank(x, backend="numba", **options)
    assert reason in str(caught.value)
    assert "backend='auto' chooses one that can" in str(caught.value)
    sinksort.soft_rank(x, **options)
    assert sinksort.last_backend() == "torch"


@pytest.mark.parametrize(
    "options",
    [
        {"cost": 1},
        {"squash": torch.sigmoid},
        {"eps": torch.tensor(0.1)},
        {"weights": torch.ones(6, requires_grad=True)},
        {"num_targets": 300, "eps": 1e-6},
    ],
)
def test_what_single_precision_cannot_do_double_precision_can(options):
    x = rows(2, 6)
    answer = sinksort.soft_rank(x, backend="numba", **options)
    assert sinksort.last_backend() == "numba"
    torch.testing.assert_close(answer, sinksort.soft_rank(x, backend="torch", **options), rtol=0, atol=1e-5)


def test_unknown_backends_and_float64_of_long_rows_are_refused():
    with pytest.raises(ValueError, match=r"single precision, and x is torch\.float64"):
        sinksort.soft_rank(rows(2, 40_000).double(), backend="numba")
    with pytest.raises(ValueError, match="backend must be one of 'auto', 'torch', 'triton', 'numba', got 'cuda'"):
        sinksort.soft_rank(rows(2, 6), backend="cuda")


def test_a_missing_package_is_an_error_by_name_and_logged_once_for_auto(monkeypatch, caplog):
    monkeypatch.setitem(backends._MISSING, "numba", backends._missing("a_package_that_is_not_there", "numba"))
    monkeypatch.setattr(memo, "_remembered", {})
    backends._said.clear()
    with pytest.raises(ValueError, match=r"is not installed; install it with: pip install numba"):
        sinksort.soft_rank(rows(2, 6), backend="numba")
    with caplog.at_level(logging.INFO, logger="sinksort"):
        for _ in range(3):
            sinksort.soft_rank(rows(2, 6))
    assert sinksort.last_backend() == "torch"
    assert [r.message for r in caplog.records].count(caplog.records[0].message) == 1
    assert "fused kernels are not used" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_comes_and_goes(dtype):
    x = rows(3, 40).to(dtype).requires_grad_()
    out = sinksort.soft_rank(x, backend="numba")
    out.sum().backward()
    assert out.dtype == x.grad.dtype == dtype
    exact = sinksort.soft_rank(x.detach().double())
    torch.testing.assert_close(out.double(), exact, rtol=torch.finfo(dtype).eps, atol=4e-4)


def clusters(n: int, groups: int = 2) -> torch.Tensor:
    """Far apart: the density of targets has edges that a small rule does not see."""
    return rows(n) * 1e-3 + torch.arange(n).remainder(groups) * 10.0


@pytest.mark.parametrize("n", [150, 700])
def test_rows_that_a_kernel_cannot_do_are_done_by_the_reference(n):
    x = torch.stack([rows(n), clusters(n), rows(n, seed=3)])
    ours, truth = x.clone().requires_grad_(), x.double().requires_grad_()
    out = sinksort.soft_rank(ours, eps=1e-2, backend="numba")
    exact = sinksort.soft_rank(truth, eps=1e-2, solver=EXACT)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=1e-5 * n)
    w = rows(3, n, seed=2)
    out.backward(w)
    exact.backward(w.double())
    torch.testing.assert_close(ours.grad.double(), truth.grad, rtol=0, atol=1e-3 * truth.grad.abs().max().item())


# ---- modes of torch


def test_second_derivatives_are_those_of_the_reference():
    x = rows(2, 8)
    w, v = rows(2, 8, seed=1), rows(2, 8, seed=2)

    def twice(x, w, v, **options):
        x = x.requires_grad_()
        (g,) = torch.autograd.grad((sinksort.soft_rank(x, eps=0.05, **options) * w).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad((g * v).sum(), x)
        return g.detach(), h

    for ours, exact in zip(
        twice(x.clone(), w, v, backend="numba"), twice(x.double(), w.double(), v.double()), strict=True
    ):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-5)


def test_forward_mode_goes_by_the_reference():
    x, v = rows(6), rows(6, seed=1)
    _, ours = torch.func.jvp(sinksort.soft_rank, (x,), (v,))
    _, exact = torch.func.jvp(sinksort.soft_rank, (x.double(),), (v.double(),))
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


def test_vmap_and_grad_of_torch_func():
    x, w = rows(4, 3, 9), rows(4, 3, 9, seed=1)
    along = torch.func.vmap(lambda x: sinksort.soft_quantile(x, 0.5, backend="numba"), in_dims=1)(x)
    torch.testing.assert_close(along, sinksort.soft_quantile(x, 0.5).T, rtol=0, atol=1e-5)

    def loss(x, w, backend="auto"):
        return (sinksort.soft_rank(x, eps=0.05, backend=backend) * w).sum()

    ours = torch.func.vmap(torch.func.grad(loss))(x, w)
    truth = x.double().requires_grad_()
    loss(truth, w.double()).backward()
    torch.testing.assert_close(ours.double(), truth.grad, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match=r"differentiated by autograd, not by the transforms of torch\.func"):
        torch.func.grad(lambda x: loss(x, w, "numba"))(x)


def test_a_batch_of_vmap_is_differentiable():
    x = rows(4, 9).requires_grad_()
    out = torch.func.vmap(lambda x: sinksort.soft_rank(x, eps=0.05, backend="numba"))(x)
    out.backward(w := rows(4, 9, seed=1))
    truth = x.detach().double().requires_grad_()
    sinksort.soft_rank(truth, eps=0.05).backward(w.double())
    torch.testing.assert_close(x.grad.double(), truth.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [20, 80])
@pytest.mark.parametrize(
    "call", [CALLS["rank"], CALLS["quantile"], CALLS["top-k mask"]], ids=["rank", "quantile", "mask"]
)
def test_compiled_programs_see_one_operator(call, n):
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    x = rows(3, n)
    compiled = torch.compile(lambda x: call(x, backend="numba"), backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x), call(x, backend="numba"), rtol=0, atol=0)
    assert sum("sinksort.read." in str(node.target) for node in graphs[0].graph.nodes) == 1

    trained = torch.compile(lambda x: call(x, backend="numba"), backend="aot_eager", fullgraph=True)
    ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
    trained(ours).sum().backward()
    call(eager, backend="numba").sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad)


def test_operators_are_registered_as_torch_wants_them():
    from sinksort.kernels import autograd
    from sinksort.kernels.requests.targets import default_targets

    x = rows(3, 12).requires_grad_()
    at = default_targets(12, 12, None, False, x.device)
    request = autograd._flat(Request(x, None, at.y, at.b, 0.01, "sigmoid"))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(autograd._read_op, (*request, at.phi, "pull", "numba"), test_utils=checks)
    torch.library.opcheck(autograd._read_op, (*request, None, "push", "numba"), test_utils=checks)


def test_autocast_changes_nothing():
    x = rows(3, 30)
    with torch.autocast("cpu", torch.bfloat16):
        under = sinksort.soft_rank(x)
    torch.testing.assert_close(under, sinksort.soft_rank(x), rtol=0, atol=0)


def test_no_rows_are_no_answers():
    assert sinksort.soft_rank(torch.empty(0, 5)).shape == (0, 5)
    assert sinksort.soft_quantile(torch.empty(0, 5), 0.5).shape == (0,)


@pytest.mark.filterwarnings("error")
def test_rows_left_to_the_reference_converge():
    """Nearly hard masks, whose targets weigh what single precision makes of 0.95 and 0.05."""
    x = rows(64, 100)
    given = Request(x, None, torch.tensor([[0.0, 1.0]]), torch.tensor([[0.95, 0.05]]), 1e-4, "sigmoid")
    out = reference.pulled(given, torch.tensor([[0.0, 1.0]]))
    torch.testing.assert_close(out.double(), sinksort.soft_topk_mask(x.double(), 5, eps=1e-4), rtol=0, atol=1e-5)


def operations(call):
    """The names of all operations of torch in a call. Not by a mode of torch, under which nothing is remembered."""
    with torch.autograd.profiler.profile() as profile:
        call()
    return {event.name for event in profile.function_events}


@pytest.mark.parametrize("q", [0.3, [0.1, 0.5]])
def test_a_second_call_brings_no_levels_from_the_host(q):
    """A CUDA graph cannot record a copy of numbers from the host: a tensor that is made of them."""
    x = rows(2, 37).double()
    first, second = (operations(lambda: sinksort.soft_quantile(x, q, backend="torch")) for _ in range(2))
    assert "aten::lift_fresh" in first
    assert "aten::lift_fresh" not in second


@pytest.mark.parametrize("n", [21, 64, 333])
@pytest.mark.parametrize("eps", [4e-3, 1e-3, 1e-4])
def test_sharp_quantiles_and_top_values_are_right_row_by_row(n, eps):
    """At the levels 0 and 1 a target is empty; of 64 values k / n is exact, and rows are as hard as their gaps."""
    calls = [lambda x, q=q, **o: sinksort.soft_quantile(x, q, **o).unsqueeze(-1) for q in (0.0, 0.1, 0.5, 1.0)]
    if n == 64:
        calls += [lambda x, k=k, **o: sinksort.soft_topk(x, k, **o).values for k in (2, 3)]
    normal = rows(8, n)
    for x in (normal, (2 * normal).round(), normal / rows(8, n, seed=1)):
        for call in calls:
            ours, truth = x.clone().requires_grad_(), x.double().requires_grad_()
            out, exact = call(ours, eps=eps, backend="numba"), call(truth, eps=eps, solver=EXACT)
            assert ((out - exact).abs() <= 1e-5 * x.abs().amax(-1, keepdim=True)).all()
            w = rows(*out.shape, seed=2)
            out.backward(w)
            exact.backward(w.double())
            assert ((ours.grad - truth.grad).abs() <= 1e-3 * truth.grad.abs().amax(-1, keepdim=True)).all()


def test_a_call_made_before_is_decided_as_before_and_no_other_is(monkeypatch):
    monkeypatch.setattr(memo, "_remembered", {})
    x = rows(5, 30)
    for _ in range(2):
        other = rows(5, 30, seed=2).requires_grad_()
        assert torch.equal(sinksort.soft_rank(x, eps=0.05), sinksort.soft_rank(x, eps=0.05, backend="numba"))
        assert sinksort.last_backend() == "numba"
        ours, exact = sinksort.soft_rank(other, eps=0.05), sinksort.soft_rank(other, eps=0.05, backend="torch")
        torch.testing.assert_close(ours, exact, rtol=0, atol=1e-4)
        assert sinksort.last_backend() == "torch"
    assert len(memo._remembered) == 2  # by name, and automatically; the reference is none of them
    torch.testing.assert_close(  # another dtype, another layout, what equals an option or cannot be one
        sinksort.soft_rank(x.double(), eps=0.05).float(), sinksort.soft_rank(x, eps=0.05), rtol=0, atol=1e-4
    )
    assert sinksort.soft_rank(x.T, eps=0.05, dim=0).shape == (30, 5)
    with pytest.raises(TypeError, match="eps must be a number or a tensor, got list"):
        sinksort.soft_rank(x, eps=[0.05])
    sinksort.soft_rank(x, eps=1)
    with pytest.raises(TypeError, match="eps must be a number or a tensor, got bool"):
        sinksort.soft_rank(x, eps=True)
    tangent = rows(5, 30, seed=3)
    (_, ours), (_, exact) = (
        torch.func.jvp(lambda x: sinksort.soft_rank(x, eps=0.05), (t,), (tangent.to(t),)) for t in (x, x.double())
    )
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
