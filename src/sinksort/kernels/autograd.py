"""Fused kernels as operators of torch: gradients, rows that a kernel could not do, and what compilers see.

Eager programs call an ``autograd.Function``, which costs a third of a registered operator's time; traced ones
(``torch.compile``, ``torch.func``, export) see ``sinksort::pull``, ``sinksort::push`` and ``sinksort::logs``,
registered with ``torch.library``. Both run the same code. A backward pass that is itself to be differentiated goes by
way of the reference.

Which way a plan is read is a name below, ``read``; phi is there for "pull" only.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.cotangents import one_at_a_time
from ..core.modes import ordinary, redefines_operators, unpatched
from ..core.solvers._common import host_may_look
from ..linear.refine import accepted_error
from . import reference
from .contract import Answer, Ask, LateKernels, State, in_tensors, of_rows, some_rows
from .dispatch import kernels_named, late_kernels, short_kernels

_ACCEPTED = accepted_error(torch.float32)


def read(way: str, ask: Ask, phi: Tensor | None, name: str) -> Tensor:
    """``Answer.out`` of the kernels called ``name``."""
    if not ordinary() or redefines_operators(ask.x):
        out: Tensor = _OPERATORS[way](*_flat(ask), *_with(phi), name)[0]
        return out
    return eager(ask.x, way_of(way, ask, name), ask._replace(x=ask.x.detach()), phi)


# ---- running a kernel, and mending its answer

_REFERENCE: dict[str, Callable[..., Tensor]] = {
    "pull": reference.pulled,
    "push": reference.pushed,
    "logs": reference.logs,
}


class Way(NamedTuple):
    """The functions of some kernels that read a plan in one way."""

    read: str
    name: str  #: of the kernels
    forward: Callable[..., Answer]
    backward: Callable[..., Tensor]
    final: bool
    late: LateKernels | None  #: that are asked what these leave over, before the reference is


def way_of(read: str, ask: Ask, name: str) -> Way:
    kernels = short_kernels(name) if read == "logs" else kernels_named(name, ask)
    late = late_kernels(name, ask) if read == "pull" else None
    return Way(read, name, getattr(kernels, read), getattr(kernels, f"{read}_backward"), kernels.final(ask), late)


def _with(phi: Tensor | None) -> tuple[Tensor, ...]:
    return () if phi is None else (phi,)


def _run(way: Way, ask: Ask, phi: Tensor | None) -> tuple[Answer, Tensor | None]:
    """The answer, and which of its rows are the reference's."""
    answer = way.forward(ask) if phi is None else way.forward(ask, phi)
    if way.final:
        return answer, None
    error = answer.error
    if isinstance(error, Tensor) and not host_may_look(error):
        fine = error <= _ACCEPTED  # nobody can look: rather no answer than a wrong one
        fine = fine.reshape(-1, *[1] * (answer.out.ndim - 1))
        return answer._replace(out=torch.where(fine, answer.out, torch.nan)), None
    late = _late(error)
    if late is not None:
        few, few_phi = _chosen(ask, phi, late)
        with torch.no_grad():
            answer.out[late] = _left_over(way, few, few_phi).to(answer.out.dtype)
    return answer, late


def _averages(way: Way, out: Tensor) -> Tensor | None:
    """Answers that are infinite where values are, if kernels of a GPU gave them."""
    return out.detach() if way.read == "push" and way.name == "triton" else None


def _left_over(way: Way, ask: Ask, phi: Tensor | None) -> Tensor:
    if way.late is None or phi is None:
        return _REFERENCE[way.read](ask, *_with(phi))
    out, error = way.late.pull(ask, phi)
    late = _late(error)
    if late is not None:
        few, few_phi = _chosen(ask, phi, late)
        out[late] = _REFERENCE[way.read](few, *_with(few_phi)).to(out.dtype)
    return out


def _run_backward(
    way: Way, ask: Ask, phi: Tensor | None, state: State, late: Tensor | None, cotangent: Tensor,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``out``: the answer, where it may be infinite."""
    cotangent = cotangent.resolve_neg()
    if out is not None:  # an infinite average has no gradient, and only kernels of the CPU see to that themselves
        cotangent = torch.where(out.isfinite(), cotangent, 0.0)
    grad = way.backward(ask, state, cotangent) if phi is None else way.backward(ask, phi, state, cotangent)
    if late is not None:
        grad[late] = _gradient_left_over(way, *_chosen(ask, phi, late), cotangent[late])
    return grad


def _gradient_left_over(way: Way, ask: Ask, phi: Tensor | None, cotangent: Tensor) -> Tensor:
    if way.late is None or phi is None:
        return _reference_gradient(way.read, ask, phi, cotangent, create_graph=False)
    grad, error = way.late.pull_backward(ask, phi, cotangent)
    late = _late(error)
    if late is not None:
        few, few_phi = _chosen(ask, phi, late)
        grad[late] = _reference_gradient(way.read, few, few_phi, cotangent[late], create_graph=False)
    return grad


def _late(error: State) -> Tensor | None:
    """Rows whose answer is not good enough. Rows that hold NaN are not late."""
    errors = error if isinstance(error, np.ndarray) else (error if error.is_cpu else error.cpu()).numpy()
    if errors.size == 0 or errors.item(errors.argmax()) <= _ACCEPTED:  # quicker than a comparison of all
        return None
    late = errors > _ACCEPTED
    if not np.count_nonzero(late):
        return None
    rows = torch.from_numpy(late.nonzero()[0])
    return rows.to(error.device) if isinstance(error, Tensor) else rows


def _chosen(ask: Ask, phi: Tensor | None, rows: Tensor) -> tuple[Ask, Tensor | None]:
    return some_rows(ask, rows), None if phi is None else of_rows(phi, rows)


def _reference_gradient(read: str, ask: Ask, phi: Tensor | None, cotangent: Tensor, create_graph: bool) -> Tensor:
    def gradient() -> Tensor:
        with torch.enable_grad():
            x = ask.x if create_graph else ask.x.detach().requires_grad_()
            out = _REFERENCE[read](ask._replace(x=x), *_with(phi))
            (grad,) = torch.autograd.grad(out, x, cotangent.to(out.dtype), create_graph=create_graph)
        return grad

    return gradient() if create_graph or _records(ask.x) else _elsewhere(gradient, ask.x.device)


def _records(x: Tensor) -> bool:
    """Whether this thread can record a graph. Inside a registered operator it cannot, whatever ``enable_grad`` says."""
    with torch.enable_grad():
        return x.detach()[:1].requires_grad_().clone().requires_grad


def _elsewhere(function: Callable[[], Tensor], device: torch.device) -> Tensor:
    """The same in a thread of its own, on the same stream of the device."""
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def run() -> Tensor:
        with torch.cuda.stream(stream):  # nothing, where there is none
            return function()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


# ---- eager


class _Read(torch.autograd.function._SingleLevelFunction):
    """An ``autograd.Function`` that no transform of ``torch.func`` meets, and so need not look for one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, given: tuple[Way, Ask, Tensor | None]) -> Tensor:
        answer, late = _run(*given)
        ctx.given = *given, answer.state, late, _averages(given[0], answer.out)
        ctx.save_for_backward(x)
        return answer.out

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        way, ask, phi, state, late, out = ctx.given
        (x,) = ctx.saved_tensors  # says so if it was written over since
        if torch.is_grad_enabled():  # somebody will differentiate this again
            grad = _reference_gradient(way.read, ask._replace(x=x), phi, cotangent, create_graph=True)
        else:
            grad = _run_backward(way, ask, phi, state, late, cotangent, out)
        return grad, None


def eager(x: Tensor, way: Way, ask: Ask, phi: Tensor | None) -> Tensor:
    """``ask.x`` are the numbers of x, which may need a gradient."""
    if ask.x.is_neg():  # kernels read memory, where the numbers of such a view have the other sign
        ask = ask._replace(x=ask.x.resolve_neg())
    if torch.is_grad_enabled() and x.requires_grad:
        x = torch._C._functorch.unwrap_if_dead(x)  # what such a transform left behind is its own no longer
        out: Tensor = _Read.apply(x, (way, ask, phi))  # type: ignore[attr-defined]
        return out
    return _run(way, ask, phi)[0].out


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
    ask = _ask(x, a, y, b, last, eps, eps_rows, squash, m)
    return in_tensors(_run(way_of("pull", ask, name), ask, phi)[0])


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
    ask = _ask(x, a, y, b, last, eps, eps_rows, squash, m)
    return in_tensors(_run(way_of("push", ask, name), ask, None)[0])


@torch.library.custom_op("sinksort::logs", mutates_args=())
def _logs_op(
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
    ask = _ask(x, a, y, b, last, eps, eps_rows, squash, m)
    return in_tensors(_run(way_of("logs", ask, name), ask, None)[0])


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
    read: str,
    name: str,
    state: Tensor,
    error: Tensor,
    cotangent: Tensor,
    out: Tensor | None,
) -> Tensor:
    ask = _ask(x, a, y, b, last, eps, eps_rows, squash, m)
    way = way_of(read, ask, name)
    late = None if way.final or not host_may_look(error) else _late(error)
    if (
        read == "push" and host_may_look(cotangent) and not kernels_named(name, ask).weightless(ask)
    ):  # who posed this could not look at the weights of targets
        weightless = ((ask.b <= 0) & (cotangent != 0)).any(-1)
        if late is not None:
            weightless[late] = True
        late = weightless.nonzero().squeeze(-1) if weightless.any() else late
    return _run_backward(way, ask, phi, state, late, cotangent, None if out is None else _averages(way, out))


@_backward_op.register_fake
def _(*args: Any) -> Tensor:
    return args[0].new_empty(args[0].shape)  # type: ignore[no-any-return]


def _shapes(read: str) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def fake(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        ask, name = _ask(*args[:9]), args[-1]
        R, n, K = *ask.x.shape, ask.y.shape[-1]
        out = (
            ask.x.new_empty(R, n)
            if read == "pull"
            else ask.x.new_empty((R, K) if read == "push" else (R, n, K), dtype=torch.float32)
        )
        # The layout of a state is a matter of whole numbers: a program is compiled anew for each length of rows.
        m = None if ask.m is None else int(ask.m)
        x, y = (torch.empty(1, int(size), dtype=torch.float32, device="meta") for size in (n, K))
        sizes = ask._replace(x=x, y=y, m=m)
        with unpatched():  # this may be the first use of kernels
            layout = short_kernels(name).logs_layout if read == "logs" else kernels_named(name, sizes).state_layout
            columns, dtype = layout(sizes)
        return out, ask.x.new_empty(R, columns, dtype=dtype), ask.x.new_empty(R, dtype=torch.float32)

    return fake


def _setup(read: str) -> Callable[..., None]:
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        tensors = [*inputs[:5], inputs[6], inputs[9] if read == "pull" else None]
        answer = output[0] if read == "push" and inputs[-1] == "triton" else None
        ctx.save_for_backward(*tensors, output[1], output[2], answer)
        ctx.eps, ctx.squash, ctx.m, ctx.kernels = inputs[5], inputs[7], inputs[8], inputs[-1]

    return setup_context


def _backward(read: str) -> Callable[..., tuple[Tensor | None, ...]]:
    others = (None,) * (10 if read == "pull" else 9)  # arguments besides x

    def backward(ctx: Any, cotangent: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, a, y, b, last, rows, phi, state, error, out = ctx.saved_tensors
        given = x, a, y, b, last, ctx.eps, rows, ctx.squash, ctx.m
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            grad = _reference_gradient(read, _ask(*given), phi, cotangent, create_graph=True)
        else:
            grad = _backward_op(*given, phi, read, ctx.kernels, state, error, cotangent, out)
        return (grad, *others)

    return backward


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


_OPERATORS = {"pull": _pull_op, "push": _push_op, "logs": _logs_op}
for _name, _op in _OPERATORS.items():
    _op.register_fake(_shapes(_name))
    _op.register_autograd(_backward(_name), setup_context=_setup(_name))
    _op.register_vmap(_vmapped(_op, True))
_backward_op.register_vmap(_vmapped(_backward_op, False))
