"""Formulas in TeX, between dollar signs, become MathML when the site is built: every browser shows it by itself.

What some machines lack is a font with tall brackets and large sums. STIX Two Math comes with the package ziamath; the
letters and signs that formulas need are cut out of it and travel with the site.
"""

from __future__ import annotations

import html
import io
import re
from importlib.resources import files

from fontTools import subset
from latex2mathml.converter import convert

#: What the Markdown extension arithmatex makes of them.
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def as_mathml(page: str) -> str:
    """HTML with every formula as MathML."""
    page = BLOCK.sub(lambda m: f'<div class="formula">{_mathml(m[1], "block")}</div>', page)
    return INLINE.sub(lambda m: _mathml(m[1], "inline"), page)


def _mathml(tex: str, display: str) -> str:
    return convert(html.unescape(tex).strip(), display=display)


def font() -> bytes:
    """The part of STIX Two Math that holds Latin and Greek, upright and italic, and the signs of formulas."""
    options = subset.Options(flavor="woff", notdef_outline=True, drop_tables=["DSIG"])
    letters = [(0x20, 0x7E), (0x391, 0x3C9), (0x210E, 0x210E), (0x1D434, 0x1D467), (0x1D6E2, 0x1D71B)]
    signs = [(0xAF, 0xB7), (0xD7, 0xD7), (0x2C9, 0x2DC), (0x303, 0x304), (0x2026, 0x2026), (0x2190, 0x21A6)]
    operators = [(0x2200, 0x22EF), (0x27E8, 0x27E9)]
    needed = [code for first, last in letters + signs + operators for code in range(first, last + 1)]
    source = subset.load_font(str(files("ziamath") / "fonts/STIXTwoMath-Regular.ttf"), options)
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=needed)
    cutter.subset(source)
    out = io.BytesIO()
    subset.save_font(source, out, options)
    return out.getvalue()
