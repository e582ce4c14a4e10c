"""Few targets in place of many: Gauss rules for equal weights on a regular grid.

Everything a rank needs of the m default targets are sums over them of smooth functions. A Gauss rule of K nodes *for
that discrete measure* gives such sums exactly for polynomials of degree 2K - 1. One rule over all targets is best when
the functions are smooth everywhere; where they have an edge (two groups of values far apart share the targets at a
sharp boundary) the targets are cut into panels, each with its own rule, and the panels at the edge are halved until
what happens inside each of them is smooth, or all its targets are nodes.

**How much is lost.** Let q_k be the orthonormal polynomials of a panel, E the density of the targets given a value, and
c_k the coefficients of E there: they decay geometrically, c_k ~ c_0 r^k. A rule of K nodes first errs at degree 2K,
where c_2K ~ c_K^2 / c_0, and the last coefficients are at hand: four times the sum of the last six squares over c_0,
times the panel's share of the targets, estimates the mass that the panel gets wrong. On normal, uniform, exponential,
heavy-tailed, tied, few-valued, outlying and clustered inputs this was never below the true error, and mostly far above.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

LAST = 6  #: how many coefficients the estimate looks at; odd and even ones may vanish by turns
#: Nodes over the square root of the number of targets, up to which ``interpolation`` is right: of more, those near the
#: ends are nearer to targets than double precision tells apart.
MOST_READABLE = 7.0
_PER_PANEL = 16  #: nodes in a panel, once there are several


def as_like(t: np.ndarray, like: Tensor) -> Tensor:
    return torch.as_tensor(t, dtype=like.dtype, device=like.device)


@functools.lru_cache(maxsize=2048)  # rows with padding have a rule for each number of values
def gauss_rule(m: int, K: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes in [0, m - 1], weights that sum to one, and the last q_k at the nodes, for equal weights on 0, ..., m - 1.

    Golub and Welsch: nodes are eigenvalues of the Jacobi matrix of the recurrence, here of the discrete Chebyshev
    (Gram) polynomials: alpha_k = (m - 1)/2, beta_k = k^2 (m^2 - k^2) / (4 (4 k^2 - 1)).

    >>> nodes, weights, _ = gauss_rule(100, 5)
    >>> bool(np.isclose((weights * nodes**9).sum(), (np.arange(100.0) ** 9).mean()))
    True
    """
    off_diagonal = _off_diagonal(m, K)
    jacobi = np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)  # shifted by alpha, so nodes come out symmetric
    nodes, vectors = np.linalg.eigh(jacobi)
    return nodes + (m - 1) / 2, vectors[0] ** 2, (vectors / vectors[0])[-LAST:]


def interpolation(m: int, K: int, places: np.ndarray) -> np.ndarray:
    """(K, places): the polynomial of degree K - 1 that is 1 at one node and 0 at the others, at places in [0, m - 1].

    By the barycentric formula, whose weights are 1 / prod_k (y_j - y_k), here by logarithms: they span many decades. At
    the targets 0, ..., m - 1 these polynomials are never large; between them they are, near the ends, if K is more than
    about 2 sqrt(m).

    >>> nodes, _, _ = gauss_rule(100, 5)
    >>> bool(np.allclose(nodes**4 @ interpolation(100, 5, np.arange(100.0)), np.arange(100.0) ** 4))
    True
    """
    nodes, _, _ = gauss_rule(m, K)
    apart = np.abs(nodes[:, None] - nodes) + np.eye(K)
    logs = -np.log(apart).sum(-1)
    weights = np.exp(logs - logs.max()) * (-1.0) ** np.arange(K)
    off = places - nodes[:, None]
    off[off == 0.0] = 1e-300
    shares = weights[:, None] / off
    return np.asarray(shares / shares.sum(0))


def _off_diagonal(m: int, K: int) -> np.ndarray:
    k = np.arange(1, K, dtype=float)
    return np.asarray(np.sqrt(k**2 * (m**2 - k**2) / (4 * (4 * k**2 - 1))))


@dataclass(frozen=True)
class Rule:
    """Nodes for m targets: ``edges`` cut 0, ..., m into panels of at most ``per_panel`` nodes each.

    >>> rule = Rule.whole(1000, 20)
    >>> rule.size, rule.halved([True]).edges
    (20, (0, 500, 1000))
    """

    edges: tuple[int, ...]
    per_panel: int

    @classmethod
    def whole(cls, m: int, K: int) -> Rule:
        return cls((0, m), K)

    @classmethod
    def panels(cls, m: int, count: int) -> Rule:
        return cls(tuple(np.unique(np.linspace(0, m, count + 1).round().astype(int)).tolist()), _PER_PANEL)

    @classmethod
    def fitted(cls, m: int, widths: Tensor, length: float) -> Rule:
        """Panels about ``length`` times as long as functions are smooth there: ``widths`` on a regular mesh of [0, 1].

        Where that would leave little more than the nodes of a panel, its targets are the nodes.
        """
        rate = (1.0 / widths).cpu().numpy().astype(np.float64) / len(widths) / length
        passed = np.concatenate([[0.0], rate.cumsum()])  # panels up to each point of the mesh
        mesh = np.linspace(0, m, len(passed))
        edges = [0]
        while edges[-1] < m:
            low = edges[-1]
            high = int(np.interp(np.interp(low, mesh, passed) + 1.0, passed, mesh))
            edges.append(min(m, high if high - low > _PER_PANEL * 3 // 2 else low + _PER_PANEL))
        return cls(tuple(edges), _PER_PANEL)

    @property
    def m(self) -> int:
        return self.edges[-1]

    @property
    def size(self) -> int:
        return sum(min(self.per_panel, high - low) for low, high in itertools.pairwise(self.edges))

    def halved(self, which: list[bool]) -> Rule:
        """The same with some panels cut in two."""
        edges = [0]
        for (low, high), cut in zip(itertools.pairwise(self.edges), which, strict=True):
            edges += [(low + high) // 2, high] if cut and high - low > 1 else [high]
        return Rule(tuple(edges), self.per_panel)

    def nodes(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Positions on [0, 1], where target j is at j/(m - 1), and weights; each (K,)."""
        parts = [(low, high - low, gauss_rule(high - low, min(self.per_panel, high - low)))
                 for low, high in itertools.pairwise(self.edges)]  # fmt: skip
        at = np.concatenate([low + nodes for low, _, (nodes, _, _) in parts]) / max(self.m - 1, 1)
        share = np.concatenate([weights * count for _, count, (_, weights, _) in parts]) / self.m
        return as_like(at, like), as_like(share, like)

    def slots(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """As ``nodes``, with equally many for each panel: where there are fewer, the last is repeated, weightless."""
        y, b = self.nodes(like)
        count = torch.tensor(self.edges, device=like.device, dtype=torch.int64).diff().clamp(max=self.per_panel)
        first = count.cumsum(0) - count
        slot = torch.arange(self.per_panel, device=like.device, dtype=torch.int64)
        node = first.unsqueeze(-1) + slot.minimum(count.unsqueeze(-1) - 1)
        return y[node].flatten(), torch.where(slot < count.unsqueeze(-1), b[node], 0.0).flatten()

    def coefficients(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What ``errors`` multiplies a density in slots by: (P,), (P, slots) and (P, last, slots)."""
        share, weights, last = [], [], []
        none = np.zeros(self.per_panel), np.zeros((LAST, self.per_panel))
        for low, high in itertools.pairwise(self.edges):
            rough = high - low > self.per_panel  # if not, every target is a node
            share.append((high - low) / self.m if rough else 0.0)
            own = gauss_rule(high - low, self.per_panel)[1:] if rough else none
            weights.append(own[0])
            last.append(own[1])
        stacked = share, np.stack(weights), np.stack(last)
        of_panels, at_slots, of_last = (as_like(np.asarray(t), like) for t in stacked)
        return of_panels, at_slots, of_last

    def errors(self, density: Tensor) -> Tensor:
        """(..., panels): estimated mass that each panel gets wrong, for densities E (..., K) at the nodes."""
        out, first = [], 0
        for low, high in itertools.pairwise(self.edges):
            K = min(self.per_panel, high - low)
            here, first = density[..., first : first + K], first + K
            if high - low <= self.per_panel:  # every target is a node
                out.append(torch.zeros_like(here[..., 0]))
                continue
            _, weights, last = (as_like(t, density) for t in gauss_rule(high - low, K))
            c_0 = here @ weights
            squares = (here @ (weights * last).mT).square().sum(-1)
            out.append(4.0 * (high - low) / self.m * squares / c_0.clamp(min=1e-30))
        return torch.stack(out, dim=-1)
