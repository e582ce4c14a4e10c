"""How a figure of the paper becomes files; its palette and type are those of all pictures, ``sinksort.plot``.

Figures are plain ``Figure`` objects: no window, no global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ..plot.style import ACCENT, HAIRLINE, INK, MUTED, TARGET, bare, look, shades

__all__ = ["ACCENT", "HAIRLINE", "INK", "MUTED", "TARGET", "bare", "look", "save", "shades"]


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
