"""Exact ranks and sorts (eps = 0) of Definition 1, by the north-west corner, for any weights and any number of targets.

The optimal plan of a convex cost on the line lays the sorted values and the targets side by side along the axis of
mass [0, 1]: value i occupies the interval of its weight, (a_bar_{i-1}, a_bar_i], target j the interval (b_bar_{j-1},
b_bar_j], and P_ij is the length of their overlap. Both operators are then averages of a step function over intervals:

    K-rank of value i  = n times the average of   u -> b_bar_{j(u)}    over the interval of i,
    K-sort at target j = the average of           u -> x_{i(u)}        over the interval of j.

They depend neither on h nor on where the increasing targets y are, only on the weights. Equal values share one
interval, so they share a rank (the limit of the Sinkhorn ranks). Cost: a sort, cumulative sums and binary searches,
O(n log n + m log n). Equal weights of as many targets as values give the hard ranks, which take one sort.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import values_readable
from .modes import PLAIN, ordinary
from .options import explained
from .problem import as_rows, existing, like_targets, live_rows, numbers_too, target_rows, wide_dtype

_SLACK = 1e-12  #: two cumulative sums of the same numbers, rounded differently, are not farther apart


@explained
@numbers_too
def kantorovich_rank(
    x: Tensor,
    dim: int = -1,
    descending: bool = False,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
) -> Tensor:
    """Exact ranks, without softness, for any weights and targets: 1 for the smallest value, equal ones share a rank.

    These are the K-ranks of the paper's Definition 1, the limit of ``soft_rank`` at eps = 0. They have a gradient in
    ``weights`` and ``target_weights``; the gradient in x is zero. They do not depend on the positions of ``targets``,
    which are counted and must increase.

    Returns:
        The ranks, in the shape and dtype of x.

    >>> import torch, sinksort
    >>> sinksort.kantorovich_rank(torch.tensor([0.38, 4.0, -2.0, 6.0, -9.0]))
    tensor([3., 4., 2., 5., 1.])
    >>> sinksort.kantorovich_rank(torch.tensor([0.1, 0.2, 0.3]), target_weights=torch.tensor([0.5, 0.5]))
    tensor([1.5000, 2.2500, 3.0000])
    """
    rows = as_rows(x, dim)
    if weights is None and targets is None and target_weights is None and num_targets is None:
        kept = None if mask is None else existing(x, dim, mask)[0]
        return hard_ranks(rows, kept, descending).to(x.dtype).movedim(-1, dim)
    values, a, kept, count = live_rows(x, rows, dim, weights, mask)
    b, _ = _whole_weights(rows, count, kept is not None, targets, target_weights, num_targets)
    ordered, order = values.sort(dim=-1, descending=descending, stable=True)
    reached = a.gather(-1, order).cumsum(-1)
    before = reached - a.gather(-1, order)
    # Equal values are one atom: from where the first of them begins to where the last of them ends.
    first, last = _atoms(-ordered if descending else ordered)
    levels = b.cumsum(-1)
    total = levels[..., -1:]
    ranks = _average_over(levels / total, levels, before.gather(-1, first), reached.gather(-1, last))
    ranks = (ranks * count / total).gather(-1, order.argsort(-1))
    ranks = torch.where(torch.isnan(values).any(-1, keepdim=True), torch.nan, ranks)
    if kept is not None:
        ranks = torch.where(kept, ranks, 0.0)
    return ranks.to(x.dtype).movedim(-1, dim)


def hard_ranks(rows: Tensor, kept: Tensor | None = None, descending: bool = False) -> Tensor:
    """Return the places 1, 2, ... of the values of each row (..., n) in wide dtype, by one sort.

    Equal values share the average of their places. What is not ``kept`` has the place 0, and a row with NaN is NaN.
    The values may be of any real dtype, integers too; they are compared as they are.
    """
    first, last = hard_places(rows, kept, descending)
    return first if first is last else 0.5 * (first + last)


def hard_places(rows: Tensor, kept: Tensor | None = None, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Return the first and the last of the places that each value shares with its equals, as ``hard_ranks`` counts.

    They are one tensor if no values are seen to be equal.
    """
    rows = rows.detach() if kept is None else torch.where(kept, rows.detach(), 0)
    wide, n = wide_dtype(rows.device), rows.shape[-1]
    order = order_of(rows)
    ordered = rows.gather(-1, order)
    equal = ordered[..., 1:] == ordered[..., :-1]
    poisoned = ordered[..., -1:].isnan() if rows.is_floating_point() else None  # NaN comes last

    def placed(places: Tensor) -> Tensor:
        """Places of the sorted values, in the order of the row."""
        out = torch.zeros_like(places).scatter(-1, order, places)
        out = out if poisoned is None else torch.where(poisoned, torch.nan, out)
        return out if kept is None else torch.where(kept, out, 0.0)

    if kept is None and values_readable(equal) and not equal.any():
        places = torch.arange(1, n + 1, dtype=wide, device=rows.device)
        one = placed((n + 1 - places if descending else places).expand(rows.shape))
        return one, one
    live = torch.ones_like(rows, dtype=wide) if kept is None else kept.to(wide)
    there = live.gather(-1, order)
    reached = there.cumsum(-1)
    # Values that are equal stand at all places from where the first of them begins to where the last of them ends.
    apart = torch.nn.functional.pad(~equal, (1, 1), value=True)
    first = 1.0 + torch.where(apart[..., :-1], reached - there, 0.0).cummax(-1).values
    last = torch.where(apart[..., 1:], reached, float(n)).flip(-1).cummin(-1).values.flip(-1)
    if descending:
        beyond = live.sum(-1, keepdim=True) + 1.0
        first, last = beyond - last, beyond - first
    return placed(first), placed(last)


def order_of(rows: Tensor) -> Tensor:
    """The indices that sort rows (..., n).

    On the CPU NumPy finds them: it sorts by vector instructions, 128 rows of 100 in 39 us, where torch takes 275 us.
    """
    if rows.is_cpu and type(rows) in PLAIN and ordinary():
        plain = rows.resolve_neg()
        return torch.from_numpy((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy().argsort(-1))
    return rows.argsort(-1)


@explained
@numbers_too
def kantorovich_sort(
    x: Tensor,
    dim: int = -1,
    descending: bool = False,
    *,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
) -> Tensor:
    """Exact sorted values, without softness, for any weights and targets: ``torch.sort(x).values`` if all are equal.

    This is the K-sort of the paper's Definition 1, the limit of ``soft_sort`` at eps = 0. It has a gradient in x and in
    both weights, and does not depend on the positions of ``targets``, which are counted and must increase.

    Returns:
        The sorted values, in the shape of x with m entries along ``dim``.

    >>> import torch, sinksort
    >>> x = torch.tensor([0.38, 4.0, -2.0, 6.0, -9.0])
    >>> sinksort.kantorovich_sort(x)
    tensor([-9.0000, -2.0000,  0.3800,  4.0000,  6.0000])
    >>> sinksort.kantorovich_sort(x, target_weights=torch.tensor([0.4, 0.2, 0.4]))
    tensor([-5.5000,  0.3800,  5.0000])
    """
    rows = as_rows(x, dim)
    values, a, kept, count = live_rows(x, rows, dim, weights, mask)
    b, padded = _whole_weights(rows, count, kept is not None, targets, target_weights, num_targets)
    ordered, order = values.sort(dim=-1, descending=descending, stable=True)
    until = b.cumsum(-1) / b.sum(-1, keepdim=True)
    reached = a.gather(-1, order).cumsum(-1)
    out = _average_over(reached, ordered, torch.nn.functional.pad(until[..., :-1], (1, 0)), until)
    out = torch.where(torch.isnan(values).any(-1, keepdim=True), torch.nan, out)
    if kept is not None:
        live = kept.sum(-1, keepdim=True)
        shown = (torch.arange(out.shape[-1], device=x.device, dtype=torch.int64) < live) if padded else live > 0
        out = torch.where(shown, out, 0.0)
    return out.to(x.dtype).movedim(-1, dim)


@explained
def kantorovich_plan(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    targets: Tensor | None = None,
    target_weights: Tensor | None = None,
    num_targets: int | None = None,
) -> Tensor:
    """The exact plan as a matrix: how much of each value goes to each target.

    ``Plan.matrix`` approaches it for small eps. Rows are in the order of x and sum to its weights, columns sum to the
    target weights. Equal values divide among themselves what their interval overlaps. It has a gradient in both
    weights; the gradient in x is zero. The matrix takes n m numbers; ``kantorovich_rank`` and ``kantorovich_sort`` do
    not need it.

    Returns:
        The plan (..., n, m): the batch of x first, then its values, then the targets.

    >>> import torch, sinksort
    >>> sinksort.kantorovich_plan(torch.tensor([0.3, 0.1, 0.2]), target_weights=torch.tensor([0.5, 0.5]))
    tensor([[0.0000, 0.3333],
            [0.3333, 0.0000],
            [0.1667, 0.1667]])
    """
    rows = as_rows(x, dim)
    values, a, kept, count = live_rows(x, rows, dim, weights, mask)
    b, _ = _whole_weights(rows, count, kept is not None, targets, target_weights, num_targets)
    b = b / b.sum(-1, keepdim=True)
    ordered, order = values.sort(dim=-1, descending=descending, stable=True)
    first, last = _atoms(-ordered if descending else ordered)
    masses = a.gather(-1, order)
    reached, filled = masses.cumsum(-1), b.cumsum(-1)
    low, high = (reached - masses).gather(-1, first).unsqueeze(-1), reached.gather(-1, last).unsqueeze(-1)
    overlap = torch.minimum(high, filled.unsqueeze(-2)) - torch.maximum(low, (filled - b).unsqueeze(-2))
    # Of two boundaries that were meant to be the same, rounding leaves an overlap that is no mass.
    rounding = (overlap <= _SLACK) & (overlap < 0.5 * torch.minimum(high - low, b.unsqueeze(-2)))
    overlap = torch.where(rounding | (overlap < 0), 0.0, overlap)
    atom = high - low
    share = torch.where(atom > 0, masses.unsqueeze(-1) / torch.where(atom > 0, atom, 1.0), 0.0)
    P = share * overlap
    P = P.gather(-2, order.argsort(-1).unsqueeze(-1).expand(P.shape))
    P = torch.where(torch.isnan(values).any(-1)[..., None, None], torch.nan, P)
    return (P if kept is None else torch.where(kept.unsqueeze(-1), P, 0.0)).to(x.dtype)


def _atoms(key: Tensor) -> tuple[Tensor, Tensor]:
    """For each entry of increasing rows, where the first and the last entry stand that are equal to it."""
    fixed = key.detach().contiguous()
    first = torch.searchsorted(fixed, fixed)
    first = first.clamp(max=fixed.shape[-1] - 1)  # NaN is found past the end; its row becomes NaN in the end
    return first, (torch.searchsorted(fixed, fixed, right=True) - 1).clamp(min=0)


def _whole_weights(
    rows: Tensor,
    count: Tensor,
    masked: bool,
    targets: Tensor | None,
    target_weights: Tensor | None,
    num_targets: int | None,
) -> tuple[Tensor, bool]:
    """b, not divided by its sum (whole numbers stay whole, and hard ranks come out exact), and whether it is padded."""
    wide = wide_dtype(rows.device)
    _, b, padded = target_rows(rows, count, masked, targets, target_weights, num_targets, False, wide)
    if target_weights is None:
        return (b > 0).to(wide), padded
    return like_targets(target_weights, rows.shape[:-1], "target_weights", wide), padded


def _average_over(ends: Tensor, levels: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Averages over the intervals (low, high] of the step function that is ``levels_k`` on (ends_{k-1}, ends_k].

    An interval of no length gets the middle of the values on its two sides. An interval inside one step gets that
    step's level without arithmetic, which is why an ordinary sort comes back bit for bit.
    """
    steps = ends.shape[-1]
    fixed = ends.detach().contiguous()
    first = torch.searchsorted(fixed, (low.detach() + _SLACK).contiguous(), right=True).clamp(max=steps - 1)
    last = torch.searchsorted(fixed, (high.detach() - _SLACK).contiguous()).clamp(max=steps - 1)
    nothing = high.detach() - low.detach() <= _SLACK
    from_left = torch.minimum(first, last)  # of a point: the steps that meet there, in either order
    first, last = from_left, torch.maximum(first, last)

    first_level, last_level = levels.gather(-1, first), levels.gather(-1, last)
    widths = ends - torch.nn.functional.pad(ends[..., :-1], (1, 0))
    area = (widths * levels).cumsum(-1)
    end_of_first = ends.gather(-1, first)
    start_of_last = ends.gather(-1, (last - 1).clamp(min=0))
    between = area.gather(-1, (last - 1).clamp(min=0)) - area.gather(-1, first)
    several = (end_of_first - low) * first_level + between + (high - start_of_last) * last_level
    length = torch.where(nothing, 1.0, high - low)
    inside = torch.where(first == last, first_level, several / length)
    return torch.where(nothing, 0.5 * (first_level + last_level), inside)
