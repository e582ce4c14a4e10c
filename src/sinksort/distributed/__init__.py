"""Soft ranks, quantiles and top-k masks of values that are spread over the processes of a ``torch.distributed`` group.

Every rank passes its own part of each row, of any size, and gets the answers for it; they are those of the operators of
``sinksort`` on all parts together. What is sent does not grow with the number of values. See docs/distributed.md.
"""

from .. import operators as _operators
from ..core.options import borrowed as _borrowed
from ..core.options import explained as _explained
from .operators import soft_median, soft_quantile, soft_rank, soft_topk_mask

__all__ = ["soft_median", "soft_quantile", "soft_rank", "soft_topk_mask"]

for _operator in (soft_median, soft_quantile, soft_rank, soft_topk_mask):
    _explained(
        _operator,
        words=_borrowed(getattr(_operators, _operator.__name__))
        | {
            "x": "this rank's part of every row, of any size along ``dim``; or a DTensor.",
            "weights": "how much each value of this rank counts, shaped as x. None: all count the same.",
            "group": "the process group. None: the default group.",
        },
    )
