"""What compilers make of the kernels' sums and tiles. They need no GPU for that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is made for Linux only")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    kept = {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | kept
    words = [sys.executable, "-m", "tests.offline"]
    root = Path(__file__).parent.parent
    said = subprocess.run(words, check=False, capture_output=True, text=True, env=environment, cwd=root, timeout=300)
    assert said.returncode == 0, said.stderr[-2000:]
    return json.loads(said.stdout)


def test_threads_agree_about_sums(found):
    """If two threads that hold the same sum differ in its last digit, one may leave a loop that the other is in."""
    assert found["plain"] > 0  # else nothing is to be mended, and what follows proves nothing
    assert found["agreed"] == found["tile"] == 0


def test_tiles_are_laid_out_as_they_say(found):
    """Three exchanges for each of four values, between lanes that share the targets, and two or three for each of
    eight targets. With the axes of a tile in the other order lanes share what a thread should have: 128 exchanges.
    """
    assert found["exchanged"] <= 4 * 3 + 8 * 2 + 16
