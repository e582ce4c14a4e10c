"""What the launches of the grid and of the exact family are given, and the sizes that follow from the targets."""

from __future__ import annotations

from typing import NamedTuple

import triton
from torch import Tensor

from .tables import HEAD, LO

_HEAD: int = HEAD.value
_LO: int = LO.value


class Sizes(NamedTuple):
    K: int
    KP: int  #: K, padded
    HI: int
    CELLS: int  #: of the grid
    UP: int  #: nodes, padded: 16 HI

    @property
    def state(self) -> int:
        """Singles of the state of a row: a multiple of 16."""
        return self.before_tables + 3 * self.UP

    @property
    def before_tables(self) -> int:
        """Those of them that are facts and potentials: a multiple of 16."""
        return _HEAD + 2 * self.KP

    @property
    def nodes(self) -> int:
        return self.CELLS + 7

    @property
    def tiles(self) -> dict[str, int]:
        """How the small problem is shared among threads, and how many warps: a thread holds at most 80 pairs."""
        warps, lanes, lanes_of_all = (4 if self.HI == 16 else 8), 16, 8
        nodes = 32 // lanes * warps
        coarse = 64 if self.HI == 16 else 128  # and 32 more: those that a mass can reach
        return {
            "KB": lanes, "X": nodes, "V": coarse // nodes, "VT": 32 // nodes,
            "KF": lanes_of_all, "XF": 32 // lanes_of_all * warps, "num_warps": warps,
        }  # fmt: skip


def sizes_of(y: Tensor) -> Sizes:
    """A rule of K nodes is made for functions as smooth as 3/K; a grid of 3 K cells and eight points is as good."""
    K = y.shape[-1]
    HI = 16 if K <= 48 else 32
    return Sizes(K, max(16, triton.next_power_of_2(K)), HI, _LO * HI, triton.next_power_of_2(_LO * HI + 7))


class Given(NamedTuple):
    """What kernels are given, and what they depend on. Rows of states are ``size`` singles apart, after ``before``."""

    x: Tensor
    a: Tensor  #: or anything, if not ``weighted``
    y: Tensor
    b: Tensor
    phi: Tensor
    eps: float
    eps_rows: Tensor  #: or anything, if not ``by_row``
    code: int
    weighted: bool
    by_row: bool
    state: Tensor
    size: int
    before: int

    @property
    def targets(self) -> tuple[Tensor | int, ...]:
        return self.y, row_stride(self.y), self.b, row_stride(self.b), self.phi, row_stride(self.phi)


def row_stride(t: Tensor) -> int:
    return 0 if len(t) == 1 else t.stride(0)


def strided(t: Tensor) -> tuple[Tensor, int, int]:
    return t, t.stride(0), t.stride(1)
