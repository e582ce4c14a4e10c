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

from ..core.costs import Cost, Huber, Power, resolve_cost
from ..core.problem import as_rows, entropy_number, existing, like_batch, like_rows, like_targets, wide_dtype
from ..core.solvers import Newton, Solver
from ..core.squash import Squash

_Options = tuple[bool, int | None, float, str, float, str | None, float | None, int, bool | None, str, str]


def _no_transform() -> bool:
    """Whether no transform of ``torch.func`` is around."""
    return torch._C._functorch.peek_interpreter_stack() is None


_no_transform._dynamo_marked_constant = True  # type: ignore[attr-defined]  # asked while tracing, not traced


class CompiledPlan:
    """What ``Plan`` is, in a compiled program: each read-out is one operator.

    ``rows`` (..., n); ``tensors`` are weights, mask, targets, target weights and eps, with one entry for each row.
    """

    def __init__(self, rows: Tensor, tensors: Sequence[Tensor | None], options: _Options, dim: int) -> None:
        self.rows, self.tensors, self.options, self.dim = rows, tensors, options, dim

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
        out: Tensor = read_plan(self.rows, *self.tensors, payload, read, *self.options)
        return out


def compiled_plan(
    x: Tensor,
    *,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    mask: Tensor | None,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    reads: str,
    backend: str,
) -> CompiledPlan | None:
    """The plan as operators, or None where it is to be traced (and where an argument is wrong, which tracing says)."""
    if not (torch.compiler.is_compiling() and isinstance(x, Tensor) and x.is_cpu and _no_transform()):
        return None
    h = resolve_cost(cost)
    if not (isinstance(h, (Power, Huber)) and isinstance(solver, Newton)) or isinstance(num_targets, bool):
        return None
    if not (squash is None or isinstance(squash, str)):
        return None
    rows = as_rows(x, dim)
    batch = rows.shape[:-1]
    each = [None if weights is None else like_rows(weights, x, dim, "weights")]
    each.append(existing(x, dim, mask)[0])
    for t, name in ((targets, "targets"), (target_weights, "target_weights")):
        if t is not None:
            like_targets(t, batch, name, wide_dtype(x.device))  # complains
        each.append(None if t is None else t.expand(*batch, t.shape[-1]))
    sizes = [t.shape[-1] for t in each[2:] if t is not None] + ([] if num_targets is None else [num_targets])
    if any(size != sizes[0] for size in sizes) or (sizes and sizes[0] < 1):
        return None
    number = 0.0 if isinstance(eps, Tensor) else entropy_number(eps)
    each.append(like_batch(eps, batch, "eps") if isinstance(eps, Tensor) else None)
    power = h.p if isinstance(h, Power) else h.delta
    options = (
        descending, num_targets, number, "power" if isinstance(h, Power) else "huber", float(power), squash,
        solver.tolerance, solver.max_iterations, solver.compress, reads, backend,
    )  # fmt: skip
    return CompiledPlan(rows, each, options, dim)


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

    ops = importlib.import_module("sinksort.kernels.autograd")
    found: list[Tensor] = gradient() if ops._records(x) else ops._elsewhere(gradient, x.device)
    return found


def _answer(tensors: tuple[Tensor | None, ...], read: str, options: _Options) -> Tensor:
    x, weights, mask, targets, target_weights, eps_rows, payload = tensors
    descending, num_targets, number, cost, power, squash, tolerance, max_iterations, compress, reads, backend = options
    choose = importlib.import_module("sinksort.linear.choose")  # which imports this file
    assert x is not None  # noqa: S101
    posed: dict[str, Any] = {
        "dim": -1, "descending": descending, "weights": weights, "mask": mask, "targets": targets,
        "target_weights": target_weights, "num_targets": num_targets, "eps": number if eps_rows is None else eps_rows,
        "cost": Power(power) if cost == "power" else Huber(power), "squash": squash,
    }  # fmt: skip
    solver = Newton(tolerance=tolerance, max_iterations=max_iterations, compress=compress)
    out: Tensor
    with torch.autocast("cpu", enabled=False):
        if read == "permutation":
            out = choose.dense_plan(choose.pose(x, **posed), solver, backend).permutation()
        elif read == "ranks":
            out = choose.ranks_for(x, solver=solver, backend=backend, **posed)
        else:
            plan = choose.plan_for(x, reads=reads, solver=solver, backend=backend, **posed)
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
