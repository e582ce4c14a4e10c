"""Kernels that are compiled before the first call: later processes find them, and mistakes are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sinksort
from sinksort.kernels import ahead

CALL = (
    "import torch, sinksort\nx = torch.zeros(3, 5).requires_grad_()\n"
    "sinksort.soft_rank(x).sum().backward()\nprint(sinksort.last_backend())"
)


def run(words: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(mode=0o700, exist_ok=True)
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "XDG_CACHE_HOME": str(folder / "private"), **variables}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder of kernels, and what the command said."""
    folder = tmp_path_factory.mktemp("kernels")
    folder.chmod(0o700)
    words = ["-m", "sinksort", "compile", "--like", "3x5", "--operators", "soft_rank"]
    ran = run(words, folder)
    assert ran.returncode == 0, ran.stderr
    return folder, ran.stdout


def test_a_later_process_compiles_nothing(compiled: tuple[Path, str]) -> None:
    folder, _ = compiled
    before = sorted(folder.rglob("*.nbc"))
    ran = run(["-c", CALL], folder)
    assert ran.stdout == "numba\n"
    assert "being compiled" not in ran.stderr
    assert sorted(folder.rglob("*.nbc")) == before


def test_the_command_says_what_the_cache_holds(compiled: tuple[Path, str]) -> None:
    folder, said = compiled
    lines = said.splitlines()
    assert lines[0].startswith("[1/1] soft_rank 3x5 float32: ")
    files = list(folder.rglob("*.nbc"))
    size = sum(path.stat().st_size for path in files)
    assert lines[1] == f"{len(files)} compiled kernels, {size / 1e6:.1f} MB, are kept in:"
    assert {Path(line.strip()) for line in lines[2:]} == {path.parent for path in files}


def test_progress_and_what_was_called() -> None:
    seen = []
    made = sinksort.compile(
        [(2, 4), (5,)],
        operators=["soft_rank"],
        processes=1,
        progress=lambda done, total, call: seen.append((done, total, call["shape"])),
    )
    assert seen == [(1, 2, [2, 4]), (2, 2, [5])]
    assert [call["backend"] for call in made.calls] == ["numba", "numba"]
    assert all(call["seconds"] >= 0 for call in made.calls)


def test_matrices_are_made_for_rows_of_moderate_length_only() -> None:
    calls = ahead._calls([(2, 50), (1, 5000)], ahead.OPERATORS, "float32", "cpu", {})
    made = {(call["operator"], call["shape"][-1]) for call in calls}
    assert ("soft_permutation", 50) in made
    assert ("soft_permutation", 5000) not in made
    assert ("soft_sort", 5000) in made


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"like": [(0, 5)]}, r"like must hold shapes such as \(128, 100\), got \(0, 5\)\."),
        ({"like": [()]}, r"like must hold shapes such as \(128, 100\), got \(\)\."),
        ({"operators": ["sort"]}, r"operators must be out of soft_rank, .*, got 'sort'\."),
        ({"dtype": torch.int64}, r"dtype must be one of float32, float64, float16, bfloat16, got torch\.int64\."),
        ({"device": "meta"}, r"device must be 'cpu' or 'cuda' .*, got 'meta'\."),
    ],
)
def test_mistakes_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sinksort.compile(**options)  # type: ignore[arg-type]


def test_a_call_that_fails_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"the call .*soft_rank.* failed: ValueError: eps must be"):
        sinksort.compile([(2, 4)], operators=["soft_rank"], options={"eps": -1.0})


def test_the_command_names_mistakes(tmp_path: Path) -> None:
    ran = run(["-m", "sinksort", "compile", "--like", "3by5"], tmp_path)
    assert ran.returncode == 2
    assert "expected a shape such as 128x100, got '3by5'" in ran.stderr
    ran = run(["-m", "sinksort", "compile", "--all", "--dtype", "int8"], tmp_path)
    assert ran.returncode == 1
    assert ran.stderr == "sinksort compile: dtype must be one of float32, float64, float16, bfloat16, got 'int8'.\n"
