"""Kinds of input that tests and benchmarks draw from: ordinary, tied, constant, heavy-tailed, clustered. NumPy only.

Every generator takes a random generator and a size and returns float64; the same seed gives the same data everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray
Generator: TypeAlias = Callable[[np.random.Generator, int], Array]


def clusters(count: int, spread: float = 0.01) -> Generator:
    """``count`` tight groups around far centres: gaps in x~ are what makes the plan nearly a permutation of blocks."""

    def draw(rng: np.random.Generator, n: int) -> Array:
        centres = rng.permutation(10.0 * np.arange(count))
        return centres[rng.integers(count, size=n)] + spread * rng.standard_normal(n)

    return draw


def with_outlier(rng: np.random.Generator, n: int) -> Array:
    """One value a million times farther away than the rest is wide."""
    x = rng.standard_normal(n)
    x[rng.integers(n)] = 1e6
    return x


#: Name -> generator. Shapes of distribution on which ranks, sorts and solvers behave differently.
KINDS: dict[str, Generator] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "uniform": lambda rng, n: rng.random(n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "heavy_tailed": lambda rng, n: rng.standard_cauchy(n),
    "tied": lambda rng, n: np.round(rng.standard_normal(n), 1),
    "few_valued": lambda rng, n: rng.integers(0, 3, size=n).astype(float),
    "constant": lambda rng, n: np.full(n, rng.standard_normal()),
    "outlier": with_outlier,
    "clusters_2": clusters(2),
    "clusters_3": clusters(3),
    "clusters_5": clusters(5),
}

#: Name -> generator of weights that sum to one.
WEIGHTS: dict[str, Generator] = {
    "equal": lambda rng, n: np.full(n, 1.0 / n),
    "random": lambda rng, n: rng.dirichlet(np.ones(n)),
    "spiky": lambda rng, n: rng.dirichlet(np.full(n, 0.3)) * 0.9 + 0.1 / n,
}


def values(kind: str, n: int, seed: int = 0) -> Array:
    """One row of ``n`` values of a kind.

    >>> values("few_valued", 4, seed=1)
    array([1., 1., 2., 2.])
    """
    return KINDS[kind](np.random.default_rng(seed), n)


def weights(kind: str, n: int, seed: int = 0) -> Array:
    """``n`` positive weights that sum to one.

    >>> weights("equal", 4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    return WEIGHTS[kind](np.random.default_rng(seed), n)


def table(kinds: list[str], rows: int, n: int, seed: int = 0) -> Array:
    """(rows, n): the kinds in turn, each row drawn afresh.

    >>> table(["normal", "constant"], 5, 3).shape
    (5, 3)
    """
    rng = np.random.default_rng(seed)
    return np.stack([KINDS[kinds[r % len(kinds)]](rng, n) for r in range(rows)])


def each_kind(n: int, seed: int = 0) -> Iterator[tuple[str, Array]]:
    """Every kind once, with its name.

    >>> sorted(name for name, _ in each_kind(3)) == sorted(KINDS)
    True
    """
    for kind in KINDS:
        yield kind, values(kind, n, seed)
