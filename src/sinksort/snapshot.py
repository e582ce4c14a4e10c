"""One row of a plan as plain arrays, beside its limit for eps = 0: what texts and pictures of a plan are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .core.kantorovich import kantorovich_rank, kantorovich_sort
from .core.plan import Plan

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Snapshot:
    """Values in the order of x, targets in that of ``target_weights``; padding is left out."""

    x: Array  #: (n,) the values
    a: Array  #: (n,) their weights
    y: Array  #: (m,) where the targets are
    b: Array  #: (m,) their weights
    P: Array  #: (n, m) the plan
    ranks: Array  #: (n,)
    sorted: Array  #: (m,)
    hard_matrix: Array  #: the same three for eps = 0
    hard_ranks: Array
    hard_sorted: Array
    eps: float
    iterations: int
    marginal_error: float
    converged: bool

    def spread(self) -> Array:
        """(n,) over how many ranks the plan spreads each value: the standard deviation of the rank that is drawn."""
        levels = len(self.x) * self.b.cumsum()
        shares = self.P / self.P.sum(1, keepdims=True)
        away = levels - (shares @ levels)[:, None]
        spread: Array = np.sqrt((shares * away**2).sum(1))
        return spread


def snapshot(plan: Plan, row: tuple[int, ...] = ()) -> Snapshot:
    """The arrays of one row; ``row`` is its index among the batch dimensions, nothing for a plan of one row."""
    if not isinstance(plan, Plan):
        raise TypeError(
            f"plan must be a sinksort.Plan, got {type(plan).__name__}; make one with sinksort.transport(x)."
        )
    p = plan.problem
    batch = tuple(p.a.shape[:-1])
    if len(row) != len(batch):
        raise ValueError(
            f"plan must be of one row of values, got one for rows of shape {batch}; "
            "make the plan of a single row, for instance sinksort.transport(x[0])."
        )
    order = p.order[row] if p.order is not None else torch.arange(p.a.shape[-1], dtype=torch.int64, device=p.a.device)
    kept = torch.ones_like(order, dtype=torch.bool) if p.mask is None else p.mask[row]
    back = order.argsort()
    x, a = p.x[row].detach()[back][kept], p.a[row].detach()[back][kept]
    y, b = p.y[row].detach(), p.b[row].detach()
    live = slice(0, len(x)) if p.padded_targets else slice(None)
    y, b = y[live], b[live]
    P = plan.matrix().detach()[row][kept]
    ranks, ordered = plan.ranks().detach().movedim(p.dim, -1)[row][kept], plan.sorted().detach().movedim(p.dim, -1)[row]
    if p.descending:
        y, b = y.flip(-1), b.flip(-1)
        P = P[:, P.shape[1] - len(y) :]
    else:
        P = P[:, live]
    known: dict[str, Any] = {"weights": a, "target_weights": b, "descending": p.descending}
    return Snapshot(
        x=_numpy(x),
        a=_numpy(a),
        y=_numpy(y),
        b=_numpy(b),
        P=_numpy(P),
        ranks=_numpy(ranks),
        sorted=_numpy(ordered[live]),
        hard_matrix=hard_plan(_numpy(-x if p.descending else x), _numpy(a), _numpy(b)),
        hard_ranks=_numpy(kantorovich_rank(x, **known)),
        hard_sorted=_numpy(kantorovich_sort(x, **known)),
        eps=float(p.eps[row].item()),
        iterations=int(plan.iterations[row].item()),
        marginal_error=float(plan.marginal_error[row].item()),
        converged=bool(plan.converged[row].item()),
    )


def hard_plan(x: Array, a: Array, b: Array) -> Array:
    """The plan (n, m) for eps = 0: values and targets laid side by side along the axis of mass, and their overlaps.

    Equal values are one atom, divided by weight: the limit of the entropic plan.
    """
    _, atom = np.unique(x, return_inverse=True)
    mass = np.bincount(atom, weights=a)
    until, reached = mass.cumsum()[:, None], b.cumsum()[None]
    overlap = np.minimum(until, reached) - np.maximum(until - mass[:, None], reached - b[None])
    share = np.divide(a, mass[atom], out=np.zeros_like(a), where=mass[atom] > 0)
    hard: Array = share[:, None] * overlap.clip(min=0.0)[atom]
    return hard


def _numpy(t: Tensor) -> Array:
    array: Array = t.detach().cpu().double().numpy()
    return array
