"""benchmarks/step_cost.py: every loss takes its steps, and the table says what was measured."""

from __future__ import annotations

import functools
import json
import sys

import pytest

from sinksort.paper.networks import VanillaCNN


@pytest.fixture
def bench(benchmark_named):
    return benchmark_named("step_cost")


def test_medians_and_ratios_by_hand(bench):
    samples = {"cross-entropy": [2.0, 4.0, 3.0], "top1": [3.3, 3.2, 9.0]}
    text = bench.table([{"network": "cnn", "batch": 128, "ms": samples}], {"device": "none"})
    assert "| cnn | 128 x 100 | cross-entropy | 3.000 (2.000 to 4.000) | 1.000 |" in text
    assert "| cnn | 128 x 100 | top1 | 3.300 (3.200 to 9.000) | 1.100 |" in text


def test_every_loss_is_timed_and_told(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(bench.NETWORKS, "cnn", functools.partial(VanillaCNN, width=2, hidden=4))
    words = ["--device", "cpu", "--rounds", "2", "--steps", "1", "--cells", "cnn:2", "--to", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["step_cost.py", *words])
    bench.main()
    (row,) = json.loads((tmp_path / "step_cost.json").read_text())["rows"]
    assert {loss: len(samples) for loss, samples in row["ms"].items()} == dict.fromkeys(bench.LOSSES, 2)
    assert (tmp_path / "step_cost.md").read_text() in capsys.readouterr().out
