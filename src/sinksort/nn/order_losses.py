"""The losses on orders and lists as modules. See the functions in ``sinksort.losses`` for what they compute."""

from __future__ import annotations

from torch import Tensor

from ..core.costs import Cost
from ..core.solvers import Solver
from ..core.squash import Squash
from ..losses._common import Reduction
from ..losses.correlation import PairWeights, kendall_loss, spearman_loss
from ..losses.permutation import Objective, partial_order_loss, permutation_cross_entropy
from ..losses.ranking import Gain, average_precision_loss, ndcg_loss, recall_at_k_loss, reciprocal_rank_loss
from ..operators import DEFAULT_SOLVER
from ._base import SoftLoss


class SpearmanLoss(SoftLoss):
    """``spearman_loss`` as a module.

    >>> import torch
    >>> from sinksort.nn import SpearmanLoss
    >>> SpearmanLoss(eps=1e-4)(torch.tensor([0.1, 0.4, 0.2, 0.8]), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor(0.2000)
    """

    def __init__(
        self,
        *,
        reduction: Reduction = "mean",
        eps: float | Tensor = 1e-2,
        cost: Cost = 2,
        squash: Squash = "sigmoid",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)

    def forward(
        self, predictions: Tensor, targets: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return spearman_loss(
            predictions,
            targets,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class KendallLoss(SoftLoss):
    """``kendall_loss`` as a module.

    >>> import torch
    >>> from sinksort.nn import KendallLoss
    >>> KendallLoss(eps=1e-4)(torch.tensor([0.1, 0.4, 0.2, 0.8]), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor(0.3333)
    """

    def __init__(
        self,
        *,
        pair_weights: PairWeights = "equal",
        margin: float = 1.0,
        reduction: Reduction = "mean",
        eps: float | Tensor = 1e-2,
        cost: Cost = 2,
        squash: Squash = "sigmoid",
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.pair_weights, self.margin = pair_weights, margin

    def forward(
        self, predictions: Tensor, targets: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return kendall_loss(
            predictions,
            targets,
            pair_weights=self.pair_weights,
            margin=self.margin,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class NDCGLoss(SoftLoss):
    """``ndcg_loss`` as a module.

    >>> from sinksort.nn import NDCGLoss
    >>> NDCGLoss(10, gain="exponential")
    NDCGLoss(k=10, gain='exponential')
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        gain: Gain = "linear",
        reduction: Reduction = "mean",
        eps: float | Tensor = 1e-1,
        cost: Cost = 2,
        squash: Squash = None,
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.k, self.gain = k, gain

    def forward(
        self, scores: Tensor, relevance: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return ndcg_loss(
            scores,
            relevance,
            self.k,
            gain=self.gain,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class AveragePrecisionLoss(SoftLoss):
    """``average_precision_loss`` as a module.

    >>> import torch
    >>> from sinksort.nn import AveragePrecisionLoss
    >>> scores, relevance = torch.tensor([0.5, 0.9, 0.1, 0.3]), torch.tensor([1, 0, 0, 0])
    >>> AveragePrecisionLoss(2, eps=1e-4)(scores, relevance)
    tensor(0.5000)
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        reduction: Reduction = "mean",
        eps: float | Tensor = 1e-1,
        cost: Cost = 2,
        squash: Squash = None,
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.k = k

    def forward(
        self, scores: Tensor, relevance: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return average_precision_loss(
            scores,
            relevance,
            self.k,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class ReciprocalRankLoss(SoftLoss):
    """``reciprocal_rank_loss`` as a module.

    >>> import torch
    >>> from sinksort.nn import ReciprocalRankLoss
    >>> scores, relevance = torch.tensor([0.5, 0.9, 0.1, 0.3]), torch.tensor([1, 0, 0, 0])
    >>> ReciprocalRankLoss(2, eps=1e-4)(scores, relevance)
    tensor(0.5000)
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        reduction: Reduction = "mean",
        eps: float | Tensor = 1e-1,
        cost: Cost = 2,
        squash: Squash = None,
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.k = k

    def forward(
        self, scores: Tensor, relevance: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return reciprocal_rank_loss(
            scores,
            relevance,
            self.k,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class RecallAtKLoss(SoftLoss):
    """``recall_at_k_loss`` as a module.

    >>> import torch
    >>> from sinksort.nn import RecallAtKLoss
    >>> scores, relevance = torch.tensor([0.5, 0.9, 0.1, 0.3]), torch.tensor([1, 0, 0, 0])
    >>> RecallAtKLoss(2, eps=1e-4)(scores, relevance)
    tensor(0.)
    """

    def __init__(
        self,
        k: int,
        *,
        reduction: Reduction = "mean",
        eps: float | Tensor = 1e-1,
        cost: Cost = 2,
        squash: Squash = None,
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.k = k

    def forward(
        self, scores: Tensor, relevance: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return recall_at_k_loss(
            scores,
            relevance,
            self.k,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class PermutationCrossEntropy(SoftLoss):
    """``permutation_cross_entropy`` as a module.

    >>> import torch
    >>> from sinksort.nn import PermutationCrossEntropy
    >>> loss = PermutationCrossEntropy()(torch.tensor([0.9, 0.1, 0.4]), torch.tensor([3, 1, 2]))
    >>> bool(loss < 0.1)
    True
    """

    def __init__(
        self,
        *,
        objective: Objective = "binary",
        reduction: Reduction = "mean",
        eps: float | Tensor = 5e-2,
        cost: Cost = 2,
        squash: Squash = None,
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)
        self.objective: Objective = objective

    def forward(
        self, scores: Tensor, ranks: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        return permutation_cross_entropy(
            scores,
            ranks,
            objective=self.objective,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )


class PartialOrderLoss(SoftLoss):
    """``partial_order_loss`` as a module.

    >>> import torch
    >>> from sinksort.nn import PartialOrderLoss
    >>> loss = PartialOrderLoss()(torch.tensor([0.1, 0.2, 0.9]), torch.tensor([1, 1, 3]), torch.tensor([2, 2, 3]))
    >>> bool(loss < 0.01)
    True
    """

    def __init__(
        self,
        *,
        reduction: Reduction = "mean",
        eps: float | Tensor = 5e-2,
        cost: Cost = 2,
        squash: Squash = None,
        solver: Solver = DEFAULT_SOLVER,
        backend: str = "auto",
    ) -> None:
        super().__init__(reduction, eps, cost, squash, solver, backend)

    def forward(
        self,
        scores: Tensor,
        lowest: Tensor,
        highest: Tensor,
        *,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        return partial_order_loss(
            scores,
            lowest,
            highest,
            weights=weights,
            mask=mask,
            reduction=self.reduction,
            eps=self.eps,
            cost=self.cost,
            squash=self.squash,
            solver=self.solver,
            backend=self.backend,
        )
