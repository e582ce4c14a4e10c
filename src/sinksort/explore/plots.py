"""The five plots of the page: glyphs over columns that ``picture`` computes, and nothing that computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bokeh.core.properties import value
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
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
from .picture import ALPHA, BAR, SQUASHED, Axis, Columns, Picture, arrows, hard_cells, heads, targets, values
from .state import READS

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


class Plots:
    """All plots, and the columns they share."""

    def __init__(self) -> None:
        self.width = 560.0  # of the plan's frame in pixels, until a browser says how wide it is
        small_to_large = LinearColorMapper(palette=_VALUES, low=0.0, high=1.0)
        self.colour = {"field": "shade", "transform": small_to_large}
        self.values = ColumnDataSource(name="values")
        self.targets = ColumnDataSource(name="targets")
        self.arrows = ColumnDataSource(name="arrows")
        self.heads = ColumnDataSource(name="heads")
        self.hard_cells = ColumnDataSource(name="hard_cells")
        self.image = ColumnDataSource(name="image")
        self.written = ColumnDataSource(name="written")
        self.flow, self.value_axis = self._flow()
        self.matrix = self._matrix()
        self.ranks = self._ranks()
        self.sorted = self._sorted()
        self.gradient = self._gradient()

    def show(self, picture: Picture, axis: Axis) -> None:
        """Draw ``picture``, with values where ``axis`` says."""
        row = picture.row
        n, m = row.P.shape
        columns = values(picture, axis)
        _put(self.values, columns)
        _put(self.targets, targets(picture))
        self.written.data = _written(picture, columns["place"])
        self.flow.yaxis.ticker.ticks = [
            at for at in _LEVELS if at not in (_RANKS, _SORTED) or at in self.written.data["height"]
        ]
        _set(self.flow.x_range, axis.left, axis.right)
        _set(self.value_axis, *axis.ends)

        self.image.data = {"image": [row.P], "x": [0.5], "y": [0.5], "dw": [m], "dh": [n]}
        cells = hard_cells(picture)
        cells["size"] = np.full(len(cells["value"]), np.clip(130 / max(n, m), 1.5, 7.0))
        _put(self.hard_cells, cells)
        _set(self.matrix.x_range, 0.5, m + 0.5)
        _set(self.matrix.y_range, n + 0.5, 0.5)

        _set(self.ranks.x_range, *axis.ends)
        _set(self.ranks.y_range, *_around([1.0, n, *row.ranks, *row.hard_ranks]))
        _set(self.sorted.x_range, *_around([1.0, m], above=0.08))
        _set(self.sorted.y_range, *_around([*row.sorted, *row.hard_sorted]))
        _set(self.gradient.x_range, *axis.ends)
        _set(self.gradient.y_range, *_around([0.0, *picture.gradient, *picture.hard_gradient]))
        self.gradient.title.text = f"Gradient of {READS[picture.state.reads]} {picture.state.index + 1}"
        # Last, as it is the largest: who waits for this has waited for all.
        self.heads.data = heads(picture, self.pixels(axis))
        self.arrows.data = arrows(picture, self.pixels(axis))

    def pixels(self, axis: Axis) -> float:
        """Of one unit of the axis of targets."""
        return self.width / (axis.right - axis.left)

    # ---- one method a plot

    def _flow(self) -> tuple[figure, Range1d]:
        plot = _plot("Transport plan: values send mass to targets, arrows as wide as the mass", "flow")
        plot.y_range = Range1d(-0.15, 1.17)
        value_axis = Range1d(-1.0, 1.0)
        plot.extra_x_ranges = {"values": value_axis}
        plot.xaxis.visible = False
        below = LinearAxis(x_range_name="values", axis_label="value x")
        plot.add_layout(below, "below")
        _quiet(below)
        plot.yaxis.ticker = FixedTicker(ticks=list(_LEVELS))
        plot.yaxis.major_label_overrides = _LEVELS
        plot.yaxis.axis_line_color = None
        plot.yaxis.major_tick_line_color = None

        plot.segment("place", 0.0, "squashed", SQUASHED, source=self.values, line_color=MUTED, line_width=1)
        colour = self.colour
        plot.bezier(
            "x0", "y0", "x1", "y1", "x0", "cy0", "x1", "cy1",
            source=self.arrows, line_color=colour, line_width="width", line_alpha="alpha", line_cap="butt",
        )  # fmt: skip
        plot.patches("xs", "ys", source=self.heads, fill_color=colour, fill_alpha=ALPHA, line_color=None)
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
            "place", "height", text="text", source=self.written, text_align="center", text_baseline="middle",
            text_font=value(_FONT), text_font_size="12px", text_color=INK, text_font_style="bold",
        )  # fmt: skip
        about = [("value @number", "@x{0.0000}"), ("soft rank", "@rank{0.00}"), ("hard rank", "@hard_rank{0.00}")]
        plot.add_tools(HoverTool(renderers=[handles], tooltips=[*about, ("weight", "@weight{0.0000}")]))
        about = [("target @number", "@place{0.00}"), ("soft sorted", "@sorted{0.0000}")]
        about += [("hard sorted", "@hard_sorted{0.0000}"), ("weight", "@weight{0.0000}")]
        plot.add_tools(HoverTool(renderers=[bars], tooltips=about))
        return plot, value_axis

    def _matrix(self) -> figure:
        plot = _plot("Plan as a matrix (dots: hard sort)", "matrix", x="target j", y="value i")
        dark = LinearColorMapper(palette=_MASSES, low=0.0)
        cells = plot.image("image", "x", "y", "dw", "dh", source=self.image, color_mapper=dark)
        plot.scatter(
            "target", "value", source=self.hard_cells, marker="circle", size="size", fill_color=ACCENT,
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
        plot = _plot("Soft ranks beside hard ones", "ranks", x="value x", y="rank")
        self._soft_and_hard(plot, self.values, "x", "rank", "hard_rank")
        return plot

    def _sorted(self) -> figure:
        plot = _plot("Soft sorted values beside hard ones", "sorted", x="target j", y="value")
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
            legend_label="hard",
        )  # fmt: skip
        dots = plot.scatter(
            at, soft, source=source, size="dot", fill_color=fill, line_color=INK, line_width=0.6, legend_label="soft"
        )
        shown = "value" if source is self.values else "target"
        about = [(f"{shown} @number", "@x{0.0000}" if source is self.values else "")]
        plot.add_tools(
            HoverTool(
                renderers=[dots], tooltips=[*about, ("soft", f"@{soft}{{0.0000}}"), ("hard", f"@{hard}{{0.0000}}")]
            )
        )
        _legend(plot)


def _written(picture: Picture, places: Array) -> dict[str, object]:
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
    plot.grid.grid_line_color = None if name in ("flow", "matrix") else HAIRLINE
    plot.xgrid.grid_line_color = None
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


def _legend(plot: figure) -> None:
    """In the line of the title, at its end."""
    (legend,) = plot.legend
    legend.orientation = "horizontal"
    legend.location = "top_right"
    legend.border_line_color = None
    legend.background_fill_alpha = 0.7
    legend.label_text_font = _FONT
    legend.label_text_font_size = "11px"
    legend.label_text_color = INK
    legend.padding, legend.margin, legend.spacing, legend.glyph_width = 0, 2, 8, 16


def _whole(plot: figure, which: str) -> None:
    """Ticks at whole numbers."""
    for axis in plot.axis if which == "both" else plot.xaxis:
        axis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)


def _put(source: ColumnDataSource, columns: Columns) -> None:
    """New columns, sent to the browser only if they are other than those it has."""
    old = source.data
    if old.keys() != columns.keys() or not all(np.array_equal(old[name], columns[name]) for name in columns):
        source.data = columns


def _set(span: Range1d, start: float, end: float) -> None:
    span.update(start=float(start), end=float(end))


def _around(numbers: Sequence[float], above: float = 0.25) -> tuple[float, float]:
    """A range that holds the numbers, with room for a legend above them."""
    low, high = float(min(numbers)), float(max(numbers))
    span = high - low if high - low > 1e-12 * max(1.0, abs(high)) else max(1.0, abs(high))
    return low - 0.08 * span, high + above * span
