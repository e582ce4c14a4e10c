"""Rows with padding, each answered as the row that it is without.

A row of c values and padding has c default targets. So the rule for long rows differs from row to row, and the sorted
values of a row are as many as it holds. Rows with equally many values are the rows of a batch without padding, for
which there are kernels: there is one call for each number of values that occurs.

None comes back where the mask is to be left to others: to kernels that can do with it, if rows to be ranked are short;
to the reference, on a GPU (where batches are what counts) and where nobody may look at the mask.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._checks import tracing
from ..costs import Cost
from ..problem import as_rows, existing, like_rows, rows_by_count
from ..solvers import Solver
from ..solvers._common import host_may_look
from ..squash import Squash
from . import reads
from .tables import MOST_TARGETS

_Answer = Callable[[Tensor, Tensor | None], Tensor | None]


def ranks(
    x: Tensor,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    mask: Tensor,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> Tensor | None:
    """Among default targets, of rows too long for their targets to be taken one by one."""
    if _left_to_others(x, eps, backend) or as_rows(x, dim).shape[-1] <= MOST_TARGETS:
        return None
    return _by_count(
        x, dim, weights, mask, False,
        lambda own, a: reads.ranks(own, -1, descending, a, None, None, None, None, eps, cost, squash, solver, backend),
    )  # fmt: skip


def sorts(
    x: Tensor,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    mask: Tensor,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> Tensor | None:
    """On default targets: the values of a row come first, then zeros."""
    if _left_to_others(x, eps, backend):
        return None
    return _by_count(
        x, dim, weights, mask, True,
        lambda own, a: reads.sorts(own, -1, descending, a, None, None, None, None, eps, cost, squash, solver, backend),
    )  # fmt: skip


def _left_to_others(x: Tensor, eps: float | Tensor, backend: str) -> bool:
    if backend == "torch" or not isinstance(x, Tensor) or isinstance(eps, Tensor):
        return True
    return not x.is_cpu or x.numel() == 0 or tracing() or not host_may_look(x)


def _by_count(x: Tensor, dim: int, weights: Tensor | None, mask: Tensor, ahead: bool, answer: _Answer) -> Tensor | None:
    """``answer`` of values and weights (r, c) without padding, put where they were, or ``ahead`` of all padding."""
    rows = as_rows(x, dim)
    n = rows.shape[-1]
    kept, _ = existing(x, dim, mask)
    kept = torch.as_tensor(kept).reshape(-1, n)
    groups = [(at, count) for at, count in reversed(rows_by_count(kept)) if count]  # if one is too long, the first is
    if not groups:
        return None
    # In the order of the groups all values are taken out, and all answers put in, at one go.
    slots = torch.arange(n)
    taken = torch.cat([(n * at.unsqueeze(-1) + slots)[kept[at]] for at, _ in groups])
    put = torch.cat([(n * at.unsqueeze(-1) + slots[:count]).flatten() for at, count in groups]) if ahead else taken
    shapes = [(len(at), count) for at, count in groups]
    sizes = [r * count for r, count in shapes]
    values = rows.reshape(-1).index_select(0, taken).split(sizes)
    if weights is not None:
        shares = like_rows(weights, x, dim, "weights").reshape(-1).index_select(0, taken).split(sizes)
    found = []
    for i, shape in enumerate(shapes):
        out = answer(values[i].reshape(shape), None if weights is None else shares[i].reshape(shape))
        if out is None:
            return None
        found.append(out.reshape(-1))
    answers = rows.new_zeros(rows.numel()).scatter(0, put, torch.cat(found))
    return answers.reshape(rows.shape).movedim(-1, dim)
