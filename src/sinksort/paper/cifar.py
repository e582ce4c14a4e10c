"""CIFAR-10 and CIFAR-100 (the paper's Figures 4 and 5): the 0/1 loss against cross-entropy.

Methods: ``cross-entropy``; ``top1``, the paper's loss with its J (``relu``) and k = 1; for CIFAR-100 also ``top5``, the
same with k = 5; and ``top1-log``, ``top1`` with a concave J, which spends its gradient on labels that are near the top.

Two more that the paper does not have. Standardised logits forget how sure a network is: a label that has won by far has
the soft rank of one that has just won, and images that are learnt go on pulling. ``top1-raw`` is ``top1-log`` on the
logits as they are, which may grow until the label's rank is L. Its eps is then a temperature; so that this is not what
is compared, ``cross-entropy-tempered`` has one too.

Reported by epoch: the share of test images whose label is first, and among the first five.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..core.solvers import Newton
from ..losses import topk_loss
from .datasets import DATA_SETS, File
from .images import Bytes, read_cifar
from .networks import ResNet18, SideBySide, VanillaCNN
from .settings import PRECISIONS, knob, require_among, require_counts, require_positive
from .training import Batch, Numbers, generator

NETWORKS = ("cnn", "resnet18")
USUAL = ("cross-entropy", "cross-entropy-tempered")
LOSSES = (*USUAL, *(f"top{k}{J}" for k in (1, 5) for J in ("", "-log", "-raw")))


@dataclass(frozen=True)
class Cifar:
    """Every setting; the defaults are the paper's where it names them."""

    classes: ClassVar[int] = 10
    known_networks: ClassVar[tuple[str, ...]] = NETWORKS

    runs: int = knob(12, "runs, with seeds 0, 1, ...")
    epochs: int = knob(100, "epochs of each run")
    networks: tuple[str, ...] = knob(NETWORKS, "cnn, resnet18")
    losses: tuple[str, ...] = knob(("cross-entropy", "top1", "top1-log"), "losses to compare")
    batch: int = knob(128, "size of a mini-batch")
    learning_rate: float = knob(1e-4, "Adam's constant step size")
    eps: float = knob(1e-3, "entropy of the transport")
    raw_eps: float = knob(1.0, "entropy of top1-raw and top5-raw, in squared units of the logits")
    temperature: float = knob(10.0, "what cross-entropy-tempered divides the logits by")
    eta: float = knob(1e-3, "marginal error at which the solver stops")
    flip: bool = knob(True, "mirror every other training image")
    precision: str = knob("bfloat16", "of convolutions on a GPU: bfloat16 or float32")
    measure_every: int = knob(1, "epochs between measurements")
    compiled: bool = knob(True, "networks on a GPU by torch.compile")

    def __post_init__(self) -> None:
        require_counts(runs=self.runs, epochs=self.epochs, batch=self.batch, measure_every=self.measure_every)
        require_positive(learning_rate=self.learning_rate, eps=self.eps, raw_eps=self.raw_eps, eta=self.eta)
        require_positive(temperature=self.temperature)
        require_among("networks", self.networks, self.known_networks)
        require_among("losses", self.losses, LOSSES)
        require_among("precision", (self.precision,), PRECISIONS)

    def cases(self) -> list[str]:
        return list(self.networks)

    def methods(self, _case: str) -> tuple[str, ...]:
        return self.losses

    def files(self) -> tuple[File, ...]:
        return DATA_SETS[f"cifar{self.classes}"].files

    def task(self, case: str, method: str, seeds: Sequence[int], data: Path, device: torch.device) -> Classifiers:
        if self.classes == 10:
            folder = data / "cifar-10-batches-bin"
            train = read_cifar([folder / f"data_batch_{i}.bin" for i in range(1, 6)], 1)
            test = read_cifar([folder / "test_batch.bin"], 1)
        else:
            folder = data / "cifar-100-binary"
            train, test = (read_cifar([folder / f"{part}.bin"], 2) for part in ("train", "test"))
        networks: dict[str, type[nn.Module]] = {"cnn": VanillaCNN, "resnet18": ResNet18}
        return Classifiers(self, train, test, lambda: networks[case](self.classes), method, seeds, device)


@dataclass(frozen=True)
class Cifar100(Cifar):
    """As ``Cifar``, with 100 classes and the top-5 loss."""

    classes: ClassVar[int] = 100

    losses: tuple[str, ...] = knob(("cross-entropy", "top1", "top1-log", "top5"), "losses to compare")


class Classifiers:
    """R classifiers of small images (N, colours, side, side), each with its own order of them."""

    def __init__(
        self,
        knobs: Cifar,
        train: tuple[Bytes, Bytes],
        test: tuple[Bytes, Bytes],
        make: Callable[[], nn.Module],
        method: str,
        seeds: Sequence[int],
        device: torch.device,
    ) -> None:
        self.knobs, self.method, self.seeds, self.device = knobs, method, seeds, device
        self.images, self.test_images = (
            torch.as_tensor(part[0], dtype=torch.uint8, device="cpu").to(device) for part in (train, test)
        )
        self.labels, self.test_labels = (
            torch.as_tensor(part[1], dtype=torch.int64, device="cpu").to(device) for part in (train, test)
        )
        pixels = train[0].astype("float32") / 255.0
        self._mean, self._deviation = (
            torch.as_tensor(stat(axis=(0, 2, 3)), dtype=torch.float32, device=device).view(-1, 1, 1)
            for stat in (pixels.mean, pixels.std)
        )
        self.model = SideBySide(make, seeds, compiled=knobs.compiled and device.type == "cuda").to(device)
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def batches(self, epoch: int) -> Batch:
        steps = max(len(self.images) // self.knobs.batch, 1)
        size = min(self.knobs.batch, len(self.images))
        index, flip = [], []
        for seed in self.seeds:
            source = generator(seed, epoch)
            order = torch.randperm(len(self.images), generator=source, dtype=torch.int64, device="cpu")[: steps * size]
            index.append(order.view(steps, size))
            flip.append(
                (torch.rand(steps, size, generator=source, dtype=torch.float32, device="cpu") < 0.5) & self.knobs.flip
            )
        return {"index": torch.stack(index, 1).to(self.device), "flip": torch.stack(flip, 1).to(self.device)}

    def logits(self, images: Tensor) -> Tensor:
        """(R, B, colours, side, side) bytes -> (R, B, classes)."""
        pixels = ((images / 255.0 - self._mean) / self._deviation).flatten(0, 1)
        pixels = pixels.contiguous(memory_format=torch.channels_last).unflatten(0, images.shape[:2])
        bfloat16 = self.device.type == "cuda" and self.knobs.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16, cache_enabled=False):
            return self.model(pixels).float()  # type: ignore[no-any-return]

    def losses(self, batch: Batch) -> Tensor:
        images, labels = self.images[batch["index"]], self.labels[batch["index"]]
        images = torch.where(batch["flip"][..., None, None, None], images.flip(-1), images)
        return self._lost(self.logits(images), labels).mean(1)

    def _lost(self, logits: Tensor, labels: Tensor) -> Tensor:
        knobs = self.knobs
        if self.method in USUAL:
            cooled = logits if self.method == "cross-entropy" else logits / knobs.temperature
            return functional.cross_entropy(cooled.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        kind, _, variant = self.method.partition("-")
        raw = variant == "raw"
        return topk_loss(
            logits,
            labels,
            int(kind.removeprefix("top")),
            J="log" if variant else "relu",
            eps=knobs.raw_eps if raw else knobs.eps,
            squash=None if raw else "sigmoid",
            reduction="none",
            solver=Newton(tolerance=knobs.eta),
        )

    def measure(self) -> list[Numbers]:
        right = torch.zeros(2, len(self.seeds), dtype=torch.float32, device=self.device)
        for images, labels in zip(self.test_images.split(1000), self.test_labels.split(1000), strict=True):
            logits = self.logits(images.expand(len(self.seeds), *images.shape))
            hits = logits.topk(5).indices == labels[:, None]
            right += torch.stack([hits[..., 0].sum(-1), hits.any(-1).sum(-1)])
        shares = (right / len(self.test_labels)).T.tolist()
        return [{"top1": first, "top5": five} for first, five in shares]
