"""The plan of a row as the backward pass of ``solve`` wants it: to the last digit what its reader had.

What     E of a band whose rows, or whose columns, are exact whatever rounding left in the potentials.
When     Once a row, before the linear system of the gradient.
Why      C / eps is rounded to 1e-10 at eps = 1e-6, and gradients are made of terms over eps. Where these cancel, they
         do so only if ``read`` and ``solve`` normalise the plan in the same way.
Keeps    Nothing.
"""

from __future__ import annotations

from ..engine.compile import jit_no_refcount
from ..engine.maths import F64
from ..engine.vectors import load64, select, splat64, store64, total64
from .costs import MATRIX, costs_into
from .lines import LARGEST, exponentials_into
from .work import GAMMA, A, B, Work, X, Y


@jit_no_refcount
def normalise(w: Work, groups: int) -> None:
    """Make the rows of the plan exact: sum_j b_j E_ij = 1.

    With F they are so up to the rounding of C / eps, which is 1e-10 at eps = 1e-6. Where a gradient vanishes, large
    terms that come from here cancel others that come from ``read``, which normalises its rows in this way.
    """
    E, b = w.band.G, w.targets[B]
    for g in range(groups):
        first, end = w.band.lo[g], w.band.hi[g]
        at = w.band.offset[g] - first
        for _ in range(4):
            sums = splat64(0.0)
            for k in range(first, end, 16):
                sums = sums + load64(E, at + k) * load64(b, k)
            unit = 1.0 / total64(sums)
            for k in range(first, end, 16):
                store64(E, at + k, load64(E, at + k) * unit)
            at += end - first


@jit_no_refcount
def as_targets_read(w: Work, n: int, m: int, eps: float, kind: int, p: float, given: F64, F: F64,
                    a: F64) -> None:  # fmt: skip
    """Write E as ``read`` has it for averages over values, and to A the weights that make its rows exact.

    There E_ij = exp(F_i - C_ij / eps) / Z_j, whose columns are exact and whose rows are so up to rounding. With the sum
    r_i of row i, the rows of E_ij / r_i are exact and a_i r_i is the weight of value i: the same plan in the form that
    ``balance`` wants. Terms that cancel between ``read`` and here then do so.
    """
    E, x, y, b, cost = w.band.G, w.values[X], w.targets[Y], w.targets[B], w.lines[0]
    most, sums, inverse, largest = w.targets[GAMMA + 1], w.targets[GAMMA + 2], 1.0 / eps, splat64(LARGEST)
    most[:], sums[:] = -1e300, 0.0
    for i in range(n):
        g = i // 4
        first, end = w.band.lo[g], w.band.hi[g]
        at = w.band.offset[g] + (i - 4 * g) * (end - first) - first
        costs_into(kind, p, x[i], y, m, given[i * m :] if kind == MATRIX else given, cost)
        for k in range(first, end, 16):
            e = splat64(F[i]) - load64(cost, k) * inverse
            store64(E, at + k, e)
            if a[i] > 0.0:
                highest = load64(most, k)
                store64(most, k, select(e > highest, e, highest))
    for i in range(n):
        g = i // 4
        first, end = w.band.lo[g], w.band.hi[g]
        at = w.band.offset[g] + (i - 4 * g) * (end - first) - first
        for k in range(first, end, 16):
            e = load64(E, at + k) - load64(most, k)
            store64(E, at + k, select(e > largest, largest, e))
        exponentials_into(E[at + first :], 0, end - first, E, at + first)
        for k in range(first, end, 16):
            store64(sums, k, load64(sums, k) + load64(E, at + k) * a[i])
    for k in range(len(sums)):
        sums[k] = 1.0 / sums[k] if k < m and sums[k] > 0.0 else 0.0
    for i in range(n):
        g = i // 4
        first, end = w.band.lo[g], w.band.hi[g]
        at = w.band.offset[g] + (i - 4 * g) * (end - first) - first
        row = splat64(0.0)
        for k in range(first, end, 16):
            e = load64(E, at + k) * load64(sums, k)
            store64(E, at + k, e)
            row = row + e * load64(b, k)
        w.values[A, i] = a[i] * total64(row)
