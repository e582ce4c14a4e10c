"""What a sweep has seen so far, in a file, and the page that says it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import sinksort

ROOT = Path(__file__).parents[2]
_MOST_FAILURES = 1000
GROUPS = ("operator", "backend", "kind", "eps", "dtype", "layout")


def source_of_package() -> str:
    """Which code was tried: a digest of the package."""
    digest = hashlib.sha256()
    folder = Path(sinksort.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return f"{name}, {os.cpu_count()} cores"


@dataclass
class Record:
    """A sweep so far. Everything in it is plain JSON."""

    seed: int
    device: str
    source: str
    machine: str
    torch: str
    first: int = 0  #: the first case
    next: int = 0  #: the first case that has not run
    step: int = 1  #: from case to case: how many processes share the cases
    cases: int = 0  #: how many have run
    rows: int = 0
    seconds: float = 0.0
    counts: dict[str, dict[str, list[int]]] = field(default_factory=lambda: {group: {} for group in GROUPS})
    checks: dict[str, int] = field(default_factory=dict)
    worst: dict[str, list[float]] = field(default_factory=dict)  #: operator, backend -> error, case
    failures: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def new(cls, seed: int, device: str) -> Record:
        return cls(seed, device, source_of_package(), machine(device), torch.__version__)

    @classmethod
    def read(cls, path: Path) -> Record:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        beside.replace(path)

    def count(self, rows: int, wrong: int, **at: str) -> None:
        self.rows += rows
        for group, name in at.items():
            seen = self.counts[group].setdefault(name, [0, 0])
            seen[0] += rows
            seen[1] += wrong

    def checked(self, what: str, count: int = 1) -> None:
        self.checks[what] = self.checks.get(what, 0) + count

    def error(self, name: str, error: float, case: int) -> None:
        if error > self.worst.get(name, [-1.0])[0]:
            self.worst[name] = [min(error, 1e300), case]

    def fail(self, case: int, what: str, said: str, rows: int, of: int, error: float, row: int | None = None) -> None:
        if len(self.failures) < _MOST_FAILURES:
            error = error if math.isfinite(error) else 1e300
            self.failures.append(
                {"case": case, "what": what, "said": said, "rows": rows, "of": of, "error": error, "row": row}
            )

    def summary(self) -> str:
        """The failures, one a line."""
        return "\n".join(
            f"{each['what']}: {each['rows']} of {each['of']} rows, {each['error']:.3g} of the allowed: {each['said']}"
            for each in self.failures
        )

    @property
    def wrong(self) -> int:
        return sum(wrong for _, wrong in self.counts["operator"].values())


def together(records: list[Record]) -> Record:
    """What several processes have seen that shared the cases of one sweep."""
    total = replace(records[0], first=min(r.first for r in records), next=max(r.next for r in records), step=1)
    total.rows, total.cases = sum(r.rows for r in records), sum(r.cases for r in records)
    total.seconds = max(r.seconds for r in records)
    total.counts, total.checks, total.worst = {group: {} for group in GROUPS}, {}, {}
    total.failures = sorted((each for r in records for each in r.failures), key=lambda each: each["case"])
    for r in records:
        for group, names in r.counts.items():
            for name, (rows, wrong) in names.items():
                seen = total.counts[group].setdefault(name, [0, 0])
                seen[0], seen[1] = seen[0] + rows, seen[1] + wrong
        for what, count in r.checks.items():
            total.checked(what, count)
        for name, (error, case) in r.worst.items():
            total.error(name, error, int(case))
    return total


def page(record: Record) -> str:
    return "\n".join(_lines(record)) + "\n"


def _lines(record: Record) -> Iterator[str]:
    command = f"python -m tests.sweep --device {record.device}" + (f" --seed {record.seed}" if record.seed else "")
    yield f"# Random rows on {'the CPU' if record.device == 'cpu' else 'a GPU'}, all against float64"
    yield ""
    yield f"`{command}`: {record.rows:,} rows in {record.cases:,} cases, {record.wrong:,} of them wrong."
    yield f"{record.machine}, torch {record.torch}, {record.seconds / 60:.0f} minutes, package {record.source}."
    yield "What a case is and when a row is wrong is written in `tests/sweep/cases.py` and `tests/sweep/judging.py`."
    yield ""
    for group in GROUPS:
        yield f"| {group} | rows | wrong |"
        yield "|---|---:|---:|"
        for name, (rows, wrong) in sorted(record.counts[group].items(), key=lambda each: -each[1][0]):
            yield f"| {name} | {rows:,} | {wrong:,} |"
        yield ""
    yield "## Other checks"
    yield ""
    yield "| check | done |"
    yield "|---|---:|"
    for what, count in sorted(record.checks.items()):
        yield f"| {what} | {count:,} |"
    yield ""
    yield "## Largest errors"
    yield ""
    yield "In units of what is allowed."
    yield ""
    yield "| what | error | case |"
    yield "|---|---:|---:|"
    for name, (error, case) in sorted(record.worst.items()):
        yield f"| {name} | {error:.2g} | {case} |"
    yield ""
    yield "## Failures"
    yield ""
    if not record.failures:
        yield "None."
        return
    yield "| case | what | rows | largest error | call |"
    yield "|---:|---|---:|---:|---|"
    for each in record.failures:
        at = f"{each['rows']} of {each['of']}"
        yield f"| {each['case']} | {each['what']} | {at} | {each['error']:.2g} | {each['said'].replace('|', '/')} |"
