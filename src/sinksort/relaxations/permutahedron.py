"""Projection on the permutahedron (Blondel, Teboul, Berthet and Djolonga, "Fast Differentiable Sorting and Ranking",
ICML 2020).

The permutahedron P(w) is the convex hull of all permutations of w. The point of P(w) closest to z,

    l2    P_Q(z, w) = argmin over mu in P(w)        of 1/2 ||mu - z||^2
    kl    P_E(z, w) = log argmin over mu in P(e^w)  of KL(mu, e^z),

is z - v with v the isotonic regression of ``isotonic`` on z in sorted order. With rho = (1, ..., n)

    rank  = P(x / strength, rho)           sort = P(rho / strength, x).

The paper sorts from the largest down, and from the smallest up by what it makes of -x. For l2 that is the same as
above, read backwards. For kl it is not: where values pool, their logarithmic mean is above the mean when sorted down
and below it when sorted up.

A linear function on P(rho) is maximised by the hard ranks and the projection adds curvature, so the answer is exactly
hard once strength is below a threshold that depends on the gaps of x, and its gradient is then zero for ranks. For kl
the ranks are exp(P_E(x / strength, log rho)), which is again a point of P(rho).

Derivatives: inside a block of v, l2 ranks are z minus the block's average of z - w, kl ranks are softmaxes. l2 is
piecewise linear, so its second derivatives are zero; those of kl are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from .base import Relaxation, Rows
from .isotonic_autograd import isotonic


@dataclass(frozen=True, kw_only=True)
class Permutahedron(Relaxation):
    """Fast soft ranks and sorts by projection on the permutahedron. O(n log n), memory O(n).

    Args:
        regularization: ``"l2"`` (Euclidean) or ``"kl"`` (entropic).

    >>> import torch
    >>> from sinksort.relaxations import Permutahedron, rank, sort
    >>> x = torch.tensor([5.0, 1.0, 2.0])
    >>> rank(x, method=Permutahedron(), strength=2.0)
    tensor([3.0000, 1.2500, 1.7500])
    >>> rank(x, method=Permutahedron(regularization="kl"), strength=2.0)
    tensor([3.0000, 1.1326, 1.8674])
    """

    name: ClassVar[str] = "permutahedron"

    regularization: Literal["l2", "kl"] = "l2"

    def __post_init__(self) -> None:
        if self.regularization not in ("l2", "kl"):
            raise ValueError(f"Permutahedron: regularization must be 'l2' or 'kl', got {self.regularization!r}.")

    def rank(self, rows: Rows) -> Tensor:
        kl = self.regularization == "kl"
        # Padding goes to the end of the sorted row; there it is far above the rest and joins no block.
        keys = rows.x if rows.kept is None else torch.where(rows.kept, rows.x, float("inf"))
        order = keys.argsort(dim=-1, stable=True)
        s = (rows.x / rows.strength).gather(-1, order)
        w = rows.positions().expand_as(s)
        w = w.log() if kl else w
        projected = self._project(s, w, rows)
        projected = projected.exp() if kl else projected
        return projected.gather(-1, order.argsort(dim=-1))

    def sort(self, rows: Rows, values: Tensor) -> Tensor:
        keys = -rows.x if rows.kept is None else torch.where(rows.kept, -rows.x, float("inf"))
        w = -values.gather(-1, keys.argsort(dim=-1, stable=True))
        down = -self._project(rows.positions() / rows.strength, w, rows)
        backwards = (rows.count - rows.positions()).clamp(min=0).long()  # padding stays at the end
        return down.gather(-1, backwards.expand(down.shape))

    def _project(self, s: Tensor, w: Tensor, rows: Rows) -> Tensor:
        """s - v for rows s and w that increase."""
        kl = self.regularization == "kl"
        if rows.kept is not None:
            alive = rows.alive()
            gap = torch.where(alive, s - w, -float("inf")).detach().amax(-1, keepdim=True)
            apart = torch.where(torch.isfinite(gap), gap, 0.0) + rows.positions()
            s = torch.where(alive, s, apart)
            w = torch.where(alive, w, 0.0)
        return s - isotonic(s, w, kl)
