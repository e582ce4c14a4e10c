"""Ranks with far fewer targets: a Gauss rule in place of the regular grid.

The default targets are m equal weights on the regular grid of [0, 1], and ranks only need sums over targets of
functions that are smooth at the scale sqrt(eps) or coarser. A Gauss rule of K nodes for *that discrete measure* gives
such sums exactly for polynomials of degree 2K - 1, so with K of about 3/sqrt(eps) to 5/sqrt(eps) nodes, whatever m is, nothing
visible is lost: the n-by-m problem becomes an n-by-K one. Since b_bar_j = ((m - 1) y_j + 1)/m on the grid, the rank of
a value is

    n ((m - 1) E[Y | x] + 1) / m.

**Is K enough?** Smoothness depends on the input (a wide gap between two groups of values needs K of the order of
gap/eps), so the answer is checked, row by row. Let q_k be the orthonormal polynomials of the measure and
c_k = E[q_k(Y) | x] the coefficients of the density of Y given x: they decay geometrically, c_k ~ r^k. A K-node rule
first errs at degree 2K, where c_2K ~ c_K^2, and the last coefficients are at hand: four times the sum of the squares of
the last six is the estimate. On normal, uniform, exponential, heavy-tailed, tied, few-valued, outlying and clustered
inputs with eps from 3e-3 to 0.1 it was never below the error, and mostly a hundred times above it. Rows that fail are
tried with more nodes, and in the end solved with all targets.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from ._checks import tracing
from .costs import Cost, Power, resolve_cost
from .plan import Plan, solve
from .problem import as_rows, like_batch, like_rows, pose, wide_dtype
from .solvers import Newton, Solver
from .solvers._common import host_may_look
from .squash import Squash

#: Largest admissible estimate of the error of a rank, as a fraction of n. The estimate is itself pessimistic.
_ACCEPTED = {torch.float64: 1e-9}
_ACCEPTED_BELOW_DOUBLE = 5e-6

_LAST = 6  #: how many coefficients the estimate looks at; odd and even ones may vanish by turns


@functools.lru_cache(maxsize=256)
def gauss_rule(m: int, K: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes in [0, 1], weights, and the last q_k at the nodes, for m equal weights on the regular grid of [0, 1].

    Golub and Welsch: nodes are eigenvalues of the Jacobi matrix of the recurrence, here of the discrete Chebyshev
    (Gram) polynomials on 0, ..., m - 1: alpha_k = (m - 1)/2, beta_k = k^2 (m^2 - k^2) / (4 (4 k^2 - 1)).

    >>> nodes, weights, _ = gauss_rule(100, 5)
    >>> grid = np.arange(100) / 99
    >>> bool(np.isclose((weights * nodes**9).sum(), (grid**9).mean()))
    True
    """
    k = np.arange(1, K, dtype=float)
    off_diagonal = np.sqrt(k**2 * (m**2 - k**2) / (4 * (4 * k**2 - 1)))
    jacobi = np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)  # shifted by alpha, so nodes come out symmetric
    nodes, vectors = np.linalg.eigh(jacobi)
    polynomials = vectors / vectors[0]
    return nodes / (m - 1) + 0.5, vectors[0] ** 2, polynomials[-_LAST:]


def compressed_ranks(
    x: Tensor,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
) -> Tensor | None:
    """The ranks of x for default targets, or None where there is nothing to gain or no way to check the answer.

    Choosing K looks at values, so compiled and vmapped programs, and CUDA graphs, go the way of all m targets.
    """
    rows = as_rows(x, dim)
    n = rows.shape[-1]
    m = n if num_targets is None else num_targets
    smooth = isinstance(solver, Newton) and solver.compress and resolve_cost(cost) == Power(2)
    if not smooth or tracing() or not host_may_look(x) or (isinstance(eps, Tensor) and eps.numel() == 0):
        return None
    smallest = float(eps.min()) if isinstance(eps, Tensor) else eps
    if not (isinstance(m, int) and isinstance(smallest, int | float) and smallest > 0):
        return None  # the ordinary way says what is wrong
    K = math.ceil((5.0 if x.dtype == torch.float64 else 3.4) / math.sqrt(smallest)) + 8  # enough for ordinary inputs
    if m < 2 * K:
        return None

    batch = rows.shape[:-1]
    flat = rows.reshape(-1, n)
    flat_weights = None if weights is None else like_rows(weights, x, dim, "weights").reshape(-1, n)
    flat_eps = like_batch(eps, batch, "eps").reshape(-1) if isinstance(eps, Tensor) else eps

    def solved(index: Tensor, y: Tensor | None, b: Tensor | None) -> Plan:
        problem = pose(
            flat[index],
            descending=descending,
            weights=None if flat_weights is None else flat_weights[index],
            targets=y,
            target_weights=b,
            num_targets=m if y is None else None,
            eps=flat_eps[index] if isinstance(flat_eps, Tensor) else flat_eps,
            squash=squash,
        )
        return solve(problem, solver)

    accepted = _ACCEPTED.get(x.dtype, _ACCEPTED_BELOW_DOUBLE)
    todo = torch.arange(len(flat), device=x.device)
    ranks = torch.zeros_like(flat)
    while len(todo):
        if m < 2 * K:
            found, late = solved(todo, None, None).ranks(), torch.zeros_like(todo, dtype=torch.bool)
        else:
            nodes, share, last = (
                torch.as_tensor(t, device=x.device, dtype=wide_dtype(x.device)) for t in gauss_rule(m, K)
            )
            plan = solved(todo, nodes, share)
            found = plan.pull(n * ((m - 1) * nodes + 1.0) / m)
            late = estimated_error(plan, last) > accepted  # False for NaN: more nodes would not help
        ranks = ranks.index_copy(0, todo, found)
        todo, K = todo[late], math.ceil(1.6 * K)
    return ranks.reshape(rows.shape).movedim(-1, dim)


@torch.no_grad()
def estimated_error(plan: Plan, last: Tensor) -> Tensor:
    """(...) an estimate, from above, of the largest error of a rank in the row, as a fraction of n."""
    return 4.0 * (plan.targets_given_value() @ last.mT).square().sum(-1).amax(-1)
