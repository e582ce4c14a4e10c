"""What is remembered of a call for others that differ in the numbers of x alone, and that nothing else is."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import sinksort
from sinksort.kernels import autograd, memo
from sinksort.kernels.contract import Request, some_rows
from sinksort.kernels.requests.targets import default_targets


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


ALONE = {
    "ranks": sinksort.soft_rank,
    "ranks from the top": lambda x, **o: sinksort.soft_rank(x, descending=True, **o),
    "sorts": sinksort.soft_sort,
    "sorts from the top": lambda x, **o: sinksort.soft_sort(x, descending=True, num_targets=4, **o),
    "masks": lambda x, **o: sinksort.soft_topk_mask(x, 3, **o),
    "quantiles": lambda x, **o: sinksort.soft_quantile(x, 0.3, **o),
    "several quantiles": lambda x, **o: sinksort.soft_quantile(x, [0.3, 0.9], keepdim=True, **o),
    "permutations": sinksort.soft_permutation,
}

LAYOUTS = {
    "as before": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "every other": lambda x: torch.stack([x, -x], -1).flatten(-2)[..., ::2],
    "not aligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "backwards in memory": lambda x: x.flip(-1).contiguous().flip(-1),
    "one row for all": lambda x: x[..., :1, :].expand(x.shape),
    "one number for all": lambda x: x[..., :1, :1].expand(x.shape),
}


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(memo, "_remembered", {})
    return lambda: memo._remembered


def value_and_gradient(call, x, **options):
    x = x.detach().requires_grad_()
    out = call(x, **options)
    w = rows(*out.shape, seed=5).to(out)
    return out.detach(), torch.autograd.grad(out, x, w)[0]


@pytest.mark.parametrize("shape", [(6, 9), (2, 3, 40)])
@pytest.mark.parametrize("name", ALONE)
def test_a_call_is_answered_as_if_it_were_the_first(memory, name, shape):
    """In every layout of x: with what is remembered of an ordinary one, which no layout adds to."""
    call = ALONE[name]
    value_and_gradient(call, rows(*shape, seed=1))
    assert len(memory()) == 1
    for layout, arranged in LAYOUTS.items():
        x = arranged(rows(*shape, seed=2))
        out, grad = value_and_gradient(call, x)
        assert sinksort.last_backend() == "numba"
        exact, exact_grad = value_and_gradient(call, x.double())
        assert out.shape == exact.shape
        assert out.dtype == grad.dtype == torch.float32
        torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-4, msg=layout)
        size = max(float(exact_grad.abs().max()), 1e-3)  # of a row of equal values it is nothing but rounding
        torch.testing.assert_close(grad.double(), exact_grad, rtol=1e-3, atol=2e-3 * size)
    assert len(memory()) == 1


@pytest.mark.parametrize("dim", [0, 1, -2, 2])
@pytest.mark.parametrize("name", ALONE)
def test_along_any_dimension_again(memory, name, dim):
    call, size = ALONE[name], 7
    for seed in (1, 2):
        x = rows(size, size, size, seed=seed)
        out, grad = value_and_gradient(call, x, dim=dim)
        exact, exact_grad = value_and_gradient(call, x.double(), dim=dim)
        torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(grad.double(), exact_grad, rtol=1e-3, atol=2e-3 * float(exact_grad.abs().max()))


@pytest.mark.parametrize("name", ALONE)
def test_another_dtype_or_device_is_another_call(memory, name):
    call, x = ALONE[name], rows(5, 9)
    single = call(x)
    half, wide, nowhere = call(x.bfloat16()), call(x.double()), call(x.to("meta"))
    assert (half.dtype, wide.dtype) == (torch.bfloat16, torch.float64)
    torch.testing.assert_close(half.double(), call(x.bfloat16().double()), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(single.double(), wide, rtol=1e-4, atol=1e-4)
    assert nowhere.is_meta
    assert nowhere.shape == single.shape
    assert torch.equal(call(x), single)
    assert sinksort.last_backend() == "numba"
    assert len(memory()) == 2


@pytest.mark.parametrize("name", ALONE)
def test_who_does_not_want_gradients_leaves_none_out_for_others(memory, name):
    """The first such call is made without gradients; the second derivative is the reference's."""
    call, x = ALONE[name], rows(3, 6)
    with torch.inference_mode():
        first = call(x)
    assert not call(x).requires_grad
    with torch.no_grad():
        assert not call(x.requires_grad_()).requires_grad
    out = call(x)
    torch.testing.assert_close(out, first, rtol=0, atol=0)
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sin().sum(), x)
    wide = x.detach().double().requires_grad_()
    (grad,) = torch.autograd.grad(call(wide).square().sum(), wide, create_graph=True)
    (exact,) = torch.autograd.grad(grad.sin().sum(), wide)
    torch.testing.assert_close(second.double(), exact, rtol=1e-2, atol=2e-2 * float(exact.abs().max()))


def test_what_was_written_over_is_not_differentiated(memory):
    for _ in range(2):
        x = rows(3, 6).requires_grad_()
        out = sinksort.soft_rank(x * 1.0)
        out.add_(1.0)
        out.sum().backward()
        values = x * 1.0
        out = sinksort.soft_rank(values)
        values.mul_(2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.parametrize("name", ALONE)
def test_answers_do_not_depend_on_threads_also_when_their_number_changes(memory, name):
    call, x, threads = ALONE[name], rows(1500, 40), torch.get_num_threads()
    try:
        answers = []
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            answers.append(value_and_gradient(call, x))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in answers[1:] for a, b in zip(answers[0], other, strict=True))


def test_what_equals_an_option_may_be_none(memory):
    x = rows(4, 6)
    sinksort.soft_topk_mask(x, 1)
    sinksort.soft_rank(x, dim=1, eps=1)
    for call in (
        lambda: sinksort.soft_topk_mask(x, True),
        lambda: sinksort.soft_rank(x, dim=1, eps=True),
        lambda: sinksort.soft_rank(x, dim=1.0, eps=1),
    ):
        with pytest.raises(TypeError):
            call()
    torch.testing.assert_close(sinksort.soft_topk_mask(x, 1.0), sinksort.soft_topk_mask(x, 1))
    assert sinksort.soft_quantile(x, 0.5).shape == (4,)
    assert sinksort.soft_quantile(x, [0.5]).shape == sinksort.soft_quantile(x, (0.5,)).shape == (1, 4)
    narrow, wide = (sinksort.soft_quantile(x, 0.5, width=width, eps=1e-3) for width in (0.05, 0.9))
    torch.testing.assert_close(wide, x.mean(-1), rtol=0, atol=0.3 * float(x.std()))
    assert (narrow - wide).abs().max() > 0.05


def test_rows_that_kernels_give_up_are_the_reference_s_again(memory, monkeypatch):
    """All of them, if no error is small enough; and what is remembered of all rows is not what some rows need."""
    x, w = rows(7, 30), rows(7, 30, seed=1)
    sinksort.soft_rank(x)
    monkeypatch.setattr(autograd, "_ACCEPTED", 1e-9)
    ours, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    out, truth = sinksort.soft_rank(ours), sinksort.soft_rank(exact)
    torch.testing.assert_close(out.double(), truth, rtol=0, atol=3e-6)
    out.backward(w)
    truth.backward(w.double())
    torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)
    at = default_targets(30, 30, None, False, x.device)
    request = Request(x, None, at.y, at.b, 0.01, "sigmoid", prepared={})
    assert some_rows(request, torch.tensor([0, 2])).prepared is None


def test_nothing_of_x_is_kept_and_memories_do_not_pile_up(memory, monkeypatch):
    monkeypatch.setattr(memo, "_MOST_REMEMBERED", 5)
    for n in range(3, 12):
        for call in ALONE.values():
            x = rows(2, n + 2).requires_grad_()
            gone = weakref.ref(x)
            call(x).sum().backward()
            del x
            assert gone() is None
            assert len(memory()) <= 5
    large = rows(500, 6)
    before = len(memory())
    sinksort.soft_quantile(large, [0.1, 0.2])  # a thousand fillers
    assert len(memory()) == before


def test_calls_from_several_threads_at_once(memory):
    xs = [rows(20, 5 + k % 4, seed=k) for k in range(40)]
    alone = [value_and_gradient(sinksort.soft_rank, x) for x in xs]
    memory().clear()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda x: value_and_gradient(sinksort.soft_rank, x), xs))
    for ours, theirs in zip(together, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_remembered_call_is_as_precise_under_autocast(memory):
    x = rows(3, 30)
    plain = [call(x) for call in ALONE.values()]
    with torch.autocast("cpu", torch.bfloat16):
        under = [call(x) for call in ALONE.values()]
    assert all(torch.equal(a, b) for a, b in zip(plain, under, strict=True))


def test_a_parameter_is_a_tensor_like_any_other(memory):
    plain = sinksort.soft_rank(rows(6, 9))
    weight = torch.nn.Parameter(rows(6, 9))
    assert torch.equal(sinksort.soft_rank(weight), plain)
    assert len(memory()) == 1
    assert torch.autograd.grad(sinksort.soft_rank(weight)[:, 0].sum(), weight)[0].abs().sum() > 0
