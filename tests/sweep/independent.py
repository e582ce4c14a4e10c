"""Single rows solved without the package, from the paper's definitions: the check of the reference.

The plan is that of ``tests.oracles``, in extended precision and certified. Gradients are central differences of it
along one direction.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from tests import oracles

from .asking import Answer
from .cases import Case, Rows

Array: TypeAlias = Any
_MOST_ENTRIES = 64 * 64
_CLOSE = 1e-7  #: of the range of an answer
_LEAST_EPS = 1e-3  #: for differences, which take steps of a thousandth of it


class Row(NamedTuple):
    """What one row gives: values that exist, their weights, targets, their weights, and the payload."""

    x: Array
    a: Array
    y: Array
    b: Array
    payload: Array | None
    kept: Array


def row_of(case: Case, rows: Rows, r: int) -> Row | None:
    """A row, or None where infinities, ties of exact ranks or sheer size are not for this oracle."""
    given = {name: t[r].cpu().double().numpy() for name, t in (rows.each_value | rows.each_row).items()}
    given |= {name: t.cpu().double().numpy() for name, t in rows.shared.items() if isinstance(t, torch.Tensor)}
    x = rows.x[r].cpu().double().numpy()
    kept = given.get("mask", np.ones(len(x))) > 0
    x, a = x[kept], given.get("weights", np.ones(len(kept)))[kept]
    n = len(x)
    if not n or not np.isfinite(x).all() or a.sum() == 0 or n * case.m > _MOST_ENTRIES:
        return None
    if case.exact and (len(np.unique(x)) < n or (a == 0).any()):
        return None
    y, b = _targets(case, rows, given, n)
    payload = given.get("reference", given.get("values"))
    if case.operator == "sort_with":
        payload = payload[kept]
    return Row(x, a / a.sum(), y, b / b.sum(), payload, kept)


def _targets(case: Case, rows: Rows, given: dict[str, Array], n: int) -> tuple[Array, Array]:
    """y increasing, and b in their order."""
    options = case.options
    if case.operator in ("soft_quantile", "soft_median"):
        level = options.get("q", 0.5)
        level = level[0] if isinstance(level, tuple) else level
        t = options["width"] or 1 / n
        below = min(max(level - t / 2, 0.0), 1 - t)
        return oracles.grid(3), np.array([below, t, max(1 - t - below, 0.0)])
    if case.operator in ("soft_topk mask", "soft_topk_mask", "soft_topk values"):
        k = float(given["k"] if "k" in given else options["k"])
        if case.operator != "soft_topk values":
            b = np.array([min(k, n), n - min(k, n)])
        elif k >= n:  # all of the row is selected, and no target is left for more
            b = np.ones(n)
        else:
            b = np.append(np.clip(n - np.arange(k), 0.0, 1.0), max(n - k, 0.0))
        return oracles.grid(len(b)), b[::-1] if options["largest"] else b
    m = options.get("m", n)
    y = given.get("targets", oracles.grid(m))
    b = given.get("target_weights", np.ones(m))
    return y, b[::-1] if options.get("descending") else b


def answer_of(case: Case, row: Row, x: Array) -> Array:
    """The operator by its definition, with ``x`` for the values of a row; of several quantiles the first."""
    density = _exact_density(row, x) if case.exact else _density(case, row, x)
    down = case.options.get("descending", False) or case.options.get("largest", False)
    name = case.operator
    if name in ("soft_rank", "transport ranks", "smooth_transport ranks", "kantorovich_rank"):
        levels = np.cumsum(row.b[::-1])[::-1] if down else np.cumsum(row.b)
        return _spread_out(row, len(x) * (density * row.b) @ levels)
    if name in ("soft_topk mask", "soft_topk_mask"):
        return _spread_out(row, (density * row.b)[:, -1 if down else 0])
    if name == "quantile_normalize":
        return _spread_out(row, (density * row.b) @ np.sort(row.payload))
    if name == "soft_permutation":
        matrix = (density * row.a[:, None]).T[:: -1 if down else 1]
        return np.stack([_spread_out(row, each) for each in matrix]).ravel()
    shares = (density * row.a[:, None]).T
    shares /= shares.sum(1, keepdims=True)  # one, but for what the oracle leaves, which large constants would show
    in_order = shares @ (row.payload if name == "sort_with" else x)
    in_order = in_order[::-1] if down else in_order
    if name in ("soft_quantile", "soft_median"):
        return in_order[1:2]
    if name == "soft_topk values":
        in_order = in_order[: case.options["k"]]
        return np.where(np.arange(len(in_order)) < len(x), in_order, 0.0)
    return in_order


def _spread_out(row: Row, values: Array) -> Array:
    """Zero where nothing is kept."""
    out = np.zeros(len(row.kept))
    out[row.kept] = values
    return out


def _density(case: Case, row: Row, x: Array) -> Array:
    C = oracles.cost_matrix(oracles.squashed(x, row.a, case.squash), row.y)
    return oracles.solve(C, row.a, row.b, case.eps).density


def _exact_density(row: Row, x: Array) -> Array:
    """P / (a b) of Definition 1, from the overlaps of steps along the axis of mass."""
    order = np.argsort(x)
    upper, levels = np.cumsum(row.a[order])[:, None], np.cumsum(row.b)[None, :]
    lower, below = upper - row.a[order][:, None], levels - row.b[None, :]
    P = np.maximum(np.minimum(upper, levels) - np.maximum(lower, below), 0.0)
    density = np.zeros_like(P)
    density[order] = P / (row.a[order][:, None] * np.where(row.b > 0, row.b, 1.0))
    return density


def disagreement(case: Case, rows: Rows, true: Answer, cotangent: torch.Tensor, scale: float, r: int) -> float | None:
    """How far the reference is off in row r, in units of what is allowed; None where this oracle has nothing to say."""
    row = (
        None if case.options.get("eps") == "each" or isinstance(case.options.get("q"), tuple) else row_of(case, rows, r)
    )
    if row is None or (case.exact and (row.b == 0).any()):
        return None
    try:
        expected = answer_of(case, row, row.x)
        found = true.out[r].cpu().double().numpy()
        padded = case.options["mask"] and "m" not in case.options and len(found) > len(expected)
        found = found[: len(expected)] if padded else found
        rounding = 1e-13 * np.abs(row.x).max() * case.of_values + 1e-300
        worst = float(np.max(np.abs(found - expected) / (_CLOSE * scale + rounding), initial=0.0))
        return max(worst, _slope_disagreement(case, row, true, cotangent, r, len(expected)))
    except (AssertionError, np.linalg.LinAlgError):  # the oracle itself did not converge
        return None


def _slope_disagreement(case: Case, row: Row, true: Answer, cotangent: torch.Tensor, r: int, width: int) -> float:
    """The same of the gradient along one direction: 1e-4 of what it could be at most is allowed."""
    spread = np.sqrt((row.a * (row.x - (row.a * row.x).sum()) ** 2).sum()) if case.squash else 1.0
    if case.exact or case.eps < _LEAST_EPS or not spread > 0 or np.ptp(row.x) == 0:
        return 0.0
    c = cotangent[r].cpu().double().numpy()[:width]
    step = 1e-3 * case.eps * spread * np.sign(np.cos(1.0 + np.arange(len(row.x))))
    change = answer_of(case, row, row.x + step) - answer_of(case, row, row.x - step)
    assert true.grad is not None
    grad = true.grad[r].cpu().double().numpy()[row.kept]
    allowed = 1e-4 * (np.abs(grad * step).sum() + 1e-3 * np.abs(c).max(initial=0.0) * np.abs(change).max(initial=0.0))
    allowed += 1e-10 * np.abs(c).sum() * np.abs(answer_of(case, row, row.x)).max(initial=0.0) + 1e-300
    return float(abs(2 * (grad * step).sum() - (c * change).sum()) / allowed)
