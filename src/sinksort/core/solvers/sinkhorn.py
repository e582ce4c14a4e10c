"""The paper's own solver: Algorithm 2 (logarithmic domain) and Algorithm 1 (kernel domain).

Both alternate  g <- soft-minimum over inputs,  f <- soft-minimum over targets,  until the column marginal of the plan
is within eta of b. Numbers in the comments are the lines of the published algorithms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..modes import tracing
from ..semidual import log_weight
from ._common import Solution, batch_over_leading_dim, empty_answer, host_may_look, require_tolerance, warn_unconverged


@dataclass(frozen=True, kw_only=True)
class Sinkhorn:
    """The paper's Sinkhorn iterations: hundreds of cheap steps where Newton takes five. Reference and cross-check.

    Args:
        tolerance: eta, the L1 error of the column marginal at which a row is done.
        max_iterations: a row that needs more is reported (``Plan.converged``) with a warning.
        domain: ``"log"`` for Algorithm 2 (any eps), ``"kernel"`` for Algorithm 1 (fast, underflows for small eps).
        gradient: ``"implicit"`` differentiates the optimality conditions, with memory that does not depend on the
            number of iterations; ``"unrolled"`` differentiates the iterations themselves, as the paper does.
        start: ``"zeros"`` as in the paper, or ``"staircase"``, the exact potentials of the hard sort (far fewer steps).
        start_eps: begin with this larger entropy and shrink it by ``decay`` each iteration down to eps (log domain).
        decay: factor of the schedule, between 0 and 1.

    >>> import torch, sinksort
    >>> x = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)
    >>> ranks = sinksort.soft_rank(x, eps=0.1, solver=sinksort.Sinkhorn(tolerance=1e-9))
    >>> torch.allclose(ranks, sinksort.soft_rank(x, eps=0.1))
    True
    """

    tolerance: float = 1e-3
    max_iterations: int = 2000
    domain: Literal["log", "kernel"] = "log"
    gradient: Literal["implicit", "unrolled"] = "implicit"
    start: Literal["zeros", "staircase"] = "zeros"
    start_eps: float | None = None
    decay: float = 0.9

    def __post_init__(self) -> None:
        require_tolerance(self.tolerance, self.max_iterations)
        for name, allowed in (
            ("domain", ("log", "kernel")),
            ("gradient", ("implicit", "unrolled")),
            ("start", ("zeros", "staircase")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"Sinkhorn: {name} must be one of {allowed}, got {getattr(self, name)!r}.")
        if self.start_eps is not None and not self.start_eps > 0:
            raise ValueError(f"Sinkhorn: start_eps must be positive, got {self.start_eps}; 0.1 is usual.")
        if self.start_eps is not None and self.domain == "kernel":
            raise ValueError("Sinkhorn: an eps schedule needs domain='log'; leave start_eps out, or change the domain.")
        if not 0 < self.decay < 1:
            raise ValueError(f"Sinkhorn: decay must be between 0 and 1, got {self.decay}.")

    def solve(self, M: Tensor, a: Tensor, b: Tensor, f0: Tensor, g0: Tensor, eps: Tensor) -> Solution:
        """``f0``, ``g0``: the staircase potentials M was reduced by; ``eps`` (..., 1): to place the paper's start."""
        log_a, log_b = log_weight(a), log_weight(b)
        from_staircase, unrolled = self.start == "staircase", self.gradient == "unrolled"
        loop: Callable[..., tuple[Tensor, Tensor, Tensor]]
        if self.domain == "log":
            loop = _log_domain if unrolled else log_loop
            log_u = log_a if from_staircase else -f0 / eps  # 3: alpha = 0
            ratio = torch.full_like(eps, self.start_eps or 0.0) / eps
            limits = (self.tolerance, self.max_iterations, self.decay)
            gamma, iterations, error = loop(log_u, M, log_a, log_b, ratio, *limits)
        else:
            loop = _kernel_domain if unrolled else kernel_loop
            # u, v scale the paper's K = exp(-C/eps); the start from the staircase uses the reduced kernel exp(-M).
            log_K = -M if from_staircase else -(M + (f0 / eps).unsqueeze(-1) + (g0 / eps).unsqueeze(-2))
            log_u = log_a if from_staircase else torch.zeros_like(log_a)  # 3: u = 1
            gamma, iterations, error = loop(log_u, log_K, log_a, log_b, self.tolerance, self.max_iterations)
            gamma = gamma if from_staircase else gamma - g0 / eps
        return Solution(gamma, iterations, error, self.tolerance)


def _log_domain(
    log_u: Tensor,
    M: Tensor,
    log_a: Tensor,
    log_b: Tensor,
    ratio: Tensor,
    tolerance: float,
    max_iterations: int,
    decay: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 2. ``ratio`` (..., 1) is start_eps / eps. Potentials are in units of eps: k eps divides by k."""
    b = log_b.detach().exp()
    k = ratio.clamp(min=1.0)
    phi = log_u - log_a
    gamma = torch.zeros_like(log_b)
    iterations = torch.zeros(b.shape[:-1], dtype=torch.int64, device=b.device)
    error = torch.full_like(b[..., 0], float("inf"))
    for step in range(max_iterations + 1):
        # 5: beta <- eps log b + min_eps(C^T - alpha - beta) + beta
        half = (phi / k + log_a).unsqueeze(-1) - M / k.unsqueeze(-1)
        updated = -k * torch.logsumexp(half, dim=-2)
        if step > 0:
            # 7: the column marginal of the plan after the last full step is b exp((gamma - updated) / k)
            off = (b * (((gamma - updated) / k).detach().exp() - 1.0).abs()).sum(-1)
            working = (off > tolerance) | ((k > 1.0).squeeze(-1) & ~off.isnan())
            error = off
            if step == max_iterations or (host_may_look(b) and not tracing() and not working.any()):
                break
            iterations = iterations + working
            working = working.unsqueeze(-1)  # a row that is done waits for the others as it is
            k = torch.where(working, (k * decay).clamp(min=1.0), k)
            gamma = torch.where(working, updated, gamma)
        else:
            iterations = iterations + 1
            gamma = updated
        # 6: alpha <- eps log a + min_eps(C - alpha - beta) + alpha
        phi = -k * torch.logsumexp((gamma / k + log_b).unsqueeze(-2) - M / k.unsqueeze(-1), dim=-1)
    advice = "Use the default Newton solver, or raise Sinkhorn(max_iterations=..., tolerance=...) or eps."
    if not tracing():
        warn_unconverged(error, tolerance, max_iterations, advice)
    return gamma, iterations, error


def _kernel_domain(
    log_u: Tensor, log_K: Tensor, log_a: Tensor, log_b: Tensor, tolerance: float, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 1: matrix products with K = exp(-C/eps) instead of soft-minima."""
    a, b, K, u = log_a.exp(), log_b.exp(), log_K.exp(), log_u.exp()
    v = b
    iterations = torch.zeros(b.shape[:-1], dtype=torch.int64, device=b.device)
    error = torch.full_like(b[..., 0], float("inf"))
    for step in range(max_iterations + 1):
        Ku = (K * u.unsqueeze(-1)).sum(-2)
        if step > 0:
            error = (v * Ku - b).detach().abs().sum(-1)  # 5: Delta(v o K^T u, b) < eta
            working = error > tolerance
            if step == max_iterations or (host_may_look(b) and not tracing() and not working.any()):
                break
            iterations = iterations + working
            v = torch.where(working.unsqueeze(-1), b / Ku, v)  # 4: v <- b / K^T u, u <- a / K v
        else:
            iterations = iterations + 1
            v = b / Ku
        u = a / (K * v.unsqueeze(-2)).sum(-1)
    # A kernel that underflowed divides by zero: the row is not converged, and says so, rather than NaN in silence.
    broken = ~torch.isfinite(error) & torch.isfinite(log_K).all(-1).all(-1)
    error = torch.where(broken, float("inf"), error)
    if not tracing():
        warn_unconverged(
            error, tolerance, max_iterations, "exp(-C/eps) underflows for small eps: use Sinkhorn(domain='log')."
        )
    return v.log() - log_b, iterations, error


@torch.library.custom_op("sinksort::sinkhorn_log", mutates_args=())
def log_loop(
    log_u: Tensor,
    M: Tensor,
    log_a: Tensor,
    log_b: Tensor,
    ratio: Tensor,
    tolerance: float,
    max_iterations: int,
    decay: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return _log_domain(log_u, M, log_a, log_b, ratio, tolerance, max_iterations, decay)


@torch.library.custom_op("sinksort::sinkhorn_kernel", mutates_args=())
def kernel_loop(
    log_u: Tensor, log_K: Tensor, log_a: Tensor, log_b: Tensor, tolerance: float, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _kernel_domain(log_u, log_K, log_a, log_b, tolerance, max_iterations)


def _fake(log_u: Tensor, cost: Tensor, log_a: Tensor, log_b: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return empty_answer(log_b)


for _op in (log_loop, kernel_loop):
    _op.register_fake(_fake)
    batch_over_leading_dim(_op)
