"""Soft ranks, quantiles and top-k masks of rows that do not fit in memory, chunk by chunk.

``chunks`` gives the rows in pieces along their last dimension: tensors (..., c), or pairs (x, weights). It is gone
through several times, so it is something that can be iterated again (a list, a data loader), or a function that returns
a new iterator each time. Every pass must bring the same values in the same order, however they are cut into chunks; if
one does not, that is an error. Two passes answer a quantile: one for mean and spread, one for sums over a fine grid,
from which those over every coarser grid follow without looking at the values again. Ranks and masks are read in a third
pass, as they are asked for. Memory holds one chunk and the grid, whatever the number of values. There are no gradients:
what does not fit in memory has no graph.
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
        | {"chunks": "tensors (..., c) or pairs (x, weights), to be iterated more than once, or a function."},
    )
