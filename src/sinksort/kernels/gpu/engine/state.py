"""What a row of up to 2048 values keeps for its gradient, in as few bytes as it takes.

Two doubles, origin and unit; four bytes: whether the row holds NaN or has no answer, whether its values differ, whether
``exact.all_targets`` took it over, and the exponent E of its potentials; then these, of all targets, 48 bits each.

**48 bits of U.** A plan sees s U, where s reaches 2e4 and more: single precision is too little, and a double has an
exponent that nobody needs. The staircase is at most 1/2, log b and all steps together are below 2048, so that

    |U|  <  1 + 2048 / s  <  2^E,

and U is kept as a whole multiple of 2^(E - 47). In s U this is an error below (s + 2048) 2^-47, 2e-10 where s is 2e4:
single precision makes more of it in every exponential, and rows that are computed in double precision do not want more.
High words (32 bits) of all targets come first, then low words (16 bits). Both halves of a number of 48 bits, rounded,
are single precision's: kernels that want U in two halves need not go by way of doubles.
"""

from __future__ import annotations

import triton
import triton.language as tl

_HEAD = tl.constexpr(20)  #: bytes before the potentials
_BAD, _VARIED, LATE, _EXPONENT = (tl.constexpr(i) for i in (16, 17, 18, 19))


def doubles_for(targets: int) -> int:
    """As many as the state of a row needs."""
    return -(-(_HEAD.value + 6 * targets) // 8)


@triton.jit
def store_facts(state_ptr: tl.tensor, origin: tl.tensor, unit: tl.tensor, spread: tl.tensor, bad: tl.tensor) -> None:
    tl.store(state_ptr, origin)
    tl.store(state_ptr + 1, unit)
    in_bytes = state_ptr.to(tl.pointer_type(tl.int8))
    tl.store(in_bytes + _BAD, bad.to(tl.int8))
    tl.store(in_bytes + _VARIED, spread.to(tl.int8))


@triton.jit
def load_facts(state_ptr: tl.tensor) -> tl.tensor:
    """origin, unit, spread and bad, as ``engine.parts.moments`` made them."""
    in_bytes = state_ptr.to(tl.pointer_type(tl.int8))
    spread, bad = tl.load(in_bytes + _VARIED).to(tl.float64), tl.load(in_bytes + _BAD)
    return tl.load(state_ptr), tl.load(state_ptr + 1), spread, bad


@triton.jit
def store_late(state_ptr: tl.tensor, late: tl.constexpr) -> None:
    tl.store(state_ptr.to(tl.pointer_type(tl.int8)) + LATE, tl.full([], late, tl.int8))


@triton.jit
def is_late(state_ptr: tl.tensor) -> tl.tensor:
    return tl.load(state_ptr.to(tl.pointer_type(tl.int8)) + LATE) != 0


@triton.jit
def exponent_of(s: tl.tensor) -> tl.tensor:
    """E, at most 126, from what a double is made of."""
    bits = (1.0 + 2048.0 / s).to(tl.int64, bitcast=True)
    return tl.minimum((bits >> 52) - 1022, 126).to(tl.int32)


@triton.jit
def power_of_two(E: tl.tensor) -> tl.tensor:
    """2^E in single precision, for E from -126 to 127."""
    return ((E + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def store_potential(
    state_ptr: tl.tensor, words_ptr: tl.tensor, U: tl.tensor, E: tl.tensor, j: tl.tensor, K: tl.tensor, mask: tl.tensor
) -> None:
    """U (double) of targets j, of which there are K; words_ptr is state_ptr, or further on if others stand between."""
    tl.store(state_ptr.to(tl.pointer_type(tl.int8)) + _EXPONENT, E.to(tl.int8))
    whole = tl.floor(U * power_of_two(47 - E).to(tl.float64) + 0.5)
    high = tl.floor(whole * (1.0 / 65536.0))
    tl.store(high_words(words_ptr, tl.int32) + j, high.to(tl.int32), mask=mask)
    tl.store(low_words(words_ptr, K) + j, (whole - high * 65536.0).to(tl.int32).to(tl.int16), mask=mask)


@triton.jit
def load_words(
    state_ptr: tl.tensor, words_ptr: tl.tensor, j: tl.tensor, K: tl.tensor, mask: tl.tensor
) -> tl.tensor:  # fmt: skip
    """E, high and low words; without a target 0."""
    E = tl.load(state_ptr.to(tl.pointer_type(tl.int8)) + _EXPONENT).to(tl.int32)
    high = tl.load(high_words(words_ptr, tl.int32) + j, mask=mask, other=0)
    return E, high, tl.load(low_words(words_ptr, K) + j, mask=mask, other=0).to(tl.int32) & 65535


@triton.jit
def load_potential(
    state_ptr: tl.tensor, words_ptr: tl.tensor, j: tl.tensor, K: tl.tensor, mask: tl.tensor
) -> tl.tensor:  # fmt: skip
    """U (double)."""
    E, high, low = load_words(state_ptr, words_ptr, j, K, mask)
    return (high.to(tl.float64) * 65536.0 + low.to(tl.float64)) * power_of_two(E - 47).to(tl.float64)


@triton.jit
def load_potential_halves(state_ptr: tl.tensor, j: tl.tensor, K: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """U as a multiple of 2^(E - 23), which is 2^-22 for all but small s, and the rest, both in single precision."""
    E, high, low = load_words(state_ptr, state_ptr, j, K, mask)
    first = (high + 128) >> 8
    rest = ((high - (first << 8)) << 16) + low
    return first.to(tl.float32) * power_of_two(E - 23), rest.to(tl.float32) * power_of_two(E - 47)


@triton.jit
def high_words(state_ptr: tl.tensor, DT: tl.constexpr) -> tl.tensor:
    """Where the high words are; before there are any, K numbers DT of 32 bits may stand there."""
    return state_ptr.to(tl.pointer_type(DT)) + _HEAD // 4


@triton.jit
def low_words(state_ptr: tl.tensor, K: tl.tensor) -> tl.tensor:
    return state_ptr.to(tl.pointer_type(tl.int16)) + _HEAD // 2 + 2 * K
