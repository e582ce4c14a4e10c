"""Losses from metrics: what is sorted or ranked at test time, made differentiable for training.

Every loss has the contract of ``_common`` (last dimension ranked, ``weights`` an example, ``mask`` for entries that
exist, ``reduction``) and the options of the operators it is made of (``eps``, ``cost``, ``squash``, ``solver``; see
``sinksort.operators``). Next to a loss stands the exact metric it softens. How they
compare with the usual surrogates is measured in docs/losses.md.
"""

from ._common import Reduction
from .classification import EXCESS_LOSSES, topk_error, topk_loss
from .conformal import conformal_quantile, conformal_size_loss, soft_conformal_quantile
from .correlation import kendall, kendall_loss, spearman, spearman_loss
from .fairness import quantile_parity, quantile_parity_loss
from .membership import membership_loss
from .neighbours import knn_loss, soft_knn_vote
from .permutation import partial_order_loss, permutation_accuracy, permutation_cross_entropy, ranks_of_times
from .ranking import (
    average_precision,
    average_precision_loss,
    ndcg,
    ndcg_loss,
    recall_at_k,
    recall_at_k_loss,
    reciprocal_rank,
    reciprocal_rank_loss,
)
from .regression import least_quantile_loss, median_of_means, trimmed_loss

__all__ = [
    "EXCESS_LOSSES",
    "Reduction",
    "average_precision",
    "average_precision_loss",
    "conformal_quantile",
    "conformal_size_loss",
    "kendall",
    "kendall_loss",
    "knn_loss",
    "least_quantile_loss",
    "median_of_means",
    "membership_loss",
    "ndcg",
    "ndcg_loss",
    "partial_order_loss",
    "permutation_accuracy",
    "permutation_cross_entropy",
    "quantile_parity",
    "quantile_parity_loss",
    "ranks_of_times",
    "recall_at_k",
    "recall_at_k_loss",
    "reciprocal_rank",
    "reciprocal_rank_loss",
    "soft_conformal_quantile",
    "soft_knn_vote",
    "spearman",
    "spearman_loss",
    "topk_error",
    "topk_loss",
    "trimmed_loss",
]
