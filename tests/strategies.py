"""Hypothesis strategies: rows with ties and extremes, batches, weights, entropies, costs."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from tests import inputs


def tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


@st.composite
def rows(draw: st.DrawFn, min_n: int = 1, max_n: int = 12) -> Tensor:
    """A row of one of the kinds of ``inputs``, or of whatever floats hypothesis likes to break things with."""
    n = draw(st.integers(min_n, max_n))
    kind = draw(st.sampled_from([*inputs.KINDS, "anything"]))
    if kind == "anything":
        entries = st.floats(-1e6, 1e6, allow_subnormal=False)
        return torch.tensor(draw(st.lists(entries, min_size=n, max_size=n)), dtype=torch.float64)
    return tensor(inputs.values(kind, n, draw(st.integers(0, 10_000))))


@st.composite
def distinct_rows(draw: st.DrawFn, min_n: int = 2, max_n: int = 10) -> Tensor:
    """Values at least 1/10 of a standard deviation apart or so, in random order: a hard sort is then well defined."""
    n = draw(st.integers(min_n, max_n))
    gaps = torch.tensor(draw(st.lists(st.floats(0.5, 2.0), min_size=n, max_size=n)), dtype=torch.float64)
    return gaps.cumsum(0)[torch.tensor(draw(st.permutations(range(n))))]


@st.composite
def batches(draw: st.DrawFn, max_n: int = 8) -> Tensor:
    """(rows, n) with a different kind in each row."""
    n, count = draw(st.integers(1, max_n)), draw(st.integers(1, 4))
    kinds = draw(st.lists(st.sampled_from(list(inputs.KINDS)), min_size=count, max_size=count))
    return tensor(inputs.table(kinds, count, n, draw(st.integers(0, 10_000))))


def weights_for(n: int) -> st.SearchStrategy[Tensor]:
    """``n`` positive weights, not normalised."""
    return st.lists(st.floats(0.05, 5.0), min_size=n, max_size=n).map(lambda w: torch.tensor(w, dtype=torch.float64))


def entropies() -> st.SearchStrategy[float]:
    return st.sampled_from([1e-4, 1e-3, 1e-2, 1e-1, 1.0])


def costs() -> st.SearchStrategy[float]:
    return st.sampled_from([1, 1.5, 2, 3])
