"""Rows onto three or four targets, in Triton: shares of values, and all that is added up of them."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .exchange import over_programs
from .row import tile_of


@triton.jit
def shares_of_several(
    xi: tl.tensor, u_1: tl.tensor, u_2: tl.tensor, u_3: tl.tensor, s_1: tl.tensor, s_2: tl.tensor, s_3: tl.tensor,
    FOUR: tl.constexpr,
) -> Any:  # fmt: skip
    """Shares p_0, ..., p_3, which of them is the largest (one of them), and what the others are together."""
    zero = xi * 0.0
    l_1, l_2 = tl.fma(xi, s_1 + zero, u_1 + zero), tl.fma(xi, s_2 + zero, u_2 + zero)
    l_3 = l_2
    top = tl.maximum(tl.maximum(zero, l_1), l_2)
    if FOUR:
        l_3 = tl.fma(xi, s_3 + zero, u_3 + zero)
        top = tl.maximum(top, l_3)
    e_0, e_1 = tl.exp((-top).to(tl.float32)), tl.exp((l_1 - top).to(tl.float32))
    e_2 = tl.exp((l_2 - top).to(tl.float32))
    e_3 = e_0 * 0.0
    if FOUR:
        e_3 = tl.exp((l_3 - top).to(tl.float32))
    best_0 = top == 0.0
    best_1 = (best_0 == 0) & (l_1 == top)
    best_2 = (best_0 == 0) & (best_1 == 0) & (l_2 == top)
    others = tl.where(best_0, 0.0, e_0) + tl.where(best_1, 0.0, e_1) + tl.where(best_2, 0.0, e_2)
    if FOUR:
        best_3 = (best_0 | best_1 | best_2) == 0
        others += tl.where(best_3, 0.0, e_3)
    unit = 1.0 / (1.0 + others)
    return e_0 * unit, e_1 * unit, e_2 * unit, e_3 * unit, best_0, best_1, best_2, others * unit


@triton.jit
def parts_of_several(
    xi: tl.tensor, weight: tl.tensor, u_1: tl.tensor, u_2: tl.tensor, u_3: tl.tensor, s_1: tl.tensor, s_2: tl.tensor,
    s_3: tl.tensor, FOUR: tl.constexpr,
) -> Any:  # fmt: skip
    """Return what each value adds to the sums of a pass.

    These are A, B, the weight of the values that are best off with each target but the last, W, and two flows across
    the middle: from values that are best off with targets 2 and 3 down to targets 0 and 1, and up from the others.
    Products are made numbers by adding zero, see ``engine.sums``.
    """
    p_0, p_1, p_2, p_3, best_0, best_1, best_2, others = shares_of_several(xi, u_1, u_2, u_3, s_1, s_2, s_3, FOUR)
    w = weight.to(tl.float32)
    q_0, q_1, q_2, q_3, given = p_0 * w, p_1 * w, p_2 * w, p_3 * w, others * w
    best_3 = (best_0 | best_1 | best_2) == 0
    return (
        tl.where(best_0, 0.0, q_0), tl.where(best_1, 0.0, q_1), tl.where(best_2, 0.0, q_2), tl.where(best_3, 0.0, q_3),
        tl.where(best_0, given, 0.0), tl.where(best_1, given, 0.0), tl.where(best_2, given, 0.0),
        tl.where(best_3, given, 0.0), tl.where(best_0, weight, 0.0), tl.where(best_1, weight, 0.0),
        tl.where(best_2, weight, 0.0), q_0 * p_1 + 0.0, q_0 * p_2 + 0.0, q_1 * p_2 + 0.0, q_0 * p_3 + 0.0,
        q_1 * p_3 + 0.0, q_2 * p_3 + 0.0, tl.where(best_0 | best_1, 0.0, q_0 + q_1),
        tl.where(best_0 | best_1, q_2 + q_3, 0.0),
    )  # fmt: skip


@triton.jit
def _add11(
    a0: tl.tensor, b0: tl.tensor, c0: tl.tensor, d0: tl.tensor, e0: tl.tensor, f0: tl.tensor, g0: tl.tensor,
    h0: tl.tensor, i0: tl.tensor, j0: tl.tensor, k0: tl.tensor, a1: tl.tensor, b1: tl.tensor, c1: tl.tensor,
    d1: tl.tensor, e1: tl.tensor, f1: tl.tensor, g1: tl.tensor, h1: tl.tensor, i1: tl.tensor, j1: tl.tensor,
    k1: tl.tensor,
) -> Any:  # fmt: skip
    return a0 + a1, b0 + b1, c0 + c1, d0 + d1, e0 + e1, f0 + f1, g0 + g1, h0 + h1, i0 + i1, j0 + j1, k0 + k1


@triton.jit
def add17(
    a0: tl.tensor, b0: tl.tensor, c0: tl.tensor, d0: tl.tensor, e0: tl.tensor, f0: tl.tensor, g0: tl.tensor,
    h0: tl.tensor, i0: tl.tensor, j0: tl.tensor, k0: tl.tensor, l0: tl.tensor, m0: tl.tensor, n0: tl.tensor,
    o0: tl.tensor, p0: tl.tensor, q0: tl.tensor, a1: tl.tensor, b1: tl.tensor, c1: tl.tensor, d1: tl.tensor,
    e1: tl.tensor, f1: tl.tensor, g1: tl.tensor, h1: tl.tensor, i1: tl.tensor, j1: tl.tensor, k1: tl.tensor,
    l1: tl.tensor, m1: tl.tensor, n1: tl.tensor, o1: tl.tensor, p1: tl.tensor, q1: tl.tensor,
) -> Any:  # fmt: skip
    return (
        a0 + a1, b0 + b1, c0 + c1, d0 + d1, e0 + e1, f0 + f1, g0 + g1, h0 + h1, i0 + i1, j0 + j1, k0 + k1, l0 + l1,
        m0 + m1, n0 + n1, o0 + o1, p0 + p1, q0 + q1,
    )  # fmt: skip


@triton.jit
def _add19(
    a0: tl.tensor, b0: tl.tensor, c0: tl.tensor, d0: tl.tensor, e0: tl.tensor, f0: tl.tensor, g0: tl.tensor,
    h0: tl.tensor, i0: tl.tensor, j0: tl.tensor, k0: tl.tensor, l0: tl.tensor, m0: tl.tensor, n0: tl.tensor,
    o0: tl.tensor, p0: tl.tensor, q0: tl.tensor, r0: tl.tensor, s0: tl.tensor, a1: tl.tensor, b1: tl.tensor,
    c1: tl.tensor, d1: tl.tensor, e1: tl.tensor, f1: tl.tensor, g1: tl.tensor, h1: tl.tensor, i1: tl.tensor,
    j1: tl.tensor, k1: tl.tensor, l1: tl.tensor, m1: tl.tensor, n1: tl.tensor, o1: tl.tensor, p1: tl.tensor,
    q1: tl.tensor, r1: tl.tensor, s1: tl.tensor,
) -> Any:  # fmt: skip
    return (
        a0 + a1, b0 + b1, c0 + c1, d0 + d1, e0 + e1, f0 + f1, g0 + g1, h0 + h1, i0 + i1, j0 + j1, k0 + k1, l0 + l1,
        m0 + m1, n0 + n1, o0 + o1, p0 + p1, q0 + q1, r0 + r1, s0 + s1,
    )  # fmt: skip


@triton.jit
def added_up(
    A_0: tl.tensor, A_1: tl.tensor, A_2: tl.tensor, A_3: tl.tensor, B_0: tl.tensor, B_1: tl.tensor, B_2: tl.tensor,
    B_3: tl.tensor, H_0: tl.tensor, H_1: tl.tensor, H_2: tl.tensor, W_01: tl.tensor, W_02: tl.tensor, W_12: tl.tensor,
    W_03: tl.tensor, W_13: tl.tensor, W_23: tl.tensor, down: tl.tensor, up: tl.tensor, whole: tl.tensor,
    lines: tl.tensor, counter: tl.tensor, passed: tl.tensor, G: tl.tensor, FOUR: tl.constexpr, PP: tl.constexpr,
) -> Any:  # fmt: skip
    """``parts_of_several`` of all values; of three targets fewer, since the fourth has nothing. And ``passed``."""
    if FOUR:
        (
            A_0, A_1, A_2, A_3, B_0, B_1, B_2, B_3, H_0, H_1, H_2, W_01, W_02, W_12, W_03, W_13, W_23, down, up
        ) = tl.reduce(
            (A_0, A_1, A_2, A_3, B_0, B_1, B_2, B_3, H_0, H_1, H_2, W_01, W_02, W_12, W_03, W_13, W_23, down, up),
            0, _add19,
        )  # fmt: skip
        if PP > 1:
            (
                A_0, A_1, A_2, A_3, B_0, B_1, B_2, B_3, H_0, H_1, H_2, W_01, W_02, W_12, W_03, W_13, W_23, down, up,
                passed,
            ) = over_programs(
                A_0, A_1, A_2, A_3, B_0, B_1, B_2, B_3, H_0, H_1, H_2, W_01, W_02, W_12, W_03, W_13, W_23, down, up,
                lines, counter, passed, G, 19, PP,
            )  # fmt: skip
        H_2 = H_2.to(tl.float64)
    else:
        A_0, A_1, A_2, B_0, B_1, B_2, H_0, H_1, W_01, W_02, W_12 = tl.reduce(
            (A_0, A_1, A_2, B_0, B_1, B_2, H_0, H_1, W_01, W_02, W_12), 0, _add11
        )
        if PP > 1:
            (
                A_0, A_1, A_2, B_0, B_1, B_2, H_0, H_1, W_01, W_02, W_12, _11, _12, _13, _14, _15, _16, _17, _18,
            passed,
            ) = over_programs(
                A_0, A_1, A_2, B_0, B_1, B_2, H_0, H_1, W_01, W_02, W_12, W_12, W_12, W_12, W_12, W_12, W_12, W_12,
                W_12, lines, counter, passed, G, 11, PP,
            )  # fmt: skip
        H_2 = whole - H_0 - H_1
        A_3 = A_0 * 0.0
        B_3, W_03, W_13, W_23, down, up = A_3, A_3, A_3, A_3, A_3, A_3
    return (
        A_0.to(tl.float32), A_1.to(tl.float32), A_2.to(tl.float32), A_3.to(tl.float32), B_0.to(tl.float32),
        B_1.to(tl.float32), B_2.to(tl.float32), B_3.to(tl.float32), H_0.to(tl.float64), H_1.to(tl.float64), H_2,
        W_01.to(tl.float32), W_02.to(tl.float32), W_12.to(tl.float32), W_03.to(tl.float32), W_13.to(tl.float32),
        W_23.to(tl.float32), down.to(tl.float32), up.to(tl.float32), passed,
    )  # fmt: skip


@triton.jit
def sums_of_several(
    places: tl.tensor, a: tl.tensor, a_row: tl.tensor, a_step: tl.tensor, n: tl.tensor, row: tl.tensor,
    tiles: tl.tensor, xi: tl.tensor, weight: tl.tensor, u_1: tl.tensor, u_2: tl.tensor, u_3: tl.tensor, s_1: tl.tensor,
    s_2: tl.tensor, s_3: tl.tensor, whole: tl.tensor, lines: tl.tensor, counter: tl.tensor, passed: tl.tensor,
    G: tl.tensor, FOUR: tl.constexpr, REGISTERS: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
    PP: tl.constexpr,
) -> Any:  # fmt: skip
    if REGISTERS:
        A_0, A_1, A_2, A_3, B_0, B_1, B_2, B_3, H_0, H_1, H_2, W_01, W_02, W_12, W_03, W_13, W_23, down, up = (
            parts_of_several(xi, weight, u_1, u_2, u_3, s_1, s_2, s_3, FOUR)
        )
    else:
        A_0 = tl.zeros((BLOCK,), tl.float32)
        A_1, A_2, A_3, B_0, B_1, B_2, B_3 = A_0, A_0, A_0, A_0, A_0, A_0, A_0
        W_01, W_02, W_12, W_03, W_13, W_23, down, up = A_0, A_0, A_0, A_0, A_0, A_0, A_0, A_0
        H_0 = tl.zeros((BLOCK,), tl.float64 if WEIGHTED else tl.float32)
        H_1, H_2 = H_0, H_0
        for tile in range(tiles):
            xi_here, weight_here = tile_of(
                places, a, a_row, a_step, n, row, tile, xi, weight, REGISTERS, WEIGHTED, BLOCK
            )
            a_0, a_1, a_2, a_3, b_0, b_1, b_2, b_3, h_0, h_1, h_2, w_01, w_02, w_12, w_03, w_13, w_23, d, u = (
                parts_of_several(xi_here, weight_here, u_1, u_2, u_3, s_1, s_2, s_3, FOUR)
            )
            A_0 += a_0
            A_1 += a_1
            A_2 += a_2
            A_3 += a_3
            B_0 += b_0
            B_1 += b_1
            B_2 += b_2
            B_3 += b_3
            H_0 += h_0
            H_1 += h_1
            H_2 += h_2
            W_01 += w_01
            W_02 += w_02
            W_12 += w_12
            W_03 += w_03
            W_13 += w_13
            W_23 += w_23
            down += d
            up += u
    return added_up(
        A_0, A_1, A_2, A_3, B_0, B_1, B_2, B_3, H_0, H_1, H_2, W_01, W_02, W_12, W_03, W_13, W_23, down, up, whole,
        lines, counter, passed, G, FOUR, PP,
    )  # fmt: skip
