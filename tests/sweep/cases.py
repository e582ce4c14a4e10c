"""A case of the sweep: one operator, its options, and rows of one kind, all drawn from one number.

Each part of a case has a random stream of its own, and rows are drawn one after the other. So the first rows of a case
are the same however many of them are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray
Random: TypeAlias = np.random.Generator

#: Operator -> share of the cases.
OPERATORS: dict[str, float] = {
    "soft_rank": 0.25,
    "soft_sort": 0.17,
    "soft_quantile": 0.12,
    "soft_median": 0.02,
    "soft_topk values": 0.14,
    "soft_topk mask": 0.02,
    "soft_topk_mask": 0.12,
    "soft_permutation": 0.06,
    "sort_with": 0.02,
    "quantile_normalize": 0.02,
    "transport ranks": 0.015,
    "transport sorted": 0.015,
    "smooth_transport ranks": 0.01,
    "kantorovich_rank": 0.01,
    "kantorovich_sort": 0.01,
}
EXACT = ("kantorovich_rank", "kantorovich_sort")  #: operators without entropy
ONTO_TARGETS = ("soft_rank", "soft_sort", "soft_permutation", "sort_with", "transport ranks", "transport sorted",
                "smooth_transport ranks", *EXACT)  # fmt: skip  # whose targets are the caller's
SELECTING = ("soft_quantile", "soft_median", "soft_topk values", "soft_topk mask", "soft_topk_mask")

LAYOUTS = ("plain", "transposed", "first", "middle", "strided", "offset", "expanded", "batched")
COTANGENTS = ("normal", "answer", "sparse", "positive", "sign", "one row")
DTYPES = {torch.float32: 0.7, torch.float16: 0.08, torch.bfloat16: 0.08, torch.float64: 0.14}
_MOST_ROWS = {"cpu": 512, "cuda": 4096}  #: in one case
_WORK = {"cpu": 2e6, "cuda": 6e7}  #: entries of plans in one case


# ---- kinds of rows


def _around(centres: Array, rng: Random, shape: tuple[int, int], spread: float) -> Array:
    which, where = rng.spawn(2)
    return centres[which.integers(len(centres), size=shape)] + spread * where.standard_normal(shape)


def _softmax(rng: Random, shape: tuple[int, int]) -> Array:
    powers = np.exp(2.0 * rng.standard_normal(shape))
    return powers / powers.sum(-1, keepdims=True)


def _with_outlier(rng: Random, shape: tuple[int, int]) -> Array:
    x = rng.standard_normal((shape[0], shape[1] + 1))
    x[:, 0] = 10.0 ** (2.0 + np.abs(2.0 * x[:, -1]))
    return x[:, :-1]


def _infinite(rng: Random, shape: tuple[int, int]) -> Array:
    x, u = np.split(rng.standard_normal((shape[0], 2, shape[1])), 2, axis=1)
    x, u = x[:, 0], u[:, 0]
    return np.where(u > 1.5, math.inf, np.where(u < -1.5, -math.inf, x))


def _scaled(low: float, high: float) -> Callable[[Random, tuple[int, int]], Array]:
    def draw(rng: Random, shape: tuple[int, int]) -> Array:
        x = rng.standard_normal((shape[0], shape[1] + 1))
        return x[:, :-1] * 10.0 ** (low + (high - low) * np.abs(np.tanh(x[:, -1:])))

    return draw


def _constant(rng: Random, shape: tuple[int, int]) -> Array:
    return np.repeat(np.round(rng.standard_normal((shape[0], 1)), 2), shape[1], axis=1)


#: Kind -> rows (R, n). Each draws the numbers of a row together, so that the first rows do not depend on R.
KINDS: dict[str, Callable[[Random, tuple[int, int]], Array]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.random(shape),
    "relu": lambda rng, shape: np.maximum(rng.standard_normal(shape), 0.0),
    "zeros and ones": lambda rng, shape: (rng.random(shape) < 0.5).astype(float),
    "softmax": _softmax,
    "lognormal": lambda rng, shape: np.exp(1.5 * rng.standard_normal(shape)),
    "clusters": lambda rng, shape: _around(np.arange(4.0), rng, shape, 0.01),
    "tight clusters": lambda rng, shape: _around(np.arange(3.0), rng, shape, 1e-5),
    "two far clusters": lambda rng, shape: _around(np.array([0.0, 100.0]), rng, shape, 0.1),
    "outlier": _with_outlier,
    "one decimal": lambda rng, shape: np.round(rng.standard_normal(shape), 1),
    "three levels": lambda rng, shape: rng.integers(3, size=shape).astype(float),
    "shifted": lambda rng, shape: 1000.0 + rng.standard_normal(shape),
    "heavy tails": lambda rng, shape: rng.standard_cauchy(shape),
    "sorted": lambda rng, shape: np.sort(rng.standard_normal(shape), axis=-1),
    "tiny": _scaled(-20.0, -6.0),
    "huge": _scaled(4.0, 20.0),
    "infinite": _infinite,
    "constant": _constant,
}
_ORDINARY_KINDS = 0.25  # of the cases are normal rows, the other kinds share the rest


# ---- a case


@dataclass(frozen=True)
class Case:
    """What is called, without the numbers."""

    seed: int
    number: int
    operator: str
    kind: str
    n: int
    eps: float
    dtype: torch.dtype
    layout: str
    cotangent: str
    squash: str | None
    options: dict[str, Any] = field(default_factory=dict)  #: drawn choices that ``Rows`` makes tensors of

    @property
    def m(self) -> int:
        """Number of targets."""
        if self.operator in SELECTING:
            k = self.options.get("k", 1)
            # Of ``soft_topk`` values and mask are found, whichever of the two is looked at.
            return min(k + 1, self.n) if self.operator.startswith("soft_topk ") else 3
        return self.options.get("m", self.n)

    @property
    def of_values(self) -> bool:
        """Whether answers are averages of values, in the unit of x."""
        return self.operator in ("soft_sort", "soft_quantile", "soft_median", "soft_topk values", "transport sorted",
                                 "kantorovich_sort")  # fmt: skip

    @property
    def exact(self) -> bool:
        return self.operator in EXACT

    def rows(self, device: str) -> int:
        """How many rows: fewer the larger their plans are."""
        levels = len(self.options["q"]) if isinstance(self.options.get("q"), tuple) else 1
        entries = self.n * self.m * levels + min(self.n, self.m) ** 3 / 30
        if self.operator == "soft_permutation":
            entries *= 3
        return max(1, min(_MOST_ROWS[device], int(_WORK[device] / entries)))

    def __str__(self) -> str:
        said = {"n": self.n, "eps": f"{self.eps:.3g}", "squash": self.squash, **self.options}
        options = ", ".join(f"{name}={value}" for name, value in said.items())
        dtype = str(self.dtype).removeprefix("torch.")
        return f"case {self.number}: {self.operator}({options}) of {dtype} {self.kind} rows, {self.layout}"


def stream(seed: int, number: int, name: str) -> Random:
    """The random numbers of one part of a case."""
    return np.random.default_rng([seed, number, *name.encode()])


def _one_of(rng: Random, shares: dict[Any, float]) -> Any:
    """A key, as often as its share says."""
    at = np.searchsorted(np.cumsum(list(shares.values())), rng.random() * sum(shares.values()), side="right")
    return list(shares)[min(int(at), len(shares) - 1)]


def _length(rng: Random, most: int) -> int:
    low, high = _one_of(rng, {(2, 20): 0.45, (20, 130): 0.35, (130, 512): 0.12, (512, 2049): 0.08})
    n = int(math.exp(rng.uniform(math.log(low), math.log(high))))
    if rng.random() < 0.1:  # lengths at which kernels change
        n = int(rng.choice([2, 3, 4, 8, 15, 16, 17, 20, 21, 32, 33, 63, 64, 65, 100, 127, 128, 129, 256, 257, 512]))
    return min(n, most)


def _entropy(rng: Random) -> float:
    kind = rng.random()
    if kind < 0.5:
        return float(rng.choice([1e-2, 1e-2, 1e-3, 1e-3, 1e-1, 1e-4]))
    low, high = (-4.0, 0.0) if kind < 0.85 else (-6.0, -4.0)
    return float(10.0 ** rng.uniform(low, high))


def draw(seed: int, number: int) -> Case:
    """The case of a number."""
    rng = stream(seed, number, "case")
    operator = _one_of(rng, OPERATORS)
    n = _length(rng, 100 if operator == "soft_permutation" else 2048)
    eps = _entropy(rng)
    dtype = _one_of(rng, DTYPES)
    kinds = {kind: (1 - _ORDINARY_KINDS) / (len(KINDS) - 1) for kind in KINDS} | {"normal": _ORDINARY_KINDS}
    kind = _one_of(rng, kinds)
    if dtype == torch.float16 and kind in ("tiny", "huge"):
        kind = "uniform"
    squash = _one_of(rng, {"sigmoid": 0.75, "arctan": 0.13, None: 0.12})
    if squash is None and kind not in ("uniform", "zeros and ones", "softmax", "infinite"):
        kind = _one_of(rng, {"uniform": 0.5, "zeros and ones": 0.2, "softmax": 0.2, "infinite": 0.1})
    layout = _one_of(rng, {each: 0.5 if each == "plain" else 0.5 / (len(LAYOUTS) - 1) for each in LAYOUTS})
    cotangent = _one_of(rng, dict.fromkeys(COTANGENTS, 1.0) | {"normal": 3.0})
    options = _options(rng, operator, n)
    return Case(seed, number, operator, kind, n, eps, dtype, layout, cotangent, squash, options)


def _options(rng: Random, operator: str, n: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    shared = {"none": 0.6, "shared": 0.12, "random": 0.12, "zeros": 0.1, "nearly equal": 0.03, "light": 0.03}
    options["weights"] = _one_of(rng, shared)
    options["mask"] = bool(rng.random() < 0.15)
    if operator in ("soft_topk values", "soft_topk mask", "soft_topk_mask"):
        options["largest"] = bool(rng.random() < 0.8)
    elif operator in ONTO_TARGETS:
        options["descending"] = bool(rng.random() < 0.2)
    if operator in ONTO_TARGETS and rng.random() < 0.5:
        counts = {2: 1.0, 3: 1.0, 4: 1.5, 5: 1.0, 1: 0.1, max(n // 2, 1): 1.0, min(2 * n, 2048): 0.5, 8: 0.5}
        options["m"] = int(_one_of(rng, counts))
        options["targets"] = _one_of(rng, {"counted": 0.4, "shared": 0.15, "random": 0.15, "default": 0.3})
        forms = {"equal": 0.4, "random": 0.25, "shared": 0.15, "zeros": 0.1, "single": 0.1}
        options["target_weights"] = "random" if options["targets"] == "default" else _one_of(rng, forms)
    if operator == "quantile_normalize":
        options["m"] = int(_one_of(rng, {n: 1.0, 5: 1.0, max(n // 2, 1): 1.0}))
    if operator in ("soft_quantile", "soft_median"):
        options["width"] = _one_of(rng, {None: 0.7, 0.25: 0.15, 1.0: 0.05, 0.01: 0.1})
    if operator == "soft_quantile":
        level = float(np.round(rng.random(), 3))
        options["q"] = _one_of(rng, {0.5: 0.3, 0.0: 0.1, 1.0: 0.1, level: 0.3, (0.0, level, 0.5, 1.0): 0.2})
    if operator in ("soft_topk values", "soft_topk mask"):
        few = {k: 1.0 for k in (1, 2, 3, 4, 5) if k <= n}
        options["k"] = int(_one_of(rng, few | {n: 0.4, max(n - 1, 1): 0.4, int(rng.integers(1, n + 1)): 1.5}))
    if operator == "soft_topk_mask":
        part = float(np.round(n * rng.random(), 2))
        whole = int(rng.integers(0, n + 1))
        options["k"] = _one_of(rng, {1: 1.0, whole: 2.0, part: 1.5, 0: 0.3, n: 0.3, min(3, n): 1.0, "each": 0.7})
    if operator in ("soft_rank", "soft_sort") and rng.random() < 0.03:
        options["eps"] = "each"
    return options


# ---- its numbers


@dataclass(frozen=True)
class Rows:
    """The numbers of a case, as rows: what is given for each value, for each row, and for all of them."""

    x: Tensor  #: (R, n) in the dtype of the case
    each_value: dict[str, Tensor]  #: (R, n)
    each_row: dict[str, Tensor]  #: (R,) or (R, m)
    shared: dict[str, Any]
    draws: Tensor  #: (R, n * m or less) numbers that cotangents are made of

    def some(self, which: Tensor) -> Rows:
        chosen = ({name: t[which] for name, t in each.items()} for each in (self.each_value, self.each_row))
        return Rows(self.x[which], *chosen, self.shared, self.draws[which])


def rows_of(case: Case, count: int, device: str) -> Rows:
    """The first rows of a case."""

    def numbers(name: str) -> Random:
        return stream(case.seed, case.number, name)

    def tensor(array: Array, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(dtype).to(device)

    n, m, options = case.n, case.m, case.options
    with np.errstate(over="ignore"):
        x = KINDS[case.kind](numbers("x"), (count, n))
    x = tensor(x, case.dtype)
    if case.layout == "expanded":
        x = x[:1].expand(count, n)
    each_value: dict[str, Tensor] = {}
    each_row: dict[str, Tensor] = {}
    shared: dict[str, Any] = {}

    weights = _weights(options["weights"], numbers("weights"), count, n)
    if weights is not None and options["weights"] == "shared":
        shared["weights"] = tensor(weights[0])
    elif weights is not None:
        each_value["weights"] = tensor(weights)
    if options["mask"]:
        kept = numbers("mask").random((count, n + 1))
        each_value["mask"] = tensor(kept[:, :-1] < 0.3 + 0.7 * kept[:, -1:], torch.bool)
        x = torch.where(each_value["mask"], x, torch.nan) if case.number % 2 else x
        if "weights" in each_value:  # a row whose values all weigh nothing is an error
            there = torch.where(each_value["mask"], each_value["weights"], 0.0).any(-1, keepdim=True)
            each_value["weights"] = torch.where(there, each_value["weights"], 1.0)
    for name in ("largest", "descending"):
        if name in options:
            shared[name] = options[name]
    if options.get("targets") == "counted" and options["target_weights"] == "equal":
        shared["num_targets"] = m
    elif options.get("targets") in ("shared", "random"):
        steps = numbers("targets").random((count, m)) + 0.05
        places = (steps.cumsum(-1) - 0.5 * steps) / steps.sum(-1, keepdims=True)
        if options["targets"] == "shared":
            shared["targets"] = tensor(places[0])
        else:
            each_row["targets"] = tensor(places)
    if options.get("target_weights", "equal") != "equal":
        b = numbers("target_weights").random((count, m)) + 0.05
        if options["target_weights"] == "zeros":
            b = np.where(np.arange(m) % 3 == 1, 0.0, b)
        if options["target_weights"] == "shared":
            shared["target_weights"] = tensor(b[0])
        else:
            each_row["target_weights"] = tensor(
                b, torch.float32 if options["target_weights"] == "single" else torch.float64
            )
    if case.operator == "sort_with":
        each_value["values"] = tensor(numbers("payload").standard_normal((count, n)), case.dtype)
    if case.operator == "quantile_normalize":
        each_row["reference"] = tensor(numbers("payload").standard_normal((count, m)), case.dtype)
    for name in ("q", "width", "k"):
        if name in options:
            shared[name] = options[name]
    if isinstance(shared.get("q"), tuple):
        shared["q"] = list(shared["q"])
    if options.get("k") == "each":
        del shared["k"]
        each_row["k"] = tensor(n * numbers("k").random(count))
    if not case.exact:
        shared["eps"], shared["squash"] = case.eps, case.squash
        if options.get("eps") == "each":
            del shared["eps"]
            each_row["eps"] = tensor(case.eps * (0.5 + numbers("eps").random(count)))
    draws = tensor(
        numbers("cotangent").standard_normal((count, n * m if case.operator == "soft_permutation" else n + m))
    )
    return Rows(x, each_value, each_row, shared, draws)


def _weights(form: str, rng: Random, count: int, n: int) -> Array | None:
    if form == "none":
        return None
    a = rng.random((count, n)) + 0.05
    if form == "zeros":  # at least one value weighs something
        return np.where((a < 0.4) & (np.arange(n) > 0), 0.0, a)
    if form == "nearly equal":
        return 1.0 + 1e-8 * a
    if form == "light":
        return np.where((a < 0.3) & (np.arange(n) > 0), 1e-7 * a, a)
    return a


def cotangent_of(case: Case, answer: Tensor, draws: Tensor) -> Tensor:
    """What the gradient of an answer (R, W) is taken against, in its dtype."""
    R, width = answer.shape
    c = draws[:, :width] if width <= draws.shape[1] else draws.repeat(1, -(-width // draws.shape[1]))[:, :width]
    if case.cotangent == "answer":
        size = torch.where(answer.isfinite(), answer, 0.0).double().abs().amax(-1, keepdim=True)
        c = torch.where(answer.isfinite(), answer, 0.0).double() / torch.where(size > 0, size, 1.0)
    elif case.cotangent == "sparse":
        c = torch.where(torch.arange(width, device=c.device) == (draws[:, -1:].abs() * 1e6).long() % width, c, 0.0)
    elif case.cotangent == "positive":
        c = c.abs()
    elif case.cotangent == "sign":
        c = c.sign()
    elif case.cotangent == "one row":
        c = torch.where((torch.arange(R, device=c.device) % 3 == 0).unsqueeze(-1), c, 0.0)
    return c.to(answer.dtype)
