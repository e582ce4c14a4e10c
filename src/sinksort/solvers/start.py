"""The exact potentials of the unregularised problem: where every solver can start.

In one dimension the optimal plan for a convex cost is the north-west corner staircase of the sorted values.
Complementary slackness along it says that where the staircase passes from target j to target j+1 inside input i,
g_{j+1} - g_j = C_{i,j+1} - C_{i,j}. When the passage falls exactly between two inputs every value between theirs is
optimal, and the middle is taken, which is what the limit eps -> 0 does. Cost: O(n + m) after the sort.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._common import batch_over_leading_dim

#: Two cumulative weights closer than this are the same boundary; rounding of a float64 cumulative sum is far below.
SAME_MASS = 1e-9


@torch.library.custom_op("sinksort::staircase", mutates_args=())
def staircase_potentials(C: Tensor, a: Tensor, b: Tensor, by_columns: bool) -> tuple[Tensor, Tensor]:
    """(f0, g0) with f0_i + g0_j <= C_ij, equal along the staircase. Rows of C and both weights are in sorted order.

    An operator of torch (see ``_common``) because binary searches and ``vmap`` do not mix in every version. The side
    that the solver will move is integrated along the staircase.
    """
    if by_columns:
        g = _along_columns(C, a, b)
    else:
        f = _along_columns(C.mT, b, a)
        g = (C - f.unsqueeze(-1)).amin(-2)
    # Rows end on targets that carry weight: a weightless target must not hold a row's potential.
    carried = torch.where((b > 0).unsqueeze(-2), C - g.unsqueeze(-2), float("inf"))
    return carried.amin(-1), g


def _along_columns(C: Tensor, a: Tensor, b: Tensor) -> Tensor:
    n = C.shape[-2]
    reached = a.cumsum(-1).contiguous()
    boundary = b.cumsum(-1)[..., :-1]
    before = torch.searchsorted(reached, (boundary - SAME_MASS).contiguous()).clamp(max=n - 1)
    after = torch.searchsorted(reached, (boundary + SAME_MASS).contiguous(), right=True).clamp(max=n - 1)
    rise = C.diff(dim=-1)
    increments = 0.5 * (rise.gather(-2, before.unsqueeze(-2)) + rise.gather(-2, after.unsqueeze(-2)))
    return torch.nn.functional.pad(increments.squeeze(-2).cumsum(-1), (1, 0))


@staircase_potentials.register_fake
def _(C: Tensor, a: Tensor, b: Tensor, by_columns: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(a), torch.empty_like(b)


batch_over_leading_dim(staircase_potentials)
