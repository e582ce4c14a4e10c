"""Chunk by chunk: the answers of the operators on all chunks together, in few passes and constant memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort import streaming
from sinksort.streaming.fingerprint import Fingerprint
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


def test_a_batch_without_rows_has_no_answers() -> None:
    chunks = cut(torch.empty(0, N), 1000)
    assert [ranks.shape for ranks in streaming.soft_rank(chunks)] == [(0, 1000), (0, N - 1000)]
    assert streaming.soft_quantile(chunks, [0.1, 0.5]).shape == (2, 0)
    assert [mask.shape for mask in streaming.soft_topk_mask(chunks, 3)] == [(0, 1000), (0, N - 1000)]


@pytest.mark.parametrize("far", [math.inf, 1e200])
def test_far_values_without_weight_are_part_of_no_average(far: float) -> None:
    """Nor do they set the unit that the others are measured in."""
    x = torch.randn(1, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w = torch.rand(1, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    truth = sinksort.soft_quantile(x[:, 2:], [0.1, 0.9], weights=w[:, 2:], width=0.01)
    x[0, 0], x[0, 1], w[0, :2] = far, -far, 0.0
    chunks = list(zip(cut(x, 100, 2000), cut(w, 100, 2000), strict=True))
    torch.testing.assert_close(streaming.soft_quantile(chunks, [0.1, 0.9], width=0.01), truth, rtol=0, atol=2e-9)


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
    with pytest.raises(ValueError, match="squash must be 'sigmoid', 'arctan', 'robust'"):
        streaming.soft_rank(x, squash="tanh")
    with pytest.raises(ValueError, match="eps must be larger for values that are not all in one place: got 1e-12"):
        streaming.soft_rank(x, eps=1e-12)
    with pytest.raises(ValueError, match="k must be between 0 and n = 3000"):
        streaming.soft_topk_mask(x, 3001)
    with pytest.raises(ValueError, match="q must lie in"):
        streaming.soft_quantile(x, 1.5)


# ---- chunks that change between passes


class Changing:
    """A function of chunks that brings other chunks in each pass; the last ones again and again."""

    def __init__(self, *passes: list[Tensor] | list[tuple[Tensor, Tensor]]) -> None:
        self.passes, self.count = passes, 0

    def __call__(self) -> Iterator[Tensor | tuple[Tensor, Tensor]]:
        self.count += 1
        return iter(self.passes[min(self.count, len(self.passes)) - 1])


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_chunks_that_grow_between_passes_are_noticed() -> None:
    growing = [torch.randn(N)]

    def chunks() -> Iterator[Tensor]:
        growing.append(torch.randn(10))
        return iter(growing)

    with pytest.raises(RuntimeError, match="chunks must hold the same values in every pass, but there were 3010"):
        streaming.soft_quantile(chunks, 0.5)


@pytest.mark.parametrize("n", [N, 5])
def test_chunks_that_shrink_between_passes_are_noticed(n: int) -> None:
    x = drawn(n)
    with pytest.raises(RuntimeError, match=f"but there were {n} in a row and then {n - 1}; do not append"):
        streaming.soft_median(Changing([x], [x[:-1]]))


CHANGED = r"the same values in every pass, but of the first \d+ in a row some were different .* shuffle=False"


@pytest.mark.parametrize("n", [N, 5])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x + 8,
        lambda x: x.flip(-1),
        lambda x: torch.cat([x[..., 1:2], x[..., :1], x[..., 2:]], dim=-1),
        lambda x: torch.cat([x[..., :-1], x[..., -1:].nextafter(torch.tensor(math.inf))], dim=-1),
        lambda x: torch.cat([x[..., :-1], torch.full_like(x[..., -1:], math.nan)], dim=-1),
    ],
    ids=["shifted", "reversed", "two swapped", "one rounding of one value", "one missing"],
)
def test_other_values_in_the_second_pass_are_noticed(n: int, change: Callable[[Tensor], Tensor]) -> None:
    x = drawn(n)
    for other in (cut(change(x), 2), cut(change(x), 1, 3)):
        with pytest.raises(RuntimeError, match=CHANGED):
            streaming.soft_median(Changing(cut(x, 2), other))
        with pytest.raises(RuntimeError, match=CHANGED):
            list(streaming.soft_rank(Changing(cut(x, 2), cut(x, 2), other)))
        with pytest.raises(RuntimeError, match=CHANGED):
            list(streaming.soft_topk_mask(Changing(cut(x, 2), cut(x, 2), other), 2))


def test_rows_that_change_places_are_noticed() -> None:
    x = drawn(2, N)
    with pytest.raises(RuntimeError, match=CHANGED):
        streaming.soft_median(Changing([x], [x.flip(0)]))


def test_other_weights_are_noticed() -> None:
    x, w = drawn(N), drawn(N, seed=1).abs()
    streaming.soft_median(Changing([(x, w)], [(x.clone(), w.clone())]))
    with pytest.raises(RuntimeError, match=CHANGED):
        streaming.soft_median(Changing([(x, w)], [(x, w.roll(1))]))
    with pytest.raises(
        RuntimeError, match=r"but there were rows \(\) of torch.float32 with weights and then rows \(\) "
    ):
        streaming.soft_median(Changing([(x, w)], [x]))


def test_other_dtypes_and_rows_are_noticed() -> None:
    x = drawn(2, N)
    with pytest.raises(RuntimeError, match=r"rows \(2,\) of torch.float32 and then rows \(2,\) of torch.float64"):
        streaming.soft_median(Changing([x], [x.double()]))
    with pytest.raises(RuntimeError, match=r"rows \(2,\) of torch.float32 and then rows \(\) of torch.float32"):
        streaming.soft_median(Changing([x], [x[0]]))


def test_no_answer_is_given_for_a_chunk_that_has_changed() -> None:
    x = drawn(N)
    changed = cut(x, 1000, 1000)
    changed[1] = changed[1].flip(0)
    ranks = streaming.soft_rank(Changing(cut(x, 1000, 1000), cut(x, 1000, 1000), changed))
    next(ranks)
    with pytest.raises(RuntimeError, match="but of the first 2000 in a row some were different"):
        next(ranks)


def test_the_same_values_in_other_chunks_are_the_same() -> None:
    """Zero with either sign is one value, and so is what is missing, whatever its bits."""
    x = drawn(2, N)
    x[0, 7], x[1, 2000] = 0.0, math.nan
    again = x.clone()
    again[0, 7] = -0.0
    again[1, 2000] = torch.tensor(-1234567, dtype=torch.int32).view(torch.float32)
    assert again[1, 2000].isnan()
    strided = torch.empty(N, 2).t().copy_(again)
    passes = Changing(cut(x, 1000), cut(again, 0, 5, 1500), cut(strided, 17))
    ranks = torch.cat(list(streaming.soft_rank(passes)), dim=-1)
    torch.testing.assert_close(ranks, sinksort.soft_rank(x), rtol=0, atol=N * 1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_fingerprints(dtype: torch.dtype) -> None:
    """They do not depend on the chunks, and no two of some hundred different rows have the same."""

    def fingerprint(*chunks: Tensor) -> tuple[int, ...]:
        seen = Fingerprint()
        for x in chunks:
            seen.add(x)
        return seen.told()

    x = drawn(3, 50, dtype=torch.float64).to(dtype)
    assert len({fingerprint(*x.split(size, dim=-1)) for size in (1, 7, 49, 50)}) == 1
    whole = torch.arange(300, dtype=torch.float64).remainder(16).to(dtype)  # few different values, with few bits set
    orders = [whole[torch.randperm(300, generator=torch.Generator().manual_seed(seed))] for seed in range(500)]
    told = [fingerprint(order) for order in orders]
    assert len({count_and_sum[:2] for count_and_sum in told}) == 1
    assert len(set(told)) == len({tuple(order.tolist()) for order in orders})
    swapped = set()
    for i in range(30):
        for j in range(i):
            other = whole[:30].clone()
            other[[i, j]] = other[[j, i]]
            swapped.add((tuple(other.tolist()), fingerprint(other)))
    assert len({values for values, _ in swapped}) == len({seen for _, seen in swapped}) == len(swapped)
