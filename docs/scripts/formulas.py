"""Formulas in TeX, between dollar signs, become MathML when the site is built: every browser shows it by itself."""

from __future__ import annotations

import html
import re

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
