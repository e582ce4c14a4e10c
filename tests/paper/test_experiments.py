"""The experiments: right losses and measures, runs that do not disturb each other, results that survive a kill."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

from sinksort.paper.cifar import Cifar, Cifar100, Classifiers
from sinksort.paper.datasets import sha256
from sinksort.paper.experiments import EXPERIMENTS, reproduce
from sinksort.paper.mnist_sort import Digits, MnistSort, SortTask, accuracies, gumbel, order_cross_entropy, true_ranks
from sinksort.paper.networks import NumberReader, Perceptrons, ResNet18, SideBySide, VanillaCNN
from sinksort.paper.quantile_regression import QuantileRegression, RegressionTask, hard_quantile, true_quantile
from sinksort.paper.store import Checkpoint, Store
from sinksort.paper.training import generator, train

CPU = torch.device("cpu")
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(90, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.1 * GENERATOR.standard_t(2, 90)
IMAGES = GENERATOR.integers(0, 256, (60, 8, 8), dtype=np.uint8)
LABELS = (np.arange(60) % 10).astype(np.uint8)


def regression(seeds, method="soft", **knobs):
    chosen = QuantileRegression(steps=4, batch=32, hidden=8, width=1 / 32, measure_every=1, **knobs)
    return RegressionTask(chosen, X, Y, 0.5, method, seeds, CPU)


def sorting(seeds, method="transport"):
    knobs = MnistSort(digits=2, lists=4, channels=(2, 3), samples=2)
    pools = [Digits(IMAGES, LABELS, CPU)] * 3
    return SortTask(knobs, pools, 3, method, seeds, CPU)


def classifying(seeds, method="top1"):
    images = IMAGES[:, None]

    def make():
        return VanillaCNN(10, width=2, side=8, hidden=6, colours=1)

    return Classifiers(Cifar(batch=16), (images, LABELS), (images, LABELS), make, method, seeds, CPU)


# ---- measures and losses


@pytest.mark.parametrize("level", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [1, 2, 10, 37])
def test_quantiles_are_those_of_numpy(n, level):
    errors = torch.rand(3, n, dtype=torch.float64)
    np.testing.assert_allclose(true_quantile(errors, level), np.quantile(errors, level, axis=1), rtol=1e-12)
    np.testing.assert_array_equal(
        hard_quantile(errors, level), np.quantile(errors, level, axis=1, method="inverted_cdf")
    )


def test_the_hard_quantile_steps_on_one_point():
    errors = torch.tensor([[4.0, 1.0, 3.0, 2.0]], requires_grad=True)
    hard_quantile(errors, 0.9).backward()
    assert errors.grad.tolist() == [[1, 0, 0, 0]]


def test_soft_and_hard_losses_agree_when_eps_is_small():
    soft, hard = regression([0, 1], eps=1e-5), regression([0, 1], "hard")
    batch = {name: values[0] for name, values in soft.batches(0).items()}
    # the soft quantile averages over 1/32 around the level, between the 16th and the 17th of 32 errors
    low, high = (torch.sort((hard_residuals(hard, batch)).abs()).values[:, i] for i in (15, 16))
    losses = soft.losses(batch)
    assert ((losses >= low - 1e-4) & (losses <= high + 1e-4)).all()
    torch.testing.assert_close(hard.losses(batch), low)


def hard_residuals(task, batch):
    rows = torch.arange(len(task.seeds))[:, None]
    return task.train_y[rows, batch["index"]] - task.model(task.train_x[rows, batch["index"]])


def test_no_mini_batch_holds_a_point_twice():
    index = regression([3, 4]).batches(7)["index"]
    assert index.shape == (4, 2, 32)
    assert all(len(set(row.tolist())) == 32 for step in index for row in step)
    assert not torch.equal(index[:, 0], index[:, 1])


def test_order_cross_entropy_by_hand():
    P = torch.tensor([[[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]]], dtype=torch.float64)
    ranks = torch.tensor([[2, 1, 3]])  # the second value is the smallest
    assert order_cross_entropy(P, ranks).item() == pytest.approx(-np.log([0.2, 0.2, 0.6]).mean())


def test_accuracies_by_hand():
    values = torch.tensor([[30, 10, 20], [5, 5, 9]])
    scores = torch.tensor([[[3.0, 1.0, 2.0], [0.2, 0.1, 0.3]], [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]])
    # run 0: both lists right (equal numbers in either order); run 1: 30, 10, 20 has no number in its place
    assert accuracies(scores, values) == [(1.0, 1.0), (0.5, 0.5)]


def test_true_ranks_and_their_ties():
    assert true_ranks(torch.tensor([[30, 10, 20, 10]])).tolist() == [[4, 1, 3, 2]]


def test_gumbel_has_its_moments():
    drawn = gumbel((200_000,), generator(0, 0)).double()
    assert drawn.mean().item() == pytest.approx(0.57722, abs=0.01)
    assert drawn.var().item() == pytest.approx(np.pi**2 / 6, abs=0.02)


def test_numbers_show_the_digits_they_have():
    pool = Digits(np.repeat(LABELS, 4).reshape(-1, 2, 2), LABELS, CPU)  # every pixel says its digit
    index, values = pool.draw((50, 3), 4, generator(1, 2))
    shown = (pool.show(index) * 255).round().long()
    assert shown.shape == (150, 1, 8, 2)
    digits = shown[:, 0, ::2, 0]
    assert (digits @ torch.tensor([1000, 100, 10, 1])).tolist() == values.flatten().tolist()
    assert len(values.unique()) > 100


@pytest.mark.parametrize("method", ["neuralsort", "neuralsort-stochastic", "transport"])
def test_sorting_losses_prefer_the_right_order(method, monkeypatch):
    task = sorting([0, 1], method)
    batch = {name: values[0] for name, values in task.batches(0).items()}
    right = batch["ranks"] * 40
    monkeypatch.setattr(task, "scores", lambda _index: right)
    good = task.losses(batch)
    monkeypatch.setattr(task, "scores", lambda _index: -right)
    bad = task.losses(batch)
    assert good.shape == (2,)
    assert (good < 0.1).all()
    assert (bad > 1.0).all()


# ---- networks


def size(network):
    return sum(p.numel() for p in network.parameters())


def test_sizes_of_the_networks():
    grover = 5 * 5 * 32 + 32 + 5 * 5 * 32 * 64 + 64 + 4 * 7 * 7 * 64 * 64 + 64 + 64 + 1
    assert size(NumberReader(4)) == grover
    assert size(ResNet18(10)) == 11_173_962  # the usual ResNet-18 for 32 x 32 images
    assert sum(isinstance(m, nn.Conv2d) for m in VanillaCNN(10).modules()) == 4
    assert sum(isinstance(m, nn.MaxPool2d) for m in VanillaCNN(10).modules()) == 2


def test_stacked_regressors_are_plain_ones():
    stacked = Perceptrons(3, 5, seeds=[4, 9])
    x = torch.randn(2, 7, 3)
    for r in range(2):
        plain = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 1))
        with torch.no_grad():
            for layer, weight, bias in zip(plain[::2], stacked.weights, stacked.biases, strict=True):
                layer.weight.copy_(weight[r].T)
                layer.bias.copy_(bias[r, 0])
        torch.testing.assert_close(stacked(x)[r], plain(x[r]).squeeze(-1))
    weight = stacked.weights[1][0]
    torch.testing.assert_close(weight @ weight.T, torch.eye(5))  # orthogonal


def test_a_network_depends_on_its_seed_alone():
    def make():
        return nn.Linear(2, 2)

    state = torch.random.get_rng_state()
    one, many = SideBySide(make, [5]), SideBySide(make, [3, 5])
    assert torch.equal(one.networks[0].weight, many.networks[1].weight)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_logits_as_they_are_have_a_temperature():
    """Ten times the logits: the tempered cross-entropy is the plain one, sure labels cost nothing on raw logits, and
    standardised logits do not notice."""
    logits = torch.stack([torch.randperm(10, generator=torch.Generator().manual_seed(i)) for i in range(10)])
    logits = (0.3 * logits).view(2, 5, 10).double()
    labels = logits.argmax(-1)
    lost = {
        name: classifying([0, 1], name)._lost
        for name in ("cross-entropy", "cross-entropy-tempered", "top1-log", "top1-raw")
    }
    plain = lost["cross-entropy"](logits, labels)
    torch.testing.assert_close(lost["cross-entropy-tempered"](10 * logits, labels), plain)
    torch.testing.assert_close(lost["top1-log"](1000 * logits, labels), lost["top1-log"](logits, labels))
    assert (lost["top1-raw"](1000 * logits, labels) < 1e-3 * lost["top1-raw"](logits, labels)).all()


# ---- training


@pytest.mark.parametrize("make", [regression, sorting, classifying])
def test_a_run_is_the_same_alone_and_beside_others(make):
    alone = train(make([1]), epochs=2, learning_rate=1e-3)
    beside = train(make([0, 1, 2]), epochs=2, learning_rate=1e-3)
    for one, other in zip(alone.curves[0], beside.curves[1], strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert beside.curves[0] != beside.curves[1]


@pytest.mark.parametrize(
    ("make", "method"),
    [
        (regression, "hard"),
        (regression, "soft"),
        (sorting, "neuralsort-stochastic"),
        (classifying, "cross-entropy"),
        (classifying, "cross-entropy-tempered"),
        (classifying, "top1-log"),
        (classifying, "top1-raw"),
        (classifying, "top5"),
    ],
)
def test_training_lowers_the_loss(make, method):
    task = make([0, 1], method)
    batch = {name: values[0] for name, values in task.batches(0).items()}
    before = task.losses(batch).sum()
    task.batches = lambda _epoch: {name: values.expand(20, *values.shape) for name, values in batch.items()}
    train(task, epochs=1, learning_rate=1e-2)
    task.model.train()
    assert task.losses(batch).sum() < before


def test_measurements_come_when_asked():
    trained = train(regression([0]), epochs=5, learning_rate=1e-3, measure_every=2)
    assert [point["epoch"] for point in trained.curves[0]] == [2, 4, 5]
    assert set(trained.curves[0][0]) == {"epoch", "train", "test", "mse"}


@pytest.mark.parametrize("make", [regression, sorting, classifying])
def test_a_resumed_training_gives_the_same_numbers(tmp_path, make):
    whole = train(make([0, 1]), epochs=4, learning_rate=1e-3)
    checkpoint = Checkpoint(tmp_path / "c.pt")
    train(make([0, 1]), epochs=2, learning_rate=1e-3, checkpoint=checkpoint)
    told = []
    rest = train(
        make([0, 1]), epochs=4, learning_rate=1e-3, checkpoint=checkpoint, tell=lambda t: told.append(t.epochs)
    )
    assert told == [2, 3, 4]
    assert rest.curves == whole.curves


def test_a_checkpoint_of_other_runs_is_not_used(tmp_path):
    checkpoint = Checkpoint(tmp_path / "c.pt")
    train(regression([0, 1]), epochs=1, learning_rate=1e-3, checkpoint=checkpoint)
    told = []
    train(regression([1]), epochs=1, learning_rate=1e-3, checkpoint=checkpoint, tell=lambda t: told.append(t.epochs))
    assert told == [0, 1]


# ---- from files to results


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    (folder / "cqr").mkdir(parents=True)
    rows = "".join(",".join(f"{v:.6f}" for v in (*x, y)) + "\n" for x, y in zip(X, Y, strict=True))
    (folder / "cqr/Concrete_Data.csv").write_text("a,b,c,d\n" + rows)
    (folder / "mnist").mkdir()
    rng = np.random.default_rng(1)
    for part, count in (("train", 5080), ("t10k", 90)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for what, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
            (folder / f"mnist/{part}-{what}-ubyte").write_bytes(head + array.tobytes())
    for name, labels, files in (
        ("cifar-10-batches-bin", 1, [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]),
        ("cifar-100-binary", 2, ["train", "test"]),
    ):
        (folder / name).mkdir()
        for file in files:
            records = rng.integers(0, 256, (8, labels + 3072), dtype=np.uint8)
            records[:, :labels] %= 10
            (folder / name / f"{file}.bin").write_bytes(records.tobytes())
    return folder


SMALL = {
    "quantile-regression": QuantileRegression(runs=2, epochs=2, steps=3, tables=("concrete",), measure_every=1),
    "mnist-sort": MnistSort(runs=1, epochs=1, sizes=(3,), channels=(2, 2)),
    "cifar10": Cifar(runs=1, epochs=1, batch=8, networks=("cnn",), losses=("top1",)),
    "cifar100": Cifar100(runs=1, epochs=1, batch=8, networks=("resnet18",), losses=("cross-entropy",)),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_end_to_end(tmp_path, data, name):
    knobs = SMALL[name]
    store = reproduce(name, knobs, data=data, out=tmp_path / "out", device=CPU)
    units = list(store.units())
    wanted = [(c, m, s) for c in knobs.cases() for m in knobs.methods(c) for s in range(knobs.runs)]
    assert sorted((u["case"], u["method"], u["seed"]) for u in units) == sorted(wanted)
    as_saved = json.loads(json.dumps(dataclasses.asdict(knobs)))
    assert json.loads((tmp_path / "out" / name / "knobs.json").read_text()) == as_saved
    for unit in units:
        assert unit["knobs"] == as_saved
        assert unit["experiment"] == name
        assert [point["epoch"] for point in unit["curve"]] == list(range(1, knobs.epochs + 1))
        assert all(np.isfinite(list(point.values())).all() for point in unit["curve"])
        assert unit["machine"]["torch"] == str(torch.__version__)
    assert list((store.folder / "checkpoints").glob("*")) == []


def test_finished_units_are_kept_and_missing_ones_added(tmp_path, data):
    knobs = SMALL["quantile-regression"]
    store = reproduce("quantile-regression", knobs, data=data, out=tmp_path, device=CPU, only="concrete-0.5/*")
    assert len(list(store.units())) == 4
    first = store.unit("concrete-0.5", "hard", 0)
    stamp = first.stat().st_mtime_ns
    seen = []
    more = dataclasses.replace(knobs, runs=3)
    reproduce("quantile-regression", more, data=data, out=tmp_path, device=CPU, watch=lambda *a: seen.append(a[:2]))
    assert len(list(store.units())) == 12
    assert first.stat().st_mtime_ns == stamp
    assert set(seen) == {(c, m) for c in ("concrete-0.5", "concrete-0.9") for m in ("hard", "soft")}


def test_killed_while_the_units_were_written(tmp_path, data):
    knobs, name = SMALL["quantile-regression"], "quantile-regression"
    store = reproduce(name, knobs, data=data, out=tmp_path / "left", device=CPU, only="concrete-0.5/soft")
    other = Store(tmp_path / "killed" / name)
    task = knobs.task("concrete-0.5", "soft", [0, 1], data, CPU)
    checkpoint = other.checkpoint("concrete-0.5", "soft")
    train(task, epochs=knobs.epochs, learning_rate=knobs.learning_rate, checkpoint=checkpoint)
    other.unit("concrete-0.5", "soft", 0).parent.mkdir(parents=True)
    other.unit("concrete-0.5", "soft", 0).write_bytes(store.unit("concrete-0.5", "soft", 0).read_bytes())
    told = []
    reproduce(
        name,
        knobs,
        data=data,
        out=tmp_path / "killed",
        device=CPU,
        only="concrete-0.5/soft",
        watch=lambda _case, _method, trained, _epochs: told.append(trained.epochs),
    )
    assert told == [knobs.epochs]  # nothing is trained again
    assert [u["curve"] for u in other.units()] == [u["curve"] for u in store.units()]
    assert not checkpoint.path.exists()


def test_what_was_half_written_when_a_run_was_killed_is_swept_away(tmp_path):
    store = Store(tmp_path)
    left = [
        "checkpoints/.n3--top1.pt.17.part",
        "units/.n3--top1--seed0.json.17.part",
        "units/.n3--top1--seed12.json.4.part",
    ]
    others = [
        "checkpoints/.n3--top1-log.pt.9.part",
        "units/.n3--top1-log--seed0.json.9.part",
        "units/n3--top1--seed0.json",
    ]
    for name in (*left, *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    store.sweep("n3", "top1")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(others)


def test_other_settings_do_not_mix(tmp_path):
    store = Store(tmp_path / "e")
    store.open(MnistSort())
    store.open(MnistSort(runs=3))
    with pytest.raises(ValueError, match=r"results of other settings \(eps = 0.005 there, 0.01 now\).*--out.*--fresh"):
        store.open(MnistSort(eps=0.01))
    store.open(MnistSort(eps=0.01), fresh=True)
    assert json.loads((tmp_path / "e/knobs.json").read_text())["eps"] == 0.01


#: The command line, with another sha256 of a table in its catalogue.
WITH_ANOTHER_TABLE = """
import sys
from sinksort.paper import cli, datasets
table = datasets.File("cqr/Concrete_Data.csv", sys.argv.pop(1))
datasets.DATA_SETS["cqr"] = datasets.DataSet("a table", (table,), "")
cli.main()
"""


def test_two_processes_share_the_work(tmp_path, data):
    """What one of them trains the other leaves to it, and takes over if it is killed."""
    name, knobs = "quantile-regression", SMALL["quantile-regression"]
    store = Store(tmp_path / name)
    told = []

    def watch(case, method, trained, epochs):
        told.append((case, method, None if trained is None else trained.epochs))

    started, go_on = threading.Event(), threading.Event()

    def first():
        with store.alone("concrete-0.5", "soft", wait=False) as alone:
            assert alone
            started.set()
            assert go_on.wait(60)

    other = threading.Thread(target=first)
    other.start()
    assert started.wait(60)
    with (
        store.alone("concrete-0.5", "soft", wait=False) as alone,
        store.alone("concrete-0.5", "hard", wait=False) as free,
    ):
        assert (alone, free) == (False, True)
    with pytest.raises(
        ValueError, match=r"another process is training concrete-0.5/soft in .*; wait until it has ended"
    ):
        store.open(knobs, fresh=True)
    store.open(knobs, fresh=True, only="*/hard")

    def both(*args):
        watch(*args)
        if len({case_and_method[:2] for case_and_method in told}) == 3:
            go_on.set()  # all but one have begun: the last is waited for

    reproduce(name, knobs, data=data, out=tmp_path, device=CPU, watch=both)
    other.join()
    assert list(dict.fromkeys(entry[:2] for entry in told))[-1] == ("concrete-0.5", "soft")
    assert len(list(store.units())) == 8
    assert list((store.folder / "checkpoints").glob("*")) == []


def test_two_commands_in_one_folder_train_everything_once(tmp_path, data):
    options = ["--runs", "1", "--epochs", "40", "--steps", "10", "--tables", "concrete", "--only", "*/hard"]
    command = [sys.executable, "-c", WITH_ANOTHER_TABLE, sha256(data / "cqr/Concrete_Data.csv")]
    command += ["reproduce", "quantile-regression", *options, "--data", str(data), "--out", str(tmp_path / "out")]
    alike = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=alike) for _ in range(2)]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sum(text.count("epoch 40") for text in said) == 2, said
    assert sum(text.count("finished before") for text in said) == 2, said
    assert all("2 finished runs" in text for text in said)


def test_killed_and_resumed(tmp_path, data):
    """A real SIGKILL in the middle; the resumed run ends with the very numbers of one that was left alone."""
    options = ["--runs", "2", "--epochs", "15", "--steps", "10", "--measure-every", "1", "--tables", "concrete"]
    options += ["--only", "concrete-0.5/soft", "--data", str(data), "--device", "cpu"]
    command = [sys.executable, "-c", WITH_ANOTHER_TABLE, sha256(data / "cqr/Concrete_Data.csv")]
    command += ["reproduce", "quantile-regression", *options, "--out"]

    killed, left = Store(tmp_path / "killed/quantile-regression"), Store(tmp_path / "left/quantile-regression")
    alike = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # as many threads as tests have
    process = subprocess.Popen([*command, str(tmp_path / "killed")], stdout=subprocess.DEVNULL, env=alike)
    checkpoint = killed.checkpoint("concrete-0.5", "soft")
    deadline = time.monotonic() + 120
    while not checkpoint.path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    epoch = checkpoint.load(CPU)["epochs"]
    assert 1 <= epoch < 15
    assert list(killed.units()) == []

    subprocess.run([*command, str(tmp_path / "killed")], check=True, stdout=subprocess.DEVNULL, env=alike)
    knobs = QuantileRegression(runs=2, epochs=15, steps=10, measure_every=1, tables=("concrete",))
    reproduce("quantile-regression", knobs, data=data, out=tmp_path / "left", device=CPU, only="concrete-0.5/soft")
    curves = [[unit["curve"] for unit in store.units()] for store in (killed, left)]
    assert len(curves[0]) == 2
    assert curves[0] == curves[1]
    files = {path.name for path in killed.folder.rglob("*") if path.is_file()}
    assert files == {"knobs.json", "concrete-0.5--soft--seed0.json", "concrete-0.5--soft--seed1.json"}
