"""The few things that the ranks of a group say to each other: sums, maxima, and short messages.

A sum over the ranks is differentiable. Let each rank have a loss of its own, and let L be the sum of all of them. The
sum over the ranks is used by everybody, so the derivative of L with respect to it is the sum of what each rank's own
backward pass says: the backward pass of a sum over the ranks is a sum over the ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..core.cotangents import one_at_a_time

_P = ParamSpec("_P")
_R = TypeVar("_R")
Group: TypeAlias = "dist.ProcessGroup | None"

_LONGEST_TEXT = 4096  #: bytes of a message


def answered(collective: Callable[_P, _R]) -> Callable[_P, _R]:
    """Say what it means when a collective fails: torch speaks of sockets."""

    @functools.wraps(collective)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return collective(*args, **kwargs)
        except RuntimeError as error:
            raise RuntimeError(
                f"sinksort.distributed: rank {dist.get_rank()} waited for the other ranks of its group, and at least "
                "one did not answer: it has ended, was killed, or did not make this call (forward and backward are "
                "made by all ranks together) within the timeout of the group. See the log of the rank that failed "
                f"first. The backend said: {str(error).splitlines()[0]}"
            ) from error

    return wrapped


class Everyone:
    """The ranks of a process group, who share the values of each row.

    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> everyone = Everyone(None, torch.device("cpu"))
    >>> everyone.size, everyone.sum(torch.tensor([1.0, 2.0])), everyone.gather([3, 4])
    (1, tensor([1., 2.]), [[3, 4]])
    >>> dist.destroy_process_group()
    """

    def __init__(self, group: Group, device: torch.device) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "sinksort.distributed needs a process group: start the program with torchrun and call "
                "torch.distributed.init_process_group() first; for values in one process use the operators of sinksort."
            )
        self.group, self.device = group, device
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(
                f"group must hold this process, but rank {dist.get_rank()} is not in it; "
                "call only on the ranks of the group."
            )

    def sum(self, t: Tensor, known: Tensor | None = None) -> Tensor:
        """The sum of everyone's t; differentiable. If it is ``known``, nothing is sent before the backward pass."""
        out: Tensor = _Sum.apply(t, self, known)  # type: ignore[no-untyped-call]
        return out

    @answered
    def largest(self, t: Tensor) -> Tensor:
        """The largest of everyone's t, entry by entry; a constant."""
        out = t.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(out, dist.ReduceOp.MAX, group=self.group)
        return out

    @answered
    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Everyone's numbers, in the order of the ranks."""
        mine = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        return [t.tolist() for t in self._gathered(mine)]

    @answered
    def gather_text(self, text: str) -> list[str]:
        """Everyone's message, cut where it is too long."""
        mine = torch.zeros(_LONGEST_TEXT, dtype=torch.uint8, device=self.device)
        encoded = text.encode()[:_LONGEST_TEXT]
        mine[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8, device=self.device)
        all_of_them = self._gathered(mine)
        return [bytes(t.tolist()).rstrip(b"\0").decode(errors="ignore") for t in all_of_them]

    def _gathered(self, mine: Tensor) -> list[Tensor]:
        out = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(out, mine, group=self.group)
        return out


class _Sum(torch.autograd.Function):
    @staticmethod
    @answered
    def forward(ctx: Any, t: Tensor, everyone: Everyone, known: Tensor | None) -> Tensor:
        ctx.everyone = everyone
        if known is not None:
            return known.clone()
        out = t.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(out, group=everyone.group)
        return out

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.everyone.sum(grads[0]), None, None
