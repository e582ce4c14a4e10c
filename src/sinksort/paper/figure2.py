"""Figure 2: S-ranks and S-sorted values of ten numbers as eps grows, from the hard ones to their average."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from .. import kantorovich_rank, kantorovich_sort, transport
from .style import ACCENT, HAIRLINE, INK, MUTED, look, shades

#: n = 10; entries 0 and 9 are close, so their ranks meet first, as in the paper.
X = torch.tensor([0.53, 0.92, 0.13, 0.71, 0.36, 0.02, 0.82, 0.24, 0.63, 0.49], dtype=torch.float64)
EPS = torch.logspace(-4.0, 1.0, 121, dtype=torch.float64)


def sweep() -> tuple[Tensor, Tensor]:
    """(ranks, sorted values), each (number of eps, n): one batched solve, with one eps a row."""
    plan = transport(X.expand(len(EPS), -1), eps=EPS)
    return plan.ranks(), plan.sorted()


def draw() -> Figure:
    """The figure."""
    ranks, ordered = sweep()
    hard_ranks, hard_values = kantorovich_rank(X), kantorovich_sort(X)
    n, palette = len(X), shades(len(X))
    by_rank = [palette[int(r) - 1] for r in hard_ranks]
    with look():
        figure = Figure(figsize=(13.8, 4.2))
        bars, middle, right = figure.subplots(1, 3, gridspec_kw={"wspace": 0.26, "width_ratios": [0.8, 1, 1]})

        bars.bar(range(n), X.tolist(), color=by_rank, width=0.72)
        for i, (value, rank) in enumerate(zip(X.tolist(), hard_ranks.tolist(), strict=True)):
            bars.text(i, value + 0.015, f"{rank:.0f}", ha="center", va="bottom", color=MUTED, fontsize=8.5)
        bars.set(xticks=range(n), xlabel="index $i$", ylim=(0, 1.02), title="Input $x$, with its hard ranks")
        bars.tick_params(length=0)

        _curves(middle, ranks, hard_ranks, by_rank, [f"{i}" for i in range(n)])
        _limit(middle, (n + 1) / 2)
        middle.set(yticks=range(1, n + 1), title=r"S-ranks $\widetilde{R}_\varepsilon(x)$: a line for each input")

        _curves(right, ordered, hard_values, palette, [f"{j}" for j in range(1, n + 1)])
        _limit(right, X.mean().item())
        right.set(title=r"S-sort $\widetilde{S}_\varepsilon(x)$: a line for each target")
    return figure


def _curves(axes: Axes, values: Tensor, limits: Tensor, colors: list[str], names: list[str]) -> None:
    """A line for each column of ``values`` over eps; its hard limit as a dot with its name, at the left."""
    hard_at, name_at = 1.4e-5, 9.8e-6
    axes.set_xscale("log")
    axes.set_xlim(5e-6, 12.0)
    for column, limit, color, name in zip(values.unbind(-1), limits.tolist(), colors, names, strict=True):
        axes.plot(EPS.numpy(), column.numpy(), color=color, lw=2.0, zorder=3)
        axes.plot(hard_at, limit, "o", color=color, ms=5.5, zorder=4, clip_on=False)
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        axes.text(name_at, limit, name, color=INK, fontsize=7.5, ha="right", va="center_baseline", bbox=behind)
    axes.axvline(3.2e-5, color=HAIRLINE, lw=0.8, zorder=0)
    powers = {10.0**k: f"$10^{{{k}}}$" for k in range(-4, 2)}
    axes.set_xticks([hard_at, *powers], ["hard", *powers.values()])
    axes.tick_params(which="minor", bottom=False)
    axes.grid(axis="y", color=HAIRLINE, lw=0.5, zorder=0)
    axes.set_axisbelow(True)
    axes.set_xlabel(r"entropy $\varepsilon$")


def _limit(axes: Axes, mean: float) -> None:
    """Where all lines meet when eps goes to infinity."""
    axes.plot([EPS[0].item(), EPS[-1].item()], [mean, mean], color=ACCENT, lw=1, ls=(0, (5, 3)), zorder=2)
    axes.text(13.5, mean, "mean", color=ACCENT, va="center", fontsize=9)
