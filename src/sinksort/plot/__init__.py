"""Pictures of plans, ranks and sorted values with matplotlib: each function draws on ``ax`` and returns its axes.

Without ``ax`` a new figure is made by pyplot, which a notebook shows by itself and a script with ``plt.show()``.
A value has the same colour in all pictures, dark for the smallest and light for the largest.
"""

from importlib.util import find_spec as _find_spec

if _find_spec("matplotlib") is None:
    raise ModuleNotFoundError(
        "sinksort.plot needs matplotlib, which is not installed; run: pip install 'sinksort[plot]'"
    )

from .curves import rank_curves, sorted_curves
from .plans import flow, matrix, ranks, sorted_values

__all__ = ["flow", "matrix", "rank_curves", "ranks", "sorted_curves", "sorted_values"]
