"""Files that hold compiled kernels: in folders that nobody else can write to, and with a checksum.

A compiled kernel in a file is code. Whoever can change the file can run what he likes in every process that reads it,
so a folder to which others can write is not used: a private folder takes its place. And a file that was cut short, or
changed by a fault of the disk, would crash each process that reads it, or give wrong answers. So each file begins with
a checksum of the rest. Of a file that does not fit its checksum nothing is used, and its kernel is compiled again.
Files are written whole or not at all, so that several processes may share a folder.

Each of these is said once in a process, by the logger "sinksort".
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import stat
import tempfile
from pathlib import Path

_log = logging.getLogger("sinksort")


def checksum(content: bytes) -> bytes:
    """32 bytes."""
    return hashlib.sha256(content).digest()


# ---- folders


@functools.cache
def safe_folder(wanted: Path, inside: str = "") -> Path | None:
    """``wanted / inside``, which is made if necessary, or a private folder in its place, or None if there is neither.

    ``wanted`` may be a folder like /tmp, to which others can write as long as they cannot rename what is not theirs.
    """
    reason = _unfit(wanted / inside, shared=wanted if inside else None)
    if reason is None:
        return wanted / inside
    private = private_folder(wanted, inside)
    instead = f"They are kept in {private}, a folder of your own" if private else "They are not kept"
    _log.warning("Compiled kernels cannot be kept in %s, because %s. %s.", wanted, reason, instead)
    return private


def private_folder(*stands_for: Path | str) -> Path | None:
    """A folder below ~/.cache/sinksort (or $XDG_CACHE_HOME/sinksort) that its owner alone can read and write."""
    name = hashlib.sha256(repr([str(part) for part in stands_for]).encode()).hexdigest()[:16]
    try:
        top = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sinksort"
        for folder in (top, top / name):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _owned(folder.lstat()):
                folder.chmod(0o700)
            if _unfit(folder) is not None:
                return None
    except (OSError, RuntimeError):  # no such place, or nobody knows where it would be
        return None
    return top / name


def temporary_folder() -> Path:
    """A private folder for this process, where there must be one and none can be kept."""
    return Path(_temporary().name)


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sinksort-")


def _unfit(folder: Path, shared: Path | None = None) -> str | None:
    """Why no code can be kept in a folder: it cannot be written, or others can write to it, or rename it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own, above = folder.stat(), shared.stat() if shared else None
    except OSError as error:
        return f"it cannot be written ({error.strerror})"
    if not _owned(own) or (above is not None and not _owned(above) and above.st_uid != 0):
        return "it belongs to another user"
    for found, open_to_others in ((own, _others_write(own)), (above, above is not None and _others_rename(above))):
        if found is not None and open_to_others:
            mode = stat.S_IMODE(found.st_mode)
            return f"other users can write to it (its mode is {mode:o}; chmod go-w would change that)"
    return None if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written"


def _owned(found: os.stat_result) -> bool:
    """Whether a file or folder belongs to this process's user; where there are no such users, it does."""
    return os.name != "posix" or found.st_uid == os.geteuid()


def _others_write(found: os.stat_result) -> bool:
    return os.name == "posix" and bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _others_rename(found: os.stat_result) -> bool:
    """Whether others can replace what is in a folder: not if its sticky bit is set."""
    return _others_write(found) and not found.st_mode & stat.S_ISVTX


# ---- files


def read(path: Path) -> bytes | None:
    """What was written under ``path``; None if there is no such file, or it is damaged, or of others."""
    try:
        with path.open("rb") as file:
            found, content = os.fstat(file.fileno()), file.read()
    except OSError:
        return None
    if not _owned(found) or _others_write(found):
        _say_not_ours(path)
        return None
    if content[:32] != checksum(content[32:]):
        say_damaged(path)
        return None
    return content[32:]


def write(path: Path, content: bytes) -> None:
    """``content``, with its checksum, appears under ``path`` whole. Where it cannot be written nothing happens."""
    try:
        replace(path, checksum(content) + content)
    except OSError as error:
        say_unwritable(path.parent, error)


def replace(path: Path, content: bytes) -> None:
    """``content`` appears under ``path`` whole, or not at all; for the owner alone."""
    handle, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(part).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(part).unlink()
        raise


_said: set[str] = set()


def _say_once(what: str, message: str, *args: object) -> None:
    if what not in _said:
        _said.add(what)
        _log.warning(message, *args)


def say_damaged(path: Path) -> None:
    _say_once("damaged", "The file %s of a compiled kernel is damaged. The kernel is compiled again.", path)


def say_unwritable(folder: Path, error: OSError) -> None:
    _say_once("unwritable", "Compiled kernels cannot be kept in %s: %s.", folder, error.strerror)


def _say_not_ours(path: Path) -> None:
    _say_once("others", "Others can write to %s, so it is not used. The kernel is compiled again.", path)
