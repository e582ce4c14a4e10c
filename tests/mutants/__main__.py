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
from .tests_of import tests_of, units, users

ROOT = Path(__file__).parent.parent.parent
REASONS = Path(__file__).parent / "equivalent.json"  #: why changes that survive change nothing
PYTEST = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.plugin"]
ALONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONDONTWRITEBYTECODE": "1"}
NOT_MAPPED = {"paper", "docs", "benchmarks", "test_packaging.py"}


class Workshop:
    """A copy of the tree, the kernels compiled for it, and what each test reaches."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree, self.kernels = folder, folder / "tree", folder / "numba"
        self.package, self.reach = self.tree / "src/sinksort", folder / "reach.jsonl"
        files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.check_output(files, cwd=ROOT, text=True).split("\0"):
            if name and (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        sources = sorted((self.package / "kernels/cpu").rglob("*.py"))
        stamp = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
        compiling = self.package / "kernels/cpu/engine/compile.py"  # kernels are kept although a source changes
        compiling.write_text(compiling.read_text().replace(").hexdigest()", f').hexdigest() and "{stamp}"'))
        self.units = units(self.package)

    def run(self, kernels: Path, tests: list[str], limit: float | None = None, **variables: object) -> int | None:
        """The exit status of pytest in the copy, or None where it took too long."""
        env = os.environ | ALONE | {"PYTHONPATH": "src", "NUMBA_CACHE_DIR": str(kernels)}
        env |= {name: str(value) for name, value in variables.items()}
        with (self.folder / "log.txt").open("w") as log:
            options: dict[str, Any] = {"cwd": self.tree, "env": env, "stdout": log, "stderr": log}
            group = subprocess.Popen([*PYTEST, *tests], start_new_session=True, **options)
            try:
                return group.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):  # processes that a test started may be left
                    os.killpg(group.pid, signal.SIGKILL)

    def map(self) -> None:
        self.reach.unlink(missing_ok=True)
        paths = [path.relative_to(self.tree) for path in sorted(self.tree.glob("tests/**/test_*.py"))]
        names = [str(path) for path in paths if NOT_MAPPED.isdisjoint(path.parts)]
        self.run(self.kernels, ["src", *names], SINKSORT_TESTS=self.reach, SINKSORT_CALLS=1)

    def try_change(self, change: Change, seconds: float, only: list[str]) -> dict[str, Any]:
        """The change is made, judged by its tests, and taken back."""
        levels = users(self.units, change.file, change.line)
        tests = only or tests_of(levels, self.reach)
        path, seen, began = self.package / change.file, self.folder / "seen.jsonl", time.time()
        text = path.read_text()
        seen.write_text("")
        with tempfile.TemporaryDirectory(prefix="kernels-", dir=self.folder) as kernels:
            self._keep_unchanged(Path(kernels), change)
            path.write_text(change.apply(text))
            try:
                until = {"SINKSORT_TESTS": seen, "SINKSORT_UNTIL": began + seconds}
                status = self.run(Path(kernels), ["-x", *tests], limit=seconds + 200, **until) if tests else 0
            finally:
                path.write_text(text)
        said = [json.loads(line) for line in seen.read_text().splitlines()]
        ran = [line for line in said if "test" in line]
        verdict, by = "survived", ""
        if failed := [line["test"] for line in ran if not line["passed"]]:
            verdict, by = "killed", failed[0]
        elif 2 * len(ran) < len(said):
            verdict, by = "timed out" if status in (None, 1) else "killed", said[-1]["begins"]
        elif "ERROR: not found" in (self.folder / "log.txt").read_text():
            raise SystemExit("tests have other names than in the map: make it again with --map")
        elif tests and not ran:
            verdict, by = "killed", "every test: the package cannot be imported"
        facts = {"verdict": verdict, "by": by, "ran": len(ran), "tests": len(tests)}
        return facts | {"seconds": round(time.time() - began), "diff": change.diff(text)}

    def _keep_unchanged(self, kernels: Path, change: Change) -> None:
        """A folder of links to the compiled kernels, but for those that contain what is changed."""
        shutil.copytree(self.kernels, kernels, copy_function=os.link, dirs_exist_ok=True)
        compiled = [unit for unit in self.units if "kernels/cpu/" in unit.file or unit.file == change.file]
        levels = users(compiled, change.file, change.line, methods=False)
        for name in {name for level in levels for unit in level for name in unit.defines}:
            for path in kernels.rglob(f"{name}[-.]*.nbc"):
                path.unlink()


def report(results: list[dict[str, Any]], reasons: dict[str, str]) -> str:
    counts = Counter(result["verdict"] for result in results)
    lines = ["| verdict | changes |", "|---|---|", *(f"| {word} | {number} |" for word, number in counts.most_common())]
    lines += ["", "| number | change | why it changes nothing |", "|---|---|---|"]
    for result in sorted(results, key=lambda result: result["number"]):
        if result["verdict"] == "survived":
            where, before, after = result["diff"].replace("|", "\\|").splitlines()
            change = f"{where}: `{before[1:].strip()}` becomes `{after[1:].strip()}`"
            lines.append(f"| {result['number']} | {change} | {reasons.get(str(result['number']), '')} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sinksort-mutants")
    parser.add_argument("--map", action="store_true", help="find out which functions each test calls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=0, help="try the first so many changes")
    parser.add_argument("--mutant", type=int, help="show this one and try it; its result is kept in place of another")
    parser.add_argument("--tests", nargs="*", default=[], help="with these tests instead of all that reach it")
    parser.add_argument("--seconds", type=float, default=120, help="no test begins later than this")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    shop, kept = Workshop(options.folder), options.folder / f"results-{options.seed}.jsonl"
    if options.map:
        shop.map()
    results = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    results = [result for result in results if result["number"] != options.mutant]
    wanted = range(options.count) if options.mutant is None else [options.mutant]
    for number in sorted(set(wanted) - {result["number"] for result in results}):
        change = draw(shop.package, options.seed, number)
        print(change.diff((shop.package / change.file).read_text()), flush=True)
        results.append({"number": number} | shop.try_change(change, options.seconds, options.tests))
        kept.write_text("".join(json.dumps(result) + "\n" for result in results))
        print({name: fact for name, fact in results[-1].items() if name != "diff"}, flush=True)
    if options.report:
        print(report(results, json.loads(REASONS.read_text()).get(str(options.seed), {})))


if __name__ == "__main__":
    main()
