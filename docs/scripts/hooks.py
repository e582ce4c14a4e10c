"""What happens when MkDocs builds the site, beyond Markdown.

* pages that are made from something else: the API reference, the notebooks, the benchmarks;
* code spans that name something public become links, formulas become MathML;
* a public name without a docstring fails the build.
"""

from __future__ import annotations

import re
from pathlib import Path

import docstrings
import formulas
import notebooks
import public
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from sinksort.core.options import OPTIONS

DOCS = Path(__file__).resolve().parents[1]
BENCHMARKS = DOCS.parent / "benchmarks/results"

#: Titles of result pages in the menu, where headings repeat.
IN_THE_MENU = {
    "versus_cpu": "Other libraries, on the CPU, earlier",
    "versus_h200": "Other libraries, on an H200",
    "versus_zen5": "Other libraries, on the CPU",
    "kinds_h200": "Rows of many kinds, on an H200",
    "kinds_zen5": "Rows of many kinds, on the CPU",
}
#: Tables with more bars, or with longer rows, stand on a page without side bars.
MOST_BARS, LONGEST_ROW = 7, 250

#: Sections of the page of ``sinksort`` itself, by the module in which a name is defined.
SECTIONS = {
    "operators": "Operators",
    "kantorovich": "Exact operators",
    "plan": "Plans",
    "smooth": "Plans",
    "solvers": "Solvers",
    "costs": "Costs",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages that are not written by hand, and new ones in the folder of guides, take their places in the menu."""
    if missing := public.undocumented(public.package()):
        raise PluginError(f"public names without a docstring: {', '.join(missing)}")
    guides = section(config, "Guides")
    listed = {page for entry in guides for page in (entry.values() if isinstance(entry, dict) else [entry])}
    written = sorted(f"guides/{path.name}" for path in (DOCS / "guides").glob("*.md"))
    guides += [page for page in written if page not in listed]
    section(config, "Tutorials").extend(f"notebooks/{path.stem}.md" for path in tutorials())
    results = [(path.stem, f"benchmarks/{path.name}") for path in sorted(BENCHMARKS.glob("*.md"))]
    section(config, "Results").extend(
        {IN_THE_MENU[name]: page} if name in IN_THE_MENU else page for name, page in results
    )
    section(config, "API").extend(f"reference/{module}.md" for module in public.modules())
    section(config, "API").append("reference/internals.md")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The generated pages and their pictures."""
    pages: dict[str, str | bytes] = {"reference/internals.md": internals(), "formulas.woff": formulas.font()}
    for module in public.modules():
        pages[f"reference/{module}.md"] = reference(module)
    for path in tutorials():
        text, pictures = notebooks.as_markdown(path)
        pages[f"notebooks/{path.stem}.md"] = text
        pages |= {f"notebooks/{name}": picture for name, picture in pictures.items()}
    for path in BENCHMARKS.iterdir():
        if path.suffix in (".md", ".png"):
            pages[f"benchmarks/{path.name}"] = path.read_bytes() if path.suffix == ".png" else path.read_text("utf-8")
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    if "hide" not in page.meta and wide(markdown):
        page.meta["hide"] = ["navigation", "toc"]
    return markdown if page.file.src_uri.startswith("reference/") else public.linked(public.on_the_site(markdown))


def on_page_content(html: str, **_: object) -> str:
    return formulas.as_mathml(html)


def wide(markdown: str) -> bool:
    """Whether a table needs the room of the bars beside the text, on a screen of 1280 pixels."""
    rows = [line for line in markdown.split("\n") if line.startswith("|")]
    return any(line.count("|") > MOST_BARS or len(line) > LONGEST_ROW for line in rows)


def tutorials() -> list[Path]:
    """In the order in which they are to be read."""
    return sorted((DOCS / "notebooks").glob("*.ipynb"))


def section(config: MkDocsConfig, title: str) -> list[str | dict[str, str]]:
    """The entries of one section of the menu."""
    for entry in config.nav or []:
        if isinstance(entry, dict) and title in entry:
            entries: list[str | dict[str, str]] = entry[title]
            return entries
    raise PluginError(f"mkdocs.yml has no section {title!r} in its nav")


def reference(module: str) -> str:
    """The page of a public module: what it says of itself, a table of its names, and each of them in full."""
    names = public.modules()[module]
    about = "members: false, show_root_full_path: true"
    parts = [f"---\ntitle: {module}\n---", f"::: {module}\n    options: {{{about}, heading_level: 1}}"]
    if module == "sinksort":
        rows = "\n".join(f"| `{name}` | {said.replace('``', '`')} |" for name, said in OPTIONS.items())
        parts.append(
            f"## Options\n\nWhat operators share. Each lists its own.\n\n| option | meaning |\n|---|---|\n{rows}"
        )
    sections: dict[str, list[str]] = {}
    for name in names:
        path = public.package()[f"{module}.{name}".removeprefix("sinksort.")].canonical_path.split(".")
        known = (SECTIONS[part] for part in path if part in SECTIONS)
        title = next(known, "Checks") if module == "sinksort" else "Names"
        sections.setdefault(title, []).append(name)
    for title in [*dict.fromkeys(SECTIONS.values()), "Checks", "Names"]:
        if title in sections:
            rows = "\n".join(f"| [`{name}`][{module}.{name}] | {summary(module, name)} |" for name in sections[title])
            parts.append(f"## {title}\n\n| | |\n|---|---|\n{rows}")
            parts += [f"::: {module}.{name}" for name in sections[title]]
    return "\n\n".join(parts) + "\n"


def internals() -> str:
    """The page of the functions behind the public names."""
    parts = [
        "# Behind the operators",
        "What [the mathematics](../mathematics.md) points to. It is not part of the interface, and may change.",
    ]
    for name in public.INTERNALS:
        part = public.package()[name.removeprefix("sinksort.")]
        members = ", members: false" if part.is_module or part.is_class else ""
        parts.append(f"::: {name}\n    options: {{show_root_full_path: true{members}}}")
    return "\n\n".join(parts) + "\n"


def summary(module: str, name: str) -> str:
    """The first sentence of a docstring, for a table."""
    thing = public.package()[f"{module}.{name}".removeprefix("sinksort.")]
    text = thing.docstring.value if thing.docstring else ""
    if not text and thing.is_attribute:
        text = docstrings.comment(thing.final_target if thing.is_alias else thing)
    return re.sub(r"\s+", " ", text.split("\n\n")[0]).replace("|", "\\|").replace("``", "`")
