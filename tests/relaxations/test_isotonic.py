"""Isotonic regression: three implementations against formulas without pooling, its gradients, and tracers."""

import importlib.util
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.isotonic import IsotonicRegression
from torch.autograd import gradcheck, gradgradcheck

from sinksort.relaxations import isotonic as by_halves
from sinksort.relaxations import isotonic_autograd
from sinksort.relaxations.isotonic_autograd import isotonic
from tests.devices import DEVICES

WIDE = torch.float64
IMPLEMENTATIONS = ["isotonic", "isotonic_numba", "isotonic_triton"]


class OnDevice:
    """An implementation whose arguments go to a device, and whose answers come back."""

    def __init__(self, module, device):
        self._module, self._device = module, device

    def pooled(self, s, w, kl, falling):
        return self._module.pooled(s.to(self._device), w.to(self._device), kl, falling).cpu()

    def spread(self, z, v, c, kl):
        return self._module.spread(*(t.to(self._device) for t in (z, v, c)), kl).cpu()


def implementation(name):
    if name == "isotonic_triton":
        pytest.importorskip("triton", reason="Triton is made for Linux only")
        return OnDevice(isotonic_autograd._compiled("triton"), DEVICES[-1])
    return by_halves if name == "isotonic" else isotonic_autograd._compiled("numba")


def rows(*shape, seed=0, dtype=WIDE):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def minimax(s, w, kl):
    """v_i = max over a <= i of min over b >= i of the pooled value of a, ..., b: nothing is pooled twice here."""

    def value(a, b):
        if kl:
            return logsumexp(s[a : b + 1]) - logsumexp(w[a : b + 1])
        return np.mean(s[a : b + 1] - w[a : b + 1])

    n = len(s)
    return np.array([max(min(value(a, b) for b in range(i, n)) for a in range(i + 1)) for i in range(n)])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 21])
def test_solution_is_the_minimax_of_pooled_values(name, kl, falling, n):
    s, w = rows(4, n, seed=n), rows(1, n, seed=n + 1).expand(4, n)
    if n > 2:
        s = torch.stack([s[0], s[1].sort().values, s[2].sort(descending=True).values, s[3].round()])
        w = torch.stack([w[0], w[1], w[2], w[3].round()])
    v = implementation(name).pooled(s, w, kl, falling)
    sign = -1 if falling else 1  # the same blocks in the other direction
    expected = [minimax(a[::sign], b[::sign], kl)[::sign] for a, b in zip(s.numpy(), w.numpy(), strict=True)]
    np.testing.assert_allclose(v.numpy(), np.stack(expected), atol=1e-12)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("kl", [False, True])
def test_one_row_may_stand_for_all(name, kl):
    s, w, c = rows(4, 9), rows(1, 9, seed=1), rows(4, 9, seed=2)
    v = implementation(name).pooled(s, w, kl, False)
    torch.testing.assert_close(v, implementation(name).pooled(s, w.repeat(4, 1), kl, False))
    shared_out = implementation(name).spread(w, v, c, kl)
    torch.testing.assert_close(shared_out, implementation(name).spread(w.repeat(4, 1), v, c, kl))


@pytest.mark.parametrize("name", ["isotonic", "isotonic_numba"])
@pytest.mark.parametrize("n", [100, 3000])
def test_long_rows_are_those_of_scikit_learn(name, n):
    y = torch.cat([rows(3, n).cumsum(-1), rows(2, n), torch.arange(n, 0, -1, dtype=WIDE).unsqueeze(0)])
    v = implementation(name).pooled(y, torch.zeros_like(y), False, False)
    expected = [IsotonicRegression().fit_transform(np.arange(n), row) for row in y.numpy()]
    np.testing.assert_allclose(v.numpy(), np.stack(expected), atol=1e-9)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("kl", [False, True])
def test_single_precision_is_double_rounded(name, kl):
    s, w = (50 * rows(3, 60, dtype=torch.float32)).sort(-1).values, torch.arange(1.0, 61.0).log().expand(3, 60)
    v = implementation(name).pooled(s, w, kl, False)
    assert v.dtype == torch.float32
    expected = by_halves.pooled(s.double(), w.double(), kl, False)
    torch.testing.assert_close(v.double(), expected, rtol=2e-7, atol=1e-6)
    c = rows(3, 60, dtype=torch.float32, seed=1)
    shared_out = implementation(name).spread(s, v, c, kl)
    torch.testing.assert_close(shared_out, by_halves.spread(s, v, c, kl), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_exponents_far_apart_neither_overflow_nor_vanish(name):
    """Blocks of kl hold sums of exp(s), here of exponents from -3000 to 3000."""
    s = torch.tensor([[3000.0, 2999.0, -3000.0, -2999.0]], dtype=WIDE)
    w = torch.zeros_like(s)
    v = implementation(name).pooled(s, w, True, False)
    pooled = 3000 + np.log1p(np.exp(-1.0)) - np.log(4)
    np.testing.assert_allclose(v[0], np.full(4, pooled), rtol=1e-15)
    c = torch.ones_like(s)
    shared_out = implementation(name).spread(s, v, c, True)
    share = 4 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(shared_out[0], [share, 4 - share, 0, 0], atol=1e-12)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize("position", [0, 4, 8])
def test_one_nan_makes_its_row_nan_and_no_other(name, kl, position):
    s, w = rows(3, 9), rows(3, 9, seed=1)
    s[1, position] = float("nan")
    v = implementation(name).pooled(s, w, kl, False)
    assert v[1].isnan().all()
    rest = [0, 2]
    torch.testing.assert_close(v[rest], by_halves.pooled(s[rest], w[rest], kl, False))
    shared_out = implementation(name).spread(w, v, rows(3, 9, seed=2), kl)
    assert shared_out[1].isnan().all()
    assert shared_out[rest].isfinite().all()


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("kl", [False, True])
def test_infinite_ends_in_order_leave_the_others_alone(name, kl):
    inner, w = rows(1, 5).sort(-1).values, torch.arange(1.0, 8.0, dtype=WIDE).unsqueeze(0)
    s = torch.cat([torch.full((1, 1), -torch.inf, dtype=WIDE), inner, torch.full((1, 1), torch.inf, dtype=WIDE)], -1)
    v = implementation(name).pooled(s, w, kl, False)
    torch.testing.assert_close(v[:, 1:-1], implementation(name).pooled(inner, w[:, 1:-1], kl, False))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize("falling", [False, True])
def test_infinities_are_never_silently_out_of_order(name, kl, falling):
    for places in itertools.permutations(range(4), 2):
        s, w = rows(1, 4), rows(1, 4, seed=1)
        s[0, places[0]] = torch.inf
        w[0, places[1]] = torch.inf
        v = implementation(name).pooled(s, w, kl, falling)[0]
        rises = v.diff()[v.diff().isfinite()]
        assert v.isnan().any() or (rises <= 0 if falling else rises >= 0).all()


@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize("falling", [False, True])
def test_first_and_second_derivatives_in_both_arguments(kl, falling):
    s, w = rows(2, 6, seed=3).requires_grad_(), rows(2, 6, seed=4).requires_grad_()
    assert gradcheck(lambda s, w: isotonic(s, w, kl, falling), (s, w))
    assert gradgradcheck(lambda s, w: isotonic(s, w, kl, falling), (s, w), atol=1e-4)
    one_row = rows(6, seed=4).requires_grad_()
    assert gradcheck(lambda s, w: isotonic(s, w, kl, falling), (s, one_row))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("kl", [False, True])
def test_blocks_that_touch_share_their_gradient_as_one(name, kl):
    """2 and 2 + 1e-10 are one block, 2 and 2 + 1e-8 are two."""
    c, z = torch.tensor([[1.0, 5.0]], dtype=WIDE), torch.tensor([[0.0, np.log(3)]], dtype=WIDE)
    for gap, expected in ((1e-10, [1.5, 4.5] if kl else [3.0, 3.0]), (1e-8, [1.0, 5.0])):
        v = torch.tensor([[2.0, 2.0 + gap]], dtype=WIDE)
        np.testing.assert_allclose(implementation(name).spread(z, v, c, kl)[0], expected, rtol=1e-12)


def test_any_batch_shape_and_none():
    s, w = rows(2, 3, 5), rows(5, seed=1)
    v = isotonic(s, w, False)
    torch.testing.assert_close(v[1, 2], isotonic(s[1, 2], w, False))
    torch.testing.assert_close(isotonic(s.transpose(0, 1), w, True), isotonic(s, w, True).transpose(0, 1))
    assert isotonic(rows(0, 3), rows(3), True).shape == (0, 3)
    assert isotonic(rows(2, 0), rows(2, 0), False).shape == (2, 0)


def test_answers_do_not_depend_on_the_number_of_threads():
    s, w = rows(600, 500), torch.arange(1.0, 501.0, dtype=WIDE)
    before = torch.get_num_threads()
    try:
        for kl in (False, True):
            found = []
            for threads in (1, 3):
                torch.set_num_threads(threads)
                found.append(isotonic(s.sort(-1).values, w, kl))
            assert torch.equal(*found)
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def nothing_installed(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in ("numba", "triton") else real(name, *a)
    )
    isotonic_autograd._compiled.cache_clear()
    yield
    isotonic_autograd._compiled.cache_clear()


def test_without_numba_answers_and_gradients_are_the_same(request):
    def both():
        s, w = rows(3, 30).requires_grad_(), rows(30, seed=1).requires_grad_()
        out = [isotonic(s, w, kl, falling) for kl in (False, True) for falling in (False, True)]
        return [*out, *torch.autograd.grad(sum((o * rows(3, 30, seed=2)).sum() for o in out), (s, w))]

    with_numba = both()
    request.getfixturevalue("nothing_installed")
    assert isotonic_autograd._compiled("numba") is None
    for found, expected in zip(both(), with_numba, strict=True):
        torch.testing.assert_close(found, expected)


# ---- tracers and transforms


@pytest.mark.parametrize("kl", [False, True])
def test_transforms_and_batched_gradients(kl):
    s, w = rows(4, 7), torch.arange(1.0, 8.0, dtype=WIDE)

    def loss(s):
        return (isotonic(s, w, kl) ** 2).sum()

    wanted = s.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(wanted), wanted)
    torch.testing.assert_close(torch.func.grad(loss)(s), gradient)
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(s), gradient)
    torch.testing.assert_close(torch.vmap(lambda s: isotonic(s, w, kl))(s), isotonic(s, w, kl))
    _, tangent = torch.func.jvp(loss, (s,), (rows(4, 7, seed=9),))
    torch.testing.assert_close(tangent, (gradient * rows(4, 7, seed=9)).sum())
    cotangents = rows(3, 4, 7, seed=5)
    out = isotonic(wanted, w, kl)
    (several,) = torch.autograd.grad(out, wanted, cotangents, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(out, wanted, c, retain_graph=True)[0] for c in cotangents]
    torch.testing.assert_close(several, torch.stack(one_by_one))


@pytest.mark.parametrize("kl", [False, True])
def test_compiled_programs_hold_one_operator_each_way(kl):
    s, w = rows(3, 6).requires_grad_(), rows(3, 6, seed=1).requires_grad_()
    torch.library.opcheck(isotonic_autograd._isotonic_op, (s, w, kl, False))
    traced = torch.compile(lambda s, w: isotonic(s, w, kl, True).sin(), fullgraph=True, backend="aot_eager")
    found, expected = traced(s, w), isotonic(s, w, kl, True).sin()
    torch.testing.assert_close(found, expected)
    c = rows(3, 6, seed=2)
    for ours, theirs in zip(
        torch.autograd.grad(found, (s, w), c), torch.autograd.grad(expected, (s, w), c), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    batched = torch.compile(torch.vmap(lambda s: isotonic(s, w[0], kl)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(batched(s), isotonic(s, w[:1], kl))


# ---- the kernel of CUDA, without a GPU

_COMPILE = """
import json, re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sinksort.relaxations.isotonic_triton import pool_row, spread_row

def ptx(kernel, pointers, numbers, **constants):
    signature = {**pointers, **dict.fromkeys(numbers, "i32"), **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1}).asm["ptx"]

found = []
for number in ("*fp32", "*fp64"):
    stack = dict(s=number, w=number, v=number, begins="*i32", sums="*fp64")
    code = ptx(pool_row, stack, ["n", "w_stride"], KL=number == "*fp64", FALLING=False, BLOCK=32)
    found.append(re.findall("bar.sync|st.global", code))
    four = dict(z=number, v=number, c=number, out=number)
    ptx(spread_row, four, ["n", "z_stride"], KL=number == "*fp64", BLOCK=32)
print(json.dumps(found))
"""


def test_kernel_compiles_for_cuda_with_barriers_around_what_all_threads_read():
    pytest.importorskip("triton", reason="Triton is made for Linux only")
    here = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", _COMPILE], capture_output=True, text=True, check=True, env=here)
    for code, stores in zip(json.loads(done.stdout), (3, 6), strict=True):
        assert code == ["bar.sync", *["st.global"] * stores, "bar.sync", "bar.sync", "st.global"]
