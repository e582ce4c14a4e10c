"""docs/losses.md: its code prints what it says, and its table is the measured one; the benchmark covers every loss."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
from pathlib import Path

import pytest

import sinksort.nn
from sinksort import losses

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/losses.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks/results"
BLOCKS = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("losses_vs_surrogates")


@pytest.mark.parametrize(("code", "output"), BLOCKS, ids=range(len(BLOCKS)))
def test_code_of_the_page_prints_what_it_says(code, output):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "losses.md", "exec"), {})
    assert printed.getvalue() == output


def test_page_names_every_loss_and_its_module():
    assert [name for name in losses.__all__ if name.endswith("_loss") and f"`{name}`" not in PAGE] == []
    assert [name for name in sinksort.nn.__all__ if name.endswith("Loss") and f"`{name}`" not in PAGE] == []


def test_table_of_the_page_follows_from_the_measured_numbers(benchmark):
    measured = json.loads((RESULTS / "losses_vs_surrogates.json").read_text(encoding="utf-8"))
    numbers = {f"{task['loss']}: {task['setting']}": task["values"] for task in measured["tasks"]}
    table = benchmark.table(numbers)
    assert table in (RESULTS / "losses_vs_surrogates.md").read_text(encoding="utf-8")
    assert table in PAGE
    assert all(len(values) == measured["seeds"] for task in numbers.values() for values in task.values())


def test_benchmark_covers_every_loss(benchmark):
    covered = {task.loss for task in benchmark.TASKS}
    wanted = {name for name in losses.__all__ if name.endswith("_loss")}
    assert wanted | {"median_of_means", "permutation_cross_entropy", "soft_conformal_quantile"} == covered


def test_benchmark_repeats_itself(benchmark):
    task = next(task for task in benchmark.TASKS if task.loss == "median_of_means")
    first, again, other = (benchmark.run(task, task.objectives["Huber"], seed) for seed in (0, 0, 1))
    assert first == again != other
