"""The plan between the nodes of a long row's grid and its targets, in registers: tiles as in ``registers.tiles``.

    p_qj  =  b_j exp(s (x_q y_j - U_j)) / (the same summed over j)

Nodes take the place of values. Places x_q are counted in steps of the grid from its middle, those of targets are scaled
to [-1/2, 1/2], and s is 2/eps in these units. Of y and U the first 15 bits after the point are apart: x_q is a whole
number, so what nearly cancels is exact in single precision.

The number of coarse nodes is no power of two, so they are in two tiles: V and then VT for each thread.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..engine.newton import path_through
from ..engine.parts import LOG2_E
from ..engine.tables import HEAD
from ..engine.tiles import (
    AXIS_V,
    indices,
    inverse_of,
    most_over_targets,
    over_targets,
    over_values,
    places_of_targets,
    scale_of_targets,
)


@triton.jit
def both_indices(
    one: tl.tensor, KA: tl.constexpr, V: tl.constexpr, VT: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> Any:
    """Targets j, and the nodes of both tiles."""
    j, i = indices(one, KA, V, X, KB)
    _j, it = indices(one, KA, VT, X, KB)
    return j, i, V * X + it


@triton.jit
def over_nodes(t: tl.tensor, tail: tl.tensor, KA: tl.constexpr, X: tl.constexpr, KB: tl.constexpr) -> Any:
    """Sums of both tiles for each target."""
    part = tl.sum(t, axis=AXIS_V, keep_dims=True) + tl.sum(tail, axis=AXIS_V, keep_dims=True)
    return over_values(part, KA, X, KB)


@triton.jit
def scale_of(y: tl.tensor, K: tl.constexpr) -> Any:
    """Middle and 1/range of the targets in single precision, the range in double."""
    low, high, scale = scale_of_targets(y, K)
    return (0.5 * (low + high)).to(tl.float32), (1.0 / scale).to(tl.float32), scale


@triton.jit
def slope_of(
    step: tl.tensor, y_scale: tl.tensor, eps: tl.tensor, eps_rows: tl.tensor, row: tl.tensor, EPS_ROWS: tl.constexpr
) -> Any:
    """s and 1/s, the first in units of log 2."""
    if EPS_ROWS:
        slope = 2.0 / tl.load(eps_rows + row).to(tl.float64)
    else:
        slope = tl.full((), 2.0, tl.float64) / eps
    slope = slope * step.to(tl.float64) * y_scale
    return (slope * LOG2_E).to(tl.float32), (1.0 / slope).to(tl.float32)


@triton.jit
def split(v: tl.tensor) -> Any:
    """A multiple of 2^-15, and the rest."""
    high = tl.floor(v * 32768.0 + 0.5) * 3.0517578125e-05
    return high, v - high


@triton.jit
def with_potentials(
    y: tl.tensor, b: tl.tensor, table: tl.tensor, j: tl.tensor, middle: tl.tensor, per_scale: tl.tensor,
    K: tl.constexpr, KP: tl.constexpr,
) -> Any:  # fmt: skip
    """Targets j: places, the steps between them, weights; and places and potentials in two parts, for ``conditional``.

    Potentials are those that the state of the row holds.
    """
    target, gap, share = places_of_targets(y, b, j, middle, per_scale, K)
    yh, yl = split(target)
    return target, gap, share, yh, yl, tl.load(table + HEAD + j), tl.load(table + HEAD + KP + j)


@triton.jit
def conditional(
    x: tl.tensor, yh: tl.tensor, yl: tl.tensor, Uh: tl.tensor, Ul: tl.tensor, b: tl.tensor, s: tl.tensor,
    V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> Any:  # fmt: skip
    """p at the nodes x."""
    big = x * yh - tl.where(b > 0, Uh, 1e30)
    most = most_over_targets(big, V, X, KB)
    e = tl.exp2(((big - most) + (x * yl - Ul)) * s) * b
    return e * inverse_of(over_targets(e, V, X, KB))


@triton.jit
def mean_and_covariance(
    p: tl.tensor, f: tl.tensor, y: tl.tensor, V: tl.constexpr, X: tl.constexpr, KB: tl.constexpr
) -> Any:
    """Mean of f at each node, and Cov(f, y)."""
    mean, mean_y = over_targets(p * f, V, X, KB), over_targets(p * y, V, X, KB)
    return mean, over_targets(p * (f - mean) * (y - mean_y), V, X, KB)


@triton.jit
def path_of(
    p: tl.tensor, pt: tl.tensor, m: tl.tensor, mt: tl.tensor, y: tl.tensor, gap: tl.tensor,
    KA: tl.constexpr, V: tl.constexpr, VT: tl.constexpr, X: tl.constexpr, KB: tl.constexpr,
) -> Any:  # fmt: skip
    """As in ``registers.rows`` 1/D, resistances and D; and the column sums. Masses m of interpolation may be
    negative.
    """
    mean, mean_t = over_targets(p * y, V, X, KB) * m, over_targets(pt * y, VT, X, KB) * mt
    Ly = over_nodes(p * (m * y - mean), pt * (mt * y - mean_t), KA, X, KB)
    c = over_nodes(p * m, pt * mt, KA, X, KB)
    D = over_nodes(p * (m - m * p), pt * (mt - mt * pt), KA, X, KB)
    inverse_D, resistance = path_through(Ly, D, gap, X, KB)
    return inverse_D, resistance, D, c
