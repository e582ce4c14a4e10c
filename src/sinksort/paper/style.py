"""One look for all figures: palette, type, and how a figure becomes files.

A value keeps its colour from figure to figure: dark for the smallest, light for the largest. Lightness rises along the
palette, so the order survives a grayscale print. Figures are plain ``Figure`` objects: no window, no global state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure

INK = "#1f2430"
MUTED = "#6b7280"
HAIRLINE = "#d5d9e0"
TARGET = "#4b5263"
ACCENT = "#b3261e"

_SMALL_TO_LARGE = LinearSegmentedColormap.from_list(
    "sinksort", ["#2b1a5a", "#24478f", "#1d7f93", "#52ae7c", "#b7c957", "#f4c95d"]
)

_LOOK: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "mathtext.fontset": "dejavusans",
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlepad": 10,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.solid_capstyle": "round",
    "savefig.facecolor": "white",
    "svg.hashsalt": "sinksort",  # the same figure gives the same bytes
}


@contextmanager
def look() -> Iterator[None]:
    """Everything drawn or saved inside has the common look."""
    with mpl.rc_context(_LOOK):
        yield


def shades(n: int) -> list[str]:
    """``n`` colours from the smallest value's to the largest's."""
    return [to_hex(_SMALL_TO_LARGE(i / max(1, n - 1))) for i in range(n)]


def save(
    figure: Figure, folder: Path, name: str, *, formats: Sequence[str] = ("png", "svg"), dpi: int = 200
) -> list[Path]:
    """Write ``figure`` to ``folder/name.png`` and ``.svg``; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in formats]
    with look():
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=dpi, bbox_inches="tight", pad_inches=0.12, metadata=metadata)
    return paths


def bare(axes: Axes) -> None:
    """An axes that is a drawing, not a graph."""
    axes.set_axis_off()
