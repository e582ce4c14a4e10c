"""A solved plan, read forwards and backwards; see ``contract`` for the formulas and ``row.newton`` for the symbols.

Averages under p_i are taken of differences to the target ``best`` that source i is sent to by the hard sort
(``phi_0``, ``y_0``). When the plan is nearly a permutation everything else has a weight near zero, and small gradients
come out with all their digits instead of as differences of large numbers.
"""

from __future__ import annotations

from ..engine.compile import borrowing
from ..engine.maths import F32, I64
from ..engine.vectors import choose, highest, load, splat, store
from .newton import add_by_best, add_up

LASTS = 4  #: coefficients that the error of a rule is estimated from
BEFORE_LASTS = 2  #: those in ``Ask.last`` that are not looked at: of ``rules.LAST``
#: The error is taken to be this times the largest sum of their squares. (The reference takes six coefficients.) Every
#: other one may vanish, and of three that leaves one: of rows of zeros and ones, half of each, one in a hundred passed
#: that was wrong by 3e-5. With four nothing that was accepted at 5e-6 was wrong by more than 2e-8, among some 1,300
#: rows of two values and 350 others, n from 40 to 900 and eps from 8e-4 to 1e-1.
ERRORS = 6.0


@borrowing
def pulled(G: F32, N: int, u: F32, v: F32, phi: F32, last: F32, lasts: int, stride: int, glo: I64, ghi: I64,
           occupied: F32, scaled: F32, out: F32) -> float:  # fmt: skip
    """out_i = sum_j p_ij phi_j; returns the error of the rule as ``ERRORS`` says. G must be complete.

    ``lasts`` is LASTS or 0, when there is no rule. Scratch: ``scaled`` (5 stride).
    """
    for c in range(0, stride, 16):
        store(scaled, c, load(phi, c) * load(u, c))
        for k in range(lasts):
            store(scaled, (1 + k) * stride + c, load(last, k * stride + c) * load(u, c))
    l1, l2, l3, l4 = scaled[stride:], scaled[2 * stride :], scaled[3 * stride :], scaled[4 * stride :]
    worst, zero = splat(0.0), splat(0.0)
    for q in range(N // 16):
        vq = load(v, 16 * q)
        if lasts == 0:
            even, odd = zero, zero
            for j in range(4 * glo[q], 4 * ghi[q], 2):
                even = even + load(G, j * N + 16 * q) * scaled[j]
                odd = odd + load(G, (j + 1) * N + 16 * q) * scaled[j + 1]
            store(out, 16 * q, (even + odd) * vq)
            continue
        s0, s1, s2, s3, s4 = zero, zero, zero, zero, zero
        for j in range(4 * glo[q], 4 * ghi[q]):
            p = load(G, j * N + 16 * q)
            s0, s1, s2 = s0 + p * scaled[j], s1 + p * l1[j], s2 + p * l2[j]
            s3, s4 = s3 + p * l3[j], s4 + p * l4[j]
        store(out, 16 * q, s0 * vq)
        squares = (s1 * s1 + s2 * s2 + s3 * s3 + s4 * s4) * vq * vq * load(occupied, 16 * q)
        worst = choose(squares > worst, squares, worst)
    return ERRORS * float(highest(worst))


@borrowing
def at_best(phi: F32, best: I64, N: int, out: F32) -> None:
    for i in range(N):
        out[i] = phi[best[i]]


@borrowing
def covariances(G: F32, N: int, u: F32, v: F32, phi: F32, phi_0: F32, y: F32, y_0: F32, glo: I64, ghi: I64,
                mean: F32, cov: F32) -> None:  # fmt: skip
    """mean_i = E_i phi - phi_0 and cov_i = Cov_i(phi, y)."""
    for q in range(N // 16):
        i = 16 * q
        p0, y0 = load(phi_0, i), load(y_0, i)
        means, means_y, products = splat(0.0), splat(0.0), splat(0.0)
        for j in range(4 * glo[q], 4 * ghi[q]):
            p = load(G, j * N + i) * u[j]
            dy = splat(y[j]) - y0
            weighted = p * (splat(phi[j]) - p0)
            means = means + weighted
            means_y = means_y + p * dy
            products = products + weighted * dy
        vq = load(v, i)
        means = means * vq
        store(mean, i, means)
        store(cov, i, products * vq - means * means_y * vq)


@borrowing
def means(G: F32, N: int, u: F32, v: F32, phi: F32, phi_0: F32, stride: int, glo: I64, ghi: I64, soft: bool,
          scaled: F32, mean: F32) -> None:  # fmt: skip
    """mean_i = E_i phi - phi_0; when ``soft``, phi_0 is no help, and taken to be zero."""
    if not soft:
        for q in range(N // 16):
            i, sums = 16 * q, splat(0.0)
            p0 = load(phi_0, i)
            for j in range(4 * glo[q], 4 * ghi[q]):
                sums = sums + load(G, j * N + i) * u[j] * (splat(phi[j]) - p0)
            store(mean, i, sums * load(v, i))
        return
    for c in range(0, stride, 16):
        store(scaled, c, load(phi, c) * load(u, c))
    for q in range(N // 16):
        i, even, odd = 16 * q, splat(0.0), splat(0.0)
        for j in range(4 * glo[q], 4 * ghi[q], 2):
            even = even + load(G, j * N + i) * scaled[j]
            odd = odd + load(G, (j + 1) * N + i) * scaled[j + 1]
        store(mean, i, (even + odd) * load(v, i))


@borrowing
def tensions(G: F32, N: int, K: int, u: F32, v: F32, w: F32, phi: F32, phi_0: F32, mean: F32, lo: I64, hi: I64,
             best: I64, soft: bool, parts: F32, t: F32) -> None:  # fmt: skip
    """t_j = sum_i w_i p_ij (phi_j - E_i phi) from what ``means`` says. With w = a this is L phi."""
    wv, sums = parts[:N], parts[N:]
    for i in range(0, N, 16):
        store(wv, i, load(w, i) * load(v, i))
    for j in range(4 * ((K + 3) // 4)):
        g = j // 4
        all_sources, pj = splat(0.0), splat(phi[j])
        if soft:
            for q in range(lo[g], hi[g]):
                all_sources = all_sources + load(G, j * N + 16 * q) * load(wv, 16 * q) * (pj - load(mean, 16 * q))
        else:
            for q in range(lo[g], hi[g]):
                off = (pj - load(phi_0, 16 * q)) - load(mean, 16 * q)
                all_sources = all_sources + load(G, j * N + 16 * q) * load(wv, 16 * q) * off
        store(sums, 16 * j, all_sources * u[j])
    add_up(sums, K, t)
    if not soft:
        for i in range(N):
            wv[i] = -(wv[i] * u[best[i]] * mean[i])
        add_by_best(wv, best, N, t)
