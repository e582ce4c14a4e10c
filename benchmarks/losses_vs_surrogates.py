"""Does training on a loss improve its metric more than the usual surrogate does?

    python benchmarks/losses_vs_surrogates.py

Trains every objective of ``loss_tasks`` with several seeds (other splits, other first weights), and writes the hard
metric on held-out data to benchmarks/results/losses_vs_surrogates.md and .json. An interrupted run goes on where it
stopped: finished trainings are kept in out/ until the tables are written.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import numpy as np
import scipy
import torch
from loss_tasks import OURS, TASKS, Task, run
from rich.progress import track
from scipy import stats

import sinksort
import sklearn

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
UNFINISHED = ROOT / "out" / "losses_vs_surrogates.jsonl"

Numbers = dict[str, dict[str, list[float]]]  # task -> objective -> a number for each seed


def measure(seeds: int) -> Numbers:
    """All trainings, those of an interrupted run from its file."""
    UNFINISHED.parent.mkdir(exist_ok=True)
    lines = UNFINISHED.read_text().splitlines() if UNFINISHED.exists() else []
    done = {(task, name, seed): value for task, name, seed, value in map(json.loads, lines)}
    wanted = [(task, name, seed) for task in TASKS for name in task.objectives for seed in range(seeds)]
    with UNFINISHED.open("a") as file:
        for task, name, seed in track(wanted, "training"):
            key = (task.name, name, seed)
            if key not in done:
                done[key] = run(task, task.objectives[name], seed)
                file.write(json.dumps([*key, done[key]]) + "\n")
                file.flush()
    return {
        task.name: {name: [done[task.name, name, seed] for seed in range(seeds)] for name in task.objectives}
        for task in TASKS
    }


def verdict(task: Task, ours: list[float], surrogates: dict[str, list[float]]) -> str:
    """Against each surrogate by a paired t test over the seeds, at 5%."""
    named: dict[str, list[str]] = {"beats": [], "ties with": [], "loses to": []}
    for name, theirs in surrogates.items():
        gain = np.subtract(theirs, ours) if task.better == "lower" else np.subtract(ours, theirs)
        tells = stats.ttest_1samp(gain, 0.0).pvalue < 0.05
        named["ties with" if not tells else "beats" if gain.mean() > 0 else "loses to"].append(name)
    return "; ".join(f"{how} {', '.join(names)}" for how, names in named.items() if names)


def table(numbers: Numbers) -> str:
    lines = [
        "| loss | data | hard metric, held out | sinksort | surrogates | sinksort ... |",
        "|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        values = numbers[task.name]
        surrogates = {name: v for name, v in values.items() if not name.startswith(OURS)}
        others = "; ".join(f"{name} {spread(v)}" for name, v in surrogates.items())
        arrow = "down" if task.better == "lower" else "up"
        for name in (name for name in values if name.startswith(OURS)):
            option = name.removeprefix(OURS)
            measured = f"{spread(values[name])} | {others} | {verdict(task, values[name], surrogates)}"
            lines.append(f"| `{task.loss}` | {task.setting}{option} | {task.metric} ({arrow}) | {measured} |")
    return "\n".join(lines) + "\n"


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def machine() -> dict[str, str]:
    return {
        "machine": f"{platform.machine()}, one thread of the CPU",
        "python": platform.python_version(),
        "sinksort": sinksort.__version__,
        "torch": torch.__version__,
        "scikit-learn": sklearn.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def page(numbers: Numbers, seeds: int, about: dict[str, str]) -> str:
    return (
        "# Losses against surrogates\n\n"
        f"Mean ± standard deviation over {seeds} seeds; a seed draws the split, the noise and the first weights. "
        "*Beats* and *loses to*: paired t test at 5% (splits of one data set overlap, and one comparison in twenty "
        "comes out by chance, so take it as a guide). Everything has default options and eps unless the row says so.\n"
        "Made by `python benchmarks/losses_vs_surrogates.py` with "
        + ", ".join(f"{name} {version}" for name, version in about.items())
        + ".\n\n"
        + table(numbers)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=14, help="trainings of each objective (default: %(default)s)")
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    numbers, about = measure(seeds), machine()
    RESULTS.mkdir(exist_ok=True)
    rows = [
        {"loss": t.loss, "setting": t.setting, "metric": t.metric, "better": t.better, "values": numbers[t.name]}
        for t in TASKS
    ]
    measured = json.dumps({"seeds": seeds, "environment": about, "tasks": rows}, indent=1) + "\n"
    (RESULTS / "losses_vs_surrogates.json").write_text(measured, encoding="utf-8")
    (RESULTS / "losses_vs_surrogates.md").write_text(page(numbers, seeds, about), encoding="utf-8")
    UNFINISHED.unlink()
    print(page(numbers, seeds, about))


if __name__ == "__main__":
    main()
