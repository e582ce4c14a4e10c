"""benchmarks/versus.py: what it measures is what it says, and whatever happens to a contestant is told."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]

#: Contestants that go wrong in every way there is, beside one that is right.
CLUMSY = """
import time
import torch

def operator(variant, task, n, site):
    def sort(x, parameter):
        if variant == "sleeps" or variant == "thinks" and x.requires_grad: time.sleep(60)
        if variant == "raises": raise ValueError("n must be | a power of two\\nand more")
        if variant == "greedy": return x + torch.ones(10**10)[0]
        if variant == "dies": __import__("os")._exit(3)
        answer = x.sort(-1).values * parameter
        return answer + (x - x).sqrt() if variant == "nan" else answer
    return None if task == "topk" else sort
"""


@pytest.fixture(scope="module")
def bench():
    """The modules of the benchmark."""
    names = ("cells", "match", "processes", "report", "truth", "worker")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        found = {name: importlib.import_module(f"contest.{name}") for name in names}
        found |= {name: importlib.import_module(name) for name in ("peers", "versus", "_common")}
        yield SimpleNamespace(**found)


@pytest.fixture
def process(bench, tmp_path, monkeypatch):
    """A function that starts a clumsy contestant with a gigabyte."""
    (tmp_path / "clumsy.py").write_text(CLUMSY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = []

    def start(variant: str):
        peer = bench.peers.Peer(variant, "clumsy", variant, package="torch")
        means = bench.processes.Means(bench.peers.Site("cpu"), 1, 10**9, tmp_path / "logs", tmp_path / "cache")
        started.append(bench.processes.Process(peer, means))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def test_cells_are_those_of_the_table_and_are_read_as_they_are_written(bench):
    cells = bench.cells.CELLS
    assert len(set(cells)) == 30
    assert all(bench.cells.Cell.parse(cell.key) == cell for cell in cells)
    assert bench.cells.Cell.parse("topk-128x1e4").title == "top-5 mask, 128 x 10^4"
    for wrong in ("rank", "isort-1x10", "rank-0x10", "rank-1xmany", "topk-4x5"):
        with pytest.raises(ValueError, match=rf"a cell is TASK-BxN .* such as rank-128x1000, .*, got '{wrong}'"):
            bench.cells.Cell.parse(wrong)


def test_values_do_not_depend_on_who_asks_and_differ_between_cells(bench):
    one, other = (bench.cells.Cell.parse(key) for key in ("rank-4x10", "rank-4x11"))
    assert np.array_equal(one.values(), one.values())
    assert one.values().dtype == np.float32
    assert not np.array_equal(one.values(), other.values()[:, :10])
    shapes = {"quantile-4x10": (4,), "ndcg-4x10": (4,), "permutation-4x10": (4, 10, 10), "sort-4x10": (4, 10)}
    assert {key: bench.cells.Cell.parse(key).cotangent().shape for key in shapes} == shapes
    assert bench.cells.Cell.parse("rank64-4x10").values().dtype == np.float64
    few, many = (bench.cells.companion("ndcg", rows, 10) for rows in (1, 4))
    assert np.array_equal(few, many[:1])


def test_softness_of_known_answers(bench):
    softness = bench.cells.softness
    x = np.array([[3.0, 1.0, 2.0, 9.0, 8.0, 7.0]])
    ranks = np.array([[3.0, 1.0, 2.0, 6.0, 5.0, 4.0]])
    assert softness("rank", x, ranks, None) == 0.0
    assert softness("rank", x, np.full((1, 6), 3.5), None) == pytest.approx((2.5 + 1.5 + 0.5) * 2 / 36)
    assert softness("topk", x, (x > 1).astype(float), None) == 0.0
    assert softness("topk", x, np.full((1, 6), 5 / 6), None) == pytest.approx((5 / 6 + 5 / 6) / 5)
    one_of_six, all_alike = np.array([[0, 0, -2.0, 0, 0, 0]]), np.full((1, 6), 0.3)
    assert softness("quantile", x, ranks, one_of_six) == pytest.approx(1 / 6)
    assert softness("quantile", x, ranks, all_alike) == pytest.approx(1.0)
    assert softness("sort", x, np.sort(x), None) == 0.0
    assert softness("sort", x, np.sort(x) + x.std(), None) == pytest.approx(1.0)
    permutation = np.eye(6)[x.argsort(-1)]
    assert softness("permutation", x, permutation, None) == 0.0
    assert softness("permutation", x, np.full((1, 6, 6), 1 / 6), None) == pytest.approx(5 / 6)
    assert np.isnan(softness("ndcg", x, np.zeros(1), None))
    with pytest.raises(ValueError, match="measured by its gradient"):
        softness("quantile", x, ranks, None)


@pytest.mark.parametrize(
    "key",
    [
        "rank-3x40", "quantile-3x41", "topk-3x40", "sort-3x20", "permutation-3x20", "rank64-3x20", "rank_weights-3x20",
        "rank_eps-3x20", "rank_cost1-3x20", "rank_cost1.5-3x20", "sort_with-3x20", "normalize-3x20", "spearman-3x20",
        "ndcg-3x20",
    ],
)  # fmt: skip
def test_the_papers_method_and_the_truth_agree_when_it_converges(bench, key, monkeypatch):
    """Two independent solvers of one problem, one unrolled and one implicit."""
    cell = bench.cells.Cell.parse(key)
    papers = importlib.import_module("peers.papers")
    monkeypatch.setattr(papers, "TOLERANCE", 1e-12)
    x, v = (torch.from_numpy(part).double() for part in (cell.values(), cell.cotangent()))
    x.requires_grad_()
    answer = papers.operator("", cell.task, cell.n, bench.peers.Site("cpu"))(x, 0.05)
    (gradient,) = torch.autograd.grad(answer, x, v)
    off = bench.truth.errors(cell, (answer.detach().numpy(), gradient.numpy()), bench.truth.truth(cell, 0.05))
    assert max(off) < 1e-8


def test_errors_are_of_the_worst_row_and_the_gate_says_which(bench):
    cell = bench.cells.Cell.parse("rank-2x10")
    true = np.arange(20.0).reshape(2, 10), np.ones((2, 10))
    found = true[0].copy(), true[1].copy()
    found[0][1, 3] += 0.5
    found[1][1] *= 1.01
    assert bench.truth.errors(cell, found, true) == pytest.approx((0.05, 0.01))
    assert bench.truth.errors(cell, (found[0][:1], found[1][:1]), true) == (0.0, 0.0)
    assert bench.truth.gate((1e-6, 1e-4)) is None
    assert bench.truth.gate((0.05, 1e-4)) == "accuracy gate fails: answer off by 5.0e-02 (at most 1e-05)"
    assert "gradient off by nan (at most 0.001)" in bench.truth.gate((0.0, float("nan")))


@pytest.mark.parametrize(
    ("variant", "reason", "grows"),
    [
        ("sleeps", "> 2 s", True),
        ("thinks", "> 2 s", True),
        ("greedy", "out of memory", True),
        ("raises", "raises ValueError: n must be / a power of two", False),
        ("dies", "died (exit status 3)", False),
    ],
)
def test_whatever_happens_is_told(bench, process, variant, reason, grows):
    one = process(variant)
    rules = bench.match.Rules(rounds=2, limit=2.0)
    cell = bench.cells.Cell.parse("rank-2x8")
    records = bench.match.play(cell, 0.5, [one], rules, {}, lambda _: None, random.Random(0))
    assert records[variant]["status"] == reason
    assert records[variant]["grows"] is grows
    assert "seconds" not in records[variant]
    assert bench.report.median(records[variant]) is None


def test_gradients_that_are_not_numbers_have_no_time_but_the_forward_pass_has(bench, process):
    rules = bench.match.Rules(rounds=3, limit=10.0)
    cell = bench.cells.Cell.parse("rank-2x8")
    right, wrong = process("right"), process("nan")
    records = bench.match.play(cell, 0.5, [right, wrong], rules, {}, lambda _: None, random.Random(0))
    assert (records["nan"]["status"], records["nan"]["backward"]) == ("forward only", "NaN gradients")
    assert list(records["nan"]["seconds"]) == ["forward"]
    assert records["right"]["status"] == "ok"
    assert [len(records["right"]["seconds"][what]) for what in ("forward", "both")] == [3, 3]
    assert bench.report.best_peer(records)[0] == "right"
    again = bench.match.play(
        bench.cells.Cell.parse("topk-2x8"), 0.5, [right, wrong], rules, {"nan": "why"}, lambda _: None,
        random.Random(0),
    )  # fmt: skip
    assert {name: record["status"] for name, record in again.items()} == {"right": "does not have it", "nan": "why"}


def test_who_runs_out_in_a_cell_is_not_tried_in_larger_and_harder_ones(bench):
    cell = bench.cells.Cell.parse
    records = {"slow": {"status": "> 6 s", "grows": True}, "odd": {"status": "raises", "grows": False}}
    entries = [{"cell": "rank-8x100", "eps": 0.01, "records": records}]
    hopeless = bench.versus.hopeless
    assert hopeless(entries, cell("rank-8x100"), 0.001) == {"slow": "not tried: > 6 s in soft rank, 8 x 100, eps 0.01"}
    assert set(hopeless(entries, cell("rank-16x1000"), 0.01)) == {"slow"}
    for easier in (("rank-4x100", 0.01), ("rank-8x99", 0.01), ("rank-8x100", 0.1), ("topk-8x100", 0.01)):
        assert hopeless(entries, cell(easier[0]), easier[1]) == {}


def _record(both: float, **more) -> dict:
    return {"status": "ok", "seconds": {"forward": [both / 2] * 3, "both": [both, 2 * both, both]}, **more}


def test_report_names_the_best_peer_and_prints_no_time_behind_a_failed_gate(bench):
    records = {
        "hard": _record(0.001), "sinksort": _record(0.002, errors=[1e-7, 1e-6], parameter=0.01, peak=2**25),
        "torchsort": _record(0.004, parameter=0.5), "LapSum": {**_record(0.001), "status": "forward only",
                                                              "backward": "NaN gradients"},
    }  # fmt: skip
    del records["LapSum"]["seconds"]["both"]
    settings = {"command": "c", "limit": 6.0, "memory": 5e9, "missing": {"diffsort": "not installed (diffsort)"}}
    entry = {"cell": "rank-128x1e5", "eps": 0.01, "records": records}
    text = bench.report.table([entry], {"device": "CPU"}, settings)
    assert "| soft rank, 128 x 10^5 | 1.00 `torch.sort` | 2.00 | 2.00 | 4.00 torchsort | 0.50 |  |  |" in text
    assert "| sinksort | 1.00 (1.00 to 1.00) | 2.00 (2.00 to 3.00) | 33.6 MB, 0.7 times | eps 0.01 |" in text
    assert "| LapSum | 0.500 (0.500 to 0.500) | NaN gradients |" in text
    assert "- not taking part: diffsort: not installed (diffsort)" in text
    records["sinksort"]["status"] = bench.truth.gate((1e-3, 0.0))
    text = bench.report.table([entry], {}, settings)
    assert "| 1.00 `torch.sort` | accuracy gate fails: answer off by 1.0e-03 (at most 1e-05) |  | 4.00" in text
    assert "\n| sinksort |" not in text


def test_results_of_another_machine_are_not_added_to_and_nothing_is_measured(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.versus, "measure", lambda *_: pytest.fail("measured what can't be written"))
    path = tmp_path / "versus_mine.json"
    command = ["--add", "--name", "mine", "--out", str(tmp_path), "--peers", "copy", "--cells", "rank-1x10"]
    about = bench.versus.machine(torch.device("cpu"))
    path.write_text(json.dumps({"about": {**about, "torch": "1.0"}, "settings": {}, "entries": []}))
    expected = r"--add: versus_mine\.json is of another machine .*torch is '.*' and was '1\.0'.*leave --add out"
    with pytest.raises(SystemExit, match=expected):
        bench.versus.main(command)


def test_a_remark_on_what_was_measured_before_is_no_other_machine(bench, tmp_path):
    about = {"cpu": "some, 2 threads used", "torch": "2.13"}
    before = {"about": {**about, "cpu": "some, 2 threads used (\\* in part: 8)"}, "settings": {}, "entries": []}
    assert bench.versus.earlier(tmp_path / "versus_mine", about) is None  # there are none
    (tmp_path / "versus_mine.json").write_text(json.dumps(before))
    assert bench.versus.earlier(tmp_path / "versus_mine", about) == before
    with pytest.raises(SystemExit, match="cpu is 'some, 8 threads used' and was"):
        bench.versus.earlier(tmp_path / "versus_mine", {**about, "cpu": "some, 8 threads used"})


def test_results_can_be_added_to_and_what_stays_is_marked(bench):
    before = [
        {"cell": "rank-128x100", "eps": 0.01, "records": {"sinksort": _record(0.003), "OTT (unrolled)": _record(0.9)}},
        {"cell": "rank-128x10", "eps": 0.01, "records": {"sinksort": _record(0.002)}},
    ]
    now = [{"cell": "rank-128x100", "eps": 0.01, "records": {"sinksort": _record(0.001)}}]
    entries = bench.versus.added(before, now)
    assert [entry["cell"] for entry in entries] == ["rank-128x10", "rank-128x100"]  # the order of the table
    assert "earlier" not in before[0]["records"]["OTT (unrolled)"]
    settings = {"command": "c", "limit": 2.0, "memory": None, "missing": {}}
    text = bench.report.table(entries, {}, settings)
    assert "| soft rank, 128 x 10 \\* |  | 2.00 |" in text
    assert "| soft rank, 128 x 100 |  | 1.00 |  | 900 OTT (unrolled) | 0.00 |  | 900 \\* |" in text
    assert "| OTT (unrolled) \\* |" in text
    assert "- \\* was measured in an earlier run" in text
    assert "earlier" not in bench.report.table(now, {}, settings)


def test_on_a_gpu_graphs_are_compared_with_all_and_calls_with_calls(bench):
    records = {
        "hard": _record(0.002), "sinksort": _record(0.003), "sinksort (CUDA graph)": _record(0.0005),
        "LapSum": _record(0.004), "SoftJAX softsort": _record(0.001),
    }  # fmt: skip
    settings = {"command": "c", "limit": 2.0, "memory": None, "missing": {}, "cells": ["rank-1x10", "topk-1x1e6"]}
    text = bench.report.table([{"cell": "rank-1x10", "eps": 0.01, "records": records}], {}, settings)
    assert "| 2.00 `torch.sort` | 3.00 | 1.50 | 4.00 LapSum | 0.75 | 0.500 | 1.00 SoftJAX softsort | 0.50 |" in text
    assert "or more memory than there is," in text
    assert "- not measured yet: top-5 mask, 1 x 10^6" in text


def test_parameters_that_are_known_are_not_tuned_again(bench, tmp_path):
    results = tmp_path / "results.json"
    entry = {"cell": "rank-2x8", "eps": 0.5, "records": {"soft": {"parameter": 0.25}, "hard": {"parameter": None}}}
    results.write_text(json.dumps({"entries": [entry]}))
    tuned = bench.versus.parameters(results)
    assert tuned == {("rank-2x8", 0.5): {"soft": 0.25}}
    assert bench.versus.parameters(None) == {}

    knob = bench.peers.Knob("softness", 1e-3, 1e3)
    peer = bench.peers.Peer("soft", "peers.floors", "copy", knob=knob)
    contestant = bench.worker.Contestant(peer, bench.peers.Site("cpu"), 10**9)

    def never(*_):
        raise AssertionError("tuned")

    contestant._measure = never
    assert contestant.prepare("rank-2x8", 0.5, 0.1, tuned["rank-2x8", 0.5]["soft"]) == 0.25
    with pytest.raises(AssertionError, match="tuned"):
        contestant.prepare("rank-2x8", 0.5, 0.1, None)


def test_one_command_measures_tabulates_draws_and_goes_on_where_it_stopped(bench, tmp_path, monkeypatch, capsys):
    versus = bench.versus
    monkeypatch.setattr(versus, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    command = ["--cells", "rank-4x12", "quantile-2x16", "--eps", "0.05", "--rounds", "2", "--threads", "1"]
    command += ["--peers", "sinksort", "--out", str(tmp_path), "--name", "tiny"]
    played = []

    def killed_in_the_second_cell(cell, *rest):
        played.append(cell.key)
        if len(played) == 2:
            raise KeyboardInterrupt
        return bench.match.play(cell, *rest)

    monkeypatch.setattr(versus, "play", killed_in_the_second_cell)
    with pytest.raises(KeyboardInterrupt):
        versus.main(command)
    first = json.loads((tmp_path / "out/versus_tiny/rank-4x12-0.05.json").read_text())
    versus.main(command)
    assert played == ["rank-4x12", "quantile-2x16", "quantile-2x16"]
    measured = json.loads((tmp_path / "versus_tiny.json").read_text())
    assert measured["entries"][0] == first
    for entry in measured["entries"]:
        ours = entry["records"]["sinksort"]
        assert ours["status"] == "ok"
        assert max(ours["errors"]) < 1e-6
        assert len(ours["seconds"]["both"]) == 2
    assert not (tmp_path / "out/versus_tiny").exists()
    text = (tmp_path / "versus_tiny.md").read_text()
    assert text in capsys.readouterr().out
    assert str(tmp_path) not in text
    (tmp_path / "versus_tiny.md").unlink()
    versus.main(["--redraw", *command])
    assert (tmp_path / "versus_tiny.md").read_text() == text
    assert (tmp_path / "versus_tiny.png").read_bytes().startswith(b"\x89PNG")


def test_first_calls_have_a_process_and_caches_of_their_own(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench.versus, "ROOT", tmp_path)
    command = ["--first-calls", "--cells", "rank-4x12", "--eps", "0.05", "--rounds", "2", "--threads", "1"]
    bench.versus.main([*command, "--peers", "paper", "copy", "--out", str(tmp_path), "--name", "tiny"])
    measured = json.loads((tmp_path / "versus_tiny_first.json").read_text())
    (entry,) = measured["entries"]
    assert list(entry["records"]) == ["paper's method"]  # a copy compiles nothing
    for record in entry["records"]["paper's method"]:
        assert record["status"] == "ok"
        assert 0 < record["second"] < 60
    text = (tmp_path / "versus_tiny_first.md").read_text()
    assert "| soft rank, 4 x 12 | 0.05 |" in text
    assert text in capsys.readouterr().out
    means = bench.processes.Means(bench.peers.Site("cpu"), 1, 10**9, tmp_path, tmp_path / "jax", tmp_path / "own")
    environment = bench.processes.Process(bench.peers.PEERS[0], means)._environment()
    for name in ("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "VERSUS_JAX_CACHE"):
        assert environment[name].startswith(str(tmp_path / "own"))


def test_first_calls_that_fail_are_told(bench):
    shown = bench.versus.first._shown
    assert shown([{"status": "ok", "first": 12.34, "second": 0.00123}]) == "12.3 (0.0012)"
    assert shown([{"status": "died (exit status 3)"}]) == "died (exit status 3)"
    assert shown([]) == ""


def test_wrong_arguments_are_named(bench, capsys, tmp_path):
    for wrong, said in (
        (["--cells", "rank-1"], "a cell is TASK-BxN"),
        (["--checkout", f"torchsort={tmp_path}"], "one of LapSum, fast-soft-sort, neuralsort, softsort"),
        (["--checkout", "LapSum=/nowhere/at/all"], "the folder of a clone, got 'LapSum=/nowhere/at/all'"),
    ):
        with pytest.raises(SystemExit):
            bench.versus.arguments(wrong)
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit, match="nobody's name begins with 'quicksort'; there are copy, hard, sinksort"):
        bench.versus.contestants(["quicksort"], bench.peers.Site("cpu"))
    _, missing = bench.versus.contestants(["LapSum", "sinksort (CUDA"], bench.peers.Site("cpu"))
    assert missing == {
        "LapSum": "no checkout given (--checkout LapSum=PATH)",
        "sinksort (CUDA graph)": "not for cpu",
    }


def test_growth_sees_memory_that_is_gone_when_the_call_returns():
    """In a process of its own: threads and caches of other tests come and go with a megabyte or two."""
    program = (
        "import numpy as np; from _common import growth; "
        "print(*growth(lambda: int(np.ones(2**25, dtype=np.int8).sum())))"
    )
    quiet = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks"), "NUMPY_MADVISE_HUGEPAGE": "0"}
    said = subprocess.run([sys.executable, "-c", program], env=quiet, capture_output=True, text=True, check=True)
    grown, answer = map(int, said.stdout.split())
    assert answer == 2**25
    assert abs(grown - 2**25) < 2**20  # the kernel counts resident pages in batches of every thread
