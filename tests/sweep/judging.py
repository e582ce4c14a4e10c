"""Which rows are wrong.

A row is wrong when

* a rank is off by more than 1e-5 n, n being the number of values in the row;
* another answer is off by more than 1e-5 of its range: that of the values with weight for sorted values and quantiles,
  that of the payload for what is carried along, 1 for memberships and permutations;
* a gradient is off by more than 1e-3 of the larger of its row's largest true gradient and 1e-3 of its natural size;
* anything is finite where truth is not, or not where truth is.

Each may also be off by the rounding of its dtype: one unit in the last place of the truth. Answers in float64 are held
to 1e-8 and gradients to 1e-5 in place of 1e-5 and 1e-3.

**The natural size** of a gradient is how fast an answer changes when values are neither crowded nor apart, times the
largest cotangent of the row. With s the weighted standard deviation of the row (1 without a squash, when values are
where targets are),

    ranks, permutations     n / s       a value that crosses the row passes n places
    memberships             1 / s       it goes from out to in
    payloads                r / s       r: range of the payload
    sorted values           1           sorted values move with values
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .asking import Answer
from .cases import Case, Rows

_SINGLE, _DOUBLE = (1e-5, 1e-3), (1e-8, 1e-5)
_VANISHING = 1e-3  #: of the natural size: what smaller gradients are compared with
ALIKE = 1e-6  #: how far answers may differ between batches, as a fraction of their range


class Scales(NamedTuple):
    """By row, (R, 1)."""

    answer: Tensor
    gradient: Tensor  #: natural size, for a cotangent of 1


def scales(case: Case, rows: Rows) -> Scales:
    x = rows.x.double()
    kept = rows.each_value.get("mask", torch.ones_like(x, dtype=torch.bool))
    weights = rows.each_value.get("weights", rows.shared.get("weights", torch.ones_like(x))).expand_as(x)
    a = torch.where(kept & x.isfinite() & (weights > 0), weights, 0.0)
    inside = a > 0
    count = kept.sum(-1, keepdim=True).clamp(min=1).double()
    one = torch.ones_like(count)
    reach = _range(x, inside)
    share = a / a.sum(-1, keepdim=True).clamp(min=1e-300)
    values = torch.where(inside, x, 0.0)
    size = values.abs().amax(-1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    unit = values / size  # tiny values have tiny squares
    spread = (share * (unit - (share * unit).sum(-1, keepdim=True)).square()).sum(-1, keepdim=True).sqrt() * size
    spread = torch.where((reach > 0) & (spread > 0), spread, size)
    if case.squash is None:
        spread = one
    if case.of_values:
        return Scales(reach, one)
    if case.operator in ("soft_topk mask", "soft_topk_mask"):
        return Scales(one, 1 / spread)
    if case.operator == "soft_permutation":
        return Scales(one, count / spread)
    if case.operator == "sort_with":
        payload = _range(rows.each_value["values"].double(), kept & (weights > 0))  # that of infinite values counts
        return Scales(payload, payload / spread)
    if case.operator == "quantile_normalize":
        payload = rows.each_row["reference"].double()
        payload = payload.amax(-1, keepdim=True) - payload.amin(-1, keepdim=True)
        return Scales(payload, payload / spread)
    return Scales(count, count / spread)


def _range(x: Tensor, inside: Tensor) -> Tensor:
    top = torch.where(inside, x, -torch.inf).amax(-1, keepdim=True)
    bottom = torch.where(inside, x, torch.inf).amin(-1, keepdim=True)
    return (top - bottom).clamp(min=0.0)  # -inf where there is nothing


def off(found: Tensor, true: Tensor, allowed: Tensor) -> Tensor:
    """(R,) the largest error of a row, in units of what is allowed (R, 1) and the rounding of ``found.dtype``."""
    kind, rounded = torch.finfo(found.dtype), true.to(found.dtype).double()
    found = found.double()
    same = (found == rounded) | (found.isnan() & rounded.isnan())
    at_the_edge = (true.abs() > 0.99 * kind.max) & (found.abs() > 0.98 * kind.max) & (found.sign() == true.sign())
    tolerance = allowed + kind.eps * true.abs() + kind.tiny * kind.eps
    ratio = ((found - true).abs() / tolerance).nan_to_num(torch.inf, torch.inf)
    return torch.where(same | at_the_edge, 0.0, ratio).flatten(1).amax(-1)


class Verdict(NamedTuple):
    """(R,): errors in units of what is allowed."""

    answers: Tensor
    gradients: Tensor

    @property
    def wrong(self) -> Tensor:
        return (self.answers > 1) | (self.gradients > 1)


def limits(dtype: torch.dtype) -> tuple[float, float]:
    """What answers and gradients in a dtype are held to."""
    return _DOUBLE if dtype == torch.float64 else _SINGLE


def allowed_gradient(limit: float, true: Tensor, natural: Tensor) -> Tensor:
    """(R, 1) how far a gradient may be off, from the true one and its natural size (R, 1)."""
    largest = torch.where(true.isfinite(), true, 0.0).abs().amax(-1, keepdim=True)
    return limit * largest.maximum(_VANISHING * natural)


def judge(case: Case, rows: Rows, answer: Answer, true: Answer, cotangent: Tensor) -> Verdict:
    at = scales(case, rows)
    of_answers, of_gradients = limits(case.dtype)
    answers = off(answer.out, true.out, of_answers * at.answer)
    assert answer.grad is not None
    assert true.grad is not None
    natural = at.gradient * cotangent.double().abs().amax(-1, keepdim=True)
    gradients = off(answer.grad, true.grad, allowed_gradient(of_gradients, true.grad, natural))
    return Verdict(answers, gradients)


def alike(case: Case, rows: Rows, one: Tensor, other: Tensor) -> Tensor:
    """(R,): how far two answers to the same rows are from each other, in units of what is allowed."""
    return off(one, other.double(), ALIKE * scales(case, rows).answer)
