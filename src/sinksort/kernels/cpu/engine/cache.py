"""Machine code of Numba in files: what a dispatcher has as its cache, in place of Numba's own.

Numba unpickles files without looking whether they are whole, from every folder that it finds. And in its index two
processes that compile at once can take the same number for two kernels. Here each kernel has a file of its own, which
``cache`` reads and writes.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import config
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from ... import cache


@functools.cache
def _folder(sources: Path, chosen: str) -> Path | None:
    """Where kernels of functions in ``sources`` are kept: in ``chosen`` (NUMBA_CACHE_DIR), or beside the sources."""
    if chosen:
        return cache.safe_folder(Path(chosen), f"{sources.name}-{cache.checksum(str(sources).encode()).hex()[:16]}")
    if os.access(sources, os.W_OK):
        return cache.safe_folder(sources / "__pycache__")
    return cache.private_folder(sources)


class KernelCache:
    """Of one function, in the version of its sources that ``stamp`` stands for; ``what`` of it if not all."""

    def __init__(self, function: Callable[..., Any], stamp: str, what: str = "") -> None:
        code = function.__code__
        source = Path(code.co_filename).resolve()
        self._folder, self._enabled = _folder(source.parent, config.CACHE_DIR), True
        version = "".join(map(str, sys.version_info[:2]))
        self._name = f"{source.stem}.{function.__qualname__}{what}-{code.co_firstlineno}.py{version}"
        self._stamp = cache.checksum(repr((stamp, numba.__version__, llvmlite.__version__)).encode())

    @property
    def cache_path(self) -> str | None:
        return None if self._folder is None else str(self._folder)

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        for path in self._folder.glob(f"{self._name}.*.nbc") if self._folder else ():
            path.unlink(missing_ok=True)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The compiled function, or None if it is not kept, or not of these sources."""
        context.refresh()
        path = self._path(signature, context.codegen())
        content = cache.read(path) if path is not None else None
        if content is None or content[:32] != self._stamp:
            return None
        key, parts = pickle.loads(content[32:])  # noqa: S301 - only this user could have written it, and it is whole
        return CompileResult._rebuild(context, *parts) if key == _key(signature, context.codegen()) else None

    def save_overload(self, signature: Any, result: Any) -> None:
        path = self._path(signature, result.codegen)
        if path is not None and not result.library.has_dynamic_globals:
            cache.write(path, self._stamp + dumps((_key(signature, result.codegen), result._reduce())))

    def _path(self, signature: Any, codegen: Any) -> Path | None:
        """One file for each function, combination of types and kind of processor."""
        if self._folder is None or not self._enabled:
            return None
        which = cache.checksum(repr(_key(signature, codegen)).encode()).hex()[:16]
        return self._folder / f"{self._name}.{which}.nbc"


def _key(signature: Any, codegen: Any) -> tuple[Any, ...]:
    return signature, codegen.magic_tuple()
