"""Chunk by chunk: the answers of the operators on all chunks together, in few passes and constant memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort import streaming
from tests.inputs import KINDS, table

N = 3000


def cut(x: Tensor, *sizes: int) -> list[Tensor]:
    return list(x.split([*sizes, x.shape[-1] - sum(sizes)], dim=-1))


class Counted:
    """Chunks that count how often they are gone through."""

    def __init__(self, chunks: list[Tensor]) -> None:
        self.chunks, self.passes = chunks, 0

    def __call__(self) -> Iterator[Tensor]:
        self.passes += 1
        return iter(self.chunks)


@pytest.mark.parametrize("eps", [0.1, 1e-2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-9), (torch.float32, 1e-5)])
def test_ranks_of_every_kind(eps: float, dtype: torch.dtype, tolerance: float) -> None:
    x = torch.tensor(table(list(KINDS), len(KINDS), 1100, seed=4)).float()
    truth = sinksort.soft_rank(x.double(), eps=eps)
    ranks = torch.cat(list(streaming.soft_rank(cut(x.to(dtype), 700, 0, 1), eps=eps)), dim=-1)
    assert ranks.dtype == dtype
    torch.testing.assert_close(ranks.double(), truth, rtol=0, atol=1100 * tolerance)  # both are off by half of it


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("squash", ["sigmoid", "arctan", None, torch.tanh])
def test_quantiles_and_masks(weighted: bool, squash: Callable[[Tensor], Tensor] | str | None) -> None:
    x = torch.rand(2, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w = torch.rand(2, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64) if weighted else None
    chunks = cut(x, 100, 2000) if w is None else list(zip(cut(x, 100, 2000), cut(w, 100, 2000), strict=True))
    q = [0.9, 0.1, 0.5]
    quantiles = streaming.soft_quantile(chunks, q, squash=squash)
    torch.testing.assert_close(quantiles, sinksort.soft_quantile(x, q, weights=w, squash=squash), rtol=0, atol=1e-9)
    for largest in (True, False):
        mask = torch.cat(list(streaming.soft_topk_mask(chunks, 321.5, largest=largest, squash=squash)), dim=-1)
        truth = sinksort.soft_topk_mask(x, 321.5, weights=w, largest=largest, squash=squash)
        torch.testing.assert_close(mask, truth, rtol=0, atol=1e-9)


def test_options_go_through() -> None:
    x = torch.tensor(table(["normal", "tied", "clusters_3"], 3, N, seed=4))
    eps = torch.tensor([0.1, 0.01, 0.05], dtype=torch.float64)
    k = torch.tensor([10.0, 200.5, 0.0])
    chunks = cut(x, 1234)
    ranks = torch.cat(list(streaming.soft_rank(chunks, descending=True, eps=eps)), dim=-1)
    torch.testing.assert_close(ranks, sinksort.soft_rank(x, descending=True, eps=eps), rtol=0, atol=1e-6)
    mask = torch.cat(list(streaming.soft_topk_mask(chunks, k, eps=eps)), dim=-1)
    torch.testing.assert_close(mask, sinksort.soft_topk_mask(x, k, eps=eps), rtol=0, atol=1e-8)
    median = streaming.soft_median(chunks, width=0.1, eps=eps)
    torch.testing.assert_close(median, sinksort.soft_median(x, width=0.1, eps=eps), rtol=0, atol=1e-8)


def test_few_values_are_taken_as_they_are() -> None:
    x = torch.tensor([[0.3, 0.1, 0.2, 7.0], [1.0, 5.0, 2.0, 1.0]])
    w = torch.tensor([[1.0, 2.0, 0.0, 3.0]]).expand(2, 4)
    chunks = list(zip(cut(x, 1, 2), cut(w, 1, 2), strict=True))
    ranks = torch.cat(list(streaming.soft_rank(chunks, eps=1e-4)), dim=-1)
    assert torch.equal(ranks, sinksort.soft_rank(x, weights=w, eps=1e-4))
    assert torch.equal(streaming.soft_median(chunks), sinksort.soft_median(x, weights=w))


def test_two_passes_and_a_third_to_read() -> None:
    chunks = Counted(cut(torch.randn(N, generator=torch.Generator().manual_seed(0)), 999))
    streaming.soft_quantile(chunks, 0.3)
    assert chunks.passes == 2
    ranks = streaming.soft_rank(chunks)
    assert chunks.passes == 4
    list(ranks)
    assert chunks.passes == 5


def test_one_more_pass_where_the_grid_must_be_very_fine() -> None:
    """Two groups far apart: edges of width eps/gap, narrower than the first cells."""
    x = torch.cat([torch.zeros(1000), torch.ones(1000)]).double()
    x = x + 1e-6 * torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chunks = Counted(cut(x, 700))
    ranks = torch.cat(list(streaming.soft_rank(chunks, eps=1e-4)))
    truth = sinksort.soft_rank(x, eps=1e-4, solver=sinksort.Newton(compress=False))
    torch.testing.assert_close(ranks, truth, rtol=0, atol=2e-6)
    assert chunks.passes <= 5


def test_chunks_far_apart_in_mean_and_size_lose_no_digits() -> None:
    """A sorted file: each chunk has another mean. And one in which the first chunk says nothing about the rest."""
    generator = torch.Generator().manual_seed(0)
    x = (1e6 + torch.randn(N, generator=generator, dtype=torch.float64)).sort().values
    ranks = torch.cat(list(streaming.soft_rank(list(x.split(100)))))
    torch.testing.assert_close(ranks, sinksort.soft_rank(x), rtol=0, atol=1e-9 * N)
    y = torch.cat([torch.full((5,), 1e-200, dtype=torch.float64), 1e200 * torch.randn(N, dtype=torch.float64)])
    ranks = torch.cat(list(streaming.soft_rank(cut(y, 5, 1000))))
    torch.testing.assert_close(ranks, sinksort.soft_rank(y), rtol=0, atol=1e-9 * N)


def test_infinite_and_missing_values() -> None:
    x = torch.randn(3, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0, 5], x[0, 2000] = math.inf, -math.inf
    x[1, 2500] = math.nan
    chunks = cut(x, 1000, 1000)
    ranks = torch.cat(list(streaming.soft_rank(chunks)), dim=-1)
    torch.testing.assert_close(ranks, sinksort.soft_rank(x), rtol=0, atol=1e-9 * N, equal_nan=True)
    assert ranks[1].isnan().all()
    quantiles = streaming.soft_quantile(cut(x[2], 7), 0.5)
    torch.testing.assert_close(quantiles, sinksort.soft_quantile(x[2], 0.5), rtol=0, atol=1e-9)
    x[0, 2000] = 0.0
    assert streaming.soft_median(cut(x[0], 7)) == math.inf


def test_memory_does_not_grow_with_the_number_of_values() -> None:
    def chunks(count: int) -> Callable[[], Iterator[Tensor]]:
        def fresh() -> Iterator[Tensor]:
            generator = torch.Generator().manual_seed(0)
            return (torch.randn(10_000, generator=generator) for _ in range(count))

        return fresh

    def peak(count: int) -> int:
        with torch.profiler.profile(profile_memory=True) as profile:
            for _ in streaming.soft_rank(chunks(count)):
                pass
        now = highest = 0
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                now += event.nbytes()
                highest = max(highest, now)
        return highest

    few, many = peak(3), peak(30)
    assert many <= 1.05 * few


@pytest.mark.parametrize(
    ("chunks", "error", "message"),
    [
        (iter([torch.zeros(3)]), TypeError, "chunks must be something that can be gone through several times"),
        ([], ValueError, "chunks must hold at least one value, got none"),
        ([torch.zeros(0)], ValueError, "chunks must hold at least one value, got none"),
        ([torch.arange(3)], TypeError, "chunks must be a floating-point tensor, got torch.int64"),
        ([torch.tensor(1.0)], ValueError, "chunks must have at least one dimension"),
        ([torch.zeros(2, 3), torch.zeros(3, 3)], ValueError, r"got \(2, 3\) of torch.float32 and then \(3, 3\)"),
        ([torch.zeros(3), torch.zeros(3).double()], ValueError, "chunks must have the same dtype"),
        ([(torch.zeros(3), torch.ones(3)), torch.zeros(3)], ValueError, "weights all or none"),
        ([(torch.zeros(3), -torch.ones(3))], ValueError, "weights must be finite, non-negative"),
        ([(torch.zeros(3), torch.zeros(3))], ValueError, "weights must have a positive entry in every row"),
    ],
)
def test_wrong_chunks(chunks: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        streaming.soft_quantile(chunks, 0.5)  # type: ignore[arg-type]


def test_other_wrong_arguments() -> None:
    x = [torch.randn(N)]
    with pytest.raises(ValueError, match="squash must be 'sigmoid', 'arctan', None"):
        streaming.soft_rank(x, squash="tanh")
    with pytest.raises(ValueError, match="eps must be larger for values that are not all in one place: got 1e-12"):
        streaming.soft_rank(x, eps=1e-12)
    with pytest.raises(ValueError, match="k must be between 0 and n = 3000"):
        streaming.soft_topk_mask(x, 3001)
    with pytest.raises(ValueError, match="q must lie in"):
        streaming.soft_quantile(x, 1.5)


def test_chunks_that_change_between_passes_are_noticed() -> None:
    growing = [torch.randn(N)]

    def chunks() -> Iterator[Tensor]:
        growing.append(torch.randn(10))
        return iter(growing)

    with pytest.raises(RuntimeError, match="chunks must hold the same values in every pass, but there were 3010"):
        streaming.soft_quantile(chunks, 0.5)
