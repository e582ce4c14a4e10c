"""Rows of which the few nodes of a rule are not enough, and whose targets are few as well: all of them are taken."""

from __future__ import annotations

import numpy as np

from ..engine.compile import exact
from ..engine.maths import F32
from .solve import ACCEPTED, pull_rows, rows_backward
from .work import state_size

_Steps = tuple[int, int, int, int, int]


@exact
def all_targets(y: F32, phi: F32, at_y: int, at_phi: int, K: int, m: int) -> tuple[F32, F32, F32]:
    """m equal targets in place of the K nodes of a rule: their places, weights and levels, which are affine in y."""
    targets, weights, levels = np.empty(m, np.float32), np.empty(m, np.float32), np.empty(m, np.float32)
    low, first = float(y[at_y]), float(phi[at_phi])
    slope = (float(phi[at_phi + K - 1]) - first) / (float(y[at_y + K - 1]) - low)
    for j in range(m):
        targets[j], weights[j] = j / (m - 1), 1.0 / m
        levels[j] = first + slope * (j / (m - 1) - low)
    return targets, weights, levels


@exact
def pull_ruled(start: int, stop: int, x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, eps: F32, n: int, K: int,
               m: int, squash: int, steps: _Steps, out: F32, state: F32, errors: F32) -> None:  # fmt: skip
    """Rows start to stop, by the rule, and once more where that is not enough; m as in ``state_size``."""
    size, none, one = state_size(n, K, m), np.int64(0), np.int64(1)
    pull_rows(start, stop, x, a, y, b, phi, last, eps, n, K, bool(none), size, squash, steps, out, state, errors)
    if m == 0:
        return
    for row in range(start, stop):
        again = not errors[row] <= ACCEPTED
        if again:
            targets, weights, levels = all_targets(y, phi, row * steps[0], row * steps[1], K, m)
            pull_rows(none, one, x[row * n :], a[row * steps[4] :], targets, weights, levels, last[:0],
                      eps[row * steps[3] :], n, m, again, size, squash, (none, none, none, none, steps[4]),
                      out[row * n :], state[row * size :], errors[row:])  # fmt: skip
        state[row * size + size - 1] = 1.0 if again else 0.0


@exact
def ruled_backward(start: int, stop: int, x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, m: int,
                   squash: int, push: bool, steps: _Steps, w: F32, grad: F32, state: F32) -> None:  # fmt: skip
    size, first, none, one = state_size(n, K, m), start, np.int64(0), np.int64(1)
    for row in range(start, stop + 1):
        again = m > 0 and row < stop and state[row * size + size - 1] > 0.5
        if first < row and (again or row == stop):
            rows_backward(first, row, x, a, y, b, phi, eps, n, K, bool(none), size, squash, push, steps, w, grad,
                          state)  # fmt: skip
        if again:
            targets, weights, levels = all_targets(y, phi, row * steps[0], row * steps[1], K, m)
            rows_backward(none, one, x[row * n :], a[row * steps[4] :], targets, weights, levels,
                          eps[row * steps[3] :], n, m, again, size, squash, push, (none, none, none, none, steps[4]),
                          w[row * n :], grad[row * n :], state[row * size :])  # fmt: skip
            first = row + 1
