"""Kernels on the CPU for batches of short rows, compiled by Numba: what ``asks.Kernels`` wants.

Rows are shared out to the threads that torch has. A batch that is done sooner than threads are woken runs in the thread
that called. Small batches take a few microseconds, so tensors become flat arrays by the shortest way there is.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from .asks import Answer, Ask
from .numba_maths import F32, SQUASH_CODES, enter, leave
from .numba_rows_few import FEW
from .numba_rows_lanes import SHORT
from .numba_rows_select import SIZE, few_backward, pull_few, push_few
from .numba_rows_short import pull_short, push_short, short_backward, short_state
from .numba_rows_wide import pull_rows, push_rows, rows_backward
from .numba_rows_work import state_parts

FINAL = False  #: a row that could not be answered says so in its error

_MOST_VALUES, _MOST_TARGETS = 1 << 15, 1 << 10  #: beyond which scratch no longer fits any cache
_ALONE = 3_000  #: n K of all rows up to which one thread is enough
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
    return _state_size(ask.x.shape[-1], ask.y.shape[-1], ask.last is None), torch.float32


def pull(ask: Ask, phi: Tensor) -> Answer:
    R, n = ask.x.shape
    x, a, y, b, eps, n, K, squash, (of_y, _, _, of_eps, of_a) = _inputs(ask)
    out, state, error = np.empty((R, n), np.float32), _state(ask), np.empty(R, np.float32)
    last = _NOTHING if ask.last is None else _flat(ask.last)
    steps = (of_y, _step(phi), 0 if ask.last is None else _step(ask.last), of_eps, of_a)
    if _in_lanes(n, K, ask.last is None):
        short = (x, a, y, b, _flat(phi), eps, n, K, squash, steps, out.reshape(-1), state.reshape(-1), error)
        _shared(pull_short, _pull_short_in_parallel, short, R, n * K, 16)
    elif _of_few(K, ask.last is None):
        few = (x, a, y, b, _flat(phi), eps, n, K, squash, steps, out.reshape(-1), state.reshape(-1), error)
        _shared(pull_few, _pull_few_in_parallel, few, R, n * K, 1)
    else:
        wide = (x, a, y, b, _flat(phi), last, eps, n, K, squash, steps, out.reshape(-1), state.reshape(-1), error)
        _shared(pull_rows, _pull_in_parallel, wide, R, n * K, 1)
    return Answer(_like(out, ask.x), torch.from_numpy(state), torch.from_numpy(error))


def push(ask: Ask) -> Answer:
    R, K = len(ask.x), ask.y.shape[-1]
    given = _inputs(ask)
    n = ask.x.shape[-1]
    out, state, error = np.empty((R, K), np.float32), _state(ask), np.empty(R, np.float32)
    given_too = (*given, out.reshape(-1), state.reshape(-1), error)
    if _in_lanes(n, K, ask.last is None):
        _shared(push_short, _push_short_in_parallel, given_too, R, n * K, 16)
    elif _of_few(K, ask.last is None):
        _shared(push_few, _push_few_in_parallel, given_too, R, n * K, 1)
    else:
        _shared(push_rows, _push_in_parallel, given_too, R, n * K, 1)
    return Answer(torch.from_numpy(out), torch.from_numpy(state), torch.from_numpy(error))


def pull_backward(ask: Ask, phi: Tensor, state: Tensor, w: Tensor) -> Tensor:
    return _backward(ask, phi, state, w)


def push_backward(ask: Ask, state: Tensor, c: Tensor) -> Tensor:
    return _backward(ask, c, state, None)


def _backward(ask: Ask, phi: Tensor, state: Tensor, w: Tensor | None) -> Tensor:
    x, a, y, b, eps, n, K, squash, (of_y, _, _, of_eps, of_a) = _inputs(ask)
    R = len(ask.x)
    grad = np.empty((R, n), np.float32)
    weights = _NOTHING if w is None else _flat(w)
    steps = (of_y, _step(phi), 0, of_eps, of_a)
    given = (x, a, y, b, _flat(phi), eps, n, K, squash, w is None, steps, weights, grad.reshape(-1), _flat(state))
    if _in_lanes(n, K, ask.last is None):
        _shared(short_backward, _short_backward_in_parallel, given, R, n * K, 16)
    elif _of_few(K, ask.last is None):
        _shared(few_backward, _few_backward_in_parallel, given, R, n * K, 1)
    else:
        _shared(rows_backward, _backward_in_parallel, given, R, n * K, 1)
    return _like(grad, ask.x)


def _in_lanes(n: int, K: int, exact: bool) -> bool:
    """Whether rows are so short that sixteen are worked on at a time. Does not depend on how many there are."""
    return exact and n <= SHORT and K <= SHORT


def _of_few(K: int, exact: bool) -> bool:
    return exact and 2 <= K <= FEW


# ---- tensors as flat arrays


def _flat(t: Tensor) -> F32:
    if t.dtype != torch.float32 or t.requires_grad:
        t = t.detach().to(torch.float32)
    if not t.is_contiguous():
        t = t.contiguous()
    array: F32 = t.numpy().reshape(-1)
    return array


def _like(array: F32, x: Tensor) -> Tensor:
    t = torch.from_numpy(array)
    return t if x.dtype == torch.float32 else t.to(x.dtype)


def _step(t: Tensor) -> int:
    """From row to row; 0 when one row serves all."""
    shape = t.shape
    return shape[1] * (shape[2] if len(shape) > 2 else 1) if shape[0] > 1 else 0


@functools.lru_cache(maxsize=64)
def _eps(eps: float) -> F32:
    return np.full(1, eps, np.float32)


@functools.lru_cache(maxsize=256)
def _state_size(n: int, K: int, exact: bool) -> int:
    if _in_lanes(n, K, exact):
        return int(short_state(K)[1])
    return SIZE if _of_few(K, exact) else int(state_parts(n, K)[2])


def _state(ask: Ask) -> F32:
    return np.empty((len(ask.x), _state_size(ask.x.shape[-1], ask.y.shape[-1], ask.last is None)), np.float32)


def _inputs(ask: Ask) -> _Given:
    """What all kernels are given first: x, a, y, b, eps, n, K, squash and the steps from row to row."""
    R, n = ask.x.shape
    y, b = ask.y, ask.b
    K = y.shape[-1]
    if len(y) != len(b):
        y, b = y.expand(R, K), b.expand(R, K)
    eps = _flat(ask.eps) if isinstance(ask.eps, Tensor) else _eps(ask.eps)
    steps = (K if len(y) > 1 else 0, 0, 0, 1 if len(eps) > 1 else 0, 0 if ask.a is None else n)
    a = _NOTHING if ask.a is None else _flat(ask.a)
    return _flat(ask.x), a, _flat(y), _flat(b), eps, n, K, SQUASH_CODES[ask.squash], steps


# ---- threads


def _shared(alone: Any, in_parallel: Any, given: tuple[Any, ...], R: int, work: int, unit: int) -> None:
    """Rows 0 to R by one thread or several, in multiples of ``unit`` rows; ``work`` is that of one row."""
    count = 1 if unit >= R or R * work <= _ALONE else enter((R + unit - 1) // unit)
    if count == 1:
        alone(*given, 0, R)
        return
    try:
        in_parallel(*given, R, count)
    finally:
        leave()


@njit(nogil=True, cache=True)
def _share(R: int, unit: int, c: int, count: int) -> tuple[int, int]:
    """Rows of the c-th of ``count`` threads."""
    units = (R + unit - 1) // unit
    return units * c // count * unit, min(units * (c + 1) // count * unit, R)


@njit(nogil=True, cache=True, parallel=True)
def _pull_in_parallel(x: F32, a: F32, y: F32, b: F32, phi: F32, last: F32, eps: F32, n: int, K: int, squash: int,
                      steps: _Steps, out: F32, state: F32, errors: F32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        start, stop = _share(R, 1, c, count)
        pull_rows(x, a, y, b, phi, last, eps, n, K, squash, steps, out, state, errors, start, stop)


@njit(nogil=True, cache=True, parallel=True)
def _push_in_parallel(x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int, steps: _Steps, out: F32,
                      state: F32, errors: F32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        start, stop = _share(R, 1, c, count)
        push_rows(x, a, y, b, eps, n, K, squash, steps, out, state, errors, start, stop)


@njit(nogil=True, cache=True, parallel=True)
def _backward_in_parallel(x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, squash: int, push: bool,
                          steps: _Steps, w: F32, grad: F32, state: F32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        start, stop = _share(R, 1, c, count)
        rows_backward(x, a, y, b, phi, eps, n, K, squash, push, steps, w, grad, state, start, stop)


@njit(nogil=True, cache=True, parallel=True)
def _pull_short_in_parallel(x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, squash: int,
                            steps: _Steps, out: F32, state: F32, errors: F32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        start, stop = _share(R, 16, c, count)
        pull_short(x, a, y, b, phi, eps, n, K, squash, steps, out, state, errors, start, stop)


@njit(nogil=True, cache=True, parallel=True)
def _push_short_in_parallel(x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int, steps: _Steps,
                            out: F32, state: F32, errors: F32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        start, stop = _share(R, 16, c, count)
        push_short(x, a, y, b, eps, n, K, squash, steps, out, state, errors, start, stop)


@njit(nogil=True, cache=True, parallel=True)
def _short_backward_in_parallel(x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, squash: int,
                                push: bool, steps: _Steps, w: F32, grad: F32, state: F32, R: int,
                                count: int) -> None:  # fmt: skip
    for c in prange(count):
        start, stop = _share(R, 16, c, count)
        short_backward(x, a, y, b, phi, eps, n, K, squash, push, steps, w, grad, state, start, stop)


@njit(nogil=True, cache=True, parallel=True)
def _pull_few_in_parallel(x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, squash: int,
                          steps: _Steps, out: F32, state: F32, errors: F32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        start, stop = _share(R, 1, c, count)
        pull_few(x, a, y, b, phi, eps, n, K, squash, steps, out, state, errors, start, stop)


@njit(nogil=True, cache=True, parallel=True)
def _push_few_in_parallel(x: F32, a: F32, y: F32, b: F32, eps: F32, n: int, K: int, squash: int, steps: _Steps,
                          out: F32, state: F32, errors: F32, R: int, count: int) -> None:  # fmt: skip
    for c in prange(count):
        start, stop = _share(R, 1, c, count)
        push_few(x, a, y, b, eps, n, K, squash, steps, out, state, errors, start, stop)


@njit(nogil=True, cache=True, parallel=True)
def _few_backward_in_parallel(x: F32, a: F32, y: F32, b: F32, phi: F32, eps: F32, n: int, K: int, squash: int,
                              push: bool, steps: _Steps, w: F32, grad: F32, state: F32, R: int,
                              count: int) -> None:  # fmt: skip
    for c in prange(count):
        start, stop = _share(R, 1, c, count)
        few_backward(x, a, y, b, phi, eps, n, K, squash, push, steps, w, grad, state, start, stop)
