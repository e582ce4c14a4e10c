"""Losses from metrics: what is sorted or ranked at test time, made differentiable for training.

Every loss has the contract of ``_common`` (last dimension ranked, ``weights`` an example, ``mask`` for entries that
exist, ``reduction``) and the options of the operators it is made of (``eps``, ``cost``, ``squash``, ``solver``; see
``sinksort.core.options``). Next to a loss stands the exact metric it softens. How they compare with the usual
surrogates is measured in docs/losses.md.
"""

from types import FunctionType as _FunctionType

from ..core.options import OPTIONS as _OPTIONS
from ..core.options import borrowed as _borrowed
from ..core.options import explained as _explained
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

#: What all losses mean by options that operators have too.
_WORDS = _OPTIONS | {
    "weights": "one number for each example, see the head of ``sinksort.losses``. None: all count the same.",
    "mask": "True for entries that exist, False for padding, in the shape of the first argument. None: all exist.",
    "k": "how many places at the top count.",
}
_ROBUST = (
    'how residuals come to [0, 1]. "robust" standardises by the median and the median absolute deviation, which '
    'outliers do not move, "sigmoid" and "arctan" by mean and standard deviation; None and callables as in '
    "``sinksort.soft_quantile``."
)


def _explain() -> None:
    """Complete the docstrings. A metric has the parameters of the loss that softens it."""
    functions = {name: each for name in __all__ if isinstance(each := globals()[name], _FunctionType)}
    losses = {"topk_error": "topk_loss", "conformal_quantile": "soft_conformal_quantile"}
    losses["permutation_accuracy"] = "permutation_cross_entropy"
    for name, function in functions.items():
        loss = functions.get(losses.get(name, f"{name}_loss"))
        robust = {"squash": _ROBUST} if (function.__kwdefaults__ or {}).get("squash") == "robust" else {}
        _explained(function, words=_WORDS | robust | ({} if loss is None else _borrowed(loss)))


_explain()
