"""``python -m tests.mutants --map`` once (20 minutes), then ``python -m tests.mutants --count 100``.

Each change is made in a copy of the tree, and the tests that reach it run there until one fails. Results are kept one
by one, and a change that has a result is not tried again. Kernels of Numba without the change are not compiled again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .changes import Change, draw
from .tests_of import Unit, tests_of, units, users

ROOT = Path(__file__).parent.parent.parent
REASONS = Path(__file__).parent / "equivalent.json"  #: why changes that survive change nothing
PYTEST = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.plugin"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
NOT_MAPPED = ("paper", "cli", "explore", "docs", "plot", "benchmarks", "packaging")


class Workshop:
    """A copy of the tree, the kernels compiled for it, and what each test reaches."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree, self.kernels = folder, folder / "tree", folder / "numba"
        self.package, self.reach = self.tree / "src/sinksort", folder / "reach.jsonl"
        for name in _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
            if name and (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        sources = sorted((self.package / "kernels").glob("numba_*.py"))
        stamp = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
        compiling = self.package / "kernels/numba_compile.py"  # kernels are kept although a source changes
        compiling.write_text(compiling.read_text().replace(").hexdigest()", f').hexdigest() and "{stamp}"'))
        self.units = units(self.package)

    def run(self, kernels: Path, tests: list[str], limit: float | None = None, **variables: object) -> int | None:
        """The exit status of pytest in the copy, or None where it took too long."""
        own = {"PYTHONPATH": "src", "NUMBA_CACHE_DIR": str(kernels), "PYTHONDONTWRITEBYTECODE": "1"}
        env = os.environ | ONE_THREAD | own | {name: str(value) for name, value in variables.items()}
        with (self.folder / "log.txt").open("w") as log:
            group = subprocess.Popen(
                [*PYTEST, *tests], cwd=self.tree, env=env, stdout=log, stderr=log, start_new_session=True
            )
            try:
                return group.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):  # processes that a test started may be left
                    os.killpg(group.pid, signal.SIGKILL)

    def map(self) -> None:
        self.reach.unlink(missing_ok=True)
        tests = [
            path for path in sorted(self.tree.glob("tests/test_*.py")) if path.stem.split("_")[1] not in NOT_MAPPED
        ]
        names = [str(path.relative_to(self.tree)) for path in tests]
        self.run(self.kernels, ["src", *names], SINKSORT_TESTS=self.reach, SINKSORT_CALLS=1)

    def try_change(self, change: Change, seconds: float, only: list[str]) -> dict[str, Any]:
        """The change is made, judged by its tests, and taken back."""
        levels = users(self.units, change.file, change.line)
        tests = only or tests_of(levels, self.reach)
        path, seen, began = self.package / change.file, self.folder / "seen.jsonl", time.time()
        text = path.read_text()
        seen.write_text("")
        with tempfile.TemporaryDirectory(prefix="kernels-", dir=self.folder) as kernels:
            self._keep_unchanged(Path(kernels), levels)
            try:
                path.write_text(change.apply(text))
                until = {"SINKSORT_TESTS": seen, "SINKSORT_UNTIL": began + seconds}
                status = self.run(Path(kernels), ["-x", *tests], limit=seconds + 200, **until) if tests else 0
            finally:
                path.write_text(text)
        said = [json.loads(line) for line in seen.read_text().splitlines()]
        ran = [line for line in said if "test" in line]
        facts = {"verdict": "survived", "by": "", "ran": len(ran), "tests": len(tests)}
        if failed := [line["test"] for line in ran if not line["passed"]]:
            facts |= {"verdict": "killed", "by": failed[0]}
        elif 2 * len(ran) < len(said):
            facts |= {"verdict": "timed out" if status in (None, 1) else "killed", "by": said[-1]["begins"]}
        elif tests and not ran:
            facts |= {"verdict": "killed", "by": "every test: the package cannot be imported"}
        return facts | {"seconds": round(time.time() - began), "diff": change.diff(text)}

    def _keep_unchanged(self, kernels: Path, levels: list[list[Unit]]) -> None:
        """A folder of links to the compiled kernels, but for those that contain what is changed."""
        shutil.copytree(self.kernels, kernels, copy_function=os.link, dirs_exist_ok=True)
        for unit in (unit for level in levels for unit in level if "/numba_" in unit.file):
            for name in unit.defines:
                for path in kernels.rglob(f"{name}[-.]*.nbc"):
                    path.unlink()


def _git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True)


def report(results: list[dict[str, Any]]) -> str:
    reasons = json.loads(REASONS.read_text()) if REASONS.exists() else {}
    counts = Counter(result["verdict"] for result in results)
    lines = ["| verdict | changes |", "|---|---|", *(f"| {word} | {number} |" for word, number in counts.most_common())]
    lines += ["", "| number | change | why it changes nothing |", "|---|---|---|"]
    for result in sorted(results, key=lambda result: result["number"]):
        if result["verdict"] == "survived":
            where, *changed = result["diff"].replace("|", "\\|").splitlines()
            before, after = (f"`{line[1:].strip()}`" for line in changed)
            reason = reasons.get(f"{result['seed']} {result['number']}", "")
            lines.append(f"| {result['number']} | {where}: {before} becomes {after} | {reason} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sinksort-mutants")
    parser.add_argument("--map", action="store_true", help="find out which functions each test calls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=0, help="try the first so many changes")
    parser.add_argument("--mutant", type=int, help="show this one and try it")
    parser.add_argument("--tests", nargs="*", default=[], help="with these tests instead of all that reach it")
    parser.add_argument("--seconds", type=float, default=120, help="no test begins later than this")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    shop, kept = Workshop(options.folder), options.folder / "results.jsonl"
    if options.map:
        shop.map()
    results = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    if options.mutant is not None:
        change = draw(shop.package, options.seed, options.mutant)
        print(change.diff((shop.package / change.file).read_text()), flush=True)
        print(shop.try_change(change, options.seconds, options.tests))
    done = {(result["seed"], result["number"]) for result in results}
    for number in (number for number in range(options.count) if (options.seed, number) not in done):
        change = draw(shop.package, options.seed, number)
        results.append(
            {"seed": options.seed, "number": number} | shop.try_change(change, options.seconds, options.tests)
        )
        with kept.open("a") as file:
            file.write(json.dumps(results[-1]) + "\n")
        print(json.dumps(results[-1]), flush=True)
    if options.report:
        print(report([result for result in results if result["seed"] == options.seed]))


if __name__ == "__main__":
    main()
