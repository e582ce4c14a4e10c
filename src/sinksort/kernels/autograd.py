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
from .contract import Answer, RejectedRowKernels, Request, State, in_tensors, of_rows, some_rows, to_come
from .dispatch import kernels_named, log_plan_kernels, rejected_row_kernels

_ACCEPTED = accepted_error(torch.float32)


def read(implementation: str, request: Request, phi: Tensor | None, name: str) -> Tensor:
    """``Answer.out`` of the kernels called ``name``."""
    if not ordinary() or redefines_operators(request.x):
        out: Tensor = _OPERATORS[implementation](*_flat(request), *_with(phi), name)[0]
        return out
    return eager(
        request.x, implementation_of(implementation, request, name), request._replace(x=request.x.detach()), phi
    )


# ---- running a kernel, and mending its answer

_REFERENCE: dict[str, Callable[..., Tensor]] = {
    "pull": reference.pulled,
    "push": reference.pushed,
    "logs": reference.logs,
}


class Implementation(NamedTuple):
    """The functions of some kernels that read a plan in one way."""

    read: str
    name: str  #: of the kernels
    forward: Callable[..., Answer]
    backward: Callable[..., Tensor]
    rejects_by_nan: bool
    rejected: RejectedRowKernels | None  #: that are asked what these leave over, before the reference is


def implementation_of(read: str, request: Request, name: str) -> Implementation:
    kernels = log_plan_kernels(name) if read == "logs" else kernels_named(name, request)
    rejected = (
        rejected_row_kernels(name, request) if read == "pull" or (read == "push" and request.m is not None) else None
    )
    return Implementation(
        read,
        name,
        getattr(kernels, read),
        getattr(kernels, f"{read}_backward"),
        kernels.rejects_by_nan(request),
        rejected,
    )


def _with(phi: Tensor | None) -> tuple[Tensor, ...]:
    return () if phi is None else (phi,)


def _run(implementation: Implementation, request: Request, phi: Tensor | None) -> tuple[Answer, Tensor | None]:
    """The answer, and which of its rows are the reference's."""
    answer = implementation.forward(request) if phi is None else implementation.forward(request, phi)
    if implementation.rejects_by_nan:
        return answer, None
    error = answer.error
    if isinstance(error, Tensor) and not host_may_look(error):
        fine = error <= _ACCEPTED  # nobody can look: rather no answer than a wrong one
        fine = fine.reshape(-1, *[1] * (answer.out.ndim - 1))
        return answer._replace(out=torch.where(fine, answer.out, torch.nan)), None
    rejected = _rejected_rows(error)
    if rejected is not None:
        part, part_phi = _chosen(request, phi, rejected)
        with torch.no_grad():
            answer.out[rejected] = _answer_of_rejected(implementation, part, part_phi).to(answer.out.dtype)
    return answer, rejected


def _averages(implementation: Implementation, out: Tensor) -> Tensor | None:
    """Answers that are infinite where values are, if kernels of a GPU gave them."""
    return out.detach() if implementation.read == "push" and implementation.name == "triton" else None


def _answer_of_rejected(implementation: Implementation, request: Request, phi: Tensor | None) -> Tensor:
    if implementation.rejected is None:
        return _REFERENCE[implementation.read](request, *_with(phi))
    out, error = implementation.rejected.push(request) if phi is None else implementation.rejected.pull(request, phi)
    rejected = _rejected_rows(error)
    if rejected is not None:
        part, part_phi = _chosen(request, phi, rejected)
        out[rejected] = _REFERENCE[implementation.read](part, *_with(part_phi)).to(out.dtype)
    return out


def _run_backward(
    implementation: Implementation, request: Request, phi: Tensor | None, state: State, rejected: Tensor | None,
    cotangent: Tensor,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``out``: the answer, where it may be infinite."""
    cotangent = cotangent.resolve_neg()
    if out is not None:  # an infinite average has no gradient, and only kernels of the CPU see to that themselves
        cotangent = torch.where(out.isfinite(), cotangent, 0.0)
    grad = (
        implementation.backward(request, state, cotangent)
        if phi is None
        else implementation.backward(request, phi, state, cotangent)
    )
    if rejected is not None:
        grad[rejected] = _gradient_of_rejected(implementation, *_chosen(request, phi, rejected), cotangent[rejected])
    return grad


def _gradient_of_rejected(
    implementation: Implementation, request: Request, phi: Tensor | None, cotangent: Tensor
) -> Tensor:
    if implementation.rejected is None:
        return _reference_gradient(implementation.read, request, phi, cotangent, create_graph=False)
    if phi is None:
        grad, error = implementation.rejected.push_backward(request, cotangent)
    else:
        grad, error = implementation.rejected.pull_backward(request, phi, cotangent)
    rejected = _rejected_rows(error)
    if rejected is not None:
        part, part_phi = _chosen(request, phi, rejected)
        grad[rejected] = _reference_gradient(
            implementation.read, part, part_phi, cotangent[rejected], create_graph=False
        )
    return grad


def _rejected_rows(error: State) -> Tensor | None:
    """Rows whose answer is not good enough. Rows that hold NaN are not late."""
    errors = error if isinstance(error, np.ndarray) else (error if error.is_cpu else error.cpu()).numpy()
    if errors.size == 0 or errors.item(errors.argmax()) <= _ACCEPTED:  # quicker than a comparison of all
        return None
    rejected = errors > _ACCEPTED
    if not np.count_nonzero(rejected):
        return None
    rows = torch.from_numpy(rejected.nonzero()[0])
    return rows.to(error.device) if isinstance(error, Tensor) else rows


def _chosen(request: Request, phi: Tensor | None, rows: Tensor) -> tuple[Request, Tensor | None]:
    return some_rows(request, rows), None if phi is None else of_rows(phi, rows)


def _reference_gradient(
    read: str, request: Request, phi: Tensor | None, cotangent: Tensor, create_graph: bool
) -> Tensor:
    def gradient() -> Tensor:
        with torch.enable_grad():
            x = request.x if create_graph else request.x.detach().requires_grad_()
            out = _REFERENCE[read](request._replace(x=x), *_with(phi))
            (grad,) = torch.autograd.grad(out, x, cotangent.to(out.dtype), create_graph=create_graph)
        return grad

    return gradient() if create_graph or _records(request.x) else _elsewhere(gradient, request.x.device)


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
    def forward(ctx: Any, x: Tensor, given: tuple[Implementation, Request, Tensor | None]) -> Tensor:
        to_come.gradient = True
        answer, rejected = _run(*given)
        ctx.given = *given, answer.state, rejected, _averages(given[0], answer.out)
        ctx.save_for_backward(x)
        return answer.out

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        implementation, request, phi, state, rejected, out = ctx.given
        (x,) = ctx.saved_tensors  # says so if it was written over since
        if torch.is_grad_enabled():  # somebody will differentiate this again
            grad = _reference_gradient(implementation.read, request._replace(x=x), phi, cotangent, create_graph=True)
        else:
            grad = _run_backward(implementation, request, phi, state, rejected, cotangent, out)
        return grad, None


def eager(x: Tensor, implementation: Implementation, request: Request, phi: Tensor | None) -> Tensor:
    """``request.x`` are the numbers of x, which may need a gradient."""
    if request.x.is_neg():  # kernels read memory, where the numbers of such a view have the other sign
        request = request._replace(x=request.x.resolve_neg())
    if torch.is_grad_enabled() and x.requires_grad:
        x = torch._C._functorch.unwrap_if_dead(x)  # what such a transform left behind is its own no longer
        out: Tensor = _Read.apply(x, (implementation, request, phi))  # type: ignore[attr-defined]
        return out
    to_come.gradient = False
    return _run(implementation, request, phi)[0].out


# ---- traced

_Flat = tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None, float, Tensor | None, str | None, int | None]


def _flat(request: Request) -> _Flat:
    """An ask as arguments of an operator."""
    number, rows = (0.0, request.eps) if isinstance(request.eps, Tensor) else (request.eps, None)
    return request.x, request.a, request.y, request.b, request.last, number, rows, request.squash, request.m


def _request(x: Tensor, a: Tensor | None, y: Tensor, b: Tensor, last: Tensor | None, number: float, rows: Tensor | None,
         squash: str | None, m: int | None) -> Request:  # fmt: skip
    return Request(x, a, y, b, number if rows is None else rows, squash, m, last)


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
    request = _request(x, a, y, b, last, eps, eps_rows, squash, m)
    return in_tensors(_run(implementation_of("pull", request, name), request, phi)[0])


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
    request = _request(x, a, y, b, last, eps, eps_rows, squash, m)
    return in_tensors(_run(implementation_of("push", request, name), request, None)[0])


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
    request = _request(x, a, y, b, last, eps, eps_rows, squash, m)
    return in_tensors(_run(implementation_of("logs", request, name), request, None)[0])


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
    request = _request(x, a, y, b, last, eps, eps_rows, squash, m)
    implementation = implementation_of(read, request, name)
    rejected = None if implementation.rejects_by_nan or not host_may_look(error) else _rejected_rows(error)
    if (
        read == "push"
        and request.m is None
        and host_may_look(cotangent)
        and not kernels_named(name, request).weightless(request)
    ):  # who posed this could not look at the weights of targets
        weightless = ((request.b <= 0) & (cotangent != 0)).any(-1)
        if rejected is not None:
            weightless[rejected] = True
        rejected = weightless.nonzero().squeeze(-1) if weightless.any() else rejected
    return _run_backward(
        implementation,
        request,
        phi,
        state,
        rejected,
        cotangent,
        None if out is None else _averages(implementation, out),
    )


@_backward_op.register_fake
def _(*args: Any) -> Tensor:
    return args[0].new_empty(args[0].shape)  # type: ignore[no-any-return]


def _shapes(read: str) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def fake(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        request, name = _request(*args[:9]), args[-1]
        R, n, K = *request.x.shape, request.y.shape[-1]
        out = (
            request.x.new_empty(R, n)
            if read == "pull"
            else request.x.new_empty((R, request.m or K) if read == "push" else (R, n, K), dtype=torch.float32)
        )
        # The layout of a state is a matter of whole numbers: a program is compiled anew for each length of rows.
        m = None if request.m is None else int(request.m)
        x, y = (torch.empty(1, int(size), dtype=torch.float32, device="meta") for size in (n, K))
        sizes = request._replace(x=x, y=y, m=m)
        with unpatched():  # this may be the first use of kernels
            layout = log_plan_kernels(name).logs_layout if read == "logs" else kernels_named(name, sizes).state_layout
            columns, dtype = layout(sizes)
        return out, request.x.new_empty(R, columns, dtype=dtype), request.x.new_empty(R, dtype=torch.float32)

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
            grad = _reference_gradient(read, _request(*given), phi, cotangent, create_graph=True)
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
