"""What the project promises to those who take part: workflows, templates, supported versions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.github-issue-forms", [ROOT / ".github/ISSUE_TEMPLATE" / name for name in ("bug.yml", "wish.yml")]),
    ],
)
def test_files_of_the_repositorys_host_follow_their_schema(schema: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_every_make_target_of_a_workflow_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    used = {name for path in WORKFLOWS for name in re.findall(r"\bmake ([a-z-]+)", path.read_text(encoding="utf-8"))}
    assert used
    assert used <= set(targets)


def test_tested_versions_of_python_are_the_declared_ones() -> None:
    matrix = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["systems"]["strategy"]["matrix"]
    tested = {*matrix["python"], *(each["python"] for each in matrix["include"])}
    declared = set(re.findall(r"Python :: (3\.\d+)\"", PROJECT))
    assert tested == declared
    requires = SpecifierSet(re.findall(r'requires-python = "(.*)"', PROJECT)[0])
    assert all(f"{version}.0" in requires for version in declared)
    oldest = min(declared, key=lambda version: int(version.split(".")[1]))
    support = (ROOT / "docs/support.md").read_text(encoding="utf-8")
    assert f"| Python | {oldest} |" in support
    assert f"| torch | {re.findall(r'torch>=([0-9.]+)', PROJECT)[0]} |" in support


def test_hooks_use_the_pinned_tools() -> None:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    used = re.findall(r'"([\w-]+)==([\w.]+)"', (ROOT / ".pre-commit-config.yaml").read_text())
    assert used
    assert [(name, version) for name, version in used if pins[name] != version] == []
