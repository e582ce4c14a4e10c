"""Very short rows, sixteen at a time: what sorted values answer to a change of places; see ``lanes.plan``.

The loss changes with sum_j c_j v_j, where v_j = sum_i a_i p_ij x_i / b_j. With phi_j = c_j / b_j,

    d(sum_j c_j v_j)  =  sum_i a_i E_i(phi) dx_i  +  sum_ij a_i x_i phi_j dp_ij,

the first directly, the second by way of the plan. ``contract`` differentiates a plan whose entry p_ij has the cotangent
w_i phi_j with w_i = a_i x_i. But around the few values that reach a quantile x_i is nearly constant, and a w_i that is
a_i times a constant has no gradient: large parts cancel. What they have in common is known, and is left out at once.
What arrives is fixed, sum_i a_i dp_ij = db_j = 0, so that a_i s_j may be added to the cotangent of p_ij for any s. With
s_j = -phi_j v_j it is

    a_i F_ij,        F_ij = (x_i - v_j) phi_j,

which is small where p_ij is not: v_j is an average of what arrives at j. (And any other number in the place of v_j
gives the same gradient, so that nothing depends on its last digits.) From here on all goes as in ``contract``, with
E_i and Cov_i over the targets j of value i:

    t_j  =  sum_i a_i p_ij (F_ij - E_i F),        lambda = L^+ t,

    the cotangent of x~_i  =  (2 / eps) a_i Cov_i(F - lambda, y).

By the definition of v_j the sum of a_i p_ij F_ij is zero, and t_j = -sum_i a_i p_ij E_i F. But in the form above each
term is small where a value goes to one target, and the sum of t is zero whatever is rounded.

F_ij is measured from the best target of i, D_ij = F_ij - F_i,best, for the same reason; x in standard deviations.
"""

from __future__ import annotations

from ..engine.compile import borrowing
from ..engine.maths import F32
from ..engine.vectors import choose, load, splat, store


@borrowing
def lane_arrivals(G: F32, n: int, K: int, best: F32, numbers: F32, av: F32, z: F32, values: F32) -> None:
    """v_j; 0 where nothing arrives."""
    for j in range(K):
        sums, shares = splat(0.0), splat(0.0)
        for i in range(n):
            g = choose(load(best, 16 * i) == numbers[j], splat(1.0), load(G, 16 * (i * K + j)))
            share = g * load(av, 16 * i)
            sums, shares = sums + share * load(z, 16 * i), shares + share
        store(values, 16 * j, choose(shares > 0.0, sums / shares, splat(0.0)))


@borrowing
def lane_stakes(G: F32, n: int, K: int, aw: F32, best: F32, numbers: F32, u: F32, v: F32, phi: F32, y: F32, z: F32,
                values: F32, P: F32, Q: F32, given: F32, mean: F32, y_mean: F32) -> None:  # fmt: skip
    """p and a p; D in the place of G; E_i phi, E_i D and E_i y."""
    for i in range(n):
        at_best, vi, a, zi = load(best, 16 * i), load(v, 16 * i), load(aw, 16 * i), load(z, 16 * i)
        p0, y0, v0 = splat(0.0), splat(0.0), splat(0.0)
        for j in range(K):
            here = at_best == numbers[j]
            p0, y0 = choose(here, load(phi, 16 * j), p0), choose(here, load(y, 16 * j), y0)
            v0 = choose(here, load(values, 16 * j), v0)
        F_0, gives, means, means_y = (zi - v0) * p0, splat(0.0), splat(0.0), splat(0.0)
        for j in range(K):
            o, here, level = 16 * (i * K + j), at_best == numbers[j], load(phi, 16 * j)
            p = choose(here, splat(1.0), load(G, o)) * (load(u, 16 * j) * vi)
            D = choose(here, splat(0.0), (zi - load(values, 16 * j)) * level - F_0)
            store(P, o, p)
            store(Q, o, p * a)
            store(G, o, D)
            gives, means, means_y = gives + p * (level - p0), means + p * D, means_y + p * (load(y, 16 * j) - y0)
        store(given, 16 * i, p0 + gives)
        store(mean, 16 * i, means)
        store(y_mean, 16 * i, y0 + means_y)


@borrowing
def lane_pulls(P: F32, D: F32, n: int, K: int, aw: F32, mean: F32, t: F32) -> None:
    """t_j = sum_i a_i p_ij (F_ij - E_i F)."""
    for j in range(0, K, 2):
        k = min(j + 1, K - 1)
        t_j, t_k = splat(0.0), splat(0.0)
        for i in range(0, 16 * n, 16):
            a, means = load(aw, i), load(mean, i)
            t_j = t_j + load(P, i * K + 16 * j) * ((load(D, i * K + 16 * j) - means) * a)
            t_k = t_k + load(P, i * K + 16 * k) * ((load(D, i * K + 16 * k) - means) * a)
        store(t, 16 * j, t_j)
        store(t, 16 * k, t_k)


@borrowing
def lane_answers(P: F32, D: F32, n: int, K: int, best: F32, numbers: F32, lam: F32, y: F32, y_mean: F32, cov: F32,
                 cov_left: F32) -> None:  # fmt: skip
    """Cov_i(F, y), and Cov_i(F - lambda, y), which is what is left of it."""
    for i in range(n):
        at_best, lam_0, y_i = load(best, 16 * i), splat(0.0), load(y_mean, 16 * i)
        for j in range(K):
            lam_0 = choose(at_best == numbers[j], load(lam, 16 * j), lam_0)
        of_F, left = splat(0.0), splat(0.0)
        for j in range(K):
            o = 16 * (i * K + j)
            p, d = load(P, o) * (load(y, 16 * j) - y_i), load(D, o)
            of_F = of_F + p * d
            left = left + p * (d - (load(lam, 16 * j) - lam_0))
        store(cov, 16 * i, of_F)
        store(cov_left, 16 * i, left)
