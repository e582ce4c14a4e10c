"""One line of the plan: the exponents of a value against all targets, and where they are not negligible.

What     From exponents e_k to exp(e_k), in the window of targets outside of which all of them are below exp(-cut).
When     In every pass over the pairs of a row.
Why      At small eps a value reaches a few targets. Finding them costs a comparison a pair, an exponential costs ten.
Keeps    Nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from ..engine.compile import jit_no_refcount
from ..engine.maths import F64, exp64
from ..engine.vectors import highest64, load64, select, splat64, store64


class Digits(NamedTuple):
    """How far a row is solved, and what is left out."""

    wanted: float  #: marginal error that ends the iteration
    cut: float  #: shares below exp(-cut) of the largest of a value are none
    far: float  #: potentials that moved as far as this, in units of eps, make other pairs matter


#: exp(-50) is 2e-22: of a million such shares nothing is seen in double precision. Single precision leaves out no more,
#: since what leaks across a gap may be all of a gradient.
IN_DOUBLE, IN_SINGLE = Digits(1e-13, 50.0, 25.0), Digits(1e-10, 50.0, 25.0)
LARGEST = 80.0  # logarithm of E for a target without weight, beside the largest of the others
_LEAST = -250.0  # so that products of two exponentials are never subnormal
MOST = 80.0  # only a value and a target that both weigh nothing can exceed this


@jit_no_refcount
def window(line: F64, K: int, least: float) -> tuple[int, int]:
    """Return the first target and the end of those whose exponents exceed ``least``, as multiples of 16.

    The window is never empty: a line without such a target has its first sixteen.
    """
    end = (K + 15) // 16 * 16
    first = 0
    while first < end - 16 and not highest64(load64(line, first)) > least:
        first += 16
    while end > first + 16 and not highest64(load64(line, end - 16)) > least:
        end -= 16
    return first, end


@jit_no_refcount
def exponentials_into(line: F64, first: int, end: int, out: F64, at: int) -> None:
    """Write exp(line[first:end]) to out[at:], for a window that holds multiples of 16."""
    for k in range(first, end, 16):
        e = load64(line, k)
        e = select(e > _LEAST, e, splat64(_LEAST))
        store64(out, at + k - first, exp64(select(e < MOST, e, splat64(MOST))))
