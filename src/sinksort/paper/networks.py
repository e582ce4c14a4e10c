"""The networks of the paper's experiments, R of them side by side: (R, B, ...) goes in, (R, B, ...) comes out.

Each network is initialised from its own seed, whatever R is. Under autocast the convolutions run in bfloat16; the last
layers stay in float32, since a bfloat16 score cannot tell 10,000 numbers apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, relu


class SideBySide(nn.Module):
    """R networks of one kind, each on its own slice of the input.

    On a GPU each network has a stream of its own, forward and (autograd follows) backward: small networks leave most of
    the device idle, and side by side they fill it. There they may be trained by ``torch.compile``, which joins what
    lies between convolutions.
    """

    def __init__(self, make: Callable[[], nn.Module], seeds: Sequence[int], *, compiled: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            self.networks = nn.ModuleList()
            for seed in seeds:
                torch.manual_seed(seed)
                self.networks.append(make())
        self._trained: list[Any] = [torch.compile(network) if compiled else network for network in self.networks]

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return torch.stack([network(part) for network, part in zip(self.networks, x, strict=True)])
        here = torch.cuda.current_stream()
        streams = [torch.cuda.Stream() for _ in self.networks]
        out = []
        networks = self._trained if torch.is_grad_enabled() else self.networks
        for network, part, stream in zip(networks, x, streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                out.append(network(part))
        for stream in streams:
            here.wait_stream(stream)
        return torch.stack(out)


class Perceptrons(nn.Module):
    """R regressors with two hidden layers (Romano et al.: orthogonal weights, biases zero), as batched products."""

    def __init__(self, features: int, hidden: int, seeds: Sequence[int]) -> None:
        super().__init__()
        sizes = [(features, hidden), (hidden, hidden), (hidden, 1)]
        with torch.random.fork_rng(devices=[]):
            drawn = []
            for seed in seeds:
                torch.manual_seed(seed)
                drawn.append(
                    [
                        nn.init.orthogonal_(torch.empty(out, into, dtype=torch.float32, device="cpu")).T
                        for into, out in sizes
                    ]
                )
        self.weights = nn.ParameterList([torch.stack(layer) for layer in zip(*drawn, strict=True)])
        self.biases = nn.ParameterList(
            [torch.zeros(len(seeds), 1, out, dtype=torch.float32, device="cpu") for _, out in sizes]
        )

    def forward(self, x: Tensor) -> Tensor:
        """(R, B, features) -> (R, B)."""
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = x if i == last else x.relu()
        return x.squeeze(-1)


class NumberReader(nn.Module):
    """The network of Grover et al.: (N, 1, 28 l, 28) images of l-digit numbers -> (N,) scores.

    ``fused``: the first layer is one kernel, in bfloat16, on a GPU.
    """

    def __init__(
        self,
        digits: int,
        side: int = 28,
        channels: Sequence[int] = (32, 64),
        hidden: int = 64,
        *,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self._first = _pooled
        if fused:
            from .triton_first_layer import pooled_in_bfloat16  # there need not be a Triton elsewhere

            self._first = pooled_in_bfloat16
        self.conv1 = nn.Conv2d(1, channels[0], 5, padding=2)
        self.conv2 = nn.Conv2d(channels[0], channels[1], 5, padding=2)
        self.hidden = nn.Linear(digits * (side // 4) ** 2 * channels[1], hidden)
        self.score = nn.Linear(hidden, 1)
        for layer in (self.conv1, self.conv2, self.hidden, self.score):
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
            nn.init.constant_(layer.bias, 0.1)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x = self._first(x, self.conv1.weight, self.conv1.bias)  # type: ignore[arg-type]
        x = _pooled(x, self.conv2.weight, self.conv2.bias)  # type: ignore[arg-type]
        with torch.autocast(x.device.type, enabled=False):
            return self.score(relu(self.hidden(x.float().flatten(1)))).squeeze(-1)  # type: ignore[no-any-return]


def _pooled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    x = max_pool2d(conv2d(x, weight, padding=2), 2)
    return relu(x + bias.to(x.dtype).view(-1, 1, 1))  # the same as before pooling, and less work


class VanillaCNN(nn.Module):
    """The paper's vanilla CNN: 4 convolutions, 2 max-poolings, 2 fully connected layers, batchnorm on each."""

    def __init__(self, classes: int, width: int = 64, side: int = 32, hidden: int = 512, colours: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        into = colours
        for i, out in enumerate((width, width, 2 * width, 2 * width)):
            layers += [nn.Conv2d(into, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if i % 2 else []
            into = out
        self.features = nn.Sequential(*layers, nn.Flatten())
        flat = 2 * width * (side // 4) ** 2
        self.hidden = nn.Sequential(nn.Linear(flat, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU())
        self.logits = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(self.features(x))
        with torch.autocast(x.device.type, enabled=False):
            return self.logits(h.float())  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or into != out:
            self.shortcut = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        h = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for small images: a 3 x 3 stem without pooling, then four stages of two blocks."""

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        stages: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        into = width
        for stage in range(4):
            out = width * 2**stage
            stages += [_Block(into, out, 1 if stage == 0 else 2), _Block(out, out, 1)]
            into = out
        self.features = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.logits = nn.Linear(into, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        with torch.autocast(x.device.type, enabled=False):
            return self.logits(h.float())  # type: ignore[no-any-return]
