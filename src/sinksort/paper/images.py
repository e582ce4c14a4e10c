"""Readers for the standard image files: MNIST's idx (plain or gzip) and the binary version of CIFAR.

The CIFAR pickles are not read: unpickling runs whatever the file says. A file that is too short, too long or of another
kind is an error that names it.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_UNSIGNED_BYTE = 0x08  # the only element type that MNIST uses


def read_idx(path: Path) -> Bytes:
    """The array in an idx file of unsigned bytes: two zeros, the type, how many dimensions, their sizes, the data."""
    raw = _unzipped(path)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != _UNSIGNED_BYTE:
        raise ValueError(
            f"{path} is not an idx file of unsigned bytes: it begins with {raw[:4].hex(' ') or 'nothing'}, not with "
            "00 00 08; fetch it again with: sinksort data --download mnist"
        )
    header = 4 + 4 * raw[3]
    shape = tuple(int(size) for size in np.frombuffer(raw[4:header], dtype=">u4"))
    wanted = header + int(np.prod(shape))
    if len(shape) != raw[3] or len(raw) != wanted:
        raise ValueError(
            f"{path} is damaged: its header announces {wanted} bytes for an array of shape {shape}, it has {len(raw)}; "
            "fetch it again with: sinksort data --download mnist"
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


def _unzipped(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is not a whole gzip file ({error}); fetch it again with: sinksort data --download mnist"
        ) from error


def read_mnist(folder: Path, part: str) -> tuple[Bytes, Bytes]:
    """(images (N, 28, 28), labels (N,)) of ``part``, ``"train"`` or ``"t10k"``; each file with or without .gz."""
    images, labels = (read_idx(_either(folder, f"{part}-{what}-ubyte")) for what in ("images-idx3", "labels-idx1"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{folder}: the {part} images have shape {images.shape} and the labels {labels.shape}; "
            "expected (N, 28, 28) and (N,), so one of the files is not what its name says."
        )
    return images, labels


def _either(folder: Path, name: str) -> Path:
    packed = folder / f"{name}.gz"
    return packed if packed.exists() else folder / name


def read_cifar(paths: list[Path], labels: int) -> tuple[Bytes, Bytes]:
    """(images (N, 3, 32, 32), classes (N,)) of binary CIFAR files with ``labels`` label bytes a record.

    CIFAR-10 has one label byte, CIFAR-100 two (coarse, fine); the last one counts. Planes are red, green and blue.
    """
    record = labels + 3 * 32 * 32
    parts = []
    for path in paths:
        raw = np.fromfile(path, dtype=np.uint8)
        if len(raw) == 0 or len(raw) % record:
            raise ValueError(
                f"{path} is damaged or of another kind: {len(raw)} bytes are no whole number of records of {record}; "
                f"fetch it again with: sinksort data --download cifar{10 if labels == 1 else 100}"
            )
        parts.append(raw.reshape(-1, record))
    records = np.concatenate(parts)
    classes = records[:, labels - 1]
    most = 10 if labels == 1 else 100
    if classes.max() >= most:
        raise ValueError(
            f"{paths[0].parent} is not CIFAR-{most} in its binary version: a record has the label {classes.max()}; "
            f"labels are below {most}."
        )
    return records[:, labels:].reshape(-1, 3, 32, 32).copy(), classes.copy()
