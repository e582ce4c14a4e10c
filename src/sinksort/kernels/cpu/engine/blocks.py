"""Long rows a block at a time: numbers from any dtype into float64 and back, and the functions every pass needs.

A block fits in the first cache, and a pass over a row is a loop over its blocks: load, compute in place, add up or
store. Loops over a block are written so that the compiler makes vector instructions of them: no branches, no calls that
it cannot inline, and sums that may be reordered (``summing``), but exact arithmetic where bits matter (``exact``).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .compile import exact

BLOCK = 512

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
SIGMOID, ARCTAN, IDENTITY = 0, 1, 2


class Array(NamedTuple):
    """Rows of numbers in one of three formats: entry i of row r is at r * stride + i."""

    single: np.ndarray  #: float32, or empty
    half: np.ndarray  #: the bits of float16 or bfloat16, or empty
    kind: int
    stride: int


class Rows(NamedTuple):
    """The values of an ask and what they weigh; ``weights.single`` is empty when all weigh the same."""

    values: Array
    weights: Array
    n: int
    squash: int
    pieces: int  #: how many parts a row is worked on in; depends on n alone, so that answers do not depend on threads


def _reinterpreted(source: Any, result: Any, through: Any) -> Any:
    """An intrinsic that reads the bits of one type as another; integers are int64 on the outside."""

    def convert(typingctx: Any, value: Any) -> Any:  # noqa: ARG001
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
            (value,) = args
            if source is types.int64:
                return builder.bitcast(builder.trunc(value, through) if through.width < 64 else value, llvm)
            bits = builder.bitcast(value, through)
            return builder.zext(bits, ir.IntType(64)) if through.width < 64 else bits

        return result(source), codegen

    llvm = {types.float64: ir.DoubleType(), types.float32: ir.FloatType()}.get(result)
    return intrinsic(convert)


float_of_bits = _reinterpreted(types.int64, types.float64, ir.IntType(64))
bits_of_float = _reinterpreted(types.float64, types.int64, ir.IntType(64))
single_of_bits = _reinterpreted(types.int64, types.float32, ir.IntType(32))
bits_of_single = _reinterpreted(types.float32, types.int64, ir.IntType(32))

_SHIFT = 1.5 * 2.0**52  # adding it rounds to an integer, which then stands in the lowest bits
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
_ONE = 0x3FF0000000000000


@exact
def exp(x: float) -> float:
    """e^x to the last bits of float64, for |x| <= 700; beyond, that of the end.

    x = k ln 2 + r with |r| <= (ln 2)/2, where twelve terms of the series are enough.
    """
    x = x if x > -700.0 else -700.0
    x = x if x < 700.0 else 700.0
    shifted = x * 1.4426950408889634 + _SHIFT
    k = shifted - _SHIFT
    r = x - k * _LN2_HIGH - k * _LN2_LOW
    series = 1.0 / 39916800.0
    series = series * r + 1.0 / 3628800.0
    series = series * r + 1.0 / 362880.0
    series = series * r + 1.0 / 40320.0
    series = series * r + 1.0 / 5040.0
    series = series * r + 1.0 / 720.0
    series = series * r + 1.0 / 120.0
    series = series * r + 1.0 / 24.0
    series = series * r + 1.0 / 6.0
    series = series * r + 0.5
    series = series * r + 1.0
    series = series * r + 1.0
    return float(series * float_of_bits((bits_of_float(shifted) << 52) + _ONE))


@exact
def arctan(z: float) -> float:
    """By halving the angle three times, after which nine terms of the series are enough."""
    t = z / (1.0 + math.sqrt(1.0 + z * z))
    t = t / (1.0 + math.sqrt(1.0 + t * t))
    t = t / (1.0 + math.sqrt(1.0 + t * t))
    u = -t * t
    series = 1.0 / 17.0
    series = series * u + 1.0 / 15.0
    series = series * u + 1.0 / 13.0
    series = series * u + 1.0 / 11.0
    series = series * u + 1.0 / 9.0
    series = series * u + 1.0 / 7.0
    series = series * u + 1.0 / 5.0
    series = series * u + 1.0 / 3.0
    series = series * u + 1.0
    return 8.0 * t * series


@exact
def load(array: Array, row: int, first: int, count: int, out: np.ndarray) -> None:
    """``count`` entries of a row, from ``first`` on, into out."""
    at = row * array.stride + first
    if array.kind == FLOAT32:
        single = array.single[at : at + count]
        for i in range(count):
            out[i] = single[i]
        return
    half = array.half[at : at + count]
    if array.kind == BFLOAT16:
        for i in range(count):
            out[i] = single_of_bits(np.int64(half[i]) << 16)
        return
    for i in range(count):
        bits = np.int64(half[i])
        size = (bits & 0x7FFF) << 13
        # Exponents are counted from 15 there and from 127 here; the largest stands for inf and NaN.
        value = single_of_bits(size | 0x7F800000) if size >= 0x0F800000 else single_of_bits(size) * np.float32(2.0**112)
        out[i] = -value if bits & 0x8000 else value


@exact
def store(array: Array, row: int, first: int, count: int, values: np.ndarray) -> None:
    """The inverse of ``load``, rounding to nearest, ties to even."""
    at = row * array.stride + first
    if array.kind == FLOAT32:
        single = array.single[at : at + count]
        for i in range(count):
            single[i] = values[i]
        return
    half = array.half[at : at + count]
    for i in range(count):
        bits = bits_of_single(np.float32(values[i]))
        if array.kind == BFLOAT16:
            half[i] = 0x7FC0 if bits & 0x7FFFFFFF > 0x7F800000 else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        else:
            half[i] = _float16(bits)


@exact
def _float16(bits: int) -> int:
    """The bits of a float16 from those of a float32."""
    sign, size = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
    if size > 0x7F800000:
        return 0x7E00
    if size >= 0x47800000:  # from 2^16 on
        return sign | 0x7C00
    if size < 0x38800000:  # below 2^-14: adding 1/2 leaves what a subnormal number keeps in the lowest bits
        return int(sign | (bits_of_single(single_of_bits(size) + np.float32(0.5)) - 0x3F000000))
    return sign | ((size - (112 << 23) + 0xFFF + ((size >> 13) & 1)) >> 13)


@exact
def load_weights(rows: Rows, row: int, first: int, count: int, out: np.ndarray) -> None:
    """What the values of a block weigh, up to a factor for the whole row."""
    if rows.weights.single.size > 0:
        load(rows.weights, row, first, count, out)
    else:
        out[:count] = 1.0


@exact
def task_of(rows: Rows, task: int) -> tuple[int, int, int, int]:
    """The slot and the part of a row that a task stands for, and the first and last of its values."""
    slot = task // rows.pieces
    part = task - slot * rows.pieces
    return slot, part, rows.n * part // rows.pieces, rows.n * (part + 1) // rows.pieces
