"""The operators as layers, with a straight-through option: the hard answer forward, the soft gradient backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.costs import Cost
from ..core.kantorovich import kantorovich_rank, kantorovich_sort
from ..core.problem import as_row_of_one, existing
from ..core.solvers import Solver
from ..core.squash import Squash
from ..operators import DEFAULT_SOLVER, TopK, soft_quantile, soft_rank, soft_sort, soft_topk
from ..operators.fillers import How, Interpolation, quantile_levels, rounding_of_levels, weights_of
from ._base import SoftModule, straight_through


class SoftRank(SoftModule):
    """``sinksort.soft_rank`` as a layer.

    >>> import torch
    >>> from sinksort.nn import SoftRank
    >>> SoftRank(straight_through=True, eps=0.1)(torch.tensor([0.3, 0.1, 0.2]))
    tensor([3., 1., 2.])
    """

    def __init__(
        self,
        dim: int = -1,
        *,
        descending: bool = False,
        straight_through: bool = False,
        eps: float | Tensor = 1e-2,
        cost: Cost = 2,
        squash: Squash = "sigmoid",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(eps, cost, squash, solver, backend)
        self.dim, self.descending, self.straight_through = dim, descending, straight_through

    def forward(self, x: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        soft = soft_rank(
            x,
            dim=self.dim,
            descending=self.descending,
            weights=weights,
            mask=mask,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )
        if not self.straight_through:
            return soft
        hard = kantorovich_rank(x, dim=self.dim, descending=self.descending, weights=weights, mask=mask)
        return straight_through(hard, soft)


class SoftSort(SoftModule):
    """``sinksort.soft_sort`` as a layer.

    >>> import torch
    >>> from sinksort.nn import SoftSort
    >>> SoftSort(num_targets=2, eps=1e-4)(torch.tensor([4.0, 1.0, 3.0, 2.0]))
    tensor([1.5000, 3.5000])
    """

    def __init__(
        self,
        dim: int = -1,
        *,
        descending: bool = False,
        num_targets: int | None = None,
        straight_through: bool = False,
        eps: float | Tensor = 1e-2,
        cost: Cost = 2,
        squash: Squash = "sigmoid",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(eps, cost, squash, solver, backend)
        self.dim, self.descending, self.num_targets = dim, descending, num_targets
        self.straight_through = straight_through

    def forward(self, x: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        soft = soft_sort(
            x,
            dim=self.dim,
            descending=self.descending,
            weights=weights,
            mask=mask,
            num_targets=self.num_targets,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )
        if not self.straight_through:
            return soft
        hard = kantorovich_sort(
            x, dim=self.dim, descending=self.descending, weights=weights, mask=mask, num_targets=self.num_targets
        )
        return straight_through(hard, soft)


class SoftQuantile(SoftModule):
    """``sinksort.soft_quantile`` as a layer. Straight through: the sample quantile that is the limit of the soft one.

    >>> import torch
    >>> from sinksort.nn import SoftQuantile
    >>> SoftQuantile(0.5, straight_through=True)(torch.tensor([4.0, 1.0, 30.0]))
    tensor(4.)
    """

    def __init__(
        self,
        q: float | Sequence[float],
        dim: int = -1,
        *,
        keepdim: bool = False,
        width: float | None = None,
        interpolation: Interpolation = "hazen",
        straight_through: bool = False,
        eps: float | Tensor = 1e-2,
        cost: Cost = 2,
        squash: Squash = "sigmoid",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(eps, cost, squash, solver, backend)
        self.q, self.dim, self.keepdim, self.width = q, dim, keepdim, width
        self.interpolation: Interpolation = interpolation
        self.straight_through = straight_through

    def forward(self, x: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        soft = soft_quantile(
            x,
            self.q,
            dim=self.dim,
            keepdim=self.keepdim,
            width=self.width,
            interpolation=self.interpolation,
            weights=weights,
            mask=mask,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )
        if not self.straight_through:
            return soft
        # The exact sort onto the fillers of the soft quantile.
        x, weights, mask = (as_row_of_one(t) for t in (x, weights, mask))
        _, count = existing(x, self.dim, mask)
        levels = quantile_levels(self.q, self.width, x.device)
        how = How(self.width, self.interpolation, rounding_of_levels(x.dtype, self.q))
        hard = torch.stack(
            [
                kantorovich_sort(x, self.dim, weights=weights, mask=mask, target_weights=b).select(self.dim, 1)
                for b in weights_of(levels, count, how)
            ]
        )
        return straight_through(hard.reshape(soft.shape), soft)


class SoftTopK(SoftModule):
    """``sinksort.soft_topk`` as a layer: the k soft values, and every entry's membership.

    >>> import torch
    >>> from sinksort.nn import SoftTopK
    >>> SoftTopK(2, straight_through=True, eps=0.1)(torch.tensor([0.1, 0.9, 0.5, 0.7]))
    TopK(values=tensor([0.9000, 0.7000]), mask=tensor([0., 1., 0., 1.]))
    """

    def __init__(
        self,
        k: int,
        dim: int = -1,
        *,
        largest: bool = True,
        straight_through: bool = False,
        eps: float | Tensor = 1e-2,
        cost: Cost = 2,
        squash: Squash = "sigmoid",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(eps, cost, squash, solver, backend)
        self.k, self.dim, self.largest, self.straight_through = k, dim, largest, straight_through

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> TopK:
        soft = soft_topk(
            x,
            self.k,
            dim=self.dim,
            largest=self.largest,
            mask=mask,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )
        if not self.straight_through:
            return soft
        values = kantorovich_sort(x, dim=self.dim, descending=self.largest, mask=mask).narrow(self.dim, 0, self.k)
        # Exact ranks from the wanted end: those up to k are in, and a tie across the border shares what is left.
        ranks = kantorovich_rank(x, dim=self.dim, descending=self.largest, mask=mask)
        rows = ranks.movedim(self.dim, -1)
        same = (rows.unsqueeze(-1) == rows.unsqueeze(-2)).sum(-1).movedim(-1, self.dim)
        share = ((self.k + 0.5 - ranks) / same + 0.5).clamp(0.0, 1.0)
        if mask is not None:
            share = torch.where(ranks > 0, share, 0.0)
        return TopK(straight_through(values, soft.values), straight_through(share, soft.mask))


class QuantilePool(SoftModule):
    """Pooling by ``soft_quantile``: mean and max pooling are its blurred and its extreme case.

    Every feature is pooled on its own along ``dim``, to one number a level; the levels are appended last, or flattened
    into the features: (batch, time, d) becomes (batch, d * levels) with the default ``dim=-2``.

    Args:
        q: the levels, in [0, 1].
        dim: the dimension that is pooled.
        flatten: join the levels and the features in one dimension.

    >>> import torch
    >>> from sinksort.nn import QuantilePool
    >>> x = torch.tensor([[1.0, 10.0], [2.0, 30.0], [9.0, 20.0]])
    >>> QuantilePool([0.0, 0.5, 1.0], eps=1e-4)(x)
    tensor([ 1.,  2.,  9., 10., 20., 30.])
    """

    def __init__(
        self,
        q: Sequence[float] = (0.1, 0.5, 0.9),
        dim: int = -2,
        *,
        flatten: bool = True,
        width: float | None = None,
        interpolation: Interpolation = "hazen",
        eps: float | Tensor = 1e-2,
        cost: Cost = 2,
        squash: Squash = "sigmoid",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(eps, cost, squash, solver, backend)
        self.q, self.dim, self.flatten, self.width = tuple(q), dim, flatten, width
        self.interpolation: Interpolation = interpolation

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """``mask`` has the shape of x, or lacks its last dimension when that is the features: (batch, time)."""
        if mask is not None and mask.ndim == x.ndim - 1:
            mask = mask.unsqueeze(-1).expand(x.shape)
        pooled = soft_quantile(
            x,
            self.q,
            dim=self.dim,
            width=self.width,
            interpolation=self.interpolation,
            mask=mask,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        ).movedim(0, -1)
        return pooled.flatten(-2) if self.flatten and pooled.ndim > 1 else pooled
