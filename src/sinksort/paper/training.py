"""One plain training loop for every experiment: R runs of one method side by side, on one device.

A task says what is trained (``model``), on what (``batches``), for what (``losses``, one number a run) and how it is
judged (``measure``). The runs share nothing: their losses are added, so each network gets the gradient of its own loss,
and Adam works on each number by itself. Training them together only saves time, most of all in the solver, which takes
their rows as one batch.

Random numbers come from a generator that is made anew for each (seed, epoch, purpose): a resumed run continues with the
very numbers that an uninterrupted one sees, and nothing about generators has to be saved.

On a GPU the whole step (forward, loss, backward, Adam) is recorded once as a CUDA graph and replayed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from .store import Checkpoint

Batch = dict[str, Tensor]
Numbers = dict[str, float]

_CHEAP = 0.1  #: seconds that a checkpoint may cost after every epoch, however short


class Task(Protocol):
    """What the loop needs to know of an experiment."""

    model: nn.Module  #: all R networks
    seeds: Sequence[int]  #: one a run

    def batches(self, epoch: int) -> Batch:
        """The data of an epoch: tensors (steps, R, ...)."""

    def losses(self, batch: Batch) -> Tensor:
        """(R,) the training loss of each run on its part (R, ...) of a batch."""

    def measure(self) -> list[Numbers]:
        """What is reported of each run."""


@dataclass
class Trained:
    """How the runs went: one curve a run, one entry an epoch that was measured."""

    curves: list[list[Numbers]]
    epochs: int = 0  #: finished so far
    seconds: float = 0.0  #: spent on all runs together, interruptions not counted
    step_times: list[float] = field(default_factory=list)  #: ms, one entry an epoch, of a step of all runs together

    @property
    def step_ms(self) -> float:
        """The median: the first epoch also pays for a CUDA graph."""
        return float(np.median(self.step_times)) if self.step_times else 0.0


def generator(seed: int, epoch: int, purpose: int = 0) -> torch.Generator:
    """A generator of its own for each (seed, epoch, purpose), the same on every machine."""
    entropy = np.random.SeedSequence([seed, epoch, purpose]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(entropy >> 1))


def train(
    task: Task,
    *,
    epochs: int,
    learning_rate: float,
    falls: bool = False,
    measure_every: int = 1,
    checkpoint: Checkpoint | None = None,
    tell: Callable[[Trained], None] = lambda _: None,
) -> Trained:
    """Train with Adam, saving a checkpoint after each epoch, or after some where saving takes long.

    The step size is constant; or it ``falls`` to zero along half a cosine, epoch by epoch.
    Epochs ``measure_every``, 2 ``measure_every``, ... and the last are measured. ``tell`` is called after each epoch.
    """
    device = next(task.model.parameters()).device
    cuda = device.type == "cuda"
    rate = (
        torch.tensor(learning_rate, dtype=torch.float32, device=device) if cuda else learning_rate
    )  # a CUDA graph reads it anew each time
    optimizer = torch.optim.Adam(task.model.parameters(), lr=rate, capturable=cuda, fused=cuda)
    trained = Trained([[] for _ in task.seeds])
    save = _Saver(checkpoint) if checkpoint is not None else None
    if checkpoint is not None:
        trained = _resume(checkpoint, task, optimizer, device) or trained
        for group in optimizer.param_groups:
            group["lr"] = rate
    step = graphed(task, optimizer) if cuda and trained.epochs < epochs else eager(task, optimizer)
    tell(trained)
    while trained.epochs < epochs:
        began = time.perf_counter()
        if falls:
            _set_rate(optimizer, 0.5 * learning_rate * (1.0 + math.cos(math.pi * trained.epochs / epochs)))
        task.model.train()
        data = task.batches(trained.epochs)
        steps = len(next(iter(data.values())))
        stepping = time.perf_counter()
        for i in range(steps):
            step({name: values[i] for name, values in data.items()})
        _wait(device)
        trained.step_times.append(1e3 * (time.perf_counter() - stepping) / steps)
        trained.epochs += 1
        if trained.epochs % measure_every == 0 or trained.epochs == epochs:
            task.model.eval()
            with torch.no_grad():
                for curve, numbers in zip(trained.curves, task.measure(), strict=True):
                    curve.append({"epoch": trained.epochs, **numbers})
        trained.seconds += time.perf_counter() - began
        if save is not None:
            save(task, optimizer, trained)
        tell(trained)
    return trained


# ---- one step


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _step(task: Task, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    optimizer.zero_grad(set_to_none=True)
    task.losses(batch).sum().backward()
    optimizer.step()


def eager(task: Task, optimizer: torch.optim.Optimizer) -> Callable[[Batch], None]:
    return lambda batch: _step(task, optimizer, batch)


def graphed(task: Task, optimizer: torch.optim.Optimizer) -> Callable[[Batch], None]:
    """The step as a CUDA graph. It is recorded at the first call, after steps whose effect is undone."""
    graph = torch.cuda.CUDAGraph()
    fixed: Batch = {}

    def record(batch: Batch) -> None:
        fixed.update({name: values.clone() for name, values in batch.items()})
        changed = [*task.model.parameters(), *task.model.buffers()]
        before = [t.detach().clone() for t in changed]
        moments = {id(p): {k: v.clone() for k, v in s.items()} for p, s in optimizer.state.items()}
        torch.backends.cudnn.benchmark = True  # the steps that are undone also pick the fastest convolutions
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                _step(task, optimizer, fixed)
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for t, value in zip(changed, before, strict=True):
                t.copy_(value)
            for p, s in optimizer.state.items():
                for key, value in s.items():
                    if id(p) in moments:
                        value.copy_(moments[id(p)][key])
                    else:
                        value.zero_()
        torch.cuda.empty_cache()  # gigabytes of workspace were tried; others may train on this device
        with torch.cuda.graph(graph):
            _step(task, optimizer, fixed)

    def replay(batch: Batch) -> None:
        if not fixed:
            record(batch)
        for name, values in batch.items():
            fixed[name].copy_(values)
        graph.replay()

    return replay


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---- checkpoints


class _Saver:
    """Saves a checkpoint after an epoch, unless most of the time would go into that.

    Runs side by side of large networks are hundreds of megabytes, and an epoch may take a second. Saving gets at most a
    tenth of the time then, and whoever is killed loses at most ten times what a checkpoint costs.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._cost = 0.0  # of the last one, in seconds of the processor: those of a disk say nothing about the next
        self._at = 0.0  # seconds trained by then

    def __call__(self, task: Task, optimizer: torch.optim.Optimizer, trained: Trained) -> None:
        if self._cost > _CHEAP and trained.seconds - self._at < 10.0 * self._cost:
            return
        began = time.process_time()
        self._checkpoint.save(
            {
                "seeds": list(task.seeds),
                "epochs": trained.epochs,
                "seconds": trained.seconds,
                "step_times": trained.step_times,
                "curves": trained.curves,
                "model": task.model.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
        )
        self._cost, self._at = time.process_time() - began, trained.seconds


def _resume(
    checkpoint: Checkpoint, task: Task, optimizer: torch.optim.Optimizer, device: torch.device
) -> Trained | None:
    """How far these very runs had come, loaded into model and optimizer; None when nothing is saved of them."""
    saved: dict[str, Any] | None = checkpoint.load(device)
    if saved is None or saved["seeds"] != list(task.seeds):
        return None
    task.model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return Trained(saved["curves"], saved["epochs"], saved["seconds"], saved["step_times"])
