"""The cells of the comparison: a task and a shape, its values, its hard answer, and how soft an answer is.

NumPy only: contestants of every framework draw the same values from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Task: TypeAlias = Literal[
    "rank", "quantile", "topk", "sort", "permutation", "rank64", "rank_weights", "rank_eps", "rank_cost1",
    "rank_cost1.5", "sort_with", "normalize", "spearman", "ndcg",
]  # fmt: skip
Array: TypeAlias = NDArray[Any]

LEVEL = 0.5  #: of every quantile
K = 5  #: of every top-k mask
GRADES = 4  #: of relevance, from 0 up

_TITLES: dict[Task, str] = {
    "rank": "soft rank",
    "quantile": f"quantile {LEVEL:g}",
    "topk": f"top-{K} mask",
    "sort": "soft sort",
    "permutation": "soft permutation",
    "rank64": "soft rank, float64",
    "rank_weights": "soft rank, weights learned",
    "rank_eps": "soft rank, eps learned",
    "rank_cost1": "soft rank, cost 1",
    "rank_cost1.5": "soft rank, cost 1.5",
    "sort_with": "sort with",
    "normalize": "quantile normalize",
    "spearman": "Spearman loss",
    "ndcg": "NDCG loss",
}
#: Tasks whose peers are tuned to be as soft as another task is.
_TUNED_AS: dict[Task, Task] = {
    "rank64": "rank", "rank_weights": "rank", "rank_eps": "rank", "rank_cost1": "rank", "rank_cost1.5": "rank",
    "spearman": "rank", "ndcg": "rank", "sort_with": "sort", "normalize": "rank",
}  # fmt: skip
_ONE_NUMBER = ("quantile", "spearman", "ndcg")  #: a row
_VALUES = ("quantile", "sort", "sort_with", "normalize")  #: answers in the unit of the values


@dataclass(frozen=True)
class Cell:
    """A task on (batch, n) standard normal values, in float32 unless the task says otherwise."""

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
        return (8 if self.task == "rank64" else 4) * self.batch * self.n

    def values(self) -> Array:
        x = np.random.default_rng([self.batch, self.n]).standard_normal((self.batch, self.n), dtype=np.float32)
        return x.astype(np.float64) if self.task == "rank64" else x

    def cotangent(self) -> Array:
        """What the gradient is taken along: of the shape of the answer."""
        shape: tuple[int, ...] = (self.batch,) if self.task in _ONE_NUMBER else (self.batch, self.n)
        if self.task == "permutation":
            shape = (self.batch, self.n, self.n)
        v = np.random.default_rng([self.batch, self.n, 1]).standard_normal(shape, dtype=np.float32)
        return v.astype(np.float64) if self.task == "rank64" else v

    def scale(self, x: Array) -> Array | float:
        """What an error of the answer is a fraction of: n for ranks, the spread of a row for values."""
        if self.task in _VALUES:
            return x.std(-1, keepdims=self.task not in _ONE_NUMBER)
        return float(self.n) if self.task.startswith("rank") else 1.0

    @property
    def tuned_as(self) -> Task:
        """The task whose softness peers are tuned to."""
        return _TUNED_AS.get(self.task, self.task)

    def sample(self, *, small: bool) -> Cell:
        """A smaller cell of the same kind, on which a contestant's softness is tuned: about a thousand values.

        How soft a top-k mask is depends on n, so that it keeps its n, unless ``small`` (for matrices, n by n) forbids.
        """
        n = self.n if self.task == "topk" and not small else min(self.n, 1000)
        return Cell(self.tuned_as, max(1, 1000 // n), n)

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
                f"a cell is TASK-BxN with numbers B and N (N > {K} for topk), such as rank-128x1000, and TASK one of "
                f"{', '.join(_TITLES)}, got {key!r}."
            )
        return Cell(task, batch, n)


CELLS = tuple(
    Cell.parse(key)
    for key in (
        "rank-128x10", "rank-128x100", "rank-512x100", "rank-1x1000", "rank-128x1000", "rank-1x1e4", "rank-16x1e4",
        "rank-1x1e5", "rank-1x1e6", "quantile-64x512", "quantile-1x1e6", "topk-128x1000", "topk-128x1e4",
        "sort-128x100", "sort-1x1000", "sort-128x1000", "sort-1x1e4", "sort-16x1e4", "sort-1x1e6",
        "permutation-128x20", "permutation-128x100", "rank64-128x100",
        "rank_weights-128x100", "rank_eps-128x100", "rank_cost1-128x100", "rank_cost1.5-128x100", "sort_with-128x100",
        "normalize-128x100", "spearman-128x100", "ndcg-128x100",
    )
)  # fmt: skip


def _power(n: int) -> str:
    exponent = len(str(n)) - 1
    return f"10^{exponent}" if exponent >= 4 and n == 10**exponent else str(n)


def companion(task: str, batch: int, n: int) -> Array:
    """What goes with the values, constant: payloads, references, targets or grades.

    The first rows are the same for any number of rows.
    """
    other = np.random.default_rng([n, 2]).standard_normal((batch, n), dtype=np.float32)
    return np.clip(np.floor(other + 2.0), 0.0, GRADES - 1.0) if task == "ndcg" else other


def softness(task: Task, x: Array, answer: Array, gradient: Array | None) -> float:
    """How far an answer is from the hard one, a number that all relaxations have.

    Ranks: the mean absolute difference from hard ranks, over n. Sorted values: the same over the spread of the row.
    Permutations: the part of each row that is not at the right value. Top-k masks: the mass that is not where the hard
    mask has it, over k. Quantiles, whose value says little when values are symmetric: the share of the values that the
    gradient is spread over, (sum abs g)^2 / (n sum g^2), since a hard quantile has a gradient at one or two. Other
    tasks have no softness of their own (nan).
    """
    if task == "rank":
        places = x.argsort(-1).argsort(-1) + 1
        return float(np.abs(answer - places).mean() / x.shape[-1])
    if task == "sort":
        return float((np.abs(answer - np.sort(x, -1)).mean(-1) / x.std(-1)).mean())
    if task == "permutation":
        return float(1.0 - np.take_along_axis(answer, x.argsort(-1)[..., None], -1).mean())
    if task == "topk":
        hard = x >= np.sort(x, -1)[:, -K, None]
        return float(np.abs(answer - hard).sum(-1).mean() / K)
    if task != "quantile":
        return float("nan")
    if gradient is None:
        raise ValueError("the softness of a quantile is measured by its gradient, which is missing")
    g = np.abs(gradient.astype(np.float64))
    with np.errstate(invalid="ignore"):
        return float((g.sum(-1) ** 2 / (x.shape[-1] * np.square(g).sum(-1))).mean())


def relative(a: Array, b: Array) -> float:
    """The largest of the rows' relative differences, in Euclidean norms, of ``a`` from the truth ``b``."""
    off = np.linalg.norm(a.astype(np.float64) - b, axis=-1)
    return float((off / np.maximum(np.linalg.norm(b, axis=-1), 1e-300)).max())
