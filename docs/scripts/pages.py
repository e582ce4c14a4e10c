"""The Python of the documentation: its blocks are found, run in order, one namespace a page, and asked for pictures.

A block that is followed by a ``text`` fence prints exactly that; one that is followed by an image leaves the picture in
the variable ``figure``.

python docs/scripts/pages.py docs/quickstart.md  run a page, and write what its blocks print into it
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler

from sinksort.plot.style import look

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n"
    r"(?:^```text\n(?P<output>.*?)^```\n)?"
    r"(?:\n*!\[[^]]*\]\((?P<picture>[^)]+\.png)\))?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    code: str
    output: str | None  #: what it is said to print, if anything is said
    picture: Path | None  #: what it is said to draw


def pages() -> list[Path]:
    """The README and the pages of the site."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The Python blocks of a page."""
    found = []
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        picture = page.parent / match["picture"] if match["picture"] else None
        drawn = picture is not None and "figure" in match["code"]
        found.append(Block(match["code"], match["output"], picture.resolve() if picture and drawn else None))
    return found


def run(page: Path, drawn: Callable[[Path, Any], None] = lambda _path, _figure: None) -> list[tuple[str, str | None]]:
    """(printed, said) for each block; ``drawn`` is handed every picture."""
    mpl.use("Agg")
    namespace: dict[str, Any] = {"__name__": page.stem}
    told = []
    with page_look():
        for block in blocks(page):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block.code, page.name, "exec", dont_inherit=True), namespace)
            told.append((printed.getvalue(), block.output))
            if block.picture is not None:
                drawn(block.picture, namespace["figure"])
    return told


@contextlib.contextmanager
def page_look() -> Any:
    """The look of all figures; lines that differ in colour differ in their dashes too."""
    colors = ["#24478f", "#c8553d", "#1d7f93", "#b08a1e", "#1f2430"]
    dashes = ["-", "--", "-.", ":", (0, (5, 1))]
    lines = cycler(color=colors) + cycler(linestyle=dashes)
    with look(), mpl.rc_context({"axes.prop_cycle": lines, "figure.constrained_layout.use": True}):
        yield


def update(page: Path) -> None:
    """Write what the blocks print into the ``text`` fences that follow them."""
    printed = iter([told for told, _ in run(page)])

    def filled(match: re.Match[str]) -> str:
        output = next(printed)
        if match["output"] is None:
            return match[0]
        return match[0].replace(f"```\n```text\n{match['output']}```", f"```\n```text\n{output}```")

    page.write_text(BLOCK.sub(filled, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        update(Path(name).resolve())
