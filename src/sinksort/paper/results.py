"""Raw results and what is computed from them: averages and deviations over the runs of a method.

Raw results are JSON lines, one unit a line, in ``<folder>/raw/<experiment>.jsonl``. They hold all that a table says:
settings, measurements by epoch, machine, versions and times.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .datasets import altered
from .store import Store, write_atomic

Unit = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Summary:
    """Mean and deviation of a number over runs."""

    mean: float
    deviation: float
    runs: int

    def __format__(self, digits: str) -> str:
        """``f"{summary:3}"``: three digits behind the point, with the deviation where there are two runs or more."""
        mean = f"{self.mean:.{digits}f}"
        return mean if self.runs < 2 else f"{mean} ± {self.deviation:.{digits}f}"


def summarise(numbers: Iterable[float]) -> Summary:
    """Mean and sample deviation.

    >>> f"{summarise([1.0, 2.0, 3.0]):2}"
    '2.00 ± 1.00'
    """
    values = list(numbers)
    return Summary(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))


def collect(out: Path, raw: Path) -> list[Path]:
    """Add the finished units below ``out`` to the raw results; a unit that was there already is replaced."""
    written = []
    for folder in sorted(path.parent for path in out.glob("*/knobs.json")):
        path = raw / f"{folder.name}.jsonl"
        known = {_key(unit): unit for unit in read(path)}
        known.update({_key(unit): unit for unit in Store(folder).units()})
        _require_right_data(known.values(), folder)
        lines = (json.dumps(unit, sort_keys=True) for _, unit in sorted(known.items()))
        write_atomic(path, "".join(f"{line}\n" for line in lines).encode())
        written.append(path)
    return written


def _require_right_data(units: Iterable[Unit], folder: Path) -> None:
    """Nothing is reported that was computed from other data than the catalogue's. Demos read no files."""
    for unit in units:
        wrong = altered(unit.get("data", {}))
        if wrong:
            name = f"{unit['case']}/{unit['method']}"
            raise ValueError(
                f"{name} in {folder} was computed from files that are not what they should be (by their sha256): "
                f"{', '.join(wrong)}. Check the data with: sinksort data, and run it again with: "
                f"sinksort reproduce {folder.name} --only '{name}' --fresh"
            )


def _key(unit: Unit) -> tuple[str, str, str, int]:
    """What makes a unit: its settings other than the number of runs, its case, its method and its seed."""
    return _as_text(unit["knobs"]), unit["case"], unit["method"], unit["seed"]


def settings_digest(knobs: dict[str, Any]) -> str:
    """Twelve digits that are the same for equal settings. How many runs there are is none of them."""
    return hashlib.sha256(_as_text(knobs).encode()).hexdigest()[:12]


def _as_text(knobs: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in knobs.items() if name != "runs"}, sort_keys=True)


def read(path: Path) -> Iterator[Unit]:
    """The units in a file of JSON lines; none when there is no file."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        yield from map(json.loads, lines)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} has a line that is not JSON ({error}); collect the results again.") from error


def groups(units: Iterable[T], by: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Units, or other things, that agree in ``by``, in the order in which they come."""
    found: dict[Any, list[T]] = {}
    for unit in units:
        found.setdefault(by(unit), []).append(unit)
    return found


def duration(seconds: float) -> str:
    """Seconds in the unit that shows two digits of them.

    >>> duration(37.2), duration(600), duration(14_400)
    ('37 s', '10 min', '4.00 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.2f} h"


def provenance(units: list[Unit]) -> str:
    """On what, with which versions and for how long: one line for each machine."""
    lines = []
    for machine, made in groups(units, lambda unit: json.dumps(unit["machine"], sort_keys=True)).items():
        facts = json.loads(machine)
        # Runs that trained side by side share their seconds.
        together = groups(made, lambda unit: (unit["case"], unit["method"], unit["seconds"]))
        seconds = sum(key[2] for key in together)
        lines.append(
            f"{len(made)} runs on {facts['device']} ({facts['cpu']}), torch {facts['torch']}, "
            f"Python {facts['python']}, sinksort {facts['sinksort']}; {duration(seconds)}, summed over trainings."
        )
    return " ".join(lines)
