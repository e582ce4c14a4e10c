"""DTensor in, DTensor out: this rank's shard, the group that shares its rows, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ..core.checks import require_dim


@dataclass(frozen=True)
class Sharded:
    """A DTensor whose rows are cut along the sorted dimension, on one dimension of its mesh."""

    x: DTensor
    dim: int  #: sorted dimension, from 0
    at: int  #: dimension of the mesh

    @classmethod
    def along(cls, x: DTensor, dim: int, group: object) -> Sharded:
        if group is not None:
            raise ValueError("group must be None for a DTensor: its mesh says which ranks share a row.")
        require_dim(dim, x)
        dim = dim % x.ndim
        cuts = [at for at, placement in enumerate(x.placements) if placement == Shard(dim)]
        if len(cuts) != 1 or any(placement.is_partial() for placement in x.placements):
            raise ValueError(
                f"x must be sharded along dim={dim} on exactly one dimension of its mesh, and replicated or sharded on "
                f"the others, got placements {tuple(x.placements)}; use x.redistribute(...), or, when every rank has "
                "whole rows, the operators of sinksort on x.to_local()."
            )
        return cls(x, dim, cuts[0])

    @property
    def group(self) -> dist.ProcessGroup:
        return self.x.device_mesh.get_group(self.at)

    def local(self, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """This rank's values and weights."""
        if isinstance(weights, DTensor):
            if weights.placements != self.x.placements or weights.shape != self.x.shape:
                raise ValueError(
                    f"weights must be placed like x, {tuple(self.x.shape)} as {tuple(self.x.placements)}, "
                    f"got {tuple(weights.shape)} as {tuple(weights.placements)}; use weights.redistribute(...)."
                )
            weights = weights.to_local()
        return self.x.to_local(), weights

    def like_x(self, answer: Tensor) -> DTensor:
        """An answer for each value, placed like x."""
        x = self.x
        return DTensor.from_local(
            answer, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride()
        )

    def one_a_row(self, answer: Tensor, levels_first: bool, keepdim: bool) -> DTensor:
        """An answer for each row: the ranks that share a row all have it."""

        def where(placement: Placement) -> Placement:
            if not isinstance(placement, Shard) or placement.dim == self.dim:
                return Replicate()
            moved = placement.dim - (placement.dim > self.dim and not keepdim)
            return Shard(moved + levels_first)

        mesh, ranks = self.x.device_mesh, self.x.device_mesh.size(self.at)
        if answer.requires_grad:
            # The ranks share one loss of a replicated tensor, and each of them gets its whole derivative; in the
            # operators each has a loss of its own, and they are added up.
            answer.register_hook(lambda grad: grad / ranks)
        rows = [size for d, size in enumerate(self.x.shape) if d != self.dim or keepdim]
        if keepdim:
            rows[self.dim] = 1
        shape = torch.Size([*answer.shape[:levels_first], *rows])
        stride = torch.empty(shape, dtype=answer.dtype, device="meta").stride()
        placements = [where(placement) for placement in self.x.placements]
        return DTensor.from_local(answer, mesh, placements, run_check=False, shape=shape, stride=stride)
