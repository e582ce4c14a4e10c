"""What is said while kernels are compiled: which, and how long it took."""

from __future__ import annotations

import logging
import re

import pytest
from numba import types

from sinksort.kernels.cpu.engine.compile import jit_no_refcount
from sinksort.kernels.cpu.engine.team import entry


@jit_no_refcount
def _twice(x: int) -> int:
    return 2 * x


@jit_no_refcount
def doubled(first: int, last: int, out: object) -> None:
    for i in range(first, last):
        out[i] = _twice(i)


@pytest.mark.parametrize("which", ["entry", "function"])
def test_a_kernel_is_named_before_and_after(
    which: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions that a kernel contains are not named, nor are small ones that Python calls by themselves."""
    monkeypatch.setattr(doubled.py_func, "__module__", "sinksort.kernels.cpu.family.file")
    with caplog.at_level(logging.WARNING, "sinksort"):
        if which == "entry":
            kernel = entry(doubled)
            kernel._cache.disable()
            kernel.compile((types.int64,) * 4 + (types.Tuple((types.int64[::1],)),))
        else:
            monkeypatch.setattr(_twice.py_func, "__module__", "sinksort.kernels.cpu.family.file")
            _twice._cache.disable()
            assert _twice(4) == 8
    said = [record.getMessage() for record in caplog.records if "being compiled" not in record.getMessage()]
    if which == "function":
        assert said == []
        return
    assert said[0] == "Compiling family.file.doubled ..."
    assert re.fullmatch(r"Compiled family\.file\.doubled in \d+\.\d s\.", said[1])
    assert len(said) == 2
