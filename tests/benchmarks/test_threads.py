"""benchmarks/threads.py: what it measures, and what its table says of it."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("numba")


@pytest.fixture
def bench(benchmark_named):
    return benchmark_named("threads")


def test_least_times_gains_and_ratios_by_hand(bench):
    times = {"tenth": 1.0, "median": 2.0, "ninetieth": 3.0}
    cell = {"shape": "3x5", "eps": 0.01}
    found = {
        "regions": [{"threads": 2, "region": times, "alone": {**times, "median": 0.5}}],
        "cells": [
            {**cell, "threads": 1, "ms": {"sinksort": [8.0, 9.0, 10.0], "torchsort": [4.0, 5.0, 6.0]}},
            {**cell, "threads": 2, "ms": {"sinksort": [5.0, 7.0, 6.0], "torchsort": [10.0, 20.0, 30.0]}},
            {**cell, "threads": 4, "ms": {"sinksort": [2.0]}},
        ],
    }
    text = bench.table({"avx2": found}, {"python": "3"}, "python benchmarks/threads.py")
    assert "| avx2 | 2 | 1.0 | 2.0 | 3.0 | 0.5 |" in text
    assert "| 3x5 | 0.01 | avx2 | 1 | 8 (9) | 1.00 | 4 (5) | 2.00 |" in text
    assert "| 3x5 | 0.01 | avx2 | 2 | 5 (6) | 1.60 | 10 (20) | 0.50 |" in text
    assert "| 3x5 | 0.01 | avx2 | 4 | 2 (2) | 4.00 | | |" in text


def test_every_kind_of_processor_is_measured_in_a_process_of_its_own(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    words = "--threads 1 2 --kinds native sse2 --shapes 20x6 --eps 0.1 --rounds 2 --sample 0.001 --name here --to"
    bench.main([*words.split(), str(tmp_path)])
    record = json.loads((tmp_path / "threads_here.json").read_text())
    assert record["machine"]["OMP_WAIT_POLICY"] == "active"
    for kind in ("native", "sse2"):
        found = record["kinds"][kind]
        assert [row["threads"] for row in found["regions"]] == [1, 2]
        assert [(row["threads"], len(row["ms"]["sinksort"])) for row in found["cells"]] == [(1, 2), (2, 2)]
    assert (tmp_path / "threads_here.md").read_text() in capsys.readouterr().out
