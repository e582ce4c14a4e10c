"""The report: numbers from raw results and nothing else, in one page that needs no other file."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
import typing
from pathlib import Path

import pytest
import scipy.stats
from typer.main import get_command

from sinksort.paper import cli, iterations_section, machine, report, rows, sections
from sinksort.paper.classification_section import best, classification
from sinksort.paper.curves import called, common_epochs
from sinksort.paper.experiments import EXPERIMENTS
from sinksort.paper.iterations import KINDS, SOLVERS
from sinksort.paper.pages import Section, TableOf, markdown, page
from sinksort.paper.published import QUANTILES, SORTING
from sinksort.paper.results import collect, groups, provenance, read, settings_digest, summarise
from sinksort.paper.sorting_section import chosen, mnist_sort

ROOT = Path(__file__).parents[2]
MACHINE = {"device": "CPU", "cpu": "a processor", "torch": "2", "python": "3", "sinksort": "0", "system": "Linux"}


def unit(experiment, case, method, seed, curve, **knobs):
    return {
        "experiment": experiment,
        "case": case,
        "method": method,
        "seed": seed,
        "curve": curve,
        "knobs": knobs,
        "together": 2,
        "seconds": 1800.0,
        "step_ms": 3.0,
        "machine": MACHINE,
    }


def regression_units():
    knobs = {"response": "standard", "epochs": 2, "steps": 50, "eps": 0.01, "learning_rate": 1e-4}
    numbers = {("hard", 0): 0.4, ("hard", 1): 0.6, ("soft", 0): 0.1, ("soft", 1): 0.2}
    return [
        unit(
            "quantile-regression",
            "bio-0.5",
            method,
            seed,
            [{"epoch": e, "train": train / e, "test": 1.0, "mse": 2.0} for e in (1, 2)],
            **knobs,
        )
        for (method, seed), train in numbers.items()
    ]


def sorting_units():
    knobs = {"epochs": 2, "lists": 20, "digits": 4, "learning_rate": 1e-4, "eps": 0.005, "tau": 5.0, "sizes": [3]}
    best_first = [
        {"epoch": 1, "validation_exact": 0.9, "test_exact": 0.71, "test_elements": 0.81},
        {"epoch": 2, "validation_exact": 0.8, "test_exact": 0.99, "test_elements": 0.99},
    ]
    return [unit("mnist-sort", "n3", "transport", 0, best_first, **knobs)]


def class_units():
    knobs = {"epochs": 2, "batch": 8, "learning_rate": 1e-4, "eps": 1e-3}
    curve = [{"epoch": 1, "top1": 0.5, "top5": 0.6}, {"epoch": 2, "top1": 0.4, "top5": 0.7}]
    return [unit("cifar10", "cnn", method, 0, curve, **knobs) for method in ("cross-entropy", "top1")]


# ---- numbers


def test_summaries():
    both = summarise([1.0, 3.0])
    assert (both.mean, both.runs) == (2.0, 2)
    assert both.deviation == pytest.approx(2**0.5)
    assert f"{both:2}" == "2.00 ± 1.41"
    assert f"{summarise([0.25]):3}" == "0.250"  # one run has no deviation


def test_table_two_has_the_papers_numbers_and_ours():
    section = sections.quantile_regression(regression_units())
    table = section.tables[0]
    assert table.head[3:5] == ["train, paper", "train"]
    hard, soft = table.rows
    assert hard[:5] == ["bio", "eps = 0", "2", "0.33", "0.250 ± 0.071"]
    assert soft[:5] == ["", "eps > 0", "2", "0.28", "**0.075 ± 0.035**"]
    assert "lower training quantile in 1 of 1 cases" in section.text[1]
    assert "at or below the paper's own number in 1 of 1. " in section.text[1]  # 0.075 and 0.28
    lengths = section.tables[1]
    assert lengths.head[1:] == ["50 steps", "100 steps"]
    assert lengths.rows == [["bio, tau = 0.5", "0.500 / **0.150**", "0.250 / **0.075**"]]


def changed(made, **knobs):
    """Copies of units with other settings."""
    copies = json.loads(json.dumps(made))
    for copy in copies:
        copy["knobs"].update(knobs)
    return copies


def sorting_runs(method, *validation_and_test, epochs=100, **knobs):
    made = []
    for seed, (validated, exact, elements) in enumerate(validation_and_test):
        (unit,) = changed(sorting_units(), epochs=epochs, **knobs)
        unit.update(method=method, seed=seed, curve=[dict(unit["curve"][0], epoch=epochs)])
        unit["curve"][0].update(validation_exact=validated, test_exact=exact, test_elements=elements)
        made.append(unit)
    return made


def words(section):
    return "\n".join(part for part in section.text if isinstance(part, str))


def test_table_one_reports_the_epoch_that_is_best_on_validation():
    (section,) = mnist_sort(sorting_units())
    assert section.tables[0].rows == [["3", "transport (ours)", "1", "2", "0.928", "0.710", "0.950", "0.810"]]
    assert "2 epochs (the paper: 100)" in section.text[1]
    assert section.text[2] == "Not run at this length: n = 3 NeuralSort, deterministic; n = 3 NeuralSort, stochastic."


def test_table_one_tests_both_baselines():
    """By Welch's test, at the epoch that is best on validation digits; p is SciPy's."""
    ours = sorting_runs("transport", (0.5, 0.90, 0.95), (0.5, 0.91, 0.96), (0.5, 0.92, 0.94))
    worse = sorting_runs("neuralsort", (0.5, 0.80, 0.85), (0.5, 0.82, 0.86), (0.5, 0.81, 0.85))
    alike = sorting_runs("neuralsort-stochastic", (0.5, 0.91, 0.95), (0.5, 0.90, 0.96), (0.5, 0.93, 0.94))
    (section,) = mnist_sort([*ours, *worse, *alike])
    for baseline, other, verdict in (("deterministic", worse, "ahead of"), ("stochastic", alike, "level with")):
        one, two = ([u["curve"][0]["test_exact"] for u in units] for units in (ours, other))
        p = scipy.stats.ttest_ind(one, two, equal_var=False).pvalue
        told = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
        assert f"against NeuralSort, {baseline}, by Welch's t test" in words(section)
        assert f"transport is {verdict} it for n = 3 ({told})." in words(section)
    table = next(table for table in section.tables if "Welch" in table.caption)
    assert [row[2:5] for row in table.rows] == [
        [f"NeuralSort, {kind}", "3, 3", of] for kind in ("deterministic", "stochastic") for of in ("lists", "numbers")
    ]
    assert [row[-1] for row in table.rows] == ["ahead", "ahead", "level", "level"]
    (reverse,) = mnist_sort(
        [
            *sorting_runs("neuralsort", *[(0.5, 0.9 + k / 100, 0.9) for k in range(3)]),
            *sorting_runs("transport", *[(0.5, 0.8 + k / 100, 0.9) for k in range(3)]),
        ]
    )
    assert "transport is behind it for n = 3" in words(reverse)
    (single,) = mnist_sort([*ours[:1], *worse])  # nothing can be said of one run
    assert "Welch" not in words(single)


def test_table_one_begins_with_the_step_sizes():
    """The nominal one and the other beside the paper, before anything else."""
    nominal = sorting_runs("transport", (0.5, 0.7, 0.8), (0.5, 0.7, 0.8)) + sorting_runs("neuralsort", (0.5, 0.6, 0.7))
    other = changed(sorting_runs("transport", (0.5, 0.93, 0.96)), learning_rate=4e-3, rate_falls=True)
    other += changed(sorting_runs("neuralsort", (0.5, 0.94, 0.96)), learning_rate=4e-3, rate_falls=True)
    (section,) = mnist_sort([*nominal, *other])
    assert section.text[2] == (
        "**Adam at 0.0001, constant, as in the paper**, beside each method's own row of the paper: transport (ours): "
        "below for n = 3 (-0.228); NeuralSort, deterministic: below for n = 3 (-0.319)."
    )
    assert section.text[3] == (
        "**Adam at 0.004, falling to zero**, beside each method's own row of the paper: transport (ours): at or above "
        "for n = 3 (+0.002); NeuralSort, deterministic: at or above for n = 3 (+0.021). Deterministic NeuralSort is "
        "also above the paper's *transport* row for n = 3: what is gained there comes from the step size, and not from "
        "transport."
    )
    table = section.text[4]
    assert table.head == [
        "n",
        "method",
        "paper",
        "Adam at 0.0001, constant, as in the paper",
        "Adam at 0.004, falling to zero",
    ]
    assert table.rows[0] == ["3", "transport (ours)", "0.928, 10 runs", "0.700 ± 0.000, 2 runs", "0.930, 1 runs"]
    assert table.rows[1][3:] == ["0.600, 1 runs", "0.940, 1 runs"]
    assert table.rows[2][3:] == ["not run", "not run"]


def test_table_one_says_for_which_n_it_reaches_the_paper():
    (short,) = mnist_sort(sorting_units())
    assert "the paper's row" not in words(short)  # two epochs are no reason
    ours = sorting_runs("transport", (0.5, 0.9274, 0.96))  # 0.927 in the paper's digits
    often = sorting_runs("transport-raw", (0.6, 0.99, 0.99), (0.6, 0.99, 0.99), (0.6, 0.99, 0.99), raw_eps=10.0)
    better = sorting_runs("transport-raw", (0.7, 0.9275, 0.9496), (0.7, 0.9277, 0.9496), raw_eps=30.0)
    assert chosen([*often, *better]) == better  # on validation digits, however few they are
    text = words(mnist_sort([*ours, *often, *better])[0])
    below = "lists / numbers below the paper's row for n = 3 (0.927 / 0.960, paper 0.928 / 0.950)."
    reached = (
        "lists / numbers at or above the paper's row for n = 3 (eps = 30, 2 runs, 0.928 / 0.950, paper 0.928 / 0.950)."
    )
    assert f"Transport (ours): {below}" in text
    assert f"Transport, scores as they are, with the eps that is best on validation digits: {reached}" in text


def test_shorter_runs_of_the_same_are_an_appendix():
    long = sorting_runs("transport", (0.5, 0.9, 0.9), (0.5, 0.9, 0.9)) + sorting_runs("neuralsort", (0.5, 0.9, 0.9))
    short = sorting_runs("transport", (0.5, 0.8, 0.9), epochs=20)
    section, appendix = mnist_sort([*long, *short])
    assert ["3", "transport (ours)", "1", "20", "0.928", "0.800", "0.950", "0.900"] in appendix.tables[0].rows
    assert all(row[3] != "20" for table in section.tables for row in table.rows if table.head[3] == "epochs")
    # More runs than the longer ones have, or a method that these lack: they stay.
    assert len(mnist_sort([*long, *short, *sorting_runs("transport", *3 * [(0.5, 0.8, 0.9)], epochs=20)])) == 1
    assert len(mnist_sort([*long, *short, *sorting_runs("softrank", (0.5, 0.8, 0.9), epochs=20)])) == 1


def test_classification_reports_best_and_last():
    (section,) = classification("CIFAR", class_units())
    assert section.tables[0].head[3:] == ["best epoch, top-1", "last epoch, top-1", "last epoch, top-5"]
    assert section.tables[0].rows[1] == ["cnn", "0/1 loss, k = 1", "1", "0.500", "0.400", "0.700"]
    assert section.text[2].head == ["", "paper", "ours, cifar10"]
    assert ["runs", "12", "1"] in section.text[2].rows
    assert "chosen on test data" in words(section)
    (small,) = classification("digits", class_units(), small=True)
    assert "CIFAR" not in words(small)
    assert small.commands == []  # the demo is another command


def test_classification_says_who_is_ahead():
    made = json.loads(json.dumps(class_units()))
    for unit, best_of in zip(made, (0.6, 0.7), strict=True):
        unit["curve"][0]["top1"] = best_of
    said = "Top-1 accuracy at the {} epoch with cnn, beside {} of cross-entropy; {}: 0/1 loss, k = 1 ({})."
    text = words(classification("CIFAR", made)[0])
    assert said.format("best", "0.600", "at or above", "0.700") in text
    assert said.format("last", "0.400", "at or above", "0.400") in text
    made[0]["curve"][0]["top1"] = 0.8
    assert said.format("best", "0.800", "below", "0.700") in words(classification("CIFAR", made)[0])


def test_the_best_epoch_is_looked_for_as_often_in_all_runs():
    """One run was measured every second epoch: beside it the others are looked at then, too."""
    made = class_units()
    often = [{"epoch": e, "top1": top, "top5": 0.9} for e, top in ((1, 0.9), (2, 0.6), (3, 0.8), (4, 0.5))]
    made[0]["curve"], made[1]["curve"] = often[1::2], often
    assert common_epochs(made) == [2, 4]
    assert best(made[1:], common_epochs(made)).mean == 0.6
    (section,) = classification("CIFAR", made)
    assert [row[3] for row in section.tables[0].rows] == ["0.600", "0.600"]


def test_temperatures_of_logits_are_named_and_rows_of_their_own():
    made = class_units()
    for method, knobs in (
        ("cross-entropy-tempered", {"temperature": 10.0}),
        ("top1-raw", {"raw_eps": 1.0}),
        ("top1-raw", {"raw_eps": 0.3}),
    ):
        (other,) = changed(made[:1], **knobs)
        made.append({**other, "method": method})
    (section,) = classification("CIFAR", made)
    assert [row[1] for row in section.tables[0].rows] == [
        "cross-entropy",
        "cross-entropy of logits / 10",
        "0/1 loss, k = 1",
        "0/1 loss, k = 1, concave J, logits as they are, eps = 0.3",
        "0/1 loss, k = 1, concave J, logits as they are, eps = 1",
    ]


def test_raw_scores_of_different_entropies_are_rows_of_their_own():
    raw = [changed(sorting_units(), raw_eps=eps)[0] for eps in (10.0, 1.0, 1.0)]
    for made in raw:
        made["method"] = "transport-raw"
    raw[2]["seed"] = 1
    (section,) = mnist_sort(sorting_units() + raw)
    assert [row[1:3] for row in section.tables[0].rows] == [
        ["transport (ours)", "1"],
        ["transport, scores as they are, eps = 1", "2"],
        ["transport, scores as they are, eps = 10", "1"],
    ]


# ---- which runs are averaged, how they are made, and by which code

#: What no table is divided by: parts of the work, and what changes no number.
PARTS = {
    "runs", "sizes", "compare", "networks", "losses", "tables", "levels", "kinds", "solvers", "measure_every",
    "compiled",
}  # fmt: skip
OWN = {
    "raw_eps": "top1-raw transport-raw", "temperature": "cross-entropy-tempered", "svm_temperature": "top1-svm",
    "tau": "neuralsort", "noise": "neuralsort-stochastic", "samples": "neuralsort-stochastic", "sigma": "softrank",
    "pairwise_tau": "pairwise",
}  # fmt: skip


def other_value(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"other {value}"
    return tuple(2 * each for each in value) if isinstance(value, tuple) else 2 * value


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_results_of_different_settings_are_not_averaged(name):
    """Every setting in turn: it makes a table of its own, or a row where only the method reads it."""
    knobs = EXPERIMENTS[name].knobs()
    case = knobs.cases()[0]
    for field in dataclasses.fields(knobs):
        methods = OWN.get(field.name, knobs.methods(case)[0]).split()
        method = next((m for m in methods if name.startswith("cifar") == m.startswith(("top", "cross"))), methods[0])
        one = unit(name, case, method, 0, [], **dataclasses.asdict(knobs))
        (other,) = changed([one], **{field.name: other_value(getattr(knobs, field.name))})
        assert (len(rows.tables_of([one, other])) == 2) == (field.name not in PARTS | set(OWN)), field.name
        assert (rows.own_settings(one) != rows.own_settings(other)) == (field.name in OWN), field.name
        assert (called(one) != called(other)) == (field.name in OWN), field.name
        (early,) = changed([one])
        del early["knobs"][field.name]  # a run from before the setting was there has its default
        assert len(rows.tables_of([one, early])) == 1


def test_commands_make_the_runs():
    """Each command, read as the command line reads it, asks for the very runs; and none is asked for twice."""
    for name in EXPERIMENTS:
        made = list(read(ROOT / f"docs/results/raw/{name}.jsonl"))
        assert made
        for table in rows.tables_of(made).values():
            wanted = {(u["case"], u["method"], rows.own_settings(u), u["seed"]) for u in table}
            asked = []
            for line in rows.command(table):
                knobs = as_settings(line, name)
                one = {"experiment": name, "knobs": dataclasses.asdict(knobs)}
                assert rows.settings({**one, "method": ""}) == rows.settings(table[0])
                for case in knobs.cases():
                    for method in knobs.methods(case):
                        own = rows.own_settings({**one, "method": method})
                        asked += [(case, method, own, seed) for seed in range(knobs.runs)]
            assert len(asked) == len(set(asked))
            assert set(asked) == wanted


def as_settings(line, name):
    """The settings that a command line gives an experiment."""
    words = shlex.split(line)
    assert words[:3] == ["sinksort", "reproduce", name]
    command = get_command(cli.app).commands["reproduce"].commands[name]
    given = command.make_context(name, words[3:]).params
    types = typing.get_type_hints(EXPERIMENTS[name].knobs)
    fields = dataclasses.fields(EXPERIMENTS[name].knobs)
    return EXPERIMENTS[name].knobs(**{f.name: cli._as_field(f.name, types[f.name], given[f.name]) for f in fields})


def test_rows_of_different_code_are_told():
    one = sorting_runs("transport", (0.5, 0.9, 0.9), (0.5, 0.9, 0.9))
    assert "These runs are from before results recorded the commit of their code." in words(mnist_sort(one)[0])
    for made, digest in zip(one, ("aaa", "aaa"), strict=True):
        made["code"] = {"commit": "0123456789ab", "digest": digest}
    text = words(mnist_sort(one)[0])
    assert "Commit: 0123456789ab." in text
    assert "different code" not in text
    one[1]["code"]["digest"] = "bbb"
    assert "**Runs of different code are joined in these rows**: n = 3, transport (ours)." in words(mnist_sort(one)[0])
    del one[1]["code"]
    assert "1 of these 2 runs are from before results recorded" in words(mnist_sort(one)[0])
    # Runs whose settings have other names are from different code, whatever they record.
    for made in one:
        made.pop("code", None)
    one[1]["knobs"]["newton_steps"] = 5
    assert "different code are joined" in words(mnist_sort(one)[0])


def test_digest_of_settings_leaves_out_how_many_runs_there_are():
    assert settings_digest({"runs": 2, "eps": 0.1}) == settings_digest({"eps": 0.1, "runs": 3})
    assert settings_digest({"runs": 2, "eps": 0.1}) != settings_digest({"runs": 2, "eps": 0.2})


def test_code_is_told_by_commit_and_by_its_files():
    known = machine.code()
    assert re.fullmatch(r"[0-9a-f]{12}", known["digest"])
    assert re.fullmatch(r"none|[0-9a-f]{12}\+?", known["commit"])
    assert not re.search(r"[/@]", json.dumps(known))


# ---- what the committed results say


def committed(name):
    return list(read(ROOT / f"docs/results/raw/{name}.jsonl"))


def test_committed_iterations_contradict_the_paper():
    """ "l rarely exceeds 100": Sinkhorn from zero needs more for most rows of each experiment, and Newton a few."""
    made = committed("iterations")
    at = {(u["case"], u["method"]): {p["eps"]: p for p in u["curve"]} for u in made}
    for case, (_, eps, _) in KINDS.items():
        assert at[case, "sinkhorn"][eps]["beyond_100"] > 0.5
        assert at[case, "newton-exact"][eps]["high"] <= 10
    for case in KINDS:  # the smaller eps, the more Sinkhorn iterations; Newton's do not grow beyond ten
        medians = [point["median"] for point in at[case, "sinkhorn"].values()]
        assert medians == sorted(medians)
        assert max(point["high"] for point in at[case, "newton-exact"].values()) <= 10
    said = words(iterations_section.section(made))
    for case, (_, eps, name) in KINDS.items():
        point = at[case, "sinkhorn"][eps]
        assert f"{name} at eps = {eps:g}: {point['beyond_100']:.0%} of the rows need more than 100" in said
    assert {u["method"] for u in made} == set(SOLVERS)


@pytest.mark.parametrize("baseline", ["neuralsort", "neuralsort-stochastic"])
def test_committed_verdicts_of_table_one_are_those_of_scipy(baseline):
    """The page's sentence on ten runs of each method, from the raw file and SciPy alone."""
    exact = {}
    for unit in committed("mnist-sort"):
        if unit["knobs"]["epochs"] == 100 and unit["knobs"]["learning_rate"] == 4e-3:
            shown = max(unit["curve"], key=lambda point: point["validation_exact"])
            exact.setdefault((unit["case"], unit["method"]), []).append(shown["test_exact"])
    found = {"ahead of": [], "level with": [], "behind": []}
    for n in SORTING:
        ours, theirs = exact[f"n{n}", "transport"], exact[f"n{n}", baseline]
        assert len(ours) == len(theirs) == 10
        test = scipy.stats.ttest_ind(ours, theirs, equal_var=False)
        verdict = "level with" if test.pvalue >= 0.05 else "ahead of" if test.statistic > 0 else "behind"
        found[verdict].append(f"{n} (p < 0.001)" if test.pvalue < 0.001 else f"{n} (p = {test.pvalue:.3f})")
    said = "; ".join(f"{verdict} it for n = {', '.join(ns)}" for verdict, ns in found.items() if ns)
    kind = "deterministic" if baseline == "neuralsort" else "stochastic"
    page = (ROOT / "docs/results/README.md").read_text()
    assert (
        f"transport against NeuralSort, {kind}, by Welch's t test at the epoch that is best on validation digits: "
        f"transport is {said}."
    ) in page


def test_committed_counts_of_table_two_are_those_of_scipy():
    """10,000 steps, standardised response: paired t tests over the twelve seeds."""
    last = {}
    for unit in committed("quantile-regression"):
        if unit["knobs"]["epochs"] == 100 and unit["knobs"]["response"] == "standard":
            last[unit["case"], unit["method"], unit["seed"]] = unit["curve"][-1]
    cases = sorted({case for case, _, _ in last})
    counts = []
    for name, word in (("train", "train"), ("test", "test"), ("mse", "MSE")):
        lower = level = higher = 0
        for case in cases:
            soft, hard = ([last[case, m, seed][name] for seed in range(12)] for m in ("soft", "hard"))
            test = scipy.stats.ttest_rel(soft, hard)
            level += test.pvalue >= 0.05
            lower += test.pvalue < 0.05 and test.statistic < 0
            higher += test.pvalue < 0.05 and test.statistic > 0
        counts.append(f"{word} {lower} lower, {level} level, {higher} higher")
    said = f"By a paired t test over seeds (p < 0.05) the soft quantile is: {'; '.join(counts)}."
    assert said in (ROOT / "docs/results/README.md").read_text()


def test_the_table_of_the_guide_is_from_the_committed_results():
    """The guide to top-k training shows best accuracies after 30 epochs; they are computed here again."""
    guide = (ROOT / "docs/guides/topk.md").read_text()
    shown = {}
    for line in guide.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"0\.\d{3}", cells[1]):
            shown[cells[0]] = cells[1:]
    methods = {
        "cross-entropy": "cross-entropy",
        "cross-entropy of logits / 10": "cross-entropy of logits / 10",
        "`topk_loss`, as in the paper": "0/1 loss, k = 1",
        '`topk_loss`, `J="log"`': "0/1 loss, k = 1, concave J",
        '`topk_loss`, `J="log"`, `squash=None`, `eps=1.0`': "0/1 loss, k = 1, concave J, logits as they are, eps = 1",
    }
    assert set(shown) == set(methods)
    computed, found = {name: [] for name in methods}, {}
    for data in ("cifar10", "cifar100"):
        for network in ("cnn", "resnet18"):
            made = [u for u in committed(data) if u["case"] == network and u["knobs"]["epochs"] == 30]
            looked = common_epochs(made)
            for name, method in methods.items():
                runs = [u for u in made if called(u) == method]
                assert len(runs) == 3
                found[name, data, network] = best(runs, looked)
                computed[name].append(f"{found[name, data, network].mean:.3f}")
    assert shown == computed
    # The two sentences below the table.
    usual, cooled, *_, raw = (row for row in computed.values())
    assert all(ours > theirs for ours, theirs in zip(raw, usual, strict=True))
    assert all(theirs > ours for ours, theirs in zip(raw[:3], cooled[:3], strict=True))
    last = [found[name, "cifar100", "resnet18"] for name in (list(methods)[-1], list(methods)[1])]
    assert f"level ({last[0]:3} and {last[1]:3})" in " ".join(guide.split())
    assert abs(last[0].mean - last[1].mean) < max(last[0].deviation, last[1].deviation)


def test_published_numbers_keep_their_order():
    """What the paper says of its own tables: ours is best for every n, and on train for 5 of 6 tables."""
    assert all(max(row, key=row.get) == "transport" for row in SORTING.values())
    for level in (0.5, 0.9):
        wins = [name for name, table in QUANTILES.items() if table[level]["soft"][0] < table[level]["hard"][0]]
        assert wins == ["bio", "bike", "star", "concrete", "community"]


def test_provenance_counts_trainings_side_by_side_once():
    said = provenance(regression_units())
    assert said.startswith("4 runs on CPU (a processor), torch 2")
    assert "1.00 h" in said  # two methods of half an hour


def test_table_two_has_tests_in_pairs():
    text = sections.quantile_regression(regression_units()).text[1]
    # train: differences -0.15 and -0.2, p = 0.09; test and MSE do not differ at all
    assert "train 0 lower, 1 level, 0 higher; test 0 lower, 1 level, 0 higher; MSE 0 lower, 1 level, 0 higher" in text


# ---- raw results


def save(out, made):
    for u in made:
        folder = out / u["experiment"]
        (folder / "units").mkdir(parents=True, exist_ok=True)
        (folder / "knobs.json").write_text("{}")
        (folder / "units" / f"{u['case']}--{u['method']}--seed{u['seed']}.json").write_text(json.dumps(u))


def test_collecting_adds_and_replaces(tmp_path):
    made = regression_units()
    save(tmp_path / "out", made[:2])
    (path,) = collect(tmp_path / "out", tmp_path / "raw")
    save(tmp_path / "out", made)
    made[0]["step_ms"] = 9.0
    save(tmp_path / "out", made[:1])
    collect(tmp_path / "out", tmp_path / "raw")
    found = groups(read(path), lambda u: (u["method"], u["seed"]))
    assert {key: len(units) for key, units in found.items()} == {(m, s): 1 for m in ("hard", "soft") for s in (0, 1)}
    assert found["hard", 0][0]["step_ms"] == 9.0


def test_raw_results_that_are_damaged(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"b"')
    with pytest.raises(ValueError, match=r"x.jsonl has a line that is not JSON .* collect the results again"):
        list(read(tmp_path / "x.jsonl"))
    assert list(read(tmp_path / "none.jsonl")) == []


# ---- pages


def test_markdown_and_html_of_a_section():
    section = Section("A & B", ["say **this** in `code`, 1 < 2"], [TableOf("T", ["n", "x"], [["a", "**1**"]])])
    text = markdown("Title", "intro", [section])
    assert "| n | x |\n| --- | ---: |\n| a | **1** |" in text
    shown = page("Title", "intro", [section])
    assert "<h2>A &amp; B</h2>" in shown
    assert "say <strong>this</strong> in <code>code</code>, 1 &lt; 2" in shown
    assert '<td class="words">a</td><td><strong>1</strong></td>' in shown


def test_the_report_is_one_page_that_needs_no_other_file(tmp_path):
    save(tmp_path / "out", regression_units() + sorting_units() + class_units())
    written = report.build(tmp_path / "out", tmp_path / "to")
    assert all(path.exists() for path in written)
    shown = (tmp_path / "to/report.html").read_text()
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', shown)
    assert len(sources) == 5  # three figures, two sets of curves
    assert shown.count('<figcaption class="under">') == 5
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "<script" not in shown
    text = (tmp_path / "to/README.md").read_text()
    assert [p for p in re.findall(r"\]\(([^)]+)\)", text) if not (tmp_path / "to" / p).exists()] == []
    assert "Not run. To run it: `sinksort reproduce cifar100`" in text


def test_committed_report_is_what_the_committed_results_give(tmp_path):
    committed = ROOT / "docs/results"
    shutil.copytree(committed / "raw", tmp_path / "raw")
    report.build(tmp_path / "nothing", tmp_path)
    assert (tmp_path / "README.md").read_text() == (committed / "README.md").read_text()


def test_runs_that_were_removed_are_told(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/changes.txt").write_text("2020-01-02: two runs were removed.\n")
    report.build(tmp_path / "nothing", tmp_path)
    assert "## Changes of the results" in (tmp_path / "README.md").read_text()
    assert "2020-01-02: two runs were removed." in (tmp_path / "README.md").read_text()


def test_committed_results_name_no_host_and_no_path():
    for path in (ROOT / "docs/results/raw").glob("*.jsonl"):
        for made in read(path):
            assert set(made["machine"]) == set(MACHINE)
            assert not re.search(r"/(home|root|tmp|work)\b", json.dumps(made))
