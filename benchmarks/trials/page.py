"""The page of ``training.py``, from what has been measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from . import Method, Outcome, Task

Done = Mapping[tuple[str, str, float, int], Outcome]
Times = Mapping[tuple[str, str], list[float]]

MARGIN, LEVEL = 0.01, 0.05
FEWEST = 5  #: seeds from which a task has a verdict
KINDS = {"ours": "**ours, by default**", "option": "ours", "scale": "ours", "peer": "peer", "usual": "usual"}
HEAD = """# Training with ours and with everybody else's losses

Small programs after those of other libraries, each trained with every method that could take its place: the same data,
first weights, batches, steps and optimiser (Adam), and the network after its last step. A seed draws the split, the
noise and the weights.

*Default* is the hard metric on test data with the method's own softness. *Tuned* is that with the softness which the
validation data of each seed choose out of {most} or fewer. Both are mean ± standard deviation over the seeds. *Against
ours* is the mean difference of the tuned method from our default, and its p by a paired t test with Holm's correction
over the methods of the table. A difference counts from {margin:g} and p < {level:g}. Splits of one data set overlap, so
that p is a guide. Milliseconds of a step are medians of turns on a busy machine: they compare within a table only.

Peers are run from their packages (diffsort, difftopk, torchsort). Coordinate descent, Laplace sums, NeuralNDCG and
ApproxNDCG are written after their papers. Made by `python benchmarks/training.py` with {about}.
"""


def page(tasks: Sequence[Task], done: Done, times: Times, about: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """The text, and the raw numbers."""
    most = max(len(method.grid) for task in tasks for method in task.methods)
    said = ", ".join(f"{name} {version}" for name, version in about.items())
    parts = [HEAD.format(most=most, margin=MARGIN, level=LEVEL, about=said)]
    raw: dict[str, Any] = {"environment": dict(about), "tasks": []}
    verdicts = []
    for task in tasks:
        rows = _rows(task, done)
        if any(method.kind == "ours" for method in rows):
            text, verdict = _section(task, rows, times)
            parts.append(text)
            verdicts.append(verdict)
            raw["tasks"].append({"task": task.name, "metric": task.metric, "methods": _raw(task, rows, times)})
    parts.insert(1, "## In short\n\n" + "\n".join(verdicts) + "\n")
    return "\n".join(parts), raw


def _rows(task: Task, done: Done) -> dict[Method, dict[float, list[Outcome]]]:
    """Outcomes of the seeds that every method has, by softness."""
    seeds: set[int] | None = None
    measured = []
    for method in task.methods:
        here = {s: {seed for t, m, at, seed in done if (t, m, at) == (task.name, method.name, s)} for s in method.grid}
        if all(here.values()):
            measured.append(method)
            common = set.intersection(*here.values())
            seeds = common if seeds is None else seeds & common
    ordered = sorted(seeds or ())
    return {
        method: {s: [done[task.name, method.name, s, seed] for seed in ordered] for s in method.grid}
        for method in measured
        if ordered
    }


def _default(method: Method, outcomes: dict[float, list[Outcome]]) -> np.ndarray:
    return np.array([each.test for each in outcomes[method.default]])


def _tuned(outcomes: dict[float, list[Outcome]]) -> np.ndarray:
    """What validation data choose, seed by seed; the first of equals."""
    valid = np.array([[each.valid for each in of_seeds] for of_seeds in outcomes.values()])
    test = np.array([[each.test for each in of_seeds] for of_seeds in outcomes.values()])
    best = np.where(np.isnan(valid), -np.inf, valid).argmax(0)
    return np.take_along_axis(test, best[None], 0)[0]


def _section(task: Task, rows: dict[Method, dict[float, list[Outcome]]], times: Times) -> tuple[str, str]:
    ours = next(_default(m, outcomes) for m, outcomes in rows.items() if m.kind == "ours")
    gains = {m: _tuned(o) - ours for m, o in rows.items() if m.kind != "ours"}
    p = _holm({m: _p(gain) for m, gain in gains.items()})
    count = len(next(iter(next(iter(rows.values())).values())))
    lines = [
        f"## {task.name}",
        "",
        f"{task.what[0].upper()}{task.what[1:]}; {task.steps} steps, {count} seeds. Metric: {task.metric}.",
        "",
        "| method | | default | tuned | against ours | ms |",
        "|---|---|---|---|---|---|",
    ]
    better = []
    for method, outcomes in rows.items():
        against = ""
        if method in gains:
            gain, mine = gains[method].mean(), p[method]
            against = f"{gain:+.3f} (p = {mine:.2f})"
            if gain > MARGIN and mine < LEVEL:
                better.append(method.name)
                against = f"**{against}**"
        ms = times.get((task.name, method.name))
        lines.append(
            f"| {method.name} ({method.default:g}) | {KINDS[method.kind]} | {_spread(_default(method, outcomes))} | "
            f"{_spread(_tuned(outcomes))} | {against} | {'' if ms is None else f'{np.median(ms):.2g}'} |"
        )
    none = "no method is ahead of our default" if count >= FEWEST else "too few seeds to say who is ahead"
    verdict = none if not better else "ahead of our default: " + ", ".join(better)
    return "\n".join(lines) + "\n", f"* {task.name} ({count} seeds): {verdict}."


def _raw(task: Task, rows: dict[Method, dict[float, list[Outcome]]], times: Times) -> list[dict[str, Any]]:
    return [
        {
            "method": method.name,
            "kind": method.kind,
            "default": method.default,
            "ms": times.get((task.name, method.name)),
            "outcomes": {
                f"{s:g}": [[round(each.valid, 5), round(each.test, 5)] for each in of_seeds]
                for s, of_seeds in outcomes.items()
            },
        }
        for method, outcomes in rows.items()
    ]


def _p(gain: np.ndarray) -> float:
    if len(gain) < 2 or np.isnan(gain).any() or np.ptp(gain) == 0:
        return 1.0
    return float(stats.ttest_1samp(gain, 0.0).pvalue)


def _holm(p: dict[Method, float]) -> dict[Method, float]:
    """Adjusted p: the k-th smallest times how many are not smaller, and no smaller than those before it."""
    adjusted, least = {}, 0.0
    for k, (method, each) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, each * (len(p) - k)))
        adjusted[method] = least
    return adjusted


def _spread(values: np.ndarray) -> str:
    return f"{values.mean():.3f}" + (f" ± {values.std(ddof=1):.3f}" if len(values) > 1 else "")
