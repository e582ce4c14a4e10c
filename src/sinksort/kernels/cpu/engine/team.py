"""Threads that wait in compiled code, and the way of a kernel to them: see ``engine.threads``, which uses both.

A Python thread that is woken must first get the interpreter's lock, one after the other. These threads never ask for
it: they wait on locks of the C interface of Python, are called back by functions compiled here, and take tasks from a
counter in memory. All memory that they share is a table of integers of 64 bits; addresses are integers as well.

    team    addresses of functions, COUNT and what ``keep_away`` needs, then the workers, each a state, the LOCK that it
            waits on, its number THREAD with the system and the lock ENDED, on which a caller waits
    job     NEXT, FAILED, then what does not change: TASKS, CHUNK, ONE, ARGS; it lives in the caller's frame

The state of a worker is one of
    IDLE         it waits on its lock
    a job        it was woken for this job, and has not begun
    a job + 1    it works on it
    a job + 5    it works on it, and the caller waits on ENDED
    RECALLED     it was woken, and the job is over; nobody waits for it

So a caller waits for workers that have begun, for as long as their chunk takes, and never for one that did not wake up.
"""

from __future__ import annotations

import functools
import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compile import entered, jit_no_refcount

WORD = 8  #: bytes
LINE = 16  #: words that are written by one thread and read by others stand this far apart
RELEASE, ACQUIRE, LEAD, COUNT, PROCESSOR, ALLOW, ALLOWED, AVOIDED, REST = (WORD * k for k in range(9))
_WORKERS, _WORKER, LOCK, THREAD, ENDED = WORD * LINE, WORD * LINE, WORD, 2 * WORD, 3 * WORD
NEXT, FAILED, TASKS, CHUNK, ONE, ARGS = 0, WORD * LINE, *(WORD * (2 * LINE + k) for k in range(4))
_JOB = 3 * LINE  #: words
IDLE, RECALLED = 0, 2
_PAUSES = platform.machine() in ("x86_64", "AMD64")  #: there the processor can be told that a thread spins
_SPINS = 5_000 if _PAUSES else 100_000  #: looks at a worker that has begun before the caller sleeps: 50 to 200 us

_I64 = ir.IntType(64)


# ---- memory by its address


def _word(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _I64.as_pointer())


@intrinsic  # type: ignore[misc]
def _read(typingctx: Any, address: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.load_atomic(_word(builder, args[0]), "seq_cst", WORD)

    return types.int64(types.int64), codegen


@intrinsic  # type: ignore[misc]
def _write(typingctx: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        builder.store_atomic(args[1], _word(builder, args[0]), "seq_cst", WORD)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic  # type: ignore[misc]
def _add(typingctx: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Add to a word; return what was there."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.atomic_rmw("add", _word(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic  # type: ignore[misc]
def _swap(typingctx: Any, address: Any, old: Any, new: Any) -> Any:  # noqa: ARG001
    """Write ``new`` where ``old`` is; return whether it was."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        found = builder.cmpxchg(_word(builder, args[0]), args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic  # type: ignore[misc]
def _call(typingctx: Any, function: Any, a: Any, b: Any, c: Any) -> Any:  # noqa: ARG001
    """Call a C function of up to three integers or pointers by its address; of what it returns 32 bits are right."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        kind = ir.FunctionType(_I64, [_I64] * 3)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic  # type: ignore[misc]
def _pause(typingctx: Any) -> Any:  # noqa: ARG001
    """Leave the processor to the other thread of its core for a moment."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        if _PAUSES:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic  # type: ignore[misc]
def _done(typingctx: Any, one: Any, at: Any, first: Any, last: Any) -> Any:  # noqa: ARG001
    """``one(at, first, last)`` of ``entry`` by its address; False if it raised."""
    number = types.int64

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        kind = context.call_conv.get_function_type(types.none, (number, number, number))
        function = builder.inttoptr(args[0], kind.as_pointer())
        status, _ = context.call_conv.call_function(builder, function, types.none, (number, number, number), args[1:])
        return builder.not_(status.is_error)

    return types.boolean(number, number, number, number), codegen


# ---- what threads do


@jit_no_refcount
def work_off(job: int) -> None:
    """Take chunks of tasks until none is left."""
    tasks, chunk, one, args = _read(job + TASKS), _read(job + CHUNK), _read(job + ONE), _read(job + ARGS)
    while True:
        first = _add(job + NEXT, chunk)
        if first >= tasks:
            return
        if not _done(one, args, first, min(first + chunk, tasks)):
            _swap(job + FAILED, -1, first)


@jit_no_refcount
def wait_for_jobs(team: int, worker: int) -> int:
    """What a thread does all its life."""
    while True:
        _call(_read(team + ACQUIRE), _read(worker + LOCK), 1, 0)
        while True:
            job = _read(worker)
            if job == RECALLED:
                if _swap(worker, RECALLED, IDLE):
                    break
            elif _swap(worker, job, job + 1):
                work_off(job)
                if not _swap(worker, job + 1, IDLE):
                    _write(worker, IDLE)
                    _call(_read(team + RELEASE), _read(worker + ENDED), 0, 0)
                break


@jit_no_refcount
def keep_away(team: int, workers: int) -> None:
    """Keep the workers off the processor of the caller."""
    here = _call(_read(team + PROCESSOR), 0, 0, 0) & 0xFFFFFFFF
    rest = _read(team + ALLOWED) & ~(1 << here)
    if here == _read(team + AVOIDED) or rest == 0:
        return
    _write(team + AVOIDED, here)
    _write(team + REST, rest)
    for k in range(workers):
        thread = _read(team + _WORKERS + k * _WORKER + THREAD)
        if thread != 0:  # it has begun to live
            _call(_read(team + ALLOW), thread, WORD, team + REST)


@jit_no_refcount
def lead(team: int, job: int, helpers: int) -> int:
    """Work a job off with so many workers; return the first task of a chunk that failed, or -1.

    At the end nobody else sees the job: it may go.
    """
    if helpers == 0:
        work_off(job)
        return _read(job + FAILED)
    workers, release = _read(team + COUNT), _read(team + RELEASE)
    if _read(team + ALLOWED) != 0:
        keep_away(team, workers)
    for k in range(workers):
        worker = team + _WORKERS + k * _WORKER
        if helpers == 0:
            break
        if _swap(worker, IDLE, job):
            _call(release, _read(worker + LOCK), 0, 0)
            helpers -= 1
        elif _swap(worker, RECALLED, job):  # it is waking up
            helpers -= 1
    work_off(job)
    for k in range(workers):
        _swap(team + _WORKERS + k * _WORKER, job, RECALLED)
    for k in range(workers):
        worker, spins = team + _WORKERS + k * _WORKER, 0
        while _read(worker) == job + 1:
            _pause()
            spins += 1
            if spins > _SPINS and _swap(worker, job + 1, job + 5):
                _call(_read(team + ACQUIRE), _read(worker + ENDED), 1, 0)
    return _read(job + FAILED)


# ---- from Python into a kernel, and from a thread into the same


@intrinsic  # type: ignore[misc]
def _kept(typingctx: Any, args: Any) -> Any:  # noqa: ARG001
    """The address of a tuple in the frame of the function.

    Arrays in it are not counted as references: whoever waits for the end of a job keeps them alive, and threads that
    counted all together would wait for each other's counting.
    """
    pointer = types.CPointer(args)

    def borrowed(context: Any, builder: Any, kind: Any, value: Any) -> Any:
        if isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder, value)
            array.meminfo = cgutils.get_null_value(array.meminfo.type)
            return array._getvalue()
        if isinstance(kind, types.BaseTuple):
            parts = zip(kind.types, cgutils.unpack_tuple(builder, value), strict=True)
            return context.make_tuple(builder, kind, [borrowed(context, builder, *part) for part in parts])
        return value

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return cgutils.alloca_once_value(builder, borrowed(context, builder, sig.args[0], values[0]))

    return pointer(args), codegen


@intrinsic  # type: ignore[misc]
def _tuple_at(typingctx: Any, pointer: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(args[0], typ=context.get_value_type(sig.return_type))

    return pointer.dtype(pointer), codegen


@intrinsic  # type: ignore[misc]
def _begun(typingctx: Any, team: Any, tasks: Any, chunk: Any, helpers: Any, one: Any, args: Any) -> Any:  # noqa: ARG001
    """Write a job into the frame of the function, and lead it."""
    function, wanted = one.dispatcher, (args, types.int64, types.int64)
    one.get_call_type(typingctx, wanted, {})
    sig = types.int64(types.int64, types.int64, types.int64, types.int64, one, args)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:  # noqa: ARG001
        compiled = function.overloads[wanted]
        context.active_code_library.add_linking_library(compiled.library)
        callee = context.declare_function(builder.module, compiled.fndesc)
        team, tasks, chunk, helpers, _, at = values
        job = cgutils.alloca_once(builder, ir.ArrayType(_I64, _JOB))
        job = builder.ptrtoint(job, _I64)
        facts = {
            NEXT: ir.Constant(_I64, 0), FAILED: ir.Constant(_I64, -1), TASKS: tasks, CHUNK: chunk,
            ONE: builder.ptrtoint(callee, _I64), ARGS: builder.ptrtoint(at, _I64),
        }  # fmt: skip
        for place, value in facts.items():
            builder.store(value, _word(builder, builder.add(job, ir.Constant(_I64, place))))
        lead = builder.load(_word(builder, builder.add(team, ir.Constant(_I64, LEAD))))
        kind = ir.FunctionType(_I64, [_I64] * 3)
        return builder.call(builder.inttoptr(lead, kind.as_pointer()), [team, job, helpers])

    return sig, codegen


def entry(kernel: Any) -> Any:
    """The way into ``kernel(first, last, *args)`` for a team: ``entry(team, tasks, chunk, helpers, *args)``.

    It returns what ``lead`` does. The kernel is a part of it.
    """

    def one(at: Any, first: int, last: int) -> None:
        kernel(first, last, *_tuple_at(at))

    one.__module__, one.__qualname__ = kernel.py_func.__module__, f"{kernel.py_func.__qualname__}.one"
    one = jit_no_refcount(one)
    one._cache.disable()  # it is kept as a part of the entry

    def enter(team: int, tasks: int, chunk: int, helpers: int, *args: Any) -> int:
        number: int = _begun(team, tasks, chunk, helpers, one, _kept(args))
        return number

    return entered(enter, kernel)


@functools.cache
def address_of(function: Any, numbers: int) -> int:
    """Of a compiled function of so many integers, as C calls it.

    Asked once: after a fork the compiler may be locked by a thread that is no more.
    """
    signature = (types.int64,) * numbers
    function.compile(signature)
    compiled = function.overloads[signature]
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
    return address


def empty_team(workers: int) -> np.ndarray:
    """Memory for a team of so many."""
    return np.zeros(LINE * (workers + 1), np.int64)


def place_of(worker: int) -> int:
    """Of a worker in the memory of a team, in bytes."""
    return _WORKERS + worker * _WORKER
