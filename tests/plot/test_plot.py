"""Pictures and texts of plans: what is drawn is what the operators say, and a missing package is named."""

from __future__ import annotations

import io
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from rich.console import Console

import sinksort
from sinksort import plot
from sinksort.plot.style import MASS
from sinksort.snapshot import hard_plan, snapshot
from tests import oracles

X = torch.tensor([0.38, 4.0, -2.0, 6.0, -9.0], dtype=torch.float64)
DRAWINGS = [plot.flow, plot.matrix, plot.ranks, plot.sorted_values]


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def axes():
    return Figure().subplots()


# ---- what is drawn


def test_hard_plan_is_that_of_pot():
    rng = np.random.default_rng(0)
    x, a, b = rng.normal(size=13), rng.dirichlet(np.ones(13)), rng.dirichlet(np.ones(5))
    np.testing.assert_allclose(hard_plan(x, a, b), oracles.exact_plan(x, a, b), atol=1e-12)


def test_hard_plan_of_ties_is_the_limit_of_soft_ones():
    x = torch.tensor([1.0, 3.0, 1.0, 2.0], dtype=torch.float64)
    a = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    soft = sinksort.transport(x, weights=a, num_targets=3, eps=1e-4).matrix()
    np.testing.assert_allclose(hard_plan(x.numpy(), a.numpy(), np.full(3, 1 / 3)), soft, atol=1e-6)


def test_snapshot_is_what_the_plan_says():
    plan = sinksort.transport(X, eps=0.05, num_targets=3)
    row = snapshot(plan)
    np.testing.assert_array_equal(row.P, plan.matrix())
    np.testing.assert_array_equal(row.ranks, plan.ranks())
    np.testing.assert_array_equal(row.sorted, plan.sorted())
    np.testing.assert_allclose(row.P.sum(1), row.a)
    np.testing.assert_allclose(row.P.sum(0), row.b)
    assert (row.eps, row.iterations, row.converged) == (0.05, int(plan.iterations), True)


@pytest.mark.parametrize("descending", [False, True])
def test_snapshot_of_a_padded_row_is_that_of_the_row(descending):
    padded = torch.tensor([[0.38, 4.0, 77.0, -2.0, 6.0, torch.nan, -9.0], [0.0] * 7], dtype=torch.float64)
    mask = torch.tensor([True, True, False, True, True, False, True])
    one = snapshot(sinksort.transport(X, descending=descending))
    other = snapshot(sinksort.transport(padded, mask=mask, descending=descending), (0,))
    for name in ("x", "a", "y", "b", "P", "ranks", "sorted", "hard_matrix", "hard_ranks", "hard_sorted"):
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), atol=1e-9, err_msg=name)


def test_descending_is_the_mirror():
    up, down = (snapshot(sinksort.transport(X, eps=0.05, descending=descending)) for descending in (False, True))
    np.testing.assert_allclose(down.P, up.P[:, ::-1], atol=1e-12)
    np.testing.assert_allclose(down.hard_matrix, up.hard_matrix[:, ::-1])
    np.testing.assert_allclose(down.hard_sorted, up.hard_sorted[::-1])
    np.testing.assert_allclose(down.y, up.y[::-1])


def test_spread_is_that_of_rank_spread():
    from sinksort.schedules import rank_spread

    np.testing.assert_allclose(snapshot(sinksort.transport(X, eps=0.05)).spread(), rank_spread(X, eps=0.05), atol=1e-9)


def test_flow_draws_every_arrow_as_wide_as_its_mass():
    plan = sinksort.transport(X, eps=0.2)
    ax = plot.flow(plan, axes())
    arrows = [path.vertices for path in ax.collections[0].get_paths()]
    P = plan.matrix()[X.argsort()]
    feet = [np.ptp(arrow[arrow[:, 1] == arrow[:, 1].min(), 0]) for arrow in arrows]
    np.testing.assert_allclose(feet, 0.6 * 15.0 * P[P > 2e-4], rtol=1e-9)  # the values span 15, all mass 0.6 of that


def test_flow_writes_ranks_and_sorted_values():
    plan = sinksort.transport(X, eps=0.05)
    ax = plot.flow(plan, axes())
    below = [text for text in ax.texts if text.get_position()[1] < 0]
    above = [text for text in ax.texts if text.get_position()[1] > 1]
    np.testing.assert_allclose([text.get_position()[0] for text in below], X.sort().values)
    np.testing.assert_allclose([float(text.get_text()) for text in below], plan.ranks().sort().values, rtol=5e-3)
    np.testing.assert_allclose([float(text.get_text()) for text in above], plan.sorted(), rtol=5e-3)


def test_matrix_marks_where_the_hard_sort_goes():
    plan = sinksort.transport(X)
    ax = plot.matrix(plan, axes())
    np.testing.assert_array_equal(ax.images[0].get_array(), plan.matrix())
    target, value = ax.lines[0].get_data()
    assert dict(zip(value, target, strict=True)) == {1: 3, 2: 4, 3: 2, 4: 5, 5: 1}


@pytest.mark.parametrize("draw", [plot.ranks, plot.sorted_values])
def test_soft_and_hard_are_beside_each_other(draw):
    ax = draw(sinksort.transport(X, eps=0.05), axes())
    soft = next(c for c in ax.collections if isinstance(c, PathCollection)).get_offsets()
    hard = np.stack(ax.lines[0].get_data(), 1)
    ranks, ordered = sinksort.soft_rank(X, eps=0.05), sinksort.soft_sort(X, eps=0.05)
    at, expected, exact = (
        (X, ranks, [3, 4, 2, 5, 1]) if draw is plot.ranks else ([1, 2, 3, 4, 5], ordered, X.sort().values)
    )
    np.testing.assert_allclose(soft, np.stack([at, expected], 1), atol=1e-8)
    np.testing.assert_allclose(hard, np.stack([at, exact], 1), atol=1e-12)


@pytest.mark.parametrize(
    ("draw", "operator"), [(plot.rank_curves, sinksort.soft_rank), (plot.sorted_curves, sinksort.soft_sort)]
)
def test_curves_pass_through_the_operators(draw, operator):
    eps = torch.tensor([1e-3, 1e-2, 1e-1, 1.0])
    ax = draw(X, eps, axes())
    lines = np.array([line.get_ydata() for line in ax.lines if len(line.get_xdata()) == 4])
    expected = np.stack([operator(X, eps=float(e)) for e in eps], 1)
    np.testing.assert_allclose(lines, expected, atol=1e-6)  # eps above is in single precision


def test_mass_is_darker_in_grayscale_where_there_is_more():
    lightness = [np.dot(to_rgb(MASS(k / 20)), (0.299, 0.587, 0.114)) for k in range(21)]
    assert (np.diff(lightness) < 0).all()


# ---- how the functions are called


@pytest.mark.parametrize("draw", DRAWINGS)
def test_axes_are_those_that_came_or_new_ones(draw):
    plan, ax, others = sinksort.transport(X), axes(), plt.get_fignums()
    assert draw(plan, ax) is ax
    assert plt.get_fignums() == others
    new = draw(plan).figure.number
    assert plt.get_fignums() == [*others, new]


@pytest.mark.parametrize("draw", DRAWINGS)
@pytest.mark.parametrize("x", [torch.tensor([2.0]), torch.ones(4), torch.arange(150.0)])
def test_few_equal_and_many_values(draw, x):
    draw(sinksort.transport(x, eps=1e-2), axes()).figure.savefig(io.BytesIO(), dpi=20)


def test_errors_tell_what_came_and_what_to_do():
    with pytest.raises(ValueError, match=r"plan must be of one row.*rows of shape \(2,\); .*transport\(x\[0\]\)"):
        plot.flow(sinksort.transport(torch.randn(2, 3)))
    with pytest.raises(TypeError, match=r"plan must be a sinksort.Plan, got Tensor; make one with sinksort.transport"):
        plot.matrix(X)
    with pytest.raises(TypeError, match=r"ax must be a matplotlib Axes, got Figure; make one with plt.subplots\(\)"):
        plot.ranks(sinksort.transport(X), Figure())
    with pytest.raises(ValueError, match=r"x must be a tensor of one row of values, \(n,\), got shape \(2, 3\)"):
        plot.rank_curves(torch.randn(2, 3))


# ---- a plan shows itself


def test_a_prompt_shows_one_line():
    assert repr(sinksort.transport(X, num_targets=3)).startswith("Plan(values 5, targets 3, eps 0.01, iterations ")
    batch = repr(sinksort.transport(torch.randn(2, 3, 7), eps=torch.tensor([[0.1], [0.2]])))
    assert batch.startswith("Plan(rows 2 x 3, values a row 7, targets a row 7, eps 0.1 to 0.2, iterations ")
    assert batch.endswith("converged yes)")


def test_a_plan_that_did_not_converge_says_so():
    with pytest.warns(RuntimeWarning):
        plan = sinksort.transport(torch.randn(2, 50), eps=1e-3, solver=sinksort.Sinkhorn(max_iterations=1))
    assert "converged no, 2 of 2 rows did not" in repr(plan)


def test_a_plan_can_be_printed_where_values_are_not_there_yet():
    seen = []
    torch.func.vmap(lambda x: (seen.append(repr(sinksort.transport(x))), x)[1])(torch.randn(2, 3))
    assert seen == ["Plan(values 3, targets 3)"]


def test_a_terminal_shows_where_mass_goes():
    console = Console(width=100, file=io.StringIO())
    console.print(sinksort.transport(X, eps=1e-3))
    said = console.file.getvalue()
    lines = [line.strip("│").rstrip() for line in said.splitlines()]
    where = {line.split()[0]: line.index("█") for line in lines if "█" in line}
    assert sorted(where, key=where.get) == ["-9", "-2", "0.38", "4", "6"]  # dark blocks lie in the order of the values
    assert "soft sorted -9, -2, 0.38, 4, 6" in said


def test_a_terminal_shows_part_of_many_values():
    console = Console(width=80, file=io.StringIO())
    console.print(sinksort.transport(torch.randn(3, 90)))
    lines = console.file.getvalue().splitlines()
    assert len(lines) < 30
    assert any("and 74 more" in line for line in lines)


@pytest.mark.parametrize(("n", "drawn"), [(5, "values below, targets above"), (80, "as a matrix")])
def test_a_notebook_shows_facts_and_a_picture(n, drawn):
    plan = sinksort.transport(torch.randn(2, n))
    page = plan._repr_html_()
    assert f"<td>{n}</td>" in page
    assert drawn in page
    assert "src='data:image/png;base64,iVBORw0KGgo" in page
    assert plan._repr_png_().startswith(b"\x89PNG\r\n")
    assert len(plan._repr_png_()) < 60_000


def test_missing_matplotlib_is_named_and_a_plan_does_without():
    code = (
        "import importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'matplotlib' else real(name, *a)\n"
        "import torch, sinksort\n"
        "plan = sinksort.transport(torch.tensor([1.0, 2.0]))\n"
        "print(plan, plan._repr_png_(), '<img' in plan._repr_html_(), '<td>2</td>' in plan._repr_html_())\n"
        "import sinksort.plot"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.stdout.endswith(" None False True\n")
    said = told.stderr.strip().splitlines()[-1]
    assert said == (
        "ModuleNotFoundError: sinksort.plot needs matplotlib, which is not installed; run: pip install 'sinksort[plot]'"
    )
