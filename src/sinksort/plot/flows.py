"""A transport plan as a picture: values below, targets above, one arrow for each pair, as wide as the mass it moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Rectangle

from ..snapshot import Array

_BAR = 0.035  # height of the bars that stand for values and targets; both lie at heights 0 and 1
_GAP = 0.015  # between a bar and the arrows
_HEAD = 0.07  # length of an arrow's head
_INVISIBLE = 2e-4  # an arrow that moves less mass is thinner than ink, unless there are very many of them


def draw_plan(
    axes: Axes, x: Array, y: Array, P: Array, colors: Sequence[str], targets: Sequence[str], *, scale: float
) -> None:
    """Arrows of the plan ``P`` (n, m) from increasing ``x`` to increasing ``y``; ``scale`` is the width of all mass.

    ``colors`` are those of the values and their arrows, ``targets`` those of the targets.
    """
    starts = _stack(x, P, scale)  # within a bar, arrows leave and arrive in the order of where they come from or go
    ends = _stack(y, P.T, scale).T
    invisible = min(_INVISIBLE, 20 * _INVISIBLE / len(x))
    pairs = np.argwhere(invisible < P)
    arrows = [_arrow(starts[i, j], ends[i, j], P[i, j] * scale) for i, j in pairs]
    axes.add_collection(PolyCollection(arrows, facecolors=[colors[i] for i, _ in pairs], edgecolors="none", alpha=0.87))
    for position, mass, color in zip(x, P.sum(1), colors, strict=True):
        axes.add_patch(_bar(position, mass * scale, -_BAR, color))
    for position, mass, color in zip(y, P.sum(0), targets, strict=True):
        axes.add_patch(_bar(position, mass * scale, 1.0, color))


def _stack(position: Array, P: Array, scale: float) -> Array:
    """Left edges (n, m) of arrows laid side by side on bars centred at ``position``."""
    widths = P * scale
    left = position - widths.sum(1) / 2
    edges: Array = left[:, None] + widths.cumsum(1) - widths
    return edges


def _arrow(start: float, end: float, width: float) -> Array:
    """Outline of an arrow whose left edge runs from ``start`` (below) to ``end`` (above), ending in a point."""
    t = np.linspace(0.0, 1.0 - _HEAD, 60)
    height = _GAP + t * (1.0 - 2 * _GAP)
    ease = (t / t[-1]) ** 2 * (3 - 2 * t / t[-1])
    left = start + (end - start) * ease
    tip = np.array([[end + width / 2, 1.0 - _GAP]])
    return np.concatenate([np.stack([left, height], 1), tip, np.stack([left + width, height], 1)[::-1]])


def _bar(centre: float, width: float, bottom: float, color: str) -> Rectangle:
    return Rectangle((centre - width / 2, bottom), width, _BAR, facecolor=color, edgecolor="none")
