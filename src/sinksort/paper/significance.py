"""Is a difference of two means more than chance? Student's t test in pairs, and Welch's where there are none."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05  #: below this probability a difference is called one


@dataclass(frozen=True)
class Difference:
    """A difference of means, and how likely one at least as large is by chance, in either direction."""

    difference: float
    t: float
    p: float

    @property
    def verdict(self) -> str:
        """Whether the first mean is ahead (larger) or behind; level where that may be chance."""
        if not self.p < LEVEL:
            return "level"
        return "ahead" if self.difference > 0 else "behind"


def welch(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Welch's t test: the two samples may have different variances and sizes.

    >>> found = welch([1.0, 2.0, 3.0], [4.0, 5.0, 7.0])
    >>> f"{found.difference:.2f} {found.t:.2f} {found.p:.3f} {found.verdict}"
    '-3.33 -3.16 0.042 behind'
    """
    if min(len(one), len(other)) < 2:
        raise ValueError(f"a test needs two numbers or more on both sides, got {len(one)} and {len(other)}.")
    difference = statistics.fmean(one) - statistics.fmean(other)
    shares = [statistics.variance(numbers) / len(numbers) for numbers in (one, other)]
    spread = sum(shares)
    if spread == 0.0:
        return _certain(difference)
    freedom = spread**2 / sum(s**2 / (len(n) - 1) for s, n in zip(shares, (one, other), strict=True))
    t = difference / math.sqrt(spread)
    return Difference(difference, t, tails(t, freedom))


def paired(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Student's t test of pairs, such as runs with the same seed.

    >>> found = paired([1.0, 2.0, 3.0], [1.5, 2.4, 3.6])
    >>> f"{found.difference:.2f} {found.t:.2f} {found.p:.3f} {found.verdict}"
    '-0.50 -8.66 0.013 behind'
    """
    differences = [a - b for a, b in zip(one, other, strict=True)]
    if len(differences) < 2:
        raise ValueError(f"a test needs two pairs or more, got {len(differences)}.")
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    if deviation == 0.0:
        return _certain(mean)
    t = mean / (deviation / math.sqrt(len(differences)))
    return Difference(mean, t, tails(t, len(differences) - 1))


def _certain(difference: float) -> Difference:
    """What does not vary at all differs for certain, or not at all."""
    return Difference(difference, math.copysign(math.inf, difference), 0.0) if difference else Difference(0.0, 0.0, 1.0)


def tails(t: float, freedom: float) -> float:
    """How likely Student's t with ``freedom`` degrees is beyond ``t`` on either side.

    With t = sqrt(freedom) tan(u) its density becomes cos(u)^(freedom - 1), up to a factor.
    """
    nodes, weights = np.polynomial.legendre.leggauss(200)
    first = math.atan(abs(t) / math.sqrt(freedom))

    def integral(low: float) -> float:
        u = 0.5 * (math.pi / 2 - low) * (nodes + 1) + low
        return float(0.5 * (math.pi / 2 - low) * (weights * np.cos(u).clip(min=0.0) ** (freedom - 1)).sum())

    return integral(first) / integral(0.0)
