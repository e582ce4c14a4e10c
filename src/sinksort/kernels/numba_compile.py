"""How functions become machine code: compiled once for a machine, kept in a file, and without the interpreter's lock.

Compiled code contains the functions it calls and the constants it uses, wherever they are defined, while Numba looks
for changes only in the file of the function itself. So what is kept on disk is kept for the sources of all kernels.

A function is compiled once for every combination of types that it is called with. For Numba 0 and False are types of
their own, but not in calls of one function here by another.

Numba makes machine code of every function by itself, optimised together with all that it calls, so that a helper at
the end of a chain of calls is optimised once for each function along the chain. Most functions here are called by
other compiled ones alone. As their *part* a function is only lowered; the kernel that Python calls gathers the parts of
all that it calls, and LLVM sees each of them once.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.registry import CPUDispatcher

_F = TypeVar("_F", bound=Callable[..., Any])

_log = logging.getLogger("sinksort")
_KEPT: list[str] = []  #: where compiled kernels are

_SOURCES = hashlib.sha256(
    b"".join(f.read_bytes() for f in sorted(Path(__file__).parent.glob("numba_*.py")))
).hexdigest()


class _Gathering(JITCodeLibrary):  # type: ignore[misc]
    """The code of a kernel, linked with its parts and with the parts of these."""

    def add_linking_library(self, library: Any) -> None:
        if library in self._linking_libraries:
            return
        super().add_linking_library(library)
        if isinstance(library, _Part):
            for other in library._linking_libraries:
                self.add_linking_library(other)

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        for library in self._linking_libraries:
            if isinstance(library, _Part):
                for name, env in library.environments:
                    if self._codegen._engine.is_symbol_defined(name):
                        self._codegen.set_env(name, env)


class _Part(_Gathering):
    """The code of a function for others to contain: neither optimised nor made machine code."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.environments: list[tuple[str, Any]] = []

    @property
    def codegen(self) -> Any:
        """Asked only where to tell compiled code of its environment. There is none yet: see ``_finalize_specific``."""
        return self

    def set_env(self, name: str, env: Any) -> None:
        self.environments.append((name, env))

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002
        self._ensure_finalized()
        return 0


@functools.cache
def _say_why_it_takes_long() -> None:
    """Once: who waits for many seconds should know that it is not the work that was asked for."""
    kept = f"kept in {_KEPT[0]}" if _KEPT else "not kept, since there is no directory for them that can be written"
    _log.warning(
        "Kernels for the CPU are being compiled, which takes from 5 to 40 seconds for a new kind of call. They are %s.",
        kept,
    )


def _compiler(library: type[JITCodeLibrary]) -> type[CompilerBase]:
    class Compiler(CompilerBase):  # type: ignore[misc]
        def define_pipelines(self) -> list[Any]:
            _say_why_it_takes_long()
            self.state.library = library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
            self.state.library.enable_object_caching()
            return [DefaultPassBuilder.define_nopython_pipeline(self.state)]

    return Compiler


_WHOLE, _PART = _compiler(_Gathering), _compiler(_Part)
_NOT_FOR_PYTHON: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class _Kernel(CPUDispatcher):  # type: ignore[misc]
    """What Python calls."""

    part: CPUDispatcher

    @property
    def _numba_type_(self) -> Any:
        """What compiled functions call in its place."""
        return types.Dispatcher(self.part)


class _Callee(CPUDispatcher):  # type: ignore[misc]
    """What compiled functions call: one for all numbers of a type, where Numba would make one for 0 and one for 1."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        plain = [types.unliteral(arg) for arg in args]
        return super().get_call_template(plain, {name: types.unliteral(arg) for name, arg in kws.items()})


def compiled(*may: str) -> Callable[[_F], _F]:
    """A decorator: compile, with these liberties in floating-point arithmetic.

    Divisions by zero give inf or NaN as in NumPy: a check for them would keep loops from becoming vector code.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(may)}

    def decorate(function: _F) -> _F:
        try:
            kernel: Any = njit(cache=True, pipeline_class=_WHOLE, **options)(function)
            kept = kernel._cache._cache_file
            kept._source_stamp = f"{kept._source_stamp} {_SOURCES}"
            _KEPT[:] = [kernel._cache.cache_path]
        except (AttributeError, RuntimeError):  # another Numba, or nowhere to keep anything: compile every time
            kernel = njit(pipeline_class=_WHOLE, **options)(function)
        part = njit(pipeline_class=_PART, **_NOT_FOR_PYTHON, **options)(function)
        if isinstance(kernel, CPUDispatcher):  # unless Numba was told to compile nothing
            kernel.__class__, part.__class__ = _Kernel, _Callee
            kernel.part = part
        return cast("_F", kernel)

    return decorate


exact = compiled("contract")
summing = compiled("contract", "reassoc", "nsz", "arcp")
