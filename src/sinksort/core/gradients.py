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
step also refines that solve, which single precision is grateful for.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .modes import tracing
from .semidual import c_transform, column_sums, hessian_factor, log_density, log_weight, newton_step

#: Derivatives up to this order are exact. Each order costs one more pass over the plan.
EXACT_ORDER = 2


def attach(M: Tensor, a: Tensor, b: Tensor, gamma: Tensor, by_columns: bool) -> Tensor:
    """``gamma`` (a constant) as a differentiable function of M, a and b. Its value does not change."""
    if not differentiated(M, a, b):
        return gamma
    if by_columns:
        moving = _attach_columns(M, a, log_weight(b), gamma)
    else:  # attach the row potential, and let the columns follow
        log_a = log_weight(a)
        phi = c_transform(M.detach(), log_weight(b.detach()), gamma)
        moving = c_transform(M.mT, log_a, _attach_columns(M.mT, b, log_a, phi))
    return gamma + (moving - moving.detach())


def _attach_columns(M: Tensor, a: Tensor, log_b: Tensor, gamma: Tensor) -> Tensor:
    fixed_a, fixed_log_b = a.detach(), log_b.detach()
    fixed_log_E = log_density(M.detach(), fixed_log_b, gamma)
    factor = hessian_factor(fixed_log_E, column_sums(fixed_log_E, fixed_a), fixed_a, fixed_log_b)
    for _ in range(EXACT_ORDER):
        rho = 1.0 - column_sums(log_density(M, log_b, gamma), a)
        step = newton_step(factor, rho - rho.detach(), fixed_log_b)
        gamma = gamma + step
    return gamma


def differentiated(*tensors: Tensor) -> bool:
    """Whether anybody may ask for a derivative. Inside a torch.func transform a tensor does not show it: assume yes."""
    if tracing():
        return True
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return True
    return any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)
