"""Tasks on threads: all are done once, errors come out, and threads leave the processor of the caller alone."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch

from sinksort.kernels.cpu.engine import threads as numba_tasks


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("tasks", [1, 2, 3, 10, 17])
@pytest.mark.parametrize("work", [1.0, 1e9])
@pytest.mark.parametrize("portions", [1, 2, 5])
def test_every_task_is_done_once(tasks, work, portions, three_threads):
    done = np.zeros(tasks, int)

    def kernel(first, last, out):
        out[first:last] += 1

    numba_tasks.run(kernel, tasks, work, done, portions=portions)
    assert (done == 1).all()


@pytest.mark.parametrize("error", [ArithmeticError, IndexError])
@pytest.mark.parametrize("portions", [1, 2])
def test_what_goes_wrong_on_a_thread_is_told(error, portions, three_threads):
    def kernel(first, _last):
        if first > 0:
            raise error("of another thread")

    with pytest.raises(error, match="of another thread"):
        numba_tasks.run(kernel, 3, 1e9, portions=portions)


def test_nobody_waits_for_threads_that_do_not_wake_up(three_threads, monkeypatch):
    threads, busy = numba_tasks._Threads(), threading.Event()
    monkeypatch.setattr(numba_tasks, "_threads", lambda: threads)
    for _ in range(max(1, (os.cpu_count() or 1) - 1)):  # all that there are
        threads.pool.submit(busy.wait)
    done = np.zeros(9, int)

    def kernel(first, last):
        done[first:last] += 1

    try:
        numba_tasks.run(kernel, 9, 1e9, portions=2)
        assert (done == 1).all()
        assert not busy.is_set()
    finally:
        busy.set()
        threads.pool.shutdown()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors cannot be chosen on this system")
def test_threads_leave_the_processor_of_the_caller_alone(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    mine = os.sched_getaffinity(0)
    threads = numba_tasks._Threads()
    try:
        worker = threads.pool.submit(threading.get_native_id).result()
        assert os.sched_getaffinity(worker) == mine
        for here in sorted(mine)[:2]:
            os.sched_setaffinity(0, {here})
            threads.leave_the_caller_alone()
            assert os.sched_getaffinity(worker) == (mine - {here} or mine)
    finally:
        os.sched_setaffinity(0, mine)
        threads.pool.shutdown()


def test_many_processors_are_left_to_the_system(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(numba_tasks, "_processor", lambda: pytest.fail("nobody needs to know"))
    threads = numba_tasks._Threads()
    threads.pool.submit(int).result()
    threads.leave_the_caller_alone()
    threads.pool.shutdown()
