"""What Numba kernels share: exponentials of vectors, standardising and squashing of a row.

A row is worked on in scratch arrays whose length is a multiple of 16 lanes: ``xs`` (float32) its values, ``aw``
(float32) their weights, ``at`` (float64) the places x~. Beyond the row, xs is infinite and aw zero, so that nothing
counts there. Places and moments are float64: squares of 1e30 do not overflow, and at small eps the logits 2 x~ y / eps
need more digits than float32 has.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .compile import jit, jit_no_refcount
from .vectors import (
    highest,
    load,
    load64,
    lowest,
    narrow,
    select,
    splat,
    splat64,
    store,
    store64,
    times_power_of_two,
    total64,
    widen,
)

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

SQUASH_CODES = {"sigmoid": 0, "arctan": 1, None: 2}
_SIGMOID, _ARCTAN, _NO_SQUASH = 0, 1, 2

_f = np.float32
_LOG2E, _LN2_HIGH, _LN2_LOW, _SHIFT = _f(1.44269504), _f(0.693359375), _f(-2.12194440e-4), _f(12582912.0)
_SMALLEST, _LARGEST, _ONE = _f(-87.0), _f(88.0), _f(1.0)
_E2, _E3, _E4, _E5, _E6 = (_f(1.0 / math.factorial(k)) for k in range(2, 7))


@njit(forceinline=True)
def exp32(x: Any) -> Any:
    """Exp of 16 float32, to 2e-7; below -87 it stays at 1.6e-38, so that nothing becomes subnormal."""
    x = select(x > _SMALLEST, x, splat(_SMALLEST))
    x = select(x < _LARGEST, x, splat(_LARGEST))
    shifted = x * _LOG2E + _SHIFT  # the nearest integer to x / log 2 is in the lowest bits
    n = shifted - _SHIFT
    f = x - n * _LN2_HIGH - n * _LN2_LOW
    p = f * _E6 + _E5
    p = p * f + _E4
    p = p * f + _E3
    p = p * f + _E2
    p = p * f + _ONE
    p = p * f + _ONE
    return times_power_of_two(p, shifted)


#: The closest to 2^f, of degree 5 with 1 at 0, for f from -1/2 to 1/2: to 9e-8.
_P1, _P2, _P3, _P4, _P5 = (_f(c) for c in (0.69314698, 0.24022242, 0.055507338, 0.0096715129, 0.0013264724))
_LEAST_POWER = _f(-110.0)


@njit(forceinline=True)
def power_of_two(x: Any) -> Any:
    """2^x of 16 float32, x below 127, to 2e-7; below -110 it stays at 8e-34, so that products are not subnormal."""
    x = select(x > _LEAST_POWER, x, splat(_LEAST_POWER))
    shifted = x + _SHIFT
    f = x - (shifted - _SHIFT)
    p = f * _P5 + _P4
    p = p * f + _P3
    p = p * f + _P2
    p = p * f + _P1
    p = p * f + _ONE
    return times_power_of_two(p, shifted)


_LOG2E_64, _LN2_HIGH_64, _LN2_LOW_64 = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
_SHIFT_64 = 1.5 * 2.0**52
_D2, _D3, _D4, _D5, _D6, _D7, _D8, _D9, _D10, _D11, _D12 = (1.0 / math.factorial(k) for k in range(2, 13))


@njit(forceinline=True)
def exp64(x: Any) -> Any:
    """Exp of 16 float64, to 3e-16; beyond 700 on either side it stays."""
    x = select(x > -700.0, x, splat64(-700.0))
    x = select(x < 700.0, x, splat64(700.0))
    shifted = x * _LOG2E_64 + _SHIFT_64
    n = shifted - _SHIFT_64
    f = x - n * _LN2_HIGH_64 - n * _LN2_LOW_64
    p = f * _D12 + _D11
    p = p * f + _D10
    p = p * f + _D9
    p = p * f + _D8
    p = p * f + _D7
    p = p * f + _D6
    p = p * f + _D5
    p = p * f + _D4
    p = p * f + _D3
    p = p * f + _D2
    p = p * f + 1.0
    p = p * f + 1.0
    return times_power_of_two(p, shifted)


#: The closest to 2^f, of degree 7, for f from -1/2 to 1/2: to 6e-11.
_S0, _S1, _S2, _S3 = 0.9999999999595618, 0.693147180556831, 0.24022651213498544, 0.05550410906330383
_S4, _S5, _S6, _S7 = 0.009618025613264337, 0.001333347847023125, 0.00015469729226017434, 1.530370151255083e-05
_LEAST_POWER_64 = -1000.0


@njit(forceinline=True)
def exp_soon(x: Any) -> Any:
    """Exp of 16 float64 below 700, to 6e-11, in two thirds of the time of ``exp64``.

    Far below it stays at 1e-301, so that nothing becomes subnormal.
    """
    x = x * _LOG2E_64
    x = select(x > _LEAST_POWER_64, x, splat64(_LEAST_POWER_64))
    shifted = x + _SHIFT_64
    f = x - (shifted - _SHIFT_64)
    p = f * _S7 + _S6
    p = p * f + _S5
    p = p * f + _S4
    p = p * f + _S3
    p = p * f + _S2
    p = p * f + _S1
    p = p * f + _S0
    return times_power_of_two(p, shifted)


@njit(forceinline=True)
def sigmoid64(z: Any) -> Any:
    return splat64(1.0) / (exp64(splat64(0.0) - z) + 1.0)


@njit(forceinline=True)
def larger(a: Any, b: Any) -> Any:
    return select(a > b, a, b)


@njit(forceinline=True)
def smaller(a: Any, b: Any) -> Any:
    return select(a < b, a, b)


@njit(forceinline=True)
def size_of(a: Any) -> Any:
    """Absolute values of 16 numbers."""
    return select(a > 0.0, a, 0.0 - a)


@jit
def in_lines(size: int, dtype: Any) -> Any:
    """Room for numbers that begins with a line of the cache, which arrays need not.

    A vector of sixteen float32 is a line long, and in two lines unless it begins with one.
    """
    room = np.empty(size + 16, dtype)
    first = (64 - room.ctypes.data % 64) % 64 // room.itemsize
    return room[first : first + size]


@jit_no_refcount
def copied(values: Any, into: Any) -> None:
    """``into[:] = values``, cut to fit: Numba takes seconds to compile what that would raise if they did not."""
    for i in range(len(into)):
        into[i] = values[i]


@jit_no_refcount
def row_into(x: F32, first: int, n: int, xs: F32) -> bool:
    """Copies a row into ``xs``, infinity behind it. False if it holds NaN."""
    copied(x[first:], xs[:n])
    xs[n:] = np.inf
    nans = splat(0.0)
    for i in range(0, n, 16):
        v = load(xs, i)
        nans = nans + select(v == v, splat(0.0), splat(1.0))
    whole: bool = highest(nans) == 0.0
    return whole


@jit_no_refcount
def places(xs: F32, aw: F32, squash: int, low: float, high: float, at: F64) -> tuple[float, float, float, bool]:
    """X~ of a row without NaN into ``at``; returns (mean, scale, weight, spread) for ``places_backward``.

    As ``squash.normalize``: z = scale (x - mean), with moments over the finite values; ``weight`` is what those weigh.
    ``spread`` says that the scale is that of the row, not the constant which stands in for a row without spread.
    Infinite values go to the ends; without a squash these are the outermost of targets (low and high) and values.
    """
    N = len(at)
    none = splat(0.0)
    weight, moment = splat64(0.0), splat64(0.0)
    tops, bottoms = splat(-np.inf), splat(np.inf)
    for i in range(0, N, 16):
        x, a = load(xs, i), load(aw, i)
        inside = (x > -np.inf) & (x < np.inf)
        a64 = widen(select(inside, a, none))
        weight = weight + a64
        moment = moment + a64 * widen(select(inside, x, none))
        if squash != _NO_SQUASH:
            inside = inside & (a > 0.0)
        tops = select(inside & (x > tops), x, tops)
        bottoms = select(inside & (x < bottoms), x, bottoms)
    top, bottom, all_weight = highest(tops), lowest(bottoms), total64(weight)
    if squash == _NO_SQUASH:
        ceiling, floor = max(float(top), high), min(float(bottom), low)
        for i in range(0, N, 16):
            x64 = widen(load(xs, i))
            x64 = select(x64 < np.inf, x64, splat64(ceiling))
            store64(at, i, select(x64 > -np.inf, x64, splat64(floor)))
        return 0.0, 1.0, all_weight, False

    mean, scale, spread = 0.0, 1.0, False
    if top >= bottom:  # something finite has weight
        mean = total64(moment) / all_weight
        if top > bottom:
            squares = splat64(0.0)
            for i in range(0, N, 16):
                x, a = load(xs, i), load(aw, i)
                inside = (x > -np.inf) & (x < np.inf)
                centred = widen(select(inside, x, none)) - mean
                squares = squares + widen(select(inside, a, none)) * centred * centred
            variance = total64(squares) / all_weight
            spread = variance > 0.0
        if spread:
            scale = 1.0 / math.sqrt(variance)
        else:
            mean = 0.5 * (float(top) + float(bottom))
            size = max(abs(float(top)), abs(float(bottom)))
            scale = (1.0 / size if size > 0.0 else 1.0) if top == bottom else 2.0 / (float(top) - float(bottom))
    _squashed(xs, squash, mean, scale, at)
    return mean, scale, all_weight, spread


@jit_no_refcount
def places_again(xs: F32, aw: F32, squash: int, mean: float, scale: float, low: float, high: float, at: F64) -> None:
    """``places`` of which mean and scale are known."""
    if squash == _NO_SQUASH:
        places(xs, aw, squash, low, high, at)
    else:
        _squashed(xs, squash, mean, scale, at)


@jit_no_refcount
def _squashed(xs: F32, squash: int, mean: float, scale: float, at: F64) -> None:
    for i in range(0, len(at), 16):
        z = (widen(load(xs, i)) - mean) * scale
        z = select(z < 1e9, z, splat64(1e9))
        z = select(z > -1e9, z, splat64(-1e9))
        store64(at, i, z if squash == _ARCTAN else sigmoid64(z))
    if squash == _ARCTAN:
        for i in range(len(at)):
            at[i] = math.atan(at[i]) / math.pi + 0.5


@jit_no_refcount
def places_backward(
    xs: F32, aw: F32, at: F64, squash: int, mean: float, scale: float, weight: float, spread: bool, unit: float, g: F32
) -> None:
    """The cotangent of x~, in ``g``, becomes that of x, times ``unit``.

    With g' = g dx~/dz and weights a that sum to one over the finite values, z = scale (x - mean) gives

        scale (g'_i - a_i sum_k g'_k - a_i z_i sum_k g'_k z_k),

    the last term only if the scale is that of the row. Infinite values get nothing.
    """
    N = len(at)
    none = splat64(0.0)
    if squash == _NO_SQUASH:
        for i in range(0, N, 16):
            x = load(xs, i)
            store(g, i, select((x > -np.inf) & (x < np.inf), load(g, i) * unit, splat(0.0)))
        return
    sums, with_z = none, none
    for i in range(0, N, 16):
        x = load(xs, i)
        inside = (x > -np.inf) & (x < np.inf)
        z = (widen(select(inside, x, splat(0.0))) - mean) * scale
        s = load64(at, i)
        slope = s * (splat64(1.0) - s) if squash == _SIGMOID else splat64(1.0 / math.pi) / (z * z + 1.0)
        of_z = narrow(select(inside, widen(load(g, i)) * slope, none))
        store(g, i, of_z)
        sums = sums + widen(of_z)
        with_z = with_z + widen(of_z) * select(inside, z, none)
    share = 1.0 / weight if weight > 0.0 else 0.0
    sum_g, sum_gz = total64(sums) * share, total64(with_z) * share if spread else 0.0
    for i in range(0, N, 16):
        x = load(xs, i)
        inside = (x > -np.inf) & (x < np.inf)
        z = (widen(select(inside, x, splat(0.0))) - mean) * scale
        of_x = (widen(load(g, i)) - widen(load(aw, i)) * (z * sum_gz + sum_g)) * (scale * unit)
        store(g, i, narrow(select(inside, of_x, none)))
