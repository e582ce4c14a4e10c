"""Isotonic regression as a function of torch: an implementation for each device, and gradients in both arguments.

Eager calls run an ``autograd.Function``; ``torch.compile`` sees the operators ``sinksort::isotonic`` and
``sinksort::isotonic_backward``, which run the same code. All other calls (under ``torch.func``, forward mode and other
tracers), and backward passes that are differentiated themselves, use ``isotonic``, which is ordinary operations only.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ..core.cotangents import one_at_a_time
from ..core.modes import ordinary, redefines_operators, unpatched
from . import isotonic as by_halves

_COMPILERS = {"cpu": "numba", "cuda": "triton"}
#: A program of Triton reads a row one entry after the other. Longer rows have work enough for the whole GPU, by halves.
_LONGEST = {"cpu": 1 << 62, "cuda": 2048}


class Implementation(Protocol):
    """Rows (R, n); w and z may be one row for all."""

    def pooled(self, s: Tensor, w: Tensor, kl: bool, falling: bool) -> Tensor: ...
    def spread(self, z: Tensor, v: Tensor, c: Tensor, kl: bool) -> Tensor: ...


def isotonic(s: Tensor, w: Tensor, kl: bool, falling: bool = False) -> Tensor:
    """v (..., n), differentiable in s and w (..., n): see the file ``isotonic``.

    ``falling``: v_1 >= ... >= v_n in place of v_1 <= ... <= v_n. A row with a NaN is all NaN.
    """
    if s.shape != w.shape:
        s, w = torch.broadcast_tensors(s, w)
    if s.numel() == 0:
        return s - w
    if ordinary() and not redefines_operators(s):
        found: Tensor = _Isotonic.apply(s, w, kl, falling)  # type: ignore[no-untyped-call]
    elif torch.compiler.is_compiling():
        found = _isotonic_op(s, w, kl, falling)
    else:
        found = by_halves.pooled(s, w, kl, falling)
    return found


# ---- which implementation


def _implementation(t: Tensor) -> Implementation:
    kind = t.device.type
    compiled = None
    if t.dtype in (torch.float32, torch.float64) and t.shape[-1] <= _LONGEST.get(kind, 0):
        compiled = _compiled(_COMPILERS[kind])
    return compiled or cast("Implementation", by_halves)


@functools.cache
def _compiled(compiler: str) -> Implementation | None:
    """None where the compiler is not installed, and on AMD's devices, where the kernel of Triton has never run."""
    if not _installed(compiler) or (compiler == "triton" and torch.version.hip is not None):
        return None
    with unpatched():  # a program may be traced at this moment
        return cast("Implementation", importlib.import_module(f"{__package__}.isotonic_{compiler}"))


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # somebody has put None in its place
        return False


def pooled(s: Tensor, w: Tensor, kl: bool, falling: bool) -> Tensor:
    """``isotonic`` without a gradient, for s and w (..., n) of one shape."""
    v = _implementation(s).pooled(_rows(s), _rows(w, len_may_be_one=True), kl, falling)
    return v.reshape(s.shape)


def spread(z: Tensor, v: Tensor, c: Tensor, kl: bool) -> Tensor:
    """For each entry its share of the total of c in its block of v: the gradient in z = s, or minus that in z = w."""
    out = _implementation(v).spread(_rows(z, len_may_be_one=True), _rows(v), _rows(c), kl)
    return out.reshape(v.shape)


def _rows(t: Tensor, len_may_be_one: bool = False) -> Tensor:
    """(R, n), or (1, n) if all rows are the same memory."""
    if t.ndim != 2:
        one = len_may_be_one and not any(t.stride()[:-1])
        return (t[(0,) * (t.ndim - 1)] if one else t).reshape(-1, t.shape[-1])
    return t[:1] if len_may_be_one and t.stride(0) == 0 else t


# ---- gradients


def _gradients(
    s: Tensor, w: Tensor, v: Tensor, c: Tensor, kl: bool, needed: tuple[bool, ...], shared_out: Callable[..., Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    of_s = shared_out(s, v, c, kl) if needed[0] else None
    if not needed[1]:
        return of_s, None
    return of_s, -(of_s if of_s is not None and not kl else shared_out(w, v, c, kl))


class _Isotonic(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, s: Tensor, w: Tensor, kl: bool, falling: bool) -> Tensor:
        v = pooled(s, w, kl, falling)
        ctx.save_for_backward(s, w, v)
        ctx.kl = kl
        return v

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        s, w, v = ctx.saved_tensors
        again = torch.is_grad_enabled()  # the caller will differentiate this once more
        shared_out = by_halves.spread if again else spread
        return *_gradients(s, w, v.detach(), c, ctx.kl, ctx.needs_input_grad[:2], shared_out), None, None


# ---- compilers


@torch.library.custom_op("sinksort::isotonic", mutates_args=())
def _isotonic_op(s: Tensor, w: Tensor, kl: bool, falling: bool) -> Tensor:
    return pooled(s, w, kl, falling)


@torch.library.custom_op("sinksort::isotonic_backward", mutates_args=())
def _spread_op(z: Tensor, v: Tensor, c: Tensor, kl: bool) -> Tensor:
    return spread(z, v, c, kl)


@_isotonic_op.register_fake
def _(s: Tensor, _w: Tensor, _kl: bool, _falling: bool) -> Tensor:
    return s.new_empty(s.shape)


@_spread_op.register_fake
def _(_z: Tensor, v: Tensor, _c: Tensor, _kl: bool) -> Tensor:
    return v.new_empty(v.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2], output)
    ctx.kl = inputs[2]


def _backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
    s, w, v = ctx.saved_tensors
    return *_gradients(s, w, v, c, ctx.kl, ctx.needs_input_grad[:2], _spread_op), None, None


_isotonic_op.register_autograd(_backward, setup_context=_remember)


def _vmapped(op: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, int]]:
    """Rows are whatever stands before the last dimension: a new dimension is one more of these."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        def to_front(t: Any, at: int | None) -> Any:
            if not isinstance(t, Tensor):
                return t
            return t.movedim(at, 0) if at is not None else t.expand(info.batch_size, *t.shape)

        return op(*map(to_front, args, in_dims)), 0

    return rule


_isotonic_op.register_vmap(_vmapped(_isotonic_op))
_spread_op.register_vmap(_vmapped(_spread_op))
