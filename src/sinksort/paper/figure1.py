"""Figure 1: sorting as transport in its three forms, from an assignment to a Kantorovich plan to an entropic plan."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from .. import kantorovich_rank, kantorovich_sort, transport
from ..plot.flows import draw_plan
from ..snapshot import hard_plan
from .style import INK, MUTED, TARGET, bare, look, shades

X = torch.tensor([0.24, 0.70, 0.05, 0.95, 0.44], dtype=torch.float64, device="cpu")
B = torch.tensor([0.48, 0.16, 0.36], dtype=torch.float64, device="cpu")  # the paper's target weights in (b) and (c)
EPS = 0.15
_SCALE = 0.56


def exact_plan(x: Tensor, b: Tensor) -> Tensor:
    """The optimal plan (n, m) of equally weighted values for eps = 0."""
    return torch.from_numpy(hard_plan(x.numpy(), np.full(len(x), 1 / len(x)), b.numpy()))


def draw() -> Figure:
    """The figure."""
    n = len(X)
    uniform = torch.full((n,), 1 / n, dtype=X.dtype, device=X.device)
    soft = transport(X, target_weights=B, eps=EPS, squash=None)
    assigned = exact_plan(X, uniform), kantorovich_rank(X), kantorovich_sort(X)
    split = exact_plan(X, B), kantorovich_rank(X, target_weights=B), kantorovich_sort(X, target_weights=B)
    entropic = soft.matrix(), soft.ranks(), soft.sorted()
    with look():
        figure = Figure(figsize=(13.2, 4.3))
        panels = figure.subplots(
            1, 3, gridspec_kw={"wspace": 0.04, "left": 0.0, "right": 1.0, "top": 0.86, "bottom": 0.0}
        )
        _panel(panels[0], *assigned, "R", "S", "(a)  Assignment", "n = m: one value, one target")
        _panel(panels[1], *split, r"\widetilde{R}", r"\widetilde{S}", "(b)  Kantorovich", "m = 3: masses are split")
        _panel(
            panels[2],
            *entropic,
            r"\widetilde{R}_\varepsilon",
            r"\widetilde{S}_\varepsilon",
            "(c)  Entropic",
            rf"$\varepsilon$ = {EPS:g}: every pair shares mass, so all is differentiable",
        )
    return figure


def _panel(axes: Axes, P: Tensor, ranks: Tensor, values: Tensor, R: str, S: str, title: str, subtitle: str) -> None:
    order = X.argsort()
    x, m = X[order].numpy(), P.shape[-1]
    y = np.linspace(0, 1, m)
    b = P.sum(0).tolist()
    bare(axes)
    axes.set(xlim=(-0.36, 1.2), ylim=(-0.44, 1.3))
    draw_plan(axes, x, y, P[order].numpy(), shades(len(x)), [TARGET] * m, scale=_SCALE)

    axes.text(-0.34, 1.52, title, fontsize=12, fontweight="bold", va="center")
    axes.text(-0.34, 1.405, subtitle, fontsize=9.5, color=MUTED, va="center")
    _row(axes, 1.24, f"${S}(x)$", y, [f"{v:.2f}" for v in values.tolist()], INK, bold=True)
    _row(axes, 1.11, "$b$", y, [f"{w:.2f}" for w in b], MUTED)
    _row(axes, -0.11, "", x, [f"$x_{i + 1}$" for i in order.tolist()], MUTED)
    _row(axes, -0.22, "$x$", x, [f"{v:.2f}" for v in x], MUTED)
    _row(axes, -0.35, f"${R}(x)$", x, _as_text(ranks[order]), INK, bold=True)


def _as_text(ranks: Tensor) -> list[str]:
    whole = bool((ranks == ranks.round()).all())
    return [f"{r:.0f}" if whole else f"{r:.2f}" for r in ranks.tolist()]


def _row(
    axes: Axes, height: float, name: str, at: np.ndarray, texts: list[str], color: str, bold: bool = False
) -> None:
    axes.text(-0.34, height, name, color=color, va="center", fontsize=11)
    for position, text in zip(at, texts, strict=True):
        weight = "bold" if bold else "normal"
        axes.text(position, height, text, color=color, ha="center", va="center", fontsize=10, fontweight=weight)
