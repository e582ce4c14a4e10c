"""What a newcomer meets: the README's code, the wheel, the versions, the two commands."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import sinksort

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n```text\n(.*?)```)?", README, re.DOTALL)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


# ---- README: its code is run by test_docs.py


def test_readme_example_is_ten_lines():
    lines = [line for line in BLOCKS[0][0].splitlines() if line.strip()]
    assert len(lines) == 10
    assert BLOCKS[0][1]


def test_readme_names_every_operator():
    public = [name for name in sinksort.__all__ if callable(getattr(sinksort, name)) and name != "TopK"]
    assert [name for name in public if name not in README] == []


@pytest.mark.parametrize("document", ["README.md", "DESIGN.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    local = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("https://")]
    assert [link for link in local if not (ROOT / link).exists()] == []


def test_readme_picture_is_small():
    assert (ROOT / "docs/images/transport.png").stat().st_size < 200_000


def test_design_has_a_line_for_every_room():
    """Each module beside ``__init__``, and each sub-package, is in the table of rooms."""
    design = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    package = ROOT / "src/sinksort"
    rooms = [path.name for path in package.glob("*.py")] + [f"{p.parent.name}/" for p in package.glob("*/__init__.py")]
    assert [room for room in rooms if f"`{room}" not in design] == []


# ---- the package


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_is_pure_python(wheel):
    assert wheel.name == f"sinksort-{sinksort.__version__}-py3-none-any.whl"


def test_wheel_holds_the_package_its_types_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "sinksort/py.typed" in names
    assert "sinksort/core/solvers/newton.py" in names
    assert {name.split("/")[0] for name in names} == {"sinksort", f"sinksort-{sinksort.__version__}.dist-info"}
    inside = [name for name in names if name.startswith("sinksort/")]
    assert [name for name in inside if not name.endswith((".py", "py.typed"))] == []


def test_wheel_needs_torch_and_numpy_and_brings_numba_where_it_has_wheels(wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(f"sinksort-{sinksort.__version__}.dist-info/METADATA").decode()
    needs = [Requirement(line.partition(": ")[2]) for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    hard = {need.name: need.specifier for need in needs if need.marker is None}
    assert hard == {"torch": SpecifierSet(">=2.6"), "numpy": SpecifierSet(">=1.26")}
    (numba,) = (need for need in needs if need.name == "numba" and "extra" not in str(need.marker))
    places = {
        ("linux", "x86_64", "3.11"): True, ("linux", "aarch64", "3.14"): True, ("darwin", "arm64", "3.12"): True,
        ("win32", "AMD64", "3.10"): True, ("darwin", "x86_64", "3.12"): False, ("linux", "riscv64", "3.12"): False,
        ("linux", "x86_64", "3.15"): False,
    }  # fmt: skip
    for (system, machine, python_version), there in places.items():
        where = {"sys_platform": system, "platform_machine": machine, "python_version": python_version}
        assert numba.marker.evaluate(where) == there, where
    assert "Requires-Python: >=3.10" in metadata
    assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())


def test_version_is_the_same_everywhere():
    version = sinksort.__version__
    assert importlib.metadata.version("sinksort") == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert version in re.findall(r"^## .*?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert f"sinksort {version}" in (ROOT / "docs/comparison.md").read_text(encoding="utf-8")


def test_import_loads_no_optional_package():
    code = "import sys, sinksort; print([m for m in ('matplotlib', 'rich', 'sklearn', 'ot') if m in sys.modules])"
    assert python(code).stdout == "[]\n"


def test_missing_extra_is_named():
    hidden = python(
        "import importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'rich' else real(name, *a)\n"
        "import sinksort.paper"
    )
    said = hidden.stderr.strip().splitlines()[-1]
    assert said.startswith("ModuleNotFoundError: sinksort.paper ")
    assert said.endswith(" and rich is not installed; run: pip install 'sinksort[paper]'")


# ---- the commands


def test_constraints_lie_within_the_declared_ranges():
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            pins[pin.name.lower()] = next(iter(pin.specifier)).version
    declared = [Requirement(text) for text in importlib.metadata.requires("sinksort") or []]
    declared = [need for need in declared if need.name != "sinksort"]
    assert len(declared) > 10
    assert [str(need) for need in declared if not need.specifier.contains(pins.get(need.name.lower(), "0"))] == []


def test_ci_runs_make_test():
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"


def test_make_says_what_it_can_do():
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    wanted = ["test", "demo", "docs", "serve", "browser-test"]
    assert [line.split()[:2] for line in shown.splitlines()] == [["make", name] for name in wanted]


def test_make_says_when_there_is_no_python(tmp_path):
    made = subprocess.run(
        [
            "make",
            "-f",
            str(ROOT / "Makefile"),
            "demo",
            "PYTHON=",
            f"DEMO_NEW={tmp_path / 'ready'}",
            f"READY={tmp_path / 'no'}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode != 0
    assert "sinksort needs Python 3.10 or newer" in made.stdout
