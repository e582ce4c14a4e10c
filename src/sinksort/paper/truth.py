"""An independent answer to check against: the dense entropic problem in NumPy, by another route than the library's.

Both potentials are kept (the library eliminates one), the start is zero, annealed down to eps (the library starts from
the staircase), and the last digits come from Newton's method on the full dual by least squares. Slow and plain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def dense_plan(C: Array, a: Array, b: Array, eps: float) -> Array:
    """The P that minimises <P, C> + eps KL(P | a b^T) with marginals a and b, to about 1e-14."""
    f, g = np.zeros_like(a), np.zeros_like(b)
    annealed = max(float(C.max()), eps)
    while True:
        for _ in range(20):
            f = -annealed * _log_sum_exp(np.log(b) + (g - C) / annealed, 1)
            g = -annealed * _log_sum_exp(np.log(a)[:, None] + (f[:, None] - C) / annealed, 0)
        if annealed == eps:
            break
        annealed = max(annealed / 1.5, eps)
    plan = _plan(C, a, b, f, g, eps)
    for _ in range(100):
        missing = np.concatenate([a - plan.sum(1), b - plan.sum(0)])
        size = np.abs(missing).sum()
        hessian = np.block([[np.diag(plan.sum(1)), plan], [plan.T, np.diag(plan.sum(0))]])
        df, dg = np.split(eps * np.linalg.lstsq(hessian, missing, rcond=1e-14)[0], [len(a)])
        step = 1.0
        while step > 1e-6:
            tried = _plan(C, a, b, f + step * df, g + step * dg, eps)
            if np.abs(tried.sum(1) - a).sum() + np.abs(tried.sum(0) - b).sum() < size:
                break
            step /= 2
        else:
            break  # rounding is reached
        f, g, plan = f + step * df, g + step * dg, tried
    return plan


def _plan(C: Array, a: Array, b: Array, f: Array, g: Array, eps: float) -> Array:
    with np.errstate(over="ignore"):
        density: Array = np.exp((f[:, None] + g - C) / eps)
    return a[:, None] * b * density


def _log_sum_exp(t: Array, axis: int) -> Array:
    top = t.max(axis, keepdims=True)
    total: Array = top.squeeze(axis) + np.log(np.exp(t - top).sum(axis))
    return total
