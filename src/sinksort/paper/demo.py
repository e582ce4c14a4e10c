"""The demo: where a soft loss wins on held-out data, figures, soft answers beside exact ones, the paper in small.

Only data that comes inside scikit-learn is used. Every training ends in a sentence with its numbers.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

from .. import Plan, kantorovich_rank, kantorovich_sort, transport
from . import conclusions, figure2, figure3, held_out, report
from .experiments import SMALL, Watcher, reproduce
from .figures import draw_all
from .small import SmallClassifier, SmallRegression, SmallSort
from .training import Trained
from .truth import Array, dense_plan

#: Each training in small, under the name of the experiment that it stands for.
TRAININGS: dict[str, tuple[str, Any]] = {
    "quantile-regression": ("Least-quantile regression on diabetes", SmallRegression()),
    "mnist-sort": ("Sorting 2-digit numbers from images", SmallSort()),
    "cifar10": ("The 0/1 loss on digits", SmallClassifier()),
}
#: Splits and first weights of the trainings on data that is partly wrong.
SEEDS = range(7)


def run(out: Path, console: Console) -> list[Path]:
    """Draw, train and report into ``out``, and print the tables; the files written."""
    began = time.perf_counter()
    console.print("[bold]sinksort[/bold]: ranks, sorts and quantiles as transport plans\n")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small wait for each other's threads more than these save
    try:
        outcomes = compare_on_wrong_data(console)
    finally:
        torch.set_num_threads(threads)
    console.print()
    written = draw_all(out / "figures", console)
    for table in (soft_against_hard(), checks()):
        console.print()
        console.print(table)
    console.print("\n[bold]The paper's trainings in small[/bold], on clean data, where usual losses are hard to beat\n")
    torch.set_num_threads(1)
    try:
        train(out / "runs", console)
    finally:
        torch.set_num_threads(threads)
    shutil.rmtree(out / "report", ignore_errors=True)  # raw results of an earlier demo would be reported too
    written += report.build(
        out / "runs",
        out / "report",
        again=f"{_command()} demo --out {out}",
        first=[held_out.section(outcomes)],
        small=True,
    )
    console.print(f"\nWrote {len(written)} files in {time.perf_counter() - began:.0f} s. Start with these:")
    for path in (out / "report" / "report.html", out / "figures" / "figure1-transport.png"):
        console.print(f"  {path}", highlight=False, soft_wrap=True)
    console.print(
        "\nThe report has every figure and every training; figure1 shows values below, targets above, "
        "and arrows as wide as the mass they move. Then take the ten-line example of the README into your own code, or "
        f"run the paper's experiments in full: {_command()} list."
    )
    return written


def _command() -> str:
    """How the command line is called here: by its name, or from the environment that make has made."""
    return "sinksort" if shutil.which("sinksort") else os.path.relpath(Path(sys.executable).parent / "sinksort")


def compare_on_wrong_data(console: Console) -> list[held_out.Outcome]:
    """Train with labels or responses that are partly wrong, and say what comes out on held-out data."""
    console.print("[bold]Where data is partly wrong[/bold]: a soft loss beside the usual one, on held-out data\n")
    outcomes = []
    for comparison in held_out.COMPARISONS:
        with console.status(comparison.title):
            outcomes.append(held_out.compare(comparison, SEEDS))
        _say(console, outcomes[-1].sentence())
    return outcomes


def train(out: Path, console: Console) -> None:
    """The three trainings in small, anew each time, side by side with what they are compared to."""
    columns = (SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}"), BarColumn(bar_width=20))
    for name, (title, knobs) in TRAININGS.items():
        methods = [(case, method) for case in knobs.cases() for method in knobs.methods(case)]
        if not console.is_terminal:  # where a bar is drawn once, when all is over
            _say(console, f"{title}: {knobs.runs} runs of {len(methods)} trainings ...")
        with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as progress:
            watch = _advance(progress, progress.add_task(title, total=len(methods) * knobs.epochs))
            store = reproduce(
                name, knobs, data=out, out=out, device=torch.device("cpu"), fresh=True, watch=watch, called=SMALL[name]
            )
        _say(console, conclusions.SENTENCES[name](list(store.units())))


def _say(console: Console, text: str) -> None:
    """A paragraph as it is: nothing in it is markup."""
    console.print(text, markup=False, highlight=False)


def _advance(progress: Progress, task: TaskID) -> Watcher:
    """A bar that counts the epochs of all methods."""
    done: dict[tuple[str, str], int] = {}

    def watch(case: str, method: str, trained: Trained | None, _epochs: int) -> None:
        done[case, method] = trained.epochs if trained is not None else 0
        progress.update(task, completed=sum(done.values()))

    return watch


def soft_against_hard() -> Table:
    """The ten values of Figure 2: ranks and sorted values, hard and at three entropies."""
    x, entropies = figure2.X, (1e-3, 1e-2, 1e-1)
    plans = [transport(x, eps=eps) for eps in entropies]
    table = Table(title="Ten values, softer from left to right", title_justify="left", title_style="bold")
    table.add_column("x", justify="right", style="cyan")
    for what in ("rank", "sort"):
        table.add_column(f"hard\n{what}", justify="right", style="bold")
        for eps in entropies:
            table.add_column(f"{what}\n{eps:g}", justify="right")
    columns = [x, kantorovich_rank(x), *(p.ranks() for p in plans), kantorovich_sort(x), *(p.sorted() for p in plans)]
    places = (2, 0, 2, 2, 2, 2, 3, 3, 3)
    for row in zip(*(column.tolist() for column in columns), strict=True):
        table.add_row(*(f"{value:.{digits}f}" for value, digits in zip(row, places, strict=True)))
    return table


def checks() -> Table:
    """Each figure's solve: how many Newton steps, how well the plan fits, how far from an independent solver."""
    table = Table(title="How exact are they?", title_justify="left", title_style="bold")
    for name in ("answer", "eps", "soft -\nhard", "Newton\nsteps", "marginal\nerror", "against\ntruth"):
        table.add_column(name, justify="left" if name == "answer" else "right")

    x = figure2.X
    hard_rank, hard_sort = kantorovich_rank(x), kantorovich_sort(x)
    for eps in (1e-3, 1e-2, 1e-1):
        plan = transport(x, eps=eps)
        P = _truth(plan)
        ranks = len(x) * len(x) * P @ plan.problem.b.cumsum(-1).numpy()
        _add(table, "ranks of 10 values", plan, plan.ranks(), hard_rank, ranks)
        _add(table, "sort of 10 values", plan, plan.sorted(), hard_sort, len(x) * P.T @ x.numpy())
    plan = figure3.plan()
    middle = (_truth(plan).T @ figure3.X.numpy())[1] / figure3.WIDTH
    hard = torch.quantile(figure3.X, figure3.LEVEL)
    _add(table, "30% quantile of 20 values", plan, figure3.quantile(), hard, middle)
    table.caption = (
        "soft - hard: the largest difference from the exact answer; eps asks for it.\n"
        "against truth: a dense NumPy solve of the same problem by another method."
    )
    table.caption_justify = "left"
    return table


def _add(table: Table, name: str, plan: Plan, soft: Tensor, hard: Tensor, truth: object) -> None:
    far = (soft - hard).abs().max().item()
    wrong = float(np.abs(soft.numpy() - np.asarray(truth)).max())
    eps, steps, error = plan.problem.eps.item(), int(plan.iterations), plan.marginal_error.item()
    table.add_row(name, f"{eps:g}", f"{far:.2g}", f"{steps}", f"{error:.0e}" if error else "0", f"{wrong:.0e}")


def _truth(plan: Plan) -> Array:
    """The plan of the same problem by ``dense_plan``, rows in the order of x."""
    p = plan.problem
    P = dense_plan(p.cost.numpy(), p.a.numpy(), p.b.numpy(), p.eps.item())
    return P if p.inverse is None else P.take(p.inverse.numpy(), axis=0)
