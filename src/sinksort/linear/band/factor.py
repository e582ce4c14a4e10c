"""Newton steps in linear time: a block tridiagonal matrix is factorised block by block.

If no value reaches more than W targets, the Hessian of the semi-dual couples neighbouring blocks of W targets and no
others. Its Cholesky factor has the same shape, and costs K/W times W^3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.cotangents import one_at_a_time


@dataclass(frozen=True)
class BlockFactor:
    """L of a scaled Hessian L L^T with null vector ``null`` (of length one), which one pinned entry has removed."""

    diagonal: Tensor  #: (blocks, W, W) lower triangular
    below: Tensor  #: (blocks - 1, W, W) block k + 1, k
    null: Tensor  #: (K,)

    @classmethod
    def of(cls, diagonal: Tensor, below: Tensor, null: Tensor) -> BlockFactor:
        """From the blocks on and below the diagonal; (blocks, W, W) and (blocks - 1, W, W).

        ``null`` is singular for them. One at the diagonal where it is largest makes the matrix regular and, for a right
        hand side that is orthogonal to it, leaves a solution as it is, up to a multiple of it.
        """
        W = diagonal.shape[-1]
        pinned = int(null.argmax())
        L, links = diagonal.clone(), below.clone()
        L[pinned // W, pinned % W, pinned % W] += 1.0
        for k in range(len(L)):
            if k > 0:
                links[k - 1] = torch.linalg.solve_triangular(L[k - 1], below[k - 1].mT, upper=False).mT
                L[k].addmm_(links[k - 1], links[k - 1].mT, alpha=-1.0)
            L[k] = torch.linalg.cholesky_ex(L[k])[0]
        return cls(L, links, null)

    def solve(self, r: Tensor) -> Tensor:
        """(K,): the pseudo-inverse, applied to r (K,). Differentiable in r alone, any number of times."""
        out: Tensor = _Solve.apply(r, self)  # type: ignore[no-untyped-call]
        return out

    def _solve(self, r: Tensor) -> Tensor:
        W, K = self.diagonal.shape[-1], len(r)
        r = r - self.null * (self.null @ r)
        t = torch.nn.functional.pad(r, (0, len(self.diagonal) * W - K)).view(-1, W, 1).clone()
        for k in range(len(t)):
            if k > 0:
                t[k] -= self.below[k - 1] @ t[k - 1]
            t[k] = torch.linalg.solve_triangular(self.diagonal[k], t[k], upper=False)
        for k in range(len(t) - 1, -1, -1):
            if k < len(t) - 1:
                t[k] -= self.below[k].mT @ t[k + 1]
            t[k] = torch.linalg.solve_triangular(self.diagonal[k].mT, t[k], upper=True)
        out = t.flatten()[:K]
        return out - self.null * (self.null @ out)


class _Solve(torch.autograd.Function):
    """A symmetric linear map: its own transpose and its own derivative."""

    @staticmethod
    def forward(ctx: Any, r: Tensor, factor: BlockFactor) -> Tensor:
        ctx.factor = factor
        return factor._solve(r)

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.factor.solve(grads[0]), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        solved: Tensor = ctx.factor.solve(tangents[0])
        return solved
