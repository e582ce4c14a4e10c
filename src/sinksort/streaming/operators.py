"""The operators on chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .. import operators as alone
from ..core.problem import entropy
from ..core.squash import Squash
from ..linear.elsewhere import in_order, refined
from ..linear.smooth import Part
from ..operators.fillers import (
    How,
    Interpolation,
    quantile_levels,
    require_interpolation,
    rounding_of_levels,
    weights_of,
)
from ..operators.selecting import how_many
from .source import Chunks, Source
from .sums import Collected, Sums
from .thresholds import StreamedThresholds, better_by_thresholds


@torch.no_grad()
def soft_rank(
    chunks: Chunks, *, descending: bool = False, eps: float | Tensor = 1e-2, squash: Squash = "sigmoid"
) -> Iterator[Tensor]:
    """Soft ranks among the values of all chunks, chunk by chunk.

    Two passes are made at once, the third as the answers are taken.

    >>> import torch, sinksort.streaming
    >>> chunks = [torch.linspace(-1, 1, 1001), torch.linspace(1.002, 3, 1000)]
    >>> [ranks[-1] for ranks in sinksort.streaming.soft_rank(chunks, eps=1e-3)]
    [tensor(1001.), tensor(1954.5287)]
    """
    source = Source(chunks, squash)
    if source.few:
        x, w = _all(source)
        return _cut(source, alone.soft_rank(x, weights=w, descending=descending, eps=eps, squash=squash))
    parts, _ = _refined(source, eps, None)
    return _read(source, parts, lambda part: part.ranks_of_nodes(descending))


@torch.no_grad()
def soft_quantile(
    chunks: Chunks,
    q: float | Sequence[float] | Tensor,
    *,
    width: float | None = None,
    interpolation: Interpolation = "hazen",
    eps: float | Tensor = 1e-2,
    squash: Squash = "sigmoid",
) -> Tensor:
    """The soft quantile of the values of all chunks; arguments as in ``sinksort.soft_quantile``.

    Two passes for few rows and a large eps, four to six for many rows or a small eps.

    >>> import torch, sinksort.streaming
    >>> chunks = [torch.linspace(-1, 1, 1001), torch.linspace(1.002, 3, 1000)]
    >>> sinksort.streaming.soft_quantile(lambda: iter(chunks), 0.5)
    tensor(1.)
    """
    source = Source(chunks, squash)
    levels = quantile_levels(q, width, source.device)
    require_interpolation(interpolation, True if source.weighted else None)
    if source.few:
        x, w = _all(source)
        return alone.soft_quantile(x, q, width=width, interpolation=interpolation, weights=w, eps=eps, squash=squash)
    count = source.summary.count
    how = How(width, interpolation, rounding_of_levels(source.dtype, q))
    b = weights_of(levels, count, how).reshape(-1, 3)
    eps_rows = entropy(eps, source.batch, source.device, count.dtype).reshape(-1, 1, 1)
    by_row = b.reshape(levels.numel(), len(count), 3).transpose(0, 1)
    if better_by_thresholds(eps_rows, by_row):
        quantiles = StreamedThresholds(source, eps_rows, by_row, average=1).averages.mT.flatten()
    else:
        parts, sums = _refined(source, eps, b, levels.numel(), carrying=True)
        quantiles = in_order(parts, [part.averages(_carried(part, sums, len(count)))[:, 1] for part in parts])
    bent = (source.summary.infinite + source.summary.poisoned).squeeze(-1).repeat(levels.numel())
    return (quantiles + bent).to(source.dtype).reshape(levels.shape + source.batch)


def soft_median(
    chunks: Chunks,
    *,
    width: float | None = None,
    interpolation: Interpolation = "hazen",
    eps: float | Tensor = 1e-2,
    squash: Squash = "sigmoid",
) -> Tensor:
    """The soft 0.5 quantile of the values of all chunks, see ``soft_quantile``.

    >>> import torch, sinksort.streaming
    >>> sinksort.streaming.soft_median([torch.tensor([1.0, 100.0]), torch.tensor([2.0])], eps=1e-4)
    tensor(2.)
    """
    return soft_quantile(chunks, 0.5, width=width, interpolation=interpolation, eps=eps, squash=squash)


@torch.no_grad()
def soft_topk_mask(
    chunks: Chunks,
    k: float | Tensor,
    *,
    largest: bool = True,
    eps: float | Tensor = 1e-2,
    squash: Squash = "sigmoid",
) -> Iterator[Tensor]:
    """How much each value belongs to the k largest (or smallest) of all chunks, chunk by chunk.

    >>> import torch, sinksort.streaming
    >>> masks = sinksort.streaming.soft_topk_mask([torch.tensor([0.1, 0.9]), torch.tensor([0.5, 0.7])], 2, eps=1e-3)
    >>> list(masks)
    [tensor([0., 1.]), tensor([0., 1.])]
    """
    source = Source(chunks, squash)
    if source.few:
        x, w = _all(source)
        return _cut(source, alone.soft_topk_mask(x, k, largest=largest, weights=w, eps=eps, squash=squash))
    count = source.summary.count.reshape(*source.batch, 1)
    share = how_many(k, source.n, count) / count
    b = torch.cat([1.0 - share, share] if largest else [share, 1.0 - share], dim=-1).reshape(-1, 2)
    eps_rows = entropy(eps, source.batch, source.device, b.dtype).reshape(-1, 1, 1)
    if better_by_thresholds(eps_rows, b.unsqueeze(1)):
        return StreamedThresholds(source, eps_rows, b.unsqueeze(1)).shares(1 if largest else 0)
    parts, _ = _refined(source, eps, b)
    wanted = b.new_tensor([0.0, 1.0] if largest else [1.0, 0.0])
    return _read(source, parts, lambda part: wanted.expand(len(part.rows), 2))


def _refined(
    source: Source, eps: float | Tensor, b: Tensor | None, copies: int = 1, carrying: bool = False
) -> tuple[list[Part], Sums]:
    """The small problems of all rows, ``copies`` times, and the sums they are made of."""
    mass = source.summary.mass
    eps = entropy(eps, source.batch, source.device, mass.dtype).reshape(-1, 1, 1).repeat(copies, 1, 1)
    nothing = torch.empty(*source.batch, 0, dtype=source.dtype, device=source.device)
    places, _ = source.places(nothing, nothing if source.weighted else None)
    sums = Sums(source, carrying)
    which = torch.arange(len(mass), device=source.device, dtype=torch.int64).repeat(copies)
    rows = Collected(summary=source.summary, bounds=places.interval, which=which, sums=sums)
    return refined(rows, eps, b, source.n, source.dtype), sums


def _carried(part: Part, sums: Sums, rows: int) -> Tensor:
    """(r, U): what the sources of the part's plan carry; its rows are copies of ``rows`` different ones."""
    grid, kept = part.values.grid, part.values.kept
    assert grid is not None  # noqa: S101
    masses = grid.spread(sums.carried(grid.cells, grid.points))[part.rows % rows]
    return masses if kept is None else masses[:, kept]


@torch.no_grad()
def _read(source: Source, parts: list[Part], on_nodes: Callable[[Part], Tensor]) -> Iterator[Tensor]:
    """The average of a function on the nodes, at every value, chunk by chunk."""
    functions = [on_nodes(part) for part in parts]
    for x, w in source.passing():
        places, _ = source.places(x, w)
        here = [replace(part, values=replace(part.values, places=places.chosen(part.rows))) for part in parts]
        answer = in_order(parts, [part.pulled(v) for part, v in zip(here, functions, strict=True)])
        yield answer.to(x.dtype).reshape(x.shape)


def _all(source: Source) -> tuple[Tensor, Tensor | None]:
    """Everything, if it is little."""
    xs, ws = zip(*source.passing(), strict=True)
    return torch.cat(xs, dim=-1), torch.cat(ws, dim=-1) if source.weighted else None


def _cut(source: Source, answer: Tensor) -> Iterator[Tensor]:
    before = 0
    for x, _ in source.passing():
        yield answer[..., before : before + x.shape[-1]]
        before += x.shape[-1]
