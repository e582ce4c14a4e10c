"""Draw the figures of the documentation.

python docs/scripts/figures.py              all of them, about a minute
python docs/scripts/figures.py idea eps.md  only these: names of drawings, or pages whose code draws
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import drawings
import pages
from matplotlib.figure import Figure
from PIL import Image

IMAGES = pages.ROOT / "docs/images"


def png(figure: Figure) -> bytes:
    """A small file: 96 colours are enough for ink on paper."""
    raw, small = io.BytesIO(), io.BytesIO()
    with pages.page_look():
        figure.savefig(raw, dpi=130, facecolor="white")
    Image.open(raw).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def write(path: Path, figure: Figure) -> None:
    path.write_bytes(png(figure))
    print(f"{path.relative_to(pages.ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def main(names: list[str]) -> None:
    for name, draw in drawings.DRAWINGS.items():
        if not names or name in names:
            with pages.page_look():
                write(IMAGES / f"{name}.png", draw())
    for page in pages.pages():
        if any(block.picture for block in pages.blocks(page)) and (not names or page.name in names):
            pages.run(page, write)


if __name__ == "__main__":
    main(sys.argv[1:])
