"""benchmarks/cliffs.py: what is wrong has no time, and what takes too long is told."""

from __future__ import annotations

import json
import sys

import pytest
import torch

NAMES = ["float64", "eps a tensor", "soft_permutation", "double backward"]


@pytest.fixture
def bench(benchmark_named, monkeypatch):
    module = benchmark_named("cliffs")
    monkeypatch.setattr(module, "ROWS", 3)
    monkeypatch.setattr(module, "VALUES", 12)
    monkeypatch.setattr(module, "_SAMPLE", 0.0)
    return module


def test_every_cell_gives_an_answer_and_its_gradients(bench):
    at = bench.given(3, 12, 1e-2, "cpu")
    for name, (read, bounds) in bench.CELLS.items():
        answer, *gradients = read(at.to(bounds.dtype))
        assert answer.dtype == bounds.dtype, name
        assert gradients[0].shape == at.x.shape, name
        assert all(t.isfinite().all() for t in (answer, *gradients)), name


def test_cells_are_timed_and_told(bench, monkeypatch, tmp_path, capsys):
    words = ["--cells", *NAMES, "--eps", "0.01", "--rounds", "2", "--threads", "1", "--to", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["cliffs.py", *words])
    before = torch.get_num_threads()
    try:
        with pytest.raises(SystemExit) as done:
            bench.main()
    finally:
        torch.set_num_threads(before)
    records = json.loads((tmp_path / "cliffs_cpu.json").read_text())["records"]
    assert [record["cell"] for record in records] == NAMES
    assert all(len(record["ms"]) == len(record["plain"]) == 2 for record in records)
    assert done.value.code in (0, 1)  # whether all are within their bounds is a matter of the machine
    assert (tmp_path / "cliffs_cpu.md").read_text() in capsys.readouterr().out


def test_no_time_is_told_of_what_is_wrong(bench, monkeypatch):
    monkeypatch.setattr(bench, "errors", lambda *_: (1e-4, 0.0))
    records = bench.measured(["float64"], 1e-2, "cpu", 2)
    assert records[0]["ms"] == []
    assert "| float64 | 0.01 | 12 | wrong | wrong | 1e-04 | 0e+00 |" in bench.table(records, {}, "cpu")
    assert not bench._within(records, "cpu")


def test_what_takes_too_long_is_bold_and_fails(bench):
    fast = {"cell": "float64", "eps": 1e-2, "errors": (0.0, 0.0), "fine": True, "ms": [11.0, 11.0], "plain": [1.0, 1.0]}
    slow = fast | {"ms": [13.0, 13.0]}
    assert bench._within([fast], "cpu")
    assert not bench._within([fast], "cuda")  # at most 10 there
    assert not bench._within([fast, slow], "cpu")
    assert "| 12 | 11 (11 to 11) |" in bench.table([fast], {}, "cpu")
    assert "| 12 | **13 (13 to 13)** |" in bench.table([slow], {}, "cpu")


def test_errors_are_those_of_the_answer_and_the_gradient(bench, monkeypatch):
    """An answer that is off by a hundredth of n, and a gradient by a tenth."""
    read, bounds = bench.CELLS["float64"]

    def off(at):
        answer, gradient = read(at)
        wrong = at.solver == bench.sinksort.Newton()
        return (answer + 0.01 * at.x.shape[-1], 1.1 * gradient) if wrong else (answer, gradient)

    assert max(bench.errors("float64", bench.given(3, 12, 1e-2, "cpu"))) < 1e-6
    monkeypatch.setitem(bench.CELLS, "float64", (off, bounds))
    found = bench.errors("float64", bench.given(3, 12, 1e-2, "cpu"))
    assert found == (pytest.approx(0.01, rel=1e-6), pytest.approx(0.1, rel=1e-6))
