"""Kernels on the CPU for batches of short rows, compiled by Numba: what ``asks.Kernels`` wants.

Rows go to one of four families of kernels: with one unknown where there are two targets, sixteen at a time where rows
are very short, without a matrix where targets are few, and with one elsewhere. Small batches take a few microseconds,
so tensors become flat arrays by the shortest way there is.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from .asks import Answer, Ask
from .choice import of_two, sharp
from .numba_maths import F32, F64, SQUASH_CODES
from .numba_rows_few import FEW
from .numba_rows_lanes import SHORT
from .numba_rows_logs import logs_rows, logs_rows_backward, logs_state
from .numba_rows_many_pull import MODERATE, many_backward, many_layout, pull_many
from .numba_rows_select import SIZE, few_backward, pull_few, push_few
from .numba_rows_short import pull_short, push_short, short_backward, short_state
from .numba_rows_two import TWO_SIZE, pull_two, push_two, two_backward
from .numba_rows_whole import pull_ruled, ruled_backward
from .numba_rows_wide import push_rows
from .numba_rows_work import SAVED, state_size
from .numba_tasks import run

FINAL = False  #: a row that could not be answered says so in its error

_MOST_VALUES, _MOST_TARGETS = 1 << 15, 1 << 10  #: beyond which scratch no longer fits any cache
_PRICE, _PRICE_OF_LOGS = 3.0, 10.0  #: nanoseconds that a row takes, over n K
_SOFT = 3.0  #: n^2 eps from which most of the weight is not where the hard sort puts it
_NOTHING: F32 = np.zeros(0, np.float32)
_NO_WEIGHTS: F64 = np.zeros(0)
_Steps = tuple[int, int, int, int, int]
_Given = tuple[F32, F32, F32, F32, F32, int, int, int, _Steps]
_SINGLE = 1e-7  #: relative rounding of weights in single precision


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
    return _columns(ask), torch.float32


def pull(ask: Ask, phi: Tensor) -> Answer:
    R, n = ask.x.shape
    x, a, y, b, eps, n, K, squash, (of_y, _, _, of_eps, of_a) = _inputs(ask)
    out, state, error = np.empty((R, n), np.float32), _state(ask), np.empty(R, np.float32)
    last = _NOTHING if ask.last is None else _flat(ask.last)
    steps = (of_y, _step(phi), 0 if ask.last is None else _step(ask.last), of_eps, of_a)
    answers, work = (out.reshape(-1), state.reshape(-1), error), _PRICE * R * n * K
    if _alone(ask):
        run(pull_two, R, work, x, _weights(ask), y, *_exact(ask), _flat(phi), eps, n, squash, steps, *answers)
    elif R >= 16 and _in_many(ask, phi):
        given = x, a, y, b, _flat(phi), last, eps, n, K, _whole(ask.m)
        run(pull_many, (R + 15) // 16, work, *given, squash, steps, *answers)
    elif _in_lanes(n, K, ask.m):
        run(pull_short, (R + 15) // 16, work, x, a, y, b, _flat(phi), eps, n, K, squash, steps, *answers)
    elif _of_few(K, ask.m):
        run(pull_few, R, work, x, a, y, *_exact(ask), _flat(phi), eps, n, K, squash, steps, *answers)
    else:
        m = _whole(ask.m)
        run(pull_ruled, R, work, x, a, y, b, _flat(phi), last, eps, n, K, m, squash, steps, *answers)
    return Answer(_like(out, ask.x), torch.from_numpy(state), torch.from_numpy(error))


def push(ask: Ask) -> Answer:
    given, R = _inputs(ask), len(ask.x)
    n, K = given[5:7]
    out, state, error = np.empty((R, K), np.float32), _state(ask), np.empty(R, np.float32)
    answers, work = (out.reshape(-1), state.reshape(-1), error), _PRICE * R * n * K
    if _alone(ask):
        x, _, y, _, eps, n, _, squash, steps = given
        run(push_two, R, work, x, _weights(ask), y, *_exact(ask), eps, n, squash, steps, *answers)
    elif _in_lanes(n, K, ask.m):
        run(push_short, (R + 15) // 16, work, *given, *answers)
    elif _of_few(K, ask.m):
        run(push_few, R, work, *given[:3], *_exact(ask), *given[4:], *answers)
    else:
        run(push_rows, R, work, *given, *answers)
    return Answer(torch.from_numpy(out), torch.from_numpy(state), torch.from_numpy(error))


def pull_backward(ask: Ask, phi: Tensor, state: Tensor, w: Tensor) -> Tensor:
    return _backward(ask, phi, state, w)


def push_backward(ask: Ask, state: Tensor, c: Tensor) -> Tensor:
    return _backward(ask, c, state, None)


def logs_layout(ask: Ask) -> tuple[int, torch.dtype]:
    return int(logs_state(ask.x.shape[-1], ask.y.shape[-1])[2]), torch.float32


def logs(ask: Ask) -> Answer:
    (R, n), K = ask.x.shape, ask.y.shape[-1]
    out, state = np.empty((R, n, K), np.float32), np.empty((R, logs_layout(ask)[0]), np.float32)
    error = np.empty(R, np.float32)
    given = _inputs(ask, weighted=True)
    run(logs_rows, R, _PRICE_OF_LOGS * R * n * K, *given, out.reshape(-1), state.reshape(-1), error)
    return Answer(torch.from_numpy(out), torch.from_numpy(state), torch.from_numpy(error))


def logs_backward(ask: Ask, state: Tensor, C: Tensor) -> Tensor:
    (R, n), K = ask.x.shape, ask.y.shape[-1]
    grad, given = np.empty((R, n), np.float32), _inputs(ask, weighted=True)
    run(logs_rows_backward, R, _PRICE_OF_LOGS * R * n * K, *given, _flat(C), grad.reshape(-1), _flat(state))
    return _like(grad, ask.x)


def _backward(ask: Ask, phi: Tensor, state: Tensor, w: Tensor | None) -> Tensor:
    x, a, y, b, eps, n, K, squash, (of_y, _, _, of_eps, of_a) = _inputs(ask)
    R, push = len(ask.x), w is None
    grad = np.empty((R, n), np.float32)
    steps = (of_y, _step(phi), 0, of_eps, of_a)
    given, work = (x, a, y, b, _flat(phi), eps, n, K), _PRICE * R * n * K
    rest = (squash, push, steps, _NOTHING if w is None else _flat(w), grad.reshape(-1), _flat(state))
    if _alone(ask):
        run(two_backward, R, work, x, _weights(ask), y, _exact(ask)[0], _flat(phi), eps, n, *rest)
    elif not push and R >= 16 and _in_many(ask, phi):
        run(many_backward, (R + 15) // 16, work, *given, _whole(ask.m), ask.m is not None, *rest)
    elif _in_lanes(n, K, ask.m):
        run(short_backward, (R + 15) // 16, work, *given, *rest)
    elif _of_few(K, ask.m):
        run(few_backward, R, work, x, a, y, _exact(ask)[0], *given[4:], *rest)
    else:
        run(ruled_backward, R, work, *given, _whole(ask.m), *rest)
    return _like(grad, ask.x)


def _alone(ask: Ask) -> bool:
    """Whether rows go to the kernels for two targets: all but very short ones, which in lanes are twice as fast."""
    return of_two(ask) and (ask.x.shape[-1] > SHORT or sharp(ask))


def _in_lanes(n: int, K: int, m: int | None) -> bool:
    """Whether rows are so short that sixteen are worked on at a time. Does not depend on how many there are."""
    return m is None and n <= SHORT and K <= SHORT


def _of_few(K: int, m: int | None) -> bool:
    return m is None and 3 <= K <= FEW


def _in_many(ask: Ask, phi: Tensor) -> bool:
    """Whether rows go sixteen at a time in blocks: they share their targets, and are soft and not too long."""
    n, K, eps = ask.x.shape[-1], ask.y.shape[-1], ask.eps
    shared = ask.a is None and len(ask.y) == len(ask.b) == len(phi) == 1 and (ask.last is None or len(ask.last) == 1)
    return shared and n <= MODERATE and FEW < K <= SAVED and not isinstance(eps, Tensor) and n * n * eps >= _SOFT


def _whole(m: int | None) -> int:
    """How many targets are taken where a rule for them is not enough; 0 where that would be no rule, or too many."""
    return 0 if m is None or m > SAVED else m


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
def _state_size(n: int, K: int, m: int | None) -> int:
    if _in_lanes(n, K, m) and K <= FEW:
        return int(short_state(K)[1])
    if _of_few(K, m):
        return SIZE
    return int(many_layout(n, K, _whole(m)).size if n <= MODERATE and K <= SAVED else state_size(n, K, _whole(m)))


def _state(ask: Ask) -> F32:
    return np.empty((len(ask.x), _columns(ask)), np.float32)


def _columns(ask: Ask) -> int:
    return TWO_SIZE if _alone(ask) else _state_size(ask.x.shape[-1], ask.y.shape[-1], ask.m)


def _inputs(ask: Ask, weighted: bool = False) -> _Given:
    """What all kernels are given first: x, a, y, b, eps, n, K, squash and the steps from row to row.

    ``weighted``: a is wanted for two targets as well, whose own kernels have it from ``_weights``.
    """
    R, n = ask.x.shape
    y, b = ask.y, ask.b
    K = y.shape[-1]
    if len(y) != len(b):
        y, b = y.expand(R, K), b.expand(R, K)
    eps = _flat(ask.eps) if isinstance(ask.eps, Tensor) else _eps(ask.eps)
    steps = (K if len(y) > 1 else 0, 0, 0, 1 if len(eps) > 1 else 0, 0 if ask.a is None else n)
    a = _NOTHING if ask.a is None or (_alone(ask) and not weighted) else _flat(ask.a)
    return _flat(ask.x), a, _flat(y), _flat(b), eps, n, K, SQUASH_CODES[ask.squash], steps


def _exact(ask: Ask) -> tuple[F64, float]:
    """b as kernels for a few targets want it, and the relative rounding of what they see of b and of the weights."""
    b = ask.b if len(ask.y) == len(ask.b) else ask.b.expand(len(ask.x), -1)
    single = b.dtype == torch.float32 or (ask.a is not None and not _alone(ask))
    return _wide(b), _SINGLE if single else 0.0


def _weights(ask: Ask) -> F64:
    """The same of a, for two targets."""
    return _NO_WEIGHTS if ask.a is None else _wide(ask.a)


def _wide(t: Tensor) -> F64:
    return np.ascontiguousarray(t.detach().numpy(), dtype=np.float64).reshape(-1)
