"""Parts of Numba's kernels by themselves, against what they are made to do."""

from __future__ import annotations

import numpy as np
import pytest

from sinksort.linear import rules

numba_rows_grid = pytest.importorskip("sinksort.kernels.cpu.row.grid")

numba_rows_read = pytest.importorskip("sinksort.kernels.cpu.row.read")

CELLS, N, LOW, HIGH = 11, 37, -1.1, 1.1
WHOLE = 48  #: a row is as long as whole vectors of sixteen; what is behind its values weighs nothing


class Grid:
    """Values on a grid, one of them at each end, and none in its third cell."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        at = np.sort(random.uniform(LOW, HIGH, N))
        at[0], at[-1] = LOW, HIGH
        width = (HIGH - LOW) / CELLS
        at[(at > LOW + 2 * width) & (at < LOW + 3 * width)] = LOW
        self.at = np.concatenate([at, np.full(WHOLE - N, HIGH)])
        self.weight = np.zeros(WHOLE, np.float32)
        self.weight[:N] = random.uniform(0.5, 1.5, N)
        self.nodes = np.empty(CELLS + numba_rows_grid.BEYOND)
        numba_rows_grid.lay_grid(LOW, HIGH, CELLS, self.nodes)
        self.cell, self.within = np.empty(WHOLE, np.int64), np.empty(WHOLE, np.float32)
        numba_rows_grid.locate(self.at, N, LOW, HIGH, CELLS, self.cell, self.within)
        self.of_cells = np.full(numba_rows_grid.PER_CELL * CELLS + 16, np.nan)
        numba_rows_grid.moments(self.weight, N, CELLS, self.cell, self.within, self.of_cells)

    def on_nodes(self, of: str) -> np.ndarray:
        out = np.full(CELLS + numba_rows_grid.BEYOND + 16, np.nan, np.float32)
        getattr(numba_rows_grid, of)(self.of_cells, CELLS, out)
        assert np.isnan(out[len(self.nodes) :]).all()  # nothing is written beyond
        return out[: len(self.nodes)].astype(float)


@pytest.mark.parametrize(("of", "degree"), [("masses", 5), ("hats", 1)])
def test_weights_of_nodes_have_the_moments_of_the_values(of: str, degree: int) -> None:
    grid = Grid()
    weights = grid.on_nodes(of)
    for p in range(degree + 1):
        truth = (grid.weight * grid.at**p).sum()
        assert (weights * grid.nodes**p).sum() == pytest.approx(truth, rel=2e-6), p
    if of == "hats":
        assert (weights >= 0).all()


def test_nodes_at_the_ends_of_cells_that_hold_values_are_occupied() -> None:
    truth = np.zeros(CELLS + numba_rows_grid.BEYOND)
    truth[2 : CELLS + 3] = 1.0  # one cell is empty, but both of its ends are those of others
    assert (Grid().on_nodes("occupied_nodes") == truth).all()


def test_interpolation_is_exact_for_quintics_and_measures_what_is_left_of_sixth_powers() -> None:
    grid = Grid()
    out, coef = np.empty(WHOLE, np.float32), np.empty(numba_rows_grid.PER_CELL * CELLS, np.float32)
    occupied = np.zeros(CELLS + 32, np.float32)
    occupied[: len(grid.nodes)] = grid.on_nodes("occupied_nodes")
    values = np.zeros(CELLS + 32, np.float32)
    for p in range(7):
        values[: len(grid.nodes)] = grid.nodes**p
        numba_rows_grid.polynomials(values, CELLS, coef)
        numba_rows_grid.interpolate(coef, N, grid.cell, grid.within, out)
        off = np.abs(out[:N] - grid.at[:N] ** p).max()
        left = numba_rows_grid.remainder(values, CELLS, occupied)
        scale = np.abs(grid.nodes).max() ** p
        if p < 6:
            assert off <= 1e-6 * scale, p
            assert left <= 1e-6 * scale, p
        else:
            sixth = 720 * ((HIGH - LOW) / CELLS) ** 6
            assert left == pytest.approx(5 / 1024 * sixth, rel=0.01)


def test_kernels_look_at_the_last_coefficients_of_a_rule() -> None:
    """Kernels are compiled again when a source of theirs changes, so no number of theirs may come from ``rules``."""
    assert numba_rows_read.BEFORE_LASTS + numba_rows_read.LASTS == rules.LAST


@pytest.mark.parametrize("kind", ["even", "crowded"])
def test_places_are_sorted_and_the_last_one_is_repeated(kind: str) -> None:
    numba_rows_sources = pytest.importorskip("sinksort.kernels.cpu.engine.sources")
    random = np.random.default_rng(1)
    at = random.uniform(0.0, 1.0, N) ** (1 if kind == "even" else 40)
    out, order = np.full(WHOLE, np.nan), np.full(WHOLE, -1, np.int32)
    numba_rows_sources.sort_places(at, N, at.min(), at.max(), order, np.empty(N + 1, np.int64), out)
    assert (out[:N] == np.sort(at)).all()
    assert (at[order[:N]] == out[:N]).all()
    assert (out[N:] == at.max()).all()
