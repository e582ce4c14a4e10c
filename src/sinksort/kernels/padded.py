"""Long rows with padding, each answered as the row that it is without.

A row of c values and padding has c default targets, so the rule for them differs from row to row, and more than
``MOST_TARGETS`` of them are too many to be taken one by one. Rows with equally many values are the rows of a batch
without padding, for which there are kernels: there is one call for each number of values that occurs.
"""

from __future__ import annotations

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


def ranks(
    x: Tensor,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    mask: Tensor | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> Tensor | None:
    """Ranks among default targets; None where the mask is to be left to others.

    Those are the kernels themselves, if rows are short; and the reference, on a GPU (where batches are what counts) and
    where nobody may look at the mask.
    """
    if mask is None or backend == "torch" or not isinstance(x, Tensor) or isinstance(eps, Tensor):
        return None
    if not x.is_cpu or tracing() or not host_may_look(x):
        return None
    rows = as_rows(x, dim)
    n = rows.shape[-1]
    kept, _ = existing(x, dim, mask)
    if kept is None or n <= MOST_TARGETS or rows.numel() == 0:
        return None
    groups = [(at, count) for at, count in rows_by_count(kept.reshape(-1, n)) if count]
    if not groups:
        return None
    # All values in the order of the groups, so that they are taken out, and ranks put in their places, at one go.
    places = torch.cat([(n * at.unsqueeze(-1) + torch.arange(n))[kept.reshape(-1, n)[at]] for at, _ in groups])
    sizes = [len(at) * count for at, count in groups]
    values = rows.reshape(-1).index_select(0, places).split(sizes)
    if weights is None:
        shares = [None] * len(groups)
    else:
        shares = like_rows(weights, x, dim, "weights").reshape(-1).index_select(0, places).split(sizes)
    found = []
    for (at, _), of_values, of_weights in zip(groups, values, shares, strict=True):
        own = None if of_weights is None else of_weights.reshape(len(at), -1)
        out = reads.ranks(
            of_values.reshape(len(at), -1), -1, descending, own, None, None, None, None, eps, cost, squash, solver,
            backend,
        )  # fmt: skip
        if out is None:
            return None
        found.append(out.reshape(-1))
    answer = rows.new_zeros(rows.numel()).scatter(0, places, torch.cat(found))
    return answer.reshape(rows.shape).movedim(-1, dim)
