"""Properties that relate two answers: whatever the numbers are, these must hold. Inputs by hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import sinksort
from tests.strategies import batches, costs, distinct_rows, entropies, rows, weights_for

Read = Callable[..., Tensor]

#: One answer for each value of x: they move with the values.
ON_VALUES: dict[str, Read] = {
    "rank": sinksort.soft_rank,
    "topk mask": lambda x, **kw: sinksort.soft_topk_mask(x, 0.6 * x.shape[-1], **kw),
    "quantile_normalize": lambda x, **kw: sinksort.quantile_normalize(x, x.new_tensor([2.0, 9.0, 4.0]), **kw),
}
#: Answers that only depend on which values there are.
OF_THE_SET: dict[str, Read] = {
    "sort": sinksort.soft_sort,
    "quantile": lambda x, **kw: sinksort.soft_quantile(x, [0.8, 0.1, 0.5], **kw).movedim(0, -1),
    "topk values": lambda x, **kw: sinksort.soft_topk(x, x.shape[-1] // 2 + 1, **kw).values,
}
on_values = pytest.mark.parametrize("read", ON_VALUES.values(), ids=ON_VALUES.keys())
of_the_set = pytest.mark.parametrize("read", OF_THE_SET.values(), ids=OF_THE_SET.keys())
every_operator = pytest.mark.parametrize(
    "read", [*ON_VALUES.values(), *OF_THE_SET.values()], ids=[*ON_VALUES, *OF_THE_SET]
)


def close(ours: Tensor, other: Tensor, size: Tensor | float = 1.0, tolerance: float = 1e-8) -> None:
    """Within ``tolerance`` of ``size``: n for ranks, the range of x for values."""
    torch.testing.assert_close(ours, other, rtol=0, atol=tolerance * max(float(size), 1e-12))


def largest(x: Tensor) -> float:
    return float(x.abs().max()) + 1.0


# ---- order and batches


@on_values
@given(st.data(), rows(), entropies(), costs())
def test_permuting_inputs_permutes_answers(read: Read, data: st.DataObject, x: Tensor, eps: float, cost: float) -> None:
    order = torch.tensor(data.draw(st.permutations(range(len(x)))))
    a = data.draw(weights_for(len(x)))
    close(read(x[order], weights=a[order], eps=eps, cost=cost), read(x, weights=a, eps=eps, cost=cost)[order], len(x))


@of_the_set
@given(st.data(), rows(), entropies(), costs())
def test_permuting_inputs_leaves_sorts_alone(
    read: Read, data: st.DataObject, x: Tensor, eps: float, cost: float
) -> None:
    order = torch.tensor(data.draw(st.permutations(range(len(x)))))
    a = data.draw(weights_for(len(x)))
    close(read(x[order], weights=a[order], eps=eps, cost=cost), read(x, weights=a, eps=eps, cost=cost), largest(x))


@every_operator
@given(batches(), entropies())
def test_a_batch_is_a_loop(read: Read, x: Tensor, eps: float) -> None:
    together = read(x, eps=eps)
    for row, out in zip(x, together, strict=True):
        close(out, read(row, eps=eps), largest(row))


@given(batches(), st.data())
def test_each_row_has_its_own_weights_targets_and_eps(x: Tensor, data: st.DataObject) -> None:
    count, n = x.shape
    a = torch.stack([data.draw(weights_for(n)) for _ in range(count)])
    b = torch.stack([data.draw(weights_for(3)) for _ in range(count)])
    y = torch.stack([data.draw(weights_for(3)).cumsum(0) for _ in range(count)])
    eps = torch.tensor([data.draw(entropies()) for _ in range(count)], dtype=torch.float64)
    together = sinksort.soft_rank(x, weights=a, targets=y, target_weights=b, eps=eps)
    for row in range(count):
        alone = sinksort.soft_rank(x[row], weights=a[row], targets=y[row], target_weights=b[row], eps=float(eps[row]))
        close(together[row], alone, n)


# ---- descending and mirrors


@given(rows(), entropies(), costs(), st.data())
def test_descending_is_reversed(x: Tensor, eps: float, cost: float, data: st.DataObject) -> None:
    a = data.draw(weights_for(len(x)))
    said: dict[str, Any] = {"weights": a, "eps": eps, "cost": cost}
    up, down = sinksort.soft_rank(x, **said), sinksort.soft_rank(x, descending=True, **said)
    close(up + down, torch.full_like(x, len(x) + 1.0), len(x))
    sorts = sinksort.soft_sort(x, **said)
    close(sinksort.soft_sort(x, descending=True, **said), sorts.flip(-1), largest(x))
    matrix = sinksort.soft_permutation(x, **said)
    close(sinksort.soft_permutation(x, descending=True, **said), matrix.flip(-2))


@given(rows(), entropies(), costs(), st.data())
def test_descending_is_ascending_of_the_negative(x: Tensor, eps: float, cost: float, data: st.DataObject) -> None:
    """Squash, grid and cost are symmetric, so turning the axis around turns the problem around: any b."""
    b = data.draw(weights_for(4))
    said: dict[str, Any] = {"target_weights": b, "eps": eps, "cost": cost}
    close(sinksort.soft_rank(-x, **said), sinksort.soft_rank(x, descending=True, **said), len(x))
    close(-sinksort.soft_sort(-x, **said), sinksort.soft_sort(x, descending=True, **said), largest(x))
    q = torch.tensor([0.1, 0.35, 0.5, 1.0], dtype=torch.float64)
    close(-sinksort.soft_quantile(-x, q, eps=eps), sinksort.soft_quantile(x, 1 - q, eps=eps), largest(x))


@given(rows(min_n=2), entropies(), st.floats(0, 1))
def test_the_largest_and_the_rest_make_all(x: Tensor, eps: float, share: float) -> None:
    n = len(x)
    top = sinksort.soft_topk_mask(x, share * n, eps=eps)
    rest = sinksort.soft_topk_mask(x, n - share * n, largest=False, eps=eps)
    close(top + rest, torch.ones_like(x))


# ---- units


@given(rows(), entropies(), st.integers(-30, 30), st.sampled_from(["sigmoid", "arctan"]))
def test_a_positive_factor_changes_no_rank(x: Tensor, eps: float, power: int, squash: str) -> None:
    """Powers of two, which multiply without rounding."""
    scale = 2.0**power
    close(sinksort.soft_rank(scale * x, eps=eps, squash=squash), sinksort.soft_rank(x, eps=eps, squash=squash), len(x))
    sorts = sinksort.soft_sort(x, eps=eps, squash=squash)
    close(sinksort.soft_sort(scale * x, eps=eps, squash=squash) / scale, sorts, largest(x))


@given(distinct_rows(), entropies(), st.floats(0.1, 10.0), st.floats(-100.0, 100.0))
def test_increasing_affine_maps(x: Tensor, eps: float, scale: float, shift: float) -> None:
    moved = scale * x + shift
    close(sinksort.soft_rank(moved, eps=eps), sinksort.soft_rank(x, eps=eps), len(x))
    close(sinksort.soft_sort(moved, eps=eps), scale * sinksort.soft_sort(x, eps=eps) + shift, largest(moved))
    close(sinksort.soft_topk_mask(moved, 1.5, eps=eps), sinksort.soft_topk_mask(x, 1.5, eps=eps))


@given(distinct_rows())
def test_any_increasing_map_changes_no_exact_rank(x: Tensor) -> None:
    ranks = sinksort.kantorovich_rank(x)
    for increasing in (torch.exp, torch.atan, lambda t: t**3, lambda t: t.log()):
        assert torch.equal(sinksort.kantorovich_rank(increasing(x)), ranks)
        close(
            sinksort.kantorovich_sort(increasing(x)), increasing(sinksort.kantorovich_sort(x)), largest(increasing(x))
        )


@given(distinct_rows(), entropies(), st.floats(0.2, 5.0), st.floats(-3.0, 3.0), st.data())
def test_raw_values_and_targets_in_other_units(
    x: Tensor, eps: float, scale: float, shift: float, data: st.DataObject
) -> None:
    """Without a squash only differences y - x count, in units of sqrt(eps)."""
    x = x / x.max()
    y, b = data.draw(weights_for(4)).cumsum(0), data.draw(weights_for(4))
    plain = sinksort.transport(x, targets=y, target_weights=b, eps=eps, squash=None)
    moved = sinksort.transport(
        scale * x + shift, targets=scale * y + shift, target_weights=b, eps=eps * scale**2, squash=None
    )
    close(moved.ranks(), plain.ranks(), len(x))
    close(moved.sorted(), scale * plain.sorted() + shift, largest(scale * x + shift))


@given(st.data(), rows(), entropies(), st.floats(1e-6, 1e6))
def test_weights_need_not_sum_to_one(data: st.DataObject, x: Tensor, eps: float, scale: float) -> None:
    a, b = data.draw(weights_for(len(x))), data.draw(weights_for(3))
    plain = sinksort.transport(x, weights=a, target_weights=b, eps=eps)
    scaled = sinksort.transport(x, weights=scale * a, target_weights=b / scale, eps=eps)
    close(scaled.ranks(), plain.ranks(), len(x))
    close(scaled.sorted(), plain.sorted(), largest(x))


# ---- padding and weights


@every_operator
@given(st.data(), rows(max_n=8), entropies())
def test_padded_is_unpadded(read: Read, data: st.DataObject, x: Tensor, eps: float) -> None:
    n = len(x)
    places = data.draw(st.permutations(range(n + 4)))[:n]
    mask = torch.zeros(n + 4, dtype=torch.bool)
    mask[places] = True
    padded = torch.full((n + 4,), data.draw(st.sampled_from([0.0, 1e9, float("nan"), float("inf")]))).double()
    padded[mask] = x
    if read is ON_VALUES["topk mask"]:
        expected = sinksort.soft_topk_mask(x, 0.6 * n, eps=eps)
        out = sinksort.soft_topk_mask(padded, 0.6 * n, mask=mask, eps=eps)[mask]
    elif read is OF_THE_SET["topk values"]:
        expected = sinksort.soft_topk(x, n // 2 + 1, eps=eps).values
        out = sinksort.soft_topk(padded, n // 2 + 1, mask=mask, eps=eps).values
    else:
        expected, out = read(x, eps=eps), read(padded, mask=mask, eps=eps)
        out = out[mask] if read in ON_VALUES.values() else out[: len(expected)]
    close(out, expected, largest(x))


@given(st.data(), rows(max_n=6), entropies(), costs())
def test_a_weight_is_a_number_of_copies(data: st.DataObject, x: Tensor, eps: float, cost: float) -> None:
    """A value of weight 3 is three equal values: the same sorts, and the same ranks as fractions of n."""
    copies = torch.tensor(data.draw(st.lists(st.integers(1, 4), min_size=len(x), max_size=len(x))))
    repeated = x.repeat_interleave(copies)
    b = data.draw(weights_for(5))
    few = sinksort.transport(x, weights=copies.double(), target_weights=b, eps=eps, cost=cost)
    many = sinksort.transport(repeated, target_weights=b, eps=eps, cost=cost)
    close((few.ranks() / len(x)).repeat_interleave(copies), many.ranks() / len(repeated), 1.0)
    close(few.sorted(), many.sorted(), largest(x))
    a = copies.double()
    exact = sinksort.kantorovich_sort(x, weights=a, target_weights=b)
    close(exact, sinksort.kantorovich_sort(repeated, target_weights=b), largest(x))
    ranks = sinksort.kantorovich_rank(x, weights=a, target_weights=b) / len(x)
    close(ranks.repeat_interleave(copies), sinksort.kantorovich_rank(repeated, target_weights=b) / len(repeated))


@given(st.data(), rows(max_n=8), entropies())
def test_mass_is_conserved(data: st.DataObject, x: Tensor, eps: float) -> None:
    """sum_i a_i R_i = n sum_j b_j b_bar_j and sum_j b_j S_j = sum_i a_i x_i, whatever the plan is."""
    a, b = data.draw(weights_for(len(x))), data.draw(weights_for(5))
    a, b = a / a.sum(), b / b.sum()
    plan = sinksort.transport(x, weights=a, target_weights=b, eps=eps)
    close((a * plan.ranks()).sum(), len(x) * (b * b.cumsum(0)).sum(), len(x))
    close((b * plan.sorted()).sum(), (a * x).sum(), largest(x))


# ---- shape of the answers, and the two limits


@given(rows(), entropies(), costs())
def test_answers_are_ordered_and_within_bounds(x: Tensor, eps: float, cost: float) -> None:
    n = len(x)
    plan = sinksort.transport(x, eps=eps, cost=cost)
    ranks, sorts, slack = plan.ranks(), plan.sorted(), 1e-9
    assert (ranks >= 1 - slack * n).all()
    assert (ranks <= n + slack * n).all()
    assert (ranks[x.argsort()].diff() >= -slack * n).all()  # larger values have larger ranks
    assert (sorts >= x.min() - slack * largest(x)).all()
    assert (sorts <= x.max() + slack * largest(x)).all()
    assert (sorts.diff() >= -slack * largest(x)).all()  # sorted values are sorted


@every_operator
@given(rows())
def test_infinite_entropy_is_the_mean(read: Read, x: Tensor) -> None:
    n = len(x)
    mean = {"rank": (n + 1) / 2, "topk mask": 0.6, "quantile_normalize": 5.0}
    out = read(x, eps=1e9)
    name = next((name for name, other in ON_VALUES.items() if other is read), None)
    expected = float(x.mean()) if name is None else mean[name]
    close(out, torch.full_like(out, expected), largest(x) + n)


@given(distinct_rows(), st.booleans())
def test_no_entropy_is_torch_sort(x: Tensor, descending: bool) -> None:
    hard = torch.sort(x, descending=descending)
    said: dict[str, Any] = {"eps": 1e-6, "descending": descending}
    close(sinksort.soft_sort(x, **said), hard.values, largest(x), 1e-6)
    ranks = torch.empty_like(x).scatter(0, hard.indices, torch.arange(1, len(x) + 1, dtype=x.dtype))
    close(sinksort.soft_rank(x, **said), ranks, len(x), 1e-6)
    close(sinksort.sort_with(x.square(), x, **said), hard.values.square(), largest(x) ** 2, 1e-6)
