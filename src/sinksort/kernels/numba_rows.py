"""Kernels on the CPU for batches of short rows, compiled by Numba: what ``asks.Kernels`` wants.

Rows are shared out to the threads that torch has. A batch that is done sooner than threads are woken runs in the thread
that called.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from .asks import Answer, Ask
from .numba_maths import F32, F64, I32, SQUASH_CODES, threads
from .numba_rows_lanes import SHORT
from .numba_rows_short import pull_short, push_short, short_backward, short_state
from .numba_rows_wide import pull_rows, push_rows, rows_backward
from .numba_rows_work import state_parts

FINAL = False  #: a row that could not be answered says so in its error

_MOST_VALUES, _MOST_TARGETS = 1 << 15, 1 << 10  #: beyond which scratch no longer fits any cache
_ALONE = 20_000  #: n K of all rows up to which one thread is enough
_NOTHING: F32 = np.zeros(0, np.float32)
_Steps = tuple[int, int, int, int, int]
_Given = tuple[F32, F32, F32, F32, F32, int, int, int, _Steps]


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
    n, K = ask.x.shape[-1], ask.y.shape[-1]
    return short_state(K)[1] if _in_lanes(ask) else state_parts(n, K)[2], torch.float32


def pull(ask: Ask, phi: Tensor) -> Answer:
    given, out, state, error = _asked(ask, ask.x.shape[-1])
    x, a, y, b, eps, n, K, squash, (step, _, _, of_eps, of_a) = given
    into, (state64, state32, state_int), errors = _flat(out), _views(state), _flat(error)
    last = _NOTHING if ask.last is None else _flat(ask.last)
    steps = (step, _step(phi), 0 if ask.last is None else _step(ask.last), of_eps, of_a)
    if _in_lanes(ask):
        short = (x, a, y, b, _flat(phi), eps, n, K, squash, steps, into, state64, state32, errors)
        _shared(pull_short, _pull_short_in_parallel, short, len(out), n * K, 16)
    else:
        wide = (x, a, y, b, _flat(phi), last, eps, n, K, squash, steps, into, state64, state32, state_int, errors)
        _shared(pull_rows, _pull_in_parallel, wide, len(out), n * K, 1)
    return Answer(out if ask.x.dtype == torch.float32 else out.to(ask.x.dtype), state, error)


def push(ask: Ask) -> Answer:
    given, out, state, error = _asked(ask, ask.y.shape[-1])
    into, (state64, state32, state_int), errors = _flat(out), _views(state), _flat(error)
    work = ask.x.shape[-1] * ask.y.shape[-1]
    if _in_lanes(ask):
        _shared(push_short, _push_short_in_parallel, (*given, into, state64, state32, errors), len(out), work, 16)
    else:
        _shared(push_rows, _push_in_parallel, (*given, into, state64, state32, state_int, errors), len(out), work, 1)
    return Answer(out, state, error)


def pull_backward(ask: Ask, phi: Tensor, state: Tensor, w: Tensor) -> Tensor:
    return _backward(ask, phi, state, w)


def push_backward(ask: Ask, state: Tensor, c: Tensor) -> Tensor:
    return _backward(ask, c, state, None)


def _backward(ask: Ask, phi: Tensor, state: Tensor, w: Tensor | None) -> Tensor:
    x, a, y, b, eps, n, K, squash, (step, _, _, of_eps, of_a) = _inputs(ask)
    grad = torch.empty(ask.x.shape)
    weights = _NOTHING if w is None else _flat(w)
    steps = (step, _step(phi), 0, of_eps, of_a)
    state64, state32, state_int = _views(state)
    given = (x, a, y, b, _flat(phi), eps, n, K, squash, w is None, steps, weights, _flat(grad), state64, state32)
    if _in_lanes(ask):
        _shared(short_backward, _short_backward_in_parallel, given, len(grad), n * K, 16)
    else:
        _shared(rows_backward, _backward_in_parallel, (*given, state_int), len(grad), n * K, 1)
    return grad if ask.x.dtype == torch.float32 else grad.to(ask.x.dtype)


def _in_lanes(ask: Ask) -> bool:
    """Whether rows are so short that sixteen are worked on at a time. Does not depend on how many there are."""
    return ask.last is None and ask.x.shape[-1] <= SHORT and ask.y.shape[-1] <= SHORT


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


def _inputs(ask: Ask) -> _Given:
    """What all kernels are given first: x, a, y, b, eps, n, K, squash and the steps from row to row."""
    R, n = ask.x.shape
    y, b = ask.y, ask.b
    K = y.shape[-1]
    if len(y) != len(b):
        y, b = y.expand(R, K), b.expand(R, K)
    eps: F32 = _flat(ask.eps) if isinstance(ask.eps, Tensor) else np.full(1, ask.eps, np.float32)
    steps = (_step(y), 0, 0, 1 if len(eps) > 1 else 0, 0 if ask.a is None else n)
    a = _NOTHING if ask.a is None else _flat(ask.a)
    return _flat(ask.x), a, _flat(y), _flat(b), eps, n, K, SQUASH_CODES[ask.squash], steps


def _asked(ask: Ask, columns: int) -> tuple[_Given, Tensor, Tensor, Tensor]:
    """The same, and where answer, state and error go."""
    R = len(ask.x)
    return _inputs(ask), torch.empty(R, columns), torch.empty(R, state_layout(ask)[0]), torch.empty(R)


# ---- threads


def _shared(alone: Any, in_parallel: Any, given: tuple[Any, ...], R: int, work: int, unit: int) -> None:
    """Rows 0 to R by one thread or several, in multiples of ``unit`` rows; ``work`` is that of one row."""
    if unit >= R or R * work <= _ALONE:
        alone(*given, 0, R)
        return
    with threads((R + unit - 1) // unit) as count:
        if count > 1:
            in_parallel(*given, R, count)
        else:
            alone(*given, 0, R)


@njit(nogil=True, cache=True)
def _share(R: int, unit: int, c: int, count: int) -> tuple[int, int]:
    """Rows of the c-th of ``count`` threads."""
    units = (R + unit - 1) // unit
    return units * c // count * unit, min(units * (c + 1) // count * unit, R)


@njit(nogil=True, cache=True, parallel=True)
def _pull_in_parallel(x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, eps: F32, n: int, K: int, squash: int,
                      steps: _Steps, out: F32, state64: F64, state32: F32, state_int: I32,
                      errors: F32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        pull_rows(x, a, y, b, phi, last, eps, n, K, squash, steps, out, state64, state32, state_int, errors,
                  *_share(R, 1, c, count))  # fmt: skip


@njit(nogil=True, cache=True, parallel=True)
def _push_in_parallel(x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int,
                      steps: _Steps, out: F32, state64: F64, state32: F32, state_int: I32,
                      errors: F32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        push_rows(x, a, y, b, eps, n, K, squash, steps, out, state64, state32, state_int, errors,
                  *_share(R, 1, c, count))  # fmt: skip


@njit(nogil=True, cache=True, parallel=True)
def _backward_in_parallel(x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, squash: int, push: bool,
                          steps: _Steps, w: F32, grad: F32, state64: F64, state32: F32,
                          state_int: I32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        rows_backward(x, a, y, b, phi, eps, n, K, squash, push, steps, w, grad, state64, state32, state_int,
                      *_share(R, 1, c, count))  # fmt: skip


@njit(nogil=True, cache=True, parallel=True)
def _pull_short_in_parallel(x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, squash: int,
                            steps: _Steps, out: F32, state64: F64, state32: F32, errors: F32, R: int,
                            count: int) -> None:  # fmt: skip
    for c in prange(count):
        pull_short(x, a, y, b, phi, eps, n, K, squash, steps, out, state64, state32, errors,
                   *_share(R, 16, c, count))  # fmt: skip


@njit(nogil=True, cache=True, parallel=True)
def _push_short_in_parallel(x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int, steps: _Steps,
                            out: F32, state64: F64, state32: F32, errors: F32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        push_short(x, a, y, b, eps, n, K, squash, steps, out, state64, state32, errors, *_share(R, 16, c, count))


@njit(nogil=True, cache=True, parallel=True)
def _short_backward_in_parallel(x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, squash: int,
                                push: bool, steps: _Steps, w: F32, grad: F32, state64: F64, state32: F32, R: int,
                                count: int) -> None:  # fmt: skip
    for c in prange(count):
        short_backward(x, a, y, b, phi, eps, n, K, squash, push, steps, w, grad, state64, state32,
                       *_share(R, 16, c, count))  # fmt: skip
