"""What the solvers share: their result, their option checks, and how their loops become operators of torch.

A loop that stops when it has converged looks at values, which ``torch.compile`` and ``torch.func.vmap`` cannot trace.
Each loop is therefore registered with ``torch.library`` as one operator on plain tensors: compilers see a single
node, vmap adds a batch dimension. No gradient is registered: the loops are only ever given detached tensors (see
``gradients``).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef


class Solution(NamedTuple):
    """A solver's answer, one entry a row."""

    gamma: Tensor  #: (..., m) column potential, in units of eps, from the staircase
    iterations: Tensor  #: (...) how many steps the row took
    error: Tensor  #: (...) L1 error of the column marginal
    tolerance: float  #: what the solver was asked for


def require_tolerance(tolerance: float | None, max_iterations: int) -> None:
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"tolerance must be positive (an L1 marginal error), got {tolerance}; try 1e-6.")
    if isinstance(max_iterations, bool) or not isinstance(max_iterations, int) or max_iterations < 1:
        raise ValueError(f"max_iterations must be a positive integer, got {max_iterations!r}.")


def host_may_look(t: Tensor) -> bool:
    """Whether a loop may ask if it has converged. Not while a CUDA graph records: then it runs to its limit."""
    return not (t.is_cuda and torch.cuda.is_current_stream_capturing())


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep up to 62 MB of freed memory for the next operation, once in a process.

    The allocator of glibc maps a large tensor anew, and unmaps it at the end of its life, until it has seen such a
    tensor freed: from then on it keeps memory of twice that size. A page that is mapped anew costs more than the
    arithmetic on the numbers in it. The tensor here is never written to, so it takes no memory itself.
    """
    torch.empty(31 << 20, dtype=torch.uint8, device="cpu")


def warn_unconverged(error: Tensor, tolerance: float, iterations: int, advice: str) -> None:
    """One warning for all rows that stopped early. Rows that hold NaN are not late, they are NaN."""
    if not host_may_look(error):
        return
    late = error > tolerance
    if late.any():
        warnings.warn(
            f"sinksort: {int(late.sum())} of {late.numel()} rows did not converge in {iterations} iterations: marginal "
            f"error {error[late].max().item():.1e}, asked for {tolerance:.1e}. {advice}",
            RuntimeWarning,
            stacklevel=2,
        )


def empty_answer(log_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes and dtypes of what a loop returns (gamma, iterations, error), for those who trace it."""
    batch = log_b.shape[:-1]
    return torch.empty_like(log_b), log_b.new_empty(batch, dtype=torch.int64), log_b.new_empty(batch)


def batch_over_leading_dim(op: CustomOpDef) -> Callable[..., tuple[tuple[Tensor, ...], tuple[int, ...]]]:
    """The vmap rule of an operator whose tensors all carry arbitrary leading batch dimensions."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        moved = [
            arg
            if not isinstance(arg, Tensor)
            else (arg.unsqueeze(0).expand(info.batch_size, *arg.shape) if at is None else arg.movedim(at, 0))
            for arg, at in zip(args, in_dims, strict=True)
        ]
        out = op(*moved)
        return out, (0,) * len(out)

    op.register_vmap(rule)
    return rule
