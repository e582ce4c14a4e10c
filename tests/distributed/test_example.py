"""The example as a newcomer starts it, with torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_global_least_quantile_with_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["examples/global_least_quantile.py", "--rows", "3000", "--features", "3", "--steps", "60"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(number) for number in re.findall(r"of all ranks: ([\d.]+)", done.stdout)]
    assert len(losses) == 6
    assert losses[-1] < losses[0] / 10
    ours, theirs = re.findall(r"(?:coefficients|comparison): +([\d.]+)", done.stdout)
    assert float(ours) < 0.1 < 0.5 < float(theirs)
    (difference,) = re.findall(r"training in one process: (\S+)", done.stdout)
    assert float(difference) < 1e-9
