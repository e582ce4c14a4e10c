"""The paper's Figures 1 to 3 by name, and how they are drawn into a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from . import figure1, figure2, figure3
from .style import save

FIGURES: dict[str, tuple[str, Callable[[], Figure]]] = {
    "figure1-transport": ("Figure 1, sorting as transport in three forms", figure1.draw),
    "figure2-entropy": ("Figure 2, ranks and sorted values as eps grows", figure2.draw),
    "figure3-quantile": ("Figure 3, the 30% quantile of 20 values", figure3.draw),
}


def draw_all(out: Path, console: Console) -> list[Path]:
    """Draw the figures into ``out``; the files written."""
    written: list[Path] = []
    columns = (SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}"), BarColumn(bar_width=20))
    with Progress(*columns, console=console) as progress:
        tasks = {name: progress.add_task(title, total=1) for name, (title, _) in FIGURES.items()}
        for name, (_, draw) in FIGURES.items():
            written += save(draw(), out, name)
            progress.advance(tasks[name])
    return written
