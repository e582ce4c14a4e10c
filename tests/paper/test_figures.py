"""The paper's figures and the demo: right numbers, legible pictures, files where they were promised."""

from __future__ import annotations

import dataclasses
import io
import itertools
import re

import numpy as np
import ot
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from rich.console import Console

from sinksort.paper import demo, figure1, figure2, figure3
from sinksort.paper.figures import FIGURES
from sinksort.paper.style import save, shades
from sinksort.paper.truth import dense_plan
from sinksort.plot.flows import draw_plan

DRAWINGS = {"figure1": figure1.draw, "figure2": figure2.draw, "figure3": figure3.draw}


def entropic_plan(x, y, a, b, eps):
    """POT's answer, with the squared distance."""
    cost = (y[None] - x[:, None]) ** 2
    return ot.bregman.sinkhorn_log(a, b, cost, eps, numItermax=200_000, stopThr=1e-14)


# ---- the numbers behind the figures


def test_exact_plan_of_figure1_by_hand():
    # Five values of mass 0.2 poured in order into 0.48, 0.16 and 0.36.
    by_hand = [[0.2, 0, 0], [0.2, 0, 0], [0.08, 0.12, 0], [0, 0.04, 0.16], [0, 0, 0.2]]
    P = figure1.exact_plan(figure1.X, figure1.B)
    np.testing.assert_allclose(P[figure1.X.argsort()], by_hand, atol=1e-12)


def test_exact_plan_is_that_of_pot():
    x = torch.randn(17, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    b = torch.rand(6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    b = b / b.sum()
    pot = ot.emd_1d(x.numpy(), np.arange(6.0), np.full(17, 1 / 17), b.numpy())
    np.testing.assert_allclose(figure1.exact_plan(x, b), pot, atol=1e-12)


def test_figure2_runs_from_the_hard_answers_to_the_means():
    ranks, ordered = figure2.sweep()
    assert ranks.shape == ordered.shape == (len(figure2.EPS), 10)
    np.testing.assert_allclose(ranks[0], figure2.X.argsort().argsort() + 1, atol=1e-3)  # 0 and 9 begin to meet
    np.testing.assert_allclose(ordered[0], figure2.X.sort().values, atol=1e-5)
    np.testing.assert_allclose(ranks[-1], 5.5, atol=0.1)
    np.testing.assert_allclose(ordered[-1], figure2.X.mean(), atol=0.01)
    # Transport moves mass and loses none: averages stay, whatever eps.
    np.testing.assert_allclose(ranks.mean(1), 5.5, atol=1e-8)
    np.testing.assert_allclose(ordered.mean(1), figure2.X.mean().expand(len(ordered)), atol=1e-9)


def test_figure2_shows_what_the_paper_says_of_entries_0_and_9():
    """A rank apart when eps is small, almost equal at 1e-2, where all other neighbours are still clearly apart."""
    ranks, _ = figure2.sweep()
    hard = figure2.X.argsort().argsort()
    assert (hard[0] - hard[9]).abs() == 1
    apart = (ranks[:, 0] - ranks[:, 9]).abs()
    assert apart[0] == pytest.approx(1.0, abs=1e-3)
    at = int((figure2.EPS - 1e-2).abs().argmin())
    gaps = ranks[at].sort().values.diff().sort().values
    assert apart[at] == pytest.approx(gaps[0].item(), abs=1e-12)
    assert apart[at] < 0.15
    assert gaps[1] > 0.5


def test_figure3_quantile_is_that_of_pot():
    weights = np.array([0.25, 0.1, 0.65])
    x = figure3.X.numpy()
    P = entropic_plan(x, np.array([0.0, 0.5, 1.0]), np.full(20, 0.05), weights, figure3.EPS)
    assert figure3.quantile().item() == pytest.approx((P[:, 1] @ x) / 0.1, abs=1e-9)
    np.testing.assert_allclose(figure3.plan().matrix(), P, atol=1e-9)


# ---- the independent solver of the demo


def test_dense_plan_of_two_by_two_in_closed_form():
    c, eps = 0.7, 0.2
    P = dense_plan(np.array([[0.0, c], [c, 0.0]]), np.array([0.5, 0.5]), np.array([0.5, 0.5]), eps)
    stays = 0.5 / (1 + np.exp(-c / eps))
    np.testing.assert_allclose(P, [[stays, 0.5 - stays], [0.5 - stays, stays]], atol=1e-14)


@pytest.mark.parametrize("eps", [1.0, 0.1, 0.02])
def test_dense_plan_is_that_of_pot(eps):
    rng = np.random.default_rng(5)
    x, y, a, b = rng.random(9), np.linspace(0, 1, 4), rng.dirichlet(np.ones(9)), rng.dirichlet(np.ones(4))
    P = dense_plan((y[None] - x[:, None]) ** 2, a, b, eps)
    np.testing.assert_allclose(P, entropic_plan(x, y, a, b, eps), atol=1e-10)


def test_demo_agrees_with_the_independent_solver():
    table = demo.checks()
    marginal_errors, wrong = (list(column.cells) for column in table.columns[-2:])
    assert len(wrong) == 7
    assert max(map(float, marginal_errors)) <= 1e-10  # what Newton is asked for
    assert max(map(float, wrong)) <= 1e-8


# ---- the pictures


def test_palette_keeps_its_order_in_grayscale():
    lightness = [np.dot(to_rgb(color), (0.299, 0.587, 0.114)) for color in shades(20)]
    assert all(later > earlier for earlier, later in itertools.pairwise(lightness))
    assert len(shades(1)) == 1


def test_arrows_are_as_wide_as_the_mass_they_move():
    axes = Figure().subplots()
    P = np.array([[0.3, 0.1], [0.0, 0.6]])
    draw_plan(axes, np.array([0.1, 0.8]), np.array([0.0, 1.0]), P, ["#000000"] * 2, ["#888888"] * 2, scale=0.5)
    arrows = [path.vertices for path in axes.collections[0].get_paths()]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    feet = [sorted(p[0] for p in arrow if p[1] == arrow[:, 1].min()) for arrow in arrows]
    np.testing.assert_allclose([foot[-1] - foot[0] for foot in feet], [0.15, 0.05, 0.3])
    np.testing.assert_allclose([bar.get_width() for bar in bars], [0.2, 0.3, 0.15, 0.35])
    # Side by side on the bar of the first value, which is centred on it.
    np.testing.assert_allclose([feet[0][0], feet[0][-1], feet[1][-1]], [0.0, 0.15, 0.2], atol=1e-12)


@pytest.mark.parametrize("name", DRAWINGS)
def test_no_text_covers_another(name):
    figure = DRAWINGS[name]()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [
        (text.get_text(), text.get_window_extent(canvas.get_renderer()))
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and (text.axes is None or _shown(text))
    ]
    assert len(boxes) > 15
    overlaps = [(s, t) for (s, one), (t, other) in itertools.combinations(boxes, 2) if _area(one, other) > 1.0]
    assert overlaps == []


def _shown(text):
    """Ticks keep labels that are outside of the axis's range, and do not draw them."""
    axes = text.axes
    for axis in (axes.xaxis, axes.yaxis):
        if any(text in (tick.label1, tick.label2) for tick in (*axis.majorTicks, *axis.minorTicks)):
            drawn = axis.get_majorticklabels() if axes.axison else []
            low, high = sorted(axis.get_view_interval())
            at = text.get_position()[0 if axis is axes.xaxis else 1]
            return text in drawn and low <= at <= high
    return True


def _area(one, other):
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return max(width, 0.0) * max(height, 0.0)


def test_figures_are_saved_as_png_and_svg(tmp_path):
    png, svg = save(figure3.draw(), tmp_path / "new" / "folder", "picture", dpi=50)
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    assert "<svg" in svg.read_text()[:1000]
    again = save(figure3.draw(), tmp_path, "again", formats=["svg"])
    assert again[0].read_bytes() == svg.read_bytes()


# ---- the demo


def test_demo_end_to_end(tmp_path, monkeypatch):
    """All of it, with the trainings cut to an epoch or two."""
    short = {
        name: (title, dataclasses.replace(knobs, runs=2, epochs=2)) for name, (title, knobs) in demo.TRAININGS.items()
    }
    short["quantile-regression"] = (
        short["quantile-regression"][0],
        dataclasses.replace(short["quantile-regression"][1], steps=5),
    )
    monkeypatch.setattr(demo, "TRAININGS", short)
    monkeypatch.setattr(demo, "SEEDS", range(2))
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    written = demo.run(tmp_path / "out", console)
    assert all(path.exists() for path in written)
    names = {path.name for path in (tmp_path / "out/figures").iterdir()}
    assert names == {f"{name}.{suffix}" for name in FIGURES for suffix in ("png", "svg")}
    said = console.file.getvalue()
    assert "How exact are they?" in said
    sentences = re.sub(r"\s+", " ", said)
    assert sentences.count(" of 2 runs).") == 3
    assert sentences.index("cross-entropy (lower in") < sentences.index("How exact are they?")
    assert "Least-quantile regression on diabetes: 2 runs of 4 trainings ... The 50% quantile" in sentences
    assert "Test lists in the right order: " in sentences
    assert "Test accuracy: " in sentences
    files = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert [name for name in files if "cifar" in name or "mnist" in name] == []
    assert str(tmp_path / "out/report/report.html") in said
    assert [line for line in said.splitlines() if len(line) > 80 and str(tmp_path) not in line] == []
    page = (tmp_path / "out/report/report.html").read_text()
    for word in ("diabetes", "Sorting 2-digit numbers", "transport, scores as they are", "0/1 loss, k = 1"):
        assert word in page
    assert page.index("Held-out metrics") < page.index("Figures 1 to 3")
    assert f"demo --out {tmp_path / 'out'}</code>" in page
    for word in ("Not run", "0.00 h", "sinksort report"):
        assert word not in page


def test_table_shows_hard_ranks_and_sorted_values():
    console = Console(width=100)
    with console.capture() as shown:
        console.print(demo.soft_against_hard())
    cells = [line.strip("│ ").split("│") for line in shown.get().splitlines() if line.startswith("│")]
    x, hard_rank, hard_sort = ([float(row[i]) for row in cells] for i in (0, 1, 5))
    assert x == [0.53, 0.92, 0.13, 0.71, 0.36, 0.02, 0.82, 0.24, 0.63, 0.52]
    assert hard_rank == [6, 10, 2, 8, 4, 1, 9, 3, 7, 5]
    assert hard_sort == sorted(x)
