"""sinksort beside every peer that can run here: time, memory and error in the cells of a table.

    python benchmarks/versus.py                                      # CPU, 2 threads
    python benchmarks/versus.py --device cuda
    python benchmarks/versus.py --checkout LapSum=PATH --checkout softsort=PATH
    python benchmarks/versus.py --device cuda --tuned benchmarks/results/versus_cpu.json
    python benchmarks/versus.py --cells rank-128x100 topk-128x1e4 --eps 1e-2 --peers sinksort torchsort
    python benchmarks/versus.py --first-calls --cells rank-128x100 sort-128x100 --eps 1e-2 --rounds 3

Peers from PyPI take part when they are installed: pip install torchsort diffsort ott-jax softtorch softjax (the last
two need Python 3.12). Others are taken from a clone that you point to: --checkout with fast-soft-sort, LapSum,
neuralsort or softsort. Writes versus_cpu or versus_NAME .json (every round), .md and .png to benchmarks/results/. An
interrupted run goes on where it stopped: finished cells are kept in out/ until the tables are written.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from _common import write_whole
from contest import first, report
from contest.cells import CELLS, Cell
from contest.match import Records, Rules, play
from contest.processes import Means, Process
from peers import PEERS, Peer, Site
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sinksort.paper.machine import machine

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CHECKOUTS = sorted({peer.checkout for peer in PEERS if peer.checkout})


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cells", nargs="+", type=_cell, default=list(CELLS), help="such as rank-128x1000 topk-1x1e4")
    parser.add_argument("--eps", nargs="+", type=float, default=[1e-2, 1e-3])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=6.0, help="seconds that one pass may take")
    parser.add_argument(
        "--memory", type=float, help="GB that a process may take on a CPU (default: a third of the free)"
    )
    parser.add_argument("--threads", type=int, default=2, help="of every contestant, on a CPU")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="only these: the beginnings of their names")
    parser.add_argument("--checkout", action="append", type=_checkout, default=[], metavar="NAME=PATH")
    parser.add_argument(
        "--tuned", type=Path, metavar="JSON", help="take the parameters of peers from these results, of any device"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--name", help="of the results: versus_NAME (default: cpu, or that of the GPU)")
    parser.add_argument(
        "--add", action="store_true", help="to the results that exist: what is not measured now stays, and is marked"
    )
    parser.add_argument(
        "--first-calls", action="store_true", help="each in a new process with empty caches; writes versus_NAME_first"
    )
    parser.add_argument("--redraw", action="store_true", help="write tables and plots again, from the JSON of a run")
    return parser.parse_args(given)


def _cell(key: str) -> Cell:
    try:
        return Cell.parse(key)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _checkout(pair: str) -> tuple[str, str]:
    name, _, path = pair.partition("=")
    if name not in CHECKOUTS or not Path(path).expanduser().is_dir():
        raise argparse.ArgumentTypeError(
            f"--checkout is NAME=PATH with one of {', '.join(CHECKOUTS)} and the folder of a clone, got {pair!r}."
        )
    return name, path


def contestants(wanted: list[str] | None, site: Site) -> tuple[list[Peer], dict[str, str]]:
    """Those that take part, and why the others do not."""
    for name in wanted or []:
        if not any(peer.name.startswith(name) for peer in PEERS):
            raise SystemExit(
                f"--peers: nobody's name begins with {name!r}; there are {', '.join(p.name for p in PEERS)}."
            )
    chosen = [peer for peer in PEERS if wanted is None or peer.name.startswith(tuple(wanted))]
    missing = {peer.name: reason for peer in chosen if (reason := peer.missing(site))}
    return [peer for peer in chosen if peer.name not in missing], missing


def free_memory() -> int:
    """Bytes that could be had now."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def hopeless(entries: list[dict[str, Any]], cell: Cell, eps: float) -> dict[str, str]:
    """Who ran out of time or memory in a cell that is no larger and no harder, and so is not tried."""
    found: dict[str, str] = {}
    for entry in entries:
        other = Cell.parse(entry["cell"])
        easier = other.task == cell.task and other.batch <= cell.batch and other.n <= cell.n and entry["eps"] >= eps
        for name, record in entry["records"].items():
            if easier and record.get("grows") and not record["status"].startswith("not tried"):
                found[name] = f"not tried: {record['status']} in {other.title}, eps {entry['eps']:g}"
    return found


def parameters(results: Path | None) -> dict[tuple[str, float], dict[str, float]]:
    """By cell and eps, what peers were tuned to in another run."""
    entries = json.loads(results.read_text(encoding="utf-8"))["entries"] if results else []
    return {
        (entry["cell"], entry["eps"]): {
            name: record["parameter"] for name, record in entry["records"].items() if record.get("parameter")
        }
        for entry in entries
    }


class Kept:
    """Finished cells of an unfinished run, a file each; another setting or version starts again."""

    def __init__(self, folder: Path, setting: dict[str, Any]) -> None:
        self.folder = folder
        marker, now = folder / "setting.json", json.dumps(setting, sort_keys=True)
        if marker.exists() and marker.read_text(encoding="utf-8") != now:
            print("The run that was interrupted had another setting: starting again.")
            shutil.rmtree(folder)
        write_whole(marker, now)

    def _path(self, cell: Cell, eps: float) -> Path:
        return self.folder / f"{cell.key}-{eps:g}.json"

    def get(self, cell: Cell, eps: float) -> dict[str, Any] | None:
        path = self._path(cell, eps)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def put(self, cell: Cell, eps: float, records: Records) -> dict[str, Any]:
        entry = {"cell": cell.key, "eps": eps, "records": records}
        write_whole(self._path(cell, eps), json.dumps(entry))
        return entry


def measure(options: argparse.Namespace, peers: list[Peer], means: Means, kept: Kept) -> list[dict[str, Any]]:
    """All cells, those of an interrupted run from its files."""
    lanes = 2 if options.device == "cpu" else 12
    rules = Rules(rounds=options.rounds, limit=options.limit, lanes=lanes)
    processes = [Process(peer, means) for peer in peers]
    tuned = parameters(options.tuned)
    wanted = [(cell, eps) for cell in options.cells for eps in sorted(options.eps, reverse=True)]
    entries: list[dict[str, Any]] = []
    rng = random.Random(0)
    look = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*look) as progress:
            bar = progress.add_task("starting", total=len(wanted))
            for cell, eps in wanted:
                entry = kept.get(cell, eps)
                if entry is None:

                    def said(what: str, cell: Cell = cell, eps: float = eps) -> None:
                        progress.update(bar, description=f"{cell.title}, eps {eps:g}: {what}")

                    known = tuned.get((cell.key, eps), {})
                    records = play(cell, eps, processes, rules, hopeless(entries, cell, eps), said, rng, known)
                    entry = kept.put(cell, eps, records)
                entries.append(entry)
                progress.advance(bar)
    finally:
        with ThreadPoolExecutor() as pool:
            list(pool.map(Process.kill, processes))
    return entries


def earlier(stem: Path, about: dict[str, str]) -> dict[str, Any] | None:
    """The results that exist, if they are of the same kind of machine.

    A remark in brackets on what was measured before, as in "2 threads used (in part: 8)", makes no difference.
    """
    path = stem.with_suffix(".json")
    if not path.exists():
        return None
    before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    differ = [
        f"{name} is {about.get(name)!r} and was {was!r}"
        for name, was in before["about"].items()
        if about.get(name) != was.partition(" (\\*")[0]
    ]
    if differ or about.keys() != before["about"].keys():
        raise SystemExit(
            f"--add: {path.name} is of another machine or other versions ({'; '.join(differ)}); leave --add out to "
            "measure all of it, or give the new results another --name."
        )
    return before


def added(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells and contestants of both, as they are now where they are in both; what is not is marked."""
    found: dict[tuple[str, float], dict[str, Any]] = {}
    for entry in before:
        earlier = {name: {**record, "earlier": True} for name, record in entry["records"].items()}
        found[entry["cell"], entry["eps"]] = {**entry, "records": earlier}
    for entry in now:
        key = entry["cell"], entry["eps"]
        found[key] = {**entry, "records": {**found.get(key, entry)["records"], **entry["records"]}}
    order = [cell.key for cell in CELLS]
    return sorted(
        found.values(), key=lambda e: (order.index(e["cell"]) if e["cell"] in order else len(order), -e["eps"])
    )


def write(measured: dict[str, Any], stem: Path) -> str:
    text = report.table(measured["entries"], measured["about"], measured["settings"])
    write_whole(stem.with_suffix(".md"), text)
    try:
        report.plot(measured["entries"], stem.with_suffix(".png"))
    except ImportError:
        print("matplotlib is not installed: no plot. Draw it elsewhere from the JSON with --redraw.")
    return text


def main(given: list[str] | None = None) -> None:
    options = arguments(given)
    name = options.name or ("cpu" if options.device == "cpu" else torch.cuda.get_device_name().split()[-1].lower())
    stem = options.out / f"versus_{name}"
    if options.redraw:
        print(write(json.loads(stem.with_suffix(".json").read_text(encoding="utf-8")), stem))
        return
    torch.set_num_threads(options.threads)
    site = Site(options.device, dict(options.checkout))
    peers, missing = contestants(options.peers, site)
    memory = int(1e9 * options.memory) if options.memory else free_memory() // 3
    about = machine(torch.device(options.device))
    before = earlier(stem, about) if options.add else None  # if they don't go together, nothing is measured
    setting = {
        "about": about, "peers": [peer.name for peer in peers], "rounds": options.rounds, "limit": options.limit,
    }  # fmt: skip
    folder = ROOT / "out" / stem.name
    means = Means(site, options.threads, memory, folder / "logs", ROOT / "out" / "jax-cache")
    if options.first_calls:
        print(
            first_calls(options, [peer for peer in peers if peer.kind != "floor"], means, stem, about, _command(given))
        )
        return
    kept = Kept(folder, setting)
    entries = measure(options, peers, means, kept)
    settings = {
        "command": _command(given), "rounds": options.rounds, "limit": options.limit,
        "memory": memory if options.device == "cpu" else None, "missing": missing,
        "cells": [cell.key for cell in options.cells],
    }  # fmt: skip
    if before is not None:
        entries = added(before["entries"], entries)
        settings["cells"] = list(dict.fromkeys([*before["settings"].get("cells", ()), *settings["cells"]]))
        about = before["about"]
    measured = {"about": about, "settings": settings, "entries": entries}
    write_whole(stem.with_suffix(".json"), json.dumps(measured, indent=1) + "\n")
    print(write(measured, stem))
    shutil.rmtree(folder)


def first_calls(
    options: argparse.Namespace, peers: list[Peer], means: Means, stem: Path, about: dict[str, str], command: str
) -> str:
    """The page of first calls; it and its JSON are written beside the other results."""
    to = stem.with_name(f"{stem.name}_first.json")
    wanted = [(cell, eps) for cell in options.cells for eps in sorted(options.eps, reverse=True)]
    entries = first.first_calls(wanted, peers, means, options.rounds, print, to)
    text = first.table(entries, about, command, options.rounds)
    write_whole(to.with_suffix(".json"), json.dumps({"about": about, "entries": entries}, indent=1) + "\n")
    write_whole(to.with_suffix(".md"), text)
    return text


def _command(given: list[str] | None) -> str:
    asked = [word if not word.startswith(("/", "~")) else Path(word).name for word in (given or sys.argv[1:])]
    return shlex.join(["python", "benchmarks/versus.py", *(_without_folders(word) for word in asked)])


def _without_folders(word: str) -> str:
    """A checkout's place is nobody's business."""
    name, equals, _ = word.partition("=")
    return f"{name}=PATH" if equals else word


if __name__ == "__main__":
    main()
