"""Ranks of rows that other kernels for the CPU rejected, computed once more: see ``sort.ranks``.

Measured (one thread, rows with ties, gaps or tails, forward and backward): a row of 300 values takes 1 ms, by the
reference 20 to 130; one of 1000 takes 5 to 10 ms, not 60 to 400; one of 3000 takes 40 ms, not 150 to 1000. From there
on both come closer.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..contract import Request, in_tensors
from ..requests.targets import default_targets
from . import rows
from .engine.maths import F32
from .engine.threads import run
from .rows import flat, inputs, like, step
from .sort.ranks import pull_sorted

_PRICE = 100.0  #: nanoseconds that a row takes, over n and the square root of the number of targets
_NOTHING: F32 = np.zeros(0, np.float32)


def pull(request: Request, phi: Tensor) -> tuple[Tensor, Tensor]:
    """As ``contract.RejectedRowKernels`` has it: answers and errors."""
    return _answered(request, phi, None)


def pull_backward(request: Request, phi: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The cotangent of x, and errors."""
    return _answered(request, phi, w)


def push(request: Request) -> tuple[Tensor, Tensor]:
    """Sorted values, from all targets in double precision: answers and errors."""
    out, _, error = in_tensors(rows.push(_of_all_targets(request)))
    return out, error


def push_backward(request: Request, c: Tensor) -> tuple[Tensor, Tensor]:
    whole = _of_all_targets(request)
    _, state, error = in_tensors(rows.push(whole))
    return rows.push_backward(whole, state, c.float()), error


def _of_all_targets(request: Request) -> Request:
    at = default_targets(request.x.shape[-1], request.m or request.y.shape[-1], None, False, request.x.device)
    return request._replace(y=at.y, b=at.b, m=None, last=None, prepared=None)


def _answered(request: Request, phi: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor]:
    a, y, b, eps, n, K, squash, (of_y, _, _, of_eps, of_a) = inputs(request)
    R, m = len(request.x), 0 if request.m is None else request.m
    out, errors = np.empty((R, n), np.float32), np.empty(R, np.float32)
    steps = (of_y, step(phi), 0, of_eps, of_a)
    run(
        pull_sorted, R, _PRICE * R * n * max(K, m) ** 0.5, flat(request.x), a, y, b, flat(phi), eps, n, K, m, squash,
        steps,
        _NOTHING if w is None else flat(w), w is not None, out.reshape(-1), errors,
    )  # fmt: skip
    return like(out, request.x), torch.from_numpy(errors)
