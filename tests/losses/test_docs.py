"""docs/losses.md: its table is the measured one; the benchmark covers every loss. Its code is run by test_docs.py."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

import sinksort.nn
from sinksort import losses

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/losses.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks/results"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("losses_vs_surrogates")


def test_page_names_every_loss_and_its_module():
    assert [name for name in losses.__all__ if name.endswith("_loss") and f"`{name}`" not in PAGE] == []
    assert [name for name in sinksort.nn.__all__ if name.endswith("Loss") and f"`{name}`" not in PAGE] == []


#: Losses without a task: the first is measured by benchmarks/training.py; sets of orders have no usual surrogate.
ELSEWHERE = {"membership_loss", "partial_order_loss"}
#: Losses whose names do not end in ``_loss``, and the names of modules that do not follow from those of their losses.
OTHERS = ("median_of_means", "permutation_cross_entropy")
MODULES = {"topk_loss": "TopKLoss", "ndcg_loss": "NDCGLoss", "knn_loss": "KNNLoss", "recall_at_k_loss": "RecallAtKLoss"}


def test_every_place_that_a_loss_belongs_to_has_it(benchmark):
    """What CONTRIBUTING.md says of a new loss. The failure names the places that are missing."""
    operators = (ROOT / "docs/operators.md").read_text(encoding="utf-8")
    calculus = (ROOT / "tests/losses/test_calculus.py").read_text(encoding="utf-8")
    modules = (ROOT / "tests/nn/test_nn.py").read_text(encoding="utf-8")
    missing = []
    for name in (name for name in losses.__all__ if name.endswith("_loss") or name in OTHERS):
        module = MODULES.get(name, "".join(part.capitalize() for part in name.split("_")))
        places = {
            f"a class {module} in sinksort.nn": module in sinksort.nn.__all__,
            f"`{name}` | `{module}` in the first table of docs/losses.md": f"`{name}` | `{module}`" in PAGE
            or f", `{name}` | `{module}`" in PAGE,
            f"`{name}` in docs/operators.md": f"`{name}`" in operators,
            "a task in benchmarks/loss_tasks.py": name in {task.loss for task in benchmark.TASKS} | ELSEWHERE,
            "a case in tests/losses/test_calculus.py": f"losses.{name}" in calculus,
            f'"{module}" in tests/nn/test_nn.py': f'"{module}"' in modules,
        }
        missing += [f"{name}: {place}" for place, there in places.items() if not there]
    assert missing == []


def test_table_of_the_page_follows_from_the_measured_numbers(benchmark):
    measured = json.loads((RESULTS / "losses_vs_surrogates.json").read_text(encoding="utf-8"))
    numbers = {f"{task['loss']}: {task['setting']}": task["values"] for task in measured["tasks"]}
    table = benchmark.table(numbers)
    assert table in (RESULTS / "losses_vs_surrogates.md").read_text(encoding="utf-8")
    assert table in PAGE
    assert all(len(values) == measured["seeds"] for task in numbers.values() for values in task.values())


def test_benchmark_covers_every_loss(benchmark):
    covered = {task.loss for task in benchmark.TASKS}
    wanted = {name for name in losses.__all__ if name.endswith("_loss")} - ELSEWHERE
    assert wanted | {"median_of_means", "permutation_cross_entropy", "soft_conformal_quantile"} == covered


def test_benchmark_repeats_itself(benchmark):
    task = next(task for task in benchmark.TASKS if task.loss == "median_of_means")
    first, again, other = (benchmark.run(task, task.objectives["Huber"], seed) for seed in (0, 0, 1))
    assert first == again != other
