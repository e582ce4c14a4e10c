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
    letters = [*range(0x20, 0x7F), *range(0x391, 0x3CA), *range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C), 0x210E]
    signs = [ord(sign) for sign in "¯~ˉ˜̃̄·×−…∂∇∈∏∑√∞∫≈≤≥⋅⋯⟨⟩←→↦∘∥∣∞ε"]
    source = subset.load_font(str(files("ziamath") / "fonts/STIXTwoMath-Regular.ttf"), options)
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=[*letters, *signs])
    cutter.subset(source)
    out = io.BytesIO()
    subset.save_font(source, out, options)
    return out.getvalue()
