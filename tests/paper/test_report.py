"""The report: numbers from raw results and nothing else, in one page that needs no other file."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from sinksort.paper import report, sections
from sinksort.paper.pages import Section, TableOf, markdown, page
from sinksort.paper.published import QUANTILES, SORTING
from sinksort.paper.results import collect, groups, provenance, read, summarise

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


def test_table_one_reports_the_epoch_that_is_best_on_validation():
    section = sections.mnist_sort(sorting_units())
    assert section.tables[0].rows == [["3", "transport (ours)", "1", "2", "0.928", "0.710", "0.950", "0.810"]]
    assert "2 epochs (the paper: 100)" in section.text[1]
    assert section.text[2] == "Not run at this length: n = 3 NeuralSort, deterministic; n = 3 NeuralSort, stochastic."


def test_table_one_says_who_is_ahead():
    made = sorting_units()
    other = json.loads(json.dumps(made))
    other[0]["method"] = "neuralsort"
    other[0]["curve"][-1]["test_elements"] = 0.5
    said = "In the share of numbers at the last epoch, transport is {} deterministic NeuralSort for n = 3 ({})."
    assert said.format("ahead of", "0.990 and 0.500") in sections.mnist_sort(made + other).text
    made[0]["curve"][-1]["test_elements"] = 0.4
    assert said.format("behind", "0.400 and 0.500") in sections.mnist_sort(made + other).text


def test_table_one_says_for_which_n_it_reaches_the_paper():
    short = sorting_units()
    assert not any("the paper's row" in text for text in sections.mnist_sort(short).text)  # two epochs are no reason

    def runs(method, raw_eps, *validation_and_test):
        made = []
        for seed, (validated, exact, elements) in enumerate(validation_and_test):
            (unit,) = json.loads(json.dumps(short))
            unit.update(method=method, seed=seed, curve=[dict(unit["curve"][0], epoch=100)])
            unit["knobs"].update(epochs=100, raw_eps=raw_eps)
            unit["curve"][0].update(validation_exact=validated, test_exact=exact, test_elements=elements)
            made.append(unit)
        return made

    ours = runs("transport", 1.0, (0.5, 0.9274, 0.96))  # 0.927 in the paper's digits
    often = [*runs("transport-raw", 10.0, (0.6, 0.99, 0.99), (0.6, 0.99, 0.99))]
    better = [*runs("transport-raw", 30.0, (0.7, 0.9275, 0.9496), (0.7, 0.9277, 0.9496))]  # on validation digits
    once = runs("transport-raw", 100.0, (0.9, 0.5, 0.5))
    text = sections.mnist_sort([*ours, *often, *better, *once]).text
    below = "lists / numbers below the paper's row for n = 3 (0.927 / 0.960, paper 0.928 / 0.950)."
    reached = "lists / numbers at or above the paper's row for n = 3 (eps = 30, 0.928 / 0.950, paper 0.928 / 0.950)."
    assert f"Transport (ours): {below}" in text
    assert f"Transport, scores as they are, with the eps that is best on validation digits: {reached}" in text


def test_classification_reports_best_and_last():
    section = sections.classification("CIFAR", class_units())
    assert section.tables[0].rows[1] == ["cnn", "0/1 loss, k = 1", "1", "0.500", "0.400", "0.700", "1.50"]


def test_classification_says_who_is_ahead():
    made = json.loads(json.dumps(class_units()))
    for unit, best in zip(made, (0.6, 0.7), strict=True):
        unit["curve"][0]["top1"] = best
    said = "Best top-1 accuracy with cnn, beside {} of cross-entropy; {}: 0/1 loss, k = 1 (0.700)."
    assert said.format("0.600", "at or above") in sections.classification("CIFAR", made).text
    made[0]["curve"][0]["top1"] = 0.8
    assert said.format("0.800", "below") in sections.classification("CIFAR", made).text


def test_temperatures_of_logits_are_named_and_rows_of_their_own():
    made = class_units()
    for method, knobs in (
        ("cross-entropy-tempered", {"temperature": 10.0}),
        ("top1-raw", {"raw_eps": 1.0}),
        ("top1-raw", {"raw_eps": 0.3}),
    ):
        other = json.loads(json.dumps(made[0]))
        other["method"] = method
        other["knobs"].update(knobs)
        made.append(other)
    (table,) = sections.classification("CIFAR", made).tables
    assert [row[1] for row in table.rows] == [
        "cross-entropy",
        "cross-entropy of logits / 10",
        "0/1 loss, k = 1",
        "0/1 loss, k = 1, concave J, logits as they are, eps = 0.3",
        "0/1 loss, k = 1, concave J, logits as they are, eps = 1",
    ]


def test_results_of_different_settings_are_not_averaged():
    one = sorting_units()
    other = json.loads(json.dumps(one))
    other[0]["knobs"]["epochs"] = 50
    assert len(sections.mnist_sort(one + other).tables) == 2


def test_raw_scores_of_different_entropies_are_rows_of_their_own():
    raw = [json.loads(json.dumps(sorting_units()[0])) for _ in range(3)]
    for made, eps in zip(raw, (10.0, 1.0, 1.0), strict=True):
        made["method"], made["knobs"]["raw_eps"] = "transport-raw", eps
    raw[2]["seed"] = 1
    (table,) = sections.mnist_sort(sorting_units() + raw).tables
    assert [row[1:3] for row in table.rows] == [
        ["transport (ours)", "1"],
        ["transport, scores as they are, eps = 1", "2"],
        ["transport, scores as they are, eps = 10", "1"],
    ]


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


def test_committed_results_name_no_host_and_no_path():
    for path in (ROOT / "docs/results/raw").glob("*.jsonl"):
        for made in read(path):
            assert set(made["machine"]) == set(MACHINE)
            assert not re.search(r"/(home|root|tmp|work)\b", json.dumps(made))
