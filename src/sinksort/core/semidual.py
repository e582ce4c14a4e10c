"""The semi-dual of entropic transport, in the units every solver works in.

The problem is   min <P, C> + eps KL(P | a b^T)   over plans with marginals a and b, and its solution is

    P_ij = a_i b_j exp((f_i + g_j - C_ij) / eps).

Let (f0, g0) be optimal for eps = 0 (see ``solvers.start``), and measure potentials from there in units of eps:
f = f0 + eps phi, g = g0 + eps gamma, with the reduced cost

    M_ij = (C_ij - f0_i - g0_j) / eps,       P_ij = a_i b_j exp(phi_i + gamma_j - M_ij).

M is zero along the staircase of the hard sort and grows away from it, so its rounding error is smallest where the plan
lives. eps has disappeared: a solver is given M, a and b.

phi is eliminated: rows are exact by construction when phi_i = -log sum_j b_j exp(gamma_j - M_ij). What remains is
concave in gamma, and its gradient is the column marginal error

    rho_j = 1 - s_j,     s_j = sum_i a_i E_ij,     E_ij = exp(phi_i + gamma_j - M_ij)     (the density of P).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .modes import eager

#: Only a pair that both weigh nothing can exceed this; it keeps exp() of such a pair finite in single precision.
LARGEST_LOG_DENSITY = 80.0

#: Stands in for a weight of zero in log(weight). Far below rounding, it lets an entry that weighs nothing keep a
#: conditional distribution (so it gets a rank, and a one-sided derivative in its weight) and influence nobody.
NOTHING = 1e-24


def log_weight(w: Tensor) -> Tensor:
    return (w + NOTHING).log()


def without_subnormals(M: Tensor) -> Tensor:
    """Cut M where exp(-M) would leave the range of normal numbers.

    Nothing there can be seen in any answer, and arithmetic with subnormal numbers is a hundred times slower on a CPU.
    """
    return M.clamp(max=_largest_cost(M))


def reduced_cost(C: Tensor, f0: Tensor, g0: Tensor, eps: Tensor) -> Tensor:
    """M (..., n, m) from the cost and the staircase potentials."""
    if C.requires_grad or eps.requires_grad or not eager():
        return (C - f0.unsqueeze(-1) - g0.unsqueeze(-2)) / eps
    return (C - f0.unsqueeze(-1)).sub_(g0.unsqueeze(-2)).div_(eps)


def _largest_cost(M: Tensor) -> float:
    return 600.0 if M.dtype == torch.float64 else 75.0


def c_transform(M: Tensor, log_b: Tensor, gamma: Tensor) -> Tensor:
    """phi (..., n): the row potential that makes the rows of the plan exact."""
    return -torch.logsumexp((gamma + log_b).unsqueeze(-2) - M, dim=-1)


def log_density(M: Tensor, log_b: Tensor, gamma: Tensor) -> Tensor:
    """log E (..., n, m) after the row potential has been chosen for ``gamma``. It is at most -log(NOTHING)."""
    phi = c_transform(M, log_b, gamma)
    return phi.unsqueeze(-1) + gamma.unsqueeze(-2) - M


def column_sums(E: Tensor, a: Tensor) -> Tensor:
    """s (..., m): one everywhere at the solution."""
    return (a.unsqueeze(-2) @ E).squeeze(-2)


def row_sums(E: Tensor, v: Tensor) -> Tensor:
    """sum_j E_ij v_j (..., n). Written this way round, the product takes a quarter of the time on a CPU."""
    return (v.unsqueeze(-2) @ E.mT).squeeze(-2)


def hessian_factor(E: Tensor, s: Tensor, a: Tensor, log_b: Tensor) -> Tensor:
    """Cholesky factor of the semi-dual's negated Hessian, scaled by b^(-1/2) on both sides.

    The Hessian is -(diag(b s) - P^T diag(1/a) P). With S = B^(1/2) E^T A E B^(1/2) the scaled matrix diag(s) - S has
    its eigenvalues in [0, 1] whatever the weights, and the null vector sqrt(b) (potentials are defined up to a
    constant), which is moved to eigenvalue 1. A ridge at the level of rounding keeps a plan that is a permutation
    factorisable.
    """
    root_b = (0.5 * log_b).exp()
    E_root_b = torch.nn.functional.threshold(E * root_b.unsqueeze(-2), negligible(E), 0.0)
    matrix = root_b.unsqueeze(-1) * root_b.unsqueeze(-2) - E_root_b.mT @ (a.unsqueeze(-1) * E_root_b)
    factor: Tensor = torch.linalg.cholesky_ex(matrix + torch.diag_embed(s + ridge(s)))[0]
    return factor


def negligible(E: Tensor) -> float:
    """Products of two smaller densities would be subnormal."""
    return float(torch.finfo(E.dtype).tiny ** 0.4)


def ridge(s: Tensor) -> float:
    return 1e-13 if s.dtype == torch.float64 else 1e-6


def newton_step(factor: Tensor, rho: Tensor, log_b: Tensor) -> Tensor:
    """The step in gamma that removes the marginal error ``rho`` to first order."""
    root_b = (0.5 * log_b).exp()
    half = torch.linalg.solve_triangular(factor, (root_b * rho).unsqueeze(-1), upper=False)
    step: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True).squeeze(-1) / root_b
    return step
