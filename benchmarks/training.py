"""Does it train well? Programs of other libraries in small, with ours and everybody else's losses in their place.

    python benchmarks/training.py                      # all tasks, ten seeds; goes on where it stopped
    python benchmarks/training.py --tasks sort5 knn    # some of them
    python benchmarks/training.py --page               # write the page from what has been measured

Every training is one line of out/training.jsonl as soon as it is done. The page has, for each task, the hard metric on
test data with the default softness of a method, with the softness that validation data choose, and milliseconds a step.
Peers that are not installed are left out, and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
from pathlib import Path

import numpy as np
import torch
from _common import write_whole
from trials import Method, Outcome, Task, choosing, classes, ordering, sorting, step_times, train
from trials.page import page

import sinksort

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MEASURED = ROOT / "out" / "training.jsonl"
TASKS: tuple[Task, ...] = (*sorting.TASKS, *classes.TASKS, *ordering.TASKS, *choosing.TASKS)

Key = tuple[str, str, float, int]  # task, method, softness, seed


def missing(method: Method) -> bool:
    return bool(method.needs) and importlib.util.find_spec(method.needs) is None


def read(path: Path) -> tuple[dict[Key, Outcome], dict[tuple[str, str], list[float]]]:
    """Trainings, and milliseconds of steps, of one or several runs."""
    done: dict[Key, Outcome] = {}
    times: dict[tuple[str, str], list[float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        entry = json.loads(line)
        if "times" in entry:
            times[entry["task"], entry["method"]] = entry["times"]
        else:
            key = entry["task"], entry["method"], entry["softness"], entry["seed"]
            done[key] = Outcome(entry["valid"], entry["test"], entry["step"])
    return done, times


def add(**entry: object) -> None:
    MEASURED.parent.mkdir(exist_ok=True)
    with MEASURED.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def measure(tasks: list[Task], seeds: range) -> None:
    """Seed by seed, so that what is there at any time is there for all methods."""
    done, _ = read(MEASURED)
    for seed in seeds:
        for task in tasks:
            for method in task.methods:
                for softness in () if missing(method) else method.grid:
                    if (task.name, method.name, softness, seed) in done:
                        continue
                    try:
                        found = train(task, method.make(softness), seed)
                    except (ArithmeticError, ValueError, RuntimeError) as error:  # a peer that does not live through it
                        print(f"{task.name}, {method.name} at {softness:g}: {error}", flush=True)
                        found = Outcome(float("nan"), float("nan"), float("nan"))
                    add(task=task.name, method=method.name, softness=softness, seed=seed, **vars(found))
            print(f"seed {seed}: {task.name}", flush=True)


def clock(tasks: list[Task]) -> None:
    """Milliseconds of a step of each method, in turns, so that a busy machine is as busy for all."""
    for task in tasks:
        methods = [method for method in task.methods if not missing(method)]
        found = step_times(task, [method.make(method.default) for method in methods])
        for method, times in zip(methods, found, strict=True):
            add(task=task.name, method=method.name, times=times)


def about() -> dict[str, str]:
    return {
        "machine": f"{platform.machine()}, one thread of the CPU, shared with other work",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "sinksort": sinksort.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [task.name for task in TASKS]
    parser.add_argument("--tasks", nargs="+", choices=names, default=names, help="default: all of them")
    parser.add_argument("--seeds", type=int, default=10, help="trainings of each method (default: %(default)s)")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--clock", action="store_true", help="measure the time of steps only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [task for task in TASKS if task.name in options.tasks]
    if not (options.page or options.clock):
        measure(chosen, range(options.seeds))
    if options.clock:
        clock(chosen)
    done, times = read(MEASURED)
    if options.page:
        text, raw = page(TASKS, done, times, about())
        write_whole(RESULTS / "training.json", json.dumps(raw, indent=1) + "\n")
        write_whole(RESULTS / "training.md", text)


if __name__ == "__main__":
    main()
