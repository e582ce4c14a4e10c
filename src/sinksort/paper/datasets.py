"""The data sets: which files they are, whether they are at hand and whole, and how they come there.

They live in one folder, given by ``--data`` or the variable SINKSORT_DATA (default: ``data``), in the folders that
their official archives unpack to. A file is whole when its sha256 is the one below. Files are placed whole or not at
all.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .store import write_atomic

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_TABLES = "https://raw.githubusercontent.com/yromano/cqr/master/datasets/"


@dataclass(frozen=True)
class File:
    """One file of a data set."""

    path: str  #: below the data folder
    sha256: str
    source: str | None = None  #: where it can be downloaded: the file itself, or a tar archive that holds it

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def state(self, folder: Path) -> str:
        """``"ok"``, ``"missing"`` or ``"damaged"``."""
        path = folder / self.path
        if not path.exists():
            return "missing"
        return "ok" if sha256(path) == self.sha256 else "damaged"


@dataclass(frozen=True)
class DataSet:
    """Files that are used together."""

    title: str
    files: tuple[File, ...]
    licence: str


def _mnist(name: str, digest: str) -> File:
    return File(f"mnist/{name}-ubyte.gz", digest, f"{_MNIST}{name}-ubyte.gz")


def _cifar(classes: int, name: str, digest: str) -> File:
    folder = "cifar-10-batches-bin" if classes == 10 else "cifar-100-binary"
    return File(f"{folder}/{name}.bin", digest, f"{_CIFAR}cifar-{classes}-binary.tar.gz")


def _table(name: str, digest: str, *, online: bool = True) -> File:
    return File(f"cqr/{name}", digest, f"{_TABLES}{name}" if online else None)


DATA_SETS: dict[str, DataSet] = {
    "mnist": DataSet(
        "MNIST, handwritten digits",
        (
            _mnist("train-images-idx3", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            _mnist("train-labels-idx1", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            _mnist("t10k-images-idx3", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            _mnist("t10k-labels-idx1", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
        "LeCun, Cortes, Burges; CC BY-SA 3.0",
    ),
    "cifar10": DataSet(
        "CIFAR-10, binary version",
        (
            _cifar(10, "data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            _cifar(10, "data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            _cifar(10, "data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            _cifar(10, "data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            _cifar(10, "data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            _cifar(10, "test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ),
        "Krizhevsky 2009; free for research with citation",
    ),
    "cifar100": DataSet(
        "CIFAR-100, binary version",
        (
            _cifar(100, "train", "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
            _cifar(100, "test", "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),
        ),
        "Krizhevsky 2009; free for research with citation",
    ),
    "cqr": DataSet(
        "six regression tables of Romano et al.",
        (
            _table("CASP.csv", "4277cfcb4e91a181746cbc654f001b57951c9e6a80f4f795fdb5c807e0848f40"),
            _table("bike_train.csv", "0cf70c35eeb6405a40cc9e124854e2da901fa88fe7374a75d141e7401bf4c857"),
            _table("STAR.csv", "0c5dbe6e9a6d9875da4a88d588eca36068eccb77343b327d0c69cf2d8adb44eb"),
            _table("Concrete_Data.csv", "ebfbd624c890ac455a837c294addf9ef55baa14a512e4a84ec74fb8be5b4a6e0"),
            _table("communities.data", "09e0b5c07eae24c1efab19b2edee05e160e7f5743b6f31e31eec3d73624da2ea"),
            _table("communities_attributes.csv", "7910375e27b6544045bd620efe7724afd9c90f53e711c78df7c16c3adfddcc9b"),
            _table(
                "Features_TestSet.csv",
                "2a44ae9376204719ecd66cc2486481b214848428108b73407ef4e750a3ed9204",
                online=False,
            ),
        ),
        "UCI, Kaggle and AER; CC BY 4.0 except STAR (GPL)",
    ),
}


def data_folder(given: Path | None) -> Path:
    """``given``, or the folder in SINKSORT_DATA, or ``data``."""
    return given if given is not None else Path(os.environ.get("SINKSORT_DATA") or "data")


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def require(names: tuple[str, ...], folder: Path) -> None:
    """An error that says how to get them when files of these data sets are not there."""
    for name in names:
        lost = [file.path for file in DATA_SETS[name].files if not (folder / file.path).exists()]
        if lost:
            raise FileNotFoundError(
                f"{DATA_SETS[name].title}: {', '.join(lost)} not found in {folder}. Say where the data is with --data "
                f"or SINKSORT_DATA, copy it there with: sinksort data --place FOLDER, or fetch it with: "
                f"sinksort data --download {name}"
            )


def place(source: Path, folder: Path) -> list[Path]:
    """Copy every file of a data set that is found below ``source`` and is whole to its place in ``folder``."""
    if not source.is_dir():
        raise NotADirectoryError(f"--place must be a folder that holds the files, got {source}.")
    found = {path.name: path for path in sorted(source.rglob("*")) if path.is_file()}
    placed = []
    for data_set in DATA_SETS.values():
        for file in data_set.files:
            path = found.get(file.name)
            if path is not None and file.state(folder) != "ok" and sha256(path) == file.sha256:
                write_atomic(folder / file.path, path.read_bytes())
                placed.append(folder / file.path)
    return placed


def download(name: str, folder: Path) -> Iterator[Path]:
    """Fetch what is missing of a data set, one path a file that has arrived whole."""
    wanted = [file for file in DATA_SETS[name].files if file.state(folder) != "ok"]
    nowhere = [file.name for file in wanted if file.source is None]
    if nowhere:
        raise LookupError(
            f"{', '.join(nowhere)} has no official address of its own; get the UCI data set 'Facebook Comment Volume' "
            "and place it with: sinksort data --place FOLDER"
        )
    for source in dict.fromkeys(file.source for file in wanted if file.source is not None):
        from_there = [file for file in wanted if file.source == source]
        yield from store(source, fetch(source), from_there, folder)


def fetch(source: str) -> bytes:
    """The bytes at an https or file address."""
    if urllib.parse.urlsplit(source).scheme not in ("https", "file"):
        raise ValueError(f"a source must be an https or file address, got {source!r}.")
    with urllib.request.urlopen(source, timeout=60) as answer:  # noqa: S310 - the scheme was checked
        content: bytes = answer.read()
    return content


def store(source: str, content: bytes, files: list[File], folder: Path) -> Iterator[Path]:
    """Put the files in ``content``, the file itself or a tar archive of them, to their places."""
    if not source.endswith(".tar.gz"):
        contents = {files[0].name: content}
    else:
        names = {file.name for file in files}
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as archive:
            members = [member for member in archive if member.isfile() and Path(member.name).name in names]
            contents = {Path(m.name).name: read.read() for m in members if (read := archive.extractfile(m)) is not None}
    for file in files:
        found = hashlib.sha256(contents.get(file.name, b"")).hexdigest()
        if found != file.sha256:
            raise ValueError(
                f"{source} did not give {file.name} as expected: sha256 {found}, expected {file.sha256}; nothing was "
                "written. Try again, or place the file by hand."
            )
        write_atomic(folder / file.path, contents[file.name])
        yield folder / file.path
