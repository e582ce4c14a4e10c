"""A plugin of pytest that writes two lines of JSON for each test: before it, its name; after it, how it went.

``SINKSORT_CALLS`` asks for the functions of the package that each test calls. Kernels in Triton's interpreter are
Python, so they are seen. Of Numba's kernels those are seen that Python calls. Other threads and processes are not seen.
"""

from __future__ import annotations

import cProfile
import faulthandler
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from numba.core.registry import CPUDispatcher

import sinksort
from sinksort.kernels.cpu.engine import parts

_FILE, _UNTIL = Path(os.environ["SINKSORT_TESTS"]), float(os.environ.get("SINKSORT_UNTIL", "inf"))
_PACKAGE = str(Path(sinksort.__file__).parent) + "/"
_HANGS = 150  #: seconds, of which kernels take some to compile
_compiled: set[Any] = set()  #: code of Numba's kernels that were called since the test began
_failed: list[str] = []
for _what, _limit in (resource.RLIMIT_AS, 12 << 30), (resource.RLIMIT_CORE, 0):
    resource.setrlimit(_what, (_limit, _limit))


def _called(kernel: Any, *args: Any, **options: Any) -> Any:
    _compiled.add(kernel.py_func.__code__)
    return CPUDispatcher.__call__(kernel, *args, **options)


if "SINKSORT_CALLS" in os.environ:
    parts._Kernel.__call__ = _called


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    _write({"begins": item.nodeid})
    _failed.clear()
    _compiled.clear()
    profile, began = cProfile.Profile(subcalls=False, builtins=False), time.time()
    if "SINKSORT_CALLS" in os.environ:
        profile.enable()
    else:
        faulthandler.dump_traceback_later(_HANGS, exit=True)
    try:
        return (yield)
    finally:
        profile.disable()
        faulthandler.cancel_dump_traceback_later()
        codes = [entry.code for entry in profile.getstats() if not isinstance(entry.code, str)]
        places = {(code.co_filename, code.co_firstlineno) for code in (*codes, *_compiled)}
        calls = sorted((name.removeprefix(_PACKAGE), at) for name, at in places if name.startswith(_PACKAGE))
        seconds = round(time.time() - began, 3)
        _write({"test": item.nodeid, "seconds": seconds, "passed": not _failed, "calls": calls})
        item.session.shouldstop = time.time() > _UNTIL and "no time is left"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.append(report.nodeid)


def _write(line: dict[str, Any]) -> None:
    with _FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")
