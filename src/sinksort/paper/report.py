"""The report: every figure and table, the paper's numbers beside ours, as one HTML page and as Markdown.

Everything is made from the raw results (see ``results``), so that the report can be built again from what is committed.
"""

from __future__ import annotations

from pathlib import Path

from . import sections
from .cifar import NETWORKS
from .experiments import EXPERIMENTS
from .figures import FIGURES
from .pages import Section, as_png, markdown, page
from .results import collect, read
from .store import write_atomic

TITLE = "Differentiable ranks and sorting using optimal transport, reproduced"


def build(out: Path, to: Path) -> list[Path]:
    """Collect what is finished below ``out`` into ``to/raw``, and write ``README.md``, ``report.html`` and pictures."""
    raw = to / "raw"
    written = collect(out, raw)
    if not written and not any(raw.glob("*.jsonl")):
        raise FileNotFoundError(
            f"there are no finished runs in {out} and none in {raw}, so there is nothing to report. "
            "Run an experiment first, with: sinksort reproduce NAME"
        )
    parts = _sections(raw)
    intro = (
        "Numbers are computed from the raw results in `raw/` (one line a run: settings, measurements by epoch, "
        "machine, versions, times). Build this page again with `sinksort report`; run an experiment with "
        "`sinksort reproduce NAME`."
    )
    for part in parts:
        for name, figure in part.pictures.items():
            write_atomic(to / f"{name}.png", as_png(figure))
            written.append(to / f"{name}.png")
    write_atomic(to / "README.md", markdown(TITLE, intro, parts).encode())
    write_atomic(to / "report.html", page(TITLE, intro, parts).encode())
    return [*written, to / "README.md", to / "report.html"]


def _sections(raw: Path) -> list[Section]:
    drawn = Section("Figures 1 to 3", pictures={name: draw() for name, (_, draw) in FIGURES.items()})
    drawn.text = [
        "Sorting as transport; ranks and sorted values as eps grows; a quantile as what lands on a filler target."
    ]
    parts = [drawn]
    for name, experiment in EXPERIMENTS.items():
        units = list(read(raw / f"{name}.jsonl"))
        title = f"{experiment.title} ({experiment.shows})"
        if not units:
            parts.append(Section(title, [f"Not run. To run it: `sinksort reproduce {name}`, then `sinksort report`."]))
        elif name == "quantile-regression":
            parts.append(sections.quantile_regression(units))
        elif name == "mnist-sort":
            parts.append(sections.mnist_sort(units))
        else:
            small = units[0]["case"] not in NETWORKS
            title = f"0/1 loss on {units[0]['case']} ({experiment.shows}, in small)" if small else title
            parts.append(sections.classification(title, units))
    return parts
