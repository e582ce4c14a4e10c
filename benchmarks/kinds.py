"""Soft ranks of rows of many kinds: with ties, gaps, edges and tails, which take more work than normal ones.

    python benchmarks/kinds.py
    python benchmarks/kinds.py --device cuda

Forward plus backward of ``soft_rank`` on float32 rows, called from Python and on a GPU also as a CUDA graph, beside
``torch.sort`` of the same rows; kinds take turns. Errors are those of the first rows against float64, of ranks over n
and of gradients (random cotangents, relative, the worst row); where they exceed 1e-5 or 1e-3 no time is told. Writes
kinds_cpu or kinds_NAME .md and .json to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import write_whole
from contest.runs import TorchRun, seconds
from rich.progress import track
from torch import Tensor

import sinksort
from sinksort.paper.machine import machine

RESULTS = Path(__file__).resolve().parent / "results"
SHAPES = ("128x100", "128x300", "128x1000", "1x1e5")
EPS = (1e-2, 1e-3)
CHECKED = 4  #: rows that are compared with float64
LARGEST = 3000  #: values of a row that is compared with the whole plan
_SAMPLE = 0.02  #: seconds, at least
RANKS, GRADIENTS = 1e-5, 1e-3  #: errors up to which a row is answered
Row = dict[str, Any]


def _two_clusters(z: Tensor) -> Tensor:
    return 10.0 * (torch.arange(z.shape[-1]) % 2) + 0.1 * z


#: From standard normal rows.
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda z: z,
    "uniform": torch.special.ndtr,
    "relu": torch.relu,
    "softmax": lambda z: z.softmax(-1),
    "lognormal": lambda z: (1.5 * z).exp(),
    "zero or one": lambda z: (z > 0).float(),
    "two clusters": _two_clusters,
    "tenths": lambda z: (10.0 * z).round() / 10.0,
}


def rows_of(kind: str, shape: str) -> Tensor:
    R, n = (int(float(part)) for part in shape.split("x"))
    return KINDS[kind](torch.randn(R, n, generator=torch.Generator().manual_seed(n)))


def ranked(x: Tensor, w: Tensor, eps: float, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Ranks, and their gradient."""
    x = x.detach().requires_grad_()
    # Where rows are long, the reference has an estimate of its own error, 1e-9 of n.
    solver = sinksort.Newton(compress=False) if backend == "torch" and x.shape[-1] <= LARGEST else sinksort.Newton()
    ranks = sinksort.soft_rank(x, eps=eps, backend=backend, solver=solver)
    return ranks.detach(), torch.autograd.grad(ranks, x, w)[0]


def errors(x: Tensor, w: Tensor, eps: float) -> tuple[float, float]:
    few, cotangents = x[:CHECKED], w[:CHECKED]
    found, gradient = (t[:CHECKED].double() for t in ranked(x, w, eps))
    true, true_gradient = ranked(few.double(), cotangents.double(), eps, backend="torch")
    off = (gradient - true_gradient).norm(dim=-1) / true_gradient.norm(dim=-1)
    return (found - true).abs().max().item() / x.shape[-1], off.max().item()


def _soft(x: Tensor, eps: float) -> Tensor:
    return sinksort.soft_rank(x, eps=eps)


def _hard(x: Tensor, _eps: float) -> Tensor:
    return torch.sort(x).values


def measured(shape: str, eps: float, device: str, rounds: int) -> list[Row]:
    found: list[Row] = []
    contestants: dict[tuple[str, str], TorchRun] = {}
    for kind in KINDS:
        x = rows_of(kind, shape)
        w = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
        off = errors(x.to(device), w.to(device), eps)
        found.append({"shape": shape, "eps": eps, "kind": kind, "ranks": off[0], "gradients": off[1], "ms": {}})
        if not (off[0] <= RANKS and off[1] <= GRADIENTS):
            continue
        given = eps, x.numpy(), w.numpy(), device
        contestants[kind, "soft_rank"] = TorchRun(_soft, *given)
        contestants[kind, "torch.sort"] = TorchRun(_hard, *given)
        if device == "cuda":
            contestants[kind, "graph"] = TorchRun(_soft, *given, graph=True)
    for run in contestants.values():
        run.ready()
    samples: dict[tuple[str, str], list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            samples[name].append(1e3 * seconds(run, "both", _SAMPLE))
    for row in found:
        row["ms"] = {who: times for (kind, who), times in samples.items() if kind == row["kind"]}
    return found


def table(rows: list[Row], facts: dict[str, Any]) -> str:
    lines = [
        "# Rows of many kinds",
        "",
        "`python benchmarks/kinds.py`: forward plus backward of `soft_rank` and of `torch.sort`, medians in",
        "milliseconds (with the quartiles), called from Python and on a GPU also as a CUDA graph; errors against",
        "float64, of the first rows. No time is told where ranks are off by 1e-5 n or gradients by 1e-3.",
        "",
        *(f"- {name}: {value}" for name, value in sorted(facts.items())),
        "",
        "| rows | eps | kind | `soft_rank` | CUDA graph | `torch.sort` | error of ranks / n | of gradients |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        times = [_median(row["ms"].get(who, [])) for who in ("soft_rank", "graph", "torch.sort")]
        off = f"{row['ranks']:.0e} | {row['gradients']:.0e}"
        lines.append(f"| {row['shape']} | {row['eps']:g} | {row['kind']} | {' | '.join(times)} | {off} |")
    return "\n".join([*lines, ""])


def _median(samples: list[float]) -> str:
    if len(samples) < 2:
        return ""
    low, middle, high = statistics.quantiles(samples, n=4)
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), help="such as 128x1000 1x1e5")
    parser.add_argument("--eps", nargs="+", type=float, default=list(EPS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--name", help="of the results: kinds_NAME (default: the device)")
    parser.add_argument("--to", type=Path, default=RESULTS)
    options = parser.parse_args()
    cells = [(shape, eps) for shape in options.shapes for eps in options.eps]
    rows: list[Row] = []
    for shape, eps in track(cells, "rows"):
        rows += measured(shape, eps, options.device, options.rounds)
    facts, name = machine(torch.device(options.device)), f"kinds_{options.name or options.device}"
    write_whole(options.to / f"{name}.json", json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    write_whole(options.to / f"{name}.md", table(rows, facts))
    print(table(rows, facts))


if __name__ == "__main__":
    main()
