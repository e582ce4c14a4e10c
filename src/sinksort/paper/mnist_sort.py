"""Sorting handwritten numbers (the paper's Table 1 and Figure 6), the task of Grover et al.

A list has n four-digit numbers, each an image of four MNIST digits below each other; only their order is told. A
network scores each image, and the loss is the cross-entropy between a soft permutation of the scores and the true
order: by transport (``transport``), by NeuralSort (``neuralsort``) or by its stochastic version
(``neuralsort-stochastic``). A fourth, ``transport-raw``, is transport of the scores as they are: standardising a list,
as the paper does, forgets how far apart its scores are, so a network cannot say that it is sure.

Two older soft ranks that the paper cites can be run too. ``softrank`` is that of Taylor et al. (2008): scores have
Gaussian noise, and the loss is the same cross-entropy, of the distributions of their ranks. ``pairwise`` is that of Qin
et al. (2010): ranks are sums of logistic functions. They come without a permutation, so the loss is another one, the
mean squared error of the ranks.

Reported are the share of lists in the right order and the share of numbers in the right place, on lists made of test
digits, at the epoch that is best on lists made of validation digits. Equal numbers may come in either order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..losses import permutation_cross_entropy
from ..relaxations import Gaussian, NeuralSort, Pairwise, permutation, rank
from .datasets import DATA_SETS, File
from .images import Bytes, read_mnist
from .networks import NumberReader, SideBySide
from .settings import PRECISIONS, knob, require_among, require_counts, require_numbers, require_positive
from .training import Batch, Numbers, generator

METHODS = ("transport", "neuralsort", "neuralsort-stochastic")  # those of the paper's table
OTHERS = ("transport-raw", "softrank", "pairwise")
_TRAIN, _VALIDATE, _TEST = range(3)


@dataclass(frozen=True)
class MnistSort:
    """Every setting; the defaults are those of the paper and, where it names none, of Grover et al."""

    runs: int = knob(10, "runs, with seeds 0, 1, ...")
    epochs: int = knob(100, "epochs of each run")
    sizes: tuple[int, ...] = knob((3, 5, 7, 9, 15), "n, numbers in a list")
    digits: int = knob(4, "digits in a number")
    channels: tuple[int, ...] = knob((32, 64), "of the two convolutions")
    lists: int = knob(20, "lists in a mini-batch")
    learning_rate: float = knob(1e-4, "Adam's step size")
    rate_falls: bool = knob(False, "the step size falls to zero along half a cosine")
    eps: float = knob(0.005, "entropy of the transport")
    tau: float = knob(5.0, "temperature of NeuralSort")
    noise: float = knob(1.0, "scale of stochastic NeuralSort's Gumbel noise")
    samples: int = knob(5, "draws of that noise for each list")
    raw_eps: float = knob(1.0, "entropy of transport-raw, in squared units of the scores")
    sigma: float = knob(1.0, "deviation of softrank's Gaussian noise")
    pairwise_tau: float = knob(1.0, "temperature of the logistic functions of pairwise")
    compare: tuple[str, ...] = knob(METHODS, "methods to compare")
    precision: str = knob("bfloat16", "of convolutions on a GPU: bfloat16 or float32")
    measure_every: int = knob(5, "epochs between measurements")
    compiled: bool = knob(True, "networks on a GPU by torch.compile")

    def __post_init__(self) -> None:
        require_counts(runs=self.runs, epochs=self.epochs, lists=self.lists, measure_every=self.measure_every)
        require_counts(samples=self.samples)
        require_numbers("sizes", self.sizes, 1, math.inf)
        require_numbers("digits", (self.digits,), 1, 18)  # larger numbers are no whole numbers of 64 bits
        require_numbers("channels", self.channels, 1, math.inf)
        if len(self.channels) != 2:
            raise ValueError(f"--channels must be two numbers, one for each convolution, got {len(self.channels)}.")
        require_positive(learning_rate=self.learning_rate, eps=self.eps, tau=self.tau, raw_eps=self.raw_eps)
        require_positive(sigma=self.sigma, pairwise_tau=self.pairwise_tau)
        require_numbers("noise", (self.noise,), 0, 1e6)
        require_among("compare", self.compare, (*METHODS, *OTHERS))
        require_among("precision", (self.precision,), PRECISIONS)

    def cases(self) -> list[str]:
        return [f"n{n}" for n in self.sizes]

    def methods(self, _case: str) -> tuple[str, ...]:
        return self.compare

    def files(self) -> tuple[File, ...]:
        return DATA_SETS["mnist"].files

    def task(self, case: str, method: str, seeds: Sequence[int], data: Path, device: torch.device) -> SortTask:
        images, labels = read_mnist(data / "mnist", "train")
        test = read_mnist(data / "mnist", "t10k")
        parts = ((images[5000:], labels[5000:]), (images[:5000], labels[:5000]), test)
        pools = [Digits(*part, device) for part in parts]
        return SortTask(self, pools, int(case.removeprefix("n")), method, seeds, device)


class Digits:
    """Images sorted by digit, so that an image of a given digit can be drawn by arithmetic."""

    def __init__(self, images: Bytes, labels: Bytes, device: torch.device) -> None:
        by_digit = torch.as_tensor(labels, dtype=torch.int64, device="cpu").sort(stable=True)
        self.images = torch.tensor(images, dtype=torch.uint8, device="cpu")[by_digit.indices].to(device)
        self.count = torch.bincount(by_digit.values, minlength=10)
        self.first = self.count.cumsum(0) - self.count

    def draw(self, shape: tuple[int, ...], digits: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
        """(indices (*shape, digits), values (*shape)) of random numbers, every digit equally often."""
        digit = torch.randint(10, (*shape, digits), generator=source, dtype=torch.int64, device="cpu")
        chosen = (
            torch.rand(digit.shape, generator=source, dtype=torch.float64, device="cpu") * self.count[digit]
        ).long()
        values = (digit * 10 ** torch.arange(digits - 1, -1, -1, dtype=torch.int64, device="cpu")).sum(-1)
        return self.first[digit] + chosen, values

    def show(self, index: Tensor) -> Tensor:
        """(..., digits) indices -> (N, 1, digits * side, side) images in [0, 1], N the product of what leads."""
        side = self.images.shape[-1]
        return self.images[index].reshape(-1, 1, index.shape[-1] * side, side) / 255.0


class SortTask:
    """R networks that learn to score the numbers of a list."""

    def __init__(
        self,
        knobs: MnistSort,
        pools: Sequence[Digits],
        n: int,
        method: str,
        seeds: Sequence[int],
        device: torch.device,
    ) -> None:
        self.knobs, self.pools, self.n, self.method, self.seeds, self.device = knobs, pools, n, method, seeds, device
        side = pools[0].images.shape[-1]
        cuda = device.type == "cuda"
        self._bfloat16 = cuda and knobs.precision == "bfloat16"
        self.model = SideBySide(
            lambda: NumberReader(knobs.digits, side, knobs.channels, fused=self._bfloat16),
            seeds,
            compiled=knobs.compiled and cuda,
        ).to(device)
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._held_out = {part: self._lists(part) for part in (_VALIDATE, _TEST)}

    def _steps(self, part: int) -> int:
        """Mini-batches that use as many digits as the part has (rounded down), as Grover et al. count an epoch."""
        return max(len(self.pools[part].images) // (self.knobs.digits * self.knobs.lists), 1)

    def _lists(self, part: int) -> tuple[Tensor, Tensor]:
        """The lists that all runs of all methods are measured on."""
        shape = (self._steps(part), self.knobs.lists, self.n)
        index, values = self.pools[part].draw(shape, self.knobs.digits, generator(0, 0, 10 + part))
        return index.to(self.device), values.to(self.device)

    def batches(self, epoch: int) -> Batch:
        shape = (self._steps(_TRAIN), self.knobs.lists, self.n)
        drawn = [self.pools[_TRAIN].draw(shape, self.knobs.digits, generator(seed, epoch)) for seed in self.seeds]
        index, values = (torch.stack(parts, dim=1) for parts in zip(*drawn, strict=True))
        batch = {"index": index, "ranks": true_ranks(values).float()}
        if self.method == "neuralsort-stochastic":
            drawn_shape = (shape[0], self.knobs.samples, *shape[1:])
            noise = [gumbel(drawn_shape, generator(seed, epoch, 1)) for seed in self.seeds]
            batch["gumbel"] = torch.stack(noise, dim=1)
        return {name: values.to(self.device) for name, values in batch.items()}

    def scores(self, index: Tensor) -> Tensor:
        """(R, ..., n, digits) indices of training digits -> (R, ..., n)."""
        return self._scores(self.pools[_TRAIN], index)

    def _scores(self, pool: Digits, index: Tensor) -> Tensor:
        runs = len(self.seeds)
        images = pool.show(index.flatten(0, -2)).unflatten(0, (runs, -1))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bfloat16, cache_enabled=False):
            return self.model(images).float().reshape(index.shape[:-1])  # type: ignore[no-any-return]

    def losses(self, batch: Batch) -> Tensor:
        scores, ranks = self.scores(batch["index"]), batch["ranks"]
        if self.method in ("transport", "transport-raw"):
            raw = self.method == "transport-raw"
            lost = permutation_cross_entropy(
                scores,
                ranks,
                objective="nll",
                eps=self.knobs.raw_eps if raw else self.knobs.eps,
                squash=None if raw else "sigmoid",
                reduction="none",
            )
        elif self.method == "pairwise":
            soft = rank(scores, method=Pairwise(), strength=self.knobs.pairwise_tau)
            lost = (soft - ranks).square().mean(-1)
        elif self.method == "softrank":
            lost = order_cross_entropy(permutation(scores, method=Gaussian(), strength=self.knobs.sigma), ranks)
        else:
            if self.method == "neuralsort-stochastic":
                scores = scores.unsqueeze(1) + self.knobs.noise * batch["gumbel"]  # (R, samples, lists, n)
                ranks = ranks.unsqueeze(1).expand_as(scores)
            P = permutation(scores, method=NeuralSort(), strength=self.knobs.tau)
            lost = order_cross_entropy(P, ranks)
        return lost.flatten(1).mean(1)

    def measure(self) -> list[Numbers]:
        numbers: list[Numbers] = [{} for _ in self.seeds]
        for part, name in ((_VALIDATE, "validation"), (_TEST, "test")):
            index, values = self._held_out[part]
            chunks = (chunk.expand(len(self.seeds), *chunk.shape) for chunk in index.split(4))
            scores = torch.cat([self._scores(self.pools[part], chunk) for chunk in chunks], dim=1)
            for r, (exact, share) in enumerate(accuracies(scores, values)):
                numbers[r][f"{name}_exact"], numbers[r][f"{name}_elements"] = exact, share
        return numbers


def true_ranks(values: Tensor) -> Tensor:
    """Ranks 1, ..., n of each row; equal values are ranked in the order in which they come."""
    return values.argsort(dim=-1, stable=True).argsort(dim=-1) + 1


def gumbel(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    uniform = torch.rand(shape, generator=source, dtype=torch.float64, device="cpu").clamp(min=1e-300)
    return -(-uniform.log()).clamp(min=1e-300).log().float()


def order_cross_entropy(P: Tensor, ranks: Tensor) -> Tensor:
    """- mean_i log P[rank of i, i] (...): the loss of Grover et al. for a row-stochastic P.

    >>> P = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
    >>> order_cross_entropy(P, torch.tensor([1, 2])).exp()
    tensor(1.4907)
    """
    right = P.gather(-2, (ranks.long() - 1).unsqueeze(-2)).squeeze(-2)
    return -(right + 1e-20).log().mean(-1)


def accuracies(scores: Tensor, values: Tensor) -> list[tuple[float, float]]:
    """For each run, the share of lists in the right order and of places that hold the right number.

    ``scores`` (R, ..., n), ``values`` (..., n).
    """
    found = values.expand(scores.shape).gather(-1, scores.argsort(dim=-1))
    right = found == values.sort(dim=-1).values
    exact = right.all(-1).flatten(1).double().mean(1)
    share = right.flatten(1).double().mean(1)
    return list(zip(exact.tolist(), share.tolist(), strict=True))
