"""A row solved: the potentials of the plan, and the gradient of whatever is computed from them.

What     F and G with E_ij = exp(F_i + G_j - C_ij / eps), sum_j b_j E_ij = 1 and sum_i a_i E_ij = 1 for every value and
         every target, those that weigh nothing included. The plan is P_ij = a_i b_j E_ij.
When     Every call of the family. The linear algebra is done on the targets; a caller with fewer values than targets
         exchanges the two, since the equations are symmetric.
Why      See the folder.
Keeps    F and G.

**Gradient.** With M = C / eps, both conditions change by

    dF_i + sum_j b_j E_ij dG_j = -sum_j E_ij db_j + sum_j b_j E_ij dM_ij,
    dG_j + sum_i a_i E_ij dF_i = -sum_i E_ij da_i + sum_i a_i E_ij dM_ij.

Let F' and G' be the cotangents of F and G, and let mu and nu solve the transposed system

    mu_i + a_i sum_j E_ij nu_j = F'_i,        nu_j + b_j sum_i E_ij mu_i = G'_j.

Then M_ij receives E_ij (mu_i b_j + a_i nu_j), b_j receives -sum_i mu_i E_ij, and a_i receives -sum_j E_ij nu_j.
A target that weighs nothing has nu_j = G'_j. For the others nu_j = b_j beta_j, and elimination of mu leaves L beta = r
with the Laplacian L of Newton's method and r_j = G'_j - b_j sum_i E_ij (F'_i - a_i sum_k E_ik nu_k), k weightless.

F and G are defined up to a constant. We fix sum_j b_j dG_j = 0. Outside of this folder potentials are f = eps F and
g = eps G. At fixed f and g, log E_ij changes by -log(E_ij) deps / eps, so that eps receives the sum of (cotangent of
M_ij) log(E_ij) / eps: large numbers that would cancel, sums of C_ij and of F_i, do not occur.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.compile import jit, jit_no_refcount
from ..engine.maths import F64, I64
from ..engine.vectors import highest64, load64, select, splat64, store64, total64
from .costs import MATRIX, costs_into, slopes_into
from .laplacian import GROUND_OF_GRADIENTS, edges, eliminate, ends_into, scale, substitute
from .lines import IN_DOUBLE, LARGEST, Digits, exponentials_into, window
from .newton import newton
from .plan_again import as_targets_read, normalise
from .start import start
from .work import G0, GAMMA, MOST, SPARE, SUM_B, SUM_G, SUM_Y, A, B, Cotangents, Rows, V, Work, X, Y, workspace

_NEVER = -1e30  # exponent of a target that weighs nothing
_ROUNDED = 1e-3  # eps below which the rounding of C / eps shows in gradients that vanish
_MOST_ROUNDS = 40  # of Newton's method, each from where the last one went too far


@jit_no_refcount
def targets_into(w: Work, y: F64, b: F64, m: int) -> None:
    """Copy the targets, with the last one repeated behind them, where it weighs nothing."""
    for j in range(len(w.targets[Y])):
        w.targets[Y, j] = y[j] if j < m else y[m - 1]
        w.targets[B, j] = b[j] if j < m else 0.0


@jit_no_refcount
def compacted(w: Work, x: F64, a: F64, n: int, y: F64, b: F64, m: int) -> tuple[int, int]:
    """Copy the values and targets that weigh something; return how many."""
    values, targets = 0, 0
    for i in range(n):
        if a[i] > 0.0:
            w.values[X, values], w.values[A, values], w.kept[0, values] = x[i], a[i], i
            values += 1
    for j in range(m):
        if b[j] > 0.0:
            w.targets[Y, targets], w.targets[B, targets], w.kept[1, targets] = y[j], b[j], j
            targets += 1
    for i in range(values, len(w.values[X])):
        w.values[X, i], w.values[A, i] = x[n - 1], 0.0
    for j in range(targets, len(w.targets[Y])):
        w.targets[Y, j], w.targets[B, j] = y[m - 1], 0.0
    return values, targets


@jit_no_refcount
def band_into(w: Work, n: int, K: int, eps: float, kind: int, p: float, given: F64, potential: F64,
              cut: float) -> int:  # fmt: skip
    """Write exp(potential_k - C_ik / eps), four values at a time; return the number of such groups.

    Each line is scaled so that its largest entry for a target with weight is 1. The exponent of that goes to MOST.
    """
    x, y, b, lines, band = w.values[X], w.targets[Y], w.targets[B], w.lines, w.band
    none, largest = splat64(-1e300), splat64(LARGEST)
    groups, at, inverse = (n + 3) // 4, 0, 1.0 / eps
    for g in range(groups):
        first, end = (K + 15) // 16 * 16, 0
        for r in range(4):
            i = min(4 * g + r, n - 1)
            costs_into(kind, p, x[i], y, K, given[i * K :] if kind == MATRIX else given, lines[4])
            line = lines[r]
            most = none
            for k in range(0, K, 16):
                e = load64(potential, k) - load64(lines[4], k) * inverse
                store64(line, k, e)
                e = select(load64(b, k) > 0.0, e, none)
                most = select(e > most, e, most)
            shift = highest64(most)
            w.values[MOST, 4 * g + r] = shift
            for k in range(0, K, 16):
                e = load64(line, k) - shift
                store64(line, k, select(e > largest, largest, e))
            f, e_ = window(line, K, -cut)
            first, end = min(first, f), max(end, e_)
        band.lo[g], band.hi[g], band.offset[g] = first, end, at
        for r in range(4):
            exponentials_into(lines[r], first, end, band.G, at)
            at += end - first
    return groups


@jit
def smaller_matrix(w: Work, values: int, targets: int, m: int, given: F64) -> F64:
    """Return the costs of the values and targets that weigh something."""
    out = np.empty(values * targets)
    for i in range(values):
        for j in range(targets):
            out[i * targets + j] = given[w.kept[0, i] * m + w.kept[1, j]]
    return out


@jit_no_refcount
def potentials_into(w: Work, n: int, K: int, eps: float, kind: int, p: float, given: F64,
                    digits: Digits) -> tuple[float, int]:  # fmt: skip
    """Write G to the row G0 of ``Work.targets``; return the marginal error and the number of Newton's matrices.

    All targets weigh something. Values may weigh nothing, if the cost is not given by its matrix.
    """
    potential, wide, x, a = w.targets[G0], (K + 15) // 16 * 16, w.values[X], w.values[A]
    live = 0
    for i in range(n):
        if a[i] > 0.0:
            w.values[SPARE, live], w.values[V, live] = x[i], a[i]
            live += 1
    start(w.values[SPARE], w.values[V], live, w.targets[Y], w.targets[B], K, eps, kind, p, given, K, potential)
    for k in range(K):
        potential[k] /= eps
    potential[K:] = _NEVER
    steps, error, near = 0, np.inf, False
    for _ in range(_MOST_ROUNDS):
        groups = band_into(w, n, K, eps, kind, p, given, potential, digits.cut)
        error, more, near = newton(
            w.band, groups, wide, a, w.targets[B], w.targets[GAMMA : GAMMA + 6], w.values[V], w.values[SPARE], digits
        )
        steps += more
        for k in range(K):
            potential[k] += w.targets[GAMMA, k]
        if near:
            break
    return error if near else np.inf, steps


@jit
def solve_row(w: Work, x: F64, a: F64, n: int, y: F64, b: F64, m: int, eps: float, kind: int, p: float, given: F64,
              last: F64, F: F64, G: F64) -> tuple[float, int, float]:  # fmt: skip
    """Write F and G; return the marginal error, the number of Newton's matrices, and the estimated error of a rule.

    last  (L, m)  IN  the last polynomials of a rule whose nodes the targets are; L = 0 for targets themselves
    """
    values, K = compacted(w, x, a, n, y, b, m)
    whole = given
    if kind == MATRIX and (values < n or m > K):
        given = smaller_matrix(w, values, K, m, whole)
    error, steps = potentials_into(w, values, K, eps, kind, p, given, IN_DOUBLE)
    potential = w.targets[G0]
    lost = rule_error(w, values, last) if len(last) > 0 else 0.0
    for i in range(values):
        F[w.kept[0, i]] = math.log(w.values[V, i]) - w.values[MOST, i]
    for k in range(K):
        G[w.kept[1, k]] = potential[k]
    if values < n or m > K:
        extend(w, x, a, n, y, b, m, eps, kind, p, whole, F, G)
    return error, steps, lost


@jit_no_refcount
def rule_error(w: Work, n: int, last: F64) -> float:
    """Estimate the mass that the rule gets wrong: see ``rules.py``."""
    worst, u = 0.0, w.targets[GAMMA + 1]
    for i in range(n):
        g = i // 4
        first, end = w.band.lo[g], w.band.hi[g]
        at = w.band.offset[g] + (i - 4 * g) * (end - first) - first
        squares = 0.0
        for which in range(len(last)):
            row, c = last[which], splat64(0.0)
            for k in range(first, end, 16):
                c = c + load64(w.band.G, at + k) * load64(u, k) * load64(row, k)
            squares += (total64(c) * w.values[V, i]) ** 2
        worst = max(worst, squares)
    return 4.0 * worst


@jit_no_refcount
def extend(w: Work, x: F64, a: F64, n: int, y: F64, b: F64, m: int, eps: float, kind: int, p: float, given: F64,
           F: F64, G: F64) -> None:  # fmt: skip
    """Write F and G of values and targets that weigh nothing: their own condition determines them."""
    targets_into(w, y, b, m)
    N = (n + 15) // 16 * 16
    ours, theirs = w.targets[G0], w.values[V]
    ours[:], theirs[:] = _NEVER, _NEVER
    for j in range(m):
        if b[j] > 0.0:
            ours[j] = G[j] + math.log(b[j])
    for i in range(len(w.values[X])):
        w.values[X, i] = x[min(i, n - 1)]
    for i in range(n):
        if a[i] > 0.0:
            theirs[i] = F[i] + math.log(a[i])
    line = w.lines[0]
    for i in range(n):
        if not a[i] > 0.0:
            costs_into(kind, p, x[i], w.targets[Y], m, given[i * m :] if kind == MATRIX else given, line)
            F[i] = -log_sum(ours, line, m, eps)
    line = w.values[SPARE]
    for j in range(m):
        if not b[j] > 0.0:
            if kind == MATRIX:
                for i in range(n):
                    line[i] = given[i * m + j]
            else:
                costs_into(kind, p, y[j], w.values[X], n, given, line)
            line[n:N] = 0.0
            G[j] = -log_sum(theirs, line, n, eps)


@jit_no_refcount
def log_sum(potential: F64, costs: F64, count: int, eps: float) -> float:
    """Return log sum_k exp(potential_k - costs_k / eps); ``costs`` is written over."""
    most = -np.inf
    for k in range(count):
        costs[k] = potential[k] - costs[k] / eps
        most = max(most, costs[k])
    end = (count + 15) // 16 * 16
    for k in range(count):
        costs[k] -= most
    costs[count:end] = _NEVER
    exponentials_into(costs, 0, end, costs, 0)
    sums = 0.0
    for k in range(count):
        sums += costs[k]
    return most + math.log(sums)


@jit
def solve_rows(first: int, last: int, rows: Rows, kind: int, p: float, rule: F64, F: F64, G: F64, error: F64,
               steps: I64, lost: F64) -> None:  # fmt: skip
    """Solve the rows first to last - 1. A row that holds NaN gets NaN."""
    n, m = rows.x.shape[1], rows.y.shape[1]
    w = workspace(n, m, True)
    one_a, one_y, one_b = len(rows.a) == 1, len(rows.y) == 1, len(rows.b) == 1
    given = kind == MATRIX
    for row in range(first, last):
        x, a = rows.x[row], rows.a[0 if one_a else row]
        y, b = rows.y[0 if one_y else row], rows.b[0 if one_b else row]
        if not sound(x, a, y, b, rows.eps[row]):
            F[row], G[row], error[row], steps[row], lost[row] = np.nan, np.nan, np.nan, 0, 0.0
            continue
        error[row], steps[row], lost[row] = solve_row(
            w, x, a, n, y, b, m, rows.eps[row], kind, p, rows.costs[row if given else 0], rule, F[row], G[row]
        )


@jit
def sound(x: F64, a: F64, y: F64, b: F64, eps: float) -> bool:
    """Whether all of them are finite."""
    return eps + np.abs(x).sum() + a.sum() + np.abs(y).sum() + b.sum() < np.inf


@jit_no_refcount
def balance(w: Work, groups: int, n: int, m: int, a: F64, of_f: F64, mu: F64, nu: F64) -> None:
    """Solve for mu and nu, with nu = G' on entry; E stands in the band.

    of_f  (n)  IN   the cotangent F'
    """
    E, b, beta, ground = w.band.G, w.targets[B], w.targets[GAMMA], w.targets[GAMMA + 5]
    wide = (m + 15) // 16 * 16
    total = 0.0
    for i in range(n):
        total += of_f[i]
    for j in range(m):
        total -= nu[j]
    for j in range(m):  # the gauge: nothing may depend on how high all of F is above G
        nu[j] += b[j] * total
    for k in range(len(beta)):
        beta[k] = nu[k] if k < m and not b[k] > 0.0 else 0.0
    for i in range(len(mu)):
        mu[i] = of_f[i] if i < n else 0.0
    along(w, groups, a, beta, mu, n)
    r = w.targets[GAMMA + 1]
    across(w, groups, wide, mu, r, n)
    for k in range(len(beta)):
        r[k] = nu[k] - b[k] * r[k] if k < m and b[k] > 0.0 else 0.0
    for i in range(4 * groups):
        w.values[SPARE, i] = a[i] if i < n else 0.0
    S = ends_into(groups, w.band.lo, w.band.hi, wide, w.band.ends)
    edges(E, w.values[SPARE], groups, w.band.lo, w.band.hi, w.band.offset, wide, S, w.band.ends, w.band.W)
    scale(w.band.W, b, w.band.ends, wide, S)
    eliminate(w.band.W, wide, S, w.band.ends, b, GROUND_OF_GRADIENTS, ground, w.band.inverse, w.band.corners)
    substitute(w.band.W, wide, S, w.band.ends, w.band.inverse, w.band.corners, r)
    level = 0.0
    for k in range(m):
        level += b[k] * r[k]
    for k in range(m):
        beta[k] = b[k] * (r[k] - level)
        nu[k] = beta[k] if b[k] > 0.0 else nu[k]
    along(w, groups, a, beta, mu, n)


@jit_no_refcount
def along(w: Work, groups: int, a: F64, t: F64, mu: F64, n: int) -> None:
    """Subtract a_i sum_j E_ij t_j from mu_i."""
    E = w.band.G
    for g in range(groups):
        first, end = w.band.lo[g], w.band.hi[g]
        at = w.band.offset[g] - first
        for i in range(4 * g, min(4 * g + 4, n)):
            sums = splat64(0.0)
            for k in range(first, end, 16):
                sums = sums + load64(E, at + k) * load64(t, k)
            mu[i] -= a[i] * total64(sums)
            at += end - first


@jit_no_refcount
def across(w: Work, groups: int, K: int, mu: F64, out: F64, n: int) -> None:
    """Write sum_i E_ij mu_i."""
    E = w.band.G
    for k in range(0, K, 16):
        store64(out, k, splat64(0.0))
    for g in range(groups):
        first, end = w.band.lo[g], w.band.hi[g]
        at = w.band.offset[g] - first
        for i in range(4 * g, min(4 * g + 4, n)):
            for k in range(first, end, 16):
                store64(out, k, load64(out, k) + load64(E, at + k) * mu[i])
            at += end - first


@jit_no_refcount
def solve_row_backward(w: Work, given_a: F64, n: int, m: int, eps: float, kind: int, p: float, given: F64, F: F64,
                       G: F64, of_f: F64, for_targets: bool, out: Cotangents, row: int) -> None:  # fmt: skip
    """Write the cotangents of a row. Values and targets stand in ``w`` already; G' stands in its SUM_G.

    for_targets  IN  whether F alone was read, for averages over the values of each target
    """
    x, y, b, mu, nu = w.values[X], w.targets[Y], w.targets[B], w.values[V], w.targets[SUM_G]
    potential = w.targets[G0]
    for k in range(len(potential)):
        potential[k] = G[k] if k < m else _NEVER
    groups, a = band_into(w, n, m, eps, kind, p, given, potential, IN_DOUBLE.cut), w.values[A]
    for i in range(n):
        a[i] = given_a[i]
    if for_targets and eps < _ROUNDED:
        as_targets_read(w, n, m, eps, kind, p, given, F, given_a)
    normalise(w, groups)
    balance(w, groups, n, m, a, of_f, mu, nu)
    sum_y, sum_b, cost, slope, of_m = w.targets[SUM_Y], w.targets[SUM_B], w.lines[0], w.lines[1], w.lines[2]
    sum_y[:], sum_b[:] = 0.0, 0.0
    of_eps, E, inverse = 0.0, w.band.G, 1.0 / eps
    nu[m:] = 0.0
    for i in range(n):
        g = i // 4
        first, end = w.band.lo[g], w.band.hi[g]
        at = w.band.offset[g] + (i - 4 * g) * (end - first) - first
        costs_into(kind, p, x[i], y, m, given[i * m :] if kind == MATRIX else given, cost)
        of_a, with_logs = splat64(0.0), splat64(0.0)
        for k in range(first, end, 16):
            e = load64(E, at + k)
            of_a = of_a + e * load64(nu, k)
            store64(sum_b, k, load64(sum_b, k) - e * mu[i])
            t = e * (load64(b, k) * mu[i] + load64(nu, k) * a[i])
            with_logs = with_logs + t * (load64(potential, k) - load64(cost, k) * inverse + F[i])
            store64(of_m, k, t)
        out.a[row, i] = -total64(of_a) * (a[i] / given_a[i] if given_a[i] > 0.0 else 1.0)
        of_eps += total64(with_logs) * inverse
        if kind == MATRIX:
            for k in range(m):
                out.costs[row, i * m + k] = of_m[k] * inverse if first <= k < end else 0.0
            out.x[row, i] = 0.0
            continue
        slopes_into(kind, p, x[i], y, m, slope)
        of_x = splat64(0.0)
        for k in range(first, end, 16):
            t = load64(of_m, k) * load64(slope, k) * inverse
            of_x = of_x + t
            store64(sum_y, k, load64(sum_y, k) + t)
        out.x[row, i] = -total64(of_x)
    for j in range(m):
        out.y[row, j], out.b[row, j] = sum_y[j], sum_b[j]
    out.eps[row] = of_eps


@jit
def solve_rows_backward(first: int, last: int, rows: Rows, kind: int, p: float, F: F64, G: F64, of_f: F64, of_g: F64,
                        for_targets: bool, out: Cotangents) -> None:  # fmt: skip
    """Write the cotangents of the rows first to last - 1; see ``solve_row_backward`` for ``for_targets``."""
    n, m = rows.x.shape[1], rows.y.shape[1]
    w = workspace(n, m, True)
    one_a, one_y, one_b = len(rows.a) == 1, len(rows.y) == 1, len(rows.b) == 1
    given = kind == MATRIX
    for row in range(first, last):
        if np.isnan(F[row, 0]):
            fill(out, row, np.nan)
            continue
        x, a = rows.x[row], rows.a[0 if one_a else row]
        targets_into(w, rows.y[0 if one_y else row], rows.b[0 if one_b else row], m)
        for i in range(n):
            w.values[X, i] = x[i]
        for j in range(m):
            w.targets[SUM_G, j] = of_g[row, j]
        solve_row_backward(
            w,
            a,
            n,
            m,
            rows.eps[row],
            kind,
            p,
            rows.costs[row if given else 0],
            F[row],
            G[row],
            of_f[row],
            for_targets,
            out,
            row,
        )


@jit_no_refcount
def fill(out: Cotangents, row: int, number: float) -> None:
    """Write one number to all cotangents of a row."""
    out.x[row], out.a[row], out.y[row], out.b[row], out.eps[row] = number, number, number, number, number
    if len(out.costs) > row:
        out.costs[row] = number
