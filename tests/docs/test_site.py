"""The built site: strict, whole, and at home without a network."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import griffe
import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs/scripts"))

import docstrings  # noqa: E402
import formulas  # noqa: E402
import hooks  # noqa: E402
import public  # noqa: E402
from mkdocs.exceptions import PluginError  # noqa: E402


class Links(HTMLParser):
    """Identifiers, links, and what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.identifiers: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        has = {name: value for name, value in attributes if value is not None}
        if "id" in has:
            self.identifiers.add(has["id"])
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
        if "src" in has:
            self.loaded.append(has["src"])
        if tag == "link" and "href" in has and has.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(has["href"])


@functools.cache
def read(page: Path) -> Links:
    parser = Links()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def broken(site: Path) -> list[str]:
    """Links and resources that lead nowhere, anchors included."""
    pages = {page: read(page) for page in site.rglob("*.html") if page.name not in ("404.html", "report.html")}
    wrong = []
    for page, found in pages.items():
        for link in found.links + found.loaded:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            lost = parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].identifiers
            if not target.exists() or (lost and not parts.fragment.startswith("__")):
                wrong.append(f"{page.relative_to(site)}: {link}")
    return wrong


def from_elsewhere(site: Path) -> list[str]:
    """Scripts, styles, fonts and pictures that a browser would fetch from the network."""
    pages = {page: read(page).loaded for page in site.rglob("*.html")}
    outside = [f"{page.name}: {link}" for page, loaded in pages.items() for link in loaded if "//" in link[:8]]
    styles = [(sheet, sheet.read_text(encoding="utf-8")) for sheet in site.rglob("*.css")]
    return outside + [
        f"{sheet.name}: {link}" for sheet, text in styles for link in re.findall(r"url\(['\"]?(https?:[^)]+)", text)
    ]


def without_entry(site: Path) -> list[str]:
    """Public names that the API reference does not show."""
    identifiers = set().union(*(read(page).identifiers for page in (site / "reference").glob("*.html")))
    names = [f"{module}.{name}" for module, names in public.modules().items() for name in names]
    assert len(names) > 80
    return [name for name in names if name not in identifiers]


def test_site_is_whole(tmp_path):
    """One strict build, then everything that can be asked of it."""
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert broken(site) == []
    assert from_elsewhere(site) == []
    assert without_entry(site) == []
    mathematics = (site / "mathematics.html").read_text(encoding="utf-8")
    assert mathematics.count("<math") > 40
    assert "arithmatex" not in mathematics
    for page in ("benchmarks/linear_time.html", "notebooks/1-operators.html", "results/index.html", "playground.html"):
        assert (site / page).is_file()
    assert 'name="viewport"' in mathematics


def test_titles_in_the_menu_of_results_differ():
    """A page without a title of its own in the menu has its heading there."""
    pages = sorted((ROOT / "benchmarks/results").glob("*.md"))
    headings = {page.stem: page.read_text(encoding="utf-8").split("\n")[0] for page in pages}
    shown = [hooks.IN_THE_MENU.get(name, heading) for name, heading in headings.items()]
    assert len(set(shown)) == len(shown)
    assert set(hooks.IN_THE_MENU) <= set(headings)


def test_a_wide_table_has_a_page_without_side_bars():
    assert not hooks.wide("| a | b |\n|---|---|\n| 1 | 2 |")
    assert hooks.wide("text\n" + "|a" * 8 + "|")
    assert hooks.wide(f"| {'word ' * 60} |")
    assert not hooks.wide("word " * 100)


def test_warnings_fail_the_build():
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), yaml.BaseLoader)
    assert settings["strict"] == "true"
    assert set(settings["validation"]["links"].values()) == {"warn"}
    assert set(settings["validation"]["nav"].values()) == {"warn"}


def test_public_name_without_docstring_fails_the_build(monkeypatch):
    bare = griffe.visit("sinksort", Path("sinksort.py"), '__all__ = ["bare"]\ndef bare(): ...\ndef _own(): ...\n')
    assert public.undocumented(public.package()) == []
    monkeypatch.setattr(public, "package", lambda: bare)
    with pytest.raises(PluginError, match=r"public names without a docstring: sinksort\.bare$"):
        hooks.on_config(None)


# ---- what becomes of docstrings and pages


def test_examples_are_fenced():
    assert docstrings.fenced_examples("A.\n\n>>> f(1)\n2\n\nB.") == "A.\n\n```pycon\n>>> f(1)\n2\n```\n\nB."


def test_arguments_become_a_list():
    text = "A.\n\nArgs:\n    low, high: both\n        in [0, 1].\n    q: level.\n\nB."
    assert docstrings.listed_arguments(text) == (
        "A.\n\n**Arguments**\n\n* `low`, `high`: both in [0, 1].\n* `q`: level.\n\nB."
    )


def test_ruled_tables_become_piped_ones():
    text = "====  =====\nname  value\n====  =====\na     one\n      more\nb     two\n====  =====\n\nend"
    assert docstrings.piped_tables(text) == "| name | value |\n|---|---|\n| a | one more |\n| b | two |\n\nend"


def test_public_names_become_links_and_others_do_not():
    assert public.linked("use `soft_rank(x)`") == "use [`soft_rank(x)`][sinksort.soft_rank]"
    assert public.linked("`Plan.ranks`") == "[`Plan.ranks`][sinksort.Plan.ranks]"
    for as_it_is in ("`eps`", "`rank`", "[`soft_rank`](page.md)", "# `soft_rank`", "```\n`soft_rank`\n```"):
        assert public.linked(as_it_is) == as_it_is


@pytest.mark.parametrize(
    ("written", "built"),
    [
        ("[a](../benchmarks/results/versus_cpu.md)", "[a](benchmarks/versus_cpu.md)"),
        ("[a](../../benchmarks/results/kinds_h200.md#b)", "[a](../benchmarks/kinds_h200.md#b)"),
        ("[a](../notebooks/1-operators.ipynb)", "[a](../notebooks/1-operators.md)"),
        ("[a](../src/sinksort/core/options.py)", "[a](reference/sinksort.md#options)"),
        ("[a](eps.md)", "[a](eps.md)"),
    ],
)
def test_links_to_files_become_links_to_pages(written, built):
    assert public.on_the_site(written) == built


def test_formulas_become_mathml():
    page = formulas.as_mathml(r'<p><span class="arithmatex">\(a &lt; b\)</span></p>')
    assert page.startswith("<p><math")
    assert "<mi>a</mi>" in page
    assert "&#x0003C;" in page or "&lt;" in page
