"""Tasks on threads: a kernel does tasks first to last - 1, without the interpreter's lock, on some threads at once.

What     ``run`` cuts the tasks into chunks. The caller and its helpers take one chunk after the other until none is
         left. The caller wakes its helpers, works like them, and at the end waits for chunks that they have begun. It
         never waits for a helper that has not woken up.
Why      Threads of our own, as many as torch uses, because those of Numba are not safe to share: two Python threads
         that enter its default pool at once end the process. torch's own threads hang after a fork, and spin for
         milliseconds after each of its operations; a helper that finds its processor taken is not missed.
         What a task computes depends on the task alone, so answers do not depend on how many threads there are.
Where    ``engine.team`` has what happens in compiled code. Here: how many threads there are, and how they come to be.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from . import team as native

_WORTH_A_THREAD = 40_000.0  #: work, in the nanoseconds that a kernel names, below which another thread does not help
_FEW_PROCESSORS = 4
_CHUNKS = 4  #: for each thread: who comes late, or meets longer rows, takes fewer
_FAILED_ONCE = (
    "The kernel {} failed for its tasks {} to {} on a thread, and did not fail when they were done once more. So there "
    "is no answer. Call again; if this comes again, the likely cause is that memory is short."
)


class Team:
    """Threads that wait for jobs, and the memory in which they find them. They are started when they are first needed.

    They end with the process: they are in compiled code all the time, without the interpreter's lock.
    """

    def __init__(self, most: int) -> None:
        self.most, self.size, self.memory = most, 0, native.empty_team(most)
        self.address = int(self.memory.ctypes.data)
        self._growing = threading.Lock()
        python = ctypes.pythonapi
        python.PyThread_allocate_lock.restype = ctypes.c_void_p
        for place, function in (
            (native.RELEASE, python.PyThread_release_lock),
            (native.ACQUIRE, python.PyThread_acquire_lock),
        ):
            self._write(place, ctypes.cast(function, ctypes.c_void_p).value)
        self._write(native.LEAD, native.address_of(native.lead, 3))
        self._tell_of_processors()
        self._life = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
            native.address_of(native.wait_for_jobs, 2)
        )

    def _write(self, place: int, value: int | None) -> None:
        self.memory[place // native.WORD] = value

    def _tell_of_processors(self) -> None:
        """See ``engine.team.keep_away``: what it needs, where processors are few and Linux lets us choose."""
        if not hasattr(os, "sched_getaffinity"):
            return
        system, allowed = ctypes.CDLL(None), os.sched_getaffinity(0)
        if hasattr(system, "sched_getcpu") and len(allowed) <= _FEW_PROCESSORS and max(allowed) < 63:
            self._write(native.PROCESSOR, ctypes.cast(system.sched_getcpu, ctypes.c_void_p).value)
            self._write(native.ALLOW, ctypes.cast(system.sched_setaffinity, ctypes.c_void_p).value)
            self._write(native.ALLOWED, sum(1 << k for k in allowed))

    def _new_lock(self) -> int:
        """A lock that is taken."""
        lock: int = ctypes.pythonapi.PyThread_allocate_lock()
        ctypes.pythonapi.PyThread_acquire_lock(ctypes.c_void_p(lock), 1)
        return lock

    def _live(self, worker: int) -> None:
        place = native.place_of(worker)
        self._write(place + native.THREAD, threading.get_native_id())
        self._write(native.AVOIDED, -1)
        self._life(self.address, self.address + place)

    def grow(self, wanted: int) -> None:
        """Start threads until there are so many, or as many as the system lets us have."""
        with self._growing:
            for worker in range(self.size, min(wanted, self.most)):
                for lock in (native.LOCK, native.ENDED):
                    self._write(native.place_of(worker) + lock, self._new_lock())
                try:
                    _thread.start_new_thread(self._live, (worker,))
                except RuntimeError:  # there are too many, or the interpreter is about to end
                    return
                self.size = worker + 1
                self._write(native.COUNT, self.size)


@functools.cache
def _team() -> Team:
    return Team(max(1, (os.cpu_count() or 1) - 1))


_entries: dict[Callable[..., None], Any] = {}  #: of kernels; see ``engine.team.entry``

if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_team.cache_clear)


def run(kernel: Callable[..., None], tasks: int, work: float, *args: Any) -> None:
    """``kernel(first, last, *args)`` for all tasks; ``work`` is a guess of how many nanoseconds they take."""
    entry = _entries.get(kernel)
    if entry is None:
        if not hasattr(kernel, "py_func"):  # Numba was told to compile nothing
            kernel(0, tasks, *args)
            return
        entry = _entries[kernel] = native.entry(kernel)
    team = _team()
    helpers = max(0, min(torch.get_num_threads(), tasks, int(work / _WORTH_A_THREAD) + 1, team.most + 1) - 1)
    chunk = tasks
    if helpers:
        if team.size < helpers:
            team.grow(helpers)
        chunk = -(-tasks // (_CHUNKS * (helpers + 1)))
    failed = entry(team.address, tasks, chunk, helpers, *args)
    if failed >= 0:
        last = min(failed + chunk, tasks)
        kernel(failed, last, *args)  # raises what was raised on the thread
        raise RuntimeError(_FAILED_ONCE.format(kernel.__name__, failed, last - 1))
