"""The potentials of the hard sort, softened where next to nothing crosses: where every solver can start.

In one dimension the optimal plan for a convex cost is the north-west corner staircase of the sorted values.
Complementary slackness along it says that where the staircase passes from target j to target j+1 inside input i,
g_{j+1} - g_j = C_{i,j+1} - C_{i,j} = r_i. When the passage falls exactly between two inputs every value between theirs
is optimal, and the middle is taken, which is what the limit eps -> 0 does.

Between the two stands a passage that is nearly between two inputs: a mass delta that is far below theirs has to cross,
as when weights differ by rounding. For eps -> 0 the passage is then inside an input, but at any eps worth computing
with it is in the gap. It is where the two inputs l < h, of masses a_l and a_h, exchange delta through entropy alone:

    a_l sigmoid(G - r_l) + a_h sigmoid(G - r_h) = a_h + delta,        G = (g_{j+1} - g_j) / eps,   r in units of eps,

a quadratic equation in e^G, whose root is G = (r_l + r_h) / 2 + t, with d = (r_l - r_h) / 2 and

    t = log(c / a) / 2 - asinh(s),   a = a_l - delta,   c = a_h + delta,
    s = ((a_l - a_h) e^-d - 2 delta cosh d) / (2 sqrt(a c)).

In the middle of an input delta is as large as the input, and t comes to the end of the gap, +d or -d, which is the rule
above. Targets without weight are passed over, and get the largest potential that the inputs allow. Cost: O(n + m) after
the sort, and a minimum over the cost matrix for each side.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._common import batch_over_leading_dim

#: Two cumulative weights closer than this are the same boundary where a start need not be close.
SAME_MASS = 1e-9
#: The same here: what rounding leaves of sums of equal numbers in double precision.
_ROUNDING = 1e-14
_LARGEST_EXPONENT = 300.0  #: of which exp() and its square are finite


@torch.library.custom_op("sinksort::staircase", mutates_args=())
def staircase_potentials(C: Tensor, a: Tensor, b: Tensor, eps: Tensor, by_columns: bool) -> tuple[Tensor, Tensor]:
    """(f0, g0) with f0_i + g0_j <= C_ij, equal somewhere in each row. C (..., n, m), eps (..., 1, 1), rows sorted.

    An operator of torch (see ``_common``) because binary searches and ``vmap`` do not mix in every version. The side
    that the solver will move is integrated along the staircase.
    """
    scratch = torch.empty_like(C) if C.is_cpu else None  # a new large tensor costs more than the sum that fills it
    if by_columns:
        g = _along_columns(C, a, b, eps)
    else:
        f = _along_columns(C.mT, b, a, eps)
        g = _largest(C, f, a, -2, scratch)
    # Rows end on targets that carry weight: a weightless target must not hold a row's potential.
    f = _largest(C, g, b, -1, scratch)
    if not by_columns or (C.is_cpu and bool((b > 0).all())):
        return f, g.clone()
    return f, torch.where(b > 0, g, _largest(C, f, a, -2, scratch))


def _largest(C: Tensor, f: Tensor, a: Tensor, dim: int, scratch: Tensor | None) -> Tensor:
    """The largest g with f_i + g_j <= C_ij for those i of dimension ``dim`` that weigh something."""
    f = torch.where(a > 0, f, -float("inf")).unsqueeze(-1 if dim == -2 else -2)
    return torch.sub(C, f, out=scratch).amin(dim)


def _along_columns(C: Tensor, a: Tensor, b: Tensor, eps: Tensor) -> Tensor:
    n, m = C.shape[-2:]
    same = _ROUNDING if C.dtype == torch.float64 else 1e-6
    reached = a.cumsum(-1).contiguous()
    boundary = b.cumsum(-1)[..., :-1]
    low = torch.searchsorted(reached, (boundary - same).contiguous()).clamp(max=n - 1)
    high = torch.searchsorted(reached, (boundary + same).contiguous(), right=True).clamp(max=n - 1)
    # What of the input at ``low`` goes up, and down; where the passage is inside an input, the nearer of its ends is
    # the gap that counts.
    up = (reached.gather(-1, low) - boundary).clamp(min=0.0)
    down = (a.gather(-1, low) - up).clamp(min=0.0)
    end = reached.gather(-1, low)
    above = torch.searchsorted(reached, (end + same).contiguous(), right=True).clamp(max=n - 1)
    below = torch.searchsorted(reached, (end - a.gather(-1, low) - same).contiguous()).clamp(max=n - 1)
    inside, to_above = low == high, up < down
    crossing = torch.where(inside & ~to_above, -down, torch.where(inside, up, 0.0))
    high = torch.where(inside, torch.where(to_above, above, low), high)
    low = torch.where(inside & ~to_above, below, low)

    # From the last target that weighs something to the next one that does.
    at = torch.arange(m, device=C.device, dtype=torch.int64).expand(b.shape)
    last = torch.where(b > 0, at, 0).cummax(-1).values[..., :-1]
    counts = (b[..., 1:] > 0) & (b.gather(-1, last) > 0)
    flat = C.flatten(-2)
    rise_low, rise_high = (
        (flat.gather(-1, i * m + at[..., 1:]) - flat.gather(-1, i * m + last)) / eps.squeeze(-1) for i in (low, high)
    )
    middle, half = 0.5 * (rise_low + rise_high), 0.5 * (rise_low - rise_high).clamp(min=0.0)
    increments = middle + _in_the_gap(a.gather(-1, low), a.gather(-1, high), crossing, half)
    return torch.nn.functional.pad(torch.where(counts, increments * eps.squeeze(-1), 0.0).cumsum(-1), (1, 0))


def _in_the_gap(a_low: Tensor, a_high: Tensor, crossing: Tensor, half: Tensor) -> Tensor:
    """t of the module's docstring, from -half to half; zero where nothing is to cross."""
    leaves, arrives = (a_low - crossing).clamp(min=1e-300), (a_high + crossing).clamp(min=1e-300)
    both = (leaves * arrives).sqrt()
    uneven = (a_low - a_high) * (-half).exp() / (2.0 * both)
    # log |delta| + log(cosh d) - log sqrt(a c), of which the exponential may be infinite
    power = crossing.abs().clamp(min=1e-300).log() + half + (-2.0 * half).exp().log1p() - math.log(2.0) - both.log()
    near = uneven - crossing.sign() * power.clamp(max=_LARGEST_EXPONENT).exp()
    far = -crossing.sign() * (power + math.log(2.0))
    t = 0.5 * (arrives / leaves).log() - torch.where(power > _LARGEST_EXPONENT, far, near.asinh())
    return torch.where(crossing == 0.0, 0.0, t.minimum(half).maximum(-half))


@staircase_potentials.register_fake
def _(C: Tensor, a: Tensor, b: Tensor, eps: Tensor, by_columns: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(a), torch.empty_like(b)


batch_over_leading_dim(staircase_potentials)
