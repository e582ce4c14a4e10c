"""What does a global soft rank cost beside a local one on the same shard?

    python benchmarks/distributed.py

Starts processes in a gloo group, one thread each. In every round all of them make together, one after the other: the
local call (each on its own shard), the global call, and one all-reduce of about what the global call sends, which is
the latency. A call takes as long as its slowest rank. Writes benchmarks/results/distributed.md and .json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import sinksort
import sinksort.distributed

WHAT = ("forward", "forward and backward")
LATENCY = "all-reduce of 4 KiB"
RESULTS = Path(__file__).resolve().parent / "results"


def forward(rank_them: Callable[..., torch.Tensor], x: torch.Tensor, eps: float) -> None:
    with torch.no_grad():
        rank_them(x, eps=eps)


def forward_backward(rank_them: Callable[..., torch.Tensor], x: torch.Tensor, eps: float) -> None:
    leaf = x.detach().requires_grad_()
    rank_them(leaf, eps=eps).backward(x)


def slowest(call: Callable[[], object]) -> float:
    """Seconds of the slowest rank."""
    dist.barrier()
    started = time.perf_counter()
    call()
    took = torch.tensor(time.perf_counter() - started)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def collectives(call: Callable[[], object]) -> int:
    """How many messages a call waits for."""
    count = 0
    own = dist.all_reduce, dist.all_gather

    def counted(collective: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kwargs: object) -> object:
            nonlocal count
            count += 1
            return collective(*args, **kwargs)

        return wrapped

    dist.all_reduce, dist.all_gather = counted(own[0]), counted(own[1])
    call()
    dist.all_reduce, dist.all_gather = own
    return count


def work(rank: int, processes: int, store: str, n: int, eps: float, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    x = torch.randn(n, generator=torch.Generator().manual_seed(rank))
    message = torch.zeros(512, dtype=torch.float64)
    calls: dict[str, Callable[[], object]] = {
        "local forward": lambda: forward(sinksort.soft_rank, x, eps),
        "global forward": lambda: forward(sinksort.distributed.soft_rank, x, eps),
        "local forward and backward": lambda: forward_backward(sinksort.soft_rank, x, eps),
        "global forward and backward": lambda: forward_backward(sinksort.distributed.soft_rank, x, eps),
        LATENCY: lambda: dist.all_reduce(message),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 2):
        for name, call in calls.items():
            took = slowest(call)
            if turn >= 2:  # two rounds to warm up
                seconds[name].append(took)
    waits = {what: collectives(calls[f"global {what}"]) for what in WHAT}
    if rank == 0:
        write(seconds, waits, n, eps, processes)
    dist.barrier()
    dist.destroy_process_group()


def write(seconds: dict[str, list[float]], waits: dict[str, int], n: int, eps: float, processes: int) -> None:
    quartiles = {name: [float(q) for q in np.quantile(took, [0.25, 0.5, 0.75])] for name, took in seconds.items()}
    ratios, without_latency = {}, {}
    for what in WHAT:
        ours, alone, latency = (np.array(seconds[k]) for k in (f"global {what}", f"local {what}", LATENCY))
        ratios[what] = float(np.median(ours / alone))
        without_latency[what] = float(np.median((ours - waits[what] * np.median(latency)) / alone))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, gloo, one thread a process"
    about = {"processes": processes, "values a process": n, "eps": eps, "dtype": "float32", "machine": machine}
    RESULTS.mkdir(exist_ok=True)
    rounds = len(seconds["local forward"])
    record = {**about, "rounds": rounds, "seconds": seconds, "collectives": waits, "ratios": ratios}
    (RESULTS / "distributed.json").write_text(json.dumps({**record, "without latency": without_latency}, indent=1))
    intro = f"{processes} processes, {n:,} float32 values each, eps = {eps:g}; {machine}. {rounds} interleaved rounds; "
    table = [
        f"| {name} | {1e3 * mid:.2f} | {1e3 * low:.2f} to {1e3 * high:.2f} |"
        for name, (low, mid, high) in quartiles.items()
    ]
    verdicts = [
        f"Global over local, {what}: {ratios[what]:.2f}; without its {waits[what]} waits for the others, each one "
        f"all-reduce long: {without_latency[what]:.2f}.  "
        for what in WHAT
    ]
    lines = [
        "# A global soft rank beside a local one",
        "",
        intro + "a call takes as long as its slowest process. Ratios are medians over the rounds.",
        "",
        "| call | median, ms | quartiles, ms |",
        "|---|---|---|",
        *table,
        "",
        *verdicts,
        "",
        "Made by `python benchmarks/distributed.py`.",
        "",
    ]
    (RESULTS / "distributed.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--n", type=int, default=1_000_000, help="values of each process")
    parser.add_argument("--eps", type=float, default=1e-2)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args = (options.processes, f"{folder}/store", options.n, options.eps, options.rounds)
        mp.start_processes(work, args=args, nprocs=options.processes, start_method="spawn")
