"""Passes over all pairs of values and targets that count: sixteen values at a time, in double precision.

Values are sorted, x increasing, with potentials F; a pair has the density q_ij = exp(F_i + H_j - (y_j - x_i)^2 / eps),
and a_i q_ij are the shares of the values in target j, if H_j makes them so. F_i - x_i^2 / eps is concave in x_i (minus
a log-sum-exp of lines), so exponents fall on both sides of the largest, and what is above a limit is a window.
Arrays of values are padded to a multiple of 16 by values without weight.
"""

from __future__ import annotations

import math

from ..engine.compile import exact, summing
from ..engine.maths import F64, I32, I64, exp_soon
from ..engine.vectors import load64, splat64, store64, total64

_CUT = 36.0  #: exponents so far below the largest are left out: 2e-16
_ROUNDING = 1e-9  #: by which exponents of equal values may differ


@exact
def windows(F: F64, x: F64, n: int, y: F64, K: int, eps: float, lo: I32, hi: I32, H: F64) -> None:
    """Values first to last - 1 of each target, in whole sixteens; and H, so that the largest exponents are 0."""
    best, first, end = 0, 0, 0
    for j in range(K):
        here = F[best] - (y[j] - x[best]) ** 2 / eps
        while best < n - 1:
            there = F[best + 1] - (y[j] - x[best + 1]) ** 2 / eps
            if there < here - _ROUNDING:
                break
            best, here = best + 1, there
        while first < best and F[first] - (y[j] - x[first]) ** 2 / eps < here - _CUT:
            first += 1
        end = max(end, best + 1)
        while end < n and F[end] - (y[j] - x[end]) ** 2 / eps >= here - _CUT:
            end += 1
        lo[j], hi[j], H[j] = first // 16 * 16, (end + 15) // 16 * 16, -here


@exact
def averages(F: F64, x: F64, a: F64, values: F64, N: int, y: F64, b: F64, K: int, eps: float, lo: I32, hi: I32, H: F64,
             out: F64, sent: F64, q: F64) -> None:  # fmt: skip
    """H, averages of ``values``, and sent_i = sum_j b_j q_ij, which is to be one."""
    rate = 1.0 / eps
    sent[:N] = 0.0
    for j in range(K):
        weight, moment, yj, h = splat64(0.0), splat64(0.0), y[j], H[j]
        for i in range(lo[j], hi[j], 16):
            d = load64(x, i) - yj
            e = exp_soon(load64(F, i) + h - d * d * rate)
            store64(q, i, e)
            e = e * load64(a, i)
            weight, moment = weight + e, moment + e * load64(values, i)
        norm = total64(weight)
        out[j] = total64(moment) / norm
        H[j] -= math.log(norm)
        share = b[j] / norm
        for i in range(lo[j], hi[j], 16):
            store64(sent, i, load64(sent, i) + load64(q, i) * share)


@exact
def tensions(F: F64, x: F64, values: F64, N: int, y: F64, c: F64, carried: F64, K: int, eps: float, lo: I32, hi: I32,
             H: F64, tau: F64, along: F64, direct: F64) -> None:  # fmt: skip
    """Sums over j of c_j q_ij (``direct``), of (c_j values_i - carried_j) q_ij (``tau``), times y_j - x_i (``along``).

    ``carried`` is c_j out_j, so that tau is what c_j does to the distance of values_i from the average.
    """
    rate = 1.0 / eps
    tau[:N], along[:N], direct[:N] = 0.0, 0.0, 0.0
    for j in range(K):
        yj, h, cj, carriedj = y[j], H[j], c[j], carried[j]
        for i in range(lo[j], hi[j], 16):
            d = splat64(yj) - load64(x, i)
            e = exp_soon(load64(F, i) + h - d * d * rate)
            t = e * (load64(values, i) * cj - carriedj)
            store64(direct, i, load64(direct, i) + e * cj)
            store64(tau, i, load64(tau, i) + t)
            store64(along, i, load64(along, i) + t * d)


@exact
def means(F: F64, x: F64, N: int, y: F64, b: F64, levels: F64, K: int, eps: float, lo: I32, hi: I32, H: F64, out: F64,
          sent: F64) -> None:  # fmt: skip
    """Sums over j of b_j q_ij levels_j (``out``) and of b_j q_ij (``sent``)."""
    rate = 1.0 / eps
    out[:N], sent[:N] = 0.0, 0.0
    for j in range(K):
        yj, h, bj, level = y[j], H[j], b[j], levels[j]
        for i in range(lo[j], hi[j], 16):
            d = load64(x, i) - yj
            e = exp_soon(load64(F, i) + h - d * d * rate) * bj
            store64(sent, i, load64(sent, i) + e)
            store64(out, i, load64(out, i) + e * level)


@exact
def pulls(F: F64, x: F64, w: F64, mean: F64, N: int, y: F64, b: F64, levels: F64, K: int, eps: float, lo: I32, hi: I32,
          H: F64, tau: F64, along: F64, cov: F64, q: F64) -> None:  # fmt: skip
    """With s_j = sum_i w_i q_ij (levels_j - mean_i) sums over j of b_j q_ij s_j (``tau``), the same times y_j - x_i
    (``along``), and of b_j q_ij (levels_j - mean_i) (y_j - x_i) (``cov``).
    """
    rate = 1.0 / eps
    tau[:N], along[:N], cov[:N] = 0.0, 0.0, 0.0
    for j in range(K):
        yj, h, bj, level, sums = y[j], H[j], b[j], levels[j], splat64(0.0)
        for i in range(lo[j], hi[j], 16):
            d = load64(x, i) - yj
            e = exp_soon(load64(F, i) + h - d * d * rate)
            store64(q, i, e)
            sums = sums + e * load64(w, i) * (splat64(level) - load64(mean, i))
        pull = total64(sums)
        for i in range(lo[j], hi[j], 16):
            p, d = load64(q, i) * bj, splat64(yj) - load64(x, i)
            store64(tau, i, load64(tau, i) + p * pull)
            store64(along, i, load64(along, i) + p * pull * d)
            store64(cov, i, load64(cov, i) + p * d * (splat64(level) - load64(mean, i)))


@exact
def laplacian(F: F64, x: F64, a: F64, N: int, y: F64, b: F64, K: int, eps: float, lo: I32, hi: I32, H: F64, lam: F64,
              tau: F64, along: F64, q: F64) -> None:  # fmt: skip
    """Sums over j of b_j q_ij (lambda_i - E_j lambda) (``tau``), and times y_j - x_i (``along``)."""
    rate = 1.0 / eps
    tau[:N], along[:N] = 0.0, 0.0
    for j in range(K):
        if b[j] == 0.0:
            continue
        yj, h, weight, moment = y[j], H[j], splat64(0.0), splat64(0.0)
        for i in range(lo[j], hi[j], 16):
            d = load64(x, i) - yj
            e = exp_soon(load64(F, i) + h - d * d * rate)
            store64(q, i, e)
            e = e * load64(a, i)
            weight, moment = weight + e, moment + e * load64(lam, i)
        # Divided by what the weights are here, so that a lambda that is large and the same for all values is nothing.
        mean, bj = total64(moment) / total64(weight), b[j]
        for i in range(lo[j], hi[j], 16):
            t = load64(q, i) * (load64(lam, i) - mean) * bj
            store64(tau, i, load64(tau, i) + t)
            store64(along, i, load64(along, i) + t * (splat64(yj) - load64(x, i)))


@exact
def node_potentials(F: F64, x: F64, a: F64, n: int, nodes: F64, K: int, eps: float, lo: I32, hi: I32,
                    h: F64) -> None:  # fmt: skip
    """What H would be at the nodes."""
    rate = 1.0 / eps
    windows(F, x, n, nodes, K, eps, lo, hi, h)
    for k in range(K):
        weight, yk, hk = splat64(0.0), nodes[k], h[k]
        for i in range(lo[k], hi[k], 16):
            d = load64(x, i) - yk
            weight = weight + exp_soon(load64(F, i) + hk - d * d * rate) * load64(a, i)
        h[k] -= math.log(total64(weight))


@exact
def tested(tau: F64, a: F64, n: int, P: F64, K: int, lo: I64, hi: I64, offset: I64, t: F64) -> None:
    """t_k = sum_i a_i p_ik tau_i."""
    t[:K] = 0.0
    for i in range(n):
        row, to, weight = P[offset[i] : offset[i + 1]], t[lo[i] : hi[i]], a[i] * tau[i]
        for k in range(len(row)):
            to[k] += weight * row[k]


@summing
def spread_back(mu: F64, n: int, P: F64, lo: I64, hi: I64, offset: I64, tau: F64, lam: F64) -> None:
    """lambda_i = tau_i + sum_k p_ik mu_k."""
    for i in range(n):
        row, of = P[offset[i] : offset[i + 1]], mu[lo[i] : hi[i]]
        sums = tau[i]
        for k in range(len(row)):
            sums += row[k] * of[k]
        lam[i] = sums


@summing
def along_nodes(lam: F64, mu: F64, x: F64, nodes: F64, n: int, P: F64, lo: I64, hi: I64, offset: I64,
                along: F64) -> None:  # fmt: skip
    """Adds sum_k p_ik (y_k - x_i) (lambda_i - mu_k): what ``laplacian`` says, by the nodes."""
    for i in range(n):
        row, of, at = P[offset[i] : offset[i + 1]], mu[lo[i] : hi[i]], nodes[lo[i] : hi[i]]
        sums, here, place = 0.0, lam[i], x[i]
        for k in range(len(row)):
            sums += row[k] * (at[k] - place) * (here - of[k])
        along[i] += sums
