"""Operators called with the rows of a case in any layout, and answers brought back to rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import sinksort

from .cases import Case, Rows

#: Operator of the sweep -> function of (x, options).
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "soft_rank": sinksort.soft_rank,
    "soft_sort": sinksort.soft_sort,
    "soft_quantile": sinksort.soft_quantile,
    "soft_median": sinksort.soft_median,
    "soft_topk values": lambda x, **options: sinksort.soft_topk(x, **options).values,
    "soft_topk mask": lambda x, **options: sinksort.soft_topk(x, **options).mask,
    "soft_topk_mask": sinksort.soft_topk_mask,
    "soft_permutation": sinksort.soft_permutation,
    "sort_with": lambda x, values, **options: sinksort.sort_with(values, x, **options),
    "quantile_normalize": sinksort.quantile_normalize,
    "transport ranks": lambda x, **options: sinksort.transport(x, **options).ranks(),
    "transport sorted": lambda x, **options: sinksort.transport(x, **options).sorted(),
    "smooth_transport ranks": lambda x, **options: sinksort.smooth_transport(x, **options).ranks(),
    "kantorovich_rank": sinksort.kantorovich_rank,
    "kantorovich_sort": sinksort.kantorovich_sort,
}
_WHOLE_PLANS = 512**2  #: entries of a plan up to which truth is solved without a small problem in place of it


@dataclass(frozen=True)
class Arrangement:
    """How rows (R, n) lie in a tensor: its batch shape, the dimension of the values, and how memory is shared."""

    batch: tuple[int, ...]
    dim: int
    copied: Callable[[Tensor], Tensor]  #: the same numbers in other memory

    def values(self, rows: Tensor) -> Tensor:
        """(R, n) -> the tensor that an operator gets."""
        return self.copied(rows.reshape(*self.batch, rows.shape[-1]).movedim(-1, self.dim))

    def per_row(self, t: Tensor) -> Tensor:
        """(R, ...) -> (batch, ...)."""
        return t.reshape(*self.batch, *t.shape[1:])

    def rows(self, t: Tensor) -> Tensor:
        """The tensor of an operator -> (R, any)."""
        t = t.movedim(self.dim, -1)
        return t.reshape(-1, t.shape[-1])


def _every_second(t: Tensor) -> Tensor:
    wide = t.new_empty(*t.shape[:-1], 2 * t.shape[-1])
    wide[..., ::2] = t
    return wide[..., ::2]


def _off_by_three(t: Tensor) -> Tensor:
    room = t.new_empty(t.numel() + 3)[3:].view(t.shape)
    return room.copy_(t)


def _transposed(t: Tensor) -> Tensor:
    return t.mT.contiguous().mT


def arrangement(layout: str, R: int) -> Arrangement:
    half = 2 if R % 2 == 0 else 1
    return {
        "plain": Arrangement((R,), -1, lambda t: t.contiguous()),
        "transposed": Arrangement((R,), -1, _transposed),
        "first": Arrangement((R,), 0, lambda t: t.contiguous()),
        "middle": Arrangement((half, R // half), 1, lambda t: t.contiguous()),
        "strided": Arrangement((R,), -1, _every_second),
        "offset": Arrangement((R,), -1, _off_by_three),
        "expanded": Arrangement((R,), -1, lambda t: t),
        "batched": Arrangement((half, R // half, 1), -1, lambda t: t.contiguous()),
    }[layout]


@dataclass(frozen=True)
class Answer:
    out: Tensor  #: (R, W)
    grad: Tensor | None  #: (R, n), where a cotangent was given
    backend: str


def ask(case: Case, rows: Rows, layout: str, cotangent: Callable[[Tensor], Tensor] | None, **how: Any) -> Answer:
    """What the operator answers, and the gradient in x; ``how`` are options besides those of the case."""
    at = arrangement(layout, len(rows.x))
    x = at.values(rows.x).detach().requires_grad_(cotangent is not None)
    options = rows.shared | how
    options |= {name: at.values(t) for name, t in rows.each_value.items()}
    along = ("reference",)  # has the dimensions of x; what else there is of a row has its own entries last
    options |= {name: (at.values if name in along else at.per_row)(t) for name, t in rows.each_row.items()}
    given = FUNCTIONS[case.operator](x, dim=at.dim, **options)
    backend = sinksort.last_backend() if takes_backend(case) else "torch"
    out = _answer_rows(case, at, given, rows)
    if cotangent is None:
        return Answer(out, None, backend)
    if not out.requires_grad:
        return Answer(out, torch.zeros_like(rows.x), backend)
    (grad,) = torch.autograd.grad(out, x, cotangent(out.detach()), materialize_grads=True)
    return Answer(out.detach(), at.rows(grad), backend)


def takes_backend(case: Case) -> bool:
    """Whether the operator may be answered by kernels."""
    function = sinksort.soft_topk if case.operator.startswith("soft_topk ") else FUNCTIONS[case.operator]
    return "backend" in inspect.signature(function).parameters


def _answer_rows(case: Case, at: Arrangement, out: Tensor, rows: Rows) -> Tensor:
    R = len(rows.x)
    if case.operator in ("soft_quantile", "soft_median"):
        several = isinstance(rows.shared.get("q"), list)
        return (out.movedim(0, -1) if several else out).reshape(R, -1)
    if case.operator == "soft_permutation":
        return out.reshape(R, -1)
    return at.rows(out)


def truth(case: Case, rows: Rows, cotangent: Callable[[Tensor], Tensor]) -> Answer:
    """The reference in float64, of the numbers that the operator was given."""
    wide = Rows(
        rows.x.double(),
        {name: t.double() if name == "values" else t for name, t in rows.each_value.items()},
        {name: t.double() if name == "reference" else t for name, t in rows.each_row.items()},
        rows.shared,
        rows.draws,
    )
    how: dict[str, Any] = {"backend": "torch"} if takes_backend(case) else {}
    if not case.exact and case.operator != "smooth_transport ranks" and case.n * case.m <= _WHOLE_PLANS:
        how["solver"] = sinksort.Newton(compress=False)
    return ask(case, wide, "plain", cotangent, **how)
