"""Fused kernels as operators of torch: gradients, rows that a kernel could not do, and what compilers see.

Eager programs call an ``autograd.Function``, which costs a third of a registered operator's time; traced ones
(``torch.compile``, ``torch.func``, export) see ``sinksort::pull`` and ``sinksort::push``, registered with
``torch.library``. Both run the same code. A backward pass that is itself to be differentiated goes by way of the
reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._checks import tracing
from ..refine import accepted_error
from ..solvers._common import host_may_look
from . import reference
from .asks import Answer, Ask, Kernels
from .choice import kernels_named

_ACCEPTED = accepted_error(torch.float32)


def pull(ask: Ask, phi: Tensor, name: str) -> Tensor:
    """(R, n): averages of phi over the targets that each value is sent to, by the kernels called ``name``."""
    if tracing():
        out: Tensor = _pull_op(*_flat(ask), phi, name)[0]
        return out
    return _differentiable(ask, phi, name)


def push(ask: Ask, name: str) -> Tensor:
    """(R, K) float32: averages of x over the values that each target receives."""
    if tracing():
        out: Tensor = _push_op(*_flat(ask), name)[0]
        return out
    return _differentiable(ask, None, name)


# ---- running a kernel, and mending its answer


def _run(ask: Ask, phi: Tensor | None, name: str) -> tuple[Answer, Tensor | None]:
    """The answer, and which of its rows are the reference's."""
    kernels = kernels_named(name, ask)
    answer = kernels.push(ask) if phi is None else kernels.pull(ask, phi)
    if kernels.FINAL:
        return answer, None
    if not host_may_look(answer.error):
        fine = (answer.error <= _ACCEPTED).unsqueeze(-1)  # nobody can look: rather no answer than a wrong one
        return answer._replace(out=torch.where(fine, answer.out, torch.nan)), None
    late = _late(answer.error)
    if late is not None:
        few, few_phi = _chosen(ask, phi, late)
        with torch.no_grad():
            answer.out[late] = _by_reference(few, few_phi).to(answer.out.dtype)
    return answer, late


def _run_backward(
    ask: Ask, phi: Tensor | None, name: str, state: Tensor, late: Tensor | None, cotangent: Tensor
) -> Tensor:
    kernels: Kernels = kernels_named(name, ask)
    if phi is None:
        grad = kernels.push_backward(ask, state, cotangent)
    else:
        grad = kernels.pull_backward(ask, phi, state, cotangent)
    if late is not None:
        few, few_phi = _chosen(ask, phi, late)
        grad[late] = _reference_gradient(few, few_phi, cotangent[late], create_graph=False)
    return grad


def _late(error: Tensor) -> Tensor | None:
    """Rows whose answer is not good enough. Rows that hold NaN are not late."""
    late = error.numpy(force=True) > _ACCEPTED  # one copy from a device; on the CPU quicker than torch
    return torch.from_numpy(late.nonzero()[0]).to(error.device) if late.any() else None


def _chosen(ask: Ask, phi: Tensor | None, rows: Tensor) -> tuple[Ask, Tensor | None]:
    def of(t: Any) -> Any:
        return t[rows] if isinstance(t, Tensor) and len(t) > 1 else t

    few = ask._replace(x=ask.x[rows], a=of(ask.a) if ask.a is None or len(ask.x) > 1 else ask.a[rows],
                  y=of(ask.y), b=of(ask.b), eps=of(ask.eps), last=of(ask.last))  # fmt: skip
    return few, of(phi)


def _by_reference(ask: Ask, phi: Tensor | None) -> Tensor:
    return reference.pushed(ask) if phi is None else reference.pulled(ask, phi)


def _reference_gradient(ask: Ask, phi: Tensor | None, cotangent: Tensor, create_graph: bool) -> Tensor:
    with torch.enable_grad():
        x = ask.x if create_graph else ask.x.detach().requires_grad_()
        out = _by_reference(ask._replace(x=x), phi)
        (grad,) = torch.autograd.grad(out, x, cotangent.to(out.dtype), create_graph=create_graph)
    return grad


# ---- eager


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ask: Ask, phi: Tensor | None, name: str) -> Tensor:
        answer, late = _run(ask, phi, name)
        ctx.given = ask, phi, name, answer.state, late
        ctx.save_for_backward(x)
        return answer.out

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        ask, phi, name, state, late = ctx.given
        (x,) = ctx.saved_tensors  # says so if it was written over since
        if torch.is_grad_enabled():  # somebody will differentiate this again
            grad = _reference_gradient(ask._replace(x=x), phi, cotangent, create_graph=True)
        else:
            grad = _run_backward(ask, phi, name, state, late, cotangent)
        return grad, None, None, None


def _differentiable(ask: Ask, phi: Tensor | None, name: str) -> Tensor:
    if torch.is_grad_enabled() and ask.x.requires_grad:
        x = ask.x
        out: Tensor = _Read.apply(x, ask._replace(x=x.detach()), phi, name)  # type: ignore[no-untyped-call]
        return out
    return _run(ask, phi, name)[0].out


# ---- traced

_Flat = tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None, float, Tensor | None, str | None, int | None]


def _flat(ask: Ask) -> _Flat:
    """An ask as arguments of an operator."""
    number, rows = (0.0, ask.eps) if isinstance(ask.eps, Tensor) else (ask.eps, None)
    return ask.x, ask.a, ask.y, ask.b, ask.last, number, rows, ask.squash, ask.m


def _ask(x: Tensor, a: Tensor | None, y: Tensor, b: Tensor, last: Tensor | None, number: float, rows: Tensor | None,
         squash: str | None, m: int | None) -> Ask:  # fmt: skip
    return Ask(x, a, y, b, number if rows is None else rows, squash, m, last)


@torch.library.custom_op("sinksort::pull", mutates_args=())
def _pull_op(
    x: Tensor,
    a: Tensor | None,
    y: Tensor,
    b: Tensor,
    last: Tensor | None,
    eps: float,
    eps_rows: Tensor | None,
    squash: str | None,
    m: int | None,
    phi: Tensor,
    name: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return _run(_ask(x, a, y, b, last, eps, eps_rows, squash, m), phi, name)[0]


@torch.library.custom_op("sinksort::push", mutates_args=())
def _push_op(
    x: Tensor,
    a: Tensor | None,
    y: Tensor,
    b: Tensor,
    last: Tensor | None,
    eps: float,
    eps_rows: Tensor | None,
    squash: str | None,
    m: int | None,
    name: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return _run(_ask(x, a, y, b, last, eps, eps_rows, squash, m), None, name)[0]


@torch.library.custom_op("sinksort::read_backward", mutates_args=())
def _backward_op(
    x: Tensor,
    a: Tensor | None,
    y: Tensor,
    b: Tensor,
    last: Tensor | None,
    eps: float,
    eps_rows: Tensor | None,
    squash: str | None,
    m: int | None,
    phi: Tensor | None,
    name: str,
    state: Tensor,
    error: Tensor,
    cotangent: Tensor,
) -> Tensor:
    ask = _ask(x, a, y, b, last, eps, eps_rows, squash, m)
    late = None if kernels_named(name, ask).FINAL or not host_may_look(error) else _late(error)
    return _run_backward(ask, phi, name, state, late, cotangent)


@_pull_op.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _shapes(_ask(*args[:9]), args[10], pulls=True)


@_push_op.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _shapes(_ask(*args[:9]), args[9], pulls=False)


@_backward_op.register_fake
def _(*args: Any) -> Tensor:
    return args[0].new_empty(args[0].shape)  # type: ignore[no-any-return]


def _shapes(ask: Ask, name: str, pulls: bool) -> tuple[Tensor, Tensor, Tensor]:
    R, K = len(ask.x), ask.y.shape[-1]
    out = ask.x.new_empty(ask.x.shape) if pulls else ask.x.new_empty(R, K, dtype=torch.float32)
    # The layout of a state is a matter of whole numbers: a program is compiled anew for each length of rows.
    n, m = int(ask.x.shape[-1]), None if ask.m is None else int(ask.m)
    sizes = ask._replace(x=torch.empty(1, n, device="meta"), y=torch.empty(1, int(K), device="meta"), m=m)
    columns, dtype = kernels_named(name, sizes).state_layout(sizes)
    return out, ask.x.new_empty(R, columns, dtype=dtype), ask.x.new_empty(R, dtype=torch.float32)


def _setup(count: int) -> Callable[..., None]:
    """``count``: how many arguments the operator has; the last ones are phi, if it pulls, and the name."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        tensors = [*inputs[:5], inputs[6], inputs[9] if count == 11 else None]
        ctx.save_for_backward(*tensors, output[1], output[2])
        ctx.eps, ctx.squash, ctx.m, ctx.kernels = inputs[5], inputs[7], inputs[8], inputs[-1]

    return setup_context


def _backward(count: int) -> Callable[..., tuple[Tensor | None, ...]]:
    def backward(ctx: Any, cotangent: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, a, y, b, last, rows, phi, state, error = ctx.saved_tensors
        given = x, a, y, b, last, ctx.eps, rows, ctx.squash, ctx.m
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            grad = _reference_gradient(_ask(*given), phi, cotangent, create_graph=True)
        else:
            grad = _backward_op(*given, phi, ctx.kernels, state, error, cotangent)
        return (grad, *(None,) * (count - 1))

    return backward


for _op, _count in ((_pull_op, 11), (_push_op, 10)):
    _op.register_autograd(_backward(_count), setup_context=_setup(_count))


def _rows_of(info: Any, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> list[Any]:
    """Arguments of a vmapped operator with the new dimension folded into the rows: all tensors have those first."""
    R = len(args[0]) if in_dims[0] is None else args[0].movedim(in_dims[0], 0).shape[1]
    out = []
    for arg, at in zip(args, in_dims, strict=True):
        if not isinstance(arg, Tensor):
            out.append(arg)
            continue
        each = arg.unsqueeze(0).expand(info.batch_size, *arg.shape) if at is None else arg.movedim(at, 0)
        if each.shape[1] == 1:
            each = each.expand(info.batch_size, R, *each.shape[2:])
        out.append(each.reshape(-1, *each.shape[2:]))
    return out


def _vmapped(op: Any, several: bool) -> Callable[..., tuple[Any, Any]]:
    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        out = op(*_rows_of(info, in_dims, args))
        answers = tuple(t.reshape(info.batch_size, -1, *t.shape[1:]) for t in (out if several else (out,)))
        return (answers, (0,) * len(answers)) if several else (answers[0], 0)

    return rule


for _op, _several in ((_pull_op, True), (_push_op, True), (_backward_op, False)):
    _op.register_vmap(_vmapped(_op, _several))
