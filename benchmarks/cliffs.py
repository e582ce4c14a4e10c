"""What a step aside costs: ``soft_rank`` with an option, another loss or another read-out, beside a plain one.

    python benchmarks/cliffs.py
    python benchmarks/cliffs.py --cells float64 "learned eps" --eps 1e-2
    python benchmarks/cliffs.py --device cuda

Forward plus backward of 128 x 100 values, in units of a plain float32 ``soft_rank`` of the same round; all cells take
turns. The first rows of each are compared with the torch implementation in float64 before anything is timed. Medians
over the rounds (with the quartiles); a cell above what it may take is marked. Writes cliffs_cpu or cliffs_NAME .md and
.json to benchmarks/results/.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin slow everybody down on small machines

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from _common import write_whole
from rich.progress import track
from torch import Tensor

import sinksort
from sinksort.paper.machine import machine

RESULTS = Path(__file__).resolve().parent / "results"
ROWS, VALUES = 128, 100
EPS = (1e-2, 1e-3)
CHECKED = 8  #: rows that are compared with float64
_SAMPLE = 0.03  #: seconds, at least
_NOTHING_TO_COMPARE = 1e-3  #: of the natural size of a gradient: what smaller ones are compared with

Answers: TypeAlias = tuple[Tensor, ...]


class Given(NamedTuple):
    """Rows and whatever a cell takes besides, in the dtype that it is asked in. Numbers depend on the seed alone."""

    x: Tensor  #: (R, n)
    v: Tensor  #: (R, n) the cotangent
    weights: Tensor  #: (R, n)
    kept: Tensor  #: (R, n) of 100 values, some 50 to 100 are not padding
    payload: Tensor  #: (R, n)
    shares: Tensor  #: (R, n, n) the cotangent of a matrix
    eps: float
    solver: Any

    @property
    def options(self) -> dict[str, Any]:
        return {"eps": self.eps, "solver": self.solver}

    def moving(self) -> Tensor:
        return self.x.detach().requires_grad_()

    def some(self, rows: int) -> Given:
        return Given(*(t[:rows] if isinstance(t, Tensor) else t for t in self))

    def to(self, dtype: torch.dtype) -> Given:
        floats = (t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t for t in self)
        return Given(*floats)


def given(rows: int, values: int, eps: float, device: str) -> Given:
    rng = torch.Generator().manual_seed(values)
    shape = rows, values
    x, v, payload = (torch.randn(shape, generator=rng) for _ in range(3))
    lengths = torch.randint(values // 2, values + 1, (rows, 1), generator=rng)
    tensors = (x, v, torch.rand(shape, generator=rng) + 0.5, torch.arange(values) < lengths, payload,
               torch.randn(rows, values, values, generator=rng))  # fmt: skip
    return Given(*(t.to(device) for t in tensors), eps, sinksort.Newton())


def _read(answer: Tensor, inputs: tuple[Tensor, ...], v: Tensor) -> Answers:
    return answer.detach(), *torch.autograd.grad(answer, inputs, v)


# ---- what is measured: from what is given to an answer and its gradients


def plain(at: Given, **options: Any) -> Answers:
    x = at.moving()
    return _read(sinksort.soft_rank(x, **(at.options | options)), (x,), at.v)


def learned_weights(at: Given) -> Answers:
    x, a = at.moving(), at.weights.detach().requires_grad_()
    return _read(sinksort.soft_rank(x, weights=a, **at.options), (x, a), at.v)


def learned_eps(at: Given) -> Answers:
    x, eps = at.moving(), torch.tensor(at.eps, dtype=at.x.dtype, device=at.x.device, requires_grad=True)
    return _read(sinksort.soft_rank(x, **(at.options | {"eps": eps})), (x, eps), at.v)


def eps_tensor(at: Given) -> Answers:
    return plain(at, eps=torch.tensor(at.eps, dtype=at.x.dtype, device=at.x.device))


def eps_each(at: Given) -> Answers:
    return plain(at, eps=torch.full(at.x.shape[:1], at.eps, dtype=at.x.dtype, device=at.x.device))


def sort(at: Given, **options: Any) -> Answers:
    x = at.moving()
    return _read(sinksort.soft_sort(x, **(at.options | options)), (x,), at.v)


def sort_with(at: Given) -> Answers:
    x = at.moving()
    return _read(sinksort.sort_with(at.payload, x, **at.options), (x,), at.v)


def normalize(at: Given) -> Answers:
    x = at.moving()
    return _read(sinksort.quantile_normalize(x, at.payload[0], **at.options), (x,), at.v)


def permutation(at: Given) -> Answers:
    x = at.moving()
    return _read(sinksort.soft_permutation(x, **at.options), (x,), at.shares)


def transport(at: Given) -> Answers:
    x = at.moving()
    return _read(sinksort.transport(x, **at.options).ranks(), (x,), at.v)


def twice(at: Given) -> Answers:
    x = at.moving()
    ranks = sinksort.soft_rank(x, **at.options)
    (gradient,) = torch.autograd.grad(ranks, x, at.v, create_graph=True)
    return gradient.detach(), *torch.autograd.grad(gradient, x, at.payload)


def toy(at: Given) -> Answers:
    x = at.moving()
    ranks = sinksort.soft_rank(x, **at.options)
    ranks.square().mean().backward()
    assert x.grad is not None
    return ranks.detach(), x.grad


def ties(at: Given) -> Answers:
    return plain(at._replace(x=at.x.relu()))


class Bounds(NamedTuple):
    """How many plain calls a cell may take, and in which dtype it is asked."""

    cpu: float
    cuda: float = math.inf
    dtype: torch.dtype = torch.float32
    eps: float | None = None  #: its own


CELLS: dict[str, tuple[Callable[[Given], Answers], Bounds]] = {
    "float64": (plain, Bounds(12, 10, torch.float64)),
    "learned weights": (learned_weights, Bounds(8, 10)),
    "learned eps": (learned_eps, Bounds(4, 10)),
    "eps a tensor": (eps_tensor, Bounds(1.3)),
    "eps a tensor, one a row": (eps_each, Bounds(2)),
    "weights": (lambda at: plain(at, weights=at.weights), Bounds(2)),
    "padded rows": (lambda at: plain(at, mask=at.kept), Bounds(2.5)),
    "eps 1e-4": (plain, Bounds(6, eps=1e-4)),
    "cost 1": (lambda at: plain(at, cost=1), Bounds(30, 25)),
    "cost 1.5": (lambda at: plain(at, cost=1.5), Bounds(30, 25)),
    "Huber's cost": (lambda at: plain(at, cost=sinksort.Huber(0.1)), Bounds(30)),
    "callable squash": (lambda at: plain(at, squash=torch.sigmoid), Bounds(3)),
    "sort_with": (sort_with, Bounds(6)),
    "quantile_normalize": (normalize, Bounds(5)),
    "weighted sort": (lambda at: sort(at, weights=at.weights), Bounds(3)),
    "soft_permutation": (permutation, Bounds(12)),
    "transport().ranks()": (transport, Bounds(20)),
    "double backward": (twice, Bounds(30)),
    "soft_rank(x).square().mean()": (toy, Bounds(2)),
    "ties": (ties, Bounds(2.5)),
}
#: Largest errors of answers (of ranks over n) and of gradients (over the largest of the row).
_LIMITS = {torch.float32: (1e-5, 1e-3), torch.float64: (1e-8, 1e-5)}
_VALUES = ("sort_with", "quantile_normalize", "weighted sort", "soft_permutation")  #: what answers with no ranks
_TWICE, _TOY = "double backward", "soft_rank(x).square().mean()"


def errors(name: str, at: Given) -> tuple[float, float]:
    """Of the answer of the first rows, and of its gradients, against the torch implementation in float64.

    Nearly all of the toy loss's gradient cancels: it is compared with a thousandth of what it is a difference of.
    """
    read, bounds = CELLS[name]
    few = at.some(CHECKED)
    found = read(few.to(bounds.dtype))
    exact = few.to(torch.float64)._replace(solver=sinksort.Newton(compress=False))
    if bounds.eps is not None:
        exact = exact._replace(eps=bounds.eps)
    answer, *gradients = read(exact)
    least = 0.0
    if name == _TOY:
        n = exact.x.shape[-1]
        least = 1e-3 * n / exact.x.std().item() * 2 * n / answer.numel()
    parts = [_relative(each, true, least) for each, true in zip(found[1:], gradients, strict=True)]
    if name == _TWICE:
        return 0.0, max(_relative(found[0], answer, 0.0), *parts)
    off = (found[0].double() - answer).abs().max().item()
    return off / (1.0 if name in _VALUES else exact.x.shape[-1]), max(parts)


def _relative(found: Tensor, true: Tensor, least: float) -> float:
    """The worst of the rows; a number is one."""
    found, true = (t.double().reshape(len(t), -1) if t.ndim > 1 else t.double().reshape(1, -1) for t in (found, true))
    largest = true.abs().amax(-1).clamp(min=least)
    return ((found - true).abs().amax(-1) / largest).max().item()


# ---- time


def _timed(read: Callable[[Given], Answers], at: Given, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        read(at)
    if at.x.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def measured(names: list[str], eps: float, device: str, rounds: int) -> list[dict[str, Any]]:
    """One record a cell: errors, and milliseconds of each round beside those of a plain call."""
    at = given(ROWS, VALUES, eps, device)
    found, asked = [], {"plain": (plain, at, 0)}
    for name in names:
        read, bounds = CELLS[name]
        if bounds.eps is not None:
            at_own = at._replace(eps=bounds.eps)
        off = errors(name, at if bounds.eps is None else at_own)
        limits = _LIMITS[bounds.dtype]
        fine = all(error <= limit for error, limit in zip(off, limits, strict=True))
        found.append({"cell": name, "eps": eps, "errors": off, "fine": fine, "ms": [], "plain": []})
        if fine:
            asked[name] = read, (at if bounds.eps is None else at_own).to(bounds.dtype), 0
    for name, (read, own, _) in asked.items():
        _timed(read, own, 3)
        asked[name] = read, own, max(1, math.ceil(_SAMPLE / _timed(read, own, 3)))
    for _ in range(rounds):
        took = {name: 1e3 * _timed(*each) for name, each in asked.items()}
        for record in found:
            if record["fine"]:
                record["ms"].append(took[record["cell"]])
                record["plain"].append(took["plain"])
    return found


# ---- the table


def ratios(record: dict[str, Any]) -> list[float]:
    return [ms / alone for ms, alone in zip(record["ms"], record["plain"], strict=True)]


def table(records: list[dict[str, Any]], facts: dict[str, Any], device: str) -> str:
    lines = [
        "# What a step aside costs",
        "",
        f"`python benchmarks/cliffs.py`: forward plus backward of {ROWS} x {VALUES} values, in units of a plain",
        "float32 `soft_rank` of the same round: medians (with the quartiles). Errors: the first rows against the",
        "torch implementation in float64: of answers (of ranks over n), of gradients over the largest of the row.",
        "No time is told where they exceed 1e-5 and 1e-3 (float64: 1e-8 and 1e-5). Above its bound: bold.",
        "",
        *(f"- {name}: {value}" for name, value in sorted(facts.items())),
        "",
        "| cell | eps | at most | times a plain `soft_rank` | milliseconds | error of answers | of gradients |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in records:
        bounds = CELLS[record["cell"]][1]
        most = bounds.cuda if device == "cuda" else bounds.cpu
        at = bounds.eps or record["eps"]
        times = milliseconds = "wrong"
        if record["ms"]:
            low, middle, high = _quartiles(ratios(record))
            times = f"{middle:.3g} ({low:.3g} to {high:.3g})"
            times = f"**{times}**" if middle > most else times
            milliseconds = f"{statistics.median(record['ms']):.3g}"
        off = f"{record['errors'][0]:.0e} | {record['errors'][1]:.0e}"
        least = f"{most:g}" if most < math.inf else ""
        lines.append(f"| {record['cell']} | {at:g} | {least} | {times} | {milliseconds} | {off} |")
    alone = [statistics.median(record["plain"]) for record in records if record["plain"]]
    if alone:
        lines += ["", f"A plain call takes {min(alone):.3g} to {max(alone):.3g} ms."]
    return "\n".join([*lines, ""])


def _quartiles(samples: list[float]) -> tuple[float, float, float]:
    if len(samples) < 2:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def _within(records: list[dict[str, Any]], device: str) -> bool:
    def most(record: dict[str, Any]) -> float:
        bounds = CELLS[record["cell"]][1]
        return bounds.cuda if device == "cuda" else bounds.cpu

    return all(r["fine"] and statistics.median(ratios(r)) <= most(r) for r in records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS), metavar="CELL")
    parser.add_argument("--eps", nargs="+", type=float, default=list(EPS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2, help="on a CPU")
    parser.add_argument("--name", help="of the results: cliffs_NAME (default: the device)")
    parser.add_argument("--to", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    records: list[dict[str, Any]] = []
    for eps in track(options.eps, "cells"):
        records += measured(options.cells, eps, options.device, options.rounds)
    facts, name = machine(torch.device(options.device)), f"cliffs_{options.name or options.device}"
    write_whole(options.to / f"{name}.json", json.dumps({"machine": facts, "records": records}, indent=1) + "\n")
    text = table(records, facts, options.device)
    write_whole(options.to / f"{name}.md", text)
    print(text)
    raise SystemExit(0 if _within(records, options.device) else 1)


if __name__ == "__main__":
    main()
