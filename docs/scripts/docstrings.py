"""Docstrings as the site shows them: examples and tables become Markdown, ``#:`` comments become descriptions.

A griffe extension; mkdocstrings calls it for every object of the package. Docstrings of functions and classes are those
of the imported package, whose operators list the options that they share (``sinksort.core.options``).
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe
from public import linked

#: The rooms whose docstrings are completed when they are imported.
COMPLETED = tuple(f"sinksort.{room}." for room in ("core", "operators", "losses", "nn", "distributed", "streaming"))
RULE = re.compile(r"^=+( +=+)+$")


class ReadableDocstrings(griffe.Extension):
    """See the module."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = completed(obj)
            obj.docstring.value = readable(obj.docstring.value)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and (said := comment(attr)):
            attr.docstring = griffe.Docstring(linked(said), parent=attr)


def completed(obj: griffe.Object) -> str:
    """The docstring of a function, a class or a method as ``help`` shows it."""
    written = obj.docstring.value if obj.docstring is not None else ""
    if not (obj.is_function or obj.is_class) or not obj.path.startswith(COMPLETED):
        return written
    thing: Any = importlib.import_module(obj.module.path)
    for name in obj.path.removeprefix(f"{obj.module.path}.").split("."):
        thing = getattr(thing, name, None)
    return inspect.getdoc(thing) or written


def readable(text: str) -> str:
    """``text`` with tables, lists of arguments and ``>>>`` examples as Markdown, and public names linked."""
    return linked(fenced_examples(listed_arguments(piped_tables(text))))


def listed_arguments(text: str) -> str:
    """``Args:`` as a list, ``Returns:`` as a paragraph. An entry may name several arguments, and fill several lines."""
    out: list[str] = []
    section = ""
    for line in text.split("\n"):
        if line.strip() in ("Args:", "Returns:"):
            section = line.strip()
            out += ["**Arguments**" if section == "Args:" else "**Returns**", ""]
        elif section and line.startswith("    "):
            goes_on = section == "Returns:" or line.startswith("     ")
            if goes_on and out[-1]:
                out[-1] += f" {line.strip()}"
            else:
                out.append(line.strip() if goes_on else f"* {line.strip()}")
        else:
            section = section if not line.strip() else ""
            out.append(line)
    return "\n".join(re.sub(r"^\* ([^:`]+):", _named, line) for line in out)


def _named(match: re.Match[str]) -> str:
    return "* " + ", ".join(f"`{name.strip()}`" for name in match[1].split(",")) + ":"


def fenced_examples(text: str) -> str:
    """Each ``>>>`` example, up to the next empty line, in a fence of its own."""
    out: list[str] = []
    inside = ""
    for line in text.split("\n"):
        if not inside and line.lstrip().startswith(">>> "):
            inside = line[: len(line) - len(line.lstrip())] + "```"
            out.append(inside + "pycon")
        elif inside and not line.strip():
            out.append(inside)
            inside = ""
        out.append(line)
    return "\n".join([*out, inside] if inside else out)


def piped_tables(text: str) -> str:
    """Tables that are ruled by ``=`` signs, with bars instead. A table of two rules has no heading."""
    out: list[str] = []
    lines = text.split("\n")
    while lines:
        if not RULE.match(lines[0]):
            out.append(lines.pop(0))
            continue
        starts = [match.start() for match in re.finditer(r"=+", lines.pop(0))]
        parts: list[list[str]] = [[]]
        while parts[-1] or len(parts) == 1 or lines:
            if not lines or not lines[0].strip():
                break
            line = lines.pop(0)
            if RULE.match(line):
                parts.append([])
            else:
                parts[-1].append(line)
        parts = [part for part in parts if part]
        head, body = (parts[0], parts[1]) if len(parts) > 1 else ([" "], parts[0])
        rows = [_cells(line, starts) for line in [*head, *body]]
        merged = [rows[0]]
        for row in rows[1:]:
            if row[0]:
                merged.append(row)
            else:  # a line that goes on
                merged[-1] = [f"{old} {new}".strip() for old, new in zip(merged[-1], row, strict=True)]
        out += ["| " + " | ".join(merged[0]) + " |", "|" + "---|" * len(starts)]
        out += ["| " + " | ".join(row) + " |" for row in merged[1:]]
    return "\n".join(out)


def _cells(line: str, starts: list[int]) -> list[str]:
    return [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]


def comment(attribute: griffe.Attribute) -> str:
    """What ``#:`` says on the line of an attribute, or on the lines before it."""
    if attribute.lineno is None or not attribute.lines:
        return ""
    first = attribute.lines[0].partition("#: ")[2]
    if first:
        return first
    above: list[str] = []
    source = attribute.parent.module.source.split("\n") if attribute.parent else []
    at = attribute.lineno - 2
    while 0 <= at < len(source) and source[at].strip().startswith("#: "):
        above.insert(0, source[at].strip()[3:])
        at -= 1
    return " ".join(above)
