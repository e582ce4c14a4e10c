"""Tasks on threads: a kernel does tasks first to last - 1, without the interpreter's lock, on some threads at once.

Threads of our own, as many as torch uses, because those of Numba are not safe to share: two Python threads that enter
its default pool at once end the process. What a task computes depends on the task alone, so answers do not depend on
how many threads there are.

Where processors are few, Linux may wake a thread on the one of who wakes it and leave it there while another is idle
(two in a virtual machine did so for as long as a program paused now and then: a call took 1.6 times as long). So there
our threads are told to stay off the processor of the caller.

Threads of torch wait for more work by spinning, for milliseconds after each of its operations, and ours cannot wake up
on that processor as long, or have half of it. So where a kernel may be called once more at no cost, the others have
their share in two portions, and the caller, having done his own, takes from the end of the line what nobody has begun;
who has not woken up by then is not waited for. (128 rows of 1000 values after a product of matrices, two processors:
2.8 ms, not 4.0; a row of 10^5: 2.4, not 4.7. With nothing before them both take 2 to 3% longer.)
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

#: Work below this, in values times a rough price of each in nanoseconds, is done before another thread is awake.
_WORTH_A_THREAD = 100_000.0
_FEW_PROCESSORS = 4


class _Threads:
    """A pool, and on which processors its threads may be."""

    def __init__(self) -> None:
        processors = os.cpu_count() or 1
        self.pool = ThreadPoolExecutor(max(1, processors - 1), "sinksort", self._begin)
        self._told = processors <= _FEW_PROCESSORS and hasattr(os, "sched_setaffinity")
        self._allowed: dict[int, set[int]] = {}  #: of each thread, to begin with
        self._avoided = -1, 0  #: by how many of them

    def _begin(self) -> None:
        if self._told:
            self._allowed[threading.get_native_id()] = os.sched_getaffinity(0)

    def leave_the_caller_alone(self) -> None:
        if not self._told:
            return
        here = _processor()
        if (here, len(self._allowed)) == self._avoided:
            return
        self._avoided = here, len(self._allowed)
        for thread, allowed in list(self._allowed.items()):
            if allowed - {here}:
                os.sched_setaffinity(thread, allowed - {here})


@functools.cache
def _threads() -> _Threads:
    return _Threads()


@functools.cache
def _asked_for_processor() -> Callable[[], int]:
    return getattr(ctypes.CDLL(None), "sched_getcpu", lambda: -1)  # type: ignore[no-any-return]


def _processor() -> int:
    """Of the thread that asks."""
    return _asked_for_processor()()


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_threads.cache_clear)


def run(kernel: Callable[..., None], tasks: int, work: float, *args: Any, portions: int = 1) -> None:
    """``kernel(first, last, *args)`` for all tasks; ``work`` is a guess of how many nanoseconds they take.

    ``portions``: of the share of each thread but the caller, who helps if they are more than one.
    """
    if work < _WORTH_A_THREAD or (threads := min(torch.get_num_threads(), tasks, int(work / _WORTH_A_THREAD) + 1)) < 2:
        kernel(0, tasks, *args)
        return
    ours = _threads()
    ours.leave_the_caller_alone()
    own = tasks // threads
    count = min(tasks - own, portions * (threads - 1))
    bounds = [own + (tasks - own) * k // count for k in range(count + 1)]
    if portions == 1:
        others = [ours.pool.submit(kernel, *share, *args) for share in itertools.pairwise(bounds)]
        kernel(0, own, *args)
        for other in others:
            other.result()
        return
    line = collections.deque(itertools.pairwise(bounds))
    others = [ours.pool.submit(_work_off, line.popleft, kernel, args) for _ in range(1, threads)]
    kernel(0, own, *args)
    _work_off(line.pop, kernel, args)
    for other in others:
        if not other.cancel():
            other.result()


def _work_off(take: Callable[[], tuple[int, int]], kernel: Callable[..., None], args: tuple[Any, ...]) -> None:
    for portion in iter(functools.partial(_taken, take), None):
        kernel(*portion, *args)


def _taken(take: Callable[[], tuple[int, int]]) -> tuple[int, int] | None:
    with contextlib.suppress(IndexError):  # nothing is left
        return take()
    return None
