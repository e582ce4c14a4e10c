"""Plans as kernels answer them, logarithm by logarithm: against the float64 reference, forwards and backwards."""

from __future__ import annotations

import math

import pytest
import torch

import sinksort
from sinksort import losses
from sinksort.core.option_values import Options
from sinksort.kernels import autograd, dispatch, requests
from sinksort.kernels.contract import Request
from sinksort.kernels.reference import log_shares
from sinksort.kernels.requests.targets import default_targets

WHOLE = sinksort.Newton(compress=False, tolerance=1e-12)
OPTIONS = {"dim": -1, "descending": False, "weights": None, "mask": None, "targets": None, "target_weights": None,
           "num_targets": None, "eps": 1e-2, "cost": 2, "squash": "sigmoid", "solver": sinksort.Newton(),
           "backend": "numba"}  # fmt: skip


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def some_weights(*shape, seed=1):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) + 0.05


def kinds(n):
    normal = rows(2, n)
    infinite = normal.clone()
    if n > 2:
        infinite[0, 0], infinite[1, -1] = math.inf, -math.inf
    return {
        "normal": normal,
        "tied": (2 * normal).round(),
        "heavy-tailed": normal / rows(2, n, seed=1),
        "constant": torch.full((2, n), 3.7),
        "clusters": torch.arange(n) % 3 + 1e-2 * normal,
        "huge": 1e30 * normal,
        "infinite": infinite,
    }


def truth(x, **options):
    """log p and x in float64."""
    x = x.double().requires_grad_()
    wide = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    return x, log_shares(sinksort.transport(x, solver=WHOLE, **wide))


def same(x, out, wide, exact, eps, rounding=0.0):
    """Shares to 1e-5 and logarithms to 1e-5 of themselves, gradients to 1e-3 of the largest of their row.

    Across links that carry 1e-9 or less the reference, which stops at a marginal error, is no judge. What is
    1e-7 of the gradients that plans could have at this eps is rounding: values alone between targets have none.
    ``rounding``: of weights in single precision. A value alone between two targets is shared as their sums demand.
    """
    seen = exact > -20
    assert ((out.exp() - exact.exp()).abs() <= 1e-5).all()
    assert ((out - exact).abs() <= 1e-5 * (1 + exact.abs()) + rounding / exact.exp())[seen].all()
    finite = torch.where(x.detach().isfinite(), x.detach(), 0.0).double()
    spread = (finite.amax(-1, keepdim=True) - finite.amin(-1, keepdim=True)).clamp(min=1e-3)
    for C in (rows(*out.shape, seed=3) * seen, rows(*out.shape, seed=4) * out.detach().exp()):
        (grad,) = torch.autograd.grad(out, x, C, retain_graph=True)
        (right,) = torch.autograd.grad(exact, wide, C.double(), retain_graph=True)
        largest = right.abs().amax(-1, keepdim=True)
        assert ((grad - right).abs() <= 1e-3 * largest + 1e-7 / (eps * spread)).all()


@pytest.mark.parametrize("eps", [10.0, 1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 2), (3, 5), (5, 5), (12, 9), (15, 15), (1, 3), (40, 33), (21, 40)])
def test_logarithms_and_gradients(n, m, eps):
    x = torch.cat(list(kinds(n).values()))
    for weights in (None, some_weights(*x.shape)):
        ours = x.clone().requires_grad_()
        out = requests.log_plans(ours, Options(**OPTIONS | {"eps": eps, "num_targets": m, "weights": weights}))
        assert (out <= 0).all()
        rounding = 0.0 if weights is None else 1e-7
        same(ours, out, *truth(x, eps=eps, num_targets=m, weights=weights), eps, rounding)


@pytest.mark.parametrize("squash", ["arctan", None])
def test_other_maps_into_the_unit_interval(squash):
    x = torch.rand(3, 13, generator=torch.Generator().manual_seed(0))
    x[1, 4], x[2, 2] = math.inf, -math.inf
    ours = x.clone().requires_grad_()
    out = requests.log_plans(ours, Options(**OPTIONS | {"squash": squash}))
    same(ours, out, *truth(x, squash=squash), 1e-2)


def test_a_hundred_values():
    ours = rows(2, 100).requires_grad_()
    for eps in (1e-1, 1e-2, 1e-4):
        same(ours, requests.log_plans(ours, Options(**OPTIONS | {"eps": eps})), *truth(ours.detach(), eps=eps), eps)


def test_logarithms_stay_finite_where_shares_underflow():
    x = torch.tensor([[3.0, -1.0, 0.5, 2.0]])
    out = requests.log_plans(x, Options(**OPTIONS | {"eps": 1e-5}))
    exact = truth(x, eps=1e-5)[1]
    assert out.isfinite().all()
    assert out.min() < -5e4
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)


def test_gradients_are_differences():
    """Central differences of the reference's own values, in float64."""
    x, C = rows(1, 6).double(), rows(1, 6, 6, seed=1).double()
    ours = x.float().requires_grad_()
    requests.log_plans(ours, Options(**OPTIONS)).backward(C.float())

    def loss(x):
        return (C * log_shares(sinksort.transport(x, solver=sinksort.Newton(tolerance=1e-14)))).sum()

    steps = 1e-5 * torch.eye(6).double()
    slopes = torch.stack([(loss(x + s) - loss(x - s)) / 2e-5 for s in steps])
    torch.testing.assert_close(ours.grad[0].double(), slopes, rtol=1e-4, atol=1e-4)


# ---- permutations


def per_row(x):
    return torch.arange(x.shape[-1]) < torch.tensor([5, 1, 12, 0]).unsqueeze(-1)


CALLS = {
    "plain": {},
    "from the top": {"descending": True},
    "along the first": {"dim": 0},
    "on 7 targets": {"num_targets": 7},
    "given targets": {"targets": torch.tensor([0.1, 0.3, 0.9]), "target_weights": torch.tensor([1.0, 2.0, 1.0])},
    "a light target": {"target_weights": torch.tensor([1.0, 1e-2, 2.0, 1.0]), "descending": True},
    "weights, one of them zero": {"weights": torch.arange(12.0)},
    "masked": {"mask": torch.arange(12) % 3 > 0},
    "masks of their own": {"mask": per_row(rows(4, 12))},
    "the same from the top": {"mask": per_row(rows(4, 12)), "descending": True},
    "masked, on 4 targets": {"mask": per_row(rows(4, 12)), "num_targets": 4, "descending": True},
    "arctan": {"squash": "arctan"},
}


@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("name", CALLS)
def test_permutations_are_those_of_the_reference(name, eps):
    said, x = CALLS[name], rows(4, 12)
    ours, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    P = sinksort.soft_permutation(ours, eps=eps, backend="numba", **said)
    assert sinksort.last_backend() == "numba"
    exact = sinksort.soft_permutation(
        wide,
        eps=eps,
        backend="torch",
        **{k: v.double() if k in ("weights", "targets", "target_weights") else v for k, v in said.items()},
    )
    assert sinksort.last_backend() == "torch"
    assert P.shape == exact.shape
    assert P.dtype == torch.float32
    torch.testing.assert_close(P.double(), exact, rtol=0, atol=1e-5)
    assert (P[exact < 1e-20] <= 1e-20).all()  # what is masked
    C = rows(*P.shape, seed=1)
    P.backward(C)
    exact.backward(C.double())
    largest = wide.grad.abs().amax()
    torch.testing.assert_close(ours.grad.double(), wide.grad, rtol=0, atol=1e-3 * largest.item())


@pytest.mark.parametrize(("n", "eps"), [(5, 1e-1), (17, 1e-2), (64, 1e-3), (100, 1e-2), (128, 1e-1)])
def test_permutations_are_doubly_stochastic(n, eps):
    P = sinksort.soft_permutation(rows(3, n), eps=eps, backend="numba")
    one = torch.ones(3, n)
    torch.testing.assert_close(P.sum(-1), one, rtol=0, atol=1e-5)
    torch.testing.assert_close(P.sum(-2), one, rtol=0, atol=1e-5)


def test_a_row_that_holds_nan_is_nan_and_no_other():
    x = rows(3, 11)
    x[1, 4] = math.nan
    ours = x.clone().requires_grad_()
    P = sinksort.soft_permutation(ours, backend="numba")
    P[[0, 2]].square().sum().backward(retain_graph=True)
    assert P[1].isnan().all()
    assert not P[[0, 2]].isnan().any()
    assert not ours.grad[[0, 2]].isnan().any()
    kept = sinksort.soft_permutation(x, mask=~x.isnan(), backend="numba")
    assert not kept.isnan().any()
    assert (kept[1, :, 4] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_comes_and_goes(dtype):
    x = rows(3, 14).to(dtype).requires_grad_()
    P = sinksort.soft_permutation(x, backend="numba")
    P.square().sum().backward()
    assert P.dtype == x.grad.dtype == dtype
    exact = sinksort.soft_permutation(x.detach().double())
    torch.testing.assert_close(P.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


def test_any_strides_and_any_batch():
    x = rows(3, 8, 6).movedim(1, 2)[:, ::2]
    ours = x.clone().requires_grad_()
    strided = x.detach().requires_grad_()
    C = rows(3, 3, 8, 8, seed=1).mT
    for each in (ours, strided):
        sinksort.soft_permutation(each, backend="numba").backward(C)
    torch.testing.assert_close(strided.grad, ours.grad, rtol=0, atol=0)
    flat = sinksort.soft_permutation(x.reshape(9, 8), backend="numba")
    torch.testing.assert_close(sinksort.soft_permutation(x, backend="numba"), flat.reshape(3, 3, 8, 8), rtol=0, atol=0)
    assert sinksort.soft_permutation(torch.empty(0, 5)).shape == (0, 5, 5)


def test_rows_that_a_kernel_cannot_do_are_done_by_the_reference():
    """Without a squash places may be so large that a step of float64 is more than eps."""
    x = torch.stack([torch.linspace(0, 1, 6), 1e7 * torch.arange(6.0)])
    given = Request(x, None, *default_targets(6, 6, None, False, x.device)[:2], 1e-2, None)
    assert (dispatch.kernels_named("numba", given, "logs").logs(given).error > 1).tolist() == [False, True]
    ours, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    P, exact = (sinksort.soft_permutation(each, squash=None) for each in (ours, wide))
    torch.testing.assert_close(P.double(), exact, rtol=0, atol=1e-5)
    P.square().sum().backward()
    exact.square().sum().backward()
    torch.testing.assert_close(ours.grad.double(), wide.grad, rtol=1e-3, atol=1e-5)


def test_who_answers():
    sinksort.soft_permutation(rows(2, 6))
    assert sinksort.last_backend() == "numba"
    sinksort.soft_permutation(rows(2, 6), backend="torch")
    assert sinksort.last_backend() == "torch"
    sinksort.soft_permutation(rows(1, 129), num_targets=3)  # in double precision
    assert sinksort.last_backend() == "numba"
    other = sinksort.Newton(tolerance=1e-4)  # which the kernels in double precision do not take
    with pytest.raises(
        ValueError, match="its kernels say where at most 128 values go, and there are 129; backend='aut"
    ):
        sinksort.soft_permutation(rows(1, 129), num_targets=3, backend="numba", solver=other)
    with pytest.raises(ValueError, match="at most 128 targets one by one, and there are 129"):
        sinksort.soft_permutation(rows(1, 5), num_targets=129, backend="numba", solver=other)


def test_targets_without_weight_are_left_to_double_precision():
    x, b = rows(2, 6), torch.tensor([1.0, 0.0, 2.0])
    ours = sinksort.soft_permutation(x, target_weights=b)
    assert sinksort.last_backend() == "numba"
    reference = sinksort.soft_permutation(x, target_weights=b, backend="torch")
    torch.testing.assert_close(ours, reference, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.sum(-1), torch.ones(2, 3), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="from where targets get what they get if each is seen to weigh 1e-12 or more"):
        sinksort.soft_permutation(x, target_weights=b, backend="numba", solver=sinksort.Newton(tolerance=1e-4))


# ---- Triton, in its interpreter where there is no GPU

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("eps", "said"),
    [
        (1e-1, {}),
        (1e-2, {"squash": "arctan"}),
        (1e-1, {"num_targets": 3, "squash": None}),
        (1e-1, {"weights": torch.tensor([1.0, 2.0, 1.0, 0.0, 1.0])}),
    ],
    ids=["plain", "hard", "fewer targets", "weights"],
)
def test_triton_answers_the_same(eps, said):
    x = torch.stack([rows(5), (2 * rows(5, seed=1)).round(), rows(5, seed=2)])
    x[1, 2] = math.inf
    said = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in said.items()}
    ours = x.to(DEVICE).requires_grad_()
    out = requests.log_plans(ours, Options(**OPTIONS | {"eps": eps, "backend": "triton"} | said))
    assert sinksort.last_backend() == "triton"
    same(ours, out, *truth(x.to(DEVICE), eps=eps, **said), eps, 1e-7 if "weights" in said else 0.0)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # the interpreter, on the cotangent of what is NaN
def test_triton_knows_padding_and_nan():
    x = rows(3, 6)
    x[1, 2] = math.nan
    mask = torch.arange(6) < torch.tensor([[4], [6], [6]])
    ours, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    said = {"mask": mask.to(DEVICE), "descending": True, "eps": 0.1, "backend": "triton"}
    P = sinksort.soft_permutation(ours.to(DEVICE), **said).cpu()
    exact = sinksort.soft_permutation(wide, mask=mask, descending=True, eps=0.1)
    torch.testing.assert_close(P.double(), exact, rtol=0, atol=1e-5, equal_nan=True)
    assert P[1].isnan().all()
    P[[0, 2]].square().sum().backward()
    exact[[0, 2]].square().sum().backward()
    torch.testing.assert_close(ours.grad[[0, 2]].double(), wide.grad[[0, 2]], rtol=1e-3, atol=1e-5)


def test_triton_answers_where_a_plan_falls_apart():
    """Between parts nothing flows, and Newton's way moves them as far as it likes; in one of them values are tied."""
    x = torch.tensor([[280576.0, 33536.0, -21120.0, 84480.0, -94720.0, 69632.0, -32768.0, 68608.0, 231424.0, 65280.0,
                       -30976.0, 72192.0, 68608.0, 66560.0, -163840.0]])  # fmt: skip
    ours = x.to(DEVICE).requires_grad_()
    out = requests.log_plans(ours, Options(**OPTIONS | {"eps": 30.0, "squash": None, "backend": "triton"}))
    same(ours, out, *truth(x.to(DEVICE), eps=30.0, squash=None), 30.0)


# ---- losses


def list_losses(n):
    ranks = torch.stack([torch.randperm(n, generator=torch.Generator().manual_seed(s)) for s in range(6)]) + 1
    relevance = torch.randint(0, 3, (6, n), generator=torch.Generator().manual_seed(7))
    paper = {"squash": "sigmoid"}
    order = {"objective": "nll", **paper}
    return {
        "cross-entropy": lambda x, **o: losses.permutation_cross_entropy(x, ranks, **order, **o),
        "cross-entropy, binary": lambda x, **o: losses.permutation_cross_entropy(x, ranks, **paper, **o),
        "with ties": lambda x, **o: losses.permutation_cross_entropy(x, (ranks + ranks.flip(-1)) / 2, **order, **o),
        "cross-entropy, partial": lambda x, **o: losses.partial_order_loss(
            x, (ranks - 1).clamp(min=1), ranks, **paper, **o
        ),
        "ndcg": lambda x, **o: losses.ndcg_loss(x, relevance, **paper, **o),
        "ndcg at 3": lambda x, **o: losses.ndcg_loss(x, relevance, 3, gain="exponential", **paper, **o),
        "precision": lambda x, **o: losses.average_precision_loss(x, relevance, **paper, **o),
        "recall": lambda x, **o: losses.recall_at_k_loss(x, relevance, 2, **paper, **o),
    }


@pytest.mark.parametrize("name", list_losses(5))
@pytest.mark.parametrize(("n", "eps"), [(5, 1e-1), (9, 1e-2), (20, 1e-3)])
def test_losses_in_single_precision_are_those_in_double(name, n, eps):
    loss, x = list_losses(n)[name], rows(6, n)
    mask = (rows(6, n, seed=2) > -1) | (torch.arange(n) == 0)
    for said in ({}, {"mask": mask})[: 1 if "cross" in name or "ties" in name else 2]:
        ours, wide = x.clone().requires_grad_(), x.double().requires_grad_()
        value = loss(ours, eps=eps, reduction="none", **said)
        assert sinksort.last_backend() == "numba"
        exact = loss(wide, eps=eps, reduction="none", **said)
        torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)
        value.sum().backward()
        exact.sum().backward()
        torch.testing.assert_close(ours.grad.double(), wide.grad, rtol=1e-4, atol=1e-4)


def test_masked_cross_entropy_counts_what_exists():
    x, mask = rows(2, 5), torch.tensor([[True] * 5, [True, False, True, True, False]])
    ranks = torch.tensor([[5, 4, 3, 2, 1], [2, 0, 1, 3, 9]])
    ours = losses.permutation_cross_entropy(x, ranks, mask=mask, reduction="none")
    alone = losses.permutation_cross_entropy(x[1, mask[1]], ranks[1, mask[1]])
    torch.testing.assert_close(ours[1], alone, rtol=1e-5, atol=1e-5)


# ---- modes of torch


def test_second_derivatives_are_those_of_the_reference():
    def twice(x, **options):
        x = x.requires_grad_()
        C, v = rows(2, 6, 6, seed=1).to(x), rows(2, 6, seed=2).to(x)
        (g,) = torch.autograd.grad((sinksort.soft_permutation(x, eps=0.05, **options) * C).sum(), x, create_graph=True)
        return g.detach(), *torch.autograd.grad((g * v).sum(), x)

    for ours, exact in zip(twice(rows(2, 6), backend="numba"), twice(rows(2, 6).double()), strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)


def test_vmap_and_what_autograd_makes_of_it():
    x = rows(4, 3, 7).requires_grad_()
    out = torch.func.vmap(lambda x: sinksort.soft_permutation(x, eps=0.05, backend="numba"), in_dims=1)(x)
    out.backward(C := rows(3, 4, 7, 7, seed=1))
    wide = x.detach().double().requires_grad_()
    exact = sinksort.soft_permutation(wide, eps=0.05).movedim(1, 0)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=1e-5)
    exact.backward(C.double())
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-3, atol=1e-4)


def test_compiled_programs_see_one_operator():
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    def call(x):
        return sinksort.soft_permutation(x, backend="numba")

    x = rows(3, 9)
    compiled = torch.compile(call, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x), call(x), rtol=0, atol=0)
    assert sum("sinksort.read." in str(node.target) for node in graphs[0].graph.nodes) == 1
    trained = torch.compile(call, backend="aot_eager", fullgraph=True)
    ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
    trained(ours).square().sum().backward()
    call(eager).square().sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad)


def test_the_operator_is_registered_as_torch_wants_it():
    x = rows(3, 12).requires_grad_()
    at = default_targets(12, 12, None, False, x.device)
    request = autograd._flat(Request(x, None, at.y, at.b, 0.01, "sigmoid"))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(autograd._read_op, (*request, None, "logs", "numba"), test_utils=checks)
