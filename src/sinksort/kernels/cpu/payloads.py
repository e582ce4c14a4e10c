"""Tensors to the kernels of ``lanes.band_carry``: sixteen rows at a time, and none left over."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..contract import Request
from . import rows
from .engine.maths import F32
from .engine.threads import run
from .lanes.band_carry import carry_backward_many, carry_many
from .lanes.band_others import band_layout

_PRICE = 3.0  #: nanoseconds that a row takes, over n K


class Solved:
    """R rows, R a multiple of 16, and the state of ``pull_band``, which answered all of them."""

    out: Tensor | None

    def __init__(self, request: Request, state: F32, out: Tensor) -> None:
        _, y, b, eps, n, K, squash, _ = rows.inputs(request)
        self.request, self.state, self.out = request, state, out
        self.args = rows.flat(request.x), y, b, eps, n, K, squash
        self.groups, self.work = len(request.x) // 16, _PRICE * request.x.numel() * K

    def carry(self, w: Tensor) -> Tensor:
        """sum_i w_i p_ij (R, K)."""
        out = np.empty((len(self.request.x), self.request.y.shape[-1]), np.float32)
        args = (*self.args, rows.flat(w), self.state, out.reshape(-1))
        run(carry_many, self.groups, self.work, *args)
        return torch.from_numpy(out)

    def pull_backward(self, v: Tensor, w: Tensor) -> Tensor:
        """The cotangent of x from that of ``out``, where v (K,) is what was averaged."""
        return rows.pull_backward(self.request, v.detach().unsqueeze(0), self.state, w)

    def carry_backward(self, w: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The cotangents of x and of w (R, n), and which rows are good."""
        of_x, of_w = np.empty(w.shape, np.float32), np.empty(w.shape, np.float32)
        fine = np.empty(len(self.request.x), np.float32)
        outs = rows.flat(c), of_x.reshape(-1), of_w.reshape(-1), fine
        run(carry_backward_many, self.groups, self.work, *self.args, rows.flat(w), self.state, *outs)
        return torch.from_numpy(of_x), torch.from_numpy(of_w), torch.from_numpy(fine > 0)


def solved(request: Request, phi: Tensor, accepted: float) -> Solved | None:
    """The plan of all rows by ``pull_band``, or None where it is not for these."""
    if rows.unable(request) or not rows._in_band(request, phi):
        return None
    answer = rows.pull(request, phi)
    at, state = band_layout(request.x.shape[-1], request.y.shape[-1], 0), rows._kept(answer.state)
    flags = state.reshape(len(request.x) // 16, -1)[:, at.flag : at.flag + 16]
    if flags.any() or not float(answer.error.max()) <= accepted:
        return None
    return Solved(request, state, answer.out)
