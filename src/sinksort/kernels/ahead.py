"""Kernels compiled before they are needed: for images, clusters and CI.

What     ``compile`` calls operators on random rows, forward and backward, in worker processes. Whatever these calls
         compile is kept on disk, where every later process finds it.
When     A user asks for it, by ``sinksort.compile`` or ``python -m sinksort compile``.
Why      Numba's front end is written in Python and runs under one lock, so threads do not help, and processes do.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from . import backends, cache

#: What can be compiled for: operators by name, as functions of rows and options.
OPERATORS = ("soft_rank", "soft_sort", "soft_median", "soft_topk", "soft_topk_mask", "soft_permutation", "transport")
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
Progress: TypeAlias = Callable[[int, int, dict[str, Any]], None]
_MOST_IN_A_MATRIX = 128  #: values of a row, for operators whose answers are matrices
#: (operator, shape, dtype) of every kind of call: rows of each length at which other kernels are used.
EVERYTHING: tuple[tuple[str, tuple[int, ...], str], ...] = (
    *((name, (32, 100), "float32") for name in OPERATORS),
    *((name, (32, 12), "float32") for name in OPERATORS if name != "transport"),
    *((name, (4, 300), "float32") for name in ("soft_rank", "soft_sort", "soft_median", "soft_topk_mask")),
    *((name, (1, 40_000), "float32") for name in ("soft_rank", "soft_median", "soft_topk_mask")),
    *((name, (4, 100), "float64") for name in ("soft_rank", "soft_sort")),
)


class Compiled(NamedTuple):
    """What ``compile`` did."""

    calls: list[dict[str, Any]]  #: each with operator, shape, dtype and seconds
    folders: list[str]  #: where compiled kernels are kept
    files: int  #: kernels there
    bytes: int  #: their size


def compile(  # noqa: A001 - as torch.compile
    like: Sequence[Sequence[int]] | None = None,
    *,
    operators: Sequence[str] = OPERATORS,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    options: dict[str, Any] | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Compile the kernels of calls to come, forward and backward, and keep them on disk.

    Without ``like`` everything is compiled that calls of any length use. With it, only what rows of these shapes need:
    the last dimension is the length of a row, and the others say how many there are.

    Args:
        like: Shapes of x, such as ``[(128, 100), (32, 1000)]``.
        operators: Names of operators, out of ``sinksort.kernels.ahead.OPERATORS``.
        dtype: The dtype of x.
        device: "cpu" or "cuda".
        options: Options of the operators that choose other kernels, such as ``{"eps": 1e-3, "squash": None}``.
        processes: How many processes compile at once; by default one for each processor, and at most eight.
        progress: Called after each call with the number of finished calls, the number of all calls, and the call.

    Processes that ask at the same time wait for each other, so that each kernel is compiled once. Returns what was
    called, how long each call took, and where the kernels are.

    >>> import sinksort
    >>> made = sinksort.compile([(4, 5)], operators=["soft_rank"])
    >>> made.calls[0]["operator"], made.calls[0]["shape"]
    ('soft_rank', [4, 5])
    """
    calls = _calls(like, operators, dtype, device, options or {})
    count = min(len(calls), processes or min(8, os.cpu_count() or 1))
    with _one_at_a_time():
        return _run(calls, count, progress)


def _calls(
    like: Sequence[Sequence[int]] | None,
    operators: Sequence[str],
    dtype: torch.dtype | str,
    device: torch.device | str,
    options: dict[str, Any],
) -> list[dict[str, Any]]:
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}.")
    for operator in operators:
        if operator not in OPERATORS:
            raise ValueError(f"operators must be out of {', '.join(OPERATORS)}, got {operator!r}.")
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"device must be 'cpu' or 'cuda' (where torch finds a GPU), got {str(device)!r}.")
    missing = backends.missing("triton" if kind == "cuda" else "numba")
    if missing is not None:
        raise RuntimeError(f"there are no kernels to compile for {kind}: {missing}.")
    if like is None:
        wanted = [each for each in EVERYTHING if each[0] in operators]
    else:
        shapes = [tuple(shape) for shape in like]
        for shape in shapes:
            if not shape or not all(isinstance(size, int) and size > 0 for size in shape):
                raise ValueError(f"like must hold shapes such as (128, 100), got {shape!r}.")
        wanted = [(operator, shape, name) for shape in shapes for operator in operators if _fits(operator, shape)]
    return [
        {"operator": operator, "shape": list(shape), "dtype": each, "device": str(device), "options": options}
        for operator, shape, each in wanted
    ]


def _fits(operator: str, shape: tuple[int, ...]) -> bool:
    return operator not in ("soft_permutation", "transport") or shape[-1] <= _MOST_IN_A_MATRIX


# ---- worker processes


def _run(
    calls: list[dict[str, Any]], count: int, progress: Callable[[int, int, dict[str, Any]], None] | None
) -> Compiled:
    """Calls are handed to workers one by one, the next to the worker that is ready first."""
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for call in calls:
        waiting.put(call)
    finished: queue.SimpleQueue[dict[str, Any] | BaseException | None] = queue.SimpleQueue()
    workers = [_Worker() for _ in range(count)]
    threads = [threading.Thread(target=worker.work, args=(waiting, finished), daemon=True) for worker in workers]
    done: list[dict[str, Any]] = []
    try:
        for thread in threads:
            thread.start()
        left = len(threads)
        while left:
            result = finished.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                left -= 1
                continue
            done.append(result)
            if progress is not None:
                progress(len(done), len(calls), result)
    finally:
        for worker in workers:
            worker.stop()
    folders = {Path(folder) for worker in workers for folder in worker.folders}
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".nbc", ".cubin")]
    used = sorted(str(folder) for folder in folders if any(folder in path.parents for path in files))
    return Compiled(done, used, len(files), sum(path.stat().st_size for path in files))


class _Worker:
    """A process that makes calls, one after the other."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "sinksort.kernels.ahead"]
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter, and this module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.folders: list[str] = []

    def work(self, waiting: queue.SimpleQueue[Any], finished: queue.SimpleQueue[Any]) -> None:
        try:
            with contextlib.suppress(queue.Empty):
                while True:
                    finished.put(self.request(waiting.get_nowait()))
            self.folders = self.request(None)["folders"]
            finished.put(None)
        except (OSError, ValueError, RuntimeError) as error:
            finished.put(error)

    def request(self, call: dict[str, Any] | None) -> dict[str, Any]:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None  # noqa: S101 - both are pipes
        assert stdout is not None  # noqa: S101
        stdin.write(json.dumps(call) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"a process that compiled kernels ended early, in the call {call}.")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"the call {call} failed: {answer['error']}")
        return answer

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Wait for other processes of this user that compile; without locks of files nobody waits."""
    folder = cache.private_folder("compile")
    try:
        import fcntl
    except ImportError:  # not on Windows
        folder = None
    if folder is None:
        yield
        return
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back, and so does the end of the process, however it ends


# ---- in a worker process


def _made(call: dict[str, Any]) -> dict[str, Any]:
    """Make a call and say how long it took."""
    import sinksort

    shape, dtype = call["shape"], _DTYPES[call["dtype"]]
    rows = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(0), dtype=torch.float64, device="cpu")
    x = rows.to(call["device"], dtype).requires_grad_()
    k = max(1, min(5, shape[-1] - 1))
    functions: dict[str, Callable[..., Any]] = {
        "soft_topk": lambda x, **options: sinksort.soft_topk(x, k, **options).values,
        "soft_topk_mask": lambda x, **options: sinksort.soft_topk_mask(x, k, **options),
        "transport": lambda x, **options: sinksort.transport(x, **options).ranks(),
    }
    function = functions.get(call["operator"]) or getattr(sinksort, call["operator"])
    began = time.perf_counter()
    out = function(x, **call["options"])
    out.backward(torch.linspace(-1.0, 1.0, out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape))
    if x.is_cuda:
        torch.cuda.synchronize()
    assert math.prod(shape) == x.grad.numel()  # type: ignore[union-attr]  # noqa: S101
    return {**call, "seconds": round(time.perf_counter() - began, 2), "backend": sinksort.last_backend()}


def _folders() -> list[str]:
    """Where the kernels of this process are kept."""
    found = set()
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{__package__}.cpu."):
            paths = (getattr(getattr(each, "_cache", None), "cache_path", None) for each in vars(module).values())
            found |= {str(path) for path in paths if path}
    gpu = sys.modules.get(f"{__package__}.gpu.engine.cache")
    if gpu is not None:
        found.add(str(gpu._folder(gpu._wanted())))
    return sorted(found)


def _work() -> None:
    """Make the calls that come as lines of JSON, and answer each with one."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not look like an answer
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = {"folders": _folders()} if call is None else _made(call)
        except Exception as error:  # it is raised again where it was asked for
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    _work()
