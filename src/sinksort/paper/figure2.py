"""Figure 2: S-ranks and S-sorted values of ten numbers as eps grows, from the hard ones to their average."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from .. import kantorovich_rank, kantorovich_sort, transport
from ..plot.curves import EPS, curves, limit
from .style import MUTED, look, shades

#: n = 10; entries 0 and 9 are so close that their ranks are almost equal at eps = 1e-2, as the paper says of its own.
X = torch.tensor([0.53, 0.92, 0.13, 0.71, 0.36, 0.02, 0.82, 0.24, 0.63, 0.52], dtype=torch.float64, device="cpu")


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

        curves(middle, EPS, ranks, hard_ranks, by_rank, [f"{i}" for i in range(n)])
        limit(middle, EPS, (n + 1) / 2)
        middle.set(yticks=range(1, n + 1), title=r"S-ranks $\widetilde{R}_\varepsilon(x)$: a line for each input")

        curves(right, EPS, ordered, hard_values, palette, [f"{j}" for j in range(1, n + 1)])
        limit(right, EPS, X.mean().item())
        right.set(title=r"S-sort $\widetilde{S}_\varepsilon(x)$: a line for each target")
    return figure
