"""Long rows that a grid cannot answer, by the launch that follows it: against the float64 reference.

Without CUDA kernels run in Triton's interpreter, where programs come one after the other; those that wait for each
other are given a thread each here, of which one runs at a time.
"""

import inspect
import math
import os
import threading

import pytest
import torch

import sinksort

pytest.importorskip("triton", reason="Triton is made for Linux only")

import triton  # after the check that it is there
import triton.language as tl

from sinksort.kernels import autograd, memo
from sinksort.kernels.gpu import long as kernels
from sinksort.kernels.gpu.engine import launch
from sinksort.kernels.gpu.exact import pieces_launch as late
from sinksort.kernels.gpu.exact.pieces_passes import over_programs
from sinksort.kernels.gpu.grid import rows as by_grid

from ...devices import limits
from .test_long import ACCEPTED, DEVICE, gradients_agree, random, rank_request, ranks_and_gradients, truth

N = 257
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Rows as if they were long; in the interpreter few panels, and many values at once. Nothing is remembered."""
    monkeypatch.setattr(memo, "_remembered", {})
    monkeypatch.setattr(launch, "_records", {})
    monkeypatch.setattr(by_grid, "_READ_BY_ALL", 0)
    if INTERPRETED:
        monkeypatch.setattr(late, "_PANELS", {"small rule": (8, 2), "large rule": (32, 4)})
        monkeypatch.setattr(late, "_TILE", 1 << 17)


def clusters(count=2, n=N):
    return 10.0 * (torch.arange(n) % count) + 0.1 * random(n).cpu()


def rows(*of_kinds):
    return torch.stack(of_kinds).float().to(DEVICE)


def all_right(request, phi):
    error, off, right = ranks_and_gradients(request, phi)
    assert (error <= ACCEPTED).all()
    assert (off <= 1e-5).all()
    assert right.all()


def ranked_as_the_reference_does(x, squash):
    given, w = x.clone().requires_grad_(), random(*x.shape, seed=9)
    out = sinksort.soft_rank(given, squash=squash, backend="triton")
    (grad,) = torch.autograd.grad(out, given, w)
    wide = x.double().requires_grad_()
    wanted = sinksort.soft_rank(wide, squash=squash, solver=sinksort.Newton(compress=False))
    (true,) = torch.autograd.grad(wanted, wide, w.double())
    assert (out - wanted).abs().max() <= 1e-5 * x.shape[-1]
    assert gradients_agree(grad, true).all()


def test_rows_with_edges_among_others():
    normal = random(N, seed=5).cpu()
    all_right(*rank_request(rows(clusters(), normal, (torch.arange(N) % 3).float(), normal.relu() ** 2)))


def test_small_eps():
    x = rows(clusters(5, 301))
    all_right(*rank_request(x, eps=1e-3, nodes=128))


def test_values_far_from_all_targets(monkeypatch):
    monkeypatch.setattr(late, "_PANELS", {"small rule": (16, 2)})
    x = random(N, seed=6).cpu()
    x[7], x[9], x[11] = 300.0, math.inf, -math.inf
    all_right(*rank_request(rows(x), squash=None))


def test_weights_with_zeros():
    x = rows(clusters())
    a = random(1, N, seed=4).abs() * (random(1, N, seed=5) > -0.5)
    all_right(*rank_request(x, a=a / a.sum(-1, keepdim=True), squash="arctan"))


def test_an_eps_for_each_row():
    request, phi = rank_request(rows(clusters(), clusters()))
    all_right(request._replace(eps=torch.tensor([1e-2, 3e-2], device=DEVICE)), phi)


def test_by_way_of_the_operator_nobody_looks_at_errors(monkeypatch):
    def looked(_):
        raise AssertionError("somebody waits for the device")

    monkeypatch.setattr(autograd, "_rejected_rows", looked)
    limits(monkeypatch, most=0)
    x = clusters().half().to(DEVICE).requires_grad_()
    out = sinksort.soft_rank(x, eps=1e-2, descending=True, backend="triton")
    w = random(N, seed=9).half()
    (grad,) = torch.autograd.grad(out, x, w)
    wide = x.detach().double().requires_grad_()
    wanted = sinksort.soft_rank(wide, eps=1e-2, descending=True, solver=sinksort.Newton(compress=False))
    (true,) = torch.autograd.grad(wanted, wide, w.double())
    assert out.dtype == grad.dtype == torch.float16
    assert (out - wanted).abs().max() <= torch.finfo(torch.float16).eps * N
    assert gradients_agree(grad, true).all()


def test_what_needs_more_panels_than_there_are_is_nan(monkeypatch):
    monkeypatch.setattr(late, "_PANELS", {"small rule": (4, 2)})
    request, phi = rank_request(rows(clusters(), random(N).cpu()))
    answer = kernels.pull(request, phi)
    assert answer.error[0] > ACCEPTED
    assert answer.out[0].isnan().all()
    assert answer.out[1].isfinite().all()
    grad = kernels.pull_backward(request, phi, answer.state, random(2, N))
    assert grad[0].isnan().all()
    assert grad[1].isfinite().all()


def test_unsquashed_rows_that_need_more_are_answered_by_the_reference(monkeypatch):
    monkeypatch.setattr(late, "_PANELS", {"small rule": (4, 2), "large rule": (4, 2)})
    limits(monkeypatch, most=0)
    ranked_as_the_reference_does(rows(clusters() / 10.0, random(N).cpu()), None)


def test_where_triton_is_too_old_for_the_last_launch_the_reference_answers(monkeypatch):
    def never(*_):
        raise AssertionError("programs that wait for each other cannot be launched")

    monkeypatch.setattr(kernels, "AT_ONCE", False)
    monkeypatch.setattr(late, "forward", never)
    monkeypatch.setattr(late, "backward", never)
    limits(monkeypatch, most=0)
    ranked_as_the_reference_does(rows(clusters(), random(N).cpu()), "sigmoid")


def test_without_the_last_launch_such_rows_would_be_wrong(monkeypatch):
    monkeypatch.setattr(late, "forward", lambda *_: None)
    monkeypatch.setattr(late, "backward", lambda *_: None)
    error, off, right = ranks_and_gradients(*rank_request(rows(clusters(), (torch.arange(N) % 3).float())))
    assert ((off > 1e-5) | ~right).any()
    assert (error > ACCEPTED).all()


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU all programs wait for each other anyway")
def test_programs_that_wait_for_each_other(monkeypatch):
    """Three of them, of which the last has a single value."""
    monkeypatch.setattr(late, "_PANELS", {"small rule": (8, 2)})
    request, phi = rank_request(rows(clusters()))
    w = random(1, N, seed=9)
    alone = kernels.pull(request, phi)
    alone_grad = kernels.pull_backward(request, phi, alone.state, w)
    monkeypatch.setattr(late, "_TILE", 1 << 14)
    monkeypatch.setattr(late, "programs_of", lambda _: 3)
    with monkeypatch.context() as patched:
        patched.setattr("triton.runtime.interpreter.GridExecutor", at_once())
        answer = kernels.pull(request, phi)
        grad = kernels.pull_backward(request, phi, answer.state, w)
    assert (answer.out - alone.out).abs().max() <= 1e-6 * N
    assert gradients_agree(grad, alone_grad).all()
    out, true = truth(request, sinksort.soft_rank, w)
    assert (answer.out - out).abs().max() <= 1e-5 * N
    assert gradients_agree(grad, true).all()


@triton.jit
def added_up(given, sums, ticket, out, P, KP: tl.constexpr, PP: tl.constexpr, LARGEST: tl.constexpr):
    j = tl.arange(0, KP)
    given += tl.program_id(0) * (3 * KP)
    out += tl.program_id(0) * (3 * KP)
    one, two, three = tl.load(given + j), tl.load(given + KP + j), tl.load(given + 2 * KP + j)
    one, two, three, _met = over_programs(one, two, three, sums, ticket, P * 0, P, 3, KP, PP, LARGEST)
    tl.store(out + j, one)
    tl.store(out + KP + j, two)
    tl.store(out + 2 * KP + j, three)


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("largest", [False, True])
def test_programs_add_up_what_each_has(monkeypatch, programs, largest):
    if DEVICE.type == "cpu":
        monkeypatch.setattr("triton.runtime.interpreter.GridExecutor", at_once())
    given = random(programs, 3, 16).double().abs()  # what is the largest of nothing is zero
    sums, ticket = given.new_full((programs + 1, 3, 16), math.nan), given.new_zeros(1).int()
    out = torch.empty_like(given)
    constants = {"KP": 16, "PP": triton.next_power_of_2(programs), "LARGEST": largest}
    added_up[(programs,)](given, sums, ticket, out, programs, **constants, launch_cooperative_grid=programs > 1)
    truth = given.amax(0) if largest else given.sum(0)
    torch.testing.assert_close(out, truth.expand(out.shape), rtol=1e-15, atol=0)


def at_once():
    """An executor that runs cooperative programs in threads; they take turns where they look at their counter."""
    from triton.runtime import interpreter

    builder, one = interpreter.interpreter_builder, interpreter.GridExecutor

    class AtOnce(one):
        def __call__(self, *args, **kwargs):
            if not kwargs.pop("launch_cooperative_grid", False):
                return super().__call__(*args, **kwargs)
            kwargs = {k: v for k, v in kwargs.items() if k in inspect.getfullargspec(self.fn).args}
            args, kwargs = self._init_args_hst(args, kwargs)
            scope = interpreter._patch_lang(self.fn)
            given = inspect.getcallargs(self.fn, *args, **kwargs)
            given = {k: v if k in self.constexprs else interpreter._implicit_cvt(v) for k, v in given.items()}
            turn, failures, add = threading.Lock(), [], builder.create_atomic_rmw
            builder.set_grid_dim(*self.grid, 1, 1)

            def others_turn(*operands):
                out, me = add(*operands), builder.grid_idx
                turn.release()
                threading.Event().wait(1e-4)
                turn.acquire()
                builder.grid_idx = me
                return out

            def program(i):
                with turn:
                    builder.set_grid_idx(i, 0, 0)
                    try:
                        self.fn(**given)
                    except Exception as failure:
                        failures.append(failure)

            builder.create_atomic_rmw = others_turn
            try:
                threads = [threading.Thread(target=program, args=(i,), daemon=True) for i in range(self.grid[0])]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(60)
                    assert not thread.is_alive()
                assert not failures
            finally:
                del builder.create_atomic_rmw
                scope.restore()
            return None

    return AtOnce
