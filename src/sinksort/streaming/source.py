"""Chunks that are gone through again and again: what they hold, checked and summed up in the first pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from ..core.checks import require_floating
from ..core.squash import Squash, require_squash
from ..linear.elsewhere import FEW
from ..linear.places import Places
from ..linear.pooled import summed_up
from .fingerprint import Fingerprint

Chunk: TypeAlias = "Tensor | tuple[Tensor, Tensor]"
Chunks: TypeAlias = "Iterable[Chunk] | Callable[[], Iterable[Chunk]]"


class Source:
    """Rows in chunks, after the first pass over them."""

    def __init__(self, chunks: Chunks, squash: Squash) -> None:
        require_squash(squash)
        self._chunks, self._squash, self.n, self.weighted = chunks, squash, 0, False
        summary, first, seen = None, None, Fingerprint()
        self._seen: dict[int, tuple[int, ...]] = {}  #: what the first pass had brought after each of its chunks
        for x, w in self._read():
            if first is None:
                first, self.weighted = x, w is not None
            elif x.shape[:-1] != first.shape[:-1] or x.dtype != first.dtype or (w is not None) != self.weighted:
                raise ValueError(
                    "chunks must have the same dtype, the same dimensions before the last, and weights all or none, "
                    f"got {tuple(first.shape)} of {first.dtype} and then {tuple(x.shape)} of {x.dtype}."
                )
            self.n += x.shape[-1]
            seen.add(x, w)
            self._seen[seen.count] = seen.told()
            here, _ = summed_up(*_rows(x, w), squash)
            summary = here if summary is None else summary.plus(here)
        if first is None or summary is None or self.n == 0:
            raise ValueError("chunks must hold at least one value, got none.")
        if (summary.mass <= 0).any():
            raise ValueError("weights must have a positive entry in every row, but a row is all zeros.")
        self.summary = summary
        self.batch, self.dtype, self.device = first.shape[:-1], first.dtype, first.device
        self._plain = not self.weighted and isinstance(squash, str) and not summary.signs.any()

    @property
    def few(self) -> bool:
        """Whether all values may be held at once: there are few of them in a row, or no rows."""
        return self.n < FEW or self.batch.numel() == 0

    def passing(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """One more pass: values (..., c) and weights. They must be those of the first pass.

        Wherever a chunk ends where one ended in the first pass, that is found out before the chunk is given out.
        """
        seen = Fingerprint()
        for x, w in self._read():
            if (x.shape[:-1], x.dtype, w is not None) != (self.batch, self.dtype, self.weighted):
                raise _changed(
                    f"there were rows {tuple(self.batch)} of {self.dtype}{' with weights' * self.weighted} and then "
                    f"rows {tuple(x.shape[:-1])} of {x.dtype}{' with weights' * (w is not None)}"
                )
            seen.add(x, w)
            self._compare(seen)
            yield x, w
        if seen.count != self.n:
            raise _changed(f"there were {self.n} in a row and then {seen.count}")

    def _compare(self, seen: Fingerprint) -> None:
        if seen.count > self.n:
            raise _changed(f"there were {self.n} in a row and then {seen.count} or more")
        expected = self._seen.get(seen.count)
        if expected is not None and expected != seen.told():
            raise _changed(
                f"of the first {seen.count} in a row some were different in a later pass, or came in another order"
            )

    def _read(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        chunks = self._chunks() if callable(self._chunks) else self._chunks
        if chunks is self._chunks and iter(chunks) is chunks:
            raise TypeError(
                "chunks must be something that can be gone through several times, got an iterator, which is empty "
                "after the first pass; pass a list, a data loader, or a function that returns a new iterator."
            )
        for chunk in chunks:
            x, w = chunk if isinstance(chunk, (tuple, list)) else (chunk, None)
            require_floating(x, "chunks")
            if x.ndim == 0:
                raise ValueError("chunks must have at least one dimension, got a scalar tensor; use x.reshape(1).")
            if w is not None:
                require_floating(w, "weights")
                if w.shape != x.shape or not torch.isfinite(w).all() or (w < 0).any():
                    raise ValueError(
                        "weights must be finite, non-negative and of the shape of their chunk, "
                        f"{tuple(x.shape)}, got shape {tuple(w.shape)}."
                    )
            yield x.detach(), None if w is None else w.detach()

    def places(self, x: Tensor, w: Tensor | None) -> tuple[Places, Tensor]:
        """Of one chunk, and the unit of its moments."""
        x, w = _rows(x, w)
        return self.summary.places(x, w, self._squash, plain=self._plain and x.shape[-1] > 0)


def _changed(how: str) -> RuntimeError:
    return RuntimeError(
        f"chunks must hold the same values in every pass, but {how}; do not append while they are read, and do not "
        "drop, shuffle or draw values at random: a data loader needs shuffle=False, and a function that draws values "
        "needs the same seed each time."
    )


def _rows(x: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor | None]:
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return rows, None if w is None else w.reshape(rows.shape)
