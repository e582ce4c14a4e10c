"""A contestant's operator made ready on the values of one cell: forward, forward plus backward, and what they take.

``TorchRun`` and ``JaxRun`` have the same methods, so that nothing above knows of frameworks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
from _common import growth

from .cells import Array, Cell

WARM = 0.1  # seconds
MOST = 1000  # calls in a sample
Pass = Literal["forward", "both"]  #: forward alone, or forward plus backward


class Run(Protocol):
    """What the worker asks of a contestant in a cell."""

    def ready(self) -> None:
        """Whatever is made once: compiled programs, recorded graphs."""

    def once(self, what: Pass) -> tuple[Any, Any]:
        """One pass: the answer, and the gradient or None. Does not wait for the device."""

    def wait(self, result: Any) -> None: ...

    def peak(self, what: Pass) -> tuple[int | None, tuple[Any, Any]]:
        """Extra bytes at the worst moment of one pass, and what it gave."""

    def as_numpy(self, tensor: Any) -> Array: ...

    def release(self) -> None: ...


def seconds(run: Run, what: Pass, least: float) -> float:
    """Of one call: the mean over as many in a row as last ``least`` seconds, after as many that are not counted.

    The clock stops when the device has finished the last. A call of more than a tenth of a second counts at once: what
    others have left in the caches is nothing to it.
    """
    spent = _timed(run, what, 1)
    if spent >= WARM:
        return spent
    calls = 1
    while True:
        spent = _timed(run, what, calls)
        if spent >= least or calls >= MOST:
            return _timed(run, what, calls) / calls
        calls = min(MOST, max(2 * calls, math.ceil(1.2 * calls * least / spent)))


def _timed(run: Run, what: Pass, calls: int) -> float:
    result = None
    start = time.perf_counter()
    for _ in range(calls):
        result = None  # as in a training loop, the last answer is gone before the next is made
        result = run.once(what)
    run.wait(result)
    return time.perf_counter() - start


class TorchRun:
    """On a torch device; with ``graph`` each pass is recorded once as a CUDA graph and then replayed."""

    def __init__(
        self,
        operator: Callable[[Any, Any], Any],
        parameter: float,
        x: Array,
        v: Array,
        device: str,
        *,
        graph: bool = False,
    ) -> None:
        import torch

        self.torch: Any = torch
        self.device, self.graph = device, graph
        self.operator: Callable[[Any], Any] = lambda t: operator(t, parameter)
        self.x = torch.from_numpy(x).to(device)
        self.moving = self.x.clone().requires_grad_()
        self.v = torch.from_numpy(v).to(device)
        self.other = torch.ones(1, device=device)
        self.recorded: dict[str, tuple[Any, tuple[Any, Any]]] = {}

    def ready(self) -> None:
        if self.graph:
            side = self.torch.cuda.Stream()
            side.wait_stream(self.torch.cuda.current_stream())
            with self.torch.cuda.stream(side):
                for _ in range(3):
                    self._eager("both")
            self.torch.cuda.current_stream().wait_stream(side)
            for what in ("forward", "both"):
                recording = self.torch.cuda.CUDAGraph()
                with self.torch.cuda.graph(recording):
                    answers = self._eager(what)
                self.recorded[what] = recording, answers

    def once(self, what: Pass) -> tuple[Any, Any]:
        if not self.graph:
            return self._eager(what)
        recording, answers = self.recorded[what]
        recording.replay()
        return answers

    def _eager(self, what: str) -> tuple[Any, Any]:
        if what == "forward":
            with self.torch.no_grad():
                return self.operator(self.x), None
        answer = self.operator(self.moving)
        v = self.v if answer.shape == self.v.shape else self.other.expand(answer.shape)  # floors have other answers
        (gradient,) = self.torch.autograd.grad(answer, self.moving, v)
        return answer.detach(), gradient

    def wait(self, result: Any) -> None:  # noqa: ARG002 (all streams are waited for)
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def peak(self, what: Pass) -> tuple[int | None, tuple[Any, Any]]:
        if self.device == "cpu":
            return growth(lambda: self.once(what))
        cuda = self.torch.cuda
        if self.graph:  # its memory is its own pool, there from the recording on
            return None, self.once(what)
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        result = self.once(what)
        cuda.synchronize()
        return int(cuda.max_memory_allocated() - before), result

    def as_numpy(self, tensor: Any) -> Array:
        return np.asarray(tensor.cpu().numpy())

    def release(self) -> None:
        self.recorded.clear()
        if self.device == "cuda":
            self.torch.cuda.empty_cache()


class JaxRun:
    """Compiled ahead for the shape; the parameter is an argument, so that one program serves every softness."""

    def __init__(self, operator: Callable[[Any, Any], Any], parameter: float, x: Array, v: Array, device: str) -> None:
        import jax

        self.jax, self.device, self.operator = jax, device, operator
        place = jax.devices("gpu" if device == "cuda" else "cpu")[0]
        self.x, self.v = jax.device_put(x, place), jax.device_put(v, place)
        self.parameter = jax.device_put(np.float32(parameter), place)
        self.programs: dict[str, Any] = {}

    def ready(self) -> None:
        def both(x: Any, v: Any, parameter: Any) -> tuple[Any, Any]:
            answer, pull = self.jax.vjp(lambda t: self.operator(t, parameter), x)
            return answer, pull(v)[0]

        forward = self.jax.jit(self.operator).lower(self.x, self.parameter)
        self.programs["forward"] = forward.compile()
        self.programs["both"] = self.jax.jit(both).lower(self.x, self.v, self.parameter).compile()

    def once(self, what: Pass) -> tuple[Any, Any]:
        if what == "forward":
            result = self.programs[what](self.x, self.parameter), None
        else:
            result = self.programs[what](self.x, self.v, self.parameter)
        if self.device == "cpu":
            self.wait(result)  # calls would otherwise run beside each other
        return result

    def wait(self, result: Any) -> None:
        self.jax.block_until_ready(result)

    def peak(self, what: Pass) -> tuple[int | None, tuple[Any, Any]]:
        if self.device == "cpu":
            return growth(lambda: self.once(what))
        needs = self.programs[what].memory_analysis()  # what XLA has planned; its own peak cannot be reset
        return int(needs.temp_size_in_bytes + needs.output_size_in_bytes), self.once(what)

    def as_numpy(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def release(self) -> None:
        self.programs.clear()


def make_run(operator: Any, parameter: float, cell: Cell, device: str, *, jax: bool, graph: bool = False) -> Run:
    x, v = cell.values(), cell.cotangent()
    if jax:
        return JaxRun(operator, parameter, x, v, device)
    return TorchRun(operator, parameter, x, v, device, graph=graph)
