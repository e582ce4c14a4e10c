"""Triton kernels for long rows against the float64 reference: on CUDA, or in Triton's interpreter without it."""

import math
import sys

import pytest
import torch

import sinksort
from sinksort.kernels.contract import Request
from sinksort.kernels.requests.targets import default_targets, membership_targets
from sinksort.operators.selecting import filler_weights
from tests import inputs
from tests.devices import refusal

pytest.importorskip("triton", reason="Triton is made for Linux only")

from sinksort.kernels.gpu import long as kernels  # after the check that Triton is there
from sinksort.kernels.gpu.exact import pieces_launch as late
from sinksort.kernels.gpu.grid import rows as by_grid

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WHOLE = sinksort.Newton(compress=False)
ACCEPTED = 5e-6  # error at which a caller goes elsewhere
N = 601  # short, for the interpreter: the kernels work for any length


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def row_of_each(*kinds, n=None):
    """(kinds, n), in single precision."""
    return torch.stack([torch.as_tensor(inputs.values(kind, n or N, seed=3)) for kind in kinds]).float().to(DEVICE)


def rank_request(x, eps=1e-2, nodes=40, a=None, squash="sigmoid"):
    n = x.shape[-1]
    at = default_targets(n, n, nodes, False, x.device)
    return Request(x, a, at.y, at.b, eps, squash, at.m, at.last), at.phi


def mask_request(x, k=5, eps=1e-2, a=None, squash="sigmoid"):
    at = membership_targets(k / x.shape[-1], True, x.device)
    return Request(x, a, at.y, at.b, eps, squash), at.phi


def quantile_request(x, q=0.3, eps=1e-2, a=None, squash="sigmoid"):
    width = torch.tensor([1.0 / x.shape[-1]], dtype=torch.float64)
    b = filler_weights(torch.tensor(q, dtype=torch.float64), width).float().to(x.device)
    return Request(x, a, torch.tensor([[0.0, 0.5, 1.0]], device=x.device), b, eps, squash)


def truth(request, operator, cotangent, *args):
    """The reference in double precision, and its gradient; row by row, which takes half as long."""
    found = []
    for i in range(len(request.x)):
        x = request.x[i].detach().double().requires_grad_()
        eps = request.eps[i].double() if isinstance(request.eps, torch.Tensor) else request.eps
        weights = None if request.a is None else request.a[i]
        out = operator(x, *args, weights=weights, eps=eps, squash=request.squash, solver=WHOLE, backend="torch")
        found.append((out.detach(), *torch.autograd.grad(out, x, cotangent[i].double())))
    return tuple(torch.stack(of_rows) for of_rows in zip(*found, strict=True))


def gradients_agree(grad, true, scale=0.0):
    """Within 1e-3 of the largest entry of each row; ``scale`` is how small a gradient is nothing at all."""
    size = true.abs().amax(-1, keepdim=True).clamp(min=scale)
    return ((grad - true).abs() <= 1e-3 * size).all(-1)


def ranks_and_gradients(request, phi):
    """Estimated error, error as a fraction of n, and whether the gradient is right: one of each for every row."""
    w = random(*request.x.shape, seed=9)
    answer = kernels.pull(request, phi)
    grad = kernels.pull_backward(request, phi, answer.state, w.to(request.x.dtype))
    out, true = truth(request, sinksort.soft_rank, w.to(request.x.dtype))
    return answer.error, (answer.out - out).abs().amax(-1) / request.x.shape[-1], gradients_agree(grad, true)


ORDINARY = ("normal", "uniform", "tied", "constant")
ROUGH = ("heavy_tailed", "few_valued", "outlier", "clusters_3")


class TestRanks:
    @pytest.fixture(autouse=True)
    def as_if_rows_were_long(self, monkeypatch):
        """Of short rows several launches are one; ``test_grid`` is about these."""
        monkeypatch.setattr(by_grid, "_READ_BY_ALL", 0)

    @pytest.mark.parametrize(("squash", "kinds"), [("sigmoid", ORDINARY), ("arctan", ("normal", "exponential"))])
    def test_ordinary_rows(self, squash, kinds):
        error, off, right = ranks_and_gradients(*rank_request(row_of_each(*kinds), squash=squash))
        assert (error <= ACCEPTED).all()
        assert (off <= 1e-5).all()
        assert right.all()

    def test_targets_of_each_row(self, monkeypatch):
        """Places, weights and levels of its own for each, before the last launch, which would mend what is wrong."""
        monkeypatch.setattr(late, "forward", lambda *_: None)
        monkeypatch.setattr(late, "backward", lambda *_: None)
        request, phi = rank_request(row_of_each("normal", "exponential"))
        weights = torch.linspace(0.5, 1.5, request.b.shape[-1], device=DEVICE)
        b, phi = torch.cat([request.b, request.b * weights]), torch.cat([phi, 1 - phi])
        y, b = torch.cat([request.y, request.y**2]), b / b.sum(-1, keepdim=True)
        w = random(2, N)
        answer = kernels.pull(request._replace(y=y, b=b), phi)
        grad = kernels.pull_backward(request._replace(y=y, b=b), phi, answer.state, w)
        for i in range(2):
            mine = slice(i, i + 1)
            one = request._replace(x=request.x[mine], y=y[mine], b=b[mine])
            alone = kernels.pull(one, phi[mine])
            assert torch.equal(answer.out[mine], alone.out)
            assert torch.equal(answer.error[mine], alone.error)
            assert torch.equal(grad[mine], kernels.pull_backward(one, phi[mine], alone.state, w[mine]))

    def test_small_eps(self):
        error, off, right = ranks_and_gradients(*rank_request(row_of_each("normal", "tied"), eps=1e-3, nodes=112))
        assert (error <= ACCEPTED).all()
        assert (off <= 1e-5).all()
        assert right.all()

    def test_large_eps(self):
        error, off, right = ranks_and_gradients(*rank_request(row_of_each("exponential", *ROUGH), eps=1.0, nodes=16))
        assert (error <= ACCEPTED).all()
        assert (off <= 1e-5).all()
        assert right.all()

    def test_rows_that_are_too_rough_say_so(self, monkeypatch):
        """Before the last launch, which answers them: ``test_exact_pieces``."""
        monkeypatch.setattr(late, "forward", lambda *_: None)
        monkeypatch.setattr(late, "backward", lambda *_: None)
        error, off, right = ranks_and_gradients(*rank_request(row_of_each(*ROUGH[:2]), eps=3e-3, nodes=56))
        wrong = (off > 1e-5) | ~right
        assert wrong.any()  # or this would test nothing
        assert (error[wrong] > ACCEPTED).all()

    def test_infinite_and_far_and_huge(self):
        x = row_of_each(*["normal"] * 4)
        x[0, 7], x[0, 100] = math.inf, -math.inf
        x[1] *= 1e30
        x[2] *= 1e-30
        x[3] = 1e6 + (4 * x[3]).round()
        error, off, right = ranks_and_gradients(*rank_request(x))
        assert (error <= ACCEPTED).all()
        assert (off <= 1e-5).all()
        assert right.all()

    def test_weights_with_zeros(self):
        x = row_of_each("normal", "exponential")
        a = random(2, N, seed=4).abs() * (random(2, N, seed=5) > -0.5)
        x[a == 0] *= 3.0  # what weighs nothing may stand apart
        error, off, right = ranks_and_gradients(*rank_request(x, a=a / a.sum(-1, keepdim=True)))
        assert (error <= ACCEPTED).all()
        assert (off <= 1e-5).all()
        assert right.all()

    def test_without_squash(self):
        x = row_of_each("uniform", "uniform")
        x[1, 3], x[1, 4] = math.inf, -math.inf
        error, off, right = ranks_and_gradients(*rank_request(x, squash=None))
        assert (error <= ACCEPTED).all()
        assert (off <= 1e-5).all()
        assert right.all()

    def test_an_eps_for_each_row(self):
        request, phi = rank_request(row_of_each("normal", "normal"))
        _, off, right = ranks_and_gradients(request._replace(eps=torch.tensor([1e-2, 5e-2], device=DEVICE)), phi)
        assert (off <= 1e-5).all()
        assert right.all()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision(self, dtype):
        request, phi = rank_request(row_of_each("normal").to(dtype))
        answer = kernels.pull(request, phi)
        single = kernels.pull(request._replace(x=request.x.float()), phi)
        assert answer.out.dtype == dtype
        assert torch.allclose(answer.out.float(), single.out, rtol=torch.finfo(dtype).eps)
        w = random(1, N).to(dtype)
        grad = kernels.pull_backward(request, phi, answer.state, w)
        wanted = kernels.pull_backward(request._replace(x=request.x.float()), phi, single.state, w.float())
        assert grad.dtype == dtype
        assert torch.allclose(grad.float(), wanted, rtol=torch.finfo(dtype).eps)

    def test_any_strides(self):
        x, w = row_of_each("normal", "exponential"), random(2, N)
        request, phi = rank_request(x)
        plain = kernels.pull(request, phi)
        turned = request._replace(x=x.t().contiguous().t())
        assert torch.equal(kernels.pull(turned, phi).out, plain.out)
        grad = kernels.pull_backward(request, phi, plain.state, w)
        assert torch.equal(kernels.pull_backward(turned, phi, plain.state, w.t().contiguous().t()), grad)
        repeated = request._replace(x=x[:1].expand(2, N))
        assert torch.equal(kernels.pull(repeated, phi).out, plain.out[:1].expand(2, N))
        one = torch.ones(1, 1, device=DEVICE).expand(2, N)  # the cotangent of a sum
        wanted = kernels.pull_backward(request, phi, plain.state, one.contiguous())
        assert torch.equal(kernels.pull_backward(request, phi, plain.state, one), wanted)

    def test_nan_stays_in_its_row(self):
        x = row_of_each("normal", "normal", "normal")
        x[1, 17] = math.nan
        request, phi = rank_request(x)
        answer = kernels.pull(request, phi)
        assert answer.out[1].isnan().all()
        assert answer.error[1] == 0.0
        assert torch.equal(answer.out[0], answer.out[2])
        assert answer.out[::2].isfinite().all()
        grad = kernels.pull_backward(request, phi, answer.state, torch.ones_like(x))
        assert grad[1].isnan().all()
        assert grad[::2].isfinite().all()

    @pytest.mark.parametrize(("weighted", "eps", "nodes"), [(False, 1e-3, 128), (True, 1e-2, 40)])
    def test_chunks_add_up(self, monkeypatch, weighted, eps, nodes):
        """Both grids; a row in one piece, in twelve, and in twelve that a launch of its own adds up."""
        x, w = row_of_each("normal", n=3001), random(1, 3001)
        a = torch.full_like(x, 1 / 3001) if weighted else None
        request, phi = rank_request(x, eps, nodes, a)
        several = kernels.pull(request, phi)
        grad = kernels.pull_backward(request, phi, several.state, w)
        monkeypatch.setattr(by_grid, "_GATHERED", 4)
        gathered = kernels.pull(request, phi)
        assert (gathered.out - several.out).abs().max() <= 1e-6 * 3001
        assert gradients_agree(kernels.pull_backward(request, phi, gathered.state, w), grad).all()
        monkeypatch.setattr(by_grid, "cut", lambda _, n, block, programs=1: (1, -(-n // block)))
        one = kernels.pull(request, phi)
        assert (one.out - several.out).abs().max() <= 1e-6 * 3001
        assert gradients_agree(kernels.pull_backward(request, phi, one.state, w), grad).all()

    def test_the_same_twice(self):
        request, phi = rank_request(row_of_each("exponential"))
        first, second = kernels.pull(request, phi), kernels.pull(request, phi)
        assert all(torch.equal(s, t) for s, t in zip((first.out, first.error), (second.out, second.error), strict=True))


@pytest.fixture(params=["one program", "chunks"])
def most_rows(request, monkeypatch):
    """Few targets go two ways, by the length of a row. The longer takes longer, and gets fewer rows to do.

    What one program adds up in one go is added up value by value in the interpreter: its rows are shorter still.
    """
    if request.param == "chunks":
        monkeypatch.setattr(kernels, "_ONE_PROGRAM", 0)
        monkeypatch.setattr(kernels, "AT_ONCE", False)
        monkeypatch.setattr(kernels, "_MOMENTS_BLOCK", 512)  # so that a short row has several chunks
        monkeypatch.setattr(kernels, "_CHUNK_BLOCK", 512)
        return 2
    monkeypatch.setattr(sys.modules[__name__], "N", 250)
    return 9


@pytest.mark.usefixtures("most_rows")
class TestMemberships:
    @pytest.mark.parametrize(("eps", "k", "kinds"), [(1e-2, 5, ORDINARY), (1e-3, 200, ("exponential", *ROUGH))])
    def test_every_kind_of_row(self, eps, k, kinds, most_rows):
        x = row_of_each(*kinds[:most_rows])
        w = random(*x.shape)
        request, phi = mask_request(x, k, eps)
        answer = kernels.pull(request, phi)
        out, true = truth(request, sinksort.soft_topk_mask, w, k)
        assert (answer.error <= ACCEPTED).all()
        assert (answer.out - out).abs().max() <= 1e-5
        assert gradients_agree(kernels.pull_backward(request, phi, answer.state, w), true, scale=1e-9).all()

    def test_infinite_values_and_weights(self):
        x, w = row_of_each("normal", "exponential"), random(2, N)
        x[0, 3], x[0, 8] = math.inf, -math.inf
        a = random(2, N, seed=4).abs() * (random(2, N, seed=5) > 0.0)
        request, phi = mask_request(x, 20, a=a / a.sum(-1, keepdim=True))
        answer = kernels.pull(request, phi)
        out, true = truth(request, sinksort.soft_topk_mask, w, 20)
        assert (answer.out - out).abs().max() <= 1e-5
        assert gradients_agree(kernels.pull_backward(request, phi, answer.state, w), true).all()

    @pytest.mark.parametrize("wanted", [0.0, 1.0])
    def test_nobody_and_everybody(self, wanted):
        request, phi = mask_request(row_of_each("normal"), wanted * N)
        answer = kernels.pull(request, phi)
        assert (answer.out == wanted).all()
        grad = kernels.pull_backward(request, phi, answer.state, random(1, N))
        assert (grad.abs() <= 1e-9).all()

    def test_memberships_sum_to_k(self):
        request, phi = mask_request(row_of_each("tied", "few_valued", "outlier"), 17)
        total = kernels.pull(request, phi).out.double().sum(-1)
        assert torch.allclose(total, torch.full_like(total, 17.0), rtol=1e-5)

    def test_nan_stays_in_its_row(self):
        x = row_of_each("normal", "normal")
        x[1, 17] = math.nan
        request, phi = mask_request(x)
        answer = kernels.pull(request, phi)
        assert answer.out[1].isnan().all()
        assert answer.error[1] == 0.0
        assert answer.out[0].isfinite().all()
        grad = kernels.pull_backward(request, phi, answer.state, torch.ones_like(x))
        assert grad[1].isnan().all()
        assert grad[0].isfinite().all()


@pytest.mark.usefixtures("most_rows")
class TestQuantiles:
    @pytest.mark.parametrize(("eps", "q", "kinds"), [(1e-3, 0.5, ORDINARY), (1e-2, 0.3, ROUGH), (1e-2, 0, ("normal",))])
    def test_every_kind_of_row(self, eps, q, kinds, most_rows):
        x = row_of_each(*kinds[:most_rows])
        request = quantile_request(x, q, eps)
        answer = kernels.push(request)
        out, true = truth(request, sinksort.soft_quantile, torch.ones(len(x), device=DEVICE), q)
        span = (x.amax(-1) - x.amin(-1)).clamp(min=1e-3)
        assert (answer.error <= ACCEPTED).all()
        assert ((answer.out[:, 1] - out).abs() <= 1e-5 * span).all()
        c = torch.tensor([[0.0, 1.0, 0.0]], device=DEVICE).expand(len(x), 3)
        assert gradients_agree(kernels.push_backward(request, answer.state, c), true).all()

    @pytest.mark.parametrize("squash", ["arctan", None])
    def test_squashes(self, squash):
        x = row_of_each("uniform")
        request = quantile_request(x, 0.6, squash=squash)
        answer = kernels.push(request)
        out, true = truth(request, sinksort.soft_quantile, torch.ones(1, device=DEVICE), 0.6)
        assert (answer.out[:, 1] - out).abs().max() <= 1e-5
        c = torch.tensor([[0.0, 1.0, 0.0]], device=DEVICE)
        assert gradients_agree(kernels.push_backward(request, answer.state, c), true).all()

    def test_levels_of_one_row(self):
        """Several levels share a row, whose stride is then 0, and differ in their weights."""
        x = row_of_each("normal")
        levels = [0.1, 0.9]
        requests_made = [quantile_request(x, q) for q in levels]
        over_programs = requests_made[0]._replace(
            x=x.expand(2, N), b=torch.cat([request.b for request in requests_made])
        )
        wanted = torch.cat([kernels.push(request).out for request in requests_made])
        torch.testing.assert_close(kernels.push(over_programs).out, wanted, rtol=1e-6, atol=1e-6)

    def test_weights_and_a_far_mean(self):
        x = 1e6 + row_of_each("normal").round(decimals=2)
        a = random(1, N, seed=4).abs()
        request = quantile_request(x, 0.5, a=a / a.sum(-1, keepdim=True))
        answer = kernels.push(request)
        out, true = truth(request, sinksort.soft_quantile, torch.ones(1, device=DEVICE), 0.5)
        assert (answer.out[:, 1] - out).abs().max() <= 0.1  # a single near 1e6 is a multiple of 1/16
        c = torch.tensor([[0.0, 1.0, 0.0]], device=DEVICE)
        assert gradients_agree(kernels.push_backward(request, answer.state, c), true).all()

    def test_an_infinite_value_in_the_average(self):
        x = row_of_each("normal")
        x[0, 5] = math.inf
        assert kernels.push(quantile_request(x)).out[0, 1] == math.inf


class TestContract:
    def test_layout_of_the_state(self):
        x, few = row_of_each("normal", "normal"), row_of_each("normal", "normal", n=60)
        for request, answer in [
            (rank_request(x)[0], kernels.pull(*rank_request(x))),
            (mask_request(few)[0], kernels.pull(*mask_request(few))),
            (quantile_request(few), kernels.push(quantile_request(few))),
        ]:
            assert kernels.state_layout(request) == (answer.state.shape[1], answer.state.dtype)
            assert len(answer.state) == len(answer.error) == 2

    def test_what_cannot_be_answered(self):
        x = row_of_each("normal")
        assert kernels.unable(rank_request(x)[0]) is None
        assert kernels.unable(quantile_request(x)) is None
        x = row_of_each("normal", n=2049)
        assert "at most 4 targets" in str(refusal("triton", rank_request(x, nodes=None)[0]))
        assert "128 nodes of a rule, and there are 200" in str(refusal("triton", rank_request(x, nodes=200)[0]))
