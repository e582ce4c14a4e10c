"""Values spread over real processes: the answers and gradients of one process on all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import sinksort
import sinksort.distributed as spread
from tests.inputs import table
from tests.processes import Team, raised

SIZES = {"even": [1000, 1000, 1000], "uneven": [2500, 3, 497], "empty": [0, 3000, 0]}


@pytest.fixture(scope="session")
def team() -> Iterator[Team]:
    team = Team(3)
    yield team
    team.close()


def cut(t: Tensor, sizes: list[int], rank: int) -> Tensor:
    return t.split(sizes, dim=-1)[rank]


def ask(module: Any, name: str, x: Tensor, **options: Any) -> Tensor:
    """One operator, of one process or of many."""
    args = {"soft_rank": (), "soft_quantile": ([0.5, 0.05, 0.9, 0.5],), "soft_median": (), "soft_topk_mask": (123.5,)}
    return getattr(module, name)(x, *args[name], **options)


OPERATORS = ["soft_rank", "soft_quantile", "soft_median", "soft_topk_mask"]


def answer_and_gradients(
    rank: int, size: int, name: str, x: Tensor, w: Tensor | None, sizes: list[int], direction: Tensor, options: Any
) -> tuple[Tensor, ...]:
    leaves = [cut(t, sizes, rank).clone().requires_grad_() for t in ((x,) if w is None else (x, w))]
    out = ask(spread, name, leaves[0], weights=None if w is None else leaves[1], **options)
    one_a_value = out.shape == leaves[0].shape
    loss = (out * cut(direction, sizes, rank)).sum() if one_a_value else (out * (1.0 + rank)).square().sum()
    return out.detach(), *torch.autograd.grad(loss, leaves)


def both(
    team: Team, name: str, x: Tensor, w: Tensor | None, sizes: list[int], **options: Any
) -> list[tuple[Tensor, Tensor]]:
    """(of many processes, of one): the answer, the gradient in x and in w."""
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(9), dtype=x.dtype)
    answers = team.run(answer_and_gradients, name, x, w, sizes, direction, options)
    raised(answers)
    outs, *grads = zip(*answers, strict=True)
    leaves = [t.clone().requires_grad_() for t in ((x,) if w is None else (x, w))]
    truth = ask(sinksort, name, leaves[0], weights=None if w is None else leaves[1], **options)
    if truth.shape == x.shape:
        loss, out = (truth * direction).sum(), torch.cat(outs, dim=-1)
    else:
        # Each rank has a loss of its own of the quantiles; they are added up.
        loss, out = (truth.square() * sum((1.0 + r) ** 2 for r in range(len(outs)))).sum(), outs[0]
        assert all(torch.equal(outs[0], other) for other in outs)
    true_grads = torch.autograd.grad(loss, leaves)
    return [(out, truth.detach()), *((torch.cat(g, dim=-1), t) for g, t in zip(grads, true_grads, strict=True))]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sizes", list(SIZES))
def test_answers_and_gradients_are_those_of_one_process(team: Team, name: str, weighted: bool, sizes: str) -> None:
    x = torch.tensor(table(["normal", "exponential"], 2, 3000, seed=1))
    w = torch.tensor(table(["uniform", "uniform"], 2, 3000, seed=2)) if weighted else None
    for mine, truth in both(team, name, x, w, SIZES[sizes], eps=0.03):
        torch.testing.assert_close(mine, truth, rtol=1e-9, atol=1e-9 * truth.abs().max().item())
