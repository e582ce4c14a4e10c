"""Labels of the classes of a row, in any of their forms: one a row, a list of them, or one boolean a class."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..core.checks import values_readable
from ._common import as_mask, require_choice, require_count, require_rows

Positives: TypeAlias = Literal["all", "any"]


class Labels(NamedTuple):
    """Which classes are labels of a row. On a GPU a small operation takes as long as a large one, and one label a row,
    which is usual, needs few: nothing is averaged.
    """

    at: Tensor | None  #: (..., 1) the one label, where rows have one at most
    chosen: Tensor  #: (...) whether there is one; or (..., L) which classes are labels

    @property
    def any(self) -> Tensor:
        return self.chosen if self.at is not None else self.chosen.any(-1)


def checked_labels(
    logits: Tensor, labels: Tensor, k: int, mask: Tensor | None, positives: str
) -> tuple[Labels, Tensor | None]:
    """The labels that exist, and the mask."""
    require_rows(logits, "logits")
    require_choice(positives, ("all", "any"), "positives")
    require_count(k, logits.shape[-1], "k", "the number of classes (the last dimension of logits)")
    kept = as_mask(mask, logits, "logits")
    found = _found(labels, logits)
    if kept is None:
        return found, None
    exist = kept if found.at is None else kept.gather(-1, found.at).squeeze(-1)
    return found._replace(chosen=found.chosen & exist), kept


def _found(labels: Tensor, logits: Tensor) -> Labels:
    """Labels in any of their three forms."""
    if not isinstance(labels, Tensor):
        raise TypeError(
            f"labels must be a torch.Tensor, got {type(labels).__name__}; wrap them with torch.as_tensor(labels)."
        )
    batch, L = logits.shape[:-1], logits.shape[-1]
    if labels.dtype == torch.bool:
        if labels.shape != logits.shape:
            raise ValueError(
                f"boolean labels must have the shape of logits, {tuple(logits.shape)}, got {tuple(labels.shape)}; "
                "for one class a row pass integers."
            )
        return Labels(None, labels)
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(
            f"labels must be integers (or booleans, one a class), got {labels.dtype}; call labels.long(), "
            "or labels > 0.5 when they are one-hot."
        )
    if labels.shape != batch and labels.shape[:-1] != batch:
        raise ValueError(
            f"labels must have shape {tuple(batch)} (one class a row), {(*batch, 'p')} (a list of them, filled up "
            f"with -1) for logits of shape {tuple(logits.shape)}, got {tuple(labels.shape)}."
        )
    if values_readable(labels) and labels.numel() and not ((labels >= -1) & (labels < L)).all():
        wrong = labels[(labels < -1) | (labels >= L)].flatten()[0].item()
        raise ValueError(
            f"labels must be in [0, {L - 1}] for {L} classes (or -1 for none), got {wrong}; "
            "classes count from 0, and the last dimension of logits is the classes."
        )
    if labels.shape == batch:
        return Labels(labels.clamp(min=0).long().unsqueeze(-1), labels >= 0)
    _require_distinct(labels, L)
    # One column more catches the fillers.
    hot = torch.zeros(*batch, L + 1, dtype=torch.bool, device=logits.device)
    at = torch.where(labels < 0, L, labels).long()
    return Labels(None, hot.scatter(-1, at, torch.ones_like(at, dtype=torch.bool))[..., :L])


def _require_distinct(labels: Tensor, L: int) -> None:
    """A list names a label once. Zeros and ones, one a class, are no list, and would be read as the classes 0 and 1."""
    if not values_readable(labels) or labels.shape[-1] < 2 or labels.numel() == 0:
        return
    ordered = labels.sort(dim=-1).values
    again = (ordered.diff(dim=-1) == 0) & (ordered[..., 1:] >= 0)
    if again.any():
        twice = ordered[..., 1:][again][0].item()
        raise ValueError(
            f"labels must name a class once in a row, but {twice} is there twice; integers are lists of classes, so "
            "zeros and ones, one a class, must be labels.bool()."
        )
    if labels.shape[-1] == L == 2 and (ordered >= 0).all():
        raise ValueError(
            "labels must leave a class out in some row, but all of them name both classes, 0 and 1; integers are lists "
            "of classes, so zeros and ones, one a class, must be labels.bool()."
        )
