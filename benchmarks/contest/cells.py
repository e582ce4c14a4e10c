"""The cells of the comparison: a task and a shape, its values, its hard answer, and how soft an answer is.

NumPy only: contestants of every framework draw the same values from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Task: TypeAlias = Literal["rank", "quantile", "topk"]
Array: TypeAlias = NDArray[Any]

LEVEL = 0.5  #: of every quantile
K = 5  #: of every top-k mask

_TITLES: dict[Task, str] = {"rank": "soft rank", "quantile": f"quantile {LEVEL:g}", "topk": f"top-{K} mask"}


@dataclass(frozen=True)
class Cell:
    """A task on (batch, n) standard normal values in float32."""

    task: Task
    batch: int
    n: int

    @property
    def key(self) -> str:
        """How a cell is named on the command line and in files."""
        return f"{self.task}-{self.batch}x{self.n}"

    @property
    def title(self) -> str:
        """How a cell is named in a table."""
        return f"{_TITLES[self.task]}, {self.batch} x {_power(self.n)}"

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return 4 * self.batch * self.n

    def values(self) -> Array:
        return np.random.default_rng([self.batch, self.n]).standard_normal((self.batch, self.n), dtype=np.float32)

    def cotangent(self) -> Array:
        """What the gradient is taken along: of the shape of the answer."""
        shape = (self.batch,) if self.task == "quantile" else (self.batch, self.n)
        return np.random.default_rng([self.batch, self.n, 1]).standard_normal(shape, dtype=np.float32)

    def scale(self, x: Array) -> Array | float:
        """What an error of the answer is a fraction of: n for ranks, the spread of a row for quantiles."""
        return float(self.n) if self.task == "rank" else x.std(-1) if self.task == "quantile" else 1.0

    def sample(self, *, small: bool) -> Cell:
        """A smaller cell of the same kind, on which a contestant's softness is tuned: about a thousand values.

        How soft a top-k mask is depends on n, so that it keeps its n, unless ``small`` (for matrices, n by n) forbids.
        """
        n = self.n if self.task == "topk" and not small else min(self.n, 1000)
        return Cell(self.task, max(1, 1000 // n), n)

    @staticmethod
    def parse(key: str) -> Cell:
        """The inverse of ``key``; 10^6 may be written 1e6."""
        try:
            task, _, shape = key.partition("-")
            batch, n = (int(float(size)) for size in shape.split("x"))
        except ValueError:
            task, batch, n = "", 0, 0
        if task not in _TITLES or batch < 1 or n < 2 or (task == "topk" and n <= K):
            raise ValueError(
                f"a cell is rank-BxN, quantile-BxN or topk-BxN (N > {K}) with numbers B and N, such as rank-128x1000, "
                f"got {key!r}."
            )
        return Cell(task, batch, n)


CELLS = tuple(
    Cell.parse(key)
    for key in (
        "rank-128x10", "rank-128x100", "rank-512x100", "rank-1x1000", "rank-128x1000", "rank-1x1e4", "rank-16x1e4",
        "rank-1x1e5", "rank-1x1e6", "quantile-64x512", "quantile-1x1e6", "topk-128x1000", "topk-128x1e4",
    )
)  # fmt: skip


def _power(n: int) -> str:
    exponent = len(str(n)) - 1
    return f"10^{exponent}" if exponent >= 4 and n == 10**exponent else str(n)


def softness(task: Task, x: Array, answer: Array, gradient: Array | None) -> float:
    """How far an answer is from the hard one, a number that all relaxations have.

    Ranks: the mean absolute difference from hard ranks, over n. Top-k masks: the mass that is not where the hard mask
    has it, over k. Quantiles, whose value says little when values are symmetric: the share of the values that the
    gradient is spread over, (sum abs g)^2 / (n sum g^2), since a hard quantile has a gradient at one or two.
    """
    if task == "rank":
        places = x.argsort(-1).argsort(-1) + 1
        return float(np.abs(answer - places).mean() / x.shape[-1])
    if task == "topk":
        hard = x >= np.sort(x, -1)[:, -K, None]
        return float(np.abs(answer - hard).sum(-1).mean() / K)
    if gradient is None:
        raise ValueError("the softness of a quantile is measured by its gradient, which is missing")
    g = np.abs(gradient.astype(np.float64))
    with np.errstate(invalid="ignore"):
        return float((g.sum(-1) ** 2 / (x.shape[-1] * np.square(g).sum(-1))).mean())


def relative(a: Array, b: Array) -> float:
    """The largest of the rows' relative differences, in Euclidean norms, of ``a`` from the truth ``b``."""
    off = np.linalg.norm(a.astype(np.float64) - b, axis=-1)
    return float((off / np.maximum(np.linalg.norm(b, axis=-1), 1e-300)).max())
