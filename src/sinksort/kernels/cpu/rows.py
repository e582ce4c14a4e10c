"""Kernels on the CPU for batches of short rows, compiled by Numba: what ``requests_made.Kernels`` wants.

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
from numpy.typing import NDArray
from torch import Tensor

from ...linear.rules import gauss_rule
from ..contract import Answer, Request, State
from ..dispatch import has_two_targets, least_eps, least_of, sharp
from . import by_nodes
from .engine.maths import F32, F64, SQUASH_CODES
from .engine.sources import padded
from .engine.threads import run
from .lanes.band_others import band_layout
from .lanes.band_push import many_push_backward, push_band
from .lanes.band_rows import MOST_IN_BAND, pull_band
from .lanes.band_rows_backward import band_backward
from .lanes.plan import MOST_IN_LANES
from .lanes.rows import lanes_state, pull_lanes, push_lanes
from .lanes.rows_backward import lanes_backward
from .row.all_targets import pull_ruled, ruled_backward
from .row.log_plan import logs_rows, logs_rows_backward, logs_state
from .row.push import push_rows
from .row.solve import rows_backward
from .row.work import NODES, SAVED, state_size
from .sort.rows import push_sorted, sorted_backward
from .thresholds.read import SIZE, pull_thresholds, push_thresholds, threshold_backward
from .thresholds.sums import MOST_THRESHOLDS
from .thresholds.two import TWO_SIZE, pull_two, push_two, two_backward

_MOST_VALUES, _MOST_NODES, _MOST_TARGETS = 1 << 15, 1 << 10, 1 << 11  #: beyond which scratch no longer fits any cache
_PRICE, _PRICE_OF_LOGS = 3.0, 10.0  #: nanoseconds that a row takes, over n K
_SMALL = 1 << 14  #: n K up to which sorts in single precision are faster
_SOFT = 3.0  #: n^2 eps from which most of the weight is not where the hard sort puts it
_NOTHING: F32 = np.zeros(0, np.float32)
_NO_WEIGHTS: F64 = np.zeros(0)
_Steps = tuple[int, int, int, int, int]
_Given = tuple[F32, F32, F32, F32, int, int, int, _Steps]
_MORE_NODES, _WORTH = 1.4, 1.3  #: nodes of a finer rule, and targets for each of them from which it is worth it
_SINGLE = 1e-7  #: relative rounding of weights in single precision


def unable(request: Request) -> str | None:
    n, K = request.x.shape[-1], request.y.shape[-1]
    if request.x.device.type != "cpu":
        return f"its kernels for the CPU were given a tensor on {request.x.device}"
    if n > _MOST_VALUES:
        return f"its kernels for short rows take at most {_MOST_VALUES} values, and a row has {n}"
    most = _MOST_TARGETS if request.m is None or _beyond_a_rule(request) else _MOST_NODES
    if most < K:
        return f"its kernels take at most {most} targets, and there are {K}"
    return None


def weightless(request: Request) -> bool:
    return not has_two_targets(request) and _in_double(request)


def rejects_by_nan(_request: Request) -> bool:
    """Never: a row that could not be answered says so in its error."""
    return False


def state_layout(request: Request) -> tuple[int, torch.dtype]:
    return _columns(request), torch.float32


def pull(request: Request, phi: Tensor) -> Answer:
    x, call = request.x, _prepared(_pull_launch, request, phi)
    if call is _REJECT_ALL:
        return Answer(torch.empty_like(x), np.empty((len(x), 0), np.float32), np.full(len(x), np.inf, np.float32))
    out, state, error = _answers(x.shape, call)
    answers = out.reshape(-1), state.reshape(-1), error
    run(call.kernel, call.tasks, call.work, flat(x), *call.args, *answers)
    return Answer(like(out, x), state, error)


def push(request: Request) -> Answer:
    if _by_nodes(request):
        return by_nodes.push(request, _push_at_nodes, _records)
    return _push_at_nodes(request._replace(m=None))


def _push_at_nodes(request: Request) -> Answer:
    """``push``; of a rule what its nodes receive, in units of the standardised row."""
    x, call = request.x, _prepared(_push_launch, request, request.y)
    out, state, error = _answers((x.shape[0], request.y.shape[-1]), call)
    run(call.kernel, call.tasks, call.work, flat(x), *call.args, out.reshape(-1), state.reshape(-1), error)
    return Answer(torch.from_numpy(out), state, error)


def pull_backward(request: Request, phi: Tensor, state: State, w: Tensor) -> Tensor:
    call = _prepared(_pull_backward_launch, request, phi)
    if call is _REJECT_ALL:
        return torch.empty_like(request.x)
    return _backward(request, call, call.args, state, flat(w))


def _records(request: Request, state: State) -> by_nodes.Records:
    R, K, many = len(state), request.y.shape[-1], _in_groups(request)
    kept = _kept(state)
    at = _places_of_records(R, request.x.shape[-1], K, _whole(request.m), len(kept) // max(R, 1), many)
    return by_nodes.Records(kept.view(np.float64), at, NODES)


@functools.lru_cache(maxsize=64)
def _places_of_records(R: int, n: int, K: int, m: int, size: int, many: bool) -> NDArray[np.int64]:
    rows = np.arange(R)
    at: NDArray[np.int64] = rows * (size // 2) + padded(K)
    if many:
        layout = band_layout(n, K, m)
        lanes = (rows // 16 * 16 * size + 16 * layout.lanes + rows % 16 * layout.other) // 2
        at = np.where(rows < R // 16 * 16, lanes, at)
    return at


def _by_nodes(request: Request) -> bool:
    """Whether a sort is read between nodes, or of all targets known to be equal by kernels that want to know that."""
    return request.m is not None and (
        request.m != request.y.shape[-1] or request.x.shape[-1] > MOST_IN_BAND or _in_groups(request)
    )


def _in_groups(request: Request) -> bool:
    """Whether sorts go sixteen rows at a time. All rows share their eps there."""
    one_eps = not isinstance(request.eps, Tensor)
    return one_eps and request.x.shape[0] >= 16 and _in_band(request, request.y)


def push_backward(request: Request, state: State, c: Tensor) -> Tensor:
    if _by_nodes(request):
        return by_nodes.push_backward(request, state, c, _push_at_nodes, _push_at_nodes_backward, _records)
    return _push_at_nodes_backward(request._replace(m=None), state, c)


def _push_at_nodes_backward(request: Request, state: State, c: Tensor) -> Tensor:
    call = _prepared(_push_backward_launch, request, c)
    return _backward(request, call, (*call.args[:_LEVELS], flat(c), *call.args[_LEVELS + 1 :]), state, _NOTHING)


def _backward(request: Request, call: _Launch, args: tuple[Any, ...], state: State, w: F32) -> Tensor:
    grad = np.empty(request.x.shape, np.float32)
    answers = grad.reshape(-1), _kept(state)
    run(call.kernel, call.tasks, call.work, flat(request.x), *args, w, *answers)
    return like(grad, request.x)


def logs_layout(request: Request) -> tuple[int, torch.dtype]:
    return int(logs_state(request.x.shape[-1], request.y.shape[-1])[2]), torch.float32


def logs(request: Request) -> Answer:
    (R, n), K = request.x.shape, request.y.shape[-1]
    out, state = np.empty((R, n, K), np.float32), np.empty((R, logs_layout(request)[0]), np.float32)
    error = np.empty(R, np.float32)
    given = inputs(request, weighted=True)
    run(logs_rows, R, _PRICE_OF_LOGS * R * n * K, flat(request.x), *given, out.reshape(-1), state.reshape(-1), error)
    return Answer(torch.from_numpy(out), state, error)


def logs_backward(request: Request, state: State, C: Tensor) -> Tensor:
    (R, n), K = request.x.shape, request.y.shape[-1]
    grad, given = np.empty((R, n), np.float32), inputs(request, weighted=True)
    work, answers = _PRICE_OF_LOGS * R * n * K, (grad.reshape(-1), _kept(state))
    run(logs_rows_backward, R, work, flat(request.x), *given, flat(C), *answers)
    return like(grad, request.x)


# ---- which kernels, and what they are given


class _Launch(NamedTuple):
    kernel: Callable[..., None]
    tasks: int
    work: float  #: in nanoseconds, about
    args: tuple[Any, ...]  #: between x and what the kernel writes
    columns: int = 0  #: of the state, if it is to be made


_REJECT_ALL = _Launch(lambda *_: None, 0, 0.0, ())  #: answers this; see ``_beyond_a_rule``
_LEVELS = 3  #: which of the arguments of every backward kernel are the levels, or the cotangent of what was pushed


def _prepared(make: Callable[[Request, Tensor], _Launch], request: Request, phi: Tensor) -> _Launch:
    """``make(ask, phi)``; once for all asks that differ in the numbers of x alone."""
    if request.prepared is None:
        return make(request, phi)
    call: _Launch | None = request.prepared.get(make)
    if call is None:
        call = request.prepared[make] = make(request, phi)
    return call


def _pull_launch(request: Request, phi: Tensor) -> _Launch:
    if _beyond_a_rule(request):
        return _REJECT_ALL
    return _pull_kernel(request, phi)._replace(columns=_columns(request))


def _push_launch(request: Request, _: Tensor) -> _Launch:
    return _push_kernel(request)._replace(columns=_columns(request))


def _pull_backward_launch(request: Request, phi: Tensor) -> _Launch:
    if _beyond_a_rule(request):
        return _REJECT_ALL
    return _backward_kernel(request, phi, push=False)


def _push_backward_launch(request: Request, c: Tensor) -> _Launch:
    """With any numbers in place of c: they change from call to call."""
    call = _backward_kernel(request, c, push=True)
    return call._replace(args=(*call.args[:_LEVELS], _NOTHING, *call.args[_LEVELS + 1 :]))


def _pull_kernel(request: Request, phi: Tensor) -> _Launch:
    a, y, b, eps, n, K, squash, (of_y, _, _, of_eps, of_a) = inputs(request)
    last, levels, m = _NOTHING if request.last is None else flat(request.last), flat(phi), _whole(request.m)
    steps = (of_y, step(phi), 0 if request.last is None else step(request.last), of_eps, of_a)
    R = request.x.shape[0]
    work, groups = _PRICE * R * n * K, (R + 15) // 16
    if _by_threshold(request):
        return _Launch(pull_two, R, work, (_weights(request), y, *_exact(request), levels, eps, n, squash, steps))
    if R >= 16 and _in_band(request, phi):
        steps = (of_y, step(phi), _is_padded(request), of_eps, of_a)
        finer = _finer(request, phi)
        return _Launch(pull_band, groups, work, (a, y, b, levels, last, finer, eps, n, K, m, squash, steps))
    if _in_lanes(n, K, request.m):
        return _Launch(pull_lanes, groups, work, (a, y, b, levels, eps, n, K, squash, steps))
    if _by_sums(K, request.m):
        return _Launch(pull_thresholds, R, work, (a, y, *_exact(request), levels, eps, n, K, squash, steps))
    return _Launch(pull_ruled, R, work, (a, y, b, levels, last, eps, n, K, m, squash, steps))


def _push_kernel(request: Request) -> _Launch:
    a, y, b, eps, n, K, squash, steps = inputs(request)
    R = request.x.shape[0]
    work = _PRICE * R * n * K
    if _by_threshold(request):
        return _Launch(push_two, R, work, (_weights(request), y, *_exact(request), eps, n, squash, steps))
    if _in_double(request):
        return _Launch(push_sorted, R, work, (a, y, b, eps, n, K, squash, _columns(request), steps))
    if _in_lanes(n, K, request.m):
        return _Launch(push_lanes, (R + 15) // 16, work, (a, y, b, eps, n, K, squash, steps))
    if _by_sums(K, request.m):
        return _Launch(push_thresholds, R, work, (a, y, *_exact(request), eps, n, K, squash, steps))
    last, m = _NOTHING if request.last is None else flat(request.last), request.m or 0
    if m > 0 and _in_groups(request):
        return _Launch(push_band, (R + 15) // 16, work, (a, y, b, last, eps, n, K, m, squash, steps))
    steps = (steps[0], 0, 0 if request.last is None else step(request.last), *steps[3:])
    return _Launch(push_rows, R, work, (a, y, b, last, eps, n, K, m, squash, steps))


def _backward_kernel(request: Request, phi: Tensor, push: bool) -> _Launch:
    """``phi``: for push the cotangent of the answer."""
    a, y, b, eps, n, K, squash, (of_y, _, _, of_eps, of_a) = inputs(request)
    levels, m, how = flat(phi), _whole(request.m), (squash, push, (of_y, step(phi), 0, of_eps, of_a))
    R = request.x.shape[0]
    work, groups = _PRICE * R * n * K, (R + 15) // 16
    if _by_threshold(request):
        return _Launch(two_backward, R, work, (_weights(request), y, _exact(request)[0], levels, eps, n, *how))
    if push and _in_double(request):
        return _Launch(sorted_backward, R, work, (a, y, b, levels, eps, n, K, squash, _columns(request), how[2]))
    if not push and R >= 16 and _in_band(request, phi):
        ruled = request.m is not None
        steps = (of_y, step(phi), _is_padded(request), of_eps, of_a)
        finer = _finer(request, phi)
        return _Launch(band_backward, groups, work, (a, y, b, levels, finer, eps, n, K, m, ruled, squash, steps))
    if _in_lanes(n, K, request.m):
        return _Launch(lanes_backward, groups, work, (a, y, b, levels, eps, n, K, *how))
    if _by_sums(K, request.m):
        return _Launch(threshold_backward, R, work, (a, y, _exact(request)[0], levels, eps, n, K, *how))
    if push and request.m is not None and _in_groups(request):
        args = (a, y, b, levels, eps, n, K, request.m, squash, how[2])
        return _Launch(many_push_backward, groups, work, args)
    if push:
        return _Launch(rows_backward, R, work, (a, y, b, levels, eps, n, K, False, _columns(request), *how))
    return _Launch(ruled_backward, R, work, (a, y, b, levels, eps, n, K, m, *how))


def _beyond_a_rule(request: Request) -> bool:
    """Whether there are many targets and no rule for them, as eps is small: all rows are for ``rejected``."""
    K = request.y.shape[-1]
    return request.m == K and K > SAVED


def _by_threshold(request: Request) -> bool:
    """Whether rows go to the kernels for two targets: all but very short ones, which in lanes are twice as fast."""
    return has_two_targets(request) and (request.x.shape[-1] > MOST_IN_LANES or sharp(request))


def _in_double(request: Request) -> bool:
    """Whether single precision is not enough for a sort, or no faster: eps is small, targets are many, or no squash."""
    n, K, eps = request.x.shape[-1], request.y.shape[-1], request.eps
    if request.m is not None or K <= MOST_THRESHOLDS:
        return False
    return request.squash is None or n * K > _SMALL or least_of(eps) < least_eps(n, K)


def _in_lanes(n: int, K: int, m: int | None) -> bool:
    """Whether rows are so short that sixteen are worked on at a time. Does not depend on how many there are."""
    return m is None and n <= MOST_IN_LANES and K <= MOST_IN_LANES


def _by_sums(K: int, m: int | None) -> bool:
    return m is None and 3 <= K <= MOST_THRESHOLDS


def _in_band(request: Request, phi: Tensor) -> bool:
    """Whether rows go sixteen at a time in blocks: they are soft and not too long, and a rule is the same for all."""
    n, K, eps = request.x.shape[-1], request.y.shape[-1], request.eps
    if n > MOST_IN_BAND or not MOST_THRESHOLDS < K <= SAVED or not _soft(n, eps):
        return False
    several = request.y, request.b, phi, phi if request.last is None else request.last
    return request.m is None or all(t.shape[0] == 1 for t in several)


def _finer(request: Request, phi: Tensor) -> F32:
    """Another rule for rows of which this one is too coarse: y, b, phi and ``last``; empty where it is not worth it."""
    m, K = request.m, request.y.shape[-1]
    nodes = 8 * -(-int(_MORE_NODES * K) // 8)
    if m is None or m < _WORTH * nodes or m > SAVED or request.last is None:
        return _NOTHING
    at, b, last = gauss_rule(m, nodes)
    y, levels = flat(request.y), flat(phi)
    slope = (float(levels[-1]) - float(levels[0])) / (float(y[-1]) - float(y[0]))
    places = at / (m - 1)
    lines = (places, b, float(levels[0]) + slope * (places - float(y[0])), last.reshape(-1))
    return np.concatenate(lines).astype(np.float32)


def _is_padded(request: Request) -> int:
    """1 if rows have padding behind their values and behind their default targets, else 0."""
    padded = request.m is None and request.last is not None and request.last.numel() == 0
    return int(padded and request.y.shape[0] > 1 and request.x.shape[-1] == request.y.shape[-1])


def _soft(n: int, eps: float | Tensor) -> bool:
    return n * n * least_of(eps) >= _SOFT


def _whole(m: int | None) -> int:
    """How many targets are taken where a rule for them is not enough; 0 where that would be no rule, or too many."""
    return 0 if m is None or m > SAVED else m


# ---- tensors as flat arrays


def _answers(shape: tuple[int, ...], call: _Launch) -> tuple[F32, F32, F32]:
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
    if _in_lanes(n, K, m) and (K <= MOST_THRESHOLDS or lanes):
        return int(lanes_state(K))
    if _by_sums(K, m):
        return SIZE
    return int(band_layout(n, K, _whole(m)).size if n <= MOST_IN_BAND and K <= SAVED else state_size(n, K, _whole(m)))


def _columns(request: Request) -> int:
    if _beyond_a_rule(request):
        return 0
    n, K = request.x.shape[-1], request.y.shape[-1]
    return (
        TWO_SIZE
        if _by_threshold(request)
        else _state_size(n, K, request.m, not (_soft(n, request.eps) or _in_double(request)))
    )


def inputs(request: Request, weighted: bool = False) -> _Given:
    """What all kernels are given after x: a, y, b, eps, n, K, squash and the steps from row to row.

    ``weighted``: a is wanted for two targets as well, whose own kernels have it from ``_weights``.
    """
    R, n = request.x.shape
    y, b = request.y, request.b
    K = y.shape[-1]
    if y.shape[0] != b.shape[0]:
        y, b = y.expand(R, K), b.expand(R, K)
    eps = flat(request.eps) if isinstance(request.eps, Tensor) else _eps(request.eps)
    steps = (K if y.shape[0] > 1 else 0, 0, 0, 1 if len(eps) > 1 else 0, 0 if request.a is None else n)
    a = _NOTHING if request.a is None or (_by_threshold(request) and not weighted) else flat(request.a)
    return a, flat(y), flat(b), eps, n, K, SQUASH_CODES[request.squash], steps


def _exact(request: Request) -> tuple[F64, float]:
    """b as kernels for a few targets want it, and the relative rounding of what they see of b and of the weights."""
    b = request.b if request.y.shape[0] == request.b.shape[0] else request.b.expand(request.x.shape[0], -1)
    single = b.dtype == torch.float32 or (request.a is not None and not _by_threshold(request))
    return _wide(b), _SINGLE if single else 0.0


def _weights(request: Request) -> F64:
    """The same of a, for two targets."""
    return _NO_WEIGHTS if request.a is None else _wide(request.a)


def _wide(t: Tensor) -> F64:
    return np.ascontiguousarray(t.detach().numpy(), dtype=np.float64).reshape(-1)
