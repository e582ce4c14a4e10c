"""One cell at one eps: everybody is prepared, tried, and then timed in interleaved rounds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .cells import Cell
from .processes import ContestantError, Process
from .runs import WARM
from .truth import errors, gate, truth, wanted_softness

LEAST = 0.01  # seconds that a sample lasts at least, in as many calls as it takes
Record = dict[str, Any]  # what is known of one contestant in one cell
Records = dict[str, Record]
_NOTHING: Mapping[str, float] = {}


@dataclass(frozen=True)
class Rules:
    """How long everybody gets."""

    rounds: int
    limit: float  #: seconds that one pass may take
    patience: float = 300.0  #: seconds for imports, tuning and compilation
    lanes: int = 2  #: how many are prepared at a time

    @property
    def budget(self) -> float:
        """Seconds for all rounds of one contestant, unless two take more."""
        return self.limit / 3


def play(cell: Cell, eps: float, processes: list[Process], rules: Rules, hopeless: dict[str, str],
         said: Callable[[str], None], rng: random.Random,
         tuned: Mapping[str, float] = _NOTHING) -> Records:  # fmt: skip
    """The records of all contestants.

    ``hopeless``: name -> why it is not tried, from smaller cells; ``tuned``: name -> parameter, where it is known.
    """
    records: Records = {p.peer.name: {"status": hopeless.get(p.peer.name, "ok")} for p in processes}
    said("preparing")
    wanted = {small: wanted_softness(cell, eps, small=small) for small in (False, True)}
    playing = [p for p in processes if records[p.peer.name]["status"] == "ok"]
    with ThreadPoolExecutor(rules.lanes) as pool:

        def prepare(process: Process) -> None:
            name = process.peer.name
            _prepare(process, cell, eps, wanted[process.peer.square], tuned.get(name), rules, records[name])

        list(pool.map(prepare, playing))
    for process in _still(playing, records):
        said(process.peer.name)
        _try(process, cell, eps, rules, records[process.peer.name])
    for number in range(rules.rounds):
        said(f"round {number + 1} of {rules.rounds}")
        order = [
            p for p in _still(playing, records) if _takes_part(records[p.peer.name]["rounds"], number, rules.rounds)
        ]
        rng.shuffle(order)
        for process in order:
            _time(process, rules, records[process.peer.name])
    return records


def _still(processes: Iterable[Process], records: Records) -> list[Process]:
    return [p for p in processes if records[p.peer.name]["status"] in ("ok", "forward only")]


def _takes_part(its_rounds: int, number: int, rounds: int) -> bool:
    """Whoever has fewer rounds than there are takes part in some that are evenly spread."""
    return (number + 1) * its_rounds // rounds > number * its_rounds // rounds


def _prepare(
    process: Process, cell: Cell, eps: float, wanted: float, known: float | None, rules: Rules, record: Record
) -> None:
    try:
        process.start(rules.patience)
        record["version"] = process.version
        record["parameter"] = process.ask("prepare", cell.key, eps, wanted, known, timeout=rules.patience)
        if record["parameter"] is None:
            record["status"] = "does not have it"
        elif process.peer.kind == "floor":
            record["parameter"] = None
    except ContestantError as failure:
        late = failure.reason.startswith(">")
        reason = f"not ready in {rules.patience:g} s" if late else failure.reason
        record.update(status=reason, grows=failure.grows)


def _try(process: Process, cell: Cell, eps: float, rules: Rules, record: Record) -> None:
    """One pass of each kind under the limit; memory, softness, errors; how many rounds it gets."""
    try:
        spent = {"forward": process.ask("trial", "forward", timeout=rules.limit)}
    except ContestantError as failure:
        record.update(status=failure.reason, grows=failure.grows)
        return
    try:
        spent["both"] = process.ask("trial", "both", timeout=rules.limit)
        _inspect(process, cell, eps, rules, record, thorough=spent["both"] < rules.limit / 4)
    except ContestantError as failure:
        record.update(backward=failure.reason, grows=failure.grows, status="forward only")
        if not process.running:
            record["status"] = failure.reason
            return
    passes = [what for what in ("forward", "both") if what in spent and not (what == "both" and "backward" in record)]
    try:  # a first pass can be much slower than those that follow
        quick = [what for what in passes if spent[what] < rules.limit / 2]
        spent |= {what: process.ask("sample", what, 0.0, timeout=4 * rules.limit) for what in quick}
    except ContestantError as failure:
        record.update(status=failure.reason, grows=failure.grows)
        return
    a_round = sum(3 * max(LEAST, spent[what]) if spent[what] < WARM else spent[what] for what in passes)
    record["rounds"] = max(2, min(rules.rounds, math.floor(rules.budget / a_round)))
    record["seconds"] = {what: [] for what in passes}


def _inspect(process: Process, cell: Cell, eps: float, rules: Rules, record: Record, *, thorough: bool) -> None:
    peer = process.peer
    found = process.ask("inspect", peer.kind == "ours", thorough, timeout=4 * rules.limit)
    record["peak"] = found["peak"]
    if found["rows"] is None:
        return
    answer, gradient = found["finite"]
    if not math.isnan(found["softness"]) or cell.tuned_as == cell.task:
        record["softness"] = found["softness"]
    if not answer:
        record["status"] = "NaN answers"
    elif not gradient:
        record["backward"], record["status"] = "NaN gradients", "forward only"
    if cell.task in peer.truth:
        record["errors"] = list(errors(cell, found["rows"], truth(cell, eps)))
        failed = gate(tuple(record["errors"]), double=cell.task == "rank64") if peer.kind == "ours" else None
        if failed:
            record["status"] = failed
    elif "errors" in found:
        record["errors"] = list(found["errors"])


def _time(process: Process, rules: Rules, record: Record) -> None:
    try:
        for what, samples in record["seconds"].items():
            samples.append(process.ask("sample", what, LEAST, timeout=10 + 4 * rules.limit))
    except ContestantError as failure:
        record.update(status=failure.reason, grows=failure.grows)
