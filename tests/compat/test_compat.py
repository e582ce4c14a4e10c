"""Drop-ins: recorded answers of the originals, the definition by brute force, derivatives, and what is wrong."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import sinksort.compat.torchsort as torchsort
from sinksort.compat.fast_soft_sort import numpy_ops, pytorch_ops
from sinksort.relaxations import Permutahedron, rank, sort
from tests.devices import DEVICES

WIDE = torch.float64
REGULARIZATIONS = ["l2", "kl"]
STRENGTHS = [0.01, 0.7, 20.0]
SQUARES = torch.arange(1.0, 7.0, dtype=WIDE).square()
NAN, INF = float("nan"), float("inf")


def rows(*shape, seed=0, dtype=WIDE):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# ---- the originals

#: Answers of torchsort 0.1.10 for (row, strength), and gradients of their inner product with 1, 4, 9, 16, 25, 36.
DISTINCT, TIED = ([0.5, -1.2, 2.0, 0.4, 0.45, -1.0], 0.7), ([0.7, -0.3, 0.7, 1.9, -0.3, 0.2], 0.9)
TORCHSORT = [
    ("soft_rank", "l2", DISTINCT,
     [3.957142857143, 1.528571428571, 6.0, 3.814285714286, 3.885714285714, 1.814285714286],
     [-22.0, -17.7142857143, 0.0, -0.5714285714, 12.2857142857, 28.0]),
    ("soft_sort", "l2", DISTINCT,
     [-1.2, -1.0, 0.4, 0.45, 0.535714285714, 1.964285714286], [30.5, 1.0, 30.5, 9.0, 16.0, 4.0]),
    ("soft_rank", "kl", DISTINCT,
     [4.288868626886, 1.28716020935, 6.0, 3.71792542758, 3.993205945534, 1.71283979065],
     [-77.4068407933, -33.5954167393, 0.0, 12.5675510178, 64.8392897755, 33.5954167393]),
    ("soft_sort", "kl", DISTINCT,
     [-1.2, -1.0, 0.4, 0.45, 0.513416639803, 1.941988068375],
     [49.8720430478, 1.0, 11.1279569522, 9.0, 16.0, 4.0]),
    ("soft_rank", "l2", TIED,
     [3.74074074074, 2.62962962963, 3.74074074074, 5.07407407407, 2.62962962963, 3.18518518519],
     [-15.7407407407, -12.4074074074, -6.85185185185, 0.925925925926, 10.9259259259, 23.1481481481]),
    ("soft_sort", "l2", TIED,
     [-0.3, -0.3, 0.2, 0.7, 0.744444444444, 1.85555555556], [16.0, 1.0, 30.5, 30.5, 4.0, 9.0]),
    ("soft_rank", "kl", TIED,
     [4.5, 1.60303122576, 4.5, 6.0, 1.60303122576, 2.79393754847],
     [-20.0, -36.5341673303, 20.0, 0.0, 0.869894604228, 35.664272726]),
    ("soft_sort", "kl", TIED,
     [-0.3, -0.3, 0.2, 0.7, 0.721289514648, 1.83240062576],
     [16.0, 1.0, 46.8800117934, 14.1199882066, 4.0, 9.0]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "regularization", "given", "answer", "gradient"), TORCHSORT)
def test_answers_and_gradients_of_torchsort(name, regularization, given, answer, gradient):
    values, strength = given
    x = torch.tensor([values], dtype=WIDE, requires_grad=True)
    found = getattr(torchsort, name)(x, regularization=regularization, regularization_strength=strength)
    (slope,) = torch.autograd.grad((found * SQUARES).sum(), x)
    np.testing.assert_allclose(found[0].detach(), answer, atol=1e-10)
    np.testing.assert_allclose(slope[0], gradient, atol=1e-9)


#: Answers and gradients of fast-soft-sort (commit 6a52ce7) in descending order. Its gradient of soft_sort with kl is
#: not the derivative of its answer: None.
FAST_SOFT_SORT = [
    ("soft_rank", "l2",
     [3.04285714286, 5.47142857143, 1.0, 3.18571428571, 3.11428571429, 5.18571428571],
     [22.0, 17.7142857143, 0.0, 0.571428571429, -12.2857142857, -28.0]),
    ("soft_sort", "l2",
     [1.96428571429, 0.535714285714, 0.45, 0.4, -1.0, -1.2], [2.5, 36.0, 2.5, 16.0, 9.0, 25.0]),
    ("soft_rank", "kl",
     [2.78844407068, 6.0, 1.0, 3.21665147016, 2.99490445915, 5.0],
     [53.1696439278, 0.0, 0.0, -7.59360576315, -45.5760381646, 0.0]),
    ("soft_sort", "kl", [1.9865833602, 0.558011931625, 0.45, 0.4, -1.0, -1.2], None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "regularization", "answer", "gradient"), FAST_SOFT_SORT)
def test_answers_and_gradients_of_fast_soft_sort(name, regularization, answer, gradient):
    values, strength = DISTINCT
    options = {"direction": "DESCENDING", "regularization_strength": strength, "regularization": regularization}
    x = torch.tensor([values], dtype=WIDE, requires_grad=True)
    found = getattr(pytorch_ops, name)(x, **options)
    np.testing.assert_allclose(found[0].detach(), answer, atol=1e-10)
    np.testing.assert_allclose(getattr(numpy_ops, name)(values, **options), answer, atol=1e-10)
    if gradient:
        (slope,) = torch.autograd.grad((found * SQUARES).sum(), x)
        np.testing.assert_allclose(slope[0], gradient, atol=1e-9)
        operator = {"soft_rank": numpy_ops.SoftRank, "soft_sort": numpy_ops.SoftSort}[name](values, **options)
        operator.compute()
        np.testing.assert_allclose(operator.vjp(SQUARES.numpy()), gradient, atol=1e-9)


def test_readme_of_torchsort():
    x = torch.tensor([[8, 0, 5, 3, 2, 1, 6, 7, 9]])
    expected = torch.tensor([[8.0, 1, 5, 4, 3, 2, 6, 7, 9]])
    assert torch.equal(torchsort.soft_rank(x), expected)
    ordered = torchsort.soft_sort(x, regularization_strength=1.0)
    torch.testing.assert_close(ordered, torch.arange(9.0).unsqueeze(0) + 5 / 9)
    x = x.float().requires_grad_()
    (gradient,) = torch.autograd.grad(torchsort.soft_sort(x)[0, 0], x)
    torch.testing.assert_close(gradient, torch.full((1, 9), 1 / 9))


# ---- the definition


@pytest.mark.parametrize("strength", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(4))
def test_answers_are_projections_on_the_permutahedron(strength, seed):
    """The closest point p of a polytope to z: <z - p, vertex - p> <= 0 for every vertex, with equality at p itself.

    For kl, with divergence KL(p, exp z), log p takes the place of p in the first factor.
    """
    x = rows(1, 4, seed=seed)
    rho = np.arange(1.0, 5.0)
    orders = np.array(list(itertools.permutations(range(4))))

    def is_projection(p, z, vertices, gradient):
        slopes = (vertices - p) @ (z - gradient(p))
        assert slopes.max() < 1e-10
        weights, *_ = np.linalg.lstsq(np.vstack([vertices.T, np.ones(len(vertices))]), np.append(p, 1.0), rcond=None)
        np.testing.assert_allclose(
            weights @ vertices, p, atol=1e-10
        )  # in the affine hull; Rado's theorem does the rest
        assert (np.sort(p).cumsum() >= np.sort(vertices[0]).cumsum() - 1e-10).all()

    for regularization in REGULARIZATIONS:
        options = {"regularization": regularization, "regularization_strength": strength}
        ranks = torchsort.soft_rank(x, **options)[0].numpy()
        is_projection(ranks, x[0].numpy() / strength, rho[orders], np.log if regularization == "kl" else np.array)
        falling = pytorch_ops.soft_sort(x, "DESCENDING", **options)[0].numpy()
        rising = torchsort.soft_sort(x, **options)[0].numpy()
        for p, values in ((falling, x[0].numpy()), (-rising, -x[0].numpy())):
            z = rho[::-1] / strength
            if regularization == "kl":
                is_projection(np.exp(p), z, np.exp(values)[orders], np.log)
            else:
                is_projection(p, z, values[orders], np.array)


@pytest.mark.parametrize("regularization", REGULARIZATIONS)
@pytest.mark.parametrize("strength", STRENGTHS)
def test_the_same_relaxation_as_in_relaxations(regularization, strength):
    x, method = rows(5, 30), Permutahedron(regularization=regularization)
    ours = torchsort.soft_rank(x, regularization, strength)
    torch.testing.assert_close(ours, rank(x, method=method, strength=strength))
    rising = pytorch_ops.soft_sort(x, "ASCENDING", strength, regularization)
    torch.testing.assert_close(rising, sort(x, method=method, strength=strength))


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_small_strength_is_the_hard_operator(n):
    x = torch.stack([torch.randperm(n, generator=torch.Generator().manual_seed(s)) for s in range(4)]).to(WIDE)
    for regularization in REGULARIZATIONS:
        for direction, sign in (("ASCENDING", 1), ("DESCENDING", -1)):
            options = {"direction": direction, "regularization_strength": 1e-4, "regularization": regularization}
            expected = (sign * x).argsort(-1).argsort(-1) + 1.0
            torch.testing.assert_close(pytorch_ops.soft_rank(x, **options), expected.to(WIDE))
            ordered = x.sort(descending=sign < 0).values
            torch.testing.assert_close(pytorch_ops.soft_sort(x, **options), ordered)


def test_large_strength_is_the_mean_and_one_value_is_itself():
    x = rows(3, 6)
    torch.testing.assert_close(torchsort.soft_rank(x, "l2", INF), torch.full((3, 6), 3.5, dtype=WIDE))
    torch.testing.assert_close(torchsort.soft_rank(x, "kl", INF), torch.full((3, 6), 3.5, dtype=WIDE))
    torch.testing.assert_close(torchsort.soft_sort(x, "l2", INF), x.mean(-1, keepdim=True).expand(3, 6))
    alone = torch.tensor([[-2.5], [3.0]])
    for regularization in REGULARIZATIONS:
        for strength in STRENGTHS:
            torch.testing.assert_close(torchsort.soft_rank(alone, regularization, strength), torch.ones(2, 1))
            torch.testing.assert_close(torchsort.soft_sort(alone, regularization, strength), alone)


@given(
    st.lists(st.integers(-6, 6), min_size=1, max_size=20), st.sampled_from([0.1, 1.0, 3.0]),
    st.sampled_from(REGULARIZATIONS), st.sampled_from([-3.0, 0.5]),
)  # fmt: skip
def test_shifts_scales_sums_and_order(values, strength, regularization, shift):
    x = torch.tensor([values], dtype=WIDE)
    n = x.shape[1]
    ranks = torchsort.soft_rank(x, regularization, strength)
    ordered = torchsort.soft_sort(x, regularization, strength)
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(torchsort.soft_rank(x + shift, regularization, strength), ranks, **close)
    torch.testing.assert_close(torchsort.soft_rank(4 * x, regularization, 4 * strength), ranks, **close)
    torch.testing.assert_close(torchsort.soft_sort(x + shift, regularization, strength), ordered + shift, **close)
    assert ranks.sum().item() == pytest.approx(n * (n + 1) / 2)
    if regularization == "l2":
        assert ordered.sum().item() == pytest.approx(sum(values))
    assert (ordered.diff() >= -1e-9).all()
    assert ((ranks.mT - ranks)[x.mT > x] >= -1e-9).all()
    assert ((ranks.mT - ranks)[x.mT == x].abs() <= 1e-9).all()


# ---- derivatives


@pytest.mark.parametrize("function", [torchsort.soft_rank, torchsort.soft_sort])
@pytest.mark.parametrize("regularization", REGULARIZATIONS)
@pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
def test_first_and_second_derivatives(function, regularization, strength):
    x = rows(3, 6, seed=2).requires_grad_()
    assert gradcheck(lambda x: function(x, regularization, strength), (x,))
    assert gradgradcheck(lambda x: function(x, regularization, strength), (x,), atol=1e-4)
    one_a_row = torch.tensor([[strength], [2.2 * strength], [0.3 * strength]], dtype=WIDE, requires_grad=True)
    assert gradcheck(lambda x, s: function(x, regularization, s), (x, one_a_row))


@pytest.mark.parametrize("operator", [numpy_ops.SoftRank, numpy_ops.SoftSort, numpy_ops.Sort])
@pytest.mark.parametrize("direction", ["ASCENDING", "DESCENDING"])
@pytest.mark.parametrize("regularization", REGULARIZATIONS)
def test_products_of_numpy_operators_by_finite_differences(operator, direction, regularization):
    x, u, step = rows(6, seed=5).numpy(), rows(6, seed=6).numpy(), 1e-6
    options = {} if operator is numpy_ops.Sort else {"regularization": regularization, "regularization_strength": 0.8}
    at = operator(x, direction=direction, **options)
    at.compute()
    steps = step * np.eye(6)
    columns = [
        (operator(x + h, direction, **options).compute() - operator(x - h, direction, **options).compute()) / (2 * step)
        for h in steps
    ]
    jacobian = np.stack(columns, axis=1)
    np.testing.assert_allclose(at.jacobian(), jacobian, atol=1e-8)
    np.testing.assert_allclose(at.jvp(u), jacobian @ u, atol=1e-8)
    np.testing.assert_allclose(at.vjp(u), u @ jacobian, atol=1e-8)
    assert at.size == 6


@pytest.mark.parametrize("operator", [numpy_ops.Isotonic, numpy_ops.Projection])
@pytest.mark.parametrize("regularization", REGULARIZATIONS)
def test_products_of_isotonic_optimisation_and_projection(operator, regularization):
    x, w, u, step = rows(6, seed=5).numpy(), np.arange(6.0)[::-1], rows(6, seed=6).numpy(), 1e-6
    at = operator(x, w, regularization=regularization)
    at.compute()
    answers = [operator(x + h, w, regularization).compute() for h in [*(step * np.eye(6)), *(-step * np.eye(6))]]
    jacobian = np.stack([(up - down) / (2 * step) for up, down in zip(answers[:6], answers[6:], strict=True)], axis=1)
    np.testing.assert_allclose(at.jacobian(), jacobian, atol=1e-8)
    np.testing.assert_allclose(at.jvp(u), jacobian @ u, atol=1e-8)
    np.testing.assert_allclose(at.vjp(u), u @ jacobian, atol=1e-8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", [torchsort.soft_rank, torchsort.soft_sort])
@pytest.mark.parametrize("regularization", REGULARIZATIONS)
@pytest.mark.parametrize("n", [10, 300, 3000])
def test_single_precision_on_every_device(device, function, regularization, n):
    """Against double precision on the CPU. Sorted values are differences of numbers up to n / strength."""
    x, c = rows(3, n), rows(3, n, seed=1)
    found = []
    for leaf in (x.clone().requires_grad_(), x.to(device, torch.float32).requires_grad_()):
        answer = function(leaf, regularization, 0.5)
        (gradient,) = torch.autograd.grad(answer, leaf, c.to(answer))
        found.append((answer.detach().cpu().double(), gradient.cpu().double()))
    for truth, ours in zip(*found, strict=True):
        rounding = n / 0.5 * torch.finfo(torch.float32).eps
        torch.testing.assert_close(ours, truth, rtol=0, atol=2e-5 * truth.abs().max().item() + rounding)


def test_strengths_may_differ_from_row_to_row():
    x = rows(3, 8)
    strengths = torch.tensor([[0.2], [1.0], [5.0]], dtype=WIDE)
    for function in (torchsort.soft_rank, torchsort.soft_sort):
        together = function(x, "kl", strengths)
        for i in range(3):
            torch.testing.assert_close(together[i : i + 1], function(x[i : i + 1], "kl", strengths[i].item()))
        torch.testing.assert_close(function(x, "l2", torch.tensor(0.7)), function(x, "l2", torch.tensor([0.7]).item()))


@pytest.mark.parametrize("function", [torchsort.soft_rank, torchsort.soft_sort])
@pytest.mark.parametrize("regularization", REGULARIZATIONS)
def test_compiled_programs(function, regularization):
    x = rows(4, 9).requires_grad_()
    program = torch.compile(
        lambda x: function(x, regularization, 0.7).square().sum(), fullgraph=True, backend="aot_eager"
    )
    found, expected = program(x), function(x, regularization, 0.7).square().sum()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (found, expected)))


def test_transforms():
    x = rows(2, 3, 5)
    each = torch.stack([torchsort.soft_rank(rows_, "kl", 0.7) for rows_ in x])
    torch.testing.assert_close(torch.vmap(lambda x: torchsort.soft_rank(x, "kl", 0.7))(x), each)
    jacobian = torch.func.jacrev(lambda x: torchsort.soft_sort(x, "kl", 0.7))(x[0])
    torch.testing.assert_close(torch.func.jacfwd(lambda x: torchsort.soft_sort(x, "kl", 0.7))(x[0]), jacobian)


# ---- what comes in


@pytest.mark.parametrize("module", [torchsort, pytorch_ops])
@pytest.mark.parametrize("name", ["soft_rank", "soft_sort"])
def test_shapes_and_dtypes(module, name):
    """Answers have the dtype of the values, but for fast-soft-sort's soft_sort, which is float64."""
    function, widens = getattr(module, name), (module, name) == (pytorch_ops, "soft_sort")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = rows(3, 5).to(dtype).requires_grad_()
        for regularization in REGULARIZATIONS:
            found, exact = (function(t, regularization=regularization) for t in (x, x.double()))
            assert found.dtype == (WIDE if widens else dtype)
            close = 4 * torch.finfo(found.dtype).eps
            torch.testing.assert_close(found.double(), exact, rtol=close, atol=close)
            (gradient,) = torch.autograd.grad(found.sum(), x)
            assert gradient.dtype == dtype
    assert function(torch.zeros(0, 3)).shape == (0, 3)
    assert function(torch.zeros(2, 0)).shape == (2, 0)
    turned = rows(5, 3).mT
    torch.testing.assert_close(function(turned), function(turned.contiguous()))


def test_whole_numbers():
    x = torch.tensor([[3, 1, 2]])
    for name in ("soft_rank", "soft_sort"):
        for regularization in REGULARIZATIONS:
            found = getattr(torchsort, name)(x, regularization)
            torch.testing.assert_close(found, getattr(torchsort, name)(x.float(), regularization))
            found = getattr(pytorch_ops, name)(x, regularization=regularization)
            torch.testing.assert_close(found, getattr(torchsort, name)(x.double(), regularization))
            arrays = getattr(numpy_ops, name)([3, 1, 2], regularization=regularization)
            np.testing.assert_allclose(arrays, found[0])


def test_numpy_keeps_the_precision_of_ranks_and_owns_its_answers():
    x = rows(6).numpy().astype(np.float32)
    ranks = numpy_ops.SoftRank(x, regularization="kl")
    first = ranks.compute()
    assert first.dtype == np.float32
    assert ranks.vjp(np.ones(6)).dtype == np.float32
    ordered = numpy_ops.SoftSort(x)
    assert ordered.compute().dtype == ordered.vjp(np.ones(6)).dtype == ordered.jvp(np.ones(6)).dtype == np.float64
    before = ranks.vjp(np.ones(6))
    first[:] = 0.0
    x[:] = 0.0
    np.testing.assert_array_equal(ranks.vjp(np.ones(6)), before)
    backwards = rows(6).numpy()[::-1]
    backwards.flags.writeable = False
    np.testing.assert_allclose(numpy_ops.soft_sort(backwards), numpy_ops.soft_sort(backwards.copy()))


@pytest.mark.parametrize("regularization", REGULARIZATIONS)
@pytest.mark.parametrize("name", ["soft_rank", "soft_sort"])
def test_a_nan_is_seen_in_its_row_and_nowhere_else(name, regularization):
    x = rows(3, 5)
    x[1, 3] = NAN
    x.requires_grad_()
    found = getattr(torchsort, name)(x, regularization)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    for t in (found, gradient):
        assert t[1].isnan().all()
        assert t[[0, 2]].isfinite().all()


def test_infinite_values_have_no_rank_and_leave_the_others_theirs():
    found = torchsort.soft_rank(torch.tensor([[3.0, -INF, 1.0, INF]]))
    torch.testing.assert_close(found, torch.tensor([[3.0, NAN, 2.0, NAN]]), equal_nan=True)


def test_hard_ranks_and_sorts_of_numpy():
    x = [2.0, 2.0, 1.0, 3.0]
    np.testing.assert_array_equal(numpy_ops.rank(x)[2:], [1, 4])
    assert sorted(numpy_ops.rank(x)) == sorted(numpy_ops.rank(x, "DESCENDING")) == [1, 2, 3, 4]
    np.testing.assert_array_equal(numpy_ops.rank(x, "DESCENDING")[2:], [4, 1])
    np.testing.assert_array_equal(numpy_ops.sort(x, "DESCENDING"), [3.0, 2.0, 2.0, 1.0])


# ---- what is wrong with it

TWO = torch.zeros(2, 3)


@pytest.mark.parametrize("function", [torchsort.soft_rank, torchsort.soft_sort, pytorch_ops.soft_rank])
@pytest.mark.parametrize(
    ("values", "options", "error", "message"),
    [
        (torch.zeros(3), {}, ValueError, r"values must be a 2-d tensor .*, got shape \(3,\); .*unsqueeze\(0\)"),
        (torch.zeros(2, 3, 4), {}, ValueError, r"got shape \(2, 3, 4\); .*flatten\(0, -2\)"),
        ([[1.0]], {}, TypeError, r"values must be a torch\.Tensor, got list; use torch\.as_tensor\(values\)\."),
        (TWO + 1j, {}, TypeError, r"values must be real numbers, got torch\.complex64"),
        (TWO, {"regularization": "l1"}, ValueError, r"regularization must be 'l2' or 'kl', got 'l1'\."),
        (
            TWO,
            {"regularization_strength": 0},
            ValueError,
            r"regularization_strength must be positive, got 0; .*torch\.sort",
        ),
        (TWO, {"regularization_strength": -0.5}, ValueError, r"must be positive, got -0\.5"),
        (TWO, {"regularization_strength": NAN}, ValueError, r"must be positive, got nan"),
        (TWO, {"regularization_strength": "1"}, TypeError, r"must be a number or a tensor, got str\."),
        (
            TWO,
            {"regularization_strength": torch.tensor([[0.1], [-1.0]])},
            ValueError,
            r"must be positive, got a tensor with -1",
        ),
        (
            TWO,
            {"regularization_strength": torch.ones(3)},
            ValueError,
            r"one strength for all rows or one a row, shape \(2, 1\); got shape \(3,\)\.",
        ),
    ],
)
def test_errors_of_arguments(function, values, options, error, message):
    with pytest.raises(error, match=message):
        function(values, **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pytorch_ops.soft_sort(TWO, "UP"), ValueError, r"direction must be 'ASCENDING' or .*, got 'UP'\."),
        (lambda: numpy_ops.Sort([1.0], direction="UP"), ValueError, r"direction must be .*, got 'UP'\."),
        (lambda: numpy_ops.rank([1.0], "up"), ValueError, r"direction must be .*, got 'up'\."),
        (lambda: numpy_ops.SoftRank([1.0], regularization="l1"), ValueError, r"regularization must be 'l2' or 'kl'"),
        (lambda: numpy_ops.SoftSort([1.0], regularization_strength=0.0), ValueError, r"strength must be positive"),
        (lambda: numpy_ops.SoftRank([[1.0]]), ValueError, r"values must be a 1-d array, got shape \(1, 1\)"),
        (
            lambda: numpy_ops.SoftRank([1.0]).vjp([1.0]),
            ValueError,
            r"SoftRank: call compute\(\) first, then jvp, vjp or jacobian\.",
        ),
        (lambda: numpy_ops.Isotonic([1.0], [1.0]).jvp([1.0]), RuntimeError, r"Isotonic: call compute\(\) first"),
        (
            lambda: numpy_ops.Isotonic([1.0, 2.0], [1.0]),
            ValueError,
            r"input_w must have as many entries as there are values, 2, got 1\.",
        ),
        (
            lambda: numpy_ops.Projection([1.0, 2.0], [1.0, 2.0]),
            ValueError,
            r"input_w must be in descending order; use np\.sort\(input_w\)\[::-1\]\.",
        ),
    ],
)
def test_errors_of_directions_and_arrays(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_vector_of_another_length_is_an_error():
    ranks = numpy_ops.SoftRank([1.0, 2.0])
    ranks.compute()
    with pytest.raises(ValueError, match=r"vector must have one entry for each of the 2 values, got 3\."):
        ranks.vjp([1.0, 2.0, 3.0])


def test_importing_a_drop_in_imports_no_compiler():
    code = (
        "import sys\nimport sinksort.compat.torchsort as torchsort, sinksort.compat.fast_soft_sort\n"
        "print([m for m in ('numba', 'triton', 'scipy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
