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
body { font: 15px/1.55 system-ui, sans-serif; color: var(--ink); max-width: 70rem }
body { margin: 2.5rem auto; padding: 0 1.2rem } p { max-width: 52rem }
h1 { font-size: 1.7rem; line-height: 1.3; margin-bottom: .2rem }
h2 { margin-top: 2.8rem; border-bottom: 1px solid var(--line) }
figure { margin: 1rem 0 1.6rem } figcaption { font-weight: 600; padding: .3rem 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px }
th, td { padding: .22rem .7rem; text-align: right; white-space: nowrap } th { border-bottom: 1.5px solid var(--ink) }
.words { text-align: left } tr > :first-child { padding-left: 0; position: sticky; left: 0; background: #fff }
tbody tr:nth-child(even), tbody tr:nth-child(even) > :first-child { background: var(--soft) }
.under { font-weight: 400; color: var(--muted); max-width: 52rem }
pre { background: var(--soft); padding: .6rem .8rem; font-size: 12.5px; line-height: 1.5 }
img { max-width: 100%; height: auto; margin: .6rem 0 } .scroll { overflow-x: auto } code { background: var(--soft) }
@media (max-width: 700px) {
  body { margin: 1.2rem auto; padding: 0 .8rem } h1 { font-size: 1.35rem } h2 { font-size: 1.2rem; margin-top: 2rem }
  th, td { padding: .2rem .45rem } table { font-size: 12.5px }
  tr > :first-child { white-space: normal; min-width: 5rem }
  img.wide { max-width: none; width: 46rem }  /* to be read by moving it sideways, as tables are */
}
"""
_WIDE = 1.8  # width over height of a picture whose panels stand side by side


@dataclass(frozen=True)
class TableOf:
    """A table: what it shows, its head, its rows. ``**bold**`` stands for emphasis."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Section:
    """A part of the report. Pictures are named, and become files beside the Markdown; each has a caption."""

    title: str
    text: list[str | TableOf] = field(default_factory=list)  #: paragraphs, and tables between them
    tables: list[TableOf] = field(default_factory=list)
    pictures: dict[str, Figure] = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)  #: of the pictures, by name
    commands: list[str] = field(default_factory=list)  #: the command lines that made its runs


def bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text


def beside(*names: str, paper: bool) -> list[str]:
    """Heads of columns, each after one for the paper's number where there is one."""
    return [head for name in names for head in ((f"{name}, paper", name) if paper else (name,))]


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
        parts.append(f"## {section.title}")
        parts += [part if isinstance(part, str) else _markdown_table(part) for part in section.text]
        if section.commands:
            parts.append("\n".join(["```sh", *section.commands, "```"]))
        for name in section.pictures:
            caption = section.captions.get(name, "")
            parts += [f"![{caption or name}]({name}.png)", *([f"*{caption}*"] if caption else [])]
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
        body += [f"<p>{_inline(part)}</p>" if isinstance(part, str) else _html_table(part) for part in section.text]
        if section.commands:
            body.append(f'<pre class="scroll">{html.escape(chr(10).join(section.commands))}</pre>')
        for name, figure in section.pictures.items():
            data = base64.b64encode(as_png(figure)).decode()
            wide, tall = figure.get_size_inches()
            shape = ' class="wide"' if wide > _WIDE * tall else ""
            caption = section.captions.get(name, "")
            under = f'<figcaption class="under">{_inline(caption)}</figcaption>' if caption else ""
            body.append(
                f'<figure><div class="scroll"><img{shape} alt="{html.escape(caption or name)}" '
                f'src="data:image/png;base64,{data}"></div>{under}</figure>'
            )
        body += [_html_table(table) for table in section.tables]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _html_table(table: TableOf) -> str:
    """Words to the left and numbers to the right; a caption stays where it is when a wide table is moved sideways."""
    columns = zip(*table.rows, strict=True) if table.rows else ([] for _ in table.head)
    kinds = [' class="words"' if k == 0 or any(map(_is_text, column)) else "" for k, column in enumerate(columns)]
    head = "".join(f"<th{kind}>{_inline(cell)}</th>" for kind, cell in zip(kinds, table.head, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{kind}>{_inline(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>\n"
        for row in table.rows
    )
    return (
        f'<figure><figcaption>{_inline(table.caption)}</figcaption><div class="scroll"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div></figure>"
    )


def _is_text(cell: str) -> bool:
    """Whether a cell begins with a word rather than with a number.

    >>> [_is_text(cell) for cell in ("eps > 0", "0/1 loss, k = 1", "**0.304 ± 0.004**", "0.44 / **0.35**", "")]
    [True, True, False, False, False]
    """
    return re.search(r"[A-Za-z]{2}", cell) is not None


def _inline(text: str) -> str:
    """Escaped text in which ``**bold**`` and ``code`` in backticks are marked.

    >>> _inline("**a < b** in `c`")
    '<strong>a &lt; b</strong> in <code>c</code>'
    """
    safe = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(text, quote=False))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", safe)
