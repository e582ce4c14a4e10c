"""``soft_rank`` on 1, 2, 4, 8 and 16 threads, with the vectors of several kinds of processors.

    python benchmarks/threads.py
    python benchmarks/threads.py --threads 1 2 --kinds native avx2 --name laptop

First what it costs to hand a kernel without work to so many threads; then forward plus backward of ``soft_rank`` on
float32 rows, beside torchsort if it is installed. The two take turns; times are the least and the median over rounds.
Each kind of processor has a process of its own, in which Numba compiles for it (NUMBA_CPU_NAME, NUMBA_CPU_FEATURES), as
far as the processor here can do what that kind can: kernels have narrower vectors then, torchsort and torch are as they
were built. OMP_WAIT_POLICY is passive for everybody unless it is set: torch's threads that spin after each operation
would keep processors from others, on virtual machines for milliseconds. Writes threads_cpu or threads_NAME .md and
.json to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import write_whole
from contest.runs import TorchRun, seconds

from sinksort.paper.machine import machine

RESULTS = Path(__file__).resolve().parent / "results"
#: Kind -> what Numba is told of the processor. Features that are named take the place of those of this machine.
KINDS = {
    "native": {},
    "avx2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2"},
    "sse2": {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2"},
}
SHAPES = ("128x100", "128x1000", "512x100")
EPS = (1e-2, 1e-3)
#: Shape and eps -> regularization_strength of torchsort's ranks that are as soft, from ``versus.py``; it depends on n.
STRENGTHS = {(10, 1e-2): 0.21, (10, 1e-3): 0.0814, (100, 1e-2): 0.0272, (100, 1e-3): 0.0218, (1000, 1e-2): 0.00297,
             (1000, 1e-3): 0.00266}  # fmt: skip
_REGIONS = 2000  #: calls without work
_WORK = 1e9  #: nanoseconds, as if there were much: all threads are asked for
Row = dict[str, Any]


def torchsort_rank() -> Callable[..., Any] | None:
    try:
        from torchsort import soft_rank
    except ImportError:
        return None
    return soft_rank  # type: ignore[no-any-return]


@functools.cache
def nothing() -> Callable[..., None]:
    """A kernel without work."""
    from sinksort.kernels.cpu.engine.compile import jit

    @jit
    def write(first: int, last: int, out: Any) -> None:
        for i in range(first, last):
            out[i] = i

    return write  # type: ignore[no-any-return]


def region(threads: int) -> Row:
    """Microseconds of a call that hands a kernel without work to so many threads, and of the kernel alone."""
    from sinksort.kernels.cpu.engine import threads as numba_tasks

    out = np.zeros(4 * threads)
    row: Row = {"threads": threads}
    for name, given in (("region", threads), ("alone", 1)):
        torch.set_num_threads(given)
        numba_tasks.run(nothing(), len(out), _WORK, out)
        times = []
        for _ in range(_REGIONS):
            began = time.perf_counter()
            numba_tasks.run(nothing(), len(out), _WORK, out)
            times.append(1e6 * (time.perf_counter() - began))
        tenth, *_, last = statistics.quantiles(times, n=10)
        row[name] = {"tenth": tenth, "median": statistics.median(times), "ninetieth": last}
    return row


def contestants(shape: str, eps: float) -> dict[str, TorchRun]:
    import sinksort

    R, n = (int(part) for part in shape.split("x"))
    x, w = (np.random.default_rng(seed).normal(size=(R, n)).astype(np.float32) for seed in (0, 1))
    found = {"sinksort": TorchRun(lambda t, e: sinksort.soft_rank(t, eps=e), eps, x, w, "cpu")}
    theirs, strength = torchsort_rank(), STRENGTHS.get((n, eps))
    if theirs is not None and strength is not None:
        found["torchsort"] = TorchRun(lambda t, s: theirs(t, regularization_strength=s), strength, x, w, "cpu")
    for run in found.values():
        run.ready()
    return found


def measured(options: argparse.Namespace) -> Row:
    """What one process measures."""
    torch.set_num_threads(1)
    for shape in options.shapes:  # compiled before anything is measured
        for run in contestants(shape, options.eps[0]).values():
            run.once("both")
    region(1)
    if options.compile_only:
        return {}
    regions = [region(threads) for threads in options.threads]
    cells: list[Row] = []
    for shape in options.shapes:
        for eps in options.eps:
            runs = contestants(shape, eps)
            for threads in options.threads:
                torch.set_num_threads(threads)
                ms: dict[str, list[float]] = {name: [] for name in runs}
                for _ in range(options.rounds):
                    for name, run in runs.items():
                        ms[name].append(1e3 * seconds(run, "both", options.sample))
                cells.append({"shape": shape, "eps": eps, "threads": threads, "ms": ms})
    return {"regions": regions, "cells": cells}


def process(kind: str, options: argparse.Namespace, compile_only: bool) -> subprocess.Popen[str]:
    words = [
        str(Path(__file__).resolve()),
        "--as",
        kind,
        "--rounds",
        str(options.rounds),
        "--sample",
        str(options.sample),
    ]
    words += ["--threads", *map(str, options.threads), "--shapes", *options.shapes, "--eps", *map(str, options.eps)]
    words += ["--compile-only"] * compile_only
    return subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True,
        env={"OMP_WAIT_POLICY": "passive", **os.environ, **KINDS[kind]},
    )  # fmt: skip


def _answer(kind: str, running: subprocess.Popen[str]) -> str:
    said, _ = running.communicate()
    if running.returncode != 0:
        raise SystemExit(f"threads.py: the process for {kind} ended with code {running.returncode}; see above.")
    return said


def table(kinds: dict[str, Row], facts: dict[str, Any], command: str) -> str:
    lines = [
        "# Threads",
        "",
        f"`{command}`: forward plus backward of `soft_rank` on float32 rows. Times are the least",
        "of the rounds, with the median in brackets. `x as fast` is against one thread of the same kind.",
        "",
        *(f"- {name}: {value}" for name, value in sorted(facts.items())),
        "",
        "## Handing out a kernel without work, microseconds",
        "",
        "| processor | threads | tenth percentile | median | ninetieth | alone, median |",
        "|---|---|---|---|---|---|",
    ]
    for kind, found in kinds.items():
        for row in found["regions"]:
            times = " | ".join(f"{row['region'][name]:.1f}" for name in ("tenth", "median", "ninetieth"))
            lines.append(f"| {kind} | {row['threads']} | {times} | {row['alone']['median']:.1f} |")
    lines += [
        "",
        "## Ranks, milliseconds",
        "",
        "| rows | eps | processor | threads | sinksort | x as fast | torchsort | sinksort / torchsort |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, found in kinds.items():
        alone = {
            (row["shape"], row["eps"]): min(row["ms"]["sinksort"]) for row in found["cells"] if row["threads"] == 1
        }
        for row in found["cells"]:
            ours, theirs = row["ms"]["sinksort"], row["ms"].get("torchsort")
            one = alone.get((row["shape"], row["eps"]))
            gain = "" if one is None else f"{one / min(ours):.2f}"
            beside = "|" if theirs is None else f"{_time(theirs)} | {min(ours) / min(theirs):.2f}"
            lines.append(
                f"| {row['shape']} | {row['eps']:g} | {kind} | {row['threads']} | {_time(ours)} | {gain} | {beside} |"
            )
    return "\n".join([*lines, ""])


def _time(ms: list[float]) -> str:
    return f"{min(ms):.3g} ({statistics.median(ms):.3g})"


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    cores = os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", nargs="+", type=int, default=[t for t in (1, 2, 4, 8, 16) if t <= cores])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="of processors")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), help="such as 128x1000")
    parser.add_argument("--eps", nargs="+", type=float, default=list(EPS))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--sample", type=float, default=0.02, help="seconds, at least, of a contestant in a round")
    parser.add_argument("--name", default="cpu", help="of the results: threads_NAME")
    parser.add_argument("--to", type=Path, default=RESULTS)
    parser.add_argument("--as", dest="kind", choices=list(KINDS), help=argparse.SUPPRESS)  # a process that measures
    parser.add_argument("--compile-only", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    options = arguments(given)
    if options.kind is not None:
        print(json.dumps(measured(options)))
        return
    compiling = {kind: process(kind, options, compile_only=True) for kind in options.kinds}
    for kind, running in compiling.items():
        _answer(kind, running)
    kinds = {kind: json.loads(_answer(kind, process(kind, options, compile_only=False))) for kind in options.kinds}
    facts = {
        **{name: value for name, value in machine(torch.device("cpu")).items() if name != "device"},
        "cpu": machine(torch.device("cpu"))["cpu"].rpartition(",")[0],
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive"),
        "load before": f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown",
    }  # fmt: skip
    words = list(sys.argv[1:] if given is None else given)
    if "--to" in words:  # a folder of this machine says nothing
        del words[words.index("--to") : words.index("--to") + 2]
    command = " ".join(["python benchmarks/threads.py", *words])
    stem = options.to / f"threads_{options.name}"
    text = table(kinds, facts, command)
    write_whole(
        stem.with_suffix(".json"),
        json.dumps({"machine": facts, "rounds": options.rounds, "kinds": kinds}, indent=1) + "\n",
    )
    write_whole(stem.with_suffix(".md"), text)
    print(text)


if __name__ == "__main__":
    main()
