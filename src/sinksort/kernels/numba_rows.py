"""Kernels on the CPU for batches of short rows, compiled by Numba: what ``asks.Kernels`` wants.

Rows are shared out to the threads that torch has. A batch that is done sooner than threads are woken runs in the thread
that called.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from .asks import Answer, Ask
from .numba_maths import F32, F64, I32, SQUASH_CODES, threads
from .numba_rows_wide import pull_rows, push_rows, rows_backward
from .numba_rows_work import state_parts

FINAL = False  #: a row that could not be answered says so in its error

_MOST_VALUES, _MOST_TARGETS = 1 << 15, 1 << 10  #: beyond which scratch no longer fits any cache
_ALONE = 20_000  #: n K of all rows up to which one thread is enough
_NOTHING: F32 = np.zeros(0, np.float32)


def unable(ask: Ask) -> str | None:
    n, K = ask.x.shape[-1], ask.y.shape[-1]
    if ask.x.device.type != "cpu":
        return f"its kernels for the CPU were given a tensor on {ask.x.device}"
    if n > _MOST_VALUES:
        return f"its kernels for short rows take at most {_MOST_VALUES} values, and a row has {n}"
    if K > _MOST_TARGETS:
        return f"its kernels take at most {_MOST_TARGETS} targets, and there are {K}"
    return None


def state_layout(ask: Ask) -> tuple[int, torch.dtype]:
    return state_parts(ask.x.shape[-1], ask.y.shape[-1])[2], torch.float32


def pull(ask: Ask, phi: Tensor) -> Answer:
    R, n = ask.x.shape
    x, a, y, b, eps, steps = _inputs(ask)
    K = ask.y.shape[-1]
    levels, last = _flat(phi), _NOTHING if ask.last is None else _flat(ask.last)
    steps = (steps[0], _step(phi), 0 if ask.last is None else _step(ask.last), steps[3], steps[4])
    out, state, error = torch.empty(R, n), torch.empty(R, state_layout(ask)[0]), torch.empty(R)
    given = (x, a, y, b, levels, last, eps, n, K, SQUASH_CODES[ask.squash], steps, _flat(out), *_views(state), _flat(error))
    _shared(pull_rows, _pull_in_parallel, given, R, n * K)
    return Answer(out if ask.x.dtype == torch.float32 else out.to(ask.x.dtype), state, error)


def pull_backward(ask: Ask, phi: Tensor, state: Tensor, w: Tensor) -> Tensor:
    return _backward(ask, phi, state, w)


def push(ask: Ask) -> Answer:
    R, n = ask.x.shape
    x, a, y, b, eps, steps = _inputs(ask)
    K = ask.y.shape[-1]
    out, state, error = torch.empty(R, K), torch.empty(R, state_layout(ask)[0]), torch.empty(R)
    given = (x, a, y, b, eps, n, K, SQUASH_CODES[ask.squash], steps, _flat(out), *_views(state), _flat(error))
    _shared(push_rows, _push_in_parallel, given, R, n * K)
    return Answer(out, state, error)


def push_backward(ask: Ask, state: Tensor, c: Tensor) -> Tensor:
    return _backward(ask, c, state, None)


def _backward(ask: Ask, phi: Tensor, state: Tensor, w: Tensor | None) -> Tensor:
    R, n = ask.x.shape
    x, a, y, b, eps, steps = _inputs(ask)
    K = ask.y.shape[-1]
    steps = (steps[0], _step(phi), 0, steps[3], steps[4])
    grad = torch.empty(R, n)
    given = (x, a, y, b, _flat(phi), eps, n, K, SQUASH_CODES[ask.squash], w is None, steps,
             _NOTHING if w is None else _flat(w), _flat(grad), *_views(state))  # fmt: skip
    _shared(rows_backward, _backward_in_parallel, given, R, n * K)
    return grad if ask.x.dtype == torch.float32 else grad.to(ask.x.dtype)


# ---- tensors as flat arrays


def _flat(t: Tensor) -> F32:
    array: F32 = t.detach().to(torch.float32).contiguous().view(-1).numpy()
    return array


def _step(t: Tensor) -> int:
    """From row to row; 0 when one row serves all."""
    return t[0].numel() if len(t) > 1 else 0


def _views(state: Tensor) -> tuple[F64, F32, I32]:
    flat = _flat(state)
    return flat.view(np.float64), flat, flat.view(np.int32)


def _inputs(ask: Ask) -> tuple[F32, F32, F32, F32, F32, tuple[int, int, int, int, int]]:
    R, n = ask.x.shape
    K = ask.y.shape[-1]
    y, b = ask.y, ask.b
    if len(y) != len(b):
        y, b = y.expand(R, K), b.expand(R, K)
    eps: NDArray[np.float32] = _flat(ask.eps) if isinstance(ask.eps, Tensor) else np.full(1, ask.eps, np.float32)
    steps = (_step(y), 0, 0, 1 if len(eps) > 1 else 0, 0 if ask.a is None else n)
    return _flat(ask.x), _NOTHING if ask.a is None else _flat(ask.a), _flat(y), _flat(b), eps, steps


# ---- threads


def _shared(alone: Any, in_parallel: Any, given: tuple[Any, ...], R: int, work: int) -> None:
    if R < 2 or R * work <= _ALONE:
        alone(*given, 0, R)
        return
    with threads(R) as count:
        if count > 1:
            in_parallel(*given, R, count)
        else:
            alone(*given, 0, R)


@njit(nogil=True, cache=True, parallel=True)
def _pull_in_parallel(x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, eps: F32, n: int, K: int, squash: int,
                      steps: tuple[int, int, int, int, int], out: F32, state64: F64, state32: F32, state_int: I32,
                      errors: F32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        pull_rows(x, a, y, b, phi, last, eps, n, K, squash, steps, out, state64, state32, state_int, errors,
                  R * c // count, R * (c + 1) // count)  # fmt: skip


@njit(nogil=True, cache=True, parallel=True)
def _push_in_parallel(x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int,
                      steps: tuple[int, int, int, int, int], out: F32, state64: F64, state32: F32, state_int: I32,
                      errors: F32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        push_rows(x, a, y, b, eps, n, K, squash, steps, out, state64, state32, state_int, errors,
                  R * c // count, R * (c + 1) // count)  # fmt: skip


@njit(nogil=True, cache=True, parallel=True)
def _backward_in_parallel(x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, squash: int, push: bool,
                          steps: tuple[int, int, int, int, int], w: F32, grad: F32, state64: F64, state32: F32,
                          state_int: I32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        rows_backward(x, a, y, b, phi, eps, n, K, squash, push, steps, w, grad, state64, state32, state_int,
                      R * c // count, R * (c + 1) // count)  # fmt: skip
