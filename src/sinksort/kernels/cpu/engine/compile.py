"""How functions become machine code: compiled once for a machine, kept in a file, and without the interpreter's lock.

Compiled code contains the functions it calls and the constants it uses, wherever they are defined. So what is kept on
disk (see ``engine.cache``) is kept for the sources of all kernels.

A function is compiled once for every combination of types that it is called with. For Numba 0 and False are types of
their own, but not in calls of one function here by another, where kernels are compiled in parts: see ``engine.parts``.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import njit
from numba.core import event
from numba.core.compiler import CompilerBase, DefaultPassBuilder

from .cache import KernelCache

_F = TypeVar("_F", bound=Callable[..., Any])

_log = logging.getLogger("sinksort")
_KEPT: list[str] = []  #: where compiled kernels are
_TRIED = [(0, minor) for minor in range(60, 69)]  #: versions of Numba whose insides ``engine.parts`` knows

_HERE = Path(__file__).parent
_ENTRY = ".entry"
_PACKAGE = __name__.split(".", maxsplit=1)[0] + "."  #: where kernels are
_ALONE = "exact"  #: the family that shares no function with another


@functools.cache
def _sources(folder: Path) -> str:
    """Hash the files whose functions a compiled function of a folder may contain.

    The exact family and folders outside of kernels/cpu use the engine only. The other families use functions of each
    other.
    """
    cpu = _HERE.parent
    alone = folder.name == _ALONE or cpu not in (folder, *folder.parents)
    others = [folder] if alone else [cpu, *(each for each in cpu.iterdir() if each.name != _ALONE)]
    files = sorted({file for each in (_HERE, *others) for file in each.glob("*.py")})
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


@functools.cache
def _say_why_it_takes_long() -> None:
    """Once: who waits for many seconds should know that it is not the work that was asked for."""
    kept = f"kept in {_KEPT[0]}" if _KEPT else "not kept, since there is no directory for them that can be written"
    _log.warning(
        "Kernels for the CPU are being compiled, which takes from 5 to 40 seconds for a new kind of call. They are %s.",
        kept,
    )


class _Times(event.Listener):  # type: ignore[misc]
    """Says which kernel is compiled, and for how long it was. Functions that it contains are compiled meanwhile."""

    def __init__(self) -> None:
        self.inside: list[tuple[Any, float]] = []

    def on_start(self, event: event.Event) -> None:
        kernel = event.data["dispatcher"]
        if not self.inside:
            if not kernel.py_func.__module__.startswith(_PACKAGE):
                return
            _say_why_it_takes_long()
            if _is_entry(kernel):  # other functions that Python calls are small
                _log.warning("Compiling %s ...", _name(kernel))
        self.inside.append((kernel, time.perf_counter()))

    def on_end(self, event: event.Event) -> None:
        if self.inside and self.inside[-1][0] is event.data["dispatcher"]:
            kernel, began = self.inside.pop()
            seconds = time.perf_counter() - began
            if not self.inside and (_is_entry(kernel) or seconds > 1.0):
                _log.warning("Compiled %s in %.1f s.", _name(kernel), seconds)


def _is_entry(kernel: Any) -> bool:
    return bool(kernel.py_func.__qualname__.endswith(_ENTRY))


def _name(kernel: Any) -> str:
    """The folder, the file and the function of a kernel."""
    function = kernel.py_func.__qualname__.removesuffix(_ENTRY)
    return f"{kernel.py_func.__module__.removeprefix(_PACKAGE).removeprefix('kernels.cpu.')}.{function}"


event.register("numba:compile", _Times())


def _compiler(library: Any) -> type[CompilerBase]:
    """Numba's, but for the kind of library that code is put into, unless that is None."""

    class Compiler(CompilerBase):  # type: ignore[misc]
        def define_pipelines(self) -> list[Any]:
            if library is not None:
                self.state.library = library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
                self.state.library.enable_object_caching()
            return [DefaultPassBuilder.define_nopython_pipeline(self.state)]

    return Compiler


_PART: type[CompilerBase] | None = None
if numba.version_info.short in _TRIED:
    from .parts import Gathering, Part, give_part

    _WHOLE, _PART = _compiler(Gathering), _compiler(Part)
else:
    _WHOLE = _compiler(None)
    _log.info("Numba %s has not been tried. It compiles kernels as a whole, which takes longer.", numba.__version__)


def compiled(*may: str, counts: bool = True) -> Callable[[_F], _F]:
    """A decorator: compile, with these liberties in floating-point arithmetic.

    Divisions by zero give inf or NaN as in NumPy: a check for them would keep loops from becoming vector code.

    ``counts``: whether references to arrays are counted, as they must be where arrays are made or returned. Elsewhere
    it is a waste: each part of an array that is given a name, or to a function, costs two atomic operations.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(may), "_nrt": counts}

    def decorate(function: _F) -> _F:
        kernel: Any = njit(pipeline_class=_WHOLE, **options)(function)
        if not hasattr(kernel, "py_func"):  # Numba was told to compile nothing
            return function
        kernel._cache = kept = KernelCache(function, _sources(Path(function.__code__.co_filename).parent))
        _KEPT[:] = [kept.cache_path] if kept.cache_path else []
        if _PART is not None:
            give_part(kernel, _PART, options)
        return cast("_F", kernel)

    return decorate


def entered(enter: _F, kernel: Any) -> _F:
    """``enter``, which calls a compiled kernel and has its arguments, compiled and kept beside it."""
    enter.__module__, enter.__qualname__ = kernel.py_func.__module__, f"{kernel.py_func.__qualname__}{_ENTRY}"
    entry: Any = njit(pipeline_class=_WHOLE, nogil=True, error_model="numpy")(enter)
    code = kernel.py_func.__code__
    entry._cache = KernelCache(kernel.py_func, _sources(Path(code.co_filename).parent), _ENTRY)
    return cast("_F", entry)


jit = compiled("contract")
jit_no_refcount = compiled("contract", counts=False)  #: ``jit``, of functions that make no arrays and return none
jit_reassociate = compiled("contract", "reassoc", "nsz", "arcp")
