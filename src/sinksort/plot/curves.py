"""Ranks and sorted values as eps grows: from the hard ones to their average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor

from .. import kantorovich_rank, kantorovich_sort, transport
from .canvas import canvas
from .style import ACCENT, HAIRLINE, INK, look, shades, shades_of

#: From a hard sort to the mean.
EPS = torch.logspace(-4.0, 1.0, 121, dtype=torch.float64, device="cpu")


def rank_curves(x: Tensor, eps: Tensor = EPS, ax: Axes | None = None) -> Axes:
    """The soft rank of each value of ``x`` (n,) over ``eps`` (increasing), with the hard ranks at the left.

    Numbers at the left are indices into x.

    >>> import torch
    >>> from sinksort import plot
    >>> ax = plot.rank_curves(torch.tensor([0.3, 0.1, 0.2]))
    >>> ax.get_xscale(), len(ax.lines)  # a line and a dot for each value, where all of them meet, and a rule
    ('log', 8)
    """
    x = _one_row(x)
    ranks = transport(x.expand(len(eps), -1), eps=eps.to(x)).ranks()
    with look():
        ax = canvas(ax, (5.0, 3.8))
        names = [f"{i}" for i in range(len(x))]
        curves(ax, eps, ranks, kantorovich_rank(x), shades_of(x.numpy()), names)
        limit(ax, eps, (len(x) + 1) / 2)
        ax.set(title=r"Soft ranks as eps grows: a line for each value", ylabel="rank")
    return ax


def sorted_curves(x: Tensor, eps: Tensor = EPS, ax: Axes | None = None) -> Axes:
    """The soft sorted values of ``x`` (n,) over ``eps`` (increasing), with the hard ones at the left.

    Numbers at the left count the targets from 1.

    >>> import torch
    >>> from sinksort import plot
    >>> ax = plot.sorted_curves(torch.tensor([0.3, 0.1, 0.2]), eps=torch.logspace(-3, 0, 50))
    >>> ax.get_ylabel()
    'value'
    """
    x = _one_row(x)
    ordered = transport(x.expand(len(eps), -1), eps=eps.to(x)).sorted()
    with look():
        ax = canvas(ax, (5.0, 3.8))
        names = [f"{j}" for j in range(1, len(x) + 1)]
        curves(ax, eps, ordered, kantorovich_sort(x), shades(len(x)), names)
        limit(ax, eps, x.mean().item())
        ax.set(title=r"Soft sorted values as eps grows: a line for each target", ylabel="value")
    return ax


def _one_row(x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or x.ndim != 1:
        came = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be a tensor of one row of values, (n,), got {came}; draw a single row.")
    return x.detach().cpu().double()


def curves(ax: Axes, eps: Tensor, values: Tensor, limits: Tensor, colors: Sequence[str], names: Sequence[str]) -> None:
    """A line for each column of ``values`` over eps; its hard limit as a dot with its name, at the left."""
    first, last = eps[0].item(), eps[-1].item()
    hard_at, name_at, rule_at = 0.14 * first, 0.098 * first, 0.32 * first
    ax.set_xscale("log")
    ax.set_xlim(0.05 * first, 1.2 * last)
    heights = _apart(limits)
    for k, (column, hard, color) in enumerate(zip(values.unbind(-1), limits.tolist(), colors, strict=True)):
        ax.plot(eps.numpy(), column.numpy(), color=color, lw=2.0, zorder=3)
        ax.plot(hard_at, hard, "o", color=color, ms=5.5, zorder=4, clip_on=False)
        if len(names) <= 20:
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
            written: dict[str, Any] = {"fontsize": 7.5, "ha": "right", "va": "center_baseline", "bbox": behind}
            ax.text(name_at, heights[k], names[k], color=INK, **written)
    ax.axvline(rule_at, color=HAIRLINE, lw=0.8, zorder=0)
    powers = {10.0**k: f"$10^{{{k}}}$" for k in range(-12, 12) if 0.99 * first <= 10.0**k <= 1.01 * last}
    ax.set_xticks([hard_at, *powers], ["hard", *powers.values()])
    ax.tick_params(which="minor", bottom=False)
    ax.grid(axis="y", color=HAIRLINE, lw=0.5, zorder=0)
    ax.set_axisbelow(True)
    ax.set_xlabel(r"entropy $\varepsilon$")


def _apart(limits: Tensor) -> list[float]:
    """Heights for names beside dots at these heights, so far apart that no name covers another."""
    ordered = limits.double().sort()
    gap = 0.042 * (ordered.values[-1] - ordered.values[0]).item()
    up, down = ordered.values.tolist(), ordered.values.tolist()
    for k in range(1, len(up)):
        up[k] = max(up[k], up[k - 1] + gap)
        down[-1 - k] = min(down[-1 - k], down[-k] - gap)
    heights = torch.empty_like(ordered.values)
    heights[ordered.indices] = 0.5 * torch.tensor([up, down], dtype=heights.dtype, device=heights.device).sum(0)
    return [float(height) for height in heights]


def limit(ax: Axes, eps: Tensor, mean: float) -> None:
    """Where all lines meet when eps goes to infinity."""
    ax.plot([eps[0].item(), eps[-1].item()], [mean, mean], color=ACCENT, lw=1, ls=(0, (5, 3)), zorder=2)
    ax.text(1.35 * eps[-1].item(), mean, "mean", color=ACCENT, va="center", fontsize=9)
