"""Inside torch: func transforms, compile, autocast, dtypes, layouts, devices, registered operators, imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.core.solvers.newton import newton_loop
from sinksort.core.solvers.sinkhorn import kernel_loop, log_loop
from sinksort.core.solvers.start import staircase_potentials
from tests.devices import DEVICES

Read = Callable[[Tensor], Any]

#: Every operator as a function of x alone.
OPERATORS: dict[str, Read] = {
    "soft_rank": lambda x: sinksort.soft_rank(x, eps=0.05),
    "soft_sort": lambda x: sinksort.soft_sort(x, eps=0.05, num_targets=3),
    "soft_permutation": lambda x: sinksort.soft_permutation(x, eps=0.05),
    "soft_quantile": lambda x: sinksort.soft_quantile(x, [0.2, 0.9], eps=0.05),
    "soft_median": lambda x: sinksort.soft_median(x, eps=0.05),
    "soft_topk": lambda x: tuple(sinksort.soft_topk(x, 2, eps=0.05)),
    "soft_topk_mask": lambda x: sinksort.soft_topk_mask(x, 1.5, eps=0.05),
    "sort_with": lambda x: sinksort.sort_with(x.square().unsqueeze(-1), x, eps=0.05),
    "quantile_normalize": lambda x: sinksort.quantile_normalize(x, x.new_tensor([5.0, 1.0, 2.0]), eps=0.05),
    "transport": lambda x: sinksort.transport(x, eps=0.05).matrix(),
    "kantorovich_rank": lambda x: sinksort.kantorovich_rank(x),
    "kantorovich_sort": lambda x: sinksort.kantorovich_sort(x, num_targets=3),
    "rank by Sinkhorn": lambda x: sinksort.soft_rank(x, eps=0.5, solver=sinksort.Sinkhorn(tolerance=1e-10)),
    "masked rank": lambda x: sinksort.soft_rank(x, mask=torch.arange(x.shape[-1], device=x.device) < 4, eps=0.05),
}
SMOOTH = [name for name in OPERATORS if "kantorovich" not in name]
every_operator = pytest.mark.parametrize("name", OPERATORS)
every_smooth_operator = pytest.mark.parametrize("name", SMOOTH)
every_device = pytest.mark.parametrize("device", DEVICES)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def parts(out: Any) -> tuple[Tensor, ...]:
    return out if isinstance(out, tuple) else (out,)


# ---- torch.func


@every_operator
@pytest.mark.parametrize("in_dim", [0, 1])
def test_vmap_is_a_loop(name: str, in_dim: int) -> None:
    read, x = OPERATORS[name], draw(3, 5) if in_dim == 0 else draw(5, 3)
    mapped = parts(torch.func.vmap(read, in_dims=in_dim)(x))
    looped = [parts(read(row)) for row in x.unbind(in_dim)]
    for position, out in enumerate(mapped):
        torch.testing.assert_close(out, torch.stack([row[position] for row in looped]), rtol=0, atol=1e-9)


@every_smooth_operator
def test_jacobians_agree(name: str) -> None:
    """Reverse mode, forward mode and the ordinary autograd Jacobian."""

    def read(x: Tensor) -> Tensor:
        return torch.cat([part.flatten() for part in parts(OPERATORS[name](x))])

    x = draw(5)
    expected = torch.autograd.functional.jacobian(read, x)
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(torch.func.jacrev(read)(x), expected, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(torch.func.jacfwd(read)(x), expected, rtol=1e-7, atol=1e-8)


@every_smooth_operator
def test_hessian(name: str) -> None:
    """Forward over reverse against differences of the gradient."""

    def loss(x: Tensor) -> Tensor:
        out = torch.cat([part.flatten() for part in parts(OPERATORS[name](x))])
        return (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype)).sum()

    x, along = draw(4) if name != "masked rank" else draw(5), draw(4 if name != "masked rank" else 5, seed=1)
    hessian = torch.func.hessian(loss)(x)
    gradient, step = torch.func.grad(loss), 1e-5
    numeric = (gradient(x + step * along) - gradient(x - step * along)) / (2 * step)
    torch.testing.assert_close(hessian @ along, numeric, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(hessian, hessian.mT, rtol=1e-6, atol=1e-6)


def test_per_row_gradients_by_vmap_of_grad() -> None:
    x, weights = draw(4, 5), draw(5, seed=1)

    def loss(row: Tensor) -> Tensor:
        return (sinksort.soft_rank(row, eps=0.05) * weights).sum()

    leaf = x.clone().requires_grad_()
    (sinksort.soft_rank(leaf, eps=0.05) * weights).sum().backward()
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(x), leaf.grad, rtol=1e-8, atol=1e-9)


DENSE = ("soft_permutation", "transport", "rank by Sinkhorn")  #: the whole plan, however long the row
SIZES = [(name, n) for name in SMOOTH for n in (5, 3000) if n == 5 or name not in DENSE]
SIZES += [(name, 300) for name in ("soft_rank", "soft_sort", "soft_quantile")]


@pytest.mark.parametrize(("name", "n"), SIZES)
def test_several_cotangents_at_once_are_a_loop(name: str, n: int) -> None:
    """By kernels, by a grid, by way of the reference: ``is_grads_batched``, as vectorised Jacobians ask for."""
    dtype = torch.float64 if n == 300 else torch.float32
    x = draw(2, n, dtype=dtype).requires_grad_()
    answer = parts(OPERATORS[name](x))[0]
    cotangents = draw(3, *answer.shape, seed=1, dtype=answer.dtype)
    (together,) = torch.autograd.grad(answer, x, cotangents, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(answer, x, each, retain_graph=True)[0] for each in cotangents]
    torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=1e-6 * together.abs().max().item())


def test_vmap_over_eps_weights_and_k() -> None:
    x, eps = draw(5), torch.tensor([1e-3, 1e-2, 1e-1], dtype=torch.float64)
    mapped = torch.func.vmap(lambda e: sinksort.soft_rank(x, eps=e))(eps)
    torch.testing.assert_close(
        mapped, torch.stack([sinksort.soft_rank(x, eps=float(e)) for e in eps]), rtol=0, atol=1e-9
    )
    k = torch.tensor([1.0, 2.5], dtype=torch.float64)
    mapped = torch.func.vmap(lambda k: sinksort.soft_topk_mask(x, k))(k)
    torch.testing.assert_close(
        mapped, torch.stack([sinksort.soft_topk_mask(x, float(t)) for t in k]), rtol=0, atol=1e-9
    )
    a = draw(3, 5, seed=2).abs()
    mapped = torch.func.vmap(lambda a: sinksort.soft_sort(x, weights=a))(a)
    torch.testing.assert_close(mapped, torch.stack([sinksort.soft_sort(x, weights=t) for t in a]), rtol=0, atol=1e-9)


# ---- torch.compile


def compiled_agrees(read: Read, backend: str, *, gradients: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(read, fullgraph=True, backend=backend)
    x, y = draw(2, 5).requires_grad_(), draw(2, 5).requires_grad_()
    expected, out = parts(read(x)), parts(compiled(y))
    for eager, other in zip(expected, out, strict=True):
        torch.testing.assert_close(other, eager, rtol=1e-9, atol=1e-9)
    if gradients:
        sum((t * t).sum() for t in expected).backward()  # type: ignore[union-attr]
        sum((t * t).sum() for t in out).backward()  # type: ignore[union-attr]
        torch.testing.assert_close(y.grad, x.grad, rtol=1e-7, atol=1e-8)


@every_operator
def test_compile_fullgraph(name: str) -> None:
    compiled_agrees(OPERATORS[name], "aot_eager", gradients=name != "kantorovich_rank")


def test_compile_with_inductor() -> None:
    """Generated code, forward and backward. One small operator: the others are made of the same parts."""
    compiled_agrees(OPERATORS["soft_topk_mask"], "inductor", gradients=True)


def test_compile_with_dynamic_shapes() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(
        lambda x: sinksort.soft_rank(x, eps=0.05), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for rows, n in ((2, 5), (3, 7), (4, 11), (6, 9)):
        x = draw(rows, n, seed=n)
        torch.testing.assert_close(compiled(x), sinksort.soft_rank(x, eps=0.05), rtol=0, atol=1e-9)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_compile_unrolled_sinkhorn() -> None:
    """Without a look at the values the loop runs to its limit; a row that is done keeps its answer."""
    solver = sinksort.Sinkhorn(gradient="unrolled", max_iterations=12, tolerance=1e-4)
    compiled_agrees(lambda x: sinksort.soft_rank(x, eps=1.0, solver=solver), "aot_eager", gradients=True)


def test_a_training_step_compiles() -> None:
    torch._dynamo.reset()
    layer = torch.nn.Linear(3, 6, dtype=torch.float64)
    x, wanted = draw(4, 3), torch.arange(1.0, 7, dtype=torch.float64)

    def loss() -> Tensor:
        return (sinksort.soft_rank(layer(x)) - wanted).square().mean()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(15):
        optimiser.zero_grad()
        value = compiled()
        value.backward()
        optimiser.step()
        losses.append(value.item())
    assert losses[-1] < 0.5 * losses[0]


# ---- registered operators


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_registered_operators_keep_their_contracts(batch: tuple[int, ...]) -> None:
    """Schema, fake tensors, and no autograd registration that would lie."""
    C = draw(*batch, 5, 4).abs()
    a, b = torch.full((*batch, 5), 0.2, dtype=torch.float64), torch.full((*batch, 4), 0.25, dtype=torch.float64)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        staircase_potentials, (C, a, b, torch.full((*batch, 1, 1), 0.1).double(), True), test_utils=checks
    )
    torch.library.opcheck(newton_loop, (C, a, b, torch.zeros_like(b), 1e-9, True, 20, True), test_utils=checks)
    ratio = torch.ones(*batch, 1, dtype=torch.float64)
    torch.library.opcheck(log_loop, (a.log(), C, a.log(), b.log(), ratio, 1e-6, 500, 0.9), test_utils=checks)
    torch.library.opcheck(kernel_loop, (a.log(), -C, a.log(), b.log(), 1e-6, 500), test_utils=checks)


# ---- precision and layout


@every_device
@every_operator
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_comes_back(name: str, dtype: torch.dtype, device: str) -> None:
    """Computed wide, rounded once: the answer is that of the same numbers in float64."""
    x = draw(2, 5, dtype=dtype).to(device).requires_grad_()
    out, expected = parts(OPERATORS[name](x)), parts(OPERATORS[name](x.detach().double()))
    for ours, exact in zip(out, expected, strict=True):
        assert ours.dtype == dtype
        assert ours.device == x.device
        if name != "sort_with":  # its payload here is squared in the low precision first
            torch.testing.assert_close(
                ours, exact.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps
            )
    if out[0].requires_grad:
        sum(part.sum() for part in out).backward()  # type: ignore[union-attr]
        assert x.grad is not None
        assert x.grad.dtype == dtype
        assert x.grad.isfinite().all()


@every_device
@every_operator
def test_autocast_changes_nothing(name: str, device: str) -> None:
    read = OPERATORS[name] if name != "sort_with" else lambda x: sinksort.sort_with(x, x, eps=0.05)
    x = draw(2, 5, dtype=torch.float32).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        inside = parts(read(x))
    for ours, plain in zip(inside, parts(read(x)), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6)


def test_autocast_in_a_network() -> None:
    layer = torch.nn.Linear(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = layer(draw(3, 4, dtype=torch.float32))
        ranks = sinksort.soft_rank(scores)
    assert scores.dtype == ranks.dtype == torch.bfloat16
    ranks.float().square().mean().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.isfinite().all()


@every_device
@every_operator
@pytest.mark.parametrize("batch", [(), (1,), (4,), (2, 3), (0,), (2, 0, 3)])
def test_any_batch_shape(name: str, batch: tuple[int, ...], device: str) -> None:
    """A batch is its rows one by one; an empty batch is an empty answer of the right shape."""
    read, x = OPERATORS[name], draw(*batch, 5).to(device)
    levels = name == "soft_quantile"  # whose levels come first, as in torch.quantile
    alone = parts(read(draw(5).to(device)))
    for position, out in enumerate(parts(read(x))):
        rows_first = out.movedim(0, -1) if levels else out
        assert rows_first.shape == (*batch, *alone[position].shape)
        for at, row in zip(rows_first.reshape(-1, *alone[position].shape), x.reshape(-1, 5), strict=True):
            torch.testing.assert_close(at, parts(read(row))[position], rtol=0, atol=1e-9)


WITH_DIM: dict[str, Callable[[Tensor, int], Tensor]] = {
    "soft_rank": lambda x, dim: sinksort.soft_rank(x, dim=dim),
    "soft_sort": lambda x, dim: sinksort.soft_sort(x, dim=dim, num_targets=3),
    "soft_topk": lambda x, dim: sinksort.soft_topk(x, 2, dim=dim).values,
    "soft_topk_mask": lambda x, dim: sinksort.soft_topk_mask(x, 2, dim=dim),
    "soft_median": lambda x, dim: sinksort.soft_median(x, dim=dim, keepdim=True),
    "sort_with": lambda x, dim: sinksort.sort_with(x, x, dim=dim, num_targets=3),
    "quantile_normalize": lambda x, dim: sinksort.quantile_normalize(x, torch.arange(4.0, dtype=x.dtype), dim=dim),
}


@pytest.mark.parametrize("name", WITH_DIM)
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_any_dim(name: str, dim: int) -> None:
    read, x = WITH_DIM[name], draw(4, 5, 3)
    expected = read(x.movedim(dim, -1).contiguous(), -1).movedim(-1, dim)
    torch.testing.assert_close(read(x, dim), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_permutation_moves_dim_last_and_quantile_drops_it(dim: int) -> None:
    x = draw(4, 5)
    assert torch.equal(sinksort.soft_permutation(x, dim=dim), sinksort.soft_permutation(x.movedim(dim, -1)))
    assert torch.equal(
        sinksort.soft_quantile(x, [0.1, 0.5], dim=dim), sinksort.soft_quantile(x.movedim(dim, -1), [0.1, 0.5])
    )


@pytest.mark.parametrize("dim", [0, 1])
def test_weights_and_masks_along_any_dim(dim: int) -> None:
    x, a = draw(4, 5), draw(4, 5, seed=1).abs()
    mask = draw(4, 5, seed=2) > -0.5
    mask[0], mask[:, 0] = True, True
    direct = sinksort.soft_rank(x, dim=dim, weights=a, mask=mask)
    moved = sinksort.soft_rank(x.movedim(dim, -1), weights=a.movedim(dim, -1), mask=mask.movedim(dim, -1))
    torch.testing.assert_close(direct, moved.movedim(-1, dim), rtol=0, atol=1e-10)
    line = draw(x.shape[dim], seed=3).abs()  # one vector along dim, for all rows
    full = line.unsqueeze(1 - dim).expand(4, 5)
    torch.testing.assert_close(
        sinksort.soft_rank(x, dim=dim, weights=line), sinksort.soft_rank(x, dim=dim, weights=full)
    )


@every_operator
def test_non_contiguous_inputs(name: str) -> None:
    read, base = OPERATORS[name], draw(5, 6, 2)
    strided = base.mT[:, ::2, :].movedim(0, 1)[..., ::1]
    assert not strided.is_contiguous()
    for ours, plain in zip(parts(read(strided)), parts(read(strided.contiguous())), strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)
    flat = draw(1).expand(5)  # one number in memory, five in the row
    for out in parts(read(flat)):
        assert out.isfinite().all()


@every_operator
def test_gradient_mode_does_not_change_the_value(name: str) -> None:
    read, x = OPERATORS[name], draw(3, 6)
    with torch.no_grad():
        without = parts(read(x.clone().requires_grad_()))
    with torch.inference_mode():
        inference = parts(read(x))
    for ours, other, last in zip(parts(read(x.clone().requires_grad_())), without, inference, strict=True):
        assert torch.equal(ours.detach(), other)
        assert torch.equal(other, last)
        assert not other.requires_grad


def test_inputs_are_left_alone() -> None:
    x, a, mask = draw(2, 5), draw(5, seed=1).abs(), torch.tensor([True, True, False, True, True])
    kept = x.clone(), a.clone(), mask.clone()
    sinksort.soft_topk(x, 2, weights=a, mask=mask)
    sinksort.soft_sort(x, weights=a, mask=mask, descending=True)
    assert all(torch.equal(now, then) for now, then in zip((x, a, mask), kept, strict=True))


# ---- what it looks at


def shape_only(*shape: int) -> Tensor:
    """A tensor without values, on a device that is not the CPU: whoever looks inside gets an error."""
    return torch.ones(shape, dtype=torch.float64, device="meta")


#: The README's list: what is checked by value, each as the only argument that is.
CHECKED: dict[str, Callable[[], Any]] = {
    "weights": lambda: sinksort.soft_rank(shape_only(4, 6), weights=shape_only(6)),
    "target_weights": lambda: sinksort.soft_sort(shape_only(4, 6), target_weights=shape_only(3)),
    "targets": lambda: sinksort.soft_sort(shape_only(4, 6), targets=shape_only(3)),
    "q": lambda: sinksort.soft_quantile(shape_only(4, 6), shape_only(2)),
    "k": lambda: sinksort.soft_topk_mask(shape_only(4, 6), shape_only(4)),
    "eps": lambda: sinksort.transport(shape_only(4, 6), eps=shape_only(4)).ranks(),
    "exact weights": lambda: sinksort.kantorovich_rank(shape_only(4, 6), weights=shape_only(6)),
}


@pytest.mark.parametrize("name", CHECKED)
def test_values_are_looked_at_on_request_only(name: str) -> None:
    assert CHECKED[name]().device.type == "meta"
    with sinksort.value_checks(), pytest.raises(RuntimeError, match="meta tensors"):
        CHECKED[name]()
    CHECKED[name]()  # and not after the block


@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "masked rank"])
def test_small_rows_need_no_look_at_values(name: str) -> None:
    """Shapes of every answer are those of the real one."""
    for ours, real in zip(parts(OPERATORS[name](shape_only(3, 5))), parts(OPERATORS[name](draw(3, 5))), strict=True):
        assert ours.shape == real.shape
        assert ours.dtype == real.dtype


# ---- what it loads


def test_import_needs_only_torch_and_numpy() -> None:
    """In a process where everything else of the test environment cannot be imported: None in sys.modules says so."""
    script = """
import sys

others = "scipy sklearn ot matplotlib rich torchmetrics hypothesis pytest diffsort difftopk triton numba".split()
sys.modules.update(dict.fromkeys(others))
import sinksort, sinksort.losses, sinksort.nn, sinksort.relaxations
assert "torch._dynamo" not in sys.modules  # slow to load, and not needed before something is compiled or solved
import torch
assert sinksort.soft_rank(torch.tensor([0.3, 0.1, 0.2]), eps=1e-3).round().tolist() == [3, 1, 2]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@every_operator
def test_nothing_that_inference_mode_made_is_left_for_those_who_want_gradients(name: str) -> None:
    read = OPERATORS[name]
    x = draw(3, 23)  # a size that nobody else has: what is kept for it is made here
    with torch.inference_mode():
        read(x)
    for each in parts(read(x.clone().requires_grad_())):
        if each.requires_grad:  # hard ranks do not
            each.sum().backward()
