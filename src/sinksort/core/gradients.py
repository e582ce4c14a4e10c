"""Implicit differentiation: one theorem for every solver, every read-out and every input.

The solver returns gamma* as a constant: its loop leaves no trace in the graph. At the solution rho(theta, gamma) = 0
for the inputs theta = (M, a, b), which defines gamma as a function of theta. Let H be the (constant) Hessian at the
solution, and consider

    gamma_1(theta)     = gamma* + H^-1 rho(theta, gamma*)
    gamma_2(theta)     = gamma_1(theta) + H^-1 rho(theta, gamma_1(theta))     and so on,

written with ordinary differentiable operations. At the present theta nothing moves, because rho is zero there. Near it,
say at distance delta, gamma_k misses the true gamma(theta) by O(delta^(k+1)): the error of gamma* is O(delta), and
each step multiplies it by 1 - H^-1 H(theta) = O(delta). So gamma_1 has the right first derivatives (this is the
implicit function theorem), gamma_2 the right second derivatives as well. Reverse mode, forward mode, double backward,
vmap and compilation all follow from the ordinary rules, and memory does not depend on how many iterations the solver
took.

In first-order reverse mode this is one solve with H,  lambda = H^-1 dL/dgamma,  then the cotangent of rho; the second
step also refines that solve, which single precision is grateful for. Eager programs that want no more than that get it
by ``_Implicit``, which writes the two steps down transposed and keeps M alone. With N the Newton step as a linear map,
J the Jacobian of rho in gamma and c = dL/dgamma, the cotangent of rho in both steps together is

    w = N^T c + N^T (c + J^T N^T c),        J^T w = -(s w - B E^T A E w),

and rho changes with M, a and log b by  d rho_j = -sum_i (a_i dE_ij + E_ij da_i),  where  dE_ij = E_ij (dphi_i - dM_ij)
and  dphi_i = sum_k b_k E_ik (dM_ik - dlog b_k). With q = E w the cotangents are therefore

    of M_ij  a_i E_ij (w_j - b_j q_i),        of a_i  -q_i,        of b_k  sum_i a_i q_i E_ik.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .cotangents import one_at_a_time
from .modes import eager, tracing
from .semidual import c_transform, column_sums, hessian_factor, log_density, log_weight, newton_step, row_sums

#: Derivatives up to this order are exact. Each order costs one more pass over the plan.
EXACT_ORDER = 2


def attach(M: Tensor, a: Tensor, b: Tensor, gamma: Tensor, by_columns: bool) -> Tensor:
    """``gamma`` (a constant) as a differentiable function of M, a and b. Its value does not change."""
    if not differentiated(M, a, b):
        return gamma
    if by_columns:
        moving = _attach_columns(M, a, b, gamma)
    else:  # attach the row potential, and let the columns follow
        phi = c_transform(M.detach(), log_weight(b.detach()), gamma)
        moving = c_transform(M.mT, log_weight(a), _attach_columns(M.mT, b, a, phi))
    return gamma + (moving - moving.detach())


def _attach_columns(M: Tensor, a: Tensor, b: Tensor, gamma: Tensor) -> Tensor:
    if eager():
        attached: Tensor = _Implicit.apply(M, a, b, gamma)  # type: ignore[no-untyped-call]
        return attached
    return _chord_steps(M, a, b, gamma)


def _chord_steps(M: Tensor, a: Tensor, b: Tensor, gamma: Tensor) -> Tensor:
    fixed_a, log_b = a.detach(), log_weight(b)
    fixed_log_b = log_b.detach()
    fixed_E = log_density(M.detach(), fixed_log_b, gamma).exp()
    factor = hessian_factor(fixed_E, column_sums(fixed_E, fixed_a), fixed_a, fixed_log_b)
    for _ in range(EXACT_ORDER):
        rho = 1.0 - column_sums(log_density(M, log_b, gamma).exp(), a)
        step = newton_step(factor, rho - rho.detach(), fixed_log_b)
        gamma = gamma + step
    return gamma


class _Implicit(torch.autograd.Function):
    """``_chord_steps`` for eager programs: the first derivative in closed form, higher ones by the steps themselves."""

    @staticmethod
    def forward(ctx: Any, M: Tensor, a: Tensor, b: Tensor, gamma: Tensor) -> Tensor:
        ctx.save_for_backward(M, a, b, gamma)
        return gamma.clone()

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        M, a, b, gamma = ctx.saved_tensors
        (c,) = cotangents
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            own = M.view_as(M), a.view_as(a), b.view_as(b)
            wanted = [t for t, need in zip(own, needs, strict=True) if need]
            found = iter(torch.autograd.grad(_chord_steps(*own, gamma), wanted, c, create_graph=True))
            return *(next(found) if need else None for need in needs), None
        log_b = log_weight(b)
        E = log_density(M, log_b, gamma).exp_()
        s, fixed_b = column_sums(E, a), log_b.exp()
        factor = hessian_factor(E, s, a, log_b)
        w = newton_step(factor, c / fixed_b, log_b) * fixed_b  # N^T = B N B^-1
        pulled = row_sums(E, w)
        moved = c - (s * w - fixed_b * column_sums(E, a * pulled))
        w = w + newton_step(factor, moved / fixed_b, log_b) * fixed_b
        q = row_sums(E, w)
        of_b = column_sums(E, a * q) if needs[2] else None
        of_M = None
        if needs[0]:
            factors = torch.addcmul(w.unsqueeze(-2), q.unsqueeze(-1), fixed_b.unsqueeze(-2), value=-1.0)
            of_M = E.mul_(factors).mul_(a.unsqueeze(-1))
        return of_M, -q if needs[1] else None, of_b, None


def differentiated(*tensors: Tensor) -> bool:
    """Whether anybody may ask for a derivative. Inside a torch.func transform a tensor does not show it: assume yes."""
    if tracing():
        return True
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return True
    return any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)
