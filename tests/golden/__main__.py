"""The command: ``make`` writes the file or says what changed, ``compare`` demands the same bits."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

import torch

from . import calls, judge, store
from .cases import cases


def _parts(posed: calls.ReadOut, known: store.Stored | None) -> dict[str, store.Part]:
    """What the file says of a case; the truth is that of ``known`` where the case is the same."""
    found = calls.ask(posed)
    shapes = {name: tuple(t.shape) for name, t in found.parts.items()}
    if known and known.inputs == posed.digest and {name: p.shape for name, p in known.parts.items()} == shapes:
        true = {name: (p.largest, p.truth, p.means) for name, p in known.parts.items()}
    else:
        true = {}
        for name, t in calls.truth(posed).parts.items():
            largest = store.largest_of(t)
            true[name] = largest, store.sampled(t, largest), store.means(t)
    parts = {}
    for name, t in found.parts.items():
        largest, truth, means = true[name]
        answer = store.sampled(t, largest)
        parts[name] = store.Part(shapes[name], calls.digest(t), largest, truth, answer, means)
    for name, error, _ in judge.errors(posed, found, parts):
        if error > 1:  # where the answer is wrong, the truth takes its place
            part = parts[name]
            parts[name] = store.Part(part.shape, part.digest, part.largest, part.truth,
                                     part.truth.to(part.answer.dtype), part.means, min(error, 1e9))  # fmt: skip
    return parts


def _changes(before: store.Stored | None, parts: dict[str, store.Part]) -> str:
    """In words: what is other than in the file."""
    if before is None:
        return "new"
    said = []
    for name, part in parts.items():
        old = before.parts.get(name)
        if old is None or old.shape != part.shape:
            said.append(f"{name} has another shape")
        elif old.digest != part.digest:
            apart = (old.answer.double() - part.answer.double()).abs().nan_to_num(0.0).max().item()
            said.append(f"{name} moved by {apart:.2g} at most in the sample")
        if old is not None and abs(old.wrong - part.wrong) > 1e-3 * old.wrong:
            said.append(f"{name} was off by {old.wrong:.3g} of what is allowed, and is by {part.wrong:.3g} (0: right)")
    return "; ".join(said)


def make(to: Path, only: str, *, check: bool, anew: bool) -> int:
    before, _ = store.read() if store.FILE.exists() else ({}, {})
    found, wrong, changed, started = {}, 0, 0, time.monotonic()
    wanted = {name: case for name, case in cases().items() if only in name}
    for i, (name, case) in enumerate(wanted.items()):
        posed = calls.pose(case)
        parts = _parts(posed, None if anew else before.get(name))
        found[name] = store.Stored(posed.digest, parts)
        for what, part in parts.items():
            if part.wrong:
                wrong += 1
                print(f"WRONG   {name}: {what} is off by {part.wrong:.3g} times what is allowed; the truth is kept")
        if said := _changes(before.get(name), parts):
            changed += 1
            if before:
                print(f"CHANGED {name}: {said}")
        if i % 50 == 49:
            print(f"{i + 1} of {len(wanted)} cases, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    gone = [name for name in before if name not in cases()]
    print(f"{len(found)} cases, {changed} changed or new, {len(gone)} gone, {wrong} answers wrong")
    if check:
        return int(changed > 0 or bool(gone))
    if only:
        found = {name: found.get(name) or before[name] for name in cases() if name in found or name in before}
    store.write(to, found, store.about())
    print(f"{to}: {to.stat().st_size / 1000:.0f} kB")
    return 0


def compare(other: Path, only: str) -> int:
    before, facts = store.read(other)
    if facts != store.about():
        print(f"{other} was made by {facts}, and this is {store.about()}: bits may differ for that reason alone.")
        return 2
    differ = 0
    for name, case in cases().items():
        if only not in name or name not in before:
            continue
        for what, t in calls.ask(calls.pose(case)).parts.items():
            if calls.digest(t) != before[name].parts[what].digest:
                differ += 1
                print(f"DIFFERS {name}: {what}")
    print(f"{differ} answers and gradients differ from {other}")
    return int(differ > 0)


def main() -> int:
    import tests.golden

    parser = argparse.ArgumentParser(
        prog="python -m tests.golden", description=tests.golden.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("command", choices=("make", "compare"))
    parser.add_argument("--to", type=Path, default=store.FILE, help="the file that make writes")
    parser.add_argument("--with", dest="other", type=Path, default=store.FILE, help="the file that compare reads")
    parser.add_argument("--check", action="store_true", help="say what changed, and write nothing")
    parser.add_argument("--anew", action="store_true", help="make the truth again too, of cases that did not change")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if chosen.command == "compare":
        return compare(chosen.other, chosen.only)
    return make(chosen.to, chosen.only, check=chosen.check, anew=chosen.anew)


if __name__ == "__main__":
    sys.exit(main())
