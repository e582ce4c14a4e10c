"""The report: every figure and table, the paper's numbers beside ours, as one HTML page and as Markdown.

Everything is made from the raw results (see ``results``), so that the report can be built again from what is committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from . import iterations_section
from .cifar import NETWORKS
from .classification_section import classification
from .experiments import EXPERIMENTS, SMALL
from .figures import FIGURES
from .pages import Section, as_png, markdown, page
from .results import collect, read
from .sections import quantile_regression
from .sorting_section import mnist_sort
from .store import write_atomic

TITLE = "Differentiable ranks and sorting using optimal transport, reproduced"


_CAPTIONS = (
    "Sorting as transport: the assignment, exact transport to three targets, and entropic transport.",
    (
        "Ten values, their soft ranks and their soft sorted values as eps grows. Entries 0 and 9 are close: their "
        "ranks are almost equal at eps = 0.01."
    ),
    (
        "The 30% quantile of 20 values, as the average of what lands on a filler target. The values are in [0, 1] and "
        "are transported as they are; the paper squashes them."
    ),
)


def build(
    out: Path, to: Path, *, again: str = "sinksort report", first: Sequence[Section] = (), small: bool = False
) -> list[Path]:
    """Collect what is finished below ``out`` into ``to/raw``, and write ``README.md``, ``report.html`` and pictures.

    ``again`` is the command that does it, and ``first`` are sections to begin with. ``small``: the experiments in
    small only, and no word of those that were not run.
    """
    raw = to / "raw"
    written = collect(out, raw)
    if not written and not any(raw.glob("*")):
        with contextlib.suppress(FileNotFoundError):
            to.stat()  # a file in the way of the folder is an error of its own
        raise FileNotFoundError(
            f"there are no finished runs in {out} and none in {raw}, so there is nothing to report. "
            "Run an experiment first, with: sinksort reproduce NAME"
        )
    parts = [*first, *_sections(raw, small)]
    intro = (
        "Numbers are computed from the raw results in `raw/` (one line a run: settings, measurements by epoch, "
        "machine, versions, commit, times). Each section has the commands that make its runs; those of one section "
        "need a folder each (`--out`). Build this page again with `" + again + "`."
    )
    for part in parts:
        for name, figure in part.pictures.items():
            write_atomic(to / f"{name}.png", as_png(figure))
            written.append(to / f"{name}.png")
    write_atomic(to / "README.md", markdown(TITLE, intro, parts).encode())
    write_atomic(to / "report.html", page(TITLE, intro, parts).encode())
    return [*written, to / "README.md", to / "report.html"]


def _sections(raw: Path, small: bool) -> list[Section]:
    drawn = Section("Figures 1 to 3", pictures={name: draw() for name, (_, draw) in FIGURES.items()})
    drawn.captions = dict(zip(drawn.pictures, _CAPTIONS, strict=True))
    drawn.commands = ["sinksort reproduce figures"]
    parts, appendices = [drawn], []
    for name, experiment in EXPERIMENTS.items():
        units = list(read(raw / f"{SMALL.get(name) if small else name}.jsonl"))
        title = f"{experiment.title} ({experiment.shows})"
        if not units and small:
            continue
        if not units:
            parts.append(Section(title, [f"Not run. To run it: `sinksort reproduce {name}`, then `sinksort report`."]))
            continue
        if name == "iterations":
            made = [iterations_section.section(units)]
        elif name == "quantile-regression":
            made = [quantile_regression(units)]
        elif name == "mnist-sort":
            made = mnist_sort(units)
        else:
            title = f"0/1 loss on {units[0]['case']} ({experiment.shows}, in small)" if small else title
            made = classification(title, units, small=small or units[0]["case"] not in NETWORKS)
        parts.append(made[0])
        appendices += made[1:]
    changes = raw / "changes.txt"
    if changes.exists():
        lines = changes.read_text(encoding="utf-8").splitlines()
        appendices.append(
            Section(
                "Changes of the results", ["Runs that were removed, and numbers that are shown in another way.", *lines]
            )
        )
    return parts + appendices
