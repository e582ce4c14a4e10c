"""First calls: a new process and empty caches for each, forward plus backward once, and once more."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import write_whole
from peers import Peer

from .cells import Cell
from .processes import ContestantError, Means, Process

Record = dict[str, Any]
HOW = """\
Seconds of the first forward plus backward in a new process whose caches of compiled programs are empty, after the
import (and, on a GPU, after torch has started the device); in brackets the seconds of the second. Medians of {rounds}.
Extensions that a library compiles when it is installed are compiled before.
"""


def first_call(peer: Peer, cell: Cell, eps: float, means: Means, patience: float) -> Record:
    """Import, first and second call of one contestant, in seconds, or why there are none."""
    with tempfile.TemporaryDirectory(prefix="first-call-") as folder:
        process = Process(peer, dataclasses.replace(means, kernels=Path(folder)))
        try:
            process.start(patience)
            found: Record | None = process.ask("first", cell.key, eps, timeout=patience)
        except ContestantError as failure:
            return {"status": failure.reason}
        finally:
            process.kill()
    return {"status": "does not have it"} if found is None else {"status": "ok", **found}


def first_calls(
    wanted: list[tuple[Cell, float]],
    peers: list[Peer],
    means: Means,
    rounds: int,
    said: Callable[[str], None],
    to: Path,
) -> list[Record]:
    """All of them, one after the other; the file is written after each cell."""
    entries: list[Record] = []
    for cell, eps in wanted:
        records: dict[str, list[Record]] = {peer.name: [] for peer in peers}
        for number in range(rounds):
            for peer in peers:
                if number and records[peer.name][0]["status"] != "ok":
                    continue
                said(f"{cell.title}, eps {eps:g}, {peer.name}")
                records[peer.name].append(first_call(peer, cell, eps, means, 600.0))
        entries.append({"cell": cell.key, "eps": eps, "records": records})
        write_whole(to, json.dumps(entries, indent=1) + "\n")
    return entries


def table(entries: list[Record], about: dict[str, str], command: str, rounds: int) -> str:
    names = list(dict.fromkeys(name for entry in entries for name in entry["records"]))
    lines = ["# First calls", "", f"`{command}`", "", HOW.format(rounds=rounds)]
    lines += [f"- {name}: {what}" for name, what in about.items()]
    lines += ["", f"| | eps | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for entry in entries:
        shown = [_shown(entry["records"].get(name, [])) for name in names]
        lines.append(f"| {Cell.parse(entry['cell']).title} | {entry['eps']:g} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _shown(records: list[Record]) -> str:
    done = [record for record in records if record["status"] == "ok"]
    if not done:
        return records[0]["status"] if records else ""
    first, second = (statistics.median(record[what] for record in done) for what in ("first", "second"))
    return f"{first:.{2 if first < 10 else 1}f} ({_digits(second)})"


def _digits(value: float) -> str:
    """Two digits that mean something."""
    return f"{value:.{max(0, 1 - math.floor(math.log10(max(value, 1e-9))))}f}"
