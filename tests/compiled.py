"""Numba compiles each kernel once: the workers share them out before their first test, and then find all on disk.

Where nothing is on disk yet this takes minutes, and each worker would compile everything for itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import sinksort

Call = Callable[[Tensor], Tensor]


def _rank(x: Tensor) -> Tensor:
    return sinksort.soft_rank(x, backend="numba")


def _sort(x: Tensor) -> Tensor:
    return sinksort.soft_sort(x, backend="numba")


def _mask(x: Tensor) -> Tensor:
    return sinksort.soft_topk_mask(x, 3, backend="numba")


def _permutation(x: Tensor) -> Tensor:
    return sinksort.soft_permutation(x, backend="numba").square()


def _quantile(x: Tensor) -> Tensor:
    return sinksort.soft_quantile(x, 0.5, backend="numba")


#: Lengths of rows that have kernels of their own, and who calls these. Two shares that take about as long to compile
#: and have little in common.
SHARES: tuple[tuple[tuple[int, tuple[Call, ...]], ...], ...] = (
    ((90, (_rank, _sort, _mask)), (300, (_sort,))),
    ((12, (_rank, _sort, _permutation)), (90, (_quantile,)), (40_000, (_rank, _mask, _quantile))),
)


def compile_share(worker: int, workers: int) -> None:
    """Every kernel of the shares of one worker among several, forward and backward."""
    for length, call in _calls(worker, workers):
        rows = 19 if length == 90 else 3  # there are kernels for sixteen rows, which leave the rest to others
        x = torch.randn(rows, length, generator=torch.Generator().manual_seed(0)).requires_grad_()
        with contextlib.suppress(Exception):  # whatever is wrong is wrong again in the test of it
            call(x).sum().backward()


def _calls(worker: int, workers: int) -> Iterator[tuple[int, Call]]:
    for share in SHARES[worker::workers]:
        for length, calls in share:
            for call in calls:
                yield length, call
