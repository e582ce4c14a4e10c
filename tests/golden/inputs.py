"""The numbers of a case, from the raw output of PCG64 by +, -, * and / alone.

Raw output is the same in every version of NumPy, and these four operations are the same on every processor. Normal
distributions and exponentials of libraries are not, so none is used: normal numbers are sums of twelve uniform ones,
and powers of e are powers of 1 + z/64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray


class Numbers:
    """A stream of random numbers that is known by its name."""

    def __init__(self, name: str) -> None:
        seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        self._source = np.random.PCG64(seed)

    def uniform(self, *shape: int) -> Array:
        """In [0, 1), with 53 bits."""
        raw = self._source.random_raw(int(np.prod(shape)))
        return ((raw >> np.uint64(11)) * 2.0**-53).reshape(shape)

    def normal(self, *shape: int) -> Array:
        """The sum of twelve uniform numbers, less 6: mean 0, deviation 1, between -6 and 6."""
        total = self.uniform(*shape)
        for _ in range(11):
            total = total + self.uniform(*shape)
        return total - 6.0


def exponential(z: Array) -> Array:
    """About exp(z), for z above -64."""
    power = 1.0 + z / 64.0
    for _ in range(6):
        power = power * power
    return power


def _softmax(numbers: Numbers, R: int, n: int) -> Array:
    power = exponential(2.0 * numbers.normal(R, n))
    return power / power.cumsum(-1)[:, -1:]  # cumsum adds in order, sum does not


def _outlier(numbers: Numbers, R: int, n: int) -> Array:
    x = numbers.normal(R, n)
    x[:, 0] = 1000.0
    return x


def _two_far_clusters(numbers: Numbers, R: int, n: int) -> Array:
    return 100.0 * np.floor(2.0 * numbers.uniform(R, n)) + 0.1 * numbers.normal(R, n)


def _infinite(numbers: Numbers, R: int, n: int) -> Array:
    x, u = numbers.normal(R, n), numbers.uniform(R, n)
    return np.where(u < 0.07, -np.inf, np.where(u > 0.93, np.inf, x))


def _tenths(numbers: Numbers, R: int, n: int) -> Array:
    return np.floor(10.0 * numbers.normal(R, n) + 0.5) / 10.0


#: Kind -> rows (R, n).
KINDS: dict[str, Callable[[Numbers, int, int], Array]] = {
    "normal": lambda numbers, R, n: numbers.normal(R, n),
    "uniform": lambda numbers, R, n: numbers.uniform(R, n),
    "relu": lambda numbers, R, n: np.maximum(numbers.normal(R, n), 0.0),
    "zeros and ones": lambda numbers, R, n: np.floor(2.0 * numbers.uniform(R, n)),
    "softmax": _softmax,
    "lognormal": lambda numbers, R, n: exponential(1.5 * numbers.normal(R, n)),
    "clusters": lambda numbers, R, n: np.floor(4.0 * numbers.uniform(R, n)) + 0.01 * numbers.normal(R, n),
    "two far clusters": _two_far_clusters,
    "outlier": _outlier,
    "tenths": _tenths,
    "three levels": lambda numbers, R, n: np.floor(3.0 * numbers.uniform(R, n)),
    "shifted": lambda numbers, R, n: 1000.0 + numbers.normal(R, n),
    "heavy tails": lambda numbers, R, n: numbers.normal(R, n) / (numbers.uniform(R, n) + 1e-3),
    "sorted": lambda numbers, R, n: np.sort(numbers.normal(R, n), axis=-1),
    "tiny": lambda numbers, R, n: 1e-18 * numbers.normal(R, n),
    "huge": lambda numbers, R, n: 1e15 * numbers.normal(R, n),
    "infinite": _infinite,
    "constant": lambda numbers, R, n: np.full((R, n), 0.75),
}  # fmt: skip


def weights(form: str, numbers: Numbers, R: int, n: int) -> Array:
    """Weights of values: all random, or with zeros among them."""
    a = numbers.uniform(R, n) + 0.05
    return np.where((a < 0.4) & (np.arange(n) > 0), 0.0, a) if form == "zeros" else a


def places(numbers: Numbers, R: int, m: int) -> Array:
    """Targets in increasing order, between 0 and 1."""
    steps = (numbers.uniform(R, m) + 0.05).cumsum(-1)
    return (steps - 0.5 * steps[:, :1]) / steps[:, -1:]
