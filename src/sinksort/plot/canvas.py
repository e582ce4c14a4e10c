"""Where a picture is drawn: on the axes that came, or on those of a new figure."""

from __future__ import annotations

from matplotlib.axes import Axes


def canvas(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """``ax`` itself, or the axes of a new pyplot figure of ``size`` inches."""
    if ax is None:
        import matplotlib.pyplot as plt  # chooses a backend, which nobody needs who brings their own axes

        return plt.subplots(figsize=size, layout="constrained")[1]
    if not isinstance(ax, Axes):
        raise TypeError(
            f"ax must be a matplotlib Axes, got {type(ax).__name__}; make one with plt.subplots(), or leave it out."
        )
    return ax
