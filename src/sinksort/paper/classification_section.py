"""What the report says of Figures 4 and 5: our protocol beside the paper's, then accuracies by loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .curves import NAMES, SHADE, called, common_epochs, curves
from .pages import Section, TableOf
from .results import Summary, Unit, groups, provenance, summarise
from .rows import Settings, command, mixed_code, superseded, tables_of, unusual

_TOLD = ("epochs", "batch", "learning_rate", "eps")


def classification(title: str, units: Sequence[Unit], *, small: bool = False) -> list[Section]:
    """The section, and an appendix for runs that longer ones have superseded. ``small``: on other data than CIFAR."""
    section = Section(title)
    section.text.append(
        "Cross-entropy against the paper's loss on the soft rank of the true label, same network, data and steps; test "
        "accuracy by epoch, mean ± standard deviation over runs. The paper ranks standardised logits, and so does ours "
        "unless a row says otherwise; on logits as they are eps is a temperature, so cross-entropy is shown with one "
        "as well."
    )
    if not small:
        section.text.append(
            "**Both temperatures were chosen on test data**: from a handful, by the test accuracy of one run of the "
            "CNN on CIFAR-100, and the runs of that choice were not kept. No validation images were set aside. The "
            "paper's text claims no order between the losses, and the curves of its Figures 4 and 5 are not in its "
            "source, so these results neither confirm nor refute them."
        )
    tables = tables_of(units)
    old = superseded(tables)
    if not small:
        section.text.append(_protocol(tables, units[0]["experiment"]))
    appendix = Section(f"Appendix: superseded runs of {title}", ["Shorter runs of what stands above."])
    for key, made in tables.items():
        _table(appendix if key in old else section, made, small)
    return [section, appendix] if old else [section]


def _table(section: Section, made: list[Unit], small: bool) -> None:
    epochs, batch, learning_rate, eps = (made[0]["knobs"][name] for name in _TOLD)
    other = unusual(made[0], *_TOLD)
    made.sort(key=lambda u: (u["case"], list(NAMES).index(u["method"]), called(u)))
    by_row = groups(made, lambda u: (u["case"], called(u)))
    section.text.append(
        f"{epochs} epochs, mini-batches of {batch}, Adam at {learning_rate:g}, eps = {eps:g}{other}. "
        f"{provenance(made)} {' '.join(mixed_code({f'{case}, {name}': runs for (case, name), runs in by_row.items()}))}"
    )
    looks = {case: common_epochs(runs) for case, runs in groups(made, lambda u: u["case"]).items()}
    section.text += _against_cross_entropy(by_row, looks)
    rows = []
    for (case, name), runs in by_row.items():
        row = [case, name, str(len(runs))]
        row += [f"{number:3}" for number in (best(runs, looks[case]), last(runs, "top1"), last(runs, "top5"))]
        rows.append(row)
    section.commands += [] if small else command(made)
    head = ["network", "loss", "runs", "best epoch, top-1", "last epoch, top-1", "last epoch, top-5"]
    section.tables.append(TableOf(f"Test accuracy, {epochs} epochs{other}", head, rows))
    name = f"{made[0]['case'] if small else made[0]['experiment']}-{epochs}-epochs"
    name += f"-{len(section.pictures)}" if name in section.pictures else ""
    section.pictures[name] = curves(made, "top1", "test accuracy", str)
    section.captions[name] = f"Test accuracy by epoch, {epochs} epochs{other}. {SHADE}"


def best(runs: Sequence[Unit], epochs: Sequence[int]) -> Summary:
    """At the epoch of each run that is best on test images, among epochs at which all runs beside it were measured."""
    looked = set(epochs)
    return summarise(max(p["top1"] for p in unit["curve"] if p["epoch"] in looked) for unit in runs)


def last(runs: Sequence[Unit], name: str) -> Summary:
    return summarise(unit["curve"][-1][name] for unit in runs)


def _protocol(tables: dict[Settings, list[Unit]], experiment: str) -> TableOf:
    """What the paper says of its protocol, and what was done here."""
    knobs = [dict(key) for key in tables]

    def all_of(name: str) -> str:
        return ", ".join(dict.fromkeys(_said(each[name]) for each in knobs))

    counts = [len(r) for made in tables.values() for r in groups(made, lambda u: (u["case"], called(u))).values()]
    runs = f"{min(counts)} to {max(counts)}" if min(counts) != max(counts) else str(counts[0])
    rows = [
        ["runs", "12", runs],
        ["epochs", "not said in its text", all_of("epochs")],
        ["optimiser", "Adam, constant step 1e-4", f"Adam, constant step {all_of('learning_rate')}"],
        ["eps; eta; cost", "1e-3; 1e-3; squared", f"{all_of('eps')}; {all_of('eta')}; squared"],
        ["solver and gradient", "Sinkhorn, unrolled", "Newton, of the solution"],
        ["size of a mini-batch", "not said", all_of("batch")],
        ["mirrored images", "not said", all_of("flip")],
        ["standardisation of colours", "not said", "yes, by the training images"],
        [
            "CNN",
            "4 convolutions, 2 poolings, 2 dense layers, batch norm on each",
            "the same, widths 64 and 512, no batch norm after the logits",
        ],
        ["precision of convolutions", "not said", all_of("precision")],
        ["epoch that is shown", "curves over epochs", "the best on test images, and the last"],
        ["temperatures (ours)", "", "chosen on test images"],
    ]
    return TableOf("Protocol", ["", "paper", f"ours, {experiment}"], rows)


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _against_cross_entropy(by_row: dict[Any, list[Unit]], looks: dict[str, list[int]]) -> list[str]:
    """Who is ahead on the first place, at the best and at the last epoch; nothing where cross-entropy is missing."""
    said = []
    for case in dict.fromkeys(case for case, _ in by_row):
        here = {name: runs for (other, name), runs in by_row.items() if other == case}
        if "cross-entropy" not in here or len(here) < 2:
            continue
        for which in ("best", "last"):
            top = {n: (best(r, looks[case]) if which == "best" else last(r, "top1")).mean for n, r in here.items()}
            usual = top.pop("cross-entropy")
            above, below = ([f"{n} ({at:.3f})" for n, at in top.items() if (at >= usual) == up] for up in (True, False))
            words = [
                f"{where}: {', '.join(some)}" for where, some in (("at or above", above), ("below", below)) if some
            ]
            said.append(
                f"Top-1 accuracy at the {which} epoch with {case}, beside {usual:.3f} of cross-entropy; "
                f"{'; '.join(words)}."
            )
    return said
