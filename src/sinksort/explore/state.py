"""What is asked of the playground, checked, and as the query of a URL.

``x=0.38,4,-2&eps=0.01`` is all there is to a state: x and a (values and their weights), eps, m and b (the number of
targets and their weights), cost, squash, and ``gradient`` (``rank-3`` or ``sorted-1``). What is left out has its
default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlencode

import numpy as np

from ..core.costs import Cost, Huber

_T = TypeVar("_T")

MOST = 200  # values, or targets: more than can be told apart on a screen
LARGEST = 1e6  # of a value, so that squares of differences stay far from the ends of arithmetic
EPS_RANGE = (1e-4, 10.0)

COSTS: dict[str, tuple[str, Cost]] = {
    "2": ("squared distance (default)", 2),
    "1": ("distance", 1),
    "1.5": ("distance to the power 1.5", 1.5),
    "3": ("distance to the power 3", 3),
    "huber": ("Huber, delta = 0.1", Huber(0.1)),
}
SQUASHES: dict[str, str] = {
    "sigmoid": "standardise, then sigmoid (default)",
    "arctan": "standardise, then arctan",
    "none": "none: values are in [0, 1] already",
}
READS: dict[str, str] = {"rank": "soft rank of value", "sorted": "soft sorted at target"}


class StateError(ValueError):
    """What was asked cannot be shown; the message is for the person at the page."""


@dataclass(frozen=True, kw_only=True)
class State:
    """A checked state. Weights are any non-negative numbers; None is equal weights."""

    x: tuple[float, ...]
    weights: tuple[float, ...] | None = None
    eps: float = 1e-2
    num_targets: int | None = None  #: None: as many as values
    target_weights: tuple[float, ...] | None = None
    cost: str = "2"
    squash: str = "sigmoid"
    reads: str = "rank"  #: whose gradient is shown: the soft rank of a value, or the soft sorted value at a target
    index: int = 0  #: of that value or target

    def __post_init__(self) -> None:
        _require_count(len(self.x), "values x")
        _require_count(self.m, "targets m")
        if not all(abs(v) <= LARGEST for v in self.x):  # NaN is not small either
            raise StateError(f"values x: each must be a number between -{LARGEST:,.0f} and {LARGEST:,.0f}.")
        _require_weights(self.weights, self.n, "weights a", "values")
        _require_weights(self.target_weights, self.m, "target weights b", "targets")
        low, high = EPS_RANGE
        if not low <= self.eps <= high:
            raise StateError(f"eps: expected a number from {low:g} to {high:g}, got {self.eps:g}.")
        for name, given, known in (
            ("cost", self.cost, COSTS),
            ("squash", self.squash, SQUASHES),
            ("gradient", self.reads, READS),
        ):
            if given not in known:
                raise StateError(f"{name}: expected one of {', '.join(known)}, got {given!r}.")
        many = self.n if self.reads == "rank" else self.m
        if not 0 <= self.index < many:
            raise StateError(
                f"gradient: expected {self.reads}-1 to {self.reads}-{many}, got {self.reads}-{self.index + 1}."
            )

    @property
    def n(self) -> int:
        return len(self.x)

    @property
    def m(self) -> int:
        return self.n if self.num_targets is None else self.num_targets


def _require_count(count: int, name: str) -> None:
    if count < 1:
        raise StateError(f"{name}: expected at least one.")
    if count > MOST:
        raise StateError(
            f"{name}: at most {MOST} can be told apart on a screen, got {count:,}; "
            "the library itself takes millions, in Python."
        )


def _require_weights(weights: tuple[float, ...] | None, count: int, name: str, of: str) -> None:
    if weights is None:
        return
    if len(weights) != count:
        raise StateError(f"{name}: expected {count} numbers, one for each of the {of}, got {len(weights)}.")
    if not all(0 <= w <= LARGEST for w in weights):
        raise StateError(f"{name}: expected numbers from 0 to {LARGEST:,.0f}.")
    if sum(weights) <= 0:
        raise StateError(f"{name}: at least one must be larger than 0.")


#: The README's example, and where a page without a query begins.
DEFAULT = State(x=(0.38, 4.0, -2.0, 6.0, -9.0))


# ---- from text, and to it


def numbers(text: str, name: str) -> tuple[float, ...]:
    """Numbers with commas, semicolons or blanks between them."""
    words = text.replace(",", " ").replace(";", " ").split()
    if len(words) > 10 * MOST:
        raise StateError(f"{name}: at most {MOST} can be told apart on a screen, got {len(words):,}.")
    found = []
    for word in words:
        try:
            found.append(float(word))
        except ValueError:
            shown = word if len(word) <= 20 else word[:20] + "..."
            raise StateError(f"{name}: '{shown}' is not a number; write them as in 0.3, 1, 2.5.") from None
        if not math.isfinite(found[-1]):
            raise StateError(f"{name}: '{word}' is not a finite number, and has no place on the line.")
    return tuple(found)


def weights(text: str, name: str) -> tuple[float, ...] | None:
    """Numbers, or None for an empty text: equal weights."""
    return numbers(text, name) or None


def as_text(values: tuple[float, ...] | None) -> str:
    """What ``numbers`` reads; six digits are more than a screen shows."""
    return ", ".join(f"{v:.6g}" for v in values or ())


def from_query(query: Mapping[str, str]) -> tuple[State, list[str]]:
    """The state of a URL, and what had to be said about it: a bad part becomes the default, and the rest is kept."""
    said = [f"'{key[:20]}' is no part of a state; known are {', '.join(_KEYS)}." for key in query if key not in _KEYS]

    def read(key: str, reader: Callable[[str], _T], default: _T) -> _T:
        if key not in query:
            return default
        try:
            return reader(query[key])
        except StateError as error:
            said.append(str(error))
            return default

    def changed(state: State, **changes: Any) -> State:
        try:
            return replace(state, **changes)
        except StateError as error:
            said.append(str(error))
            return state

    # One after the other, so that each meets those before it: a length is checked against the values that were kept.
    state = changed(DEFAULT, x=read("x", lambda text: numbers(text, "values x"), DEFAULT.x))
    state = changed(state, num_targets=read("m", lambda text: _whole(text, "targets m"), None))
    state = changed(state, weights=read("a", lambda text: weights(text, "weights a"), None))
    state = changed(state, target_weights=read("b", lambda text: weights(text, "target weights b"), None))
    state = changed(state, eps=read("eps", _number, DEFAULT.eps))
    state = changed(state, cost=query.get("cost", DEFAULT.cost))
    state = changed(state, squash=query.get("squash", DEFAULT.squash))
    reads, index = read("gradient", _gradient, (DEFAULT.reads, DEFAULT.index))
    return changed(state, reads=reads, index=index), said


_KEYS = ("x", "a", "eps", "m", "b", "cost", "squash", "gradient")


def to_query(state: State) -> str:
    """The query of the URL of a state, without what is the default."""
    parts = {
        "x": _short(state.x),
        "a": _short(state.weights),
        "eps": f"{state.eps:.4g}",
        "m": "" if state.num_targets is None else str(state.num_targets),
        "b": _short(state.target_weights),
        "cost": "" if state.cost == DEFAULT.cost else state.cost,
        "squash": "" if state.squash == DEFAULT.squash else state.squash,
        "gradient": "" if (state.reads, state.index) == ("rank", 0) else f"{state.reads}-{state.index + 1}",
    }
    return urlencode({key: text for key, text in parts.items() if text}, safe=",")


def _short(values: tuple[float, ...] | None) -> str:
    return as_text(values).replace(" ", "")


def _number(text: str) -> float:
    (number, *more) = numbers(text, "eps") or (math.nan,)
    if more:
        raise StateError(f"eps: expected one number, got {1 + len(more)}.")
    return number


def _whole(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise StateError(f"{name}: expected a whole number, got '{text[:20]}'.") from None


def _gradient(text: str) -> tuple[str, int]:
    reads, _, count = text.partition("-")
    return reads, _whole(count, "gradient") - 1


# ---- changes, each of which leaves a state that can be shown


def with_values(state: State, x: tuple[float, ...]) -> State:
    """Other values, perhaps more or fewer: weights are cut, or continued with their average."""
    m = len(x) if state.num_targets is None else state.m
    many = len(x) if state.reads == "rank" else m
    return replace(
        state,
        x=x,
        weights=_fitted(state.weights, len(x)),
        target_weights=_fitted(state.target_weights, m),
        index=max(0, min(state.index, many - 1)),
    )


def with_value(state: State, i: int, value: float) -> State:
    """Value ``i`` somewhere else."""
    return replace(state, x=(*state.x[:i], value, *state.x[i + 1 :]))


def resized(state: State, n: int) -> State:
    """``n`` values: the first ones, and new ones that look like them (the same whenever it is done)."""
    _require_count(n, "values x")
    mean, spread = float(np.mean(state.x)), float(np.std(state.x)) or 1.0
    drawn = mean + spread * np.random.default_rng(7).standard_normal(MOST)
    return with_values(state, (*state.x, *(round(float(v), 4) for v in drawn[state.n :]))[:n])


def with_targets(state: State, m: int) -> State:
    """``m`` targets; as many as values means that they stay as many."""
    _require_count(m, "targets m")
    index = min(state.index, m - 1) if state.reads == "sorted" else state.index
    b = _fitted(state.target_weights, m)
    return replace(state, num_targets=None if m == state.n else m, target_weights=b, index=index)


def _fitted(weights: tuple[float, ...] | None, count: int) -> tuple[float, ...] | None:
    """Cut, or continued with the average; None where nothing is left of them."""
    if weights is None:
        return None
    average = sum(weights) / len(weights)
    fitted = (weights + (average,) * count)[:count]
    return fitted if sum(fitted) > 0 else None
