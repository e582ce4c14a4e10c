"""A setting of an experiment: a field of its dataclass, with a line of help that the command line shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

PRECISIONS = ("bfloat16", "float32")


def knob(default: Any, about: str) -> Any:
    """A field with its help.

    >>> from dataclasses import dataclass, fields
    >>> @dataclass(frozen=True)
    ... class Knobs:
    ...     runs: int = knob(12, "how many runs")
    >>> Knobs().runs, fields(Knobs)[0].metadata["about"]
    (12, 'how many runs')
    """
    return field(default=default, metadata={"about": about})


def require_among(name: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Words that a setting does not know are refused before anything is trained."""
    strange = [word for word in given if word not in known]
    if strange or not given:
        said = ", ".join(strange) or "nothing"
        raise ValueError(f"--{name.replace('_', '-')} must be among {', '.join(known)}, got {said}.")


def require_counts(**counts: int) -> None:
    """Numbers of runs, epochs and the like are at least one."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be 1 or more, got {count}.")


def require_numbers(name: str, given: Sequence[float], low: float, high: float, *, ends: bool = True) -> None:
    """Numbers are from ``low`` to ``high``; or between them, without the ends. There is at least one."""
    if not given:
        raise ValueError(f"--{name.replace('_', '-')} must have at least one number, got none.")
    for number in given:
        if not (low <= number <= high if ends else low < number < high):  # NaN is neither
            what = f"from {low:g} to {high:g}" if ends else f"between {low:g} and {high:g}"
            raise ValueError(f"--{name.replace('_', '-')} must be {what}, got {number:g}.")


def require_positive(**numbers: float) -> None:
    """Steps, entropies and temperatures are larger than zero, and finite."""
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise ValueError(f"--{name.replace('_', '-')} must be a number above 0, got {number:g}.")
