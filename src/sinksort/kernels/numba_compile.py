"""How functions become machine code: compiled once for a machine, kept in a file, and without the interpreter's lock.

Compiled code contains the functions it calls and the constants it uses, wherever they are defined, while Numba looks
for changes only in the file of the function itself. So what is kept on disk is kept for the sources of all kernels.

A function is compiled once for every combination of types that it is called with, and 0 and False are types of their
own. Where a large function has other callers, those with such a number give it np.int64(0) or bool(np.int64(0)).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

_F = TypeVar("_F", bound=Callable[..., Any])

_SOURCES = hashlib.sha256(
    b"".join(f.read_bytes() for f in sorted(Path(__file__).parent.glob("numba_*.py")))
).hexdigest()


def compiled(*may: str) -> Callable[[_F], _F]:
    """A decorator: compile, with these liberties in floating-point arithmetic.

    Divisions by zero give inf or NaN as in NumPy: a check for them would keep loops from becoming vector code.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(may)}

    def decorate(function: _F) -> _F:
        try:
            dispatcher: Any = njit(cache=True, **options)(function)
            kept = dispatcher._cache._cache_file
            kept._source_stamp = f"{kept._source_stamp} {_SOURCES}"
        except (AttributeError, RuntimeError):  # another Numba, or nowhere to keep anything: compile every time
            dispatcher = njit(**options)(function)
        return cast("_F", dispatcher)

    return decorate


exact = compiled("contract")
summing = compiled("contract", "reassoc", "nsz", "arcp")
