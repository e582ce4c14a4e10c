"""Differentiable sorting networks (Petersen, Borgelt, Kuehne and Deussen, ICML 2021, and "Monotonic Differentiable
Sorting Networks", ICLR 2022).

A network sorts by comparators on fixed wires; a comparator on wires with values a and b becomes

    min = alpha a + (1 - alpha) b,   max = (1 - alpha) a + alpha b,   alpha = f((b - a) / strength)

with f a cumulative distribution function, symmetric about 0 (their inverse temperature beta is 1 / strength). The
product of the layers' 2 x 2 mixing matrices is P, doubly stochastic for any f.

All comparators here put the smaller value on the lower wire (a bitonic merge begins by comparing wire i of its block
with wire size - 1 - i), so a network for any n is the one for the next power of two without the comparators that leave
[1, n]; and padding, which is moved to the upper wires, never moves again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from .base import Relaxation, Rows


def _optimal(u: Tensor) -> Tensor:
    """Linear up to |u| = 1/4, then 1 - 1/(16 u): the distribution with the smallest error bound (ICLR 2022)."""
    tail = 1.0 / (16.0 * u.abs().clamp(min=0.25))
    return torch.where(u.abs() <= 0.25, u + 0.5, torch.where(u > 0, 1.0 - tail, tail))


#: f: each increases from 0 to 1, with f(u) + f(-u) = 1. Reciprocal, cauchy and optimal make the network monotonic.
DISTRIBUTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "logistic": torch.sigmoid,
    "gaussian": torch.special.ndtr,
    "cauchy": lambda u: torch.arctan(u) / math.pi + 0.5,
    "reciprocal": lambda u: 0.5 + u / (1.0 + 2.0 * u.abs()),
    "optimal": _optimal,
}


@dataclass(frozen=True, kw_only=True)
class SortingNetwork(Relaxation):
    """Sorting networks; ``strength`` is 1 / beta. Odd-even has n layers, bitonic about (log2 n)^2 / 2.

    A layer costs O(n) for a sort and O(n^2) for a permutation or ranks.

    Args:
        network: ``"bitonic"`` or ``"odd_even"``; any n.
        distribution: ``"cauchy"``, ``"logistic"``, ``"gaussian"``, ``"reciprocal"`` or ``"optimal"``.
        replacement: exponent lambda of the activation replacement trick (ICML 2021): differences d become
            d / (|d|^lambda + 1e-10), so that they are neither too small nor too large for f. 0 to leave it out.

    >>> import torch
    >>> from sinksort.relaxations import SortingNetwork, sort
    >>> sort(
    ...     torch.tensor([3.0, 1.0, 2.0]),
    ...     method=SortingNetwork(network="odd_even", distribution="logistic"),
    ...     strength=0.2,
    ... )
    tensor([1.0066, 2.0002, 2.9932])
    """

    name: ClassVar[str] = "sorting_network"
    default_strength: ClassVar[float] = 0.1

    network: Literal["bitonic", "odd_even"] = "bitonic"
    distribution: Literal["logistic", "gaussian", "cauchy", "reciprocal", "optimal"] = "cauchy"
    replacement: float = 0.0

    def __post_init__(self) -> None:
        if self.network not in ("bitonic", "odd_even"):
            raise ValueError(f"SortingNetwork: network must be 'bitonic' or 'odd_even', got {self.network!r}.")
        if self.distribution not in DISTRIBUTIONS:
            known = ", ".join(DISTRIBUTIONS)
            raise ValueError(f"SortingNetwork: distribution must be one of {known}, got {self.distribution!r}.")
        if not 0 <= self.replacement < 1:
            raise ValueError(
                f"SortingNetwork: replacement must be in [0, 1), got {self.replacement}; the paper uses 0.25."
            )

    def permutation(self, rows: Rows) -> Tensor:
        order = self._existing_first(rows)
        wires = rows.x if order is None else rows.x.gather(-1, order)
        P = torch.eye(rows.n, dtype=wires.dtype, device=wires.device).expand(*wires.shape, rows.n)
        for partner, keep in self._mixing(wires, rows):
            P = keep.unsqueeze(-1) * P + (1.0 - keep.unsqueeze(-1)) * P[..., partner, :]
        return P if order is None else P.gather(-1, order.argsort(-1).unsqueeze(-2).expand_as(P))

    def sort(self, rows: Rows, values: Tensor) -> Tensor:
        order = self._existing_first(rows)
        wires = rows.x if order is None else rows.x.gather(-1, order)
        values = values if order is None else values.gather(-1, order)
        for partner, keep in self._mixing(wires, rows):
            values = keep * values + (1.0 - keep) * values[..., partner]
        return values

    def _mixing(self, wires: Tensor, rows: Rows) -> list[tuple[Tensor, Tensor]]:
        """For each layer (partner, keep): a wire keeps a share of its value and takes the rest from its partner."""
        f = DISTRIBUTIONS[self.distribution]
        wire = torch.arange(rows.n, device=wires.device, dtype=torch.int64)
        layers = []
        for partners, needed in network_layers(self.network, rows.n):
            partner = torch.tensor(partners, device=wires.device, dtype=torch.int64)
            gap = wires[..., partner] - wires
            gap = torch.where(partner > wire, gap, -gap)
            if self.replacement:
                # |d|^lambda has an infinite slope at 0, where the quotient is 0.
                size = torch.where(gap == 0, 1.0, gap).abs()
                gap = gap / (size**self.replacement + 1e-10)
            keep = f(gap / rows.strength)
            off = partner == wire
            if rows.kept is not None:
                off = off | (torch.maximum(partner, wire) >= rows.count) | (needed > rows.count)
            keep = torch.where(off, 1.0, keep)
            wires = keep * wires + (1.0 - keep) * wires[..., partner]
            layers.append((partner, keep))
        return layers

    @staticmethod
    def _existing_first(rows: Rows) -> Tensor | None:
        return None if rows.kept is None else (~rows.kept).to(torch.int8).argsort(dim=-1, stable=True)


@functools.lru_cache(maxsize=128)
def network_layers(network: str, n: int) -> tuple[tuple[tuple[int, ...], int], ...]:
    """For each layer, the partner of every wire (itself if none), and the smallest n whose network has the layer."""
    layers: list[tuple[tuple[int, ...], int]] = []
    if network == "odd_even":
        for layer in range(n):
            partners = [i + 1 if (i + layer) % 2 == 0 else i - 1 for i in range(n)]
            layers.append((_inside(partners), layer + 1))
        return tuple(layers)
    half = 1
    while half < n:
        block = 2 * half
        layers.append((_inside([i - i % block + block - 1 - i % block for i in range(n)]), half + 1))
        step = half // 2
        while step:
            layers.append((_inside([i ^ step for i in range(n)]), half + 1))
            step //= 2
        half = block
    return tuple(layers)


def _inside(partners: list[int]) -> tuple[int, ...]:
    return tuple(p if 0 <= p < len(partners) else i for i, p in enumerate(partners))
