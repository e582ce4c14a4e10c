"""What sinksort takes on a GPU at one commit: every cell, and first calls with empty caches. One command, four minutes.

    python benchmarks/gpu_times.py                               # writes benchmarks/results/gpu_times_NAME.json
    python benchmarks/gpu_times.py --table BEFORE.json AFTER.json
    python benchmarks/gpu_times.py --table ONE.json
    python benchmarks/gpu_times.py --device cpu --quick          # tries the command itself

Kernels are compiled first, several processes at a time, each with an empty cache: that gives the first calls. Then one
process has what all of them compiled, and measures the cells. The JSON is whole after every cell: what is killed has
lost nothing, and what took too long is not in it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from _common import write_whole
from contest.cells import CELLS, Cell

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CHECKED, LARGEST = 2, 1000  #: rows that are compared with float64, and their longest
LEAST = 0.01  #: seconds of a sample
COMPILING = 0.6  #: part of the time that first calls may take
Record = dict[str, Any]
Results = dict[str, Any]


class Timed(NamedTuple):
    """A cell at an eps."""

    cell: Cell
    eps: float

    @property
    def key(self) -> str:
        return f"{self.cell.key}@{self.eps:g}"

    @staticmethod
    def parse(key: str) -> Timed:
        """The inverse of ``key``."""
        cell, _, eps = key.partition("@")
        return Timed(Cell.parse(cell), float(eps))


_SHARP = ("rank-128x10", "rank-128x100", "rank-128x1000", "rank-16x1e4", "rank-1x1e5", "quantile-64x512",
          "topk-128x1000", "sort-128x100", "sort-1x1000", "permutation-128x20")  # fmt: skip
STEADY = (
    *(Timed(cell, 1e-2) for cell in CELLS),
    *(Timed(Cell.parse(key), 1e-3) for key in _SHARP),
)
#: Calls that compile most, longest first.
FIRST = tuple(
    Timed.parse(key)
    for key in (
        "rank-64x257@0.01", "rank-4x3000@0.01", "rank-64x257@0.001", "rank-64x1000@0.01", "rank-64x200@0.01",
        "rank-64x100@0.01", "rank-64x5@0.01", "sort-64x100@0.01", "quantile-64x512@0.01", "topk-64x1000@0.01",
    )
)  # fmt: skip
QUICK = (Timed.parse("rank_cost1-2x8@0.05"), Timed.parse("rank_eps-2x8@0.05"))  #: nothing is compiled for these


# ---- in processes of their own


def once(timed: Timed, device: str) -> Record:
    """The first and the second call of a process, in seconds."""
    run = _run(timed, device, graph=False)
    spent = {}
    for which in ("first", "second"):
        start = time.perf_counter()
        run.wait(run.once("both"))
        spent[which] = time.perf_counter() - start
    return spent


def steady(timed: Timed, device: str, rounds: int, *, graph: bool) -> Record:
    """Errors first; milliseconds of forward, and of forward plus backward, from each round."""
    from contest.runs import seconds

    import sinksort

    run = _run(timed, device, graph=False)
    result = run.once("both")
    found: Record = {}
    if timed.cell.n <= LARGEST:
        from contest.truth import errors_of_first_rows, gate

        off = errors_of_first_rows(timed.cell, timed.eps, tuple(map(run.as_numpy, result)), CHECKED)
        found["errors"] = list(off)
        if failed := gate(off, double=timed.cell.task == "rank64"):
            return {"status": failed, **found}
    found["ms"] = {what: [1e3 * seconds(run, what, LEAST) for _ in range(rounds)] for what in ("forward", "both")}
    if graph and sinksort.last_backend() == "triton":
        try:
            recorded = _run(timed, device, graph=True)
            recorded.ready()
            found["ms"]["graph"] = [1e3 * seconds(recorded, "both", LEAST) for _ in range(rounds)]
        except RuntimeError as error:  # what asks the device cannot be recorded
            found["graph"] = str(error).partition("\n")[0][:100]
    return {"status": "ok", **found}


def _run(timed: Timed, device: str, *, graph: bool) -> Any:
    from contest.runs import TorchRun
    from peers import Site, ours

    cell = timed.cell
    operator: Any = ours.operator("", cell.task, cell.n, Site(device))
    return TorchRun(operator, timed.eps, cell.values(), cell.cotangent(), device, graph=graph)


def child(options: argparse.Namespace) -> None:
    """Answers the parent with one line for each cell."""
    import torch

    if options.device == "cuda":
        torch.zeros(1, device="cuda")
    else:
        torch.set_num_threads(2)
    for timed in options.cells:
        try:
            if options.child == "once":
                found = once(timed, options.device)
            else:
                found = steady(timed, options.device, options.rounds, graph=options.device == "cuda")
        except Exception as error:  # whatever is raised is what there is to tell
            found = {"status": f"raises {type(error).__name__}: {str(error).partition(chr(10))[0][:100]}"}
        print(json.dumps([timed.key, found]), flush=True)


# ---- the parent


def _command(what: str, cells: list[Timed], options: argparse.Namespace) -> list[str]:
    keys = [timed.key for timed in cells]
    return [sys.executable, __file__, "--child", what, "--device", options.device, "--rounds", str(options.rounds),
            "--cells", *keys]  # fmt: skip


def _environment(cache: Path) -> dict[str, str]:
    names = {"TRITON_CACHE_DIR": "triton", "NUMBA_CACHE_DIR": "numba", "TORCHINDUCTOR_CACHE_DIR": "inductor",
             "CUDA_CACHE_PATH": "cuda"}  # fmt: skip
    return {**os.environ, **{name: str(cache / folder) for name, folder in names.items()}}


def first_call(timed: Timed, options: argparse.Namespace, cache: Path, until: float) -> Record:
    """In a new process with an empty cache."""
    command, left = _command("once", [timed], options), until - time.monotonic()
    if left <= 0:
        return {"status": "no time left"}
    start = time.perf_counter()
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, env=_environment(cache), timeout=left, check=False
        )
    except subprocess.TimeoutExpired:
        return {"status": f"more than {left:.0f} s"}
    if said.returncode or not said.stdout.strip():
        return {"status": f"died: {said.stderr.strip()[-200:]}"}
    found: Record = json.loads(said.stdout.splitlines()[-1])[1]
    return {"status": "ok", "process": time.perf_counter() - start, **found}


def answers(
    wanted: list[Timed], options: argparse.Namespace, cache: Path, until: float
) -> Iterator[tuple[str, Record]]:
    """Cells from a process that measures one after the other; if it dies, the next goes on behind that cell."""
    left = list(wanted)
    while left:
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                _command("steady", left, options), stdout=subprocess.PIPE, stderr=log, text=True,
                env=_environment(cache),
            )  # fmt: skip
            lines: queue.Queue[str | None] = queue.Queue()
            threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
            try:
                while (line := lines.get(timeout=max(0.0, until - time.monotonic()))) is not None:
                    key, found = json.loads(line)
                    left = [timed for timed in left if timed.key != key]
                    yield key, found
            except queue.Empty:
                yield from ((timed.key, {"status": "no time left"}) for timed in left)
                return
            finally:
                process.kill()
                process.wait()
            if left:
                log.seek(0)
                yield left.pop(0).key, {"status": f"died: {log.read().strip()[-200:]}"}


def _read(stream: Any, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def about(device: str) -> dict[str, str]:
    """The machine, the versions, and the commit."""
    import torch

    from sinksort.paper.machine import machine

    facts = machine(torch.device(device))
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    try:
        import triton

        facts["triton"] = triton.__version__
    except ImportError:
        pass
    return {"commit": said.stdout.strip() or "unknown", **facts}


def measure(options: argparse.Namespace) -> Results:
    started = time.monotonic()
    until, until_compiled = (started + 60 * options.minutes * part for part in (1.0, COMPILING))
    facts = about(options.device)
    if options.commit:
        facts["commit"] = options.commit
    results: Results = {"about": facts, "command": "python benchmarks/gpu_times.py", "first": {}, "steady": {}}
    cells = list(options.cells or (QUICK if options.quick else STEADY))
    first = list(options.first or (QUICK[:1] if options.quick else FIRST))

    def keep(what: str, key: str, found: Record) -> None:
        results[what][key] = found
        write_whole(options.to, json.dumps(results, indent=1) + "\n")
        print(f"{time.monotonic() - started:6.1f} s  {what:6} {key:28} {_in_words(found)}", flush=True)

    with tempfile.TemporaryDirectory(prefix="gpu-times-") as folder:
        shared = Path(folder) / "shared"
        with ThreadPoolExecutor(options.jobs) as pool:
            asked = {}
            for number, timed in enumerate(dict.fromkeys([*first, *cells])):
                cache = Path(folder) / str(number)
                asked[pool.submit(first_call, timed, options, cache, until_compiled)] = timed, cache
            for done in as_completed(asked):
                timed, cache = asked[done]
                keep("first", timed.key, done.result())
                for part in cache.iterdir() if cache.exists() else ():  # whatever was compiled need not be again
                    shutil.copytree(part, shared / part.name, dirs_exist_ok=True)
        for key, found in answers(cells, options, shared, until):
            keep("steady", key, found)
    results["minutes"] = (time.monotonic() - started) / 60
    write_whole(options.to, json.dumps(results, indent=1) + "\n")
    return results


def _in_words(found: Record) -> str:
    if found["status"] != "ok":
        return str(found["status"])
    if "first" in found:
        return f"{found['first']:.1f} s, then {1e3 * found['second']:.3g} ms"
    return ", ".join(f"{what} {statistics.median(ms):.3g} ms" for what, ms in found["ms"].items())


# ---- tables


def table(before: Results | None, after: Results) -> str:
    """One page: what it takes now, and beside that what it took before."""
    lines = ["# Times on a GPU", ""]
    for name, results in (("before", before), ("now", after)):
        if results is not None:
            facts = ", ".join(f"{what} {said}" for what, said in results["about"].items())
            lines.append(f"- {name}: {facts}" if before else f"- {facts}")
    lines += ["", "Forward plus backward in milliseconds: medians (with the quartiles). A ratio in bold is off by more"]
    lines += ["than 5%, and the quartiles do not overlap.", ""]
    lines += _rows(before, after)
    lines += ["", "First calls with empty caches, in seconds: several processes compile at a time.", ""]
    heads = ["cell", "eps", *(["before"] if before else []), "now", *(["ratio"] if before else [])]
    lines += [_line(heads), _line(["---"] * len(heads)).replace(" ", "")]
    for key, found in after["first"].items():
        was = before["first"].get(key) if before else None
        columns = [_first(was)] if before else []
        columns += [_first(found)]
        if before:
            both = was is not None and was["status"] == found["status"] == "ok"
            columns += [f"{found['first'] / was['first']:.2f}" if both and was else ""]
        lines.append(_line([*_titles(key), *columns]))
    return "\n".join(lines) + "\n"


def _rows(before: Results | None, after: Results) -> list[str]:
    heads = ["cell", "eps", "", *(["before"] if before else []), "now", *(["ratio"] if before else [])]
    lines = [_line(heads), _line(["---"] * len(heads)).replace(" ", "")]
    ratios: dict[str, list[float]] = {"both": [], "graph": []}
    for key, found in after["steady"].items():
        was = before["steady"].get(key, {"status": "not measured"}) if before else None
        for what, name in (("both", "call"), ("graph", "graph")):
            samples, earlier = _samples(found, what), _samples(was, what)
            if not samples and (what == "graph" or was is None) and not earlier:
                if what == "both":
                    lines.append(_line([*_titles(key), name, found["status"]]))
                continue
            columns = [_spread(earlier) or str(was["status"])] if was is not None else []
            columns += [_spread(samples) or str(found["status"])]
            if was is not None:
                ratio = _ratio(earlier, samples)
                columns += [ratio]
                if ratio:
                    ratios[what].append(math.log(statistics.median(samples) / statistics.median(earlier)))
            lines.append(_line([*_titles(key), name, *columns]))
    for what, logs in ratios.items():
        if logs:
            name = {"both": "call", "graph": "graph"}[what]
            mean = f"{math.exp(statistics.mean(logs)):.3f}"
            lines.append(_line([f"geometric mean of {len(logs)}", "", name, "", "", mean]))
    return lines


def _titles(key: str) -> tuple[str, str]:
    timed = Timed.parse(key)
    return timed.cell.title, f"{timed.eps:g}"


def _samples(found: Record | None, what: str) -> list[float]:
    return list(found.get("ms", {}).get(what, ())) if found else []


def _quartiles(samples: list[float]) -> tuple[float, float, float]:
    if len(samples) < 2:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def _spread(samples: list[float]) -> str:
    if not samples:
        return ""
    low, middle, high = _quartiles(samples)
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def _ratio(before: list[float], after: list[float]) -> str:
    if not before or not after:
        return ""
    (low, was, high), (least, now, most) = _quartiles(before), _quartiles(after)
    ratio = now / was
    apart = least > high or most < low
    return f"**{ratio:.2f}**" if apart and not 0.95 <= ratio <= 1.05 else f"{ratio:.2f}"


def _first(found: Record | None) -> str:
    return "" if found is None else f"{found['first']:.1f}" if found["status"] == "ok" else str(found["status"])


def _line(columns: list[str]) -> str:
    return f"| {' | '.join(columns)} |"


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--cells", nargs="+", type=Timed.parse, help="such as rank-128x100@0.01")
    parser.add_argument("--first", nargs="+", type=Timed.parse, help="cells whose first call is measured besides")
    parser.add_argument("--quick", action="store_true", help="two small cells, to try the command")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--minutes", type=float, default=4.0, help="what is not measured by then is left out")
    parser.add_argument(
        "--jobs", type=int, default=max(1, (os.cpu_count() or 2) * 3 // 4), help="that compile at a time"
    )
    parser.add_argument("--commit", help="where the sources are no git repository")
    parser.add_argument("--to", type=Path, help="the JSON (default: benchmarks/results/gpu_times_NAME.json)")
    parser.add_argument("--table", nargs="+", type=Path, metavar="JSON", help="render one, or compare two")
    parser.add_argument("--child", choices=("once", "steady"), help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    options = arguments(given)
    if options.child:
        child(options)
        return
    if options.table:
        *before, after = (json.loads(path.read_text(encoding="utf-8")) for path in options.table[-2:])
        print(table(before[0] if before else None, after), end="")
        return
    if options.to is None:
        import torch

        name = torch.cuda.get_device_name().split()[-1].lower() if options.device == "cuda" else "cpu"
        options.to = HERE / "results" / f"gpu_times_{name}.json"
    results = measure(options)
    print(f"{results['minutes']:.1f} minutes; {options.to}")


if __name__ == "__main__":
    main()
