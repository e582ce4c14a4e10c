"""Values whose places on the axis of the targets are found by torch, for kernels in single precision.

What     x~ of a callable squash, and of a call whose eps is learned.
When     Ranks and memberships in eager calls, at the squared cost, if all places lie in [0, 1].
Why      128 x 100, forward and backward, one thread: a callable squash takes 0.7 ms and a learned eps 1.5 ms where the
         exact family takes 10 ms and a plain call 0.5 ms.
Keeps    Nothing: ordinary autograd goes from places to values.

**The gradient in eps** needs no kernel. Of the cost (y - x~)^2 / eps only -2 x~ y / eps joins values with targets, and
potentials take up the rest. So the plan depends on x~ / eps alone, and on x~ but for a constant, since a row of
exponents may have one of its own and so may a column. Places c + (x~ - c) eps_0 / eps, at the entropy eps_0 that eps
happens to be, are x~ itself, and their gradient in eps is that of the answer.

Nearly all of it cancels where plans are nearly hard: from eps = 5e-3 down the exact family is asked for it.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ...core.option_values import Options
from ...core.problem import as_rows, entropy, like_rows, live_rows
from ...core.squash import Squash, normalize
from ..dispatch import AS_TYPED, LEAST_LEARNED_EPS
from ..memo import ReadOut


class Places(NamedTuple):
    """In place of x, weights and mask; ``dim`` is the last dimension of each."""

    x: Tensor
    weights: Tensor | None
    mask: Tensor | None


REFUSED = (
    f"its kernels take places in [0, 1] of a callable squash, or of a learned eps that is not below {LEAST_LEARNED_EPS}"
)


def needed(eps: float | Tensor, squash: Squash) -> bool:
    """Whether kernels cannot find the places by themselves."""
    return callable(squash) or (isinstance(eps, Tensor) and eps.requires_grad)


def places(x: Tensor, options: Options) -> Places | None:
    """Places in single precision, or None if some are not in [0, 1], or a learned eps is too small."""
    dim, weights, mask, eps = options.dim, options.weights, options.mask, options.eps
    rows = as_rows(x, dim)
    learned = isinstance(eps, Tensor) and eps.requires_grad
    if rows.numel() == 0:
        return None
    if isinstance(eps, Tensor) and learned and float(eps.detach().min()) * AS_TYPED < LEAST_LEARNED_EPS:
        return None
    values, a, _, _ = live_rows(x, rows, dim, weights, mask)
    ends = values.new_tensor((0.0, 1.0))
    at = normalize(values, a, options.squash, ends[:1], ends[1:])
    if not isinstance(at, Tensor) or not at.is_floating_point():
        return None
    low, high = at.detach().aminmax()
    if not (low >= 0.0 and high <= 1.0):  # or some are NaN
        return None
    if isinstance(eps, Tensor) and learned:
        entropies = entropy(eps, rows.shape[:-1], x.device, values.dtype).squeeze(-1)
        centre = at.detach().mean(-1, keepdim=True)
        at = centre + (at - centre) * (entropies.detach() / entropies)
    return Places(
        at.float(),
        None if weights is None else like_rows(weights, x, dim, "weights"),
        None if mask is None else like_rows(mask, x, dim, "mask"),
    )


def options_for(places: Places, options: Options) -> Options:
    """The options of a call for places. Its eps has no gradient, which the places have."""
    eps = options.eps.detach() if isinstance(options.eps, Tensor) else options.eps
    return options._replace(dim=-1, weights=places.weights, mask=places.mask, eps=eps, squash=None)


def finished(found: ReadOut | None, x: Tensor, dim: int) -> ReadOut | None:
    """An answer for places, in the shape and dtype of x. It is not remembered: other values may lie elsewhere."""
    if found is None:
        return None
    in_rows, dtype = found.shaped, x.dtype
    return found._replace(shaped=lambda out: in_rows(out).movedim(-1, dim).to(dtype), lasting=False)
