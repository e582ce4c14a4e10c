"""The scripts in examples/: each runs as its head says. The one that needs torchrun is run in tests/distributed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_wrong_labels_are_learned_better_by_ranks() -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "wrong_labels.py"), "--seeds", "3"], capture_output=True, text=True, check=True
    )
    errors = [float(number) for number in re.findall(r": ([\d.]+)% errors over 3 seeds", ran.stdout)]
    assert len(errors) == 2
    assert errors[0] < errors[1]  # docs/losses.md: 12.1% and 13.9% over 14 seeds
    assert errors[0] < 20.0  # a guess is wrong in 90%


def test_every_example_says_how_to_run_it() -> None:
    for path in EXAMPLES.glob("*.py"):
        head = path.read_text(encoding="utf-8").split('"""')[1]
        assert f"examples/{path.name}" in head, path.name
