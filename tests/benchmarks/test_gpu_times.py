"""benchmarks/gpu_times.py: its cells, its JSON at every moment, its tables. Cells compile nothing here."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

QUICK = ["--device", "cpu", "--rounds", "3", "--jobs", "1", "--quick"]


@pytest.fixture
def times(benchmark_named, monkeypatch):
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root / 'src'}")
    return benchmark_named("gpu_times")


def test_cells_are_read_as_they_are_written(times):
    for timed in (*times.STEADY, *times.FIRST, *times.QUICK):
        assert times.Timed.parse(timed.key) == timed
    keys = [timed.key for timed in times.STEADY]
    assert len(set(keys)) == len(keys)
    assert {"sort-1x1000@0.001", "rank64-128x100@0.01", "ndcg-128x100@0.01"} <= set(keys)


def test_one_command_measures_and_writes_after_every_cell(times, tmp_path, monkeypatch, capsys):
    to, written = tmp_path / "times.json", []

    def write(path, text):
        written.append(json.loads(text))
        path.write_text(text)

    monkeypatch.setattr(times, "write_whole", write)
    times.main([*QUICK, "--to", str(to), "--commit", "abc"])
    results = json.loads(to.read_text())
    assert [len(each["first"]) + len(each["steady"]) for each in written] == [1, 2, 3, 4, 4]
    assert results["about"]["commit"] == "abc"
    assert results["about"]["torch"]
    for timed in times.QUICK:
        first, steady = results["first"][timed.key], results["steady"][timed.key]
        assert first["status"] == steady["status"] == "ok"
        assert 0 < first["second"] < first["first"]
        assert {what: len(ms) for what, ms in steady["ms"].items()} == {"forward": 3, "both": 3}
        assert max(steady["errors"]) < 1e-5
    said = capsys.readouterr().out
    assert said.count("first ") == said.count("steady ") == 2
    times.main(["--table", str(to)])
    assert "| soft rank, eps learned, 2 x 8 | 0.05 | call |" in capsys.readouterr().out


def test_time_that_runs_out_is_told(times, tmp_path, capsys):
    to = tmp_path / "times.json"
    times.main([*QUICK, "--to", str(to), "--minutes", "0.002"])
    results = json.loads(to.read_text())
    assert {found["status"] for found in results["steady"].values()} == {"no time left"}
    assert all(found["status"] != "ok" for found in results["first"].values())


def test_a_process_that_dies_loses_one_cell(times, tmp_path, monkeypatch):
    program = tmp_path / "dies.py"
    program.write_text(
        "import json, sys\nkeys = sys.argv[1:]\n"
        "for key in keys:\n"
        "    if key.startswith('rank-2x3'): sys.exit('a fault')\n"
        "    print(json.dumps([key, {'status': 'ok'}]), flush=True)\n"
    )
    monkeypatch.setattr(
        times, "_command", lambda _, cells, __: [times.sys.executable, str(program), *(timed.key for timed in cells)]
    )
    wanted = [times.Timed.parse(key) for key in ("rank-2x2@0.1", "rank-2x3@0.1", "rank-2x4@0.1", "rank-2x5@0.1")]
    found = dict(times.answers(wanted, None, tmp_path, time.monotonic() + 60))
    assert [record["status"] for record in found.values()] == ["ok", "died: a fault", "ok", "ok"]
    assert list(found) == [timed.key for timed in wanted]


def _results(ms: list[float], first: float, commit: str) -> dict:
    steady = {"rank-128x100@0.01": {"status": "ok", "ms": {"forward": ms, "both": ms, "graph": ms}}}
    return {
        "about": {"commit": commit}, "first": {"rank-64x257@0.01": {"status": "ok", "first": first, "second": 1e-3}},
        "steady": steady | {"rank-1x1e5@0.01": {"status": "no time left"}},
    }  # fmt: skip


def test_tables_compare_two_commits(times, tmp_path, capsys):
    files = []
    for name, ms, first in (("one", [1.0, 1.1, 1.2], 76.0), ("two", [0.5, 0.55, 0.6], 15.2)):
        files.append(str(tmp_path / f"{name}.json"))
        Path(files[-1]).write_text(json.dumps(_results(ms, first, name)))
    times.main(["--table", *files])
    text = capsys.readouterr().out
    assert "| soft rank, 128 x 100 | 0.01 | call | 1.1 (1.05 to 1.15) | 0.55 (0.525 to 0.575) | **0.50** |" in text
    assert "| soft rank, 128 x 100 | 0.01 | graph |" in text
    assert "| geometric mean of 1 |  | call |  |  | 0.500 |" in text
    assert "| soft rank, 64 x 257 | 0.01 | 76.0 | 15.2 | 0.20 |" in text
    assert "no time left" in text
    assert times._ratio([1.0, 1.2, 1.4], [1.1, 1.3, 1.5]) == "1.08"  # the quartiles overlap
