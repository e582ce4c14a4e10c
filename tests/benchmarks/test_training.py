"""benchmarks/training.py: what is measured is kept, chosen on validation data, and compared as the page says."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch


@pytest.fixture
def bench(benchmark_named):
    return benchmark_named("training")


@pytest.fixture
def trials(benchmark_named):
    return benchmark_named("trials")


def test_every_task_has_one_default_of_ours_and_methods_with_names_of_their_own(bench):
    for task in bench.TASKS:
        names = [method.name for method in task.methods]
        assert len(set(names)) == len(names)
        assert [method.kind for method in task.methods].count("ours") == 1
        assert all(method.default not in method.others for method in task.methods)
    assert len({task.name for task in bench.TASKS}) == len(bench.TASKS)


def test_all_losses_take_their_steps(bench, trials):
    for task in bench.TASKS:
        short = dataclasses.replace(task, steps=2)
        for method in task.methods:
            if method.kind in ("ours", "option", "scale"):
                found = trials.train(short, method.make(method.default), 0)
                assert np.isfinite([found.valid, found.test]).all(), f"{task.name}, {method.name}"


def test_a_training_repeats_itself(bench, trials):
    task = dataclasses.replace(next(task for task in bench.TASKS if task.name == "top2"), steps=5)
    first, again, other = (trials.train(task, task.methods[0].make(1.0), seed) for seed in (0, 0, 1))
    assert (first.valid, first.test) == (again.valid, again.test) != (other.valid, other.test)


def test_what_is_done_is_not_done_again(bench, monkeypatch, tmp_path, trials):
    monkeypatch.setattr(bench, "MEASURED", tmp_path / "out" / "training.jsonl")
    task = next(task for task in bench.TASKS if task.name == "spearman")
    task = dataclasses.replace(task, steps=1, methods=task.methods[:2])
    bench.measure([task], range(2))
    lines = bench.MEASURED.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 * sum(len(method.grid) for method in task.methods)
    bench.MEASURED.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    bench.measure([task], range(2))
    again = bench.MEASURED.read_text(encoding="utf-8").splitlines()
    assert again[:-1] == lines[:-1]
    last, before = json.loads(again[-1]), json.loads(lines[-1])
    assert {**last, "step": 0.0} == {**before, "step": 0.0}


def test_the_page_by_hand(bench, trials, benchmark_named):
    page = benchmark_named("trials.page")

    def method(name: str, kind: str, *others: float) -> object:
        return trials.Method(name, kind, lambda _: torch.nn.Identity(), 1.0, others)

    methods = (method("mine", "ours"), method("theirs", "peer", 2.0), method("level", "usual"), method("half", "usual"))
    task = trials.Task("task", "data", "metric", lambda _: None, lambda: None, lambda *_: 0.0, methods)
    outcome = trials.Outcome
    done = {}
    for seed in range(6):
        here = 0.5 + 0.01 * seed
        done["task", "mine", 1.0, seed] = outcome(0.0, here, 1.0)
        done["task", "theirs", 1.0, seed] = outcome(0.9 if seed == 5 else 0.1, here - 0.2, 1.0)
        done["task", "theirs", 2.0, seed] = outcome(0.5, here + 0.1 + 0.001 * (seed % 2), 1.0)
        done["task", "level", 1.0, seed] = outcome(0.0, here + 0.001 * (-1) ** seed, 1.0)
    done["task", "half", 1.0, 0] = outcome(0.0, 0.9, 1.0)
    (chosen,) = [page._tuned(o) for m, o in page._rows(task, done).items() if m.name == "theirs"]
    assert chosen.size == 1  # of the seeds that all methods have
    del done["task", "half", 1.0, 0]
    rows = page._rows(task, done)
    by_name = {m.name: o for m, o in rows.items()}
    np.testing.assert_allclose(page._tuned(by_name["theirs"]), [0.6, 0.611, 0.62, 0.631, 0.64, 0.35])
    text, raw = page.page([task], done, {("task", "mine"): [1.0, 3.0, 2.0]}, {"python": "3"})
    assert "| mine (1) | **ours, by default** | 0.525 ± 0.019 | 0.525 ± 0.019 |  | 2 |" in text
    assert "* task (6 seeds): no method is ahead of our default." in text
    assert raw["tasks"][0]["methods"][1]["outcomes"]["2"][0] == [0.5, 0.6]
    for seed in range(6):
        done["task", "theirs", 1.0, seed] = outcome(0.1, 0.0, 1.0)
    text, _ = page.page([task], done, {}, {"python": "3"})
    assert "* task (6 seeds): ahead of our default: theirs." in text


def test_holm_by_hand(trials, benchmark_named):
    page = benchmark_named("trials.page")
    assert page._holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


def test_a_few_seeds_have_no_verdict(trials, benchmark_named):
    page = benchmark_named("trials.page")
    methods = tuple(trials.Method(name, kind, lambda _: None) for name, kind in (("mine", "ours"), ("its", "peer")))
    task = trials.Task("task", "data", "metric", lambda _: None, lambda: None, lambda *_: 0.0, methods)
    done = {("task", m.name, 1.0, seed): trials.Outcome(0.0, 0.5, 1.0) for m in methods for seed in range(3)}
    text, _ = page.page([task], done, {}, {})
    assert "* task (3 seeds): too few seeds to say who is ahead." in text
