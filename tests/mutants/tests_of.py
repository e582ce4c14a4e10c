"""Which tests reach a line: those that call its function, then those that call what uses this function, and so on."""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

#: What runs in other processes, or once in a process, or is looked at without a call, and where it is tested.
UNSEEN = {"distributed/": "tests/distributed/", "kernels/cpu/engine/c": "tests/kernels/test_cache",
          "kernels/gpu/engine/c": "tests/kernels/gpu/test_engine_cache", "core/modes.py": "tests/operators/test_torch",
          "operators/": "tests/operators/test_operators.py::test_defaults",
          "losses/": "tests/operators/test_operators.py::test_defaults"}  # fmt: skip


class Unit(NamedTuple):
    """A function, or a statement outside of functions. Names are ``module.name``, or ``.name`` for a method."""

    file: str
    first: int
    last: int
    defines: frozenset[str]
    uses: frozenset[str]


def units(package: Path) -> list[Unit]:
    return [unit for path in sorted(package.rglob("*.py")) for unit in _of_file(path, str(path.relative_to(package)))]


def _of_file(path: Path, file: str) -> Iterator[Unit]:
    module, stem = ast.parse(path.read_text()).body, path.stem
    known = {name: f"{stem}.{name}" for node in module for name in _names(node, ast.Store)}
    for node in module:
        if isinstance(node, ast.ImportFrom):
            source = (node.module or "").split(".")[-1]
            known |= {a.asname or a.name: f"{source}.{a.name}" if source else a.name for a in node.names}
    for node, owner in _statements(module):
        decorators = getattr(node, "decorator_list", [])
        names = _names(node, ast.Store)
        defines = {f".{name}" if owner else known[name] for name in names}
        if owner and not (isinstance(node, ast.FunctionDef) and node.name[:2] != "__"):
            defines.add(f"{stem}.{owner}")  # who makes an object has its fields, and calls what has underscores
        defines |= {f"{stem}.{name}" for d in decorators for name in _names(d, ast.Load)}
        dotted = [n for n in ast.walk(node) if isinstance(n, ast.Attribute)]
        uses = {known[name] for name in _names(node, ast.Load) - _locals(node) if name in known}
        uses |= {f"{known.get(n.value.id, n.value.id)}.{n.attr}" for n in dotted if isinstance(n.value, ast.Name)}
        uses |= {f".{n.attr}" for n in dotted}
        first = min([node.lineno, *[d.lineno for d in decorators]])
        yield Unit(file, first, node.end_lineno or first, frozenset(defines), frozenset(uses))


def _statements(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[ast.stmt, str]]:
    """Methods of classes count for themselves."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _statements(node.body, node.name)
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            yield node, owner


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Names that are read, or that are given to something outside of functions."""
    if context is ast.Store and isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def _locals(node: ast.AST) -> set[str]:
    stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def users(everything: list[Unit], file: str, line: int, methods: bool = True) -> list[list[Unit]]:
    """The unit of a line; the units that use it; and so on, each unit once. Compiled functions use no ``methods``."""
    level = [unit for unit in everything if unit.file == file and unit.first <= line <= unit.last]
    levels, seen = [], set(level)
    while level:
        levels.append(level)
        names = {name for unit in level for name in unit.defines if methods or not name.startswith(".")}
        names -= {".forward", ".backward"}
        level = [unit for unit in everything if unit not in seen and unit.uses & names]
        seen.update(level)
    return levels


def tests_of(levels: list[list[Unit]], reach: Path) -> list[str]:
    """Tests that pass without a change, the closest and shortest of each file first."""
    lines = [line for line in map(json.loads, reach.read_text().splitlines()) if line.get("passed")]
    apart = tuple(tests for file, tests in UNSEEN.items() if levels[0][0].file.startswith(file))
    chosen: dict[str, None] = {}
    found = 0
    for level in levels:
        spans = [(unit.file, unit.first, unit.last) for unit in level]
        hits = [line for line in lines if _reaches(line["calls"], spans) or (apart and line["test"].startswith(apart))]
        chosen |= dict.fromkeys(_mixed(hits, levels[0][0].file))
        found += bool(hits)
        if found == 2:  # those of the second are there since the first may be called once in a process
            break
    return list(chosen)


def _reaches(calls: list[tuple[str, int]], spans: list[tuple[str, int, int]]) -> bool:
    return any(file == name and first <= at <= last for name, at in calls for file, first, last in spans)


def _mixed(hits: list[dict[str, Any]], changed: str) -> list[str]:
    """The shortest three of each file, then the next three; those of files named like what is changed come earlier."""
    ordered = sorted(hits, key=lambda line: (_file(line), line["seconds"]))
    words = {*changed.removesuffix(".py").replace("/", "_").split("_")}
    turn = {}
    for file, lines in itertools.groupby(ordered, key=_file):
        earlier = 8 * bool(words & {*file.removesuffix(".py").replace("/", "_").split("_")})
        turn |= {line["test"]: at // 3 - earlier for at, line in enumerate(lines)}
    return sorted(turn, key=lambda test: turn[test])


def _file(line: dict[str, Any]) -> str:
    return str(line["test"]).split("::")[0]
