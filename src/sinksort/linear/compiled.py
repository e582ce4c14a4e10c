"""Plans in compiled programs: an operator of torch that goes the eager way when it is executed.

The eager way looks at values: refinement measures errors, kernels reject rows. A compiler cannot trace that, and what
it can trace is the whole plan of n m numbers. So a program made by ``torch.compile`` contains ``sinksort::read_plan``,
which knows its own backward pass, in place of the plan. For 3,000 values it takes milliseconds where the traced plan
took 20 seconds.

On the CPU, for Newton's method and costs and squashes that have a name. Everything else, and transforms of
``torch.func`` inside a compiled program, is traced.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.costs import Huber, Power, resolve_cost
from ..core.cotangents import with_graph
from ..core.option_values import Options
from ..core.problem import as_rows, entropy_number, existing, like_batch, like_rows, like_targets, wide_dtype
from ..core.solvers import Newton

_Numbers = tuple[bool, int | None, float, str, float, str | None, float | None, int, bool | None, str, str]


def _no_transform() -> bool:
    """Whether no transform of ``torch.func`` is around."""
    return torch._C._functorch.peek_interpreter_stack() is None


_no_transform._dynamo_marked_constant = True  # type: ignore[attr-defined]  # asked while tracing, not traced


class CompiledPlan:
    """What ``Plan`` is, in a compiled program: each read-out is one operator.

    ``rows`` (..., n); ``tensors`` are weights, mask, targets, target weights and eps, with one entry for each row.
    """

    def __init__(self, rows: Tensor, tensors: Sequence[Tensor | None], numbers: _Numbers, dim: int) -> None:
        self.rows, self.tensors, self.numbers, self.dim = rows, tensors, numbers, dim

    def ranks(self) -> Tensor:
        return self._read("ranks", None).movedim(-1, self.dim)

    def sorted(self) -> Tensor:
        return self._read("sorted", None).movedim(-1, self.dim)

    def pull(self, v: Tensor) -> Tensor:
        return self._read("pull", v.expand(*self.rows.shape[:-1], v.shape[-1])).movedim(-1, self.dim)

    def push(self, payload: Tensor) -> Tensor:
        return self._read("push", payload)

    def permutation(self) -> Tensor:
        return self._read("permutation", None)

    def _read(self, read: str, payload: Tensor | None) -> Tensor:
        out: Tensor = read_plan(self.rows, *self.tensors, payload, read, *self.numbers)
        return out


def compiled_plan(x: Tensor, options: Options, *, reads: str) -> CompiledPlan | None:
    """The plan as operators, or None where it is to be traced (and where an argument is wrong, which tracing says)."""
    if not (torch.compiler.is_compiling() and isinstance(x, Tensor) and x.is_cpu and _no_transform()):
        return None
    o, h, solver = options, resolve_cost(options.cost), options.solver
    if not (isinstance(h, (Power, Huber)) and isinstance(solver, Newton)) or isinstance(o.num_targets, bool):
        return None
    if not (o.squash is None or isinstance(o.squash, str)):
        return None
    rows = as_rows(x, o.dim)
    batch = rows.shape[:-1]
    tensors = [None if o.weights is None else like_rows(o.weights, x, o.dim, "weights")]
    tensors.append(existing(x, o.dim, o.mask)[0])
    for t, name in ((o.targets, "targets"), (o.target_weights, "target_weights")):
        if t is not None:
            like_targets(t, batch, name, wide_dtype(x.device))  # complains
        tensors.append(None if t is None else t.expand(*batch, t.shape[-1]))
    sizes = [t.shape[-1] for t in tensors[2:] if t is not None] + ([] if o.num_targets is None else [o.num_targets])
    if any(size != sizes[0] for size in sizes) or (sizes and sizes[0] < 1):
        return None
    number = 0.0 if isinstance(o.eps, Tensor) else entropy_number(o.eps)
    tensors.append(like_batch(o.eps, batch, "eps") if isinstance(o.eps, Tensor) else None)
    power = h.p if isinstance(h, Power) else h.delta
    numbers = (
        o.descending, o.num_targets, number, "power" if isinstance(h, Power) else "huber", float(power), o.squash,
        solver.tolerance, solver.max_iterations, solver.compress, reads, o.backend,
    )  # fmt: skip
    return CompiledPlan(rows, tensors, numbers, o.dim)


# ---- the operator


@torch.library.custom_op("sinksort::read_plan", mutates_args=())
def read_plan(
    x: Tensor, weights: Tensor | None, mask: Tensor | None, targets: Tensor | None, target_weights: Tensor | None,
    eps_rows: Tensor | None, payload: Tensor | None, read: str, descending: bool, num_targets: int | None, eps: float,
    cost: str, power: float, squash: str | None, tolerance: float | None, max_iterations: int, compress: bool | None,
    reads: str, backend: str,
) -> Tensor:  # fmt: skip
    with torch.no_grad():
        return _answer(
            (x, weights, mask, targets, target_weights, eps_rows, payload), read,
            (descending, num_targets, eps, cost, power, squash, tolerance, max_iterations, compress, reads, backend),
        ).contiguous()  # fmt: skip


@torch.library.custom_op("sinksort::read_plan_backward", mutates_args=())
def _backward_op(
    cotangent: Tensor, needs: Sequence[bool], x: Tensor, weights: Tensor | None, mask: Tensor | None,
    targets: Tensor | None, target_weights: Tensor | None, eps_rows: Tensor | None, payload: Tensor | None, read: str,
    descending: bool, num_targets: int | None, eps: float, cost: str, power: float, squash: str | None,
    tolerance: float | None, max_iterations: int, compress: bool | None, reads: str, backend: str,
) -> list[Tensor]:  # fmt: skip
    """Cotangents of the tensors that need them, in their order."""
    tensors = (x, weights, mask, targets, target_weights, eps_rows, payload)
    options = (descending, num_targets, eps, cost, power, squash, tolerance, max_iterations, compress, reads, backend)

    def gradient() -> list[Tensor]:
        with torch.enable_grad():
            own = [
                t.detach().requires_grad_() if t is not None and need else t
                for t, need in zip(tensors, needs, strict=True)
            ]
            out = _answer(tuple(own), read, options)
            wanted = [t for t, need in zip(own, needs, strict=True) if t is not None and need]
            found = torch.autograd.grad(out, wanted, cotangent, allow_unused=True)
        return [
            torch.zeros_like(t, memory_format=torch.contiguous_format).detach()
            if g is None
            else g.clone(memory_format=torch.contiguous_format)
            for g, t in zip(found, wanted, strict=True)
        ]

    return with_graph(gradient, x)


def _answer(tensors: tuple[Tensor | None, ...], read: str, numbers: _Numbers) -> Tensor:
    x, weights, mask, targets, target_weights, eps_rows, payload = tensors
    descending, num_targets, number, cost, power, squash, tolerance, max_iterations, compress, reads, backend = numbers
    choose = importlib.import_module("sinksort.linear.choose")  # which imports this file
    assert x is not None  # noqa: S101
    solver = Newton(tolerance=tolerance, max_iterations=max_iterations, compress=compress)
    options = Options(
        -1, descending, weights, mask, targets, target_weights, num_targets, number if eps_rows is None else eps_rows,
        Power(power) if cost == "power" else Huber(power), squash, solver, backend,
    )  # fmt: skip
    out: Tensor
    with torch.autocast("cpu", enabled=False):
        if read == "permutation":
            out = choose.dense_plan(choose.pose(x, options), solver, backend).permutation()
        elif read == "ranks":
            out = choose.ranks_for(x, options)
        else:
            plan = choose.plan_for(x, options, reads=reads)
            out = getattr(plan, read)(*(() if payload is None else (payload,)))
    return out.to(x.dtype)


@read_plan.register_fake
def _(x: Tensor, *given: Any) -> Tensor:
    targets, target_weights, payload, read, num_targets = given[2], given[3], given[5], given[6], given[8]
    *batch, n = x.shape
    several = [t.shape[-1] for t in (targets, target_weights) if t is not None]
    m = n if num_targets is None and not several else (several[0] if several else num_targets)
    if read == "push":
        return x.new_empty(*batch, m, payload.shape[-1])
    return x.new_empty({"sorted": (*batch, m), "permutation": (*batch, m, n)}.get(read, (*batch, n)))


@_backward_op.register_fake
def _(_: Tensor, needs: Sequence[bool], *given: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t, need in zip(given[:7], needs, strict=True) if need]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch gives it by name
    ctx.save_for_backward(*inputs[:7])
    ctx.options = inputs[7:]


def _backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:7])
    found = iter(_backward_op(cotangent, needs, *ctx.saved_tensors, *ctx.options))
    return *(next(found) if need else None for need in needs), *(None for _ in ctx.options)


read_plan.register_autograd(_backward, setup_context=_setup)
