"""What the report says of iterations: a figure over eps, a table, and what became of the paper's claim."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from .curves import COLOURS, NAMES, called, grid_of, legend, looks_of
from .iterations import KINDS, SOLVERS
from .pages import Section, TableOf
from .results import Unit, groups, provenance, summarise
from .rows import command, mixed_code, tables_of
from .style import look


def section(units: Sequence[Unit]) -> Section:
    said = Section("Iterations of the solvers (the paper's section 3)")
    said.text.append(
        "The paper says that the number of Sinkhorn iterations rarely exceeds 100 with the settings it considers. This "
        "is how many each solver needs, on rows of normal values as long as those of the paper's experiments. The "
        "authors' code shrinks eps from 0.1 by a factor of 0.95 an iteration, a schedule that the paper mentions. "
        "Newton is this library's default solver; each of its iterations solves one linear system of the targets."
    )
    for some in tables_of(units).values():
        made = sorted(some, key=lambda u: (list(KINDS).index(u["case"]), SOLVERS.index(u["method"])))
        eta, rows = made[0]["knobs"]["eta"], made[0]["knobs"]["rows"]
        said.text.append(f"Until the marginal error is below {eta:g}. {' '.join(claims(made))}")
        by_row = groups(made, lambda u: f"{u['case']}, {called(u)}")
        said.text.append(" ".join([provenance(made), *mixed_code(by_row)]))
        said.commands += command(made)
        said.pictures["iterations"] = _picture(made)
        said.captions["iterations"] = (
            f"Iterations until the marginal error is below {eta:g}, against eps: the median of {rows} rows. The shade "
            "is where the middle 80% of the rows are. The vertical line is the eps of the paper's experiment."
        )
        entropies = [point["eps"] for point in made[0]["curve"]]
        table = []
        for kind, of_kind in groups(made, lambda u: u["case"]).items():
            for name, runs in groups(of_kind, called).items():
                cells = [_cell(runs, k) for k in range(len(entropies))]
                table.append([KINDS[kind][2], name, *cells])
        head = ["rows", "solver", *(f"eps = {eps:g}" for eps in entropies)]
        said.tables.append(TableOf("Iterations: median, and what 10% of the rows exceed", head, table))
    return said


def claims(units: Sequence[Unit]) -> list[str]:
    """The claim "rarely exceeds 100", at the eps of each of the paper's experiments."""
    told = []
    for kind, made in groups(units, lambda u: u["case"]).items():
        eps = KINDS[kind][1]
        at = {u["method"]: p for u in made for p in u["curve"] if p["eps"] == eps}
        if not {"sinkhorn", "newton"} <= set(at):
            continue
        share = at["sinkhorn"]["beyond_100"]
        newton = max(at[method]["median"] for method in ("newton", "newton-exact") if method in at)
        told.append(
            f"{KINDS[kind][2]} at eps = {eps:g}: {share:.0%} of the rows need more than 100 Sinkhorn iterations "
            f"(median {at['sinkhorn']['median']:.0f}), Newton at most {newton:g} (median)"
        )
    return [f"{'; '.join(told)}."] if told else []


def _cell(runs: Sequence[Unit], k: int) -> str:
    median, high = (summarise(u["curve"][k][name] for u in runs).mean for name in ("median", "high"))
    return f"{median:.0f}, {high:.0f}"


def _picture(units: Sequence[Unit]) -> Figure:
    by_case, looks = groups(units, lambda u: u["case"]), looks_of(units)
    top = 1.3 * max(point["high"] for unit in units for point in unit["curve"])
    with look():
        figure, panels = grid_of(len(by_case))
        for axes, (case, made) in zip(panels, by_case.items(), strict=True):
            for method in dict.fromkeys(u["method"] for u in made):
                runs = [u for u in made if u["method"] == method]
                eps = [point["eps"] for point in runs[0]["curve"]]
                low, middle, high = (
                    [summarise(u["curve"][k][name] for u in runs).mean for k in range(len(eps))]
                    for name in ("low", "median", "high")
                )
                style = looks[NAMES[method]][1]
                axes.plot(eps, middle, style, color=COLOURS[method], label=NAMES[method], lw=1.6, marker="o", ms=3)
                axes.fill_between(eps, low, high, color=COLOURS[method], alpha=0.15, linewidth=0)
            axes.axvline(KINDS[case][1], color="0.6", lw=0.8, zorder=0)
            axes.set(xscale="log", yscale="log", ylim=(0.8, top), xlabel=r"entropy $\varepsilon$", title=KINDS[case][2])
            axes.set_ylabel("iterations")
            axes.invert_xaxis()
        legend(figure, panels, list(looks))
    return figure
