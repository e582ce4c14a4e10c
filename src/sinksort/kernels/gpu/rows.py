"""Triton kernels for rows that fit a thread block: the contract of ``contract`` for CUDA, n up to 2048.

Where values are pulled, rows whose plan fits into registers are answered by ``registers.rows``, one program each, and
rows of many values whose targets are given by a rule by way of a grid, in the launches of ``grid.rows``; a launch
of ``exact.rows`` follows for those of them with gaps, ties and tails. The others are answered by
``exact.matrix``, one program each. A last launch is always made and returns at once for rows whose estimated error is
small; the others are solved with all their targets (``exact.all_targets``), gradients included.
Nothing waits for the device, and the number of launches does not depend on values. Answers are final: a row that failed
every time is NaN. Plans as such (``logs``) are answered by the last kernel alone.
"""

from __future__ import annotations

import os
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..contract import Answer, Request, if_differentiated
from ..dispatch import EXACT, GRID, MATRIX, REGISTERS, kernels_for
from .engine.given import Given, sizes_of
from .engine.launch import Recorder, launches, replayed
from .engine.parts import SQUASHES
from .engine.state import doubles_for
from .exact import all_targets, matrix
from .exact import rows_launch as exact_rows
from .grid import rows as by_grid
from .registers import rows

_What: TypeAlias = tuple[int, bool, bool, str, int, int | None]
_PULL, _PUSH, _LOGS = all_targets.PULL.value, all_targets.PUSH.value, all_targets.LOGS.value
_READS = {_PULL: "pull", _PUSH: "push", _LOGS: "logs"}
_MOST_OF_WEAK_LINKS = 32  #: values and targets of a plan that may hang on frail links
_MOST_IN_DOUBLE = 256  #: targets up to which the last launch computes in double precision; a grid is for more
_EXACT = 256  #: rows up to this length start from their exact staircase
_SURE = 1e-3  #: eps from which every row is solved
_BEFORE_GRID = 8  #: columns of the state before what the grid leaves
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def unable(request: Request) -> str | None:
    """Why these kernels cannot answer, or None if they can."""
    if not request.x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"Triton kernels run on CUDA, and x is on {request.x.device}"
    if request.x.dtype not in _DTYPES:
        return f"Triton kernels compute in single precision, and x is {request.x.dtype}"
    if request.squash not in SQUASHES:
        return f"these kernels know the squashes 'sigmoid', 'arctan' and None, and squash={request.squash!r}"
    return None


def weightless(_request: Request) -> bool:
    return False


def rejects_by_nan(request: Request) -> bool:
    """Not where eps is so small that a row may fail in double precision: it is the reference's then, and no NaN."""
    return isinstance(request.eps, Tensor) or request.eps >= _SURE


def state_layout(request: Request) -> tuple[int, torch.dtype]:
    """What the grid leaves is behind the facts of a row, and all parts and rows begin at multiples of 64 bytes then.

    Of a row that is taken over, potentials stand where the grid's tables were; the gradient that a grid makes of such
    tables, if any, is written over.
    """
    columns = doubles_for(max(request.y.shape[-1], request.m or 0))
    if _on_grid(request):
        columns = max(_BEFORE_GRID + sizes_of(request.y).state // 2, _before_tables(request.y) + columns)
        columns = -(-columns // 8) * 8
    return columns, torch.float64


def _before_tables(y: Tensor) -> int:
    """Columns of a state before the tables of the grid."""
    return _BEFORE_GRID + sizes_of(y).before_tables // 2


def _on_grid(request: Request) -> bool:
    """Whether values are spread to a grid first, if they are pulled."""
    return _answering(request, _PULL) == GRID


def _answering(request: Request, read: int) -> str:
    return kernels_for("triton", request, _READS[read], entry="gpu.rows").answer


def pull(request: Request, phi: Tensor) -> Answer:
    return _forward(request, phi)


def push(request: Request) -> Answer:
    return _forward(request, None)


def pull_backward(request: Request, phi: Tensor, state: Tensor, w: Tensor) -> Tensor:
    return _backward(request, phi, state, w)


def push_backward(request: Request, state: Tensor, c: Tensor) -> Tensor:
    return _backward(request, None, state, c)


def logs_layout(request: Request) -> tuple[int, torch.dtype]:
    return state_layout(request)


def logs(request: Request) -> Answer:
    """In one launch, in double precision."""
    made = replayed(request.prepared, "logs", request.x)
    if made is not None:
        return Answer(*made)
    given, eps, eps_rows = _given(request, None)
    (R, n), K = request.x.shape, request.y.shape[-1]
    columns, dtype = state_layout(request)
    out = request.x.new_empty(R, n, K, dtype=torch.float32)
    state, error = request.x.new_empty(R, columns, dtype=dtype), request.x.new_empty(R, dtype=torch.float32)
    what = _launch_key(request, _LOGS)

    def make(launch: Recorder) -> None:
        sizes = _Sizes.of(given, what)
        at_once, warps = sizes.second
        launch(
            all_targets.forward, R, *given, eps_rows, out, state, error, eps,
            n, K, K, columns, 0, *sizes.strides, **sizes.constants, READ=_LOGS,
            GRID=False, ALWAYS=True, F64=True, TA=0, BLOCK_N=_power(n), BN=at_once, BK=_power(K), num_warps=warps,
        )  # fmt: skip

    launches(
        ("logs", *what), (*given, eps_rows), (out, state, error), eps, make, request.prepared, (request.x,),
        if_differentiated(lambda: logs_backward(request._replace(prepared=None), state, torch.empty_like(out))),
    )  # fmt: skip
    return Answer(out, state, error)


def logs_backward(request: Request, state: Tensor, C: Tensor) -> Tensor:
    C = C.contiguous()
    made = replayed(request.prepared, "logs backward", request.x, state, C)
    if made is not None:
        return made[0]
    given, eps, eps_rows = _given(request, None)
    (R, n), K = request.x.shape, request.y.shape[-1]
    grad = request.x.new_empty(request.x.shape)
    what = _launch_key(request, _LOGS)

    def make(launch: Recorder) -> None:
        sizes = _Sizes.of(given, what)
        at_once, warps = sizes.second
        partial = _singles(grad, launch)
        launch(
            all_targets.backward, R, *given, C, eps_rows, state, partial, partial, grad, eps,
            n, K, K, state.shape[1], 0, *sizes.strides, _row_stride(C), 1, **sizes.constants, READ=_LOGS,
            GRID=False, F64=True, TA=0, BLOCK_N=_power(n), BN=at_once, BK=_power(K), num_warps=warps,
        )  # fmt: skip

    all_given = (*given, C, eps_rows, state)
    launches(("logs backward", *what), all_given, (grad,), eps, make, request.prepared, (request.x, state, C))
    return grad


def _given(request: Request, phi: Tensor | None) -> tuple[tuple[Tensor, ...], float, Tensor]:
    """x, a, y, b, phi; eps as a number and as rows, of which one is not read."""
    y = request.y.contiguous()
    levels = y if phi is None else phi.contiguous()  # not read when values are pushed
    eps, eps_rows = (0.0, request.eps) if isinstance(request.eps, Tensor) else (float(request.eps), y)
    return (request.x, request.x if request.a is None else request.a, y, request.b.contiguous(), levels), eps, eps_rows


def _launch_key(request: Request, read: int) -> _What:
    """All that launches depend on and that is not the layout of a tensor.

    SQUASH, WEIGHTED, EPS_ROWS, the answer of the table, READ and m.
    """
    return (
        SQUASHES[request.squash],
        request.a is not None,
        isinstance(request.eps, Tensor),
        _answering(request, read),
        read,
        request.m,
    )


def all_in_double(request: Request, read: int = _PULL) -> bool:
    """Whether all rows are for the last launch, which computes in double precision (up to 256 targets).

    Weights, uneven targets (whose weights are double) and a small eps cost plans in single precision their gradients.
    Of 4,096 rows up to 3,900 were off, and of unweighted ones at eps = 1e-4 one or two.
    """
    return _answering(request, read) == EXACT


class _Sizes(NamedTuple):
    """What both launches need to know, from the tensors and from ``_launch_key``."""

    n: int
    K: int
    strides: tuple[int, ...]  #: of x, a, y, b, phi
    constants: dict[str, int | bool]
    pull: bool
    rule: bool
    targets: int  #: of the second launch
    wide: bool
    answer: str  #: of the table

    @classmethod
    def of(cls, given: tuple[Tensor, ...], what: _What) -> _Sizes:
        x, a, y, b, phi = given
        *kind, answer, read, m = what
        rule = m is not None and read == _PULL
        K = y.shape[1]
        targets = m if m is not None and rule else K
        strides = (
            _row_stride(x), x.stride(1), _row_stride(a), a.stride(1), _row_stride(y), _row_stride(b), _row_stride(phi),
        )  # fmt: skip
        constants = dict(zip(("SQUASH", "WEIGHTED", "EPS_ROWS"), kind, strict=True))
        wide = targets <= _MOST_IN_DOUBLE
        return cls(x.shape[1], K, strides, constants, read == _PULL, rule, targets, wide, answer)

    @property
    def tiles(self) -> dict[str, int]:
        """How ``registers.rows`` shares a plan among threads, and how many warps."""
        block_n, block_k = _power(self.n, 8), _power(self.K, 8)
        pairs = block_n * block_k
        warps = 1 if pairs <= 1024 else 2 if pairs <= 2048 else 4
        lanes = 16 if block_k > 64 else 8
        values = 32 // lanes * warps
        across = max(1, block_n // values)
        few = max(block_n, block_k) <= _MOST_OF_WEAK_LINKS
        return {"LINKS": few, "KA": block_k // lanes, "V": across, "X": values, "KB": lanes, "num_warps": warps}

    @property
    def first(self) -> tuple[int, int]:
        """How many values at a time, and warps: more would not fit into registers."""
        block_n, block_k = _power(self.n), _power(self.K)
        at_once = min(block_n, {16: 128, 32: 64, 64: 64, 128: 32}[block_k])
        return at_once, 2 if at_once * block_k <= 512 else 4 if at_once * block_k <= 2048 else 8

    @property
    def second(self) -> tuple[int, int]:
        if self.wide:
            return min(_power(self.n), 32), 4 if _power(self.targets) <= 64 else 8
        return 8192 // _power(self.targets), 8


def _given_to_grid(
    given: tuple[Tensor, ...],
    eps: float,
    eps_rows: Tensor,
    what: _What,
    state: Tensor,
) -> Given:
    x, a, y, b, phi = given
    code, weighted, by_row = what[:3]
    size = 2 * state.shape[1]
    return Given(x, a, y, b, phi, eps, eps_rows, code, weighted, by_row, state, size, 2 * _BEFORE_GRID)


def _row_stride(t: Tensor) -> int:
    return t.stride(0) if t.shape[0] > 1 else 0


def _power(count: int, least: int = 16) -> int:
    return max(least, 1 << (count - 1).bit_length())


def _singles(result: Tensor, launch: Recorder) -> Tensor:
    """Memory for as many numbers in single precision: a result in which nothing stands yet, or scratch."""
    return result if result.dtype == torch.float32 else launch.empty(*result.shape, dtype=torch.float32)


def _forward(request: Request, phi: Tensor | None) -> Answer:
    made = replayed(request.prepared, "forward", request.x)
    if made is not None:
        return Answer(*made)
    given, eps, eps_rows = _given(request, phi)
    x, R = request.x, request.x.shape[0]
    columns, dtype = state_layout(request)
    last = given[2] if request.last is None else request.last.contiguous()
    out = x.new_empty(R, given[2].shape[1], dtype=torch.float32) if phi is None else x.new_empty(x.shape)
    state = x.new_empty(R, columns, dtype=dtype)
    error = x.new_empty(R, dtype=torch.float32)
    read = _PUSH if phi is None else _PULL
    what = _launch_key(request, read)
    on_grid = read == _PULL and _on_grid(request)

    def make(launch: Recorder) -> None:
        sizes = _Sizes.of(given, what)
        n, K = sizes.n, sizes.K
        if on_grid:
            to_grid = _given_to_grid(given, eps, eps_rows, what, state)
            by_grid.forward(launch, to_grid, last, out, error)
            exact_rows.forward(launch, to_grid, sizes.targets, out, error)
        elif sizes.answer in (REGISTERS, MATRIX):
            singles = _singles(out, launch) if sizes.pull else launch.empty(R, n, dtype=torch.float32)
            results = (singles, out, state, error)
            numbers = (eps, n, K, columns, *sizes.strides, _row_stride(last))
            constants = sizes.constants | {"RULE": sizes.rule and request.last is not None, "RETRIED": sizes.wide}
            if sizes.answer == REGISTERS:
                launch(rows.forward, R, *given, last, eps_rows, *results, *numbers, **constants, **sizes.tiles)
            else:
                at_once, warps = sizes.first
                high = launch.empty(R, n, dtype=torch.float16)
                launch(
                    matrix.forward, R, *given, last, eps_rows, high, *results, *numbers,
                    **constants, PUSH=read == _PUSH, EXACT=n <= _EXACT,
                    BLOCK_N=_power(n), BN=at_once, BK=_power(K), num_warps=warps,
                )  # fmt: skip
        at_once, warps = sizes.second
        launch(
            all_targets.forward, R, *given, eps_rows, out, state, error, eps,
            n, K, sizes.targets, columns, _before_tables(given[2]) if on_grid else 0, *sizes.strides,
            **sizes.constants, READ=read, GRID=sizes.rule,
            ALWAYS=sizes.answer == EXACT, F64=sizes.wide, TA=0 if sizes.wide else 1,
            BLOCK_N=_power(n), BN=at_once, BK=_power(sizes.targets), num_warps=warps,
        )  # fmt: skip

    all_given = (*given, last, eps_rows)
    launches(
        ("forward", request.last is None, *what), all_given, (out, state, error), eps, make, request.prepared, (x,),
        if_differentiated(lambda: _backward(request._replace(prepared=None), phi, state, torch.empty_like(out))),
    )  # fmt: skip
    return Answer(out, state, error)


def _backward(request: Request, phi: Tensor | None, state: Tensor, w: Tensor) -> Tensor:
    made = replayed(request.prepared, "backward", request.x, state, w)
    if made is not None:
        return made[0]
    given, eps, eps_rows = _given(request, phi)
    x, R = request.x, request.x.shape[0]
    grad = x.new_empty(x.shape)
    read = _PUSH if phi is None else _PULL
    what = _launch_key(request, read)
    on_grid = read == _PULL and _on_grid(request)

    def make(launch: Recorder) -> None:
        sizes = _Sizes.of(given, what)
        n, K = sizes.n, sizes.K
        partial = _singles(grad, launch)
        room = partial if sizes.pull else launch.empty(R, max(n, K), dtype=torch.float32)
        strides = *sizes.strides, _row_stride(w), w.stride(1)
        if on_grid:
            to_grid = _given_to_grid(given, eps, eps_rows, what, state)
            by_grid.backward(launch, to_grid, w, grad)
            exact_rows.backward(launch, to_grid, sizes.targets, w, grad)
        elif sizes.answer in (REGISTERS, MATRIX):
            if sizes.answer == REGISTERS:
                launch(
                    rows.backward, R, *given, w, eps_rows, partial, state, grad, eps,
                    n, K, state.shape[1], *strides, **sizes.constants, **sizes.tiles,
                )  # fmt: skip
            else:
                at_once, warps = sizes.first
                high = launch.empty(R, n, dtype=torch.float16)
                if sizes.pull:
                    room = launch.empty(R, K, dtype=torch.float32)
                launch(
                    matrix.backward, R, *given, w, eps_rows, high, room, state, partial, grad, eps,
                    n, K, state.shape[1], *strides, **sizes.constants, PUSH=read == _PUSH,
                    BLOCK_N=_power(n), BN=at_once, BK=_power(K), num_warps=warps,
                )  # fmt: skip
        at_once, warps = sizes.second
        launch(
            all_targets.backward, R, *given, w, eps_rows, state, partial, room, grad, eps,
            n, K, sizes.targets, state.shape[1], _before_tables(given[2]) if on_grid else 0, *strides,
            **sizes.constants, READ=read,
            GRID=sizes.rule, F64=sizes.wide, TA=0 if sizes.wide else 1,
            BLOCK_N=_power(n), BN=at_once, BK=_power(sizes.targets), num_warps=warps,
        )  # fmt: skip

    launches(
        ("backward", on_grid, *what), (*given, w, eps_rows, state), (grad,), eps, make, request.prepared, (x, state, w)
    )
    return grad
