"""Payloads that go through a plan: given on the values (``sort_with``), or on the targets and learned there.

Fused kernels answer for most of the rows that ``lanes.band_rows`` answers. The functions return None everywhere
else, also where one of the rows needs more digits than single precision has.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.checks import values_readable
from ...core.cotangents import one_at_a_time
from ...core.modes import ordinary
from ...core.option_values import Options
from ...linear.choose import plan_for
from ...linear.refine import accepted_error
from ..backends import backend_for, refuses, remember
from ..contract import Request
from ..dispatch import FEW, MOST_COLUMNS, MOST_TARGETS, facts_of
from .targets import default_targets

_ACCEPTED = accepted_error(torch.float32)


def pushed(x: Tensor, payload: Tensor, m: int, options: Options) -> Tensor | None:
    """(R, m, d): averages of a payload (R, n, d) over the values of x (R, n) that each default target receives."""
    if not 1 <= payload.shape[-1] <= MOST_COLUMNS:
        return None
    found = _solved(x, payload, None, m, options)
    if found is None:
        return None
    R, n = x.shape
    x, payload = _sixteen(x), _sixteen(payload)
    # Averages move with a constant, and without it no digits are lost: equal numbers come out as they are.
    origin = payload.detach().mean(-2, keepdim=True)
    columns = [_Pushed.apply(x, w, found) for w in (payload - origin).unbind(-1)]  # type: ignore[attr-defined]
    return (origin + torch.stack(columns, dim=-1) * (m / n))[:R]


def pulled(x: Tensor, v: Tensor, options: Options) -> Tensor | None:
    """(R, n): averages of v (m,), which is learned, over the default targets that each value of x (R, n) is sent to."""
    origin = v.detach().mean()
    centred = v - origin
    found = _solved(x, v, centred.detach(), len(v), options)
    if found is None:
        return None
    out: Tensor = _Pulled.apply(_sixteen(x), centred, found)  # type: ignore[attr-defined]
    return (out + origin)[: len(x)]


def _solved(x: Tensor, payload: Tensor, v: Tensor | None, m: int, options: Options) -> Any:
    """A ``cpu.payloads.Solved`` of the rows, made a multiple of 16; None if these kernels are not for them."""
    n = x.shape[-1]
    alike = x.dtype == payload.dtype == torch.float32
    if not (ordinary() and alike and x.is_cpu and len(x) and FEW < m <= MOST_TARGETS and values_readable(x)):
        return None
    eps, squash = options.eps, options.squash
    if isinstance(eps, Tensor) or backend_for(x, options) != "numba":
        return None
    if not bool(payload.isfinite().all()):
        return None
    at = default_targets(n, m, None, False, x.device)
    request = Request(_sixteen(x.detach().resolve_neg()), None, at.y, at.b, float(eps), squash, prepared={})  # type: ignore[arg-type]
    if refuses("numba", facts_of("numba", request, "push"), "auto"):
        return None
    kernels = importlib.import_module("sinksort.kernels.cpu.payloads")
    found = kernels.solved(request, at.phi if v is None else v.unsqueeze(0), _ACCEPTED)
    if found is not None:
        remember("numba")
    return found


def _sixteen(t: Tensor) -> Tensor:
    """Rows (R, ...), the last of them repeated until they are a multiple of 16."""
    more = -len(t) % 16
    return t if more == 0 else torch.cat([t, t[-1:].expand(more, *t.shape[1:])])


class _Pushed(torch.autograd.function._SingleLevelFunction):
    """(R, m): sum_i w_i p_ij, from x and w (R, n)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, found: Any) -> Tensor:
        ctx.found = found
        ctx.save_for_backward(x, w)
        out: Tensor = found.carry(w.detach())
        return out

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, w = ctx.saved_tensors
        scale: float = x.shape[-1] / c.shape[-1]

        def again(x: Tensor, w: Tensor) -> Tensor:
            averages: Tensor = _plan(ctx.found.request, x).push(w.unsqueeze(-1)).squeeze(-1)
            return averages * scale

        if torch.is_grad_enabled():
            return *_differentiated(again, x, w, c), None
        of_x, of_w, fine = ctx.found.carry_backward(w, c)
        if not bool(fine.all()):  # nearly all of it cancelled, and single precision has no digits left
            rejected = (~fine).nonzero().squeeze(-1)
            with torch.enable_grad():
                values = x.detach()[rejected].requires_grad_()
                (of_x[rejected],) = torch.autograd.grad(again(values, w.detach()[rejected]), values, c[rejected])
        return of_x, of_w, None


class _Pulled(torch.autograd.function._SingleLevelFunction):
    """(R, n): sum_j v_j p_ij, from x (R, n) and v (m,)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, v: Tensor, found: Any) -> Tensor:
        ctx.found = found
        ctx.save_for_backward(x, v)
        out: Tensor = found.out
        found.out = None  # or it would keep itself alive
        return out

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, w: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, v = ctx.saved_tensors
        if torch.is_grad_enabled():

            def again(x: Tensor, v: Tensor) -> Tensor:
                averages: Tensor = _plan(ctx.found.request, x).pull(v.expand(len(x), -1))
                return averages

            return *_differentiated(again, x, v, w), None
        of_x = ctx.found.pull_backward(v, w) if ctx.needs_input_grad[0] else None
        return of_x, ctx.found.carry(w).sum(0, dtype=torch.float64).to(v.dtype), None


def _plan(request: Request, x: Tensor) -> Any:
    """The same plan, differentiable."""
    options = Options(num_targets=request.y.shape[-1], eps=request.eps, squash=request.squash, backend="rejected")
    return plan_for(x, options, reads="averages")


def _differentiated(function: Callable[..., Tensor], x: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Cotangents that can be differentiated again."""
    views = x.view_as(x), w.view_as(w)
    of_x, of_w = torch.autograd.grad(function(*views), views, c, create_graph=True)
    return of_x, of_w
