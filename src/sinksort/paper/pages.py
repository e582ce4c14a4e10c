"""A report as data: sections of text, tables and pictures, written as Markdown and as one self-contained HTML page."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from .style import look

_STYLE = """
:root { --ink: #1f2430; --muted: #6b7280; --line: #d5d9e0; --soft: #f6f7f9 }
body { font: 15px/1.55 system-ui, sans-serif; color: var(--ink); max-width: 62rem }
body { margin: 2.5rem auto; padding: 0 1.2rem }
h1 { font-size: 1.7rem; margin-bottom: .2rem } h2 { margin-top: 2.8rem; border-bottom: 1px solid var(--line) }
table { border-collapse: collapse; margin: 1rem 0 1.6rem; font-variant-numeric: tabular-nums; font-size: 13.5px }
caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { padding: .22rem .7rem; text-align: right; white-space: nowrap } th { border-bottom: 1.5px solid var(--ink) }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
tbody tr:nth-child(even) { background: var(--soft) }
img { max-width: 100%; height: auto; margin: .6rem 0 } .scroll { overflow-x: auto } code { background: var(--soft) }
"""


@dataclass(frozen=True)
class TableOf:
    """A table: what it shows, its head, its rows. ``**bold**`` stands for emphasis."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Section:
    """A part of the report. Pictures are named, and become files beside the Markdown."""

    title: str
    text: list[str] = field(default_factory=list)
    tables: list[TableOf] = field(default_factory=list)
    pictures: dict[str, Figure] = field(default_factory=dict)


def as_png(figure: Figure, dpi: int = 110) -> bytes:
    buffer = io.BytesIO()
    with look():
        figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", pad_inches=0.12)
    return buffer.getvalue()


# ---- Markdown


def markdown(title: str, intro: str, sections: Sequence[Section]) -> str:
    """The report as Markdown; its pictures are expected in ``<name>.png`` beside it."""
    parts = [f"# {title}", intro]
    for section in sections:
        parts += [f"## {section.title}", *section.text]
        parts += [f"![{name}]({name}.png)" for name in section.pictures]
        parts += [_markdown_table(table) for table in section.tables]
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: TableOf) -> str:
    rule = ["---", *("---:" for _ in table.head[1:])]
    lines = ["| " + " | ".join(row) + " |" for row in (table.head, rule, *table.rows)]
    return "\n".join([f"**{table.caption}**", "", *lines])


# ---- HTML


def page(title: str, intro: str, sections: Sequence[Section]) -> str:
    """The report as one HTML page that needs no other file."""
    body = [f"<h1>{html.escape(title)}</h1>", f"<p>{_inline(intro)}</p>"]
    for section in sections:
        body.append(f"<h2>{html.escape(section.title)}</h2>")
        body += [f"<p>{_inline(paragraph)}</p>" for paragraph in section.text]
        for name, figure in section.pictures.items():
            data = base64.b64encode(as_png(figure)).decode()
            body.append(f'<img alt="{html.escape(name)}" src="data:image/png;base64,{data}">')
        body += [_html_table(table) for table in section.tables]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _html_table(table: TableOf) -> str:
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in table.head)
    rows = "".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>\n" for row in table.rows)
    return (
        f'<div class="scroll"><table><caption>{_inline(table.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _inline(text: str) -> str:
    """Escaped text in which ``**bold**`` and ``code`` in backticks are marked.

    >>> _inline("**a < b** in `c`")
    '<strong>a &lt; b</strong> in <code>c</code>'
    """
    safe = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(text, quote=False))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", safe)
