"""Sorted values at very many targets, from what the few nodes of a rule receive.

What a target receives is a smooth function S of where it is. Of all polynomials of degree K - 1 we take the one through
what K Gauss nodes receive. With the orthonormal polynomials q_k of m equal weights (see ``rules``) its coefficients are
sum_j b_j q_k(y_j) S(y_j), as the nodes are a rule for these weights. So what all targets receive is what the nodes do
times a fixed matrix, (m, K), and the way back is the transposed one.

How fast the coefficients fall says how much is lost. Kernels take four of the last ones, over the range of S, times
sqrt(2 K + 1), which is how large q_K is at the ends. (Of eight kinds of rows, and 40 to 256 nodes, errors were between
a hundredth of that and a half.)

Where targets are very many, the polynomial is read at a few points of short panels of targets, and each panel is
answered by the polynomial through these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core.modes import remembered
from ...linear.refine import accepted_error
from ...linear.rules import MOST_READABLE, gauss_rule, interpolation
from ..contract import Answer, Request, State, some_rows

_ACCEPTED = accepted_error(torch.float32)
_HOPELESS = 0.3  #: error of a rule that says nothing about how many nodes are missing
_MARGIN = 0.1  #: of what is accepted, that a finer rule aims at
_WORTH = 1.3  #: targets for each node, from which a rule is worth its while
_MOST_NODES = 512  #: of a finer rule
#: Rows that need many times more nodes are groups whose weak links need double precision for their gradients: up to so
#: many values, kernels for all targets have that.
_MOST_TIMES, _RATHER_ALL = 2.0, 4096
_PER_PANEL = 24  #: points of a panel
_TURN = 24.0  #: radians by which polynomials of the highest degree turn within the first and the last panel
_MEAN_AND_SCALE = np.arange(2)
_DIRECT = 2  #: panels are used where targets are more than so many times the points of all panels


class Records(NamedTuple):
    """Where a state keeps three numbers of each row."""

    state: NDArray[np.float64]
    at: NDArray[np.int64]  #: of the mean; the scale is next: what nodes receive is (values - mean) * scale
    nodes: int  #: how far behind is the number of nodes of the finer rule that answered, or 0


AtNodes = Callable[[Request], Answer]
Standing = Callable[[Request, State], Records]


def push(request: Request, at_nodes: AtNodes, standing: Standing) -> Answer:
    """What m targets receive, (R, m), and the state and error of ``at_nodes``, which says what nodes receive.

    Rows whose rule is too coarse are asked of a finer one, once.
    """
    out, state, error = at_nodes(request)
    answers = _in_units(read(out, request.m or 0), standing(request, state))
    errors = error if isinstance(error, np.ndarray) else error.numpy()
    for rows, K in _rows_by_nodes(request, errors):
        finer = with_nodes(request, rows, K)
        there, their_state, their_error = at_nodes(finer)
        theirs = their_error if isinstance(their_error, np.ndarray) else their_error.numpy()
        right = theirs <= _ACCEPTED
        done = rows[torch.from_numpy(right)]
        answers[done] = _in_units(read(there, request.m or 0), standing(finer, their_state))[torch.from_numpy(right)]
        errors[done.numpy()] = theirs[right]
        known = standing(request, state)
        known.state[known.at[done.numpy()] + known.nodes] = float(K)
    return Answer(answers, state, error)


def push_backward(
    request: Request, state: State, c: Tensor, at_nodes: AtNodes, backward: Callable[[Request, State, Tensor], Tensor],
    standing: Standing,
) -> Tensor:  # fmt: skip
    """The cotangent of x, (R, n), from c (R, m); rows that a finer rule answered are solved again."""
    K, known = request.y.shape[-1], standing(request, state)
    nodes = known.state[known.at + known.nodes]
    grad = backward(request, state, read_backward(c, K))
    if not nodes.any():
        return grad
    for count in np.unique(nodes[nodes > 0]):
        rows = torch.from_numpy(np.flatnonzero(nodes == count))
        finer = with_nodes(request, rows, int(count))
        grad[rows] = backward(finer, at_nodes(finer).state, read_backward(c[rows], int(count)))
    return grad


def with_nodes(request: Request, rows: Tensor, K: int) -> Request:
    """The same for some rows, by a rule of K nodes."""
    m = request.m or 0
    at, weights, last = (torch.from_numpy(t).float().unsqueeze(0) for t in gauss_rule(m, K))
    return some_rows(request, rows)._replace(y=at / (m - 1), b=weights, last=last)


def read(z: Tensor, m: int) -> Tensor:
    """(R, m) in single precision from what nodes receive, (R, K)."""
    R, K = z.shape
    if m == K:
        return z.clone()
    matrix, within = reading(m, K)
    out = torch.mm(z, matrix)
    if within is None:
        return out
    length = within.shape[1]
    panels = torch.mm(out.view(-1, _PER_PANEL), within).view(R, -1)
    before = panels.shape[1] - length
    return torch.cat([panels[:, :before], panels[:, before - m :]], dim=1)  # the last two panels overlap


def read_backward(c: Tensor, K: int) -> Tensor:
    """Its transposed, from c (R, m) to (R, K)."""
    R, m = c.shape
    c = c.float()
    if m == K:
        return c
    matrix, within = reading(m, K)
    if within is not None:
        length = within.shape[1]
        before = matrix.shape[1] // _PER_PANEL * length - length
        twice = c.new_zeros(R, before + length - m)
        c = torch.mm(torch.cat([c[:, :before], twice, c[:, before:]], dim=1).view(-1, length), within.mT).view(R, -1)
    return torch.mm(c, matrix.mT)


def _in_units(z: Tensor, known: Records) -> Tensor:
    """Of the values, in place of those of the standardised rows."""
    standard = known.state[known.at[:, None] + _MEAN_AND_SCALE]
    out = z if z.is_contiguous() else z.contiguous()
    if len(standard) == 1:
        mean, scale = standard[0].tolist()
        return out.mul_(1.0 / scale).add_(mean)
    standard[:, 1] = 1.0 / standard[:, 1]
    means, units = torch.from_numpy(standard.astype(np.float32)).split(1, dim=1)
    return out.mul_(units).add_(means)


@remembered(32)
def reading(m: int, K: int) -> tuple[Tensor, Tensor | None]:
    """A matrix (K, m), and None; or (K, points of all panels) and (points of a panel, its targets).

    The last panel begins where it ends with the last target: beyond that polynomials are large.
    """
    panels = math.ceil((2.0 * K / _TURN) ** 2)
    if m <= _DIRECT * panels * _PER_PANEL:
        return _single(interpolation(m, K, np.arange(m, dtype=float))), None
    length = math.ceil(m / panels)
    k, own = np.arange(_PER_PANEL), np.pi * (np.arange(_PER_PANEL) + 0.5) / _PER_PANEL
    starts = np.minimum(np.arange(math.ceil(m / length)) * float(length), m - length)
    places = starts[:, None] + 0.5 * (length - 1) * (1.0 - np.cos(own))  # Chebyshev's points
    at = np.arccos(np.linspace(1.0, -1.0, length))
    factors = np.where(k > 0, 2.0, 1.0) / _PER_PANEL
    within = np.cos(np.outer(own, k)) * factors @ np.cos(np.outer(k, at))
    return _single(interpolation(m, K, places.reshape(-1))), _single(within)


def _single(matrix: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(matrix).float().contiguous()


def _rows_by_nodes(request: Request, errors: NDArray[np.float32]) -> list[tuple[Tensor, int]]:
    """Rows whose rule is too coarse, with how many nodes another should have: errors fall geometrically."""
    if errors.size == 0 or errors.item(errors.argmax()) <= _ACCEPTED:
        return []
    K, m = request.y.shape[-1], request.m or 0
    most = min(_MOST_NODES, m / _WORTH, MOST_READABLE * math.sqrt(m))
    if request.x.shape[-1] <= _RATHER_ALL:
        most = min(most, _MOST_TIMES * K)
    late = (errors > _ACCEPTED) & (errors < _HOPELESS)
    factor = math.log(_MARGIN * _ACCEPTED) / np.log(np.clip(errors, _ACCEPTED, _HOPELESS))
    wanted = 16.0 * np.ceil(K * np.maximum(factor, 1.2) / 16.0)
    wanted[~late | (wanted > most)] = 0.0
    return [(torch.from_numpy(np.flatnonzero(wanted == nodes)), int(nodes)) for nodes in np.unique(wanted[wanted > 0])]
