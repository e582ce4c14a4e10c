"""Which changes there are: of one operator, constant, comparison, condition, sign or index in a line of the sources."""

from __future__ import annotations

import ast
import difflib
import functools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Pictures and the reproduction of the paper are not the library.
LEFT_OUT = ("paper/", "explore/", "plot/", "show.py")

OPERATORS: dict[type[ast.AST], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-",)), ast.Sub: ("-", ("+",)), ast.Mult: ("*", ("/",)), ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("*",)), ast.Mod: ("%", ("*",)), ast.Pow: ("**", ("*",)), ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)), ast.BitAnd: ("&", ("|",)), ast.BitOr: ("|", ("&",)), ast.BitXor: ("^", ("|",)),
    ast.Lt: ("<", ("<=", ">=")), ast.LtE: ("<=", ("<", ">")), ast.Gt: (">", (">=", "<=")), ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)), ast.NotEq: ("!=", ("==",)), ast.Is: ("is", ("is not",)), ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)), ast.NotIn: ("not in", ("in",)), ast.And: ("and", ("or",)), ast.Or: ("or", ("and",)),
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
        line = lines[self.line - 1]
        assert line[self.column :].startswith(self.old), self
        lines[self.line - 1] = line[: self.column] + self.new + line[self.column + len(self.old) :]
        return "".join(lines)

    def diff(self, text: str) -> str:
        pair = text.splitlines(), self.apply(text).splitlines()
        return "\n".join([f"{self.file}, line {self.line}", *list(difflib.unified_diff(*pair, n=0, lineterm=""))[3:]])


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
        name = path.relative_to(package).as_posix()
        if not name.startswith(LEFT_OUT):
            for change in changes(name, path.read_text()):
                by_line.setdefault((name, change.line), []).append(change)
    return by_line


def changes(name: str, text: str) -> Iterator[Change]:
    """All of one file."""
    lines = text.splitlines()
    for node in _code(ast.parse(text)):
        for line, column, old, news in _of_node(node, lines):
            if lines[line - 1].isascii():  # columns of ast count bytes
                for new in news:
                    yield Change(name, line, column, old, new)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those of annotations, messages, types and lists of names."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list"} or isinstance(node, ast.Raise | ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _says_or_types(child):
                yield from _code(child)


def _says_or_types(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__"
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):  # a type or another
        return any(re.fullmatch(r"None|[\w.]*\b([A-Z][a-z]\w*|int|str|bool|float)(\[.*\])?", ast.unparse(side))
                   for side in (node.left, node.right))  # fmt: skip
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return called.startswith(("warnings.", "_log.")) or called in {"TypeVar", "cast"}


def _of_node(node: ast.AST, lines: list[str]) -> Iterator[_Place]:
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield from _between(node.left, node.op, node.right, lines)
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        yield from _between(node.target, node.op, node.value, lines)
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(left, node.op, right, lines)
    elif isinstance(node, ast.Compare):
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            yield from _between(left, op, right, lines)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        old = {ast.USub: "-", ast.Not: "not ", ast.Invert: "~"}[type(node.op)]
        yield node.lineno, node.col_offset, old, ("+" if old == "-" else "",)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        test = node.test
        if test.lineno == test.end_lineno and isinstance(test, ast.Name | ast.Call | ast.Attribute):
            yield test.lineno, test.col_offset, "", ("not ",)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        old = lines[node.lineno - 1][node.col_offset : node.end_col_offset]
        yield node.lineno, node.col_offset, old, _other_constants(node.value)


def _other_constants(value: float | bool) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (str(not value),)
    if isinstance(value, int):
        return (str(value + 1), str(value - 1)) if value > 0 else (str(value + 1),)
    return (repr(value * 1.5),) if 0.0 < value < float("inf") else ("1.0",)


def _between(left: ast.AST, op: ast.AST, right: ast.AST, lines: list[str]) -> Iterator[_Place]:
    """The one place of an operator between its operands."""
    old, news = OPERATORS[type(op)]
    for line in range(left.end_lineno, right.lineno + 1):
        start = left.end_col_offset if line == left.end_lineno else 0
        end = right.col_offset if line == right.lineno else None
        at = lines[line - 1][start:end].split("#")[0].find(old)
        if at >= 0:
            yield line, start + at, old, news
            return
