"""The command ``sinksort`` of a plain install, and of one with everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sinksort

HIDDEN = (
    "import sys, importlib.util as u; real = u.find_spec\n"
    "u.find_spec = lambda name, *a: None if name in ('typer', 'rich', 'matplotlib') else real(name, *a)\n"
    "sys.argv = ['sinksort', {}]\nfrom sinksort.__main__ import main\nmain()"
)


def plain(*words: str) -> subprocess.CompletedProcess[str]:
    """The command where the packages of the extra are not installed."""
    code = HIDDEN.format(", ".join(map(repr, words)))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_a_plain_install_has_help(words: tuple[str, ...]) -> None:
    ran = plain(*words)
    assert ran.returncode == 0
    assert "reproduce" in ran.stdout
    assert "pip install 'sinksort[explore,sklearn]'" in ran.stdout
    assert ran.stderr == ""


@pytest.mark.parametrize("command", ["list", "reproduce", "demo"])
def test_a_plain_install_names_the_extra_without_a_traceback(command: str) -> None:
    ran = plain(command)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert ran.stderr.startswith(f"sinksort {command}: sinksort.paper needs matplotlib, rich and typer")
    assert ran.stderr.endswith("run: pip install 'sinksort[paper]'\n")


def test_version() -> None:
    ran = subprocess.run([sys.executable, "-m", "sinksort", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"sinksort {sinksort.__version__}\n"


def test_a_report_without_runs_writes_nothing(tmp_path: Path) -> None:
    words = ["report", "--out", str(tmp_path / "out"), "--to", str(tmp_path / "to")]
    ran = subprocess.run([sys.executable, "-m", "sinksort", *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "there are no finished runs" in " ".join(ran.stdout.split())
    assert "sinksort reproduce NAME" in " ".join(ran.stdout.split())
    assert list(tmp_path.iterdir()) == []
