"""Pose: from what the user gives to one transport problem a row.

All arithmetic is in float64, whatever floating dtype came in (float32 on a device that has no float64), and answers
return in the dtype of x. This is the reference that faster implementations are measured against; in single precision
the gradient of a plan that is nearly a permutation would be lost in rounding.

Rows are posed in sorted order: the plan is then a band around the diagonal, and the staircase that starts the solver
can be read off the cumulative weights. ``Problem.unsort`` puts an answer back in the order of x.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from .checks import require_dim, require_floating, require_increasing, require_non_negative, values_readable
from .costs import Huber, Power, resolve_cost
from .modes import ordinary
from .option_values import Options
from .squash import normalize

_P = ParamSpec("_P")
_R = TypeVar("_R")

_GOOD_EPS = "1e-2 is a good start, 1e-3 is closer to a hard sort."


@dataclass(frozen=True)
class Problem:
    """Transport x~ (weights a) onto y (weights b), at cost h(y_j - x~_i), with entropy eps. Rows are sorted."""

    x: Tensor  #: (..., n) the values themselves, in sorted order
    a: Tensor  #: (..., n) their weights, rows sum to 1
    y: Tensor  #: (..., m) increasing targets
    b: Tensor  #: (..., m) their weights, rows sum to 1
    costs: Tensor | None  #: (..., n, m) h(y_j - x~_i), or None if ``cost`` makes them of x_tilde when they are wanted
    eps: Tensor  #: (..., 1, 1)
    count: Tensor  #: (..., 1) how many values the row has: n, or the number that ``mask`` keeps
    dtype: torch.dtype  #: of the input, and of every answer
    inverse: Tensor | None = None  #: (..., n) position of each value of x in the sorted row; None if x was sorted
    order: Tensor | None = None  #: (..., n) index into x of each value of the sorted row
    mask: Tensor | None = None  #: (..., n) in the order of x; None when nothing is padded
    weighted: bool = False  #: whether an entry may have zero weight
    weighted_targets: bool = False  #: whether a target may have zero weight
    padded_targets: bool = False  #: whether the targets past ``count`` are padding too
    descending: bool = False
    dim: int = -1
    hats: Tensor | None = None  #: (..., n) if ``a`` was moved to a grid, and some of it is negative: roughly, but not

    x_tilde: Tensor | None = None  #: (..., n) squashed values, in sorted order
    h: Callable[[Tensor], Tensor] | None = None  #: the cost as a function
    regular: bool = False  #: whether the targets are the default grid, all of them there and of equal weight
    tracked: bool = True  #: whether autograd watched when the problem was posed

    @property
    def cost(self) -> Tensor:
        """(..., n, m) h(y_j - x~_i). Fast kernels never ask for it."""
        if self.costs is not None:
            return self.costs
        assert self.x_tilde is not None  # noqa: S101 - one of the two is always there
        assert self.h is not None  # noqa: S101
        with torch.set_grad_enabled(self.tracked):
            return self.h(self.y.unsqueeze(-2) - self.x_tilde.unsqueeze(-1))

    @property
    def by_columns(self) -> bool:
        """Which side the linear algebra is done on: the smaller one, and never that of negative masses."""
        return self.hats is not None or self.x.shape[-1] >= self.y.shape[-1]

    def unsort(self, t: Tensor) -> Tensor:
        """(..., n) in sorted order -> the order of x."""
        return t if self.inverse is None else t.gather(-1, self.inverse)

    def chosen(self, which: Tensor) -> Problem:
        """Some of the rows, of a problem with one batch dimension."""
        chosen: dict[str, Any] = {
            f.name: t[which] for f in fields(self) if isinstance(t := getattr(self, f.name), Tensor)
        }
        return replace(self, **chosen)

    def levels(self) -> Tensor:
        """(..., m) b_bar, the cumulative target weights: counted from the top when descending."""
        b = self.b.flip(-1) if self.descending else self.b
        levels = b.cumsum(-1)
        return levels.flip(-1) if self.descending else levels


def wide_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def as_rows(x: Tensor, dim: int) -> Tensor:
    """x with ``dim`` moved to the end, after checking that there is something along it."""
    require_floating(x)
    if x.ndim == 0:
        raise ValueError("x must have at least one dimension, got a scalar tensor; use x.reshape(1).")
    require_dim(dim, x)
    if x.shape[dim] == 0:
        raise ValueError(
            f"x must have at least one value along dim={dim}, got shape {tuple(x.shape)}: nothing to rank; "
            "skip empty inputs, or pad them and pass mask=."
        )
    return x if dim in (-1, x.ndim - 1) else x.movedim(dim, -1)


def as_row_of_one(t: Any) -> Any:
    """A tensor without dimensions as what it is for torch's operators: a row of one value."""
    return t.reshape(1) if isinstance(t, Tensor) and t.ndim == 0 else t


def of_number(operator: Callable[..., Any], x: Tensor, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What an operator says of x () as a row of one value, without the dimension of that row if one value is left."""
    options = {name: as_row_of_one(t) if name in ("weights", "mask") else t for name, t in options.items()}
    answer = operator(as_row_of_one(x), *args, **{name: t for name, t in options.items() if name != "x"})
    if isinstance(answer, Tensor):
        return answer.squeeze(0)
    return type(answer)(*(t.squeeze(0) for t in answer))


def numbers_too(operator: Callable[_P, _R]) -> Callable[_P, _R]:
    """An operator that takes a tensor without dimensions, as torch's do."""

    @functools.wraps(operator)
    def wrapped(*args: _P.args, **options: _P.kwargs) -> _R:
        x: Any = args[0] if args else options.get("x")
        if isinstance(x, Tensor) and x.ndim == 0:
            return cast("_R", of_number(operator, x, args[1:], options))
        return operator(*args, **options)

    return wrapped


def like_rows(t: Tensor, x: Tensor, dim: int, name: str) -> Tensor:
    """``t`` (weights or mask) as rows that match ``x``: either 1-D along dim, or broadcastable to x."""
    n = x.shape[dim]
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(t).__name__}; wrap it with torch.as_tensor({name}).")
    rows_shape = x.movedim(dim, -1).shape
    if t.ndim == 1 and t.shape[0] == n:
        return t.expand(rows_shape)
    try:
        fits = torch.broadcast_shapes(t.shape, x.shape) == x.shape and t.ndim == x.ndim
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} must match x along dim={dim}: expected shape ({n},) or one that broadcasts to {tuple(x.shape)}, "
            f"got {tuple(t.shape)}."
        )
    return t.expand(x.shape).movedim(dim, -1)


def like_targets(t: Tensor, batch: Sequence[int], name: str, wide: torch.dtype) -> Tensor:
    """``t`` (targets or their weights) as (..., m): one vector for all rows, or one a row."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(t).__name__}; wrap it with torch.as_tensor({name}).")
    if t.ndim == 0 or t.shape[-1] == 0:
        raise ValueError(f"{name} must hold at least one value along its last dimension, got shape {tuple(t.shape)}.")
    try:
        fits = torch.broadcast_shapes(t.shape[:-1], batch) == torch.Size(batch)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} must have shape (m,) or {(*batch, 'm')} (one row of targets for each row of x), "
            f"got {tuple(t.shape)}."
        )
    return t.to(wide).expand(*batch, t.shape[-1])


def like_batch(t: Tensor, batch: Sequence[int], name: str) -> Tensor:
    """``t`` as one number for each row."""
    try:
        return t.expand(tuple(batch))
    except RuntimeError:
        raise ValueError(
            f"{name} must be a number, or a tensor that broadcasts to the rows {tuple(batch)}, "
            f"got shape {tuple(t.shape)}."
        ) from None


def existing(x: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """The mask as rows, and how many values each row has (..., 1); at least one, for those who divide by it."""
    rows = x.movedim(dim, -1)
    wide = wide_dtype(x.device)
    if mask is None:
        return None, torch.full((*rows.shape[:-1], 1), float(rows.shape[-1]), dtype=wide, device=x.device)
    kept = like_rows(mask, x, dim, "mask")
    if kept.dtype != torch.bool:
        raise TypeError(f"mask must be a boolean tensor (True keeps an entry), got {mask.dtype}; use mask.bool().")
    return kept, kept.sum(-1, keepdim=True).clamp(min=1).to(wide)


def rows_by_count(kept: Tensor) -> list[tuple[Tensor, int]]:
    """Rows of a mask (R, n) that keep equally many values, and how many: what padding is taken out by."""
    count = kept.sum(-1)
    return [((count == c).nonzero().squeeze(-1), int(c)) for c in count.unique()]


def live_rows(
    x: Tensor, rows: Tensor, dim: int, weights: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Values, weights (rows sum to 1), mask and count of the rows of x, all in wide dtype.

    What is masked weighs nothing and holds an ordinary value of its row, so that whatever stood there (NaN, say) is
    gone. A row with nothing in it becomes a row of zeros; its answers are masked at the end.
    """
    wide = wide_dtype(rows.device)
    values = rows.to(wide)
    a = torch.ones_like(values)
    if weights is not None:
        require_floating(weights, "weights")
        a = like_rows(weights, x, dim, "weights").to(wide)
    kept, count = existing(x, dim, mask)
    if kept is not None:
        filler = torch.where(kept & torch.isfinite(values), values, 0.0).sum(-1, keepdim=True).detach() / count
        values = torch.where(kept, values, filler)
        a = torch.where(kept, a, 0.0)
        a = torch.where(kept.any(-1, keepdim=True), a, 1.0)
    if weights is not None:
        require_non_negative(a, "weights")
    return values, a / a.sum(-1, keepdim=True), kept, count


def pose(x: Tensor, options: Options) -> Problem:
    """One transport problem for each row of ``x`` along ``dim``."""
    o = options
    rows = as_rows(x, o.dim)
    batch = rows.shape[:-1]
    wide = wide_dtype(x.device)
    values, a, kept, count = live_rows(x, rows, o.dim, o.weights, o.mask)
    y, b, padded_targets = target_rows(
        rows, count, kept is not None, o.targets, o.target_weights, o.num_targets, o.descending, wide
    )

    x_tilde = normalize(values, a, o.squash, y[..., :1], y[..., -1:])
    x_tilde = torch.where(torch.isnan(x_tilde).any(-1, keepdim=True), torch.nan, x_tilde)  # all of the row, or nothing
    x_tilde, order = x_tilde.sort(dim=-1)
    a = a.gather(-1, order)
    b = met_exactly(b, a, 0.0 if o.target_weights is None else rounding_of(o.weights, o.target_weights))
    h, moved = resolve_cost(o.cost), None
    if not (type(h) in (Power, Huber) and ordinary()):  # what a callable raises, it raises here
        u = y.unsqueeze(-2) - x_tilde.unsqueeze(-1)
        moved = h(u)
        if not isinstance(moved, Tensor) or moved.shape != u.shape:
            came = tuple(moved.shape) if isinstance(moved, Tensor) else type(moved).__name__
            raise ValueError(
                f"cost must map a tensor to a tensor of the same shape, {tuple(u.shape)}, but it returned {came}; "
                "write it elementwise, for instance lambda u: u.square()."
            )
    return Problem(
        x=values.gather(-1, order),
        a=a,
        y=y,
        b=b,
        costs=moved,
        eps=entropy(o.eps, batch, x.device, wide),
        count=count,
        inverse=inverse_of(order),
        order=order,
        mask=kept,
        weighted=o.weights is not None or o.mask is not None,
        weighted_targets=o.target_weights is not None or padded_targets,
        padded_targets=padded_targets,
        descending=o.descending,
        dim=o.dim,
        dtype=x.dtype,
        x_tilde=x_tilde,
        h=h,
        regular=o.equal_targets() and not padded_targets,
        tracked=torch.is_grad_enabled(),
    )


def inverse_of(order: Tensor) -> Tensor:
    """Where each entry went, of rows of permutations: ``order.argsort(-1)`` without sorting."""
    places = torch.arange(order.shape[-1], dtype=order.dtype, device=order.device).expand_as(order)
    return torch.zeros_like(order).scatter(-1, order, places)


def target_rows(
    rows: Tensor,
    count: Tensor,
    masked: bool,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    descending: bool,
    wide: torch.dtype,
) -> tuple[Tensor, Tensor, bool]:
    """y, b and whether they are padded. Default: as many targets as values, on the regular grid of [0, 1]."""
    batch, n = rows.shape[:-1], rows.shape[-1]
    sizes = {}
    if num_targets is not None:
        if isinstance(num_targets, bool) or not isinstance(num_targets, int) or num_targets < 1:
            raise ValueError(f"num_targets must be a positive integer, got {num_targets!r}.")
        sizes["num_targets"] = num_targets
    if targets is not None:
        targets = like_targets(targets, batch, "targets", wide)
        require_increasing(targets)
        sizes["targets"] = targets.shape[-1]
    if target_weights is not None:
        target_weights = like_targets(target_weights, batch, "target_weights", wide)
        require_non_negative(target_weights, "target_weights")
        sizes["target_weights"] = target_weights.shape[-1]
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{name} says {m}" for name, m in sizes.items())
        raise ValueError(f"targets, target_weights and num_targets must agree on the number of targets, but {said}.")

    padded = masked and not sizes
    m = max(sizes.values()) if sizes else n  # they agree
    step = torch.arange(m, dtype=wide, device=rows.device)
    live = count if padded else torch.full_like(count, float(m))
    y = targets if targets is not None else (step / (live - 1).clamp(min=1)).clamp(max=1.0)
    if target_weights is not None:
        b = target_weights / target_weights.sum(-1, keepdim=True)
        b = b.flip(-1) if descending else b
    else:
        b = (step < live).to(wide) / live
    return y, b, padded


def rounding_of(*weights: Tensor | None) -> float:
    """How far, relative to what they are, cumulative sums of weights in these dtypes may be from what was meant."""
    unit = max([0.0, *(torch.finfo(t.dtype).eps for t in weights if t is not None and t.is_floating_point())])
    return 2.0 * unit if unit > 1e-9 else 0.0


def met_exactly(b: Tensor, a: Tensor, rounding: float) -> Tensor:
    """Target weights b (..., m) that split the values exactly wherever, up to rounding, they were meant to.

    Of weights in single precision nobody can tell 0.3 from 0.3 + 1e-8. But a mass of 1e-8 that has to cross a gap is
    a different plan when eps is tiny. So a boundary between two targets that lies within rounding of a boundary between
    two values is taken to be that boundary. a (..., n) are the weights of the values in their order, and weights in
    double precision mean what they say.
    """
    if rounding == 0.0 or b.shape[-1] < 2:
        return b
    fixed_a, fixed = a.detach(), b.detach()
    splits = fixed_a.cumsum(-1).expand(*fixed.shape[:-1], a.shape[-1]).contiguous()
    boundary = fixed.cumsum(-1)[..., :-1].contiguous()
    after = torch.searchsorted(splits, boundary).clamp(max=a.shape[-1] - 1)
    above, below = splits.gather(-1, after), splits.gather(-1, (after - 1).clamp(min=0))
    nearest = torch.where((above - boundary).abs() <= (boundary - below).abs(), above, below)
    moved = nearest - boundary
    within = moved.abs() <= rounding * boundary.minimum(1.0 - boundary)
    moved = torch.nn.functional.pad(torch.where(within, moved, 0.0), (1, 1)).diff(dim=-1)
    kept = (fixed + moved >= 0.5 * fixed).all(-1, keepdim=True)  # no target loses most of what it weighs
    return b + torch.where(kept, moved, 0.0)


def entropy(eps: float | Tensor, batch: Sequence[int], device: torch.device, wide: torch.dtype) -> Tensor:
    """eps as (..., 1, 1): one for all rows, or one a row."""
    if isinstance(eps, Tensor):
        if values_readable(eps) and not (eps > 0).all():
            least = eps.min().item()
            raise ValueError(f"eps must be positive, got a tensor whose smallest entry is {least:g}; {_GOOD_EPS}")
        return like_batch(eps, batch, "eps").to(device, wide)[..., None, None]
    return torch.full((*batch, 1, 1), entropy_number(eps), dtype=wide, device=device)


def entropy_number(eps: object) -> float:
    """eps that is no tensor, after its checks."""
    if not isinstance(eps, (int, float)) or isinstance(eps, bool):
        raise TypeError(f"eps must be a number or a tensor, got {type(eps).__name__}; {_GOOD_EPS}")
    if not 0 < eps < float("inf"):
        raise ValueError(
            f"eps must be positive and finite, got {eps:g}; {_GOOD_EPS} For eps = 0 use kantorovich_rank or _sort."
        )
    return float(eps)
