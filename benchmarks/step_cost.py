"""What the 0/1 loss adds to a training step, beside cross-entropy.

    python benchmarks/step_cost.py

The classifiers of ``sinksort reproduce cifar100`` on random images: a step is forward, loss, backward and Adam, on a
GPU as one CUDA graph, as the experiments take it. Losses take turns in random order; times are medians over rounds with
their quartiles, and the ratio is that of the medians. Writes step_cost.md and .json to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import write_whole
from rich.progress import track

from sinksort.paper.cifar import Cifar100, Classifiers
from sinksort.paper.machine import machine
from sinksort.paper.networks import ResNet18, VanillaCNN
from sinksort.paper.training import eager, graphed

RESULTS = Path(__file__).resolve().parent / "results"
NETWORKS = {"cnn": VanillaCNN, "resnet18": ResNet18}
LOSSES = ("cross-entropy", "top1", "top1-log", "top1-raw")
CELLS = (("cnn", 128), ("resnet18", 128), ("resnet18", 512))
Row = dict[str, Any]


def images(count: int) -> tuple[Any, Any]:
    source = np.random.default_rng(0)
    return source.integers(0, 256, (count, 3, 32, 32), np.uint8), source.integers(0, 100, count).astype(np.uint8)


def stepper(network: str, batch: int, loss: str, device: torch.device) -> Callable[[int], None]:
    """Takes so many steps, and waits for them."""
    data = images(8 * batch)
    knobs = Cifar100(batch=batch)
    task = Classifiers(knobs, data, data, lambda: NETWORKS[network](100), loss, (0,), device)
    cuda = device.type == "cuda"
    optimizer = torch.optim.Adam(task.model.parameters(), lr=knobs.learning_rate, capturable=cuda, fused=cuda)
    step = graphed(task, optimizer) if cuda else eager(task, optimizer)
    batches = task.batches(0)
    task.model.train()

    def take(steps: int) -> None:
        for i in range(steps):
            step({name: values[i % 8] for name, values in batches.items()})
        if cuda:
            torch.cuda.synchronize(device)

    return take


def measured(network: str, batch: int, device: torch.device, rounds: int, steps: int) -> Row:
    takes = {loss: stepper(network, batch, loss, device) for loss in LOSSES}
    for take in takes.values():
        take(steps)
    samples: dict[str, list[float]] = {loss: [] for loss in LOSSES}
    order = random.Random(0)
    for _ in range(rounds):
        for loss in order.sample(LOSSES, len(LOSSES)):
            began = time.perf_counter()
            takes[loss](steps)
            samples[loss].append(1e3 * (time.perf_counter() - began) / steps)
    return {"network": network, "batch": batch, "ms": samples}


def table(rows: list[Row], facts: dict[str, Any]) -> str:
    lines = [
        "# What the 0/1 loss adds to a training step",
        "",
        "`python benchmarks/step_cost.py`: forward, loss, backward and Adam, on a GPU as one CUDA graph, of the",
        "classifiers of `sinksort reproduce cifar100` on random images. Medians over rounds in milliseconds (with the",
        "quartiles), and over cross-entropy.",
        "",
        *(f"- {name}: {value}" for name, value in sorted(facts.items())),
        "",
        "| network | logits | loss | ms a step | over cross-entropy |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        usual = statistics.median(row["ms"]["cross-entropy"])
        for loss, samples in row["ms"].items():
            low, middle, high = statistics.quantiles(samples, n=4)
            shape = f"{row['batch']} x 100"
            ratio = f"{middle / usual:.3f}"
            lines.append(f"| {row['network']} | {shape} | {loss} | {middle:.3f} ({low:.3f} to {high:.3f}) | {ratio} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=50, help="in a sample")
    parser.add_argument("--cells", nargs="*", default=[f"{network}:{batch}" for network, batch in CELLS])
    parser.add_argument("--to", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = torch.device(options.device)
    cells = [cell.split(":") for cell in options.cells]
    rows = [
        measured(network, int(batch), device, options.rounds, options.steps)
        for network, batch in track(cells, "networks")
    ]
    facts = machine(device)
    write_whole(options.to / "step_cost.json", json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    write_whole(options.to / "step_cost.md", table(rows, facts))
    print(table(rows, facts))


if __name__ == "__main__":
    main()
