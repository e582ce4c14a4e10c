"""The file: for each case its answer and gradients at some positions, the truth there, and checksums of all of it.

One .npz without pickled objects: a catalogue as JSON, and the numbers of all cases one after the other.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite.binding import get_host_cpu_name
from torch import Tensor

from .inputs import Numbers

FILE = Path(__file__).with_name("answers.npz")
_POSITIONS, _OF_ONE_ROW = 8, 20  #: of a row, where there are more rows and where there is one
_PIECES = 4  #: of a long row, of which the mean is kept


@dataclass(frozen=True)
class Part:
    """An answer or a gradient (R, W), as the file knows it."""

    shape: tuple[int, int]
    digest: str  #: of all its bits
    largest: Tensor  #: (R,) where the truth is largest
    truth: Tensor  #: (R, S) float64
    answer: Tensor  #: (R, S)
    means: Tensor  #: (R, 4) of the truth in the quarters of a row, or nothing
    wrong: float = 0.0  #: error of the answer that the code gave, where it was more than is allowed


@dataclass(frozen=True)
class Stored:
    inputs: str  #: checksum
    parts: dict[str, Part]


def positions(R: int, W: int) -> Tensor:
    """Where an answer (R, W) is sampled: everywhere, or at some positions that depend on its shape alone."""
    count = _POSITIONS if R > 1 else _OF_ONE_ROW
    if count >= W:
        return torch.arange(W)
    inside = torch.from_numpy(Numbers(f"positions in {W}").uniform(count - 2) * W).long()
    return torch.cat([torch.tensor([0, W - 1]), inside])


def sampled(t: Tensor, largest: Tensor) -> Tensor:
    """(R, W) -> (R, S): at the positions of this shape and at one of each row."""
    return torch.cat([t[:, positions(*t.shape)], t.gather(-1, largest.unsqueeze(-1))], dim=-1)


def largest_of(t: Tensor) -> Tensor:
    return torch.where(t.isfinite(), t, 0.0).abs().argmax(-1)


def means(t: Tensor) -> Tensor:
    """(R, W) -> (R, 4): the mean of each quarter of a row that is longer than its sample."""
    if t.shape[-1] <= _OF_ONE_ROW:
        return torch.empty(len(t), 0, dtype=torch.float64)
    return torch.stack([piece.nanmean(-1) for piece in t.double().tensor_split(_PIECES, -1)], dim=-1)


def about() -> dict[str, str]:
    """What the bits of an answer depend on, besides the code."""
    cpu = next((line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")), "")
    versions = {module.__name__: module.__version__ for module in (torch, np, numba)}
    return {"cpu": f"{cpu or platform.machine()} ({get_host_cpu_name()})", **versions}


def _cpu_lines() -> Iterator[str]:
    info = Path("/proc/cpuinfo")
    yield from info.read_text().splitlines() if info.exists() else ()


def write(path: Path, found: dict[str, Stored], facts: dict[str, str]) -> None:
    catalogue: list[Any] = []
    numbers: dict[str, list[Tensor]] = {"largest": [], "truth": [], "means": [], "float32": [], "float64": []}
    for name, stored in found.items():
        said = {}
        for what, part in stored.parts.items():
            kind = "float64" if part.answer.dtype == torch.float64 else "float32"
            said[what] = [*part.shape, part.digest, kind, part.wrong]
            for array, t in (("largest", part.largest), ("truth", part.truth), ("means", part.means)):
                numbers[array].append(t)
            numbers[kind].append(part.answer.to(getattr(torch, kind)))
        catalogue.append([name, stored.inputs, said])
    text = json.dumps({"about": facts, "cases": catalogue}, separators=(",", ":"))
    arrays = {name: torch.cat([t.flatten() for t in ts]).numpy() if ts else np.empty(0) for name, ts in numbers.items()}
    arrays["largest"] = arrays["largest"].astype(np.int32)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, catalogue=np.frombuffer(text.encode(), np.uint8), **arrays)


def read(path: Path = FILE) -> tuple[dict[str, Stored], dict[str, str]]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    catalogue = json.loads(arrays.pop("catalogue").tobytes())
    left = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def take(name: str, R: int, W: int) -> Tensor:
        t, left[name] = left[name][: R * W].reshape(R, W), left[name][R * W :]
        return t

    found = {}
    for name, inputs, said in catalogue["cases"]:
        parts = {}
        for what, (R, W, digest, kind, wrong) in said.items():
            S = len(positions(R, W)) + 1
            parts[what] = Part(
                (R, W), digest, take("largest", R, 1)[:, 0].long(), take("truth", R, S), take(kind, R, S),
                take("means", R, _PIECES if W > _OF_ONE_ROW else 0), wrong,
            )  # fmt: skip
        found[name] = Stored(inputs, parts)
    return found, catalogue["about"]
