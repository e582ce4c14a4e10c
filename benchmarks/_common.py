"""What several benchmarks need: the memory of a process at its worst moment, and files that are whole or not there."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Answer = TypeVar("Answer")
STATUS = Path("/proc/self/status")


def kilobytes(name: str) -> int:
    """VmRSS, VmHWM or VmSize of this process, on Linux."""
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))


def growth(run: Callable[[], Answer]) -> tuple[int | None, Answer]:
    """Extra bytes at the worst moment of ``run`` (None where the system does not say), and what it gave."""
    if not sys.platform.startswith("linux"):
        return None, run()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that is free but was kept would hide what is asked for again
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = kilobytes("VmRSS")
    answer = run()
    return (kilobytes("VmHWM") - before) * 1024, answer


def write_whole(path: Path, text: str) -> None:
    """Write a file so that whoever reads it, even after a kill, sees all of it or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
