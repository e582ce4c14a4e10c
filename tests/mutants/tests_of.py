"""Which tests reach a line: those that call its function, then those that call what uses this function, and so on."""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: What runs in other processes, or once in a process, and is tested there.
UNSEEN = {"distributed/": "tests/test_distributed", "kernels/numba_c": "tests/test_kernels_cache",
          "kernels/triton_c": "tests/test_kernels_triton_cache", "modes.py": "tests/test_torch"}  # fmt: skip
_LEVELS = 6


class Unit(NamedTuple):
    """A function, or a statement outside of functions: where it is, what it defines, what it mentions."""

    file: str
    first: int
    last: int
    defines: frozenset[str]
    mentions: frozenset[str]


def units(package: Path) -> list[Unit]:
    found = []
    for path in sorted(package.rglob("*.py")):
        module, stem = ast.parse(path.read_text()).body, path.stem
        functions = {node.name for node in module if isinstance(node, ast.FunctionDef)}
        known = {name: f"{stem}.{name}" for name in functions.union(*map(_stored, module))}  # and what is imported
        for node in module:
            if isinstance(node, ast.ImportFrom):
                source = (node.module or "").split(".")[-1]
                known |= {a.asname or a.name: f"{source}.{a.name}" if source else a.name for a in node.names}
            elif isinstance(node, ast.ClassDef):
                known[node.name] = f"{stem}.{node.name}"
        for node, owner in _statements(module):
            decorators = getattr(node, "decorator_list", [])
            own = {f"{stem}.{n.id}" for d in decorators for n in ast.walk(d) if getattr(n, "id", "") in functions}
            if isinstance(node, ast.FunctionDef):
                own |= (
                    {f".{node.name}", *([f"{stem}.{owner}"] if "__" in node.name else [])}
                    if owner
                    else {known[node.name]}
                )
            elif not isinstance(node, ast.ClassDef):
                own |= {f"{stem}.{name}" for name in _stored(node)}
            first, last = min([node.lineno, *[d.lineno for d in decorators]]), node.end_lineno or 0
            found.append(
                Unit(path.relative_to(package).as_posix(), first, last, frozenset(own), _mentions(node, known))
            )
    return found


def _statements(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[ast.stmt, str]]:
    """Methods of classes count for themselves."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _statements(node.body, node.name)
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            yield node, owner


def _stored(node: ast.AST) -> set[str]:
    """Names that a statement gives to something, those of functions and their insides left out."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return set()
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _mentions(node: ast.AST, known: dict[str, str]) -> frozenset[str]:
    """What is used: ``module.name``, or ``.name`` for a method of whatever it may be."""
    local = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    local |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names = {known[n.id] for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in known and n.id not in local}
    dotted = [n for n in ast.walk(node) if isinstance(n, ast.Attribute)]
    names |= {f"{known.get(n.value.id, n.value.id)}.{n.attr}" for n in dotted if isinstance(n.value, ast.Name)}
    return frozenset(names | {f".{n.attr}" for n in dotted})


def users(everything: list[Unit], file: str, line: int) -> list[list[Unit]]:
    """The unit of a line; the units that mention it; and so on, each unit once."""
    level = [unit for unit in everything if unit.file == file and unit.first <= line <= unit.last]
    levels, seen = [], set(level)
    while level:
        levels.append(level)
        names = frozenset(itertools.chain.from_iterable(unit.defines for unit in level)) - {
            ".__init__",
            ".forward",
            ".backward",
        }
        level = [unit for unit in everything if unit not in seen and unit.mentions & names]
        seen.update(level)
    return levels


def tests_of(levels: list[list[Unit]], reach: Path) -> list[str]:
    """Tests that pass without a change, the closest and shortest of each file first."""
    lines = [line for line in map(json.loads, reach.read_text().splitlines()) if line.get("passed")]
    chosen: dict[str, None] = {}
    found = 0
    for level in levels[:_LEVELS]:
        spans = [(unit.file, unit.first, unit.last) for unit in level]
        hits = [line for line in lines if line["test"] not in chosen and _reaches(line["calls"], spans)]
        if level is levels[0]:
            apart = tuple(tests for file, tests in UNSEEN.items() if level and level[0].file.startswith(file))
            hits += [line for line in lines if apart and line["test"].startswith(apart) and line not in hits]
        chosen.update(dict.fromkeys(line["test"] for line in _mixed(hits, level[0].file if level else "")))
        found += bool(hits)
        if found == 2:  # a memo may hide a call of the first
            break
    return list(chosen)


def _reaches(calls: list[tuple[str, int]], spans: list[tuple[str, int, int]]) -> bool:
    return any(file == name and first <= at <= last for name, at in calls for file, first, last in spans)


def _mixed(hits: list[dict[str, object]], changed: str) -> list[dict[str, object]]:
    """The shortest three of each file, then the next three; files named as what is changed first."""
    by_file: dict[str, list[dict[str, object]]] = {}
    for line in sorted(hits, key=lambda line: line["seconds"]):
        by_file.setdefault(str(line["test"]).split("::")[0], []).append(line)
    words = set(changed.removesuffix(".py").replace("/", "_").split("_"))
    kin = sorted(by_file, key=lambda file: -len(words & set(Path(file).stem.split("_"))))
    rounds = itertools.zip_longest(*[[by_file[f][i : i + 3] for i in range(0, len(by_file[f]), 3)] for f in kin])
    return [line for batch in rounds for three in batch for line in three or ()]
