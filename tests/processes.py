"""Real processes in one gloo group, which run functions of the tests and return what they return."""

from __future__ import annotations

import contextlib
import datetime as dt
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

# One process imports torch, and the others are forked from it before it does anything else.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "sinksort.distributed", "tests.processes"])


class Team:
    """Processes of one group, alive until ``close``."""

    def __init__(self, size: int, timeout: float = 30.0, backend: str = "gloo") -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.processes, self._pipes = [], []
        for rank in range(size):
            ours, theirs = _CONTEXT.Pipe()
            args = (rank, size, f"{self._folder.name}/store", timeout, backend, theirs)
            process = _CONTEXT.Process(target=_serve, args=args, daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self._pipes.append(ours)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """``function(rank, size, *args)`` on every rank; its exception if it raises; None for a rank that died."""
        for pipe in self._pipes:
            pipe.send((function, args))
        answers: list[Any] = [None] * len(self._pipes)
        for rank, (pipe, process) in enumerate(zip(self._pipes, self.processes, strict=True)):
            if pipe in wait([pipe, process.sentinel]):
                with contextlib.suppress(EOFError):
                    answers[rank] = pipe.recv()
        return answers

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()


def _serve(rank: int, size: int, store: str, timeout: float, backend: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = dt.timedelta(seconds=timeout)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            break
        try:
            answer = function(rank, size, *args)
        except Exception as error:
            answer = error
        pipe.send(answer)
    os._exit(0)  # a group with dead members does not end in peace


def raised(answers: list[Any]) -> None:
    """Raise what a rank raised."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
