"""One call made by all ranks together: check this rank's part, agree with the others, and see the rows as one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.checks import require_dim, require_floating, values_readable
from ..core.problem import entropy, like_rows, wide_dtype
from ..core.squash import Squash, require_squash
from ..linear.elsewhere import FEW, first_grid, refined
from ..linear.pooled import Summary
from ..linear.smooth import Part
from ..linear.thresholds import Thresholds, thresholds
from .agreement import agree
from .collectives import Everyone, Group
from .shards import Shards


@dataclass(frozen=True)
class Call:
    """This rank's part of a call on which all ranks agree."""

    rows: Tensor  #: (..., n) this rank's values, those of a row last
    weights: Tensor | None  #: (..., n)
    eps: Tensor  #: (..., 1, 1)
    squash: Squash
    everyone: Everyone
    sizes: list[int]  #: how many values of a row each rank holds

    @classmethod
    def agreed(
        cls,
        operator: str,
        x: Tensor,
        dim: int,
        weights: Tensor | None,
        eps: float | Tensor,
        squash: Squash,
        group: Group,
        same: Mapping[str, object],
    ) -> Call:
        """``same`` are further arguments that must be the same on every rank."""
        device = x.device if isinstance(x, Tensor) else torch.device("cpu")
        everyone = Everyone(group, device)
        try:
            rows, w, eps_rows = _checked(x, dim, weights, eps, squash)
            trouble, n = None, rows.shape[-1]
            call = {
                "dtype of x": x.dtype,
                "shape of x without dim": tuple(rows.shape[:-1]),
                **{name: _shown(value) for name, value in {"eps": eps, "squash": squash, **same}.items()},
                "weights": "none" if weights is None else "a tensor",
                # A rank that needs no gradient would not take part in the others' backward pass.
                **{
                    f"requires_grad of {name}": _differentiated(value)
                    for name, value in {"x": x, "weights": weights, "eps": eps, **same}.items()
                },
            }
        except (TypeError, ValueError, IndexError) as error:
            trouble, n, call = error, 0, {}
        sizes = agree(everyone, operator, call, n, trouble)
        if sum(sizes) == 0:
            raise ValueError(
                "x must hold at least one value on some rank of the group, but it is empty on all of them."
            )
        return cls(rows, w, eps_rows, squash, everyone, sizes)

    @property
    def n(self) -> int:
        """How many values a row has, on all ranks together."""
        return sum(self.sizes)

    @property
    def flat(self) -> Tensor:
        """(rows, n)."""
        return self.rows.reshape(math.prod(self.rows.shape[:-1]), self.rows.shape[-1])

    @property
    def count(self) -> Tensor:
        """(..., 1): n, for every row."""
        return torch.full_like(self.eps[..., 0], float(self.n))

    @property
    def few(self) -> bool:
        """Whether the values themselves are no more than what a grid would send: few of them in a row, or no rows."""
        return self.n < FEW or self.rows.shape[:-1].numel() == 0

    def whole(self) -> tuple[Tensor, Tensor | None]:
        """All values and weights, for rows that have few."""
        return self._gathered(self.rows), None if self.weights is None else self._gathered(self.weights)

    def own(self, answer: Tensor) -> Tensor:
        """(..., n) of an answer for all values."""
        return answer[..., self._before : self._before + self.rows.shape[-1]]

    @property
    def _before(self) -> int:
        return sum(self.sizes[: self.everyone.rank])

    def _gathered(self, t: Tensor) -> Tensor:
        around = (self._before, self.n - self._before - t.shape[-1])
        return self.everyone.sum(torch.nn.functional.pad(t.to(self.eps.dtype), around)).to(t.dtype)

    def refined(self) -> list[Part]:
        """The small problems of all rows, onto as many targets as there are values."""
        eps = self.eps.reshape(-1, 1, 1)
        first_grid(eps, self.rows.dtype, few=False)  # an eps that is too small is noticed before anything is sent
        return refined(self._shards(), eps, None, self.n, self.rows.dtype)

    def thresholds(self, b: Tensor) -> tuple[Thresholds, Summary]:
        """The plans of all rows onto a few targets of weights b (rows, problems for each, targets)."""
        shards = self._shards()
        eps = self.eps.reshape(-1, 1, 1)
        found = thresholds(shards.here, shards.unit, self.everyone.sum, eps, b, self.rows.dtype)
        return found, shards.summary

    def _shards(self) -> Shards:
        x = self.flat
        w = None if self.weights is None else self.weights.reshape(x.shape)
        shards = Shards.of(x, w, self.squash, self.everyone)
        if w is not None and (shards.summary.mass <= 0).any():
            raise ValueError(
                "weights must have a positive entry in every row, on some rank of the group, but a row is all zeros."
            )
        return shards

    def on_values(self, answer: Tensor) -> Tensor:
        """(..., n) from an answer (rows, n)."""
        return answer.to(self.rows.dtype).reshape(self.rows.shape)


def _checked(
    x: Tensor, dim: int, weights: Tensor | None, eps: float | Tensor, squash: Squash
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Rows, weights and eps of one rank. An empty shard is as good as any."""
    require_floating(x)
    if x.ndim == 0:
        raise ValueError("x must have at least one dimension, got a scalar tensor; use x.reshape(1).")
    require_dim(dim, x)
    rows = x.movedim(dim, -1)
    require_squash(squash)
    w = None
    if weights is not None:
        require_floating(weights, "weights")
        w = like_rows(weights, x, dim, "weights")
        if values_readable(w) and w.numel() and not (torch.isfinite(w).all() and w.min() >= 0):
            raise ValueError(
                "weights must be finite and non-negative; clamp them, or pass them through softplus or exp."
            )
    return rows, w, entropy(eps, rows.shape[:-1], x.device, wide_dtype(x.device))


def _shown(value: object) -> object:
    if isinstance(value, Tensor):
        return value.detach().double().tolist()
    if callable(value):
        return "a callable"
    return list(value) if isinstance(value, (list, tuple)) else value


def _differentiated(t: object) -> bool:
    return isinstance(t, Tensor) and t.requires_grad and torch.is_grad_enabled()
