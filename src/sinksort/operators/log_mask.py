"""The logarithm of a top-k mask, finite however sharp the mask is.

With two targets at 0 and 1 the plan joins a value x~ to the second by the logistic function of one exponent,

    m_i = sigma(u_i + c),    u_i = (h(x~_i) - h(1 - x~_i)) / eps,    sum_i a_i m_i = k,

where h is the cost and c is the one number of a row that has to be found. Where a mask is nearly hard, m_i and 1 - m_i
round to zero, and the sum says nothing about c. So c is found from masses that have exchanged sides. Let T be the
largest values whose weights add up to at most k, and f what is left of k. What has come in equals what has gone out,

    A(c) = sum_{i not in T} a_i sigma(u_i + c)   =   sum_{i in T} a_i sigma(-u_i - c) + f = B(c),

and log A - log B increases in c, is nearly a straight line where values are far apart, and has all its digits there.

Derivatives: two steps of Newton's method from the solution, written with ordinary operations. They leave c where it is,
and have its first and second derivatives in everything that u, a and k depend on.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..core.checks import values_readable
from ..core.costs import Cost, resolve_cost
from ..core.cotangents import one_at_a_time
from ..core.modes import ordinary
from ..core.problem import as_rows, entropy, live_rows
from ..core.squash import Squash, normalize

_STEPS, _UNSEEN_STEPS = 100, 40  #: at most, and where nobody may look whether they were enough
_CLEAR = 1e-4  #: m (1 - m) of a value from which a known mask tells the threshold
_POLISHED = 6  #: steps of Newton's method from there at most


class _Digits(NamedTuple):
    """What is small and what is large in a precision."""

    reached: float  #: of log A - log B, from where two steps of Newton's method leave rounding only
    small: float  #: a step of Newton's method after which nothing is left to do
    rounding: float  #: of sums of weights
    far: float  #: exp of more overflows


_DIGITS = {torch.float64: _Digits(1e-9, 1e-7, 1e-12, 700.0), torch.float32: _Digits(1e-5, 1e-4, 1e-6, 80.0)}


def log_topk_mask(
    x: Tensor,
    k: Tensor,
    dim: int,
    largest: bool,
    weights: Tensor | None,
    mask: Tensor | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    known: Tensor | None,
) -> Tensor:
    """log of ``soft_topk_mask`` in the shape and dtype of x; -inf for padding, and where k = 0.

    k      (..., 1) how many of each row
    known  the mask itself where it has been found, to begin with
    """
    rows = as_rows(x, dim)
    plain = known is not None and weights is None and mask is None and squash is None and cost == 2
    if plain and isinstance(eps, (int, float)) and values_readable(x) and bool(x.detach().isfinite().all()):
        u, kept, count = (2.0 * rows.to(k.dtype) - 1.0) / eps, None, torch.full_like(k, float(rows.shape[-1]))
        a = torch.ones_like(u)
    else:
        values, a, kept, count = live_rows(x, rows, dim, weights, mask)
        ends = values.new_tensor((0.0, 1.0))
        places = normalize(values, a, squash, ends[:1], ends[1:])
        places = torch.where(torch.isnan(places).any(-1, keepdim=True), torch.nan, places)
        h = resolve_cost(cost)
        u = (h(places) - h(1.0 - places)) / entropy(eps, rows.shape[:-1], x.device, values.dtype).squeeze(-1)
        a = a * count  # equal weights are ones, whose sums are exact
    u = u if largest else -u
    none, whole = k <= 0.0, k >= count
    k = torch.where(none | whole, 0.5 * count, k)
    known = None if known is None else known.detach().movedim(dim, -1)
    if ordinary() and not a.requires_grad and not k.requires_grad:
        log_m: Tensor = _LogMask.apply(u, a, k, known)  # type: ignore[no-untyped-call]
    else:
        log_m = _differentiable(u, a, k, known)
    if _trivial(none, whole):
        log_m = torch.where(whole, 0.0 * u, torch.where(none, -torch.inf, log_m))
    if kept is not None:
        log_m = torch.where(kept, log_m, -torch.inf)
    return log_m.to(x.dtype).movedim(-1, dim)


def _trivial(none: Tensor, whole: Tensor) -> bool:
    """Whether some mask may be trivial."""
    return not values_readable(none) or bool((none | whole).any())


class _LogMask(torch.autograd.Function):
    """``_differentiable`` with its gradient in u written out: c moves by minus the average of du over m (1 - m)."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, a: Tensor, k: Tensor, known: Tensor | None) -> Tensor:
        c = _quick(u, a, k, known)
        if c is None:
            c = _threshold(u, a, k)
        ctx.save_for_backward(u, a, k, c)
        return logsigmoid(u + c)

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        u, a, k, c = ctx.saved_tensors
        if torch.is_grad_enabled():
            own = u.view_as(u)
            again = _differentiable(own, a, k, None)
            return torch.autograd.grad(again, own, cotangent, create_graph=True)[0], None, None, None
        v = u + c
        own = cotangent * (-v).sigmoid()
        log_slope = logsigmoid(v) + logsigmoid(-v)
        share = a * (log_slope - log_slope.amax(-1, keepdim=True)).exp()
        return own - share * (own.sum(-1, keepdim=True) / share.sum(-1, keepdim=True)), None, None, None


def _differentiable(u: Tensor, a: Tensor, k: Tensor, known: Tensor | None) -> Tensor:
    c = _quick(u.detach(), a.detach(), k.detach(), known)
    return logsigmoid(u + _threshold(u, a, k, c))


def _quick(u: Tensor, a: Tensor, k: Tensor, known: Tensor | None) -> Tensor | None:
    """c (..., 1) from the mask itself, where some value of each row is clearly neither in nor out."""
    if known is None or not values_readable(u) or u.numel() == 0:
        return None
    m = known.to(u.dtype)
    slope, at = (m * (1.0 - m) * (a > 0)).max(-1, keepdim=True)
    if not bool((slope > _CLEAR).all()):
        return None
    c = m.gather(-1, at).logit() - u.gather(-1, at)
    for _ in range(_POLISHED):
        m = (u + c).sigmoid()
        total = a * m
        step = (total.sum(-1, keepdim=True) - k) / (total * (1.0 - m)).sum(-1, keepdim=True)
        c = c - step
        if bool((step.abs() < _DIGITS[u.dtype].small).all()):
            return c
    return None


def _threshold(u: Tensor, a: Tensor, k: Tensor, begin: Tensor | None = None) -> Tensor:
    """c (..., 1), differentiable; ``begin`` is c without derivatives, where it is known."""
    fixed_u, fixed_a, fixed_k = u.detach(), a.detach(), k.detach()
    first, middle = _first(fixed_u, fixed_a, fixed_k)
    rest = fixed_k - torch.where(first, fixed_a, 0.0).sum(-1, keepdim=True)
    exact = rest <= _DIGITS[u.dtype].rounding * fixed_k
    c = _found(fixed_u, fixed_a, torch.where(exact, 0.0, rest), first, middle) if begin is None else begin
    f = k - torch.where(first, a, 0.0).sum(-1, keepdim=True)
    f = f - torch.where(exact, f, 0.0).detach()
    for _ in range(2):
        value, slope = _imbalance(u + c, a, f, first)
        c = c - value / slope
    return c


def _first(u: Tensor, a: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a value is in T, and where to begin: where the last of T and the first beside it are equally far away."""
    ordered, order = u.sort(-1, descending=True)
    weights = a.gather(-1, order)
    inside = weights.cumsum(-1) <= k * (1.0 + _DIGITS[u.dtype].rounding)
    first = torch.zeros_like(inside).scatter(-1, order, inside)
    last = inside.sum(-1, keepdim=True)
    above = ordered.gather(-1, (last - 1).clamp(min=0))
    beside = ordered.gather(-1, last.clamp(max=u.shape[-1] - 1))
    return first, -0.5 * (above + beside)


def _found(u: Tensor, a: Tensor, f: Tensor, first: Tensor, begin: Tensor) -> Tensor:
    """c (..., 1) without derivatives: Newton's method, and bisection where that would leave the bracket."""
    readable = values_readable(u)
    reach = (u.amax(-1, keepdim=True) - u.amin(-1, keepdim=True)).nan_to_num(0.0) + 50.0
    low, high, c = begin - reach, begin + reach, begin
    for _ in range(_STEPS if readable else _UNSEEN_STEPS):
        value, slope = _imbalance(u + c, a, f, first)
        if readable and not bool((value.abs() > _DIGITS[u.dtype].reached).any()):
            break
        low, high = torch.where(value < 0, c, low), torch.where(value < 0, high, c)
        new = c - value / slope
        c = torch.where((new >= low) & (new <= high), new, 0.5 * (low + high))
    return c


def _imbalance(v: Tensor, a: Tensor, f: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """log A - log B (..., 1) for v = u + c, and its derivative in c."""
    came, went = logsigmoid(v), logsigmoid(-v)
    log_in, slope_in = _log_sum(came, went, a, ~first, None)
    log_out, slope_out = _log_sum(went, came, a, first, f)
    return log_in - log_out, slope_in + slope_out


def _log_sum(log_s: Tensor, log_other: Tensor, a: Tensor, which: Tensor, f: Tensor | None) -> tuple[Tensor, Tensor]:
    """log of sum a sigma + f over some values, and its derivative, the average of 1 - sigma where f adds nothing."""
    counted = which & (a > 0)
    level = torch.where(counted, log_s, -math.inf).detach().amax(-1, keepdim=True)
    if f is not None:
        level = level.maximum(torch.where(f > 0, f, 0.0).detach().log())
    level, far = torch.where(level == -math.inf, 0.0, level), _DIGITS[a.dtype].far
    parts = torch.where(which, a * torch.exp((log_s - level).clamp(max=far)), 0.0)
    total = parts.sum(-1, keepdim=True)
    if f is not None:
        total = total + f * torch.exp((-level).clamp(max=far))
    return total.log() + level, (parts * log_other.exp()).sum(-1, keepdim=True) / total
