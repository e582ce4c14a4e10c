"""Figure 3: the 30% quantile of 20 values, as the average of what lands on a filler between two large masses.

The values are in [0, 1] already, so they are transported as they are: the axis of the picture is the axis of the cost.
The paper standardises and squashes values first, which moves the picture's quantile a little.
"""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from .. import Plan, soft_quantile, transport
from ..plot.flows import draw_plan
from .style import ACCENT, HAIRLINE, INK, MUTED, TARGET, bare, look, shades

# fmt: off
X = torch.tensor([0.325, 0.785, 0.110, 0.545, 0.935, 0.060, 0.405, 0.250, 0.690, 0.165,
                  0.365, 0.880, 0.205, 0.480, 0.015, 0.610, 0.285, 0.985, 0.445, 0.740],
                 dtype=torch.float64, device="cpu")
# fmt: on
LEVEL = 0.3  # the paper's tau
WIDTH = 0.1  # the paper's t
EPS = 1e-2
_SCALE = 0.62


def plan() -> Plan:
    """What ``soft_quantile`` solves: three targets, 0, 1/2 and 1, the middle one with the filler weight t."""
    b = torch.tensor([LEVEL - WIDTH / 2, WIDTH, 1 - LEVEL - WIDTH / 2], dtype=X.dtype, device=X.device)
    return transport(X, target_weights=b, eps=EPS, squash=None)


def quantile() -> Tensor:
    """The soft quantile itself."""
    return soft_quantile(X, LEVEL, width=WIDTH, eps=EPS, squash=None)


def draw() -> Figure:
    """The figure."""
    order = X.argsort()
    x, P = X[order].numpy(), plan().matrix()[order].numpy()
    share = P[:, 1] / WIDTH
    soft, hard = quantile().item(), torch.quantile(X, LEVEL).item()
    palette = shades(len(x))
    with look():
        figure = Figure(figsize=(8.6, 6.2))
        flows, average = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1], "hspace": 0.04})
        bare(flows)
        flows.set(xlim=(-0.12, 1.24), ylim=(-0.1, 1.24))
        draw_plan(flows, x, np.array([0.0, 0.5, 1.0]), P, palette, [TARGET, ACCENT, TARGET], scale=_SCALE)
        names = (r"$\tau - t/2$ = 0.25", "filler $t$ = 0.10", r"$1 - \tau - t/2$ = 0.65")
        for at, name in zip((0.0, 0.5, 1.0), names, strict=True):
            flows.text(at, 1.075, name, ha="center", va="bottom", fontsize=10, color=ACCENT if at == 0.5 else INK)

        average.bar(x, share, width=0.022, color=palette)
        average.axvline(soft, color=ACCENT, lw=1.6)
        average.axvline(hard, color=INK, lw=1.2, ls=(0, (3, 2)))
        top = float(share.max())
        average.text(soft - 0.014, top * 1.16, f"soft quantile {soft:.3f}", color=ACCENT, va="center", ha="right")
        average.text(hard + 0.014, top * 1.16, f"torch.quantile {hard:.3f}", color=INK, va="center", ha="left")
        average.set(ylim=(0, top * 1.28), xlabel="$x$", ylabel="share  $P_{i2}\\,/\\,t$")
        average.set_xticks(np.linspace(0, 1, 6))
        average.grid(axis="y", color=HAIRLINE, lw=0.5)
        average.set_axisbelow(True)
        average.spines["bottom"].set_bounds(0, 1)
        title = r"The 30% quantile of 20 values: what is sent to the filler, averaged"
        figure.suptitle(title, x=0.125, y=0.955, ha="left", fontsize=12, fontweight="bold", color=INK)
        subtitle = rf"$\tau$ = {LEVEL:g},  $t$ = {WIDTH:g},  $\varepsilon$ = {EPS:g},  values in [0, 1] without squash"
        figure.text(0.125, 0.895, subtitle, color=MUTED, fontsize=9.5)
    return figure
