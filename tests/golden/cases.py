"""The cases: every operator, from 1 to 20,000 values, at every size at which another implementation answers.

A case spells out every option of its operator, so that a default that changes later changes no case.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

ALL_EPS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is called. ``None`` for an option that is not given; forms such as "random" are made by ``calls``."""

    operator: str
    n: int
    rows: int = 2
    kind: str = "normal"
    dtype: str = "float32"
    eps: float = 1e-2
    eps_form: str = "number"  #: or "scalar", "each": a tensor for all rows, or one number a row
    cost: float | str = 2  #: or "huber"
    squash: str | None = "sigmoid"  #: or "softsign", a function of torch
    backend: str = "auto"
    down: bool = False  #: ``descending``, or the smallest in place of the largest
    weights: str | None = None  #: "random", "zeros"
    mask: bool = False
    num_targets: int | None = None
    targets: int | None = None  #: so many targets that are not equally spaced
    target_weights: str | None = None  #: "random", "zeros"
    k: float = 1
    q: float | tuple[float, ...] = 0.5
    width: float | None = None
    of: tuple[str, ...] = ("x",)  #: gradients in these

    @property
    def name(self) -> str:
        """The operator, the number of values, and whatever is not ordinary."""
        said = [self.operator, f"n={self.n}", f"eps={self.eps:g}"]
        ordinary = {field.name: field.default for field in fields(self)}
        for name, usual in ordinary.items():
            value = getattr(self, name)
            if name not in ("operator", "n", "eps") and value != usual:
                shown = "+".join(value) if name == "of" else value
                said.append(f"{name}={shown}".replace("num_targets", "m"))
        return ", ".join(said)


def _rows(n: int) -> int:
    return 1 if n >= 2000 else 2


def _sizes(operator: str, sizes: tuple[int, ...], eps: tuple[float, ...], **options: Any) -> Iterator[Case]:
    for n in sizes:
        for each in eps:
            yield Case(operator=operator, n=n, eps=each, rows=_rows(n), **options)


def _ranks() -> Iterator[Case]:
    sizes = (1, 2, 3, 5, 10, 16, 20, 21, 32, 64, 100, 128, 129, 192, 193, 257, 512, 1000, 2048)
    yield from _sizes("soft_rank", sizes, ALL_EPS)
    yield from _sizes("soft_rank", (2049, 5000, 20_000), (1e-3, 1e-2, 1.0))
    yield Case(operator="soft_rank", n=10, rows=17)
    yield Case(operator="soft_rank", n=100, rows=17)
    yield Case(operator="soft_rank", n=100, down=True)
    yield Case(operator="soft_rank", n=100, backend="numba")
    yield Case(operator="soft_rank", n=100, backend="torch")


def _sorts() -> Iterator[Case]:
    yield from _sizes("soft_sort", (1, 2, 5, 10, 16, 20, 21, 64, 100, 192, 193, 300), ALL_EPS)
    yield from _sizes("soft_sort", (1000,), (1e-3, 1e-2, 1.0))
    yield from _sizes("soft_sort", (5000,), (1e-2, 1.0))
    yield from _sizes("soft_sort", (20_000,), (1e-2,))
    for m in (1, 2, 3, 4, 5, 10, 50):
        for n in (8, 20, 100, 1000):
            yield from _sizes("soft_sort", (n,), (1e-3, 1e-2), num_targets=m)
    yield from _sizes("soft_sort", (20_000,), (1e-3, 1e-2), num_targets=3)
    yield Case(operator="soft_sort", n=10, rows=17)
    yield Case(operator="soft_sort", n=100, down=True)
    yield Case(operator="soft_sort", n=100, backend="torch")


def _selections() -> Iterator[Case]:
    sizes = (1, 2, 5, 10, 20, 21, 64, 100, 512, 2048)
    yield from _sizes("soft_quantile", sizes, ALL_EPS, q=0.3)
    yield from _sizes("soft_quantile", (5000, 20_000), (1e-3, 1e-2), q=0.3)
    for n in (10, 100, 1000):
        yield from _sizes("soft_quantile", (n,), (1e-3, 1e-2), q=(0.0, 0.25, 0.5, 1.0))
        yield Case(operator="soft_quantile", n=n, q=0.5, width=0.25)
        yield from _sizes("soft_median", (n,), (1e-3, 1e-2))
        for k in (1, 2, 3, 5):
            yield from _sizes("soft_topk values", (n,), (1e-3, 1e-2), k=k)
        yield from _sizes("soft_topk mask", (n,), (1e-2,), k=3)
        yield Case(operator="soft_topk values", n=n, k=2, down=True)
        yield from _sizes("soft_topk_mask", (n,), (1e-2,), k=0.37 * n, kind="lognormal")
        yield Case(operator="soft_topk_mask", n=n, k=3, down=True)
    yield from _sizes("soft_topk_mask", (2, 3, 5, 20, 64), (1e-3, 1e-2, 1.0), k=1)
    yield from _sizes("soft_topk_mask", (10, 100, 2048, 20_000), ALL_EPS, k=5)
    yield from _sizes("soft_topk_mask", (10,), (1e-2,), k=0)
    yield from _sizes("soft_topk_mask", (10,), (1e-2,), k=10)
    yield from _sizes("soft_topk values", (20_000,), (1e-2,), k=3)


def _others() -> Iterator[Case]:
    yield from _sizes("soft_permutation", (1, 2, 5, 10, 20, 50, 100, 128), (1e-3, 1e-2, 1e-1))
    yield from _sizes("soft_permutation", (129,), (1e-2,))
    yield Case(operator="soft_permutation", n=20, num_targets=5)
    for n in (5, 20, 100):
        yield from _sizes("sort_with", (n,), (1e-3, 1e-2), of=("x", "values"))
        yield from _sizes("quantile_normalize", (n,), (1e-3, 1e-2), of=("x", "reference"))
        for read in ("ranks", "sorted", "matrix"):
            yield from _sizes(f"transport {read}", (n,), (1e-3, 1e-2))
        for loss in LOSSES:
            yield Case(operator=loss, n=n, eps=1e-2)
        yield Case(operator="spearman_loss", n=n, eps=1e-3)
        yield Case(operator="ndcg_loss", n=n, eps=1e-3)
        yield Case(operator="kantorovich_rank", n=n, kind="tenths")
        yield Case(operator="kantorovich_sort", n=n, num_targets=3)
    yield from _sizes("smooth_transport ranks", (100, 20_000), (1e-3, 1e-2))
    yield from _sizes("smooth_transport sorted", (100, 20_000), (1e-3, 1e-2))
    yield Case(operator="quantile_normalize", n=100, targets=30)


LOSSES = (
    "spearman_loss", "kendall_loss", "ndcg_loss", "average_precision_loss", "topk_loss", "trimmed_loss",
    "permutation_cross_entropy", "soft_conformal_quantile",
)  # fmt: skip
KINDS = (
    "uniform", "relu", "zeros and ones", "softmax", "lognormal", "clusters", "two far clusters", "outlier", "tenths",
    "three levels", "shifted", "heavy tails", "sorted", "tiny", "huge", "infinite", "constant",
)  # fmt: skip


def _kinds() -> Iterator[Case]:
    """Rows that fast kernels reject are among them."""
    for i, kind in enumerate(KINDS):
        small, large = (1e-3, 1e-2) if i % 2 else (1e-2, 1e-3)
        for n, eps in ((10, small), (100, large), (300, small)):
            yield Case(operator="soft_rank", n=n, eps=eps, kind=kind)
        yield Case(operator="soft_rank", n=3000, eps=1e-2, rows=1, kind=kind)
        yield Case(operator="soft_sort", n=10, eps=large, kind=kind)
        yield Case(operator="soft_sort", n=100, eps=small, kind=kind)
        yield Case(operator="soft_quantile", n=100, eps=large, kind=kind)
        yield Case(operator="soft_topk_mask", n=100, eps=small, k=3, kind=kind)
        yield Case(operator="soft_topk values", n=20, eps=large, k=3, kind=kind)
        yield Case(operator="soft_permutation", n=20, eps=small, kind=kind)


_COMMON = ("soft_rank", "soft_sort", "soft_quantile", "soft_topk_mask")


def _options() -> Iterator[Case]:
    """One option at a time, on the operators that most calls are of."""
    for operator in _COMMON:
        k = {"k": 3} if operator == "soft_topk_mask" else {}
        for n in (10, 100, 1000):
            at = Case(operator=operator, n=n, **k)
            yield from (replace(at, squash=squash, kind="uniform") for squash in ("arctan", None))
            yield replace(at, weights="random")
            yield replace(at, mask=True)
            yield from (replace(at, dtype=dtype) for dtype in ("float64", "float16", "bfloat16"))
            if n < 1000:
                yield replace(at, weights="zeros", mask=True)
                yield replace(at, weights="random", eps=1e-3)
                yield replace(at, squash="softsign")
                yield replace(at, cost=1)
                yield replace(at, cost=1.5)
                yield replace(at, cost="huber")
                yield replace(at, eps_form="each")
                yield replace(at, dtype="float64", eps=1e-3)
                yield replace(at, weights="random", of=("x", "weights"))
                yield replace(at, eps_form="scalar", of=("x", "eps"))
                yield replace(at, dtype="float64", weights="random", eps_form="scalar", of=("x", "weights", "eps"))
    for operator in ("soft_rank", "soft_sort", "soft_permutation"):
        for n in (10, 50):
            at = Case(operator=operator, n=n)
            for m in (2, 3, 4, 5, 20):
                yield replace(at, targets=m)
                yield replace(at, targets=m, target_weights="random")
            yield replace(at, target_weights="random")
            yield replace(at, targets=6, target_weights="zeros", down=True)
            yield replace(at, targets=5, target_weights="random", of=("x", "targets", "target_weights"))
    for operator in ("sort_with", "transport ranks", "spearman_loss"):
        yield Case(operator=operator, n=20, weights="random")
        yield Case(operator=operator, n=20, dtype="float64", cost=1.5)
    for operator in ("soft_quantile", "soft_topk values", "soft_topk_mask"):
        yield Case(operator=operator, n=20, k=2, weights="zeros")
        yield Case(operator=operator, n=1000, k=2, eps=1e-3, dtype="bfloat16")


@functools.cache
def cases() -> dict[str, Case]:
    """By name."""
    found = [*_ranks(), *_sorts(), *_selections(), *_others(), *_kinds(), *_options()]
    return {case.name: case for case in found}
