"""Sorted values of rows so short that sixteen are worked on at a time: their last digits."""

import pytest
import torch

import sinksort

from .test_kernels_numba import REFERENCE, inputs, some_weights


@pytest.mark.parametrize("targets", [3, 5])
@pytest.mark.parametrize("eps", [1e-1, 5e-2, 1e-2])
def test_sorted_values_of_very_short_rows_keep_their_last_digits(targets: int, eps: float) -> None:
    """On average half a unit in the last place of single precision, of the spread of a row."""
    x = inputs("normal", 2000, 5)
    ours = sinksort.soft_sort(x, eps=eps, num_targets=targets, backend="numba")
    true = sinksort.soft_sort(x.double(), eps=eps, num_targets=targets, solver=REFERENCE)
    off = (ours - true) / x.double().std(-1, keepdim=True)
    assert off.square().mean().sqrt() <= torch.finfo(torch.float32).eps / 2


@pytest.mark.parametrize("n", [8, 16])
def test_sorted_values_between_groups_of_weighted_values(n: int) -> None:
    """One target has some of both groups: an error of the weights that arrive moves its value by n times as much."""
    x, a = inputs("2 clusters", 500, n), some_weights(500, n)
    ours = sinksort.soft_sort(x, eps=1e-2, weights=a, backend="numba")
    true = sinksort.soft_sort(x.double(), eps=1e-2, weights=a.double(), solver=REFERENCE)
    assert (ours - true).abs().max() <= 2e-6
