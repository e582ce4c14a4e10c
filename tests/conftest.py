"""One thread a worker, deterministic hypothesis, and where the suite runs: everywhere there is."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from .browsers import CHROMIUM
from .compiled import compile_share
from .interpreter import quicken_interpreter

os.environ.setdefault("MPLBACKEND", "Agg")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when kernels are defined
if os.environ.get("TRITON_INTERPRET") == "1":
    quicken_interpreter()
torch.set_num_threads(int(os.environ.get("SINKSORT_TEST_THREADS", "1")))
settings.register_profile("sinksort", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("sinksort")

#: The page is tested in a browser where there is one; the server behind it is tested everywhere.
collect_ignore = [] if CHROMIUM else ["explore/test_browser.py"]
collect_ignore += ["mutants"]  # a plugin for a pytest of its own, which limits the memory of its process


def pytest_report_header() -> str:
    return (
        f"browser: {CHROMIUM}" if CHROMIUM else "browser: no chromium found, explore/test_browser.py is not collected"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """No test begins before every worker has been here."""
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker and any(item.path.parent.name == "cpu" for item in session.items):
        compile_share(int(worker["workerid"].removeprefix("gw")), worker["workercount"])


@pytest.fixture
def benchmark_named(monkeypatch):
    """A function that gives a module of benchmarks/, which is there for the test alone."""
    folder = str(Path(__file__).parent.parent / "benchmarks")
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
            del sys.modules[name]


@pytest.fixture(scope="module")
def server():
    """A playground at work in a thread, on a port of its own."""
    from sinksort.explore.server import make_server

    ready, made = threading.Event(), []

    def serve():
        asyncio.set_event_loop(asyncio.new_event_loop())
        made.append(make_server(0))
        made[0].start()
        ready.set()
        made[0].io_loop.start()
        made[0].stop()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(120)
    yield made[0]
    made[0].io_loop.add_callback(made[0].io_loop.stop)
    thread.join()
