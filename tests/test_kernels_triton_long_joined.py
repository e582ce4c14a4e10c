"""Long rows onto many targets in one launch each way: against the float64 reference, and against several launches.

In Triton's interpreter a program that comes first does all the work and waits for nobody. Where programs are to wait
for each other they have a thread each, see ``test_kernels_triton_long_late``.
"""

import math

import pytest
import torch

import sinksort

pytest.importorskip("triton", reason="Triton is made for Linux only")

import triton.language as tl  # after the check that Triton is there

from sinksort.kernels import choice, posed, triton_launch
from sinksort.kernels import triton_long as kernels
from sinksort.kernels import triton_long_by_grid as by_grid
from sinksort.kernels import triton_long_joined as joined_kernels
from sinksort.kernels import triton_long_joined_launch as joined
from sinksort.kernels import triton_long_late_launch as late

from .test_kernels_triton_long import (
    ACCEPTED,
    DEVICE,
    gradients_agree,
    random,
    rank_ask,
    ranks_and_gradients,
    row_of_each,
)
from .test_kernels_triton_long_late import INTERPRETED, at_once, clusters, rows

N = 257


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Rows as if they were long, of small blocks. Nothing is remembered."""
    monkeypatch.setattr(posed, "_known", {})
    monkeypatch.setattr(triton_launch, "_records", {})
    monkeypatch.setattr(by_grid, "_WHOLE", 0)
    if INTERPRETED:
        monkeypatch.setattr(late, "_PANELS", {"few": (8, 2), "many": (32, 4)})
        monkeypatch.setattr(late, "_TILE", 1 << 17)
        for block, size in (("_MOMENTS_BLOCK", 128), ("_SPREAD_BLOCK", 64), ("_READ_BLOCK", 64)):
            monkeypatch.setattr(joined, block, size)


@pytest.fixture
def one_launch(monkeypatch):
    monkeypatch.setattr(kernels, "_again_by_grid", lambda *_: (None, True))


@pytest.fixture
def three_programs(monkeypatch, one_launch):
    """That share all chunks, and wait for each other."""
    if INTERPRETED:
        monkeypatch.setattr(late, "_TILE", 1 << 14)
        monkeypatch.setattr(joined, "programs_of", lambda _: 3)
        together = at_once("joined_forward", "joined_backward")
        monkeypatch.setattr("triton.runtime.interpreter.GridExecutor", together)


def all_right(ask, phi):
    error, off, right = ranks_and_gradients(ask, phi)
    assert (error <= ACCEPTED).all()
    assert (off <= 1e-5).all()
    assert right.all()


def some_weights(*shape):
    a = random(*shape, seed=4).abs() * (random(*shape, seed=5) > -0.5)
    return a / a.sum(-1, keepdim=True)


@pytest.mark.usefixtures("one_launch")
class TestOneLaunch:
    def test_rows_of_many_kinds(self):
        all_right(*rank_ask(row_of_each("normal", "uniform", "tied", "constant", n=N)))

    def test_small_eps(self):
        all_right(*rank_ask(row_of_each("normal", n=301), eps=1e-3, nodes=112))

    def test_few_nodes(self):
        all_right(*rank_ask(row_of_each("exponential", n=N), eps=1.0, nodes=12))

    def test_weights_and_arctan(self):
        all_right(*rank_ask(row_of_each("normal", "exponential", n=N), a=some_weights(2, N), squash="arctan"))

    def test_an_eps_for_each_row(self):
        ask, phi = rank_ask(row_of_each("normal", "uniform", n=N))
        all_right(ask._replace(eps=torch.tensor([1e-2, 3e-2], device=DEVICE)), phi)

    def test_infinite_values_without_a_squash(self):
        x = random(1, N).sigmoid()
        x[0, 7], x[0, 8] = math.inf, -math.inf
        all_right(*rank_ask(x, 3e-2, squash=None))

    def test_every_second_value_of_columns(self):
        x = row_of_each("normal", "exponential", n=2 * N)[:, ::2].t().contiguous().t()
        all_right(*rank_ask(x))

    def test_nan_stays_in_its_row(self):
        x = random(3, N)
        x[1, 5] = math.nan
        ask, phi = rank_ask(x)
        answer = kernels.pull(ask, phi)
        grad = kernels.pull_backward(ask, phi, answer.state, random(3, N, seed=2))
        for found in (answer.out, grad):
            assert found[1].isnan().all()
            assert found[::2].isfinite().all()

    def test_half_precision_by_way_of_the_operator(self, monkeypatch):
        monkeypatch.setattr(choice, "_SHORT", 0)
        x = row_of_each("normal", n=N)[0].half().requires_grad_()
        w = random(N, seed=9).half()
        out = sinksort.soft_rank(x, descending=True, backend="triton")
        (grad,) = torch.autograd.grad(out, x, w)
        wide = x.detach().double().requires_grad_()
        wanted = sinksort.soft_rank(wide, descending=True, solver=sinksort.Newton(compress=False))
        (true,) = torch.autograd.grad(wanted, wide, w.double())
        assert out.dtype == grad.dtype == torch.float16
        assert (out - wanted).abs().max() <= torch.finfo(torch.float16).eps * N
        assert gradients_agree(grad, true).all()

    def test_late_rows_among_others(self):
        all_right(*rank_ask(rows(clusters(), random(N, seed=5).cpu(), (torch.arange(N) % 3).float())))


@pytest.mark.parametrize("gathered", [64, 2])
@pytest.mark.parametrize(("eps", "nodes", "weighted"), [(1e-2, 40, True), (1e-3, 128, False)])
def test_programs_that_wait_for_each_other(monkeypatch, three_programs, gathered, eps, nodes, weighted):
    """One launch says what several say, to rounding; also where chunks are gathered first."""
    monkeypatch.setattr(joined, "GATHERED", gathered)
    x, w = row_of_each("normal", n=N), random(1, N, seed=9)
    ask, phi = rank_ask(x, eps, nodes, some_weights(1, N) if weighted else None)
    answer = kernels.pull(ask, phi)
    grad = kernels.pull_backward(ask, phi, answer.state, w)
    monkeypatch.setattr(kernels, "_again_by_grid", lambda *_: (None, False))
    several = kernels.pull(ask, phi)
    assert (answer.out - several.out).abs().max() <= 1e-6 * N
    assert gradients_agree(grad, kernels.pull_backward(ask, phi, several.state, w)).all()


@pytest.mark.usefixtures("three_programs")
def test_more_rows_than_programs_and_late_ones():
    all_right(*rank_ask(rows(random(N, seed=5).cpu(), clusters(), clusters(3), *random(2, N, seed=6).cpu())))


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU all programs run at once, unless others keep it busy")
@pytest.mark.usefixtures("one_launch")
def test_programs_that_come_when_all_is_done(monkeypatch):
    """One after the other: the first waits for the others in vain, and works on the late row alone."""
    monkeypatch.setattr(joined, "programs_of", lambda _: 5)
    monkeypatch.setattr(joined_kernels, "_PATIENCE", tl.constexpr(3))
    all_right(*rank_ask(rows(random(N, seed=5).cpu(), clusters())))


@pytest.mark.usefixtures("three_programs")
def test_nothing_depends_on_who_is_first_and_counters_are_left_at_zero(monkeypatch):
    made, counters = [], triton_launch.Recorder.counters

    def noted(recorder, count):
        made.append(counters(recorder, count))
        return made[-1]

    monkeypatch.setattr(triton_launch.Recorder, "counters", noted)
    x = random(2, N)
    ask, phi = rank_ask(x)
    first, second = kernels.pull(ask, phi), kernels.pull(ask, phi)
    assert torch.equal(first.out, second.out)
    grads = [kernels.pull_backward(ask, phi, answer.state, x) for answer in (first, second)]
    assert torch.equal(*grads)
    assert len(made) == (4 if INTERPRETED else 2)  # on a GPU launches are made again without a recorder
    assert not any(t.any() for t in made)


class Compiled:
    """What Triton would give back: nothing is compiled, and launches are noted."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, name, log):
        self.name, self.log = name, log

    def run(self, *_):
        self.log.append(self.name)


SEVERAL = ["moments", "spread", "solve", "read", "late_forward"]
SEVERAL_BACK = ["spread_cotangents", "solve_backward", "sum_back", "read_back", "late_backward"]


def test_several_launches_at_first_and_in_graphs_and_one_otherwise(monkeypatch):
    """Who records a graph after a single call finds all that it needs; records of both are kept apart."""
    made, log, recording = [], [], []

    def make(recorder, kernel, programs, args, constants, _options):
        made.append(kernel.__name__)
        left = [constants[name] for name in kernel.arg_names[len(args) :]]
        recorder._made.append((Compiled(kernel.__name__, log), programs, args, left))

    monkeypatch.setattr(triton_launch.Recorder, "_make", make)
    monkeypatch.setattr(triton_launch, "_stream", lambda _: "the stream")
    monkeypatch.setattr(joined, "joins", lambda _: not recording)
    ask, phi = rank_ask(random(1, 2049))
    w = random(1, 2049, seed=9)

    def call(known):
        made.clear()
        log.clear()
        like = ask._replace(known=known)
        answer = kernels.pull(like, phi)
        assert answer.out.shape == ask.x.shape
        kernels.pull_backward(like, phi, answer.state, w)
        return made + log

    known = {}
    assert call(known) == SEVERAL + SEVERAL_BACK
    for _ in range(3):
        assert call(known) == ["joined_forward", "joined_backward"]
    recording.append(True)
    assert call(known) == SEVERAL + SEVERAL_BACK
    assert log  # as they were recorded
    recording.clear()
    assert call(known) == log == ["joined_forward", "joined_backward"]
    for _ in range(2):
        assert call(None) == SEVERAL + SEVERAL_BACK  # an ask that others are not like


def test_who_joins(monkeypatch):
    """Rows that the host waits for longer than the device works: few values, and no graph that is recorded."""
    assert not joined.joins(torch.empty(1, 10**4))
    monkeypatch.setattr(joined, "programs_of", lambda _: 132)
    monkeypatch.setattr(joined, "capturing", lambda _: False)
    on_a_gpu = type("OnAGpu", (), {"is_cuda": True, "device": DEVICE, "__len__": lambda t: t.R})

    def joins(R, n):
        t = on_a_gpu()
        t.R, t.numel = R, lambda: R * n
        return joined.joins(t)

    assert joins(1, 10**4)
    assert joins(16, 10**4)
    assert joins(1, 10**6)
    assert not joins(1, 10**7)
    assert not joins(133, 3000)
    monkeypatch.setattr(joined, "capturing", lambda _: True)
    assert not joins(1, 10**4)
