"""A case called: every option by name, the answer and its gradients, and the same in float64 by the reference."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softsign

import sinksort
from sinksort import losses

from ..sweep import cases as sweep
from . import inputs
from .cases import Case

_WHOLE_PLANS = 1 << 20  #: entries of a plan up to which truth is solved with all values and all targets
Given = dict[str, Any]


class Read(NamedTuple):
    """An operator, the names of its data, what is taken of its result, and the operator that it is judged like."""

    function: Callable[..., Any]
    data: dict[str, str]  #: parameter -> name of a number or tensor in ``ReadOut.given``
    like: str
    take: Callable[[Any], Tensor] = lambda result: result


def _read(function: Callable[..., Any], like: str, take: Callable[[Any], Tensor] = lambda t: t, **data: str) -> Read:
    return Read(function, data or {"x": "x"}, like, take)


READS: dict[str, Read] = {
    "soft_rank": _read(sinksort.soft_rank, "soft_rank"),
    "soft_sort": _read(sinksort.soft_sort, "soft_sort"),
    "soft_quantile": _read(sinksort.soft_quantile, "soft_quantile", x="x", q="q"),
    "soft_median": _read(sinksort.soft_median, "soft_median"),
    "soft_topk values": _read(sinksort.soft_topk, "soft_topk values", lambda top: top.values, x="x", k="k"),
    "soft_topk mask": _read(sinksort.soft_topk, "soft_topk mask", lambda top: top.mask, x="x", k="k"),
    "soft_topk_mask": _read(sinksort.soft_topk_mask, "soft_topk_mask", x="x", k="k"),
    "soft_permutation": _read(sinksort.soft_permutation, "soft_permutation"),
    "sort_with": _read(sinksort.sort_with, "sort_with", values="values", keys="x"),
    "quantile_normalize": _read(sinksort.quantile_normalize, "quantile_normalize", x="x", reference="reference"),
    "transport ranks": _read(sinksort.transport, "soft_rank", lambda plan: plan.ranks()),
    "transport sorted": _read(sinksort.transport, "soft_sort", lambda plan: plan.sorted()),
    "transport matrix": _read(
        sinksort.transport, "soft_permutation", lambda plan: plan.matrix() * plan.matrix().shape[-2]
    ),
    "smooth_transport ranks": _read(sinksort.smooth_transport, "soft_rank", lambda plan: plan.ranks()),
    "smooth_transport sorted": _read(sinksort.smooth_transport, "soft_sort", lambda plan: plan.sorted()),
    "kantorovich_rank": _read(sinksort.kantorovich_rank, "kantorovich_rank"),
    "kantorovich_sort": _read(sinksort.kantorovich_sort, "kantorovich_sort"),
    "spearman_loss": _read(losses.spearman_loss, "soft_topk_mask", predictions="x", targets="other"),
    "kendall_loss": _read(losses.kendall_loss, "soft_topk_mask", predictions="x", targets="other"),
    "ndcg_loss": _read(losses.ndcg_loss, "soft_topk_mask", scores="x", relevance="relevance", k="none"),
    "average_precision_loss": _read(
        losses.average_precision_loss, "soft_topk_mask", scores="x", relevance="relevance", k="none"
    ),
    "topk_loss": _read(losses.topk_loss, "soft_rank", logits="x", labels="labels", k="two"),
    "trimmed_loss": _read(losses.trimmed_loss, "soft_quantile", losses="x", low="low", high="high"),
    "permutation_cross_entropy": _read(losses.permutation_cross_entropy, "soft_topk_mask", scores="x", ranks="order"),
    "soft_conformal_quantile": _read(losses.soft_conformal_quantile, "soft_quantile", scores="x", alpha="alpha"),
}


@dataclass(frozen=True)
class ReadOut:
    """A case with its numbers."""

    case: Case
    given: Given  #: by name; tensors are (R, ...)
    cotangent: Callable[[Tensor], Tensor]  #: of an answer (R, W)

    @property
    def digest(self) -> str:
        """A checksum of every number that goes in."""
        found = hashlib.blake2b(digest_size=8)
        for name, value in sorted(self.given.items()):
            found.update(name.encode())
            found.update(_bytes(value) if isinstance(value, Tensor) else repr(value).encode())
        return found.hexdigest()

    def sweep(self) -> tuple[sweep.Case, sweep.Rows]:
        """What ``tests.sweep.judging`` wants to know."""
        case, given = self.case, self.given
        like = sweep.Case(0, 0, READS[case.operator].like, case.kind, case.n, case.eps, given["x"].dtype, "plain",
                          "normal", case.squash)  # fmt: skip
        each_value = {name: given[name] for name in ("weights", "mask", "values") if given[name] is not None}
        return like, sweep.Rows(given["x"], each_value, {"reference": given["reference"]}, {}, given["x"])


def _bytes(t: Tensor) -> bytes:
    t = t.detach().contiguous()
    return t.view(torch.int16).numpy().tobytes() if t.dtype == torch.bfloat16 else t.numpy().tobytes()


def digest(t: Tensor) -> str:
    """A checksum of the bits of a tensor, with one kind of nan and one zero."""
    t = torch.where(t.isnan(), torch.nan, t + 0.0)
    return hashlib.blake2b(_bytes(t), digest_size=8).hexdigest()


def pose(case: Case) -> ReadOut:
    R, n = case.rows, case.n
    dtype = getattr(torch, case.dtype)
    other = torch.float64 if dtype == torch.float64 else torch.float32

    def numbers(what: str) -> inputs.Numbers:
        return inputs.Numbers(f"{case.name}: {what}")

    def tensor(array: Any, dtype: torch.dtype = other) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)

    x = tensor(inputs.KINDS[case.kind](numbers("x"), R, n), dtype)
    mask = None
    if case.mask:
        mask = tensor((numbers("mask").uniform(R, n) < 0.7) | (np.arange(n) == 0), torch.bool)
        x = torch.where(mask, x, torch.nan)
    m = case.targets or case.num_targets or n
    b = numbers("target weights").uniform(R, m) + 0.05
    if case.target_weights == "zeros":
        b = np.where(np.arange(m) % 3 == 1, 0.0, b)
    eps: Any = case.eps
    if case.eps_form == "scalar":
        eps = torch.tensor(case.eps, dtype=other)
    elif case.eps_form == "each":
        eps = tensor(case.eps * (0.5 + numbers("eps").uniform(R)))
    given = {
        "x": x,
        "mask": mask,
        "weights": None if case.weights is None else tensor(inputs.weights(case.weights, numbers("weights"), R, n)),
        "targets": None if case.targets is None else tensor(inputs.places(numbers("targets"), R, m)),
        "target_weights": None if case.target_weights is None else tensor(b),
        "eps": eps,
        "k": case.k,
        "q": list(case.q) if isinstance(case.q, tuple) else case.q,
        "values": tensor(numbers("values").normal(R, n), dtype),
        "reference": tensor(numbers("reference").normal(R, case.targets or n), dtype),
        "other": tensor(numbers("other").normal(R, n), dtype),
        "relevance": tensor(np.floor(3 * numbers("relevance").uniform(R, n)) + (np.arange(n) == 0)),
        "labels": tensor(np.floor(n * numbers("labels").uniform(R)), torch.int64),
        "order": tensor(numbers("order").uniform(R, n).argsort(-1) + 1, torch.int64),
        "low": 0.1, "high": 0.8, "alpha": 0.25, "two": 2, "none": None,
    }  # fmt: skip

    def cotangent(out: Tensor) -> Tensor:
        return tensor(numbers("cotangent").normal(*out.shape), out.dtype)

    return ReadOut(case, given, cotangent)


def options(posed: ReadOut) -> Given:
    """Every option of the operator, by name; a new one has to be written here first.

    The solver is the ordinary one, whatever its own options are: kernels answer no call that asks for another.
    """
    case, given, read = posed.case, posed.given, READS[posed.case.operator]
    known: Given = {
        "dim": -1, "keepdim": False, "descending": case.down, "largest": not case.down, "width": case.width,
        "interpolation": "hazen",
        "weights": given["weights"], "mask": given["mask"], "targets": given["targets"],
        "target_weights": given["target_weights"], "num_targets": case.num_targets, "eps": given["eps"],
        "cost": sinksort.Huber(0.1) if case.cost == "huber" else case.cost,
        "squash": softsign if case.squash == "softsign" else case.squash,
        "solver": sinksort.Newton(), "backend": case.backend,
        "reduction": "none", "pair_weights": "equal", "margin": 1.0, "gain": "linear", "J": "relu", "rescale": False,
        "positives": "all", "objective": "nll", "log": False,
    }  # fmt: skip
    data = {name: given[what] for name, what in read.data.items()}
    wanted = [name for name in inspect.signature(read.function).parameters if name not in data]
    return {name: known[name] for name in wanted} | data


class Found(NamedTuple):
    """What a case gives: "answer" (R, W), and for each gradient its name, (R, W) or for one number (1, 1)."""

    parts: dict[str, Tensor]


def ask(posed: ReadOut, **other: Any) -> Found:
    """The answer and the gradients of a case; ``other`` options replace its own."""
    case, read = posed.case, READS[posed.case.operator]
    leaves = {name: posed.given[name].detach().clone().requires_grad_() for name in case.of}
    asked = ReadOut(case, posed.given | leaves, posed.cotangent)
    chosen = options(asked)
    chosen |= {name: value for name, value in other.items() if name in chosen}
    out = read.take(read.function(**chosen))
    if isinstance(posed.given["q"], list) and case.operator == "soft_quantile":
        out = out.movedim(0, -1)
    out = out.reshape(case.rows, -1)
    parts = {"answer": out.detach()}
    if out.requires_grad:
        found = torch.autograd.grad(out, list(leaves.values()), posed.cotangent(out.detach()), materialize_grads=True)
    else:
        found = tuple(map(torch.zeros_like, leaves.values()))
    for name, gradient in zip(leaves, found, strict=True):
        parts[f"gradient in {name}"] = gradient.reshape(case.rows if gradient.dim() else 1, -1)
    return Found(parts)


def truth(posed: ReadOut) -> Found:
    """By the reference, of the same numbers in float64: with all values and targets where they are not too many."""
    wide = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in posed.given.items()
    }
    # The cotangent is that of the answer in its own dtype.
    dtype = posed.given["x"].dtype

    def cotangent(out: Tensor) -> Tensor:
        return posed.cotangent(out.to(dtype)).double()

    case = posed.case
    selected = {"soft_quantile": 3, "soft_median": 3, "soft_topk values": case.k + 1, "soft_topk_mask": 2}
    m = selected.get(case.operator) or case.targets or case.num_targets or case.n
    other: Given = {"backend": "torch"}
    if case.n * m <= _WHOLE_PLANS and not case.operator.startswith("smooth_transport"):
        # Gradients of rows that are nearly hard are smaller than the error at which Newton stops by itself.
        other["solver"] = sinksort.Newton(tolerance=1e-14, compress=False)
    return ask(ReadOut(case, wide, cotangent), **other)
