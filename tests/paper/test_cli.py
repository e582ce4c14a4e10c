"""The command line: its commands and options are promises, and what it says is for newcomers."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import sys

import numpy as np
import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

from sinksort.paper import cli, datasets
from sinksort.paper.datasets import DATA_SETS

PLAIN = {"NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}


def call(*words):
    cli.console.width = 100
    result = CliRunner().invoke(cli.app, [str(word) for word in words], env=PLAIN)
    return result.exit_code, re.sub(r"\x1b\[[0-9;]*m", "", result.output)


COMMON = {"device": "auto", "data": None, "out": "out", "only": "*", "resume": True}
OPTIONS = {
    ("list",): {},
    ("data",): {"data": None, "place": None, "download": None},
    ("report",): {"out": "out", "to": "docs/results"},
    ("demo",): {"out": "out"},
    ("explore",): {"port": 5006, "browser": True},
    ("reproduce", "figures"): {"out": "out"},
    ("reproduce", "quantile-regression"): {
        "runs": 12,
        "epochs": 100,
        "steps": 100,
        "batch": 512,
        "learning_rate": 1e-4,
        "hidden": 64,
        "eps": 1e-2,
        "width": 1 / 512,
        "levels": "0.5,0.9",
        "tables": "bio,bike,facebook,star,concrete,community",
        "response": "standard",
        "test_share": 0.2,
        "measure_every": 10,
        **COMMON,
    },
    ("reproduce", "mnist-sort"): {
        "runs": 10,
        "epochs": 100,
        "sizes": "3,5,7,9,15",
        "digits": 4,
        "channels": "32,64",
        "lists": 20,
        "learning_rate": 1e-4,
        "rate_falls": False,
        "eps": 0.005,
        "tau": 5.0,
        "noise": 1.0,
        "samples": 5,
        "raw_eps": 1.0,
        "compare": "transport,neuralsort,neuralsort-stochastic",
        "precision": "bfloat16",
        "measure_every": 5,
        "compiled": True,
        **COMMON,
    },
    ("reproduce", "cifar10"): {
        "runs": 12,
        "epochs": 100,
        "networks": "cnn,resnet18",
        "losses": "cross-entropy,top1,top1-log",
        "batch": 128,
        "learning_rate": 1e-4,
        "eps": 1e-3,
        "raw_eps": 1.0,
        "temperature": 10.0,
        "eta": 1e-3,
        "flip": True,
        "precision": "bfloat16",
        "measure_every": 1,
        "compiled": True,
        **COMMON,
    },
}
OPTIONS["reproduce", "cifar100"] = {
    **OPTIONS["reproduce", "cifar10"],
    "losses": "cross-entropy,top1,top1-log,top5",
}


def commands(command, path=()):
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))
    else:
        yield path, command


def test_commands_and_options_are_frozen():
    found = {
        path: {
            p.name: str(p.default) if p.name in ("out", "to") else p.default for p in command.params if p.name != "help"
        }
        for path, command in commands(get_command(cli.app))
    }
    assert found == OPTIONS


def test_every_option_has_help():
    for path, command in commands(get_command(cli.app)):
        assert command.help, path
        assert [p.name for p in command.params if not p.help] == [], path


def test_list_names_every_experiment():
    code, said = call("list")
    assert code == 0
    for name in ("figures", "quantile-regression", "mnist-sort", "cifar10", "cifar100", "Table 2", "Figure 5"):
        assert name in said
    assert "sinksort reproduce NAME" in said


def test_without_a_command_it_shows_help():
    _, said = call()
    assert "Usage" in said
    assert all(word in said for word in ("list", "data", "reproduce", "report", "demo", "explore"))


def test_data_tells_the_state_of_every_file(tmp_path):
    (tmp_path / "cqr").mkdir()
    (tmp_path / "cqr/STAR.csv").write_text("something else")
    code, said = call("data", "--data", tmp_path)
    assert code == 0
    assert said.count("missing") == sum(len(data_set.files) for data_set in DATA_SETS.values()) - 1
    assert re.search(r"cqr/STAR.csv +damaged", said)
    assert "--download NAME (online), or --place FOLDER" in said


def test_data_refuses_an_unknown_set(tmp_path):
    code, said = call("data", "--data", tmp_path, "--download", "imagenet")
    assert code == 2
    assert "'imagenet' is no data set; choose from mnist, cifar10" in re.sub(r"[\s│]+", " ", said)


def test_missing_data_is_one_line_without_a_traceback(tmp_path):
    code, said = call("reproduce", "mnist-sort", "--data", tmp_path, "--out", tmp_path / "out")
    assert code == 1
    assert said.startswith("error: MNIST")
    assert "sinksort data --download mnist" in said
    assert "Traceback" not in said


def test_lists_of_numbers_are_checked(tmp_path):
    code, said = call("reproduce", "mnist-sort", "--sizes", "3,many", "--data", tmp_path)
    assert code == 2
    assert "expected ints with commas, got '3,many'" in re.sub(r"[\s│]+", " ", said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mnist-sort", "--compare", "bubblesort"), "--compare must be among transport, .*, got bubblesort"),
        (("cifar10", "--networks", "cnn,vgg"), "--networks must be among cnn, resnet18, got vgg"),
        (("cifar100", "--losses", ""), "--losses must be among cross-entropy, .*, got nothing"),
        (("quantile-regression", "--tables", "iris"), "--tables must be among bio, .*, got iris"),
        (("quantile-regression", "--response", "log"), "--response must be among standard, mean-abs, got log"),
        (("cifar10", "--precision", "half"), "--precision must be among bfloat16, float32, got half"),
        (("mnist-sort", "--runs", "0"), "--runs must be 1 or more, got 0"),
        (("cifar10", "--measure-every", "0"), "--measure-every must be 1 or more, got 0"),
    ],
)
def test_settings_are_checked_before_anything_runs(tmp_path, words, said):
    code, shown = call("reproduce", *words, "--data", tmp_path, "--out", tmp_path / "out")
    assert code == 1
    assert re.search(f"^error: {said}", shown)
    assert not (tmp_path / "out").exists()


def test_the_demo_alone_needs_scikit_learn(monkeypatch):
    for module in ("sinksort.paper.demo", "sinksort.paper.small"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr(sys.modules["sinksort.paper"], "demo", raising=False)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "sklearn" else real(name, *a))
    code, said = call("demo")
    assert code == 1
    assert said.startswith("error: the demo uses data that comes with scikit-learn, which is not installed")
    assert call("list")[0] == 0


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A folder with one table, and a catalogue that knows it."""
    folder = tmp_path / "data/cqr"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = "".join(",".join(map(str, row)) + "\n" for row in rng.normal(size=(60, 4)).round(3))
    path = folder / "Concrete_Data.csv"
    path.write_text("a,b,c,d\n" + rows)
    known = datasets.File("cqr/Concrete_Data.csv", datasets.sha256(path))
    files = tuple(known if file.path == known.path else file for file in DATA_SETS["cqr"].files)
    monkeypatch.setitem(DATA_SETS, "cqr", dataclasses.replace(DATA_SETS["cqr"], files=files))
    return folder.parent


def test_reproduce_then_report(tmp_path, tables):
    words = ["reproduce", "quantile-regression", "--data", tables, "--out", tmp_path / "out", "--device", "cpu"]
    words += ["--tables", "concrete", "--runs", 2, "--epochs", 2, "--steps", 2, "--levels", "0.5", "--hidden", 4]
    code, said = call(*words)
    assert code == 0, said
    assert "4 finished runs" in said
    knobs = json.loads((tmp_path / "out/quantile-regression/knobs.json").read_text())
    assert (knobs["tables"], knobs["levels"], knobs["hidden"]) == (["concrete"], [0.5], 4)

    code, said = call(*words)
    assert code == 0
    assert said.count("finished before") == 2

    code, said = call(*words, "--eps", 0.1)
    assert code == 1
    assert "results of other settings (eps = 0.01 there, 0.1 now)" in said
    code, said = call(*words, "--eps", 0.1, "--fresh")
    assert code == 0

    code, said = call("report", "--out", tmp_path / "out", "--to", tmp_path / "to")
    assert code == 0
    assert "concrete" in (tmp_path / "to/report.html").read_text()
    assert str(tmp_path / "to/report.html") in said.replace("\n", "")


TRAINED = ("--tables", "concrete", "--runs", 1, "--epochs", 1, "--steps", 1, "--levels", "0.5", "--device", "cpu")


def test_nothing_is_computed_from_damaged_files(tmp_path, tables):
    words = ["reproduce", "quantile-regression", "--data", tables, "--out", tmp_path / "out", *TRAINED]
    path = tables / "cqr/Concrete_Data.csv"
    whole = path.read_text()
    path.write_text(whole + "1,2,3,4\n")  # a table like any other
    code, said = call(*words)
    assert code == 1
    assert "cqr/Concrete_Data.csv not what they should be (by their sha256)" in said
    assert "sinksort data --download cqr" in said
    assert not (tmp_path / "out").exists()
    path.write_text(whole)
    code, said = call(*words)  # the other tables are not there, and not read
    assert code == 0, said
    (unit, _) = (tmp_path / "out/quantile-regression/units").glob("*.json")
    assert json.loads(unit.read_text())["data"] == {"cqr/Concrete_Data.csv": datasets.sha256(path)}


def test_nothing_is_reported_that_was_computed_from_damaged_files(tmp_path, tables):
    words = ["reproduce", "quantile-regression", "--data", tables, "--out", tmp_path / "out", *TRAINED]
    assert call(*words)[0] == 0
    for unit in (tmp_path / "out/quantile-regression/units").glob("*soft*.json"):
        unit.write_text(unit.read_text().replace(datasets.sha256(tables / "cqr/Concrete_Data.csv"), "0" * 64))
    code, said = call("report", "--out", tmp_path / "out", "--to", tmp_path / "to")
    assert code == 1
    assert "concrete-0.5/soft in " in said
    assert "was computed from files that are not what they should be (by their sha256): cqr/Concrete_Data.csv" in said
    assert "sinksort reproduce quantile-regression --only 'concrete-0.5/soft' --fresh" in said
    assert not (tmp_path / "to").exists()


def test_starting_over_with_a_part_leaves_the_rest(tmp_path, tables):
    words = ["reproduce", "quantile-regression", "--data", tables, "--out", tmp_path / "out", *TRAINED]
    assert call(*words)[0] == 0
    folder = tmp_path / "out/quantile-regression/units"
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    code, said = call(*words, "--only", "*/soft", "--fresh")
    assert code == 0, said
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    assert {name for name in before if after[name] == before[name]} == {"concrete-0.5--hard--seed0.json"}
    code, said = call(*words, "--only", "*/soft", "--fresh", "--eps", 0.1)
    assert code == 1
    assert "results of other settings (eps = 0.01 there, 0.1 now)" in said
    assert "or start over with --fresh, but not with --only" in said
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")} == after


def test_what_matches_nothing_is_told(tmp_path, tables):
    words = ["reproduce", "quantile-regression", "--data", tables, "--out", tmp_path / "out", *TRAINED]
    code, said = call(*words, "--only", "bio/*", "--fresh")
    assert code == 1
    assert "--only must match one of concrete-0.5/hard, concrete-0.5/soft, got 'bio/*'" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("quantile-regression", "--device", "gpu"), "--device must be auto, cpu, cuda or cuda:NUMBER, got 'gpu'"),
        (("quantile-regression", "--device", "cuda:99"), r"--device cuda:99: torch finds \d+ CUDA devices here"),
        (("quantile-regression", "--batch", "0"), "--batch must be 1 or more, got 0"),
        (("quantile-regression", "--hidden", "-1"), "--hidden must be 1 or more, got -1"),
        (("quantile-regression", "--eps", "nan"), "--eps must be a number above 0, got nan"),
        (("quantile-regression", "--learning-rate", "0"), "--learning-rate must be a number above 0, got 0"),
        (("quantile-regression", "--width", "2"), "--width must be from 0 to 1, got 2"),
        (("quantile-regression", "--levels", "0.5,1.5"), "--levels must be from 0 to 1, got 1.5"),
        (("quantile-regression", "--levels", ""), "--levels must have at least one number, got none"),
        (("quantile-regression", "--test-share", "1"), "--test-share must be between 0 and 1, got 1"),
        (("mnist-sort", "--sizes", ""), "--sizes must have at least one number, got none"),
        (("mnist-sort", "--sizes", "3,0"), "--sizes must be from 1 to inf, got 0"),
        (("mnist-sort", "--channels", "32"), "--channels must be two numbers, one for each convolution, got 1"),
        (("mnist-sort", "--digits", "19"), "--digits must be from 1 to 18, got 19"),
        (("mnist-sort", "--samples", "0"), "--samples must be 1 or more, got 0"),
        (("mnist-sort", "--tau", "inf"), "--tau must be a number above 0, got inf"),
        (("mnist-sort", "--noise", "-1"), "--noise must be from 0 to 1e.06, got -1"),
        (("cifar10", "--temperature", "0"), "--temperature must be a number above 0, got 0"),
        (("cifar100", "--eta", "-1"), "--eta must be a number above 0, got -1"),
    ],
)
def test_wrong_numbers_are_told_without_a_traceback(tmp_path, words, said):
    code, shown = call("reproduce", *words, "--data", tmp_path, "--out", tmp_path / "out")
    assert code == 1
    assert re.search(f"^error: {said}", shown)
    assert not (tmp_path / "out").exists()


def test_names_of_files_may_look_like_markup(tmp_path):
    folder = tmp_path / "[" / "red]"
    code, said = call("data", "--data", folder)
    assert code == 0
    assert str(folder) in said
    code, said = call("data", "--data", tmp_path, "--place", folder)
    assert code == 1
    assert f"error: --place must be a folder that holds the files, got {folder}." in said


@pytest.mark.parametrize("words", [("reproduce", "figures"), ("demo",), ("report", "--to")])
def test_a_file_in_place_of_a_folder_is_told(tmp_path, words):
    (tmp_path / "file").touch()
    out = () if words[-1] == "--to" else ("--out",)
    code, said = call(*words, *out, tmp_path / "file" / "out")
    assert code == 1
    assert said.splitlines()[-1].startswith("error: [Errno 20] Not a directory")


def test_a_damaged_unit_is_named(tmp_path, tables):
    words = ["reproduce", "quantile-regression", "--data", tables, "--out", tmp_path / "out", *TRAINED]
    assert call(*words)[0] == 0
    unit = tmp_path / "out/quantile-regression/units/concrete-0.5--hard--seed0.json"
    unit.write_text(unit.read_text()[:99])
    code, said = call("report", "--out", tmp_path / "out", "--to", tmp_path / "to")
    assert code == 1
    assert f"error: {unit} is damaged" in said


def test_figures(tmp_path):
    code, _ = call("reproduce", "figures", "--out", tmp_path)
    assert code == 0
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {
        f"{name}.{kind}"
        for name in ("figure1-transport", "figure2-entropy", "figure3-quantile")
        for kind in ("png", "svg")
    }


def test_device_is_the_cpu_where_there_is_no_other(tmp_path, tables):
    words = ["--data", tables, "--out", tmp_path, "--tables", "concrete", "--levels", "0.5", "--only", "*/hard"]
    code, _ = call("reproduce", "quantile-regression", *words, "--runs", 1, "--epochs", 1, "--steps", 1)
    assert code == 0
    (unit,) = (tmp_path / "quantile-regression/units").glob("*.json")
    device = json.loads(unit.read_text())["machine"]["device"]
    assert (device == "CPU") == (not torch.cuda.is_available())
