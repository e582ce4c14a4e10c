"""On what a result was measured: the machine and the versions, without names of hosts or people."""

from __future__ import annotations

import os
import platform
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


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
