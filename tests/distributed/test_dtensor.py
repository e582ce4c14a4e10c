"""DTensor in, DTensor out, on a mesh of real processes: values and gradients of the whole tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import sinksort
import sinksort.distributed as spread
from tests.processes import Team, raised

N = 1101  # does not divide by the number of ranks


@pytest.fixture(scope="module")
def four() -> Iterator[Team]:
    team = Team(4)
    yield team
    team.close()


def call(module: Any, name: str, x: Tensor, weights: Tensor | None, dim: int, **options: Any) -> Tensor:
    options |= {"dim": dim, "weights": weights, "eps": 0.05}
    args = {"soft_rank": (), "soft_topk_mask": (99.5,), "soft_quantile": ([0.3, 0.9],), "soft_median": ()}
    return getattr(module, name)(x, *args[name], **options)


def on_a_mesh(rank: int, size: int, name: str, x: Tensor, w: Tensor | None, shape: tuple[int, ...], dim: int) -> Any:
    """The answer, its placements, and the gradient of a loss of the whole answer."""
    mesh = init_device_mesh("cpu", shape)
    placements = [Shard(dim)] if len(shape) == 1 else [Shard(1 - dim), Shard(dim)]
    leaf = distribute_tensor(x, mesh, placements).requires_grad_()
    weights = None if w is None else distribute_tensor(w, mesh, placements)
    out = call(spread, name, leaf, weights, dim)
    assert isinstance(out, DTensor)
    (out.square().sum() / 2).backward()
    assert isinstance(leaf.grad, DTensor)
    return out.full_tensor().detach(), [str(p) for p in out.placements], leaf.grad.full_tensor()


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
@pytest.mark.parametrize(
    ("name", "dim", "weighted", "placed"),
    [
        ("soft_rank", 1, False, ["S(0)", "S(1)"]),
        ("soft_topk_mask", 0, True, ["S(1)", "S(0)"]),
        ("soft_quantile", 1, True, ["S(1)", "R"]),  # levels first, then the rows
        ("soft_median", 0, False, ["S(0)", "R"]),
    ],
)
def test_dtensor(four: Team, shape: tuple[int, ...], name: str, dim: int, weighted: bool, placed: list[str]) -> None:
    x = torch.randn(3, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64).movedim(-1, dim).contiguous()
    w = torch.rand(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) if weighted else None
    answers = four.run(on_a_mesh, name, x, w, shape, dim)
    raised(answers)
    leaf = x.clone().requires_grad_()
    truth = call(sinksort, name, leaf, w, dim, solver=sinksort.Newton(compress=False, tolerance=1e-13))
    (truth.square().sum() / 2).backward()
    for out, placements, grad in answers:
        assert placements == placed[-len(shape) :]
        torch.testing.assert_close(out, truth.detach(), rtol=0, atol=1e-9 * truth.abs().max().item())
        # The derivatives of ranks are those of polynomials that are right to 1e-9 in cells of a hundredth.
        tolerance = 1e-7 if name == "soft_rank" else 1e-9
        torch.testing.assert_close(grad, leaf.grad, rtol=0, atol=tolerance * leaf.grad.abs().max().item())


def wrong(rank: int, size: int, what: str) -> str:
    mesh = init_device_mesh("cpu", (size,))
    x = distribute_tensor(torch.randn(8, 2000), mesh, [Shard(1)])
    try:
        if what == "replicated":
            spread.soft_rank(x.redistribute(placements=[Replicate()]))
        elif what == "partial":
            spread.soft_rank(DTensor.from_local(torch.randn(8, 2000), mesh, [Partial()]))
        elif what == "group":
            spread.soft_rank(x, group=mesh.get_group())
        elif what == "dim":
            spread.soft_median(x, dim=2)
        else:
            spread.soft_median(x, weights=distribute_tensor(torch.ones(8, 2000), mesh, [Shard(0)]))
    except (ValueError, IndexError) as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("replicated", "x must be sharded along dim=1 on exactly one dimension of its mesh"),
        ("partial", "got placements (Partial(sum),); use x.redistribute(...)"),
        ("group", "group must be None for a DTensor: its mesh says which ranks share a row."),
        ("dim", "dim must be between -2 and 1 for x of shape (8, 2000), got 2."),
        ("weights", "weights must be placed like x, (8, 2000) as (Shard(dim=1),), got (8, 2000) as (Shard(dim=0),)"),
    ],
)
def test_wrong_dtensors(four: Team, what: str, message: str) -> None:
    for said in four.run(wrong, what):
        assert message in said
