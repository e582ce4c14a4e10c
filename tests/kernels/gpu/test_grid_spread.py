"""What values bring to the nodes of a long row's grid, in Triton, against sums in double precision."""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is made for Linux only")

import triton  # after the check that it is there
import triton.language as tl

from sinksort.kernels.gpu.engine.maths import CODES, load_single, moments, placed_single, single_facts
from sinksort.kernels.gpu.engine.tables import HEAD, LEAST, STEP
from sinksort.kernels.gpu.grid.nodes import add_up, from_counts, from_moments
from sinksort.kernels.gpu.grid.rows import cut, strided
from sinksort.kernels.gpu.grid.spread import spread, spread_cotangents, to_nodes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK, WARPS = 256, 4


@triton.jit
def add_up_rows(chunks, to_nodes, room, out, G, skip, UP: tl.constexpr, COUNTS: tl.constexpr):
    row = tl.program_id(0)
    M = from_counts() if COUNTS else from_moments(to_nodes)
    chunks += row * G * skip + (UP if COUNTS else 0)
    add_up(chunks, G, skip, M, room + row * UP, out + row * UP, UP, False)


@triton.jit
def standardise(x, out, mean, std, n, SQUASH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    unit, middle, rest, offset = single_facts(tl.load(mean), tl.load(std), SQUASH)
    v = load_single(x, tl.program_id(0), at, 0, 1, n)
    _xi, _slope, z = placed_single(v, unit, middle, rest, offset, float("inf"), SQUASH)
    tl.store(out + at, z, mask=at < n)


class Spread:
    """Rows x with weights a, or cotangents w for weights, at the nodes of a grid."""

    def __init__(self, x, HI, squash=None, a=None, w=None):
        (R, n), UP, code, weighted = x.shape, 16 * HI, CODES[squash], a is not None
        G, tiles = cut(R, n, BLOCK)
        empty = lambda size, dtype=torch.float32: torch.empty(size, dtype=dtype, device=DEVICE)  # noqa: E731
        stats, state = empty(R * G * 8, torch.float64), empty((R, HEAD.value))
        of_a = strided(x if a is None else a)
        kind = {"SQUASH": code, "WEIGHTED": weighted}
        moments[(R * G,)](*strided(x), *of_a, x, 0, 2, stats, n, tiles, G, **kind, RULE=True, BLOCK=BLOCK)
        width = UP * (1 + weighted)
        chunks, room = empty(R * G * width), empty(R * UP)
        masses, present = torch.full((2, R, UP), torch.nan, device=DEVICE)
        shape = {"HI": HI, "BLOCK": BLOCK, "SLABS": WARPS, "num_warps": WARPS}
        spread[(R * G,)](
            *strided(x),
            *of_a,
            stats,
            G,
            state,
            HEAD.value,
            0,
            chunks,
            G * width,
            n,
            tiles,
            G,
            **kind,
            GP=16,
            ROW_SIZE=0,
            **shape,
        )
        if w is not None:
            spread_cotangents[(R * G,)](
                *strided(x), *strided(w), state, HEAD.value, 0, chunks, G * width, n, tiles, G, SQUASH=code, **shape
            )
        matrix = to_nodes(DEVICE)
        add_up_rows[(R,)](chunks, matrix, room, masses, G, width, UP=UP, COUNTS=False)
        if weighted:
            add_up_rows[(R,)](chunks, matrix, room, present, G, width, UP=UP, COUNTS=True)
        self.nodes = 9 * HI + 7
        assert masses[:, self.nodes :].isnan().all()  # what stands there may be somebody else's
        self.masses, self.present = masses[:, : self.nodes].double(), present[:, : self.nodes]
        self.least, self.step = state[:, LEAST.value, None].double(), state[:, STEP.value, None].double()

    def sum(self, f):
        """Of f at the nodes, which is a function of places counted in cells."""
        q = torch.arange(self.nodes, device=DEVICE).double()
        return (self.masses * f(q - 3)).sum(-1)

    def places(self, x):
        return (x.double() - self.least) / self.step


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize(("HI", "h", "back"), [(16, 3, False), (16, 12, True), (32, 21, False), (32, 7, True)])
def test_sums_of_polynomials_of_degree_15_in_a_wide_cell(HI, h, back):
    """Two values make 0 and 1 the ends; the others are in one wide cell, whose sixteen nodes have no others."""
    n = 700
    x = (h + 0.002 + 0.996 * uniform(1, n)) / HI
    x[0, 0], x[0, n - 1] = 0.0, 1.0
    w = torch.randn(1, n, generator=torch.Generator().manual_seed(1)).to(DEVICE) if back else None
    found = Spread(x, HI, w=w)
    weight = torch.ones_like(x[:, 1:-1]).double() if w is None else w[:, 1:-1].double()
    places = found.places(x)[:, 1:-1]
    for degree in range(16):

        def polynomial(place, degree=degree):
            """Chebyshev's, of the interval from the first node to the last, and none outside."""
            t = (place - 9 * h - 4.5) / 7.5
            return torch.where(t.abs() <= 1, torch.cos(degree * torch.acos(t.clamp(-1, 1))), 0.0)

        wanted = (weight * polynomial(places)).sum(-1)
        assert (found.sum(polynomial) - wanted).abs() <= 1e-6 * weight.abs().sum()


@pytest.mark.parametrize(("squash", "HI"), [("sigmoid", 16), ("arctan", 32)])
def test_rows_of_any_length_and_stride_with_weights_of_any_size(squash, HI):
    n = 1001
    x = torch.randn(2, n + 2, generator=torch.Generator().manual_seed(2)).to(DEVICE)[:, 1:-1]
    a = 10.0 ** (-6 * uniform(2, n + 1, seed=3))[:, 1:]
    found = Spread(x, HI, squash, a)
    wide, weight = x.double(), a.double()
    total = weight.sum(-1, keepdim=True)
    mean = (weight * wide).sum(-1, keepdim=True) / total
    z = (wide - mean) / ((weight * (wide - mean) ** 2).sum(-1, keepdim=True) / total).sqrt()
    places = found.places(torch.sigmoid(z) - 0.5 if squash == "sigmoid" else torch.atan(z) / math.pi)
    for middle in torch.linspace(0, 9 * HI, 7).tolist():

        def bump(place, middle=middle):
            return torch.exp(-0.5 * ((place - middle) / 6) ** 2)

        wanted = (weight * bump(places)).sum(-1)
        assert ((found.sum(bump) - wanted).abs() <= 1e-6 * total[:, 0]).all()
    assert torch.allclose(found.masses.sum(-1), total[:, 0], rtol=3e-7)


def test_where_there_are_values_of_any_weight():
    """Two groups with a gap between them, values in the middles of cells, most of which weigh nothing."""
    HI, n = 16, 300
    generator = torch.Generator().manual_seed(5)
    cells = torch.cat([torch.randint(4, 30, (n // 2,), generator=generator), torch.arange(n // 2) // 3 + 90])
    x = ((cells + 0.5) / (9 * HI))[None].to(DEVICE)
    x[0, 0], x[0, 1] = 0.0, 1.0
    cells[0], cells[1] = 0, 9 * HI - 1
    found = Spread(x, HI, a=uniform(1, n) * (uniform(1, n, seed=1) > 0.7))
    wanted = torch.zeros(9 * HI + 7, dtype=torch.bool, device=DEVICE)
    for node in range(8):
        wanted[cells + node] = True
    assert torch.equal(found.present[0] != 0, wanted)
    assert not wanted[40:90].any()


def test_infinite_values_are_at_the_ends_and_nan_in_its_row():
    """Without a squash the ends are the outermost targets, 0 and 1."""
    x = uniform(2, 300)
    x[0, 5], x[0, 6], x[0, 7] = math.inf, -math.inf, math.inf
    x[1, 3] = math.nan
    found = Spread(x, 16)
    x[0, 5], x[0, 6], x[0, 7] = 1.0, 0.0, 1.0
    assert torch.equal(found.masses[0], Spread(x, 16).masses[0])
    assert found.masses[1, : found.nodes].isnan().all()


@pytest.mark.parametrize(
    ("scale", "shift", "dtype"),
    [
        *[(scale, 0.0, torch.float32) for scale in (1.0, 1e-30, 1e30, 1e-42, 5e37)],
        *[(1.0, 1e6, torch.float32), (1e-30, 3e-27, torch.float32)],
        *[(1.0, 3.0, torch.float16), (1e30, 0.0, torch.bfloat16)],
    ],
)
def test_standardising_without_double_precision(scale, shift, dtype):
    """To three units in the last place: the interpreter rounds a multiply-add twice."""
    x = (scale * torch.randn(500, generator=torch.Generator().manual_seed(4)).double() + shift).to(dtype)
    wide = x.double()
    mean, std = wide.mean(), wide.std(correction=0)
    x[7], x[8] = math.inf, -math.inf
    found = torch.empty(500, device=DEVICE)
    standardise[(1,)](x.to(DEVICE), found, mean.to(DEVICE), std.to(DEVICE), 500, SQUASH=1, BLOCK=512)
    z = ((wide - mean) / std).numpy()
    z[7], z[8] = 1e9, -1e9
    units = np.spacing(np.abs(z).astype(np.float32))
    assert (np.abs(found.cpu().double().numpy() - z) <= 3 * units + 1e-10).all()
