"""The documentation is true: code prints what it says, pictures are what the code draws, numbers were measured.

The built site is tested in test_docs_site.py.
"""

from __future__ import annotations

import importlib
import io
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch.distributed
from matplotlib import pyplot as plt
from PIL import Image

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SCRIPTS = DOCS / "scripts"
sys.path.insert(0, str(SCRIPTS))

import drawings  # noqa: E402
import figures  # noqa: E402
import notebooks  # noqa: E402
import pages  # noqa: E402

PAGES = {str(page.relative_to(ROOT)): page for page in pages.pages()}
WITH_CODE = [name for name, page in PAGES.items() if pages.blocks(page)]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"\d+(?:\.(\d+))?(?:e[-+]\d+)?")


@pytest.fixture(autouse=True)
def _pictures_are_closed():
    yield
    plt.close("all")


def alike(printed: str, said: str) -> bool:
    """The same words and as many numbers, each within 3% or one unit of its last digit.

    Trainings amplify the last bits in which one processor differs from another.
    """
    if NUMBER.sub("#", printed) != NUMBER.sub("#", said):
        return False
    for ours, theirs in zip(NUMBER.finditer(printed), NUMBER.finditer(said), strict=True):
        unit = 10.0 ** -len(theirs[1] or "") if "e" not in theirs[0] else 0.0
        if abs(float(ours[0]) - float(theirs[0])) > 1.001 * max(unit, 0.03 * abs(float(theirs[0]))):
            return False
    return True


def same_picture(ours: bytes, theirs: bytes) -> bool:
    """Equal but for the edges of letters and lines."""
    a, b = (np.asarray(Image.open(io.BytesIO(data)).convert("L"), dtype=float) for data in (ours, theirs))
    return a.shape == b.shape and float(np.abs(a - b).mean()) < 2.0


# ---- pages


@pytest.fixture
def as_torchrun(monkeypatch):
    """What torchrun would set for a single process; the group is gone afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", WITH_CODE)
def test_code_of_a_page_prints_and_draws_what_it_says(name, tmp_path, monkeypatch, as_torchrun):
    monkeypatch.chdir(tmp_path)
    drawn = {}
    told = pages.run(PAGES[name], lambda path, figure: drawn.update({path: figures.png(figure)}))
    assert [(printed, said) for printed, said in told if said is not None and not alike(printed, said)] == []
    assert [path.name for path, data in drawn.items() if not same_picture(data, path.read_bytes())] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_code_that_runs_output_or_a_command(name):
    text = PAGES[name].read_text(encoding="utf-8")
    opened = re.findall(r"^[ >]*(?:```|~~~)(.*)$", text, re.MULTILINE)[::2]
    assert [language for language in opened if language not in ("python", "text", "sh")] == []
    assert opened.count("python") == len(pages.blocks(PAGES[name])), "Python in an indented block would not run"


@pytest.mark.parametrize("name", WITH_CODE)
def test_code_is_not_wider_than_the_page(name):
    """At 1280 pixels a block of the site shows 88 columns; wider ones have to be moved sideways."""
    lines = [line for block in pages.blocks(PAGES[name]) for line in block.code.splitlines()]
    assert [line for line in lines if len(line) > 88] == []


EXTRA_OF = {"sklearn": "sklearn", "sinksort.sklearn": "sklearn", "matplotlib": "plot", "sinksort.plot": "plot"}


@pytest.mark.parametrize("name", [*WITH_CODE, *(str(path.relative_to(ROOT)) for path in NOTEBOOKS)])
def test_page_that_needs_an_extra_says_so_first(name):
    path = ROOT / name
    if path.suffix == ".ipynb":
        cells = nbformat.read(path, as_version=4).cells
        first, code = cells[0].source, "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    else:
        first = path.read_text(encoding="utf-8").split("```python")[0]
        code = "\n".join(block.code for block in pages.blocks(path))
    imported = re.findall(
        r"^\s*(?:import|from) (sinksort\.sklearn|sinksort\.plot|sklearn|matplotlib)", code, re.MULTILINE
    )
    installed = {extra for extras in re.findall(r"pip install '\.\[([\w,]+)\]'", first) for extra in extras.split(",")}
    assert {EXTRA_OF[package] for package in imported} <= installed


@pytest.mark.parametrize("name", PAGES)
def test_commands_exist(name):
    """``make`` has the target, ``python`` the file, ``sinksort`` the subcommand, ``pip`` the extra."""
    makefile, project = ((ROOT / file).read_text(encoding="utf-8") for file in ("Makefile", "pyproject.toml"))
    for block in re.findall(r"^```sh\n(.*?)^```", PAGES[name].read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            words = line.partition("#")[0].split()
            if words[:1] == ["make"]:
                assert f"\n{words[1]}:" in makefile, line
            elif words[:1] == ["python"]:
                assert (ROOT / words[1]).is_file(), line
            elif words[:1] == ["sinksort"]:
                assert f'"{words[1]}"' in (ROOT / "src/sinksort/paper/cli.py").read_text(encoding="utf-8"), line
            for extra in re.findall(r"\[([\w,]+)\]", line):
                assert all(f"\n{part} = [" in project for part in extra.split(",")), line


def test_tolerance_of_numbers():
    assert alike("loss 0.56 after 10", "loss 0.57 after 10")
    assert not alike("loss 0.56", "loss 0.60")
    assert not alike("error 0.56", "loss 0.56")
    assert not alike("tensor([1., 2.])", "tensor([1., 2., 3.])")
    assert not alike("eps 1e-02", "eps 1e-03")


# ---- notebooks


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_prints_what_it_shows(path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    committed, fresh = nbformat.read(path, as_version=4), notebooks.run(path)
    for shown, cell in zip(committed.cells, fresh.cells, strict=True):
        ours, theirs = ([notebooks.shown(output) for output in c.get("outputs", [])] for c in (cell, shown))
        assert len(ours) == len(theirs), cell.source
        for (text, picture), (said, drawn) in zip(ours, theirs, strict=True):
            assert alike(text, said), (text, said)
            assert bool(picture) == bool(drawn)


def test_there_are_three_tutorials_with_outputs():
    assert [path.stem for path in NOTEBOOKS] == ["1-operators", "2-zero-one-loss", "3-robust-regression"]
    for path in NOTEBOOKS:
        code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert sum(bool(cell.outputs) for cell in code) > len(code) // 2
        assert all(cell.execution_count is not None for cell in code)


# ---- pictures


@pytest.mark.parametrize("name", ["idea", "staircase"])
def test_drawing_is_the_committed_one(name):
    with pages.page_look():
        figure = drawings.DRAWINGS[name]()
    assert same_picture(figures.png(figure), (DOCS / f"images/{name}.png").read_bytes())


def test_pictures_come_from_committed_code_and_are_small():
    made = {DOCS / f"images/{name}.png" for name in drawings.DRAWINGS}
    made |= {block.picture for page in PAGES.values() for block in pages.blocks(page) if block.picture}
    here = {path for path in (DOCS / "images").iterdir() if path.suffix in (".png", ".svg")}
    other_scripts = {"transport.png", "playground.png"}  # docs/images/make.py; docs/images/playground.py
    assert {path.name for path in here - made} <= other_scripts
    assert made <= here
    assert [path.name for path in made if path.stat().st_size > 40_000] == []


def test_pictures_are_readable_in_grayscale():
    """Ink and paper stay far apart without colour, and lines of one plot differ in more than colour."""
    for name in drawings.DRAWINGS:
        gray = np.asarray(Image.open(DOCS / f"images/{name}.png").convert("L"))
        assert gray.min() < 60, name
        assert gray.max() > 240, name
    with pages.page_look():
        import matplotlib as mpl

        dashes = [str(style["linestyle"]) for style in mpl.rcParams["axes.prop_cycle"]]
    assert len(set(dashes)) == len(dashes)


# ---- numbers and words


def test_page_of_very_many_values_follows_from_the_raw_file(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("linear_time")
    raw = json.loads((benchmark.RESULTS / "linear_time.json").read_text(encoding="utf-8"))
    assert benchmark.table(raw["timings"], raw["memory"], raw["about"]) == (
        benchmark.RESULTS / "linear_time.md"
    ).read_text(encoding="utf-8")


NOISY, NEAR = "digits, 400 images, 40% random labels", "digits, 300 images, projected to 3 dimensions"
LOG, NCA = ("sinksort, J = log", "cross-entropy"), ("sinksort", "NCA")
RAW = ("sinksort, J = log, squash = None, eps = 1",)


def measured(loss: str, setting: str, method: str) -> float:
    """A mean of benchmarks/results/losses_vs_surrogates.json."""
    raw = json.loads((ROOT / "benchmarks/results/losses_vs_surrogates.json").read_text(encoding="utf-8"))
    (task,) = [task for task in raw["tasks"] if (task["loss"], task["setting"]) == (loss, setting)]
    return float(np.mean(task["values"][method]))


@pytest.mark.parametrize(
    ("page", "said", "loss", "setting", "methods"),
    [
        ("quickstart", "12.1% against 13.9%", "topk_loss", NOISY, LOG),
        ("quickstart", "6.4% against 6.2%", "topk_loss", "digits, 400 images", LOG),
        ("guides/topk", "12.1% top-1 error and cross-entropy 13.9%", "topk_loss", NOISY, LOG),
        ("guides/topk", "logits as they are 11.8%", "topk_loss", NOISY, RAW),
        ("guides/topk", "(6.4% and 6.2%;", "topk_loss", "digits, 400 images", LOG),
        ("guides/topk", "logits as they are 7.5%)", "topk_loss", "digits, 400 images", RAW),
        ("guides/neighbours", "16.3% error, neighbourhood components analysis (NCA) 17.5%", "knn_loss", NEAR, NCA),
    ],
)
def test_percentages_in_the_text_were_measured(page, said, loss, setting, methods):
    assert said in re.sub(r"\s+", " ", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    numbers = [float(number) for number in re.findall(r"([\d.]+)%", said)]
    assert numbers == [round(100 * measured(loss, setting, method), 1) for method in methods]


ALL_PAGES = [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "benchmarks/results").glob("*.md")]


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    """A page is read in the repository, too. ``public.on_the_site`` turns links to files into links to pages."""
    text = re.sub(r"(?s)```.*?```", "", page.read_text(encoding="utf-8"))
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("http", "#"))]
    assert [link for link in links if not (page.parent / link).exists()] == []


def words(path: Path) -> str:
    """The text of a file; of a notebook without its outputs."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    return "\n\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)


def test_spelling(tmp_path):
    """codespell knows common misspellings; docs/scripts/words.txt has our words that look like one."""
    checked = [ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    checked += [path for ext in ("md", "ipynb", "py") for path in DOCS.rglob(f"*.{ext}")]
    checked += [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    for number, path in enumerate(checked):
        (tmp_path / f"{number:03d}-{path.name}.txt").write_text(words(path), encoding="utf-8")
    options = ["--ignore-words", str(SCRIPTS / "words.txt"), "--ignore-regex", r"\b[A-Z]{2,3}\b"]
    command = [sys.executable, "-m", "codespell_lib", *options, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.stdout + ran.stderr).strip() == ""
