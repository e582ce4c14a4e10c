"""On what a result was measured, and by which code: without names of hosts or people."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
from pathlib import Path

import torch

from .. import __version__


def machine(device: torch.device) -> dict[str, str]:
    """What to print beside a number."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper(),
        "cpu": f"{_cpu()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads used",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "sinksort": __version__,
        "system": platform.system(),
    }


@functools.cache
def code() -> dict[str, str]:
    """The commit of the code that runs, and a digest of the package's Python files.

    The digest tells whether two results are from the same code, also of an installed package (commit ``"none"``) and of
    files that were changed after the commit (which then ends in ``"+"``).
    """
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).as_posix()):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return {"commit": _commit(package), "digest": digest.hexdigest()[:12]}


def _commit(package: Path) -> str:
    """Of the repository that the package's files belong to; a folder of another repository says nothing about them."""
    try:
        if not _git(package, "ls-files", "__init__.py"):
            return "none"
        changed = _git(package, "status", "--porcelain", "--", ".")
        return _git(package, "rev-parse", "HEAD")[:12] + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "none"


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(  # noqa: S603 - no word of it comes from outside
        ["git", *words],  # noqa: S607
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return done.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
