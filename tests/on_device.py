"""Everything that can be checked only where there is an accelerator, in one command that needs no pytest:

    python -m tests.on_device

Every operator on the device against the CPU, values and gradients, for few and very many values in both precisions; and
values spread over processes: gloo with two processes on one device, NCCL with one process for each device (it does not
let two share one). One line a case; the exit status is 1 if any failed. ``--device cpu`` tries the checks themselves.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import sinksort
import sinksort.distributed as spread
from tests.processes import Team, raised

SIZES = (5, 300, 5000, 1_000_000)
Case = tuple[str, Callable[[], None]]

#: Each maps values (rows, n) to an answer.
OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "soft_rank": sinksort.soft_rank,
    "soft_sort": sinksort.soft_sort,
    "soft_quantile": lambda x: sinksort.soft_quantile(x, [0.1, 0.5]),
    "soft_topk values": lambda x: sinksort.soft_topk(x, 3).values,
    "soft_topk mask": lambda x: sinksort.soft_topk(x, 3).mask,
    "soft_topk_mask": lambda x: sinksort.soft_topk_mask(x, 0.3 * x.shape[-1]),
    "sort_with": lambda x: sinksort.sort_with(torch.stack([x.sin(), x], dim=-1), x),
    "quantile_normalize": lambda x: sinksort.quantile_normalize(x, torch.linspace(0, 1, 50).to(x)),
}


def against_the_cpu(operator: Callable[[Tensor], Tensor], n: int, dtype: torch.dtype, device: str) -> None:
    """Answers to 2e-9 (2e-5) of their range, gradients to 1e-6 (1e-3) of the largest: each may be off by half of it.

    A gradient of which next to nothing remains (only one value is between in and out) is held to its parts.
    """
    x = torch.randn(2, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64).to(dtype)
    found = []
    for where in ("cpu", device):
        leaf = x.to(where).requires_grad_()
        answer = operator(leaf)
        assert answer.device.type == where
        assert answer.dtype == dtype
        direction = torch.linspace(-1, 1, answer.numel(), dtype=torch.float64).sin().reshape(answer.shape)
        (gradient,) = torch.autograd.grad((answer * direction.to(answer)).sum(), leaf)
        found.append((answer.detach().cpu().double(), gradient.cpu().double()))
    tolerances = (2e-9, 1e-6) if dtype == torch.float64 else (2e-5, 1e-3)
    for here, there, tolerance in zip(*found, tolerances, strict=True):
        scale = max(here.abs().max().item(), 0.01)
        torch.testing.assert_close(there, here, rtol=0, atol=tolerance * scale)


#: Rows (count, n) of a kind, by a generator. Faults of one row in a thousand need thousands of rows to be seen.
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "softmax": lambda x: torch.softmax(3 * x, dim=-1),
    "zeros and ones": lambda x: (x > 0).to(x),
    "clusters": lambda x: (2 * x).round() + 1e-3 * x,
    "lognormal": lambda x: (2 * x).exp(),
}
VALUES: dict[str, Callable[..., Tensor]] = {
    **{
        f"top-{k} values": lambda x, k=k, **options: sinksort.soft_topk(x, k, **options).values for k in (1, 2, 3, 4, 7)
    },
    **{f"{m} targets": lambda x, m=m, **options: sinksort.soft_sort(x, num_targets=m, **options) for m in (3, 4, 5)},
    "quantile": lambda x, **options: sinksort.soft_quantile(x, 0.3, **options),
    "sort": sinksort.soft_sort,
}


def band_rows_of(operator: Callable[..., Tensor], kind: str, n: int, eps: float, device: str) -> None:
    """Every one of many rows against the reference in double precision on the same device.

    Values to 1e-5 of the range of the row, gradients to 1e-3 of the larger of the row's largest and 1e-3 of the
    largest cotangent.
    """
    count = min(4000, 400_000 // n)
    x = KINDS[kind](torch.randn(count, n, generator=torch.Generator().manual_seed(n))).to(device)
    found = []
    for leaf, backend in ((x, "auto"), (x.double(), "torch")):
        leaf.requires_grad_()
        answer = operator(leaf, eps=eps, backend=backend)
        c = torch.randn(answer.shape, generator=torch.Generator().manual_seed(0)).to(device)
        (gradient,) = torch.autograd.grad((answer * c.to(answer)).sum(), leaf)
        found.append((answer.detach().double().reshape(count, -1), gradient.double()))
    (values, gradient), (true_values, true_gradient) = found
    span = (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)).detach().double()
    size = true_gradient.abs().amax(-1, keepdim=True).clamp(min=1e-3 * c.abs().max().item())
    wrong = ~((values - true_values).abs() <= 1e-5 * span).all(-1)
    steep = ~((gradient - true_gradient).abs() <= 1e-3 * size).all(-1)
    assert not (wrong | steep).any(), (
        f"{int(wrong.sum())} values and {int(steep.sum())} gradients of {count} rows are wrong, "
        f"first those of rows {torch.nonzero(wrong | steep).flatten()[:5].tolist()}"
    )


def all_of_them(rank: int, size: int, x: Tensor, device: str) -> tuple[Tensor, ...]:
    shard = x.tensor_split(size, dim=-1)[rank].to(device).requires_grad_()
    weights = torch.ones_like(shard.detach())
    ranks, median = spread.soft_rank(shard, eps=0.05), spread.soft_median(shard, eps=0.05)
    mask = spread.soft_topk_mask(shard, 200, weights=weights, eps=0.05)
    (grad,) = torch.autograd.grad(ranks.square().sum() / x.shape[-1] + mask.square().sum(), shard, retain_graph=True)
    (of_median,) = torch.autograd.grad(median.sum() / size, shard)
    assert {t.device.type for t in (ranks, median, mask, grad, of_median)} == {device}
    return tuple(t.detach().cpu() for t in (ranks, mask, grad, of_median, median))


def one_disagrees(rank: int, size: int, device: str) -> str:
    try:
        spread.soft_rank(torch.randn(2000, device=device), eps=0.01 * (1 + rank))
    except ValueError as error:
        return str(error)
    return "no error"


def in_processes(backend: str, device: str, size: int) -> None:
    """Answers and gradients are those of one process on the CPU, and a rank that disagrees is heard of."""
    x = torch.randn(2, 1200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    team = Team(size, backend=backend)
    try:
        answers = team.run(all_of_them, x, device)
        disagreements = team.run(one_disagrees, device)
    finally:
        team.close()
    raised([*answers, *disagreements])
    assert None not in answers, "a process died; see its message above"
    ranks, masks, grads, of_medians, medians = zip(*answers, strict=True)
    leaf = x.clone().requires_grad_()
    exact = sinksort.Newton(compress=False, tolerance=1e-13)
    truth, median = (f(leaf, eps=0.05, solver=exact) for f in (sinksort.soft_rank, sinksort.soft_median))
    mask = sinksort.soft_topk_mask(leaf, 200, eps=0.05, solver=exact)
    (grad,) = torch.autograd.grad(truth.square().sum() / 1200 + mask.square().sum(), leaf, retain_graph=True)
    (of_median,) = torch.autograd.grad(median.sum(), leaf)
    for mine, true, tolerance in (
        (ranks, truth, 1e-9 * 1200),
        (masks, mask, 2e-9),
        (grads, grad, 1e-7 * grad.abs().max().item()),
        (of_medians, of_median, 1e-8 * of_median.abs().max().item()),
    ):
        torch.testing.assert_close(torch.cat(mine, dim=-1), true.detach(), rtol=0, atol=tolerance)
    for other in medians:
        torch.testing.assert_close(other, median.detach(), rtol=0, atol=2e-9)
    if size > 1:
        assert all("must be called with the same eps on every rank" in said for said in disagreements), disagreements


def setups(device: str) -> list[tuple[str, str, int]]:
    """(backend, device, processes)."""
    return [("gloo", device, 2), *([("nccl", device, torch.cuda.device_count())] if device == "cuda" else [])]


def cases(device: str) -> Iterator[Case]:
    for name, operator in OPERATORS.items():
        for n in SIZES:
            for dtype in (torch.float32, torch.float64):
                yield f"{name}, n = {n:,}, {dtype}", lambda o=operator, n=n, d=dtype: against_the_cpu(o, n, d, device)
    for name, operator in VALUES.items():
        for kind in KINDS:
            for n, eps in ((10, 2e-4), (20, 1e-2), (20, 1e-3), (100, 1e-3), (100, 1e-4), (500, 1e-2)):
                described = f"many rows: {name}, {kind}, n = {n}, eps = {eps:g}"
                yield described, lambda o=operator, k=kind, n=n, e=eps: band_rows_of(o, k, n, e, device)
    for setup in setups(device):
        yield "distributed: {} on {}, {} processes".format(*setup), lambda s=setup: in_processes(*s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    failed = count = 0
    for name, check in cases(options.device):
        if options.only not in name:
            continue
        count, started = count + 1, time.perf_counter()
        try:
            check()
            verdict = "pass"
        except Exception:
            failed += 1
            verdict = "FAIL\n" + traceback.format_exc()
        print(f"{name} ({time.perf_counter() - started:.1f} s): {verdict}", flush=True)
    print(f"{count - failed} of {count} passed on {options.device}, torch {torch.__version__}")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    from tests import on_device  # noqa: PLW0406  # other processes find its functions by the name of the module

    sys.exit(on_device.main())
