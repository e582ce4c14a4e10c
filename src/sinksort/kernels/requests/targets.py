"""The default targets as a kernel wants them: nodes, weights and levels, made once for each size and device."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.modes import jit_tracing, remembered, tracing, whole
from ...core.squash import Squash
from ...linear.rules import LAST, MOST_READABLE, gauss_rule
from ..dispatch import MOST_TARGETS

_LEAST_FOR_A_RULE = 20  #: up to so many targets there is no rule
_SORTING = 5.0  #: nodes per sqrt(eps) of sorts
_LEAST_AS_THEY_ARE, _SPREAD_AS_THEY_ARE = 40, 8.0  #: nodes, and square of the spread, of values without a squash


class Targets(NamedTuple):
    """Each (1, K); see ``Request``."""

    y: Tensor
    b: Tensor
    phi: Tensor  #: levels, times n: what ranks average
    m: int | None = None  #: how many targets the nodes of a rule stand for
    last: Tensor | None = None


def nodes_for(eps: float) -> int:
    """Nodes of a rule that are enough for ordinary inputs in single precision: about 3.9/sqrt(eps).

    With 3/sqrt(eps) normal, uniform, exponential, heavy-tailed and tied rows would be right to 1e-6 n as well, but the
    estimate of the error, which is pessimistic, would not believe it.

    >>> nodes_for(1e-2), nodes_for(1e-3)
    (40, 128)
    """
    return 8 * math.ceil(3.9 / math.sqrt(eps) / 8)


def nodes_as_they_are(eps: float) -> int:
    """The same for values without a squash, whose spread is not known: logits have some units, and some stand out.

    With fewer nodes nearly every row would be done twice. Forty are enough at eps = 1 for standard deviations from 0.3
    to 10, and values up to 40 above the others; at eps = 0.1 and 0.01 these are enough for standard normal rows.

    >>> nodes_as_they_are(1.0), nodes_as_they_are(1e-1), nodes_as_they_are(1e-2)
    (40, 40, 112)
    """
    return max(_LEAST_AS_THEY_ARE, nodes_for(eps / _SPREAD_AS_THEY_ARE))


def nodes_in_place_of(m: int, eps: float, name: str, squash: Squash = "sigmoid") -> int | None:
    """Nodes of a rule for m targets, or None where all are better: to the kernels called ``name``.

    The fewer values a row has, the less smooth it is, and the more often a rule is not enough: then kernels take all
    targets instead, where there are at most MOST_TARGETS. On the CPU only very short rows, of which kernels take
    sixteen at a time, are done with all targets before one is done with a rule. In Triton all rows of a batch wait for
    the one that is done twice, and a matrix is as large as the next power of two: so a rule has that many nodes, and
    half as many again as ordinary inputs need, or it is not worth it.

    >>> nodes_in_place_of(100, 1e-2, "numba"), nodes_in_place_of(100, 1e-2, "triton")
    (40, 64)
    >>> nodes_in_place_of(100, 1e-3, "triton") is None
    True
    """
    nodes = nodes_as_they_are(eps) if squash is None else nodes_for(eps)
    if name == "triton" and m <= MOST_TARGETS:
        padded = max(16, 1 << (3 * nodes // 2 - 1).bit_length())
        return padded if 2 * padded <= 1 << (m - 1).bit_length() else None
    return nodes if m > _LEAST_FOR_A_RULE and m >= 1.3 * nodes else None


def sorting_nodes(m: int, eps: float, squash: Squash = "sigmoid") -> int | None:
    """The same for sorted values, which are read between the nodes: to Numba's kernels.

    With somewhat more nodes hardly any row has to be solved twice; up to 128 only, as from there on Newton's matrix
    costs more than that.

    >>> sorting_nodes(1000, 1e-2), sorting_nodes(1000, 1e-3), sorting_nodes(60, 1e-2)
    (56, 128, None)
    """
    nodes = max(nodes_for(eps), min(8 * math.ceil(_SORTING / math.sqrt(eps) / 8), MOST_TARGETS))
    if squash is None:
        nodes = nodes_as_they_are(eps)
    return nodes if m > _LEAST_FOR_A_RULE and m >= 1.3 * nodes and nodes <= MOST_READABLE * math.sqrt(m) else None


def default_targets(n: int, m: int, nodes: int | None, descending: bool, device: torch.device) -> Targets:
    """m equal targets at 0, ..., 1 for rows of n values, or a rule of ``nodes`` nodes for them."""
    n, m = whole(n), whole(m)
    if tracing() and not jit_tracing():  # operators for ``torch.jit.trace`` cannot take a device
        y, b, phi, last = _made_op(n, m, nodes, descending, device)
    else:
        y, b, phi, last = _made(n, m, nodes, descending, device)
    return Targets(y, b, phi) if nodes is None else Targets(y, b, phi, m, last)


@remembered(2048)
def _made(n: int, m: int, nodes: int | None, descending: bool, device: torch.device) -> tuple[Tensor, ...]:
    """y, b, phi (1, K) and what estimates the error of a rule (1, 6, K), or nothing (1, 0, K)."""
    if nodes is None:
        at, weights, last = np.arange(m, dtype=float), np.full(m, 1.0 / m), np.empty((0, m))
    else:
        at, weights, last = gauss_rule(m, nodes)
    up = n * (at + 1.0) / m
    phi = n * (1.0 + 1.0 / m) - up if descending else up
    parts = (at / max(m - 1, 1), weights, phi, last)
    return tuple(torch.as_tensor(t, dtype=torch.float32, device=device).unsqueeze(0) for t in parts)


@torch.library.custom_op("sinksort::default_targets", mutates_args=())
def _made_op(
    n: int, m: int, nodes: int | None, descending: bool, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y, b, phi, last = _made(n, m, nodes, descending, device)
    return y.clone(), b.clone(), phi.clone(), last.clone()


@_made_op.register_vmap
def _(_info: object, _in_dims: object, *args: Any) -> tuple[tuple[Tensor, ...], tuple[None, ...]]:
    return _made_op(*args), (None,) * 4  # no argument is a tensor


@_made_op.register_fake
def _(n: int, m: int, nodes: int | None, descending: bool, device: torch.device) -> tuple[Tensor, ...]:  # noqa: ARG001
    K = m if nodes is None else nodes
    y, b, phi = (torch.empty(1, K, device=device, dtype=torch.float32) for _ in range(3))
    return y, b, phi, torch.empty(1, 0 if nodes is None else LAST, K, device=device, dtype=torch.float32)


def membership_targets(share: float, largest: bool, device: torch.device) -> Targets:
    """Out of the k, and in: two targets."""
    return _membership(share, largest, device)


@remembered(256)
def _membership(share: float, largest: bool, device: torch.device) -> Targets:
    b = [1.0 - share, share] if largest else [share, 1.0 - share]
    phi = [0.0, 1.0] if largest else [1.0, 0.0]
    y, levels = (torch.tensor([t], dtype=torch.float32, device=device) for t in ([0.0, 1.0], phi))
    return Targets(y, torch.tensor([b], dtype=torch.float64, device=device), levels)
