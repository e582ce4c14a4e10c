"""Where the hard sort passes from one target to the next: what the potentials of every start are made of.

Sources in increasing order fill the targets one after the other. A target is full inside a source, or, to rounding,
between two; then any place between these is as good, and the middle is taken, as in ``solvers.start``. Others find the
same in their own way: rows in lanes (``lanes.plan``) have as many cuts as lanes, values of equal weight
(``lanes.band``) are counted, once for sixteen rows, and where targets are few (``thresholds.sums``) nothing is
sorted.
"""

from __future__ import annotations

import numpy as np

from .compile import borrowing
from .maths import F32, F64

#: Cumulative weights closer than this are the same: of weights in double precision, as in ``solvers.start``, and of
#: weights that were rounded to single precision.
SAME_MASS, SAME_MASS_SINGLE = 1e-9, 2e-6


@borrowing
def passages(x: F64, a: F64 | F32, n: int, b: F64, K: int, same: float, z: F64) -> None:
    """z[j] is where sources x of weight a pass from target j to target j + 1, for all but the last of K."""
    before, after, level = 0, 0, 0.0
    up_to_before = up_to_after = np.float64(a[0])
    for j in range(K - 1):
        level += b[j]
        while before < n - 1 and up_to_before < level - same:
            before += 1
            up_to_before += a[before]
        while after < n - 1 and up_to_after <= level + same:
            after += 1
            up_to_after += a[after]
        z[j] = 0.5 * (x[before] + x[after])
