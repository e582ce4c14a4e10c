"""What the source of the package says about itself, read without importing it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "sinksort"
KERNELS = PACKAGE / "kernels"
#: The rooms of the package. A room imports itself and rooms that stand before it.
LAYERS = (
    "core",
    "linear",
    "kernels",
    "operators",
    "losses schedules relaxations distributed streaming",
    "nn sklearn compat",
    "snapshot",
    "show plot",
    "paper",
    "explore",
    "__main__",
)


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name inside the package -> file; a package is its ``__init__``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def imports(name: str) -> set[str]:
    """The modules of the package that a module imports anywhere in its source."""
    path = modules()[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    package = [part for part in package if part]
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {
                _known(alias.name.split(".")[1:]) for alias in node.names if alias.name.split(".")[0] == "sinksort"
            }
        elif isinstance(node, ast.ImportFrom):
            said = node.module.split(".") if node.module else []
            if node.level:
                base = package[: len(package) - node.level + 1] + said
            elif said[0] == "sinksort":
                base = said[1:]
            else:
                continue
            found |= {_known([*base, alias.name]) for alias in node.names}
    return found - {name}


def _known(parts: list[str]) -> str:
    """The module of which this is the name, or of which this is something inside."""
    while ".".join(parts) not in modules():
        parts = parts[:-1]
    return ".".join(parts)


def required(name: str) -> set[str]:
    """The first names of what is imported from elsewhere when a module is imported, not later inside a function."""
    return {
        first
        for node in _at_once(tree(modules()[name]).body)
        for first in (
            [alias.name.split(".")[0] for alias in node.names]
            if isinstance(node, ast.Import)
            else [] if node.level else [str(node.module).split(".")[0]]
        )
    }  # fmt: skip


def imported_at_once(name: str) -> set[str]:
    """The modules of the package that are there as soon as a module is imported, itself included."""
    found, left = set(), [name]
    while left:
        each = left.pop()
        if each in found:
            continue
        found.add(each)
        left += [".".join(each.split(".")[:i]) for i in range(each.count(".") + 1)]
        package = each.split(".") if modules()[each].name == "__init__.py" else each.split(".")[:-1]
        package = [part for part in package if part]
        for node in _at_once(tree(modules()[each]).body):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
                left += [_known([*base, alias.name]) for alias in node.names]
    return found


def _at_once(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run with the module: not those in functions, and not those for type checkers alone."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from _at_once(node.body + node.orelse)
        elif isinstance(node, ast.Try):  # an error is handled: nothing is required
            continue


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef))


def parameters(function: ast.FunctionDef) -> int:
    said = function.args
    return len(said.posonlyargs) + len(said.args) + len(said.kwonlyargs)


def _of_triton(function: ast.FunctionDef) -> bool:
    return any("triton.jit" in ast.unparse(each) for each in function.decorator_list)


@functools.cache
def triton_entry_points() -> frozenset[str]:
    """Triton kernels that are launched, as "file.function": the first argument of a call of ``launch``."""
    kernels = {(path.stem, f.name) for path in sorted(KERNELS.rglob("*.py")) for f in functions(path) if _of_triton(f)}
    launched = set()
    for path in sorted(KERNELS.rglob("*.py")):
        known = {name: (path.stem, name) for file, name in kernels if file == path.stem}
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom):
                source = str(node.module).split(".")[-1]
                known |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and node.args and "launch" in ast.unparse(node.func):
                for each in ast.walk(node.args[0]):
                    if isinstance(each, ast.Name):
                        launched.add(known.get(each.id))
                    elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
                        launched.add((known.get(each.value.id, ("", ""))[1], each.attr))
    return frozenset(f"{file}.{name}" for file, name in kernels & launched)
