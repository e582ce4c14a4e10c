"""benchmarks/kinds.py: what is wrong has no time, and kinds are what their names say."""

from __future__ import annotations

import json
import sys

import pytest
import torch


@pytest.fixture
def bench(benchmark_named):
    return benchmark_named("kinds")


def test_kinds_are_what_they_are_called(bench):
    rows = {kind: bench.rows_of(kind, "3x400") for kind in bench.KINDS}
    assert {x.shape for x in rows.values()} == {(3, 400)}
    assert (rows["relu"] == 0).float().mean() == pytest.approx(0.5, abs=0.1)
    assert set(rows["zero or one"].unique().tolist()) == {0.0, 1.0}
    assert rows["uniform"].min() >= 0
    assert rows["uniform"].max() <= 1
    torch.testing.assert_close(rows["softmax"].sum(-1), torch.ones(3))
    assert not ((rows["two clusters"] > 2) & (rows["two clusters"] < 8)).any()
    torch.testing.assert_close(rows["tenths"] * 10, (rows["tenths"] * 10).round())


def test_every_kind_is_timed_and_told(bench, monkeypatch, tmp_path, capsys):
    words = ["--shapes", "5x30", "--eps", "0.01", "--rounds", "2", "--to", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["kinds.py", *words])
    bench.main()
    rows = json.loads((tmp_path / "kinds_cpu.json").read_text())["rows"]
    assert [row["kind"] for row in rows] == list(bench.KINDS)
    assert all(len(row["ms"]["soft_rank"]) == len(row["ms"]["torch.sort"]) == 2 for row in rows)
    assert all(row["ranks"] <= bench.RANKS and row["gradients"] <= bench.GRADIENTS for row in rows)
    assert (tmp_path / "kinds_cpu.md").read_text() in capsys.readouterr().out


def test_no_time_is_told_of_what_is_wrong(bench, monkeypatch):
    monkeypatch.setattr(bench, "errors", lambda *_: (1e-4, 0.0))
    rows = bench.measured("5x30", 1e-2, "cpu", 2)
    assert all(row["ms"] == {} for row in rows)
    assert "| 5x30 | 0.01 | relu |  |  |  | 1e-04 | 0e+00 |" in bench.table(rows, {})
