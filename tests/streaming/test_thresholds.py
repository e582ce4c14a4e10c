"""Quantiles and masks of many rows in chunks, or for a small eps: by thresholds, in few passes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort import streaming
from sinksort.streaming.thresholds import better_by_thresholds
from tests.inputs import KINDS, table

N = 2000
REFERENCE = sinksort.Newton(compress=False, tolerance=1e-13)


class Counted:
    def __init__(self, x: Tensor, *others: Tensor, size: int = 700) -> None:
        cut = [t.split(size, dim=-1) for t in (x, *others)]
        self.chunks, self.passes = list(zip(*cut, strict=True)) if others else list(cut[0]), 0

    def __call__(self) -> Iterator[Tensor | tuple[Tensor, ...]]:
        self.passes += 1
        return iter(self.chunks)


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("eps", [1e-2, 1e-3, 1e-4])
def test_every_kind_of_input(eps: float) -> None:
    x = torch.tensor(table(list(KINDS), len(KINDS), N, seed=4)).repeat(4, 1)
    span, rounding = x.amax(-1) - x.amin(-1), 1e-13 * x.abs().amax(-1)
    chunks = Counted(x)
    median = streaming.soft_median(chunks, eps=eps)
    truth = sinksort.soft_median(x, eps=eps, solver=REFERENCE)
    assert ((median - truth).abs() <= 2e-9 * span + rounding).all()
    mask = torch.cat(list(streaming.soft_topk_mask(chunks, 0.3 * N, eps=eps)), dim=-1)
    true_mask = sinksort.soft_topk_mask(x, 0.3 * N, eps=eps, solver=REFERENCE)
    torch.testing.assert_close(mask, true_mask, rtol=0, atol=2e-9)


@pytest.mark.parametrize("squash", ["arctan", None, torch.tanh])
def test_weights_levels_and_squashes(squash: object) -> None:
    x, w, q = rows(6).sigmoid(), rows(6, seed=1).exp(), [0.9, 0.0, 0.5]
    w[0, :5] = 0.0
    eps = torch.tensor([1e-3, 1e-4, 1e-5, 1e-3, 1e-2, 0.1], dtype=torch.float64)
    found = streaming.soft_quantile(Counted(x, w), q, width=0.01, eps=eps, squash=squash)
    truth = sinksort.soft_quantile(x, q, width=0.01, weights=w, eps=eps, squash=squash, solver=REFERENCE)
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-8)
    for largest in (True, False):
        masks = streaming.soft_topk_mask(Counted(x, w), 321.5, largest=largest, eps=eps, squash=squash)
        truth = sinksort.soft_topk_mask(x, 321.5, largest=largest, weights=w, eps=eps, squash=squash, solver=REFERENCE)
        torch.testing.assert_close(torch.cat(list(masks), dim=-1), truth, rtol=0, atol=1e-7)


@pytest.mark.parametrize("eps", [1e-2, 1e-3, 1e-4])
def test_few_passes(eps: float) -> None:
    """One sums up, one starts, a few solve; and one more reads a mask."""
    chunks = Counted(rows(64))
    streaming.soft_median(chunks, eps=eps)
    assert 3 <= chunks.passes <= 6
    chunks.passes = 0
    list(streaming.soft_topk_mask(chunks, 100, eps=eps))
    assert 4 <= chunks.passes <= 8


def test_dimensions_and_dtype() -> None:
    x = rows(60).reshape(5, 12, N).float()
    found = streaming.soft_quantile(Counted(x), [0.3, 0.7], eps=1e-3)
    assert found.shape == (2, 5, 12)
    assert found.dtype == torch.float32
    truth = sinksort.soft_quantile(x.double(), [0.3, 0.7], eps=1e-3)
    torch.testing.assert_close(found.double(), truth, rtol=0, atol=1e-5)
    parts = list(streaming.soft_topk_mask(Counted(x), 10, eps=1e-3))
    assert [part.shape for part in parts] == [(5, 12, 700), (5, 12, 700), (5, 12, 600)]
    assert parts[0].dtype == torch.float32


def test_infinite_and_missing_values() -> None:
    x = rows(60)
    x[0, 5], x[1, 1500], x[2, 3], x[2, 900] = math.inf, math.nan, math.inf, -math.inf
    median = streaming.soft_median(Counted(x), eps=1e-3)
    truth = sinksort.soft_median(x, eps=1e-3, solver=REFERENCE)
    torch.testing.assert_close(median, truth, rtol=0, atol=1e-8, equal_nan=True)
    assert median[0] == math.inf
    assert median[1].isnan()
    mask = torch.cat(list(streaming.soft_topk_mask(Counted(x), 500, eps=1e-3)), dim=-1)
    truth = sinksort.soft_topk_mask(x, 500, eps=1e-3, solver=REFERENCE)
    torch.testing.assert_close(mask, truth, rtol=0, atol=1e-8, equal_nan=True)


def test_a_grid_where_it_is_small() -> None:
    one = torch.full((1, 1, 3), 1 / 3, dtype=torch.float64)
    eps = torch.full((64, 1, 1), 1e-2, dtype=torch.float64)
    assert not better_by_thresholds(eps[:1], one)
    assert better_by_thresholds(eps, one.expand(64, 1, 3))
    assert better_by_thresholds(eps[:1] / 1000, one)
