"""What compilers make of the kernels' sums and tiles. They need no GPU for that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is made for Linux only")


def output_of(module, folder):
    """What a module prints that compiles kernels, in a process of its own."""
    kept = {"TRITON_CACHE_DIR": str(folder)}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | kept
    words, root = [sys.executable, "-m", module], Path(__file__).parents[3]
    said = subprocess.run(words, check=False, capture_output=True, text=True, env=environment, cwd=root, timeout=600)
    assert said.returncode == 0, said.stdout[-2000:] + said.stderr[-2000:]
    return said.stdout


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return json.loads(output_of("tests.offline", tmp_path_factory.mktemp("triton")))


def test_threads_agree_about_sums(found):
    """If two threads that hold the same sum differ in its last digit, one may leave a loop that the other is in."""
    assert found["plain"] > 0  # else nothing is to be mended, and what follows proves nothing
    assert found["agreed"] == found["tile"] == 0


def test_tiles_are_laid_out_as_they_say(found):
    """Three exchanges for each of four values, between lanes that share the targets, and two or three for each of
    eight targets. With the axes of a tile in the other order lanes share what a thread should have: 128 exchanges.
    """
    assert found["exchanged"] <= 4 * 3 + 8 * 2 + 16


def test_threads_agree_in_every_loop(tmp_path):
    """No kernel sums up products in a loop that values end: two threads might see it end at different times."""
    lines = output_of("tests.gpu_ir", tmp_path).splitlines()
    kernels = {line.split(": ")[1].split()[1] for line in lines}
    assert {"two.two", "several.several", "all_targets.forward"} <= kernels
    assert len(kernels) >= 20


def test_names_and_marks_of_lines_change_nothing_that_is_saved():
    from tests.gpu_ir import plain

    one = 'tt.func @a(%x: i32 loc("f.py":1:2)) {\n  %c-1_i32 = arith.constant -1 : i32 loc(#loc3)\n'
    one += "  %y:2 = tt.call @b(%x)"
    other = "tt.func @other(%z: i32) {\n  %m = arith.constant -1 : i32\n  %n:2 = tt.call @helper(%z)"
    assert plain(one) == plain(other)
    assert plain(one) != plain(other.replace("(%z)", "(%m)"))
