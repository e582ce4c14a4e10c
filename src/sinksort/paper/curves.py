"""Pictures of runs: one panel a case, one line a method, with the deviation over runs as a shade."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .results import Unit, groups, summarise
from .rows import own_settings, unusual_own
from .style import ACCENT, look, shades

NAMES = {
    "hard": "eps = 0",
    "soft": "eps > 0",
    "transport": "transport (ours)",
    "transport-raw": "transport, scores as they are",
    "neuralsort": "NeuralSort, deterministic",
    "neuralsort-stochastic": "NeuralSort, stochastic",
    "softrank": "SoftRank (2008)",
    "pairwise": "pairwise ranks (2010)",
    "cross-entropy": "cross-entropy",
    "cross-entropy-tempered": "cross-entropy of logits",
    "top1": "0/1 loss, k = 1",
    "top1-log": "0/1 loss, k = 1, concave J",
    "top1-raw": "0/1 loss, k = 1, concave J, logits as they are",
    "top1-svm": "smooth top-1 SVM loss",
    "top5": "top-5 loss, k = 5",
    "top5-log": "top-5 loss, k = 5, concave J",
    "top5-raw": "top-5 loss, k = 5, concave J, logits as they are",
    "top5-svm": "smooth top-5 SVM loss",
    "sinkhorn": "Sinkhorn from zero (the paper's)",
    "schedule": "Sinkhorn with the authors' schedule",
    "newton": "Newton",
    "newton-exact": "Newton, to a marginal error of 1e-10",
}

_DARK, _BLUE, _GREEN, _LIGHT = (shades(5)[k] for k in (0, 1, 3, 4))
# What the library adds in red, what it is compared to in the order of the palette; more lines of a colour are dashed.
COLOURS = {
    "transport": ACCENT,
    "transport-raw": _GREEN,
    "neuralsort": _DARK,
    "neuralsort-stochastic": _BLUE,
    "softrank": _LIGHT,
    "pairwise": _LIGHT,
    "cross-entropy": _DARK,
    "cross-entropy-tempered": _DARK,
    "top1": ACCENT,
    "top1-log": _GREEN,
    "top1-raw": ACCENT,
    "top1-svm": _LIGHT,
    "top5": _BLUE,
    "top5-log": _LIGHT,
    "top5-raw": _BLUE,
    "top5-svm": _LIGHT,
    "sinkhorn": _DARK,
    "schedule": _BLUE,
    "newton": ACCENT,
    "newton-exact": ACCENT,
}
SHADE = "The shade is one standard deviation over runs, to both sides of their mean."
_ACROSS = 3  #: panels side by side


def called(unit: Unit) -> str:
    """A method's name, and what the settings of the table it stands in do not say."""
    method, own = unit["method"], dict(own_settings(unit))
    if "raw_eps" in own:
        return f"{NAMES[method]}, eps = {own['raw_eps']:g}"
    if "temperature" in own:
        return f"{NAMES[method]} / {own['temperature']:g}"
    return ", ".join([NAMES[method], *unusual_own(unit)])


def common_epochs(units: Sequence[Unit]) -> list[int]:
    """The epochs at which all of these runs were measured."""
    shared = set.intersection(*({point["epoch"] for point in unit["curve"]} for unit in units))
    return sorted(shared)


def curves(units: Sequence[Unit], name: str, label: str, title: Callable[[str], str]) -> Figure:
    """Number ``name`` by epoch. A method looks the same in all panels."""
    by_case = groups(units, lambda u: u["case"])
    looks = looks_of(units)
    with look():
        figure, panels = grid_of(len(by_case))
        for axes, (case, made) in zip(panels, by_case.items(), strict=True):
            for method, runs in groups(made, called).items():
                _line(axes, method, runs, looks[method], name)
            axes.set(xlabel="epoch", ylabel=label, title=title(case))
        legend(figure, panels, list(looks))
    return figure


def grid_of(count: int) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, at most three of them side by side."""
    across = 2 if count == 4 else min(count, _ACROSS)
    down = -(-count // across)
    figure = Figure(figsize=(4.4 * max(across, 1.4), 3.4 * down))
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in panels[count:]:
        axes.remove()
    return figure, panels[:count]


def legend(figure: Figure, panels: Sequence[Axes], names: Sequence[str]) -> None:
    """One for all panels, below them."""
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    figure.tight_layout()
    handles = [lines[name] for name in names]
    figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=2, frameon=False, fontsize=8)


def looks_of(units: Sequence[Unit]) -> dict[str, tuple[str, str]]:
    """Colour and dashes of each method, by its name."""
    styles = ("-", "--", ":", "-.")
    looks: dict[str, tuple[str, str]] = {}
    for method, runs in groups(units, called).items():
        colour = COLOURS[runs[0]["method"]]
        taken = sum(colour == other for other, _ in looks.values())
        looks[method] = colour, styles[taken % len(styles)]
    return looks


def _line(axes: Axes, label: str, runs: Sequence[Unit], style: tuple[str, str], name: str) -> None:
    epochs = common_epochs(runs)
    by_epoch = [{point["epoch"]: point[name] for point in unit["curve"]} for unit in runs]
    points = [summarise(numbers[epoch] for numbers in by_epoch) for epoch in epochs]
    means = [point.mean for point in points]
    axes.plot(epochs, means, style[1], color=style[0], label=label, linewidth=1.6, marker="o", markersize=2.5)
    low, high = ([p.mean + sign * p.deviation for p in points] for sign in (-1, 1))
    axes.fill_between(epochs, low, high, color=style[0], alpha=0.15, linewidth=0)
