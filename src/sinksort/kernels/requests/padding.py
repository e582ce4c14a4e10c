"""Ranks and sorts of rows with padding, in place of ``requests``: each row is answered as the row that it is without.

A row of c values and padding has c default targets. So the rule for long rows differs from row to row, and the sorted
values of a row are as many as it holds. Rows with equally many values are the rows of a batch without padding, for
which there are kernels: there is one call for each number of values that occurs.

Masks are handed on to ``requests``, or to the reference behind it, where rows to be ranked are so short that kernels
can do with the mask; on a GPU, where one large batch is faster; and where the host may not look at the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from ...core.modes import hidden
from ...core.option_values import Options
from ...core.problem import as_rows, existing, like_rows, rows_by_count
from ...core.solvers._common import host_may_look
from .. import requests
from ..dispatch import MOST_TARGETS


def ranks(x: Tensor, options: Options) -> Tensor | None:
    """``requests.ranks``; rows with padding are taken apart if their targets are too many to be taken one by one."""
    return _answered(requests.ranks, MOST_TARGETS, False, x, options)


def sorts(x: Tensor, options: Options) -> Tensor | None:
    """``requests.sorts``; the values of a row with padding come first, then zeros."""
    return _answered(requests.sorts, 0, True, x, options)


def _answered(
    read: Callable[[Tensor, Options], Tensor | None], most: int, ahead: bool, x: Tensor, options: Options
) -> Tensor | None:
    """``read``, without padding where it can be taken out of rows of more than ``most`` values."""
    default = options.equal_targets() and options.num_targets is None
    if default and _may_take_out(x, options) and as_rows(x, options.dim).shape[-1] > most:

        def without(values: Tensor, weights: Tensor | None) -> Tensor | None:
            return read(values, options._replace(dim=-1, weights=weights, mask=None))

        found = _by_count(x, options, ahead, without)
        if found is not None:
            return found
    return read(x, options)


def _may_take_out(x: Tensor, options: Options) -> bool:
    if options.backend == "torch" or not isinstance(x, Tensor) or isinstance(options.eps, Tensor):
        return False
    return x.is_cpu and x.numel() > 0 and not hidden(x) and host_may_look(x)


def _by_count(
    x: Tensor, options: Options, ahead: bool, without: Callable[[Tensor, Tensor | None], Tensor | None]
) -> Tensor | None:
    """``without`` of values and weights (r, c) that have no padding, put in their places, or ``ahead`` of all padding.

    None if every value is masked, or ``without`` has no answer.
    """
    dim, weights = options.dim, options.weights
    rows = as_rows(x, dim)
    n = rows.shape[-1]
    kept, _ = existing(x, dim, options.mask)
    kept = cast("Tensor", kept).reshape(-1, n)  # there is a mask, so it is no None
    groups = [(at, count) for at, count in reversed(rows_by_count(kept)) if count]  # if one is too long, the first is
    if not groups:
        return None
    # In the order of the groups all values are taken out, and all answers put in, at one go.
    slots = torch.arange(n, dtype=torch.int64, device=x.device)
    taken = torch.cat([(n * at.unsqueeze(-1) + slots)[kept[at]] for at, _ in groups])
    put = torch.cat([(n * at.unsqueeze(-1) + slots[:count]).flatten() for at, count in groups]) if ahead else taken
    shapes = [(len(at), count) for at, count in groups]
    sizes = [r * count for r, count in shapes]
    values = rows.reshape(-1).index_select(0, taken).split(sizes)
    if weights is not None:
        shares = like_rows(weights, x, dim, "weights").reshape(-1).index_select(0, taken).split(sizes)
    found = []
    for i, shape in enumerate(shapes):
        out = without(values[i].reshape(shape), None if weights is None else shares[i].reshape(shape))
        if out is None:
            return None
        found.append(out.reshape(-1))
    answers = rows.new_zeros(rows.numel()).scatter(0, put, torch.cat(found))
    return answers.reshape(rows.shape).movedim(-1, dim)
