"""Two or three targets and very many values in chunks: sums over the chunks find the thresholds (``thresholds``).

A grid for so few targets needs 6/eps cells in each row, and a dense problem is solved on them. Where that is much, a
row is known by its thresholds instead: one pass collects where Newton's method starts, and each of its two to four
evaluations is another pass that adds up a few numbers for each row, for every eps. The last of these passes knows the
averages as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..linear.thresholds import AtHand, Softmax, Start, Thresholds, products, start_cells, summed
from .source import Source

#: Cells and targets of all rows together up to which a grid costs next to nothing, and takes two passes.
_GRID = 1 << 16
_START = 1 << 20  #: cells of all rows together where Newton's method starts


def better_by_thresholds(eps: Tensor, b: Tensor) -> bool:
    """Whether a grid is much, for entropies eps (r, 1, 1) and problems of weights b (r, L, K)."""
    return b.numel() * max(64, math.ceil(6 / eps.amin().item())) > _GRID


class StreamedThresholds:
    """The plans of the values of all chunks onto a few targets: L problems for each of r rows, weights b (r, L, K)."""

    def __init__(self, source: Source, eps: Tensor, b: Tensor, average: int | None = None) -> None:
        """``average`` is the target for which the values are averaged."""
        self._source = source
        # The finer, the fewer passes are left; where cells are as wide as eps, hardly anything is gained by more.
        cells = max(start_cells(eps), min(math.ceil(2 / eps.amin().item()), _START // max(len(b), 1)))
        in_cells = source.summary.mass.new_zeros(len(b), 3, cells)
        nothing = torch.empty(*source.batch, 0, dtype=source.dtype, device=source.device)
        interval = source.places(nothing, nothing if source.weighted else None)[0].interval
        for x, w in source.passing():
            places, unit = source.places(x, w)
            in_cells += unit * places.moments(None, cells, 3)
        start = Start.of(in_cells, interval, eps, b)
        self._average, self._moved = average, b.new_zeros(b.shape[:2])
        gamma, _ = start.solved(self._sums, source.dtype)
        self.softmax = start.softmax(gamma)
        self.averages = self._moved / self._mass  #: (r, L), infinite values left out

    def _sums(self, softmax: Softmax) -> Tensor:
        """W over all chunks, and what reaches the target that is asked for."""
        W = torch.zeros_like(softmax.offset).unsqueeze(-1) * torch.zeros_like(softmax.offset).unsqueeze(-2)
        self._moved = torch.zeros_like(self._moved)
        for x, here in self._passing():
            if self._average is None:
                W += summed(products, here, softmax)
                continue
            both = summed(self._carrying, here, softmax, x)
            W += both[..., :-1]
            self._moved += both[..., self._average, -1]
        self._mass = W[..., self._average or 0, :].sum(-1)
        return W

    @staticmethod
    def _carrying(a: Tensor, P: Tensor, carried: Sequence[Tensor]) -> Tensor:
        """(r, L, K, K + 1): W, and what reaches each target."""
        x = carried[0]
        aP = a[:, None, None] * P
        finite = torch.where(x.isfinite(), x, 0.0).to(P.dtype)[:, None, :, None].expand(-1, P.shape[1], -1, -1)
        return aP @ torch.cat([P.mT, finite], dim=-1)

    def shares(self, target: int) -> Iterator[Tensor]:
        """What each value gives to a target, chunk by chunk, for L = 1."""

        def alone(t: Tensor, known: Tensor | None = None) -> Tensor:
            return t if known is None else known

        for x, here in self._passing():
            share = Thresholds(here, alone, self.softmax).given_value(target) + self._source.summary.poisoned
            yield share.to(x.dtype).reshape(*self._source.batch, -1)

    def _passing(self) -> Iterator[tuple[Tensor, AtHand]]:
        """Values (r, c) of each chunk, and where they stand."""
        for x, w in self._source.passing():
            places, unit = self._source.places(x, w)
            yield x.reshape(len(unit), -1), AtHand.of(places, unit)
