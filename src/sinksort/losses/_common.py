"""What every loss shares: the reduction, and checks of labels, lists and masks.

The losses keep one contract. The last dimension is the one that is ranked or sorted, everything before it is batch.
``mask`` says which of its entries exist. ``weights`` has one number an *example*: a row, where a row is one example
(logits with a label, the documents of a query); an entry, where a row is a sample of examples (residuals, predictions,
group scores). A row with nothing in it does not count: its loss is 0, and the mean is over the others.

A sample has to lie along the last dimension. A network that ends in ``Linear(.., 1)`` gives predictions (n, 1), which
would be n samples of one example each: nothing to sort, and so nothing to learn. Losses over samples refuse several
rows of one entry (``require_samples``); one row of one entry is a sample that happens to be small.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from ..core.checks import require_floating, values_readable

Reduction: TypeAlias = Literal["mean", "sum", "none"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)


def require_choice(value: object, choices: tuple[str, ...], name: str) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def require_count(k: object, largest: int | None, name: str, what: str) -> None:
    """``k`` is a whole number from 1 up to ``largest`` (no limit when None)."""
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"{name} must be an integer, got {type(k).__name__}.")
    if k < 1 or (largest is not None and k > largest):
        limit = "at least 1" if largest is None else f"between 1 and {largest}, {what}"
        raise ValueError(f"{name} must be {limit}, got {k}.")


def reduce(loss: Tensor, reduction: Reduction, weights: Tensor | None = None, exists: Tensor | None = None) -> Tensor:
    """One number (or none) from the losses of the rows; ``weights`` and ``exists`` are shaped like them.

    ``"mean"`` is the weighted mean over the rows that exist, ``"sum"`` the weighted sum,
    ``"none"`` the weighted losses.
    """
    require_choice(reduction, REDUCTIONS, "reduction")
    share = None if weights is None else row_weights(weights, loss.shape).to(loss.dtype)
    if exists is not None:
        loss = torch.where(exists, loss, 0.0)  # not a product: a row of padding may hold anything
        share = None if share is None else torch.where(exists, share, 0.0)
    if share is not None:
        loss = loss * share
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    counted = exists if share is None else share
    if counted is None:
        return loss.sum() / max(loss.numel(), 1)
    total = counted.sum().to(loss.dtype)
    return loss.sum() / torch.where(total > 0, total, 1.0)


def row_weights(weights: Tensor, rows: torch.Size) -> Tensor:
    require_floating(weights, "weights")
    try:
        fits = torch.broadcast_shapes(weights.shape, rows) == rows
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"weights must have one number for each row, shape {tuple(rows)} or one that broadcasts to it, "
            f"got {tuple(weights.shape)}; to leave out entries of a row use mask=."
        )
    if values_readable(weights) and not (weights >= 0).all():
        raise ValueError(f"weights must be non-negative, but the smallest is {weights.min().item():g}; clamp them.")
    return weights.expand(rows)


def require_same_shape(t: object, like: Tensor, name: str, of: str) -> Tensor:
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(t).__name__}; wrap it with torch.as_tensor({name}).")
    if t.shape != like.shape:
        column = t.shape == (*like.shape, 1)
        fix = f"; call {name}.squeeze(-1)." if column else "."
        raise ValueError(
            f"{name} must have the shape of {of}, {tuple(like.shape)}: one entry for each entry; got {tuple(t.shape)}"
            f"{fix}"
        )
    return t


def require_rows(x: Tensor, name: str) -> None:
    """A floating-point tensor with something along its last dimension."""
    require_floating(x, name)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(
            f"{name} must have at least one entry along its last dimension, got shape {tuple(x.shape)}; "
            "leave empty rows out, or pad them and pass mask=."
        )


def require_samples(x: Tensor, name: str) -> None:
    """Rows of which each is a sample of examples: not the column that a network with one output gives."""
    require_rows(x, name)
    if x.shape[-1] == 1 and x.numel() > 1:
        raise ValueError(
            f"{name} must have the examples of a sample along its last dimension, got shape {tuple(x.shape)}: "
            f"{x.numel()} samples of one example each, in which there is nothing to sort; call {name}.squeeze(-1)."
        )


def as_mask(mask: Tensor | None, x: Tensor, name: str) -> Tensor | None:
    """``mask`` (boolean, (n,) or broadcastable to ``x``) in the shape of x."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        came = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a boolean tensor (True keeps an entry), got {came}; use mask.bool().")
    try:
        return mask.expand(x.shape)
    except RuntimeError:
        raise ValueError(
            f"mask must broadcast to the shape of {name}, {tuple(x.shape)}, got {tuple(mask.shape)}."
        ) from None


def live_count(x: Tensor, mask: Tensor | None) -> Tensor:
    """(..., 1) how many entries a row has, in the dtype of x."""
    if mask is None:
        return torch.full((*x.shape[:-1], 1), float(x.shape[-1]), dtype=x.dtype, device=x.device)
    return mask.sum(-1, keepdim=True).to(x.dtype)


def in_single(x: Tensor) -> Tensor:
    """x in single precision at least: answers to half precision would be rounded before a loss sums them."""
    return x.float() if x.element_size() < 4 else x


def any_entry(mask: Tensor | None) -> Tensor | None:
    """(...) whether a row has any entry; None when nothing is masked."""
    return None if mask is None else mask.any(-1)
