"""One contestant in a process of its own: it obeys the coordinator, who decides when it runs and for how long.

    python -m contest.worker DESCRIPTOR

The descriptor is that of one end of a pipe. Who it is and what it may use come first; then a message is (method,
arguments), a reply ("ok", answer) or ("error", reason).
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from _common import kilobytes
from peers import Knob, Operator, Peer, Site

from contest.cells import Array, Cell, relative, softness
from contest.runs import Pass, Run, TorchRun, make_run, seconds

STEPS = 16  # halvings of the logarithm of a knob
ROWS = 4  # of an answer that are compared, where it is a peer's


class Contestant:
    """The methods are the messages. State is the cell at hand and the softness found for each smaller cell."""

    def __init__(self, peer: Peer, site: Site, memory: int) -> None:
        self.peer, self.site, self.memory = peer, site, memory
        self.run: Run | None = None
        self.cell: Cell | None = None
        self.operator: Operator | None = None
        self.parameter = math.nan
        self.knobs: dict[tuple[str, float], float] = {}

    def load(self) -> str:
        """Import the library; its version."""
        if self.peer.jax:
            import jax

            cache = os.environ.get("VERSUS_JAX_CACHE")
            if cache:
                jax.config.update("jax_compilation_cache_dir", cache)
                jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
            jax.devices()
        else:
            import torch

            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
            if self.site.device == "cuda":
                torch.zeros(1, device="cuda")
        self.peer.operator("rank", 10, self.site)
        if self.site.device == "cpu" and sys.platform.startswith("linux"):
            import resource

            limit = kilobytes("VmSize") * 1024 + self.memory
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return self.peer.version(self.site)

    def prepare(self, key: str, eps: float, target: float, known: float | None) -> float | None:
        """What is not timed: tune the softness to ``target``, unless the parameter is known; compile.

        Returns the parameter; None without the task.
        """
        self.done()
        cell = Cell.parse(key)
        self.operator = self.peer.operator(cell.task, cell.n, self.site)
        if self.operator is None:
            return None
        if self.site.device == "cuda" and not self.peer.jax:  # what torch loads at its first call is nobody's time
            self._warm(cell)
        knob = self.peer.knob
        self.parameter = eps if knob is None else known or self._tuned(cell, knob, target)
        graph = self.peer.variant == "graph"
        self.run = make_run(self.operator, self.parameter, cell, self.site.device, jax=self.peer.jax, graph=graph)
        self.cell = cell
        self.run.ready()
        if self.peer.kind == "ours":  # kernels are compiled at their first call
            self.run.wait(self.run.once("forward"))
            self.run.wait(self.run.once("both"))
        return self.parameter

    def _warm(self, cell: Cell) -> None:
        small = Cell(cell.task, 1, 10)
        operator = self.peer.operator(small.task, small.n, self.site)
        knob = self.peer.knob
        with contextlib.suppress(RuntimeError):  # it will be seen in the cell itself
            run = make_run(operator, 0.1 if knob is None else math.sqrt(knob.low * knob.high), small, "cuda", jax=False)
            run.wait(run.once("both"))
            run.release()

    def _tuned(self, cell: Cell, knob: Knob, target: float) -> float:
        sample = cell.sample(small=self.peer.square)
        known = self.knobs.get((sample.key, target))
        if known is None:
            low, high = math.log(knob.low), math.log(knob.high)
            measure = self._measure(sample)
            for _ in range(STEPS):
                middle = (low + high) / 2
                # What is not a number comes of a parameter that is too small: fast networks and kernels overflow.
                low, high = (low, middle) if measure(math.exp(middle)) >= target else (middle, high)
            known = self.knobs[sample.key, target] = math.exp((low + high) / 2)
        return known * float((cell.n / sample.n) ** knob.power.get(cell.tuned_as, 0.0))

    def _measure(self, sample: Cell) -> Any:
        """Parameter -> softness on a small cell; JAX compiles once for all parameters."""
        operator = self.peer.operator(sample.task, sample.n, self.site)
        x = sample.values()
        what: Pass = "both" if sample.task == "quantile" else "forward"
        run = make_run(operator, 1.0, sample, self.site.device, jax=self.peer.jax)
        if self.peer.jax:
            run.ready()

        def measure(parameter: float) -> float:
            nonlocal run
            if self.peer.jax:
                run.parameter = np.float32(parameter)  # type: ignore[attr-defined]
            else:
                run = make_run(operator, parameter, sample, self.site.device, jax=False)
            answer, gradient = (None if part is None else run.as_numpy(part) for part in run.once(what))
            return softness(sample.task, x, answer, gradient)  # type: ignore[arg-type]

        return measure

    def first(self, key: str, eps: float) -> dict[str, float] | None:
        """Seconds of the first two calls, forward plus backward, with all that is compiled; None without the task."""
        cell = Cell.parse(key)
        operator = self.peer.operator(cell.task, cell.n, self.site)
        if operator is None:
            return None
        knob = self.peer.knob
        parameter = eps if knob is None else math.sqrt(knob.low * knob.high)
        run = make_run(operator, parameter, cell, self.site.device, jax=self.peer.jax)
        spent = {}
        for which in ("first", "second"):
            start = time.perf_counter()
            if which == "first" and self.peer.jax:
                run.ready()
            run.wait(run.once("both"))
            spent[which] = time.perf_counter() - start
        return spent

    def trial(self, what: Pass) -> float:
        """One pass, the first whose time counts against the limit."""
        run, start = self._at_hand(), time.perf_counter()
        run.wait(run.once(what))
        return time.perf_counter() - start

    def sample(self, what: Pass, least: float) -> float:
        return seconds(self._at_hand(), what, least)

    def inspect(self, every_row: bool, thorough: bool) -> dict[str, Any]:
        """Peak memory, the first rows of answer and gradient, and how far they are from the same call in float64."""
        run, cell = self._at_hand(), self._cell()
        peak, result = run.peak("both")
        found: dict[str, Any] = {"peak": peak, "rows": None}
        if self.peer.kind == "floor":
            return found
        answer, gradient = (run.as_numpy(part) for part in result)
        found["finite"] = bool(np.isfinite(answer).all()), bool(np.isfinite(gradient).all())
        found["softness"] = softness(cell.task, cell.values(), answer, gradient)
        rows = cell.batch if every_row else min(cell.batch, ROWS)
        found["rows"] = answer, gradient = answer[:rows], gradient[:rows]
        if self.peer.twin and thorough:
            with contextlib.suppress(RuntimeError, TypeError, MemoryError):  # not every library takes float64
                found["errors"] = self._twin(cell, answer, gradient)
        return found

    def _twin(self, cell: Cell, answer: Array, gradient: Array) -> tuple[float, float]:
        rows = len(answer)
        x, v = (part[:rows].astype(np.float64) for part in (cell.values(), cell.cotangent()))
        operator = self.peer.operator(cell.task, cell.n, self.site)
        twin = TorchRun(operator, self.parameter, x, v, self.site.device)  # type: ignore[arg-type]
        true_answer, true_gradient = (twin.as_numpy(part) for part in twin.once("both"))
        off = float((np.abs(answer - true_answer) / (cell.scale(x))).max())
        return off, relative(gradient, true_gradient)

    def done(self) -> None:
        """Forget the cell."""
        if self.run is not None:
            self.run.release()
        self.run = self.cell = self.operator = None

    def _at_hand(self) -> Run:
        assert self.run is not None, "prepare comes first"
        return self.run

    def _cell(self) -> Cell:
        assert self.cell is not None, "prepare comes first"
        return self.cell


def _line(text: str) -> str:
    """The line that says most: the first, or the last of a traceback inside a message."""
    lines = [line for line in text.splitlines() if line.strip()]
    said = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return said[-1] if "Traceback" in text and said else lines[0] if lines else ""


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    peer, options = pipe.recv()
    if options["cores"]:
        os.sched_setaffinity(0, options["cores"])  # all that bounds the threads of XLA
    contestant = Contestant(peer, Site(options["device"], options["checkouts"]), options["memory"])
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", getattr(contestant, method)(*arguments)))
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            pipe.send(("error", (type(error).__name__, _line(str(error)))))


if __name__ == "__main__":
    main()
