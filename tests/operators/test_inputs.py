"""What may be passed: any whole dim, also by position, numbers as rows of one value, batches of no rows, no k."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinksort
from sinksort import relaxations, streaming

X = torch.tensor([[0.3, 0.1, 0.2], [5.0, 7.0, 6.0]])

#: Every operator with a ``dim``: (x, dim=...) -> what it returns.
WITH_DIM: dict[str, Callable[..., Any]] = {
    "soft_rank": sinksort.soft_rank,
    "soft_sort": sinksort.soft_sort,
    "soft_permutation": sinksort.soft_permutation,
    "soft_median": sinksort.soft_median,
    "soft_quantile": lambda x, **kw: sinksort.soft_quantile(x, 0.5, **kw),
    "soft_quantile, levels": lambda x, **kw: sinksort.soft_quantile(x, torch.tensor([0.1, 0.5]), **kw),
    "soft_topk": lambda x, **kw: sinksort.soft_topk(x, 1, **kw).values,
    "soft_topk_mask": lambda x, **kw: sinksort.soft_topk_mask(x, 1, **kw),
    "sort_with": lambda x, **kw: sinksort.sort_with(x, x, **kw),
    "quantile_normalize": lambda x, **kw: sinksort.quantile_normalize(x, torch.tensor([1.0, 2.0]), **kw),
    "transport": lambda x, **kw: sinksort.transport(x, **kw).ranks(),
    "smooth_transport": lambda x, **kw: sinksort.smooth_transport(x, **kw).ranks(),
    "kantorovich_rank": sinksort.kantorovich_rank,
    "kantorovich_sort": sinksort.kantorovich_sort,
    "relaxations.rank": relaxations.rank,
    "relaxations.sort": lambda x, **kw: relaxations.sort(x, method="permutahedron", **kw),
    "relaxations.permutation": lambda x, **kw: relaxations.permutation(x, method="softsort", **kw),
    "nn.SoftRank": lambda x, dim: sinksort.nn.SoftRank(dim)(x),
    "nn.SoftTopK": lambda x, dim: sinksort.nn.SoftTopK(1, dim, straight_through=True)(x).values,
    "nn.SoftQuantile": lambda x, dim: sinksort.nn.SoftQuantile(0.5, dim, straight_through=True)(x),
    "nn.QuantilePool": lambda x, dim: sinksort.nn.QuantilePool([0.5], dim)(x),
}


@pytest.mark.parametrize("name", WITH_DIM)
@pytest.mark.parametrize(
    ("dim", "came"),
    [(None, "None"), ((0, 1), "(0, 1)"), (1.0, "1.0"), (True, "True"), ("last", "'last'"), (torch.tensor(1), "Tensor")],
    ids=str,
)
def test_a_dim_that_is_no_whole_number(name: str, dim: Any, came: str) -> None:
    """After a right call, too: what is remembered of that one must not answer."""
    WITH_DIM[name](X, dim=1)
    with pytest.raises(TypeError) as caught:
        WITH_DIM[name](X, dim=dim)
    assert str(caught.value) == (
        f"dim must be an integer, the one dimension along which values are compared, got {came}; "
        "to compare the values of several dimensions, or of all, join them with x.flatten(...) first."
    )


@pytest.mark.parametrize("name", WITH_DIM)
def test_a_dim_that_x_has_not(name: str) -> None:
    with pytest.raises(IndexError, match=r"^dim must be between -2 and 1 for x of shape \(2, 3\), got 2\.$"):
        WITH_DIM[name](X, dim=2)


@pytest.mark.parametrize("name", WITH_DIM)
def test_a_dim_of_numpy(name: str) -> None:
    """As in torch: numbers that stand for an index are one."""
    torch.testing.assert_close(WITH_DIM[name](X, dim=np.int64(0)), WITH_DIM[name](X, dim=0), rtol=0, atol=0)


# ---- by position, where torch takes it so


@pytest.mark.parametrize(
    ("by_place", "by_name", "twin"),
    [
        (
            lambda x: sinksort.soft_sort(x, 0, True, eps=1e-4),
            lambda x: sinksort.soft_sort(x, dim=0, descending=True, eps=1e-4),
            lambda x: torch.sort(x, 0, True).values,
        ),
        (
            lambda x: sinksort.soft_rank(x, 0, True, eps=1e-4),
            lambda x: sinksort.soft_rank(x, dim=0, descending=True, eps=1e-4),
            lambda x: torch.argsort(torch.argsort(x, 0, True), 0) + 1.0,
        ),
        (
            lambda x: sinksort.soft_topk(x, 2, 0, False, eps=1e-4).values,
            lambda x: sinksort.soft_topk(x, 2, dim=0, largest=False, eps=1e-4).values,
            lambda x: torch.topk(x, 2, 0, False).values,
        ),
        (
            lambda x: sinksort.soft_topk_mask(x, 2, 0, False, eps=1e-4),
            lambda x: sinksort.soft_topk_mask(x, 2, dim=0, largest=False, eps=1e-4),
            lambda x: torch.zeros_like(x).scatter(0, torch.topk(x, 2, 0, False).indices, 1.0),
        ),
        (
            lambda x: sinksort.soft_quantile(x, 0.5, 0, True, eps=1e-4),
            lambda x: sinksort.soft_quantile(x, 0.5, dim=0, keepdim=True, eps=1e-4),
            lambda x: torch.quantile(x, 0.5, 0, True),
        ),
        (
            lambda x: sinksort.soft_median(x, 0, True, eps=1e-4),
            lambda x: sinksort.soft_median(x, dim=0, keepdim=True, eps=1e-4),
            lambda x: torch.median(x, 0, True).values,
        ),
        (
            lambda x: sinksort.kantorovich_sort(x, 0, True),
            lambda x: sinksort.kantorovich_sort(x, dim=0, descending=True),
            lambda x: torch.sort(x, 0, True).values,
        ),
        (
            lambda x: sinksort.soft_permutation(x, 0, True, eps=1e-4),
            lambda x: sinksort.soft_permutation(x, dim=0, descending=True, eps=1e-4),
            lambda x: torch.nn.functional.one_hot(torch.argsort(x.mT, -1, True), len(x)).to(x.dtype),
        ),
    ],
    ids=["sort", "rank", "topk", "topk_mask", "quantile", "median", "kantorovich_sort", "permutation"],
)
def test_dim_by_position(by_place: Callable[..., Tensor], by_name: Callable[..., Tensor], twin: Any) -> None:
    x = torch.tensor([[0.0, 3.0], [2.0, 1.0], [1.0, 2.0]])
    torch.testing.assert_close(by_place(x), by_name(x), rtol=0, atol=0)
    torch.testing.assert_close(by_place(x), twin(x), rtol=0, atol=1e-4)


# ---- a tensor without dimensions is a row of one value, as in torch


NUMBER = torch.tensor(2.5)
TWINS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "sort": (sinksort.soft_sort, lambda x, **kw: torch.sort(x, **kw).values),
    "kantorovich_sort": (sinksort.kantorovich_sort, lambda x, **kw: torch.sort(x, **kw).values),
    "relaxations.sort": (relaxations.sort, lambda x, **kw: torch.sort(x, **kw).values),
    "rank": (sinksort.soft_rank, lambda x, **kw: torch.argsort(x, **kw) + 1.0),
    "kantorovich_rank": (sinksort.kantorovich_rank, lambda x, **kw: torch.argsort(x, **kw) + 1.0),
    "relaxations.rank": (relaxations.rank, lambda x, **kw: torch.argsort(x, **kw) + 1.0),
    "topk": (lambda x, **kw: sinksort.soft_topk(x, 1, **kw).values, lambda x, **kw: torch.topk(x, 1, **kw).values),
    "topk mask": (lambda x, **kw: sinksort.soft_topk(x, 1, **kw).mask, lambda x, **kw: torch.ones_like(x)),
    "mask": (lambda x, **kw: sinksort.soft_topk_mask(x, 0.25, **kw), lambda x, **kw: 0.25 * torch.ones_like(x)),
    "median": (sinksort.soft_median, lambda x, dim=-1: torch.median(x, dim).values),
    "median, keepdim": (
        lambda x, dim=-1: sinksort.soft_median(x, dim, True),
        lambda x, dim=-1: torch.median(x, dim, True).values,
    ),
    "quantile": (lambda x, **kw: sinksort.soft_quantile(x, 0.3, **kw), lambda x, **kw: torch.quantile(x, 0.3, **kw)),
    "quantiles, keepdim": (
        lambda x, dim=-1: sinksort.soft_quantile(x, torch.tensor([0.3, 1.0]), dim, True),
        lambda x, dim=-1: torch.quantile(x, torch.tensor([0.3, 1.0]), dim, True),
    ),
    "quantile, one level": (
        lambda x, **kw: sinksort.soft_quantile(x, [0.3], **kw),
        lambda x, **kw: torch.quantile(x, torch.tensor([0.3]), **kw),
    ),
    "quantile_normalize": (
        lambda x, **kw: sinksort.quantile_normalize(x, torch.tensor([4.0]), **kw),
        lambda x, **kw: torch.full_like(x, 4.0),
    ),
}


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("options", [{}, {"dim": 0}, {"dim": -1}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number(name: str, options: dict[str, int], dtype: torch.dtype) -> None:
    ours, theirs = TWINS[name]
    x = NUMBER.to(dtype).requires_grad_()
    out = ours(x, **options)
    expected = theirs(NUMBER.to(dtype), **options) if "quantile" not in name else theirs(NUMBER, **options).to(dtype)
    torch.testing.assert_close(out.detach(), expected.to(dtype), rtol=0, atol=1e-6)
    if out.requires_grad:
        (slope,) = torch.autograd.grad(out.sum(), x)
        assert slope.shape == ()
        assert slope.isfinite()


@pytest.mark.parametrize("name", TWINS)
def test_a_number_has_one_dim(name: str) -> None:
    with pytest.raises(IndexError, match=r"^dim must be between -1 and 0 for x of shape"):
        TWINS[name][0](NUMBER, dim=1)


def test_options_of_a_number() -> None:
    weight, kept = torch.tensor(2.0), torch.tensor(True)
    assert sinksort.soft_rank(x=NUMBER, weights=weight, mask=kept) == 1.0
    assert sinksort.soft_rank(NUMBER, mask=~kept, eps=torch.tensor(0.1)) == 0.0
    assert sinksort.soft_quantile(NUMBER, 0.5, weights=weight, mask=kept) == 2.5
    assert sinksort.soft_sort(NUMBER, num_targets=3).tolist() == [2.5, 2.5, 2.5]
    assert sinksort.soft_topk(NUMBER, 0).values.shape == (0,)


# ---- a batch of no rows


@pytest.mark.parametrize("name", [name for name in WITH_DIM if not name.startswith("nn.")])
@pytest.mark.parametrize(("shape", "dim"), [((0, 5), -1), ((5, 0), 0), ((2, 0, 5), -1), ((0, 3000), 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_rows(name: str, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    """No rows give no rows, and these have a gradient without entries."""
    x = torch.zeros(shape, dtype=dtype, requires_grad=True)
    out = WITH_DIM[name](x, dim=dim)
    some = WITH_DIM[name](torch.zeros([size or 7 for size in shape], dtype=dtype), dim=dim)
    assert out.shape == tuple(0 if size == 7 else size for size in some.shape)
    assert out.dtype == dtype
    if out.requires_grad:
        (slope,) = torch.autograd.grad(out.sum(), x)
        assert slope.shape == shape


def test_rows_without_entries_are_an_error_however_many_there_are() -> None:
    for shape in ((2, 0), (0, 0)):
        with pytest.raises(ValueError, match=r"^x must have at least one value along dim=-1"):
            sinksort.soft_rank(torch.zeros(shape))


# ---- the largest none


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [0, 1])
def test_the_largest_none(dtype: torch.dtype, dim: int) -> None:
    x = X.to(dtype).requires_grad_()
    values, mask = sinksort.soft_topk(x, 0, dim)
    assert values.shape == torch.topk(X, 0, dim).values.shape
    assert torch.equal(mask, torch.zeros_like(x))
    (slope,) = torch.autograd.grad(values.sum() + mask.sum(), x)
    assert torch.equal(slope, torch.zeros_like(x))
    padded = sinksort.soft_topk(x, 0, dim, mask=X > 1)
    assert padded.values.numel() == 0
    assert torch.equal(padded.mask, torch.zeros_like(x))
    hard = sinksort.nn.SoftTopK(0, dim, straight_through=True)(x)
    assert hard.values.shape == values.shape
    assert torch.equal(hard.mask, torch.zeros_like(x))


# ---- operators that take what others return


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_sorted_values_are_a_reference(dim: int) -> None:
    """Values that take the place of themselves, each in its own row; and m others, whatever dim is."""
    x = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ordered = sinksort.soft_sort(x, dim=dim, eps=1e-5)
    torch.testing.assert_close(
        sinksort.quantile_normalize(x, ordered, dim=dim, eps=1e-5), x, rtol=0, atol=1e-4 * float(x.abs().max())
    )
    levels = sinksort.soft_sort(x, dim=dim, num_targets=2)
    ours = sinksort.quantile_normalize(x, levels, dim=dim)
    rows, few = x.movedim(dim, -1).reshape(-1, x.shape[dim]), levels.movedim(dim, -1).reshape(-1, 2)
    for row, at, out in zip(rows, few, ours.movedim(dim, -1).reshape(-1, x.shape[dim]), strict=True):
        torch.testing.assert_close(out, sinksort.quantile_normalize(row, at), rtol=0, atol=1e-9)


def test_shapes_of_references() -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    shared = torch.tensor([2.0, 1.0, 3.0], dtype=torch.float64)
    for dim in (0, 1, 2):
        expected = sinksort.quantile_normalize(x, shared, dim=dim)
        thin = shared.reshape([-1 if at == dim else 1 for at in range(3)])  # one for all rows, with the dims of x
        torch.testing.assert_close(sinksort.quantile_normalize(x, thin, dim=dim), expected, rtol=0, atol=0)
    of_columns = torch.randn(4, 3, dtype=torch.float64)  # the last dimension may stand without those before
    torch.testing.assert_close(
        sinksort.quantile_normalize(x, of_columns),
        sinksort.quantile_normalize(x, of_columns.expand(3, 4, 3)),
        rtol=0,
        atol=0,
    )
    for dim, shape in ((0, (4, 5)), (0, (2, 5, 4)), (1, (3, 0, 5)), (2, (1, 3, 4, 5)), (0, ())):
        with pytest.raises(ValueError, match=r"^reference must have shape \(m,\) or \(.*'m'.*\) \(m values along dim="):
            sinksort.quantile_normalize(x, torch.zeros(shape, dtype=torch.float64), dim=dim)


def test_of_streams_a_number_is_no_chunk() -> None:
    with pytest.raises(ValueError, match="chunks must have at least one dimension"):
        streaming.soft_median([NUMBER])


# ---- sub-packages by their names


@pytest.mark.parametrize("name", ["distributed", "losses", "nn", "plot", "relaxations", "schedules", "streaming"])
def test_sub_packages_are_there_when_they_are_named(name: str) -> None:
    """In a process of its own, where nobody has imported it before; what is not named is not imported."""
    others = "sklearn", "matplotlib", f"sinksort.{name}"
    code = (
        "import sys, sinksort\n"
        f"assert not [each for each in {others} if each in sys.modules]\n"
        f"assert sinksort.{name} is sys.modules['sinksort.{name}']\n"
        f"from sinksort import {name}\n"
        "try:\n    sinksort.nothing\nexcept AttributeError as error:\n    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout == "module 'sinksort' has no attribute 'nothing'\n", ran.stderr
