"""The training loop by itself: step sizes, and checkpoints that are saved, resumed from, or refused."""

from __future__ import annotations

import itertools
import math
import os
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sinksort.paper import training
from sinksort.paper.store import Checkpoint
from sinksort.paper.training import train

CPU = torch.device("cpu")


class Slope:
    """A task whose gradient is one: Adam moves the parameter by its step size."""

    seeds = (0,)

    def __init__(self):
        self.model = torch.nn.ParameterList([torch.zeros(1, dtype=torch.float64)])

    def batches(self, _epoch):
        return {"nothing": torch.zeros(1, 1)}

    def losses(self, _batch):
        return self.model[0]

    def measure(self):
        return [{"at": self.model[0].item()}]


@pytest.mark.parametrize("falls", [False, True])
def test_the_step_size_is_constant_or_falls_along_a_cosine(falls):
    curve = train(Slope(), epochs=4, learning_rate=0.1, falls=falls).curves[0]
    steps = -np.diff([0.0, *(point["at"] for point in curve)])
    half = math.sqrt(0.5) / 2
    np.testing.assert_allclose(steps, [0.1, 0.05 + 0.1 * half, 0.05, 0.05 - 0.1 * half] if falls else 0.1, rtol=1e-6)


def test_a_training_killed_in_the_middle_of_the_plan_goes_on_as_if_nothing_had_been(tmp_path):
    whole = train(Slope(), epochs=4, learning_rate=0.1, falls=True)
    checkpoint, told = Checkpoint(tmp_path / "c.pt"), []

    def stop(so_far):
        if so_far.epochs == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Slope(), epochs=4, learning_rate=0.1, falls=True, checkpoint=checkpoint, tell=stop)
    rest = train(
        Slope(), epochs=4, learning_rate=0.1, falls=True, checkpoint=checkpoint, tell=lambda t: told.append(t.epochs)
    )
    assert told == [2, 3, 4]
    assert rest.curves == whole.curves


class Costly(Checkpoint):
    """One whose saving takes a second of the processor, by a clock of its own."""

    def save(self, state):
        super().save(state)
        Costly.clock += 1.0


def test_checkpoints_that_cost_more_than_an_epoch_are_saved_less_often(tmp_path, monkeypatch):
    Costly.clock, saved = 0.0, []
    ticks = itertools.count()  # an epoch asks four times, and so takes 1.5 s by this clock
    clocks = SimpleNamespace(process_time=lambda: Costly.clock, perf_counter=lambda: 0.5 * next(ticks))
    monkeypatch.setattr(training, "time", clocks)
    checkpoint = Costly(tmp_path / "c.pt")

    def look(so_far):
        saved.append(checkpoint.load(CPU)["epochs"] if so_far.epochs else 0)

    train(Slope(), epochs=9, learning_rate=0.1, checkpoint=checkpoint, tell=look)
    assert saved == [0, 1, 1, 1, 1, 1, 1, 1, 8, 8]  # seven epochs are the first that take ten seconds


class Boom:
    def __reduce__(self):
        return os.mkdir, ("boom",)


@pytest.mark.parametrize("content", [b"", b"junk" * 50, pickle.dumps(Boom(), protocol=2)])
def test_a_checkpoint_that_is_none_is_refused_and_runs_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"c.pt is not a checkpoint of this program .* --fresh"):
        Checkpoint(tmp_path / "c.pt").load(CPU)
    assert not (tmp_path / "boom").exists()
