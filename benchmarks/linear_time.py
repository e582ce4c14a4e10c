"""How long a soft rank of very many values takes, beside a hard sort and a copy.

    python benchmarks/linear_time.py

Forward, and forward plus backward, of ``soft_rank`` and ``torch.sort`` on the same float32 values, in interleaved
rounds; then the peak of memory at 10^7 values, each in a process of its own. A cell is timed only when its ranks are
within 1e-5 n of a float64 run whose own error estimate is below 1e-9 n. Writes linear_time.md, .json and .png to
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import torch
from _common import growth
from rich.progress import Progress

import sinksort
from sinksort.paper.machine import machine

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).resolve().parent / "results"
EPS = (1e-2, 1e-3)
TARGETS = {1e-2: (0.5, 1.0), 1e-3: (1.0, 2.0)}  # wanted at n = 10^6: ratio to torch.sort, forward and with backward
Row = dict[str, float | int | str]


def values(n: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(0))


def tasks(n: int) -> dict[str, Callable[[], object]]:
    """Name -> what is timed. Each returns something, so that nothing is left out."""
    x, v = values(n), torch.randn(n, generator=torch.Generator().manual_seed(1))
    moving = x.clone().requires_grad_()

    def ranks(eps: float) -> torch.Tensor:
        with torch.no_grad():
            return sinksort.soft_rank(x, eps=eps)

    def rank_gradient(eps: float) -> torch.Tensor:
        return torch.autograd.grad(sinksort.soft_rank(moving, eps=eps), moving, v)[0]

    timed: dict[str, Callable[[], object]] = {
        "copy": x.clone,
        "torch.sort, forward": x.sort,
        "torch.sort, forward + backward": lambda: torch.autograd.grad(moving.sort().values, moving, v)[0],
    }
    for eps in EPS:
        timed[f"soft_rank {eps:g}, forward"] = lambda eps=eps: ranks(eps)
        timed[f"soft_rank {eps:g}, forward + backward"] = lambda eps=eps: rank_gradient(eps)
    return timed


def error(n: int, eps: float) -> float:
    """Largest difference from a float64 run, as a fraction of n."""
    x = values(n)
    exact = sinksort.smooth_transport(x.double(), eps=eps)
    assert exact.estimated_error <= 1e-9
    return ((sinksort.soft_rank(x, eps=eps) - exact.ranks()).abs().max() / n).item()


def timings(sizes: list[int], rounds: int) -> list[Row]:
    rows: list[Row] = []
    with Progress() as progress:
        bar = progress.add_task("timing", total=sum(_rounds(n, rounds) for n in sizes))
        for n in sizes:
            errors = {eps: error(min(n, 10**7), eps) for eps in EPS}
            for eps, off in errors.items():
                if off > 1e-5:
                    sys.exit(f"n = {n}, eps = {eps}: ranks are off by {off:.1e} n; nothing is timed")
            timed = tasks(n)
            seconds: dict[str, list[float]] = {name: [] for name in timed}
            for run in timed.values():
                run()
            for _ in range(_rounds(n, rounds)):
                for name, run in timed.items():
                    start = time.perf_counter()
                    run()
                    seconds[name].append(time.perf_counter() - start)
                progress.advance(bar)
            for name, spent in seconds.items():
                middle = statistics.median(spent)
                rows.append({"n": n, "task": name, "median": middle, "min": min(spent), "max": max(spent)})
            rows.extend({"n": n, "task": f"error {eps:g}", "median": off} for eps, off in errors.items())
    return rows


def _rounds(n: int, rounds: int) -> int:
    return rounds if n <= 10**6 else max(3, rounds // 4)


def peak(task: str, n: int) -> int:
    """Extra bytes at the worst moment of a task; run in a process of its own, on Linux."""
    tasks(100_000)[task]()  # what is loaded and made once
    grown, _ = growth(tasks(n)[task])
    if grown is None:
        sys.exit("the peak of memory is read from /proc, which only Linux has")
    return grown


def peaks(n: int) -> list[Row]:
    rows: list[Row] = []
    for task in tasks(1000):
        if task == "copy":
            continue
        command = [sys.executable, __file__, "--peak", task, "--size", str(n)]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append({"n": n, "task": task, "bytes": int(found.stdout)})
    return rows


def slope(rows: list[Row], task: str, smallest: int) -> float:
    """Of log time against log n, from ``smallest`` on, by least squares."""
    points = [(math.log(r["n"]), math.log(r["median"])) for r in rows if r["task"] == task and r["n"] >= smallest]
    mean = [statistics.mean(c) for c in zip(*points, strict=True)]
    above = sum((a - mean[0]) * (b - mean[1]) for a, b in points)
    return above / sum((a - mean[0]) ** 2 for a, _ in points)


def table(rows: list[Row], memory: list[Row], about: dict[str, str]) -> str:
    at = {(r["n"], r["task"]): r for r in rows}
    sizes = sorted({int(r["n"]) for r in rows})
    lines = [
        "# Soft ranks of very many values",
        "",
        "`python benchmarks/linear_time.py`: float32, normal values; median of interleaved rounds in milliseconds",
        "(smallest to largest), and the ratio to `torch.sort` of the same n. *Error*: the largest difference of a rank",
        "from a float64 run, over n (at most 10^7 values are compared).",
        "",
        *(f"- {name}: {what}" for name, what in about.items()),
        "",
    ]
    for backward in ("forward", "forward + backward"):
        lines += [f"## {backward.capitalize()}", "", "| n | copy | torch.sort | " + " | ".join(
            f"eps {eps:g} | ratio | error" for eps in EPS) + " |", "|" + "---|" * (3 + 3 * len(EPS))]  # fmt: skip
        for n in sizes:
            sort = at[n, f"torch.sort, {backward}"]
            cells = [f"10^{math.log10(n):g}", f"{1e3 * float(at[n, 'copy']['median']):.2f}", _spread(sort)]
            for eps in EPS:
                ours = at[n, f"soft_rank {eps:g}, {backward}"]
                ratio = float(ours["median"]) / float(sort["median"])
                cells += [_spread(ours), f"{ratio:.2f}", f"{at[n, f'error {eps:g}']['median']:.0e}"]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["## Growth", "", "Slope of log time against log n, from 10^5 on; 1 is linear.", ""]
    lines += [
        f"- soft_rank, eps {eps:g}, {way}: {slope(rows, f'soft_rank {eps:g}, {way}', 10**5):.3f}"
        for eps in EPS
        for way in ("forward", "forward + backward")
    ]
    n = int(memory[0]["n"]) if memory else 0
    lines += [
        "",
        f"## Memory at n = 10^{math.log10(n):g}",
        "",
        "Growth of the process at the worst moment, over the input.",
        "",
    ]
    lines += [f"- {r['task']}: {int(r['bytes']) / (4 * n):.1f} times" for r in memory]
    return "\n".join(lines) + "\n"


def _spread(row: Row) -> str:
    return f"{1e3 * float(row['median']):.1f} ({1e3 * float(row['min']):.1f} to {1e3 * float(row['max']):.1f})"


def plot(rows: list[Row], path: Path) -> None:
    fig, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for ax, way in zip(axes, ("forward", "forward + backward"), strict=True):
        for task, style in (
            (f"torch.sort, {way}", "k--"),
            (f"soft_rank 0.01, {way}", "C0o-"),
            (f"soft_rank 0.001, {way}", "C1s-"),
            ("copy", "k:"),
        ):
            points = sorted((int(r["n"]), float(r["median"])) for r in rows if r["task"] == task)
            ax.loglog(
                *zip(*points, strict=True), style, label=task.split(",")[0].replace("soft_rank ", "soft_rank, eps ")
            )
        ax.set(title=way, xlabel="n")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("seconds")
    axes[0].legend()
    fig.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=8, help="largest n as a power of ten")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(peak(options.peak, options.size))
        return
    sizes = [10**k for k in range(4, options.largest + 1)]
    rows, memory = timings(sizes, options.rounds), peaks(10 ** min(7, options.largest))
    about = machine(torch.device("cpu"))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "linear_time.json").write_text(json.dumps({"about": about, "timings": rows, "memory": memory}, indent=1))
    text = table(rows, memory, about)
    (RESULTS / "linear_time.md").write_text(text)
    plot(rows, RESULTS / "linear_time.png")
    print(text)


if __name__ == "__main__":
    main()
