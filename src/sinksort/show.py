"""A plan shown in a prompt, a terminal and a notebook: one line, a table of shades, a small picture.

Of a plan of many rows the first one is shown. NumPy is enough for the line, rich draws the table, matplotlib the
picture; neither is imported before it is asked for.
"""

from __future__ import annotations

import base64
import html
import io
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from .core.modes import hidden
from .core.plan import Plan
from .snapshot import Array, Snapshot, snapshot

if TYPE_CHECKING:
    from rich.panel import Panel

_SHADES = " ░▒▓█"
_MOST_ROWS, _MOST_COLUMNS = 16, 32  # of a table; more values are left out, more targets are added up
_ARROWS_UP_TO = 30  # values or targets, in a small picture; more are drawn as a matrix


def facts(plan: Plan) -> dict[str, str]:
    """What a plan is and how well it was solved, in words. Values are not looked at where they are not there yet."""
    p = plan.problem
    *batch, n = p.x.shape
    m = p.y.shape[-1]
    size = {"values": f"{n:,}", "targets": f"{m:,}"}
    if batch:
        size = {"rows": " x ".join(f"{k:,}" for k in batch), **{f"{name} a row": many for name, many in size.items()}}
    if hidden(p.eps) or p.eps.is_meta or p.eps.numel() == 0:
        return size
    low, high = p.eps.min().item(), p.eps.max().item()
    missed = int((~plan.converged).sum())
    return {
        **size,
        "eps": f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}",
        "iterations": f"{int(plan.iterations.max())}",
        "marginal error": f"{plan.marginal_error.max().item():.1e}",
        "converged": "yes" if missed == 0 else f"no, {missed} of {plan.converged.numel()} rows did not",
    }


def as_line(plan: Plan) -> str:
    """``Plan(values 5, targets 5, eps 0.01, ...)``: what a prompt shows."""
    return f"Plan({', '.join(f'{name} {value}' for name, value in facts(plan).items())})"


def as_table(plan: Plan) -> Panel:
    """For rich: the plan as shades (of each value's mass), with the ranks at its side and the sorted values below."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    row = _first(plan)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("soft rank", justify="right", style="bold", no_wrap=True)
    table.add_column("where its mass goes", no_wrap=True)
    for value, rank, shades in zip(row.x, row.ranks, _shaded(row.P), strict=False):  # the first rows have shades
        table.add_row(f"{value:.4g}", f"{rank:.2f}", shades)
    if len(row.x) > _MOST_ROWS:
        table.add_row("...", "", f"and {len(row.x) - _MOST_ROWS} more")
    ordered = ", ".join(f"{value:.4g}" for value in row.sorted[:8])
    below = Text.assemble(("\nsoft sorted ", "dim"), (ordered + (", ..." if len(row.sorted) > 8 else ""), "bold"))
    known = facts(plan)
    solved = ", ".join(f"{name} {known.pop(name)}" for name in ("iterations", "marginal error", "converged"))
    title = f"Plan: {', '.join(f'{name} {value}' for name, value in known.items())}"
    return Panel(Group(table, below, Text(solved, style="dim")), title=title, expand=False)


def as_html(plan: Plan) -> str:
    """For a notebook: the facts, and the picture where matplotlib is installed."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in facts(plan).items()
    )
    picture = as_png(plan)
    drawn = ""
    if picture is not None:
        what = "Transport plan: values below, targets above" if _small(_first(plan)) else "Transport plan as a matrix"
        source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        drawn = f"<img alt='{what}' style='max-width:26em' src='{source}'>"
    return (
        "<div style='display:flex;flex-wrap:wrap;gap:1em;align-items:center'>"
        f"<table><caption style='text-align:left'><b>sinksort.Plan</b></caption>{cells}</table>{drawn}</div>"
    )


def as_png(plan: Plan) -> bytes | None:
    """A small picture of the (first) row: arrows of few values, a matrix of many. None without matplotlib."""
    if find_spec("matplotlib") is None or plan.problem.eps.numel() == 0:
        return None
    from matplotlib.figure import Figure

    from .plot.plans import draw_flow, draw_matrix
    from .plot.style import look

    row = _first(plan)
    written = io.BytesIO()
    with look():
        figure = Figure(figsize=(5.2, 3.2), layout="constrained")
        (draw_flow if _small(row) else draw_matrix)(row, figure.subplots())
        figure.savefig(written, format="png", dpi=110)
    return written.getvalue()


def _first(plan: Plan) -> Snapshot:
    return snapshot(plan, (0,) * (plan.problem.a.ndim - 1))


def _small(row: Snapshot) -> bool:
    return len(row.x) <= _ARROWS_UP_TO and len(row.y) <= _ARROWS_UP_TO


def _shaded(P: Array) -> list[str]:
    """A line of block characters for each of the first values: what share of its mass goes where.

    Targets are added up in bunches where they are too many. The largest share that is shown is the darkest.
    """
    m = P.shape[1]
    bunch = -(-m // _MOST_COLUMNS)
    width = 1 if m > _MOST_COLUMNS // 2 else 2  # characters are taller than wide
    shares = np.add.reduceat(P[:_MOST_ROWS], np.arange(0, m, bunch), axis=1) / P[:_MOST_ROWS].sum(1, keepdims=True)
    dark = np.minimum(4, 4 * shares / shares.max() + 0.9).astype(int)
    return ["".join(_SHADES[level] * width for level in line) for line in dark]
