"""A setting of an experiment: a field of its dataclass, with a line of help that the command line shows."""

from __future__ import annotations

from dataclasses import field
from typing import Any


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
