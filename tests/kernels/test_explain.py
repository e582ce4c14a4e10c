"""``python -m sinksort.kernels``: what it prints is what runs, and the table of the guide is what it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="without Numba there are no kernels for the CPU")

from sinksort.kernels import __main__ as explained
from sinksort.kernels import dispatch

GUIDE = Path(__file__).parents[2] / "docs/guides/backends.md"


def test_the_table_of_the_guide_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    explained.main([])
    written = re.findall(r"(?s)<!-- kernels -->\n(.*?)\n<!-- end of kernels -->", GUIDE.read_text(encoding="utf-8"))
    assert written == [capsys.readouterr().out.strip()]


def test_one_call_names_its_kernels_and_their_files(capsys: pytest.CaptureFixture[str]) -> None:
    explained.main(["soft_rank", "32x100"])
    said = capsys.readouterr().out
    assert said.startswith("soft_rank, 32x100: backend numba\n")
    assert "cpu/lanes/band_rows.py: pull_band" in said
    assert "cpu/lanes/band_rows_backward.py: band_backward" in said
    files = re.findall(r"^    (\S+): ", said, re.MULTILINE)
    folder = Path(explained.__file__).parent
    assert files
    assert all((folder / file).is_file() for file in files)


@pytest.mark.parametrize(
    ("options", "family"),
    [
        ({}, "cpu/lanes"),
        ({"dtype": "float64"}, "cpu/exact"),
        ({"cost": 1.5}, "cpu/exact"),
        ({"eps": 1e-5}, "cpu/exact"),
    ],
)
def test_options_choose_the_family(options: dict[str, object], family: str) -> None:
    assert explained.explain("soft_rank", (32, 60), options).families == family


def test_without_numba_the_reference_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(dispatch._MISSING, "numba", "numba is not installed")
    assert explained.explain("soft_rank", (4, 6), {}).families == "reference"
    explained.main([])
    assert capsys.readouterr().out == (
        "There are no kernels for the CPU here: numba is not installed. The reference answers every call.\n"
    )
