"""What was measured, as Markdown and as log-log plots."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peers import PEERS

from .cells import Cell

HARD = {"quantile": "torch.quantile", "topk": "torch.topk"}  #: of other tasks: torch.sort
KNOBS = {peer.name: peer.knob.name for peer in PEERS if peer.knob is not None}
KINDS = {peer.name: peer.kind for peer in PEERS}
COMPILED = {peer.name for peer in PEERS if peer.jax}
GRAPH = "sinksort (CUDA graph)"
Entry = dict[str, Any]  # a cell at an eps: {"cell", "eps", "records"}

HOW = """\
Standard normal values, in float32 unless the cell says otherwise. A round times every contestant of a cell once, in
random order, each in a process of its own with the same number of threads; a sample lasts at least 10 ms in as many
calls as that takes, after as many that are not counted, and on a GPU ends when the device has finished. What is
compiled or tuned is so before. Times are medians in milliseconds (with the quartiles), forward alone and forward plus
backward. A pass may take {limit:g} s; who needs more, or {memory}, is listed so, and not tried in larger cells.

*Softness.* The paper's method and OTT pose our problem, with the same eps, as does the *ot* of SoftTorch and SoftJAX
for ranks. Every other peer's parameter is tuned by bisection on about a thousand values to be as soft as sinksort at
that eps, and extrapolated by its scaling law where n is larger; the table says what was used and how soft it is in the
cell itself. Softness is for ranks the mean absolute difference from hard ranks over n, for sorted values the same over
the spread of the row, for permutations the part of a row that is not at the right value, for top-k masks the mass that
is not where the hard mask has it over k, for quantiles the share of the values that the gradient is spread over. Losses
and other options are tuned as ranks, payloads as sorts. Not every relaxation can be tuned to that: the median of a long
row by isotonic projection is nearly hard or nearly the mean, with little between, and a SoftSort has one value whose
gradient outweighs the others.

*Error* of the answer (of a rank over n, of a quantile over the spread of its row, of a mask as it is) and of the
gradient (relative, the worst row), against the same problem solved in float64; for other relaxations against the same
call in float64, on the first rows. n/a where a library has no such call. sinksort is timed only where all its rows are
within 1e-5 and 1e-3, or 1e-8 and 1e-5 in float64. Weights and eps that are learned depend on the values, so that
gradients go through them too.

*Memory* is the growth at the worst moment of forward plus backward, and over the input: on a CPU the resident size of
the process (which the kernel knows to some hundred kB, so that it is compared from 1 MB of input on), on a GPU what the
allocator of torch or the plan of XLA says.
"""


def table(entries: list[Entry], about: dict[str, str], settings: dict[str, Any]) -> str:
    """The whole page."""
    memory = f"more than {settings['memory'] / 1e9:.0f} GB" if settings["memory"] else "more memory than there is"
    how = HOW.format(limit=settings["limit"], memory=memory)
    lines = ["# sinksort and its peers", "", f"`{settings['command']}`", "", how]
    lines += [f"- {name}: {what}" for name, what in about.items()]
    versions = _versions(entries)
    lines += [f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}"]
    absent = settings["missing"]
    lines += [f"- not taking part: {', '.join(f'{name}: {why}' for name, why in absent.items())}"] if absent else []
    done = {entry["cell"] for entry in entries}
    undone = [Cell.parse(key).title for key in settings.get("cells", ()) if key not in done]
    lines += [f"- not measured yet: {', '.join(undone)}"] if undone else []
    if any(record.get("earlier") for entry in entries for record in entry["records"].values()):
        lines += ["- \\* was measured in an earlier run on the same kind of machine"]
    for eps in sorted({entry["eps"] for entry in entries}, reverse=True):
        chosen = [entry for entry in entries if entry["eps"] == eps]
        lines += ["", f"## eps = {eps:g}: forward plus backward", "", *_summary(chosen)]
    for entry in entries:
        cell = Cell.parse(entry["cell"])
        lines += ["", f"### {cell.title}, eps = {entry['eps']:g}", "", *_details(cell, entry["records"])]
    return "\n".join(lines) + "\n"


def _summary(entries: list[Entry]) -> list[str]:
    """One line a cell.

    On a GPU small cells cost what Python costs: there, programs compiled by XLA are compared with a CUDA graph of ours,
    and what is called from Python with what is called from Python.
    """
    recorded = any(GRAPH in entry["records"] for entry in entries)
    heads = ["", "hard", "sinksort", "over hard", "best peer in Python" if recorded else "best peer", "over best peer"]
    heads += ["sinksort, CUDA graph", "best peer of all", "over that"] if recorded else []
    heads += ["paper's method", "OTT (unrolled)"]
    lines = [_line(heads), _line(["---"] * len(heads)).replace(" ", "")]
    for entry in entries:
        cell, records = Cell.parse(entry["cell"]), entry["records"]
        ours, hard = median(records.get("sinksort")), median(records.get("hard"))
        name, best = best_peer({n: r for n, r in records.items() if not (recorded and n in COMPILED)})
        columns = [
            cell.title + _star(records.get("sinksort")),
            f"{milliseconds(hard)} `{HARD.get(cell.task, 'torch.sort')}`" if hard else "",
            milliseconds(ours) if ours else _why(records.get("sinksort")),
            _ratio(ours, hard),
            f"{milliseconds(best)} {name}" if best else "none",
            _ratio(ours, best),
        ]
        if recorded:
            graph = median(records.get(GRAPH))
            name, best = best_peer(records)
            columns += [_or_why(records.get(GRAPH)), f"{milliseconds(best)} {name}" if best else "none"]
            columns += [_ratio(graph, best)]
        others = [records.get(other) for other in ("paper's method", "OTT (unrolled)")]
        columns += [_or_why(other) + _star(other) for other in others]
        lines.append(_line(columns))
    return lines


def _line(columns: list[str]) -> str:
    return f"| {' | '.join(columns)} |"


def _details(cell: Cell, records: dict[str, Entry]) -> list[str]:
    lines = [
        "| | forward | forward + backward | memory | parameter | softness | error | gradient error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    unable = []
    for name, record in sorted(records.items(), key=lambda item: median(item[1]) or math.inf):
        if record["status"] not in ("ok", "forward only"):
            unable.append(f"{_shown(name, cell, record)}: {record['status']}")
            continue
        off = [f"{value:.0e}" for value in record.get("errors", [])] or ["n/a", "n/a"]
        floor = KINDS.get(name) == "floor"
        columns = [
            _shown(name, cell, record),
            spread(record, "forward"),
            spread(record, "both") or record.get("backward", ""),
            _memory(cell, record),
            "" if record.get("parameter") is None else f"{KNOBS.get(name, 'eps')} {record['parameter']:.3g}",
            f"{record['softness']:.2g}" if "softness" in record else "",
            *(["", ""] if floor else off),
        ]
        lines.append("| " + " | ".join(columns) + " |")
    return [*lines, "", "; ".join(unable) + "."] if unable else lines


def median(record: Entry | None, what: str = "both") -> float | None:
    """Seconds; None when there is no time, for whatever reason."""
    if record is None or record["status"] not in ("ok", "forward only"):
        return None
    found = record.get("seconds", {}).get(what)
    return statistics.median(found) if found else None


def best_peer(records: dict[str, Entry]) -> tuple[str, float | None]:
    """The fastest of those that are neither ours nor floors, with a gradient that is finite."""
    timed = {name: median(record) for name, record in records.items() if KINDS.get(name, "peer") in ("peer", "paper")}
    finite = {name: value for name, value in timed.items() if value is not None}
    name = min(finite, key=finite.__getitem__, default="")
    return name, finite.get(name)


def spread(record: Entry, what: str) -> str:
    found = record.get("seconds", {}).get(what, [])
    if not found:
        return ""
    low, _, high = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return f"{milliseconds(statistics.median(found))} ({milliseconds(low)} to {milliseconds(high)})"


def milliseconds(value: float | None) -> str:
    """Three digits that mean something."""
    if value is None:
        return ""
    ms = 1e3 * value
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"


def _ratio(ours: float | None, other: float | None) -> str:
    return f"{ours / other:.2f}" if ours and other else ""


def _why(record: Entry | None) -> str:
    return "" if record is None else record.get("backward") or str(record["status"])


def _or_why(record: Entry | None) -> str:
    return milliseconds(median(record)) or _why(record)


def _shown(name: str, cell: Cell, record: Entry) -> str:
    return (f"`{HARD.get(cell.task, 'torch.sort')}`" if name == "hard" else name) + _star(record)


def _star(record: Entry | None) -> str:
    return " \\*" if record and record.get("earlier") else ""


def _memory(cell: Cell, record: Entry) -> str:
    peak = record.get("peak")
    if peak is None:
        return ""
    size = f"{peak / 1e9:.1f} GB" if peak >= 1e9 else f"{peak / 1e6:.1f} MB"
    return f"{size}, {peak / cell.size:.1f} times" if cell.size >= 2**20 or peak >= 2**24 else size


def _versions(entries: Iterable[Entry]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in entries:
        for name, record in entry["records"].items():
            if record.get("version") and KINDS.get(name) == "peer":
                found[name.split(" (")[0].split(" ")[0]] = record["version"]
    return found


def plot(entries: list[Entry], path: Path) -> None:
    """Time of a soft rank, forward plus backward, against n: single rows and batches of 128, for each eps."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    levels = sorted({entry["eps"] for entry in entries}, reverse=True)
    batches = [(1, "one row"), (128, "128 rows")]
    size = (11, 4.2 * len(levels))
    fig, axes = plt.subplots(len(levels), len(batches), figsize=size, sharey=True, squeeze=False, layout="constrained")
    names = [peer.name for peer in PEERS]
    for row, eps in zip(axes, levels, strict=True):
        for ax, (batch, title) in zip(row, batches, strict=True):
            for number, name in enumerate(names):
                points = _points(entries, name, eps, batch)
                if points:
                    ax.loglog(*zip(*points, strict=True), **_style(name, number))
            ax.set(title=f"{title}, eps = {eps:g}", xlabel="n")
            ax.grid(alpha=0.3)
        row[0].set_ylabel("milliseconds, forward + backward")
    handles = {label: line for ax in fig.axes for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    fig.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize="small")
    fig.savefig(path, dpi=130)
    plt.close(fig)


def _points(entries: list[Entry], name: str, eps: float, batch: int) -> list[tuple[int, float]]:
    found = []
    for entry in entries:
        cell = Cell.parse(entry["cell"])
        value = median(entry["records"].get(name))
        if cell.task == "rank" and cell.batch == batch and entry["eps"] == eps and value is not None:
            found.append((cell.n, 1e3 * value))
    return sorted(found)


def _style(name: str, number: int) -> dict[str, Any]:
    """Ours in front, floors in black, the others in colours that repeat with another marker."""
    label = "torch.sort" if name == "hard" else name
    if KINDS[name] == "floor":
        return {"color": "black", "linestyle": "--" if name == "hard" else ":", "label": label}
    if KINDS[name] == "ours":
        return {"color": "C3", "marker": "o*s"[number % 3], "linewidth": 2.5, "zorder": 3, "label": label}
    colors = [f"C{i}" for i in range(10) if i != 3]
    marker = "v^<>xD"[(number // len(colors)) % 6]
    return {"color": colors[number % len(colors)], "marker": marker, "markersize": 4, "linewidth": 1, "label": label}
