"""Answers of the reference to the requests that kernels get: for rejected rows, and for second derivatives."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.blocks import solve_in_blocks
from ..core.costs import Power
from ..core.option_values import DEFAULT_SOLVER, Options
from ..core.plan import Plan
from ..core.problem import Problem, inverse_of, met_exactly, rounding_of
from ..core.squash import normalize
from ..linear.choose import plan_for, ranks_for
from ..linear.compiled import CompiledPlan
from ..linear.smooth import SmoothPlan
from .contract import Request
from .plan import exact_plan
from .requests.targets import default_targets


def pulled(request: Request, phi: Tensor) -> Tensor:
    """``Kernels.pull`` in the dtype of x, differentiable in it."""
    m = request.m or _default_targets(request, phi)
    if m is None:
        return _plan(request).pull(phi.double().expand(len(request.x), -1)).to(request.x.dtype)
    n = request.x.shape[-1]
    options = Options(weights=request.a, num_targets=m, eps=request.eps, squash=request.squash, backend="rejected")
    ranks = ranks_for(request.x, options)
    # phi is affine in y, and so in the rank n ((m - 1) y + 1) / m.
    slope = (phi[:, -1:] - phi[:, :1]) / (request.y[:, -1:] - request.y[:, :1])
    mean = (ranks * (m / n) - 1.0) / (m - 1)
    return (phi[:, :1] + slope * (mean - request.y[:, :1])).to(request.x.dtype)


def _default_targets(request: Request, phi: Tensor) -> int | None:
    """How many default targets there are, if ranks are averaged over them one by one; else None."""
    n, m = request.x.shape[-1], request.y.shape[-1]
    if m < 2 or len(request.y) > 1:
        return None
    each = (default_targets(n, m, None, descending, request.x.device) for descending in (False, True))
    return m if any(request.y is at.y and request.b is at.b and phi is at.phi for at in each) else None


def pushed(request: Request) -> Tensor:
    """``Kernels.push`` in float32, differentiable in x."""
    return (_plan(request) if request.m is None else _default_plan(request)).sorted().float()


def logs(request: Request) -> Tensor:
    """``Kernels.logs`` in float32, differentiable in x."""
    return torch.where((request.b > 0).unsqueeze(-2), log_shares(_plan(request)), -torch.inf).float()


def log_shares(plan: Plan) -> Tensor:
    """log p (..., n, m), rows in the order of x, targets increasing: of all exponents, however small p is."""
    p, (f0, g0) = plan.problem, plan.start
    M = (p.cost - f0.unsqueeze(-1) - g0.unsqueeze(-2)) / p.eps
    log_p = torch.log_softmax((plan.gamma + plan.log_b).unsqueeze(-2) - M, dim=-1)
    return log_p if p.inverse is None else log_p.gather(-2, p.inverse.unsqueeze(-1).expand(log_p.shape))


def _default_plan(request: Request) -> Plan | SmoothPlan | CompiledPlan:
    """The plan of all values and the m default targets that the nodes stand for."""
    options = Options(
        weights=request.a, num_targets=request.m, eps=request.eps, squash=request.squash, backend="rejected"
    )
    return plan_for(request.x, options, reads="averages")


def _plan(request: Request) -> Plan:
    """The plan of all values and the given targets, in float64."""
    values = request.x.double()
    R, n = values.shape
    a = torch.full_like(values, 1.0 / n).detach() if request.a is None else request.a.double()
    y, b = (t.double().expand(R, -1) for t in (request.y, request.b))
    a, b = a / a.sum(-1, keepdim=True), b / b.sum(-1, keepdim=True)  # single precision left their sums off by 1e-8
    eps = request.eps if isinstance(request.eps, Tensor) else values.new_tensor(request.eps)
    x_tilde = normalize(values, a, request.squash, y[:, :1], y[:, -1:])
    x_tilde = torch.where(torch.isnan(x_tilde).any(-1, keepdim=True), torch.nan, x_tilde)
    x_tilde, order = x_tilde.sort(dim=-1)
    a = a.gather(-1, order)
    b = met_exactly(b, a, rounding_of(request.a, request.b))
    problem = Problem(
        x=values.gather(-1, order),
        a=a,
        y=y,
        b=b,
        costs=None,
        eps=eps.double().reshape(-1, 1, 1).expand(R, 1, 1),
        count=torch.full_like(values[:, :1], float(n)).detach(),
        dtype=torch.float64,
        inverse=inverse_of(order),
        order=order,
        weighted=request.a is not None,
        weighted_targets=request.m is None,
        x_tilde=x_tilde,
        h=Power(2),
        tracked=torch.is_grad_enabled(),
    )
    return exact_plan(problem, DEFAULT_SOLVER) or solve_in_blocks(problem, DEFAULT_SOLVER)
