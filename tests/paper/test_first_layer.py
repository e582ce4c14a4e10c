"""The fused first layer of the network that reads numbers, against torch's own convolution."""

import pytest
import torch
from torch.nn.functional import conv2d, max_pool2d, relu

from sinksort.paper.networks import NumberReader

pytest.importorskip("triton", reason="Triton is made for Linux only")

from sinksort.paper.triton_first_layer import first_layer, pooled

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: Triton's interpreter has no products in bfloat16.
PRECISIONS = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)] if DEVICE == "cuda" else [(torch.float32, 1e-5)]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("N", "H", "W", "channels"), [(1, 2, 2, 16), (3, 12, 8, 32), (5, 8, 14, 16)])
def test_answers_and_gradients_are_those_of_the_layers_one_by_one(N, H, W, channels, dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, 1, H, W, generator=generator)
    weight, bias = torch.randn(channels, 1, 5, 5, generator=generator), torch.randn(channels, generator=generator)
    cotangent = torch.randn(N, channels, H // 2, W // 2, generator=generator)
    x, weight, bias, cotangent = (t.to(dtype).float().to(DEVICE) for t in (x, weight, bias, cotangent))
    weight.requires_grad_()
    bias.requires_grad_()

    wanted = relu(max_pool2d(conv2d(x.double(), weight.double(), bias.double(), padding=2), 2))
    found = pooled(x, weight, bias, dtype)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)
    gradients = torch.autograd.grad(found, (weight, bias), cotangent.to(dtype))
    for gradient, truth in zip(gradients, torch.autograd.grad(wanted, (weight, bias), cotangent.double()), strict=True):
        torch.testing.assert_close(gradient, truth, rtol=tolerance, atol=tolerance)


def test_the_operator_is_one_for_compilers_too():
    x, table, bias = torch.rand(2, 1, 4, 4), torch.randn(4, 64, 16), torch.randn(16)
    torch.library.opcheck(
        first_layer, (x.to(DEVICE), table.to(DEVICE).requires_grad_(), bias.to(DEVICE).requires_grad_())
    )


def test_a_network_has_the_same_weights_fused_or_not():
    plain, fused = (NumberReader(1, 8, (16, 4), fused=fused) for fused in (False, True))
    assert {k: v.shape for k, v in plain.state_dict().items()} == {k: v.shape for k, v in fused.state_dict().items()}
