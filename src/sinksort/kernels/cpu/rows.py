"""Kernels on the CPU for batches of short rows, compiled by Numba: what ``asks.Kernels`` wants.

Rows go to one of six families of kernels: with one unknown where there are two targets, sixteen at a time where rows
are very short or are many that share soft targets, without a matrix where targets are few, in double precision where
sorts need it, and with a matrix in single precision elsewhere. Small batches take a few microseconds, so tensors become
flat arrays by the shortest way there is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..contract import Answer, Ask, State
from ..dispatch import least_eps, of_two, sharp
from .engine.maths import F32, F64, SQUASH_CODES
from .engine.threads import run
from .lanes.band_rows import MODERATE, many_backward, many_layout, pull_many
from .lanes.plan import SHORT
from .lanes.rows import pull_short, push_short, short_state
from .lanes.rows_backward import short_backward
from .row.all_targets import pull_ruled, ruled_backward
from .row.log_plan import logs_rows, logs_rows_backward, logs_state
from .row.solve import push_rows
from .row.work import SAVED, state_size
from .sort.rows import push_sorted, sorted_backward
from .thresholds.read import SIZE, few_backward, pull_few, push_few
from .thresholds.sums import FEW
from .thresholds.two import TWO_SIZE, pull_two, push_two, two_backward

_MOST_VALUES, _MOST_NODES, _MOST_TARGETS = 1 << 15, 1 << 10, 1 << 11  #: beyond which scratch no longer fits any cache
_PRICE, _PRICE_OF_LOGS = 3.0, 10.0  #: nanoseconds that a row takes, over n K
_SMALL = 1 << 14  #: n K up to which sorts in single precision are faster
_SOFT = 3.0  #: n^2 eps from which most of the weight is not where the hard sort puts it
_NOTHING: F32 = np.zeros(0, np.float32)
_NO_WEIGHTS: F64 = np.zeros(0)
_Steps = tuple[int, int, int, int, int]
_Given = tuple[F32, F32, F32, F32, int, int, int, _Steps]
_SINGLE = 1e-7  #: relative rounding of weights in single precision


def unable(ask: Ask) -> str | None:
    n, K = ask.x.shape[-1], ask.y.shape[-1]
    if ask.x.device.type != "cpu":
        return f"its kernels for the CPU were given a tensor on {ask.x.device}"
    if n > _MOST_VALUES:
        return f"its kernels for short rows take at most {_MOST_VALUES} values, and a row has {n}"
    most = _MOST_TARGETS if ask.m is None or _left_over(ask) else _MOST_NODES
    if most < K:
        return f"its kernels take at most {most} targets, and there are {K}"
    return None


def weightless(ask: Ask) -> bool:
    return not of_two(ask) and _in_double(ask)


def final(_ask: Ask) -> bool:
    """Never: a row that could not be answered says so in its error."""
    return False


def state_layout(ask: Ask) -> tuple[int, torch.dtype]:
    return _columns(ask), torch.float32


def pull(ask: Ask, phi: Tensor) -> Answer:
    x, call = ask.x, _prepared(_pull_call, ask, phi)
    if call is _NOBODY:
        return Answer(torch.empty_like(x), np.empty((len(x), 0), np.float32), np.full(len(x), np.inf, np.float32))
    out, state, error = _answers(x.shape, call)
    answers = out.reshape(-1), state.reshape(-1), error
    run(call.kernel, call.tasks, call.work, flat(x), *call.args, *answers, portions=call.portions)
    return Answer(like(out, x), state, error)


def push(ask: Ask) -> Answer:
    x, call = ask.x, _prepared(_push_call, ask, ask.y)
    out, state, error = _answers((x.shape[0], ask.y.shape[-1]), call)
    run(call.kernel, call.tasks, call.work, flat(x), *call.args, out.reshape(-1), state.reshape(-1), error)
    return Answer(torch.from_numpy(out), state, error)


def pull_backward(ask: Ask, phi: Tensor, state: State, w: Tensor) -> Tensor:
    call = _prepared(_pull_backward_call, ask, phi)
    if call is _NOBODY:
        return torch.empty_like(ask.x)
    return _backward(ask, call, call.args, state, flat(w))


def push_backward(ask: Ask, state: State, c: Tensor) -> Tensor:
    call = _prepared(_push_backward_call, ask, c)
    return _backward(ask, call, (*call.args[:_LEVELS], flat(c), *call.args[_LEVELS + 1 :]), state, _NOTHING)


def _backward(ask: Ask, call: _Call, args: tuple[Any, ...], state: State, w: F32) -> Tensor:
    grad = np.empty(ask.x.shape, np.float32)
    answers = grad.reshape(-1), _kept(state)
    run(call.kernel, call.tasks, call.work, flat(ask.x), *args, w, *answers, portions=call.portions)
    return like(grad, ask.x)


def logs_layout(ask: Ask) -> tuple[int, torch.dtype]:
    return int(logs_state(ask.x.shape[-1], ask.y.shape[-1])[2]), torch.float32


def logs(ask: Ask) -> Answer:
    (R, n), K = ask.x.shape, ask.y.shape[-1]
    out, state = np.empty((R, n, K), np.float32), np.empty((R, logs_layout(ask)[0]), np.float32)
    error = np.empty(R, np.float32)
    given = inputs(ask, weighted=True)
    run(logs_rows, R, _PRICE_OF_LOGS * R * n * K, flat(ask.x), *given, out.reshape(-1), state.reshape(-1), error)
    return Answer(torch.from_numpy(out), state, error)


def logs_backward(ask: Ask, state: State, C: Tensor) -> Tensor:
    (R, n), K = ask.x.shape, ask.y.shape[-1]
    grad, given = np.empty((R, n), np.float32), inputs(ask, weighted=True)
    work, answers = _PRICE_OF_LOGS * R * n * K, (grad.reshape(-1), _kept(state))
    run(logs_rows_backward, R, work, flat(ask.x), *given, flat(C), *answers)
    return like(grad, ask.x)


# ---- which kernels, and what they are given


class _Call(NamedTuple):
    kernel: Callable[..., None]
    tasks: int
    work: float  #: in nanoseconds, about
    args: tuple[Any, ...]  #: between x and what the kernel writes
    columns: int = 0  #: of the state, if it is to be made
    portions: int = 1  #: see ``engine.threads.run``: kernels that prepare nothing have more than one


_NOBODY = _Call(lambda *_: None, 0, 0.0, ())  #: answers this; see ``_left_over``
_LEVELS = 3  #: which of the arguments of every backward kernel are the levels, or the cotangent of what was pushed


def _prepared(make: Callable[[Ask, Tensor], _Call], ask: Ask, phi: Tensor) -> _Call:
    """``make(ask, phi)``; once for all asks that differ in the numbers of x alone."""
    if ask.known is None:
        return make(ask, phi)
    call: _Call | None = ask.known.get(make)
    if call is None:
        call = ask.known[make] = make(ask, phi)
    return call


def _pull_call(ask: Ask, phi: Tensor) -> _Call:
    if _left_over(ask):
        return _NOBODY
    return _pull_kernel(ask, phi)._replace(columns=_columns(ask))


def _push_call(ask: Ask, _: Tensor) -> _Call:
    return _push_kernel(ask)._replace(columns=_columns(ask))


def _pull_backward_call(ask: Ask, phi: Tensor) -> _Call:
    if _left_over(ask):
        return _NOBODY
    return _backward_kernel(ask, phi, push=False)


def _push_backward_call(ask: Ask, c: Tensor) -> _Call:
    """With any numbers in place of c: they change from call to call."""
    call = _backward_kernel(ask, c, push=True)
    return call._replace(args=(*call.args[:_LEVELS], _NOTHING, *call.args[_LEVELS + 1 :]))


def _pull_kernel(ask: Ask, phi: Tensor) -> _Call:
    a, y, b, eps, n, K, squash, (of_y, _, _, of_eps, of_a) = inputs(ask)
    last, levels, m = _NOTHING if ask.last is None else flat(ask.last), flat(phi), _whole(ask.m)
    steps = (of_y, step(phi), 0 if ask.last is None else step(ask.last), of_eps, of_a)
    R = ask.x.shape[0]
    work, groups = _PRICE * R * n * K, (R + 15) // 16
    if _alone(ask):
        return _Call(pull_two, R, work, (_weights(ask), y, *_exact(ask), levels, eps, n, squash, steps))
    if R >= 16 and _in_many(ask, phi):
        return _Call(pull_many, groups, work, (a, y, b, levels, last, eps, n, K, m, squash, steps))
    if _in_lanes(n, K, ask.m):
        return _Call(pull_short, groups, work, (a, y, b, levels, eps, n, K, squash, steps))
    if _of_few(K, ask.m):
        return _Call(pull_few, R, work, (a, y, *_exact(ask), levels, eps, n, K, squash, steps))
    return _Call(pull_ruled, R, work, (a, y, b, levels, last, eps, n, K, m, squash, steps), portions=2)


def _push_kernel(ask: Ask) -> _Call:
    a, y, b, eps, n, K, squash, steps = inputs(ask)
    R = ask.x.shape[0]
    work = _PRICE * R * n * K
    if _alone(ask):
        return _Call(push_two, R, work, (_weights(ask), y, *_exact(ask), eps, n, squash, steps))
    if _in_double(ask):
        return _Call(push_sorted, R, work, (a, y, b, eps, n, K, squash, _columns(ask), steps))
    if _in_lanes(n, K, ask.m):
        return _Call(push_short, (R + 15) // 16, work, (a, y, b, eps, n, K, squash, steps))
    if _of_few(K, ask.m):
        return _Call(push_few, R, work, (a, y, *_exact(ask), eps, n, K, squash, steps))
    return _Call(push_rows, R, work, (a, y, b, eps, n, K, squash, steps))


def _backward_kernel(ask: Ask, phi: Tensor, push: bool) -> _Call:
    """``phi``: for push the cotangent of the answer."""
    a, y, b, eps, n, K, squash, (of_y, _, _, of_eps, of_a) = inputs(ask)
    levels, m, how = flat(phi), _whole(ask.m), (squash, push, (of_y, step(phi), 0, of_eps, of_a))
    R = ask.x.shape[0]
    work, groups = _PRICE * R * n * K, (R + 15) // 16
    if _alone(ask):
        return _Call(two_backward, R, work, (_weights(ask), y, _exact(ask)[0], levels, eps, n, *how))
    if push and _in_double(ask):
        return _Call(sorted_backward, R, work, (a, y, b, levels, eps, n, K, squash, _columns(ask), how[2]))
    if not push and R >= 16 and _in_many(ask, phi):
        return _Call(many_backward, groups, work, (a, y, b, levels, eps, n, K, m, ask.m is not None, *how))
    if _in_lanes(n, K, ask.m):
        return _Call(short_backward, groups, work, (a, y, b, levels, eps, n, K, *how))
    if _of_few(K, ask.m):
        return _Call(few_backward, R, work, (a, y, _exact(ask)[0], levels, eps, n, K, *how))
    return _Call(ruled_backward, R, work, (a, y, b, levels, eps, n, K, m, *how), portions=2)


def _left_over(ask: Ask) -> bool:
    """Whether there are many targets and no rule for them, as eps is small: all rows are for ``rejected``."""
    K = ask.y.shape[-1]
    return ask.m == K and K > SAVED


def _alone(ask: Ask) -> bool:
    """Whether rows go to the kernels for two targets: all but very short ones, which in lanes are twice as fast."""
    return of_two(ask) and (ask.x.shape[-1] > SHORT or sharp(ask))


def _in_double(ask: Ask) -> bool:
    """Whether single precision is not enough for a sort, or no faster: eps is small, targets are many, or no squash."""
    n, K, eps = ask.x.shape[-1], ask.y.shape[-1], ask.eps
    if ask.m is not None or K <= FEW:
        return False
    return (
        ask.squash is None
        or n * K > _SMALL
        or (eps < least_eps(n, K) if not isinstance(eps, Tensor) else n > SHORT or K > SHORT)
    )


def _in_lanes(n: int, K: int, m: int | None) -> bool:
    """Whether rows are so short that sixteen are worked on at a time. Does not depend on how many there are."""
    return m is None and n <= SHORT and K <= SHORT


def _of_few(K: int, m: int | None) -> bool:
    return m is None and 3 <= K <= FEW


def _in_many(ask: Ask, phi: Tensor) -> bool:
    """Whether rows go sixteen at a time in blocks: they share their targets, and are soft and not too long."""
    n, K, eps = ask.x.shape[-1], ask.y.shape[-1], ask.eps
    if n > MODERATE or not FEW < K <= SAVED or not _soft(n, eps) or ask.a is not None:
        return False
    several = ask.y, ask.b, phi, phi if ask.last is None else ask.last
    return all(t.shape[0] == 1 for t in several)


def _soft(n: int, eps: float | Tensor) -> bool:
    return not isinstance(eps, Tensor) and n * n * eps >= _SOFT


def _whole(m: int | None) -> int:
    """How many targets are taken where a rule for them is not enough; 0 where that would be no rule, or too many."""
    return 0 if m is None or m > SAVED else m


# ---- tensors as flat arrays


def _answers(shape: tuple[int, ...], call: _Call) -> tuple[F32, F32, F32]:
    """Room for an answer, the state and the error of each row.

    Vectors are loaded from the state, so it had better begin with a line of the cache (``engine.maths.in_lines``), as
    all does that torch allocates.
    """
    R, columns = shape[0], call.columns
    return (
        np.empty(shape, np.float32),
        torch.empty(R, columns, dtype=torch.float32, device="cpu").numpy(),
        np.empty(R, np.float32),
    )


def flat(t: Tensor) -> F32:
    if t.dtype != torch.float32 or t.requires_grad:
        t = t.detach().to(torch.float32)
    if not t.is_contiguous():
        t = t.contiguous()
    array: F32 = t.numpy().reshape(-1)
    return array


def _kept(state: State) -> F32:
    """A state of ours, or the tensor that somebody made of it."""
    return state.reshape(-1) if isinstance(state, np.ndarray) else flat(state)


def like(array: F32, x: Tensor) -> Tensor:
    t = torch.from_numpy(array)
    return t if x.dtype == torch.float32 else t.to(x.dtype)


def step(t: Tensor) -> int:
    """From row to row; 0 when one row serves all."""
    shape = t.shape
    return shape[1] * (shape[2] if len(shape) > 2 else 1) if shape[0] > 1 else 0


@functools.lru_cache(maxsize=64)
def _eps(eps: float) -> F32:
    return np.full(1, eps, np.float32)


@functools.lru_cache(maxsize=256)
def _state_size(n: int, K: int, m: int | None, lanes: bool) -> int:
    """``lanes``: whether very short rows go to no other kernels."""
    if _in_lanes(n, K, m) and (K <= FEW or lanes):
        return int(short_state(K))
    if _of_few(K, m):
        return SIZE
    return int(many_layout(n, K, _whole(m)).size if n <= MODERATE and K <= SAVED else state_size(n, K, _whole(m)))


def _columns(ask: Ask) -> int:
    if _left_over(ask):
        return 0
    n, K = ask.x.shape[-1], ask.y.shape[-1]
    return TWO_SIZE if _alone(ask) else _state_size(n, K, ask.m, not (_soft(n, ask.eps) or _in_double(ask)))


def inputs(ask: Ask, weighted: bool = False) -> _Given:
    """What all kernels are given after x: a, y, b, eps, n, K, squash and the steps from row to row.

    ``weighted``: a is wanted for two targets as well, whose own kernels have it from ``_weights``.
    """
    R, n = ask.x.shape
    y, b = ask.y, ask.b
    K = y.shape[-1]
    if y.shape[0] != b.shape[0]:
        y, b = y.expand(R, K), b.expand(R, K)
    eps = flat(ask.eps) if isinstance(ask.eps, Tensor) else _eps(ask.eps)
    steps = (K if y.shape[0] > 1 else 0, 0, 0, 1 if len(eps) > 1 else 0, 0 if ask.a is None else n)
    a = _NOTHING if ask.a is None or (_alone(ask) and not weighted) else flat(ask.a)
    return a, flat(y), flat(b), eps, n, K, SQUASH_CODES[ask.squash], steps


def _exact(ask: Ask) -> tuple[F64, float]:
    """b as kernels for a few targets want it, and the relative rounding of what they see of b and of the weights."""
    b = ask.b if ask.y.shape[0] == ask.b.shape[0] else ask.b.expand(ask.x.shape[0], -1)
    single = b.dtype == torch.float32 or (ask.a is not None and not _alone(ask))
    return _wide(b), _SINGLE if single else 0.0


def _weights(ask: Ask) -> F64:
    """The same of a, for two targets."""
    return _NO_WEIGHTS if ask.a is None else _wide(ask.a)


def _wide(t: Tensor) -> F64:
    return np.ascontiguousarray(t.detach().numpy(), dtype=np.float64).reshape(-1)
