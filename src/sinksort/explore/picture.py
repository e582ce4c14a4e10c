"""From a state to all that is drawn: one plan by the library, its gradient, and the columns of every glyph.

The picture of the plan has three levels: values where they are (height 0), where squashing puts them on the axis of the
targets (``SQUASHED``), and the targets (1). Arrows lead from the second to the third.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .. import transport
from ..core.squash import normalize
from ..snapshot import Array, Snapshot, snapshot
from .state import COSTS, State, StateError

Columns = dict[str, Array]

SQUASHED = 0.27  # height of the bars of squashed values
BAR = 0.035  # height of a bar
ALL_MASS = 0.56  # width of all mass together, where the targets have width 1
MOST_ARROWS = 4000  # beyond that a browser stutters; the widest are drawn
ALPHA = 0.85  # of an arrow
FOOT, TIP = SQUASHED + BAR + 0.008, 0.992  # where arrows begin and end, and the
_HEAD = 0.05  # height of the head of one
_THINNEST = 0.5  # pixels; what is thinner is drawn that thin and fainter, as a screen cannot do otherwise


@dataclass(frozen=True)
class Picture:
    """What the library says about a state."""

    state: State
    row: Snapshot
    squashed: Array  #: (n,) where each value stands on the axis of the targets
    gradient: Array  #: (n,) of the chosen read-out in x
    hard_gradient: Array  #: (n,) the same for eps = 0
    seconds: float  #: that the library took for all of it


def solve(state: State) -> Picture:
    """The plan of ``state`` and its gradient."""
    x = torch.tensor(state.x, dtype=torch.float64, device="cpu", requires_grad=True)
    a = torch.ones_like(x) if state.weights is None else torch.tensor(state.weights, dtype=x.dtype, device=x.device)
    b = None if state.target_weights is None else torch.tensor(state.target_weights, dtype=x.dtype, device=x.device)
    squash = None if state.squash == "none" else state.squash
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a row that has not converged is reported by its row
            plan = transport(
                x,
                weights=a,
                target_weights=b,
                num_targets=state.m,
                eps=state.eps,
                cost=COSTS[state.cost][1],
                squash=squash,
            )
            read = plan.ranks() if state.reads == "rank" else plan.sorted()
            (gradient,) = torch.autograd.grad(read[state.index], x)
        row = snapshot(plan)
    except (ValueError, RuntimeError) as error:
        raise StateError(f"This cannot be solved: {error}") from error
    seconds = time.perf_counter() - began
    low, high = (torch.tensor([end], dtype=torch.float64, device="cpu") for end in (row.y[0], row.y[-1]))
    hard = np.zeros(len(row.x))  # hard ranks are steps: flat almost everywhere
    if state.reads == "sorted" and row.b[state.index] > 0:
        hard = row.hard_matrix[:, state.index] / row.b[state.index]
    return Picture(
        state=state,
        row=row,
        squashed=normalize(x.detach(), a / a.sum(), squash, low, high).numpy(),
        gradient=gradient.numpy(),
        hard_gradient=hard,
        seconds=seconds,
    )


@dataclass(frozen=True)
class Axis:
    """Where values are drawn: value ``low`` above target 0, ``high`` above target 1, and how far to either side."""

    low: float
    high: float
    left: float  # of what is seen, in the places of targets
    right: float

    def place(self, x: Array) -> Array:
        place: Array = (x - self.low) / (self.high - self.low)
        return place

    def value(self, place: float) -> float:
        """The value at a place; beyond the edge, that at the edge. Four digits: a hand is not more exact."""
        inside = min(max(place, self.left + 0.02), self.right - 0.02)
        span = self.high - self.low
        digits = 4 - int(np.ceil(np.log10(span)))
        return round(self.low + inside * span, digits)

    @property
    def ends(self) -> tuple[float, float]:
        """The values at the two edges."""
        span = self.high - self.low
        return self.low + self.left * span, self.low + self.right * span


def axis_for(state: State) -> Axis:
    """Values that are not squashed stand where they are among the targets; others are spread over the width."""
    b = state.target_weights or (1.0,) * state.m
    left, right = (max(0.08, ALL_MASS * end / sum(b) / 2 + 0.02) for end in (b[0], b[-1]))  # room for their bars
    low, high = min(state.x), max(state.x)
    if state.squash == "none":
        margin = 0.08 * (max(high, 1.0) - min(low, 0.0))
        return Axis(0.0, 1.0, min(low - margin, -left), max(high + margin, 1.0 + right))
    if high - low < 1e-9 * max(1.0, abs(low), abs(high)):
        low, high = low - 1.0, high + 1.0
    return Axis(low, high, -left, 1.0 + right)


# ---- columns


def shade(picture: Picture) -> Array:
    """0 for the smallest value to 1 for the largest, by place in the order."""
    places = picture.row.x.argsort(kind="stable").argsort()
    shades: Array = places / max(1, len(places) - 1)
    return shades


def _sizes(count: int) -> Columns:
    """Of markers, in pixels: smaller where there are many."""
    size = float(np.clip(5.0 + 100.0 / count, 5.5, 10.0))
    return {"size": np.full(count, size), "dot": np.full(count, 0.75 * size), "handle": np.full(count, 1.5 * size)}


def values(picture: Picture, axis: Axis) -> Columns:
    """One entry a value: handle, bar, rank and gradient beside the hard ones."""
    row, half = picture.row, 0.5 * ALL_MASS * picture.row.a
    chosen = (picture.state.reads == "rank") & (np.arange(len(row.x)) == picture.state.index)
    return {
        "number": np.arange(1.0, len(row.x) + 1),
        "x": row.x,
        "place": axis.place(row.x),
        "squashed": picture.squashed,
        "left": picture.squashed - half,
        "right": picture.squashed + half,
        "weight": row.a,
        "rank": row.ranks,
        "hard_rank": row.hard_ranks,
        "gradient": picture.gradient,
        "hard_gradient": picture.hard_gradient,
        "shade": shade(picture),
        "ring": np.where(chosen, 4.0, 1.2),
        **_sizes(len(row.x)),
    }


def targets(picture: Picture) -> Columns:
    """One entry a target: bar, and sorted value beside the hard one."""
    row, half = picture.row, 0.5 * ALL_MASS * picture.row.b
    chosen = (picture.state.reads == "sorted") & (np.arange(len(row.y)) == picture.state.index)
    return {
        "number": np.arange(1.0, len(row.y) + 1),
        "place": row.y,
        "left": row.y - half,
        "right": row.y + half,
        "weight": row.b,
        "sorted": row.sorted,
        "hard_sorted": row.hard_sorted,
        "chosen": np.where(chosen, 1.0, 0.0),
        **_sizes(len(row.y)),
    }


def arrows(picture: Picture, pixels: float) -> Columns:
    """Cubic curves from squashed values to targets, as wide as the mass; ``pixels`` is the width of one unit."""
    i, start, end, wide = _arrows(picture, pixels)
    return {
        "x0": start,
        "x1": end,
        "y1": np.where(_has_head(wide), TIP - _HEAD, TIP),
        "width": np.maximum(wide, _THINNEST),
        "alpha": ALPHA * np.minimum(1.0, wide / _THINNEST),
        "shade": shade(picture)[i],
    }


def heads(picture: Picture, pixels: float) -> Columns:
    """Triangles at the ends of those arrows that are wide enough to have one."""
    i, _, end, wide = _arrows(picture, pixels)
    seen = _has_head(wide)
    end, half = end[seen], 0.5 * wide[seen] / pixels
    top = np.full(len(end), TIP)
    return {
        "xs": np.stack([end - half, end, end + half], 1),
        "ys": np.stack([top - _HEAD, top, top - _HEAD], 1),
        "shade": shade(picture)[i[seen]],
    }


def _has_head(wide: Array) -> NDArray[np.bool_]:
    return wide > 1.0


def _arrows(picture: Picture, pixels: float) -> tuple[NDArray[np.intp], Array, Array, Array]:
    """Value, where it leaves, where it arrives and its width in pixels, for each arrow that can be seen.

    On a bar they leave and arrive side by side, in the order of where they go or come from. The widest come first.
    """
    row = picture.row
    widths = ALL_MASS * row.P
    up = picture.squashed.argsort(kind="stable")
    start = (picture.squashed - widths.sum(1) / 2)[:, None] + widths.cumsum(1) - widths / 2
    end = np.empty_like(start)
    end[up] = (row.y - widths.sum(0) / 2)[None] + widths[up].cumsum(0) - widths[up] / 2
    size = pixels * widths
    i, j = np.unravel_index(np.argsort(-size, axis=None)[:MOST_ARROWS], size.shape)
    seen = size[i, j] > 0.01
    i, j = i[seen], j[seen]
    return i, start[i, j], end[i, j], size[i, j]


def hard_cells(picture: Picture) -> Columns:
    """The entries of the matrix where the hard sort moves mass, counted from 1."""
    i, j = (picture.row.hard_matrix > 1e-12).nonzero()
    return {"value": 1.0 + i.astype(np.float64), "target": 1.0 + j.astype(np.float64)}
