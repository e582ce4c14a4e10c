"""Which changes there are: of one operator, constant, comparison, condition, sign or index in a line of the sources."""

from __future__ import annotations

import ast
import functools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Pictures and the reproduction of the paper are not the library.
LEFT_OUT = ("paper/", "explore/", "plot/", "show.py")

OPERATORS: dict[str, tuple[str, ...]] = {
    "Add": ("+", "-"), "Sub": ("-", "+"), "Mult": ("*", "/"), "Div": ("/", "*"), "FloorDiv": ("//", "*"),
    "Mod": ("%", "*"), "Pow": ("**", "*"), "LShift": ("<<", ">>"), "RShift": (">>", "<<"), "BitAnd": ("&", "|"),
    "BitOr": ("|", "&"), "BitXor": ("^", "|"), "Lt": ("<", "<=", ">="), "LtE": ("<=", "<", ">"), "Eq": ("==", "!="),
    "Gt": (">", ">=", "<="), "GtE": (">=", ">", "<"), "NotEq": ("!=", "=="), "Is": ("is", "is not"),
    "IsNot": ("is not", "is"), "In": ("in", "not in"), "NotIn": ("not in", "in"),
    "And": ("and", "or"), "Or": ("or", "and"),
}  # fmt: skip
_Place = tuple[int, int, str, tuple[str, ...]]  # line, column, what is there, what may stand there instead


class Change(NamedTuple):
    """``old`` at this place becomes ``new``. Lines count from 1, columns from 0."""

    file: str
    line: int
    column: int
    old: str
    new: str

    def apply(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        before, after = lines[self.line - 1][: self.column], lines[self.line - 1][self.column :]
        assert after.startswith(self.old), self
        lines[self.line - 1] = before + self.new + after.removeprefix(self.old)
        return "".join(lines)

    def diff(self, text: str) -> str:
        before, after = (version.splitlines()[self.line - 1] for version in (text, self.apply(text)))
        return f"{self.file}, line {self.line}\n-{before}\n+{after}"


def draw(package: Path, seed: int, number: int) -> Change:
    """Lines with something to change come in random order, each once, and each change of a line is as likely."""
    by_line = _by_line(package)
    lines = sorted(by_line)
    random.Random(seed).shuffle(lines)
    return random.Random(f"{seed} {number}").choice(by_line[lines[number]])


@functools.cache
def _by_line(package: Path) -> dict[tuple[str, int], list[Change]]:
    by_line: dict[tuple[str, int], list[Change]] = {}
    for path in sorted(package.rglob("*.py")):
        name, text = path.relative_to(package).as_posix(), path.read_text()
        lines = text.splitlines()
        for node in _code(ast.parse(text)) if not name.startswith(LEFT_OUT) else ():
            for line, column, old, news in _of_node(node, lines):
                if lines[line - 1].isascii():  # columns of ast count bytes
                    by_line.setdefault((name, line), []).extend(Change(name, line, column, old, new) for new in news)
    return by_line


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those of annotations, messages, types and lists of names."""
    yield node
    for field, value in ast.iter_fields(node):
        if field not in {"annotation", "returns", "decorator_list"} and not isinstance(node, ast.Raise | ast.JoinedStr):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _says_or_types(child):
                    yield from _code(child)


def _says_or_types(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__"
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):  # a type or another
        type_ = re.compile(r"None|[\w.]*\b([A-Z][a-z]\w*|int|str|bool|float)(\[.*\])?")
        return any(type_.fullmatch(ast.unparse(side)) for side in (node.left, node.right))
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return called.startswith(("warnings.", "_log.")) or called in {"TypeVar", "cast"}


def _of_node(node: ast.AST, lines: list[str]) -> Iterator[_Place]:
    if isinstance(node, ast.BinOp):
        yield from _between(node.left, node.op, node.right, lines)
    elif isinstance(node, ast.AugAssign):
        yield from _between(node.target, node.op, node.value, lines)
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(left, node.op, right, lines)
    elif isinstance(node, ast.Compare):
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            yield from _between(left, op, right, lines)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        old = {"USub": "-", "Not": "not ", "Invert": "~"}[type(node.op).__name__]
        yield node.lineno, node.col_offset, old, ("+" if old == "-" else "",)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        if node.test.lineno == node.test.end_lineno and isinstance(node.test, ast.Name | ast.Call | ast.Attribute):
            yield node.test.lineno, node.test.col_offset, "", ("not ",)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        old = lines[node.lineno - 1][node.col_offset : node.end_col_offset]
        yield node.lineno, node.col_offset, old, _other_constants(node.value)


def _other_constants(value: float | bool) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (str(not value),)
    if isinstance(value, int):
        return (str(value + 1), str(value - 1)) if value > 0 else (str(value + 1),)
    return (repr(value * 1.5),) if 0.0 < value < float("inf") else ("1.0",)


def _between(left: ast.expr, op: ast.AST, right: ast.expr, lines: list[str]) -> Iterator[_Place]:
    """The one place of an operator between its operands."""
    old, *news = OPERATORS.get(type(op).__name__, ("@",))
    for line in range(left.end_lineno or 0, right.lineno + 1):
        start = (left.end_col_offset or 0) if line == left.end_lineno else 0
        at = lines[line - 1][start : right.col_offset if line == right.lineno else None].split("#")[0].find(old)
        if at >= 0 and news:
            yield line, start + at, old, tuple(news)
            return
