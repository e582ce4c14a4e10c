"""What the report says of each experiment: the paper's numbers beside ours, computed from raw results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .mnist_sort import METHODS
from .pages import Section, TableOf
from .published import QUANTILES, SORTING
from .results import Summary, Unit, groups, provenance, summarise
from .style import ACCENT, look, shades

_NAMES = {
    "hard": "eps = 0",
    "soft": "eps > 0",
    "transport": "transport (ours)",
    "transport-raw": "transport, scores as they are",
    "neuralsort": "NeuralSort, deterministic",
    "neuralsort-stochastic": "NeuralSort, stochastic",
    "cross-entropy": "cross-entropy",
    "cross-entropy-tempered": "cross-entropy of logits",
    "top1": "0/1 loss, k = 1",
    "top1-log": "0/1 loss, k = 1, concave J",
    "top1-raw": "0/1 loss, k = 1, concave J, logits as they are",
    "top5": "top-5 loss, k = 5",
    "top5-log": "top-5 loss, k = 5, concave J",
    "top5-raw": "top-5 loss, k = 5, concave J, logits as they are",
}

_DARK, _BLUE, _GREEN = shades(5)[0], shades(5)[1], shades(5)[3]
# What the library adds in red, what it is compared to in the order of the palette; more lines of a colour are dashed.
_COLOURS = {
    "transport": ACCENT,
    "transport-raw": _GREEN,
    "neuralsort": _DARK,
    "neuralsort-stochastic": _BLUE,
    "cross-entropy": _DARK,
    "cross-entropy-tempered": _DARK,
    "top1": ACCENT,
    "top1-log": _GREEN,
    "top5": _BLUE,
    "top5-log": shades(5)[4],
    "top1-raw": ACCENT,
    "top5-raw": _BLUE,
}


def _settings(unit: Unit, *names: str) -> tuple[Any, ...]:
    return tuple(unit["knobs"].get(name) for name in names)


def _called(unit: Unit) -> str:
    """A method's name, and what the settings of the table it stands in do not say."""
    method, knobs = unit["method"], unit["knobs"]
    if method.endswith("-raw"):
        return f"{_NAMES[method]}, eps = {knobs['raw_eps']:g}"
    return _NAMES[method] + (f" / {knobs['temperature']:g}" if method.endswith("-tempered") else "")


# ---- Table 2


def quantile_regression(units: Sequence[Unit]) -> Section:
    section = Section("Least-quantile regression (Table 2)")
    section.text.append(
        "A regressor with two hidden layers minimises a quantile of the absolute errors of a mini-batch. `eps = 0` "
        "steps on the one point at the empirical quantile; `eps > 0` is the soft quantile. Train and test are the true "
        "quantile of the errors, MSE is on test; mean ± deviation over runs, each with its own 80/20 split. Bold: the "
        "lower mean of the two methods. The paper does not say how long it trained, how it split or which facebook "
        "file it took."
    )
    for key, made in groups(
        units, lambda u: _settings(u, "response", "epochs", "steps", "eps", "learning_rate")
    ).items():
        response, epochs, steps, eps, learning_rate = key
        in_paper = response == "standard" and any(u["case"].rpartition("-")[0] in QUANTILES for u in made)
        scale = "mean 0 and variance 1" if response == "standard" else "divided by its mean absolute value"
        by_method = groups(made, lambda u: (u["case"], u["method"]))
        cases = [case for case, method in by_method if method == "soft" and (case, "hard") in by_method]
        cases.sort(key=_place)
        wins = sum(_last(by_method[c, "soft"], "train").mean < _last(by_method[c, "hard"], "train").mean for c in cases)
        section.text.append(
            f"Response {scale}; {epochs * steps:,} steps of Adam at {learning_rate:g}, eps = {eps:g}: the soft "
            f"quantile has the lower training quantile in {wins} of {len(cases)} cases. "
            f"{_beside_the_paper(cases, by_method) if in_paper else ''}{provenance(made)}"
        )
        for level in sorted({case.rpartition("-")[2] for case in cases}):
            rows = []
            for case in (c for c in cases if c.endswith(f"-{level}")):
                rows += _regression_rows(case, by_method, show_paper=in_paper)
            head = ["table", "method", "runs", *_beside("train", "test", "MSE", paper=in_paper)]
            caption = f"tau = {float(level):.0%}, response {scale}, {epochs * steps:,} steps"
            section.tables.append(TableOf(caption, head, rows))
        section.tables.append(_by_length(cases, by_method, steps, scale))
    return section


def _beside(*names: str, paper: bool) -> list[str]:
    """Heads of columns, each after one for the paper's number where there is one."""
    return [head for name in names for head in ((f"{name}, paper", name) if paper else (name,))]


def _beside_the_paper(cases: Sequence[str], by_method: dict[Any, list[Unit]]) -> str:
    """In how many cases the soft training quantile is at or below the one that the paper prints, with two digits."""
    printed = {case: QUANTILES.get(case.rpartition("-")[0], {}).get(float(case.rpartition("-")[2])) for case in cases}
    known = {case: levels["soft"][0] for case, levels in printed.items() if levels is not None}
    if not known:
        return ""
    above = [case for case, paper in known.items() if round(_last(by_method[case, "soft"], "train").mean, 2) > paper]
    told = f" (above: {', '.join(above)})" if above else ""
    return f"It is at or below the paper's own number in {len(known) - len(above)} of {len(known)}{told}. "


def _last(units: Sequence[Unit], name: str) -> Summary:
    return summarise(unit["curve"][-1][name] for unit in units)


def _regression_rows(case: str, by_method: dict[Any, list[Unit]], *, show_paper: bool) -> list[list[str]]:
    table, _, level = case.rpartition("-")
    ours = {m: {k: _last(by_method[case, m], k) for k in ("train", "test", "mse")} for m in ("hard", "soft")}
    paper = QUANTILES.get(table, {}).get(float(level)) if show_paper else None
    rows = []
    for method in ("hard", "soft"):
        row = [_table_name(table) if method == "hard" else "", _NAMES[method], str(ours[method]["train"].runs)]
        for i, name in enumerate(("train", "test", "mse")):
            here, other = ours[method][name], ours["soft" if method == "hard" else "hard"][name]
            row += [f"{paper[method][i]:.2f}"] if paper else [""] * show_paper
            row.append(_bold(f"{here:3}", here.mean < other.mean))
        rows.append(row)
    return rows


def _place(case: str) -> tuple[int, str]:
    """Tables in the order of the paper, then others."""
    table = case.rpartition("-")[0]
    return (list(QUANTILES).index(table) if table in QUANTILES else len(QUANTILES)), case


def _table_name(table: str) -> str:
    return "facebook (test part of the data)" if table == "facebook" else table


def _by_length(cases: Sequence[str], by_method: dict[Any, list[Unit]], steps: int, scale: str) -> TableOf:
    """The training quantile along the way: does the conclusion hang on how long one trains?"""
    curve = by_method[cases[0], "hard"][0]["curve"]
    epochs = [point["epoch"] for point in curve]
    shown = sorted({0, len(epochs) // 5 - 1, len(epochs) // 2 - 1, len(epochs) - 1} & set(range(len(epochs))))
    rows = []
    for case in cases:
        row = [case.replace("-", ", tau = ")]
        for i in shown:
            hard, soft = (summarise(u["curve"][i]["train"] for u in by_method[case, m]).mean for m in ("hard", "soft"))
            row.append(f"{_bold(f'{hard:.3f}', hard < soft)} / {_bold(f'{soft:.3f}', soft < hard)}")
        rows.append(row)
    head = ["training quantile, eps = 0 / eps > 0, after", *(f"{epochs[i] * steps:,} steps" for i in shown)]
    return TableOf(f"Does it depend on the length of training? Response {scale}", head, rows)


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text


# ---- Table 1


def mnist_sort(units: Sequence[Unit]) -> Section:
    section = Section("Sorting handwritten numbers (Table 1, Figure 6)")
    section.text.append(
        "Lists of n numbers, each an image of digits below each other; the network of Grover et al. is told the order "
        "only. Share of lists in the right order, and of numbers in their right place, on lists of test digits at the "
        "epoch that is best on validation digits; mean ± deviation over runs. Network, data and steps are the same for "
        "all methods."
    )
    names = "epochs", "lists", "digits", "learning_rate", "eps", "tau"
    kinds = groups(units, lambda u: (*_settings(u, *names), bool(u["knobs"].get("rate_falls"))))
    for key, made in sorted(kinds.items(), key=lambda kind: (-kind[0][0], -len(kind[1]))):  # longest first
        epochs, lists, digits, learning_rate, eps, tau, rate_falls = key
        in_paper = digits == 4
        section.text.append(
            f"{epochs} epochs{' (the paper: 100)' if in_paper else ''}, {lists} lists a mini-batch, Adam at "
            f"{learning_rate:g}{', falling to zero along half a cosine' if rate_falls else ''}, eps = {eps:g}, "
            f"NeuralSort's tau = {tau:g}. {provenance(made)}"
        )
        rows = []
        made.sort(key=lambda u: (int(u["case"][1:]), u["method"], u["knobs"].get("raw_eps", 0.0)))
        for (case, name), runs in groups(made, lambda u: (u["case"], _called(u))).items():
            paper = SORTING.get(int(case[1:]), {}).get(runs[0]["method"]) if in_paper else None
            exact, share = _at_their_best(runs, "test_exact"), _at_their_best(runs, "test_elements")
            published = [[f"{number:.3f}"] for number in paper] if paper else [[""] * in_paper] * 2
            row = [case[1:], name, str(len(runs)), str(epochs)]
            rows.append([*row, *published[0], f"{exact:3}", *published[1], f"{share:3}"])
        by_case = groups(made, lambda u: (u["case"], u["method"]))
        section.text += _transport_against_neuralsort(by_case)
        if in_paper and epochs >= 100:
            section.text += _transport_against_the_paper(made)
        sizes = sorted({n for unit in made for n in unit["knobs"]["sizes"]})
        wanted = [(f"n{n}", method) for n in sizes for method in METHODS]
        lost = [f"n = {case[1:]} {_NAMES[method]}" for case, method in wanted if (case, method) not in by_case]
        if lost:
            section.text.append(f"Not run at this length: {'; '.join(lost)}.")
        head = ["n", "method", "runs", "epochs", *_beside("lists", "numbers", paper=in_paper)]
        pace = f"{epochs} epochs at {learning_rate:g}{', falling' if rate_falls else ''}"
        section.tables.append(TableOf(f"Sorting {digits}-digit numbers, {pace}", head, rows))
        faster = ("" if learning_rate == 1e-4 else f"-at-{learning_rate:g}") + ("-falling" if rate_falls else "")
        section.pictures[f"sorting-{epochs}-epochs{faster}"] = _curves(
            made, "test_elements", "share of numbers in the right place", lambda case: f"n = {case[1:]}"
        )
    return section


def _at_their_best(runs: Sequence[Unit], name: str) -> Summary:
    """Of each run at the epoch that is best on validation digits."""
    return summarise(max(unit["curve"], key=lambda point: point["validation_exact"])[name] for unit in runs)


def _transport_against_the_paper(made: Sequence[Unit]) -> list[str]:
    """For which n both shares reach the paper's, in its three digits, in words.

    Of scores as they are counts the eps that is best on validation digits, among those that were run most often.
    """
    said = []
    for method in ("transport", "transport-raw"):
        reached: list[str] = []
        missed: list[str] = []
        for case, at in groups((u for u in made if u["method"] == method), lambda u: u["case"]).items():
            n, by_name = int(case[1:]), groups(at, _called)
            if n not in SORTING:
                continue
            called = max(by_name, key=lambda c: (len(by_name[c]), _at_their_best(by_name[c], "validation_exact").mean))
            ours = [round(_at_their_best(by_name[called], f"test_{what}").mean, 3) for what in ("exact", "elements")]
            paper = SORTING[n]["transport"]
            with_eps = f"eps = {by_name[called][0]['knobs']['raw_eps']:g}, " if method == "transport-raw" else ""
            told = f"n = {n} ({with_eps}{ours[0]:.3f} / {ours[1]:.3f}, paper {paper[0]:.3f} / {paper[1]:.3f})"
            (reached if all(map(float.__ge__, ours, paper)) else missed).append(told)
        lines = [("at or above the paper's row for", reached), ("below the paper's row for", missed)]
        words = "; ".join(f"{where} {', '.join(cases)}" for where, cases in lines if cases)
        if words:
            chosen = ", with the eps that is best on validation digits" if method == "transport-raw" else ""
            said.append(f"{_NAMES[method].capitalize()}{chosen}: lists / numbers {words}.")
    return said


def _transport_against_neuralsort(by_case: dict[Any, list[Unit]]) -> list[str]:
    """Who is ahead, in words; nothing where one of them is missing."""
    ahead: list[str] = []
    behind: list[str] = []
    for case in dict.fromkeys(case for case, _ in by_case):
        shares = {
            method: summarise(unit["curve"][-1]["test_elements"] for unit in by_case[case, method]).mean
            for method in ("transport", "neuralsort")
            if (case, method) in by_case
        }
        if len(shares) == 2:
            told = f"n = {case[1:]} ({shares['transport']:.3f} and {shares['neuralsort']:.3f})"
            (ahead if shares["transport"] > shares["neuralsort"] else behind).append(told)
    lines = [("ahead of", ahead), ("behind", behind)]
    words = [f"transport is {where} deterministic NeuralSort for {', '.join(cases)}" for where, cases in lines if cases]
    return [f"In the share of numbers at the last epoch, {'; '.join(words)}."] if words else []


# ---- Figures 4 and 5


def classification(title: str, units: Sequence[Unit]) -> Section:
    section = Section(title)
    section.text.append(
        "Cross-entropy against the paper's loss on the soft rank of the true label, same network, data and steps; test "
        "accuracy by epoch, mean ± deviation over runs. The paper ranks standardised logits, and so does ours unless a "
        "row says otherwise; on logits as they are eps is a temperature, so cross-entropy is shown with one as well. "
        "Both temperatures were chosen from a handful by the test accuracy of one run of the CNN on CIFAR-100. "
        "Milliseconds are what a step took beside what else ran on the device."
    )
    for key, made in groups(units, lambda u: _settings(u, "epochs", "batch", "learning_rate", "eps")).items():
        epochs, batch, learning_rate, eps = key
        made.sort(key=lambda u: (u["case"], list(_NAMES).index(u["method"]), _called(u)))
        section.text.append(
            f"{epochs} epochs, mini-batches of {batch}, Adam at {learning_rate:g}, eps = {eps:g}. {provenance(made)}"
        )
        rows = []
        by_case = groups(made, lambda u: (u["case"], _called(u)))
        section.text += _against_cross_entropy(by_case)
        for (case, called), runs in by_case.items():
            best = _best(runs)
            row = [case, called, str(len(runs)), f"{best:3}"]
            row += [f"{_last(runs, name):3}" for name in ("top1", "top5")]
            rows.append([*row, f"{summarise(unit['step_ms'] / unit['together'] for unit in runs).mean:.2f}"])
        head = ["network", "loss", "runs", "best top-1", "last top-1", "last top-5", "ms a step and run"]
        section.tables.append(TableOf(f"Test accuracy, {epochs} epochs", head, rows))
        section.pictures[f"{made[0]['experiment']}-{epochs}-epochs"] = _curves(made, "top1", "test accuracy", str)
    return section


def _best(runs: Sequence[Unit]) -> Summary:
    return summarise(max(point["top1"] for point in unit["curve"]) for unit in runs)


def _against_cross_entropy(by_case: dict[Any, list[Unit]]) -> list[str]:
    """Who is ahead on the first place, in words; nothing where cross-entropy is missing."""
    said = []
    for case in dict.fromkeys(case for case, _ in by_case):
        best = {called: _best(runs).mean for (other, called), runs in by_case.items() if other == case}
        usual = best.pop("cross-entropy", None)
        if usual is None or not best:
            continue
        above, below = (
            [f"{name} ({at:.3f})" for name, at in best.items() if (at >= usual) == up] for up in (True, False)
        )
        words = [f"{where}: {', '.join(names)}" for where, names in (("at or above", above), ("below", below)) if names]
        said.append(f"Best top-1 accuracy with {case}, beside {usual:.3f} of cross-entropy; {'; '.join(words)}.")
    return said


def _curves(units: Sequence[Unit], name: str, label: str, title: Any) -> Figure:
    """One panel a case, one line a method with its deviation, by epoch. A method looks the same in all panels."""
    by_case = groups(units, lambda u: u["case"])
    looks = _looks(units)
    with look():
        figure = Figure(figsize=(4.4 * max(len(by_case), 1.4), 3.3 + 0.09 * len(looks)))
        panels = figure.subplots(1, len(by_case), squeeze=False)[0]
        for axes, (case, made) in zip(panels, by_case.items(), strict=True):
            _panel(axes, groups(made, _called), looks, name)
            axes.set(xlabel="epoch", ylabel=label, title=title(case))
        lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
        handles = [lines[called] for called in looks]
        figure.tight_layout()
        figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=2, frameon=False, fontsize=8)
    return figure


def _looks(units: Sequence[Unit]) -> dict[str, tuple[str, str]]:
    """Colour and dashes of each method, by its name."""
    styles = ("-", "--", ":", "-.")
    looks: dict[str, tuple[str, str]] = {}
    for called, runs in groups(units, _called).items():
        colour = _COLOURS[runs[0]["method"]]
        taken = sum(colour == other for other, _ in looks.values())
        looks[called] = colour, styles[taken % len(styles)]
    return looks


def _panel(axes: Axes, by_name: dict[str, list[Unit]], looks: dict[str, tuple[str, str]], name: str) -> None:
    for called, runs in by_name.items():
        colour, style = looks[called]
        epochs = [point["epoch"] for point in runs[0]["curve"]]
        points = [summarise(unit["curve"][i][name] for unit in runs) for i in range(len(epochs))]
        means = [point.mean for point in points]
        axes.plot(epochs, means, style, color=colour, label=called, linewidth=1.6, marker="o", markersize=2.5)
        low, high = ([p.mean + sign * p.deviation for p in points] for sign in (-1, 1))
        axes.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
