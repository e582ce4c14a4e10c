"""Soft ranks and sorts of NumPy arrays, with the names, arguments and answers of fast-soft-sort's ``numpy_ops``.

Functions give the answer; classes also multiply vectors by its Jacobian (``jvp``), by the Jacobian's transpose
(``vjp``), and write the Jacobian down. Torch computes both, with the operators of ``pytorch_ops``. The original's
``SoftSort(..., regularization="kl")`` has products that do not belong to its answer; here they do.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ...relaxations.isotonic_autograd import isotonic
from .._arguments import check_direction, check_regularization, check_strength
from .._projection import ranks, sorted_values

__all__ = [
    "Isotonic",
    "Projection",
    "SoftRank",
    "SoftSort",
    "Sort",
    "isotonic_kl",
    "isotonic_l2",
    "rank",
    "soft_rank",
    "soft_sort",
    "sort",
]

Array = NDArray[np.floating]


class _Operator:
    """An operator at one input (n,): its answer, and products with its Jacobian (n, n)."""

    _not_computed: type[Exception] = ValueError
    _in_double = False  #: whatever the dtype of the values

    def __init__(self, values: ArrayLike, name: str = "values") -> None:
        x = _tensor(values, name)
        self._x = (x.double() if self._in_double else x).requires_grad_()
        self._out: Tensor | None = None

    def _answer(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self._x)

    def compute(self) -> Array:
        """Return the answer (n,). It must be called before ``jvp``, ``vjp`` and ``jacobian``."""
        with torch.enable_grad():
            self._out = self._answer(self._x)
        return _array(self._out)

    def vjp(self, vector: ArrayLike) -> Array:
        """Return the product of the Jacobian's transpose with a vector (n,)."""
        (product,) = torch.autograd.grad(self._computed(), self._x, self._vector(vector), retain_graph=True)
        return _array(product)

    def jvp(self, vector: ArrayLike) -> Array:
        """Return the product of the Jacobian with a vector (n,)."""
        c = torch.zeros_like(self._x, requires_grad=True)  # ``vjp`` is linear in c; this is the transpose of it
        (product,) = torch.autograd.grad(self._computed(), self._x, c, create_graph=True)
        (product,) = torch.autograd.grad(product, c, self._vector(vector))
        return _array(product)

    def jacobian(self) -> Array:
        """Return the Jacobian (n, n): entry (i, j) is the derivative of answer i in value j."""
        return np.stack([self.vjp(row) for row in np.eye(self.size)])

    def _computed(self) -> Tensor:
        if self._out is None:
            raise self._not_computed(f"{type(self).__name__}: call compute() first, then jvp, vjp or jacobian.")
        return self._out

    def _vector(self, vector: ArrayLike) -> Tensor:
        v = _tensor(vector, "vector").to(self._x.dtype)
        if len(v) != self.size:
            raise ValueError(f"vector must have one entry for each of the {self.size} values, got {len(v)}.")
        return v


def _tensor(values: ArrayLike, name: str) -> Tensor:
    """A tensor of its own; whole numbers become float64."""
    array = np.array(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must be a 1-d array, got shape {array.shape}; call it for one row after the other.")
    return torch.from_numpy(array if array.dtype.kind == "f" else array.astype(np.float64))


def _array(t: Tensor) -> Array:
    return np.array(t.detach().numpy())


def _falling(size: int) -> NDArray[np.int64]:
    return np.arange(size, 0, -1)


class Isotonic(_Operator):
    """Isotonic optimisation: of all v_1 >= ... >= v_n the one that is best for s and w.

    Args:
        input_s: s (n,).
        input_w: w (n,), not differentiated.
        regularization: ``"l2"``: the v closest to s - w. ``"kl"``: the v with the smallest sum of
            exp(s_i - v_i) + exp(w_i) v_i.

    >>> import numpy as np
    >>> from sinksort.compat.fast_soft_sort import numpy_ops
    >>> isotonic = numpy_ops.Isotonic(np.array([4.0, 1.0, 3.0]), np.zeros(3))
    >>> isotonic.compute()
    array([4., 2., 2.])
    >>> isotonic.vjp(np.array([1.0, 1.0, 0.0]))
    array([1. , 0.5, 0.5])
    """

    _not_computed = RuntimeError

    def __init__(self, input_s: ArrayLike, input_w: ArrayLike, regularization: str = "l2") -> None:
        check_regularization(regularization)
        super().__init__(input_s, "input_s")
        self.input_s, self.input_w, self.regularization = np.asarray(input_s), np.asarray(input_w), regularization
        self.solution_: Array | None = None
        self._w = _as_many(input_w, self._x)

    def _answer(self, x: Tensor) -> Tensor:
        return isotonic(x, self._w, self.regularization == "kl", falling=True)

    def compute(self) -> Array:
        """Return v (n,), which is kept as ``solution_`` too."""
        self.solution_ = super().compute()
        return self.solution_


class Projection(_Operator):
    """The point of the permutahedron of w that is closest to theta.

    Args:
        input_theta: theta (n,).
        input_w: w (n,) in descending order; None for n, ..., 1. Not differentiated.
        regularization: ``"l2"``: the Euclidean distance. ``"kl"``: the logarithm of the projection of exp(theta) on the
            permutahedron of exp(w), by the Kullback-Leibler divergence.

    >>> import numpy as np
    >>> from sinksort.compat.fast_soft_sort import numpy_ops
    >>> numpy_ops.Projection(np.array([0.0, 8.0, 0.5])).compute()
    array([1.25, 3.  , 1.75])
    """

    def __init__(self, input_theta: ArrayLike, input_w: ArrayLike | None = None, regularization: str = "l2") -> None:
        check_regularization(regularization)
        super().__init__(input_theta, "input_theta")
        w = _falling(self.size) if input_w is None else input_w
        self.input_theta, self.input_w, self.regularization = np.asarray(input_theta), np.asarray(w), regularization
        self._w = _as_many(w, self._x)
        if (self._w.diff() > 0).any():
            raise ValueError("input_w must be in descending order; use np.sort(input_w)[::-1].")

    def _answer(self, x: Tensor) -> Tensor:
        s, order = x.sort(descending=True)
        projected = s - isotonic(s, self._w, self.regularization == "kl", falling=True)
        return torch.zeros_like(projected).scatter_(0, order, projected)


def _as_many(w: ArrayLike, x: Tensor) -> Tensor:
    found = _tensor(w, "input_w").to(x.dtype)
    if len(found) != len(x):
        raise ValueError(f"input_w must have as many entries as there are values, {len(x)}, got {len(found)}.")
    return found


class SoftRank(_Operator):
    """Soft ranks of one row, from 1 up, with products by their Jacobian.

    Args:
        values: an array or a list (n,).
        direction: ``"ASCENDING"``: rank 1 is that of the smallest value; ``"DESCENDING"``: of the largest.
        regularization_strength: a positive number; the smaller, the closer to the hard ranks.
        regularization: ``"l2"`` or ``"kl"``.

    >>> from sinksort.compat.fast_soft_sort import numpy_ops
    >>> soft_rank = numpy_ops.SoftRank([5.0, 1.0, 2.0], regularization_strength=2.0)
    >>> soft_rank.compute()
    array([3.  , 1.25, 1.75])
    >>> soft_rank.jacobian()
    array([[ 0.  ,  0.  ,  0.  ],
           [ 0.  ,  0.25, -0.25],
           [ 0.  , -0.25,  0.25]])
    """

    def __init__(
        self,
        values: ArrayLike,
        direction: str = "ASCENDING",
        regularization_strength: float = 1.0,
        regularization: str = "l2",
    ) -> None:
        _check(direction, regularization_strength, regularization)
        super().__init__(values)
        self.values, self.direction, self.regularization = np.asarray(values), direction, regularization
        self.regularization_strength = regularization_strength

    def _answer(self, x: Tensor) -> Tensor:
        descending = self.direction == "DESCENDING"
        return ranks(x.unsqueeze(0), self.regularization_strength, self.regularization, descending).squeeze(0)


class SoftSort(SoftRank):
    """Soft sorted values of one row, with products by their Jacobian, in float64; arguments as for ``SoftRank``.

    >>> from sinksort.compat.fast_soft_sort import numpy_ops
    >>> soft_sort = numpy_ops.SoftSort([5.0, 1.0, 2.0], regularization_strength=0.5)
    >>> soft_sort.compute()
    array([1. , 2.5, 4.5])
    """

    _in_double = True

    def _answer(self, x: Tensor) -> Tensor:
        descending = self.direction == "DESCENDING"
        return sorted_values(x.unsqueeze(0), self.regularization_strength, self.regularization, descending).squeeze(0)


class Sort(_Operator):
    """Sorted values of one row (a hard sort), with products by their Jacobian, a permutation.

    >>> from sinksort.compat.fast_soft_sort import numpy_ops
    >>> sort = numpy_ops.Sort([5.0, 1.0, 2.0], direction="DESCENDING")
    >>> sort.compute()
    array([5., 2., 1.])
    >>> sort.vjp([1.0, 0.0, 0.0])
    array([1., 0., 0.])
    """

    def __init__(self, values: ArrayLike, direction: str = "ASCENDING") -> None:
        check_direction(direction)
        super().__init__(values)
        self.values, self.direction = np.asarray(values), direction

    def _answer(self, x: Tensor) -> Tensor:
        return x.sort(descending=self.direction == "DESCENDING").values


def _check(direction: str, regularization_strength: float, regularization: str) -> None:
    check_direction(direction)
    check_regularization(regularization)
    check_strength(regularization_strength, 1)


def isotonic_l2(input_s: ArrayLike, input_w: ArrayLike | None = None) -> Array:
    """Of all v_1 >= ... >= v_n the one closest to s - w; w is n, ..., 1 unless it is given.

    >>> import numpy as np
    >>> from sinksort.compat.fast_soft_sort import numpy_ops
    >>> numpy_ops.isotonic_l2(np.array([4.0, 1.0, 3.0]), np.zeros(3))
    array([4., 2., 2.])
    """
    return Isotonic(input_s, _falling(len(np.asarray(input_s))) if input_w is None else input_w, "l2").compute()


def isotonic_kl(input_s: ArrayLike, input_w: ArrayLike | None = None) -> Array:
    """Of all v_1 >= ... >= v_n the one with the smallest sum of exp(s_i - v_i) + exp(w_i) v_i; w as above.

    >>> import numpy as np
    >>> from sinksort.compat.fast_soft_sort import numpy_ops
    >>> np.exp(numpy_ops.isotonic_kl(np.log([4.0, 1.0, 3.0]), np.zeros(3))).round(6)
    array([4., 2., 2.])
    """
    return Isotonic(input_s, _falling(len(np.asarray(input_s))) if input_w is None else input_w, "kl").compute()


def soft_rank(
    values: ArrayLike,
    direction: str = "ASCENDING",
    regularization_strength: float = 1.0,
    regularization: str = "l2",
) -> Array:
    """Soft ranks of one row; arguments as for ``SoftRank``.

    >>> from sinksort.compat.fast_soft_sort import numpy_ops
    >>> numpy_ops.soft_rank([5.0, 1.0, 2.0], regularization_strength=2.0)
    array([3.  , 1.25, 1.75])
    """
    return SoftRank(values, direction, regularization_strength, regularization).compute()


def soft_sort(
    values: ArrayLike,
    direction: str = "ASCENDING",
    regularization_strength: float = 1.0,
    regularization: str = "l2",
) -> Array:
    """Soft sorted values of one row; arguments as for ``SoftRank``.

    >>> from sinksort.compat.fast_soft_sort import numpy_ops
    >>> numpy_ops.soft_sort([5.0, 1.0, 2.0], regularization_strength=0.1)
    array([1., 2., 5.])
    """
    return SoftSort(values, direction, regularization_strength, regularization).compute()


def sort(values: ArrayLike, direction: str = "ASCENDING") -> NDArray[np.generic]:
    """Sorted values of one row (a hard sort), in their own dtype.

    >>> from sinksort.compat.fast_soft_sort import numpy_ops
    >>> numpy_ops.sort([5, 1, 2], direction="DESCENDING")
    array([5, 2, 1])
    """
    check_direction(direction)
    ascending = np.sort(values)
    return ascending[::-1] if direction == "DESCENDING" else ascending


def rank(values: ArrayLike, direction: str = "ASCENDING") -> NDArray[np.int64]:
    """Ranks of one row from 1 up (hard ranks); equal values have ranks one after the other.

    >>> from sinksort.compat.fast_soft_sort import numpy_ops
    >>> numpy_ops.rank([5.0, 1.0, 2.0])
    array([3, 1, 2])
    """
    check_direction(direction)
    order = np.argsort(values)
    places = np.empty(len(order), np.int64)
    places[order[::-1] if direction == "DESCENDING" else order] = np.arange(1, len(order) + 1)
    return places
