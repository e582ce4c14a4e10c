"""The sweep itself: cases one after the other, until there are rows enough or time is over."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
from torch import Tensor

from .asking import Answer, ask, truth
from .cases import Case, Rows, cotangent_of, draw, rows_of
from .independent import disagreement
from .judging import Verdict, alike, judge, scales
from .recording import ROOT, Record, page, together

_OTHER_THREADS = 3


def decade(eps: float) -> str:
    low = math.floor(math.log10(eps) + 1e-9)
    return f"1e{low} to 1e{low + 1}" if eps < 1 else "1"


def asked(case: Case, rows: Rows) -> tuple[Answer, Answer, Tensor]:
    """Answer, truth, and the cotangent of both."""
    cotangents: list[Tensor] = []

    def first(out: Tensor) -> Tensor:
        cotangents.append(cotangent_of(case, out.to(case.dtype), rows.draws))
        return cotangents[0].to(out.dtype)

    true = truth(case, rows, first)
    if not cotangents:  # an answer that does not depend on x
        cotangents.append(cotangent_of(case, true.out.to(case.dtype), rows.draws))
    return ask(case, rows, case.layout, lambda out: cotangents[0].to(out.dtype)), true, cotangents[0]


def try_case(record: Record, case: Case, device: str, most: int | None = None) -> Verdict | None:
    """Run a case and write down what came of it."""
    R = min(case.rows(device), most or case.rows(device))
    at = {
        "operator": case.operator,
        "kind": case.kind,
        "eps": "none" if case.exact else decade(case.eps),
        "dtype": str(case.dtype).removeprefix("torch."),
        "layout": case.layout,
    }
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            verdict = _tried(record, case, rows_of(case, R, device), at)
        if any("converge" in str(each.message) for each in said):
            record.checked("cases with a warning that a solver did not converge")
    except Exception as error:  # whatever is raised is a finding
        said_first = str(error).partition("\n")[0][:120]
        record.count(R, R, backend="raised", **at)
        record.fail(case.number, f"{type(error).__name__}: {said_first}", str(case), R, R, math.inf)
        return None
    return verdict


def _tried(record: Record, case: Case, rows: Rows, at: dict[str, str]) -> Verdict:
    R = len(rows.x)
    answer, true, cotangent = asked(case, rows)
    verdict = judge(case, rows, answer, true, cotangent)
    record.count(R, int(verdict.wrong.sum()), backend=answer.backend, **at)
    for what, errors in (("answers", verdict.answers), ("gradients", verdict.gradients)):
        row = int(errors.argmax())
        record.error(f"{case.operator}, {answer.backend}, {what}", errors[row].item(), case.number)
        if errors[row] > 1:
            record.fail(case.number, what, str(case), int((errors > 1).sum()), R, errors[row].item(), row)
    _other_checks(record, case, rows, answer, true, cotangent)
    return verdict


def _other_checks(record: Record, case: Case, rows: Rows, answer: Answer, true: Answer, cotangent: Tensor) -> None:
    R = len(rows.x)
    if case.number % 4 == 1:
        record.checked("cases asked again in other batches")
        for name, which in _batches(R, rows.x.device):
            again = ask(case, rows.some(which), "plain", None).out
            _same(record, case, name, rows.some(which), again, answer.out[which])
    if case.number % 8 == 3 and rows.x.device.type == "cpu":
        record.checked("cases asked again with other threads")
        before = torch.get_num_threads()
        torch.set_num_threads(1 if before > 1 else _OTHER_THREADS)
        try:
            _same(record, case, "threads", rows, ask(case, rows, case.layout, None).out, answer.out)
        finally:
            torch.set_num_threads(before)
    if case.number % 4 == 2:
        for r in {0, R // 2}:
            error = disagreement(case, rows, true, cotangent, scales(case, rows).answer[r].item(), r)
            record.checked("rows solved independently" if error is not None else "rows not for the independent solver")
            if error is not None:
                record.error(f"{case.operator}, reference, independently", error, case.number)
                if error > 1:
                    record.fail(case.number, "the reference", str(case), 1, 1, error, r)


def _batches(R: int, device: torch.device) -> list[tuple[str, Tensor]]:
    """Rows in other company: turned around, a part of them, alone."""
    every = torch.arange(R, device=device)
    ways = [("turned around", every.flip(0)), ("a third", every[: R // 3 + 1])]
    return ways + [("alone", every[r : r + 1]) for r in sorted({0, R // 2, R - 1})]


def _same(record: Record, case: Case, what: str, rows: Rows, again: Tensor, before: Tensor) -> None:
    errors = alike(case, rows, again, before)
    row = int(errors.argmax())
    record.error(f"{case.operator}, in other batches or threads", errors[row].item(), case.number)
    if errors[row] > 1:
        record.fail(case.number, what, str(case), int((errors > 1).sum()), len(errors), errors[row].item(), row)


def show(case: Case, device: str, only: int | None, most: int | None) -> int:
    """One case again, in words and numbers."""
    record = Record.new(case.seed, device)
    print(case, f"cotangent: {case.cotangent}", sep="\n")
    R = min(case.rows(device), most or case.rows(device))
    rows = rows_of(case, R, device)
    try:
        answer, true, cotangent = asked(case, rows)
    except Exception:
        traceback.print_exc()
        return 1
    verdict = judge(case, rows, answer, true, cotangent)
    print(f"{R} rows, {answer.backend}: {int((verdict.answers > 1).sum())} answers wrong, "
          f"{int((verdict.gradients > 1).sum())} gradients wrong")  # fmt: skip
    worst = (verdict.answers.maximum(verdict.gradients)).argsort(descending=True)[:2].tolist()
    torch.set_printoptions(linewidth=160, precision=9, threshold=200)
    for r in [only] if only is not None else worst:
        print(f"\nrow {r}: answer {verdict.answers[r]:.3g}, gradient {verdict.gradients[r]:.3g} of what is allowed")
        given = {"x": rows.x} | rows.each_value | rows.each_row
        for name, t in given.items():
            print(f"{name}:\n{t[r]}")
        for name, t in rows.shared.items():
            print(f"{name}: {t}")
        for name, mine, theirs in (("answer", answer.out, true.out), ("gradient", answer.grad, true.grad)):
            print(f"{name}:\n{mine[r]}\ntruth:\n{theirs[r]}\ndifference:\n{mine[r].double() - theirs[r]}")
        print(f"cotangent:\n{cotangent[r]}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _other_checks(record, case, rows, answer, true, cotangent)
    for each in record.failures:
        print(f"{each['what']}: {each['rows']} of {each['of']} rows, worst {each['error']:.3g} in row {each['row']}")
    return int(bool(verdict.wrong.any()) or bool(record.failures))


def sweep(record: Record, state: Path | None, rows: int, minutes: float) -> None:
    """On from where a record ends."""
    started, before, shown = time.monotonic(), record.seconds, 0.0
    while record.rows < rows and (passed := time.monotonic() - started) < 60 * minutes:
        try_case(record, draw(record.seed, record.next), record.device)
        record.next += record.step
        record.cases += 1
        record.seconds = before + time.monotonic() - started
        if passed - shown > 10:
            shown = passed
            if state is not None:
                record.write(state)
            print(f"{record.seconds:6.0f} s  {record.cases:6,} cases  {record.rows:10,} rows  {record.wrong:6,} wrong  "
                  f"{len(record.failures)} failures", flush=True)  # fmt: skip
    if state is not None:
        record.write(state)


def shared(options: argparse.Namespace, state: Path) -> Record:
    """A sweep by several processes, each with a record of its own beside ``state``."""
    started = []
    parts = [state.with_name(f"{state.stem}_{i}.json") for i in range(options.processes)]
    for i, part in enumerate(parts):
        each = ["--device", options.device, "--seed", options.seed, "--rows", options.rows // options.processes]
        each += ["--minutes", options.minutes, "--state", part, "--first", options.first + i]
        each += ["--step", options.processes, *(["--fresh"] if options.fresh else [])]
        started.append(subprocess.Popen([sys.executable, "-m", "tests.sweep", *map(str, each)], cwd=ROOT))
    for process in started:
        process.wait()
    return together([Record.read(part) for part in parts if part.exists()])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=1_000_000, help="stop after so many, in all")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after so many, in this run")
    parser.add_argument("--state", type=Path, help="where it goes on from; benchmarks/results/sweep_DEVICE.json")
    parser.add_argument("--fresh", action="store_true", help="begin again")
    parser.add_argument("--first", type=int, default=0, help="the case to begin with")
    parser.add_argument("--processes", type=int, default=1, help="so many share the cases; each has a record beside it")
    parser.add_argument("--step", type=int, default=1, help=argparse.SUPPRESS)  # of one of them
    parser.add_argument("--case", type=int, help="show one case and nothing else")
    parser.add_argument("--row", type=int, help="of that case show this row, in place of the two worst")
    parser.add_argument("--most", type=int, help="of that case take the first rows only")
    options = parser.parse_args(arguments)
    if options.case is not None:
        return show(draw(options.seed, options.case), options.device, options.row, options.most)
    state = options.state or ROOT / f"benchmarks/results/sweep_{options.device}.json"
    if options.processes > 1:
        record = shared(options, state)
        record.write(state)
        return told(record, state)
    record = Record.new(options.seed, options.device)
    record.first, record.next, record.step = options.first, options.first, options.step
    if state.exists() and not options.fresh:
        before = Record.read(state)
        same = (before.seed, before.device, before.source) == (record.seed, record.device, record.source)
        if not same:
            parser.error(
                f"{state} is of seed {before.seed}, {before.device}, package {before.source}, and this is seed "
                f"{record.seed}, {record.device}, package {record.source}; --fresh begins again."
            )
        record = before
    state.parent.mkdir(parents=True, exist_ok=True)
    sweep(record, state, options.rows, options.minutes)
    return told(record, state)


def told(record: Record, state: Path) -> int:
    """Write the page and say what was found."""
    state.with_suffix(".md").write_text(page(record), encoding="utf-8")
    print(f"{record.rows:,} rows in {record.cases:,} cases: {record.wrong:,} wrong, {len(record.failures)} failures; "
          f"{state.with_suffix('.md')}")  # fmt: skip
    print(record.summary())
    return 1 if record.failures else 0
