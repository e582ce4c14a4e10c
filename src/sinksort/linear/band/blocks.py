"""A narrow band in place of a matrix: the entries of a plan that are not negligible, in blocks.

For small eps the plan of one sorted row lives around the staircase of the hard sort: a pair whose reduced cost (see
``semidual``) exceeds 60 weighs exp(-60), far below rounding. Sources are taken S at a time, and see W targets, the
widest reach of any S sources. So the band is an array (blocks, S, W), sums over targets and over sources are batched
products, and no array of that size is ever held: blocks are visited in chunks, and visited again for derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...core.solvers.start import SAME_MASS

_CUT = 60.0  #: reduced cost at which a pair is negligible; potentials move by much less
_CHUNK = 1 << 18  #: entries of the band at a time
_FEWEST = 64  #: targets of a block: fewer would only mean more steps one after the other
_ALIGNED = 16  #: blocks start with a panel of targets


@dataclass(frozen=True)
class Staircase:
    """The hard sort of one row: its potentials, and how far each source reaches around it."""

    f0: Tensor  #: (U,)
    g0: Tensor  #: (K,)
    low: Tensor  #: (U,) first target within reach of each source
    high: Tensor  #: (U,) last one

    @classmethod
    def of(cls, x: Tensor, a: Tensor, y: Tensor, b: Tensor, eps: float) -> Staircase:
        """For sorted sources x (U,) and targets y (K,) at the squared cost; what ``solvers.start`` does, without C.

        Let the staircase pass from target j to j + 1 at the source z_j. Then g0 rises there by C(z_j, j+1) - C(z_j, j),
        and C_ij - g0_j changes by 2 (y_{j+1} - y_j)(z_j - x_i): it falls while z_j < x_i, and rises from there on.
        """
        reached, boundary = a.cumsum(0), b.cumsum(0)[:-1]
        before = torch.searchsorted(reached, boundary - SAME_MASS).clamp(max=len(x) - 1)
        after = torch.searchsorted(reached, boundary + SAME_MASS, right=True).clamp(max=len(x) - 1)
        z = 0.5 * (x[before] + x[after])
        g0 = torch.nn.functional.pad((y.diff() * (y[1:] + y[:-1] - 2.0 * z)).cumsum(0), (1, 0))
        best = torch.searchsorted(z, x)
        f0 = (y[best] - x).square() - g0[best]

        def reach(end: int) -> Tensor:
            """The farthest target towards ``end`` whose reduced cost is small: by bisection, all sources at once."""
            near, far = best, torch.full_like(best, end)
            for _ in range(len(y).bit_length()):
                middle = torch.div(near + far + (1 if end else 0), 2, rounding_mode="floor")
                within = (y[middle] - x).square() - f0 - g0[middle] <= _CUT * eps
                near = torch.where(within, middle, near)
                far = torch.where(within, far, middle - 1 if end else middle + 1)
            return near

        low, high = reach(0), reach(len(y) - 1)
        # Reaches are in order, but for rounding.
        return cls(f0, g0, low.flip(0).cummin(0).values.flip(0), high.cummax(0).values)


@dataclass(frozen=True)
class Band:
    """Which targets each block of S sources sees: W of them, one after the other."""

    sources: Tensor  #: (blocks, S) indices; those past the end repeat the last
    targets: Tensor  #: (blocks, W) likewise
    real_source: Tensor  #: (blocks, S) whether an index is within the end
    real_target: Tensor  #: (blocks, W)
    start: list[int]  #: the first target of each block
    size: tuple[int, int]  #: sources and targets

    @classmethod
    def around(cls, low: Tensor, high: Tensor, K: int, overlap: int = 0) -> Band:
        """For sources that reach targets low to high. Neighbouring blocks share ``overlap`` sources."""
        U = len(low)

        def reach(S: int) -> tuple[Tensor, Tensor, int]:
            at = torch.arange(0, max(U - overlap, 1), S - overlap, device=low.device, dtype=torch.int64)
            start = low[at] - low[at] % _ALIGNED
            widest = int((high[(at + S - 1).clamp(max=U - 1)] - start).max()) + 1
            return at, start, max(_FEWEST, _ALIGNED * math.ceil(widest / _ALIGNED))

        def work(S: int) -> int:
            at, _, W = reach(S)
            return len(at) * (S * 64 + (S + 64) * W) * W  # exponentials; products, and adding them up

        S = min((16, 32, 64, 128, 256), key=work)
        at, start, W = reach(S)
        start = start.clamp(max=max(0, _ALIGNED * math.ceil(K / _ALIGNED) - W))
        sources = at.unsqueeze(-1) + torch.arange(S, device=low.device, dtype=torch.int64)
        targets = start.unsqueeze(-1) + torch.arange(W, device=low.device, dtype=torch.int64)
        ends = sources.clamp(max=U - 1), targets.clamp(max=K - 1)
        return cls(*ends, sources < U, targets < K, start.tolist(), (U, K))

    def chunks(self) -> Iterator[slice]:
        """Blocks of sources, as many at a time as memory should hold."""
        blocks, S = self.sources.shape
        together = max(1, _CHUNK // (S * self.targets.shape[-1]))
        return (slice(k, min(k + together, blocks)) for k in range(0, blocks, together))

    def at_targets(self, t: Tensor, blocks: slice, beyond: float) -> Tensor:
        """(blocks, W): a function t (K,) of the targets."""
        return torch.where(self.real_target[blocks], t[self.targets[blocks]], beyond)

    def over_targets(self, density: Callable[..., Tensor], v: Tensor, *theta: Tensor) -> Tensor:
        """(U,): sum over the targets of v (K,) times a density, which is a function of blocks and ``theta``."""

        def one(blocks: slice, v: Tensor, *theta: Tensor) -> Tensor:
            E = density(blocks, *theta)
            return (E @ self.at_targets(v, blocks, 0.0).unsqueeze(-1)).squeeze(-1)

        return self.over_blocks(one, v, *theta)

    def over_sources(self, density: Callable[..., Tensor], c: Tensor, *theta: Tensor) -> Tensor:
        """(K,): sum over the sources of c (U,) times a density."""

        def one(blocks: slice, c: Tensor, *theta: Tensor) -> Tensor:
            weight = torch.where(self.real_source[blocks], c[self.sources[blocks]], 0.0)
            return (weight.unsqueeze(-2) @ density(blocks, *theta)).squeeze(-2)

        in_blocks = torch.cat([*self._visit(one, c, *theta)])
        in_blocks = torch.where(self.real_target, in_blocks, 0.0)
        return in_blocks.new_zeros(self.size[1]).index_add(0, self.targets.flatten(), in_blocks.flatten())

    def over_blocks(self, function: Callable[..., Tensor], *theta: Tensor) -> Tensor:
        """(U,): a function of blocks and theta with values (blocks, S), for blocks that do not overlap."""
        return torch.cat([*self._visit(function, *theta)]).flatten()[: self.size[0]]

    def _visit(self, function: Callable[..., Tensor], *theta: Tensor) -> Iterator[Tensor]:
        kept = torch.is_grad_enabled() and any(t.requires_grad for t in theta)
        for blocks in self.chunks():
            if kept:  # keep the inputs only, and visit again in the backward pass
                yield checkpoint(function, blocks, *theta, use_reentrant=False, preserve_rng_state=False)
            else:
                yield function(blocks, *theta)

    def hessian(self, density: Callable[[slice], Tensor], a: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """diag(s) - sum_i a_i E_i E_i^T for a scaled density E: (k, W, W) on the diagonal, (k - 1, W, W) below it.

        Entry (i, j) is kept at i (2W - 1) + j + W of a flat array. There every square around the diagonal, small or
        large, is a view with strides 2W - 1 and 1.
        """
        W = self.targets.shape[-1]
        count = math.ceil(self.size[1] / W)
        flat = a.new_zeros(count * W * 2 * W)
        for blocks in self.chunks():
            E = density(blocks)
            weight = torch.where(self.real_source[blocks], a[self.sources[blocks]], 0.0)
            for at, product in zip(self.start[blocks], (-weight.unsqueeze(-1) * E).mT @ E, strict=True):
                flat.as_strided((W, W), (2 * W - 1, 1), at * 2 * W + W).add_(product)
        past = s.new_ones(count * W - self.size[1])
        flat.as_strided((count * W,), (2 * W,), W).add_(torch.cat([s, past]))
        strides = 2 * W * W, 2 * W - 1, 1
        diagonal = flat.as_strided((count, W, W), strides, W)
        below = flat.as_strided((count - 1, W, W), strides, W * 2 * W)  # i - j >= W, which is nothing, holds others
        return diagonal, below.triu(1)


def smooth_widths(x: Tensor, a: Tensor, eps: float) -> Tensor:
    """How smooth the density is along the axis of mass, on a regular mesh of it: the widths sqrt(eps T').

    T' is the slope of the staircase, which takes the sorted sources x (U,), of weight a, to targets that are uniform on
    [0, 1]; seen over just that width: w with w^2 = eps T', where T' = 2w / (x(u + w) - x(u - w)) at level u. So an edge
    between two groups of values is as wide as eps over their distance, and widths grow from there.
    """
    count = min(max(256, math.ceil(10.0 / math.sqrt(eps))), 1 << 20)
    u = (torch.arange(count, dtype=x.dtype, device=x.device) + 0.5) / count
    reached = a.cumsum(0)

    def at_level(level: Tensor) -> Tensor:
        return x[torch.searchsorted(reached, level).clamp(max=len(x) - 1)]

    low, high = torch.full_like(u, math.log(1e-12)), torch.zeros_like(u)
    for _ in range(20):
        middle = 0.5 * (low + high)
        w = middle.exp()
        narrow = w * (at_level(u + w) - at_level(u - w)) <= 2.0 * eps
        low, high = torch.where(narrow, middle, low), torch.where(narrow, high, middle)
    return low.exp()
