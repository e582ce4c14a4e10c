"""The first layer of ``NumberReader`` on a GPU: convolution, pooling, bias and relu in one kernel each way.

A convolution of one channel leaves tensor cores idle, and what lies between it and what is left after pooling is ten
times as large as that. Here nothing of it is written to memory. Each pooled value sees a patch of 6 by 6 pixels, made 8
by 8 since products like that; each of the four values that are pooled is a product of the patch with weights shifted
by q = 0, ..., 3 to their place in it:

    y_q = sum_k patch_k W_q,k,        h = relu(max_q y_q + bias).

The backward pass computes y again, and adds up patch^T (gradient where y_q is the largest, the first of equals) for
each q: the gradient of the shifted weights, from which autograd makes that of the weights.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

_BLOCK, _WARPS, _STAGES = 64, 4, 1  #: pooled values at once, warps that share them, and patches read ahead
_PROGRAMS = 264  #: two for each multiprocessor of a large GPU
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def pooled_in_bfloat16(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return pooled(x, weight, bias, torch.bfloat16)


def pooled(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """``relu(max_pool2d(conv2d(x, weight, bias, padding=2), 2))`` of (N, 1, H, W) with H and W even, channels last.

    Weights are (C, 1, 5, 5). Products are of numbers rounded to ``dtype``, bfloat16 or float32, as is the answer.
    """
    shifts = [(0, 0), (0, 1), (1, 0), (1, 1)]
    shifted = [pad(weight, (right, 3 - right, down, 3 - down)) for down, right in shifts]
    table = torch.stack(shifted).flatten(2).transpose(1, 2).to(dtype).contiguous()
    return first_layer(x, table, bias)


@torch.library.custom_op("sinksort_paper::first_layer", mutates_args=())
def first_layer(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    """As above, of weights shifted by q: (4, 64, C)."""
    (N, _, H, W), C = x.shape, table.shape[-1]
    out = x.new_empty(N, H // 2, W // 2, C, dtype=table.dtype)
    positions = N * (H // 2) * (W // 2)
    _forward[(min(_PROGRAMS, triton.cdiv(positions, _BLOCK)),)](
        x.contiguous(), table, bias, out, positions,
        H=H, W=W, C=C, BLOCK=_BLOCK, DTYPE=_TYPES[table.dtype], num_warps=_WARPS, num_stages=_STAGES,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


@first_layer.register_fake
def _(x: Tensor, table: Tensor, _bias: Tensor) -> Tensor:
    N, _, H, W = x.shape
    return x.new_empty(N, H // 2, W // 2, table.shape[-1], dtype=table.dtype).permute(0, 3, 1, 2)


@torch.library.custom_op("sinksort_paper::first_layer_backward", mutates_args=())
def _first_layer_backward(x: Tensor, table: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of table and bias."""
    (N, _, H, W), C = x.shape, table.shape[-1]
    positions = N * (H // 2) * (W // 2)
    programs = min(_PROGRAMS, triton.cdiv(positions, _BLOCK))
    of_table = x.new_empty(programs, 4, 64, C, dtype=torch.float32)
    of_bias = x.new_empty(programs, C, dtype=torch.float32)
    _backward[(programs,)](
        x.contiguous(), table, bias, grad.permute(0, 2, 3, 1).contiguous(), of_table, of_bias, positions,
        H=H, W=W, C=C, BLOCK=_BLOCK, DTYPE=_TYPES[table.dtype], num_warps=_WARPS, num_stages=_STAGES,
    )  # fmt: skip
    return of_table.sum(0), of_bias.sum(0)


@_first_layer_backward.register_fake
def _(_x: Tensor, table: Tensor, bias: Tensor, _grad: Tensor) -> tuple[Tensor, Tensor]:
    return table.new_empty(table.shape, dtype=torch.float32), torch.empty_like(bias)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
    x, table, bias = ctx.saved_tensors
    of_table, of_bias = _first_layer_backward(x, table, bias, grad)
    return None, of_table.to(table.dtype), of_bias


first_layer.register_autograd(_gradient, setup_context=_remember)


@triton.jit
def _patches(x: tl.tensor, at: tl.tensor, positions: tl.tensor, H: tl.constexpr, W: tl.constexpr) -> Any:
    """(BLOCK, 64) pixels that pooled values see, zero beyond the border."""
    k = tl.arange(0, 64)[None, :]
    image, place = at // ((H // 2) * (W // 2)), at % ((H // 2) * (W // 2))
    row = 2 * (place // (W // 2))[:, None] - 2 + k // 8
    column = 2 * (place % (W // 2))[:, None] - 2 + k % 8
    seen = (k // 8 < 6) & (k % 8 < 6) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    pixel = image.to(tl.int64)[:, None] * H * W + row * W + column
    return tl.load(x + pixel, mask=seen & (at < positions)[:, None], other=0.0)


@triton.jit
def _shifted(table: tl.tensor, q: tl.constexpr, C: tl.constexpr) -> Any:
    return tl.load(table + (q * 64 + tl.arange(0, 64)[:, None]) * C + tl.arange(0, C)[None, :])


@triton.jit
def _product(a: tl.tensor, b: tl.tensor) -> Any:
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _forward(
    x: tl.tensor, table: tl.tensor, bias: tl.tensor, out: tl.tensor, positions: tl.tensor,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr,
) -> None:  # fmt: skip
    w0, w1 = _shifted(table, 0, C), _shifted(table, 1, C)
    w2, w3 = _shifted(table, 2, C), _shifted(table, 3, C)
    channel = tl.arange(0, C)[None, :]
    offset = tl.load(bias + channel)
    for first in range(tl.program_id(0) * BLOCK, positions, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        patch = _patches(x, at, positions, H, W).to(DTYPE)
        front = tl.maximum(_product(patch, w0), _product(patch, w1))
        back = tl.maximum(_product(patch, w2), _product(patch, w3))
        h = tl.maximum(tl.maximum(front, back) + offset, 0.0)
        tl.store(out + at.to(tl.int64)[:, None] * C + channel, h, mask=(at < positions)[:, None])


@triton.jit
def _backward(
    x: tl.tensor, table: tl.tensor, bias: tl.tensor, grad: tl.tensor, of_table: tl.tensor, of_bias: tl.tensor,
    positions: tl.tensor, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr,
) -> None:  # fmt: skip
    w0, w1 = _shifted(table, 0, C), _shifted(table, 1, C)
    w2, w3 = _shifted(table, 2, C), _shifted(table, 3, C)
    channel = tl.arange(0, C)[None, :]
    offset = tl.load(bias + channel)
    d0 = tl.zeros((64, C), tl.float32)
    d1, d2, d3 = d0, d0, d0
    d_bias = tl.zeros((C,), tl.float32)
    for first in range(tl.program_id(0) * BLOCK, positions, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        patch = _patches(x, at, positions, H, W).to(DTYPE)
        y0, y1, y2, y3 = _product(patch, w0), _product(patch, w1), _product(patch, w2), _product(patch, w3)
        front, back = tl.maximum(y0, y1), tl.maximum(y2, y3)
        in_front = front >= back
        alive = tl.maximum(front, back) + offset > 0.0
        g = tl.load(grad + at.to(tl.int64)[:, None] * C + channel, mask=(at < positions)[:, None], other=0.0)
        g = tl.where(alive, g, 0.0)
        d_bias += tl.sum(g.to(tl.float32), 0)
        turned = tl.trans(patch)
        d0 += _product(turned, tl.where(in_front & (y0 >= y1), g, 0.0))
        d1 += _product(turned, tl.where(in_front & (y0 < y1), g, 0.0))
        d2 += _product(turned, tl.where((in_front == 0) & (y2 >= y3), g, 0.0))
        d3 += _product(turned, tl.where((in_front == 0) & (y2 < y3), g, 0.0))
    mine = of_table + tl.program_id(0) * 4 * 64 * C + tl.arange(0, 64)[:, None] * C + channel
    tl.store(mine, d0)
    tl.store(mine + 64 * C, d1)
    tl.store(mine + 2 * 64 * C, d2)
    tl.store(mine + 3 * 64 * C, d3)
    tl.store(of_bias + tl.program_id(0) * C + tl.arange(0, C), d_bias)
