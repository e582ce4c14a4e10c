"""The data sets: which files they are, whether they are at hand and whole, and how they come there.

They live in one folder, given by ``--data`` or the variable SINKSORT_DATA (default: ``data``), in the folders that
their official archives unpack to. A file is whole when its sha256 is the one below. What is fetched is checked before
it is unpacked, and again file by file before any of it is written: a download leaves all of its files, or none.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import tarfile
import urllib.parse
import urllib.request
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .store import write_atomic

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_GITHUB = "https://raw.githubusercontent.com/"
_TABLES = f"{_GITHUB}yromano/cqr/73267abb7ed7d3c6dad6ab4449154db7ec306535/datasets/"
_FACEBOOK = (  #: a copy of the test part of UCI's Facebook Comment Volume, which has no address of its own there
    f"{_GITHUB}wdehrich/facebook-comment-volume-prediction/c7044af60239768861fda1ced11774e11b3a9528/"
    "Dataset/Dataset/Testing/Features_TestSet.csv"
)
_MOST = 1 << 28  #: bytes that are fetched from one address, or unpacked from one archive


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


def _table(name: str, digest: str, source: str | None = None) -> File:
    return File(f"cqr/{name}", digest, source or f"{_TABLES}{name}")


#: sha256 of the archives, by their addresses: they are unpacked only if it is this.
ARCHIVES = {
    f"{_CIFAR}cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    f"{_CIFAR}cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
}

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
                _FACEBOOK,
            ),
        ),
        "UCI, Kaggle and AER; CC BY 4.0 except STAR (GPL)",
    ),
}

#: Read in place of the test part where somebody has it. Its sha256 is not known, but is written down with the results.
VARIANT = File("cqr/Features_Variant_1.csv", "")


def data_folder(given: Path | None) -> Path:
    """``given``, or the folder in SINKSORT_DATA, or ``data``."""
    return given if given is not None else Path(os.environ.get("SINKSORT_DATA") or "data")


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def require(names: Sequence[str], folder: Path) -> None:
    """An error that says what to do when files of these data sets are missing or damaged."""
    require_files([file for name in names for file in DATA_SETS[name].files], folder)


def require_files(files: Iterable[File], folder: Path) -> None:
    """The same of some files."""
    wanted = set(files)
    for name, data_set in DATA_SETS.items():
        states = {file.path: file.state(folder) for file in data_set.files if file in wanted}
        for state, error in (("missing", FileNotFoundError), ("damaged", ValueError)):
            paths = [path for path, found in states.items() if found == state]
            if paths:
                what = "not found" if state == "missing" else "not what they should be (by their sha256)"
                raise error(
                    f"{data_set.title}: {', '.join(paths)} {what} in {folder}. Say where the data is with --data "
                    f"or SINKSORT_DATA, copy it there with: sinksort data --place FOLDER, or fetch it with: "
                    f"sinksort data --download {name}"
                )


def fingerprints(files: Iterable[File], folder: Path) -> dict[str, str]:
    """The sha256 of each of these files, by path; what is not there is left out."""
    return {file.path: sha256(folder / file.path) for file in files if (folder / file.path).exists()}


def altered(found: Mapping[str, str]) -> list[str]:
    """Of ``fingerprints``: the paths whose sha256 is not the one that it should be."""
    known = {file.path: file.sha256 for data_set in DATA_SETS.values() for file in data_set.files}
    return [path for path, digest in found.items() if known.get(path, digest) != digest]


def place(source: Path, folder: Path) -> list[Path]:
    """Copy every file of a data set that is found below ``source`` and is whole to its place in ``folder``."""
    if not source.is_dir():
        raise NotADirectoryError(f"--place must be a folder that holds the files, got {source}.")
    found: dict[str, list[Path]] = {}
    for path in sorted(source.rglob("*")):
        if path.is_file():
            found.setdefault(path.name, []).append(path)
    placed = []
    for data_set in DATA_SETS.values():
        for file in data_set.files:
            whole = [path for path in found.get(file.name, []) if sha256(path) == file.sha256]
            if whole and file.state(folder) != "ok":
                write_atomic(folder / file.path, whole[0].read_bytes())
                placed.append(folder / file.path)
    return placed


def download(name: str, folder: Path) -> list[Path]:
    """Fetch what is missing of a data set and has an address: all of it, or nothing. The files written."""
    files = DATA_SETS[name].files
    wanted = [file for file in files if file.state(folder) != "ok"]
    if wanted and all(file.source is None for file in files):
        raise LookupError(
            f"{', '.join(file.name for file in wanted)} has no official address of its own; find the data set "
            f"'{DATA_SETS[name].title}' and place it with: sinksort data --place FOLDER"
        )
    contents: dict[File, bytes] = {}
    for source in dict.fromkeys(file.source for file in wanted if file.source is not None):
        contents |= read(source, fetch(source), [file for file in wanted if file.source == source])
    for file, content in contents.items():
        write_atomic(folder / file.path, content)
    return [folder / file.path for file in contents]


def fetch(source: str) -> bytes:
    """The bytes at an https or file address."""
    if urllib.parse.urlsplit(source).scheme not in ("https", "file"):
        raise ValueError(f"a source must be an https or file address, got {source!r}.")
    try:
        with urllib.request.urlopen(source, timeout=60) as answer:  # noqa: S310 - the scheme was checked
            content: bytes = answer.read(_MOST + 1)
    except http.client.HTTPException as error:
        raise OSError(f"{source} broke off ({error!r}); nothing was written. Try again.") from error
    except OSError as error:
        why = getattr(error, "reason", None) or error
        raise OSError(
            f"{source} cannot be fetched ({why}); nothing was written. Try again, or fetch it elsewhere and place it "
            "with: sinksort data --place FOLDER"
        ) from error
    if len(content) > _MOST:
        raise ValueError(f"{source} has more than {_MOST:,} bytes, which no data set has; nothing was written.")
    return content


def read(source: str, content: bytes, files: Sequence[File]) -> dict[File, bytes]:
    """What each of these files holds, out of ``content``: the file itself, or a tar archive of them; checked."""
    if source.endswith(".tar.gz"):
        _require_digest(source, "the archive", content, ARCHIVES.get(source))
        by_name = _unpacked(source, content, {file.name for file in files})
    else:
        by_name = {files[0].name: content}
    for file in files:
        _require_digest(source, file.name, by_name.get(file.name, b""), file.sha256)
    return {file: by_name[file.name] for file in files}


def _require_digest(source: str, what: str, content: bytes, expected: str | None) -> None:
    found = hashlib.sha256(content).hexdigest()
    if expected is not None and found != expected:
        raise ValueError(
            f"{source} did not give {what} as expected: sha256 {found}, expected {expected}; nothing was "
            "written. Try again, or place the file by hand."
        )


def _unpacked(source: str, content: bytes, names: set[str]) -> dict[str, bytes]:
    """The files of these names in a tar archive, by name."""
    try:
        with (
            gzip.open(io.BytesIO(content)) as plain,
            tarfile.open(fileobj=_Bounded(plain, source), mode="r|") as archive,  # type: ignore[call-overload]
        ):
            plain_files = (member for member in archive if member.isfile() and not member.issparse())
            members = (member for member in plain_files if Path(member.name).name in names)
            read = ((Path(member.name).name, archive.extractfile(member)) for member in members)
            return {name: file.read() for name, file in read if file is not None}
    except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError) as error:
        raise ValueError(f"{source} is not a whole archive ({error}); nothing was written. Try again.") from error


class _Bounded:
    """A file that raises when more is read of it than any data set has: a small archive may unpack to anything."""

    def __init__(self, file: gzip.GzipFile, source: str) -> None:
        self._file, self._source, self._left = file, source, _MOST

    def read(self, size: int) -> bytes:
        content = self._file.read(min(size, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(
                f"{self._source} unpacks to more than {_MOST:,} bytes, which no data set has; nothing was written."
            )
        return content
