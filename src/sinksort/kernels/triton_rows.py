"""Triton kernels for rows that fit a thread block: the contract of ``asks`` for CUDA, n up to 2048.

Every row is answered by one program in the first launch (``triton_short``). A second launch is always made and returns
at once for rows whose estimated error is small; the others are solved with all their targets (``triton_whole``).
Nothing waits for the device, and the number of launches does not depend on values. Answers are final: a row that failed
twice is NaN.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from . import triton_short, triton_whole
from .asks import Answer, Ask
from .triton_launch import launch
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


class _Arguments:
    """What the launches of one ask share."""

    def __init__(self, ask: Ask, phi: Tensor | None) -> None:
        x, a, y, b = ask.x, ask.x if ask.a is None else ask.a, ask.y.contiguous(), ask.b.contiguous()
        levels = y if phi is None else phi.contiguous()  # not read when values are pushed
        self.n, self.K, self.m = x.shape[1], y.shape[1], ask.m
        self.tensors = x, a, y, b, levels
        self.eps, self.eps_rows = (0.0, ask.eps) if isinstance(ask.eps, Tensor) else (float(ask.eps), y)
        self.strides = (
            _row_stride(x), x.stride(1), _row_stride(a), a.stride(1),
            _row_stride(y), _row_stride(b), _row_stride(levels),
        )  # fmt: skip
        self.kind: dict[str, Any] = {
            "SQUASH": SQUASHES[ask.squash],
            "WEIGHTED": ask.a is not None,
            "EPS_ROWS": isinstance(ask.eps, Tensor),
            "PUSH": phi is None,
        }
        self.rule = ask.m is not None and phi is not None
        self.targets = self.m if self.m is not None and self.rule else self.K  # of the second launch
        self.wide = self.targets <= _WIDE


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


def _forward(ask: Ask, phi: Tensor | None) -> Answer:
    each, x = _Arguments(ask, phi), ask.x
    R, n, K = len(x), each.n, each.K
    columns, dtype = state_layout(ask)
    out = x.new_empty(R, K, dtype=torch.float32) if phi is None else x.new_empty(R, n)
    state = x.new_empty(R, columns, dtype=dtype)
    error = x.new_empty(R, dtype=torch.float32)
    few = K <= _FEW
    if few:
        at = x.new_empty(R, 3 * n + K, dtype=torch.float32)
        last = each.tensors[2] if ask.last is None else ask.last.contiguous()
        at_once, warps = _short_sizes(n, K)
        launch(
            triton_short.forward, R,
            *each.tensors, last, each.eps_rows, at, out, state, error,
            each.eps, n, K, columns, *each.strides, _row_stride(last),
            **each.kind, RULE=each.rule and ask.last is not None, MENDED=each.wide, EXACT=n <= _EXACT,
            BLOCK_N=_power(n), BN=at_once, BK=_power(K), num_warps=warps,
        )  # fmt: skip
    at_once, warps = _whole_sizes(n, each.targets, each.wide)
    launch(
        triton_whole.forward, R,
        *each.tensors, each.eps_rows, out, state, error,
        each.eps, n, K, each.targets, columns, *each.strides,
        **each.kind, GRID=each.rule, ALWAYS=not few, WIDE=each.wide, TA=0 if each.wide else 1,
        BLOCK_N=_power(n), BN=at_once, BK=_power(each.targets), num_warps=warps,
    )  # fmt: skip
    return Answer(out, state, error)


def _backward(ask: Ask, phi: Tensor | None, state: Tensor, w: Tensor) -> Tensor:
    each, x = _Arguments(ask, phi), ask.x
    R, n, K = len(x), each.n, each.K
    grad = x.new_empty(R, n)
    partial = x.new_empty(R, 2 * n if phi is None else n, dtype=torch.float32)
    if K <= _FEW:
        at = x.new_empty(R, 3 * n + K, dtype=torch.float32)
        at_once, warps = _short_sizes(n, K)
        launch(
            triton_short.backward, R,
            *each.tensors, w, each.eps_rows, at, state, partial, grad,
            each.eps, n, K, state.shape[1], *each.strides, _row_stride(w), w.stride(1),
            **each.kind, BLOCK_N=_power(n), BN=at_once, BK=_power(K), num_warps=warps,
        )  # fmt: skip
    at_once, warps = _whole_sizes(n, each.targets, each.wide)
    launch(
        triton_whole.backward, R,
        *each.tensors, w, each.eps_rows, state, partial, grad,
        each.eps, n, K, each.targets, state.shape[1], *each.strides, _row_stride(w), w.stride(1),
        **each.kind, GRID=each.rule, WIDE=each.wide, TA=0 if each.wide else 1,
        BLOCK_N=_power(n), BN=at_once, BK=_power(each.targets), num_warps=warps,
    )  # fmt: skip
    return grad
