"""How far an answer is from the truth, in units of what ``tests.sweep.judging`` allows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..sweep import judging
from .calls import Found, ReadOut
from .store import Part, means, sampled

#: An error may be this many times that of the answer in the file, or this part of what is allowed, if that is more.
#: Vector instructions differ between processors, which moves the last digits of single precision.
FACTOR, FLOOR = 4.0, 0.05


def allowed(posed: ReadOut, name: str, true: Tensor) -> Tensor:
    """(R, 1) how far a part may be off; ``true`` contains the largest entry of each row."""
    case, rows = posed.sweep()
    scales = judging.scales(case, rows)
    of_answers, of_gradients = judging.limits(case.dtype)
    if name == "answer":
        return of_answers * scales.answer
    cotangent = posed.cotangent(torch.zeros(len(rows.x), _width(posed), dtype=rows.x.dtype)).double().abs()
    natural = (scales.gradient if name == "gradient in x" else scales.answer) * cotangent.amax(-1, keepdim=True)
    if len(true) == 1:  # one number for all rows
        natural = natural.amax(0, keepdim=True)
    return judging.allowed_gradient(of_gradients, true, natural)


def _width(posed: ReadOut) -> int:
    return posed.given["x"].shape[-1]  # enough numbers to know how large a cotangent is


def errors(posed: ReadOut, found: Found, parts: dict[str, Part]) -> Iterator[tuple[str, float, float]]:
    """For each part: its name, the error now, and the error of the answer in the file."""
    for name, part in parts.items():
        now, dtype = found.parts[name], found.parts[name].dtype
        assert now.shape == part.shape, f"{name} has the shape {tuple(now.shape)}, and had {part.shape}"
        bound = allowed(posed, name, part.truth)
        error = judging.off(sampled(now, part.largest), part.truth, bound).max().item()
        before = judging.off(part.answer.to(dtype), part.truth, bound).max().item()
        if part.means.numel():
            size = torch.where(part.truth.isfinite(), part.truth, 0.0).abs().amax(-1, keepdim=True)
            loose = bound + torch.finfo(dtype).eps * size
            of_means = judging.off(means(now), part.means, loose).max().item()
            error = max(error, of_means) if of_means > 1 else error
        yield name, error, before


def verdicts(posed: ReadOut, found: Found, parts: dict[str, Part]) -> Iterator[str]:
    """What is wrong, in words. An answer that was wrong when the file was made may not become worse."""
    for name, error, before in errors(posed, found, parts):
        was = parts[name].wrong
        most = FACTOR * was if was else min(max(FACTOR * before, FLOOR), 1.0)
        if not error <= most:
            yield f"{posed.case.name}: {name} is off by {error:.3g} of what is allowed, and may be by {most:.3g} here"
