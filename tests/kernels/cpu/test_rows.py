"""The kernels for short rows against the float64 reference, for every kind of input they meet."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.kernels import cache
from sinksort.kernels.contract import Request, in_tensors
from sinksort.linear.rules import gauss_rule
from tests.devices import refusal

numba = pytest.importorskip("numba")
numba_rows = pytest.importorskip("sinksort.kernels.cpu.rows")
numba_runtime = pytest.importorskip("numba.core.runtime")

REFERENCE = sinksort.Newton(compress=False)
ACCEPTED = 5e-6
KINDS = ("normal", "uniform", "exponential", "heavy tails", "ties", "few values", "constant", "outlier", "2 clusters",
         "3 clusters", "5 clusters", "tight clusters", "huge", "infinite", "sorted")  # fmt: skip


def inputs(kind: str, R: int, n: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    normal, uniform = torch.randn(R, n, generator=g), torch.rand(R, n, generator=g)
    if kind.endswith("clusters"):
        count, width = (3, 1e-5) if kind.startswith("tight") else (int(kind[0]), 1e-2)
        return torch.randint(0, count, (R, n), generator=g) + width * normal
    x = {
        "normal": normal,
        "uniform": uniform,
        "exponential": -(1e-6 + uniform).log(),
        "heavy tails": (math.pi * (uniform - 0.5)).tan(),
        "ties": torch.randint(0, max(2, n // 3), (R, n), generator=g).float(),
        "few values": torch.randint(0, 3, (R, n), generator=g).float(),
        "constant": torch.full((R, n), 3.7),
        "outlier": normal,
        "huge": 1e30 * normal,
        "infinite": normal,
        "sorted": torch.linspace(-1, 1, n).repeat(R, 1),
    }[kind]
    if kind == "outlier":
        x[:, 0] = 1e6
    if kind == "infinite" and n > 2:
        x[:, 0], x[:, -1] = math.inf, -math.inf
    return x


def some_weights(R: int, n: int, seed: int = 1) -> Tensor:
    a = torch.rand(R, n, generator=torch.Generator().manual_seed(seed)) + 0.05
    a[:, n // 2] *= n <= 2  # one value without weight
    return a / a.sum(-1, keepdim=True)


def rank_request(x: Tensor, eps: float | Tensor, a: Tensor | None = None, K: int | None = None,
             squash: str | None = "sigmoid") -> tuple[Request, Tensor]:  # fmt: skip
    """Ranks by all targets, or by a rule of K nodes for them."""
    m = x.shape[-1]
    nodes, b, last = (np.arange(m), np.full(m, 1 / m), None) if K is None else gauss_rule(m, K)

    def row(t: np.ndarray) -> Tensor:
        return torch.as_tensor(t, dtype=torch.float32).unsqueeze(0)

    request = Request(
        x, a, row(nodes / max(m - 1, 1)), row(b), eps, squash, K and m, None if last is None else row(last)
    )
    return request, row(nodes + 1)


def true_ranks(x: Tensor, w: Tensor, eps: float | Tensor, a: Tensor | None = None,
               squash: str | None = "sigmoid") -> tuple[Tensor, Tensor]:  # fmt: skip
    x = x.double().requires_grad_()
    a = None if a is None else a.double()
    ranks = sinksort.soft_rank(x, eps=eps, weights=a, squash=squash, solver=REFERENCE)
    (grad,) = torch.autograd.grad(ranks, x, w.double())
    return ranks.detach(), grad


def natural(x: Tensor, a: Tensor | None = None) -> Tensor:
    """How large gradients of ranks are when values are neither crowded nor apart: n over the spread of the row."""
    n = x.shape[-1]
    a = torch.full_like(x, 1 / n) if a is None else a
    inside = x.isfinite() & (a > 0)
    a = torch.where(inside, a, 0.0).double()
    a = a / a.sum(-1, keepdim=True)
    x = torch.where(inside, x, 0.0).double()
    spread = (a * (x - (a * x).sum(-1, keepdim=True)).square()).sum(-1, keepdim=True).sqrt()
    return n / torch.where(spread > 0, spread, 1.0)


def assert_right(out: Tensor, grad: Tensor, true: Tensor, true_grad: Tensor, scale: float, floor: Tensor) -> None:
    assert ((out - true).abs() <= 1e-5 * scale).all()
    largest = true_grad.abs().amax(-1, keepdim=True)
    assert ((grad - true_grad).abs() <= 1e-3 * largest + 1e-7 * floor).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 10, 17, 33, 100])
def test_ranks_and_gradients(kind: str, n: int) -> None:
    for k, eps in enumerate((1.0, 1e-1, 1e-2, 1e-3, 1e-4)):
        x = inputs(kind, 3, n, k)
        w = torch.randn(3, n, generator=torch.Generator().manual_seed(k))
        for a in (None, some_weights(3, n, k)):
            request, phi = rank_request(x, eps, a)
            answer = numba_rows.pull(request, phi)
            grad = numba_rows.pull_backward(request, phi, answer.state, w)
            assert (answer.error <= ACCEPTED).all()
            assert_right(answer.out, grad, *true_ranks(x, w, eps, a), n, natural(x, a))


@pytest.mark.parametrize(("n", "K", "eps"), [(100, 48, 1e-2), (300, 48, 1e-2), (1000, 48, 1e-2), (700, 192, 1e-3)])
@pytest.mark.parametrize("kind", ["normal", "uniform", "exponential", "heavy tails", "outlier", "sorted", "huge"])
def test_few_nodes_and_a_grid_are_enough_for_ordinary_inputs(kind: str, n: int, K: int, eps: float) -> None:
    R = 3 if n < 500 else 1  # the whole plan of a long row takes the reference a second
    x, w = inputs(kind, R, n), torch.randn(R, n, generator=torch.Generator().manual_seed(5))
    request, phi = rank_request(x, eps, None, K)
    answer = numba_rows.pull(request, phi)
    grad = numba_rows.pull_backward(request, phi, answer.state, w)
    assert (answer.error <= ACCEPTED).all()
    assert_right(answer.out, grad, *true_ranks(x, w, eps), n, natural(x))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_rule_gets_wrong_is_admitted(kind: str) -> None:
    for n, K, eps in ((100, 16, 1e-2), (200, 24, 1e-2), (300, 48, 1e-3)):
        x = inputs(kind, 3, n, n)
        request, phi = rank_request(x, eps, None, K)
        out, _, error = in_tensors(numba_rows.pull(request, phi))
        off = (out - true_ranks(x, torch.zeros_like(x), eps)[0]).abs().amax(-1) / n
        assert ((error > ACCEPTED) | (off <= 1e-5)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_which_a_rule_is_not_enough_get_all_their_targets(kind: str) -> None:
    """Rows of one batch, some fine and some not; each has its own weights, eps and direction of ranks."""
    n, K = 100, 24
    x = torch.cat([inputs("normal", 3, n), inputs(kind, 3, n, 1)])[[0, 3, 1, 4, 5, 2]]
    w, a = torch.randn(6, n, generator=torch.Generator().manual_seed(5)), some_weights(6, n)
    for eps in (1e-2, torch.tensor([1.0, 1.0, 1e-2, 1e-1, 1e-3, 1.0])):
        request, phi = rank_request(x, eps, a, K)
        levels = torch.cat([phi, n + 1 - phi]).repeat(3, 1)  # rows from above, and from below
        answer = numba_rows.pull(request, levels)
        grad = numba_rows.pull_backward(request, levels, answer.state, w)
        assert (answer.error <= ACCEPTED).all()
        up = torch.tensor([1.0, -1.0]).repeat(3).unsqueeze(-1)
        true, true_grad = true_ranks(x, up * w, eps if isinstance(eps, float) else eps.double(), a)
        true = torch.where(up > 0, true, n + 1 - true)
        assert_right(answer.out, grad, true, true_grad, n, natural(x, a))


@pytest.mark.parametrize("n", [1, 2, 15, 60, 513])
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "ties", "constant", "outlier", "3 clusters", "huge"])
def test_quantiles(kind: str, n: int) -> None:
    for k, (eps, q) in enumerate([(1e-1, 0.5), (1e-2, 0.5), (1e-2, 0.0), (1e-3, 0.9), (1e-4, 0.25)]):
        x, t = inputs(kind, 4, n, k), 1 / n
        low = min(max(q - t / 2, 0.0), 1 - t)
        b = torch.tensor([[low, t, max(1 - t - low, 0.0)]])
        for a in (None, some_weights(4, n, k)):
            request = Request(x, a, torch.tensor([[0.0, 0.5, 1.0]]), b, eps, "sigmoid")
            answer = numba_rows.push(request)
            c = torch.zeros(4, 3)
            c[:, 1] = torch.tensor([1.0, -2.0, 0.5, 3.0])
            grad = numba_rows.push_backward(request, answer.state, c)
            assert (answer.error <= ACCEPTED).all()
            values = x.double().requires_grad_()
            weights = None if a is None else a.double()
            true = sinksort.soft_quantile(values, q, eps=eps, weights=weights, solver=REFERENCE)
            (true_grad,) = torch.autograd.grad(true, values, c[:, 1].double())
            span = (x.amax(-1) - x.amin(-1)).double()
            assert ((answer.out[:, 1] - true).abs() <= 1e-5 * span + 1e-6 * x.abs().amax(-1)).all()
            largest = true_grad.abs().amax(-1, keepdim=True)
            assert ((grad - true_grad).abs() <= 1e-3 * largest).all()


@pytest.mark.parametrize("n", [5, 40, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_memberships(kind: str, n: int) -> None:
    for seed, (eps, k) in enumerate([(1e-1, 2.0), (1e-2, 1.0), (1e-2, 2.5), (1e-3, 3.0), (1e-4, 2.0)]):
        x, w = inputs(kind, 4, n, seed), torch.randn(4, n, generator=torch.Generator().manual_seed(seed))
        share = k / n
        request = Request(x, None, torch.tensor([[0.0, 1.0]]), torch.tensor([[1 - share, share]]), eps, "sigmoid")
        phi = torch.tensor([[0.0, 1.0]])
        answer = numba_rows.pull(request, phi)
        grad = numba_rows.pull_backward(request, phi, answer.state, w)
        assert (answer.error <= ACCEPTED).all()
        values = x.double().requires_grad_()
        true = sinksort.soft_topk_mask(values, k, eps=eps, solver=REFERENCE)
        (true_grad,) = torch.autograd.grad(true, values, w.double())
        assert_right(answer.out, grad, true.detach(), true_grad, 1.0, natural(x))


@pytest.mark.parametrize(("n", "m"), [(12, 12), (16, 5), (40, 40), (64, 9), (50, 90)])
def test_sorted_values(n: int, m: int) -> None:
    for k, eps in enumerate((1e-1, 1e-2, 1e-3)):
        x = inputs("normal", 3, n, k)
        y, b = torch.linspace(0, 1, m).unsqueeze(0), torch.full((1, m), 1 / m)
        for a in (None, some_weights(3, n)):
            request = Request(x, a, y, b, eps, "sigmoid")
            answer = numba_rows.push(request)
            c = torch.randn(3, m, generator=torch.Generator().manual_seed(k))
            grad = numba_rows.push_backward(request, answer.state, c)
            values = x.double().requires_grad_()
            weights = None if a is None else a.double()
            true = sinksort.soft_sort(values, eps=eps, weights=weights, num_targets=m, solver=REFERENCE)
            (true_grad,) = torch.autograd.grad(true, values, c.double())
            assert (answer.error <= ACCEPTED).all()
            assert ((answer.out - true).abs() <= 1e-4 * (x.amax() - x.amin())).all()
            assert ((grad - true_grad).abs() <= 1e-3 * true_grad.abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize("n", [8, 40])
@pytest.mark.parametrize("squash", ["arctan", None])
def test_other_squashes(n: int, squash: str | None) -> None:
    x = inputs("normal", 4, n) if squash else inputs("uniform", 4, n)
    x[0, 0], x[1, 1] = math.inf, -math.inf
    w = torch.randn(4, n, generator=torch.Generator().manual_seed(2))
    for eps in (1e-1, 1e-2, 1e-3):
        request, phi = rank_request(x, eps, squash=squash)
        answer = numba_rows.pull(request, phi)
        grad = numba_rows.pull_backward(request, phi, answer.state, w)
        assert_right(answer.out, grad, *true_ranks(x, w, eps, squash=squash), n, natural(x))


@pytest.mark.parametrize("n", [8, 40])
def test_each_row_has_its_own_eps_targets_weights_and_levels(n: int) -> None:
    x, a = inputs("normal", 5, n), some_weights(5, n)
    w, eps = torch.randn(5, n), torch.tensor([1.0, 0.1, 0.03, 0.01, 0.003])
    g = torch.Generator().manual_seed(3)
    y = torch.rand(5, 6, generator=g).sort(-1).values
    b = torch.rand(5, 6, generator=g)
    b[1, 2] = b[2, 0] = b[3, 5] = 0.0  # slots without a target
    b /= b.sum(-1, keepdim=True)
    phi = torch.randn(5, 6, generator=g)
    request = Request(x, a, y, b, eps, "sigmoid")
    answer = numba_rows.pull(request, phi)
    grad = numba_rows.pull_backward(request, phi, answer.state, w)
    for row in range(5):
        alone = Request(
            x[row : row + 1], a[row : row + 1], y[row : row + 1], b[row : row + 1], eps[row].item(), "sigmoid"
        )
        one = numba_rows.pull(alone, phi[row : row + 1])
        torch.testing.assert_close(answer.out[row], one.out[0], rtol=1e-4, atol=1e-5)
        values = x[row].double().requires_grad_()
        plan = sinksort.transport(values, weights=a[row].double(), targets=y[row].double(), eps=eps[row].item(),
                                  target_weights=b[row].double(), solver=REFERENCE)  # fmt: skip
        true = plan.pull(phi[row].double())
        (true_grad,) = torch.autograd.grad(true, values, w[row].double())
        assert ((answer.out[row] - true).abs() <= 1e-5 * (phi[row].max() - phi[row].min())).all()
        assert ((grad[row] - true_grad).abs() <= 1e-3 * true_grad.abs().max()).all()


@pytest.mark.parametrize("n", [8, 40])
@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-3])
def test_slots_without_a_target_change_nothing(n: int, eps: float) -> None:
    """Wherever they are: before all targets, between them or behind them, at the place of the next or the last one."""
    x, w = inputs("normal", 20, n), torch.randn(20, n, generator=torch.Generator().manual_seed(1))
    request, phi = rank_request(x, eps)
    true, true_grad = true_ranks(x, w, eps)
    for slots in ([0], [n // 2], [n], [0, 0, n // 2, n // 2, n, n]):
        where, empty = list(range(n)), [False] * n
        for slot in reversed(slots):
            where.insert(slot, min(slot, n - 1))
            empty.insert(slot, True)
        with_slots = request._replace(
            y=request.y[:, where], b=torch.where(torch.tensor(empty), 0.0, request.b[:, where])
        )
        answer = numba_rows.pull(with_slots, phi[:, where])
        grad = numba_rows.pull_backward(with_slots, phi[:, where], answer.state, w)
        assert (answer.error <= ACCEPTED).all()
        assert_right(answer.out, grad, true, true_grad, n, natural(x))


@pytest.mark.parametrize("n", [8, 40])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_comes_back_in_its_dtype(n: int, dtype: torch.dtype) -> None:
    x = inputs("normal", 4, n).to(dtype)
    w = torch.randn(4, n).to(dtype)
    request, phi = rank_request(x, 1e-2)
    answer = numba_rows.pull(request, phi)
    grad = numba_rows.pull_backward(request, phi, answer.state, w)
    single, _ = rank_request(x.float(), 1e-2)
    jit = numba_rows.pull(single, phi)
    assert answer.out.dtype == grad.dtype == dtype
    torch.testing.assert_close(answer.out, jit.out.to(dtype))
    torch.testing.assert_close(grad, numba_rows.pull_backward(single, phi, jit.state, w.float()).to(dtype))


@pytest.mark.parametrize("n", [8, 40])
def test_strides_do_not_matter(n: int) -> None:
    x = inputs("normal", 1, n)
    w = torch.ones(1, 1).expand(4, n)
    for strided in (x.expand(4, n), x.repeat(4, 2)[:, ::2], x.repeat(4, 1).t().contiguous().t(), x.repeat(8, 1)[::2]):
        plain = strided.contiguous()
        request, phi = rank_request(strided, 1e-2)
        answer = numba_rows.pull(request, phi)
        same = numba_rows.pull(rank_request(plain, 1e-2)[0], phi)
        assert torch.equal(answer.out, same.out)
        grad = numba_rows.pull_backward(request, phi, answer.state, w)
        assert torch.equal(grad, numba_rows.pull_backward(request, phi, answer.state, w.contiguous()))


@pytest.mark.parametrize("n", [8, 40])
@pytest.mark.parametrize("K", [2, 8])
def test_nan_stays_in_its_row(n: int, K: int) -> None:
    x = inputs("normal", 40, n)
    clean = x.clone()
    x[3, 1] = x[17, 0] = math.nan
    spoilt = torch.zeros(40, dtype=torch.bool)
    spoilt[[3, 17]] = True
    y, b, phi = torch.linspace(0, 1, K)[None], torch.full((1, K), 1 / K), torch.randn(1, K)
    request, clean_ask = (Request(t, None, y, b, 1e-2, "sigmoid") for t in (x, clean))
    w, c = torch.randn(40, n), torch.randn(40, K)
    pulled, pushed = numba_rows.pull(request, phi), numba_rows.push(request)
    grads = (
        numba_rows.pull_backward(request, phi, pulled.state, w),
        numba_rows.push_backward(request, pushed.state, c),
    )
    good = numba_rows.pull(clean_ask, phi), numba_rows.push(clean_ask)
    good_grads = (numba_rows.pull_backward(clean_ask, phi, good[0].state, w),
                  numba_rows.push_backward(clean_ask, good[1].state, c))  # fmt: skip
    for got, wanted in zip((pulled.out, pushed.out, *grads), (good[0].out, good[1].out, *good_grads), strict=True):
        assert got[spoilt].isnan().all()
        torch.testing.assert_close(got[~spoilt], wanted[~spoilt])
    assert not (pulled.error > ACCEPTED).any()


@pytest.mark.parametrize("n", [10, 60])
def test_rows_do_not_depend_on_threads_or_company(n: int) -> None:
    x, w = inputs("normal", 70, n), torch.randn(70, n)
    request, phi = rank_request(x, 1e-2)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        answer = numba_rows.pull(request, phi)
        grad = numba_rows.pull_backward(request, phi, answer.state, w)
        torch.set_num_threads(1)
        alone = numba_rows.pull(request, phi)
        torch.testing.assert_close(alone.out, answer.out, rtol=0, atol=2e-6 * n)
        again = numba_rows.pull_backward(request, phi, alone.state, w)
        assert ((again - grad).abs() <= 1e-4 * grad.abs().amax(-1, keepdim=True)).all()
    finally:
        torch.set_num_threads(before)
    last = numba_rows.pull(rank_request(x[-1:], 1e-2)[0], phi)
    torch.testing.assert_close(last.out, answer.out[-1:], rtol=1e-6, atol=1e-5)


def test_ranks_move_with_the_values() -> None:
    """Permuting a row permutes its ranks, shifting and scaling change nothing, and ranks add up to n (n + 1) / 2."""
    for n in (12, 50):
        x = inputs("normal", 3, n)
        request, phi = rank_request(x, 1e-2)
        ranks = numba_rows.pull(request, phi).out
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
        moved = numba_rows.pull(rank_request(7.0 * x[:, order] - 3.0, 1e-2)[0], phi).out
        torch.testing.assert_close(moved, ranks[:, order], rtol=0, atol=2e-5 * n)
        torch.testing.assert_close(ranks.sum(-1), torch.full((3,), n * (n + 1) / 2), rtol=2e-6, atol=0)


def test_infinite_values_in_averages_are_left_to_the_reference() -> None:
    for n in (8, 40):
        for K in (3, 6):
            x = inputs("normal", 2, n)
            x[1, 0] = math.inf
            answer = numba_rows.push(
                Request(x, None, torch.linspace(0, 1, K)[None], torch.full((1, K), 1 / K), 1e-2, None)
            )
            assert (answer.error > ACCEPTED).tolist() == [False, True]


def test_says_what_it_cannot_do() -> None:
    y = torch.linspace(0, 1, 3)[None]
    b = torch.full((1, 3), 1 / 3)
    assert numba_rows.unable(Request(torch.zeros(2, 9), None, y, b, 1e-2, "sigmoid")) is None
    assert "on meta" in numba_rows.unable(Request(torch.zeros(2, 9, device="meta"), None, y, b, 1e-2, "sigmoid"))
    many = torch.zeros(1, 3000)
    asked = Request(torch.zeros(2, 9), None, many, many, 1e-2, "sigmoid")
    assert "at most 2048 targets, and there are 3000" in str(refusal("numba", asked))
    assert "at most 1024 nodes, and there are 3000" in str(refusal("numba", asked._replace(m=10**6)))


INNER = "from .engine.compile import jit\n\n@jit\ndef inner(x):\n    return 2 * x\n"
OUTER = "from .inner import jit, inner\n\n@jit\ndef outer(x):\n    return inner(x) + inner(0)\n"


def write_two_functions(package: Path) -> Path:
    """Compiled as kernels are. Returns the file of the one that the other calls."""
    (package / "cpu" / "engine").mkdir(parents=True)
    for name in ("cache.py", "cpu/engine/cache.py", "cpu/engine/compile.py", "cpu/engine/parts.py"):
        (package / name).write_text((Path(cache.__file__).parent / name).read_text())
    (package / "cpu" / "outer.py").write_text(OUTER)
    (package / "cpu" / "inner.py").write_text(INNER)
    return package / "cpu" / "inner.py"


def test_a_change_in_another_file_is_noticed(tmp_path: Path) -> None:
    """What is kept of a compiled function contains those it calls. Who waits for a compiler is told so, once."""
    inner = write_two_functions(tmp_path / "two")
    program = "from two.cpu.outer import inner, outer\nprint(outer(5), inner(7), len(inner.part.overloads))"
    for factor, compiled in ((2, True), (3, True), (3, False)):
        if factor == 3 and compiled:
            inner.write_text(INNER.replace("2", "3"))
        said = subprocess.run([sys.executable, "-B", "-c", program], cwd=tmp_path, check=True, capture_output=True)
        assert list(map(int, said.stdout.split())) == [5 * factor, 7 * factor, int(compiled)]  # 0 is an integer like 5
        assert said.stderr.count(b"being compiled") == int(compiled)


def test_another_numba_compiles_as_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The insides of a version that nobody has tried are left alone: it takes longer and gives the same."""
    write_two_functions(tmp_path / "two_untried")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("numba.version_info", numba.version_info._replace(short=(1, 0)))
    with caplog.at_level("INFO", logger="sinksort"):
        from two_untried.cpu.outer import inner, outer
    assert "longer" in caplog.text
    assert (outer(5), inner(7)) == (10, 14)
    assert "two_untried.cpu.engine.parts" not in sys.modules
    assert type(outer) is type(numba.njit(lambda x: x))
    assert sum(outer.stats.cache_misses.values()) == 1  # and is kept all the same


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_process_can_go_on() -> None:
    """Threads do not survive a fork: the child must do without them."""
    program = """
import os, torch
import tests.kernels.cpu.test_rows as t
torch.set_num_threads(2)
request, phi = t.rank_request(t.inputs("normal", 300, 50), 1e-2)
before = t.numba_rows.pull(request, phi).out
child = os.fork()
if child == 0:
    os._exit(0 if torch.allclose(t.numba_rows.pull(request, phi).out, before, rtol=0, atol=1e-4) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    here = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", program], cwd=here, check=True, timeout=300)


@pytest.mark.parametrize(("n", "eps"), [(200, 5e-3), (273, 1.86e-3), (559, 1.6e-3)])
def test_rows_of_two_values_are_not_taken_for_smooth(n, eps):
    """Every other coefficient of such plans vanishes. By the last three alone some passed that were wrong by 3e-5 n."""
    ones = torch.arange(n // 2 - 20, n // 2 + 21)
    x = (torch.arange(n) < ones[:, None]).float()
    ranks = sinksort.soft_rank(x, eps=eps, backend="numba")
    true = sinksort.soft_rank(x.double(), eps=eps, solver=REFERENCE, backend="torch")
    assert (ranks - true).abs().max() <= 1e-6 * n


@pytest.mark.parametrize(("rows", "n"), [(19, 10), (19, 90), (3, 300), (2, 1000)])
@pytest.mark.parametrize("eps", [1e-2, 1e-3])
def test_kernels_keep_no_memory(rows, n, eps):
    """Functions that count no references (``engine.compile.borrowing``) would leak an array that somebody returned."""
    numba_runtime._nrt_python.memsys_enable_stats()
    x = torch.randn(rows, n, generator=torch.Generator().manual_seed(n)).relu()
    x[0, 0] = torch.nan
    x.requires_grad_()

    def held():
        made = numba_runtime.rtsys.get_allocation_stats()
        return made.mi_alloc - made.mi_free

    before = held()
    for _ in range(2):
        sinksort.soft_rank(x, eps=eps, backend="numba").sum().backward()
    assert numba_runtime.rtsys.get_allocation_stats().mi_alloc > 0
    assert held() == before
