"""Tasks on threads: all are done once, errors come out, and nobody waits for a thread that does not wake up."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
import torch

import sinksort

numba_tasks = pytest.importorskip("sinksort.kernels.cpu.engine.threads")
numba_team = pytest.importorskip("sinksort.kernels.cpu.engine.team")

from sinksort.kernels.cpu.engine.compile import jit  # noqa: E402 - after it is known that Numba is there

MUCH = 1e9  #: work enough for every thread


@pytest.fixture
def threads():
    """Sets the number of threads, however few processors there are."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def team(monkeypatch):
    """A team of its own, with three helpers at most."""
    own = numba_tasks.Team(3)
    monkeypatch.setattr(numba_tasks, "_team", lambda: own)
    return own


def states(team) -> list[int]:
    """What the helpers do."""
    return [int(team.memory[numba_team.place_of(k) // numba_team.WORD]) for k in range(team.size)]


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@jit
def count(first, last, out):
    for i in range(first, last):
        out[i] += 1


@jit
def busy(first, last, out, rounds):
    for i in range(first, last):
        for k in range(rounds):
            out[i] = np.cos(out[i] + k)


@pytest.mark.parametrize("tasks", [0, 1, 2, 3, 10, 17, 1000])
@pytest.mark.parametrize("work", [1.0, MUCH])
@pytest.mark.parametrize("number", [1, 2, 4, 64])
def test_every_task_is_done_once(tasks, work, number, threads, team):
    threads(number)
    done = np.zeros(tasks, np.int64)
    for turn in range(20):
        numba_tasks.run(count, tasks, work, done)
        assert (done == turn + 1).all()
    assert team.size == (0 if work == 1.0 else max(0, min(number, tasks, 4) - 1))
    until(lambda: not any(states(team)))


def test_a_kernel_that_is_not_compiled_is_called(threads):
    threads(3)
    calls = []
    numba_tasks.run(lambda *args: calls.append(args), 9, MUCH, "one", 2)
    assert calls == [(0, 9, "one", 2)]


class Inner(NamedTuple):
    weights: np.ndarray
    kind: int


class Outer(NamedTuple):
    inner: Inner
    x: np.ndarray


@jit
def weigh(first, last, given, strided, scale, single, negative, shift, out):
    for i in range(first, last):
        value = given.inner.weights[i] * given.x[i, 1] * scale * single + strided[i] + shift[0] + shift[1] * i
        out[i] = -value if negative and given.inner.kind == 7 else value


def test_arguments_of_all_kinds_arrive(threads, team):
    threads(3)
    rng = np.random.default_rng(0)
    weights, x, strided = rng.normal(size=50), rng.normal(size=(50, 2)), rng.normal(size=150)[::3]
    single = np.float32(1.7)
    for negative in (False, True):
        out = np.empty(50)
        given = Outer(Inner(weights, 7), x)
        numba_tasks.run(weigh, 50, MUCH, given, strided, 0.3, single, negative, (2, 3), out)
        value = weights * x[:, 1] * 0.3 * float(single) + strided + 2 + 3 * np.arange(50)
        assert out == pytest.approx(-value if negative else value, rel=1e-13)


@jit
def meet(first, last, address, out):
    """Task i says that it is there, and waits for all others: one thread alone would wait for long."""
    for i in range(first, last):
        numba_team._write(address + 8 * i, 1)
        looks, there = 0, 0
        while there < len(out) and looks < 500_000_000:
            looks, there = looks + 1, 0
            for k in range(len(out)):
                there += numba_team._read(address + 8 * k)
        out[i] = there


def test_helpers_work_at_the_same_time_as_the_caller(threads, team):
    threads(4)
    flags, out = np.zeros(4, np.int64), np.zeros(4, np.int64)
    numba_tasks.run(meet, 4, MUCH, flags.ctypes.data, out)
    assert (out == 4).all()


@jit
def meet_and_stay(first, last, address, slow, out):
    """Both tasks begin at the same time, and one takes some milliseconds longer."""
    for i in range(first, last):
        numba_team._write(address + 8 * i, 1)
        looks = 0
        while numba_team._read(address + 8 - 8 * i) == 0 and looks < 500_000_000:
            looks += 1
        if i == slow:
            for k in range(1_000_000):
                out[i] = np.cos(out[i] + k)
        out[i] = 3.0


def test_the_caller_waits_for_what_a_helper_has_begun(threads, team):
    """Whoever has the short task, the call ends after the long one; by then the caller sleeps."""
    threads(2)
    for turn in range(12):
        flags, out = np.zeros(2, np.int64), np.zeros(2)
        numba_tasks.run(meet_and_stay, 2, MUCH, flags.ctypes.data, turn % 2, out)
        assert (out == 3.0).all()
        until(lambda: states(team) == [numba_team.IDLE])


def test_nobody_waits_for_threads_that_do_not_wake_up(threads, team):
    """In place of what wakes a helper stands a function that does nothing; later they wake up and find nothing."""
    threads(4)
    done = np.zeros(12, np.int64)
    team.grow(3)
    release = numba_team.RELEASE // numba_team.WORD
    wakes, team.memory[release] = int(team.memory[release]), ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value
    numba_tasks.run(count, 12, MUCH, done)
    assert (done == 1).all()
    assert states(team) == [numba_team.RECALLED] * 3
    numba_tasks.run(count, 12, MUCH, done)  # nobody is woken twice
    assert states(team) == [numba_team.RECALLED] * 3
    team.memory[release] = wakes
    wake = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(wakes)
    for k in range(3):
        wake(int(team.memory[(numba_team.place_of(k) + numba_team.LOCK) // numba_team.WORD]))
    until(lambda: states(team) == [numba_team.IDLE] * 3)
    assert (done == 2).all()
    flags, out = np.zeros(4, np.int64), np.zeros(4, np.int64)
    numba_tasks.run(meet, 4, MUCH, flags.ctypes.data, out)
    assert (out == 4).all()


@jit
def refuse(first, last, bad, done):
    for i in range(first, last):
        if i == bad:
            raise ArithmeticError("this task is refused")
        done[i] += 1


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("bad", [0, 5, 11])
def test_what_goes_wrong_on_a_thread_is_told(bad, number, threads, team):
    threads(number)
    done = np.zeros(12, np.int64)
    with pytest.raises(ArithmeticError, match="this task is refused"):
        numba_tasks.run(refuse, 12, MUCH, bad, done)
    until(lambda: not any(states(team)))
    if number == 3:
        assert (np.delete(done, bad) == 1).all()
    numba_tasks.run(count, 12, MUCH, done)


@jit
def refuse_once(first, last, again):
    for i in range(first, last):
        if i == 3 and not again[0]:
            again[0] = 1
            raise ArithmeticError


def test_what_goes_wrong_once_is_no_answer(threads, team):
    threads(3)
    again = np.zeros(1, np.int64)
    with pytest.raises(RuntimeError, match=r"refuse_once failed for its tasks 3 to 3 on a thread"):
        numba_tasks.run(refuse_once, 12, MUCH, again)


def test_arguments_are_given_back(threads, team):
    threads(3)
    done, bad = np.zeros(12, np.int64), np.zeros(12, np.int64)
    before = sys.getrefcount(done), sys.getrefcount(bad)
    for _ in range(100):
        numba_tasks.run(count, 12, MUCH, done)
    with pytest.raises(ArithmeticError):
        numba_tasks.run(refuse, 12, MUCH, 4, bad)
    assert (sys.getrefcount(done), sys.getrefcount(bad)) == before


def test_callers_in_several_threads_share_the_helpers(threads, team):
    threads(4)
    wrong = []

    def call(seed):
        done, turns = np.zeros(7 + seed, np.int64), 3000
        for _ in range(turns):
            numba_tasks.run(count, len(done), MUCH, done)
        if not (done == turns).all():
            wrong.append(seed)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
    until(lambda: not any(states(team)))


def test_the_number_of_threads_may_change_between_calls(threads, team):
    done = np.zeros(100, np.int64)
    for turn, number in enumerate([1, 4, 2, 3, 1, 4] * 30):
        threads(number)
        numba_tasks.run(count, 100, MUCH, done)
        assert (done == turn + 1).all()
    assert team.size == 3


def test_no_more_threads_than_the_system_gives(threads, team, monkeypatch):
    threads(4)

    def none(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(numba_tasks._thread, "start_new_thread", none)
    done = np.zeros(9, np.int64)
    numba_tasks.run(count, 9, MUCH, done)
    assert (done == 1).all()
    assert team.size == 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors cannot be chosen on this system")
def test_helpers_leave_the_processor_of_the_caller_alone(threads):
    """Where processors are few; elsewhere the system finds one that is idle."""
    mine = os.sched_getaffinity(0)
    few = numba_tasks._FEW_PROCESSORS
    chosen = set(sorted(mine)[:few])
    if len(chosen) < 2:
        pytest.skip("there is one processor")
    try:
        os.sched_setaffinity(0, chosen)
        team = numba_tasks.Team(1)
        team.grow(1)
        thread = numba_team.place_of(0) + numba_team.THREAD
        until(lambda: team.memory[thread // numba_team.WORD] != 0)
        worker = int(team.memory[thread // numba_team.WORD])
        assert os.sched_getaffinity(worker) == chosen
        for here in sorted(chosen):
            os.sched_setaffinity(0, {here})
            until(lambda here=here: ctypes.CDLL(None).sched_getcpu() == here)
            numba_team.keep_away(team.address, 1)
            assert os.sched_getaffinity(worker) == chosen - {here}
    finally:
        os.sched_setaffinity(0, mine)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("at_work", [False, True])
def test_a_forked_process_has_a_team_of_its_own(at_work, threads):
    """``at_work``: another thread is in the middle of a job when the process is forked."""
    threads(2)
    done, out = np.zeros(12, np.int64), np.zeros(12)
    numba_tasks.run(count, 12, MUCH, done)
    numba_tasks.run(busy, 12, MUCH, out, 1)
    other = threading.Thread(target=numba_tasks.run, args=(busy, 12, MUCH, out, 2_000_000))
    if at_work:
        other.start()
    child = os.fork()
    if child == 0:
        try:
            numba_tasks.run(count, 12, MUCH, done)
            os._exit(0 if (done == 2).all() and numba_tasks._team().size >= 1 else 1)
        except BaseException:  # a child must not go on with the tests of its parent
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if at_work:
        other.join()
    numba_tasks.run(count, 12, MUCH, done)
    assert (done == 2).all()


def finished(program: str) -> subprocess.CompletedProcess[str]:
    start = "import numpy as np, torch; from tests.kernels.cpu.test_engine_threads import *; torch.set_num_threads(2)\n"
    return subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(program)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("daemon", [False, True])
def test_a_process_ends_while_helpers_wait_or_work(daemon):
    ended = finished(f"""
        done = np.zeros(9, np.int64)
        numba_tasks.run(count, 9, MUCH, done)
        if {daemon}:
            out = np.zeros(9)
            numba_tasks.run(busy, 9, MUCH, out, 1)
            threading.Thread(target=numba_tasks.run, args=(busy, 9, MUCH, out, 10**9), daemon=True).start()
            time.sleep(0.2)
        print(done.sum())
    """)
    assert (ended.returncode, ended.stdout) == (0, "9\n"), ended.stderr


def test_an_interrupt_is_heard_after_the_call_and_leaves_the_team_as_it_was():
    ended = finished("""
        import signal
        out, done = np.zeros(9), np.zeros(9, np.int64)
        for kernel, args in ((busy, (out, 1)), (count, (done,))):
            numba_tasks.run(kernel, 9, MUCH, *args)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            while True:
                numba_tasks.run(busy, 9, MUCH, out, 2_000_000)
        except KeyboardInterrupt:
            pass
        until(lambda: not any(states(numba_tasks._team())))
        numba_tasks.run(count, 9, MUCH, done)
        print(done.sum())
    """)
    assert (ended.returncode, ended.stdout) == (0, "18\n"), ended.stderr


CALLS = {
    "ranks of 8": (lambda x: sinksort.soft_rank(x, eps=1e-2), (70, 8)),
    "ranks of 60": (lambda x: sinksort.soft_rank(x, eps=1e-2), (70, 60)),
    "ranks of 300": (lambda x: sinksort.soft_rank(x, eps=1e-3), (9, 300)),
    "ranks of 20000": (lambda x: sinksort.soft_rank(x, eps=1e-2), (3, 20_000)),
    "masks": (lambda x: sinksort.soft_topk_mask(x, 5, eps=1e-2), (9, 200)),
    "masks of 20000": (lambda x: sinksort.soft_topk_mask(x, 5, eps=1e-2), (3, 20_000)),
    "largest values": (lambda x: sinksort.soft_topk(x, 3, eps=1e-2).values, (9, 60)),
    "sorted values": (lambda x: sinksort.soft_sort(x, eps=1e-2), (9, 60)),
    "double precision": (lambda x: sinksort.soft_rank(x.double(), eps=1e-2), (9, 40)),
}


@pytest.mark.parametrize("name", CALLS)
def test_answers_do_not_depend_on_how_many_threads_there_are(name, threads, team, monkeypatch):
    call, shape = CALLS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x[1] = x[1].relu()
    x[2, 3] = torch.nan
    monkeypatch.setattr(numba_tasks, "_WORTH_A_THREAD", 1.0)

    def answers():
        leaf = x.clone().requires_grad_()
        out = call(leaf)
        w = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        (out * w.to(out.dtype)).sum().backward()
        return out.detach(), leaf.grad

    expected = answers()
    for number, chunks in ((2, 1), (3, 4), (4, 100)):
        threads(number)
        monkeypatch.setattr(numba_tasks, "_CHUNKS", chunks)
        for found, truth in zip(answers(), expected, strict=True):
            assert torch.equal(found.nan_to_num(nan=-7.0), truth.nan_to_num(nan=-7.0)), (number, chunks)
