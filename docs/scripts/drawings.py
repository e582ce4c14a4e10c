"""The figures that stand on their own: the idea without words, softness against eps, and eps too small or too large."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from torch import Tensor

import sinksort
from sinksort.losses import topk_error, topk_loss
from sinksort.plot.style import HAIRLINE, INK, MUTED, shades
from sinksort.schedules import rank_spread, suggest_eps

LINES = ["-", "--", "-.", ":"]
BLUE, RED = "#24478f", "#c8553d"


def idea() -> Figure:
    """Bars out of order, arrows that sort them, and a ball that is stuck on a step or rolls down a slope."""
    heights = torch.tensor([0.42, 0.95, 0.10, 0.70, 0.55], dtype=torch.float64)
    figure = Figure(figsize=(8.2, 4.5))
    panels = figure.subplots(2, 2, gridspec_kw={"height_ratios": [1.45, 1.0], "wspace": 0.08, "hspace": 0.08})
    for column, eps in enumerate((1e-5, 3e-2)):
        plan = sinksort.transport(heights, eps=eps)
        _ribbons(panels[0][column], heights, plan.matrix() * len(heights), plan.sorted())
        _ball(panels[1][column], heights, eps)
    return figure


def _ribbons(axes: Axes, heights: Tensor, P: Tensor, values: Tensor) -> None:
    """Bars below in their own order, bars above in soft order, a ribbon as wide as the share that moves."""
    n, wide, tall, gap = len(heights), 0.62, 0.55, 1.15
    colors = np.array([to_rgb(color) for color in shades(n)])[heights.argsort().argsort().numpy()]
    left = np.arange(n) - wide / 2 + np.cumsum(P.numpy(), 1).T * wide - P.numpy().T * wide  # (to, from)
    arrive = np.arange(n)[:, None] - wide / 2 + (np.cumsum(P.numpy(), 0) - P.numpy()).T * wide
    t = np.linspace(0, 1, 50)
    ease = t**2 * (3 - 2 * t)
    low, high = tall + 0.06, tall + gap - 0.06
    for i in range(n):
        for j in range(n):
            if P[i, j] > 5e-3:
                edge = left[j, i] + (arrive[j, i] - left[j, i]) * ease
                across = np.concatenate([edge, (edge + wide * float(P[i, j]))[::-1]])
                up = low + (high - low) * t
                outline = np.stack([across, np.concatenate([up, up[::-1]])], 1)
                axes.add_patch(Polygon(outline, facecolor=colors[i], edgecolor="none", alpha=0.75))
    for i in range(n):
        axes.add_patch(Rectangle((i - wide / 2, 0), wide, tall * float(heights[i]), facecolor=colors[i]))
        mixed = P[:, i].numpy() @ colors
        axes.add_patch(Rectangle((i - wide / 2, tall + gap), wide, tall * float(values[i]), facecolor=mixed))
    for base in (0.0, tall + gap):
        axes.plot([-0.5, n - 0.5], [base, base], color=MUTED, linewidth=1, linestyle="-")
    axes.set(xlim=(-0.6, n - 0.4), ylim=(-0.08, 2 * tall + gap + 0.05))
    axes.set_axis_off()


def _ball(axes: Axes, heights: Tensor, eps: float) -> None:
    """The rank of one bar as its height changes. The ball stays where the curve is flat."""
    at = torch.linspace(0.0, 1.05, 400, dtype=torch.float64)
    rows = heights.repeat(len(at), 1)
    rows[:, 3] = at
    rank = sinksort.soft_rank(rows, eps=eps)[:, 3]
    here = int((at - heights[3]).abs().argmin())
    axes.fill_between(at.numpy(), 0.3, rank.numpy(), color=HAIRLINE, alpha=0.55, linewidth=0)
    axes.plot(at, rank, color=INK, linewidth=2, linestyle="-")
    color = shades(5)[3]
    ball = (float(at[here]), float(rank[here]) + 0.33)
    axes.plot(*ball, "o", markersize=15, color=color, markeredgecolor=INK, markeredgewidth=1)
    slope = float((rank[here + 3] - rank[here - 3]) / (at[here + 3] - at[here - 3]))
    if slope > 0.5:
        dx = 0.24
        axes.annotate(
            "",
            (ball[0] - dx, ball[1] - slope * dx),
            ball,
            arrowprops={"arrowstyle": "-|>", "linewidth": 3, "color": color, "shrinkA": 9, "mutation_scale": 20},
        )
    axes.set(xlim=(-0.1, 1.15), ylim=(0.3, 6.0))
    axes.set_axis_off()


def staircase() -> Figure:
    """The mathematics in three matrices: an assignment, a staircase, an entropic plan."""
    x = torch.tensor([0.05, 0.24, 0.44, 0.70, 0.95], dtype=torch.float64)
    b = torch.tensor([0.48, 0.16, 0.36], dtype=torch.float64)
    hard, soft = 1e-5, 3e-1
    plans = [
        ("assignment", sinksort.transport(x, eps=hard, squash=None)),
        ("staircase, 3 targets", sinksort.transport(x, target_weights=b, eps=hard, squash=None)),
        (f"entropic, eps = {soft:g}", sinksort.transport(x, target_weights=b, eps=soft, squash=None)),
    ]
    figure = Figure(figsize=(7.4, 2.9))
    for axes, (title, plan) in zip(figure.subplots(1, 3), plans, strict=True):
        P = plan.matrix()
        axes.imshow(P, cmap="Greys", vmin=0, vmax=0.25, aspect="auto")
        for i, j in torch.cartesian_prod(torch.arange(P.shape[0]), torch.arange(P.shape[1])).tolist():
            if P[i, j] > 5e-3:
                ink = "white" if P[i, j] > 0.13 else INK
                axes.text(j, i, f"{P[i, j]:.2f}", ha="center", va="center", color=ink, fontsize=8)
        axes.set_title(title)
        axes.set(xticks=range(P.shape[1]), yticks=range(5), xlabel="target j", ylabel="value i")
        axes.set_xticklabels([str(j + 1) for j in range(P.shape[1])])
        axes.set_yticklabels([str(i + 1) for i in range(5)])
    return figure


def softness() -> Figure:
    """Over how many ranks a value is spread, against eps, for several n."""
    figure = Figure(figsize=(6.6, 3.6))
    axes = figure.subplots()
    entropies = np.logspace(-6, 0, 25)
    generator = torch.Generator().manual_seed(0)
    for n, color, dashes in zip((10, 30, 100, 300), shades(5), LINES, strict=False):
        x = torch.randn(8, n, generator=generator, dtype=torch.float64)
        spread = [float(rank_spread(x, eps=float(eps)).mean()) for eps in entropies]
        axes.loglog(entropies, spread, color=color, linestyle=dashes, linewidth=2)
        axes.text(1.25, spread[-1], f"n = {n}", color=INK, va="center")
        wanted = np.array([s for s in (0.3, 1, 3, 10, 30, 75) if s <= n / 4])
        axes.loglog([suggest_eps(n, s) for s in wanted], wanted, "o", color=color, markersize=5)
    axes.axhline(1, color=MUTED, linewidth=0.8, linestyle="-")
    axes.text(1.2e-6, 1.12, "one rank", color=MUTED, fontsize=8)
    axes.axvline(1e-2, color=MUTED, linewidth=0.8, linestyle="-")
    axes.text(1.1e-2, 0.012, "default", color=MUTED, fontsize=8)
    axes.set(xlabel="eps", ylabel="spread of a value, in ranks", ylim=(8e-3, 200), xlim=(1e-6, 1))
    axes.set_title("How soft is it?")
    return figure


def both_sides() -> Figure:
    """What goes wrong at small and at large eps: ranks, their distance from hard ones, and their slopes."""
    x = torch.randn(64, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    hard = sinksort.kantorovich_rank(x.detach())
    entropies = np.logspace(-6, 1.5, 31)
    error, slope = [], []
    for eps in entropies:
        ranks = sinksort.soft_rank(x, eps=float(eps))
        jacobian = torch.func.vmap(torch.func.jacrev(lambda row, e=float(eps): sinksort.soft_rank(row, eps=e)))
        own = jacobian(x.detach()).diagonal(dim1=-2, dim2=-1)
        error.append(float((ranks.detach() - hard).abs().mean()))
        slope.append(float(own.abs().median()))
    figure = Figure(figsize=(6.6, 4.4))
    top, bottom = figure.subplots(2, 1, sharex=True)
    top.semilogx(entropies, slope, color=BLUE, linewidth=2)
    top.set(ylabel="median slope\nranks per unit of x")
    top.set_title("Gradient: vanishes on both sides")
    bottom.semilogx(entropies, error, color=RED, linewidth=2, linestyle="--")
    bottom.set(ylabel="mean distance to\nthe hard rank", xlabel="eps  (rows of 20 normal values)")
    bottom.set_title("Error: grows with eps")
    for axes in (top, bottom):
        axes.axvspan(1e-3, 1e-1, color=HAIRLINE, alpha=0.6, linewidth=0)
    top.text(1.2e-6, 0.05 * max(slope), "steps: nothing moves", color=MUTED)
    top.text(1.3, 0.72 * max(slope), "all alike:\nnothing to learn", color=MUTED)
    return figure


def eps_training() -> Figure:
    """Test error after a short training with the top-1 loss, against eps: the quickstart, many times."""
    entropies = np.logspace(-6, 1, 15)
    errors = np.array([[_trained(float(eps), seed) for seed in range(5)] for eps in entropies])
    figure = Figure(figsize=(6.6, 3.2))
    axes = figure.subplots()
    axes.fill_between(entropies, errors.min(1), errors.max(1), color=HAIRLINE, linewidth=0)
    axes.semilogx(entropies, errors.mean(1), "o-", color=BLUE, linewidth=2)
    axes.set(xlabel="eps", ylabel="test error", ylim=(0, 1))
    axes.set_title("50 steps on digits, 40% of the labels random; mean and range of 5 seeds")
    return figure


def _trained(eps: float, seed: int) -> float:
    from sklearn.datasets import load_digits

    torch.manual_seed(seed)
    images, digits = load_digits(return_X_y=True)
    X, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
    train, test = torch.randperm(len(X)).split([400, len(X) - 400])
    labels = torch.where(torch.rand(400) < 0.4, torch.randint(10, (400,)), y[train])
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(50):
        optimizer.zero_grad()
        topk_loss(model(X[train]), labels, J="log", eps=eps).backward()
        optimizer.step()
    with torch.no_grad():
        return float(topk_error(model(X[test]), y[test]))


DRAWINGS: dict[str, Callable[[], Figure]] = {
    "idea": idea,
    "staircase": staircase,
    "softness": softness,
    "both_sides": both_sides,
    "eps_training": eps_training,
}
