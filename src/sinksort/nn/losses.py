"""The losses on examples as modules. See the functions in ``sinksort.losses`` for what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ..core.costs import Cost
from ..core.solvers import Solver
from ..core.squash import Squash
from ..losses._common import Reduction
from ..losses._labels import Positives
from ..losses.classification import topk_loss
from ..losses.conformal import conformal_size_loss
from ..losses.fairness import quantile_parity_loss
from ..losses.membership import membership_loss
from ..losses.neighbours import Objective, knn_loss
from ..losses.regression import least_quantile_loss, median_of_means, trimmed_loss
from ..operators import DEFAULT_SOLVER
from ..operators.fillers import Interpolation
from ._base import SoftLoss


class TopKLoss(SoftLoss):
    """``topk_loss`` as a module.

    >>> from sinksort.nn import TopKLoss
    >>> TopKLoss(5, J="log", eps=1e-3)
    TopKLoss(k=5, J='log', eps=0.001)
    """

    def __init__(
        self,
        k: int = 1,
        *,
        J: str | Callable[[Tensor], Tensor] = "membership",
        rescale: bool = False,
        positives: Positives = "all",
        reduction: Reduction = "mean",
        eps: float | Tensor | None = None,
        cost: Cost = 2,
        squash: Squash = "auto",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)  # type: ignore[arg-type] # None: what suits J
        self.k, self.J, self.rescale, self.positives = k, J, rescale, positives

    def forward(
        self, logits: Tensor, labels: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return topk_loss(
            logits,
            labels,
            self.k,
            J=self.J,
            rescale=self.rescale,
            positives=self.positives,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class MembershipLoss(SoftLoss):
    """``membership_loss`` as a module.

    >>> from sinksort.nn import MembershipLoss
    >>> MembershipLoss(p_k=(0.5, 0.5), eps=0.5)
    MembershipLoss(p_k=(0.5, 0.5), eps=0.5)
    """

    def __init__(
        self,
        k: int = 1,
        *,
        p_k: Sequence[float] | None = None,
        power: float = 0.0,
        positives: Positives = "all",
        reduction: Reduction = "mean",
        eps: float | Tensor = 1.0,
        cost: Cost = 2,
        squash: Squash = None,
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.k, self.p_k, self.power, self.positives = k, p_k, power, positives

    def forward(
        self, logits: Tensor, labels: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return membership_loss(
            logits,
            labels,
            self.k,
            p_k=self.p_k,
            power=self.power,
            positives=self.positives,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class LeastQuantileLoss(SoftLoss):
    """``least_quantile_loss`` as a module.

    >>> import torch
    >>> from sinksort.nn import LeastQuantileLoss
    >>> LeastQuantileLoss(0.5, eps=1e-4)(torch.tensor([0.1, -0.2, 1000.0]))
    tensor(0.2000)
    """

    def __init__(
        self,
        q: float = 0.5,
        *,
        power: float = 1.0,
        width: float | None = None,
        interpolation: Interpolation = "hazen",
        reduction: Reduction = "mean",
        eps: float | Tensor = 1e-1,
        cost: Cost = 2,
        squash: Squash = "robust",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.q, self.power, self.width, self.interpolation = q, power, width, interpolation

    def forward(self, residuals: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return least_quantile_loss(
            residuals,
            self.q,
            power=self.power,
            width=self.width,
            interpolation=self.interpolation,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class TrimmedLoss(SoftLoss):
    """``trimmed_loss`` as a module.

    >>> import torch
    >>> from sinksort.nn import TrimmedLoss
    >>> TrimmedLoss(high=0.8, eps=1e-4)(torch.tensor([1.0, 2.0, 3.0, 4.0, 1000.0]))
    tensor(2.5000)
    """

    def __init__(
        self,
        low: float = 0.0,
        high: float = 0.9,
        *,
        reduction: Reduction = "mean",
        eps: float | Tensor = 1e-1,
        cost: Cost = 2,
        squash: Squash = "robust",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.low, self.high = low, high

    def forward(self, losses: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return trimmed_loss(
            losses,
            self.low,
            self.high,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class MedianOfMeans(SoftLoss):
    """``median_of_means`` as a module.

    >>> import torch
    >>> from sinksort.nn import MedianOfMeans
    >>> MedianOfMeans(3, eps=1e-4)(torch.tensor([1.0, 3.0, 5.0, 5.0, 1000.0, 0.0]))
    tensor(5.)
    """

    def __init__(
        self,
        blocks: int,
        *,
        reduction: Reduction = "mean",
        eps: float | Tensor = 1e-1,
        cost: Cost = 2,
        squash: Squash = "robust",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.blocks = blocks

    def forward(self, losses: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return median_of_means(
            losses,
            self.blocks,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class QuantileParityLoss(SoftLoss):
    """``quantile_parity_loss`` as a module.

    >>> import torch
    >>> from sinksort.nn import QuantileParityLoss
    >>> scores = torch.tensor([0.1, 0.2, 0.3, 0.6, 0.7, 0.8])
    >>> QuantileParityLoss(num_quantiles=3, eps=1e-4)(scores, torch.tensor([0, 0, 0, 1, 1, 1]))
    tensor(0.5000)
    """

    def __init__(
        self,
        *,
        p: float = 1.0,
        num_quantiles: int = 16,
        num_groups: int | None = None,
        reduction: Reduction = "mean",
        eps: float | Tensor = 1e-2,
        cost: Cost = 2,
        squash: Squash = "sigmoid",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.p, self.num_quantiles, self.num_groups = p, num_quantiles, num_groups

    def forward(
        self, scores: Tensor, groups: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return quantile_parity_loss(
            scores,
            groups,
            p=self.p,
            num_quantiles=self.num_quantiles,
            num_groups=self.num_groups,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class KNNLoss(SoftLoss):
    """``knn_loss`` as a module.

    >>> import torch
    >>> from sinksort.nn import KNNLoss
    >>> distances = torch.tensor([[0.1, 0.5, 0.2, 0.9]])
    >>> KNNLoss(3, eps=1e-4)(distances, torch.tensor([0, 0, 1, 1]), torch.tensor([0]))
    tensor(0.3333)
    """

    def __init__(
        self,
        k: int,
        *,
        objective: Objective = "error",
        num_classes: int | None = None,
        reduction: Reduction = "mean",
        eps: float | Tensor = 1e-1,
        cost: Cost = 2,
        squash: Squash = "sigmoid",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.k, self.objective, self.num_classes = k, objective, num_classes

    def forward(
        self,
        distances: Tensor,
        labels: Tensor,
        true_labels: Tensor,
        *,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        return knn_loss(
            distances,
            labels,
            true_labels,
            self.k,
            objective=self.objective,
            num_classes=self.num_classes,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class ConformalSizeLoss(SoftLoss):
    """``conformal_size_loss`` as a module.

    >>> import torch
    >>> from sinksort.nn import ConformalSizeLoss
    >>> loss = ConformalSizeLoss(0.1, temperature=1e-3, eps=1e-4)
    >>> loss(torch.linspace(0.0, 1.0, 19), torch.tensor([[0.1, 0.5, 0.99]]))
    tensor(1.)
    """

    def __init__(
        self,
        alpha: float = 0.1,
        *,
        temperature: float = 0.1,
        free: float = 1.0,
        reduction: Reduction = "mean",
        eps: float | Tensor = 3e-3,
        cost: Cost = 2,
        squash: Squash = "sigmoid",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.alpha, self.temperature, self.free = alpha, temperature, free

    def forward(
        self, calibration: Tensor, scores: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return conformal_size_loss(
            calibration,
            scores,
            self.alpha,
            temperature=self.temperature,
            free=self.free,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )
