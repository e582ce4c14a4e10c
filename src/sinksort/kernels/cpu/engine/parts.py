"""Kernels in parts: what many functions call is optimised once for each kernel, and no more.

Numba makes machine code of every function by itself, optimised together with all that it calls, so that a helper at
the end of a chain of calls is optimised once for each function along the chain. Most functions here are called by
other compiled ones alone. As their *part* a function is only lowered; the kernel that Python calls gathers the parts of
all that it calls, and LLVM sees each of them once. That saves a third of the time.

Numba is not asked for this but changed from within, by names that it promises to nobody. So it is done only in versions
where it has been tried.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import CPUDispatcher


class Gathering(JITCodeLibrary):  # type: ignore[misc]
    """The code of a kernel, linked with its parts and with the parts of these."""

    def add_linking_library(self, library: Any) -> None:
        if library in self._linking_libraries:
            return
        super().add_linking_library(library)
        if isinstance(library, Part):
            for other in library._linking_libraries:
                self.add_linking_library(other)

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        for library in self._linking_libraries:
            if isinstance(library, Part):
                for name, env in library.environments:
                    if self._codegen._engine.is_symbol_defined(name):
                        self._codegen.set_env(name, env)


class Part(Gathering):
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


def give_part(kernel: Any, compiler: Any, options: dict[str, Any]) -> None:
    """Let compiled functions that call a kernel call its part, which ``compiler`` makes with the same ``options``."""
    not_for_python: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    part = njit(pipeline_class=compiler, **not_for_python, **options)(kernel.py_func)
    kernel.__class__, part.__class__ = _Kernel, _Callee
    kernel.part = part
