"""The five plots of the page: glyphs over columns that ``picture`` computes, and nothing that computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.core.properties import value
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJS,
    FixedTicker,
    HoverTool,
    LinearAxis,
    LinearColorMapper,
    Range1d,
    Span,
)
from bokeh.plotting import figure
from matplotlib.colors import to_hex

from ..plot.style import ACCENT, HAIRLINE, INK, MASS, MUTED, TARGET, shades
from ..snapshot import Array
from .picture import ALPHA, BAR, FOOT, SQUASHED, TIP, Axis, Picture, arrows, hard_cells, heads, targets, values
from .state import READS
from .wire import Table

_FONT = "system-ui, sans-serif"
_VALUES, _MASSES = shades(256), [to_hex(MASS(k / 255)) for k in range(256)]
_WRITTEN = 12  # more numbers than this would run into each other
_RANKS, _SORTED = -0.095, 1.1  # heights of the numbers
_LEVELS: dict[float | str, str] = {
    _RANKS: "soft ranks",
    0.0: "drag values",
    SQUASHED + BAR / 2: "squashed",
    1.0 + BAR / 2: "targets",
    _SORTED: "soft sorted",
}
_HUSH = """
const view = Bokeh.index.find_one(plot)
for (const hover of plot.toolbar.tools) {
  hover.active = cb_obj.event_name == "panend"
  view.tool_views.get(hover)?._clear?.()
}
"""


class Plots:
    """All plots, and the columns they share."""

    def __init__(self) -> None:
        self.width = 560.0  # of the plan's frame in pixels, until a browser says how wide it is
        small_to_large = LinearColorMapper(palette=_VALUES, low=0.0, high=1.0)
        self.colour = {"field": "shade", "transform": small_to_large}
        names = ("values", "targets", "arrows", "heads", "hard_cells", "image", "written")
        self.sources = {name: ColumnDataSource(name=name) for name in names}
        self.values, self.targets = self.sources["values"], self.sources["targets"]
        self.flow, self.value_axis = self._flow()
        self.matrix = self._matrix()
        self.ranks = self._ranks()
        self.sorted = self._sorted()
        self.gradient = self._gradient()
        self.ranges: dict[str, Range1d] = {"flow x": self.flow.x_range, "flow values": self.value_axis}
        for plot in (self.matrix, self.ranks, self.sorted, self.gradient):
            self.ranges |= {f"{plot.name} x": plot.x_range, f"{plot.name} y": plot.y_range}

    def tables(self, picture: Picture, axis: Axis) -> dict[str, Table]:
        """The columns of every source, with values where ``axis`` says."""
        row = picture.row
        n, m = row.P.shape
        columns = values(picture, axis)
        cells = hard_cells(picture)
        cells["size"] = np.full(len(cells["value"]), np.clip(130 / max(n, m), 1.5, 7.0))
        return {
            "values": columns,
            "targets": targets(picture),
            "written": _written(picture, columns["place"]),
            "image": {"image": [row.P.astype(np.float32)], "x": [0.5], "y": [0.5], "dw": [m], "dh": [n]},
            "hard_cells": cells,
            "heads": heads(picture, self.pixels(axis)),
            "arrows": arrows(picture, self.pixels(axis)),
        }

    def spans(self, picture: Picture, axis: Axis) -> dict[str, tuple[float, float]]:
        """Both ends of every range."""
        row = picture.row
        n, m = row.P.shape
        return {
            "flow x": (axis.left, axis.right),
            "flow values": axis.ends,
            "matrix x": (0.5, m + 0.5),
            "matrix y": (n + 0.5, 0.5),
            "ranks x": axis.ends,
            "ranks y": _around([1.0, n, *row.ranks, *row.hard_ranks]),
            "sorted x": _around([1.0, m]),
            "sorted y": _around([*row.sorted, *row.hard_sorted]),
            "gradient x": axis.ends,
            "gradient y": _around([0.0, *_coarse(picture.gradient), *picture.hard_gradient]),
        }

    def label(self, picture: Picture) -> None:
        """Words that a change of numbers leaves alone: Bokeh sends them only where they differ."""
        n, m = picture.row.P.shape
        crowded = {height for height, count in ((_RANKS, n), (_SORTED, m)) if count > _WRITTEN}
        self.flow.yaxis.ticker.ticks = [at for at in _LEVELS if at not in crowded]
        self.gradient.title.text = f"Gradient of {READS[picture.state.reads]} {picture.state.index + 1}"

    def pixels(self, axis: Axis) -> float:
        """Of one unit of the axis of targets."""
        return self.width / (axis.right - axis.left)

    # ---- one method a plot

    def _flow(self) -> tuple[figure, Range1d]:
        plot = _plot("Transport plan: width is mass", "flow")
        plot.y_range = Range1d(-0.15, 1.17)
        value_axis = Range1d(-1.0, 1.0)
        plot.extra_x_ranges = {"values": value_axis}
        (below,) = plot.below
        below.x_range_name, below.axis_label = "values", "value x"
        plot.yaxis.ticker = FixedTicker(ticks=list(_LEVELS))
        plot.yaxis.major_label_overrides = _LEVELS
        plot.yaxis.axis_line_color = None
        plot.yaxis.major_tick_line_color = None

        plot.segment("place", 0.0, "squashed", SQUASHED, source=self.values, line_color=MUTED, line_width=1)
        colour, third = self.colour, (TIP - FOOT) / 3
        plot.bezier(
            "x0", FOOT, "x1", "y1", "x0", FOOT + third, "x1", TIP - third,
            source=self.sources["arrows"], line_color=colour, line_width="width", line_alpha="alpha", line_cap="butt",
        )  # fmt: skip
        plot.patches("xs", "ys", source=self.sources["heads"], fill_color=colour, fill_alpha=ALPHA, line_color=None)
        plot.quad(
            left="left", right="right", bottom=SQUASHED, top=SQUASHED + BAR, source=self.values,
            fill_color=colour, line_color=None,
        )  # fmt: skip
        bars = plot.quad(
            left="left", right="right", bottom=1.0, top=1.0 + BAR, source=self.targets,
            fill_color=TARGET, line_color=ACCENT, line_width=3, line_alpha="chosen",
        )  # fmt: skip
        handles = plot.scatter(
            "place", 0.0, source=self.values, size="handle", fill_color=colour, line_color=INK, line_width="ring"
        )
        plot.text(
            "place", "height", text="text", source=self.sources["written"], text_align="center", text_baseline="middle",
            text_font=value(_FONT), text_font_size="12px", text_color=INK, text_font_style="bold",
        )  # fmt: skip
        about = [("value @number", "@x{0.0000}"), ("soft rank", "@rank{0.00}"), ("hard rank", "@hard_rank{0.00}")]
        plot.add_tools(HoverTool(renderers=[handles], tooltips=[*about, ("weight", "@weight{0.0000}")]))
        about = [("target @number", "@place{0.00}"), ("soft sorted", "@sorted{0.0000}")]
        about += [("hard sorted", "@hard_sorted{0.0000}"), ("weight", "@weight{0.0000}")]
        plot.add_tools(HoverTool(renderers=[bars], tooltips=about))
        # Who drags does not read: words that follow the hand hide what it does, and take longer than the plan.
        hovers = CustomJS(args={"plot": plot}, code=_HUSH)
        plot.js_on_event("panstart", hovers)
        plot.js_on_event("panend", hovers)
        return plot, value_axis

    def _matrix(self) -> figure:
        plot = _plot("Plan as a matrix (dots: hard sort)", "matrix", x="target j", y="value i")
        dark = LinearColorMapper(palette=_MASSES, low=0.0)
        cells = plot.image("image", "x", "y", "dw", "dh", source=self.sources["image"], color_mapper=dark)
        plot.scatter(
            "target", "value", source=self.sources["hard_cells"], marker="circle", size="size", fill_color=ACCENT,
            line_color="white", line_width=0.8,
        )  # fmt: skip
        plot.add_tools(
            HoverTool(
                renderers=[cells],
                tooltips=[("value", "$y{0}"), ("target", "$x{0}"), ("mass", "@image{0.000000}")],
            )
        )
        _whole(plot, "both")
        return plot

    def _ranks(self) -> figure:
        plot = _plot("Ranks: soft (dots), hard (squares)", "ranks", x="value x", y="rank")
        self._soft_and_hard(plot, self.values, "x", "rank", "hard_rank")
        return plot

    def _sorted(self) -> figure:
        plot = _plot("Sorted: soft (dots), hard (squares)", "sorted", x="target j", y="value")
        self._soft_and_hard(plot, self.targets, "number", "sorted", "hard_sorted")
        _whole(plot, "x")
        return plot

    def _gradient(self) -> figure:
        plot = _plot("Gradient", "gradient", x="value x", y="slope")
        plot.add_layout(Span(location=0.0, dimension="width", line_color=MUTED, line_width=1))
        plot.segment("x", 0.0, "x", "gradient", source=self.values, line_color=INK, line_width=2)
        self._soft_and_hard(plot, self.values, "x", "gradient", "hard_gradient")
        return plot

    def _soft_and_hard(self, plot: figure, source: ColumnDataSource, at: str, soft: str, hard: str) -> None:
        fill = self.colour if source is self.values else TARGET
        plot.scatter(
            at, hard, source=source, marker="square", size="size", fill_color=None, line_color=INK, line_width=1.4,
        )  # fmt: skip
        dots = plot.scatter(at, soft, source=source, size="dot", fill_color=fill, line_color=INK, line_width=0.6)
        shown = "value" if source is self.values else "target"
        about = [(f"{shown} @number", "@x{0.0000}" if source is self.values else "")]
        plot.add_tools(
            HoverTool(
                renderers=[dots], tooltips=[*about, ("soft", f"@{soft}{{0.0000}}"), ("hard", f"@{hard}{{0.0000}}")]
            )
        )


def _written(picture: Picture, places: Array) -> dict[str, list[Any]]:
    """Soft ranks below the values and soft sorted values above the targets, where there is room."""
    row = picture.row
    at: list[float] = []
    height: list[float] = []
    text: list[str] = []
    for where, level, shown in (
        (places, _RANKS, [f"{rank:.2f}" for rank in row.ranks]),
        (row.y, _SORTED, [f"{v:.3g}" for v in row.sorted]),
    ):
        if len(where) <= _WRITTEN:
            at += apart(where, 0.075).tolist()
            height += [level] * len(where)
            text += shown
    return {"place": at, "height": height, "text": text}


def apart(places: Array, gap: float) -> Array:
    """The places, moved as little as keeps each ``gap`` from the next: those that crowd share their middle."""
    order = places.argsort(kind="stable")
    steps = gap * np.arange(len(places))
    # Less its step, a sequence with gaps is one that does not fall: pool neighbours that do (isotonic regression).
    pools: list[tuple[float, int]] = []
    for place in places[order] - steps:
        mean, many = float(place), 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, many = (mean * many + other * more) / (many + more), many + more
        pools.append((mean, many))
    moved = np.empty(len(places))
    moved[order] = np.repeat([mean for mean, _ in pools], [many for _, many in pools]) + steps
    return moved


def _plot(title: str, name: str, x: str = "", y: str = "") -> figure:
    plot = figure(
        title=title,
        name=name,
        tools="",
        toolbar_location=None,
        x_range=Range1d(0.0, 1.0),
        y_range=Range1d(0.0, 1.0),
        sizing_mode="stretch_both",
        min_width=180,
        min_height=150,
        background_fill_color="#ffffff",
        border_fill_color="#ffffff",
        outline_line_color=None,
    )
    plot.title.text_font = _FONT
    plot.title.text_font_size = "12.5px"
    plot.title.text_color = INK
    # What is not seen takes time all the same when it is painted: no grids but the lines behind numbers.
    plot.ygrid.grid_line_color = HAIRLINE
    plot.center = [] if name in ("flow", "matrix") else list(plot.ygrid)
    plot.xaxis.axis_label, plot.yaxis.axis_label = x, y
    for axis in plot.axis:
        _quiet(axis)
    return plot


def _quiet(axis: LinearAxis) -> None:
    axis.axis_line_color = MUTED
    axis.major_tick_line_color = MUTED
    axis.minor_tick_line_color = None
    axis.major_label_text_color = INK
    axis.major_label_text_font = _FONT
    axis.major_label_text_font_size = "11px"
    axis.axis_label_text_font = _FONT
    axis.axis_label_text_font_size = "11px"
    axis.axis_label_text_font_style = "normal"
    axis.axis_label_text_color = MUTED
    axis.axis_label_standoff = 2


def _whole(plot: figure, which: str) -> None:
    """Ticks at whole numbers."""
    for axis in plot.axis if which == "both" else plot.xaxis:
        axis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)


def _coarse(numbers: Array) -> tuple[float, float]:
    """Least and largest, rounded outwards so far that an axis seldom moves under the eye."""
    size = float(np.abs(numbers).max())
    if size == 0.0:
        return 0.0, 0.0
    power = 10.0 ** np.floor(np.log10(size))
    step = power * next(digit for digit in (1, 2, 5, 10) if size <= digit * power * (1 + 1e-9)) / 4
    return float(np.floor(numbers.min() / step) * step), float(np.ceil(numbers.max() / step) * step)


def _around(numbers: Sequence[float]) -> tuple[float, float]:
    """A range that holds the numbers, with a little room."""
    low, high = float(min(numbers)), float(max(numbers))
    span = high - low if high - low > 1e-12 * max(1.0, abs(high)) else max(1.0, abs(high))
    return low - 0.08 * span, high + 0.08 * span
