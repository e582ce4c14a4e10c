"""Compiled programs reach what eager ones reach: kernels in double precision, and the reference in linear time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.kernels import backends
from sinksort.linear.compiled import read_plan

Call = Callable[[Tensor], Tensor]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


KEPT = torch.arange(6) < torch.tensor([[6], [4], [3]])
CALLS: dict[str, Call] = {
    "rank": lambda x: sinksort.soft_rank(x, eps=0.05, descending=True),
    "rank, eps a row": lambda x: sinksort.soft_rank(x, eps=torch.tensor([0.1, 0.02, 0.5])),
    "rank, cost 1.5": lambda x: sinksort.soft_rank(x, eps=0.05, cost=1.5),
    "rank, Huber": lambda x: sinksort.soft_rank(x, eps=0.05, cost=sinksort.Huber(0.2)),
    "rank, no squash": lambda x: sinksort.soft_rank(x.sigmoid(), eps=0.05, squash=None),
    "rank, masked": lambda x: sinksort.soft_rank(x, eps=0.05, mask=KEPT),
    "rank, first dimension": lambda x: sinksort.soft_rank(x.T, eps=0.05, dim=0),
    "rank, weights": lambda x: sinksort.soft_rank(x, eps=0.05, weights=x.square().detach() + 0.1),
    "rank, targets": lambda x: sinksort.soft_rank(x, eps=0.05, targets=torch.tensor([0.0, 0.2, 1.0])),
    "rank, tolerance": lambda x: sinksort.soft_rank(x, eps=0.05, solver=sinksort.Newton(tolerance=1e-12)),
    "sort": lambda x: sinksort.soft_sort(x, eps=0.05, num_targets=4, descending=True),
    "sort, target weights": lambda x: sinksort.soft_sort(x, eps=0.05, target_weights=torch.tensor([0.5, 0.2, 0.3])),
    "quantiles": lambda x: sinksort.soft_quantile(x, [0.1, 0.5], eps=0.05),
    "median, masked": lambda x: sinksort.soft_median(x, eps=0.05, mask=KEPT, keepdim=True),
    "mask": lambda x: sinksort.soft_topk_mask(x, 2, eps=0.05),
    "mask, every k": lambda x: sinksort.soft_topk_mask(x, torch.tensor([0.0, 2.5, 6.0]), eps=0.05),
    "largest": lambda x: sinksort.soft_topk(x, 2, eps=0.05).values,
    "permutation": lambda x: sinksort.soft_permutation(x, eps=0.05, descending=True),
    "sort_with": lambda x: sinksort.sort_with(torch.stack([x, x.square()], dim=-1), x, eps=0.05),
    "quantile_normalize": lambda x: sinksort.quantile_normalize(x, x.detach().flip(0) * 2, eps=0.05),
}


def compiled(call: Call, backend: str = "aot_eager", **options: Any) -> tuple[Call, list[str]]:
    """The call compiled, and the names of what its graphs call."""
    torch._dynamo.reset()
    called: list[str] = []

    def watching(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        called.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    return torch.compile(call, fullgraph=True, backend=watching, **options), called


def agrees(call: Call, x: Tensor, backend: str = "aot_eager", atol: float = 1e-11) -> list[str]:
    program, called = compiled(call, backend)
    y, z = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, out = call(y), program(z)
    torch.testing.assert_close(out, expected, rtol=0, atol=atol)
    assert out.shape == expected.shape
    w = draw(*out.shape, seed=9)
    (expected * w).sum().backward()
    (out * w).sum().backward()
    torch.testing.assert_close(z.grad, y.grad, rtol=1e-9, atol=atol)
    return called


@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_call_is_the_eager_one(name: str) -> None:
    called = agrees(CALLS[name], draw(3, 6))
    assert any("read_plan" in each for each in called)
    assert not any("newton" in each or "staircase" in each for each in called)


@pytest.mark.parametrize("name", ["rank", "sort", "mask"])
def test_without_numba_as_well(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends._MISSING, "numba", "numba is not installed")
    called = agrees(CALLS[name], draw(3, 6, dtype=torch.float32), atol=1e-6)
    assert any("read_plan" in each for each in called)


@pytest.mark.parametrize("numba", [True, False])
def test_a_long_row_takes_no_matrix(numba: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """30,000 values: the whole plan would be 7 GB."""
    if not numba:
        monkeypatch.setitem(backends._MISSING, "numba", "numba is not installed")
    agrees(lambda x: sinksort.soft_rank(x, eps=0.05), draw(30_000), atol=1e-9)


def test_generated_code() -> None:
    agrees(CALLS["rank"], draw(3, 6), backend="inductor")


def test_one_program_for_all_shapes() -> None:
    program, _ = compiled(CALLS["rank"], dynamic=True)
    torch._dynamo.utils.counters.clear()
    for rows, n in ((2, 5), (3, 7), (4, 11)):
        x = draw(rows, n, seed=n)
        torch.testing.assert_close(program(x), CALLS["rank"](x), rtol=0, atol=1e-11)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_gradients_in_every_argument() -> None:
    def call(x: Tensor, a: Tensor, y: Tensor, b: Tensor, eps: Tensor) -> Tensor:
        return sinksort.soft_sort(x, weights=a, targets=y.cumsum(-1), target_weights=b, eps=eps, cost=1.5)

    given = draw(2, 6), draw(2, 6, seed=1).exp(), draw(4, seed=2).exp() / 8, draw(4, seed=3).exp(), draw(2).exp() / 10
    ours, theirs = ([t.clone().requires_grad_() for t in given] for _ in "12")
    torch._dynamo.reset()
    torch.compile(call, fullgraph=True, backend="aot_eager")(*ours).square().sum().backward()
    call(*theirs).square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("way", ["vmap", "grad", "jacfwd"])
def test_transforms_inside_a_program_are_traced(way: str) -> None:
    """Operators have no forward mode: what ``torch.func`` differentiates inside a program is the traced plan."""

    def loss(x: Tensor) -> Tensor:
        return sinksort.soft_rank(x, eps=0.1).square().sin().sum()

    f: Call = getattr(torch.func, way)(loss)
    program, called = compiled(f)
    x = draw(3, 4) if way == "vmap" else draw(4)
    torch.testing.assert_close(program(x), f(x), rtol=1e-8, atol=1e-9)
    assert not any("read_plan" in each for each in called)


def test_what_has_no_name_is_traced() -> None:
    called = agrees(
        lambda x: sinksort.soft_rank(x, eps=0.1, cost=lambda u: u.square() + u.abs()), draw(2, 4), atol=1e-9
    )
    assert not any("read_plan" in each for each in called)


def test_numba_by_name() -> None:
    agrees(lambda x: sinksort.soft_rank(x, eps=0.05, backend="numba"), draw(3, 6))


def test_a_wrong_argument_is_named() -> None:
    for options, message in (
        ({"eps": -1.0}, "eps must be positive"),
        ({"num_targets": 3, "targets": torch.tensor([0.0, 1.0])}, "must agree on the number of targets"),
    ):
        program, _ = compiled(lambda x, options=options: sinksort.soft_rank(x, **options))  # type: ignore[misc]
        with pytest.raises(Exception, match=message):
            program(draw(2, 6))


def test_the_operator_keeps_its_contract() -> None:
    x, payload = draw(2, 5).requires_grad_(), draw(2, 5, 3, seed=1).requires_grad_()
    rest = (False, None, 0.05, "power", 2.0, "sigmoid", None, 100, None, "averages", "auto")
    for read, given in (("sorted", None), ("push", payload), ("permutation", None), ("ranks", None)):
        arguments = (x, None, None, None, None, None, given, read, *rest)
        torch.library.opcheck(read_plan, arguments)
