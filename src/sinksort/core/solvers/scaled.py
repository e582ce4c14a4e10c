"""The plan near one point as a matrix and two vectors, so that exponentials of pairs are taken once.

For column potentials gamma near an origin the density is

    E_ij = u_i K_ij v_j,      v_j = exp(gamma_j - origin_j),      1 / u_i = sum_j K_ij b_j v_j,

with K the density at the origin. K is computed once. Each evaluation of a solver is then two products of K with a
vector, and each Hessian one product of matrices. M is measured from the staircase and cut where exp(-M) would be
subnormal, so as long as v stays within ``reach`` nothing overflows, and nothing is lost that counted at the origin.

All matrices are written into memory that is taken once a solve: on a CPU a new large tensor costs more than the
arithmetic on it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..semidual import column_sums, negligible, ridge, row_sums


class Scaled:
    """The plans of R rows, for reduced costs M (R, n, m), near column potentials that may move."""

    def __init__(self, M: Tensor, a: Tensor, log_b: Tensor, origin: Tensor) -> None:
        R, _, m = M.shape
        self._M, self._rows = M, torch.arange(R, device=M.device, dtype=torch.int64)
        self._a, self._log_b, self._b, self._root_b = a, log_b, log_b.exp(), (0.5 * log_b).exp()
        self.reach = 30.0 if M.dtype == torch.float64 else 5.0
        self._K, self._left, self._right = (torch.empty_like(M, memory_format=torch.contiguous_format) for _ in "123")
        self._matrix, self._factor = M.new_empty(R, m, m), M.new_empty(R, m, m).mT
        self._info = M.new_empty(R, dtype=torch.int32)
        self.move(origin)

    def move(self, origin: Tensor) -> None:
        """Take the exponentials anew, around other potentials."""
        M = self._M if len(self._rows) == len(self._M) else self._M[self._rows]
        self._origin = origin
        largest = torch.sub((origin + self._log_b).unsqueeze(-2), M, out=self._left).amax(-1, keepdim=True)
        torch.sub(origin.unsqueeze(-2), M, out=self._K).sub_(largest).exp_()  # at most 1 / NOTHING
        self._K.div_(row_sums(self._K, self._b).unsqueeze(-1))
        self._u, self._v = torch.ones_like(self._a), torch.ones_like(origin)

    def keep(self, which: Tensor) -> None:
        """Go on with some of the rows."""
        kept = which.nonzero().squeeze(-1)
        self._rows, self._a, self._log_b, self._b, self._root_b, self._K, self._origin, self._u, self._v = (
            t[kept]
            for t in (
                self._rows,
                self._a,
                self._log_b,
                self._b,
                self._root_b,
                self._K,
                self._origin,
                self._u,
                self._v,
            )
        )
        self._left, self._right, self._matrix, self._info = (
            t[: len(kept)] for t in (self._left, self._right, self._matrix, self._info)
        )
        self._factor = self._factor.mT[kept].mT

    def distance(self, point: Tensor) -> Tensor:
        """How far the farthest potential is from the origin."""
        return (point - self._origin).abs().flatten().max() if point.numel() else point.new_zeros(())

    def column_sums(self, point: Tensor) -> Tensor:
        """s (R, m) of ``semidual`` at potentials ``point``, to which ``factor`` refers as well."""
        self._v = (point - self._origin).exp()
        self._u = row_sums(self._K, self._b * self._v).reciprocal()
        return self._v * column_sums(self._K, self._a * self._u)

    def factor(self, s: Tensor, anew: bool) -> Tensor:
        """``semidual.hessian_factor`` there, or where it was last made; the next one is written over it."""
        if not anew:
            return self._factor
        root_b, E_root_b = self._root_b, self._left
        torch.mul(self._K, (self._v * root_b).unsqueeze(-2), out=E_root_b).mul_(self._u.unsqueeze(-1))
        torch.threshold_(E_root_b, negligible(s), 0.0)
        torch.mul(E_root_b, self._a.unsqueeze(-1), out=self._right)
        torch.mul(root_b.unsqueeze(-1), root_b.unsqueeze(-2), out=self._matrix)
        self._matrix.baddbmm_(E_root_b.mT, self._right, alpha=-1.0)
        self._matrix.diagonal(dim1=-2, dim2=-1).add_(s + ridge(s))
        torch.linalg.cholesky_ex(self._matrix, out=(self._factor, self._info))
        return self._factor
