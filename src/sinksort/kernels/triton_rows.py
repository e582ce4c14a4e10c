"""Triton kernels for rows that fit a thread block: the contract of ``asks`` for CUDA, n up to 2048.

Every row is answered by one program in the first launch (``triton_short``). A second launch is always made and returns
at once for rows whose estimated error is small; the others are solved with all their targets (``triton_whole``).
Nothing waits for the device, and the number of launches does not depend on values. Answers are final: a row that failed
twice is NaN.
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

import torch
from torch import Tensor

from . import triton_short, triton_whole
from .asks import Answer, Ask
from .triton_launch import Launch
from .triton_parts import SQUASHES

FINAL = True

_LONGEST = 2048
_FEW = 128  #: targets of one matrix
_WIDE = 256  #: targets up to which the second launch computes in double precision
_HEAD = 8  #: columns of the state before U
_EXACT = 256  #: rows up to this length start from their exact staircase
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def unable(ask: Ask) -> str | None:
    """Why these kernels cannot answer, or None if they can."""
    n, K = ask.x.shape[-1], ask.y.shape[-1]
    if not ask.x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"Triton kernels run on CUDA, and x is on {ask.x.device}"
    if ask.x.dtype not in _DTYPES:
        return f"Triton kernels compute in single precision, and x is {ask.x.dtype}"
    if n > _LONGEST:
        return f"these kernels take rows of at most {_LONGEST} values, and there are {n}"
    if max(K, ask.m or 0) > _LONGEST:
        return f"these kernels take at most {_LONGEST} targets, and there are {max(K, ask.m or 0)}"
    if ask.squash not in SQUASHES:
        return f"these kernels know the squashes 'sigmoid', 'arctan' and None, and squash={ask.squash!r}"
    return None


def state_layout(ask: Ask) -> tuple[int, torch.dtype]:
    return _HEAD + max(ask.y.shape[-1], ask.m or 0), torch.float64


def pull(ask: Ask, phi: Tensor) -> Answer:
    with torch.cuda.device_of(ask.x):
        return _forward(ask, phi)


def push(ask: Ask) -> Answer:
    with torch.cuda.device_of(ask.x):
        return _forward(ask, None)


def pull_backward(ask: Ask, phi: Tensor, state: Tensor, w: Tensor) -> Tensor:
    with torch.cuda.device_of(ask.x):
        return _backward(ask, phi, state, w)


def push_backward(ask: Ask, state: Tensor, c: Tensor) -> Tensor:
    with torch.cuda.device_of(ask.x):
        return _backward(ask, None, state, c)


class _Layout(NamedTuple):
    """All that launches depend on and that is no value: it is worked out once, and again only for another layout."""

    n: int
    K: int
    m: int | None
    dtype: torch.dtype
    strides: tuple[int, ...]  #: of x, a, y, b, phi: the kernels' numbers
    kind: tuple[int, bool, bool, bool]  #: SQUASH, WEIGHTED, EPS_ROWS, PUSH

    @property
    def rule(self) -> bool:
        return self.m is not None and not self.kind[3]

    @property
    def targets(self) -> int:
        """Of the second launch."""
        return self.m if self.m is not None and self.rule else self.K

    @property
    def wide(self) -> bool:
        return self.targets <= _WIDE

    @property
    def constants(self) -> dict[str, int | bool]:
        return dict(zip(("SQUASH", "WEIGHTED", "EPS_ROWS", "PUSH"), self.kind, strict=True))


def _laid_out(ask: Ask, phi: Tensor | None) -> tuple[_Layout, tuple[Tensor, ...], float, Tensor]:
    """The layout; x, a, y, b, phi; eps as a number and as rows, of which one is not read."""
    x, a, y, b = ask.x, ask.x if ask.a is None else ask.a, ask.y.contiguous(), ask.b.contiguous()
    levels = y if phi is None else phi.contiguous()  # not read when values are pushed
    eps, eps_rows = (0.0, ask.eps) if isinstance(ask.eps, Tensor) else (float(ask.eps), y)
    strides = (
        _row_stride(x), x.stride(1), _row_stride(a), a.stride(1),
        _row_stride(y), _row_stride(b), _row_stride(levels),
    )  # fmt: skip
    kind = SQUASHES[ask.squash], ask.a is not None, isinstance(ask.eps, Tensor), phi is None
    layout = _Layout(x.shape[1], y.shape[1], ask.m, x.dtype, strides, kind)
    return layout, (x, a, y, b, levels), eps, eps_rows


def _row_stride(t: Tensor) -> int:
    return t.stride(0) if t.shape[0] > 1 else 0


def _power(count: int) -> int:
    return max(16, 1 << (count - 1).bit_length())


def _short_sizes(n: int, K: int) -> tuple[int, int]:
    """How many values at a time, and warps: more would not fit into registers."""
    block_n, block_k = _power(n), _power(K)
    at_once = min(block_n, {16: 128, 32: 64, 64: 64, 128: 32}[block_k])
    return at_once, 2 if at_once * block_k <= 512 else 4 if at_once * block_k <= 2048 else 8


def _whole_sizes(n: int, targets: int, wide: bool) -> tuple[int, int]:
    if wide:
        return min(_power(n), 32), 4 if _power(targets) <= 64 else 8
    return 8192 // _power(targets), 8


@functools.lru_cache(maxsize=1024)
def _forward_launches(on: _Layout, columns: int, last_row: int | None) -> tuple[Launch | None, Launch]:
    n, K = on.n, on.K
    first = None
    if K <= _FEW:
        at_once, warps = _short_sizes(n, K)
        first = Launch(
            triton_short.forward, (n, K, columns, *on.strides, last_row or 0), warps, **on.constants,
            RULE=on.rule and last_row is not None, MENDED=on.wide, EXACT=n <= _EXACT,
            BLOCK_N=_power(n), BN=at_once, BK=_power(K),
        )  # fmt: skip
    at_once, warps = _whole_sizes(n, on.targets, on.wide)
    second = Launch(
        triton_whole.forward, (n, K, on.targets, columns, *on.strides), warps, **on.constants,
        GRID=on.rule, ALWAYS=first is None, WIDE=on.wide, TA=0 if on.wide else 1,
        BLOCK_N=_power(n), BN=at_once, BK=_power(on.targets),
    )  # fmt: skip
    return first, second


def _forward(ask: Ask, phi: Tensor | None) -> Answer:
    on, tensors, eps, eps_rows = _laid_out(ask, phi)
    x, R = ask.x, ask.x.shape[0]
    columns, dtype = state_layout(ask)
    last = tensors[2] if ask.last is None else ask.last.contiguous()
    first, second = _forward_launches(on, columns, None if ask.last is None else _row_stride(last))
    out = x.new_empty(R, on.K, dtype=torch.float32) if phi is None else x.new_empty(R, on.n)
    state = x.new_empty(R, columns, dtype=dtype)
    error = x.new_empty(R, dtype=torch.float32)
    if first is not None:
        at = x.new_empty(R, 3 * on.n + on.K, dtype=torch.float32)
        first(R, *tensors, last, eps_rows, at, out, state, error, eps)
    second(R, *tensors, eps_rows, out, state, error, eps)
    return Answer(out, state, error)


@functools.lru_cache(maxsize=1024)
def _backward_launches(
    on: _Layout, columns: int, w_strides: tuple[int, int], _: torch.dtype
) -> tuple[Launch | None, Launch]:
    """The last argument is the dtype of the cotangent."""
    n, K = on.n, on.K
    first = None
    if K <= _FEW:
        at_once, warps = _short_sizes(n, K)
        first = Launch(
            triton_short.backward, (n, K, columns, *on.strides, *w_strides), warps, **on.constants,
            BLOCK_N=_power(n), BN=at_once, BK=_power(K),
        )  # fmt: skip
    at_once, warps = _whole_sizes(n, on.targets, on.wide)
    second = Launch(
        triton_whole.backward, (n, K, on.targets, columns, *on.strides, *w_strides), warps, **on.constants,
        GRID=on.rule, WIDE=on.wide, TA=0 if on.wide else 1,
        BLOCK_N=_power(n), BN=at_once, BK=_power(on.targets),
    )  # fmt: skip
    return first, second


def _backward(ask: Ask, phi: Tensor | None, state: Tensor, w: Tensor) -> Tensor:
    on, tensors, eps, eps_rows = _laid_out(ask, phi)
    x, R = ask.x, ask.x.shape[0]
    first, second = _backward_launches(on, state.shape[1], (_row_stride(w), w.stride(1)), w.dtype)
    grad = x.new_empty(R, on.n)
    partial = x.new_empty(R, 2 * on.n if phi is None else on.n, dtype=torch.float32)
    if first is not None:
        at = x.new_empty(R, 3 * on.n + on.K, dtype=torch.float32)
        first(R, *tensors, w, eps_rows, at, state, partial, grad, eps)
    second(R, *tensors, w, eps_rows, state, partial, grad, eps)
    return grad
