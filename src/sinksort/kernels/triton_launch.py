"""Launches that were made before, made again without looking for anything.

At every launch Triton inspects each argument to find out which compiled kernel is meant, and Python makes the tensors
that kernels hand to each other: together that takes longer than many kernels here run. Calls whose tensors have the
same shapes, strides, dtypes and alignments always make the same launches. The first such call makes them by way of
Triton and is recorded; the others play the record: one piece of memory for all that is scratch, addresses filled in,
compiled kernels launched directly, as in Triton's own tutorials.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

#: Compiled kernels take values for their constants, and ignore them, since this version.
_DIRECT = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 3)
_ALIGNMENT = 256  #: bytes, of everything in the common scratch
_MOST = 2048  #: records kept; then all are forgotten, and made again


class _Launch(NamedTuple):
    compiled: Any
    programs: int
    arguments: list[Any]  #: with gaps
    addresses: tuple[tuple[int, int, int], ...]  #: which argument is at which offset of which memory
    numbers: tuple[int, ...]  #: which arguments are the number that changes


class Recorder:
    """Makes launches by way of Triton, and knows afterwards how to make them again."""

    def __init__(self, tensors: Sequence[Tensor], number: float) -> None:
        self._tensors, self._number = tensors, number
        self._scratch: list[Tensor] = []
        self._made: list[tuple[Any, int, list[Any]]] = []

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Scratch for the launches that follow; parts of it may be given to them as well."""
        self._scratch.append(self._tensors[0].new_empty(shape, dtype=dtype))
        return self._scratch[-1]

    def __call__(self, kernel: Any, programs: int, *args: Any, num_warps: int = 4, **constants: Any) -> None:
        """``kernel[(programs,)](*args, **constants, num_warps=num_warps)``.

        Of numbers with a fraction there is only the one that the recorder was told.
        """
        compiled = kernel[(programs,)](*args, **constants, num_warps=num_warps)
        rest = [constants[name] for name in kernel.arg_names[len(args) :]]
        self._made.append((compiled, programs, [*args, *rest]))

    def record(self) -> Record | None:
        """None where nothing was compiled: in the interpreter."""
        if not _DIRECT or any(compiled is None for compiled, _, _ in self._made):
            return None
        offsets, room = [], 0
        for t in self._scratch:
            offsets.append(room)
            room += -(-t.numel() * t.element_size() // _ALIGNMENT) * _ALIGNMENT
        launches = []
        for compiled, programs, arguments in self._made:
            gaps: list[Any] = [None if isinstance(arg, (Tensor, float)) else arg for arg in arguments]
            addresses = [(i, *self._place(arg, offsets)) for i, arg in enumerate(arguments) if isinstance(arg, Tensor)]
            numbers = [i for i, arg in enumerate(arguments) if isinstance(arg, float)]
            if any(arguments[i] != self._number for i in numbers):
                raise AssertionError(f"a kernel was given another number than {self._number}, which would not change")
            launches.append(_Launch(compiled, programs, gaps, tuple(addresses), tuple(numbers)))
        return Record(launches, room)

    def _place(self, t: Tensor, offsets: list[int]) -> tuple[int, int]:
        """In which memory a tensor is, and where: those given have a memory each, the common scratch comes last."""
        for source, given in enumerate(self._tensors):
            if t is given:
                return source, 0
        for scratch, offset in zip(self._scratch, offsets, strict=True):
            inside = t.data_ptr() - scratch.data_ptr()
            if 0 <= inside < scratch.numel() * scratch.element_size():
                return len(self._tensors), offset + inside
        raise AssertionError("a kernel was given a tensor that nobody told the recorder about")


class Record:
    """Launches, to be made again with other tensors of the same layout."""

    def __init__(self, launches: list[_Launch], room: int) -> None:
        self._launches, self._room = launches, room

    def play(self, tensors: Sequence[Tensor], number: float) -> None:
        first = tensors[0]
        memory = [t.data_ptr() for t in tensors]
        scratch = first.new_empty(self._room, dtype=torch.uint8)  # kept until all are launched
        memory.append(scratch.data_ptr())
        stream = _stream(first.get_device())
        for compiled, programs, gaps, addresses, numbers in self._launches:
            arguments = gaps.copy()
            for i, source, offset in addresses:
                arguments[i] = memory[source] + offset
            for i in numbers:
                arguments[i] = number
            compiled[programs, 1, 1](*arguments, stream=stream)


def _stream(device: int) -> Any:
    return triton.runtime.driver.active.get_current_stream(device)


_records: dict[Hashable, Record] = {}


def launches(
    what: tuple[Hashable, ...],
    given: Sequence[Tensor],
    results: Sequence[Tensor],
    number: float,
    make: Callable[[Recorder], None],
) -> None:
    """``make`` is called, or what it did the last time is done again.

    Its launches may depend on ``what`` and on the layout of the tensors that are given, as do the layouts of the
    results. They get these tensors, scratch from the recorder, whole numbers, and ``number``.
    """
    first = given[0]
    device = first.get_device()
    if first.is_cuda and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return launches(what, given, results, number, make)
    same = [id(t) for t in given]  # one tensor in two places now may be two the next time
    key = (
        device, what, *map(same.index, same), *[(t.shape, t.stride(), t.dtype, t.data_ptr() % 16) for t in given],
    )  # fmt: skip
    record = _records.get(key)
    if record is not None:
        return record.play((*given, *results), number)
    recorder = Recorder((*given, *results), number)
    make(recorder)
    made = recorder.record()
    if made is not None:
        if len(_records) >= _MOST:
            _records.clear()
        _records[key] = made
    return None
