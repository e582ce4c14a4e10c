"""Where the values of a row stand when they are in several places: summaries of the parts, and how they merge.

Each part (a chunk of a file, the shard of a process) is summed up by a few numbers a row. Merging is exact whatever the
parts are: spreads are taken around each part's own mean, and moved to the common one by what the means differ (Chan,
Golub and LeVeque 1979), so nothing cancels; numbers are in units of the largest value, so nothing overflows. All is
differentiable in the values and the weights. What counts is what counts in ``squash.standardize``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..core.problem import wide_dtype
from ..core.squash import INCREASING_MAPS, Squash, normalize
from .places import Placed, Places
from .streamed import Streamed

Reduction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Summary:
    """What is to be known of some of the values of rows, to place any of them."""

    extremes: Tensor  #: (r, 4) largest, -smallest: of those that weigh something, of all; finite values only
    signs: Tensor  #: (r, 5) whether there is a NaN, +inf, -inf; +inf, -inf that weighs something
    count: Tensor  #: (r, 1) how many values
    mass: Tensor  #: (r, 1) what they weigh
    weight: Tensor  #: (r, 1) what the finite ones weigh
    mean: Tensor  #: (r, 1) of the finite ones, in units of ``size``
    spread: Tensor  #: (r, 1) sum of weight (x - mean)^2, in units of size^2

    @classmethod
    def of(cls, x: Tensor, w: Tensor | None) -> Summary:
        """Of values x (r, n), any n, and their weights; both float64."""
        finite = torch.isfinite(x)
        weighs = finite if w is None else finite & (w > 0)
        with torch.no_grad():
            extremes = torch.cat([_largest(s * x, on) for on in (weighs, finite) for s in (1.0, -1.0)], dim=-1)
            heavy = torch.ones_like(finite) if w is None else w > 0
            kinds = x.isnan(), x == math.inf, x == -math.inf, (x == math.inf) & heavy, (x == -math.inf) & heavy
            signs = torch.stack([kind.any(-1) for kind in kinds], dim=-1)
            size = _size(extremes)
        u = torch.where(finite, x, 0.0) / size
        # What weighs nothing adds nothing, but what it would add is its derivative in the weight.
        adds = weighs | (finite & (u.abs() < 1e100))
        u = torch.where(adds, u, 0.0)
        a = adds.to(u.dtype) if w is None else torch.where(adds, w, 0.0)
        weight = a.sum(-1, keepdim=True)
        mean = (a * u).sum(-1, keepdim=True) / torch.where(weight > 0, weight, 1.0)
        spread = (a * (u - mean).square()).sum(-1, keepdim=True)
        count = torch.full_like(weight, float(x.shape[-1])).detach()
        mass = count if w is None else w.sum(-1, keepdim=True)
        return cls(extremes, signs.to(x.dtype), count, mass, weight, mean, spread)

    @classmethod
    def of_streamed(cls, x: Streamed) -> Summary:
        """Of values that are finite and not all the same, of equal weight: their mean and std are known."""
        with torch.no_grad():
            inside = torch.cat([x.mean + 1.0 / x.scale, 1.0 / x.scale - x.mean], dim=-1)  # is all that matters
            extremes = torch.cat([inside, inside], dim=-1)
            size = _size(extremes)
        count = x.count
        spread = count / (x.scale * size).square()
        return cls(extremes, x.mean.new_zeros(len(count), 5), count, count, count, x.mean / size, spread)

    @property
    def size(self) -> Tensor:
        """(r, 1): the unit, the largest absolute value that weighs something."""
        return _size(self.extremes)

    def merged(self, largest: Reduction, total: Reduction) -> Summary:
        """One summary of many: ``largest`` and ``total`` reduce a tensor over all of them."""
        known = largest(torch.cat([self.extremes, self.signs], dim=-1))
        extremes, signs = known[..., :4], known[..., 4:]
        ratio = self.size / _size(extremes)
        mine = self.mean * ratio
        sums = total(torch.cat([self.count, self.mass, self.weight, self.weight * mine], dim=-1))
        count, mass, weight, moment = sums.split(1, dim=-1)
        mean = moment / torch.where(weight > 0, weight, 1.0)
        spread = total(self.spread * ratio.square() + self.weight * (mine - mean).square())
        return Summary(extremes, signs, count.detach(), mass, weight, mean, spread)

    def plus(self, other: Summary) -> Summary:
        """Of both.

        >>> x = torch.tensor([[1.0, 2.0, 4.0, 9.0]], dtype=torch.float64)
        >>> both = Summary.of(x[:, :1], None).plus(Summary.of(x[:, 1:], None))
        >>> both.size * both.mean, both.size**2 * both.spread / both.weight
        (tensor([[4.]], dtype=torch.float64), tensor([[9.5000]], dtype=torch.float64))
        """
        pairs = {f.name: torch.stack([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)}
        return Summary(**pairs).merged(lambda t: t.amax(0), lambda t: t.sum(0))

    @property
    def poisoned(self) -> Tensor:
        """(r, 1): NaN for rows that hold a NaN, else 0."""
        return torch.where(self.signs[:, :1] > 0, torch.nan, 0.0).to(self.mean.dtype)

    @property
    def infinite(self) -> Tensor:
        """(r, 1): what infinite values add to any average that they are part of."""
        above, below = self.signs[:, 3:4] > 0, self.signs[:, 4:] > 0
        return torch.where(above, torch.inf, 0.0) + torch.where(below, -torch.inf, 0.0).to(self.mean.dtype)

    def places(self, x: Tensor, w: Tensor | None, squash: Squash, plain: bool) -> tuple[Places, Tensor]:
        """The places of some values x (r, n), if this is the summary of all, and a unit (r, 1, 1).

        Moments times the unit are those of weights that sum to one over all values. ``plain`` if all values of x are
        finite and weigh the same.
        """
        if not plain:
            x, w = widened(x, w, squash)
        one = torch.ones_like(self.mass).unsqueeze(-1)
        if isinstance(squash, str):
            std, varies = self._std()
            if plain and (varies & (1.0 / (std * self.size)).isfinite()).all():
                share = (x.shape[-1] / self.mass).unsqueeze(-1)  # streamed places weigh one together, however few
                return Streamed(x, self.mean * self.size, 1.0 / (std * self.size), squash), share
            u = torch.where(torch.isfinite(x), x, 0.0) / self.size - self.mean
            z = torch.where(varies, u / std, 0.0 * u).clamp(-1e9, 1e9)
            x_tilde = INCREASING_MAPS[squash](torch.where(torch.isfinite(x), z, x))
            interval = z.new_zeros(1), z.new_ones(1)
        else:
            # Infinite values stand beyond every finite one, and at least at the outermost target.
            highest, lowest = self.extremes[:, 2:3], -self.extremes[:, 3:4]
            beyond = highest.clamp(min=1.0), lowest.clamp(max=0.0)
            x_tilde = torch.where(x == math.inf, beyond[0], torch.where(x == -math.inf, beyond[1], x))
            top = torch.where(self.signs[:, 1:2] > 0, beyond[0], highest)
            bottom = torch.where(self.signs[:, 2:3] > 0, beyond[1], lowest)
            bottom, top = torch.where(bottom.isfinite(), bottom, 0.0), torch.where(top.isfinite(), top, 1.0)
            interval = bottom, torch.where(top > bottom, top, bottom + 1.0)
        x_tilde = torch.where(x_tilde.isnan(), 0.5, x_tilde)
        a = (torch.ones_like(x_tilde) if w is None else w) / self.mass
        return Placed(x_tilde, a, w is not None, interval, self.poisoned), one

    def _std(self) -> tuple[Tensor, Tensor]:
        """(r, 1) in units of ``size``, and whether the values differ at all; if not, one."""
        variance = self.spread / torch.where(self.weight > 0, self.weight, 1.0)
        varies = (self.extremes[:, :1] > -self.extremes[:, 1:2]) & (variance > 0)
        return torch.where(varies, variance, 1.0).sqrt(), varies


def summed_up(x: Tensor, w: Tensor | None, squash: Squash) -> tuple[Summary, bool]:
    """The summary of values x (r, n) of any dtype, and whether they are plain: all finite, of equal weight."""
    streamed = Streamed.of(x, squash) if w is None and isinstance(squash, str) and x.shape[-1] > 0 else None
    return (Summary.of(*widened(x, w, squash)), False) if streamed is None else (Summary.of_streamed(streamed), True)


def widened(x: Tensor, w: Tensor | None, squash: Squash) -> tuple[Tensor, Tensor | None]:
    """Values and weights in float64; the values as ``squash`` makes them, if it is a function."""
    wide = wide_dtype(x.device)
    x, w = x.to(wide), None if w is None else w.to(wide)
    return normalize(x, x, squash, x, x) if callable(squash) else x, w


def _largest(x: Tensor, on: Tensor) -> Tensor:
    """(r, 1): the largest where ``on``, -inf if there is none."""
    if x.shape[-1] == 0:
        return x.new_full((len(x), 1), -math.inf)
    return torch.where(on, x, -math.inf).amax(-1, keepdim=True)


def _size(extremes: Tensor) -> Tensor:
    size = extremes[..., :2].abs().amax(-1, keepdim=True)
    return torch.where(size.isfinite() & (size > 0), size, 1.0)
