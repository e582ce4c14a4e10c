"""One look for all pictures: palette and type.

A value keeps its colour from picture to picture: dark for the smallest, light for the largest. Lightness rises along
the palette, so the order survives a grayscale print.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex

from ..snapshot import Array

INK = "#1f2430"
MUTED = "#6b7280"
HAIRLINE = "#d5d9e0"
TARGET = "#4b5263"
ACCENT = "#b3261e"

#: White where there is no mass, dark where there is most.
MASS = LinearSegmentedColormap.from_list("sinksort-mass", ["#ffffff", "#c4d5ea", "#6c96c9", "#24478f", "#160d33"])

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


def shades_of(x: Array) -> list[str]:
    """The colour of each value of ``x``, by its place in the order."""
    palette = shades(len(x))
    return [palette[place] for place in np.argsort(np.argsort(x, kind="stable"), kind="stable")]


def bare(axes: Axes) -> None:
    """An axes that is a drawing, not a graph."""
    axes.set_axis_off()
