"""Torch's own samples of sort, msort, topk, quantile and median, run on ours: shapes, dims, keepdim and dtypes.

Torch keeps for each of its operators the inputs that it tests it with. Here ours are given the same inputs, at an eps
so small that answers are hard. Which samples are left out, and why, is said by name.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sinksort


def _samples_of_torch() -> Any:
    """Torch's list of operators. It imports a package for tests of another kind, of which it takes one class."""
    if importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.name: op for op in op_db if not op.variant_test_name}


SHARP: dict[str, Any] = {"eps": 1e-9, "backend": "torch"}


def sort(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Tensor:
    """``stable`` is about indices, which ours do not return."""
    return sinksort.soft_sort(x, dim, descending, **SHARP)


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Tensor:  # noqa: A002
    """``sorted`` is what ours always are."""
    return sinksort.soft_topk(x, k, dim, largest, **SHARP).values


def quantile(x: Tensor, q: Any, dim: int = -1, keepdim: bool = False, *, interpolation: Any = "linear") -> Tensor:
    return sinksort.soft_quantile(x, q, dim, keepdim, interpolation=interpolation, **SHARP)


OURS: dict[str, Callable[..., Tensor]] = {
    "sort": sort,
    "msort": lambda x: sinksort.soft_sort(x, 0, **SHARP),
    "topk": topk,
    "quantile": quantile,
    "median": lambda x, dim=-1, keepdim=False: sinksort.soft_median(x, dim, keepdim, interpolation="lower", **SHARP),
}
#: Torch's value is taken where it also returns indices.
THEIRS: dict[str, Callable[..., Any]] = {name: getattr(torch, name) for name in OURS}
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


EMPTY = "a row without entries has nothing to sort, and is an error"
JOINED = "no dim means that all dimensions are joined, which is x.flatten() here"
LONG = "8,000 values: by the reference a plan of 64 million entries"
#: Of which kind the samples of each operator are that are left out.
LEFT_OUT = {
    "sort": {EMPTY, LONG},
    "msort": {LONG},
    "topk": set(),
    "quantile": {JOINED},
    "median": {JOINED},
}


def left_out(name: str, x: Tensor, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    """Why a sample is not for ours."""
    if x.numel() == 0 and x.ndim == 1:
        return EMPTY
    if name in ("quantile", "median") and "dim" not in options and len(args) < (2 if name == "quantile" else 1):
        return None if x.ndim < 2 else JOINED
    return LONG if x.numel() > 1000 else None


def samples(name: str, dtype: torch.dtype) -> list[Any]:
    op = OPS[name]
    if dtype not in op.dtypes:
        return []
    return list(op.sample_inputs("cpu", dtype))


OPS = _samples_of_torch()


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_of_torch(name: str, dtype: torch.dtype) -> None:
    reasons, tried = set(), 0
    for sample in samples(name, dtype):
        x, args, options = sample.input, sample.args, sample.kwargs
        reason = left_out(name, x, args, options)
        if reason is not None:
            reasons.add(reason)
            continue
        tried += 1
        theirs = THEIRS[name](x, *args, **options)
        theirs = theirs if isinstance(theirs, Tensor) else theirs.values
        ours = OURS[name](x, *args, **options)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), (x.shape, args, options)
        # Rounding of the answer, and what a solver may leave that is done when masses are right to 1e-10.
        unit = max(8 * torch.finfo(dtype).eps, 1e-10) * float(x.abs().max()) if x.numel() else 0.0
        torch.testing.assert_close(ours, theirs, rtol=0, atol=unit, msg=lambda text: f"{options} {args}: {text}")  # noqa: B023
        if x.requires_grad or dtype == torch.float64:
            leaf = x.detach().clone().requires_grad_()
            (slope,) = torch.autograd.grad(OURS[name](leaf, *args, **options).sum(), leaf)
            assert slope.shape == x.shape
            assert slope.isfinite().all()
    missing = dtype not in OPS[name].dtypes
    assert missing == (name == "quantile" and dtype in (torch.float16, torch.bfloat16)), "torch's quantile has no half"
    assert missing or (tried > 0 and reasons == LEFT_OUT[name])
