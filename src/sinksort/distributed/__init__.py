"""Soft ranks, quantiles and top-k masks of values that are spread over the processes of a ``torch.distributed`` group.

Every rank passes its own part of each row, of any size, and gets the answers for it; they are those of the operators of
``sinksort`` on all parts together. What is sent does not grow with the number of values. See docs/distributed.md.
"""

from .operators import soft_median, soft_quantile, soft_rank, soft_topk_mask

__all__ = ["soft_median", "soft_quantile", "soft_rank", "soft_topk_mask"]
