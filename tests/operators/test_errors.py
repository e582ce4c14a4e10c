"""Every error: its type and its whole text. A message names the argument, what came, what was expected and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import sinksort
from sinksort import Huber, Newton, Power, Sinkhorn

X = torch.tensor([[0.3, 0.1, 0.2], [5.0, 7.0, 6.0]])
Call = Callable[[], object]

WRONG: list[tuple[type[Exception], str, Call]] = [
    # x and dim
    (
        TypeError,
        "x must be a torch.Tensor, got list; wrap it with torch.as_tensor(x).",
        lambda: sinksort.soft_rank([1.0, 2.0]),  # type: ignore[arg-type]
    ),
    (
        TypeError,
        (
            "x must be a floating-point tensor, got torch.int64: gradients and fractional ranks need one; "
            "call x.float() first."
        ),
        lambda: sinksort.soft_sort(torch.tensor([3, 1, 2])),
    ),
    (
        ValueError,
        "x must have at least one dimension, got a scalar tensor; use x.reshape(1).",
        lambda: sinksort.transport(torch.tensor(1.0)),
    ),
    (
        IndexError,
        "dim must be between -2 and 1 for x of shape (2, 3), got 2.",
        lambda: sinksort.soft_rank(X, dim=2),
    ),
    (
        ValueError,
        (
            "x must have at least one value along dim=-1, got shape (2, 0): nothing to rank; "
            "skip empty inputs, or pad them and pass mask=."
        ),
        lambda: sinksort.soft_rank(torch.zeros(2, 0)),
    ),
    # weights and mask
    (
        ValueError,
        (
            "weights must be non-negative, but its smallest entry is -0.5; "
            "clamp it, or pass it through softplus or exp when it is learned."
        ),
        lambda: sinksort.soft_rank(X, weights=torch.tensor([1.0, -0.5, 1.0])),
    ),
    (
        ValueError,
        (
            "weights must have a positive entry in every row, but a row is all zeros; "
            "leave the row out, or give its entries equal weights."
        ),
        lambda: sinksort.soft_rank(X, weights=torch.zeros(3)),
    ),
    (
        ValueError,
        "weights must be finite, but it holds NaN or infinity; remove those entries with mask=.",
        lambda: sinksort.soft_rank(X, weights=torch.tensor([1.0, float("inf"), 1.0])),
    ),
    (
        ValueError,
        "weights must be finite, but it holds NaN or infinity; remove those entries with mask=.",
        lambda: sinksort.soft_rank(X, weights=torch.tensor([1.0, float("nan"), 1.0])),
    ),
    (
        ValueError,
        "weights must match x along dim=-1: expected shape (3,) or one that broadcasts to (2, 3), got (4,).",
        lambda: sinksort.soft_rank(X, weights=torch.ones(4)),
    ),
    (
        ValueError,
        "weights must match x along dim=0: expected shape (2,) or one that broadcasts to (2, 3), got (3,).",
        lambda: sinksort.soft_rank(X, dim=0, weights=torch.ones(3)),
    ),
    (
        TypeError,
        "weights must be a torch.Tensor, got list; wrap it with torch.as_tensor(weights).",
        lambda: sinksort.soft_rank(X, weights=[1.0, 1.0, 1.0]),  # type: ignore[arg-type]
    ),
    (
        TypeError,
        (
            "weights must be a floating-point tensor, got torch.int64: gradients and fractional ranks need one; "
            "call weights.float() first."
        ),
        lambda: sinksort.soft_rank(X, weights=torch.ones(3, dtype=torch.int64)),
    ),
    (
        TypeError,
        "mask must be a boolean tensor (True keeps an entry), got torch.float32; use mask.bool().",
        lambda: sinksort.soft_rank(X, mask=torch.ones(3)),
    ),
    (
        ValueError,
        "mask must match x along dim=-1: expected shape (3,) or one that broadcasts to (2, 3), got (3, 2).",
        lambda: sinksort.soft_rank(X, mask=torch.ones(3, 2, dtype=torch.bool)),
    ),
    (
        TypeError,
        "mask must be a torch.Tensor, got list; wrap it with torch.as_tensor(mask).",
        lambda: sinksort.soft_rank(X, mask=[True]),  # type: ignore[arg-type]
    ),
    # targets
    (
        ValueError,
        (
            "targets must be strictly increasing along their last dimension (the paper's y_1 < ... < y_m), "
            "but they are not: [0, 1, 0.5]; sort them and merge duplicates by adding up their target_weights."
        ),
        lambda: sinksort.soft_rank(X, targets=torch.tensor([0.0, 1.0, 0.5])),
    ),
    (
        ValueError,
        (
            "targets must be strictly increasing along their last dimension (the paper's y_1 < ... < y_m), "
            "but they are not: [0, 0, 0, 0, 0, 0, ...]; sort them and "
            "merge duplicates by adding up their target_weights."
        ),
        lambda: sinksort.soft_rank(X, targets=torch.zeros(7)),
    ),
    (
        ValueError,
        "targets must have shape (m,) or (2, 'm') (one row of targets for each row of x), got (5, 3).",
        lambda: sinksort.soft_rank(X, targets=torch.zeros(5, 3)),
    ),
    (
        ValueError,
        "targets must hold at least one value along its last dimension, got shape (0,).",
        lambda: sinksort.soft_rank(X, targets=torch.zeros(0)),
    ),
    (
        TypeError,
        "targets must be a torch.Tensor, got list; wrap it with torch.as_tensor(targets).",
        lambda: sinksort.soft_rank(X, targets=[0.0, 1.0]),  # type: ignore[arg-type]
    ),
    (
        ValueError,
        (
            "target_weights must be non-negative, but its smallest entry is -1; "
            "clamp it, or pass it through softplus or exp when it is learned."
        ),
        lambda: sinksort.soft_rank(X, target_weights=torch.tensor([1.0, -1.0])),
    ),
    (
        ValueError,
        (
            "target_weights must have a positive entry in every row, but a row is all zeros; "
            "leave the row out, or give its entries equal weights."
        ),
        lambda: sinksort.soft_rank(X, target_weights=torch.zeros(2)),
    ),
    (
        ValueError,
        (
            "targets, target_weights and num_targets must agree on the number of targets, but num_targets says 4, "
            "targets says 2, target_weights says 3."
        ),
        lambda: sinksort.soft_rank(X, num_targets=4, targets=torch.tensor([0.0, 1.0]), target_weights=torch.ones(3)),
    ),
    (ValueError, "num_targets must be a positive integer, got 0.", lambda: sinksort.soft_rank(X, num_targets=0)),
    (
        ValueError,
        "num_targets must be a positive integer, got 2.5.",
        lambda: sinksort.kantorovich_rank(X, num_targets=2.5),  # type: ignore[arg-type]
    ),
    (
        ValueError,
        (
            "targets, target_weights and num_targets must agree on the number of targets, but targets says 3, "
            "target_weights says 2."
        ),
        lambda: sinksort.kantorovich_sort(X, targets=torch.arange(3.0), target_weights=torch.ones(2)),
    ),
    # eps
    (
        ValueError,
        (
            "eps must be positive and finite, got 0; 1e-2 is a good start, 1e-3 is closer to a hard sort. "
            "For eps = 0 use kantorovich_rank or _sort."
        ),
        lambda: sinksort.soft_rank(X, eps=0),
    ),
    (
        ValueError,
        (
            "eps must be positive and finite, got -0.1; 1e-2 is a good start, 1e-3 is closer to a hard sort. "
            "For eps = 0 use kantorovich_rank or _sort."
        ),
        lambda: sinksort.soft_rank(X, eps=-0.1),
    ),
    (
        ValueError,
        (
            "eps must be positive and finite, got nan; 1e-2 is a good start, 1e-3 is closer to a hard sort. "
            "For eps = 0 use kantorovich_rank or _sort."
        ),
        lambda: sinksort.soft_rank(X, eps=float("nan")),
    ),
    (
        ValueError,
        (
            "eps must be positive, got a tensor whose smallest entry is -1; "
            "1e-2 is a good start, 1e-3 is closer to a hard sort."
        ),
        lambda: sinksort.soft_rank(X, eps=torch.tensor([0.1, -1.0])),
    ),
    (
        ValueError,
        "eps must be a number, or a tensor that broadcasts to the rows (2,), got shape (3,).",
        lambda: sinksort.soft_rank(X, eps=torch.ones(3)),
    ),
    (
        TypeError,
        "eps must be a number or a tensor, got str; 1e-2 is a good start, 1e-3 is closer to a hard sort.",
        lambda: sinksort.soft_rank(X, eps="small"),  # type: ignore[arg-type]
    ),
    # cost and squash
    (
        ValueError,
        "cost: abs(u)^p is convex only for p >= 1, got p = 0.5; use p = 1 or larger.",
        lambda: sinksort.soft_rank(X, cost=0.5),
    ),
    (
        ValueError,
        "cost: abs(u)^p is convex only for p >= 1, got p = nan; use p = 1 or larger.",
        lambda: Power(float("nan")),
    ),
    (ValueError, "cost: Huber needs delta > 0, got 0; 0.1 is a good start for x in [0, 1].", lambda: Huber(0)),
    (
        TypeError,
        "cost must be a number p >= 1 for abs(u)^p, sinksort.Huber(delta), or a convex callable, got str.",
        lambda: sinksort.soft_rank(X, cost="squared"),  # type: ignore[arg-type]
    ),
    (
        ValueError,
        (
            "cost must map a tensor to a tensor of the same shape, (2, 3, 3), but it returned (2, 3); "
            "write it elementwise, for instance lambda u: u.square()."
        ),
        lambda: sinksort.soft_rank(X, cost=lambda u: u.sum(-1)),
    ),
    (
        ValueError,
        (
            "squash must be 'sigmoid', 'arctan', 'robust' (where all values of a row are at hand), None (x as it is) "
            "or an increasing callable, got 'tanh'."
        ),
        lambda: sinksort.soft_rank(X, squash="tanh"),
    ),
    (
        ValueError,
        (
            "squash must return a tensor of the shape it was given, (2, 3), but it returned float; "
            "apply an increasing map elementwise."
        ),
        lambda: sinksort.soft_rank(X, squash=lambda t: 0.5),  # type: ignore[arg-type, return-value]
    ),
    # q and k
    (
        ValueError,
        "q must lie in [0, 1], got [1.5]; levels are fractions: 0.9 is the 90% quantile.",
        lambda: sinksort.soft_quantile(X, 1.5),
    ),
    (
        ValueError,
        "q must lie in [0, 1], got [0.5, -0.1]; levels are fractions: 0.9 is the 90% quantile.",
        lambda: sinksort.soft_quantile(X, [0.5, -0.1]),
    ),
    (
        TypeError,
        "q must be a number, a sequence of numbers or a tensor, got None; 0.5 is the median.",
        lambda: sinksort.soft_quantile(X, None),  # type: ignore[arg-type]
    ),
    (
        ValueError,
        "q must be a number or one-dimensional, got shape (1, 2); flatten it.",
        lambda: sinksort.soft_quantile(X, torch.tensor([[0.1, 0.2]])),
    ),
    (
        ValueError,
        "width must be in (0, 1], got 0; it is the share of all values to average over.",
        lambda: sinksort.soft_median(X, width=0),
    ),
    (
        ValueError,
        "k must be an integer between 0 and n = 3 (the size of x along dim=-1), got 4.",
        lambda: sinksort.soft_topk(X, 4),
    ),
    (
        ValueError,
        "k must be an integer between 0 and n = 2 (the size of x along dim=0), got 1.5.",
        lambda: sinksort.soft_topk(X, 1.5, dim=0),  # type: ignore[arg-type]
    ),
    (
        ValueError,
        "k must be between 0 and n = 3, the number of values in a row, got 3.5.",
        lambda: sinksort.soft_topk_mask(X, 3.5),
    ),
    (
        ValueError,
        "k must lie in [0, 3], got [1, 4]; a row has n = 3 values.",
        lambda: sinksort.soft_topk_mask(X, torch.tensor([1, 4])),
    ),
    (
        ValueError,
        "k must be a number, or a tensor that broadcasts to the rows (2,), got shape (3,).",
        lambda: sinksort.soft_topk_mask(X, torch.ones(3)),
    ),
    (
        TypeError,
        "k must be a number or a tensor, got str.",
        lambda: sinksort.soft_topk_mask(X, "two"),  # type: ignore[arg-type]
    ),
    # payloads
    (
        ValueError,
        (
            "values must have the shape of keys, (2, 3), or that and further payload dimensions after it, got (3, 2); "
            "move the payload dimensions to the end."
        ),
        lambda: sinksort.sort_with(X.mT, X),
    ),
    (
        TypeError,
        (
            "values must be a floating-point tensor, got torch.int64: gradients and fractional ranks need one; "
            "call values.float() first."
        ),
        lambda: sinksort.sort_with(X.long(), X),
    ),
    (
        TypeError,
        (
            "keys must be a floating-point tensor, got torch.int64: gradients and fractional ranks need one; "
            "call keys.float() first."
        ),
        lambda: sinksort.sort_with(X, X.long()),
    ),
    (
        ValueError,
        "reference must have shape (m,) or (2, 'm') (m values along dim=-1 for each row of x), got (3, 4).",
        lambda: sinksort.quantile_normalize(X, torch.zeros(3, 4)),
    ),
    # solvers
    (
        TypeError,
        "solver must be sinksort.Newton(...) or sinksort.Sinkhorn(...), got str.",
        lambda: sinksort.soft_rank(X, solver="newton"),  # type: ignore[arg-type]
    ),
    (
        ValueError,
        "tolerance must be positive (an L1 marginal error), got 0; try 1e-6.",
        lambda: Newton(tolerance=0),
    ),
    (ValueError, "max_iterations must be a positive integer, got 0.", lambda: Sinkhorn(max_iterations=0)),
    (
        ValueError,
        "Sinkhorn: domain must be one of ('log', 'kernel'), got 'exp'.",
        lambda: Sinkhorn(domain="exp"),  # type: ignore[arg-type]
    ),
    (
        ValueError,
        "Sinkhorn: gradient must be one of ('implicit', 'unrolled'), got 'none'.",
        lambda: Sinkhorn(gradient="none"),  # type: ignore[arg-type]
    ),
    (
        ValueError,
        "Sinkhorn: start must be one of ('zeros', 'staircase'), got 'ones'.",
        lambda: Sinkhorn(start="ones"),  # type: ignore[arg-type]
    ),
    (
        ValueError,
        "Sinkhorn: start_eps must be positive, got 0; 0.1 is usual.",
        lambda: Sinkhorn(start_eps=0),
    ),
    (
        ValueError,
        "Sinkhorn: an eps schedule needs domain='log'; leave start_eps out, or change the domain.",
        lambda: Sinkhorn(start_eps=0.1, domain="kernel"),
    ),
    (ValueError, "Sinkhorn: decay must be between 0 and 1, got 1.", lambda: Sinkhorn(decay=1)),
]


@pytest.mark.parametrize(("kind", "message", "call"), WRONG, ids=[message[:48] for _, message, _ in WRONG])
def test_message(kind: type[Exception], message: str, call: Call) -> None:
    with pytest.raises(kind, match="^" + re.escape(message) + "$"):
        call()


def test_every_operator_checks_its_input() -> None:
    empty, whole = torch.zeros(3, 0), torch.tensor([1, 2, 3])
    for call in (
        sinksort.soft_rank,
        sinksort.soft_sort,
        sinksort.soft_permutation,
        sinksort.soft_median,
        sinksort.transport,
        sinksort.kantorovich_rank,
        sinksort.kantorovich_sort,
        sinksort.kantorovich_plan,
        lambda x: sinksort.soft_quantile(x, 0.5),
        lambda x: sinksort.soft_topk(x, 1),
        lambda x: sinksort.soft_topk_mask(x, 1),
        lambda x: sinksort.quantile_normalize(x, torch.ones(3)),
        lambda x: sinksort.sort_with(x.float(), x),
    ):
        with pytest.raises(ValueError, match="must have at least one value along dim=-1, got shape"):
            call(empty)
        with pytest.raises(TypeError, match=r"must be a floating-point tensor, got torch\.int64"):
            call(whole)


def test_solver_options_are_frozen_and_named() -> None:
    with pytest.raises(AttributeError):
        Newton().tolerance = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        Sinkhorn(1e-3)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilon'"):
        sinksort.soft_rank(X, epsilon=0.1)  # type: ignore[call-arg]


SOLVER_WARNINGS = {
    Newton(max_iterations=1): "asked for 1.0e-10. Raise eps, or Newton(max_iterations=...).",
    Sinkhorn(max_iterations=2): (
        "asked for 1.0e-03. Use the default Newton solver, or raise Sinkhorn(max_iterations=..., tolerance=...) or eps."
    ),
    Sinkhorn(max_iterations=2, domain="kernel"): (
        "asked for 1.0e-03. exp(-C/eps) underflows for small eps: use Sinkhorn(domain='log')."
    ),
}


@pytest.mark.parametrize("solver", SOLVER_WARNINGS, ids=["newton", "log", "kernel"])
def test_one_warning_for_rows_that_did_not_converge(solver: Newton | Sinkhorn) -> None:
    """The second row is constant onto its own middle: solved by symmetry before the first step."""
    x = torch.tensor([[0.1, 0.5, 0.2, 0.9], [0.5, 0.5, 0.5, 0.5]], dtype=torch.float64)
    start = (
        rf"^sinksort: 1 of 2 rows did not converge in {solver.max_iterations} iterations: marginal error \d\.\de-\d\d, "
    )
    eps = 0.1 if isinstance(solver, Newton) else 2e-2  # at 0.02 one of Newton's steps is enough
    with pytest.warns(RuntimeWarning, match=start + re.escape(SOLVER_WARNINGS[solver]) + "$") as caught:
        plan = sinksort.transport(x, num_targets=3, eps=eps, squash=None, solver=solver)
    assert len(caught) == 1
    assert plan.converged.tolist() == [False, True]
    assert plan.ranks().isfinite().all()
