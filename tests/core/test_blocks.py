"""The reference in blocks of rows: the same plans, the same gradients, one warning."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import sinksort
from sinksort.core import blocks
from sinksort.core.gradients import _chord_steps, attach
from sinksort.core.option_values import Options
from sinksort.core.plan import solve
from sinksort.core.problem import Problem, pose
from sinksort.core.semidual import column_sums, hessian_factor, log_density, log_weight
from sinksort.core.solvers.newton import Newton
from sinksort.core.solvers.scaled import Scaled


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def posed(**options: Any) -> Problem:
    """Rows (2, 7) of 6 values, along the first dimension."""
    return pose(draw(6, 2, 7), Options(dim=0, eps=0.02, **options))


PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "descending": {"descending": True, "num_targets": 4},
    "masked": {"mask": torch.rand(6, 2, 7, generator=torch.Generator().manual_seed(1)) < 0.7},
    "weighted": {"weights": draw(6, 2, 7, seed=2).square(), "target_weights": torch.tensor([0.2, 0.0, 0.5, 0.3])},
    "callable cost": {"cost": lambda u: u.abs() ** 3},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_plan_in_blocks_reads_as_the_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = posed(**PROBLEMS[name])
    whole = solve(problem, Newton())
    monkeypatch.setattr(blocks, "BLOCK", 5 * 6 * problem.y.shape[-1])  # five of fourteen rows
    plan = blocks.solve_in_blocks(problem, Newton())
    assert isinstance(plan, blocks.Blocks)
    assert [len(part.problem.x) for part in plan.parts] == [5, 5, 4]
    v = draw(problem.y.shape[-1], seed=3)
    payload = draw(2, 7, 6, 3, seed=4)
    for read in (
        lambda p: p.ranks(), lambda p: p.sorted(), lambda p: p.matrix(), lambda p: p.permutation(), lambda p: p.pull(v),
        lambda p: p.push(payload), lambda p: p.potentials[0], lambda p: p.potentials[1], lambda p: p.M,
        lambda p: p.gamma, lambda p: p.start[0], lambda p: p.targets_given_value(), lambda p: p.values_given_target(),
        lambda p: p.marginal_error,
    ):  # fmt: skip
        torch.testing.assert_close(read(plan), read(whole), rtol=1e-9, atol=1e-10)
    assert torch.equal(plan.converged, whole.converged)
    assert plan.converged.shape == (2, 7)


@pytest.mark.parametrize("read", ["rank", "sort", "smooth rank"])
def test_rows_in_blocks_are_rows_alone(read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers and gradients of a batch are those of its rows, by whichever plan."""
    monkeypatch.setattr(blocks, "BLOCK", 1)
    n, operator = (400 if read == "smooth rank" else 9), sinksort.soft_sort if read == "sort" else sinksort.soft_rank
    x = draw(3, n).requires_grad_()
    w, weights = draw(3, n, seed=1), draw(3, n, seed=2).square().requires_grad_()
    together = operator(x, eps=0.03, weights=weights, backend="torch")
    found = torch.autograd.grad((together * w).sum(), (x, weights))
    monkeypatch.undo()
    for k in range(3):
        row, of_row = x[k].detach().requires_grad_(), weights[k].detach().requires_grad_()
        alone = operator(row, eps=0.03, weights=of_row, backend="torch")
        torch.testing.assert_close(together[k], alone, rtol=1e-8, atol=1e-8)
        for ours, theirs in zip(found, torch.autograd.grad((alone * w[k]).sum(), (row, of_row)), strict=True):
            torch.testing.assert_close(ours[k], theirs, rtol=1e-6, atol=1e-7)


def test_second_derivatives_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1)
    x = draw(2, 4).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: sinksort.soft_rank(x, eps=0.1, backend="torch"), x)


def test_one_warning_for_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sinksort.soft_rank(draw(5, 12), eps=0.01, solver=Newton(max_iterations=1), backend="torch")
    assert len(said) == 1
    assert "5 of 5 rows did not converge in 1 iterations" in str(said[0].message)
    assert "Raise eps, or Newton(max_iterations=...)." in str(said[0].message)


def test_a_compiled_program_sees_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1)
    x = draw(3, 5)
    expected = sinksort.soft_rank(x, eps=0.05, backend="torch")
    out = torch.func.vmap(lambda row: sinksort.soft_rank(row, eps=0.05, backend="torch"))(x)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("far", [0.0, 12.0])
def test_scalings_are_the_density(far: float) -> None:
    """Column sums and Hessian by a matrix and two vectors, and by exponentials of all pairs."""
    M, a, b = draw(3, 8, 5).square() * 10, draw(3, 8, seed=1).softmax(-1), draw(3, 5, seed=2).softmax(-1)
    b[0, 2] = 0.0
    log_b, point = log_weight(b), far * draw(3, 5, seed=3).sigmoid()
    near = Scaled(M, a, log_b, torch.zeros_like(b))
    E = log_density(M, log_b, point).exp()
    s = near.column_sums(point)
    torch.testing.assert_close(s, column_sums(E, a), rtol=1e-12, atol=0)
    torch.testing.assert_close(near.factor(s, True).tril(), hessian_factor(E, s, a, log_b).tril(), rtol=1e-9, atol=1e-9)
    near.move(point)
    torch.testing.assert_close(near.column_sums(point), s, rtol=1e-12, atol=0)
    kept = torch.tensor([True, False, True])
    near.keep(kept)
    torch.testing.assert_close(near.column_sums(point[kept]), s[kept], rtol=1e-12, atol=0)


@pytest.mark.parametrize("by_columns", [True, False])
def test_the_gradient_in_closed_form_is_that_of_the_steps(by_columns: bool) -> None:
    problem = pose(draw(3, 7 if by_columns else 4), Options(num_targets=4 if by_columns else 7, eps=0.02))
    plan = solve(problem, Newton())
    M, a, b = (t.detach().requires_grad_() for t in (plan.M, problem.a, problem.b))
    c = draw(3, problem.y.shape[-1], seed=1)
    inputs = (M, a, b)
    if by_columns:
        expected = torch.autograd.grad((_chord_steps(M, a, b, plan.gamma) * c).sum(), inputs)
    else:
        with torch.autograd.forward_ad.dual_level():  # where derivatives go by the steps
            expected = torch.autograd.grad((attach(M, a, b, plan.gamma, False) * c).sum(), inputs)
    found = torch.autograd.grad((attach(M, a, b, plan.gamma, by_columns) * c).sum(), inputs)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
