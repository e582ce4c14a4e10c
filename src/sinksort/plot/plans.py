"""One plan as a picture: its mass as arrows or as a matrix, its read-outs beside the hard ones."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from ..core.plan import Plan
from ..snapshot import Array, Snapshot, snapshot
from .canvas import canvas
from .flows import draw_plan
from .style import ACCENT, HAIRLINE, INK, MASS, MUTED, TARGET, look, shades, shades_of

_LABELLED = 12  # more numbers than this would run into each other


def flow(plan: Plan, ax: Axes | None = None) -> Axes:
    """The plan as arrows: values below, targets above, an arrow as wide as the mass that it moves.

    Below is the axis of the values. Up to a dozen values have their soft ranks written beside them, and up to a dozen
    targets the soft sorted values that they receive.

    >>> import torch, sinksort
    >>> from sinksort import plot
    >>> ax = plot.flow(sinksort.transport(torch.tensor([0.3, 0.1, 0.2, 0.9]), eps=1e-3))
    >>> [text.get_text() for text in ax.texts if text.get_position()[1] < 0]
    ['1', '2', '3', '4']
    """
    return draw_flow(snapshot(plan), ax)


def draw_flow(row: Snapshot, ax: Axes | None) -> Axes:
    """``flow`` of a snapshot."""
    up, right = row.x.argsort(kind="stable"), row.y.argsort()
    x, P = row.x[up], row.P[up][:, right]
    low, high = x[0], x[-1] if x[-1] > x[0] else x[0] + 1.0
    y = row.y[right]
    y = low + (high - low) * ((y - y[0]) / (y[-1] - y[0]) if len(y) > 1 else y * 0 + 0.5)  # above the values
    with look():
        ax = canvas(ax, (6.4, 3.8))
        draw_plan(ax, x, y, P, shades(len(x)), [TARGET] * len(y), scale=0.6 * (high - low))
        named = [
            (height, name)
            for at, height, numbers, name in (
                (x, -0.1, row.ranks[up], "soft\nranks"),
                (y, 1.08, row.sorted[right], "soft\nsorted"),
            )
            if _numbers(ax, at, height, numbers)
        ]
        ax.set_yticks([height for height, _ in named], [name for _, name in named])
        ax.tick_params(axis="y", length=0)
        margin = 0.2 * (high - low)
        ax.set(xlim=(low - margin, high + margin), ylim=(-0.2, 1.2), xlabel="values")
        ax.set(title="Transport plan: mass from values (below) to targets (above)")
        ax.spines["left"].set_visible(False)
    return ax


def _numbers(ax: Axes, at: Array, height: float, numbers: Array) -> bool:
    """A row of numbers, unless they are too many to be read; whether it was written."""
    if len(at) > _LABELLED:
        return False
    for position, number in zip(at, numbers, strict=True):
        ax.text(position, height, f"{number:.3g}", ha="center", va="center", fontweight="bold", fontsize=8.5)
    return True


def matrix(plan: Plan, ax: Axes | None = None) -> Axes:
    """The plan as a matrix: row i is value i in the order of x, column j is target j, dark where much mass goes.

    Dots mark where the hard sort (eps = 0) moves mass.

    >>> import torch, sinksort
    >>> from sinksort import plot
    >>> ax = plot.matrix(sinksort.transport(torch.tensor([0.3, 0.1, 0.2])))
    >>> ax.images[0].get_array().shape
    (3, 3)
    """
    return draw_matrix(snapshot(plan), ax)


def draw_matrix(row: Snapshot, ax: Axes | None) -> Axes:
    """``matrix`` of a snapshot."""
    n, m = row.P.shape
    i, j = (row.hard_matrix > 1e-12).nonzero()
    with look():
        ax = canvas(ax, (4.2, 3.8))
        ax.imshow(row.P, cmap=MASS, vmin=0.0, vmax=row.P.max(), extent=(0.5, m + 0.5, n + 0.5, 0.5), aspect="auto")
        size = min(5.0, 120 / max(n, m))
        ax.plot(j + 1, i + 1, "o", color=ACCENT, ms=size, mec="white", mew=size / 8, label="hard sort")
        ax.set(xlabel="target", ylabel="value", title="Plan as a matrix: dark is much mass")
        _whole(ax, m, n)
        _legend(ax)
    return ax


def ranks(plan: Plan, ax: Axes | None = None) -> Axes:
    """Soft ranks over the values, beside the hard ones.

    >>> import torch, sinksort
    >>> from sinksort import plot
    >>> ax = plot.ranks(sinksort.transport(torch.tensor([0.3, 0.1, 0.2])))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['hard', 'soft']
    """
    row = snapshot(plan)
    with look():
        ax = canvas(ax, (4.6, 3.4))
        _soft_and_hard(ax, row.x, row.ranks, row.hard_ranks, shades_of(row.x))
        ax.set(xlabel="value", ylabel="rank", title="Soft ranks beside hard ranks")
    return ax


def sorted_values(plan: Plan, ax: Axes | None = None) -> Axes:
    """The soft sorted value at each target, beside the hard one.

    >>> import torch, sinksort
    >>> from sinksort import plot
    >>> ax = plot.sorted_values(sinksort.transport(torch.tensor([0.3, 0.1, 0.2])))
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('target', 'value')
    """
    row = snapshot(plan)
    m = len(row.y)
    with look():
        ax = canvas(ax, (4.6, 3.4))
        _soft_and_hard(ax, np.arange(1.0, m + 1), row.sorted, row.hard_sorted, [TARGET] * m)
        ax.set(xlabel="target", ylabel="value", title="Soft sorted values beside hard ones")
        if m <= _LABELLED:
            ax.set_xticks(range(1, m + 1))
    return ax


def _soft_and_hard(ax: Axes, at: Array, soft: Array, hard: Array, colors: list[str]) -> None:
    ax.vlines(at, hard, soft, color=MUTED, lw=0.8, zorder=2)
    size = min(6.5, 2.0 + 90.0 / len(at))
    ax.plot(at, hard, "s", ms=size, mfc="none", mec=INK, mew=size / 6, zorder=4, label="hard")
    ax.scatter(at, soft, c=colors, s=0.7 * size**2, edgecolors=INK, linewidths=0.5, zorder=5, label="soft")
    ax.grid(axis="y", color=HAIRLINE, lw=0.5)
    ax.set_axisbelow(True)
    _legend(ax)


def _legend(ax: Axes) -> None:
    ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.1, fontsize=8)


def _whole(ax: Axes, m: int, n: int) -> None:
    """Ticks at whole numbers."""
    for axis, count in ((ax.xaxis, m), (ax.yaxis, n)):
        step = max(1, -(-count // 10))
        axis.set_ticks(range(1, count + 1, step))
