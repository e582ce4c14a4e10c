"""Small trainings: tasks from programs of other libraries, each with every method that could take its place.

A ``Task`` fixes the data, the network, the number of steps and the hard metric. A ``Method`` is a loss with one number
that makes it soft, a default for that number, and the numbers that validation data may choose among. All methods of a
task start from the same weights, see the same batches and take the same number of steps of Adam at the same rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs of the network, what is known) -> number to minimise
Kind = Literal["ours", "option", "scale", "peer", "usual"]


@dataclass
class Part:
    """Inputs, one example a row, and what is known of each."""

    X: Tensor
    y: Tensor


@dataclass
class Data:
    train: Part
    valid: Part
    test: Part


@dataclass(frozen=True)
class Method:
    """``make`` gives the loss of a softness; it is called once for each training, so a loss may have a state."""

    name: str
    kind: Kind  #: "ours" is our default, "option" and "scale" are other options of ours, "usual" is the usual loss
    make: Callable[[float], Loss]
    default: float = 1.0
    others: tuple[float, ...] = ()  #: further numbers that validation data may choose
    needs: str = ""  #: a package that must be importable

    @property
    def grid(self) -> tuple[float, ...]:
        return (self.default, *self.others)


@dataclass(frozen=True)
class Task:
    name: str
    what: str  #: data and network, for the page
    metric: str  #: which is better when it is higher
    load: Callable[[np.random.Generator], Data]
    network: Callable[[], nn.Module]
    score: Callable[[nn.Module, Data, Part], float]
    methods: tuple[Method, ...]
    steps: int = 300
    rate: float = 1e-2
    batch: int | None = None  #: examples a step; None for all of them


@dataclass(frozen=True)
class Outcome:
    valid: float
    test: float
    step: float  #: milliseconds


def train(task: Task, loss: Loss, seed: int) -> Outcome:
    """The hard metric of the network after its last step."""
    data = task.load(np.random.default_rng(seed))
    torch.manual_seed(seed)
    network = task.network()
    optimizer = torch.optim.Adam([*network.parameters(), *getattr(loss, "parameters", list)()], lr=task.rate)
    generator = torch.Generator().manual_seed(seed)
    start = perf_counter()
    for _ in range(task.steps):
        rows = slice(None)
        if task.batch is not None:
            rows = torch.randint(len(data.train.X), (task.batch,), generator=generator)
        optimizer.zero_grad()
        loss(network(data.train.X[rows]), data.train.y[rows]).backward()
        optimizer.step()
    step = (perf_counter() - start) / task.steps * 1e3
    with torch.no_grad():
        valid, test = (task.score(network, data, part) for part in (data.valid, data.test))
    return Outcome(valid, test, step)


def step_times(task: Task, losses: list[Loss], rounds: int = 7, steps: int = 10) -> list[list[float]]:
    """Milliseconds of a step for each loss, ``rounds`` numbers of which each is a mean over ``steps``, in turns."""
    data = task.load(np.random.default_rng(0))
    X, y = (t if task.batch is None else t[: task.batch] for t in (data.train.X, data.train.y))
    torch.manual_seed(0)
    networks = [task.network() for _ in losses]
    optimizers = [torch.optim.Adam(network.parameters(), lr=task.rate) for network in networks]
    times: list[list[float]] = [[] for _ in losses]
    for turn in range(rounds + 1):
        for network, optimizer, loss, mine in zip(networks, optimizers, losses, times, strict=True):
            start = perf_counter()
            for _ in range(steps):
                optimizer.zero_grad()
                loss(network(X), y).backward()
                optimizer.step()
            if turn:  # the first warms up
                mine.append((perf_counter() - start) / steps * 1e3)
    return times
