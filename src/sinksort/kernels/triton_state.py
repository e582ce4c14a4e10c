"""What a row of up to 2048 values keeps for its gradient, in as few bytes as it takes.

Two doubles, origin and unit; three bytes: whether the row holds NaN or has no answer, whether its values differ, and
whether ``triton_whole`` took it over; a byte that means nothing; then the potentials of all targets, 48 bits each.

**48 bits of U.** A plan sees s U, where s reaches 2e4 and more: single precision is too little, and a double has an
exponent that nobody needs. The staircase is at most 1/2, log b and all steps together are below 2048, so that

    |U|  <  1 + 2048 / s,

and U is kept as a whole multiple of 2^-47 of that. In s U this is an error below (s + 2048) 2^-48, 1e-10 where s is
2e4: single precision makes more of it in every exponential, and rows that are computed in double precision do not want
more. High words (32 bits) of all targets come first, then low words (16 bits).
"""

from __future__ import annotations

import triton
import triton.language as tl

_HEAD = tl.constexpr(20)  #: bytes before the potentials
_BAD, _VARIED, LATE = tl.constexpr(16), tl.constexpr(17), tl.constexpr(18)
_BITS = tl.constexpr(140737488355328.0)  #: 2^47


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
    """origin, unit, spread and bad, as ``triton_parts.moments`` made them."""
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
def store_potential(
    state_ptr: tl.tensor, U: tl.tensor, s: tl.tensor, j: tl.tensor, K: tl.tensor, mask: tl.tensor
) -> None:
    """U (double) of targets j, of which there are K."""
    whole = tl.floor(U * (_BITS * (s / (s + 2048.0))) + 0.5)
    high = tl.floor(whole * (1.0 / 65536.0))
    tl.store(high_words(state_ptr, tl.int32) + j, high.to(tl.int32), mask=mask)
    tl.store(low_words(state_ptr, K) + j, (whole - high * 65536.0).to(tl.int32).to(tl.int16), mask=mask)


@triton.jit
def load_potential(state_ptr: tl.tensor, s: tl.tensor, j: tl.tensor, K: tl.tensor, mask: tl.tensor) -> tl.tensor:
    high = tl.load(high_words(state_ptr, tl.int32) + j, mask=mask, other=0)
    low = tl.load(low_words(state_ptr, K) + j, mask=mask, other=0).to(tl.int32) & 65535
    return (high.to(tl.float64) * 65536.0 + low.to(tl.float64)) * ((s + 2048.0) / (s * _BITS))


@triton.jit
def high_words(state_ptr: tl.tensor, DT: tl.constexpr) -> tl.tensor:
    """Where the high words are; before there are any, K numbers DT of 32 bits may stand there."""
    return state_ptr.to(tl.pointer_type(DT)) + _HEAD // 4


@triton.jit
def low_words(state_ptr: tl.tensor, K: tl.tensor) -> tl.tensor:
    return state_ptr.to(tl.pointer_type(tl.int16)) + _HEAD // 2 + 2 * K
