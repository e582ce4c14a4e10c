"""Which plan to make: of all values and all targets, or by way of a small problem."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core import slow
from ..core.blocks import rows_at_a_time, solve_in_blocks
from ..core.costs import Power, resolve_cost
from ..core.modes import hidden
from ..core.option_values import Options
from ..core.plan import Plan
from ..core.problem import Problem, as_rows, entropy, existing, like_rows, pose, rows_by_count, target_rows, wide_dtype
from ..core.solvers import Newton, Solver
from ..core.solvers._common import host_may_look
from ..core.squash import INCREASING_MAPS, Squash
from ..kernels.backends import missing_for, settle
from ..kernels.dispatch import Facts, first
from ..kernels.plan import exact_columns, exact_plan, exact_ranks, fits
from .compiled import CompiledPlan, compiled_plan
from .grid import Grid
from .places import WORTH_A_GRID, Placed, Places, worth
from .refine import Refinement, accepted_error, first_sizes
from .smooth import Part, SmoothPlan
from .streamed import Streamed

_ROUNDED = 1e-3 * (1.0 - 1e-6)  #: eps below which gradients of averages over values need the care of a whole plan
_MOST_COLUMNS = 16  #: of a payload; more of them are averaged by a matrix product
_LARGE = 1 << 22  #: entries from which a plan is a small problem or a band, whatever eps is


def plan_for(x: Tensor, options: Options, *, reads: str) -> Plan | SmoothPlan | CompiledPlan:
    """The plan of the rows of x, for an operator that reads "ranks" or "averages"."""
    compiled = compiled_plan(x, options, reads=reads)
    if compiled is not None:
        return compiled
    backend, solver = options.backend, options.solver
    exactly = backend != "torch" and _exactly(x, options)
    if exactly or not _worth_it(x, options, reads):
        return dense_plan(pose(x, options), solver, backend)
    settle("torch", backend)
    began = slow.now()
    smooth = smooth_plan(x, options, reads=reads)
    slow.tell(began, x, options.dim, smooth._m, options.cost, solver, backend, missing_for(x.device))
    return smooth


def ranks_for(x: Tensor, options: Options) -> Tensor:
    """``plan_for(...).ranks()``, in one go where kernels can do that."""
    if options.backend != "torch" and options.mask is None and options.equal_targets():
        found = exact_ranks(x, options, _exactly(x, options))
        if found is not None:
            settle("numba", options.backend)
            return found
    return plan_for(x, options, reads="ranks").ranks()


def columns_for(x: Tensor, payload: Tensor | None, options: Options) -> Tensor | None:
    """What each default target gets of a payload (..., n, d), as (..., m, d), in one go where kernels can do that.

    Without a payload: from which values, (..., m, n). ``dim`` goes to the end. The options have neither a mask nor
    targets.
    """
    if options.backend == "torch" or (payload is not None and not 1 <= payload.shape[-1] <= _MOST_COLUMNS):
        return None
    if not _exactly(x, options) or not _at_least(options.eps, _ROUNDED):
        return None
    found = exact_columns(x, options, None if payload is None else payload.mT)
    if found is None:
        return None
    settle("numba", options.backend)
    return found if payload is None else found.mT


def _at_least(eps: float | Tensor, least: float) -> bool:
    """Whether eps, one or several, is a number that is not smaller. The ordinary way complains of anything else."""
    if isinstance(eps, Tensor):
        return eps.numel() > 0 and float(eps.detach().min()) >= least
    return isinstance(eps, (int, float)) and eps >= least


def dense_plan(problem: Problem, solver: Solver, backend: str = "auto") -> Plan:
    """The plan of all values and all targets: by kernels where they can, by torch everywhere else."""
    plan = exact_plan(problem, solver) if backend in ("auto", "numba", "rejected") else None
    settle("torch" if plan is None else "numba", backend)
    if plan is not None:
        return plan
    began = slow.now()
    plan = solve_in_blocks(problem, solver)
    p = problem
    slow.tell(began, p.x, -1, p.y.shape[-1], p.h, solver, backend, missing_for(p.x.device), p.dtype)
    return plan


def _exactly(x: Tensor, options: Options) -> bool:
    """Whether a plan by kernels costs less than a small problem in torch."""
    n, eps = as_rows(x, options.dim).shape[-1], options.eps
    m = options.target_count(n)
    if not isinstance(m, int) or not fits(n, m, x, options.solver):
        return False
    if isinstance(eps, Tensor):
        eps = float(eps.detach().max()) if eps.numel() else math.inf
    facts = Facts("plan", n, m, all_targets=m, size=max(n, m), all_pairs=n * m)
    return first("plans", "numba", facts._replace(eps=eps if isinstance(eps, (int, float)) else math.inf)) is not None


def smooth_plan(x: Tensor, options: Options, *, reads: str) -> SmoothPlan:
    """The plan by way of small problems."""
    o = options
    rows = as_rows(x, o.dim)
    n, batch = rows.shape[-1], rows.shape[:-1]
    wide = wide_dtype(x.device)
    flat = rows.reshape(-1, n)
    a = None if o.weights is None else like_rows(o.weights, x, o.dim, "weights").reshape(-1, n)
    kept, _ = existing(x, o.dim, o.mask)
    kept = None if kept is None else kept.reshape(-1, n)
    eps_rows = entropy(o.eps, batch, x.device, wide).expand(*batch, 1, 1).reshape(-1, 1, 1)
    solver, given = o.solver, None
    if not o.equal_targets():
        count = rows.new_full((*batch, 1), float(n), dtype=wide)
        y, b, _ = target_rows(rows, count, False, o.targets, o.target_weights, o.num_targets, o.descending, wide)
        given = y.reshape(-1, y.shape[-1]), b.reshape(-1, y.shape[-1])
    m = given[0].shape[-1] if given else (n if o.num_targets is None else o.num_targets)

    parts: list[Part] = []
    if len(flat) == 0:
        return SmoothPlan(parts, x, kept, m, o.dim, o.descending)
    sizes = first_sizes(eps_rows.detach().amin().item(), x.dtype)
    groups = (
        [(torch.arange(len(flat), device=flat.device, dtype=torch.int64), n)] if kept is None else rows_by_count(kept)
    )
    for index, live in groups:
        if live == 0:
            continue  # nothing in these rows: their answers are zero
        own = None if given is None else (given[0][index], given[1][index])
        low, high = (own[0][:, :1], own[0][:, -1:]) if own else (eps_rows.new_zeros(1), eps_rows.new_ones(1))
        onto = m if given or o.num_targets is not None else live
        step = rows_at_a_time(_pairs(sizes, live, onto, given is not None), flat)
        weights_here = None if a is None else _picked(a, index, kept).split(step)
        for k, (some, values) in enumerate(zip(index.split(step), _picked(flat, index, kept).split(step), strict=True)):
            rows_here = slice(k * step, k * step + len(some))
            low_here, high_here = (t if t.ndim == 1 else t[rows_here] for t in (low, high))
            refinement = Refinement(
                places_of(values, None if weights_here is None else weights_here[k], o.squash, low_here, high_here),
                eps_rows[some],
                None if own is None else (own[0][rows_here], own[1][rows_here]),
                onto,
                solver,
                accepted_error(x.dtype),
                reads != "ranks",
            )
            parts.extend(part.of_rows(some) for part in refinement.run(*sizes))
    return SmoothPlan(parts, x, kept, m, o.dim, o.descending)


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


def _worth_it(x: Tensor, options: Options, reads: str) -> bool:
    """Whether a small problem is cheaper, and its answer can be checked.

    Refinement looks at values, so compiled and vmapped programs, and CUDA graphs, take all values and all targets.
    """
    eps, solver, h = options.eps, options.solver, resolve_cost(options.cost)
    if not isinstance(solver, Newton) or solver.compress is False or not (isinstance(h, Power) and h.p == 2):
        return False
    n = as_rows(x, options.dim).shape[-1]
    if hidden(x) or not host_may_look(x) or x.numel() == 0 or (isinstance(eps, Tensor) and eps.numel() == 0):
        return False
    smallest = float(eps.detach().min()) if isinstance(eps, Tensor) else eps
    plain = options.equal_targets() and options.mask is None
    m = options.target_count(n)
    if not (isinstance(m, int) and isinstance(smallest, (int, float)) and smallest > 0):
        return False  # the ordinary way says what is wrong
    cells, K = first_sizes(smallest, x.dtype)
    too_large = n * m > _LARGE
    gridded = worth(Grid(cells, 6), n)
    return bool(solver.compress) or too_large or gridded or (reads == "ranks" and plain and m >= 2 * K)
