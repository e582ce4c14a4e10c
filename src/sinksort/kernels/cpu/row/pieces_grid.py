"""Ranks of long rows by a source grid: the values' weights are moved to a few nodes, and all is solved there.

The passes over the values are two in each direction: moments of every cell of the grid (``grid`` says why), and cubic
polynomials read at every value. What lies between is as small as the grid. A row's cells are as wide as functions of
x~ are smooth, and there are as many as its values need; ``solve`` estimates what they miss, and rows whose grid is too
coarse are done again.

Backwards, with w the cotangent of the answer moved to the same nodes, t_j = sum_k w_k p_kj (phi_j - rank of node k),
and the two covariances of ``contract`` are functions of x~ that are smooth as well.
"""

from __future__ import annotations

import math

import numpy as np

from ..engine.blocks import BLOCK, Array, Rows, load, load_weights, store, task_of
from ..engine.compile import jit, jit_reassociate
from ..engine.potentials import (
    NEAR,
    add_columns,
    add_pulls,
    means,
    newton,
    plan_of,
    slopes_of,
    solve_laplacian,
    staircase,
)
from ..engine.values import (
    CELLS,
    GRID_ERROR,
    HEAD,
    HIGH,
    LOW,
    MEAN,
    OTHER_ERROR,
    POISONED,
    SCALE,
    SHARE,
    WIDTH,
    from_z,
    place,
    placed_block,
    slopes,
)

MOST_CELLS = 1 << 14
_OCCUPIED = 1e-30  # a value without weight leaves a trace in its cell
_SOURCES = 1e4  # in the place of n, when sources are nodes: see ``row.pieces_solve``
_REMAINDER = 9.0 / 384.0  # of cubic interpolation, see ``grid.Grid.remainder``
_CHUNK = 64
_PEAK = 1.0  # of polynomials where all of them add up, over their largest: see ``by_nodes``


@jit
def lay_grid(first: int, last: int, state: np.ndarray, eps: np.ndarray) -> None:
    """Cells of a width for which ordinary inputs are smooth: as many as the values span."""
    for r in range(first, last):
        head = state[r]
        head[WIDTH] = min(math.sqrt(eps[r]) / 12.0, 1.0 / 64.0)
        if head[POISONED] == 0:
            cells = math.ceil((head[HIGH] - head[LOW]) / head[WIDTH])
            head[CELLS] = max(4.0, cells) if cells <= MOST_CELLS else 0.0  # no cells: too many


@jit
def _in_cells(x: np.ndarray, count: int, head: np.ndarray) -> None:
    """Positions in units of cells, in place of x~."""
    low, per_width, cells = head[LOW], 1.0 / head[WIDTH], head[CELLS]
    for i in range(count):
        position = (x[i] - low) * per_width
        position = position if position > 0.0 else 0.0
        x[i] = position if position < cells else cells


@jit
def spread(
    first: int, last: int, rows: Rows, index: np.ndarray, state: np.ndarray, carried: Array, own: bool,
    moments: np.ndarray,
) -> None:  # fmt: skip
    """Moments of the cells, from 0 to 3: those of the weights, and of what the values carry if there are 8 columns.

    moments: (slots, pieces, cells, 4, 8 or 12). ``own``: what they carry is what they are, standardised, times weight.
    """
    values, x, a, w = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    weighted, carrying = rows.weights.single.size > 0, moments.shape[3] > 4
    for task in range(first, last):
        slot, part, begin, end = task_of(rows, task)
        r = index[slot]
        head, into = state[r], moments[slot, part]
        cells = int(head[CELLS])
        if cells == 0:
            continue
        into[:cells] = 0.0
        for at in range(begin, end, BLOCK):
            count = min(BLOCK, end - at)
            load(rows.values, r, at, count, values)
            place(values, count, head, rows.squash, x)
            _in_cells(x, count, head)
            if weighted:
                load_weights(rows, r, at, count, a)
            if carrying and own:
                load_weights(rows, r, at, count, a)
                own_values(values, a, count, head, w)
            elif carrying:
                load(carried, r, at, count, w)
            if not weighted and not carrying:
                for i in range(count):
                    k = min(int(x[i]), cells - 1)
                    t = x[i] - k
                    cell = into[k]
                    square = t * t
                    cell[0] += 1.0
                    cell[1] += t
                    cell[2] += square
                    cell[3] += square * t
                continue
            for i in range(count):
                k = min(int(x[i]), cells - 1)
                t = x[i] - k
                cell = into[k]
                weight = max(a[i], _OCCUPIED) if weighted else 1.0
                cell[0] += weight
                cell[1] += weight * t
                cell[2] += weight * t * t
                cell[3] += weight * t * t * t
                if carrying:
                    cell[4] += w[i]
                    cell[5] += w[i] * t
                    cell[6] += w[i] * t * t
                    cell[7] += w[i] * t * t * t


@jit
def own_values(values: np.ndarray, a: np.ndarray, count: int, head: np.ndarray, out: np.ndarray) -> None:
    """What the values of a block carry to the targets of a sort; infinite ones nothing, as ``INFINITE`` has them."""
    mean, scale = head[MEAN], head[SCALE]
    for i in range(count):
        z = (values[i] - mean) * scale
        out[i] = a[i] * z if abs(z) < math.inf else 0.0


@jit
def _gathered(moments: np.ndarray, cells: int) -> np.ndarray:
    """The moments of all pieces, in the place of the first."""
    for part in range(1, len(moments)):
        for k in range(cells):
            for column in range(moments.shape[2]):
                moments[0, k, column] += moments[part, k, column]
    total: np.ndarray = moments[0]
    return total


@jit
def _masses(moments: np.ndarray, column: int, cells: int, factor: float) -> np.ndarray:
    """Moments moved to the nodes of cubic interpolation: cell k has nodes k to k + 3 around it, at -1, 0, 1 and 2."""
    out = np.zeros(cells + 3)
    for k in range(cells):
        m0, m1, m2, m3 = (factor * moments[k, column + 0], factor * moments[k, column + 1],
                          factor * moments[k, column + 2], factor * moments[k, column + 3])  # fmt: skip
        out[k] -= (m3 - 3.0 * m2 + 2.0 * m1) / 6.0
        out[k + 1] += (m3 - 2.0 * m2 - m1 + 2.0 * m0) / 2.0
        out[k + 2] -= (m3 - m2 - 2.0 * m1) / 2.0
        out[k + 3] += (m3 - m1) / 6.0
    return out


@jit
def _polynomials(F: np.ndarray, cells: int, column: int, out: np.ndarray) -> None:
    """Coefficients of the cubics through values F at the nodes, into out (cells, columns)."""
    for k in range(cells):
        f0, f1, f2, f3 = F[k], F[k + 1], F[k + 2], F[k + 3]
        out[k, column] = f1
        out[k, column + 1] = f2 - f0 / 3.0 - f1 / 2.0 - f3 / 6.0
        out[k, column + 2] = (f0 + f2) / 2.0 - f1
        out[k, column + 3] = (f3 - f0) / 6.0 + (f1 - f2) / 2.0


@jit
def _remainder(F: np.ndarray, k: int, nodes: int) -> float:
    """About how far the cubic of cell k is off: by the larger of the two fourth differences that contain it."""
    largest = 0.0
    for at in range(max(k - 1, 0), min(k, nodes - 5) + 1):
        difference = F[at] - 4.0 * F[at + 1] + 6.0 * F[at + 2] - 4.0 * F[at + 3] + F[at + 4]
        largest = max(largest, abs(difference))
    return _REMAINDER * largest


@jit_reassociate
def _rule_error(p: np.ndarray, ends: np.ndarray, K: int, count: int, out: np.ndarray, work: np.ndarray) -> None:
    """The estimate of ``rules`` for every source of a block."""
    for i in range(count):
        out[i] = 0.0
    for line in range(len(ends)):
        means(p, ends[line], K, count, work)
        for i in range(count):
            out[i] += 4.0 * work[i] * work[i]


@jit
def solve(
    first: int, last: int, index: np.ndarray, state: np.ndarray, moments: np.ndarray, y: np.ndarray, b: np.ndarray,
    phi: np.ndarray, ends: np.ndarray, eps: np.ndarray,
) -> None:  # fmt: skip
    """Potentials and estimated errors of rows, into their state; the ranks' polynomials in the place of moments."""
    K = y.shape[1]
    p, work, block = np.empty((K, _CHUNK)), np.empty((2, _CHUNK)), np.empty(_CHUNK)
    for slot in range(first, last):
        r = index[slot]
        head, cells = state[r], int(state[r, CELLS])
        if cells == 0:
            head[GRID_ERROR], head[OTHER_ERROR] = 0.0, 0.0 if head[POISONED] > 0 else math.inf
            continue
        y_r, b_r, phi_r = y[r if len(y) > 1 else 0], b[r if len(b) > 1 else 0], phi[r if len(phi) > 1 else 0]
        ends_r = ends[r if len(ends) > 1 else 0]
        d = slopes_of(y_r, eps[r], K)
        in_cells = _gathered(moments[slot], cells)
        masses = _masses(in_cells, 0, cells, head[SHARE])
        nodes = cells + 3

        # Sources are the nodes that values need. Linear interpolation gives masses that are never negative.
        at, rough = np.empty(nodes), np.zeros(nodes)
        occupied = np.zeros(nodes, np.bool_)
        for k in range(cells):
            if in_cells[k, 0] != 0:
                occupied[k : k + 4] = True
                rough[k + 1] += head[SHARE] * (in_cells[k, 0] - in_cells[k, 1])
                rough[k + 2] += head[SHARE] * in_cells[k, 1]
        count = np.int64(0)
        for k in range(nodes):
            if occupied[k]:
                at[count], masses[count], rough[count] = (
                    head[LOW] + (k - 1) * head[WIDTH],
                    masses[k],
                    max(rough[k], 0.0),
                )
                count += 1
        c = head[HEAD : HEAD + K]
        staircase(at, rough, count, b_r, d, K, c)
        newton(at, rough, count, b_r, d, K, _SOURCES, 1e6 * NEAR, c)
        decrement = newton(at, masses, count, b_r, d, K, _SOURCES, NEAR, c)

        ranks, at_nodes = np.zeros(nodes), np.zeros(nodes)
        off_rule = 0.0
        for start in range(0, nodes, _CHUNK):
            size = min(_CHUNK, nodes - start)
            if not occupied[max(start - 1, 0) : start + size + 1].any():
                continue
            for i in range(size):
                block[i] = head[LOW] + (start + i - 1) * head[WIDTH]
            plan_of(block, size, c, d, K, p, work)
            means(p, phi_r, K, size, ranks[start:])
            means(p, y_r, K, size, at_nodes[start:])
            _rule_error(p, ends_r, K, size, block, work[0])
            for i in range(size):
                if occupied[start + i]:
                    off_rule = max(off_rule, block[i])
        off_grid = 0.0
        for k in range(cells):
            if in_cells[k, 0] != 0:
                off_grid = max(off_grid, 3.0 * _remainder(at_nodes, k, nodes))
        _polynomials(ranks, cells, 0, in_cells)
        head[GRID_ERROR] = off_grid if decrement < math.inf else math.inf
        head[OTHER_ERROR] = off_rule


@jit
def solve_push(
    first: int, last: int, index: np.ndarray, state: np.ndarray, moments: np.ndarray, y: np.ndarray, b: np.ndarray,
    ends: np.ndarray, eps: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """``solve``, and what the nodes of the rule receive of what the values carry, into out (R, K)."""
    K = y.shape[1]
    p, work, x = np.empty((K, _CHUNK)), np.empty((2, _CHUNK)), np.empty(_CHUNK)
    sums, fourth = np.empty((K, 6)), np.empty(_CHUNK)
    for slot in range(first, last):
        r = index[slot]
        head, cells, z = state[r], int(state[r, CELLS]), out[r]
        if cells == 0:
            solve(slot, slot + 1, index, state, moments, y, b, y, ends, eps)
            for j in range(K):
                z[j] = 0.0
            continue
        in_cells = _gathered(moments[slot], cells)
        moments[slot, 1:] = 0.0
        masses, carried = _masses(in_cells, 0, cells, head[SHARE]), _masses(in_cells, 4, cells, head[SHARE])
        solve(slot, slot + 1, index, state, moments, y, b, y, ends, eps)
        d, c, nodes = slopes_of(y[r if len(y) > 1 else 0], eps[r], K), head[HEAD : HEAD + K], cells + 3
        sums[:] = 0.0
        for start in range(0, nodes, _CHUNK):
            size = min(_CHUNK, nodes - start)
            for i in range(size):
                x[i] = head[LOW] + (start + i - 1) * head[WIDTH]
            plan_of(x, size, c, d, K, p, work)
            for j in range(K):
                _add_averages(p[j], carried[start:], masses[start:], size, fourth, sums[j])
        b_r, ends_r = b[r if len(b) > 1 else 0], ends[r if len(ends) > 1 else 0]
        low, high, off_grid, off_rule = math.inf, -math.inf, 0.0, 0.0
        for j in range(K):
            z[j] = sums[j, 0] / b_r[j] if b_r[j] > 0 else 0.0
            low, high = min(low, z[j]), max(high, z[j])
        for j in range(K):
            level = sums[j, 0] / b_r[j] if b_r[j] > 0 else 0.0
            signed = abs(sums[j, 1] - level * sums[j, 2])
            square = sums[j, 3] - 2.0 * level * sums[j, 4] + level * level * sums[j, 5]
            off = signed + 2.0 * math.sqrt(max(square, 0.0))
            off_grid = max(off_grid, off / b_r[j] if b_r[j] > 0 else 0.0)
        for line in range(len(ends_r)):
            coefficient = 0.0
            for j in range(K):
                coefficient += b_r[j] * ends_r[line, j] * z[j]
            off_rule += abs(coefficient)
        if high > low:
            off_rule *= _PEAK * math.sqrt(2.0 * K + 1.0) / (high - low)
            head[GRID_ERROR] = max(head[GRID_ERROR], 3.0 * _REMAINDER * off_grid / (high - low))
            head[OTHER_ERROR] = max(head[OTHER_ERROR], off_rule)


@jit_reassociate
def _add_averages(p: np.ndarray, carried: np.ndarray, masses: np.ndarray, count: int, fourth: np.ndarray,
                  sums: np.ndarray) -> None:  # fmt: skip
    """What a target gets, and how far cubics are off there: sums and squares of fourth differences, to be put together.

    Of chunks those differences count that are all inside: nearly all of them.
    """
    total = off_carried = off_masses = squares = products = squares_of_masses = 0.0
    for i in range(count):
        total += carried[i] * p[i]
    for i in range(2, count - 2):
        fourth[i] = p[i - 2] - 4.0 * p[i - 1] + 6.0 * p[i] - 4.0 * p[i + 1] + p[i + 2]
    for i in range(2, count - 2):
        with_carried, with_masses = carried[i] * fourth[i], masses[i] * fourth[i]
        off_carried += with_carried
        off_masses += with_masses
        squares += with_carried * with_carried
        products += with_carried * with_masses
        squares_of_masses += with_masses * with_masses
    sums[0] += total
    sums[1] += off_carried
    sums[2] += off_masses
    sums[3] += squares
    sums[4] += products
    sums[5] += squares_of_masses


@jit
def read(
    first: int, last: int, rows: Rows, index: np.ndarray, state: np.ndarray, polynomials: np.ndarray, out: Array
) -> None:
    """Polynomials (slots, 1, cells, 4) at every value."""
    values, x = np.empty(BLOCK), np.empty(BLOCK)
    for task in range(first, last):
        slot, _, begin, end = task_of(rows, task)
        r = index[slot]
        head, cells, table = state[r], int(state[r, CELLS]), polynomials[slot, 0]
        for at in range(begin, end, BLOCK):
            count = min(BLOCK, end - at)
            if cells == 0:
                x[:count] = math.nan
            else:
                load(rows.values, r, at, count, values)
                place(values, count, head, rows.squash, x)
                _in_cells(x, count, head)
                for i in range(count):
                    k = min(int(x[i]), cells - 1)
                    t = x[i] - k
                    cell = table[k]
                    x[i] = ((cell[3] * t + cell[2]) * t + cell[1]) * t + cell[0]
            store(out, r, at, count, x)


@jit
def solve_backward(
    first: int, last: int, index: np.ndarray, state: np.ndarray, moments: np.ndarray, y: np.ndarray, b: np.ndarray,
    phi: np.ndarray, eps: np.ndarray, own: bool,
) -> None:  # fmt: skip
    """The polynomials of (2 / eps) Cov(phi, y) and (2 / eps) Cov(lambda, y), in the place of moments (of 8 columns).

    Of what values carry on their ``own`` there are 12 columns, and the mean of phi comes last.
    """
    K = y.shape[1]
    p, work, x = np.empty((K, _CHUNK)), np.empty((2, _CHUNK)), np.empty(_CHUNK)
    s, S, t = np.empty(K), np.empty((K, K)), np.empty(K)
    mean, level, products = np.empty(_CHUNK), np.empty(_CHUNK), np.empty(_CHUNK)
    for slot in range(first, last):
        r = index[slot]
        head, cells = state[r], int(state[r, CELLS])
        if cells == 0:
            continue
        y_r, phi_r = y[r if len(y) > 1 else 0], phi[r if len(phi) > 1 else 0]
        d, c = slopes_of(y_r, eps[r], K), head[HEAD : HEAD + K]
        in_cells = _gathered(moments[slot], cells)
        masses, carried = _masses(in_cells, 0, cells, head[SHARE]), _masses(in_cells, 4, cells, 1.0)
        if own:
            carried *= head[SHARE]
        nodes = cells + 3
        F = np.empty((3, nodes))
        s[:], S[:], t[:] = 0.0, 0.0, 0.0
        for pull in range(2):
            v = phi_r if pull == 0 else t
            for start in range(0, nodes, _CHUNK):
                size = min(_CHUNK, nodes - start)
                for i in range(size):
                    x[i] = head[LOW] + (start + i - 1) * head[WIDTH]
                plan_of(x, size, c, d, K, p, work)
                means(p, y_r, K, size, mean)
                means(p, v, K, size, level)
                _covariances(p, v, level, y_r, mean, K, size, products)
                for i in range(size):
                    F[pull, start + i] = products[i] * (2.0 / eps[r])
                if pull == 0:
                    F[2, start : start + size] = level[:size]
                    add_pulls(p, carried[start:], phi_r, level, K, size, t)
                    add_columns(p, masses[start:], size, K, s, S, work)
            if pull == 0:
                t -= b[r if len(b) > 1 else 0] * t.sum()
                solve_laplacian(S, t, K)
        _polynomials(F[0], cells, 0, in_cells)
        _polynomials(F[1], cells, 4, in_cells)
        if own:
            _polynomials(F[2], cells, 8, in_cells)


@jit_reassociate
def _covariances(
    p: np.ndarray, v: np.ndarray, v_mean: np.ndarray, y: np.ndarray, y_mean: np.ndarray, K: int, count: int,
    out: np.ndarray,
) -> None:  # fmt: skip
    for i in range(count):
        out[i] = 0.0
    for j in range(K):
        row, v_j, y_j = p[j], v[j], y[j]
        for i in range(count):
            out[i] += row[i] * (v_j - v_mean[i]) * (y_j - y_mean[i])


@jit
def read_backward(
    first: int, last: int, rows: Rows, index: np.ndarray, state: np.ndarray, polynomials: np.ndarray, carried: Array,
    own: bool, out: Array, sums: np.ndarray,
) -> None:  # fmt: skip
    """The cotangent of x with mean and spread held fixed, into out; sums (slots, pieces, 2) for ``finish``.

    Values that carry what is their ``own`` are parts of averages as well as places.
    """
    values, x, a, w, slope = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    direct = np.zeros(BLOCK)
    for task in range(first, last):
        slot, part, begin, end = task_of(rows, task)
        r = index[slot]
        head, cells, table = state[r], int(state[r, CELLS]), polynomials[slot, 0]
        sums[slot, part] = 0.0
        for at in range(begin, end, BLOCK):
            count = min(BLOCK, end - at)
            if cells == 0:
                x[:count] = 0.0
            else:
                placed_block(rows, r, at, count, head, values, a, x)
                if own:
                    own_values(values, a, count, head, w)
                else:
                    load(carried, r, at, count, w)
                slopes(values, x, count, head, rows.squash, slope)
                _in_cells(x, count, head)
                share = head[SHARE]
                of_w, of_others = 1.0, share
                if own:
                    of_w = of_others = share / head[SCALE]
                    for i in range(count):
                        k = min(int(x[i]), cells - 1)
                        t = x[i] - k
                        cell = table[k]
                        here = ((cell[11] * t + cell[10]) * t + cell[9]) * t + cell[8]
                        direct[i] = a[i] * share * here if abs(values[i]) < math.inf else 0.0
                for i in range(count):
                    k = min(int(x[i]), cells - 1)
                    t = x[i] - k
                    cell = table[k]
                    along = ((cell[3] * t + cell[2]) * t + cell[1]) * t + cell[0]
                    others = ((cell[7] * t + cell[6]) * t + cell[5]) * t + cell[4]
                    x[i] = (w[i] * of_w * along - a[i] * of_others * others) * slope[i]
                from_z(values, x, direct, count, head, rows.squash, sums[slot, part])
            store(out, r, at, count, x)
