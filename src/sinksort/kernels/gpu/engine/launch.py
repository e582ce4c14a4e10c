"""Launches that were made before, made again without looking for anything.

At every launch Triton inspects each argument to find out which compiled kernel is meant, and Python makes the tensors
that kernels hand to each other: together that takes longer than many kernels here run. Calls whose tensors have the
same shapes, strides, dtypes and alignments always make the same launches. The first such call makes them by way of
Triton and is recorded; the others play the record: one piece of memory for all that is scratch, addresses filled in,
compiled kernels launched directly, as Triton itself does in the end.

There are two kinds of records. Of a request that others are like (``Request.prepared``) only a few tensors change, and
``replayed`` needs no more than these; all others are part of the record. Of any other request all tensors change.

Before launches are made by way of Triton, their kernels are compiled side by side, and those of the backward pass with
them if a gradient is wanted: a kernel takes seconds to compile, and Triton would begin the next one only then.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.runtime.jit import JITFunction

from .cache import kept_with_checksums

try:
    from triton.knobs import runtime as _runtime
except ImportError:  # Triton 3.3 has its hooks elsewhere
    _runtime = None

try:
    from triton.runtime._async_compile import AsyncCompileMode
except ImportError:  # before Triton 3.5
    AsyncCompileMode = None

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])  #: of Triton
_DIRECT = VERSION >= (3, 3)  #: compiled kernels take values for their constants, and ignore them
AT_ONCE = VERSION >= (3, 3)  #: programs can be launched that wait for each other
_ALIGNMENT = 256  #: bytes, of everything in the common scratch
#: Records that are kept, in all and of requests that are alike. When there are more, all are made again.
_MOST, _MOST_PREPARED = 2048, 64


class _Launch(NamedTuple):
    compiled: Any
    programs: int
    template: list[Any]  #: of arguments, with gaps
    addresses: tuple[tuple[int, int, int], ...]  #: which argument is at which offset of which memory
    numbers: tuple[int, ...]  #: which arguments are the number that changes


class Recorder:
    """Makes launches by way of Triton, and knows afterwards how to make them again."""

    def __init__(
        self, given: Sequence[Tensor], results: Sequence[Tensor], fixed: Sequence[Tensor], number: float | None
    ) -> None:
        """``fixed``: what is the same the next time; and ``number`` is None if numbers are."""
        self._changing, self._results, self._fixed, self._number = (*given, *results), results, fixed, number
        self._scratch: list[Tensor] = []
        self._workspace: list[Tensor] = []
        self._counters: list[Tensor] = []
        self._made: list[tuple[Any, int, tuple[Any, ...], list[Any]]] = []

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Scratch for the launches that follow; parts of it may be given to them as well."""
        self._scratch.append(self._changing[0].new_empty(shape, dtype=dtype))
        return self._scratch[-1]

    def workspace(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """The same, but memory that a stream keeps: for what is large, and hardly ever written to."""
        self._workspace.append(self._changing[0].new_empty(shape, dtype=dtype))
        return self._workspace[-1]

    def counters(self, count: int) -> Tensor:
        """Whole numbers, all zero, which the launch that follows leaves at zero: memory that a stream keeps."""
        self._counters.append(self._changing[0].new_zeros(count, dtype=torch.int32))
        return self._counters[-1]

    def constant(self, t: Tensor) -> Tensor:
        """A tensor that is the same at all times, for the launches that follow."""
        self._fixed = (*self._fixed, t)
        return t

    def __call__(self, kernel: Any, programs: int, *args: Any, num_warps: int = 4, **constants: Any) -> None:
        """``kernel[(programs,)](*args, **constants, num_warps=num_warps)``.

        Of arguments with a fraction there is only the number that the recorder was told.
        """
        self._make(kernel, programs, args, constants, {"num_warps": num_warps})

    def at_once(self, kernel: Any, programs: int, *args: Any, num_warps: int = 4, **constants: Any) -> None:
        """The same for programs that wait for each other: all of them run at once, or none."""
        over_programs = {"launch_cooperative_grid": True} if programs > 1 else {}
        self._make(kernel, programs, args, constants, {"num_warps": num_warps, **over_programs})

    def _make(
        self, kernel: Any, programs: int, args: tuple[Any, ...], constants: dict[str, Any], options: dict[str, Any]
    ) -> None:
        options = {**options, "enable_fp_fusion": True}  # the default of Triton up to 3.9
        with kept_with_checksums():
            compiled = kernel[(programs,)](*args, **constants, **options)
        self._made.append((compiled, programs, args, [constants[name] for name in kernel.arg_names[len(args) :]]))

    def record(self) -> Record | None:
        """None where nothing was compiled: in the interpreter."""
        if not _DIRECT or any(compiled is None for compiled, *_ in self._made):
            return None
        (scratch, room), (workspace, kept) = _one_after_the_other(self._scratch), _one_after_the_other(self._workspace)
        counters, counted = _one_after_the_other(self._counters)
        launches = []
        for compiled, programs, args, constants in self._made:
            template: list[Any] = [None if isinstance(arg, Tensor) else arg for arg in (*args, *constants)]
            addresses, numbers = [], []
            for i, arg in enumerate(args):
                if isinstance(arg, float) and self._number is not None:
                    if arg != self._number:
                        raise AssertionError(f"a kernel was given {arg} and not {self._number}, which would not change")
                    numbers.append(i)
                elif isinstance(arg, Tensor):
                    source, offset = self._place(arg, scratch, workspace, counters)
                    if source is None:
                        template[i] = offset
                    else:
                        addresses.append((i, source, offset))
            launches.append(_Launch(compiled, programs, template, tuple(addresses), tuple(numbers)))
        results = [(tuple(t.shape), t.stride(), t.dtype) for t in self._results]
        return Record(launches, room, kept, counted, results, self._fixed)

    def _place(self, t: Tensor, *common: list[tuple[Tensor, int]]) -> tuple[int | None, int]:
        """In which memory a tensor is, and where: those that change have one each, then come the common ones."""
        for source, given in enumerate(self._changing):
            if t is given:
                return source, 0
        for source, placed in enumerate(common, start=len(self._changing)):
            for part, offset in placed:
                inside = t.data_ptr() - part.data_ptr()
                if 0 <= inside < part.numel() * part.element_size():
                    return source, offset + inside
        if any(t is given for given in self._fixed):
            return None, t.data_ptr()
        raise AssertionError("a kernel was given a tensor that nobody told the recorder about")


class Compilation(NamedTuple):
    """A kernel that a launch needs."""

    kernel: Any
    programs: int
    args: tuple[Any, ...]
    options: dict[str, Any]  #: constants and options


class Planner(Recorder):
    """Makes no launches, but says which kernels they need. What it hands out as memory is one number, expanded."""

    def __init__(self, given: Sequence[Tensor], results: Sequence[Tensor], planned: list[Compilation]) -> None:
        super().__init__(given, results, (), None)
        self._planned = planned

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return self._changing[0].new_empty((), dtype=dtype).expand(shape)

    workspace = empty

    def counters(self, count: int) -> Tensor:
        return self.empty(count, dtype=torch.int32)

    def _make(
        self, kernel: Any, programs: int, args: tuple[Any, ...], constants: dict[str, Any], options: dict[str, Any]
    ) -> None:
        if isinstance(kernel, JITFunction):  # not in the interpreter
            self._planned.append(
                Compilation(kernel, programs, args, {**constants, **options, "enable_fp_fusion": True})
            )


class _Plans(threading.local):
    """Where launches that are only planned say what they need, of a thread that plans some."""

    planned: list[Compilation] | None = None


_plans = _Plans()


def compile_together(planned: Sequence[Compilation]) -> None:
    """Compile kernels side by side. What fails here fails again at its launch, which says so."""
    if AsyncCompileMode is None or len(planned) < 2:
        return
    with (
        contextlib.suppress(Exception),
        kept_with_checksums(),
        ThreadPoolExecutor(min(len(planned), os.cpu_count() or 1)) as pool,
        AsyncCompileMode(pool),
    ):
        for kernel, programs, args, options in planned:
            kernel.warmup(*args, grid=(programs,), **options)


def _one_after_the_other(tensors: list[Tensor]) -> tuple[list[tuple[Tensor, int]], int]:
    """Tensors with the offsets of each in one piece of memory, and how many bytes that has."""
    placed, room = [], 0
    for t in tensors:
        placed.append((t, room))
        room += -(-t.numel() * t.element_size() // _ALIGNMENT) * _ALIGNMENT
    return placed, room


class Record:
    """Launches, to be made again with other tensors of the same layout."""

    def __init__(
        self,
        launches: list[_Launch],
        room: int,
        kept: int,
        counted: int,
        results: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]],
        fixed: Sequence[Tensor],
    ) -> None:
        self._launches, self._results = launches, results
        self._room, self._kept, self._counted = room, kept, counted  # bytes
        self._fixed = fixed  # whose addresses are in the launches

    def replayed(self, like: Tensor, memory: list[int]) -> list[Tensor]:
        """The results, from what is at the addresses in ``memory``."""
        device = like.device
        results = [  # strides are given because that takes half the time
            torch.empty_strided(shape, stride, dtype=dtype, device=device) for shape, stride, dtype in self._results
        ]
        memory.extend([t.data_ptr() for t in results])
        self.play(like, memory)
        return results

    def play(self, like: Tensor, memory: list[int], number: float | None = None) -> None:
        stream, watched = _stream(like.get_device()), _watched()
        common = [0, 0, 0]
        if self._room:
            scratch = torch.empty(self._room, dtype=torch.uint8, device=like.device)  # kept until all are launched
            common[0] = scratch.data_ptr()
        if self._kept:
            workspace = _memory_of(_workspaces, torch.empty, like, stream, self._kept)
            common[1] = workspace.data_ptr()
        if self._counted:
            counters = _memory_of(_counters, torch.zeros, like, stream, self._counted)
            common[2] = counters.data_ptr()
        memory += common
        for compiled, programs, template, addresses, numbers in self._launches:
            arguments = template.copy()
            for i, source, offset in addresses:
                arguments[i] = memory[source] + offset
            for i in numbers:
                arguments[i] = number
            if watched:
                compiled[programs, 1, 1](*arguments, stream=stream)
            else:
                compiled.run(
                    programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments
                )


def _watched() -> bool:
    """Whether somebody wants to be told of launches (a profiler), or this Triton does not say."""
    if _runtime is None:
        return True
    enter, leave = _runtime.launch_enter_hook, _runtime.launch_exit_hook  # chains of hooks, or one or None
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


@functools.cache
def _streams() -> Callable[[int], Any]:
    return triton.runtime.driver.active.get_current_stream  # type: ignore[no-any-return]


def _stream(device: int) -> Any:
    return _streams()(device)


_Memory = dict[tuple[int, Any], Tensor]
_workspaces: _Memory = {}
_counters: _Memory = {}


def _memory_of(kept: _Memory, make: Callable[..., Tensor], like: Tensor, stream: Any, size: int) -> Tensor:
    """Memory that launches on one stream use one after the other. A graph, replayed on any stream, has its own.

    Counters are zero whenever a launch begins: those of a graph are made so by the graph.
    """
    if like.is_cuda and torch.cuda.is_current_stream_capturing():
        return make(size, dtype=torch.uint8, device=like.device)
    place = like.get_device(), stream
    there = kept.get(place)
    if there is None or len(there) < size:
        there = kept[place] = make(size, dtype=torch.uint8, device=like.device)
    return there


_records: dict[Hashable, Record] = {}


def replayed(prepared: dict[Any, Any] | None, name: str, *changing: Tensor) -> list[Tensor] | None:
    """The results of the ``launches`` of that name for a request like this one, or None if there were none yet."""
    if prepared is None:
        return None
    first = changing[0]
    if _elsewhere(first):
        with torch.cuda.device(first.get_device()):
            return replayed(prepared, name, *changing)
    memory = [t.data_ptr() for t in changing]
    record = prepared.get(_layout(name, changing, memory))
    return None if record is None else record.replayed(first, memory)


def launches(
    what: tuple[Hashable, ...],
    given: Sequence[Tensor],
    results: Sequence[Tensor],
    number: float,
    make: Callable[[Recorder], None],
    prepared: dict[Any, Any] | None = None,
    changing: Sequence[Tensor] = (),
    backward: Callable[[], Any] | None = None,
) -> None:
    """``make`` is called, or what it did the last time is done again.

    Its launches may depend on ``what``, of which the name comes first, and on the layout of the tensors that are given,
    as do the layouts of the results. They get these tensors, scratch from the recorder, whole numbers, and ``number``.
    ``prepared``: that of a request; calls differ in the tensors that are ``changing`` alone; see ``replayed``.
    ``backward`` plans the launches of the backward pass, if there will be one.
    """
    first = given[0]
    if _plans.planned is not None:
        return make(Planner(given, results, _plans.planned))
    if _elsewhere(first):
        with torch.cuda.device(first.get_device()):
            return launches(what, given, results, number, make, prepared, changing, backward)
    distinct = len(set(map(id, changing))) == len(changing)  # one tensor in two places may be two the next time
    if prepared is not None and distinct:
        key = _layout(what[0], changing, [t.data_ptr() for t in changing])
        fixed = [t for t in given if all(t is not other for other in changing)]
        _compile(make, given, results, backward)
        return _recorded(make, Recorder(changing, results, fixed, None), prepared, key, _MOST_PREPARED)
    same = [id(t) for t in given]
    key = (
        first.get_device(), what, *map(same.index, same),
        *[(t.shape, t.stride(), t.dtype, t.data_ptr() % 16) for t in given],
    )  # fmt: skip
    record = _records.get(key)
    if record is not None:
        return record.play(first, [t.data_ptr() for t in (*given, *results)], number)
    _compile(make, given, results, backward)
    return _recorded(make, Recorder(given, results, (), number), _records, key, _MOST)


def _compile(
    make: Callable[[Recorder], None],
    given: Sequence[Tensor],
    results: Sequence[Tensor],
    backward: Callable[[], Any] | None,
) -> None:
    """Compile what launches need, and those of the backward pass if there will be one."""
    planned: list[Compilation] = []
    make(Planner(given, results, planned))
    if backward is not None and planned:
        _plans.planned = planned
        try:
            backward()
        finally:
            _plans.planned = None
    compile_together(planned)


def _recorded(
    make: Callable[[Recorder], None], recorder: Recorder, records: dict[Any, Any], key: Hashable, most: int
) -> None:
    make(recorder)
    record = recorder.record()
    if record is not None:
        if len(records) >= most:
            records.clear()
        records[key] = record


def _layout(name: Hashable, changing: Sequence[Tensor], memory: list[int]) -> tuple[Hashable, ...]:
    """What may differ between requests that are alike: shapes and dtypes do not."""
    return (name, *[t.stride() for t in changing], *[address % 16 for address in memory])


def _elsewhere(t: Tensor) -> bool:
    """Whether a tensor is on another GPU than the one that would be launched on."""
    return t.is_cuda and t.get_device() != torch.cuda.current_device()
