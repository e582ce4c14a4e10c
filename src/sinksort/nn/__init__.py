"""Modules: the operators as layers, and the losses. Thin: each holds its options and calls its function."""

from .. import losses as _losses
from .. import operators as _operators
from ._base import SoftModule, explain, straight_through
from .layers import QuantilePool, SoftQuantile, SoftRank, SoftSort, SoftTopK
from .losses import (
    ConformalSizeLoss,
    KNNLoss,
    LeastQuantileLoss,
    MedianOfMeans,
    MembershipLoss,
    QuantileParityLoss,
    TopKLoss,
    TrimmedLoss,
)
from .order_losses import (
    AveragePrecisionLoss,
    KendallLoss,
    NDCGLoss,
    PartialOrderLoss,
    PermutationCrossEntropy,
    RecallAtKLoss,
    ReciprocalRankLoss,
    SpearmanLoss,
)

__all__ = [
    "AveragePrecisionLoss",
    "ConformalSizeLoss",
    "KNNLoss",
    "KendallLoss",
    "LeastQuantileLoss",
    "MedianOfMeans",
    "MembershipLoss",
    "NDCGLoss",
    "PartialOrderLoss",
    "PermutationCrossEntropy",
    "QuantileParityLoss",
    "QuantilePool",
    "RecallAtKLoss",
    "ReciprocalRankLoss",
    "SoftModule",
    "SoftQuantile",
    "SoftRank",
    "SoftSort",
    "SoftTopK",
    "SpearmanLoss",
    "TopKLoss",
    "TrimmedLoss",
    "straight_through",
]

explain(
    (each for each in map(globals().get, __all__) if isinstance(each, type)),
    {name: getattr(room, name) for room in (_operators, _losses) for name in room.__all__},
)
del explain
