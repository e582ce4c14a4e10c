"""Tasks on threads: a kernel does tasks first to last - 1, without the interpreter's lock, on some threads at once.

Threads of our own, as many as torch uses, because those of Numba are not safe to share: two Python threads that enter
its default pool at once end the process. What a task computes depends on the task alone, so answers do not depend on
how many threads there are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

#: Work below this, in values times a rough price of each in nanoseconds, is done before another thread is awake.
_WORTH_A_THREAD = 100_000.0


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1) - 1), thread_name_prefix="sinksort")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)


def run(kernel: Callable[..., None], tasks: int, work: float, *args: Any) -> None:
    """``kernel(first, last, *args)`` for all tasks; ``work`` is a guess of how many nanoseconds they take."""
    threads = min(torch.get_num_threads(), tasks, int(work / _WORTH_A_THREAD) + 1)
    if threads < 2:
        kernel(0, tasks, *args)
        return
    bounds = [tasks * k // threads for k in range(threads + 1)]
    others = [_pool().submit(kernel, bounds[k], bounds[k + 1], *args) for k in range(1, threads)]
    kernel(bounds[0], bounds[1], *args)
    for other in others:
        other.result()
