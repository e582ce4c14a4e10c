"""One signature for all relaxations: rows, masks, direction and dtype are handled here, once."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.checks import values_readable
from ..core.problem import as_rows, live_rows, numbers_too
from .base import Relaxation, Rows
from .gaussian import Gaussian
from .networks import SortingNetwork
from .neuralsort import NeuralSort
from .pairwise import Pairwise
from .permutahedron import Permutahedron
from .softsort import SoftSort
from .transport import Transport

#: Each name stands for the option class with its defaults.
METHODS: dict[str, Relaxation] = {
    "transport": Transport(),
    "neuralsort": NeuralSort(),
    "softsort": SoftSort(),
    "pairwise": Pairwise(),
    "gaussian": Gaussian(),
    "permutahedron": Permutahedron(),
    "odd_even": SortingNetwork(network="odd_even"),
    "bitonic": SortingNetwork(network="bitonic"),
}


@numbers_too
def rank(
    x: Tensor,
    *,
    method: str | Relaxation = "transport",
    strength: float | Tensor | None = None,
    dim: int = -1,
    descending: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Soft ranks along ``dim`` by any method: 1 for the smallest value (the largest with ``descending``), up to n.

    Args:
        method: a name (see ``METHODS``) or an option object such as ``NeuralSort(noise=1.0)``.
        strength: softness: towards 0 the hard ranks, towards infinity all values alike. A number, or a tensor (one
            for all rows, or one a row) that may be learned. None for the method's own default. Except for
            ``"transport"``, whose inputs are standardised, it is in the unit of x.
        mask: True for values that exist, (n,) or broadcastable to x; a padded row gives what it gives without its
            padding, and padding has rank 0.

    >>> import torch
    >>> from sinksort import relaxations
    >>> x = torch.tensor([0.3, 0.1, 0.2])
    >>> for method in ("transport", "softsort", "permutahedron", "bitonic"):
    ...     print(relaxations.rank(x, method=method, strength=1e-3))
    tensor([3., 1., 2.])
    tensor([3., 1., 2.])
    tensor([3., 1., 2.])
    tensor([2.9936, 1.0064, 2.0000])
    """
    chosen = _resolve(method)
    rows, _ = _pose(chosen, x, strength, dim, descending, mask)
    ranks = chosen.rank(rows)
    if rows.kept is not None:
        ranks = torch.where(rows.kept, ranks, 0.0)
    return ranks.to(x.dtype).movedim(-1, dim)


@numbers_too
def sort(
    x: Tensor,
    *,
    method: str | Relaxation = "transport",
    strength: float | Tensor | None = None,
    dim: int = -1,
    descending: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Soft sort along ``dim`` by any method that has one; arguments as in ``rank``.

    A padded row has its sorted values first, then zeros.

    >>> import torch
    >>> from sinksort import relaxations
    >>> relaxations.sort(torch.tensor([3.0, 1.0, 2.0]), method="neuralsort", strength=0.1, descending=True)
    tensor([3.0000, 2.0000, 1.0000])
    >>> relaxations.sort(torch.tensor([3.0, 1.0, 2.0]), method="permutahedron", strength=2.0)
    tensor([1.5000, 2.0000, 2.5000])
    """
    chosen = _resolve(method)
    rows, values = _pose(chosen, x, strength, dim, descending, mask)
    ordered = chosen.sort(rows, values)
    ordered = -ordered if descending else ordered
    if rows.kept is not None:
        ordered = torch.where(rows.alive(), ordered, 0.0)
    return ordered.to(x.dtype).movedim(-1, dim)


def permutation(
    x: Tensor,
    *,
    method: str | Relaxation = "transport",
    strength: float | Tensor | None = None,
    dim: int = -1,
    descending: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Soft permutation matrix (..., n, n) by any method that has one; arguments as in ``rank``.

    ``dim`` goes to the end: row j tells from which values the j-th sorted value is made. Padding has zero rows and
    columns. Rows sum to one, except for ``"gaussian"``, where columns do (each is the distribution of a value's
    rank).

    >>> import torch
    >>> from sinksort import relaxations
    >>> relaxations.permutation(torch.tensor([0.3, 0.1, 0.2]), method="softsort", strength=0.01).round()
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [1., 0., 0.]])
    """
    chosen = _resolve(method)
    rows, _ = _pose(chosen, x, strength, dim, descending, mask)
    return rows.clear(chosen.permutation(rows)).to(x.dtype)


def _resolve(method: str | Relaxation) -> Relaxation:
    if isinstance(method, Relaxation):
        return method
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]
    if isinstance(method, str):
        raise ValueError(
            f"method must be one of {', '.join(METHODS)}, or an option object such as NeuralSort(), got {method!r}."
        )
    raise TypeError(
        f"method must be a name ({', '.join(METHODS)}) or an option object such as NeuralSort(), "
        f"got {type(method).__name__}."
    )


def _pose(
    method: Relaxation, x: Tensor, strength: float | Tensor | None, dim: int, descending: bool, mask: Tensor | None
) -> tuple[Rows, Tensor]:
    """The rows a method works on, and the values to be sorted. Descending is ascending in -x; noise comes before."""
    in_rows = as_rows(x, dim)
    values, _, kept, count = live_rows(x, in_rows, dim, None, mask)
    # NaN has no place in any order: let it be seen in the whole row rather than in some of its answers.
    values = torch.where(torch.isnan(values).any(-1, keepdim=True), torch.nan, values)
    softness = _strength(method.default_strength if strength is None else strength, values)
    keys = method.perturb(values)
    if descending:
        keys, values = -keys, -values
    return Rows(keys, kept, count, softness), values


def _strength(strength: float | Tensor, values: Tensor) -> Tensor:
    """Softness as (..., 1): one for all rows, or one a row."""
    batch = values.shape[:-1]
    if isinstance(strength, Tensor):
        if values_readable(strength) and not (strength > 0).all():
            raise ValueError(
                f"strength must be positive, got a tensor whose smallest entry is {strength.min().item():g}; "
                "pass what is learned through softplus or exp."
            )
        try:
            return strength.to(values).expand(batch).unsqueeze(-1)
        except RuntimeError:
            raise ValueError(
                f"strength must be a number, or a tensor that broadcasts to the rows {tuple(batch)}, "
                f"got shape {tuple(strength.shape)}."
            ) from None
    if isinstance(strength, bool) or not isinstance(strength, (int, float)):
        raise TypeError(f"strength must be a number or a tensor, got {type(strength).__name__}.")
    if not 0 < strength < float("inf"):
        raise ValueError(f"strength must be positive and finite, got {strength:g}; for a hard sort use torch.sort.")
    return torch.full((*batch, 1), float(strength), dtype=values.dtype, device=values.device)
