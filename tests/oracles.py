"""Independent truth. Nothing here imports the package: NumPy formulas from the paper, POT, SciPy.

Four sources, from the strongest:

* a *certificate*: potentials (f, g) give P_ij = a_i b_j exp((f_i + g_j - C_ij)/eps). If its marginals are a and b, it
  *is* the plan of the entropic problem, because that problem is strictly convex and this form with these marginals is
  its optimality condition. It does not matter where the potentials came from;
* ``solve``: the dense problem in extended precision to 1e-13, from a cold start, by annealed Newton with a line search;
  it ends by passing its own certificate;
* POT's ``sinkhorn`` and ``emd_1d``, SciPy's ``rankdata``: other people's code;
* closed forms of ranks, sorts (Definitions 1 and 2) and of their derivatives, from the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # np.ndarray of float64 or longdouble; NumPy's own annotations cannot say which
Cost: TypeAlias = Callable[[Array], Array]


# ---- posing the problem


def power(p: float) -> Cost:
    return lambda u: np.abs(u) ** p


SQUARED: Cost = power(2)


def huber(delta: float) -> Cost:
    return lambda u: np.where(np.abs(u) <= delta, 0.5 * u**2, delta * (np.abs(u) - 0.5 * delta))


def squashed(x: Array, a: Array | None = None, kind: str | None = "sigmoid") -> Array:
    """x~ of the paper's Eq. 4: standardised with weights ``a``, then into [0, 1].

    >>> squashed(np.array([1.0, 3.0]), kind="arctan")
    array([0.25, 0.75])
    """
    if kind is None:
        return x
    a = np.full(len(x), 1 / len(x)) if a is None else a / a.sum()
    mean = (a * x).sum()
    deviation = np.sqrt((a * (x - mean) ** 2).sum())
    z = np.zeros_like(x) if np.ptp(x) == 0 else (x - mean) / deviation
    return 1 / (1 + np.exp(-z)) if kind == "sigmoid" else np.arctan(z) / np.pi + 0.5


def grid(m: int) -> Array:
    """The default targets: the regular grid on [0, 1]."""
    return np.arange(m) / max(m - 1, 1)


def cost_matrix(x_tilde: Array, y: Array, h: Cost = SQUARED) -> Array:
    """C_ij = h(y_j - x~_i), (n, m)."""
    return h(y[None, :] - x_tilde[:, None])


# ---- the plan and its certificate


@dataclass(frozen=True)
class Truth:
    """A solved dense problem: the plan, and Definitions 1 and 2 read from it."""

    C: Array
    a: Array
    b: Array
    eps: float
    f: Array
    g: Array

    @property
    def density(self) -> Array:
        """P_ij / (a_i b_j), which exists for weightless entries too."""
        return np.exp((self.f[:, None] + self.g[None, :] - self.C) / self.eps).astype(float)

    @property
    def P(self) -> Array:
        return self.a[:, None] * self.b[None, :] * self.density

    def ranks(self) -> Array:
        """Definition 2: n a^-1 o (P b_bar)."""
        return len(self.a) * (self.density * self.b) @ np.cumsum(self.b)

    def sorts(self, x: Array) -> Array:
        """Definition 2: b^-1 o (P^T x)."""
        return (self.density * self.a[:, None]).T @ x

    def certificate(self) -> float:
        """The larger L1 error of the two marginals: zero if and only if this is the plan."""
        return certificate(self.C, self.a, self.b, self.eps, self.f, self.g)


def certificate(C: Array, a: Array, b: Array, eps: float, f: Array, g: Array) -> float:
    """L1 error of the worse marginal of a_i b_j exp((f_i + g_j - C_ij)/eps), summed in extended precision."""
    wide = np.longdouble
    P = a[:, None] * b[None, :] * np.exp((f.astype(wide)[:, None] + g.astype(wide)[None, :] - C) / eps)
    return float(max(np.abs(P.sum(1) - a).sum(), np.abs(P.sum(0) - b).sum()))


def solve(C: Array, a: Array, b: Array, eps: float, tolerance: float = 1e-13) -> Truth:
    """The entropic plan of a dense problem, certified: both marginals within ``tolerance`` in L1.

    Concave maximisation over g (or f, whichever is shorter) from zero, through decreasing entropies down to eps.
    Weightless entries take no part; they get the potential that the others imply.

    >>> C = cost_matrix(np.array([0.9, 0.1, 0.5]), grid(3))
    >>> np.round(solve(C, np.full(3, 1 / 3), np.full(3, 1 / 3), 1e-3).ranks(), 3)
    array([3., 1., 2.])
    """
    n, m = C.shape
    if n < m:
        flipped = solve(C.T, b, a, eps, tolerance)
        return Truth(C, a, b, eps, flipped.g, flipped.f)
    wide = np.longdouble
    live_a, live_b = a > 0, b > 0
    C_live, a_live, b_live = C[np.ix_(live_a, live_b)], a[live_a] / a.sum(), b[live_b] / b.sum()
    levels = [eps]
    while levels[-1] < 0.5 * np.ptp(C):
        levels.append(4 * levels[-1])
    g = np.zeros(len(b_live), dtype=wide)
    for level in reversed(levels):
        done = tolerance / 4 if level == eps else 1e-3
        g = _maximise(C_live, a_live, b_live, level, g, done)
    f_live = -eps * _logsumexp((g[None, :] - C_live) / eps + np.log(b_live.astype(wide)), 1)
    g_all = -eps * _logsumexp(((f_live[:, None] - C[live_a]) / eps + np.log(a_live.astype(wide))[:, None]).T, 1)
    g_all[live_b] = g
    f_all = -eps * _logsumexp((g[None, :] - C[:, live_b]) / eps + np.log(b_live.astype(wide)), 1)
    truth = Truth(C, a / a.sum(), b / b.sum(), eps, f_all, g_all)
    error = truth.certificate()
    if not error <= tolerance:
        raise AssertionError(f"the oracle itself did not converge: certificate {error:.1e}, n={n}, m={m}, eps={eps}")
    return truth


def _logsumexp(t: Array, axis: int) -> Array:
    top = t.max(axis=axis, keepdims=True)
    return (top + np.log(np.exp(t - top).sum(axis=axis, keepdims=True))).squeeze(axis)


def _maximise(C: Array, a: Array, b: Array, eps: float, g: Array, tolerance: float) -> Array:
    """argmax_g sum_j b_j g_j - eps sum_i a_i log sum_j b_j exp((g_j - C_ij)/eps), by Newton with halved steps."""

    def residual(gamma: Array, dtype: type) -> tuple[Array, Array]:
        logits = gamma.astype(dtype)[None, :] - (C / dtype(eps)).astype(dtype) + np.log(b)
        p = np.exp(logits - _logsumexp(logits, 1)[:, None])
        return p.astype(float), b - (a[:, None] * p).sum(0)

    gamma, dtype = g / eps, np.float64
    p, r = residual(gamma, dtype)
    for _ in range(400):
        if dtype is np.float64 and np.abs(r).sum() < 1e-9:
            dtype = np.longdouble  # the last digits
            p, r = residual(gamma, dtype)
        if np.abs(r).sum() <= tolerance:
            return gamma * eps
        s = (a[:, None] * p).sum(0)
        H = np.diag(s) - p.T @ (a[:, None] * p) + 1 / len(b) ** 2 + 1e-14 * np.diag(b)
        step = np.linalg.solve(H, r.astype(float))
        step *= min(1.0, 10 / np.abs(step).max())
        slope, length = float(r @ step), 1.0
        while length > 1e-6:
            tried = residual(gamma + length * step, dtype)
            if slope > 0 and float(tried[1] @ step) >= -0.5 * slope:  # concave: not far past the maximum
                gamma, (p, r) = gamma + length * step, tried
                break
            length /= 2
        else:  # Sinkhorn's own step always rises
            gamma = gamma + np.log(b) - np.log(np.maximum(s, 1e-300))
            p, r = residual(gamma, dtype)
    raise AssertionError(f"the oracle itself did not converge: residual {np.abs(r).sum():.1e} at eps={eps}")


# ---- other people's code (imported here, so that machines without them can use the rest)


def pot_plan(C: Array, a: Array, b: Array, eps: float, method: str = "sinkhorn_log") -> Array:
    """POT's entropic plan."""
    import ot

    return ot.sinkhorn(a, b, C, eps, method=method, numItermax=200_000, stopThr=1e-13, warn=True)


def exact_plan(x: Array, a: Array, b: Array) -> Array:
    """POT's exact 1-D plan (n, m) onto increasing targets."""
    import ot

    return ot.emd_1d(x, grid(len(b)), a / a.sum(), b / b.sum())


def exact_ranks(x: Array, a: Array, b: Array) -> Array:
    """Definition 1: n a^-1 o (P* b_bar)."""
    a, b = a / a.sum(), b / b.sum()
    return len(x) * exact_plan(x, a, b) @ np.cumsum(b) / a


def exact_sorts(x: Array, a: Array, b: Array) -> Array:
    """Definition 1: b^-1 o (P*^T x)."""
    a, b = a / a.sum(), b / b.sum()
    return exact_plan(x, a, b).T @ x / b


# ---- derivatives


def rank_vjp(truth: Truth, v: Array) -> tuple[Array, Array, Array]:
    """(dL/dC, dL/da, dL/db) for L = sum_i v_i R_i, by the implicit function theorem; a and b free, not renormalised.

    With p_ij = P_ij/a_i = softmax_j(l_ij), l_ij = (g_j - C_ij)/eps + log b_j, the read-out n sum_i v_i p_ij b_bar_j has
    the logit cotangent G_ij; the column condition sum_i a_i p_ij = b_j moves g, and lam are its multipliers.
    """
    n, m = truth.C.shape
    p = truth.density * truth.b
    levels = np.cumsum(truth.b)
    G = n * v[:, None] * p * (levels - (p @ levels)[:, None])
    P = truth.a[:, None] * p
    H = np.diag(P.sum(0)) - p.T @ P + 1 / m**2
    lam = np.linalg.solve(H, G.sum(0))
    total = G - P * (lam - (p @ lam)[:, None])
    # b enters as the constraint's right-hand side (lam) and through b_bar; log b in the logits is absorbed by g.
    through_levels = np.cumsum((n * v[:, None] * p).sum(0)[::-1])[::-1]
    return -total / truth.eps, -p @ lam, lam + through_levels


def sort_vjp(truth: Truth, x: Array, v: Array) -> tuple[Array, Array]:
    """(dL/dC, dL/dx in the read-out alone) for L = sum_j v_j S_j with S = b^-1 o (P^T x)."""
    m = truth.C.shape[1]
    p = truth.density * truth.b
    weight = truth.a[:, None] * x[:, None] * (v / truth.b)[None, :]  # dL/dp_ij
    G = p * (weight - (p * weight).sum(1, keepdims=True))
    P = truth.a[:, None] * p
    H = np.diag(P.sum(0)) - p.T @ P + 1 / m**2
    lam = np.linalg.solve(H, G.sum(0))
    total = G - P * (lam - (p @ lam)[:, None])
    return -total / truth.eps, (P * (v / truth.b)).sum(1)


def central_difference(function: Callable[[Array], float], at: Array, step: float = 1e-6) -> Array:
    """Gradient of a scalar function by central differences."""
    gradient = np.empty(at.size)
    for i in range(at.size):
        move = np.zeros(at.size)
        move[i] = step
        gradient[i] = (function(at + move.reshape(at.shape)) - function(at - move.reshape(at.shape))) / (2 * step)
    return gradient.reshape(at.shape)
