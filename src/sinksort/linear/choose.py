"""Which plan to make: of all values and all targets, or by way of a small problem."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import slow
from ..core.blocks import rows_at_a_time, solve_in_blocks
from ..core.costs import Cost, Power, resolve_cost
from ..core.modes import hidden
from ..core.plan import Plan
from ..core.problem import Problem, as_rows, entropy, existing, like_rows, pose, rows_by_count, target_rows, wide_dtype
from ..core.solvers import Newton, Solver
from ..core.solvers._common import host_may_look
from ..core.squash import INCREASING_MAPS, Squash
from ..kernels.compiled_plan import CompiledPlan, compiled_plan
from ..kernels.dispatch import least_of, missing_for, settle
from ..kernels.plan import exact_columns, exact_plan, exact_ranks, fits
from .grid import Grid
from .places import WORTH_A_GRID, Placed, Places, worth
from .refine import Refinement, accepted_error, first_sizes
from .smooth import Part, SmoothPlan
from .streamed import Streamed

#: Entries up to which kernels take less time than a small problem in torch (rows of 400 and 1,000 values: 0.4 to 1.0 of
#: it, ranks at eps = 1e-3 a fifteenth), and the eps up to which they do for longer rows.
_SMALL, _SHARP = 1 << 20, 5e-3
_ROUNDED = 1e-3 * (1.0 - 1e-6)  #: eps below which gradients of averages over values need the care of a whole plan
_MOST_COLUMNS = 16  #: of a payload; more of them are averaged by a matrix product
_LARGE = 1 << 22  #: entries from which a plan is a small problem or a band, whatever eps is


def plan_for(
    x: Tensor,
    *,
    reads: str,
    dim: int = -1,
    descending: bool = False,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str = "auto",
) -> Plan | SmoothPlan | CompiledPlan:
    """The plan of the rows of x, for an operator that ``requests`` "ranks" or "averages"."""
    compiled = compiled_plan(
        x,
        dim=dim,
        descending=descending,
        weights=weights,
        mask=mask,
        targets=targets,
        target_weights=target_weights,
        num_targets=num_targets,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
        reads=reads,
        backend=backend,
    )
    if compiled is not None:
        return compiled
    exactly = backend != "torch" and _exactly(x, dim, targets, target_weights, num_targets, eps, solver)
    if not exactly and _worth_it(x, dim, mask, targets, target_weights, num_targets, eps, cost, solver, reads):
        settle("torch", backend)
        began = slow.now()
        smooth = smooth_plan(
            x,
            dim=dim,
            descending=descending,
            weights=weights,
            mask=mask,
            targets=targets,
            target_weights=target_weights,
            num_targets=num_targets,
            eps=eps,
            squash=squash,
            solver=solver,
            reads=reads,
        )
        slow.tell(began, x, dim, smooth._m, cost, solver, backend, missing_for(x.device))
        return smooth
    problem = pose(
        x,
        dim=dim,
        descending=descending,
        weights=weights,
        mask=mask,
        targets=targets,
        target_weights=target_weights,
        num_targets=num_targets,
        eps=eps,
        cost=cost,
        squash=squash,
    )
    return dense_plan(problem, solver, backend)


def ranks_for(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str = "auto",
) -> Tensor:
    """``plan_for(...).ranks()``, in one go where kernels can do that."""
    if backend != "torch" and mask is None and targets is None and target_weights is None:
        by_all = _exactly(x, dim, None, None, num_targets, eps, solver)
        found = exact_ranks(x, dim, descending, weights, num_targets, eps, cost, squash, solver, by_all)
        if found is not None:
            settle("numba", backend)
            return found
    return plan_for(
        x,
        reads="ranks",
        dim=dim,
        descending=descending,
        weights=weights,
        mask=mask,
        targets=targets,
        target_weights=target_weights,
        num_targets=num_targets,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
        backend=backend,
    ).ranks()


def columns_for(
    x: Tensor,
    payload: Tensor | None,
    *,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    cost: Cost,
    squash: Squash,
    solver: Solver,
    backend: str,
) -> Tensor | None:
    """What each default target gets of a payload (..., n, d), as (..., m, d), in one go where kernels can do that.

    Without a payload: from which values, (..., m, n). ``dim`` goes to the end.
    """
    if backend == "torch" or (payload is not None and not 1 <= payload.shape[-1] <= _MOST_COLUMNS):
        return None
    if not _exactly(x, dim, None, None, num_targets, eps, solver) or least_of(eps) < _ROUNDED:
        return None
    columns = None if payload is None else payload.mT
    found = exact_columns(x, dim, descending, weights, num_targets, eps, cost, squash, solver, columns)
    if found is None:
        return None
    settle("numba", backend)
    return found if payload is None else found.mT


def dense_plan(problem: Problem, solver: Solver, backend: str = "auto") -> Plan:
    """The plan of all values and all targets: by kernels where they can, by torch everywhere else."""
    plan = exact_plan(problem, solver) if backend in ("auto", "numba", "rejected") else None
    settle("torch" if plan is None else "numba", backend)
    if plan is not None:
        return plan
    began = slow.now()
    plan = solve_in_blocks(problem, solver)
    slow.tell(
        began,
        problem.x,
        -1,
        problem.y.shape[-1],
        problem.h,
        solver,
        backend,
        missing_for(problem.x.device),
        problem.dtype,
    )
    return plan


def _exactly(
    x: Tensor,
    dim: int,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    solver: Solver,
) -> bool:
    """Whether a plan by kernels costs less than a small problem in torch."""
    n = as_rows(x, dim).shape[-1]
    given = targets if targets is not None else target_weights
    m = num_targets if num_targets is not None else (given.shape[-1] if isinstance(given, Tensor) and given.ndim else n)
    if not isinstance(m, int) or not fits(n, m, x, solver):
        return False
    if n * m <= _SMALL:
        return True
    if isinstance(eps, Tensor):
        return eps.numel() > 0 and float(eps.detach().max()) <= _SHARP
    return isinstance(eps, (int, float)) and eps <= _SHARP


def smooth_plan(
    x: Tensor,
    *,
    dim: int,
    descending: bool,
    weights: Tensor | None,
    mask: Tensor | None,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    squash: Squash,
    solver: Solver,
    reads: str,
) -> SmoothPlan:
    """The plan by way of small problems."""
    rows = as_rows(x, dim)
    n, batch = rows.shape[-1], rows.shape[:-1]
    wide = wide_dtype(x.device)
    flat = rows.reshape(-1, n)
    a = None if weights is None else like_rows(weights, x, dim, "weights").reshape(-1, n)
    kept, _ = existing(x, dim, mask)
    kept = None if kept is None else kept.reshape(-1, n)
    eps_rows = entropy(eps, batch, x.device, wide).expand(*batch, 1, 1).reshape(-1, 1, 1)
    given = None
    if targets is not None or target_weights is not None:
        count = rows.new_full((*batch, 1), float(n), dtype=wide)
        y, b, _ = target_rows(rows, count, False, targets, target_weights, num_targets, descending, wide)
        given = y.reshape(-1, y.shape[-1]), b.reshape(-1, y.shape[-1])
    m = given[0].shape[-1] if given else (n if num_targets is None else num_targets)

    parts: list[Part] = []
    if len(flat) == 0:
        return SmoothPlan(parts, x, kept, m, dim, descending)
    sizes = first_sizes(eps_rows.detach().amin().item(), x.dtype)
    groups = (
        [(torch.arange(len(flat), device=flat.device, dtype=torch.int64), n)] if kept is None else rows_by_count(kept)
    )
    for index, live in groups:
        if live == 0:
            continue  # nothing in these rows: their answers are zero
        own = None if given is None else (given[0][index], given[1][index])
        low, high = (own[0][:, :1], own[0][:, -1:]) if own else (eps_rows.new_zeros(1), eps_rows.new_ones(1))
        onto = m if given or num_targets is not None else live
        step = rows_at_a_time(_pairs(sizes, live, onto, given is not None), flat)
        weights_here = None if a is None else _picked(a, index, kept).split(step)
        for k, (some, values) in enumerate(zip(index.split(step), _picked(flat, index, kept).split(step), strict=True)):
            rows_here = slice(k * step, k * step + len(some))
            low_here, high_here = (t if t.ndim == 1 else t[rows_here] for t in (low, high))
            refinement = Refinement(
                places_of(values, None if weights_here is None else weights_here[k], squash, low_here, high_here),
                eps_rows[some],
                None if own is None else (own[0][rows_here], own[1][rows_here]),
                onto,
                solver,
                accepted_error(x.dtype),
                reads != "ranks",
            )
            parts.extend(part.of_rows(some) for part in refinement.run(*sizes))
    return SmoothPlan(parts, x, kept, m, dim, descending)


def _pairs(sizes: tuple[int, int], n: int, m: int, given: bool) -> int:
    """How many pairs of a source and a target the first small problem of a row has."""
    cells, K = sizes
    return min(n, cells if worth(Grid(cells, 8), n) else n) * (K if not given and m >= 2 * K else m)


def places_of(x: Tensor, weights: Tensor | None, squash: Squash, low: Tensor, high: Tensor) -> Places:
    """The places of rows x (r, n); ``low`` and ``high`` are the outermost targets."""
    in_double = wide_dtype(x.device) == torch.float64  # a stream of values is always in double precision
    plain = weights is None and in_double and x.shape[-1] >= WORTH_A_GRID
    if plain and isinstance(squash, str) and squash in INCREASING_MAPS:
        streamed = Streamed.of(x.float() if x.element_size() < 4 else x, squash)
        if streamed is not None:
            return streamed
    return Placed.of(x, weights, squash, low, high)


def _picked(t: Tensor, index: Tensor, kept: Tensor | None) -> Tensor:
    """Rows of t without their padding; they hold equally many values."""
    rows = t if kept is None else t[index]
    return rows if kept is None else rows[kept[index]].reshape(len(index), -1)


def _worth_it(
    x: Tensor,
    dim: int,
    mask: Tensor | None,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
    eps: float | Tensor,
    cost: Cost,
    solver: Solver,
    reads: str,
) -> bool:
    """Whether a small problem is cheaper, and its answer can be checked.

    Refinement looks at values, so compiled and vmapped programs, and CUDA graphs, take all values and all targets.
    """
    h = resolve_cost(cost)
    if not isinstance(solver, Newton) or solver.compress is False or not (isinstance(h, Power) and h.p == 2):
        return False
    n = as_rows(x, dim).shape[-1]
    if hidden(x) or not host_may_look(x) or x.numel() == 0 or (isinstance(eps, Tensor) and eps.numel() == 0):
        return False
    smallest = float(eps.detach().min()) if isinstance(eps, Tensor) else eps
    plain = targets is None and target_weights is None and mask is None
    given = targets if targets is not None else target_weights
    m = num_targets if num_targets is not None else (given.shape[-1] if isinstance(given, Tensor) and given.ndim else n)
    if not (isinstance(m, int) and isinstance(smallest, (int, float)) and smallest > 0):
        return False  # the ordinary way says what is wrong
    cells, K = first_sizes(smallest, x.dtype)
    too_large = n * m > _LARGE
    gridded = worth(Grid(cells, 6), n)
    return bool(solver.compress) or too_large or gridded or (reads == "ranks" and plain and m >= 2 * K)
