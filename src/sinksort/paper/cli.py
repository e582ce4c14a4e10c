"""The command line: ``sinksort list | data | reproduce ... | report | demo | explore``.

The options of an experiment are the fields of its dataclass, so every setting of the paper is a visible default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import datasets
from .experiments import EXPERIMENTS, Experiment, reproduce
from .figures import draw_all
from .report import build
from .training import Trained

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Differentiable ranks and sorting by optimal transport: the paper's figures and tables, reproduced.",
)
again = typer.Typer(no_args_is_help=True, help="Reproduce a figure or table of the paper; a killed run resumes.")
app.add_typer(again, name="reproduce")
console = Console()

DataOption = Annotated[
    Path | None, typer.Option(help="Folder of the data sets; default: $SINKSORT_DATA, then ./data.", show_default=False)
]
OutOption = Annotated[Path, typer.Option(help="Folder for results.")]


@app.command("list")
def list_experiments() -> None:
    """What can be reproduced, from which data."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("name", "in the paper", "what", "data", "runs", "epochs"):
        table.add_column(name, justify="right" if name in ("runs", "epochs") else "left", no_wrap=name != "what")
    table.add_row("figures", "Figures 1 to 3", "Operators on a few numbers", "none", "", "")
    for name, experiment in EXPERIMENTS.items():
        knobs = experiment.knobs()
        epochs = str(knobs.epochs) if hasattr(knobs, "learning_rate") else ""  # some experiments train nothing
        data = ", ".join(experiment.data) or "none"
        row = (name, experiment.shows, experiment.title, data, str(knobs.runs), epochs)
        table.add_row(*row)
    console.print(table)
    console.print("\nRun one with: sinksort reproduce NAME (see its options with --help).", highlight=False)


@app.command("data")
def data_sets(
    data: DataOption = None,
    place: Annotated[
        Path | None, typer.Option(help="Copy files found below this folder to their places.", show_default=False)
    ] = None,
    download: Annotated[
        str | None, typer.Option(help="Fetch a data set from its official source.", show_default=False)
    ] = None,
) -> None:
    """List the data sets and check their files (sha256); place or download what is missing."""
    folder = datasets.data_folder(data)
    if download is not None and download not in datasets.DATA_SETS:
        names = ", ".join(datasets.DATA_SETS)
        raise typer.BadParameter(f"{download!r} is no data set; choose from {names}.", param_hint="--download")
    with _plainly():
        for path in datasets.place(place, folder) if place is not None else []:
            _say(f"placed {path}")
        for path in datasets.download(download, folder) if download is not None else ():
            _say(f"fetched {path}")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("data set", "file", "state"):
        table.add_column(name)
    colour = {"ok": "green", "missing": "yellow", "damaged": "red"}
    whole = True
    for name, data_set in datasets.DATA_SETS.items():
        table.add_row(f"[bold]{name}[/]", f"[dim]{data_set.title} ({data_set.licence})[/]", "")
        for file in data_set.files:
            state = file.state(folder)
            whole &= state == "ok"
            table.add_row("", file.path, f"[{colour[state]}]{state}[/]")
    _say(f"Data in {folder}:\n")
    console.print(table)
    if not whole:
        console.print("\nGet the rest with --download NAME (online), or --place FOLDER (files you have).")


@app.command("report")
def build_report(
    out: OutOption = Path("out"),
    to: Annotated[Path, typer.Option(help="Folder of the report and the raw results.")] = Path("docs/results"),
) -> None:
    """Collect finished runs and build the report: one HTML page, Markdown tables, raw results as JSON lines."""
    with _plainly():
        usual = (out, to) == (Path("out"), Path("docs/results"))
        again = "sinksort report" if usual else f"sinksort report --out {out} --to {to}"
        for path in build(out, to, again=again):
            _say(f"wrote {path}")


@app.command("demo")
def run_demo(out: OutOption = Path("out")) -> None:
    """In minutes, on data that comes with scikit-learn: trainings with wrong data, figures, the paper in small."""
    with _plainly():
        from . import demo  # needs scikit-learn, which the other commands do not

        demo.run(out, console)


@app.command("explore")
def run_playground(
    port: Annotated[int, typer.Option(help="Port of the page; 0 for any that is free.")] = 5006,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page, or only say where it is.")
    ] = True,
) -> None:
    """A page to play with: drag values, slide eps, and watch plan, ranks and gradients. On this machine only."""
    with _plainly():
        from ..explore.server import explore  # needs Bokeh, which the other commands do not

        def say(address: str) -> None:
            _say(f"The playground is at {address} (stop it with Ctrl+C).")

        explore(port, browser, say)
    raise _Stopped(0)


@again.command("figures")
def reproduce_figures(out: OutOption = Path("out")) -> None:
    """Figures 1 to 3, as PNG and SVG."""
    with _plainly():
        for path in draw_all(out / "figures", console):
            _say(f"wrote {path}")


# ---- one command an experiment, made from its dataclass


def _command(name: str, experiment: Experiment) -> Callable[..., None]:
    types = typing.get_type_hints(experiment.knobs)
    settings = dataclasses.fields(experiment.knobs)

    def command(**options: Any) -> None:
        chosen = {f.name: _as_field(f.name, types[f.name], options.pop(f.name)) for f in settings}
        with _plainly():
            _reproduce(name, experiment.knobs(**chosen), **options)

    parameters = [_parameter(f.name, types[f.name], f.default, f.metadata["about"]) for f in settings]
    parameters += [
        _common("device", str, "auto", "cpu, cuda, or auto: cuda where there is one."),
        inspect.Parameter("data", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=DataOption),
        inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=Path("out"), annotation=OutOption),
        _common("only", str, "*", "Pattern for case/method, such as 'n3/*': a part of the work."),
        inspect.Parameter(
            "resume",
            inspect.Parameter.KEYWORD_ONLY,
            default=True,
            annotation=Annotated[bool, typer.Option("--resume/--fresh", help="Go on, or start over.")],
        ),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = f"{experiment.title} ({experiment.shows})."
    return command


def _parameter(name: str, kind: Any, default: Any, about: str) -> inspect.Parameter:
    if typing.get_origin(kind) is tuple:  # several values are given as one word, with commas
        return _common(name, str, ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in default), about)
    return _common(name, kind, default, about)


def _common(name: str, kind: Any, default: Any, about: str) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(help=about)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _as_field(name: str, kind: Any, value: Any) -> Any:
    if typing.get_origin(kind) is not tuple:
        return value
    convert = typing.get_args(kind)[0]
    try:
        return tuple(convert(part.strip()) for part in value.split(",") if part.strip())
    except ValueError as error:
        hint = f"--{name.replace('_', '-')}"
        raise typer.BadParameter(
            f"expected {convert.__name__}s with commas, got {value!r}.", param_hint=hint
        ) from error


def _reproduce(name: str, knobs: Any, *, device: str, data: Path | None, out: Path, only: str, resume: bool) -> None:
    where = _device(device)
    folder = datasets.data_folder(data)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[shown]}"))
    datasets.require_files(knobs.files(), folder)
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        rows: dict[tuple[str, str], Any] = {}

        def watch(case: str, method: str, trained: Trained | None, epochs: int) -> None:
            if (case, method) not in rows:
                rows[case, method] = progress.add_task(f"{case} {method}", total=epochs, shown="")
            shown = "finished before" if trained is None else _shown(trained)
            done = epochs if trained is None else trained.epochs
            progress.update(rows[case, method], completed=done, shown=shown)

        store = reproduce(name, knobs, data=folder, out=out, device=where, only=only, fresh=not resume, watch=watch)
    _say(f"\n{len(list(store.units()))} finished runs in {store.folder}")
    _say("Build the tables with: sinksort report")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"--device must be auto, cpu, cuda or cuda:NUMBER, got {name!r}.")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {name}: torch finds {torch.cuda.device_count()} CUDA devices here.")
    return device


def _shown(trained: Trained) -> str:
    """Averages over the runs of what was measured last."""
    last = [curve[-1] for curve in trained.curves if curve]
    keys = [key for key in last[0] if key != "epoch"] if last else []
    means = " ".join(f"{key} {sum(numbers[key] for numbers in last) / len(last):.3f}" for key in keys)
    return f"epoch {trained.epochs} {means}"


class _Stopped(SystemExit):
    """The playground was stopped, and nothing is left to do."""


def _say(text: str) -> None:
    """A line as it is: names of files may look like markup."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """What is wrong with files or settings is told in one line, without a traceback."""
    try:
        yield
    except (OSError, ValueError, LookupError, ImportError) as error:
        console.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error


for _name, _experiment in EXPERIMENTS.items():
    again.command(_name)(_command(_name, _experiment))


def main() -> None:
    """Entry point of ``sinksort``."""
    try:
        app()
    except _Stopped:  # who presses Ctrl+C should not wait for seconds while Python takes all libraries apart
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
