"""What the report says of Table 2: the paper's numbers beside ours, computed from raw results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .curves import NAMES
from .pages import Section, TableOf, beside, bold
from .published import QUANTILES
from .results import Summary, Unit, groups, provenance, summarise
from .rows import command, mixed_code, tables_of, unusual
from .significance import paired


def quantile_regression(units: Sequence[Unit]) -> Section:
    section = Section("Least-quantile regression (Table 2)")
    section.text.append(
        "A regressor with two hidden layers minimises a quantile of the absolute errors of a mini-batch. `eps = 0` "
        "steps on the one point at the empirical quantile; `eps > 0` is the soft quantile. Train and test are the true "
        "quantile of the errors, MSE is on test; mean ± deviation over runs, each with its own 80/20 split. Bold: the "
        "lower mean of the two methods. The paper does not say how long it trained, how it split or which facebook "
        "file it took. It names the regressor of Romano et al., which has dropout after both hidden layers; ours has "
        "none."
    )
    for made in tables_of(units).values():
        names = "response", "epochs", "steps", "eps", "learning_rate"
        response, epochs, steps, eps, learning_rate = (made[0]["knobs"][name] for name in names)
        other = unusual(made[0], *names)
        in_paper = response == "standard" and any(u["case"].rpartition("-")[0] in QUANTILES for u in made)
        scale = "mean 0 and variance 1" if response == "standard" else "divided by its mean absolute value"
        by_method = groups(made, lambda u: (u["case"], u["method"]))
        cases = [case for case, method in by_method if method == "soft" and (case, "hard") in by_method]
        cases.sort(key=_place)
        wins = sum(_last(by_method[c, "soft"], "train").mean < _last(by_method[c, "hard"], "train").mean for c in cases)
        first = (
            f"Response {scale}; {epochs * steps:,} steps of Adam at {learning_rate:g}, eps = {eps:g}{other}: the soft "
            f"quantile has the lower training quantile in {wins} of {len(cases)} cases."
        )
        said = [
            first,
            *_tested(cases, by_method),
            *(_beside_the_paper(cases, by_method) if in_paper else []),
            provenance(made),
            *mixed_code({f"{case}, {NAMES[method]}": runs for (case, method), runs in by_method.items()}),
        ]
        section.text.append(" ".join(said))
        section.commands += command(made) if in_paper or response != "standard" else []
        for level in sorted({case.rpartition("-")[2] for case in cases}):
            rows = []
            for case in (c for c in cases if c.endswith(f"-{level}")):
                rows += _regression_rows(case, by_method, show_paper=in_paper)
            head = ["table", "method", "runs", *beside("train", "test", "MSE", paper=in_paper)]
            caption = f"tau = {float(level):.0%}, response {scale}, {epochs * steps:,} steps{other}"
            section.tables.append(TableOf(caption, head, rows))
        section.tables.append(_by_length(cases, by_method, steps, scale + other))
    return section


def _tested(cases: Sequence[str], by_method: dict[Any, list[Unit]]) -> list[str]:
    """In how many cases the soft quantile is lower, level or higher by a paired test over seeds."""
    counts = []
    for name, words in (("train", "train"), ("test", "test"), ("mse", "MSE")):
        verdicts = []
        for case in cases:
            soft, hard = ({u["seed"]: u["curve"][-1][name] for u in by_method[case, m]} for m in ("soft", "hard"))
            seeds = sorted(set(soft) & set(hard))
            if len(seeds) >= 2:
                verdicts.append(paired([soft[s] for s in seeds], [hard[s] for s in seeds]).verdict)
        if verdicts:
            lower, level, higher = (verdicts.count(verdict) for verdict in ("behind", "level", "ahead"))
            counts.append(f"{words} {lower} lower, {level} level, {higher} higher")
    return [f"By a paired t test over seeds (p < 0.05) the soft quantile is: {'; '.join(counts)}."] if counts else []


def _beside_the_paper(cases: Sequence[str], by_method: dict[Any, list[Unit]]) -> list[str]:
    """In how many cases the soft training quantile is at or below the one that the paper prints, with two digits."""
    printed = {case: QUANTILES.get(case.rpartition("-")[0], {}).get(float(case.rpartition("-")[2])) for case in cases}
    known = {case: levels["soft"][0] for case, levels in printed.items() if levels is not None}
    if not known:
        return []
    above = [case for case, paper in known.items() if round(_last(by_method[case, "soft"], "train").mean, 2) > paper]
    told = f" (above: {', '.join(above)})" if above else ""
    return [f"It is at or below the paper's own number in {len(known) - len(above)} of {len(known)}{told}."]


def _last(units: Sequence[Unit], name: str) -> Summary:
    return summarise(unit["curve"][-1][name] for unit in units)


def _regression_rows(case: str, by_method: dict[Any, list[Unit]], *, show_paper: bool) -> list[list[str]]:
    table, _, level = case.rpartition("-")
    ours = {m: {k: _last(by_method[case, m], k) for k in ("train", "test", "mse")} for m in ("hard", "soft")}
    paper = QUANTILES.get(table, {}).get(float(level)) if show_paper else None
    rows = []
    for method in ("hard", "soft"):
        row = [_table_name(table) if method == "hard" else "", NAMES[method], str(ours[method]["train"].runs)]
        for i, name in enumerate(("train", "test", "mse")):
            here, other = ours[method][name], ours["soft" if method == "hard" else "hard"][name]
            row += [f"{paper[method][i]:.2f}"] if paper else [""] * show_paper
            row.append(bold(f"{here:3}", here.mean < other.mean))
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
            row.append(f"{bold(f'{hard:.3f}', hard < soft)} / {bold(f'{soft:.3f}', soft < hard)}")
        rows.append(row)
    head = ["training quantile, eps = 0 / eps > 0, after", *(f"{epochs[i] * steps:,} steps" for i in shown)]
    return TableOf(f"Does it depend on the length of training? Response {scale}", head, rows)
